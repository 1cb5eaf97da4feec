//! `etherparse` as the judge: what it makes of a frame is what we make of it, but for a list of differences that are meant.

use super::super::{Fragment, IpVersion, Layer, Layers, Malformed, Transport};
use etherparse::err::Layer as Judged;
use etherparse::err::packet::SliceError;
use etherparse::{EtherType, IpNumber, LinkExtSlice, LinkSlice, NetSlice, SlicedPacket, TransportSlice};

/// What a comparison came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The same headers at the same places.
    Same,
    /// Both say that it is malformed, and where.
    BothRefuse,
    /// The two differ on purpose.
    Differs(&'static str),
}

/// Where `part` lies in `frame`.
fn place(frame: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr() - frame.as_ptr().addr()
}

/// Compares and panics where the two differ without a reason.
#[track_caller]
pub fn compare(frame: &[u8]) -> Verdict {
    let layers = Layers::parse(frame);
    match SlicedPacket::from_ethernet(frame) {
        Ok(packet) => compare_packet(frame, &layers, &packet),
        Err(error) => compare_error(frame, &layers, &error),
    }
}

/// Whether the judge goes on, or stops, where we do something else on purpose.
fn difference(frame: &[u8], layers: &Layers) -> Option<&'static str> {
    if layers.malformed() == Some((Layer::Vlan, Malformed::TooMany)) {
        return Some("the judge takes three tags");
    }
    if layers.ether_type() == 0x88e5 {
        return Some("the judge takes MACsec");
    }
    if layers.network() > 14 + 4 * layers.tags().len() || layers.ether_type() < 0x0600 {
        return Some("the judge knows nothing of IEEE 802.3");
    }
    if matches!(layers.ether_type(), 0x8864 | 0x8847 | 0x8848) {
        return Some("the judge knows neither PPPoE nor MPLS");
    }
    if let Some(ipv6) = layers.ipv6(frame) {
        let kinds: Vec<_> = ipv6.extensions().filter_map(Result::ok).map(|extension| extension.kind()).collect();
        if ipv6.payload_len() == 0 {
            return Some("the judge takes a payload length of 0 for a jumbogram");
        }
        let stopped_there = layers.malformed().is_some() && !kinds.is_empty() && layers.protocol() == Some(0);
        if kinds.iter().skip(1).any(|kind| *kind == 0) || stopped_there {
            return Some("the judge wants hop-by-hop options first");
        }
        if layers.fragment() == Fragment::Later {
            return Some("the judge looks for extension headers in later fragments");
        }
        if layers.malformed() == Some((Layer::Ipv6Extension, Malformed::TooMany)) {
            return Some("the judge takes any number of extension headers");
        }
        if layers.protocol() == Some(1) {
            return Some("the judge takes ICMP over IPv6");
        }
    }
    if layers.ip_version() == Some(IpVersion::V4) {
        match layers.protocol() {
            Some(51) => return Some("the judge looks behind the authentication header of IPv4"),
            Some(58) => return Some("the judge takes ICMPv6 over IPv4"),
            _ => {}
        }
    }
    None
}

