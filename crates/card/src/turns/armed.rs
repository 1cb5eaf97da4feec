//! Rings of one owner whose launch times come soon, sorted: the worker serves them before anything else has its turn, the earliest
//! first, and at equal times in an order that the shard says.
//!
//! A binary heap that knows where each ring is in it, so that one that a program kicks, or that ends, is taken out in as many steps as
//! the first: programs may arm thousands, and kick them as often as they like.

use super::item::{Item, key};

/// A ring, and when it wants to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Armed {
    /// In ns of the card's clock.
    pub at: u64,
    /// Of equal times the lowest is the first.
    pub order: u64,
    /// The ring.
    pub item: Item,
}

/// Where each ring is in the queue of its owner, by its [`key`]: what is said of one that is in none is out of date.
#[derive(Default)]
pub(crate) struct Places(Vec<u32>);

impl Places {
    /// The item can be armed without an allocation here from now on.
    pub fn make_room(&mut self, item: Item) {
        if let Some(key) = key(item) {
            self.0.resize(self.0.len().max(key as usize + 1), 0);
        }
    }

    /// Whether there is.
    pub fn has_room(&self, item: Item) -> bool {
        self.of(item).is_some()
    }

    fn of(&self, item: Item) -> Option<usize> {
        Some(*self.0.get(key(item)? as usize)? as usize)
    }

    fn set(&mut self, item: Item, place: usize) {
        if let Some(of) = key(item).and_then(|key| self.0.get_mut(key as usize)) {
            *of = place as u32;
        }
    }
}

/// Those of one owner, as a heap: what is at a place comes before what is at twice that place and 1 or 2.
#[derive(Default)]
pub(crate) struct Queue(Vec<Armed>);

impl Queue {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a ring for which there is [room](Places::make_room).
    pub fn add(&mut self, armed: Armed, places: &mut Places) {
        self.0.push(armed);
        self.rise(self.0.len() - 1, places);
    }

    #[inline]
    pub fn first(&self) -> Option<Armed> {
        self.0.first().copied()
    }

    pub fn take_first(&mut self, places: &mut Places) -> Option<Armed> {
        let first = self.first()?;
        self.take(0, places);
        Some(first)
    }

    /// Takes a ring out, wherever it is. `false`: it is not here.
    pub fn remove(&mut self, item: Item, places: &mut Places) -> bool {
        let Some(place) = places.of(item).filter(|&place| self.0.get(place).is_some_and(|armed| armed.item == item))
        else {
            return false;
        };
        self.take(place, places);
        true
    }

    /// Takes out what is at a place. The last one comes there, and goes where it belongs.
    fn take(&mut self, place: usize, places: &mut Places) {
        self.0.swap_remove(place);
        if place < self.0.len() {
            let place = self.rise(place, places);
            self.sink(place, places);
        }
    }

    /// Brings what is at a place before all that come later than it. Returns where it is then.
    fn rise(&mut self, mut place: usize, places: &mut Places) -> usize {
        let armed = self.0[place];
        while let Some(above) = place.checked_sub(1).map(|place| place / 2)
            && armed < self.0[above]
        {
            self.put(place, self.0[above], places);
            place = above;
        }
        self.put(place, armed, places);
        place
    }

    /// Brings what is at a place behind all that come earlier than it.
    fn sink(&mut self, mut place: usize, places: &mut Places) {
        let armed = self.0[place];
        loop {
            let below = 2 * place + 1..self.0.len().min(2 * place + 3);
            let Some(first) = below.min_by_key(|&place| self.0[place]).filter(|&first| self.0[first] < armed) else {
                break;
            };
            self.put(place, self.0[first], places);
            place = first;
        }
        self.put(place, armed, places);
    }

    fn put(&mut self, place: usize, armed: Armed, places: &mut Places) {
        self.0[place] = armed;
        places.set(armed.item, place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        /// This ring is armed in one of two queues, for this time.
        Add(u32, usize, u64),
        Remove(u32),
        TakeFirst(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..60_u32, 0..2_usize, 0..40_u64).prop_map(|(ring, queue, at)| Step::Add(ring, queue, at)),
            2 => (0..70_u32).prop_map(Step::Remove),
            1 => (0..2_usize).prop_map(Step::TakeFirst),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn a_queue_is_a_sorted_list_from_which_any_can_be_taken(steps in proptest::collection::vec(step(), 1..200)) {
            let (mut queues, mut places) = ([Queue::default(), Queue::default()], Places::default());
            (0..60).for_each(|ring| places.make_room(Item::Ring(ring)));
            let mut naive: [BTreeMap<Item, Armed>; 2] = Default::default();
            for step in steps {
                match step {
                    Step::Add(ring, queue, at) => {
                        let armed = Armed { at, order: u64::from(ring % 7), item: Item::Ring(ring) };
                        // A ring is in one queue at most.
                        for (queue, naive) in queues.iter_mut().zip(&mut naive) {
                            prop_assert_eq!(queue.remove(armed.item, &mut places), naive.remove(&armed.item).is_some());
                        }
                        queues[queue].add(armed, &mut places);
                        naive[queue].insert(armed.item, armed);
                    }
                    Step::Remove(ring) => {
                        for (queue, naive) in queues.iter_mut().zip(&mut naive) {
                            let item = Item::Ring(ring);
                            prop_assert_eq!(queue.remove(item, &mut places), naive.remove(&item).is_some());
                        }
                    }
                    Step::TakeFirst(queue) => {
                        let first = queues[queue].take_first(&mut places);
                        prop_assert_eq!(first, naive[queue].values().min().copied());
                        first.map(|first| naive[queue].remove(&first.item));
                    }
                }
                for (queue, naive) in queues.iter().zip(&naive) {
                    prop_assert_eq!(queue.first(), naive.values().min().copied());
                    prop_assert_eq!(queue.is_empty(), naive.is_empty());
                }
            }
        }
    }
}
