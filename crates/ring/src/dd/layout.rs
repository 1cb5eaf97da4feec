//! The words of DD: descriptors and the ring of them.

use crate::EngineFault;
use crate::index::Mask;
use millrace_abi::control::FaultKind;
use millrace_dma::{Iova, Slots64};

/// Bytes of a descriptor: two lie in a cache line.
pub const DESCRIPTOR: usize = 32;
/// 64-bit words of a descriptor.
const WORDS: u32 = 4;
const ADDRESS: u32 = 0;
const STATUS: u32 = 1;
const TIME: u32 = 2;
const COOKIE: u32 = 3;

const DONE: u64 = 1 << 63;
/// What software leaves 0 in a status word.
const RESERVED: u64 = !DONE & !0xffff;

/// What became of the frame of a TX descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// It was sent. The only outcome of an RX descriptor.
    #[default]
    Passed = 0,
    /// It was shorter than the card sends.
    TooShort = 1,
    /// It was longer than the card sends.
    TooLong = 2,
    /// Its launch time lies further ahead than the card waits ([`HORIZON`](millrace_abi::launch::HORIZON)).
    TooFar = 3,
    /// It was sent, later than the slack behind its launch time, from a queue that marks such frames.
    Late = 4,
    /// It was not sent because it would have been later than that.
    TooLate = 5,
    /// It had a launch time, and the card came to it in time, but it could not be sent: no window of the schedule is long enough for
    /// it, its MAC is disabled or without a link, or nothing is plugged in there.
    Dropped = 6,
}

impl Outcome {
    /// All, in the order of their numbers.
    pub(super) const ALL: [Self; 7] =
        [Self::Passed, Self::TooShort, Self::TooLong, Self::TooFar, Self::Late, Self::TooLate, Self::Dropped];
}

/// The status word of a descriptor.
///
/// ```text
/// 63    62      32 31   24 23      16 15     0
/// done  0          port    outcome    bytes
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Bytes of the frame; of an empty RX buffer, its capacity.
    pub len: u16,
    /// [`Outcome`] as a number, written by the card.
    pub outcome: u8,
    /// RX with a time stamp: the port that the frame came in at, written by the card.
    pub port: u8,
    /// Whose it is: 0 the card's, 1 the software's.
    pub done: bool,
}

impl Status {
    /// A descriptor that software gives to the card.
    pub const fn given(len: u16) -> Self {
        Self { len, outcome: 0, port: 0, done: false }
    }

    /// The word with this meaning.
    #[inline(always)]
    pub const fn encode(self) -> u64 {
        self.len as u64 | (self.outcome as u64) << 16 | (self.port as u64) << 24 | (self.done as u64) << 63
    }

    /// The meaning of a word; reserved bits mean nothing.
    #[inline(always)]
    pub const fn decode(word: u64) -> Self {
        Self { len: word as u16, outcome: (word >> 16) as u8, port: (word >> 24) as u8, done: word & DONE != 0 }
    }
}

/// Length in a status word that belongs to the card: `None` if the software's, an error with reserved bits set.
#[inline(always)]
pub(super) fn given_length(word: u64) -> Option<Result<u16, FaultKind>> {
    if word & DONE != 0 {
        return None;
    }
    Some(if word & RESERVED == 0 { Ok(word as u16) } else { Err(FaultKind::ReservedDescriptor) })
}

/// A ring of descriptors. Places are counted from the start of the queue, modulo 2^32.
#[derive(Clone)]
pub struct Ring {
    words: Slots64,
    entries: Mask,
}

impl Ring {
    /// The ring in `words`, four for each descriptor. `None` unless there is a power of two of them, at least two.
    pub fn new(words: Slots64) -> Option<Self> {
        let entries = Mask::for_entries((words.mask() + 1) / WORDS)?;
        Some(Self { words, entries })
    }

    /// Number of descriptors.
    #[inline(always)]
    pub fn entries(&self) -> u32 {
        self.entries.entries()
    }

    /// The place in the ring of a place counted from the start.
    #[inline(always)]
    pub fn index(&self, at: u32) -> u32 {
        self.entries.index(at).get()
    }

    /// Makes all descriptors the software's: how a ring must be at START.
    pub fn clear(&self) {
        (0..self.entries()).for_each(|at| self.publish(at, DONE));
    }

    #[inline(always)]
    fn word(at: u32, word: u32) -> u32 {
        at.wrapping_mul(WORDS).wrapping_add(word)
    }

    /// The status word. Acquire pairs with the Release in [`Ring::publish`] on the other side: what the descriptor and
    /// its buffer hold is visible to the one whom the done bit names.
    #[inline(always)]
    pub(super) fn status(&self, at: u32) -> u64 {
        self.words.load_acquire(Self::word(at, STATUS))
    }

    /// Stores the status word, which hands the descriptor and its buffer over. Release pairs with the Acquire in
    /// [`Ring::status`] on the other side: everything done to them is visible.
    #[inline(always)]
    pub(super) fn publish(&self, at: u32, status: u64) {
        self.words.store_release(Self::word(at, STATUS), status);
    }

    /// Asks to own the line of a descriptor.
    #[inline(always)]
    pub(super) fn prefetch_write(&self, at: u32) {
        self.words.prefetch_write(Self::word(at, STATUS));
    }

    #[inline(always)]
    pub(super) fn is_done(&self, at: u32) -> bool {
        self.status(at) & DONE != 0
    }

    #[inline(always)]
    pub(super) fn address(&self, at: u32) -> Iova {
        Iova::new(self.words.load(Self::word(at, ADDRESS)))
    }

    #[inline(always)]
    pub(super) fn set_address(&self, at: u32, iova: Iova) {
        self.words.store(Self::word(at, ADDRESS), iova.get());
    }

    #[inline(always)]
    pub(super) fn time(&self, at: u32) -> u64 {
        self.words.load(Self::word(at, TIME))
    }

    #[inline(always)]
    pub(super) fn set_time(&self, at: u32, time: u64) {
        self.words.store(Self::word(at, TIME), time);
    }

    #[inline(always)]
    pub(super) fn cookie(&self, at: u32) -> u64 {
        self.words.load(Self::word(at, COOKIE))
    }

    #[inline(always)]
    pub(super) fn set_cookie(&self, at: u32, cookie: u64) {
        self.words.store(Self::word(at, COOKIE), cookie);
    }

    /// The fault that lies in a descriptor of a ring at `base`.
    #[cold]
    pub(super) fn fault(&self, kind: FaultKind, base: Iova, at: u32) -> EngineFault {
        EngineFault { kind, iova: base.plus(u64::from(self.index(at)) * DESCRIPTOR as u64) }
    }
}
