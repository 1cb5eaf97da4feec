//! What keeps memory mapped. May use `unsafe`.

use crate::guard::Guard;
use core::ptr::NonNull;
use rustix::fd::BorrowedFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::alloc;

/// Bytes that are unmapped at once. As long as that takes, no other thread of this process maps or unmaps anything.
const PIECE: usize = 16 << 20;

/// What keeps memory mapped. Dropped with the last view of it.
pub(crate) struct Mapping {
    pub(crate) base: NonNull<u8>,
    pub(crate) len: usize,
    pub(crate) backing: Backing,
    /// Over what may lose its pages.
    pub(crate) guards: Vec<&'static Guard>,
    /// All of it is of files that have huge pages only.
    pub(crate) is_huge: bool,
}

/// How the memory came to be mapped, and so how it is unmapped.
pub(crate) enum Backing {
    Mmap,
    Heap(alloc::Layout),
    /// Not ours: mapped and unmapped by others in this process.
    Elsewhere,
}

// SAFETY: a mapping is a range of addresses; what is done with the bytes is decided by the views in access.rs, which
// use atomic or bytewise access only.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives no access to the bytes at all.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guards.iter().for_each(|guard| guard.release());
        match self.backing {
            Backing::Mmap => {
                for (at, len) in pieces(self.len) {
                    // SAFETY: a part of what mmap gave, which is unmapped once, and no view outlives the last Arc<Mapping>.
                    let unmapped = unsafe { munmap(self.base.as_ptr().add(at).cast(), len) };
                    if unmapped.is_err() {
                        // Of huge pages of 1 GiB there are no such pieces.
                        // SAFETY: as above, all that is left. An error would mean that it was never mapped; there is nothing to
                        // be done about it here.
                        let _ = unsafe { munmap(self.base.as_ptr().add(at).cast(), self.len - at) };
                        break;
                    }
                }
            }
            Backing::Heap(layout) => {
                // SAFETY: allocated in `Region::heap` with this very layout.
                unsafe { alloc::dealloc(self.base.as_ptr(), layout) };
            }
            Backing::Elsewhere => {}
        }
    }
}

impl Mapping {
    /// Of ordinary pages, which nobody takes away.
    pub(crate) fn new(base: NonNull<u8>, len: usize, backing: Backing) -> Self {
        Self { base, len, backing, guards: Vec::new(), is_huge: false }
    }

    /// The mapping that `guard` guards, to be unmapped with its last view.
    pub(crate) fn foreign(base: NonNull<u8>, len: usize, guard: &'static Guard) -> Self {
        Self { base, len, backing: Backing::Mmap, guards: vec![guard], is_huge: false }
    }
}

/// Places and lengths of what is unmapped one after the other.
fn pieces(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(PIECE).map(move |at| (at, PIECE.min(len - at)))
}

/// Maps the first `len` bytes of a file at fresh addresses.
pub(crate) fn map_shared(fd: BorrowedFd<'_>, len: usize, rights: ProtFlags) -> rustix::io::Result<NonNull<u8>> {
    map_shared_at(fd, 0, len, rights)
}

/// Maps `len` bytes of a file from `offset` on, whole pages, at fresh addresses.
pub(crate) fn map_shared_at(
    fd: BorrowedFd<'_>,
    offset: u64,
    len: usize,
    rights: ProtFlags,
) -> rustix::io::Result<NonNull<u8>> {
    // SAFETY: fresh addresses; nothing of this process is replaced.
    let base = unsafe { mmap(core::ptr::null_mut(), len, rights, MapFlags::SHARED, fd, offset)? };
    NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pages, Region};

    #[test]
    fn much_is_unmapped_in_pieces_and_all_of_it() {
        for len in [4096, PIECE, PIECE + 4096, 5 * PIECE] {
            let all: Vec<_> = pieces(len).collect();
            assert!(all.iter().all(|(at, len)| *len <= PIECE && at.is_multiple_of(PIECE)));
            assert_eq!(all.iter().map(|(_, len)| len).sum::<usize>(), len);
        }
        let len = 2 * PIECE + 8192;
        let region = Region::allocate(len, Pages::Ordinary).unwrap();
        let inode = rustix::fs::fstat(region.fd().unwrap()).unwrap().st_ino;
        let mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode.to_string())).count()
        };
        assert!(mapped() > 0);
        drop(region);
        assert_eq!(mapped(), 0);
    }
}
