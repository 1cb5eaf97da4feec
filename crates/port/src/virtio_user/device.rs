//! A network device at the other end of a vhost-user socket, and how its queues are brought up.

use super::memory::{Buffers, Shared};
use super::sys;
use crate::Bell;
use crate::peer::user_of;
use millrace_dma::{RegionError, Window};
use millrace_ring::virtio::driver::{Agreed, Place, RxQueue, Size, TxQueue};
use millrace_ring::virtio::{RingsError, feature};
use std::os::fd::OwnedFd;
use std::{io, os::unix::net::UnixStream, path::Path, sync::Arc, time::Duration};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// How long the other side may take to answer a request.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Where rings and buffers begin in the addresses that both sides use. Any numbers would do: the other side looks
/// addresses up.
const RINGS_AT: u64 = 1 << 32;
const BUFFERS_AT: u64 = 1 << 36;
/// Where the first of other memories begins, and how far they are apart.
const MORE_AT: u64 = 1 << 40;

/// Where memory number `more` begins of those that the other side is told of in addition.
pub(super) fn address_of(more: usize) -> u64 {
    MORE_AT * (1 + more as u64)
}

/// What is asked of the device.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Pairs of queues, at most.
    pub pairs: u16,
    /// Descriptors of a queue.
    pub size: Size,
    /// Whether frames may be spread over several buffers.
    pub mergeable: bool,
    /// Whether each side names the index at which it wants to be told.
    pub event_index: bool,
    /// Whether buffers may be used in the order in which they were made available.
    pub in_order: bool,
    /// Whether checksums and segments may be left to the other side.
    pub offloads: bool,
}

/// Features with which frames are sent on which something is left to do.
const HOST: u64 = feature::CSUM | feature::HOST_TSO4 | feature::HOST_TSO6 | feature::HOST_ECN;
/// Features with which such frames are received. The large ones need several buffers.
const GUEST: u64 = feature::GUEST_CSUM | feature::GUEST_TSO4 | feature::GUEST_TSO6 | feature::GUEST_ECN;

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Nobody listens.
    #[error("cannot connect: {0}; start the switch that listens there first")]
    Connect(#[source] io::Error),
    /// The other side did not do what was asked.
    #[error("the other side failed at `{step}`: {source}")]
    Request {
        /// Which request.
        step: &'static str,
        /// What went wrong.
        source: vhost::Error,
    },
    /// The other side lacks something without which nothing works.
    #[error("the other side does not offer {0}")]
    Lacks(&'static str),
    /// No memory.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// The buffers are not as the queues need them.
    #[error("the memory has no room for {0} buffers")]
    Buffers(usize),
    /// Rings in wrong memory.
    #[error(transparent)]
    Rings(#[from] RingsError),
    /// No eventfd.
    #[error("cannot make an eventfd: {0}; raise the limit of open files (`ulimit -n`)")]
    Event(#[source] io::Error),
}

/// One pair of queues and how the two sides wake each other.
pub struct Pair<R = RxQueue> {
    /// Frames from the device.
    pub rx: R,
    /// Frames to the device.
    pub tx: TxQueue,
    /// Signalled by the device when there are frames.
    pub rx_call: OwnedFd,
    /// Signalled by the device when frames are sent.
    pub tx_call: OwnedFd,
    /// Wakes the device when there are buffers for frames.
    pub rx_kick: Arc<Bell>,
    /// Wakes the device when there are frames.
    pub tx_kick: Arc<Bell>,
}

impl Pair {
    /// Shows the device what is new in both queues and wakes it if it sleeps.
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.rx.publish() {
            self.rx_kick.ring();
        }
        if self.tx.publish() {
            self.tx_kick.ring();
        }
    }
}

/// A network device of somebody else's. It ends when this is dropped.
pub struct Device<R = RxQueue> {
    /// Its queues.
    pub pairs: Vec<Pair<R>>,
    /// The memory of its frames.
    pub buffers: Arc<Buffers>,
    /// The memory of its rings.
    pub rings: Arc<Shared>,
    frontend: Frontend,
    features: u64,
    queues: usize,
    /// The user at the other end.
    uid: u32,
}

impl Device {
    /// Connects to the vhost-user backend that listens on `path` and brings its queues up, in memory of their own.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn connect(path: &Path, wishes: Wishes) -> Result<Self, DeviceError> {
        let stream = UnixStream::connect(path).map_err(DeviceError::Connect)?;
        Self::start(stream, wishes, Buffers::allocate)
    }

    /// Brings up the queues of the vhost-user backend at the other end of `stream`. `buffers` says where frames lie
    /// when it is known how many buffers are needed; the rings have memory of their own.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn start(
        stream: UnixStream,
        wishes: Wishes,
        buffers: impl FnOnce(usize) -> Result<Buffers, RegionError>,
    ) -> Result<Self, DeviceError> {
        let receive = |_, place: &Place, size, agreed| own_queue(place, size, agreed);
        Self::start_with(stream, wishes, buffers, &[], receive)
    }
}

