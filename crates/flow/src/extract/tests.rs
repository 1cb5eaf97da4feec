use super::{Ingress, NO_ETHER_TYPE};
use crate::field::{Field, Wide};
use crate::key::Key;
use crate::matching::Match;
use millrace_packet::parse::Layers;
use proptest::prelude::*;

fn ethernet(types: &[u8], rest: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], types, rest].concat()
}

fn ipv4(protocol: u8, flags: u16, rest: &[u8]) -> Vec<u8> {
    let [fragment, offset] = flags.to_be_bytes();
    let len = 20 + rest.len() as u8;
    [&[0x45, 0xb9, 0, len, 0, 0, fragment, offset, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2], rest].concat()
}

fn ipv6(protocol: u8, rest: &[u8]) -> Vec<u8> {
    let mut header = vec![0x6b, 0x91, 0x23, 0x45, 0, rest.len() as u8, protocol, 64];
    header.extend(
        [
            [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
        ]
        .concat(),
    );
    header.extend(rest);
    header
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let (port, len) = (port.to_be_bytes(), (8 + payload.len() as u16).to_be_bytes());
    [&[0, 99, port[0], port[1], len[0], len[1], 0, 0], payload].concat()
}

fn key(frame: &[u8], ingress: &Ingress) -> Key {
    Key::extract(frame, &Layers::parse(frame), ingress)
}

/// The key of a frame is exactly what is written: addresses of Ethernet are always the same.
fn check(frame: &[u8], written: &str) {
    check_with(frame, written, &Ingress::default());
}

fn check_with(frame: &[u8], written: &str, ingress: &Ingress) {
    let all = format!("dl_dst=02:00:00:00:00:01,dl_src=02:00:00:00:00:02,{written}");
    let wanted: Match = all.parse().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(key(frame, ingress), *wanted.key(), "{written}");
}

const TCP: &[u8] = &[0, 80, 1, 187, 0, 0, 0, 0, 0, 0, 0, 0, 0x51, 0x12, 0, 0, 0, 0, 0, 0];
const IP: &str = "nw_src=10.0.0.1,nw_dst=10.0.0.2,ip_dscp=46,nw_ecn=1,nw_ttl=64";
const IP6: &str = "ipv6_src=2001:db8::1,ipv6_dst=2001:db8::2,ip_dscp=46,nw_ecn=1,nw_ttl=64,ipv6_label=0x12345";

#[test]
fn ip_and_what_it_carries() {
    let frame = |rest: &[u8]| ethernet(&[8, 0], rest);
    check(&frame(&ipv4(6, 0, TCP)), &format!("tcp,{IP},tcp_src=80,tcp_dst=443,tcp_flags=0x112"));
    check(&frame(&ipv4(17, 0, &udp(53, b"data"))), &format!("udp,{IP},udp_src=99,udp_dst=53"));
    check(&frame(&ipv4(1, 0, &[8, 3, 0, 0, 0, 0, 0, 0])), &format!("icmp,{IP},icmp_type=8,icmp_code=3"));
    check(&frame(&ipv4(132, 0, &[0, 7, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0])), &format!("sctp,{IP},tp_src=7,tp_dst=9"));
    check(&frame(&ipv4(89, 0, &[1, 2, 3])), &format!("ip,nw_proto=89,{IP}"));
    check(&ethernet(&[0x86, 0xdd], &ipv6(6, TCP)), &format!("tcp6,{IP6},tcp_src=80,tcp_dst=443,tcp_flags=0x112"));
    let mut solicitation = vec![135, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0x80];
    solicitation.extend([0; 13]);
    solicitation.push(5);
    check(&ethernet(&[0x86, 0xdd], &ipv6(58, &solicitation)), &format!("icmp6,{IP6},icmp_type=135,nd_target=fe80::5"));
}

#[test]
fn fragments() {
    let first = ethernet(&[8, 0], &ipv4(17, 0x2000, &udp(53, b"more")));
    check(&first, &format!("udp,{IP},ip_frag=first,udp_src=99,udp_dst=53"));
    let later = ethernet(&[8, 0], &ipv4(17, 0x0001, &udp(53, b"more")));
    check(&later, &format!("udp,{IP},ip_frag=later"));
}

#[test]
fn tags() {
    let arp = [0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 7, 10, 0, 0, 7, 2, 0, 0, 0, 0, 8, 10, 0, 0, 8];
    let fields = "arp,arp_op=2,arp_spa=10.0.0.7,arp_tpa=10.0.0.8,arp_sha=02:00:00:00:00:07,arp_tha=02:00:00:00:00:08";
    check(&ethernet(&[8, 6], &arp), fields);
    check(&ethernet(&[0x80, 0x35], &arp), &format!("r{fields}"));
    check(&ethernet(&[0x81, 0, 0x60, 5, 8, 6], &arp), &format!("dl_vlan=5,dl_vlan_pcp=3,{fields}"));
    let double = ethernet(&[0x88, 0xa8, 0x10, 5, 0x81, 0, 0xe0, 6, 8, 6], &arp);
    check(&double, &format!("dl_vlan=5,inner_vlan=6,inner_vlan_pcp=7,{fields}"));
}

#[test]
fn what_is_wrapped_is_seen_once_it_is_unwrapped() {
    let ip = ipv4(17, 0, &udp(53, b""));
    let session = [&[0x11, 0, 0, 77, 0, ip.len() as u8 + 2, 0, 0x21], &ip[..]].concat();
    check(&ethernet(&[0x88, 0x64], &session), "pppoe,pppoe_sid=77");
    let labelled = [&[0, 1, 0x4b, 33], &ip[..]].concat();
    check(&ethernet(&[0x88, 0x47], &labelled), "mpls,mpls_label=20,mpls_tc=5,mpls_bos=1,mpls_ttl=33");
    check(&ethernet(&[0, 3], &[1, 2, 3]), &format!("dl_type={NO_ETHER_TYPE}"));
}

#[test]
fn tunnels() {
    let inner = ethernet(&[8, 0], &ipv4(6, 0, TCP));
    let vxlan = [&[8, 0, 0, 0, 0, 0x13, 0x88, 0], &inner[..]].concat();
    let frame = ethernet(&[8, 0], &ipv4(17, 0, &udp(4789, &vxlan)));
    check(&frame, &format!("udp,{IP},udp_src=99,udp_dst=4789,tun_id=5000"));
    let layers = Layers::parse(&frame).parse_inner(&frame).unwrap();
    let ingress =
        Ingress { port: 3, queue: 4, tunnel: Some(crate::Tunnel { id: 5000, ..Default::default() }), quic: None };
    let taken_out = format!("in_port=3,in_queue=4,tun_id=5000,tcp,{IP},tcp_src=80,tcp_dst=443,tcp_flags=0x112");
    assert_eq!(Key::extract(&frame, &layers, &ingress), key(&inner, &ingress));
    check_with(&inner, &taken_out, &ingress);
}

#[test]
fn connection_ids() {
    let base = format!("udp,{IP},udp_src=99,udp_dst=443");
    let frame = |payload: &[u8]| ethernet(&[8, 0], &ipv4(17, 0, &udp(443, payload)));
    let initial = [0xc3, 0, 0, 0, 1, 4, 0xab, 0xcd, 0xef, 1, 0, 0, 0];
    let quic = |len| Ingress { quic: Some(len), ..Ingress::default() };
    check_with(&frame(&initial), &format!("{base},quic_cid=0xabcdef01"), &quic(0));
    check(&frame(&initial), &base);
    let short = [0x43, 0xab, 0xcd, 0xef, 1, 2, 3];
    check_with(&frame(&short), &format!("{base},quic_cid=0xabcd"), &quic(2));
    let unknown = key(&frame(&short), &quic(0));
    assert_eq!(unknown.get(Field::QuicCid), Wide([0xabcd_ef01_0203_0000, 0, 0]));
    // A rule on the first bytes of an id matches without its length.
    assert!(format!("{base},quic_cid=0xabcd/0xffff").parse::<Match>().unwrap().covers(&unknown));
    for wrong in [&short[..1], &[], &[0xc3, 0, 0, 0, 1, 21], &[0xc3, 0, 0]] {
        assert_eq!(key(&frame(wrong), &quic(8)).get(Field::QuicCid), Wide::ZERO, "{wrong:?}");
    }
}

proptest! {
    /// Of any bytes the key can be taken, and what is in it can be written.
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..120), start in 0usize..6, quic: Option<u8>) {
        let starts: [&[u8]; 6] = [&[], &[8, 0], &[0x86, 0xdd], &[8, 6], &[0x81, 0, 0, 1, 8, 0], &[0x88, 0x47]];
        let frame = if start == 0 { bytes } else { ethernet(starts[start], &bytes) };
        let ingress = Ingress { quic, ..Ingress::default() };
        let layers = Layers::parse(&frame);
        let key = Key::extract(&frame, &layers, &ingress);
        prop_assert!(Match::of(&key).to_string().parse::<Match>().is_ok());
        if let Some(inner) = layers.parse_inner(&frame) {
            Key::extract(&frame, &inner, &ingress);
        }
    }
}
