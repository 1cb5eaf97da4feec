//! Times of the kernel: it stamps frames by `CLOCK_REALTIME`, which anybody may set, and the card goes by `CLOCK_MONOTONIC`.

use rustix::time::{ClockId, clock_gettime};

/// How often the clocks are compared for one result: the comparison during which least went by counts.
const COMPARISONS: usize = 3;
/// What is further away than this is no time of a frame that has just come or left: somebody has set the clock meanwhile.
const NEAR: u64 = 1_000_000_000;

/// Both clocks at one moment, in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelTime {
    /// `CLOCK_MONOTONIC`.
    pub monotonic: u64,
    realtime: u64,
}

fn read(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl KernelTime {
    /// Compares the clocks.
    pub fn now() -> Self {
        let compare = || {
            let before = read(ClockId::Monotonic);
            let realtime = read(ClockId::Realtime);
            let took = read(ClockId::Monotonic).saturating_sub(before);
            (took, Self { monotonic: before + took / 2, realtime })
        };
        let first = compare();
        (1..COMPARISONS).fold(first, |best, _| std::cmp::min_by_key(best, compare(), |(took, _)| *took)).1
    }

    /// The time of `CLOCK_MONOTONIC`, if this is one of `CLOCK_REALTIME` not far from now.
    pub fn monotonic(&self, realtime: u64) -> Option<u64> {
        let is_near = realtime.abs_diff(self.realtime) < NEAR;
        is_near.then(|| self.monotonic.wrapping_add(realtime.wrapping_sub(self.realtime)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_times_near_now_are_times() {
        let time = KernelTime { monotonic: 5_000_000_000, realtime: 900_000_000_000 };
        assert_eq!(time.monotonic(900_000_000_007), Some(5_000_000_007));
        assert_eq!(time.monotonic(899_999_999_990), Some(4_999_999_990));
        for far in [0, 899_000_000_000, 901_000_000_000, u64::MAX] {
            assert_eq!(time.monotonic(far), None, "{far}");
        }
        let (now, monotonic) = (KernelTime::now(), read(ClockId::Monotonic));
        let then = now.monotonic(read(ClockId::Realtime)).unwrap();
        assert!(then.abs_diff(monotonic) < NEAR, "{then} {monotonic}");
    }
}
