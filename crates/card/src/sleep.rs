//! How a worker sleeps: on one epoll set with the kick eventfds of all its openers, its mailbox and its ports.

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

pub(crate) struct Sleep {
    epoll: OwnedFd,
    // How often each is watched: the queues of a program have one kick in common. Only what starts and stops looks
    // here.
    watched: RefCell<HashMap<RawFd, usize>>,
    // Something could not be watched: memory is out, or `fs.epoll.max_user_watches` reached.
    deaf: Cell<bool>,
}

/// How long a worker sleeps at most that cannot be woken by everybody who should.
const DEAF_SLEEP: Duration = Duration::from_millis(1);
/// What belongs to no kick.
const NO_KICK: u64 = u64::MAX;
/// How many of those who have signalled are told at once.
const AT_ONCE: usize = 16;

/// Who has signalled; the others are told the next time.
#[derive(Default)]
pub(crate) struct News {
    fds: [RawFd; AT_ONCE],
    count: usize,
}

impl News {
    /// Those that are watched by [`Sleep::watch`].
    pub fn signalled(&self) -> impl Iterator<Item = RawFd> {
        self.fds[..self.count].iter().copied()
    }
}

impl Sleep {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, watched: RefCell::default(), deaf: Cell::new(false) })
    }

    /// Wakes on `fd` until it has been forgotten as often as it was watched; it must stay open until then.
    /// Edge-triggered: an eventfd need not be read, every signal is a new edge, and a peer that signals without end
    /// cannot make the worker spin more often than it signals.
    pub fn watch(&self, fd: impl AsFd) {
        let mut watched = self.watched.borrow_mut();
        let times = watched.entry(fd.as_fd().as_raw_fd()).or_default();
        *times += 1;
        if *times > 1 {
            return;
        }
        let number = fd.as_fd().as_raw_fd() as u64;
        self.add(fd, EventData::new_u64(number), EventFlags::IN | EventFlags::ET);
    }

    fn add(&self, fd: impl AsFd, data: EventData, flags: EventFlags) {
        let Err(errno) = epoll::add(&self.epoll, fd, data, flags) else { return };
        if !self.deaf.replace(true) {
            millrace_port::notice::warn(format!(
                "epoll_ctl: {errno}: this worker cannot be woken by everybody from now on and wakes up by itself every \
                 {DEAF_SLEEP:?}; free memory or raise fs.epoll.max_user_watches, and restart the card"
            ));
        }
    }

    /// Whether somebody could not be watched, once: whoever sleeps has to look for itself.
    pub fn is_deaf(&self) -> bool {
        self.deaf.get()
    }

    /// Wakes on `fd` as long as it is readable: for ports, which may leave something unread.
    pub fn watch_level(&self, fd: impl AsFd) {
        self.add(fd, EventData::new_u64(NO_KICK), EventFlags::IN);
    }

    /// Takes back one [`Sleep::watch`].
    pub fn forget(&self, fd: impl AsFd) {
        let mut watched = self.watched.borrow_mut();
        let number = fd.as_fd().as_raw_fd();
        let Some(times) = watched.get_mut(&number) else { return };
        *times -= 1;
        if *times == 0 {
            watched.remove(&number);
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// Takes back a [`Sleep::watch_level`].
    pub fn forget_level(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Sleeps until somebody signals.
    pub fn sleep(&self, most: Option<Duration>) -> News {
        let most = if self.is_deaf() { Some(most.map_or(DEAF_SLEEP, |most| most.min(DEAF_SLEEP))) } else { most };
        self.wait(most)
    }

    /// Who has signalled since this was asked last.
    pub fn look(&self) -> News {
        self.wait(Some(Duration::ZERO))
    }

    fn wait(&self, most: Option<Duration>) -> News {
        let most = most.map(|most| Timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(most.subsec_nanos()),
        });
        let mut events = [const { std::mem::MaybeUninit::uninit() }; AT_ONCE];
        let mut news = News::default();
        // An interrupted sleep is a short sleep.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, most.as_ref()) else { return news };
        for event in events.iter().map(|event| event.data.u64()).filter(|&data| data != NO_KICK) {
            news.fds[news.count] = event as RawFd;
            news.count += 1;
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::time::Instant;

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::NONBLOCK).unwrap()
    }

    fn signal(event: &OwnedFd) {
        rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
    }

    #[test]
    fn every_signal_is_told_once_and_more_than_fit_the_next_time() {
        let (sleep, events) = (Sleep::new().unwrap(), [(); 20].map(|()| event()));
        events.iter().for_each(|event| sleep.watch(event));
        assert_eq!(sleep.look().signalled().count(), 0);
        for _ in 0..3 {
            events.iter().for_each(signal);
            let mut told: Vec<RawFd> = sleep.look().signalled().collect();
            assert_eq!(told.len(), AT_ONCE);
            told.extend(sleep.sleep(None).signalled());
            told.sort_unstable();
            // Other tests close theirs, so that numbers come in any order.
            let mut expected: Vec<RawFd> = events.iter().map(|event| event.as_raw_fd()).collect();
            expected.sort_unstable();
            assert_eq!(told, expected);
            assert_eq!(sleep.look().signalled().count(), 0);
        }
        events.iter().for_each(|event| sleep.forget(event));
        events.iter().for_each(signal);
        assert_eq!(sleep.look().signalled().count(), 0);
    }

    #[test]
    fn who_cannot_be_watched_is_not_slept_for_without_end() {
        let sleep = Sleep::new().unwrap();
        // What epoll does not take: as when the system has no more watches.
        sleep.watch(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(sleep.is_deaf());
        let begin = Instant::now();
        // Without an end of its own it would sleep for ever.
        sleep.sleep(None);
        assert!(begin.elapsed() >= DEAF_SLEEP / 2);
    }
}
