//! An endpoint of a program in a guest, with the calls of SLURPoE ([`millrace_slurpoe::Endpoint`]). `region`: its memory; `transfer`: what is moved.

mod region;
mod transfer;

pub use region::Region;
pub use transfer::{Part, Transfer};

use crate::frontend::{Frontend, Status};
use crate::late::Heard;
use crate::meeting::capabilities;
use crate::message::{MOST_TOLD, Message, Request, read_pair};
use crate::{Access, Address, Completion, Error, Failed, Told};
use millrace_rdma::memory::ProtectionDomain;
use millrace_rdma::number::{Key, Qpn};
use millrace_rdma::served::{Full, Program, queue_lines, ring_len};
use millrace_rdma::transport::{Capabilities, Event, Init};
use millrace_rdma::wire::Service;
use millrace_rdma::work::{Completion as Ended, Data, Flags, Operation, Piece, Request as Posted};
use millrace_served::wire;
use millrace_slurpoe::Kind;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use transfer::{AT_ONCE, Far};

/// Looks at the completion queue before an endpoint sleeps, how long they may take, and after how many of them that is asked.
const SPINS: u32 = 1000;
const SPIN: Duration = Duration::from_millis(2);
const ASKED: u32 = 16;
/// What is kept of what other programs tell, until this one takes it.
const MOST_KEPT: usize = 256;
/// What the backend has told that is heard at a look.
const HEARD: usize = 16;
/// Queue pairs of connections that others have ended, and that the backend was not asked to destroy yet. With so many no more is heard: others cannot have
/// an endpoint that reads on and on.
const MOST_DEAD: usize = 64;
/// How long a connection is asked for before it is asked for again.
const AGAIN: Duration = Duration::from_millis(20);

/// What an endpoint is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the backend is: `xen` for the one in domain 0, otherwise the path of its socket.
    pub place: String,
    /// Requests to one other end that have not ended, at most; of transfers longer than 1 MiB each MiB is one.
    pub depth: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { place: "xen".to_owned(), depth: 128 }
    }
}

/// Requests that end together.
struct Chain {
    token: u64,
    other: Address,
    /// Of which transfer each request is: the kind of it, its length, and its index.
    requests: Vec<(Kind, u32, u16)>,
}

/// The other end of a connection.
struct Peer {
    qpn: Qpn,
    /// Chains and buffers that have not ended.
    open: usize,
    /// Tokens of buffers that have not ended, in their order.
    buffers: VecDeque<u64>,
    is_over: bool,
    /// The backend was told that it is over, and has not answered in time.
    is_leaving: bool,
}

impl Peer {
    fn is_connected(&self) -> bool {
        !self.is_over && !self.is_leaving
    }
}

struct Inner {
    frontend: Frontend,
    program: Program,
    queue: u32,
    /// Completions that it has room for.
    room: u32,
    peers: HashMap<Address, Peer>,
    others: HashMap<Qpn, Address>,
    /// Queue pairs that the backend is to destroy.
    dead: VecDeque<Qpn>,
    chains: HashMap<u32, Chain>,
    next: u32,
    /// The next completion makes an event: asked for, and not come yet.
    is_armed: bool,
    told: VecDeque<Told>,
    told_dropped: u64,
    ended: VecDeque<Completion>,
}

/// Bits of the number of a request: which chain, and which of its requests. A buffer has a number of its own.
const REQUEST_BITS: u32 = 16;
const BUFFER: u64 = 1 << 63;

/// An endpoint: an address, regions in granted memory, and connections. All calls may be made by any number of threads, one at a time.
pub struct Endpoint {
    inner: Arc<Mutex<Inner>>,
    address: Address,
    domain: ProtectionDomain,
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    // What a panic has left half done is checked by the backend as everything else.
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

fn one(words: &[u64]) -> Result<u32, Error> {
    words.first().and_then(|word| u32::try_from(*word).ok()).ok_or(Error::Version)
}

impl Endpoint {
    /// Opens an endpoint at a backend.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(config: &Config) -> Result<Self, Error> {
        Self::over(Frontend::call_at(&config.place)?, config.depth)
    }

