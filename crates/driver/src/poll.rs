//! The server's epoll set.

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Events taken at once. What is left over is reported by the next wait, before what comes later.
const EVENTS: usize = 256;

pub(crate) struct Poll {
    epoll: OwnedFd,
}

/// What has happened to an fd.
pub(crate) struct Happened {
    pub token: u64,
    /// The other side is gone altogether, and not only done with sending.
    pub closed: bool,
}

impl Poll {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Reports `token` while `fd` is readable or closed by the other side.
    pub fn add(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        self.add_for(fd, token, EventFlags::IN | EventFlags::RDHUP)
    }

    /// Reports `token` once whenever something more comes to be read from `fd`, or it is closed by the other side.
    pub fn add_news(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        self.add_for(fd, token, EventFlags::IN | EventFlags::RDHUP | EventFlags::ET)
    }

    fn add_for(&self, fd: impl AsFd, token: u64, flags: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), flags)
    }

    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits for events, at most as long as is said.
    pub fn wait(&self, most: Option<Duration>) -> Vec<Happened> {
        let most = most.map(|most| Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) });
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        let happened = |event: &Event| {
            // Copied out of the packed structure first.
            let (flags, data) = (event.flags, event.data);
            Happened { token: data.u64(), closed: flags.intersects(EventFlags::HUP | EventFlags::ERR) }
        };
        match epoll::wait(&self.epoll, &mut events, most.as_ref()) {
            Ok((happening, _)) => happening.iter().map(happened).collect(),
            Err(_) => Vec::new(),
        }
    }
}
