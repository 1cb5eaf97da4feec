//! Which parts of some pages are whose: the program's memory in pages of a transport (decision 126). Only numbers are here: what
//! lies in the pages is not looked at, so that others who write there change bytes of the program, and never where its blocks are.

use offset_allocator::{Allocation, Allocator};
use rustc_hash::FxHashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// What blocks begin and end at.
const UNIT: usize = 16;
/// Pages that are taken of the transport at a time, if there are so many.
const CHUNK: u32 = 64;
/// Blocks at a time.
const MOST_BLOCKS: u32 = 512 << 10;
/// Units have numbers of 32 bits.
const MOST_PAGES: u32 = u32::MAX / (PAGE / UNIT) as u32;

/// Blocks in a run of pages, of which the first ones have been taken of the transport.
pub(crate) struct Arena {
    /// The address that the first byte has: blocks are aligned by it.
    base: usize,
    pages: u32,
    state: Mutex<State>,
}

struct State {
    free: Allocator<u32>,
    blocks: FxHashMap<u32, Block>,
    taken: u32,
    /// So many pages more could not be had: no more than that is asked for again.
    refused: u32,
    /// Blocks that had no room.
    without: u64,
}

struct Block {
    allocation: Allocation<u32>,
    len: usize,
}

impl Arena {
    /// In so many pages at most from that address on.
    pub fn new(base: usize, pages: u32) -> Self {
        let pages = pages.min(MOST_PAGES);
        let units = pages * (PAGE / UNIT) as u32;
        let free = Allocator::with_max_allocs(units, (units / 4).clamp(64, MOST_BLOCKS));
        let state = State { free, blocks: FxHashMap::default(), taken: 0, refused: u32::MAX, without: 0 };
        Self { base, pages, state: Mutex::new(state) }
    }

    /// Where it begins.
    pub fn base(&self) -> usize {
        self.base
    }

