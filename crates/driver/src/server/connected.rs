//! A program that talks to the server, and those that could not be served.

use super::schedule::Asker;
use super::standing::Standing;
use crate::native::Own;
use crate::session::Kick;
use millrace_abi::message::Handle;
use millrace_abi::queue::QueueId;
use millrace_dma::{Domain, Region};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two remarks about programs that were turned away.
const REMARK: Duration = Duration::from_secs(10);

/// A program, by its connection.
pub(super) struct Connected {
    pub(super) socket: OwnedFd,
    pub(super) pid: u32,
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) asker: Asker,
    // It comes from this very process, and may start queues through their registers on this memory.
    pub(super) own: Option<Own>,
    pub(super) domain: Arc<Domain>,
    pub(super) queues: HashMap<Handle, QueueId>,
    pub(super) mapped: HashMap<u64, Region>,
    // By the worker of the queues that it was made for.
    pub(super) kicks: HashMap<u32, Kick>,
    pub(super) next_handle: u32,
    pub(super) introduced: bool,
    // Who it is, and what it may do and has.
    pub(super) standing: Standing,
    // It waits for the reply to a change, and its further requests with it.
    pub(super) changing: bool,
    // It has asked for something about the flow table.
    pub(super) flows: bool,
    // It has gone, and what it had is being cleared up.
    pub(super) ending: bool,
}

impl Connected {
    /// The process that users are told of: of a machine the one that emulates it, and not the card, which speaks for it.
    pub(super) fn shown_pid(&self) -> u32 {
        match &self.own {
            Some(Own::Guest(guest)) if guest.pid != 0 => guest.pid,
            _ => self.pid,
        }
    }
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "program {} on {:?}", self.pid, self.socket.as_fd())
    }
}

/// Programs that could not be served, and why.
#[derive(Default)]
pub(super) struct TurnedAway {
    /// Fds were short.
    pub(super) no_fds: u64,
    /// Their process had its share of connections.
    pub(super) too_many: u64,
    remarked: Option<Instant>,
}

impl TurnedAway {
    /// Says so, but not for each of a flood.
    pub(super) fn remark(&mut self) {
        if self.remarked.is_none_or(|when| when.elapsed() > REMARK) {
            self.remarked = Some(Instant::now());
            let Self { no_fds, too_many, .. } = *self;
            tracing::warn!(no_fds, too_many, "programs were turned away since the card started");
        }
    }
}
