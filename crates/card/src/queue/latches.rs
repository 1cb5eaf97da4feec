//! What software wrote to a queue, and what a driver has attached to it.

use super::error::StartError;
use crate::buffers::TxBuffers;
use crate::counters::Counts;
use crate::engine::{RxEngine, TxEngine};
use crate::mailbox::Mailbox;
use crate::opener::{Attachment, Opener};
use millrace_abi::control::{CARD_SLEEPS_AT, DOORBELL_AT, NOT_RUNG, RUNG_AT};
use millrace_abi::handover::RingPlace;
use millrace_abi::launch::LaunchPolicy;
use millrace_abi::queue::QueueId;
use millrace_dma::{Domain, Ordering, Pinned, Window, Word64};
use millrace_ring::shared::Reclaimer;
use millrace_ring::wake::Ringer;
use std::sync::Arc;

/// What software wrote, and what it may read back.
#[derive(Default)]
pub(super) struct Latches {
    pub attached: Option<Attached>,
    pub control: u32,
    pub timeout: u32,
    pub irq: u32,
    pub max_request: u32,
    pub exper: u32,
    /// LAUNCH and SLACK.
    pub launch: LaunchPolicy,
    pub ring_mask: u32,
    pub masks: [u32; 2],
    pub desc_base: u64,
    pub hdr_base: u64,
    pub update_base: u64,
    /// The software pointers while nothing is attached; then the doorbell holds them.
    pub pointers: u64,
    /// Counts at the last reset.
    pub zero: Counts,
    /// Counts as of the last strobe, already relative to the reset.
    pub strobed: Counts,
    pub refusal: Option<StartError>,
    pub refused: u64,
    /// Rings of a running queue: they cannot be unmapped.
    pub pins: Vec<Pinned>,
    /// Where the next START begins, if not at the beginning.
    pub resume: Option<RingPlace>,
    /// What the worker does not serve for the time being.
    pub held: Option<Held>,
}

/// A queue that runs, as all others see it, and is not served: another card goes on with it, or this one does.
pub(super) struct Held {
    pub engine: HeldEngine,
    pub openers: Vec<Opener>,
}

pub(super) enum HeldEngine {
    Tx(Box<TxEngine>),
    /// And whether it drops when there is no room.
    Rx(Box<RxEngine>, bool),
}

impl Latches {
    /// The software pointers.
    pub fn doorbell(&self) -> u64 {
        self.attached.as_ref().map_or(self.pointers, |attached| attached.doorbell.load(Ordering::Acquire))
    }

    /// Moves the software pointers.
    pub fn set_pointers(&mut self, pointers: u64, mailbox: &Mailbox) {
        match &mut self.attached {
            Some(attached) => attached.ring(pointers, mailbox),
            None => self.pointers = pointers,
        }
    }
}

/// What a driver has attached.
pub(super) struct Attached {
    pub domain: Arc<Domain>,
    pub control: Window,
    pub doorbell: Word64,
    /// What a register has put there last; `None` from when on software puts it there itself.
    pub rung: Option<u64>,
    /// Where that is noted, before the doorbell has it and after, for a card that follows this one. `None`: nothing is noted of this queue.
    pub rung_notes: Option<[Word64; 2]>,
    /// Says when the worker sleeps; None: nobody says so, and every write of a pointer wakes it.
    ringer: Option<Ringer>,
    pub reclaimer: Option<Box<Reclaimer>>,
    pub openers: Vec<Opener>,
    /// Calypte TX only.
    pub buffers: Option<TxBuffers>,
}

impl Attached {
    /// For a queue that `has_buffers` of the device: those of the attachment, or new ones.
    pub fn new(attachment: Attachment, id: QueueId, has_buffers: bool) -> Result<Self, StartError> {
        let Attachment { domain, control, reclaimer, openers, buffers, is_noted } = attachment;
        let doorbell = control.word64(DOORBELL_AT).map_err(|_| StartError::Size(0))?;
        // The worker writes `card_sleeps` for openers only.
        let ringer = control.word32(CARD_SLEEPS_AT).ok().filter(|_| !openers.is_empty()).map(Ringer::new);
        let buffers = match buffers {
            None if has_buffers => Some(TxBuffers::own().map_err(|_| StartError::NoMemory(id))?),
            given => given.filter(|_| has_buffers),
        };
        let rung = Some(doorbell.load(Ordering::Relaxed));
        let notes = || Some([control.word64(RUNG_AT).ok()?, control.word64(RUNG_AT + 8).ok()?]);
        let rung_notes = is_noted.then(notes).flatten();
        Ok(Self { domain, control, doorbell, rung, rung_notes, ringer, reclaimer, openers, buffers })
    }

    /// What one more ring of a TX queue has, which is rung and woken without registers.
    pub fn of_ring(domain: Arc<Domain>, control: Window, buffers: Option<TxBuffers>) -> Result<Self, StartError> {
        let doorbell = control.word64(DOORBELL_AT).map_err(|_| StartError::Size(0))?;
        let (rung, rung_notes, ringer, reclaimer, openers) = (None, None, None, None, Vec::new());
        Ok(Self { domain, control, doorbell, rung, rung_notes, ringer, reclaimer, openers, buffers })
    }

    /// Wakes the worker if it sleeps, after something was stored that it polls.
    pub fn wake(&self, mailbox: &Mailbox) {
        if self.ringer.as_ref().is_none_or(Ringer::must_signal) {
            mailbox.kick_all();
        }
    }

    /// Notes what registers have rung so far, when the queue starts.
    pub fn begin_notes(&self) {
        [0, 1].into_iter().for_each(|which| self.note_rung(which, self.rung.unwrap_or(NOT_RUNG)));
    }

    /// Release: whoever reads it after the card was killed sees what was noted and rung before.
    fn note_rung(&self, which: usize, value: u64) {
        if let Some(notes) = &self.rung_notes {
            notes[which].store(value, Ordering::Release);
        }
    }

    /// Moves the software pointers as software does that writes the doorbell itself. Where software does, the register is only to wake the worker: what it says
    /// may have been on its way for long, and a doorbell that goes back has descriptors served again.
    fn ring(&mut self, pointers: u64, mailbox: &Mailbox) {
        // Acquire pairs with the Release of software that rings.
        self.rung = self.rung.filter(|&rung| self.doorbell.load(Ordering::Acquire) == rung);
        if self.rung.is_some() {
            self.note_rung(0, pointers);
            // Release pairs with the Acquire of the card's half: what software wrote before the register is visible.
            self.doorbell.store(pointers, Ordering::Release);
            self.rung = Some(pointers);
        }
        self.note_rung(1, self.rung.unwrap_or(NOT_RUNG));
        self.wake(mailbox);
    }
}
