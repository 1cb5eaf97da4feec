//! From port queues.

use super::{BUDGET, lent};
use crate::mac::MacLane;
use crate::shard::sink::{MacSink, RingTarget};
use crate::shard::slots::{PortSlot, RxSlot};
use crate::shard::state::Shard;
use crate::turns::{Look, cost};
use millrace_dma::Span;
use millrace_packet::offload::Offloads;
use millrace_port::{Accept, PortQueue};
use slab::Slab;

impl Shard {
    /// One burst from one port queue, if something has come. Returns what that is charged with, too.
    #[inline(always)]
    pub fn look_at_port_queue(&mut self, at: usize) -> (Look, u32) {
        let Some(port_queue) = self.port_queues.get_mut(at) else { return (Look::Quiet, cost::PORT_QUEUE) };
        let reaped = lent::reap(port_queue, &mut self.tx, &mut self.tx_counts);
        let port = port_queue.port;
        let waits = port_queue.parked.is_some();
        if waits || self.has_rules() {
            return self.look_at_port_queue_with_rules(at, reaped);
        }
        let received = match self.ports[port].shape.patch {
            None => self.receive(at),
            Some(patch) if patch.to == port => self.reflect(at),
            Some(patch) => self.forward(at, patch),
        };
        match received {
            Some(cost) => (Look::Busy, cost),
            None if reaped => (Look::Busy, cost::PORT_QUEUE),
            None => (Look::Quiet, cost::PORT_QUEUE),
        }
    }

    /// One burst from a port queue to its RX queue. Returns what it is charged with if there was anything.
    #[inline(always)]
    fn receive(&mut self, at: usize) -> Option<u32> {
        let port_queue = &mut self.port_queues[at];
        let to = port_queue.rx_at?;
        let received = receive(port_queue, &mut self.rx, to, &mut self.ports[port_queue.port].mac);
        self.touch_rx(to);
        received
    }
}

/// One burst from a port queue to the RX queue at place `to`. Returns as [`Shard::receive`].
#[inline(always)]
fn receive(port_queue: &mut PortSlot, rx: &mut Slab<RxSlot>, to: usize, mac: &mut MacLane) -> Option<u32> {
    let queue = rx.get_mut(to)?;
    let waits = port_queue.queue.can_wait();
    if !queue.is_running() && waits {
        // A source that can wait does so until somebody starts to listen.
        return None;
    }
    let bytes = queue.bytes();
    mac.refresh();
    queue.begin();
    let copies = port_queue.queue.counters().rx_copies();
    let taken = if mac.is_cut_off() {
        receive_nothing(port_queue.queue.as_mut(), mac)
    } else if port_queue.on_loan.is_some() {
        lent::receive(port_queue, queue, mac)
    } else {
        let MacLane { rules, rx: receiver, stamper, .. } = mac;
        let behind = RingTarget { queue, stamper };
        port_queue.queue.receive(BUDGET, &mut MacSink { rules, receiver, waits, offloads: Offloads::NONE, behind })
    };
    queue.count_copies(port_queue.queue.counters().rx_copies() - copies);
    queue.finish();
    mac.publish();
    (taken > 0).then(|| cost::of(taken as u64, queue.bytes() - bytes))
}

/// Takes frames from a port queue that the MAC does not listen to.
#[cold]
pub(super) fn receive_nothing(port: &mut dyn PortQueue, mac: &mut MacLane) -> usize {
    let MacLane { rules, rx: receiver, .. } = mac;
    port.receive(BUDGET, &mut |_: Span<'_>| {
        receiver.ignore(rules);
        Accept::Taken
    })
}
