//! A program's side of the socket.

use crate::record;
use crate::wire::{Request, Words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the card may take for an answer: it may have to wait for a core, and does first what was posted before. That it has ended is known
/// at once.
const ANSWER: Duration = Duration::from_secs(30);

/// Most bytes of what is shown of a program.
const MOST_SHOWN: usize = 128 << 10;

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

    /// What the card does (0), or the program with that number, as JSON. `None`: there are fewer.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn show(&self, number: u32) -> Result<Option<Vec<u8>>, CallError> {
        record::send(&self.socket, &Request::Show(number).write(), &[]).map_err(CallError::Gone)?;
        let until = Instant::now() + ANSWER;
        let mut bytes = vec![0; MOST_SHOWN];
        loop {
            match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(CallError::Gone(Errno::PIPE)),
                Ok((len, _)) => {
                    bytes.truncate(len);
                    return Ok((bytes.first() == Some(&b'{')).then_some(bytes));
                }
                Err(Errno::AGAIN | Errno::INTR) => self.wait(until)?,
                Err(error) => return Err(CallError::Gone(error)),
            }
        }
    }

    /// Until something comes.
    fn wait(&self, until: Instant) -> Result<(), CallError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(CallError::Silent);
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(CallError::Gone(error)),
        }
    }

    /// Asks, and waits for the answer: what it says, and its descriptors.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Words, Vec<OwnedFd>), CallError> {
        // Who was turned away is told why, before the end.
        let mut end = record::send(&self.socket, &request.write(), fds).err();
        let until = Instant::now() + ANSWER;
        loop {
            let received = match record::receive(&self.socket) {
                Err(Errno::CONNRESET) if end.is_none() => {
                    end = Some(Errno::CONNRESET);
                    continue;
                }
                Ok(None) if end.is_some() => Err(end.unwrap_or(Errno::PIPE)),
                other => other,
            };
            if let Some((words, fds)) = received.map_err(CallError::Gone)? {
                let words = words.outcome().ok_or(CallError::Version)?;
                return Ok((words.map_err(CallError::Refused)?, fds));
            }
            self.wait(until)?;
        }
    }
}
