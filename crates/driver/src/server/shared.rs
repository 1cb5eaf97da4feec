//! What the server's thread, its owner and the thread that makes changes share.

use rustix::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// A change that was made, or why it was not.
pub(super) struct Changed {
    /// The connection that asked.
    pub connection: u64,
    pub outcome: Result<(), String>,
}

/// What the server's thread and its owner share.
pub(super) struct Shared {
    /// Sockets, and whether the other end may start queues on plain addresses of this process.
    pub arrivals: Mutex<Vec<(OwnedFd, bool)>>,
    /// From the thread that makes changes.
    pub changed: Mutex<Vec<Changed>>,
    pub stop: AtomicBool,
    pub wake: OwnedFd,
}

impl Shared {
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}
