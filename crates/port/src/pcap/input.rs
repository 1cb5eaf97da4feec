//! A file seen through a buffer of fixed size that holds the longest record.

use super::FILE_HEADER_LEN;
use std::io::{self, Read, Seek, SeekFrom};

/// The longest record that a capture program writes (the limit of libpcap). A greater length is no length.
pub(super) const MAX_RECORD_LEN: usize = 262_144;

/// Holds the longest record, and enough of the usual ones that a read costs little per frame.
const BUFFER_LEN: usize = 2 * MAX_RECORD_LEN;

pub(super) struct Input<R> {
    source: R,
    buffer: Box<[u8]>,
    /// What has been read and not yet consumed lies from here ...
    start: usize,
    /// ... to here.
    end: usize,
    /// Offset of `buffer[0]` in the file.
    base: u64,
    /// The source has no more bytes.
    exhausted: bool,
}

impl<R: Read> Input<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, buffer: vec![0; BUFFER_LEN].into(), start: 0, end: 0, base: 0, exhausted: false }
    }

    /// The source itself.
    pub(super) fn source(&self) -> &R {
        &self.source
    }

    /// What lies ready.
    #[inline]
    pub(super) fn ready(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Offset in the file of what lies ready.
    pub(super) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Leaves `count` of the bytes that lie ready behind.
    #[inline]
    pub(super) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Reads until `count` bytes (at most the buffer) lie ready or there are no more, and returns how many do.
    pub(super) fn ensure(&mut self, count: usize) -> io::Result<usize> {
        debug_assert!(count <= self.buffer.len());
        while self.end - self.start < count && !self.exhausted {
            if self.start + count > self.buffer.len() {
                self.buffer.copy_within(self.start..self.end, 0);
                self.base += self.start as u64;
                self.end -= self.start;
                self.start = 0;
            }
            let room = &mut self.buffer[self.end..];
            match self.source.read(room) {
                Ok(0) => self.exhausted = true,
                // A source that lies about its count must not make us panic.
                Ok(count) => self.end += count.min(room.len()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.end - self.start)
    }
}

impl<R: Read + Seek> Input<R> {
    /// Back to the first record. Costs no system call when the whole file is in the buffer.
    pub(super) fn rewind(&mut self) -> io::Result<()> {
        if self.base == 0 && self.exhausted {
            self.start = FILE_HEADER_LEN;
            return Ok(());
        }
        self.base = self.source.seek(SeekFrom::Start(FILE_HEADER_LEN as u64))?;
        (self.start, self.end, self.exhausted) = (0, 0, false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives three bytes at a time, is interrupted before each, and counts how often it is asked.
    struct Drip<'a>(&'a [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.1 += 1;
            if self.1 % 2 == 1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let room = into.len().min(3);
            self.0.read(&mut into[..room])
        }
    }

    #[test]
    fn short_and_interrupted_reads_are_continued() {
        let bytes: Vec<u8> = (0..100).collect();
        let mut input = Input::new(Drip(&bytes, 0));
        assert_eq!(input.ensure(10).unwrap(), 12);
        assert_eq!(input.ready(), &bytes[..12]);
        input.consume(10);
        assert_eq!(input.offset(), 10);
        assert_eq!(input.ensure(95).unwrap(), 90);
        assert_eq!(input.ready(), &bytes[10..]);
        input.consume(1000);
        assert_eq!((input.ensure(1).unwrap(), input.offset()), (0, 100));
    }

    #[test]
    fn a_long_file_moves_through_the_buffer() {
        let bytes: Vec<u8> = (0..3 * BUFFER_LEN as u32).map(|at| (at % 251) as u8).collect();
        let mut input = Input::new(io::Cursor::new(&bytes));
        for _ in 0..2 {
            let mut at = input.offset() as usize;
            while input.ensure(MAX_RECORD_LEN).unwrap() > 0 {
                let step = input.ready().len().min(100_003);
                assert_eq!(input.ready()[..step], bytes[at..at + step]);
                input.consume(step);
                at += step;
                assert_eq!(input.offset() as usize, at);
            }
            assert_eq!(at, bytes.len());
            input.rewind().unwrap();
            assert_eq!(input.offset() as usize, FILE_HEADER_LEN);
        }
    }

    #[test]
    fn a_source_that_lies_about_its_count_is_contained() {
        struct Liar;
        impl Read for Liar {
            fn read(&mut self, _into: &mut [u8]) -> io::Result<usize> {
                Ok(usize::MAX)
            }
        }
        let mut input = Input::new(Liar);
        assert_eq!(input.ensure(10).unwrap(), BUFFER_LEN);
    }

    #[test]
    fn a_short_file_is_rewound_without_asking_again() {
        let mut input = Input::new(io::Cursor::new([7; 50]));
        assert_eq!(input.ensure(BUFFER_LEN).unwrap(), 50);
        input.consume(50);
        input.source.set_position(3);
        input.rewind().unwrap();
        assert_eq!(input.source.position(), 3);
        assert_eq!(input.ready(), [7; 50 - FILE_HEADER_LEN]);
    }
}
