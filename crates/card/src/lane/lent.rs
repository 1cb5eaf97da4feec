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

use super::loan::Loan;
use super::rx::RxSlot;
use super::sink::{MacSink, RingTarget};
use super::tx::TxSlot;
use super::{BUDGET, port_slot::PortSlot};
use crate::counters::Counts;
use crate::engine::{RxEngine, TxEngine};
use crate::mac::MacLane;
use millrace_abi::control::FaultKind;
use millrace_dma::Span;
use millrace_packet::offload::Offloads;
use millrace_port::{Accept, LendError, Lent, Sink, TxOutcome};
use millrace_ring::EngineFault;
use millrace_ring::dd::PostedBuffer;
use std::collections::VecDeque;
use std::sync::Arc;

/// How long a worker that sleeps leaves frames with a port that it has not heard of.
pub(super) const REAP_INTERVAL: std::time::Duration = std::time::Duration::from_micros(50);

/// A loan that a port queue works on, and what of it is with the port.
pub(crate) struct OnLoan {
    loan: Arc<Loan>,
    /// By number: empty buffers, or full ones that nobody has looked at.
    out: Box<[bool]>,
    /// Rings whose frames are on their way, by their tickets; where each was last found; and how many frames in a row.
    sending: VecDeque<(u64, usize, u32)>,
}

impl OnLoan {
    pub fn new(loan: Arc<Loan>) -> Self {
        let out = vec![false; loan.pool.count as usize].into_boxed_slice();
        Self { loan, out, sending: VecDeque::new() }
    }

    pub fn is_sending(&self) -> bool {
        !self.sending.is_empty()
    }

    /// A buffer that software has posted goes to the port.
    #[inline(always)]
    fn give(&mut self, posted: PostedBuffer) -> Result<usize, EngineFault> {
        let PostedBuffer { iova, capacity } = posted;
        let number = self.loan.number(iova).filter(|&number| !self.out[number as usize]);
        let number = number.filter(|_| u32::from(capacity) >= self.loan.pool.size);
        // Anything else would let the port write where software does not expect it.
        let number = number.ok_or(EngineFault { kind: FaultKind::Unmapped, iova })?;
        self.out[number as usize] = true;
        Ok((iova.get() - self.loan.base.get()) as usize)
    }

    /// The buffer in which a frame lies `at` comes back from the port.
    #[inline(always)]
    fn take(&mut self, at: usize) {
        if let Some(out) = self.out.get_mut(at / self.loan.pool.stride as usize) {
            *out = false;
        }
    }

    fn note_sending(&mut self, ticket: u64, place: usize, frames: u32) {
        match self.sending.back_mut() {
            Some(last) if last.0 == ticket => last.2 += frames,
            _ if frames > 0 => self.sending.push_back((ticket, place, frames)),
            _ => {}
        }
    }

    /// Ends the loan: the port has forgotten everything. `rx` and `tx` are the queues that the port queue serves.
    pub fn end<'s>(mut self, rx: &mut [RxSlot], tx: impl Iterator<Item = &'s mut TxSlot>) {
        let queue = rx.iter_mut().find(|slot| slot.queue.id == self.loan.queue);
        if let Some(RxEngine::Dd(engine)) = queue.and_then(|slot| slot.engine.running_mut()) {
            let back = (0..self.loan.pool.count).filter(|&number| self.out[number as usize]);
            engine.untake(back.map(|number| self.loan.iova(number)));
        }
        for slot in tx {
            let of_slot = self.sending.iter().filter(|run| run.0 == slot.ticket);
            let frames = of_slot.map(|run| run.2).sum();
            slot.complete(frames);
        }
        self.sending.clear();
    }
}

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
    if let Some(lendable) = port_queue.port.lendable() {
        lendable.post(&mut || {
            let posted = queue.take_posted()?;
            on_loan.give(posted).map_err(|fault| queue.stop_by(fault)).ok()
        });
    }
    port_queue.port.receive(BUDGET, &mut LentSink { mac, queue, on_loan })
}

/// Whether the next frame of a TX ring lies in the memory that the port queue was lent.
#[inline(always)]
pub(super) fn holds_next(port_queue: &PortSlot, tx: &TxSlot) -> bool {
    let (Some(on_loan), Some(TxEngine::Dd(engine))) = (&port_queue.on_loan, tx.engine.running()) else { return false };
    engine.iotlb().is_of(&on_loan.loan.domain) && on_loan.loan.offset(engine.next_address(), 0).is_some()
}

