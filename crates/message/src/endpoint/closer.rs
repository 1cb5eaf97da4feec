//! Closes what other users have sent, or what it may lie in: that takes as long as they like (a socket that lingers, inside one that is
//! closed), and is for nobody who has something else to do.

use rustix::fd::OwnedFd;
use rustix::net::{Shutdown, shutdown};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// What waits to be closed before nobody is listened to; with a thread for each user, what waits of one of them.
const MOST: usize = 64;
/// What waits of all users: whoever has many user numbers is many of them, and each has a thread and descriptors of this process.
const MOST_OF_ALL: usize = 4 * MOST;

/// A thread of its own, which there is not before it is needed.
#[derive(Default)]
pub struct Closer {
    thread: Option<Sender<OwnedFd>>,
    waiting: Arc<AtomicUsize>,
}

impl Closer {
    /// Closes it. Without a thread it is kept open: there is nothing that may wait for it.
    pub fn close(&mut self, fd: OwnedFd) {
        let thread = self.thread.get_or_insert_with(|| {
            let (sender, receiver) = channel::<OwnedFd>();
            let waiting = self.waiting.clone();
            let work = move || {
                for fd in receiver {
                    drop(fd);
                    waiting.fetch_sub(1, Ordering::Relaxed);
                }
            };
            // Where it cannot be started, what is sent comes back below.
            let _ = thread::Builder::new().name("millrace-close".to_owned()).spawn(work);
            sender
        });
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if let Err(fd) = thread.send(fd) {
            self.thread = None;
            std::mem::forget(fd.0);
        }
    }

    /// The same with a socket, whose other end learns at once that it is not used any more.
    pub fn hang_up(&mut self, socket: OwnedFd) {
        let _ = shutdown(&socket, Shutdown::Both);
        self.close(socket);
    }

    /// Whether so much waits that there should not be more.
    pub fn is_full(&self) -> bool {
        self.waiting() >= MOST
    }

    fn waiting(&self) -> usize {
        // Relaxed: a count, which orders nothing.
        self.waiting.load(Ordering::Relaxed)
    }
}

/// A thread for each user of whom something waits: who sends what is slow to close stops up only himself.
#[derive(Default)]
pub struct Closers(BTreeMap<u32, Closer>);

impl Closers {
    /// That of a user. Those that have nothing left to do end.
    pub fn of(&mut self, user: u32) -> &mut Closer {
        self.0.retain(|other, closer| *other == user || closer.waiting() > 0);
        self.0.entry(user).or_default()
    }

    /// Whether so much of a user's waits, or of all users', that there should not be more.
    pub fn is_full(&self, user: u32) -> bool {
        self.0.get(&user).is_some_and(Closer::is_full)
            || self.0.values().map(Closer::waiting).sum::<usize>() >= MOST_OF_ALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

    #[test]
    fn what_is_handed_over_is_closed() {
        let mut closer = Closer::default();
        for _ in 0..3 {
            let (one, other) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            closer.hang_up(one);
            assert_eq!(recv(&other, &mut [0_u8; 1][..], RecvFlags::empty()).unwrap().0, 0);
        }
        while closer.waiting() > 0 {
            thread::yield_now();
        }
        assert!(!closer.is_full());
    }

    /// A socket that is slow to close while the other end of it is there.
    fn slow() -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let slow = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        slow.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &slow, &[0; 1 << 16]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&slow, Some(std::time::Duration::from_secs(60))).unwrap();
        (slow.into(), listener.accept().unwrap().0)
    }

    #[test]
    fn who_sends_what_is_slow_to_close_stops_up_only_himself() {
        let mut closers = Closers::default();
        let (first, deaf) = slow();
        closers.of(7).close(first);
        for _ in 1..MOST {
            assert!(!closers.is_full(7));
            closers.of(7).close(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
        }
        assert!(closers.is_full(7) && !closers.is_full(8));
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        closers.of(8).close(one);
        assert_eq!(recv(&other, &mut [0_u8; 1][..], RecvFlags::empty()).unwrap().0, 0, "it is closed at once");
        drop(deaf);
        while closers.of(8).waiting() > 0 || closers.of(7).waiting() > 0 {
            thread::yield_now();
        }
        assert_eq!((closers.0.len(), closers.is_full(7)), (1, false));
    }

    #[test]
    fn many_users_together_are_listened_to_no_more_either() {
        let mut closers = Closers::default();
        let (firsts, deaf): (Vec<_>, Vec<_>) = (0..8).map(|_| slow()).unzip();
        for (first, user) in firsts.into_iter().zip(1000..) {
            closers.of(user).close(first);
            for _ in 1..MOST_OF_ALL / 8 {
                assert!(!closers.is_full(1) && !closers.is_full(user));
                closers.of(user).close(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
            }
        }
        assert!(closers.is_full(1) && closers.is_full(1000));
        drop(deaf);
        while closers.is_full(1) {
            thread::yield_now();
        }
    }
}
