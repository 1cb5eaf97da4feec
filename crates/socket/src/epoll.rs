//! The connections of an epoll.
//!
//! Until a connection has met, the kernel watches it as the program wants, and only the program's word beside it is kept here.
//! Afterwards the kernel watches it for doorbells and its end, edge-triggered, and what the program hears comes from the rings.
//! Those where something has happened lately are *hot*: every wait looks at them. The others have said that they sleep: their
//! doorbell comes by the kernel, and makes them hot. So a wait costs what the busy ones cost, however many there are.

use crate::counters::{Count, count};
use crate::lock::{self, Held, Local};
use crate::poll::Deadline;
use crate::stream::Stream;
use crate::{spin, sys, table};
use millrace_dma::fence;
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The upper half of our words in the kernel: no address, and no number of a file.
const TAG: u64 = 0xa5c3_71e6;

const OUT: u32 = libc::EPOLLOUT as u32;
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
/// What the kernel watches of a connection that has met.
const BELLS: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32 | EDGE;

/// A connection in which nothing happened for so many looks is hot no more.
const COLD: u32 = 2000;
/// So many doorbells may lie in the kernel.
const LYING: u64 = 16;

struct Entry {
    stream: Arc<Stream>,
    events: u32,
    data: u64,
    has_met: bool,
    is_hot: bool,
    /// Reported once, and not wanted again yet (`EPOLLONESHOT`).
    is_off: bool,
    /// The program has taken it out, and the kernel has not been told: programs put it in again for every answer.
    is_out: bool,
    /// Which process did that. What another one has not told the kernel, this one does not either: they share what the kernel watches.
    out_in: u32,
    /// Wanted anew: what is ready is an edge.
    is_fresh: bool,
    /// What had happened when it was reported last.
    seen: (u64, u64, u32, bool),
    idle: u32,
}

impl Entry {
    /// What the program is to hear now.
    fn report(&mut self, fd: RawFd) -> Option<u32> {
        if self.is_off || self.is_out || !self.has_met {
            return None;
        }
        let shared = self.stream.live()?;
        let now = self.stream.events(fd, shared) as u16 as u32 & (self.events | ALWAYS);
        if now == 0 {
            return None;
        }
        if self.events & EDGE != 0 {
            // Only what is watched makes an edge.
            let reads = self.events & libc::EPOLLIN as u32 != 0;
            let came = if reads { (shared.reader.mark(), self.stream.news.load(Ordering::Relaxed)) } else { (0, 0) };
            let has_ended = reads && (shared.reader.has_ended() || self.stream.has_ended.load(Ordering::Relaxed));
            let seen = (came.0, came.1, now & !(OUT | libc::EPOLLIN as u32), has_ended);
            let has_room = now & OUT != 0 && self.stream.was_full.swap(false, Ordering::Relaxed);
            if !self.is_fresh && !has_room && seen == self.seen {
                return None;
            }
            (self.seen, self.is_fresh) = (seen, false);
        }
        self.is_off = self.events & ONCE != 0;
        Some(now)
    }

    /// Says that it sleeps, so that a doorbell is rung.
    fn doze(&self) {
        let Some(shared) = self.stream.live().filter(|_| !self.is_out) else { return };
        shared.reader.mark_asleep();
        if self.events & OUT != 0 && shared.writer.has_much_room() == Ok(false) {
            shared.writer.doze();
        }
    }
}

#[derive(Default)]
struct Set {
    entries: Vec<Option<Box<Entry>>>,
    hot: Vec<RawFd>,
    /// Where the next look begins.
    next: usize,
    met: usize,
    filled: usize,
    looks: u32,
}

