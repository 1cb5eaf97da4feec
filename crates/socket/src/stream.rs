//! A connection of this process, under one or more numbers: which way its bytes go.
//!
//! It begins with the kernel. The end that has connected offers shared memory before it does anything else; the end that has
//! accepted looks for it when bytes have come, and before it sends. Each end then says up to which byte its stream goes through
//! the kernel, and writes what follows to the ring. What comes from the kernel after that byte is doorbells: one byte for a sleeper.

use crate::counters::{Count, Reason, count};
use crate::lock::Local;
use crate::meet::{self, Addresses, Left};
use crate::pieces::{Places, Sources};
use crate::shared::{Agreement, End, Shared};
use crate::{counters, sys};
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

const CANDIDATE: u8 = 0;
const LIVE: u8 = 1;
const KERNEL: u8 = 2;

/// The options by which TCP keeps small segments back, and how a doorbell goes at once.
const PROMPT: [(i32, i32); 2] = [(libc::TCP_NODELAY, 1), (libc::TCP_CORK, 0)];

/// What happened at one try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// So many bytes went.
    Moved(usize),
    /// Nothing follows.
    End,
    /// Not now.
    Nothing,
    /// It is the kernel's connection.
    Kernel,
}

/// A connection.
pub(crate) struct Stream {
    pub(crate) end: End,
    state: AtomicU8,
    shared: OnceLock<Shared>,
    /// What the end that has accepted does before there is memory, one thread at a time.
    early: Local<Early>,
    left: Local<Option<Left>>,
    /// Whether this process has sent something, and how often it has received, while the offer was not taken.
    has_sent: AtomicBool,
    received: AtomicU32,
    /// The kernel has said that nothing comes any more, or that both directions are over.
    pub(crate) has_ended: AtomicBool,
    pub(crate) has_hung_up: AtomicBool,
    /// That was heard by receiving: all that came before is there.
    is_finished: AtomicBool,
    /// What the kernel has said to a doorbell, and the program has not heard.
    error: AtomicI32,
    /// The kernel has said that there is something, for an epoll.
    pub(crate) has_news: AtomicBool,
    pub(crate) news: AtomicU64,
    /// The program was told that there is no room.
    pub(crate) was_full: AtomicBool,
    /// Epolls that watch it: they hear of its end.
    pub(crate) watchers: AtomicU32,
    /// Which epolls those are, and under which number each knows it.
    watched: Local<Vec<(RawFd, RawFd)>>,
    /// A thread has slept for it otherwise than by an epoll.
    pub(crate) has_slept: AtomicBool,
    /// A process had it when it forked.
    is_forked: AtomicBool,
    /// Threads that wait for it in the kernel since before it met: they have not said in the memory that they sleep.
    waiting: AtomicU32,
    /// Another process may have such threads.
    is_forked_early: AtomicBool,
    /// They know that it has met.
    is_settled: AtomicBool,
    /// What the program has said of `TCP_NODELAY` and `TCP_CORK`: a doorbell must not wait.
    delays: [AtomicI32; 2],
    /// When it was asked whether the other end lives.
    asked: AtomicU64,
}

/// A thread waits in the kernel for a connection that has not met.
pub(crate) struct Waiting(pub(crate) Arc<Stream>);

impl Drop for Waiting {
    fn drop(&mut self) {
        // In the child of a fork there may be none left to be counted.
        let _ = self.0.waiting.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |count| count.checked_sub(1));
    }
}

/// How often the other end was looked for.
#[derive(Default)]
struct Early {
    looks: u32,
    skipped: u32,
}

impl Stream {
    pub(crate) fn new(end: End) -> Self {
        Self {
            end,
            state: AtomicU8::new(CANDIDATE),
            shared: OnceLock::new(),
            early: Local::new(Early::default()),
            left: Local::new(None),
            has_sent: AtomicBool::new(false),
            received: AtomicU32::new(0),
            has_ended: AtomicBool::new(false),
            has_hung_up: AtomicBool::new(false),
            is_finished: AtomicBool::new(false),
            is_settled: AtomicBool::new(true),
            is_forked: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            is_forked_early: AtomicBool::new(false),
            has_slept: AtomicBool::new(false),
            watched: Local::new(Vec::new()),
            error: AtomicI32::new(0),
            has_news: AtomicBool::new(true),
            news: AtomicU64::new(0),
            was_full: AtomicBool::new(false),
            watchers: AtomicU32::new(0),
            delays: [const { AtomicI32::new(0) }; 2],
            asked: AtomicU64::new(0),
        }
    }

