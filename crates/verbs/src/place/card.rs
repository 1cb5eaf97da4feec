//! The engine outside of this process, in a card (`place=card`) or in a backend of the split driver (`split=`): objects by a [`Door`], work and
//! completions by rings in shared memory.
//!
//! Memory of the program becomes shared memory where it lies (decision 58), and its file goes to the engine with the region.

use super::door::{Door, Ears, Refused, Shown};
use super::running::DEVICE_FATAL;
use super::{Place, Running};
use crate::address::Address;
use crate::boundary::Ground;
use crate::config::Config;
use millrace_dma::Scope;
use millrace_link::LinkError;
use millrace_rdma::cm::address::ServiceId;
use millrace_rdma::engine::SharedReceiveQuery;
use millrace_rdma::memory::{ProtectionDomain, Reached, Registered, Source, WindowType};
use millrace_rdma::number::{Gid, Key, Qpn};
use millrace_rdma::served::{Full, ID_BITS, Program};
use millrace_rdma::transport::{Attributes, Capabilities, Event, Init, Query, State};
use millrace_rdma::work::{Access, Completion, Data, Piece, Request};
use millrace_served::bell;
use millrace_served::wire::{self, Bytes, Parts, Welcome, Words, qpn};
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long whoever posts waits for the card to take what was posted before.
const ROOM: Duration = Duration::from_millis(50);
/// Events that are taken at once.
const EVENTS: usize = 64;
/// How long the thread that waits for events sleeps, to learn that the place has ended.
const ASLEEP: Duration = Duration::from_millis(100);
/// How often it looks where nothing wakes it: in a virtual machine without a driver.
const LOOKS: Duration = Duration::from_micros(200);

/// A connection with the engine.
pub(crate) struct InCard {
    door: Door,
    program: Program,
    welcome: Welcome,
    pairs: FxHashMap<Qpn, Pair>,
    shared: FxHashMap<u32, SharedReceiveQuery>,
    /// Regions here, by the keys that the card gave them; none, where memory is the transport's from the first.
    regions: HashMap<Key, Option<Key>>,
    /// Completion queues, so that whoever sleeps on them is told when the card goes.
    queues: Vec<u32>,
    /// The domain of all regions here: whom they belong to is the card's matter.
    domain: Option<ProtectionDomain>,
    /// The lowest number that connections of this program may have.
    first_id: u32,
    is_gone: bool,
}

/// What is known here of a queue pair.
struct Pair {
    /// With what was granted.
    init: Init,
    /// As it was told last; that it has failed since is the card's knowledge.
    state: State,
}

/// What is done where there is no scope: everything that is registered has to become shared memory.
pub(super) fn scope(config: &Config) -> Option<Scope> {
    // Or nothing, where it is that from the first.
    Ground::of_process().is_none().then(|| config.adopt.unwrap_or(Scope::Heap))
}

impl InCard {
    /// Calls the engine that is wanted.
    pub fn open(config: &Config) -> Result<Self, LinkError> {
        let (place, side) = if config.split.is_some() { ("split=", "the backend") } else { ("place=card", "the card") };
        if config.split.is_some() && (config.in_card || config.card.is_some()) {
            let problem =
                "split= names a backend, whose engine is used: place=card and the name of a card go without it";
            return Err(LinkError::Place(problem.to_owned()));
        }
        if config.port.is_some() || config.ip.is_some() || config.mac.is_some() {
            let problem = format!("{place}: it has neither port= nor ip= nor mac=: {side} says who its programs are");
            return Err(LinkError::Place(problem));
        }
        if config.tx.is_some() || config.rx.is_some() || !config.local || !config.helper || !config.extended {
            let problem = format!(
                "{place}: tx=, rx=, local=off, helper=off and extended=off are about an engine in the program: without {place} they do something"
            );
            return Err(LinkError::Place(problem));
        }
        if config.adopts_nothing {
            let problem = format!(
                "{place}: adopt=off: {side} reaches registered memory because it becomes shared memory. Leave it out, or use place=library"
            );
            return Err(LinkError::Place(problem));
        }
        let (door, program, welcome) = Door::open(config)?;
        let (pairs, shared, regions, queues) = Default::default();
        let (domain, first_id, is_gone) = (None, 0, false);
        Ok(Self { door, program, welcome, pairs, shared, regions, queues, domain, first_id, is_gone })
    }

