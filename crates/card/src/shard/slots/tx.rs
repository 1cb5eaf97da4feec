//! A ring of a TX queue in its shard.

use super::engine_state::EngineState;
use super::{Answer, Openers, Parked, Steady, wake_fence};
use crate::counters::{Counts, QueueDrop};
use crate::engine::TxEngine;
use crate::pass_clock::PassClock;
use crate::queue_status::QueueStatus;
use crate::schedule::Discipline;
use crate::sleep::Sleep;
use crate::turns::{ColdRing, Item, cost};
use millrace_abi::control::{FaultKind, QueueState};
use millrace_dma::{Ordering, fence};
use millrace_ring::{EngineFault, Served};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

static NEXT_TICKET: AtomicU64 = AtomicU64::new(1);

/// A ring of a TX queue in its shard. Ring 0 is the one that the registers show; each writer that shares the queue
/// without the driver in between has one more, and the worker gives them their turns.
pub(crate) struct TxSlot {
    pub queue: Arc<QueueStatus>,
    /// Index of its port.
    pub port: usize,
    pub ring: u32,
    /// Which of the port's port queues it sends to.
    pub bundle: u32,
    /// Place of ring 0, where the queue's counts are, which its rings share.
    pub counts_at: usize,
    /// Ring 0: how many further rings the queue has here.
    pub others: u32,
    /// Frames that have left the ring and for which there was no room where they go.
    pub parked: Option<Box<Parked>>,
    /// With rules: to whom its frames go.
    pub steady: Steady,
    /// On a port with a schedule: what its frames have to keep to.
    pub discipline: Option<Box<Discipline>>,
    pub engine: EngineState<TxEngine>,
    pub openers: Openers,
    /// Tells one start of a ring from another: frames that a port still has may outlive the ring.
    pub ticket: u64,
    /// What the last burst is charged with.
    pub cost: u32,
    /// Frames that have left since it was started.
    pub left: u64,
    /// Frames that have come off the ring since then: those, and what was dropped there.
    pub taken: u64,
    // Whether frames come one at a time.
    is_lone: bool,
    // Whether those who sleep are to be woken at the end of the turn.
    is_touched: bool,
    // Hits and misses of the engine that are in the counts.
    translations: (u64, u64),
}

impl TxSlot {
    pub fn new(queue: Arc<QueueStatus>, ring: u32, port: usize, bundle: u32) -> Self {
        Self {
            queue,
            port,
            ring,
            bundle,
            counts_at: 0,
            others: 0,
            parked: None,
            steady: Steady::default(),
            discipline: None,
            engine: EngineState::None,
            openers: Openers::default(),
            ticket: 0,
            cost: 0,
            left: 0,
            taken: 0,
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

    /// Its engine, if it has one, goes by the clock of this worker from now on.
    pub fn use_clock(&mut self, clock: &Arc<PassClock>) {
        if let Some(engine) = self.engine.running_mut() {
            engine.use_clock(clock);
        }
    }

    pub fn begin(&mut self, engine: Box<TxEngine>) {
        self.translations = engine.iotlb_counts();
        (self.left, self.taken) = (0, 0);
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
        if self.pending() || self.is_held() || self.parked.is_some() || self.queue.stop_is_asked() {
            flag.store(0, Ordering::Relaxed);
            return None;
        }
        Some(ColdRing { item, kick, flag })
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
        self.parked.is_none() && self.engine.running_mut().is_none_or(|engine| engine.is_drained())
    }

    /// Whether the next frame waits for its launch time.
    #[inline(always)]
    pub fn is_held(&self) -> bool {
        self.engine.running().is_some_and(|engine| engine.is_held())
    }

    /// How long the next frame waits for its launch time, or for the schedule of its port, by the card's clock; `None`: it does
    /// not.
    pub fn launch_in(&self, clock: &PassClock) -> Option<Duration> {
        let launch = self.engine.running()?.launch_in();
        let waits = self.discipline.as_ref().map(|discipline| discipline.waits(clock)).filter(|&left| left > 0);
        launch.or(waits.map(Duration::from_nanos))
    }

    /// When the next frame may leave for which that has not come yet: its launch time, or what the schedule of its port says, in ns
    /// of the card's clock. `None`: it waits for nothing, or has to be judged again.
    pub fn leaves_at(&self, clock: &PassClock) -> Option<u64> {
        let launch = self.engine.running()?.held_until();
        launch.or_else(|| self.discipline.as_ref()?.waits_until(clock))
    }

    /// Which of the rings whose times are equal goes first: that of the higher class, then that of the lower number.
    pub fn order(&self) -> u64 {
        let class = self.discipline.as_ref().map_or(0, |discipline| discipline.class());
        u64::from(u8::MAX - class) << 56 | u64::from(self.queue.id.index) << 32 | u64::from(self.ring)
    }

    /// The next frame leaves soon: what that will need is fetched.
    pub fn prepare(&self) {
        if let Some(engine) = self.engine.running() {
            engine.prepare();
        }
        core::hint::black_box((self.openers.want_stamps(), self.left, self.cost, self.ticket, self.translations));
    }

    /// Whether the engine may be asked for a frame shortly before its launch time, and waits for that itself: not if somebody else has
    /// to be asked as well, or wants to know between which times it left.
    #[inline(always)]
    pub fn can_wait(&self) -> bool {
        self.discipline.is_none() && !self.openers.want_stamps()
    }

    /// The time of the next frame has come, or does so within `patience` ns; the next burst waits for it so long, and takes none with a
    /// later launch time than `until`.
    #[inline(always)]
    pub fn come_due(&mut self, until: u64, patience: u64) {
        if let Some(engine) = self.engine.running_mut() {
            engine.come_due(until, patience);
        }
    }

    /// Takes over what a burst did, if it did anything: `served` does not name frames that were dropped behind the
    /// ring. `false` when the queue has to leave the active list.
    #[inline(always)]
    pub fn finish(&mut self, counts: &mut Counts, served: Served, moved: bool) -> bool {
        self.cost = cost::of(served.frames.max(served.looked.into()), served.bytes);
        if moved {
            self.is_lone = served.frames == 1;
            self.left += served.frames;
            let unfit = served.too_short + served.too_long + served.too_far + served.too_late;
            self.taken += served.frames + served.dropped + unfit;
            counts.passed += served.frames;
            counts.passed_bytes += served.bytes;
            counts.drops[QueueDrop::TooShort as usize] += served.too_short;
            counts.drops[QueueDrop::TooLong as usize] += served.too_long;
            counts.drops[QueueDrop::LaunchTooFar as usize] += served.too_far;
            counts.drops[QueueDrop::LaunchTooLate as usize] += served.too_late;
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

    /// Takes the engine and the openers off it, who are told nothing. Frames that have left the ring and wait go on waiting.
    pub fn freeze(&mut self, sleep: &Sleep, answer: &mut Answer) {
        wake_fence();
        self.announce();
        answer.tx.extend(self.engine.take().map(|engine| *engine));
        answer.openers.extend(self.openers.take_quietly(sleep));
    }

    /// Takes everything off it, at once.
    pub fn halt(&mut self, sleep: &Sleep, answer: &mut Answer) {
        answer.tx.extend(self.engine.take().map(|engine| *engine));
        self.openers.show(QueueState::Stopped, None);
        answer.openers.extend(self.openers.take_all(sleep));
    }
}
