//! How several programs read one RX queue in direct mode.
//!
//! Every subscriber has a cursor word in its own control page; the ring and its update word are shared and read-only to
//! all of them. The card gives back to itself what every subscriber has passed.
//!
//! ```text
//! cursor word: bits 39:0 position, bits 63:40 held       (units: packets, or 8 bytes for SZE; modulo 2^40)
//!
//! subscriber   get   (p, 0) -> (p, n)     compare-exchange: from now on the card cannot move the cursor
//!              put   (p, n) -> (p+n, 0)   compare-exchange: fails for one that was thrown out
//! card         skip  (p, 0) -> (q, 0)     compare-exchange: policy `drop`, when the ring is full
//!              end   any    -> all ones   store: policy `evict`, or a cursor that makes no sense
//! ```
//!
//! A subscriber that holds packets is never skipped, so a slice in its hands never changes; one that holds nothing and
//! has fallen a whole ring behind loses the oldest packets and sees it in its position. No existing interface has both
//! direct pointers and several readers; this word is what makes it possible. A subscriber that was thrown out cannot take
//! packets any more, because its compare-exchange fails; what it holds at that moment may change in its hands.

use millrace_dma::{Ordering, Word64};

const POSITION_BITS: u32 = 40;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;

/// A position in the stream of a queue, modulo 2^40.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position(u64);

impl Position {
    /// The position with this number; higher bits are ignored.
    pub const fn new(number: u64) -> Self {
        Self(number & POSITION_MASK)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position `by` units further on.
    #[must_use]
    pub const fn plus(self, by: u64) -> Self {
        Self::new(self.0.wrapping_add(by))
    }

    /// Units from here to `to`; a `to` that lies behind is a very large number.
    pub const fn distance(self, to: Self) -> u64 {
        to.0.wrapping_sub(self.0) & POSITION_MASK
    }
}

/// What a cursor word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// First unit that was not given back.
    pub position: Position,
    /// Units in the hands of the subscriber.
    pub held: u32,
}

impl Cursor {
    /// Most units that can be held at once. One less than the bits can say: the highest word marks a cursor that has ended.
    pub const MOST_HELD: u32 = (1 << (64 - POSITION_BITS)) - 2;

    /// The meaning of a word.
    pub const fn decode(word: u64) -> Self {
        Self { position: Position::new(word), held: (word >> POSITION_BITS) as u32 }
    }

    /// The word with this meaning.
    pub const fn encode(self) -> u64 {
        self.position.0 | (self.held as u64) << POSITION_BITS
    }
}

/// The word of a subscriber that was thrown out.
const ENDED: u64 = u64::MAX;

/// The subscriber's side of a cursor.
pub struct Subscriber {
    word: Word64,
    position: Position,
    held: u32,
}

impl Subscriber {
    /// The subscriber behind `word`, which the driver has set to the position where reading begins.
    pub fn new(word: Word64) -> Self {
        let position = Cursor::decode(word.load(Ordering::Acquire)).position;
        Self { word, position, held: 0 }
    }

    /// First unit that was not given back, as last known.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Takes `units` from the cursor on. If the card has skipped packets meanwhile, takes nothing and says how many
    /// units were lost: the caller looks at the ring again.
    ///
    /// # Errors
    /// The number of units skipped.
    pub fn hold(&mut self, units: u32) -> Result<(), u64> {
        let free = Cursor { position: self.position, held: 0 };
        let held = Cursor { held: units, ..free };
        match self.word.compare_exchange(free.encode(), held.encode()) {
            Ok(_) => {
                self.held = units;
                Ok(())
            }
            Err(word) => Err(self.go_to(word)),
        }
    }

    fn go_to(&mut self, word: u64) -> u64 {
        if word == ENDED {
            return 0;
        }
        let now = Cursor::decode(word).position;
        let lost = self.position.distance(now);
        self.position = now;
        lost
    }

    /// Goes to where the card has moved the cursor, if it has, and returns how many units were lost by that. Only for a
    /// subscriber that holds nothing.
    pub fn catch_up(&mut self) -> u64 {
        let word = self.word.load(Ordering::Acquire);
        self.go_to(word)
    }

    /// Gives `units` back, all that was held.
    pub fn release(&mut self, units: u32) {
        self.give_back(units, 0);
    }

    /// Gives the first `units` back and goes on holding `rest`.
    pub fn give_back(&mut self, units: u32, rest: u32) {
        let before = Cursor { position: self.position, held: self.held };
        let after = Cursor { position: self.position.plus(u64::from(units)), held: rest };
        // Release (in AcqRel) pairs with the Acquire in `Watched::look`: every load from the packets is done. Fails only
        // for a subscriber that was thrown out, whose word must stay as it is.
        let _ = self.word.compare_exchange(before.encode(), after.encode());
        (self.position, self.held) = (after.position, rest);
    }
}

/// The card's side of one subscriber's cursor.
pub struct Watched {
    word: Word64,
}

/// What the card found when it looked at a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The subscriber has passed this many units since `from`.
    Passed(u64),
    /// The word makes no sense: it lies outside what was published.
    Nonsense,
}

impl Watched {
    /// The cursor behind `word`, set to `start`.
    pub fn new(word: Word64, start: Position) -> Self {
        // Release: handed to the subscriber through the driver's socket, which orders it as well.
        word.store(Cursor { position: start, held: 0 }.encode(), Ordering::Release);
        Self { word }
    }

    /// How far the subscriber is past `from`, where `published` units lie behind `from`.
    pub fn look(&self, from: Position, published: u64) -> Look {
        // Acquire pairs with the Release in `Subscriber::release`.
        let cursor = Cursor::decode(self.word.load(Ordering::Acquire));
        let passed = from.distance(cursor.position);
        if passed > published || passed + u64::from(cursor.held) > published {
            Look::Nonsense
        } else {
            Look::Passed(passed)
        }
    }

