//! Queues and a port queue on their way from one worker to another.

use super::{PortSlot, RxSlot, TxSlot};
use crate::counters::Counts;
use millrace_abi::queue::QueueId;

/// What moves together: a port queue, the queues that it serves, or, in loopback, a pair of queues.
#[derive(Default)]
pub(crate) struct Detached {
    pub port_queues: Vec<PortSlot>,
    pub rx: Vec<RxSlot>,
    pub tx: Vec<TxQueue>,
}

impl Detached {
    pub fn is_empty(&self) -> bool {
        self.port_queues.is_empty() && self.rx.is_empty() && self.tx.is_empty()
    }

    /// Ends the port queues. What they had of the queues' memory is free again. Returns how many of their frames waited for room.
    pub fn drop_port_queues(&mut self) -> u64 {
        let mut lost = 0;
        for PortSlot { queue, on_loan, parked, .. } in self.port_queues.drain(..) {
            lost += parked.map_or(0, |parked| parked.frames.len() as u64);
            drop(queue);
            if let Some(on_loan) = on_loan {
                on_loan.end(&mut self.rx, self.tx.iter_mut().flat_map(|queue| &mut queue.rings));
            }
        }
        lost
    }
}

/// A TX queue: its rings, ring 0 first.
pub(crate) struct TxQueue {
    pub counts: Counts,
    pub rings: Vec<TxSlot>,
}

/// What is to be packed.
#[derive(Default)]
pub(crate) struct Detach {
    /// Numbers of port queues.
    pub port_queues: Vec<u32>,
    pub queues: Vec<QueueId>,
}
