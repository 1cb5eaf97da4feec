//! Checksums by what changes (RFC 1624): the payload is not added up again, and a checksum that was wrong stays wrong.

use millrace_packet::checksum::Sum;

/// The checksum after words whose sum was `before` have become others whose sum is `after` (RFC 1624 section 3, equation 3).
pub(super) fn adjusted(checksum: u16, before: Sum, after: Sum) -> u16 {
    after.with(u32::from(!checksum)).with(u32::from(!before.folded())).checksum()
}

/// Whether a checksum may be absent, which is written as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zero {
    /// 0 is a sum like any other.
    Sum,
    /// 0 is no checksum, and stays; a sum of 0 is written as 0xffff (RFC 768).
    Absent,
}

/// Adjusts the checksum at `at` of a frame.
pub(super) fn adjust(frame: &mut [u8], at: usize, zero: Zero, before: Sum, after: Sum) {
    let Some(place) = frame.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) else { return };
    let stored = u16::from_be_bytes(*place);
    if zero == Zero::Absent && stored == 0 {
        return;
    }
    let new = match adjusted(stored, before, after) {
        0 if zero == Zero::Absent => 0xffff,
        new => new,
    };
    *place = new.to_be_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of RFC 1624 section 4, where the older equation of RFC 1141 gives 0xffff.
    #[test]
    fn the_example_of_the_rfc() {
        assert_eq!(adjusted(0xdd2f, Sum::default().with(0x5555), Sum::default().with(0x3285)), 0);
    }

    #[test]
    fn what_is_absent_stays_so() {
        let mut frame = [0, 0, 0, 0];
        adjust(&mut frame, 0, Zero::Absent, Sum::default().with(1), Sum::default().with(2));
        assert_eq!(frame, [0; 4]);
        let mut frame = [0xff, 0xfe];
        adjust(&mut frame, 0, Zero::Absent, Sum::default().with(1), Sum::default().with(0xffff));
        assert_ne!(frame, [0, 0]);
        // Too near to the end: nothing happens.
        adjust(&mut frame, 1, Zero::Sum, Sum::default(), Sum::default().with(7));
    }

    proptest! {
        #[test]
        fn same_as_computed_anew(words in prop::collection::vec(any::<[u8; 2]>(), 1..100), at in any::<prop::sample::Index>(), new: [u8; 2]) {
            // A header is never all zero.
            prop_assume!(words.iter().any(|word| *word != [0; 2]));
            let mut changed = words.clone();
            let at = at.index(words.len());
            changed[at] = new;
            prop_assume!(changed.iter().any(|word| *word != [0; 2]));
            let by_delta = adjusted(Sum::of(&words.concat()).checksum(), Sum::of(&words[at]), Sum::of(&new));
            prop_assert_eq!(by_delta, Sum::of(&changed.concat()).checksum());
        }
    }
}
