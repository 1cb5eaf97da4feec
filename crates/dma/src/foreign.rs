//! Memory that belongs to somebody who may take it away: a file that can shrink. May use `unsafe`.

use crate::guard::Guard;
use crate::mapping::{Mapping, map_shared};
use crate::{Protection, RegionError, Window};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{fstat, fstatfs};
use std::sync::Arc;

/// Files in memory: they deliver a page, or fail, at once. A file anywhere else may keep a worker waiting.
const IN_MEMORY: [u64; 3] =
    [0x0102_1994 /* tmpfs, memfd */, 0x9584_58f6 /* hugetlbfs */, 0x8584_58f6 /* ramfs */];

/// A part of a file that somebody else owns, mapped here and guarded against its end.
pub struct ForeignRegion {
    window: Window,
    guard: &'static Guard,
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
        if !IN_MEMORY.contains(&(fstatfs(fd).map_err(failed)?.f_type as u64)) {
            return Err(RegionError::NotInMemory);
        }
        let file = fstat(fd).map_err(failed)?;
        let has = u64::try_from(file.st_size).unwrap_or(0);
        if has < end as u64 {
            return Err(RegionError::TooSmall { has, needs: end as u64 });
        }
        // Whole pages of the file, which can be huge ones: anything else could be neither unmapped nor replaced. An
        // offset is mostly no multiple of those, so that everything before it is mapped, too.
        let page = usize::try_from(file.st_blksize).unwrap_or(0).max(4096);
        let whole = end.checked_next_multiple_of(page).ok_or(RegionError::Size(len))?;
        let base = map_shared(fd, whole, Protection::ReadWrite.flags()).map_err(failed)?;
        let guard = Guard::over(base.as_ptr().addr(), whole);
        let mapping = Arc::new(Mapping::foreign(base, whole, guard));
        // SAFETY: mapped readable and writable for as long as the mapping lives, and guarded.
        let all = unsafe { Window::over(base, whole, true, mapping) };
        let window = all.part(offset as usize, len).map_err(|_| RegionError::Size(len))?;
        Ok(Self { window, guard })
    }

    /// The memory.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Whether the owner has taken the memory away; what is read since then is zero.
    pub fn was_cut(&self) -> bool {
        self.guard.was_cut()
    }
}
