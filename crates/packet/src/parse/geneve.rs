//! GENEVE (RFC 8926).

use super::Malformed;
use super::bytes::{be16, be24};

/// A GENEVE header: 8 bytes, then up to 252 bytes of options.
#[derive(Clone, Copy, Debug)]
pub struct Geneve<'a> {
    fixed: &'a [u8; Geneve::LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Geneve<'a> {
    /// Bytes of the header without options.
    pub const LEN: usize = 8;

    /// The header at the start of the payload of UDP (RFC 8926 §3.4).
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::Version`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, rest) = bytes.split_first_chunk::<{ Geneve::LEN }>().ok_or(Malformed::Truncated)?;
        if fixed[0] >> 6 != 0 {
            return Err(Malformed::Version);
        }
        let len = usize::from(fixed[0] & 0x3f) * 4;
        let (options, payload) = rest.split_at_checked(len).ok_or(Malformed::Truncated)?;
        Ok(Self { fixed, options, payload })
    }

    /// Bytes of the header, with options.
    #[inline]
    pub fn header_len(&self) -> usize {
        Self::LEN + self.options.len()
    }

    /// Whether it is for the end of the tunnel itself, and not to be handed on.
    #[inline]
    pub fn is_control(&self) -> bool {
        self.fixed[1] & 0x80 != 0
    }

    /// Whether there are options that must not be ignored.
    #[inline]
    pub fn has_critical_options(&self) -> bool {
        self.fixed[1] & 0x40 != 0
    }

    /// What is within, an EtherType; [`super::ether_type::ETHERNET`] is a frame.
    #[inline]
    pub fn protocol(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// Virtual network identifier, 24 bits.
    #[inline]
    pub fn vni(&self) -> u32 {
        be24(self.fixed, 4)
    }

    /// The options, of which there are at most 63.
    #[inline]
    pub fn options(&self) -> GeneveOptions<'a> {
        GeneveOptions(self.options)
    }

    /// What is within.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// One option (RFC 8926 §3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneveOption<'a> {
    /// Whose option it is.
    pub class: u16,
    /// Which of them; the highest bit says that it is critical.
    pub kind: u8,
    /// What belongs to it, 0 to 124 bytes.
    pub data: &'a [u8],
}

/// Goes through options. Ends behind the last one and at the first that is malformed.
#[derive(Clone, Copy, Debug)]
pub struct GeneveOptions<'a>(&'a [u8]);

impl<'a> Iterator for GeneveOptions<'a> {
    type Item = Result<GeneveOption<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        // The header counts in words of four bytes, so that no less is ever left.
        let (fixed, rest) = self.0.split_first_chunk::<4>()?;
        let Some((data, rest)) = rest.split_at_checked(usize::from(fixed[3] & 0x1f) * 4) else {
            self.0 = &[];
            return Some(Err(Malformed::Truncated));
        };
        self.0 = rest;
        Some(Ok(GeneveOption { class: be16(fixed, 0), kind: fixed[2], data }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_and_what_is_malformed() {
        let mut bytes = [0x03, 0xc0, 0x65, 0x58, 0x12, 0x34, 0x56, 0, 1, 2, 0x83, 0xe1, 5, 6, 7, 8, 0, 0, 9, 0, 0xaa];
        let geneve = Geneve::parse(&bytes).unwrap();
        assert!(geneve.is_control() && geneve.has_critical_options());
        assert_eq!((geneve.protocol(), geneve.vni(), geneve.header_len()), (0x6558, 0x123456, 20));
        assert_eq!(geneve.payload(), [0xaa]);
        let options: Vec<_> = geneve.options().map(Result::unwrap).collect();
        let first = GeneveOption { class: 0x102, kind: 0x83, data: &[5, 6, 7, 8] };
        assert_eq!(options, [first, GeneveOption { class: 0, kind: 9, data: &[] }]);
        assert_eq!(Geneve::parse(&bytes[..19]).unwrap_err(), Malformed::Truncated);
        assert_eq!(Geneve::parse(&bytes[..7]).unwrap_err(), Malformed::Truncated);
        bytes[11] = 3;
        let options: Vec<_> = Geneve::parse(&bytes).unwrap().options().collect();
        assert_eq!(options, [Err(Malformed::Truncated)]);
        bytes[0] = 0x43;
        assert_eq!(Geneve::parse(&bytes).unwrap_err(), Malformed::Version);
    }
}
