//! The thread of the card: it turns while something moves, and sleeps otherwise.
//!
//! It never waits for a program: requests are taken one of each program at a look, answers are sent without waiting,
//! who does not read them is hung up on, and what they have handed over is closed on other threads.

use crate::answer::{Answer, answer};
use crate::clients::{Caller, Client, Grave, May, Waiting, greet};
use crate::closing::Closer;
use crate::network::{Doze, Network, Outside};
use crate::server::Address;
use crate::stalls::Stalls;
use crate::wire::{MOST_PARTS, Request, Welcome, Words, write_mac};
use crate::{bell, record};
use millrace_rdma::neighbour::Found;
use millrace_rdma::number::{Gid, Moment};
use millrace_rdma::served::{Number, PutOut, ServeError, Service, Turn};
use millrace_rdma::show;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Programs at once: each costs the card memory.
const MOST_PROGRAMS: usize = 256;
/// Calls that are accepted at a look: strangers, who are hung up on, may call without end.
const ACCEPTED: usize = 4;
/// How long requests are taken at a look: one of each program, and the rest at the next.
const REQUESTS: Duration = Duration::from_micros(50);
/// Programs that are hung up on at a look.
const HANG_UPS: usize = 2;
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
/// Addresses that a program may have asked for at a time.
const MOST_ASKED: usize = 16;

