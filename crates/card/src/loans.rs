//! Which port queues work on memory of applications: that of the RX queue that a port queue's frames go to, while it
//! runs, if its program has named a pool and the port queue can.

use crate::card::Card;
use crate::ports::Wiring;
use crate::shard::{Detach, Detached, Loan, lend};
use millrace_abi::queue::{Direction, QueueId};
use millrace_dma::{Access, Domain, Fault, Iova, Region};
use millrace_port::Pool;
use std::sync::Arc;

/// The pool that a DD queue runs over, and where the queue finds it.
#[derive(Clone)]
pub struct LentPool {
    /// The buffers lie at its beginning. It has its file: a port maps it where it needs it.
    pub region: Region,
    /// Bytes of a buffer.
    pub size: u32,
    /// From one buffer to the next, in bytes.
    pub stride: u32,
    /// How many there are.
    pub count: u32,
    /// The IOVA of the first buffer.
    pub base: Iova,
    /// The domain of the queue.
    pub domain: Arc<Domain>,
}

impl Card {
    /// Lets the port queue whose frames go to a running DD RX queue put them into the queue's own buffers, and send
    /// frames of the same pool from where they lie. Where a port queue cannot, frames are copied as otherwise, and a
    /// warning says why. Ends with
    /// [`Card::detach`].
    ///
    /// # Errors
    /// [`Fault`] when the pool is not mapped there for writing.
    pub fn lend_pool(&self, queue: QueueId, shared: LentPool) -> Result<(), Fault> {
        let LentPool { region, size, stride, count, base, domain } = shared;
        let pool = Pool { region, size, stride, count };
        let len = stride as usize * count as usize;
        let pin = domain.resolve(base, len, Access::ReadWrite)?;
        self.loans.begin(|serial| Loan { queue, serial, pool, base, domain, _pin: pin });
        self.settle_loan_of(queue);
        Ok(())
    }

    /// The queue has stopped: no port queue may touch its memory when this returns.
    pub(crate) fn return_pool(&self, queue: QueueId) {
        if self.loans.end(queue) {
            self.settle_loan_of(queue);
        }
    }

    fn settle_loan_of(&self, queue: QueueId) {
        let port = self.ports.iter().position(|entry| entry.rx.contains(&queue.index));
        if let Some(port) = port.filter(|_| queue.direction == Direction::Rx) {
            self.settle_loans(&mut self.wirings.lock()[port], port);
        }
    }

    /// Has every port queue of a port work on the memory that it should.
    pub(crate) fn settle_loans(&self, wiring: &mut Wiring, port: usize) {
        for bundle in 0..wiring.loans.len() as u32 {
            let queue = QueueId::rx(self.ports[port].rx.start + bundle);
            let wanted = self.ports[port].rx.contains(&queue.index).then(|| self.loans.of(queue)).flatten();
            let serial = wanted.as_ref().map_or(0, |loan| loan.serial);
            if core::mem::replace(&mut wiring.loans[bundle as usize], serial) != serial {
                self.lend(wiring, port, bundle, wanted);
            }
        }
    }

    /// While there are rules, the frames of a port queue may have more than one target, so they are copied.
    pub(crate) fn suspend_loans(&self, suspended: bool) {
        if !self.loans.suspend(suspended) {
            return;
        }
        if !self.loans.is_empty() {
            let what =
                if suspended { "copied into pools of programs, because" } else { "put into pools again: no more" };
            tracing::warn!("frames are {what} rules decide where they go");
        }
        let mut wirings = self.wirings.lock();
        for port in 0..wirings.len() {
            self.settle_loans(&mut wirings[port], port);
        }
    }

    fn lend(&self, wiring: &Wiring, port: usize, bundle: u32, loan: Option<Arc<Loan>>) {
        let _moving = self.affinity().moving();
        let what = Detach { port_queues: vec![bundle], queues: self.queues_of(wiring, port, bundle) };
        let mut detached = self.detach_from(wiring.worker_of(bundle), port, what);
        let Detached { port_queues, rx, tx } = &mut detached;
        for port_queue in port_queues {
            let queue = loan.as_ref().map(|loan| loan.queue);
            let lent = lend(port_queue, loan.clone(), rx, tx.iter_mut().flat_map(|queue| &mut queue.rings));
            if let (Some(queue), Err(error)) = (queue, lent) {
                tracing::warn!("port {port}: frames for {queue} are copied into its pool: {error}");
            }
        }
        self.distribute(port, wiring, detached);
    }
}
