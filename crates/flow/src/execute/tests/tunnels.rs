//! VXLAN: outer headers byte by byte, what comes out again, and what is not opened.

use super::build::{MACS, ethernet, frame, ipv4, ipv6, recomputed, tcp, udp};
use super::{NEIGHBOUR, OWN, World, actions, edited, emitted};
use crate::action::Reason;
use crate::execute::{Emissions, Frame, HEADROOM, Stop, Target, execute};
use crate::extract::Ingress;
use crate::field::Field;
use millrace_packet::parse::Layers;
use proptest::prelude::*;
use std::collections::BTreeSet;

const V4: &str = "src=192.0.2.1,dst=192.0.2.2";
const V6: &str = "src=2001:db8::1,dst=2001:db8::2";

fn plain() -> Vec<u8> {
    recomputed(&ethernet(&[], 0x0800, &ipv4(6, &[], 0, &tcp(b"data"))))
}

fn encapsulated(frame: &[u8], arguments: &str) -> Vec<u8> {
    edited(frame, &actions(&format!("encap_vxlan({arguments})"))).unwrap()
}

#[test]
fn outer_headers_over_ipv4() {
    let frame = plain();
    let len = frame.len() as u16;
    let done = encapsulated(&frame, &format!("vni=0x123456,{V4},udp_src=50000"));
    let [total, total_low] = (len + 36).to_be_bytes();
    let [datagram, datagram_low] = (len + 16).to_be_bytes();
    let mut wanted = [NEIGHBOUR.0, OWN.0].concat();
    wanted.extend([0x08, 0, 0x45, 0xb9, total, total_low, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    wanted.extend([0xc3, 0x50, 0x12, 0xb5, datagram, datagram_low, 0, 0, 8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
    wanted.extend(&frame);
    assert_eq!(done, recomputed(&wanted));
}

#[test]
fn outer_headers_over_ipv6() {
    let frame = plain();
    let [datagram, low] = (frame.len() as u16 + 16).to_be_bytes();
    let given = "dl_src=02:00:00:00:00:0a,dl_dst=02:00:00:00:00:0b,udp_src=1,udp_dst=8472,tos=0x10,ttl=9,csum";
    let done = encapsulated(&frame, &format!("vni=1,{V6},{given}"));
    let mut wanted = vec![2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa, 0x86, 0xdd, 0x61, 0, 0, 0, datagram, low, 17, 9];
    for last in [1, 2] {
        wanted.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    // The checksum is there, so it is computed anew.
    wanted.extend([0, 1, 0x21, 0x18, datagram, low, 1, 1, 8, 0, 0, 0, 0, 0, 1, 0]);
    wanted.extend(&frame);
    assert_eq!(done, recomputed(&wanted));
}

#[test]
fn what_is_not_ip_has_no_type_of_service() {
    let done = encapsulated(&ethernet(&[], 0x1234, b"?"), &format!("vni=1,{V4}"));
    assert_eq!(done[15], 0);
}

fn source_port(frame: &[u8]) -> u16 {
    let done = encapsulated(frame, &format!("vni=1,{V4}"));
    u16::from_be_bytes([done[34], done[35]])
}

#[test]
fn source_ports_are_of_flows() {
    let flow = |port: u16, flags: u16, data: &[u8]| {
        let mut packet = udp(port, false, data);
        packet[0] = 1;
        ethernet(&[], 0x0800, &ipv4(17, &[], flags, &packet))
    };
    let ports: BTreeSet<_> = (0..4096).map(|port| source_port(&flow(port, 0, b""))).collect();
    // 4,096 random ports of 16,384 are about 3,625 different ones.
    assert!(ports.len() > 3400, "{}", ports.len());
    assert!(ports.iter().all(|port| *port >= 49152));
    assert_eq!(source_port(&flow(9, 0, b"one")), source_port(&flow(9, 0, b"other")));
    assert_eq!(source_port(&flow(9, 0x2000, b"one")), source_port(&flow(8, 0x0004, b"other")));
    let mut other = ethernet(&[], 0x1234, b"");
    let before = source_port(&other);
    other[11] = 9;
    assert_ne!(source_port(&other), before);
}

#[test]
fn nobody_knows_the_neighbour() {
    let mut world = World { neighbour: None, ..World::new() };
    let text = format!("output:1,encap_vxlan(vni=1,{V4}),output:2");
    let (list, done) = emitted(&plain(), &actions(&text), &mut world);
    assert_eq!(done, Err(Stop::Neighbour));
    let targets: Vec<_> = list.iter().map(|(emission, bytes)| (emission.target, &bytes[..])).collect();
    assert_eq!(targets, [(Target::Port(1), &plain()[..]), (Target::Punt(Reason::Neighbour), &plain())]);
    let given = format!("encap_vxlan(vni=1,{V4},dl_dst=02:00:00:00:00:0b)");
    assert_eq!(emitted(&plain(), &actions(&given), &mut world).1, Ok(()));
}

#[test]
fn lengths_have_an_end() {
    let long = |len: usize, to: &str| {
        edited(&vec![0; len], &actions(&format!("encap_vxlan(vni=1,{to})"))).map(|frame| frame.len())
    };
    assert_eq!((long(65535 - 36, V4), long(65535 - 35, V4)), (Ok(65535 + 14), Err(Stop::Mtu)));
    assert_eq!((long(65535 - 16, V6), long(65535 - 15, V6)), (Ok(65535 + 54), Err(Stop::Mtu)));
}

#[test]
fn only_valid_packets_are_opened() {
    let open = |frame: &[u8]| edited(frame, &actions("decap_vxlan"));
    let packet = encapsulated(&plain(), &format!("vni=1,{V4},csum"));
    assert_eq!(open(&packet), Ok(plain()));
    // Padding behind the packet is not the frame's.
    assert_eq!(open(&[&packet[..], &[0; 9]].concat()), Ok(plain()));
    // Every bit of it counts, but those of the outer MAC addresses and the reserved ones, which the checksum covers here.
    for bit in 8 * 12..8 * packet.len() {
        let mut hurt = packet.clone();
        hurt[bit / 8] ^= 0x80 >> (bit % 8);
        assert_eq!(open(&hurt), Err(Stop::NotVxlan), "bit {bit}");
    }
    for len in 0..packet.len() {
        assert_eq!(open(&packet[..len]), Err(Stop::NotVxlan), "{len} bytes");
    }
    assert_eq!(open(&plain()), Err(Stop::NotVxlan));
    // Fragments; something shorter than Ethernet within; the flag not set; reserved bits set.
    let with = |flags: u16, head: [u8; 8], inner: &[u8]| {
        open(&recomputed(&ethernet(&[], 0x0800, &ipv4(17, &[], flags, &udp(4789, false, &[&head, inner].concat())))))
    };
    let head = [8, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(with(0, head, &MACS), Err(Stop::NotVxlan));
    assert_eq!(with(0x2000, head, &plain()), Err(Stop::NotVxlan));
    assert_eq!(with(0, [0xf7, 0, 0, 0, 0, 0, 1, 0], &plain()), Err(Stop::NotVxlan));
    assert_eq!(with(0, [0xff, 1, 2, 3, 0, 0, 1, 9], &plain()), Ok(plain()));
}

/// RFC 6040 figure 4: the mark inside, outside, and what comes of both.
#[test]
fn congestion_marks() {
    let table = [
        (0, 0, Some(0)),
        (0, 1, Some(0)),
        (0, 2, Some(0)),
        (0, 3, None),
        (2, 0, Some(2)),
        (2, 1, Some(1)),
        (2, 2, Some(2)),
        (2, 3, Some(3)),
        (1, 0, Some(1)),
        (1, 1, Some(1)),
        (1, 2, Some(1)),
        (1, 3, Some(3)),
        (3, 0, Some(3)),
        (3, 1, Some(3)),
        (3, 2, Some(3)),
        (3, 3, Some(3)),
    ];
    for kind in [0x0800, 0x86dd] {
        let inner = if kind == 0x0800 { ipv4(6, &[], 0, &tcp(b"")) } else { ipv6(6, &tcp(b"")) };
        let inner = recomputed(&ethernet(&[], kind, &inner));
        for (inside, outside, wanted) in table {
            let text =
                format!("set_field:{inside}->nw_ecn,encap_vxlan(vni=1,{V4}),set_field:{outside}->nw_ecn,decap_vxlan");
            let done = edited(&inner, &actions(&text));
            let wanted = wanted.map(|mark| edited(&inner, &actions(&format!("set_field:{mark}->nw_ecn"))).unwrap());
            assert_eq!(done, wanted.ok_or(Stop::Congested), "{kind:#x} {inside} {outside}");
        }
    }
    // The mark outside is the one inside.
    let marked = edited(&plain(), &actions("set_field:3->nw_ecn")).unwrap();
    assert_eq!(encapsulated(&marked, &format!("vni=1,{V6}"))[15] >> 4 & 3, 3);
}

#[test]
fn the_network_goes_on_in_the_key() {
    let packet = encapsulated(&plain(), &format!("vni=77,{V4}"));
    let mut frame = Frame::new(&packet, &mut [], Ingress::default());
    assert_eq!(frame.key().get(Field::TunId).0[0], 77);
    // Nothing is copied: what is within lies where it lay.
    execute(&actions("decap_vxlan"), &mut frame, &mut World::new(), &mut Emissions::new(1, 0)).unwrap();
    assert_eq!((frame.key().get(Field::TunId).0[0], frame.ingress().tunnel.unwrap().id), (77, 77));
    assert_eq!(frame.bytes(), plain());
    execute(&actions("set_field:5->tun_id"), &mut frame, &mut World::new(), &mut Emissions::new(1, 0)).unwrap();
    assert_eq!(frame.key().get(Field::TunId).0[0], 5);
}

/// Who sends a tunnel within a tunnel does not say in which one it is.
#[test]
fn what_was_taken_off_counts_and_not_what_is_within() {
    let within = encapsulated(&plain(), &format!("vni=6,{V4}"));
    let packet = encapsulated(&within, &format!("vni=5,{V4}"));
    let mut buffer = vec![0; packet.len() + HEADROOM];
    let mut frame = Frame::new(&packet, &mut buffer, Ingress { port: 1, ..Ingress::default() });
    execute(&actions("decap_vxlan(port=9)"), &mut frame, &mut World::new(), &mut Emissions::new(1, 0)).unwrap();
    let key = frame.key();
    let number = |field: Field| key.get(field).0[0];
    assert_eq!((number(Field::TunId), number(Field::InPort)), (5, 9));
    assert_eq!(number(Field::TunSrc), 0xc000_0201, "192.0.2.1");
}

#[test]
fn a_port_that_is_a_tunnel_gets_copies() {
    let port = |number: u32| format!("vxlan_port(number={number},output=3,{V4})");
    let text = format!("output:1,set_field:77->tun_id,{},set_field:9->dl_vlan,{},output:2", port(8), port(9));
    let (list, done) = emitted(&plain(), &actions(&text), &mut World::new());
    assert_eq!(done, Ok(()));
    let tagged = edited(&plain(), &actions("set_field:9->dl_vlan")).unwrap();
    let wanted = [
        (Target::Port(1), plain()),
        (Target::Port(3), encapsulated(&plain(), &format!("vni=77,{V4}"))),
        (Target::Port(3), encapsulated(&tagged, &format!("vni=77,{V4}"))),
        (Target::Port(2), tagged),
    ];
    let got: Vec<_> = list.into_iter().map(|(emission, bytes)| (emission.target, bytes)).collect();
    assert_eq!(got, wanted);
    // What has come in there does not go back, and may go out where it came in as a packet.
    let packet = encapsulated(&plain(), &format!("vni=5,{V4}"));
    let text = format!("decap_vxlan(port=8),{},{},output:7", port(8), port(9));
    let (list, done) = emitted(&packet, &actions(&text), &mut World::new());
    let got: Vec<_> = list.into_iter().map(|(emission, bytes)| (emission.target, bytes)).collect();
    assert_eq!(done, Ok(()));
    assert_eq!(got, [(Target::Port(3), encapsulated(&plain(), &format!("vni=5,{V4}"))), (Target::Port(7), plain())]);
}

proptest! {
    #[test]
    fn what_goes_in_comes_out(frame in frame(), vni in 0u32..1 << 24, v6: bool, checksum: bool) {
        let to = if v6 { V6 } else { V4 };
        let packet = encapsulated(&frame, &format!("vni={vni}{},{to}", if checksum { ",csum" } else { "" }));
        prop_assert_eq!(&recomputed(&packet), &packet);
        let layers = Layers::parse(&packet);
        prop_assert_eq!(layers.tunnel_id(&packet), Some(vni));
        prop_assert_eq!(layers.udp(&packet).unwrap().checksum() != 0, checksum);
        let inner = layers.parse_inner(&packet).unwrap();
        prop_assert_eq!(inner.ether_type(), Layers::parse(&frame).ether_type());
        prop_assert_eq!(edited(&packet, &actions("decap_vxlan")), Ok(frame));
    }

    /// A tunnel in a tunnel, in tags: all that goes into the headroom comes out of it again.
    #[test]
    fn tunnels_in_tunnels(frame in frame()) {
        let text = format!("encap_vxlan(vni=1,{V4}),push_vlan:0x8100,encap_vxlan(vni=2,{V4}),decap_vxlan,pop_vlan,decap_vxlan");
        prop_assert_eq!(edited(&frame, &actions(&text)), Ok(frame));
        let more = format!("{0},{0},{0}", format_args!("encap_vxlan(vni=1,{V6})"));
        prop_assert!(HEADROOM < 3 * 70);
        prop_assert_eq!(edited(&[0; 60], &actions(&more)), Err(Stop::Headroom));
    }
}
