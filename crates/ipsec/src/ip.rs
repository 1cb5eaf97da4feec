//! IP headers around ESP: found, written, and changed with the checksum by difference, so that a wrong one stays wrong.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use millrace_packet::checksum::Sum;

use crate::refusal::Refusal;

/// Protocol numbers.
pub mod protocol {
    /// IPv4 in IP.
    pub const IPV4: u8 = 4;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 in IP.
    pub const IPV6: u8 = 41;
    /// ESP.
    pub const ESP: u8 = 50;
    /// Nothing follows; in ESP, a dummy packet.
    pub const NONE: u8 = 59;
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const DESTINATION: u8 = 60;
}

/// Bytes of an IPv4 header without options.
pub const V4_LEN: usize = 20;
/// Bytes of an IPv6 header.
pub const V6_LEN: usize = 40;

/// More extension headers than any real packet has.
const MOST_EXTENSIONS: usize = 8;

/// What an IP header says, up to where ESP or UDP begins or would have to be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where it comes from.
    pub source: IpAddr,
    /// Where it goes.
    pub destination: IpAddr,
    /// Bytes of the header with options, or with the extension headers that come before ESP.
    pub len: usize,
    /// Bytes of the whole packet.
    pub total: usize,
    /// What follows ([`protocol`]).
    pub protocol: u8,
    /// Where that is said.
    pub protocol_at: usize,
    /// Traffic class: DSCP and ECN.
    pub class: u8,
    /// Whether it is one part of several.
    pub is_fragment: bool,
    /// Whether it is the first part, or the only one.
    pub is_first: bool,
    /// Whether nobody may cut it: always so for IPv6.
    pub is_whole: bool,
}

impl Header {
    /// The header at the beginning of `packet`, which may have more bytes than the header says. The checksum is not
    /// looked at.
    ///
    /// # Errors
    /// [`Refusal::Header`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Self, Refusal> {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => Self::v4(packet),
            Some(6) => Self::v6(packet),
            _ => None,
        }
        .ok_or(Refusal::Header)
    }

    #[inline]
    fn v4(packet: &[u8]) -> Option<Self> {
        let fixed: &[u8; V4_LEN] = packet.first_chunk()?;
        let len = usize::from(fixed[0] & 0xf) * 4;
        let total = usize::from(be16(fixed, 2));
        if len < V4_LEN || total < len || total > packet.len() {
            return None;
        }
        let fragment = be16(fixed, 6);
        Some(Self {
            source: Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]).into(),
            destination: Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]).into(),
            len,
            total,
            protocol: fixed[9],
            protocol_at: 9,
            class: fixed[1],
            is_fragment: fragment & 0x3fff != 0,
            is_first: fragment & 0x1fff == 0,
            is_whole: fragment & 0x4000 != 0,
        })
    }

    #[inline]
    fn v6(packet: &[u8]) -> Option<Self> {
        let fixed: &[u8; V6_LEN] = packet.first_chunk()?;
        let total = V6_LEN + usize::from(be16(fixed, 4));
        let packet = packet.get(..total)?;
        let address = |at: usize| -> Option<Ipv6Addr> { Some(Ipv6Addr::from(*fixed[at..].first_chunk::<16>()?)) };
        let mut header = Self {
            source: address(8)?.into(),
            destination: address(24)?.into(),
            len: V6_LEN,
            total,
            protocol: fixed[6],
            protocol_at: 6,
            class: (be16(fixed, 0) >> 4) as u8,
            is_fragment: false,
            is_first: true,
            is_whole: true,
        };
        for _ in 0..MOST_EXTENSIONS {
            let rest = &packet[header.len..];
            match header.protocol {
                protocol::HOP_BY_HOP | protocol::ROUTING => {}
                // Options for the last host belong behind ESP, those for the hosts of a routing header before it.
                protocol::DESTINATION if matches!(rest, [protocol::ROUTING | protocol::ESP, ..]) => {}
                protocol::FRAGMENT => {
                    let field = be16(rest.first_chunk::<8>()?, 2);
                    (header.is_fragment, header.is_first) = (true, field & 0xfff8 == 0);
                    return Some(header);
                }
                _ => return Some(header),
            }
            let len = (usize::from(*rest.get(1)?) + 1) * 8;
            (header.protocol_at, header.protocol) = (header.len, rest[0]);
            header.len += len;
            if header.len > total {
                return None;
            }
        }
        None
    }
}

