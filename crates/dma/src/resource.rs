//! Memory and registers of a PCI device, by the files of sysfs that map them. May use `unsafe`.

use crate::guard::Guard;
use crate::mapping::{Mapping, map_shared};
use crate::{Protection, RegionError, Window};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, fstat, fstatfs};
use std::sync::Arc;

/// Where there are such files.
const SYSFS: u64 = 0x6265_6572;

/// A resource of a device, which may be unplugged: what is read then is zero.
pub struct PciResource {
    window: Window,
}

impl PciResource {
    /// Maps the first `len` bytes, of whole pages, of a file `resource0` to `resource5` of a PCI device. A resource that is shorter than a page begins
    /// in it where its address says, and what else is in the page is mapped, too.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::NotInMemory`] when it is no file of sysfs, [`RegionError::Map`].
    pub fn map(fd: OwnedFd, len: usize) -> Result<Self, RegionError> {
        let failed = |source| RegionError::Map { len, source };
        let whole = len.checked_next_multiple_of(4096).filter(|_| len > 0).ok_or(RegionError::Size(len))?;
        let is_file = FileType::from_raw_mode(fstat(&fd).map_err(failed)?.st_mode) == FileType::RegularFile;
        if !is_file || fstatfs(&fd).map_err(failed)?.f_type as u64 != SYSFS {
            return Err(RegionError::NotInMemory);
        }
        // The kernel refuses to map more than the pages of the resource.
        let base = map_shared(fd.as_fd(), whole, Protection::ReadWrite.flags()).map_err(failed)?;
        let guard = Guard::over(base.as_ptr().addr(), whole);
        let mapping = Arc::new(Mapping::foreign(base, whole, guard));
        // SAFETY: `len` of the `whole` bytes that were mapped readable and writable, for as long as the mapping lives; guarded against the end of the
        // device. What a load of a register does is the device's affair, and no affair of the memory of this process.
        let window = unsafe { Window::over(base, len, true, mapping) };
        Ok(Self { window })
    }

    /// The memory, or registers.
    pub fn window(&self) -> &Window {
        &self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn what_is_no_resource_of_a_device_is_refused() {
        let map = |path: &str, len| PciResource::map(File::open(path).unwrap().into(), len).err().unwrap();
        assert!(matches!(map("/proc/self/exe", 4096), RegionError::NotInMemory));
        assert!(matches!(map("/sys", 4096), RegionError::NotInMemory));
        assert!(matches!(map("/dev/null", 4096), RegionError::NotInMemory));
        assert!(matches!(map("/sys/kernel/mm/transparent_hugepage/enabled", 0), RegionError::Size(0)));
        // A file of sysfs that nothing can be mapped of.
        assert!(matches!(map("/sys/kernel/uevent_seqnum", 4096), RegionError::Map { .. }));
    }
}
