//! Every frame of the collection of captures, which lies beside the workspace and not in it.

use super::super::{Counters, Format, Reason, parse};
use std::path::{Path, PathBuf};

fn captures() -> Option<Vec<PathBuf>> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/captures");
    let folder = std::env::var_os("MILLRACE_CAPTURES").map_or_else(beside, PathBuf::from);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: there is no folder {}", folder.display());
        return None;
    };
    Some(entries.map(|entry| entry.unwrap().path()).collect())
}

/// Everything in a file of pcap or pcapng that can be a frame: what stands behind a length, as far as the file goes.
fn frames(file: &[u8]) -> Vec<&[u8]> {
    let is_pcapng = file.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]);
    let is_little = matches!(file, [0xd4 | 0x4d, _, 0xb2, 0xa1, ..]) || file.get(8) == Some(&0x4d);
    let word = |bytes: &[u8], at: usize| {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) } as usize)
    };
    let (mut rest, mut found) = (if is_pcapng { file } else { file.get(24..).unwrap_or_default() }, Vec::new());
    loop {
        let next = if is_pcapng {
            let Some(block) = word(rest, 4).and_then(|len| rest.split_at_checked(len.max(12))) else { break };
            found.extend(word(block.0, 20).and_then(|len| block.0.get(28..)?.get(..len)));
            block.1
        } else {
            let Some(frame) = word(rest, 8).and_then(|len| rest.get(16..)?.split_at_checked(len)) else { break };
            found.push(frame.0);
            frame.1
        };
        rest = next;
    }
    found
}

#[test]
fn every_frame_of_every_capture_is_parsed_without_panic() {
    let Some(files) = captures() else { return };
    let (mut counters, mut all, mut taken) = (Counters::default(), 0, Vec::new());
    for path in &files {
        let file = std::fs::read(path).unwrap();
        for frame in frames(&file) {
            all += 1;
            match parse(frame) {
                Ok((_, from)) => taken.push((path.file_name().unwrap().to_owned(), from.back.format)),
                Err(reason) => counters.count(reason),
            }
        }
    }
    let refused: Vec<_> = counters.pairs().filter(|pair| pair.1 > 0).collect();
    println!("{all} frames of {} captures; taken {taken:?}; refused {refused:?}", files.len());
    let is_roce = |format: &Format| *format != Format::Slurpoe;
    let agree = taken.iter().filter(|(_, format)| is_roce(format)).count();
    println!("{agree} invariant CRCs agree, {} do not", counters.get(Reason::Icrc));
    assert!(all > 3000, "{all}");
}
