//! Messages of connection management: management datagrams of 256 bytes (volume 1, 12.6 and 13.4.2). Fields are bits of the 232 bytes
//! behind the header, counted from their beginning, most significant first.

mod field;
mod kinds;
mod label;

pub use kinds::*;
pub use label::{Label, To};

use core::fmt;

/// Bytes of a message.
pub const LEN: usize = 256;
/// Bytes of its header.
const HEADER: usize = 24;
/// Bytes behind the header.
const DATA: usize = LEN - HEADER;

/// The Q_Key of queue pair 1 (volume 1, 10.2.5).
pub const GENERAL_QKEY: u32 = 0x8001_0000;

const BASE_VERSION: u8 = 1;
const CLASS: u8 = 7;
const CLASS_VERSION: u8 = 2;
const SEND: u8 = 3;

/// A message as it goes.
pub type Bytes = [u8; LEN];

/// Why a datagram is no message for connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// It does not have [`LEN`] bytes.
    Length,
    /// The format of management datagrams is not version 1.
    BaseVersion,
    /// It belongs to another class.
    Class,
    /// The class is not version 2.
    ClassVersion,
    /// It is not a Send.
    Method,
    /// No message has this number, or it is one that is not supported: alternate paths (LAP, APR).
    Attribute,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "it does not have 256 bytes",
            Self::BaseVersion => "the version of management datagrams is not 1",
            Self::Class => "it is not of connection management",
            Self::ClassVersion => "the version of connection management is not 2",
            Self::Method => "the method is not Send",
            Self::Attribute => "there is no such message, or it is of alternate paths",
        })
    }
}

/// The number of a transaction, of a message, and what stands behind the header.
///
/// # Errors
/// It is no message.
fn header(bytes: &[u8]) -> Result<(u64, u16, &[u8; DATA]), Malformed> {
    let bytes: &Bytes = bytes.try_into().map_err(|_| Malformed::Length)?;
    let (header, data) = bytes.split_first_chunk::<HEADER>().ok_or(Malformed::Length)?;
    let data: &[u8; DATA] = data.try_into().map_err(|_| Malformed::Length)?;
    let wanted = [
        (BASE_VERSION, Malformed::BaseVersion),
        (CLASS, Malformed::Class),
        (CLASS_VERSION, Malformed::ClassVersion),
        (SEND, Malformed::Method),
    ];
    for (found, (wanted, malformed)) in header.iter().zip(wanted) {
        if *found != wanted {
            return Err(malformed);
        }
    }
    let transaction = u64::from_be_bytes(*header[8..].first_chunk().ok_or(Malformed::Length)?);
    Ok((transaction, u16::from_be_bytes([header[16], header[17]]), data))
}

/// Reads a message: the number of its transaction, and what it says.
///
/// # Errors
/// It is none.
pub fn parse(bytes: &[u8]) -> Result<(u64, Message), Malformed> {
    let (transaction, attribute, data) = header(bytes)?;
    let message = Message::read(attribute, data).ok_or(Malformed::Attribute)?;
    Ok((transaction, message))
}

/// Whether it is a message by which somebody calls: a connection request, or one for a datagram service.
pub fn calls(bytes: &[u8]) -> bool {
    matches!(parse(bytes), Ok((_, Message::Request(_) | Message::ServiceRequest(_))))
}

/// A message as it goes.
pub fn build(transaction: u64, message: &Message) -> Bytes {
    let mut bytes = [0; LEN];
    bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, SEND]);
    bytes[8..16].copy_from_slice(&transaction.to_be_bytes());
    let mut data = [0; DATA];
    bytes[16..18].copy_from_slice(&message.write(&mut data).to_be_bytes());
    bytes[HEADER..].copy_from_slice(&data);
    bytes
}

/// Time that a code of five bits stands for: 4.096 us times two to the power of it (volume 1, 12.7).
pub fn time_of(code: u8) -> core::time::Duration {
    core::time::Duration::from_nanos(4096 << (code & 31))
}

#[cfg(test)]
mod tests;
