//! Files behind shared memory.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::fs::{fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, major, memfd_create, minor};
use rustix::io::Errno;

/// Where one adoption begins in the file, and the next. So far apart that a mapping which the program lets grow
/// (`mremap`, as `realloc` does) finds untouched room behind it, and never the memory of another adoption.
pub(super) const EXTENT: u64 = 1 << 40;
/// The file is sparse, and as long as it will ever be.
const LENGTH: u64 = 1 << 62;

/// Which file it is: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub(super) device: (u64, u64),
    pub(super) inode: u64,
}

/// A file behind memory of this process, to be handed to another one.
#[derive(Debug)]
pub struct SharedFile {
    fd: OwnedFd,
    identity: Identity,
    can_shrink: bool,
}

impl SharedFile {
    /// A descriptor for it. Whoever gets it can map every byte of the file, which has all that this process has adopted.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether it can lose its pages under those who map it: then they get SIGBUS, against which they need a guard
    /// ([`Region::map_guarded`](crate::Region::map_guarded)). Never so for adopted memory.
    pub fn can_shrink(&self) -> bool {
        self.can_shrink
    }

    /// Numbers of its device and inode: the same for all pieces of one file, and for no other.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// A new file for adopted memory.
    pub(super) fn new() -> Result<Self, Errno> {
        let fd = memfd_create("millrace-adopted", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, LENGTH)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::of(fd)
    }

    pub(super) fn of(fd: OwnedFd) -> Result<Self, Errno> {
        let stat = fstat(&fd)?;
        let device = (u64::from(major(stat.st_dev)), u64::from(minor(stat.st_dev)));
        // What has no seals can shrink.
        let can_shrink = !fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        Ok(Self { fd, identity: Identity { device, inode: stat.st_ino }, can_shrink })
    }

    /// Gets the memory for some bytes, so that no later copy to them can fail for want of it.
    pub(super) fn reserve(&self, offset: u64, len: u64) -> Result<(), Errno> {
        fallocate(&self.fd, FallocateFlags::empty(), offset, len)
    }

    /// Frees the memory of some bytes, which are zeros then.
    pub(super) fn free(&self, offset: u64, len: u64) -> Result<(), Errno> {
        fallocate(&self.fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
    }
}

/// A descriptor of this process for the file with this identity that can be written.
pub(super) fn find(identity: Identity, first: u64, end: u64) -> Option<SharedFile> {
    use rustix::fs::{Mode, OFlags, open};
    // Opened anew: what the program does to its own descriptor afterwards does not matter.
    let reopen = |path: &std::path::Path| {
        let fd = open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).ok()?;
        SharedFile::of(fd).ok().filter(|file| file.identity == identity)
    };
    let is_it = |path: &std::path::Path| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).is_ok_and(|meta| meta.ino() == identity.inode && meta.is_file())
    };
    let descriptors = std::fs::read_dir("/proc/self/fd").ok()?;
    let paths = descriptors.flatten().map(|entry| entry.path());
    let open_descriptor = paths.filter(|path| is_it(path)).find_map(|path| reopen(&path));
    // Where no descriptor is open any more, the mapping itself leads to the file for those who may
    // (CAP_CHECKPOINT_RESTORE).
    open_descriptor.or_else(|| reopen(format!("/proc/self/map_files/{first:x}-{end:x}").as_ref()))
}
