//! A ring of short messages of words between two processes, in one direction: work requests and completions of an engine
//! that another process runs.
//!
//! ```text
//! 0    up to which line the receiver has taken     (a line of the cache to itself, as the next)
//! 64   the receiver sleeps, and wants to be woken  (`wake`)
//! 256  lines of eight words: stamp, seven words of the message
//! ```
//!
//! The stamp of a line is its number and one more, modulo 2^32; that of a message's first line has the number of words in its
//! upper half. The sender stores the first stamp last, with `Release`; the receiver loads it with `Acquire`. Nothing else says
//! that something has come, so that a message of up to seven words costs one line of the cache.
//!
//! Neither side believes the other: lengths and positions are checked, and each word is loaded once.

use crate::wake::{Ringer, Sleeper};
use millrace_dma::{Ordering, OutOfRange, Slots64, Window, Word64};

/// Words of a line.
const LINE: u32 = 8;
/// Words of a message in a line.
pub const ROOM: usize = 7;
const TAKEN: usize = 0;
const ASLEEP: usize = 64;
const LINES: usize = 256;

/// Most words of a message.
pub const MOST_WORDS: usize = 24 * ROOM;

/// Bytes of a ring of that many lines.
pub const fn bytes_of(lines: u32) -> usize {
    LINES + lines as usize * LINE as usize * 8
}

/// What the other side has written is no message. Nothing more is to be taken from this ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other process has written what is no message")]
pub struct Malformed;

const fn lines_of(words: usize) -> u32 {
    words.div_ceil(ROOM) as u32
}

/// The side that writes.
pub struct Sender {
    slots: Slots64,
    lines: u32,
    taken: Word64,
    ringer: Ringer,
    written: u32,
    /// Up to where the receiver has taken, as we know it.
    free: u32,
}

impl Sender {
    /// Of an empty ring of `lines` lines, a power of two, at the beginning of `window`.
    ///
    /// # Errors
    /// The window is too short, or `lines` is no power of two.
    pub fn new(window: &Window, lines: u32) -> Result<Self, OutOfRange> {
        let slots = window.slots64(LINES, lines.saturating_mul(LINE))?;
        let ringer = Ringer::new(window.word32(ASLEEP)?);
        Ok(Self { slots, lines, taken: window.word64(TAKEN)?, ringer, written: 0, free: 0 })
    }

    /// Of a ring in which another sender has written, which has ended: goes on behind the last whole message of that one. It looks at each line
    /// once.
    ///
    /// # Errors
    /// As [`Sender::new`].
    pub fn resume(window: &Window, lines: u32) -> Result<Self, OutOfRange> {
        let mut sender = Self::new(window, lines)?;
        // Acquire as in `has_room`.
        sender.free = sender.taken.load(Ordering::Acquire) as u32;
        let mut used = 0;
        while let Some(message) =
            sender.message_at(sender.free.wrapping_add(used)).filter(|count| *count <= lines - used)
        {
            used += message;
        }
        sender.written = sender.free.wrapping_add(used);
        // What the other one has begun, or whatever else stands in free lines, does not look as if it had been sent.
        for line in used..lines {
            let number = sender.free.wrapping_add(line);
            sender.slots.store(number.wrapping_mul(LINE), number.into());
        }
        Ok(sender)
    }

    /// How many lines the message has that begins there, if one does.
    fn message_at(&self, number: u32) -> Option<u32> {
        let stamp = self.slots.load(number.wrapping_mul(LINE));
        let words = (stamp >> 32) as usize;
        let is_one = stamp as u32 == number.wrapping_add(1) && (1..=MOST_WORDS).contains(&words);
        is_one.then(|| lines_of(words))
    }

    /// Whether a message of that many words has room.
    #[inline]
    pub fn has_room(&mut self, words: usize) -> bool {
        let lines = lines_of(words);
        if self.fits(lines) {
            return true;
        }
        // Acquire pairs with the Release in `Receiver::give_back`: what is overwritten was read before.
        self.free = self.taken.load(Ordering::Acquire) as u32;
        self.fits(lines)
    }