    /// The same over a frontend that is there.
    ///
    /// # Errors
    /// [`Error`].
    pub fn over(mut frontend: Frontend, depth: u32) -> Result<Self, Error> {
        let (address, mut program) = (frontend.welcome().address, frontend.join()?);
        let domain = ProtectionDomain(one(&frontend.engine(wire::Request::CreateDomain)?)?);
        // One queue for all: the engine keeps what has no room.
        let room = depth.saturating_mul(4);
        let (at, ring) = frontend.share(ring_len(queue_lines(room)))?;
        let queue = one(&frontend.ask(&Request::CreateQueue(room, at))?)?;
        program.add_queue(queue, room, &ring)?;
        let init = Init {
            service: Service::ReliableConnection,
            general: false,
            domain,
            send_queue: queue,
            receive_queue: queue,
            shared_receive_queue: None,
            capabilities: capabilities(depth),
            signal_all: false,
            context: 0,
        };
        frontend.ask(&Request::Open(init))?;
        let inner = Inner {
            frontend,
            program,
            queue,
            room,
            peers: HashMap::new(),
            others: HashMap::new(),
            dead: VecDeque::new(),
            chains: HashMap::new(),
            next: 0,
            is_armed: false,
            told: VecDeque::new(),
            told_dropped: 0,
            ended: VecDeque::new(),
        };
        Ok(Self { inner: Arc::new(Mutex::new(inner)), address, domain })
    }

    /// Its address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Makes memory, grants it once, and registers it.
    ///
    /// # Errors
    /// [`Error`].
    pub fn allocate(&self, len: usize, access: Access) -> Result<Region, Error> {
        let mut inner = lock(&self.inner);
        let (at, window) = inner.frontend.share(len)?;
        let register = Request::Register { domain: self.domain, access: access.bits(), at, len: len as u64, base: 0 };
        match inner.frontend.ask(&register).and_then(|words| one(&words)) {
            Ok(key) => {
                let (inner, key, len) = (Arc::downgrade(&self.inner), Key::new(key), len as u64);
                Ok(Region { inner, key, at, len, window })
            }
            Err(error) => {
                inner.frontend.abandon(at);
                Err(error)
            }
        }
    }

    /// Makes a connection, unless there is one. Asks again for as long as `patience` while there is no such endpoint, it does not read what it is told, or this
    /// one has connected too often.
    ///
    /// # Errors
    /// [`Error::NoEndpoint`]; [`Error::Refused`]; [`Error`].
    pub fn connect(&self, other: Address, patience: Duration) -> Result<(), Error> {
        let until = Instant::now() + patience;
        loop {
            let done = lock(&self.inner).connect(other);
            match done {
                Err(error) if is_for_now(&error) && Instant::now() < until => std::thread::sleep(AGAIN),
                done => return done,
            }
        }
    }

    /// Ends a connection.
    ///
    /// # Errors
    /// [`Error`].
    pub fn disconnect(&self, other: Address) -> Result<(), Error> {
        let mut inner = lock(&self.inner);
        let done = inner.frontend.ask(&Request::Disconnect(other));
        if done.is_err() && inner.frontend.leaves(other) {
            inner.peers.entry(other).and_modify(|peer| peer.is_leaving = true);
        }
        done?;
        inner.hear_of(other);
        inner.forget(other);
        Ok(())
    }

    /// Posts transfers to another end, with one doorbell. One completion tells the end of all of them, or of the first that failed.
    ///
    /// # Errors
    /// [`Error::NotConnected`], [`Error::Full`], [`Error::Message`]: nothing was posted.
    pub fn post(&self, other: Address, transfers: &[Transfer], token: u64) -> Result<(), Error> {
        lock(&self.inner).post(other, transfers, token)
    }

