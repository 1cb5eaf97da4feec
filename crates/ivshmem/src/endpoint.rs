//! A peer: doorbells and messages to each other peer, and from each.
//!
//! The rings are in the memory before a program comes and after it has gone, so that a program goes on where the one before it has ended.
//! Whoever gets the id of a peer that has gone finds empty rings, and the others begin with him anew.

use crate::host::Host;
use crate::layout::{BELLS, LINES, Layout, LayoutError};
use crate::pci::Device;
use millrace_dma::{Ordering, OutOfRange, RegionError, Window};
use millrace_message::bell::{self, ClaimError, Filter, Full, Owner};
use millrace_ring::lines::{self, MOST_WORDS};
use rustix::fd::BorrowedFd;
use rustix::time::{ClockId, clock_gettime};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Bytes of a message at most.
pub const MOST_BYTES: usize = (MOST_WORDS - 1) * 8;
/// How long a program in a virtual machine sleeps between two looks: nothing wakes it.
const NAP: Duration = Duration::from_micros(200);
const OWNER: Owner = Owner(0);
/// How often what the server says is read by who never waits for it.
const HEARS: Duration = Duration::from_millis(100);

/// The time, to some milliseconds: it is asked for by each call.
fn coarse() -> Duration {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Where the memory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// On the host: the socket of the server.
    Socket(PathBuf),
    /// In a virtual machine: the address of the device, or the only device.
    Pci(Option<String>),
}

impl FromStr for At {
    type Err = std::convert::Infallible;

    /// `pci`, `pci:ADDRESS`, or the path of a socket.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_prefix("pci") {
            Some("") => Self::Pci(None),
            Some(rest) if rest.starts_with(':') => Self::Pci(Some(rest[1..].to_owned())),
            _ => Self::Socket(text.into()),
        })
    }
}

/// Why there is no endpoint, or it cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// No server.
    #[error("cannot reach a server at {path}: {source}; start one with `millrace ivshmem {path}`")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It says nothing.
    #[error("who listens at {0} says nothing: it is no server of ivshmem")]
    Silent(PathBuf),
    /// There is no room for what it sends.
    #[error("there are no descriptors left for what the server at {0} gives: end something, or allow more (ulimit -n)")]
    Descriptors(PathBuf),
    /// It has hung up.
    #[error(
        "the server at {0} has hung up: all its peers are taken, or this user may not connect; `millrace ivshmem status {0}` says which"
    )]
    TurnedAway(PathBuf),
    /// It says something else.
    #[error("who listens at {0} is no server of ivshmem")]
    NoServer(PathBuf),
    /// No device.
    #[error("this machine has no device ivshmem (1af4:1110): give QEMU -device ivshmem-doorbell")]
    NoDevices,
    /// More than one.
    #[error("this machine has several devices: name one of {0}, such as pci:{0}")]
    Several(String),
    /// Another device, or none.
    #[error("there is no device ivshmem (1af4:1110) at {0}; lspci shows which there are")]
    NoDevice(String),
    /// QEMU has no id for it.
    #[error("the device at {0} has no id: QEMU has not reached the server")]
    NotReady(String),
    /// Not allowed, mostly.
    #[error("cannot {step} the device at {address}: {source}; it takes root")]
    Device {
        /// Where.
        address: String,
        /// What.
        step: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// Somebody else has it.
    #[error("another program of this machine {what} by the device at {address}: end it first")]
    Locked {
        /// Where.
        address: String,
        /// What it does.
        what: &'static str,
    },
    /// The memory cannot be mapped.
    #[error("cannot map the memory: {0}")]
    Memory(RegionError),
    /// It is not laid out as it should be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// There cannot be such a peer.
    #[error("there is no peer {peer}: their numbers are 0 to {last}, and this one is {own}")]
    Peer {
        /// Who was asked for.
        peer: u16,
        /// The last.
        last: u16,
        /// This one.
        own: u16,
    },
    /// Another has its number.
    #[error(
        "this peer was cut off by the server, and its number {0} may be another's: connect again (in a virtual machine, start it again)"
    )]
    CutOff(u16),
    /// It is not there.
    #[error("peer {0} is not there; `millrace ivshmem peers` shows who is")]
    Gone(u16),
    /// As many as may wait there.
    #[error("peer {0} has not taken what waits for it: try again later")]
    Full(u16),
    /// Nobody there listens for this doorbell.
    #[error("nobody at peer {0} listens for doorbell {1}")]
    Unwanted(u16, u16),
    /// Too long.
    #[error("a message has at most {MOST_BYTES} bytes, not {0}")]
    TooLong(usize),
    /// Numbers cannot be had.
    #[error(transparent)]
    Claim(#[from] ClaimError),
}

