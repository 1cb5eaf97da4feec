//! The thread of the card that does the work of all programs: it turns while something moves, and sleeps otherwise. It waits for no program.

use crate::clients::Client;
use crate::joins::{Joins, worked};
use millrace_dma::take_descriptors;
use millrace_message::hosted::greeting::{self, Greeting};
use millrace_message::hosted::{Doze, ProgramId, Service};
use millrace_served::{Closer, May, bell};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the sockets are looked at while something moves.
const LOOK: Duration = Duration::from_micros(200);
/// How long the thread looks on after something moved.
const LINGER: Duration = Duration::from_micros(100);
/// Turns between two looks at the clock.
const TURNS: u32 = 16;
/// How soon it is tried again to tell those who do not take what they are told.
const IMPATIENT: Duration = Duration::from_millis(5);
/// How soon it is looked again whether somebody has greeted, or there is a place.
const AGAIN: Duration = Duration::from_millis(100);
/// Programs at once; of one user who is not the card's; of one process. Each costs the card up to 4 MiB for short messages.
const MOST_PROGRAMS: usize = 128;
const MOST_OF_USER: usize = 32;
const MOST_OF_PROCESS: usize = 16;
/// Of those who were turned away, how many sockets may wait to be closed before nobody is let in.
const MOST_STRANGERS: usize = 1024;

pub(crate) struct Worker {
    service: Service,
    may: May,
    listener: OwnedFd,
    bell: Arc<OwnedFd>,
    /// In the order in which they have called: who has waited longest to be heard is heard first.
    clients: Vec<Client>,
    /// Of those that have gone, what is still being closed: they have their places until then.
    graves: Vec<(u32, u32, Closer)>,
    strangers: Closer,
    joins: Joins,
    /// No place, or no descriptor, for one more until then.
    full: Option<Instant>,
}

impl Worker {
    /// `spent`: to which is added what coming and going takes, in nanoseconds.
    pub fn new(may: May, listener: OwnedFd, bell: Arc<OwnedFd>, spent: Arc<AtomicU64>) -> Self {
        let (service, clients, graves, strangers, full) = Default::default();
        let joins = Joins::new(spent);
        Self { service, may, listener, bell, clients, graves, strangers, joins, full }
    }

    /// Serves programs until somebody rings and says that it is to stop.
    pub fn run(mut self, stop: &AtomicBool) {
        let mut until = Instant::now();
        // Acquire pairs with the Release in `Server::drop`.
        while !stop.load(Ordering::Acquire) {
            self.look(Some(Duration::ZERO));
            self.turns(&mut until);
            if Instant::now() >= until {
                self.sleep();
                until = Instant::now() + LINGER;
            }
        }
        while !self.clients.is_empty() {
            self.hang_up(0);
        }
        self.strangers.close(self.listener);
    }

    /// Turns for a while, until it is time to look at the sockets.
    fn turns(&mut self, until: &mut Instant) {
        let began = Instant::now();
        loop {
            let mut has_moved = false;
            for _ in 0..TURNS {
                has_moved |= self.service.turn();
                self.after_turn();
            }
            let now = Instant::now();
            if has_moved {
                *until = now + LINGER;
            } else {
                // Programs that compute may need this core.
                std::thread::yield_now();
            }
            if now >= *until || now - began >= LOOK {
                return;
            }
        }
    }

    fn at(&self, number: ProgramId) -> Option<usize> {
        self.clients.iter().position(|client| client.met.as_ref().is_some_and(|met| met.number == number))
    }

    fn after_turn(&mut self) {
        while let Some(number) = self.service.take_wake() {
            if let Some(at) = self.at(number) {
                self.clients[at].ring();
            }
        }
        while let Some(number) = self.service.take_put_out() {
            if let Some(at) = self.at(number) {
                let pid = self.clients[at].caller.pid;
                tracing::warn!(
                    pid,
                    "a program has asked the engine of messages for what cannot be asked for, and is served no more"
                );
                self.hang_up(at);
            }
        }
    }

    fn sleep(&mut self) {
        let most = match self.service.doze() {
            Doze::Awake => return self.service.awake(),
            Doze::Asleep => None,
            Doze::Impatient => Some(IMPATIENT),
        };
        let is_awaited = self.full.is_some()
            || self.strangers.waits_for(MOST_STRANGERS)
            || self.clients.iter().any(|client| client.met.is_none() || client.closer.is_stuck());
        let is_postponed = self.joins.has_waiting(Instant::now());
        let most = most.into_iter().chain(is_awaited.then_some(AGAIN)).chain(is_postponed.then_some(IMPATIENT)).min();
        self.look(most);
        self.service.awake();
    }

