//! A hierarchical timing wheel (G. Varghese and T. Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987, scheme 7).
//!
//! ```text
//! level 0   64 slots of one tick, 1.024 us each
//! level 1   64 slots of 64 ticks, 65.5 us
//! level 2   64 slots of 64^2 ticks, 4.2 ms
//! ...       up to level 8: every time that 64 bits of nanoseconds can say has its slot
//! ```
//!
//! A time lies at the level of the highest six bits in which its tick differs from the tick up to which the wheel has come, so
//! whatever lies at a level comes before all that lies at the next, and slots of a level come in the order of their numbers. When
//! a slot of a higher level begins, what is in it moves down, at most once for each level. One bit for each slot says whether
//! anything is in it: the next one is found without a walk.
//!
//! Times belong to keys, small numbers such as places in a slab, each of which has one time at most. So a key is its own
//! handle: whoever takes it back, or gives it to something else, leaves nothing behind.

#[cfg(test)]
mod tests;

/// Nanoseconds of a tick, as a power of two.
const TICK_SHIFT: u32 = 10;
/// Nanoseconds of a tick: a time comes so much too early at most, and never late by the wheel.
pub(super) const TICK: u64 = 1 << TICK_SHIFT;
/// Slots of a level, as a power of two.
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Enough for ticks of 54 bits.
const LEVELS: usize = ((u64::BITS - TICK_SHIFT) as usize).div_ceil(SLOT_BITS as usize);

/// No key.
const NOBODY: u32 = u32::MAX;
/// No slot.
const NOWHERE: u16 = u16::MAX;

/// What is due in one slot, as a list in the order in which it came.
#[derive(Clone, Copy)]
struct Slot {
    first: u32,
    last: u32,
    /// The earliest tick that was put in since it was empty.
    earliest: u64,
}

const EMPTY: Slot = Slot { first: NOBODY, last: NOBODY, earliest: u64::MAX };

/// A key's time, and its neighbours in the list of its slot.
#[derive(Clone, Copy)]
struct Node {
    before: u32,
    after: u32,
    /// Of all levels; [`NOWHERE`]: the key has no time.
    slot: u16,
    tick: u64,
}

const FREE: Node = Node { before: NOBODY, after: NOBODY, slot: NOWHERE, tick: 0 };

/// Times by key, in nanoseconds of a clock that never goes back.
pub(super) struct Wheel {
    slots: Box<[Slot]>,
    // Which slots of each level are not empty.
    occupied: [u64; LEVELS],
    nodes: Vec<Node>,
    len: usize,
    // The tick up to which everything was taken out, except what is left in slots that have begun.
    reached: u64,
    // Level of a slot that has begun and from which not everything has moved down yet; 0: there is none.
    moving: usize,
    // Nothing has to be done before this tick.
    next: u64,
}

impl Default for Wheel {
    fn default() -> Self {
        Self {
            slots: vec![EMPTY; LEVELS * SLOTS].into(),
            occupied: [0; LEVELS],
            nodes: Vec::new(),
            len: 0,
            reached: 0,
            moving: 0,
            next: u64::MAX,
        }
    }
}

/// Number of the slot of a level in which a tick lies.
#[inline(always)]
fn slot_of(tick: u64, level: usize) -> usize {
    (tick >> (level as u32 * SLOT_BITS)) as usize % SLOTS
}

/// The first tick of a slot of the level, beside `tick`.
#[inline(always)]
fn begin_of(tick: u64, level: usize, slot: usize) -> u64 {
    let shift = level as u32 * SLOT_BITS;
    (tick >> (shift + SLOT_BITS) << SLOT_BITS | slot as u64) << shift
}

impl Wheel {
    /// How many keys have a time.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes room for keys up to this one, so that [`Wheel::insert`] need not.
    pub fn make_room(&mut self, key: u32) {
        if self.nodes.len() <= key as usize {
            self.nodes.resize(key as usize + 1, FREE);
        }
    }

    /// Gives a key a time in ns, instead of the one that it had.
    pub fn insert(&mut self, key: u32, at: u64) {
        self.make_room(key);
        self.remove(key);
        self.nodes[key as usize].tick = at >> TICK_SHIFT;
        self.len += 1;
        let begin = self.link(key);
        self.next = self.next.min(begin);
    }

    /// Takes the time of a key away. `false`: it had none.
    pub fn remove(&mut self, key: u32) -> bool {
        let Some(&node) = self.nodes.get(key as usize) else { return false };
        if node.slot == NOWHERE {
            return false;
        }
        self.unlink(key, node);
        self.len -= 1;
        true
    }

