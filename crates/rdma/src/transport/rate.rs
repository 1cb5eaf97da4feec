//! How fast a queue pair sends where routers are congested: the reaction point of DCQCN (Zhu and others, SIGCOMM 2015,
//! section 5; annex A17.9.2 for marks and notifications).
//!
//! A notification cuts the rate, by more the more often there were some. Without notifications it comes back: half the way
//! five times, then beyond in steps. All of it is computed when something is to be sent; there are no timers.

use crate::number::Moment;

/// Weight of a new look at congestion.
const GAIN: f64 = 1.0 / 256.0;
/// Time between looks, and between steps up, in nanoseconds.
const STEP: u64 = 55_000;
/// Steps half way back before the rate goes beyond.
const FAST_STEPS: u32 = 5;
/// A step beyond, in bits per second: the first ones, and the later ones.
const ADD: f64 = 40e6;
const ADD_MORE: f64 = 400e6;
/// However congested, it sends that fast.
const LOWEST: f64 = 10e6;
/// Steps looked at in one go: after that many it is at the line's rate in any case.
const STEPS: u64 = 1024;
/// How far ahead of its rate it may be, in nanoseconds, so that a burst goes in one go.
const AHEAD: u64 = 10_000;

/// The rate of a queue pair that was told of congestion.
#[derive(Clone, Debug)]
pub(crate) struct Rate {
    line: f64,
    current: f64,
    target: f64,
    alpha: f64,
    last_step: Moment,
    steps: u32,
    next: Moment,
}

impl Rate {
    pub fn new(now: Moment, line: u64) -> Self {
        let line = line as f64;
        Self { line, current: line, target: line, alpha: 1.0, last_step: now, steps: 0, next: now }
    }

    /// A notification came.
    pub fn cut(&mut self, now: Moment) {
        self.catch_up(now);
        self.target = self.current;
        self.current = (self.current * (1.0 - self.alpha / 2.0)).max(LOWEST.min(self.line));
        self.alpha = (1.0 - GAIN) * self.alpha + GAIN;
        (self.steps, self.last_step) = (0, now);
    }

    fn catch_up(&mut self, now: Moment) {
        let passed = now.nanoseconds().saturating_sub(self.last_step.nanoseconds()) / STEP;
        if passed == 0 {
            return;
        }
        for _ in 0..passed.min(STEPS) {
            self.alpha *= 1.0 - GAIN;
            self.steps = self.steps.saturating_add(1);
            if self.steps > FAST_STEPS {
                let add = if self.steps > 2 * FAST_STEPS { ADD_MORE } else { ADD };
                self.target = (self.target + add).min(self.line);
            }
            self.current = f64::midpoint(self.current, self.target).min(self.line);
        }
        if passed > STEPS {
            self.current = self.line;
        }
        self.last_step = Moment::new(self.last_step.nanoseconds() + passed * STEP);
    }

    /// Whether it may send now.
    #[inline]
    pub fn may_send(&mut self, now: Moment) -> bool {
        now.nanoseconds() + AHEAD >= self.next.nanoseconds()
    }

    /// It has sent a packet with that many bytes of payload.
    pub fn sent(&mut self, now: Moment, bytes: u64) {
        self.catch_up(now);
        // 66 bytes of headers and check sums on a wire.
        let time = (bytes + 66) as f64 * 8e9 / self.current;
        self.next = Moment::new(self.next.nanoseconds().max(now.nanoseconds()) + time as u64);
    }

    /// When it may send again, if not now.
    #[inline]
    pub fn later(&self, now: Moment) -> Option<Moment> {
        let next = Moment::new(self.next.nanoseconds().saturating_sub(AHEAD));
        (next > now).then_some(next)
    }

    #[cfg(test)]
    fn current(&self) -> f64 {
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_cut_and_quiet_brings_back() {
        let mut rate = Rate::new(Moment::new(0), 10_000_000_000);
        rate.cut(Moment::new(1));
        assert!((rate.current() - 5e9).abs() < 1e6, "the first one cuts by half");
        for turn in 0..1000 {
            rate.cut(Moment::new(1 + turn));
        }
        assert!(rate.current() >= LOWEST && rate.current() < 2.0 * LOWEST);
        rate.sent(Moment::new(100_000_000), 1);
        assert!((rate.current() - 1e10).abs() < 1e8, "{}", rate.current());
    }

    #[test]
    fn packets_keep_their_distance() {
        let mut rate = Rate::new(Moment::new(0), 8_000_000_000);
        let mut now = 0;
        for _ in 0..1000 {
            while !rate.may_send(Moment::new(now)) {
                now += 10;
            }
            rate.sent(Moment::new(now), 934);
        }
        assert!((980_000..1_000_000).contains(&now), "1000 bytes a microsecond: {now}");
    }
}
