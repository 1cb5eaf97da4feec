//! Doorbells between hosts: each end keeps those that have come, and the sender knows how many that can be, and which numbers are wanted.

use super::record::{BELL, TAKEN, WANTED, item};
use crate::bell::{Bell, Filter, Full, Sent};
use crate::engine::Breach;
use std::collections::VecDeque;

/// Doorbells that were sent, and of which the sender does not know that they were taken.
const MOST: u32 = 256;
/// So many are taken before the other end is told.
const BATCH: u32 = MOST / 4;

/// What one end knows.
#[derive(Debug, Default)]
pub struct Bells {
    /// Those that have not gone into a record, and whether they may stand for the next one.
    waiting: VecDeque<(u16, bool)>,
    /// Rung, and taken at the other end, modulo 2^32.
    rung: u32,
    taken_there: u32,
    /// What the other end wants: ranges, in order. `None`: it has not said.
    wanted: Option<Vec<(u16, u16)>>,
    /// Those that have come.
    came: VecDeque<u16>,
    taken: u32,
    told: u32,
    /// What this end wants has changed since it was said.
    has_changed: bool,
    /// Somebody is the only one who rings them, or hears them.
    pub is_out_lent: bool,
    pub is_into_lent: bool,
    /// Doorbells that nobody has claimed here.
    pub unwanted: u64,
}

impl Bells {
    /// Rings. `once`: unless the last one is the same, was rung so, and has not left.
    pub fn ring(&mut self, number: u16, once: bool) -> Result<Sent, Full> {
        let wanted = self.wanted.as_deref().unwrap_or_default();
        let at = wanted.partition_point(|range| range.1 < number);
        if wanted.get(at).is_none_or(|range| range.0 > number) {
            return Err(Full::Unwanted);
        }
        if once && self.waiting.back() == Some(&(number, true)) {
            return Ok(Sent::Coalesced);
        }
        if self.rung.wrapping_sub(self.taken_there) >= MOST {
            return Err(Full::Queue);
        }
        self.rung = self.rung.wrapping_add(1);
        self.waiting.push_back((number, once));
        Ok(Sent::Rung)
    }

    /// What this end wants has changed, or was never said.
    pub fn publish(&mut self) {
        self.has_changed = true;
    }

    /// The next one that has come. One that nobody wants is counted, and ends this call as if there were none.
    pub fn take(&mut self, filter: &Filter) -> Option<Bell> {
        let number = self.came.pop_front()?;
        self.taken = self.taken.wrapping_add(1);
        let owner = filter.owner(number);
        self.unwanted += u64::from(owner.is_none());
        owner.map(|owner| Bell { number, owner })
    }

    /// Whether some have come, for whoever asks.
    pub fn has_more(&self) -> bool {
        !self.came.is_empty()
    }

    /// Whether there is something to say.
    pub fn has_news(&self) -> bool {
        self.has_changed || !self.waiting.is_empty() || self.taken.wrapping_sub(self.told) >= BATCH
    }

    /// Puts what there is to say into a record with room for `room` words.
    pub fn say(&mut self, filter: &Filter, words: &mut Vec<u64>, room: usize) {
        let left = |words: &Vec<u64>| room.saturating_sub(words.len());
        if self.has_changed && left(words) > 1 + filter.ranges().len().div_ceil(2) {
            self.has_changed = false;
            let ranges: Vec<u64> =
                filter.ranges().map(|(first, last)| u64::from(first) | u64::from(last) << 16).collect();
            words.push(item(WANTED, ranges.len().div_ceil(2), 0));
            // A range that says nothing fills the last word: its first number is behind its last.
            words.extend(ranges.chunks(2).map(|pair| pair[0] | pair.get(1).copied().unwrap_or(NO_RANGE) << 32));
        }
        if self.taken.wrapping_sub(self.told) >= BATCH && left(words) > 0 {
            self.told = self.taken;
            words.push(item(TAKEN, 0, self.taken));
        }
        while left(words) > 0
            && let Some((number, _)) = self.waiting.pop_front()
        {
            words.push(item(BELL, 0, number.into()));
        }
    }

    /// A doorbell has come.
    pub fn rang(&mut self, number: u16) -> Result<(), Breach> {
        // What it may send follows from what it was told.
        if self.came.len() as u32 + self.taken.wrapping_sub(self.told) >= MOST {
            return Err(Breach::Flood);
        }
        self.came.push_back(number);
        Ok(())
    }

