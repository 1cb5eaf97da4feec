//! What the rules make of packets in user space against what they make of them in the kernel: the same packets through both, byte by byte.

mod net;

use millrace_router::engine::{Carrier, Engine, How, Key, Mode, State};
use net::{Net, run};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

const REDIRECT: u32 = 4;

fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// What may be different in packets of one flow.
#[derive(Debug, Clone)]
struct Variety {
    ttl: u8,
    ecn: u8,
    id: u16,
    check: u16,
    payload: Vec<u8>,
}

fn varieties() -> impl Strategy<Value = Variety> {
    let payload = prop::collection::vec(any::<u8>(), 0..1300);
    (2_u8..=255, 0_u8..4, any::<u16>(), prop_oneof![Just(0), Just(0xffff), any::<u16>()], payload)
        .prop_map(|(ttl, ecn, id, check, payload)| Variety { ttl, ecn, id, check, payload })
}

/// A packet of a flow: TCP with ACK alone, UDP, or a request for an echo.
fn packet(key: &Key, with: &Variety) -> Vec<u8> {
    let mut l4 = match key.protocol {
        1 => [&[8, 0, 0, 0][..], &key.source_port.to_be_bytes(), &with.id.to_be_bytes()].concat(),
        58 => [&[128, 0, 0, 0][..], &key.source_port.to_be_bytes(), &with.id.to_be_bytes()].concat(),
        _ => [key.source_port.to_be_bytes(), key.destination_port.to_be_bytes()].concat(),
    };
    match key.protocol {
        6 => l4.extend_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x10, 1, 1, 0, 0, 0, 0]),
        17 => l4.extend_from_slice(&[&(8 + with.payload.len() as u16).to_be_bytes()[..], &[0, 0]].concat()),
        _ => {}
    }
    let at = match key.protocol {
        6 => 16,
        17 => 6,
        _ => 2,
    };
    l4[at..at + 2].copy_from_slice(&with.check.to_be_bytes());
    l4.extend_from_slice(&with.payload);
    let (len, tos) = (l4.len() as u16, key.dscp << 2 | with.ecn);
    let mut head = match (key.source, key.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut head = vec![0x45, tos, 0, 0, 0, 0, 0x40, 0, with.ttl, key.protocol, 0, 0];
            head[2..4].copy_from_slice(&(len + 20).to_be_bytes());
            head[4..6].copy_from_slice(&with.id.to_be_bytes());
            head.extend_from_slice(&source.octets());
            head.extend_from_slice(&destination.octets());
            let check = !sum(&head);
            head[10..12].copy_from_slice(&check.to_be_bytes());
            head
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut head = vec![0x60 | tos >> 4, tos << 4 | 5, 6, 7, 0, 0, key.protocol, with.ttl];
            head[4..6].copy_from_slice(&len.to_be_bytes());
            head.extend_from_slice(&source.octets());
            head.extend_from_slice(&destination.octets());
            head
        }
        _ => unreachable!("both addresses of a flow are of one version"),
    };
    head.extend_from_slice(&l4);
    head
}

fn framed(mac: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
    [&mac[..], &[2, 0, 0, 0, 0, 9], &kind, packet].concat()
}

