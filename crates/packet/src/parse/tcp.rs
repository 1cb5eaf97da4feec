//! TCP (RFC 9293).

use super::bytes::{be16, be32};
use super::{Malformed, Options};

/// Bits of [`Tcp::flags`] (RFC 9293 §3.1; AE: RFC 9768).
pub mod flag {
    /// No more data from the sender.
    pub const FIN: u16 = 1;
    /// Synchronise sequence numbers.
    pub const SYN: u16 = 1 << 1;
    /// Reset the connection.
    pub const RST: u16 = 1 << 2;
    /// Push.
    pub const PSH: u16 = 1 << 3;
    /// The acknowledgement number counts.
    pub const ACK: u16 = 1 << 4;
    /// The urgent pointer counts.
    pub const URG: u16 = 1 << 5;
    /// ECN echo.
    pub const ECE: u16 = 1 << 6;
    /// Congestion window reduced.
    pub const CWR: u16 = 1 << 7;
    /// Accurate ECN.
    pub const AE: u16 = 1 << 8;
}

/// A TCP segment: header of 20 to 60 bytes with options, and data.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    fixed: &'a [u8; Tcp::LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Bytes of the header without options.
    pub const LEN: usize = 20;

    /// The segment that `bytes` are: TCP has no length of its own.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::HeaderLength`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, _) = bytes.split_first_chunk::<{ Tcp::LEN }>().ok_or(Malformed::Truncated)?;
        let header = usize::from(fixed[12] >> 4) * 4;
        if header < Self::LEN {
            return Err(Malformed::HeaderLength);
        }
        let (header, payload) = bytes.split_at_checked(header).ok_or(Malformed::Truncated)?;
        Ok(Self { fixed, options: &header[Self::LEN..], payload })
    }

    /// Bytes of the header, with options.
    #[inline]
    pub fn header_len(&self) -> usize {
        Self::LEN + self.options.len()
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

    /// Number of the first byte of data.
    #[inline]
    pub fn sequence(&self) -> u32 {
        be32(self.fixed, 4)
    }

    /// The next byte that the sender waits for, with [`flag::ACK`].
    #[inline]
    pub fn acknowledgement(&self) -> u32 {
        be32(self.fixed, 8)
    }

    /// The twelve bits behind the header length, reserved ones included ([`flag`]).
    #[inline]
    pub fn flags(&self) -> u16 {
        be16(self.fixed, 12) & 0xfff
    }

    /// Bytes that the sender has room for, not scaled.
    #[inline]
    pub fn window(&self) -> u16 {
        be16(self.fixed, 14)
    }

    /// The checksum as it stands there.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.fixed, 16)
    }

    /// Where urgent data end, from the sequence number on, with [`flag::URG`].
    #[inline]
    pub fn urgent(&self) -> u16 {
        be16(self.fixed, 18)
    }

    /// The options, which are at most 40 bytes.
    #[inline]
    pub fn options(&self) -> Options<'a> {
        Options(self.options)
    }

    /// The data.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field() {
        let bytes = [0, 80, 1, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0x61, 0x12, 0, 5, 0, 6, 0, 7, 1, 3, 3, 7, 0xaa];
        let tcp = Tcp::parse(&bytes).unwrap();
        assert_eq!((tcp.source_port(), tcp.destination_port()), (80, 0x102));
        assert_eq!((tcp.sequence(), tcp.acknowledgement(), tcp.window()), (3, 4, 5));
        assert_eq!(tcp.flags(), flag::SYN | flag::ACK | flag::AE);
        assert_eq!((tcp.checksum(), tcp.urgent(), tcp.header_len(), tcp.payload()), (6, 7, 24, &[0xaa][..]));
        assert_eq!(tcp.options().map(|option| option.unwrap().kind).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(Tcp::parse(&bytes[..23]).unwrap_err(), Malformed::Truncated);
        assert_eq!(Tcp::parse(&bytes[..19]).unwrap_err(), Malformed::Truncated);
        let mut short = bytes;
        short[12] = 0x40;
        assert_eq!(Tcp::parse(&short).unwrap_err(), Malformed::HeaderLength);
    }
}
