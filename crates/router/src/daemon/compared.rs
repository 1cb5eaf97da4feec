//! What comparing packets with Linux's has found: counted, told in words, and the last of them kept as pairs of captures.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::engine::shadow::{Copy, Mismatch, Tally};

use super::protocol::Shadow;

/// Pairs that are kept; the oldest makes place.
const PAIRS: u64 = 16;

/// Where captures go; only root has anything there.
const FOLDER: &str = "/run/millrace-router";

/// What was found.
#[derive(Debug, Default)]
pub struct Compared {
    found: u64,
    last: Vec<String>,
    captures: Vec<PathBuf>,
}

impl Compared {
    /// Keeps one.
    pub fn keep(&mut self, mismatch: &Mismatch) {
        let flow = mismatch
            .rule
            .map_or_else(|| "a flow whose rule is gone".to_owned(), |rule| super::flows::tuple(&rule.key).to_string());
        let said = format!("{flow}: {}", difference(&mismatch.ours, &mismatch.linux));
        tracing::warn!("Linux made something else of a packet: {said}; the flow stays slow");
        keep(&mut self.last, said);
        match write(self.found % PAIRS, mismatch) {
            Ok(paths) => paths.into_iter().for_each(|path| keep(&mut self.captures, path)),
            Err(error) => tracing::warn!("{FOLDER}: {error}; the two packets are not kept"),
        }
        self.found += 1;
    }

    /// All of it, for a client.
    pub fn told(&self, compare: u32, tally: Tally) -> Shadow {
        Shadow {
            compare,
            compared: tally.same + tally.different,
            different: tally.different,
            unpaired: tally.unpaired,
            overtaken: tally.overtaken,
            captures: self.captures.iter().map(|path| path.display().to_string()).collect(),
            last: self.last.clone(),
        }
    }
}

fn keep<T: PartialEq>(all: &mut Vec<T>, one: T) {
    all.retain(|other| *other != one);
    all.push(one);
    if all.len() > 2 * PAIRS as usize {
        all.remove(0);
    }
}

/// Where two frames begin to differ.
fn difference(ours: &Copy, linux: &Copy) -> String {
    if ours.out != linux.out {
        return format!("it leaves by interface #{} and not by #{}", linux.out, ours.out);
    }
    if ours.len != linux.len {
        return format!("it has {} bytes and not {}", linux.len, ours.len);
    }
    let at = ours.frame.iter().zip(&linux.frame).position(|(ours, linux)| ours != linux);
    match at {
        Some(at) => format!("byte {at} is {:#04x} and not {:#04x}", linux.frame[at], ours.frame[at]),
        None => "they differ behind what was copied".to_owned(),
    }
}

fn write(number: u64, mismatch: &Mismatch) -> io::Result<Vec<PathBuf>> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(FOLDER)?;
    // Others may not have put something there.
    if fs::symlink_metadata(FOLDER)?.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to somebody else"));
    }
    let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
    let sides = [("ours", &mismatch.ours), ("linux", &mismatch.linux)];
    let one = |(side, copy): (&str, &Copy)| {
        let path = Path::new(FOLDER).join(format!("{namespace}-{number}-{side}.pcap"));
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(&capture(copy))?;
        Ok(path)
    };
    sides.into_iter().map(one).collect()
}

/// A capture of one frame (pcap, version 2.4, Ethernet).
fn capture(copy: &Copy) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40 + copy.frame.len());
    for word in [0xa1b2_c3d4_u32, 2 | 4 << 16, 0, 0, 65_535, 1, 0, 0, copy.frame.len() as u32, copy.len as u32] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&copy.frame);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_told_and_both_sides_are_captures() {
        let copy = |out, frame: &[u8], len| Copy { out, frame: frame.to_owned(), len };
        let ours = copy(3, &[1, 2, 3], 3);
        assert!(difference(&ours, &copy(4, &[1, 2, 3], 3)).contains("#4 and not by #3"));
        assert!(difference(&ours, &copy(3, &[1, 2], 2)).contains("2 bytes and not 3"));
        assert!(difference(&ours, &copy(3, &[1, 9, 3], 3)).contains("byte 1 is 0x09 and not 0x02"));
        let bytes = capture(&ours);
        assert_eq!((bytes.len(), &bytes[40..], bytes[20]), (43, &[1, 2, 3][..], 1));
    }
}
