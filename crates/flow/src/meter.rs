//! Meters: token buckets over given nanoseconds, shared by workers without a lock.
//!
//! A bucket is kept as the time at which it will be full again (the generic cell rate algorithm of ITU-T I.371, which is a
//! token bucket that nobody has to fill): one word, exchanged by compare-and-swap.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Parts of a nanosecond in which times are kept, so that a short frame at 100 Gb/s still has a time of its own.
const PARTS: u64 = 64;
const SECOND: u128 = 1_000_000_000 * PARTS as u128;

/// What a meter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Frames.
    Packets,
    /// Their bytes, without FCS.
    Bytes,
}

/// A meter as somebody asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeterSpec {
    /// What it counts.
    pub unit: Unit,
    /// How many a second, at least 1.
    pub rate: u64,
    /// How many at once, at least 1; it takes at most [`MAX_FILL`] to fill.
    pub burst: u64,
    /// What is beyond goes on, with a drop precedence that is so many steps worse, 1 or 2 (assured forwarding, RFC 2597); without, it is dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<u8>,
}

/// A burst that takes longer to fill than this is refused.
pub const MAX_FILL: Duration = Duration::from_secs(3600);

/// Why a meter cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeterError {
    /// Rate or burst is 0.
    #[error("a meter has a rate and a burst of at least 1")]
    Zero,
    /// There are three precedences.
    #[error("remark is 1 or 2: there are three drop precedences")]
    Remark,
    /// The burst takes too long to fill.
    #[error("a burst of {burst} at {rate} a second takes more than {} s", MAX_FILL.as_secs())]
    Fill {
        /// The burst.
        burst: u64,
        /// The rate.
        rate: u64,
    },
}

/// A meter.
#[derive(Debug)]
pub struct Meter {
    spec: MeterSpec,
    /// How long the whole burst takes, in parts.
    depth: u64,
    /// When the bucket will be full again, in parts since `start`. Any worker writes it.
    full_at: AtomicU64,
    start_ns: u64,
    /// Frames that it did not admit. Whoever drops or marks one has time for that.
    dropped: AtomicU64,
}

impl Meter {
    /// A meter with a full bucket. Times before `now_ns` count as `now_ns`; it works for nine years from then.
    ///
    /// # Errors
    /// Rate and burst are not what they have to be.
    pub fn new(spec: MeterSpec, now_ns: u64) -> Result<Self, MeterError> {
        let MeterSpec { rate, burst, .. } = spec;
        if rate == 0 || burst == 0 {
            return Err(MeterError::Zero);
        }
        if spec.remark.is_some_and(|steps| !(1..=2).contains(&steps)) {
            return Err(MeterError::Remark);
        }
        let depth = u128::from(burst) * SECOND / u128::from(rate);
        if depth > u128::from(MAX_FILL.as_secs()) * SECOND {
            return Err(MeterError::Fill { burst, rate });
        }
        Ok(Self { spec, depth: depth as u64, full_at: AtomicU64::new(0), start_ns: now_ns, dropped: AtomicU64::new(0) })
    }

    /// What was asked for.
    pub fn spec(&self) -> MeterSpec {
        self.spec
    }

    /// Whether so many frames with so many bytes may pass at `now_ns`; if they may, they are taken from the bucket. All or
    /// none.
    #[inline]
    pub fn admit(&self, now_ns: u64, packets: u64, bytes: u64) -> bool {
        self.admit_above(now_ns, packets, bytes, 0)
    }

