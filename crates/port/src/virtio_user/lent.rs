//! Frames into memory of an application: the queue of a pair that works on a pool.

use super::loans::{Change, Loan};
use super::queue::{Queue, Stopped};
use super::{BATCH, Received, VirtioUserPort};
use crate::null::check_len;
use crate::{DropReason, LendError, Lendable, Lent, Pool, Sink};
use millrace_ring::virtio::driver::LentRxQueue;
use std::sync::Arc;
use std::time::Duration;

/// How long the other side may take to leave a pool alone before the connection is broken off, and to come back.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(500);

/// The queue of a pair that receives into a pool.
pub(super) struct LentQueue {
    pub queue: Queue<LentRxQueue>,
    loan: Arc<Loan>,
}

impl LentQueue {
    /// With the buffers that have waited for it.
    pub fn new(mut queue: Queue<LentRxQueue>, loan: Arc<Loan>) -> Self {
        loan.waiting().retain(|&at| !queue.ring.post(at));
        queue.show_buffers();
        Self { queue, loan }
    }

    /// Counts the frames that nobody has looked at; the buffers wait for the next queue.
    pub fn end(mut self) -> u64 {
        let mut unseen = 0;
        // As many as there are buffers, at most: none goes back.
        while self.queue.stopped.is_none() {
            match self.queue.ring.poll(usize::MAX) {
                0 => break,
                frames => unseen += frames as u64,
            }
        }
        self.loan.waiting().extend(self.queue.ring.into_buffers());
        unseen
    }

    /// Takes buffers as long as there is room.
    fn post(&mut self, next: &mut dyn FnMut() -> Option<usize>) {
        while self.queue.ring.room() > 0 {
            let Some(at) = next() else { break };
            let is_posted = self.queue.ring.post(at);
            debug_assert!(is_posted, "no buffer of the pool begins at {at}");
        }
        self.queue.show_buffers();
    }

    /// Offers frames to the sink, which keeps the buffers that it wants.
    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> Received {
        let (ring, mut found) = (&mut self.queue.ring, Received::default());
        let mut left = budget;
        while left > 0 {
            let count = ring.poll(left.min(BATCH));
            if count == 0 {
                break;
            }
            left -= count;
            (0..count).for_each(|index| ring.frame(index).1.prefetch());
            for index in 0..count {
                let (at, frame) = ring.frame(index);
                match check_len(frame.len()) {
                    Ok(()) => {}
                    Err(DropReason::TooShort) => {
                        found.too_short += 1;
                        continue;
                    }
                    Err(_) => {
                        found.too_long += 1;
                        continue;
                    }
                }
                let said = sink.take_lent(at, frame);
                if said == Lent::Full {
                    found.no_room += 1;
                    continue;
                }
                found.frames += 1;
                found.bytes += frame.len() as u64;
                if said == Lent::Kept {
                    ring.keep(index);
                }
            }
        }
        ring.recycle();
        found
    }

    /// Shows the other side the buffers that it may fill again, and says why the queue is at its end if it is.
    fn publish(&mut self) -> Option<Stopped> {
        self.queue.show_buffers();
        let cut = self.loan.memory.was_cut().then_some(Stopped::Cut);
        self.queue.check(self.queue.ring.broken().map(Stopped::Fault).or(cut))
    }
}

impl VirtioUserPort {
    /// What [`PortQueue::receive`](crate::PortQueue::receive) does while the port works on a pool.
    pub(super) fn receive_lent(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let Some(mut slot) = self.pair.lent.enter() else { return 0 };
        let Some(lent) = slot.as_mut().filter(|lent| lent.queue.stopped.is_none()) else { return 0 };
        let found = lent.receive(budget, sink);
        self.count(&found);
        if let Some(reason) = lent.publish() {
            self.show_receive_stop(reason);
        }
        found.frames as usize
    }

    /// Has the thread make a connection that knows of this pool, or of none, and waits until no other connection is
    /// left.
    fn set_loan(&mut self, loan: Option<Arc<Loan>>) -> Result<Change, LendError> {
        let is_some = loan.is_some();
        self.works_on_pool = false;
        let change = self.wire.loans.set(self.number, loan)?;
        self.works_on_pool = is_some;
        if !self.wire.loans.await_release(change, RELEASE_TIMEOUT) {
            // It does not answer. What it has mapped it keeps, but we have nothing more to do with it.
            self.wire.control.break_off();
            if !self.wire.loans.await_release(change, RELEASE_TIMEOUT * 10) {
                self.works_on_pool = false;
                return Err(LendError::Refused("the connection to the back end does not end".to_owned()));
            }
        }
        Ok(change)
    }
}

impl VirtioUserPort {
    /// Works on this pool from now on, or on none.
    fn change_pool(&mut self, pool: Option<&Pool>) -> Result<(), LendError> {
        let (loan, refused) = match pool.map(Loan::of).transpose() {
            Ok(loan) => (loan.map(Arc::new), Ok(())),
            Err(error) => (None, Err(error)),
        };
        if loan.is_some() || self.works_on_pool {
            let change = self.set_loan(loan)?;
            self.wire.loans.await_queues(change, RELEASE_TIMEOUT);
        }
        refused
    }
}

impl Lendable for VirtioUserPort {
    fn lend(&mut self, pool: &Pool) -> Result<(), LendError> {
        self.change_pool(Some(pool))
    }

    fn return_pool(&mut self) -> Result<(), LendError> {
        self.change_pool(None)
    }

    fn post(&mut self, next: &mut dyn FnMut() -> Option<usize>) {
        if let Some(mut slot) = self.pair.lent.enter()
            && let Some(lent) = slot.as_mut().filter(|lent| lent.queue.stopped.is_none())
        {
            lent.post(next);
        }
    }
}

impl Drop for VirtioUserPort {
    fn drop(&mut self) {
        if self.works_on_pool {
            // The application uses its buffers for something else from here on.
            let _ = self.set_loan(None);
        }
    }
}