#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Changes a word of an IPv4 header and its checksum by the difference (RFC 1624).
#[inline]
fn change16(header: &mut [u8], at: usize, value: u16) {
    let before = be16(header, at);
    if before == value {
        return;
    }
    let sum = Sum::default().with(u32::from(!be16(header, 10))).with(u32::from(!before)).with(u32::from(value));
    put16(header, at, value);
    put16(header, 10, sum.checksum());
}

/// Says in the header of `packet`, which is whole, what follows and how long the packet is.
///
/// # Errors
/// [`Refusal::Header`] if the packet has become too long for its fields.
#[inline]
pub(crate) fn change(packet: &mut [u8], header: &Header, protocol: u8) -> Result<(), Refusal> {
    let len = packet.len();
    if header.source.is_ipv4() {
        change16(packet, 2, u16::try_from(len).map_err(|_| Refusal::Header)?);
        let word = u16::from_be_bytes([packet[8], protocol]);
        change16(packet, 8, word);
    } else {
        put16(packet, 4, u16::try_from(len - V6_LEN).map_err(|_| Refusal::Header)?);
        packet[header.protocol_at] = protocol;
    }
    Ok(())
}

/// Changes the traffic class.
#[inline]
pub(crate) fn change_class(packet: &mut [u8], is_v4: bool, class: u8) {
    if is_v4 {
        let word = u16::from_be_bytes([packet[0], class]);
        change16(packet, 0, word);
    } else {
        let word = be16(packet, 0) & 0xf00f | u16::from(class) << 4;
        put16(packet, 0, word);
    }
}

/// What the outer header of a tunnel says besides its addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outer {
    pub class: u8,
    pub protocol: u8,
    pub is_whole: bool,
    pub id: u16,
}

/// As Linux begins where no route says otherwise.
const HOPS: u8 = 64;

/// Writes the outer header of a tunnel at the beginning of `packet`, which has room for it and is as long as it says. `false`:
/// the packet is too long for its fields.
#[inline]
pub(crate) fn write(packet: &mut [u8], source: IpAddr, destination: IpAddr, outer: Outer) -> bool {
    let len = packet.len();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let (Some(header), Ok(len)) = (packet.first_chunk_mut::<V4_LEN>(), u16::try_from(len)) else {
                return false;
            };
            header[..2].copy_from_slice(&[0x45, outer.class]);
            put16(header, 2, len);
            put16(header, 4, outer.id);
            put16(header, 6, if outer.is_whole { 0x4000 } else { 0 });
            header[8..12].copy_from_slice(&[HOPS, outer.protocol, 0, 0]);
            header[12..16].copy_from_slice(&source.octets());
            header[16..].copy_from_slice(&destination.octets());
            let sum = Sum::of(header).checksum();
            put16(header, 10, sum);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let Some(header) = packet.first_chunk_mut::<V6_LEN>() else { return false };
            let Ok(len) = u16::try_from(len - V6_LEN) else { return false };
            header[..4].copy_from_slice(&(6 << 28 | u32::from(outer.class) << 20).to_be_bytes());
            put16(header, 4, len);
            header[6..8].copy_from_slice(&[outer.protocol, HOPS]);
            header[8..24].copy_from_slice(&source.octets());
            header[24..].copy_from_slice(&destination.octets());
        }
        _ => return false,
    }
    true
}

/// The checksum of a TCP or UDP segment, without what its own field adds if that is 0.
pub(crate) fn transport_checksum(source: IpAddr, destination: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let addresses = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Sum::of(&source.octets()).plus(Sum::of(&destination.octets())),
        (IpAddr::V6(source), IpAddr::V6(destination)) => Sum::of(&source.octets()).plus(Sum::of(&destination.octets())),
        _ => Sum::default(),
    };
    addresses.with(u32::from(protocol)).with(segment.len() as u32).plus(Sum::of(segment)).checksum()
}

