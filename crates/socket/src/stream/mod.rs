//! A connection of this process, under one or more numbers: which way its bytes go.
//!
//! It begins with the kernel. The end that has connected offers shared memory before it does anything else; the end that has
//! accepted looks for it when bytes have come, and before it sends. Each end then says up to which byte its stream goes through
//! the kernel, and writes what follows to the ring. What comes from the kernel after that byte is doorbells: one byte for a sleeper.
//!
//! Here is what a connection is, and who watches or waits for it; `meeting`: from the kernel to the rings; `receiving` and `sending`;
//! `hearing`: what the kernel says of a connection that has met, and what `poll` says then.

mod hearing;
mod meeting;
mod receiving;
mod sending;

use crate::counters::{self, Count, Reason, count};
use crate::epoll::Epoll;
use crate::lock::Local;
use crate::meet::Left;
use crate::shared::{Agreement, End, Shared};
use crate::sys;
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

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
    /// The program has connected it, or accepted it. Before that it is a socket that may be connected yet.
    has_begun: AtomicBool,
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
    /// The kernel has said that both directions are over, and to the program only what comes is.
    pub(crate) is_cut: AtomicBool,
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
    /// Which epolls those are, whatever their own numbers, and under which number each knows it.
    watched: Local<Vec<(Weak<Epoll>, RawFd)>>,
    /// A thread has slept for it otherwise than by an epoll.
    pub(crate) has_slept: AtomicBool,
    /// The program wants a signal (`O_ASYNC`) whenever something comes.
    is_async: AtomicBool,
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

/// A number that is put in an epoll or copied, and is no connection: a socket that may be connected later is known from now on, so
/// that what watches it, and its other numbers, belong to the connection then.
pub(crate) fn foresee(fd: RawFd) {
    if !crate::table::is_used(fd) && sys::is_tcp(fd) && sys::is_unconnected(fd) {
        crate::table::begin_stream(fd, Arc::new(Stream::new(End::Connecting)));
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
            has_begun: AtomicBool::new(false),
            shared: OnceLock::new(),
            early: Local::new(Early::default()),
            left: Local::new(None),
            has_sent: AtomicBool::new(false),
            received: AtomicU32::new(0),
            has_ended: AtomicBool::new(false),
            has_hung_up: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            is_finished: AtomicBool::new(false),
            is_settled: AtomicBool::new(true),
            is_async: AtomicBool::new(false),
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
        stream.has_begun.store(true, Ordering::Relaxed);
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
            if self.has_begun.load(Ordering::Relaxed) {
                counters::left(&meeting::name(fd), reason);
            }
        }
        true
    }

    /// The program has connected or accepted it, which is counted once.
    pub(crate) fn begin(&self, fd: RawFd) {
        if !self.has_begun.swap(true, Ordering::Relaxed) {
            count(Count::Connections, 1);
            if self.is_kernels() {
                counters::left(&meeting::name(fd), Reason::Wanted);
            }
        }
    }

    /// It will never be a connection: it listens.
    pub(crate) fn dismiss(&self) {
        self.state.store(KERNEL, Ordering::Relaxed);
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

    /// The program wants a signal whenever something comes (`O_ASYNC`): the kernel sends it with a doorbell, which is always rung.
    pub(crate) fn signals(&self) {
        self.is_async.store(true, Ordering::Relaxed);
        // No epoll says that nobody sleeps.
        self.has_slept.store(true, Ordering::SeqCst);
        if let Some(shared) = self.live() {
            shared.reader.doze();
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
            for (epoll, fd) in self.watching() {
                epoll.met(fd);
            }
        }
    }

    /// The epolls that watch it, and under which number.
    fn watching(&self) -> Vec<(Arc<Epoll>, RawFd)> {
        let watched = self.watched.lock();
        watched.iter().filter_map(|(epoll, fd)| Some((epoll.upgrade()?, *fd))).collect()
    }

    /// An epoll watches it under this number.
    pub(crate) fn watch(&self, epoll: &Arc<Epoll>, fd: RawFd) {
        self.watch_otherwise(epoll, fd, Some((Arc::downgrade(epoll), fd)));
    }

    /// An epoll watches it under this number no more.
    pub(crate) fn watch_no_more(&self, epoll: &Epoll, fd: RawFd) {
        self.watch_otherwise(epoll, fd, None);
    }

    fn watch_otherwise(&self, epoll: &Epoll, fd: RawFd, from_now_on: Option<(Weak<Epoll>, RawFd)>) {
        let mut watched = self.watched.lock();
        watched.retain(|(other, number)| *number != fd || !std::ptr::eq(other.as_ptr(), epoll));
        watched.extend(from_now_on);
        self.watchers.store(watched.len() as u32, Ordering::Relaxed);
    }

    /// The socket is this connection no more, and will be another one: the epolls that watch it under that number go on with that.
    pub(crate) fn hand_on(&self, fd: RawFd, to: &Arc<Self>) {
        for (epoll, _) in self.watching().into_iter().filter(|&(_, other)| other == fd) {
            self.watch_no_more(&epoll, fd);
            if epoll.renew(fd, to) {
                to.watch(&epoll, fd);
            }
        }
    }

    /// The number is closed: the epolls that watch it under that number forget it.
    pub(crate) fn unwatch(&self, fd: RawFd) {
        for (epoll, _) in self.watching().into_iter().filter(|&(_, other)| other == fd) {
            epoll.remove(fd);
            self.watch_no_more(&epoll, fd);
        }
    }
}

/// Whether a program that this one becomes has the connection, it is to have the memory too.
pub(crate) fn follow_exec(fd: RawFd, shared: &Shared) {
    if rustix::io::fcntl_getfd(sys::borrow(fd)) == Ok(rustix::io::FdFlags::empty()) {
        inherit(shared, true);
    }
}

/// Whether a program that this one becomes, or starts, has the memory.
pub(crate) fn inherit(shared: &Shared, has: bool) {
    let flags = if has { rustix::io::FdFlags::empty() } else { rustix::io::FdFlags::CLOEXEC };
    let _ = rustix::io::fcntl_setfd(sys::borrow(shared.file()), flags);
}

fn malformed() -> Errno {
    count(Count::Malformed, 1);
    Errno::CONNRESET
}
