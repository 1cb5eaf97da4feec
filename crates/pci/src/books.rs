//! How much of what this process has is used for the memory of machines.
//!
//! Addresses are scarce, not memory: a process has 2^47 bytes of them and 65,530 mappings (`vm.max_map_count`), and a file of any length takes no memory.
//! Whoever used them up would take them from everybody: from other machines, from programs of the host, and from the card itself, whose allocator ends the
//! process without them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most addresses, in bytes, of one machine and of all. The RDMA engine lets its programs have 2^46 besides.
pub(crate) const OF_MACHINE: u64 = 1 << 42;
const OF_ALL: u64 = 1 << 45;
/// Most mappings of all machines; how many one has is limited by [`crate::memory::MOST_PIECES`].
const MOST_MAPPINGS: u64 = 16_384;

/// What all machines of a card have mapped.
#[derive(Default)]
pub(crate) struct Books {
    bytes: AtomicU64,
    mappings: AtomicU64,
}

/// What one mapping takes, until this is dropped: not before it is unmapped.
pub(crate) struct Debt {
    books: Arc<Books>,
    bytes: u64,
}

impl Books {
    /// Books a mapping of so many bytes. `None`: there is no room for it.
    pub fn book(self: &Arc<Self>, bytes: u64) -> Option<Debt> {
        // Relaxed: sums, which order nothing.
        let mappings = self.mappings.fetch_add(1, Ordering::Relaxed);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Given back if there is none.
        let debt = Debt { books: self.clone(), bytes };
        (mappings < MOST_MAPPINGS && before.checked_add(bytes).is_some_and(|all| all <= OF_ALL)).then_some(debt)
    }
}

impl Debt {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        self.books.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.books.mappings.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_takes_nothing() {
        let books = Arc::new(Books::default());
        let all: Vec<_> = (0..OF_ALL / OF_MACHINE).map(|_| books.book(OF_MACHINE).unwrap()).collect();
        assert!(books.book(1).is_none() && books.book(u64::MAX).is_none());
        drop(all);
        let all: Vec<_> = (0..MOST_MAPPINGS).map(|_| books.book(4096).unwrap()).collect();
        assert!(books.book(4096).is_none());
        drop(all);
        assert_eq!((books.bytes.load(Ordering::Relaxed), books.mappings.load(Ordering::Relaxed)), (0, 0));
    }
}
