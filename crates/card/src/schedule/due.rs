//! When the rings of one class may send that wait for that: so that a ring of a lower class, whose turn comes first, leaves the wire to
//! them.

use crate::turns::{Armed, Item, Places, Queue};

/// A ring that may send has its turn within so many ns, or has gone.
const LONGEST_TURN: u64 = 20_000;

/// The rings of one class on one worker, by their places.
pub(crate) struct Due {
    waiting: Queue,
    places: Places,
}

impl Due {
    /// Nobody waits; with room for rings at so many places.
    pub fn new(places: usize) -> Self {
        let mut due = Self { waiting: Queue::default(), places: Places::default() };
        due.grow(places);
        due
    }

    /// There is room for rings at so many places from now on.
    pub fn grow(&mut self, places: usize) {
        if let Some(last) = places.checked_sub(1) {
            self.places.make_room(Item::Ring(last as u32));
        }
    }

    /// The ring at this place waits until that time, in ns of the card's clock; 0: it does not wait.
    pub fn set(&mut self, at: usize, until: u64) {
        let item = Item::Ring(at as u32);
        self.waiting.remove(item, &mut self.places);
        if until > 0 && self.places.has_room(item) {
            self.waiting.add(Armed { at: until, order: 0, item }, &mut self.places);
        }
    }

    /// Whether a ring may send by now that has not had its turn yet. Those that have had time enough have gone, or have nothing more.
    pub fn is_due(&mut self, now: u64) -> bool {
        while let Some(first) = self.waiting.first().filter(|first| first.at <= now) {
            if now - first.at < LONGEST_TURN {
                return true;
            }
            self.waiting.take_first(&mut self.places);
        }
        false
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
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
