//! The memory that two endpoints of one host share: what they say to each other, and doorbells, each way (`docs/spec/message.md` §1).
//!
//! ```text
//! 0                what the maker says         (a ring of lines)
//! WORDS            what the taker says
//! 2 * WORDS        doorbells of the maker      (`bell`)
//! ... + BELLS      doorbells of the taker
//! ```
//!
//! A short message goes by [`Channel::send`] and [`Channel::receive`] without a request, an action or a completion: one line of the cache, if
//! nothing is before it at either end. All else goes by the engine: [`Channel::say`] and [`Channel::hear`].

use crate::bell;
use crate::control::{Control, EAGER_AT, ONE_LINE, Tag};
use crate::engine::{Arrived, Breach, Engine, Outgoing, PairId, RequestId};
use millrace_dma::{OutOfRange, Window};
use millrace_ring::lines::{self, MOST_WORDS};

/// Lines of a ring. More than there can be envelopes with the default credits, so that a short message finds room.
const LINES: u32 = if cfg!(loom) { 4 } else { 1024 };
const BELLS: u32 = if cfg!(loom) { 2 } else { 256 };
const WORDS_LEN: usize = lines::bytes_of(LINES);
const BELLS_AT: usize = 2 * WORDS_LEN;
/// Bytes of the memory of a channel.
pub const CHANNEL_LEN: usize = BELLS_AT + 2 * bell::bytes_of(BELLS);

/// Which end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that made it.
    Maker,
    /// The one that was given it.
    Taker,
}

impl Side {
    /// Which of the two rings is written, and which is read.
    const fn numbers(self) -> (usize, usize) {
        match self {
            Self::Maker => (0, 1),
            Self::Taker => (1, 0),
        }
    }
}

/// The doorbells of that end of a channel: those to the other end, and those from it.
///
/// # Errors
/// The window is shorter than [`CHANNEL_LEN`].
pub fn doorbells(window: &Window, side: Side) -> Result<(bell::Sender, bell::Receiver), OutOfRange> {
    let queue = |number: usize| window.part(BELLS_AT + number * bell::bytes_of(BELLS), bell::bytes_of(BELLS));
    let (own, other) = side.numbers();
    Ok((bell::Sender::new(&queue(own)?, BELLS)?, bell::Receiver::new(&queue(other)?, BELLS)?))
}

/// A message that was taken from the ring by who asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is in the buffer.
    Message {
        /// What for.
        tag: Tag,
        /// How many bytes.
        len: usize,
    },
    /// It has more bytes than the buffer. It is gone.
    TooLong {
        /// How many.
        len: usize,
    },
}

/// One end of a channel.
pub struct Channel {
    out: lines::Sender,
    into: lines::Receiver,
    /// What is looked at: nothing is believed that the other end could still change.
    words: Box<[u64; MOST_WORDS]>,
    /// Lines that were taken and not given back.
    taken: u32,
}

/// Lines that are taken before they are given back: a store to a line that the other end reads only when it has no room.
const BATCH: u32 = LINES / 4;

impl Channel {
    /// Of memory that nobody has written to.
    ///
    /// # Errors
    /// The window is shorter than [`CHANNEL_LEN`].
    pub fn new(window: &Window, side: Side) -> Result<Self, OutOfRange> {
        let ring = |number: usize| window.part(number * WORDS_LEN, WORDS_LEN);
        let (own, other) = side.numbers();
        Ok(Self {
            out: lines::Sender::new(&ring(own)?, LINES)?,
            into: lines::Receiver::new(&ring(other)?, LINES)?,
            words: Box::new([0; MOST_WORDS]),
            taken: 0,
        })
    }

    /// Sends a short message at once. `false`: something is before it, or there is no room; [`Engine::send`] takes it.
    #[inline]
    pub fn send(&mut self, engine: &mut Engine, pair: PairId, tag: Tag, bytes: &[u8]) -> bool {
        let is_sent = engine.is_free(pair, bytes.len()) && self.write(tag, bytes);
        if is_sent {
            engine.sent_eager(pair);
        }
        is_sent
    }