    /// A receiver that says that it has taken what was never sent gets nothing.
    fn fits(&self, lines: u32) -> bool {
        let used = self.written.wrapping_sub(self.free);
        used <= self.lines && lines <= self.lines - used
    }

    /// Sends a message, of 1 to [`MOST_WORDS`] words. Whether there was room.
    #[inline]
    pub fn send(&mut self, words: &[u64]) -> bool {
        if words.is_empty() || words.len() > MOST_WORDS || !self.has_room(words.len()) {
            return false;
        }
        // The first line comes last.
        for (line, part) in words.chunks(ROOM).enumerate().rev() {
            let number = self.written.wrapping_add(line as u32);
            let at = number.wrapping_mul(LINE);
            for (place, &word) in (1..).zip(part) {
                self.slots.store(at.wrapping_add(place), word);
            }
            let stamp = u64::from(number.wrapping_add(1));
            if line > 0 {
                self.slots.store(at, stamp);
            } else {
                // Release pairs with the Acquire in `Receiver::take`.
                self.slots.store_release(at, stamp | (words.len() as u64) << 32);
            }
        }
        self.written = self.written.wrapping_add(lines_of(words.len()));
        true
    }

    /// The same with a message of one line: the first `count` of these words, of 1 to 7.
    #[inline(always)]
    pub fn send_line(&mut self, words: &[u64; ROOM], count: usize) -> bool {
        if count == 0 || count > ROOM || !self.has_room(ROOM) {
            return false;
        }
        let at = self.written.wrapping_mul(LINE);
        for (place, &word) in (1..).zip(words) {
            self.slots.store(at.wrapping_add(place), word);
        }
        self.written = self.written.wrapping_add(1);
        // Release pairs with the Acquire in `Receiver::take`.
        self.slots.store_release(at, u64::from(self.written) | (count as u64) << 32);
        true
    }

    /// Whether the receiver has not taken all that was sent.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        // Acquire as in `has_room`. Who wants more than that makes a fence before it.
        self.taken.load(Ordering::Acquire) as u32 != self.written
    }

    /// Whether the receiver is to be woken, after something was sent. It says so once.
    #[inline]
    pub fn must_wake(&self) -> bool {
        self.ringer.must_signal()
    }
}

/// The side that reads.
pub struct Receiver {
    slots: Slots64,
    lines: u32,
    taken: Word64,
    sleeper: Sleeper,
    read: u32,
}

impl Receiver {
    /// Of an empty ring of `lines` lines, a power of two, at the beginning of `window`.
    ///
    /// # Errors
    /// The window is too short, or `lines` is no power of two.
    pub fn new(window: &Window, lines: u32) -> Result<Self, OutOfRange> {
        let slots = window.slots64(LINES, lines.saturating_mul(LINE))?;
        let sleeper = Sleeper::new(window.word32(ASLEEP)?);
        Ok(Self { slots, lines, taken: window.word64(TAKEN)?, sleeper, read: 0 })
    }

    /// Of a ring from which another receiver has taken, which has ended: goes on behind what that one has given back.
    ///
    /// # Errors
    /// As [`Receiver::new`].
    pub fn resume(window: &Window, lines: u32) -> Result<Self, OutOfRange> {
        let mut receiver = Self::new(window, lines)?;
        // Acquire pairs with the Release in `give_back`, of the receiver before.
        receiver.read = receiver.taken.load(Ordering::Acquire) as u32;
        Ok(receiver)
    }

    /// Whether there is a message.
    #[inline]
    pub fn has_more(&self) -> bool {
        // Acquire as in `take`, which looks again.
        self.slots.load_acquire(self.read.wrapping_mul(LINE)) as u32 == self.read.wrapping_add(1)
    }

