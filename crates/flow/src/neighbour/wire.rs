//! Packets of ARP (RFC 826) and neighbour discovery (RFC 4861), as they are on the wire of a port without VLAN tags.

use super::Table;
use millrace_packet::checksum::Sum;
use millrace_packet::parse::{Arp, Icmpv6, Layers, MacAddress, ether_type};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
/// Of an advertisement: it answers, and what was known before is wrong.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Shortest frame, without FCS.
const SHORTEST: usize = 60;
const BROADCAST: MacAddress = MacAddress([0xff; 6]);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Whom a frame from a wire concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concern {
    /// Nobody here: most frames.
    None,
    /// The card, and nobody else.
    Card,
    /// The card, and those whom rules say.
    All,
}

/// Whether a frame from a port is ARP or ND that the card has to hear. A look at a few bytes.
#[inline]
pub fn concerns(frame: &[u8], table: &Table, port: u16) -> Concern {
    match frame.get(12..14) {
        Some(&[8, 6]) => concerns_arp(frame, table, port),
        Some(&[0x86, 0xdd]) if frame.get(20) == Some(&ICMPV6) => concerns_nd(frame, table, port),
        _ => Concern::None,
    }
}

#[cold]
fn concerns_arp(frame: &[u8], table: &Table, port: u16) -> Concern {
    let Some([sender, target]) = Arp::parse(&frame[14..]).ok().and_then(|arp| arp.ethernet_ipv4()) else {
        return Concern::None;
    };
    match () {
        () if table.is_own(target.1.into(), port, sender.1.into()) => Concern::Card,
        // Somebody says that his address has changed.
        () if sender.1 == target.1 && table.is_anybody_at(port) => Concern::All,
        () => Concern::None,
    }
}

#[cold]
fn concerns_nd(frame: &[u8], table: &Table, port: u16) -> Concern {
    let Some(target) = frame.get(62..78).and_then(|bytes| bytes.first_chunk::<16>()) else { return Concern::None };
    let target = Ipv6Addr::from(*target);
    let address =
        |bytes: &[u8]| bytes.first_chunk::<16>().map_or(Ipv6Addr::UNSPECIFIED, |bytes| Ipv6Addr::from(*bytes));
    let (from, to) = (address(&frame[22..38]), address(&frame[38..54]));
    match frame[54] {
        SOLICITATION if table.is_own(target.into(), port, from.into()) => Concern::Card,
        ADVERTISEMENT if table.is_own(to.into(), port, target.into()) => Concern::Card,
        ADVERTISEMENT if to == ALL_NODES && table.is_anybody_at(port) => Concern::All,
        _ => Concern::None,
    }
}

/// What was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Somebody asks for the MAC address of `of`. An unspecified address asks whether anybody has it.
    Asked { by: (MacAddress, IpAddr), of: IpAddr },
    /// Somebody says where he is.
    Told { who: IpAddr, mac: MacAddress },
}

/// What a frame says, if it is ARP or ND and nothing is wrong with it.
pub(super) fn hear(frame: &[u8]) -> Option<Heard> {
    let layers = Layers::parse(frame);
    if !layers.tags().is_empty() {
        return None;
    }
    if layers.ether_type() == ether_type::ARP {
        let arp = layers.arp(frame)?;
        let [sender, target] = arp.ethernet_ipv4()?;
        let told = Heard::Told { who: sender.1.into(), mac: sender.0 };
        return match arp.operation() {
            // A request for one's own address tells it.
            Arp::REQUEST if sender.1 == target.1 => Some(told),
            Arp::REQUEST => Some(Heard::Asked { by: (sender.0, sender.1.into()), of: target.1.into() }),
            Arp::REPLY => Some(told),
            _ => None,
        }
        .filter(|_| is_single(sender.0));
    }
    hear_nd(frame, &layers)
}

fn hear_nd(frame: &[u8], layers: &Layers) -> Option<Heard> {
    let (header, message) = (layers.ipv6(frame)?, layers.icmpv6(frame)?);
    // RFC 4861 section 7.1: it comes from this wire, and is whole.
    let whole = frame.get(layers.transport()?.1..layers.end())?;
    let sums = checksum(header.source(), header.destination(), whole) == 0;
    if header.hop_limit() != 255 || message.code() != 0 || !sums {
        return None;
    }
    let target: IpAddr = message.target()?.into();
    let option = |kind| link_layer(&message, kind);
    match message.kind() {
        SOLICITATION => {
            let from = frame.get(6..12)?.first_chunk::<6>().map(|mac| MacAddress(*mac))?;
            let mac = option(OPTION_SOURCE).unwrap_or(from);
            is_single(mac).then_some(Heard::Asked { by: (mac, header.source().into()), of: target })
        }
        ADVERTISEMENT => {
            option(OPTION_TARGET).filter(|mac| is_single(*mac)).map(|mac| Heard::Told { who: target, mac })
        }
        _ => None,
    }
}

