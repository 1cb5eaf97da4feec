//! A pair of queues: what its worker and the control thread share.

use super::memory::GuestMemory;
use super::slot::Slot;
use crate::PortCounters;
use millrace_packet::offload::Offloads;
use millrace_ring::virtio::{DeviceRx, DeviceTx, Fault};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Why a queue is not served any more although the driver has not stopped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    Fault(Fault),
    /// The memory under it has been taken away.
    Cut,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => write!(f, "{fault}"),
            Self::Cut => f.write_str("memory-cut"),
        }
    }
}

/// One queue that runs, of either direction.
pub(super) struct Queue<D> {
    pub device: D,
    /// Tells the driver that something was used; `None` if it polls.
    pub call: Option<Arc<File>>,
    /// Tells the driver that the queue has stopped.
    pub error: Option<Arc<File>>,
    pub memory: Arc<GuestMemory>,
    pub stopped: Option<Stopped>,
}

impl<D> Queue<D> {
    #[inline(never)]
    pub fn signal(&self) {
        signal(self.call.as_deref());
    }

    /// Stops for good. The driver hears of it, and may set the queue up anew.
    #[cold]
    pub fn stop(&mut self, reason: Stopped) {
        self.stopped = Some(reason);
        signal(self.error.as_deref());
    }
}

fn signal(event: Option<&File>) {
    if let Some(event) = event {
        // Full, or no eventfd at all: the driver's own doing.
        let _ = rustix::io::write(event, &1u64.to_ne_bytes());
    }
}

/// Both queues of a pair, and what wakes their worker.
pub(super) struct Pair {
    /// The driver sends, the card receives.
    pub tx: Slot<Queue<DeviceTx>>,
    /// The card sends, the driver receives.
    pub rx: Slot<Queue<DeviceRx>>,
    pub counters: Arc<PortCounters>,
    /// What the driver takes unfinished, a bit for each field.
    offloads: AtomicU8,
    /// Readable when a driver has kicked or a queue has come. All that it watches is edge-triggered: nothing of the driver
    /// is ever read.
    epoll: OwnedFd,
    changed: OwnedFd,
}

impl Pair {
    pub fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let changed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let counters = Arc::new(PortCounters::new());
        counters.set_link(false);
        let pair = Self { tx: Slot::new(), rx: Slot::new(), counters, offloads: AtomicU8::new(0), epoll, changed };
        pair.watch(&pair.changed)?;
        Ok(pair)
    }

    /// What the driver takes unfinished.
    pub fn offloads(&self) -> Offloads {
        let bits = self.offloads.load(Ordering::Relaxed);
        Offloads { checksum: bits & 1 != 0, tcp4: bits & 2 != 0, tcp6: bits & 4 != 0, udp: bits & 8 != 0 }
    }

    /// Relaxed, like the load: the queue that belongs to it is handed over by the lock of its slot, and a frame that was
    /// made for the queue before is looked at again when it has the lock.
    pub fn set_offloads(&self, offloads: Offloads) {
        let Offloads { checksum, tcp4, tcp6, udp } = offloads;
        let bits = u8::from(checksum) | u8::from(tcp4) << 1 | u8::from(tcp6) << 2 | u8::from(udp) << 3;
        self.offloads.store(bits, Ordering::Relaxed);
    }

    pub fn wake_fd(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Wakes the worker on `kick` from now on.
    pub fn watch(&self, kick: impl AsFd) -> Result<(), Errno> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, kick, epoll::EventData::new_u64(0), flags)
    }

    pub fn forget(&self, kick: impl AsFd) {
        // Not there: nothing to forget.
        let _ = epoll::delete(&self.epoll, kick);
    }

    /// Wakes the worker because something has changed.
    pub fn wake(&self) {
        // Full: many signals that nobody has looked at are one.
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    /// Takes note of all signals until now.
    pub fn drain(&self) {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 8];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // What is left is taken next time; what fails now was nothing.
        let _ = epoll::wait(&self.epoll, &mut events, Some(&now));
    }
}
