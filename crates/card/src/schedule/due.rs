//! When the rings of one class may send that wait for that: so that a ring of a lower class, whose turn comes first, leaves the wire to
//! them.

/// A ring that may send has its turn within so many ns, or has gone.
const LONGEST_TURN: u64 = 20_000;
/// Of a ring that waits for nothing.
const NOTHING: u64 = u64::MAX;

/// The rings of one class on one worker, by their places.
pub(crate) struct Due {
    until: Vec<u64>,
    least: u64,
}

impl Due {
    /// Nobody waits; with room for rings at so many places.
    pub fn new(places: usize) -> Self {
        Self { until: vec![NOTHING; places], least: NOTHING }
    }

    /// There is room for rings at so many places from now on.
    pub fn grow(&mut self, places: usize) {
        if self.until.len() < places {
            self.until.resize(places, NOTHING);
        }
    }

    /// The ring at this place waits until that time, in ns of the card's clock; 0: it does not wait.
    pub fn set(&mut self, at: usize, until: u64) {
        let Some(place) = self.until.get_mut(at) else { return };
        let until = if until == 0 { NOTHING } else { until };
        let before = core::mem::replace(place, until);
        if until <= self.least {
            self.least = until;
        } else if before == self.least {
            self.least = self.least();
        }
    }

    /// Whether a ring may send by now that has not had its turn yet.
    pub fn is_due(&mut self, now: u64) -> bool {
        if self.least > now {
            return false;
        }
        if now - self.least >= LONGEST_TURN {
            self.forget(now);
        }
        self.least <= now
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.least == NOTHING
    }

    /// Those that have had time enough have gone, or have nothing more.
    #[cold]
    fn forget(&mut self, now: u64) {
        let has_gone = |until: &&mut u64| **until <= now && now - **until >= LONGEST_TURN;
        self.until.iter_mut().filter(has_gone).for_each(|until| *until = NOTHING);
        self.least = self.least();
    }

    fn least(&self) -> u64 {
        self.until.iter().copied().min().unwrap_or(NOTHING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_waits_is_seen_whatever_others_of_its_class_do() {
        let mut due = Due::new(3);
        assert!(due.is_empty() && !due.is_due(u64::MAX / 2));
        due.set(0, 5_000);
        due.set(1, 9_000);
        // As if a third ring had been looked at last, which waits for longer, or for nothing.
        due.set(2, 70_000);
        assert!(!due.is_due(4_999) && due.is_due(5_000));
        due.set(2, 0);
        assert!(due.is_due(5_000));
        due.set(0, 80_000);
        assert_eq!([8_999, 9_000, 28_999, 29_000].map(|now| due.is_due(now)), [false, true, true, false]);
        assert!(!due.is_empty() && due.is_due(80_000), "one that has gone hides nobody");
        due.set(0, 0);
        assert!(due.is_empty());
        due.set(7, 1);
        assert!(due.is_empty(), "there is no such place");
        due.grow(8);
        due.set(7, 1);
        assert!(due.is_due(1));
    }
}
