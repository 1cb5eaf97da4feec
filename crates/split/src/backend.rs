//! The backend: it lets programs of guests in, answers what stands in their control pages, and lets the engine work for them.
//!
//! One thread, which never waits for a guest: one request of each at a look, answers without waiting, and what a guest has left is unmapped by
//! another thread. It turns while something moves, and sleeps otherwise.

use crate::busy::Busy;
use crate::counts::GuestCounts;
use crate::guest::{Guest, Means, PRICE};
use crate::hosts::{Hosts, Outside};
use crate::meeting::Link;
use crate::message::Request;
use crate::notices::{Notices, TurnedAway, Why};
use crate::outside::FarLinks;
use crate::page::BackendSide;
use crate::port::{Port, PortCounts};
use crate::rights::{Rights, right_for};
use crate::transport::{Arrived, Door, Event};
use crate::{Address, Error, PAGE};
use millrace_rdma::engine::Options;
use millrace_rdma::number::Moment;
use millrace_rdma::served::{Amounts, Books, Number, PutOut, Quota, Service};
use millrace_served::network::Doze;
use millrace_served::{Closer, wire};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// How long the thread looks on after something has moved.
const LINGER: Duration = Duration::from_micros(100);
/// How often doors and bells are looked at while something moves.
const LOOK: Duration = Duration::from_micros(200);
/// The longest sleep: so late it is seen that the backend is to stop.
const LONGEST: Duration = Duration::from_millis(100);
/// Mappings of this process that guests may have, all together: Linux allows 65,530.
const MOST_MAPPINGS: u64 = 32_768;
/// What was turned away, or left, and waits to be closed: with so much nobody is let in.
const MOST_CLOSING: usize = 1024;
/// The longest sleep where nothing says that a frame has come.
const SILENT: Duration = Duration::from_millis(1);
/// The other end of a wire is a thread that may have to wait for a core.
const MIN_TIMEOUT: Duration = Duration::from_millis(250);

/// How much there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Programs of guests at once.
    pub guests: usize,
    /// Pages that one may have mapped.
    pub pages: u64,
    /// Pages that all may have mapped together. Users other than the one who runs the backend, as which domains and machines count, have a half of
    /// it, and each of them leaves as many to the others of these as he has.
    pub all_pages: u64,
    /// Pieces of memory that one may have mapped.
    pub pieces: usize,
    /// What guests may do.
    pub rights: Rights,
    /// Objects of the engine, of each and of all.
    pub engine: Quota,
}

impl Default for Limits {
    fn default() -> Self {
        let (rights, engine) = Default::default();
        Self { guests: 64, pages: 1 << 16, all_pages: 1 << 18, pieces: 1024, rights, engine }
    }
}

impl Limits {
    /// Of what guests have outside of the engine: programs, mappings and mapped bytes.
    fn memory(&self) -> Quota {
        // A control page each. There are twice as many places as guests, of which users other than ours have a half: all guests may be theirs, but no user may have all.
        let guests = self.guests.max(4) as u64;
        let bytes = self.all_pages.saturating_add(guests).saturating_mul(PAGE as u64);
        let all = Amounts { domains: 2 * guests, regions: MOST_MAPPINGS, bytes, ..Amounts::default() };
        // What a program may have is looked at before.
        Quota { program: all, all }
    }
}

/// What is told to whoever runs a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A program has come.
    Came {
        /// What it is called.
        name: String,
        /// Of the endpoint that it may open.
        address: Address,
    },
    /// It is served no more.
    Left {
        /// What it was called.
        name: String,
        /// The address that it had.
        address: Address,
        /// It wrote what is no message, or did not read.
        was_put_out: bool,
        /// What was counted for it.
        counts: GuestCounts,
    },
}

