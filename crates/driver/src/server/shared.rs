//! What the server's thread, its owner and the thread that makes changes share.

use crate::native::Own;
use millrace_abi::message::Reply;
use rustix::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// What has been done on another thread.
pub(super) struct Changed {
    /// The connection that asked.
    pub connection: u64,
    pub reply: Reply,
    /// What goes with it.
    pub fd: Option<OwnedFd>,
}

/// What the server's thread and its owner share.
pub(super) struct Shared {
    /// Sockets, and the memory on which the other end may start queues through their registers.
    pub arrivals: Mutex<Vec<(OwnedFd, Option<Own>)>>,
    /// What programs call at from now on, from a card before this one.
    pub handed_over: Mutex<Option<OwnedFd>>,
    /// From the threads that make changes.
    pub changed: Mutex<Vec<Changed>>,
    pub stop: AtomicBool,
    pub wake: OwnedFd,
}

impl Shared {
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}
