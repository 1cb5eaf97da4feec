//! One open queue: its memory, who has it open, and what the card is told when it starts and stops.
//!
//! Exclusive direct queues belong to their program: it writes descriptors and doorbell. All others the driver drives:
//! a [`Reclaimer`] on the card's worker gives an RX ring back at the pace of its subscribers, and mediated writers of a
//! TX ring take turns under a lock. A direct writer of a shared TX queue has a ring of its own beside that one: it can
//! harm no other, and the card's worker gives the rings their turns.

use crate::memory::{MemoryError, QueueMemory};
use millrace_abi::control::{self, CARD_SLEEPS_AT, DOORBELL_AT, QueueState};
use millrace_abi::message::{Buffers, ErrorCode, Handle, Layout, Reply};
use millrace_abi::queue::{Direction, Engine, Laggard, MAX_SUBSCRIBERS, Mode, QueueId, Sharing};
use millrace_abi::register::{Offset, calypte as c, dd as d, map, medusa as m, sze as s};
use millrace_card::{Attachment, Card, Opener, RingPins, RingProgram, SharedPool, StartError};
use millrace_dma::{Domain, Iova, Ordering, OutOfRange, Pages, Region, RegionError, Word64};
use millrace_ring::cursor::{Cursor, Position, Subscriber};
use millrace_ring::medusa::{FixedRx, FixedTx, HostRx, HostTx};
use millrace_ring::shared::{self, Losses, ReadRing, Reader, Reclaimer};
use millrace_ring::wake::Ringer;
use millrace_ring::{calypte, sze};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Which program, and which of its queues.
pub(crate) type Key = (u64, Handle);

/// How long to wait for the card to let go of memory.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why something was not done to a queue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("{id} is held exclusively by process {pid}; close it there, or use another queue")]
    Held { id: QueueId, pid: u32 },
    #[error("{id} is open in process {pid} and cannot be had exclusively; close it there, or share it")]
    Shared { id: QueueId, pid: u32 },
    #[error("{0} has {MAX_SUBSCRIBERS} subscribers already")]
    Full(QueueId),
    #[error("{0} cannot use buffers of the program: that takes Medusa or DD, direct and exclusive")]
    Supplied(QueueId),
    #[error(
        "{0} is a DD queue, which belongs to one program that drives it itself: open it direct and exclusive, or give \
         it another engine, such as engine=medusa@{0}"
    )]
    OwnOnly(QueueId),
    #[error("{0} is a queue of {1}; pools are for DD: give the card engine=dd@{0}")]
    NoPools(QueueId, Engine),
    #[error("a pool of {1} buffers at IOVA {0:#x}: nothing that is mapped there for writing has so much room")]
    NoPool(u64, u32),
    #[error("a ring of {0} descriptors: a power of two from 8 to 32768 is wanted")]
    Entries(u32),
    #[error("{0} is not started")]
    NotStarted(QueueId),
    #[error("{0} is started already")]
    Started(QueueId),
    #[error("{0} is not open in mediated mode")]
    NotMediated(QueueId),
    #[error("{0} was not given so much room, or a frame of {1} bytes is not what it sends")]
    Commit(QueueId, u16),
    #[error("{0} still holds packets that the card has not taken")]
    NotDrained(QueueId),
    #[error("this program was thrown out of {0} because it fell behind; close and open it again")]
    Evicted(QueueId),
    #[error("{0} stopped: {1}")]
    Faulted(QueueId, control::FaultKind),
    #[error("cannot start {0}: {1}")]
    Start(QueueId, StartError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error(transparent)]
    Range(#[from] OutOfRange),
    #[error("the system refused a descriptor: {0}")]
    System(#[from] rustix::io::Errno),
    #[error("{0} has a ring that its software half cannot use")]
    Ring(QueueId),
}

impl SessionError {
    pub fn code(&self) -> ErrorCode {
        match self {
            SessionError::Held { .. } | SessionError::Shared { .. } | SessionError::Full(_) => ErrorCode::Busy,
            SessionError::NotDrained(_) => ErrorCode::NotDrained,
            SessionError::Evicted(_) => ErrorCode::Evicted,
            SessionError::Memory(_) | SessionError::Region(_) | SessionError::System(_) => ErrorCode::System,
            _ => ErrorCode::Invalid,
        }
    }
}

/// The eventfd by which a program wakes a worker: one for all its queues there, which the number tells.
#[derive(Clone)]
pub(crate) struct Kick {
    pub number: u32,
    pub fd: Arc<OwnedFd>,
}

impl Kick {
    pub fn new(number: u32) -> Result<Self, rustix::io::Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { number, fd: Arc::new(fd) })
    }
}

/// A control page, and the ways to wake the two sides of it.
struct Page {
    region: Region,
    // The driver's own pages have none: it wakes the worker as the card itself does.
    kick: Option<Kick>,
    // Made when the program sleeps for the first time.
    call: Option<Arc<OwnedFd>>,
}

