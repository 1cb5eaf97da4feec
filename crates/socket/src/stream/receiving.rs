//! Receiving: from the kernel what went there, then from the ring; and taking doorbells away.

use super::{Step, Stream, malformed};
use crate::counters::{self, Count, Reason};
use crate::pieces::Places;
use crate::shared::{Agreement, Shared};
use crate::sys;
use rustix::io::{Errno, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

impl Stream {
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
        if self.is_async.load(Ordering::Relaxed) {
            // What is written after this is said by a doorbell.
            shared.reader.doze();
        }
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
            match sys::receive(fd, &mut [IoSliceMut::new(&mut bytes)], 0) {
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

fn moved(count: usize) -> Step {
    if count == 0 { Step::End } else { Step::Moved(count) }
}
