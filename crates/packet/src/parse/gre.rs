//! Generic routing encapsulation: version 0 (RFC 2784, RFC 2890) and the version 1 of PPTP (RFC 2637 §4.1).

use super::Malformed;
use super::bytes::be16;

const CHECKSUM: u16 = 0x8000;
const ROUTING: u16 = 0x4000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
/// In version 1 only.
const ACKNOWLEDGEMENT: u16 = 0x0080;
const VERSION: u16 = 7;

/// A GRE header of 4 to 16 bytes, and what it carries.
#[derive(Clone, Copy, Debug)]
pub struct Gre<'a> {
    fixed: &'a [u8; 4],
    /// Those fields that there are, four bytes each: checksum, key, sequence number, acknowledgement.
    fields: &'a [[u8; 4]],
    payload: &'a [u8],
}

impl<'a> Gre<'a> {
    /// Bytes that every header has.
    pub const LEN: usize = 4;

    /// The header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; [`Malformed::Version`]: neither 0 nor 1; [`Malformed::Field`]: a source route, which
    /// RFC 2784 §2.3 wants discarded, or what version 1 does not have.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, rest) = bytes.split_first_chunk::<{ Gre::LEN }>().ok_or(Malformed::Truncated)?;
        let flags = be16(fixed, 0);
        let known = match flags & VERSION {
            0 => CHECKSUM | KEY | SEQUENCE,
            1 if flags & (CHECKSUM | KEY) == KEY => KEY | SEQUENCE | ACKNOWLEDGEMENT,
            1 => return Err(Malformed::Field),
            _ => return Err(Malformed::Version),
        };
        if flags & ROUTING != 0 {
            return Err(Malformed::Field);
        }
        let (fields, payload) =
            rest.split_at_checked((flags & known).count_ones() as usize * 4).ok_or(Malformed::Truncated)?;
        Ok(Self { fixed, fields: fields.as_chunks().0, payload })
    }

    /// Bytes of the header.
    #[inline]
    pub fn header_len(&self) -> usize {
        Self::LEN + self.fields.len() * 4
    }

    /// 0, or 1 for PPTP.
    #[inline]
    pub fn version(&self) -> u8 {
        (self.flags() & VERSION) as u8
    }

    /// What the payload is, an EtherType.
    #[inline]
    pub fn protocol(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// The checksum, if there is one.
    #[inline]
    pub fn checksum(&self) -> Option<u16> {
        Some((self.field(CHECKSUM)? >> 16) as u16)
    }

    /// The key, if there is one; in version 1, bytes of the payload and number of the call.
    #[inline]
    pub fn key(&self) -> Option<u32> {
        self.field(KEY)
    }

    /// The sequence number, if there is one.
    #[inline]
    pub fn sequence(&self) -> Option<u32> {
        self.field(SEQUENCE)
    }

    /// The highest sequence number that the sender has received, if he says so (version 1).
    #[inline]
    pub fn acknowledgement(&self) -> Option<u32> {
        if self.version() == 1 { self.field(ACKNOWLEDGEMENT) } else { None }
    }

    /// What follows the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    #[inline]
    fn flags(&self) -> u16 {
        be16(self.fixed, 0)
    }

    /// The field of this flag. Fields stand in the order of their flags, from the highest bit down.
    #[inline]
    fn field(&self, flag: u16) -> Option<u32> {
        let flags = self.flags();
        if flags & flag == 0 {
            return None;
        }
        let before = flags & (CHECKSUM | KEY | SEQUENCE) & !(flag | (flag - 1));
        self.fields.get(before.count_ones() as usize).map(|bytes| u32::from_be_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each field is its place.
    fn header(flags: u16) -> Vec<u8> {
        let mut bytes = [flags.to_be_bytes(), [0x65, 0x58]].concat();
        bytes.extend([[0, 1, 0, 1], [0, 2, 0, 2], [0, 3, 0, 3], [0, 4, 0, 4]].concat());
        bytes
    }

    #[test]
    fn every_combination_of_version_0() {
        for bits in 0..8u16 {
            let (checksum, key, sequence) = (bits & 4, bits & 2, bits & 1);
            let bytes = header(checksum << 13 | key << 12 | sequence << 12);
            let gre = Gre::parse(&bytes).unwrap();
            let mut place = 0;
            let mut wanted = |is: u16| {
                place += u32::from(is != 0);
                (is != 0).then_some(place << 16 | place)
            };
            assert_eq!(gre.checksum(), wanted(checksum).map(|field| (field >> 16) as u16), "{bits}");
            assert_eq!((gre.key(), gre.sequence()), (wanted(key), wanted(sequence)), "{bits}");
            assert_eq!((gre.acknowledgement(), gre.version(), gre.protocol()), (None, 0, 0x6558));
            assert_eq!((gre.header_len(), gre.payload().len()), (4 + 4 * place as usize, 16 - 4 * place as usize));
            assert_eq!(Gre::parse(&bytes[..gre.header_len() - 1]).unwrap_err(), Malformed::Truncated);
        }
    }

    #[test]
    fn version_1() {
        let bytes = header(KEY | SEQUENCE | ACKNOWLEDGEMENT | 1);
        let gre = Gre::parse(&bytes).unwrap();
        assert_eq!((gre.key(), gre.sequence(), gre.acknowledgement()), (Some(0x10001), Some(0x20002), Some(0x30003)));
        assert_eq!((gre.version(), gre.payload().len()), (1, 4));
        assert_eq!(Gre::parse(&header(1)).unwrap_err(), Malformed::Field, "without a key");
    }

    #[test]
    fn what_is_refused() {
        assert_eq!(Gre::parse(&header(2)).unwrap_err(), Malformed::Version);
        assert_eq!(Gre::parse(&header(ROUTING)).unwrap_err(), Malformed::Field);
        let bytes = header(ACKNOWLEDGEMENT);
        assert_eq!(Gre::parse(&bytes).unwrap().header_len(), 4, "a reserved bit of version 0");
    }
}
