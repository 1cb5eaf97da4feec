//! Waking somebody who may wish us harm.
//!
//! The eventfd by which a peer is woken is one open file for both sides, and so are its flags and the number in it. A peer can
//! fill it up and clear `O_NONBLOCK` again, and whoever then writes to it waits for ever: the worker, and with it everybody
//! whom it serves. The kernel itself adds to an eventfd without ever waiting; an asynchronous request that signals one when
//! it ends has it do so for us.

use super::sys::Requests;
use rustix::io::Errno;
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};

thread_local! {
    // One for each worker, when it first wakes somebody. None: the system has no such requests to give.
    static REQUESTS: RefCell<Option<Requests>> = RefCell::new(Requests::new().inspect_err(complain).ok());
}

fn complain(errno: &Errno) {
    tracing::warn!(
        "io_setup: {errno}; peers behind vhost-user sockets are signalled by writes, which a hostile one can make wait; \
         raise fs.aio-max-nr"
    );
}

/// Wakes whoever waits for `event`. What is no eventfd stays as it is: its owner will not be woken.
#[cold]
pub(crate) fn signal(event: impl AsFd) {
    let event = event.as_fd();
    REQUESTS.with_borrow_mut(|requests| match requests {
        Some(requests) => {
            let _ = requests.signal(event);
        }
        None => write(event),
    });
}

fn write(event: BorrowedFd<'_>) {
    // A full one is readable, which is all that is wanted.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
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
        signal(&*event);
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
