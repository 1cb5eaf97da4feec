//! Other programs say what our frames are: `scapy` works out every invariant CRC, `tshark` reads every field.

use super::super::{Headers, Opcode, Path, Prepared};
use super::build::{frame, headers, opcodes, paths};
use std::io::Write;
use std::process::{Command, Stdio};

/// Frames of RoCE of every opcode, in all three encapsulations, with payloads of many lengths; each with its headers.
fn all() -> Vec<(Path, Headers, Vec<u8>)> {
    let mut number = 0x9e37_79b9_7f4a_7c15_u64;
    let mut found = Vec::new();
    for path in &paths()[..3] {
        let prepared = Prepared::new(path).unwrap();
        for opcode in opcodes() {
            for len in [0, 1, 2, 3, 64, 4096] {
                number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let headers = headers(opcode, number).unwrap();
                // No bytes that `tshark` could take for a protocol of its own.
                let payload: Vec<u8> = (0..len).map(|at| 0x50 | at as u8 & 7).collect();
                found.push((*path, headers, frame(&prepared, &headers, &payload)));
            }
        }
    }
    found
}

/// Python of Debian, whose packages have scapy; another one may come before it on the path.
const PYTHON: &str = "/usr/bin/python3";

#[test]
fn every_invariant_crc_is_what_scapy_says() {
    let has_scapy = Command::new(PYTHON).args(["-c", "import scapy.contrib.roce"]).output();
    if !has_scapy.is_ok_and(|output| output.status.success()) {
        println!("skipped: {PYTHON} has no scapy; install the Debian package python3-scapy");
        return;
    }
    let frames = all();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut child = Command::new(PYTHON)
        .args(["-c", include_str!("icrc.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let lines: String = frames.iter().map(|(_, _, bytes)| hex(bytes) + "\n").collect();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), frames.len());
    for (line, (path, headers, bytes)) in text.lines().zip(&frames) {
        let (ours, theirs) = line.split_once(' ').unwrap();
        assert_eq!(ours, theirs, "{:?} {headers:?} {}", path.format, hex(bytes));
    }
    println!("scapy agrees on {} invariant CRCs", frames.len());
}

/// What a packet has of a field, if it has it.
type Ask = fn(&Headers) -> Option<u64>;

/// Fields by their names in `tshark`, and by ours.
const FIELDS: &[(&str, Ask)] = &[
    ("infiniband.bth.opcode", |headers| super::super::encode(headers.service, headers.opcode).map(u64::from)),
    ("infiniband.bth.se", |headers| Some(headers.solicited.into())),
    ("infiniband.bth.m", |_| Some(0)),
    ("infiniband.bth.tver", |_| Some(0)),
    ("infiniband.bth.p_key", |headers| Some(headers.pkey.into())),
    ("infiniband.bth.destqp", |headers| Some(headers.destination.value().into())),
    ("infiniband.bth.a", |headers| Some(headers.ack_request.into())),
    ("infiniband.bth.reserved7", |headers| Some(headers.extended.into())),
    ("infiniband.bth.psn", |headers| Some(headers.psn.value().into())),
    ("infiniband.deth.q_key", |headers| headers.deth.map(|deth| deth.qkey.into())),
    ("infiniband.deth.srcqp", |headers| headers.deth.map(|deth| deth.source.value().into())),
    ("infiniband.reth.va", |headers| {
        headers.reth.map(|reth| reth.address).or(headers.atomic.map(|atomic| atomic.address))
    }),
    ("infiniband.reth.r_key", |headers| {
        let key = headers.reth.map(|reth| reth.rkey).or(headers.atomic.map(|atomic| atomic.rkey));
        key.map(|key| key.value().into())
    }),
    ("infiniband.reth.dmalen", |headers| headers.reth.map(|reth| reth.len.into())),
    ("infiniband.atomiceth.swapdt", |headers| headers.atomic.map(|atomic| atomic.swap_add)),
    ("infiniband.atomiceth.cmpdt", |headers| headers.atomic.map(|atomic| atomic.compare)),
    ("infiniband.aeth.syndrome", |headers| headers.aeth.map(|aeth| aeth.syndrome.to_byte().into())),
    ("infiniband.aeth.msn", |headers| headers.aeth.map(|aeth| aeth.msn.into())),
    ("infiniband.atomicacketh.origremdt", |headers| headers.original),
    ("infiniband.immdt", |headers| headers.immediate.map(|bytes| u32::from_be_bytes(bytes).into())),
    ("infiniband.ieth", |headers| headers.invalidate.map(|key| key.value().into())),
];

/// Protocols that `tshark` guesses behind our headers.
const GUESSES: [&str; 9] =
    ["smc", "smb_direct", "rpcordma", "nvme-rdma", "lnet", "iser", "infiniband_sdp", "infiniband.eoib", "fcoib"];

/// Fields that are there only where `tshark` finds fault with a frame.
const FAULTS: [&str; 2] = ["_ws.malformed", "_ws.expert.message"];

#[test]
fn every_field_is_what_tshark_says() {
    let frames = all();
    let Some(text) = tshark(&frames) else {
        println!("skipped: there is no tshark");
        return;
    };
    assert_eq!(text.lines().count(), frames.len());
    let mut compared = 0;
    for (line, (path, headers, bytes)) in text.lines().zip(&frames) {
        let mut values = line.split(';');
        for ((name, ask), text) in FIELDS.iter().zip(values.by_ref()) {
            assert_eq!(number(name, text), ask(headers), "{name} of {:?}, {headers:x?}: {line}", path.format);
            compared += usize::from(!text.is_empty());
        }
        for (name, text) in FAULTS.iter().zip(values.by_ref()) {
            assert_eq!(text, "", "{name} of {:?}, {headers:?}: {line}", path.format);
        }
        let stands = u32::from_be_bytes(*packet_of(path, bytes).last_chunk().unwrap());
        match number("crc", values.next().unwrap()) {
            Some(crc) => assert_eq!(crc, stands.into(), "{line}"),
            // Behind an answer or an atomic operation without payload it does not look for it, and nor behind a notification.
            None => {
                let is_notification = headers.opcode == Opcode::CongestionNotification;
                assert!(headers.aeth.is_some() || headers.atomic.is_some() || is_notification, "{line}");
            }
        }
        let holds = path.source.is_ipv4().then_some(1);
        assert_eq!(number("status", values.next().unwrap()), holds, "checksum of IPv4: {line}");
    }
    println!("tshark agrees on {compared} fields of {} frames", frames.len());
}

/// A frame up to its invariant CRC, without what Ethernet has added.
fn packet_of<'a>(path: &Path, frame: &'a [u8]) -> &'a [u8] {
    let length = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    &frame[..if path.source.is_ipv4() { 14 + length(16) } else { 54 + length(18) }]
}

/// What `tshark` says of each frame, a line for each; `None` where it is not installed.
fn tshark(frames: &[(Path, Headers, Vec<u8>)]) -> Option<String> {
    let word = |number: usize| (number as u32).to_le_bytes();
    let mut file = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1].map(word).concat();
    for (_, _, frame) in frames {
        file.extend([[0; 4], [0; 4], word(frame.len()), word(frame.len())].concat());
        file.extend(frame);
    }
    let path = std::env::temp_dir().join(format!("millrace-rdma-wire-{}.pcap", std::process::id()));
    std::fs::write(&path, file).unwrap();
    let mut command = Command::new("tshark");
    command.args(["-n", "-o", "ip.check_checksum:TRUE", "-o", "udp.ignore_ipv6_zero_checksum:TRUE", "-r"]).arg(&path);
    command.args(["-T", "fields", "-E", "separator=;", "-E", "occurrence=f"]);
    // It guesses what a payload is, and then finds fault with what is not that.
    for guess in GUESSES {
        command.args(["--disable-protocol", guess]);
    }
    let more = ["infiniband.invariant.crc", "ip.checksum.status"];
    for name in FIELDS.iter().map(|(name, _)| *name).chain(FAULTS).chain(more) {
        command.args(["-e", name]);
    }
    let output = command.output();
    std::fs::remove_file(&path).unwrap();
    Some(String::from_utf8(output.ok()?.stdout).unwrap())
}

/// A value as `tshark` prints it: decimal, hexadecimal, or bytes.
fn number(name: &str, text: &str) -> Option<u64> {
    if matches!(name, "infiniband.immdt" | "infiniband.ieth") {
        return u64::from_str_radix(&text.replace(':', ""), 16).ok();
    }
    match (text, text.strip_prefix("0x")) {
        ("True", _) => Some(1),
        ("False", _) => Some(0),
        (_, Some(digits)) => u64::from_str_radix(digits, 16).ok(),
        _ => text.parse().ok(),
    }
}
