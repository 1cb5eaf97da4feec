//! Seconds and fractions of them, as the registers of a time-stamp unit hold them.

/// A time: 32 bits of seconds and a 64-bit fraction of a second. Wraps after 136 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds, mostly since 1970.
    pub seconds: u32,
    /// 2^-64 of a second each.
    pub fraction: u64,
}

/// What one tick adds to a [`Time`]: 2^-64 of a second each, 39 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Increment(u64);

const NANOSECONDS: u64 = 1_000_000_000;
/// 2^-16 of a millionth in one.
const MILLIONTHS: i128 = 1_000_000 << 16;
/// A second, counted in fractions.
const SECOND: u128 = 1 << 64;

impl Time {
    /// The time so many nanoseconds after a whole second.
    pub const fn new(seconds: u32, nanoseconds: u32) -> Self {
        // Rounded up, so that `nanoseconds` gives back what was put in.
        let fraction = ((nanoseconds as u128) << 64).div_ceil(NANOSECONDS as u128);
        Self { seconds: seconds.wrapping_add((fraction >> 64) as u32), fraction: fraction as u64 }
    }

    /// Whole nanoseconds since the last whole second.
    #[inline(always)]
    pub const fn nanoseconds(self) -> u32 {
        ((self.fraction as u128 * NANOSECONDS as u128) >> 64) as u32
    }

    /// All of it in nanoseconds, rounded down.
    #[inline(always)]
    pub const fn total_nanoseconds(self) -> u64 {
        self.seconds as u64 * NANOSECONDS + self.nanoseconds() as u64
    }

    /// The time so many fractions later.
    #[inline(always)]
    #[must_use]
    pub const fn plus(self, fractions: u128) -> Self {
        let all = (((self.seconds as u128) << 64) | self.fraction as u128).wrapping_add(fractions);
        Self { seconds: (all >> 64) as u32, fraction: all as u64 }
    }

    /// The time so many nanoseconds later, or earlier if they are less than none.
    #[must_use]
    pub const fn plus_nanoseconds(self, nanoseconds: i64) -> Self {
        let whole = nanoseconds.unsigned_abs() as u128;
        // Fractions of a second, a second at a time: all of it does not fit.
        let fractions =
            ((whole / NANOSECONDS as u128) << 64) + ((whole % NANOSECONDS as u128) << 64) / NANOSECONDS as u128;
        if nanoseconds < 0 { self.minus(fractions) } else { self.plus(fractions) }
    }

    /// This time less `other`, in nanoseconds, as the nearer way round the 136 years; what does not fit is the largest that does.
    pub const fn nanoseconds_since(self, other: Self) -> i64 {
        let seconds = self.seconds.wrapping_sub(other.seconds) as i32 as i64;
        let fraction = self.fraction as i128 - other.fraction as i128;
        // Rounded to the nearest: times that were made of nanoseconds differ by as many.
        let nanoseconds = (fraction * NANOSECONDS as i128 + (1 << 63)) >> 64;
        seconds * NANOSECONDS as i64 + nanoseconds as i64
    }

    /// The time so many fractions earlier.
    #[must_use]
    pub const fn minus(self, fractions: u128) -> Self {
        self.plus(fractions.wrapping_neg())
    }
}

impl Increment {
    /// Bits that an increment has; a clock slower than 2^25 Hz would need more.
    pub const BITS: u32 = 39;

    /// An increment of so many fractions; bits beyond [`Increment::BITS`] are not kept, as in the register.
    pub const fn new(fractions: u64) -> Self {
        Self(fractions & ((1 << Self::BITS) - 1))
    }

    /// The increment with which so many ticks make a second, rounded down. From 2^25 on.
    pub const fn of_frequency(hertz: u64) -> Self {
        Self::new((SECOND / hertz as u128) as u64)
    }

    /// In fractions of a second.
    pub const fn fractions(self) -> u64 {
        self.0
    }

