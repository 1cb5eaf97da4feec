//! The timers that statime wants to be told of.

use std::time::Duration;

/// Which timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// An Announce is to be sent.
    Announce,
    /// A Sync is to be sent.
    Sync,
    /// A Delay_Req or a Pdelay_Req is to be sent.
    Delay,
    /// No Announce has come for too long.
    Receipt,
    /// The filter wants to steer.
    Filter,
    /// Masters are to be compared.
    Compare,
}

const ALL: [Timer; 6] = [Timer::Announce, Timer::Sync, Timer::Delay, Timer::Receipt, Timer::Filter, Timer::Compare];

/// When each goes off, in ns of what the engine is told of time.
#[derive(Clone, Debug, Default)]
pub struct Timers([Option<u64>; ALL.len()]);

impl Timers {
    /// It goes off so long after `now`.
    pub fn set(&mut self, timer: Timer, now: u64, after: Duration) {
        let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        self.0[timer as usize] = Some(now.saturating_add(after));
    }

    /// Those that have gone off; they do not again until they are set.
    pub fn take_due(&mut self, now: u64) -> impl Iterator<Item = Timer> + use<> {
        let due = ALL.map(|timer| {
            let place = &mut self.0[timer as usize];
            place.take_if(|at| *at <= now).map(|_| timer)
        });
        due.into_iter().flatten()
    }

    /// When the next one goes off.
    pub fn next(&self) -> Option<u64> {
        self.0.iter().flatten().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_goes_off_once_for_each_time_it_is_set() {
        let mut timers = Timers::default();
        assert_eq!(timers.next(), None);
        timers.set(Timer::Sync, 100, Duration::from_nanos(50));
        timers.set(Timer::Announce, 100, Duration::from_nanos(20));
        timers.set(Timer::Receipt, 100, Duration::MAX);
        assert_eq!(timers.next(), Some(120));
        assert_eq!(timers.take_due(119).count(), 0);
        assert_eq!(timers.take_due(150).collect::<Vec<_>>(), [Timer::Announce, Timer::Sync]);
        assert_eq!((timers.take_due(1_000).count(), timers.next()), (0, Some(u64::MAX)));
    }
}
