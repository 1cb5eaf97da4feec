//! The path of frames between the queues of a port and its wire, as one worker has it: every worker has a lane for every
//! port, with those of the queues and wires that it serves. So nothing here locks.
//!
//! ```text
//! loopback    tx[i] ring -> rx[i] ring                          one copy, straight from one ring to the other
//! wires       tx[*] rings -> wire,  wire -> first rx of its own  until there is a classifier
//! patched     wire -> wire of another port, or back             no queue in between
//! ```
//!
//! * `rx`, `tx`: a queue in its lane, `links` who has it open, `turns` which of them a pass looks at.
//! * `wire`: what is plugged in; `lent`: a wire that works on memory of an application; `patch`: ports connected inside
//!   the card; `parcel`: what moves between workers.

mod lent;
mod links;
mod parcel;
mod patch;
mod rx;
mod sink;
mod turns;
mod tx;
mod wire;

pub(crate) use lent::{Loan, lend};
pub(crate) use parcel::{Packing, Parcel, TxQueue};
pub(crate) use patch::{Patch, forward};
pub(crate) use rx::RxSlot;
pub(crate) use tx::TxSlot;
pub(crate) use wire::Wire;

use crate::command::{Answer, Opener};
use crate::counters::{Counts, QueueDrop};
use crate::engine::{RxEngine, TxEngine};
use crate::mac::MacLane;
use crate::sleep::Sleep;
use millrace_abi::control::{DOORBELL_AT, QueueState};
use millrace_abi::queue::{Direction, Laggard, QueueId};
use millrace_dma::Span;
use millrace_ring::shared::{Losses, Reclaimer};
use millrace_ring::{Served, Verdict};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use turns::{Look, Turns};

/// Frames taken from one queue, or from the port, before the next has its turn.
const BUDGET: usize = 64;

/// Queues and wires of one port that one worker serves.
pub(crate) struct Lane {
    /// Index of the port.
    port: usize,
    /// The card copies TX to RX itself.
    pub loopback: bool,
    wires: Vec<Wire>,
    /// The port that this one is connected with; itself: what comes goes back.
    pub patch: Option<Patch>,
    held: Option<patch::Held>,
    mac: MacLane,
    // By index of their queues, ascending; behind them in `tx`, further rings of the same queues.
    rx: Vec<RxSlot>,
    tx: Vec<TxSlot>,
    // Beside `tx`; those of ring 0 of a queue count.
    tx_counts: Vec<Counts>,
    // Places in `tx` of the rings that run: the only ones a pass looks at.
    turns: Turns,
}

impl Lane {
    pub fn new(port: usize, mac: MacLane, loopback: bool) -> Self {
        Self {
            port,
            loopback,
            wires: Vec::new(),
            patch: None,
            held: None,
            mac,
            rx: Vec::new(),
            tx: Vec::new(),
            tx_counts: Vec::new(),
            turns: Turns::default(),
        }
    }

    /// Once through the lane. `true` when a frame moved or a queue stopped.
    #[inline]
    pub fn pass(&mut self) -> bool {
        let mut worked = false;
        let mut turn = 0;
        while let Some(at) = self.turns.hot(turn) {
            let look = self.look(at);
            worked |= look != Look::Quiet;
            turn = self.turns.after_hot(turn, look);
        }
        for _ in 0..self.turns.cold_looks(worked) {
            worked |= self.look_at_cold();
        }
        for wire in &mut self.wires {
            worked |= lent::reap(wire, &mut self.tx, &mut self.tx_counts);
        }
        match self.patch {
            None => {
                for wire in &mut self.wires {
                    worked |= wire::receive(wire, &mut self.rx, &mut self.mac);
                }
            }
            Some(patch) if patch.to == self.port => worked |= patch::reflect(self),
            // The worker sees to it, for it takes two lanes.
            Some(_) => {}
        }
        worked
    }

    /// Once through everything, however quiet it was: before the worker sleeps.
    pub fn pass_all(&mut self) -> bool {
        let mut worked = self.pass();
        for _ in 0..self.turns.cold_count() {
            worked |= self.look_at_cold();
        }
        worked
    }

    fn look_at_cold(&mut self) -> bool {
        let at = self.turns.cold();
        let look = self.look(at);
        self.turns.after_cold(look);
        look != Look::Quiet
    }

