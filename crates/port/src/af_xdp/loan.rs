//! What the kernel was given of an application's memory, and in which order it is done.

use super::ring::RING;
use std::collections::VecDeque;

/// What a completion tells of an address: the lowest bit is lost on the way in newer kernels (seen with 6.18).
pub(super) const COMPLETED: u64 = !1;

/// The memory of an application at the beginning of a queue's memory.
pub(super) struct Loan {
    /// Its bytes; behind them are frames of our own.
    pub len: usize,
    /// Buffers that are in the fill ring, with the kernel, or in the receive ring.
    pub out: u32,
    /// Frames on their way, in the order in which they were given to us, and whether we are done with them.
    pub sending: VecDeque<(u64, bool)>,
    /// Frames that were the oldest when they were done.
    done: u32,
}

impl Loan {
    pub fn new(len: usize) -> Self {
        Self { len, out: 0, sending: VecDeque::with_capacity(RING as usize), done: 0 }
    }

    /// The kernel is done with the frame at `at`. It mostly keeps the order.
    #[inline(always)]
    pub fn complete(&mut self, at: u64) {
        let at = at & COMPLETED;
        if self.sending.front() != Some(&(at, false)) {
            if let Some(frame) = self.sending.iter_mut().find(|frame| **frame == (at, false)) {
                frame.1 = true;
            }
            return;
        }
        self.sending.pop_front();
        self.done += 1;
        self.settle();
    }

    /// Counts the oldest frames as done that are.
    #[inline(always)]
    fn settle(&mut self) {
        while self.sending.front().is_some_and(|frame| frame.1) {
            self.sending.pop_front();
            self.done += 1;
        }
    }

    /// How many of the oldest frames were done since this was last called.
    pub fn take_done(&mut self) -> u32 {
        self.settle();
        std::mem::take(&mut self.done)
    }

    /// Whether nothing is on its way.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.sending.is_empty() && self.done == 0
    }

    /// There will be no more completions.
    pub fn give_up(&mut self) {
        self.sending.iter_mut().for_each(|frame| frame.1 = true);
    }
}
