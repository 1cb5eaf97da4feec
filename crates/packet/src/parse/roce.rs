//! RDMA over Ethernet: global route header, which version 1 has, and base transport header (InfiniBand Architecture
//! Specification, volume 1, chapters 8.3 and 9.2). Version 2 (annex A17) has the base transport header in a datagram of
//! UDP.

use super::Malformed;
use super::bytes::{be16, be24, be32};
use std::net::Ipv6Addr;

/// A global route header of 40 bytes, which looks like that of IPv6, and what it carries.
#[derive(Clone, Copy, Debug)]
pub struct Grh<'a> {
    fixed: &'a [u8; Grh::LEN],
    payload: &'a [u8],
}

impl<'a> Grh<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 40;
    /// The next header: a base transport header.
    const TRANSPORT: u8 = 0x1b;

    /// The header at the start of `bytes`; what lies behind its payload length is ignored.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; [`Malformed::Version`]: not 6; [`Malformed::Field`]: no base transport header follows;
    /// [`Malformed::Length`]: its length is more than `bytes`.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, rest) = bytes.split_first_chunk::<{ Grh::LEN }>().ok_or(Malformed::Truncated)?;
        if fixed[0] >> 4 != 6 {
            return Err(Malformed::Version);
        }
        if fixed[6] != Self::TRANSPORT {
            return Err(Malformed::Field);
        }
        let payload = rest.get(..usize::from(be16(fixed, 4))).ok_or(Malformed::Length)?;
        Ok(Self { fixed, payload })
    }

    /// Traffic class.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (be16(self.fixed, 0) >> 4) as u8
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        be32(self.fixed, 0) & 0xf_ffff
    }

    /// Hops that are left.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.fixed[7]
    }

    /// Global identifier of the sender, which has the form of an IPv6 address.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(super::bytes::array::<40, 16>(self.fixed, 8))
    }

    /// Global identifier of the receiver.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(super::bytes::array::<40, 16>(self.fixed, 24))
    }

    /// Base transport header and what follows, invariant CRC included.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// A base transport header of 12 bytes, what follows, and the invariant CRC.
#[derive(Clone, Copy, Debug)]
pub struct Bth<'a> {
    fixed: &'a [u8; Bth::LEN],
    payload: &'a [u8],
    crc: &'a [u8; 4],
}

impl<'a> Bth<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 12;

    /// The packet that `bytes` are: all of a datagram, or the payload of a [`Grh`].
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; [`Malformed::Version`]: not transport version 0; [`Malformed::Length`]: more padding
    /// than payload.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, rest) = bytes.split_first_chunk::<{ Bth::LEN }>().ok_or(Malformed::Truncated)?;
        let (payload, crc) = rest.split_last_chunk().ok_or(Malformed::Truncated)?;
        if fixed[1] & 15 != 0 {
            return Err(Malformed::Version);
        }
        if usize::from(fixed[1] >> 4 & 3) > payload.len() {
            return Err(Malformed::Length);
        }
        Ok(Self { fixed, payload, crc })
    }

    /// Transport service in the upper three bits, operation in the lower five (table 38).
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.fixed[0]
    }

    /// Whether the responder is to make an event.
    #[inline]
    pub fn solicited_event(&self) -> bool {
        self.fixed[1] & 0x80 != 0
    }

    /// Whether the path has migrated.
    #[inline]
    pub fn migrated(&self) -> bool {
        self.fixed[1] & 0x40 != 0
    }

    /// Bytes of padding at the end of the payload, 0 to 3.
    #[inline]
    pub fn pad_count(&self) -> usize {
        usize::from(self.fixed[1] >> 4 & 3)
    }

    /// Partition key.
    #[inline]
    pub fn partition_key(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// Forward and backward explicit congestion notification.
    #[inline]
    pub fn congestion(&self) -> (bool, bool) {
        (self.fixed[4] & 0x80 != 0, self.fixed[4] & 0x40 != 0)
    }

    /// Queue pair of the receiver, 24 bits.
    #[inline]
    pub fn destination_qp(&self) -> u32 {
        be24(self.fixed, 5)
    }

    /// Whether the sender asks for an acknowledgement.
    #[inline]
    pub fn acknowledge_request(&self) -> bool {
        self.fixed[8] & 0x80 != 0
    }

    /// Packet sequence number, 24 bits.
    #[inline]
    pub fn psn(&self) -> u32 {
        be24(self.fixed, 9)
    }

    /// Extended headers and data, without padding and CRC.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.payload[..self.payload.len() - self.pad_count()]
    }

    /// The invariant CRC, byte for byte: unlike the rest it begins with the lowest byte.
    #[inline]
    pub fn invariant_crc(&self) -> [u8; 4] {
        *self.crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BTH: [u8; 20] = [4, 0xe0, 0x12, 0x34, 0xc0, 0xab, 0xcd, 0xef, 0x80, 1, 2, 3, 9, 9, 0, 0, 5, 6, 7, 8];

    #[test]
    fn every_field_of_the_base_transport_header() {
        let bth = Bth::parse(&BTH).unwrap();
        assert_eq!((bth.opcode(), bth.solicited_event(), bth.migrated(), bth.pad_count()), (4, true, true, 2));
        assert_eq!((bth.partition_key(), bth.congestion()), (0x1234, (true, true)));
        assert_eq!((bth.destination_qp(), bth.acknowledge_request(), bth.psn()), (0xabcdef, true, 0x10203));
        assert_eq!((bth.payload(), bth.invariant_crc()), (&[9, 9][..], [5, 6, 7, 8]));
        assert_eq!(Bth::parse(&BTH[..15]).unwrap_err(), Malformed::Truncated);
        assert_eq!(Bth::parse(&BTH[..17]).unwrap_err(), Malformed::Length);
        let mut bytes = BTH;
        bytes[1] = 1;
        assert_eq!(Bth::parse(&bytes).unwrap_err(), Malformed::Version);
    }

    #[test]
    fn every_field_of_the_global_route_header() {
        let mut bytes = [0; 62];
        bytes[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0, 20, 0x1b, 64]);
        bytes[8..24].fill(1);
        bytes[24..40].fill(2);
        bytes[40..60].copy_from_slice(&BTH);
        let grh = Grh::parse(&bytes).unwrap();
        assert_eq!((grh.traffic_class(), grh.flow_label(), grh.hop_limit()), (0xab, 0x12345, 64));
        assert_eq!((grh.source(), grh.destination()), (Ipv6Addr::from([1; 16]), Ipv6Addr::from([2; 16])));
        assert_eq!(grh.payload(), BTH);
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes;
            bytes[at] = byte;
            Grh::parse(&bytes).map(drop)
        };
        assert_eq!(with(0, 0x4a), Err(Malformed::Version));
        assert_eq!(with(6, 17), Err(Malformed::Field));
        assert_eq!(with(5, 23), Err(Malformed::Length));
        assert_eq!(Grh::parse(&bytes[..39]).unwrap_err(), Malformed::Truncated);
    }
}
