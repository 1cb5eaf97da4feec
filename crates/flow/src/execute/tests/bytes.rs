//! Headers that are pushed, taken away and written, byte by byte.

use super::build::{MACS, ethernet, ipv4, ipv6, recomputed, udp};
use super::{actions, edited};
use crate::execute::Stop;

fn packet() -> Vec<u8> {
    ipv4(17, &[], 0, &udp(53, false, b"data"))
}

/// What is left of `frame` after `text` has these bytes behind the addresses.
fn check(frame: &[u8], text: &str, wanted: &[u8]) {
    assert_eq!(edited(frame, &actions(text)), Ok([&MACS[..], wanted].concat()), "{text}");
}

#[test]
fn tags() {
    let plain = ethernet(&[], 0x0800, b"ip");
    let one = ethernet(&[(0x88a8, 0xb123)], 0x0800, b"ip");
    let two = ethernet(&[(0x88a8, 0xb123), (0x8100, 0x0456)], 0x0800, b"ip");
    check(&plain, "push_vlan:0x8100", b"\x81\0\0\0\x08\0ip");
    check(&one, "push_vlan:0x8100", b"\x81\0\0\0\x88\xa8\xb1\x23\x08\0ip");
    check(&two, "pop_vlan", b"\x81\0\x04\x56\x08\0ip");
    check(&two, "pop_vlan,pop_vlan,pop_vlan", b"\x08\0ip");
    check(&two, "push_vlan:0x88a8,pop_vlan,pop_vlan", b"\x81\0\x04\x56\x08\0ip");
    // An id or a priority makes a tag; drop eligibility stays; the TPID does.
    check(&plain, "set_field:5->dl_vlan", b"\x81\0\0\x05\x08\0ip");
    check(&plain, "set_field:5->dl_vlan_pcp", b"\x81\0\xa0\0\x08\0ip");
    check(&one, "set_field:5->dl_vlan", b"\x88\xa8\xb0\x05\x08\0ip");
    check(&one, "set_field:1->dl_vlan_pcp", b"\x88\xa8\x31\x23\x08\0ip");
    check(&one, "set_field:7->inner_vlan", b"\x88\xa8\xb1\x23\x81\0\0\x07\x08\0ip");
    check(&two, "set_field:7->inner_vlan_pcp", b"\x88\xa8\xb1\x23\x81\0\xe4\x56\x08\0ip");
    check(&plain, "set_field:7->inner_vlan", b"\x08\0ip");
    // A whole tag is there if bit 12 says so.
    check(&one, "set_field:0->vlan_tci", b"\x08\0ip");
    check(&two, "set_field:0->inner_vlan_tci", b"\x88\xa8\xb1\x23\x08\0ip");
    check(&plain, "set_field:0x3005->vlan_tci", b"\x81\0\x20\x05\x08\0ip");
    check(&plain, "set_field:0x0005/0x0fff->vlan_tci", b"\x08\0ip");
    check(&one, "set_field:0x0005/0x0fff->vlan_tci", b"\x88\xa8\xb0\x05\x08\0ip");
}

#[test]
fn tags_before_an_ieee_802_3_length() {
    let frame = [&MACS[..], &[0, 3, 0x42, 0x42, 3]].concat();
    check(&frame, "push_vlan:0x8100", &[0x81, 0, 0, 0, 0, 3, 0x42, 0x42, 3]);
    check(&[&MACS[..], &[0x81, 0, 0, 9, 0, 3, 0x42, 0x42, 3]].concat(), "pop_vlan", &[0, 3, 0x42, 0x42, 3]);
}

#[test]
fn frames_that_end_too_early() {
    for len in 0..18 {
        let frame = &ethernet(&[(0x8100, 5)], 0x0800, b"")[..len];
        assert_eq!(edited(frame, &actions("pop_vlan")).unwrap(), frame);
        assert_eq!(edited(frame, &actions("push_pppoe:5,decap_vxlan")), Err(Stop::NotVxlan));
    }
    assert_eq!(edited(&MACS, &actions("push_vlan:0x8100")).unwrap(), MACS);
}

