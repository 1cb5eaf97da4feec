//! The backend: it lets programs of guests in, answers what stands in their control pages, and lets the engine work for them.
//!
//! One thread, which never waits for a guest: one request of each at a look, answers without waiting, and what a guest has left is unmapped by
//! another thread. It turns while something moves, and sleeps otherwise.

use crate::Address;
use crate::guest::{Guest, GuestCounts, Rights, right_for};
use crate::meeting::Link;
use crate::message::Request;
use crate::outside::FarLinks;
use crate::port::{Doze, Outside, Port, PortCounts};
use crate::transport::{Arrived, Door, Event};
use millrace_rdma::engine::Options;
use millrace_rdma::number::{Gid, Moment};
use millrace_rdma::served::{Number, PutOut, Quota, Service};
use millrace_served::Closer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// How long the thread looks on after something has moved.
const LINGER: Duration = Duration::from_micros(100);
/// How often doors and bells are looked at while something moves.
const LOOK: Duration = Duration::from_micros(200);
/// The longest sleep: so late it is seen that the backend is to stop.
const LONGEST: Duration = Duration::from_millis(100);
/// How soon a guest that has no room for what it is told is looked at again.
const LATE: Duration = Duration::from_millis(5);
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
    /// Pieces of memory that one may have mapped.
    pub pieces: usize,
    /// What guests may do.
    pub rights: Rights,
    /// Objects of the engine, of each and of all.
    pub engine: Quota,
}

impl Default for Limits {
    fn default() -> Self {
        Self { guests: 64, pages: 1 << 16, pieces: 1024, rights: Rights::default(), engine: Quota::default() }
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
    pub(crate) mac: Address,
    pub(crate) gid: Gid,
    pub(crate) psn: u32,
    /// Drops what takes long.
    pub(crate) closer: Closer,
    doors: Vec<Box<dyn Door>>,
    limits: Limits,
    began: Instant,
    turned_away: u64,
    reports: Vec<Report>,
}

impl Backend {
    /// With these doors. Guests reach each other.
    pub fn new(limits: Limits, doors: Vec<Box<dyn Door>>) -> Self {
        Self::with_port(limits, doors, None)
    }

