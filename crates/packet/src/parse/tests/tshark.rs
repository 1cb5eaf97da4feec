//! `tshark` as the judge of what `etherparse` does not know: PPPoE, MPLS, GRE, ESP, AH, VXLAN, GENEVE, PTP, RoCE and QUIC. All captures
//! and frames made here go into one file, so that it is started once.

use super::super::{Ah, Layers, QuicLong};
use super::build::{ah, ethernet, geneve, gre, ipv4, ipv6, pppoe, tcp, udp, vxlan};
use super::captures::{captures, frames};
use std::collections::BTreeMap;
use std::process::Command;

/// What a view says of a frame, if it has one.
type Ask = fn(&[u8], &Layers) -> Option<u64>;

/// Fields by their names in `tshark`, and by ours.
const FIELDS: &[(&str, Ask)] = &[
    ("pppoe.session_id", |frame, layers| layers.pppoe(frame).map(|view| view.session().into())),
    ("mpls.label", |frame, layers| layers.mpls(frame).map(|view| view.top().label().into())),
    ("mpls.exp", |frame, layers| layers.mpls(frame).map(|view| view.top().traffic_class().into())),
    ("mpls.bottom", |frame, layers| layers.mpls(frame).map(|view| view.top().is_bottom().into())),
    ("mpls.ttl", |frame, layers| layers.mpls(frame).map(|view| view.top().ttl().into())),
    ("gre.proto", |frame, layers| layers.gre(frame).map(|view| view.protocol().into())),
    ("esp.spi", |frame, layers| layers.esp(frame).map(|view| view.spi().into())),
    ("esp.sequence", |frame, layers| layers.esp(frame).map(|view| view.sequence().into())),
    ("ah.spi", |frame, layers| ah_of(frame, layers).map(|view| view.spi().into())),
    ("ah.sequence", |frame, layers| ah_of(frame, layers).map(|view| view.sequence().into())),
    ("vxlan.vni", |frame, layers| layers.vxlan(frame).map(|view| view.vni().into())),
    ("geneve.vni", |frame, layers| layers.geneve(frame).map(|view| view.vni().into())),
    ("ptp.v2.messagetype", |frame, layers| layers.ptp(frame).map(|_| (frame[ptp_at(layers)] & 15).into())),
    ("ptp.v2.domainnumber", |frame, layers| layers.ptp(frame).map(|view| view.domain().into())),
    ("ptp.v2.sequenceid", |frame, layers| layers.ptp(frame).map(|view| view.sequence().into())),
    ("infiniband.bth.opcode", |frame, layers| layers.bth(frame).map(|view| view.opcode().into())),
    ("infiniband.bth.p_key", |frame, layers| layers.bth(frame).map(|view| view.partition_key().into())),
    ("infiniband.bth.destqp", |frame, layers| layers.bth(frame).map(|view| view.destination_qp().into())),
    ("infiniband.bth.psn", |frame, layers| layers.bth(frame).map(|view| view.psn().into())),
    ("quic.version", |frame, layers| quic(frame, layers).map(|view| view.version().into())),
    ("quic.dcid", |frame, layers| quic(frame, layers).map(|view| front(view.destination()))),
    ("quic.scid", |frame, layers| quic(frame, layers).map(|view| front(view.source()))),
];

/// Over IPv6 it is an extension header.
fn ah_of<'f>(frame: &'f [u8], layers: &Layers) -> Option<Ah<'f>> {
    let extension = || layers.ipv6(frame)?.extensions().flatten().find(|one| one.kind() == 51);
    layers.ah(frame).or_else(|| Ah::parse(extension()?.bytes()).ok())
}

fn ptp_at(layers: &Layers) -> usize {
    layers.payload_offset()
}

fn quic<'f>(frame: &'f [u8], layers: &Layers) -> Option<QuicLong<'f>> {
    let datagram = layers.udp(frame)?.payload();
    QuicLong::parse(datagram).ok().filter(|view| view.fixed_bit() && matches!(view.version(), 1 | 0x6b33_43cf))
}

/// The first eight bytes of an id, with zeros behind those of a shorter one.
fn front(id: &[u8]) -> u64 {
    (0..8).fold(0, |number, at| number << 8 | u64::from(id.get(at).copied().unwrap_or(0)))
}

/// A value as `tshark` prints it: decimal, hexadecimal, a truth, or bytes of an id.
fn number(field: &str, text: &str) -> Option<u64> {
    let text = text.split(',').next().filter(|text| !text.is_empty())?;
    if field.ends_with("cid") {
        let bytes: Vec<_> =
            (0..text.len() / 2).filter_map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()).collect();
        return Some(front(&bytes));
    }
    match (text, text.strip_prefix("0x")) {
        ("True", _) => Some(1),
        ("False", _) => Some(0),
        (_, Some(digits)) => u64::from_str_radix(digits, 16).ok(),
        _ => text.parse().ok(),
    }
}

/// What the outermost headers say that have something to say.
fn ours(frame: &[u8], ask: Ask) -> Option<u64> {
    let mut layers = Layers::parse(frame);
    loop {
        if let Some(number) = ask(frame, &layers) {
            return Some(number);
        }
        layers = layers.parse_inner(frame)?;
    }
}

