//! Time of the backend is paid by user, as pages are: whose programs have had others wait has none of its requests taken for a while.

use millrace_rdma::served::Account;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The longest that a user waits because others had to wait for it.
const MOST_PAUSE: Duration = Duration::from_secs(1);

/// Users that wait, and until when.
#[derive(Default)]
pub(crate) struct Busy(HashMap<u32, Instant>);

impl Busy {
    /// So many guests have waited so long for something that a program of that user wanted: now all its programs wait as long as they have together.
    pub fn pay(&mut self, of: Account, waited: Duration, guests: usize, now: Instant) {
        let pause = waited.saturating_mul(u32::try_from(guests).unwrap_or(u32::MAX)).min(MOST_PAUSE);
        self.0.retain(|_, until| *until > now);
        let until = self.0.entry(of.uid).or_insert(now);
        *until = (*until).max(now + pause);
    }

    /// How long that user waits yet; `None`: not at all.
    pub fn left(&self, of: Account, now: Instant) -> Option<Duration> {
        let left = self.0.get(&of.uid)?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_others_wait_waits_with_all_its_programs() {
        let (mut busy, begin) = (Busy::default(), Instant::now());
        let [one, other] = [1, 2].map(|uid| Account { uid, is_owner: false });
        let ms = Duration::from_millis;
        assert_eq!(busy.left(one, begin), None);
        busy.pay(one, ms(20), 5, begin);
        assert_eq!((busy.left(one, begin), busy.left(other, begin)), (Some(ms(100)), None));
        busy.pay(one, ms(1), 5, begin + ms(10));
        assert_eq!(busy.left(one, begin + ms(10)), Some(ms(90)), "it is no shorter");
        busy.pay(other, ms(900), 64, begin + ms(100));
        assert_eq!((busy.left(one, begin + ms(100)), busy.0.len()), (None, 1));
        assert_eq!(busy.left(other, begin + ms(100)), Some(MOST_PAUSE));
    }
}