    #[inline]
    fn write(&mut self, tag: Tag, bytes: &[u8]) -> bool {
        let (head, _) = Control::Eager { tag, len: bytes.len() as u16 }.encode();
        let count = EAGER_AT + bytes.len().div_ceil(8);
        if bytes.len() <= ONE_LINE {
            // Not more than what is used is cleared.
            let mut words = [0; lines::ROOM];
            fill(&mut words, head, bytes);
            return self.out.send(&words[..count]);
        }
        let mut words = [0; MOST_WORDS];
        fill(&mut words, head, bytes);
        self.out.send(&words[..count])
    }

    /// Takes the next message, if it is for who asks: it has come, it is short, and nobody has asked before. What else has come is the
    /// engine's ([`Engine::receive`] finds it). It copies no more than there is room for.
    ///
    /// # Errors
    /// [`Breach`]. The pair is lost.
    #[inline]
    pub fn receive(
        &mut self,
        engine: &mut Engine,
        pair: PairId,
        tag: Tag,
        mask: u64,
        to: &mut [u8],
    ) -> Result<Option<Taken>, Breach> {
        if !self.into.has_more() || !engine.is_plain(pair) {
            return Ok(None);
        }
        let Some((control, count)) = self.next(engine, pair)? else { return Ok(None) };
        let Control::Eager { tag: found, len } = control else {
            engine.arrive(pair, control, &[])?;
            return Ok(None);
        };
        if (found.0 ^ tag.0) & mask != 0 {
            // Nobody has asked for it, because nobody waits.
            engine.arrive(pair, control, &self.words[EAGER_AT..count])?;
            return Ok(None);
        }
        engine.took_eager(pair)?;
        let len = usize::from(len);
        if len > to.len() {
            return Ok(Some(Taken::TooLong { len }));
        }
        copy(&self.words[EAGER_AT..count], &mut to[..len]);
        Ok(Some(Taken::Message { tag: found, len }))
    }

    /// The next thing that the other end has said: it is in `words`.
    #[inline]
    fn next(&mut self, engine: &mut Engine, pair: PairId) -> Result<Option<(Control, usize)>, Breach> {
        let taken = self.into.take(&mut self.words);
        let Ok(count) = taken else { return Err(engine.refuse(pair)) };
        let Some(count) = count else { return Ok(None) };
        self.taken += count.div_ceil(lines::ROOM) as u32;
        if self.taken >= BATCH {
            self.give_back();
        }
        match Control::decode(&self.words[..count]) {
            Ok(control) => Ok(Some((control, count))),
            Err(_) => Err(engine.refuse(pair)),
        }
    }

    fn give_back(&mut self) {
        if self.taken > 0 {
            self.taken = 0;
            self.into.give_back();
        }
    }

    /// Hears up to `most` things. `deliver` copies words, so many bytes, to who waits for them. How many it were.
    ///
    /// # Errors
    /// [`Breach`]. The pair is lost.
    pub fn hear(
        &mut self,
        engine: &mut Engine,
        pair: PairId,
        most: usize,
        mut deliver: impl FnMut(RequestId, &[u64], usize),
    ) -> Result<usize, Breach> {
        for heard in 0..most {
            let Some((control, count)) = self.next(engine, pair)? else {
                self.give_back();
                return Ok(heard);
            };
            let words = &self.words[EAGER_AT.min(count)..count];
            if let Arrived::Deliver(request) = engine.arrive(pair, control, words)?
                && let Control::Eager { len, .. } = control
            {
                deliver(request, words, len.into());
            }
        }
        Ok(most)
    }

