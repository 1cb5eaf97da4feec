//! The engine in the card (`place=card`): objects by its socket, work and completions by rings in shared memory.
//!
//! Memory of the program becomes shared memory where it lies (decision 58), and its file goes to the card with the region.

use super::running::DEVICE_FATAL;
use super::{Place, Running};
use crate::address::Address;
use crate::config::Config;
use millrace_dma::{Protection, Region, Scope};
use millrace_link::LinkError;
use millrace_rdma::engine::SharedReceiveQuery;
use millrace_rdma::memory::{ProtectionDomain, Reached, Registered, Source};
use millrace_rdma::number::{Key, Qpn};
use millrace_rdma::served::{Full, Program, SHARED_LEN, queue_lines};
use millrace_rdma::transport::{Attributes, Capabilities, Event, Init, Query, State};
use millrace_rdma::work::{Access, Completion, Piece, Request};
use millrace_served::wire::{self, Parts, Register, Welcome, Words, qpn};
use millrace_served::{CallError, Client, bell, socket_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long whoever posts waits for the card to take what was posted before.
const ROOM: Duration = Duration::from_millis(50);
/// Events that are taken at once.
const EVENTS: usize = 64;
/// How long the thread that waits for events sleeps, to learn that the place has ended.
const ASLEEP: Duration = Duration::from_millis(100);

/// A connection with the engine in the card.
pub(crate) struct InCard {
    client: Client,
    program: Program,
    to_card: OwnedFd,
    /// By which the card wakes this process.
    bell: Arc<OwnedFd>,
    welcome: Welcome,
    pairs: HashMap<Qpn, Init>,
    shared: HashMap<u32, SharedReceiveQuery>,
    /// Regions here, by the keys that the card gave them.
    regions: HashMap<Key, Key>,
    /// Completion queues, so that whoever sleeps on them is told when the card goes.
    queues: Vec<u32>,
    /// The domain of all regions here: whom they belong to is the card's matter.
    domain: Option<ProtectionDomain>,
    is_gone: bool,
}

/// What is done where there is no scope: everything that is registered has to become shared memory.
pub(super) fn scope(config: &Config) -> Scope {
    config.adopt.unwrap_or(Scope::Heap)
}

impl InCard {
    /// Calls the engine of the card that is wanted.
    pub fn open(config: &Config) -> Result<Self, LinkError> {
        if config.port.is_some() || config.ip.is_some() || config.mac.is_some() {
            let problem = "it has neither port= nor ip= nor mac=: the card says who its programs are";
            return Err(LinkError::Place(problem.to_owned()));
        }
        let device = super::open_card(&config.wanted())?;
        let name = device.name().to_owned();
        let failed = |why: String| LinkError::Place(format!("the card {name}: {why}"));
        let path = name.strip_prefix("unix:").map(|path| path.split(',').next().unwrap_or(path));
        let path = path.ok_or_else(|| failed("it is in this process".to_owned()))?;
        let client = Client::connect(&socket_of(Path::new(path))).map_err(|error| failed(why_no_engine(error)))?;
        let told = client.call(&wire::Request::Hello, &[]).map_err(|error| failed(error.to_string()))?;
        let nonsense = || failed(CallError::Version.to_string());
        let (mut words, fds) = told;
        let welcome = Welcome::read(&mut words).ok_or_else(nonsense)?;
        let [shared, to_card, bell] = <[OwnedFd; 3]>::try_from(fds).map_err(|_| nonsense())?;
        let shared =
            Region::map(shared, SHARED_LEN, Protection::ReadWrite, false).map_err(|error| failed(error.to_string()))?;
        let program = Program::new(shared.window()).map_err(|error| failed(error.to_string()))?;
        let (pairs, shared, regions, queues) = Default::default();
        let bell = Arc::new(bell);
        let (domain, is_gone) = (None, false);
        Ok(Self { client, program, to_card, bell, welcome, pairs, shared, regions, queues, domain, is_gone })
    }

    /// Who all programs of the card are.
    pub fn address(&self) -> Address {
        let ip = std::net::Ipv6Addr::from(self.welcome.gid.0).to_canonical();
        Address { mac: self.welcome.mac, ip }
    }

    /// Whether the card has gone, or has said what nobody understands.
    pub fn has_gone(&self) -> bool {
        self.is_gone
    }

    fn call(&mut self, request: &wire::Request, fds: &[BorrowedFd<'_>]) -> Result<(Words, Vec<OwnedFd>), i32> {
        if self.is_gone {
            return Err(libc::EIO);
        }
        self.client.call(request, fds).map_err(|error| {
            // After an answer that was late or nonsense, the next one would be taken for another's.
            if !matches!(error, CallError::Refused(_)) {
                self.give_up();
            }
            error.errno()
        })
    }

    fn number(&mut self, request: &wire::Request) -> Result<u32, i32> {
        let (mut words, _) = self.call(request, &[])?;
        words.word().and_then(|word| u32::try_from(word).ok()).ok_or(libc::EPROTO)
    }

    pub fn create_domain(&mut self) -> Result<ProtectionDomain, i32> {
        self.number(&wire::Request::CreateDomain).map(ProtectionDomain)
    }

    pub fn destroy_domain(&mut self, domain: ProtectionDomain) -> Result<(), i32> {
        self.call(&wire::Request::DestroyDomain(domain), &[]).map(drop)
    }

    pub fn create_queue(&mut self, depth: u32) -> Result<u32, i32> {
        let (mut words, fds) = self.call(&wire::Request::CreateQueue(depth), &[])?;
        let number = words.word().and_then(|word| u32::try_from(word).ok()).ok_or(libc::EPROTO)?;
        let [fd] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| libc::EPROTO)?;
        let len = millrace_rdma::served::ring_len(queue_lines(depth));
        let region = Region::map(fd, len, Protection::ReadWrite, false).map_err(|_| libc::ENOMEM)?;
        self.program.add_queue(number, depth, region.window()).map_err(|_| libc::EPROTO)?;
        self.queues.push(number);
        Ok(number)
    }

    pub fn destroy_queue(&mut self, queue: u32) -> Result<(), i32> {
        self.gone_is_done(&wire::Request::DestroyQueue(queue))?;
        self.program.remove_queue(queue);
        self.queues.retain(|one| *one != queue);
        Ok(())
    }

    /// Destroys something; what a card had that has gone is gone, too.
    fn gone_is_done(&mut self, request: &wire::Request) -> Result<(), i32> {
        match self.call(request, &[]) {
            Err(_) if self.is_gone => Ok(()),
            other => other.map(drop),
        }
    }

    pub fn create_shared(
        &mut self,
        domain: ProtectionDomain,
        depth: u32,
        pieces: u32,
    ) -> Result<(u32, SharedReceiveQuery), i32> {
        let number = self.number(&wire::Request::CreateShared(domain, depth, pieces))?;
        let query = SharedReceiveQuery { depth, pieces, limit: 0 };
        self.shared.insert(number, query);
        Ok((number, query))
    }

    pub fn set_limit(&mut self, shared: u32, limit: u32) -> Result<(), i32> {
        self.call(&wire::Request::SetLimit(shared, limit), &[])?;
        self.shared.entry(shared).and_modify(|query| query.limit = limit);
        Ok(())
    }

    /// The limit is the one that was set last, whether or not it was reached since.
    pub fn query_shared(&mut self, shared: u32) -> Result<SharedReceiveQuery, i32> {
        self.shared.get(&shared).copied().ok_or(libc::EINVAL)
    }

    pub fn destroy_shared(&mut self, shared: u32) -> Result<(), i32> {
        self.gone_is_done(&wire::Request::DestroyShared(shared))?;
        self.shared.remove(&shared);
        Ok(())
    }

    pub fn create_pair(&mut self, init: &Init) -> Result<(Qpn, Capabilities), i32> {
        let (mut words, _) = self.call(&wire::Request::CreatePair(*init), &[])?;
        let number = qpn(&mut words).ok_or(libc::EPROTO)?;
        let granted = words.capabilities().ok_or(libc::EPROTO)?;
        self.program.add_pair(number, &granted, init.shared_receive_queue.is_some());
        self.pairs.insert(number, Init { capabilities: granted, ..*init });
        Ok((number, granted))
    }

    pub fn modify_pair(&mut self, number: Qpn, told: &Attributes) -> Result<State, i32> {
        let (mut words, _) = self.call(&wire::Request::ModifyPair(number, *told), &[])?;
        let state = words.word().and_then(wire::state).ok_or(libc::EPROTO)?;
        if state == State::Reset {
            // Its queues are empty again.
            let init = self.pairs.get(&number).ok_or(libc::EPROTO)?;
            self.program.add_pair(number, &init.capabilities, init.shared_receive_queue.is_some());
        }
        Ok(state)
    }

    pub fn query_pair(&mut self, number: Qpn) -> Result<Query, i32> {
        let (mut words, _) = self.call(&wire::Request::QueryPair(number), &[])?;
        let draining = words.word().ok_or(libc::EPROTO)? == 1;
        let attributes = words.attributes().ok_or(libc::EPROTO)?;
        let init = *self.pairs.get(&number).ok_or(libc::EPROTO)?;
        Ok(Query { attributes, init, draining })
    }

    pub fn destroy_pair(&mut self, number: Qpn) -> Result<(), i32> {
        self.gone_is_done(&wire::Request::DestroyPair(number))?;
        self.program.remove_pair(number);
        self.pairs.remove(&number);
        Ok(())
    }

    /// Posts something; waits a little where the ring to the card is full, and the queue is not.
    fn post(
        &mut self,
        has_room: impl Fn(&Program) -> bool,
        post: impl Fn(&mut Program) -> Result<bool, Full>,
    ) -> Result<(), i32> {
        if self.is_gone {
            return Err(libc::EIO);
        }
        let mut until = None;
        loop {
            match post(&mut self.program) {
                Ok(must_ring) => {
                    if must_ring {
                        self.ring();
                    }
                    return Ok(());
                }
                Err(Full::Queue) if has_room(&self.program) => {
                    let now = Instant::now();
                    if now > *until.get_or_insert(now + ROOM) {
                        return Err(libc::ENOMEM);
                    }
                    std::thread::yield_now();
                }
                Err(Full::Queue) => return Err(libc::ENOMEM),
                Err(Full::Missing | Full::Long) => return Err(libc::EINVAL),
            }
        }
    }

    fn ring(&self) {
        bell::ring(&self.to_card);
    }

    #[inline]
    pub fn post_send(&mut self, number: Qpn, request: &Request<'_>) -> Result<(), i32> {
        self.post(|program| program.has_room(number, 1), |program| program.post_send(number, request))
    }

    pub fn post_receive(&mut self, number: Qpn, id: u64, pieces: &[Piece]) -> Result<(), i32> {
        self.post(|program| program.has_receive_room(number), |program| program.post_receive(number, id, pieces))
    }

    pub fn post_shared(&mut self, shared: u32, id: u64, pieces: &[Piece]) -> Result<(), i32> {
        self.post(|_| true, |program| program.post_shared(shared, id, pieces))
    }

    pub fn arm(&mut self, queue: u32, solicited_only: bool) -> Result<(), i32> {
        self.post(|_| true, |program| program.arm(queue, solicited_only))
    }

    pub fn would_post(&self, number: Qpn, count: usize) -> Result<(), i32> {
        if self.program.has_room(number, count) { Ok(()) } else { Err(libc::ENOMEM) }
    }

    #[inline]
    pub fn has_completions(&self, queue: u32) -> bool {
        self.program.has_completions(queue)
    }

    /// Takes completions. When the card has gone, those that it has written still come.
    #[inline]
    pub fn poll(&mut self, queue: u32, to: &mut [Completion]) -> Result<usize, i32> {
        let got = self.program.poll(queue, to).map_err(|_| {
            self.give_up();
            libc::EIO
        })?;
        if got == 0 && self.is_gone { Err(libc::EIO) } else { Ok(got) }
    }

    /// What has come is not from a card, or it does not answer: it is hung up on. The thread that looks at the socket sees that, and
    /// tells everybody.
    fn give_up(&mut self) {
        self.is_gone = true;
        let _ = rustix::net::shutdown(self.client.fd(), rustix::net::Shutdown::Both);
    }

    fn take_event(&mut self) -> Option<Event> {
        match self.program.take_event() {
            Ok(event) => event,
            Err(_) => {
                self.give_up();
                None
            }
        }
    }
}

impl Running {
    /// Tells of what the card has told. Whether there was something.
    pub(super) fn tell_of_card(&mut self) -> bool {
        let mut count = 0;
        while let Some(event) = self.card.as_mut().filter(|_| count < EVENTS).and_then(InCard::take_event) {
            self.tell(event);
            count += 1;
        }
        count > 0
    }

    /// The card has gone: whoever sleeps is told, once, and what is asked for from now on fails.
    fn lose_card(&mut self) {
        let Some(card) = self.card.as_mut() else { return };
        card.is_gone = true;
        crate::boundary::say(
            "the engine in the card is gone. Start the card (`millrace card --rdma-cpu`) and open the device again",
        );
        let queues = card.queues.iter().map(|queue| Event::Completion(*queue));
        let all: Vec<Event> = queues.chain(card.pairs.keys().map(|pair| Event::QueuePairFatal(*pair))).collect();
        all.into_iter().for_each(|event| self.tell(event));
        self.tell_contexts(DEVICE_FATAL);
    }

    /// Registers memory in the card: whole pages of it become shared memory here, and the card maps their file.
    pub fn register_in_card(
        &mut self,
        domain: ProtectionDomain,
        address: u64,
        len: u64,
        base: u64,
        access: Access,
    ) -> Result<Registered, i32> {
        const PAGE: u64 = 4096;
        let end = address.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE)).ok_or(libc::EINVAL)?;
        let first = address & !(PAGE - 1);
        if len == 0 {
            return Err(libc::EINVAL);
        }
        let Self { engine, card, .. } = self;
        let card = card.as_mut().ok_or(libc::EIO)?;
        let regions = &mut engine.memory().regions;
        let own = match card.domain {
            Some(own) => own,
            None => *card.domain.insert(regions.allocate_domain().map_err(|_| libc::ENOMEM)?),
        };
        let local = if access.allows(Access::LOCAL_WRITE) { Access::LOCAL_WRITE } else { Access::default() };
        let source = Source::Own { address: first, len: end - first };
        let held = regions.register(own, source, None, local).map_err(|error| crate::boundary::errno_of(&error))?;
        let done = regions.reached(held.lkey).map_err(|_| libc::EFAULT).and_then(|reached| {
            match parts_of(&reached, first, end) {
                Some(parts) => {
                    let skip = (address - first) as u32;
                    let asked = Register { domain, parts, skip, len, base, access };
                    let fds: Vec<_> = reached.pieces.iter().map(|piece| piece.file.fd()).collect();
                    let (mut words, _) = card.call(&wire::Request::Register(asked), &fds)?;
                    let mut key = || words.word().and_then(|word| u32::try_from(word).ok()).map(Key::new);
                    let (lkey, rkey) = key().zip(key()).ok_or(libc::EPROTO)?;
                    Ok(Registered { lkey, rkey, way: held.way })
                }
                None => {
                    let why = match (&reached.error, reached.left.first()) {
                        (Some(error), _) => error.to_string(),
                        (None, Some(left)) => left.why.to_string(),
                        (None, None) => "it is in too many pieces, or in files that can shrink".to_owned(),
                    };
                    crate::boundary::say(format_args!(
                        "place=card: {len} bytes at {address:#x} cannot be shared with the card: {why}. \
                     place=library needs no shared memory"
                    ));
                    Err(libc::EFAULT)
                }
            }
        });
        match done {
            Ok(made) => {
                card.regions.insert(made.lkey, held.lkey);
                Ok(made)
            }
            Err(error) => {
                let _ = regions.deregister(held.lkey);
                Err(error)
            }
        }
    }

    pub fn deregister_in_card(&mut self, key: Key) -> Result<(), i32> {
        let card = self.card.as_mut().ok_or(libc::EIO)?;
        card.gone_is_done(&wire::Request::Deregister(key))?;
        match card.regions.remove(&key) {
            Some(held) => {
                self.engine.memory().regions.deregister(held).map_err(|error| crate::boundary::errno_of(&error))
            }
            None => Err(libc::EINVAL),
        }
    }
}

