//! Memory of the program that becomes shared memory under the hands of those who use it.

use millrace_dma::{Adopter, Adoption, Piece, Refusal, Scope};
use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, open};
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use rustix::mm::{madvise, mlock, mmap, mmap_anonymous, mprotect, mremap, munlock, munmap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;
const LEN: usize = 1 << 20;
const BOTH: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Addresses that one test gives up must not be taken by the next one.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `None`, with a line that says why, where the kernel or its rights do not allow it.
fn adopter() -> Option<&'static Adopter> {
    Adopter::of_process().map_err(|error| println!("skipped: {error}")).ok()
}

fn map(len: usize) -> *mut c_void {
    // SAFETY: fresh addresses.
    unsafe { mmap_anonymous(core::ptr::null_mut(), len, BOTH, MapFlags::PRIVATE).unwrap() }
}

fn unmap(at: *mut c_void, len: usize) {
    // SAFETY: mapped by the test that calls, and used by nobody else.
    unsafe { munmap(at, len).unwrap() };
}

fn adopt(adopter: &Adopter, at: *mut c_void, len: usize) -> Adoption {
    adopter.adopt(at.expose_provenance() as u64, len as u64, Scope::Heap).unwrap()
}

fn word(at: *mut c_void, number: usize) -> *mut u64 {
    at.cast::<u64>().wrapping_add(number)
}

fn get(at: *mut c_void, number: usize) -> u64 {
    // SAFETY: memory of the test, which others may write.
    unsafe { word(at, number).read_volatile() }
}

fn set(at: *mut c_void, number: usize, value: u64) {
    // SAFETY: as `get`.
    unsafe { word(at, number).write_volatile(value) };
}

/// The bytes of a piece, mapped a second time, as another process would.
fn second(piece: &Piece, len: usize) -> *mut c_void {
    // SAFETY: fresh addresses.
    unsafe { mmap(core::ptr::null_mut(), len, BOTH, MapFlags::SHARED, piece.file.fd(), piece.offset).unwrap() }
}

/// Three threads count in words of their own, and look whether what they wrote is still there.
fn hammer(at: usize, len: usize, act: impl FnOnce()) -> u64 {
    let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (stop, writes) = (&stop, &writes);
            scope.spawn(move || {
                let at = core::ptr::with_exposed_provenance_mut::<c_void>(at);
                let words: Vec<usize> = (thread..len / 8).step_by(3 * 37).collect();
                let mut expected: Vec<u64> = words.iter().map(|number| get(at, *number)).collect();
                while !stop.load(Ordering::Relaxed) {
                    for (number, expected) in words.iter().zip(&mut expected) {
                        assert_eq!(get(at, *number), *expected, "a write was lost");
                        *expected += 1;
                        set(at, *number, *expected);
                    }
                    writes.fetch_add(words.len() as u64, Ordering::Relaxed);
                }
            });
        }
        let wait = |more: u64| {
            let until = writes.load(Ordering::Relaxed) + more;
            while writes.load(Ordering::Relaxed) < until {
                std::thread::yield_now();
            }
        };
        wait(10_000);
        act();
        wait(10_000);
        stop.store(true, Ordering::Relaxed);
    });
    writes.load(Ordering::Relaxed)
}

fn hammered(adopter: &Adopter, at: *mut c_void, len: usize, what: &str) {
    let mut adoption = Adoption::default();
    // With a part of a page at both ends.
    let (inside, inner) = (at.wrapping_byte_add(100), len - 200);
    let writes = hammer(at.expose_provenance(), len, || adoption = adopt(adopter, inside, inner));
    assert!(adoption.left.is_empty(), "{what}: {:?}", adoption.left);
    let whole = (inside.addr() + inner) / PAGE * PAGE - inside.addr().next_multiple_of(PAGE);
    assert_eq!(adoption.shared() as usize, whole, "{what}");
    // More than one where a part of it was adopted before, as a block that `malloc` hands out again.
    for piece in &adoption.pieces {
        let there = second(piece, piece.len as usize);
        let here = core::ptr::with_exposed_provenance_mut::<c_void>(piece.first as usize);
        assert!((0..piece.len as usize / 8).all(|number| get(there, number) == get(here, number)), "{what}");
        set(there, 5, 77);
        assert_eq!(get(here, 5), 77, "{what}");
        unmap(there, piece.len as usize);
    }
    println!("{what}: {writes} writes");
}

