//! Which sequence numbers have come: the anti-replay window, and the upper half of extended numbers (RFC 4303 §3.4.3 and
//! appendix A).

use std::ops::RangeInclusive;

use crate::refusal::Refusal;

/// The longest window, as in Linux.
pub const MAX_WINDOW: u32 = 4096;

/// The sequence numbers that have come. A number is looked at before its packet is decrypted ([`Window::judge`]), and noted
/// when the packet was genuine ([`Window::note`]): until then it may be anybody's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    is_extended: bool,
    /// How many numbers up to the highest one are told apart; 0 lets everything in.
    size: u32,
    highest: u64,
    /// A bit for each number, by its remainder. One word more than the window needs, so that whole words are cleared when
    /// it moves on (RFC 6479).
    bits: Box<[u64]>,
}

impl Window {
    /// Nothing has come yet. `size` is at most [`MAX_WINDOW`], and rounded down to that.
    pub fn new(size: u32, is_extended: bool) -> Self {
        let size = size.min(MAX_WINDOW);
        let words = (size as usize / 64 + 2).next_power_of_two();
        Self { is_extended, size, highest: 0, bits: vec![0; words].into() }
    }

    /// A window that has a past: `highest` has come, and those for which `seen` says so.
    pub fn resumed(size: u32, is_extended: bool, highest: u64, seen: impl Fn(u64) -> bool) -> Self {
        let mut window = Self { highest, ..Self::new(size, is_extended) };
        for number in window.numbers().filter(|number| seen(*number)) {
            window.set(number);
        }
        window
    }

    /// Whether numbers have 64 bits.
    pub const fn is_extended(&self) -> bool {
        self.is_extended
    }

    /// How many numbers up to the highest one are told apart.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// The highest number that has come, 0 when none has.
    pub const fn highest(&self) -> u64 {
        self.highest
    }

    /// The numbers that are in the window.
    pub fn numbers(&self) -> RangeInclusive<u64> {
        let first = self.highest.saturating_sub(u64::from(self.size)).saturating_add(1);
        first..=self.highest
    }

    /// Whether a number of the window has come.
    #[inline]
    pub fn has_come(&self, number: u64) -> bool {
        self.bits[self.word_of(number)] & (1 << (number % 64)) != 0
    }

    /// The whole number of a packet that says `low`, if it may be a new one.
    ///
    /// # Errors
    /// [`Refusal::Replayed`], [`Refusal::TooOld`].
    #[inline]
    pub fn judge(&self, low: u32) -> Result<u64, Refusal> {
        let number = if self.is_extended { self.whole(low)? } else { u64::from(low) };
        if self.size == 0 || number > self.highest {
            return Ok(number);
        }
        if number == 0 || self.highest - number >= u64::from(self.size) {
            return Err(Refusal::TooOld);
        }
        if self.has_come(number) { Err(Refusal::Replayed) } else { Ok(number) }
    }

    /// The number of which `low` is the lower half, nearest to the window (RFC 4303, appendix A2.2).
    #[inline]
    fn whole(&self, low: u32) -> Result<u64, Refusal> {
        let (high, highest_low) = ((self.highest >> 32) as u32, self.highest as u32);
        let reach = self.size.saturating_sub(1);
        let bottom = highest_low.wrapping_sub(reach);
        let high = match (highest_low >= reach, low >= bottom) {
            // The window is within one half of numbers: what is left of it is of the next half.
            (true, true) => high,
            (true, false) => high.checked_add(1).ok_or(Refusal::TooOld)?,
            // It reaches back into the half before.
            (false, true) => high.checked_sub(1).ok_or(Refusal::TooOld)?,
            (false, false) => high,
        };
        Ok(u64::from(high) << 32 | u64::from(low))
    }

    /// Notes the number of a genuine packet, which [`Window::judge`] gave.
    #[inline]
    pub fn note(&mut self, number: u64) {
        if number > self.highest {
            let (last, next) = (self.highest / 64, number / 64);
            let words = self.bits.len() as u64;
            for word in last + 1..=next.min(last + words) {
                self.bits[(word % words) as usize] = 0;
            }
            self.highest = number;
        } else if self.highest - number >= u64::from(self.size.max(1)) {
            // Only where nothing is told apart: its bit is another number's.
            return;
        }
        self.set(number);
    }

