//! Frames without tunnels: where everything is, and where parsing ends.

use super::super::{
    Fragment, IpVersion, Layer, Layers, MOST_EXTENSIONS, Malformed, Tci, Transport, ether_type, protocol,
};
use super::build::*;

const DATA: &[u8] = b"data";

#[test]
fn ipv4_with_options_and_tcp_with_options() {
    let mut frame = ethernet(0x0800, &ipv4(6, &[1; 8], 0x4000, &tcp(&[1; 4], DATA)));
    frame.extend([0; 9]);
    let layers = Layers::parse(&frame);
    assert_eq!((layers.ether_type(), layers.network(), layers.tags()), (ether_type::IPV4, 14, &[][..]));
    assert_eq!((layers.ip_version(), layers.ip(), layers.protocol()), (Some(IpVersion::V4), Some(14), Some(6)));
    assert_eq!((layers.transport(), layers.payload_offset()), (Some((Transport::Tcp, 42)), 66));
    assert_eq!((layers.payload(&frame), layers.end()), (DATA, 70), "padding is no payload");
    assert_eq!((layers.fragment(), layers.tunnel(), layers.malformed()), (Fragment::None, None, None));
    assert_eq!(layers.tcp(&frame).unwrap().destination_port(), 80);
    assert_eq!(layers.ipv4(&frame).unwrap().options().count(), 8);
    assert!(layers.udp(&frame).is_none() && layers.ipv6(&frame).is_none() && layers.arp(&frame).is_none());
}

#[test]
fn two_tags_and_a_third() {
    let ip = ipv4(17, &[], 0, &udp(53, DATA));
    let frame = ethernet(0x88a8, &vlan(0x2005, 0x8100, &vlan(7, 0x0800, &ip)));
    let layers = Layers::parse(&frame);
    let tags: Vec<_> = layers.tags().iter().map(|tag| (tag.tpid, tag.tci)).collect();
    assert_eq!(tags, [(0x88a8, Tci(0x2005)), (0x8100, Tci(7))]);
    assert_eq!((layers.ether_type(), layers.network()), (0x0800, 22));
    assert_eq!(layers.transport(), Some((Transport::Udp, 42)));

    let frame = ethernet(0x8100, &vlan(1, 0x8100, &vlan(2, 0x9100, &vlan(3, 0x0800, &ip))));
    let layers = Layers::parse(&frame);
    assert_eq!((layers.tags().len(), layers.ether_type()), (2, 0x9100));
    assert_eq!((layers.malformed(), layers.ip()), (Some((Layer::Vlan, Malformed::TooMany)), None));
    assert_eq!(layers.payload_offset(), 22);
}

#[test]
fn extension_headers_of_ipv6() {
    let routing = extension(60, 0, &extension(51, 1, &ah(60, &extension(6, 0, &tcp(&[], DATA)))));
    let frame = ethernet(0x86dd, &ipv6(0, &extension(43, 0, &routing)));
    let layers = Layers::parse(&frame);
    assert_eq!((layers.ip_version(), layers.protocol()), (Some(IpVersion::V6), Some(protocol::TCP)));
    assert_eq!(
        (layers.transport(), layers.payload(&frame)),
        (Some((Transport::Tcp, 14 + 40 + 8 + 8 + 16 + 16 + 8)), DATA)
    );
    let ipv6 = layers.ipv6(&frame).unwrap();
    let kinds: Vec<_> = ipv6.extensions().map(|extension| extension.unwrap().kind()).collect();
    assert_eq!(kinds, [0, 43, 60, 51, 60]);
}

#[test]
fn more_extension_headers_than_are_looked_at() {
    let chain = |count: usize| {
        let inner = extension(17, 0, &udp(53, DATA));
        ethernet(0x86dd, &ipv6(60, &(1..count).fold(inner, |inner, _| extension(60, 0, &inner))))
    };
    let frame = chain(MOST_EXTENSIONS);
    assert_eq!(Layers::parse(&frame).transport(), Some((Transport::Udp, 54 + 8 * MOST_EXTENSIONS)));
    let frame = chain(MOST_EXTENSIONS + 1);
    let layers = Layers::parse(&frame);
    assert_eq!(layers.malformed(), Some((Layer::Ipv6Extension, Malformed::TooMany)));
    assert_eq!((layers.transport(), layers.payload_offset()), (None, 54 + 8 * MOST_EXTENSIONS));
    assert_eq!(layers.protocol(), Some(60), "what it was that was not looked at");
}

