//! The queue of a pair that works on a pool: frames into memory of an application.

use super::loans::Loan;
use super::queue::{BATCH, Queue, Received, Stopped};
use crate::null::check_len;
use crate::{DropReason, Lent, Sink};
use millrace_ring::virtio::driver::LentRxQueue;
use std::sync::Arc;

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
    pub fn post(&mut self, next: &mut dyn FnMut() -> Option<usize>) {
        while self.queue.ring.room() > 0 {
            let Some(at) = next() else { break };
            let is_posted = self.queue.ring.post(at);
            debug_assert!(is_posted, "no buffer of the pool begins at {at}");
        }
        self.queue.show_buffers();
    }

    /// Offers frames to the sink, which keeps the buffers that it wants.
    pub fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> Received {
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
    pub fn publish(&mut self) -> Option<Stopped> {
        self.queue.show_buffers();
        let cut = self.loan.memory.was_cut().then_some(Stopped::Cut);
        self.queue.check(self.queue.ring.broken().map(Stopped::Fault).or(cut))
    }
}