    /// One burst from one TX ring, if it has something.
    #[inline(always)]
    fn look(&mut self, at: usize) -> Look {
        let slot = &mut self.tx[at];
        if !slot.pending() {
            // Looked at again: what was sent before the stop was asked for must not be left behind.
            if slot.queue.stop_is_asked() && slot.is_drained() {
                slot.stop();
                return Look::Ended;
            }
            return Look::Quiet;
        }
        self.mac.refresh();
        let counts = &mut self.tx_counts[slot.counts_at];
        let (served, stays) = if !self.mac.lets_out() {
            refuse(slot, counts, &mut self.mac)
        } else if self.loopback {
            loop_back(slot, counts, &mut self.rx, false, &mut self.mac)
        } else if self.mac.rules.looped {
            loop_back(slot, counts, &mut self.rx, true, &mut self.mac)
        } else {
            match self.wires.iter_mut().find(|wire| wire.number == slot.unit) {
                Some(wire) => wire::transmit(wire, at, slot, counts, &mut self.mac),
                None => lose(slot, counts, &mut self.mac),
            }
        };
        match (served, stays) {
            (_, false) => Look::Ended,
            (true, true) => Look::Busy,
            (false, true) => Look::Quiet,
        }
    }

    /// Queues that run.
    pub fn active_queues(&self) -> usize {
        self.turns.len() + self.rx.iter().filter(|slot| slot.is_running()).count()
    }

    /// Sets every `card_sleeps`, and has every wire signal what comes. The caller makes the fence, then passes once more
    /// before it sleeps. A wire is watched only as long as that: Linux looks for whom to wake at every frame of a socket
    /// that somebody watches.
    pub fn mark_asleep(&mut self, sleep: &Sleep) {
        self.turns.places().for_each(|at| self.tx[at].links.mark_asleep());
        self.rx.iter().filter(|slot| slot.is_running()).for_each(|slot| slot.links.mark_asleep());
        self.wires.iter_mut().for_each(|wire| wire.prepare_sleep(sleep));
    }

    pub fn awake(&mut self, sleep: &Sleep) {
        self.turns.places().for_each(|at| self.tx[at].links.awake());
        self.rx.iter().filter(|slot| slot.is_running()).for_each(|slot| slot.links.awake());
        self.wires.iter_mut().for_each(|wire| wire.awake(sleep));
    }

    /// When a wire, or a frame with a launch time, wants to be looked at by the clock.
    pub fn next_due(&self) -> Option<Instant> {
        let wires = self.wires.iter().filter(|wire| self.may_receive(wire)).filter_map(Wire::next_due);
        wires.chain(self.turns.places().filter_map(|at| self.tx[at].next_due())).min()
    }

    fn may_receive(&self, wire: &Wire) -> bool {
        let listens = || wire.rx_at.is_some_and(|at| self.rx[at].is_running());
        self.patch.is_some() || !wire.port.can_wait() || listens()
    }

    /// Takes over changes of all domains, running or not.
    pub fn sync_domains(&mut self) {
        self.rx.iter_mut().for_each(RxSlot::sync);
        self.tx.iter_mut().for_each(TxSlot::sync);
    }

    fn rx_slot(&mut self, index: u32) -> Option<&mut RxSlot> {
        self.rx.iter_mut().find(|slot| slot.queue.id.index == index)
    }

    /// Ring 0 of a TX queue.
    fn tx_place(&self, index: u32) -> Option<usize> {
        self.tx.iter().position(|slot| slot.queue.id.index == index && slot.ring == 0)
    }

    /// Whether the queue is served by this lane.
    pub fn has(&self, queue: QueueId) -> bool {
        match queue.direction {
            Direction::Rx => self.rx.iter().any(|slot| slot.queue.id == queue),
            Direction::Tx => self.tx.iter().any(|slot| slot.queue.id == queue),
        }
    }

    pub fn start_tx(&mut self, index: u32, engine: Box<TxEngine>, openers: Vec<Opener>, sleep: &Sleep) {
        let Some(place) = self.tx_place(index) else { return };
        let (slot, counts) = (&mut self.tx[place], &mut self.tx_counts[place]);
        counts.pointers = engine.pointers();
        slot.queue.counts.publish(counts);
        slot.begin(engine);
        openers.into_iter().for_each(|opener| slot.links.add(opener, sleep));
        slot.links.show(QueueState::Running, None);
        self.turns.add(place);
    }

    /// Adds a ring to a TX queue that runs.
    pub fn add_ring(&mut self, index: u32, ring: u32, engine: Box<TxEngine>, opener: Opener, sleep: &Sleep) -> bool {
        let Some(first) = self.tx_place(index) else { return false };
        // A place that a ring of this queue has left, or one more.
        let left = |slot: &TxSlot| slot.ring != 0 && slot.counts_at == first && slot.links.is_empty();
        let place = self.tx.iter().position(left).unwrap_or(self.tx.len());
        if place == self.tx.len() {
            let slot = TxSlot::new(self.tx[first].queue.clone(), ring, self.tx[first].unit);
            self.push_tx(slot, Counts::default(), first);
        }
        let slot = &mut self.tx[place];
        slot.ring = ring;
        slot.begin(engine);
        slot.links.add(opener, sleep);
        slot.links.show(QueueState::Running, None);
        self.turns.add(place);
        true
    }