    #[inline]
    fn set(&mut self, number: u64) {
        let word = self.word_of(number);
        self.bits[word] |= 1 << (number % 64);
    }

    #[inline]
    fn word_of(&self, number: u64) -> usize {
        // A power of two.
        (number / 64) as usize & (self.bits.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn a_number_comes_once() {
        let mut window = Window::new(64, false);
        assert_eq!(window.judge(0), Err(Refusal::TooOld));
        for low in [1, 3, 2, 100, 37] {
            let number = window.judge(low).unwrap();
            window.note(number);
            assert_eq!(window.judge(low), Err(Refusal::Replayed), "{low}");
        }
        assert_eq!(window.judge(36), Err(Refusal::TooOld));
        assert!(window.judge(38).is_ok());
        window.note(u64::from(u32::MAX));
        assert_eq!(window.judge(5), Err(Refusal::TooOld), "numbers of 32 bits do not go round");
    }

    #[test]
    fn what_is_only_judged_is_not_noted() {
        let window = Window::new(64, false);
        assert_eq!(window.judge(9), Ok(9));
        assert_eq!(window.judge(9), Ok(9));
    }

    #[test]
    fn without_a_window_everything_is_new() {
        let mut window = Window::new(0, false);
        for low in [7, 7, 1, 0] {
            let number = window.judge(low).unwrap();
            window.note(number);
        }
        assert_eq!(window.highest(), 7);
        assert_eq!(window.numbers().count(), 0);
    }

    #[test]
    fn the_upper_half_is_inferred_across_the_end_of_the_lower() {
        let end = 1u64 << 32;
        let mut window = Window::resumed(64, true, end - 2, |_| true);
        assert_eq!(window.judge(u32::MAX), Ok(end - 1));
        assert_eq!(window.judge(0), Ok(end), "0 is a number in its own right in later halves");
        assert_eq!(window.judge(5), Ok(end + 5));
        window.note(end + 5);
        // Now the window reaches back into the first half.
        assert_eq!(window.judge(u32::MAX), Ok(end - 1));
        assert_eq!(window.judge(u32::MAX - 1), Err(Refusal::Replayed));
        assert_eq!(window.judge(4), Ok(end + 4));
        assert_eq!(window.judge(5), Err(Refusal::Replayed));
        // Left of the window by one: one half further.
        assert_eq!(window.judge((end + 5 - 64) as u32), Ok((end + 5 - 64) | end));
        let start = Window::resumed(64, true, 10, |_| false);
        assert_eq!(start.judge(u32::MAX), Err(Refusal::TooOld), "there is no half before the first");
        let last = Window::resumed(64, true, u64::MAX, |_| false);
        assert_eq!(last.judge(1), Err(Refusal::TooOld), "nor one after the last");
    }

    proptest! {
        /// Against a set of all numbers that have come.
        #[test]
        fn agrees_with_a_set(size in prop_oneof![Just(64u32), Just(100), Just(128), Just(4096), 1..300u32],
                             steps in prop::collection::vec((any::<bool>(), 0..6000u64), 1..200),
                             start in prop_oneof![Just(1u64), (1u64 << 32) - 3000..(1 << 32) + 3000],
                             is_extended: bool) {
            let start = if is_extended { start } else { 5000 };
            let mut window = Window::resumed(size, is_extended, start, |number| number == start);
            let (mut come, mut highest) = (HashSet::from([start]), start);
            for (is_ahead, by) in steps {
                let number = if is_ahead { highest + by % 200 } else { highest.saturating_sub(by) };
                let judged = window.judge(number as u32);
                if number == 0 || (number <= highest && highest - number >= u64::from(size)) {
                    // With extended numbers it is one of the next half, which nothing contradicts before it is decrypted.
                    prop_assert!(judged == Err(Refusal::TooOld) || (is_extended && judged != Ok(number)), "{number} {judged:?}");
                } else if come.contains(&number) {
                    prop_assert_eq!(judged, Err(Refusal::Replayed));
                } else {
                    prop_assert_eq!(judged, Ok(number));
                    window.note(number);
                    come.insert(number);
                    highest = highest.max(number);
                }
                prop_assert_eq!(window.highest(), highest);
            }
            for number in window.numbers() {
                prop_assert_eq!(window.has_come(number), come.contains(&number));
            }
        }
    }
}
