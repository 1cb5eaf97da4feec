//! Programs come and go.

use super::connected::Connected;
use super::peer::peer_of;
use super::reaper::Garbage;
use super::replies::Refusal;
use super::schedule::Asker;
use super::standing::Standing;
use super::{ACCEPTS, FIRST_CLIENT_TOKEN, LISTENER, Server};
use crate::codec;
use crate::locks::Owner;
use crate::native::{self, Own};
use crate::session::{Kick, SessionError};
use millrace_abi::access::{Amounts, Resource};
use millrace_abi::message::{ErrorCode, Reply};
use millrace_abi::queue::QueueId;
use millrace_dma::Domain;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How long a refusal may be put off to clear up first.
const BEFORE_REFUSAL: Duration = Duration::from_millis(2);

/// An fd kept to be given up when there are no more: with it a connection that waits can be accepted and closed,
/// which would otherwise be reported for ever.
pub(super) fn spare() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

/// Who is at the other end of a socket.
fn asker_of(socket: &OwnedFd) -> Asker {
    let peer = nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::PeerCredentials)
        .map_or((u32::MAX, 0), |peer| (peer.uid(), peer.pid() as u32));
    Asker { uid: peer.0, pid: peer.1, connection: 0 }
}

/// What there is to say of a program that goes. One that closes what it had opened goes as it should.
fn farewell(queues: usize) -> String {
    match queues {
        0 => "has gone".to_owned(),
        _ => format!("has gone without closing its queues; they are closed for it: {queues}"),
    }
}

impl Server {
    pub(super) fn accept_some(&mut self) {
        if !core::mem::take(&mut self.connecting) {
            return;
        }
        for _ in 0..ACCEPTS {
            match self.accept() {
                Ok(socket) => self.welcome(socket, None),
                Err(Errno::MFILE | Errno::NFILE) => return self.turn_away(),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // Out of memory: later.
                Err(_) => return self.stop_listening(),
            }
        }
    }

    fn accept(&self) -> Result<OwnedFd, Errno> {
        let listener = self.listener.as_ref().ok_or(Errno::AGAIN)?;
        rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    /// There are no fds: one who waits is told so by the end of the connection, the others wait for better
    /// times. Accepting says that there are none also when nobody waits.
    fn turn_away(&mut self) {
        self.spare = None;
        if let Ok(socket) = self.accept() {
            self.turned_away.no_fds += 1;
            self.turned_away.remark();
            self.reaper.take(asker_of(&socket), Garbage::Fd(socket));
        }
        self.spare = spare();
        self.stop_listening();
    }

    fn stop_listening(&mut self) {
        if let Some(listener) = &self.listener {
            self.poll.remove(listener);
            self.pause.listener();
        }
    }

    pub(super) fn listen_again(&mut self) {
        // Out of memory for it: once more after another pause.
        if self.listener.as_ref().is_some_and(|listener| self.poll.add(listener, LISTENER).is_err()) {
            self.pause.listener();
        }
        if self.spare.is_none() {
            self.spare = spare();
        }
    }

    /// Whether a process may have one more connection or mapping. Fds are what all programs share here.
    pub(super) fn may_grow(&self, pid: u32) -> bool {
        let of_process = self.clients.values().filter(|client| client.pid == pid && !client.ending);
        let cost = of_process.map(|client| 2 + client.kicks.len() + client.mapped.len()).sum::<usize>();
        cost < self.fds.of_one_process()
    }

    /// The kick of a connection for queues that a worker serves when they are opened; it pays for it when it is made.
    /// A queue that goes to another worker later keeps it, and that worker watches it as well: it is only woken for
    /// other queues of this program too.
    pub(super) fn kick(&mut self, number: u64, worker: u32) -> Result<Kick, Refusal> {
        if let Some(kick) = self.clients.get(&number).and_then(|client| client.kicks.get(&worker)) {
            return Ok(kick.clone());
        }
        let charge = self.charge(number, Amounts::default().with(Resource::Fds, 1))?;
        let unknown = || Refusal::new(ErrorCode::Invalid, "not connected");
        let client = self.clients.get_mut(&number).ok_or_else(unknown)?;
        let kick = Kick::new(worker, client.pid).map_err(SessionError::from)?;
        client.kicks.insert(worker, kick.clone());
        client.standing.kick_made(charge);
        Ok(kick)
    }

    /// Listens by what another card has handed over, if it has.
    pub(super) fn take_listener(&mut self) {
        let listener = self.shared.handed_over.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listener) = listener {
            self.listener = Some(listener);
            self.listen_again();
        }
    }