impl Page {
    fn new(kick: Option<Kick>) -> Result<Self, SessionError> {
        let region = Region::allocate(control::PAGE_SIZE, Pages::Ordinary)?;
        region.window().word64(control::MAGIC_AT)?.store(control::MAGIC, Ordering::Relaxed);
        Ok(Self { region, kick, call: None })
    }

    /// A page that is handed to nobody.
    fn own() -> Result<Self, SessionError> {
        let mut page = Self::new(None)?;
        page.region.close_fd();
        Ok(page)
    }

    fn opener(&self, id: u32) -> Opener {
        let control = self.region.window().clone();
        Opener { id, control, kick: self.kick.as_ref().map(|kick| kick.fd.clone()), call: self.call.clone() }
    }

    /// What wakes a program that sleeps: its end, anew each time. The other is the worker's alone. That of an eventfd would
    /// be the same one for both, and a program can fill it and have whoever writes to it wait.
    fn new_call(&mut self) -> Result<OwnedFd, SessionError> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // As few as the system allows: a program need not read what is sent to it, and one signal says it all.
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 1)?;
        // Signalled at once: the state may have changed before there was anything to tell it by.
        rustix::net::send(&ours, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        self.call = Some(Arc::new(ours));
        Ok(theirs)
    }

    fn doorbell(&self) -> Result<Word64, SessionError> {
        Ok(self.region.window().word64(DOORBELL_AT)?)
    }

    fn state(&self) -> QueueState {
        let word = self.region.window().word32(control::STATE_AT).map(|word| word.load(Ordering::Acquire));
        word.ok().and_then(QueueState::from_word).unwrap_or(QueueState::Stopped)
    }

    /// Wakes the worker of queue `id` if it sleeps. To be called after a pointer word was stored.
    fn ring(&self, card: &Card, id: QueueId) {
        let flag = self.region.window().word32(CARD_SLEEPS_AT).map(Ringer::new);
        if flag.is_ok_and(|ringer| ringer.must_signal()) {
            card.nudge(id);
        }
    }
}

/// One program that has the queue open.
struct Member {
    key: Key,
    pid: u32,
    id: u32,
    mode: Mode,
    policy: Laggard,
    page: Page,
    started: bool,
    losses: Arc<Losses>,
    // Mediated RX: the driver reads on the program's behalf.
    reader: Option<Reader>,
    // Direct TX of a shared queue.
    ring: Option<OwnRing>,
}

/// The ring that a direct writer of a shared TX queue has to itself.
struct OwnRing {
    memory: QueueMemory,
    domain: Arc<Domain>,
    pins: Option<RingPins>,
}

impl OwnRing {
    fn new(id: QueueId, engine: Engine, card: &Card) -> Result<Self, SessionError> {
        let domain = Arc::new(Domain::new());
        let memory = QueueMemory::new(id, engine, card.options(), Buffers::Driver, &domain)?;
        Ok(Self { memory, domain, pins: None })
    }

    fn mask(&self) -> u32 {
        match self.memory.layout {
            Layout::Medusa { entries, .. } | Layout::Dd { entries, .. } => entries - 1,
            Layout::Sze { ring, .. } | Layout::Calypte { ring, .. } => ring - 1,
        }
    }

    fn program(&self) -> Result<RingProgram, SessionError> {
        let (desc_base, update_base) = (self.memory.descriptors_at().get(), self.memory.update_at().get());
        Ok(RingProgram { desc_base, update_base, mask: self.mask(), buffers: self.memory.buffers()? })
    }

    /// Whether the card has taken everything up to the doorbell in `page`, or, for Calypte, up to the last header.
    fn is_drained(&self, page: &Page) -> Result<bool, SessionError> {
        let (doorbell, update) = (page.doorbell()?, self.memory.status.window().word64(0)?);
        if let (Layout::Calypte { headers, .. }, Some(region)) = (self.memory.layout, &self.memory.descriptors) {
            let asked = calypte::announced(&region.window().slots64(0, headers)?);
            // Acquire as below.
            return Ok(asked == calypte::Pointers::decode(update.load(Ordering::Acquire)).headers);
        }
        // Acquire pairs with the Release of the card's update word.
        let (asked, done) = (doorbell.load(Ordering::Relaxed) as u32, update.load(Ordering::Acquire) as u32);
        Ok((asked ^ done) & self.mask() == 0)
    }
}

impl Member {
    /// Makes this program the first subscriber of a queue that does not run yet.
    fn first_of(&self, id: QueueId, mut reclaimer: Reclaimer) -> Result<Box<Reclaimer>, SessionError> {
        let joined = reclaimer.join(self.id, self.page.doorbell()?, self.policy, self.losses.clone());
        if joined { Ok(Box::new(reclaimer)) } else { Err(SessionError::Full(id)) }
    }
}

