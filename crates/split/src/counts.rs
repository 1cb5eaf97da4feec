//! What the backend counts for a guest.

use crate::transport::Counts;

/// What the backend has counted for a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestCounts {
    /// What the transport took at this side.
    pub transport: Counts,
    /// Requests of its control page.
    pub requests: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Addresses that were not in its domain.
    pub faults: u64,
    /// Pages that are mapped.
    pub pages: u64,
    /// Messages that all guests have posted.
    pub taken: u64,
    /// Bytes that the engine has copied for all guests, from one to another, once.
    pub copied: u64,
    /// Packets between guests of which the engine has made copies on the way, for all of them.
    pub packets: u64,
    /// Frames that went out by the port and came in by it, for all guests.
    pub frames: u64,
    /// Bytes that were copied between guests' memory, frames and the port, for all of them.
    pub port_copied: u64,
}

impl GuestCounts {
    /// In the order in which they stand in an answer.
    pub fn words(&self) -> Vec<u64> {
        let Self { transport, requests, refused, faults, pages, taken, copied, packets, frames, port_copied } = *self;
        [&transport.words()[..], &[requests, refused, faults, pages, taken, copied, packets, frames, port_copied]]
            .concat()
    }

    /// With their names; of the transport only what it rang and heard.
    pub fn pairs(&self) -> [(&'static str, u64); 11] {
        let Self { transport, requests, refused, faults, pages, taken, copied, packets, frames, port_copied } = *self;
        [
            ("rung", transport.rung),
            ("heard", transport.heard),
            ("requests", requests),
            ("refused", refused),
            ("faults", faults),
            ("pages", pages),
            ("taken", taken),
            ("copied", copied),
            ("packets", packets),
            ("frames", frames),
            ("port_copied", port_copied),
        ]
    }

    /// The other way round.
    pub fn read(words: &[u64]) -> Option<Self> {
        let (transport, &[requests, refused, faults, pages, taken, copied, packets, frames, port_copied]) =
            words.split_first_chunk::<5>()?
        else {
            return None;
        };
        let transport = Counts::of_words(*transport);
        Some(Self { transport, requests, refused, faults, pages, taken, copied, packets, frames, port_copied })
    }

    /// What was added since; of pages, those that are mapped.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            transport: self.transport.since(&before.transport),
            requests: self.requests.saturating_sub(before.requests),
            refused: self.refused.saturating_sub(before.refused),
            faults: self.faults.saturating_sub(before.faults),
            pages: self.pages,
            taken: self.taken.saturating_sub(before.taken),
            copied: self.copied.saturating_sub(before.copied),
            packets: self.packets.saturating_sub(before.packets),
            frames: self.frames.saturating_sub(before.frames),
            port_copied: self.port_copied.saturating_sub(before.port_copied),
        }
    }
}