    /// The same, and with a port guests reach endpoints of SLURPoE on its wire, and are reached by them.
    pub fn with_port(limits: Limits, doors: Vec<Box<dyn Door>>, port: Option<Port>) -> Self {
        let seed = RandomState::new().hash_one(std::process::id());
        let [a, b, c, d, ..] = seed.to_ne_bytes();
        let mac = Address([0x02, b'B', a, b, c, d]);
        // Of the network for measurements (RFC 2544): nobody else's.
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 19, 255, 253]);
        let mut options = Options { datagram_mtu: 4096, seed, ..Options::default() };
        if port.is_some() {
            options.min_timeout = MIN_TIMEOUT;
        }
        Self {
            service: Service::new(options, mac.0, &[gid], limits.engine),
            guests: Vec::new(),
            links: Vec::new(),
            port,
            far: FarLinks::default(),
            mac,
            gid,
            psn: seed as u32 & 0xff_ffff,
            closer: Closer::default(),
            doors,
            limits,
            began: Instant::now(),
            turned_away: 0,
            reports: Vec::new(),
        }
    }

    /// Serves guests until it is to stop. What happens is told meanwhile.
    pub fn run(&mut self, stop: &dyn Fn() -> bool, mut report: impl FnMut(&Report)) {
        let mut until = Instant::now();
        while !stop() {
            self.look(Duration::ZERO, None);
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
        self.reports.drain(..).for_each(|told| report(&told));
    }

    /// Programs that had no place, or spoke another version.
    pub fn turned_away(&self) -> u64 {
        self.turned_away
    }

    /// What the port has counted.
    pub fn port_counts(&self) -> Option<PortCounts> {
        self.port.as_ref().map(|port| port.counts)
    }

    pub(crate) fn now(&self) -> Moment {
        Moment::new(self.began.elapsed().as_nanos() as u64)
    }

    /// Turns for a while. When the next turn is to be.
    fn turns(&mut self, until: &mut Instant) -> Option<Moment> {
        let began = Instant::now();
        loop {
            let came = self.hear_wire();
            let asked = self.take_requests();
            let turn = self.service.turn(self.now(), &mut Outside(self.port.as_mut()));
            self.after_turn();
            if let Some(port) = &mut self.port {
                port.flush();
            }
            let now = Instant::now();
            if came || asked || turn.moved {
                *until = now + LINGER;
            } else {
                // Guests may need this core.
                std::thread::yield_now();
            }
            if now >= *until || now - began >= LOOK {
                return turn.next.into_iter().chain(self.far.next_due()).min();
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

    /// A request of each guest. Whether there was one.
    fn take_requests(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.guests.len() {
            let guest = &mut self.guests[at];
            guest.send_late();
            if let Some((_, position)) = guest.waiting
                && guest.number.is_none_or(|number| self.service.has_taken(number, position))
                && let Some((request, _)) = guest.waiting.take()
            {
                self.answer(at, request);
                moved = true;
                continue;
            }
            match guest.take() {
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
                Request::Count => Ok(self.guests[at].count(&mut self.service, self.port.as_ref()).words()),
                other => self.guests[at].answer(&mut self.service, &self.limits, self.mac, other),
            },
        };
        let guest = &mut self.guests[at];
        guest.is_over |= !guest.send_answer(done);
    }

    /// Bells are rung, and who is over is removed.
    fn after_turn(&mut self) {
        while let Some(PutOut { number, left, .. }) = self.service.take_put_out() {
            self.closer.close(left);
            if let Some(guest) = self.guests.iter_mut().find(|guest| guest.number == Some(number)) {
                (guest.is_over, guest.number) = (true, None);
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

    /// All that it had is gone when this returns, and others are told.
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
        let place = guest.maps.place();
        self.doors.iter_mut().for_each(|door| door.leave(place));
        self.reports.push(Report::Left { name: guest.maps.name().to_owned(), address, was_put_out, counts });
        guest.bury(left);
    }

    /// Waits until something comes by a door, a bell or the port, at most so long, and hears it.
    fn look(&mut self, most: Duration, port: Option<&OwnedFd>) {
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        for guest in &self.guests {
            let bell = guest.maps.bell();
            // The bell stands for what is missing.
            let life = guest.maps.life().map_or(PollFd::from_borrowed_fd(bell, PollFlags::empty()), |life| {
                PollFd::from_borrowed_fd(life, PollFlags::IN | PollFlags::RDHUP)
            });
            fds.extend([watch(bell), life]);
        }
        fds.extend(self.doors.iter().flat_map(|door| door.fds()).map(watch));
        let doors_end = fds.len();
        fds.extend(port.map(|port| watch(port.as_fd())));
        let wait = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        if !matches!(poll(&mut fds, Some(&wait)), Ok(1..)) {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let (of_guests, of_doors) = ready[..doors_end].split_at(2 * self.guests.len());
        let mut ended = Vec::new();
        for (guest, ready) in self.guests.iter_mut().zip(of_guests.chunks(2)) {
            if ready[0] {
                guest.maps.hear();
            }
            if ready[0] && !guest.control.guest_lives() || ready[1] && guest.maps.has_ended() {
                ended.push(guest.address);
            }
        }
        if of_doors.contains(&true) {
            for event in self.doors.iter_mut().flat_map(|door| door.look()).collect::<Vec<_>>() {
                match event {
                    Event::Came(arrived) => self.let_in(arrived),
                    Event::Went(place) => {
                        let gone = self.guests.iter().filter(|guest| guest.maps.place() == place);
                        ended.extend(gone.map(|guest| guest.address));
                    }
                }
            }
        }
        for address in ended {
            if let Some(at) = self.guests.iter().position(|guest| guest.address == address) {
                self.remove(at, false);
            }
        }
    }

    fn let_in(&mut self, Arrived { maps, control }: Arrived) {
        let (name, place) = (maps.name().to_owned(), maps.place());
        let address = self.port.as_ref().map_or(maps.address(), |port| port.number(maps.address()));
        let is_taken = self.guests.iter().any(|guest| guest.address == address);
        let guest = (self.guests.len() < self.limits.guests && !is_taken).then(|| Guest::new(maps, address, &control));
        match guest {
            Some(Ok(guest)) => {
                self.reports.push(Report::Came { name, address });
                if let Some(port) = &mut self.port {
                    port.add(address);
                }
                self.guests.push(guest);
            }
            refused => {
                let why = match &refused {
                    Some(Err(error)) => error.to_string(),
                    _ => "there are as many guests as there may be, or its address is taken".to_owned(),
                };
                tracing::warn!(guest = name, why, "a guest was turned away");
                self.turned_away += 1;
                self.doors.iter_mut().for_each(|door| door.leave(place));
            }
        }
    }

    fn sleep(&mut self, next: Option<Moment>) {
        let nothing = self.guests.iter().all(|guest| guest.control.requests.doze());
        let is_busy = self.guests.iter().any(|guest| guest.waiting.is_some());
        let mut most = LONGEST;
        if let Some(next) = next {
            most = most.min(Duration::from_nanos(next.nanoseconds().saturating_sub(self.now().nanoseconds())));
        }
        if self.guests.iter().any(Guest::is_deaf) {
            most = most.min(LATE);
        }
        if nothing && !is_busy && self.service.doze() {
            self.sleep_by_port(most);
            self.service.awake();
        }
        self.guests.iter().for_each(|guest| guest.control.requests.awake());
    }

    /// Sleeps until something comes, also by the port.
    fn sleep_by_port(&mut self, most: Duration) {
        let now = self.now();
        let Self { port: Some(port), service, .. } = self else { return self.look(most, None) };
        match port.doze(now, service) {
            Doze::Awake => return,
            Doze::Wakes(fd) => self.look(most, Some(&fd)),
            Doze::Silent => self.look(most.min(SILENT), None),
            Doze::Ended => return self.look(most, None),
        }
        if let Some(port) = &mut self.port {
            port.awake();
        }
    }
}
