//! Frames for the switch: those of the collection of captures, and generated ones with more values than tests of single
//! actions need.

use super::super::build;
use super::switch::LONGEST;
use millrace_packet::parse::{Layers, Transport};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::path::{Path, PathBuf};

/// What varies of a generated frame.
#[derive(Clone, Debug)]
struct Variation {
    macs: [u64; 2],
    v4: [u32; 2],
    v6: [u128; 2],
    ports: [u16; 2],
    tos: u8,
    ttl: u8,
    flags: u8,
    /// For all tags.
    tag: Option<u16>,
    /// Where a byte is hurt, and how.
    hurt: Option<(prop::sample::Index, u8)>,
}

fn variation() -> impl Strategy<Value = Variation> {
    let mac = || {
        prop_oneof![
            4 => Just(0x0200_0000_0001u64),
            1 => Just(0xffff_ffff_ffff),
            1 => Just(0x0180_c200_000e),
            1 => Just(0x3333_0000_00fb),
            2 => any::<u64>(),
        ]
    };
    let v4 = || {
        let base = select(vec![0x0a00_0000u32, 0x0a01_0000, 0x0a00_0002, 0xc0a8_0101, 0xe000_00fb, 0, u32::MAX]);
        (base, select(vec![0u32, 0, 1, 0xff, 0xffff]))
            .prop_flat_map(|(base, spread)| (Just(base), 0..=spread))
            .prop_map(|(base, more)| base ^ more)
    };
    let v6 = || {
        let base = select(vec![0xfe80u128 << 112, 0xff02 << 112, 0x2001_0db8 << 96, 0xfd << 120, 0]);
        (base, select(vec![0u128, 1, 2, u64::MAX as u128])).prop_map(|(base, more)| base | more)
    };
    let port = || prop_oneof![select(vec![0u16, 7, 9, 53, 67, 80, 443, 4096, 20000, 65535]), any::<u16>()];
    let hurt = prop::option::weighted(0.1, (any::<prop::sample::Index>(), 1u8..));
    let tag = prop::option::weighted(0.5, select(vec![5u16, 0x6005, 0x2005, 0, 0xa001, 0x00f0, 0x0123]));
    let head =
        (select(vec![0u8, 0xb8, 0x03, 0x02, 0xff, 0x28]), select(vec![0u8, 1, 2, 64, 64, 64, 255]), any::<u8>(), tag);
    ([mac(), mac()], [v4(), v4()], [v6(), v6()], [port(), port()], head, hurt).prop_map(
        |(macs, v4, v6, ports, (tos, ttl, flags, tag), hurt)| Variation {
            tag,
            macs,
            v4,
            v6,
            ports,
            tos,
            ttl,
            flags,
            hurt,
        },
    )
}

impl Variation {
    /// The frame with these values and with checksums that hold, but for what is hurt.
    fn of(&self, frame: &[u8]) -> Vec<u8> {
        let (mut new, layers) = (frame.to_vec(), Layers::parse(frame));
        for (at, mac) in [0, 6].into_iter().zip(self.macs) {
            new[at..at + 6].copy_from_slice(&mac.to_be_bytes()[2..]);
        }
        for at in (14..).step_by(4).take(layers.tags().len()) {
            let tag = self.tag.map_or([frame[at], frame[at + 1]], u16::to_be_bytes);
            new[at..at + 2].copy_from_slice(&tag);
        }
        if let (Some(_), Some(ip)) = (layers.ipv4(frame), layers.ip()) {
            (new[ip + 1], new[ip + 8]) = (self.tos, self.ttl);
            new[ip + 12..ip + 16].copy_from_slice(&self.v4[0].to_be_bytes());
            new[ip + 16..ip + 20].copy_from_slice(&self.v4[1].to_be_bytes());
        }
        if let (Some(_), Some(ip)) = (layers.ipv6(frame), layers.ip()) {
            new[ip + 1] = new[ip + 1] & 0x0f | self.tos << 4;
            (new[ip], new[ip + 7]) = (0x60 | self.tos >> 4, self.ttl);
            new[ip + 8..ip + 24].copy_from_slice(&self.v6[0].to_be_bytes());
            new[ip + 24..ip + 40].copy_from_slice(&self.v6[1].to_be_bytes());
        }
        let ports = match (layers.transport(), layers.protocol()) {
            (Some((Transport::Tcp | Transport::Udp, at)), _) => Some(at),
            (None, Some(132)) if layers.payload(frame).len() >= 12 => Some(layers.payload_offset()),
            _ => None,
        };
        if let Some(at) = ports {
            new[at..at + 2].copy_from_slice(&self.ports[0].to_be_bytes());
            new[at + 2..at + 4].copy_from_slice(&self.ports[1].to_be_bytes());
        }
        if let Some((Transport::Tcp, at)) = layers.transport() {
            new[at + 13] = self.flags;
        }
        new = build::recomputed(&new);
        if let Some((at, bits)) = self.hurt {
            let at = at.index(new.len());
            new[at] ^= bits;
        }
        new
    }
}

