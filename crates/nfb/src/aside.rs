//! Bursts that never fit into the ring at once, and frames that no queue of the card holds.
//!
//! libnfb hands out a burst whole or not at all (trap T6), and its programs ask for the same burst until they have it: what can
//! never be had would be asked for without end. The vendor's library gives such a burst memory beside the ring and fills the
//! ring when it is put. So does this one: `put` copies what there is room for, the next calls copy the rest. What is got
//! before that put lies here too, so that the order stays. A frame that is too long for the queue gets a place that is never
//! sent.

use millrace::{Error, TxQueue};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Longest frame that a place is made for: the longest that captures hold. What is longer is no length at all.
pub const LONGEST: u32 = 1 << 18;

/// How long a flush waits for a card that takes nothing: as long as a stop does. What is left follows at the next call.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a flush sleeps before it looks for room again. The smallest ring holds what a card takes in this time.
const SLICE: Duration = Duration::from_micros(100);

/// Each frame begins a cache line of its own.
const ALIGN: usize = 64;

/// Memory comes in pieces of this size, which never move: programs hold pointers into them. Each holds 16 of the longest
/// frames that a queue can take.
const PIECE: usize = 1 << 20;

/// Most memory beside the ring: a burst of any length fits when there is nothing else.
const MOST: usize = 64 * PIECE;

/// Why a burst gets no place.
#[derive(Debug, PartialEq)]
pub enum NoPlace {
    /// A frame is as long as no frame is.
    NoLength(u32),
    /// What was got and not put takes all the memory there is.
    Full,
}

/// Frames that were too long, and are not sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TooLong {
    pub frames: u64,
    /// Length of one of them.
    pub len: u32,
}

/// Bursts beside the ring; empty most of the time.
#[derive(Default)]
pub struct Aside {
    pieces: Vec<Vec<u8>>,
    // Where the frames are, as if the pieces were one; none lies in two of them.
    frames: VecDeque<Range<usize>>,
    end: usize,
    too_long: TooLong,
    // Where the program writes what is not sent: the same place for all.
    waste: Vec<u8>,
    // Whether the program has put it.
    written: bool,
}

impl Aside {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.too_long.frames == 0
    }

    /// Whether the program still writes: further bursts belong behind this one.
    pub fn is_written(&self) -> bool {
        self.written
    }

    /// Makes room for a burst behind what is here and not put, all of it or none, and says where each frame is to be
    /// written: valid until all have gone. Frames longer than `longest` will not be sent.
    pub fn add(&mut self, lengths: &[u32], longest: usize) -> Result<Vec<*mut u8>, NoPlace> {
        debug_assert!(longest < PIECE && (self.is_empty() || !self.written));
        if let Some(&len) = lengths.iter().find(|&&len| len > LONGEST) {
            return Err(NoPlace::NoLength(len));
        }
        if self.is_empty() {
            (self.end, self.written) = (0, false);
        }
        let fits = |len: u32| len as usize <= longest;
        let end = lengths.iter().filter(|&&len| fits(len)).fold(self.end, |end, &len| after(&place(end, len)));
        if end > MOST {
            return Err(NoPlace::Full);
        }
        while self.pieces.len() * PIECE < end {
            self.pieces.push(vec![0; PIECE]);
        }
        Ok(lengths.iter().map(|&len| if fits(len) { self.add_frame(len) } else { self.add_waste(len) }).collect())
    }

    fn add_frame(&mut self, len: u32) -> *mut u8 {
        let frame = place(self.end, len);
        self.end = after(&frame);
        let at = self.pieces[frame.start / PIECE].as_mut_ptr().wrapping_add(frame.start % PIECE);
        self.frames.push_back(frame);
        at
    }

    fn add_waste(&mut self, len: u32) -> *mut u8 {
        self.too_long = TooLong { frames: self.too_long.frames + 1, len };
        if self.waste.is_empty() {
            self.waste = vec![0; LONGEST as usize];
        }
        self.waste.as_mut_ptr()
    }

    /// The program has written its bursts. What was too long has gone with that; it is to be counted.
    pub fn put(&mut self) -> TooLong {
        self.written = true;
        core::mem::take(&mut self.too_long)
    }

    /// Drops what is left, and says how many frames that were.
    pub fn forget(&mut self) -> u64 {
        let left = self.frames.len() as u64 + core::mem::take(&mut self.too_long).frames;
        self.frames.clear();
        left
    }

    /// Sends what was put and there is room for, and says whether nothing is left.
    pub fn send(&mut self, queue: &mut TxQueue) -> Result<bool, Error> {
        if !self.written {
            return Ok(self.is_empty());
        }
        while let Some(frame) = self.frames.front() {
            let begin = frame.start % PIECE;
            let bytes = &self.pieces[frame.start / PIECE][begin..begin + frame.len()];
            // The cast is exact: no queue takes more than 65535 bytes.
            let Some(mut burst) = queue.get(&[bytes.len() as u16])? else {
                queue.flush()?;
                return Ok(false);
            };
            burst[0].copy_from_slice(bytes);
            burst.put();
            self.frames.pop_front();
        }
        Ok(true)
    }

    /// As [`Aside::send`], and waits for room as long as the card makes some.
    pub fn send_all(&mut self, queue: &mut TxQueue) -> Result<(), Error> {
        let (mut left, mut since) = (self.frames.len(), Instant::now());
        while !self.send(queue)? {
            if self.frames.len() < left {
                (left, since) = (self.frames.len(), Instant::now());
            } else if since.elapsed() >= PATIENCE {
                break;
            }
            std::thread::sleep(SLICE);
        }
        Ok(())
    }
}