impl<R> Device<R> {
    /// As [`Device::start`], with queues to receive of any kind: `receive` makes the one of a pair, by its number. The
    /// other side is told of `more` memories, at [`address_of`].
    ///
    /// # Errors
    /// [`DeviceError`].
    pub(super) fn start_with(
        stream: UnixStream,
        wishes: Wishes,
        buffers: impl FnOnce(usize) -> Result<Buffers, RegionError>,
        more: &[&Shared],
        mut receive: impl FnMut(usize, &Place, Size, Agreed) -> Result<R, RingsError>,
    ) -> Result<Self, DeviceError> {
        // A peer that is silent must not hold us.
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(DeviceError::Connect)?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT)).map_err(DeviceError::Connect)?;
        let uid = user_of(&stream);
        let pairs = match wishes.pairs {
            0 | 1 => 1,
            most => count_pairs(stream.try_clone().map_err(DeviceError::Connect)?, most)?,
        };
        let mut frontend = Frontend::from_stream(stream, u64::from(pairs) * 2);
        request("owner", frontend.set_owner())?;
        let features = negotiate(&mut frontend, wishes, pairs)?;
        let (queues, size) = (usize::from(pairs) * 2, wishes.size);
        let buffers = Arc::new(buffers(queues * usize::from(size.get()))?);
        let rings = Arc::new(Shared::allocate(queues * ring_stride(size))?);
        share(&frontend, &buffers.memory, &rings, more)?;
        let mut device = Self { pairs: Vec::new(), buffers, rings, frontend, features, queues, uid };
        for pair in 0..pairs {
            let pair = device.bring_up(size, pair, &mut receive)?;
            device.pairs.push(pair);
        }
        // The other side answers in order: with this answer it has seen all of the above.
        request("features", device.frontend.get_features())?;
        Ok(device)
    }

    /// The features that were agreed on ([`feature`]).
    pub fn features(&self) -> u64 {
        self.features
    }

    /// What of them concerns the queues.
    pub fn agreed(&self) -> Agreed {
        let has = |bit| self.features & bit != 0;
        Agreed {
            event_index: has(feature::RING_EVENT_IDX),
            in_order: has(feature::IN_ORDER),
            mergeable: has(feature::MRG_RXBUF),
        }
    }

    fn place(&self, size: Size, queue: usize) -> Result<Place, DeviceError> {
        let count = usize::from(size.get());
        let (buffers, at) = self.buffers.part(queue * count, count).ok_or(DeviceError::Buffers(count))?;
        let ring = ring_of(&self.rings, size, queue).ok_or(DeviceError::Lacks("room for its rings"))?;
        Ok(Place { ring, buffers, stride: self.buffers.layout.stride, buffers_at: BUFFERS_AT + at as u64 })
    }

    fn bring_up(
        &mut self,
        size: Size,
        pair: u16,
        receive: &mut impl FnMut(usize, &Place, Size, Agreed) -> Result<R, RingsError>,
    ) -> Result<Pair<R>, DeviceError> {
        let event = || EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(DeviceError::Event);
        let (rx_call, rx_kick, tx_call, tx_kick) = (event()?, event()?, event()?, event()?);
        let (rx_index, tx_index) = (usize::from(pair) * 2, usize::from(pair) * 2 + 1);
        let rx = receive(usize::from(pair), &self.place(size, rx_index)?, size, self.agreed())?;
        let mut tx = TxQueue::new(&self.place(size, tx_index)?, size, self.agreed())?;
        tx.want_signal(false);
        let frontend = &mut self.frontend;
        for (index, call, kick) in [(rx_index, &rx_call, &rx_kick), (tx_index, &tx_call, &tx_kick)] {
            let at = RINGS_AT + (index * ring_stride(size)) as u64;
            let addresses = VringConfigData {
                queue_max_size: size.get(),
                queue_size: size.get(),
                flags: 0,
                desc_table_addr: at,
                used_ring_addr: at + size.used_at() as u64,
                avail_ring_addr: at + size.avail_at() as u64,
                log_addr: None,
            };
            request("ring size", frontend.set_vring_num(index, size.get()))?;
            request("ring base", frontend.set_vring_base(index, 0))?;
            request("ring addresses", frontend.set_vring_addr(index, &addresses))?;
            request("call", frontend.set_vring_call(index, call))?;
            request("kick", frontend.set_vring_kick(index, kick))?;
        }
        for index in [rx_index, tx_index] {
            request("enable", frontend.set_vring_enable(index, true))?;
        }
        let [rx_call, tx_call] = [rx_call, tx_call].map(sys::into_fd);
        let [rx_kick, tx_kick] = [rx_kick, tx_kick].map(|kick| Bell::event(self.uid, sys::into_fd(kick)));
        // Whoever sleeps until the first kick has it.
        rx_kick.ring();
        Ok(Pair { rx, tx, rx_call, tx_call, rx_kick, tx_kick })
    }
}

