//! A queue as its registers show it: latches, START and STOP, pointers and counters (`specs/nfb-card.md` §3).

use crate::buffers::TxBuffers;
use crate::command::{Attachment, Command, Opener};
use crate::counters::{Counts, SharedCounts};
use crate::engine::{RxEngine, TxEngine};
use crate::mailbox::{Mailbox, Unanswered};
use crate::tsu::Tsu;
use millrace_abi::control::{CARD_SLEEPS_AT, DOORBELL_AT, FAULT_IOVA_AT, QueueState, STATE_AT};
use millrace_abi::queue::{Direction, Engine, QueueId};
use millrace_abi::register::{Offset, calypte as c, dd as d, medusa as m, sze as s};
use millrace_dma::{Access, Fault, Iotlb, Iova, Ordering, Pinned, Window, Word64};
use millrace_ring::shared::Reclaimer;
use millrace_ring::wake::Ringer;
use millrace_ring::{EngineFault, FrameLimits, calypte, dd, medusa, sze};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why START did not start the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// No domain and no control page were attached: the card cannot reach any memory.
    #[error(
        "no memory is attached to {0}: open the queue before starting it; a driver that starts queues by itself, on \
         memory of its own, needs the card in its own process (`embedded`)"
    )]
    NotAttached(QueueId),
    /// Somebody else uses the queue, or has locked its DMA controller.
    #[error("{0} is in use by somebody else, who has locked its DMA controller")]
    Held(QueueId),
    /// It runs already.
    #[error("{0} is running already; stop it first")]
    Running(QueueId),
    /// A ring that is no power of two, or larger than the card can.
    #[error("a ring of {0} entries or bytes: the card wants a power of two within its limits")]
    Size(u64),
    /// An address that is not aligned as its use needs.
    #[error("IOVA {0} is not aligned as its register needs")]
    Unaligned(Iova),
    /// An address outside the domain.
    #[error("{0}")]
    Unmapped(#[from] Fault),
    /// The system refused memory or descriptors.
    #[error("the system refused memory or descriptors for {0}; free memory or use fewer queues")]
    NoMemory(QueueId),
    /// The worker did not answer.
    #[error("the card's worker does not answer")]
    Stuck,
}

/// Shows a state in a control page.
pub(crate) fn show_state(control: &Window, state: QueueState, fault: Option<EngineFault>) {
    if let Some(fault) = fault
        && let Ok(word) = control.word64(FAULT_IOVA_AT)
    {
        word.store(fault.iova.get(), Ordering::Relaxed);
    }
    if let Ok(word) = control.word32(STATE_AT) {
        // Release pairs with the Acquire of whoever reads the state: the IOVA is there.
        word.store(state.to_word(), Ordering::Release);
    }
}

