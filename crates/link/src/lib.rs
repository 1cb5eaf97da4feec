//! The link to others: one TX queue of a card, by which frames go, and one RX queue, by which they come; or a port of this process's
//! own, with nobody in between. For engines that run in a program: verbs, SLURPoE.
#![forbid(unsafe_code)]

mod frames;

pub use frames::{Frames, Maker, write};

use millrace::{Device, ErrorCode, RxQueue, TxQueue};
use millrace_dma::Span;
use millrace_driver::{ClientError, place};
use millrace_port::{Accept, DropReason, MAX_FRAME_LEN, PortQueue, PortSpec, TxOutcome};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io::Write;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use thiserror::Error;

/// What a link is to go by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the card; without one, the card that commands would use.
    pub card: Option<String>,
    /// A port to be worked on without a card.
    pub port: Option<String>,
    /// TX queue; without one, the first that is free.
    pub tx: Option<u32>,
    /// RX queue; without one, the one that belongs to the TX queue.
    pub rx: Option<u32>,
}

/// Why there is no link.
#[derive(Debug, Error)]
pub enum LinkError {
    /// No card runs there.
    #[error("no card runs at {0}: start one with `millrace card`, or name one, such as unix:PATH{1}")]
    NoCard(String, String),
    /// The port cannot be opened.
    #[error("port={spec}: {problem}")]
    Port {
        /// What was said.
        spec: String,
        /// Why not.
        problem: String,
    },
    /// The port gives no address.
    #[error("port={0} has no queue that gives this end an address: say ip=ADDRESS in MILLRACE_VERBS")]
    NoAddress(String),
    /// A descriptor cannot be made.
    #[error("a descriptor cannot be made: {0}")]
    Descriptor(Errno),
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(String),
    /// The engine is to be outside of this process, and cannot be.
    #[error("{0}")]
    Place(String),
    /// Memory cannot be registered.
    #[error("memory cannot be registered: {0}")]
    Memory(String),
    /// The card cannot be opened.
    #[error("the card {card} cannot be opened: {source}")]
    Card {
        /// Its name.
        card: String,
        /// Why not.
        source: Box<millrace::Error>,
    },
    /// A queue cannot be opened.
    #[error("{what} of the card {card} cannot be opened: {source}")]
    Queue {
        /// Name of the card.
        card: String,
        /// Which queue.
        what: String,
        /// Why not.
        source: Box<millrace::Error>,
    },
    /// All queues are in use.
    #[error(
        "all queues of the card {card} are in use: end a program that has them, start the card with more (`millrace card --queues 8`), \
         or say which (tx=N rx=N). {held}"
    )]
    NoQueue {
        /// Name of the card.
        card: String,
        /// Who has the last one.
        held: String,
    },
    /// No queues belong together.
    #[error(
        "the card {card} has {tx} TX and {rx} RX queues, of which no two belong together: start it with an even number (`millrace card --queues 2`); \
         without a wire TX 0 goes with RX 1"
    )]
    NoPair {
        /// Its name.
        card: String,
        /// TX queues.
        tx: u32,
        /// RX queues.
        rx: u32,
    },
    /// Frames are too short for a packet.
    #[error(
        "frames of {longest} bytes are too short for a packet of {mtu} bytes: choose a smaller mtu, or start the card with a higher --frame-max"
    )]
    ShortFrames {
        /// Bytes of the longest frame.
        longest: usize,
        /// Bytes of payload of a packet.
        mtu: u16,
    },
}

impl LinkError {
    /// The number of Linux for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoCard(..) | Self::Card { .. } => libc::ENODEV,
            Self::Queue { .. } | Self::Memory(_) | Self::Place(_) => libc::EIO,
            Self::Thread(_) => libc::EAGAIN,
            Self::Descriptor(error) => error.raw_os_error(),
            Self::NoQueue { .. } => libc::EBUSY,
            Self::NoPair { .. } | Self::ShortFrames { .. } | Self::Port { .. } | Self::NoAddress(_) => libc::EINVAL,
        }
    }
}

/// Bytes of payload in a packet over a port, where nothing else is said: what the frames of every interface have room for.
const PORT_MTU: u16 = 1024;

/// What frames go by and come by.
pub enum Link {
    /// Queues that run.
    Card(Box<Queues>),
    /// A port, which this end works on itself.
    Port(Box<Port>),
}

/// Queues of a card.
pub struct Queues {
    device: Device,
    rx: RxQueue,
    tx: TxQueue,
}

/// A port of this process's own.
pub struct Port {
    queue: Box<dyn PortQueue>,
    /// A frame on its way: the other side of the port can change its memory while it is read.
    came: Box<[u8]>,
    goes: Box<[u8]>,
    /// Bytes of `goes` for which the port had no room. What is made once is kept, because making it copies and sums up.
    held: usize,
    /// Bytes copied into `came`.
    taken: u64,
}

