//! A program in a guest, as the backend sees it: its control page, its memory, and what it has in the engine.

use crate::busy::Busy;
use crate::counts::GuestCounts;
use crate::meeting::Allowance;
use crate::message::{Message, Request, Welcome};
use crate::notices::Notices;
use crate::page::BackendSide;
use crate::port::{Port, PortCounts};
use crate::run::Run;
use crate::transport::Maps;
use crate::{Address, Error, Limits, PAGE};
use millrace_dma::{Access as Reach, Domain, Iova, MapError, Pinned, UnmapError, Window};
use millrace_rdma::memory::ProtectionDomain;
use millrace_rdma::number::{Gid, Key};
use millrace_rdma::served::{Amounts, Books, Left, Number, SHARED_LEN, ServeError, Service, queue_lines, ring_len};
use millrace_rdma::transport::Init;
use millrace_rdma::work::Access;
use millrace_ring::lines::{MOST_WORDS, Malformed};
use millrace_served::Closer;
use millrace_served::answer::{Answer, answer};
use millrace_served::network::Asked;
use millrace_served::wire::{self, Words};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What waits for a guest that does not read: more than the ends of all its connections, which are told unasked.
const MOST_LATE: usize = 2 * crate::meeting::MOST_PEERS;
/// How soon it is looked again whether something that keeps a guest's requests waiting is over.
const HELD: Duration = Duration::from_millis(5);
/// The same of memory that is being unmapped.
const RELEASED: Duration = Duration::from_millis(1);

/// What of the backend requests need.
pub(crate) struct Means<'b> {
    pub service: &'b mut Service,
    pub books: &'b mut Books,
    pub busy: &'b mut Busy,
    pub notices: &'b mut Notices,
    pub limits: &'b Limits,
    pub mac: Address,
    /// Of queue pairs that guests make themselves, and most bytes of payload of their packets.
    pub address: (Gid, u16),
    /// Guests that there are.
    pub guests: usize,
}

/// Memory that is mapped.
struct Mapped {
    pages: u32,
    /// Another thread drops it, after all else that lies in this memory.
    window: Window,
    price: Amounts,
}

/// Memory that is being unmapped.
struct Releasing {
    is_done: Arc<AtomicBool>,
    pages: u32,
}

/// What a program costs its user when it comes: its place, and its control page.
pub(crate) const PRICE: Amounts = Amounts { domains: 1, regions: 1, bytes: PAGE as u64, ..NOTHING };
const NOTHING: Amounts = Amounts {
    domains: 0,
    regions: 0,
    bytes: 0,
    queues: 0,
    completions: 0,
    shared: 0,
    pairs: 0,
    queue_bytes: 0,
    services: 0,
};

/// A program in a guest.
pub(crate) struct Guest {
    /// By which door it has come.
    pub door: usize,
    pub maps: Box<dyn Maps>,
    pub control: BackendSide,
    pub address: Address,
    /// Its number in the engine, when it has joined.
    pub number: Option<Number>,
    /// What the engine has left of it when it has put it out.
    pub left: Option<Left>,
    /// Of which kind queue pairs of its endpoint are.
    pub open: Option<Init>,
    /// Which opening of its endpoint this is, for endpoints on the wire: a random number.
    pub opening: u64,
    /// How often it may connect with others, and others on the wire with it.
    pub connects: Allowance,
    pub asked: Allowance,
    /// The number of the request that is being answered.
    pub request: u64,
    /// The endpoint on the wire that is asked for a connection with it, for which it waits.
    pub asks: Option<Address>,
    /// Addresses of other hosts that it has asked for.
    pub asked_for: Asked,
    /// A request that waits until what was posted before it is taken, up to that position.
    pub waiting: Option<(Request, u64)>,
    pub requests: u64,
    pub refused: u64,
    pub is_over: bool,
    /// What its addresses are: granted memory, and nothing else.
    domain: Domain,
    /// Memory that is being granted: pages, and those that are known.
    granting: Option<(u32, Vec<u64>)>,
    /// What is mapped, by where it begins.
    mapped: HashMap<u64, Mapped>,
    releasing: Option<Releasing>,
    /// Pages that are mapped, also of what is being unmapped.
    pages: u64,
    /// What its user pays for it.
    paid: Amounts,
    faults: u64,
    /// What rings and regions lie in: it is not unmapped under them.
    rings: Option<Pinned>,
    queues: HashMap<u32, Pinned>,
    regions: HashMap<Key, Pinned>,
    /// What it has no room for.
    late: VecDeque<Vec<u64>>,
    closer: Closer,
    words: Box<[u64; MOST_WORDS]>,
}

