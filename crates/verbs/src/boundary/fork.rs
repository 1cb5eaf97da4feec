//! Children of `fork`: they have this process's memory and its descriptors, and neither its threads nor its right to the card.
//!
//! A socket to another process says by its end that this process has ended, or runs another program by now: the other one
//! reaches into its memory as long as the socket holds. A child's copy of it would hold when this process has become another
//! program, so children close theirs before they do anything else.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// More than there are sessions and calls at a time.
const MOST: usize = 128;
const FREE: i32 = -1;

/// How many times this process was made by `fork` since the first call.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Descriptors that children close.
static KEPT: [AtomicI32; MOST] = [const { AtomicI32::new(FREE) }; MOST];

/// How many times this process was made by `fork` since the first call.
#[inline]
pub(crate) fn forks() -> u32 {
    static COUNTED: Once = Once::new();
    // SAFETY: what is called in a child is `in_child`, which does only what a signal handler may do.
    COUNTED.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    // Relaxed, and below: there is one thread in a child when this is called.
    FORKS.fetch_add(1, Ordering::Relaxed);
    for kept in &KEPT {
        let fd = kept.swap(FREE, Ordering::Relaxed);
        if fd != FREE {
            // SAFETY: the child's copy of a `Kept`, which children never use: `forks` has changed.
            unsafe { libc::close(fd) };
        }
    }
}

/// A socket that children do not keep.
#[derive(Debug)]
pub(crate) struct Kept {
    fd: OwnedFd,
    place: Option<usize>,
}

impl Kept {
    /// `None` when there are too many.
    pub fn new(fd: OwnedFd) -> Option<Self> {
        forks();
        let raw = fd.as_raw_fd();
        // Relaxed: a child has what was stored before the fork, of the thread that forks; another thread's are a race with `fork` itself.
        let is_taken =
            |kept: &AtomicI32| kept.compare_exchange(FREE, raw, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let place = KEPT.iter().position(is_taken)?;
        Some(Self { fd, place: Some(place) })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Before the number is free for something else, which children do keep.
        if let Some(place) = self.place.take() {
            KEPT[place].store(FREE, Ordering::Relaxed);
        }
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn a_child_does_not_hold_a_link() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let kept = Kept::new(ours).unwrap();
        let has_ended = |most: i64| {
            let most = Timespec { tv_sec: most, tv_nsec: 0 };
            matches!(poll(&mut [PollFd::new(&theirs, PollFlags::RDHUP)], Some(&most)), Ok(1))
        };
        // SAFETY: the child does nothing but wait for its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::pause();
                libc::_exit(0);
            }
        }
        assert!(child > 0 && !has_ended(0));
        drop(kept);
        let ended = has_ended(5);
        // SAFETY: our own child.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, core::ptr::null_mut(), 0);
        }
        assert!(ended, "the child holds it");
    }
}
