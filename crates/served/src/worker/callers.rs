//! Who is let in, and who is turned away.

use super::{AGAIN, Worker};
use crate::clients::{Client, account_of};
use crate::record;
use crate::wire::Words;
use millrace_callers::Caller;
use millrace_dma::take_descriptors;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::sync::Arc;
use std::time::Instant;

/// Programs at once: each costs the card memory.
const MOST_PROGRAMS: usize = 256;
/// Calls that are accepted at a look: strangers, who are hung up on, may call without end.
const ACCEPTED: usize = 4;
/// Connections of one process at once.
const MOST_OF_PROCESS: usize = 8;

impl Worker {
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            self.graves.retain(|grave| grave.closer.count() > 0);
            if self.clients.len() + self.graves.len() >= MOST_PROGRAMS {
                self.full = Some(Instant::now() + AGAIN);
                return;
            }
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.let_in(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // No descriptors.
                Err(_) => {
                    self.full = Some(Instant::now() + AGAIN);
                    return;
                }
            }
        }
    }

    fn let_in(&mut self, socket: OwnedFd) {
        match Client::new(socket, &self.may) {
            Ok(client) if self.service.is_out(self.now(), account_of(&client.caller)) => {
                self.turn_away(client.socket, Errno::ACCESS)
            }
            Ok(client) if self.has_many(&client.caller) => self.turn_away(client.socket, Errno::USERS),
            Ok(client) => {
                // Its greeting has none, so that it has nothing to wait for.
                let _ = take_descriptors(&*client.socket);
                self.clients.push(client);
            }
            Err(socket) => self.turn_away(Arc::new(socket), Errno::ACCESS),
        }
    }

    /// The engine had to wait for memory of this program. The others of its user could have it wait as well, one after the other.
    pub(super) fn ban(&mut self, caller: Caller) {
        let Caller { pid, uid, is_limited } = caller;
        tracing::warn!(
            pid,
            uid,
            "the RDMA engine had to wait too long for memory of a program, which it serves no more"
        );
        if is_limited {
            self.clients.iter_mut().for_each(|client| client.is_over |= client.caller.uid == uid);
        }
    }

    /// Hangs up, and says why.
    fn turn_away(&mut self, socket: Arc<OwnedFd>, why: Errno) {
        self.turned_away += 1;
        let _ = record::send(&socket, &Words::refusal(why.raw_os_error()), &[]);
        self.strangers.close(socket);
    }

    /// Whether his process, or he, has as many connections as there may be. Other users than the owner have a half of all together, and one
    /// of them leaves at least as many as he has.
    fn has_many(&self, caller: &Caller) -> bool {
        let callers =
            || self.clients.iter().map(|client| client.caller).chain(self.graves.iter().map(|grave| grave.caller));
        let of_process = callers().filter(|other| other.pid == caller.pid).count();
        let of_user = callers().filter(|other| other.uid == caller.uid).count();
        // In another container all have the number 0.
        let is_limited = caller.is_limited || caller.pid == 0;
        let of_others = callers().filter(|other| other.is_limited && other.uid != caller.uid).count();
        let most_of_user = (MOST_PROGRAMS / 2).saturating_sub(of_others) / 2;
        caller.pid != 0 && of_process >= MOST_OF_PROCESS || is_limited && of_user >= most_of_user
    }
}
