//! What is behind the lock of an endpoint: the protocol with its memory, the other endpoints, and what the program has not taken yet.

use super::closer::Closers;
use super::name::Caller;
use super::places::Place;
use super::record::{Heard, give, hear, ring};
use super::{Ended, Event, Peer, Request};
use crate::bell::Bell;
use crate::block::{AllocateError, Block, GiveError, Given, Pool, TakesBack};
use crate::buffer::Buffer;
use crate::channel::Side;
use crate::control::{Origin, Tag};
use crate::engine::{Breach, Outcome, PairId, RequestError, RequestId, Terms};
use crate::files::{Files, POOL};
use crate::hosts::{Hosts, Joined};
use crate::local::{JoinError, Local, Reach};
use crate::window::{Remote, WindowError};
use millrace_dma::{Identity, OtherProcess, Window};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, read, write};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{PidfdFlags, geteuid, pidfd_open};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

/// What is heard of one socket at a time.
const MOST_HEARD: u32 = 64;
/// Things that have happened and that the program has not asked for. More are forgotten, those first of others that are gone.
const MOST_EVENTS: usize = 1024;
/// Rings that nobody has asked for, and that are no reason to end a pair: some may be on their way twice.
const SLACK: u64 = 64;

/// Another endpoint, as the program may know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// What it calls itself; empty if it has no name.
    pub name: String,
    /// Whose it is.
    pub user: u32,
    /// The number of its process. `None`: it has none in this container.
    pub pid: Option<u32>,
    /// Its host, if that is another one, as it is called there. Host and user are what it says itself: between hosts nobody vouches for it.
    pub host: Option<String>,
}

/// Called once, with the message that has ended.
pub type Callback<B> = Box<dyn FnOnce(Ended<B>) + Send>;

struct Other {
    /// Of all that were ever met, which.
    serial: u32,
    who: Who,
    link: Option<Link>,
    /// The program knows it.
    is_told: bool,
    /// And that it is gone; or does not want it any more.
    is_over: bool,
}

struct Link {
    socket: Arc<OwnedFd>,
    /// Readable when the process has ended, whoever has inherited its socket. `None`: it cannot be seen from here.
    ended: Option<OwnedFd>,
    /// It may have rung so often, and has.
    dozes: u64,
    rings: u64,
    /// It may be told where messages are; and files that it was given, by their numbers from 1 on.
    is_own: bool,
    files: Vec<Identity>,
    /// Memory of messages that are handed over to it.
    pool: Option<Arc<Pool>>,
}

pub struct State<B: Buffer> {
    pub local: Local<B>,
    /// By the numbers of pairs.
    others: Vec<Other>,
    serial: u32,
    /// Of all messages there ever were, which has a number of the engine now; and the last one.
    requests: Vec<u32>,
    request: u32,
    epoll: Arc<OwnedFd>,
    done: VecDeque<Ended<B>>,
    /// Functions that are called when messages end, and those that are to be called now.
    callbacks: BTreeMap<Request, Callback<B>>,
    called: VecDeque<(Callback<B>, Ended<B>)>,
    events: VecDeque<Event>,
    /// How much has ended or happened, ever.
    news: u64,
    /// The program moves things on itself: it counts.
    pub calls: u64,
    /// Threads of the program that sleep.
    pub sleepers: u32,
    /// The helper thread sleeps until it is woken, and by what it is.
    pub is_asleep: bool,
    /// It wakes by itself when time is to go on.
    pub is_ticking: bool,
    /// Pairs that are to be woken, which could not be said.
    owed: Vec<PairId>,
    waker: Arc<OwnedFd>,
    /// How often others were told that this end sleeps.
    dozes: u64,
    /// For programs that wait for a descriptor; and whether it is readable.
    descriptor: Option<Arc<OwnedFd>>,
    is_readable: bool,
    closers: Closers,
    /// Whoever takes back what is not needed any more: what this is behind the lock of.
    me: Weak<dyn TakesBack>,
}

