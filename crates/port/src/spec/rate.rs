//! How many frames in a second.

use super::number;
use std::num::NonZeroU64;

/// Frames per second, from 1 to 10^9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(NonZeroU64);

impl Rate {
    const MAX: u64 = 1_000_000_000;

    /// `pps` frames per second; `None` unless it is from 1 to 10^9.
    pub fn new(pps: u64) -> Option<Self> {
        NonZeroU64::new(pps).filter(|pps| pps.get() <= Self::MAX).map(Self)
    }

    /// Frames per second.
    pub fn pps(self) -> u64 {
        self.0.get()
    }

    /// Nanoseconds after the first frame at which frame `number` (from 0) is due; the last moment there is when it lies
    /// beyond.
    pub fn due_ns(self, number: u64) -> u64 {
        const SECOND: u64 = 1_000_000_000;
        let (seconds, rest) = (number / self.0, number % self.0);
        // rest < 10^9, so the product fits.
        seconds.saturating_mul(SECOND).saturating_add(rest * SECOND / self.0)
    }
}

/// A rate, with `pps` behind it or not.
pub(super) fn parse(text: &str) -> Option<Rate> {
    number(text.strip_suffix("pps").unwrap_or(text)).and_then(Rate::new)
}
