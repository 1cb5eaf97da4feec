//! QUIC: what holds for every version (RFC 8999), and the packets of version 1 (RFC 9000 §17) and 2 (RFC 9369 §3).
//!
//! Nothing in a datagram says that it is QUIC: whoever asks knows it from the port.

use super::Malformed;

/// Versions of QUIC.
pub mod version {
    /// The server names the versions that it speaks (RFC 8999 §6).
    pub const NEGOTIATION: u32 = 0;
    /// Version 1 (RFC 9000).
    pub const V1: u32 = 1;
    /// Version 2 (RFC 9369).
    pub const V2: u32 = 0x6b33_43cf;
}

/// The first bit: the header is a long one.
const LONG: u8 = 0x80;
/// The second bit: set in versions 1 and 2, unless both sides agreed otherwise (RFC 9287).
const FIXED: u8 = 0x40;
/// Longest connection identifier of versions 1 and 2, in bytes.
const LONGEST_ID: usize = 20;

/// What a packet with a long header is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuicType {
    /// The first packets of a handshake.
    Initial,
    /// Data before the handshake is done.
    ZeroRtt,
    /// The rest of the handshake.
    Handshake,
    /// The server wants the client's address confirmed.
    Retry,
    /// The server names its versions.
    VersionNegotiation,
}

/// A packet with a long header (RFC 8999 §5.1).
#[derive(Clone, Copy, Debug)]
pub struct QuicLong<'a> {
    first: u8,
    version: u32,
    destination: &'a [u8],
    source: &'a [u8],
    rest: &'a [u8],
}

/// What follows the connection identifiers of a long header. `protected` is packet number and payload, encrypted;
/// `next` is the rest of the datagram, which may be another packet (RFC 9000 §12.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicBody<'a> {
    /// Initial (RFC 9000 §17.2.2).
    #[expect(missing_docs, reason = "see above")]
    Initial { token: &'a [u8], protected: &'a [u8], next: &'a [u8] },
    /// 0-RTT (RFC 9000 §17.2.3).
    #[expect(missing_docs, reason = "see above")]
    ZeroRtt { protected: &'a [u8], next: &'a [u8] },
    /// Handshake (RFC 9000 §17.2.4).
    #[expect(missing_docs, reason = "see above")]
    Handshake { protected: &'a [u8], next: &'a [u8] },
    /// Retry (RFC 9000 §17.2.5): a token, and a tag of 16 bytes over the packet.
    #[expect(missing_docs, reason = "see above")]
    Retry { token: &'a [u8], tag: &'a [u8; 16] },
    /// Version negotiation (RFC 8999 §6): versions, four bytes each.
    VersionNegotiation(&'a [[u8; 4]]),
    /// A version that is not known: everything behind the identifiers.
    Unknown(&'a [u8]),
}

impl<'a> QuicLong<'a> {
    /// The packet at the start of a datagram, or of what another packet left of it.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; [`Malformed::Field`]: it is no long header, or a connection identifier is longer than
    /// versions 1 and 2 allow (RFC 9000 §17.2).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (&[first, a, b, c, d], rest) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
        if first & LONG == 0 {
            return Err(Malformed::Field);
        }
        let version = u32::from_be_bytes([a, b, c, d]);
        let (destination, rest) = short_string(rest)?;
        let (source, rest) = short_string(rest)?;
        let longest = destination.len().max(source.len());
        if matches!(version, version::V1 | version::V2) && longest > LONGEST_ID {
            return Err(Malformed::Field);
        }
        Ok(Self { first, version, destination, source, rest })
    }

    /// Version of QUIC; 0 is [`QuicType::VersionNegotiation`].
    #[inline]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Connection identifier of the receiver, 0 to 255 bytes.
    #[inline]
    pub fn destination(&self) -> &'a [u8] {
        self.destination
    }

    /// Connection identifier of the sender, 0 to 255 bytes.
    #[inline]
    pub fn source(&self) -> &'a [u8] {
        self.source
    }

    /// Whether the second bit is set, as versions 1 and 2 want it.
    #[inline]
    pub fn fixed_bit(&self) -> bool {
        self.first & FIXED != 0
    }

    /// What it is, if the version is known.
    #[inline]
    pub fn kind(&self) -> Option<QuicType> {
        use QuicType::{Handshake, Initial, Retry, VersionNegotiation, ZeroRtt};
        let types = match self.version {
            version::NEGOTIATION => return Some(VersionNegotiation),
            version::V1 => [Initial, ZeroRtt, Handshake, Retry],
            version::V2 => [Retry, Initial, ZeroRtt, Handshake],
            _ => return None,
        };
        Some(types[usize::from(self.first >> 4 & 3)])
    }

    /// What follows the connection identifiers.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; [`Malformed::Length`]: a length is more than there is.
    pub fn body(&self) -> Result<QuicBody<'a>, Malformed> {
        match self.kind() {
            None => Ok(QuicBody::Unknown(self.rest)),
            Some(QuicType::VersionNegotiation) => match self.rest.as_chunks() {
                (versions, []) => Ok(QuicBody::VersionNegotiation(versions)),
                _ => Err(Malformed::Truncated),
            },
            Some(QuicType::Retry) => {
                let (token, tag) = self.rest.split_last_chunk().ok_or(Malformed::Truncated)?;
                Ok(QuicBody::Retry { token, tag })
            }
            Some(QuicType::Initial) => {
                let (token, rest) = long_string(self.rest)?;
                let (protected, next) = long_string(rest)?;
                Ok(QuicBody::Initial { token, protected, next })
            }
            Some(QuicType::ZeroRtt) => {
                let (protected, next) = long_string(self.rest)?;
                Ok(QuicBody::ZeroRtt { protected, next })
            }
            Some(QuicType::Handshake) => {
                let (protected, next) = long_string(self.rest)?;
                Ok(QuicBody::Handshake { protected, next })
            }
        }
    }
}

