//! The header of every message (section 7.1), and messages in a stream of bytes.

use super::error::{Refusal, request};
use super::reader::Put;

/// OpenFlow 1.3.
pub const VERSION: u8 = 4;
/// Bytes of the header.
pub const HEADER: usize = 8;
/// Longest message.
pub const LONGEST: usize = u16::MAX as usize;

/// What precedes every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Version of the sender.
    pub version: u8,
    /// Type of the message.
    pub kind: u8,
    /// Bytes, with this header.
    pub len: u16,
    /// Chosen by who asks, and repeated by who answers.
    pub xid: u32,
}

/// The first message of `bytes`, whole with its header; `None`: it has not come yet.
///
/// # Errors
/// Its length is less than that of a header, so that nobody knows where the next one begins.
pub fn first(bytes: &[u8]) -> Result<Option<(Header, &[u8])>, Refusal> {
    let Some(&[version, kind, high, low, a, b, c, d]) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    let header = Header { version, kind, len: u16::from_be_bytes([high, low]), xid: u32::from_be_bytes([a, b, c, d]) };
    if usize::from(header.len) < HEADER {
        return Err(request::BAD_LEN);
    }
    Ok(bytes.get(..header.len.into()).map(|message| (header, message)))
}

/// Writes a message: its header, then what `write` writes. Nothing is written if that is longer than a message can be, which is said with `false`:
/// whoever reads a wrong length finds no message behind it any more.
pub(crate) fn message(out: &mut Vec<u8>, kind: u8, xid: u32, write: impl FnOnce(&mut Vec<u8>)) -> bool {
    let begin = out.len();
    out.sized(2, |out| {
        out.u8(VERSION);
        out.u8(kind);
        out.u16(0);
        out.u32(xid);
        write(out);
    });
    let fits = out.len() - begin <= LONGEST;
    if !fits {
        out.truncate(begin);
    }
    fits
}
