//! What has turns, for whom, and what a look at it finds.

/// Who answers for a ring: the process that opened it. The card itself, and whoever is not known, is 0.
pub(crate) type Owner = u32;

/// What has turns, by its place in the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Item {
    /// A ring of a TX queue.
    Ring(u32),
    /// A port queue that may have received something.
    PortQueue(u32),
    /// Frames that another worker, of that index, has for queues or port queues of this one.
    Crossing(u32),
}

/// What is known of an item by a number: only of rings, which alone can have launch times.
#[inline(always)]
pub(super) fn key(item: Item) -> Option<u32> {
    match item {
        Item::Ring(at) => Some(at),
        Item::PortQueue(_) | Item::Crossing(_) => None,
    }
}

/// What a look at an item found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing to do.
    Quiet,
    /// The next frame waits for its launch time.
    Waits,
    /// There is something, but no room where it goes.
    Blocked,
    /// Work was done.
    Busy,
    /// The ring does not run any more.
    Ended,
}

impl Look {
    /// Whether anything has changed.
    #[inline(always)]
    pub fn is_work(self) -> bool {
        matches!(self, Look::Busy | Look::Ended)
    }
}