/// A packet with a short header (RFC 8999 §5.2), which is the rest of its datagram.
#[derive(Clone, Copy, Debug)]
pub struct QuicShort<'a> {
    first: u8,
    rest: &'a [u8],
}

impl<'a> QuicShort<'a> {
    /// The packet that `bytes` are.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; [`Malformed::Field`]: it is no short header.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (&first, rest) = bytes.split_first().ok_or(Malformed::Truncated)?;
        if first & LONG != 0 {
            return Err(Malformed::Field);
        }
        Ok(Self { first, rest })
    }

    /// Whether the second bit is set, as versions 1 and 2 want it.
    #[inline]
    pub fn fixed_bit(&self) -> bool {
        self.first & FIXED != 0
    }

    /// The spin bit of versions 1 and 2 (RFC 9000 §17.4).
    #[inline]
    pub fn spin(&self) -> bool {
        self.first & 0x20 != 0
    }

    /// Connection identifier of the receiver. The header does not say how long it is: whoever chose it knows.
    #[inline]
    pub fn destination(&self, len: usize) -> Option<&'a [u8]> {
        self.rest.get(..len)
    }

    /// Everything behind the first byte.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

/// A string whose length stands before it in one byte.
#[inline]
fn short_string(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (&len, rest) = bytes.split_first().ok_or(Malformed::Truncated)?;
    rest.split_at_checked(usize::from(len)).ok_or(Malformed::Truncated)
}

/// A string whose length stands before it in a number of variable length.
fn long_string(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (len, rest) = number(bytes)?;
    let len = usize::try_from(len).map_err(|_| Malformed::Length)?;
    rest.split_at_checked(len).ok_or(Malformed::Length)
}

