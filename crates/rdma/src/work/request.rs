//! What a program asks for.

use crate::memory::Binding;
use crate::number::{Key, Qpn};
use crate::wire::Path;
use crate::work::Ended;

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

/// Bytes of the program's own memory, in a region of its own. Laid out as `struct ibv_sge`, so that lists of verbs programs are
/// used as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
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

impl Operation {
    /// What a completion of it says that ended.
    pub const fn ended(self) -> Ended {
        match self {
            Self::Send | Self::SendImmediate(_) | Self::SendInvalidate(_) => Ended::Send,
            Self::Write { .. } => Ended::Write,
            Self::Read { .. } => Ended::Read,
            Self::CompareSwap { .. } => Ended::CompareSwap,
            Self::FetchAdd { .. } => Ended::FetchAdd,
            Self::LocalInvalidate(_) => Ended::LocalInvalidate,
            Self::Bind(_) => Ended::Bind,
        }
    }

    /// Whether it only sends bytes, so that these may be given with the request.
    pub const fn sends(self) -> bool {
        matches!(self, Self::Send | Self::SendImmediate(_) | Self::SendInvalidate(_) | Self::Write { .. })
    }

    /// Whether bytes come back: one of those of which the other end bears only so many at a time (volume 1, 9.7.3).
    #[inline]
    pub const fn asks(self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether it takes a buffer from the receive queue of the other end.
    #[inline]
    pub const fn takes_buffer(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImmediate(_) | Self::SendInvalidate(_) | Self::Write { immediate: Some(_), .. }
        )
    }

    /// Whether no packet comes of it.
    #[inline]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalInvalidate(_) | Self::Bind(_))
    }
}

/// How a request is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Its completion is told. Errors are always told, and everything is with
    /// [`signal_all`](crate::transport::Init::signal_all).
    pub signaled: bool,
    /// Whoever sleeps at the other end is woken by it.
    pub solicited: bool,
    /// It waits until all earlier READs and atomic operations have ended.
    pub fence: bool,
}

/// Where the bytes of a request are, or go to.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// In regions, until the request has ended.
    Pieces(&'a [Piece]),
    /// Here; they are copied when the request is posted, one part behind the other. Only for what
    /// [sends](Operation::sends).
    Inline(&'a [&'a [u8]]),
}

/// To whom a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The way there; what verbs calls an address handle.
    pub path: Path,
    /// The queue pair there.
    pub qpn: Qpn,
    /// Its queue key. With the highest bit the sender's own is sent (volume 1, 10.2.5).
    pub qkey: u32,
}

/// A request for a send queue.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What the program calls it.
    pub id: u64,
    /// What is to be done.
    pub operation: Operation,
    /// With which bytes. READs and atomic operations put there what comes back; local ones have none.
    pub data: Data<'a>,
    /// How.
    pub flags: Flags,
    /// Of datagrams: to whom.
    pub target: Option<&'a Target>,
}
