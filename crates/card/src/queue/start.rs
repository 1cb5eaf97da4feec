//! START and STOP (§3.2.2, §3.2.3).

use super::Queue;
use super::build::{Build, RingProgram};
use super::error::StartError;
use super::latches::{Attached, Latches};
use crate::command::Command;
use crate::engine::{RxEngine, TxEngine};
use crate::mailbox::{Mailbox, Unanswered};
use crate::queue_status::show_state;
use millrace_abi::control::QueueState;
use millrace_abi::queue::Direction;
use millrace_abi::register::medusa as m;
use millrace_dma::{Pinned, Window};
use millrace_ring::FrameLimits;
use std::sync::{Arc, MutexGuard};

pub(super) enum Built {
    Tx(TxEngine),
    Rx(RxEngine),
}

impl Queue {
    pub(super) fn start(&self, latches: &mut Latches, limits: FrameLimits, discard: bool, mailbox: &Mailbox) {
        match self.try_start(latches, limits, discard, mailbox) {
            Ok(()) => latches.refusal = None,
            Err(why) => self.note_refusal(latches, why),
        }
    }

    /// §3.2.2: latch bases and masks, pointers to 0, RUNNING at once.
    fn try_start(
        &self,
        latches: &mut Latches,
        limits: FrameLimits,
        discard: bool,
        mailbox: &Mailbox,
    ) -> Result<(), StartError> {
        if self.status.is_running() {
            return Err(StartError::Running(self.status.id));
        }
        if latches.resume.is_some() && latches.attached.as_ref().is_some_and(|attached| attached.reclaimer.is_some()) {
            return Err(StartError::Held(self.status.id));
        }
        // A queue that faulted may still hold its old engine.
        let old = mailbox.ask(Command::Halt(self.status.id)).map_err(|_| StartError::Stuck)?;
        drop(old);
        let mut pins = Vec::new();
        let attached = latches.attached.as_ref().ok_or(StartError::NotAttached(self.status.id))?;
        let launches = self.status.launches.as_ref();
        let build = Build { latches, attached, limits, tsu: &self.tsu, launches, pins: &mut pins };
        let built = match self.status.id.direction {
            Direction::Tx => Built::Tx(self.protocol.tx(build)?),
            Direction::Rx => Built::Rx(self.protocol.rx(build)?),
        };
        if let Some(place) = latches.resume.take() {
            self.hold(latches, pins, built, &place, discard);
            return Ok(());
        }
        let index = self.status.id.index;
        let (reclaimer, openers) = match &mut latches.attached {
            Some(attached) => (attached.reclaimer.take(), core::mem::take(&mut attached.openers)),
            None => (None, Vec::new()),
        };
        latches.pins = pins;
        latches.control |= m::CONTROL_START;
        self.status.has_started();
        if let Some(attached) = &latches.attached {
            show_state(&attached.control, QueueState::Running, None);
        }
        let called = mailbox.ask(match built {
            Built::Tx(engine) => Command::StartTx(index, Box::new(engine), openers),
            Built::Rx(engine) => Command::StartRx(index, Box::new(engine), reclaimer, openers, discard),
        });
        called.map(drop).map_err(|why| self.undo_start(latches, why))
    }

    /// The worker has not started the queue and will not.
    fn undo_start(&self, latches: &mut Latches, why: Unanswered) -> StartError {
        let (reclaimer, openers) = match why {
            Unanswered::Withdrawn(Command::StartTx(_, _, openers)) => (None, openers),
            Unanswered::Withdrawn(Command::StartRx(_, _, reclaimer, openers, _)) => (reclaimer, openers),
            _ => (None, Vec::new()),
        };
        latches.control &= !m::CONTROL_START;
        latches.pins.clear();
        self.status.has_stopped();
        if let Some(attached) = &mut latches.attached {
            show_state(&attached.control, QueueState::Stopped, None);
            (attached.reclaimer, attached.openers) = (reclaimer, openers);
        }
        StartError::Stuck
    }

    /// Makes the engine of one more ring of a TX queue, which no register shows, and pins its memory.
    pub fn build_ring(
        &self,
        program: &RingProgram,
        domain: Arc<millrace_dma::Domain>,
        control: Window,
        limits: FrameLimits,
    ) -> Result<(TxEngine, Vec<Pinned>), StartError> {
        let &RingProgram { desc_base, update_base, mask, ref buffers } = program;
        let latches = Latches { desc_base, update_base, ring_mask: mask, masks: [mask, 0], ..Latches::default() };
        let attached = Attached::of_ring(domain, control, buffers.clone())?;
        let mut pins = Vec::new();
        let launches = self.status.launches.as_ref();
        let build = Build { latches: &latches, attached: &attached, limits, tsu: &self.tsu, launches, pins: &mut pins };
        Ok((self.protocol.tx(build)?, pins))
    }

    /// §3.2.3: a TX queue goes on until it is drained; an RX queue stops at once.
    pub(super) fn ask_to_stop(&self, mut latches: MutexGuard<'_, Latches>, mailbox: &Mailbox) {
        latches.control = 0;
        drop(latches);
        match self.status.id.direction {
            Direction::Tx => {
                self.status.ask_to_stop();
                // So that a drained queue reads as stopped when the write returns.
                let _ = mailbox.ask(Command::Look(self.status.id));
            }
            Direction::Rx => drop(mailbox.ask(Command::Halt(self.status.id))),
        }
    }
}