/// One queue of the card.
pub(crate) struct Queue {
    pub id: QueueId,
    pub engine: Engine,
    /// Written by the worker that serves the queue.
    pub counts: SharedCounts,
    state: AtomicU32,
    fault_iova: AtomicU64,
    stop: AtomicBool,
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
            None if queue.has_buffers() => Some(TxBuffers::own().map_err(|_| StartError::NoMemory(queue.id))?),
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
        let latches = Latches {
            timeout: match engine {
                Engine::Sze => s::TIMEOUT_DEFAULT,
                Engine::Medusa | Engine::Calypte | Engine::Dd => m::TIMEOUT_DEFAULT,
            },
            ..Latches::default()
        };
        Self {
            id,
            engine,
            counts: SharedCounts::default(),
            state: AtomicU32::new(QueueState::Stopped.to_word()),
            fault_iova: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            latches: Mutex::new(latches),
            tsu,
        }
    }

    fn latches(&self) -> MutexGuard<'_, Latches> {
        self.latches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn state(&self) -> QueueState {
        QueueState::from_word(self.state.load(Ordering::Acquire)).unwrap_or(QueueState::Stopped)
    }

    pub fn fault_iova(&self) -> Option<u64> {
        matches!(self.state(), QueueState::Faulted(_)).then(|| self.fault_iova.load(Ordering::Relaxed))
    }

    fn is_running(&self) -> bool {
        self.state() == QueueState::Running
    }

    /// The worker has stopped the queue because something was wrong.
    pub fn has_faulted(&self, fault: EngineFault) {
        millrace_port::notice::warn(format!("{}: stopped by a fault: {fault}", self.id));
        self.fault_iova.store(fault.iova.get(), Ordering::Relaxed);
        // Release pairs with the Acquire in `state`.
        self.state.store(QueueState::Faulted(fault.kind).to_word(), Ordering::Release);
    }

    /// The worker has stopped the queue because that was asked for.
    pub fn has_stopped(&self) {
        self.state.store(QueueState::Stopped.to_word(), Ordering::Release);
    }

    /// Whether the worker is to stop the queue once it is drained.
    #[inline(always)]
    pub fn stop_is_asked(&self) -> bool {
        // Acquire pairs with the Release in `ask_to_stop`: doorbells rung before it are visible.
        self.stop.load(Ordering::Acquire)
    }

    pub fn attach(&self, attachment: Attachment) -> Result<(), StartError> {
        let mut latches = self.latches();
        if self.is_running() {
            return Err(StartError::Running(self.id));
        }
        latches.attached = Some(Attached::new(attachment, self)?);
        Ok(())
    }

    /// Whether software writes frames into buffers of the device (§3.2.5).
    fn has_buffers(&self) -> bool {
        (self.engine, self.id.direction) == (Engine::Calypte, Direction::Tx)
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
        self.stop.store(false, Ordering::Relaxed);
        if !self.is_running() {
            self.has_stopped();
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
        tracing::debug!(queue = %self.id, %why, "START refused");
        latches.refusal = Some(why);
        latches.refused += 1;
    }

    pub fn read32(&self, offset: u32) -> u32 {
        match self.engine {
            Engine::Medusa | Engine::Calypte | Engine::Dd => self.read_medusa(offset),
            Engine::Sze => self.read_sze(offset),
        }
    }

    pub fn write32(&self, offset: u32, value: u32, limits: FrameLimits, discard: bool, mailbox: &Mailbox) {
        match self.engine {
            Engine::Medusa | Engine::Calypte | Engine::Dd => self.write_medusa(offset, value, limits, discard, mailbox),
            Engine::Sze => self.write_sze(offset, value, limits, discard, mailbox),
        }
    }

    /// A 64-bit write of SDP moves both pointers at once (§3.2).
    pub fn write_pointers(&self, value: u64, mailbox: &Mailbox) {
        set_pointers(&mut self.latches(), value, mailbox);
    }

    fn doorbell(latches: &Latches) -> u64 {
        latches.attached.as_ref().map_or(latches.pointers, |attached| attached.doorbell.load(Ordering::Acquire))
    }

    /// MDP and MHP. Those of Calypte TX are the device's to say.
    fn masks(&self, latches: &Latches) -> [u32; 2] {
        if self.has_buffers() {
            return [c::TX_RING - 1, c::TX_HEADERS - 1];
        }
        latches.masks.map(|mask| if mask == m::MASK_PROBE { m::MASK_LIMIT } else { mask })
    }

    /// Medusa, and Calypte and DD, whose registers lie at the same offsets.
    fn read_medusa(&self, offset: u32) -> u32 {
        let latches = self.latches();
        let strobed = &latches.strobed;
        match Offset::new(offset) {
            m::CONTROL => latches.control,
            m::STATUS => u32::from(self.is_running()) * m::STATUS_RUNNING,
            m::EXPER => latches.exper,
            m::SDP => Self::doorbell(&latches) as u32,
            m::SHP => (Self::doorbell(&latches) >> 32) as u32,
            m::HDP => self.counts.read().pointers[0],
            m::HHP => self.counts.read().pointers[1],
            m::TIMEOUT => latches.timeout,
            m::MDP => self.masks(&latches)[0],
            m::MHP => self.masks(&latches)[1],
            _ => half_of(offset, m::DESC_BASE, latches.desc_base)
                .or_else(|| half_of(offset, m::HDR_BASE, latches.hdr_base))
                .or_else(|| half_of(offset, m::UPDATE_BASE, latches.update_base))
                .or_else(|| half_of(offset, m::PASSED_FRAMES, strobed.passed))
                .or_else(|| half_of(offset, m::PASSED_BYTES, strobed.passed_bytes))
                .or_else(|| half_of(offset, m::DISCARDED_FRAMES, strobed.dropped()))
                .or_else(|| half_of(offset, m::DISCARDED_BYTES, strobed.dropped_bytes))
                .unwrap_or(0),
        }
    }

    fn write_medusa(&self, offset: u32, value: u32, limits: FrameLimits, discard: bool, mailbox: &Mailbox) {
        let mut latches = self.latches();
        match Offset::new(offset) {
            m::CONTROL if value & m::CONTROL_START != 0 => self.start(&mut latches, limits, discard, mailbox),
            m::CONTROL => self.ask_to_stop(latches, mailbox),
            m::EXPER => latches.exper = value,
            m::TIMEOUT => latches.timeout = value,
            m::MDP => latches.masks[0] = value,
            m::MHP => latches.masks[1] = value,
            m::SDP => move_half(&mut latches, value, 0, mailbox),
            m::SHP => move_half(&mut latches, value, 32, mailbox),
            m::COUNTER_COMMAND => self.counter_command(&mut latches, value),
            _ => {
                set_half(offset, m::DESC_BASE, value, &mut latches.desc_base);
                set_half(offset, m::HDR_BASE, value, &mut latches.hdr_base);
                set_half(offset, m::UPDATE_BASE, value, &mut latches.update_base);
            }
        }
    }

    fn counter_command(&self, latches: &mut Latches, command: u32) {
        let now = self.counts.read();
        if command != m::COUNTERS_RESET {
            latches.strobed = minus(now, &latches.zero);
        } else {
            latches.strobed = Counts::default();
        }
        if command != m::COUNTERS_STROBE {
            latches.zero = now;
        }
    }

    fn read_sze(&self, offset: u32) -> u32 {
        let latches = self.latches();
        let counts = || minus(self.counts.read(), &latches.zero);
        match Offset::new(offset) {
            s::CONTROL => latches.control,
            s::STATUS if self.is_running() => {
                s::STATUS_RUNNING | s::STATUS_DESCRIPTORS_READY | s::STATUS_DATA_READY | s::STATUS_RING_READY
            }
            s::STATUS => 0,
            s::SW_POINTER => Self::doorbell(&latches) as u32,
            s::HW_POINTER => self.counts.read().pointers[0],
            s::RING_MASK => latches.ring_mask,
            s::IRQ => latches.irq,
            s::TIMEOUT => latches.timeout,
            s::MAX_REQUEST => latches.max_request,
            _ => half_of(offset, s::DESC_BASE, latches.desc_base)
                .or_else(|| half_of(offset, s::UPDATE_BASE, latches.update_base))
                .or_else(|| half_of(offset, s::PASSED_FRAMES, counts().passed))
                .or_else(|| half_of(offset, s::DISCARDED_FRAMES, counts().dropped()))
                .unwrap_or(0),
        }
    }

    fn write_sze(&self, offset: u32, value: u32, limits: FrameLimits, discard: bool, mailbox: &Mailbox) {
        let mut latches = self.latches();
        match Offset::new(offset) {
            s::CONTROL if value & s::CONTROL_START != 0 => {
                latches.control = value;
                let discard = discard || value & s::CONTROL_DISCARD != 0;
                self.start(&mut latches, limits, discard, mailbox);
            }
            s::CONTROL => self.ask_to_stop(latches, mailbox),
            s::SW_POINTER => set_pointers(&mut latches, u64::from(value), mailbox),
            s::RING_MASK => latches.ring_mask = value,
            s::IRQ => latches.irq = value,
            s::TIMEOUT => latches.timeout = value,
            s::MAX_REQUEST => latches.max_request = value,
            s::COUNTER_COMMAND if value == s::COUNTERS_RESET => latches.zero = self.counts.read(),
            _ => {
                set_half(offset, s::DESC_BASE, value, &mut latches.desc_base);
                set_half(offset, s::UPDATE_BASE, value, &mut latches.update_base);
            }
        }
    }

    fn start(&self, latches: &mut Latches, limits: FrameLimits, discard: bool, mailbox: &Mailbox) {
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
        if self.is_running() {
            return Err(StartError::Running(self.id));
        }
        // A queue that faulted may still hold its old engine.
        let old = mailbox.call(Command::Halt(self.id)).map_err(|_| StartError::Stuck)?;
        drop(old);
        let mut pins = Vec::new();
        let attached = latches.attached.as_ref().ok_or(StartError::NotAttached(self.id))?;
        let build = Build { latches, attached, limits, tsu: &self.tsu, pins: &mut pins };
        let command = match (self.engine, self.id.direction) {
            (_, Direction::Tx) => Built::Tx(build.tx(self.engine)?),
            (Engine::Medusa, Direction::Rx) => Built::Rx(RxEngine::Medusa(build.medusa_rx()?)),
            (Engine::Calypte, Direction::Rx) => Built::Rx(RxEngine::Calypte(build.calypte_rx()?)),
            (Engine::Dd, Direction::Rx) => Built::Rx(RxEngine::Dd(build.dd_rx()?)),
            (Engine::Sze, Direction::Rx) => {
                let (rings, iotlb) = build.sze()?;
                Built::Rx(RxEngine::Sze(sze::CardRx::new(rings, limits, iotlb).ok_or(StartError::Size(0))?))
            }
        };
        let index = self.id.index;
        let (reclaimer, openers) = match &mut latches.attached {
            Some(attached) => (attached.reclaimer.take(), core::mem::take(&mut attached.openers)),
            None => (None, Vec::new()),
        };
        latches.pins = pins;
        latches.control |= m::CONTROL_START;
        self.stop.store(false, Ordering::Relaxed);
        self.state.store(QueueState::Running.to_word(), Ordering::Release);
        if let Some(attached) = &latches.attached {
            show_state(&attached.control, QueueState::Running, None);
        }
        let called = mailbox.call(match command {
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
        self.has_stopped();
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
        let doorbell = control.word64(DOORBELL_AT).map_err(|_| StartError::Size(0))?;
        let buffers = buffers.clone();
        let attached =
            Attached { domain, control, doorbell, ringer: None, reclaimer: None, openers: Vec::new(), buffers };
        let mut pins = Vec::new();
        let build = Build { latches: &latches, attached: &attached, limits, tsu: &self.tsu, pins: &mut pins };
        Ok((build.tx(self.engine)?, pins))
    }

    /// §3.2.3: a TX queue goes on until it is drained; an RX queue stops at once.
    fn ask_to_stop(&self, mut latches: MutexGuard<'_, Latches>, mailbox: &Mailbox) {
        latches.control = 0;
        drop(latches);
        match self.id.direction {
            Direction::Tx => {
                // Release pairs with the Acquire in `stop_is_asked`.
                self.stop.store(true, Ordering::Release);
                // So that a drained queue reads as stopped when the write returns.
                let _ = mailbox.call(Command::Look(self.id));
            }
            Direction::Rx => drop(mailbox.call(Command::Halt(self.id))),
        }
    }
}

enum Built {
    Tx(TxEngine),
    Rx(RxEngine),
}

/// What one more ring of a TX queue is made of: the registers that START would look at.
#[derive(Clone, Default)]
pub struct RingProgram {
    /// DESC_BASE.
    pub desc_base: u64,
    /// UPDATE_BASE.
    pub update_base: u64,
    /// MDP, or the size of the ring in bytes less one. Calypte: not looked at.
    pub mask: u32,
    /// Calypte: the buffers of the device, which this ring has to itself.
    pub buffers: Option<TxBuffers>,
}

/// What START makes of the latches.
struct Build<'a> {
    latches: &'a Latches,
    attached: &'a Attached,
    limits: FrameLimits,
    tsu: &'a Arc<Tsu>,
    pins: &'a mut Vec<Pinned>,
}

impl Build<'_> {
    fn ring(&mut self, at: u64, len: usize, align: u64, access: Access) -> Result<Window, StartError> {
        let iova = Iova::new(at);
        if !at.is_multiple_of(align) {
            return Err(StartError::Unaligned(iova));
        }
        let pinned = self.attached.domain.resolve(iova, len, access)?;
        let window = pinned.window().clone();
        self.pins.push(pinned);
        Ok(window)
    }

    fn entries(mask: u32) -> Result<u32, StartError> {
        let entries = u64::from(mask) + 1;
        let fits = entries.is_power_of_two() && entries >= 2 && entries <= u64::from(m::MAX_ENTRIES);
        if fits { Ok(entries as u32) } else { Err(StartError::Size(entries)) }
    }

    fn iotlb(&self) -> Iotlb {
        Iotlb::new(self.attached.domain.clone())
    }

    fn update(&mut self) -> Result<Word64, StartError> {
        let at = self.latches.update_base;
        let window = self.ring(at, 8, 8, Access::ReadWrite)?;
        window.word64(0).map_err(|_| StartError::Unaligned(Iova::new(at)))
    }

    fn tx(self, engine: Engine) -> Result<TxEngine, StartError> {
        let limits = self.limits;
        Ok(match engine {
            Engine::Medusa => TxEngine::Medusa(self.medusa_tx()?),
            Engine::Calypte => TxEngine::Calypte(self.calypte_tx()?),
            Engine::Dd => TxEngine::Dd(self.dd_tx()?),
            Engine::Sze => {
                let (rings, iotlb) = self.sze()?;
                TxEngine::Sze(sze::CardTx::new(rings, limits, iotlb).ok_or(StartError::Size(0))?)
            }
        })
    }

    fn medusa_tx(mut self) -> Result<medusa::CardTx, StartError> {
        let entries = Self::entries(self.latches.masks[0])?;
        let at = self.latches.desc_base;
        let unaligned = |_| StartError::Unaligned(Iova::new(at));
        let descriptors =
            self.ring(at, entries as usize * 8, 8, Access::Read)?.slots64(0, entries).map_err(unaligned)?;
        let update = self.update()?;
        let doorbell = self.attached.doorbell.clone();
        let rings = medusa::TxRings { descriptors, descriptors_at: Iova::new(at), doorbell, update };
        medusa::CardTx::new(rings, self.limits, self.iotlb()).ok_or(StartError::Size(entries.into()))
    }

    fn medusa_rx(mut self) -> Result<medusa::CardRx, StartError> {
        let (entries, headers) = (Self::entries(self.latches.masks[0])?, Self::entries(self.latches.masks[1])?);
        let (at, headers_at) = (self.latches.desc_base, self.latches.hdr_base);
        let unaligned = |_| StartError::Unaligned(Iova::new(at));
        let descriptors =
            self.ring(at, entries as usize * 8, 8, Access::Read)?.slots64(0, entries).map_err(unaligned)?;
        let headers = self
            .ring(headers_at, headers as usize * 4, 4, Access::ReadWrite)?
            .slots32(0, headers)
            .map_err(|_| StartError::Unaligned(Iova::new(headers_at)))?;
        let update = self.update()?;
        let doorbell = self.attached.doorbell.clone();
        let rings = medusa::RxRings { descriptors, descriptors_at: Iova::new(at), headers, doorbell, update };
        medusa::CardRx::new(rings, self.limits, self.iotlb()).ok_or(StartError::Size(entries.into()))
    }

    fn calypte_tx(mut self) -> Result<calypte::CardTx, StartError> {
        let update = self.update()?;
        let buffers = self.attached.buffers.clone().ok_or(StartError::Size(0))?;
        buffers.clear_headers();
        let rings = calypte::TxRings { data: buffers.data, headers: buffers.headers, update };
        calypte::CardTx::new(rings, self.limits).ok_or(StartError::Size(c::TX_RING.into()))
    }

    fn calypte_rx(mut self) -> Result<calypte::CardRx, StartError> {
        let (blocks, headers) = (Self::entries(self.latches.masks[0])?, Self::entries(self.latches.masks[1])?);
        let (at, headers_at) = (self.latches.desc_base, self.latches.hdr_base);
        let (bytes, align) = (blocks as usize * c::RX_BLOCK as usize, c::RX_BLOCK.into());
        let data = self.ring(at, bytes, align, Access::ReadWrite)?;
        let headers = self
            .ring(headers_at, headers as usize * 8, 8, Access::ReadWrite)?
            .slots64(0, headers)
            .map_err(|_| StartError::Unaligned(Iova::new(headers_at)))?;
        let (doorbell, update) = (self.attached.doorbell.clone(), self.update()?);
        let rings = calypte::RxRings { data, headers, doorbell, update };
        calypte::CardRx::new(rings, self.limits).ok_or(StartError::Size(blocks.into()))
    }

    /// The descriptor ring, which both sides write.
    fn dd_ring(&mut self) -> Result<(dd::Ring, Iova), StartError> {
        let entries = Self::entries(self.latches.masks[0])?;
        let (at, bytes) = (self.latches.desc_base, entries as usize * dd::DESCRIPTOR);
        let words = self.ring(at, bytes, d::RING_ALIGN.into(), Access::ReadWrite)?.slots64(0, bytes as u32 / 8);
        let words = words.map_err(|_| StartError::Unaligned(Iova::new(at)))?;
        Ok((dd::Ring::new(words).ok_or(StartError::Size(entries.into()))?, Iova::new(at)))
    }

    fn dd_tx(mut self) -> Result<dd::CardTx, StartError> {
        let (ring, at) = self.dd_ring()?;
        Ok(dd::CardTx::new(ring, at, self.limits, self.iotlb(), self.tsu.nanoseconds()))
    }

    fn dd_rx(mut self) -> Result<dd::CardRx, StartError> {
        let (ring, at) = self.dd_ring()?;
        Ok(dd::CardRx::new(ring, at, self.limits, self.iotlb()))
    }

    fn sze(mut self) -> Result<(sze::Rings, Iotlb), StartError> {
        let size = u64::from(self.latches.ring_mask) + 1;
        let fits = size.is_power_of_two() && (4096..=1 << 30).contains(&size);
        if !fits {
            return Err(StartError::Size(size));
        }
        let descriptors_at = Iova::new(self.latches.desc_base);
        // The list is read as the card goes along; that it begins somewhere is checked here.
        self.ring(self.latches.desc_base, 8, 8, Access::Read)?;
        let update = self.update()?;
        let doorbell = self.attached.doorbell.clone();
        Ok((sze::Rings { descriptors_at, size: size as u32, doorbell, update }, self.iotlb()))
    }
}

