//! Sending at a rate.

use std::thread;
use std::time::Duration;

use crate::clock::Moment;

/// Pauses shorter than this are spun away: a sleep takes longer than it is asked to.
const SHORTEST_SLEEP_NS: u64 = 200_000;

/// Longest sleep, so that Ctrl-C is heard.
const LONGEST_SLEEP_NS: u64 = 100_000_000;

/// Says how many frames may go out now, so that no more than `rate` per second have gone since the start.
#[derive(Debug)]
pub struct Pace {
    rate: Option<u64>,
    start: Moment,
}

impl Pace {
    /// At most `rate` frames per second, or as many as will go.
    pub fn new(rate: Option<u64>) -> Self {
        Self { rate, start: Moment::now() }
    }

    /// How many of `wanted` frames may go out when `sent` have gone. If none may, waits a moment first.
    #[inline]
    pub fn allow(&self, sent: u64, wanted: usize) -> usize {
        match self.rate {
            None => wanted,
            Some(rate) => self.allow_at(rate, sent, wanted),
        }
    }

    fn allow_at(&self, rate: u64, sent: u64, wanted: usize) -> usize {
        let elapsed = Moment::now().nanos_since(self.start);
        // The first frame goes at once, so one more is due than full intervals have passed.
        let due = (u128::from(elapsed) * u128::from(rate) / 1_000_000_000) as u64 + 1;
        let allowed = due.saturating_sub(sent);
        if allowed == 0 {
            let next = (u128::from(sent) * 1_000_000_000 / u128::from(rate)) as u64;
            pause(next.saturating_sub(elapsed));
        }
        wanted.min(usize::try_from(allowed).unwrap_or(usize::MAX))
    }
}

fn pause(nanos: u64) {
    if nanos >= SHORTEST_SLEEP_NS {
        thread::sleep(Duration::from_nanos(nanos.min(LONGEST_SLEEP_NS)));
    } else {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept() {
        let pace = Pace::new(Some(10_000));
        let mut sent = 0;
        while sent < 500 {
            sent += pace.allow(sent, 32) as u64;
        }
        // 500 frames: the last one is due 49.9 ms after the first.
        let seconds = pace.start.seconds();
        assert!((0.049..0.2).contains(&seconds), "{seconds} s");
        assert_eq!(Pace::new(None).allow(u64::MAX, 32), 32);
    }
}
