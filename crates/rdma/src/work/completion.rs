//! What a program is told.

use crate::number::{Key, Qpn};

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
