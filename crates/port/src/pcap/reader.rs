//! Reading a capture, record by record.
//!
//! `pcap-file` knows the format; what is here is the streaming, the tolerance of real files and the precise errors.
//! (Its own streaming reader refuses records above the snapshot length, cannot tell a file that ends early from one
//! that cannot be read, and its frames are gone with the next call, which is no use to a port that is told "later".)

use super::{
    CaptureTime, FILE_HEADER_LEN, RECORD_HEADER_LEN, ReadError, file,
    input::{Input, MAX_RECORD_LEN},
    link_name,
};
use crate::MAX_FRAME_LEN;
use pcap_file::{DataLink, Endianness, TsResolution, pcap::PcapParser, pcap::RawPcapPacket};
use std::{
    fs::File,
    io::{self, Read, Seek},
    path::Path,
    sync::Arc,
};

/// Link type bits that say what the link is; those above tell about the FCS.
const LINK_TYPE_MASK: u32 = 0x03ff_ffff;

/// A frame of a capture, as it lies in the reader's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// When it was captured.
    pub time: CaptureTime,
    /// How long it was on the wire, in bytes, if the capture is to be believed.
    pub original_len: u32,
    /// What was captured of it, at most [`MAX_FRAME_LEN`] bytes, perhaps none.
    pub data: &'a [u8],
}

/// A frame of a capture without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameInfo {
    /// When it was captured.
    pub time: CaptureTime,
    /// How long it was on the wire, in bytes, if the capture is to be believed.
    pub original_len: u32,
    /// How many bytes of it were captured, at most [`MAX_FRAME_LEN`], perhaps none.
    pub len: usize,
}

/// A capture that is read from its beginning to its end, as often as wanted.
///
/// Holds one buffer, whatever the length of the file, and allocates nothing per frame. A file that fits into the buffer
/// is read once, even if it is [rewound](Reader::rewind) for ever.
///
/// ```
/// use millrace_port::{MAX_FRAME_LEN, pcap::{CaptureTime, Reader, Writer}};
///
/// let mut file = Vec::new();
/// let mut writer = Writer::new(&mut file)?;
/// writer.write(CaptureTime::from_nanos(5), &[0xff; 60])?;
/// writer.flush()?;
/// drop(writer);
///
/// let mut reader = Reader::new(&file[..])?;
/// let mut buffer = [0; MAX_FRAME_LEN];
/// let frame = reader.next_into(&mut buffer)?.expect("one frame");
/// assert_eq!((frame.time.nanos(), &buffer[..frame.len]), (5, &[0xff; 60][..]));
/// assert!(reader.next_into(&mut buffer)?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reader<R> {
    input: Input<R>,
    name: Arc<str>,
    parser: PcapParser,
    /// Number of the record last looked at, from 1.
    record: u64,
    /// The record that lies ready, if it is known to be whole and a frame.
    found: Option<FrameInfo>,
    /// There are no more records.
    ended: bool,
}

impl Reader<File> {
    /// Opens a file.
    ///
    /// # Errors
    /// [`ReadError`]: whatever can be seen from the first 24 bytes.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let name = path.as_ref().display().to_string();
        match File::open(path) {
            Ok(file) => Self::named(file, &name),
            Err(source) => Err(ReadError::Open { name: name.into(), source }),
        }
    }
}

impl Reader<File> {
    /// As [`Reader::open`], for a port: what is no regular file is refused, and nothing waits.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub(crate) fn open_for_port(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let name = path.as_ref().display().to_string();
        match file::open(path.as_ref()) {
            Ok(file) => Self::named(file, &name),
            Err(source) => Err(ReadError::Open { name: name.into(), source }),
        }
    }
}

impl<R: Read> Reader<R> {
    /// Reads a capture from `source`, which stands at its beginning.
    ///
    /// # Errors
    /// [`ReadError`]: whatever can be seen from the first 24 bytes.
    pub fn new(source: R) -> Result<Self, ReadError> {
        Self::named(source, "the capture")
    }