    /// The increment of a clock that goes faster by so much, in 2^-16 of a millionth, as for Linux' `adjfine`; 0 for one that would
    /// go back, and the largest for what is too fast.
    #[must_use]
    pub const fn faster(self, scaled_ppm: i64) -> Self {
        let fractions = self.0 as i128;
        // Rounded to the nearest: a servo that steers by less than one fraction gets half of what it asks for otherwise.
        let more = fractions * scaled_ppm as i128 + (MILLIONTHS / 2) * scaled_ppm.signum() as i128;
        let fractions = fractions + more / MILLIONTHS;
        let most = (1i128 << Self::BITS) - 1;
        Self(if fractions < 0 {
            0
        } else if fractions > most {
            most as u64
        } else {
            fractions as u64
        })
    }

    /// How much faster a clock with this increment goes than one with `nominal`, in 2^-16 of a millionth, rounded to the nearest.
    pub const fn faster_than(self, nominal: Self) -> i64 {
        let (more, nominal) = ((self.0 as i128 - nominal.0 as i128) * MILLIONTHS, nominal.0 as i128);
        let half = if more < 0 { -nominal / 2 } else { nominal / 2 };
        if nominal == 0 { 0 } else { ((more + half) / nominal) as i64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_second_has_as_many_nanoseconds_as_fractions_say() {
        assert_eq!(
            Time::new(u32::MAX, 999_999_999).total_nanoseconds(),
            u64::from(u32::MAX) * NANOSECONDS + 999_999_999
        );
        assert_eq!(Time::new(5, 0), Time { seconds: 5, fraction: 0 });
        assert_eq!(Time::new(5, 500_000_000).fraction, 1 << 63);
        assert_eq!(Time { seconds: 1, fraction: u64::MAX }.nanoseconds(), 999_999_999);
        assert_eq!(Time::new(1, 1_500_000_000), Time::new(2, 500_000_000));
        assert_eq!(Increment::of_frequency(1 << 32).fractions(), 1 << 32);
        assert_eq!(Increment::new(u64::MAX).fractions(), (1 << 39) - 1);
        assert_eq!(Time { seconds: u32::MAX, fraction: 1 << 63 }.plus(1 << 63), Time::default(), "136 years are over");
        assert_eq!(Time::default().minus(1), Time { seconds: u32::MAX, fraction: u64::MAX });
    }

    #[test]
    fn speeds_are_told_as_they_were_set() {
        let nominal = Increment::of_frequency(NANOSECONDS);
        for scaled_ppm in [0, 1, -1, 65_536, -65_536, 100 << 16, -(100_000 << 16), 100_000 << 16] {
            assert!((nominal.faster(scaled_ppm).faster_than(nominal) - scaled_ppm).abs() <= 2, "{scaled_ppm}");
        }
        assert_eq!(nominal.faster(1_000_000 << 16).fractions(), 2 * nominal.fractions());
        assert_eq!((nominal.faster(i64::MIN).fractions(), Increment::new(0).faster_than(Increment::new(0))), (0, 0));
        assert_eq!(nominal.faster(i64::MAX).fractions(), (1 << 39) - 1);
    }

    proptest! {
        #[test]
        fn differences_are_what_was_added(seconds: u32, nanoseconds in 0u32..1_000_000_000, more in -1i64 << 60..1i64 << 60) {
            let time = Time::new(seconds, nanoseconds);
            let later = time.plus_nanoseconds(more);
            prop_assert!((later.nanoseconds_since(time) - more).abs() <= 1);
            prop_assert!(later.plus_nanoseconds(-more).nanoseconds_since(time).abs() <= 1);
        }

        #[test]
        fn nanoseconds_survive(nanoseconds in 0u32..1_000_000_000, seconds: u32) {
            let time = Time::new(seconds, nanoseconds);
            prop_assert_eq!((time.seconds, time.nanoseconds()), (seconds, nanoseconds));
        }

        #[test]
        fn minus_takes_back_what_plus_gave(seconds: u32, fraction: u64, fractions: u128) {
            let time = Time { seconds, fraction };
            prop_assert_eq!(time.plus(fractions).minus(fractions), time);
        }
    }
}
