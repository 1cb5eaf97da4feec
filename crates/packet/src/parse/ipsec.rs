//! IPsec: authentication header (RFC 4302) and encapsulating security payload (RFC 4303).

use super::Malformed;
use super::bytes::{be16, be32};

/// An authentication header: 12 bytes, then the integrity check value.
#[derive(Clone, Copy, Debug)]
pub struct Ah<'a> {
    fixed: &'a [u8; 12],
    check: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Ah<'a> {
    /// Bytes of the header without the integrity check value.
    pub const LEN: usize = 12;

    /// Bytes of a header whose length field is `field`: words of four bytes, less two (RFC 4302 §2.2).
    #[inline]
    pub(super) fn header_len_of(field: u8) -> Result<usize, Malformed> {
        let len = (usize::from(field) + 2) * 4;
        if len < Self::LEN { Err(Malformed::HeaderLength) } else { Ok(len) }
    }

    /// The header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::HeaderLength`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, _) = bytes.split_first_chunk::<{ Ah::LEN }>().ok_or(Malformed::Truncated)?;
        let (header, payload) = bytes.split_at_checked(Self::header_len_of(fixed[1])?).ok_or(Malformed::Truncated)?;
        Ok(Self { fixed, check: &header[Self::LEN..], payload })
    }

    /// Bytes of the header, with the integrity check value.
    #[inline]
    pub fn header_len(&self) -> usize {
        Self::LEN + self.check.len()
    }

    /// What follows ([`super::protocol`]).
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.fixed[0]
    }

    /// The reserved field, which is 0 (RFC 4302 §2.3).
    #[inline]
    pub fn reserved(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// Security parameters index.
    #[inline]
    pub fn spi(&self) -> u32 {
        be32(self.fixed, 4)
    }

    /// Sequence number.
    #[inline]
    pub fn sequence(&self) -> u32 {
        be32(self.fixed, 8)
    }

    /// Integrity check value, padding included.
    #[inline]
    pub fn check_value(&self) -> &'a [u8] {
        self.check
    }

    /// What follows the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// An encapsulating security payload: 8 bytes that can be read, then what is encrypted.
#[derive(Clone, Copy, Debug)]
pub struct Esp<'a> {
    fixed: &'a [u8; 8],
    payload: &'a [u8],
}

impl<'a> Esp<'a> {
    /// Bytes that can be read.
    pub const LEN: usize = 8;

    /// The payload that `bytes` are.
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, payload) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
        Ok(Self { fixed, payload })
    }

    /// Security parameters index.
    #[inline]
    pub fn spi(&self) -> u32 {
        be32(self.fixed, 0)
    }

    /// Sequence number.
    #[inline]
    pub fn sequence(&self) -> u32 {
        be32(self.fixed, 4)
    }

    /// What is encrypted, with trailer and integrity check value.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authentication_header() {
        let mut bytes = [6, 2, 0, 9, 0, 0, 1, 2, 0, 0, 3, 4, 5, 6, 7, 8, 0xaa];
        let ah = Ah::parse(&bytes).unwrap();
        assert_eq!((ah.next_header(), ah.reserved(), ah.spi(), ah.sequence()), (6, 9, 0x102, 0x304));
        assert_eq!((ah.header_len(), ah.check_value(), ah.payload()), (16, &[5, 6, 7, 8][..], &[0xaa][..]));
        assert_eq!(Ah::parse(&bytes[..15]).unwrap_err(), Malformed::Truncated);
        assert_eq!(Ah::parse(&bytes[..11]).unwrap_err(), Malformed::Truncated);
        bytes[1] = 0;
        assert_eq!(Ah::parse(&bytes).unwrap_err(), Malformed::HeaderLength);
        bytes[1] = 1;
        assert_eq!(Ah::parse(&bytes).unwrap().check_value(), []);
    }

    #[test]
    fn encapsulating_security_payload() {
        let bytes = [0, 0, 1, 2, 0, 0, 3, 4, 5];
        let esp = Esp::parse(&bytes).unwrap();
        assert_eq!((esp.spi(), esp.sequence(), esp.payload()), (0x102, 0x304, &[5][..]));
        assert_eq!(Esp::parse(&bytes[..7]).unwrap_err(), Malformed::Truncated);
    }
}