    /// Says up to `most` things; `bytes` knows those of a request. Whether all was said; otherwise
    /// [`Engine::more_to_say`] is for the caller, when there is room.
    pub fn say<'a>(
        &mut self,
        engine: &mut Engine,
        pair: PairId,
        most: usize,
        bytes: impl Fn(RequestId) -> &'a [u8],
    ) -> bool {
        for _ in 0..most {
            let Some(outgoing) = engine.outgoing(pair) else { return true };
            let is_said = match outgoing {
                Outgoing::Control(control) => {
                    let (words, count) = control.encode();
                    self.out.send(&words[..count])
                }
                Outgoing::Eager { request, tag, len } => {
                    bytes(request).get(..len.into()).is_some_and(|bytes| self.write(tag, bytes))
                }
            };
            if !is_said {
                return false;
            }
            engine.said(pair);
        }
        engine.outgoing(pair).is_none()
    }

    /// Whether the other end is to be woken, after something was sent. It says so once.
    #[inline]
    pub fn must_wake(&self) -> bool {
        self.out.must_wake()
    }

    /// Says that the other end is to wake this one. Whether it may sleep: nothing has come meanwhile.
    pub fn doze(&self) -> bool {
        self.into.doze()
    }

    /// Is awake.
    pub fn awake(&self) {
        self.into.awake();
    }

    /// Whether something has come.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.into.has_more()
    }
}

/// Writes the head of an eager message and its bytes.
#[inline(always)]
pub(crate) fn fill(words: &mut [u64], head: [u64; 5], bytes: &[u8]) {
    words[..EAGER_AT].copy_from_slice(&head[..EAGER_AT]);
    let (whole, rest) = bytes.as_chunks::<8>();
    let mut at = EAGER_AT;
    for chunk in whole {
        words[at] = u64::from_le_bytes(*chunk);
        at += 1;
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[at] = u64::from_le_bytes(last);
    }
}

