//! The numbers of peers. One that has become free is given again last of all, and not while somebody who knew its owner has not read
//! that it has gone: he might take the new peer for the old one.
//!
//! What clients are told is another number for each that has had a slot: QEMU 7.2 frees what it knows of a peer that has gone, and writes to
//! that when one with the same number comes.

use std::collections::VecDeque;

/// Slots that nobody has, and how often each was given.
pub(super) struct Ids {
    free: VecDeque<u16>,
    given: Vec<u16>,
}

impl Ids {
    pub fn new(count: u16) -> Self {
        Self { free: (0..count).collect(), given: vec![0; usize::from(count)] }
    }

    /// What the next owner of a slot is called by clients: its remainder by the number of slots is the slot. The first is called as the slot.
    /// After all numbers of 16 bits they begin again.
    pub fn call(&mut self, slot: u16) -> u16 {
        let slots = self.given.len() as u16;
        let Some(given) = self.given.get_mut(usize::from(slot)) else { return slot };
        let called = given.checked_mul(slots).and_then(|first| first.checked_add(slot));
        *given = called.map_or(1, |_| *given + 1);
        called.unwrap_or(slot)
    }

    /// A slot that is free, and of which nobody believes that it is not.
    pub fn take(&mut self, is_believed: impl Fn(u16) -> bool) -> Option<u16> {
        let at = self.free.iter().position(|id| !is_believed(*id))?;
        self.free.remove(at)
    }

    /// How many are free, and held back by those who believe that they are not.
    pub fn count(&self, is_believed: impl Fn(u16) -> bool) -> usize {
        self.free.iter().filter(|id| is_believed(**id)).count()
    }

    pub fn give_back(&mut self, id: u16) {
        self.free.push_back(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_called_as_another_one_was() {
        for slots in [2_u16, 16, 63, 64] {
            let mut ids = Ids::new(slots);
            let rounds = usize::from(u16::MAX / slots);
            for slot in 0..slots {
                let called: Vec<u16> = (0..rounds).map(|_| ids.call(slot)).collect();
                assert!(called[0] == slot && called.is_sorted_by(|one, next| one < next), "{slots} {slot}");
                assert!(called.iter().all(|called| called % slots == slot));
            }
            // All numbers are used up at last, and it begins again.
            let again = (0..3).map(|_| ids.call(slots - 1)).find(|called| *called == slots - 1);
            assert_eq!(again, Some(slots - 1), "{slots}");
        }
    }

    #[test]
    fn the_one_that_was_free_for_longest_comes_first() {
        let mut ids = Ids::new(3);
        assert_eq!([ids.take(|_| false), ids.take(|_| false)], [Some(0), Some(1)]);
        ids.give_back(0);
        assert_eq!(ids.take(|_| false), Some(2));
        assert_eq!(ids.take(|id| id == 0), None);
        ids.give_back(2);
        assert_eq!([ids.take(|id| id == 0), ids.take(|_| false), ids.take(|_| false)], [Some(2), Some(0), None]);
    }
}
