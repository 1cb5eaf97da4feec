//! From TX rings.

use super::{BUDGET, end_of_burst, lent, loop_back};
use crate::counters::Counts;
use crate::mac::MacLane;
use crate::pass_clock::PassClock;
use crate::shard::slots::{PortSlot, TxSlot};
use crate::shard::state::Shard;
use crate::turns::{Look, cost};
use millrace_dma::Span;
use millrace_port::{Accept, PortQueue};
use millrace_ring::FrameSink;

impl Shard {
    /// One burst from one TX ring, if it has something. Returns what that is charged with, too.
    #[inline(always)]
    pub fn look_at_ring(&mut self, at: usize) -> (Look, u32) {
        let slot = &mut self.tx[at];
        if !slot.pending() & slot.parked.is_none() {
            // Looked at again: what was sent before the stop was asked for must not be left behind.
            if slot.queue.stop_is_asked() && slot.is_drained() {
                slot.stop();
                return (Look::Ended, cost::LOOK);
            }
            return (if slot.is_held() { Look::Waits } else { Look::Quiet }, cost::LOOK);
        }
        let has_parked = slot.parked.is_some();
        if !has_parked && slot.discipline.is_some() {
            return self.look_at_scheduled_ring(at);
        }
        if self.classifying.is_some() && (has_parked || self.meets_rules(at)) {
            return self.look_at_ring_with_rules(at);
        }
        let (served, stays) = self.send(at);
        let cost = self.tx[at].cost;
        if served {
            self.touch_tx(at);
        }
        match (served, stays) {
            (_, false) => (Look::Ended, cost),
            (true, true) => (Look::Busy, cost),
            (false, true) => (Look::Blocked, cost.max(cost::BLOCKED)),
        }
    }

    /// Whether rules concern what comes out of a ring. A MAC that loops back for tests does so without them.
    #[inline(always)]
    pub(super) fn meets_rules(&self, at: usize) -> bool {
        let port = &self.ports[self.tx[at].port];
        let Some(classifying) = &self.classifying else { return false };
        classifying.has_rules() && (port.shape.loopback || (classifying.looks_at_local() && !port.mac.rules.looped))
    }

    /// One burst from a ring that has something. Returns whether anything moved, and whether the TX queue stays active.
    #[inline(always)]
    pub(super) fn send(&mut self, at: usize) -> (bool, bool) {
        let Self { ports, tx, tx_counts, port_queues, rx, rx_places, touched, clock, .. } = self;
        let slot = &mut tx[at];
        let port = &mut ports[slot.port];
        let counts = &mut tx_counts[slot.counts_at];
        port.mac.refresh();
        if !port.mac.lets_out() {
            return refuse(slot, counts, &mut port.mac);
        }
        if port.shape.loopback || port.mac.rules.looped {
            let to = loop_back::target(port, slot, rx, rx_places);
            return loop_back::loop_back(slot, counts, to, rx, touched, &mut port.mac);
        }
        match port.place(slot.bundle) {
            Some(place) if slot.openers.want_stamps() => {
                transmit_stamped(&mut port_queues[place], at, slot, counts, &mut port.mac, clock)
            }
            Some(place) => transmit(&mut port_queues[place], at, slot, counts, &mut port.mac),
            None => lose(slot, counts, &mut port.mac),
        }
    }
}

/// The sink of a TX ring whose frames go nowhere, as its caller counts.
pub(super) struct Nowhere;

impl FrameSink for Nowhere {
    fn take(&mut self, _: Span<'_>) -> Accept {
        Accept::Taken
    }

    fn has_dropped(&self) -> bool {
        true
    }
}

/// A port queue as the sink of a TX ring.
pub(super) struct PortSink<'p>(pub &'p mut dyn PortQueue);

impl FrameSink for PortSink<'_> {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        if self.take_burst(&[frame]) == 1 { Accept::Taken } else { Accept::Full }
    }

    #[inline(always)]
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        // What it dropped is in its counters, by reason.
        self.0.transmit_burst(frames).taken
    }
}

/// One burst from a TX queue, whose place this is, to a port queue. Returns as [`Shard::send`].
#[inline(always)]
fn transmit(
    port_queue: &mut PortSlot,
    place: usize,
    tx: &mut TxSlot,
    counts: &mut Counts,
    mac: &mut MacLane,
) -> (bool, bool) {
    if lent::holds_next(port_queue, tx)
        && let Some(outcome) = lent::transmit(port_queue, place, tx, counts, mac)
    {
        return outcome;
    }
    let port = port_queue.queue.as_mut();
    let Some(engine) = tx.engine.running_mut() else { return (false, true) };
    let copies = port.counters().tx_copies();
    let served = engine.serve(BUDGET, &mut PortSink(port));
    port.flush();
    counts.copies += port.counters().tx_copies() - copies;
    mac.tx.count_sent(served.bytes);
    end_of_burst(tx, counts, served, mac)
}

/// As [`transmit`], of a program that wants to know when its frames leave.
#[cold]
fn transmit_stamped(
    port_queue: &mut PortSlot,
    place: usize,
    tx: &mut TxSlot,
    counts: &mut Counts,
    mac: &mut MacLane,
    clock: &PassClock,
) -> (bool, bool) {
    let watch = DepartureWatch::begin(port_queue.queue.as_mut(), tx, clock);
    let outcome = transmit(port_queue, place, tx, counts, mac);
    watch.end(port_queue.queue.as_mut(), tx, clock);
    outcome
}

/// What is to be known of frames that leave.
pub(super) struct DepartureWatch {
    left: u64,
    taken: u64,
    // The card's clock in ns.
    before: u64,
}

impl DepartureWatch {
    /// Frames are handed to the port from now on.
    pub fn begin(port: &mut dyn PortQueue, tx: &TxSlot, clock: &PassClock) -> Self {
        port.watch_departures();
        Self { left: tx.left, taken: tx.taken, before: clock.exactly() }
    }

    /// They have been handed over: says when the last one left, as the port knows, or else between which times that was; and how many
    /// have come off the ring, of which some may have been dropped.
    pub fn end(self, port: &mut dyn PortQueue, tx: &mut TxSlot, clock: &PassClock) {
        let after = clock.exactly();
        let at = port.departed().and_then(|ticks| clock.card_at(ticks)).filter(|at| (self.before..=after).contains(at));
        if tx.left != self.left {
            tx.openers.say_departure(tx.left, tx.taken, Some([at.unwrap_or(self.before), at.unwrap_or(after)]));
        } else if tx.taken != self.taken {
            tx.openers.say_departure(tx.left, tx.taken, None);
        }
    }
}

/// One burst from a TX queue that a disabled MAC, or one without a link, takes and drops. Returns as [`Shard::send`].
#[cold]
pub(super) fn refuse(tx: &mut TxSlot, counts: &mut Counts, mac: &mut MacLane) -> (bool, bool) {
    let Some(engine) = tx.engine.running_mut() else { return (false, true) };
    let served = engine.serve(BUDGET, &mut Nowhere);
    mac.tx.refuse(&mac.rules, served.frames, served.bytes);
    end_of_burst(tx, counts, served, mac)
}

/// One burst from a TX queue of a port without a port queue. Returns as [`Shard::send`].
#[cold]
fn lose(tx: &mut TxSlot, counts: &mut Counts, mac: &mut MacLane) -> (bool, bool) {
    let Some(engine) = tx.engine.running_mut() else { return (false, true) };
    let served = engine.serve(BUDGET, &mut Nowhere);
    mac.tx.unplugged(served.frames, served.bytes);
    end_of_burst(tx, counts, served, mac)
}