/// Makes the checksum of the TCP or UDP segment at `at` right, after addresses have changed on the way (RFC 3948 §3.1.2):
/// its bytes are those of the sender, which the check value of ESP has shown.
pub(crate) fn mend_transport_checksum(packet: &mut [u8], header: &Header, protocol: u8, segment: Range<usize>) {
    let Some(segment) = packet.get_mut(segment) else { return };
    let (at, least) = match protocol {
        protocol::TCP => (16, 20),
        protocol::UDP => (6, 8),
        _ => return,
    };
    // UDP without a checksum stays so.
    if segment.len() < least || (protocol == protocol::UDP && be16(segment, at) == 0) {
        return;
    }
    put16(segment, at, 0);
    let sum = transport_checksum(header.source, header.destination, protocol, segment);
    put16(segment, at, if sum == 0 && protocol == protocol::UDP { 0xffff } else { sum });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_headers_are_found() {
        let outer = Outer { class: 0xb9, protocol: 50, is_whole: true, id: 7 };
        for (source, destination, len) in [("192.0.2.1", "192.0.2.2", 20), ("2001:db8::1", "2001:db8::2", 40)] {
            let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
            let mut packet = [0; 100];
            assert!(write(&mut packet, source, destination, outer));
            let header = Header::parse(&packet).unwrap();
            assert_eq!((header.source, header.destination, header.len, header.total), (source, destination, len, 100));
            assert_eq!((header.class, header.protocol, header.is_whole, header.is_fragment), (0xb9, 50, true, false));
            assert!(len == 40 || Sum::of(&packet[..20]).folded() == 0xffff);
            change_class(&mut packet, len == 20, 3);
            change(&mut packet, &header, 17).unwrap();
            let header = Header::parse(&packet).unwrap();
            assert_eq!((header.class, header.protocol), (3, 17));
            assert!(len == 40 || Sum::of(&packet[..20]).folded() == 0xffff);
            assert_eq!(Header::parse(&packet[..99]), Err(Refusal::Header));
        }
        assert!(!write(&mut [0; 70000], "1.1.1.1".parse().unwrap(), "1.1.1.2".parse().unwrap(), outer));
        assert!(!write(&mut [0; 100], "1.1.1.1".parse().unwrap(), "::1".parse().unwrap(), outer));
    }

    #[test]
    fn a_wrong_checksum_stays_as_wrong() {
        let mut packet = [0; 40];
        let outer = Outer { class: 0, protocol: 50, is_whole: false, id: 7 };
        assert!(write(&mut packet, "192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap(), outer));
        packet[10] ^= 0x10;
        let wrong = Sum::of(&packet[..20]).folded();
        change_class(&mut packet, true, 0xff);
        assert_eq!(Sum::of(&packet[..20]).folded(), wrong);
    }

    #[test]
    fn extension_headers_and_fragments() {
        let mut packet = [0; 80];
        packet[0] = 0x60;
        packet[5] = 40;
        packet[6] = protocol::HOP_BY_HOP;
        packet[40..42].copy_from_slice(&[protocol::DESTINATION, 0]);
        packet[48..50].copy_from_slice(&[protocol::ESP, 0]);
        let header = Header::parse(&packet).unwrap();
        assert_eq!((header.len, header.protocol, header.protocol_at), (56, protocol::ESP, 48));
        // Before anything else they are for the last host, and part of what is protected.
        packet[48] = 6;
        assert_eq!(Header::parse(&packet).unwrap().protocol, protocol::DESTINATION);
        packet[40] = protocol::FRAGMENT;
        packet[51] = 8;
        let header = Header::parse(&packet).unwrap();
        assert!(header.is_fragment && !header.is_first);
        packet[40] = protocol::HOP_BY_HOP;
        packet[41] = 200;
        assert_eq!(Header::parse(&packet), Err(Refusal::Header));
        packet[41] = 0;
        packet[48..].fill(0);
        assert_eq!(Header::parse(&packet), Err(Refusal::Header), "nothing but extension headers");
        for short in [&[][..], &[0x45; 19], &[0x60; 39], &[0x75; 60], &[0x44; 60]] {
            assert_eq!(Header::parse(short), Err(Refusal::Header));
        }
    }
}
