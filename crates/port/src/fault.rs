//! `fault:[loss=P%,duplicate=P%,reorder=P%,corrupt=P%,delay=TIME,seed=N,direction=...,]port=(SPEC)`: a port around
//! another on whose wire things go wrong.
//!
//! What happens to a frame follows from the seed, the direction, the queue and the frame's number, so a run can be
//! repeated. In this order: it may be lost; one bit of it may be turned; it may come twice; it may come after its
//! successor (or 10 ms later, if there is none); and it comes later by the delay. Frames are complete here, as they are
//! on a wire: nothing is left to do on them ([`Offloads::NONE`](millrace_packet::offload::Offloads::NONE)), or a turned
//! bit would get a correct checksum.
//!
//! The counters are those of the inner port, and stay true of its wire. A lost frame is counted as
//! [`DropReason::FaultLoss`], everything else as an [`Event`](crate::counters::Event): for both directions, frames
//! offered + `fault-duplicate` = frames passed + the sum of the drop counters. A frame that is held back counts when it
//! passes.

mod hold;
mod lane;

use crate::{Accept, DropReason, PortCounters, PortQueue, Sink, TxOutcome, null::check_len, spec::FaultSpec};
use lane::{Lane, Out};
use millrace_dma::Span;
use std::{os::fd::BorrowedFd, sync::Arc, time::Instant};

/// A port with faults.
pub struct FaultPort {
    inner: Box<dyn PortQueue>,
    rx: Option<Lane>,
    tx: Option<Lane>,
}

impl FaultPort {
    /// Wraps each queue of a wire.
    pub fn wrap(spec: &FaultSpec, queues: Vec<Box<dyn PortQueue>>) -> Vec<Self> {
        let lane = |wanted: bool, number| wanted.then(|| Lane::new(spec, number));
        let wrap = |(queue, inner)| {
            let number = queue as u64 * 2;
            Self { inner, rx: lane(spec.directions.rx(), number), tx: lane(spec.directions.tx(), number + 1) }
        };
        queues.into_iter().enumerate().map(wrap).collect()
    }

    /// Sends what was held back and is due.
    fn release_tx(&mut self) {
        let Some(lane) = &mut self.tx else { return };
        if lane.holds() {
            lane.release(Instant::now(), usize::MAX, &mut |frame| self.inner.transmit(frame).into());
            settle_tx(lane, self.inner.counters());
        }
    }
}

impl From<TxOutcome> for Out {
    fn from(outcome: TxOutcome) -> Self {
        match outcome {
            TxOutcome::Sent => Self::Passed,
            TxOutcome::Full => Self::Full,
            TxOutcome::Dropped(_) => Self::Dropped,
        }
    }
}

/// Counts what the faults did on the way to the wire. The inner port has counted what it was given.
fn settle_tx(lane: &mut Lane, counters: &PortCounters) {
    let did = lane.take_tally();
    counters.count_tx_drops(DropReason::FaultLoss, did.lost);
    did.events().for_each(|(event, count)| counters.count_tx_events(event, count));
}

/// Between the inner port and the card.
struct FaultySink<'a> {
    lane: &'a mut Lane,
    sink: &'a mut dyn Sink,
    /// Frames that the inner port counts as passed, and those that the card took.
    inner: Passed,
    card: Passed,
}

/// Frames and bytes.
#[derive(Clone, Copy, Default)]
struct Passed {
    frames: u64,
    bytes: u64,
}

impl Passed {
    fn add(&mut self, len: usize) {
        self.frames += 1;
        self.bytes += len as u64;
    }
}

/// Gives the card a frame, and counts it.
fn give(sink: &mut dyn Sink, card: &mut Passed, frame: Span<'_>) -> Out {
    match sink.take(frame) {
        Accept::Taken => {
            card.add(frame.len());
            Out::Passed
        }
        Accept::Full => Out::Full,
    }
}

impl Sink for FaultySink<'_> {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        let Self { lane, sink, card, .. } = self;
        // The time of this frame: if the worker was stopped since it began to receive, an earlier one would shorten the delay.
        match lane.pass(frame, lane.now(), &mut |frame| give(*sink, card, frame)) {
            Out::Full => Accept::Full,
            Out::Passed | Out::Dropped | Out::Lost => {
                self.inner.add(frame.len());
                Accept::Taken
            }
        }
    }
}

impl PortQueue for FaultPort {
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        let Some(lane) = &mut self.tx else { return self.inner.transmit(frame) };
        if check_len(frame.len()).is_err() {
            // For the inner port to count.
            return self.inner.transmit(frame);
        }
        let now = lane.now();
        let mut dropped = None;
        let out = lane.pass(frame, now, &mut |frame| {
            let taken = self.inner.transmit(frame);
            if let TxOutcome::Dropped(reason) = taken {
                dropped = Some(reason);
            }
            taken.into()
        });
        settle_tx(lane, self.inner.counters());
        match out {
            Out::Full => TxOutcome::Full,
            Out::Passed => TxOutcome::Sent,
            Out::Lost => TxOutcome::Dropped(DropReason::FaultLoss),
            Out::Dropped => TxOutcome::Dropped(dropped.unwrap_or(DropReason::WriteFailed)),
        }
    }

    fn flush(&mut self) {
        self.release_tx();
        self.inner.flush();
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        self.release_tx();
        let Some(lane) = &mut self.rx else { return self.inner.receive(budget, sink) };
        let can_wait = self.inner.can_wait();
        let none = Passed::default();
        let mut faulty = FaultySink { lane, sink, inner: none, card: none };
        let mut no_room = 0;
        if faulty.lane.holds() {
            let FaultySink { lane, sink, card, .. } = &mut faulty;
            lane.release(lane.now(), budget, &mut |frame| match give(*sink, card, frame) {
                Out::Full if !can_wait => {
                    no_room += 1;
                    Out::Dropped
                }
                out => out,
            });
        }
        self.inner.receive(budget, &mut faulty);
        let FaultySink { lane, inner, card, .. } = faulty;
        let counters = self.inner.counters();
        // What the inner port took for passed may be lost or held back, and what it passed earlier may come now.
        counters.take_back_rx(inner.frames, inner.bytes);
        counters.count_rx(card.frames, card.bytes);
        counters.count_rx_drops(DropReason::NoRoom, no_room);
        let did = lane.take_tally();
        counters.count_rx_drops(DropReason::FaultLoss, did.lost);
        did.events().for_each(|(event, count)| counters.count_rx_events(event, count));
        card.frames as usize
    }

    fn can_wait(&self) -> bool {
        self.inner.can_wait()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_fd()
    }

    fn prepare_sleep(&mut self) {
        self.inner.prepare_sleep();
    }

    fn awake(&mut self) {
        self.inner.awake();
    }

    fn next_due(&self) -> Option<Instant> {
        let lanes = [&self.rx, &self.tx].into_iter().flatten().filter_map(Lane::next_due);
        self.inner.next_due().into_iter().chain(lanes).min()
    }

    fn counters(&self) -> &Arc<PortCounters> {
        self.inner.counters()
    }
}

impl Drop for FaultPort {
    fn drop(&mut self) {
        // What the card has sent must not stay behind.
        if let Some(lane) = &mut self.tx {
            let left = lane.release_all(&mut |frame| self.inner.transmit(frame).into());
            settle_tx(lane, self.inner.counters());
            self.inner.counters().count_tx_drops(DropReason::WriteFailed, left);
            self.inner.flush();
        }
    }
}

#[cfg(test)]
mod tests;
