//! Keys: which slot of the table, and bits that cannot be guessed and do not come again soon.
//!
//! The upper bits are the number of the slot. The others are the slot's count of uses, sent through a permutation that
//! only this process knows: a key that was taken back differs from all that its slot gives out for the next
//! 2^n uses (n: [`Keys::region_bits`], [`Keys::window_bits`]), and who knows some keys cannot compute the next one. Of
//! a window's key the lower eight bits are for its owner to choose (volume 1, 10.6.7.2.1), so that the count has
//! eight bits less.

use crate::number::Key;
use std::hash::{BuildHasher, RandomState};

/// Most slots of a table: the keys keep 16 bits for the count.
pub const MOST_SLOTS: usize = 1 << 16;
/// Bits of a window's key that its owner chooses.
const TAG_BITS: u32 = 8;

/// Makes keys, and finds the slot of one.
pub(super) struct Keys {
    secret: RandomState,
    bits: u32,
}

impl Keys {
    /// For tables of up to `slots` slots.
    pub(super) fn new(slots: usize) -> Self {
        let slot_bits = slots.clamp(256, MOST_SLOTS).next_power_of_two().trailing_zeros();
        Self { secret: RandomState::new(), bits: u32::BITS - slot_bits }
    }

    /// Bits below the number of the slot.
    pub(super) fn bits(&self) -> u32 {
        self.bits
    }

    /// A region's key does not come again within 2^this uses of its slot.
    pub(super) fn region_bits(&self) -> u32 {
        self.bits
    }

    /// The same for windows, whatever their owners choose.
    pub(super) fn window_bits(&self) -> u32 {
        self.bits - TAG_BITS
    }

    /// The slot that a key would be of.
    #[inline(always)]
    pub(super) fn slot(&self, key: Key) -> usize {
        (key.value() >> self.bits) as usize
    }

    /// The key of a region that is the `count`th use of its slot.
    pub(super) fn of_region(&self, slot: usize, count: u32) -> Key {
        Key::new((slot as u32) << self.bits | self.permute(slot, count, self.bits))
    }

    /// The key of a window that is the `count`th use of its slot.
    pub(super) fn of_window(&self, slot: usize, count: u32, tag: u8) -> Key {
        let upper = self.permute(slot, count, self.bits - TAG_BITS);
        Key::new((slot as u32) << self.bits | upper << TAG_BITS | u32::from(tag))
    }

    /// Whether two keys of a window differ in nothing but what its owner chooses.
    pub(super) fn same_window(one: Key, other: Key) -> bool {
        one.value() >> TAG_BITS == other.value() >> TAG_BITS
    }

    /// A number of `bits` bits, different for each `count` of as many bits: a Feistel network, each of whose rounds changes
    /// one half by a keyed hash of the other.
    fn permute(&self, slot: usize, count: u32, bits: u32) -> u32 {
        let low_bits = bits / 2;
        let mask = |bits: u32| (1 << bits) - 1;
        let (mut low, mut high) = (count & mask(low_bits), count >> low_bits & mask(bits - low_bits));
        for round in 0..3_u8 {
            high ^= self.secret.hash_one((slot, bits, round, 0_u8, low)) as u32 & mask(bits - low_bits);
            low ^= self.secret.hash_one((slot, bits, round, 1_u8, high)) as u32 & mask(low_bits);
        }
        high << low_bits | low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_of_a_slot_do_not_come_again() {
        let keys = Keys::new(MOST_SLOTS);
        assert_eq!((keys.region_bits(), keys.window_bits()), (16, 8));
        let regions: HashSet<_> = (0..1 << 16).map(|count| keys.of_region(65_535, count)).collect();
        assert_eq!(regions.len(), 1 << 16);
        let windows: HashSet<_> = (0..1 << 8).map(|count| keys.of_window(3, count, 0)).collect();
        assert_eq!(windows.len(), 1 << 8);
        assert!(regions.iter().all(|key| keys.slot(*key) == 65_535) && windows.iter().all(|key| keys.slot(*key) == 3));
        let odd = Keys::new(300);
        assert_eq!((odd.region_bits(), odd.window_bits()), (23, 15));
        let all: HashSet<_> = (0..1 << 15).map(|count| odd.of_window(511, count, 7).value() >> 8).collect();
        assert_eq!(all.len(), 1 << 15);
    }

    #[test]
    fn the_order_of_keys_is_a_secret() {
        let (one, other) = (Keys::new(4096), Keys::new(4096));
        let order = |keys: &Keys| (0..64).map(|count| keys.of_region(1, count)).collect::<Vec<_>>();
        assert_ne!(order(&one), order(&other));
        let steps: HashSet<u32> =
            order(&one).windows(2).map(|two| two[1].value().wrapping_sub(two[0].value())).collect();
        assert!(steps.len() > 48, "no constant step: {}", steps.len());
    }
}