    pub(super) fn take_arrivals(&mut self) {
        let arrivals = core::mem::take(&mut *self.shared.arrivals.lock().unwrap_or_else(PoisonError::into_inner));
        arrivals.into_iter().for_each(|(socket, own)| self.welcome(socket, own));
    }

    pub(super) fn welcome(&mut self, socket: OwnedFd, own: Option<Own>) {
        let number = self.next_client;
        let token = FIRST_CLIENT_TOKEN + 2 * number;
        // Every Unix socket can say who is at its other end.
        let Some(who) = peer_of(&socket) else {
            return self.reaper.take(asker_of(&socket), Garbage::Fd(socket));
        };
        let (peer, pid, uid) = (Pid::from_raw(who.pid as i32), who.pid, who.uid);
        let asker = Asker { uid, pid, connection: number };
        // Whoever looks after the card gets in also when the others have taken all that they get.
        let served = own.is_some()
            || if self.account_of(uid).owner { self.fds.has_reserve_left() } else { self.fds.has_some_left() };
        if !served {
            self.turned_away.no_fds += 1;
            let text = "the card is short of fds; try again later, or raise its `ulimit -n`";
            return self.refuse(socket, Refusal::new(ErrorCode::System, text));
        }
        if !self.may_grow(pid) {
            // Some may have been closed since the last look.
            self.look(Some(Duration::ZERO));
        }
        if !self.may_grow(pid) {
            self.turned_away.too_many += 1;
            let text = "this process has too many connections to the card; close some";
            return self.refuse(socket, Refusal::new(ErrorCode::System, text));
        }
        let standing = Standing::new(&self.policy, &self.ledger, who.clone()).or_else(|_| {
            // Those who have gone may still be charged for.
            self.clear_up_once();
            Standing::new(&self.policy, &self.ledger, who)
        });
        let standing = match standing {
            Ok(standing) => standing,
            Err(refusal) => {
                self.turned_away.too_many += 1;
                return self.refuse(socket, refusal);
            }
        };
        // Our own process needs no watching; one that is gone already shows at its socket.
        let other = peer.filter(|&pid| pid != rustix::process::getpid());
        let pidfd = match other.map(|pid: Pid| pidfd_open(pid, PidfdFlags::empty())) {
            // It has died already; whoever has inherited its socket is not the one who connected.
            Some(Err(Errno::SRCH)) => return self.reaper.take(asker, Garbage::Fd(socket)),
            opened => opened.and_then(Result::ok),
        };
        let ready = rustix::io::ioctl_fionbio(&socket, true).and_then(|()| self.poll.add_news(&socket, token));
        if let Err(error) = ready {
            tracing::warn!(%error, "a program could not be served");
            return self.reaper.take(asker, Garbage::Fd(socket));
        }
        if let Some(pidfd) = &pidfd {
            let _ = self.poll.add(pidfd, token + 1);
        }
        // It waits for what is said to it first.
        let _ = millrace_dma::take_descriptors(&socket);
        self.next_client += 1;
        let client = Connected {
            socket,
            pid,
            pidfd,
            asker,
            own,
            domain: Arc::new(Domain::new()),
            queues: HashMap::new(),
            mapped: HashMap::new(),
            kicks: HashMap::new(),
            next_handle: 1,
            introduced: false,
            standing,
            changing: false,
            flows: false,
            ending: false,
        };
        self.say_of(&client, "has connected");
        self.clients.insert(number, client);
    }

    /// Tells the log about a program; one's own program is not told about itself.
    fn say_of(&self, client: &Connected, what: &str) {
        if client.own.is_none() {
            let user = || self.policy.names.of_user(client.standing.peer.uid);
            millrace_port::notice::info(|| format!("program {} of {} {what}", client.pid, user()));
        }
    }

