//! PPPoE, MPLS and tunnels.

use super::super::{Layer, Layers, Malformed, Transport, Tunnel, ether_type, ppp};
use super::build::*;

fn datagram() -> Vec<u8> {
    ipv4(17, &[], 0, &udp(53, b"data"))
}

#[test]
fn pppoe_is_looked_through() {
    for (protocol, packet, transport) in [(ppp::IPV4, datagram(), 42), (ppp::IPV6, ipv6(17, &udp(53, b"data")), 62)] {
        let mut frame = ethernet(0x8864, &pppoe(protocol, &packet));
        frame.extend([0; 7]);
        let layers = Layers::parse(&frame);
        assert_eq!((layers.ether_type(), layers.network(), layers.ip()), (ether_type::PPPOE, 14, Some(22)));
        assert_eq!((layers.transport(), layers.payload(&frame)), (Some((Transport::Udp, transport)), &b"data"[..]));
        assert_eq!(layers.pppoe(&frame).unwrap().session(), 5);
    }
    let mut frame = ethernet(0x8864, &pppoe(0xc021, &[1, 2, 3]));
    frame.push(0);
    let layers = Layers::parse(&frame);
    assert_eq!((layers.payload(&frame), layers.malformed(), layers.ip()), (&[1, 2, 3][..], None, None));
    frame[14] = 0x21;
    assert_eq!(Layers::parse(&frame).malformed(), Some((Layer::Pppoe, Malformed::Version)));
}

#[test]
fn an_ip_packet_may_not_be_longer_than_its_pppoe_session_says() {
    let mut frame = ethernet(0x8864, &pppoe(ppp::IPV4, &datagram()));
    frame[19] -= 1;
    assert_eq!(Layers::parse(&frame).malformed(), Some((Layer::Ipv4, Malformed::Length)));
}

#[test]
fn ip_behind_labels_is_found_and_a_wrong_guess_taken_back() {
    let labels = [0, 1, 0x20, 64, 0, 1, 0x31, 64];
    let frame = ethernet(0x8847, &[&labels[..], &datagram()].concat());
    let layers = Layers::parse(&frame);
    assert_eq!((layers.ether_type(), layers.ip()), (ether_type::MPLS, Some(22)));
    assert_eq!((layers.transport(), layers.malformed()), (Some((Transport::Udp, 42)), None));
    assert_eq!(layers.mpls(&frame).unwrap().top().label(), 0x12);

    let wire = [&labels[..], &[0x45; 30]].concat();
    let layers = Layers::parse(&ethernet(0x8848, &wire));
    assert_eq!((layers.ip(), layers.payload_offset(), layers.malformed()), (None, 22, None));
    let layers = Layers::parse(&ethernet(0x8847, &labels[..4]));
    assert_eq!(layers.malformed(), Some((Layer::Mpls, Malformed::Truncated)));
}

/// What is within is the same as if it stood alone, but for where it is.
#[track_caller]
fn check_inner(frame: &[u8], tunnel: Tunnel, at: usize, id: u32, inner: &[u8]) {
    let layers = Layers::parse(frame);
    assert_eq!((layers.tunnel(), layers.tunnel_id(frame)), (Some((tunnel, at)), Some(id)));
    assert_eq!((layers.payload(frame), layers.malformed()), (inner, None));
    let within = layers.parse_inner(frame).unwrap();
    assert_eq!(within.start(), at);
    assert_eq!(within.payload(frame), b"data");
    assert_eq!(within.udp(frame).unwrap().destination_port(), 53);
    assert_eq!(within.tunnel(), None);
    assert!(within.parse_inner(frame).is_none());
    let ethernet = within.ethernet(frame).map(|ethernet| ethernet.source());
    if layers.inner_type() == Some(ether_type::ETHERNET) {
        let alone = Layers::parse(inner);
        assert_eq!(within.ip(), alone.ip().map(|ip| ip + at));
        assert_eq!((ethernet.unwrap().0, within.tags()), ([2, 0, 0, 0, 0, 2], alone.tags()));
    } else {
        assert_eq!((ethernet, within.ip()), (None, Some(at)));
    }
}