    /// Posts a buffer for a message of another end.
    ///
    /// # Errors
    /// As those of [`Endpoint::post`].
    pub fn receive(&self, other: Address, local: Part, token: u64) -> Result<(), Error> {
        let mut inner = lock(&self.inner);
        inner.listen()?;
        let peer = inner.peers.get(&other).filter(|peer| peer.is_connected()).ok_or(Error::NotConnected(other))?;
        let (qpn, piece) = (peer.qpn, Piece { address: local.offset, len: local.len, lkey: local.key });
        if token >= BUFFER {
            return Err(Error::Refused { what: "a token of 64 bits for a buffer", errno: Errno::INVAL.raw_os_error() });
        }
        let posted = inner.program.post_receive(qpn, token | BUFFER, &[piece]);
        if posted.map_err(|full| full_of(full, other))? {
            inner.frontend.ring();
        }
        inner.peers.entry(other).and_modify(|peer| {
            peer.open += 1;
            peer.buffers.push_back(token);
        });
        Ok(())
    }

    /// The next end of something, if there is one.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Version`].
    pub fn poll(&self) -> Result<Option<Completion>, Error> {
        lock(&self.inner).poll()
    }

    /// The same, asleep until there is one, or so long.
    ///
    /// # Errors
    /// As those of [`Endpoint::poll`].
    pub fn wait(&self, patience: Duration) -> Result<Option<Completion>, Error> {
        lock(&self.inner).wait(patience, true, Inner::poll)
    }

    /// Tells another endpoint's program up to 200 bytes.
    ///
    /// # Errors
    /// [`Error::Told`]; [`Error::NoEndpoint`]; [`Error::Refused`] with EAGAIN: it has not read what it was told before.
    pub fn tell(&self, other: Address, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > MOST_TOLD {
            return Err(Error::Told(bytes.len()));
        }
        let told = lock(&self.inner).frontend.ask(&Request::Tell(other, bytes.to_vec()));
        told.map(drop).map_err(|error| missing(error, other))
    }

    /// What another program has told, asleep until there is something, or so long.
    ///
    /// # Errors
    /// As those of [`Endpoint::poll`].
    pub fn told(&self, patience: Duration) -> Result<Option<Told>, Error> {
        lock(&self.inner).wait(patience, false, |inner| {
            inner.listen()?;
            Ok(inner.told.pop_front())
        })
    }

    /// Other ends that are connected.
    ///
    /// # Errors
    /// As those of [`Endpoint::poll`].
    pub fn peers(&self) -> Result<Vec<Address>, Error> {
        let mut inner = lock(&self.inner);
        inner.listen()?;
        Ok(inner.peers.iter().filter(|(_, peer)| peer.is_connected()).map(|(address, _)| *address).collect())
    }

    /// What both sides have counted.
    ///
    /// # Errors
    /// [`Error`].
    pub fn status(&self) -> Result<Status, Error> {
        let mut inner = lock(&self.inner);
        let (dropped, status) = (inner.told_dropped, inner.frontend.status()?);
        Ok(Status { told_dropped: status.told_dropped + dropped, ..status })
    }
}

fn missing(error: Error, other: Address) -> Error {
    match error {
        Error::Refused { errno, .. } if errno == Errno::NOENT.raw_os_error() => Error::NoEndpoint(other),
        error => error,
    }
}

/// Whether the same may be answered otherwise soon.
fn is_for_now(error: &Error) -> bool {
    const SOON: [i32; 2] = [Errno::AGAIN.raw_os_error(), Errno::ALREADY.raw_os_error()];
    match error {
        Error::NoEndpoint(_) => true,
        Error::Refused { errno, .. } => SOON.contains(errno),
        _ => false,
    }
}

fn full_of(full: Full, other: Address) -> Error {
    match full {
        Full::Queue | Full::Long => Error::Full,
        Full::Missing => Error::NotConnected(other),
    }
}

