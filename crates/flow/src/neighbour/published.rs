//! The newest table of neighbours, which workers read without waiting.

use super::Table;
use arc_swap::{ArcSwap, Cache};
use std::sync::Arc;

/// The newest table: whoever finds neighbours stores it.
#[derive(Clone, Debug, Default)]
pub struct Published(Arc<ArcSwap<Table>>);

impl Published {
    /// Makes this the newest.
    pub fn store(&self, table: Table) {
        self.0.store(Arc::new(table));
    }

    /// A look at it, for one worker.
    pub fn reader(&self) -> Reader {
        Reader(Cache::new(self.0.clone()))
    }
}

/// A worker's look at the newest table.
pub struct Reader(Cache<Arc<ArcSwap<Table>>, Arc<Table>>);

impl Reader {
    /// The newest table. One load, as long as it is the same.
    #[inline]
    pub fn table(&mut self) -> &Table {
        self.0.load()
    }
}
