//! The one thing about fds that the compiler cannot see. May use `unsafe`.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use vmm_sys_util::eventfd::EventFd;

/// The fd of an event, in the type that everybody else takes.
pub(super) fn into_fd(event: EventFd) -> OwnedFd {
    // SAFETY: the event gives its fd away, which is open and from here on nobody else's.
    unsafe { OwnedFd::from_raw_fd(event.into_raw_fd()) }
}
