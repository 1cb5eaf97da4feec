//! Memory that is unmapped, mapped again, moved, punched, inherited or used again while it is registered: the faults of
//! registration caches. Only the calls that take memory away, and looks at it, are `unsafe` here.

use millrace_dma::{Adopter, Scope};
use millrace_rdma::memory::{Asker, Binding, Limits, Memory, Refused, Regions, Registered, Source, Way, WindowType};
use millrace_rdma::number::{Key, Qpn};
use millrace_rdma::work::Access;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, mremap_fixed, munmap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const LEN: usize = 64 << 10;

/// Addresses that one test gives up must not be taken by the next one.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether registered memory becomes shared memory: in `registration_safety_adopted.rs`, where the system allows it.
fn adopts() -> bool {
    module_path!().contains("adopted") && Adopter::of_process().map_err(|error| println!("skipped: {error}")).is_ok()
}

pub(crate) fn all() -> Access {
    let remote = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::WINDOW_BIND];
    remote.into_iter().fold(Access::LOCAL_WRITE, Access::with)
}

fn map(at: Option<*mut c_void>) -> Result<*mut c_void, Errno> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let fixed = if at.is_some() { MapFlags::FIXED_NOREPLACE } else { MapFlags::empty() };
    let at = at.unwrap_or(core::ptr::null_mut());
    // SAFETY: replaces nothing.
    let got = unsafe { mmap_anonymous(at, LEN, rights, MapFlags::PRIVATE | fixed) }?;
    // Touched, as memory is that was in use.
    fill(got, 0, LEN);
    Ok(got)
}

fn fill(at: *mut c_void, byte: u8, len: usize) {
    // SAFETY: memory of the test that calls.
    unsafe { core::ptr::write_bytes(at.cast::<u8>(), byte, len) };
}

fn holds_only(at: *mut c_void, byte: u8) -> bool {
    let at = at.cast::<u8>();
    // SAFETY: as above; volatile because an engine may write it.
    (0..LEN).step_by(16).all(|offset| unsafe { at.add(offset).read_volatile() } == byte)
}

fn unmap(at: *mut c_void) {
    // SAFETY: mapped by `map`, and used by this test only.
    unsafe { munmap(at, LEN).unwrap() };
}

/// An engine with one region.
struct Engine {
    regions: Regions,
    asker: Asker,
    region: Registered,
    address: u64,
}

impl Engine {
    fn over(at: *mut c_void) -> Self {
        Self::of(at.expose_provenance() as u64, LEN as u64)
    }

    fn of(address: u64, len: u64) -> Self {
        let limits = Limits { unwatched: false, adopt: adopts().then_some(Scope::Heap), ..Limits::default() };
        let mut regions = Regions::new(limits).unwrap();
        let domain = regions.allocate_domain().unwrap();
        let region = regions.register(domain, Source::Own { address, len }, None, all()).unwrap();
        assert_eq!(region.way, if adopts() { Way::Adopted } else { Way::Watched });
        Self { regions, asker: Asker { domain, qpn: Qpn::new(7) }, region, address }
    }

