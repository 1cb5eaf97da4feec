//! Memory that belongs to somebody who may take it away: a file that can shrink. May use `unsafe`.

use crate::guard::Guard;
use crate::mapping::{Mapping, map_shared_at};
use crate::{Protection, RegionError, Window};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{fcntl_get_seals, fstat};
use std::sync::Arc;

/// A part of a file that somebody else owns, mapped here and guarded against its end.
pub struct ForeignRegion {
    window: Window,
    guard: &'static Guard,
    mapped: usize,
}

impl ForeignRegion {
    /// Maps `len` bytes of `fd` from `offset` on, which need not be aligned.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::TooSmall`], [`RegionError::NotInMemory`], [`RegionError::Map`].
    pub fn map(fd: impl AsFd, offset: u64, len: usize) -> Result<Self, RegionError> {
        let fd: BorrowedFd<'_> = fd.as_fd();
        let failed = |source| RegionError::Map { len, source };
        let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(len)).filter(|_| len > 0);
        let end = end.ok_or(RegionError::Size(len))?;
        // Before anything is asked of a file: only those of tmpfs and hugetlbfs have seals, and deliver a page, or fail, at once. A file of a FUSE file
        // system would have its owner answer, or not.
        fcntl_get_seals(fd).map_err(|_| RegionError::NotInMemory)?;
        let file = fstat(fd).map_err(failed)?;
        let has = u64::try_from(file.st_size).unwrap_or(0);
        if has < end as u64 {
            return Err(RegionError::TooSmall { has, needs: end as u64 });
        }
        // Whole pages of the file, which can be huge ones: anything else could be neither unmapped nor replaced. Nothing else of the file: how much
        // of it lies before the offset is the owner's to say, and addresses of this process are not his.
        let page = usize::try_from(file.st_blksize).unwrap_or(0).max(4096);
        let first = end - len - (end - len) % page;
        let whole = end.checked_next_multiple_of(page).ok_or(RegionError::Size(len))? - first;
        let base = map_shared_at(fd, first as u64, whole, Protection::ReadWrite.flags()).map_err(failed)?;
        let guard = Guard::over(base.as_ptr().addr(), whole);
        let mapping = Arc::new(Mapping::foreign(base, whole, guard));
        // SAFETY: mapped readable and writable for as long as the mapping lives, and guarded.
        let all = unsafe { Window::over(base, whole, true, mapping) };
        let window = all.part(end - len - first, len).map_err(|_| RegionError::Size(len))?;
        Ok(Self { window, guard, mapped: whole })
    }

    /// The memory.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Addresses of this process that it takes, in bytes: whole pages of its file.
    pub fn mapped(&self) -> usize {
        self.mapped
    }

    /// Whether the owner has taken the memory away; what is read since then is zero.
    pub fn was_cut(&self) -> bool {
        self.guard.was_cut()
    }
}
