//! Endpoints that programs open by name, and that meet others of their host.
//!
//! * `between`: with endpoints of other hosts. `name`: names and the sockets behind them. `record`: what is said by a socket. `meet`: how two endpoints come to share memory.
//! * `doorbells`: those of one pair without the lock. `places`: memory of messages that others can map. `state`: what is behind the lock. `helper`: the thread. `closer`: closes what may take long. `error`: why a call did nothing.

mod between;
mod closer;
mod doorbells;
mod error;
mod helper;
mod meet;
mod name;
mod places;
mod record;
mod state;

pub use crate::hosts::Counters;
pub use between::rail;
pub use doorbells::{DoorbellReceiver, DoorbellSender};
pub(crate) use error::how_to_find;
pub use error::{Error, Refusal};
pub(crate) use name::{Name, is_name};
pub(crate) use record::{send_with as send_record, take as receive_record};
pub use state::Who;

use crate::Scheme;
use crate::bell::{Bell, ClaimError, Full, Owner, Sent};
use crate::block::{AllocateError, Block, GiveError, Given, TakesBack};
use crate::buffer::Buffer;
use crate::channel::Taken;
use crate::control::{Message, Tag};
use crate::cost::Table;
use crate::engine::{Breach, Cancel, Limits, Outcome, RequestError, Terms};
use crate::files::PART;
use crate::local::Local;
use crate::measure;
use crate::window::{Remote, WindowError};
use millrace_dma::AdoptError;
pub use millrace_dma::Scope;
pub use places::Adopted;
use places::{Place, Places};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use state::{State, signal, wake_up};
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockResult, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Who may connect to an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Users {
    /// Endpoints of the same user, and of root.
    #[default]
    Own,
    /// And of these users.
    Also(Vec<u32>),
    /// Everybody.
    Anybody,
}

/// What an endpoint is made with.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// By which others find it: 1 to 64 letters, digits, `.`, `_` and `-`. None: it can only call.
    pub name: Option<String>,
    /// Buffers and credits.
    pub limits: Limits,
    /// Who may connect.
    pub users: Users,
    /// Others at a time, at most; those that are gone and have left messages count.
    pub peers: u32,
    /// By which the way of a message is chosen. None: what was measured on this host ([`crate::measure`]).
    pub table: Option<Table>,
    /// How long a thread that waits looks itself before it sleeps (the source's optimisation 1). Zero: not at all. The endpoint's own thread looks
    /// as long, 200 us at most.
    pub spin: Duration,
    /// A thread that waits moves messages on where it sees what has come (optimisation 3). Otherwise it only waits to be told, and leaves that to the
    /// endpoint's own thread.
    pub waiters_work: bool,
    /// Queues of cards, or ports, by which endpoints of other hosts are reached, and by which they find this one if it has a name. All are used
    /// together. None: only this host.
    pub rails: Vec<millrace_slurpoe::Config>,
    /// What this host is called by others. None: its own name.
    pub host: Option<String>,
    /// Memory of messages of 64 KiB and more that is sent again becomes shared memory in place, where the system allows it, so that receivers
    /// of the same user copy it once ([`millrace_dma::Adopter`]): which memory may. Only for programs that count on nothing that `madvise`
    /// does to such memory: allocators that take what `MADV_DONTNEED` has given back for zeros are none of them. That of glibc is one.
    pub adopt: Option<Scope>,
    /// Bytes of a pool for blocks that are handed over ([`Endpoint::allocate`]), for each other end: 16 MiB at most. It takes memory when it is used.
    pub pool: usize,
}

impl Default for Config {
    fn default() -> Self {
        let spin = Duration::from_micros(200);
        let (limits, users, rails) = (Limits::default(), Users::Own, Vec::new());
        let (table, waiters_work, host, adopt) = (None, true, None, None);
        let pool = PART as usize;
        Self { name: None, limits, users, peers: 64, table, spin, waiters_work, rails, host, adopt, pool }
    }
}

/// Another endpoint, that this one is or was connected to. No other one will ever have the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    slot: u32,
    serial: u32,
}

impl Peer {
    /// As a number, which is never 0.
    pub const fn number(self) -> u64 {
        (self.serial as u64) << 32 | self.slot as u64
    }

    /// Of a number that was one. Others are those of nobody.
    pub const fn of_number(number: u64) -> Self {
        Self { slot: number as u32, serial: (number >> 32) as u32 }
    }
}

/// A message that this program sends or wants. No other one will ever have the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    slot: u32,
    serial: u32,
}