    /// As [`Reader::new`], with a name for error messages.
    ///
    /// # Errors
    /// As [`Reader::new`].
    pub fn named(source: R, name: &str) -> Result<Self, ReadError> {
        let name: Arc<str> = name.into();
        let mut input = Input::new(source);
        if let Err(source) = input.ensure(FILE_HEADER_LEN) {
            return Err(ReadError::Read { name, offset: input.ready().len() as u64, source });
        }
        check_magic(input.ready(), &name)?;
        let (reader, link) = Self::of_any_link(input, name)?;
        if link != u32::from(DataLink::ETHERNET) {
            return Err(ReadError::LinkType { name: reader.name, number: link, label: link_name(link) });
        }
        Ok(reader)
    }

    /// A reader behind the header of the file, whose magic number is right, and the link type.
    pub(super) fn of_any_link(mut input: Input<R>, name: Arc<str>) -> Result<(Self, u32), ReadError> {
        let (parser, link) = check_header(input.ready(), &name)?;
        input.consume(FILE_HEADER_LEN);
        Ok((Self { input, name, parser, record: 0, found: None, ended: false }, link))
    }

    /// What error messages call the capture.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The source itself.
    pub fn source(&self) -> &R {
        self.input.source()
    }

    /// The next frame without taking it, `None` at the end. [`Reader::take`] goes on to the one after it.
    ///
    /// # Errors
    /// [`ReadError`]. If it [ends the stream](ReadError::ends_stream), all later calls return `None`; otherwise one
    /// record has been left out and the next call goes on behind it.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Frame<'_>>, ReadError> {
        let Some(info) = self.peek_info()? else { return Ok(None) };
        let data = &self.input.ready()[RECORD_HEADER_LEN..RECORD_HEADER_LEN + info.len];
        Ok(Some(Frame { time: info.time, original_len: info.original_len, data }))
    }

    /// As [`Reader::peek`], without the bytes.
    ///
    /// # Errors
    /// As [`Reader::peek`].
    #[inline]
    pub fn peek_info(&mut self) -> Result<Option<FrameInfo>, ReadError> {
        if self.found.is_none() && !self.ended {
            self.found = self.find()?;
        }
        Ok(self.found)
    }

    /// Takes the frame last shown by [`Reader::peek`]; does nothing if none was.
    #[inline]
    pub fn take(&mut self) {
        if let Some(info) = self.found.take() {
            self.input.consume(RECORD_HEADER_LEN + info.len);
        }
    }

    /// Copies the next frame to the start of `buffer` and takes it; `None` at the end.
    ///
    /// # Errors
    /// As [`Reader::peek`], and [`ReadError::Buffer`] when the frame is longer than `buffer`; it is still there then.
    pub fn next_into(&mut self, buffer: &mut [u8]) -> Result<Option<FrameInfo>, ReadError> {
        let Some(info) = self.peek_info()? else { return Ok(None) };
        let given = buffer.len();
        let Some(to) = buffer.get_mut(..info.len) else {
            return Err(ReadError::Buffer { needed: info.len, given });
        };
        to.copy_from_slice(&self.input.ready()[RECORD_HEADER_LEN..RECORD_HEADER_LEN + info.len]);
        self.take();
        Ok(Some(info))
    }

    /// Finds the next record and leaves it ready as a whole.
    fn find(&mut self) -> Result<Option<FrameInfo>, ReadError> {
        loop {
            if let Ok((_, raw)) = self.parser.next_raw_packet(self.input.ready()) {
                self.record += 1;
                let info = self.info(&raw);
                if info.len <= MAX_FRAME_LEN {
                    return Ok(Some(info));
                }
                let length = raw.incl_len;
                if info.len > MAX_RECORD_LEN {
                    return self.damaged(length);
                }
                self.input.consume(RECORD_HEADER_LEN + info.len);
                return Err(ReadError::TooLong { name: self.name.clone(), record: self.record, length });
            }
            if !self.read_on()? {
                return Ok(None);
            }
        }
    }

    /// Reads what is missing of the next record; `false` at a proper end.
    #[cold]
    fn read_on(&mut self) -> Result<bool, ReadError> {
        let mut needed = RECORD_HEADER_LEN;
        if let Some(length) = self.input.ready().get(8..12) {
            let length = length.try_into().expect("four bytes");
            let length = match self.parser.header().endianness {
                Endianness::Big => u32::from_be_bytes(length),
                Endianness::Little => u32::from_le_bytes(length),
            };
            if length as usize > MAX_RECORD_LEN {
                self.record += 1;
                return self.damaged(length);
            }
            needed += length as usize;
        }
        let have = match self.input.ensure(needed) {
            Ok(have) => have,
            Err(source) => {
                self.ended = true;
                let offset = self.input.offset() + self.input.ready().len() as u64;
                return Err(ReadError::Read { name: self.name.clone(), offset, source });
            }
        };
        if have >= needed {
            return Ok(true);
        }
        self.ended = true;
        if have == 0 {
            return Ok(false);
        }
        self.record += 1;
        let (name, record, offset) = (self.name.clone(), self.record, self.input.offset());
        Err(ReadError::Truncated { name, record, offset, missing: needed - have })
    }

    #[cold]
    fn damaged<T>(&mut self, length: u32) -> Result<T, ReadError> {
        self.ended = true;
        let (name, record, offset) = (self.name.clone(), self.record, self.input.offset());
        Err(ReadError::Damaged { name, record, offset, length })
    }

    fn info(&self, raw: &RawPcapPacket<'_>) -> FrameInfo {
        let unit = match self.parser.header().ts_resolution {
            TsResolution::MicroSecond => 1_000,
            TsResolution::NanoSecond => 1,
        };
        // A fraction of more than a second is wrong but not harmful: it is added as it is. The sum fits in any case.
        let nanos = u64::from(raw.ts_sec) * 1_000_000_000 + u64::from(raw.ts_frac) * unit;
        FrameInfo {
            time: CaptureTime::from_nanos(nanos),
            original_len: raw.orig_len,
            len: usize::try_from(raw.incl_len).unwrap_or(usize::MAX),
        }
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Goes back to the first record.
    ///
    /// # Errors
    /// [`ReadError::Read`] when the source cannot seek.
    pub fn rewind(&mut self) -> Result<(), ReadError> {
        (self.record, self.found, self.ended) = (0, None, false);
        self.input.rewind().map_err(|source: io::Error| {
            self.ended = true;
            ReadError::Read { name: self.name.clone(), offset: FILE_HEADER_LEN as u64, source }
        })
    }
}

