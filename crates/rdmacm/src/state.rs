//! All identifiers of the process: where each stands, what it is told, and the manager of their connections.
//!
//! One lock for all of it; calls of programs and the thread take it for short. Under it calls of verbs are made, and none that waits.

use crate::Events;
use crate::card::Card;
use millrace_rdma::cm::Manager;
use millrace_rdma::cm::address::{IpHeader, ServiceId, gid_of, ip_of};
use millrace_rdma::cm::connection::{Event, Id, Peer};
use millrace_rdma::cm::manager::{Error, Options};
use millrace_rdma::cm::message::{self, Bytes};
use millrace_rdma::number::{Gid, Moment};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of an identifier; none is used twice.
pub(crate) type Handle = u64;
/// What a program waits on: numbers of notices.
pub(crate) type Queue = Events<u64>;

/// Messages whose MAC addresses are being asked for, at most.
const MOST_WAITING: usize = 256;
/// Requests of others whose MAC addresses are being asked for, at most.
const MOST_STRANGERS: usize = 2048;
/// The same, of one other end: who calls with many connections at once has one answer for all of them.
const MOST_OF_ONE: usize = 1024;
/// How long a message waits for one. It is sent again later anyway.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the end of the process waits for answers, and how soon what is not answered is said again.
const LAST: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_millis(25);
/// Ports that are given to who names none, as Linux has them.
const FREE_PORTS: core::ops::Range<u16> = 32_768..61_000;
/// How many of them are tried that may be another process's.
const MOST_TRIED: usize = 64;
/// The largest backlog, and that of who names none.
const MOST_BACKLOG: usize = 1024;

/// Events that a program has got of an identifier, and those that it has given back.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    open: Mutex<u32>,
    changed: Condvar,
}

