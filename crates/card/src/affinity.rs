//! Which worker serves which queue: changed by the control side, asked by whoever talks to a worker about a queue.

use crate::mailbox::Mailbox;
use millrace_abi::queue::{Direction, QueueId};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The worker of every queue.
pub(crate) struct Homes {
    pub rx: Vec<AtomicU32>,
    pub tx: Vec<AtomicU32>,
    // Whether an RX queue runs: a hint for those who could wait until it does.
    running: Vec<AtomicBool>,
}

impl Homes {
    pub fn new(rx: u32, tx: u32) -> Self {
        let nowhere = |count| (0..count).map(|_| AtomicU32::new(0)).collect();
        let running = (0..rx).map(|_| AtomicBool::new(false)).collect();
        Self { rx: nowhere(rx), tx: nowhere(tx), running }
    }

    /// Whether an RX queue runs.
    #[inline(always)]
    pub fn rx_runs(&self, index: u32) -> bool {
        self.running.get(index as usize).is_some_and(|running| running.load(Ordering::Relaxed))
    }

    pub fn set_rx_runs(&self, index: u32, runs: bool) {
        if let Some(running) = self.running.get(index as usize) {
            running.store(runs, Ordering::Relaxed);
        }
    }

    /// The worker that serves an RX queue at the moment, as far as the caller has heard.
    #[inline(always)]
    pub fn rx_worker(&self, index: u32) -> Option<u32> {
        self.rx.get(index as usize).map(|home| home.load(Ordering::Relaxed))
    }
}

pub(crate) struct Affinity {
    homes: Arc<Homes>,
    mailboxes: Vec<Arc<Mailbox>>,
    // Held for writing while queues are under way between workers, so that no command misses its queue.
    moving: RwLock<()>,
}

impl Affinity {
    pub fn new(homes: Arc<Homes>, mailboxes: Vec<Arc<Mailbox>>) -> Self {
        Self { homes, mailboxes, moving: RwLock::default() }
    }

    /// Wakes all workers.
    pub fn rouse_all(&self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.rouse());
    }

    fn entry(&self, id: QueueId) -> Option<&AtomicU32> {
        match id.direction {
            Direction::Rx => self.homes.rx.get(id.index as usize),
            Direction::Tx => self.homes.tx.get(id.index as usize),
        }
    }

    /// Index of the worker that serves a queue.
    pub fn worker(&self, id: QueueId) -> Option<u32> {
        self.entry(id).map(|home| home.load(Ordering::Relaxed))
    }

    /// The worker that serves a queue at the moment. Good enough to wake it: a worker that has just been given a queue
    /// is awake. For commands, take [`Affinity::stay`] first.
    #[inline]
    pub fn mailbox(&self, id: QueueId) -> Option<&Arc<Mailbox>> {
        self.mailboxes.get(self.worker(id)? as usize)
    }

    pub fn mailboxes(&self) -> &[Arc<Mailbox>] {
        &self.mailboxes
    }

    /// As long as this is held, every queue stays where it is.
    pub fn stay(&self) -> RwLockReadGuard<'_, ()> {
        self.moving.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// For whoever moves queues.
    pub fn moving(&self) -> RwLockWriteGuard<'_, ()> {
        self.moving.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, id: QueueId, worker: u32) {
        if let Some(home) = self.entry(id) {
            home.store(worker, Ordering::Relaxed);
        }
    }
}