    /// Throws the subscriber out: it takes nothing any more.
    pub fn end(&self) {
        // A plain store: one that writes its word without end must not keep the card here.
        self.word.store(ENDED, Ordering::Release);
    }

    /// Moves a subscriber that holds nothing on to `to`, if it is not there yet. Returns how many units it lost, or
    /// `None` if it holds some.
    pub fn skip(&self, to: Position) -> Option<u64> {
        let cursor = Cursor::decode(self.word.load(Ordering::Acquire));
        if cursor.held != 0 {
            return None;
        }
        // It may have moved since the caller looked; going back would show it packets twice.
        if to.distance(cursor.position) <= POSITION_MASK / 2 {
            return Some(0);
        }
        let next = Cursor { position: to, held: 0 };
        self.word.compare_exchange(cursor.encode(), next.encode()).ok().map(|_| cursor.position.distance(to))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use millrace_dma::Region;
    use proptest::prelude::*;

    fn pair(start: Position) -> (Watched, Subscriber, Word64) {
        let word = Region::heap(8).window().word64(0).unwrap();
        (Watched::new(word.clone(), start), Subscriber::new(word.clone()), word)
    }

    #[test]
    fn a_word_has_the_position_low_and_the_units_held_high() {
        for (position, held, bytes) in [
            (0, 0, [0u8; 8]),
            (1, 0, [1, 0, 0, 0, 0, 0, 0, 0]),
            (0, 1, [0, 0, 0, 0, 0, 1, 0, 0]),
            (0xff_ffff_ffff, 0, [0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0]),
            (0, Cursor::MOST_HELD, [0, 0, 0, 0, 0, 0xfe, 0xff, 0xff]),
            (0x12_3456_789a, 0xab_cdef, [0x9a, 0x78, 0x56, 0x34, 0x12, 0xef, 0xcd, 0xab]),
        ] {
            let cursor = Cursor { position: Position::new(position), held };
            assert_eq!(cursor.encode().to_le_bytes(), bytes);
            assert_eq!(Cursor::decode(u64::from_le_bytes(bytes)), cursor);
        }
    }

    #[test]
    fn positions_wrap_at_40_bits() {
        let last = Position::new(u64::MAX);
        assert_eq!(last.get(), (1 << 40) - 1);
        assert_eq!((last.plus(3).get(), last.distance(last.plus(3))), (2, 3));
        assert_eq!(Position::new(5).distance(Position::new(4)), (1 << 40) - 1);
    }

    #[test]
    fn what_is_held_is_not_skipped_and_what_is_skipped_is_not_held() {
        let start = Position::new(u64::MAX - 1);
        let (watched, mut subscriber, _) = pair(start);
        assert_eq!(subscriber.hold(3), Ok(()));
        assert_eq!(watched.look(start, 3), Look::Passed(0));
        assert_eq!(watched.skip(start.plus(3)), None);
        subscriber.release(3);
        assert_eq!(watched.look(start, 3), Look::Passed(3));
        assert_eq!(watched.skip(start.plus(5)), Some(2));
        assert_eq!(subscriber.hold(1), Err(2));
        assert_eq!(subscriber.position(), start.plus(5));
        assert_eq!(subscriber.hold(1), Ok(()));
        subscriber.give_back(1, 0);
        assert_eq!((watched.look(start, 6), subscriber.catch_up()), (Look::Passed(6), 0));
    }

    #[test]
    fn a_subscriber_that_is_further_on_is_not_moved_back() {
        let start = Position::new(10);
        let (watched, mut subscriber, _) = pair(start);
        assert_eq!(subscriber.hold(4), Ok(()));
        subscriber.release(4);
        assert_eq!(watched.skip(start.plus(2)), Some(0));
        assert_eq!(watched.skip(start.plus(4)), Some(0));
        assert_eq!(watched.look(start, 4), Look::Passed(4));
        assert_eq!(subscriber.hold(1), Ok(()));
    }

    #[test]
    fn a_subscriber_that_was_thrown_out_takes_nothing_and_says_nothing() {
        let (watched, mut subscriber, word) = pair(Position::new(0));
        assert_eq!(subscriber.hold(1), Ok(()));
        watched.end();
        subscriber.release(1);
        assert_eq!(word.load(Ordering::Relaxed), u64::MAX);
        assert_eq!(subscriber.hold(1), Err(0));
        assert_eq!(subscriber.catch_up(), 0);
    }

    #[test]
    fn a_word_outside_what_was_published_is_nonsense() {
        let start = Position::new(100);
        let (watched, _, word) = pair(start);
        for (position, held) in [(99, 0), (106, 0), (105, 1), (100, 6), (103, 3), (0, 0)] {
            word.store(Cursor { position: Position::new(position), held }.encode(), Ordering::Relaxed);
            assert_eq!(watched.look(start, 5), Look::Nonsense, "{position} {held}");
        }
        for (position, held) in [(100, 5), (105, 0), (102, 3)] {
            word.store(Cursor { position: Position::new(position), held }.encode(), Ordering::Relaxed);
            assert_eq!(watched.look(start, 5), Look::Passed(position - 100));
        }
    }

    proptest! {
        #[test]
        fn every_word_means_what_it_says(word: u64, from: u64, published in 0u64..1 << 24) {
            prop_assert_eq!(Cursor::decode(word).encode(), word);
            let (watched, _, shared) = pair(Position::new(0));
            shared.store(word, Ordering::Relaxed);
            if let Look::Passed(units) = watched.look(Position::new(from), published) {
                prop_assert!(units + u64::from(Cursor::decode(word).held) <= published);
            }
        }
    }
}
