//! Objects of programs: made, told and destroyed, each by its owner only.

use super::books::{Account, Amounts, Debt};
use super::queue_lines;
use super::service::{Number, PairOf, Process, QueueOf, ServeError, Service};
use crate::engine::{Error, Leftover};
use crate::memory::{Change, ProtectionDomain, Regions, Registered, Source, WindowType};
use crate::number::{Key, Qpn};
use crate::transport::{Attributes, Capabilities, Init, Query, State};
use crate::wire::Service as Kind;
use crate::work::Access;
use millrace_dma::{Pages, Region, Window};
use millrace_ring::lines::{Sender, bytes_of};

const DOMAIN: &str = "protection domain";
const QUEUE: &str = "completion queue";
const SHARED: &str = "shared receive queue";
const PAIR: &str = "queue pair";

/// What a program has, besides its regions.
pub(super) struct Owned {
    pub domains: Vec<ProtectionDomain>,
    pub queues: Vec<u32>,
    pub shared: Vec<u32>,
    pub pairs: Vec<Qpn>,
    /// Who pays for it, and for what.
    pub account: Account,
    pub has: Amounts,
}

impl Owned {
    /// Nothing, of somebody.
    pub fn of(account: Account) -> Self {
        let (domains, queues, shared, pairs) = Default::default();
        Self { domains, queues, shared, pairs, account, has: Amounts::default() }
    }
}

/// Of a region.
fn price_of(memory: &Window, mappings: usize) -> Amounts {
    Amounts { regions: mappings as u64, bytes: memory.len() as u64, ..Amounts::default() }
}

/// About the bytes of a queue of requests. As many as a power of two.
fn requests(depth: u32, pieces: u32, inline: u32) -> u64 {
    const SLOT: u64 = 192;
    slots(depth).saturating_mul(SLOT + 16 * u64::from(pieces) + u64::from(inline))
}

/// About the bytes of a queue of buffers.
fn buffers(depth: u32, pieces: u32) -> u64 {
    const SLOT: u64 = 32;
    slots(depth).saturating_mul(SLOT + 16 * u64::from(pieces))
}

fn slots(depth: u32) -> u64 {
    if depth == 0 { 0 } else { u64::from(depth).next_power_of_two() }
}

fn has<T: PartialEq>(all: &[T], one: &T, what: &'static str) -> Result<(), ServeError> {
    if all.contains(one) { Ok(()) } else { Err(Error::Missing(what).into()) }
}

impl Service {
    fn process(&mut self, program: Number) -> Result<&mut Process, ServeError> {
        self.processes.get_mut(program.0).ok_or(ServeError::Gone)
    }

    fn owned(&mut self, program: Number) -> Result<&mut Owned, ServeError> {
        self.process(program).map(|process| &mut process.owned)
    }

    /// Whether a program may have so much more.
    pub(super) fn check_room(&mut self, program: Number, more: &Amounts) -> Result<(), ServeError> {
        let owned = &self.processes.get(program.0).ok_or(ServeError::Gone)?.owned;
        self.books.check(owned.account, &owned.has, more)
    }

    /// It has so much more.
    pub(super) fn pay(&mut self, program: Number, more: &Amounts) {
        if let Some(process) = self.processes.get_mut(program.0) {
            process.owned.has = process.owned.has.plus(more);
            self.books.add(process.owned.account, more);
        }
    }

    /// It has so much less.
    pub(super) fn give_back(&mut self, program: Number, less: &Amounts) {
        if let Some(process) = self.processes.get_mut(program.0) {
            process.owned.has = process.owned.has.minus(less);
            self.books.sub(process.owned.account, less);
        }
    }

    /// The program has so much less, and its user when what is returned is dropped.
    fn give_up(&mut self, program: Number, less: &Amounts) -> Result<Debt, ServeError> {
        let owned = &mut self.processes.get_mut(program.0).ok_or(ServeError::Gone)?.owned;
        owned.has = owned.has.minus(less);
        Ok(self.books.owe(owned.account, less))
    }

