//! What stands where in the memory that two processes share. Words have the order of the processor: both are on one host.

/// First word of a directory: its kind and version.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"mr-dir02");
/// Bytes of the head of a directory.
pub(super) const HEAD: usize = 4096;
/// Words of the head: its kind; how far the watch has come, and how far the owner has answered it; bits of a key below the
/// number of its slot.
pub(super) const KIND: usize = 0;
pub(super) const CHANGED: usize = 64;
pub(super) const ANSWERED: usize = 72;
pub(super) const KEY_BITS: usize = 128;

/// Words of a line, for a queue pair or a key.
pub(super) const LINE: u32 = 8;
/// Lines for queue pairs: by the lower bits of their number.
pub(super) const PAIRS: u32 = 1 << 16;
/// Lines for keys: by their slot.
pub(super) const KEYS: u32 = 1 << 16;
/// Where the lines begin.
pub(super) const PAIRS_AT: usize = HEAD;
pub(super) const KEYS_AT: usize = PAIRS_AT + (PAIRS * LINE * 8) as usize;
/// Bytes of a directory. Pages that nobody has written to take no memory.
pub(super) const DIRECTORY_LEN: usize = KEYS_AT + (KEYS * LINE * 8) as usize;

/// How bytes behind a key are reached. 0: by packets only.
pub(super) mod way {
    /// By system calls, from an address of the owner's.
    pub const SYSTEM: u64 = 1;
    /// By a mapping of a file: all of them, from an offset on.
    pub const FILE: u64 = 2;
    /// By a mapping of a file: whole pages, of which the first is at an offset; what is before and behind them by system calls.
    pub const PAGES: u64 = 3;
}

/// Pages of which [`way::PAGES`] speaks.
pub(super) const PAGE: u64 = 4096;

/// Which end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that made it.
    Maker,
    /// The one that was given it.
    Taker,
}

impl Side {
    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Maker => Self::Taker,
            Self::Taker => Self::Maker,
        }
    }

    const fn number(self) -> usize {
        self as usize
    }

    /// The word by which this side says that it is inside of the other's memory.
    pub(super) const fn presence(self) -> usize {
        self.number() * WORDS
    }

    /// The word that says up to where this side has taken from its ring: headers, and lines of payload.
    pub(super) const fn taken(self) -> usize {
        self.number() * WORDS + 64
    }

    /// The word that says which short SENDs this side has taken; beside the one before, so that both move as one line.
    pub(super) const fn settled(self) -> usize {
        self.taken() + 8
    }

    /// The word by which this side says that it sleeps, and wants to be woken.
    pub(super) const fn asleep(self) -> usize {
        self.number() * WORDS + 128
    }

    /// The headers of what this side sends.
    pub(super) const fn headers(self) -> usize {
        FRONT + self.number() * RING
    }

    /// The payload of what this side sends.
    pub(super) const fn payload(self) -> usize {
        self.headers() + (HEADERS * LINE * 8) as usize
    }
}

const WORDS: usize = 256;
/// Bytes before the rings.
const FRONT: usize = if cfg!(loom) { 2 * WORDS } else { 4096 };
/// Headers in a ring. Models fill it with two.
pub(super) const HEADERS: u32 = if cfg!(loom) { 2 } else { 1024 };
/// Lines of 64 bytes of payload in a ring.
pub(super) const PAYLOADS: u32 = if cfg!(loom) { 2 } else { 8192 };
const RING: usize = (HEADERS * LINE * 8) as usize + PAYLOADS as usize * 64;
/// Bytes of the memory of a channel.
pub const CHANNEL_LEN: usize = FRONT + 2 * RING;
/// Most bytes of payload of one packet.
pub(super) const MOST_PAYLOAD: usize = if cfg!(loom) { 128 } else { 4096 };
