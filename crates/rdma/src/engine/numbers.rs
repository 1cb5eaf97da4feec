//! From the number of a queue pair to its place.

use crate::number::Qpn;
use rustc_hash::FxHashMap;

const NONE: u32 = u32::MAX;

/// A table with a place for each number that there may be; a look into it is one load.
#[derive(Debug)]
pub(super) struct Numbers {
    first: u32,
    slots: Box<[u32]>,
    /// The number that is tried next: those just given back are used as late as can be, or packets of the old connection
    /// would come to the new one.
    next: u32,
    general: u32,
    /// How many queue pairs of this engine are connected with that number, or were until now. It is given to nobody meanwhile: whoever has it
    /// is the other end of these.
    named: FxHashMap<Qpn, u32>,
}

impl Numbers {
    pub fn new(first: u32, count: u32) -> Self {
        let first = first.clamp(2, 0xff_fffe);
        let count = count.clamp(1, 0xff_ffff - first);
        Self {
            first,
            slots: vec![NONE; count as usize].into_boxed_slice(),
            next: 0,
            general: NONE,
            named: FxHashMap::default(),
        }
    }

    /// Where the queue pair of that number is.
    #[inline]
    pub fn slot(&self, number: Qpn) -> Option<u32> {
        let slot = match self.slots.get(number.value().wrapping_sub(self.first) as usize) {
            Some(slot) => *slot,
            None if number == Qpn::GENERAL => self.general,
            None => NONE,
        };
        (slot != NONE).then_some(slot)
    }

    /// A number for what is at `slot`.
    pub fn give(&mut self, slot: u32) -> Option<Qpn> {
        let count = self.slots.len() as u32;
        for _ in 0..count {
            let at = self.next;
            self.next = (at + 1) % count;
            if self.slots[at as usize] == NONE && !self.named.contains_key(&Qpn::new(self.first + at)) {
                self.slots[at as usize] = slot;
                return Some(Qpn::new(self.first + at));
            }
        }
        None
    }

    /// A queue pair names `new` as its other end, and not `old` any more.
    pub fn rename(&mut self, old: Qpn, new: Qpn) {
        if old == new {
            return;
        }
        if let Some(count) = self.named.get_mut(&old) {
            *count -= 1;
            if *count == 0 {
                self.named.remove(&old);
            }
        }
        if new != Qpn::default() {
            *self.named.entry(new).or_insert(0) += 1;
        }
    }

    /// The number 1 for what is at `slot`, unless somebody has it.
    pub fn give_general(&mut self, slot: u32) -> Option<Qpn> {
        if self.general != NONE {
            return None;
        }
        self.general = slot;
        Some(Qpn::GENERAL)
    }

    pub fn take_back(&mut self, number: Qpn) {
        if number == Qpn::GENERAL {
            self.general = NONE;
        } else if let Some(slot) = self.slots.get_mut(number.value().wrapping_sub(self.first) as usize) {
            *slot = NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_again_as_late_as_can_be() {
        let mut numbers = Numbers::new(16, 3);
        let given: Vec<_> = (0..3).map(|slot| numbers.give(slot).unwrap().value()).collect();
        assert_eq!((given, numbers.give(3)), (vec![16, 17, 18], None));
        numbers.take_back(Qpn::new(17));
        numbers.take_back(Qpn::new(16));
        assert_eq!(numbers.slot(Qpn::new(16)), None);
        assert_eq!(numbers.give(7), Some(Qpn::new(16)));
        assert_eq!((numbers.slot(Qpn::new(16)), numbers.slot(Qpn::new(18))), (Some(7), Some(2)));
        assert_eq!(numbers.slot(Qpn::GENERAL), None);
        assert_eq!((numbers.give_general(9), numbers.give_general(9)), (Some(Qpn::GENERAL), None));
        assert_eq!(numbers.slot(Qpn::GENERAL), Some(9));
        assert_eq!(numbers.slot(Qpn::new(0)), None);
    }
}
