//! What a queue is for C: one thing that is opened, started, stopped and closed, where the host library has a type for
//! each stage.

use crate::failure::Failure;
use host::{Error, IdleRx, IdleTx, QueueId, RxQueue, TxQueue};
use rustix::io::Errno;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// An RX queue.
pub type Rx = Queue<IdleRx, RxQueue>;
/// A TX queue.
pub type Tx = Queue<IdleTx, TxQueue>;

/// A queue: `I` before it is started and after it is stopped, `R` between.
pub struct Queue<I, R> {
    id: QueueId,
    stage: Stage<I, R>,
}

enum Stage<I, R> {
    Idle(I),
    Running(R),
    /// Nothing is left of it but its name.
    Over,
}

impl<I, R> Queue<I, R> {
    /// A queue that was opened.
    pub fn new(id: QueueId, idle: I) -> Self {
        Self { id, stage: Stage::Idle(idle) }
    }

    /// The queue, if it runs.
    #[inline(always)]
    pub fn running(&mut self) -> Result<&mut R, Failure> {
        match &mut self.stage {
            Stage::Running(queue) => Ok(queue),
            Stage::Idle(_) => Err(not_running(self.id, "is not started")),
            Stage::Over => Err(not_running(self.id, OVER)),
        }
    }

    /// Starts the queue. An error closes it.
    pub fn start(&mut self, start: impl FnOnce(I) -> Result<R, Error>) -> Result<(), Failure> {
        match core::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Idle(idle) => {
                self.stage = Stage::Running(start(idle)?);
                Ok(())
            }
            Stage::Running(queue) => {
                self.stage = Stage::Running(queue);
                Err(Failure::invalid(format!("{} is started already", self.id)))
            }
            Stage::Over => Err(not_running(self.id, OVER)),
        }
    }

    /// Stops the queue. An error closes it.
    pub fn stop(&mut self, stop: impl FnOnce(R) -> Result<I, Error>) -> Result<(), Failure> {
        self.running()?;
        if let Stage::Running(queue) = core::mem::replace(&mut self.stage, Stage::Over) {
            self.stage = Stage::Idle(stop(queue)?);
        }
        Ok(())
    }

    /// Closes the queue, started or not.
    pub fn close(
        self,
        idle: impl FnOnce(I) -> Result<(), Error>,
        running: impl FnOnce(R) -> Result<(), Error>,
    ) -> Result<(), Failure> {
        let closed = match self.stage {
            Stage::Idle(queue) => idle(queue),
            Stage::Running(queue) => running(queue),
            Stage::Over => Ok(()),
        };
        closed.map_err(Failure::from)
    }

    /// After a panic nobody knows in which state the queue is: it is closed, and nothing else can be done with it.
    #[cold]
    pub fn give_up(&mut self) {
        let stage = core::mem::replace(&mut self.stage, Stage::Over);
        // Should that fail too, the driver closes the queue with the device.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(stage)));
    }
}

const OVER: &str = "was closed by an error; close it and open it again";

#[cold]
fn not_running(id: QueueId, what: &str) -> Failure {
    Failure::new(Errno::SHUTDOWN, format!("{id} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard;
    use host::Device;

    #[test]
    fn the_stages_come_in_order() {
        let device = Device::open("embedded").unwrap();
        let mut tx = Tx::new(QueueId::tx(0), device.tx(0).open().unwrap());
        assert!(tx.running().is_err() && tx.stop(TxQueue::stop).is_err());
        for _ in 0..3 {
            tx.start(IdleTx::start).unwrap();
            assert!(tx.running().is_ok());
            assert!(tx.start(IdleTx::start).is_err());
            assert!(tx.running().is_ok(), "the refused start has stopped it");
            tx.stop(TxQueue::stop).unwrap();
            assert!(tx.running().is_err());
        }
        tx.close(IdleTx::close, TxQueue::close).unwrap();
    }

    #[test]
    fn a_panic_takes_the_queue_out_of_use_and_nothing_else() {
        let device = Device::open("embedded").unwrap();
        let mut rx = Rx::new(QueueId::rx(0), device.rx(0).open().unwrap());
        rx.start(IdleRx::start).unwrap();
        let code = guard::with(Some(&mut rx), |rx| {
            rx.running()?;
            panic!("on purpose")
        });
        assert_eq!(code, -Errno::NOTRECOVERABLE.raw_os_error());
        assert_eq!(guard::with(Some(&mut rx), |rx| rx.running().map(|_| 0)), -Errno::SHUTDOWN.raw_os_error());
        // The queue itself was given back.
        device.rx(0).open().unwrap().close().unwrap();
        rx.close(IdleRx::close, RxQueue::close).unwrap();
    }
}
