//! A pair of queues: what its worker and the control thread share.

use super::device;
use super::lent_queue::LentQueue;
use super::loans::Loan;
use super::memory::{Buffers, Shared};
use super::queue::Queue;
use crate::peer::{OffloadsCell, Slot, Wake};
use crate::{DropReason, PortCounters};
use millrace_packet::offload::Offloads;
use millrace_ring::virtio::driver::{LentRxQueue, RxQueue, TxQueue};
use millrace_ring::virtio::feature;
use rustix::io::Errno;
use std::sync::Arc;

/// The queue of a pair that receives, as a connection begins with it.
pub(super) enum Rx {
    /// Into buffers of our own.
    Own(RxQueue),
    /// Into those of an application.
    Lent(LentRxQueue, Arc<Loan>),
}

/// Both queues of a pair, and what wakes their worker.
///
/// Whoever has entered a slot may write the counters of its direction that a queue moves: frames and bytes passed, and drops
/// as `link-down` and `bad-ring`. That is the worker, or the control thread when it takes the queue away.
pub(super) struct Pair {
    pub rx: Slot<Queue<RxQueue>>,
    /// Instead of that one, while the pair works on memory of an application.
    pub lent: Slot<LentQueue>,
    pub tx: Slot<Queue<TxQueue>>,
    pub counters: Arc<PortCounters>,
    /// What the other side takes unfinished.
    pub offloads: OffloadsCell,
    /// On calls of the other side.
    pub wake: Wake,
}

/// Queues of a pair that were taken from its worker.
pub(super) struct Unplugged {
    rx: Option<Queue<RxQueue>>,
    lent: Option<LentQueue>,
    tx: Option<Queue<TxQueue>>,
}

impl Pair {
    pub fn new() -> Result<Self, Errno> {
        let counters = Arc::new(PortCounters::new());
        counters.set_link(false);
        let (offloads, wake) = (OffloadsCell::default(), Wake::new()?);
        Ok(Self { rx: Slot::new(), lent: Slot::new(), tx: Slot::new(), counters, offloads, wake })
    }

    /// A frame waits for room in `queue`, perhaps of a worker that is about to sleep.
    #[cold]
    pub fn starve(&self, queue: &mut Queue<TxQueue>) {
        if queue.starve() {
            self.wake.wake();
        }
    }

    /// Gives the worker queues.
    pub fn plug(
        &self,
        pair: device::Pair<Rx>,
        memory: (Arc<Buffers>, Arc<Shared>),
        features: u64,
    ) -> Result<(), Errno> {
        self.wake.watch(&pair.rx_call)?;
        self.wake.watch(&pair.tx_call)?;
        self.offloads.set(offloads(features));
        let device::Pair { rx, tx, rx_call, tx_call, rx_kick, tx_kick } = pair;
        let unfinished = features & feature::GUEST_CSUM != 0;
        let tx = Queue::new(tx, tx_kick, tx_call, memory.clone(), false);
        match rx {
            Rx::Own(rx) => {
                let queue = Queue::new(rx, rx_kick, rx_call, memory, unfinished);
                self.rx.change(|slot| *slot = Some(queue));
            }
            Rx::Lent(rx, loan) => {
                let queue = LentQueue::new(Queue::new(rx, rx_kick, rx_call, memory, false), loan);
                self.lent.change(|slot| *slot = Some(queue));
            }
        }
        self.tx.change(|slot| *slot = Some(tx));
        self.counters.set_link(true);
        self.wake.wake();
        Ok(())
    }

    /// Takes the queues from the worker. What is in them is counted by [`Pair::settle`] when the other side has stopped: until then it
    /// puts frames in and takes some out.
    pub fn unplug(&self) -> Unplugged {
        self.counters.set_link(false);
        let tx = self.tx.change(Option::take).inspect(|queue| self.wake.forget(&queue.call));
        let rx = self.rx.change(Option::take).inspect(|queue| self.wake.forget(&queue.call));
        let lent = self.lent.change(Option::take).inspect(|lent| self.wake.forget(&lent.queue.call));
        self.wake.wake();
        Unplugged { rx, lent, tx }
    }

    /// Counts what is in queues that neither side uses any more.
    pub fn settle(&self, unplugged: Unplugged) {
        let Unplugged { rx, lent, tx } = unplugged;
        // In their slots, because that is where the counters may be written.
        self.tx.change(|_| {
            if let Some(mut queue) = tx {
                queue.ring.room();
                settle(&queue, &self.counters, DropReason::LinkDown);
            }
        });
        self.rx.change(|_| {
            if let Some(mut queue) = rx {
                let mut waiting = 0;
                // As many as there are buffers, at most: none goes back.
                while queue.stopped.is_none() {
                    match queue.ring.poll(usize::MAX) {
                        0 => break,
                        frames => waiting += frames as u64,
                    }
                }
                self.counters.count_rx_drops(DropReason::LinkDown, waiting);
            }
        });
        self.lent.change(|_| {
            if let Some(lent) = lent {
                self.counters.count_rx_drops(DropReason::LinkDown, lent.end());
            }
        });
    }
}

/// Counts frames that were sent and that the other side has not taken, unless that was done when the queue was stopped.
pub(super) fn settle(queue: &Queue<TxQueue>, counters: &PortCounters, reason: DropReason) {
    if queue.stopped.is_none() || reason == DropReason::BadRing {
        let (frames, bytes) = queue.ring.unused();
        counters.take_back_tx(reason, frames, bytes);
    }
}

/// What a device with these features takes unfinished. Large frames can have ECN in them, which we cannot take out.
fn offloads(features: u64) -> Offloads {
    let all = |needed| features & needed == needed;
    let large = feature::CSUM | feature::HOST_ECN;
    Offloads {
        checksum: all(feature::CSUM),
        tcp4: all(feature::HOST_TSO4 | large),
        tcp6: all(feature::HOST_TSO6 | large),
        udp: false,
    }
}