impl Inner {
    fn connect(&mut self, other: Address) -> Result<(), Error> {
        self.listen()?;
        if self.peers.get(&other).is_some_and(Peer::is_connected) {
            return Ok(());
        }
        let answer = match self.frontend.ask(&Request::Connect(other)) {
            Err(Error::Refused { errno, .. }) if errno == Errno::ALREADY.raw_os_error() => {
                return self.met(other, errno);
            }
            answer => answer.map_err(|error| missing(error, other))?,
        };
        let (qpn, granted) = read_pair(&answer).ok_or(Error::Version)?;
        self.hear_of(other);
        self.add(other, qpn, &granted);
        Ok(())
    }

    /// They are connected already: the other one has asked for it, which was told before.
    fn met(&mut self, other: Address, errno: i32) -> Result<(), Error> {
        self.hear_of(other);
        let is_there = self.peers.get(&other).is_some_and(Peer::is_connected);
        if is_there { Ok(()) } else { Err(Error::Refused { what: Request::Connect(other).what(), errno }) }
    }

    fn add(&mut self, other: Address, qpn: Qpn, granted: &Capabilities) {
        self.forget(other);
        self.program.add_pair(qpn, granted, false);
        self.peers.insert(other, Peer { qpn, open: 0, buffers: VecDeque::new(), is_over: false, is_leaving: false });
        self.others.insert(qpn, other);
    }

    /// A connection that is over: what has not ended ends now, and what has ended is told as it has.
    fn forget(&mut self, other: Address) {
        if !self.peers.contains_key(&other) {
            return;
        }
        self.take_ended();
        let Some(peer) = self.peers.remove(&other) else { return };
        self.others.remove(&peer.qpn);
        self.program.remove_pair(peer.qpn);
        if peer.is_over {
            // The backend has it still.
            self.dead.push_back(peer.qpn);
        }
        let failed = Some(Failed::Flushed);
        for token in peer.buffers {
            self.ended.push_back(Completion { token, kind: Kind::Receive, failed, index: 0, other, len: 0 });
        }
        let (gone, left) = core::mem::take(&mut self.chains).into_iter().partition(|(_, chain)| chain.other == other);
        self.chains = left;
        let gone: HashMap<u32, Chain> = gone;
        for chain in gone.into_values() {
            let (kind, _, index) = chain.requests.last().copied().unwrap_or_default();
            self.ended.push_back(Completion { token: chain.token, kind, failed, index, other, len: 0 });
        }
    }

    /// Takes what stands in the completion queue, for later.
    fn take_ended(&mut self) {
        for _ in 0..self.room {
            let mut found = [Ended::default()];
            // What is no completion is found by the next poll as well.
            if self.program.poll(self.queue, &mut found).unwrap_or(0) == 0 {
                return;
            }
            let ended = self.end(&found[0]);
            self.ended.extend(ended);
        }
    }

    /// Takes some of what the backend has told: others decide how much that is.
    fn listen(&mut self) -> Result<(), Error> {
        for _ in 0..HEARD {
            if self.dead.len() >= MOST_DEAD {
                break;
            }
            let Some(told) = self.frontend.take_told()? else { break };
            self.take_told(told);
        }
        let is_done = |peer: &Peer| peer.is_over && peer.open == 0;
        while let Some(other) = self.peers.iter().find(|(_, peer)| is_done(peer)).map(|(other, _)| *other) {
            self.forget(other);
        }
        if let Some(qpn) = self.dead.front()
            && self.frontend.send_unawaited(&Request::Engine(wire::Request::DestroyPair(*qpn)))?
        {
            self.dead.pop_front();
        }
        self.frontend.undo()?;
        Ok(())
    }

    fn take_told(&mut self, heard: Heard) {
        let told = match heard {
            Heard::Told(told) => told,
            Heard::Disconnected(other) => return self.forget(other),
        };
        match told {
            Message::Connected(other, qpn, granted) => self.add(other, qpn, &granted),
            Message::Over(other) => {
                if let Some(peer) = self.peers.get_mut(&other) {
                    peer.is_over = true;
                }
            }
            // Others say as much as they like.
            Message::Told(..) if self.told.len() >= MOST_KEPT => self.told_dropped += 1,
            Message::Told(from, bytes) => self.told.push_back(Told { from, bytes }),
            Message::Answer(..) => {}
        }
    }

