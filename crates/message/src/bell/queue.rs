//! The queue of doorbells of one sender to one receiver, in shared memory: a ring of words (`millrace_ring::words`), so that a doorbell
//! is one store, and moves one line of the cache.
//!
//! ```text
//! 0                      the ring: who writes and reads what, says `words`
//! bytes_of_words         a bit for each number that the receiver wants     (`filter`)
//! ```
//!
//! A doorbell that may be *coalesced* with the one before says so in its word. The sender leaves it out if the last one that it has
//! sent has the same number and is not taken yet:
//!
//! ```text
//! sender                                    receiver
//! what the doorbell is about (any store)    taken = up to here
//! fence(SeqCst)     -- pairs with --        fence(SeqCst)         (only for those that may be coalesced)
//! taken: not yet? then leave it out         looks what it is about
//! ```
//!
//! Either the sender sees that it was taken, and sends another one, or the receiver sees what the sender had stored.

use super::Filter;
use super::filter::{LEN as FILTER, Owner, View};
use millrace_dma::{Ordering, OutOfRange, Window, fence};
use millrace_ring::lines::Malformed;
use millrace_ring::words;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Doorbells that wait, by default.
const BELLS: u32 = 256;
/// Bytes of a queue of as many doorbells as there are by default.
pub const BELLS_LEN: usize = bytes_of(BELLS);
/// The bit beside the number: it may be coalesced.
const COALESCED: u32 = 1 << 16;

/// Bytes of a queue of so many doorbells, a power of two.
pub const fn bytes_of(bells: u32) -> usize {
    words::bytes_of(bells) + FILTER
}

fn parts(window: &Window, bells: u32) -> Result<(Window, View), OutOfRange> {
    let ring = words::bytes_of(bells);
    Ok((window.part(0, ring)?, View::new(&window.part(ring, FILTER)?)?))
}

/// A doorbell was not sent. It was not lost either: the caller still has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// As many wait there as may.
    #[error("the other endpoint has not taken the doorbells that wait: ring again later")]
    Queue,
    /// Nobody there wants this number.
    #[error("nobody has claimed this doorbell at the other endpoint")]
    Unwanted,
    /// Another thread has all that is needed to ring there.
    #[error("a DoorbellSender rings the doorbells of this pair: ring by that one, or drop it first")]
    Lent,
}

/// What became of a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It waits at the other end.
    Rung,
    /// One with that number waits there already, and is all that comes.
    Coalesced,
}

/// The side that rings.
pub struct Sender {
    words: words::Sender,
    wanted: View,
    /// The last one, if it may stand for the next.
    last: Option<u16>,
}

impl Sender {
    /// Of an empty queue at the beginning of `window`.
    ///
    /// # Errors
    /// The window is too short, or `bells` is no power of two.
    pub fn new(window: &Window, bells: u32) -> Result<Self, OutOfRange> {
        let (ring, wanted) = parts(window, bells)?;
        Ok(Self { words: words::Sender::new(&ring, bells)?, wanted, last: None })
    }

    /// Of a queue that another sender has written to, which has ended: goes on behind what that one has sent.
    ///
    /// # Errors
    /// As [`Sender::new`].
    pub fn resume(window: &Window, bells: u32) -> Result<Self, OutOfRange> {
        let (ring, wanted) = parts(window, bells)?;
        Ok(Self { words: words::Sender::resume(&ring, bells)?, wanted, last: None })
    }

    /// Sends a doorbell.
    ///
    /// # Errors
    /// [`Full`]: it was not sent.
    #[inline]
    pub fn ring(&mut self, number: u16) -> Result<(), Full> {
        self.send(number, 0)?;
        self.last = None;
        Ok(())
    }

    /// Sends a doorbell, unless the last one is the same, was sent by this too, and waits still.
    ///
    /// # Errors
    /// [`Full`]: it was not sent.
    #[inline]
    pub fn ring_once(&mut self, number: u16) -> Result<Sent, Full> {
        if self.last == Some(number) {
            // Pairs with the fence in `Receiver::take`.
            fence(Ordering::SeqCst);
            if self.words.has_waiting() {
                return Ok(Sent::Coalesced);
            }
        }
        self.send(number, COALESCED)?;
        self.last = Some(number);
        Ok(Sent::Rung)
    }

    #[inline(always)]
    fn send(&mut self, number: u16, flag: u32) -> Result<(), Full> {
        if !self.wanted.is_wanted(number) {
            return Err(Full::Unwanted);
        }
        if self.words.send(u32::from(number) | flag) { Ok(()) } else { Err(Full::Queue) }
    }

    /// Whether the receiver has not taken all that was sent.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        self.words.has_waiting()
    }

    /// Whether the receiver is to be woken, after something was sent. It says so once.
    #[inline]
    pub fn must_wake(&self) -> bool {
        self.words.must_wake()
    }
}

/// A doorbell that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bell {
    /// Its number.
    pub number: u16,
    /// Whose it is.
    pub owner: Owner,
}

/// The side that is rung.
pub struct Receiver {
    words: words::Receiver,
    wanted: View,
    /// Doorbells that nobody had claimed: their senders did not look, or they were released on the way.
    unwanted: Arc<AtomicU64>,
}

impl Receiver {
    /// Of an empty queue at the beginning of `window`.
    ///
    /// # Errors
    /// The window is too short, or `bells` is no power of two.
    pub fn new(window: &Window, bells: u32) -> Result<Self, OutOfRange> {
        let (ring, wanted) = parts(window, bells)?;
        Ok(Self { words: words::Receiver::new(&ring, bells)?, wanted, unwanted: Arc::default() })
    }

