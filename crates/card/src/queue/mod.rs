//! A queue as its registers show it (`docs/spec/nfb-card.md` §3).
//!
//! * here: what is done with a queue
//! * `latches`: what software wrote last, what is attached; the state is in `queue_status`, which the worker has as well
//! * `registers`: reads and writes, by offset
//! * `start`: START and STOP
//! * `handover`: what another card goes on with
//! * `build`: what START makes of the registers; `protocol`: which registers there are, and which engine that becomes

mod build;
mod error;
mod handover;
mod latches;
mod protocol;
mod registers;
mod start;

pub use build::RingProgram;
pub use error::StartError;

use crate::mailbox::Mailbox;
use crate::opener::Attachment;
use crate::queue_status::QueueStatus;
use crate::tsu::Tsu;
use latches::{Attached, Latches};
use millrace_abi::launch::LaunchPolicy;
use millrace_abi::queue::{Engine, QueueId};
use millrace_abi::register::Controller;
use millrace_ring::FrameLimits;
use millrace_ring::shared::Reclaimer;
use protocol::{QueueProtocol, protocol};
use registers::{Asked, Target, View};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One queue of the card.
pub(crate) struct Queue {
    /// What its worker shows of it and asks about it.
    pub status: Arc<QueueStatus>,
    /// Frames that software could not put into the ring because they are too long, as it says itself.
    pub never_posted: AtomicU64,
    protocol: &'static dyn QueueProtocol,
    latches: Mutex<Latches>,
    // The clock of launch times.
    tsu: Arc<Tsu>,
}

impl Queue {
    pub fn new(id: QueueId, engine: Engine, tsu: Arc<Tsu>) -> Self {
        let latches = Latches { timeout: Controller::of(engine).timeout_default, ..Latches::default() };
        Self {
            status: Arc::new(QueueStatus::new(id, engine)),
            never_posted: AtomicU64::new(0),
            protocol: protocol(engine),
            latches: Mutex::new(latches),
            tsu,
        }
    }

    fn latches(&self) -> MutexGuard<'_, Latches> {
        self.latches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn attach(&self, attachment: Attachment) -> Result<(), StartError> {
        let mut latches = self.latches();
        if self.status.is_running() {
            return Err(StartError::Running(self.status.id));
        }
        latches.attached = Some(Attached::new(attachment, self.status.id, self.has_buffers())?);
        Ok(())
    }

    /// Whether software writes frames into buffers of the device (§3.2.5).
    fn has_buffers(&self) -> bool {
        self.protocol.has_buffers(self.status.id.direction)
    }

    /// A write to the queue's data component.
    pub fn write_data(&self, offset: u32, bytes: &[u8]) {
        if let Some(buffers) = self.latches().attached.as_ref().and_then(|attached| attached.buffers.as_ref()) {
            buffers.write_data(offset, bytes);
        }
    }

    /// A write to the queue's header component: the doorbell.
    pub fn write_headers(&self, offset: u32, bytes: &[u8], mailbox: &Mailbox) {
        if let Some(attached) = &self.latches().attached
            && attached.buffers.as_ref().is_some_and(|buffers| buffers.write_headers(offset, bytes))
        {
            attached.wake(mailbox);
        }
    }

    pub fn read32(&self, offset: u32) -> u32 {
        let view = View { latches: &self.latches(), status: &self.status, has_buffers: self.has_buffers() };
        self.protocol.read32(&view, offset)
    }

    pub fn write32(&self, offset: u32, value: u32, limits: FrameLimits, discard: bool, mailbox: &Mailbox) {
        let mut latches = self.latches();
        let target = Target { latches: &mut latches, status: &self.status, mailbox };
        match self.protocol.write32(target, offset, value) {
            Asked::Nothing => {}
            Asked::Start { discard: asked } => self.start(&mut latches, limits, discard || asked, mailbox),
            Asked::Stop => self.ask_to_stop(latches, mailbox),
        }
    }

    /// A 64-bit write of SDP moves both pointers at once (§3.2).
    pub fn write_pointers(&self, value: u64, mailbox: &Mailbox) {
        self.latches().set_pointers(value, mailbox);
    }

    /// Takes everything off the queue that a driver has attached to it; the queue must not run.
    pub fn detach(&self) {
        let (attached, pins) = {
            let mut latches = self.latches();
            latches.control = 0;
            latches.pointers = latches.doorbell();
            latches.resume = None;
            let held = latches.held.take();
            ((latches.attached.take(), held), core::mem::take(&mut latches.pins))
        };
        drop((attached, pins));
        self.status.forget_stop();
        if !self.status.is_running() {
            self.status.has_stopped();
        }
    }

    /// Who opens it now has said nothing of launch times yet.
    pub fn forget_launch_policy(&self) {
        self.latches().launch = LaunchPolicy::default();
    }

    pub fn set_reclaimer(&self, reclaimer: Box<Reclaimer>) {
        if let Some(attached) = &mut self.latches().attached {
            attached.reclaimer = Some(reclaimer);
        }
    }

    /// Why the last START was refused.
    pub fn refusal(&self) -> Option<StartError> {
        self.latches().refusal
    }

    /// How many STARTs were refused, and why the last of them was if none has worked since.
    pub fn refusals(&self) -> (u64, Option<StartError>) {
        let latches = self.latches();
        (latches.refused, latches.refusal)
    }

    /// Notes that a START was refused before it came here.
    pub fn refuse(&self, why: StartError) {
        self.note_refusal(&mut self.latches(), why);
    }

    fn note_refusal(&self, latches: &mut Latches, why: StartError) {
        tracing::debug!(queue = %self.status.id, %why, "START refused");
        latches.refusal = Some(why);
        latches.refused += 1;
    }
}
