//! Memory shared by fd. One of the files of this crate that may use `unsafe`.

use crate::guard::Guard;
use crate::mapping::{Backing, Mapping, map_shared, map_shared_at};
use crate::{OutOfRange, Window};
use core::ptr::NonNull;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::{alloc, sync::Arc};

/// Which pages a region should stand on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// 2 MiB pages when the region is at least that large and the system has them, ordinary ones otherwise.
    #[default]
    HugeIfAny,
    /// Ordinary pages: for small regions, and where idle memory must not be resident.
    Ordinary,
}

/// What a mapping of a region may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Load only.
    Read,
    /// Load and store.
    ReadWrite,
}

impl Protection {
    pub(crate) fn flags(self) -> ProtFlags {
        match self {
            Self::Read => ProtFlags::READ,
            Self::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

/// Why a region could not be made or mapped.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// A region has at least one byte and a size that is a multiple of the page size where it is mapped twice.
    #[error("a region cannot have {0} bytes: it needs at least one byte, and whole pages where it is mapped twice")]
    Size(usize),
    /// `memfd_create` or `ftruncate` failed.
    #[error(
        "cannot allocate {len} bytes of shared memory: {source}; free memory or configure fewer or smaller buffers"
    )]
    Allocate {
        /// Bytes asked for.
        len: usize,
        /// What the system said.
        source: rustix::io::Errno,
    },
    /// `mmap` failed.
    #[error("cannot map {len} bytes of shared memory: {source}")]
    Map {
        /// Bytes to be mapped.
        len: usize,
        /// What the system said.
        source: rustix::io::Errno,
    },
    /// The file could shrink under the card, which would then be killed by a bus error.
    #[error("the file handed over as memory can still shrink: create it with memfd_create and MFD_ALLOW_SEALING")]
    NotSealed,
    /// A file of somebody else that could keep the card waiting.
    #[error("the file handed over as memory does not lie in memory: use a memfd, or a file in /dev/shm or a hugetlbfs")]
    NotInMemory,
    /// No driver has pages there.
    #[error("what is to be mapped as pages of a device is no device")]
    NotDevice,
    /// Nobody can map the region any more.
    #[error("the file of a region is closed; it cannot be mapped once more")]
    NoFile,
    /// The file is smaller than what it should hold.
    #[error("the file handed over as memory has {has} bytes where {needs} are needed")]
    TooSmall {
        /// Size of the file.
        has: u64,
        /// Size needed.
        needs: u64,
    },
}

/// A window over `len` bytes that others in this process have mapped at `first`; `None` at address 0.
///
/// Nothing keeps that memory mapped. That is the contract of DMA: whoever starts a queue on addresses of its own leaves
/// them mapped, with the rights that they had, until the queue's STATUS reads 0 or the device is closed. A program that
/// breaks it is ended by SIGSEGV where a card on a bus would have spoiled whatever lies there by then; as with
/// `/proc/self/mem`, or a card without an IOMMU, that is not for the compiler to prevent
/// (`docs/decisions/0016-native-queues.md`).
pub(crate) fn own_memory(first: u64, len: u64, writable: bool) -> Option<Window> {
    let (first, len) = (usize::try_from(first).ok()?, usize::try_from(len).ok()?);
    let base = NonNull::new(core::ptr::with_exposed_provenance_mut::<u8>(first))?;
    let mapping = Arc::new(Mapping::new(base, len, Backing::Elsewhere));
    // SAFETY: the system has just listed these addresses as mapped with these rights (process.rs), and whoever gave them
    // to a card has promised, as above, that they stay so. The views only copy bytes and use atomics, so that the
    // program may use its memory meanwhile as it may under DMA.
    Some(unsafe { Window::over(base, len, writable, mapping) })
}

/// Memory that a card and a program share.
///
/// Ownership: who may write which bytes is a matter of the ring laid out in it. A region allocated here is sealed
/// against shrinking, so that no peer can make the other side fault by truncating the file.
#[derive(Clone)]
pub struct Region {
    window: Window,
    fd: Option<Arc<OwnedFd>>,
    len: usize,
}

impl Region {
    /// Allocates `len` bytes of zeroed shared memory.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::Allocate`], [`RegionError::Map`].
    pub fn allocate(len: usize, pages: Pages) -> Result<Self, RegionError> {
        Self::allocate_on(len, pages, false)
    }

