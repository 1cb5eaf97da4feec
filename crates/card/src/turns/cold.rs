//! Rings that nobody looks at: each has said that the card sleeps, so whoever sends through it takes the flag in its
//! control page down and kicks (`millrace_ring::wake`).
//!
//! A kick is an eventfd that the rings of a program have in common: it says that one of them was rung, and its flag
//! says which one. So the flags behind a kick are looked through, some in every pass, and by turns with those of other
//! owners and behind other kicks (`kicked`): a program that kicks without end keeps a worker as busy as one that sends,
//! and no more.
//!
//! An owner may have thousands of cold rings: one of them is put in or taken out without a walk over the others.

use super::item::{Item, Owner};
use super::kicked::Kicked;
use millrace_dma::{Ordering, Word32};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::os::fd::RawFd;

/// The eventfd behind which a ring is; `None`: it is the card itself that is told.
pub(crate) type Kick = Option<RawFd>;

/// A ring that gets cold.
pub(crate) struct ColdRing {
    pub item: Item,
    pub kick: Kick,
    /// `card_sleeps`, which is set.
    pub flag: Word32,
}

/// The rings of one owner behind one kick. Never empty.
#[derive(Default)]
struct Behind {
    rings: BTreeMap<Item, ColdRing>,
    // The flags up to this ring's have been looked at since the kick. A name, not a place: it stays right when rings
    // come and go, and this one may be gone, too.
    seen: Option<Item>,
    // There was a kick since the look through began: it may be for a ring that was looked at before.
    again: bool,
}

impl Behind {
    /// Looks at up to `most` flags. Returns the rings that were rung, and whether no flag is left to be looked at.
    fn look(&mut self, most: usize) -> (Vec<Item>, bool) {
        let (mut rung, mut looks) = (Vec::new(), 0);
        let after = self.seen.map_or(Unbounded, Excluded);
        for (&item, ring) in self.rings.range((after, Unbounded)).take(most) {
            // Relaxed: the doorbell behind it is looked at when the ring is hot, as any other.
            if ring.flag.load(Ordering::Relaxed) == 0 {
                rung.push(item);
            }
            (self.seen, looks) = (Some(item), looks + 1);
        }
        if looks == most {
            return (rung, false);
        }
        self.seen = None;
        (rung, !core::mem::take(&mut self.again))
    }
}

#[derive(Default)]
pub(super) struct Cold {
    behind: BTreeMap<(Kick, Owner), Behind>,
    // Where each ring is.
    places: BTreeMap<Item, (Kick, Owner)>,
    // Those with flags to look at.
    kicked: Kicked,
}

impl Cold {
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn add(&mut self, owner: Owner, ring: ColdRing) {
        let place = (ring.kick, owner);
        self.places.insert(ring.item, place);
        self.behind.entry(place).or_default().rings.insert(ring.item, ring);
    }

    /// Takes a ring out; `None` when it is not cold.
    pub fn take(&mut self, item: Item) -> Option<Owner> {
        let place = self.places.remove(&item)?;
        let behind = self.behind.get_mut(&place)?;
        let ring = behind.rings.remove(&item)?;
        if behind.rings.is_empty() {
            self.behind.remove(&place);
            self.kicked.remove(place.0, place.1);
        }
        // It is awake: nobody need kick for it any more.
        ring.flag.store(0, Ordering::Relaxed);
        Some(place.1)
    }

    pub fn kicked(&mut self, kick: Kick) {
        for (&(kick, owner), behind) in self.behind.range_mut((kick, 0)..=(kick, Owner::MAX)) {
            behind.again = !self.kicked.add(kick, owner);
        }
    }

    pub fn kicked_all(&mut self) {
        for (&(kick, owner), behind) in &mut self.behind {
            behind.again = !self.kicked.add(kick, owner);
        }
    }

    pub fn is_scanning(&self) -> bool {
        !self.kicked.is_empty()
    }

    /// Looks at up to `most` flags behind the kick whose turn it is. Takes out and returns the rings that were rung.
    pub fn scan(&mut self, most: usize) -> Vec<(Owner, Item)> {
        let Some((kick, owner)) = self.kicked.next() else { return Vec::new() };
        let Some(behind) = self.behind.get_mut(&(kick, owner)) else { return Vec::new() };
        let (rung, done) = behind.look(most);
        if done {
            self.kicked.remove(kick, owner);
        }
        rung.into_iter().filter_map(|item| Some((self.take(item)?, item))).collect()
    }
}
