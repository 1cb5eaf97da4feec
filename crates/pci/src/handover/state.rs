//! What one card says to the next of its functions, as text; and descriptors, which the text has by number.

use millrace_abi::handover::SavedQueue;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use serde::{Deserialize, Serialize};

/// Of this text and of the messages around it.
pub(crate) const VERSION: u32 = 1;

/// The functions of a card.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedCard {
    pub version: u32,
    /// Registers of its MACs: addresses and values.
    pub ports: Vec<(u32, u32)>,
    /// In order: the machine that has each.
    pub functions: Vec<Option<SavedMachine>>,
}

/// A machine that has a function.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedMachine {
    pub who: String,
    pub pid: u32,
    pub uid: u32,
    /// Whether versions are agreed on.
    pub introduced: bool,
    pub stream: SavedStream,
    /// Configuration space, the MSI-X table and the test space: bytes as hexadecimal digits.
    pub configuration: String,
    pub msix_table: String,
    pub test_space: String,
    /// What it has asked of the clock.
    pub clock: [u32; 3],
    pub vectors: Vec<SavedVector>,
    pub memory: Vec<SavedPiece>,
    /// The file of BAR 2.
    pub doorbells: usize,
    /// Those that are the machine's.
    pub queues: Vec<SavedQueue>,
}

/// A connection, between two bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedStream {
    pub socket: usize,
    /// What has come of a message that is not whole, and with it.
    pub came: String,
    pub came_fds: Vec<usize>,
    /// What has not gone of an answer, and what goes with that.
    pub rest: String,
    pub rest_fd: Option<usize>,
}

/// An MSI-X vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedVector {
    pub event: Option<usize>,
    pub masked: bool,
    pub pending: bool,
}

/// A piece of a machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedPiece {
    pub at: u64,
    pub last: u64,
    pub writable: bool,
    pub offset: u64,
    pub file: Option<usize>,
}

/// Descriptors that go along, by number.
#[derive(Default)]
pub(crate) struct Fds<'s>(pub Vec<BorrowedFd<'s>>);

impl<'s> Fds<'s> {
    pub fn add(&mut self, fd: BorrowedFd<'s>) -> usize {
        self.0.push(fd);
        self.0.len() - 1
    }
}

/// Descriptors that have come, by number.
#[derive(Default)]
pub(crate) struct TakenFds(pub Vec<Option<OwnedFd>>);

impl TakenFds {
    /// One that is used once.
    pub fn take(&mut self, number: usize) -> Result<OwnedFd, String> {
        self.0.get_mut(number).and_then(Option::take).ok_or_else(|| missing(number))
    }

    /// One that may be used again.
    pub fn borrow(&self, number: usize) -> Result<BorrowedFd<'_>, String> {
        self.0.get(number).and_then(Option::as_ref).map(AsFd::as_fd).ok_or_else(|| missing(number))
    }
}

fn missing(number: usize) -> String {
    format!("descriptor {number} is missing")
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    bytes.iter().flat_map(|&byte| [digit(byte >> 4), digit(byte)]).collect()
}

/// The bytes that they stand for.
pub(crate) fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let wrong = || "digits that are none".to_owned();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8).ok_or_else(wrong);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        &[high, low] => Ok(digit(high)? << 4 | digit(low)?),
        _ => Err(wrong()),
    });
    pairs.collect()
}

/// The text of another card.
pub(crate) fn read(text: &[u8]) -> Result<SavedCard, String> {
    let value: serde_json::Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    check_version(value.get("version").and_then(serde_json::Value::as_u64))?;
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// Whether a card that says this version is understood.
pub(crate) fn check_version(version: Option<u64>) -> Result<(), String> {
    if version == Some(VERSION.into()) {
        return Ok(());
    }
    let said = version.map_or("no version".to_owned(), |version| format!("version {version}"));
    Err(format!(
        "the card that runs hands over by {said}, and this one takes over by version {VERSION}: use the `millrace` that the other was started with, or \
         end that card and start the machines again"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_their_digits() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&bytes)), Ok(bytes));
        assert!(unhex("0").is_err() && unhex("0g").is_err() && unhex("é").is_err());
        assert_eq!(unhex(""), Ok(Vec::new()));
    }

    #[test]
    fn another_version_is_refused_and_it_is_said_what_to_do() {
        assert!(read(br#"{"version":1,"ports":[[1,2]],"functions":[null]}"#).is_ok());
        for text in [r#"{"version":2,"functions":[]}"#, r#"{"functions":[]}"#, r#"{"version":"1"}"#] {
            let said = read(text.as_bytes()).unwrap_err();
            assert!(said.contains("use the `millrace`"), "{said}");
        }
        assert!(read(b"{").is_err() && read(br#"{"version":1}"#).is_err());
    }
}
