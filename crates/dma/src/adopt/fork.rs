//! A child that is forked gets adopted memory as its own, as it would get any other. May use `unsafe`.
//!
//! Shared memory stays shared in a child. So in the child, before its program goes on, every adopted range is replaced by a
//! private copy at the same addresses. The thread of the parent that forked waits for that; a parent with one thread
//! therefore gives its child exactly what it had. `vfork` and `posix_spawn` call no handlers, and need none: their
//! children share all memory with the parent until they become another program.

use super::adopter::{Adopter, State, making};
use super::error::AdoptError;
use super::maps::{self, Kind, Mapped};
use super::sys;
use core::ffi::c_int;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::cell::RefCell;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{MutexGuard, Once};

/// How long a parent waits for its child's copy.
const COPY_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// What is kept from before a fork until after it.
struct Held {
    /// Whose memory the child gets a copy of, and that nothing is exchanged meanwhile.
    adopter: Option<(&'static Adopter, MutexGuard<'static, State>)>,
    /// Nor is another adopter made, so that the child can make its own.
    _making: MutexGuard<'static, ()>,
    signals: libc::sigset_t,
    /// Closed by the child when it has its copy, or has died.
    done: Option<(OwnedFd, OwnedFd)>,
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
    let adopter = Adopter::current().map(|adopter| (adopter, adopter.state()));
    let is_used = adopter.as_ref().is_some_and(|(_, state)| state.index.len() + state.orphans.len() > 0);
    // Without one, nobody waits, and the child's copy may have bytes that other threads write after the fork.
    let done = is_used.then(|| pipe_with(PipeFlags::CLOEXEC).ok()).flatten();
    let held = Held { adopter, _making: making, signals, done };
    // A thread that is ending has no such variable any more; nor does it fork.
    let _ = HELD.try_with(|place| place.replace(Some(held)));
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
    if !held.adopter.as_ref().is_none_or(|(adopter, _)| make_all_private(adopter)) {
        const WHY: &[u8] = b"millrace: a child could not be given its own copy of adopted memory (no memory, or no /proc); it cannot go on\n";
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

/// Puts private copies in the place of all that is mapped of the adopter's file. What is mapped is what the child sees, not
/// what its parent knew before the fork: other threads unmap and map while a thread forks. Makes system calls only.
fn make_all_private(adopter: &Adopter) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(maps) = openat(&adopter.proc, c"self/maps", flags, Mode::empty()) else { return false };
    let (ours, file) = (adopter.file.identity(), adopter.file.fd().as_raw_fd());
    maps::each(&maps, |mapped| match mapped.kind {
        Kind::Shared(identity, offset) if identity == ours => make_private(file, mapped, offset),
        _ => true,
    })
}

/// One of them.
fn make_private(file: RawFd, mapped: &Mapped, offset: u64) -> bool {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let (len, at) = ((mapped.end - mapped.first) as usize, mapped.first as usize);
    let at = core::ptr::with_exposed_provenance_mut::<core::ffi::c_void>(at);
    // SAFETY: fresh addresses, filled from the file, and then moved over those that show the same bytes of the same file.
    unsafe {
        let copy = libc::mmap(core::ptr::null_mut(), len, rights, flags, -1, 0);
        if copy == libc::MAP_FAILED {
            return false;
        }
        let mut done = 0;
        while done < len {
            let from = (offset + done as u64).cast_signed();
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