/// The software half of a TX ring that the driver drives.
enum Writer {
    Medusa(Box<FixedTx>),
    Sze(Box<sze::HostTx>),
    Calypte(Box<calypte::HostTx>),
}

/// A queue that the driver drives: its own control page, and for TX its half of the ring and the lock.
struct Driven {
    page: Page,
    writer: Option<Writer>,
    // Who may write, and how many units from the writer's position on.
    lock: Option<(Key, u32)>,
}

/// One open queue.
pub(crate) struct Session {
    pub id: QueueId,
    engine: Engine,
    exclusive: bool,
    memory: QueueMemory,
    domain: Arc<Domain>,
    members: Vec<Member>,
    // None: exclusive and direct.
    driven: Option<Driven>,
    // The program's pool, for a port that can work on it.
    pool: Option<SharedPool>,
    running: bool,
    base: u64,
    next_member: u32,
    limits: (u16, u16),
}

/// What a program asks for when it opens a queue.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub id: QueueId,
    pub mode: Mode,
    pub sharing: Sharing,
    pub buffers: Buffers,
}

impl Wish {
    fn check(&self, engine: Engine) -> Result<(), SessionError> {
        let own = self.sharing == Sharing::Exclusive && self.mode == Mode::Direct;
        if engine == Engine::Dd && !own {
            return Err(SessionError::OwnOnly(self.id));
        }
        if matches!(self.buffers, Buffers::Pool { .. }) && engine != Engine::Dd {
            return Err(SessionError::NoPools(self.id, engine));
        }
        if let Some(entries) = self.buffers.entries() {
            if !matches!(engine, Engine::Medusa | Engine::Dd) || !own {
                return Err(SessionError::Supplied(self.id));
            }
            if !entries.is_power_of_two() || !(8..=m::MAX_ENTRIES).contains(&entries) {
                return Err(SessionError::Entries(entries));
            }
        }
        Ok(())
    }
}

impl Wish {
    /// The pool of an RX queue, in memory that the program has mapped.
    fn pool(&self, domain: &Arc<Domain>, mapped: &HashMap<u64, Region>) -> Result<Option<SharedPool>, SessionError> {
        let Buffers::Pool { at, size, stride, count, .. } = self.buffers else { return Ok(None) };
        let fits = |region: &&Region| {
            let len = u64::from(stride) * u64::from(count);
            region.window().is_writable() && size > 0 && size <= stride && count > 0 && len <= region.len() as u64
        };
        let region = mapped.get(&at).filter(fits).ok_or(SessionError::NoPool(at, count))?;
        let (region, base, domain) = (region.clone(), Iova::new(at), domain.clone());
        let pool = SharedPool { region, size, stride, count, base, domain };
        Ok((self.id.direction == Direction::Rx).then_some(pool))
    }
}

impl Session {
    /// Opens a queue that nobody has open. `domain` is the program's, for a queue of its own, and `mapped` what the program
    /// has mapped there.
    pub fn open(
        card: &Card,
        engine: Engine,
        wish: Wish,
        domain: &Arc<Domain>,
        mapped: &HashMap<u64, Region>,
    ) -> Result<Self, SessionError> {
        wish.check(engine)?;
        let pool = wish.pool(domain, mapped)?;
        let exclusive = wish.sharing == Sharing::Exclusive;
        let own = exclusive && wish.mode == Mode::Direct;
        let domain = if own { domain.clone() } else { Arc::new(Domain::new()) };
        let mut memory = QueueMemory::new(wish.id, engine, card.options(), wish.buffers, &domain)?;
        let driven = if own { None } else { Some(Driven { page: Page::own()?, writer: None, lock: None }) };
        if driven.is_some() {
            memory.keep_descriptors();
        }
        Ok(Self {
            id: wish.id,
            engine,
            exclusive,
            memory,
            domain,
            members: Vec::new(),
            driven,
            pool,
            running: false,
            base: 0,
            next_member: 1,
            limits: (card.options().frame_min as u16, card.options().frame_max as u16),
        })
    }

    /// Adds a program; the first one, or one more of a shared queue.
    pub fn add(&mut self, card: &Card, wish: Wish, key: Key, pid: u32, kick: Kick) -> Result<(), SessionError> {
        wish.check(self.engine)?;
        if let Some(holder) = self.members.first() {
            let (id, pid) = (self.id, holder.pid);
            if self.exclusive {
                return Err(SessionError::Held { id, pid });
            }
            if wish.sharing == Sharing::Exclusive {
                return Err(SessionError::Shared { id, pid });
            }
        }
        if self.members.len() >= MAX_SUBSCRIBERS {
            return Err(SessionError::Full(self.id));
        }
        let policy = if let Sharing::Shared(policy) = wish.sharing { policy } else { Laggard::Block };
        let id = self.next_member;
        self.next_member += 1;
        let (page, losses) = (Page::new(Some(kick))?, Arc::default());
        let own = self.driven.is_some() && wish.mode == Mode::Direct && wish.id.direction == Direction::Tx;
        let ring = own.then(|| OwnRing::new(wish.id, self.engine, card)).transpose()?;
        let (started, reader) = (false, None);
        self.members.push(Member { key, pid, id, mode: wish.mode, policy, page, started, losses, reader, ring });
        Ok(())
    }