    fn register_again(&mut self) {
        let source = Source::Own { address: self.address, len: LEN as u64 };
        self.region = self.regions.register(self.asker.domain, source, None, all()).unwrap();
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Refused> {
        self.regions.write(self.asker, self.region.rkey, self.address + offset as u64, bytes)
    }

    /// Every way to the memory says that it is gone.
    fn is_gone(&mut self) -> bool {
        let Self { regions, asker, region, address } = self;
        let (asker, address, gone) = (*asker, *address, Some(Refused::Gone));
        regions.write(asker, region.rkey, address, &[1; 64]).err() == gone
            && regions.read(asker, region.rkey, address, &mut [1; 64]).err() == gone
            && regions.scatter(asker, region.lkey, address, &[1; 64]).err() == gone
            && regions.gather(asker, region.lkey, address, &mut [1; 64]).err() == gone
            && regions.fetch_add(asker, region.rkey, address, 1).err() == gone
            && regions.compare_swap(asker, region.rkey, address, 0, 1).err() == gone
            && regions.allows(asker, region.rkey, address, 8, Access::REMOTE_READ).err() == gone
    }
}

/// ofi-cray/libfabric-cray 1000, openucx/ucx 4016: a cache gives out the registration of what was there before.
#[test]
fn memory_that_is_unmapped_and_mapped_again_is_a_stranger() {
    let _alone = alone();
    let mut done = 0;
    for _ in 0..50 {
        let at = map(None).unwrap();
        let mut engine = Engine::over(at);
        engine.write(0, &[5; LEN]).unwrap();
        assert!(holds_only(at, 5));
        unmap(at);
        // Another thread of the test program may have been given the addresses.
        if map(Some(at)).is_err() {
            continue;
        }
        assert!(engine.is_gone());
        assert!(holds_only(at, 0), "a stranger's bytes were written");
        let old = engine.region;
        engine.register_again();
        assert_ne!(old, engine.region);
        engine.write(0, &[6; LEN]).unwrap();
        assert_eq!(engine.regions.write(engine.asker, old.rkey, engine.address, &[7]), Err(Refused::Gone));
        engine.regions.deregister(old.lkey).unwrap();
        assert_eq!(engine.regions.write(engine.asker, old.rkey, engine.address, &[7]), Err(Refused::Key));
        assert!(holds_only(at, 6));
        unmap(at);
        done += 1;
    }
    assert!(done > 0);
}

#[test]
fn one_page_that_is_mapped_over_takes_the_region_with_it() {
    let _alone = alone();
    let at = map(None).unwrap();
    let mut engine = Engine::over(at);
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: inside of what was mapped above.
    unsafe {
        let page = at.cast::<u8>().add(8192).cast();
        mmap_anonymous(page, 4096, rights, MapFlags::PRIVATE | MapFlags::FIXED).unwrap();
    }
    assert!(engine.is_gone());
    assert!(engine.regions.list().iter().all(|info| info.gone));
    assert!(holds_only(at, 0));
    unmap(at);
}

#[test]
fn memory_beside_it_does_not_matter() {
    let _alone = alone();
    let at = map(None).unwrap();
    let mut engine = Engine::of(at.expose_provenance() as u64, 4096);
    // SAFETY: the last page, mapped above.
    unsafe { munmap(at.cast::<u8>().add(LEN - 4096).cast(), 4096).unwrap() };
    assert_eq!(engine.write(0, &[3; 4096]), Ok(()), "the first page is still there");
    // SAFETY: all but the last page.
    unsafe { munmap(at, LEN - 4096).unwrap() };
    assert!(engine.is_gone());
}

#[test]
fn memory_that_moves_is_gone() {
    let _alone = alone();
    let at = map(None).unwrap();
    let mut engine = Engine::over(at);
    // SAFETY: mapped above; the old addresses are not used any more.
    let moved = unsafe {
        let room = mmap_anonymous(core::ptr::null_mut(), LEN, ProtFlags::empty(), MapFlags::PRIVATE).unwrap();
        mremap_fixed(at, LEN, LEN, MremapFlags::MAYMOVE, room).unwrap()
    };
    assert_ne!(moved, at);
    assert!(engine.is_gone());
    assert!(holds_only(moved, 0));
    unmap(moved);
    let at = map(None).unwrap();
    let mut engine = Engine::over(at);
    // SAFETY: as above; it becomes shorter where it is.
    unsafe { mremap(at, LEN, 4096, MremapFlags::empty()).unwrap() };
    assert!(engine.is_gone(), "cut short");
    // SAFETY: what is left.
    unsafe { munmap(at, 4096).unwrap() };
}

#[test]
fn pages_that_are_given_back_are_gone() {
    let _alone = alone();
    let at = map(None).unwrap();
    let mut engine = Engine::over(at);
    engine.write(0, &[5; LEN]).unwrap();
    // SAFETY: mapped above.
    unsafe { madvise(at.cast::<u8>().add(4096).cast(), 4096, Advice::LinuxDontNeed).unwrap() };
    assert!(engine.is_gone());
    engine.register_again();
    assert_eq!(engine.write(0, &[6; LEN]), Ok(()));
    unmap(at);
}

/// Runs something in a child that is forked, and returns its exit status; 99 when it was killed.
fn in_child(act: impl FnOnce() -> i32) -> i32 {
    // SAFETY: glibc's own locks are whole in the child; the other threads of this program wait in `alone`.
    match unsafe { libc::fork() } {
        0 => {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(98);
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

/// The heap that `malloc` takes from the system and gives back (ofiwg/libfabric 6244 is about who notices).
#[test]
fn a_heap_that_shrinks_and_grows_is_a_stranger() {
    let _alone = alone();
    // In a child, whose only thread this is: nobody else moves the end of the heap meanwhile.
    let status = in_child(|| {
        // Makes what it needs before.
        drop(Regions::new(Limits::default()).unwrap());
        // SAFETY: moves the end of the heap behind what `malloc` uses, and back to where it was.
        let more = |bytes: isize| unsafe { libc::sbrk(bytes) };
        let at = more(LEN as isize);
        // Whole pages only: the first one is shared with what was there before.
        let start = at.map_addr(|address| address.next_multiple_of(4096));
        fill(start, 1, LEN - 8192);
        let mut engine = Engine::of(start.expose_provenance() as u64, LEN as u64 - 8192);
        let mut works = engine.write(0, &[5; 64]) == Ok(());
        if more(0).addr() != at.addr() + LEN {
            return 77;
        }
        more(-(LEN as isize));
        more(LEN as isize);
        works &= engine.is_gone();
        // SAFETY: grown again.
        works &= unsafe { start.cast::<u8>().read_volatile() } == 0;
        i32::from(!works)
    });
    assert_eq!(status, 0, "77: somebody else moved the end of the heap");
}

/// The parent's registration stays what it was, whichever of the two writes first; the child's copy opens nothing, and the
/// child can register anew.
#[test]
fn a_child_has_nothing_to_do_with_what_its_parent_registered() {
    let _alone = alone();
    let at = map(None).unwrap();
    let mut engine = Engine::over(at);
    engine.write(0, &[1; LEN]).unwrap();
    let status = in_child(|| {
        let refused = engine.is_gone();
        let unharmed = holds_only(at, 1);
        let mut anew = Engine::over(at);
        let written = anew.write(0, &[9; LEN]) == Ok(()) && holds_only(at, 9);
        unmap(at);
        let gone = anew.is_gone();
        i32::from(!refused) | i32::from(!unharmed) << 1 | i32::from(!written) << 2 | i32::from(!gone) << 3
    });
    assert_eq!(status, 0, "bits say what went wrong in the child");
    assert!(holds_only(at, 1), "the child's bytes came to the parent");
    assert_eq!(engine.write(0, &[2; LEN]), Ok(()), "the parent's own pages, after copy on write");
    assert!(holds_only(at, 2));
    unmap(at);
    assert!(engine.is_gone());
}

/// The parent writes while a child lives: the child keeps what it had, as a child does.
#[test]
fn a_child_does_not_see_what_its_parent_is_sent() {
    let _alone = alone();
    let at = map(None).unwrap();
    let mut engine = Engine::over(at);
    engine.write(0, &[1; LEN]).unwrap();
    let (wait, go) = rustix::pipe::pipe().unwrap();
    // SAFETY: as in `in_child`; the child only reads.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = rustix::io::read(&wait, &mut [0_u8; 1]) == Ok(1);
        // SAFETY: ends the child without what the test program does at its end.
        unsafe { libc::_exit(i32::from(!(told && holds_only(at, 1)))) }
    }
    assert_eq!(engine.write(0, &[2; LEN]), Ok(()));
    assert!(holds_only(at, 2), "the parent has it");
    rustix::io::write(&go, &[1]).unwrap();
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    unmap(at);
}

/// `free` of a large block gives it back to the system, and the next `malloc` often gets the same addresses.
#[test]
fn a_block_that_is_freed_and_allocated_again_is_a_stranger() {
    let _alone = alone();
    // Larger than what glibc keeps for itself, whatever was freed before.
    const BLOCK: usize = 34 << 20;
    let mut same = 0;
    for _ in 0..5 {
        let block = vec![1_u8; BLOCK];
        let mut engine = Engine::of(block.as_ptr().expose_provenance() as u64, BLOCK as u64);
        drop(block);
        let next = vec![2_u8; BLOCK];
        assert!(engine.is_gone());
        assert!(next.iter().all(|byte| *byte == 2));
        same += usize::from(next.as_ptr().addr() as u64 == engine.address);
    }
    assert!(same > 0, "no block came back at its addresses");
}

/// openucx/ucx 11467: the end of an engine in the middle of its work.
#[test]
fn an_engine_that_ends_leaves_no_key_behind() {
    let _alone = alone();
    let at = map(None).unwrap();
    let mut engine = Engine::over(at);
    let asker = engine.asker;
    let window = engine.regions.allocate_window(asker.domain, WindowType::Two).unwrap();
    let rkey = Key::new(window.value() | 3);
    let (region, address, access) = (engine.region.lkey, engine.address, Access::REMOTE_WRITE);
    engine.regions.bind(asker, Binding { rkey, region, address, len: 4096, access }).unwrap();
    assert_eq!(engine.regions.write(asker, rkey, address, &[4]), Ok(()));
    drop(engine);
    let mut next = Engine::over(at);
    for key in [region, rkey] {
        if key != next.region.rkey {
            assert_eq!(next.regions.write(next.asker, key, address, &[9]), Err(Refused::Key));
        }
    }
    // Nobody waits for the one that has ended.
    unmap(at);
    assert!(next.is_gone());
}

/// The judge: an engine writes without a pause while its memory is unmapped and mapped again. When `munmap` has returned, not
/// one byte more is written there, and nobody is ended by a signal.
#[test]
fn nothing_is_written_once_the_memory_was_taken_away() {
    let _alone = alone();
    let writes = AtomicU64::new(0);
    let (tell, told) = std::sync::mpsc::channel::<Engine>();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let bytes = vec![0xab; LEN];
            for mut engine in told {
                let refused = loop {
                    match engine.write(0, &bytes) {
                        Ok(()) => writes.fetch_add(1, Ordering::Relaxed),
                        Err(refused) => break refused,
                    };
                };
                assert_eq!(refused, Refused::Gone);
                assert!((0..200).all(|_| engine.write(0, &bytes) == Err(Refused::Gone)));
            }
        });
        let mut looked = 0;
        for round in 0..300 {
            let at = map(None).unwrap();
            let before = writes.load(Ordering::Relaxed);
            tell.send(Engine::over(at)).unwrap();
            while writes.load(Ordering::Relaxed) <= before + round % 3 {
                std::thread::yield_now();
            }
            unmap(at);
            if map(Some(at)).is_err() {
                continue;
            }
            assert!((0..20).all(|_| holds_only(at, 0)), "round {round}: a stranger's bytes were written");
            unmap(at);
            looked += 1;
        }
        drop(tell);
        worker.join().unwrap();
        assert!(looked > 100, "{looked} rounds");
    });
}
