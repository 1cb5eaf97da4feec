//! `connect`, `accept`, `shutdown`, and options.

use super::{guarded, real, set_errno};
use crate::counters::Reason;
use crate::shared::End;
use crate::stream::Stream;
use crate::{sys, table};
use core::ffi::{c_int, c_void};
use libc::{sockaddr, socklen_t};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A new connection under this number.
fn begins(fd: c_int, end: End) {
    let stream = Arc::new(Stream::new(end));
    stream.begin(fd);
    table::set_stream(fd, Some(stream));
}

/// The connection under this number, and under its copies, is no more, and there may be another one. Epolls go on with that.
fn begins_anew(fd: c_int) {
    let Some(old) = table::stream_of(fd) else { return };
    let new = Arc::new(Stream::new(End::Connecting));
    for number in table::streams(0, c_int::MAX) {
        if table::stream(number).is_some_and(|stream| stream.as_ref().is_some_and(|stream| Arc::ptr_eq(stream, &old))) {
            table::set_stream(number, Some(new.clone()));
            old.hand_on(number, &new);
        }
    }
}

/// # Safety
/// As `connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as the caller promises.
    let done = unsafe { real::connect(fd, to, len) };
    if to.is_null() || (len as usize) < size_of::<libc::sa_family_t>() || crate::library().config.is_off {
        return done;
    }
    // SAFETY: at least the family is there.
    let family = i32::from(unsafe { (*to).sa_family });
    // SAFETY: this thread's own variable.
    let error = unsafe { *libc::__errno_location() };
    let goes_on = done == 0 || [libc::EINPROGRESS, libc::EINTR].contains(&error);
    let is_internet = [libc::AF_INET, libc::AF_INET6].contains(&family);
    if done == 0 && family == libc::AF_UNSPEC {
        guarded(|| {
            begins_anew(fd);
            0
        });
    }
    if goes_on && is_internet {
        guarded(|| {
            match table::stream_of(fd) {
                Some(stream) => stream.begin(fd),
                None if sys::is_tcp(fd) => begins(fd, End::Connecting),
                None => {}
            }
            0
        });
        set_errno(error);
    }
    done
}

fn accepted(fd: c_int) -> c_int {
    if fd < 0 || crate::library().config.is_off {
        return fd;
    }
    guarded(|| {
        let family = rustix::net::sockopt::socket_domain(sys::borrow(fd));
        if matches!(family, Ok(rustix::net::AddressFamily::INET | rustix::net::AddressFamily::INET6)) {
            begins(fd, End::Accepting);
        }
        fd
    })
}

/// # Safety
/// As `accept`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(fd: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: as the caller promises.
    accepted(unsafe { real::accept(fd, from, len) })
}

/// # Safety
/// As `accept4`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(fd: c_int, from: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: as the caller promises.
    accepted(unsafe { real::accept4(fd, from, len, flags) })
}

/// # Safety
/// As `listen`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let done = unsafe { real::listen(fd, backlog) };
    if done == 0
        && let Some(stream) = table::stream_of(fd)
    {
        // It was in an epoll before.
        stream.dismiss();
        super::number::leave(fd);
    }
    done
}

/// # Safety
/// As `shutdown`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some(stream) = table::stream_of(fd) {
        let done = guarded(|| stream.shut_down(fd, how).unwrap_or(1));
        if done != 1 {
            return done;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::shutdown(fd, how) }
}

/// Options that only the kernel can keep: whoever wants one has its connection there.
fn is_for_kernel(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => [libc::SO_ZEROCOPY, libc::SO_OOBINLINE].contains(&name),
        libc::IPPROTO_TCP => [libc::TCP_ULP, libc::TCP_REPAIR, libc::TCP_MD5SIG].contains(&name),
        _ => false,
    }
}

/// # Safety
/// As `setsockopt`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if let Some(stream) = table::stream_of(fd) {
        if level == libc::IPPROTO_TCP
            && let Some(said) = stream.delay(name)
            && !value.is_null()
            && len as usize >= size_of::<c_int>()
        {
            // SAFETY: so many bytes can be read, as the caller promises.
            let on = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
            said.store(on.into(), Ordering::Relaxed);
            return 0;
        }
        let is_low_water = level == libc::SOL_SOCKET && name == libc::SO_RCVLOWAT;
        if is_low_water && stream.live().is_some() {
            // A doorbell is one byte, and has to be enough.
            return 0;
        }
        if (is_low_water || is_for_kernel(level, name)) && guarded(|| i32::from(!stream.leave(fd, Reason::Wanted))) != 0
        {
            set_errno(libc::ENOPROTOOPT);
            return -1;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::setsockopt(fd, level, name, value, len) }
}

/// # Safety
/// As `getsockopt`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as the caller promises.
    let done = unsafe { real::getsockopt(fd, level, name, value, len) };
    if done == 0
        && level == libc::IPPROTO_TCP
        && let Some(stream) = table::stream_of(fd)
        && let Some(said) = stream.delay(name)
    {
        // SAFETY: the kernel has just written a number there, of that length.
        unsafe {
            if *len as usize >= size_of::<c_int>() {
                value.cast::<c_int>().write_unaligned(said.load(Ordering::Relaxed));
            }
        }
    }
    if done == 0
        && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
        && let Some(stream) = table::stream_of(fd)
    {
        // SAFETY: the kernel has just written a number there, of that length.
        unsafe {
            if *len as usize >= size_of::<c_int>() && value.cast::<c_int>().read_unaligned() == 0 {
                value.cast::<c_int>().write_unaligned(stream.take_error());
            }
        }
    }
    done
}
