//! Retries: when nothing comes, and when the other end has no buffer (volume 1, 9.7.5.2.8 and 9.9.2.1.1).

use super::Requester;
use crate::number::{Moment, Psn};
use crate::transport::{Broken, Config, Environment};
use crate::work::{Progress, Status};
use core::time::Duration;

/// How long to wait for a buffer, in units of 10 us, by code (volume 1, table 45).
const RNR_TIMES: [u64; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

fn rnr_time(code: u8) -> Duration {
    Duration::from_micros(10 * RNR_TIMES[usize::from(code & 31)])
}

/// How long an answer may take; none: for ever.
#[inline]
fn timeout<M>(config: &Config, env: &Environment<'_, M>) -> Option<Duration> {
    (config.timeout != 0).then(|| Duration::from_nanos(4096 << (config.timeout & 31)).max(env.options.min_timeout))
}

impl Requester {
    /// A packet went out.
    #[inline]
    pub(super) fn on_sent<M>(&mut self, config: &Config, env: &Environment<'_, M>, psn: Psn, is_new: bool) {
        self.start_timer(config, env);
        if config.extended {
            self.watch(env.now, psn, is_new);
        }
    }

    /// Something is on its way.
    #[inline]
    pub(in crate::transport) fn start_timer<M>(&mut self, config: &Config, env: &Environment<'_, M>) {
        if self.timer.is_none() {
            self.timer = timeout(config, env).map(|time| env.now + time);
        }
    }

    /// What is on its way has the full time from when the timer is started.
    #[inline]
    pub(in crate::transport) fn stop_timer(&mut self) {
        self.timer = None;
    }

    /// Answers came: what is on its way now has the full time.
    #[inline]
    pub(super) fn set_timer<M>(&mut self, config: &Config, env: &Environment<'_, M>) {
        self.timer = if self.una == self.end { None } else { timeout(config, env).map(|time| env.now + time) };
    }

    /// The other end has no buffer for the oldest request.
    pub(super) fn no_buffer<M>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        code: u8,
    ) -> Result<(), Broken> {
        env.counters.rnr_received += 1;
        if self.waiting.is_some() {
            return Ok(());
        }
        if self.rnr_retries == 0 {
            return self.fail(config, env, Status::RnrRetryExceeded);
        }
        if self.rnr_retries < 7 {
            self.rnr_retries -= 1;
        }
        self.waiting = Some(env.now + rnr_time(code));
        self.timer = None;
        self.go_back();
        Ok(())
    }

    /// A time may have come.
    pub fn expire<M>(&mut self, config: &Config, env: &mut Environment<'_, M>) -> Result<(), Broken> {
        if self.waiting.is_some_and(|until| until <= env.now) {
            self.waiting = None;
        }
        self.look_for_tail(env.now);
        if self.timer.is_none_or(|until| until > env.now) {
            return Ok(());
        }
        env.counters.timeouts += 1;
        // What failed and is not at the front yet waits for answers too; so the front has begun.
        let begun = self.queue.slot(self.queue.first).is_some_and(|slot| slot.progress == Progress::Begun);
        if !begun {
            self.timer = None;
            return Ok(());
        }
        if self.retries == 0 {
            return self.fail(config, env, Status::RetryExceeded);
        }
        self.retries -= 1;
        self.went_back_at = None;
        self.forget_rounds();
        self.go_back();
        self.timer = timeout(config, env).map(|time| env.now + time);
        Ok(())
    }

    /// When to look again.
    #[inline]
    pub fn deadline(&self) -> Option<Moment> {
        let first = match (self.timer, self.waiting) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        match (first, self.tail_deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_specification() {
        assert_eq!(rnr_time(0), Duration::from_micros(655_360));
        assert_eq!(rnr_time(1), Duration::from_micros(10));
        assert_eq!(rnr_time(12), Duration::from_micros(640));
        assert_eq!(rnr_time(31), Duration::from_micros(491_520));
        assert!((2..32).all(|code| rnr_time(code) > rnr_time(code - 1)));
    }
}