    /// Whether a program may register so many bytes more, in so many mappings. Before they are mapped.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn may_register(&mut self, program: Number, bytes: u64, mappings: usize) -> Result<(), ServeError> {
        self.check_room(program, &Amounts { regions: mappings as u64, bytes, ..Amounts::default() })
    }

    /// Whether something of that kind that the user of a program has given up is still there: then there may be room soon where there was none.
    pub fn is_owed(&self, program: Number, what: &str) -> bool {
        self.processes.get(program.0).is_some_and(|process| self.books.owes(process.owned.account, what))
    }

    /// A protection domain.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn create_domain(&mut self, program: Number) -> Result<ProtectionDomain, ServeError> {
        let price = Amounts { domains: 1, ..Amounts::default() };
        self.check_room(program, &price)?;
        let memory = self.process(program)?.memory;
        let domain = self.engine.create_domain()?;
        let reach = self.engine.memory();
        let ours = match reach.regions.get_mut(memory).map(|regions| regions.allocate_domain()) {
            Some(Ok(ours)) => ours,
            Some(Err(error)) => {
                self.engine.destroy_domain(domain)?;
                return Err(error.into());
            }
            None => return Err(ServeError::Gone),
        };
        reach.join(domain, Some((memory, ours)));
        self.owned(program)?.domains.push(domain);
        self.pay(program, &price);
        Ok(domain)
    }

    /// Ends a protection domain.
    ///
    /// # Errors
    /// [`ServeError`]; also while it has regions or queue pairs.
    pub fn destroy_domain(&mut self, program: Number, domain: ProtectionDomain) -> Result<(), ServeError> {
        has(&self.owned(program)?.domains, &domain, DOMAIN)?;
        let reach = self.engine.memory();
        let (memory, ours) = reach.domain(domain).ok_or(Error::Missing(DOMAIN))?;
        // The engine is asked first, and changes nothing if it has users; the memory has to agree before.
        let is_free = reach.regions.get_mut(memory).is_none_or(|regions| !regions.has_users(ours));
        if !is_free {
            return Err(Error::Busy(DOMAIN).into());
        }
        self.engine.destroy_domain(domain)?;
        let reach = self.engine.memory();
        if let Some(regions) = reach.regions.get_mut(memory) {
            regions.free_domain(ours)?;
        }
        reach.join(domain, None);
        self.owned(program)?.domains.retain(|one| *one != domain);
        self.give_back(program, &Amounts { domains: 1, ..Amounts::default() });
        Ok(())
    }

    /// Registers memory of the program, which is mapped here.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn register(
        &mut self,
        program: Number,
        domain: ProtectionDomain,
        memory: &Region,
        base: Option<u64>,
        access: Access,
    ) -> Result<Registered, ServeError> {
        self.register_window(program, domain, (memory.window().clone(), 1), base, access)
    }

    /// The same with a part of what is mapped, and how many mappings it has.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn register_window(
        &mut self,
        program: Number,
        domain: ProtectionDomain,
        (memory, mappings): (Window, usize),
        base: Option<u64>,
        access: Access,
    ) -> Result<Registered, ServeError> {
        let domain = self.domain_of(program, domain)?;
        let price = price_of(&memory, mappings);
        self.check_room(program, &price)?;
        let made = self.regions(program)?.register(domain, Source::Window(memory), base, access)?;
        self.process(program)?.paid.insert(made.lkey, price);
        self.pay(program, &price);
        Ok(made)
    }

    /// The regions of a program.
    fn regions(&mut self, program: Number) -> Result<&mut Regions, ServeError> {
        let memory = self.process(program)?.memory;
        self.engine.memory().regions.get_mut(memory).ok_or(ServeError::Gone)
    }

    /// What a domain of a program is called among its regions.
    fn domain_of(&mut self, program: Number, domain: ProtectionDomain) -> Result<ProtectionDomain, ServeError> {
        has(&self.owned(program)?.domains, &domain, DOMAIN)?;
        let (_, ours) = self.engine.memory().domain(domain).ok_or(Error::Missing(DOMAIN))?;
        Ok(ours)
    }

    /// Changes a region, which gets new keys: other bytes (with the address of the first), another domain, other rights. After an error it is as it was.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn reregister(
        &mut self,
        program: Number,
        lkey: Key,
        translation: Option<((Window, usize), u64)>,
        domain: Option<ProtectionDomain>,
        access: Option<Access>,
    ) -> Result<(Registered, Leftover), ServeError> {
        let domain = domain.map(|domain| self.domain_of(program, domain)).transpose()?;
        let price = translation.as_ref().map(|((memory, mappings), _)| price_of(memory, *mappings));
        // As if it had both, which it has for a moment.
        self.check_room(program, &price.unwrap_or_default())?;
        let translation = translation.map(|((memory, _), base)| (Source::Window(memory), Some(base)));
        let (made, remains) = self.regions(program)?.exchange(lkey, Change { translation, domain, access })?;
        let before = self.process(program)?.paid.remove(&lkey).unwrap_or_default();
        // The same bytes are not paid for twice.
        let Some(price) = price else {
            self.process(program)?.paid.insert(made.lkey, before);
            return Ok((made, Box::new(remains)));
        };
        self.process(program)?.paid.insert(made.lkey, price);
        self.pay(program, &price);
        let debt = self.give_up(program, &before)?;
        Ok((made, Box::new((remains, debt))))
    }

    /// Nobody reaches it any more.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn deregister(&mut self, program: Number, lkey: Key) -> Result<Leftover, ServeError> {
        let remains = self.regions(program)?.take_back(lkey)?;
        let paid = self.process(program)?.paid.remove(&lkey).unwrap_or_default();
        let debt = self.give_up(program, &paid)?;
        Ok(Box::new((remains, debt)))
    }

    /// A window that opens nothing yet.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn create_window(
        &mut self,
        program: Number,
        domain: ProtectionDomain,
        kind: WindowType,
    ) -> Result<Key, ServeError> {
        let domain = self.domain_of(program, domain)?;
        Ok(self.regions(program)?.allocate_window(domain, kind)?)
    }

    /// The key that a window of type 1 will have by the next request that binds it.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn next_window_key(&mut self, program: Number, window: Key) -> Result<Key, ServeError> {
        Ok(self.regions(program)?.next_window_key(window)?)
    }

    /// The request for which that key was given out is not made.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn forget_window_key(&mut self, program: Number, rkey: Key) -> Result<(), ServeError> {
        self.regions(program)?.forget_window_key(rkey);
        Ok(())
    }

    /// Ends a window.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn destroy_window(&mut self, program: Number, window: Key) -> Result<(), ServeError> {
        Ok(self.regions(program)?.free_window(window)?)
    }

    /// A completion queue. `share` gets the memory of its ring, which has [`queue_lines`] lines.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn create_queue<R>(
        &mut self,
        program: Number,
        depth: u32,
        share: impl FnOnce(&Region) -> Result<R, ServeError>,
    ) -> Result<(u32, R), ServeError> {
        let price = Amounts { queues: 1, completions: depth.into(), ..Amounts::default() };
        self.check_room(program, &price)?;
        let (ring, memory) = self.ring(depth)?;
        let shared = share(&memory)?;
        let queue = self.engine.create_cq(depth)?;
        self.owned(program)?.queues.push(queue);
        self.pay(program, &price);
        let of = QueueOf { owner: program, ring, written: 0, told: 0, depth, memory: Some(memory.without_fd()) };
        self.queues.insert(queue, of);
        Ok((queue, shared))
    }

    /// A completion queue whose ring is in memory that the program has made, of zeros: [`queue_lines`] lines.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn create_queue_at(&mut self, program: Number, depth: u32, ring: &Window) -> Result<u32, ServeError> {
        let price = Amounts { queues: 1, completions: depth.into(), ..Amounts::default() };
        self.check_room(program, &price)?;
        self.check_depth(depth)?;
        let ring = Sender::new(ring, queue_lines(depth))?;
        let queue = self.engine.create_cq(depth)?;
        self.owned(program)?.queues.push(queue);
        self.pay(program, &price);
        self.queues.insert(queue, QueueOf { owner: program, ring, written: 0, told: 0, depth, memory: None });
        Ok(queue)
    }

    fn check_depth(&self, depth: u32) -> Result<(), ServeError> {
        let is_possible = (1..=self.engine.options().max_completions).contains(&depth);
        if is_possible { Ok(()) } else { Err(Error::Range("depth").into()) }
    }

    /// A ring with room for so many completions.
    fn ring(&self, depth: u32) -> Result<(Sender, Region), ServeError> {
        self.check_depth(depth)?;
        let lines = queue_lines(depth);
        let memory = Region::allocate(bytes_of(lines), Pages::Ordinary)?;
        Ok((Sender::new(memory.window(), lines)?, memory))
    }

    /// A completion queue gets another depth, and with it another ring: what the program has not taken from the old one stays there for
    /// it, and nothing more is written to that. `share` gets the memory of the new one.
    ///
    /// # Errors
    /// [`ServeError`]; then it is as it was.
    pub fn resize_queue<R>(
        &mut self,
        program: Number,
        queue: u32,
        depth: u32,
        share: impl FnOnce(&Region) -> Result<R, ServeError>,
    ) -> Result<(R, Leftover), ServeError> {
        has(&self.owned(program)?.queues, &queue, QUEUE)?;
        self.check_room(program, &Amounts { completions: depth.into(), ..Amounts::default() })?;
        let (ring, memory) = self.ring(depth)?;
        let shared = share(&memory)?;
        let left = self.exchange_ring(program, queue, depth, ring, Some(memory.without_fd()))?;
        Ok((shared, left))
    }

    /// The same where the ring is in memory that the program has made, of zeros.
    ///
    /// # Errors
    /// [`ServeError`]; then it is as it was.
    pub fn resize_queue_at(
        &mut self,
        program: Number,
        queue: u32,
        depth: u32,
        ring: &Window,
    ) -> Result<Leftover, ServeError> {
        has(&self.owned(program)?.queues, &queue, QUEUE)?;
        self.check_depth(depth)?;
        let ring = Sender::new(ring, queue_lines(depth))?;
        self.exchange_ring(program, queue, depth, ring, None)
    }

    /// Nothing more is written to the ring that it had, which is what is left.
    fn exchange_ring(
        &mut self,
        program: Number,
        queue: u32,
        depth: u32,
        ring: Sender,
        memory: Option<Region>,
    ) -> Result<Leftover, ServeError> {
        // As if it had both rings, which it has for a moment.
        let price = |depth: u32| Amounts { completions: depth.into(), ..Amounts::default() };
        self.check_room(program, &price(depth))?;
        let before = self.queues.get(&queue).map_or(0, |of| of.depth);
        self.engine.resize_cq(queue, depth)?;
        self.pay(program, &price(depth));
        let debt = self.give_up(program, &price(before))?;
        let of = self.queues.get_mut(&queue).ok_or(ServeError::Gone)?;
        let ring = core::mem::replace(&mut of.ring, ring);
        let memory = core::mem::replace(&mut of.memory, memory);
        of.depth = depth;
        Ok(Box::new((ring, memory, debt)))
    }

    /// Ends a completion queue.
    ///
    /// # Errors
    /// [`ServeError`]; also while queue pairs use it.
    pub fn destroy_queue(&mut self, program: Number, queue: u32) -> Result<Leftover, ServeError> {
        has(&self.owned(program)?.queues, &queue, QUEUE)?;
        let left = self.engine.take_cq(queue)?;
        let of = self.queues.remove(&queue);
        let depth = of.as_ref().map_or(0, |of| of.depth);
        self.owned(program)?.queues.retain(|one| *one != queue);
        let paid = Amounts { queues: 1, completions: depth.into(), ..Amounts::default() };
        let debt = self.give_up(program, &paid)?;
        Ok(Box::new((left, of, debt)))
    }

    /// A shared receive queue.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn create_shared(
        &mut self,
        program: Number,
        domain: ProtectionDomain,
        depth: u32,
        pieces: u32,
    ) -> Result<u32, ServeError> {
        has(&self.owned(program)?.domains, &domain, DOMAIN)?;
        let price = Amounts { shared: 1, queue_bytes: buffers(depth, pieces), ..Amounts::default() };
        self.check_room(program, &price)?;
        let shared = self.engine.create_srq(domain, depth, pieces)?;
        self.owned(program)?.shared.push(shared);
        self.pay(program, &price);
        self.shared.insert(shared, (program, price));
        Ok(shared)
    }

    /// With fewer buffers than that there is an event, once.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn set_shared_limit(&mut self, program: Number, shared: u32, limit: u32) -> Result<(), ServeError> {
        has(&self.owned(program)?.shared, &shared, SHARED)?;
        Ok(self.engine.set_srq_limit(shared, limit)?)
    }

    /// Ends a shared receive queue.
    ///
    /// # Errors
    /// [`ServeError`]; also while queue pairs use it.
    pub fn destroy_shared(&mut self, program: Number, shared: u32) -> Result<Leftover, ServeError> {
        has(&self.owned(program)?.shared, &shared, SHARED)?;
        let left = self.engine.take_srq(shared)?;
        let paid = self.shared.remove(&shared).map_or_else(Amounts::default, |(_, paid)| paid);
        self.owned(program)?.shared.retain(|one| *one != shared);
        let debt = self.give_up(program, &paid)?;
        Ok(Box::new((left, debt)))
    }

    /// A queue pair of a connection.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn create_pair(&mut self, program: Number, init: &Init) -> Result<(Qpn, Capabilities), ServeError> {
        // The engine has many of them, as datagrams of any other kind: it is the service that gives them what comes.
        let is_general = init.general;
        let init = &Init { general: false, ..*init };
        if is_general && (init.service != Kind::UnreliableDatagram || self.general.has(program)) {
            return Err(Error::Busy("number of the general service interface").into());
        }
        let owned = self.owned(program)?;
        has(&owned.domains, &init.domain, DOMAIN)?;
        has(&owned.queues, &init.send_queue, QUEUE)?;
        has(&owned.queues, &init.receive_queue, QUEUE)?;
        if let Some(shared) = init.shared_receive_queue {
            has(&owned.shared, &shared, SHARED)?;
        }
        if init.capabilities.inline > super::MOST_INLINE as u32 {
            return Err(Error::Range("inline").into());
        }
        let Capabilities { send_requests, receive_requests, send_pieces, receive_pieces, inline } = init.capabilities;
        let queue_bytes = requests(send_requests, send_pieces, inline);
        let queue_bytes = queue_bytes.saturating_add(buffers(receive_requests, receive_pieces));
        let paid = Amounts { pairs: 1, queue_bytes, ..Amounts::default() };
        self.check_room(program, &paid)?;
        let (qpn, granted) = self.engine.create_qp_of(program.0 as u32, init)?;
        self.owned(program)?.pairs.push(qpn);
        self.pay(program, &paid);
        let (send_queue, receive_queue) = (init.send_queue, init.receive_queue);
        self.pairs.insert(qpn, PairOf { owner: program, send_queue, receive_queue, paid });
        if is_general {
            self.general.enter(program, qpn);
        }
        Ok((qpn, granted))
    }

    /// Tells a queue pair something, and brings it into another state.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn modify_pair(&mut self, program: Number, qpn: Qpn, told: &Attributes) -> Result<State, ServeError> {
        has(&self.owned(program)?.pairs, &qpn, PAIR)?;
        // Nobody speaks for another address.
        if told.path.is_some_and(|path| !self.is_own(&path)) {
            return Err(Error::Range("source address").into());
        }
        Ok(self.engine.modify_qp(qpn, told)?)
    }

    /// The same with whatever source address: for whoever gives the program an address of its own, and not as the program asks.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn modify_pair_as(&mut self, program: Number, qpn: Qpn, told: &Attributes) -> Result<State, ServeError> {
        has(&self.owned(program)?.pairs, &qpn, PAIR)?;
        Ok(self.engine.modify_qp(qpn, told)?)
    }

    /// What a queue pair is.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn query_pair(&mut self, program: Number, qpn: Qpn) -> Result<Query, ServeError> {
        has(&self.owned(program)?.pairs, &qpn, PAIR)?;
        Ok(self.engine.query_qp(qpn)?)
    }

    /// Ends a queue pair.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn destroy_pair(&mut self, program: Number, qpn: Qpn) -> Result<Leftover, ServeError> {
        has(&self.owned(program)?.pairs, &qpn, PAIR)?;
        let left = self.engine.take_qp(qpn)?;
        if self.general.is_one(qpn) {
            let services = self.general.leave(program);
            self.give_back(program, &Amounts { services, ..Amounts::default() });
        }
        let paid = self.pairs.remove(&qpn).map_or_else(Amounts::default, |of| of.paid);
        self.owned(program)?.pairs.retain(|one| *one != qpn);
        let debt = self.give_up(program, &paid)?;
        Ok(Box::new((left, debt)))
    }

    /// All that a program had, users first. Nothing of it can be in use by another one.
    pub(super) fn destroy_all(&mut self, owned: &Owned) -> Vec<Leftover> {
        let mut left = Vec::new();
        let mut keep = |gone: Result<Leftover, Error>| {
            debug_assert!(gone.is_ok());
            left.extend(gone);
        };
        for qpn in &owned.pairs {
            self.pairs.remove(qpn);
            keep(self.engine.take_qp(*qpn));
        }
        for shared in &owned.shared {
            self.shared.remove(shared);
            keep(self.engine.take_srq(*shared));
        }
        for queue in &owned.queues {
            keep(Ok(Box::new(self.queues.remove(queue))));
            keep(self.engine.take_cq(*queue));
        }
        for domain in &owned.domains {
            let gone = self.engine.destroy_domain(*domain);
            debug_assert!(gone.is_ok());
            self.engine.memory().join(*domain, None);
        }
        left
    }
}