    /// So many were taken at the other end.
    pub fn were_taken(&mut self, count: u32) -> Result<(), Breach> {
        if count.wrapping_sub(self.taken_there) > self.rung.wrapping_sub(self.taken_there) {
            return Err(Breach::Credit);
        }
        self.taken_there = count;
        Ok(())
    }

    /// The other end has said what it wants.
    pub fn want(&mut self, words: &[u64]) -> Result<(), Breach> {
        let mut ranges: Vec<(u16, u16)> = Vec::with_capacity(2 * words.len());
        for half in words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]) {
            let (first, last) = (half as u16, (half >> 16) as u16);
            if u64::from(half) == NO_RANGE {
                continue;
            }
            if first > last || ranges.last().is_some_and(|before| before.1 >= first) {
                return Err(Breach::Nonsense);
            }
            ranges.push((first, last));
        }
        self.wanted = Some(ranges);
        Ok(())
    }
}

const NO_RANGE: u64 = 1;

#[cfg(test)]
mod tests {
    use super::super::record::{Item, Items, WORDS};
    use super::*;
    use crate::bell::Owner;
    use proptest::prelude::*;

    /// Hands over what one end says. Whether the other one takes it.
    fn carry(from: &mut Bells, filter: &Filter, to: &mut Bells, room: usize) -> Result<(), Breach> {
        while from.has_news() {
            let mut words = Vec::new();
            from.say(filter, &mut words, room);
            assert!(words.len() <= room);
            for found in Items(&words) {
                match found.unwrap() {
                    Item::Bell(number) => to.rang(number)?,
                    Item::Taken(count) => to.were_taken(count)?,
                    Item::Wanted(words) => to.want(words)?,
                    Item::Control(_) => panic!(),
                }
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// What was accepted comes, once, in order, to its owner; what was refused does not; 256 may wait, and a quarter fewer at least.
        #[test]
        fn doorbells_come_as_they_went(turns in prop::collection::vec((0u16..40, any::<bool>(), 0usize..40, any::<bool>(), 1usize..40), 1..200)) {
            let (mut one, mut other, mut filter) = (Bells::default(), Bells::default(), Filter::default());
            prop_assert_eq!(one.ring(15, false), Err(Full::Unwanted));
            filter.claim(10..=19, Owner(1)).unwrap();
            filter.claim(20..=20, Owner(2)).unwrap();
            filter.claim(22..=29, Owner(2)).unwrap();
            other.publish();
            carry(&mut other, &filter, &mut one, WORDS).unwrap();
            let (mut expected, mut coalesced) = (VecDeque::new(), 0);
            for (number, once, times, carries, takes) in turns {
                for _ in 0..times {
                    match one.ring(number, once) {
                        Ok(Sent::Rung) => expected.push_back(number),
                        Ok(Sent::Coalesced) => {
                            coalesced += 1;
                            prop_assert!(once && expected.back() == Some(&number));
                        }
                        Err(Full::Unwanted) => prop_assert!(!(10..30).contains(&number) || number == 21),
                        Err(Full::Queue) => prop_assert!(expected.len() > 192),
                        Err(Full::Lent) => prop_assert!(false),
                    }
                    prop_assert!(expected.len() <= 256);
                }
                if carries {
                    carry(&mut one, &Filter::default(), &mut other, 200).unwrap();
                    for _ in 0..takes {
                        let Some(bell) = other.take(&filter) else { break };
                        prop_assert_eq!(Some(bell.number), expected.pop_front());
                        prop_assert_eq!(u32::from(bell.number) / 10, bell.owner.0);
                    }
                    carry(&mut other, &filter, &mut one, 200).unwrap();
                }
            }
            prop_assert!(coalesced < 8000);
        }
    }

    #[test]
    fn what_no_end_says_is_refused() {
        let mut bells = Bells::default();
        for _ in 0..MOST {
            bells.rang(1).unwrap();
        }
        assert_eq!(bells.rang(1), Err(Breach::Flood));
        assert_eq!(bells.were_taken(1), Err(Breach::Credit));
        for wrong in [&[5_u64 | 4 << 16][..], &[1 | 5 << 16 | 5 << 32 | 6 << 48], &[1 << 32]] {
            assert_eq!(bells.want(wrong).is_ok(), wrong == [1 << 32], "{wrong:x?}");
        }
        // Claims that are gone when it comes are counted.
        assert_eq!((bells.take(&Filter::default()), bells.unwanted), (None, 1));
    }
}
