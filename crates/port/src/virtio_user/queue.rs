//! One queue of a pair while it runs.

use super::memory::{Buffers, Shared};
use crate::{Bell, peer};
use millrace_ring::virtio::driver::{Broken, LentRxQueue, RxQueue, TxQueue};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Why a queue is not used any more.
pub(super) type Stopped = peer::Stopped<Broken>;

/// Frames that are taken out of a ring together.
pub(super) const BATCH: usize = 32;

/// What one burst of the queue that receives found.
#[derive(Default)]
pub(super) struct Received {
    pub frames: u64,
    pub bytes: u64,
    pub no_room: u64,
    pub too_short: u64,
    pub too_long: u64,
    pub copies: u64,
    /// Frames taken of those that were not finished; they are counted already.
    pub unfinished: usize,
    pub full: bool,
}

/// One queue that runs, of either direction.
pub(super) struct Queue<Q> {
    pub ring: Q,
    kick: Arc<Bell>,
    pub call: OwnedFd,
    pub memory: (Arc<Buffers>, Arc<Shared>),
    pub stopped: Option<Stopped>,
    /// RX: something may be left to do on frames.
    pub unfinished: bool,
    /// TX: a frame has found no room since the worker was awake.
    starved: bool,
    /// TX: the worker is asleep, or about to be.
    asleep: bool,
}

impl<Q> Queue<Q> {
    pub fn new(ring: Q, kick: Arc<Bell>, call: OwnedFd, memory: (Arc<Buffers>, Arc<Shared>), unfinished: bool) -> Self {
        Self { ring, kick, call, memory, stopped: None, unfinished, starved: false, asleep: false }
    }

    fn was_cut(&self) -> bool {
        self.memory.0.memory.was_cut() || self.memory.1.was_cut()
    }

    /// Finds out whether the queue has just come to its end.
    #[inline(always)]
    pub fn check(&mut self, reason: Option<Stopped>) -> Option<Stopped> {
        let reason = reason.or_else(|| self.was_cut().then_some(Stopped::Cut));
        if reason.is_some() {
            self.stopped = reason;
        }
        reason
    }
}

impl Queue<RxQueue> {
    /// Shows the other side the buffers that it may fill, and says why the queue is at its end if it is.
    #[inline(always)]
    pub fn publish(&mut self) -> Option<Stopped> {
        if self.ring.publish() {
            self.kick.ring();
        }
        self.check(self.ring.broken().map(Stopped::Fault))
    }
}

impl Queue<LentRxQueue> {
    /// Shows the other side the buffers that it may fill.
    #[inline(always)]
    pub fn show_buffers(&mut self) {
        if self.ring.publish() {
            self.kick.ring();
        }
    }
}

impl Queue<TxQueue> {
    /// Shows the other side the frames.
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.ring.publish() {
            self.kick.ring();
        }
    }

    /// A frame has found no room. `true`: there is some by now, and no signal will come for it.
    #[cold]
    pub fn starve(&mut self) -> bool {
        self.starved = true;
        self.asleep && self.ring.want_signal(true)
    }

    /// The worker is about to sleep, or awake again. Of frames that are gone only who waits for room wants to hear.
    pub fn set_asleep(&mut self, asleep: bool) {
        self.asleep = asleep;
        if self.starved {
            // That something is gone already is seen when the worker looks once more before it sleeps.
            self.ring.want_signal(asleep);
            self.starved = asleep;
        }
    }

    /// Says why the queue is at its end if it is.
    #[inline(always)]
    pub fn ended(&mut self) -> Option<Stopped> {
        self.check(self.ring.broken().map(Stopped::Fault))
    }
}
