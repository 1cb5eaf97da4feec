//! The session header on and off.

use crate::frame::{HEADERS_LEN, SESSION};
use crate::{MacAddress, Session};
use millrace_packet::parse::{Ethernet, Malformed, Pppoe, ppp};

/// Bytes in front of a packet: Ethernet, PPPoE, the number of PPP's protocol.
pub const HEADER_LEN: usize = HEADERS_LEN + 2;

/// Why a frame is no packet of a session, or a packet cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// It is of something else, or for somebody else, or of somebody else.
    #[error("not a frame from the access concentrator to us")]
    Stranger,
    /// It is of another session.
    #[error("of session {0:#06x}, which is not ours")]
    OtherSession(u16),
    /// A header is cut off or cannot be.
    #[error("malformed: {0}")]
    Malformed(Malformed),
    /// It is neither IPv4 nor IPv6.
    #[error("of PPP's protocol {0:#06x}")]
    Protocol(u16),
    /// The packet is not what the protocol in front of it says, or is longer than what it is in.
    #[error("the packet is not what is said in front of it")]
    Packet,
    /// It is larger than what was agreed on.
    #[error("a packet of {len} bytes, and the session has an MTU of {mtu}")]
    TooLong {
        /// Bytes of the packet.
        len: usize,
        /// What there may be.
        mtu: u16,
    },
}

impl DataError {
    /// All names, in the order of counters.
    pub const NAMES: [&'static str; 6] = ["stranger", "other-session", "malformed", "protocol", "packet", "too-long"];

    /// A name, for counters.
    pub fn name(&self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// Which of [`NAMES`](Self::NAMES).
    pub fn index(&self) -> usize {
        match self {
            Self::Stranger => 0,
            Self::OtherSession(_) => 1,
            Self::Malformed(_) => 2,
            Self::Protocol(_) => 3,
            Self::Packet => 4,
            Self::TooLong { .. } => 5,
        }
    }
}

/// A frame of a session between these two: the number of PPP's protocol, and what it carries, without what Ethernet fills up.
pub(crate) fn open(own: MacAddress, ac: MacAddress, session: u16, frame: &[u8]) -> Result<(u16, &[u8]), DataError> {
    let ethernet = Ethernet::parse(frame).map_err(DataError::Malformed)?;
    if ethernet.ether_type() != SESSION || ethernet.destination() != own || ethernet.source() != ac {
        return Err(DataError::Stranger);
    }
    let pppoe = Pppoe::parse(ethernet.payload()).map_err(DataError::Malformed)?;
    if pppoe.session() != session {
        return Err(DataError::OtherSession(pppoe.session()));
    }
    Ok((pppoe.protocol(), pppoe.payload()))
}

/// Takes the header off: the packet of IPv4 or IPv6 in a frame.
///
/// # Errors
/// [`DataError`].
pub fn take_off<'a>(session: &Session, frame: &'a [u8]) -> Result<&'a [u8], DataError> {
    let (protocol, packet) = open(session.own, session.ac, session.session, frame)?;
    packet_of(protocol, packet)
}

/// The packet that a payload is, by what its header says of its length.
pub(crate) fn packet_of(protocol: u16, payload: &[u8]) -> Result<&[u8], DataError> {
    if !matches!(protocol, ppp::IPV4 | ppp::IPV6) {
        return Err(DataError::Protocol(protocol));
    }
    let (found, len) = measure(payload).ok_or(DataError::Packet)?;
    if found != protocol {
        return Err(DataError::Packet);
    }
    payload.get(..len).ok_or(DataError::Packet)
}

