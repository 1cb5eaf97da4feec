//! Every packet of every capture that there is, through the way in and the way out: none is let in by the wrong key, none panics.

use std::path::PathBuf;

use millrace_ipsec::algorithm::Keys;
use millrace_ipsec::association::{Arrival, Association, Encapsulation, Id, Parameters};
use millrace_ipsec::database::{Change, Database};
use millrace_ipsec::refusal::Refusal;
use millrace_ipsec::selector::Flow;

const NOW: u64 = 1_700_000_000;
const ROOM: usize = 160;

fn folder() -> PathBuf {
    let usual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/captures");
    std::env::var_os("MILLRACE_CAPTURES").map_or_else(|| usual.into(), PathBuf::from)
}

/// What follows the header of an Ethernet frame with IP, of each packet of a file in the format of libpcap.
fn packets(bytes: &[u8]) -> Vec<&[u8]> {
    let little = bytes.starts_with(&[0xd4, 0xc3, 0xb2, 0xa1]);
    if !little && !bytes.starts_with(&[0xa1, 0xb2, 0xc3, 0xd4]) {
        return Vec::new();
    }
    let number = |at: usize| {
        let bytes: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) } as usize)
    };
    let (mut at, mut packets) = (24, Vec::new());
    while let Some(len) = number(at + 8) {
        let Some(frame) = bytes.get(at + 16..at + 16 + len) else { break };
        at += 16 + len;
        if let [_, _, _, _, _, _, _, _, _, _, _, _, 8, 0, packet @ ..] = frame {
            packets.push(packet);
        } else if let [_, _, _, _, _, _, _, _, _, _, _, _, 0x86, 0xdd, packet @ ..] = frame {
            packets.push(packet);
        }
    }
    packets
}

fn in_room(packet: &[u8]) -> Vec<u8> {
    [&[0; ROOM], packet, &[0; ROOM]].concat()
}

/// Finds ESP, and tries it with a key that is not the right one.
fn arrives(packet: &[u8]) -> bool {
    let Ok(Some(arrival)) = Arrival::find(packet, 4500) else { return false };
    let id = Id { destination: arrival.header.destination, spi: arrival.spi(packet).max(256) };
    let keys = Keys::aead("rfc4106(gcm(aes))", &[9; 20], 128).expect("they fit");
    let mut parameters = Parameters::tunnel(arrival.header.source, id, keys);
    parameters.encapsulation =
        arrival.udp_source.map(|source_port| Encapsulation { source_port, destination_port: 4500 });
    let mut database = Database::new();
    database.apply(Change::Associate(Box::new(parameters)), NOW).expect("it can be made");
    let refusal = database.open(&mut in_room(packet), ROOM..ROOM + packet.len(), 0, NOW).expect_err("another key");
    let expected = [Refusal::Integrity, Refusal::Truncated, Refusal::TooOld, Refusal::NoAssociation];
    assert!(expected.contains(&refusal), "{refusal:?}");
    true
}

#[test]
fn all_captures() {
    let Ok(files) = std::fs::read_dir(folder()) else {
        eprintln!("there are no captures in {}", folder().display());
        return;
    };
    let keys = Keys::aead("rfc7539esp(chacha20,poly1305)", &[9; 36], 128).expect("they fit");
    let id = Id { destination: [192, 0, 2, 2].into(), spi: 0x1000 };
    let parameters = Parameters::tunnel([192, 0, 2, 1].into(), id, keys);
    let mut here = Association::new(parameters.clone(), NOW).expect("it can be made");
    let mut there = Association::new(parameters, NOW).expect("it can be made");
    let (mut esp, mut sealed, mut of_sunrise) = (0, 0, 0);
    for file in files.flatten() {
        let bytes = std::fs::read(file.path()).unwrap_or_default();
        for packet in packets(&bytes) {
            let found = u64::from(arrives(packet));
            esp += found;
            of_sunrise += if file.file_name().to_string_lossy().starts_with("02-sunrise") { found } else { 0 };
            let mut buffer = in_room(packet);
            let Ok(place) = here.seal(&mut buffer, ROOM..ROOM + packet.len(), NOW) else { continue };
            let arrival = Arrival::find(&buffer[place.clone()], 4500).expect("it was made here").expect("it is ESP");
            match there.open(&mut buffer, place, &arrival, NOW) {
                Ok(opened) => {
                    assert_eq!(buffer[opened.packet.clone()], packet[..opened.packet.len()]);
                    assert_eq!(Flow::of(packet), Ok(opened.flow));
                    sealed += 1;
                }
                Err(refusal) => panic!("{refusal:?} of {packet:02x?}"),
            }
        }
    }
    println!("{esp} packets with ESP, {sealed} there and back");
    assert!(of_sunrise > 0 && sealed > 1000, "{of_sunrise} {sealed}");
}
