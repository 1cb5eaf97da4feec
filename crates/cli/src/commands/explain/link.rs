//! Packets of other links than Ethernet: those that hold an IP packet, or whatever an EtherType names, get an Ethernet header,
//! with zeros where the link has no such addresses.
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
    let named = || format!("link type {} ({})", packet.link, link_name(packet.link));
    let made = match strip(packet.link, packet.data) {
        Ok(made) => made,
        Err(Why::Link) => return Err(format!("no Ethernet frame can be made of it: {}", named())),
        Err(Why::Content(what)) => return Err(format!("no Ethernet frame can be made of it: {}, {what}", named())),
    };
    room.clear();
    room.extend(made.destination);
    room.extend(made.source);
    room.extend(made.kind.to_be_bytes());
    room.extend_from_slice(made.payload);
    Ok(room)
}

/// Why there is no frame.
#[derive(Debug)]
enum Why {
    /// The link has nothing in common with Ethernet.
    Link,
    /// The link may carry frames, but not here.
    Content(&'static str),
}

const CUT: Why = Why::Content("and its header is cut off");
const NO_TYPE: Why = Why::Content("and what it carries has no EtherType");

/// What becomes a frame.
#[derive(Debug, Default)]
struct Made<'d> {
    destination: [u8; 6],
    source: [u8; 6],
    kind: u16,
    payload: &'d [u8],
}

fn strip(link: u32, data: &[u8]) -> Result<Made<'_>, Why> {
    match link {
        // NULL and LOOP: four bytes with a number of the system for the family, which the packet says by itself.
        0 | 108 => ip(behind(data, 4)?),
        // RAW, IPV4 and IPV6.
        12 | 14 | 101 | 228 | 229 => ip(data),
        // SLIP: direction 1, what of the header is compressed 15.
        8 => ip(behind(data, 16)?),
        // PPP and PPP_HDLC: with the bytes of HDLC before it or without (RFC 1662 section 3.1, RFC 1661 section 6.5).
        9 | 50 => ppp(data.strip_prefix(&[0xff, 3]).unwrap_or(data)),
        // C_HDLC: address 1, control 1, EtherType 2.
        104 => ether([0; 6], half(data, 2)?, behind(data, 4)?),
        107 => frame_relay(data),
        // IEEE802_11, and behind a header of radiotap, whose length is little-endian.
        105 => wireless(data),
        127 => wireless(behind(data, half(data, 2)?.swap_bytes().into())?),
        // LINUX_SLL: type of the packet 2, ARPHRD 2, length of the address 2, address 8, protocol 2.
        113 => ether(if half(data, 4)? == 6 { address(data, 6) } else { [0; 6] }, half(data, 14)?, behind(data, 16)?),
        // LINUX_SLL2: protocol 2, 0 2, interface 4, ARPHRD 2, type of the packet 1, length of the address 1, address 8.
        276 => {
            let source = if data.get(11) == Some(&6) { address(data, 12) } else { [0; 6] };
            ether(source, half(data, 0)?, behind(data, 20)?)
        }
        // DSA_TAG_BRCM, DSA_TAG_DSA and DSA_TAG_EDSA: Ethernet with a tag of the switch's chip behind the addresses.
        281 | 284 => tagged(data, 4),
        285 => tagged(data, 8),
        _ => Err(Why::Link),
    }
}

fn behind(data: &[u8], at: usize) -> Result<&[u8], Why> {
    data.get(at..).ok_or(CUT)
}

fn half(data: &[u8], at: usize) -> Result<u16, Why> {
    behind(data, at)?.first_chunk().map(|half| u16::from_be_bytes(*half)).ok_or(CUT)
}

fn address(data: &[u8], at: usize) -> [u8; 6] {
    data.get(at..).and_then(|data| data.first_chunk()).copied().unwrap_or_default()
}

/// Protocols below 0x0600 are no EtherTypes, but numbers of Linux for other things.
fn ether(source: [u8; 6], kind: u16, payload: &[u8]) -> Result<Made<'_>, Why> {
    if kind < 0x0600 { Err(NO_TYPE) } else { Ok(Made { source, kind, payload, ..Made::default() }) }
}

fn ip(data: &[u8]) -> Result<Made<'_>, Why> {
    match data.first().map(|first| first >> 4) {
        Some(4) => ether([0; 6], IPV4, data),
        Some(6) => ether([0; 6], IPV6, data),
        Some(_) => Err(Why::Content("and it carries no IP")),
        None => Err(CUT),
    }
}

/// Protocols of PPP (RFC 1332, RFC 5072, RFC 3032 section 4.3).
fn ppp(data: &[u8]) -> Result<Made<'_>, Why> {
    let kind = match half(data, 0)? {
        0x0021 => IPV4,
        0x0057 => IPV6,
        0x0281 => 0x8847,
        0x0283 => 0x8848,
        _ => return Err(NO_TYPE),
    };
    ether([0; 6], kind, behind(data, 2)?)
}

/// Q.922 address of two bytes, control of unnumbered information, NLPID (RFC 2427 section 4): IP, or SNAP.
fn frame_relay(data: &[u8]) -> Result<Made<'_>, Why> {
    match behind(data, 2)? {
        [3, 0xcc, packet @ ..] | [3, 0x8e, packet @ ..] => ip(packet),
        [3, 0x80, 0, 0, 0, high, low, packet @ ..] | [3, 0, 0x80, 0, 0, 0, high, low, packet @ ..] => {
            ether([0; 6], u16::from_be_bytes([*high, *low]), packet)
        }
        _ => Err(NO_TYPE),
    }
}

