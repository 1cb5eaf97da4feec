//! Programs come and go.

use super::{FIRST_CLIENT_TOKEN, Server};
use crate::locks::Owner;
use crate::session::Kick;
use crate::wire::{self};
use millrace_abi::message::{ErrorCode, Handle, Reply};
use millrace_abi::queue::QueueId;
use millrace_dma::{Domain, Region};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Pid, PidfdFlags, Uid, pidfd_open};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, PoisonError};

pub(super) struct Connected {
    pub(super) socket: OwnedFd,
    pub(super) pid: u32,
    pub(super) uid: Option<Uid>,
    pub(super) pidfd: Option<OwnedFd>,
    // It is this very process, and its plain addresses may be given to the card.
    pub(super) own: bool,
    pub(super) domain: Arc<Domain>,
    pub(super) queues: HashMap<Handle, QueueId>,
    pub(super) mapped: HashMap<u64, Region>,
    // By the worker of the queues that it was made for.
    pub(super) kicks: HashMap<u32, Kick>,
    pub(super) next_handle: u32,
    pub(super) introduced: bool,
}

impl Connected {
    /// The kick for queues that a worker serves when they are opened. A queue that goes to another worker later keeps
    /// it, and that worker watches it as well: it is only woken for other queues of this program too.
    pub(super) fn kick(&mut self, worker: u32) -> Result<Kick, crate::session::SessionError> {
        Ok(match self.kicks.entry(worker) {
            Entry::Occupied(kick) => kick.get().clone(),
            Entry::Vacant(place) => place.insert(Kick::new(worker)?).clone(),
        })
    }
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "program {} on {:?}", self.pid, self.socket.as_fd())
    }
}

/// A descriptor kept to be given up when there are no more: with it a connection that waits can be accepted and closed,
/// which would otherwise be reported for ever.
pub(super) fn spare() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

impl Server {
    pub(super) fn accept_all(&mut self) {
        loop {
            let Some(listener) = &self.listener else { return };
            match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.welcome(socket, false),
                Err(Errno::MFILE | Errno::NFILE) if self.spare.is_some() => {
                    self.spare = None;
                    let turned_away = rustix::net::accept_with(listener, SocketFlags::CLOEXEC);
                    tracing::warn!("out of descriptors: a program was turned away");
                    drop(turned_away);
                    self.spare = spare();
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
    }

    /// Whether a process may have one more connection or mapping. Descriptors are what all programs share here.
    pub(super) fn may_grow(&self, pid: u32) -> bool {
        let of_process = self.clients.values().filter(|client| client.pid == pid);
        of_process.map(|client| 2 + client.kicks.len() + client.mapped.len()).sum::<usize>() < self.budget
    }

    /// Ends the connections that a process has closed and that were not reported yet.
    fn notice_closed(&mut self, pid: u32) {
        let closed = |client: &Connected| {
            let mut socket = [PollFd::new(&client.socket, PollFlags::empty())];
            poll(&mut socket, Some(&Timespec::default())).is_ok() && socket[0].revents().contains(PollFlags::HUP)
        };
        let of_process = self.clients.iter().filter(|(_, client)| client.pid == pid && closed(client));
        let gone: Vec<u64> = of_process.map(|(&number, _)| number).collect();
        gone.into_iter().for_each(|number| self.disconnect(number));
    }

    pub(super) fn take_arrivals(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count);
        let arrivals = core::mem::take(&mut *self.shared.arrivals.lock().unwrap_or_else(PoisonError::into_inner));
        arrivals.into_iter().for_each(|(socket, own)| self.welcome(socket, own));
    }

    pub(super) fn welcome(&mut self, socket: OwnedFd, own: bool) {
        let number = self.next_client;
        let token = FIRST_CLIENT_TOKEN + 2 * number;
        let credentials = rustix::net::sockopt::socket_peercred(&socket).ok();
        let peer = credentials.map(|credentials| credentials.pid);
        let pid = peer.map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
        if !self.may_grow(pid) {
            self.notice_closed(pid);
        }
        if !self.may_grow(pid) {
            let text = "this process has too many connections to the card; close some".to_owned();
            let _ = wire::send(&socket, &Reply::Error { code: ErrorCode::System, text }, &[]);
            return;
        }
        // Our own process needs no watching; one that is gone already shows at its socket.
        let other = peer.filter(|&pid| pid != rustix::process::getpid());
        let pidfd = match other.map(|pid: Pid| pidfd_open(pid, PidfdFlags::empty())) {
            // It has died already; whoever has inherited its socket is not the one who connected.
            Some(Err(Errno::SRCH)) => return,
            opened => opened.and_then(Result::ok),
        };
        let ready = rustix::io::ioctl_fionbio(&socket, true).and_then(|()| self.poll.add(&socket, token));
        if let Err(error) = ready {
            tracing::warn!(%error, "a program could not be served");
            return;
        }
        if let Some(pidfd) = &pidfd {
            let _ = self.poll.add(pidfd, token + 1);
        }
        self.next_client += 1;
        let client = Connected {
            socket,
            pid,
            uid: credentials.map(|credentials| credentials.uid),
            pidfd,
            own,
            domain: Arc::new(Domain::new()),
            queues: HashMap::new(),
            mapped: HashMap::new(),
            kicks: HashMap::new(),
            next_handle: 1,
            introduced: false,
        };
        self.clients.insert(number, client);
    }

    /// Ends everything that a program had: its queues stop, its memory is unmapped, its ownership ends.
    pub(super) fn disconnect(&mut self, number: u64) {
        let Some(client) = self.clients.remove(&number) else { return };
        self.poll.remove(&client.socket);
        if let Some(pidfd) = &client.pidfd {
            self.poll.remove(pidfd);
        }
        for (handle, id) in &client.queues {
            self.close_queue(*id, (number, *handle));
        }
        self.end_natives(|_, native, _| native.client == number);
        self.locks.release_all(Owner::Client(number));
        for iova in client.mapped.keys() {
            self.unmap(&client.domain, *iova);
        }
    }
}
