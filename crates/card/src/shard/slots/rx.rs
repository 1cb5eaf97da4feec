//! An RX queue in its shard.

use super::engine_state::EngineState;
use super::{Answer, Openers, Wanted, wake_fence};
use crate::counters::{Counts, QueueDrop};
use crate::engine::RxEngine;
use crate::opener::Opener;
use crate::queue_status::QueueStatus;
use crate::sleep::Sleep;
use millrace_abi::control::{FaultKind, QueueState};
use millrace_dma::{Iova, Span};
use millrace_ring::dd::PostedBuffer;
use millrace_ring::shared::Reclaimer;
use millrace_ring::{Accept, EngineFault, RxOutcome};
use std::sync::Arc;

/// An RX queue in its shard.
pub(crate) struct RxSlot {
    pub queue: Arc<QueueStatus>,
    /// Index of its port.
    pub port: usize,
    /// Which of the port's port queues fills it.
    pub bundle: u32,
    pub engine: EngineState<RxEngine>,
    pub reclaimer: Option<Box<Reclaimer>>,
    pub openers: Openers,
    /// Where it is noted that somebody waits for room here; `None` while no worker has it.
    pub wanted: Option<Arc<Wanted>>,
    /// Whether it is among the queues that its shard counts as running.
    is_counted: bool,
    discard: bool,
    counts: Counts,
    unpublished: bool,
    // Made visible, but the reclaimer does not know, and those who sleep were not woken yet.
    unmarked: bool,
    unannounced: bool,
    // Whether it is to be announced at the end of the turn.
    is_touched: bool,
}

impl RxSlot {
    pub fn new(queue: Arc<QueueStatus>, port: usize, bundle: u32) -> Self {
        Self {
            queue,
            port,
            bundle,
            engine: EngineState::None,
            reclaimer: None,
            openers: Openers::default(),
            wanted: None,
            is_counted: false,
            discard: false,
            counts: Counts::default(),
            unpublished: false,
            unmarked: false,
            unannounced: false,
            is_touched: false,
        }
    }

    pub fn start(
        &mut self,
        engine: Box<RxEngine>,
        reclaimer: Option<Box<Reclaimer>>,
        openers: Vec<Opener>,
        discard: bool,
        sleep: &Sleep,
    ) {
        self.engine = EngineState::Running(engine);
        self.reclaimer = reclaimer;
        self.discard = discard;
        self.unpublished = true;
        openers.into_iter().for_each(|opener| self.openers.add(opener, sleep));
        self.openers.show(QueueState::Running, None);
        self.finish();
    }

    /// Goes on with an engine that was frozen, here or in another card.
    pub fn go_on(&mut self, engine: Box<RxEngine>, openers: Vec<Opener>, discard: bool, sleep: &Sleep) {
        self.engine = EngineState::Running(engine);
        self.discard = discard;
        self.unpublished = true;
        openers.into_iter().for_each(|opener| self.openers.add(opener, sleep));
        self.finish();
    }

    /// Takes the engine and the openers off it, who are told nothing but what has come for them.
    pub fn freeze(&mut self, sleep: &Sleep, answer: &mut Answer) {
        self.finish();
        wake_fence();
        self.announce();
        answer.rx = self.engine.take();
        answer.openers = self.openers.take_quietly(sleep);
        answer.discard = self.discard;
    }

    /// It has counted so much before it came here.
    pub fn add_counts(&mut self, counts: &Counts) {
        self.counts.add(counts);
        self.queue.counts.publish(&self.counts);
    }

    /// Stops it at once. What it held comes back.
    pub fn halt(&mut self, sleep: &Sleep, answer: &mut Answer) {
        self.finish();
        answer.rx = self.engine.take();
        answer.reclaimer = self.reclaimer.take();
        self.openers.show(QueueState::Stopped, None);
        answer.openers = self.openers.take_all(sleep);
        self.queue.has_stopped();
    }

    /// Whether it is one of the `counted` from now on.
    pub fn count_as(&mut self, runs: bool, counted: &mut usize) {
        let was = core::mem::replace(&mut self.is_counted, runs);
        *counted = *counted + usize::from(runs) - usize::from(was);
    }

    pub fn is_running(&self) -> bool {
        self.engine.is_running()
    }

