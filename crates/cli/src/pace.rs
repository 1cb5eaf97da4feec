//! Sending at a rate.

use std::thread;
use std::time::Duration;

use millrace_tool::clock::Moment;
use millrace_tool::traffic::Rate;

/// Pauses shorter than this are spun away: a sleep takes longer than it is asked to.
const SHORTEST_SLEEP_NS: u64 = 200_000;

/// Longest sleep, so that Ctrl-C is heard.
const LONGEST_SLEEP_NS: u64 = 100_000_000;

/// Says how many frames may go out now, so that the rate since the start is not above the one asked for.
#[derive(Debug)]
pub struct Pace {
    rate: Option<Rate>,
    start: Moment,
}

impl Pace {
    /// At most that rate, or as many as will go.
    pub fn new(rate: Option<Rate>) -> Self {
        Self { rate, start: Moment::now() }
    }

    /// How many of the next frames, which have these lengths, may go out when `frames` frames of `bytes` bytes have gone. If
    /// none may, waits a moment first.
    #[inline]
    pub fn allow(&self, frames: u64, bytes: u64, lens: &[u16]) -> usize {
        match self.rate {
            None => lens.len(),
            Some(rate) => self.allow_at(rate, frames, bytes, lens),
        }
    }

    fn allow_at(&self, rate: Rate, frames: u64, bytes: u64, lens: &[u16]) -> usize {
        let elapsed = Moment::now().nanos_since(self.start);
        let allowed = rate.allow(elapsed, frames, bytes, lens);
        if allowed == 0 {
            pause(rate.next(frames, bytes).saturating_sub(elapsed));
        }
        allowed
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
        let pace = Pace::new(Some(Rate::Frames(10_000.0)));
        let mut sent = 0;
        while sent < 500 {
            sent += pace.allow(sent, 64 * sent, &[64; 32]) as u64;
        }
        // 500 frames: the last one is due 49.9 ms after the first.
        let seconds = pace.start.seconds();
        assert!((0.049..0.2).contains(&seconds), "{seconds} s");
        assert_eq!(Pace::new(None).allow(u64::MAX, 0, &[64; 32]), 32);
    }
}