#[test]
fn no_write_is_lost_in_any_kind_of_memory() {
    let _alone = alone();
    let Some(adopter) = adopter() else { return };
    for _ in 0..5 {
        let at = map(LEN);
        hammered(adopter, at, LEN, "mmap");
        unmap(at, LEN);
        let block = vec![1_u8; 16 * PAGE].leak();
        hammered(adopter, block.as_mut_ptr().cast(), 16 * PAGE, "malloc");
        // SAFETY: moves the end of the heap, behind which nobody has anything.
        let at = unsafe { libc::sbrk(32 * PAGE as isize) };
        hammered(adopter, at, 32 * PAGE, "heap");
    }
    let (huge, len) = (2 << 20, 16 << 20);
    let at = map(len);
    // SAFETY: only says which pages it should stand on.
    unsafe { madvise(at, len, Advice::LinuxHugepage).unwrap() };
    (0..len / 8).step_by(512).for_each(|number| set(at, number, 3));
    assert!(len / huge > 1);
    hammered(adopter, at, len, "huge pages");
    unmap(at, len);
}

#[test]
fn reads_of_a_disk_that_are_under_way_arrive() {
    let _alone = alone();
    let Some(adopter) = adopter() else { return };
    const BLOCK: usize = 64 << 10;
    let path = format!("{}/adoption-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    std::fs::write(&path, vec![0x5a; BLOCK]).unwrap();
    let file = open(&path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty());
    std::fs::remove_file(&path).unwrap();
    let Ok(file) = file else { return println!("skipped: no O_DIRECT at {path}") };
    let (reads, mut busy, mut left) = (AtomicU64::new(0), 0, Vec::new());
    for _ in 0..20 {
        let at = map(LEN);
        (0..LEN / 8).step_by(512).for_each(|number| set(at, number, 1));
        let (start, stop) = (at.expose_provenance(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for part in 0..2 {
                let (file, stop, reads) = (&file, &stop, &reads);
                scope.spawn(move || {
                    let blocks = (part..LEN / BLOCK).step_by(2).cycle();
                    for block in blocks.take_while(|_| !stop.load(Ordering::Relaxed)) {
                        let at = core::ptr::with_exposed_provenance_mut::<u8>(start + block * BLOCK);
                        // SAFETY: a block that only this thread uses, of memory that lives until the threads have ended.
                        let bytes = unsafe { core::slice::from_raw_parts_mut(at, BLOCK) };
                        bytes.fill(0xee);
                        assert_eq!(rustix::io::pread(file, &mut *bytes, 0), Ok(BLOCK));
                        assert!(bytes.iter().all(|byte| *byte == 0x5a), "bytes of the disk were lost");
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let before = reads.load(Ordering::Relaxed);
            while reads.load(Ordering::Relaxed) < before + 8 {
                std::thread::yield_now();
            }
            let adoption = adopt(adopter, at, LEN);
            busy += adoption.left.len();
            left.extend(adoption.left);
            while reads.load(Ordering::Relaxed) < before + 24 {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
        });
        unmap(at, LEN);
    }
    assert!(left.iter().all(|left| left.why == Refusal::Busy), "{left:?}");
    println!("{} reads, {busy} ranges left, {:?}", reads.load(Ordering::Relaxed), adopter.counters());
}

/// Reads of the kernel, as `read` from a pipe makes them, never fail while memory is exchanged.
#[test]
fn system_calls_do_not_notice() {
    let _alone = alone();
    let Some(adopter) = adopter() else { return };
    for _ in 0..10 {
        let at = map(LEN);
        let (start, stop) = (at.expose_provenance(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let zero = std::fs::File::open("/dev/zero").unwrap();
                let all = core::ptr::with_exposed_provenance_mut::<u8>(start);
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: memory that only this thread uses until it has ended.
                    let bytes = unsafe { core::slice::from_raw_parts_mut(all, LEN) };
                    bytes.fill(1);
                    assert_eq!(rustix::io::read(&zero, &mut *bytes), Ok(LEN));
                    assert!(bytes.iter().all(|byte| *byte == 0));
                }
            });
            assert!(adopt(adopter, at, LEN).left.is_empty());
            stop.store(true, Ordering::Relaxed);
        });
        unmap(at, LEN);
    }
}

#[test]
fn what_must_stay_as_it_is_stays_and_the_reason_is_told() {
    let _alone = alone();
    let Some(adopter) = adopter() else { return };
    let why = |at: *mut c_void, len| {
        let adoption = adopt(adopter, at, len);
        assert_eq!(adoption.shared(), 0, "{adoption:?}");
        let mut reasons: Vec<Refusal> = adoption.left.iter().map(|left| left.why).collect();
        reasons.dedup();
        reasons
    };
    let at = map(LEN);
    // SAFETY: made above; each call changes what is allowed there, or gives it back.
    unsafe {
        mprotect(at, LEN, MprotectFlags::READ).unwrap();
        assert_eq!(why(at, LEN), [Refusal::ReadOnly]);
        mprotect(at, LEN, MprotectFlags::READ | MprotectFlags::WRITE | MprotectFlags::EXEC).unwrap();
        assert_eq!(why(at, LEN), [Refusal::Executable]);
        mprotect(at, LEN, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
        mlock(at, LEN).unwrap();
        assert_eq!(why(at, LEN), [Refusal::Locked]);
        munlock(at, LEN).unwrap();
        munmap(at, LEN).unwrap();
    }
    assert_eq!(why(at, LEN), [Refusal::NotMapped]);
    // The stack of a thread, and the one of the first thread.
    let local = 0_u8;
    let here = core::ptr::from_ref(&local).expose_provenance() / PAGE * PAGE;
    let stack = core::ptr::with_exposed_provenance_mut::<c_void>(here - 8 * PAGE);
    assert_eq!(why(stack, 9 * PAGE), [Refusal::Thread]);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let find = |what: &str| {
        let line = maps.lines().find(|line| line.contains(what)).unwrap();
        let (first, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let number = |digits| usize::from_str_radix(digits, 16).unwrap();
        (core::ptr::with_exposed_provenance_mut::<c_void>(number(first)), number(end) - number(first))
    };
    let (first, len) = find("[stack]");
    assert_eq!(why(first, len), [Refusal::Stack]);
    let (first, len) = find("[vdso]");
    assert_eq!(why(first, len), [Refusal::Special]);
    let (first, len) = find("libc.so");
    assert_eq!(why(first, len), [Refusal::File]);
}

#[test]
fn thread_local_variables_and_control_blocks_stay() {
    let _alone = alone();
    let Some(adopter) = adopter() else { return };
    // All that this process has, as far as it can be written.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ranges = maps.lines().filter(|line| line.contains(" rw-p ")).filter_map(|line| {
        let (first, end) = line.split_once(' ')?.0.split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        Some((number(first)?, number(end)?))
    });
    let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(std::thread::park)).collect();
    let mut all = Adoption::default();
    for (first, end) in ranges {
        // Someone may have unmapped it meanwhile.
        let adoption = adopter.adopt(first, end - first, Scope::Heap).unwrap();
        all.pieces.extend(adoption.pieces);
        all.left.extend(adoption.left);
    }
    assert!(all.left.iter().any(|left| left.why == Refusal::Thread));
    thread_local!(static HERE: u64 = const { 7 });
    let local = HERE.with(|here| core::ptr::from_ref(here).addr() as u64);
    assert!(all.pieces.iter().all(|piece| local < piece.first || local >= piece.first + piece.len));
    // Who waits for the end of a thread is woken.
    threads.into_iter().for_each(|thread| {
        thread.thread().unpark();
        thread.join().unwrap();
    });
    println!("{} MiB adopted, left: {:?}", all.shared() >> 20, all.left.len());
}

#[test]
fn memory_that_is_shared_already_is_told_with_its_file() {
    let _alone = alone();
    let Some(adopter) = adopter() else { return };
    let file = memfd_create("theirs", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, LEN as u64).unwrap();
    // SAFETY: fresh addresses.
    let at = unsafe { mmap(core::ptr::null_mut(), LEN / 2, BOTH, MapFlags::SHARED, &file, LEN as u64 / 2).unwrap() };
    let adoption = adopt(adopter, at.wrapping_byte_add(PAGE), LEN / 4);
    let piece = &adoption.pieces[0];
    assert_eq!((piece.offset, piece.len), ((LEN / 2 + PAGE) as u64, LEN as u64 / 4));
    assert!(piece.file.can_shrink());
    let there = second(&adoption.pieces[0], PAGE);
    set(at.wrapping_byte_add(PAGE), 9, 5);
    assert_eq!(get(there, 9), 5);
    unmap(there, PAGE);
    unmap(at, LEN / 2);
}

#[test]
fn the_second_time_it_is_known_and_after_munmap_it_is_not() {
    let _alone = alone();
    let Some(adopter) = adopter() else { return };
    let at = map(LEN);
    set(at, 0, 5);
    let first = adopt(adopter, at, LEN);
    let known = adopter.counters().known;
    let again = adopt(adopter, at.wrapping_byte_add(PAGE + 1), LEN / 2);
    assert_eq!(adopter.counters().known, known + 1);
    assert_eq!(again.pieces[0].offset, first.pieces[0].offset + 2 * PAGE as u64);
    unmap(at, LEN);
    assert!(adopter.pieces(at.addr() as u64, LEN as u64).unwrap().is_empty());
    // SAFETY: the same addresses, if nobody took them meanwhile.
    let next = unsafe { mmap_anonymous(at, LEN, BOTH, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE) };
    let Ok(next) = next else { return };
    let anew = adopt(adopter, next, LEN);
    assert_eq!(get(next, 0), 0);
    assert_ne!(anew.pieces[0].offset, first.pieces[0].offset, "a peer of the old one would reach the new one");
    // What was unmapped is given back to the system.
    let freed = adopter.counters().freed;
    for _ in 0..100 {
        if adopter.counters().freed > 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(adopter.counters().freed >= freed && adopter.counters().freed > 0);
    unmap(next, LEN);
}

#[test]
fn memory_that_moves_grows_or_is_given_back_is_found_again() {
    let _alone = alone();
    let Some(adopter) = adopter() else { return };
    let (at, neighbour) = (map(LEN), map(LEN));
    (0..LEN / 8).step_by(512).for_each(|number| set(at, number, 1));
    let before = adopt(adopter, at, LEN);
    let beside = adopt(adopter, neighbour, LEN);
    set(neighbour, 0, 8);
    // SAFETY: made above; the old addresses are not used any more.
    let moved = unsafe { mremap(at, LEN, 8 * LEN, MremapFlags::MAYMOVE).unwrap() };
    set(moved, 8 * LEN / 8 - 1, 4);
    set(moved, LEN / 8, 4);
    assert_eq!(get(neighbour, 0), 8, "it grew into the memory of another one");
    let there = second(&beside.pieces[0], LEN);
    assert!((1..LEN / 8).all(|number| get(there, number) == 0), "it grew into the memory of another one");
    let after = adopt(adopter, moved, 8 * LEN);
    assert_eq!((after.shared() as usize, after.pieces[0].offset), (8 * LEN, before.pieces[0].offset));
    if moved != at {
        assert!(adopter.pieces(at.addr() as u64, LEN as u64).unwrap().is_empty());
    }
    // Given back: forgotten, and found again, here or by the thread that tidies up.
    // SAFETY: made above.
    unsafe { madvise(moved, 8 * LEN, Advice::LinuxDontNeed).unwrap() };
    let found = adopt(adopter, moved, 8 * LEN);
    assert_eq!(found.pieces[0].offset, before.pieces[0].offset);
    assert_eq!(get(moved, LEN / 8), 4);
    unmap(moved, 8 * LEN);
    unmap(there, LEN);
    unmap(neighbour, LEN);
}
