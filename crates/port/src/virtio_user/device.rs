//! A network device at the other end of a vhost-user socket, and the memory shared with it.

use millrace_dma::{Pages, Region};
use millrace_ring::virtio::driver::{Agreed, Place, RxQueue, Size, TxQueue};
use millrace_ring::virtio::feature;
use std::{io, os::fd::AsRawFd, os::unix::net::UnixStream, path::Path, time::Duration};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// How long the other side may take to answer a request.
const PATIENCE: Duration = Duration::from_secs(5);
/// A queue pair fills half a huge page, and is worth a whole one: both sides look addresses up all the time.
const HUGE_PAGE: usize = 2 << 20;
/// Where the shared memory begins in the addresses of the rings. Any number would do: the other side looks addresses up.
const MEMORY_AT: u64 = 1 << 32;

/// What is asked of the device.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Pairs of queues.
    pub pairs: u16,
    /// Descriptors of a queue.
    pub size: Size,
    /// Whether frames may be spread over several buffers.
    pub mergeable: bool,
    /// Whether each side names the index at which it wants to be told.
    pub event_index: bool,
}

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
    Memory(#[from] millrace_dma::RegionError),
    /// No eventfd.
    #[error("cannot make an eventfd: {0}; raise the limit of open files (`ulimit -n`)")]
    Event(#[source] io::Error),
}

/// One pair of queues and how the two sides wake each other.
pub struct Pair {
    /// Frames from the device.
    pub rx: RxQueue,
    /// Frames to the device.
    pub tx: TxQueue,
    /// Signalled by the device when there are frames.
    pub rx_call: EventFd,
    rx_kick: EventFd,
    _tx_call: EventFd,
    tx_kick: EventFd,
}

impl Pair {
    /// Shows the device what is new in both queues and wakes it if it sleeps.
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.rx.publish() {
            kick(&self.rx_kick);
        }
        if self.tx.publish() {
            kick(&self.tx_kick);
        }
    }
}

/// A full counter wakes as well as one more, so nothing is lost when the write fails.
#[cold]
fn kick(event: &EventFd) {
    let _ = event.write(1);
}

/// A network device of somebody else's. It ends when this is dropped.
pub struct Device {
    /// Its queues.
    pub pairs: Vec<Pair>,
    frontend: Frontend,
    agreed: Agreed,
    /// Keeps the memory that the queues are made of; the windows would do so too.
    _memory: Region,
}

impl Device {
    /// Connects to the vhost-user backend that listens on `path` and brings its queues up.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn connect(path: &Path, wishes: Wishes) -> Result<Self, DeviceError> {
        let stream = UnixStream::connect(path).map_err(DeviceError::Connect)?;
        // A peer that is silent must not hold us.
        stream.set_read_timeout(Some(PATIENCE)).map_err(DeviceError::Connect)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(DeviceError::Connect)?;
        let mut frontend = Frontend::from_stream(stream, u64::from(wishes.pairs) * 2);
        let agreed = negotiate(&mut frontend, wishes)?;
        let memory = Region::allocate(memory_len(wishes).max(HUGE_PAGE), Pages::HugeIfAny)?;
        share(&frontend, &memory)?;
        let pairs = (0..wishes.pairs).map(|pair| bring_up(&mut frontend, &memory, wishes.size, agreed, pair));
        let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
        // The other side answers in order: with this answer it has seen all of the above.
        request("features", frontend.get_features())?;
        Ok(Self { pairs, frontend, agreed, _memory: memory })
    }

    /// What was agreed on.
    pub fn agreed(&self) -> Agreed {
        self.agreed
    }

    /// The socket: readable when the other side is gone.
    pub fn socket(&self) -> std::os::fd::RawFd {
        self.frontend.as_raw_fd()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Reading where a ring stands stops it: from the answer on the other side leaves the memory alone. One that does not
        // answer has its own mapping of the memory and harms nobody.
        for queue in 0..self.pairs.len() * 2 {
            if self.frontend.get_vring_base(queue).is_err() {
                break;
            }
        }
    }
}

fn request<T>(step: &'static str, result: Result<T, vhost::Error>) -> Result<T, DeviceError> {
    result.map_err(|source| DeviceError::Request { step, source })
}

