//! Frames that are held back until their time comes: first in, first out, in memory that is taken once.

use crate::MAX_FRAME_LEN;
use millrace_dma::Span;
use std::{collections::VecDeque, time::Instant};

/// Bytes of frames that can be held back.
const BYTES: usize = 4 * 1024 * 1024;
/// Frames that can be held back.
const FRAMES: usize = 32 * 1024;

/// A frame that waits.
struct Waiting {
    due: Instant,
    at: usize,
    len: usize,
}

/// The frames that wait, in the order in which they go.
pub(super) struct Hold {
    bytes: Box<[u8]>,
    waiting: VecDeque<Waiting>,
}

impl Hold {
    pub fn new() -> Self {
        Self { bytes: vec![0; BYTES].into(), waiting: VecDeque::with_capacity(FRAMES) }
    }

    /// Frames that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Where `len` bytes are free behind the last frame, or at the beginning.
    fn place(&self, len: usize) -> Option<usize> {
        let (Some(first), Some(last)) = (self.waiting.front(), self.waiting.back()) else { return Some(0) };
        let end = last.at + last.len;
        if last.at >= first.at {
            // One contiguous range is in use: behind it, or in front of it.
            if end + len <= BYTES { Some(end) } else { (len < first.at).then_some(0) }
        } else {
            (end + len < first.at).then_some(end)
        }
    }

    /// Holds a frame back until `due`, or says that there is no room.
    pub fn put(&mut self, frame: Span<'_>, due: Instant) -> bool {
        let len = frame.len();
        debug_assert!(len <= MAX_FRAME_LEN);
        let Some(at) = self.place(len).filter(|_| self.waiting.len() < FRAMES) else { return false };
        frame.read_into(&mut self.bytes[at..at + len]);
        self.waiting.push_back(Waiting { due, at, len });
        true
    }

    /// The first frame and its time.
    pub fn first(&self) -> Option<(Instant, Span<'_>)> {
        let first = self.waiting.front()?;
        Some((first.due, Span::from_slice(&self.bytes[first.at..first.at + first.len])))
    }

    /// Gives the first frame's place free.
    pub fn remove_first(&mut self) {
        self.waiting.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn frames_come_out_as_they_went_in(steps in prop::collection::vec((1..=MAX_FRAME_LEN, 0..3usize), 1..1500)) {
            let (mut hold, mut model, now) = (Hold::new(), VecDeque::new(), Instant::now());
            let check_first = |hold: &mut Hold, model: &mut VecDeque<(usize, u8)>| {
                let Some((len, byte)) = model.pop_front() else { return hold.first().is_none() };
                let mut frame = [0; MAX_FRAME_LEN];
                let (_, span) = hold.first().unwrap();
                let same = span.read_into(&mut frame) == len && frame[..len].iter().all(|&b| b == byte);
                hold.remove_first();
                same
            };
            for (number, (len, out)) in steps.into_iter().enumerate() {
                let byte = number as u8;
                if hold.put(Span::from_slice(&vec![byte; len]), now) {
                    model.push_back((len, byte));
                } else {
                    let held: usize = model.iter().map(|(len, _)| len).sum();
                    prop_assert!(held + 2 * MAX_FRAME_LEN >= BYTES / 2, "no room at {held} bytes");
                }
                for _ in 0..out {
                    prop_assert!(check_first(&mut hold, &mut model));
                }
            }
            while !model.is_empty() {
                prop_assert!(check_first(&mut hold, &mut model));
            }
        }
    }
}
