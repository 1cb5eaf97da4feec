//! `close`, `dup`, `fcntl`, `ioctl`: what happens to numbers.

use super::{guarded, is_borrowed, real, set_errno};
use crate::stream::{follow_exec, foresee};
use crate::table;
use core::ffi::{c_int, c_uint};

/// The program has no connection under this number any more.
pub(super) fn forget(fd: c_int) {
    if let Some(stream) = table::set_stream(fd, None) {
        stream.unwatch(fd);
    }
    forget_epoll(fd);
}

/// The program has no epoll under this number any more.
fn forget_epoll(fd: c_int) {
    if let Some(set) = table::set_epoll(fd, None) {
        set.end();
    }
}

fn before_close(fd: c_int) {
    if let Some(stream) = table::stream_of(fd)
        && !is_borrowed()
    {
        stream.before_close(fd);
        forget(fd);
    } else if table::epoll(fd).is_some() && !is_borrowed() {
        forget_epoll(fd);
    }
}

/// # Safety
/// As `close`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // Whoever closes all numbers that there may be does not mean ours.
    if table::is_ours(fd) {
        return 0;
    }
    if table::is_used(fd) {
        guarded(|| {
            before_close(fd);
            0
        });
    }
    // SAFETY: as the caller promises.
    unsafe { real::close(fd) }
}

/// # Safety
/// As `close_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let only_marks = flags as u32 & libc::CLOSE_RANGE_CLOEXEC != 0;
    let (from, to) = (first.min(i32::MAX as u32) as c_int, last.min(i32::MAX as u32) as c_int);
    let ours = if first <= last { table::ours(from, to) } else { Vec::new() };
    if !only_marks && first <= last {
        guarded(|| {
            let all = table::streams(from, to).into_iter().chain(table::epolls(from, to));
            all.for_each(before_close);
            0
        });
    }
    // Around ours.
    let mut from = first;
    for fd in ours {
        let fd = fd as c_uint;
        if from < fd {
            // SAFETY: as the caller promises.
            let done = unsafe { real::close_range(from, fd - 1, flags) };
            if done != 0 {
                return done;
            }
        }
        from = fd + 1;
    }
    if from > last && first <= last {
        return 0;
    }
    // SAFETY: as the caller promises.
    unsafe { real::close_range(from, last, flags) }
}

/// # Safety
/// As `closefrom`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: as the caller promises.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// A number is another name for what is behind `fd`.
fn copied(fd: c_int, copy: c_int) -> c_int {
    if copy < 0 || copy == fd {
        return copy;
    }
    guarded(|| {
        if !is_borrowed() && !crate::library().config.is_off {
            foresee(fd);
        }
        let (stream, epoll) = (table::stream_of(fd), table::epoll(fd));
        if let Some(shared) = stream.as_ref().and_then(|stream| stream.memory()) {
            follow_exec(copy, shared);
        }
        if !is_borrowed() {
            forget(copy);
            if stream.as_ref().is_some_and(|stream| !stream.is_kernels()) {
                super::stdio::replace(copy);
            }
            table::set_stream(copy, stream);
            table::set_epoll(copy, epoll);
        }
        copy
    })
}

/// # Safety
/// As `dup`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: as the caller promises.
    copied(fd, unsafe { real::dup(fd) })
}

/// # Safety
/// As `dup2`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    if table::is_ours(to) {
        set_errno(libc::EBADF);
        return -1;
    }
    // SAFETY: as the caller promises.
    copied(fd, unsafe { real::dup2(fd, to) })
}

/// # Safety
/// As `dup3`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if table::is_ours(to) {
        set_errno(libc::EBADF);
        return -1;
    }
    // SAFETY: as the caller promises.
    copied(fd, unsafe { real::dup3(fd, to, flags) })
}

/// The third argument is in a register whether the caller knows this function with two or three: on the processors that this library
/// is for, optional arguments are passed as others.
///
/// # Safety
/// As `fcntl`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, what: c_int, argument: usize) -> c_int {
    // SAFETY: as the caller promises.
    let done = unsafe { real::fcntl(fd, what, argument) };
    match what {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, done),
        libc::F_SETFD if done == 0 => {
            keep(fd);
            done
        }
        libc::F_SETFL if done == 0 && argument & libc::O_ASYNC as usize != 0 => signals(fd, done),
        _ => done,
    }
}

/// # Safety
/// As `fcntl64`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, what: c_int, argument: usize) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { fcntl(fd, what, argument) }
}

/// # Safety
/// As `ioctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, what: libc::c_ulong, argument: usize) -> c_int {
    if (what == libc::FIONREAD || what == libc::TIOCOUTQ)
        && let Some(stream) = table::stream_of(fd)
    {
        stream.look(fd);
        if let Some(shared) = stream.live() {
            let count = if what == libc::TIOCOUTQ { shared.writer.unread() } else { shared.reader.available() };
            let early = if what == libc::FIONREAD && !shared.receives_here() {
                shared.of_program(crate::sys::unread(fd).unwrap_or(0) as usize)
            } else {
                0
            };
            let count = count.unwrap_or(0) + early;
            // SAFETY: this request has a number of the program's to write to.
            unsafe { core::ptr::with_exposed_provenance_mut::<c_int>(argument).write_unaligned(count as c_int) };
            return 0;
        }
    }
    // SAFETY: as the caller promises.
    let done = unsafe { real::ioctl(fd, what, argument) };
    if what == libc::FIONCLEX && done == 0 {
        keep(fd);
    }
    if what == FIOASYNC && done == 0 {
        // SAFETY: this request has a number of the program's, which the kernel has just read.
        let is_wanted = unsafe { core::ptr::with_exposed_provenance::<c_int>(argument).read_unaligned() } != 0;
        return if is_wanted { signals(fd, done) } else { done };
    }
    done
}

/// A program that this one becomes has the connection, and is to have its memory.
fn keep(fd: c_int) {
    if let Some(stream) = table::stream_of(fd)
        && let Some(shared) = stream.memory()
    {
        follow_exec(fd, shared);
    }
}

/// The request that asks for a signal whenever something comes.
const FIOASYNC: libc::c_ulong = 0x5452;

/// The program wants a signal whenever something comes.
fn signals(fd: c_int, done: c_int) -> c_int {
    if let Some(stream) = table::stream_of(fd) {
        stream.signals();
    }
    done
}

/// A connection that stays with the kernel is looked at no more, unless an epoll knows it by our word.
pub(super) fn leave(fd: c_int) {
    if let Some(stream) = table::stream_of(fd)
        && stream.is_kernels()
        && stream.watchers.load(std::sync::atomic::Ordering::Relaxed) == 0
    {
        table::set_stream(fd, None);
    }
}