#[test]
fn sessions() {
    let (v4, v6) = (packet(), ipv6(17, &udp(53, true, b"data")));
    let session = |len: u8, ppp: u8| [0x88, 0x64, 0x11, 0, 0x12, 0x34, 0, len, 0, ppp];
    let padded = [ethernet(&[], 0x0800, &v4), vec![0; 14]].concat();
    let wanted = [&session(34, 0x21)[..], &v4, &[0; 14]].concat();
    check(&padded, "push_pppoe:0x1234", &wanted);
    check(&[&MACS[..], &wanted].concat(), "pop_pppoe", &padded[12..]);
    let tagged = ethernet(&[(0x8100, 9)], 0x86dd, &v6);
    check(&tagged, "push_pppoe:0x1234", &[&[0x81, 0, 0, 9][..], &session(54, 0x57), &v6].concat());
    check(&tagged, "push_pppoe:7,set_field:0x1234->pppoe_sid,push_pppoe:9,pop_pppoe", &tagged[12..]);
    // A protocol of one byte.
    let compressed = [&MACS[..], &[0x88, 0x64, 0x11, 0, 0, 5, 0, 33, 0x21], &v4].concat();
    check(&compressed, "pop_pppoe", &[&[8, 0][..], &v4].concat());
}

#[test]
fn sessions_that_cannot_be() {
    // LCP has no EtherType; a length beyond the end is no packet.
    let lcp = [&MACS[..], &[0x88, 0x64, 0x11, 0, 0, 5, 0, 6, 0xc0, 0x21, 9, 0, 0, 4]].concat();
    assert_eq!(edited(&lcp, &actions("pop_pppoe")), Err(Stop::NotIp));
    let short = [&MACS[..], &[0x88, 0x64, 0x11, 0, 0, 5, 0, 60, 0, 0x21]].concat();
    assert_eq!(edited(&short, &actions("pop_pppoe")), Err(Stop::NotIp));
    // Behind SNAP there is a length that would be wrong.
    let snap = [&MACS[..], &[0, 40, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0], &packet()].concat();
    assert_eq!(edited(&snap, &actions("push_pppoe:5")), Ok(snap));
    let long = ethernet(&[], 0x0800, &ipv4(17, &[], 0, &vec![0; 65535 - 20]));
    assert_eq!(edited(&long, &actions("push_pppoe:5")), Err(Stop::Mtu));
}

#[test]
fn fields_where_they_lie() {
    let mpls = ethernet(&[], 0x8847, &[0x12, 0x34, 0x5f, 9, 1]);
    check(&mpls, "set_field:1->mpls_label", &[0x88, 0x47, 0, 0, 0x1f, 9, 1]);
    check(&mpls, "set_field:2->mpls_tc,set_field:3->mpls_ttl", &[0x88, 0x47, 0x12, 0x34, 0x55, 3, 1]);
    let v6 = ethernet(&[], 0x86dd, &ipv6(59, &[]));
    let head = |bytes: [u8; 4]| [&[0x86, 0xdd][..], &bytes, &v6[18..]].concat();
    check(&v6, "set_field:0->ip_dscp", &head([0x60, 0x11, 0x23, 0x45]));
    check(&v6, "set_field:0xfffff->ipv6_label", &head([0x6b, 0x9f, 0xff, 0xff]));
    check(&v6, "set_field:3->nw_ecn", &head([0x6b, 0xb1, 0x23, 0x45]));
    let v4 = recomputed(&ethernet(&[], 0x0800, &packet()));
    let done = edited(&v4, &actions("set_field:12->nw_tos,set_field:2->nw_ecn,dec_ttl")).unwrap();
    assert_eq!((done[15], done[22]), (0x0e, 63));
    assert_eq!(recomputed(&done), done);
}