impl Port {
    /// As [`Link::give`].
    #[inline]
    fn give<E>(&mut self, len: usize, write: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Given<E> {
        if !self.send_held() {
            return Given::Full;
        }
        let Some(frame) = self.goes.get_mut(..len) else { return Given::Taken };
        if let Err(error) = write(frame) {
            return Given::Refused(error);
        }
        self.held = len;
        self.send_held();
        Given::Taken
    }

    /// Hands over the frame that waits. False: there is no room yet.
    #[inline]
    fn send_held(&mut self) -> bool {
        if self.held == 0 {
            return true;
        }
        match self.queue.transmit(Span::from_slice(&self.goes[..self.held])) {
            // What a port drops it counts; the transport sends it again, as on every wire.
            TxOutcome::Sent | TxOutcome::Dropped(_) => {
                self.held = 0;
                true
            }
            TxOutcome::Full => {
                // That ends the burst. A port does so much work for one, and without an end nothing more.
                self.queue.flush();
                false
            }
        }
    }
}

/// What became of a frame.
pub enum Given<E> {
    /// It goes.
    Taken,
    /// There is no room; later there is.
    Full,
    /// Its bytes could not be had.
    Refused(E),
}

impl Link {
    /// Opens what is wanted.
    ///
    /// # Errors
    /// [`LinkError`]
    pub fn open(wanted: &Wanted) -> Result<Self, LinkError> {
        let Some(spec) = &wanted.port else { return Self::queues(card(wanted)?, wanted) };
        let failed = |problem: String| LinkError::Port { spec: spec.clone(), problem };
        let parsed: PortSpec = spec.parse().map_err(|error: millrace_port::SpecError| failed(error.to_string()))?;
        let mut queues = millrace_port::open(&parsed).map_err(|error| failed(error.to_string()))?;
        let buffer = || vec![0; MAX_FRAME_LEN].into_boxed_slice();
        match queues.pop().filter(|_| queues.is_empty()) {
            Some(queue) => Ok(Self::Port(Box::new(Port { queue, came: buffer(), goes: buffer(), held: 0, taken: 0 }))),
            None => Err(failed("it has to have one queue".to_owned())),
        }
    }

