//! The pools of queues that run, for port queues that can work on them.

use millrace_abi::queue::QueueId;
use millrace_dma::{Domain, Iova, Pinned};
use millrace_port::Pool;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The pool of a program, and where its queues find it.
pub(crate) struct Loan {
    /// Whose buffers come in.
    pub queue: QueueId,
    /// Tells one START of the queue from another.
    pub serial: u64,
    pub pool: Pool,
    pub base: Iova,
    pub domain: Arc<Domain>,
    /// The memory stays where it is.
    pub _pin: Pinned,
}

impl Loan {
    fn len(&self) -> u64 {
        u64::from(self.pool.stride) * u64::from(self.pool.count)
    }

    /// Where in the pool a frame lies, if it does.
    #[inline(always)]
    pub fn offset(&self, iova: Iova, len: usize) -> Option<usize> {
        let at = iova.get().checked_sub(self.base.get())?;
        (at <= self.len() && len as u64 <= self.len() - at).then_some(at as usize)
    }

    /// Which buffer begins there.
    #[inline(always)]
    pub fn number(&self, iova: Iova) -> Option<u32> {
        let at = iova.get().checked_sub(self.base.get())?;
        let (number, rest) = (at / u64::from(self.pool.stride), at % u64::from(self.pool.stride));
        (rest == 0 && number < u64::from(self.pool.count)).then_some(number as u32)
    }

    pub fn iova(&self, number: u32) -> Iova {
        self.base.plus(u64::from(number) * u64::from(self.pool.stride))
    }
}

/// The pools of queues that run.
#[derive(Default)]
pub(crate) struct Loans {
    inner: Mutex<Inner>,
    suspended: AtomicBool,
}

#[derive(Default)]
struct Inner {
    of: HashMap<QueueId, Arc<Loan>>,
    last: u64,
}

impl Loans {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Port queues work on no pools from now on, or on pools again. `false`: it was so before.
    pub fn suspend(&self, suspended: bool) -> bool {
        self.suspended.swap(suspended, Ordering::Relaxed) != suspended
    }

    /// Whether there is any.
    pub fn is_empty(&self) -> bool {
        self.lock().of.is_empty()
    }

    /// The pool of this queue, while it runs.
    pub fn of(&self, queue: QueueId) -> Option<Arc<Loan>> {
        let inner = self.lock();
        if self.suspended.load(Ordering::Relaxed) { None } else { inner.of.get(&queue).cloned() }
    }

    /// A queue runs over a pool from now on; `loan` is told the serial number.
    pub fn begin(&self, loan: impl FnOnce(u64) -> Loan) {
        let mut inner = self.lock();
        inner.last += 1;
        let loan = loan(inner.last);
        inner.of.insert(loan.queue, Arc::new(loan));
    }

    /// The queue has stopped. `false`: it had no pool.
    pub fn end(&self, queue: QueueId) -> bool {
        let ended = self.lock().of.remove(&queue);
        ended.is_some()
    }
}