#[test]
fn an_extension_header_that_is_cut_off() {
    let frame = ethernet(0x86dd, &ipv6(0, &extension(43, 0, &[17, 3, 0, 0, 0, 0, 0, 0])));
    let layers = Layers::parse(&frame);
    assert_eq!(layers.malformed(), Some((Layer::Ipv6Extension, Malformed::Truncated)));
    assert_eq!((layers.ip(), layers.payload_offset(), layers.protocol()), (Some(14), 62, Some(43)));
}

#[test]
fn fragments() {
    let datagram = udp(4789, &[0; 100]);
    let frame = |word, part: &[u8]| ethernet(0x0800, &ipv4(17, &[], word, part));
    let first = frame(0x2000, &datagram[..40]);
    let layers = Layers::parse(&first);
    assert_eq!((layers.fragment(), layers.transport()), (Fragment::First, Some((Transport::Udp, 34))));
    assert_eq!(layers.udp(&first).unwrap().payload().len(), 32);
    assert_eq!((layers.malformed(), layers.tunnel()), (None, None), "the length is that of all fragments");
    let later = frame(5, &datagram[40..]);
    let layers = Layers::parse(&later);
    assert_eq!((layers.fragment(), layers.transport(), layers.protocol()), (Fragment::Later, None, Some(17)));
    assert_eq!(layers.payload(&later), &datagram[40..]);

    for (word, wanted, transport) in [
        (0x0000, Fragment::None, Some((Transport::Tcp, 62))),
        (0x0001, Fragment::First, Some((Transport::Tcp, 62))),
        (0x0008, Fragment::Later, None),
    ] {
        let frame = ethernet(0x86dd, &ipv6(44, &fragment(6, word, &tcp(&[], DATA))));
        let layers = Layers::parse(&frame);
        assert_eq!((layers.fragment(), layers.transport(), layers.protocol()), (wanted, transport, Some(6)));
        assert_eq!(layers.malformed(), None);
    }
    let frame = ethernet(0x86dd, &ipv6(44, &fragment(60, 8, &[9; 8])));
    let layers = Layers::parse(&frame);
    assert_eq!((layers.protocol(), layers.payload_offset(), layers.malformed()), (Some(60), 62, None));
}

#[test]
fn ieee_802_3_with_and_without_snap() {
    let mut frame = ethernet(3, &[0x42, 0x42, 3]);
    frame.resize(60, 0);
    let layers = Layers::parse(&frame);
    assert_eq!((layers.ether_type(), layers.payload(&frame), layers.malformed()), (3, &[0x42, 0x42, 3][..], None));

    let ip = ipv4(17, &[], 0, &udp(53, DATA));
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &ip].concat();
    let frame = ethernet(snap.len() as u16, &snap);
    let layers = Layers::parse(&frame);
    assert_eq!((layers.ether_type(), layers.network()), (ether_type::IPV4, 22));
    assert_eq!((layers.transport(), layers.payload(&frame)), (Some((Transport::Udp, 42)), DATA));

    let layers = Layers::parse(&ethernet(4, &[0x42, 0x42, 3]));
    assert_eq!(layers.malformed(), Some((Layer::Ethernet, Malformed::Length)));
}