    /// The answer to an open, with the descriptors that belong to it.
    pub fn opened(&self, key: Key) -> Option<(Reply, Vec<BorrowedFd<'_>>)> {
        let member = self.members.iter().find(|member| member.key == key)?;
        let kick = member.page.kick.as_ref()?;
        let mut fds = vec![member.page.region.fd()?, kick.fd.as_fd()];
        let memory = member.ring.as_ref().map_or(&self.memory, |ring| &ring.memory);
        fds.push(memory.status.fd()?);
        if let Some(data) = &memory.data {
            fds.push(data.fd()?);
        }
        let own = self.driven.is_none() || member.ring.is_some();
        let mut layout = memory.layout;
        if let Layout::Medusa { descriptors_len, .. } | Layout::Calypte { descriptors_len, .. } = &mut layout {
            match &memory.descriptors {
                Some(descriptors) if own => fds.push(descriptors.fd()?),
                _ => *descriptors_len = 0,
            }
        }
        Some((Reply::Opened { handle: key.1, engine: self.engine, layout, kick: kick.number }, fds))
    }

    /// The answer has gone out. Nobody else will ever get a member's page and ring, nor the memory of an exclusive queue,
    /// so the descriptors of them can go, which would be too many for thousands of queues.
    pub fn handed_over(&mut self, key: Key) {
        if let Some(member) = self.members.iter_mut().find(|member| member.key == key) {
            member.page.region.close_fd();
            member.ring.iter_mut().for_each(|ring| ring.memory.close_fds());
        }
        if self.exclusive {
            self.memory.close_fds();
        }
    }

    /// What a program waits for that sleeps on the queue.
    pub fn new_call(&mut self, card: &Card, key: Key) -> Result<OwnedFd, SessionError> {
        let place = self.place(key)?;
        let member = &mut self.members[place];
        let theirs = member.page.new_call()?;
        if member.started
            && let Some(call) = &member.page.call
        {
            card.set_call(self.id, member.id, call.clone());
        }
        Ok(theirs)
    }

