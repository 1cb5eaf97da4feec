//! Bursts that never fit into the ring at once, and frames that no queue of the card holds.
//!
//! libnfb hands out a burst whole or not at all (trap T6), and its programs ask for the same burst until they have it: what can
//! never be had would be asked for without end. The vendor's library gives such a burst memory beside the ring and fills the
//! ring when it is put. So does this one: `put` copies what there is room for, the next calls copy the rest. A frame that is
//! too long for the queue gets its place too, is dropped when it is put, and counted.

use millrace::{Error, TxQueue};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Longest frame that a place is made for: the longest that captures hold. What is longer is no length at all.
const LONGEST: u32 = 1 << 18;

/// How long a flush waits for a card that takes nothing: as long as a stop does. What is left follows at the next call.
const PATIENCE: Duration = Duration::from_secs(1);

/// Each frame begins a cache line of its own.
const ALIGN: usize = 64;

/// A burst beside the ring; empty most of the time.
#[derive(Default)]
pub struct Aside {
    bytes: Vec<u8>,
    frames: VecDeque<Range<usize>>,
    // Whether the program has put it.
    written: bool,
}

impl Aside {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Makes room for a burst in place of the one that has gone; `false` for a frame as long as no frame is.
    pub fn begin(&mut self, lengths: impl Iterator<Item = u32>) -> bool {
        self.frames.clear();
        self.written = false;
        let mut end = 0;
        for len in lengths {
            if len > LONGEST {
                self.frames.clear();
                return false;
            }
            self.frames.push_back(end..end + len as usize);
            end = (end + len as usize).next_multiple_of(ALIGN);
        }
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        true
    }

    /// Where each frame of the burst is to be written.
    pub fn places(&mut self) -> impl Iterator<Item = *mut u8> {
        let bytes = self.bytes.as_mut_ptr();
        self.frames.iter().map(move |frame| bytes.wrapping_add(frame.start))
    }

    /// The program has written its burst.
    pub fn put(&mut self) {
        self.written = true;
    }

    /// Drops what is left.
    pub fn forget(&mut self) {
        self.frames.clear();
    }

    /// Sends what there is room for, and says whether nothing is left. Frames too long for the queue go to `drop`.
    pub fn send(&mut self, queue: &mut TxQueue, mut drop: impl FnMut(&TxQueue, usize)) -> Result<bool, Error> {
        if !self.written {
            return Ok(self.is_empty());
        }
        while let Some(frame) = self.frames.front() {
            let bytes = &self.bytes[frame.clone()];
            if bytes.len() > queue.longest() {
                drop(queue, bytes.len());
            } else {
                // The cast is exact: no queue takes more than 65535 bytes.
                let Some(mut burst) = queue.get(&[bytes.len() as u16])? else {
                    queue.flush()?;
                    return Ok(false);
                };
                burst[0].copy_from_slice(bytes);
                burst.put();
            }
            self.frames.pop_front();
        }
        Ok(true)
    }

    /// As [`Aside::send`], and waits for room as long as the card makes some.
    pub fn send_all(&mut self, queue: &mut TxQueue, mut drop: impl FnMut(&TxQueue, usize)) -> Result<(), Error> {
        let (mut left, mut since) = (self.frames.len(), Instant::now());
        while !self.send(queue, &mut drop)? && since.elapsed() < PATIENCE {
            if self.frames.len() < left {
                (left, since) = (self.frames.len(), Instant::now());
            }
            queue.wait(PATIENCE.saturating_sub(since.elapsed()))?;
            std::thread::yield_now();
        }
        Ok(())
    }
}
