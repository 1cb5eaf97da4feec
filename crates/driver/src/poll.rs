//! The server's epoll set.

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::mem::MaybeUninit;

pub(crate) struct Poll {
    epoll: OwnedFd,
}

impl Poll {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Reports `token` while `fd` is readable or closed by the other side.
    pub fn add(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN | EventFlags::RDHUP)
    }

    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits for events and returns their tokens.
    pub fn wait(&self) -> Vec<u64> {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; 64];
        match epoll::wait(&self.epoll, &mut events, None) {
            Ok((ready, _)) => ready.iter().map(|event| event.data.u64()).collect(),
            Err(_) => Vec::new(),
        }
    }
}
