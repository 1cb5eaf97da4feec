//! What is ready at sockets and bells, and the end of programs.

use super::{AGAIN, MOST_CLOSING, MOST_STRANGERS, REQUESTS, Worker};
use crate::bell;
use crate::clients::Client;
use millrace_callers::Closer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::time::Instant;

/// Programs that are hung up on at a look.
const HANG_UPS: usize = 2;

impl Worker {
    /// Waits until something comes by a socket, a bell, or the link (`wakes`), at most so long; takes a request of each program.
    pub(super) fn look(&mut self, most: Option<&Timespec>, wakes: Option<&OwnedFd>) {
        let now = Instant::now();
        self.full = self.full.filter(|until| *until > now);
        self.scarce = self.scarce.filter(|until| *until > now);
        self.clients.iter_mut().for_each(|client| client.is_over |= client.is_late(now));
        self.hang_up_some();
        self.find_threads(now);
        let unheard = self.unheard();
        let listens = if self.full.is_some() || self.strangers.waits_for(MOST_STRANGERS) {
            PollFlags::empty()
        } else {
            PollFlags::IN
        };
        let mut fds = vec![PollFd::new(&self.listener, listens)];
        for client in &self.clients {
            let is_heard = self.scarce.is_none() && !unheard.contains(&client.caller.uid);
            let wants = if is_heard { client.wants() } else { PollFlags::RDHUP };
            fds.push(PollFd::new(&client.socket, wants));
            // Three each; the socket, of which nothing is asked, stands for what is missing.
            let or_socket = |fd| match fd {
                Some(fd) => (fd, PollFlags::IN),
                None => (&*client.socket, PollFlags::empty()),
            };
            for fd in [client.ended.as_ref(), client.met.as_ref().map(|met| &met.to_card)] {
                let (fd, wanted) = or_socket(fd);
                fds.push(PollFd::new(fd, wanted));
            }
        }
        // Only to be woken.
        fds.extend([Some(&*self.bell), wakes].into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)));
        if !matches!(poll(&mut fds, most), Ok(1..)) {
            return;
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        let (began, count, mut last) = (Instant::now(), self.clients.len(), 0);
        for step in 0..count {
            let at = (self.first + step) % count;
            last = at + 1;
            let ready = &ready[1 + 3 * at..][..3];
            let client = &mut self.clients[at];
            if let Some(met) = client.met.as_ref().filter(|_| ready[2].contains(PollFlags::IN)) {
                bell::heard_at_card(&met.to_card);
            }
            let has_ended = client.ended.is_some() && ready[1].contains(PollFlags::IN);
            // What is not looked for now has not come: then it has hung up.
            client.is_over |= has_ended || !ready[0].is_empty() && !ready[0].contains(PollFlags::IN);
            if !client.is_over && ready[0].contains(PollFlags::IN) {
                let is_served = self.serve(at).is_ok();
                self.clients[at].is_over |= !is_served;
                // Those who wait for the engine are not to wait for many that ask.
                if began.elapsed() > REQUESTS {
                    break;
                }
            }
        }
        self.first = last;
        self.hang_up_some();
        if ready[0].contains(PollFlags::IN) {
            self.accept();
        }
    }

    /// Its place is free for another one.
    pub(super) fn remove(&mut self, at: usize) -> Client {
        let client = self.clients.swap_remove(at);
        self.waiting -= usize::from(client.waiting.is_some());
        self.full = None;
        client
    }

    /// Hangs up on some of those that it is to be hung up on: destroying what one has takes its time.
    fn hang_up_some(&mut self) {
        for _ in 0..HANG_UPS {
            let Some(at) = self.clients.iter().position(|client| client.is_over) else { return };
            self.hang_up(at);
        }
    }

    pub(super) fn hang_up(&mut self, at: usize) {
        let client = self.remove(at);
        let now = self.now();
        let left = client.met.as_ref().and_then(|met| self.service.leave(now, met.number));
        self.graves.push(client.bury(left));
    }

    /// All threads that close, and that which makes text.
    fn closers(&mut self) -> impl Iterator<Item = &mut Closer> {
        let clients = self.clients.iter_mut().map(|client| &mut client.closer);
        let graves = self.graves.iter_mut().map(|grave| &mut grave.closer);
        clients.chain(graves).chain([&mut self.strangers, &mut self.scribe])
    }

    /// Whether something waits for a thread that the machine did not have.
    pub(super) fn is_stuck(&mut self) -> bool {
        self.closers().any(|closer| closer.is_stuck())
    }

    /// It may have one now: otherwise what is to be closed would wait for ever, with the place of its program.
    fn find_threads(&mut self, now: Instant) {
        if self.threadless.is_none_or(|until| until <= now) {
            let has_all = self.closers().all(Closer::try_again);
            self.threadless = (!has_all).then(|| now + AGAIN);
        }
    }

    /// Whether so many descriptors of other users than the owner wait to be closed.
    pub(super) fn is_any_closing(&self, most: usize) -> bool {
        self.closing().map(|(_, count)| count).sum::<usize>() >= most
    }

    /// Of users other than the owner: what waits to be closed of each of their programs.
    fn closing(&self) -> impl Iterator<Item = (u32, usize)> {
        let clients = self.clients.iter().map(|client| (client.caller, client.closer.count()));
        let graves = self.graves.iter().map(|grave| (grave.caller, grave.closer.count()));
        clients.chain(graves).filter(|(caller, _)| caller.is_limited).map(|(caller, count)| (caller.uid, count))
    }

    /// Users who are not listened to, because too much of theirs waits to be closed.
    fn unheard(&self) -> Vec<u32> {
        if !self.is_any_closing(MOST_CLOSING) {
            return Vec::new();
        }
        let mut users: Vec<u32> = self.closing().map(|(uid, _)| uid).collect();
        users.sort_unstable();
        users.dedup();
        let of = |user: u32| self.closing().filter(|(uid, _)| *uid == user).map(|(_, count)| count).sum::<usize>();
        users.retain(|uid| of(*uid) >= MOST_CLOSING);
        users
    }
}
