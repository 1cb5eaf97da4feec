//! The thread of the card: it turns while something moves, and sleeps otherwise.
//!
//! It never waits for a program: requests are taken one of each program at a look, answers are sent without waiting,
//! who does not read them is hung up on, and what they have handed over is closed on other threads.
//!
//! * `mod.rs`: turns and sleep. `sockets`: what is ready, and the end of programs. `callers`: who is let in. `requests`: what programs ask for.

mod callers;
mod requests;
mod sockets;

use crate::clients::{Client, Grave};
use crate::network::{Doze, Network, Outside};
use crate::server::Address;
use crate::stalls::Stalls;
use millrace_callers::{Closer, May};
use millrace_rdma::number::Moment;
use millrace_rdma::served::{PutOut, Service, Turn};
use rustix::event::Timespec;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long requests are taken at a look: one of each program, and the rest at the next.
const REQUESTS: Duration = Duration::from_micros(50);
/// Descriptors of a user who is not the owner that wait to be closed, beyond which he is not listened to.
const MOST_CLOSING: usize = 512;
/// How often the socket is looked at while something moves.
const LOOK: Duration = Duration::from_micros(200);
/// How long the thread looks on after something moved.
const LINGER: Duration = Duration::from_micros(100);
/// Looks at what programs want between two turns that look at the clock, too.
const LOOKS: u32 = 256;
/// Turns that move something between two such turns.
const TURNS: u32 = 16;
/// The longest sleep where nothing says that a frame has come.
const SILENT: Duration = Duration::from_millis(1);

/// Of those who were turned away, how many sockets may wait to be closed before nobody is let in.
const MOST_STRANGERS: usize = 1024;
/// How soon the socket is looked at again that could not be, and whether somebody has greeted.
const AGAIN: Duration = Duration::from_millis(100);

pub(crate) struct Worker {
    service: Service,
    network: Option<Network>,
    address: Address,
    mtu: u16,
    may: May,
    userfaultfd: Option<OwnedFd>,
    listener: OwnedFd,
    bell: Arc<OwnedFd>,
    clients: Vec<Client>,
    /// Requests that wait until what was posted before them is taken.
    waiting: usize,
    /// Those that have gone, and are still being closed.
    graves: Vec<Grave>,
    /// Closes sockets of those who were turned away, with what they have sent; and how many these were.
    strangers: Closer,
    turned_away: u64,
    began: Instant,
    /// No descriptor, or no place, for one more: the socket is not looked at until then.
    full: Option<Instant>,
    /// Too few descriptors for what a record may bring: none is taken until then.
    scarce: Option<Instant>,
    /// There was no thread for what is to be closed: nobody tries to find one until then.
    threadless: Option<Instant>,
    /// Whose request is first.
    first: usize,
    /// Makes text of what was asked for.
    scribe: Closer,
}

impl Worker {
    /// Serves programs that call at `listener`, until somebody rings and says that it is to stop. By the thread that is to do that.
    pub fn new(
        mut service: Service,
        network: Option<Network>,
        (address, mtu): (Address, u16),
        (may, userfaultfd): (May, Option<OwnedFd>),
        listener: OwnedFd,
        bell: Arc<OwnedFd>,
    ) -> Self {
        service.watch(Box::new(Stalls::new()));
        let (clients, graves, strangers, began) = (Vec::new(), Vec::new(), Closer::default(), Instant::now());
        let (waiting, turned_away, full, scarce, threadless) = (0, 0, None, None, None);
        Self {
            service,
            network,
            address,
            mtu,
            may,
            userfaultfd,
            listener,
            bell,
            clients,
            waiting,
            graves,
            strangers,
            turned_away,
            began,
            full,
            scarce,
            threadless,
            first: 0,
            scribe: Closer::default(),
        }
    }

    fn now(&self) -> Moment {
        since(self.began)
    }