impl Set {
    fn get(&mut self, fd: RawFd) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(fd).ok()?)?.as_deref_mut()
    }

    fn heat(&mut self, fd: RawFd) {
        if let Some(entry) = self.get(fd) {
            entry.idle = 0;
            if !entry.is_hot {
                entry.is_hot = true;
                self.hot.push(fd);
            }
        }
    }

    /// Writes what the program is to hear.
    fn scan(&mut self, to: &mut [libc::epoll_event]) -> usize {
        let (mut found, mut at) = (0, 0);
        let all = self.hot.len();
        while at < all && found < to.len() {
            let fd = self.hot[(self.next + at) % all];
            at += 1;
            let Some(entry) = self.get(fd) else { continue };
            match entry.report(fd) {
                Some(events) => {
                    entry.idle = 0;
                    to[found] = libc::epoll_event { events, u64: entry.data };
                    found += 1;
                }
                None => entry.idle += 1,
            }
        }
        if all > 0 {
            self.next = (self.next + at) % all;
        }
        self.looks += 1;
        if self.looks.is_multiple_of(COLD) {
            self.cool();
        }
        found
    }

    /// Connections in which nothing happens are not looked at any more.
    fn cool(&mut self) {
        let Self { entries, hot, .. } = self;
        hot.retain(|&fd| {
            let Some(Some(entry)) = entries.get_mut(fd as usize) else { return false };
            if entry.idle < COLD {
                return true;
            }
            entry.doze();
            // Pairs with the fences of who rings, in `Writer::must_wake` and `Reader::must_wake`.
            fence(Ordering::SeqCst);
            let is_quiet = entry.stream.live().is_none_or(|shared| {
                entry.is_off
                    || entry.is_out
                    || entry.stream.events(fd, shared) as u16 as u32 & (entry.events | ALWAYS) == 0
            });
            entry.is_hot = !is_quiet;
            !is_quiet
        });
    }

    fn remove(&mut self, fd: RawFd) -> Option<Box<Entry>> {
        let entry = self.entries.get_mut(usize::try_from(fd).ok()?)?.take()?;
        self.hot.retain(|&other| other != fd);
        self.met -= usize::from(entry.has_met);
        self.filled -= 1;
        Some(entry)
    }

    fn insert(&mut self, fd: RawFd, entry: Box<Entry>) {
        if self.entries.len() <= fd as usize {
            self.entries.resize_with(fd as usize + 1, || None);
        }
        self.filled += 1;
        self.met += usize::from(entry.has_met);
        self.entries[fd as usize] = Some(entry);
    }
}

impl Entry {
    /// Whether the kernel still watches what this process has taken out.
    fn is_left_behind(&self) -> bool {
        self.is_out && self.out_in == lock::process()
    }
}

/// An epoll with connections in it.
pub(crate) struct Epoll {
    set: Local<Set>,
    sleepers: AtomicU32,
    /// Its numbers, the oldest one first: what a connection has to say to the kernel goes by that.
    numbers: Local<Vec<RawFd>>,
}

fn tagged(fd: RawFd) -> u64 {
    TAG << 32 | fd as u32 as u64
}

/// As `epoll_ctl`. `None` when it is no matter of ours.
pub(crate) fn control(epoll: RawFd, what: i32, fd: RawFd, event: Option<(u32, u64)>) -> Option<Result<(), Errno>> {
    let set = table::epoll(epoll);
    // Without a connection under that number there is no entry: a signal handler may ask for such a one while its thread has the lock.
    let stream = table::stream_of(fd)?;
    match (what, set, event) {
        (libc::EPOLL_CTL_ADD, set, Some((events, data))) => {
            if stream.is_kernels() {
                return None;
            }
            stream.look(fd);
            stream.settle();
            let set = set.unwrap_or_else(|| {
                let new = Arc::new(Epoll::new());
                table::set_epoll(epoll, Some(new.clone()));
                new
            });
            Some(set.add(epoll, fd, stream, events, data))
        }
        (libc::EPOLL_CTL_MOD, Some(set), Some((events, data))) => set.change(epoll, fd, events, data),
        (libc::EPOLL_CTL_DEL, Some(set), _) => set.take_out(epoll, fd),
        _ => None,
    }
}

impl Epoll {
    pub(crate) fn new() -> Self {
        Self { set: Local::new(Set::default()), sleepers: AtomicU32::new(0), numbers: Local::new(Vec::new()) }
    }

    /// It has one more number.
    pub(crate) fn called(&self, epoll: RawFd) {
        self.numbers.lock().push(epoll);
    }

    /// It has that number no more. Whether that was the last one.
    pub(crate) fn uncalled(&self, epoll: RawFd) -> bool {
        let mut numbers = self.numbers.lock();
        numbers.retain(|&number| number != epoll);
        numbers.is_empty()
    }