/// Frames that captures have too few of.
fn made() -> Vec<Vec<u8>> {
    let bth = [&[0x0a, 0x40, 0xff, 0xfe, 0, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef][..], &[9; 40]].concat();
    let grh = [&[0x60, 0, 0, 0, 0, 52, 27, 64][..], &[0xfd; 16], &[0xfe; 16], &bth].concat();
    let ptp =
        [&[0x0b, 0x12, 0, 64, 5, 0, 0, 0][..], &[0; 8], &[0; 4], &[1; 10], &[0x12, 0x34, 5, 1], &[2; 30]].concat();
    let id = |len: u8, byte: u8| [vec![len], vec![byte; len.into()]].concat();
    let quic = |version: [u8; 4], first: u8| {
        let head = [&[first][..], &version, &id(8, 0xd1), &id(4, 0x5c), &[0, 0x44, 0x9e]].concat();
        [&head[..], &vec![7; 1200 - head.len()]].concat()
    };
    let inner = ethernet(0x0800, &ipv4(6, &[], 0, &tcp(&[], b"data")));
    let over_udp = |port: u16, payload: &[u8]| ethernet(0x0800, &ipv4(17, &[], 0, &udp(port, payload)));
    vec![
        ethernet(0x8915, &grh),
        over_udp(4791, &bth),
        ethernet(0x86dd, &ipv6(17, &udp(4791, &bth))),
        ethernet(0x88f7, &ptp),
        over_udp(319, &ptp),
        over_udp(320, &ptp),
        over_udp(443, &quic([0, 0, 0, 1], 0xc1)),
        over_udp(443, &quic([0x6b, 0x33, 0x43, 0xcf], 0xd1)),
        over_udp(443, &quic([0, 0, 0, 1], 0xe2)),
        over_udp(4789, &vxlan(0x0012_3456, &inner)),
        over_udp(6081, &geneve(0x6558, 0x00ab_cdef, &[1, 2, 3, 0], &inner)),
        ethernet(0x0800, &ipv4(51, &[], 0, &ah(6, &tcp(&[], b"ah")))),
        ethernet(0x86dd, &ipv6(50, &[0x11; 40])),
        ethernet(0x8864, &pppoe(0x57, &ipv6(6, &tcp(&[], b"ppp")))),
        ethernet(0x8847, &[&[0x12, 0x34, 0x5e, 9, 0, 1, 1, 9][..], &ipv4(17, &[], 0, &udp(9, b"mpls"))].concat()),
        ethernet(0x0800, &ipv4(47, &[], 0, &gre(0x6558, 7, &inner))),
    ]
}

fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let word = |number: usize| (number as u32).to_le_bytes();
    let mut file = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1].map(word).concat();
    for frame in frames {
        file.extend([[0; 4], [0; 4], word(frame.len()), word(frame.len())].concat());
        file.extend(frame);
    }
    file
}

/// What `tshark` says of each frame, or nothing where it is not installed.
fn theirs(frames: &[Vec<u8>]) -> Option<Vec<Vec<Option<u64>>>> {
    let path = std::env::temp_dir().join(format!("millrace-parse-{}.pcap", std::process::id()));
    std::fs::write(&path, pcap(frames)).unwrap();
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(&path).args(["-T", "fields", "-E", "separator=;"]);
    // Fragments are looked at one by one, as they come.
    command.args(["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"]);
    for (name, _) in FIELDS {
        command.args(["-e", name]);
    }
    let output = command.output();
    std::fs::remove_file(&path).unwrap();
    let text = String::from_utf8(output.ok()?.stdout).unwrap();
    let line = |line: &str| line.split(';').zip(FIELDS).map(|(text, (name, _))| number(name, text)).collect();
    Some(text.lines().map(line).collect())
}

/// Why we say nothing of this frame, and `tshark` does.
fn difference(frame: &[u8]) -> Option<&'static str> {
    /// VXLAN-GPE (draft-ietf-nvo3-vxlan-gpe): what is within need not be Ethernet.
    const GPE: u16 = 4790;
    let layers = Layers::parse(frame);
    match (layers.ether_type(), layers.udp(frame)) {
        _ if layers.malformed().is_some() => Some("it goes on behind lengths that do not fit"),
        (0xd28b, _) => Some("it knows the time stamps that Arista's switches put in front"),
        (0x8863, _) => Some("it has a session in what sets up PPPoE"),
        (_, Some(udp)) if udp.destination_port() == GPE => Some("it takes VXLAN-GPE for VXLAN"),
        _ => None,
    }
}

#[test]
fn every_frame_of_every_capture_is_what_tshark_says() {
    let mut all = made();
    let own = all.len();
    for path in captures().unwrap_or_default() {
        all.extend(frames(&std::fs::read(path).unwrap()).into_iter().map(<[u8]>::to_vec));
    }
    let Some(theirs) = theirs(&all).filter(|theirs| theirs.len() == all.len()) else {
        println!("skipped: there is no tshark that reads {} frames", all.len());
        return;
    };
    let (mut same, mut known, mut open) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for (at, (frame, theirs)) in all.iter().zip(&theirs).enumerate() {
        for ((name, ask), theirs) in FIELDS.iter().zip(theirs) {
            let ours = ours(frame, *ask);
            if ours == *theirs {
                *same.entry(*name).or_insert(0) += usize::from(ours.is_some());
                continue;
            }
            match difference(frame).filter(|_| ours.is_none()) {
                Some(why) => *known.entry(why).or_insert(0) += 1,
                None => open.push((at, *name, ours, *theirs)),
            }
        }
    }
    println!("{own} made, {} in all; the same: {same:#?}; known: {known:#?}", all.len());
    for (at, name, ours, theirs) in open.iter().take(10) {
        println!(
            "{name} of frame {at}: ours {ours:x?}, theirs {theirs:x?}: {:02x?}",
            &all[*at][..all[*at].len().min(80)]
        );
    }
    assert!(open.is_empty(), "{} differ", open.len());
    assert!(FIELDS.iter().all(|(name, _)| same[name] > 0), "{same:#?}");
}
