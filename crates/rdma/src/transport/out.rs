//! Where packets go.

use crate::memory::Refused;
use crate::number::Qpn;
use crate::wire::{Headers, Path};

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way.
    Taken,
    /// There is no room; nothing was written, and it comes again with the next call.
    Full,
    /// There is no room on the way to this end, but others may have some; it comes again with the next call.
    Busy,
    /// Its payload could not be had; no frame goes out.
    Refused(Refused),
}

/// Takes packets, and puts them into frames.
pub trait Out {
    /// One packet of `source`, a queue pair of this end, with `len` bytes of payload. If there is room, `fill` writes
    /// them, all of them, where they are to be, once; if it fails, the frame is not sent.
    fn packet<F>(&mut self, path: &Path, source: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>;
}
