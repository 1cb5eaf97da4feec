//! How much of something there may be in a time.

use crate::number::Moment;

/// What may come at once after a pause.
const BURST: u64 = 1024;
/// Afterwards, one in this time: 20,000 in a second.
const NANOSECONDS: u64 = 50_000;

/// A bucket of tokens: each message takes one.
#[derive(Debug)]
pub(super) struct Bucket {
    left: u64,
    filled: u64,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { left: BURST, filled: 0 }
    }
}

impl Bucket {
    /// Whether one more may come.
    pub fn take(&mut self, now: Moment) -> bool {
        let grown = now.nanoseconds().saturating_sub(self.filled) / NANOSECONDS;
        self.filled += grown * NANOSECONDS;
        self.left = self.left.saturating_add(grown).min(BURST);
        let has = self.left > 0;
        self.left -= u64::from(has);
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_so_many_in_a_second() {
        let mut bucket = Bucket::default();
        let count = |bucket: &mut Bucket, at: u64| (0..5000).filter(|_| bucket.take(Moment::new(at))).count() as u64;
        assert_eq!(count(&mut bucket, 0), BURST);
        assert_eq!((count(&mut bucket, 49_999), count(&mut bucket, 50_000)), (0, 1));
        // In steps that are no multiples of it nothing is lost.
        let in_a_second: u64 = (1..=100_000).map(|step| count(&mut bucket, 50_000 + step * 10_000)).sum();
        assert_eq!(in_a_second, 20_000);
        assert_eq!(count(&mut bucket, 100_000_000_000), BURST);
        // A clock that stands, or one that is late.
        assert_eq!((count(&mut bucket, 100_000_000_000), count(&mut bucket, 7)), (0, 0));
    }
}