    fn push_tx(&mut self, mut slot: TxSlot, counts: Counts, counts_at: usize) {
        slot.counts_at = counts_at;
        self.tx.push(slot);
        self.tx_counts.push(counts);
    }

    /// Takes a ring off a TX queue at once. What it held comes back.
    pub fn drop_ring(&mut self, index: u32, ring: u32, sleep: &Sleep) -> Answer {
        let mut answer = Answer::default();
        let place = self.tx.iter().position(|slot| slot.queue.id.index == index && slot.ring == ring);
        if let Some(place) = place.filter(|_| ring != 0) {
            self.turns.remove_if(|at| at == place);
            self.tx[place].halt(sleep, &mut answer);
            answer.done = true;
        }
        answer
    }

    pub fn start_rx(
        &mut self,
        index: u32,
        engine: Box<RxEngine>,
        reclaimer: Option<Box<Reclaimer>>,
        openers: Vec<Opener>,
        discard: bool,
        sleep: &Sleep,
    ) {
        if let Some(slot) = self.rx_slot(index) {
            slot.start(engine, reclaimer, openers, discard, sleep);
        }
    }

    /// Stops a queue at once. What it held comes back.
    pub fn halt(&mut self, queue: QueueId, sleep: &Sleep) -> Answer {
        let mut answer = Answer { done: true, ..Answer::default() };
        match queue.direction {
            Direction::Rx => {
                if let Some(slot) = self.rx_slot(queue.index) {
                    slot.halt(sleep, &mut answer);
                }
            }
            Direction::Tx => {
                let Some(first) = self.tx_place(queue.index) else { return answer };
                let tx = &mut self.tx;
                self.turns.remove_if(|at| tx[at].counts_at == first);
                tx.iter_mut().filter(|slot| slot.counts_at == first).for_each(|slot| slot.halt(sleep, &mut answer));
                tx[first].queue.has_stopped();
            }
        }
        answer
    }

    pub fn join(
        &mut self,
        queue: QueueId,
        opener: Opener,
        cursor: Option<(Laggard, Arc<Losses>)>,
        sleep: &Sleep,
    ) -> bool {
        let links = match queue.direction {
            Direction::Rx => {
                let Some(slot) = self.rx_slot(queue.index) else { return false };
                if let Some((policy, losses)) = cursor {
                    let word = opener.control.word64(DOORBELL_AT);
                    let (Ok(word), Some(reclaimer)) = (word, &mut slot.reclaimer) else { return false };
                    if !reclaimer.join(opener.id, word, policy, losses) {
                        return false;
                    }
                }
                &mut slot.links
            }
            Direction::Tx => match self.tx_place(queue.index) {
                Some(place) => &mut self.tx[place].links,
                None => return false,
            },
        };
        crate::queue::show_state(&opener.control, QueueState::Running, None);
        links.add(opener, sleep);
        true
    }

    pub fn leave(&mut self, queue: QueueId, id: u32, sleep: &Sleep) -> Option<Opener> {
        match queue.direction {
            Direction::Rx => {
                let slot = self.rx_slot(queue.index)?;
                if let Some(reclaimer) = &mut slot.reclaimer {
                    reclaimer.leave(id);
                }
                slot.links.remove(id, sleep)
            }
            Direction::Tx => {
                let place = self.tx_place(queue.index)?;
                self.tx[place].links.remove(id, sleep)
            }
        }
    }

    /// Says how to wake an opener of a queue, or of one of its further rings.
    pub fn set_call(&mut self, queue: QueueId, id: u32, call: &Arc<OwnedFd>) -> bool {
        match queue.direction {
            Direction::Rx => self.rx_slot(queue.index).is_some_and(|slot| slot.links.set_call(id, call)),
            Direction::Tx => {
                let mut rings = self.tx.iter_mut().filter(|slot| slot.queue.id == queue);
                rings.any(|slot| slot.links.set_call(id, call))
            }
        }
    }

    /// Takes queues and wires out of the lane, running or not.
    pub fn pack(&mut self, what: &Packing, sleep: &Sleep) -> Parcel {
        let wanted = |id: QueueId| what.queues.contains(&id);
        let mut parcel = Parcel::default();
        let (gone, stay) =
            core::mem::take(&mut self.wires).into_iter().partition(|wire| what.wires.contains(&wire.number));
        (parcel.wires, self.wires) = (gone, stay);
        (parcel.rx, self.rx) = core::mem::take(&mut self.rx).into_iter().partition(|slot| wanted(slot.queue.id));
        parcel.rx.iter().for_each(|slot| slot.links.leave_worker(sleep));
        self.turns.clear();
        let counts = core::mem::take(&mut self.tx_counts);
        for (slot, counts) in core::mem::take(&mut self.tx).into_iter().zip(counts) {
            if !wanted(slot.queue.id) {
                let first = self.tx_place(slot.queue.id.index).unwrap_or(self.tx.len());
                self.push_tx(slot, counts, first);
                continue;
            }
            slot.links.leave_worker(sleep);
            match parcel.tx.iter_mut().find(|queue| queue.rings[0].queue.id == slot.queue.id) {
                Some(queue) => queue.rings.push(slot),
                None => parcel.tx.push(TxQueue { counts, rings: vec![slot] }),
            }
        }
        self.settle();
        parcel
    }