    /// Bytes that have come here so far, whatever became of them.
    #[inline(always)]
    pub fn bytes(&self) -> u64 {
        self.counts.passed_bytes + self.counts.dropped_bytes
    }

    pub fn sync(&mut self) {
        if let Some(engine) = self.engine.any_mut() {
            engine.sync();
        }
    }

    /// Frames that a port has copied on their way here.
    #[inline(always)]
    pub fn count_copies(&mut self, frames: u64) {
        self.counts.copies += frames;
    }

    #[inline(always)]
    pub fn begin(&mut self) {
        if let Some(engine) = self.engine.running_mut() {
            engine.sync();
        }
    }

    /// Writes a frame to the ring, or drops and counts it, or says that it has to wait.
    #[inline(always)]
    pub fn offer(&mut self, header: &[u8], frame: Span<'_>) -> Accept {
        self.unpublished = true;
        let Some(engine) = self.engine.running_mut() else { return self.not_running(frame) };
        match engine.deliver(header, frame) {
            Ok(RxOutcome::Stored) => {
                self.stored(frame);
                Accept::Taken
            }
            Ok(RxOutcome::NoRoom) => self.no_room(header, frame),
            Ok(RxOutcome::TooLong) => {
                self.counts.drop_frame(QueueDrop::TooLong, frame.len());
                Accept::Taken
            }
            Err(fault) => self.fault(frame, fault),
        }
    }