    /// As [`Region::allocate`], for memory whose file is handed to somebody who may do harm: no seal forbids holes in it, and
    /// where there was a huge page there need not be another. What is read then is zero, as with [`Region::map_guarded`].
    ///
    /// # Errors
    /// As [`Region::allocate`].
    pub fn allocate_guarded(len: usize, pages: Pages) -> Result<Self, RegionError> {
        Self::allocate_on(len, pages, true)
    }

    fn allocate_on(len: usize, pages: Pages, guarded: bool) -> Result<Self, RegionError> {
        if pages == Pages::HugeIfAny && len >= HUGE_PAGE {
            let rounded = len.next_multiple_of(HUGE_PAGE);
            let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
            // Any failure means that there are not enough huge pages; ordinary ones always serve.
            if let Ok(region) = Self::allocate_with(rounded, flags, false, guarded) {
                return Ok(region);
            }
        }
        // A hole in ordinary pages is filled with zeros by the system.
        Self::allocate_with(len, MemfdFlags::empty(), false, false)
    }

    /// Allocates `len` bytes (whole pages) and maps them twice in a row, so that a packet that wraps at the end of a
    /// ring is still one slice. The window is twice as long as the memory.
    ///
    /// # Errors
    /// As [`Region::allocate`].
    pub fn allocate_doubled(len: usize) -> Result<Self, RegionError> {
        Self::allocate_with(len, MemfdFlags::empty(), true, false)
    }

    fn allocate_with(len: usize, pages: MemfdFlags, doubled: bool, guarded: bool) -> Result<Self, RegionError> {
        if len == 0 || (doubled && !len.is_multiple_of(PAGE)) {
            return Err(RegionError::Size(len));
        }
        let failed = |source| RegionError::Allocate { len, source };
        let fd = memfd_create("millrace", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages).map_err(failed)?;
        ftruncate(&fd, len as u64).map_err(failed)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(failed)?;
        if guarded {
            return Self::map_fd_guarded(fd.into(), len, Protection::ReadWrite);
        }
        Self::map_fd(fd.into(), len, Protection::ReadWrite, doubled)
    }

    /// Maps memory that somebody else allocated: the first `len` bytes of `fd`, once or twice in a row. Who must not wait until
    /// what is not taken is closed keeps an [`Arc`] of it.
    ///
    /// # Errors
    /// [`RegionError::NotSealed`] unless the file is sealed against shrinking or lets us seal it,
    /// [`RegionError::TooSmall`], [`RegionError::Map`].
    pub fn map(
        fd: impl Into<Arc<OwnedFd>>,
        len: usize,
        protection: Protection,
        doubled: bool,
    ) -> Result<Self, RegionError> {
        let fd = fd.into();
        if len == 0 || (doubled && !len.is_multiple_of(PAGE)) {
            return Err(RegionError::Size(len));
        }
        Self::check(fd.as_fd(), len)?;
        Self::map_fd(fd, len, protection, doubled)
    }

    /// As [`Region::map`], once, for memory of somebody who may take parts of it away all the same: no seal forbids holes,
    /// and where there was a huge page there need not be another. What is read then is zero, as in a
    /// [`ForeignRegion`](crate::ForeignRegion).
    ///
    /// # Errors
    /// As [`Region::map`].
    pub fn map_guarded(fd: impl Into<Arc<OwnedFd>>, len: usize, protection: Protection) -> Result<Self, RegionError> {
        let fd = fd.into();
        if len == 0 {
            return Err(RegionError::Size(len));
        }
        Self::check(fd.as_fd(), len)?;
        Self::map_fd_guarded(fd, len, protection)
    }

    /// As [`Region::map_guarded`], for a part of a file: `len` bytes from `offset` on, whole pages both.
    ///
    /// # Errors
    /// As [`Region::map`]; [`RegionError::Size`] also for what is no whole page.
    pub fn map_part(fd: OwnedFd, offset: u64, len: usize) -> Result<Self, RegionError> {
        Self::check_part(fd.as_fd(), offset, len)?;
        let failed = |source| RegionError::Map { len, source };
        let base = map_shared_at(fd.as_fd(), offset, len, Protection::ReadWrite.flags()).map_err(failed)?;
        let mapping = Arc::new(Mapping::foreign(base, len, Guard::over(base.as_ptr().addr(), len)));
        // SAFETY: `len` bytes of what was mapped, readable and writable, for as long as the mapping lives; guarded.
        let window = unsafe { Window::over(base, len, true, mapping) };
        Ok(Self { window, fd: None, len })
    }