fn watch(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// An engine for programs in guests.
pub struct Backend {
    pub(crate) service: Service,
    pub(crate) guests: Vec<Guest>,
    pub(crate) links: Vec<Link>,
    /// What leads to other hosts, and connections with endpoints there.
    pub(crate) port: Option<Port>,
    pub(crate) far: FarLinks,
    /// Who queue pairs are that guests make themselves.
    pub(crate) hosts: Hosts,
    pub(crate) psn: u32,
    /// Drops what takes long.
    pub(crate) closer: Closer,
    /// Those of guests that have gone, for what they left there was no thread.
    graves: VecDeque<Closer>,
    /// What guests have mapped.
    books: Books,
    /// Who waits, because others had to.
    busy: Busy,
    pub(crate) notices: Notices,
    doors: Vec<Box<dyn Door>>,
    limits: Limits,
    began: Instant,
    reports: Vec<Report>,
}

impl Backend {
    /// With these doors. Guests reach each other.
    pub fn new(limits: Limits, doors: Vec<Box<dyn Door>>) -> Self {
        Self::with_port(limits, doors, None)
    }

    /// The same, and with a port guests reach endpoints of SLURPoE on its wire, and are reached by them.
    pub fn with_port(limits: Limits, doors: Vec<Box<dyn Door>>, port: Option<Port>) -> Self {
        Self::with(limits, doors, port, Hosts::default())
    }

    /// The same, and queue pairs that guests make themselves have an address of which others know.
    pub fn with(limits: Limits, doors: Vec<Box<dyn Door>>, port: Option<Port>, hosts: Hosts) -> Self {
        let seed = RandomState::new().hash_one(std::process::id());
        let mut options = Options { datagram_mtu: hosts.mtu, seed, ..Options::default() };
        if port.is_some() || hosts.network.is_some() {
            options.min_timeout = MIN_TIMEOUT;
        }
        Self {
            service: Service::new(options, hosts.own.mac, &hosts.own.gids, limits.engine),
            guests: Vec::new(),
            links: Vec::new(),
            port,
            far: FarLinks::default(),
            hosts,
            psn: seed as u32 & 0xff_ffff,
            closer: Closer::default(),
            graves: VecDeque::new(),
            books: Books::new(limits.memory()),
            busy: Busy::default(),
            notices: Notices::default(),
            doors,
            limits,
            began: Instant::now(),
            reports: Vec::new(),
        }
    }

    /// Serves guests until it is to stop. What happens is told meanwhile.
    pub fn run(&mut self, stop: &dyn Fn() -> bool, mut report: impl FnMut(&Report)) {
        let mut until = Instant::now();
        while !stop() {
            self.look(Duration::ZERO, &[]);
            let next = self.turns(&mut until);
            self.reports.drain(..).for_each(|told| report(&told));
            if Instant::now() >= until {
                self.sleep(next);
                until = Instant::now() + LINGER;
            }
        }
        while !self.guests.is_empty() {
            self.remove(0, false);
        }
        if let Some(port) = &mut self.port {
            port.flush();
        }
        let now = self.now();
        self.send_to_hosts(now);
        self.reports.drain(..).for_each(|told| report(&told));
    }

    /// Programs that were not let in, by why.
    pub fn turned_away(&self) -> TurnedAway {
        self.notices.turned_away
    }

    /// Lines that were left out of the log, because guests caused too many.
    pub fn unsaid(&self) -> u64 {
        self.notices.unsaid
    }

    /// What the port has counted.
    pub fn port_counts(&self) -> Option<PortCounts> {
        self.port.as_ref().map(|port| port.counts)
    }

    /// What was counted on the way to other hosts by RoCE; nothing without one.
    pub fn host_counts(&self) -> Vec<(&'static str, u64)> {
        self.hosts.counters()
    }

    pub(crate) fn now(&self) -> Moment {
        Moment::new(self.began.elapsed().as_nanos() as u64)
    }

    /// Turns for a while. When the next turn is to be.
    fn turns(&mut self, until: &mut Instant) -> Option<Moment> {
        let began = Instant::now();
        loop {
            let came = self.hear_wire() | self.hear_hosts();
            let asked = self.take_requests();
            let now = self.now();
            let mut outside = Outside(self.port.as_mut(), self.hosts.network.as_mut());
            let turn = self.service.turn(now, &mut outside);
            self.after_turn();
            if let Some(port) = &mut self.port {
                port.flush();
            }
            self.send_to_hosts(now);
            let now = Instant::now();
            if came || asked || turn.moved {
                *until = now + LINGER;
            } else {
                // Guests may need this core.
                std::thread::yield_now();
            }
            if now >= *until || now - began >= LOOK {
                let neighbours = self.hosts.network.as_ref().and_then(|network| network.next_due());
                return turn.next.into_iter().chain(self.far.next_due()).chain(neighbours).min();
            }
        }
    }

    /// Takes frames, and what was said in them. Whether there were some.
    fn hear_wire(&mut self) -> bool {
        let now = self.now();
        let Self { port: Some(port), service, .. } = self else { return false };
        let came = port.receive(now, service) > 0;
        self.agree(now);
        came
    }

    /// Takes frames from other hosts. Whether there were some.
    fn hear_hosts(&mut self) -> bool {
        let now = self.now();
        let Self { hosts, service, .. } = self;
        hosts.network.as_mut().is_some_and(|network| network.receive(|| now, service) > 0)
    }

    /// A request of each guest. Whether there was one.
    fn take_requests(&mut self) -> bool {
        let (mut moved, now) = (false, Instant::now());
        for at in 0..self.guests.len() {
            let guest = &mut self.guests[at];
            guest.send_late();
            moved |= guest.end_release();
            if let Some((_, position)) = guest.waiting
                && self.busy.left(guest.maps.account(), now).is_none()
                && guest.number.is_none_or(|number| self.service.has_taken(number, position))
                && let Some((request, _)) = guest.waiting.take()
            {
                self.answer(at, request);
                moved = true;
                continue;
            }
            match guest.take(&self.busy, now) {
                Ok(None) => {}
                Ok(Some(request)) => {
                    // The control page and the ring of work are two ways: a request comes behind what was posted before it.
                    let position = guest.number.and_then(|number| self.service.position_of_work(number));
                    match position {
                        Some(position) => guest.waiting = Some((request, position)),
                        None => self.answer(at, request),
                    }
                    moved = true;
                }
                Err(_) => guest.is_over = true,
            }
        }
        moved
    }

    fn answer(&mut self, at: usize, request: Request) {
        let from = self.guests[at].address;
        let done = match right_for(&request) {
            Some(right) if !self.limits.rights.has(right) => Err(Errno::PERM.raw_os_error()),
            _ => match request {
                Request::Connect(to) if self.is_outside(to) => match self.ask_outside(from, to) {
                    // It is answered when the other end has.
                    Ok(None) => return,
                    Ok(Some(words)) => Ok(words),
                    Err(errno) => Err(errno),
                },
                Request::Connect(to) => self.connect(from, to),
                Request::Disconnect(to) => {
                    self.disconnect(from, to);
                    Ok(Vec::new())
                }
                Request::Tell(to, bytes) => self.pass(from, to, bytes),
                Request::Engine(wire::Request::Resolve(gid, asks)) => self.resolve(from, gid, asks),
                Request::Engine(wire::Request::Offer(service)) => self.offer(from, service),
                Request::Count => Ok(self.guests[at].count(&mut self.service, self.port.as_ref()).words()),
                other => {
                    if let Request::Engine(wire::Request::DestroyPair(qpn)) = &other {
                        self.say_farewell(from, *qpn);
                    }
                    let mut means = Means {
                        service: &mut self.service,
                        books: &mut self.books,
                        busy: &mut self.busy,
                        notices: &mut self.notices,
                        limits: &self.limits,
                        mac: self.hosts.mac(),
                        address: (self.hosts.gid(), self.hosts.mtu),
                        guests: self.guests.len(),
                    };
                    match self.guests[at].answer(&mut means, other) {
                        Some(done) => done,
                        None => return,
                    }
                }
            },
        };
        let guest = &mut self.guests[at];
        guest.is_over |= !guest.send_answer(done);
    }

    /// Bells are rung, and who is over is removed.
    fn after_turn(&mut self) {
        while let Some(PutOut { number, left, .. }) = self.service.take_put_out() {
            match self.guests.iter_mut().find(|guest| guest.number == Some(number)) {
                Some(guest) => (guest.is_over, guest.number, guest.left) = (true, None, left),
                None => self.closer.close(left),
            }
        }
        while let Some(number) = self.service.take_bell() {
            if let Some(guest) = self.guests.iter_mut().find(|guest| guest.number == Some(number)) {
                guest.maps.ring();
            }
        }
        while let Some(at) = self.guests.iter().position(|guest| guest.is_over) {
            self.remove(at, true);
        }
    }

    /// Nobody reaches it any more when this returns, and others are told. What it had is unmapped soon.
    fn remove(&mut self, at: usize, was_put_out: bool) {
        let guest = self.guests.swap_remove(at);
        let counts = guest.count(&mut self.service, self.port.as_ref());
        let address = guest.address;
        // Those that were connected with it are told first: then nothing of them waits for it.
        self.forget(address, guest.opening);
        if let Some(port) = &mut self.port {
            port.remove(address);
        }
        let now = self.now();
        let left = guest.number.and_then(|number: Number| self.service.leave(now, number));
        if let Some(door) = self.doors.get_mut(guest.door) {
            door.leave(guest.maps.place());
        }
        self.reports.push(Report::Left { name: guest.maps.name().to_owned(), address, was_put_out, counts });
        self.graves.extend(guest.bury(left, &mut self.books));
    }

    /// Whether there are threads for all that is to be closed.
    fn closes(&mut self) -> bool {
        let mut closes = self.closer.try_again();
        while closes && let Some(grave) = self.graves.front_mut() {
            closes = grave.try_again();
            if closes {
                self.graves.pop_front();
            }
        }
        closes
    }

    /// Waits until something comes by a door, a bell or the port, at most so long, and hears it.
    fn look(&mut self, most: Duration, ports: &[OwnedFd]) {
        let closes = self.closes();
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        for guest in &self.guests {
            let bell = guest.maps.bell();
            // The bell stands for what is missing.
            let life = guest.maps.life().map_or(PollFd::from_borrowed_fd(bell, PollFlags::empty()), |life| {
                PollFd::from_borrowed_fd(life, PollFlags::IN | PollFlags::RDHUP)
            });
            fds.extend([watch(bell), life]);
        }
        if closes && !self.closer.waits_for(MOST_CLOSING) {
            fds.extend(self.doors.iter_mut().flat_map(|door| door.fds()).map(watch));
        }
        let doors_end = fds.len();
        fds.extend(ports.iter().map(|port| watch(port.as_fd())));
        let wait = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        if !matches!(poll(&mut fds, Some(&wait)), Ok(1..)) {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let (of_guests, of_doors) = ready[..doors_end].split_at(2 * self.guests.len());
        let (mut came, mut ended) = (Vec::new(), Vec::new());
        for (guest, ready) in self.guests.iter_mut().zip(of_guests.chunks(2)) {
            if ready[0] {
                guest.maps.hear();
            }
            if ready[0] && !guest.control.guest_lives() || ready[1] && guest.maps.has_ended() {
                ended.push(guest.address);
            }
        }
        if of_doors.contains(&true) {
            self.look_at_doors(&mut came, &mut ended);
        }
        for address in ended {
            if let Some(at) = self.guests.iter().position(|guest| guest.address == address) {
                self.remove(at, false);
            }
        }
        // They may have the places of those that have gone.
        came.into_iter().for_each(|(door, arrived)| self.let_in(door, arrived));
    }

    /// Who has come, by which door, and who has gone.
    fn look_at_doors(&mut self, came: &mut Vec<(usize, Arrived)>, ended: &mut Vec<Address>) {
        for (number, door) in self.doors.iter_mut().enumerate() {
            for event in door.look() {
                match event {
                    Event::Came(arrived) => came.push((number, arrived)),
                    Event::TurnedAway(why, line) => self.notices.turn_away(why, || line),
                    Event::Noted(line) => self.notices.warn(|| line),
                    Event::Went(place) => {
                        // Another door may have the same place.
                        let is_it = |guest: &&Guest| guest.door == number && guest.maps.place() == place;
                        ended.extend(self.guests.iter().filter(is_it).map(|guest| guest.address));
                    }
                }
            }
        }
    }

    fn let_in(&mut self, door: usize, Arrived { maps, control }: Arrived) {
        let (name, place) = (maps.name().to_owned(), maps.place());
        let address = self.port.as_ref().map_or(maps.address(), |port| port.number(maps.address()));
        let is_taken = self.guests.iter().any(|guest| guest.address == address);
        let account = maps.account();
        let refused = if is_taken {
            (Why::Crowded, format!("another guest has the address {address}"))
        } else if self.guests.len() >= self.limits.guests {
            (Why::Crowded, "there are as many guests as there may be (--guests)".to_owned())
        } else if let Err(error) = self.books.check(account, &Amounts::default(), &PRICE) {
            (Why::Crowded, error.to_string())
        } else {
            match BackendSide::new(&control) {
                Ok(side) => {
                    self.books.add(account, &PRICE);
                    self.reports.push(Report::Came { name, address });
                    if let Some(port) = &mut self.port {
                        port.add(address);
                    }
                    return self.guests.push(Guest::new(door, maps, address, side));
                }
                Err(error @ Error::Version) => (Why::Greeting, error.to_string()),
                Err(error) => (Why::Memory, error.to_string()),
            }
        };
        if let Some(door) = self.doors.get_mut(door) {
            door.leave(place);
        }
        self.closer.close((maps, control));
        let (why, text) = refused;
        self.notices.turn_away(why, || format!("{name} was turned away: {text}"));
    }

    fn sleep(&mut self, next: Option<Moment>) {
        let (mut nothing, mut most, now) = (true, LONGEST, Instant::now());
        for guest in &mut self.guests {
            let is_empty = guest.control.requests.doze();
            match guest.held_for(&self.busy, now) {
                // What it asks for has to wait, and nobody rings when that is over.
                Some(held) => most = most.min(held),
                None => nothing &= is_empty,
            }
        }
        let may_go_on = |guest: &Guest| self.busy.left(guest.maps.account(), now).is_none();
        let is_busy = self.guests.iter().any(|guest| guest.waiting.is_some() && may_go_on(guest));
        if let Some(next) = next {
            most = most.min(Duration::from_nanos(next.nanoseconds().saturating_sub(self.now().nanoseconds())));
        }
        if nothing && !is_busy && self.service.doze() {
            self.sleep_by_ports(most);
            self.service.awake();
        }
        self.guests.iter().for_each(|guest| guest.control.requests.awake());
    }

    /// Sleeps until something comes, also by the ports.
    fn sleep_by_ports(&mut self, most: Duration) {
        let now = self.now();
        let Self { port, hosts, service, .. } = self;
        let mut wakes = Vec::new();
        let by_port = port.as_mut().map_or(Doze::Ended, |port| port.doze(now, service));
        let by_network = hosts.network.as_mut().map_or(Doze::Ended, |network| network.doze(|| now, service));
        let (mut most, mut is_awake) = (most, false);
        for doze in [by_port, by_network] {
            match doze {
                Doze::Awake => is_awake = true,
                Doze::Wakes(fd) => wakes.push(fd),
                Doze::Silent => most = most.min(SILENT),
                Doze::Ended => {}
            }
        }
        if !is_awake {
            self.look(most, &wakes);
        }
        if let Some(port) = &mut self.port {
            port.awake();
        }
        if let Some(network) = &mut self.hosts.network {
            network.awake();
        }
    }
}
