//! Descriptor-ring protocols: one module for each, with its layout, the card's half and the host's half.
//!
//! * [`medusa`]: one descriptor per packet (`docs/spec/medusa.md`).
//! * [`sze`]: a stream of packets in one byte ring (`docs/spec/sze.md`).
//! * [`calypte`]: headers that are doorbells (`docs/spec/calypte.md`).
//! * [`virtio`]: split virtqueues of a network device.
//! * [`dd`]: descriptors with a done bit and a launch time (`docs/spec/dd.md`).
//! * [`lines`]: short messages of words between two processes.
//! * [`words`]: single words between two processes.
//! * [`stream`]: a stream of bytes between two processes, as of a TCP connection.
//! * [`wake`]: how either side sleeps without losing a wake-up.
//! * [`cursor`]: the word by which one of several readers of an RX queue says how far it is.
//! * [`budget`]: how much of a ring one turn looks at, whatever is in it.
//! * [`shared`]: how the card reclaims a ring at the slowest of up to sixteen readers.
//!
//! A half is a plain struct over views of shared memory ([`millrace_dma`]). It believes nothing of what the other side
//! writes: a descriptor, header or pointer is loaded once, checked, and the checked copy used. Nothing here allocates
//! after construction, locks, or makes a system call.
//!
//! Memory order, the same in all protocols: whoever fills slots stores the word that says so (a pointer, or the header
//! or status of the slot itself) with `Release`, whoever empties them loads it with `Acquire`; and back with the other
//! such word. Each place names its partner.
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("the rings are little-endian and so must the machine be");

pub mod budget;
pub mod calypte;
pub mod cursor;
pub mod dd;
pub mod index;
pub mod lines;
pub mod medusa;
mod rooms;
mod serve;
pub mod shared;
pub mod stream;
pub mod sze;
pub mod virtio;
pub mod wake;
pub mod words;

use millrace_abi::control::FaultKind;
use millrace_dma::{Fault, Iova, Span};

/// Where the card's half of a TX ring puts the frames that it takes out.
pub trait FrameSink {
    /// Takes one frame, or says that there is no room: the frame then stays in the ring.
    fn take(&mut self, frame: Span<'_>) -> Accept;

    /// Takes frames from the front and returns how many; fewer than there are means that there is no room.
    #[inline(always)]
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        frames.iter().position(|&frame| self.take(frame) == Accept::Full).unwrap_or(frames.len())
    }

    /// Whether the frame that it took last went nowhere: it has been dropped before it was handed to anybody, and a verdict on it must
    /// not say that it was sent.
    #[inline(always)]
    fn has_dropped(&self) -> bool {
        false
    }

    /// When the last frame was let go, by the clock of launch times, where the sink has looked at it.
    #[inline(always)]
    fn let_go_at(&self) -> Option<u64> {
        None
    }
}

impl<F: FnMut(Span<'_>) -> Accept> FrameSink for F {
    #[inline(always)]
    fn take(&mut self, frame: Span<'_>) -> Accept {
        self(frame)
    }
}

/// Whether a sink has taken a frame that it was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Accept {
    /// It was taken (and perhaps dropped and counted further on).
    Taken,
    /// No room: it stays where it is.
    Full,
}

/// What became of a frame that was to be written to an RX ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxOutcome {
    /// Written; visible to software after the next `publish`.
    Stored,
    /// The software has not given enough room back, or the search for it costs more than one burst may
    /// ([`budget::Allowance`]).
    NoRoom,
    /// Longer than the queue, or the buffer posted for it, allows.
    TooLong,
}

/// Why the card's half cannot go on. Everything before the fault has been done and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} (IOVA {iova})")]
pub struct EngineFault {
    /// What was wrong.
    pub kind: FaultKind,
    /// The address concerned: of the data for an access fault, of the ring entry where the ring itself is wrong.
    pub iova: Iova,
}

impl From<Fault> for EngineFault {
    fn from(fault: Fault) -> Self {
        Self { kind: FaultKind::Unmapped, iova: fault.iova }
    }
}

/// What one call of a TX engine did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Frames that the sink took.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames thrown away because they were shorter than the card sends.
    pub too_short: u64,
    /// Frames thrown away because they were longer than the card sends.
    pub too_long: u64,
    /// DD: frames thrown away because their launch time was further ahead than the card waits.
    pub too_far: u64,
    /// DD: frames thrown away because they were later than the queue sends.
    pub too_late: u64,
    /// Frames that the sink took and dropped, as whoever offers the sink says, who has counted them; they are not among `frames` then.
    pub dropped: u64,
    /// Entries of the ring that were looked at, which is what the call cost besides the bytes: fewer than
    /// [`budget::MOST_LOOKS`].
    pub looked: u32,
    /// The ring has moved on, and software is told so: with frames, or over entries that are none.
    pub has_advanced: bool,
    /// Set when the queue has to stop.
    pub fault: Option<EngineFault>,
}

impl Served {
    /// Whether anything happened that somebody has to hear of. Looking alone is nothing.
    #[inline(always)]
    pub fn has_moved(&self) -> bool {
        self.has_advanced || self.fault.is_some()
    }
}

/// Shortest and longest frame of a queue in bytes, without FCS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Shortest frame.
    pub min: u16,
    /// Longest frame.
    pub max: u16,
}

impl FrameLimits {
    /// What an NFB card takes without FCS: 60 to 16383 bytes (`docs/spec/nfb-card.md` §3.2.6).
    pub const ETHERNET: Self = Self { min: 60, max: 0x3fff };
}
