//! RoCE v1 and v2.

use super::super::from::Network;
use super::super::icrc::{self, Before};
use super::super::{Format, From, Packet, Path, Reason, code, extended};
use super::{Link, PORT, check, headers_of};
use crate::number::{Gid, Psn, Qpn};
use millrace_packet::parse::{Bth, Grh, Ipv4, Ipv6, Udp, protocol};

/// Where in a base transport header the lowest bit says that the sender takes credits (decision 54).
const EXTENDED: usize = 8;

#[inline(always)]
pub(super) fn over_ipv4<'a>(link: &Link<'a>) -> Result<(Packet<'a>, From<'a>), Reason> {
    let ipv4 = Ipv4::parse(link.payload).map_err(|_| Reason::IpHeader)?;
    if ipv4.protocol() != protocol::UDP || ipv4.fragment_offset() != 0 {
        return Err(Reason::NotRdma);
    }
    let udp = Udp::parse_first_fragment(ipv4.payload()).map_err(|_| Reason::NotRdma)?;
    if udp.destination_port() != PORT {
        return Err(Reason::NotRdma);
    }
    if ipv4.header_len() != Ipv4::LEN {
        return Err(Reason::IpOptions);
    }
    if !ipv4.is_whole() {
        return Err(Reason::Fragment);
    }
    if !ipv4.checksum_holds() {
        return Err(Reason::IpChecksum);
    }
    let packet = whole(link, Ipv4::LEN + ipv4.payload().len())?;
    let header = packet.first_chunk().ok_or(Reason::IpHeader)?;
    let back = Path {
        format: Format::RoceV2,
        source_mac: link.destination,
        destination_mac: link.source,
        source: Gid::from_ipv4(ipv4.destination()),
        destination: Gid::from_ipv4(ipv4.source()),
        hop_limit: ipv4.ttl(),
        traffic_class: ipv4.dscp() << 2 | ipv4.ecn(),
        flow_label: 0,
        source_port: port(&udp, ipv4.payload())?,
    };
    transport(
        link,
        packet,
        Before::Ipv4,
        From { back, tag: link.tag, source: None, is_checked: true, network: Network::Ipv4(header) },
    )
}

#[inline(always)]
pub(super) fn over_ipv6<'a>(link: &Link<'a>) -> Result<(Packet<'a>, From<'a>), Reason> {
    let ipv6 = Ipv6::parse(link.payload).map_err(|_| Reason::IpHeader)?;
    // Behind extension headers there is no RoCE: its base transport header has to stand at a fixed place (A17.3.1).
    if ipv6.next_header() != protocol::UDP {
        return Err(Reason::NotRdma);
    }
    let udp = Udp::parse_first_fragment(ipv6.payload()).map_err(|_| Reason::NotRdma)?;
    if udp.destination_port() != PORT {
        return Err(Reason::NotRdma);
    }
    let packet = whole(link, Ipv6::LEN + ipv6.payload().len())?;
    let header = packet.first_chunk().ok_or(Reason::IpHeader)?;
    let back = Path {
        format: Format::RoceV2,
        source_mac: link.destination,
        destination_mac: link.source,
        source: Gid(ipv6.destination().octets()),
        destination: Gid(ipv6.source().octets()),
        hop_limit: ipv6.hop_limit(),
        traffic_class: ipv6.dscp() << 2 | ipv6.ecn(),
        flow_label: ipv6.flow_label(),
        source_port: port(&udp, ipv6.payload())?,
    };
    // One address is not to have two forms, of which one has passed no checksum.
    if back.source.is_ipv4() || back.destination.is_ipv4() {
        return Err(Reason::SourceAddress);
    }
    transport(
        link,
        packet,
        Before::Ipv6,
        From { back, tag: link.tag, source: None, is_checked: true, network: Network::Route(header) },
    )
}

#[inline(always)]
pub(super) fn over_route_header<'a>(link: &Link<'a>) -> Result<(Packet<'a>, From<'a>), Reason> {
    let grh = Grh::parse(link.payload).map_err(|_| Reason::RouteHeader)?;
    let packet = whole(link, Grh::LEN + grh.payload().len())?;
    let header = packet.first_chunk().ok_or(Reason::RouteHeader)?;
    let back = Path {
        format: Format::RoceV1,
        source_mac: link.destination,
        destination_mac: link.source,
        source: Gid(grh.destination().octets()),
        destination: Gid(grh.source().octets()),
        hop_limit: grh.hop_limit(),
        traffic_class: grh.traffic_class(),
        flow_label: grh.flow_label(),
        source_port: 0,
    };
    transport(
        link,
        packet,
        Before::Route,
        From { back, tag: link.tag, source: None, is_checked: true, network: Network::Route(header) },
    )
}

/// The packet from its network header to its end, without what Ethernet has added.
#[inline]
fn whole<'a>(link: &Link<'a>, len: usize) -> Result<&'a [u8], Reason> {
    link.payload.get(..len).ok_or(Reason::IpHeader)
}

/// The source port, if UDP says the same length as IP. Its checksum is not looked at: the invariant CRC says more, and
/// most senders leave it out.
#[inline]
fn port(udp: &Udp<'_>, payload: &[u8]) -> Result<u16, Reason> {
    if usize::from(udp.len()) != payload.len() {
        return Err(Reason::UdpLength);
    }
    Ok(udp.source_port())
}

/// The packet, from the base transport header on. `packet` begins with the network header.
#[inline(always)]
fn transport<'a>(
    link: &Link<'a>,
    packet: &'a [u8],
    before: Before,
    mut from: From<'a>,
) -> Result<(Packet<'a>, From<'a>), Reason> {
    let bytes = packet.get(before.len()..).ok_or(Reason::TransportHeader)?;
    if bytes.len() < Bth::LEN + 4 {
        return Err(Reason::TransportHeader);
    }
    if bytes[1] & 0x0f != 0 {
        return Err(Reason::TransportVersion);
    }
    let bth = Bth::parse(bytes).map_err(|_| Reason::Padding)?;
    if !bytes.len().is_multiple_of(4) {
        return Err(Reason::Padding);
    }
    let known = code::decode(bth.opcode())?;
    let mut payload = bth.payload();
    let mut headers = headers_of(known);
    extended::read(known.parts, &mut headers, &mut payload)?;
    check(link, known, from.back.destination, payload, from.back.format)?;
    if icrc::of_packet(&packet[..packet.len() - 4], before) != Some(bth.invariant_crc()) {
        return Err(Reason::Icrc);
    }
    headers.solicited = bth.solicited_event();
    headers.ack_request = bth.acknowledge_request();
    headers.fecn_becn = bth.congestion();
    headers.extended = bytes[EXTENDED] & 1 != 0;
    headers.pkey = bth.partition_key();
    headers.destination = Qpn::new(bth.destination_qp());
    headers.psn = Psn::new(bth.psn());
    from.source = headers.deth.map(|deth| deth.source);
    Ok((Packet { headers, payload }, from))
}
