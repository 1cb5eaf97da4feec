//! PTP messages in frames, and out of them: IEEE 1588-2019 annexes C and D (UDP over IPv4 and IPv6) and E (Ethernet).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In Ethernet frames of type 0x88F7.
    Ethernet,
    /// In UDP datagrams, from this address.
    Udp {
        /// Our address.
        address: IpAddr,
    },
}

/// A message that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// One whose time matters: Sync, Delay_Req, Pdelay_Req, Pdelay_Resp.
    Event(&'a [u8]),
    /// Any other.
    General(&'a [u8]),
}

const PTP: u16 = 0x88f7;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const UDP: u8 = 17;
const EVENT_PORT: u16 = 319;
const GENERAL_PORT: u16 = 320;
const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
/// Of every message.
const HEADER_LEN: usize = 34;
/// Shortest frame, without FCS.
const SHORTEST: usize = 60;

/// To whom messages go: all, or only who is at the other end of the wire.
struct To<A> {
    mac: [u8; 6],
    address: A,
}

const ALL_BY_ETHERNET: [u8; 6] = [0x01, 0x1b, 0x19, 0, 0, 0];
const NEIGHBOUR_BY_ETHERNET: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x0e];
const ALL_BY_IPV4: To<Ipv4Addr> = To { mac: [0x01, 0x00, 0x5e, 0, 1, 129], address: Ipv4Addr::new(224, 0, 1, 129) };
const NEIGHBOUR_BY_IPV4: To<Ipv4Addr> =
    To { mac: [0x01, 0x00, 0x5e, 0, 0, 107], address: Ipv4Addr::new(224, 0, 0, 107) };
const ALL_BY_IPV6: To<Ipv6Addr> =
    To { mac: [0x33, 0x33, 0, 0, 0x01, 0x81], address: Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 0x181) };
const NEIGHBOUR_BY_IPV6: To<Ipv6Addr> =
    To { mac: [0x33, 0x33, 0, 0, 0, 0x6b], address: Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x6b) };

impl Transport {
    /// The frame for a message.
    pub fn frame(self, mac: [u8; 6], message: &[u8], to_neighbour: bool) -> Vec<u8> {
        let mut frame = Vec::with_capacity(SHORTEST.max(ETHERNET_LEN + IPV6_LEN + UDP_LEN + message.len()));
        match self {
            Self::Ethernet => {
                frame.extend(if to_neighbour { NEIGHBOUR_BY_ETHERNET } else { ALL_BY_ETHERNET });
                frame.extend(mac);
                frame.extend(PTP.to_be_bytes());
            }
            Self::Udp { address: IpAddr::V4(address) } => {
                let to = if to_neighbour { NEIGHBOUR_BY_IPV4 } else { ALL_BY_IPV4 };
                frame.extend(to.mac);
                frame.extend(mac);
                frame.extend(IPV4.to_be_bytes());
                frame.extend(ipv4(address, to.address, UDP_LEN + message.len()));
                // No checksum, as IPv4 allows: what is wrong in a message is seen in it.
                frame.extend(udp(message, 0));
            }
            Self::Udp { address: IpAddr::V6(address) } => {
                let to = if to_neighbour { NEIGHBOUR_BY_IPV6 } else { ALL_BY_IPV6 };
                frame.extend(to.mac);
                frame.extend(mac);
                frame.extend(IPV6.to_be_bytes());
                frame.extend(ipv6(address, to.address, UDP_LEN + message.len()));
                let parts = [&address.octets()[..], &to.address.octets(), &[0, UDP], &udp(message, 0)[4..6]];
                // As it is 0 only where there is none, that is written as its other zero.
                let checksum = match checksum(parts.into_iter().chain([&udp(message, 0)[..], message])) {
                    0 => 0xffff,
                    sum => sum,
                };
                frame.extend(udp(message, checksum));
            }
        }
        frame.extend(message);
        frame.resize(frame.len().max(SHORTEST), 0);
        frame
    }

