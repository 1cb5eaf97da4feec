//! The examples of `docs/spec/slurpoe.md`, whose bytes were worked out by another program: they are what they say, and
//! what we build.

use super::super::{Format, Prepared, encode, parse};
use super::build::{HERE, THERE, frame, path};
use std::collections::BTreeMap;

const DOCUMENT: &str = include_str!("../../../../../docs/spec/slurpoe.md");

/// What an example says of itself, and its bytes.
fn examples() -> Vec<(BTreeMap<&'static str, u64>, Vec<u8>)> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    };
    let blocks = DOCUMENT.split("```slurpoe ").skip(1).map(|block| block.split("```").next().unwrap());
    let one = |block: &'static str| {
        let (says, hex) = block.split_once('\n').unwrap();
        let says = says.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        (says.map(|(name, value)| (name, number(value))).collect(), digits.chunks(2).map(byte).collect())
    };
    blocks.map(one).collect()
}

#[test]
fn examples_are_what_they_say() {
    let examples = examples();
    assert_eq!(examples.len(), 4);
    for (says, bytes) in &examples {
        let (packet, from) = parse(bytes).unwrap();
        let headers = packet.headers;
        let found = BTreeMap::from([
            ("opcode", encode(headers.service, headers.opcode).unwrap().into()),
            ("destination", headers.destination.value().into()),
            ("source", from.source.unwrap().value().into()),
            ("psn", headers.psn.value().into()),
            ("payload", packet.payload.len() as u64),
            ("checked", from.is_checked.into()),
        ]);
        assert_eq!(found, *says);
        assert_eq!((from.back.destination_mac, from.back.source_mac), (HERE, THERE));
        let prepared = Prepared::new(&path(Format::Slurpoe, false)).unwrap().with_checksum(from.is_checked);
        let mut built = vec![0; prepared.frame_len(&headers, packet.payload.len()).unwrap()];
        let mut open = prepared.open(from.source.unwrap(), &headers, packet.payload.len(), &mut built).unwrap();
        open.payload().copy_from_slice(packet.payload);
        open.close();
        assert_eq!(built, *bytes);
    }
}

/// Payload is where the page says that it is.
#[test]
fn payload_begins_at_a_multiple_of_eight() {
    let prepared = Prepared::new(&path(Format::Slurpoe, false)).unwrap();
    for opcode in super::build::opcodes() {
        let headers = super::build::headers(opcode, 0).unwrap();
        let bytes = frame(&prepared, &headers, &[0xee; 64]);
        let at = bytes.windows(64).position(|window| window == [0xee; 64]).unwrap();
        assert!(at >= 32 && at.is_multiple_of(8), "{opcode:#x}: {at}");
    }
}