    /// As [`Region::map_part`], for parts of several files, each behind the one before.
    ///
    /// # Errors
    /// The same.
    pub fn map_parts<F: AsFd>(parts: &[(F, u64, usize)]) -> Result<Self, RegionError> {
        let (mut len, mut is_huge) = (0_usize, !parts.is_empty());
        for (fd, offset, part) in parts {
            is_huge &= Self::check_part(fd.as_fd(), *offset, *part)? > PAGE;
            len = len.checked_add(*part).ok_or(RegionError::Size(*part))?;
        }
        let failed = |source| RegionError::Map { len, source };
        // SAFETY: reserves fresh addresses; nothing of this process is replaced.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE) };
        let base = base.map_err(failed)?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(failed(rustix::io::Errno::NOMEM))?;
        // From here on the mapping unmaps itself on every way out.
        let mut mapping = Mapping::new(base, len, Backing::Mmap);
        mapping.is_huge = is_huge;
        let (prot, flags) = (Protection::ReadWrite.flags(), MapFlags::SHARED | MapFlags::FIXED);
        let mut at = 0;
        for (fd, offset, part) in parts {
            // SAFETY: inside the range reserved above, in a part that nothing else uses: `at` grows by the length of each, and all
            // together are `len`.
            unsafe { mmap(base.as_ptr().add(at).cast(), *part, prot, flags, fd, *offset) }.map_err(failed)?;
            mapping.guards.push(Guard::over(base.as_ptr().addr() + at, *part));
            at += part;
        }
        // SAFETY: `len` bytes without a gap, readable and writable, for as long as the mapping lives; all of it is guarded.
        let window = unsafe { Window::over(base, len, true, Arc::new(mapping)) };
        Ok(Self { window, fd: None, len })
    }

    /// Maps the first `len` bytes of a map of BPF that was made to be mapped (`BPF_F_MMAPABLE`). Such a map never shrinks, and keeps its
    /// memory as long as this mapping is there.
    ///
    /// # Errors
    /// [`RegionError::NotInMemory`] when the file is no such map, [`RegionError::Size`], [`RegionError::Map`].
    pub fn map_bpf(fd: OwnedFd, len: usize, protection: Protection) -> Result<Self, RegionError> {
        let whole = len.checked_next_multiple_of(PAGE).filter(|_| len > 0).ok_or(RegionError::Size(len))?;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let name = rustix::fs::readlink(path, Vec::new()).map_err(|source| RegionError::Map { len, source })?;
        if name.as_bytes() != b"anon_inode:bpf-map" {
            return Err(RegionError::NotInMemory);
        }
        let base =
            map_shared(fd.as_fd(), whole, protection.flags()).map_err(|source| RegionError::Map { len, source })?;
        let mapping = Arc::new(Mapping::new(base, whole, Backing::Mmap));
        // SAFETY: `len` of the `whole` bytes that were mapped with this protection, for as long as the mapping lives. The kernel refuses to map
        // more than the map has, and neither shrinks a map nor takes its pages away.
        let window = unsafe { Window::over(base, len, protection == Protection::ReadWrite, mapping) };
        Ok(Self { window, fd: Some(Arc::new(fd)), len })
    }

    /// Maps a part of a PCI device that VFIO has: `len` bytes from `offset` of its file on, whole pages both. When the device is taken away, what is read is
    /// zero, as with [`Region::map_guarded`].
    ///
    /// # Errors
    /// [`RegionError::NotDevice`], [`RegionError::Size`], [`RegionError::Map`].
    pub fn map_vfio(fd: OwnedFd, offset: u64, len: usize) -> Result<Self, RegionError> {
        let failed = |source| RegionError::Map { len, source };
        if len == 0 || !len.is_multiple_of(PAGE) || !offset.is_multiple_of(PAGE as u64) {
            return Err(RegionError::Size(len));
        }
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        if rustix::fs::readlink(path, Vec::new()).map_err(failed)?.as_bytes() != b"anon_inode:[vfio-device]" {
            return Err(RegionError::NotDevice);
        }
        let base = map_shared_at(fd.as_fd(), offset, len, Protection::ReadWrite.flags()).map_err(failed)?;
        let mapping = Arc::new(Mapping::foreign(base, len, Guard::over(base.as_ptr().addr(), len)));
        // SAFETY: `len` bytes that were mapped readable and writable, for as long as the mapping lives; the kernel refuses to map more than the device
        // has, and what it takes away while they are mapped is replaced by the guard.
        let window = unsafe { Window::over(base, len, true, mapping) };
        Ok(Self { window, fd: None, len })
    }