#[track_caller]
fn compare_packet(frame: &[u8], layers: &Layers, packet: &SlicedPacket<'_>) -> Verdict {
    if let Some(why) = difference(frame, layers) {
        return Verdict::Differs(why);
    }
    let Some(LinkSlice::Ethernet2(link)) = &packet.link else { panic!("no Ethernet") };
    let ethernet = layers.ethernet(frame).expect("Ethernet");
    assert_eq!((ethernet.source().0, ethernet.destination().0), (link.source(), link.destination()));
    let mut ether_type = link.ether_type();
    let tags = packet.link_exts.iter().map(|extension| match extension {
        LinkExtSlice::Vlan(vlan) => {
            let tag = (ether_type.0, vlan.vlan_identifier().value(), vlan.priority_code_point().value());
            ether_type = vlan.ether_type();
            (tag.0, tag.1, tag.2, vlan.drop_eligible_indicator())
        }
        other => panic!("{other:?}"),
    });
    let tags: Vec<_> = tags.collect();
    let ours = layers.tags().iter().map(|tag| (tag.tpid, tag.tci.id(), tag.tci.priority(), tag.tci.drop_eligible()));
    assert!(ours.eq(tags.iter().copied()), "{tags:?} {layers:?}");
    assert_eq!(EtherType(layers.ether_type()), ether_type);
    match &packet.net {
        None => assert_eq!((layers.ip(), layers.transport(), layers.malformed()), (None, None, None)),
        Some(NetSlice::Arp(arp)) => {
            let ours = layers.arp(frame).expect("ARP");
            assert_eq!(ours.sender(), (arp.sender_hw_addr(), arp.sender_protocol_addr()));
            assert_eq!(ours.target(), (arp.target_hw_addr(), arp.target_protocol_addr()));
            assert_eq!(ours.operation(), arp.operation().0);
        }
        Some(NetSlice::Ipv4(ip)) => {
            let (ours, header) = (layers.ipv4(frame).expect("IPv4"), ip.header());
            assert_eq!(layers.ip(), Some(place(frame, header.slice())));
            assert_eq!((ours.source(), ours.destination()), (header.source_addr(), header.destination_addr()));
            assert_eq!((ours.dscp(), ours.ecn()), (header.dcp().value(), header.ecn().value()));
            assert_eq!(
                (ours.ttl(), ours.total_len(), ours.checksum()),
                (header.ttl(), header.total_len(), header.header_checksum())
            );
            assert_eq!(ours.fragment_offset(), usize::from(header.fragments_offset().value()) * 8);
            assert_eq!(ours.payload(), ip.payload().payload);
            assert_eq!(layers.fragment() != Fragment::None, ip.is_payload_fragmented());
            assert_eq!(layers.protocol().map(IpNumber), Some(header.protocol()));
        }
        Some(NetSlice::Ipv6(ip)) => {
            let (ours, header) = (layers.ipv6(frame).expect("IPv6"), ip.header());
            assert_eq!(layers.ip(), Some(place(frame, header.slice())));
            assert_eq!((ours.source(), ours.destination()), (header.source_addr(), header.destination_addr()));
            assert_eq!((ours.flow_label(), ours.hop_limit()), (header.flow_label().value(), header.hop_limit()));
            assert_eq!(ours.dscp() << 2 | ours.ecn(), header.traffic_class());
            assert_eq!(layers.fragment() != Fragment::None, ip.is_payload_fragmented());
            assert_eq!(layers.protocol().map(IpNumber), Some(ip.payload().ip_number));
            assert_eq!(ours.extensions().by_ref().count(), ip.extensions().clone().into_iter().count());
        }
    }
    compare_transport(frame, layers, packet.transport.as_ref())
}

