//! Which numbers an endpoint wants, and whose they are.
//!
//! The receiver keeps the ranges; senders see a bit for each number, in shared memory, so that one that nobody wants is refused where
//! it is sent. The receiver looks at its own ranges again: the bits are advice to whoever is honest.

use millrace_dma::{OutOfRange, Slots64, Window};
use std::ops::RangeInclusive;

/// Words of the bits. In models of the memory, numbers that are alike modulo 64 have one bit.
const WORDS: u32 = if cfg!(loom) { 1 } else { (1 << 16) / 64 };
/// Bytes of the bits.
pub(super) const LEN: usize = WORDS as usize * 8;
/// Ranges at once. A look is a search among so many.
const MOST: usize = 256;

/// Whose numbers they are: what the program said when it claimed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(pub u32);

/// Why numbers cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Another owner has one of them.
    #[error("one of these doorbells belongs to somebody already: claim others, or release those")]
    Taken,
    /// There is nothing between the first and the last.
    #[error("the range is empty: the first doorbell may not be greater than the last")]
    Empty,
    /// As many ranges as there may be.
    #[error("there are {MOST} ranges already: claim fewer, longer ones")]
    TooMany,
}

/// The ranges of an endpoint.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// In order, none within another.
    ranges: Vec<(u16, u16, Owner)>,
}

impl Filter {
    /// `owner` wants these numbers.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn claim(&mut self, numbers: RangeInclusive<u16>, owner: Owner) -> Result<(), ClaimError> {
        let (first, last) = (*numbers.start(), *numbers.end());
        if first > last {
            return Err(ClaimError::Empty);
        }
        if self.ranges.len() >= MOST {
            return Err(ClaimError::TooMany);
        }
        let at = self.ranges.partition_point(|range| range.1 < first);
        if self.ranges.get(at).is_some_and(|range| range.0 <= last) {
            return Err(ClaimError::Taken);
        }
        self.ranges.insert(at, (first, last, owner));
        Ok(())
    }

    /// `owner` wants none of its numbers any more.
    pub fn release(&mut self, owner: Owner) {
        self.ranges.retain(|range| range.2 != owner);
    }

    /// All that is wanted, in order: the first number and the last of each range.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = (u16, u16)> + '_ {
        self.ranges.iter().map(|range| (range.0, range.1))
    }

    /// Whose a number is.
    #[inline]
    pub fn owner(&self, number: u16) -> Option<Owner> {
        let at = self.ranges.partition_point(|range| range.1 < number);
        self.ranges.get(at).filter(|range| range.0 <= number).map(|range| range.2)
    }

    /// Says it to those who send. Bits that do not change are not written, so that nobody's cache line moves for them.
    pub fn publish(&self, view: &View) {
        for word in 0..WORDS {
            let mut bits = 0;
            for bit in 0..64 {
                bits |= u64::from(self.owner((word * 64 + bit) as u16).is_some()) << bit;
            }
            if view.bits.load(word) != bits {
                view.bits.store(word, bits);
            }
        }
    }
}

/// The bits in shared memory. The receiver writes them, senders read them.
#[derive(Clone)]
pub struct View {
    bits: Slots64,
}

impl View {
    /// At the beginning of `window`.
    ///
    /// # Errors
    /// The window is too short.
    pub fn new(window: &Window) -> Result<Self, OutOfRange> {
        Ok(Self { bits: window.slots64(0, WORDS)? })
    }

    /// Whether somebody wants that number.
    #[inline]
    pub fn is_wanted(&self, number: u16) -> bool {
        self.bits.load(u32::from(number) / 64) >> (number % 64) & 1 != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use millrace_dma::Region;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever is claimed and released: each number has the owner that a table of all numbers says, and the bits say the same.
        #[test]
        fn numbers_have_one_owner(turns in prop::collection::vec((any::<u16>(), 0u16..2000, 0u32..8, any::<bool>()), 1..60)) {
            let mut filter = Filter::default();
            let mut table = vec![None; 1 << 16];
            for (first, more, owner, release) in turns {
                if release {
                    filter.release(Owner(owner));
                    table.iter_mut().filter(|held| **held == Some(Owner(owner))).for_each(|held| *held = None);
                    continue;
                }
                let last = first.saturating_add(more);
                let is_free = table[first as usize..=last as usize].iter().all(Option::is_none);
                prop_assert_eq!(filter.claim(first..=last, Owner(owner)).is_ok(), is_free);
                if is_free {
                    table[first as usize..=last as usize].fill(Some(Owner(owner)));
                }
            }
            let region = Region::heap(LEN);
            let view = View::new(region.window()).unwrap();
            filter.publish(&view);
            for number in 0..=u16::MAX {
                prop_assert_eq!(filter.owner(number), table[number as usize]);
                prop_assert_eq!(view.is_wanted(number), table[number as usize].is_some());
            }
        }
    }

    #[test]
    fn what_cannot_be_claimed_is_refused_by_name() {
        let mut filter = Filter::default();
        filter.claim(0..=u16::MAX, Owner(1)).unwrap();
        assert_eq!(filter.claim(7..=7, Owner(1)), Err(ClaimError::Taken));
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        let empty = 8..=7;
        assert_eq!(filter.claim(empty, Owner(1)), Err(ClaimError::Empty));
        filter.release(Owner(1));
        for number in 0..MOST as u16 {
            filter.claim(2 * number..=2 * number, Owner(2)).unwrap();
        }
        assert_eq!(filter.claim(1..=1, Owner(3)), Err(ClaimError::TooMany));
    }
}