    /// Whether a part is whole pages of a file that has them and cannot shrink, and how large these are. Whole huge pages, if it has such:
    /// the system would map all of one, over what is behind it.
    fn check_part(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<usize, RegionError> {
        // Before anything is asked of a file: only one in memory has seals, and answers at once.
        Self::check(fd, 0)?;
        let size = page_of(fd, len)?;
        let page = size as u64;
        let end = offset.checked_add(len as u64).filter(|_| len > 0 && offset.is_multiple_of(page));
        let end = end.filter(|end| end.is_multiple_of(page)).ok_or(RegionError::Size(len))?;
        Self::check(fd, usize::try_from(end).map_err(|_| RegionError::Size(len))?)?;
        Ok(size)
    }

    fn map_fd_guarded(fd: Arc<OwnedFd>, len: usize, protection: Protection) -> Result<Self, RegionError> {
        let failed = |source| RegionError::Map { len, source };
        let whole = whole_pages(fd.as_fd(), len)?;
        let base = map_shared(fd.as_fd(), whole, protection.flags()).map_err(failed)?;
        let mut mapping = Mapping::foreign(base, whole, Guard::over(base.as_ptr().addr(), whole));
        mapping.is_huge = page_of(fd.as_fd(), len)? > PAGE;
        let mapping = Arc::new(mapping);
        // SAFETY: `len` bytes of what was mapped, with this protection, for as long as the mapping lives; guarded.
        let window = unsafe { Window::over(base, len, protection == Protection::ReadWrite, mapping) };
        Ok(Self { window, fd: Some(fd), len })
    }

    /// Whether a file has `len` bytes and cannot shrink.
    fn check(fd: BorrowedFd<'_>, len: usize) -> Result<(), RegionError> {
        // Sealing may be refused because it is done already; what counts is what the seals are afterwards.
        let _ = fcntl_add_seals(fd, SealFlags::SHRINK);
        if !fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Err(RegionError::NotSealed);
        }
        let has = fstat(fd).map_err(|source| RegionError::Map { len, source })?.st_size as u64;
        if has < len as u64 { Err(RegionError::TooSmall { has, needs: len as u64 }) } else { Ok(()) }
    }

    fn map_fd(fd: Arc<OwnedFd>, len: usize, protection: Protection, doubled: bool) -> Result<Self, RegionError> {
        let failed = |source| RegionError::Map { len, source };
        let total = if doubled { len.checked_mul(2).ok_or(RegionError::Size(len))? } else { len };
        let writable = protection == Protection::ReadWrite;
        let prot = protection.flags();
        let is_huge = page_of(fd.as_fd(), len)? > PAGE;
        let base = if doubled {
            // SAFETY: reserves fresh addresses; nothing of this process is replaced.
            unsafe { mmap_anonymous(core::ptr::null_mut(), total, ProtFlags::empty(), MapFlags::PRIVATE) }
                .map_err(failed)?
        } else {
            map_shared(fd.as_fd(), total, protection.flags()).map_err(failed)?.as_ptr().cast()
        };
        // From here on the mapping unmaps itself on every way out.
        let mapping = Arc::new(Mapping {
            base: NonNull::new(base.cast()).ok_or(RegionError::Map { len, source: rustix::io::Errno::NOMEM })?,
            len: total,
            backing: Backing::Mmap,
            guards: Vec::new(),
            is_huge,
        });
        if doubled {
            for half in [0, len] {
                // SAFETY: both halves lie inside the range reserved above, which nothing else uses yet.
                unsafe {
                    mmap(base.cast::<u8>().add(half).cast(), len, prot, MapFlags::SHARED | MapFlags::FIXED, &fd, 0)
                }
                .map_err(failed)?;
            }
        }
        // SAFETY: the mapping has `total` bytes with this protection for as long as it lives.
        let window = unsafe { Window::over(mapping.base, total, writable, mapping.clone()) };
        Ok(Self { window, fd: Some(fd), len })
    }

