//! Queues and a wire on their way from one worker to another.

use super::rx::RxSlot;
use super::tx::TxSlot;
use super::wire::Wire;
use crate::counters::Counts;
use millrace_abi::queue::QueueId;

/// What moves together: a wire, the queues that it serves, or, in loopback, a pair of queues.
#[derive(Default)]
pub(crate) struct Parcel {
    pub wires: Vec<Wire>,
    pub rx: Vec<RxSlot>,
    pub tx: Vec<TxQueue>,
}

impl Parcel {
    pub fn is_empty(&self) -> bool {
        self.wires.is_empty() && self.rx.is_empty() && self.tx.is_empty()
    }

    /// Ends the wires. What they had of the queues' memory is free again.
    pub fn drop_wires(&mut self) {
        for Wire { port, on_loan, .. } in self.wires.drain(..) {
            drop(port);
            if let Some(on_loan) = on_loan {
                on_loan.end(&mut self.rx, self.tx.iter_mut().flat_map(|queue| &mut queue.rings));
            }
        }
    }
}

/// A TX queue: its rings, ring 0 first.
pub(crate) struct TxQueue {
    pub counts: Counts,
    pub rings: Vec<TxSlot>,
}

/// What is to be packed.
#[derive(Default)]
pub(crate) struct Packing {
    /// Numbers of wires.
    pub wires: Vec<u32>,
    pub queues: Vec<QueueId>,
}