    /// Takes all that the backend has told of connections with that one, before it gave its last answer.
    fn hear_of(&mut self, other: Address) {
        for told in self.frontend.take_told_of(other) {
            self.take_told(told);
        }
    }

    fn post(&mut self, other: Address, transfers: &[Transfer], token: u64) -> Result<(), Error> {
        self.listen()?;
        let peer = self.peers.get(&other).filter(|peer| peer.is_connected()).ok_or(Error::NotConnected(other))?;
        let qpn = peer.qpn;
        let too_long = transfers.iter().find(|transfer| transfer.to == Far::Send && transfer.local.len > AT_ONCE);
        if let Some(transfer) = too_long {
            return Err(Error::Message(transfer.local.len));
        }
        let count = transfers.iter().map(Transfer::count).fold(0_usize, usize::saturating_add);
        if !(1..1 << REQUEST_BITS).contains(&count) {
            return Err(Error::Full);
        }
        // There are no more transfers than requests: each has an index.
        let requests: Vec<_> = (0..=u16::MAX)
            .zip(transfers)
            .flat_map(|(index, transfer)| {
                let (kind, len) = (transfer.kind(), transfer.local.len);
                transfer.requests().map(move |request| ((kind, len, index), request))
            })
            .collect();
        let id = self.next;
        let posted = |number: usize, (operation, piece): &(Operation, Piece)| {
            let last = number + 1 == requests.len();
            let flags = Flags { signaled: last, ..Flags::default() };
            (u64::from(id) << REQUEST_BITS | number as u64, *operation, [*piece], flags)
        };
        if !self.program.has_room(qpn, requests.len()) {
            return Err(Error::Full);
        }
        // A message of one or two lines each, of which the ring has 1024.
        let pieces: Vec<_> =
            requests.iter().enumerate().map(|(number, (_, request))| posted(number, request)).collect();
        let all = pieces.iter().map(|(id, operation, pieces, flags)| Posted {
            id: *id,
            operation: *operation,
            data: Data::Pieces(pieces),
            flags: *flags,
            target: None,
        });
        if !self.program.has_lines(qpn, all.clone()).map_err(|full| full_of(full, other))? {
            return Err(Error::Full);
        }
        let mut wakes = false;
        for request in all {
            wakes |= self.program.post_send(qpn, &request).map_err(|full| full_of(full, other))?;
        }
        if wakes {
            self.frontend.ring();
        }
        let requests = requests.into_iter().map(|(of, _)| of).collect();
        self.chains.insert(id, Chain { token, other, requests });
        self.next = self.next.wrapping_add(1);
        self.peers.entry(other).and_modify(|peer| peer.open += 1);
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Completion>, Error> {
        loop {
            if let Some(ended) = self.ended.pop_front() {
                return Ok(Some(ended));
            }
            let mut found = [Ended::default()];
            if self.program.poll(self.queue, &mut found).map_err(|_| Error::Version)? == 0 {
                self.listen()?;
                // What had a connection that is over is told, too.
                if self.ended.is_empty() { return Ok(None) } else { continue }
            }
            if let Some(ended) = self.end(&found[0]) {
                return Ok(Some(ended));
            }
        }
    }

    /// What a completion of the engine is for the program. `None`: nothing that it asked for.
    fn end(&mut self, found: &Ended) -> Option<Completion> {
        let other = self.others.get(&found.qpn).copied()?;
        let failed = Failed::of(found.status);
        if found.id & BUFFER != 0 {
            let (token, kind) = (found.id & !BUFFER, Kind::Receive);
            self.peers.entry(other).and_modify(|peer| {
                peer.open = peer.open.saturating_sub(1);
                // They end in their order: it is the first.
                if let Some(at) = peer.buffers.iter().position(|buffer| *buffer == token) {
                    peer.buffers.remove(at);
                }
            });
            return Some(Completion { token, kind, failed, len: found.len, index: 0, other });
        }
        // Of those behind one that failed nothing is left to be told.
        let chain = self.chains.remove(&((found.id >> REQUEST_BITS) as u32))?;
        self.peers.entry(other).and_modify(|peer| peer.open = peer.open.saturating_sub(1));
        let number = found.id as usize & ((1 << REQUEST_BITS) - 1);
        let (kind, whole, index) = chain.requests.get(number).copied().unwrap_or_default();
        let len = if failed.is_none() && kind == Kind::Read { whole } else { 0 };
        Some(Completion { token: chain.token, kind, failed, len, index, other })
    }

    /// Looks for a while, and then sleeps between looks, so long at most. What is looked for may be a completion; otherwise it is something
    /// that the backend tells, for which nothing has to be asked.
    fn wait<T>(
        &mut self,
        patience: Duration,
        may_complete: bool,
        look: impl Fn(&mut Self) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let until = Instant::now() + patience;
        loop {
            let begin = Instant::now();
            for number in 1..=SPINS {
                if let Some(found) = look(self)? {
                    return Ok(Some(found));
                }
                std::thread::yield_now();
                if number % ASKED == 0 && begin.elapsed() >= SPIN {
                    break;
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Who has so little patience that he never sleeps is told of the end of the backend, too.
                self.frontend.sleep(Duration::ZERO)?;
                return Ok(None);
            }
            // The next completion makes an event, and an event wakes who has said that he sleeps.
            if may_complete && !self.is_armed {
                let armed = self.program.arm(self.queue, false);
                self.is_armed = armed.is_ok();
                if armed.is_ok_and(|wakes| wakes) {
                    self.frontend.ring();
                }
            }
            let program = &self.program;
            let is_idle = program.doze() && self.frontend.doze();
            if is_idle && !(may_complete && program.has_completions(self.queue)) {
                self.frontend.sleep(left)?;
            }
            self.program.awake();
            self.frontend.awake();
            while let Some(event) = self.program.take_event().map_err(|_| Error::Version)? {
                self.is_armed &= !matches!(event, Event::Completion(_));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::tests::greet;
    use crate::message::pair_words;

    #[test]
    fn a_connection_that_is_made_late_is_there_and_one_that_ends_late_is_over() {
        let (frontend, backend) = greet();
        let thread = backend.answers([vec![0, 4096], vec![], vec![1], vec![1, 8192], vec![1], vec![]]);
        let endpoint = Endpoint::over(frontend, 1).unwrap();
        let mut backend = thread.join().unwrap();
        let (other, qpn) = (Address([2, 7, 7, 7, 7, 7]), Qpn::new(9));
        lock(&endpoint.inner).frontend.patience = Duration::from_millis(5);
        for round in 0..2 {
            assert!(matches!(endpoint.connect(other, Duration::ZERO), Err(Error::Silent)));
            assert!(endpoint.peers().unwrap().is_empty());
            let (number, request) = backend.next();
            assert_eq!(request, Request::Connect(other));
            backend.say(&Message::Answer(number, Ok(pair_words(qpn, &capabilities(1)).to_vec())));
            endpoint.connect(other, Duration::ZERO).unwrap();
            assert_eq!(endpoint.peers().unwrap(), [other], "round {round}");
            assert!(matches!(endpoint.disconnect(other), Err(Error::Silent)));
            assert!(endpoint.peers().unwrap().is_empty());
            assert!(matches!(endpoint.post(other, &[], 1), Err(Error::NotConnected(_))));
            let (number, request) = backend.next();
            assert_eq!(request, Request::Disconnect(other));
            backend.say(&Message::Answer(number, Ok(Vec::new())));
            assert!(endpoint.poll().unwrap().is_none());
            let inner = lock(&endpoint.inner);
            assert!(inner.peers.is_empty() && inner.others.is_empty() && inner.dead.is_empty());
        }
    }
}
