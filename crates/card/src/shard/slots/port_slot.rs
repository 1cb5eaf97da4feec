//! A port queue in its shard.

use super::on_loan::{OnLoan, REAP_INTERVAL};
use super::{Parked, Steady};
use crate::sleep::Sleep;
use millrace_port::PortQueue;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// One queue of what is plugged into a port.
pub(crate) struct PortSlot {
    /// Index of its port.
    pub port: usize,
    /// Its number among the port queues of the port.
    pub number: u32,
    pub queue: Box<dyn PortQueue>,
    /// What sends while `queue` receives, if it can: for a port queue that is connected with itself.
    pub sender: Option<Box<dyn PortQueue>>,
    // What the worker sleeps on. An fd of our own: the port may have given up its by the time it is awake.
    watched: Option<OwnedFd>,
    /// Place of the RX queue that its frames go to.
    pub rx_at: Option<usize>,
    /// Memory of an application that `queue` works on.
    pub on_loan: Option<OnLoan>,
    /// Frames that it has received and for which there was no room where they go.
    pub parked: Option<Box<Parked>>,
    /// With rules: to whom its frames go.
    pub steady: Steady,
}

impl PortSlot {
    pub fn new(port: usize, number: u32, queue: Box<dyn PortQueue>) -> Self {
        let sender = queue.sender();
        Self {
            port,
            number,
            queue,
            sender,
            watched: None,
            rx_at: None,
            on_loan: None,
            parked: None,
            steady: Steady::default(),
        }
    }

    pub fn prepare_sleep(&mut self, sleep: &Sleep) {
        self.queue.prepare_sleep();
        self.watched = self.queue.wake_fd().and_then(|fd| fd.try_clone_to_owned().ok());
        self.watched.iter().for_each(|fd| sleep.watch_level(fd));
    }

    /// When the port queue wants to be looked at by the clock, of a worker that is about to sleep.
    pub fn next_due(&self) -> Option<Instant> {
        // There was no fd to spare: better awake than deaf.
        let deaf = self.watched.is_none() && self.queue.wake_fd().is_some();
        if deaf {
            return Some(Instant::now());
        }
        let sending = self.on_loan.as_ref().is_some_and(OnLoan::is_sending);
        let until_sent = sending.then(|| Instant::now() + REAP_INTERVAL);
        self.queue.next_due().into_iter().chain(until_sent).min()
    }

    pub fn awake(&mut self, sleep: &Sleep) {
        self.watched.take().iter().for_each(|fd| sleep.forget_level(fd));
        self.queue.awake();
    }
}
