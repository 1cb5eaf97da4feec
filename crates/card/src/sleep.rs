//! How a worker sleeps: on one epoll set with the kick eventfds of all its openers, its mailbox and its ports.

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::time::Duration;

pub(crate) struct Sleep {
    epoll: OwnedFd,
}

impl Sleep {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Wakes on `fd` from now on. Edge-triggered: an eventfd need not be read, every signal is a new edge, and a peer
    /// that signals without end cannot make the worker spin more often than it signals.
    pub fn watch(&self, fd: impl AsFd) {
        // Fails only for a descriptor that is watched already, or when memory is out; then the worker is woken by
        // its other descriptors and by the time-out of `sleep`.
        let _ = epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET);
    }

    /// Wakes on `fd` as long as it is readable: for ports, which may leave something unread.
    pub fn watch_level(&self, fd: impl AsFd) {
        let _ = epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN);
    }

    pub fn forget(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    pub fn sleep(&self, most: Option<Duration>) {
        let most = most.map(|most| Timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(most.subsec_nanos()),
        });
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 16];
        // An interrupted sleep is a short sleep.
        let _ = epoll::wait(&self.epoll, &mut events, most.as_ref());
    }
}
