//! Rings of one owner whose launch times come soon, sorted: the worker serves them before anything else has its turn, the earliest
//! first, and at equal times in an order that the shard says.

use super::item::Item;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A ring, and when it wants to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Armed {
    /// In ns of the card's clock.
    pub at: u64,
    /// Of equal times the lowest is the first.
    pub order: u64,
    /// The ring.
    pub item: Item,
}

/// Those of one owner.
#[derive(Default)]
pub(super) struct Queue(BinaryHeap<Reverse<Armed>>);

impl Queue {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, armed: Armed) {
        self.0.push(Reverse(armed));
    }

    #[inline]
    pub fn first(&self) -> Option<Armed> {
        self.0.peek().map(|first| first.0)
    }

    pub fn take_first(&mut self) -> Option<Armed> {
        self.0.pop().map(|first| first.0)
    }

    /// Takes a ring out, wherever it is. `false`: it is not here. For what is seldom done.
    pub fn remove(&mut self, item: Item) -> bool {
        let before = self.0.len();
        self.0.retain(|armed| armed.0.item != item);
        self.0.len() < before
    }
}