impl<B: Buffer> State<B> {
    pub fn new(local: Local<B>, epoll: Arc<OwnedFd>, waker: Arc<OwnedFd>, me: Weak<dyn TakesBack>) -> Self {
        Self {
            me,
            local,
            others: Vec::new(),
            serial: 0,
            requests: Vec::new(),
            request: 0,
            epoll,
            done: VecDeque::new(),
            callbacks: BTreeMap::new(),
            called: VecDeque::new(),
            events: VecDeque::new(),
            news: 0,
            calls: 0,
            sleepers: 0,
            is_asleep: false,
            is_ticking: false,
            owed: Vec::new(),
            waker,
            dozes: 0,
            descriptor: None,
            is_readable: false,
            closers: Closers::default(),
        }
    }

    /// One more of the others. `is_told`: the program has called it.
    pub fn join(
        &mut self,
        (memory, side, terms): (&Window, Side, Terms),
        socket: OwnedFd,
        (name, caller): (String, Caller),
        is_told: bool,
    ) -> Result<Peer, JoinError> {
        let socket = Arc::new(socket);
        // Who may read the memory of whom is the system's matter, but where it is, is not told to other users.
        // Whose process cannot be seen is in another container, whoever its user is there.
        let is_own = caller.user == geteuid().as_raw() && caller.pid.is_some();
        let pid = caller.pid.filter(|_| is_own);
        let process = pid.and_then(|pid| OtherProcess::new(pid, socket.clone())).map(Arc::new);
        let files = Some(Arc::new(Files::new(socket.clone(), is_own)));
        let pair = self.local.join(memory, side, terms, Reach { process, files })?;
        self.serial = self.serial.wrapping_add(1).max(1);
        let ended = caller.pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let key = EventData::new_u64(key(self.serial));
        let _ = epoll::add(&self.epoll, &*socket, key, EventFlags::IN | EventFlags::RDHUP);
        if let Some(ended) = &ended {
            let _ = epoll::add(&self.epoll, ended, key, EventFlags::IN);
        }
        let pid = caller.pid.map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        let who = Who { name, user: caller.user, pid, host: None };
        let link = Some(Link { socket, ended, dozes: self.dozes, rings: 0, is_own, files: Vec::new(), pool: None });
        self.place(pair, Other { serial: self.serial, who, link, is_told, is_over: false });
        // To the new one it has not said that it sleeps.
        self.wake_helper();
        Ok(self.joined(pair, is_told))
    }

    fn joined(&mut self, pair: PairId, is_told: bool) -> Peer {
        let peer = self.peer(pair);
        if !is_told {
            self.happens(Event::Joined(peer));
        }
        peer
    }

    /// Those of other hosts that have come and gone.
    fn look_at_hosts(&mut self) {
        while let Some(joined) = self.local.hosts().and_then(Hosts::joined) {
            let Joined { pair, name, host, user, is_called } = joined;
            self.serial = self.serial.wrapping_add(1).max(1);
            let who = Who { name, user, pid: None, host: Some(host) };
            self.place(pair, Other { serial: self.serial, who, link: None, is_told: is_called, is_over: false });
            self.joined(pair, is_called);
            self.news += u64::from(is_called);
        }
        while let Some(pair) = self.local.hosts().and_then(Hosts::gone) {
            self.local.hang_up(pair);
            self.ends(pair, None);
        }
    }

    fn place(&mut self, pair: PairId, other: Other) {
        match self.others.get_mut(pair.0 as usize) {
            Some(place) => *place = other,
            // The engine gives out the lowest number that is free.
            None => self.others.push(other),
        }
    }

    fn happens(&mut self, event: Event) {
        if self.events.len() >= MOST_EVENTS {
            let gone = self.events.iter().find(|event| matches!(event, Event::Lost(..))).map(|event| event.peer());
            // There are fewer others at a time, so that one of them is gone.
            self.events.retain(|event| Some(event.peer()) != gone);
        }
        self.events.push_back(event);
        self.news += 1;
    }

    /// The endpoint's own thread looks.
    pub fn wake_helper(&mut self) {
        if core::mem::take(&mut self.is_asleep) {
            wake_up(&self.waker);
        }
    }

    /// The pair that the program means, if it has not ended.
    #[inline]
    pub fn pair(&self, peer: Peer) -> Option<PairId> {
        self.other(peer).map(|_| PairId(peer.slot))
    }

