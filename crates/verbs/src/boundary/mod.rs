//! The functions that programs call, by subject, and everything `unsafe` of this library.
//!
//! What is believed of programs, as every verbs library believes it:
//! * a pointer to an object came from here, and is not used after its destroying function has returned 0;
//! * a pointer to a structure of theirs is valid for the time of the call, and nobody else writes there meanwhile;
//! * lists of work requests end with NULL, and have as many pieces as they say;
//! * `ibv_wr_*` between `ibv_wr_start` and `ibv_wr_complete`, and `ibv_wc_read_*` between `ibv_start_poll` and `ibv_end_poll`,
//!   are called by one thread at a time for one queue.
//!
//! Everything else is checked. No panic crosses: it is written to standard error, and the call fails with EIO.
//!
//! Files: `device`, `memory` (domains, regions), `window`, `completion` (channels, queues, events), `polling` (`ibv_cq_ex`), `pair` (queue pairs, shared receive
//! queues, address handles), `work` (posting and polling), `extended` (`ibv_wr_*`), `words` (names and rates), `fork` (what
//! children do not keep), `ground` (the program's
//! memory in pages of a transport), `private` (what vendors' libraries want to find when they are loaded), and `general` (for our librdmacm).

mod completion;
mod device;
mod extended;
mod fork;
mod general;
mod ground;
mod memory;
mod pair;
mod polling;
mod private;
mod window;
mod words;
mod work;

pub(crate) use fork::{Kept, forks};
pub(crate) use ground::Ground;
pub(crate) use memory::errno as errno_of;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a function that C calls; after a panic, which has been written to standard error by then, `failed`.
pub(crate) fn guarded<R>(failed: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        set_errno(libc::EIO);
        failed
    })
}

/// At the end of the process, [`Place::finish_at_exit`](crate::place::Place::finish_at_exit) is called.
pub(crate) fn tell_at_exit() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    extern "C" fn at_exit() {
        guarded((), crate::place::Place::finish_at_exit);
    }
    ONCE.call_once(|| {
        // SAFETY: the function may be called at any time, as long as this library is there, which is never unloaded.
        unsafe { libc::atexit(at_exit) };
    });
}

/// The processor's clock: its ticks are of one length, and the same on all cores of a host that Linux trusts.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every processor of this kind has it, and Linux lets programs read it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The system's clock, in nanoseconds: what other processors count is not asked.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ticks() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sets the error number of this thread.
pub(crate) fn set_errno(error: i32) {
    // SAFETY: the address of this thread's own variable, which lives as long as the thread.
    unsafe { *libc::__errno_location() = error };
}

/// `NULL`, and why.
pub(crate) fn null<T>(error: i32) -> *mut T {
    set_errno(error);
    core::ptr::null_mut()
}

/// -1, and why.
pub(crate) fn minus_one(error: i32) -> i32 {
    set_errno(error);
    -1
}

/// 0, or the number of the error: what most functions return.
pub(crate) fn code(result: Result<(), i32>) -> i32 {
    result.err().unwrap_or(0)
}

/// A remark for whoever started the program: verbs has only numbers for errors.
pub(crate) fn say(text: impl std::fmt::Display) {
    millrace_link::say("libibverbs", text);
}