/// The number of Linux for why not.
type Done = Result<Vec<u64>, i32>;

fn no(errno: Errno) -> i32 {
    errno.raw_os_error()
}

/// What an answer of the engine says behind its head, which says that all went well.
pub(crate) fn said(words: &Words) -> Vec<u64> {
    words.bytes().as_chunks::<8>().0.iter().skip(1).map(|word| u64::from_le_bytes(*word)).collect()
}

/// EAGAIN where there is no room, and there may be some when what its user has given up of that is closed.
pub(crate) fn errno_of(service: &Service, number: Number, error: ServeError) -> i32 {
    match error {
        ServeError::Crowded { what } if service.is_owed(number, what) => no(Errno::AGAIN),
        error => error.errno(),
    }
}

impl Guest {
    /// One that has been paid for ([`PRICE`]).
    pub fn new(door: usize, maps: Box<dyn Maps>, address: Address, control: BackendSide) -> Self {
        let opening = RandomState::new().hash_one(maps.place()) | 1;
        Self {
            door,
            maps,
            control,
            address,
            number: None,
            left: None,
            open: None,
            opening,
            connects: Allowance::default(),
            asked: Allowance::default(),
            request: 0,
            asks: None,
            asked_for: Asked::default(),
            waiting: None,
            requests: 0,
            refused: 0,
            is_over: false,
            domain: Domain::new(),
            granting: None,
            mapped: HashMap::new(),
            releasing: None,
            pages: 0,
            paid: PRICE,
            faults: 0,
            rings: None,
            queues: HashMap::new(),
            regions: HashMap::new(),
            late: VecDeque::new(),
            closer: Closer::default(),
            words: Box::new([0; MOST_WORDS]),
        }
    }

    /// The next request, if there is one and none waits.
    pub fn take(&mut self, busy: &Busy, now: Instant) -> Result<Option<Request>, Malformed> {
        if self.waiting.is_some() || self.asks.is_some() || self.held_for(busy, now).is_some() {
            return Ok(None);
        }
        let Some(len) = self.control.requests.take(&mut self.words)? else { return Ok(None) };
        self.control.requests.give_back();
        self.requests += 1;
        let (number, request) = Request::read(&self.words[..len]).ok_or(Malformed)?;
        self.request = number;
        Ok(Some(request))
    }

    /// How soon it is to be looked whether its requests are taken again; `None`: they are. Nothing rings when that changes.
    pub fn held_for(&mut self, busy: &Busy, now: Instant) -> Option<Duration> {
        if let Some(left) = busy.left(self.maps.account(), now) {
            return Some(left);
        }
        // There may have been no thread for what is being unmapped, too.
        let is_stuck = !self.closer.try_again();
        if self.releasing.is_some() {
            return Some(if is_stuck { HELD } else { RELEASED });
        }
        let is_held = is_stuck || !self.late.is_empty() || self.closer.is_full();
        is_held.then_some(HELD)
    }

    /// Answers a request whose memory is unmapped by now. Whether there was one.
    pub fn end_release(&mut self) -> bool {
        // Acquire pairs with the Release of the thread that unmaps.
        let done = self.releasing.take_if(|releasing| releasing.is_done.load(Ordering::Acquire));
        let Some(Releasing { pages, .. }) = done else { return false };
        self.pages -= u64::from(pages);
        self.is_over |= !self.send_answer(Ok(Vec::new()));
        true
    }

