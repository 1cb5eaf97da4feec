//! ARP (RFC 826) and neighbour discovery (RFC 4861) as they stand in frames without VLAN tag.

use super::Mac;
use crate::number::Gid;
use millrace_packet::checksum::Sum;
use millrace_packet::parse::{Arp, Icmpv6, Layers, MacAddress, ether_type, protocol};
use std::net::Ipv4Addr;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
/// Of an advertisement: it answers a solicitation; what was known before is wrong.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Shortest frame, without FCS.
const SHORTEST: usize = 60;
const BROADCAST: Mac = [0xff; 6];
const ALL_NODES: Gid = Gid([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Somebody asks for the MAC address of `of`. An unspecified address asks whether anybody has it.
    Asked { mac: Mac, by: Gid, of: Gid },
    /// Somebody says where he is. What does not override is only believed where nothing else is known. What announces, nobody asked for.
    Told { who: Gid, mac: Mac, overrides: bool, announces: bool },
}

/// What a frame says, if it is ARP or ND and nothing is wrong with it.
pub(super) fn hear(frame: &[u8]) -> Option<Heard> {
    let layers = Layers::parse(frame);
    if !layers.tags().is_empty() {
        return None;
    }
    if layers.ether_type() == ether_type::ARP { hear_arp(layers.arp(frame)?) } else { hear_nd(frame, &layers) }
}

fn hear_arp(arp: Arp<'_>) -> Option<Heard> {
    let [(MacAddress(mac), sender), (_, target)] = arp.ethernet_ipv4()?;
    if !is_single(mac) {
        return None;
    }
    let (by, of) = (Gid::from_ipv4(sender), Gid::from_ipv4(target));
    match arp.operation() {
        Arp::REQUEST if sender.is_unspecified() => Some(Heard::Asked { mac, by: Gid::default(), of }),
        Arp::REQUEST if by != of => Some(Heard::Asked { mac, by, of }),
        Arp::REQUEST => Some(Heard::Told { who: by, mac, overrides: true, announces: true }),
        Arp::REPLY => Some(Heard::Told { who: by, mac, overrides: true, announces: false }),
        _ => None,
    }
}

fn hear_nd(frame: &[u8], layers: &Layers) -> Option<Heard> {
    let (header, message) = (layers.ipv6(frame)?, layers.icmpv6(frame)?);
    let whole = frame.get(layers.transport()?.1..layers.end())?;
    // RFC 4861, 7.1: it has passed no router, and is whole.
    let (source, destination) = (Gid(header.source().octets()), Gid(header.destination().octets()));
    let target = Gid(message.target()?.octets());
    if header.hop_limit() != 255
        || message.code() != 0
        || checksum(source, destination, whole) != 0
        || target.is_group()
    {
        return None;
    }
    let option = |kind| link_layer(&message, kind).filter(|mac| is_single(*mac));
    match message.kind() {
        // Who has no address yet cannot say that he has a MAC address (7.1.1).
        SOLICITATION if source == Gid::default() => link_layer(&message, OPTION_SOURCE)
            .is_none()
            .then_some(Heard::Asked { mac: [0; 6], by: source, of: target }),
        SOLICITATION => {
            let from = *frame.get(6..12)?.first_chunk::<6>()?;
            let mac = option(OPTION_SOURCE).unwrap_or(from);
            is_single(mac).then_some(Heard::Asked { mac, by: source, of: target })
        }
        ADVERTISEMENT => {
            let [flags, ..] = message.rest_of_header();
            let is_odd = destination.is_group() && flags & SOLICITED != 0;
            let mac = option(OPTION_TARGET).filter(|_| !is_odd)?;
            Some(Heard::Told { who: target, mac, overrides: flags & OVERRIDE != 0, announces: destination.is_group() })
        }
        _ => None,
    }
}

fn is_single(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// The link-layer address in an option (RFC 4861, 4.6.1). Each option has at least eight bytes, so there are few.
fn link_layer(message: &Icmpv6<'_>, kind: u8) -> Option<Mac> {
    let mut rest = message.payload().get(16..)?;
    while let [found, len, ..] = *rest {
        let len = usize::from(len) * 8;
        if len == 0 || len > rest.len() {
            return None;
        }
        if found == kind {
            return rest.get(2..8)?.first_chunk().copied();
        }
        rest = &rest[len..];
    }
    None
}

/// A request for the MAC address of `of`: to all, or to the one who had it last. `None`: the addresses are not of one
/// kind.
pub(super) fn request(own: (Mac, Gid), of: Gid, last: Option<Mac>) -> Option<Vec<u8>> {
    match (own.1.as_ipv4(), of.as_ipv4()) {
        (Some(source), Some(of)) => Some(arp(Arp::REQUEST, last.unwrap_or(BROADCAST), (own.0, source), ([0; 6], of))),
        (None, None) => {
            let [.., a, b, c] = of.0;
            let group = Gid([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
            let (mac, to) = last.map_or(([0x33, 0x33, 0xff, a, b, c], group), |mac| (mac, of));
            Some(nd(SOLICITATION, 0, (mac, to), own, of, OPTION_SOURCE))
        }
        _ => None,
    }
}

/// The answer to somebody who has asked for an address of this end. `by` may be unspecified.
pub(super) fn answer(own: (Mac, Gid), by: (Mac, Gid)) -> Vec<u8> {
    let is_nobody = by.1 == Gid::default();
    match own.1.as_ipv4() {
        Some(source) => {
            let asker = by.1.as_ipv4().unwrap_or(Ipv4Addr::UNSPECIFIED);
            arp(Arp::REPLY, by.0, (own.0, source), (by.0, asker))
        }
        None if is_nobody => nd(ADVERTISEMENT, OVERRIDE, (ALL_NODES_MAC, ALL_NODES), own, own.1, OPTION_TARGET),
        None => nd(ADVERTISEMENT, SOLICITED | OVERRIDE, by, own, own.1, OPTION_TARGET),
    }
}

/// Tells everybody where an address of this end is (RFC 5227, 3; RFC 4861, 7.2.6).
pub(super) fn announcement(own: (Mac, Gid)) -> Vec<u8> {
    match own.1.as_ipv4() {
        Some(address) => arp(Arp::REQUEST, BROADCAST, (own.0, address), ([0; 6], address)),
        None => answer(own, ([0; 6], Gid::default())),
    }
}

/// Says to all who has an address, to somebody who has said that it is his (RFC 5227, 2.4). With ARP as an answer, which nobody takes
/// for his own announcement that has come back.
pub(super) fn defence(own: (Mac, Gid)) -> Vec<u8> {
    match own.1.as_ipv4() {
        Some(address) => arp(Arp::REPLY, BROADCAST, (own.0, address), (BROADCAST, address)),
        None => announcement(own),
    }
}

fn arp(operation: u16, to: Mac, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Vec<u8> {
    let mut frame = Vec::with_capacity(SHORTEST);
    frame.extend(to.iter().chain(&sender.0));
    frame.extend(ether_type::ARP.to_be_bytes());
    // Ethernet and IPv4, with addresses of six and four bytes.
    frame.extend([0, 1, 8, 0, 6, 4]);
    frame.extend(operation.to_be_bytes());
    for (mac, address) in [sender, target] {
        frame.extend(mac.iter().chain(&address.octets()));
    }
    frame.resize(SHORTEST, 0);
    frame
}

fn nd(kind: u8, flags: u8, to: (Mac, Gid), own: (Mac, Gid), target: Gid, option: u8) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.0);
    message.extend([option, 1]);
    message.extend(own.0);
    let sum = checksum(own.1, to.1, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::with_capacity(54 + message.len());
    frame.extend(to.0.iter().chain(&own.0));
    frame.extend(ether_type::IPV6.to_be_bytes());
    frame.extend([0x60, 0, 0, 0, 0, message.len() as u8, protocol::ICMPV6, 255]);
    frame.extend(own.1.0.iter().chain(&to.1.0));
    frame.extend(message);
    frame
}

/// The checksum of a message between two addresses; 0 if it has one that holds.
fn checksum(source: Gid, destination: Gid, message: &[u8]) -> u16 {
    let octets = |gid: Gid| Sum::of(&gid.0);
    let pseudo = octets(source).plus(octets(destination));
    pseudo.with(message.len() as u32).with(protocol::ICMPV6.into()).plus(Sum::of(message)).checksum()
}
