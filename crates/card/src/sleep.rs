//! How a worker sleeps: on one epoll set with the kick eventfds of all its openers, its mailbox and its ports.

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

pub(crate) struct Sleep {
    epoll: OwnedFd,
    // How often each is watched: the queues of a program have one kick in common. Only what starts and stops looks here.
    watched: RefCell<HashMap<RawFd, usize>>,
}

impl Sleep {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, watched: RefCell::default() })
    }

    /// Wakes on `fd` until it has been forgotten as often as it was watched; it must stay open until then.
    /// Edge-triggered: an eventfd need not be read, every signal is a new edge, and a peer that signals without end
    /// cannot make the worker spin more often than it signals.
    pub fn watch(&self, fd: impl AsFd) {
        let mut watched = self.watched.borrow_mut();
        let times = watched.entry(fd.as_fd().as_raw_fd()).or_default();
        *times += 1;
        if *times > 1 {
            return;
        }
        // Fails only when memory is out; then the worker is woken by its other descriptors and by the time-out of `sleep`.
        let _ = epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET);
    }

    /// Wakes on `fd` as long as it is readable: for ports, which may leave something unread.
    pub fn watch_level(&self, fd: impl AsFd) {
        let _ = epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN);
    }

    /// Takes back one [`Sleep::watch`].
    pub fn forget(&self, fd: impl AsFd) {
        let mut watched = self.watched.borrow_mut();
        let number = fd.as_fd().as_raw_fd();
        let Some(times) = watched.get_mut(&number) else { return };
        *times -= 1;
        if *times == 0 {
            watched.remove(&number);
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// Takes back a [`Sleep::watch_level`].
    pub fn forget_level(&self, fd: impl AsFd) {
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