    /// Copies the next message: how many words it has. Its lines are the sender's again after [`Receiver::give_back`].
    ///
    /// # Errors
    /// [`Malformed`].
    #[inline]
    pub fn take(&mut self, to: &mut [u64; MOST_WORDS]) -> Result<Option<usize>, Malformed> {
        // Acquire pairs with the Release in `Sender::send`.
        let first = self.slots.load_acquire(self.read.wrapping_mul(LINE));
        if first as u32 != self.read.wrapping_add(1) {
            return Ok(None);
        }
        let words = (first >> 32) as usize;
        if words == 0 || words > MOST_WORDS || lines_of(words) > self.lines {
            return Err(Malformed);
        }
        if words <= ROOM {
            // All of it: the compiler knows how much that is.
            let at = self.read.wrapping_mul(LINE);
            for (place, word) in (1..).zip(&mut to[..ROOM]) {
                *word = self.slots.load(at.wrapping_add(place));
            }
            self.read = self.read.wrapping_add(1);
            return Ok(Some(words));
        }
        for (line, part) in (0..).zip(to[..words].chunks_mut(ROOM)) {
            let number = self.read.wrapping_add(line);
            let at = number.wrapping_mul(LINE);
            if line > 0 && self.slots.load(at) != u64::from(number.wrapping_add(1)) {
                return Err(Malformed);
            }
            for (place, word) in (1..).zip(part) {
                *word = self.slots.load(at.wrapping_add(place));
            }
        }
        self.read = self.read.wrapping_add(lines_of(words));
        Ok(Some(words))
    }

    /// The sender may use the lines of all that was taken.
    #[inline]
    pub fn give_back(&self) {
        // Release pairs with the Acquire in `Sender::has_room`.
        self.taken.store(self.read.into(), Ordering::Release);
    }

    /// Says that the sender is to wake this side. Whether it may sleep: nothing has come meanwhile.
    pub fn doze(&self) -> bool {
        self.sleeper.announce();
        !self.has_more()
    }

