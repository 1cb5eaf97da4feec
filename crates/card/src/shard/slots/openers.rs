//! The openers of a queue as its worker sees them: who wakes it, and whom it wakes.

use super::departure::Departure;
use crate::opener::Opener;
use crate::queue_status::show_state;
use crate::sleep::Sleep;
use crate::turns::{Kick, Owner};
use millrace_abi::control::{CARD_SLEEPS_AT, QueueState, SOFTWARE_SLEEPS_AT, WANTS_STAMPS_AT};
use millrace_dma::{Ordering, Word32, fence};
use millrace_port::Bell;
use millrace_ring::EngineFault;
use millrace_ring::wake::{Ringer, Sleeper};
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Between the stores of update words and the looks at who sleeps, one for all of them: it waits until every store before it
/// is done, and so would make one burst wait for the lines of the one before.
#[inline(always)]
pub(crate) fn wake_fence() {
    // Pairs with the fence in `Sleeper::announce` on the openers' side.
    fence(Ordering::SeqCst);
}

/// An opener as the worker sees it.
struct OpenerState {
    opener: Opener,
    // card_sleeps: ours.
    sleeper: Option<Sleeper>,
    // software_sleeps: the opener's.
    ringer: Option<Ringer>,
    // wants_stamps: the opener's.
    wants_stamps: Option<Word32>,
    // Only of those who want it.
    departure: Option<Box<Departure>>,
}

impl OpenerState {
    fn new(opener: Opener) -> Self {
        let word = |at| -> Option<Word32> { opener.control.word32(at).ok() };
        let sleeper = word(CARD_SLEEPS_AT).map(Sleeper::new);
        let ringer = word(SOFTWARE_SLEEPS_AT).map(Ringer::new);
        let wants_stamps = word(WANTS_STAMPS_AT);
        Self { opener, sleeper, ringer, wants_stamps, departure: None }
    }

    fn signal(&self) {
        if let Some(call) = &self.opener.call {
            call.ring();
        }
    }
}

impl Opener {
    fn watch(&self, sleep: &Sleep) {
        self.kick.iter().for_each(|kick| sleep.watch(kick));
    }

    fn forget(&self, sleep: &Sleep) {
        self.kick.iter().for_each(|kick| sleep.forget(kick));
    }
}

/// The openers of a queue.
#[derive(Default)]
pub(crate) struct Openers(Vec<OpenerState>);

impl Openers {
    /// Signals every opener that sleeps. To be called after an update word was stored, and a [`wake_fence`] behind it.
    #[inline(always)]
    pub fn wake(&self) {
        for entry in &self.0 {
            if entry.ringer.as_ref().is_some_and(Ringer::claim) {
                entry.signal();
            }
        }
    }

    /// Whether there is one opener, who wants to know when frames leave.
    #[inline(always)]
    pub fn want_stamps(&self) -> bool {
        let [entry] = &self.0[..] else { return false };
        // On the line that was just looked at, or will be.
        entry.wants_stamps.as_ref().is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Says that so many frames have left and so many have come off the ring, and between which two times the last of them left, if one
    /// has since that was said last.
    #[cold]
    pub fn say_departure(&mut self, frames: u64, taken: u64, last: Option<[u64; 2]>) {
        let [entry] = &mut self.0[..] else { return };
        if entry.departure.is_none() {
            entry.departure = Departure::new(&entry.opener.control).ok().map(Box::new);
        }
        if let Some(departure) = &mut entry.departure {
            departure.say(frames, taken, last);
        }
    }

    pub fn signal_all(&self) {
        self.0.iter().for_each(OpenerState::signal);
    }

    pub fn mark_asleep(&self) {
        self.0.iter().filter_map(|entry| entry.sleeper.as_ref()).for_each(Sleeper::mark);
    }

    pub fn awake(&self) {
        self.0.iter().filter_map(|entry| entry.sleeper.as_ref()).for_each(Sleeper::awake);
    }

    /// Who answers for what comes through here.
    pub fn owner(&self) -> Owner {
        self.0.iter().map(|entry| entry.opener.owner).find(|&owner| owner != 0).unwrap_or(0)
    }

    /// The kick and the `card_sleeps` of the opener, if there is one alone.
    pub fn sole(&self) -> Option<(Kick, Word32)> {
        let [entry] = &self.0[..] else { return None };
        let flag = entry.opener.control.word32(CARD_SLEEPS_AT).ok()?;
        Some((entry.opener.kick.as_ref().map(|kick| kick.as_raw_fd()), flag))
    }

    pub fn show(&self, state: QueueState, fault: Option<EngineFault>) {
        for entry in &self.0 {
            show_state(&entry.opener.control, state, fault);
        }
        self.signal_all();
    }

    pub fn add(&mut self, opener: Opener, sleep: &Sleep) {
        opener.watch(sleep);
        self.0.push(OpenerState::new(opener));
    }

    pub fn remove(&mut self, id: u32, sleep: &Sleep) -> Option<Opener> {
        let place = self.0.iter().position(|entry| entry.opener.id == id)?;
        let opener = self.0.swap_remove(place).opener;
        opener.forget(sleep);
        Some(opener)
    }

    /// Says how to wake an opener from now on. `false`: it is not one of these.
    pub fn set_call(&mut self, id: u32, call: &Arc<Bell>) -> bool {
        let entry = self.0.iter_mut().find(|entry| entry.opener.id == id);
        entry.map(|entry| entry.opener.call = Some(call.clone())).is_some()
    }

    /// The control page and the call of an opener.
    pub fn tell(&self, id: u32, state: QueueState) {
        if let Some(entry) = self.0.iter().find(|entry| entry.opener.id == id) {
            show_state(&entry.opener.control, state, None);
            entry.signal();
        }
    }

    /// The queue changes its worker: another one is to be woken from now on.
    pub fn leave_worker(&self, sleep: &Sleep) {
        self.awake();
        self.0.iter().for_each(|entry| entry.opener.forget(sleep));
    }

    /// See [`Openers::leave_worker`].
    pub fn enter_worker(&self, sleep: &Sleep) {
        self.0.iter().for_each(|entry| entry.opener.watch(sleep));
    }

    /// Takes all off a queue that another card may go on with: they need not wake anybody meanwhile, for what they ring is looked at when it goes on.
    pub fn take_quietly(&mut self, sleep: &Sleep) -> Vec<Opener> {
        self.awake();
        self.take_all(sleep)
    }

    pub fn take_all(&mut self, sleep: &Sleep) -> Vec<Opener> {
        let openers: Vec<Opener> = self.0.drain(..).map(|entry| entry.opener).collect();
        openers.iter().for_each(|opener| opener.forget(sleep));
        openers
    }
}