/// Copies the bytes that words have.
#[inline(always)]
pub fn copy(words: &[u64], to: &mut [u8]) {
    let (whole, rest) = to.as_chunks_mut::<8>();
    for (chunk, word) in whole.iter_mut().zip(words) {
        *chunk = word.to_le_bytes();
    }
    if let Some(word) = words.get(whole.len()) {
        rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Scheme;
    use crate::engine::{Delivery, Limits, Outcome, Way};
    use millrace_dma::Region;
    use proptest::prelude::*;
    use std::collections::{HashMap, VecDeque};

    #[test]
    fn memory_is_that_of_the_specification() {
        // docs/spec/message.md §1
        let bells = bell::bytes_of(BELLS);
        assert_eq!([WORDS_LEN, BELLS_AT, BELLS_AT + bells, CHANNEL_LEN], [65_792, 131_584, 141_952, 152_320]);
    }

    struct End {
        engine: Engine,
        pair: PairId,
        channel: Channel,
        buffers: HashMap<RequestId, Vec<u8>>,
    }

    fn ends() -> (Region, [End; 2]) {
        let region = Region::heap(CHANNEL_LEN);
        let ends = [Side::Maker, Side::Taker].map(|side| {
            let mut engine = Engine::new(Limits { credits: 4, ..Limits::default() }).unwrap();
            let pair = engine.connect(Way::Mapped, engine.terms()).unwrap();
            let channel = Channel::new(region.window(), side).unwrap();
            End { engine, pair, channel, buffers: HashMap::new() }
        });
        (region, ends)
    }

    impl End {
        fn progress(&mut self) {
            let Self { engine, pair, channel, buffers } = self;
            channel.say(engine, *pair, 64, |request| &buffers[&request][..]);
            let heard = channel.hear(engine, *pair, 64, |request, words, len| {
                copy(words, &mut buffers.get_mut(&request).unwrap()[..len]);
            });
            heard.unwrap();
            while let Some(Delivery { request, words, len }) = engine.delivery() {
                copy(&words, &mut buffers.get_mut(&request).unwrap()[..len.into()]);
                engine.recycle(words);
            }
        }
    }

    #[test]
    fn lines_come_back_while_nothing_but_messages_is_taken() {
        let (_region, [mut one, mut other]) = ends();
        let (bytes, mut to) = ([7; 1328], [0; 1328]);
        for _ in 0..200 {
            assert!(one.channel.send(&mut one.engine, one.pair, Tag(0), &bytes));
            let taken = other.channel.receive(&mut other.engine, other.pair, Tag(0), 0, &mut to);
            assert_eq!(taken, Ok(Some(Taken::Message { tag: Tag(0), len: 1328 })));
            // Credits are no lines.
            other.channel.say(&mut other.engine, other.pair, 1, |_| &[]);
            one.channel.hear(&mut one.engine, one.pair, 1, |_, _, _| {}).unwrap();
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Short messages by both ways, mixed as it comes: all of them come, in order.
        #[test]
        fn short_messages_come_in_order(turns in prop::collection::vec((0usize..1329, any::<bool>(), any::<bool>(), 0usize..4), 1..200)) {
            let (_region, [mut one, mut other]) = ends();
            let (mut waiting, mut sent, mut posted) = (VecDeque::new(), 0_u64, VecDeque::new());
            let mut to = [0; 1400];
            for (len, fast, take_fast, takes) in turns {
                let bytes: Vec<u8> = (0..len).map(|at| (at as u64 * 7 + sent) as u8).collect();
                if !(fast && one.channel.send(&mut one.engine, one.pair, Tag(sent), &bytes)) {
                    let request = one.engine.send(one.pair, Tag(sent), len as u64, Scheme::Eager).unwrap();
                    one.buffers.insert(request, bytes.clone());
                    one.progress();
                }
                waiting.push_back((sent, bytes));
                sent += 1;
                for _ in 0..takes {
                    if take_fast && posted.is_empty() {
                        match other.channel.receive(&mut other.engine, other.pair, Tag(0), 0, &mut to).unwrap() {
                            Some(Taken::Message { tag, len }) => {
                                let (number, bytes) = waiting.pop_front().unwrap();
                                prop_assert_eq!((tag.0, &to[..len]), (number, &bytes[..]));
                            }
                            Some(Taken::TooLong { .. }) => prop_assert!(false),
                            None => other.progress(),
                        }
                    } else {
                        let request = other.engine.receive(None, Tag(0), 0, 1400).unwrap();
                        other.buffers.insert(request, vec![0; 1400]);
                        posted.push_back(request);
                        other.progress();
                    }
                    while let Some(done) = other.engine.completion() {
                        let Outcome::Received { tag, len, .. } = done.outcome else { panic!("{done:?}") };
                        prop_assert_eq!(Some(done.request), posted.pop_front());
                        let (number, bytes) = waiting.pop_front().unwrap();
                        let found = &other.buffers.remove(&done.request).unwrap()[..len as usize];
                        prop_assert_eq!((tag.0, found), (number, &bytes[..]));
                    }
                }
                one.progress();
                while let Some(done) = one.engine.completion() {
                    prop_assert_eq!(done.outcome, Outcome::Sent);
                    one.buffers.remove(&done.request);
                }
            }
        }

        /// Whatever stands in the memory: the pair is lost, or messages come; nothing else.
        #[test]
        fn nonsense_loses_the_pair(words in prop::collection::vec((0u32..64 * 8, any::<u64>(), 0u64..14), 0..400)) {
            let (region, [mut one, _other]) = ends();
            let slots = region.window().slots64(WORDS_LEN + 256, 64 * 8).unwrap();
            for (at, word, kind) in words {
                let stamp = u64::from(at / 8 + 1) | (1 + word % 3) << 32;
                slots.store(at, match at % 8 {
                    0 => stamp,
                    1 => word & 0xffff_ffff_0003_0300 | kind,
                    _ => word,
                });
            }
            for _ in 0..100 {
                let Ok(_) = one.channel.hear(&mut one.engine, one.pair, 8, |_, _, _| {}) else {
                    prop_assert!(one.engine.given_up().is_some());
                    break;
                };
            }
            prop_assert_eq!(one.engine.in_use(), (0, 0));
        }
    }
}
