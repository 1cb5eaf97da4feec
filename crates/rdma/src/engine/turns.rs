//! Whose turn it is to send: groups in turn, and in each its queue pairs. A group is what belongs to one program, so that who has many
//! queue pairs has no more turns than who has one. Where there is one program, there is one group.

use std::collections::VecDeque;

/// What a group may send in a turn, in bytes.
const SHARE: i64 = 32 << 10;
/// What a packet costs beside its bytes. A request that was done without packets counts as one for each 4 KiB, because it is copied once.
const PACKET: u64 = 1024;

/// Queue pairs without room on their way that are tried in one call, of all groups together; of each group at least some.
const BLOCKED: usize = 64;
const BLOCKED_OF_GROUP: usize = 8;

#[derive(Debug, Default)]
struct Group {
    waiting: VecDeque<u32>,
    /// What it may still send in its turn. Turns of queue pairs are not cut: who has sent more pays for it later.
    credit: i64,
    /// It waits for its turn, has it, or is held.
    listed: bool,
}

/// Queue pairs, called by their slots, that may have something to send.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Those of group 0, as long as there is no other: a program with an engine of its own pays for no groups.
    single: VecDeque<u32>,
    /// Once there are several: all of them.
    groups: Vec<Group>,
    /// Queue pairs in them.
    count: usize,
    /// Groups in the order of their turns.
    busy: VecDeque<u32>,
    /// Groups of which no more is tried in this call, because they have no room on their way.
    held: Vec<u32>,
    /// Of a group that is held, not all were tried.
    has_untried: bool,
}

impl Turns {
    /// There is a group with that number.
    pub fn know(&mut self, group: u32) {
        if group > 0 && self.groups.len() <= group as usize {
            let was_single = self.groups.is_empty();
            self.groups.resize_with(group as usize + 1, Group::default);
            if was_single {
                core::mem::take(&mut self.single).into_iter().for_each(|slot| self.add(0, slot));
            }
        }
    }

    /// A queue pair that does not wait for its turn does so now.
    #[inline]
    pub fn add(&mut self, group: u32, slot: u32) {
        let Some(of) = self.groups.get_mut(group as usize) else {
            self.single.push_back(slot);
            return;
        };
        of.waiting.push_back(slot);
        self.count += 1;
        if !core::mem::replace(&mut of.listed, true) {
            self.busy.push_back(group);
        }
    }

    /// It does not wait any more.
    pub fn remove(&mut self, group: u32, slot: u32) {
        match self.groups.get_mut(group as usize) {
            None => self.single.retain(|other| *other != slot),
            Some(of) => {
                let before = of.waiting.len();
                of.waiting.retain(|other| *other != slot);
                self.count -= before - of.waiting.len();
            }
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.single.is_empty() && self.count == 0
    }

    /// A call begins. How many queue pairs of a group may turn out to have no room in it.
    #[inline]
    pub fn open(&mut self) -> usize {
        self.has_untried = false;
        match self.busy.len() {
            0 | 1 => BLOCKED,
            busy => (BLOCKED / busy).max(BLOCKED_OF_GROUP),
        }
    }

    /// Whose turn it is.
    #[inline]
    pub fn begin(&mut self) -> Option<u32> {
        if self.groups.is_empty() { (!self.single.is_empty()).then_some(0) } else { self.begin_of_many() }
    }

    fn begin_of_many(&mut self) -> Option<u32> {
        loop {
            let group = self.busy.pop_front()?;
            let of = &mut self.groups[group as usize];
            if of.waiting.is_empty() {
                of.listed = false;
                continue;
            }
            // What is left is of a turn that was cut.
            if of.credit <= 0 {
                of.credit += SHARE;
            }
            if self.busy.is_empty() {
                of.credit = of.credit.max(SHARE);
            }
            if of.credit > 0 {
                return Some(group);
            }
            self.busy.push_back(group);
        }
    }

    /// The next queue pair of the group whose turn it is, unless that is over.
    #[inline]
    pub fn take(&mut self, group: u32) -> Option<u32> {
        let Some(of) = self.groups.get_mut(group as usize) else { return self.single.pop_front() };
        if of.credit <= 0 {
            return None;
        }
        let slot = of.waiting.pop_front()?;
        self.count -= 1;
        Some(slot)
    }

    /// One that was taken comes first when its group goes on.
    pub fn put_back(&mut self, group: u32, slot: u32) {
        match self.groups.get_mut(group as usize) {
            None => self.single.push_front(slot),
            Some(of) => {
                of.waiting.push_front(slot);
                self.count += 1;
            }
        }
    }

    /// The group whose turn it is has sent something.
    #[inline]
    pub fn pay(&mut self, group: u32, packets: usize, bytes: u64) {
        if let Some(of) = self.groups.get_mut(group as usize) {
            of.credit -= (packets as u64 * PACKET + bytes) as i64;
        }
    }

    /// Whether no more of a group is to be tried, because so many of it had no room.
    pub fn holds(&mut self, group: u32, blocked: usize, tries: usize) -> bool {
        let waiting = self.groups.get(group as usize).map_or(&self.single, |of| &of.waiting).len();
        let is_held = blocked >= tries.min(waiting);
        self.has_untried |= is_held && waiting > blocked;
        is_held
    }

    /// The turn of a group is over, or was cut; `is_held`: nothing more of it is tried before [`Turns::close`]. Whether there is no other
    /// group.
    #[inline]
    pub fn end(&mut self, group: u32, is_held: bool) -> bool {
        if self.groups.is_empty() {
            return true;
        }
        self.end_of_many(group, is_held);
        false
    }

    fn end_of_many(&mut self, group: u32, is_held: bool) {
        let of = &mut self.groups[group as usize];
        if of.waiting.is_empty() || is_held {
            of.credit = of.credit.min(0);
        }
        match () {
            () if of.waiting.is_empty() => of.listed = false,
            () if is_held => self.held.push(group),
            () if of.credit > 0 => self.busy.push_front(group),
            () => self.busy.push_back(group),
        }
    }

    /// A call is over: those that were held are tried again in the next.
    #[inline]
    pub fn close(&mut self) {
        if !self.held.is_empty() {
            self.busy.extend(self.held.drain(..));
        }
    }

    /// Whether the last call has tried all that it held.
    pub fn has_tried_all(&self) -> bool {
        !self.has_untried
    }
}