    /// Answers the request that was taken last. Whether there was room for it, now or soon.
    pub fn send_answer(&mut self, done: Result<Vec<u64>, i32>) -> bool {
        self.refused += u64::from(done.is_err());
        self.send(&Message::Answer(self.request, done))
    }

    /// Sends an answer, or tells something. Whether there was room for it, now or soon.
    pub fn send(&mut self, message: &Message) -> bool {
        let words = message.write();
        let is_sent = self.late.is_empty() && self.control.answers.send(&words);
        let has_room = is_sent || self.late.len() < MOST_LATE;
        if !is_sent && has_room {
            self.late.push_back(words);
        }
        if is_sent && self.control.answers.must_wake() {
            self.maps.ring();
        }
        has_room
    }

    /// What had no room goes when there is some. Whether some is left.
    pub fn send_late(&mut self) -> bool {
        let before = self.late.len();
        while let Some(words) = self.late.front()
            && self.control.answers.send(words)
        {
            self.late.pop_front();
        }
        if self.late.len() < before && self.control.answers.must_wake() {
            self.maps.ring();
        }
        !self.late.is_empty()
    }

    /// Whether something of what it was told is unread, so that it is to be told no more.
    pub fn is_deaf(&self) -> bool {
        !self.late.is_empty()
    }

    /// Does what concerns nobody else. `None`: it is answered later.
    pub fn answer(&mut self, means: &mut Means<'_>, request: Request) -> Option<Done> {
        if let Request::Release(at) = request {
            return self.release(means.books, at);
        }
        let service = &mut *means.service;
        Some(match request {
            Request::Hello => {
                let (gid, mtu) = means.address;
                Ok(Welcome { address: self.address, mac: means.mac, gid, mtu, pages: means.limits.pages }.write())
            }
            Request::Grant { pages, first, runs } => self.grant(means, (pages, first), &runs),
            Request::Join(at) => self.join(service, at),
            Request::CreateQueue(depth, at) => self.create_queue(service, depth, at),
            Request::Register { domain, access, at, len, base } => {
                self.register(service, domain, access, (at, len, base))
            }
            Request::Reregister { key, domain, access, bytes } => {
                self.reregister(service, key, (domain, access), bytes)
            }
            Request::ResizeQueue(queue, depth, at) => self.resize_queue(service, queue, depth, at),
            Request::Engine(request) => self.engine(service, request),
            Request::Open(init) => {
                self.open = Some(init);
                Ok(Vec::new())
            }
            Request::Release(_) | Request::Connect(_) | Request::Disconnect(_) | Request::Tell(..) | Request::Count => {
                Err(no(Errno::OPNOTSUPP))
            }
        })
    }

    /// Pages of memory, some at a time; the last ones have all of them mapped.
    fn grant(&mut self, means: &mut Means<'_>, (pages, first): (u32, u32), runs: &[Run]) -> Done {
        let limits = means.limits;
        // One that has given up in the middle begins anew: what it named before belongs to other memory.
        let (all, mut known) = self.granting.take().filter(|_| first > 0).unwrap_or((pages, Vec::new()));
        let is_next = all == pages && known.len() == first as usize;
        // Counted before they are taken apart: a few words name many.
        let count: u64 = runs.iter().map(|run| run.count()).sum();
        if !is_next || pages == 0 || known.len() as u64 + count > pages.into() {
            return Err(no(Errno::INVAL));
        }
        if self.pages + u64::from(pages) > limits.pages || self.mapped.len() >= limits.pieces {
            return Err(no(Errno::DQUOT));
        }
        known.extend(runs.iter().flat_map(|run| run.references()));
        if known.len() < pages as usize {
            let count = known.len() as u64;
            self.granting = Some((pages, known));
            return Ok(vec![count, 0]);
        }
        let regions = self.maps.mappings(&known);
        let bytes = if regions > 0 { u64::from(pages) * PAGE as u64 } else { 0 };
        let price = Amounts { regions, bytes, ..NOTHING };
        means.books.check(self.maps.account(), &self.paid, &price).map_err(|error| error.errno())?;
        let began = Instant::now();
        let mapped = self.maps.map(&known);
        means.busy.pay(self.maps.account(), began.elapsed(), means.guests, Instant::now());
        let window = mapped.map_err(|error| {
            let guest = self.maps.name();
            means.notices.warn(|| format!("memory that {guest} has granted is refused: {error}"));
            match error {
                Error::System { source, .. } => no(source),
                _ => no(Errno::FAULT),
            }
        })?;
        let at = self.domain.map(window.clone(), Reach::ReadWrite, None).map_err(|error| match error {
            MapError::ReadOnly => no(Errno::ACCESS),
            _ => no(Errno::NOMEM),
        })?;
        means.books.add(self.maps.account(), &price);
        self.paid = self.paid.plus(&price);
        self.mapped.insert(at.get(), Mapped { pages, window, price });
        self.pages += u64::from(pages);
        Ok(vec![u64::from(pages), at.get()])
    }

