use std::collections::HashSet;
use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

fn plan(version: Version, flows: u32) -> Plan {
    Plan { flows, addresses: Addresses::default_of(version), longest: 3000, seed: 0x1234_5678 }
}

fn probe(flow: u32, sequence: u32, nanos: u64) -> Probe {
    Probe { flow, sequence, stamp: Stamp::from_nanos(nanos) }
}

/// Whether the checksums are right, by another road than the one that wrote them.
fn checksums_are_right(frame: &[u8]) -> bool {
    let (pseudo, udp) = if frame[12..14] == [0x08, 0x00] {
        let udp = &frame[34..];
        assert_eq!(usize::from(u16::from_be_bytes([frame[16], frame[17]])), frame.len() - 14);
        assert_eq!(Sum::of(&frame[14..34]).folded(), 0xffff, "the header's checksum");
        ([&frame[26..34], &[0, 17], &(udp.len() as u16).to_be_bytes()].concat(), udp)
    } else {
        let udp = &frame[54..];
        assert_eq!(usize::from(u16::from_be_bytes([frame[18], frame[19]])), frame.len() - 54);
        ([&frame[22..54], &(udp.len() as u32).to_be_bytes(), &[0, 0, 0, 17]].concat(), udp)
    };
    assert_eq!(usize::from(u16::from_be_bytes([udp[4], udp[5]])), udp.len());
    assert_ne!(udp[6..8], [0, 0], "a checksum that says that there is none");
    Sum::of(&[&pseudo[..], udp].concat()).folded() == 0xffff
}

#[test]
fn golden_frame() {
    let addresses = Addresses {
        source: "10.0.0.1".parse().unwrap(),
        destination: "10.0.0.2".parse().unwrap(),
        ..Addresses::default_of(Version::V4)
    };
    let probes = Probes::new(&Plan { addresses, seed: 0, ..plan(Version::V4, 1) }).unwrap();
    let mut frame = [0xee; 60];
    assert!(probes.write(&mut frame, probe(0, 0x0102_0304, 0x1122_3344_5566_7788)));
    // The checksums are those that another program worked out, the tag the end of the first number of
    // SplitMix64 from 0 (0xe220a8397b1dcdaf).
    #[rustfmt::skip]
    assert_eq!(frame, [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00,
        0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0x26, 0xbd, 10, 0, 0, 1, 10, 0, 0, 2,
        4, 0, 4, 0, 0, 26, 0x00, 0xad,
        0xcd, 0xaf, 0, 0, 0, 0, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
    ]);
}

#[test]
fn flows_differ_and_follow_from_the_seed() {
    for version in [Version::V4, Version::V6] {
        let of = |plan: &Plan| {
            let probes = Probes::new(plan).unwrap();
            let mut frame = vec![0; 100];
            let headers = |flow| {
                assert!(probes.write(&mut frame, probe(flow, 0, 0)));
                // Addresses and ports.
                frame[26..version.headers() - 4].to_vec()
            };
            (0..plan.flows).map(headers).collect::<Vec<_>>()
        };
        let plan = plan(version, 70_000);
        let flows = of(&plan);
        assert_eq!(flows.iter().collect::<HashSet<_>>().len(), flows.len(), "{version:?}: flows are the same");
        assert_eq!(flows, of(&plan));
        assert_ne!(flows, of(&Plan { seed: 2, ..plan }));
    }
}

#[test]
fn a_network_gives_each_flow_an_address_of_its_own() {
    let network: Endpoint = "10.1.0.0/16".parse().unwrap();
    let addresses = Addresses { source: network, ..Addresses::default_of(Version::V4) };
    let probes = Probes::new(&Plan { addresses, ..plan(Version::V4, 500) }).unwrap();
    let mut frame = [0; 60];
    let mut sources = HashSet::new();
    for flow in 0..500 {
        assert!(probes.write(&mut frame, probe(flow, 0, 0)));
        assert_eq!(frame[26..28], [10, 1]);
        sources.insert([frame[28], frame[29]]);
    }
    assert!(sources.len() > 400, "{} addresses", sources.len());
    let alone: Endpoint = "2001:db8::7".parse().unwrap();
    assert_eq!((alone.ip, alone.prefix), ("2001:db8::7".parse::<IpAddr>().unwrap(), 128));
}

#[test]
fn addresses_that_are_none_are_refused() {
    for text in ["", "10.0.0", "10.0.0.1/33", "10.0.0.1/", "::1/129", "10.0.0.1/x", "host"] {
        assert!(text.parse::<Endpoint>().is_err(), "{text}");
    }
    for text in ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "2:0:0:0:0:1", "0g:00:00:00:00:00", "+2:00:00:00:00:01"]
    {
        assert!(text.parse::<MacAddress>().is_err(), "{text}");
    }
    assert_eq!("02:AB:00:00:00:01".parse::<MacAddress>().unwrap().to_string(), "02:ab:00:00:00:01");
}

