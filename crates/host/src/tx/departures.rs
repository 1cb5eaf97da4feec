//! When frames have left, as the card says in the control page of a queue.

use millrace_abi::control::{DEPARTURE_AT, WANTS_STAMPS_AT};
use millrace_dma::{Ordering, OutOfRange, Window, Word32, Word64, fence};

/// What the card says of the frames that have left a queue ([`TxQueue::departures`](super::TxQueue::departures)).
pub struct Departures {
    wants: Word32,
    sequence: Word64,
    words: [Word64; 4],
}

/// When the last frame left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Frames that have left since the queue was started.
    pub frames: u64,
    /// The card's clock in ns, before the last of them was handed to the port, ...
    pub before_ns: u64,
    /// ... and after it.
    pub after_ns: u64,
    /// Frames that the card has taken off the queue since then. What is not among `frames` it has dropped there: too short or too long, or
    /// by a schedule ([`QueueStats`](millrace_abi::stats::QueueStats) says why).
    pub taken: u64,
}

impl Departures {
    pub(super) fn new(page: &Window) -> Result<Self, OutOfRange> {
        let word = |at: usize| page.word64(DEPARTURE_AT + 8 * at);
        let (wants, sequence) = (page.word32(WANTS_STAMPS_AT)?, word(0)?);
        // Whoever sees the frame at its doorbell sees this: the doorbell is stored with Release.
        wants.store(1, Ordering::Relaxed);
        Ok(Self { wants, sequence, words: [word(1)?, word(2)?, word(3)?, word(4)?] })
    }

    /// What it said last; `None` while it has said nothing, or is just saying something else.
    pub fn last(&self) -> Option<Departure> {
        // Acquire pairs with the Release store that ends `Departure::say` in the card.
        let sequence = self.sequence.load(Ordering::Acquire);
        let [frames, before_ns, after_ns, taken] = [0, 1, 2, 3].map(|at: usize| self.words[at].load(Ordering::Relaxed));
        // Pairs with the Release fence there.
        fence(Ordering::Acquire);
        let is_whole = sequence != 0 && sequence.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == sequence;
        is_whole.then_some(Departure { frames, before_ns, after_ns, taken })
    }
}

impl Drop for Departures {
    fn drop(&mut self) {
        self.wants.store(0, Ordering::Relaxed);
    }
}
