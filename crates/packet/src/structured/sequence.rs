//! The number of a frame, and the 24 bits of it that a frame carries.

use core::fmt;

/// Bits of a sequence number that travel in a frame: burst id and packet id.
const WIRE_BITS: u32 = 24;

/// The number of a structured frame: a 64-bit count of which a frame carries the low 24 bits, as burst id (23:8) and
/// packet id (7:0).
///
/// The receiver restores the rest with [`Sequence::nearest`], which is right as long as fewer than 2^23 frames in a row
/// are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sequence(u64);

impl Sequence {
    /// The first frame.
    pub const ZERO: Self = Self(0);

    /// The frame with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The frame with these ids, of the first 2^24.
    pub const fn from_parts(burst: u16, packet: u8) -> Self {
        Self((burst as u64) << 8 | packet as u64)
    }

    /// The number.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Burst id, as a frame carries it.
    pub const fn burst(self) -> u16 {
        (self.0 >> 8) as u16
    }

    /// Packet id, as a frame carries it.
    pub const fn packet(self) -> u8 {
        self.0 as u8
    }

    /// Burst id and packet id side by side: 24 bits.
    pub const fn wire(self) -> u32 {
        self.0 as u32 & ((1 << WIRE_BITS) - 1)
    }

    /// The frame after this one; after the last comes 0.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// The frame `count` frames later (or earlier, if negative), round the end if need be.
    #[must_use]
    pub const fn offset(self, count: i64) -> Self {
        Self(self.0.wrapping_add_signed(count))
    }

    /// Frames from `earlier` to this one; negative if `earlier` in fact comes later.
    pub const fn distance_from(self, earlier: Sequence) -> i64 {
        self.0.wrapping_sub(earlier.0) as i64
    }

    /// The frame that carries `wire` (bits above 23 do not matter) and is nearest to this one.
    #[must_use]
    pub const fn nearest(self, wire: u32) -> Self {
        // Shifted to the top, a 24-bit difference is a signed number and wraps by itself.
        let top = (wire.wrapping_sub(self.wire()) << (32 - WIRE_BITS)) as i32;
        self.offset((top >> (32 - WIRE_BITS)) as i64)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (burst {}, packet {})", self.0, self.burst(), self.packet())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_lie_where_the_frame_has_them() {
        let sequence = Sequence::new(0xab12_3456);
        assert_eq!((sequence.burst(), sequence.packet(), sequence.wire()), (0x1234, 0x56, 0x0012_3456));
        assert_eq!(Sequence::from_parts(0x1234, 0x56), Sequence::new(0x12_3456));
        assert_eq!(sequence.to_string(), "2870096982 (burst 4660, packet 86)");
    }

    #[test]
    fn arithmetic_goes_round_the_end() {
        let last = Sequence::new(u64::MAX);
        assert_eq!(last.next(), Sequence::ZERO);
        assert_eq!(Sequence::ZERO.distance_from(last), 1);
        assert_eq!(last.distance_from(Sequence::ZERO), -1);
        assert_eq!(Sequence::new(0xff_ffff).nearest(0), Sequence::new(0x100_0000));
        assert_eq!(Sequence::new(0x100_0000).nearest(0xff_ffff), Sequence::new(0xff_ffff));
    }

    proptest! {
        #[test]
        fn the_nearest_is_found_within_half_the_circle(from: u64, step in -(1i64 << 23)..(1 << 23)) {
            let wanted = Sequence::new(from).offset(step);
            prop_assert_eq!(Sequence::new(from).nearest(wanted.wire()), wanted);
            prop_assert_eq!(wanted.distance_from(Sequence::new(from)), step);
        }
    }
}
