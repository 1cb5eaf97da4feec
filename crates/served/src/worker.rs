//! The thread of the card: it turns while something moves, and sleeps otherwise.
//!
//! It never waits for a program: requests are taken one of each program at a look, answers are sent without waiting,
//! who does not read them is hung up on, and what they have handed over is closed on other threads.

use crate::answer::{Answer, answer};
use crate::clients::{Caller, Client, Grave, May, Waiting, greet};
use crate::closing::Closer;
use crate::network::{Doze, Network, Outside};
use crate::server::Address;
use crate::wire::{MOST_PARTS, Request, Welcome, Words, write_mac};
use crate::{bell, record};
use millrace_rdma::neighbour::Found;
use millrace_rdma::number::{Gid, Moment};
use millrace_rdma::served::{Number, ServeError, Service, Turn};
use millrace_rdma::show;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Programs at once: each costs the card memory.
const MOST_PROGRAMS: usize = 256;
/// Calls that are accepted at a look: strangers, who are hung up on, may call without end.
const ACCEPTED: usize = 16;
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
/// Addresses that a program may have asked for at a time.
const MOST_ASKED: usize = 16;

/// Of those who were turned away, how many sockets may wait to be closed before nobody is let in.
const MOST_STRANGERS: usize = 1024;
/// Connections of one process at once.
const MOST_OF_PROCESS: usize = 8;
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
}