impl EndpointError {
    /// Whether the same may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Gone(_) | Self::Full(_) | Self::Unwanted(..))
    }
}

/// What has come from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A doorbell.
    Doorbell(u16),
    /// A message.
    Message(Vec<u8>),
}

/// What was not taken, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Words in the ring of a peer that are no doorbells.
    pub doorbells: u64,
    /// Peers from whom no message is taken any more, since they have written what is none.
    pub messages: u64,
    /// Doorbells that came although nobody listens for their numbers: rung before that was said, or by somebody who does not look.
    pub unclaimed: u64,
    /// Descriptors of other peers that came when there was no room for them: who has lost one of a peer does not wake it.
    pub vectors: u64,
}

enum Link {
    Host(Host),
    Guest(Device),
}

/// To a peer.
struct Outgoing {
    presence: u64,
    bells: bell::Sender,
    messages: lines::Sender,
}

/// From a peer.
struct Incoming {
    presence: u64,
    bells: bell::Receiver,
    messages: lines::Receiver,
    is_broken: bool,
}

/// A peer: this program's.
pub struct Endpoint {
    link: Link,
    layout: Layout,
    own: u16,
    /// What stood at its own place when it came: something else stands there when the server has cut it off.
    own_presence: u64,
    heard: Duration,
    outs: Vec<Option<Outgoing>>,
    ins: Vec<Option<Incoming>>,
    /// Which doorbells are wanted; `None`: this does not receive.
    filter: Option<Filter>,
    may_send: bool,
    next: u16,
    words: Box<[u64; MOST_WORDS]>,
    refused: Refused,
    unclaimed: Arc<AtomicU64>,
}

