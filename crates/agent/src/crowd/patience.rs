//! A clock for what others have to do in time. It stands while nobody could have been heard.

use std::time::{Duration, Instant};

/// Most that a look adds: whatever took longer was not the others' doing.
pub const MOST: Duration = Duration::from_millis(100);

/// The clock.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    looked: Instant,
    now: Instant,
}

impl Patience {
    /// A clock that says what it is told first.
    pub fn new(now: Instant) -> Self {
        Self { looked: now, now }
    }

    /// Everybody was listened to; what time it is by this clock.
    pub fn look(&mut self, now: Instant) -> Instant {
        let passed = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        self.now += passed.min(MOST);
        self.now
    }
}
