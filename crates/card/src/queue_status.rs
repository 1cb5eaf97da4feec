//! What a queue's registers and the worker that serves it tell each other.

use crate::counters::SharedCounts;
use millrace_abi::control::{FAULT_IOVA_AT, QueueState, STATE_AT};
use millrace_abi::queue::{Direction, Engine, QueueId};
use millrace_dma::{Ordering, Window};
use millrace_ring::EngineFault;
use millrace_ring::dd::LaunchCounts;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

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

/// Which queue it is, how it stands, and whether it is to stop.
pub(crate) struct QueueStatus {
    pub id: QueueId,
    pub engine: Engine,
    /// Written by the worker that serves the queue.
    pub counts: SharedCounts,
    /// The same, of frames with launch times; of TX queues of DD.
    pub launches: Option<Arc<LaunchCounts>>,
    state: AtomicU32,
    fault_iova: AtomicU64,
    stop: AtomicBool,
}

impl QueueStatus {
    pub fn new(id: QueueId, engine: Engine) -> Self {
        let has_launches = engine == Engine::Dd && id.direction == Direction::Tx;
        Self {
            id,
            engine,
            launches: has_launches.then(Arc::default),
            counts: SharedCounts::default(),
            state: AtomicU32::new(QueueState::Stopped.to_word()),
            fault_iova: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    pub fn state(&self) -> QueueState {
        QueueState::from_word(self.state.load(Ordering::Acquire)).unwrap_or(QueueState::Stopped)
    }

    pub fn fault_iova(&self) -> Option<u64> {
        matches!(self.state(), QueueState::Faulted(_)).then(|| self.fault_iova.load(Ordering::Relaxed))
    }

    pub fn is_running(&self) -> bool {
        self.state() == QueueState::Running
    }

    /// The queue is given to its worker.
    pub fn has_started(&self) {
        self.stop.store(false, Ordering::Relaxed);
        self.state.store(QueueState::Running.to_word(), Ordering::Release);
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

    /// Has the worker stop the queue once it is drained.
    pub fn ask_to_stop(&self) {
        // Release pairs with the Acquire in `stop_is_asked`.
        self.stop.store(true, Ordering::Release);
    }

    /// Nobody asks any more.
    pub fn forget_stop(&self) {
        self.stop.store(false, Ordering::Relaxed);
    }

    /// Whether the worker is to stop the queue once it is drained.
    #[inline(always)]
    pub fn stop_is_asked(&self) -> bool {
        // Acquire pairs with the Release in `ask_to_stop`: doorbells rung before it are visible.
        self.stop.load(Ordering::Acquire)
    }
}
