//! When which queue pair is to be looked at: a heap in which each is at most once.

use crate::number::Moment;

const NONE: u32 = u32::MAX;

/// Times of queue pairs, which are called by their slot.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: Vec<(Moment, u32)>,
    /// Where a slot is in the heap.
    places: Vec<u32>,
}

impl Timers {
    /// The earliest time. It may be earlier than needed, never later.
    #[inline]
    pub fn first(&self) -> Option<Moment> {
        self.heap.first().map(|(time, _)| *time)
    }

    /// The slot is looked at by `time` at the latest. A time that is there already and is earlier stays: to move it would cost
    /// more than to look once in vain.
    #[inline]
    pub fn want(&mut self, slot: u32, time: Moment) {
        if self.places.len() <= slot as usize {
            self.places.resize(slot as usize + 1, NONE);
        }
        let place = self.places[slot as usize];
        if place == NONE {
            self.heap.push((time, slot));
            self.up(self.heap.len() - 1);
        } else if self.heap[place as usize].0 > time {
            self.heap[place as usize].0 = time;
            self.up(place as usize);
        }
    }

    /// Takes the slot whose time came first, if it has come.
    pub fn take(&mut self, now: Moment) -> Option<u32> {
        let &(time, slot) = self.heap.first()?;
        if time > now {
            return None;
        }
        self.remove_at(0);
        Some(slot)
    }

    /// The slot has no time any more.
    pub fn remove(&mut self, slot: u32) {
        if let Some(&place) = self.places.get(slot as usize)
            && place != NONE
        {
            self.remove_at(place as usize);
        }
    }

    fn remove_at(&mut self, place: usize) {
        let (_, slot) = self.heap.swap_remove(place);
        self.places[slot as usize] = NONE;
        if place < self.heap.len() {
            self.places[self.heap[place].1 as usize] = place as u32;
            self.down(place);
            self.up(place);
        }
    }

    fn up(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while place > 0 {
            let above = (place - 1) / 2;
            if self.heap[above].0 <= entry.0 {
                break;
            }
            self.heap[place] = self.heap[above];
            self.places[self.heap[place].1 as usize] = place as u32;
            place = above;
        }
        self.heap[place] = entry;
        self.places[entry.1 as usize] = place as u32;
    }

    fn down(&mut self, mut place: usize) {
        let entry = self.heap[place];
        loop {
            let mut below = 2 * place + 1;
            if below >= self.heap.len() {
                break;
            }
            if below + 1 < self.heap.len() && self.heap[below + 1].0 < self.heap[below].0 {
                below += 1;
            }
            if self.heap[below].0 >= entry.0 {
                break;
            }
            self.heap[place] = self.heap[below];
            self.places[self.heap[place].1 as usize] = place as u32;
            place = below;
        }
        self.heap[place] = entry;
        self.places[entry.1 as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn times_come_in_order(calls in prop::collection::vec((0u32..40, 0u64..1000, 0u8..4), 0..300)) {
            let (mut timers, mut model) = (Timers::default(), HashMap::<u32, u64>::new());
            for (slot, time, call) in calls {
                match call {
                    0 => {
                        timers.remove(slot);
                        model.remove(&slot);
                    }
                    1 => {
                        let due = model.iter().filter(|(_, at)| **at <= time).map(|(slot, at)| (*at, *slot)).min();
                        match (timers.take(Moment::new(time)), due) {
                            (Some(slot), Some((at, _))) => prop_assert_eq!(model.remove(&slot), Some(at)),
                            (taken, due) => prop_assert_eq!((taken, due), (None, None)),
                        }
                    }
                    _ => {
                        timers.want(slot, Moment::new(time));
                        let at = model.entry(slot).or_insert(time);
                        *at = time.min(*at);
                    }
                }
                let first = timers.first().map(Moment::nanoseconds);
                prop_assert_eq!(first, model.values().min().copied());
            }
        }
    }
}
