//! A program's side of the socket.

use crate::record;
use crate::wire::{Request, Words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the card may take for an answer; it may have to wait for a core.
const ANSWER: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The card says no.
    #[error("the engine in the card refused it: {}", Errno::from_raw_os_error(*.0))]
    Refused(i32),
    /// The card has gone, or has hung up.
    #[error("the engine in the card has hung up: {0}")]
    Gone(Errno),
    /// It is a card of another version.
    #[error("the engine in the card speaks another version: programs and card have to be of the same release")]
    Version,
    /// No answer for seconds.
    #[error("the engine in the card does not answer")]
    Silent,
}

impl CallError {
    /// The number of Linux for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused(errno) => *errno,
            Self::Gone(_) => Errno::IO.raw_os_error(),
            Self::Version => Errno::PROTO.raw_os_error(),
            Self::Silent => Errno::TIMEDOUT.raw_os_error(),
        }
    }
}

/// A connection with the engine of a card.
pub struct Client {
    socket: OwnedFd,
}

impl Client {
    /// Calls the engine at that path.
    ///
    /// # Errors
    /// Those of `connect`.
    pub fn connect(path: &Path) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self { socket })
    }

    /// Readable when the card has gone.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks, and waits for the answer: what it says, and its descriptors.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Words, Vec<OwnedFd>), CallError> {
        record::send(&self.socket, &request.write(), fds).map_err(CallError::Gone)?;
        let until = Instant::now() + ANSWER;
        loop {
            if let Some((words, fds)) = record::receive(&self.socket).map_err(CallError::Gone)? {
                let words = words.outcome().ok_or(CallError::Version)?;
                return Ok((words.map_err(CallError::Refused)?, fds));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CallError::Silent);
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(CallError::Gone(error)),
            }
        }
    }
}
