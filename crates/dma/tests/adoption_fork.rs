//! Children that are forked while memory of their parent is adopted and in use.

use millrace_dma::{Adopter, Scope};
use rustix::fs::ftruncate;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const LEN: usize = 256 << 10;
/// Blocks of `malloc` of at least so many bytes are mappings of their own.
const OF_ITS_OWN: usize = 128 << 10;
static ALONE: Mutex<()> = Mutex::new(());

fn adopter() -> Option<&'static Adopter> {
    Adopter::of_process().map_err(|error| println!("skipped: {error}")).ok()
}

fn map() -> *mut c_void {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh addresses.
    unsafe { mmap_anonymous(core::ptr::null_mut(), LEN, rights, MapFlags::PRIVATE).unwrap() }
}

fn words(at: usize) -> &'static [AtomicU64] {
    // SAFETY: memory of a test that is mapped until its end, used as atomic words only.
    unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(at), LEN / 8) }
}

/// Runs something in a child; its exit status, or 99 when a signal ended it.
fn in_child(act: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child does what a child may do whose parent has several threads.
    match unsafe { libc::fork() } {
        0 => {
            let outcome = act();
            // SAFETY: ends the child without what the test program does at its end.
            unsafe { libc::_exit(outcome) }
        }
        child => {
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(child, &mut status, 0) };
            if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 99 }
        }
    }
}

/// Ends what others do beside a thread when that ends, also by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thread counts in every word, another allocates and frees in adopted memory; children write everywhere and allocate.
#[test]
fn three_hundred_children_change_no_byte_of_their_parent() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Otherwise the first large block that is freed makes it higher.
    // SAFETY: says from which length on blocks are mappings of their own.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, OF_ITS_OWN as i32) };
    let Some(adopter) = adopter() else { return };
    let at = map().expose_provenance();
    adopter.adopt(at as u64, LEN as u64, Scope::Mappings).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let _stop = Stop(&stop);
            let mut expected = 0;
            while !stop.load(Ordering::Relaxed) {
                for word in &words(at)[1..] {
                    assert_eq!(word.load(Ordering::Relaxed), expected, "a child's byte came to the parent");
                    word.store(expected + 1, Ordering::Relaxed);
                }
                expected += 1;
            }
        });
        scope.spawn(|| {
            let _stop = Stop(&stop);
            // Every second one has a mapping to itself, and is adopted; the others are what `malloc` hands out again.
            let new = |round: usize| vec![round as u8; if round % 2 == 1 { OF_ITS_OWN } else { 3000 } + round % 4000];
            let mut blocks: Vec<Vec<u8>> = (0..64).map(new).collect();
            let mut round = 0_usize;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let old = core::mem::replace(&mut blocks[round % 64], new(round));
                assert!(old.iter().all(|byte| *byte == old[0]));
                if round % 16 < 2 {
                    let block = &blocks[round % 64];
                    let adoption =
                        adopter.adopt(block.as_ptr().addr() as u64, block.len() as u64, Scope::Mappings).unwrap();
                    assert_eq!(adoption.shared() > 0, round % 2 == 1, "{adoption:?}");
                }
            }
        });
        words(at)[0].store(5, Ordering::Relaxed);
        for round in 0..300 {
            let status = in_child(|| {
                let mine = words(at);
                let unharmed = mine[0].load(Ordering::Relaxed) == 5;
                mine.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
                let block = vec![3_u8; 100_000];
                i32::from(!unharmed) | i32::from(block.iter().any(|byte| *byte != 3)) << 1
            });
            assert_eq!(status, 0, "round {round}; 99: a signal ended it");
            assert_eq!(words(at)[0].load(Ordering::Relaxed), 5);
        }
    });
    println!("{:?}", adopter.counters());
    // SAFETY: made above; no thread uses it any more.
    unsafe { munmap(core::ptr::with_exposed_provenance_mut(at), LEN).unwrap() };
}

/// Another process, as which the child stands here, and this one see what the other stores in the file.
#[test]
fn two_processes_see_each_others_stores() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(adopter) = adopter() else { return };
    let at = map().expose_provenance();
    words(at)[0].store(1, Ordering::Relaxed);
    let piece = adopter.adopt(at as u64, LEN as u64, Scope::Mappings).unwrap().pieces.remove(0);
    assert!(!piece.file.can_shrink());
    assert!(ftruncate(piece.file.fd(), 0).is_err(), "who has the file could end everybody else");
    let status = in_child(|| {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: fresh addresses.
        let there =
            unsafe { mmap(core::ptr::null_mut(), LEN, rights, MapFlags::SHARED, piece.file.fd(), piece.offset) };
        let there = words(there.unwrap().expose_provenance());
        // The memory itself is a copy in a child; the file is what another process would be given.
        words(at)[0].store(99, Ordering::Relaxed);
        there[1].store(2, Ordering::Relaxed);
        i32::from(there[0].load(Ordering::Relaxed) != 1)
    });
    assert_eq!(status, 0);
    assert_eq!([0, 1].map(|number| words(at)[number].load(Ordering::Relaxed)), [1, 2]);
    // SAFETY: made above.
    unsafe { munmap(core::ptr::with_exposed_provenance_mut(at), LEN).unwrap() };
}

/// What a child has is its own, down to the last page, and it can adopt it anew.
#[test]
fn a_child_has_what_its_parent_had_and_can_adopt_it_itself() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(adopter) = adopter() else { return };
    let at = map().expose_provenance();
    (0..LEN / 8).for_each(|number| words(at)[number].store(number as u64, Ordering::Relaxed));
    let piece = adopter.adopt(at as u64, LEN as u64, Scope::Mappings).unwrap().pieces.remove(0);
    let status = in_child(|| {
        let whole = (0..LEN / 8).all(|number| words(at)[number].load(Ordering::Relaxed) == number as u64);
        let parents = adopter.adopt(at as u64, LEN as u64, Scope::Mappings).is_err();
        let Ok(own) = Adopter::of_process() else { return 1 };
        let Ok(adoption) = own.adopt(at as u64, LEN as u64, Scope::Mappings) else { return 2 };
        words(at)[7].store(u64::MAX, Ordering::Relaxed);
        let separate = adoption.pieces.len() == 1 && adoption.pieces[0].file.identity() != piece.file.identity();
        let grandchild = in_child(|| i32::from(words(at)[7].load(Ordering::Relaxed) != u64::MAX));
        i32::from(!whole) << 2 | i32::from(!parents) << 3 | i32::from(!separate) << 4 | grandchild << 5
    });
    assert_eq!(status, 0, "bits say what went wrong in the child");
    assert_eq!(words(at)[7].load(Ordering::Relaxed), 7);
    // SAFETY: made above.
    unsafe { munmap(core::ptr::with_exposed_provenance_mut(at), LEN).unwrap() };
}

#[test]
fn other_programs_are_started_as_ever() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(adopter) = adopter() else { return };
    let at = map().expose_provenance();
    adopter.adopt(at as u64, LEN as u64, Scope::Mappings).unwrap();
    words(at)[3].store(9, Ordering::Relaxed);
    for _ in 0..20 {
        let output = std::process::Command::new("echo").arg("here").output().unwrap();
        assert_eq!(output.stdout, b"here\n");
    }
    assert_eq!(adopter.pieces(at as u64, LEN as u64).unwrap().len(), 1);
    assert_eq!(words(at)[3].load(Ordering::Relaxed), 9);
    // SAFETY: made above.
    unsafe { munmap(core::ptr::with_exposed_provenance_mut(at), LEN).unwrap() };
}
