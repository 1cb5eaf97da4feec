//! Values with fixed places, in lists by age.

/// No place.
const NONE: u32 = u32::MAX;

/// Which list a value is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Handshakes whose client's address may be invented.
    Unconfirmed,
    /// Connections that an instance has answered, and whose client has gone on, though its address may be invented.
    Answered,
    /// Connections.
    Confirmed,
}

#[derive(Debug)]
struct Slot<T> {
    value: Option<T>,
    list: List,
    before: u32,
    behind: u32,
}

/// First and last of a list, and how many are in it.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
    len: usize,
}

/// Values by place. A place stays the same until its value is removed, and is then given to another.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    lists: [Ends; 3],
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), lists: [Ends { first: NONE, last: NONE, len: 0 }; 3] }
    }
}

impl<T> Slots<T> {
    /// With memory for so many values.
    pub fn with_capacity(most: usize) -> Self {
        Self { slots: Vec::with_capacity(most), free: Vec::with_capacity(most), ..Self::default() }
    }

    /// How many places there are, with values or without.
    pub fn places(&self) -> usize {
        self.slots.len()
    }

    /// Puts a value in, as the newest of the list.
    pub fn insert(&mut self, list: List, value: T) -> u32 {
        let slot = Slot { value: Some(value), list, before: NONE, behind: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        self.append(at, list);
        at
    }

    /// The value at this place.
    pub fn get(&self, at: u32) -> Option<&T> {
        self.slots.get(at as usize)?.value.as_ref()
    }

    /// The value at this place.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.slots.get_mut(at as usize)?.value.as_mut()
    }

    /// Takes it out.
    pub fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.slots.get_mut(at as usize)?.value.take()?;
        self.unlink(at);
        self.free.push(at);
        Some(value)
    }

    /// It becomes the newest of this list.
    pub fn renew(&mut self, at: u32, list: List) {
        if self.get(at).is_some() {
            self.unlink(at);
            self.append(at, list);
        }
    }

    /// The place of the oldest value of the list.
    pub fn oldest(&self, list: List) -> Option<u32> {
        let first = self.lists[list as usize].first;
        (first != NONE).then_some(first)
    }

    /// How many values are in the list.
    pub fn len(&self, list: List) -> usize {
        self.lists[list as usize].len
    }

    /// All values and their places.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| Some((at as u32, slot.value.as_ref()?)))
    }

    fn append(&mut self, at: u32, list: List) {
        let last = self.lists[list as usize].last;
        let slot = &mut self.slots[at as usize];
        (slot.list, slot.before, slot.behind) = (list, last, NONE);
        match self.slots.get_mut(last as usize) {
            Some(slot) => slot.behind = at,
            None => self.lists[list as usize].first = at,
        }
        let ends = &mut self.lists[list as usize];
        ends.last = at;
        ends.len += 1;
    }

    fn unlink(&mut self, at: u32) {
        let Slot { list, before, behind, .. } = self.slots[at as usize];
        let ends = &mut self.lists[list as usize];
        ends.len -= 1;
        if before == NONE {
            ends.first = behind;
        }
        if behind == NONE {
            ends.last = before;
        }
        if let Some(slot) = self.slots.get_mut(before as usize) {
            slot.behind = behind;
        }
        if let Some(slot) = self.slots.get_mut(behind as usize) {
            slot.before = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LISTS: [List; 3] = [List::Unconfirmed, List::Answered, List::Confirmed];

    /// Values of a list from the oldest on.
    fn drain(slots: &mut Slots<u32>, list: List) -> Vec<u32> {
        let mut values = Vec::new();
        while let Some(at) = slots.oldest(list) {
            values.push(slots.remove(at).unwrap());
        }
        values
    }

    proptest! {
        #[test]
        fn same_as_two_vectors(ops in proptest::collection::vec((0u8..4, 0usize..3, any::<usize>()), 0..120)) {
            let mut slots = Slots::default();
            let mut judge: [Vec<(u32, u32)>; 3] = Default::default();
            for (value, (op, list, which)) in (0u32..).zip(ops) {
                let list = LISTS[list];
                let all: Vec<u32> = judge.iter().flatten().map(|(at, _)| *at).collect();
                let at = all.get(which % all.len().max(1)).copied();
                let take = |judge: &mut [Vec<(u32, u32)>; 3], at| {
                    let list = judge.iter_mut().find(|list| list.iter().any(|(other, _)| *other == at)).unwrap();
                    let place = list.iter().position(|(other, _)| *other == at).unwrap();
                    list.remove(place)
                };
                match (op, at) {
                    (0 | 1, _) | (_, None) => {
                        let at = slots.insert(list, value);
                        prop_assert!(!all.contains(&at));
                        judge[list as usize].push((at, value));
                    }
                    (2, Some(at)) => {
                        slots.renew(at, list);
                        let entry = take(&mut judge, at);
                        judge[list as usize].push(entry);
                    }
                    (_, Some(at)) => prop_assert_eq!(slots.remove(at), Some(take(&mut judge, at).1)),
                }
                prop_assert!(judge.iter().flatten().all(|(at, value)| slots.get(*at) == Some(value)));
            }
            for list in LISTS {
                prop_assert_eq!(slots.len(list), judge[list as usize].len());
                let values: Vec<u32> = judge[list as usize].iter().map(|(_, value)| *value).collect();
                prop_assert_eq!(drain(&mut slots, list), values);
            }
        }
    }
}
