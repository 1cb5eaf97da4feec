//! The views of `access.rs` over memory that loom checks. Compiled only with `--cfg loom`, in the place of that file; its
//! one line of `unsafe` lets loom's cells be shared between loom's threads.
//!
//! Memory is a vector of 64-bit model atomics. Bytes are loaded and stored relaxed, word by word: a missing release or
//! acquire in a ring then shows as old bytes in a packet, which the models assert against. Spans must therefore begin
//! at multiples of 8 here, or of 4 where one side alone writes the whole word. 32-bit slots share a word with their neighbour; all slots of one ring are written by
//! one side, so that loading, changing and storing the word is exact; and so it is with 16-bit slots.
//!
//! Loom never lets a load see a store that comes later, so old bytes show only half of the mistakes: a reader that gives
//! bytes back without release is not found that way. Each two bytes of payload and each slot therefore have a cell
//! beside them whose accesses loom orders: a store that does not happen after every earlier load, or the other way
//! round, fails the model. Pointer words and flags, which both sides use at once, have none.

use crate::OutOfRange;
use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};
use std::sync::Arc;

/// A full fence.
pub fn fence(order: Ordering) {
    loom::sync::atomic::fence(order);
}

struct Memory {
    words: Vec<AtomicU64>,
    // Flags (`Word32`) live apart from the words, so that two writers of one word do not meet.
    flags: Vec<AtomicU32>,
    // Indices and flags of virtqueues (`Word16`), for the same reason.
    halves: Vec<AtomicU16>,
    // One for each two bytes: who accessed them last.
    owners: Vec<UnsafeCell<()>>,
}

// SAFETY: the cells hold nothing; loom only notes who comes to them, on one thread at a time.
#[allow(unsafe_code)]
unsafe impl Sync for Memory {}

impl Memory {
    fn reads(&self, at: usize, len: usize) {
        self.owners[at / 2..(at + len).div_ceil(2)].iter().for_each(|owner| owner.with(|_| ()));
    }

    fn writes(&self, at: usize, len: usize) {
        self.owners[at / 2..(at + len).div_ceil(2)].iter().for_each(|owner| owner.with_mut(|_| ()));
    }
}

/// A part of model memory.
#[derive(Clone)]
pub struct Window {
    memory: Arc<Memory>,
    base: usize,
    len: usize,
    writable: bool,
}

impl Window {
    /// `len` bytes of zeroed model memory.
    pub fn model(len: usize) -> Self {
        let words = (0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let flags = (0..len.div_ceil(4)).map(|_| AtomicU32::new(0)).collect();
        let halves = (0..len.div_ceil(2)).map(|_| AtomicU16::new(0)).collect();
        let owners = (0..len.div_ceil(2)).map(|_| UnsafeCell::new(())).collect();
        Self { memory: Arc::new(Memory { words, flags, halves, owners }), base: 0, len, writable: true }
    }

    /// The same window without the right to store.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.writable = false;
        self
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether stores are allowed.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    fn check(&self, offset: usize, len: usize, align: usize) -> Result<usize, OutOfRange> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let at = self.base + offset;
        if inside && at.is_multiple_of(align) { Ok(at) } else { Err(OutOfRange { offset, len, window: self.len }) }
    }

    /// The part of `len` bytes at `offset`.
    pub fn part(&self, offset: usize, len: usize) -> Result<Window, OutOfRange> {
        let base = self.check(offset, len, 1)?;
        Ok(Window { base, len, ..self.clone() })
    }

    /// The 64-bit word at `offset`.
    pub fn word64(&self, offset: usize) -> Result<Word64, OutOfRange> {
        Ok(Word64 { at: self.check(offset, 8, 8)? / 8, window: self.clone() })
    }

    /// The 32-bit word at `offset`.
    pub fn word32(&self, offset: usize) -> Result<Word32, OutOfRange> {
        Ok(Word32 { at: self.check(offset, 4, 4)? / 4, window: self.clone() })
    }

    /// The 16-bit word at `offset`.
    pub fn word16(&self, offset: usize) -> Result<Word16, OutOfRange> {
        Ok(Word16 { at: self.check(offset, 2, 2)? / 2, window: self.clone() })
    }

    /// A ring of 64-bit words.
    pub fn slots64(&self, offset: usize, count: u32) -> Result<Slots64, OutOfRange> {
        let at = self.check(offset, count as usize * 8, 8)?;
        assert!(count.is_power_of_two());
        Ok(Slots64 { at: at / 8, mask: count - 1, window: self.clone() })
    }

    /// A ring of 32-bit words.
    pub fn slots32(&self, offset: usize, count: u32) -> Result<Slots32, OutOfRange> {
        let at = self.check(offset, count as usize * 4, 4)?;
        assert!(count.is_power_of_two());
        Ok(Slots32 { at: at / 4, mask: count - 1, window: self.clone() })
    }

    /// A ring of 16-bit words.
    pub fn slots16(&self, offset: usize, count: u32) -> Result<Slots16, OutOfRange> {
        let at = self.check(offset, count as usize * 2, 2)?;
        assert!(count.is_power_of_two());
        Ok(Slots16 { at: at / 2, mask: count - 1, window: self.clone() })
    }