    /// The earliest time in ns, rounded down to a tick. After a removal it may be too early.
    pub fn earliest(&self) -> Option<u64> {
        // A slot that has begun and was not emptied yet, and the first of the others.
        let begun = (self.moving > 0).then(|| self.slots[self.moving * SLOTS + slot_of(self.reached, self.moving)]);
        let first = self.lowest().map(|(level, slot)| self.slots[level * SLOTS + slot]);
        let ticks = begun.into_iter().chain(first).map(|slot| slot.earliest).min();
        ticks.filter(|_| self.len > 0).map(|tick| tick.saturating_mul(TICK))
    }

    /// Whether [`Wheel::expire`] has something to do at `now`, in ns.
    #[inline(always)]
    pub fn is_due(&self, now: u64) -> bool {
        now >> TICK_SHIFT >= self.next
    }

    /// Takes out keys whose time has come by `now`, in ns, and gives them to `each`: after `most` steps, each of which takes one
    /// out or moves one down a level, the rest is for the next call, which [`Wheel::is_due`] then asks for.
    pub fn expire(&mut self, now: u64, most: usize, mut each: impl FnMut(u32)) {
        let now = now >> TICK_SHIFT;
        for _ in 0..most {
            let Some((level, slot)) = self.first() else {
                (self.reached, self.next) = (self.reached.max(now), u64::MAX);
                return;
            };
            let begin = begin_of(self.reached, level, slot);
            if begin > now {
                (self.reached, self.next) = (self.reached.max(now), begin);
                return;
            }
            self.reached = self.reached.max(begin);
            self.moving = level;
            let key = self.slots[level * SLOTS + slot].first;
            self.unlink(key, self.nodes[key as usize]);
            if level == 0 {
                self.len -= 1;
                each(key);
            } else {
                self.link(key);
            }
        }
        self.next = self.reached;
    }

    /// Takes out keys from `from` on, whenever their times are: after `most` that were looked at the rest is left. Returns where
    /// to go on.
    pub fn sweep(&mut self, from: u32, most: u32, mut each: impl FnMut(u32)) -> Option<u32> {
        let all = self.nodes.len() as u32;
        let end = from.saturating_add(most).min(all);
        (from..end).for_each(|key| {
            if self.remove(key) {
                each(key);
            }
        });
        (end < all && self.len > 0).then_some(end)
    }

    /// The slot from which the next key is taken: one that has begun, or the first.
    #[inline]
    fn first(&self) -> Option<(usize, usize)> {
        let slot = slot_of(self.reached, self.moving);
        if self.moving > 0 && self.occupied[self.moving] >> slot & 1 != 0 {
            return Some((self.moving, slot));
        }
        self.lowest()
    }

    /// The first slot of the lowest level that has one.
    #[inline]
    fn lowest(&self) -> Option<(usize, usize)> {
        let level = self.occupied.iter().position(|&occupied| occupied != 0)?;
        Some((level, self.occupied[level].trailing_zeros() as usize))
    }

    /// Puts a key, whose tick is known, where it belongs. Returns the first tick of that slot.
    fn link(&mut self, key: u32) -> u64 {
        // What is late is due at once.
        let tick = self.nodes[key as usize].tick.max(self.reached);
        let differ = tick ^ self.reached;
        let level = (u64::BITS - differ.leading_zeros()).saturating_sub(1) / SLOT_BITS;
        let (level, number) = (level as usize, slot_of(tick, level as usize));
        let at = level * SLOTS + number;
        let slot = &mut self.slots[at];
        let before = core::mem::replace(&mut slot.last, key);
        slot.earliest = slot.earliest.min(tick);
        if before == NOBODY {
            slot.first = key;
            self.occupied[level] |= 1 << number;
        } else {
            self.nodes[before as usize].after = key;
        }
        let node = &mut self.nodes[key as usize];
        (node.before, node.after, node.slot) = (before, NOBODY, at as u16);
        begin_of(self.reached, level, number)
    }

    /// Takes a key out of the list of its slot.
    fn unlink(&mut self, key: u32, node: Node) {
        let at = usize::from(node.slot);
        match node.before {
            NOBODY => self.slots[at].first = node.after,
            before => self.nodes[before as usize].after = node.after,
        }
        match node.after {
            NOBODY => self.slots[at].last = node.before,
            after => self.nodes[after as usize].before = node.before,
        }
        if self.slots[at].first == NOBODY {
            self.slots[at] = EMPTY;
            self.occupied[at / SLOTS] &= !(1 << (at % SLOTS));
        }
        self.nodes[key as usize].slot = NOWHERE;
    }
}
