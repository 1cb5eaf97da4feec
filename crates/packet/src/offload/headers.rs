//! Where the headers of a large frame are, and whether they are those of a frame that can be cut.
//!
//! Not a parser of packets: it reads what cutting needs, and refuses what cutting would get wrong.

use super::{ETHERNET_LEN, SegmentKind, Unfit};

/// Ethernet type of IPv4 and IPv6.
pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
/// VLAN tags: of customers (802.1Q), of providers (802.1ad), and of providers before that standard.
const VLANS: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// IP protocol numbers.
const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
/// IPv6 extension headers that every segment can carry unchanged.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION_OPTIONS: u8 = 60;

/// The longest headers of a large frame, all together, in bytes. Longer chains of extension headers are refused.
pub(super) const MAX_HEADERS_LEN: usize = 512;

/// Where the headers of a large frame are, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headers {
    pub ip: usize,
    /// Bytes of the IPv4 header; `None` is IPv6.
    pub ipv4_len: Option<usize>,
    /// TCP or UDP header.
    pub transport: usize,
    pub payload: usize,
}

fn byte(frame: &[u8], at: usize) -> Result<u8, Unfit> {
    frame.get(at).copied().ok_or(Unfit::Headers)
}

pub(super) fn word(frame: &[u8], at: usize) -> Result<u16, Unfit> {
    Ok(u16::from_be_bytes([byte(frame, at)?, byte(frame, at + 1)?]))
}

impl Headers {
    /// Finds the headers of the frame that begins at `from` of a frame of `len` bytes and ends with it, and checks that they
    /// belong to `kind`. `frame` are the first bytes.
    pub fn find(frame: &[u8], from: usize, len: usize, kind: SegmentKind) -> Result<Self, Unfit> {
        let frame = &frame[..frame.len().min(MAX_HEADERS_LEN)];
        let (ip, ether_type) = network(frame, from)?;
        let (ipv4_len, transport, protocol) = match ether_type {
            IPV4 => {
                let header_len = ipv4(frame, ip, len)?;
                (Some(header_len), ip + header_len, byte(frame, ip + 9)?)
            }
            IPV6 => {
                let (transport, protocol) = ipv6(frame, ip, len)?;
                (None, transport, protocol)
            }
            _ => return Err(Unfit::Protocol),
        };
        let payload = match (kind, protocol, ipv4_len) {
            (SegmentKind::Tcp4, TCP, Some(_)) | (SegmentKind::Tcp6, TCP, None) => {
                let header_len = usize::from(byte(frame, transport + 12)? >> 4) * 4;
                if header_len < 20 {
                    return Err(Unfit::Headers);
                }
                transport + header_len
            }
            (SegmentKind::Udp, UDP, _) => transport + 8,
            _ => return Err(Unfit::Protocol),
        };
        if payload > len.min(frame.len()) {
            return Err(Unfit::Headers);
        }
        Ok(Self { ip, ipv4_len, transport, payload })
    }

    /// Where the checksum of `kind` is, from the start of the transport header.
    pub fn checksum_offset(kind: SegmentKind) -> usize {
        match kind {
            SegmentKind::Tcp4 | SegmentKind::Tcp6 => 16,
            SegmentKind::Udp => 6,
        }
    }
}

/// Place and type of what follows the Ethernet header at `from` and VLAN tags.
pub(super) fn network(frame: &[u8], from: usize) -> Result<(usize, u16), Unfit> {
    let mut at = from + ETHERNET_LEN;
    loop {
        let ether_type = word(frame, at - 2)?;
        if !VLANS.contains(&ether_type) {
            return Ok((at, ether_type));
        }
        at += 4;
    }
}

/// Bytes of the IPv4 header at `at`.
pub(super) fn ipv4(frame: &[u8], at: usize, len: usize) -> Result<usize, Unfit> {
    let first = byte(frame, at)?;
    let header_len = usize::from(first & 15) * 4;
    if first >> 4 != 4 || header_len < 20 || at + header_len > frame.len() {
        return Err(Unfit::Headers);
    }
    if at + usize::from(word(frame, at + 2)?) != len {
        return Err(Unfit::Length);
    }
    // More fragments, or not the first one: such a frame has no transport header of its own.
    if word(frame, at + 6)? & 0x3fff != 0 {
        return Err(Unfit::Fragment);
    }
    Ok(header_len)
}

/// Place and number of the transport header behind the IPv6 header at `at` and its extension headers.
pub(super) fn ipv6(frame: &[u8], at: usize, len: usize) -> Result<(usize, u8), Unfit> {
    if byte(frame, at)? >> 4 != 6 {
        return Err(Unfit::Headers);
    }
    if at + 40 + usize::from(word(frame, at + 4)?) != len {
        return Err(Unfit::Length);
    }
    let (mut next, mut place) = (byte(frame, at + 6)?, at + 40);
    while matches!(next, HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS) {
        next = byte(frame, place)?;
        // Each takes at least eight bytes of what `find` looks at, so this ends soon.
        place += (usize::from(byte(frame, place + 1)?) + 1) * 8;
    }
    Ok((place, next))
}
