//! A clock as a straight line: the time at one tick, and what each tick adds.

use crate::time::{Increment, Time};
use rustix::time::{ClockId, clock_gettime};

/// Ticks of the oscillator behind a card's clock, at [`TICKS_PER_SECOND`]: `CLOCK_MONOTONIC` in ns, the same for all processes of
/// a host but those of another time namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticks(u64);

/// Nominal frequency of the oscillator in Hz.
pub const TICKS_PER_SECOND: u64 = 1_000_000_000;

impl Ticks {
    /// A reading of the oscillator.
    pub const fn new(ticks: u64) -> Self {
        Self(ticks)
    }

    /// Reads the oscillator: the system's monotonic clock, which never jumps and runs at the rate of the time of day, so
    /// that a card's clock that was set once stays right without anybody who steers it. No system call where the kernel
    /// has it in its vDSO.
    #[inline]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        Self(now.tv_sec as u64 * TICKS_PER_SECOND + now.tv_nsec as u64)
    }

    /// The reading.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The state of a clock. A plain value; whoever shares it takes care that it is read in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timebase {
    since: Ticks,
    time: Time,
    increment: Increment,
}

impl Timebase {
    /// Words that a timebase takes; see [`Timebase::to_words`].
    pub const WORDS: usize = 4;

    /// A clock that shows 0 at `now` and goes at its nominal speed.
    pub const fn new(now: Ticks) -> Self {
        Self {
            since: now,
            time: Time { seconds: 0, fraction: 0 },
            increment: Increment::of_frequency(TICKS_PER_SECOND),
        }
    }

    /// The time at a tick, as if the clock had always had the present speed.
    #[inline]
    pub const fn at(&self, ticks: Ticks) -> Time {
        let each = self.increment.fractions() as u128;
        if ticks.0 >= self.since.0 {
            self.time.plus((ticks.0 - self.since.0) as u128 * each)
        } else {
            self.time.minus((self.since.0 - ticks.0) as u128 * each)
        }
    }

    /// Sets the clock.
    pub const fn set_time(&mut self, now: Ticks, time: Time) {
        (self.since, self.time) = (now, time);
    }

    /// Changes the speed from `now` on; the time does not jump.
    pub const fn set_increment(&mut self, now: Ticks, increment: Increment) {
        (self.time, self.since) = (self.at(now), now);
        self.increment = increment;
    }

    /// What each tick adds.
    pub const fn increment(&self) -> Increment {
        self.increment
    }

    /// As words, for shared memory.
    pub const fn to_words(&self) -> [u64; Self::WORDS] {
        [self.since.0, self.time.seconds as u64, self.time.fraction, self.increment.fractions()]
    }

    /// The timebase of these words.
    pub const fn from_words(words: [u64; Self::WORDS]) -> Self {
        let time = Time { seconds: words[1] as u32, fraction: words[2] };
        Self { since: Ticks(words[0]), time, increment: Increment::new(words[3]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_oscillator_goes_forward_at_the_speed_it_says() {
        // Each reading of the other clock lies between two of the oscillator, however long this thread does not run meanwhile.
        let read = || {
            let before = Ticks::now().get();
            let other = std::time::Instant::now();
            (before, other, Ticks::now().get())
        };
        let first = read();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let last = read();
        let passed = last.1.duration_since(first.1).as_nanos() as u64;
        // The shortest and the longest that it can have been by the oscillator, which NTP may steer, but not by a hundredth.
        let (least, most) = (last.0 - first.2, last.2 - first.0);
        assert!(most >= 20_000_000, "{most}");
        assert!((least - least / 100..=most + most / 100).contains(&passed), "{least} {passed} {most}");
    }

    #[test]
    fn a_day_at_nominal_speed_is_a_day_but_for_the_rounding() {
        let clock = Timebase::new(Ticks::new(5));
        let day = clock.at(Ticks::new(5 + 86_400 * TICKS_PER_SECOND));
        // Less than one fraction is lost per tick.
        assert_eq!((day.seconds, day.nanoseconds()), (86_399, 999_996_676));
    }

    #[test]
    fn the_longest_times_do_not_overflow() {
        let mut clock = Timebase::new(Ticks::new(0));
        clock.set_increment(Ticks::new(0), Increment::new(u64::MAX));
        let end = clock.at(Ticks::new(u64::MAX));
        clock.set_time(Ticks::new(u64::MAX), end);
        assert_eq!(clock.at(Ticks::new(0)), Time::default());
    }

    proptest! {
        #[test]
        fn a_change_of_speed_is_no_jump(
            start in 0u64..1 << 60, seconds: u32, fraction: u64, steps in prop::collection::vec((0u64..1 << 40, any::<u64>()), 1..20),
        ) {
            let mut clock = Timebase::new(Ticks::new(start));
            clock.set_time(Ticks::new(start), Time { seconds, fraction });
            let (mut now, mut expected) = (start, Time { seconds, fraction });
            for (ticks, increment) in steps {
                expected = expected.plus(u128::from(ticks) * u128::from(clock.increment().fractions()));
                now += ticks;
                prop_assert_eq!(clock.at(Ticks::new(now)), expected);
                clock.set_increment(Ticks::new(now), Increment::new(increment));
                prop_assert_eq!(clock.at(Ticks::new(now)), expected);
                prop_assert_eq!(Timebase::from_words(clock.to_words()), clock);
            }
        }
    }
}
