//! A program in a guest, as the backend sees it: its control page, its memory, and what it has in the engine.

use crate::meeting::Allowance;
use crate::message::{Message, Request, Welcome};
use crate::page::BackendSide;
use crate::port::{Port, PortCounts};
use crate::transport::{Counts, Maps};
use crate::{Address, Error, Limits, PAGE};
use millrace_dma::{Access as Reach, Domain, Iova, MapError, Pinned, UnmapError, Window};
use millrace_rdma::memory::ProtectionDomain;
use millrace_rdma::number::Key;
use millrace_rdma::served::{Number, SHARED_LEN, ServeError, Service, queue_lines, ring_len};
use millrace_rdma::transport::Init;
use millrace_rdma::work::Access;
use millrace_ring::lines::{MOST_WORDS, Malformed};
use millrace_served::answer::{Answer, answer};
use millrace_served::{Closer, wire};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// What waits for a guest that does not read: more than the ends of all its connections, which are told unasked.
const MOST_LATE: usize = 2 * crate::meeting::MOST_PEERS;

/// Something that a guest may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Have memory mapped, and register it.
    Memory,
    /// Open an endpoint, and connect with others.
    Connect,
    /// Tell other programs a few bytes.
    Tell,
    /// Make queue pairs, shared receive queues and windows of its own.
    Engine,
}

impl Right {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::Memory, "memory"), (Self::Connect, "connect"), (Self::Tell, "tell"), (Self::Engine, "engine")];
}

impl core::fmt::Display for Right {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(Self::ALL.iter().find(|(right, _)| right == self).map_or("", |(_, name)| name))
    }
}

/// What guests may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights(u8);

impl Default for Rights {
    fn default() -> Self {
        Self::of(&Right::ALL.map(|(right, _)| right))
    }
}

impl Rights {
    /// These and no others.
    pub fn of(rights: &[Right]) -> Self {
        Self(rights.iter().fold(0, |all, right| all | 1 << *right as u8))
    }

    /// Whether that is among them.
    pub fn has(self, right: Right) -> bool {
        self.0 >> right as u8 & 1 == 1
    }
}

/// The right that a request needs.
pub fn right_for(request: &Request) -> Option<Right> {
    match request {
        Request::Hello | Request::Count => None,
        Request::Grant { .. } | Request::Release(_) | Request::Join(_) | Request::Register { .. } => {
            Some(Right::Memory)
        }
        Request::CreateQueue(..) => None,
        // To make or change something of its own; what is told or ended needs no right.
        Request::Engine(request) => match request {
            wire::Request::CreatePair(_)
            | wire::Request::ModifyPair(..)
            | wire::Request::CreateShared(..)
            | wire::Request::CreateWindow(..) => Some(Right::Engine),
            _ => None,
        },
        Request::Open(_) | Request::Connect(_) | Request::Disconnect(_) => Some(Right::Connect),
        Request::Tell(..) => Some(Right::Tell),
    }
}

/// What the backend has counted for a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestCounts {
    /// What the transport took at this side.
    pub transport: Counts,
    /// Requests of its control page.
    pub requests: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Addresses that were not in its domain.
    pub faults: u64,
    /// Pages that are mapped.
    pub pages: u64,
    /// Messages that all guests have posted.
    pub taken: u64,
    /// Bytes that the engine has copied for all guests, from one to another, once.
    pub copied: u64,
    /// Packets between guests of which the engine has made copies on the way, for all of them.
    pub packets: u64,
    /// Frames that went out by the port and came in by it, for all guests.
    pub frames: u64,
    /// Bytes that were copied between guests' memory, frames and the port, for all of them.
    pub port_copied: u64,
}

impl GuestCounts {
    /// In the order in which they stand in an answer.
    pub fn words(&self) -> Vec<u64> {
        let Self { transport, requests, refused, faults, pages, taken, copied, packets, frames, port_copied } = *self;
        [&transport.words()[..], &[requests, refused, faults, pages, taken, copied, packets, frames, port_copied]]
            .concat()
    }

