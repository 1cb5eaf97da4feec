//! Hash and comparison over those words of a key that a mask uses.

use crate::key::{Key, Mask, WORDS};

/// Odd numbers without a pattern (the fractional part of the golden ratio, times powers of it); one for each word.
const SALT: [u64; WORDS] = {
    let mut salt = [0; WORDS];
    let (mut at, mut number) = (0, 0x9e37_79b9_7f4a_7c15u64);
    while at < WORDS {
        salt[at] = number | 1;
        number = number.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(0x2545_f491_4f6c_dd1d);
        at += 1;
    }
    salt
};

/// The two halves of a product, folded.
#[inline(always)]
pub(crate) fn mix(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

/// A number that whoever sends frames cannot know, so that nobody can fill one bucket on purpose.
pub(crate) fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// The words that a mask uses, one behind the other.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    len: usize,
    index: [u8; WORDS],
    mask: [u64; WORDS],
    seed: u64,
}

impl Shape {
    pub fn new(mask: &Mask, seed: u64) -> Self {
        let mut shape = Self { len: 0, index: [0; WORDS], mask: [0; WORDS], seed };
        for (at, word) in mask.words().iter().enumerate().filter(|(_, word)| **word != 0) {
            (shape.index[shape.len], shape.mask[shape.len]) = (at as u8, *word);
            shape.len += 1;
        }
        shape
    }

    /// How many words are used.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Used word `at` of a key; 0 behind the last.
    #[inline(always)]
    fn word(&self, key: &Key, at: usize) -> u64 {
        key.words()[usize::from(self.index[at]) % WORDS] & self.mask[at]
    }

    /// A hash over the used words: pairs of words are multiplied beside one another, so that the products do not wait for
    /// each other.
    #[inline(always)]
    pub fn hash(&self, key: &Key) -> u64 {
        let places = self.index.as_chunks::<2>().0.iter().zip(self.mask.as_chunks::<2>().0);
        let salted = places.zip(SALT.as_chunks::<2>().0).take(self.len.div_ceil(2));
        let sum = salted.fold(self.seed, |sum, ((index, mask), salt)| {
            let word = |at: usize| key.words()[usize::from(index[at]) % WORDS] & mask[at];
            sum ^ mix(word(0) ^ salt[0] ^ self.seed, word(1) ^ salt[1])
        });
        mix(sum, SALT[0])
    }

    /// Whether the used words of a key are these; what is behind them does not count.
    #[inline(always)]
    pub fn equals(&self, key: &Key, packed: &[u64]) -> bool {
        let places = self.index.iter().zip(&self.mask).take(self.len);
        let differs = packed.iter().zip(places).fold(0, |differs, (word, (index, mask))| {
            differs | (word ^ (key.words()[usize::from(*index) % WORDS] & mask))
        });
        differs == 0
    }

    /// The used words of a key.
    pub fn pack<'k>(&'k self, key: &'k Key) -> impl Iterator<Item = u64> + 'k {
        (0..self.len).map(|at| self.word(key, at))
    }
}
