//! What a program asks for, and what it is told.

use crate::memory::Binding;
use crate::number::{Key, Qpn};

/// What a region, a window or a queue pair lets others do; the bits are those of verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(pub u32);

impl Access {
    /// The owner's own requests may write to it.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Others may write.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Others may read.
    pub const REMOTE_READ: Self = Self(4);
    /// Others may compare and swap, and add.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Memory windows may be bound to it.
    pub const WINDOW_BIND: Self = Self(16);
    /// Addresses count from the beginning of the region.
    pub const ZERO_BASED: Self = Self(32);

    /// Whether everything in `wanted` is here.
    #[inline]
    pub const fn allows(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// Both.
    #[inline]
    #[must_use]
    pub const fn with(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }
}

/// Bytes of the program's own memory, in a region of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Address as the region counts.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// The region's local key.
    pub lkey: Key,
}

/// What a request of a send queue does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// To a buffer that the other end has posted.
    Send,
    /// The same with 32 bits, as they stand in the header.
    SendImmediate([u8; 4]),
    /// The same, after which the other end's key does not open anything any more.
    SendInvalidate(Key),
    /// To an address of the other end.
    Write {
        /// Address as its region counts.
        address: u64,
        /// Its remote key.
        rkey: Key,
        /// With 32 bits, which take a buffer from the other end's receive queue.
        immediate: Option<[u8; 4]>,
    },
    /// From an address of the other end.
    Read {
        /// Address as its region counts.
        address: u64,
        /// Its remote key.
        rkey: Key,
    },
    /// The eight bytes there become `swap` if they are `compare`; what they were comes back.
    CompareSwap {
        /// Address as its region counts, a multiple of 8.
        address: u64,
        /// Its remote key.
        rkey: Key,
        /// What must be there.
        compare: u64,
        /// What is put there.
        swap: u64,
    },
    /// `add` is added to the eight bytes there; what they were comes back.
    FetchAdd {
        /// Address as its region counts, a multiple of 8.
        address: u64,
        /// Its remote key.
        rkey: Key,
        /// What is added, modulo 2^64.
        add: u64,
    },
    /// The own key does not open anything any more.
    LocalInvalidate(Key),
    /// A window (type 2) opens a part of a region from now on.
    Bind(Binding),
}

/// Why a request ended, in the numbers of verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It was done.
    #[default]
    Success = 0,
    /// A buffer of its own is too short, or a message too long.
    LocalLength = 1,
    /// The queue pair cannot do that.
    LocalOperation = 2,
    /// A local key does not open those bytes.
    LocalProtection = 4,
    /// The queue pair has an error, and this was never begun, or not ended.
    Flushed = 5,
    /// A window cannot be bound so.
    WindowBind = 6,
    /// The other end says that it is not a request.
    RemoteInvalid = 9,
    /// The other end says that the key does not open those bytes.
    RemoteAccess = 10,
    /// The other end could not do it.
    RemoteOperation = 11,
    /// The other end does not answer.
    RetryExceeded = 12,
    /// The other end has no buffer, for too long.
    RnrRetryExceeded = 13,
}

/// What ended, in the numbers of verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ended {
    /// A SEND.
    #[default]
    Send = 0,
    /// A WRITE.
    Write = 1,
    /// A READ.
    Read = 2,
    /// A compare and swap.
    CompareSwap = 3,
    /// A fetch and add.
    FetchAdd = 4,
    /// The binding of a window.
    Bind = 5,
    /// A local invalidation.
    LocalInvalidate = 6,
    /// Something came to a posted buffer.
    Receive = 128,
    /// A WRITE with immediate data took a posted buffer.
    ReceiveWrite = 129,
}

/// What comes with a received message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extra {
    /// Nothing.
    #[default]
    None,
    /// 32 bits, as they stood in the header.
    Immediate([u8; 4]),
    /// The key that the sender has invalidated.
    Invalidated(Key),
}

/// A line of a completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// What the program called the request.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// What ended.
    pub ended: Ended,
    /// Bytes received, or read.
    pub len: u32,
    /// With a received message.
    pub extra: Extra,
    /// The queue pair of its own that did it.
    pub qpn: Qpn,
    /// Who sent a datagram.
    pub source: Qpn,
    /// Whether 40 bytes of routing header stand before a datagram.
    pub has_grh: bool,
    /// What verbs calls service level. For datagrams: 8 and the kind of network header (0 RoCE v1, 9 IPv6, 10 IPv4).
    pub service_level: u8,
    /// Whether the sender asked that a sleeper be woken.
    pub solicited: bool,
}