    fn other(&self, peer: Peer) -> Option<&Other> {
        self.others.get(peer.slot as usize).filter(|other| other.serial == peer.serial && peer.serial != 0)
    }

    pub fn who(&self, peer: Peer) -> Option<Who> {
        self.other(peer).map(|other| other.who.clone())
    }

    /// The peer of a pair.
    pub fn peer(&self, pair: PairId) -> Peer {
        Peer { slot: pair.0, serial: self.others.get(pair.0 as usize).map_or(0, |other| other.serial) }
    }

    /// Others of a user that there are.
    pub fn count_of(&self, user: u32) -> usize {
        self.others.iter().filter(|other| other.link.is_some() && other.who.user == user).count()
    }

    /// Whether so much of a user's waits to be closed that it should not be more.
    pub fn has_much_to_close(&self, user: u32) -> bool {
        self.closers.is_full(user)
    }

    /// Others that there are, or that have left something.
    pub fn count(&self) -> usize {
        self.local.engine().pairs()
    }

    /// Moves everything on but what is read in the memory of others ([`super::Shared::progress`]). Whether there was something.
    pub fn progress(&mut self) -> bool {
        let has_moved = self.local.advance();
        if let Some(pair) = self.local.misses_file() {
            // It was given before the message was told of.
            self.look(pair);
        }
        self.local.hold();
        self.settle();
        has_moved
    }

    /// Takes what has ended, wakes who is to be woken, and says whether there is something to take.
    pub fn settle(&mut self) {
        self.look_at_hosts();
        while let Some((pair, breach)) = self.local.lost() {
            self.ends(pair, Some(breach));
        }
        self.collect();
        self.wake_others();
        if self.local.has_work() || !self.is_ticking && self.ticks() {
            self.wake_helper();
        }
        self.show();
    }

    /// Wakes who is to be woken.
    pub fn wake_others(&mut self) {
        let Self { local, others, owed, .. } = self;
        owed.retain(|pair| !wake(others, *pair));
        local.wake(|pair| {
            if !wake(others, pair) {
                owed.push(pair);
            }
        });
    }

    /// Takes what has ended.
    fn collect(&mut self) {
        while let Some(done) = self.local.done() {
            let from = match done.outcome {
                Outcome::Received { pair, .. } | Outcome::Held { pair, .. } => Some(self.peer(pair)),
                _ => None,
            };
            let given = match (done.outcome, from, self.local.take_held(done.request)) {
                (Outcome::Held { message, .. }, Some(peer), Some(window)) => {
                    Some(Given::new(window, peer, message, self.me.clone()))
                }
                _ => None,
            };
            let slot = done.request.0;
            let serial = self.requests.get(slot as usize).copied().unwrap_or_default();
            let request = Request { slot, serial };
            let ended = Ended { request, outcome: done.outcome, from, buffer: done.buffer, given };
            match self.callbacks.remove(&request) {
                Some(callback) => self.calls_back(callback, ended),
                None => self.done.push_back(ended),
            }
            self.news += 1;
        }
    }

    /// A function is called when a message has ended. One that is not called any more comes back: that, if there is no such message or its end was
    /// taken; or the one before. To be dropped without the lock.
    pub fn then(&mut self, request: Request, callback: Callback<B>) -> (bool, Option<Callback<B>>) {
        if let Some(ended) = self.take(Some(request)) {
            self.calls_back(callback, ended);
            return (true, None);
        }
        if self.open(request).is_none() {
            return (false, Some(callback));
        }
        (true, self.callbacks.insert(request, callback))
    }

    fn calls_back(&mut self, callback: Callback<B>, ended: Ended<B>) {
        self.called.push_back((callback, ended));
        // The thread may be asleep, or about to be.
        wake_up(&self.waker);
    }

    /// The next function that is to be called.
    pub fn called(&mut self) -> Option<(Callback<B>, Ended<B>)> {
        self.called.pop_front()
    }

