//! A pair of queues: what its worker and the control thread share.

use super::memory::GuestMemory;
use crate::peer::{self, OffloadsCell, Slot, Wake};
use crate::{Bell, PortCounters};
use millrace_ring::virtio::{DeviceRx, DeviceTx, Fault};
use rustix::io::Errno;
use std::sync::Arc;

/// Why a queue is not used any more.
pub(super) type Stopped = peer::Stopped<Fault>;

/// One queue that runs, of either direction.
pub(super) struct Queue<D> {
    pub device: D,
    /// Tells the driver that something was used; `None` if it polls.
    pub call: Option<Arc<Bell>>,
    /// Tells the driver that the queue has stopped.
    pub error: Option<Arc<Bell>>,
    pub memory: Arc<GuestMemory>,
    pub stopped: Option<Stopped>,
}

impl<D> Queue<D> {
    pub fn signal(&self) {
        self.call.iter().for_each(Bell::ring);
    }

    /// Stops for good. The driver hears of it, and may set the queue up anew.
    #[cold]
    pub fn stop(&mut self, reason: Stopped) {
        self.stopped = Some(reason);
        self.error.iter().for_each(Bell::ring);
    }
}

/// Both queues of a pair, and what wakes their worker.
pub(super) struct Pair {
    /// The driver sends, the card receives.
    pub tx: Slot<Queue<DeviceTx>>,
    /// The card sends, the driver receives.
    pub rx: Slot<Queue<DeviceRx>>,
    pub counters: Arc<PortCounters>,
    /// What the driver takes unfinished.
    pub offloads: OffloadsCell,
    /// On kicks of the driver.
    pub wake: Wake,
}

impl Pair {
    pub fn new() -> Result<Self, Errno> {
        let counters = Arc::new(PortCounters::new());
        counters.set_link(false);
        let (offloads, wake) = (OffloadsCell::default(), Wake::new()?);
        Ok(Self { tx: Slot::new(), rx: Slot::new(), counters, offloads, wake })
    }
}
