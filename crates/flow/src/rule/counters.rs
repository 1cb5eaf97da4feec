//! Counters of a rule: a cell for each worker, so that nobody waits for a cache line of another.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a rule has matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Hits {
    /// Frames.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// When the last one came, in nanoseconds; 0 is never.
    pub last_ns: u64,
}

/// The cell of one worker, which alone writes it; anybody reads it. A line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell {
    packets: AtomicU64,
    bytes: AtomicU64,
    last_ns: AtomicU64,
    lost: AtomicU64,
}

/// Counters of a rule.
#[derive(Debug)]
pub struct Counters(Box<[Cell]>);

impl Counters {
    /// Zeros for that many workers.
    pub(crate) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Cell::default()).collect())
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// Adds what `worker` has seen. Only that worker calls this, so a load and a store lose nothing; no order is needed,
    /// because each number stands alone.
    pub(crate) fn add(&self, worker: usize, hits: Hits) {
        let Some(cell) = self.0.get(worker) else { return };
        cell.packets.store(cell.packets.load(Relaxed).wrapping_add(hits.packets), Relaxed);
        cell.bytes.store(cell.bytes.load(Relaxed).wrapping_add(hits.bytes), Relaxed);
        cell.last_ns.store(cell.last_ns.load(Relaxed).max(hits.last_ns), Relaxed);
    }

    /// Adds frames that `worker` has lost: as [`add`](Self::add).
    pub(crate) fn lose(&self, worker: usize, packets: u64) {
        let Some(cell) = self.0.get(worker) else { return };
        cell.lost.store(cell.lost.load(Relaxed).wrapping_add(packets), Relaxed);
    }

    /// Frames that did not get, or not to all, where the rules said: no room there, no such queue or port, a meter, an action that could
    /// not be done. Those that another worker has lost are not among them.
    pub fn lost(&self) -> u64 {
        self.0.iter().fold(0, |sum, cell| sum.wrapping_add(cell.lost.load(Relaxed)))
    }

    /// The sum over all workers. What a worker has not [flushed](crate::table::Classifier::flush) yet is not in it.
    pub fn read(&self) -> Hits {
        self.0.iter().fold(Hits::default(), |sum, cell| Hits {
            packets: sum.packets.wrapping_add(cell.packets.load(Relaxed)),
            bytes: sum.bytes.wrapping_add(cell.bytes.load(Relaxed)),
            last_ns: sum.last_ns.max(cell.last_ns.load(Relaxed)),
        })
    }
}