    /// Maps regions once more, each at the first page behind the one before: for a kernel that takes one range of addresses
    /// only. Returns all of it, which may be written, and where each region begins in it. What stands on huge pages has to be
    /// first. Whose files they are does not matter: where one loses its pages, zeros are read, as with
    /// [`Region::map_guarded`].
    ///
    /// # Errors
    /// [`RegionError::NoFile`] when the file of one of them is closed, [`RegionError::Map`].
    pub fn adjoin(regions: &[&Region]) -> Result<(Window, Vec<usize>), RegionError> {
        let rooms = regions.iter().map(|region| whole_pages(region.fd().ok_or(RegionError::NoFile)?, region.len));
        let rooms = rooms.collect::<Result<Vec<usize>, RegionError>>()?;
        let total: usize = rooms.iter().sum();
        let failed = |source| RegionError::Map { len: total, source };
        // One huge page more, because the first has to begin at one.
        let reserved = total + HUGE_PAGE;
        // SAFETY: reserves fresh addresses; nothing of this process is replaced.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), reserved, ProtFlags::empty(), MapFlags::PRIVATE) }
            .map_err(failed)?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(failed(rustix::io::Errno::NOMEM))?;
        // From here on the mapping unmaps itself on every way out.
        let mut mapping = Mapping::new(base, reserved, Backing::Mmap);
        // SAFETY: less than the huge page that was reserved beyond `total`.
        let first = unsafe { base.add(base.as_ptr().align_offset(HUGE_PAGE)) };
        let (prot, flags) = (Protection::ReadWrite.flags(), MapFlags::SHARED | MapFlags::FIXED);
        let (mut starts, mut at) = (Vec::new(), 0);
        for (region, room) in regions.iter().zip(rooms) {
            let fd = region.fd().ok_or(RegionError::NoFile)?;
            // SAFETY: inside the range reserved above, in a part that nothing else uses: `at` grows by the room of each
            // region, and all rooms together are `total`.
            unsafe { mmap(first.as_ptr().add(at).cast(), room, prot, flags, fd, 0) }.map_err(failed)?;
            mapping.guards.push(Guard::over(first.as_ptr().addr() + at, room));
            starts.push(at);
            at += room;
        }
        // SAFETY: a file that ends within a page is mapped up to the end of that page, so the mapping has `total` bytes
        // without a gap, with this protection, for as long as it lives; all of it is guarded.
        let window = unsafe { Window::over(first, total, true, Arc::new(mapping)) };
        Ok((window, starts))
    }

    /// `len` bytes of zeroed private memory, aligned to a page: for tests, and for tools that cannot follow `mmap`.
    pub fn heap(len: usize) -> Self {
        let layout = alloc::Layout::from_size_align(len.max(1), 4096).expect("length of a test region");
        // SAFETY: the layout has a size of at least one byte.
        let base = unsafe { alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).unwrap_or_else(|| alloc::handle_alloc_error(layout));
        let mapping = Arc::new(Mapping::new(base, len, Backing::Heap(layout)));
        // SAFETY: the allocation has `len` bytes and lives as long as the mapping.
        let window = unsafe { Window::over(base, len, true, mapping) };
        Self { window, fd: None, len }
    }

    /// Forbids every further writable mapping and every `write` to the file; mappings that exist keep working. Done
    /// before a region is handed to readers who must not disturb each other (Linux 5.1).
    ///
    /// # Errors
    /// [`RegionError::Allocate`] with what the system said.
    pub fn seal_future_writes(&self) -> Result<(), RegionError> {
        match &self.fd {
            Some(fd) => fcntl_add_seals(fd, SealFlags::FUTURE_WRITE)
                .map_err(|source| RegionError::Allocate { len: self.len, source }),
            None => Ok(()),
        }
    }

    /// Everything of this region; twice its length when it is mapped twice.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// A part of this region.
    ///
    /// # Errors
    /// [`OutOfRange`] when the part is not inside.
    pub fn part(&self, offset: usize, len: usize) -> Result<Window, OutOfRange> {
        self.window.part(offset, len)
    }

    /// Bytes of memory, counted once.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Closes the file and keeps the memory: whoever hands it to nobody needs no fd for it.
    #[must_use]
    pub fn without_fd(self) -> Self {
        Self { fd: None, ..self }
    }

    /// Closes the file and keeps the memory, once it has been handed to all who will ever get it.
    pub fn close_fd(&mut self) {
        self.fd = None;
    }

    /// The file behind the region, to hand it to another process; `None` for [`Region::heap`], and once it is closed.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(|fd| fd.as_fd())
    }
}