/// One burst from a TX queue whose frames the port sends where they lie, as far as they lie there. Returns as
/// [`super::refuse`]; `None` when the first of them does not, or when the port copies them.
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
    let sender = port_queue.port.lendable()?.sender()?;
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
    port_queue.port.flush();
    on_loan.note_sending(tx.ticket, place, served.frames as u32);
    mac.tx.count_sent(served.bytes);
    Some(super::end_of_burst(tx, counts, served, mac))
}

/// Hands back what the port is done with. `true` when there was anything.
#[inline(always)]
pub(super) fn reap(port_queue: &mut PortSlot, tx: &mut [TxSlot], counts: &mut [Counts]) -> bool {
    let Some(on_loan) = port_queue.on_loan.as_mut().filter(|on_loan| on_loan.is_sending()) else { return false };
    let Some(sender) = port_queue.port.lendable().and_then(|lendable| lendable.sender()) else { return false };
    let mut left = sender.sent();
    let any = left > 0;
    while let Some((ticket, place, frames)) = on_loan.sending.front_mut().filter(|_| left > 0) {
        let done = left.min(*frames);
        (left, *frames) = (left - done, *frames - done);
        if tx.get(*place).is_none_or(|slot| slot.ticket != *ticket) {
            *place = tx.iter().position(|slot| slot.ticket == *ticket).unwrap_or(usize::MAX);
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
    let Some(lendable) = port_queue.port.lendable() else { return Ok(()) };
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

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_abi::queue::QueueId;
    use millrace_dma::{Access, Domain, Iova, Region};
    use millrace_port::Pool;

    const STRIDE: u32 = 2112;

    fn on_loan(count: u32) -> OnLoan {
        let region = Region::heap((count * STRIDE) as usize);
        let domain = Arc::new(Domain::new());
        let base = domain.map(region.window().clone(), Access::ReadWrite, None).unwrap();
        let _pin = domain.resolve(base, region.len(), Access::ReadWrite).unwrap();
        let pool = Pool { region, size: 2048, stride: STRIDE, count };
        OnLoan::new(Arc::new(Loan { queue: QueueId::rx(0), serial: 1, pool, base, domain, _pin }))
    }

    #[test]
    fn a_port_gets_whole_buffers_of_the_pool_and_each_once() {
        let mut on_loan = on_loan(4);
        let base = on_loan.loan.base;
        let posted = |at: u64, capacity| PostedBuffer { iova: base.plus(at), capacity };
        assert_eq!(on_loan.give(posted(2112, 2048)), Ok(2112));
        for bad in [
            posted(2112, 2048),
            posted(1, 2048),
            posted(4 * 2112, 2048),
            posted(0, 2047),
            PostedBuffer { iova: Iova::new(base.get() - 2112), capacity: 2048 },
            PostedBuffer { iova: Iova::new(0), capacity: 2048 },
            PostedBuffer { iova: Iova::new(u64::MAX), capacity: 2048 },
        ] {
            let fault = EngineFault { kind: FaultKind::Unmapped, iova: bad.iova };
            assert_eq!(on_loan.give(bad), Err(fault), "{bad:?}");
        }
        // Handed back with a frame, it may come again; so may what a port says wrong.
        on_loan.take(2112 + 256);
        on_loan.take(usize::MAX);
        assert_eq!(on_loan.give(posted(2112, 65535)), Ok(2112));
    }

    #[test]
    fn frames_are_sent_from_inside_the_pool_only() {
        let loan = &on_loan(2).loan;
        let at = |offset: u64, len| loan.offset(loan.base.plus(offset), len);
        assert_eq!((at(0, 60), at(2368, 60)), (Some(0), Some(2368)));
        assert_eq!(
            (at(2 * 2112 - 60, 60), at(2 * 2112 - 59, 60), at(2 * 2112 + 1, 0)),
            (Some(2 * 2112 - 60), None, None)
        );
        assert_eq!(loan.offset(Iova::new(loan.base.get() - 1), 60), None);
        assert_eq!(loan.offset(Iova::new(u64::MAX), 60), None);
    }

    #[test]
    fn frames_on_their_way_are_counted_in_runs() {
        let mut on_loan = on_loan(2);
        for (ticket, frames) in [(1, 3), (1, 4), (2, 0), (2, 5), (1, 1)] {
            on_loan.note_sending(ticket, 0, frames);
        }
        assert_eq!(on_loan.sending.iter().map(|run| (run.0, run.2)).collect::<Vec<_>>(), [(1, 7), (2, 5), (1, 1)]);
    }
}