#[test]
fn tunnels() {
    let inner = ethernet(0x8100, &vlan(5, 0x0800, &datagram()));
    let over4 = |protocol, payload: &[u8]| ethernet(0x0800, &ipv4(protocol, &[], 0, payload));
    let over6 = |protocol, payload: &[u8]| ethernet(0x86dd, &ipv6(protocol, payload));
    check_inner(&over4(17, &udp(4789, &vxlan(7, &inner))), Tunnel::Vxlan, 50, 7, &inner);
    check_inner(&over6(17, &udp(4789, &vxlan(7, &inner))), Tunnel::Vxlan, 70, 7, &inner);
    let option = [0, 1, 2, 0];
    check_inner(&over4(17, &udp(6081, &geneve(0x6558, 8, &option, &inner))), Tunnel::Geneve, 54, 8, &inner);
    check_inner(&over4(17, &udp(6081, &geneve(0x0800, 8, &[], &datagram()))), Tunnel::Geneve, 50, 8, &datagram());
    check_inner(&over4(47, &gre(0x6558, 9, &inner)), Tunnel::Gre, 42, 9, &inner);
    check_inner(&over6(47, &gre(0x0800, 9, &datagram())), Tunnel::Gre, 62, 9, &datagram());
    let labelled = [&[0, 1, 1, 64][..], &datagram()].concat();
    let frame = over4(47, &gre(0x8847, 9, &labelled));
    assert_eq!(Layers::parse(&frame).parse_inner(&frame).unwrap().ip(), Some(46));
}

#[test]
fn what_is_within_ends_with_the_outer_packet() {
    let mut inner = ethernet(0x0800, &datagram());
    inner.extend([0; 5]);
    let mut frame = ethernet(0x0800, &ipv4(17, &[], 0, &udp(4789, &vxlan(7, &inner))));
    frame.extend([0; 9]);
    let within = Layers::parse(&frame).parse_inner(&frame).unwrap();
    assert_eq!((within.payload(&frame), within.end()), (&b"data"[..], frame.len() - 14));

    // The outer datagram leaves out the last byte of the inner packet, which the frame still has.
    let inner = ethernet(0x0800, &datagram());
    let mut frame = ethernet(0x0800, &ipv4(17, &[], 0, &udp(4789, &vxlan(7, &inner))));
    frame[39] -= 1;
    let within = Layers::parse(&frame).parse_inner(&frame).unwrap();
    assert_eq!(within.malformed(), Some((Layer::Ipv4, Malformed::Length)));
}

#[test]
fn tunnels_within_tunnels_end() {
    let mut frame = ethernet(0x0800, &datagram());
    for _ in 0..1000 {
        frame = ethernet(0x0800, &ipv4(17, &[], 0, &udp(4789, &vxlan(7, &frame))));
        if frame.len() > 65_000 {
            break;
        }
    }
    let (mut layers, mut depth) = (Layers::parse(&frame), 0);
    while let Some(inner) = layers.parse_inner(&frame) {
        assert!(inner.start() > layers.start() && inner.malformed().is_none());
        (layers, depth) = (inner, depth + 1);
    }
    assert!(layers.tunnel().is_some_and(|(_, at)| at > 40_000), "{depth}");
}

#[test]
fn malformed_tunnels_leave_the_datagram() {
    let frame = ethernet(0x0800, &ipv4(17, &[], 0, &udp(4789, &[0; 8])));
    let layers = Layers::parse(&frame);
    assert_eq!(layers.malformed(), Some((Layer::Vxlan, Malformed::Field)));
    assert_eq!((layers.transport(), layers.tunnel()), (Some((Transport::Udp, 34)), None));
    assert_eq!((layers.payload(&frame), layers.vxlan(&frame).is_none()), (&[0; 8][..], true));
    let frame = ethernet(0x0800, &ipv4(17, &[], 0, &udp(6081, &[1, 0, 0, 0, 0, 0, 0, 0])));
    assert_eq!(Layers::parse(&frame).malformed(), Some((Layer::Geneve, Malformed::Truncated)));
    let pptp = [0x20, 1, 0x88, 0x0b, 0, 4, 0, 1, 1, 2, 3, 4];
    let frame = ethernet(0x0800, &ipv4(47, &[], 0, &pptp));
    let layers = Layers::parse(&frame);
    assert_eq!((layers.transport(), layers.tunnel()), (Some((Transport::Gre, 34)), None), "the GRE of PPTP");
    assert_eq!(layers.gre(&frame).unwrap().key(), Some(0x40001));
}
