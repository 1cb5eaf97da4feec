//! Writing a capture with nanosecond stamps.

use super::file;
use super::{CaptureTime, FILE_HEADER_LEN, RECORD_HEADER_LEN};
use millrace_dma::Span;
use pcap_file::{DataLink, Endianness, TsResolution, pcap::PcapHeader};
use std::{
    fs::File,
    io::{self, Seek, SeekFrom, Write},
    path::Path,
    sync::Arc,
};

/// The longest record that is written: twice the longest frame that is still to be cut into segments.
const SNAPSHOT_LEN: usize = 128 * 1024;

/// Records are collected up to this many bytes, so that a write costs little per frame.
const BUFFER_LEN: usize = 256 * 1024;

/// A number of frames and of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames.
    pub frames: u64,
    /// Bytes of these frames, without what the file adds.
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, frame_len: usize) {
        self.frames += 1;
        self.bytes += frame_len as u64;
    }

    fn plus(self, other: Tally) -> Tally {
        Tally { frames: self.frames + other.frames, bytes: self.bytes + other.bytes }
    }

    fn minus(self, other: Tally) -> Tally {
        Tally { frames: self.frames - other.frames, bytes: self.bytes - other.bytes }
    }
}

/// Why a capture cannot be written, or not further.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file cannot be made.
    #[error("cannot write {name}: {source}; {}", advice(source))]
    Create {
        /// The file.
        name: Arc<str>,
        /// What the system said.
        source: io::Error,
    },
    /// The file takes no more. It ends with its last whole record and can be read.
    #[error(
        "cannot go on writing {name}: {source}; {} frames ({} bytes) are in the file, {} frames after them are lost; {}",
        written.frames, written.bytes, lost.frames, advice(source)
    )]
    Write {
        /// The file.
        name: Arc<str>,
        /// What is in the file.
        written: Tally,
        /// What had been collected and did not get there.
        lost: Tally,
        /// What the system said.
        source: io::Error,
    },
    /// An earlier write failed.
    #[error("{name} takes nothing more since a write failed; {} frames ({} bytes) are in it", written.frames, written.bytes)]
    Stopped {
        /// The file.
        name: Arc<str>,
        /// What is in the file.
        written: Tally,
    },
    /// The frame is longer than a record may be.
    #[error("a frame of {len} bytes does not fit into {name}, whose records hold {SNAPSHOT_LEN}; leave it out")]
    TooLong {
        /// The file.
        name: Arc<str>,
        /// Length of the frame.
        len: usize,
    },
}

impl WriteError {
    /// Whether space was what was missing.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, WriteError::Create { source, .. } | WriteError::Write { source, .. } if is_full(source))
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn advice(error: &io::Error) -> &'static str {
    if is_full(error) {
        "free some space there or write to another disk"
    } else {
        "check the path and that you may write there"
    }
}

/// A capture in the making.
///
/// Frames are collected and written many at a time; [`Writer::flush`] brings the file up to date, and so does dropping
/// the writer, which can only log what goes wrong. Nothing is allocated per frame.
pub struct Writer<W: Write> {
    sink: W,
    name: Arc<str>,
    /// Whole records that are not in the file yet: the first `used` bytes.
    buffer: Box<[u8]>,
    used: usize,
    /// What `buffer` holds.
    pending: Tally,
    written: Tally,
    /// Length of the file: header and whole records.
    file_len: u64,
    failed: bool,
    /// Cuts the sink to a length, so that it ends with a whole record.
    cut: fn(&mut W, u64),
}

impl Writer<File> {
    /// Makes or overwrites a file.
    ///
    /// # Errors
    /// [`WriteError::Create`], also when the disk is full.
    pub fn create(path: impl AsRef<Path>) -> Result<Self, WriteError> {
        let name: Arc<str> = path.as_ref().display().to_string().into();
        match File::create(path) {
            Ok(file) => Self::start(file, name, cut_file),
            Err(source) => Err(WriteError::Create { name, source }),
        }
    }
}

impl Writer<File> {
    /// As [`Writer::create`], for a port: a pipe that nobody reads, a device or a folder is refused, and nothing waits.
    ///
    /// # Errors
    /// [`WriteError::Create`].
    pub(crate) fn create_for_port(path: impl AsRef<Path>) -> Result<Self, WriteError> {
        let name: Arc<str> = path.as_ref().display().to_string().into();
        match file::create(path.as_ref()) {
            Ok(file) => Self::start(file, name, cut_file),
            Err(source) => Err(WriteError::Create { name, source }),
        }
    }
}

/// Best effort: a file that cannot even be shortened (a pipe, a device) stays as it is.
fn cut_file(file: &mut File, len: u64) {
    if file.set_len(len).is_ok() {
        let _ = file.seek(SeekFrom::Start(len));
    }
}

