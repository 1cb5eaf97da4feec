//! Pages of a device: memory of another domain of a hypervisor, which a driver of the system maps. May use `unsafe`.

use crate::guard::Guard;
use crate::mapping::{Mapping, map_shared_at};
use crate::{Protection, RegionError, Window};
use rustix::fd::AsFd;
use rustix::fs::{FileType, fstat};
use std::sync::Arc;

impl Window {
    /// Maps `len` bytes of a device from `offset` on, both whole pages, readable and writable.
    ///
    /// The driver says whose pages these are. Should it take some away while they are mapped, what is read then is zero, as in a
    /// [`ForeignRegion`](crate::ForeignRegion).
    ///
    /// # Errors
    /// [`RegionError::NotDevice`]; [`RegionError::Size`] for what is no whole page; [`RegionError::Map`].
    pub fn of_device(fd: impl AsFd, offset: u64, len: usize) -> Result<Self, RegionError> {
        const PAGE: usize = 4096;
        let failed = |source| RegionError::Map { len, source };
        let file = fstat(&fd).map_err(failed)?;
        if FileType::from_raw_mode(file.st_mode) != FileType::CharacterDevice {
            return Err(RegionError::NotDevice);
        }
        if len == 0 || !len.is_multiple_of(PAGE) || !offset.is_multiple_of(PAGE as u64) {
            return Err(RegionError::Size(len));
        }
        let base = map_shared_at(fd.as_fd(), offset, len, Protection::ReadWrite.flags()).map_err(failed)?;
        let mapping = Arc::new(Mapping::foreign(base, len, Guard::over(base.as_ptr().addr(), len)));
        // SAFETY: mapped readable and writable just now for as long as the mapping lives, and guarded.
        Ok(unsafe { Self::over(base, len, true, mapping) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_device_is_mapped_and_nothing_else_is() {
        // Shared pages of this device are memory like any other.
        let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
        let window = Window::of_device(&zero, 0, 8192).unwrap();
        window.span_mut(5000, 4).unwrap().write_from(b"page");
        assert_eq!(window.slice(4998, 8).unwrap(), b"\0\0page\0\0");
        assert!(matches!(Window::of_device(&zero, 0, 100), Err(RegionError::Size(100))));
        assert!(matches!(Window::of_device(&zero, 100, 4096), Err(RegionError::Size(4096))));
        let file = File::open("/proc/self/exe").unwrap();
        assert!(matches!(Window::of_device(&file, 0, 4096), Err(RegionError::NotDevice)));
    }
}
