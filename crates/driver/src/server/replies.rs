//! What a reply is made of: an answer, or a refusal.

use millrace_abi::message::{ErrorCode, Handle, Reply};
use millrace_dma::RegionError;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use std::io::Write;
use std::sync::Arc;

/// A refusal: what kind, and what to tell people.
pub(super) struct Refusal(pub(super) ErrorCode, pub(super) String);

impl Refusal {
    pub(super) fn new(code: ErrorCode, text: impl ToString) -> Self {
        Self(code, text.to_string())
    }

    /// There are no fds for what was asked.
    pub(super) fn no_fds() -> Self {
        Self::new(ErrorCode::System, "the card is short of fds; try again later, or raise its `ulimit -n`")
    }

    pub(super) fn into_reply(self) -> Reply {
        Reply::Error { code: self.0, text: self.1 }
    }
}

impl From<crate::session::SessionError> for Refusal {
    fn from(error: crate::session::SessionError) -> Self {
        Self(error.code(), error.to_string())
    }
}

impl From<RegionError> for Refusal {
    fn from(error: RegionError) -> Self {
        Self::new(ErrorCode::System, error)
    }
}

/// What goes with a reply.
pub(super) enum Enclosed {
    Nothing,
    Fd(OwnedFd),
    File(SharedFile),
    /// The reply itself goes later.
    Later,
}

impl Enclosed {
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Enclosed::Nothing | Enclosed::Later => None,
            Enclosed::Fd(fd) => Some(fd.as_fd()),
            Enclosed::File(file) => Some(file.fd.as_fd()),
        }
    }
}

pub(super) type Answer = (Reply, Enclosed);

pub(super) fn no_handle(handle: Handle) -> Refusal {
    Refusal::new(ErrorCode::NotFound, format!("no queue is open under the number {}", handle.0))
}

/// Bytes as memory that can be handed to many: nobody can change it any more.
#[derive(Clone)]
pub(super) struct SharedFile {
    pub(super) len: u64,
    fd: Arc<OwnedFd>,
}

impl SharedFile {
    pub(super) fn new(bytes: &[u8]) -> std::io::Result<Self> {
        let fd = rustix::fs::memfd_create("millrace", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut file = std::fs::File::from(fd);
        // Nothing can be mapped that has no bytes.
        file.write_all(if bytes.is_empty() { &[0] } else { bytes })?;
        // Nothing is mapped for writing yet, so that no write at all is left with this. Plain WRITE would forbid to map
        // it for reading before Linux 6.7.
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(Self { len: bytes.len() as u64, fd: Arc::new(file.into()) })
    }
}