    /// Bytes to be read.
    pub fn span(&self, offset: usize, len: usize) -> Option<Span<'_>> {
        let at = self.check(offset, len, 1).ok()?;
        Some(Span { bytes: Bytes::Model(&self.memory, at), len })
    }

    /// Bytes to be written.
    pub fn span_mut(&self, offset: usize, len: usize) -> Option<SpanMut<'_>> {
        let at = self.check(offset, len, 1).ok()?;
        self.writable.then_some(SpanMut { memory: &self.memory, at, len, window: PhantomData })
    }
}

/// A shared 64-bit word.
#[derive(Clone)]
pub struct Word64 {
    at: usize,
    window: Window,
}

impl Word64 {
    /// Loads the word.
    pub fn load(&self, order: Ordering) -> u64 {
        self.window.memory.words[self.at].load(order)
    }

    /// Stores the word.
    pub fn store(&self, value: u64, order: Ordering) {
        self.window.memory.words[self.at].store(value, order);
    }

    /// Replaces `current` by `new`, or says what stands there instead.
    pub fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.window.memory.words[self.at].compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// A shared 32-bit word.
#[derive(Clone)]
pub struct Word32 {
    at: usize,
    window: Window,
}

impl Word32 {
    /// Loads the word.
    pub fn load(&self, order: Ordering) -> u32 {
        self.window.memory.flags[self.at].load(order)
    }

    /// Stores the word.
    pub fn store(&self, value: u32, order: Ordering) {
        self.window.memory.flags[self.at].store(value, order);
    }
}

/// A shared 16-bit word.
#[derive(Clone)]
pub struct Word16 {
    at: usize,
    window: Window,
}

impl Word16 {
    /// Loads the word.
    pub fn load(&self, order: Ordering) -> u16 {
        self.window.memory.halves[self.at].load(order)
    }

    /// Stores the word.
    pub fn store(&self, value: u16, order: Ordering) {
        self.window.memory.halves[self.at].store(value, order);
    }
}

/// A ring of 64-bit words.
#[derive(Clone)]
pub struct Slots64 {
    at: usize,
    mask: u32,
    window: Window,
}

impl Slots64 {
    /// Loads slot `index & mask`.
    pub fn load(&self, index: u32) -> u64 {
        let at = self.at + (index & self.mask) as usize;
        self.window.memory.reads(at * 8, 8);
        self.window.memory.words[at].load(Ordering::Relaxed)
    }

    /// Stores slot `index & mask`.
    pub fn store(&self, index: u32, value: u64) {
        let at = self.at + (index & self.mask) as usize;
        self.window.memory.writes(at * 8, 8);
        self.window.memory.words[at].store(value, Ordering::Relaxed);
    }

    /// Loads slot `index & mask` with Acquire. Both sides use it at once, as a pointer word.
    pub fn load_acquire(&self, index: u32) -> u64 {
        self.window.memory.words[self.at + (index & self.mask) as usize].load(Ordering::Acquire)
    }

    /// Stores slot `index & mask` with Release.
    pub fn store_release(&self, index: u32, value: u64) {
        self.window.memory.words[self.at + (index & self.mask) as usize].store(value, Ordering::Release);
    }

    /// Number of slots minus one.
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// Nothing: a hint.
    pub fn prefetch(&self, _index: u32) {}

    /// Nothing: a hint.
    pub fn prefetch_write(&self, _index: u32) {}
}

/// A ring of 32-bit words.
#[derive(Clone)]
pub struct Slots32 {
    at: usize,
    mask: u32,
    window: Window,
}

impl Slots32 {
    fn slot(&self, index: u32) -> (&AtomicU64, u32) {
        let at = self.at + (index & self.mask) as usize;
        (&self.window.memory.words[at / 2], (at as u32 % 2) * 32)
    }

    /// Loads slot `index & mask`.
    pub fn load(&self, index: u32) -> u32 {
        let (word, shift) = self.slot(index);
        self.window.memory.reads((self.at + (index & self.mask) as usize) * 4, 4);
        (word.load(Ordering::Relaxed) >> shift) as u32
    }

    /// Stores slot `index & mask`.
    pub fn store(&self, index: u32, value: u32) {
        let (word, shift) = self.slot(index);
        self.window.memory.writes((self.at + (index & self.mask) as usize) * 4, 4);
        let others = word.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
        word.store(others | u64::from(value) << shift, Ordering::Relaxed);
    }

    /// Number of slots minus one.
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// Nothing: a hint.
    pub fn prefetch(&self, _index: u32) {}

    /// Nothing: a hint.
    pub fn prefetch_write(&self, _index: u32) {}
}

/// A ring of 16-bit words.
#[derive(Clone)]
pub struct Slots16 {
    at: usize,
    mask: u32,
    window: Window,
}

impl Slots16 {
    fn slot(&self, index: u32) -> (&AtomicU64, u32) {
        let at = self.at + (index & self.mask) as usize;
        (&self.window.memory.words[at / 4], (at as u32 % 4) * 16)
    }