    /// One that has met already, in the process that this one was.
    pub(crate) fn kept(shared: Shared) -> Self {
        let stream = Self::new(shared.end);
        let state = if shared.agreement() == Agreement::Taken { LIVE } else { CANDIDATE };
        stream.state.store(state, Ordering::Relaxed);
        let _ = stream.shared.set(shared);
        stream
    }

    /// Its memory, once both ends have it.
    #[inline]
    pub(crate) fn live(&self) -> Option<&Shared> {
        if self.state.load(Ordering::Acquire) == LIVE { self.shared.get() } else { None }
    }

    /// Its memory, offered or more.
    pub(crate) fn memory(&self) -> Option<&Shared> {
        self.shared.get()
    }

    /// Whether it stays with the kernel.
    #[inline]
    pub(crate) fn is_kernels(&self) -> bool {
        self.state.load(Ordering::Relaxed) == KERNEL
    }

    /// Leaves it to the kernel, unless both ends have the memory. Whether that is so now.
    pub(crate) fn leave(&self, fd: RawFd, reason: Reason) -> bool {
        if self.shared.get().is_some_and(|shared| !shared.withdraw()) {
            return self.is_kernels();
        }
        if self.state.swap(KERNEL, Ordering::AcqRel) != KERNEL {
            *self.left.lock() = None;
            counters::left(&name(fd), reason);
        }
        true
    }

    /// To be called first in everything that the program does with it: offers memory, and notices that an offer was taken.
    #[inline]
    pub(crate) fn look(&self, fd: RawFd) {
        if self.state.load(Ordering::Relaxed) == CANDIDATE {
            match self.end {
                End::Connecting => self.look_slowly(fd),
                End::Accepting if self.is_forked.load(Ordering::Relaxed) => self.join(fd),
                End::Accepting => {}
            }
        }
    }

    /// Another process has it too, and may have taken the offer.
    #[cold]
    fn join(&self, fd: RawFd) {
        let _early = self.early.lock();
        if self.shared.get().is_none()
            && let Err(reason) = self.take(fd)
        {
            self.leave(fd, reason);
        }
    }

    #[cold]
    fn look_slowly(&self, fd: RawFd) {
        match self.shared.get().map(Shared::agreement) {
            Some(Agreement::Offered) => {}
            Some(Agreement::Taken) => self.meet(fd),
            Some(Agreement::Withdrawn) => drop(self.leave(fd, Reason::Short)),
            None => {
                let held = self.early.lock();
                if self.shared.get().is_none() && self.state.load(Ordering::Relaxed) == CANDIDATE {
                    let offered = self.offer(fd);
                    drop(held);
                    if let Err(reason) = offered {
                        self.leave(fd, reason);
                    }
                }
            }
        }
    }

    fn offer(&self, fd: RawFd) -> Result<(), Reason> {
        // Not connected yet.
        let Some(addresses) = Addresses::of(fd) else { return Ok(()) };
        if !addresses.are_near() {
            return Err(Reason::Remote);
        }
        if !sys::is_tcp(fd) {
            return Err(Reason::Protocol);
        }
        let received = received(fd)?;
        let (shared, left) = meet::offer(fd, &addresses, crate::library().config.ring)?;
        shared.begin_behind(received);
        follow_exec(fd, &shared);
        *self.left.lock() = Some(left);
        let _ = self.shared.set(shared);
        Ok(())
    }

