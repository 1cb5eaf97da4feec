//! For tests of whoever wakes programs (decision 124): an end of a socket, or an eventfd, that is watched so often that each wake of it takes milliseconds.
#![forbid(unsafe_code)]

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, dup};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Epolls, and descriptors that each of them watches: all of one file.
const EPOLLS: usize = 200;
const WATCHED: usize = 200;
/// How often an end is rung at most until it is rung by a thread of its own.
const RINGS: usize = 100;

/// One at a time in a process: they have many descriptors.
static ONE: Mutex<()> = Mutex::new(());

/// Those who watch an end. They go when this is dropped.
pub struct Listeners {
    _all: Vec<OwnedFd>,
    _one: MutexGuard<'static, ()>,
}

impl Listeners {
    /// Has it watched 40,000 times. `None`: that is not allowed here, which is said.
    pub fn of(end: impl AsFd) -> Option<Self> {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let watch_all = || -> Result<Vec<OwnedFd>, Errno> {
            let mut all = (0..WATCHED).map(|_| dup(&end)).collect::<Result<Vec<_>, _>>()?;
            for _ in 0..EPOLLS {
                let one = epoll::create(CreateFlags::CLOEXEC)?;
                for fd in &all[..WATCHED] {
                    epoll::add(&one, fd, EventData::new_u64(0), EventFlags::IN)?;
                }
                all.push(one);
            }
            Ok(all)
        };
        let all =
            watch_all().inspect_err(|errno| println!("not tried, as it cannot be watched so often: {errno}")).ok()?;
        Some(Self { _all: all, _one: one })
    }
}

/// Waits until an end is readable, for some seconds at most. Whether it is.
pub fn comes(end: impl AsFd, within: i64) -> bool {
    let within = Timespec { tv_sec: within, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&within)), Ok(1))
}

/// Takes what has come by it, in pieces of a few bytes, so that it can come again.
pub fn take(end: impl AsFd) {
    while comes(&end, 0) && rustix::io::read(&end, &mut [0; 64][..]).is_ok_and(|count| count > 0) {}
}

/// Rings until a thread of its own does that, and once more then. Each time it comes.
///
/// # Panics
/// It does not come, or `is_apart` stays false however often it is rung.
pub fn ring_until_apart(end: impl AsFd, mut ring: impl FnMut(), mut is_apart: impl FnMut() -> bool) {
    let mut rings = 0;
    loop {
        let was_apart = is_apart();
        take(&end);
        ring();
        assert!(comes(&end, 60), "it is woken all the same");
        if was_apart {
            return;
        }
        rings += 1;
        assert!(rings < RINGS, "it is slow, and nothing is done about that");
    }
}
