//! A ring of a TX queue in its lane.

use super::answer::Answer;
use super::engine_state::EngineState;
use super::openers::{Openers, wake_fence};
use crate::counters::{Counts, QueueDrop};
use crate::engine::TxEngine;
use crate::queue_status::QueueStatus;
use crate::sleep::Sleep;
use crate::turns::{ColdRing, Item, cost};
use millrace_abi::control::{FaultKind, QueueState};
use millrace_dma::{Ordering, fence};
use millrace_ring::{EngineFault, Served};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

static NEXT_TICKET: AtomicU64 = AtomicU64::new(1);

/// A ring of a TX queue in its lane. Ring 0 is the one that the registers show; each writer that shares the queue
/// without the driver in between has one more, and the worker gives them their turns.
pub(crate) struct TxSlot {
    pub queue: Arc<QueueStatus>,
    pub ring: u32,
    /// Which of the port's port queues it sends to.
    pub bundle: u32,
    /// Place of ring 0, where the queue's counts are, which its rings share.
    pub counts_at: usize,
    /// Loopback: where the RX queue of the same index was last found.
    pub rx_at: usize,
    pub engine: EngineState<TxEngine>,
    pub openers: Openers,
    /// Tells one start of a ring from another: frames that a port still has may outlive the ring.
    pub ticket: u64,
    /// What the last burst is charged with.
    pub cost: u32,
    // Whether frames come one at a time.
    is_lone: bool,
    // Whether those who sleep are to be woken at the end of the turn.
    is_touched: bool,
    // Hits and misses of the engine that are in the counts.
    translations: (u64, u64),
}

impl TxSlot {
    pub fn new(queue: Arc<QueueStatus>, ring: u32, bundle: u32) -> Self {
        Self {
            queue,
            ring,
            bundle,
            counts_at: 0,
            rx_at: 0,
            engine: EngineState::None,
            openers: Openers::default(),
            ticket: 0,
            cost: 0,
            is_lone: false,
            is_touched: false,
            translations: (0, 0),
        }
    }

    pub fn is_running(&self) -> bool {
        self.engine.is_running()
    }

    pub fn sync(&mut self) {
        if let Some(engine) = self.engine.any_mut() {
            engine.sync();
        }
    }

    pub fn begin(&mut self, engine: Box<TxEngine>) {
        self.translations = engine.iotlb_counts();
        self.ticket = NEXT_TICKET.fetch_add(1, Ordering::Relaxed);
        self.engine = EngineState::Running(engine);
    }

    /// A port is done with so many frames that it sent from where they lay.
    pub fn complete(&mut self, frames: u32) {
        if let Some(TxEngine::Dd(engine)) = self.engine.running_mut() {
            engine.complete(frames);
            wake_fence();
            self.openers.wake();
        }
    }

    /// The ring, which is `item`, was quiet for long: says that the card sleeps. `None` when it has to be looked at
    /// all the same: several openers share it, or something has just come.
    #[cold]
    pub fn cool(&mut self, item: Item) -> Option<ColdRing> {
        let (kick, flag) = self.openers.sole()?;
        flag.store(1, Ordering::Relaxed);
        // Pairs with the fence in `Ringer::must_signal`.
        fence(Ordering::SeqCst);
        let launch = self.next_due();
        if self.pending() || self.queue.stop_is_asked() || launch.is_some_and(|launch| launch <= Instant::now()) {
            flag.store(0, Ordering::Relaxed);
            return None;
        }
        Some(ColdRing { item, kick, flag, launch })
    }

    /// Shows how far the ring has come.
    pub fn publish(&self, counts: &mut Counts) {
        if let Some(engine) = self.engine.running().filter(|_| self.ring == 0) {
            counts.pointers = engine.pointers();
            self.queue.counts.publish(counts);
        }
    }

    #[inline(always)]
    pub fn pending(&mut self) -> bool {
        self.engine.running_mut().is_some_and(|engine| engine.pending())
    }

    /// Asks for what the next frame will most likely lie in, if frames come one at a time: software that writes many at
    /// once would lose the line that it is writing.
    #[inline(always)]
    pub fn anticipate(&self) {
        if self.is_lone
            && let Some(engine) = self.engine.running()
        {
            engine.anticipate();
        }
    }

    /// Whether nothing is left of what software has given to the card; not so while a frame waits for its launch time.
    pub fn is_drained(&mut self) -> bool {
        self.engine.running_mut().is_none_or(|engine| engine.is_drained())
    }

    /// When a frame that waits for its launch time wants to be looked at.
    pub fn next_due(&self) -> Option<Instant> {
        self.engine.running().and_then(|engine| engine.next_due())
    }

    /// Takes over what a burst did, if it did anything: `served` does not name frames that were dropped behind the
    /// ring. `false` when the queue has to leave the active list.
    #[inline(always)]
    pub fn finish(&mut self, counts: &mut Counts, served: Served, moved: bool) -> bool {
        self.cost = cost::of(served.frames.max(served.looked.into()), served.bytes);
        if moved {
            self.is_lone = served.frames == 1;
            counts.passed += served.frames;
            counts.passed_bytes += served.bytes;
            counts.drops[QueueDrop::TooShort as usize] += served.too_short;
            counts.drops[QueueDrop::TooLong as usize] += served.too_long;
            counts.drops[QueueDrop::LaunchTooFar as usize] += served.too_far;
            if let Some(engine) = self.engine.running() {
                if self.ring == 0 {
                    counts.pointers = engine.pointers();
                }
                let (hits, misses) = engine.iotlb_counts();
                counts.iotlb_hits += hits - self.translations.0;
                counts.iotlb_misses += misses - self.translations.1;
                self.translations = (hits, misses);
            }
            let unmapped = served.fault.is_some_and(|fault| fault.kind == FaultKind::Unmapped);
            counts.iotlb_faults += u64::from(unmapped);
            self.queue.counts.publish(counts);
            // Who sees the fault finds it counted.
            if let Some(fault) = served.fault {
                self.lose(fault);
            }
        }
        served.fault.is_none()
    }

    /// Whether it has become one to be [announced](TxSlot::announce). To be called when a burst has moved the ring.
    #[inline(always)]
    pub fn touch(&mut self) -> bool {
        !core::mem::replace(&mut self.is_touched, true)
    }

    /// Wakes those who sleep, behind a [`wake_fence`].
    #[inline(always)]
    pub fn announce(&mut self) {
        self.is_touched = false;
        self.openers.wake();
    }

    /// Ends the ring, and says why: the queue only if that is the ring of its registers.
    #[cold]
    pub fn lose(&mut self, fault: EngineFault) {
        self.engine.end();
        if self.ring == 0 {
            self.queue.has_faulted(fault);
        }
        self.openers.show(QueueState::Faulted(fault.kind), Some(fault));
    }

    /// Stops the ring if that was asked for; it must be drained.
    #[cold]
    pub fn stop(&mut self) {
        self.engine.end();
        if self.ring == 0 {
            self.queue.has_stopped();
        }
        self.openers.show(QueueState::Stopped, None);
    }

    /// Takes everything off it, at once.
    pub fn halt(&mut self, sleep: &Sleep, answer: &mut Answer) {
        answer.tx.extend(self.engine.take().map(|engine| *engine));
        self.openers.show(QueueState::Stopped, None);
        answer.openers.extend(self.openers.take_all(sleep));
    }
}