    /// Of a queue from which another receiver has taken, which has ended: goes on with what that one has not taken.
    ///
    /// # Errors
    /// As [`Receiver::new`].
    pub fn resume(window: &Window, bells: u32) -> Result<Self, OutOfRange> {
        let (ring, wanted) = parts(window, bells)?;
        Ok(Self { words: words::Receiver::resume(&ring, bells)?, wanted, unwanted: Arc::default() })
    }

    /// Doorbells that nobody has claimed are counted there, with those of others.
    pub fn count_in(&mut self, unwanted: &Arc<AtomicU64>) {
        self.unwanted = Arc::clone(unwanted);
    }

    /// Where it is said which numbers are wanted, for whoever says it instead of this.
    pub fn view(&self) -> View {
        self.wanted.clone()
    }

    /// Says to the sender which numbers are wanted.
    pub fn publish(&self, filter: &Filter) {
        filter.publish(&self.wanted);
    }

    /// Whether something has come.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.words.has_more()
    }

    /// The next doorbell; its place is the sender's again. One that nobody wants is counted, and ends this call as if there were none.
    ///
    /// # Errors
    /// [`Malformed`]: nothing more is to be taken from this queue.
    #[inline]
    pub fn take(&mut self, filter: &Filter) -> Result<Option<Bell>, Malformed> {
        let Some(word) = self.words.take() else { return Ok(None) };
        self.words.give_back();
        if word >= 2 * COALESCED {
            return Err(Malformed);
        }
        if word & COALESCED != 0 {
            // Pairs with the fence in `Sender::ring_once`.
            fence(Ordering::SeqCst);
        }
        let number = word as u16;
        let Some(owner) = filter.owner(number) else {
            // Relaxed: a count, which orders nothing.
            self.unwanted.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        };
        Ok(Some(Bell { number, owner }))
    }

    /// Says that the sender is to wake this side. Whether it may sleep: nothing has come meanwhile.
    pub fn doze(&self) -> bool {
        self.words.doze()
    }

    /// Is awake.
    pub fn awake(&self) {
        self.words.awake();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use millrace_dma::Region;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const SIZE: u32 = 8;

    fn queue() -> (Region, Sender, Receiver, Filter) {
        let region = Region::heap(bytes_of(SIZE));
        let (sender, receiver) =
            (Sender::new(region.window(), SIZE).unwrap(), Receiver::new(region.window(), SIZE).unwrap());
        let mut filter = Filter::default();
        filter.claim(10..=19, Owner(1)).unwrap();
        filter.claim(20..=29, Owner(2)).unwrap();
        receiver.publish(&filter);
        (region, sender, receiver, filter)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Any turns: what was accepted comes, once, in order, to its owner; what was refused does not come; a queue is full when as
        /// many wait as may; only what was sent to be coalesced is, and only while it waits.
        #[test]
        fn doorbells_come_as_they_went(turns in prop::collection::vec((0u16..40, any::<bool>(), 0usize..4), 1..300)) {
            let (_region, mut sender, mut receiver, filter) = queue();
            let mut waiting = VecDeque::new();
            let mut last = None;
            for (number, once, takes) in turns {
                let wanted = (10..30).contains(&number);
                if once && last == Some(number) && !waiting.is_empty() {
                    prop_assert_eq!(sender.ring_once(number), Ok(Sent::Coalesced));
                } else {
                    let sent = if once { sender.ring_once(number).map(drop) } else { sender.ring(number) };
                    let expected = match () {
                        () if !wanted => Err(Full::Unwanted),
                        () if waiting.len() == SIZE as usize => Err(Full::Queue),
                        () => Ok(()),
                    };
                    prop_assert_eq!(sent, expected);
                    if sent.is_ok() {
                        waiting.push_back(number);
                        last = once.then_some(number);
                    }
                }
                for _ in 0..takes {
                    let bell = receiver.take(&filter).unwrap();
                    let expected = waiting.pop_front();
                    prop_assert_eq!(bell.map(|bell| bell.number), expected);
                    prop_assert_eq!(bell.map(|bell| bell.owner.0), expected.map(|number| u32::from(number) / 10));
                }
            }
        }

        /// Whatever the sender writes, the receiver takes doorbells that are claimed, counts others, or says that it is none.
        #[test]
        fn nonsense_does_no_harm(words in prop::collection::vec((0..SIZE, any::<u32>()), 0..100)) {
            let (region, _sender, mut receiver, filter) = queue();
            let slots = region.window().slots64(128, SIZE).unwrap();
            for (at, word) in words {
                slots.store(at, u64::from(at + 1) | u64::from(word & 0x3_ffff) << 32);
            }
            let mut count = 0;
            while let Ok(bell) = receiver.take(&filter) {
                if !receiver.has_more() && bell.is_none() {
                    break;
                }
                prop_assert!(bell.is_none_or(|bell| (10..30).contains(&bell.number)));
                count += 1;
                prop_assert!(count <= SIZE);
            }
        }
    }

    #[test]
    fn a_number_that_is_released_on_the_way_is_counted() {
        let (_region, mut sender, mut receiver, mut filter) = queue();
        sender.ring(15).unwrap();
        sender.ring(25).unwrap();
        filter.release(Owner(1));
        assert_eq!(receiver.take(&filter), Ok(None));
        assert_eq!(receiver.take(&filter), Ok(Some(Bell { number: 25, owner: Owner(2) })));
        assert_eq!(receiver.unwanted.load(Ordering::Relaxed), 1);
        receiver.publish(&filter);
        assert_eq!(sender.ring(15), Err(Full::Unwanted));
    }
}