    /// Writes frames from the front to the ring, or drops and counts them, and returns how many; fewer than there are
    /// means that the next has to wait.
    #[inline(always)]
    pub fn offer_burst(&mut self, header: &[u8], frames: &[Span<'_>]) -> usize {
        let (mut taken, mut in_runs) = (0, true);
        while let Some(&frame) = frames.get(taken) {
            let stored = if in_runs { self.store_run(header, &frames[taken..]) } else { 0 };
            taken += stored;
            if stored > 0 {
                continue;
            }
            let before = self.counts.passed;
            if self.offer(header, frame) == Accept::Full {
                break;
            }
            taken += 1;
            // Where frames are dropped, a run is not tried before each of them.
            in_runs = self.counts.passed > before;
        }
        taken
    }

    #[inline(always)]
    fn store_run(&mut self, header: &[u8], frames: &[Span<'_>]) -> usize {
        let Some(engine) = self.engine.running_mut() else { return 0 };
        let count = engine.deliver_run(header, frames);
        self.unpublished |= count > 0;
        self.counts.passed += count as u64;
        self.counts.copies += count as u64;
        self.counts.passed_bytes += frames[..count].iter().map(|frame| frame.len() as u64).sum::<u64>();
        count
    }

    /// The next buffer that software has posted, for a port that fills it itself.
    #[inline(always)]
    pub fn take_posted(&mut self) -> Option<PostedBuffer> {
        let Some(RxEngine::Dd(engine)) = self.engine.running_mut() else { return None };
        engine.take_posted().unwrap_or_else(|fault| {
            self.stop_by(fault);
            None
        })
    }

    /// Hands a frame back that lies at `iova`, in a buffer that was taken. `false`: it was dropped, and counted, and
    /// the buffer can be filled again.
    #[inline(always)]
    pub fn complete_posted(&mut self, header: &[u8], iova: Iova, frame: Span<'_>) -> bool {
        self.unpublished = true;
        let Some(RxEngine::Dd(engine)) = self.engine.running_mut() else {
            let _ = self.not_running(frame);
            return false;
        };
        let len = u16::try_from(frame.len()).ok().filter(|&len| len <= engine.longest());
        let Some(len) = len.filter(|&len| engine.deliver_swapped(iova, len, header)) else {
            self.counts.drop_frame(QueueDrop::TooLong, frame.len());
            return false;
        };
        self.counts.passed += 1;
        self.counts.passed_bytes += u64::from(len);
        true
    }

    /// The engine has copied the frame into the memory of the queue.
    #[inline(always)]
    fn stored(&mut self, frame: Span<'_>) {
        self.counts.passed += 1;
        self.counts.passed_bytes += frame.len() as u64;
        self.counts.copies += 1;
    }

    /// Drops frames for which there is no room, and whose source does not wait.
    #[cold]
    pub fn drop_for_room(&mut self, frames: &[Span<'_>]) {
        self.unpublished = true;
        frames.iter().for_each(|frame| self.counts.drop_frame(QueueDrop::NoRoom, frame.len()));
    }

    #[cold]
    fn not_running(&mut self, frame: Span<'_>) -> Accept {
        let reason = if self.engine.has_ended() { QueueDrop::Faulted } else { QueueDrop::Stopped };
        self.counts.drop_frame(reason, frame.len());
        Accept::Taken
    }

    #[cold]
    fn no_room(&mut self, header: &[u8], frame: Span<'_>) -> Accept {
        self.make_visible();
        // Each turn gives something back, so the ring's size bounds them. A frame may need more than one.
        while self.reclaim() {
            let Some(engine) = self.engine.running_mut() else { break };
            match engine.deliver(header, frame) {
                Ok(RxOutcome::Stored) => {
                    self.stored(frame);
                    return Accept::Taken;
                }
                Err(fault) => return self.fault(frame, fault),
                Ok(RxOutcome::NoRoom | RxOutcome::TooLong) => {}
            }
        }
        if self.discard {
            self.counts.drop_frame(QueueDrop::NoRoom, frame.len());
            return Accept::Taken;
        }
        if let Some(wanted) = &self.wanted {
            wanted.add(self.queue.id.index);
        }
        Accept::Full
    }

    /// Gives the ring what all subscribers have passed.
    #[cold]
    fn reclaim(&mut self) -> bool {
        let Some(reclaimer) = &mut self.reclaimer else { return false };
        let (moved, evicted) = reclaimer.reclaim();
        for id in evicted.into_iter().flatten() {
            self.openers.tell(id, QueueState::Evicted);
        }
        moved
    }

    #[cold]
    fn fault(&mut self, frame: Span<'_>, fault: EngineFault) -> Accept {
        self.counts.drop_frame(QueueDrop::Faulted, frame.len());
        self.stop_by(fault);
        Accept::Taken
    }

    /// The worker has ended, and with it the queue. What was not visible yet does not get so.
    pub fn lose(&mut self, fault: EngineFault) {
        self.engine.end();
        self.queue.has_faulted(fault);
        self.openers.show(QueueState::Faulted(fault.kind), Some(fault));
    }

    /// A fault ends the queue.
    #[cold]
    pub fn stop_by(&mut self, fault: EngineFault) {
        self.counts.iotlb_faults += u64::from(fault.kind == FaultKind::Unmapped);
        // Who sees the fault finds it counted.
        self.unpublished = true;
        self.finish();
        self.engine.end();
        self.queue.has_faulted(fault);
        self.openers.show(QueueState::Faulted(fault.kind), Some(fault));
    }

    /// Makes what was delivered visible; [`RxSlot::announce`] wakes those who wait for it.
    #[inline(always)]
    pub fn show(&mut self) {
        if let Some(engine) = self.engine.running_mut() {
            let has_shown = engine.publish();
            self.unmarked |= has_shown;
            self.unannounced |= has_shown;
        }
    }

    #[inline(always)]
    fn make_visible(&mut self) {
        self.show();
        if core::mem::take(&mut self.unmarked)
            && let Some(reclaimer) = &mut self.reclaimer
        {
            reclaimer.mark();
        }
    }

    /// Whether it has become one to be [announced](RxSlot::announce).
    #[inline(always)]
    pub fn touch(&mut self) -> bool {
        self.unannounced && !core::mem::replace(&mut self.is_touched, true)
    }

    /// Wakes those who sleep, behind a [`wake_fence`](super::openers::wake_fence).
    #[inline(always)]
    pub fn announce(&mut self) {
        self.is_touched = false;
        if core::mem::take(&mut self.unannounced) {
            self.openers.wake();
        }
    }

    /// Ends a burst: what was delivered becomes visible, what was counted becomes readable.
    #[inline(always)]
    pub fn finish(&mut self) {
        if core::mem::take(&mut self.unpublished) {
            self.make_visible();
            if let Some(engine) = self.engine.running() {
                self.counts.pointers = engine.pointers();
                (self.counts.iotlb_hits, self.counts.iotlb_misses) = engine.iotlb_counts();
            }
            self.queue.counts.publish(&self.counts);
        }
    }
}