/// Many packets of a flow that comes by `input` through both.
fn compare(engine: &Engine, carrier: &Carrier, input: u32, mac: [u8; 6], key: &Key) {
    let mut runner = TestRunner::new(Config { cases: 200, ..Config::default() });
    let result = runner.run(&varieties(), |with| {
        let mut ours = packet(key, &with);
        let kernel = engine.try_frame(input, &framed(mac, &ours)).unwrap();
        prop_assert_eq!(kernel.verdict, REDIRECT);
        let front = carrier.carry(input, &mut ours, engine.jiffies().unwrap()).expect("it has a rule");
        prop_assert_eq!(&[front.bytes(), &ours[..front.size]].concat(), &kernel.frame);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{key:?}: {error}"));
}

fn key(input: u32, v6: bool, protocol: u8, dscp: u8) -> Key {
    let (source, destination) = if v6 { ("fd01::2", "fd02::2") } else { ("10.1.0.2", "10.2.0.2") };
    let [source, destination] = [source, destination].map(|text| text.parse().unwrap());
    // Of a request for an echo the identifier, and type and code.
    let ports = match protocol {
        1 => (77, 0x0800),
        58 => (77, 0x8000),
        _ => (4000, 5000),
    };
    Key { input, source, destination, source_port: ports.0, destination_port: ports.1, protocol, dscp }
}

#[test]
fn routed_packets_are_the_same() {
    let Some(net) = Net::new() else { return };
    let (engine, mac) = (net.engine(How::Xdp, Mode::Route), net::mac("left"));
    let carrier = engine.carrier().unwrap();
    for (v6, protocol, dscp) in
        [(false, 17, 0), (false, 6, 46), (false, 1, 0), (true, 17, 0), (true, 6, 63), (true, 58, 5)]
    {
        let key = key(net.left_index, v6, protocol, dscp);
        let with = Variety { ttl: 64, ecn: 1, id: 1, check: 0x1234, payload: vec![1; 30] };
        let mut fresh = packet(&key, &with);
        let jiffies = engine.jiffies().unwrap();
        assert!(carrier.carry(key.input, &mut fresh, jiffies).is_none(), "there is no rule yet");
        engine.compile(key.input, mac, [&key]).unwrap();
        assert!(carrier.carry(key.input, &mut fresh, jiffies).is_none(), "it is on trial");
        let rule = engine.find(&key).unwrap_or_else(|| panic!("no rule was made of {key:?}"));
        assert!(engine.trust(&rule));
        compare(&engine, &carrier, key.input, mac, &key);
        let counted = engine.find(&key).unwrap().packets;
        assert!(counted >= 400, "both have counted: {counted}");

        // What is not plain is left to the kernel as it came.
        let last = packet(&key, &Variety { ttl: 1, ..with.clone() });
        let mut odd = vec![last];
        if protocol == 6 {
            let mut syn = packet(&key, &with);
            let at = if v6 { 53 } else { 33 };
            syn[at] |= 2;
            odd.push(syn);
        }
        if !v6 {
            let mut fragment = packet(&key, &with);
            fragment[6] = 0x20;
            let check = !sum(&[&fragment[..10], &[0, 0], &fragment[12..20]].concat());
            fragment[10..12].copy_from_slice(&check.to_be_bytes());
            let mut wrong = packet(&key, &with);
            wrong[10] ^= 1;
            odd.extend([fragment, wrong]);
        }
        odd.push(packet(&key, &with)[..40].to_vec());
        for packet in odd {
            let mut after = packet.clone();
            assert!(carrier.carry(key.input, &mut after, jiffies).is_none(), "{packet:?}");
            assert_eq!(after, packet);
        }
        // Something has changed: it has to be asked again.
        engine.bump(millrace_router::engine::Change::Routes);
        let mut later = packet(&key, &with);
        assert!(carrier.carry(key.input, &mut later, jiffies).is_none(), "its rule is out of date");
    }
}

#[test]
fn translated_packets_are_the_same() {
    let Some(net) = Net::new() else { return };
    run(
        "nft add table ip nat; nft 'add chain ip nat post { type nat hook postrouting priority 100; }'; nft add rule ip nat post oifname right masquerade",
    );
    let engine = net.engine(How::Xdp, Mode::Conntrack);
    let carrier = engine.carrier().unwrap();
    let right = net.right.act(|| UdpSocket::bind("10.2.0.2:5001").unwrap());
    let left = net.left.act(|| UdpSocket::bind("10.1.0.2:4000").unwrap());
    for _ in 0..20 {
        left.send_to(b"there", "10.2.0.2:5001").unwrap();
        let (_, from) = right.recv_from(&mut [0; 100]).unwrap();
        right.send_to(b"and back", from).unwrap();
        left.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        left.recv_from(&mut [0; 100]).unwrap();
    }
    let active: Vec<_> = engine.rules().filter(|rule| rule.state == State::Active).collect();
    assert_eq!(active.len(), 2, "one for each direction");
    for rule in active {
        assert_ne!((rule.key.source, rule.key.destination), (rule.new_source, rule.new_destination));
        let mac = net::mac(if rule.key.input == net.left_index { "left" } else { "right" });
        compare(&engine, &carrier, rule.key.input, mac, &rule.key);
    }
}
