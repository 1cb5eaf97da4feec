//! There and back, and damage on the way.

use super::super::{From, Headers, Packet, Path, Prepared, Reason, parse};
use super::build::{frame, headers, opcodes, paths, source};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// One of all packets in one of all formats, with or without CRC-32C where that is a choice.
fn any_frame() -> impl Strategy<Value = (Path, Headers, Vec<u8>, Vec<u8>)> {
    let all: Vec<u8> = opcodes().collect();
    let opcode = prop::sample::select(all);
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        prop::collection::vec(any::<u8>(), 0..300),
        prop::collection::vec(any::<u8>(), 4090..=4096),
    ];
    (0..4usize, opcode, any::<u64>(), payload, any::<bool>()).prop_map(|(which, opcode, number, payload, checked)| {
        let path = paths()[which];
        let headers = headers(opcode, number).unwrap();
        let prepared = Prepared::new(&path).unwrap().with_checksum(checked);
        let bytes = frame(&prepared, &headers, &payload);
        (path, headers, payload, bytes)
    })
}

/// The way back of a path.
fn back(path: &Path) -> Path {
    Path {
        source_mac: path.destination_mac,
        destination_mac: path.source_mac,
        source: path.destination,
        destination: path.source,
        ..*path
    }
}

/// A packet without the marks that anybody on the way may set.
fn unmarked<'a>(packet: &Packet<'a>) -> Packet<'a> {
    Packet { headers: Headers { fecn_becn: (false, false), ..packet.headers }, ..*packet }
}

/// Whether a check sum covers the frame.
fn is_covered(path: &Path, bytes: &[u8]) -> bool {
    path.format != super::super::Format::Slurpoe || bytes[18] & 1 != 0
}

/// What of a frame may change without a check sum that notices it: addresses of Ethernet, what routers change, what
/// says nothing, and what Ethernet has added.
fn same_sender(one: &From<'_>, other: &From<'_>) -> bool {
    let strip = |path: &Path| {
        let (source_mac, destination_mac) = ([0; 6], [0; 6]);
        Path { source_mac, destination_mac, hop_limit: 0, traffic_class: 0, flow_label: 0, ..*path }
    };
    strip(&one.back) == strip(&other.back) && one.source == other.source && one.tag == other.tag
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_was_built_is_parsed((path, headers, payload, bytes) in any_frame()) {
        let (packet, from) = parse(&bytes).unwrap();
        prop_assert_eq!(packet, Packet { headers, payload: &payload });
        prop_assert_eq!(from.back, back(&path));
        let says_source = headers.deth.is_some() || path.format == super::super::Format::Slurpoe;
        prop_assert_eq!(from.source, says_source.then_some(source(&headers)));
        prop_assert!(bytes.len() >= 60);
        // A tag changes nothing else, and nor does what a card has added behind it.
        let tagged = [&bytes[..12], &[0x81, 0, 0x20, 5], &bytes[12..], &[1; 9]].concat();
        let (again, behind_tag) = parse(&tagged).unwrap();
        prop_assert_eq!(again, packet);
        prop_assert_eq!((behind_tag.back, behind_tag.tag.map(|tag| tag.id())), (from.back, Some(5)));
        let twice = [&tagged[..12], &[0x88, 0xa8, 0, 1], &tagged[12..]].concat();
        prop_assert_eq!(parse(&twice).unwrap_err(), Reason::Tags);
    }

    #[test]
    fn every_truncation_is_an_error_or_cuts_what_ethernet_has_added((_, headers, payload, bytes) in any_frame()) {
        let step = 1 + bytes.len() / 256;
        for len in (0..bytes.len()).step_by(step).chain(bytes.len() - 8..bytes.len()) {
            if let Ok((packet, _)) = parse(&bytes[..len]) {
                prop_assert_eq!(packet, Packet { headers, payload: &payload });
                prop_assert!(bytes[len..].iter().all(|byte| *byte == 0) && bytes.len() == 60);
            }
        }
    }

    #[test]
    fn every_bit_that_is_changed_is_noticed_or_says_the_same((path, _, _, bytes) in any_frame()) {
        let (packet, from) = parse(&bytes).unwrap();
        let bits = bytes.len() * 8;
        // All of the headers and of short frames; of long ones, one bit in every so many.
        for bit in (0..bits.min(1200)).chain((bits.min(1200)..bits).step_by(41)) {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let Ok((other, sender)) = parse(&damaged) else { continue };
            if !is_covered(&path, &bytes) {
                continue;
            }
            prop_assert_eq!(unmarked(&other), unmarked(&packet), "bit {}", bit);
            if path.format == super::super::Format::Slurpoe {
                // Without its flag the sum is not looked at: who wants one looks at `is_checked`.
                prop_assert_eq!(From { is_checked: true, ..sender }, from, "bit {}", bit);
            } else {
                prop_assert!(same_sender(&sender, &from), "bit {}: {:?}", bit, sender);
            }
        }
    }

    #[test]
    fn anything_is_parsed_without_panic(
        (_, _, _, bytes) in any_frame(),
        changes in prop::collection::vec((0..120usize, any::<u8>()), 1..6),
    ) {
        let mut bytes = bytes;
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let _ = parse(&bytes);
    }
}

/// A frame without any check sum is at the mercy of the wire, but only there.
#[test]
fn only_slurpoe_goes_without() {
    let reasons: BTreeSet<_> = paths()
        .into_iter()
        .map(|path| {
            let headers = headers(0x04, 0).unwrap();
            let mut bytes = frame(&Prepared::new(&path).unwrap(), &headers, &[7; 64]);
            let at = bytes.len() - 20;
            bytes[at] ^= 1;
            parse(&bytes).map_err(Reason::name).map(|_| path.format == super::super::Format::Slurpoe)
        })
        .collect();
    assert_eq!(reasons, BTreeSet::from([Ok(true), Err("icrc")]));
}