    /// By the thread that has made it.
    pub fn run(mut self, stop: &AtomicBool) {
        let mut until = Instant::now();
        // Acquire pairs with the Release in `Server::drop`.
        while !stop.load(Ordering::Acquire) {
            self.look(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }), None);
            let next = self.turns(&mut until);
            if Instant::now() >= until {
                self.sleep(next);
                until = Instant::now() + LINGER;
            }
        }
        self.end();
    }

    /// Nobody is served any more. Whoever has said so waits for this thread, which does not wait for what programs have handed over: that is closed
    /// at the latest with the process.
    fn end(mut self) {
        while !self.clients.is_empty() {
            self.hang_up(0);
        }
        // With those that have called and were not let in.
        self.strangers.close(self.listener);
    }

    /// Turns for a while, until it is time to look at the socket. When the next turn is to be.
    fn turns(&mut self, until: &mut Instant) -> Option<Moment> {
        self.service.restart_watch();
        let began = Instant::now();
        let mut last = began;
        loop {
            let mut turns = 0;
            for _ in 0..LOOKS {
                if self.step() {
                    turns += 1;
                    if turns == TURNS {
                        break;
                    }
                }
            }
            let turn = self.turn();
            let moved = turn.moved || turns > 0;
            let now = Instant::now();
            if moved {
                *until = now + LINGER;
            } else {
                // Programs that poll may need this core.
                std::thread::yield_now();
            }
            self.service.look_for_waits(Moment::new((now - self.began).as_nanos() as u64), now - last);
            self.part();
            last = now;
            if now >= *until || now - began >= LOOK {
                return turn.next;
            }
        }
    }

    /// Takes frames that have come, and what programs ask for; turns if there is more to do than that. Whether something moved.
    fn step(&mut self) -> bool {
        let Self { network, service, began, .. } = self;
        let came = network.as_mut().map_or(0, |network| network.receive(|| since(*began), service)) > 0;
        let taken = service.take(|| since(*began));
        if came || service.wants_turn() || taken && self.waiting > 0 {
            return self.turn().moved || taken;
        }
        taken
    }

    fn turn(&mut self) -> Turn {
        let now = self.now();
        let mut turn = self.service.turn(now, &mut Outside(self.network.as_mut()));
        if let Some(network) = &mut self.network {
            network.send(now);
            if let Some((gid, mac)) = network.take_conflict() {
                let address = std::net::Ipv6Addr::from(gid.0).to_canonical();
                tracing::warn!(%address, ?mac, "somebody else on the wire has the address of the RDMA engine, too: choose another one (--rdma-ip)");
            }
            turn.next = turn.next.into_iter().chain(network.next_due()).min();
            if let Some(error) = network.take_end() {
                tracing::warn!(error, "the RDMA engine reaches other hosts no more");
                self.service.lose_network(now);
            }
        }
        self.after_turn();
        turn
    }

    /// Hangs up on who was put out. Before anybody else comes, so that its number is nobody else's yet.
    fn part(&mut self) {
        while let Some(PutOut { number, left, has_stalled }) = self.service.take_put_out() {
            let is_it = |client: &Client| client.met.as_ref().is_some_and(|met| met.number == number);
            if let Some(at) = self.clients.iter().position(is_it) {
                let client = self.remove(at);
                let caller = client.caller;
                self.graves.push(client.bury(left));
                if has_stalled {
                    self.ban(caller);
                }
            }
        }
    }

    /// What a turn leaves to do: to hang up, to answer, and to ring.
    fn after_turn(&mut self) {
        self.part();
        if self.waiting > 0 {
            self.serve_waiting();
        }
        while let Some(number) = self.service.take_bell() {
            let mut met = self.clients.iter().filter_map(|client| client.met.as_ref());
            if let Some(met) = met.find(|met| met.number == number) {
                met.to_program.ring();
            }
        }
    }

    fn sleep(&mut self, next: Option<Moment>) {
        if self.waiting > 0 || self.clients.iter().any(|client| client.is_over) || !self.service.doze() {
            return;
        }
        let Self { network, service, began, .. } = self;
        let doze = network.as_mut().map(|network| network.doze(|| since(*began), service));
        let (wakes, most) = match doze {
            Some(Doze::Awake) => return self.service.awake(),
            Some(Doze::Wakes(fd)) => (Some(fd), None),
            Some(Doze::Silent) => (None, Some(SILENT)),
            Some(Doze::Ended) | None => (None, None),
        };
        let left = next.map(|next| Duration::from_nanos(next.nanoseconds().saturating_sub(self.now().nanoseconds())));
        // Somebody is to greet soon, or a socket is to be looked at again.
        let is_awaited = self.full.is_some()
            || self.scarce.is_some()
            || self.strangers.waits_for(MOST_STRANGERS)
            || self.is_any_closing(MOST_CLOSING)
            || self.is_stuck()
            || self.clients.iter().any(|client| client.met.is_none() || client.closer.is_full());
        let left = left.into_iter().chain(most).chain(is_awaited.then_some(AGAIN)).min();
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        self.look(left.as_ref(), wakes.as_ref());
        if let Some(network) = &mut self.network {
            network.awake();
        }
        self.service.awake();
    }
}

fn since(began: Instant) -> Moment {
    Moment::new(began.elapsed().as_nanos() as u64)
}
