//! What became of the frames of one flow.

/// What one frame of a flow turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Arrival {
    /// Newer than all before it.
    InOrder,
    /// Older than others that came before it.
    Late,
    /// Seen before.
    Duplicate,
    /// More than [`Tracker::WINDOW`] frames behind: late or repeated, nobody can tell.
    Stray,
}

/// The sequence of one flow: 32 bytes, whatever happens on the way.
#[derive(Clone, Copy, Debug)]
pub struct Tracker {
    /// Bit `i`: whether frame `next - 1 - i` was seen. What came before the first frame counts as seen.
    seen: u128,
    /// The number after the newest.
    next: u64,
}

impl Tracker {
    /// How many frames behind the newest one a frame may be and still be told late from repeated.
    pub const WINDOW: u32 = u128::BITS;

    /// A flow whose first frame has number 0.
    pub const fn new() -> Self {
        Self { seen: u128::MAX, next: 0 }
    }

    /// The next frame of the flow carries this number: the low 32 bits, the rest is that of the nearest.
    #[inline]
    pub const fn arrive(&mut self, sequence: u32) -> Arrival {
        let distance = sequence.wrapping_sub(self.next as u32) as i32;
        if distance >= 0 {
            let step = distance as u32 + 1;
            self.seen = if step < Self::WINDOW { self.seen << step | 1 } else { 1 };
            self.next += step as u64;
            return Arrival::InOrder;
        }
        let behind = distance.unsigned_abs() - 1;
        if behind >= Self::WINDOW {
            return Arrival::Stray;
        }
        let bit = 1 << behind;
        if self.seen & bit != 0 {
            return Arrival::Duplicate;
        }
        self.seen |= bit;
        Arrival::Late
    }
}

impl Default for Tracker {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(sequences: &[u32]) -> Vec<Arrival> {
        let mut tracker = Tracker::new();
        sequences.iter().map(|sequence| tracker.arrive(*sequence)).collect()
    }

    #[test]
    fn late_repeated_and_lost() {
        use Arrival::{Duplicate, InOrder, Late, Stray};
        assert_eq!(of(&[0, 1, 3, 2, 2, 1, 5]), [InOrder, InOrder, InOrder, Late, Duplicate, Duplicate, InOrder]);
        assert_eq!(of(&[200, 73, 72, 73, 200]), [InOrder, Late, Stray, Duplicate, Duplicate]);
        assert_eq!(of(&[u32::MAX, 0]), [Duplicate, InOrder], "before the first frame there is none");
    }

    #[test]
    fn numbers_go_round_the_end_of_32_bits() {
        let mut tracker = Tracker::new();
        for sequence in [0x7fff_ffff, 0xffff_fffe, 1, 0xffff_ffff, 0, 0] {
            let _ = tracker.arrive(sequence);
        }
        assert_eq!(tracker.next, 0x1_0000_0002);
        assert_eq!(tracker.arrive(0), Arrival::Duplicate);
        assert_eq!(tracker.arrive(2), Arrival::InOrder);
    }

    proptest! {
        /// Whatever the order: each frame counts once, within the window.
        #[test]
        fn every_frame_counts_once(sequences in prop::collection::vec(0..Tracker::WINDOW, 1..300)) {
            let arrivals = of(&sequences);
            let first = arrivals.iter().filter(|arrival| matches!(arrival, Arrival::InOrder | Arrival::Late)).count();
            let mut different = sequences;
            different.sort_unstable();
            different.dedup();
            prop_assert_eq!(first, different.len());
            prop_assert!(!arrivals.contains(&Arrival::Stray));
        }
    }
}