impl Acks {
    pub fn give(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    pub fn take_back(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open = open.saturating_sub(1);
        self.changed.notify_all();
    }

    /// Waits until all are given back.
    pub fn wait(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while *open > 0 {
            open = self.changed.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// An identifier (`rdma_cm_id`).
#[derive(Debug)]
pub(crate) struct One {
    /// Where its object is, for programs.
    pub object: usize,
    pub queue: Arc<Queue>,
    pub acks: Arc<Acks>,
    pub space: u16,
    pub is_datagram: bool,
    /// Whether it owns its channel, and calls wait.
    pub is_sync: bool,
    /// Where it is bound, and whether that is any address.
    pub own: Option<SocketAddr>,
    pub service: Option<ServiceId>,
    pub peer: Option<(Peer, SocketAddr)>,
    pub connection: Option<Id>,
    pub traffic_class: u8,
    pub ack_timeout: u8,
    /// Whether others may be bound to its port.
    pub reuse: bool,
    /// READs that it answers at once and has on the way at once, as the request says.
    pub depths: (u8, u8),
    /// Whether its card has gone: nothing but destroying it does anything.
    pub is_lost: bool,
}

/// What an identifier is told.
#[derive(Debug)]
pub(crate) enum What {
    /// Its peer has an address, or why not.
    Resolved(Result<(), i32>),
    /// There is a way.
    Routed,
    /// The card has gone.
    Removed,
    /// Something about connections.
    Happened(Event),
}

#[derive(Debug)]
pub(crate) struct Notice {
    pub owner: Handle,
    pub what: What,
}

/// A port to which identifiers are bound.
struct Port {
    count: u32,
    /// Whether others may be bound to it.
    is_shared: bool,
    /// Whether it is this process's among those that have the same address.
    is_reserved: bool,
}

/// All of it.
pub(crate) struct State {
    pub card: Option<Card>,
    /// Cards that have gone. Programs have their contexts and domains, so that they are closed when the process ends.
    lost: Vec<Card>,
    pub manager: Manager,
    pub ones: HashMap<Handle, One>,
    notices: HashMap<u64, Notice>,
    owners: HashMap<Id, Handle>,
    /// By port space and port.
    ports: HashMap<(u16, u16), Port>,
    next: u64,
    waiting: VecDeque<(Instant, Peer, Box<Bytes>)>,
    /// Requests that the manager has not seen: nobody knows yet how their senders can be answered.
    strangers: VecDeque<(Instant, Peer, Vec<u8>)>,
    /// Requests that were dropped because their senders have no MAC address, or too many waited for one.
    unreachable: u64,
    /// Requests that were refused because they are for another address, or do not say where they come from and go to.
    elsewhere: u64,
    resolving: Vec<(Instant, Handle)>,
    began: Instant,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
/// The process that has used it. Relaxed: a child has a copy, and changes only that.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Everything, locked.
pub(crate) struct Locked(MutexGuard<'static, Option<State>>);

impl core::ops::Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("it was made when it was locked")
    }
}

impl core::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("it was made when it was locked")
    }
}

/// Locks it. EIO in a child of the process that has used it: the lock may be held by nobody there.
pub(crate) fn lock() -> Result<Locked, i32> {
    let process = std::process::id();
    let user = PROCESS.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed).unwrap_or_else(|user| user);
    if user != 0 && user != process {
        return Err(libc::EIO);
    }
    let mut state = STATE.lock().map_err(|_| libc::EIO)?;
    state.get_or_insert_with(State::new);
    Ok(Locked(state))
}

/// The number of an error of the manager.
pub(crate) fn errno_of(error: Error) -> i32 {
    match error {
        Error::Taken => libc::EADDRINUSE,
        Error::Unknown => libc::ENOTCONN,
        Error::State => libc::EINVAL,
        Error::Full => libc::ENOMEM,
    }
}

impl State {
    fn new() -> Self {
        Self {
            card: None,
            lost: Vec::new(),
            manager: Manager::new(Options::default()),
            ones: HashMap::new(),
            notices: HashMap::new(),
            owners: HashMap::new(),
            ports: HashMap::new(),
            next: 1,
            waiting: VecDeque::new(),
            strangers: VecDeque::new(),
            unreachable: 0,
            elsewhere: 0,
            resolving: Vec::new(),
            began: Instant::now(),
        }
    }

    pub fn now(&self) -> Moment {
        Moment::new(self.began.elapsed().as_nanos() as u64)
    }

    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The card; opens it, and starts the thread.
    pub fn card(&mut self) -> Result<&mut Card, i32> {
        if self.card.is_none() {
            let card = Card::open()?;
            // Of the random keys that the system gives every process.
            let seed = RandomState::new().hash_one(std::process::id());
            self.manager = Manager::new(Options { seed, ids: card.ids, most_mtu: card.mtu, ..Options::default() });
            if let Err(error) = crate::thread::start(card.fd()) {
                card.close();
                return Err(error);
            }
            self.card = Some(card);
        }
        self.card.as_mut().ok_or(libc::ENODEV)
    }

    pub fn one(&mut self, handle: Handle) -> Result<&mut One, i32> {
        self.ones.get_mut(&handle).ok_or(libc::EINVAL)
    }

    /// The connection of an identifier.
    pub fn connection(&mut self, handle: Handle) -> Result<Id, i32> {
        self.usable(handle)?.connection.ok_or(libc::ENOTCONN)
    }

    /// An identifier whose card is there. ENODEV: it has gone.
    pub fn usable(&mut self, handle: Handle) -> Result<&mut One, i32> {
        let one = self.one(handle)?;
        if one.is_lost { Err(libc::ENODEV) } else { Ok(one) }
    }

    /// From now on this connection is that identifier's.
    pub fn own(&mut self, handle: Handle, connection: Id) {
        if let Some(one) = self.ones.get_mut(&handle) {
            one.connection = Some(connection);
            self.owners.insert(connection, handle);
        }
    }

