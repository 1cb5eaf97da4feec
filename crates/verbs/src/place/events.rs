//! Queues of events that programs sleep on: completion channels, and asynchronous events of a context.
//!
//! The events lie in memory of this process; the descriptor only counts them (an eventfd that is a semaphore), so that it can be
//! made non-blocking, polled and read one by one as those of the kernel can, it is never too full, and events of an object that
//! is destroyed can be taken out.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, read, write};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// A queue of events with a descriptor.
#[derive(Debug)]
pub(crate) struct Events<E> {
    count: OwnedFd,
    waiting: Mutex<VecDeque<E>>,
}

impl<E: Copy> Events<E> {
    /// Without any event.
    pub fn new() -> Result<Self, Errno> {
        let count = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        Ok(Self { count, waiting: Mutex::new(VecDeque::new()) })
    }

    /// What programs sleep on.
    pub fn fd(&self) -> i32 {
        self.count.as_raw_fd()
    }

    /// Adds an event. The owner sees to it that there are not more than there are objects.
    pub fn add(&self, event: E) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        // It counts up to 2^64 - 2.
        let _ = write(&self.count, &1u64.to_ne_bytes());
    }

    /// Whether there is an event.
    pub fn is_any(&self) -> bool {
        !self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Whether [`Events::take`] waits for an event: the program has not made the descriptor non-blocking.
    pub fn waits(&self) -> bool {
        fcntl_getfl(&self.count).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
    }

    /// The next event. Waits for it, unless the program has made the descriptor non-blocking. `claim` is called before anybody
    /// who takes events out ([`Events::forget`]) could find that this one is gone: what it is about is there so long.
    pub fn take(&self, claim: impl Fn(&E)) -> Result<E, Errno> {
        loop {
            read(&self.count, &mut [0; 8])?;
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // None: it was taken out between being counted and now.
            if let Some(event) = waiting.pop_front() {
                claim(&event);
                return Ok(event);
            }
        }
    }

    /// Takes out events that nobody is to see any more.
    pub fn forget(&self, of: impl Fn(&E) -> bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = waiting.len();
        waiting.retain(|event| !of(event));
        for _ in waiting.len()..before {
            self.uncount();
        }
    }

    /// Counts one less; a reader that is quicker finds nothing and waits on.
    fn uncount(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.count, PollFlags::IN)];
        if poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
            let _ = read(&self.count, &mut [0; 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fcntl_setfl;

    #[test]
    fn events_come_in_order_and_the_descriptor_counts_them() {
        let events = Events::new().unwrap();
        fcntl_setfl(&events.count, fcntl_getfl(&events.count).unwrap() | OFlags::NONBLOCK).unwrap();
        assert_eq!(events.take(|_| ()), Err(Errno::AGAIN));
        (1..=4).for_each(|event| events.add(event));
        events.forget(|event| event % 2 == 0);
        let take = || events.take(|_| ());
        assert_eq!((take(), take(), take()), (Ok(1), Ok(3), Err(Errno::AGAIN)));
    }

    #[test]
    fn what_is_taken_is_claimed_before_others_find_it_gone() {
        let (events, claimed) = (Events::new().unwrap(), std::sync::atomic::AtomicBool::new(false));
        let order = std::sync::atomic::Ordering::SeqCst;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                events.take(|_| {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    claimed.store(true, order);
                })
            });
            events.add(1);
            while events.is_any() {}
            events.forget(|event| *event == 1);
            assert!(claimed.load(order), "whoever destroys its object now has to wait");
        });
    }

    #[test]
    fn whoever_sleeps_is_woken() {
        let events = Events::new().unwrap();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| events.take(|_| ()));
            events.add(7);
            assert_eq!(sleeper.join().unwrap(), Ok(7));
        });
    }
}
