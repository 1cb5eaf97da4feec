//! Positions in a ring of a power of two of entries.

/// The number of entries of a ring minus one, and the arithmetic that belongs to it (`docs/spec/nfb-card.md` §3.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask(u32);

/// A position in a ring, always smaller than the number of its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingIndex(u32);

impl RingIndex {
    /// The position as a number.
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Mask {
    /// The mask of a ring of `entries`, or `None` unless that is a power of two and at least 2.
    pub const fn for_entries(entries: u32) -> Option<Self> {
        if entries.is_power_of_two() && entries >= 2 { Some(Self(entries - 1)) } else { None }
    }

    /// The mask itself.
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Number of entries.
    #[inline(always)]
    pub const fn entries(self) -> u32 {
        self.0 + 1
    }

    /// The position that a raw pointer of the other side stands for; bits beyond the mask mean nothing.
    #[inline(always)]
    pub const fn index(self, raw: u32) -> RingIndex {
        RingIndex(raw & self.0)
    }

    /// The position `by` entries after `from`.
    #[inline(always)]
    pub const fn add(self, from: RingIndex, by: u32) -> RingIndex {
        RingIndex(from.0.wrapping_add(by) & self.0)
    }

    /// How many entries lie from `from` up to `to`: 0 when they are equal.
    #[inline(always)]
    pub const fn distance(self, from: RingIndex, to: RingIndex) -> u32 {
        to.0.wrapping_sub(from.0) & self.0
    }

    /// How many entries a producer at `producer` may still fill before it meets `consumer`; one always stays empty, so
    /// that full and empty differ.
    #[inline(always)]
    pub const fn free(self, producer: RingIndex, consumer: RingIndex) -> u32 {
        consumer.0.wrapping_sub(producer.0).wrapping_sub(1) & self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_wrap() {
        let mask = Mask::for_entries(8).unwrap();
        let (six, two) = (mask.index(6), mask.index(0x102));
        assert_eq!(two.get(), 2);
        assert_eq!(mask.distance(six, two), 4);
        assert_eq!(mask.distance(two, two), 0);
        assert_eq!(mask.free(two, two), 7);
        assert_eq!(mask.free(six, two), 3);
        assert_eq!(mask.add(six, 3).get(), 1);
        for entries in [0, 1, 3, 6, 1000] {
            assert_eq!(Mask::for_entries(entries), None);
        }
    }
}
