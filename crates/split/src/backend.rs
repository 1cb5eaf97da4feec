//! The backend: it lets programs of guests in, answers what stands in their control pages, and lets the engine work for them.
//!
//! One thread, which never waits for a guest: one request of each at a look, answers without waiting, and what a guest has left is unmapped by
//! another thread. It turns while something moves, and sleeps otherwise.

use crate::Address;
use crate::guest::{Guest, GuestCounts, Rights, right_for};
use crate::meeting::Link;
use crate::message::{Message, Request};
use crate::transport::{Arrived, Door, Event};
use millrace_rdma::engine::Options;
use millrace_rdma::memory::Refused;
use millrace_rdma::number::{Gid, Moment, Qpn};
use millrace_rdma::served::{Number, PutOut, Quota, Service};
use millrace_rdma::transport::{Out, Sent};
use millrace_rdma::wire::{Headers, Path};
use millrace_served::Closer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
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

/// Frames lead nowhere: what is meant for other hosts ends when its retries are over.
struct Nowhere;

impl Out for Nowhere {
    fn packet<F>(&mut self, _: &Path, _: Qpn, _: &Headers, _: usize, _: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        Sent::Taken
    }
}

fn watch(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// An engine for programs in guests.
pub struct Backend {
    pub(crate) service: Service,
    pub(crate) guests: Vec<Guest>,
    pub(crate) links: Vec<Link>,
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
    /// With these doors.
    pub fn new(limits: Limits, doors: Vec<Box<dyn Door>>) -> Self {
        let seed = RandomState::new().hash_one(std::process::id());
        let [a, b, c, d, ..] = seed.to_ne_bytes();
        let mac = Address([0x02, b'B', a, b, c, d]);
        // Of the network for measurements (RFC 2544): nobody else's.
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 19, 255, 253]);
        let options = Options { datagram_mtu: 4096, seed, ..Options::default() };
        Self {
            service: Service::new(options, mac.0, &[gid], limits.engine),
            guests: Vec::new(),
            links: Vec::new(),
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
            self.look(Duration::ZERO);
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
        self.reports.drain(..).for_each(|told| report(&told));
    }

    /// Programs that had no place, or spoke another version.
    pub fn turned_away(&self) -> u64 {
        self.turned_away
    }

    fn now(&self) -> Moment {
        Moment::new(self.began.elapsed().as_nanos() as u64)
    }

    /// Turns for a while. When the next turn is to be.
    fn turns(&mut self, until: &mut Instant) -> Option<Moment> {
        let began = Instant::now();
        loop {
            let asked = self.take_requests();
            let turn = self.service.turn(self.now(), &mut Nowhere);
            self.after_turn();
            let now = Instant::now();
            if asked || turn.moved {
                *until = now + LINGER;
            } else {
                // Guests may need this core.
                std::thread::yield_now();
            }
            if now >= *until || now - began >= LOOK {
                return turn.next;
            }
        }
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
        let guest = &mut self.guests[at];
        let from = guest.address;
        let done = match right_for(&request) {
            Some(right) if !self.limits.rights.has(right) => Err(Errno::PERM.raw_os_error()),
            _ => match request {
                Request::Connect(to) => self.connect(from, to),
                Request::Disconnect(to) => {
                    self.disconnect(from, to);
                    Ok(Vec::new())
                }
                Request::Tell(to, bytes) => self.pass(from, to, bytes),
                other => guest.answer(&mut self.service, &self.limits, self.mac, other),
            },
        };
        let guest = &mut self.guests[at];
        guest.refused += u64::from(done.is_err());
        guest.is_over |= !guest.send(&Message::Answer(done));
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
        let counts = guest.count(&mut self.service);
        let address = guest.address;
        // Those that were connected with it are told first: then nothing of them waits for it.
        self.forget(address);
        let now = self.now();
        let left = guest.number.and_then(|number: Number| self.service.leave(now, number));
        let place = guest.maps.place();
        self.doors.iter_mut().for_each(|door| door.leave(place));
        self.reports.push(Report::Left { name: guest.maps.name().to_owned(), address, was_put_out, counts });
        guest.bury(left);
    }

    /// Waits until something comes by a door or a bell, at most so long, and hears it.
    fn look(&mut self, most: Duration) {
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
        let wait = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        if !matches!(poll(&mut fds, Some(&wait)), Ok(1..)) {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let (of_guests, of_doors) = ready.split_at(2 * self.guests.len());
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
        let (name, address, place) = (maps.name().to_owned(), maps.address(), maps.place());
        let is_taken = self.guests.iter().any(|guest| guest.address == address);
        let guest = (self.guests.len() < self.limits.guests && !is_taken).then(|| Guest::new(maps, &control));
        match guest {
            Some(Ok(guest)) => {
                self.reports.push(Report::Came { name, address });
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
            self.look(most);
            self.service.awake();
        }
        self.guests.iter().for_each(|guest| guest.control.requests.awake());
    }
}
