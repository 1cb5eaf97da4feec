//! What is to be moved, and what is told of it.

use crate::address::Address;
use crate::region::Part;
use millrace_rdma::number::Key;
use millrace_rdma::work::{Operation, Status};
use std::sync::Arc;

/// One transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub(crate) local: Part,
    pub(crate) operation: Operation,
}

impl Transfer {
    /// The bytes of `local` into the region of the other end that has this key, from `offset` on.
    pub fn write(local: Part, key: u32, offset: u64) -> Self {
        Self { local, operation: Operation::Write { address: offset, rkey: Key::new(key), immediate: None } }
    }

    /// Bytes of that region into `local`, which is in a region with [`Access::LOCAL`](crate::Access::LOCAL) at least.
    pub fn read(local: Part, key: u32, offset: u64) -> Self {
        Self { local, operation: Operation::Read { address: offset, rkey: Key::new(key) } }
    }

    /// The bytes of `local` into the first buffer that the other end has posted; until it posts one, they wait.
    pub fn send(local: Part) -> Self {
        Self { local, operation: Operation::Send }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.operation {
            Operation::Read { .. } => Kind::Read,
            Operation::Send => Kind::Send,
            _ => Kind::Write,
        }
    }
}

/// Which kind of transfer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A write.
    #[default]
    Write,
    /// A read.
    Read,
    /// A message sent.
    Send,
    /// A message that came to a buffer.
    Receive,
    /// The connection to the other end: nothing comes from it any more ([`Config::watch`](crate::Config::watch)). Not told when this end
    /// has ended it.
    Over,
}

/// Why a transfer failed. The connection is over then: what else was on its way fails as [`Failed::Flushed`], and
/// [`Endpoint::connect`](crate::Endpoint::connect) makes a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// The other end has no such key, the bytes are not all in its region, or the region does not allow it. Which of them, its own
    /// counters say (`refused-key`, `refused-bounds`, `refused-permission`).
    #[error("the key does not open these bytes at the other end, or not for this")]
    RemoteAccess,
    /// It has ended, or nothing comes through.
    #[error("the other end does not answer any more")]
    Unreachable,
    /// An earlier transfer failed, or the connection was replaced.
    #[error("the connection was over before this was done")]
    Flushed,
    /// The region of its own was deregistered, taken away, or does not allow it.
    #[error("the local region is not there any more, or does not allow this")]
    LocalAccess,
    /// The buffer is too short for the message.
    #[error("the buffer is too short for the message")]
    Length,
    /// Something else at the other end.
    #[error("the other end cannot do it")]
    Remote,
    /// Something else at this end.
    #[error("this end cannot do it")]
    Local,
}

impl Failed {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RemoteAccess => "remote-access",
            Self::Unreachable => "unreachable",
            Self::Flushed => "flushed",
            Self::LocalAccess => "local-access",
            Self::Length => "length",
            Self::Remote => "remote",
            Self::Local => "local",
        }
    }

    /// Why a request failed that ended so; `None`: it was done.
    pub fn of(status: Status) -> Option<Self> {
        Some(match status {
            Status::Success => return None,
            Status::LocalLength => Self::Length,
            Status::LocalProtection => Self::LocalAccess,
            Status::Flushed => Self::Flushed,
            Status::RemoteAccess => Self::RemoteAccess,
            Status::RetryExceeded => Self::Unreachable,
            Status::RemoteInvalid | Status::RemoteOperation | Status::RnrRetryExceeded => Self::Remote,
            Status::LocalOperation | Status::WindowBind => Self::Local,
        })
    }
}

/// The end of a transfer, or of a chain of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// What the program said when it posted.
    pub token: u64,
    /// What ended.
    pub kind: Kind,
    /// Why it failed; `None`: it was done.
    pub failed: Option<Failed>,
    /// Bytes that came, of a message or a read.
    pub len: u32,
    /// Which transfer of its list: the last one, or the one that failed.
    pub index: u16,
    /// The other end; of a buffer that nothing came to, all zeros.
    pub other: Address,
}

/// What another end has told, or told all: [`Endpoint::tell`](crate::Endpoint::tell).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Who; on Ethernet anybody can say so.
    pub from: Address,
    /// What: anything.
    pub bytes: Vec<u8>,
}

/// How a program is told of an end; chosen when posting.
#[derive(Clone, Default)]
pub enum Notify {
    /// [`Endpoint::poll`](crate::Endpoint::poll) finds it.
    #[default]
    Poll,
    /// The same, and the [descriptor](crate::Endpoint::descriptor) becomes readable.
    Descriptor,
    /// The function is called: by the thread that posts or polls, or by the helper thread when none does. It may post. Two that end at
    /// the same time may be called by two threads at once.
    Callback(Arc<dyn Fn(&Completion) + Send + Sync>),
}

impl core::fmt::Debug for Notify {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Poll => "Poll",
            Self::Descriptor => "Descriptor",
            Self::Callback(_) => "Callback",
        })
    }
}
