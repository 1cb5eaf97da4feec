//! The three parts of a split virtqueue as views of shared memory (virtio 1.2, 2.7).

use super::layout::{Descriptor, MAX_SIZE};
use millrace_dma::{OutOfRange, Slots16, Slots32, Slots64, Window, Word16};

/// Why the memory that was named cannot be a virtqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingsError {
    /// The number of descriptors.
    #[error("a split virtqueue cannot have {0} descriptors: it has a power of two from 2 to {MAX_SIZE}")]
    Size(u16),
    /// The size of the buffers of a driver.
    #[error("buffers of {0} bytes are too small, or larger than 64 KiB")]
    Stride(usize),
    /// A part does not fit its memory, or is not aligned.
    #[error("the {part} does not fit: {source}")]
    Part {
        /// Which one.
        part: &'static str,
        /// What is wrong.
        source: OutOfRange,
    },
}

/// Which entries a descriptor table has: the one of the ring, or an indirect one.
#[derive(Clone)]
pub struct Table(Slots64);

impl Table {
    /// A table of `size` (a power of two) descriptors at the beginning of `window`.
    ///
    /// # Errors
    /// [`OutOfRange`].
    pub fn over(window: &Window, size: u32) -> Result<Self, OutOfRange> {
        Ok(Self(window.slots64(0, size.saturating_mul(2))?))
    }

    /// Number of descriptors.
    #[inline(always)]
    pub fn size(&self) -> u32 {
        self.0.mask() / 2 + 1
    }

    /// Loads descriptor `index`, modulo the size, once.
    #[inline(always)]
    pub fn load(&self, index: u16) -> Descriptor {
        let at = u32::from(index) * 2;
        Descriptor::decode([self.0.load(at), self.0.load(at + 1)])
    }

    /// Stores descriptor `index`, modulo the size. What publishes it is the index of the available ring.
    #[inline(always)]
    pub fn store(&self, index: u16, descriptor: Descriptor) {
        let (at, words) = (u32::from(index) * 2, descriptor.encode());
        self.0.store(at, words[0]);
        self.0.store(at + 1, words[1]);
    }

    /// Asks the processor to fetch descriptor `index`.
    #[inline(always)]
    pub fn prefetch(&self, index: u16) {
        self.0.prefetch(u32::from(index) * 2);
    }
}

/// An entry of the used ring: which chain, and how many bytes the device has written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Index of the first descriptor of the chain.
    pub head: u32,
    /// Bytes written.
    pub len: u32,
}

/// The used entries.
#[derive(Clone)]
pub struct UsedSlots(Slots32);

impl UsedSlots {
    /// Loads entry `index`, modulo the size.
    #[inline(always)]
    pub fn load(&self, index: u16) -> Used {
        let at = u32::from(index) * 2;
        Used { head: self.0.load(at), len: self.0.load(at + 1) }
    }

    /// Stores entry `index`, modulo the size. What publishes it is the index of the used ring.
    #[inline(always)]
    pub fn store(&self, index: u16, used: Used) {
        let at = u32::from(index) * 2;
        self.0.store(at, used.head);
        self.0.store(at + 1, used.len);
    }

    /// Asks the processor to own the line of entry `index`.
    #[inline(always)]
    pub fn prefetch_write(&self, index: u16) {
        self.0.prefetch_write(u32::from(index) * 2);
    }
}

/// One split virtqueue. The descriptor table and everything called `avail` belong to the driver, `used` to the device;
/// of the two events, `used_event` is written by the driver and `avail_event` by the device.
#[derive(Clone)]
pub struct Rings {
    /// Descriptor table.
    pub table: Table,
    /// Flags of the available ring.
    pub avail_flags: Word16,
    /// How many chains the driver has made available, modulo 2^16.
    pub avail_index: Word16,
    /// First descriptors of the chains.
    pub avail: Slots16,
    /// At which `used_index` the driver wants an interrupt.
    pub used_event: Word16,
    /// Flags of the used ring.
    pub used_flags: Word16,
    /// How many chains the device has used, modulo 2^16.
    pub used_index: Word16,
    /// Which they were.
    pub used: UsedSlots,
    /// At which `avail_index` the device wants a notification.
    pub avail_event: Word16,
}