    /// Puts queues and wires into the lane.
    pub fn unpack(&mut self, parcel: Parcel, sleep: &Sleep) {
        self.wires.extend(parcel.wires);
        self.wires.sort_by_key(|wire| wire.number);
        parcel.rx.iter().for_each(|slot| slot.links.enter_worker(sleep));
        self.rx.extend(parcel.rx);
        self.rx.sort_by_key(|slot| slot.queue.id.index);
        for TxQueue { counts, rings } in parcel.tx {
            let first = self.tx.len();
            for slot in rings {
                slot.links.enter_worker(sleep);
                self.push_tx(slot, counts, first);
            }
        }
        self.turns.clear();
        self.settle();
    }

    /// Finds again what is known by its place.
    fn settle(&mut self) {
        for wire in &mut self.wires {
            wire.rx_at = self.rx.iter().position(|slot| slot.unit == wire.number);
        }
        let running = self.tx.iter().enumerate().filter(|(_, slot)| slot.is_running());
        running.for_each(|(place, _)| self.turns.add(place));
    }
}

/// One burst from a TX queue that a disabled MAC, or one without a link, takes and drops. Returns whether anything moved,
/// and whether the TX queue stays active.
#[cold]
fn refuse(tx: &mut TxSlot, counts: &mut Counts, mac: &mut MacLane) -> (bool, bool) {
    let Some(engine) = &mut tx.engine else { return (false, true) };
    let served = engine.serve(BUDGET, &mut |_: Span<'_>| Verdict::Taken);
    mac.tx.refuse(&mac.rules, served.frames, served.bytes);
    end_of_burst(tx, counts, served, mac)
}

/// One burst from a TX queue of a port without a wire. Returns as [`refuse`].
#[cold]
fn lose(tx: &mut TxSlot, counts: &mut Counts, mac: &mut MacLane) -> (bool, bool) {
    let Some(engine) = &mut tx.engine else { return (false, true) };
    let served = engine.serve(BUDGET, &mut |_: Span<'_>| Verdict::Taken);
    mac.tx.unplugged(served.frames, served.bytes);
    end_of_burst(tx, counts, served, mac)
}

/// One burst from a TX queue to the RX queue of the same index; if there is none, to the first where `or_first` says so.
/// Returns as [`refuse`].
#[inline(always)]
fn loop_back(
    tx: &mut TxSlot,
    counts: &mut Counts,
    rx: &mut [RxSlot],
    or_first: bool,
    mac: &mut MacLane,
) -> (bool, bool) {
    let index = tx.queue.id.index;
    let at = match rx.get(tx.rx_at) {
        Some(slot) if slot.queue.id.index == index => Some(tx.rx_at),
        _ => rx.iter().position(|slot| slot.queue.id.index == index).or(or_first.then_some(0)),
    };
    tx.rx_at = at.unwrap_or(0);
    let Some(engine) = &mut tx.engine else { return (false, true) };
    let Some(rx) = at.and_then(|at| rx.get_mut(at)) else {
        let served = engine.serve(BUDGET, &mut |_: Span<'_>| Verdict::Taken);
        counts.drops[QueueDrop::NoWire as usize] += served.frames;
        counts.dropped_bytes += served.bytes;
        return end_of_burst(tx, counts, Served { frames: 0, bytes: 0, ..served }, mac);
    };
    rx.begin();
    let MacLane { rules, rx: receiver, stamper, .. } = mac;
    let served = engine.serve(BUDGET, &mut |frame: Span<'_>| {
        receiver.admit(rules, frame, true, |frame| rx.offer(stamper.metadata(), frame))
    });
    rx.finish();
    mac.tx.loop_back(served.frames, served.bytes);
    end_of_burst(tx, counts, served, mac)
}

/// Publishes what the MAC counted, then what the queue did: who sees that a frame has left the ring finds it counted.
#[inline(always)]
fn end_of_burst(tx: &mut TxSlot, counts: &mut Counts, served: Served, mac: &mut MacLane) -> (bool, bool) {
    mac.publish();
    let moved = served != Served::default();
    (moved, tx.finish(counts, served, moved))
}
