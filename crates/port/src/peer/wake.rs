//! What wakes the worker of a pair of queues.

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

/// Readable when the other side has signalled or a queue has come. All that it watches is edge-triggered: nothing of the
/// other side is ever read.
pub(crate) struct Wake {
    epoll: OwnedFd,
    changed: OwnedFd,
}

impl Wake {
    pub fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let changed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wake = Self { epoll, changed };
        wake.watch(&wake.changed)?;
        Ok(wake)
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Wakes the worker on `event` from now on.
    pub fn watch(&self, event: impl AsFd) -> Result<(), Errno> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, event, epoll::EventData::new_u64(0), flags)
    }

    pub fn forget(&self, event: impl AsFd) {
        // Not there: nothing to forget.
        let _ = epoll::delete(&self.epoll, event);
    }

    /// Wakes the worker because something has changed.
    pub fn wake(&self) {
        // Full: many signals that nobody has looked at are one.
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    /// Takes note of all signals until now.
    pub fn drain(&self) {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 8];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // What is left is taken next time; what fails now was nothing.
        let _ = epoll::wait(&self.epoll, &mut events, Some(&now));
    }
}
