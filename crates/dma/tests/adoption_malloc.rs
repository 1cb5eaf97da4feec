//! `malloc` goes on as ever in memory that was adopted under it, and gives it back as ever.

use millrace_dma::{Adopter, Scope};
use std::ffi::c_void;

const LIVE: usize = 400;

/// A block of C's own, filled with a byte that belongs to it.
struct Block {
    at: *mut u8,
    len: usize,
    byte: u8,
}

impl Block {
    fn new(len: usize, byte: u8, zeroed: bool) -> Self {
        // SAFETY: a block of at least one byte.
        let at = unsafe { if zeroed { libc::calloc(len, 1) } else { libc::malloc(len) } }.cast::<u8>();
        assert!(!at.is_null());
        let block = Self { at, len, byte };
        assert!(!zeroed || block.bytes().iter().all(|byte| *byte == 0), "calloc gave old bytes");
        block.fill();
        block
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the block, which was filled or zeroed.
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }

    fn fill(&self) {
        // SAFETY: the block.
        unsafe { self.at.write_bytes(self.byte, self.len) };
    }

    fn check(&self, len: usize) {
        assert!(self.bytes()[..len].iter().all(|byte| *byte == self.byte), "bytes were lost");
    }

    fn resize(&mut self, len: usize) {
        self.check(self.len);
        // SAFETY: the block, which is not used by its old address any more.
        self.at = unsafe { libc::realloc(self.at.cast::<c_void>(), len) }.cast();
        assert!(!self.at.is_null());
        let kept = self.len.min(len);
        self.len = len;
        // SAFETY: the new part is written before anybody reads it.
        unsafe { self.at.add(kept).write_bytes(self.byte, len - kept) };
        self.check(len);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.check(self.len);
        // SAFETY: allocated above, and freed once.
        unsafe { libc::free(self.at.cast()) };
    }
}

fn stress(adopter: &Adopter, seed: u64, steps: usize) -> u64 {
    let mut state = seed;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut blocks, mut shared): (Vec<Block>, _) = (Vec::new(), 0);
    for _ in 0..steps {
        // Small ones of the heap and of arenas, and some that have a mapping of their own.
        let len = 1 + if next(10) == 0 { next(1 << 20) } else { next(40 << 10) };
        let byte = 1 + next(255) as u8;
        match next(8) {
            0..3 if blocks.len() < LIVE => blocks.push(Block::new(len, byte, next(2) == 0)),
            3 if !blocks.is_empty() => {
                let place = next(blocks.len());
                blocks[place].resize(len);
            }
            4 | 5 if !blocks.is_empty() => drop(blocks.swap_remove(next(blocks.len()))),
            6 if !blocks.is_empty() => {
                let block = &blocks[next(blocks.len())];
                let (at, page) = (block.at.addr() as u64, 4096);
                // As it is, or rounded to pages, which takes what `malloc` keeps for itself with it.
                let (first, len) = match next(2) {
                    0 => (at, block.len as u64),
                    _ => (at & !(page - 1), (block.len as u64).next_multiple_of(page) + page),
                };
                shared += adopter.adopt(first, len, Scope::Heap).unwrap().shared();
            }
            7 if next(40) == 0 => {
                // SAFETY: gives free memory back to the system.
                unsafe { libc::malloc_trim(0) };
            }
            _ => {}
        }
    }
    shared
}

#[test]
fn malloc_goes_on_in_adopted_memory() {
    // One after the other: who forks while others allocate may not adopt what `malloc` hands out.
    in_the_heap_of_a_first_thread();
    in_arenas();
}

fn in_arenas() {
    let Ok(adopter) = Adopter::of_process().map_err(|error| println!("skipped: {error}")) else { return };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..4).map(|seed| scope.spawn(move || stress(adopter, seed * 77, 6000))).collect();
        for thread in threads {
            assert!(thread.join().unwrap() > 0);
        }
    });
    println!("{:?}", adopter.counters());
}

/// The heap of the first thread, which grows and shrinks with `brk`.
fn in_the_heap_of_a_first_thread() {
    // SAFETY: the child has one thread, and does nothing but what is below.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: one arena, the one of `brk`, and back to the system at once.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 10);
        }
        let outcome = std::panic::catch_unwind(|| match Adopter::of_process() {
            Ok(adopter) => i32::from(stress(adopter, 9, 10_000) == 0),
            Err(error) => {
                println!("skipped: {error}");
                0
            }
        });
        // SAFETY: ends the child without what the test program does at its end.
        unsafe { libc::_exit(outcome.unwrap_or(98)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
}
