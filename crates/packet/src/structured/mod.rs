//! Structured frames: every byte says which frame it belongs to (`docs/spec/nfb-card.md` §6).
//!
//! ```text
//! byte 0        8                                                    len
//!      | stamp  | word | word | word | ... | word cut to what is left |    with a time stamp
//!      | word | word | word | word | word | ... | word cut ...        |    without
//!
//! word, big-endian:  size_hash 8 | burst id 16 | packet id 8
//! stamp, big-endian: 64 bits, the sender's monotonic clock in nanoseconds
//! ```
//!
//! `size_hash` is `(len >> 8) + len` modulo 256, so a frame that was cut or padded gives itself away (unless the two
//! lengths differ by a multiple of 255, the weakness of that hash). Burst id and packet id together are the low 24 bits
//! of a [`Sequence`], so a lost, repeated or late frame gives itself away too. The reference word is the one at byte 8,
//! behind the place of a stamp; therefore a frame needs [`MIN_LEN`] bytes to be checked. The stamp itself is not
//! protected: whoever measures latency sees a wrong one as an absurd time.
//!
//! ```
//! use millrace_packet::structured::{fill, Checker, Sequence, Stamping};
//!
//! let mut frame = [0; 64];
//! let mut checker = Checker::new(Stamping::Off);
//! for number in [0, 1, 3] {
//!     fill(&mut frame, Sequence::new(number));
//!     checker.check(&frame);
//! }
//! let found = checker.finish(Sequence::new(4));
//! assert_eq!((found.in_order, found.lost), (3, 1));
//! ```

mod checker;
mod sequence;

pub use checker::{Checker, Findings, Verdict, WINDOW};
pub use sequence::Sequence;

/// The shortest frame that can be checked: a stamp and the reference word.
pub const MIN_LEN: usize = 12;

/// Bytes of a time stamp.
pub const STAMP_LEN: usize = 8;

/// Whether frames begin with a time stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stamping {
    /// Words from the first byte on.
    #[default]
    Off,
    /// Eight bytes of time, then words.
    On,
}

impl Stamping {
    /// Where the words begin.
    const fn words_at(self) -> usize {
        match self {
            Stamping::Off => 0,
            Stamping::On => STAMP_LEN,
        }
    }
}

