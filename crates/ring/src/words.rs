//! A ring of short words between two processes, in one direction: doorbells.
//!
//! ```text
//! 0    up to which word the receiver has taken     (a line of the cache to itself, as the next)
//! 64   the receiver sleeps, and wants to be woken  (`wake`)
//! 128  words: bits 31:0 stamp, 63:32 what is said
//! ```
//!
//! The stamp of a word is its number and one more, modulo 2^32. Stamp and what is said are one store, so that a word is there as a whole or not at all; eight
//! of them are a line of the cache, so that the ring is a few lines, which the first cache of both sides keeps
//! (docs/decisions/0092-doorbells-are-words.md).
//!
//! Neither side believes the other: positions are checked, and each word is loaded once.

use crate::wake::{Ringer, Sleeper};
use millrace_dma::{Ordering, OutOfRange, Slots64, Window, Word64};

const TAKEN: usize = 0;
const ASLEEP: usize = 64;
const WORDS: usize = 128;

/// Bytes of a ring of that many words.
pub const fn bytes_of(words: u32) -> usize {
    WORDS + words as usize * 8
}

/// The side that writes.
pub struct Sender {
    slots: Slots64,
    words: u32,
    taken: Word64,
    ringer: Ringer,
    written: u32,
    /// Up to where the receiver has taken, as we know it.
    free: u32,
}

impl Sender {
    /// Of an empty ring of `words` words, a power of two, at the beginning of `window`.
    ///
    /// # Errors
    /// The window is too short, or `words` is no power of two.
    pub fn new(window: &Window, words: u32) -> Result<Self, OutOfRange> {
        let slots = window.slots64(WORDS, words)?;
        let ringer = Ringer::new(window.word32(ASLEEP)?);
        Ok(Self { slots, words, taken: window.word64(TAKEN)?, ringer, written: 0, free: 0 })
    }

    /// Of a ring in which another sender has written, which has ended: goes on behind what that one has sent. It looks at each place once.
    ///
    /// # Errors
    /// As [`Sender::new`].
    pub fn resume(window: &Window, words: u32) -> Result<Self, OutOfRange> {
        let mut sender = Self::new(window, words)?;
        // Acquire as in `has_room`.
        sender.free = sender.taken.load(Ordering::Acquire) as u32;
        let end = sender.free.wrapping_add(words);
        let mut at = sender.free;
        while at != end && sender.slots.load(at) as u32 == at.wrapping_add(1) {
            at = at.wrapping_add(1);
        }
        sender.written = at;
        // Nothing in a free place looks as if it had been sent, whatever has been written there: a stamp is a number and one more.
        while at != end {
            sender.slots.store(at, at.into());
            at = at.wrapping_add(1);
        }
        Ok(sender)
    }

    #[inline(always)]
    fn has_room(&mut self) -> bool {
        if self.written.wrapping_sub(self.free) < self.words {
            return true;
        }
        // Acquire pairs with the Release in `Receiver::give_back`: what is overwritten was read before.
        self.free = self.taken.load(Ordering::Acquire) as u32;
        // A receiver that says that it has taken what was never sent gets nothing.
        self.written.wrapping_sub(self.free) < self.words
    }

    /// Sends a word. Whether there was room.
    #[inline(always)]
    pub fn send(&mut self, said: u32) -> bool {
        if !self.has_room() {
            return false;
        }
        let at = self.written;
        self.written = at.wrapping_add(1);
        // Release pairs with the Acquire in `Receiver::take`: what was stored before is seen by who takes the word.
        self.slots.store_release(at, u64::from(self.written) | u64::from(said) << 32);
        true
    }

    /// Whether the receiver has not taken all that was sent.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        // Acquire as in `has_room`. Who wants more than that makes a fence before it.
        self.taken.load(Ordering::Acquire) as u32 != self.written
    }

    /// Whether the receiver is to be woken, after something was sent. It says so once.
    #[inline(always)]
    pub fn must_wake(&self) -> bool {
        self.ringer.must_signal()
    }
}

/// The side that reads.
pub struct Receiver {
    slots: Slots64,
    taken: Word64,
    sleeper: Sleeper,
    read: u32,
}

impl Receiver {
    /// Of an empty ring of `words` words, a power of two, at the beginning of `window`.
    ///
    /// # Errors
    /// The window is too short, or `words` is no power of two.
    pub fn new(window: &Window, words: u32) -> Result<Self, OutOfRange> {
        let slots = window.slots64(WORDS, words)?;
        let sleeper = Sleeper::new(window.word32(ASLEEP)?);
        Ok(Self { slots, taken: window.word64(TAKEN)?, sleeper, read: 0 })
    }

    /// Of a ring from which another receiver has taken, which has ended: goes on behind what that one has given back.
    ///
    /// # Errors
    /// As [`Receiver::new`].
    pub fn resume(window: &Window, words: u32) -> Result<Self, OutOfRange> {
        let mut receiver = Self::new(window, words)?;
        // Acquire pairs with the Release in `give_back`, of the receiver before.
        receiver.read = receiver.taken.load(Ordering::Acquire) as u32;
        Ok(receiver)
    }

    /// Whether there is a word.
    #[inline]
    pub fn has_more(&self) -> bool {
        // Acquire as in `take`, which looks again.
        self.slots.load_acquire(self.read) as u32 == self.read.wrapping_add(1)
    }