    /// Answered when another thread has unmapped it: then it is nobody's any more, and paid for no longer.
    fn release(&mut self, books: &mut Books, at: Iova) -> Option<Done> {
        // Nobody has an IOTLB of this domain that would have to come round.
        if let Err(error) = self.domain.unmap(at, Duration::ZERO, || ()) {
            return Some(Err(match error {
                UnmapError::NotMapped(_) => no(Errno::NOENT),
                UnmapError::InUse(_) | UnmapError::Timeout(_) => no(Errno::BUSY),
            }));
        }
        let Some(Mapped { pages, window, price }) = self.mapped.remove(&at.get()) else { return Some(Ok(Vec::new())) };
        self.paid = self.paid.minus(&price);
        let debt = books.owe(self.maps.account(), &price);
        let is_done = Arc::new(AtomicBool::new(false));
        self.releasing = Some(Releasing { is_done: Arc::clone(&is_done), pages });
        // What is left of a region, or of a ring, in it goes before, by the same thread.
        self.closer.run(1, move || {
            drop(window);
            drop(debt);
            // Release pairs with the Acquire in `end_release`.
            is_done.store(true, Ordering::Release);
        });
        None
    }

    fn pin(&mut self, at: Iova, len: usize) -> Result<Pinned, i32> {
        self.domain.resolve(at, len, Reach::ReadWrite).map_err(|_| {
            self.faults += 1;
            no(Errno::FAULT)
        })
    }

    fn number(&self) -> Result<Number, i32> {
        self.number.ok_or(no(Errno::NOTCONN))
    }

    fn join(&mut self, service: &mut Service, at: Iova) -> Done {
        if self.number.is_some() {
            return Err(no(Errno::ISCONN));
        }
        let rings = self.pin(at, SHARED_LEN)?;
        let entered = service.enter_at(self.maps.account(), rings.window());
        self.number = Some(entered.map_err(|error| error.errno())?);
        self.rings = Some(rings);
        Ok(Vec::new())
    }

    fn create_queue(&mut self, service: &mut Service, depth: u32, at: Iova) -> Done {
        let number = self.number()?;
        let ring = self.pin_ring(depth, at)?;
        let made = service.create_queue_at(number, depth, ring.window());
        let queue = made.map_err(|error| errno_of(service, number, error))?;
        self.queues.insert(queue, ring);
        Ok(vec![queue.into()])
    }

    fn resize_queue(&mut self, service: &mut Service, queue: u32, depth: u32, at: Iova) -> Done {
        let number = self.number()?;
        let ring = self.pin_ring(depth, at)?;
        let left = service.resize_queue_at(number, queue, depth, ring.window());
        self.closer.close(left.map_err(|error| errno_of(service, number, error))?);
        self.queues.insert(queue, ring);
        Ok(Vec::new())
    }

