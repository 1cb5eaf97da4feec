//! Fields of bits.

use crate::number::{Gid, Psn, Qpn};

/// What a field may hold.
pub(super) trait Value: Copy {
    fn of(bits: u128) -> Self;
    fn bits(self) -> u128;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Value for $type {
            fn of(bits: u128) -> Self {
                bits as Self
            }
            fn bits(self) -> u128 {
                self.into()
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 }

impl Value for bool {
    fn of(bits: u128) -> Self {
        bits != 0
    }
    fn bits(self) -> u128 {
        self.into()
    }
}

impl Value for Psn {
    fn of(bits: u128) -> Self {
        Self::new(bits as u32)
    }
    fn bits(self) -> u128 {
        self.value().into()
    }
}

impl Value for Qpn {
    fn of(bits: u128) -> Self {
        Self::new(bits as u32)
    }
    fn bits(self) -> u128 {
        self.value().into()
    }
}

impl Value for Gid {
    fn of(bits: u128) -> Self {
        Self(bits.to_be_bytes())
    }
    fn bits(self) -> u128 {
        u128::from_be_bytes(self.0)
    }
}

/// `width` bits from bit `at`.
pub(super) fn get<V: Value>(data: &[u8], at: usize, width: usize) -> V {
    let bit = |index: usize| u128::from(data[index / 8] >> (7 - index % 8) & 1);
    V::of((at..at + width).fold(0, |bits, index| bits << 1 | bit(index)))
}

/// Sets them; what has more bits loses the upper ones.
pub(super) fn set<V: Value>(data: &mut [u8], at: usize, width: usize, value: V) {
    let bits = value.bits();
    for place in 0..width {
        let index = at + width - 1 - place;
        let mask = 1 << (7 - index % 8);
        if bits >> place & 1 == 1 {
            data[index / 8] |= mask;
        } else {
            data[index / 8] &= !mask;
        }
    }
}
