//! The version that counts.

use crate::table::Tables;
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The version that counts: the writer stores it, everybody reads it.
#[derive(Debug)]
pub struct Published {
    tables: ArcSwap<Tables>,
    /// The number of that version, for a look that costs one load. Written by the writer after `tables`.
    line: Line,
}

/// A cache line of its own, which only a new version takes away from the workers.
#[derive(Debug)]
#[repr(align(64))]
struct Line {
    version: AtomicU64,
    has_local: AtomicBool,
    wants_sent: AtomicBool,
    has_rules: AtomicBool,
}

impl Published {
    pub(super) fn new(tables: Arc<Tables>) -> Self {
        let line = Line {
            version: AtomicU64::new(tables.version()),
            has_local: AtomicBool::new(tables.has_local()),
            wants_sent: AtomicBool::new(tables.wants_sent()),
            has_rules: AtomicBool::new(tables.decides()),
        };
        Self { line, tables: ArcSwap::new(tables) }
    }

    /// The number of the newest version.
    #[inline(always)]
    pub fn version(&self) -> u64 {
        // Pairs with the store in `store`: whoever sees the number finds these tables, or newer ones.
        self.line.version.load(Ordering::Acquire)
    }

    /// Whether some rule of the newest version is for what programs of the host send.
    #[inline(always)]
    pub fn has_local(&self) -> bool {
        // A hint: the lookup that follows takes the version as it is then.
        self.line.has_local.load(Ordering::Relaxed)
    }

    /// Whether some QUIC group learns from what programs send; a hint as well.
    #[inline(always)]
    pub fn wants_sent(&self) -> bool {
        self.line.wants_sent.load(Ordering::Relaxed)
    }

    /// Whether the newest version says anything about any frame; a hint as well.
    #[inline(always)]
    pub fn has_rules(&self) -> bool {
        self.line.has_rules.load(Ordering::Relaxed)
    }

    /// The newest version. Never waits.
    pub fn load(&self) -> Arc<Tables> {
        self.tables.load_full()
    }

    pub(super) fn store(&self, tables: Arc<Tables>) {
        let (version, has_local, wants_sent) = (tables.version(), tables.has_local(), tables.wants_sent());
        let has_rules = tables.decides();
        self.tables.store(tables);
        self.line.has_rules.store(has_rules, Ordering::Relaxed);
        self.line.has_local.store(has_local, Ordering::Relaxed);
        self.line.wants_sent.store(wants_sent, Ordering::Relaxed);
        // Pairs with the load in `version`.
        self.line.version.store(version, Ordering::Release);
    }
}