#[test]
fn plans_that_cannot_be_carried_out_are_refused() {
    let mixed = Addresses { source: "::1".parse().unwrap(), ..Addresses::default_of(Version::V4) };
    for bad in [
        Plan { addresses: mixed, ..plan(Version::V4, 1) },
        plan(Version::V4, 0),
        plan(Version::V4, MAX_FLOWS + 1),
        Plan { longest: 59, ..plan(Version::V4, 1) },
        Plan { longest: 79, ..plan(Version::V6, 1) },
        Plan { longest: 65_536, ..plan(Version::V4, 1) },
    ] {
        assert!(Probes::new(&bad).is_err(), "{bad:?}");
    }
}

#[test]
fn what_cannot_be_written_is_left_alone() {
    let probes = Probes::new(&plan(Version::V4, 2)).unwrap();
    for (len, flow) in [(0, 0), (59, 0), (3100, 0), (64, 2)] {
        let mut frame = vec![0xee; len];
        assert!(!probes.write(&mut frame, probe(flow, 0, 0)), "{len} bytes, flow {flow}");
        assert!(frame.iter().all(|byte| *byte == 0xee));
    }
}

#[test]
fn probes_of_another_run_and_other_frames_are_neither_probes_nor_damaged() {
    let probes = Probes::new(&plan(Version::V4, 2)).unwrap();
    let others = Probes::new(&Plan { seed: 99, ..plan(Version::V4, 2) }).unwrap();
    let six = Probes::new(&plan(Version::V6, 2)).unwrap();
    let mut frame = [0; 100];
    assert_eq!(probes.read(&frame), Reading::Other);
    assert_eq!(probes.read(&[]), Reading::Other);
    others.write(&mut frame, probe(1, 2, 3));
    assert_eq!(probes.read(&frame), Reading::Other);
    six.write(&mut frame, probe(1, 2, 3));
    assert_eq!((probes.read(&frame), six.read(&frame)), (Reading::Other, Reading::Probe(probe(1, 2, 3))));
}

#[test]
fn a_checksum_may_be_left_out_with_ipv4_alone() {
    for (version, wanted) in [(Version::V4, Reading::Probe(probe(1, 2, 3))), (Version::V6, Reading::Corrupt)] {
        let probes = Probes::new(&plan(version, 2)).unwrap();
        let mut frame = [0; 90];
        probes.write(&mut frame, probe(1, 2, 3));
        frame[version.headers() - 2..version.headers()].fill(0);
        assert_eq!(probes.read(&frame), wanted, "{version:?}");
    }
}

fn version() -> impl Strategy<Value = Version> {
    prop_oneof![Just(Version::V4), Just(Version::V6)]
}

proptest! {
    #[test]
    fn what_is_written_is_right_and_is_read(version in version(), len in 80..3000usize, flow in 0..50u32,
        sequence: u32, nanos: u64, padding in 0..20usize)
    {
        let probes = Probes::new(&plan(version, 50)).unwrap();
        let mut frame = vec![0xee; len];
        let sent = probe(flow, sequence, nanos);
        prop_assert!(probes.write(&mut frame, sent));
        prop_assert!(checksums_are_right(&frame));
        prop_assert_eq!(probes.read(&frame), Reading::Probe(sent));
        // A network may add padding, and take time to live away.
        frame.resize(len + padding, 0);
        frame[22] = frame[22].wrapping_sub(1);
        if version == Version::V4 {
            prop_assert_eq!(probes.read(&frame), Reading::Probe(sent));
        }
    }

    #[test]
    fn any_flipped_bit_of_the_datagram_is_seen(version in version(), len in 80..300usize, at: prop::sample::Index,
        bit in 0..8u8)
    {
        let probes = Probes::new(&plan(version, 50)).unwrap();
        let mut frame = vec![0; len];
        probes.write(&mut frame, probe(5, 6, 7));
        let from = version.headers() - 8;
        let at = from + at.index(len - from);
        frame[at] ^= 1 << bit;
        let read = probes.read(&frame);
        prop_assert!(!matches!(read, Reading::Probe(_)), "byte {}: {:?}", at, read);
    }

    #[test]
    fn nothing_that_comes_makes_it_panic(version in version(), mut frame in prop::collection::vec(any::<u8>(), 0..200),
        honest in 0..100usize)
    {
        let probes = Probes::new(&plan(version, 50)).unwrap();
        let mut genuine = vec![0; 200];
        probes.write(&mut genuine, probe(5, 6, 7));
        let honest = honest.min(frame.len());
        frame[..honest].copy_from_slice(&genuine[..honest]);
        let _ = probes.read(&frame);
    }
}
