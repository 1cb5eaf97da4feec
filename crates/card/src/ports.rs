//! The ports of the card: which queues each has, what is behind it at the moment, and who serves it.

use crate::mac::Mac;
use crate::schedule::PortSchedule;
use millrace_abi::queue::{Direction, QueueId};
use millrace_abi::schedule::ScheduleError;
use millrace_port::{OpenError, PortSpec, SpecError};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why a port or a queue could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum WiringError {
    /// A port that is not there.
    #[error("there is no port {0}; the card has {1}, counted from 0")]
    NoPort(u32, usize),
    /// A port specification that means nothing.
    #[error("port {0}: {1}")]
    Spec(u32, SpecError),
    /// A port queue that could not be opened; the port is unplugged now.
    #[error("port {0}: {1}; nothing is plugged in there now")]
    Open(u32, OpenError),
    /// Loopback has no port queue to connect.
    #[error("port {0} loops back by itself and has no wire to connect; plug one in first")]
    Loopback(u32),
    /// A port queue that is connected has to stay where the other one is.
    #[error("port {0} is connected with another port, whose wires are served beside its own; disconnect it first")]
    Connected(u32),
    /// A queue that is not there.
    #[error("there is no queue {0}")]
    NoQueue(QueueId),
    /// A schedule that cannot be kept.
    #[error("port {0}: {1}")]
    Schedule(u32, ScheduleError),
    /// A schedule that names a queue of another port.
    #[error("port {0} has no queue {1}")]
    NotOfPort(u32, QueueId),
    /// A worker that is not there.
    #[error("there is no worker {0}; the card has {1}, counted from 0")]
    NoWorker(u32, usize),
}

/// A port of the card: what never changes.
pub(crate) struct PortEntry {
    pub mac: Arc<Mac>,
    pub rx: Range<u32>,
    pub tx: Range<u32>,
}

impl PortEntry {
    pub fn range(&self, direction: Direction) -> &Range<u32> {
        match direction {
            Direction::Rx => &self.rx,
            Direction::Tx => &self.tx,
        }
    }

    pub fn queues(&self) -> impl Iterator<Item = QueueId> {
        self.rx.clone().map(QueueId::rx).chain(self.tx.clone().map(QueueId::tx))
    }
}

/// Of what kind it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Loopback,
    PortQueues(u32),
    Nothing,
}

/// A port of the card: what is behind it at the moment.
#[derive(Clone)]
pub(crate) struct Wiring {
    pub spec: String,
    pub kind: Kind,
    /// Index of the port that it is connected with.
    pub patch: Option<usize>,
    /// Of port queues that can work on memory of applications, for each: the serial number of the loan, 0 for none.
    pub loans: Vec<u64>,
    /// Worker of every bundle.
    pub workers: Vec<u32>,
    /// When its queues may send.
    pub schedule: Option<Arc<PortSchedule>>,
}

impl Wiring {
    pub fn nothing() -> Self {
        Self {
            spec: PortSpec::NONE.to_owned(),
            kind: Kind::Nothing,
            patch: None,
            loans: Vec::new(),
            workers: Vec::new(),
            schedule: None,
        }
    }

    pub fn worker_of(&self, bundle: u32) -> usize {
        self.workers[bundle as usize] as usize
    }

    pub fn port_queues(&self) -> u32 {
        match self.kind {
            Kind::PortQueues(count) => count,
            Kind::Loopback | Kind::Nothing => 0,
        }
    }

    pub fn bundle_of(&self, entry: &PortEntry, id: QueueId) -> u32 {
        let first = match self.kind {
            // Queues of one index belong together, whatever the ranges are.
            Kind::Loopback => entry.rx.start.min(entry.tx.start),
            _ => entry.range(id.direction).start,
        };
        match self.kind {
            Kind::Loopback => id.index - first,
            // Only rules lead to RX queues beyond the first of each port queue, from any worker.
            Kind::PortQueues(count) if id.direction == Direction::Tx => (id.index - first) % count,
            Kind::PortQueues(_) => id.index - first,
            Kind::Nothing => 0,
        }
    }

    pub fn bundles(&self, entry: &PortEntry) -> u32 {
        match self.kind {
            Kind::Loopback => entry.rx.end.max(entry.tx.end) - entry.rx.start.min(entry.tx.start),
            Kind::PortQueues(count) => count.max(entry.rx.len() as u32),
            Kind::Nothing => 1,
        }
    }
}

/// All ports, under one lock: changes of port queues and workers are rare.
pub(crate) struct Wirings {
    now: Mutex<Vec<Wiring>>,
    // One change at a time. Held longer than the other, which everybody needs: opening a port can take its time.
    change: Mutex<()>,
}

impl Wirings {
    pub fn new(ports: usize) -> Self {
        Self { now: Mutex::new(vec![Wiring::nothing(); ports]), change: Mutex::default() }
    }

    pub fn lock(&self) -> MutexGuard<'_, Vec<Wiring>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin_change(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