/// Whether a file begins as a capture of the classic format does; `bytes` are the first 24 or, in a short file, all.
pub(super) fn check_magic(bytes: &[u8], name: &Arc<str>) -> Result<(), ReadError> {
    let name = name.clone();
    match *bytes {
        [] => return Err(ReadError::Empty(name)),
        [0x0a, 0x0d, 0x0d, 0x0a, ..] => return Err(ReadError::PcapNg(name)),
        [0x1f, 0x8b, ..] => return Err(ReadError::Compressed { name, program: "gunzip" }),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => return Err(ReadError::Compressed { name, program: "unzstd" }),
        [0xfd, b'7', b'z', b'X', ..] => return Err(ReadError::Compressed { name, program: "unxz" }),
        _ => {}
    }
    let known: [[u8; 4]; 4] = [0xa1b2_c3d4_u32, 0xa1b2_3c4d, 0xd4c3_b2a1, 0x4d3c_b2a1].map(|magic| magic.to_be_bytes());
    match bytes.first_chunk().is_some_and(|magic| !known.contains(magic)) {
        true => Err(ReadError::NotCapture(name)),
        false => Ok(()),
    }
}

/// The header of a file whose magic number is right, and its link type.
fn check_header(bytes: &[u8], name: &Arc<str>) -> Result<(PcapParser, u32), ReadError> {
    let name = name.clone();
    let Ok((_, parser)) = PcapParser::new(bytes) else {
        return Err(ReadError::Header { name, len: bytes.len() });
    };
    let header = parser.header();
    let (major, minor) = (header.version_major, header.version_minor);
    if (major, minor) != (2, 4) {
        return Err(ReadError::Version { name, major, minor });
    }
    let link = u32::from(header.datalink) & LINK_TYPE_MASK;
    Ok((parser, link))
}

#[cfg(test)]
mod tests;
