//! Large frames within a tunnel over UDP, as Linux leaves them when its vxlan or geneve device is told that the interface below
//! cuts them (`NETIF_F_GSO_UDP_TUNNEL`).
//!
//! The virtio header says the kind of segments of the inner packet, and where its checksum begins; nothing in it says that
//! there is a tunnel. The headers do: a tunnel that ends where the frame ends, and an inner packet whose transport header is
//! where the checksum begins.

use super::headers::{IPV4, IPV6, MAX_HEADERS_LEN, UDP, ipv4, ipv6, network, word};
use super::segment::{put, put_ip_lengths, stored};
use crate::checksum::Sum;

/// Bytes of a UDP header, and of those of VXLAN and GENEVE without options.
const UDP_LEN: usize = 8;
const TUNNEL_LEN: usize = 8;
/// The flag of VXLAN that says that there is a network (RFC 7348 section 5).
const VXLAN_VALID: u8 = 0x08;
/// What GENEVE has within: an Ethernet frame (RFC 8926 section 3.4).
const GENEVE_ETHERNET: u16 = 0x6558;

/// The outer headers of a large frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    ip: usize,
    ipv4_len: Option<usize>,
    udp: usize,
    /// The sum of addresses and protocol; `None`: UDP has no checksum.
    pseudo: Option<Sum>,
    /// Where the inner frame begins.
    pub inner: usize,
}

impl Outer {
    /// The tunnel that a frame of `len` bytes is, of which `frame` are the first.
    pub fn find(frame: &[u8], len: usize) -> Option<Self> {
        let frame = &frame[..frame.len().min(MAX_HEADERS_LEN)];
        let (ip, ether_type) = network(frame, 0).ok()?;
        let (ipv4_len, udp, protocol) = match ether_type {
            IPV4 => {
                let header_len = ipv4(frame, ip, len).ok()?;
                (Some(header_len), ip + header_len, *frame.get(ip + 9)?)
            }
            IPV6 => ipv6(frame, ip, len).ok().map(|(udp, protocol)| (None, udp, protocol))?,
            _ => return None,
        };
        let tunnel = frame.get(udp + UDP_LEN..)?.first_chunk::<TUNNEL_LEN>()?;
        if protocol != UDP || udp + usize::from(word(frame, udp + 4).ok()?) != len {
            return None;
        }
        let is_geneve = tunnel[0] >> 6 == 0 && u16::from_be_bytes([tunnel[2], tunnel[3]]) == GENEVE_ETHERNET;
        let options = match tunnel[0] {
            first if is_geneve => usize::from(first & 0x3f) * 4,
            first if first & VXLAN_VALID != 0 => 0,
            _ => return None,
        };
        let addresses = if ipv4_len.is_some() { ip + 12..ip + 20 } else { ip + 8..ip + 40 };
        let pseudo = Sum::of(frame.get(addresses)?).with(protocol.into());
        let has_checksum = word(frame, udp + 6).ok()? != 0;
        let inner = udp + UDP_LEN + TUNNEL_LEN + options;
        Some(Self { ip, ipv4_len, udp, pseudo: has_checksum.then_some(pseudo), inner })
    }

    /// Turns the outer headers of the whole into those of segment `number`, whose inner headers are done.
    pub fn write(&self, segment: &mut [u8], number: usize) {
        put_ip_lengths(segment, self.ip, self.ipv4_len, number);
        let len = segment.len() - self.udp;
        put(segment, self.udp + 4, len as u16);
        if let Some(pseudo) = self.pseudo {
            put(segment, self.udp + 6, 0);
            let sum = pseudo.with(len as u32).plus(Sum::of(&segment[self.udp..]));
            put(segment, self.udp + 6, stored(sum));
        }
    }
}