    /// The connection is forgotten.
    pub fn disown(&mut self, connection: Id) {
        if let Some(one) = self.owners.remove(&connection).and_then(|handle| self.ones.get_mut(&handle)) {
            one.connection = None;
        }
    }

    /// Binds an identifier to an address: the one of this end, or any. `reserves`: others may call there, and no other process that has
    /// the same address may have the port.
    pub fn bind(&mut self, handle: Handle, address: SocketAddr, reserves: bool) -> Result<SocketAddr, i32> {
        self.usable(handle)?;
        let gids = self.card()?.gids;
        let one = self.one(handle)?;
        if one.own.is_some() {
            return Err(libc::EINVAL);
        }
        let (space, reuse) = (one.space, one.reuse);
        // As with Linux, the loopback addresses are those of any device: libfabric asks by them which there is. They become its own,
        // by which others reach it.
        let own = ip_of(gids[0]);
        let address = match address.ip().is_loopback() && address.is_ipv4() == own.is_ipv4() {
            true => SocketAddr::new(own, address.port()),
            false => address,
        };
        if !address.ip().is_unspecified() && !gids.contains(&gid_of(address.ip())) {
            return Err(libc::EADDRNOTAVAIL);
        }
        let port = match address.port() {
            0 => self.free_port(space, reserves)?,
            port => port,
        };
        match self.ports.get_mut(&(space, port)) {
            Some(port) if port.is_shared && reuse => port.count += 1,
            Some(_) => return Err(libc::EADDRINUSE),
            None => {
                let is_reserved = reserves && address.port() == 0;
                self.ports.insert((space, port), Port { count: 1, is_shared: reuse, is_reserved });
            }
        }
        if reserves && let Err(error) = self.reserve(space, port) {
            self.unbind(space, port);
            return Err(error);
        }
        let bound = SocketAddr::new(address.ip(), port);
        self.one(handle)?.own = Some(bound);
        Ok(bound)
    }

    /// The port is nobody else's who has the same address.
    fn reserve(&mut self, space: u16, port: u16) -> Result<(), i32> {
        let (Some(card), Some(bound)) = (&self.card, self.ports.get_mut(&(space, port))) else { return Ok(()) };
        if !bound.is_reserved {
            card.offer(ServiceId::new(space, port), true)?;
            bound.is_reserved = true;
        }
        Ok(())
    }

    /// One identifier less is bound to the port.
    fn unbind(&mut self, space: u16, port: u16) {
        let Some(bound) = self.ports.get_mut(&(space, port)) else { return };
        bound.count -= 1;
        if bound.count > 0 {
            return;
        }
        let is_reserved = bound.is_reserved;
        self.ports.remove(&(space, port));
        if is_reserved && let Some(card) = &self.card {
            // A card that has gone has no ports either.
            let _ = card.offer(ServiceId::new(space, port), false);
        }
    }

    /// A port to which nobody is bound here. `reserves`: nor elsewhere, from now on.
    fn free_port(&mut self, space: u16, reserves: bool) -> Result<u16, i32> {
        let count = FREE_PORTS.len() as u32;
        let first = self.manager.random() % count;
        let ports = (0..count).map(|offset| FREE_PORTS.start + ((first + offset) % count) as u16);
        let free = ports.filter(|port| !self.ports.contains_key(&(space, *port)));
        let Some(card) = self.card.as_ref().filter(|_| reserves) else {
            return free.take(1).next().ok_or(libc::EADDRNOTAVAIL);
        };
        let tried = free.take(MOST_TRIED).map(|port| (port, card.offer(ServiceId::new(space, port), true)));
        let mut tried = tried.skip_while(|(_, offered)| *offered == Err(libc::EADDRINUSE));
        let (port, offered) = tried.next().ok_or(libc::EADDRNOTAVAIL)?;
        offered.map(|()| port)
    }