fn negotiate(frontend: &mut Frontend, wishes: Wishes) -> Result<Agreed, DeviceError> {
    request("owner", frontend.set_owner())?;
    let offered = request("features", frontend.get_features())?;
    let several = wishes.pairs > 1;
    for (bit, name, needed) in [
        (feature::VERSION_1, "virtio 1", true),
        (feature::VHOST_USER_PROTOCOL, "protocol features", true),
        (feature::MQ, "several queues", several),
    ] {
        if needed && offered & bit == 0 {
            return Err(DeviceError::Lacks(name));
        }
    }
    let mut wanted = feature::VERSION_1 | feature::VHOST_USER_PROTOCOL | feature::IN_ORDER;
    for (wish, bit) in
        [(several, feature::MQ), (wishes.mergeable, feature::MRG_RXBUF), (wishes.event_index, feature::RING_EVENT_IDX)]
    {
        wanted |= if wish { bit } else { 0 };
    }
    let protocol = request("protocol features", frontend.get_protocol_features())?;
    request("protocol features", frontend.set_protocol_features(protocol & VhostUserProtocolFeatures::MQ))?;
    if several {
        let pairs = request("number of queues", frontend.get_queue_num())?;
        if pairs < u64::from(wishes.pairs) {
            return Err(DeviceError::Lacks("that many queues"));
        }
    }
    let features = wanted & offered;
    request("features", frontend.set_features(features))?;
    Ok(Agreed {
        event_index: features & feature::RING_EVENT_IDX != 0,
        in_order: features & feature::IN_ORDER != 0,
        mergeable: features & feature::MRG_RXBUF != 0,
    })
}

/// Bytes of one queue: its ring, then its buffers, on pages of their own.
fn queue_len(size: Size) -> usize {
    (size.ring_len().next_multiple_of(4096) + size.buffers_len()).next_multiple_of(4096)
}

fn memory_len(wishes: Wishes) -> usize {
    queue_len(wishes.size) * 2 * usize::from(wishes.pairs)
}

fn share(frontend: &Frontend, memory: &Region) -> Result<(), DeviceError> {
    let fd = memory.fd().ok_or(DeviceError::Lacks("memory with a file"))?;
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: MEMORY_AT,
        memory_size: memory.len() as u64,
        userspace_addr: MEMORY_AT,
        mmap_offset: 0,
        mmap_handle: fd.as_raw_fd(),
    };
    request("memory", frontend.set_mem_table(&[region])).map(drop)
}

fn bring_up(
    frontend: &mut Frontend,
    memory: &Region,
    size: Size,
    agreed: Agreed,
    pair: u16,
) -> Result<Pair, DeviceError> {
    let event = || EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(DeviceError::Event);
    let (rx_call, rx_kick, tx_call, tx_kick) = (event()?, event()?, event()?, event()?);
    let place = |queue: usize| {
        let ring_at = queue * queue_len(size);
        let buffers_at = ring_at + size.ring_len().next_multiple_of(4096);
        let outside = |_| DeviceError::Lacks("room for its queues");
        Ok::<_, DeviceError>(Place {
            ring: memory.part(ring_at, size.ring_len()).map_err(outside)?,
            buffers: memory.part(buffers_at, size.buffers_len()).map_err(outside)?,
            buffers_at: MEMORY_AT + buffers_at as u64,
        })
    };
    let (rx_index, tx_index) = (usize::from(pair) * 2, usize::from(pair) * 2 + 1);
    let outside = |_| DeviceError::Lacks("room for its queues");
    let mut rx = RxQueue::new(&place(rx_index)?, size, agreed).map_err(outside)?;
    let mut tx = TxQueue::new(&place(tx_index)?, size, agreed).map_err(outside)?;
    // Both sides poll until somebody says otherwise.
    rx.want_signal(false);
    tx.want_signal(false);
    let _ = rx.publish();
    for (index, call, kick) in [(rx_index, &rx_call, &rx_kick), (tx_index, &tx_call, &tx_kick)] {
        let at = MEMORY_AT + (index * queue_len(size)) as u64;
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
    // Whoever sleeps until the first kick has it.
    kick(&rx_kick);
    Ok(Pair { rx, tx, rx_call, rx_kick, _tx_call: tx_call, tx_kick })
}
