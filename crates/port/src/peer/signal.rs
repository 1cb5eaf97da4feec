//! Waking somebody who may wish us harm.
//!
//! The eventfd by which a peer is woken is one open file for both sides, and so are its flags and the number in it. A
//! peer can fill it up and clear `O_NONBLOCK` again, and whoever then writes to it waits for ever: the worker, and with
//! it everybody whom it serves. The kernel itself adds to an eventfd without ever waiting; an asynchronous request that
//! signals one when it ends has it do so for us.

use super::sys::Requests;
use rustix::io::Errno;
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};

thread_local! {
    // One for each worker, when it first wakes somebody.
    static SIGNALS: RefCell<Signals> = const { RefCell::new(Signals { requests: None, skipped: 0 }) };
}

/// How a thread signals.
struct Signals {
    /// None: none have been asked for, or the system has no such requests to give at the moment.
    requests: Option<Requests>,
    /// Signals that nobody got for want of them.
    skipped: u64,
}

impl Signals {
    /// Signals, or does not: to wait is not for us, and there is no other way that never does. `false`: it may work later.
    fn send(&mut self, event: BorrowedFd<'_>, requests: impl Fn() -> Result<Requests, Errno>) -> bool {
        if self.requests.is_none() {
            match requests() {
                Ok(requests) => self.recover(requests),
                Err(errno) => {
                    self.skip(errno);
                    return false;
                }
            }
        }
        // What is no eventfd is refused, now and later.
        let done = self.requests.as_mut().map(|requests| requests.signal(event));
        !matches!(done, Some(Err(Errno::AGAIN | Errno::NOMEM)))
    }

    fn recover(&mut self, requests: Requests) {
        if self.skipped > 0 {
            crate::notice::warn(format!("peers are signalled again; {} signals were not sent", self.skipped));
        }
        (self.requests, self.skipped) = (Some(requests), 0);
    }

    fn skip(&mut self, errno: Errno) {
        if self.skipped == 0 {
            crate::notice::warn(format!(
                "io_setup: {errno}; peers behind vhost-user and virtio-user sockets that sleep are not woken until that works: \
                 raise fs.aio-max-nr"
            ));
        }
        self.skipped += 1;
    }
}

/// Wakes whoever waits for `event`. What is no eventfd stays as it is: its owner will not be woken.
#[cold]
pub fn signal(event: impl AsFd) {
    try_signal(event);
}

/// The same. `false`: the system has nothing left to do it with (`fs.aio-max-nr`), which may be different later.
#[cold]
pub fn try_signal(event: impl AsFd) -> bool {
    let done = SIGNALS.try_with(|signals| signals.borrow_mut().send(event.as_fd(), Requests::new));
    // At the end of a thread, and of a program, its own have gone: some for this signal.
    done.unwrap_or_else(|_| Signals { requests: None, skipped: 0 }.send(event.as_fd(), Requests::new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::OwnedFd;
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    fn read(event: &OwnedFd) -> Option<u64> {
        let mut number = [0; 8];
        rustix::io::read(event, &mut number).ok().map(|_| u64::from_ne_bytes(number))
    }

    #[test]
    fn signals_add_up() {
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        // More than one context has room for.
        (0..1000).for_each(|_| signal(&event));
        assert_eq!((read(&event), read(&event)), (Some(1000), None));
    }

    #[test]
    fn a_full_event_that_would_make_writers_wait_makes_nobody_wait() {
        let event = Arc::new(eventfd(0, EventfdFlags::empty()).unwrap());
        rustix::io::write(&*event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let (done, wait) = mpsc::channel();
        let theirs = event.clone();
        std::thread::spawn(move || {
            (0..1000).for_each(|_| signal(&*theirs));
            done.send(()).unwrap();
        });
        wait.recv_timeout(Duration::from_secs(20)).expect("signals that return");
        assert!(read(&event).is_some_and(|number| number >= u64::MAX - 1));
        assert!(try_signal(&*event));
        assert_eq!(read(&event), Some(1));
    }

    #[test]
    fn without_requests_nobody_waits_and_later_signals_arrive() {
        // Full, and whoever writes to it waits.
        let full = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let (done, wait) = mpsc::channel();
        std::thread::spawn(move || {
            let mut signals = Signals { requests: None, skipped: 0 };
            assert!(!signals.send(full.as_fd(), || Err(Errno::AGAIN)));
            assert!(!signals.send(event.as_fd(), || Err(Errno::AGAIN)));
            assert_eq!((signals.skipped, read(&event)), (2, None));
            assert!(signals.send(event.as_fd(), Requests::new));
            done.send((signals.skipped, read(&event))).unwrap();
        });
        let (skipped, number) = wait.recv_timeout(Duration::from_secs(60)).expect("signals that return");
        assert_eq!((skipped, number), (0, Some(1)));
    }

    #[test]
    fn a_thread_that_ends_may_still_signal() {
        struct AtEnd(RefCell<Option<OwnedFd>>);
        impl Drop for AtEnd {
            fn drop(&mut self) {
                assert!(SIGNALS.try_with(|_| ()).is_err(), "what a thread signals with goes before this");
                self.0.take().iter().for_each(signal);
            }
        }
        thread_local!(static LAST: AtEnd = const { AtEnd(RefCell::new(None)) });
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let (theirs, other) = (event.try_clone().unwrap(), eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let thread = std::thread::spawn(move || {
            // What was used first goes last.
            LAST.with(|last| last.0.replace(Some(theirs)));
            signal(&other);
        });
        thread.join().unwrap();
        assert_eq!(read(&event), Some(1));
    }

    #[test]
    fn what_is_no_event_is_left_alone() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        signal(&writer);
        drop(writer);
        assert_eq!(read(&reader), Some(0), "nothing but the end was in the pipe");
    }
}
