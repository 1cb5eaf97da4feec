//! Which of the program's numbers are connections, and which numbers are our own.

use crate::epoll::Epoll;
use crate::stream::Stream;
use arc_swap::{ArcSwapOption, Guard};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Numbers from here on are not looked at, and stay with the kernel.
const MOST: usize = 1 << 20;
const PART: usize = 1 << 10;

/// Something for each number, in parts that are made when they are needed.
struct Numbers<T> {
    parts: [OnceLock<Box<[ArcSwapOption<T>]>>; MOST / PART],
    used: AtomicUsize,
}

impl<T> Numbers<T> {
    const fn new() -> Self {
        Self { parts: [const { OnceLock::new() }; MOST / PART], used: AtomicUsize::new(0) }
    }

    #[inline]
    fn slot(&self, fd: RawFd) -> Option<&ArcSwapOption<T>> {
        let at = usize::try_from(fd).ok()?;
        self.parts.get(at / PART)?.get()?.get(at % PART)
    }

    #[inline]
    fn get(&self, fd: RawFd) -> Option<Guard<Option<Arc<T>>>> {
        if self.used.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let found = self.slot(fd)?.load();
        found.is_some().then_some(found)
    }

    /// What stands there from now on; what stood there.
    fn set(&self, fd: RawFd, value: Option<Arc<T>>) -> Option<Arc<T>> {
        let at = usize::try_from(fd).ok().filter(|&at| at < MOST)?;
        let part = &self.parts[at / PART];
        let slots = match (part.get(), &value) {
            (Some(slots), _) => slots,
            (None, None) => return None,
            (None, Some(_)) => part.get_or_init(|| (0..PART).map(|_| ArcSwapOption::empty()).collect()),
        };
        let is_new = value.is_some();
        let old = slots[at % PART].swap(value);
        match (is_new, old.is_some()) {
            (true, false) => drop(self.used.fetch_add(1, Ordering::Relaxed)),
            (false, true) => drop(self.used.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        old
    }

    /// What stands there from now on, if nothing did.
    fn begin(&self, fd: RawFd, value: Arc<T>) {
        let Some(at) = usize::try_from(fd).ok().filter(|&at| at < MOST) else { return };
        let slots = self.parts[at / PART].get_or_init(|| (0..PART).map(|_| ArcSwapOption::empty()).collect());
        if slots[at % PART].compare_and_swap(&None::<Arc<T>>, Some(value)).is_none() {
            self.used.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All numbers up to `last` that have something, from `first` on.
    fn each(&self, first: RawFd, last: RawFd) -> Vec<RawFd> {
        if self.used.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let used = self.parts.iter().enumerate().filter_map(|(at, part)| Some((at, part.get()?)));
        let numbers = used.flat_map(|(at, slots)| {
            slots.iter().enumerate().filter(|(_, slot)| slot.load().is_some()).map(move |(place, _)| at * PART + place)
        });
        numbers.map(|number| number as RawFd).filter(|number| (first..=last).contains(number)).collect()
    }
}

static STREAMS: Numbers<Stream> = Numbers::new();
static EPOLLS: Numbers<Epoll> = Numbers::new();

/// Numbers of files of ours that the program must not close, a bit for each.
static OURS: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// The connection behind a number.
#[inline]
pub(crate) fn stream(fd: RawFd) -> Option<Guard<Option<Arc<Stream>>>> {
    STREAMS.get(fd)
}

/// The same, to keep.
pub(crate) fn stream_of(fd: RawFd) -> Option<Arc<Stream>> {
    STREAMS.get(fd).and_then(|found| (*found).clone())
}

/// The connection that is behind a number from now on, or none; the one that was.
pub(crate) fn set_stream(fd: RawFd, stream: Option<Arc<Stream>>) -> Option<Arc<Stream>> {
    STREAMS.set(fd, stream)
}

/// The connections from one number to another.
pub(crate) fn streams(first: RawFd, last: RawFd) -> Vec<RawFd> {
    STREAMS.each(first, last)
}

/// The set of connections that an epoll has.
#[inline]
pub(crate) fn epoll(fd: RawFd) -> Option<Arc<Epoll>> {
    EPOLLS.get(fd).and_then(|found| (*found).clone())
}

/// A connection that is behind a number which has none.
pub(crate) fn begin_stream(fd: RawFd, stream: Arc<Stream>) {
    STREAMS.begin(fd, stream);
}

/// The set that is behind a number from now on, or none; the one that was there, if that was its only number.
pub(crate) fn set_epoll(fd: RawFd, epoll: Option<Arc<Epoll>>) -> Option<Arc<Epoll>> {
    if let Some(epoll) = &epoll {
        epoll.called(fd);
    }
    // Of two who take away the last two numbers at once, one sees that it was the last.
    EPOLLS.set(fd, epoll).filter(|old| old.uncalled(fd))
}

/// The sets from one number to another.
pub(crate) fn epolls(first: RawFd, last: RawFd) -> Vec<RawFd> {
    EPOLLS.each(first, last)
}

/// A number is ours, or is no more.
pub(crate) fn protect(fd: RawFd, is_ours: bool) {
    let Some(word) = usize::try_from(fd).ok().and_then(|at| OURS.get(at / 64)) else { return };
    let bit = 1 << (fd % 64);
    if is_ours {
        word.fetch_or(bit, Ordering::Relaxed);
    } else {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Whether a number is ours.
#[inline]
pub(crate) fn is_ours(fd: RawFd) -> bool {
    let word = usize::try_from(fd).ok().and_then(|at| OURS.get(at / 64));
    word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (fd % 64) != 0)
}

/// Our numbers from one to another.
pub(crate) fn ours(first: RawFd, last: RawFd) -> Vec<RawFd> {
    let words = OURS.iter().enumerate().filter(|(_, word)| word.load(Ordering::Relaxed) != 0);
    let numbers = words.flat_map(|(at, _)| (at * 64..at * 64 + 64).map(|number| number as RawFd));
    numbers.filter(|&number| (first..=last).contains(&number) && is_ours(number)).collect()
}

/// Whether a number is a connection, or an epoll with connections.
#[inline]
pub(crate) fn is_used(fd: RawFd) -> bool {
    STREAMS.get(fd).is_some() || EPOLLS.get(fd).is_some()
}
