//! What a reply is made of: an answer, or a refusal.

use millrace_abi::message::{ErrorCode, Handle, Reply};
use millrace_dma::{Region, RegionError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// A refusal: what kind, and what to tell people.
pub(super) struct Refusal(pub(super) ErrorCode, pub(super) String);

impl Refusal {
    pub(super) fn new(code: ErrorCode, text: impl ToString) -> Self {
        Self(code, text.to_string())
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
    Memory(Region),
    Descriptor(OwnedFd),
}

impl Enclosed {
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Enclosed::Nothing => None,
            Enclosed::Memory(region) => region.fd(),
            Enclosed::Descriptor(fd) => Some(fd.as_fd()),
        }
    }
}

pub(super) type Answer = (Reply, Enclosed);

pub(super) fn no_handle(handle: Handle) -> Refusal {
    Refusal::new(ErrorCode::NotFound, format!("no queue is open under the number {}", handle.0))
}
