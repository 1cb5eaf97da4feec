//! The transport engine in this process, between the program and two queues of a card.
//!
//! ```text
//! ibv_post_send ---> engine ---> frames ---> TX queue --+
//! ibv_poll_cq  <---- engine <--- frames <--- RX queue <-+-- card
//! ```
//!
//! There is one for all contexts of a process: it has one address. Whoever posts or polls moves the protocol on, in his own
//! thread; when nobody does, a helper thread does.
//!
//! * [`link`]: the queues of the card. [`events`]: what programs sleep on. [`profile`]: what programs are told of the device.

mod events;
mod link;
pub(crate) mod profile;

pub(crate) use events::Events;
pub(crate) use link::{LinkError, card};

use crate::abi::AsyncEvent;
use crate::address::Address;
use crate::config::Config;
use link::Link;
use millrace::Device;
use millrace_rdma::engine::Options;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Regions, windows and address handles that there may be, of each.
pub(crate) const MAX_REGIONS: u32 = 1 << 20;

/// Bytes of a frame that are not payload, at most: Ethernet with a VLAN tag, a global route header, BTH, AtomicETH, immediate data,
/// padding, ICRC.
const OVERHEAD: usize = 18 + 40 + 12 + 28 + 4 + 3 + 4;

/// One end: an address, an engine, a link.
pub(crate) struct Place {
    config: Config,
    address: Address,
    options: Options,
    mtu: u16,
    _device: Device,
    link: Mutex<Link>,
}

/// The place of this process, as long as a context is open.
static CURRENT: Mutex<Weak<Place>> = Mutex::new(Weak::new());

impl Place {
    /// That of this process, if a context is open.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// The same; opens the card if none is.
    fn enter(config: &Config) -> Result<Arc<Self>, LinkError> {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = current.upgrade() {
            return Ok(place);
        }
        let place = Arc::new(Self::open(config)?);
        *current = Arc::downgrade(&place);
        Ok(place)
    }

    fn open(config: &Config) -> Result<Self, LinkError> {
        let device = card(config)?;
        let link = Link::open(&device, config)?;
        let mtu = mtu(link.tx.longest().min(device.frame_limits().1.into()), config.mtu)?;
        let address = Address::new(config, link.tx.id().index);
        let options = Options::default();
        Ok(Self { config: config.clone(), address, options, mtu, _device: device, link: Mutex::new(link) })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn address(&self) -> Address {
        self.address
    }

    pub fn options(&self) -> Options {
        self.options
    }

    /// Bytes of payload of the longest packet.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }
}

/// The largest that fits into frames, or the one that is wanted.
fn mtu(longest: usize, wanted: Option<u16>) -> Result<u16, LinkError> {
    let fits = |mtu: u16| usize::from(mtu) + OVERHEAD <= longest;
    let mtu = wanted.or_else(|| [4096, 2048, 1024, 512].into_iter().find(|&mtu| fits(mtu))).unwrap_or(256);
    if fits(mtu) { Ok(mtu) } else { Err(LinkError::ShortFrames { longest, mtu }) }
}

/// An open context.
pub(crate) struct Opened {
    pub place: Arc<Place>,
    pub events: Events<AsyncEvent>,
}

impl Opened {
    /// Opens the card, unless another context of this process has.
    pub fn new(config: &Config) -> Result<Self, LinkError> {
        let events = Events::new().map_err(LinkError::Descriptor)?;
        Ok(Self { place: Place::enter(config)?, events })
    }
}
