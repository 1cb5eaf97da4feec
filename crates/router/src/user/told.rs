//! ICMP to those who send packets that the path does not take (RFC 1191, RFC 4443 §3.2).
//!
//! It comes from the address that the packet was for: what Linux gets from the tunnel interface with one of its own addresses as its source, it drops.

use std::net::IpAddr;

use millrace_ipsec::ip::Header;
use millrace_packet::checksum::Sum;

/// Bytes of an answer at most, with its header (RFC 1812 §4.3.2.3); of IPv6, the least MTU.
const MOST_V4: usize = 576;
const MOST_V6: usize = 1280;

const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;

/// Of IPv6 nobody obeys less.
const LEAST_V6: usize = 1280;

/// Says that the IP packet at the beginning of `packet` is longer than `mtu`. `None`: about such a packet nothing may be said (RFC 1122 §3.2.2, RFC 4443
/// §2.4), or it is none.
pub(super) fn too_big(packet: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let header = Header::parse(packet).ok()?;
    let is_of_one = |address: IpAddr| !address.is_multicast() && !address.is_unspecified() && !address.is_loopback();
    if !header.is_first || !is_of_one(header.source) || !is_of_one(header.destination) || is_error(packet, &header) {
        return None;
    }
    match (header.destination, header.source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let quoted = &packet[..header.total.min(MOST_V4 - 28)];
            let mut answer = vec![0; 28];
            answer[0] = 0x45;
            answer[2..4].copy_from_slice(&((28 + quoted.len()) as u16).to_be_bytes());
            answer[8..10].copy_from_slice(&[64, ICMP]);
            answer[12..16].copy_from_slice(&from.octets());
            answer[16..20].copy_from_slice(&to.octets());
            let sum = Sum::of(&answer[..20]).checksum();
            answer[10..12].copy_from_slice(&sum.to_be_bytes());
            answer[20..22].copy_from_slice(&[3, 4]);
            answer[26..28].copy_from_slice(&(mtu.min(usize::from(u16::MAX)) as u16).to_be_bytes());
            answer.extend_from_slice(quoted);
            let sum = Sum::of(&answer[20..]).checksum();
            answer[22..24].copy_from_slice(&sum.to_be_bytes());
            Some(answer)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let quoted = &packet[..header.total.min(MOST_V6 - 48)];
            let len = 8 + quoted.len();
            let mut answer = vec![0; 48];
            answer[0] = 0x60;
            answer[4..6].copy_from_slice(&(len as u16).to_be_bytes());
            answer[6..8].copy_from_slice(&[ICMP_V6, 64]);
            answer[8..24].copy_from_slice(&from.octets());
            answer[24..40].copy_from_slice(&to.octets());
            answer[40] = 2;
            answer[44..48].copy_from_slice(&(mtu.max(LEAST_V6) as u32).to_be_bytes());
            answer.extend_from_slice(quoted);
            let ends = Sum::of(&from.octets()).plus(Sum::of(&to.octets()));
            let sum = ends.with(len as u32).with(u32::from(ICMP_V6)).plus(Sum::of(&answer[40..])).checksum();
            answer[42..44].copy_from_slice(&sum.to_be_bytes());
            Some(answer)
        }
        _ => None,
    }
}

/// Whether it is an ICMP error itself: about those nobody is told.
fn is_error(packet: &[u8], header: &Header) -> bool {
    let kind = packet.get(header.len).copied();
    match header.protocol {
        ICMP => !matches!(kind, Some(0 | 8 | 13 | 14)),
        ICMP_V6 => kind.is_none_or(|kind| kind < 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(is_v4: bool, protocol: u8, kind: u8) -> Vec<u8> {
        let mut packet = vec![0; 1500];
        if is_v4 {
            packet[..4].copy_from_slice(&[0x45, 0, 5, 220]);
            packet[9] = protocol;
            packet[12..20].copy_from_slice(&[10, 1, 0, 1, 10, 2, 0, 1]);
            packet[20] = kind;
        } else {
            packet[0] = 0x60;
            packet[4..7].copy_from_slice(&[5, 180, protocol]);
            packet[8] = 0x20;
            (packet[24], packet[39]) = (0x20, 2);
            packet[40] = kind;
        }
        packet
    }

    #[test]
    fn the_sender_is_told_the_mtu() {
        let answer = too_big(&packet(true, 17, 0), 1400).unwrap();
        let header = Header::parse(&answer).unwrap();
        assert_eq!((header.source.to_string(), header.destination.to_string()), ("10.2.0.1".into(), "10.1.0.1".into()));
        assert_eq!(
            (header.total, answer.len(), &answer[20..22], &answer[26..28]),
            (576, 576, &[3, 4][..], &[5, 120][..])
        );
        assert_eq!((Sum::of(&answer[..20]).folded(), Sum::of(&answer[20..]).folded()), (0xffff, 0xffff));
        let answer = too_big(&packet(false, 17, 0), 1400).unwrap();
        let header = Header::parse(&answer).unwrap();
        assert_eq!((header.total, header.protocol, answer[40], &answer[44..48]), (1280, 58, 2, &[0, 0, 5, 120][..]));
        let rest = Sum::of(&answer[8..40]).with(1240).with(58).plus(Sum::of(&answer[40..]));
        assert_eq!(rest.folded(), 0xffff);
    }

    #[test]
    fn nothing_is_said_about_errors_fragments_and_groups() {
        assert!(too_big(&packet(true, 1, 8), 1400).is_some() && too_big(&packet(true, 1, 3), 1400).is_none());
        assert!(too_big(&packet(false, 58, 128), 1400).is_some() && too_big(&packet(false, 58, 1), 1400).is_none());
        let mut later = packet(true, 17, 0);
        later[7] = 9;
        assert!(too_big(&later, 1400).is_none());
        let mut to_group = packet(true, 17, 0);
        to_group[16] = 224;
        assert!(
            too_big(&to_group, 1400).is_none() && too_big(&[0x45; 19], 1400).is_none() && too_big(&[], 0).is_none()
        );
    }
}
