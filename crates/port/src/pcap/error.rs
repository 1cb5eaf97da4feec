//! What can be wrong with a capture.

use crate::{DropReason, MAX_FRAME_LEN};
use std::{io, sync::Arc};

/// Why a capture cannot be read, or not further. Records are numbered from 1, as other programs show them.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be opened.
    #[error("cannot open {name}: {source}; check the path and that you may read it")]
    Open {
        /// The file.
        name: Arc<str>,
        /// What the system said.
        source: io::Error,
    },
    /// The file is there but cannot be read.
    #[error("cannot read {name} at byte {offset}: {source}; nothing behind that is used")]
    Read {
        /// The file.
        name: Arc<str>,
        /// Where.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// No bytes at all.
    #[error("{0} is empty; a capture has at least a header of 24 bytes, so record it again")]
    Empty(Arc<str>),
    /// Not even a header.
    #[error("{name} ends after {len} of the 24 bytes of its header; copy or record it again")]
    Header {
        /// The file.
        name: Arc<str>,
        /// Its length.
        len: usize,
    },
    /// The newer format.
    #[error("{0} is a pcapng file; convert it with `editcap -F nsecpcap {0} new.pcap` and use that")]
    PcapNg(Arc<str>),
    /// A compressed file.
    #[error("{name} is compressed; unpack it with `{program}` first")]
    Compressed {
        /// The file.
        name: Arc<str>,
        /// What unpacks it.
        program: &'static str,
    },
    /// Something else. What is in it is not said: whoever names a file to a card need not be one who may read it.
    #[error(
        "{0} is not a capture file; `file {0}` may tell what it is, `editcap -F nsecpcap` converts other kinds of \
         captures"
    )]
    NotCapture(Arc<str>),
    /// A format of the last century, or of the future.
    #[error("{name} is of pcap version {major}.{minor}, and only 2.4 is read; convert it with `editcap -F nsecpcap`")]
    Version {
        /// The file.
        name: Arc<str>,
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
    /// Frames of another kind of link.
    #[error("{name} holds frames of link type {number} ({label}), and a port carries Ethernet (link type 1) only")]
    LinkType {
        /// The file.
        name: Arc<str>,
        /// The number in the file.
        number: u32,
        /// Its name.
        label: String,
    },
    /// The file ends in the middle of a record.
    #[error(
        "{name} is truncated: record {record} at byte {offset} lacks its last {missing} bytes; \
         what comes before it has been read"
    )]
    Truncated {
        /// The file.
        name: Arc<str>,
        /// Number of the record.
        record: u64,
        /// Where the record begins.
        offset: u64,
        /// Bytes that are not there.
        missing: usize,
    },
    /// A length that cannot be one.
    #[error(
        "{name} is damaged: record {record} at byte {offset} claims {length} bytes; \
         nothing behind it can be found, what comes before it has been read"
    )]
    Damaged {
        /// The file.
        name: Arc<str>,
        /// Number of the record.
        record: u64,
        /// Where the record begins.
        offset: u64,
        /// The length it claims.
        length: u32,
    },
    /// A record that is no frame for a port, and is left out.
    #[error("record {record} of {name} has {length} bytes, more than the {MAX_FRAME_LEN} of a frame; it is left out")]
    TooLong {
        /// The file.
        name: Arc<str>,
        /// Number of the record.
        record: u64,
        /// Its length.
        length: u32,
    },
    /// A packet of an interface of which the file has not said anything; it is left out.
    #[error("packet {record} of {name} is of interface {interface}, which the file does not describe; it is left out")]
    Interface {
        /// The file.
        name: Arc<str>,
        /// Number of the packet.
        record: u64,
        /// Number of the interface.
        interface: u32,
    },
    /// The caller's buffer is too small; the frame has not been taken.
    #[error("a frame of {needed} bytes does not fit into a buffer of {given}; give {MAX_FRAME_LEN} to be safe")]
    Buffer {
        /// Length of the frame.
        needed: usize,
        /// Length of the buffer.
        given: usize,
    },
}

impl ReadError {
    /// Whether nothing can follow; the reader then says that the capture is at its end.
    pub fn ends_stream(&self) -> bool {
        !matches!(self, ReadError::TooLong { .. } | ReadError::Interface { .. } | ReadError::Buffer { .. })
    }

    /// The counter of a port to which the record belongs that was hit by this error.
    pub fn drop_reason(&self) -> DropReason {
        match self {
            ReadError::Truncated { .. } => DropReason::Truncated,
            ReadError::TooLong { .. } | ReadError::Buffer { .. } => DropReason::TooLong,
            ReadError::Open { .. } | ReadError::Read { .. } => DropReason::ReadFailed,
            _ => DropReason::Damaged,
        }
    }
}
