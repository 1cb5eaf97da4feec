//! What stands in the memory. All words are little-endian.
//!
//! ```text
//! 0       "millrace"                                        the server, once
//! 8       version (32 bits), slots (32 bits)                the server, once
//! 64      a line of the cache for each slot: what the peer is called by QEMU (lower 16 bits), which of all it is; 0: nobody    the server
//! 8192    from each slot to each slot, by the sender first: doorbells (`millrace_message::bell`), messages (`millrace_ring::lines`)
//! ...     the rest is for programs that know what to do with it
//! ```
//!
//! A peer's slot is the remainder of what it is called by the number of slots. Everybody can write everything: what is read is checked, and nobody is safe from those that he shares
//! the memory with but in his own memory and time.

use millrace_dma::{Ordering, OutOfRange, Window, Word64};
use millrace_message::bell;
use millrace_ring::lines;

const MAGIC: u64 = u64::from_le_bytes(*b"millrace");
const VERSION: u32 = 2;
const WORDS_AT: [usize; 3] = [0, 8, 12];
const DIRECTORY: usize = 64;
const LINE: usize = 64;
const PAIRS: usize = 8192;
/// Doorbells that wait from one peer to another.
pub const BELLS: u32 = 256;
/// Lines of a ring of messages: each has room for seven words.
pub const LINES: u32 = 64;
const BELLS_LEN: usize = bell::bytes_of(BELLS);
const PAIR_LEN: usize = BELLS_LEN + lines::bytes_of(LINES);
/// Fewest and most slots.
pub const SLOTS: core::ops::RangeInclusive<u16> = 2..=64;

/// Bytes of the memory of so many slots, without anything for programs of their own.
pub const fn bytes_of(slots: u16) -> usize {
    PAIRS + slots as usize * slots as usize * PAIR_LEN
}

/// What somebody else has made of the memory is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Of another server, or of none.
    #[error("this memory is not laid out by `millrace ivshmem`: start that one as the server of the guests")]
    Strange,
    /// Laid out by a program that is older or newer.
    #[error(
        "this memory has layout {0}, and this program knows {VERSION}: have the same version of millrace everywhere"
    )]
    Version(u32),
    /// As many slots as there cannot be, or more than there is memory.
    #[error(
        "this memory says that it has {slots} slots, for which {len} bytes are too few or too many: somebody has written to it"
    )]
    Slots {
        /// How many.
        slots: u32,
        /// Of the memory.
        len: usize,
    },
}

/// The memory.
#[derive(Clone)]
pub struct Layout {
    window: Window,
    slots: u16,
}

impl Layout {
    /// Of memory that is zero, by the server.
    ///
    /// # Errors
    /// The memory is too short.
    pub fn make(window: &Window, slots: u16) -> Result<Self, OutOfRange> {
        window.part(0, bytes_of(slots))?;
        let [magic, version, count] = WORDS_AT;
        window.word32(version)?.store(VERSION, Ordering::Relaxed);
        window.word32(count)?.store(slots.into(), Ordering::Relaxed);
        // Release pairs with the Acquire in `open`.
        window.word64(magic)?.store(MAGIC, Ordering::Release);
        Ok(Self { window: window.clone(), slots })
    }