/// The half of a 64-bit register that lies at `offset`.
fn half_of(offset: u32, register: Offset, value: u64) -> Option<u32> {
    match offset.checked_sub(register.bytes())? {
        0 => Some(value as u32),
        4 => Some((value >> 32) as u32),
        _ => None,
    }
}

fn set_half(offset: u32, register: Offset, value: u32, to: &mut u64) {
    match offset.checked_sub(register.bytes()) {
        Some(0) => *to = *to & !0xffff_ffff | u64::from(value),
        Some(4) => *to = *to & 0xffff_ffff | u64::from(value) << 32,
        _ => {}
    }
}

fn move_half(latches: &mut Latches, value: u32, shift: u32, mailbox: &Mailbox) {
    let others = Queue::doorbell(latches) & !(u64::from(u32::MAX) << shift);
    set_pointers(latches, others | u64::from(value) << shift, mailbox);
}

fn set_pointers(latches: &mut Latches, pointers: u64, mailbox: &Mailbox) {
    match &latches.attached {
        Some(attached) => attached.ring(pointers, mailbox),
        None => latches.pointers = pointers,
    }
}

fn minus(now: Counts, zero: &Counts) -> Counts {
    let mut drops = now.drops;
    drops.iter_mut().zip(zero.drops).for_each(|(drop, zero)| *drop -= zero);
    Counts {
        passed: now.passed - zero.passed,
        passed_bytes: now.passed_bytes - zero.passed_bytes,
        dropped_bytes: now.dropped_bytes - zero.dropped_bytes,
        drops,
        ..now
    }
}