/// Of those who were turned away, how many sockets may wait to be closed before nobody is let in.
const MOST_STRANGERS: usize = 1024;
/// Connections of one process at once.
const MOST_OF_PROCESS: usize = 8;
/// Turns that take so much longer than they may: it is looked whether the thread has slept so long.
const SLOW: Duration = Duration::from_millis(5);
/// How long it is watched then whose memory it waits for.
const WATCHED: Duration = Duration::from_secs(10);
/// How long a user whose memory it was is turned away.
const BANNED: Duration = Duration::from_secs(60);
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
    /// Whose request is first.
    first: usize,
    /// Makes text of what was asked for.
    scribe: Closer,
    stalls: Stalls,
    /// Until when it is watched whose memory the thread waits for.
    watched: Option<Instant>,
    /// Users who are turned away, and until when.
    banned: Vec<(u32, Instant)>,
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
        let (waiting, turned_away, full, scarce, first, scribe) = (0, 0, None, None, 0, Closer::default());
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
            first,
            scribe,
            stalls: Stalls::new(),
            watched: None,
            banned: Vec::new(),
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
        let began = Instant::now();
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
            if now >= *until || now - began >= LOOK {
                self.look_after(now, now - began);
                return turn.next;
            }
        }
    }

    /// After turns that took so long: if the thread has slept meanwhile, it has waited for memory of somebody.
    fn look_after(&mut self, now: Instant, took: Duration) {
        if took > LOOK + SLOW {
            let slept = self.stalls.slept();
            self.stalls.restart();
            if slept > SLOW {
                if self.watched.replace(now + WATCHED).is_none() {
                    tracing::warn!(?slept, "the RDMA engine had to wait for memory: it looks now whose that is");
                }
                self.service.watch(Some(Box::new(Stalls::new())));
            }
        }
        if self.watched.is_some_and(|until| now > until) {
            self.watched = None;
            self.service.watch(None);
        }
    }

    /// Memory of this program made the engine wait. The other programs of its user could do the same, one after the other.
    fn ban(&mut self, caller: Caller) {
        let Caller { pid, uid, is_limited } = caller;
        tracing::warn!(pid, uid, "a program took away memory that it had registered, and is served no more");
        if is_limited {
            let now = Instant::now();
            self.banned.retain(|(_, until)| *until > now);
            self.banned.push((uid, now + BANNED));
            self.clients.iter_mut().for_each(|client| client.is_over |= client.caller.uid == uid);
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

    /// Rings, and hangs up on who was put out. Before anybody else comes, so that its number is nobody else's yet.
    fn after_turn(&mut self) {
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
            || self.clients.iter().any(|client| client.met.is_none() || client.closer.is_full());
        let left = left.into_iter().chain(most).chain(is_awaited.then_some(AGAIN)).min();
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        self.look(left.as_ref(), wakes.as_ref());
        self.stalls.restart();
        if let Some(network) = &mut self.network {
            network.awake();
        }
        self.service.awake();
    }

    /// Waits until something comes by a socket, a bell, or the link (`wakes`), at most so long; takes a request of each program.
    fn look(&mut self, most: Option<&Timespec>, wakes: Option<&OwnedFd>) {
        let now = Instant::now();
        self.full = self.full.filter(|until| *until > now);
        self.scarce = self.scarce.filter(|until| *until > now);
        self.clients.iter_mut().for_each(|client| client.is_over |= client.is_late(now));
        self.hang_up_some();
        let unheard = self.unheard();
        let listens = if self.full.is_some() || self.strangers.waits_for(MOST_STRANGERS) {
            PollFlags::empty()
        } else {
            PollFlags::IN
        };
        let mut fds = vec![PollFd::new(&self.listener, listens)];
        for client in &self.clients {
            let is_heard = self.scarce.is_none() && !unheard.contains(&client.caller.uid);
            let wants = if is_heard { client.wants() } else { PollFlags::RDHUP };
            fds.push(PollFd::new(&client.socket, wants));
            // Three each; the socket, of which nothing is asked, stands for what is missing.
            let or_socket = |fd| match fd {
                Some(fd) => (fd, PollFlags::IN),
                None => (&*client.socket, PollFlags::empty()),
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
        let (began, count, mut last) = (Instant::now(), self.clients.len(), 0);
        for step in 0..count {
            let at = (self.first + step) % count;
            last = at + 1;
            let ready = &ready[1 + 3 * at..][..3];
            let client = &mut self.clients[at];
            if let Some(met) = client.met.as_ref().filter(|_| ready[2].contains(PollFlags::IN)) {
                bell::heard_by_card(&met.to_card);
            }
            let has_ended = client.ended.is_some() && ready[1].contains(PollFlags::IN);
            // What is not looked for now has not come: then it has hung up.
            client.is_over |= has_ended || !ready[0].is_empty() && !ready[0].contains(PollFlags::IN);
            if !client.is_over && ready[0].contains(PollFlags::IN) {
                let is_served = self.serve(at).is_ok();
                self.clients[at].is_over |= !is_served;
                // Those who wait for the engine are not to wait for many that ask.
                if began.elapsed() > REQUESTS {
                    break;
                }
            }
        }
        self.first = last;
        self.hang_up_some();
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

    /// Hangs up on some of those that it is to be hung up on: destroying what one has takes its time.
    fn hang_up_some(&mut self) {
        for _ in 0..HANG_UPS {
            let Some(at) = self.clients.iter().position(|client| client.is_over) else { return };
            self.hang_up(at);
        }
    }

    /// Whether so many descriptors of other users than the owner wait to be closed.
    fn is_any_closing(&self, most: usize) -> bool {
        self.closing().map(|(_, count)| count).sum::<usize>() >= most
    }

    /// Of users other than the owner: what waits to be closed of each of their programs.
    fn closing(&self) -> impl Iterator<Item = (u32, usize)> {
        let clients = self.clients.iter().map(|client| (client.caller, client.closer.count()));
        let graves = self.graves.iter().map(|grave| (grave.caller, grave.count()));
        clients.chain(graves).filter(|(caller, _)| caller.is_limited).map(|(caller, count)| (caller.uid, count))
    }

    /// Users who are not listened to, because too much of theirs waits to be closed.
    fn unheard(&self) -> Vec<u32> {
        if !self.is_any_closing(MOST_CLOSING) {
            return Vec::new();
        }
        let mut users: Vec<u32> = self.closing().map(|(uid, _)| uid).collect();
        users.sort_unstable();
        users.dedup();
        let of = |user: u32| self.closing().filter(|(uid, _)| *uid == user).map(|(_, count)| count).sum::<usize>();
        users.retain(|uid| of(*uid) >= MOST_CLOSING);
        users
    }

    fn hang_up(&mut self, at: usize) {
        let client = self.remove(at);
        let now = self.now();
        let left = client.met.as_ref().and_then(|met| self.service.leave(now, met.number));
        self.graves.push(client.bury(left));
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            self.graves.retain(|grave| grave.count() > 0);
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
            Ok(client) if self.is_banned(&client.caller) => self.turn_away(client.socket, Errno::ACCESS),
            Ok(client) if self.has_many(&client.caller) => self.turn_away(client.socket, Errno::USERS),
            Ok(client) => self.clients.push(client),
            Err(socket) => self.turn_away(Arc::new(socket), Errno::ACCESS),
        }
    }

    fn is_banned(&self, caller: &Caller) -> bool {
        let now = Instant::now();
        self.banned.iter().any(|(uid, until)| *uid == caller.uid && *until > now)
    }

    /// Hangs up, and says why.
    fn turn_away(&mut self, socket: Arc<OwnedFd>, why: Errno) {
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
        if !record::has_room(&self.listener) {
            self.scarce = Some(Instant::now() + AGAIN);
            return Ok(());
        }
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
        let began = Instant::now();
        for at in 0..self.clients.len() {
            if began.elapsed() > REQUESTS {
                return;
            }
            let client = &mut self.clients[at];
            let (Some(waiting), Some(met)) = (&client.waiting, &client.met) else { continue };
            let number = met.number;
            if !self.service.has_taken(number, waiting.position) {
                continue;
            }
            let Some(Waiting { request, fds, .. }) = client.waiting.take() else { continue };
            self.waiting -= 1;
            self.clients[at].is_over |= self.answer(at, number, request, fds).is_err();
        }
    }

    fn answer(&mut self, at: usize, number: Number, request: Request, fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let answered = match request {
            Request::Resolve(gid, asks) => self.resolve(at, gid, asks).map(Answer::from),
            Request::Offer(offered) => {
                let now = self.now();
                self.service.offer(now, number, offered).map(|()| Words::answer(&[]).into())
            }
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

    /// Who has an address; `asks` if it is not known. Each program may have a few asked for at a time, so that there is room for those that
    /// others ask for.
    fn resolve(&mut self, at: usize, gid: Gid, asks: bool) -> Result<Words, ServeError> {
        if self.address.gids.contains(&gid) {
            return Ok(write_mac(Some(self.address.mac)));
        }
        let now = self.now();
        let network = self.network.as_mut().ok_or(ServeError::NoHosts(Errno::NETUNREACH.raw_os_error()))?;
        if !asks {
            return Ok(write_mac(network.known(gid)));
        }
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

    /// Says what the card, or a program, is doing: of bounded length. Of a program the text is made by another thread, which has a look of a
    /// moment for it.
    fn show(&mut self, at: usize, which: u32) -> Result<(), Errno> {
        let socket = self.clients[at].socket.clone();
        let Some(number) = which.checked_sub(1) else {
            let told = self.show_card();
            return record::send_bytes(socket, told.as_bytes(), &[]);
        };
        let met = |client: &Client| Some((client.caller.pid, client.met.as_ref()?.number));
        let found = self.clients.iter().filter_map(met).nth(number as usize);
        let Some((pid, shown)) = found.and_then(|(pid, number)| Some((pid, self.service.show(number)?))) else {
            return record::send(&socket, &Words::refusal(Errno::NOENT.raw_os_error()), &[]);
        };
        // Whoever asks has an answer before he asks again. Acquire pairs with the Release below.
        let is_asking = self.clients[at].is_asking.clone();
        if is_asking.swap(true, Ordering::Acquire) {
            return Err(Errno::BUSY);
        }
        self.scribe.run(1, move || {
            let told = format!("{{\"pid\":{pid},{}}}", shown.fields());
            // Before it is sent: he may ask when he has it.
            is_asking.store(false, Ordering::Release);
            if record::send_bytes(&socket, told.as_bytes(), &[]).is_err() {
                // The card finds that, and hangs up.
                let _ = shutdown(&socket, Shutdown::Both);
            }
        });
        Ok(())
    }

    fn show_card(&mut self) -> String {
        let turned_away = ("turned_away", self.turned_away);
        let [transport, served, general] = self.service.show_counters([turned_away]);
        let frames = show::counters(self.network.iter().flat_map(Network::counters));
        let port = show::counters(self.network.iter().flat_map(Network::port));
        format!(
            "{{\"pid\":{},\"stats\":{{\"transport\":{transport},\"served\":{served},\"connections\":{general},\"frames\":{frames},\"port\":{port}}}}}",
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
