//! Captures of any kind of link, in pcap or pcapng, for whoever looks at packets and does not send them.
//!
//! pcapng is read as far as packets go (draft-ietf-opsawg-pcapng sections 4.1 to 4.4 and appendix A): sections of either byte
//! order, interfaces with their link types and time units, enhanced, simple and obsolete packet blocks. Other blocks are
//! passed over.

use super::reader::check_magic;
use super::{CaptureTime, FILE_HEADER_LEN, ReadError, Reader, blocks::Blocks, input::Input};
use std::{fs::File, io::Read, path::Path, sync::Arc};

/// The link type of Ethernet.
pub const ETHERNET: u32 = 1;

/// A packet of a capture, as it lies in the reader's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// When it was captured.
    pub time: CaptureTime,
    /// How long it was on the wire, in bytes, if the capture is to be believed.
    pub original_len: u32,
    /// The link type, as the registry of LINKTYPE values numbers them; [`link_name`] names it.
    pub link: u32,
    /// What was captured of it, at most [`MAX_FRAME_LEN`](crate::MAX_FRAME_LEN) bytes, perhaps none.
    pub data: &'a [u8],
}

/// The name of a link type.
pub fn link_name(link: u32) -> String {
    format!("{:?}", pcap_file::DataLink::from(link))
}

/// A capture that is read once, from its beginning to its end. Holds one buffer, whatever the length of the file.
pub struct Packets<R>(Kind<R>);

enum Kind<R> {
    Classic { reader: Reader<R>, link: u32 },
    Next(Blocks<R>),
}

impl Packets<File> {
    /// Opens a file.
    ///
    /// # Errors
    /// [`ReadError`]: whatever can be seen from its first bytes.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let name = path.as_ref().display().to_string();
        match File::open(path) {
            Ok(file) => Self::named(file, &name),
            Err(source) => Err(ReadError::Open { name: name.into(), source }),
        }
    }
}

impl<R: Read> Packets<R> {
    /// Reads a capture from `source`, which stands at its beginning; `name` is for error messages.
    ///
    /// # Errors
    /// [`ReadError`]: whatever can be seen from its first bytes.
    pub fn named(source: R, name: &str) -> Result<Self, ReadError> {
        let name: Arc<str> = name.into();
        let mut input = Input::new(source);
        if let Err(source) = input.ensure(FILE_HEADER_LEN) {
            return Err(ReadError::Read { name, offset: input.ready().len() as u64, source });
        }
        match check_magic(input.ready(), &name) {
            Err(ReadError::PcapNg(_)) => Ok(Self(Kind::Next(Blocks::new(input, name)))),
            Err(error) => Err(error),
            Ok(()) => {
                let (reader, link) = Reader::of_any_link(input, name)?;
                Ok(Self(Kind::Classic { reader, link }))
            }
        }
    }

    /// The next packet, `None` at the end.
    ///
    /// # Errors
    /// As [`Reader::peek`]: if it [ends the stream](ReadError::ends_stream), all later calls return `None`; otherwise one
    /// packet has been left out and the next call goes on behind it.
    pub fn next_packet(&mut self) -> Result<Option<Packet<'_>>, ReadError> {
        match &mut self.0 {
            Kind::Next(blocks) => blocks.next_packet(),
            Kind::Classic { reader, link } => {
                reader.take();
                let frame = reader.peek()?;
                let packet = frame.map(|frame| Packet {
                    time: frame.time,
                    original_len: frame.original_len,
                    link: *link,
                    data: frame.data,
                });
                Ok(packet)
            }
        }
    }
}

#[cfg(test)]
mod tests;
