//! Programs that have called.

use crate::bell;
use crate::network::Asked;
use crate::record;
use crate::wire::{Request, Welcome};
use millrace_callers::{Caller, Closer, May};
use millrace_dma::Region;
use millrace_port::Bell;
use millrace_rdma::served::{Account, Number, Service};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How long a program may take to greet.
pub(crate) const GREETING: Duration = Duration::from_secs(2);

/// Who pays for what a caller has.
pub(crate) fn account_of(caller: &Caller) -> Account {
    Account { uid: caller.uid, is_owner: !caller.is_limited }
}

/// A program that has gone, and whose descriptors are still being closed: it has its place until then.
pub(crate) struct Grave {
    pub caller: Caller,
    pub closer: Closer,
}

/// A program that has called.
pub(crate) struct Client {
    /// Also of the thread that answers questions.
    pub socket: Arc<OwnedFd>,
    /// Readable when the process has ended. Children may hold its socket.
    pub ended: Option<OwnedFd>,
    pub caller: Caller,
    pub called: Instant,
    /// After its greeting.
    pub met: Option<Met>,
    /// Addresses that were being asked for when it was told so.
    pub asked: Asked,
    /// A request that is answered later.
    pub waiting: Option<Waiting>,
    pub closer: Closer,
    /// Text is being made for it.
    pub is_asking: Arc<AtomicBool>,
    /// It is to be hung up on.
    pub is_over: bool,
}

/// What a program and the card have in common.
pub(crate) struct Met {
    pub number: Number,
    /// By which the program wakes the card.
    pub to_card: OwnedFd,
    /// By which the card wakes the program.
    pub to_program: Arc<Bell>,
}

/// A request that is answered when what the program has posted before is taken, up to that position.
pub(crate) struct Waiting {
    pub request: Request,
    pub fds: Vec<OwnedFd>,
    pub position: u64,
}

impl Client {
    /// Whoever may use the engine; the socket of somebody else.
    pub fn new(socket: OwnedFd, may: &May) -> Result<Self, OwnedFd> {
        let Some(caller) = may(socket.as_fd()) else { return Err(socket) };
        let Ok(ended) = end_of(caller.pid) else { return Err(socket) };
        let (asked, closer, is_asking) = Default::default();
        let socket = Arc::new(socket);
        let called = Instant::now();
        Ok(Self { socket, ended, caller, called, met: None, asked, waiting: None, closer, is_asking, is_over: false })
    }

    /// What is looked for at its socket: requests, but not more than one, and not while much of what it has handed over waits to be
    /// closed.
    pub fn wants(&self) -> PollFlags {
        match self.waiting.is_some() || self.closer.is_full() || self.is_over {
            true => PollFlags::RDHUP,
            false => PollFlags::IN | PollFlags::RDHUP,
        }
    }

    /// Closes what it has handed over.
    pub fn close(&mut self, fds: Vec<OwnedFd>) {
        self.closer.close_all(fds);
    }

    /// Whether it has had time enough to greet.
    pub fn is_late(&self, now: Instant) -> bool {
        self.met.is_none() && now - self.called > GREETING
    }

    /// All of it is dropped soon, with what it leaves. What counts it until then.
    pub fn bury(self, left: impl Send + 'static) -> Grave {
        let Self { socket, ended, met, waiting, mut closer, caller, .. } = self;
        // What is its own first: it does not wait behind what takes long.
        closer.close((left, ended, met));
        closer.close(socket);
        if let Some(waiting) = waiting {
            closer.close_all(waiting.fds);
        }
        Grave { caller, closer }
    }
}

/// Readable when that process has ended.
fn end_of(pid: u32) -> Result<Option<OwnedFd>, Errno> {
    // A process of another container has the number 0, which is not one: then only its socket says that it has ended.
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())).transpose()
}

/// Greets a program.
pub(crate) fn greet(
    service: &Service,
    client: &Client,
    welcome: &Welcome,
    number: Number,
    userfaultfd: Option<&OwnedFd>,
) -> Result<Met, Errno> {
    let ((to_card, for_card), (for_program, to_program)) = (bell::of_card()?, bell::bell()?);
    let met = Met { number, to_card, to_program: Bell::of(client.caller.uid, to_program) };
    let shared = service.memory_of(number).ok().and_then(Region::fd).ok_or(Errno::NOMEM)?;
    let mut fds: Vec<BorrowedFd<'_>> = vec![shared, for_card.as_fd(), for_program.as_fd()];
    fds.extend(userfaultfd.map(AsFd::as_fd));
    record::send(&client.socket, &welcome.write(), &fds)?;
    Ok(met)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_listeners::{Listeners, comes, ring_until_apart};
    use millrace_rdma::number::Gid;
    use millrace_rdma::served::Quota;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn whose_bell_has_many_listeners_keeps_his_own_thread_and_not_the_cards() {
        let gid = Gid([0; 16]);
        let mut service = Service::new(Default::default(), [2, 0, 0, 0, 0, 1], &[gid], Quota::default());
        let mut meet = |uid| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (program, socket) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
            let caller = Caller { pid: std::process::id(), uid, is_limited: true };
            let may: May = Box::new(move |_| Some(caller));
            let client = Client::new(socket, &may).ok().unwrap();
            let number = service.enter(account_of(&caller)).unwrap();
            let welcome = Welcome { mac: [2, 0, 0, 0, 0, 1], gid, mtu: 1024 };
            let met = greet(&service, &client, &welcome, number, None).unwrap();
            let (_, fds) = record::receive(&program).unwrap().unwrap();
            (met.to_program, fds.into_iter().nth(2).unwrap())
        };
        let ((eve, program), (honest, other)) = (meet(1 << 20), meet(1 << 20 | 1));
        let Some(_listeners) = Listeners::of(&program) else { return };
        ring_until_apart(&program, || eve.ring(), || eve.is_apart());
        honest.ring();
        assert!(comes(&other, 0) && !honest.is_apart(), "it was rung at once");
    }
}