    /// A block for another end, of a pool of so many bytes.
    pub fn allocate(&mut self, peer: Peer, len: usize, pool_len: usize) -> Result<Block, AllocateError> {
        if len > pool_len {
            return Err(AllocateError::TooLong(pool_len));
        }
        let pair = self.pair(peer).ok_or(AllocateError::Lost)?;
        let other = self.others.get_mut(pair.0 as usize).filter(|other| !other.is_over).ok_or(AllocateError::Lost)?;
        let link = other.link.as_mut().ok_or(AllocateError::Elsewhere)?;
        let pool = match &link.pool {
            Some(pool) => pool,
            None => {
                let pool = Pool::new(pool_len)?;
                if !pool.file().is_some_and(|file| give(&*link.socket, POOL, file)) {
                    return Err(AllocateError::Full);
                }
                link.pool.insert(pool)
            }
        };
        pool.allocate(len).ok_or(AllocateError::Full)
    }

    /// Memory that another end has allocated for this one.
    pub fn window(&mut self, peer: Peer, number: u64, len: u64) -> Result<Remote, WindowError> {
        let pair = self.pair(peer).ok_or(WindowError::Lost)?;
        if self.local.files(pair).is_some_and(|files| !files.has(POOL.into())) {
            // It was given before this end could hear of its number.
            self.look(pair);
        }
        let files = self.local.files(pair).ok_or(WindowError::Nowhere)?;
        files.window(POOL.into(), number, len).map(Remote::new).ok_or(WindowError::Nowhere)
    }

    /// Hands a block over.
    pub fn give(&mut self, peer: Peer, tag: Tag, block: Block) -> Result<(), GiveError> {
        let pair = self.pair(peer).ok_or(GiveError::Lost)?;
        let link = self.others.get(pair.0 as usize).and_then(|other| other.link.as_ref()).ok_or(GiveError::Lost)?;
        if !link.pool.as_ref().is_some_and(|pool| block.is_of(pool)) {
            return Err(GiveError::Elsewhere);
        }
        let origin = Origin { key: POOL.into(), address: block.number() };
        self.collect();
        let RequestId(slot) = self.local.give(pair, tag, block, origin).map_err(|_| GiveError::Lost)?;
        // It is no message that the program waits for.
        if let Some(number) = self.requests.get_mut(slot as usize) {
            *number = 0;
        }
        self.settle();
        Ok(())
    }

    /// The descriptor of programs is readable, if there is one, and something to take.
    pub fn show(&mut self) {
        let Some(descriptor) = &self.descriptor else { return };
        let has_some = !self.done.is_empty() || !self.events.is_empty() || self.local.has_bells();
        if has_some != self.is_readable {
            self.is_readable = has_some;
            if has_some { wake_up(descriptor) } else { was_woken(descriptor) }
        }
    }

    /// Whether the program may wait for a descriptor: then it looks now and sleeps the next moment.
    pub fn is_watched(&self) -> bool {
        self.descriptor.is_some()
    }