impl Rings {
    /// Bytes of the descriptor table.
    pub const fn table_len(size: u16) -> usize {
        size as usize * Descriptor::LEN
    }

    /// Bytes of the available ring, with its event.
    pub const fn avail_len(size: u16) -> usize {
        6 + 2 * size as usize
    }

    /// Bytes of the used ring, with its event.
    pub const fn used_len(size: u16) -> usize {
        6 + 8 * size as usize
    }

    /// The virtqueue of `size` descriptors whose parts are at the beginnings of these windows. The standard wants them
    /// aligned to 16, 2 and 4 bytes; 8 are enough here for the first.
    ///
    /// # Errors
    /// [`RingsError`].
    pub fn over(table: &Window, avail: &Window, used: &Window, size: u16) -> Result<Self, RingsError> {
        if !size.is_power_of_two() || !(2..=MAX_SIZE).contains(&size) {
            return Err(RingsError::Size(size));
        }
        let count = u32::from(size);
        let part = |part| move |source| RingsError::Part { part, source };
        let table = Table::over(table, count).map_err(part("descriptor table"))?;
        let driver = part("available ring");
        let device = part("used ring");
        Ok(Self {
            table,
            avail_flags: avail.word16(0).map_err(driver)?,
            avail_index: avail.word16(2).map_err(driver)?,
            avail: avail.slots16(4, count).map_err(driver)?,
            used_event: avail.word16(4 + 2 * usize::from(size)).map_err(driver)?,
            used_flags: used.word16(0).map_err(device)?,
            used_index: used.word16(2).map_err(device)?,
            used: UsedSlots(used.slots32(4, 2 * count).map_err(device)?),
            avail_event: used.word16(4 + 8 * usize::from(size)).map_err(device)?,
        })
    }

    /// Number of descriptors.
    #[inline(always)]
    pub fn size(&self) -> u16 {
        // From 2 to 2^15, as `over` has checked.
        (self.avail.mask() + 1) as u16
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use millrace_dma::{Iova, Ordering, Region};

    #[test]
    fn the_parts_lie_as_the_standard_says() {
        let region = Region::heap(4096);
        let (avail, used) = (region.part(1024, Rings::avail_len(4)).unwrap(), region.part(2048, 38).unwrap());
        assert_eq!((Rings::table_len(4), Rings::avail_len(4), Rings::used_len(4)), (64, 14, 38));
        let rings = Rings::over(region.window(), &avail, &used, 4).unwrap();
        assert_eq!(rings.size(), 4);
        rings.table.store(1, Descriptor { address: Iova::new(7), len: 1, flags: 2, next: 3 });
        rings.avail_index.store(0x1234, Ordering::Relaxed);
        rings.avail.store(3, 0xabcd);
        rings.used_event.store(0x55aa, Ordering::Relaxed);
        rings.used.store(5, Used { head: 0x0102_0304, len: 0x0506_0708 });
        rings.avail_event.store(0x7788, Ordering::Relaxed);
        let bytes = region.window().slice(0, 4096).unwrap();
        assert_eq!(bytes[16..32], [7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 3, 0]);
        assert_eq!(bytes[1024..1038], [0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0, 0xcd, 0xab, 0xaa, 0x55]);
        assert_eq!(bytes[2048 + 12..2048 + 20], [4, 3, 2, 1, 8, 7, 6, 5]);
        assert_eq!(bytes[2048 + 36..2048 + 38], [0x88, 0x77]);
        assert_eq!(rings.used.load(1), Used { head: 0x0102_0304, len: 0x0506_0708 });
        assert_eq!(rings.table.load(1).next, 3);
    }

    #[test]
    fn what_cannot_be_a_ring_is_refused() {
        let region = Region::heap(4096);
        let all = region.window();
        for size in [0, 1, 3, 48, 0x8001, 0xffff] {
            assert_eq!(Rings::over(all, all, all, size).err(), Some(RingsError::Size(size)));
        }
        assert!(Rings::over(all, all, all, 256).is_ok());
        assert!(Rings::over(all, all, all, 512).is_err(), "table of 8 KiB");
        let odd = region.part(2050, 38).unwrap();
        assert!(Rings::over(all, all, &odd, 4).is_err(), "not aligned");
        let short = region.part(2048, 37).unwrap();
        assert!(Rings::over(all, all, &short, 4).is_err(), "no room for the event");
    }
}