    /// Loads slot `index & mask`.
    pub fn load(&self, index: u32) -> u16 {
        let (word, shift) = self.slot(index);
        self.window.memory.reads((self.at + (index & self.mask) as usize) * 2, 2);
        (word.load(Ordering::Relaxed) >> shift) as u16
    }

    /// Stores slot `index & mask`.
    pub fn store(&self, index: u32, value: u16) {
        let (word, shift) = self.slot(index);
        self.window.memory.writes((self.at + (index & self.mask) as usize) * 2, 2);
        let others = word.load(Ordering::Relaxed) & !(u64::from(u16::MAX) << shift);
        word.store(others | u64::from(value) << shift, Ordering::Relaxed);
    }

    /// Number of slots minus one.
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// Nothing: a hint.
    pub fn prefetch(&self, _index: u32) {}

    /// Nothing: a hint.
    pub fn prefetch_write(&self, _index: u32) {}
}

#[derive(Clone, Copy)]
enum Bytes<'a> {
    Model(&'a Memory, usize),
    Slice(&'a [u8]),
}

/// Bytes to be read.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    bytes: Bytes<'a>,
    len: usize,
}

/// Bytes to be written.
#[derive(Clone, Copy)]
pub struct SpanMut<'a> {
    memory: &'a Memory,
    at: usize,
    len: usize,
    window: PhantomData<&'a Window>,
}

impl<'a> Span<'a> {
    /// No bytes.
    pub const EMPTY: Span<'static> = Span { bytes: Bytes::Slice(&[]), len: 0 };

    /// The bytes of a slice.
    pub fn from_slice(bytes: &'a [u8]) -> Self {
        Self { bytes: Bytes::Slice(bytes), len: bytes.len() }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `at` bytes and the rest.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len);
        let rest = match self.bytes {
            Bytes::Model(memory, base) => Bytes::Model(memory, base + at),
            Bytes::Slice(bytes) => Bytes::Slice(&bytes[at..]),
        };
        (Self { len: at, ..self }, Self { bytes: rest, len: self.len - at })
    }

    /// Copies as many bytes as both have.
    pub fn read_into(&self, to: &mut [u8]) -> usize {
        let len = self.len.min(to.len());
        match self.bytes {
            Bytes::Slice(bytes) => to[..len].copy_from_slice(&bytes[..len]),
            Bytes::Model(memory, at) => {
                memory.reads(at, len);
                let (to, odd) = (&mut to[..len], at % 8);
                let (front, to) = to.split_at_mut(if odd == 0 { 0 } else { len.min(8 - odd) });
                if !front.is_empty() {
                    let word = memory.words[at / 8].load(Ordering::Relaxed).to_le_bytes();
                    front.copy_from_slice(&word[odd..odd + front.len()]);
                }
                let at = at + front.len();
                for (i, chunk) in to.chunks_mut(8).enumerate() {
                    let word = memory.words[at / 8 + i].load(Ordering::Relaxed).to_le_bytes();
                    chunk.copy_from_slice(&word[..chunk.len()]);
                }
            }
        }
        len
    }

    /// Copies as many bytes as both have.
    pub fn copy_to(&self, to: SpanMut<'_>) -> usize {
        let len = self.len.min(to.len);
        let mut bytes = vec![0; len];
        self.read_into(&mut bytes);
        assert!(to.at.is_multiple_of(4), "model memory is written in whole words, or halves of them");
        to.memory.writes(to.at, len);
        let odd = to.at % 8;
        let (front, rest) = bytes.split_at(if odd == 0 { 0 } else { len.min(8 - odd) });
        if !front.is_empty() {
            let place = &to.memory.words[to.at / 8];
            let mut word = place.load(Ordering::Relaxed).to_le_bytes();
            word[odd..odd + front.len()].copy_from_slice(front);
            place.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        let at = to.at + front.len();
        for (i, chunk) in rest.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            to.memory.words[at / 8 + i].store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        len
    }

    /// The little-endian 32-bit word in the first four bytes.
    pub fn first_u32(&self) -> Option<u32> {
        let mut bytes = [0; 4];
        (self.read_into(&mut bytes) == 4).then(|| u32::from_le_bytes(bytes))
    }

    /// The first `N` bytes.
    pub fn first_bytes<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.read_into(&mut bytes) == N).then_some(bytes)
    }

    /// Nothing: a hint.
    pub fn prefetch(&self) {}
}

impl<'a> SpanMut<'a> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `at` bytes and the rest.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len);
        (Self { len: at, ..self }, Self { at: self.at + at, len: self.len - at, ..self })
    }

    /// The same bytes, to be read.
    #[must_use]
    pub fn as_span(self) -> Span<'a> {
        Span { bytes: Bytes::Model(self.memory, self.at), len: self.len }
    }

    /// Copies as many bytes as both have.
    pub fn write_from(&self, from: &[u8]) -> usize {
        Span::from_slice(from).copy_to(*self)
    }

    /// Nothing: a hint.
    pub fn prefetch(&self) {}
}
