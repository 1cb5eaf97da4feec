//! Lists on the command line: queues (`0-3,5`) and frame sizes (`64,128,64-1500`).

use std::fmt;
use std::str::FromStr;

/// Largest queue index accepted.
const MAX_QUEUE: u32 = 65_535;

/// Largest frame that any engine carries (`docs/spec/nfb-card.md` §3.1).
pub const MAX_SIZE: u32 = 0x3fff;

/// A list that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} is not a number or range between {least} and {most}; write a list such as {example}")]
pub struct BadList {
    part: String,
    least: u32,
    most: u32,
    example: &'static str,
}

/// Queue indices in ascending order, each once, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queues(Vec<u32>);

impl Queues {
    /// Queue `index` alone.
    pub fn one(index: u32) -> Self {
        Self(vec![index])
    }

    /// The queues from 0 on, so many and at least one.
    pub fn first(count: u32) -> Self {
        Self((0..count.max(1)).collect())
    }

    /// The indices.
    pub fn indices(&self) -> &[u32] {
        &self.0
    }

    /// How many queues a card needs to have all of these.
    pub fn needed(&self) -> u32 {
        self.0.last().map_or(1, |last| last + 1)
    }
}

impl FromStr for Queues {
    type Err = BadList;
    fn from_str(text: &str) -> Result<Self, BadList> {
        let ranges = ranges(text, 0, MAX_QUEUE, "0-3,5")?;
        let mut indices: Vec<u32> = ranges.into_iter().flat_map(|(first, last)| first..=last).collect();
        indices.sort_unstable();
        indices.dedup();
        Ok(Self(indices))
    }
}

/// Numbers that were picked out of many, such as packets of a capture, from 1 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picked(Vec<(u32, u32)>);

impl Picked {
    /// Whether a number was picked.
    pub fn contains(&self, number: u64) -> bool {
        self.0.iter().any(|(first, last)| (u64::from(*first)..=u64::from(*last)).contains(&number))
    }

    /// The highest of them.
    pub fn last(&self) -> u64 {
        self.0.iter().map(|(_, last)| u64::from(*last)).max().unwrap_or(0)
    }
}

impl FromStr for Picked {
    type Err = BadList;
    fn from_str(text: &str) -> Result<Self, BadList> {
        ranges(text, 1, u32::MAX, "3,7-9").map(Self)
    }
}

/// Frame sizes in bytes without FCS: single sizes, and ranges from which each frame takes a random one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(Vec<(u32, u32)>);

impl Sizes {
    /// One size for all frames.
    pub fn one(size: u32) -> Self {
        Self(vec![(size, size)])
    }

    /// Several single sizes.
    pub fn each(sizes: &[u32]) -> Self {
        Self(sizes.iter().map(|size| (*size, *size)).collect())
    }

    /// The size, if there is only one.
    pub fn single(&self) -> Option<u32> {
        match self.0[..] {
            [(first, last)] if first == last => Some(first),
            _ => None,
        }
    }

    /// The largest size that can come up.
    pub fn largest(&self) -> u32 {
        self.0.iter().map(|(_, last)| *last).max().unwrap_or(0)
    }

    /// The smallest size that can come up.
    pub fn smallest(&self) -> u32 {
        self.0.iter().map(|(first, _)| *first).min().unwrap_or(0)
    }

    /// Each entry of the list by itself.
    pub fn entries(&self) -> impl Iterator<Item = Sizes> + '_ {
        self.0.iter().map(|entry| Sizes(vec![*entry]))
    }

    /// Fills `lens` with the sizes of the next frames.
    #[inline]
    pub fn pick(&self, random: &mut fastrand::Rng, lens: &mut [u16]) {
        if let Some(size) = self.single() {
            lens.fill(size as u16);
            return;
        }
        for len in lens {
            let (first, last) = self.0[random.usize(..self.0.len())];
            *len = random.u32(first..=last) as u16;
        }
    }
}

impl FromStr for Sizes {
    type Err = BadList;
    fn from_str(text: &str) -> Result<Self, BadList> {
        ranges(text, 1, MAX_SIZE, "64 or 64,512,1024-1500").map(Self)
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{first}")?;
            if first != last {
                write!(f, "-{last}")?;
            }
        }
        Ok(())
    }
}

fn ranges(text: &str, least: u32, most: u32, example: &'static str) -> Result<Vec<(u32, u32)>, BadList> {
    let bad = |part: &str| BadList { part: part.to_owned(), least, most, example };
    text.split(',')
        .map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first = first.trim().parse().map_err(|_| bad(part))?;
            let last = last.trim().parse().map_err(|_| bad(part))?;
            if least <= first && first <= last && last <= most { Ok((first, last)) } else { Err(bad(part)) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn queues_are_sorted_and_unique() {
        let queues: Queues = "5,0-3,2".parse().unwrap();
        assert_eq!(queues.indices(), [0, 1, 2, 3, 5]);
        assert_eq!(queues.needed(), 6);
    }

    #[test]
    fn numbers_are_picked() {
        let picked: Picked = "3,7-9".parse().unwrap();
        let found: Vec<u64> = (0..20).filter(|number| picked.contains(*number)).collect();
        assert_eq!((found, picked.last()), (vec![3, 7, 8, 9], 9));
        assert!("0".parse::<Picked>().is_err());
    }

    #[test]
    fn bad_lists_say_which_part_is_bad() {
        for text in ["", "1,,2", "3-1", "x", "1-2-3", "70000", "-1"] {
            assert!(text.parse::<Queues>().is_err(), "{text:?}");
        }
        for text in ["0", "64-20000", "64-"] {
            assert!(text.parse::<Sizes>().is_err(), "{text:?}");
        }
        assert_eq!(
            "64,90000".parse::<Sizes>().unwrap_err().to_string(),
            "\"90000\" is not a number or range between 1 and 16383; write a list such as 64 or 64,512,1024-1500"
        );
    }

    #[test]
    fn every_entry_of_a_size_list_comes_up() {
        let sizes: Sizes = "64,100-110".parse().unwrap();
        let mut lens = [0; 1000];
        sizes.pick(&mut fastrand::Rng::with_seed(1), &mut lens);
        for wanted in [64].into_iter().chain(100..=110) {
            assert!(lens.contains(&wanted), "{wanted} never came");
        }
        assert!(lens.iter().all(|len| *len == 64 || (100..=110).contains(len)));
        assert_eq!((sizes.smallest(), sizes.largest(), sizes.single()), (64, 110, None));
    }

    proptest! {
        #[test]
        fn sizes_read_back_as_they_print(entries in prop::collection::vec((1..=MAX_SIZE, 1..=MAX_SIZE), 1..5)) {
            let sizes = Sizes(entries.into_iter().map(|(a, b)| (a.min(b), a.max(b))).collect());
            prop_assert_eq!(sizes.to_string().parse::<Sizes>(), Ok(sizes));
        }
    }
}