    fn pin_ring(&mut self, depth: u32, at: Iova) -> Result<Pinned, i32> {
        // More than any engine allows; a number of lines that is no power of two otherwise.
        if depth > 1 << 24 {
            return Err(no(Errno::INVAL));
        }
        self.pin(at, ring_len(queue_lines(depth)))
    }

    fn pin_memory(&mut self, at: Iova, len: u64) -> Result<Pinned, i32> {
        self.pin(at, usize::try_from(len).map_err(|_| no(Errno::INVAL))?)
    }

    fn register(
        &mut self,
        service: &mut Service,
        domain: ProtectionDomain,
        access: Access,
        (at, len, base): (Iova, u64, u64),
    ) -> Done {
        let number = self.number()?;
        let memory = self.pin_memory(at, len)?;
        let made = service.register_window(number, domain, (memory.window().clone(), 1), Some(base), access);
        let made = made.map_err(|error| errno_of(service, number, error))?;
        self.regions.insert(made.lkey, memory);
        Ok(vec![made.lkey.value().into(), made.rkey.value().into()])
    }

    fn reregister(
        &mut self,
        service: &mut Service,
        key: Key,
        (domain, access): (Option<ProtectionDomain>, Option<Access>),
        bytes: Option<(Iova, u64, u64)>,
    ) -> Done {
        let number = self.number()?;
        let memory = bytes.map(|(at, len, _)| self.pin_memory(at, len)).transpose()?;
        let other = memory.as_ref().zip(bytes).map(|(memory, (.., base))| ((memory.window().clone(), 1), base));
        let made = service.reregister(number, key, other, domain, access);
        let (made, remains) = made.map_err(|error| errno_of(service, number, error))?;
        self.closer.close(remains);
        let before = self.regions.remove(&key);
        self.regions.extend(memory.or(before).map(|memory| (made.lkey, memory)));
        Ok(vec![made.lkey.value().into(), made.rkey.value().into()])
    }

    /// A request of the engine that needs no memory of the guest.
    fn engine(&mut self, service: &mut Service, request: wire::Request) -> Done {
        use wire::Request as R;
        let number = self.number()?;
        match request {
            R::Hello | R::Show(_) | R::Register(_) | R::Reregister(_) | R::CreateQueue(_) | R::ResizeQueue(..) => {
                return Err(no(Errno::OPNOTSUPP));
            }
            _ => {}
        }
        let Answer { words, remains, .. } =
            answer(service, number, request, &[]).map_err(|error| errno_of(service, number, error))?;
        match request {
            R::Deregister(key) => drop(self.regions.remove(&key)),
            R::DestroyQueue(queue) => drop(self.queues.remove(&queue)),
            _ => {}
        }
        if let Some(remains) = remains {
            self.closer.close(remains);
        }
        Ok(said(&words))
    }

    pub fn count(&self, service: &mut Service, port: Option<&Port>) -> GuestCounts {
        let counters = service.counters();
        let framed = port.map_or(PortCounts::default(), |port| port.counts);
        GuestCounts {
            transport: self.maps.counts(),
            requests: self.requests,
            refused: self.refused,
            faults: self.faults,
            pages: self.pages,
            taken: counters.taken,
            copied: counters.copied,
            packets: counters.packets,
            frames: framed.sent + framed.received,
            port_copied: port.map_or(0, Port::copied),
        }
    }

    /// It has gone. What it had is unmapped by a thread of its own: that takes as long as it is much, and is paid for until then.
    /// `Some`: there was no such thread, and it is to be tried again.
    pub fn bury(mut self, left: Option<Left>, books: &mut Books) -> Option<Closer> {
        self.control.end();
        self.maps.ring();
        let debt = books.owe(self.maps.account(), &self.paid);
        let mut closer = core::mem::take(&mut self.closer);
        closer.run(1, move || {
            drop((left, self));
            drop(debt);
        });
        closer.is_stuck().then_some(closer)
    }
}

/// Pages of so many bytes.
pub fn pages_of(len: usize) -> Option<u32> {
    u32::try_from(len.div_ceil(PAGE)).ok().filter(|pages| *pages > 0)
}