    /// Process ids of all who have the queue open.
    pub fn holders(&self) -> Vec<u32> {
        self.members.iter().map(|member| member.pid).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether somebody has started the queue and nobody has stopped it since; a fault may have.
    pub fn is_running(&self) -> bool {
        self.running
    }

    fn place(&self, key: Key) -> Result<usize, SessionError> {
        self.members.iter().position(|member| member.key == key).ok_or(SessionError::NotStarted(self.id))
    }

    /// Starts the queue, or joins those who have. `position` is where the last owner stopped, in units.
    pub fn start(&mut self, card: &Card, key: Key, position: u64) -> Result<Reply, SessionError> {
        let place = self.place(key)?;
        if self.members[place].started {
            return Err(SessionError::Started(self.id));
        }
        if self.running
            && let Some(QueueState::Faulted(kind)) = card.state(self.id)
        {
            if self.members.iter().any(|member| member.started) {
                return Err(SessionError::Faulted(self.id, kind));
            }
            self.running = false;
        }
        if !self.running {
            // The first program is there before the first packet: a source that waits for a listener starts at once.
            self.start_queue(card, place, position)?;
        } else if self.driven.is_some() && self.members[place].ring.is_none() {
            self.join(card, place)?;
        }
        if self.members[place].ring.is_some() {
            self.start_ring(card, place)?;
            self.members[place].started = true;
            return Ok(Reply::Started { position: 0, base: 0 });
        }
        let position = if self.driven.is_some() { self.begin(place)? } else { self.base };
        self.members[place].started = true;
        Ok(Reply::Started { position, base: self.base })
    }

    fn start_queue(&mut self, card: &Card, place: usize, position: u64) -> Result<(), SessionError> {
        let position = Position::new(position).get();
        // An SZE ring begins at a page.
        self.base = match self.engine {
            Engine::Sze => Position::new(position.next_multiple_of(4096 / 8)).get(),
            Engine::Medusa => position,
            // The rings begin at 0, whoever had them before.
            Engine::Calypte | Engine::Dd => 0,
        };
        self.memory.prepare(self.base)?;
        let member = &self.members[place];
        let page = self.driven.as_ref().map_or(&member.page, |driven| &driven.page);
        page.doorbell()?.store(0, Ordering::Relaxed);
        let mut openers = Vec::new();
        if member.ring.is_none() {
            openers.push(member.page.opener(member.id));
        }
        if self.driven.is_some() {
            openers.push(page.opener(0));
        }
        let control = page.region.window().clone();
        let buffers = self.memory.buffers()?;
        let attachment = Attachment { domain: self.domain.clone(), control, reclaimer: None, openers, buffers };
        let id = self.id;
        let failed = |error| SessionError::Start(id, error);
        card.detach(id);
        card.attach(self.id, attachment).map_err(failed)?;
        self.program(card);
        if self.driven.is_some() {
            self.make_half(card, place).inspect_err(|_| card.detach(id))?;
        }
        self.control(card, m::CONTROL_START);
        // Not by its state: a ring that held nonsense may have stopped it already, which its next call will say.
        if let Some(error) = card.refusal(self.id) {
            card.detach(self.id);
            return Err(failed(error));
        }
        self.running = true;
        if let Some(pool) = self.pool.clone() {
            // A fault means that the program has unmapped it since.
            let shared = card.share_pool(id, pool);
            shared.unwrap_or_else(|fault| tracing::warn!(queue = %id, %fault, "frames are copied into the pool"));
        }
        Ok(())
    }

    /// Starts the ring of a direct writer beside the one that the driver drives.
    fn start_ring(&mut self, card: &Card, place: usize) -> Result<(), SessionError> {
        let (id, member) = (self.id, &mut self.members[place]);
        let Some(ring) = &mut member.ring else { return Ok(()) };
        ring.memory.prepare(0)?;
        member.page.doorbell()?.store(0, Ordering::Relaxed);
        let opener = member.page.opener(member.id);
        let pins = card.add_ring(id, &ring.program()?, ring.domain.clone(), opener);
        ring.pins = Some(pins.map_err(|error| SessionError::Start(id, error))?);
        Ok(())
    }

    /// Stops the ring of a direct writer. What was not taken is lost if `force`.
    fn stop_ring(&mut self, card: &Card, place: usize, force: bool) -> Result<(), SessionError> {
        let (id, member) = (self.id, &mut self.members[place]);
        let Some(ring) = &mut member.ring else { return Ok(()) };
        if !force && member.page.state() == QueueState::Running && !ring.is_drained(&member.page)? {
            return Err(SessionError::NotDrained(id));
        }
        card.drop_ring(id, member.id);
        ring.pins = None;
        Ok(())
    }

    fn register(&self, offset: Offset) -> u32 {
        offset.at(map::dma_base(self.id).unwrap_or(0))
    }

    fn write64(&self, card: &Card, offset: Offset, value: u64) {
        card.write(self.register(offset), &value.to_le_bytes());
    }

    fn write32(&self, card: &Card, offset: Offset, value: u32) {
        card.write(self.register(offset), &value.to_le_bytes());
    }

    fn read32(&self, card: &Card, offset: Offset) -> u32 {
        let mut bytes = [0; 4];
        card.read(self.register(offset), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn control(&self, card: &Card, value: u32) {
        // CONTROL lies at 0 in both blocks.
        self.write32(card, m::CONTROL, value);
    }

    /// The register writes before CONTROL: §3.2.2 steps 5 to 8 for Medusa and Calypte, `docs/spec/dd.md` for DD, "Start"
    /// of §3.1 for SZE.
    fn program(&self, card: &Card) {
        match self.memory.layout {
            Layout::Medusa { entries, .. } => {
                self.write64(card, m::DESC_BASE, self.memory.descriptors_at().get());
                self.write64(card, m::UPDATE_BASE, self.memory.update_at().get());
                if self.id.direction == Direction::Rx {
                    self.write64(card, m::HDR_BASE, self.memory.headers_at().get());
                }
                self.write32(card, m::MDP, entries - 1);
                self.write32(card, m::MHP, entries - 1);
                self.write64(card, m::SDP, 0);
                self.write32(card, m::TIMEOUT, m::TIMEOUT_DEFAULT);
            }
            Layout::Calypte { headers, ring, .. } => {
                self.write64(card, c::UPDATE_BASE, self.memory.update_at().get());
                if self.id.direction == Direction::Rx {
                    self.write64(card, c::DATA_BASE, self.memory.data_at().get());
                    self.write64(card, c::HDR_BASE, self.memory.headers_at().get());
                    self.write32(card, c::MDP, ring / c::RX_BLOCK - 1);
                    self.write32(card, c::MHP, headers - 1);
                }
                self.write64(card, c::SDP, 0);
                self.write32(card, c::EXPER, 0);
                self.write32(card, c::TIMEOUT, m::TIMEOUT_DEFAULT);
            }
            Layout::Dd { entries, .. } => {
                self.write64(card, d::BASE, self.memory.descriptors_at().get());
                self.write32(card, d::SIZE, entries - 1);
                self.write32(card, d::TAIL, 0);
                self.write32(card, d::TIMEOUT, m::TIMEOUT_DEFAULT);
            }
            Layout::Sze { ring, .. } => {
                self.write64(card, s::DESC_BASE, self.memory.descriptors_at().get());
                self.write64(card, s::UPDATE_BASE, self.memory.update_at().get());
                self.write32(card, s::RING_MASK, ring - 1);
                self.write32(card, s::SW_POINTER, 0);
                self.write32(card, s::TIMEOUT, s::TIMEOUT_DEFAULT);
                let request = if self.id.direction == Direction::Rx { s::MAX_REQUEST_RX } else { s::MAX_REQUEST_TX };
                self.write32(card, s::MAX_REQUEST, request);
            }
        }
    }

    /// Makes the software half of a queue that the driver drives.
    fn make_half(&mut self, card: &Card, place: usize) -> Result<(), SessionError> {
        let bad = SessionError::Ring(self.id);
        let Some(driven) = &mut self.driven else { return Ok(()) };
        let (doorbell, update) = (driven.page.doorbell()?, self.memory.status.window().word64(0)?);
        let iovas = self.memory.iovas().into_boxed_slice();
        let (start, first) = (Position::new(self.base), self.base as u32);
        let descriptors = |entries| match &self.memory.descriptors {
            Some(region) => region.window().slots64(0, entries).map_err(SessionError::from),
            None => Err(SessionError::Ring(self.id)),
        };
        match (self.memory.layout, self.id.direction) {
            (Layout::Medusa { entries, headers_at, buffer_size, .. }, Direction::Rx) => {
                let descriptors = descriptors(entries)?;
                let headers = self.memory.status.window().slots32(headers_at as usize, entries)?;
                let host = HostRx::new(descriptors, headers, doorbell, update);
                let size = buffer_size.min(u16::MAX.into()) as u16;
                let pool = host.and_then(|host| FixedRx::new(host, iovas, size, first)).ok_or(bad)?;
                let reclaimer = Reclaimer::new(shared::Pool::Medusa(pool), start);
                card.set_reclaimer(self.id, self.members[place].first_of(self.id, reclaimer)?);
            }
            (Layout::Sze { .. }, Direction::Rx) => {
                let ring = self.memory.data.as_ref().map(|data| data.window().clone());
                let pool = ring.and_then(|ring| sze::HostRx::new(ring, first.wrapping_mul(8), 0, doorbell, update));
                let reclaimer = Reclaimer::new(shared::Pool::Sze(pool.ok_or(bad)?), start);
                card.set_reclaimer(self.id, self.members[place].first_of(self.id, reclaimer)?);
            }
            (Layout::Medusa { entries, .. }, Direction::Tx) => {
                let host = HostTx::new(descriptors(entries)?, doorbell, update);
                let writer = host.and_then(|host| FixedTx::new(host, iovas, first)).ok_or(bad)?;
                driven.writer = Some(Writer::Medusa(Box::new(writer)));
            }
            (Layout::Calypte { headers, headers_at, ring, .. }, Direction::Rx) => {
                let headers = self.memory.status.window().slots64(headers_at as usize, headers)?;
                let pool = calypte::HostRx::new(ring / calypte::BLOCK, headers, doorbell, update).ok_or(bad)?;
                let reclaimer = Reclaimer::new(shared::Pool::Calypte(pool), start);
                card.set_reclaimer(self.id, self.members[place].first_of(self.id, reclaimer)?);
            }
            (Layout::Calypte { headers, ring, .. }, Direction::Tx) => {
                let writer = calypte::HostTx::new(ring, descriptors(headers)?, update).ok_or(bad)?;
                driven.writer = Some(Writer::Calypte(Box::new(writer)));
            }
            // A DD queue is its program's own.
            (Layout::Dd { .. }, _) => return Err(bad),
            (Layout::Sze { .. }, Direction::Tx) => {
                let ring = self.memory.data.as_ref().map(|data| data.window().clone());
                let writer = ring.and_then(|ring| sze::HostTx::new(ring, first.wrapping_mul(8), doorbell, update));
                driven.writer = Some(Writer::Sze(Box::new(writer.ok_or(bad)?)));
            }
        }
        Ok(())
    }

    /// Lets one more program into a running queue that the driver drives.
    fn join(&mut self, card: &Card, place: usize) -> Result<(), SessionError> {
        let member = &self.members[place];
        let opener = member.page.opener(member.id);
        let cursor = match self.id.direction {
            Direction::Rx => Some((member.policy, member.losses.clone())),
            Direction::Tx => None,
        };
        if card.join(self.id, opener, cursor) { Ok(()) } else { Err(SessionError::Full(self.id)) }
    }

    /// Where a program that is in begins; for a mediated reader, also the driver's half of its reading.
    fn begin(&mut self, place: usize) -> Result<u64, SessionError> {
        let (id, base) = (self.id, self.base);
        if id.direction == Direction::Tx {
            return Ok(base);
        }
        let member = &mut self.members[place];
        let word = member.page.doorbell()?;
        let position = Cursor::decode(word.load(Ordering::Acquire)).position;
        if member.mode == Mode::Mediated {
            let (update, start) = (self.memory.status.window().word64(0)?, Position::new(base));
            let ring = match self.memory.layout {
                Layout::Medusa { entries, headers_at, .. } => {
                    let headers = self.memory.status.window().slots32(headers_at as usize, entries)?;
                    ReadRing::Medusa { headers, update, base: start }
                }
                Layout::Sze { ring, .. } => ReadRing::Sze { update, size: ring, base: start },
                Layout::Dd { .. } => return Err(SessionError::OwnOnly(id)),
                Layout::Calypte { headers, headers_at, .. } => {
                    let headers = self.memory.status.window().slots64(headers_at as usize, headers)?;
                    ReadRing::Calypte { headers, update, base: start }
                }
            };
            member.reader = Some(Reader::new(ring, Subscriber::new(word)));
        }
        Ok(position.get())
    }

    /// Stops the queue for one program. Returns the position for the next opener once the queue itself has stopped.
    pub fn stop(
        &mut self,
        card: &Card,
        key: Key,
        force: bool,
        position: Option<u64>,
    ) -> Result<Option<u64>, SessionError> {
        let place = self.place(key)?;
        if !self.members[place].started {
            return Err(SessionError::NotStarted(self.id));
        }
        self.stop_ring(card, place, force)?;
        let position = position.filter(|_| self.members[place].ring.is_none());
        let others = self.members.iter().enumerate().any(|(other, member)| other != place && member.started);
        if let Some(driven) = &mut self.driven {
            driven.lock = driven.lock.filter(|(owner, _)| *owner != key);
            let member = &mut self.members[place];
            if others {
                card.leave(self.id, member.id);
                (member.started, member.reader) = (false, None);
                return Ok(None);
            }
        }
        self.stop_queue(card, force)?;
        let member = &mut self.members[place];
        (member.started, member.reader) = (false, None);
        Ok(Some(self.position_at_stop(position)))
    }

    /// §3.2.3 for Medusa, Calypte and DD, "Stop" of §3.1 for SZE.
    fn stop_queue(&mut self, card: &Card, force: bool) -> Result<(), SessionError> {
        if card.state(self.id) == Some(QueueState::Running) && !force {
            if self.engine == Engine::Sze && self.id.direction == Direction::Tx {
                // SZE drains before CONTROL is touched.
                if self.read32(card, s::HW_POINTER) != self.read32(card, s::SW_POINTER) {
                    return Err(SessionError::NotDrained(self.id));
                }
            }
            let value = if self.engine == Engine::Sze { s::CONTROL_DISCARD } else { m::CONTROL_STOP };
            self.control(card, value);
            if card.state(self.id) == Some(QueueState::Running) {
                return Err(SessionError::NotDrained(self.id));
            }
        }
        card.detach(self.id);
        self.running = false;
        Ok(())
    }

    /// Where the next opener goes on: what software says, where it moved the pointers, otherwise what the card did.
    fn position_at_stop(&mut self, said: Option<u64>) -> u64 {
        if self.engine == Engine::Dd {
            return 0;
        }
        let driven = match self.driven.as_mut().and_then(|driven| driven.writer.take()) {
            Some(Writer::Medusa(writer)) => Some(u64::from(writer.next())),
            Some(Writer::Sze(writer)) => Some(self.base + u64::from(writer.position()) / 8),
            Some(Writer::Calypte(writer)) => Some(u64::from(writer.position() / calypte::FRAME_ALIGN)),
            None => None,
        };
        let update = self.memory.status.window().word64(0).map_or(0, |word| word.load(Ordering::Acquire));
        let passed = match (self.engine, self.id.direction) {
            (Engine::Sze, _) => (update as u32 / 8).into(),
            (Engine::Medusa | Engine::Calypte | Engine::Dd, Direction::Rx) => update >> 32,
            (Engine::Medusa | Engine::Calypte | Engine::Dd, Direction::Tx) => update & 0xffff_ffff,
        };
        Position::new(driven.or(said).unwrap_or(self.base + passed)).get()
    }

    /// Takes one program off the queue, in whatever state it is. Returns the position if the queue stopped.
    pub fn close(&mut self, card: &Card, key: Key) -> Option<u64> {
        let position = self.stop(card, key, true, None).ok().flatten();
        self.members.retain(|member| member.key != key);
        position
    }

    /// Takes the memory off the card. Nobody has the queue open any more.
    pub fn dissolve(self, card: &Card) {
        // One that does not run has nothing on the card; somebody else's may run there.
        if self.running {
            card.detach(self.id);
        }
        let mappings: Vec<Iova> = self.memory.mappings().collect();
        for iova in mappings {
            if let Err(error) = self.domain.unmap(iova, PATIENCE, || card.pass_all()) {
                tracing::warn!(queue = %self.id, %error, "queue memory stays mapped");
            }
        }
    }

    fn check_state(page: &Page, id: QueueId) -> Result<(), SessionError> {
        match page.state() {
            QueueState::Evicted => Err(SessionError::Evicted(id)),
            QueueState::Faulted(kind) => Err(SessionError::Faulted(id, kind)),
            QueueState::Running | QueueState::Stopped => Ok(()),
        }
    }

    /// Mediated RX: gives back and takes.
    pub fn rx_sync(&mut self, card: &Card, key: Key, release: u32, want: u32) -> Result<Reply, SessionError> {
        let place = self.place(key)?;
        let (id, member) = (self.id, &mut self.members[place]);
        Self::check_state(&member.page, id)?;
        let Some(reader) = &mut member.reader else {
            return Err(if member.started { SessionError::NotMediated(id) } else { SessionError::NotStarted(id) });
        };
        if release > 0 {
            reader.release(release);
            member.page.ring(card, id);
        }
        // What is still held comes first: it is what the program has not looked at yet.
        let units = if reader.held() > 0 { reader.held().min(want) } else { reader.hold(want) };
        Ok(Reply::RxGranted { position: reader.position().get(), units, lost: reader.take_lost() })
    }

    /// Mediated TX: commits under the lock, and takes or leaves the lock.
    pub fn tx_sync(&mut self, card: &Card, key: Key, commit: &[u16], want: u32) -> Result<Reply, SessionError> {
        let place = self.place(key)?;
        if !self.members[place].started {
            return Err(SessionError::NotStarted(self.id));
        }
        let (id, limits) = (self.id, self.limits);
        let Some(driven) = &mut self.driven else { return Err(SessionError::NotMediated(id)) };
        Self::check_state(&driven.page, id)?;
        let Some(writer) = &mut driven.writer else { return Err(SessionError::NotMediated(id)) };
        let granted = driven.lock.and_then(|(owner, units)| (owner == key).then_some(units));
        if !commit.is_empty() {
            let Some(mut left) = granted else { return Err(SessionError::Commit(id, 0)) };
            let size = match self.memory.layout {
                Layout::Medusa { buffer_size, .. } | Layout::Dd { buffer_size, .. } => buffer_size,
                Layout::Sze { .. } | Layout::Calypte { .. } => u32::MAX,
            };
            // All or none: a part that stayed behind would leave with the frames of the next writer.
            for &len in commit {
                let legal = (limits.0..=limits.1).contains(&len) && u32::from(len) <= size;
                let rest = if legal { left.checked_sub(writer.units(len)) } else { None };
                left = rest.ok_or(SessionError::Commit(id, len))?;
            }
            for &len in commit {
                if !writer.commit(len) {
                    return Err(SessionError::Commit(id, len));
                }
            }
            writer.flush();
            driven.page.ring(card, id);
        }
        let free = driven.lock.is_none() || granted.is_some();
        let units = if want > 0 && free { writer.available().min(want) } else { 0 };
        if free {
            driven.lock = (units > 0).then_some((key, units));
        }
        Ok(Reply::TxGranted { position: writer.position(self.base), units })
    }
}

impl Writer {
    /// Units that a frame takes.
    fn units(&self, len: u16) -> u32 {
        match self {
            Writer::Medusa(_) => 1,
            Writer::Sze(_) => sze::HostTx::stride(len) / 8,
            Writer::Calypte(_) => calypte::HostTx::stride(len) / calypte::FRAME_ALIGN,
        }
    }

    fn commit(&mut self, len: u16) -> bool {
        match self {
            Writer::Medusa(writer) => writer.take(1).is_some() && writer.post(len),
            Writer::Sze(writer) => {
                let fits = writer.has_room(sze::HostTx::stride(len));
                if fits {
                    writer.push(len);
                }
                fits
            }
            Writer::Calypte(writer) => {
                let fits = writer.has_room(calypte::HostTx::stride(len));
                if fits {
                    writer.push(len);
                }
                fits
            }
        }
    }

    fn flush(&mut self) {
        match self {
            Writer::Medusa(writer) => writer.flush(),
            Writer::Sze(writer) => writer.flush(),
            Writer::Calypte(writer) => writer.flush(),
        }
    }

    fn available(&mut self) -> u32 {
        match self {
            Writer::Medusa(writer) => writer.available(),
            Writer::Sze(writer) => writer.available() / 8,
            Writer::Calypte(writer) => writer.available() / calypte::FRAME_ALIGN,
        }
    }

    fn position(&self, base: u64) -> u64 {
        match self {
            Writer::Medusa(writer) => u64::from(writer.next()),
            Writer::Sze(writer) => base + u64::from(writer.position()) / 8,
            Writer::Calypte(writer) => base + u64::from(writer.position() / calypte::FRAME_ALIGN),
        }
    }
}