impl Request {
    /// As a number, which is never 0.
    pub const fn number(self) -> u64 {
        (self.serial as u64) << 32 | self.slot as u64
    }

    /// Of a number that was one. Others are those of no message.
    pub const fn of_number(number: u64) -> Self {
        Self { slot: number as u32, serial: (number >> 32) as u32 }
    }
}

/// A message that has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended<B = Vec<u8>> {
    /// Which.
    pub request: Request,
    /// What became of it. The number of the pair in it is of use with [`Local`] only.
    pub outcome: Outcome,
    /// From whom it was received.
    pub from: Option<Peer>,
    /// What was sent; or what was received, as many bytes as there are.
    pub buffer: B,
    /// What was handed over ([`Outcome::Held`]): then nothing is in the buffer.
    pub given: Option<Given>,
}

/// What has happened to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// One has called.
    Joined(Peer),
    /// One has gone, or was lost because of what it did. Short messages of it that are here can be received still.
    Lost(Peer, Option<Breach>),
}

impl Event {
    /// To whom.
    pub const fn peer(self) -> Peer {
        match self {
            Self::Joined(peer) | Self::Lost(peer, _) => peer,
        }
    }
}

/// What the endpoint and its thread share.
struct Shared<B: Buffer> {
    state: Mutex<State<B>>,
    /// Something has ended, happened or rung.
    news: Condvar,
    epoll: Arc<OwnedFd>,
    waker: Arc<OwnedFd>,
    terms: Terms,
    /// Memory that is sent again becomes shared memory, if it may.
    places: Option<Result<Places, AdoptError>>,
    is_closed: AtomicBool,
}

impl<B: Buffer> Shared<B> {
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        // What a panic has left half done would be refused by the engine's own checks.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> TryLockResult<MutexGuard<'_, State<B>>> {
        self.state.try_lock()
    }

    /// Does something, and tells threads that sleep if there are news.
    fn with<R>(&self, act: impl FnOnce(&mut State<B>) -> R) -> R {
        let mut state = self.lock();
        let before = state.news();
        let result = act(&mut state);
        if state.sleepers > 0 && state.news() != before {
            self.news.notify_all();
        }
        result
    }

    /// Moves everything on, and tells threads that sleep if there are news. Whether there was something.
    fn progress<'s>(&'s self, mut state: MutexGuard<'s, State<B>>) -> (MutexGuard<'s, State<B>>, bool) {
        let before = state.news();
        let mut has_moved = state.progress();
        if let Some(mut reading) = state.local.reading() {
            state.wake_others();
            // It may take as long as the other process likes, so that it is nobody's matter who wants the lock.
            drop(state);
            reading.read();
            state = self.lock();
            state.local.was_read(reading);
            state.settle();
            has_moved = true;
        }
        if state.sleepers > 0 && state.news() != before {
            self.news.notify_all();
        }
        (state, has_moved)
    }

    /// Calls functions that wait for messages which have ended; not without end.
    fn call_back(&self) {
        const MOST: u32 = 64;
        for left in (0..MOST).rev() {
            let Some((callback, ended)) = self.lock().called() else { return };
            // A panic is told by its hook, and no reason to end the thread.
            let _ = catch_unwind(AssertUnwindSafe(|| callback(ended)));
            if left == 0 {
                wake_up(&self.waker);
            }
        }
    }

    /// What was held is not needed any more.
    fn give_back(&self, peer: Peer, message: Message) {
        self.with(|state| {
            if let Some(pair) = state.pair(peer) {
                state.local.give_back(pair, message);
                state.settle();
            }
        });
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

impl<B: Buffer> TakesBack for Shared<B> {
    fn take_back(&self, peer: Peer, message: Message) {
        self.give_back(peer, message);
    }
}

/// An endpoint: a name, other endpoints, messages to and from them, and doorbells. All calls may be made by any number of threads. A child of
/// `fork` must not use that of its parent.
///
/// Messages move on while any of its calls is made, and otherwise by a thread of its own, which sleeps while nothing comes. When it is
/// dropped, what has not ended is not sent any more; others learn that it is gone. What has, and goes to another host, has up to 2 s to arrive
/// there.
pub struct Endpoint<B: Buffer = Vec<u8>> {
    shared: Arc<Shared<B>>,
    config: Arc<Config>,
    helper: Option<JoinHandle<()>>,
}

/// Messages in memory that the program hands over and is given back.
impl Endpoint {
    /// An endpoint that others find by that name.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Foreign`], [`Error::Taken`]; [`Error::System`].
    pub fn open(name: &str) -> Result<Self, Error> {
        Self::with(Config { name: Some(name.to_owned()), ..Config::default() })
    }

    /// An endpoint that others do not find: it calls.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn nameless() -> Result<Self, Error> {
        Self::with(Config::default())
    }

    /// An endpoint as `config` says.
    ///
    /// # Errors
    /// As [`Endpoint::open`]; [`Error::Limits`].
    pub fn with(config: Config) -> Result<Self, Error> {
        Self::of_buffers(config)
    }
}