    fn number(&self) -> Option<RawFd> {
        self.numbers.lock().first().copied()
    }

    fn add(
        self: &Arc<Self>,
        epoll: RawFd,
        fd: RawFd,
        stream: Arc<Stream>,
        events: u32,
        data: u64,
    ) -> Result<(), Errno> {
        if let Some(done) = self.put_back(epoll, &stream, fd, events, data) {
            return done;
        }
        let has_met = stream.live().is_some();
        let watched = if has_met { BELLS } else { events };
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, watched, tagged(fd))?;
        let mut set = self.set.lock();
        set.remove(fd);
        let entry = Entry {
            stream: stream.clone(),
            events,
            data,
            has_met,
            is_hot: false,
            is_off: false,
            is_out: false,
            out_in: 0,
            is_fresh: true,
            seen: (0, 0, 0, false),
            idle: 0,
        };
        set.insert(fd, Box::new(entry));
        if has_met {
            set.heat(fd);
            // Who sleeps has not told this one so: it would ring no doorbell for what lies there.
            self.wake(epoll, &mut set, fd);
        }
        drop(set);
        stream.watch(self, fd);
        // It may have met meanwhile, in another thread.
        if !has_met && stream.live().is_some() {
            self.met(fd);
        }
        Ok(())
    }

    /// Takes a connection out. One that has met stays in the kernel's set until its number is closed.
    fn take_out(&self, epoll: RawFd, fd: RawFd) -> Option<Result<(), Errno>> {
        let mut set = self.set.lock();
        let entry = set.get(fd)?;
        if entry.is_out {
            return Some(Err(Errno::NOENT));
        }
        if entry.has_met && self.sleepers.load(Ordering::SeqCst) == 0 {
            (entry.is_out, entry.out_in) = (true, lock::process());
            return Some(Ok(()));
        }
        let entry = set.remove(fd)?;
        drop(set);
        entry.stream.watch_no_more(self, fd);
        Some(sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0))
    }

    /// Puts back what was taken out. `None`: it is to be added.
    fn put_back(
        &self,
        epoll: RawFd,
        stream: &Arc<Stream>,
        fd: RawFd,
        events: u32,
        data: u64,
    ) -> Option<Result<(), Errno>> {
        let mut set = self.set.lock();
        let entry = set.get(fd)?;
        if !Arc::ptr_eq(&entry.stream, stream) {
            return None;
        }
        if !entry.is_out {
            return Some(Err(Errno::EXIST));
        }
        (entry.events, entry.data, entry.is_off, entry.is_out, entry.is_fresh) = (events, data, false, false, true);
        set.heat(fd);
        self.wake(epoll, &mut set, fd);
        Some(Ok(()))
    }

    fn change(&self, epoll: RawFd, fd: RawFd, events: u32, data: u64) -> Option<Result<(), Errno>> {
        let mut set = self.set.lock();
        let entry = set.get(fd)?;
        if entry.is_out {
            return Some(Err(Errno::NOENT));
        }
        if !entry.has_met
            && let Err(error) = sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, fd, events, tagged(fd))
        {
            return Some(Err(error));
        }
        (entry.events, entry.data, entry.is_off, entry.is_fresh) = (events, data, false, true);
        if entry.has_met {
            set.heat(fd);
            self.wake(epoll, &mut set, fd);
        }
        Some(Ok(()))
    }

    /// Threads that sleep in this epoll look at a connection anew: the kernel tells them of it once more.
    fn wake(&self, epoll: RawFd, set: &mut Held<'_, Set>, fd: RawFd) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            if let Some(entry) = set.get(fd) {
                entry.doze();
            }
            fence(Ordering::SeqCst);
            // Any connection is writable there: at once there is an event, which those threads take.
            let _ = sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, fd, BELLS | OUT, tagged(fd));
        }
    }

    /// A connection has met.
    pub(crate) fn met(&self, fd: RawFd) {
        let Some(epoll) = self.number() else { return };
        let mut set = self.set.lock();
        let Some(entry) = set.get(fd) else { return };
        if entry.has_met || entry.stream.live().is_none() {
            return;
        }
        entry.has_met = true;
        // What the kernel would have said of bytes that came since it spoke last is not known.
        entry.is_fresh |= entry.events & libc::EPOLLIN as u32 != 0;
        if sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, fd, BELLS, tagged(fd)).is_err() {
            // One that is watched exclusively cannot be changed.
            let _ = sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
            let _ = sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, BELLS, tagged(fd));
        }
        set.met += 1;
        set.heat(fd);
        self.wake(epoll, &mut set, fd);
    }

    /// Another connection is to be watched in the place of one that is no more. Whether it is.
    pub(crate) fn renew(&self, fd: RawFd, stream: &Arc<Stream>) -> bool {
        let Some(epoll) = self.number() else { return false };
        let mut set = self.set.lock();
        let Some(mut entry) = set.remove(fd) else { return false };
        if entry.is_out {
            if entry.is_left_behind() {
                let _ = sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
            return false;
        }
        if entry.has_met {
            // One that was reported once is not wanted until the program says so.
            let events = if entry.is_off { 0 } else { entry.events };
            let _ = sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, fd, events, tagged(fd));
        }
        (entry.stream, entry.has_met, entry.is_hot, entry.is_fresh) = (stream.clone(), false, false, true);
        set.insert(fd, entry);
        true
    }

    /// Forgets a connection.
    pub(crate) fn remove(&self, fd: RawFd) {
        let entry = self.set.lock().remove(fd);
        // A copy of the connection's number would keep it in the kernel's set.
        if entry.is_some_and(|entry| entry.is_left_behind())
            && let Some(epoll) = self.number()
        {
            let _ = sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
    }

    /// Its last number is closed: it watches nothing any more.
    pub(crate) fn end(&self) {
        let entries = std::mem::take(&mut *self.set.lock()).entries;
        for (fd, entry) in entries.into_iter().enumerate() {
            if let Some(entry) = entry {
                entry.stream.watch_no_more(self, fd as RawFd);
            }
        }
    }

    /// Whether connections in it have met.
    pub(crate) fn has_met(&self) -> bool {
        self.set.lock().met > 0
    }

    /// Whether the program would hear something.
    pub(crate) fn is_ready(&self) -> bool {
        let mut set = self.set.lock();
        let Set { entries, hot, .. } = &mut *set;
        hot.iter().any(|&fd| {
            let Some(Some(entry)) = entries.get(fd as usize) else { return false };
            let events = |shared| entry.stream.events(fd, shared) as u16 as u32 & (entry.events | ALWAYS);
            !entry.is_off
                && !entry.is_out
                && entry.has_met
                && entry.stream.live().is_some_and(|shared| events(shared) != 0)
        })
    }

    /// All hot ones say that they sleep.
    pub(crate) fn arm(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut set = self.set.lock();
        let Set { entries, hot, .. } = &mut *set;
        for &fd in hot.iter() {
            let Some(Some(entry)) = entries.get(fd as usize) else { continue };
            entry.doze();
            if let Some(shared) = entry.stream.live()
                && shared.reader.bells() >= LYING
            {
                entry.stream.quieten(fd, shared, 0);
            }
        }
        // Pairs with the fences of who rings, in `Writer::must_wake` and `Reader::must_wake`.
        fence(Ordering::SeqCst);
    }

    /// They are awake, unless another thread sleeps for them.
    pub(crate) fn disarm(&self) {
        if self.sleepers.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        let mut set = self.set.lock();
        // One that came meanwhile has said so before it takes the lock.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            return;
        }
        let Set { entries, hot, .. } = &mut *set;
        for &fd in hot.iter() {
            if let Some(Some(entry)) = entries.get(fd as usize)
                && let Some(shared) = entry.stream.live()
                && entry.stream.is_alone()
                && shared.sleepers() == 0
            {
                shared.reader.awake();
            }
        }
    }

    fn scan(&self, to: &mut [libc::epoll_event]) -> usize {
        self.set.lock().scan(to)
    }

    /// A thread is about to sleep in the C library's call, because no connection is in this set. Whether that is so. Then
    /// [`has_slept`](Self::has_slept) is called afterwards; a thread that is cancelled there is counted for ever, and connections are put in
    /// with a word to the kernel that nobody needs.
    pub(crate) fn is_to_sleep_empty(&self) -> bool {
        if self.set.lock().filled > 0 {
            return false;
        }
        // Before it is looked again: who puts a connection in afterwards, under the same lock, sees that somebody sleeps.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let is_empty = self.set.lock().filled == 0;
        if !is_empty {
            self.disarm();
        }
        is_empty
    }

    /// What the kernel has said meanwhile: what of it is the program's stays at the beginning of the list.
    pub(crate) fn has_slept(&self, to: &mut [libc::epoll_event]) -> usize {
        let found = self.sort(to);
        self.disarm();
        found
    }

    /// Asks the kernel.
    fn ask(
        &self,
        epoll: RawFd,
        to: &mut [libc::epoll_event],
        timeout: Option<Duration>,
        signals: usize,
    ) -> Result<usize, Errno> {
        let count = sys::epoll_wait(epoll, to, timeout, signals)?;
        Ok(self.sort(&mut to[..count]))
    }

    /// Of what the kernel has said the program's stays in the list; doorbells make their connections hot.
    fn sort(&self, to: &mut [libc::epoll_event]) -> usize {
        let mut set = self.set.lock();
        let mut found = 0;
        for at in 0..to.len() {
            let (said, data) = (to[at].events, to[at].u64);
            let data = if data >> 32 == TAG {
                let fd = data as u32 as RawFd;
                // What is not known was closed, or is another process's.
                let Some(entry) = set.get(fd) else { continue };
                if entry.is_out {
                    entry.stream.hear(said as i16);
                    continue;
                }
                if entry.has_met {
                    entry.stream.hear(said as i16);
                    // A doorbell is news while it may be bytes; later, the ring says what is new.
                    let may_be_bytes = entry.stream.live().is_some_and(|shared| !shared.receives_here());
                    entry.stream.news.fetch_add(u64::from(may_be_bytes && said & !OUT != 0), Ordering::Relaxed);
                    set.heat(fd);
                    continue;
                }
                (entry.is_off, entry.is_fresh) = (entry.events & ONCE != 0, false);
                entry.data
            } else {
                data
            };
            to[found] = libc::epoll_event { events: said, u64: data };
            found += 1;
        }
        found
    }

    /// As `epoll_pwait`.
    pub(crate) fn wait(
        &self,
        epoll: RawFd,
        to: &mut [libc::epoll_event],
        timeout: Option<Duration>,
        signals: usize,
    ) -> Result<usize, Errno> {
        let deadline = Deadline::new(timeout);
        loop {
            // Others are not to wait for ever behind those that are ours.
            let asks_first = self.has_met() && self.set.lock().looks.is_multiple_of(8);
            let others = if asks_first { self.ask(epoll, to, Some(Duration::ZERO), 0).unwrap_or(0) } else { 0 };
            let found = others + self.scan(&mut to[others..]);
            if found > 0 {
                return Ok(found);
            }
            let has_met = self.has_met();
            let left = deadline.left();
            let is_over = timeout.is_some_and(|time| time.is_zero()) || left.is_some_and(|left| left.is_zero());
            if has_met || is_over {
                let found = self.ask(epoll, to, Some(Duration::ZERO), signals)?;
                let found = found + self.scan(&mut to[found..]);
                if found > 0 || is_over {
                    return Ok(found);
                }
                let looked = spin::until(|turn| {
                    let found = self.scan(to);
                    if found > 0 {
                        return Some(Ok(found));
                    }
                    if turn % 64 != 63 {
                        return None;
                    }
                    // A signal that was handled here ends the call: there is no other word of it.
                    let asked = self.ask(epoll, to, Some(Duration::ZERO), signals);
                    asked.map(|found| (found > 0).then_some(found)).transpose()
                });
                if let Some(outcome) = looked {
                    return outcome;
                }
            }
            self.arm();
            let found = self.scan(to);
            let asked = if found == 0 {
                count(Count::Sleeps, u64::from(has_met));
                self.ask(epoll, to, deadline.left(), signals)
            } else {
                Ok(found)
            };
            self.disarm();
            let found = asked?;
            if found > 0 {
                return Ok(found);
            }
        }
    }
}