    /// Looks for the memory of the end that has connected, after bytes have come (`must_be`) or before something is sent.
    fn find(&self, fd: RawFd, early: &mut Early, must_be: bool) {
        if self.state.load(Ordering::Relaxed) != CANDIDATE || self.shared.get().is_some() {
            return;
        }
        // It may not have been offered yet: fewer and fewer looks.
        if !must_be && early.skipped < (1 << early.looks.min(16)) - 1 {
            early.skipped += 1;
            return;
        }
        (early.looks, early.skipped) = (early.looks + 1, 0);
        match self.take(fd) {
            Ok(true) => {}
            Ok(false) if !must_be => {}
            Ok(false) => drop(self.leave(fd, Reason::Alone)),
            Err(reason) => drop(self.leave(fd, reason)),
        }
    }

    fn take(&self, fd: RawFd) -> Result<bool, Reason> {
        let addresses = Addresses::of(fd).ok_or(Reason::Short)?;
        if !addresses.are_near() {
            return Err(Reason::Remote);
        }
        if !sys::is_tcp(fd) {
            return Err(Reason::Protocol);
        }
        let Some(shared) = meet::find(fd, &addresses)? else { return Ok(false) };
        let cookie = rustix::net::sockopt::socket_cookie(sys::borrow(fd)).map_err(|_| Reason::Kernel)?;
        let is_first = shared.agreement() == Agreement::Offered;
        if is_first {
            match received(fd) {
                Ok(received) => shared.begin_behind(received),
                Err(reason) => {
                    shared.withdraw();
                    return Err(reason);
                }
            }
        }
        // Whoever waits for it in the kernel already cannot say so.
        shared.reader.mark_asleep();
        if !shared.take(cookie) {
            return Err(Reason::Short);
        }
        follow_exec(fd, &shared);
        let _ = self.shared.set(shared);
        self.meet(fd);
        Ok(true)
    }

    /// Both ends have the memory: what is sent from now on goes there.
    fn meet(&self, fd: RawFd) {
        let Some(shared) = self.shared.get() else { return };
        if let Some(_held) = shared.sending.lock()
            && !shared.writer.has_begun()
            && let Some(tcp) = sys::tcp(fd)
        {
            shared.writer.begin(tcp.sent);
        }
        // SeqCst pairs with `wait_early`.
        if self.state.compare_exchange(CANDIDATE, LIVE, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            for ((name, value), said) in PROMPT.into_iter().zip(&self.delays) {
                said.store(sys::tcp_option(fd, name).unwrap_or(0), Ordering::Relaxed);
                sys::set_tcp_option(fd, name, value);
            }
            self.is_settled.store(false, Ordering::Release);
            counters::met(&name(fd));
        }
    }

