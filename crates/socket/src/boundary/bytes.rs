//! `read`, `write` and their kind.

use super::{guarded, number, real, returned, set_errno};
use crate::counters::{Count, Reason, count};
use crate::stream::Stream;
use crate::{table, transfer};
use core::ffi::{c_int, c_void};
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use rustix::io::{IoSlice, IoSliceMut};

/// A piece of the program's memory to be filled.
///
/// # Safety
/// `len` bytes can be written at `at` as long as the piece lives.
unsafe fn place<'a>(at: *mut c_void, len: size_t) -> IoSliceMut<'a> {
    if at.is_null() || len == 0 {
        return IoSliceMut::new(&mut []);
    }
    // SAFETY: as the caller promises; a process has no more than half of all addresses.
    IoSliceMut::new(unsafe { core::slice::from_raw_parts_mut(at.cast::<u8>(), len.min(isize::MAX as usize)) })
}

/// A piece of the program's memory to be sent.
///
/// # Safety
/// `len` bytes can be read at `at` as long as the piece lives.
unsafe fn source<'a>(at: *const c_void, len: size_t) -> IoSlice<'a> {
    if at.is_null() || len == 0 {
        return IoSlice::new(&[]);
    }
    // SAFETY: as above.
    IoSlice::new(unsafe { core::slice::from_raw_parts(at.cast::<u8>(), len.min(isize::MAX as usize)) })
}

/// The pieces of a list.
///
/// # Safety
/// `list` has `count` entries, valid as for [`place`].
unsafe fn entries<'a>(list: *const iovec, count: usize) -> &'a [iovec] {
    if list.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { core::slice::from_raw_parts(list, count.min(1024)) }
}

fn receive(fd: c_int, stream: &Stream, to: &mut [IoSliceMut<'_>], flags: c_int) -> Option<ssize_t> {
    let mut outcome = None;
    guarded(|| {
        outcome = transfer::receive(fd, stream, to, flags).map(returned);
        if outcome.is_none() && stream.is_kernels() {
            number::leave(fd);
        }
        0
    });
    outcome
}

fn send(fd: c_int, stream: &Stream, from: &[IoSlice<'_>], flags: c_int) -> Option<ssize_t> {
    let mut outcome = None;
    guarded(|| {
        outcome = transfer::send(fd, stream, from, flags).map(returned);
        if outcome.is_none() && stream.is_kernels() {
            number::leave(fd);
        }
        0
    });
    outcome
}

/// # Safety
/// As `read`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    if let Some(stream) = table::stream_of(fd) {
        // SAFETY: as the caller promises.
        let place = unsafe { place(to, len) };
        if let Some(done) = receive(fd, &stream, &mut [place], 0) {
            return done;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::read(fd, to, len) }
}

/// # Safety
/// As `recv`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    if let Some(stream) = table::stream_of(fd) {
        // SAFETY: as the caller promises.
        let place = unsafe { place(to, len) };
        if let Some(done) = receive(fd, &stream, &mut [place], flags) {
            return done;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::recv(fd, to, len, flags) }
}

