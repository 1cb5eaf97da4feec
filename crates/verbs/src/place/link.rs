//! The link to a card: one TX queue, by which frames go, and one RX queue, by which they come.

use crate::config::Config;
use millrace::{Device, ErrorCode, RxQueue, TxQueue};
use millrace_driver::{ClientError, place};
use rustix::io::Errno;
use thiserror::Error;

/// Why there is no link.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    #[error("no card runs at {0}: start one with `millrace card`, or name one in MILLRACE_VERBS")]
    NoCard(String),
    #[error("a descriptor cannot be made: {0}")]
    Descriptor(Errno),
    #[error("a thread cannot be started: {0}")]
    Thread(String),
    #[error("memory cannot be registered: {0}")]
    Memory(String),
    #[error("the card {card} cannot be opened: {source}")]
    Card { card: String, source: Box<millrace::Error> },
    #[error("{what} of the card {card} cannot be opened: {source}")]
    Queue { card: String, what: String, source: Box<millrace::Error> },
    #[error(
        "all queues of the card {0} are in use: end a program that has them, start the card with more (`millrace card --queues 8`), \
         or say which with tx=N rx=N in MILLRACE_VERBS"
    )]
    NoQueue(String),
    #[error(
        "frames of {longest} bytes are too short for a packet of {mtu} bytes: choose a smaller mtu in MILLRACE_VERBS, or start the card with a higher --frame-max"
    )]
    ShortFrames { longest: usize, mtu: u16 },
}

impl LinkError {
    /// The number of Linux for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoCard(_) | Self::Card { .. } => libc::ENODEV,
            Self::Queue { .. } | Self::Memory(_) => libc::EIO,
            Self::Thread(_) => libc::EAGAIN,
            Self::Descriptor(error) => error.raw_os_error(),
            Self::NoQueue(_) => libc::EBUSY,
            Self::ShortFrames { .. } => libc::EINVAL,
        }
    }
}

/// Queues that run.
pub(crate) struct Link {
    pub rx: RxQueue,
    pub tx: TxQueue,
}

/// Opens the card that is named, or the one that commands use when none is named.
pub(crate) fn card(config: &Config) -> Result<Device, LinkError> {
    let named = config.card.clone().or_else(|| std::env::var("MILLRACE_DEVICE").ok().filter(|name| !name.is_empty()));
    if let Some(card) = named {
        // The contexts of one program are one end, so an embedded card is the same one for all.
        return Device::open_shared(&card).map_err(|source| LinkError::Card { card, source: source.into() });
    }
    for path in place::candidates() {
        let name = format!("unix:{}", path.display());
        match Device::open(&name) {
            Ok(device) => return Ok(device),
            Err(millrace::Error::Client(ClientError::Connect { source, .. })) if is_nobody(source) => {}
            Err(source) => return Err(LinkError::Card { card: name, source: source.into() }),
        }
    }
    Err(LinkError::NoCard(place::usual().display().to_string()))
}

fn is_nobody(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR)
}

impl Link {
    /// Opens the first queues that are free, or those that are named.
    pub fn open(device: &Device, config: &Config) -> Result<Self, LinkError> {
        let crossed = sends_back(device);
        for (tx, rx) in pairs(device, config, crossed) {
            let Some(tx) = free(device, format!("TX queue {tx}"), || device.tx(tx).open()?.start())? else { continue };
            let Some(rx) = free(device, format!("RX queue {rx}"), || device.rx(rx).open()?.start())? else { continue };
            return Ok(Self { rx, tx });
        }
        Err(LinkError::NoQueue(device.name().to_owned()))
    }
}

/// Whether the card has no wire: what goes by TX queue k comes by RX queue k.
fn sends_back(device: &Device) -> bool {
    device.stats().is_ok_and(|stats| stats.ports.iter().all(|port| port.spec == "loopback"))
}

/// Queues that belong together. Where the card sends back, two programs speak with each other when each has the RX queue
/// with the number of the other's TX queue: 0 and 1, 2 and 3.
fn pairs(device: &Device, config: &Config, crossed: bool) -> Vec<(u32, u32)> {
    let partner = |queue: u32| if crossed { queue ^ 1 } else { queue };
    match (config.tx, config.rx) {
        (Some(tx), Some(rx)) => vec![(tx, rx)],
        (Some(tx), None) => vec![(tx, partner(tx))],
        (None, Some(rx)) => vec![(partner(rx), rx)],
        (None, None) => {
            let fits = |&(tx, rx): &(u32, u32)| tx < device.tx_queues() && rx < device.rx_queues();
            (0..device.tx_queues()).map(|tx| (tx, partner(tx))).filter(fits).collect()
        }
    }
}

/// `None` when somebody else has the queue.
fn free<Q>(
    device: &Device,
    what: String,
    open: impl FnOnce() -> Result<Q, millrace::Error>,
) -> Result<Option<Q>, LinkError> {
    match open() {
        Ok(queue) => Ok(Some(queue)),
        Err(millrace::Error::Client(error)) if error.code() == Some(ErrorCode::Busy) => Ok(None),
        Err(source) => Err(LinkError::Queue { card: device.name().to_owned(), what, source: source.into() }),
    }
}
