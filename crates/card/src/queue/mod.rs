//! A queue as its registers show it (`docs/spec/nfb-card.md` §3).
//!
//! * here: what software wrote last, what is attached; the state is in `queue_status`, which the worker has as well
//! * `registers`: reads and writes, by offset
//! * `start`: START and STOP
//! * `build`: what START makes of the registers; `protocol`: which registers there are, and which engine that becomes

mod build;
mod error;
mod protocol;
mod registers;
mod start;

pub use build::RingProgram;
pub use error::StartError;

use crate::buffers::TxBuffers;
use crate::counters::Counts;
use crate::mailbox::Mailbox;
use crate::opener::{Attachment, Opener};
use crate::queue_status::QueueStatus;
use crate::tsu::Tsu;
use millrace_abi::control::{CARD_SLEEPS_AT, DOORBELL_AT};
use millrace_abi::queue::{Engine, QueueId};
use millrace_abi::register::Controller;
use millrace_dma::{Ordering, Pinned, Window, Word64};
use millrace_ring::shared::Reclaimer;
use millrace_ring::wake::Ringer;
use protocol::{QueueProtocol, protocol};
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

/// What software wrote, and what it may read back.
#[derive(Default)]
struct Latches {
    attached: Option<Attached>,
    control: u32,
    timeout: u32,
    irq: u32,
    max_request: u32,
    exper: u32,
    ring_mask: u32,
    masks: [u32; 2],
    desc_base: u64,
    hdr_base: u64,
    update_base: u64,
    // The software pointers while nothing is attached; then the doorbell holds them.
    pointers: u64,
    // Counts at the last reset, and as of the last strobe (already relative to the reset).
    zero: Counts,
    strobed: Counts,
    refusal: Option<StartError>,
    refused: u64,
    // Rings of a running queue: they cannot be unmapped.
    pins: Vec<Pinned>,
}

struct Attached {
    domain: Arc<millrace_dma::Domain>,
    control: Window,
    doorbell: Word64,
    // Says when the worker sleeps; None: nobody says so, and every write of a pointer wakes it.
    ringer: Option<Ringer>,
    reclaimer: Option<Box<Reclaimer>>,
    openers: Vec<Opener>,
    // Calypte TX only.
    buffers: Option<TxBuffers>,
}

impl Attached {
    fn new(attachment: Attachment, queue: &Queue) -> Result<Self, StartError> {
        let Attachment { domain, control, reclaimer, openers, buffers } = attachment;
        let doorbell = control.word64(DOORBELL_AT).map_err(|_| StartError::Size(0))?;
        // The worker writes `card_sleeps` for openers only.
        let ringer = control.word32(CARD_SLEEPS_AT).ok().filter(|_| !openers.is_empty()).map(Ringer::new);
        let buffers = match buffers {
            None if queue.has_buffers() => Some(TxBuffers::own().map_err(|_| StartError::NoMemory(queue.status.id))?),
            given => given.filter(|_| queue.has_buffers()),
        };
        Ok(Self { domain, control, doorbell, ringer, reclaimer, openers, buffers })
    }

    /// Wakes the worker if it sleeps, after something was stored that it polls.
    fn wake(&self, mailbox: &Mailbox) {
        if self.ringer.as_ref().is_none_or(Ringer::must_signal) {
            mailbox.kick_all();
        }
    }

    /// Moves the software pointers as software does that writes the doorbell itself.
    fn ring(&self, pointers: u64, mailbox: &Mailbox) {
        // Release pairs with the Acquire of the card's half: what software wrote before the register is visible.
        self.doorbell.store(pointers, Ordering::Release);
        self.wake(mailbox);
    }
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
        latches.attached = Some(Attached::new(attachment, self)?);
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

    /// Takes everything off the queue that a driver has attached to it; the queue must not run.
    pub fn detach(&self) {
        let (attached, pins) = {
            let mut latches = self.latches();
            latches.control = 0;
            latches.pointers = Self::doorbell(&latches);
            (latches.attached.take(), core::mem::take(&mut latches.pins))
        };
        drop((attached, pins));
        self.status.forget_stop();
        if !self.status.is_running() {
            self.status.has_stopped();
        }
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
