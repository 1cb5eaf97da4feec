//! PPPoE sessions (RFC 2516).

use super::Malformed;
use super::bytes::be16;

/// Protocols of PPP (RFC 1332 §2, RFC 5072 §2).
pub mod ppp {
    /// IPv4.
    pub const IPV4: u16 = 0x0021;
    /// IPv6.
    pub const IPV6: u16 = 0x0057;
}

/// A packet of a PPPoE session: 6 bytes, the PPP protocol in 2 (in 1, if it is compressed), and what that is.
#[derive(Clone, Copy, Debug)]
pub struct Pppoe<'a> {
    fixed: &'a [u8; 6],
    protocol: u16,
    header_len: u8,
    payload: &'a [u8],
}

impl<'a> Pppoe<'a> {
    /// Bytes before the PPP protocol.
    pub const LEN: usize = 6;

    /// The packet at the start of `bytes`; what lies behind its length is ignored.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; [`Malformed::Version`]: version or type is not 1; [`Malformed::Field`]: its code is not
    /// that of a session (RFC 2516 §4); [`Malformed::Length`]: its length is more than `bytes`, or holds no protocol.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, rest) = bytes.split_first_chunk::<{ Pppoe::LEN }>().ok_or(Malformed::Truncated)?;
        if fixed[0] != 0x11 {
            return Err(Malformed::Version);
        }
        if fixed[1] != 0 {
            return Err(Malformed::Field);
        }
        let frame = rest.get(..usize::from(be16(fixed, 4))).ok_or(Malformed::Length)?;
        // The last bit of a protocol is set, and that of its first byte is not (RFC 1661 §2).
        let (protocol, header_len, payload) = match frame {
            [short, payload @ ..] if short & 1 == 1 => (u16::from(*short), 7, payload),
            [first, second, payload @ ..] => (u16::from_be_bytes([*first, *second]), 8, payload),
            _ => return Err(Malformed::Length),
        };
        Ok(Self { fixed, protocol, header_len, payload })
    }

    /// Bytes before the payload: 8, or 7 where the protocol is compressed.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.header_len)
    }

    /// Number of the session.
    #[inline]
    pub fn session(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// Bytes of protocol and payload.
    #[inline]
    pub fn len(&self) -> u16 {
        be16(self.fixed, 4)
    }

    /// Whether the payload is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    /// What the payload is ([`ppp`]).
    #[inline]
    pub fn protocol(&self) -> u16 {
        self.protocol
    }

    /// What follows the protocol, up to the length of the packet.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_and_what_is_malformed() {
        let bytes = [0x11, 0, 0x12, 0x34, 0, 4, 0, 0x21, 0x45, 9, 0];
        let pppoe = Pppoe::parse(&bytes).unwrap();
        assert_eq!((pppoe.session(), pppoe.len(), pppoe.protocol(), pppoe.header_len()), (0x1234, 4, ppp::IPV4, 8));
        assert_eq!((pppoe.payload(), pppoe.is_empty()), (&[0x45, 9][..], false));
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes;
            bytes[at] = byte;
            Pppoe::parse(&bytes).map(drop)
        };
        assert_eq!(with(0, 0x21), Err(Malformed::Version));
        assert_eq!(with(1, 9), Err(Malformed::Field));
        assert_eq!(with(5, 6), Err(Malformed::Length));
        assert_eq!(with(5, 5), Ok(()));
        assert_eq!(with(5, 1), Err(Malformed::Length));
        assert_eq!(with(5, 0), Err(Malformed::Length));
        assert_eq!(Pppoe::parse(&bytes[..5]).unwrap_err(), Malformed::Truncated);
    }

    #[test]
    fn a_compressed_protocol() {
        let bytes = [0x11, 0, 0, 1, 0, 2, 0x57, 0x60];
        let pppoe = Pppoe::parse(&bytes).unwrap();
        assert_eq!((pppoe.protocol(), pppoe.header_len(), pppoe.payload()), (ppp::IPV6, 7, &[0x60][..]));
    }
}