/// # Safety
/// As `recvfrom`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    room: *mut socklen_t,
) -> ssize_t {
    if let Some(stream) = table::stream_of(fd) {
        // SAFETY: as the caller promises.
        let place = unsafe { place(to, len) };
        if let Some(done) = receive(fd, &stream, &mut [place], flags) {
            if !from.is_null() && !room.is_null() && done >= 0 {
                // SAFETY: as the caller promises. TCP gives no address.
                unsafe { *room = 0 };
            }
            return done;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::recvfrom(fd, to, len, flags, from, room) }
}

/// # Safety
/// As `readv`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t {
    if let Some(stream) = table::stream_of(fd)
        && (0..=1024).contains(&count)
    {
        // SAFETY: as the caller promises.
        let mut pieces: Vec<_> =
            unsafe { entries(to, count as usize).iter().map(|entry| place(entry.iov_base, entry.iov_len)).collect() };
        if let Some(done) = receive(fd, &stream, &mut pieces, 0) {
            return done;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::readv(fd, to, count) }
}

/// # Safety
/// As `recvmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if let Some(stream) = table::stream_of(fd)
        && !message.is_null()
    {
        // SAFETY: as the caller promises.
        let header = unsafe { &mut *message };
        // SAFETY: as above.
        let list = unsafe { entries(header.msg_iov, header.msg_iovlen) };
        // SAFETY: as above.
        let mut pieces: Vec<_> = list.iter().map(|entry| unsafe { place(entry.iov_base, entry.iov_len) }).collect();
        if let Some(done) = receive(fd, &stream, &mut pieces, flags) {
            if done >= 0 {
                (header.msg_namelen, header.msg_controllen, header.msg_flags) = (0, 0, 0);
            }
            return done;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::recvmsg(fd, message, flags) }
}

/// # Safety
/// As `recvmmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    if table::stream(fd).is_some() && count > 0 && !messages.is_null() {
        // A part of them is an answer, and a stream has no borders.
        // SAFETY: as the caller promises.
        let done = unsafe { recvmsg(fd, &raw mut (*messages).msg_hdr, flags & !libc::MSG_WAITFORONE) };
        if done < 0 {
            return -1;
        }
        // SAFETY: as above.
        unsafe { (*messages).msg_len = done as u32 };
        return 1;
    }
    // SAFETY: as the caller promises.
    unsafe { real::recvmmsg(fd, messages, count, flags, timeout) }
}

/// # Safety
/// As `write`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    if let Some(stream) = table::stream_of(fd) {
        // SAFETY: as the caller promises.
        if let Some(done) = send(fd, &stream, &[unsafe { source(from, len) }], 0) {
            return done;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::write(fd, from, len) }
}

/// # Safety
/// As `send`.
#[unsafe(export_name = "send")]
pub unsafe extern "C-unwind" fn send_bytes(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    if let Some(stream) = table::stream_of(fd) {
        // SAFETY: as the caller promises.
        if let Some(done) = send(fd, &stream, &[unsafe { source(from, len) }], flags) {
            return done;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::send(fd, from, len, flags) }
}

/// # Safety
/// As `sendto`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    room: socklen_t,
) -> ssize_t {
    if let Some(stream) = table::stream_of(fd) {
        // SAFETY: as the caller promises.
        if let Some(done) = send(fd, &stream, &[unsafe { source(from, len) }], flags) {
            return done;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::sendto(fd, from, len, flags, to, room) }
}

/// # Safety
/// As `writev`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
    if let Some(stream) = table::stream_of(fd)
        && (0..=1024).contains(&count)
    {
        // SAFETY: as the caller promises.
        let pieces: Vec<_> = unsafe {
            entries(from, count as usize).iter().map(|entry| source(entry.iov_base, entry.iov_len)).collect()
        };
        if let Some(done) = send(fd, &stream, &pieces, 0) {
            return done;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::writev(fd, from, count) }
}

/// # Safety
/// As `sendmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if message.is_null() {
        // SAFETY: as the caller promises.
        return unsafe { real::sendmsg(fd, message, flags) };
    }
    // SAFETY: as the caller promises.
    let header = unsafe { &*message };
    if let Some(stream) = table::stream_of(fd) {
        // SAFETY: as above.
        let list = unsafe { entries(header.msg_iov, header.msg_iovlen) };
        // SAFETY: as above.
        let pieces: Vec<_> = list.iter().map(|entry| unsafe { source(entry.iov_base, entry.iov_len) }).collect();
        if let Some(done) = send(fd, &stream, &pieces, flags) {
            return done;
        }
    } else if header.msg_controllen > 0 {
        // SAFETY: as above.
        let may = unsafe { may_pass(header) };
        if !may {
            set_errno(libc::EOPNOTSUPP);
            return -1;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::sendmsg(fd, message, flags) }
}

