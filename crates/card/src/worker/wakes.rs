//! How much longer a worker sleeps than it wanted to: so much earlier it has to be up for a launch.

use std::time::Duration;

/// So long before a launch a worker that sleeps is up at least.
const LEAST: Duration = Duration::from_micros(100);
/// A machine that wakes later than this cannot be relied on by getting up earlier.
const MOST: Duration = Duration::from_millis(2);

/// What sleeps have shown.
#[derive(Default)]
pub(crate) struct Wakes {
    // By how much the worst of the last ones was too long.
    worst: Duration,
}

impl Wakes {
    /// How long before a launch the worker has to be up; it spins for the rest.
    pub fn early(&self) -> Duration {
        (self.worst + self.worst / 2).clamp(LEAST, MOST)
    }

    /// A sleep that was to last `wanted` at most has lasted `slept`.
    pub fn note(&mut self, wanted: Duration, slept: Duration) {
        // A shorter one was ended by somebody else.
        if let Some(over) = slept.checked_sub(wanted) {
            self.worst = over.max(self.worst - self.worst / 16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wakes_late_gets_up_earlier_and_forgets_it_slowly() {
        let (mut wakes, wanted, us) = (Wakes::default(), Duration::from_millis(5), Duration::from_micros);
        assert_eq!(wakes.early(), LEAST);
        wakes.note(wanted, wanted + us(400));
        assert_eq!(wakes.early(), us(600));
        wakes.note(wanted, us(20));
        assert_eq!(wakes.early(), us(600), "somebody has woken it");
        (0..16).for_each(|_| wakes.note(wanted, wanted + us(1)));
        assert!((us(150)..us(300)).contains(&wakes.early()), "{:?}", wakes.early());
        wakes.note(wanted, Duration::from_secs(1));
        assert_eq!(wakes.early(), MOST);
    }
}