/// The size of `len` bytes of a file in whole pages, which can be huge ones: anything else could not be replaced.
fn whole_pages(fd: BorrowedFd<'_>, len: usize) -> Result<usize, RegionError> {
    len.checked_next_multiple_of(page_of(fd, len)?).ok_or(RegionError::Size(len))
}

/// The size of the pages of a file, of which `len` bytes are to be mapped: huge ones only where the file has no others.
fn page_of(fd: BorrowedFd<'_>, len: usize) -> Result<usize, RegionError> {
    const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
    let found = fstatfs(fd).map_err(|source| RegionError::Map { len, source })?;
    let is_huge = found.f_type as u64 == HUGETLBFS_MAGIC;
    Ok(if is_huge { usize::try_from(found.f_bsize).unwrap_or(0).max(PAGE) } else { PAGE })
}

const HUGE_PAGE: usize = 2 << 20;
/// The smallest page there is; where pages are larger, `mmap` refuses what is not aligned to them.
const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::dup;
    use rustix::mm::munmap;

    #[test]
    fn two_mappings_of_one_region_show_the_same_bytes() {
        let here = Region::allocate(8192, Pages::Ordinary).unwrap();
        let fd = dup(here.fd().unwrap()).unwrap();
        let there = Region::map(fd, 8192, Protection::Read, false).unwrap();
        here.window().span_mut(4090, 6).unwrap().write_from(b"packet");
        assert_eq!(there.window().slice(4090, 6).unwrap(), b"packet");
        assert!(there.window().span_mut(0, 1).is_none(), "a read-only mapping gives out no writable view");
    }

    #[test]
    fn regions_stand_behind_each_other() {
        let (one, two) =
            (Region::allocate(5000, Pages::Ordinary).unwrap(), Region::allocate(4096, Pages::Ordinary).unwrap());
        let (both, starts) = Region::adjoin(&[&one, &two]).unwrap();
        assert_eq!((starts, both.len()), (vec![0, 8192], 3 * 4096));
        both.span_mut(4096, 6).unwrap().write_from(b"packet");
        both.span_mut(8192, 4).unwrap().write_from(b"next");
        assert_eq!(one.window().slice(4096, 6).unwrap(), b"packet");
        assert_eq!(two.window().slice(0, 4).unwrap(), b"next");
        drop((one, two));
        assert_eq!(both.slice(8192, 4).unwrap(), b"next", "it stays as long as somebody sees it");
        let closed = Region::allocate(4096, Pages::Ordinary).unwrap().without_fd();
        assert!(matches!(Region::adjoin(&[&closed]), Err(RegionError::NoFile)));
    }

    #[test]
    fn parts_of_files_stand_behind_each_other() {
        let file = |byte: u8| {
            let region = Region::allocate(3 * 4096, Pages::Ordinary).unwrap();
            region.window().span_mut(0, 3 * 4096).unwrap().write_from(&[byte; 3 * 4096]);
            region.fd().unwrap().try_clone_to_owned().unwrap()
        };
        let both = Region::map_parts(&[(file(1), 4096, 8192), (file(2), 8192, 4096)]).unwrap();
        assert!(!crate::Place::window(both.window()).is_huge());
        let mut found = [0; 3 * 4096];
        both.window().span(0, found.len()).unwrap().read_into(&mut found);
        assert!(found[..8192].iter().all(|byte| *byte == 1) && found[8192..].iter().all(|byte| *byte == 2));
        for (offset, len) in [(1, 4096), (0, 4095), (0, 0), (8192, 8192), (u64::MAX - 4095, 4096)] {
            assert!(Region::map_parts(&[(file(1), 0, 4096), (file(2), offset, len)]).is_err(), "{offset} {len}");
        }
        assert!(Region::map_parts(&[(file(1), 0, 4096), (file(2), 0, usize::MAX & !4095)]).is_err());
    }

    #[test]
    fn a_part_of_a_huge_page_is_no_part() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        // A file takes no page before it is mapped.
        let Ok(huge) = memfd_create("huge", flags) else { return eprintln!("skipped: no huge pages in this kernel") };
        ftruncate(&huge, HUGE_PAGE as u64).unwrap();
        let ordinary = Region::allocate(HUGE_PAGE, Pages::Ordinary).unwrap();
        let first = || ordinary.fd().unwrap().try_clone_to_owned().unwrap();
        let parts = [(first(), 0, HUGE_PAGE), (huge, 0, PAGE)];
        assert!(matches!(Region::map_parts(&parts), Err(RegionError::Size(PAGE))));
    }

    #[test]
    fn what_a_file_behind_others_loses_reads_as_zero() {
        let own = Region::allocate(4096, Pages::Ordinary).unwrap();
        own.window().span_mut(0, 4).unwrap().write_from(b"ours");
        let file = memfd_create("theirs", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        let cut = dup(&file).unwrap();
        // As a file on huge pages whose pages are gone: no file that cannot shrink does the like everywhere.
        let theirs = Region::map_fd(file.into(), 8192, Protection::ReadWrite, false).unwrap();
        let (both, starts) = Region::adjoin(&[&theirs, &own]).unwrap();
        both.span_mut(5000, 6).unwrap().write_from(b"packet");
        ftruncate(&cut, 0).unwrap();
        assert_eq!(both.slice(5000, 6).unwrap(), [0; 6], "and this process lives");
        both.span_mut(5000, 6).unwrap().write_from(b"unseen");
        assert_eq!(both.slice(starts[1], 4).unwrap(), b"ours", "only what was lost is replaced");
        own.window().span_mut(0, 4).unwrap().write_from(b"more");
        assert_eq!(both.slice(starts[1], 4).unwrap(), b"more");
    }

    #[test]
    fn a_doubled_region_wraps() {
        let region = Region::allocate_doubled(4096).unwrap();
        region.window().span_mut(4094, 4).unwrap().write_from(b"wrap");
        assert_eq!(region.window().slice(0, 2).unwrap(), b"ap");
        assert_eq!(region.window().slice(4094, 4).unwrap(), b"wrap");
        assert!(matches!(Region::allocate_doubled(100), Err(RegionError::Size(100))));
    }

    #[test]
    fn a_file_that_can_shrink_is_refused() {
        let file = memfd_create("can-shrink", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        assert!(matches!(Region::map(file, 4096, Protection::ReadWrite, false), Err(RegionError::NotSealed)));
    }

    #[test]
    fn a_hole_where_no_huge_page_is_left_reads_as_zero() {
        use rustix::fs::{FallocateFlags, fallocate};
        const WHERE: &str = "/proc/sys/vm/nr_hugepages_mempolicy";
        let huge = || {
            let fd =
                memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB).unwrap();
            ftruncate(&fd, HUGE_PAGE as u64).unwrap();
            fd
        };
        let free = || {
            let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
            let line = meminfo.lines().find(|line| line.starts_with("HugePages_Free:"));
            line.and_then(|line| line.split_whitespace().nth(1)).map_or(0, |number| number.parse().unwrap())
        };
        let before: u64 = std::fs::read_to_string(WHERE).map_or(0, |number| number.trim().parse().unwrap_or(0));
        let found = free();
        if found == 0 && std::fs::write(WHERE, (before + 1).to_string()).is_err() || free() == 0 {
            println!("skipped: no huge page can be had");
            return;
        }
        let mapped = || Region::map_guarded(huge(), HUGE_PAGE, Protection::ReadWrite).unwrap();
        let ours = || Region::allocate_guarded(HUGE_PAGE, Pages::HugeIfAny).unwrap();
        for region in [&mapped as &dyn Fn() -> Region, &ours] {
            let region = region();
            assert!(crate::Place::window(region.window()).is_huge());
            let theirs = dup(region.fd().unwrap()).unwrap();
            region.window().span_mut(100, 6).unwrap().write_from(b"packet");
            fallocate(&theirs, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, HUGE_PAGE as u64).unwrap();
            // Whatever is free is taken by others.
            let others: Vec<_> = (0..free())
                .map_while(|_| Region::map(huge(), HUGE_PAGE, Protection::ReadWrite, false).ok())
                .inspect(|other| assert_eq!(other.window().span_mut(0, 1).unwrap().write_from(b"x"), 1))
                .collect();
            assert_eq!(region.window().slice(100, 6).unwrap(), [0; 6]);
            region.window().span_mut(100, 6).unwrap().write_from(b"unseen");
            drop((others, region));
        }
        if found == 0 {
            std::fs::write(WHERE, before.to_string()).unwrap();
        }
    }

    #[test]
    fn what_is_no_device_of_vfio_is_not_mapped_as_one() {
        let zero = || std::fs::File::options().read(true).write(true).open("/dev/zero").unwrap().into();
        assert!(matches!(Region::map_vfio(zero(), 0, PAGE), Err(RegionError::NotDevice)));
        assert!(matches!(Region::map_vfio(zero(), 1, PAGE), Err(RegionError::Size(PAGE))));
        assert!(matches!(Region::map_vfio(zero(), 0, 0), Err(RegionError::Size(0))));
    }

    #[test]
    fn a_file_that_is_too_small_is_refused() {
        let region = Region::allocate(4096, Pages::Ordinary).unwrap();
        let fd = dup(region.fd().unwrap()).unwrap();
        let error = Region::map(fd, 8192, Protection::ReadWrite, false).err().unwrap();
        assert!(matches!(error, RegionError::TooSmall { has: 4096, needs: 8192 }), "{error}");
    }

    #[test]
    fn a_sealed_region_cannot_be_mapped_writable_any_more() {
        let region = Region::allocate(4096, Pages::Ordinary).unwrap();
        region.seal_future_writes().unwrap();
        let fd = || dup(region.fd().unwrap()).unwrap();
        assert!(matches!(Region::map(fd(), 4096, Protection::ReadWrite, false), Err(RegionError::Map { .. })));
        assert!(Region::map(fd(), 4096, Protection::Read, false).is_ok());
        region.window().span_mut(0, 1).unwrap().write_from(b"x");
    }

    /// Reserves `pages` pages of which each has rights of its own, and gives their address.
    fn checkered(pages: &[ProtFlags]) -> u64 {
        // SAFETY: fresh addresses; nothing of this process is replaced.
        let base = unsafe {
            mmap_anonymous(core::ptr::null_mut(), pages.len() * PAGE, ProtFlags::empty(), MapFlags::PRIVATE).unwrap()
        };
        for (page, &rights) in pages.iter().enumerate() {
            // SAFETY: one page of those reserved above, which nobody uses yet.
            unsafe {
                let at = base.cast::<u8>().add(page * PAGE).cast();
                mmap_anonymous(at, PAGE, rights, MapFlags::PRIVATE | MapFlags::FIXED).unwrap();
            }
        }
        base.expose_provenance() as u64
    }

    #[test]
    fn a_domain_of_the_own_process_sees_the_rights_of_every_page() {
        use crate::{Domain, Iotlb, Iova};
        const SIZE: u64 = PAGE as u64;
        let (none, read, both) = (ProtFlags::empty(), ProtFlags::READ, ProtFlags::READ | ProtFlags::WRITE);
        let at = checkered(&[none, read, both, both, none]);
        let domain = Arc::new(Domain::own_process());
        let iotlb = Iotlb::new(domain.clone());
        let page = |page: u64, offset: u64| Iova::new(at + page * SIZE + offset);
        assert!(iotlb.read(page(0, 0), 1).is_err(), "PROT_NONE");
        assert!(iotlb.read(page(0, SIZE - 4), 8).is_err(), "begins in PROT_NONE");
        assert!(iotlb.read(page(3, SIZE - 4), 8).is_err(), "ends in PROT_NONE");
        assert!(iotlb.write(page(3, SIZE - 4), 8).is_err(), "ends in PROT_NONE");
        assert!(iotlb.write(page(1, 0), 1).is_err(), "read-only");
        assert!(iotlb.write(page(1, SIZE - 4), 8).is_err(), "begins read-only");
        assert_eq!(domain.faults(), 6);
        assert_eq!(iotlb.write(page(2, SIZE - 4), 8).unwrap().write_from(b"straddle"), 8, "two pages of one kind");
        let mut bytes = [0; 8];
        assert_eq!(iotlb.read(page(2, SIZE - 4), 8).unwrap().read_into(&mut bytes), 8);
        assert_eq!(&bytes, b"straddle");
        assert!(iotlb.read(page(1, SIZE - 4), 8).is_ok(), "both can be read");
        assert!(iotlb.write(page(2, 0), 8).is_ok(), "and what is writable still is");
        assert!(iotlb.read(page(1, 0), 3 * PAGE).is_ok());
        assert!(iotlb.read(page(1, 0), 3 * PAGE + 1).is_err());
        assert_eq!(domain.faults(), 7);
        // SAFETY: exactly what `checkered` mapped; no view is used any more.
        unsafe { munmap(core::ptr::with_exposed_provenance_mut(at as usize), 5 * PAGE).unwrap() };
        let later = Iotlb::new(Arc::new(Domain::own_process()));
        assert!(later.read(page(2, 0), 1).is_err(), "a domain that comes later sees what is mapped then");
    }
}