impl<R> Drop for Device<R> {
    fn drop(&mut self) {
        // Reading where a ring stands stops it: from the answer on the other side leaves the memory alone. One that
        // does not answer has its own mapping of the memory and harms nobody.
        for queue in 0..self.queues {
            if self.frontend.get_vring_base(queue).is_err() {
                break;
            }
        }
    }
}

fn request<T>(step: &'static str, result: Result<T, vhost::Error>) -> Result<T, DeviceError> {
    result.map_err(|source| DeviceError::Request { step, source })
}

/// What the other side offers, and the protocol feature that matters here, which is agreed on.
fn ask(frontend: &mut Frontend) -> Result<(u64, VhostUserProtocolFeatures), DeviceError> {
    let offered = request("features", frontend.get_features())?;
    for (bit, name) in
        [(feature::VERSION_1, "virtio 1"), (feature::VHOST_USER_PROTOCOL, "the protocol features of vhost-user")]
    {
        if offered & bit == 0 {
            return Err(DeviceError::Lacks(name));
        }
    }
    let protocol = request("protocol features", frontend.get_protocol_features())? & VhostUserProtocolFeatures::MQ;
    request("protocol features", frontend.set_protocol_features(protocol))?;
    Ok((offered, protocol))
}

/// How many pairs of queues the other side has, at most `most`.
///
/// With a front end of its own: `vhost` takes the answer, which for networks is a number of pairs, for a number of
/// queues, and refuses all beyond.
fn count_pairs(stream: UnixStream, most: u16) -> Result<u16, DeviceError> {
    let mut frontend = Frontend::from_stream(stream, 0);
    let (offered, protocol) = ask(&mut frontend)?;
    if offered & feature::MQ == 0 || protocol.is_empty() {
        return Ok(1);
    }
    let pairs = request("number of queues", frontend.get_queue_num())?;
    Ok(pairs.clamp(1, u64::from(most)) as u16)
}

/// Agrees on features.
fn negotiate(frontend: &mut Frontend, wishes: Wishes, pairs: u16) -> Result<u64, DeviceError> {
    let (offered, _) = ask(frontend)?;
    let wanted = [
        (true, feature::VERSION_1 | feature::VHOST_USER_PROTOCOL),
        (pairs > 1, feature::MQ),
        (wishes.in_order, feature::IN_ORDER),
        (wishes.mergeable, feature::MRG_RXBUF),
        (wishes.event_index, feature::RING_EVENT_IDX),
        (wishes.offloads, HOST),
        (wishes.offloads && wishes.mergeable && offered & feature::MRG_RXBUF != 0, GUEST),
    ];
    let wanted = wanted.into_iter().filter(|(wish, _)| *wish).fold(0, |wanted, (_, bits)| wanted | bits);
    let features = consistent(wanted & offered);
    request("features", frontend.set_features(features))?;
    Ok(features)
}

/// Without features that lack another one that they build on (virtio 1.2, 5.1.3.1).
fn consistent(mut features: u64) -> u64 {
    for (needed, sizes, ecn) in [
        (feature::CSUM, feature::HOST_TSO4 | feature::HOST_TSO6, feature::HOST_ECN),
        (feature::GUEST_CSUM, feature::GUEST_TSO4 | feature::GUEST_TSO6, feature::GUEST_ECN),
    ] {
        if features & needed == 0 {
            features &= !sizes;
        }
        if features & sizes == 0 {
            features &= !ecn;
        }
    }
    features
}

/// A queue that receives into the buffers of the device.
pub(super) fn own_queue(place: &Place, size: Size, agreed: Agreed) -> Result<RxQueue, RingsError> {
    let mut queue = RxQueue::new(place, size, agreed)?;
    // Both sides poll until somebody says otherwise.
    queue.want_signal(false);
    let _ = queue.publish();
    Ok(queue)
}

/// Bytes from one ring to the next, each on pages of its own.
fn ring_stride(size: Size) -> usize {
    size.ring_len().next_multiple_of(4096)
}

fn ring_of(rings: &Shared, size: Size, queue: usize) -> Option<Window> {
    rings.window().part(queue * ring_stride(size), size.ring_len()).ok()
}

/// Tells the other side of the memory: the buffers first, as they are looked up for every frame.
fn share(frontend: &Frontend, buffers: &Shared, rings: &Shared, more: &[&Shared]) -> Result<(), DeviceError> {
    let region = |memory: &Shared, at: u64| VhostUserMemoryRegionInfo {
        guest_phys_addr: at,
        memory_size: memory.window().len() as u64,
        userspace_addr: at,
        mmap_offset: 0,
        mmap_handle: memory.raw_fd(),
    };
    let more = more.iter().enumerate().map(|(number, memory)| region(memory, address_of(number)));
    let all: Vec<_> = [region(buffers, BUFFERS_AT), region(rings, RINGS_AT)].into_iter().chain(more).collect();
    request("memory", frontend.set_mem_table(&all)).map(drop)
}
