//! How long something took, many times: a distribution in little memory.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Counts by nanoseconds: four classes for each power of two, so a percentile is at most a quarter too high.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delays {
    classes: [u64; CLASSES],
    count: u64,
    most: u64,
}

const CLASSES: usize = 4 * 40;

/// What a distribution says, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many.
    pub count: u64,
    /// Half of them took at most so long.
    pub p50_us: f64,
    /// All but one in a hundred did.
    pub p99_us: f64,
    /// All did.
    pub max_us: f64,
}

impl Default for Delays {
    fn default() -> Self {
        Self { classes: [0; CLASSES], count: 0, most: 0 }
    }
}

impl Delays {
    /// Adds one.
    pub fn add(&mut self, delay: Duration) {
        let nanoseconds = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.classes[class(nanoseconds)] += 1;
        self.count += 1;
        self.most = self.most.max(nanoseconds);
    }

    /// What they were like.
    pub fn summary(&self) -> Summary {
        let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        let of = |share: f64| microseconds(self.percentile(share));
        Summary { count: self.count, p50_us: of(0.5), p99_us: of(0.99), max_us: microseconds(self.most) }
    }

    fn percentile(&self, share: f64) -> u64 {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper_end(class).min(self.most);
            }
        }
        self.most
    }
}

fn class(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(4);
    let power = value.ilog2() as usize;
    let quarter = (value >> (power - 2)) as usize & 3;
    (4 * (power - 2) + quarter).min(CLASSES - 1)
}

fn upper_end(class: usize) -> u64 {
    let (power, quarter) = (class / 4, class as u64 % 4);
    ((5 + quarter) << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_a_quarter_too_high_at_most() {
        let mut delays = Delays::default();
        (1..=1000_u64).for_each(|microseconds| delays.add(Duration::from_micros(microseconds)));
        let summary = delays.summary();
        assert_eq!((summary.count, summary.max_us), (1000, 1000.0));
        assert!((500.0..=625.0).contains(&summary.p50_us) && (990.0..=1000.0).contains(&summary.p99_us), "{summary:?}");
        assert_eq!(Delays::default().summary(), Summary::default());
        (0..64).for_each(|power| assert!(upper_end(class(1 << power)) >= (1 << power.min(41))));
    }
}
