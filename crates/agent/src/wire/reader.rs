//! Reading and writing of fields in network order. What is too short is an error, which the reader knows.

use super::error::Refusal;

/// Bytes that are read from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// What is said when there are too few.
    short: Refusal,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8], short: Refusal) -> Self {
        Self { bytes, short }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Refusal> {
        let (now, later) = self.bytes.split_at_checked(len).ok_or(self.short)?;
        self.bytes = later;
        Ok(now)
    }

    /// A reader of the next `len` bytes, which says something else if they are too few for what is in them.
    pub fn part(&mut self, len: usize, short: Refusal) -> Result<Reader<'a>, Refusal> {
        Ok(Reader::new(self.take(len)?, short))
    }

    /// Padding, whatever is in it: the specification wants zeros written, and nothing of who reads.
    pub fn skip(&mut self, len: usize) -> Result<(), Refusal> {
        self.take(len).map(|_| ())
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let (now, later) = self.bytes.split_first_chunk().ok_or(self.short)?;
        self.bytes = later;
        Ok(*now)
    }

    pub fn u8(&mut self) -> Result<u8, Refusal> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Result<u16, Refusal> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Refusal> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Refusal> {
        self.array().map(u64::from_be_bytes)
    }

    pub fn mac(&mut self) -> Result<[u8; 6], Refusal> {
        self.array()
    }

    /// Text of a field of a fixed length, up to its first zero.
    pub fn text(&mut self, len: usize) -> Result<String, Refusal> {
        let bytes = self.take(len)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(len);
        let mut text = String::from_utf8_lossy(&bytes[..end]).into_owned();
        // What is no UTF-8 becomes longer, and a zero has to be behind it when it is written.
        text.truncate(fitting(&text, len));
        Ok(text)
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), Refusal> {
        if self.is_empty() { Ok(()) } else { Err(self.short) }
    }
}

/// How many bytes of a text fit into a field of `len` bytes, of which the last is zero.
fn fitting(text: &str, len: usize) -> usize {
    let mut end = text.len().min(len.saturating_sub(1));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}

/// What is written, field after field.
pub(crate) trait Put {
    fn u8(&mut self, value: u8);
    fn u16(&mut self, value: u16);
    fn u32(&mut self, value: u32);
    fn u64(&mut self, value: u64);
    fn bytes(&mut self, bytes: &[u8]);
    fn zeros(&mut self, count: usize);
    /// Text in a field of a fixed length, with a zero at its end.
    fn text(&mut self, text: &str, len: usize);
    /// Writes something whose 16-bit length is known afterwards, at `at` bytes behind its beginning.
    fn sized(&mut self, at: usize, write: impl FnOnce(&mut Vec<u8>));
    /// The same, and zeros up to a multiple of eight. The length counts them if `counted`.
    fn padded(&mut self, at: usize, counted: bool, write: impl FnOnce(&mut Vec<u8>));
}

impl Put for Vec<u8> {
    fn u8(&mut self, value: u8) {
        self.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn zeros(&mut self, count: usize) {
        self.resize(self.len() + count, 0);
    }

    fn text(&mut self, text: &str, len: usize) {
        let end = fitting(text, len);
        self.extend_from_slice(&text.as_bytes()[..end]);
        self.zeros(len - end);
    }

    fn sized(&mut self, at: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let begin = self.len();
        write(self);
        let len = self.len() - begin;
        set_len(self, begin, at, len);
    }

    fn padded(&mut self, at: usize, counted: bool, write: impl FnOnce(&mut Vec<u8>)) {
        let begin = self.len();
        write(self);
        let bare = self.len() - begin;
        self.zeros(bare.next_multiple_of(8) - bare);
        let len = if counted { self.len() - begin } else { bare };
        set_len(self, begin, at, len);
    }
}

/// What is longer than its length can say is a part of a message that is not sent ([`message`](super::header::message)).
fn set_len(bytes: &mut [u8], begin: usize, at: usize, len: usize) {
    let len = u16::try_from(len).unwrap_or(u16::MAX);
    bytes[begin + at..begin + at + 2].copy_from_slice(&len.to_be_bytes());
}