    /// The own IP address towards somebody, and its place in the table of GIDs.
    pub fn own_towards(&mut self, ip: IpAddr) -> Result<(IpAddr, u8), i32> {
        let gids = self.card()?.gids;
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let index: u8 = if is_link_local { 2 } else { 0 };
        let own = ip_of(gids[usize::from(index)]);
        if own.is_ipv4() == ip.is_ipv4() { Ok((own, index)) } else { Err(libc::ENETUNREACH) }
    }

    /// The own GID at a place of the table.
    pub fn gid(&self, index: u8) -> Gid {
        self.card.as_ref().and_then(|card| card.gids.get(usize::from(index)).copied()).unwrap_or_default()
    }

    /// Looks for the MAC address of the peer of an identifier. It is told when there is one, or that there is none.
    pub fn resolve(&mut self, handle: Handle, timeout: Duration) {
        self.resolving.push((Instant::now() + timeout, handle));
        self.step();
    }

    /// Offers the service of the port that an identifier is bound to.
    pub fn listen(&mut self, handle: Handle, backlog: i32) -> Result<(), i32> {
        if self.usable(handle)?.own.is_none() {
            self.bind(handle, SocketAddr::from(([0; 4], 0)), true)?;
        }
        let backlog = usize::try_from(backlog).ok().filter(|backlog| *backlog > 0).unwrap_or(MOST_BACKLOG);
        let one = self.one(handle)?;
        let (space, port) = (one.space, one.own.map_or(0, |own| own.port()));
        let service = ServiceId::new(space, port);
        self.reserve(space, port)?;
        self.manager.listen(service, handle, backlog.min(MOST_BACKLOG)).map_err(errno_of)?;
        // Only now: whoever has a service takes it with him when he goes.
        self.one(handle)?.service = Some(service);
        // Somebody may have called already.
        self.step();
        Ok(())
    }

    /// Adds a notice for an identifier.
    pub fn tell(&mut self, owner: Handle, what: What) {
        let number = self.number();
        if let Some(one) = self.ones.get(&owner) {
            self.notices.insert(number, Notice { owner, what });
            one.queue.add(number);
        }
    }

    /// The notice with that number, unless its identifier is gone.
    pub fn take_notice(&mut self, number: u64) -> Option<Notice> {
        self.notices.remove(&number)
    }

