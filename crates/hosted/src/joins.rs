//! How much of the card's thread a user may have for coming and going: each greeting and each farewell takes it a while, and who joins and leaves without end
//! would have all of it. When a user's have taken a while, his next one waits for eight times as long; who goes does not wait, and nobody has greeted in vain.
//! Who calls and goes without a greeting is not limited by this, but by one call at a look.

use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often as long as it took a user waits until it is his turn again: he has a ninth of the thread.
const PAUSE: u32 = 8;
/// The longest pause.
const LONGEST: Duration = Duration::from_millis(500);

/// How long this thread has worked, ever: while it had no core it did nothing for anybody.
pub(crate) fn worked() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec.max(0) as u32)
}

/// Users who have come or gone a moment ago, and from when on they may again.
#[derive(Default)]
pub(crate) struct Joins {
    users: BTreeMap<u32, Instant>,
    /// What all of it has taken, ever, in nanoseconds.
    spent: Arc<AtomicU64>,
}

impl Joins {
    /// What it takes is added there.
    pub fn new(spent: Arc<AtomicU64>) -> Self {
        Self { users: BTreeMap::new(), spent }
    }

    /// Whether it is that user's turn.
    pub fn may(&self, user: u32, now: Instant) -> bool {
        self.users.get(&user).is_none_or(|from| *from <= now)
    }

    /// Somebody of that user has come or gone, which has taken so long until now.
    pub fn charge(&mut self, user: u32, took: Duration, now: Instant) {
        self.users.retain(|_, from| *from > now);
        let from = self.users.get(&user).copied().unwrap_or(now) + took * PAUSE;
        self.users.insert(user, from.min(now + LONGEST));
        // Relaxed: a count, which orders nothing.
        self.spent.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Whether somebody has to wait.
    pub fn has_waiting(&self, now: Instant) -> bool {
        self.users.values().any(|from| *from > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_and_goes_without_end_has_a_ninth_of_the_time_and_others_do_not_wait() {
        let (mut joins, mut now) = (Joins::default(), Instant::now());
        let (begin, took) = (now, Duration::from_micros(900));
        let mut had = Duration::ZERO;
        while now - begin < Duration::from_secs(1) {
            assert!(joins.may(8, now), "who has had nothing");
            if joins.may(7, now) {
                now += took;
                had += took;
                joins.charge(7, took, now);
            } else {
                assert!(joins.has_waiting(now));
                now += Duration::from_micros(100);
            }
        }
        assert!((100..115).contains(&had.as_millis()), "{had:?}");
        // However long it took, he comes in again.
        joins.charge(7, Duration::from_secs(60), now);
        now += LONGEST;
        assert!(joins.may(7, now) && !joins.has_waiting(now));
        joins.charge(8, took, now);
        assert_eq!(joins.users.len(), 1, "who waits for nothing is forgotten");
    }
}
