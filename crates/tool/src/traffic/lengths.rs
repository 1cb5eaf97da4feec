//! How long frames are: mixes with fixed shares, and sizes at random.

use std::fmt;
use std::str::FromStr;

use crate::list::{MAX_SIZE, Sizes};

/// Sizes and their weights. Frames come in a cycle that has every size as often as its weight says, spread evenly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix(Vec<(u16, u32)>);

/// A mix that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected imix, or sizes (1-{MAX_SIZE}) with weights (1-1000) such as 64=7,594=4,1518=1")]
pub struct BadMix(String);

/// The "simple IMIX" in general use: what the frames of the Internet's backbones looked like.
const IMIX: [(u16, u32); 3] = [(64, 7), (594, 4), (1518, 1)];

/// Largest weight, which bounds the length of a cycle.
const MAX_WEIGHT: u32 = 1000;
/// Most sizes of a mix.
const MAX_SIZES: usize = 64;

impl Mix {
    /// The longest frame.
    pub fn largest(&self) -> u16 {
        self.0.iter().map(|(size, _)| *size).max().unwrap_or(0)
    }

    /// The shortest frame.
    pub fn smallest(&self) -> u16 {
        self.0.iter().map(|(size, _)| *size).min().unwrap_or(0)
    }

    /// One cycle: at each place comes the size that is furthest behind its share.
    fn cycle(&self) -> Vec<u16> {
        let total: u32 = self.0.iter().map(|(_, weight)| weight).sum();
        let mut credits = vec![0i64; self.0.len()];
        let next = |_| {
            for (credit, (_, weight)) in credits.iter_mut().zip(&self.0) {
                *credit += i64::from(*weight);
            }
            let first = (0..credits.len()).rev().max_by_key(|at| credits[*at]).unwrap_or(0);
            credits[first] -= i64::from(total);
            self.0[first].0
        };
        (0..total).map(next).collect()
    }
}

impl FromStr for Mix {
    type Err = BadMix;
    fn from_str(text: &str) -> Result<Self, BadMix> {
        if text == "imix" {
            return Ok(Self(IMIX.to_vec()));
        }
        let bad = || BadMix(text.to_owned());
        let entry = |part: &str| {
            let (size, weight) = part.split_once('=')?;
            let size: u32 = size.trim().parse().ok().filter(|size| (1..=MAX_SIZE).contains(size))?;
            let weight = weight.trim().parse().ok().filter(|weight| (1..=MAX_WEIGHT).contains(weight))?;
            Some((size as u16, weight))
        };
        let entries: Vec<_> = text.split(',').map(|part| entry(part).ok_or_else(bad)).collect::<Result<_, _>>()?;
        if entries.len() <= MAX_SIZES { Ok(Self(entries)) } else { Err(bad()) }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (size, weight)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{size}={weight}")?;
        }
        Ok(())
    }
}

/// Where the lengths of the next frames come from. The same seed gives the same lengths.
#[derive(Clone, Debug)]
pub enum Lengths {
    /// One of these sizes, at random.
    Random(Sizes, fastrand::Rng),
    /// A cycle, and the place in it.
    Cycle(Vec<u16>, usize),
}

impl Lengths {
    /// Random sizes.
    pub fn random(sizes: Sizes, seed: u64) -> Self {
        Self::Random(sizes, fastrand::Rng::with_seed(seed))
    }

    /// A mix.
    pub fn of(mix: &Mix) -> Self {
        Self::Cycle(mix.cycle(), 0)
    }

    /// Fills `lens` with the lengths of the next frames.
    #[inline]
    pub fn pick(&mut self, lens: &mut [u16]) {
        match self {
            Lengths::Random(sizes, random) => sizes.pick(random, lens),
            Lengths::Cycle(cycle, at) => {
                for len in lens {
                    *len = cycle[*at];
                    *at = (*at + 1) % cycle.len();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_has_its_shares_and_spreads_them() {
        let mut lengths = Lengths::of(&"imix".parse().unwrap());
        let mut lens = [0; 120];
        lens.chunks_mut(7).for_each(|part| lengths.pick(part));
        for (size, count) in [(64, 70), (594, 40), (1518, 10)] {
            assert_eq!(lens.iter().filter(|len| **len == size).count(), count, "{size}");
        }
        assert!(lens.windows(4).all(|four| four.contains(&64)));
        assert!(lens.windows(4).all(|four| four.iter().any(|len| *len != 64)));
    }

    #[test]
    fn mixes_are_read_and_bad_ones_refused() {
        let mix: Mix = "64=2,1000=1".parse().unwrap();
        assert_eq!((mix.cycle(), mix.smallest(), mix.largest()), (vec![64, 1000, 64], 64, 1000));
        assert_eq!(mix.to_string().parse(), Ok(mix));
        for text in ["", "64", "64=0", "64=1001", "0=1", "20000=1", "64=1,,", "64:1", "imix2"] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_seed_repeats_its_lengths() {
        let of = |seed| {
            let mut lens = [0; 100];
            Lengths::random("64-1500".parse().unwrap(), seed).pick(&mut lens);
            lens
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
