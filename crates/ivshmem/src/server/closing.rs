//! Sockets are closed by a thread of their own: whoever was at the other end may have put descriptors into one, and closing those takes
//! as long as he likes (a TCP socket that lingers).

use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

/// Sockets that may wait to be closed before nobody is let in any more.
const MOST: usize = 64;

pub(super) struct Closer {
    sockets: Sender<OwnedFd>,
    waiting: Arc<AtomicUsize>,
}

impl Closer {
    /// Starts the thread, which ends with this. One that is held up ends when that does, or with the process.
    pub fn start() -> io::Result<Self> {
        let (sockets, closed) = channel::<OwnedFd>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&waiting);
        let run = move || {
            for socket in closed {
                drop(socket);
                // Relaxed: a count, which orders nothing.
                left.fetch_sub(1, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new().name("millrace-close".into()).stack_size(64 << 10).spawn(run)?;
        Ok(Self { sockets, waiting })
    }

    pub fn close(&self, socket: OwnedFd) {
        // The other end is told at once.
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        // Relaxed: a count, which orders nothing.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _ = self.sockets.send(socket);
    }

    pub fn has_room(&self) -> bool {
        // Relaxed: a count, which orders nothing.
        self.waiting.load(Ordering::Relaxed) < MOST
    }
}