    /// The same, if `reserve` packets or bytes are left in the bucket then.
    #[inline]
    pub fn admit_above(&self, now_ns: u64, packets: u64, bytes: u64, reserve: u64) -> bool {
        let amount = if self.spec.unit == Unit::Packets { packets } else { bytes };
        let cost = |amount: u64| u64::try_from(u128::from(amount) * SECOND / u128::from(self.spec.rate));
        let Ok(cost_now) = cost(amount) else { return self.refuse(packets) };
        let depth =
            if reserve == 0 { self.depth } else { self.depth.saturating_sub(cost(reserve).unwrap_or(u64::MAX)) };
        let now = now_ns.saturating_sub(self.start_ns).saturating_mul(PARTS);
        // Nothing else is published by this word, so no order is needed.
        let taken = self.full_at.fetch_update(Relaxed, Relaxed, |full_at| {
            let then = full_at.max(now).saturating_add(cost_now);
            (then.saturating_sub(now) <= depth).then_some(then)
        });
        taken.is_ok() || self.refuse(packets)
    }

    #[cold]
    fn refuse(&self, packets: u64) -> bool {
        self.dropped.fetch_add(packets, Relaxed);
        false
    }

    /// Frames that it did not admit.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 1_700_000_000_000_000_000;

    fn meter(unit: Unit, rate: u64, burst: u64) -> Meter {
        Meter::new(MeterSpec { unit, rate, burst, remark: None }, START).unwrap()
    }

    #[test]
    fn a_burst_passes_then_the_rate() {
        let meter = meter(Unit::Packets, 1000, 3);
        let passed = |now| (0..10).filter(|_| meter.admit(START + now, 1, 60)).count();
        assert_eq!(passed(0), 3);
        assert_eq!(passed(999_999), 0);
        assert_eq!(passed(1_000_000), 1);
        assert_eq!(passed(3_000_000), 2);
        assert_eq!(passed(1_000_000_000), 3);
        assert_eq!(meter.dropped(), 50 - 3 - 1 - 2 - 3);
    }

    #[test]
    fn bytes_count_all_or_none() {
        let meter = meter(Unit::Bytes, 1_000_000, 1500);
        assert!(!meter.admit(START, 1, 1501));
        assert!(meter.admit(START, 1, 1000));
        assert!(!meter.admit(START, 1, 501));
        assert!(meter.admit(START, 1, 500));
        assert!(!meter.admit(START, 1, u64::MAX));
    }

    #[test]
    fn time_that_goes_back_gives_nothing() {
        let meter = meter(Unit::Packets, 1, 1);
        assert!(meter.admit(START + 5_000_000_000, 1, 1));
        assert!(!meter.admit(START, 1, 1));
    }

    #[test]
    fn what_is_refused() {
        let new = |rate, burst| Meter::new(MeterSpec { unit: Unit::Bytes, rate, burst, remark: None }, 0).map(|_| ());
        assert_eq!(new(0, 1), Err(MeterError::Zero));
        assert_eq!(new(1, 0), Err(MeterError::Zero));
        assert_eq!(new(1, 3601), Err(MeterError::Fill { burst: 3601, rate: 1 }));
        assert_eq!(new(1, 3600), Ok(()));
    }

    /// The token bucket as it is usually written, in exact fractions: tokens times the rate's unit of time.
    struct Bucket {
        tokens: u128,
        last: u64,
    }

    proptest! {
        #[test]
        fn same_as_a_bucket_with_tokens(rate in 1u64..1_000_000, burst in 1u64..3000, frames in proptest::collection::vec((0u64..5_000_000, 1u64..3000), 1..200)) {
            // A second is a multiple of both units of time, so neither rounds, for rates that divide it.
            let rate = 1 << rate.ilog2().min(9);
            let meter = meter(Unit::Bytes, rate, burst);
            let mut judge = Bucket { tokens: u128::from(burst) * 1_000_000_000, last: 0 };
            let mut now = 0;
            for (pause, bytes) in frames {
                now += pause;
                let filled = judge.tokens + u128::from(now - judge.last) * u128::from(rate);
                (judge.tokens, judge.last) = (filled.min(u128::from(burst) * 1_000_000_000), now);
                let cost = u128::from(bytes) * 1_000_000_000;
                let passes = judge.tokens >= cost;
                judge.tokens -= if passes { cost } else { 0 };
                prop_assert_eq!(meter.admit(START + now, 1, bytes), passes);
            }
        }
    }
}
