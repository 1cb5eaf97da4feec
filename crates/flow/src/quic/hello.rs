//! The ClientHello of a connection, put together from CRYPTO frames that may come in any order and in several packets.

use millrace_packet::parse::{ClientHello, Malformed, QuicFrame, QuicFrames};

/// Longest ClientHello that is put together, in bytes. With keys of post-quantum key exchange it has about 1,800.
pub const LONGEST_HELLO: usize = 8192;
/// Most gaps between pieces.
const MOST_PIECES: usize = 32;

/// What is there of a ClientHello.
#[derive(Debug, Default)]
pub struct Hello {
    bytes: Vec<u8>,
    /// Which bytes are there: from, to; in order, with gaps between.
    pieces: Vec<(usize, usize)>,
}

/// Whether a ClientHello can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All of it is there.
    Whole,
    /// Some of it has not come yet.
    Partial,
    /// It never will: it is no ClientHello, malformed, too long, or in too many pieces.
    Hopeless,
}

impl Hello {
    /// Takes what the frames of an Initial's payload have of it. Bytes that are there already stay as they are.
    pub fn add(&mut self, payload: &[u8]) -> Progress {
        for frame in QuicFrames::new(payload) {
            if let Ok(QuicFrame::Crypto { offset, data }) = frame
                && !self.put(offset, data)
            {
                return Progress::Hopeless;
            }
        }
        match ClientHello::parse(self.head()) {
            Ok(_) => Progress::Whole,
            Err(Malformed::Truncated) => match ClientHello::len_of(self.head()) {
                Ok(len) if len > LONGEST_HELLO => Progress::Hopeless,
                _ => Progress::Partial,
            },
            Err(_) => Progress::Hopeless,
        }
    }

    /// The ClientHello, once it is whole.
    pub fn get(&self) -> Option<ClientHello<'_>> {
        ClientHello::parse(self.head()).ok()
    }

    /// What is there from the start on.
    fn head(&self) -> &[u8] {
        match self.pieces.first() {
            Some((0, end)) => &self.bytes[..*end],
            _ => &[],
        }
    }

    fn put(&mut self, offset: u64, data: &[u8]) -> bool {
        let Ok(from) = usize::try_from(offset) else { return false };
        let Some(to) = from.checked_add(data.len()).filter(|to| *to <= LONGEST_HELLO) else { return false };
        if data.is_empty() {
            return true;
        }
        if self.bytes.len() < to {
            self.bytes.resize(to, 0);
        }
        self.fill_gaps(from, to, data);
        self.join(from, to)
    }

    /// Writes what of `from..to` is not there yet.
    fn fill_gaps(&mut self, from: usize, to: usize, data: &[u8]) {
        let mut at = from;
        let ends = self.pieces.iter().copied().chain([(LONGEST_HELLO, LONGEST_HELLO)]);
        for (piece_from, piece_to) in ends {
            let end = piece_from.min(to);
            if at < end {
                self.bytes[at..end].copy_from_slice(&data[at - from..end - from]);
            }
            at = at.max(piece_to.min(to));
        }
    }

    /// Adds `from..to` to the pieces, as one with those that it touches.
    fn join(&mut self, mut from: usize, mut to: usize) -> bool {
        let first = self.pieces.partition_point(|piece| piece.1 < from);
        let last = self.pieces.partition_point(|piece| piece.0 <= to);
        if let (Some(piece), true) = (self.pieces.get(first), first < last) {
            from = from.min(piece.0);
            to = to.max(self.pieces[last - 1].1);
        }
        self.pieces.splice(first..last, [(from, to)]);
        self.pieces.len() <= MOST_PIECES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A ClientHello with nothing in it, padded by an extension.
    fn message(padding: usize) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([5; 32]);
        body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        body.extend((padding as u16 + 4).to_be_bytes());
        body.extend([0, 21]);
        body.extend((padding as u16).to_be_bytes());
        body.extend((0..padding).map(|at| at as u8));
        let len = (body.len() as u32).to_be_bytes();
        [&[1][..], &len[1..], &body].concat()
    }

    fn crypto(offset: usize, data: &[u8]) -> Vec<u8> {
        let number = |value: usize| (value as u32 | 0x8000_0000).to_be_bytes();
        [&[6][..], &number(offset), &number(data.len()), data].concat()
    }

    #[test]
    fn too_long_and_too_many_pieces() {
        let mut hello = Hello::default();
        assert_eq!(hello.add(&crypto(LONGEST_HELLO - 1, &[1, 1])), Progress::Hopeless);
        assert_eq!(Hello::default().add(&crypto(0, &[1, 0, 0x40, 0])), Progress::Hopeless, "it says that it is longer");
        let mut hello = Hello::default();
        for at in 0..MOST_PIECES {
            assert_eq!(hello.add(&crypto(10 + 2 * at, &[1])), Progress::Partial);
        }
        assert_eq!(hello.add(&crypto(10 + 2 * MOST_PIECES, &[1])), Progress::Hopeless);
        assert_eq!(Hello::default().add(&crypto(0, &[2, 0, 0, 0])), Progress::Hopeless, "another message");
    }

    #[test]
    fn first_bytes_win() {
        let bytes = message(10);
        let mut hello = Hello::default();
        assert_eq!(hello.add(&crypto(5, &bytes[5..20])), Progress::Partial);
        let wrong = [&bytes[..5], &[0xff; 15], &bytes[20..]].concat();
        assert_eq!(hello.add(&crypto(0, &wrong)), Progress::Whole);
        assert_eq!(hello.head(), bytes);
    }

    proptest! {
        #[test]
        fn any_order_any_overlap(padding in 0usize..600, cuts in proptest::collection::vec((0usize..700, 1usize..120), 0..20)) {
            let bytes = message(padding);
            let mut hello = Hello::default();
            for (from, len) in cuts {
                let from = from.min(bytes.len());
                hello.add(&crypto(from, &bytes[from..(from + len).min(bytes.len())]));
            }
            prop_assert!(hello.pieces.windows(2).all(|pair| pair[0].1 < pair[1].0));
            let missing: Vec<u8> = bytes.chunks(100).enumerate().flat_map(|(at, part)| crypto(100 * at, part)).collect();
            prop_assert_eq!(hello.add(&missing), Progress::Whole);
            prop_assert_eq!(hello.head(), &bytes[..]);
            prop_assert_eq!(hello.get().unwrap().random(), &[5; 32]);
        }
    }
}
