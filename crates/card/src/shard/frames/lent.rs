//! A port queue that works on the pool of an application: frames land in its buffers and leave from there, and are not
//! copied.
//!
//! ```text
//! RX queue (DD)   posts a buffer --> taken ahead --> the port's to fill --> MAC --> handed back with its frame
//! TX queues (DD)  of the same program, frames in the same pool: taken --> the port's to send --> done --> handed back
//! ```
//!
//! What is with the port is written down here, in private memory: a port that goes leaves buffers behind that have to
//! be given again, and descriptors that have to be handed back.

use super::{BUDGET, end_of_burst};
use crate::counters::Counts;
use crate::engine::TxEngine;
use crate::mac::MacLane;
use crate::shard::sink::{MacSink, RingTarget};
use crate::shard::slots::{Loan, OnLoan, PortSlot, RxSlot, TxSlot};
use millrace_dma::Span;
use millrace_packet::offload::Offloads;
use millrace_port::{Accept, LendError, Lent, Sink, TxOutcome};
use slab::Slab;
use std::sync::Arc;

/// The receiving MAC before the queue whose buffers the frames are in.
struct LentSink<'l> {
    mac: &'l mut MacLane,
    queue: &'l mut RxSlot,
    on_loan: &'l mut OnLoan,
}

impl Sink for LentSink<'_> {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        let MacLane { rules, rx: receiver, stamper, .. } = &mut *self.mac;
        let behind = RingTarget { queue: self.queue, stamper };
        MacSink { rules, receiver, waits: false, offloads: Offloads::NONE, behind }.take(frame)
    }

    #[inline(always)]
    fn take_lent(&mut self, at: usize, frame: Span<'_>) -> Lent {
        let MacLane { rules, rx: receiver, stamper, .. } = &mut *self.mac;
        let iova = self.on_loan.loan.base.plus(at as u64);
        let mut kept = false;
        let _ = receiver.admit_as(rules, frame, frame.len(), false, |frame| {
            kept = self.queue.complete_posted(stamper.metadata(), iova, frame);
            Accept::Taken
        });
        if !kept {
            return Lent::Done;
        }
        self.on_loan.take(at);
        Lent::Kept
    }
}

/// One burst from a port queue to the RX queue that its memory comes from. The port queue has been lent memory.
pub(super) fn receive(port_queue: &mut PortSlot, queue: &mut RxSlot, mac: &mut MacLane) -> usize {
    let Some(on_loan) = &mut port_queue.on_loan else { return 0 };
    if let Some(lendable) = port_queue.queue.lendable() {
        lendable.post(&mut || {
            let posted = queue.take_posted()?;
            on_loan.give(posted).map_err(|fault| queue.stop_by(fault)).ok()
        });
    }
    port_queue.queue.receive(BUDGET, &mut LentSink { mac, queue, on_loan })
}

/// Whether the next frame of a TX ring lies in the memory that the port queue was lent.
#[inline(always)]
pub(super) fn holds_next(port_queue: &PortSlot, tx: &TxSlot) -> bool {
    let (Some(on_loan), Some(TxEngine::Dd(engine))) = (&port_queue.on_loan, tx.engine.running()) else { return false };
    engine.iotlb().is_of(&on_loan.loan.domain) && on_loan.loan.offset(engine.next_address(), 0).is_some()
}

/// One burst from a TX queue whose frames the port sends where they lie, as far as they lie there. Returns as
/// [`Shard::look_at_ring`](crate::shard::Shard::look_at_ring); `None` when the first of them does not, or when the port copies them.
pub(super) fn transmit(
    port_queue: &mut PortSlot,
    place: usize,
    tx: &mut TxSlot,
    counts: &mut Counts,
    mac: &mut MacLane,
) -> Option<(bool, bool)> {
    let (Some(on_loan), Some(TxEngine::Dd(engine))) = (&mut port_queue.on_loan, tx.engine.running_mut()) else {
        return None;
    };
    let sender = port_queue.queue.lendable()?.sender()?;
    let mut is_inside = true;
    let served = engine.serve_deferred(BUDGET, |iova, frame| match on_loan.loan.offset(iova, frame.len()) {
        Some(at) if sender.send_from(at, frame) != TxOutcome::Full => Accept::Taken,
        at => {
            is_inside &= at.is_some();
            Accept::Full
        }
    });
    if !served.has_moved() && !is_inside {
        return None;
    }
    port_queue.queue.flush();
    on_loan.note_sending(tx.ticket, place, served.frames as u32);
    mac.tx.count_sent(served.bytes);
    Some(end_of_burst(tx, counts, served, mac))
}

/// Hands back what the port is done with. `true` when there was anything.
#[inline(always)]
pub(super) fn reap(port_queue: &mut PortSlot, tx: &mut Slab<TxSlot>, counts: &mut [Counts]) -> bool {
    let Some(on_loan) = port_queue.on_loan.as_mut().filter(|on_loan| on_loan.is_sending()) else { return false };
    let Some(sender) = port_queue.queue.lendable().and_then(|lendable| lendable.sender()) else { return false };
    let mut left = sender.sent();
    let any = left > 0;
    while let Some((ticket, place, frames)) = on_loan.sending.front_mut().filter(|_| left > 0) {
        let done = left.min(*frames);
        (left, *frames) = (left - done, *frames - done);
        if tx.get(*place).is_none_or(|slot| slot.ticket != *ticket) {
            *place = tx.iter().find(|(_, slot)| slot.ticket == *ticket).map_or(usize::MAX, |(place, _)| place);
        }
        // A ring that has stopped meanwhile has no use for them.
        if let Some(slot) = tx.get_mut(*place) {
            slot.complete(done);
            slot.publish(&mut counts[slot.counts_at]);
        }
        if *frames == 0 {
            on_loan.sending.pop_front();
        }
    }
    any
}

/// Has the port work on the pool of `loan` from now on, or on none. To be called where the port queue and the queues
/// that it serves are with no worker.
pub(crate) fn lend<'s>(
    port_queue: &mut PortSlot,
    loan: Option<Arc<Loan>>,
    rx: &mut [RxSlot],
    tx: impl Iterator<Item = &'s mut TxSlot>,
) -> Result<(), LendError> {
    let Some(lendable) = port_queue.queue.lendable() else { return Ok(()) };
    let lent = match &loan {
        Some(loan) => lendable.lend(&loan.pool),
        None => lendable.return_pool(),
    };
    if let Some(old) = port_queue.on_loan.take() {
        old.end(rx, tx);
    }
    port_queue.on_loan = loan.filter(|_| lent.is_ok()).map(OnLoan::new);
    lent
}