fn why_no_engine(error: Errno) -> String {
    match error {
        Errno::NOENT | Errno::CONNREFUSED => "it has no engine for programs: start it with --rdma-cpu".to_owned(),
        Errno::ACCESS | Errno::PERM => {
            "only root and the user who runs the card may use its engine; others use place=library".to_owned()
        }
        error => format!("its engine cannot be called: {error}"),
    }
}

/// Where the pages from `first` to `end` are in files, if all of them are, one behind the other, and none can lose them.
fn parts_of(reached: &Reached, first: u64, end: u64) -> Option<Parts> {
    let mut at = first;
    for piece in &reached.pieces {
        if piece.first != at || piece.file.can_shrink() {
            return None;
        }
        at += piece.len;
    }
    Parts::new(reached.pieces.iter().map(|piece| (piece.offset, piece.len))).filter(|_| at == end)
}

/// Starts the thread that tells of events, and of the end of the card; it ends with the place.
pub(super) fn start(place: &Arc<Place>) -> std::io::Result<()> {
    let found = place.with(|running| {
        let card = running.card.as_ref().ok_or(libc::EIO)?;
        Ok((card.bell.clone(), rustix::io::fcntl_dupfd_cloexec(card.client.fd(), 0).map_err(|_| libc::EMFILE)?))
    });
    let (bell, link) = found.map_err(std::io::Error::from_raw_os_error)?;
    let place = Arc::downgrade(place);
    std::thread::Builder::new().name("millrace-verbs".to_owned()).spawn(move || run(&place, &bell, &link)).map(drop)
}

fn run(place: &Weak<Place>, bell: &OwnedFd, link: &OwnedFd) {
    let mut may_sleep = false;
    loop {
        let most = if may_sleep { ASLEEP } else { Duration::ZERO };
        let most = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
        let mut fds = [PollFd::new(bell, PollFlags::IN), PollFd::new(link, PollFlags::RDHUP)];
        let _ = poll(&mut fds, Some(&most));
        let has_gone = !fds[1].revents().is_empty();
        let Some(place) = place.upgrade() else { return };
        bell::heard(bell);
        let told = place.with(|running| {
            running.tell_of_card();
            if has_gone {
                running.lose_card();
            }
            let program = running.card.as_ref().map(|card| &card.program);
            Ok(program.is_none_or(Program::doze))
        });
        match told {
            Ok(nothing) if !has_gone => may_sleep = nothing,
            // Nobody is left to tell of anything.
            _ => return,
        }
    }
}
