//! `poll` over connections that have met, and anything else beside them; `select` and every call that waits come here too.

use crate::counters::{Count, count};
use crate::epoll::Epoll;
use crate::shared::Shared;
use crate::stream::{Stream, Waiting};
use crate::{spin, sys, table};
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a thread sleeps that no doorbell can wake: one lies there for another thread, or for bytes that this one does not want.
const SOON: Duration = Duration::from_micros(200);

/// What of a list is ours, and where it stands.
enum Watched {
    Stream(usize, Arc<Stream>),
    Epoll(usize, Arc<Epoll>),
}

impl Watched {
    fn at(&self) -> usize {
        match self {
            Self::Stream(at, _) | Self::Epoll(at, _) => *at,
        }
    }
}

/// A time from now on, and what is left of it.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// What is left; `None` when there is no limit.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// As `ppoll`. `None` when nothing in the list is ours.
pub(crate) fn poll(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    signals: usize,
) -> Option<Result<usize, Errno>> {
    let deadline = Deadline::new(timeout);
    let mut left = timeout;
    loop {
        let (watched, early) = ours(fds);
        let waiting: Vec<Waiting> = early.iter().filter_map(Stream::wait_early).collect();
        let outcome = match (waiting.len() < early.len(), watched.is_empty(), early.is_empty()) {
            // Some have met in this moment.
            (true, ..) => continue,
            (_, true, true) if left == timeout => return None,
            (_, true, _) => sys::poll(fds, left, signals),
            (_, false, _) => Poll { fds: &mut *fds, watched, is_alone: false }.run(left, signals),
        };
        // What the kernel says of one that has met while we waited may be no more than a doorbell. It happens once to each.
        if outcome.is_err() || waiting.iter().all(|waiting| waiting.0.live().is_none()) {
            return Some(outcome);
        }
        left = deadline.left();
    }
}

/// As [`poll`], until it is worth to receive or to send (`events`). A signal ends that only if the program wants it (no `SA_RESTART`), as
/// it ends `recv`: the kernel sleeps in that, and not in `poll`. `None` where others may receive too, and to send by the kernel.
pub(crate) fn wait_alone(fd: RawFd, events: i16) -> Option<Result<(), Errno>> {
    if !sys::is_single_threaded() || table::stream_of(fd).is_none_or(|stream| stream.has_forked()) {
        return None;
    }
    let mut fds = [libc::pollfd { fd, events, revents: 0 }];
    let (watched, early) = ours(&fds);
    if watched.is_empty() && events & libc::POLLIN == 0 {
        return None;
    }
    if watched.is_empty() {
        let waiting: Vec<Waiting> = early.iter().filter_map(Stream::wait_early).collect();
        // One that has met in this moment is to be tried again.
        return Some(if waiting.len() < early.len() { Ok(()) } else { sys::wait_for_byte(fd).map(drop) });
    }
    Some(Poll { fds: &mut fds, watched, is_alone: true }.run(None, 0).map(drop))
}

/// What of a list has met, and what may meet yet.
fn ours(fds: &[libc::pollfd]) -> (Vec<Watched>, Vec<Arc<Stream>>) {
    let (mut watched, mut early) = (Vec::new(), Vec::new());
    for (at, entry) in fds.iter().enumerate().filter(|(_, entry)| entry.fd >= 0) {
        if let Some(stream) = table::stream_of(entry.fd) {
            stream.look(entry.fd);
            stream.settle();
            if stream.live().is_some() {
                watched.push(Watched::Stream(at, stream));
            } else if !stream.is_kernels() {
                early.push(stream);
            }
        } else if let Some(epoll) = table::epoll(entry.fd).filter(|epoll| epoll.has_met()) {
            watched.push(Watched::Epoll(at, epoll));
        }
    }
    (watched, early)
}

struct Poll<'a> {
    fds: &'a mut [libc::pollfd],
    watched: Vec<Watched>,
    /// Nobody else receives from the one that is waited for.
    is_alone: bool,
}