impl<W: Write> Writer<W> {
    /// Writes a capture to `sink`.
    ///
    /// # Errors
    /// [`WriteError::Create`] when not even the header can be written.
    pub fn new(sink: W) -> Result<Self, WriteError> {
        Self::named(sink, "the capture")
    }

    /// As [`Writer::new`], with a name for error messages.
    ///
    /// # Errors
    /// As [`Writer::new`].
    pub fn named(sink: W, name: &str) -> Result<Self, WriteError> {
        Self::start(sink, name.into(), |_, _| {})
    }

    fn start(mut sink: W, name: Arc<str>, cut: fn(&mut W, u64)) -> Result<Self, WriteError> {
        let header = PcapHeader {
            version_major: 2,
            version_minor: 4,
            ts_correction: 0,
            ts_accuracy: 0,
            snaplen: SNAPSHOT_LEN as u32,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::Little,
        };
        let mut bytes = [0; FILE_HEADER_LEN];
        header.write_to(&mut &mut bytes[..]).expect("a header of 24 bytes");
        if let Err(source) = sink.write_all(&bytes) {
            return Err(WriteError::Create { name, source });
        }
        Ok(Self {
            sink,
            name,
            buffer: vec![0; BUFFER_LEN].into(),
            used: 0,
            pending: Tally::default(),
            written: Tally::default(),
            file_len: FILE_HEADER_LEN as u64,
            failed: false,
            cut,
        })
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// [`WriteError`]; the frame is not in the file then.
    pub fn write(&mut self, time: CaptureTime, frame: &[u8]) -> Result<(), WriteError> {
        self.write_span(time, Span::from_slice(frame))
    }

    /// Adds a frame that lies in shared memory.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub fn write_span(&mut self, time: CaptureTime, frame: Span<'_>) -> Result<(), WriteError> {
        let len = frame.len();
        if self.failed {
            return Err(WriteError::Stopped { name: self.name.clone(), written: self.written });
        }
        if len > SNAPSHOT_LEN {
            return Err(WriteError::TooLong { name: self.name.clone(), len });
        }
        if self.used + RECORD_HEADER_LEN + len > BUFFER_LEN {
            self.write_out()?;
        }
        let (header, rest) = self.buffer[self.used..].split_at_mut(RECORD_HEADER_LEN);
        let words = [time.record_seconds(), time.record_nanos(), len as u32, len as u32];
        for (place, word) in header.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        frame.read_into(&mut rest[..len]);
        self.used += RECORD_HEADER_LEN + len;
        self.pending.add(len);
        Ok(())
    }

    /// Brings the file up to date.
    ///
    /// # Errors
    /// [`WriteError::Write`] for what had been collected.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.write_out()?;
        if self.failed {
            return Ok(());
        }
        self.sink.flush().map_err(|source| self.fail(0, source))
    }

    /// What is in the file.
    pub fn written(&self) -> Tally {
        self.written
    }

    /// What has been collected and is not in the file yet.
    pub fn pending(&self) -> Tally {
        self.pending
    }

    /// What error messages call the capture.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn write_out(&mut self) -> Result<(), WriteError> {
        let mut done = 0;
        while done < self.used {
            match self.sink.write(&self.buffer[done..self.used]) {
                Ok(0) => return Err(self.fail(done, io::ErrorKind::WriteZero.into())),
                Ok(count) => done = done.saturating_add(count).min(self.used),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fail(done, error)),
            }
        }
        self.file_len += done as u64;
        self.written = self.written.plus(std::mem::take(&mut self.pending));
        self.used = 0;
        Ok(())
    }

    /// Ends the file behind the last record that is whole when `done` bytes of the buffer got there.
    #[cold]
    fn fail(&mut self, done: usize, source: io::Error) -> WriteError {
        let (mut whole, mut saved) = (0, Tally::default());
        while let Some(len) = self.buffer[..self.used].get(whole + 8..whole + 12) {
            let len = u32::from_le_bytes(len.try_into().expect("four bytes")) as usize;
            if whole + RECORD_HEADER_LEN + len > done {
                break;
            }
            whole += RECORD_HEADER_LEN + len;
            saved.add(len);
        }
        self.file_len += whole as u64;
        if done > whole {
            (self.cut)(&mut self.sink, self.file_len);
        }
        self.written = self.written.plus(saved);
        let lost = std::mem::take(&mut self.pending).minus(saved);
        self.used = 0;
        self.failed = true;
        WriteError::Write { name: self.name.clone(), written: self.written, lost, source }
    }
}

impl<W: Write> Drop for Writer<W> {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            tracing::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests;