#[track_caller]
fn compare_transport(frame: &[u8], layers: &Layers, transport: Option<&TransportSlice<'_>>) -> Verdict {
    if layers.fragment() != Fragment::None {
        assert!(transport.is_none());
        return Verdict::Same;
    }
    let (kind, slice) = match transport {
        None | Some(TransportSlice::Igmp(_)) => {
            let own = [None, Some(Transport::Gre), Some(Transport::Esp)];
            assert!(own.contains(&layers.transport().map(|found| found.0)), "{layers:?}");
            let why = layers.malformed().map(|found| found.0);
            assert!([None, Some(Layer::Gre), Some(Layer::Esp)].contains(&why), "{why:?}");
            return Verdict::Same;
        }
        Some(TransportSlice::Tcp(tcp)) => {
            let ours = layers.tcp(frame).expect("TCP");
            assert_eq!((ours.source_port(), ours.destination_port()), (tcp.source_port(), tcp.destination_port()));
            assert_eq!((ours.sequence(), ours.acknowledgement()), (tcp.sequence_number(), tcp.acknowledgment_number()));
            assert_eq!((ours.window(), ours.checksum()), (tcp.window_size(), tcp.checksum()));
            let flags =
                [tcp.fin(), tcp.syn(), tcp.rst(), tcp.psh(), tcp.ack(), tcp.urg(), tcp.ece(), tcp.cwr(), tcp.ns()];
            let flags = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u16::from(*flag));
            assert_eq!(ours.flags() & 0x1ff, flags);
            assert_eq!(layers.payload(frame), tcp.payload());
            (Transport::Tcp, tcp.slice())
        }
        Some(TransportSlice::Udp(udp)) => {
            if udp.length() == 0 {
                assert_eq!(layers.malformed(), Some((Layer::Udp, Malformed::Length)));
                return Verdict::Differs("the judge takes a datagram of length 0 for a jumbogram");
            }
            let ours = layers.udp(frame).expect("UDP");
            assert_eq!((ours.source_port(), ours.destination_port()), (udp.source_port(), udp.destination_port()));
            assert_eq!((ours.len(), ours.checksum(), ours.payload()), (udp.length(), udp.checksum(), udp.payload()));
            (Transport::Udp, udp.slice())
        }
        Some(TransportSlice::Icmpv4(icmp)) => {
            let ours = layers.icmp(frame).expect("ICMP");
            assert_eq!((ours.kind(), ours.code(), ours.checksum()), (icmp.type_u8(), icmp.code_u8(), icmp.checksum()));
            (Transport::Icmp, icmp.slice())
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            let ours = layers.icmpv6(frame).expect("ICMPv6");
            assert_eq!((ours.kind(), ours.code(), ours.checksum()), (icmp.type_u8(), icmp.code_u8(), icmp.checksum()));
            (Transport::Icmpv6, icmp.slice())
        }
    };
    assert_eq!(layers.transport(), Some((kind, place(frame, slice))));
    let why = layers.malformed().map(|found| found.0);
    assert!([None, Some(Layer::Vxlan), Some(Layer::Geneve)].contains(&why), "{why:?}");
    Verdict::Same
}

/// The judge refuses: we do, at the same header.
#[track_caller]
fn compare_error(frame: &[u8], layers: &Layers, error: &SliceError) -> Verdict {
    let wanted: &[Layer] = match error {
        SliceError::Len(error) => match error.layer {
            Judged::Ethernet2Header => &[Layer::Ethernet],
            Judged::VlanHeader => &[Layer::Vlan],
            Judged::Ipv4Header | Judged::Ipv4Packet => &[Layer::Ipv4],
            Judged::Ipv6Header | Judged::Ipv6Packet => &[Layer::Ipv6],
            Judged::IpAuthHeader => &[Layer::Ah, Layer::Ipv6Extension],
            Judged::Ipv6ExtHeader
            | Judged::Ipv6HopByHopHeader
            | Judged::Ipv6DestOptionsHeader
            | Judged::Ipv6RouteHeader
            | Judged::Ipv6FragHeader => &[Layer::Ipv6Extension],
            Judged::TcpHeader => &[Layer::Tcp],
            Judged::UdpHeader | Judged::UdpPayload => &[Layer::Udp],
            Judged::Icmpv4 => &[Layer::Icmp],
            Judged::Icmpv6 => &[Layer::Icmpv6],
            Judged::Icmpv4Timestamp | Judged::Icmpv4TimestampReply => {
                return Verdict::Differs("the judge wants the length of time stamp messages");
            }
            Judged::Igmp => return Verdict::Differs("the judge looks into IGMP"),
            Judged::Arp => {
                assert!(layers.arp(frame).is_none());
                return Verdict::BothRefuse;
            }
            _ => &[],
        },
        SliceError::Ipv4(_) => &[Layer::Ipv4],
        SliceError::Ipv6(_) => &[Layer::Ipv6],
        SliceError::Ipv4Exts(_) => &[Layer::Ah],
        SliceError::Ipv6Exts(_) => &[Layer::Ipv6Extension],
        SliceError::Tcp(_) => &[Layer::Tcp],
        _ => &[],
    };
    let found = layers.malformed().map(|found| found.0);
    if found.is_some_and(|found| wanted.contains(&found)) {
        return Verdict::BothRefuse;
    }
    match difference(frame, layers) {
        Some(why) => Verdict::Differs(why),
        None => panic!("the judge refuses ({error}), and we do not: {layers:?}\n{frame:02x?}"),
    }
}
