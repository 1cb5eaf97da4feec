//! Frames for tests, from the inside out, and their checksums computed anew.

use millrace_packet::checksum::Sum;
use millrace_packet::parse::{Layers, Transport};
use proptest::prelude::*;

pub const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

pub(crate) fn ethernet(tags: &[(u16, u16)], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let tags: Vec<u8> = tags.iter().flat_map(|(tpid, tci)| [tpid.to_be_bytes(), tci.to_be_bytes()].concat()).collect();
    [&MACS[..], &tags, &ether_type.to_be_bytes(), payload].concat()
}

pub(crate) fn ipv4(protocol: u8, options: &[[u8; 4]], flags: u16, payload: &[u8]) -> Vec<u8> {
    let head = 20 + 4 * options.len();
    let [total, low] = ((head + payload.len()) as u16).to_be_bytes();
    let [fragment, offset] = flags.to_be_bytes();
    let mut packet = vec![0x40 | (head / 4) as u8, 0xb9, total, low, 0, 1, fragment, offset, 64, protocol, 0, 0];
    packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend(options.concat());
    packet.extend(payload);
    packet
}

pub fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let [len, low] = (payload.len() as u16).to_be_bytes();
    let mut packet = vec![0x6b, 0x91, 0x23, 0x45, len, low, next, 64];
    packet.extend([[0xfd; 16], [0xfe; 16]].concat());
    packet.extend(payload);
    packet
}

pub fn tcp(data: &[u8]) -> Vec<u8> {
    [&[0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0], data].concat()
}

/// With a checksum that is to be computed, or without one.
pub(crate) fn udp(port: u16, has_checksum: bool, data: &[u8]) -> Vec<u8> {
    let len = (8 + data.len() as u16).to_be_bytes();
    [&[0x30, 0x39], &port.to_be_bytes()[..], &len, &[0, u8::from(has_checksum)], data].concat()
}

/// The last address of a packet that is on its way through a routing header, or else where it goes.
fn last_destination(frame: &[u8], layers: &Layers) -> Vec<u8> {
    let header = layers.ipv6(frame).unwrap();
    let mut routing = header.extensions().flatten().filter(|one| one.routing().is_some_and(|(_, left)| left > 0));
    match routing.next() {
        Some(routing) => routing.bytes()[routing.bytes().len() - 16..].to_vec(),
        None => header.destination().octets().to_vec(),
    }
}

/// The sum of a pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1) for a transport of `len` bytes.
fn pseudo(frame: &[u8], layers: &Layers, len: usize) -> Sum {
    let addresses = match layers.ipv4(frame) {
        Some(header) => [header.source().octets(), header.destination().octets()].concat(),
        None => {
            let source = layers.ipv6(frame).unwrap().source().octets();
            [&source[..], &last_destination(frame, layers)].concat()
        }
    };
    Sum::of(&addresses).with(layers.protocol().unwrap().into()).with(len as u32)
}

/// CRC32c bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let bits = bytes.iter().flat_map(|byte| (0..8).map(move |bit| u32::from(byte >> bit & 1)));
    !bits.fold(!0, |crc, bit| crc >> 1 ^ if (crc ^ bit) & 1 == 1 { 0x82f6_3b78 } else { 0 })
}