    /// The other way round.
    pub fn read(words: &[u64]) -> Option<Self> {
        let (transport, &[requests, refused, faults, pages, taken, copied, packets, frames, port_copied]) =
            words.split_first_chunk::<5>()?
        else {
            return None;
        };
        let transport = Counts::of_words(*transport);
        Some(Self { transport, requests, refused, faults, pages, taken, copied, packets, frames, port_copied })
    }

    /// What was added since; of pages, those that are mapped.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            transport: self.transport.since(&before.transport),
            requests: self.requests.saturating_sub(before.requests),
            refused: self.refused.saturating_sub(before.refused),
            faults: self.faults.saturating_sub(before.faults),
            pages: self.pages,
            taken: self.taken.saturating_sub(before.taken),
            copied: self.copied.saturating_sub(before.copied),
            packets: self.packets.saturating_sub(before.packets),
            frames: self.frames.saturating_sub(before.frames),
            port_copied: self.port_copied.saturating_sub(before.port_copied),
        }
    }
}

/// A program in a guest.
pub(crate) struct Guest {
    pub maps: Box<dyn Maps>,
    pub control: BackendSide,
    pub address: Address,
    /// Its number in the engine, when it has joined.
    pub number: Option<Number>,
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
    /// A request that waits until what was posted before it is taken, up to that position.
    pub waiting: Option<(Request, u64)>,
    pub requests: u64,
    pub refused: u64,
    pub is_over: bool,
    /// What its addresses are: granted memory, and nothing else.
    domain: Domain,
    /// Memory that is being granted: pages, and those that are known.
    granting: Option<(u32, Vec<u32>)>,
    /// Pages of what is mapped, by where it begins.
    mapped: HashMap<u64, u32>,
    pages: u64,
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

impl Guest {
    pub fn new(maps: Box<dyn Maps>, address: Address, control: &Window) -> Result<Self, Error> {
        let opening = RandomState::new().hash_one(maps.place()) | 1;
        Ok(Self {
            maps,
            control: BackendSide::new(control)?,
            address,
            number: None,
            open: None,
            opening,
            connects: Allowance::default(),
            asked: Allowance::default(),
            request: 0,
            asks: None,
            waiting: None,
            requests: 0,
            refused: 0,
            is_over: false,
            domain: Domain::new(),
            granting: None,
            mapped: HashMap::new(),
            pages: 0,
            faults: 0,
            rings: None,
            queues: HashMap::new(),
            regions: HashMap::new(),
            late: VecDeque::new(),
            closer: Closer::default(),
            words: Box::new([0; MOST_WORDS]),
        })
    }