    /// How many bytes it may have.
    pub fn len(&self) -> usize {
        self.pages as usize * PAGE
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block: where it begins. `take` has pages of the transport behind those that there are: from that one on, so many; whether it could. `Err`: there is
    /// no room; how often that was so.
    pub fn allocate(&self, len: usize, align: usize, take: impl Fn(u32, u32) -> bool) -> Result<usize, u64> {
        let mut state = self.state();
        let made = self.make(&mut state, len, align.max(UNIT), take);
        made.ok_or_else(|| {
            state.without += 1;
            state.without
        })
    }

    fn make(&self, state: &mut State, len: usize, align: usize, take: impl Fn(u32, u32) -> bool) -> Option<usize> {
        // The first unit may begin before what is aligned.
        let units = len.checked_add(align - UNIT)?.div_ceil(UNIT).max(1);
        let units = rounded(u32::try_from(units).ok()?)?;
        let allocation = state.free.allocate(units)?;
        let first = self.base + allocation.offset as usize * UNIT;
        let end = first + units as usize * UNIT;
        let at = first.next_multiple_of(align);
        let needed = (end - self.base).div_ceil(PAGE) as u32;
        if needed > state.taken && !state.grow(needed, self.pages, take) {
            state.free.free(allocation);
            return None;
        }
        state.blocks.insert(((at - self.base) / UNIT) as u32, Block { allocation, len: end - at });
        Some(at)
    }

    /// A block is given back. `false`: there is none that begins there.
    pub fn free(&self, at: usize) -> bool {
        let mut state = self.state();
        let block = self.number(at).and_then(|number| state.blocks.remove(&number));
        let Some(block) = block else { return false };
        state.free.free(block.allocation);
        true
    }

    /// Bytes of the block that begins there.
    pub fn size(&self, at: usize) -> Option<usize> {
        let state = self.state();
        self.number(at).and_then(|number| state.blocks.get(&number)).map(|block| block.len)
    }

    fn number(&self, at: usize) -> Option<u32> {
        let offset = at.checked_sub(self.base).filter(|offset| offset.is_multiple_of(UNIT))?;
        u32::try_from(offset / UNIT).ok()
    }

    /// Bytes of the pages that have been taken: they can be read and written.
    pub fn taken(&self) -> usize {
        self.state().taken as usize * PAGE
    }

    /// How many blocks had no room.
    pub fn without(&self) -> u64 {
        self.state().without
    }

    /// The first of the pages that have such bytes, and how many they are, if all have been taken.
    pub fn pages_of(&self, first: u64, end: u64) -> Option<(u32, u32)> {
        let begin = first.checked_sub(self.base as u64)?;
        let end = end.checked_sub(self.base as u64).filter(|end| *end <= self.taken() as u64 && *end > begin)?;
        let (begin, end) = (begin / PAGE as u64, end.div_ceil(PAGE as u64));
        Some((begin as u32, (end - begin) as u32))
    }
}

/// As many units, or up to an eighth more: the allocator looks for a length among those that are as long as the next of such numbers, and keeps what is given
/// back among those of the one before, so that others would not be found again when memory is short.
fn rounded(units: u32) -> Option<u32> {
    const DIGITS: u32 = 4;
    let step = 1 << (u32::BITS - units.leading_zeros()).saturating_sub(DIGITS);
    units.checked_next_multiple_of(step)
}

impl State {
    /// Until there are so many pages. Whether there are.
    fn grow(&mut self, needed: u32, pages: u32, take: impl Fn(u32, u32) -> bool) -> bool {
        let more = needed - self.taken;
        if more >= self.refused {
            return false;
        }
        let many = more.next_multiple_of(CHUNK).min(pages - self.taken);
        for count in [many, more] {
            if take(self.taken, count) {
                self.taken += count;
                return true;
            }
        }
        self.refused = more;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    const BASE: usize = 0x7000_0000_3000;

    fn always(_: u32, _: u32) -> bool {
        true
    }

    #[test]
    fn blocks_lie_apart_and_are_aligned() {
        let arena = Arena::new(BASE, 1000);
        let mut blocks: Vec<(usize, usize)> = Vec::new();
        for at in 0..200 {
            let (len, align) = (1 + at * 37 % 9000, 1 << (at % 15));
            let begin = arena.allocate(len, align, always).unwrap();
            assert!(begin.is_multiple_of(align.max(16)), "{begin:#x} {align}");
            assert!(arena.size(begin).unwrap() >= len);
            assert!(blocks.iter().all(|(other, size)| begin + len <= *other || other + size <= begin));
            assert!(begin >= BASE && begin + len <= BASE + arena.taken());
            blocks.push((begin, len));
            if at % 3 == 0 {
                let (begin, _) = blocks.swap_remove(at / 3 % blocks.len());
                assert!(arena.free(begin) && !arena.free(begin), "given back once");
                assert_eq!(arena.size(begin), None);
            }
        }
        assert!(!arena.free(blocks[0].0 + 16) && !arena.free(BASE - 16) && !arena.free(usize::MAX - 15));
        let taken = arena.taken();
        blocks.iter().for_each(|(begin, _)| assert!(arena.free(*begin)));
        // All is one again.
        let most = arena.len() / 8 * 7;
        let whole = arena.allocate(most, PAGE, always).unwrap();
        assert!(arena.taken() > taken && arena.free(whole));
    }

    #[test]
    fn pages_are_taken_as_they_are_needed_and_what_is_refused_is_not_asked_for_again() {
        let (arena, asked) = (Arena::new(BASE, 1000), AtomicU32::new(0));
        // 100 pages can be had, and no more.
        let take = |first: u32, pages: u32| {
            asked.fetch_add(1, Ordering::Relaxed);
            first + pages <= 100
        };
        let first = arena.allocate(1, 1, take).unwrap();
        assert_eq!((arena.taken(), asked.load(Ordering::Relaxed)), (64 * PAGE, 1));
        assert_eq!(arena.allocate(200 * PAGE, PAGE, take), Err(1));
        assert_eq!(arena.allocate(300 * PAGE, PAGE, take), Err(2));
        assert_eq!(asked.load(Ordering::Relaxed), 3, "a chunk, and then no more than is needed; then nothing");
        // Less than a chunk is left.
        arena.allocate(80 * PAGE, 16, take).unwrap();
        assert!(arena.taken() <= 100 * PAGE && arena.without() == 2);
        // What was given back is given again, without a page more.
        let asked_before = asked.load(Ordering::Relaxed);
        assert!(arena.free(first));
        assert_eq!(arena.allocate(1, 1, take), Ok(first));
        assert_eq!(asked.load(Ordering::Relaxed), asked_before);
        assert_eq!(arena.allocate(usize::MAX, 16, take), Err(3));
        assert_eq!(arena.allocate(usize::MAX - 100, PAGE, take), Err(4));
    }

    #[test]
    fn what_was_given_back_is_had_again_at_the_same_length_when_there_is_nothing_else() {
        assert_eq!([1, 7, 15, 16, 17, 4375, 1 << 20].map(rounded), [1, 7, 15, 16, 18, 4608, 1 << 20].map(Some));
        assert_eq!(rounded(u32::MAX), None);
        for len in [16, 100, 1000, 70_000, 123_456, 1_000_000] {
            let arena = Arena::new(BASE, 1000);
            let all: Vec<usize> = std::iter::from_fn(|| arena.allocate(len, 16, always).ok()).take(2000).collect();
            for at in all {
                assert!(arena.free(at));
                assert_eq!(arena.allocate(len, 16, always), Ok(at), "{len}");
            }
        }
    }

    #[test]
    fn only_pages_that_have_been_taken_are_shown() {
        let arena = Arena::new(BASE, 1000);
        arena.allocate(1, 1, always).unwrap();
        let at = |offset: i64| (BASE as u64).wrapping_add_signed(offset);
        assert_eq!(arena.pages_of(at(0), at(1)), Some((0, 1)));
        assert_eq!(arena.pages_of(at(4095), at(4097)), Some((0, 2)));
        assert_eq!(arena.pages_of(at(63 * 4096), at(64 * 4096)), Some((63, 1)));
        for (first, end) in [(at(63 * 4096), at(64 * 4096 + 1)), (at(-1), at(5)), (at(5), at(5)), (at(9), at(5))] {
            assert_eq!(arena.pages_of(first, end), None, "{first:#x} {end:#x}");
        }
    }

    #[test]
    fn threads_get_blocks_of_their_own() {
        let arena = Arena::new(BASE, 4000);
        let owners: Vec<AtomicU32> = (0..4000 * PAGE / 16).map(|_| AtomicU32::new(0)).collect();
        thread::scope(|scope| {
            for own in 1..5 {
                let (arena, owners) = (&arena, &owners);
                scope.spawn(move || {
                    let units = |begin: usize, len: usize| (begin - BASE) / 16..(begin - BASE + len).div_ceil(16);
                    let mut blocks = Vec::new();
                    for turn in 0..2000_usize {
                        let len = 1 + turn * 7919 % 5000;
                        let begin = arena.allocate(len, 16 << (turn % 4), always).unwrap();
                        for unit in units(begin, len) {
                            assert_eq!(owners[unit].swap(own, Ordering::Relaxed), 0);
                        }
                        blocks.push((begin, len));
                        if blocks.len() > 50 {
                            let (begin, len) = blocks.swap_remove(turn % 50);
                            for unit in units(begin, len) {
                                assert_eq!(owners[unit].swap(0, Ordering::Relaxed), own);
                            }
                            assert!(arena.free(begin));
                        }
                    }
                });
            }
        });
    }
}