    /// The message in a frame, if it is one that travels this way.
    pub fn message(self, frame: &[u8]) -> Option<Message<'_>> {
        let ethertype = u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]);
        let payload = frame.get(ETHERNET_LEN..)?;
        let (message, port) = match (self, ethertype) {
            (Self::Ethernet, PTP) => (payload, None),
            (Self::Udp { address: IpAddr::V4(_) }, IPV4) => datagram(of_ipv4(payload)?)?,
            (Self::Udp { address: IpAddr::V6(_) }, IPV6) => datagram(of_ipv6(payload)?)?,
            _ => return None,
        };
        // What is behind it fills up the frame, or is not for us.
        let len = usize::from(u16::from_be_bytes([*message.get(2)?, *message.get(3)?]));
        let message = message.get(..len).filter(|message| message.len() >= HEADER_LEN && is_sound(message))?;
        // Those whose time matters have a port of their own.
        port.is_none_or(|port| port == port_of(message)).then_some(())?;
        Some(if is_event(message) { Message::Event(message) } else { Message::General(message) })
    }
}

/// Whether the times in a message are some: a correction of less than a second, and less than a second of nanoseconds in seconds
/// that a clock can show. What is behind the header of Sync, Delay_Req, Follow_Up, Delay_Resp and their like is a time.
fn is_sound(message: &[u8]) -> bool {
    let correction = message.get(8..16).and_then(|bytes| bytes.try_into().ok()).map(i64::from_be_bytes);
    let is_small = correction.is_some_and(|scaled| scaled.unsigned_abs() >> 16 < 1_000_000_000);
    let time = message.get(HEADER_LEN..HEADER_LEN + 10);
    let is_time = time.is_none_or(|time| time[..2] == [0, 0] && time[6..] < 1_000_000_000u32.to_be_bytes()[..]);
    is_small && is_time
}

/// Messages of types 0 to 3 (IEEE 1588-2019 table 36).
fn is_event(message: &[u8]) -> bool {
    message.first().is_some_and(|first| first & 0x0f < 4)
}

/// The port to which a message goes (annexes C.2 and D.2).
fn port_of(message: &[u8]) -> u16 {
    if is_event(message) { EVENT_PORT } else { GENERAL_PORT }
}

/// The header of a packet that no router takes further.
fn ipv4(from: Ipv4Addr, to: Ipv4Addr, len: usize) -> [u8; IPV4_LEN] {
    let mut header = [0; IPV4_LEN];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&((IPV4_LEN + len) as u16).to_be_bytes());
    // Not to be cut into pieces.
    header[6] = 0x40;
    header[8] = 1;
    header[9] = UDP;
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let checksum = checksum([&header[..]]);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

/// The same of IPv6.
fn ipv6(from: Ipv6Addr, to: Ipv6Addr, len: usize) -> [u8; IPV6_LEN] {
    let mut header = [0; IPV6_LEN];
    header[0] = 0x60;
    header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    header[6] = UDP;
    header[7] = 1;
    header[8..24].copy_from_slice(&from.octets());
    header[24..].copy_from_slice(&to.octets());
    header
}

/// The header of the datagram for a message.
fn udp(message: &[u8], checksum: u16) -> [u8; UDP_LEN] {
    let port = port_of(message).to_be_bytes();
    let (len, checksum) = (((UDP_LEN + message.len()) as u16).to_be_bytes(), checksum.to_be_bytes());
    [port[0], port[1], port[0], port[1], len[0], len[1], checksum[0], checksum[1]]
}