/// The header to put in front of a packet of IPv4 or IPv6.
///
/// # Errors
/// [`DataError::Packet`], [`DataError::TooLong`].
pub fn put_on(session: &Session, packet: &[u8]) -> Result<[u8; HEADER_LEN], DataError> {
    let (protocol, len) = measure(packet).ok_or(DataError::Packet)?;
    if len != packet.len() {
        return Err(DataError::Packet);
    }
    if len > usize::from(session.mtu) {
        return Err(DataError::TooLong { len, mtu: session.mtu });
    }
    let mut header = [0; HEADER_LEN];
    header[..6].copy_from_slice(&session.ac.0);
    header[6..12].copy_from_slice(&session.own.0);
    header[12..14].copy_from_slice(&SESSION.to_be_bytes());
    header[14] = 0x11;
    header[16..18].copy_from_slice(&session.session.to_be_bytes());
    // It has the protocol in it, and fits: an MTU is at most 9000.
    header[18..20].copy_from_slice(&(len as u16 + 2).to_be_bytes());
    header[20..22].copy_from_slice(&protocol.to_be_bytes());
    Ok(header)
}

/// PPP's number of what a packet is, and how long it says it is.
fn measure(packet: &[u8]) -> Option<(u16, usize)> {
    let word = |at: usize| Some(usize::from(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?)));
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 => Some((ppp::IPV4, word(2)?)).filter(|(_, len)| *len >= 20),
        6 if packet.len() >= 40 => Some((ppp::IPV6, word(4)? + 40)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        Session {
            session: 0x1234,
            ac: MacAddress([2, 0, 0, 0, 0, 1]),
            ac_name: String::new(),
            own: MacAddress([2, 0, 0, 0, 0, 2]),
            mtu: 60,
            mru: 60,
            ipv4: None,
            ipv6: None,
            dns: Vec::new(),
            method: None,
        }
    }

    fn ipv4(len: usize) -> Vec<u8> {
        let mut packet = vec![0; len];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet
    }

    /// From the other side's view.
    fn framed(packet: &[u8]) -> Vec<u8> {
        let us = session();
        let them = Session { ac: us.own, own: us.ac, ..us };
        [&put_on(&them, packet).unwrap()[..], packet].concat()
    }

    #[test]
    fn on_and_off_again() {
        let mut ipv6 = vec![0; 44];
        (ipv6[0], ipv6[5]) = (0x60, 4);
        for packet in [ipv4(20), ipv4(60), ipv6] {
            let mut frame = framed(&packet);
            assert_eq!(take_off(&session(), &frame), Ok(&packet[..]));
            // Ethernet's padding, and that of whoever sends more than the packet has.
            frame.resize(90, 0xee);
            assert_eq!(take_off(&session(), &frame), Ok(&packet[..]));
        }
    }

    #[test]
    fn what_cannot_be_has_a_name() {
        let frame = framed(&ipv4(40));
        let with = |at: usize, byte: u8| {
            let mut frame = frame.clone();
            frame[at] = byte;
            take_off(&session(), &frame).map(drop)
        };
        assert_eq!(with(5, 9), Err(DataError::Stranger));
        assert_eq!(with(11, 9), Err(DataError::Stranger));
        assert_eq!(with(13, 0x63), Err(DataError::Stranger));
        assert_eq!(with(14, 0x12), Err(DataError::Malformed(Malformed::Version)));
        assert_eq!(with(17, 0x35), Err(DataError::OtherSession(0x1235)));
        assert_eq!(with(19, 43), Err(DataError::Malformed(Malformed::Length)));
        assert_eq!(with(19, 40), Err(DataError::Packet));
        assert_eq!(with(21, 0x57), Err(DataError::Packet));
        assert_eq!(with(20, 0xc0), Err(DataError::Protocol(0xc021)));
        assert_eq!(with(22, 0x65), Err(DataError::Packet));
        assert_eq!(with(25, 41), Err(DataError::Packet));
        for len in 0..frame.len() {
            assert!(take_off(&session(), &frame[..len]).is_err(), "{len}");
        }
        assert_eq!(put_on(&session(), &ipv4(61)), Err(DataError::TooLong { len: 61, mtu: 60 }));
        for nonsense in [&[][..], &[0x45; 19], &ipv4(40)[..39], &[0x75; 40]] {
            assert_eq!(put_on(&session(), nonsense), Err(DataError::Packet));
        }
    }
}
