//! The metadata that a card writes before a received frame while its time-stamp unit is enabled. A frame that came while
//! it was not has none: the default path carries no byte more than the frame.
//!
//! ```text
//! 0        1        4                  8                  12               16
//! +--------+--------+------------------+------------------+----------------+----------
//! | port   | 0      | le32 nanoseconds | le32 seconds     | 0, for a hash  | frame ...
//! +--------+--------+------------------+------------------+----------------+----------
//! ```
//!
//! Nanoseconds and seconds are where DPDK's nfb driver reads them (`docs/spec/nfb-card.md` §2.9) and what
//! `ndp-receive -t header:32` takes (§6). Its header id is 0. The device tree describes it ([`ITEMS`]) in the form of
//! §2.7, with the names that CESNET's fork of DPDK looks for.

/// Length of the metadata in bytes.
pub const LEN: usize = 16;
/// Header id, in the flags of a packet and in the device tree.
pub const ID: u32 = 0;

/// One item of the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Name in the device tree.
    pub name: &'static str,
    /// Width in bits.
    pub width: u16,
    /// Place of its lowest bit, counted in bits from the lowest bit of byte 0.
    pub offset: u16,
}

/// What is in it.
pub const ITEMS: [Item; 2] =
    [Item { name: "port", width: 8, offset: 0 }, Item { name: "timestamp", width: 64, offset: 32 }];

/// The metadata of a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxMetadata {
    /// Port that it came in at.
    pub port: u8,
    /// When, by the card's clock: seconds, ...
    pub seconds: u32,
    /// ... and nanoseconds, less than 10^9.
    pub nanoseconds: u32,
}

impl RxMetadata {
    /// The bytes before the frame.
    #[inline(always)]
    pub fn encode(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[0] = self.port;
        bytes[4..8].copy_from_slice(&self.nanoseconds.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.seconds.to_le_bytes());
        bytes
    }

    /// What the bytes before a frame mean; `None` when they are too few, as for a frame without a time stamp.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.first_chunk()?;
        let [port, _, _, _, n0, n1, n2, n3, s0, s1, s2, s3, ..] = *bytes;
        let (nanoseconds, seconds) = (u32::from_le_bytes([n0, n1, n2, n3]), u32::from_le_bytes([s0, s1, s2, s3]));
        Some(Self { port, seconds, nanoseconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_where_programs_read_them() {
        let metadata = RxMetadata { port: 3, seconds: 0x6530_1122, nanoseconds: 999_999_999 };
        let bytes = metadata.encode();
        assert_eq!(bytes, [3, 0, 0, 0, 0xff, 0xc9, 0x9a, 0x3b, 0x22, 0x11, 0x30, 0x65, 0, 0, 0, 0]);
        assert_eq!(RxMetadata::decode(&bytes), Some(metadata));
        assert_eq!(RxMetadata::decode(&bytes[..15]), None);
        assert_eq!(RxMetadata::decode(&[]), None);
    }

    #[test]
    fn items_lie_inside_and_beside_each_other() {
        let mut end = 0;
        for item in ITEMS {
            assert!(item.offset >= end, "{}", item.name);
            end = item.offset + item.width;
            assert!(usize::from(end) <= LEN * 8);
        }
    }
}
