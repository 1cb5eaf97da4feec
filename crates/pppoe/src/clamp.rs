//! The largest segment that TCP may send through a session: who connects says so in its SYN, and is corrected there.

use millrace_packet::checksum::Sum;
use millrace_packet::parse::{Fragment, Ipv4, Ipv6, Options, Tcp, protocol, tcp_flag as flag};

/// Bytes of the headers that a segment of TCP has at least: IPv4's, and its own.
const HEADERS_4: u16 = 40;
/// The same with IPv6's.
const HEADERS_6: u16 = 60;
/// The option.
const MSS: u8 = 2;

/// Lowers the MSS of a SYN to what an MTU allows, in either direction. The checksum goes along (RFC 1624). Whether there was anything to be lowered.
///
/// Other packets, those that are malformed, and those without the option stay as they are.
pub fn clamp(packet: &mut [u8], mtu: u16) -> bool {
    let Some(at) = find(packet) else { return false };
    let most = mtu.saturating_sub(if packet[0] >> 4 == 4 { HEADERS_4 } else { HEADERS_6 });
    let old = u16::from_be_bytes([packet[at.mss], packet[at.mss + 1]]);
    if old <= most {
        return false;
    }
    packet[at.mss..at.mss + 2].copy_from_slice(&most.to_be_bytes());
    // Behind an odd number of bytes, both are in two words: the sum with its bytes exchanged.
    let odd = (at.mss - at.tcp) % 2 == 1;
    let [old, new] = [old, most].map(|word| if odd { word.swap_bytes() } else { word });
    let sum = at.tcp + 16;
    let before = u16::from_be_bytes([packet[sum], packet[sum + 1]]);
    let after = Sum::default().with((!before).into()).with((!old).into()).with(new.into()).checksum();
    packet[sum..sum + 2].copy_from_slice(&after.to_be_bytes());
    true
}

/// Where they are in a packet.
struct Places {
    tcp: usize,
    /// The value of the option.
    mss: usize,
}

fn find(packet: &[u8]) -> Option<Places> {
    let segment = match packet.first()? >> 4 {
        4 => {
            let ip = Ipv4::parse(packet).ok()?;
            (ip.protocol() == protocol::TCP && ip.is_whole()).then(|| ip.payload())?
        }
        6 => {
            let mut extensions = Ipv6::parse(packet).ok()?.extensions();
            extensions.by_ref().for_each(drop);
            let whole = extensions.next_header() == protocol::TCP && extensions.fragment() == Fragment::None;
            whole.then(|| extensions.rest())?
        }
        _ => return None,
    };
    let tcp = segment.as_ptr().addr() - packet.as_ptr().addr();
    let header = Tcp::parse(segment).ok()?;
    if header.flags() & flag::SYN == 0 {
        return None;
    }
    let value = mss(header.options())?;
    Some(Places { tcp, mss: value.as_ptr().addr() - packet.as_ptr().addr() })
}

fn mss(options: Options<'_>) -> Option<&[u8]> {
    options.map_while(Result::ok).find(|option| option.kind == MSS && option.data.len() == 2).map(|option| option.data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A SYN with these options, whose checksum holds.
    fn syn(version: u8, options: &[u8]) -> Vec<u8> {
        let mut tcp = vec![0; 20];
        tcp[..4].copy_from_slice(&[0x12, 0x34, 0, 80]);
        (tcp[12], tcp[13]) = (((20 + options.len()) as u8 / 4) << 4, 2);
        tcp.extend_from_slice(options);
        let mut ip = match version {
            4 => {
                let mut ip = vec![0; 20];
                (ip[0], ip[8], ip[9]) = (0x45, 64, 6);
                ip[2..4].copy_from_slice(&(20 + tcp.len() as u16).to_be_bytes());
                ip
            }
            _ => {
                let mut ip = vec![0; 40];
                (ip[0], ip[6], ip[7]) = (0x60, 6, 64);
                ip[4..6].copy_from_slice(&(tcp.len() as u16).to_be_bytes());
                ip
            }
        };
        ip.extend_from_slice(&tcp);
        let tcp = ip.len() - tcp.len();
        let sum = total(&ip, tcp).checksum();
        ip[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
        ip
    }

    /// Over pseudo header and segment; addresses are zero here.
    fn total(packet: &[u8], tcp: usize) -> Sum {
        Sum::of(&packet[tcp..]).with(6).with((packet.len() - tcp) as u32)
    }

    #[test]
    fn a_syn_says_what_the_session_carries() {
        for (version, tcp, most) in [(4, 20, 1452u16), (6, 40, 1432)] {
            for options in
                [vec![2, 4, 0x05, 0xb4], vec![1, 2, 4, 0x05, 0xb4, 0, 0, 0], vec![1, 1, 8, 2, 2, 4, 0xff, 0xff]]
            {
                let mut packet = syn(version, &options);
                assert_eq!(total(&packet, tcp).folded(), 0xffff);
                assert!(clamp(&mut packet, 1492), "{options:?}");
                assert_eq!(total(&packet, tcp).folded(), 0xffff, "{options:?}");
                let left = mss(Tcp::parse(&packet[tcp..]).unwrap().options()).unwrap();
                assert_eq!(left, most.to_be_bytes());
                assert!(!clamp(&mut packet, 1492), "it is low enough");
            }
        }
    }

    #[test]
    fn everything_else_stays() {
        let whole = syn(4, &[2, 4, 0x05, 0xb4]);
        let with = |at: usize, byte: u8| {
            let mut packet = whole.clone();
            packet[at] = byte;
            packet
        };
        let others = [
            // Another protocol, a fragment, no SYN, another option, one that is too long, none.
            with(9, 17),
            with(7, 1),
            with(6, 0x20),
            with(33, 0x10),
            with(40, 3),
            with(41, 3),
            with(40, 0),
            with(32, 0x40),
        ];
        for packet in others {
            let mut clamped = packet.clone();
            assert!(!clamp(&mut clamped, 1492));
            assert_eq!(clamped, packet);
        }
        let mut low = syn(4, &[2, 4, 0x02, 0x18]);
        assert!(!clamp(&mut low, 1492) && clamp(&mut low, 500));
        for len in 0..whole.len() {
            assert!(!clamp(&mut whole[..len].to_vec(), 1492), "{len}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes(mut packet in prop::collection::vec(any::<u8>(), 0..120), version in 4..7u8, mtu: u16) {
            if let Some(first) = packet.first_mut() {
                *first = *first & 15 | version << 4;
            }
            let before = packet.clone();
            let clamped = clamp(&mut packet, mtu);
            prop_assert_eq!(packet.len(), before.len());
            prop_assert!(clamped || packet == before);
        }
    }
}