impl Poll<'_> {
    fn run(mut self, timeout: Option<Duration>, signals: usize) -> Result<usize, Errno> {
        let deadline = Deadline::new(timeout);
        let has_others = self.watched.len() < self.fds.len();
        loop {
            if self.check() {
                return self.result(has_others);
            }
            let is_over =
                timeout.is_some_and(|time| time.is_zero()) || deadline.left().is_some_and(|left| left.is_zero());
            // Others may be ready already, and the end of ours is known to the kernel only.
            if (has_others || is_over) && self.ask(Some(Duration::ZERO), signals)? {
                return self.result(has_others);
            }
            if is_over {
                let is_ready = self.check();
                return if is_ready { self.result(false) } else { Ok(0) };
            }
            let looked = spin::until(|turn| {
                if self.check() {
                    return Some(Ok(()));
                }
                if !has_others || turn % 64 != 63 {
                    return None;
                }
                // A signal that is handled here ends the call: nobody will hear of it again.
                self.ask(Some(Duration::ZERO), signals).map(|is_ready| is_ready.then_some(())).transpose()
            });
            if let Some(outcome) = looked {
                outcome?;
                return self.result(has_others);
            }
            if self.sleep(&deadline, signals)? {
                return self.result(has_others);
            }
        }
    }

    /// Writes what is ready of ours into the list, and says whether there is any.
    fn check(&mut self) -> bool {
        let mut is_ready = false;
        for one in &self.watched {
            let entry = &mut self.fds[one.at()];
            let events = match one {
                Watched::Stream(_, stream) => stream.live().map_or(0, |shared| stream.events(entry.fd, shared)),
                Watched::Epoll(_, epoll) if epoll.is_ready() => libc::POLLIN,
                Watched::Epoll(..) => 0,
            };
            let always = libc::POLLERR | libc::POLLHUP;
            let reads = if entry.events & libc::POLLRDNORM != 0 { libc::POLLIN } else { 0 };
            let writes = if entry.events & libc::POLLWRNORM != 0 { libc::POLLOUT } else { 0 };
            entry.revents = events & (entry.events | always | reads | writes);
            if reads != 0 && entry.revents & libc::POLLIN != 0 {
                entry.revents = entry.revents & !(libc::POLLIN & !entry.events) | libc::POLLRDNORM;
            }
            if writes != 0 && entry.revents & libc::POLLOUT != 0 {
                entry.revents = entry.revents & !(libc::POLLOUT & !entry.events) | libc::POLLWRNORM;
            }
            is_ready |= entry.revents != 0;
        }
        is_ready
    }

    /// How many are ready, after the others have been asked for too.
    fn result(&mut self, has_others: bool) -> Result<usize, Errno> {
        if has_others {
            self.ask(Some(Duration::ZERO), 0)?;
        }
        Ok(self.fds.iter().filter(|entry| entry.revents != 0).count())
    }

    /// Asks the kernel for everything; of ours, only what it alone knows. Whether others are ready. What is ready of ours stays in
    /// the list.
    fn ask(&mut self, timeout: Option<Duration>, signals: usize) -> Result<bool, Errno> {
        let list = self.for_kernel();
        self.ask_for(list, timeout, signals)
    }

    /// What the kernel is asked for.
    fn for_kernel(&self) -> Vec<libc::pollfd> {
        let mut list = self.fds.to_vec();
        for one in &self.watched {
            let entry = &mut list[one.at()];
            entry.events = match one {
                Watched::Stream(_, stream) => wake_by(stream, entry.events),
                Watched::Epoll(..) => libc::POLLIN,
            };
            // The kernel would say again that it is over, whatever it is asked for.
            if let Watched::Stream(_, stream) = one
                && stream.is_cut.load(Ordering::Relaxed)
            {
                entry.fd = -1;
            }
        }
        list
    }

    fn ask_for(
        &mut self,
        mut list: Vec<libc::pollfd>,
        timeout: Option<Duration>,
        signals: usize,
    ) -> Result<bool, Errno> {
        sys::poll(&mut list, timeout, signals)?;
        let mut next = self.watched.iter().peekable();
        let mut is_ready = false;
        for (at, (entry, found)) in self.fds.iter_mut().zip(&list).enumerate() {
            match next.next_if(|one| one.at() == at) {
                Some(Watched::Stream(_, stream)) => stream.hear(found.revents),
                Some(Watched::Epoll(..)) => {
                    entry.revents |= found.revents & entry.events;
                    is_ready |= entry.revents != 0;
                }
                None => {
                    entry.revents = found.revents;
                    is_ready |= found.revents != 0;
                }
            }
        }
        Ok(is_ready)
    }

    /// Sleeps in the kernel. Whether something is ready; if not, it is time to look again.
    fn sleep(&mut self, deadline: &Deadline, signals: usize) -> Result<bool, Errno> {
        let streams = |watched: &[Watched], each: &mut dyn FnMut(usize, &Stream, &Shared)| {
            for one in watched {
                match one {
                    Watched::Stream(at, stream) => {
                        if let Some(shared) = stream.live() {
                            each(*at, stream, shared);
                        }
                    }
                    Watched::Epoll(..) => {}
                }
            }
        };
        let (watched, mut is_quiet) = (std::mem::take(&mut self.watched), vec![true; self.fds.len()]);
        streams(&watched, &mut |at, stream, shared| {
            shared.sleeper(true);
            let entry = self.fds[at];
            if entry.events & (libc::POLLOUT | libc::POLLWRNORM) != 0 {
                shared.writer.doze();
            }
            // An epoll that has just looked whether anybody else sleeps may take the flag down once more.
            let is_first = !stream.has_slept.swap(true, Ordering::SeqCst) && stream.watchers.load(Ordering::SeqCst) > 0;
            is_quiet[at] = stream.quieten(entry.fd, shared, 1) && !is_first;
            // Behind that: a doorbell that was taken there, or by somebody else before, has taken the flag down.
            shared.reader.doze();
        });
        for one in &watched {
            if let Watched::Epoll(_, epoll) = one {
                epoll.arm();
            }
        }
        self.watched = watched;
        let mut is_ready = self.check();
        let mut outcome = Ok(false);
        if !is_ready {
            count(Count::Sleeps, 1);
            let left = deadline.left();
            // Where doorbells cannot wake this thread, it looks by itself.
            let mut list = self.for_kernel();
            let mut is_woken = true;
            for one in &self.watched {
                let entry = &mut list[one.at()];
                if !is_quiet[one.at()] {
                    // The end is for all who sleep.
                    entry.events &= libc::POLLRDHUP;
                }
                is_woken &= is_quiet[one.at()] && entry.events != 0;
            }
            let time = if is_woken { left } else { Some(left.map_or(SOON, |left| left.min(SOON))) };
            outcome = match &self.watched[..] {
                [Watched::Stream(at, stream)] if self.is_alone && time.is_none() => {
                    sleep_in_recv(self.fds[*at].fd, stream)
                }
                _ => self.ask_for(list, time, signals),
            };
        }
        let watched = std::mem::take(&mut self.watched);
        streams(&watched, &mut |_, _, shared| {
            // The flag stays as it is: it may be that of another thread by now. At worst a doorbell is rung for nobody.
            shared.sleeper(false);
        });
        for one in &watched {
            if let Watched::Epoll(_, epoll) = one {
                epoll.disarm();
            }
        }
        self.watched = watched;
        let others = outcome?;
        is_ready |= others | self.check();
        Ok(is_ready)
    }
}

/// Sleeps in the kernel's `recv` until a doorbell comes, or the end.
fn sleep_in_recv(fd: RawFd, stream: &Stream) -> Result<bool, Errno> {
    match (sys::wait_for_byte(fd), stream.live()) {
        (Ok(0), _) => stream.hear(libc::POLLRDHUP),
        (Ok(_), _) => stream.hear(libc::POLLIN),
        (Err(Errno::INTR), _) => return Err(Errno::INTR),
        (Err(Errno::AGAIN), _) | (_, None) => {}
        (Err(error), Some(shared)) => stream.fail(shared, error),
    }
    Ok(false)
}

/// What the kernel is asked for one of ours: a doorbell, or the end, unless it has been heard. To wait for what is there already
/// would be no sleep.
fn wake_by(stream: &Stream, wanted: i16) -> i16 {
    let Some(shared) = stream.live() else { return wanted };
    let reads = wanted & (libc::POLLIN | libc::POLLRDNORM) != 0;
    if !shared.receives_here() && !reads {
        return 0;
    }
    let has_ended = stream.has_ended.load(Ordering::Relaxed);
    if has_ended { 0 } else { libc::POLLIN | libc::POLLRDHUP }
}