impl Worker {
    /// Serves programs that call at `listener`, until somebody rings and says that it is to stop.
    pub fn new(
        service: Service,
        network: Option<Network>,
        (address, mtu): (Address, u16),
        (may, userfaultfd): (May, Option<OwnedFd>),
        listener: OwnedFd,
        bell: Arc<OwnedFd>,
    ) -> Self {
        let (clients, graves, strangers, began) = (Vec::new(), Vec::new(), Closer::default(), Instant::now());
        let (waiting, turned_away, full) = (0, 0, None);
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
        }
    }

    fn now(&self) -> Moment {
        since(self.began)
    }

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
        let began = Instant::now();
        loop {
            let mut turns = 0;
            for _ in 0..LOOKS {
                if self.has_something() && self.turn().moved {
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
            if now >= *until || now - began >= LOOK {
                return turn.next;
            }
        }
    }

    /// Whether a turn would do something now. Takes frames that have come.
    fn has_something(&mut self) -> bool {
        let Self { network, service, began, .. } = self;
        let came = network.as_mut().map_or(0, |network| network.receive(|| since(*began), service));
        came > 0 || service.has_something()
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

    /// Rings, and hangs up on who was put out. Before anybody else comes, so that its number is nobody else's yet.
    fn after_turn(&mut self) {
        while let Some((number, left)) = self.service.take_put_out() {
            let is_it = |client: &Client| client.met.as_ref().is_some_and(|met| met.number == number);
            if let Some(at) = self.clients.iter().position(is_it) {
                let grave = self.remove(at).bury(left);
                self.graves.push(grave);
            }
        }
        if self.waiting > 0 {
            self.serve_waiting();
        }
        while let Some(number) = self.service.take_bell() {
            let mut met = self.clients.iter().filter_map(|client| client.met.as_ref());
            if let Some(met) = met.find(|met| met.number == number) {
                bell::ring(&met.to_program);
            }
        }
    }

    fn sleep(&mut self, next: Option<Moment>) {
        if !self.service.doze() {
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
            || self.strangers.waits_for(MOST_STRANGERS)
            || self.clients.iter().any(|client| client.met.is_none() || client.closer.is_full());
        let left = left.into_iter().chain(most).chain(is_awaited.then_some(AGAIN)).min();
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        self.look(left.as_ref(), wakes.as_ref());
        if let Some(network) = &mut self.network {
            network.awake();
        }
        self.service.awake();
    }

    /// Waits until something comes by a socket, a bell, or the link (`wakes`), at most so long; takes a request of each program.
    fn look(&mut self, most: Option<&Timespec>, wakes: Option<&OwnedFd>) {
        let now = Instant::now();
        self.full = self.full.filter(|until| *until > now);
        for at in (0..self.clients.len()).rev() {
            if self.clients[at].is_late(now) {
                self.hang_up(at);
            }
        }
        let listens = if self.full.is_some() || self.strangers.waits_for(MOST_STRANGERS) {
            PollFlags::empty()
        } else {
            PollFlags::IN
        };
        let mut fds = vec![PollFd::new(&self.listener, listens)];
        for client in &self.clients {
            fds.push(PollFd::new(&client.socket, client.wants()));
            // Three each; the socket, of which nothing is asked, stands for what is missing.
            let or_socket = |fd| match fd {
                Some(fd) => (fd, PollFlags::IN),
                None => (&client.socket, PollFlags::empty()),
            };
            for fd in [client.ended.as_ref(), client.met.as_ref().map(|met| &met.to_card)] {
                let (fd, wanted) = or_socket(fd);
                fds.push(PollFd::new(fd, wanted));
            }
        }
        // Only to be woken.
        fds.extend([Some(&*self.bell), wakes].into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)));
        if !matches!(poll(&mut fds, most), Ok(1..)) {
            return;
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        let mut gone = Vec::new();
        for (at, ready) in ready[1..].chunks_exact(3).take(self.clients.len()).enumerate() {
            let client = &self.clients[at];
            if let Some(met) = client.met.as_ref().filter(|_| ready[2].contains(PollFlags::IN)) {
                bell::heard_by_card(&met.to_card);
            }
            let has_ended = client.ended.is_some() && ready[1].contains(PollFlags::IN);
            // What is not looked for now has not come: then it has hung up.
            let is_over = !ready[0].is_empty() && !ready[0].contains(PollFlags::IN);
            if has_ended || is_over || (ready[0].contains(PollFlags::IN) && self.serve(at).is_err()) {
                gone.push(at);
            }
        }
        gone.into_iter().rev().for_each(|at| self.hang_up(at));
        if ready[0].contains(PollFlags::IN) {
            self.accept();
        }
    }

    /// Its place is free for another one.
    fn remove(&mut self, at: usize) -> Client {
        let client = self.clients.swap_remove(at);
        self.waiting -= usize::from(client.waiting.is_some());
        self.full = None;
        client
    }

    fn hang_up(&mut self, at: usize) {
        let client = self.remove(at);
        let now = self.now();
        let left = client.met.as_ref().and_then(|met| self.service.leave(now, met.number));
        self.graves.push(client.bury(left));
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            self.graves.retain(|grave| !grave.is_empty());
            if self.clients.len() + self.graves.len() >= MOST_PROGRAMS {
                self.full = Some(Instant::now() + AGAIN);
                return;
            }
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.let_in(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // No descriptors.
                Err(_) => {
                    self.full = Some(Instant::now() + AGAIN);
                    return;
                }
            }
        }
    }

    fn let_in(&mut self, socket: OwnedFd) {
        match Client::new(socket, &self.may) {
            Ok(client) if self.has_many(&client.caller) => self.turn_away(client.socket, Errno::USERS),
            Ok(client) => self.clients.push(client),
            Err(socket) => self.turn_away(socket, Errno::ACCESS),
        }
    }

    /// Hangs up, and says why.
    fn turn_away(&mut self, socket: OwnedFd, why: Errno) {
        self.turned_away += 1;
        let _ = record::send(&socket, &Words::refusal(why.raw_os_error()), &[]);
        self.strangers.close(socket);
    }

    /// Whether his process, or he, has as many connections as there may be. Other users than the owner have a half of all together, and one
    /// of them leaves at least as many as he has.
    fn has_many(&self, caller: &Caller) -> bool {
        let callers =
            || self.clients.iter().map(|client| client.caller).chain(self.graves.iter().map(|grave| grave.caller));
        let of_process = callers().filter(|other| other.pid == caller.pid).count();
        let of_user = callers().filter(|other| other.uid == caller.uid).count();
        // In another container all have the number 0.
        let is_limited = caller.is_limited || caller.pid == 0;
        let of_others = callers().filter(|other| other.is_limited && other.uid != caller.uid).count();
        let most_of_user = (MOST_PROGRAMS / 2).saturating_sub(of_others) / 2;
        caller.pid != 0 && of_process >= MOST_OF_PROCESS || is_limited && of_user >= most_of_user
    }

    /// Takes one request of a program, and answers it, when what it has posted before is taken. An error: it is to be hung up on.
    fn serve(&mut self, at: usize) -> Result<(), Errno> {
        let client = &mut self.clients[at];
        let Some((words, fds)) = record::receive_any(&client.socket)? else { return Ok(()) };
        let request = words.ok().and_then(Request::read).filter(|_| fds.len() <= MOST_PARTS);
        let number = client.met.as_ref().map(|met| met.number);
        match (request, number) {
            (Some(Request::Show(which)), _) => {
                client.close(fds);
                self.show(at, which)
            }
            (Some(Request::Hello), None) => {
                client.close(fds);
                self.greet(at)
            }
            (Some(request), Some(number)) if request != Request::Hello => {
                if let Some(position) = self.service.position_of_work(number) {
                    client.waiting = Some(Waiting { request, fds, position });
                    self.waiting += 1;
                    return Ok(());
                }
                self.answer(at, number, request, fds)
            }
            _ => {
                client.close(fds);
                Err(Errno::BADMSG)
            }
        }
    }

    /// Requests before which all is taken.
    fn serve_waiting(&mut self) {
        for at in (0..self.clients.len()).rev() {
            let client = &mut self.clients[at];
            let (Some(waiting), Some(met)) = (&client.waiting, &client.met) else { continue };
            let number = met.number;
            if !self.service.has_taken(number, waiting.position) {
                continue;
            }
            let Some(Waiting { request, fds, .. }) = client.waiting.take() else { continue };
            self.waiting -= 1;
            if self.answer(at, number, request, fds).is_err() {
                self.hang_up(at);
            }
        }
    }

    fn answer(&mut self, at: usize, number: Number, request: Request, fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let answered = match request {
            Request::Resolve(gid) => self.resolve(at, gid).map(Answer::from),
            Request::DestroyPair(qpn) => {
                let now = self.now();
                self.service.say_farewell(now, number, qpn, &mut Outside(self.network.as_mut()));
                answer(&mut self.service, number, request, &fds)
            }
            _ => answer(&mut self.service, number, request, &fds),
        };
        let client = &mut self.clients[at];
        client.close(fds);
        match answered {
            Ok(Answer { words, fd, remains }) => {
                if let Some(remains) = remains {
                    client.closer.close(remains);
                }
                record::send(&client.socket, &words, fd.as_ref().map(AsFd::as_fd).as_slice())
            }
            Err(error) => record::send(&client.socket, &Words::refusal(error.errno()), &[]),
        }
    }

    /// Who has an address. Each program may have a few asked for at a time, so that there is room for those that others ask for.
    fn resolve(&mut self, at: usize, gid: Gid) -> Result<Words, ServeError> {
        if self.address.gids.contains(&gid) {
            return Ok(write_mac(Some(self.address.mac)));
        }
        let now = self.now();
        let network = self.network.as_mut().ok_or(ServeError::NoHosts(Errno::NETUNREACH.raw_os_error()))?;
        let asked = &mut self.clients[at].asked;
        asked.retain(|one| *one == gid || network.is_asked(*one));
        if asked.len() >= MOST_ASKED && !asked.contains(&gid) {
            return Err(ServeError::Quota { what: "addresses that are being asked for", limit: MOST_ASKED as u64 });
        }
        asked.retain(|one| *one != gid);
        match network.find(now, gid) {
            Found::Known(mac) => Ok(write_mac(Some(mac))),
            Found::Asked => {
                asked.push(gid);
                Ok(write_mac(None))
            }
            Found::Unreachable => Err(ServeError::NoHosts(Errno::HOSTUNREACH.raw_os_error())),
            Found::NoSource => Err(ServeError::NoHosts(Errno::NETUNREACH.raw_os_error())),
            Found::Full => Err(ServeError::NoHosts(Errno::NOBUFS.raw_os_error())),
        }
    }

    /// Says what the card, or a program, is doing: of bounded length.
    fn show(&mut self, at: usize, which: u32) -> Result<(), Errno> {
        let told = match which.checked_sub(1) {
            None => Some(self.show_card()),
            Some(number) => {
                let met = |client: &Client| Some((client.caller.pid, client.met.as_ref()?.number));
                let found = self.clients.iter().filter_map(met).nth(number as usize);
                found.and_then(|(pid, number)| Some(format!("{{\"pid\":{pid},{}}}", self.service.show(number)?)))
            }
        };
        let socket = &self.clients[at].socket;
        match told {
            Some(text) => record::send_bytes(socket, text.as_bytes(), &[]),
            None => record::send(socket, &Words::refusal(Errno::NOENT.raw_os_error()), &[]),
        }
    }

    fn show_card(&mut self) -> String {
        let turned_away = ("turned_away", self.turned_away);
        let (transport, served) = self.service.show_counters([turned_away]);
        let frames = show::counters(self.network.iter().flat_map(Network::counters));
        let port = show::counters(self.network.iter().flat_map(Network::port));
        format!(
            "{{\"pid\":{},\"stats\":{{\"transport\":{transport},\"served\":{served},\"frames\":{frames},\"port\":{port}}}}}",
            std::process::id()
        )
    }

    fn greet(&mut self, at: usize) -> Result<(), Errno> {
        let number = match self.service.enter(self.clients[at].caller.account()) {
            Ok(number) => number,
            Err(error) => return record::send(&self.clients[at].socket, &Words::refusal(error.errno()), &[]),
        };
        let welcome = Welcome { mac: self.address.mac, gid: self.address.gids[0], mtu: self.mtu };
        let userfaultfd = self.userfaultfd.as_ref();
        let greeted = greet(&self.service, &self.clients[at].socket, &welcome, number, userfaultfd);
        match greeted {
            Ok(met) => {
                self.clients[at].met = Some(met);
                Ok(())
            }
            Err(error) => {
                let now = self.now();
                let left = self.service.leave(now, number);
                self.clients[at].closer.close(left);
                Err(error)
            }
        }
    }
}

fn since(began: Instant) -> Moment {
    Moment::new(began.elapsed().as_nanos() as u64)
}
