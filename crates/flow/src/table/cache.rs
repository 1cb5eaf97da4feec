//! The exact-match cache of a worker: masked keys, eight to a bucket, and the verdict of each.
//!
//! ```text
//! tags     bucket 0: 8 x 32 bits of the hash        one half of a cache line; 0 is an empty place
//! entries  bucket 0, place 0: meta, words of the key behind it, in whole cache lines
//! ```
//!
//! Keys are masked with all bits that any rule looks at: frames that no rule can tell apart share an entry.

use super::shape::{Shape, seed};
use crate::key::{Key, Mask};

/// Places of a bucket.
const WAYS: usize = 8;
/// Words of a cache line.
const LINE: usize = 8;

/// What belongs to a key: the verdict, the table of the lookup, and the version at which the entry was right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta(u64);

impl Meta {
    const VERDICT_BITS: u32 = 24;
    const TABLE_BITS: u32 = 6;
    /// Bits of a version that an entry has room for. At 100,000 versions a second they last two days; then the cache is
    /// emptied ([`era`](Self::era)).
    const VERSION_BITS: u32 = 64 - Self::VERDICT_BITS - Self::TABLE_BITS;
    /// Most verdicts.
    pub const VERDICTS: usize = 1 << Self::VERDICT_BITS;

    pub fn new(verdict: u32, table: u8, version: u64) -> Self {
        let low = u64::from(verdict) | u64::from(table) << Self::VERDICT_BITS;
        Self(low | version << (64 - Self::VERSION_BITS))
    }

    pub fn verdict(self) -> u32 {
        (self.0 & (Self::VERDICTS as u64 - 1)) as u32
    }

    fn table(self) -> u8 {
        (self.0 >> Self::VERDICT_BITS) as u8 & ((1 << Self::TABLE_BITS) - 1)
    }

    /// The version, within the same era.
    pub fn version(self) -> u64 {
        self.0 >> (64 - Self::VERSION_BITS)
    }

    /// Versions of one era can be told apart.
    pub fn era(version: u64) -> u64 {
        version >> Self::VERSION_BITS
    }

    pub fn low(version: u64) -> u64 {
        version & ((1 << Self::VERSION_BITS) - 1)
    }
}

/// Where the entry of a key may be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spot {
    bucket: u32,
    tag: u32,
}

/// The place of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place(u32);

/// The cache.
#[derive(Debug)]
pub(super) struct Cache {
    shape: Shape,
    mask: Mask,
    seed: u64,
    tags: Vec<[u32; WAYS]>,
    /// Words of an entry: whole cache lines.
    stride: usize,
    /// Words before the first entry, which begins with a cache line.
    skip: usize,
    entries: Vec<u64>,
}

impl Cache {
    /// Room for about `entries` keys.
    pub fn new(entries: usize) -> Self {
        let seed = seed();
        let buckets = (entries / WAYS).next_power_of_two();
        let mut cache = Self {
            shape: Shape::new(&Mask::ZERO, seed),
            mask: Mask::ZERO,
            seed,
            tags: vec![[0; WAYS]; buckets],
            stride: LINE,
            skip: 0,
            entries: Vec::new(),
        };
        cache.reset(&Mask::ZERO);
        cache
    }

    /// The bits by which keys are told apart.
    pub fn mask(&self) -> &Mask {
        &self.mask
    }

    /// Empties the cache, and from now on tells keys apart by the bits of `mask`.
    pub fn reset(&mut self, mask: &Mask) {
        self.clear();
        self.mask = *mask;
        self.shape = Shape::new(mask, self.seed);
        let stride = (self.shape.len() + 1).next_multiple_of(LINE);
        if stride != self.stride || self.entries.is_empty() {
            self.stride = stride;
            self.entries = vec![0; self.tags.len() * WAYS * stride + LINE];
            self.skip = self.entries.as_ptr().align_offset(LINE * size_of::<u64>()).min(LINE);
        }
    }

    /// Empties the cache.
    pub fn clear(&mut self) {
        self.tags.fill([0; WAYS]);
    }

    /// Where the entry of a key may be.
    #[inline(always)]
    pub fn spot(&self, key: &Key) -> Spot {
        let hash = self.shape.hash(key);
        Spot { bucket: hash as u32 & (self.tags.len() as u32 - 1), tag: (hash >> 32) as u32 | 1 }
    }

    /// The places of a bucket with the tag of the key, as bits.
    #[inline(always)]
    pub fn candidates(&self, spot: Spot) -> u32 {
        let tags = self.tags[spot.bucket as usize];
        (0..WAYS).fold(0, |bits, way| bits | u32::from(tags[way] == spot.tag) << way)
    }

    /// Where the words of a place begin.
    #[inline(always)]
    fn start(&self, place: Place) -> usize {
        self.skip + place.0 as usize * self.stride
    }

    /// The first word of the first candidate. To look at it early asks for its cache line.
    #[inline(always)]
    pub fn touch(&self, spot: Spot, candidates: u32) -> u64 {
        let way = candidates.trailing_zeros() % WAYS as u32;
        self.entries.get(self.start(Place(spot.bucket * WAYS as u32 + way))).copied().unwrap_or(0)
    }

    /// The entry of a key that was looked up from `table` on.
    #[inline(always)]
    pub fn find(&self, key: &Key, table: u8, spot: Spot, mut candidates: u32) -> Option<(Place, Meta)> {
        while candidates != 0 {
            let place = Place(spot.bucket * WAYS as u32 + candidates.trailing_zeros());
            let from = self.start(place);
            let (meta, words) = self.entries.get(from..from + self.stride)?.split_first()?;
            let meta = Meta(*meta);
            if self.shape.equals(key, words) && meta.table() == table {
                return Some((place, meta));
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// Says that an entry is right at that version.
    pub fn confirm(&mut self, place: Place, meta: Meta) {
        let from = self.start(place);
        self.entries[from] = meta.0;
    }

    /// Enters a key: in an empty place, or in that of some other key.
    pub fn insert(&mut self, key: &Key, spot: Spot, meta: Meta, instead: Option<Place>) {
        let tags = &mut self.tags[spot.bucket as usize];
        // Any place is as good as another: bits of the hash choose one.
        let free = || tags.iter().position(|tag| *tag == 0).unwrap_or(spot.tag as usize >> 8 & (WAYS - 1));
        let way = instead.map_or_else(free, |place| place.0 as usize % WAYS);
        tags[way] = spot.tag;
        let from = self.start(Place(spot.bucket * WAYS as u32 + way as u32));
        self.entries[from] = meta.0;
        for (to, word) in self.entries[from + 1..].iter_mut().zip(self.shape.pack(key)) {
            *to = word;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metas_hold_what_they_are_made_of() {
        for (verdict, table, version) in
            [(0, 0, 0), (Meta::VERDICTS as u32 - 1, 63, (1 << 34) - 1), (5, 1, (7 << 34) + 9)]
        {
            let meta = Meta::new(verdict, table, version);
            assert_eq!((meta.verdict(), meta.table(), meta.version()), (verdict, table, Meta::low(version)));
        }
        assert_eq!(Meta::era((1 << 34) - 1) + 1, Meta::era(1 << 34));
    }
}
