//! A stream of bytes between two processes, in one direction: what a TCP connection carries, without the kernel.
//!
//! ```text
//! 0    how much was written      (the writer's line of the cache)
//! 8    the origin: which position stands at the beginning of the ring
//! 16   1 + how many bytes went another way before the first one in the ring; 0: the ring is not used yet
//! 24   1: nothing follows
//! 32   how many doorbells were rung
//! 64   how much was read         (the reader's line)
//! 72   how many doorbells were taken
//! 128  the reader sleeps         (`wake`; a line to itself, as the next)
//! 192  the writer waits for room
//! 256  the bytes
//! ```
//!
//! Positions count all bytes that ever went; byte `p` stands at `(p - origin) mod size`. The writer may move the origin when
//! the ring is empty, so that a conversation of short messages stays at the beginning of the ring, in the caches, and never
//! touches the rest of its memory.
//!
//! All state is in the shared memory, because several processes may be one end of a connection: after a `fork`, both go on
//! where the stream stands. Whoever writes or reads holds a lock of that end, which is not the business of this module.
//! Neither side believes the other: a distance that cannot be is [`Malformed`], and every place is inside the ring.

use crate::lines::Malformed;
use crate::wake::{Ringer, Sleeper};
use millrace_dma::{Ordering, OutOfRange, Window, Word64};

const WRITTEN: usize = 0;
const ORIGIN: usize = 8;
const BEFORE: usize = 16;
const ENDED: usize = 24;
const RUNG: usize = 32;
const READ: usize = 64;
const TAKEN: usize = 72;
const READER: usize = 128;
const WRITER: usize = 192;
const BYTES: usize = 256;

/// Of a long run of bytes, so much is shown at once: the other side works on it while the next part is copied.
const PART: usize = if cfg!(loom) { 8 } else { 32 << 10 };
/// An empty ring goes on behind its last byte as long as it is not further than this from its beginning.
const NEAR: u64 = if cfg!(loom) { 8 } else { 4 << 10 };

/// Bytes of memory of a stream with a ring of `size` bytes.
pub const fn bytes_of(size: usize) -> usize {
    BYTES + size
}

/// The words that both sides see.
struct Words {
    window: Window,
    size: u64,
    written: Word64,
    origin: Word64,
    before: Word64,
    ended: Word64,
    rung: Word64,
    read: Word64,
    taken: Word64,
}

impl Words {
    fn new(window: &Window, size: usize) -> Result<Self, OutOfRange> {
        if !size.is_power_of_two() {
            return Err(OutOfRange { offset: BYTES, len: size, window: window.len() });
        }
        window.part(0, bytes_of(size))?;
        Ok(Self {
            size: size as u64,
            written: window.word64(WRITTEN)?,
            origin: window.word64(ORIGIN)?,
            before: window.word64(BEFORE)?,
            ended: window.word64(ENDED)?,
            rung: window.word64(RUNG)?,
            read: window.word64(READ)?,
            taken: window.word64(TAKEN)?,
            window: window.clone(),
        })
    }

    /// Where a position stands, and how many bytes follow up to the end of the ring.
    fn place(&self, position: u64, origin: u64) -> (usize, usize) {
        let at = position.wrapping_sub(origin) & (self.size - 1);
        (BYTES + at as usize, (self.size - at) as usize)
    }

    /// Bytes between two positions, which are at most as many as the ring has.
    fn distance(&self, written: u64, read: u64) -> Result<u64, Malformed> {
        let used = written.wrapping_sub(read);
        if used <= self.size { Ok(used) } else { Err(Malformed) }
    }
}

/// The side that writes.
pub struct Writer {
    words: Words,
    ringer: Ringer,
    sleeper: Sleeper,
}

impl Writer {
    /// Over the stream at the beginning of `window`, with a ring of `size` bytes, a power of two.
    ///
    /// # Errors
    /// The window is too short, or `size` is no power of two.
    pub fn new(window: &Window, size: usize) -> Result<Self, OutOfRange> {
        let ringer = Ringer::new(window.word32(READER)?);
        let sleeper = Sleeper::new(window.word32(WRITER)?);
        Ok(Self { words: Words::new(window, size)?, ringer, sleeper })
    }

    /// Says that from now on bytes go through the ring, after `before` that went another way.
    pub fn begin(&self, before: u64) {
        // Release pairs with the Acquire in `Reader::before`.
        self.words.before.store(before.wrapping_add(1), Ordering::Release);
    }