/// Where a frame lies that is the first behind `end`.
fn place(end: usize, len: u32) -> Range<usize> {
    // One without bytes has a place too.
    let crosses = end % PIECE + len.max(1) as usize > PIECE;
    let start = if crosses { end.next_multiple_of(PIECE) } else { end };
    start..start + len as usize
}

/// Where the next may begin.
fn after(frame: &Range<usize>) -> usize {
    (frame.start + frame.len().max(1)).next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_several_bursts_neither_move_nor_overlap_until_memory_ends() {
        let mut aside = Aside::default();
        let lengths = [0, 1, 64, 16383, 65535, 9000];
        let mut places: Vec<(usize, usize)> = Vec::new();
        let full = loop {
            match aside.add(&lengths, 65535) {
                Ok(added) => places.extend(added.iter().map(|at| at.addr()).zip(lengths.map(|len| len as usize))),
                Err(why) => break why,
            }
        };
        assert_eq!(full, NoPlace::Full);
        // At most one frame is missing at the end of each piece.
        assert!(
            places.iter().map(|(_, len)| len).sum::<usize>() > MOST - (MOST / PIECE + 2) * 65536 - places.len() * ALIGN
        );
        let at = |frame: &Range<usize>| aside.pieces[frame.start / PIECE].as_ptr().addr() + frame.start % PIECE;
        assert!(aside.frames.iter().map(|frame| (at(frame), frame.len())).eq(places.iter().copied()), "none has moved");
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1.max(1) <= pair[1].0), "none overlaps");
        assert_eq!(aside.forget(), places.len() as u64);
        assert!(
            aside.is_empty() && aside.add(&[65535; 1024], 65535).is_ok(),
            "any burst fits when there is nothing else"
        );
    }

    #[test]
    fn what_is_too_long_takes_no_room_and_what_is_no_length_gets_none() {
        let mut aside = Aside::default();
        assert_eq!(aside.add(&[60, LONGEST + 1], 1518), Err(NoPlace::NoLength(LONGEST + 1)));
        assert!(aside.is_empty() && aside.forget() == 0, "all or none");
        for _ in 0..100 {
            assert_eq!(aside.add(&[LONGEST; 1024], 1518).map(|places| places.len()), Ok(1024));
        }
        assert!(!aside.is_empty() && aside.pieces.is_empty());
        assert_eq!(aside.put(), TooLong { frames: 102_400, len: LONGEST });
        assert!(aside.is_empty());
    }
}