/// The frame with every checksum computed anew. First fragments count as if they were all.
pub fn recomputed(frame: &[u8]) -> Vec<u8> {
    let layers = Layers::parse(frame);
    let mut new = frame.to_vec();
    let Some(ip) = layers.ip() else { return new };
    if let Some(header) = layers.ipv4(frame) {
        let len = header.header_len();
        new[ip + 10..ip + 12].fill(0);
        let checksum = Sum::of(&new[ip..ip + len]).checksum();
        new[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
    }
    let (at, place, zero) = match (layers.transport(), layers.protocol()) {
        (Some((Transport::Tcp, at)), _) => (at, at + 16, true),
        (Some((Transport::Udp, at)), _) if frame[at + 6..at + 8] == [0, 0] => return new,
        (Some((Transport::Udp, at)), _) => (at, at + 6, false),
        (Some((Transport::Icmp | Transport::Icmpv6, at)), _) => (at, at + 2, true),
        (None, Some(136)) if layers.fragment() < millrace_packet::parse::Fragment::Later => {
            (layers.payload_offset(), layers.payload_offset() + 6, true)
        }
        (None, Some(132)) if layers.fragment() == millrace_packet::parse::Fragment::None => {
            let at = layers.payload_offset();
            new[at + 8..at + 12].fill(0);
            let checksum = crc32c(&new[at..layers.end()]);
            new[at + 8..at + 12].copy_from_slice(&checksum.to_le_bytes());
            return new;
        }
        _ => return new,
    };
    new[place..place + 2].fill(0);
    let len = layers.udp(frame).map_or(layers.end() - at, |header| usize::from(header.len()));
    let with_pseudo = layers.protocol() != Some(1);
    let head = if with_pseudo { pseudo(frame, &layers, len) } else { Sum::default() };
    let checksum = match head.plus(Sum::of(&new[at..layers.end()])).checksum() {
        0 if !zero => 0xffff,
        checksum => checksum,
    };
    new[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
    new
}

/// A protocol of IPv4 or IPv6, and its packet.
fn transport(v4: bool) -> BoxedStrategy<(u8, Vec<u8>)> {
    let data = || prop::collection::vec(any::<u8>(), 0..40);
    let icmp = (any::<u8>(), any::<[u8; 3]>(), prop::collection::vec(any::<u8>(), 24..60)).prop_map(
        move |(kind, head, rest)| {
            let kind = if v4 { kind } else { [128, 135, 136, kind][usize::from(kind % 4)] };
            let code = [head[0] & 1, head[1], head[2]];
            (if v4 { 1 } else { 58 }, [&[kind][..], &code, &rest].concat())
        },
    );
    prop_oneof![
        data().prop_map(|data| (6, tcp(&data))),
        (any::<bool>(), data()).prop_map(|(sum, data)| (17, udp(53, sum, &data))),
        icmp,
        data().prop_map(|data| (132, [&[0, 9, 0, 7, 1, 1, 1, 1, 0, 0, 0, 0][..], &data].concat())),
        data().prop_map(|data| (136, [&[0, 9, 0, 7, 0, 0, 0, 0][..], &data].concat())),
        data().prop_map(|data| (47, [&[0x20, 0, 8, 0, 0, 0, 0, 1][..], &data].concat())),
    ]
    .boxed()
}

/// An EtherType and its packet.
fn network() -> BoxedStrategy<(u16, Vec<u8>)> {
    let flags = prop_oneof![4 => Just(0x4000u16), 1 => Just(0x2000), 1 => Just(0x2004), 1 => Just(0x0004)];
    let v4 = (transport(true), prop::collection::vec(Just([1u8; 4]), 0..3), flags);
    let v4 = v4.prop_map(|((protocol, packet), options, flags)| (0x0800, ipv4(protocol, &options, flags, &packet)));
    let v6 = (transport(false), 0..6u8).prop_map(|((protocol, packet), extension)| {
        let head = match extension {
            // Hop-by-hop options; a routing header with one segment left, and with none; fragments.
            1 => vec![protocol, 0, 1, 4, 0, 0, 0, 0],
            2 | 3 => [&[protocol, 2, 0, 3 - extension, 0, 0, 0, 0][..], &[0xfc; 16]].concat(),
            4 => vec![protocol, 0, 0, 1, 0, 0, 0, 7],
            5 => vec![protocol, 0, 0, 9, 0, 0, 0, 7],
            _ => return (0x86dd, ipv6(protocol, &packet)),
        };
        let next = [protocol, 0, 43, 43, 44, 44][usize::from(extension)];
        (0x86dd, ipv6(next, &[head, packet].concat()))
    });
    let arp = any::<[u8; 20]>().prop_map(|rest| (0x0806, [&[0, 1, 8, 0, 6, 4, 0, 1][..], &rest].concat()));
    let mpls =
        Just((0x8847, [&[0x12, 0x34, 0x5e, 9, 0, 1, 1, 9][..], &ipv4(17, &[], 0, &udp(9, true, b"mpls"))].concat()));
    let session =
        Just((0x8864, [&[0x11, 0, 0, 5, 0, 34, 0, 0x21][..], &ipv4(17, &[], 0, &udp(9, true, b"ppp!"))].concat()));
    let other = prop::collection::vec(any::<u8>(), 0..40).prop_map(|data| (0x1234, data));
    prop_oneof![4 => v4, 4 => v6, 1 => arp, 1 => mpls, 1 => session, 1 => other].boxed()
}

/// A frame whose checksums hold, with up to two tags and with padding.
pub fn frame() -> impl Strategy<Value = Vec<u8>> {
    let tag = (prop_oneof![Just(0x8100u16), Just(0x88a8)], any::<u16>());
    (prop::collection::vec(tag, 0..3), network(), 0..20usize).prop_map(|(tags, (kind, packet), padding)| {
        recomputed(&[ethernet(&tags, kind, &packet), vec![0; padding]].concat())
    })
}