/// The payload of an IEEE 802.11 data frame, as a bridge puts it into Ethernet (IEEE 802.11 section 9.3.2, RFC 1042). A check
/// sequence behind it passes as padding.
fn wireless(data: &[u8]) -> Result<Made<'_>, Why> {
    let (&kind, &flags) = data.first().zip(data.get(1)).ok_or(CUT)?;
    let (to_ds, from_ds, quality) = (flags & 1 != 0, flags & 2 != 0, kind & 0x80 != 0);
    if kind & 0x0c != 0x08 || kind & 0x40 != 0 {
        return Err(Why::Content("and it is no frame with data"));
    }
    if flags & 0x40 != 0 {
        return Err(Why::Content("and it is encrypted"));
    }
    let control = 24 + if to_ds && from_ds { 6 } else { 0 };
    if quality && half(data, control)? & 0x8000 != 0 {
        return Err(Why::Content("and it is several frames in one"));
    }
    let len = control + if quality { 2 } else { 0 } + if quality && flags & 0x80 != 0 { 4 } else { 0 };
    let destination = address(data, if to_ds { 16 } else { 4 });
    let source = address(
        data,
        match (to_ds, from_ds) {
            (true, true) => 24,
            (false, true) => 16,
            (_, false) => 10,
        },
    );
    match behind(data, len)? {
        [0xaa, 0xaa, 3, 0, 0, 0 | 0xf8, high, low, payload @ ..] => {
            Ok(Made { destination, ..ether(source, u16::from_be_bytes([*high, *low]), payload)? })
        }
        _ => Err(NO_TYPE),
    }
}

/// Ethernet without the `len` bytes behind its addresses.
fn tagged(data: &[u8], len: usize) -> Result<Made<'_>, Why> {
    let (kind, payload) = (half(data, 12 + len)?, behind(data, 14 + len)?);
    Ok(Made { destination: address(data, 0), source: address(data, 6), kind, payload })
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
        assert_eq!(of(9, &[&[0xff, 3, 0, 0x21][..], &v4].concat()).unwrap(), made([0; 6], 0x0800, &v4));
        assert_eq!(of(50, &[&[0x02, 0x81][..], &v4].concat()).unwrap(), made([0; 6], 0x8847, &v4));
        assert_eq!(of(104, &[&[0x0f, 0, 0x86, 0xdd][..], &v6].concat()).unwrap(), made([0; 6], 0x86dd, &v6));
        assert_eq!(of(8, &[&[0; 16][..], &v4].concat()).unwrap(), made([0; 6], 0x0800, &v4));
        for head in [&[0x18, 0x41, 3, 0xcc][..], &[0x18, 0x41, 3, 0, 0x80, 0, 0, 0, 8, 0]] {
            assert_eq!(of(107, &[head, &v4].concat()).unwrap(), made([0; 6], 0x0800, &v4));
        }
    }

    #[test]
    fn what_a_bridge_would_pass_on() {
        let [one, two, three] = [[1; 6], [2; 6], [3; 6]];
        let wireless = |control: [u8; 2], more: &[u8]| {
            let head = [&control[..], &[0, 0], &one, &two, &three, &[0, 0], more].concat();
            [&head[..], &[0xaa, 0xaa, 3, 0, 0, 0, 8, 6, 9]].concat()
        };
        let frame = |destination: [u8; 6], source: [u8; 6]| [&destination[..], &source, &[8, 6, 9]].concat();
        assert_eq!(of(105, &wireless([0x08, 0], &[])).unwrap(), frame(one, two));
        assert_eq!(of(105, &wireless([0x08, 1], &[])).unwrap(), frame(three, two));
        assert_eq!(of(105, &wireless([0x88, 2], &[0, 0])).unwrap(), frame(one, three));
        assert_eq!(of(105, &wireless([0x88, 3], &[4, 4, 4, 4, 4, 4, 0, 0])).unwrap(), frame(three, [4; 6]));
        let radiotap = [&[0, 0, 9, 0, 0, 0, 0, 0, 0][..], &wireless([0x08, 0], &[])].concat();
        assert_eq!(of(127, &radiotap).unwrap(), frame(one, two));
        for (frame, why) in [([0x80, 0], "no frame with data"), ([0x48, 0], "no frame"), ([8, 0x40], "encrypted")] {
            assert!(of(105, &wireless(frame, &[])).unwrap_err().contains(why));
        }
        assert!(of(105, &wireless([0x88, 2], &[0x80, 0])).unwrap_err().contains("several frames"));
        let chip = |tag: usize| [&[1; 6][..], &[2; 6], &vec![7; tag], &[8, 6, 9]].concat();
        for (link, tag) in [(281, 4), (284, 4), (285, 8)] {
            assert_eq!(of(link, &chip(tag)).unwrap(), frame(one, two));
        }
    }

    #[test]
    fn what_does_not_is_refused_by_name() {
        assert!(of(129, &[0; 60]).unwrap_err().contains("link type 129 (ARCNET_LINUX)"));
        for link in [0, 8, 9, 12, 50, 101, 104, 105, 107, 108, 113, 127, 228, 229, 276] {
            for len in 0..16 {
                assert!(of(link, &vec![0; len]).is_err(), "{link} {len}");
            }
        }
    }
}
