//! `poll`, `select` and `epoll`.

use super::{guarded, real, returned, set_errno};
use crate::stream::foresee;
use crate::{epoll, poll as engine, table};
use core::ffi::{c_int, c_long};
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use std::sync::Arc;
use std::time::Duration;

fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// # Safety
/// NULL, or a time that can be read.
unsafe fn time(timeout: *const timespec) -> Option<Duration> {
    // SAFETY: as the caller promises.
    let time = unsafe { timeout.as_ref() }?;
    Some(Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32))
}

/// # Safety
/// `fds` has `count` entries.
unsafe fn poll_ours(fds: *mut pollfd, count: nfds_t, timeout: Option<Duration>, signals: usize) -> Option<c_int> {
    if fds.is_null() || count == 0 || count > 1 << 20 {
        return None;
    }
    // SAFETY: as the caller promises.
    let list = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    if !list.iter().any(|entry| table::is_used(entry.fd)) {
        return None;
    }
    let mut outcome = None;
    guarded(|| {
        outcome = engine::poll(list, timeout, signals).map(returned);
        0
    });
    outcome
}

/// # Safety
/// As `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: as the caller promises.
    if let Some(done) = unsafe { poll_ours(fds, count, milliseconds(timeout), 0) } {
        return done;
    }
    // SAFETY: as the caller promises.
    unsafe { real::poll(fds, count, timeout) }
}

/// # Safety
/// As `ppoll`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    // SAFETY: as the caller promises.
    if let Some(done) = unsafe { poll_ours(fds, count, time(timeout), signals.expose_provenance()) } {
        return done;
    }
    // SAFETY: as the caller promises.
    unsafe { real::ppoll(fds, count, timeout, signals) }
}

/// # Safety
/// As `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, _room: usize) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { poll(fds, count, timeout) }
}

/// # Safety
/// As `ppoll`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
    _room: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { ppoll(fds, count, timeout, signals) }
}

/// Bits in a word of a set of numbers.
const BITS: usize = c_long::BITS as usize;

/// One of the sets of a `select`, as words: programs make larger ones than the C library's.
#[derive(Clone, Copy)]
struct Numbers(*mut c_long);

impl Numbers {
    /// # Safety
    /// The set has room for this number.
    unsafe fn has(self, fd: c_int) -> bool {
        // SAFETY: as the caller promises.
        !self.0.is_null() && unsafe { *self.0.add(fd as usize / BITS) } >> (fd as usize % BITS) & 1 != 0
    }

    /// # Safety
    /// The set has room for `count` numbers.
    unsafe fn clear(self, count: c_int) {
        if !self.0.is_null() {
            // SAFETY: as the caller promises.
            unsafe { core::ptr::write_bytes(self.0, 0, (count as usize).div_ceil(BITS)) };
        }
    }

    /// # Safety
    /// As [`Numbers::has`].
    unsafe fn set(self, fd: c_int) {
        // SAFETY: as the caller promises.
        unsafe { *self.0.add(fd as usize / BITS) |= 1 << (fd as usize % BITS) };
    }
}

/// What of `poll` makes a number readable, writable, exceptional.
const READS: i16 = libc::POLLIN | libc::POLLHUP | libc::POLLERR;
const WRITES: i16 = libc::POLLOUT | libc::POLLERR;
const OTHERS: i16 = libc::POLLPRI;

/// How many numbers the sets of a `select` have. Programs say more than that, and Linux does not look behind the numbers that a process
/// has room for; our own, which are high, are not the program's.
fn bounded(count: c_int) -> c_int {
    const USUAL: c_int = libc::FD_SETSIZE as c_int;
    if count <= USUAL {
        return count;
    }
    let numbers = crate::meet::descriptors().into_iter().filter(|&fd| !table::is_ours(fd));
    count.min(numbers.max().map_or(0, |last| last + 1).max(USUAL))
}

/// # Safety
/// As `select`.
unsafe fn select_ours(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: Option<Duration>,
    signals: usize,
) -> Option<c_int> {
    let sets = sets.map(|set| Numbers(set.cast()));
    // SAFETY: as the caller promises.
    let has = |set: usize, fd: c_int| unsafe { sets[set].has(fd) };
    let wanted = |fd: c_int| (0..3).any(|set| has(set, fd));
    if count <= 0 || !(0..count).any(|fd| wanted(fd) && table::is_used(fd)) {
        return None;
    }
    let kinds = [(libc::POLLIN, READS), (libc::POLLOUT, WRITES), (libc::POLLPRI, OTHERS)];
    let mut list: Vec<pollfd> = (0..count)
        .filter(|&fd| wanted(fd))
        .map(|fd| {
            let events = (0..3).filter(|&set| has(set, fd)).fold(0, |events, set| events | kinds[set].0);
            pollfd { fd, events, revents: 0 }
        })
        .collect();
    if let Err(error) = engine::poll(&mut list, timeout, signals)? {
        return Some(returned(Err(error)));
    }
    if list.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        set_errno(libc::EBADF);
        return Some(-1);
    }
    let before: Vec<[bool; 3]> = list.iter().map(|entry| [0, 1, 2].map(|set| has(set, entry.fd))).collect();
    let mut found = 0;
    for (at, set) in sets.into_iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { set.clear(count) };
        for (entry, wanted) in list.iter().zip(&before) {
            if wanted[at] && entry.revents & kinds[at].1 != 0 {
                // SAFETY: as above.
                unsafe { set.set(entry.fd) };
                found += 1;
            }
        }
    }
    Some(found)
}

