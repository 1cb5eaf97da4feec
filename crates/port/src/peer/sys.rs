//! Asynchronous requests of Linux that do nothing but signal an eventfd when they end, and the user at the other end of a socket. May use `unsafe`.
#![allow(unsafe_code)]

use rustix::io::{self, Errno};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// No user has it.
const NOBODY: u32 = u32::MAX;

/// The user at the other end of a Unix socket: of whoever has connected, or listens. Of what is none, nobody.
pub(crate) fn user_of(socket: impl AsFd) -> u32 {
    let mut who = libc::ucred { pid: 0, uid: NOBODY, gid: NOBODY };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes as much of a `ucred` as there is room for in `who`, and how much that is to `len`; both live on this stack.
    let done =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &raw mut len) };
    if done == 0 { who.uid } else { NOBODY }
}

/// Requests whose end has not been looked at, at most.
const MOST: u32 = 64;

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    // The kernel's, and flags of the reading; which is which depends on the byte order, and both are 0.
    key: [u32; 2],
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Ended {
    data: u64,
    request: u64,
    results: [i64; 2],
}

const PREAD: u16 = 0;
const SIGNAL: u32 = 1;

/// A context for such requests.
pub(super) struct Requests {
    context: libc::c_ulong,
    ended: u32,
}

fn result(returned: libc::c_long) -> io::Result<libc::c_long> {
    if returned < 0 {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(returned)
    }
}

impl Requests {
    pub fn new() -> io::Result<Self> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the number of a context to a place that holds 0, as it wants.
        result(unsafe { libc::syscall(libc::SYS_io_setup, MOST, &raw mut context) })?;
        Ok(Self { context, ended: 0 })
    }

    /// Adds 1 to an eventfd, as far as there is room for it. Never waits, whatever the flags of the fd and the
    /// number in it.
    ///
    /// # Errors
    /// `EINVAL` when it is none.
    pub fn signal(&mut self, event: BorrowedFd<'_>) -> io::Result<()> {
        if self.ended == MOST / 2 {
            self.forget();
        }
        // To read no bytes from an eventfd is an error, and the end of the request: all that is wanted of it.
        let event = event.as_raw_fd() as u32;
        let mut request = Request { opcode: PREAD, file: event, flags: SIGNAL, event, ..Request::default() };
        let list = [&raw mut request];
        // SAFETY: a list of one request, which the kernel copies. It reads no bytes to no buffer, and has ended when the
        // call returns: nothing of it refers to this memory any more.
        result(unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, list.as_ptr()) })?;
        self.ended += 1;
        Ok(())
    }

    /// Takes the news of what has ended, for which there is room for so many only.
    #[cold]
    fn forget(&mut self) {
        let mut news = [Ended::default(); MOST as usize];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: room for as many as are asked for, and a time that lives on this stack.
        let taken = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.context, 0, MOST, news.as_mut_ptr(), &raw const at_once)
        };
        self.ended = self.ended.saturating_sub(taken.max(0) as u32);
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        // SAFETY: the context is ours, and nothing in it is unfinished.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn whoever_is_at_the_other_end_is_known() {
        let (one, other) = UnixStream::pair().unwrap();
        let own = rustix::process::getuid().as_raw();
        assert_eq!([user_of(&one), user_of(&other)], [own; 2]);
        assert_eq!(user_of(std::fs::File::open("/dev/null").unwrap()), NOBODY);
    }
}
