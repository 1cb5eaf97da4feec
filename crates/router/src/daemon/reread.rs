//! When everything that Linux has is read anew: at once, but not again and again. Whoever makes events come faster than they are taken in would have the
//! daemon do nothing else.

use std::time::{Duration, Instant};

/// From the end of one reading to the next one, at least.
const BETWEEN: Duration = Duration::from_millis(200);

/// And at least so many times as long as it took.
const TIMES: u32 = 4;

/// The last reading.
#[derive(Debug, Default)]
pub struct Reread {
    last: Option<(Instant, Duration)>,
}

impl Reread {
    /// A reading that began then has ended.
    pub fn done(&mut self, began: Instant, now: Instant) {
        self.last = Some((now, now.saturating_duration_since(began)));
    }

    /// How long the next one has to wait.
    pub fn due(&self, now: Instant) -> Duration {
        let left = |(end, took): (Instant, Duration)| {
            BETWEEN.max(took * TIMES).saturating_sub(now.saturating_duration_since(end))
        };
        self.last.map_or(Duration::ZERO, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_at_once_and_the_next_ones_leave_time_for_others() {
        let (mut reread, begin) = (Reread::default(), Instant::now());
        let after = |milliseconds| begin + Duration::from_millis(milliseconds);
        assert_eq!(reread.due(begin), Duration::ZERO);
        reread.done(begin, after(10));
        assert_eq!((reread.due(after(10)), reread.due(after(210))), (BETWEEN, Duration::ZERO));
        reread.done(begin, after(1000));
        assert_eq!(reread.due(after(2000)), Duration::from_secs(3));
    }
}
