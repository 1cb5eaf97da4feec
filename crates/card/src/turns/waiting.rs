//! Rings that wait for a time: they have no turns, and their `card_sleeps` is not set, since whatever else comes through such a
//! ring is behind the frame that waits.

use super::armed::Armed;
use super::item::{Item, Owner, key};
use super::wheel::Wheel;

/// What is taken out of the wheel at once at most, moved in it, or looked at in a sweep. A step is some misses of the cache.
pub(super) const STEPS: usize = 32;
/// The same while a launch is near.
pub(super) const FEW_STEPS: usize = 4;

/// What is known of a ring that waits.
#[derive(Clone, Copy, Default)]
struct Launch {
    owner: Owner,
    at: u64,
    order: u64,
}

/// Rings that wait, and who answers for each.
#[derive(Default)]
pub(super) struct Waiting {
    wheel: Wheel,
    // By place of the ring.
    launches: Vec<Launch>,
    // The clock by which they wait was changed: from this place on they have to be judged again.
    sweep: Option<u32>,
}

impl Waiting {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.wheel.is_empty()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.wheel.len()
    }

    /// The item can be [added](Waiting::add) without an allocation from now on.
    pub fn make_room(&mut self, item: Item) {
        if let Some(key) = key(item) {
            self.wheel.make_room(key);
            self.launches.resize(self.launches.len().max(key as usize + 1), Launch::default());
        }
    }

    /// What has turns waits from now on until a time in ns. `false`: it is none that can.
    pub fn add(&mut self, Armed { at, order, item }: Armed, owner: Owner, until: u64) -> bool {
        let Some(key) = key(item) else { return false };
        self.make_room(item);
        self.launches[key as usize] = Launch { owner, at, order };
        self.wheel.insert(key, until);
        true
    }

    /// Takes an item out; `None` when it does not wait.
    pub fn take(&mut self, item: Item) -> Option<Owner> {
        let key = key(item).filter(|&key| self.wheel.remove(key))?;
        Some(self.launches[key as usize].owner)
    }

    /// When the first of them is to be looked at, in ns; not later.
    pub fn earliest(&self) -> Option<u64> {
        self.wheel.earliest()
    }

    /// The clock by which they wait goes differently from now on: all of them come, some in each pass.
    #[cold]
    pub fn judge_again(&mut self) {
        self.sweep = Some(0).filter(|_| !self.is_empty());
    }

    /// Whether some have not been judged again yet.
    #[inline(always)]
    pub fn is_judging(&self) -> bool {
        self.sweep.is_some()
    }

    /// Whether there is something to do at `now`, in ns.
    #[inline(always)]
    pub fn is_due(&self, now: u64) -> bool {
        self.wheel.is_due(now) || self.sweep.is_some()
    }

    /// Takes some of those out that are due, and some that have to be judged again, at most so many of each: of the latter their times are not said.
    pub fn expire(&mut self, now: u64, most: usize, mut each: impl FnMut(Owner, Item, Option<Armed>)) {
        let Self { wheel, launches, sweep } = self;
        wheel.expire(now, most, |key| {
            let (item, Launch { owner, at, order }) = (Item::Ring(key), launches[key as usize]);
            each(owner, item, Some(Armed { at, order, item }));
        });
        if let Some(from) = *sweep {
            *sweep = wheel.sweep(from, most as u32, |key| each(launches[key as usize].owner, Item::Ring(key), None));
        }
    }
}