/// So many generated frames, always the same ones.
pub fn generated(count: usize) -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let all = vec((build::frame(), variation()), count).new_tree(&mut runner).unwrap().current();
    all.into_iter().map(|(frame, variation)| variation.of(&frame)).collect()
}

/// The packets of all captures, as frames whatever their link is, in so far as the switch takes their length; none where the
/// collection is not there.
pub fn captured() -> Vec<Vec<u8>> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/captures");
    let folder = std::env::var_os("MILLRACE_CAPTURES").map_or_else(beside, PathBuf::from);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: there is no folder {}", folder.display());
        return Vec::new();
    };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let frames = files.into_iter().flat_map(|path| packets(&std::fs::read(path).unwrap()));
    frames.filter(|frame| (14..=LONGEST).contains(&frame.len())).collect()
}

/// Packets of a file of pcap or pcapng, as far as they can be read.
fn packets(file: &[u8]) -> Vec<Vec<u8>> {
    match file {
        [0x0a, 0x0d, 0x0d, 0x0a, _, _, _, _, 0x4d, 0x3c, 0x2b, 0x1a, ..] => blocks(file, u32::from_le_bytes),
        [0x0a, 0x0d, 0x0d, 0x0a, ..] => blocks(file, u32::from_be_bytes),
        [0xd4 | 0x4d, 0xc3 | 0x3c, 0xb2, 0xa1, ..] => records(file, u32::from_le_bytes),
        _ => records(file, u32::from_be_bytes),
    }
}

/// Records of pcap: a header of 16 bytes whose third word is the length.
fn records(file: &[u8], number: fn([u8; 4]) -> u32) -> Vec<Vec<u8>> {
    let (mut rest, mut found) = (file.get(24..).unwrap_or_default(), Vec::new());
    while let Some((head, behind)) = rest.split_first_chunk::<16>() {
        let len = number([head[8], head[9], head[10], head[11]]) as usize;
        let Some((frame, behind)) = behind.split_at_checked(len) else { break };
        found.push(frame.to_vec());
        rest = behind;
    }
    found
}

/// Enhanced packet blocks of pcapng: the frame begins at byte 28, and its length stands at byte 20.
fn blocks(file: &[u8], number: fn([u8; 4]) -> u32) -> Vec<Vec<u8>> {
    let (mut rest, mut found) = (file, Vec::new());
    let word = |bytes: &[u8], at: usize| Some(number(bytes.get(at..)?.first_chunk().copied()?));
    while let (Some(kind), Some(len)) = (word(rest, 0), word(rest, 4)) {
        let Some((block, behind)) = rest.split_at_checked(len.max(12) as usize) else { break };
        if kind == 6 {
            let frame = word(block, 20).and_then(|len| block.get(28..)?.get(..len as usize));
            found.extend(frame.map(<[u8]>::to_vec));
        }
        rest = behind;
    }
    found
}
