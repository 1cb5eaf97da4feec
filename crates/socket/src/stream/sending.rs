//! Sending: to the kernel until both ends have the memory, then to the ring; and ringing the doorbell of who sleeps.

use super::{Step, Stream, malformed};
use crate::counters::{self, Count, Reason};
use crate::pieces::Sources;
use crate::shared::Shared;
use crate::sys;
use rustix::io::{Errno, IoSlice};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

impl Stream {
    /// Rings the doorbell of the other end, which has said that it sleeps.
    pub(crate) fn ring(&self, fd: RawFd, shared: &Shared) {
        shared.writer.count_bell();
        self.ring_counted(fd, shared);
    }

    fn ring_counted(&self, fd: RawFd, shared: &Shared) {
        counters::count(Count::Bells, 1);
        match sys::send(fd, &[IoSlice::new(&[0])], libc::MSG_NOSIGNAL) {
            // No room: as much waits at the other end, which is awake by that.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(Errno::PIPE) => self.hang_up(),
            Err(error) => {
                self.hang_up();
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
        if self.watchers.load(Ordering::Relaxed) == 0 && !self.is_async.load(Ordering::Relaxed) {
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
            sys::send(fd, &[IoSlice::new(&[0])], flags & libc::MSG_NOSIGNAL)?;
        }
        Ok(())
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
}

fn send_to_kernel(fd: RawFd, from: &Sources<'_, '_>, flags: i32) -> Result<Step, Errno> {
    let mut rest = Vec::new();
    match sys::send(fd, from.rest(&mut rest), flags) {
        Ok(count) => Ok(Step::Moved(count)),
        Err(Errno::AGAIN) => Ok(Step::Nothing),
        Err(error) => Err(error),
    }
}

/// What who has said that nothing follows is told when more follows.
fn broken(flags: i32) -> Errno {
    if flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise_sigpipe();
    }
    Errno::PIPE
}