    /// Of memory that a server has made.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn open(window: &Window) -> Result<Self, LayoutError> {
        let [magic, version, count] = WORDS_AT;
        let strange = |_| LayoutError::Strange;
        // Acquire pairs with the Release in `make`.
        if window.word64(magic).map_err(strange)?.load(Ordering::Acquire) != MAGIC {
            return Err(LayoutError::Strange);
        }
        let found = window.word32(version).map_err(strange)?.load(Ordering::Relaxed);
        if found != VERSION {
            return Err(LayoutError::Version(found));
        }
        let slots = window.word32(count).map_err(strange)?.load(Ordering::Relaxed);
        let fits = |slots: &u16| SLOTS.contains(slots) && bytes_of(*slots) <= window.len();
        match u16::try_from(slots).ok().filter(fits) {
            Some(slots) => Ok(Self { window: window.clone(), slots }),
            None => Err(LayoutError::Slots { slots, len: window.len() }),
        }
    }

    /// How many peers there may be.
    pub fn slots(&self) -> u16 {
        self.slots
    }

    /// Which of those that have had this slot is there, and what it is called (lower 16 bits); 0: nobody.
    ///
    /// # Errors
    /// There is no such slot.
    pub fn presence(&self, slot: u16) -> Result<Word64, OutOfRange> {
        self.check(slot)?;
        self.window.word64(DIRECTORY + usize::from(slot) * LINE)
    }

    /// The rings of doorbells and of messages from one slot to another.
    ///
    /// # Errors
    /// There is no such slot.
    pub fn pair(&self, from: u16, to: u16) -> Result<(Window, Window), OutOfRange> {
        self.check(from)?;
        self.check(to)?;
        let at = PAIRS + (usize::from(from) * usize::from(self.slots) + usize::from(to)) * PAIR_LEN;
        Ok((self.window.part(at, BELLS_LEN)?, self.window.part(at + BELLS_LEN, PAIR_LEN - BELLS_LEN)?))
    }

    /// What is not used, for programs that know what to do with it.
    pub fn rest(&self) -> Option<Window> {
        let at = bytes_of(self.slots);
        self.window.part(at, self.window.len() - at).ok().filter(|rest| !rest.is_empty())
    }

    /// Empties all rings from and to a slot, by the server, before somebody gets it.
    ///
    /// # Errors
    /// There is no such slot.
    pub(crate) fn clear(&self, slot: u16) -> Result<(), OutOfRange> {
        const ZEROS: [u8; PAIR_LEN] = [0; PAIR_LEN];
        for other in 0..self.slots {
            for (from, to) in [(slot, other), (other, slot)] {
                let (bells, messages) = self.pair(from, to)?;
                for ring in [bells, messages] {
                    if let Some(bytes) = ring.span_mut(0, ring.len()) {
                        bytes.write_from(&ZEROS[..ring.len()]);
                    }
                }
            }
        }
        Ok(())
    }

    fn check(&self, slot: u16) -> Result<(), OutOfRange> {
        // As a place in the directory: past its end.
        if slot < self.slots { Ok(()) } else { self.window.word64(usize::MAX & !7).map(drop) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_dma::Region;

    #[test]
    fn the_layout_is_that_of_the_document() {
        // docs/ivshmem.md, "What stands in the memory"
        assert_eq!([BELLS_LEN, PAIR_LEN, bytes_of(2), bytes_of(16)], [10_368, 14_720, 67_072, 3_776_512]);
        assert!(BELLS_LEN.is_multiple_of(LINE) && PAIR_LEN.is_multiple_of(LINE));
        assert!(DIRECTORY + usize::from(*SLOTS.end()) * LINE <= PAIRS);
    }

    #[test]
    fn rings_do_not_overlap_and_a_slot_is_emptied_alone() {
        let region = Region::heap(bytes_of(3));
        let layout = Layout::make(region.window(), 3).unwrap();
        let mark = |from: u16, to: u16| {
            let (bells, messages) = layout.pair(from, to).unwrap();
            [bells, messages].map(|ring| (ring.word64(0).unwrap(), ring.word64(ring.len() - 8).unwrap()))
        };
        let all = || (0..3).flat_map(|from| (0..3).map(move |to| (from, to)));
        for (from, to) in all() {
            for (first, last) in mark(from, to) {
                assert_eq!((first.load(Ordering::Relaxed), last.load(Ordering::Relaxed)), (0, 0));
                first.store(1, Ordering::Relaxed);
                last.store(2, Ordering::Relaxed);
            }
        }
        layout.clear(1).unwrap();
        for (from, to) in all() {
            let expected = if from == 1 || to == 1 { (0, 0) } else { (1, 2) };
            for (first, last) in mark(from, to) {
                assert_eq!((first.load(Ordering::Relaxed), last.load(Ordering::Relaxed)), expected, "{from} {to}");
            }
        }
        assert_eq!(Layout::open(region.window()).unwrap().slots(), 3);
        assert!(layout.rest().is_none());
        assert!(layout.pair(3, 0).is_err() && layout.pair(0, 3).is_err() && layout.presence(3).is_err());
    }

    #[test]
    fn what_others_have_written_is_not_believed() {
        let region = Region::heap(bytes_of(3));
        assert_eq!(Layout::open(region.window()).err(), Some(LayoutError::Strange));
        Layout::make(region.window(), 3).unwrap();
        let count = region.window().word32(12).unwrap();
        for slots in [0, 1, 4, 65, 1 << 16 | 3, u32::MAX] {
            count.store(slots, Ordering::Relaxed);
            assert_eq!(Layout::open(region.window()).err(), Some(LayoutError::Slots { slots, len: bytes_of(3) }));
        }
        region.window().word32(8).unwrap().store(9, Ordering::Relaxed);
        assert_eq!(Layout::open(region.window()).err(), Some(LayoutError::Version(9)));
        assert_eq!(Layout::open(&region.window().part(0, 4).unwrap()).err(), Some(LayoutError::Strange));
    }
}