/// The Internet checksum (RFC 1071) over parts, all of which but the last one are of an even length.
fn checksum<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u16 {
    let word = |bytes: &[u8]| u32::from(u16::from_be_bytes([bytes[0], bytes.get(1).copied().unwrap_or(0)]));
    let sum: u32 = parts.into_iter().flat_map(|part| part.chunks(2)).map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// What an IPv4 packet carries, if it is a whole datagram.
fn of_ipv4(packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let (version, header_len) = (first >> 4, usize::from(first & 0x0f) * 4);
    let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3fff;
    let is_whole = version == 4 && header_len >= IPV4_LEN && *packet.get(9)? == UDP && fragment == 0;
    packet.get(header_len..).filter(|_| is_whole)
}

/// What an IPv6 packet carries, if it is a datagram without further headers in front of it, and its checksum is right: it has to have one (RFC 8200
/// section 8.1).
fn of_ipv6(packet: &[u8]) -> Option<&[u8]> {
    let is_whole = packet.first()? >> 4 == 6 && *packet.get(6)? == UDP;
    let udp = packet.get(IPV6_LEN..).filter(|_| is_whole)?;
    let len = udp.get(4..6)?;
    let datagram = udp.get(..usize::from(u16::from_be_bytes([len[0], len[1]])))?;
    let has_one = *datagram.get(6..8)? != [0, 0];
    let is_right = checksum([&packet[8..IPV6_LEN], len, &[0, UDP], datagram]) == 0;
    (has_one && is_right).then_some(datagram)
}

/// The payload of a UDP datagram, and the port that it is for.
fn datagram(udp: &[u8]) -> Option<(&[u8], Option<u16>)> {
    let port = u16::from_be_bytes([*udp.get(2)?, *udp.get(3)?]);
    let len = usize::from(u16::from_be_bytes([*udp.get(4)?, *udp.get(5)?]));
    Some((udp.get(UDP_LEN..len)?, Some(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
    const ADDRESS_6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    const WAYS: [Transport; 3] = [
        Transport::Ethernet,
        Transport::Udp { address: IpAddr::V4(ADDRESS) },
        Transport::Udp { address: IpAddr::V6(ADDRESS_6) },
    ];

    fn message(kind: u8, len: usize) -> Vec<u8> {
        let mut message = vec![0x00; len];
        message[0] = kind;
        message[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        message
    }

    #[test]
    fn a_message_comes_out_as_it_went_in() {
        for way in WAYS {
            for (kind, len) in [(0, 44), (1, 44), (8, 44), (11, 64), (3, 54)] {
                for to_neighbour in [false, true] {
                    let sent = message(kind, len);
                    let frame = way.frame(MAC, &sent, to_neighbour);
                    assert!(frame.len() >= SHORTEST && frame[0] & 1 == 1 && frame[6..12] == MAC);
                    let wanted = if kind < 4 { Message::Event(&sent) } else { Message::General(&sent) };
                    assert_eq!(way.message(&frame), Some(wanted));
                }
            }
        }
    }

    #[test]
    fn the_header_has_the_checksum_that_others_compute() {
        let header = ipv4(Ipv4Addr::new(192, 168, 0, 1), Ipv4Addr::new(224, 0, 1, 129), 52);
        let sum: u32 = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }

    #[test]
    fn a_datagram_of_ipv6_has_its_checksum() {
        for (kind, len) in [(0, 44), (11, 64), (9, 45)] {
            let frame = WAYS[2].frame(MAC, &message(kind, len), false);
            // Source, destination, length, next header, then all of the datagram: over it the sum is nothing.
            let datagram = &frame[ETHERNET_LEN + IPV6_LEN..][..UDP_LEN + len];
            let parts = [&frame[22..54], &frame[18..20], &[0, UDP], datagram];
            assert_eq!((checksum(parts), frame[60..62] != [0, 0]), (0, true), "{kind}");
        }
    }

    #[test]
    fn what_is_no_message_is_none() {
        for way in WAYS {
            let frame = way.frame(MAC, &message(0, 44), false);
            for len in 0..frame.len() {
                let short = way.message(&frame[..len]);
                assert!(short.is_none() || len >= ETHERNET_LEN + 44, "{len}: {short:?}");
            }
            for other in WAYS.into_iter().filter(|other| *other != way) {
                assert_eq!(other.message(&frame), None);
            }
        }
        let udp = WAYS[1].frame(MAC, &message(0, 44), false);
        for (at, value) in
            // 37: an event message to the port of general ones.
            [
                (14, 0x46),
                (14, 0x44),
                (14, 0x65),
                (20, 0x20),
                (23, 6),
                (36, 9),
                (37, 0x40),
                (39, 7),
                (39, 0),
                (45, 12),
            ]
        {
            let mut frame = udp.clone();
            frame[at] = value;
            assert_eq!(WAYS[1].message(&frame), None, "{at}");
        }
        let udp = WAYS[2].frame(MAC, &message(0, 44), false);
        for (at, value) in
            [(14, 0x40), (20, 0), (20, 44), (56, 9), (57, 0x40), (59, 7), (59, 0), (60, 1), (65, 12), (80, 1)]
        {
            let mut frame = udp.clone();
            frame[at] = value;
            assert_eq!(WAYS[2].message(&frame), None, "{at}");
        }
    }
}