    /// Whether nobody else can sleep for it by an epoll.
    pub(crate) fn is_alone(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) <= 1
            && !self.has_slept.load(Ordering::SeqCst)
            && !self.is_forked.load(Ordering::Relaxed)
            && !self.is_slept_for_early()
    }

    /// Whether somebody may sleep for it who has not said so in the memory: then nobody says that all are awake.
    pub(crate) fn is_slept_for_early(&self) -> bool {
        self.has_waiting() || self.is_forked_early.load(Ordering::Relaxed)
    }

    fn has_waiting(&self) -> bool {
        // SeqCst pairs with `wait_early`.
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// A thread is about to wait for it in the kernel, unless it has met: then that is done by way of the memory.
    pub(crate) fn wait_early(self: &Arc<Self>) -> Option<Waiting> {
        // SeqCst pairs with `meet` and `has_waiting`: either it is seen here that it has met, or there that this thread waits.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waiting = Waiting(self.clone());
        (self.state.load(Ordering::SeqCst) != LIVE).then_some(waiting)
    }

    /// Another process has it too from now on.
    pub(crate) fn fork(&self) {
        self.is_forked.store(true, Ordering::Relaxed);
        if self.state.load(Ordering::Relaxed) == CANDIDATE {
            self.is_forked_early.store(true, Ordering::Relaxed);
        }
    }

    /// Whether another process may have it.
    pub(crate) fn has_forked(&self) -> bool {
        self.is_forked.load(Ordering::Relaxed)
    }

    /// This is the other process: the threads of its parent are not here.
    pub(crate) fn begin_child(&self) {
        self.waiting.store(0, Ordering::Relaxed);
    }

    /// What the program has said of an option by which bytes wait for others, if it is one, and the connection has met.
    pub(crate) fn delay(&self, name: i32) -> Option<&AtomicI32> {
        self.live()?;
        PROMPT.into_iter().zip(&self.delays).find(|((prompt, _), _)| *prompt == name).map(|(_, said)| said)
    }

    /// Tells the epolls that watch it that it has met. To be called without any lock.
    #[inline]
    pub(crate) fn settle(&self) {
        if !self.is_settled.load(Ordering::Relaxed) && !self.is_settled.swap(true, Ordering::AcqRel) {
            let watched = self.watched.lock().clone();
            for (epoll, fd) in watched {
                if let Some(set) = crate::table::epoll(epoll) {
                    set.met(epoll, fd);
                }
            }
        }
    }

    /// An epoll watches it under this number, or does no more.
    pub(crate) fn watch(&self, epoll: RawFd, fd: RawFd, begins: bool) {
        let mut watched = self.watched.lock();
        watched.retain(|&other| other != (epoll, fd));
        if begins {
            watched.push((epoll, fd));
        }
        self.watchers.store(watched.len() as u32, Ordering::Relaxed);
    }

    /// The number is closed: the epolls that watch it under that number forget it.
    pub(crate) fn unwatch(&self, fd: RawFd) {
        let watched = self.watched.lock().clone();
        for (epoll, _) in watched.into_iter().filter(|&(_, other)| other == fd) {
            if let Some(set) = crate::table::epoll(epoll) {
                set.remove(epoll, fd);
            }
            self.watch(epoll, fd, false);
        }
    }

    /// Receives what is there, or looks at it (`MSG_PEEK`).
    pub(crate) fn receive(&self, fd: RawFd, to: &mut Places<'_, '_>, flags: i32) -> Result<Step, Errno> {
        self.look(fd);
        let Some(shared) = self.shared.get() else {
            let mut early = self.early.lock();
            if self.is_kernels() || self.shared.get().is_some() {
                drop(early);
                return if self.is_kernels() { Ok(Step::Kernel) } else { self.receive(fd, to, flags) };
            }
            let count = match sys::receive(fd, to.rest(), flags) {
                Ok(count) => count,
                Err(Errno::AGAIN) => return Ok(Step::Nothing),
                Err(error) => return Err(error),
            };
            // What was only seen has not been taken from the kernel, and is counted when it is.
            self.find(fd, &mut early, true);
            return Ok(moved(count));
        };
        // A signal handler has interrupted who receives: to wait for him would be for ever.
        let Some(_held) = shared.receiving.lock() else { return Err(Errno::AGAIN) };
        if self.is_kernels() {
            return Ok(Step::Kernel);
        }
        if !shared.receives_here()
            && let Some(step) = self.receive_from_kernel(fd, shared, to, flags)?
        {
            return Ok(match step {
                Step::Moved(count) => Step::Moved(count + self.receive_more(fd, shared, to, flags, count)?),
                step => step,
            });
        }
        self.receive_here(fd, shared, to, flags)
    }

    /// While the other end has not begun with the ring, or what it sent before has not been received. `None`: it was only doorbells.
    fn receive_from_kernel(
        &self,
        fd: RawFd,
        shared: &Shared,
        to: &mut Places<'_, '_>,
        flags: i32,
    ) -> Result<Option<Step>, Errno> {
        let count = match sys::receive(fd, to.rest(), flags) {
            Ok(0) => {
                self.finish(0);
                return Ok(if shared.reader.before().is_some() { None } else { Some(Step::End) });
            }
            Ok(count) => count,
            Err(Errno::AGAIN) => {
                self.has_news.store(false, Ordering::Relaxed);
                return Ok(Some(Step::Nothing));
            }
            Err(error) => return Err(error),
        };
        let ours = shared.of_program(count);
        if flags & libc::MSG_PEEK == 0 {
            shared.count_from_kernel(ours);
            self.count_bells(shared, count - ours);
        }
        if shared.agreement() == Agreement::Offered {
            self.count_answer(fd);
        }
        Ok((ours > 0).then_some(Step::Moved(ours)))
    }

    /// Behind the last bytes from the kernel, of which there were `count`, the first of the ring.
    fn receive_more(
        &self,
        fd: RawFd,
        shared: &Shared,
        to: &mut Places<'_, '_>,
        flags: i32,
        count: usize,
    ) -> Result<usize, Errno> {
        let seen = if flags & libc::MSG_PEEK != 0 { count as u64 } else { 0 };
        if shared.reader.before().is_none_or(|before| shared.from_kernel.load(Ordering::Relaxed) + seen < before) {
            return Ok(0);
        }
        let more = to.behind(count, |to| to.take(shared, flags)).map_err(|_| malformed())?;
        self.count_received(fd, shared, flags, more);
        Ok(more)
    }

    fn count_received(&self, fd: RawFd, shared: &Shared, flags: i32, count: usize) {
        if count > 0 && flags & libc::MSG_PEEK == 0 {
            counters::count(Count::Received, count as u64);
            if shared.reader.must_wake() {
                self.ring(fd, shared);
            }
        }
    }

    /// Something came the usual way. An end that has the library has looked for the offer before it answers.
    fn count_answer(&self, fd: RawFd) {
        let most = if self.has_sent.load(Ordering::Relaxed) { 4 } else { 64 };
        if self.received.fetch_add(1, Ordering::Relaxed) >= most {
            self.leave(fd, Reason::Alone);
        }
    }

    fn receive_here(&self, fd: RawFd, shared: &Shared, to: &mut Places<'_, '_>, flags: i32) -> Result<Step, Errno> {
        for is_last in [false, true] {
            // Before the bytes are looked at: what was written before the end is there.
            let has_ended = shared.reader.has_ended() || self.is_finished.load(Ordering::Acquire);
            let count = to.take(shared, flags).map_err(|_| malformed())?;
            if count > 0 {
                self.count_received(fd, shared, flags, count);
                return Ok(Step::Moved(count));
            }
            if has_ended {
                break;
            }
            // Whoever watches is told by the kernel, and need not ask each time.
            let is_watched = self.watchers.load(Ordering::Relaxed) > 0;
            if is_watched && !self.has_ended.load(Ordering::Relaxed) {
                self.ask_now_and_then(fd);
            }
            if is_last || is_watched && !self.has_ended.load(Ordering::Relaxed) {
                return Ok(Step::Nothing);
            }
            // A doorbell that lies there may be for somebody who sleeps; the end is for all.
            if shared.sleepers() > 0 {
                self.ask_kernel(fd);
            }
            if shared.sleepers() == 0 || self.has_ended.load(Ordering::Relaxed) {
                self.take_bells(fd, shared);
            }
            if !self.is_finished.load(Ordering::Acquire) {
                return Ok(Step::Nothing);
            }
        }
        match self.error.swap(0, Ordering::Relaxed) {
            0 => Ok(Step::End),
            error => Err(Errno::from_raw_os_error(error)),
        }
    }

    /// So many bytes came as doorbells. There are no more doorbells than were rung.
    fn count_bells(&self, shared: &Shared, count: usize) {
        let bells = shared.reader.bells().min(count as u64);
        shared.reader.count_taken(bells);
        counters::count(Count::Stray, count as u64 - bells);
    }

    /// Takes doorbells out of the kernel, and hears there of the end. By the holder of `receiving`, once all else was received from
    /// the kernel.
    fn take_bells(&self, fd: RawFd, shared: &Shared) {
        // No more than there can be: the other end may send what it wants.
        for _ in 0..64 {
            let mut bytes = [0; 64];
            match sys::receive(fd, &mut [rustix::io::IoSliceMut::new(&mut bytes)], 0) {
                Ok(0) => self.finish(0),
                Ok(count) => {
                    self.count_bells(shared, count);
                    // Behind the last one may be the end, which is asked for when something says so.
                    if shared.reader.bells() > 0 || self.has_ended.load(Ordering::Relaxed) {
                        continue;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => self.fail(shared, error),
            }
            return;
        }
    }

    /// The kernel has said that the connection is over, by an error, which is the program's unless only a doorbell was left.
    pub(crate) fn fail(&self, shared: &Shared, error: Errno) {
        let is_ours = error == Errno::CONNRESET && !shared.was_reset();
        self.finish(if is_ours { 0 } else { error.raw_os_error() });
    }

    /// The kernel has said that nothing comes any more.
    fn finish(&self, error: i32) {
        if error != 0 {
            self.error.store(error, Ordering::Relaxed);
            self.has_hung_up.store(true, Ordering::Relaxed);
        }
        self.has_ended.store(true, Ordering::Release);
        self.is_finished.store(true, Ordering::Release);
    }

    /// Rings the doorbell of the other end, which has said that it sleeps.
    pub(crate) fn ring(&self, fd: RawFd, shared: &Shared) {
        shared.writer.count_bell();
        self.ring_counted(fd, shared);
    }

    fn ring_counted(&self, fd: RawFd, shared: &Shared) {
        count(Count::Bells, 1);
        match sys::send(fd, &[rustix::io::IoSlice::new(&[0])], libc::MSG_NOSIGNAL) {
            // No room: as much waits at the other end, which is awake by that.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(Errno::PIPE) => self.has_hung_up.store(true, Ordering::Relaxed),
            Err(error) => {
                self.has_hung_up.store(true, Ordering::Relaxed);
                if error != Errno::CONNRESET || shared.was_reset() {
                    self.error.store(error.raw_os_error(), Ordering::Relaxed);
                }
            }
        }
    }

    /// Sends what there is room for.
    pub(crate) fn send(&self, fd: RawFd, from: &Sources<'_, '_>, flags: i32) -> Result<Step, Errno> {
        self.look(fd);
        let Some(shared) = self.shared.get() else {
            let mut early = self.early.lock();
            self.find(fd, &mut early, false);
            if self.is_kernels() {
                return Ok(Step::Kernel);
            }
            if self.shared.get().is_none() {
                return send_to_kernel(fd, from, flags);
            }
            drop(early);
            return self.send(fd, from, flags);
        };
        // A signal handler has interrupted who sends.
        let Some(_held) = shared.sending.lock() else { return Err(Errno::AGAIN) };
        if self.is_kernels() {
            return Ok(Step::Kernel);
        }
        if !shared.writer.has_begun() {
            self.has_sent.store(true, Ordering::Relaxed);
            return send_to_kernel(fd, from, flags);
        }
        if shared.writer.has_ended() {
            return Err(broken(flags));
        }
        self.ask_whether_it_lives(fd, shared, flags)?;
        let mut count = from.put(shared).map_err(|_| malformed())?;
        if count == 0 && !self.is_full(shared) {
            count = from.put(shared).map_err(|_| malformed())?;
        }
        if count == 0 {
            return Ok(Step::Nothing);
        }
        counters::count(Count::Sent, count as u64);
        if shared.writer.must_wake() {
            self.ring_counted(fd, shared);
        }
        Ok(Step::Moved(count))
    }

    /// There was no room, and whoever watches is to hear of new room: an epoll may sleep already, from when there was room. Whether
    /// there still is none.
    pub(crate) fn is_full(&self, shared: &Shared) -> bool {
        self.was_full.store(true, Ordering::Relaxed);
        if self.watchers.load(Ordering::Relaxed) == 0 {
            return true;
        }
        shared.writer.doze();
        shared.writer.room().unwrap_or(0) == 0
    }

    /// Sends to the kernel what a connection that is left to it has not sent.
    pub(crate) fn send_rest(&self, fd: RawFd, from: &Sources<'_, '_>, flags: i32) -> Result<usize, Errno> {
        sys::send(fd, from.rest(&mut Vec::new()), flags)
    }

    /// An end that has gone reads nothing. Asked where something is unread, once in a while; an error is the kernel's own.
    fn ask_whether_it_lives(&self, fd: RawFd, shared: &Shared, flags: i32) -> Result<(), Errno> {
        if !self.has_ended.load(Ordering::Relaxed) && !self.has_hung_up.load(Ordering::Relaxed) {
            if shared.writer.unread().map_err(|_| malformed())? == 0 {
                return Ok(());
            }
            if !self.ask_now_and_then(fd) {
                return Ok(());
            }
        }
        match self.error.swap(0, Ordering::Relaxed) {
            0 => {}
            error => return Err(Errno::from_raw_os_error(error)),
        }
        if self.has_ended.load(Ordering::Relaxed) || self.has_hung_up.load(Ordering::Relaxed) {
            // A byte for nobody: the kernel says what it says to such.
            shared.writer.count_bell();
            sys::send(fd, &[rustix::io::IoSlice::new(&[0])], flags & libc::MSG_NOSIGNAL)?;
        }
        Ok(())
    }

    /// Asks the kernel whether the connection is over.
    pub(crate) fn ask_kernel(&self, fd: RawFd) {
        let mut entry = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
        if sys::poll(&mut entry, Some(std::time::Duration::ZERO), 0).is_ok() {
            self.hear(entry[0].revents);
        }
    }

    /// The same, if that was not done just now. Whether it was done.
    fn ask_now_and_then(&self, fd: RawFd) -> bool {
        let now = milliseconds();
        let is_due = self.asked.swap(now, Ordering::Relaxed) != now;
        if is_due {
            self.ask_kernel(fd);
        }
        is_due
    }

    /// What the kernel has said, in the words of `poll`.
    pub(crate) fn hear(&self, events: i16) {
        if events & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0 {
            self.has_ended.store(true, Ordering::Release);
        }
        if events & (libc::POLLHUP | libc::POLLERR) != 0 {
            self.has_hung_up.store(true, Ordering::Release);
        }
        if events & libc::POLLIN != 0 {
            self.has_news.store(true, Ordering::Relaxed);
        }
    }

    /// Ends what this end sends. Whether the kernel is to be told, which ends what comes too.
    pub(crate) fn shut_down(&self, fd: RawFd, how: i32) -> Option<i32> {
        self.look(fd);
        // The kernel ends it, and no doorbell could follow.
        self.leave(fd, Reason::Short);
        self.look(fd);
        let shared = self.live()?;
        if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
            let _held = shared.sending.lock();
            shared.writer.end();
            if shared.writer.must_wake() {
                self.ring_counted(fd, shared);
            }
        }
        (how == libc::SHUT_WR).then_some(0)
    }

    /// Before the program closes its last number: what is left in the kernel would end the connection as an error.
    pub(crate) fn before_close(&self, fd: RawFd) {
        let Some(shared) = self.live() else { return };
        if rustix::net::sockopt::socket_linger(sys::borrow(fd)) == Ok(Some(std::time::Duration::ZERO)) {
            shared.reset();
        }
        let Some(_held) = shared.receiving.lock() else { return };
        let is_quiet = shared.sleepers() == 0 && shared.reader.available() == Ok(0);
        if is_quiet && shared.receives_here() && shared.reader.bells() > 0 {
            self.take_bells(fd, shared);
        }
    }

    /// What `poll` says of a connection that has met.
    pub(crate) fn events(&self, fd: RawFd, shared: &Shared) -> i16 {
        let mut events = 0;
        let ended = shared.reader.has_ended();
        if ended {
            events |= libc::POLLRDHUP;
        }
        if shared.receives_here() {
            let has_ended = ended || self.has_ended.load(Ordering::Acquire);
            if shared.reader.available() != Ok(0) {
                events |= libc::POLLIN;
            }
            if has_ended {
                events |= libc::POLLIN | libc::POLLRDHUP;
            }
        } else if self.has_news.load(Ordering::Relaxed) {
            events |= self.kernel_events(fd, libc::POLLIN | libc::POLLRDHUP);
            if events & libc::POLLIN == 0 {
                self.has_news.store(false, Ordering::Relaxed);
            }
        }
        if !shared.writer.has_begun() {
            events |= self.kernel_events(fd, libc::POLLOUT);
        } else if shared.writer.has_ended() || shared.writer.has_much_room() != Ok(false) {
            events |= libc::POLLOUT;
        }
        if self.error.load(Ordering::Relaxed) != 0 {
            events |= libc::POLLERR | libc::POLLHUP | libc::POLLIN | libc::POLLOUT;
        }
        let is_over = (ended || self.has_ended.load(Ordering::Relaxed)) && shared.writer.has_ended();
        if self.has_hung_up.load(Ordering::Relaxed) || is_over {
            events |= libc::POLLHUP | libc::POLLIN | libc::POLLOUT;
        }
        events
    }

    fn kernel_events(&self, fd: RawFd, events: i16) -> i16 {
        let mut entry = [libc::pollfd { fd, events, revents: 0 }];
        match sys::poll(&mut entry, Some(std::time::Duration::ZERO), 0) {
            Ok(_) => entry[0].revents,
            Err(_) => 0,
        }
    }

    /// An error that a doorbell has met, for `SO_ERROR`.
    pub(crate) fn take_error(&self) -> i32 {
        self.error.swap(0, Ordering::Relaxed)
    }

    /// Before a thread sleeps in the kernel: doorbells that lie there would wake it. Whether it may sleep for long; where others of
    /// this end sleep too, the doorbell may be theirs.
    /// `mine` is how many sleepers the caller is counted as. Whoever is counted and has been here hears of every doorbell after that:
    /// others take none while somebody sleeps, and what was taken before shows in what is looked at next.
    pub(crate) fn quieten(&self, fd: RawFd, shared: &Shared, mine: u64) -> bool {
        let Some(_held) = shared.receiving.lock() else { return false };
        // What the kernel has said may be a byte that is no doorbell.
        let is_here = shared.receives_here();
        let has_news = is_here && self.has_news.swap(false, Ordering::Relaxed);
        if !is_here || shared.reader.bells() == 0 && !has_news {
            return true;
        }
        if shared.sleepers() > mine || self.has_waiting() || shared.reader.available() != Ok(0) {
            return false;
        }
        self.take_bells(fd, shared);
        true
    }
}

/// Whether a program that this one becomes has the connection, it is to have the memory too.
pub(crate) fn follow_exec(fd: RawFd, shared: &Shared) {
    if rustix::io::fcntl_getfd(sys::borrow(fd)) == Ok(rustix::io::FdFlags::empty()) {
        let _ = rustix::io::fcntl_setfd(sys::borrow(shared.file()), rustix::io::FdFlags::empty());
    }
}

/// Bytes that the program has received from the kernel so far.
fn received(fd: RawFd) -> Result<u64, Reason> {
    // What comes while we look is in one number and not in the other.
    for _ in 0..100 {
        let before = sys::tcp(fd).ok_or(Reason::Kernel)?;
        let unread = sys::unread(fd).ok_or(Reason::Kernel)?;
        let after = sys::tcp(fd).ok_or(Reason::Kernel)?;
        if !after.is_established {
            return Err(Reason::Short);
        }
        if before.received == after.received {
            return Ok(after.received.saturating_sub(unread));
        }
    }
    Err(Reason::Short)
}

fn send_to_kernel(fd: RawFd, from: &Sources<'_, '_>, flags: i32) -> Result<Step, Errno> {
    let mut rest = Vec::new();
    match sys::send(fd, from.rest(&mut rest), flags) {
        Ok(count) => Ok(Step::Moved(count)),
        Err(Errno::AGAIN) => Ok(Step::Nothing),
        Err(error) => Err(error),
    }
}

fn moved(count: usize) -> Step {
    if count == 0 { Step::End } else { Step::Moved(count) }
}

fn malformed() -> Errno {
    count(Count::Malformed, 1);
    Errno::CONNRESET
}

/// What who has said that nothing follows is told when more follows.
fn broken(flags: i32) -> Errno {
    if flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise_sigpipe();
    }
    Errno::PIPE
}

fn milliseconds() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

fn name(fd: RawFd) -> String {
    Addresses::of(fd).map_or_else(|| "?".to_owned(), |addresses| addresses.to_string())
}