    /// Notices of an identifier that nobody has taken, by number.
    fn notices_of(&self, handle: Handle) -> Vec<u64> {
        let mut numbers: Vec<_> =
            self.notices.iter().filter(|(_, notice)| notice.owner == handle).map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// From now on an identifier is told elsewhere.
    pub fn migrate(&mut self, handle: Handle, queue: Arc<Queue>, is_sync: bool) -> Result<(), i32> {
        let numbers = self.notices_of(handle);
        let one = self.one(handle)?;
        one.queue.forget(|number| numbers.contains(number));
        numbers.iter().for_each(|number| queue.add(*number));
        (one.queue, one.is_sync) = (queue, is_sync);
        Ok(())
    }

    /// Takes an identifier away, with all that it has going.
    pub fn remove(&mut self, handle: Handle) -> Option<One> {
        let now = self.now();
        let numbers = self.notices_of(handle);
        let one = self.ones.remove(&handle)?;
        one.queue.forget(|number| numbers.contains(number));
        for number in numbers {
            self.notices.remove(&number);
        }
        if let Some(service) = one.service {
            self.manager.unlisten(now, service);
        }
        if let Some(connection) = one.connection {
            self.owners.remove(&connection);
            self.manager.destroy(now, connection);
        }
        if let Some(own) = one.own.filter(|_| !one.is_lost) {
            self.unbind(one.space, own.port());
        }
        self.resolving.retain(|(_, other)| *other != handle);
        self.step();
        Some(one)
    }

    /// Does what can be done now: takes what has come, sends what waits, tells what has happened. When it is to be called again, at the
    /// latest.
    pub fn step(&mut self) -> Option<Duration> {
        let now = self.now();
        let has_more = self.receive(now)?;
        if self.card.as_ref().is_some_and(Card::has_gone) {
            self.lose_card();
            return None;
        }
        self.manager.tick(now);
        while let Some(event) = self.manager.take_event() {
            self.pass_on(event);
        }
        self.send();
        self.look_up();
        let is_asking = !self.waiting.is_empty() || !self.strangers.is_empty() || !self.resolving.is_empty();
        let soon = if has_more { Some(Duration::ZERO) } else { is_asking.then_some(Duration::from_millis(1)) };
        let due = self.manager.next_due().map(|due| due.since(self.now()));
        soon.into_iter().chain(due).min()
    }

    /// The card has gone. Every identifier that had to do with it is told, as Linux does when a device is taken out, and can only be
    /// destroyed from now on; those that are made now use the next card.
    #[cold]
    fn lose_card(&mut self) {
        self.lost.extend(self.card.take());
        self.owners.clear();
        self.ports.clear();
        self.waiting.clear();
        self.strangers.clear();
        self.resolving.clear();
        // What has happened to connections can be done nothing about; that they are over comes after what their programs know already.
        let is_request = |notice: &Notice| {
            matches!(
                notice.what,
                What::Happened(Event::Requested { .. } | Event::ServiceRequested { .. } | Event::Replied(..))
            )
        };
        for (number, notice) in self.notices.extract_if(|_, notice| is_request(notice)) {
            if let Some(one) = self.ones.get(&notice.owner) {
                one.queue.forget(|other| *other == number);
            }
        }
        let mut lost = Vec::new();
        for (handle, one) in &mut self.ones {
            let uses_it = one.own.is_some() || one.peer.is_some() || one.connection.is_some();
            if uses_it && !one.is_lost {
                (one.is_lost, one.connection, one.service) = (true, None, None);
                lost.push(*handle);
            }
        }
        lost.sort_unstable();
        lost.into_iter().for_each(|handle| self.tell(handle, What::Removed));
    }

    /// Gives what has come to the manager. Whether there may be more; nothing without a card.
    fn receive(&mut self, now: Moment) -> Option<bool> {
        let Self { card: Some(card), manager, strangers, .. } = self else { return None };
        let mut calls = core::mem::take(strangers);
        let until = Instant::now() + PATIENCE;
        let has_more = card.receive(|peer, bytes| match message::calls(bytes) {
            true => calls.push_back((until, peer, bytes.to_vec())),
            false => manager.receive(now, peer, bytes),
        });
        self.look_at_calls(now, calls);
        Some(has_more)
    }

    /// Gives requests to the manager as soon as their senders can be reached: a program that is told of one accepts it with a path to
    /// its sender, and is not to wait for that then. And who cannot be answered takes nobody's place in a backlog.
    fn look_at_calls(&mut self, now: Moment, calls: VecDeque<(Instant, Peer, Vec<u8>)>) {
        let Self { card: Some(card), manager, strangers, unreachable, .. } = self else { return };
        let (mut found, mut asked) = (HashMap::new(), 0);
        for (until, peer, bytes) in calls {
            let may_wait = strangers.len() < MOST_STRANGERS;
            let (reached, count) = found.entry(peer).or_insert_with(|| {
                let reached = card.reach(peer, may_wait && asked < card.most_asked);
                asked += usize::from(reached == Err(libc::EAGAIN));
                (reached, 0)
            });
            let has_room = may_wait && *count < MOST_OF_ONE;
            match *reached {
                Ok(()) => manager.receive(now, peer, &bytes),
                Err(libc::EAGAIN) if has_room && Instant::now() < until => {
                    *count += 1;
                    strangers.push_back((until, peer, bytes));
                }
                // Whoever calls in earnest calls again, and is known by then.
                Err(_) => *unreachable += 1,
            }
        }
    }

    fn pass_on(&mut self, event: Event) {
        let id = event.id();
        let owner = match &event {
            Event::Requested { owner, request, peer, .. } => {
                self.is_for_us(*owner, *peer, &request.private).then_some(*owner)
            }
            Event::ServiceRequested { owner, request, peer, .. } => {
                self.is_for_us(*owner, *peer, &request.private).then_some(*owner)
            }
            _ => self.owners.get(&id).copied(),
        };
        let is_last = matches!(
            event,
            Event::Rejected(..) | Event::Unreachable(_) | Event::ServiceReplied(..) | Event::TimewaitOver(_)
        );
        if is_last {
            self.disown(id);
        }
        match owner {
            Some(owner) => self.tell(owner, What::Happened(event)),
            None => {
                self.elsewhere += u64::from(matches!(event, Event::Requested { .. } | Event::ServiceRequested { .. }));
                let now = self.now();
                self.manager.destroy(now, id);
            }
        }
    }

    /// Whether a request names an address of this end to which that identifier is bound, and comes from where it says.
    fn is_for_us(&self, owner: Handle, peer: Peer, private: &[u8]) -> bool {
        let Some(header) = IpHeader::parse(private) else { return false };
        let bound = self.ones.get(&owner).and_then(|one| one.own);
        let is_bound = bound.is_some_and(|own| own.ip().is_unspecified() || own.ip() == header.destination);
        is_bound && gid_of(header.destination) == self.gid(peer.index) && gid_of(header.source) == peer.gid
    }

    fn send(&mut self) {
        let Some(card) = self.card.as_mut() else { return };
        let now = Instant::now();
        for _ in 0..self.waiting.len() {
            let Some((until, peer, bytes)) = self.waiting.pop_front() else { break };
            if card.send(peer, &bytes, true) == Err(libc::EAGAIN) && now < until {
                self.waiting.push_back((until, peer, bytes));
            }
        }
        while let Some((peer, bytes)) = self.manager.take_message() {
            // Who calls in the name of many is not to fill the table of those who are being asked for: as many as may wait are asked for.
            let has_room = self.waiting.len() < MOST_WAITING;
            let is_waiting = matches!(card.send(peer, &bytes, has_room), Err(libc::EAGAIN | libc::ENOMEM));
            // What does not go now is sent again by whoever needs it.
            if is_waiting && has_room {
                self.waiting.push_back((now + PATIENCE, peer, bytes));
            }
        }
    }

    fn look_up(&mut self) {
        let now = Instant::now();
        for (until, handle) in core::mem::take(&mut self.resolving) {
            let Some((peer, _)) = self.ones.get(&handle).and_then(|one| one.peer) else { continue };
            let Some(card) = self.card.as_mut() else { return };
            match card.reach(peer, true) {
                // ENOBUFS, and in a card ENOMEM: too many others are being asked for just now.
                Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) if now < until => {
                    self.resolving.push((until, handle));
                }
                Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                    self.tell(handle, What::Resolved(Err(libc::ETIMEDOUT)))
                }
                result => self.tell(handle, What::Resolved(result)),
            }
        }
    }

    /// The process ends: others are told, and the device is closed, so that what was answered last still goes.
    pub fn finish(&mut self) {
        let now = self.now();
        self.manager.abandon(now);
        self.step();
        // Nobody says it again afterwards, and where to, may still be asked for.
        let until = Instant::now() + LAST;
        let mut again = Instant::now() + LAST_PAUSE;
        let is_there = |state: &Self| state.card.is_some();
        while is_there(self) && (self.manager.is_leaving() || !self.waiting.is_empty()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            if Instant::now() >= again {
                again += LAST_PAUSE;
                self.manager.leave_again();
            }
            self.step();
        }
        let last = self.card.take().or_else(|| self.lost.pop());
        self.lost.drain(..).for_each(Card::close);
        if let Some(card) = last {
            let before = [("foreign", card.foreign), ("unreachable", self.unreachable), ("elsewhere", self.elsewhere)];
            crate::stats::write(&self.manager.counters(), before);
            card.close();
        }
    }
}