    /// A descriptor that is readable as long as there is something to take.
    pub fn descriptor(&mut self) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(descriptor) = &self.descriptor {
            return Ok(descriptor.clone());
        }
        let made = Arc::new(signal()?);
        self.descriptor = Some(made.clone());
        self.show();
        Ok(made)
    }

    /// Says what was said to a pair by the quick way: who sleeps there is woken.
    #[inline]
    pub fn said(&mut self, pair: PairId) {
        if self.local.must_wake(pair) {
            self.wake(pair);
        }
    }

    /// Wakes who sleeps there.
    pub fn wake(&mut self, pair: PairId) {
        if !wake(&self.others, pair) {
            self.owed.push(pair);
            self.wake_helper();
        }
    }

    /// Whether time has to go on: somebody has buffers, or is to be woken still.
    pub fn ticks(&self) -> bool {
        self.local.engine().in_use().1 > 0 || !self.owed.is_empty() || self.local.must_look()
    }

    /// How much has ended, happened or rung, ever.
    pub fn news(&self) -> u64 {
        self.news + self.local.bells_noted() + self.local.returned()
    }

    /// Says to all others that they are to wake this end. Whether it may sleep.
    pub fn doze(&mut self) -> bool {
        self.dozes += 1;
        self.local.doze()
    }

    /// The next message that has ended; or that one.
    pub fn take(&mut self, request: Option<Request>) -> Option<Ended<B>> {
        let at = match request {
            Some(request) => self.done.iter().position(|done| done.request == request)?,
            None => 0,
        };
        let taken = self.done.remove(at);
        self.show();
        taken
    }

    /// Whether that message has not ended, or was not taken.
    pub fn is_open(&self, request: Request) -> bool {
        self.open(request).is_some() || self.done.iter().any(|done| done.request == request)
    }

    /// The number of the engine, if that message has not ended.
    pub fn open(&self, request: Request) -> Option<RequestId> {
        let is_it = self.requests.get(request.slot as usize) == Some(&request.serial);
        Some(RequestId(request.slot)).filter(|open| is_it && self.local.engine().is_open(*open))
    }

    /// The next thing that has happened.
    pub fn event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if let Some(Event::Joined(peer)) = event
            && let Some(other) = self.others.get_mut(peer.slot as usize)
        {
            other.is_told = true;
        }
        self.show();
        event
    }

    /// The next one of those who have called.
    pub fn accept(&mut self) -> Option<Peer> {
        let at = self.events.iter().position(|event| matches!(event, Event::Joined(_)))?;
        let event = self.events.remove(at)?;
        self.events.push_front(event);
        self.event().map(|event| event.peer())
    }

    /// The next doorbell of anybody.
    pub fn bell(&mut self) -> Option<(Peer, Bell)> {
        let (pair, bell) = self.local.any_bell()?;
        self.show();
        Some((self.peer(pair), bell))
    }

    /// The pair of a socket or process that the system has named.
    pub fn of_key(&self, found: u64) -> Option<PairId> {
        let is_it = |other: &Other| other.link.is_some() && key(other.serial) == found;
        self.others.iter().position(is_it).map(|at| PairId(at as u32))
    }

    /// Looks what has become of another endpoint.
    pub fn look(&mut self, pair: PairId) {
        let dozes = self.dozes;
        let Some(other) = self.others.get_mut(pair.0 as usize) else { return };
        let user = other.who.user;
        let Some(link) = other.link.as_mut() else { return };
        let mut fds = Vec::new();
        for _ in 0..MOST_HEARD {
            let heard = hear(&*link.socket, &mut fds);
            if let Heard::File(number) = heard
                && let (Some(file), Some(files)) = (fds.pop(), self.local.files(pair))
                && let Err(file) = files.give(number, file)
            {
                fds.push(file);
            }
            let is_left = !fds.is_empty();
            fds.drain(..).for_each(|fd| self.closers.of(user).close(fd));
            match heard {
                Heard::Ring => {
                    link.rings += 1;
                    // Something has come, or is about to: threads that sleep look as well.
                    self.news += 1;
                }
                Heard::Nothing => break,
                Heard::File(_) if !is_left => {}
                Heard::File(_) => return self.hang_up(pair, Some(Breach::Nonsense)),
                Heard::End => return self.hang_up(pair, None),
                Heard::Nonsense => return self.hang_up(pair, Some(Breach::Nonsense)),
            }
        }
        // Two flags are set each time, and who takes one down rings once.
        if link.rings > 2 * (dozes - link.dozes) + SLACK {
            return self.hang_up(pair, Some(Breach::Rings));
        }
        if link.ended.as_ref().is_some_and(has_ended) {
            self.hang_up(pair, None);
        }
    }

    fn hang_up(&mut self, pair: PairId, breach: Option<Breach>) {
        self.unlink(pair);
        self.local.hang_up(pair);
        self.ends(pair, breach);
        self.settle();
    }

    /// The program does not want it any more.
    pub fn leave(&mut self, pair: PairId) {
        self.unlink(pair);
        self.local.leave(pair);
        if let Some(other) = self.others.get_mut(pair.0 as usize) {
            // It is nobody's any more.
            (other.serial, other.is_over) = (0, true);
        }
    }

    fn ends(&mut self, pair: PairId, breach: Option<Breach>) {
        self.unlink(pair);
        let peer = self.peer(pair);
        let Some(other) = self.others.get_mut(pair.0 as usize).filter(|other| !other.is_over) else { return };
        other.is_over = true;
        // Who came and went is nobody's matter, unless he has left something: then he keeps a place until he is left.
        if other.is_told || self.local.has_left(pair) {
            self.happens(Event::Lost(peer, breach));
        } else {
            self.events.retain(|event| *event != Event::Joined(peer));
        }
    }

    /// Says to another one that this one is not there any more, before memory is used for something else that it may be reading.
    fn unlink(&mut self, pair: PairId) {
        let Some(other) = self.others.get_mut(pair.0 as usize) else { return };
        let user = other.who.user;
        let Some(link) = other.link.take() else { return };
        // A child may have them still, and then closing them does not do it.
        let _ = shutdown(&*link.socket, Shutdown::Both);
        let _ = epoll::delete(&self.epoll, &*link.socket);
        if let Some(ended) = &link.ended {
            let _ = epoll::delete(&self.epoll, ended);
        }
        // What another user has sent lies in it. Nobody else has it then: memory is read of the own user's processes only.
        if let Some(socket) = Arc::into_inner(link.socket) {
            self.closers.of(user).close(socket);
        }
    }

    /// The endpoint is closed.
    pub fn unlink_all(&mut self) {
        (0..self.others.len()).for_each(|at| self.unlink(PairId(at as u32)));
    }

    /// Sends a message; `place`: in which file it is.
    pub fn send(
        &mut self,
        peer: Peer,
        (tag, buffer): (Tag, B),
        place: Option<Place>,
        otherwise: impl FnOnce(&mut Local<B>, PairId, Tag, B) -> Result<RequestId, RequestError>,
    ) -> Result<Request, RequestError> {
        let origin = place.and_then(|place| self.share(peer, &place));
        self.with_pair(peer, |local, pair| match origin {
            Some(origin) => local.send_from(pair, tag, buffer, origin),
            None => otherwise(local, pair, tag, buffer),
        })
    }

    /// What a place is for another end, which is given the file if it does not have it. `None`: it may not have it.
    fn share(&mut self, peer: Peer, place: &Place) -> Option<Origin> {
        let pair = self.pair(peer)?;
        let link = self.others.get_mut(pair.0 as usize)?.link.as_mut().filter(|link| link.is_own)?;
        let identity = place.file.identity();
        let known = link.files.iter().position(|file| *file == identity);
        let at = known.unwrap_or(link.files.len());
        if known.is_none() {
            if at + 1 >= POOL.into() || !give(&*link.socket, at as u8 + 1, place.file.fd()) {
                return None;
            }
            link.files.push(identity);
        }
        Some(Origin { key: at as u64 + 1, address: place.offset })
    }

    /// Begins a message with one of the others.
    pub fn with_pair(
        &mut self,
        peer: Peer,
        act: impl FnOnce(&mut Local<B>, PairId) -> Result<RequestId, RequestError>,
    ) -> Result<Request, RequestError> {
        let pair = self.pair(peer).ok_or(RequestError::Lost)?;
        self.begin(|local| act(local, pair))
    }

    /// Begins a message. It may have ended already.
    pub fn begin(
        &mut self,
        act: impl FnOnce(&mut Local<B>) -> Result<RequestId, RequestError>,
    ) -> Result<Request, RequestError> {
        // The numbers of those that have ended may be the next one's.
        self.collect();
        let begun = act(&mut self.local).map(|RequestId(slot)| {
            self.request = self.request.wrapping_add(1).max(1);
            if self.requests.len() <= slot as usize {
                self.requests.resize(slot as usize + 1, 0);
            }
            // The one before with that number has ended, and was told of.
            self.requests[slot as usize] = self.request;
            Request { slot, serial: self.request }
        });
        self.settle();
        begun
    }
}

/// Of 64 bits, for the system to name a socket by.
fn key(serial: u32) -> u64 {
    u64::from(serial) << 32
}

/// False: it is to be tried again.
fn wake(others: &[Other], pair: PairId) -> bool {
    let link = others.get(pair.0 as usize).and_then(|other| other.link.as_ref());
    link.is_none_or(|link| ring(&*link.socket))
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)), Ok(1))
}

/// An eventfd, which no other process ever has.
pub fn signal() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

pub fn wake_up(signal: impl AsFd) {
    let _ = write(signal, &1_u64.to_ne_bytes());
}

pub fn was_woken(signal: impl AsFd) {
    let _ = read(signal, &mut [0; 8]);
}
