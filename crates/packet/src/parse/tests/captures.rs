//! Every frame of the collection of captures, whatever its link type says.

use super::super::Layers;
use super::judge::{Verdict, compare};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The collection, which lies beside the workspace and not in it.
pub(super) fn captures() -> Option<Vec<PathBuf>> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/captures");
    let folder = std::env::var_os("MILLRACE_CAPTURES").map_or_else(beside, PathBuf::from);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: there is no folder {}", folder.display());
        return None;
    };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    Some(files)
}

/// Frames of a file of pcap or pcapng, as far as they can be read.
pub(super) fn frames(file: &[u8]) -> Vec<&[u8]> {
    match file {
        [0x0a, 0x0d, 0x0d, 0x0a, _, _, _, _, 0x4d, 0x3c, 0x2b, 0x1a, ..] => blocks(file, u32::from_le_bytes),
        [0x0a, 0x0d, 0x0d, 0x0a, ..] => blocks(file, u32::from_be_bytes),
        [0xd4 | 0x4d, 0xc3 | 0x3c, 0xb2, 0xa1, ..] => records(file, u32::from_le_bytes),
        _ => records(file, u32::from_be_bytes),
    }
}

/// Records of pcap: a header of 16 bytes whose third word is the length.
fn records(file: &[u8], number: fn([u8; 4]) -> u32) -> Vec<&[u8]> {
    let (mut rest, mut found) = (file.get(24..).unwrap_or_default(), Vec::new());
    while let Some((head, behind)) = rest.split_first_chunk::<16>() {
        let len = number([head[8], head[9], head[10], head[11]]) as usize;
        let Some((frame, behind)) = behind.split_at_checked(len) else { break };
        found.push(frame);
        rest = behind;
    }
    found
}

/// Enhanced packet blocks of pcapng: the frame begins at byte 28, and its length stands at byte 20.
fn blocks(file: &[u8], number: fn([u8; 4]) -> u32) -> Vec<&[u8]> {
    let (mut rest, mut found) = (file, Vec::new());
    let word = |bytes: &[u8], at: usize| Some(number(bytes.get(at..)?.first_chunk().copied()?));
    while let (Some(kind), Some(len)) = (word(rest, 0), word(rest, 4)) {
        let Some((block, behind)) = rest.split_at_checked(len.max(12) as usize) else { break };
        if kind == 6 {
            let frame = word(block, 20).and_then(|len| block.get(28..)?.get(..len as usize));
            found.extend(frame);
        }
        rest = behind;
    }
    found
}

#[test]
fn every_frame_of_every_capture_is_what_etherparse_says() {
    let Some(files) = captures() else { return };
    let mut verdicts = BTreeMap::new();
    let (mut inner, mut readable) = (0, 0);
    for path in &files {
        let file = std::fs::read(path).unwrap();
        let found = frames(&file);
        readable += usize::from(!found.is_empty());
        for frame in found {
            *verdicts.entry(compare(frame)).or_insert(0u32) += 1;
            let layers = Layers::parse(frame);
            if let Some(within) = layers.parse_inner(frame) {
                inner += 1;
                if within.ethernet(frame).is_some() {
                    compare(&frame[within.start()..layers.end()]);
                }
            }
        }
    }
    println!("{readable} of {} files, {inner} tunnels: {verdicts:#?}", files.len());
    assert!(readable * 10 > files.len() * 9, "{readable}");
    assert!(verdicts[&Verdict::Same] > 1000 && verdicts.contains_key(&Verdict::BothRefuse) && inner > 0);
}
