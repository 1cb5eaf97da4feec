//! VXLAN (RFC 7348).

use super::Malformed;
use super::bytes::be24;

/// A VXLAN header of 8 bytes, and the Ethernet frame within.
#[derive(Clone, Copy, Debug)]
pub struct Vxlan<'a> {
    fixed: &'a [u8; Vxlan::LEN],
    payload: &'a [u8],
}

impl<'a> Vxlan<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 8;
    /// The flag that says that there is a network identifier.
    const VALID: u8 = 0x08;

    /// The header at the start of the payload of UDP. Reserved bits are ignored (RFC 7348 §5).
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; [`Malformed::Field`]: the flag I is not set.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, payload) = bytes.split_first_chunk::<{ Vxlan::LEN }>().ok_or(Malformed::Truncated)?;
        if fixed[0] & Self::VALID == 0 {
            return Err(Malformed::Field);
        }
        Ok(Self { fixed, payload })
    }

    /// VXLAN network identifier, 24 bits.
    #[inline]
    pub fn vni(&self) -> u32 {
        be24(self.fixed, 4)
    }

    /// The Ethernet frame within.
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
        let bytes = [0x08, 1, 2, 3, 0x12, 0x34, 0x56, 0xff, 9];
        let vxlan = Vxlan::parse(&bytes).unwrap();
        assert_eq!((vxlan.vni(), vxlan.payload()), (0x123456, &[9][..]));
        assert_eq!(Vxlan::parse(&bytes[..7]).unwrap_err(), Malformed::Truncated);
        assert_eq!(Vxlan::parse(&[0xf7, 0, 0, 0, 0, 0, 0, 0]).unwrap_err(), Malformed::Field);
    }
}