    /// Ends a connection before it has begun, and says why.
    fn refuse(&mut self, socket: OwnedFd, why: Refusal) {
        self.turned_away.remark();
        let _ = codec::send(&socket, &why.into_reply(), &[]);
        self.reaper.take(asker_of(&socket), Garbage::Fd(socket));
    }

    /// Ends a connection: nothing of it is answered any more, its locks are free, and what else it had will be cleared
    /// up.
    pub(super) fn end(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        if core::mem::replace(&mut client.ending, true) {
            return;
        }
        self.poll.remove(&client.socket);
        if let Some(pidfd) = &client.pidfd {
            self.poll.remove(pidfd);
        }
        self.schedule.leave(client.asker);
        if client.flows {
            self.flows.gone(client.asker);
        }
        self.ending.push_back(number);
        if let Some(client) = self.clients.get(&number) {
            self.say_of(client, &farewell(client.queues.len()));
        }
        let started = self.started_by_guest(number);
        self.end_natives(|_, native, _| native.client == number);
        // Whoever has them next is not to read what this one has put there, nor to start with it.
        started.into_iter().for_each(|id| native::clear_pointers(&self.card, id));
        self.locks.release_all(Owner::Client(number));
        self.leave_clock(number);
    }

    /// Ends a connection that has done nothing wrong by itself; its program is told why.
    pub(super) fn dismiss(&mut self, number: u64, text: &str) {
        // One that does not read learns it from the end of the connection.
        self.reply(number, &Reply::Error { code: ErrorCode::Ended, text: text.to_owned() });
        self.end(number);
    }

    /// Clears up because somebody is refused who might not be afterwards; once in a round, or refusals would take all
    /// time.
    pub(super) fn clear_up_once(&mut self) {
        if !core::mem::replace(&mut self.cleared, true) {
            self.clear_up(BEFORE_REFUSAL);
        }
    }

    /// Clears up behind connections that have ended, about as long as is said, a little of each in turn.
    pub(super) fn clear_up(&mut self, most: Duration) {
        let begin = Instant::now();
        while let Some(number) = self.ending.pop_front() {
            if self.clear_some(number) {
                self.ending.push_back(number);
            }
            if begin.elapsed() > most {
                return;
            }
        }
    }

    /// Closes one queue or unmaps one piece of memory of a connection that has ended. `false`: that was all.
    fn clear_some(&mut self, number: u64) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        let asker = client.asker;
        if let Some((&handle, &id)) = client.queues.iter().next() {
            client.queues.remove(&handle);
            self.close_queue(id, (number, handle));
            self.settle_with(number, |standing| standing.closed(handle));
            return true;
        }
        if let Some(&iova) = client.mapped.keys().next() {
            let (region, domain) = (client.mapped.remove(&iova), client.domain.clone());
            let paid = client.standing.unmapped(iova);
            self.unmap(&domain, iova);
            if let Some(region) = region {
                self.reaper.take(asker, Garbage::Memory(region, paid));
            }
            return true;
        }
        if let Some(client) = self.clients.remove(&number) {
            // It sees the end now, whenever what it has sent and nobody has read is closed with the socket.
            let _ = rustix::net::shutdown(&client.socket, Shutdown::Both);
            self.reaper.take(asker, Garbage::Connection(client.socket, client.standing.left()));
        }
        false
    }

    /// Closes a queue for those who have it open and have gone: whoever asks for it now came after them.
    pub(super) fn clear_queue(&mut self, id: QueueId) {
        let gone = self.ending.iter().filter_map(|number| Some((*number, self.clients.get(number)?)));
        let of_queue = gone.flat_map(|(number, client)| {
            let handles = client.queues.iter().filter(|(_, queue)| **queue == id);
            handles.map(move |(handle, _)| (number, *handle))
        });
        let keys: Vec<_> = of_queue.collect();
        for (number, handle) in keys {
            if let Some(client) = self.clients.get_mut(&number) {
                client.queues.remove(&handle);
            }
            self.close_queue(id, (number, handle));
            self.settle_with(number, |standing| standing.closed(handle));
        }
    }
}