    /// The next request, if there is one and none waits.
    pub fn take(&mut self) -> Result<Option<Request>, Malformed> {
        if self.waiting.is_some() || self.asks.is_some() || !self.late.is_empty() {
            return Ok(None);
        }
        let Some(len) = self.control.requests.take(&mut self.words)? else { return Ok(None) };
        self.control.requests.give_back();
        self.requests += 1;
        let (number, request) = Request::read(&self.words[..len]).ok_or(Malformed)?;
        self.request = number;
        Ok(Some(request))
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

    /// Does what concerns nobody else.
    pub fn answer(&mut self, service: &mut Service, limits: &Limits, mac: Address, request: Request) -> Done {
        match request {
            Request::Hello => Ok(Welcome { address: self.address, mac, pages: limits.pages }.write()),
            Request::Grant { pages, first, references } => self.grant(limits, (pages, first), &references),
            Request::Release(at) => self.release(at),
            Request::Join(at) => self.join(service, at),
            Request::CreateQueue(depth, at) => self.create_queue(service, depth, at),
            Request::Register { domain, access, at, len } => self.register(service, domain, access, (at, len)),
            Request::Engine(request) => self.engine(service, request),
            Request::Open(init) => {
                self.open = Some(init);
                Ok(Vec::new())
            }
            Request::Connect(_) | Request::Disconnect(_) | Request::Tell(..) | Request::Count => {
                Err(no(Errno::OPNOTSUPP))
            }
        }
    }

    /// Pages of memory, some at a time; the last ones have all of them mapped.
    fn grant(&mut self, limits: &Limits, (pages, first): (u32, u32), references: &[u32]) -> Done {
        // One that has given up in the middle begins anew: what it named before belongs to other memory.
        let (all, mut known) = self.granting.take().filter(|_| first > 0).unwrap_or((pages, Vec::new()));
        let is_next = all == pages && known.len() == first as usize;
        if !is_next || pages == 0 || known.len() + references.len() > pages as usize {
            return Err(no(Errno::INVAL));
        }
        if self.pages + u64::from(pages) > limits.pages || self.mapped.len() >= limits.pieces {
            return Err(no(Errno::DQUOT));
        }
        known.extend(references);
        if known.len() < pages as usize {
            let count = known.len() as u64;
            self.granting = Some((pages, known));
            return Ok(vec![count, 0]);
        }
        let window = self.maps.map(&known).map_err(|error| {
            tracing::warn!(guest = self.maps.name(), %error, "granted memory is refused");
            match error {
                Error::System { source, .. } => no(source),
                _ => no(Errno::FAULT),
            }
        })?;
        let at = self.domain.map(window, Reach::ReadWrite, None).map_err(|error| match error {
            MapError::ReadOnly => no(Errno::ACCESS),
            _ => no(Errno::NOMEM),
        })?;
        self.mapped.insert(at.get(), pages);
        self.pages += u64::from(pages);
        Ok(vec![u64::from(pages), at.get()])
    }

    fn release(&mut self, at: Iova) -> Done {
        // Nobody has an IOTLB of this domain that would have to come round.
        self.domain.unmap(at, Duration::ZERO, || ()).map_err(|error| match error {
            UnmapError::NotMapped(_) => no(Errno::NOENT),
            UnmapError::InUse(_) | UnmapError::Timeout(_) => no(Errno::BUSY),
        })?;
        self.pages -= self.mapped.remove(&at.get()).map_or(0, u64::from);
        Ok(Vec::new())
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
        // More than any engine allows; a number of lines that is no power of two otherwise.
        if depth > 1 << 24 {
            return Err(no(Errno::INVAL));
        }
        let ring = self.pin(at, ring_len(queue_lines(depth)))?;
        let queue = service.create_queue_at(number, depth, ring.window()).map_err(|error| error.errno())?;
        self.queues.insert(queue, ring);
        Ok(vec![queue.into()])
    }

    fn register(
        &mut self,
        service: &mut Service,
        domain: ProtectionDomain,
        access: Access,
        (at, len): (Iova, u64),
    ) -> Done {
        let number = self.number()?;
        let memory = self.pin(at, usize::try_from(len).map_err(|_| no(Errno::INVAL))?)?;
        let made = service
            .register_window(number, domain, (memory.window().clone(), 1), None, access)
            .map_err(|error| error.errno())?;
        self.regions.insert(made.lkey, memory);
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
            answer(service, number, request, &[]).map_err(|error: ServeError| error.errno())?;
        match request {
            R::Deregister(key) => drop(self.regions.remove(&key)),
            R::DestroyQueue(queue) => drop(self.queues.remove(&queue)),
            _ => {}
        }
        if let Some(remains) = remains {
            self.closer.close(remains);
        }
        // Its head says that all went well.
        let bytes = words.bytes();
        let words = bytes.as_chunks::<8>().0.iter().skip(1).map(|word| u64::from_le_bytes(*word));
        Ok(words.collect())
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

    /// It has gone. What it had is unmapped by a thread of its own: that takes as long as it is much.
    pub fn bury(mut self, left: impl Send + 'static) {
        self.control.end();
        self.maps.ring();
        let mut closer = core::mem::take(&mut self.closer);
        closer.close((left, self));
    }
}

/// Pages of so many bytes.
pub fn pages_of(len: usize) -> Option<u32> {
    u32::try_from(len.div_ceil(PAGE)).ok().filter(|pages| *pages > 0)
}
