//! How room is had and frames are sent: by engine and mode.

use millrace_ring::medusa::FixedTx;
use millrace_ring::{calypte, dd, sze};

/// Who writes the ring.
pub(super) enum Ring {
    Medusa(Box<FixedTx>),
    Sze(Box<sze::HostTx>),
    Calypte(Box<calypte::HostTx>),
    Dd(Box<dd::FixedTx>),
    Mediated(Mediated),
}

/// Mediated mode: what we may write while we have the lock.
#[derive(Default)]
pub(super) struct Mediated {
    // Lengths of the packets taken under the lock and not committed.
    pub(super) pending: Vec<u16>,
    // Units that we may still take, and where they begin.
    pub(super) granted: u32,
    pub(super) position: u64,
}

/// One packet of the burst in hand.
#[derive(Clone, Copy, Default)]
pub(super) struct Slot {
    pub(super) at: u32,
    // As the program asked for, and as it is sent.
    pub(super) len: u16,
    pub(super) padded: u16,
}

/// Bytes of a stream that a frame takes.
#[inline(always)]
pub(super) const fn stride(len: u16, unit: u32, lead: u32) -> u32 {
    (lead + len as u32 + unit - 1) & !(unit - 1)
}
