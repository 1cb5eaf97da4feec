//! IPv4 (RFC 791).

use super::bytes::{array, be16};
use super::{Malformed, Options};
use crate::checksum::Sum;
use std::net::Ipv4Addr;

/// Which part of an IP packet it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Fragment {
    /// All of it.
    #[default]
    None,
    /// The first of several: it has the transport header.
    First,
    /// Another than the first: it has no transport header.
    Later,
}

/// An IPv4 packet: header of 20 to 60 bytes with options, and what it carries.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    fixed: &'a [u8; Ipv4::LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// Bytes of the header without options.
    pub const LEN: usize = 20;

    /// The packet at the start of `bytes`; what lies behind its total length is ignored.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::Version`], [`Malformed::HeaderLength`]; [`Malformed::Length`]: the total
    /// length is less than the header or more than `bytes`.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, _) = bytes.split_first_chunk::<{ Ipv4::LEN }>().ok_or(Malformed::Truncated)?;
        if fixed[0] >> 4 != 4 {
            return Err(Malformed::Version);
        }
        let (header, total) = (usize::from(fixed[0] & 15) * 4, usize::from(be16(fixed, 2)));
        if header < Self::LEN {
            return Err(Malformed::HeaderLength);
        }
        if total < header {
            return Err(Malformed::Length);
        }
        let packet = bytes.get(..total).ok_or(Malformed::Length)?;
        let (header, payload) = packet.split_at(header);
        Ok(Self { fixed, options: &header[Self::LEN..], payload })
    }

    /// Bytes of the header, with options.
    #[inline]
    pub fn header_len(&self) -> usize {
        Self::LEN + self.options.len()
    }

    /// Differentiated services code point (RFC 2474 §3).
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.fixed[1] >> 2
    }

    /// Explicit congestion notification (RFC 3168 §5).
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.fixed[1] & 3
    }

    /// Bytes of header and payload.
    #[inline]
    pub fn total_len(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// What fragments of one packet have in common.
    #[inline]
    pub fn identification(&self) -> u16 {
        be16(self.fixed, 4)
    }

    /// Whether nobody may cut the packet.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.fixed[6] & 0x40 != 0
    }

    /// Whether more fragments follow.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.fixed[6] & 0x20 != 0
    }

    /// Where the payload belongs in the packet before it was cut, in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(be16(self.fixed, 6) & 0x1fff) * 8
    }

    /// Whether it is no fragment. Cheaper than [`Ipv4::fragment`].
    #[inline]
    pub fn is_whole(&self) -> bool {
        u16::from_ne_bytes(array(self.fixed, 6)) & 0x3fff_u16.to_be() == 0
    }

    /// Which part it is.
    #[inline]
    pub fn fragment(&self) -> Fragment {
        match be16(self.fixed, 6) & 0x3fff {
            0 => Fragment::None,
            0x2000 => Fragment::First,
            _ => Fragment::Later,
        }
    }

    /// Time to live, in hops.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.fixed[8]
    }

    /// What the payload is ([`super::protocol`]).
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.fixed[9]
    }

    /// The checksum as it stands there.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.fixed, 10)
    }

    /// Whether the checksum is that of the header.
    #[inline]
    pub fn checksum_holds(&self) -> bool {
        let (words, _) = self.fixed.as_chunks::<4>();
        let fixed = words.iter().fold(Sum::default(), |sum, word| sum.with(u32::from_be_bytes(*word)));
        let sum = if self.options.is_empty() { fixed } else { fixed.plus(Sum::of(self.options)) };
        sum.checksum() == 0
    }

    /// Where the packet comes from.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<20, 4>(self.fixed, 12))
    }

    /// Where it goes.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<20, 4>(self.fixed, 16))
    }

    /// The options, which are at most 40 bytes.
    #[inline]
    pub fn options(&self) -> Options<'a> {
        Options(self.options)
    }

    /// What the packet carries, up to its total length.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with one option of four bytes, two bytes of payload and one that does not belong to it.
    const BYTES: [u8; 27] = [
        0x46, 0xb9, 0, 26, 0x12, 0x34, 0x40, 0, 63, 17, 0x4a, 0xcd, 192, 0, 2, 1, 198, 51, 100, 2, 0x94, 4, 0, 0, 7, 8,
        9,
    ];

    #[test]
    fn every_field() {
        let ipv4 = Ipv4::parse(&BYTES).unwrap();
        assert_eq!((ipv4.header_len(), ipv4.total_len(), ipv4.payload()), (24, 26, &[7, 8][..]));
        assert_eq!((ipv4.dscp(), ipv4.ecn(), ipv4.identification()), (46, 1, 0x1234));
        assert_eq!((ipv4.dont_fragment(), ipv4.more_fragments(), ipv4.fragment_offset()), (true, false, 0));
        assert_eq!((ipv4.ttl(), ipv4.protocol(), ipv4.checksum()), (63, 17, 0x4acd));
        assert_eq!((ipv4.source(), ipv4.destination()), ([192, 0, 2, 1].into(), [198, 51, 100, 2].into()));
        assert_eq!(ipv4.options().map(Result::unwrap).map(|option| option.kind).collect::<Vec<_>>(), [0x94]);
    }

    #[test]
    fn checksum() {
        let mut bytes = BYTES;
        bytes[10..12].fill(0);
        let sum = Sum::of(&bytes[..24]).checksum();
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        assert!(Ipv4::parse(&bytes).unwrap().checksum_holds());
        bytes[21] ^= 1;
        assert!(!Ipv4::parse(&bytes).unwrap().checksum_holds());
    }

    #[test]
    fn fragments() {
        for (word, fragment, offset) in [
            (0x4000, Fragment::None, 0),
            (0x2000, Fragment::First, 0),
            (0x2001, Fragment::Later, 8),
            (0x1fff, Fragment::Later, 65528),
        ] {
            let mut bytes = BYTES;
            bytes[6..8].copy_from_slice(&u16::to_be_bytes(word));
            let ipv4 = Ipv4::parse(&bytes).unwrap();
            assert_eq!((ipv4.fragment(), ipv4.fragment_offset()), (fragment, offset), "{word:#x}");
            assert_eq!(ipv4.is_whole(), fragment == Fragment::None, "{word:#x}");
        }
    }

    #[test]
    fn what_is_malformed() {
        let with = |at: usize, byte: u8| {
            let mut bytes = BYTES;
            bytes[at] = byte;
            Ipv4::parse(&bytes).map(drop)
        };
        assert_eq!(with(0, 0x66), Err(Malformed::Version));
        assert_eq!(with(0, 0x44), Err(Malformed::HeaderLength));
        assert_eq!(with(3, 23), Err(Malformed::Length), "less than the header");
        assert_eq!(with(3, 28), Err(Malformed::Length), "more than there is");
        assert_eq!(with(3, 27), Ok(()));
        assert_eq!(Ipv4::parse(&BYTES[..19]).unwrap_err(), Malformed::Truncated);
    }
}
