//! A capture as a whole in memory, so that reading it costs nothing while its frames are sent.

use std::path::Path;

use millrace_port::pcap::Reader;
use millrace_tool::failure::Failure;
use millrace_tool::list::MAX_SIZE;

/// The frames of a capture, one behind the other.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    bytes: Vec<u8>,
    /// Where each frame ends in `bytes`.
    ends: Vec<usize>,
    /// Frames left out because no card carries them.
    pub skipped: u64,
    /// What keeps the rest of the file from being read.
    pub damage: Option<String>,
}

impl Capture {
    /// Reads all frames from `shortest` bytes to the longest that a card carries. A file that breaks off counts as far
    /// as it can be read, and `damage` says why.
    pub fn load(file: &Path, shortest: u32) -> Result<Self, Failure> {
        let mut reader = Reader::open(file)?;
        let mut capture = Self::default();
        loop {
            match reader.peek() {
                Ok(None) => return Ok(capture),
                Ok(Some(frame)) => capture.offer(frame.data, shortest),
                Err(error) if error.ends_stream() => {
                    capture.damage = Some(error.to_string());
                    return Ok(capture);
                }
                Err(_) => capture.skipped += 1,
            }
            reader.take();
        }
    }

    fn offer(&mut self, frame: &[u8], shortest: u32) {
        if frame.len() < shortest.max(1) as usize || frame.len() > MAX_SIZE as usize {
            self.skipped += 1;
            return;
        }
        self.bytes.extend_from_slice(frame);
        self.ends.push(self.bytes.len());
    }

    /// How many frames there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all frames.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Frame `at`, from 0.
    #[inline]
    pub fn frame(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start..self.ends[at]]
    }

    /// All frames in order.
    pub fn frames(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|at| self.frame(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_port::pcap::{CaptureTime, Writer};

    #[test]
    fn what_was_written_is_loaded_except_what_no_card_carries() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.pcap");
        let mut writer = Writer::create(&file).unwrap();
        for len in [60, 10, 1514, 20_000, 61] {
            writer.write(CaptureTime::default(), &vec![len as u8; len]).unwrap();
        }
        drop(writer);
        let capture = Capture::load(&file, 60).unwrap();
        assert_eq!(capture.frames().map(<[u8]>::len).collect::<Vec<_>>(), [60, 1514, 61]);
        assert_eq!((capture.skipped, capture.bytes(), capture.damage.is_none()), (2, 60 + 1514 + 61, true));
        assert_eq!(capture.frame(1), [234; 1514]);
    }

    #[test]
    fn a_file_that_breaks_off_counts_as_far_as_it_goes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.pcap");
        let mut writer = Writer::create(&file).unwrap();
        (0..3).for_each(|_| writer.write(CaptureTime::default(), &[7; 100]).unwrap());
        drop(writer);
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        let capture = Capture::load(&file, 60).unwrap();
        assert_eq!(capture.len(), 2);
        assert!(capture.damage.unwrap().contains("truncated"));
        assert!(Capture::load(Path::new("/nonexistent"), 60).is_err());
    }
}