impl Endpoint {
    /// Joins those who share the memory.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub fn open(at: &At) -> Result<Self, EndpointError> {
        let link = match at {
            At::Socket(path) => Link::Host(Host::connect(path)?),
            At::Pci(address) => Link::Guest(Device::open(address.as_deref())?),
        };
        let (layout, own, called) = match &link {
            Link::Host(host) => (Layout::open(host.window())?, host.id, host.called),
            Link::Guest(device) => {
                let layout = Layout::open(device.window())?;
                let own = device.called % layout.slots();
                (layout, own, device.called)
            }
        };
        let slots = layout.slots();
        if own >= slots {
            return Err(EndpointError::Layout(LayoutError::Strange));
        }
        let (outs, ins) = ((0..slots).map(|_| None).collect(), (0..slots).map(|_| None).collect());
        let (filter, words) = (None, Box::new([0; MOST_WORDS]));
        let (refused, unclaimed) = Default::default();
        // Acquire as in `presence`.
        let own_presence = layout.presence(own).map_or(0, |word| word.load(Ordering::Acquire));
        if own_presence as u16 != called || own_presence == 0 {
            return Err(EndpointError::CutOff(own));
        }
        Ok(Self {
            link,
            layout,
            own,
            own_presence,
            heard: coarse(),
            outs,
            ins,
            filter,
            may_send: false,
            next: 0,
            words,
            refused,
            unclaimed,
        })
    }

    /// Its number.
    pub fn id(&self) -> u16 {
        self.own
    }

    /// Whether the server has ended: those who are there go on, and nobody else comes. Always `false` in a virtual machine, which is not told.
    pub fn is_alone(&self) -> bool {
        matches!(&self.link, Link::Host(host) if host.is_alone)
    }

    /// Whether the server has cut this one off, because it did not read: its rings may be another's by now. Nothing is sent or taken by this any more.
    pub fn is_cut_off(&self) -> bool {
        self.presence(self.own) != self.own_presence
    }

    /// Reads what the server says now and then, for who never waits: a client that does not read is cut off.
    fn keep_up(&mut self) {
        let now = coarse();
        if now.saturating_sub(self.heard) >= HEARS {
            self.heard = now;
            if let Link::Host(host) = &mut self.link {
                host.hear();
            }
        }
    }

    /// Who is there, this one too.
    pub fn peers(&self) -> Vec<u16> {
        (0..self.layout.slots()).filter(|peer| self.presence(*peer) != 0).collect()
    }

    /// What the rings leave of the memory, for programs that know what to do with it: anybody may write there.
    pub fn rest(&self) -> Option<Window> {
        self.layout.rest()
    }

    /// What was not taken.
    pub fn refused(&self) -> Refused {
        // Relaxed: a count, which orders nothing.
        let unclaimed = self.unclaimed.load(Ordering::Relaxed);
        let vectors = match &self.link {
            Link::Host(host) => host.lost,
            Link::Guest(_) => 0,
        };
        Refused { unclaimed, vectors, ..self.refused }
    }

    /// How many peers there may be.
    pub fn slots(&self) -> u16 {
        self.layout.slots()
    }

    /// Which of those that have had this number is there, something else for each; 0: nobody.
    pub fn presence(&self, peer: u16) -> u64 {
        // Acquire pairs with the Release in `Server::join`: the rings are empty before.
        self.layout.presence(peer).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// In a virtual machine: nobody else of it sends from now on, or [`EndpointError::Locked`]. On the host every program is a peer of its own.
    ///
    /// # Errors
    /// [`EndpointError::Locked`].
    pub fn claim(&mut self) -> Result<(), EndpointError> {
        if let (Link::Guest(device), false) = (&self.link, self.may_send) {
            device.lock_send()?;
        }
        self.may_send = true;
        Ok(())
    }

    /// Wakes a peer, whether it sleeps or not: for whoever knows by something in [`Endpoint::rest`] that it does.
    pub fn wake(&mut self, peer: u16) {
        let presence = self.presence(peer);
        match &mut self.link {
            Link::Host(host) => host.ring(peer),
            // In the lower half it is what QEMU knows that one by.
            Link::Guest(device) if presence != 0 => device.ring(presence as u16),
            Link::Guest(_) => {}
        }
    }

    /// On the host: readable when this peer was woken, and when the server has said something. What was is taken by [`Endpoint::hear`].
    pub fn fds(&self) -> Option<[BorrowedFd<'_>; 2]> {
        match &self.link {
            Link::Host(host) => host.fds(),
            Link::Guest(_) => None,
        }
    }

    /// Takes wakes, and what the server has said, without waiting.
    pub fn hear(&mut self) {
        if let Link::Host(host) = &mut self.link {
            host.hear_all();
        }
    }

    /// Receives from now on: messages, and the doorbells with these numbers.
    ///
    /// # Errors
    /// [`EndpointError::Claim`], [`EndpointError::Locked`].
    pub fn listen(&mut self, numbers: RangeInclusive<u16>) -> Result<(), EndpointError> {
        if let (Link::Guest(device), None) = (&self.link, &self.filter) {
            device.lock_receive()?;
        }
        let filter = self.filter.get_or_insert_default();
        filter.claim(numbers, OWNER)?;
        for from in self.ins.iter().flatten() {
            from.bells.publish(filter);
        }
        self.look();
        Ok(())
    }

    /// Opens the rings of all, of those too who are not there: they may have left something.
    fn look(&mut self) {
        for peer in 0..self.layout.slots() {
            self.incoming(peer);
        }
    }

    /// The rings from a peer. One that has gone has left what it had sent, until somebody else has its number.
    fn incoming(&mut self, peer: u16) -> Option<&mut Incoming> {
        let presence = self.presence(peer);
        let filter = self.filter.as_ref().filter(|_| peer != self.own)?;
        let place = self.ins.get_mut(usize::from(peer))?;
        if place.as_ref().is_none_or(|into| presence != 0 && into.presence != presence) {
            *place = Incoming::open(&self.layout, peer, self.own, presence, filter).ok();
            if let Some(into) = place {
                into.bells.count_in(&self.unclaimed);
            }
        }
        place.as_mut()
    }

    fn outgoing(&mut self, peer: u16) -> Result<&mut Outgoing, EndpointError> {
        let (own, slots) = (self.own, self.layout.slots());
        if peer >= slots || peer == own {
            return Err(EndpointError::Peer { peer, last: slots - 1, own });
        }
        self.keep_up();
        if self.is_cut_off() {
            return Err(EndpointError::CutOff(own));
        }
        if !self.may_send {
            if let Link::Guest(device) = &self.link {
                device.lock_send()?;
            }
            self.may_send = true;
        }
        let presence = self.presence(peer);
        let place = &mut self.outs[usize::from(peer)];
        if place.as_ref().is_none_or(|out| out.presence != presence) {
            *place = None;
            if presence != 0 {
                *place = Outgoing::open(&self.layout, own, peer, presence).ok();
            }
        }
        place.as_mut().ok_or(EndpointError::Gone(peer))
    }

    /// Sends a doorbell: one store, and the peer is woken only if it sleeps.
    ///
    /// # Errors
    /// [`EndpointError`]; with [`EndpointError::is_retryable`] it was not sent, and may be later.
    pub fn ring(&mut self, peer: u16, number: u16) -> Result<(), EndpointError> {
        let out = self.outgoing(peer)?;
        out.bells.ring(number).map_err(|full| match full {
            Full::Unwanted => EndpointError::Unwanted(peer, number),
            Full::Queue | Full::Lent => EndpointError::Full(peer),
        })?;
        if out.bells.must_wake() {
            self.wake(peer);
        }
        Ok(())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// As [`Endpoint::ring`]; [`EndpointError::TooLong`].
    pub fn send(&mut self, peer: u16, bytes: &[u8]) -> Result<(), EndpointError> {
        if bytes.len() > MOST_BYTES {
            return Err(EndpointError::TooLong(bytes.len()));
        }
        let mut words = [0; MOST_WORDS];
        words[0] = bytes.len() as u64;
        for (word, chunk) in words[1..].iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(whole);
        }
        let out = self.outgoing(peer)?;
        if !out.messages.send(&words[..1 + bytes.len().div_ceil(8)]) {
            return Err(EndpointError::Full(peer));
        }
        if out.messages.must_wake() {
            self.wake(peer);
        }
        Ok(())
    }

    /// Whether a peer has not taken all that was sent to it by this. What waits is lost when this ends and its number is given to somebody else.
    pub fn has_waiting(&self, peer: u16) -> bool {
        let out = self.outs.get(usize::from(peer)).and_then(Option::as_ref);
        out.is_some_and(|out| out.bells.has_waiting() || out.messages.has_waiting())
    }

    /// The next that has come, from whom: each peer in its turn. It looks at each peer once, whatever they have written.
    pub fn take(&mut self) -> Option<(u16, Event)> {
        if !self.is_kept() {
            return None;
        }
        for _ in 0..self.layout.slots() {
            let peer = self.next;
            self.next = (peer + 1) % self.layout.slots();
            if let Some(event) = self.take_of(peer) {
                return Some((peer, event));
            }
        }
        None
    }

    /// The same from one peer.
    pub fn take_from(&mut self, peer: u16) -> Option<Event> {
        if self.is_kept() { self.take_of(peer) } else { None }
    }

    /// Reads what the server says now and then; whether this one is still there.
    fn is_kept(&mut self) -> bool {
        self.keep_up();
        !self.is_cut_off()
    }

    fn take_of(&mut self, peer: u16) -> Option<Event> {
        self.incoming(peer)?;
        let (Some(into), Some(filter)) = (self.ins.get_mut(usize::from(peer))?, &self.filter) else { return None };
        match into.bells.take(filter) {
            Ok(Some(bell)) => return Some(Event::Doorbell(bell.number)),
            Ok(None) => {}
            Err(_) => self.refused.doorbells += 1,
        }
        if into.is_broken {
            return None;
        }
        let taken = into.messages.take(&mut self.words);
        into.messages.give_back();
        let message = match taken {
            Ok(None) => return None,
            Ok(Some(count)) => decode(&self.words[..count]),
            Err(_) => None,
        };
        if message.is_none() {
            into.is_broken = true;
            self.refused.messages += 1;
        }
        message.map(Event::Message)
    }

    /// Waits until something may have come, or somebody has come or gone, at most for so long.
    pub fn wait(&mut self, timeout: Duration) {
        self.look();
        let Link::Host(host) = &mut self.link else {
            if !self.ins.iter().flatten().any(Incoming::has_more) {
                std::thread::sleep(timeout.min(NAP));
            }
            return;
        };
        // All of them, also behind one that has something: each has a flag of its own.
        let busy = self.ins.iter().flatten().filter(|into| !into.doze()).count();
        host.wait(if busy == 0 { timeout } else { Duration::ZERO });
        self.ins.iter().flatten().for_each(Incoming::awake);
    }
}

