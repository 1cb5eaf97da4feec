//! Programs that have called.

use crate::bell;
use crate::closing::Closer;
use crate::record;
use crate::wire::{Request, Welcome};
use millrace_dma::Region;
use millrace_rdma::number::Gid;
use millrace_rdma::served::{Number, Service};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use std::time::{Duration, Instant};

/// How long a program may take to greet.
pub(crate) const GREETING: Duration = Duration::from_secs(2);

/// A program that has called.
pub(crate) struct Client {
    pub socket: OwnedFd,
    /// Readable when the process has ended. Children may hold its socket.
    pub ended: Option<OwnedFd>,
    /// Its number for the system; 0 in another container.
    pub pid: i32,
    pub called: Instant,
    /// After its greeting.
    pub met: Option<Met>,
    /// Addresses that were being asked for when it was told so.
    pub asked: Vec<Gid>,
    /// A request that waits until what was posted before it is taken.
    pub waiting: Option<Waiting>,
    pub closer: Closer,
}

/// What a program and the card have in common.
pub(crate) struct Met {
    pub number: Number,
    /// By which the program wakes the card.
    pub to_card: OwnedFd,
    /// By which the card wakes the program.
    pub to_program: OwnedFd,
}

/// A request, and how many messages of the program are to be taken first.
pub(crate) struct Waiting {
    pub request: Request,
    pub fds: Vec<OwnedFd>,
    pub position: u64,
}

impl Client {
    /// Whoever may use the card: root, and the user who runs it.
    pub fn new(socket: OwnedFd) -> Result<Self, OwnedFd> {
        match who(&socket) {
            Ok((pid, ended)) => {
                let (asked, closer) = Default::default();
                let called = Instant::now();
                Ok(Self { socket, ended, pid, called, met: None, asked, waiting: None, closer })
            }
            Err(_) => Err(socket),
        }
    }

    /// What is looked for at its socket: requests, but not more than one, and not while much of what it has handed over waits to be
    /// closed.
    pub fn wants(&self) -> PollFlags {
        match self.waiting.is_some() || self.closer.is_full() {
            true => PollFlags::RDHUP,
            false => PollFlags::IN | PollFlags::RDHUP,
        }
    }

    /// Whether it has had time enough to greet.
    pub fn is_late(&self, now: Instant) -> bool {
        self.met.is_none() && now - self.called > GREETING
    }

    /// All of it is dropped soon, with what it leaves.
    pub fn bury(self, left: impl Send + 'static) {
        let Self { socket, ended, met, waiting, mut closer, .. } = self;
        closer.close((socket, ended, met, waiting, left));
    }
}

fn who(socket: &OwnedFd) -> Result<(i32, Option<OwnedFd>), Errno> {
    let credentials = getsockopt(socket, PeerCredentials).map_err(|_| Errno::ACCESS)?;
    if credentials.uid() != 0 && credentials.uid() != geteuid().as_raw() {
        return Err(Errno::ACCESS);
    }
    // A process of another container has the number 0, which is not one: then only its socket says that it has ended.
    let ended = match Pid::from_raw(credentials.pid().max(0)) {
        Some(pid) => Some(pidfd_open(pid, PidfdFlags::empty())?),
        None => None,
    };
    Ok((credentials.pid(), ended))
}

/// Greets a program.
pub(crate) fn greet(service: &Service, socket: &OwnedFd, welcome: &Welcome, number: Number) -> Result<Met, Errno> {
    let ((to_card, for_card), (for_program, to_program)) = (bell::of_card()?, bell::bell()?);
    let met = Met { number, to_card, to_program };
    let shared = service.memory_of(number).ok().and_then(Region::fd).ok_or(Errno::NOMEM)?;
    let fds: [BorrowedFd<'_>; 3] = [shared, for_card.as_fd(), for_program.as_fd()];
    record::send(socket, &welcome.write(), &fds)?;
    Ok(met)
}