#[test]
fn a_malformed_layer_ends_parsing_and_what_is_before_it_is_valid() {
    let ip = |protocol, payload: &[u8]| ethernet(0x0800, &ipv4(protocol, &[], 0, payload));
    let check = |frame: &[u8], wanted: (Layer, Malformed), ip: Option<usize>, at: usize| {
        let layers = Layers::parse(frame);
        assert_eq!((layers.malformed(), layers.ip()), (Some(wanted), ip));
        assert_eq!((layers.transport(), layers.payload_offset()), (None, at), "{wanted:?}");
    };
    check(&[0; 13], (Layer::Ethernet, Malformed::Truncated), None, 0);
    check(&ethernet(0x8100, &[0; 3]), (Layer::Vlan, Malformed::Truncated), None, 14);
    let mut bad = ip(6, DATA);
    bad[14] = 0x65;
    check(&bad, (Layer::Ipv4, Malformed::Version), None, 14);
    let mut bad = ip(6, &tcp(&[], DATA));
    bad.pop();
    check(&bad, (Layer::Ipv4, Malformed::Length), None, 14);
    check(&ip(6, &[0; 19]), (Layer::Tcp, Malformed::Truncated), Some(14), 34);
    check(&ip(6, &[0; 20]), (Layer::Tcp, Malformed::HeaderLength), Some(14), 34);
    check(&ip(17, &[0; 7]), (Layer::Udp, Malformed::Truncated), Some(14), 34);
    check(&ip(17, &[0; 8]), (Layer::Udp, Malformed::Length), Some(14), 34);
    check(&ip(1, &[0; 7]), (Layer::Icmp, Malformed::Truncated), Some(14), 34);
    check(&ip(47, &[0, 2, 0, 0]), (Layer::Gre, Malformed::Version), Some(14), 34);
    check(&ip(50, &[0; 7]), (Layer::Esp, Malformed::Truncated), Some(14), 34);
    check(&ip(51, &[0; 12]), (Layer::Ah, Malformed::HeaderLength), Some(14), 34);
    let v6 = |next, payload: &[u8]| ethernet(0x86dd, &ipv6(next, payload));
    check(&v6(58, &[0; 7]), (Layer::Icmpv6, Malformed::Truncated), Some(14), 54);
    let mut bad = v6(59, DATA);
    bad.pop();
    check(&bad, (Layer::Ipv6, Malformed::Length), None, 14);
}

#[test]
fn every_transport() {
    let esp = [0, 0, 1, 2, 0, 0, 0, 3, 9];
    let kinds = [
        (1, Some((Transport::Icmp, 8)), &[8, 0, 0, 0, 0, 1, 0, 2][..]),
        (50, Some((Transport::Esp, 8)), &esp),
        (51, Some((Transport::Ah, 16)), &ah(6, &[])),
        (58, None, &[128, 0, 0, 0, 0, 1, 0, 2]),
        (2, None, &[0x11, 0, 0, 0]),
    ];
    for (protocol, wanted, payload) in kinds {
        let frame = ethernet(0x0800, &ipv4(protocol, &[], 0, payload));
        let layers = Layers::parse(&frame);
        let found = layers.transport().map(|(kind, at)| (kind, layers.payload_offset() - at));
        assert_eq!((found, layers.malformed()), (wanted, None), "{protocol}");
    }
    let frame = ethernet(0x86dd, &ipv6(58, &[128, 0, 0, 0, 0, 1, 0, 2]));
    let layers = Layers::parse(&frame);
    assert_eq!(layers.icmpv6(&frame).unwrap().echo(), Some((1, 2)));
    let frame = ethernet(0x86dd, &ipv6(50, &esp));
    assert_eq!(Layers::parse(&frame).esp(&frame).unwrap().spi(), 0x102);
    let frame = ethernet(0x86dd, &ipv6(1, &[8, 0, 0, 0, 0, 1, 0, 2]));
    assert_eq!(Layers::parse(&frame).transport(), None, "ICMP is not for IPv6");
}

#[test]
fn arp_ptp_and_roce() {
    let frame = ethernet(0x0806, &[&[0, 1, 8, 0, 6, 4, 0, 1][..], &[0; 20]].concat());
    let layers = Layers::parse(&frame);
    assert_eq!((layers.arp(&frame).unwrap().operation(), layers.ip()), (1, None));

    let mut message = [0; 44];
    message[..4].copy_from_slice(&[0, 2, 0, 44]);
    let frame = ethernet(0x88f7, &message);
    assert!(Layers::parse(&frame).ptp(&frame).is_some());
    for (port, is) in [(319, true), (320, true), (321, false)] {
        let frame = ethernet(0x0800, &ipv4(17, &[], 0, &udp(port, &message)));
        assert_eq!(Layers::parse(&frame).ptp(&frame).is_some(), is);
    }

    let bth = [4, 0, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 1, 1, 2, 3, 4];
    let frame = ethernet(0x0800, &ipv4(17, &[], 0, &udp(4791, &bth)));
    assert_eq!(Layers::parse(&frame).bth(&frame).unwrap().destination_qp(), 9);
    let grh = [&[0x60, 0, 0, 0, 0, 16, 0x1b, 1][..], &[0; 32], &bth].concat();
    let frame = ethernet(0x8915, &grh);
    let layers = Layers::parse(&frame);
    assert_eq!((layers.bth(&frame).unwrap().psn(), layers.grh(&frame).unwrap().hop_limit()), (1, 1));
}