/// A number of variable length (RFC 9000 §16): the first two bits say in how many bytes, 1, 2, 4 or 8.
pub(super) fn number(bytes: &[u8]) -> Result<(u64, &[u8]), Malformed> {
    let first = bytes.first().ok_or(Malformed::Truncated)?;
    let (digits, rest) = bytes.split_at_checked(1 << (first >> 6)).ok_or(Malformed::Truncated)?;
    let value = digits[1..].iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte));
    Ok((value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(first: u8, version: u32, body: &[u8]) -> Vec<u8> {
        [&[first][..], &version.to_be_bytes(), &[2, 0xd0, 0xd1, 1, 0x50], body].concat()
    }

    /// The examples of RFC 9000 appendix A.1.
    #[test]
    fn numbers_of_variable_length() {
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ] {
            assert_eq!(number(bytes), Ok((value, &[][..])));
            assert_eq!(number(&bytes[..bytes.len() - 1]), Err(Malformed::Truncated));
        }
    }

    #[test]
    fn types_of_both_versions() {
        use QuicType::{Handshake, Initial, Retry, ZeroRtt};
        for (version, types) in
            [(version::V1, [Initial, ZeroRtt, Handshake, Retry]), (version::V2, [Retry, Initial, ZeroRtt, Handshake])]
        {
            for (bits, kind) in types.into_iter().enumerate() {
                let bytes = long(0xc0 | (bits as u8) << 4, version, &[]);
                assert_eq!(QuicLong::parse(&bytes).unwrap().kind(), Some(kind), "{version:#x} {bits}");
            }
        }
        let unknown = long(0xc0, 0xff00_001d, &[7]);
        let unknown = QuicLong::parse(&unknown).unwrap();
        assert_eq!((unknown.kind(), unknown.body()), (None, Ok(QuicBody::Unknown(&[7]))));
    }

    #[test]
    fn an_initial_packet_and_another_behind_it() {
        let bytes = long(0xc3, version::V1, &[1, 0xaa, 0x40, 2, 5, 6, 0xe0]);
        let quic = QuicLong::parse(&bytes).unwrap();
        assert_eq!((quic.version(), quic.destination(), quic.source()), (1, &[0xd0, 0xd1][..], &[0x50][..]));
        assert!(quic.fixed_bit());
        assert_eq!(quic.body(), Ok(QuicBody::Initial { token: &[0xaa], protected: &[5, 6], next: &[0xe0] }));
        let short = QuicLong::parse(&bytes[..bytes.len() - 2]).unwrap();
        assert_eq!(short.body(), Err(Malformed::Length));
    }

    #[test]
    fn other_bodies() {
        let body = |first, version, body: &[u8], wanted: Result<QuicBody<'_>, Malformed>| {
            assert_eq!(QuicLong::parse(&long(first, version, body)).unwrap().body(), wanted);
        };
        body(0xd0, version::V1, &[1, 9], Ok(QuicBody::ZeroRtt { protected: &[9], next: &[] }));
        body(0xe0, version::V1, &[0, 9], Ok(QuicBody::Handshake { protected: &[], next: &[9] }));
        body(0xe0, version::V1, &[0x40], Err(Malformed::Truncated));
        let retry = [[1; 16], [7; 16]].concat();
        body(0xc0, version::V2, &retry, Ok(QuicBody::Retry { token: &[1; 16], tag: &[7; 16] }));
        body(0xc0, version::V2, &retry[..15], Err(Malformed::Truncated));
        let versions = [[0, 0, 0, 1], [1, 2, 3, 4]];
        body(0x80, 0, versions.as_flattened(), Ok(QuicBody::VersionNegotiation(&versions)));
        body(0x80, 0, &[0, 0, 0], Err(Malformed::Truncated));
    }

    #[test]
    fn identifiers_longer_than_the_version_allows() {
        let with = |version: u32| {
            let bytes = [&[0xc0][..], &version.to_be_bytes(), &[21], &[0; 21], &[0]].concat();
            QuicLong::parse(&bytes).map(|quic| quic.destination().len())
        };
        assert_eq!(with(version::V1), Err(Malformed::Field));
        assert_eq!(with(version::V2), Err(Malformed::Field));
        assert_eq!(with(0x0a0a_0a0a), Ok(21), "another version may have them (RFC 8999 §5.1)");
        let bytes = long(0xc0, version::V1, &[]);
        for len in 0..bytes.len() {
            assert_eq!(QuicLong::parse(&bytes[..len]).unwrap_err(), Malformed::Truncated, "{len}");
        }
    }

    #[test]
    fn short_header() {
        let bytes = [0x61, 1, 2, 3];
        let quic = QuicShort::parse(&bytes).unwrap();
        assert!(quic.fixed_bit() && quic.spin());
        assert_eq!((quic.destination(2), quic.destination(4)), (Some(&[1, 2][..]), None));
        assert_eq!((quic.destination(0), quic.rest()), (Some(&[][..]), &[1, 2, 3][..]));
        assert_eq!(QuicShort::parse(&[0xc0]).unwrap_err(), Malformed::Field);
        assert_eq!(QuicLong::parse(&[0x40; 9]).unwrap_err(), Malformed::Field);
        assert_eq!(QuicShort::parse(&[]).unwrap_err(), Malformed::Truncated);
    }
}