/// # Safety
/// As `select`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    others: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let count = bounded(count);
    // SAFETY: as the caller promises.
    let time = unsafe { timeout.as_ref() }
        .map(|time| Duration::from_secs(time.tv_sec.max(0) as u64) + Duration::from_micros(time.tv_usec.max(0) as u64));
    let begin = std::time::Instant::now();
    let mut outcome = None;
    guarded(|| {
        // SAFETY: as the caller promises.
        outcome = unsafe { select_ours(count, [reads, writes, others], time, 0) };
        0
    });
    if let Some(done) = outcome {
        // Linux says what is left.
        // SAFETY: as the caller promises.
        if let (Some(to), Some(time)) = (unsafe { timeout.as_mut() }, time) {
            let left = time.saturating_sub(begin.elapsed());
            (to.tv_sec, to.tv_usec) = (left.as_secs() as i64, i64::from(left.subsec_micros()));
        }
        return done;
    }
    // SAFETY: as the caller promises.
    unsafe { real::select(count, reads, writes, others, timeout) }
}

/// # Safety
/// As `pselect`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    others: *mut fd_set,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    let count = bounded(count);
    let mut outcome = None;
    guarded(|| {
        // SAFETY: as the caller promises.
        outcome = unsafe { select_ours(count, [reads, writes, others], time(timeout), signals.expose_provenance()) };
        0
    });
    if let Some(done) = outcome {
        return done;
    }
    // SAFETY: as the caller promises.
    unsafe { real::pselect(count, reads, writes, others, timeout, signals) }
}

/// An epoll is known from its beginning: threads may sleep in it, and it may have other numbers, before a connection is in it.
fn made(epoll: c_int) -> c_int {
    if epoll >= 0 && !crate::library().config.is_off && !super::is_borrowed() {
        guarded(|| {
            table::set_epoll(epoll, Some(Arc::new(epoll::Epoll::new())));
            0
        });
    }
    epoll
}

/// # Safety
/// As `epoll_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: as the caller promises.
    made(unsafe { real::epoll_create(size) })
}

/// # Safety
/// As `epoll_create1`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: as the caller promises.
    made(unsafe { real::epoll_create1(flags) })
}

/// # Safety
/// As `epoll_ctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(epoll: c_int, what: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if what == libc::EPOLL_CTL_ADD && !crate::library().config.is_off && !super::is_borrowed() {
        guarded(|| {
            foresee(fd);
            0
        });
    }
    if table::is_used(fd) || table::is_used(epoll) {
        // SAFETY: as the caller promises.
        let wanted = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
        let mut outcome = None;
        guarded(|| {
            outcome = epoll::control(epoll, what, fd, wanted).map(|done| returned(done.map(|()| 0)));
            0
        });
        if let Some(done) = outcome {
            return done;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real::epoll_ctl(epoll, what, fd, event) }
}

/// # Safety
/// `to` has room for `most` entries; `kernels` is the C library's call with them.
unsafe fn wait_ours(
    epoll: c_int,
    to: *mut epoll_event,
    most: c_int,
    timeout: Option<Duration>,
    signals: usize,
    kernels: impl FnOnce() -> c_int,
) -> c_int {
    let set = if to.is_null() || most <= 0 { None } else { table::epoll(epoll) };
    let Some(set) = set else { return kernels() };
    // SAFETY: as the caller promises.
    let to = unsafe { core::slice::from_raw_parts_mut(to, most as usize) };
    if set.is_to_sleep_empty() {
        let deadline = engine::Deadline::new(timeout);
        // A thread may be cancelled in there: nothing in this frame is to be dropped then, and the set is lost.
        let held = Arc::into_raw(set);
        let count = kernels();
        // SAFETY: from `into_raw`, once.
        let set = unsafe { Arc::from_raw(held) };
        let found = set.has_slept(&mut to[..usize::try_from(count).unwrap_or(0)]);
        if count <= 0 || found > 0 {
            return if count <= 0 { count } else { found as c_int };
        }
        // A connection was put in meanwhile, and all that was said was of it.
        return guarded(|| returned(set.wait(epoll, to, deadline.left(), signals)));
    }
    guarded(|| returned(set.wait(epoll, to, timeout, signals)))
}

/// # Safety
/// As `epoll_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(epoll: c_int, to: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let kernels = || unsafe { real::epoll_wait(epoll, to, most, timeout) };
    // SAFETY: as the caller promises.
    unsafe { wait_ours(epoll, to, most, milliseconds(timeout), 0, kernels) }
}

/// # Safety
/// As `epoll_pwait`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    to: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    signals: *const sigset_t,
) -> c_int {
    // SAFETY: as the caller promises.
    let kernels = || unsafe { real::epoll_pwait(epoll, to, most, timeout, signals) };
    // SAFETY: as the caller promises.
    unsafe { wait_ours(epoll, to, most, milliseconds(timeout), signals.expose_provenance(), kernels) }
}

/// # Safety
/// As `epoll_pwait2`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    to: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    // SAFETY: as the caller promises.
    let kernels = || unsafe { real::epoll_pwait2(epoll, to, most, timeout, signals) };
    // SAFETY: as the caller promises.
    unsafe { wait_ours(epoll, to, most, time(timeout), signals.expose_provenance(), kernels) }
}
