//! When frames have left, for a program that wants to know: words of its control page.

use millrace_abi::control::DEPARTURE_AT;
use millrace_dma::{Ordering, OutOfRange, Window, Word64, fence};

/// The words of one opener.
pub(super) struct Departure {
    sequence: Word64,
    words: [Word64; 4],
    // As was said.
    last: [u64; 2],
}

impl Departure {
    pub fn new(control: &Window) -> Result<Self, OutOfRange> {
        let word = |at: usize| control.word64(DEPARTURE_AT + 8 * at);
        Ok(Self { sequence: word(0)?, words: [word(1)?, word(2)?, word(3)?, word(4)?], last: [0; 2] })
    }

    /// Says that so many frames have left since START, and so many come off the ring; and between which two times the last of them left,
    /// in ns of the card's clock, if that is news.
    pub fn say(&mut self, frames: u64, taken: u64, last: Option<[u64; 2]>) {
        self.last = last.unwrap_or(self.last);
        let [before, after] = self.last;
        // A program that writes here itself deceives itself.
        let sequence = self.sequence.load(Ordering::Relaxed) & !1;
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // Pairs with the Acquire fence in `Departures::last` of the host library: who saw a word below sees the odd sequence.
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip([frames, before, after, taken]) {
            word.store(value, Ordering::Relaxed);
        }
        // Release pairs with the first Acquire load there.
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }
}