    /// Is awake.
    pub fn awake(&self) {
        self.sleeper.awake();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use millrace_dma::Region;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const SIZE: u32 = 32;

    fn ring() -> (Region, Sender, Receiver) {
        let region = Region::heap(bytes_of(SIZE));
        let (sender, receiver) = (Sender::new(region.window(), SIZE), Receiver::new(region.window(), SIZE));
        (region, sender.unwrap(), receiver.unwrap())
    }

    fn message(number: u64, words: usize) -> Vec<u64> {
        (0..words as u64).map(|word| number * 1000 + word).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Any sizes and any turns: what comes is what went, in order; a full ring says so, and has no room for nothing.
        #[test]
        fn messages_come_as_they_went(turns in prop::collection::vec((1usize..=MOST_WORDS, 1usize..20, 0usize..20), 1..80)) {
            let (_region, mut sender, mut receiver) = ring();
            let (mut sent, mut waiting, mut to) = (0, VecDeque::new(), [0; MOST_WORDS]);
            for (words, sends, takes) in turns {
                for _ in 0..sends {
                    let used: u32 = waiting.iter().map(|(_, words)| lines_of(*words)).sum();
                    let words_of_it = message(sent, words);
                    let was_sent = if words <= ROOM && sent % 2 == 1 {
                        let mut line = [0; ROOM];
                        line[..words].copy_from_slice(&words_of_it);
                        sender.send_line(&line, words)
                    } else {
                        sender.send(&words_of_it)
                    };
                    prop_assert_eq!(was_sent, used + lines_of(words) <= SIZE);
                    if used + lines_of(words) > SIZE {
                        break;
                    }
                    waiting.push_back((sent, words));
                    sent += 1;
                }
                for _ in 0..takes {
                    prop_assert_eq!(receiver.has_more(), !waiting.is_empty());
                    let Some(found) = receiver.take(&mut to).unwrap() else { break };
                    let (number, words) = waiting.pop_front().unwrap();
                    prop_assert_eq!(&to[..found], &message(number, words)[..]);
                }
                receiver.give_back();
                prop_assert_eq!(sender.has_waiting(), !waiting.is_empty());
            }
        }

        /// Whatever the other process writes, the receiver takes messages or says that they are none, and the sender stays
        /// within its ring.
        #[test]
        fn nonsense_does_no_harm(words in prop::collection::vec((0..SIZE * LINE, any::<u64>()), 0..200), taken: u64) {
            let (region, mut sender, mut receiver) = ring();
            let slots = region.window().slots64(LINES, SIZE * LINE).unwrap();
            for (at, word) in words {
                let number = u64::from(at / LINE) + 1;
                slots.store(at, if at % LINE == 0 { word << 32 & 0xff_0000_0000 | number } else { word });
            }
            let mut to = [0; MOST_WORDS];
            let mut count = 0;
            while let Ok(Some(len)) = receiver.take(&mut to) {
                prop_assert!(len <= MOST_WORDS);
                count += 1;
                prop_assert!(count <= SIZE, "an old line is taken for a new one");
            }
            region.window().word64(TAKEN).unwrap().store(taken, Ordering::Relaxed);
            let sent = (0..100).filter(|_| sender.send(&[1, 2, 3])).count();
            prop_assert!(sent <= SIZE as usize);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Senders that end in the middle of a message, and receivers: those after them go on where they were.
        #[test]
        fn others_go_on_where_these_have_ended(turns in prop::collection::vec((1usize..=MOST_WORDS, 0usize..6, 0usize..6, any::<bool>(), any::<bool>()), 1..60)) {
            let (region, mut sender, mut receiver) = ring();
            let (mut waiting, mut sent, mut to) = (VecDeque::new(), 0, [0; MOST_WORDS]);
            for (words, sends, takes, new_sender, new_receiver) in turns {
                if new_sender {
                    // It had written all but the first stamp.
                    if sender.has_room(words) {
                        for line in 1..lines_of(words) {
                            let number = sender.written.wrapping_add(line);
                            sender.slots.store(number.wrapping_mul(LINE), u64::from(number.wrapping_add(1)));
                        }
                    }
                    sender = Sender::resume(region.window(), SIZE).unwrap();
                }
                if new_receiver {
                    receiver = Receiver::resume(region.window(), SIZE).unwrap();
                }
                for _ in 0..sends {
                    let used: u32 = waiting.iter().map(|(_, words)| lines_of(*words)).sum();
                    let is_sent = sender.send(&message(sent, words));
                    prop_assert_eq!(is_sent, used + lines_of(words) <= SIZE);
                    if is_sent {
                        waiting.push_back((sent, words));
                        sent += 1;
                    }
                }
                for _ in 0..takes {
                    let taken = receiver.take(&mut to).unwrap();
                    receiver.give_back();
                    prop_assert_eq!(taken, waiting.front().map(|(_, words)| *words));
                    if let Some((number, words)) = waiting.pop_front() {
                        prop_assert_eq!(&to[..words], &message(number, words)[..]);
                    }
                }
            }
        }
    }

    #[test]
    fn two_threads_agree_and_words_that_look_like_stamps_are_no_stamps() {
        let (_region, mut sender, mut receiver) = ring();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..30_000_u64 {
                    let words = number as usize * 37 % 40 + 1;
                    while !sender.send(&vec![number | 7 << 32; words]) {
                        std::thread::yield_now();
                    }
                }
            });
            let (mut next, mut to) = (0, [0; MOST_WORDS]);
            while next < 30_000_u64 {
                match receiver.take(&mut to).unwrap() {
                    Some(words) => {
                        assert_eq!(words, next as usize * 37 % 40 + 1);
                        assert!(to[..words].iter().all(|&word| word == next | 7 << 32));
                        next += 1;
                    }
                    None => {
                        receiver.give_back();
                        std::thread::yield_now();
                    }
                }
            }
        });
    }

    #[test]
    fn limits_are_kept_and_a_sleeper_is_woken_once() {
        let (_region, mut sender, mut receiver) = ring();
        assert!(!sender.send(&[]) && !sender.send(&[0; MOST_WORDS + 1]));
        assert!(!sender.send_line(&[0; ROOM], 0) && !sender.send_line(&[0; ROOM], ROOM + 1));
        assert!(!sender.must_wake() && receiver.doze());
        let mut to = [0; MOST_WORDS];
        assert_eq!(receiver.take(&mut to), Ok(None));
        assert!(sender.send(&[1]));
        assert!(sender.must_wake() && !sender.must_wake());
        assert!(!receiver.doze(), "something is there");
        receiver.awake();
        assert!(!sender.must_wake());
        assert_eq!((receiver.take(&mut to), to[0]), (Ok(Some(1)), 1));
        let short = Region::heap(bytes_of(SIZE) - 1);
        assert!(Sender::new(short.window(), SIZE).is_err() && Receiver::new(short.window(), 24).is_err());
    }
}
