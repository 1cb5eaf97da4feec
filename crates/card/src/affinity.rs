//! Which worker serves which queue: changed by the control side, asked by whoever talks to a worker about a queue.

use crate::mailbox::Mailbox;
use millrace_abi::queue::{Direction, QueueId};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) struct Affinity {
    rx: Vec<AtomicU32>,
    tx: Vec<AtomicU32>,
    mailboxes: Vec<Arc<Mailbox>>,
    // Held for writing while queues are under way between workers, so that no command misses its queue.
    moving: RwLock<()>,
}

impl Affinity {
    pub fn new(rx: u32, tx: u32, mailboxes: Vec<Arc<Mailbox>>) -> Self {
        let nowhere = |count| (0..count).map(|_| AtomicU32::new(0)).collect();
        Self { rx: nowhere(rx), tx: nowhere(tx), mailboxes, moving: RwLock::default() }
    }

    fn entry(&self, id: QueueId) -> Option<&AtomicU32> {
        match id.direction {
            Direction::Rx => self.rx.get(id.index as usize),
            Direction::Tx => self.tx.get(id.index as usize),
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
