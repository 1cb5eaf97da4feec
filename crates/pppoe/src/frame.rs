//! Frames of PPPoE (RFC 2516 §4): an Ethernet header, six bytes, tags or a PPP packet.

use crate::MacAddress;
use millrace_packet::parse::Ethernet;

/// Ethernet's type of discovery.
pub const DISCOVERY: u16 = 0x8863;
/// Ethernet's type of sessions.
pub const SESSION: u16 = 0x8864;
/// Everybody.
pub const BROADCAST: MacAddress = MacAddress([0xff; 6]);

/// Codes of discovery (RFC 2516 §5).
pub mod code {
    /// Who is there? To everybody.
    pub const PADI: u8 = 0x09;
    /// I am, and this is what I offer.
    pub const PADO: u8 = 0x07;
    /// I want that.
    pub const PADR: u8 = 0x19;
    /// This is your session.
    pub const PADS: u8 = 0x65;
    /// The session is over.
    pub const PADT: u8 = 0xa7;
}

/// Bytes of the two headers: Ethernet's and that of PPPoE.
pub const HEADERS_LEN: usize = 14 + 6;

/// Why a frame of discovery is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends within a header.
    #[error("too short")]
    Truncated,
    /// It is of another Ethernet type.
    #[error("not a frame of discovery")]
    Type,
    /// Version and type are not 1.
    #[error("of another version of PPPoE")]
    Version,
    /// Its length is more than the frame has.
    #[error("its length is more than the frame has")]
    Length,
    /// A tag or option is longer than what it is in.
    #[error("a tag or option ends behind its end")]
    Tag,
    /// It has more tags than we look at.
    #[error("too many tags")]
    TooMany,
}

/// A frame of discovery, without its VLAN tags.
#[derive(Clone, Copy, Debug)]
pub struct Discovery<'a> {
    /// To whom.
    pub destination: MacAddress,
    /// From whom.
    pub source: MacAddress,
    /// Which kind ([`code`]).
    pub code: u8,
    /// Which session, or 0.
    pub session: u16,
    /// Its tags, as bytes: [`crate::tag::Tags`].
    pub tags: &'a [u8],
}

impl<'a> Discovery<'a> {
    /// The frame, without whatever fills it up.
    ///
    /// # Errors
    /// [`Malformed`]; tags are not looked at.
    pub fn parse(frame: &'a [u8]) -> Result<Self, Malformed> {
        let ethernet = Ethernet::parse(frame).map_err(|_| Malformed::Truncated)?;
        if ethernet.ether_type() != DISCOVERY {
            return Err(Malformed::Type);
        }
        let ([kind, code, a, b, c, d], rest) = ethernet.payload().split_first_chunk().ok_or(Malformed::Truncated)?;
        if *kind != 0x11 {
            return Err(Malformed::Version);
        }
        let tags = rest.get(..usize::from(u16::from_be_bytes([*c, *d]))).ok_or(Malformed::Length)?;
        let (destination, source) = (ethernet.destination(), ethernet.source());
        Ok(Self { destination, source, code: *code, session: u16::from_be_bytes([*a, *b]), tags })
    }

    /// The frame as bytes.
    ///
    /// # Panics
    /// If there are more than 65,535 bytes of tags, which nobody writes here.
    pub fn build(&self) -> Vec<u8> {
        let addresses = (self.destination, self.source);
        build(addresses, DISCOVERY, self.code, self.session, self.tags)
    }
}

/// A frame of a session that carries a control packet of PPP.
pub(crate) fn control(ends: (MacAddress, MacAddress), session: u16, protocol: u16, packet: &[u8]) -> Vec<u8> {
    let payload = [&protocol.to_be_bytes()[..], packet].concat();
    build(ends, SESSION, 0, session, &payload)
}

fn build((destination, source): (MacAddress, MacAddress), kind: u16, code: u8, session: u16, rest: &[u8]) -> Vec<u8> {
    let len = u16::try_from(rest.len()).expect("a frame of ours is never so long");
    let mut frame = Vec::with_capacity(HEADERS_LEN + rest.len());
    frame.extend_from_slice(&destination.0);
    frame.extend_from_slice(&source.0);
    frame.extend_from_slice(&kind.to_be_bytes());
    frame.extend_from_slice(&[0x11, code]);
    frame.extend_from_slice(&session.to_be_bytes());
    frame.extend_from_slice(&len.to_be_bytes());
    frame.extend_from_slice(rest);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_and_forth_and_what_is_none() {
        let (destination, source) = (BROADCAST, MacAddress([2, 0, 0, 0, 0, 1]));
        let mut bytes =
            Discovery { destination, source, code: code::PADT, session: 0x1234, tags: &[1, 1, 0, 0] }.build();
        // Ethernet fills short frames up.
        bytes.resize(60, 0xaa);
        let frame = Discovery::parse(&bytes).unwrap();
        assert_eq!((frame.destination, frame.source, frame.code), (destination, source, code::PADT));
        assert_eq!((frame.session, frame.tags), (0x1234, &[1, 1, 0, 0][..]));
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Discovery::parse(&bytes).map(drop)
        };
        assert_eq!(with(13, 0x64), Err(Malformed::Type));
        assert_eq!(with(14, 0x12), Err(Malformed::Version));
        assert_eq!(with(19, 40), Ok(()));
        assert_eq!(with(19, 41), Err(Malformed::Length));
        for len in 0..20 {
            assert_eq!(Discovery::parse(&bytes[..len]).map(drop), Err(Malformed::Truncated), "{len}");
        }
    }
}
