//! UDP (RFC 768).

use super::Malformed;
use super::bytes::be16;

/// Ports of protocols that are looked into.
pub mod port {
    /// PTP, messages whose time of arrival counts (IEEE 1588 annex C).
    pub const PTP_EVENT: u16 = 319;
    /// PTP, other messages.
    pub const PTP_GENERAL: u16 = 320;
    /// VXLAN (RFC 7348 §8).
    pub const VXLAN: u16 = 4789;
    /// RDMA over Ethernet, version 2.
    pub const ROCE: u16 = 4791;
    /// GENEVE (RFC 8926 §3.3).
    pub const GENEVE: u16 = 6081;
}

/// A datagram: a header of 8 bytes and data.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    fixed: &'a [u8; Udp::LEN],
    payload: &'a [u8],
}

impl<'a> Udp<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// The datagram at the start of `bytes`; what lies behind its length is ignored.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; [`Malformed::Length`]: the length is less than the header or more than `bytes`.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, _) = bytes.split_first_chunk::<{ Udp::LEN }>().ok_or(Malformed::Truncated)?;
        let datagram = bytes.get(..usize::from(be16(fixed, 4))).ok_or(Malformed::Length)?;
        let payload = datagram.get(Self::LEN..).ok_or(Malformed::Length)?;
        Ok(Self { fixed, payload })
    }

    /// The datagram whose first fragment `bytes` are: its length is that of all fragments, and not compared.
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    #[inline]
    pub fn parse_first_fragment(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, payload) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
        Ok(Self { fixed, payload })
    }

    /// Port of the sender.
    #[inline]
    pub fn source_port(&self) -> u16 {
        be16(self.fixed, 0)
    }

    /// Port of the receiver.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// Bytes of header and data, as the header says.
    #[inline]
    pub fn len(&self) -> u16 {
        be16(self.fixed, 4)
    }

    /// Whether there are no data.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    /// The checksum as it stands there; with IPv4, 0 is none.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.fixed, 6)
    }

    /// The data, up to the length of the datagram.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_and_every_length() {
        let mut bytes = [0x12, 0x34, 0, 53, 0, 10, 0xab, 0xcd, 1, 2, 3];
        let udp = Udp::parse(&bytes).unwrap();
        assert_eq!((udp.source_port(), udp.destination_port(), udp.len(), udp.checksum()), (0x1234, 53, 10, 0xabcd));
        assert_eq!((udp.payload(), udp.is_empty()), (&[1, 2][..], false));
        for (len, wanted) in [(0, None), (7, None), (8, Some(0)), (11, Some(3)), (12, None)] {
            bytes[5] = len;
            let found = Udp::parse(&bytes).map(|udp| udp.payload().len());
            assert_eq!(found, wanted.ok_or(Malformed::Length), "{len}");
        }
        assert_eq!(Udp::parse(&bytes[..7]).unwrap_err(), Malformed::Truncated);
        assert_eq!(Udp::parse_first_fragment(&bytes).unwrap().payload(), [1, 2, 3]);
        assert_eq!(Udp::parse_first_fragment(&bytes[..7]).unwrap_err(), Malformed::Truncated);
    }
}
