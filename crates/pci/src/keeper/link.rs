//! In the card: how the thread of a function gets machines from the keeper.

use super::parts::{Given, KnownMachine, machine};
use crate::handover::{TakenFds, Talk};
use crate::wire::stream::Stream;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long the keeper may take to end what it has begun.
const PATIENCE: Duration = Duration::from_secs(5);

/// The other end is the keeper's.
pub(crate) struct Link(Talk);

/// A machine that comes by it.
pub(crate) struct Comes {
    pub stream: Stream,
    pub given: Given,
    pub fds: TakenFds,
}

impl Link {
    pub fn new(socket: OwnedFd) -> Self {
        Self(Talk::over(socket))
    }

    /// Readable when a machine comes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }

    /// The machine that comes.
    pub fn accept(&self) -> Result<Comes, String> {
        let (text, mut fds) = self.0.receive_state(Instant::now() + PATIENCE)?;
        let given: Given = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        let stream = Stream::new(fds.take(0)?.into());
        Ok(Comes { stream, given, fds })
    }
}

impl Comes {
    /// What another card has told of it; `None`: it is new.
    pub fn known(&self, vectors: usize) -> Result<Option<KnownMachine>, String> {
        machine(&self.given, vectors, &self.fds)
    }
}
