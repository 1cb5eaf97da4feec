//! Rings whose next frame has a time.

use crate::shard::slots::TxSlot;
use crate::shard::state::Shard;
use crate::turns::{Item, Look};

/// When a ring wants to leave.
pub(crate) struct Launch {
    /// By the card's clock, in ns.
    pub at: u64,
    /// Of equal times the lowest goes first.
    pub order: u64,
    /// By the oscillator, in ns.
    pub until: u64,
    /// How long that is yet, in ns of the oscillator.
    pub left: u64,
}

impl Shard {
    /// When the next frame of a ring wants to leave; `None`: it does not wait.
    pub fn launch_of(&self, item: Item) -> Option<Launch> {
        let Item::Ring(place) = item else { return None };
        let slot = self.tx.get(place as usize)?;
        let at = slot.leaves_at(&self.clock)?;
        let until = self.clock.ticks_after(at.saturating_sub(self.clock.card()));
        Some(Launch { at, order: slot.order(), until, left: until.saturating_sub(self.clock.ticks()) })
    }

    /// The next frame of a ring leaves soon: what that will need is fetched.
    pub fn prepare(&self, item: Item) {
        let Item::Ring(place) = item else { return };
        if let Some(slot) = self.tx.get(place as usize) {
            slot.prepare();
            core::hint::black_box(self.tx_counts.get(slot.counts_at).map(|counts| counts.passed));
        }
    }

    /// Whether a ring waits itself for a launch time that is near, with all that goes before the hand-over done.
    #[inline(always)]
    pub fn can_wait(&self, item: Item) -> bool {
        let Item::Ring(place) = item else { return false };
        self.tx.get(place as usize).is_some_and(TxSlot::can_wait)
    }

    /// As [`Shard::look`], at a ring whose time has come, or comes within `patience` ns, for which it [can wait](Shard::can_wait): frames
    /// with launch times after `until` stay where they are.
    pub fn launch(&mut self, item: Item, until: u64, patience: u64) -> (Look, u32) {
        if let Item::Ring(place) = item
            && let Some(slot) = self.tx.get_mut(place as usize)
        {
            slot.come_due(until, patience);
        }
        self.look(item)
    }
}
