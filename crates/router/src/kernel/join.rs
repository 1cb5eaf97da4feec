//! Groups of netlink beyond the thirty-second, which have no bit in the address of a socket.
//!
//! Unsafe code: `setsockopt` with a number, for which no crate at hand has a safe call.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Listens to one more group.
///
/// # Errors
/// `EINVAL`: this kernel has no such group.
pub fn join(socket: BorrowedFd<'_>, group: u32) -> Result<(), Errno> {
    let length = size_of::<u32>() as libc::socklen_t;
    let (level, option) = (libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP);
    // SAFETY: the option is a number, which is there for as long as the call takes, and `length` is that of it.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const group).cast(), length) };
    match done {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().map_or(Errno::INVAL, Errno::from_raw_os_error)),
    }
}