    /// The next word. Its place is the sender's again after [`Receiver::give_back`].
    #[inline(always)]
    pub fn take(&mut self) -> Option<u32> {
        let next = self.read.wrapping_add(1);
        // Acquire pairs with the Release in `Sender::send`.
        let word = self.slots.load_acquire(self.read);
        if word as u32 != next {
            return None;
        }
        self.read = next;
        Some((word >> 32) as u32)
    }

    /// The sender may use the places of all that was taken.
    #[inline(always)]
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

    const SIZE: u32 = 8;

    fn ring() -> (Region, Sender, Receiver) {
        let region = Region::heap(bytes_of(SIZE));
        let (sender, receiver) = (Sender::new(region.window(), SIZE), Receiver::new(region.window(), SIZE));
        (region, sender.unwrap(), receiver.unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Any turns, also past the last stamp: what comes is what went, in order; a full ring says so, until its places are given back.
        #[test]
        fn words_come_as_they_went(turns in prop::collection::vec((any::<u32>(), 0usize..12, 0usize..12), 1..80), first in prop_oneof![Just(0u32), Just(u32::MAX - 20)]) {
            let (_region, mut sender, mut receiver) = ring();
            (sender.written, sender.free, receiver.read) = (first, first, first);
            receiver.give_back();
            let (mut waiting, mut held) = (VecDeque::new(), 0);
            for (said, sends, takes) in turns {
                for number in 0..sends as u32 {
                    let has_room = waiting.len() + held < SIZE as usize;
                    prop_assert_eq!(sender.send(said ^ number), has_room);
                    if has_room {
                        waiting.push_back(said ^ number);
                    }
                }
                for _ in 0..takes {
                    prop_assert_eq!(receiver.has_more(), !waiting.is_empty());
                    let taken = receiver.take();
                    prop_assert_eq!(taken, waiting.pop_front());
                    held += usize::from(taken.is_some());
                }
                prop_assert_eq!(sender.has_waiting(), waiting.len() + held > 0);
                if said % 2 == 0 {
                    receiver.give_back();
                    held = 0;
                }
            }
        }

        /// Whatever the other process writes, the receiver takes each place once, and the sender stays within its ring.
        #[test]
        fn nonsense_does_no_harm(words in prop::collection::vec((0..SIZE, any::<u64>(), any::<bool>()), 0..50), taken: u64) {
            let (region, mut sender, mut receiver) = ring();
            let slots = region.window().slots64(WORDS, SIZE).unwrap();
            for (at, word, is_stamped) in words {
                slots.store(at, if is_stamped { word << 32 | u64::from(at + 1) } else { word });
            }
            let count = core::iter::from_fn(|| receiver.take()).take(100).count();
            prop_assert!(count <= SIZE as usize, "an old word is taken for a new one");
            region.window().word64(TAKEN).unwrap().store(taken, Ordering::Relaxed);
            let sent = (0..100).filter(|_| sender.send(7)).count();
            prop_assert!(sent <= 2 * SIZE as usize);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Senders and receivers that end at any moment: those after them go on where they were, also past the last stamp, and with
        /// whatever stood in free places.
        #[test]
        fn others_go_on_where_these_have_ended(turns in prop::collection::vec((0usize..12, 0usize..12, any::<bool>(), any::<bool>(), any::<u64>()), 1..40), first in prop_oneof![Just(0u32), Just(u32::MAX - 20)]) {
            let (region, mut sender, mut receiver) = ring();
            (sender.written, sender.free, receiver.read) = (first, first, first);
            receiver.give_back();
            let (mut waiting, mut number) = (VecDeque::new(), 0);
            for (sends, takes, new_sender, new_receiver, nonsense) in turns {
                if new_sender {
                    let free = SIZE - waiting.len() as u32;
                    if free > 1 {
                        // As if it had been sent, in a free place that is not the next one.
                        let at = sender.written.wrapping_add(1 + nonsense as u32 % (free - 1));
                        sender.slots.store(at, u64::from(at.wrapping_add(1)) | nonsense << 32);
                    }
                    sender = Sender::resume(region.window(), SIZE).unwrap();
                }
                if new_receiver {
                    receiver = Receiver::resume(region.window(), SIZE).unwrap();
                }
                for _ in 0..sends {
                    let has_room = waiting.len() < SIZE as usize;
                    prop_assert_eq!(sender.send(number), has_room);
                    if has_room {
                        waiting.push_back(number);
                        number += 1;
                    }
                }
                for _ in 0..takes {
                    prop_assert_eq!(receiver.take(), waiting.pop_front());
                    receiver.give_back();
                }
            }
        }
    }

    #[test]
    fn two_threads_agree() {
        let (_region, mut sender, mut receiver) = ring();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..100_000 {
                    while !sender.send(number) {
                        std::thread::yield_now();
                    }
                }
            });
            let mut next = 0;
            while next < 100_000 {
                match receiver.take() {
                    Some(said) => {
                        assert_eq!(said, next);
                        next += 1;
                        receiver.give_back();
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let (_region, mut sender, mut receiver) = ring();
        assert!(!sender.must_wake() && receiver.doze());
        assert!(sender.send(1) && sender.must_wake() && !sender.must_wake());
        assert!(!receiver.doze(), "something is there");
        receiver.awake();
        assert!(!sender.must_wake());
        assert_eq!((receiver.take(), receiver.take()), (Some(1), None));
        let short = Region::heap(bytes_of(SIZE) - 1);
        assert!(Sender::new(short.window(), SIZE).is_err() && Receiver::new(short.window(), 6).is_err());
    }
}
