//! Captures of other switches, which speak OpenFlow 1.0: each message is refused by its version, as section 7.4.4.2 has it, but for those that
//! are read whatever version they have.

use millrace_agent::wire::error::request;
use millrace_agent::wire::{Message, first};
use pcap_file::pcap::PcapReader;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/captures");
    std::env::var_os("MILLRACE_CAPTURES").map_or_else(beside, PathBuf::from)
}

/// What each end has sent, by addresses and ports, without what was sent twice.
fn streams(path: &Path) -> Vec<Vec<u8>> {
    let mut streams: BTreeMap<Vec<u8>, (Option<u32>, Vec<u8>)> = BTreeMap::new();
    let Ok(mut reader) = File::open(path).map_err(|_| ()).and_then(|file| PcapReader::new(file).map_err(|_| ())) else {
        return Vec::new();
    };
    while let Some(Ok(packet)) = reader.next_packet() {
        let frame = &packet.data;
        if frame.len() < 54 || frame[12..14] != [8, 0] || frame[23] != 6 {
            continue;
        }
        let ip_end = (14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]))).min(frame.len());
        let tcp = 14 + usize::from(frame[14] & 15) * 4;
        let Some(header) = frame.get(tcp..tcp + 20) else { continue };
        let payload = frame.get(tcp + usize::from(header[12] >> 4) * 4..ip_end).unwrap_or_default();
        let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let key = [&frame[26..34], &header[..4]].concat();
        let (next, bytes) = streams.entry(key).or_default();
        if !payload.is_empty() && next.is_none_or(|next| next == sequence) {
            *next = Some(sequence.wrapping_add(payload.len() as u32));
            bytes.extend_from_slice(payload);
        }
    }
    streams.into_values().map(|(_, bytes)| bytes).collect()
}

/// Goes through what one end has sent; how many messages are refused by their version.
fn refused(name: &str, stream: &[u8]) -> usize {
    let (mut rest, mut refused) = (stream, 0);
    while let Ok(Some((header, message))) = first(rest) {
        rest = &rest[message.len()..];
        match Message::decode(&header, message) {
            Ok(Message::Hello(hello)) => assert!(!hello.agrees(header.version), "{name}"),
            Ok(Message::Error(_)) => {}
            Ok(other) => panic!("{name}: {other:?}"),
            // Those of their errors and hellos that are none of ours either.
            Err(refusal) if header.kind <= 1 => assert_eq!(refusal, request::BAD_LEN, "{name}"),
            Err(refusal) => {
                assert_eq!(refusal, request::BAD_VERSION, "{name}");
                refused += 1;
            }
        }
    }
    refused
}

#[test]
fn messages_of_other_versions_are_refused_by_their_version() {
    // A greeting, an echo, a question for features, a change of entries: of versions 1.0, 1.1 and 1.2.
    let message = |version: u8, kind: u8, len: u8| {
        [&[version, kind, 0, len, 0, 0, 0, 9][..], &vec![0; usize::from(len) - 8]].concat()
    };
    for version in [1, 2, 3] {
        let stream = [(0, 8), (2, 12), (5, 8), (14, 72)].map(|(kind, len)| message(version, kind, len)).concat();
        assert_eq!(refused("made here", &stream), 3, "version {version}");
    }
    let Ok(folder) = std::fs::read_dir(folder()) else { return println!("skipped: there are no captures") };
    let paths = folder.flatten().map(|entry| entry.path());
    let of_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("of1") && name.ends_with(".pcap")
    };
    let captured = paths.filter(of_ours).map(|path| {
        let name = path.display().to_string();
        streams(&path).iter().map(|stream| refused(&name, stream)).sum::<usize>()
    });
    let captured: usize = captured.sum();
    assert!(captured > 50, "only {captured} messages");
}