    /// Whether bytes go through the ring.
    #[inline]
    pub fn has_begun(&self) -> bool {
        self.words.before.load(Ordering::Relaxed) != 0
    }

    /// Bytes that can be written.
    ///
    /// # Errors
    /// [`Malformed`].
    #[inline]
    pub fn room(&self) -> Result<usize, Malformed> {
        let words = &self.words;
        // Acquire pairs with the Release in `Reader::read`: what is overwritten was read before.
        let read = words.read.load(Ordering::Acquire);
        let used = words.distance(words.written.load(Ordering::Relaxed), read)?;
        Ok((words.size - used) as usize)
    }

    /// Whether there is so much room that it is worth to be woken for.
    ///
    /// # Errors
    /// [`Malformed`].
    #[inline]
    pub fn has_much_room(&self) -> Result<bool, Malformed> {
        Ok(is_much(self.room()?, self.words.size))
    }

    /// Bytes that the reader has not read.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn unread(&self) -> Result<usize, Malformed> {
        Ok(self.words.size as usize - self.room()?)
    }

    /// Writes as many bytes as there is room for, and says how many.
    ///
    /// # Errors
    /// [`Malformed`].
    #[inline]
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Malformed> {
        let words = &self.words;
        let count = bytes.len().min(self.room()?);
        if count == 0 {
            return Ok(0);
        }
        let mut written = words.written.load(Ordering::Relaxed);
        let mut origin = words.origin.load(Ordering::Relaxed);
        let used = words.size as usize - self.room()?;
        if used == 0 && written.wrapping_sub(origin).wrapping_add(count as u64) > NEAR {
            origin = written;
            // The reader has taken everything, so it looks at no byte, and at this word only after `written`.
            words.origin.store(origin, Ordering::Relaxed);
        }
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            let (at, straight) = words.place(written, origin);
            let part = rest.len().min(straight).min(PART);
            words.window.span_mut(at, part).ok_or(Malformed)?.write_from(&rest[..part]);
            written = written.wrapping_add(part as u64);
            // Release pairs with the Acquire in `Reader::available`.
            words.written.store(written, Ordering::Release);
            rest = &rest[part..];
        }
        Ok(count)
    }

    /// Says that nothing follows.
    pub fn end(&self) {
        // Release pairs with the Acquire in `Reader::has_ended`.
        self.words.ended.store(1, Ordering::Release);
    }

    /// Whether that was said.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.words.ended.load(Ordering::Relaxed) != 0
    }

    /// Whether the reader is to be woken, after something was written or ended. It says so once, and counts a doorbell.
    #[inline]
    pub fn must_wake(&self) -> bool {
        let must = self.ringer.must_signal();
        if must {
            self.count_bell();
        }
        must
    }

    /// A doorbell is rung, which also wakes the other side as a writer.
    pub fn count_bell(&self) {
        let rung = &self.words.rung;
        // Release pairs with the Acquire in `Reader::bells`.
        rung.store(rung.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Says that this side is about to sleep until there is much room. It may sleep if there is none after this.
    pub fn doze(&self) {
        self.sleeper.announce();
    }
}

/// The side that reads.
pub struct Reader {
    words: Words,
    ringer: Ringer,
    sleeper: Sleeper,
}

impl Reader {
    /// Over the stream at the beginning of `window`, with a ring of `size` bytes, a power of two.
    ///
    /// # Errors
    /// The window is too short, or `size` is no power of two.
    pub fn new(window: &Window, size: usize) -> Result<Self, OutOfRange> {
        let ringer = Ringer::new(window.word32(WRITER)?);
        let sleeper = Sleeper::new(window.word32(READER)?);
        Ok(Self { words: Words::new(window, size)?, ringer, sleeper })
    }

    /// How many bytes went another way before the first in the ring, once the writer has said so.
    #[inline]
    pub fn before(&self) -> Option<u64> {
        // Acquire pairs with the Release in `Writer::begin`.
        self.words.before.load(Ordering::Acquire).checked_sub(1)
    }

    /// Bytes that can be read.
    ///
    /// # Errors
    /// [`Malformed`].
    #[inline]
    pub fn available(&self) -> Result<usize, Malformed> {
        // Acquire pairs with the Release in `Writer::write`.
        let written = self.words.written.load(Ordering::Acquire);
        Ok(self.words.distance(written, self.words.read.load(Ordering::Relaxed))? as usize)
    }

    /// A number that changes whenever something is written.
    #[inline]
    pub fn mark(&self) -> u64 {
        self.words.written.load(Ordering::Relaxed)
    }

    /// Copies as many bytes as there are and `to` has room for, and says how many.
    ///
    /// # Errors
    /// [`Malformed`].
    #[inline]
    pub fn read(&self, to: &mut [u8]) -> Result<usize, Malformed> {
        self.take(to.len(), |part, span| {
            span.read_into(&mut to[part]);
        })
    }

    /// Forgets as many bytes, and says how many there were.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn skip(&self, count: usize) -> Result<usize, Malformed> {
        self.take(count, |_, _| {})
    }

    #[inline]
    fn take(
        &self,
        most: usize,
        mut copy: impl FnMut(core::ops::Range<usize>, millrace_dma::Span<'_>),
    ) -> Result<usize, Malformed> {
        let words = &self.words;
        let count = most.min(self.available()?);
        if count == 0 {
            return Ok(0);
        }
        let mut read = words.read.load(Ordering::Relaxed);
        // After `written` was loaded with Acquire: of the byte that it showed, or of one before.
        let origin = words.origin.load(Ordering::Relaxed);
        let mut done = 0;
        while done < count {
            let (at, straight) = words.place(read, origin);
            let part = (count - done).min(straight).min(PART);
            copy(done..done + part, words.window.span(at, part).ok_or(Malformed)?);
            done += part;
            read = read.wrapping_add(part as u64);
            // Release pairs with the Acquire in `Writer::room`.
            words.read.store(read, Ordering::Release);
        }
        Ok(done)
    }

    /// As [`Reader::read`], and the bytes stay: from the one that `after` others precede.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn peek(&self, after: usize, to: &mut [u8]) -> Result<usize, Malformed> {
        let words = &self.words;
        let count = to.len().min(self.available()?.saturating_sub(after));
        let origin = words.origin.load(Ordering::Relaxed);
        let mut position = words.read.load(Ordering::Relaxed).wrapping_add(after as u64);
        let mut done = 0;
        while done < count {
            let (at, straight) = words.place(position, origin);
            let part = (count - done).min(straight);
            words.window.span(at, part).ok_or(Malformed)?.read_into(&mut to[done..done + part]);
            done += part;
            position = position.wrapping_add(part as u64);
        }
        Ok(done)
    }

    /// Whether nothing follows what can be read now.
    #[inline]
    pub fn has_ended(&self) -> bool {
        // Acquire pairs with the Release in `Writer::end`: whoever sees it sees all bytes before.
        self.words.ended.load(Ordering::Acquire) != 0
    }

    /// Whether the writer is to be told that there is much room again, after bytes were read. It says so once.
    #[inline]
    pub fn must_wake(&self) -> bool {
        // Pairs with the fence in `Writer::doze`.
        millrace_dma::fence(Ordering::SeqCst);
        let used = self.available().unwrap_or(0);
        is_much(self.words.size as usize - used, self.words.size) && self.ringer.claim()
    }

    /// Doorbells that were rung and not taken.
    #[inline]
    pub fn bells(&self) -> u64 {
        // Acquire pairs with the Release in `Writer::count_bell`.
        self.words.rung.load(Ordering::Acquire).wrapping_sub(self.words.taken.load(Ordering::Relaxed))
    }

    /// So many doorbells were taken.
    pub fn count_taken(&self, count: u64) {
        let taken = &self.words.taken;
        taken.store(taken.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Says that this side is about to sleep until something comes. It may sleep if nothing is there after this.
    pub fn doze(&self) {
        self.sleeper.announce();
    }

    /// The same for a caller that makes one fence for several.
    pub fn mark_asleep(&self) {
        self.sleeper.mark();
    }

    /// Is awake.
    pub fn awake(&self) {
        self.sleeper.awake();
    }
}

/// A quarter of the ring: less is not worth a doorbell.
#[inline]
fn is_much(room: usize, size: u64) -> bool {
    room as u64 >= size / 4
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use millrace_dma::Region;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const SIZE: usize = 16 << 10;

    fn stream() -> (Region, Writer, Reader) {
        let region = Region::heap(bytes_of(SIZE));
        let (writer, reader) = (Writer::new(region.window(), SIZE), Reader::new(region.window(), SIZE));
        (region, writer.unwrap(), reader.unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Any sizes in any turns: what is read or seen is what was written, in order, and room and rest add up.
        #[test]
        fn bytes_come_as_they_went(turns in prop::collection::vec((0usize..SIZE * 5 / 4, 0usize..SIZE * 5 / 4), 1..100)) {
            let (_region, writer, reader) = stream();
            let (mut next, mut waiting) = (0_u32, VecDeque::new());
            for (write, read) in turns {
                let bytes: Vec<u8> = (0..write as u32).map(|at| (next + at).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
                let written = writer.write(&bytes).unwrap();
                prop_assert_eq!(written, write.min(SIZE - waiting.len()));
                next += written as u32;
                waiting.extend(&bytes[..written]);
                prop_assert_eq!(reader.available().unwrap(), waiting.len());
                prop_assert_eq!(writer.room().unwrap() + waiting.len(), SIZE);
                let (mut seen, mut to) = (vec![0; read / 2], vec![0; read]);
                let after = read / 4;
                let count = reader.peek(after, &mut seen).unwrap();
                prop_assert!(seen[..count].iter().eq(waiting.iter().skip(after).take(read / 2)));
                let count = reader.read(&mut to).unwrap();
                prop_assert_eq!(count, read.min(waiting.len()));
                prop_assert!(to[..count].iter().copied().eq(waiting.drain(..count)));
            }
        }

        /// Whatever the other process writes into the words, both sides stay inside the ring or say that it is nonsense.
        #[test]
        fn nonsense_does_no_harm(words in prop::collection::vec((0usize..32, any::<u64>()), 1..40), len in 0usize..SIZE * 2) {
            let (region, writer, reader) = stream();
            for (at, value) in words {
                region.window().word64(at * 8).unwrap().store(value, Ordering::Relaxed);
                let mut to = vec![0; len];
                prop_assert!(writer.write(&to).map_or(true, |count| count <= SIZE));
                prop_assert!(reader.peek(len / 3, &mut to).map_or(true, |count| count <= SIZE));
                prop_assert!(reader.read(&mut to).map_or(true, |count| count <= SIZE));
                let _ = (reader.must_wake(), writer.must_wake(), reader.bells(), reader.before());
            }
        }
    }

    #[test]
    fn a_short_conversation_stays_at_the_beginning() {
        let (region, writer, reader) = stream();
        let mut to = [0; 100];
        for _ in 0..10_000 {
            assert_eq!(writer.write(&[7; 100]), Ok(100));
            assert_eq!(reader.read(&mut to), Ok(100));
        }
        let far = region.window().span(BYTES + NEAR as usize, SIZE - NEAR as usize).unwrap();
        let mut bytes = vec![0; far.len()];
        far.read_into(&mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn two_threads_agree_through_full_and_empty() {
        let (_region, writer, reader) = stream();
        const ALL: usize = 20_000_000;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let bytes: Vec<u8> = (0..251 * 400).map(|at| (at % 251) as u8).collect();
                let (mut sent, mut len) = (0, 1);
                while sent < ALL {
                    len = len * 37 % 70_001;
                    let from = sent % 251;
                    let count = writer.write(&bytes[from..][..len.min(ALL - sent)]).unwrap();
                    sent += count;
                    if count == 0 {
                        std::thread::yield_now();
                    }
                }
                writer.end();
            });
            let (mut got, mut to) = (0, vec![0; 50_000]);
            loop {
                let ended = reader.has_ended();
                let count = reader.read(&mut to).unwrap();
                assert!(to[..count].iter().zip(got..).all(|(&byte, at)| usize::from(byte) == at % 251), "at {got}");
                got += count;
                if count == 0 {
                    if ended {
                        break;
                    }
                    std::thread::yield_now();
                }
            }
            assert_eq!(got, ALL);
        });
    }

    #[test]
    fn sleepers_are_woken_once_and_writers_for_much_room_only() {
        let (_region, writer, reader) = stream();
        assert!(!writer.must_wake());
        reader.doze();
        assert_eq!(writer.write(&[1; SIZE]), Ok(SIZE));
        assert!(writer.must_wake() && !writer.must_wake());
        assert_eq!(reader.bells(), 1);
        reader.count_taken(1);
        assert_eq!(reader.bells(), 0);
        writer.doze();
        assert!(!writer.has_much_room().unwrap() && !reader.must_wake());
        assert_eq!(reader.skip(SIZE / 4 - 1), Ok(SIZE / 4 - 1));
        assert!(!reader.must_wake(), "too little");
        assert_eq!(reader.skip(1), Ok(1));
        assert!(reader.must_wake() && !reader.must_wake() && writer.has_much_room().unwrap());
        assert!(reader.before().is_none() && !writer.has_begun());
        writer.begin(0);
        assert_eq!(reader.before(), Some(0));
    }
}
