//! The beginning and the end of a process, and what a `fork` does.

use crate::counters::{self, Count};
use crate::stream::Stream;
use crate::{lock, meet, table};
use core::ffi::c_int;
use std::sync::Arc;

/// Called by the loader, before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let _ = std::panic::catch_unwind(|| {
        if crate::library().config.is_off {
            return;
        }
        lock::learn();
        // SAFETY: both functions may be called at any time, as long as this library is there, which is never unloaded.
        unsafe {
            libc::atexit(at_exit);
            libc::pthread_atfork(Some(before_fork), None, Some(in_child));
        }
        for (fds, shared) in meet::inherited() {
            counters::count(Count::Kept, 1);
            let stream = Arc::new(Stream::kept(shared));
            for fd in fds {
                table::set_stream(fd, Some(stream.clone()));
                super::stdio::replace(fd);
            }
        }
    });
}

extern "C" fn at_exit() {
    let _ = std::panic::catch_unwind(counters::tell);
}

fn each_stream(what: fn(&Stream)) {
    let _ = std::panic::catch_unwind(|| {
        for fd in table::streams(0, i32::MAX) {
            if let Some(stream) = table::stream_of(fd) {
                what(&stream);
            }
        }
    });
}

extern "C" fn before_fork() {
    each_stream(Stream::fork);
}

extern "C" fn in_child() {
    lock::learn();
    counters::forget();
    each_stream(Stream::begin_child);
}

/// Ends the process at once; what was counted is told before.
///
/// # Safety
/// As `_exit`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _exit(code: c_int) -> ! {
    if !super::is_borrowed() {
        at_exit();
    }
    loop {
        // SAFETY: ends this process.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}
