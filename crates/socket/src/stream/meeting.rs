//! From the kernel to the rings: offering, looking for an offer, and the moment from which both ends have the memory.

use super::{CANDIDATE, Early, LIVE, PROMPT, Stream, follow_exec};
use crate::counters::{self, Reason};
use crate::meet::{self, Addresses};
use crate::shared::{Agreement, End, Shared};
use crate::sys;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

impl Stream {
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
    pub(super) fn find(&self, fd: RawFd, early: &mut Early, must_be: bool) {
        // Only the end that has accepted looks.
        if self.end == End::Connecting || self.state.load(Ordering::Relaxed) != CANDIDATE || self.shared.get().is_some()
        {
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
            if rustix::fs::fcntl_getfl(sys::borrow(fd)).is_ok_and(|flags| flags.bits() & libc::O_ASYNC as u32 != 0) {
                self.signals();
            }
            self.is_settled.store(false, Ordering::Release);
            counters::met(&name(fd));
        }
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

pub(super) fn name(fd: RawFd) -> String {
    Addresses::of(fd).map_or_else(|| "?".to_owned(), |addresses| addresses.to_string())
}
