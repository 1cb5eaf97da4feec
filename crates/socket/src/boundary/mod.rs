//! The functions of the C library that are ours, by subject, and most of what is `unsafe` of this library.
//!
//! What is believed of programs, as the C library believes it: pointers are valid for the time of the call, with the lengths that
//! come with them. A call that is none of ours goes to the C library as it came. No panic crosses: it is written to standard
//! error, and the call fails with EIO.
//!
//! Files: `real` (the functions behind ours), `start` (the beginning and end of a process, and `fork`), `connection` (`connect`,
//! `accept`, `shutdown`, options), `number` (`close`, `dup`, `fcntl`), `bytes` (`read`, `write` and their kind), `wait` (`poll`,
//! `select`, `epoll`), `spawn` (`posix_spawn`), `stdio` (what the C library buffers).

mod bytes;
mod connection;
mod number;
mod real;
mod spawn;
mod start;
mod stdio;
mod wait;

use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a function that C calls.
fn guarded<R: From<i8>>(body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        set_errno(libc::EIO);
        R::from(-1)
    })
}

/// Sets the error number of this thread.
fn set_errno(error: i32) {
    // SAFETY: the address of this thread's own variable, which lives as long as the thread.
    unsafe { *libc::__errno_location() = error };
}

/// What C returns: a number, or -1 and why.
fn returned<R: From<i8> + TryFrom<usize>>(outcome: Result<usize, Errno>) -> R {
    match outcome {
        Ok(count) => R::try_from(count).unwrap_or_else(|_| R::from(-1)),
        Err(error) => {
            set_errno(error.raw_os_error());
            R::from(-1)
        }
    }
}

/// Whether this is a process that shares our memory and not our numbers: the child of a `vfork`. It closes and copies only numbers
/// of its own.
fn is_borrowed() -> bool {
    crate::sys::process() != crate::lock::process()
}