/// Whether the numbers that a message hands over may go. Those that have met may not: who gets one would have half of it. Others
/// are the kernel's from now on.
///
/// # Safety
/// As for `sendmsg`.
unsafe fn may_pass(header: &msghdr) -> bool {
    let mut may = true;
    // SAFETY: the macros of the C library go through a header that is valid.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while !control.is_null() {
            if ((*control).cmsg_level, (*control).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = ((*control).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let numbers = libc::CMSG_DATA(control).cast::<c_int>();
                for at in 0..bytes / size_of::<c_int>() {
                    let fd = numbers.add(at).read_unaligned();
                    if let Some(stream) = table::stream_of(fd) {
                        stream.look(fd);
                        may &= stream.leave(fd, Reason::Passed);
                    }
                }
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    if !may {
        count(Count::Refused, 1);
    }
    may
}

/// # Safety
/// As `sendmmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let hands_over =
        || unsafe { (0..count.min(1024)).any(|at| (*messages.add(at as usize)).msg_hdr.msg_controllen > 0) };
    if count > 0 && !messages.is_null() && (table::stream(fd).is_some() || hands_over()) {
        // One is a part of them.
        // SAFETY: as the caller promises.
        let done = unsafe { sendmsg(fd, &raw const (*messages).msg_hdr, flags) };
        if done < 0 {
            return -1;
        }
        // SAFETY: as above.
        unsafe { (*messages).msg_len = done as u32 };
        return 1;
    }
    // SAFETY: as the caller promises.
    unsafe { real::sendmmsg(fd, messages, count, flags) }
}

/// # Safety
/// As `sendfile`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(out: c_int, file: c_int, place: *mut off_t, count: size_t) -> ssize_t {
    if let Some(stream) = table::stream_of(out) {
        let mut outcome = None;
        guarded(|| {
            // SAFETY: as the caller promises.
            outcome = unsafe { send_file(out, &stream, file, place, count) };
            0
        });
        if let Some(done) = outcome {
            return done;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::sendfile(out, file, place, count) }
}

/// # Safety
/// As `sendfile`.
unsafe fn send_file(out: c_int, stream: &Stream, file: c_int, place: *mut off_t, count: size_t) -> Option<ssize_t> {
    let file_fd = crate::sys::borrow(file);
    // SAFETY: as the caller promises.
    let mut at = if place.is_null() { rustix::fs::tell(file_fd).ok()? } else { (unsafe { *place }) as u64 };
    let done = transfer::send_file(out, stream, file, &mut at, count)?;
    if place.is_null() {
        let _ = rustix::fs::seek(file_fd, rustix::fs::SeekFrom::Start(at));
    } else {
        // SAFETY: as the caller promises.
        unsafe { *place = at as off_t };
    }
    Some(returned(done))
}

/// # Safety
/// As `sendfile64`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile64(out: c_int, file: c_int, place: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: as the caller promises.
    unsafe { sendfile(out, file, place, count) }
}

/// Programs that splice read and write where that is refused.
///
/// # Safety
/// As `splice`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_place: *mut i64,
    to: c_int,
    to_place: *mut i64,
    len: size_t,
    flags: u32,
) -> ssize_t {
    for fd in [from, to] {
        if let Some(stream) = table::stream_of(fd) {
            stream.look(fd);
            if !stream.leave(fd, Reason::Wanted) {
                set_errno(libc::EINVAL);
                return -1;
            }
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::splice(from, from_place, to, to_place, len, flags) }
}

/// Ends the program, as the C library does when a buffer is too small for what is asked.
fn check(len: size_t, room: size_t) {
    if len > room {
        eprintln!("*** buffer overflow detected ***: terminated");
        // SAFETY: ends the program.
        unsafe { libc::abort() };
    }
}

/// # Safety
/// As `read`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(fd: c_int, to: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    check(len, room);
    // SAFETY: as the caller promises.
    unsafe { read(fd, to, len) }
}

/// # Safety
/// As `recv`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(len, room);
    // SAFETY: as the caller promises.
    unsafe { recv(fd, to, len, flags) }
}

/// # Safety
/// As `recvfrom`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_room: *mut socklen_t,
) -> ssize_t {
    check(len, room);
    // SAFETY: as the caller promises.
    unsafe { recvfrom(fd, to, len, flags, from, from_room) }
}
