//! Packets of other links than Ethernet: those that hold an IP packet, or whatever an EtherType names, get an Ethernet header with
//! made up addresses.
//!
//! Link types and their headers are those of the registry at <https://www.tcpdump.org/linktypes.html>.

use millrace_port::pcap::{ETHERNET, Packet, link_name};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// The frame of a packet. `room` is for one that is made.
///
/// # Errors
/// Why there is none.
pub fn frame<'a>(packet: &Packet<'a>, room: &'a mut Vec<u8>) -> Result<&'a [u8], String> {
    if packet.link == ETHERNET {
        return Ok(packet.data);
    }
    let (source, kind, payload) = strip(packet.link, packet.data).ok_or_else(|| {
        format!("no Ethernet frame can be made of it: link type {} ({})", packet.link, link_name(packet.link))
    })?;
    room.clear();
    room.extend([0; 6]);
    room.extend(source);
    room.extend(kind.to_be_bytes());
    room.extend_from_slice(payload);
    Ok(room)
}

/// Source address, EtherType and what follows.
fn strip(link: u32, data: &[u8]) -> Option<([u8; 6], u16, &[u8])> {
    let half = |at: usize| data.get(at..)?.first_chunk().map(|half| u16::from_be_bytes(*half));
    let address = |at: usize| data.get(at..).and_then(|data| data.first_chunk()).copied().unwrap_or_default();
    match link {
        // NULL and LOOP: four bytes with a number of the system for the family, which the packet says by itself.
        0 | 108 => ip(data.get(4..)?),
        // RAW, IPV4 and IPV6.
        12 | 14 | 101 | 228 | 229 => ip(data),
        // LINUX_SLL: type of the packet 2, ARPHRD 2, length of the address 2, address 8, protocol 2.
        113 => ether(if half(4)? == 6 { address(6) } else { [0; 6] }, half(14)?, data.get(16..)?),
        // LINUX_SLL2: protocol 2, 0 2, interface 4, ARPHRD 2, type of the packet 1, length of the address 1, address 8.
        276 => ether(if data.get(11) == Some(&6) { address(12) } else { [0; 6] }, half(0)?, data.get(20..)?),
        _ => None,
    }
}

/// Protocols below 0x0600 are no EtherTypes, but numbers of Linux for other things.
fn ether(source: [u8; 6], kind: u16, payload: &[u8]) -> Option<([u8; 6], u16, &[u8])> {
    (kind >= 0x0600).then_some((source, kind, payload))
}

fn ip(data: &[u8]) -> Option<([u8; 6], u16, &[u8])> {
    match data.first()? >> 4 {
        4 => Some(([0; 6], IPV4, data)),
        6 => Some(([0; 6], IPV6, data)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_port::pcap::CaptureTime;

    fn of(link: u32, data: &[u8]) -> Result<Vec<u8>, String> {
        let packet = Packet { time: CaptureTime::default(), original_len: 0, link, data };
        frame(&packet, &mut Vec::new()).map(<[u8]>::to_vec)
    }

    fn made(source: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
        [&[0; 6][..], &source, &kind.to_be_bytes(), payload].concat()
    }

    #[test]
    fn what_holds_an_ip_packet_becomes_a_frame() {
        let (v4, v6) = ([0x45, 1, 2], [0x60, 1, 2]);
        let mac = [1, 2, 3, 4, 5, 6];
        let cooked = [&[0, 0, 0, 1, 0, 6][..], &mac, &[0, 0, 8, 6], &v4].concat();
        let cooked2 = [&[8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6][..], &mac, &[0, 0], &v4].concat();
        assert_eq!(of(1, &v4).unwrap(), v4);
        assert_eq!(of(101, &v4).unwrap(), made([0; 6], 0x0800, &v4));
        assert_eq!(of(0, &[&[2, 0, 0, 0][..], &v6].concat()).unwrap(), made([0; 6], 0x86dd, &v6));
        assert_eq!(of(113, &cooked).unwrap(), made(mac, 0x0806, &v4));
        assert_eq!(of(276, &cooked2).unwrap(), made(mac, 0x0800, &v4));
    }

    #[test]
    fn what_does_not_is_refused_by_name() {
        assert!(of(127, &[0; 60]).unwrap_err().contains("link type 127 (IEEE802_11_RADIOTAP)"));
        for link in [0, 12, 101, 108, 113, 228, 229, 276] {
            for len in 0..20 {
                assert!(of(link, &vec![0; len]).is_err(), "{link} {len}");
            }
        }
    }
}