fn is_single(mac: MacAddress) -> bool {
    mac.0[0] & 1 == 0 && mac.0 != [0; 6]
}

/// The link-layer address of an option, of which there are few (RFC 4861 section 4.6.1).
fn link_layer(message: &Icmpv6<'_>, kind: u8) -> Option<MacAddress> {
    let mut rest = message.payload().get(16..)?;
    while let [found, len, ..] = *rest {
        let len = usize::from(len) * 8;
        if len == 0 || len > rest.len() {
            return None;
        }
        if found == kind {
            return rest.get(2..8)?.first_chunk().map(|mac| MacAddress(*mac));
        }
        rest = &rest[len..];
    }
    None
}

/// A request for the MAC address of `of`: to all, or to the one who had it last.
pub(super) fn request(own: (MacAddress, IpAddr), of: IpAddr, last: Option<MacAddress>) -> Vec<u8> {
    match (own.1, of) {
        (IpAddr::V4(source), IpAddr::V4(of)) => {
            arp(Arp::REQUEST, last.unwrap_or(BROADCAST), (own.0, source), (MacAddress([0; 6]), of))
        }
        (IpAddr::V6(source), IpAddr::V6(of)) => {
            let [.., a, b, c] = of.octets();
            let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
            let (mac, to) = last.map_or((MacAddress([0x33, 0x33, 0xff, a, b, c]), group), |mac| (mac, of));
            nd(SOLICITATION, 0, (mac, to), (own.0, source), of, OPTION_SOURCE)
        }
        // Both ends of a tunnel are of one version.
        _ => Vec::new(),
    }
}

/// The answer to somebody who has asked for an address of the card. `by` may be unspecified.
pub(super) fn answer(own: (MacAddress, IpAddr), by: (MacAddress, IpAddr)) -> Vec<u8> {
    match (own.1, by.1) {
        (IpAddr::V4(source), IpAddr::V4(asker)) => arp(Arp::REPLY, by.0, (own.0, source), (by.0, asker)),
        (IpAddr::V6(source), IpAddr::V6(asker)) if asker.is_unspecified() => {
            let all = (MacAddress([0x33, 0x33, 0, 0, 0, 1]), ALL_NODES);
            nd(ADVERTISEMENT, OVERRIDE, all, (own.0, source), source, OPTION_TARGET)
        }
        (IpAddr::V6(source), IpAddr::V6(asker)) => {
            nd(ADVERTISEMENT, SOLICITED | OVERRIDE, (by.0, asker), (own.0, source), source, OPTION_TARGET)
        }
        _ => Vec::new(),
    }
}

/// Tells everybody where an address of the card is (RFC 5227 section 3, RFC 4861 section 7.2.6).
pub(super) fn announcement(own: (MacAddress, IpAddr)) -> Vec<u8> {
    match own.1 {
        IpAddr::V4(address) => arp(Arp::REQUEST, BROADCAST, (own.0, address), (MacAddress([0; 6]), address)),
        IpAddr::V6(_) => answer(own, (BROADCAST, Ipv6Addr::UNSPECIFIED.into())),
    }
}

fn arp(operation: u16, to: MacAddress, sender: (MacAddress, Ipv4Addr), target: (MacAddress, Ipv4Addr)) -> Vec<u8> {
    let mut frame = Vec::with_capacity(SHORTEST);
    frame.extend(to.0.iter().chain(&sender.0.0));
    frame.extend(ether_type::ARP.to_be_bytes());
    frame.extend([0, 1, 8, 0, 6, 4]);
    frame.extend(operation.to_be_bytes());
    for (mac, address) in [sender, target] {
        frame.extend(mac.0.iter().chain(&address.octets()));
    }
    frame.resize(SHORTEST, 0);
    frame
}

fn nd(
    kind: u8,
    flags: u8,
    to: (MacAddress, Ipv6Addr),
    own: (MacAddress, Ipv6Addr),
    target: Ipv6Addr,
    option: u8,
) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.octets());
    message.extend([option, 1]);
    message.extend(own.0.0);
    let sum = checksum(own.1, to.1, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::with_capacity(54 + message.len());
    frame.extend(to.0.0.iter().chain(&own.0.0));
    frame.extend(ether_type::IPV6.to_be_bytes());
    frame.extend([0x60, 0, 0, 0, 0, message.len() as u8, ICMPV6, 255]);
    frame.extend(own.1.octets().iter().chain(&to.1.octets()));
    frame.extend(message);
    frame
}

/// The checksum of a message between two addresses; 0 if it has one that holds.
fn checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let pseudo = Sum::of(&source.octets()).plus(Sum::of(&destination.octets()));
    pseudo.with(message.len() as u32).with(ICMPV6.into()).plus(Sum::of(message)).checksum()
}
