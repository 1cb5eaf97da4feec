//! What of an application's pool is with a port queue: written down in private memory, so that a port that goes leaves
//! nothing behind.

use super::{Loan, RxSlot, TxSlot};
use crate::engine::RxEngine;
use millrace_abi::control::FaultKind;
use millrace_ring::EngineFault;
use millrace_ring::dd::PostedBuffer;
use std::collections::VecDeque;
use std::sync::Arc;

/// How long a worker that sleeps leaves frames with a port that it has not heard of.
pub const REAP_INTERVAL: std::time::Duration = std::time::Duration::from_micros(50);

/// A loan that a port queue works on, and what of it is with the port.
pub(crate) struct OnLoan {
    pub loan: Arc<Loan>,
    /// By number: empty buffers, or full ones that nobody has looked at.
    out: Box<[bool]>,
    /// Rings whose frames are on their way, by their tickets; where each was last found; and how many frames in a row.
    pub sending: VecDeque<(u64, usize, u32)>,
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
    pub fn give(&mut self, posted: PostedBuffer) -> Result<usize, EngineFault> {
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
    pub fn take(&mut self, at: usize) {
        if let Some(out) = self.out.get_mut(at / self.loan.pool.stride as usize) {
            *out = false;
        }
    }

    pub fn note_sending(&mut self, ticket: u64, place: usize, frames: u32) {
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