/// A moment on the sender's monotonic clock, in nanoseconds; it means something only against the same clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// The moment `nanos` ns after the clock's zero.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds after the clock's zero.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Nanoseconds from `earlier` to this moment, 0 if `earlier` is in fact later.
    pub const fn nanos_since(self, earlier: Stamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The word that fills a frame of `len` bytes with number `sequence`, before it is stored big-endian.
pub const fn word(len: usize, sequence: Sequence) -> u32 {
    (size_hash(len) as u32) << 24 | sequence.wire()
}

/// `(len >> 8) + len` modulo 256.
const fn size_hash(len: usize) -> u8 {
    ((len >> 8).wrapping_add(len)) as u8
}

/// Fills a frame without a time stamp. Any length will do; below [`MIN_LEN`] bytes nobody can check it.
#[inline]
pub fn fill(frame: &mut [u8], sequence: Sequence) {
    let word = word(frame.len(), sequence);
    fill_words(frame, word);
}

/// Fills a frame that begins with a time stamp. Below [`MIN_LEN`] bytes the stamp is cut and nobody can check it.
#[inline]
pub fn fill_stamped(frame: &mut [u8], sequence: Sequence, stamp: Stamp) {
    let word = word(frame.len(), sequence);
    match frame.split_first_chunk_mut::<STAMP_LEN>() {
        Some((head, words)) => {
            *head = stamp.nanos().to_be_bytes();
            fill_words(words, word);
        }
        None => {
            let len = frame.len();
            frame.copy_from_slice(&stamp.nanos().to_be_bytes()[..len]);
        }
    }
}

/// Writes a new time stamp over the one of a filled frame; nothing happens to a frame shorter than a stamp.
#[inline]
pub fn restamp(frame: &mut [u8], stamp: Stamp) {
    if let Some(head) = frame.first_chunk_mut::<STAMP_LEN>() {
        *head = stamp.nanos().to_be_bytes();
    }
}

/// The time stamp at the start of a frame; `None` if the frame is too short to have been checked.
#[inline]
pub fn stamp(frame: &[u8]) -> Option<Stamp> {
    if frame.len() < MIN_LEN {
        return None;
    }
    frame.first_chunk::<STAMP_LEN>().map(|bytes| Stamp(u64::from_be_bytes(*bytes)))
}

/// Eight bytes at a time, two words each: compilers turn the loop into vector stores.
#[inline]
fn fill_words(bytes: &mut [u8], word: u32) {
    let pattern = pattern(word);
    let (pairs, rest) = bytes.as_chunks_mut::<8>();
    for pair in pairs {
        *pair = pattern;
    }
    // Spares the usual lengths a call to memcpy for nothing.
    if !rest.is_empty() {
        rest.copy_from_slice(&pattern[..rest.len()]);
    }
}

/// Whether `bytes` hold nothing but `word`, over and over. No early exit, so that compilers can use vectors.
#[inline]
fn holds_only(bytes: &[u8], word: u32) -> bool {
    let pattern = pattern(word);
    let wanted = u64::from_ne_bytes(pattern);
    let (pairs, rest) = bytes.as_chunks::<8>();
    let mut differences = 0;
    for pair in pairs {
        differences |= u64::from_ne_bytes(*pair) ^ wanted;
    }
    differences == 0 && (rest.is_empty() || *rest == pattern[..rest.len()])
}

/// The bytes of two words.
#[inline]
const fn pattern(word: u32) -> [u8; 8] {
    ((word as u64) << 32 | word as u64).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes_without_stamp() {
        let mut frame = [0xee; 14];
        fill(&mut frame, Sequence::from_parts(0x1234, 0x56));
        // Size hash of 14 is 14; the fourth word is cut to its two most significant bytes.
        assert_eq!(frame, [0x0e, 0x12, 0x34, 0x56, 0x0e, 0x12, 0x34, 0x56, 0x0e, 0x12, 0x34, 0x56, 0x0e, 0x12]);
    }

    #[test]
    fn golden_bytes_with_stamp() {
        let mut frame = [0xee; 17];
        fill_stamped(&mut frame, Sequence::from_parts(0xfffe, 0xff), Stamp::from_nanos(0x0102_0304_0506_0708));
        assert_eq!(frame, [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0xff, 0xfe, 0xff, 0x11, 0xff, 0xfe, 0xff, 0x11]);
    }

    #[test]
    fn golden_size_hash() {
        for (len, hash) in [(64, 0x40), (255, 0xff), (256, 0x01), (1518, 0xf3), (0x3fff, 0x3e), (65535, 0xfe)] {
            assert_eq!(size_hash(len), hash, "length {len}");
        }
    }

    #[test]
    fn frames_too_short_for_a_check_are_filled_all_the_same() {
        for len in 0..MIN_LEN {
            let mut frame = vec![0; len];
            fill(&mut frame, Sequence::new(1));
            fill_stamped(&mut frame, Sequence::new(1), Stamp::from_nanos(1));
            restamp(&mut frame, Stamp::from_nanos(2));
            assert_eq!(stamp(&frame), None);
        }
    }

    proptest! {
        #[test]
        fn a_filled_frame_holds_its_word_alone(len in MIN_LEN..3000usize, number: u64) {
            let mut frame = vec![0; len];
            fill(&mut frame, Sequence::new(number));
            let wanted = word(len, Sequence::new(number)).to_be_bytes();
            prop_assert!(frame.iter().enumerate().all(|(at, byte)| *byte == wanted[at % 4]));
            prop_assert!(holds_only(&frame, word(len, Sequence::new(number))));
        }

        #[test]
        fn a_stamp_comes_back_and_spares_the_words(len in MIN_LEN..3000usize, number: u64, first: u64, second: u64) {
            let mut frame = vec![0; len];
            fill_stamped(&mut frame, Sequence::new(number), Stamp::from_nanos(first));
            prop_assert_eq!(stamp(&frame), Some(Stamp::from_nanos(first)));
            restamp(&mut frame, Stamp::from_nanos(second));
            prop_assert_eq!(stamp(&frame), Some(Stamp::from_nanos(second)));
            prop_assert!(holds_only(&frame[STAMP_LEN..], word(len, Sequence::new(number))));
        }

        #[test]
        fn any_flipped_bit_is_seen(len in MIN_LEN..300usize, number: u64, at: prop::sample::Index, bit in 0..8u8) {
            let mut frame = vec![0; len];
            fill(&mut frame, Sequence::new(number));
            frame[at.index(len)] ^= 1 << bit;
            prop_assert!(!holds_only(&frame, word(len, Sequence::new(number))));
        }
    }
}
