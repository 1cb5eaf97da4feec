//! PTP messages in frames, and out of them: IEEE 1588-2019 annex C (UDP over IPv4) and annex E (Ethernet).

use std::net::Ipv4Addr;

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In Ethernet frames of type 0x88F7.
    Ethernet,
    /// In UDP datagrams, from this address.
    Udp {
        /// Our address.
        address: Ipv4Addr,
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
const UDP: u8 = 17;
const EVENT_PORT: u16 = 319;
const GENERAL_PORT: u16 = 320;
const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const UDP_LEN: usize = 8;
/// Of every message.
const HEADER_LEN: usize = 34;
/// Shortest frame, without FCS.
const SHORTEST: usize = 60;

/// To whom messages go: all, or only who is at the other end of the wire.
struct To {
    mac: [u8; 6],
    address: Ipv4Addr,
}

const ALL_BY_ETHERNET: [u8; 6] = [0x01, 0x1b, 0x19, 0, 0, 0];
const NEIGHBOUR_BY_ETHERNET: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x0e];
const ALL_BY_UDP: To = To { mac: [0x01, 0x00, 0x5e, 0, 1, 129], address: Ipv4Addr::new(224, 0, 1, 129) };
const NEIGHBOUR_BY_UDP: To = To { mac: [0x01, 0x00, 0x5e, 0, 0, 107], address: Ipv4Addr::new(224, 0, 0, 107) };

impl Transport {
    /// The frame for a message.
    pub fn frame(self, mac: [u8; 6], message: &[u8], to_neighbour: bool) -> Vec<u8> {
        let mut frame = Vec::with_capacity(SHORTEST.max(ETHERNET_LEN + IPV4_LEN + UDP_LEN + message.len()));
        match self {
            Self::Ethernet => {
                frame.extend(if to_neighbour { NEIGHBOUR_BY_ETHERNET } else { ALL_BY_ETHERNET });
                frame.extend(mac);
                frame.extend(PTP.to_be_bytes());
            }
            Self::Udp { address } => {
                let to = if to_neighbour { NEIGHBOUR_BY_UDP } else { ALL_BY_UDP };
                frame.extend(to.mac);
                frame.extend(mac);
                frame.extend(IPV4.to_be_bytes());
                frame.extend(ipv4(address, to.address, UDP_LEN + message.len()));
                let port = if is_event(message) { EVENT_PORT } else { GENERAL_PORT };
                frame.extend(port.to_be_bytes());
                frame.extend(port.to_be_bytes());
                frame.extend(((UDP_LEN + message.len()) as u16).to_be_bytes());
                // No checksum, as IPv4 allows: what is wrong in a message is seen in it.
                frame.extend([0; 2]);
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
        let message = match (self, ethertype) {
            (Self::Ethernet, PTP) => payload,
            (Self::Udp { .. }, IPV4) => datagram(payload)?,
            _ => return None,
        };
        // What is behind it fills up the frame, or is not for us.
        let len = usize::from(u16::from_be_bytes([*message.get(2)?, *message.get(3)?]));
        let message = message.get(..len).filter(|message| message.len() >= HEADER_LEN && is_sound(message))?;
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
    let words = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

/// The payload of a whole UDP datagram to one of the ports of PTP.
fn datagram(packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let (version, header_len) = (first >> 4, usize::from(first & 0x0f) * 4);
    let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3fff;
    if version != 4 || header_len < IPV4_LEN || *packet.get(9)? != UDP || fragment != 0 {
        return None;
    }
    let udp = packet.get(header_len..)?;
    let port = u16::from_be_bytes([*udp.get(2)?, *udp.get(3)?]);
    let len = usize::from(u16::from_be_bytes([*udp.get(4)?, *udp.get(5)?]));
    if port != EVENT_PORT && port != GENERAL_PORT {
        return None;
    }
    udp.get(UDP_LEN..len)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
    const WAYS: [Transport; 2] = [Transport::Ethernet, Transport::Udp { address: ADDRESS }];

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
    fn what_is_no_message_is_none() {
        for way in WAYS {
            let frame = way.frame(MAC, &message(0, 44), false);
            for len in 0..frame.len() {
                let short = way.message(&frame[..len]);
                assert!(short.is_none() || len >= ETHERNET_LEN + 44, "{len}: {short:?}");
            }
            let other = WAYS[usize::from(way == WAYS[0])];
            assert_eq!(other.message(&frame), None);
        }
        let udp = WAYS[1].frame(MAC, &message(0, 44), false);
        for (at, value) in
            [(14, 0x46), (14, 0x44), (14, 0x65), (20, 0x20), (23, 6), (36, 9), (39, 7), (39, 0), (45, 12)]
        {
            let mut frame = udp.clone();
            frame[at] = value;
            assert_eq!(WAYS[1].message(&frame), None, "{at}");
        }
    }
}