impl<B: Buffer> Endpoint<B> {
    /// An endpoint as `config` says, for messages in memory of any kind.
    ///
    /// # Errors
    /// As [`Endpoint::with`].
    pub fn of_buffers(config: Config) -> Result<Self, Error> {
        let mut local = Local::new(config.limits)?;
        let table = config.table.or_else(|| measure::of_this_host(&config.limits));
        local.choose(table.map(|table| table.thresholds(&Scheme::ALL)).unwrap_or_default());
        let listener = config.name.as_deref().map(|name| Name::own(name)?.open()).transpose()?;
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC).map_err(Error::when("make an epoll"))?);
        let waker = Arc::new(signal().map_err(Error::when("make an eventfd"))?);
        epoll::add(&epoll, &waker, EventData::new_u64(helper::WAKER), EventFlags::IN)
            .map_err(Error::when("add to an epoll"))?;
        let terms = local.terms();
        if !config.rails.is_empty() {
            local.reach(between::open(&config, terms, &epoll)?);
        }
        let (news, is_closed) = (Condvar::new(), AtomicBool::new(false));
        let places = config.adopt.map(Places::new);
        let shared = Arc::new_cyclic(|me: &Weak<Shared<B>>| {
            let state = Mutex::new(State::new(local, epoll.clone(), waker.clone(), me.clone()));
            Shared { state, news, epoll, waker, terms, places, is_closed }
        });
        let config = Arc::new(config);
        let helper = helper::start(shared.clone(), config.clone(), listener).map_err(|error| {
            let source = error.raw_os_error().map_or(rustix::io::Errno::AGAIN, rustix::io::Errno::from_raw_os_error);
            Error::System { doing: "start a thread", source }
        })?;
        Ok(Self { shared, config, helper: Some(helper) })
    }

    /// Calls the endpoint of that name, of this user or of the one that stands before it (`1000/solver`). If this host has none, it is looked for
    /// by all rails; with a host before it (`b:solver`, `b:1000/solver`) only there, and without a user that of any. One that is not there yet is
    /// waited for as long as `patience` says; one that is there has a second at least to answer. One of another host to which there is a connection is not called again: it is the same.
    ///
    /// # Errors
    /// [`Error::Nobody`], [`Error::Refused`], [`Error::Silent`], [`Error::Stranger`], [`Error::Name`], [`Error::Full`]; [`Error::Several`],
    /// [`Error::NoRail`].
    pub fn connect(&self, name: &str, patience: Duration) -> Result<Peer, Error> {
        meet::connect(&self.shared, &self.config, name, patience)
    }

    /// Waits for somebody who calls.
    pub fn accept(&self, patience: Duration) -> Option<Peer> {
        self.wait_for(patience, State::accept)
    }

    /// Waits for what happens to others: who calls, who has gone.
    pub fn event(&self, patience: Duration) -> Option<Event> {
        self.wait_for(patience, State::event)
    }

    /// Who that is. `None`: it was left, or its place is another one's by now.
    pub fn who(&self, peer: Peer) -> Option<Who> {
        self.shared.lock().who(peer)
    }

    /// Ends a connection, with all that it has left.
    pub fn leave(&self, peer: Peer) {
        self.shared.with(|state| {
            if let Some(pair) = state.pair(peer) {
                state.leave(pair);
                state.settle();
            }
        });
    }

    /// Sends a message, by the way that is chosen for its size.
    ///
    /// # Errors
    /// [`RequestError`]: the other endpoint is gone.
    pub fn send(&self, to: Peer, tag: Tag, buffer: B) -> Result<Request, RequestError> {
        let place = self.place(&buffer);
        self.shared.with(|state| state.send(to, (tag, buffer), place, Local::send))
    }

    /// The same, by a way that the program chooses: one that is not possible is one copy.
    ///
    /// # Errors
    /// [`RequestError`]: the other endpoint is gone.
    pub fn send_by(&self, to: Peer, tag: Tag, buffer: B, scheme: Scheme) -> Result<Request, RequestError> {
        let place = if scheme == Scheme::ZeroCopy { self.place(&buffer) } else { None };
        let by = |local: &mut Local<B>, pair, tag, buffer| local.send_by(pair, tag, buffer, scheme);
        self.shared.with(|state| state.send(to, (tag, buffer), place, by))
    }

    /// In which file it is. Outside the lock, because memory may have to be copied there.
    fn place(&self, buffer: &B) -> Option<Place> {
        self.shared.places.as_ref()?.as_ref().ok()?.find(buffer)
    }

    /// Sends a short message that is not to be waited for. `false`: it cannot go at once, and [`Endpoint::send`] takes it.
    #[inline]
    pub fn send_short(&self, to: Peer, tag: Tag, bytes: &[u8]) -> bool {
        let mut state = self.shared.lock();
        let Some(pair) = state.pair(to) else { return false };
        let is_sent = state.local.send_short(pair, tag, bytes);
        if is_sent {
            state.said(pair);
        }
        is_sent
    }

    /// Takes the first short message of `from` that fits, and that nobody has asked for before. `Ok(None)`: there is none, or it is a long
    /// one, which [`Endpoint::receive`] takes.
    ///
    /// # Errors
    /// [`Breach`]. The other endpoint is gone, or was lost, and has left no such message.
    #[inline]
    pub fn receive_short(&self, from: Peer, tag: Tag, mask: u64, to: &mut [u8]) -> Result<Option<Taken>, Breach> {
        let mut state = self.shared.lock();
        let pair = state.pair(from).ok_or(Breach::Gone)?;
        state.calls = state.calls.wrapping_add(1);
        let taken = state.local.receive_short(pair, tag, mask, to);
        if state.local.has_work() || state.local.has_done() || taken.is_err() {
            drop(self.shared.progress(state));
        }
        taken
    }

    /// Waits for a message of as many bytes as `buffer` has, or fewer: from whom, or from anybody; with the bits of `tag` that are in
    /// `mask`.
    ///
    /// # Errors
    /// [`RequestError`]: the other endpoint is gone, and has left no such message.
    pub fn receive(&self, from: Option<Peer>, tag: Tag, mask: u64, buffer: B) -> Result<Request, RequestError> {
        self.shared.with(|state| match from {
            Some(peer) => state.with_pair(peer, |local, pair| local.receive(Some(pair), tag, mask, buffer)),
            None => state.begin(|local| local.receive(None, tag, mask, buffer)),
        })
    }

    /// Memory for a message to another end of this host that is handed over: filled here, and seen there, by whatever user in whatever container it runs.
    /// If what was handed over before has not been given back, it waits as long as `patience` says.
    ///
    /// # Errors
    /// [`AllocateError`].
    pub fn allocate(&self, to: Peer, len: usize, patience: Duration) -> Result<Block, AllocateError> {
        /// A block that this program drops itself is no news.
        const AGAIN: Duration = Duration::from_millis(10);
        let pool = self.config.pool.min(PART as usize);
        let begin = Instant::now();
        loop {
            let left = patience.saturating_sub(begin.elapsed());
            let found = self.wait_for(left.min(AGAIN), |state| match state.allocate(to, len, pool) {
                Err(AllocateError::Full) => None,
                other => Some(other),
            });
            if let Some(found) = found {
                return found;
            }
            if left <= AGAIN {
                return Err(AllocateError::Full);
            }
        }
    }

    /// Memory of another end of this host: a block that it has allocated for this one, and told the number of ([`Block::number`]). It is there as long as
    /// the other end keeps it; afterwards it is memory of some other block for this one.
    ///
    /// # Errors
    /// [`WindowError`].
    pub fn window(&self, of: Peer, number: u64, len: u64) -> Result<Remote, WindowError> {
        self.shared.with(|state| state.window(of, number, len))
    }

    /// Hands a block over, as a message: its memory comes back when nobody needs it any more, which this program is not told. A receive that
    /// does not hold it ([`Endpoint::receive_held`]) gets a copy.
    ///
    /// # Errors
    /// [`GiveError`].
    pub fn give(&self, to: Peer, tag: Tag, block: Block) -> Result<(), GiveError> {
        self.shared.with(|state| state.give(to, tag, block))
    }

    /// As [`Endpoint::receive`]; what was handed over is not copied, but held where it is ([`Ended::given`]), until that is dropped. Other messages
    /// come into the buffer, if it is long enough.
    ///
    /// # Errors
    /// [`RequestError`]: the other endpoint is gone, and has left no such message.
    pub fn receive_held(&self, from: Option<Peer>, tag: Tag, mask: u64, buffer: B) -> Result<Request, RequestError> {
        self.shared.with(|state| match from {
            Some(peer) => state.with_pair(peer, |local, pair| local.receive_held(Some(pair), tag, mask, buffer)),
            None => state.begin(|local| local.receive_held(None, tag, mask, buffer)),
        })
    }

    /// Ends a message before its time, if that is possible.
    ///
    /// # Errors
    /// [`RequestError`]: there is no such message any more.
    pub fn cancel(&self, request: Request) -> Result<Cancel, RequestError> {
        self.shared.with(|state| {
            let open = state.open(request).ok_or(RequestError::Lost)?;
            let cancelled = state.local.cancel(open);
            state.settle();
            cancelled
        })
    }

    /// Moves everything on. Whether there was something.
    pub fn progress(&self) -> bool {
        let mut state = self.shared.lock();
        state.calls = state.calls.wrapping_add(1);
        self.shared.progress(state).1
    }

    /// Waits until that message has ended. `None`: it has not in that time, or it was taken already.
    pub fn wait(&self, request: Request, patience: Duration) -> Option<Ended<B>> {
        let found = self.wait_for(patience, |state| match state.take(Some(request)) {
            Some(ended) => Some(Some(ended)),
            None if state.is_open(request) => None,
            None => Some(None),
        });
        found.flatten()
    }

    /// Waits until any message has ended: the one that ended first of those that were not taken.
    pub fn next(&self, patience: Duration) -> Option<Ended<B>> {
        self.wait_for(patience, |state| state.take(None))
    }

    /// Has a function called when that message has ended, instead of waiting for it: by the thread of the endpoint, which moves nothing on meanwhile.
    /// It may make calls of the endpoint. One that was said before for the same message is dropped. `false`: there is no such message, or its end was taken already. When the endpoint is dropped, functions
    /// that were not called are dropped.
    pub fn then(&self, request: Request, callback: impl FnOnce(Ended<B>) + Send + 'static) -> bool {
        let (waits, _left) = self.shared.with(|state| state.then(request, Box::new(callback)));
        waits
    }

    /// A descriptor that is readable as long as something can be taken: messages that have ended, events, doorbells. It is not to be read.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn descriptor(&self) -> Result<Arc<OwnedFd>, Error> {
        self.shared.lock().descriptor().map_err(Error::when("make an eventfd"))
    }

    /// This program wants these doorbells, from now on, from all.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn claim(&self, numbers: RangeInclusive<u16>, owner: Owner) -> Result<(), ClaimError> {
        self.shared.lock().local.claim(numbers, owner)
    }

    /// Nobody wants the doorbells of that owner any more.
    pub fn release(&self, owner: Owner) {
        self.shared.lock().local.release(owner);
    }

    /// Rings a doorbell.
    ///
    /// # Errors
    /// [`Full`]. `None`: the other endpoint is gone.
    #[inline]
    pub fn ring(&self, to: Peer, number: u16) -> Option<Result<(), Full>> {
        let mut state = self.shared.lock();
        let pair = state.pair(to)?;
        let rung = state.local.ring(pair, number)?;
        state.said(pair);
        Some(rung)
    }

    /// Rings a doorbell, unless the last one is the same, and waits.
    ///
    /// # Errors
    /// [`Full`]. `None`: the other endpoint is gone.
    #[inline]
    pub fn ring_once(&self, to: Peer, number: u16) -> Option<Result<Sent, Full>> {
        let mut state = self.shared.lock();
        let pair = state.pair(to)?;
        let rung = state.local.ring_once(pair, number)?;
        state.said(pair);
        Some(rung)
    }

    /// The next doorbell of one of the others, if there is one.
    ///
    /// # Errors
    /// [`Breach`]. The other endpoint is gone, or was lost.
    #[inline]
    pub fn bell(&self, from: Peer) -> Result<Option<Bell>, Breach> {
        let mut state = self.shared.lock();
        let pair = state.pair(from).ok_or(Breach::Gone)?;
        state.calls = state.calls.wrapping_add(1);
        let bell = state.local.bell(pair);
        match bell {
            Ok(None) => {}
            Ok(Some(_)) => state.show(),
            Err(_) => drop(self.shared.progress(state)),
        }
        bell
    }

    /// Waits for a doorbell of anybody.
    pub fn any_bell(&self, patience: Duration) -> Option<(Peer, Bell)> {
        self.wait_for(patience, State::bell)
    }

    /// What has become of memory that was sent again ([`Config::adopt`]), and why not, if it did not become shared memory. `None`: nobody wants it to.
    pub fn adopted(&self) -> Option<Adopted> {
        let refused = |why: &AdoptError| Adopted { why: Some(why.to_string()), ..Adopted::default() };
        Some(self.shared.places.as_ref()?.as_ref().map_or_else(refused, Places::adopted))
    }

    /// Bytes of messages that were read where they were, in the memory of the other process.
    pub fn moved(&self) -> u64 {
        self.shared.lock().local.moved()
    }

    /// Doorbells that came and that nobody had claimed: they were released on the way, or their sender did not look.
    pub fn bells_unwanted(&self) -> u64 {
        self.shared.lock().local.bells_unwanted()
    }

    /// What has happened between hosts. `None`: there are no rails.
    pub fn between_hosts(&self) -> Option<Counters> {
        self.shared.lock().local.hosts().map(|hosts| hosts.counters())
    }

    /// Send buffers and receive buffers that are in use.
    pub fn in_use(&self) -> (u16, u16) {
        self.shared.lock().local.engine().in_use()
    }

    /// Waits until there is what is looked for: looks for a while, and then sleeps until there are news.
    fn wait_for<T>(&self, patience: Duration, mut found: impl FnMut(&mut State<B>) -> Option<T>) -> Option<T> {
        /// What cannot be said yet is tried again.
        const AGAIN: Duration = Duration::from_millis(1);
        /// Looks between two at the clock; and those during which nobody else gets the lock.
        const LOOKS: u32 = 16;
        if !self.config.waiters_work {
            return self.wait_to_be_told(patience, found);
        }
        let (mut begin, mut quiet_since) = (None, None);
        let mut state = self.shared.lock();
        let mut seen = None;
        loop {
            state.calls = state.calls.wrapping_add(1);
            let is_quiet = (0..LOOKS).all(|_| state.local.is_quiet());
            let mut has_moved = false;
            if !is_quiet || seen != Some(state.news()) {
                (state, has_moved) = self.shared.progress(state);
                if let Some(found) = found(&mut state) {
                    return Some(found);
                }
                seen = Some(state.news());
                quiet_since = quiet_since.filter(|_| !has_moved);
            }
            let now = Instant::now();
            let waited = now - *begin.get_or_insert(now);
            if waited >= patience {
                return None;
            }
            if now - *quiet_since.get_or_insert(now) < self.config.spin || has_moved {
                drop(state);
                core::hint::spin_loop();
                state = self.shared.lock();
                continue;
            }
            let has_work = state.local.has_work();
            if !has_work && !state.doze() {
                continue;
            }
            let most = patience - waited;
            state.sleepers += 1;
            let slept = self.shared.news.wait_timeout(state, if has_work { most.min(AGAIN) } else { most });
            state = slept.unwrap_or_else(PoisonError::into_inner).0;
            state.sleepers -= 1;
            quiet_since = None;
        }
    }

    /// The same, while the endpoint's own thread does all that is to be done.
    fn wait_to_be_told<T>(&self, patience: Duration, mut found: impl FnMut(&mut State<B>) -> Option<T>) -> Option<T> {
        let begin = Instant::now();
        let mut state = self.shared.lock();
        loop {
            if let Some(found) = found(&mut state) {
                return Some(found);
            }
            let waited = begin.elapsed();
            if waited >= patience {
                return None;
            }
            if waited < self.config.spin {
                drop(state);
                // It may have to run here.
                std::thread::yield_now();
                state = self.shared.lock();
                continue;
            }
            state.sleepers += 1;
            let slept = self.shared.news.wait_timeout(state, patience - waited);
            state = slept.unwrap_or_else(PoisonError::into_inner).0;
            state.sleepers -= 1;
        }
    }
}

impl<B: Buffer> Drop for Endpoint<B> {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Release);
        wake_up(&self.shared.waker);
        // A function that it calls may be the last one that has the endpoint: then it ends by itself.
        if let Some(helper) = self.helper.take().filter(|helper| helper.thread().id() != std::thread::current().id()) {
            let _ = helper.join();
        }
        between::linger(&self.shared);
        self.shared.lock().unlink_all();
    }
}
