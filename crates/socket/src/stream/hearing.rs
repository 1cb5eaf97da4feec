//! What the kernel says of a connection that has met, and what `poll` and its kind say then.

use super::Stream;
use crate::shared::Shared;
use crate::sys;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

impl Stream {
    /// Asks the kernel whether the connection is over.
    pub(crate) fn ask_kernel(&self, fd: RawFd) {
        let mut entry = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
        if sys::poll(&mut entry, Some(std::time::Duration::ZERO), 0).is_ok() {
            self.hear(entry[0].revents);
        }
    }

    /// The same, if that was not done just now. Whether it was done.
    pub(super) fn ask_now_and_then(&self, fd: RawFd) -> bool {
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
            self.hang_up();
        }
        if events & libc::POLLIN != 0 {
            self.has_news.store(true, Ordering::Relaxed);
        }
    }

    /// The kernel has said that both directions are over. If only a doorbell has met nobody, which programs know nothing of, the other
    /// end has closed after it had read everything: nothing comes any more, and what is in the ring is there.
    pub(super) fn hang_up(&self) {
        let by_doorbell = |shared: &Shared| shared.receives_here() && shared.writer.has_begun() && !shared.was_reset();
        let over = if self.live().is_some_and(by_doorbell) { &self.is_cut } else { &self.has_hung_up };
        over.store(true, Ordering::Release);
        self.has_ended.store(true, Ordering::Release);
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
}

fn milliseconds() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}