    /// What the engine is called, for people.
    pub fn engine(&self) -> &'static str {
        self.door.engine()
    }

    /// Where people see what it has counted.
    pub fn counts_at(&self) -> &'static str {
        self.door.counts_at()
    }

    /// Blocks of this program that had no room in pages of the transport, and cannot be registered.
    pub fn without_room(&self) -> Option<u64> {
        let ground = Ground::of_process()?.ok().filter(|_| self.door.has_own_pages())?;
        Some(ground.arena.without())
    }

    /// The name of this place.
    pub fn place(&self) -> &'static str {
        match self.door {
            Door::Card(_) => "card",
            Door::Guest(_) => "split",
        }
    }

    /// Who all programs of the card are.
    pub fn address(&self) -> Address {
        let ip = std::net::Ipv6Addr::from(self.welcome.gid.0).to_canonical();
        Address { mac: self.welcome.mac, ip }
    }

    /// Most bytes of payload of a packet.
    pub fn mtu(&self) -> u16 {
        self.welcome.mtu
    }

    /// What the card has counted, as JSON, if it is there.
    pub fn counters(&mut self) -> Option<String> {
        if self.is_gone { None } else { self.door.counters() }
    }

    /// The MAC address that leads to `gid`, if it is known; otherwise the card asks for it if it is to.
    pub fn look_up(&mut self, gid: Gid, asks: bool) -> Result<Option<[u8; 6]>, i32> {
        let mut words = self.call(&wire::Request::Resolve(gid, asks))?;
        match (words.word(), words.mac()) {
            (Some(0), _) => Ok(None),
            (Some(1), Some(mac)) => Ok(Some(mac)),
            _ => Err(libc::EPROTO),
        }
    }

    /// Whether the card has gone, or has said what nobody understands.
    pub fn has_gone(&self) -> bool {
        self.is_gone
    }

    fn call(&mut self, request: &wire::Request) -> Result<Words, i32> {
        self.ask(|door| door.call(request))
    }

    fn ask<R>(&mut self, ask: impl FnOnce(&mut Door) -> Result<R, Refused>) -> Result<R, i32> {
        if self.is_gone {
            return Err(libc::EIO);
        }
        ask(&mut self.door).map_err(|Refused { errno, is_over }| {
            if is_over {
                self.give_up();
            }
            errno
        })
    }

    fn number(&mut self, request: &wire::Request) -> Result<u32, i32> {
        self.call(request)?.word().and_then(|word| u32::try_from(word).ok()).ok_or(libc::EPROTO)
    }

    pub fn create_domain(&mut self) -> Result<ProtectionDomain, i32> {
        self.number(&wire::Request::CreateDomain).map(ProtectionDomain)
    }

    pub fn destroy_domain(&mut self, domain: ProtectionDomain) -> Result<(), i32> {
        self.call(&wire::Request::DestroyDomain(domain)).map(drop)
    }

    pub fn create_queue(&mut self, depth: u32) -> Result<u32, i32> {
        let (number, ring) = self.ask(|door| door.create_queue(depth))?;
        if self.program.add_queue(number, depth, &ring).is_err() {
            let _ = self.call(&wire::Request::DestroyQueue(number));
            self.door.forget_queue(number);
            return Err(libc::EPROTO);
        }
        self.queues.push(number);
        Ok(number)
    }

    pub fn resize_queue(&mut self, queue: u32, depth: u32) -> Result<u32, i32> {
        let ring = self.ask(|door| door.resize_queue(queue, depth))?;
        // The engine writes to nothing else any more: what cannot be read is the end.
        if self.program.resize_queue(queue, depth, &ring).is_err() {
            self.give_up();
            return Err(libc::EPROTO);
        }
        Ok(depth)
    }

    pub fn create_window(&mut self, domain: ProtectionDomain, kind: WindowType) -> Result<Key, i32> {
        self.number(&wire::Request::CreateWindow(domain, kind)).map(Key::new)
    }

    pub fn next_window_key(&mut self, window: Key) -> Result<Key, i32> {
        self.number(&wire::Request::NextWindowKey(window)).map(Key::new)
    }

    pub fn forget_window_key(&mut self, rkey: Key) {
        let _ = self.call(&wire::Request::ForgetWindowKey(rkey));
    }

    pub fn destroy_window(&mut self, window: Key) -> Result<(), i32> {
        self.gone_is_done(&wire::Request::DestroyWindow(window))
    }

    pub fn destroy_queue(&mut self, queue: u32) -> Result<(), i32> {
        self.gone_is_done(&wire::Request::DestroyQueue(queue))?;
        self.program.remove_queue(queue);
        if !self.is_gone {
            self.door.forget_queue(queue);
        }
        self.queues.retain(|one| *one != queue);
        Ok(())
    }

    /// Destroys something; what a card had that has gone is gone, too.
    fn gone_is_done(&mut self, request: &wire::Request) -> Result<(), i32> {
        match self.call(request) {
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
        self.call(&wire::Request::SetLimit(shared, limit))?;
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
        let mut words = self.call(&wire::Request::CreatePair(*init))?;
        if init.general {
            self.first_id = words.word().and_then(|word| u32::try_from(word).ok()).ok_or(libc::EPROTO)?;
        }
        let number = qpn(&mut words).ok_or(libc::EPROTO)?;
        let granted = words.capabilities().ok_or(libc::EPROTO)?;
        self.program.add_pair(number, &granted, init.shared_receive_queue.is_some());
        self.pairs.insert(number, Pair { init: Init { capabilities: granted, ..*init }, state: State::Reset });
        Ok((number, granted))
    }

    /// Numbers that connections of this program may have: the lowest, and how many of their lower bits are its choice.
    pub fn ids(&self) -> (u32, u8) {
        (self.first_id, ID_BITS)
    }

    /// Calls of a service are for this program from now on.
    pub fn offer(&mut self, service: ServiceId) -> Result<(), i32> {
        // Ports are given back at once: there is nothing to wait for.
        let offered = self.call(&wire::Request::Offer(service)).map(drop);
        offered.map_err(|error| if error == libc::EAGAIN { libc::ENOMEM } else { error })
    }

    /// They are so no longer.
    pub fn withdraw(&mut self, service: ServiceId) -> Result<(), i32> {
        self.gone_is_done(&wire::Request::Withdraw(service))
    }

    pub fn modify_pair(&mut self, number: Qpn, told: &Attributes) -> Result<State, i32> {
        let mut words = self.call(&wire::Request::ModifyPair(number, *told))?;
        let state = words.word().and_then(wire::state).ok_or(libc::EPROTO)?;
        let pair = self.pairs.get_mut(&number).ok_or(libc::EPROTO)?;
        pair.state = state;
        if state == State::Reset {
            // Its queues are empty again.
            self.program.add_pair(number, &pair.init.capabilities, pair.init.shared_receive_queue.is_some());
        }
        Ok(state)
    }

    pub fn query_pair(&mut self, number: Qpn) -> Result<Query, i32> {
        let mut words = self.call(&wire::Request::QueryPair(number))?;
        let draining = words.word().ok_or(libc::EPROTO)? == 1;
        let attributes = words.attributes().ok_or(libc::EPROTO)?;
        let init = self.pairs.get(&number).ok_or(libc::EPROTO)?.init;
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

    fn ring(&mut self) {
        self.door.ring();
    }

    /// Whether the queue pair takes such a request: what can be known here is said at once.
    #[inline]
    fn check(&self, number: Qpn, request: &Request<'_>) -> Result<(), i32> {
        let pair = self.pairs.get(&number).ok_or(libc::EINVAL)?;
        let may_post = !matches!(pair.state, State::Reset | State::Init | State::ReadyToReceive);
        let granted = &pair.init.capabilities;
        let fits = match request.data {
            Data::Pieces(pieces) => pieces.len() <= granted.send_pieces as usize,
            Data::Inline(parts) => parts.iter().map(|part| part.len()).sum::<usize>() <= granted.inline as usize,
        };
        if may_post && fits { Ok(()) } else { Err(libc::EINVAL) }
    }

    /// Posts such a WRITE, if there is nothing to be said about it (`Program::write_short`).
    #[inline(always)]
    pub fn write_short(&mut self, number: Qpn, id: u64, to: (u64, Key), bytes: &[u8], signaled: bool) -> bool {
        let Some(pair) = self.pairs.get(&number) else { return false };
        if self.is_gone || pair.state != State::ReadyToSend || bytes.len() > pair.init.capabilities.inline as usize {
            return false;
        }
        match self.program.write_short(number, id, to, bytes, signaled) {
            Some(true) => self.ring(),
            Some(false) => {}
            None => return false,
        }
        true
    }

    #[inline]
    pub fn post_send(&mut self, number: Qpn, request: &Request<'_>) -> Result<(), i32> {
        self.check(number, request)?;
        self.post(|program| program.has_room(number, 1), |program| program.post_send(number, request))
    }

    pub fn post_receive(&mut self, number: Qpn, id: u64, pieces: &[Piece]) -> Result<(), i32> {
        let pair = self.pairs.get(&number).ok_or(libc::EINVAL)?;
        if pair.state == State::Reset || pieces.len() > pair.init.capabilities.receive_pieces as usize {
            return Err(libc::EINVAL);
        }
        self.post(|program| program.has_receive_room(number), |program| program.post_receive(number, id, pieces))
    }

    pub fn post_shared(&mut self, shared: u32, id: u64, pieces: &[Piece]) -> Result<(), i32> {
        if self.shared.get(&shared).is_none_or(|query| pieces.len() > query.pieces as usize) {
            return Err(libc::EINVAL);
        }
        self.post(|_| true, |program| program.post_shared(shared, id, pieces))
    }

    pub fn arm(&mut self, queue: u32, solicited_only: bool) -> Result<(), i32> {
        self.post(|_| true, |program| program.arm(queue, solicited_only))
    }

    /// Whether all of these would be posted; waits a little for the card to take what was posted before.
    pub fn would_post<'r>(&mut self, number: Qpn, all: impl Iterator<Item = Request<'r>> + Clone) -> Result<(), i32> {
        all.clone().try_for_each(|request| self.check(number, &request))?;
        if !self.program.has_room(number, all.clone().count()) {
            return Err(libc::ENOMEM);
        }
        let until = Instant::now() + ROOM;
        while !self.program.has_lines(number, all.clone()).map_err(|_| libc::EINVAL)? {
            if Instant::now() > until {
                return Err(libc::ENOMEM);
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    #[inline]
    pub fn has_completions(&self, queue: u32) -> bool {
        self.program.has_completions(queue)
    }

    /// Takes completions, `most` of them. How many they were. When the card has gone, those that it has written still come.
    #[inline]
    pub fn poll(&mut self, queue: u32, most: usize, mut each: impl FnMut(&Completion)) -> Result<usize, i32> {
        let (mut count, mut one) = (0, [Completion::default()]);
        while count < most {
            match self.program.poll(queue, &mut one) {
                Ok(0) => break,
                Ok(_) => each(&one[0]),
                Err(_) => {
                    self.give_up();
                    break;
                }
            }
            count += 1;
        }
        if count == 0 && self.is_gone { Err(libc::EIO) } else { Ok(count) }
    }

    /// What has come is not from a card, or it does not answer: it is hung up on. The thread that looks at the socket sees that, and
    /// tells everybody.
    fn give_up(&mut self) {
        self.is_gone = true;
        self.door.hang_up();
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
        let (engine, start) = (card.door.engine(), card.door.start());
        crate::boundary::say(format_args!("{engine} is gone. Start {start} and open the device again"));
        let queues = card.queues.iter().map(|queue| Event::Completion(*queue));
        let all: Vec<Event> = queues.chain(card.pairs.keys().map(|pair| Event::QueuePairFatal(*pair))).collect();
        all.into_iter().for_each(|event| self.tell(event));
        self.tell_contexts(DEVICE_FATAL);
    }

    /// Registers memory in the card: whole pages of it become shared memory here, and the card maps their file.
    pub fn register_in_card(
        &mut self,
        domain: ProtectionDomain,
        memory: &OwnMemory,
        access: Access,
    ) -> Result<Registered, i32> {
        let held = self.hold(memory, access)?;
        let made = self.show_card(memory, held, |door, shown| door.register(domain, access, shown));
        self.keep_held(held, made)
    }

    /// Changes a region in the card: other memory, another domain, other rights.
    pub fn reregister_in_card(
        &mut self,
        key: Key,
        memory: Option<&OwnMemory>,
        domain: Option<ProtectionDomain>,
        access: Option<Access>,
    ) -> Result<Registered, i32> {
        let old = self.card.as_ref().and_then(|card| card.regions.get(&key).copied()).ok_or(libc::EINVAL)?;
        let Some(memory) = memory else {
            let card = self.card.as_mut().ok_or(libc::EIO)?;
            let made = card.ask(|door| door.reregister(key, domain, access, None))?;
            card.regions.remove(&key);
            card.regions.insert(made.lkey, old);
            return Ok(made);
        };
        let held = self.hold(memory, access.unwrap_or(Access::LOCAL_WRITE))?;
        let made = self.show_card(memory, held, |door, shown| door.reregister(key, domain, access, Some(shown)));
        let made = self.keep_held(held, made)?;
        if let Some(card) = &mut self.card {
            card.regions.remove(&key);
        }
        self.let_go(old);
        Ok(made)
    }

    /// A region here, so that its memory becomes shared memory, and stays.
    fn hold(&mut self, memory: &OwnMemory, access: Access) -> Result<Option<Key>, i32> {
        let (first, end) = memory.pages()?;
        let Self { engine, card, .. } = self;
        let card = card.as_mut().ok_or(libc::EIO)?;
        if card.door.has_own_pages() {
            return Ok(None);
        }
        let regions = &mut engine.memory().regions;
        let own = match card.domain {
            Some(own) => own,
            None => *card.domain.insert(regions.allocate_domain().map_err(|_| libc::ENOMEM)?),
        };
        let local = if access.allows(Access::LOCAL_WRITE) { Access::LOCAL_WRITE } else { Access::default() };
        let source = Source::Own { address: first, len: end - first };
        let held = regions.register(own, source, None, local).map_err(|error| crate::boundary::errno_of(&error))?;
        Ok(Some(held.lkey))
    }

    fn let_go(&mut self, held: Option<Key>) {
        let _ = held.map(|held| self.engine.memory().regions.deregister(held));
    }

    /// Passes the files of a region to the card, with what is asked for.
    fn show_card(
        &mut self,
        memory: &OwnMemory,
        held: Option<Key>,
        ask: impl FnOnce(&mut Door, &Shown<'_>) -> Result<Registered, Refused>,
    ) -> Result<Registered, i32> {
        let (first, end) = memory.pages()?;
        let reached =
            held.map(|held| self.engine.memory().regions.reached(held)).transpose().map_err(|_| libc::EFAULT)?;
        let parts = match &reached {
            Some(reached) => parts_of(reached, first, end).ok_or_else(|| {
                let place = self.card.as_ref().map_or("", |card| card.door.engine());
                memory.say_why_not(place, reached);
                libc::EFAULT
            })?,
            // All of it is in the one place that there is.
            None => Parts::new([(first, end - first)]).ok_or(libc::EINVAL)?,
        };
        let bytes = Bytes { parts, skip: (memory.address - first) as u32, len: memory.len, base: memory.base };
        let shown = Shown { reached: reached.as_ref(), pages: (first, end), bytes };
        self.card.as_mut().ok_or(libc::EIO)?.ask(|door| ask(door, &shown))
    }

    /// What is held here belongs to the region that the card has made, or to nobody.
    fn keep_held(&mut self, held: Option<Key>, made: Result<Registered, i32>) -> Result<Registered, i32> {
        match (made, &mut self.card) {
            (Ok(made), Some(card)) => {
                card.regions.insert(made.lkey, held);
                Ok(made)
            }
            (made, _) => {
                self.let_go(held);
                made.and(Err(libc::EIO))
            }
        }
    }

    pub fn deregister_in_card(&mut self, key: Key) -> Result<(), i32> {
        let card = self.card.as_mut().ok_or(libc::EIO)?;
        match card.ask(|door| door.deregister(key)) {
            Err(_) if card.is_gone => {}
            other => other?,
        }
        match card.regions.remove(&key) {
            Some(Some(held)) => {
                self.engine.memory().regions.deregister(held).map_err(|error| crate::boundary::errno_of(&error))
            }
            Some(None) => Ok(()),
            None => Err(libc::EINVAL),
        }
    }
}

/// Memory of this program that is to be registered.
pub(crate) struct OwnMemory {
    pub address: u64,
    pub len: u64,
    /// The address that requests have for its first byte.
    pub base: u64,
}

impl OwnMemory {
    /// Where its first page begins, and its last one ends.
    fn pages(&self) -> Result<(u64, u64), i32> {
        const PAGE: u64 = 4096;
        let end = self.address.checked_add(self.len).and_then(|end| end.checked_next_multiple_of(PAGE));
        let end = end.filter(|_| self.len > 0).ok_or(libc::EINVAL)?;
        Ok((self.address & !(PAGE - 1), end))
    }

    fn say_why_not(&self, engine: &str, reached: &Reached) {
        let Self { address, len, .. } = self;
        let why = match (&reached.error, reached.left.first()) {
            (Some(error), _) => error.to_string(),
            (None, Some(left)) => left.why.to_string(),
            (None, None) => "it is in too many pieces, or in files that can shrink".to_owned(),
        };
        crate::boundary::say(format_args!(
            "{len} bytes at {address:#x} cannot be shared with {engine}: {why}. place=library needs no shared memory"
        ));
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
        card.door.ears().map_err(|error| error.raw_os_error())
    });
    let ears = found.map_err(std::io::Error::from_raw_os_error)?;
    let place = Arc::downgrade(place);
    std::thread::Builder::new().name("millrace-verbs".to_owned()).spawn(move || run(&place, &ears)).map(drop)
}

fn run(place: &Weak<Place>, ears: &Ears) {
    let Ears { bell, link, nudge } = ears;
    let mut may_sleep = false;
    let mut fds: Vec<PollFd<'_>> = link.iter().map(|link| PollFd::new(link, PollFlags::RDHUP)).collect();
    fds.extend(bell.iter().map(|bell| PollFd::new(bell, PollFlags::IN)));
    fds.extend(nudge.iter().map(|nudge| PollFd::from_borrowed_fd(nudge.as_fd(), PollFlags::IN)));
    let asleep = if bell.is_some() { ASLEEP } else { LOOKS };
    loop {
        let most = if may_sleep { asleep } else { Duration::ZERO };
        let most = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
        let _ = poll(&mut fds, Some(&most));
        let is_hung_up = link.is_some() && !fds[0].revents().is_empty();
        let Some(place) = place.upgrade() else { return };
        let told = place.with(|running| {
            // Not before: whoever has the lock may wait for an answer, by the same bell.
            let mut has_gone = is_hung_up;
            match (link, &mut running.card) {
                (Some(_), _) => bell.iter().for_each(bell::heard),
                (None, Some(card)) => {
                    card.door.hear();
                    has_gone = card.is_gone || card.door.has_gone();
                }
                (None, None) => {}
            }
            nudge.iter().for_each(bell::heard_by_card);
            running.tell_of_card();
            if has_gone {
                running.lose_card();
            }
            let program = running.card.as_ref().map(|card| &card.program);
            Ok((program.is_none_or(Program::doze), has_gone))
        });
        match told {
            Ok((nothing, false)) => may_sleep = nothing,
            // Nobody is left to tell of anything.
            _ => return,
        }
    }
}