    /// Opens the first queues that are free, or those that are named.
    fn queues(device: Device, wanted: &Wanted) -> Result<Self, LinkError> {
        let crossed = sends_back(&device);
        let is_named = wanted.tx.is_some() || wanted.rx.is_some();
        let (mut denied, mut held) = (None, String::new());
        let pairs = pairs(&device, wanted, crossed);
        if pairs.is_empty() {
            let (card, tx, rx) = (device.name().to_owned(), device.tx_queues(), device.rx_queues());
            return Err(LinkError::NoPair { card, tx, rx });
        }
        for (tx, rx) in pairs {
            let held = &mut held;
            let tx = free(&device, format!("TX queue {tx}"), held, || device.tx(tx).open()?.start());
            let both = tx.and_then(|tx| match tx {
                Some(tx) => {
                    let rx = free(&device, format!("RX queue {rx}"), held, || device.rx(rx).open()?.start());
                    Ok(rx?.map(|rx| (tx, rx)))
                }
                None => Ok(None),
            });
            match both {
                Ok(Some((tx, rx))) => return Ok(Self::Card(Box::new(Queues { device, rx, tx }))),
                Ok(None) => {}
                // Others may be allowed.
                Err(error) if !is_named && is_denied(&error) => denied = denied.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        Err(denied.unwrap_or_else(|| LinkError::NoQueue { card: device.name().to_owned(), held }))
    }

    /// The name of the card, if there is one.
    pub fn card(&self) -> Option<&str> {
        match self {
            Self::Card(card) => Some(card.device.name()),
            Self::Port(_) => None,
        }
    }

    /// Asks to be rung when something comes, and says by what; `None` if something is there, or if nobody can ring.
    pub fn announce(&mut self) -> Option<OwnedFd> {
        match self {
            Self::Card(card) => card.rx.announce().ok()??.try_clone_to_owned().ok(),
            Self::Port(_) => None,
        }
    }

    /// Whoever works on the link is about to sleep: by what it is woken then, if there is something that wakes. What has come until now
    /// is to be taken by one more [`Link::receive`] before.
    pub fn prepare_sleep(&mut self) -> Option<OwnedFd> {
        match self {
            Self::Card(_) => self.announce(),
            // When there is room for what waits, nobody says.
            Self::Port(port) if port.held > 0 => None,
            Self::Port(port) => {
                port.queue.prepare_sleep();
                port.queue.wake_fd()?.try_clone_to_owned().ok()
            }
        }
    }

    /// Whoever works on the link looks again.
    pub fn awake(&mut self) {
        if let Self::Port(port) = self {
            port.queue.awake();
        }
    }

    /// Whether it leads out of the card, to where other hosts may be.
    pub fn has_wire(&self) -> bool {
        match self {
            Self::Card(card) => !sends_back(&card.device),
            Self::Port(_) => true,
        }
    }

    /// The number by which this end gets an address that nobody gave it.
    pub fn number(&self) -> u32 {
        match self {
            Self::Card(card) => card.tx.id().index,
            Self::Port(_) => 0,
        }
    }

    /// Bytes of the longest frame.
    pub fn longest(&self) -> usize {
        match self {
            Self::Card(card) => card.tx.longest().min(card.device.frame_limits().1.into()),
            Self::Port(_) => MAX_FRAME_LEN,
        }
    }

    /// Bytes of payload of a packet, where nothing else is said and nothing else is known.
    pub fn usual_mtu(&self) -> Option<u16> {
        matches!(self, Self::Port(_)).then_some(PORT_MTU)
    }

    /// Hands over up to `budget` frames that have come.
    ///
    /// # Errors
    /// Sentences; they are the end of the link.
    #[inline]
    pub fn receive(&mut self, budget: usize, mut take: impl FnMut(&[u8])) -> Result<usize, String> {
        match self {
            Self::Card(card) => {
                let burst = card.rx.get(budget).map_err(ended)?;
                burst.iter().for_each(|packet| take(packet.data));
                Ok(burst.len())
            }
            Self::Port(port) => {
                if port.held > 0 && port.send_held() {
                    port.queue.flush();
                }
                let Port { queue, came, taken, .. } = &mut **port;
                Ok(queue.receive(budget, &mut |frame: Span<'_>| {
                    let len = frame.read_into(came);
                    *taken += len as u64;
                    take(&came[..len]);
                    Accept::Taken
                }))
            }
        }
    }

    /// Sends a frame of `len` bytes that `write` makes.
    #[inline]
    pub fn give<E>(&mut self, len: usize, write: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Given<E> {
        match self {
            // A queue that has failed takes nothing: whoever looks at it next says so.
            Self::Card(card) => match card.tx.get(&[len as u16]) {
                Ok(Some(mut burst)) => match write(&mut burst[0]) {
                    Ok(()) => {
                        burst.put();
                        Given::Taken
                    }
                    Err(error) => Given::Refused(error),
                },
                _ => Given::Full,
            },
            Self::Port(port) => port.give(len, write),
        }
    }

    /// Bytes of frames that this end has copied between its own memory and that of a port. A card copies itself.
    pub fn copied(&self) -> u64 {
        let Self::Port(port) = self else { return 0 };
        let counters = port.queue.counters();
        // A port counts copies, and frames and their bytes.
        let of = |copies: u64, frames: u64, bytes: u64| copies.saturating_mul(bytes) / frames.max(1);
        port.taken
            + of(counters.rx_copies(), counters.rx_frames(), counters.rx_bytes())
            + of(counters.tx_copies(), counters.tx_frames(), counters.tx_bytes())
    }

    /// What a port has counted; those of a card are the card's.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let Self::Port(port) = self else { return Vec::new() };
        let counters = port.queue.counters();
        let mut all: Vec<(String, u64)> = [
            ("rx", counters.rx_frames()),
            ("tx", counters.tx_frames()),
            ("rx_bytes", counters.rx_bytes()),
            ("tx_bytes", counters.tx_bytes()),
        ]
        .map(|(name, count)| (name.to_owned(), count))
        .into();
        let dropped = |way: &str, (reason, count): (DropReason, u64)| (format!("{way}_{}", reason.name()), count);
        all.extend(counters.rx_drops().map(|drop| dropped("rx", drop)));
        all.extend(counters.tx_drops().map(|drop| dropped("tx", drop)));
        all
    }

    /// What was given may leave now.
    ///
    /// # Errors
    /// As those of [`Link::receive`].
    #[inline]
    pub fn flush(&mut self) -> Result<(), String> {
        match self {
            Self::Card(card) => card.tx.flush().map_err(ended),
            Self::Port(port) => {
                port.queue.flush();
                Ok(())
            }
        }
    }
}

/// Opens the card that is named, or the one that commands use when none is named.
///
/// # Errors
/// There is none, or it cannot be opened.
pub fn card(wanted: &Wanted) -> Result<Device, LinkError> {
    let named = wanted.card.clone().or_else(|| std::env::var("MILLRACE_DEVICE").ok().filter(|name| !name.is_empty()));
    if let Some(card) = named {
        // The contexts of one program are one end, so an embedded card is the same one for all.
        return Device::open_shared(&card).map_err(|source| LinkError::Card { card, source: source.into() });
    }
    let mut denied = None;
    for path in place::candidates() {
        let name = format!("unix:{}", path.display());
        match Device::open(&name) {
            Ok(device) => return Ok(device),
            Err(millrace::Error::Client(ClientError::Connect { source, .. })) if is_nobody(source) => {}
            // As with commands: another one may be open to this user.
            Err(source) if is_refused(&source) => denied = Some(LinkError::Card { card: name, source: source.into() }),
            Err(source) => return Err(LinkError::Card { card: name, source: source.into() }),
        }
    }
    Err(denied.unwrap_or_else(nobody))
}

/// All places at which was looked, and who sits at one of them.
fn nobody() -> LinkError {
    let places: Vec<_> = place::places().iter().map(|path| path.display().to_string()).collect();
    let stranger = place::strangers().map_or_else(String::new, |(path, uid)| {
        format!(". What is at {} belongs to user {uid}, and is not used unless it is named", path.display())
    });
    LinkError::NoCard(places.join(", nor at "), stranger)
}

fn is_refused(error: &millrace::Error) -> bool {
    matches!(error, millrace::Error::Client(ClientError::Connect { source: Errno::ACCESS | Errno::PERM, .. }))
}

/// A remark of a library for whoever started the program, in one write: programs share the place where it stands.
pub fn say(library: &str, text: impl core::fmt::Display) {
    let program = std::env::args_os().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
    let line = format!("{library} (millrace) {program}[{}]: {text}\n", std::process::id());
    // Nobody can be told that standard error is gone.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Whether an interface of this host has that address, so that Linux answers for it as well.
pub fn is_of_linux(address: IpAddr) -> bool {
    !address.is_loopback() && UdpSocket::bind((address, 0)).is_ok()
}

fn is_nobody(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR)
}

/// Whether the card has no wire: what goes by TX queue k comes by RX queue k.
fn sends_back(device: &Device) -> bool {
    device.stats().is_ok_and(|stats| stats.ports.iter().all(|port| port.spec == "loopback"))
}

/// Queues that belong together. Where the card sends back, two programs speak with each other when each has the RX queue
/// with the number of the other's TX queue: 0 and 1, 2 and 3.
fn pairs(device: &Device, wanted: &Wanted, crossed: bool) -> Vec<(u32, u32)> {
    let partner = |queue: u32| if crossed { queue ^ 1 } else { queue };
    match (wanted.tx, wanted.rx) {
        (Some(tx), Some(rx)) => vec![(tx, rx)],
        (Some(tx), None) => vec![(tx, partner(tx))],
        (None, Some(rx)) => vec![(partner(rx), rx)],
        (None, None) => {
            let fits = |&(tx, rx): &(u32, u32)| tx < device.tx_queues() && rx < device.rx_queues();
            (0..device.tx_queues()).map(|tx| (tx, partner(tx))).filter(fits).collect()
        }
    }
}

/// Why nothing more comes or goes. What is to be done then, whoever has the link says.
fn ended(error: millrace::Error) -> String {
    let is_gone = matches!(error, millrace::Error::Gone | millrace::Error::Client(ClientError::Gone));
    if is_gone { "the card is gone".to_owned() } else { error.to_string() }
}

fn is_denied(error: &LinkError) -> bool {
    let LinkError::Queue { source, .. } = error else { return false };
    matches!(&**source, millrace::Error::Client(error) if error.code() == Some(ErrorCode::Denied))
}

/// `None` when somebody else has the queue; then it says who.
fn free<Q>(
    device: &Device,
    what: String,
    held: &mut String,
    open: impl FnOnce() -> Result<Q, millrace::Error>,
) -> Result<Option<Q>, LinkError> {
    match open() {
        Ok(queue) => Ok(Some(queue)),
        Err(millrace::Error::Client(error)) if error.code() == Some(ErrorCode::Busy) => {
            *held = format!("{what}: {error}");
            Ok(None)
        }
        Err(source) => Err(LinkError::Queue { card: device.name().to_owned(), what, source: source.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_interfaces_are_known() {
        let [lo, nobody, any] = ["127.0.0.1", "192.0.2.77", "2001:db8::77"].map(|text| text.parse().unwrap());
        assert_eq!([lo, nobody, any].map(is_of_linux), [false; 3]);
        // Whoever has a way out has an address to begin with.
        let way = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
            socket.connect("192.0.2.1:9")?;
            socket.local_addr()
        });
        if let Ok(own) = way {
            assert!(is_of_linux(own.ip()) || own.ip().is_loopback(), "{own}");
        }
    }
}
