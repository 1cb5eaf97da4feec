//! What has turns, for whom, and what a look at it finds.

/// Who answers for a ring: the process that opened it. The card itself, and whoever is not known, is 0.
pub(crate) type Owner = u32;

/// What has turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Item {
    /// A ring of a TX queue: index of the lane, place in it.
    Ring(u32, u32),
    /// A port queue that may have received something: index of the lane, place in it.
    PortQueue(u32, u32),
}

impl Item {
    pub fn lane(self) -> usize {
        match self {
            Item::Ring(lane, _) | Item::PortQueue(lane, _) => lane as usize,
        }
    }
}

/// What a look at an item found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing to do.
    Quiet,
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