impl Drop for Endpoint {
    /// Who rings from now on is told that nobody listens.
    fn drop(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.release(OWNER);
            self.ins.iter().flatten().for_each(|into| into.bells.publish(filter));
        }
    }
}

impl Outgoing {
    fn open(layout: &Layout, own: u16, peer: u16, presence: u64) -> Result<Self, OutOfRange> {
        let (bells, messages) = layout.pair(own, peer)?;
        let (bells, messages) = (bell::Sender::resume(&bells, BELLS)?, lines::Sender::resume(&messages, LINES)?);
        Ok(Self { presence, bells, messages })
    }
}

impl Incoming {
    fn open(layout: &Layout, peer: u16, own: u16, presence: u64, filter: &Filter) -> Result<Self, OutOfRange> {
        let (bells, messages) = layout.pair(peer, own)?;
        let (bells, messages) = (bell::Receiver::resume(&bells, BELLS)?, lines::Receiver::resume(&messages, LINES)?);
        bells.publish(filter);
        Ok(Self { presence, bells, messages, is_broken: false })
    }

    fn has_more(&self) -> bool {
        self.bells.has_more() || !self.is_broken && self.messages.has_more()
    }

    /// Whether there is nothing, after having said that this is to be woken.
    fn doze(&self) -> bool {
        let (bells, messages) = (self.bells.doze(), self.messages.doze());
        bells && (messages || self.is_broken)
    }

    fn awake(&self) {
        self.bells.awake();
        self.messages.awake();
    }
}

/// The bytes of a message: how many there are, and words with them.
fn decode(words: &[u64]) -> Option<Vec<u8>> {
    let (len, words) = words.split_first()?;
    let len = usize::try_from(*len).ok().filter(|len| *len <= MOST_BYTES && len.div_ceil(8) == words.len())?;
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(len);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_sockets_or_devices() {
        assert_eq!("pci".parse(), Ok(At::Pci(None)));
        assert_eq!("pci:00:04.0".parse(), Ok(At::Pci(Some("00:04.0".into()))));
        assert_eq!("pcix".parse(), Ok(At::Socket("pcix".into())));
        assert_eq!("/tmp/iv.sock".parse(), Ok(At::Socket("/tmp/iv.sock".into())));
    }

    #[test]
    fn what_says_that_it_is_longer_or_shorter_is_no_message() {
        assert_eq!(decode(&[5, u64::from_le_bytes(*b"hello\0\0\0")]), Some(b"hello".to_vec()));
        assert_eq!(decode(&[0]), Some(vec![]));
        for wrong in [&[][..], &[9, 0], &[0, 0], &[1], &[u64::MAX, 0], &[u64::MAX - 6, 0]] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