    /// Waits until something comes by a socket or a bell, at most so long.
    fn look(&mut self, most: Option<Duration>) {
        let now = Instant::now();
        self.full = self.full.filter(|until| *until > now);
        self.clients.iter_mut().for_each(|client| {
            client.is_over |= client.is_late(self.joins.may(client.caller.uid, now), now);
            client.closer.try_again();
        });
        self.hang_up_some();
        let is_full = self.full.is_some() || self.strangers.waits_for(MOST_STRANGERS);
        let mut fds = vec![
            PollFd::new(&self.listener, if is_full { PollFlags::empty() } else { PollFlags::IN }),
            PollFd::new(&*self.bell, PollFlags::IN),
        ];
        for client in &self.clients {
            // Three each; the own bell, of which nothing is asked, stands for what is missing.
            let is_heard = client.met.is_some() || self.joins.may(client.caller.uid, now);
            let wanted = if is_heard { PollFlags::IN | PollFlags::RDHUP } else { PollFlags::RDHUP };
            let fds_of = [
                Some((&*client.socket, wanted)),
                client.ended.as_ref().map(|fd| (fd, PollFlags::IN)),
                client.met.as_ref().map(|met| (&met.bell, PollFlags::IN)),
            ];
            for fd in fds_of {
                let (fd, wanted) = fd.filter(|_| !client.is_over).unwrap_or((&self.bell, PollFlags::empty()));
                fds.push(PollFd::new(fd, wanted));
            }
        }
        // Who is to be hung up on is not looked at any more.
        let is_done = self.clients.iter().all(|client| !client.is_over);
        let most = if is_done { most } else { Some(Duration::ZERO) };
        let most = most.map(|most| Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() });
        if !matches!(poll(&mut fds, most.as_ref()), Ok(1..)) {
            return;
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        let mut has_greeted = false;
        for (client, ready) in self.clients.iter_mut().zip(ready[2..].chunks_exact(3)) {
            if let Some(met) = client.met.as_ref().filter(|_| ready[2].contains(PollFlags::IN)) {
                bell::heard_at_card(&met.bell);
            }
            let has_ended = client.ended.is_some() && ready[1].contains(PollFlags::IN);
            client.is_over |= has_ended || !ready[0].is_empty() && !ready[0].contains(PollFlags::IN);
            // One greeting at a look: what programs say in their rings goes on between.
            let is_greeting = client.met.is_none();
            if !client.is_over && ready[0].contains(PollFlags::IN) && !(is_greeting && has_greeted) {
                has_greeted |= is_greeting;
                let began = worked();
                client.is_over |= client.hear(&mut self.service).is_err();
                self.joins.charge(client.caller.uid, worked().saturating_sub(began), Instant::now());
            }
        }
        self.hang_up_some();
        if ready[0].contains(PollFlags::IN) {
            self.accept();
        }
    }

    /// One call at a look.
    fn accept(&mut self) {
        self.graves.retain_mut(|(.., closer)| {
            closer.try_again();
            closer.count() > 0
        });
        if self.clients.len() + self.graves.len() >= MOST_PROGRAMS {
            self.full = Some(Instant::now() + AGAIN);
            return;
        }
        match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => self.let_in(socket),
            Err(Errno::INTR | Errno::CONNABORTED | Errno::AGAIN) => {}
            // No descriptors.
            Err(_) => self.full = Some(Instant::now() + AGAIN),
        }
    }

    fn let_in(&mut self, socket: OwnedFd) {
        let Some(caller) = (self.may)(socket.as_fd()) else { return self.turn_away(socket, Errno::ACCESS) };
        let callers = || {
            let clients = self.clients.iter().map(|client| (client.caller.uid, client.caller.pid));
            clients.chain(self.graves.iter().map(|(uid, pid, _)| (*uid, *pid)))
        };
        let of_process = callers().filter(|(_, pid)| caller.pid != 0 && *pid == caller.pid).count();
        let of_user = callers().filter(|(uid, _)| *uid == caller.uid).count();
        if of_process >= MOST_OF_PROCESS || caller.is_limited && of_user >= MOST_OF_USER {
            return self.turn_away(socket, Errno::USERS);
        }
        match Client::new(socket, caller) {
            Ok(client) => {
                // Its memory, now that it is known that it may give some. An older system always lets it.
                let _ = take_descriptors(&client.socket);
                self.clients.push(client);
            }
            Err(socket) => self.turn_away(socket, Errno::NFILE),
        }
    }

    /// Hangs up, and says why.
    fn turn_away(&mut self, socket: OwnedFd, why: Errno) {
        let _ = greeting::send(&socket, &Greeting::Refused(why), None);
        self.strangers.close(socket);
    }

    fn hang_up_some(&mut self) {
        // Each takes a while: others are served between.
        if let Some(at) = self.clients.iter().position(|client| client.is_over) {
            self.hang_up(at);
        }
    }

    fn hang_up(&mut self, at: usize) {
        let began = worked();
        let Client { socket, ended, met, mut closer, caller, .. } = self.clients.remove(at);
        self.full = None;
        let left = met.as_ref().and_then(|met| self.service.leave(met.number));
        closer.close((left, ended, met));
        closer.close(socket);
        self.graves.push((caller.uid, caller.pid, closer));
        self.joins.charge(caller.uid, worked().saturating_sub(began), Instant::now());
    }
}
