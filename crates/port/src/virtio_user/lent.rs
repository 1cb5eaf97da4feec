//! A pool on loan: the port receives into it from `lend` to `return_pool`.

use super::VirtioUserPort;
use super::loans::{Change, Loan};
use crate::{LendError, Lendable, Pool, Sink};
use std::sync::Arc;
use std::time::Duration;

/// How long the other side may take to leave a pool alone before the connection is broken off, and to come back.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(500);

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
