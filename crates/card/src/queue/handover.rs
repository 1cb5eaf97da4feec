//! A queue that another card goes on with: it is held for a while, its software notices nothing, and what has to be known of it is put into words.
//!
//! ```text
//! this card      hold (`Card::freeze`) -> save -> the queue is given up, or `Card::go_on`
//! the other one  restore -> START, which holds it where its ring stands -> `Card::go_on`
//! ```

use super::Queue;
use super::latches::{Held, HeldEngine, Latches};
use super::start::Built;
use crate::command::Command;
use crate::counters::Counts;
use crate::mailbox::{Mailbox, Unanswered};
use crate::shard::Answer;
use millrace_abi::handover::{RingPlace, SavedQueue};
use millrace_abi::launch::LaunchPolicy;
use millrace_abi::register::medusa as m;
use millrace_dma::Pinned;

impl Queue {
    /// Takes the queue from its worker, which has let go of its memory when this returns. `false`: the worker does not answer, or has nothing.
    pub fn freeze(&self, mailbox: &Mailbox) -> bool {
        let mut latches = self.latches();
        if latches.held.is_some() {
            return true;
        }
        let Ok(answer) = mailbox.ask(Command::Freeze(self.status.id)) else { return false };
        let Answer { tx, rx, openers, discard, .. } = answer;
        let tx = tx.into_iter().next().map(|engine| HeldEngine::Tx(Box::new(engine)));
        let engine = tx.or(rx.map(|engine| HeldEngine::Rx(engine, discard)));
        latches.held = engine.map(|engine| Held { engine, openers });
        latches.held.is_some()
    }

    /// Gives what is held to the worker. `false`: it does not answer; nothing is lost.
    pub fn go_on(&self, mailbox: &Mailbox) -> bool {
        let mut latches = self.latches();
        let Some(Held { engine, openers }) = latches.held.take() else { return true };
        let index = self.status.id.index;
        let command = match engine {
            HeldEngine::Tx(engine) => Command::GoOnTx(index, engine, openers),
            HeldEngine::Rx(engine, discard) => Command::GoOnRx(index, engine, openers, discard),
        };
        match mailbox.ask(command) {
            Ok(answer) => return answer.done,
            Err(Unanswered::Withdrawn(Command::GoOnTx(_, engine, openers))) => {
                latches.held = Some(Held { engine: HeldEngine::Tx(engine), openers });
            }
            Err(Unanswered::Withdrawn(Command::GoOnRx(_, engine, openers, discard))) => {
                latches.held = Some(Held { engine: HeldEngine::Rx(engine, discard), openers });
            }
            Err(_) => {}
        }
        false
    }

    /// What START has built goes on from there, when it is told to.
    pub(super) fn hold(
        &self,
        latches: &mut Latches,
        pins: Vec<Pinned>,
        built: Built,
        place: &RingPlace,
        discard: bool,
    ) {
        let openers =
            latches.attached.as_mut().map_or_else(Vec::new, |attached| core::mem::take(&mut attached.openers));
        let engine = match built {
            Built::Tx(mut engine) => {
                engine.resume(place);
                HeldEngine::Tx(Box::new(engine))
            }
            Built::Rx(mut engine) => {
                engine.resume(place);
                HeldEngine::Rx(Box::new(engine), discard)
            }
        };
        latches.held = Some(Held { engine, openers });
        latches.pins = pins;
        latches.control |= m::CONTROL_START;
        self.status.has_started();
    }

    /// Whether the next START goes on where another card has stopped.
    pub fn is_to_resume(&self) -> bool {
        self.latches().resume.is_some()
    }

    /// Whether it is held.
    pub fn is_held(&self) -> bool {
        self.latches().held.is_some()
    }

    /// Everything of it in words. `None`: it runs, and is not held, or its ring cannot be gone on with.
    pub fn save(&self) -> Option<SavedQueue> {
        let latches = self.latches();
        let place = match &latches.held {
            Some(Held { engine: HeldEngine::Tx(engine), .. }) => Some(engine.place()?),
            Some(Held { engine: HeldEngine::Rx(engine, _), .. }) => Some(engine.place()?),
            None if self.status.is_running() => return None,
            None => None,
        };
        Some(self.saved(&latches, place))
    }

    /// Everything of it in words while it runs, or does not, but for where its ring stands: that is in its control page.
    pub fn describe(&self) -> SavedQueue {
        let (latches, runs) = (self.latches(), self.status.is_running());
        let saved = self.saved(&latches, None);
        if !runs {
            return saved;
        }
        let is_stopping = self.status.stop_is_asked();
        SavedQueue { is_noted: true, is_stopping, pointers: 0, rung: None, ..saved }
    }

    fn saved(&self, latches: &Latches, place: Option<RingPlace>) -> SavedQueue {
        SavedQueue {
            queue: Some(self.status.id),
            control: latches.control,
            timeout: latches.timeout,
            irq: latches.irq,
            max_request: latches.max_request,
            exper: latches.exper,
            launch: latches.launch.to_registers(),
            ring_mask: latches.ring_mask,
            masks: latches.masks,
            desc_base: latches.desc_base,
            hdr_base: latches.hdr_base,
            update_base: latches.update_base,
            pointers: latches.doorbell(),
            rung: latches.attached.as_ref().and_then(|attached| attached.rung),
            counts: self.status.counts.read().save(),
            zero: latches.zero.save(),
            strobed: latches.strobed.save(),
            place,
            is_stopping: place.is_some() && self.status.stop_is_asked(),
            is_noted: false,
        }
    }

    /// Takes these words over. It must not run, and nothing be attached. One that is to run does after START and [`Queue::go_on`]. `false`: it runs, or its worker
    /// does not answer.
    pub fn restore(&self, saved: &SavedQueue, mailbox: &Mailbox) -> bool {
        let mut latches = self.latches();
        if self.status.is_running() || latches.attached.is_some() {
            return false;
        }
        let (counts, zero) = (Counts::restore(&saved.counts), Counts::restore(&saved.zero));
        // What it has counted here, such as frames that nobody was there for, is not what its software counts from.
        let already = self.status.counts.read();
        if !mailbox.ask(Command::AddCounts(self.status.id, Box::new(counts))).is_ok_and(|answer| answer.done) {
            return false;
        }
        latches.zero = already;
        latches.zero.add(&zero);
        *latches = Latches {
            control: if saved.place.is_some() { 0 } else { saved.control },
            timeout: saved.timeout,
            irq: saved.irq,
            max_request: saved.max_request,
            exper: saved.exper,
            launch: LaunchPolicy::of_registers(saved.launch),
            ring_mask: saved.ring_mask,
            masks: saved.masks,
            desc_base: saved.desc_base,
            hdr_base: saved.hdr_base,
            update_base: saved.update_base,
            pointers: saved.pointers,
            strobed: Counts::restore(&saved.strobed),
            resume: saved.place,
            ..core::mem::take(&mut *latches)
        };
        true
    }

    /// What was to be known once it is held again: who rings its doorbell, and whether it stops.
    pub fn settle(&self, saved: &SavedQueue) {
        let mut latches = self.latches();
        latches.control = saved.control;
        if let Some(attached) = &mut latches.attached {
            attached.rung = saved.rung;
        }
        if saved.is_stopping {
            self.status.ask_to_stop();
        }
    }
}
