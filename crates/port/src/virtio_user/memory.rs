//! The memory that a device is told of.

use millrace_dma::{ForeignRegion, Pages, Region, RegionError, Window, foreign_cuts};
use millrace_ring::virtio::driver::STRIDE;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Memory that both sides map.
///
/// It is guarded as memory of a stranger is: who has its file can take pages out of it, and huge ones may not be there any
/// more when they are needed again.
pub struct Shared {
    file: OwnedFd,
    memory: ForeignRegion,
    /// [`foreign_cuts`] when nothing had been cut yet.
    cuts: u64,
}

impl Shared {
    /// At least `len` bytes of zeros, on huge pages if there are any.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn allocate(len: usize) -> Result<Self, RegionError> {
        let region = Region::allocate(len, Pages::HugeIfAny)?;
        let failed = |source| RegionError::Map { len, source };
        let fd = region.fd().ok_or(RegionError::NotInMemory)?;
        let file = rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(failed)?;
        Self::of_file(file, region.len())
    }

    /// The first `len` bytes of a file in memory, for both sides.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn of_file(file: OwnedFd, len: usize) -> Result<Self, RegionError> {
        let cuts = foreign_cuts();
        Ok(Self { memory: ForeignRegion::map(&file, 0, len)?, file, cuts })
    }

    /// The bytes.
    pub fn window(&self) -> &Window {
        self.memory.window()
    }

    /// Whether the other side has taken a part of it away. Costs one load as long as nobody's memory has been.
    #[inline(always)]
    pub fn was_cut(&self) -> bool {
        foreign_cuts() != self.cuts && self.memory.was_cut()
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// How buffers lie in memory: `count` of them, one every `stride` bytes from `base` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the first.
    pub base: usize,
    /// Bytes from one to the next.
    pub stride: usize,
    /// How many there are.
    pub count: usize,
}

/// The buffers of a device: all frames, of all queues and both directions, are in this one memory.
pub struct Buffers {
    /// Where they are.
    pub memory: Shared,
    /// And how.
    pub layout: Layout,
}

/// A queue pair fills half a huge page, and is worth a whole one: both sides look addresses up all the time.
const HUGE_PAGE: usize = 2 << 20;

impl Buffers {
    /// `count` buffers of the usual size in memory of their own.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn allocate(count: usize) -> Result<Self, RegionError> {
        let layout = Layout { base: 0, stride: STRIDE, count };
        Ok(Self { memory: Shared::allocate((count * STRIDE).max(HUGE_PAGE))?, layout })
    }

    /// `count` buffers from number `first` on, and where they begin in the memory. `None`: there are fewer.
    pub(super) fn part(&self, first: usize, count: usize) -> Option<(Window, usize)> {
        let Layout { base, stride, count: all } = self.layout;
        let end = first.checked_add(count).filter(|&end| end <= all)?;
        let at = first.checked_mul(stride)?.checked_add(base)?;
        let len = end.checked_sub(first)?.checked_mul(stride)?;
        self.memory.window().part(at, len).ok().map(|window| (window, at))
    }
}
