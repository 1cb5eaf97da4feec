//! The version that counts.

use crate::table::Tables;
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The version that counts: the writer stores it, everybody reads it.
#[derive(Debug)]
pub struct Published {
    tables: ArcSwap<Tables>,
    /// The number of that version, for a look that costs one load. Written by the writer after `tables`.
    version: Line,
}

/// A cache line of its own, which only a new version takes away from the workers.
#[derive(Debug)]
#[repr(align(64))]
struct Line(AtomicU64);

impl Published {
    pub(super) fn new(tables: Arc<Tables>) -> Self {
        Self { version: Line(AtomicU64::new(tables.version())), tables: ArcSwap::new(tables) }
    }

    /// The number of the newest version.
    #[inline(always)]
    pub fn version(&self) -> u64 {
        // Pairs with the store in `store`: whoever sees the number finds these tables, or newer ones.
        self.version.0.load(Ordering::Acquire)
    }

    /// The newest version. Never waits.
    pub fn load(&self) -> Arc<Tables> {
        self.tables.load_full()
    }

    pub(super) fn store(&self, tables: Arc<Tables>) {
        let version = tables.version();
        self.tables.store(tables);
        // Pairs with the load in `version`.
        self.version.0.store(version, Ordering::Release);
    }
}
