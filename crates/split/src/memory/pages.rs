//! A file in memory whose pages are granted.

use crate::PAGE;
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Pages of the file that transports grant of themselves: those that are not used take no memory. A program that has other memory in the file has it
/// behind them.
pub const MOST_PAGES: u32 = 1 << 28;

/// A file, and which of its pages were never granted. Copies are of the same file: several transports, one after the other, may grant pages of it.
#[derive(Clone)]
pub struct Pages {
    file: Arc<OwnedFd>,
    next: Arc<AtomicU32>,
}

impl Pages {
    /// Of a new file, sealed against shrinking.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new() -> Result<Self, Errno> {
        let file = memfd_create("millrace-split", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, u64::from(MOST_PAGES) * PAGE as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(Self::of(file))
    }

    /// Of a file that is as long as [`MOST_PAGES`] at least, is sealed against shrinking, and has nothing in those pages.
    pub fn of(file: OwnedFd) -> Self {
        Self { file: Arc::new(file), next: Arc::default() }
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// So many pages of zeros: the first of them. Numbers are not used again, so that they were nobody's before.
    pub(super) fn take(&self, pages: u32) -> Option<u32> {
        let next = |next: u32| next.checked_add(pages).filter(|next| *next <= MOST_PAGES);
        // Relaxed: it orders nothing.
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    /// Gives the memory of a run of pages back. If that fails, they are memory of this process until it ends.
    pub(super) fn free(&self, (first, pages): (u32, u32)) {
        let [at, len] = [first, pages].map(|pages| u64::from(pages) * PAGE as u64);
        let _ = fallocate(&*self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_given_once() {
        let pages = Pages::new().unwrap();
        let again = pages.clone();
        assert_eq!([pages.take(3), again.take(1), pages.take(5)], [Some(0), Some(3), Some(4)]);
        pages.free((4, 5));
        assert_eq!(again.take(MOST_PAGES), None, "more than there are");
        assert_eq!(again.take(1), Some(9));
    }
}
