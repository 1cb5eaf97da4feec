//! A child that is forked gets adopted memory as its own, as it would get any other. May use `unsafe`.
//!
//! Shared memory stays shared in a child. So in the child, before its program goes on, every adopted range is replaced by a
//! private copy at the same addresses. The thread of the parent that forked waits for that; a parent with one thread
//! therefore gives its child exactly what it had. `vfork` and `posix_spawn` call no handlers, and need none: their
//! children share all memory with the parent until they become another program.

use super::adopter::{Adopter, State, making};
use super::error::AdoptError;
use super::{request, sys};
use core::ffi::c_int;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::cell::RefCell;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{MutexGuard, Once};

/// How long a parent waits for its child's copy.
const COPY_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// What is kept from before a fork until after it.
struct Held {
    /// Nothing is exchanged meanwhile.
    _state: Option<MutexGuard<'static, State>>,
    /// Nor is another adopter made, so that the child can make its own.
    _making: MutexGuard<'static, ()>,
    ranges: Vec<Range>,
    file: RawFd,
    signals: libc::sigset_t,
    /// Closed by the child when it has its copy, or has died.
    done: Option<(OwnedFd, OwnedFd)>,
}

/// Addresses of which the child gets a copy.
struct Range {
    first: u64,
    len: u64,
    offset: u64,
}

thread_local!(static HELD: RefCell<Option<Held>> = const { RefCell::new(None) });

/// Sets the handlers up, once.
pub(super) fn install() -> Result<(), AdoptError> {
    static ONCE: Once = Once::new();
    static OUTCOME: AtomicI32 = AtomicI32::new(0);
    ONCE.call_once(|| {
        // SAFETY: handlers without arguments, which live as long as the program.
        let outcome = unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        OUTCOME.store(outcome, Ordering::Relaxed);
    });
    // Ordered by the `Once`.
    match OUTCOME.load(Ordering::Relaxed) {
        0 => Ok(()),
        error => Err(AdoptError::Fork(Errno::from_raw_os_error(error))),
    }
}

unsafe extern "C" fn prepare() {
    let signals = sys::block_signals();
    let making = making();
    let none = Held { _state: None, _making: making, ranges: Vec::new(), file: -1, signals, done: None };
    let held = match Adopter::current() {
        Some(adopter) => hold(adopter, none),
        None => none,
    };
    // A thread that is ending has no such variable any more; nor does it fork.
    let _ = HELD.try_with(|place| place.replace(Some(held)));
}

/// Notes what a child will need a copy of, and keeps it from changing.
fn hold(adopter: &'static Adopter, none: Held) -> Held {
    let mut state = adopter.state();
    // What moved is found where it is now; another thread can come in between, but not for ever.
    for _ in 0..4 {
        request::tidy(&mut state, adopter);
        if state.orphans.is_empty() {
            break;
        }
    }
    let ours = state.index.iter().filter(|(_, entry)| std::sync::Arc::ptr_eq(&entry.file, &adopter.file));
    let ranges: Vec<Range> =
        ours.map(|(first, entry)| Range { first, len: entry.end - first, offset: entry.offset }).collect();
    // Without one, nobody waits, and the child's copy may have bytes that other threads write after the fork.
    let done = (!ranges.is_empty()).then(|| pipe_with(PipeFlags::CLOEXEC).ok()).flatten();
    Held { _state: Some(state), ranges, file: adopter.file.fd().as_raw_fd(), done, ..none }
}

fn take() -> Option<Held> {
    HELD.try_with(RefCell::take).ok().flatten()
}

unsafe extern "C" fn in_parent() {
    let Some(mut held) = take() else { return };
    if let Some((wait, tell)) = held.done.take() {
        // If there is no child, nobody has it then.
        drop(tell);
        // Only the end can come. A child that takes longer goes on alone.
        let _ = poll(&mut [PollFd::new(&wait, PollFlags::IN)], Some(&COPY_TIMEOUT));
    }
    let signals = held.signals;
    drop(held);
    sys::unblock_signals(&signals);
}

unsafe extern "C" fn in_child() {
    let Some(held) = take() else { return };
    // Nothing is allocated or freed before all is copied: it could be in memory that is still the parent's.
    if !held.ranges.iter().all(|range| make_private(held.file, range)) {
        const WHY: &[u8] = b"millrace: no memory for a copy of adopted memory in a child; it cannot go on\n";
        // SAFETY: bytes of ours; then the child ends, before it could write into its parent's memory.
        unsafe {
            libc::write(2, WHY.as_ptr().cast(), WHY.len());
            libc::abort();
        }
    }
    let signals = held.signals;
    // That the adopter is its parent's, it sees by the watch.
    drop(held);
    sys::unblock_signals(&signals);
}

/// Puts a private copy in the place of shared memory. Makes system calls only.
fn make_private(file: RawFd, range: &Range) -> bool {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let (len, at) = (range.len as usize, range.first as usize);
    let at = core::ptr::with_exposed_provenance_mut::<core::ffi::c_void>(at);
    // SAFETY: fresh addresses, filled from the file, and then moved over those that show the same bytes of the same file.
    unsafe {
        let copy = libc::mmap(core::ptr::null_mut(), len, rights, flags, -1, 0);
        if copy == libc::MAP_FAILED {
            return false;
        }
        let mut done = 0;
        while done < len {
            let from = (range.offset + done as u64).cast_signed();
            match libc::pread(file, copy.byte_add(done), len - done, from) {
                0 => return false,
                read if read > 0 => done += read.cast_unsigned(),
                _ if last_is_interrupted() => {}
                _ => return false,
            }
        }
        let how: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        libc::mremap(copy, len, len, how, at) != libc::MAP_FAILED
    }
}

fn last_is_interrupted() -> bool {
    sys::last_error() == Errno::INTR
}
