//! The path of frames between the queues of a port and its port queues, as one worker has it: every worker has a lane for
//! every port, with those of the queues and port queues that it serves. So nothing here locks.
//!
//! ```text
//! loopback    tx[i] ring -> rx[i] ring                          one copy, straight from one ring to the other
//! plugged     tx[*] rings -> port queue -> its first rx ring    until there is a classifier
//! connected   port queue -> port queue of another port, or back no card queue in between
//! ```
//!
//! * `rx`, `tx`: a queue in its lane, `openers` who has it open. Which of them is looked at when, `crate::turns` says.
//! * `port_slot`: a port queue in its lane; `lent`: one that works on a pool (`loan`) of an application; `patch`: ports connected
//!   inside the card; `detached`: what moves between workers;
//!   `answer`: what a worker hands back.

mod answer;
mod detached;
mod engine_state;
mod lent;
mod loan;
mod openers;
mod patch;
mod port_slot;
mod rx;
mod sink;
mod tx;

pub(crate) use answer::Answer;
pub(crate) use detached::{Detach, Detached, TxQueue};
pub(crate) use lent::lend;
pub(crate) use loan::{Loan, Loans};
pub(crate) use openers::wake_fence;
pub(crate) use patch::{Patch, forward};
pub(crate) use port_slot::PortSlot;
pub(crate) use rx::RxSlot;
pub(crate) use tx::TxSlot;

use crate::counters::{Counts, QueueDrop};
use crate::engine::{RxEngine, TxEngine};
use crate::mac::{MacLane, Receiver, Rules};
use crate::opener::Opener;
use crate::queue_status::show_state;
use crate::sleep::Sleep;
use crate::tsu::Stamper;
use crate::turns::{ColdRing, Item, Look, Owner, Turns, cost};
use millrace_abi::control::{DOORBELL_AT, FaultKind, QueueState};
use millrace_abi::queue::{Direction, Laggard, QueueId};
use millrace_dma::{Iova, Span};
use millrace_ring::shared::{Losses, Reclaimer};
use millrace_ring::{Accept, EngineFault, FrameSink, Served};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Frames taken from one queue, or from the port, before the next has its turn.
const BUDGET: usize = 64;

/// Queues and port queues of one port that one worker serves.
pub(crate) struct Lane {
    /// Index of the port.
    port: usize,
    /// The card copies TX to RX itself.
    pub loopback: bool,
    port_queues: Vec<PortSlot>,
    /// The port that this one is connected with; itself: what comes goes back.
    pub patch: Option<Patch>,
    held: Option<patch::Held>,
    mac: MacLane,
    // By index of their queues, ascending; behind them in `tx`, further rings of the same queues.
    rx: Vec<RxSlot>,
    tx: Vec<TxSlot>,
    // Beside `tx`; those of ring 0 of a queue count.
    tx_counts: Vec<Counts>,
    // What has moved since the last [`Lane::announce`], each once; with room for all, so that the way of frames allocates
    // nothing.
    touched: Vec<Touched>,
}

/// A queue whose openers may sleep, by its place.
#[derive(Clone, Copy)]
enum Touched {
    Rx(usize),
    Tx(usize),
}

impl Lane {
    pub fn new(port: usize, mac: MacLane, loopback: bool) -> Self {
        Self {
            port,
            loopback,
            port_queues: Vec::new(),
            patch: None,
            held: None,
            mac,
            rx: Vec::new(),
            tx: Vec::new(),
            tx_counts: Vec::new(),
            touched: Vec::new(),
        }
    }

    fn ring(&self, place: usize) -> Item {
        Item::Ring(self.port as u32, place as u32)
    }

    fn port_queue(&self, place: usize) -> Item {
        Item::PortQueue(self.port as u32, place as u32)
    }

    /// One burst from one TX ring, if it has something. Returns what that is charged with, too.
    #[inline(always)]
    pub fn look(&mut self, at: usize) -> (Look, u32) {
        let slot = &mut self.tx[at];
        if !slot.pending() {
            // Looked at again: what was sent before the stop was asked for must not be left behind.
            if slot.queue.stop_is_asked() && slot.is_drained() {
                slot.stop();
                return (Look::Ended, cost::LOOK);
            }
            return (Look::Quiet, cost::LOOK);
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
            match self.port_queues.iter_mut().find(|port_queue| port_queue.number == slot.bundle) {
                Some(port_queue) => port_slot::transmit(port_queue, at, slot, counts, &mut self.mac),
                None => lose(slot, counts, &mut self.mac),
            }
        };
        if served {
            if slot.touch() {
                self.touched.push(Touched::Tx(at));
            }
            // In a loopback; otherwise nothing has become visible there.
            let rx_at = slot.rx_at;
            if self.rx.get_mut(rx_at).is_some_and(RxSlot::touch) {
                self.touched.push(Touched::Rx(rx_at));
            }
        }
        match (served, stays) {
            (_, false) => (Look::Ended, slot.cost),
            (true, true) => (Look::Busy, slot.cost),
            (false, true) => (Look::Blocked, slot.cost.max(cost::BLOCKED)),
        }
    }

    /// A ring in which nothing was: what it will bring is asked for before it is there.
    #[inline(always)]
    pub fn anticipate(&self, item: Item) {
        if let Item::Ring(_, place) = item {
            self.tx[place as usize].anticipate();
        }
    }

    /// One burst from one port queue, if something has come. What goes to another port is for the worker to see to, for
    /// that takes two lanes.
    #[inline(always)]
    pub fn look_at_port_queue(&mut self, at: usize) -> (Look, u32) {
        let Some(port_queue) = self.port_queues.get_mut(at) else { return (Look::Quiet, cost::PORT_QUEUE) };
        let reaped = lent::reap(port_queue, &mut self.tx, &mut self.tx_counts);
        let received = match self.patch {
            None => {
                let received = port_slot::receive(port_queue, &mut self.rx, &mut self.mac);
                if let Some(at) = port_queue.rx_at.filter(|&at| self.rx[at].touch()) {
                    self.touched.push(Touched::Rx(at));
                }
                received
            }
            Some(patch) if patch.to == self.port => patch::reflect(self, at),
            Some(_) => None,
        };
        match received {
            Some(cost) => (Look::Busy, cost),
            None if reaped => (Look::Busy, cost::PORT_QUEUE),
            None => (Look::Quiet, cost::PORT_QUEUE),
        }
    }

    /// Whether somebody may have to be woken.
    #[inline(always)]
    pub fn is_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Wakes those who sleep and for whom something has come, behind a [`wake_fence`].
    #[inline(always)]
    pub fn announce(&mut self) {
        for touched in self.touched.drain(..) {
            match touched {
                Touched::Rx(at) => self.rx[at].announce(),
                Touched::Tx(at) => self.tx[at].announce(),
            }
        }
    }

    /// A ring was quiet for long; see [`TxSlot::cool`]. Port queues are never cold.
    #[cold]
    pub fn cool(&mut self, item: Item) -> Option<ColdRing> {
        match item {
            Item::Ring(_, place) => self.tx[place as usize].cool(item),
            Item::PortQueue(..) => None,
        }
    }

    /// One burst from every ring of a TX queue, however quiet they were; they are hot then.
    pub fn look_at_queue(&mut self, index: u32, turns: &mut Turns) {
        for at in 0..self.tx.len() {
            let item = self.ring(at);
            if self.tx[at].queue.id.index == index && self.tx[at].is_running() {
                turns.warm(item);
                if self.look(at).0 == Look::Ended {
                    turns.remove_if(|there| there == item);
                }
            }
        }
    }

    /// RX queues that run.
    pub fn receiving_queues(&self) -> usize {
        self.rx.iter().filter(|slot| slot.is_running()).count()
    }

    /// The openers of a ring.
    pub fn openers(&self, place: usize) -> &openers::Openers {
        &self.tx[place].openers
    }

    /// Sets every `card_sleeps` of RX queues, and has every port queue signal what comes. The caller sees to the TX
    /// rings, makes the fence, then passes once more before it sleeps. A port queue is watched only as long as that:
    /// Linux looks for whom to wake at every frame of a socket that somebody watches.
    pub fn mark_asleep(&mut self, sleep: &Sleep) {
        self.rx.iter().filter(|slot| slot.is_running()).for_each(|slot| slot.openers.mark_asleep());
        self.port_queues.iter_mut().for_each(|port_queue| port_queue.prepare_sleep(sleep));
    }

    pub fn awake(&mut self, sleep: &Sleep) {
        self.rx.iter().filter(|slot| slot.is_running()).for_each(|slot| slot.openers.awake());
        self.port_queues.iter_mut().for_each(|port_queue| port_queue.awake(sleep));
    }

    /// When a port queue wants to be looked at by the clock.
    pub fn next_due(&self) -> Option<Instant> {
        self.port_queues.iter().filter(|port_queue| self.may_receive(port_queue)).filter_map(PortSlot::next_due).min()
    }

    /// When a frame with a launch time wants that.
    pub fn next_launch(&self, place: usize) -> Option<Instant> {
        self.tx[place].next_due()
    }

    fn may_receive(&self, port_queue: &PortSlot) -> bool {
        let listens = || port_queue.rx_at.is_some_and(|at| self.rx[at].is_running());
        self.patch.is_some() || !port_queue.port.can_wait() || listens()
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

    pub fn start_tx(
        &mut self,
        index: u32,
        engine: Box<TxEngine>,
        openers: Vec<Opener>,
        sleep: &Sleep,
        turns: &mut Turns,
    ) {
        let Some(place) = self.tx_place(index) else { return };
        let (slot, counts) = (&mut self.tx[place], &mut self.tx_counts[place]);
        counts.pointers = engine.pointers();
        slot.queue.counts.publish(counts);
        slot.begin(engine);
        openers.into_iter().for_each(|opener| slot.openers.add(opener, sleep));
        slot.openers.show(QueueState::Running, None);
        self.begin(place, turns);
    }

    /// A ring that runs has turns from now on.
    fn begin(&self, place: usize, turns: &mut Turns) {
        let (item, openers) = (self.ring(place), &self.tx[place].openers);
        turns.remove_if(|there| there == item);
        openers.awake();
        turns.add(item, openers.owner());
    }

    /// Adds a ring to a TX queue that runs.
    pub fn add_ring(
        &mut self,
        (index, ring): (u32, u32),
        engine: Box<TxEngine>,
        opener: Opener,
        sleep: &Sleep,
        turns: &mut Turns,
    ) -> bool {
        let Some(first) = self.tx_place(index) else { return false };
        // A place that a ring of this queue has left, or one more.
        let left = |slot: &TxSlot| slot.ring != 0 && slot.counts_at == first && slot.openers.is_empty();
        let place = self.tx.iter().position(left).unwrap_or(self.tx.len());
        if place == self.tx.len() {
            let slot = TxSlot::new(self.tx[first].queue.clone(), ring, self.tx[first].bundle);
            self.push_tx(slot, Counts::default(), first);
        }
        let slot = &mut self.tx[place];
        slot.ring = ring;
        slot.begin(engine);
        slot.openers.add(opener, sleep);
        slot.openers.show(QueueState::Running, None);
        self.begin(place, turns);
        true
    }

    fn push_tx(&mut self, mut slot: TxSlot, counts: Counts, counts_at: usize) {
        slot.counts_at = counts_at;
        self.tx.push(slot);
        self.tx_counts.push(counts);
        self.make_room_to_touch();
    }

    fn make_room_to_touch(&mut self) {
        self.touched.reserve(self.rx.len() + self.tx.len());
    }

    /// Takes a ring off a TX queue at once. What it held comes back.
    pub fn drop_ring(&mut self, index: u32, ring: u32, sleep: &Sleep, turns: &mut Turns) -> Answer {
        let mut answer = Answer::default();
        let place = self.tx.iter().position(|slot| slot.queue.id.index == index && slot.ring == ring);
        if let Some(place) = place.filter(|_| ring != 0) {
            let item = self.ring(place);
            turns.remove_if(|there| there == item);
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

    /// What a port queue brings is reckoned with whoever listens.
    pub fn settle_owners(&self, turns: &mut Turns) {
        for (at, port_queue) in self.port_queues.iter().enumerate() {
            turns.set_owner(self.port_queue(at), self.owner_of(port_queue));
        }
    }

    fn owner_of(&self, port_queue: &PortSlot) -> Owner {
        port_queue.rx_at.map_or(0, |at| self.rx[at].openers.owner())
    }

    /// Stops a queue at once. What it held comes back.
    pub fn halt(&mut self, queue: QueueId, sleep: &Sleep, turns: &mut Turns) -> Answer {
        let mut answer = Answer { done: true, ..Answer::default() };
        match queue.direction {
            Direction::Rx => {
                if let Some(slot) = self.rx_slot(queue.index) {
                    slot.halt(sleep, &mut answer);
                    self.settle_owners(turns);
                }
            }
            Direction::Tx => {
                let Some(first) = self.tx_place(queue.index) else { return answer };
                let (tx, port) = (&mut self.tx, self.port as u32);
                let is_of_queue = |lane, at: u32| lane == port && tx[at as usize].counts_at == first;
                turns.remove_if(|item| matches!(item, Item::Ring(lane, at) if is_of_queue(lane, at)));
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
        turns: &mut Turns,
    ) -> bool {
        let openers = match queue.direction {
            Direction::Rx => {
                let Some(slot) = self.rx_slot(queue.index) else { return false };
                if let Some((policy, losses)) = cursor {
                    let word = opener.control.word64(DOORBELL_AT);
                    let (Ok(word), Some(reclaimer)) = (word, &mut slot.reclaimer) else { return false };
                    if !reclaimer.join(opener.id, word, policy, losses) {
                        return false;
                    }
                }
                &mut slot.openers
            }
            Direction::Tx => match self.tx_place(queue.index) {
                Some(place) => {
                    // A ring with several openers is never cold.
                    turns.warm(self.ring(place));
                    &mut self.tx[place].openers
                }
                None => return false,
            },
        };
        show_state(&opener.control, QueueState::Running, None);
        openers.add(opener, sleep);
        true
    }

    pub fn leave(&mut self, queue: QueueId, id: u32, sleep: &Sleep, turns: &mut Turns) -> Option<Opener> {
        match queue.direction {
            Direction::Rx => {
                let slot = self.rx_slot(queue.index)?;
                if let Some(reclaimer) = &mut slot.reclaimer {
                    reclaimer.leave(id);
                }
                slot.openers.remove(id, sleep)
            }
            Direction::Tx => {
                let place = self.tx_place(queue.index)?;
                // Its kick may be the one that was to wake it.
                turns.warm(self.ring(place));
                self.tx[place].openers.remove(id, sleep)
            }
        }
    }

    /// Says how to wake an opener of a queue, or of one of its further rings.
    pub fn set_call(&mut self, queue: QueueId, id: u32, call: &Arc<OwnedFd>) -> bool {
        match queue.direction {
            Direction::Rx => self.rx_slot(queue.index).is_some_and(|slot| slot.openers.set_call(id, call)),
            Direction::Tx => {
                let mut rings = self.tx.iter_mut().filter(|slot| slot.queue.id == queue);
                rings.any(|slot| slot.openers.set_call(id, call))
            }
        }
    }

    /// Takes queues and port queues out of the lane, running or not.
    pub fn detach(&mut self, what: &Detach, sleep: &Sleep, turns: &mut Turns) -> Detached {
        let wanted = |id: QueueId| what.queues.contains(&id);
        let mut detached = Detached::default();
        let (gone, stay) = core::mem::take(&mut self.port_queues)
            .into_iter()
            .partition(|port_queue| what.port_queues.contains(&port_queue.number));
        (detached.port_queues, self.port_queues) = (gone, stay);
        (detached.rx, self.rx) = core::mem::take(&mut self.rx).into_iter().partition(|slot| wanted(slot.queue.id));
        detached.rx.iter().for_each(|slot| slot.openers.leave_worker(sleep));
        let counts = core::mem::take(&mut self.tx_counts);
        for (slot, counts) in core::mem::take(&mut self.tx).into_iter().zip(counts) {
            if !wanted(slot.queue.id) {
                let first = self.tx_place(slot.queue.id.index).unwrap_or(self.tx.len());
                self.push_tx(slot, counts, first);
                continue;
            }
            slot.openers.leave_worker(sleep);
            match detached.tx.iter_mut().find(|queue| queue.rings[0].queue.id == slot.queue.id) {
                Some(queue) => queue.rings.push(slot),
                None => detached.tx.push(TxQueue { counts, rings: vec![slot] }),
            }
        }
        self.settle(turns);
        detached
    }

    /// Puts queues and port queues into the lane.
    pub fn adopt(&mut self, detached: Detached, sleep: &Sleep, turns: &mut Turns) {
        self.port_queues.extend(detached.port_queues);
        self.port_queues.sort_by_key(|port_queue| port_queue.number);
        detached.rx.iter().for_each(|slot| slot.openers.enter_worker(sleep));
        self.rx.extend(detached.rx);
        self.rx.sort_by_key(|slot| slot.queue.id.index);
        self.make_room_to_touch();
        for TxQueue { counts, rings } in detached.tx {
            let first = self.tx.len();
            for slot in rings {
                slot.openers.enter_worker(sleep);
                self.push_tx(slot, counts, first);
            }
        }
        self.settle(turns);
    }

    /// The worker has ended: says so of every queue that runs.
    pub fn lose(&mut self) {
        let fault = EngineFault { kind: FaultKind::WorkerLost, iova: Iova::new(0) };
        self.rx.iter_mut().filter(|slot| slot.is_running()).for_each(|slot| slot.lose(fault));
        self.tx.iter_mut().filter(|slot| slot.is_running()).for_each(|slot| slot.lose(fault));
    }

    /// Finds again what is known by its place.
    fn settle(&mut self, turns: &mut Turns) {
        for port_queue in &mut self.port_queues {
            port_queue.rx_at = self.rx.iter().position(|slot| slot.bundle == port_queue.number);
        }
        turns.remove_if(|item| item.lane() == self.port);
        for (at, slot) in self.tx.iter().enumerate().filter(|(_, slot)| slot.is_running()) {
            turns.add(self.ring(at), slot.openers.owner());
        }
        for (at, port_queue) in self.port_queues.iter().enumerate() {
            turns.add(self.port_queue(at), self.owner_of(port_queue));
        }
    }
}

/// One burst from a TX queue that a disabled MAC, or one without a link, takes and drops. Returns whether anything
/// moved, and whether the TX queue stays active.
#[cold]
fn refuse(tx: &mut TxSlot, counts: &mut Counts, mac: &mut MacLane) -> (bool, bool) {
    let Some(engine) = tx.engine.running_mut() else { return (false, true) };
    let served = engine.serve(BUDGET, &mut |_: Span<'_>| Accept::Taken);
    mac.tx.refuse(&mac.rules, served.frames, served.bytes);
    end_of_burst(tx, counts, served, mac)
}

/// One burst from a TX queue of a port without a port queue. Returns as [`refuse`].
#[cold]
fn lose(tx: &mut TxSlot, counts: &mut Counts, mac: &mut MacLane) -> (bool, bool) {
    let Some(engine) = tx.engine.running_mut() else { return (false, true) };
    let served = engine.serve(BUDGET, &mut |_: Span<'_>| Accept::Taken);
    mac.tx.unplugged(served.frames, served.bytes);
    end_of_burst(tx, counts, served, mac)
}

/// One burst from a TX queue to the RX queue of the same index; if there is none, to the first where `or_first` says
/// so. Returns as [`refuse`].
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
    let Some(engine) = tx.engine.running_mut() else { return (false, true) };
    let Some(rx) = at.and_then(|at| rx.get_mut(at)) else {
        let served = engine.serve(BUDGET, &mut |_: Span<'_>| Accept::Taken);
        counts.drops[QueueDrop::NoRxQueue as usize] += served.frames;
        counts.dropped_bytes += served.bytes;
        return end_of_burst(tx, counts, Served { frames: 0, bytes: 0, ..served }, mac);
    };
    rx.begin();
    let MacLane { rules, rx: receiver, stamper, .. } = mac;
    let served = engine.serve(BUDGET, &mut LoopSink { rules, receiver, stamper, rx });
    rx.finish();
    mac.tx.loop_back(served.frames, served.bytes);
    end_of_burst(tx, counts, served, mac)
}

/// The RX queue of a loopback as the sink of the TX ring.
struct LoopSink<'l> {
    rules: &'l Rules,
    receiver: &'l mut Receiver,
    stamper: &'l mut Stamper,
    rx: &'l mut RxSlot,
}

impl FrameSink for LoopSink<'_> {
    #[inline(always)]
    fn take(&mut self, frame: Span<'_>) -> Accept {
        let Self { rules, receiver, stamper, rx } = self;
        receiver.admit(rules, frame, true, |frame| rx.offer(stamper.metadata(), frame))
    }

    /// The receiver sees the frames before the sender gets its buffers back: somebody waits for the former.
    #[inline(always)]
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        let taken = match frames {
            // For one frame nothing is set up.
            &[frame] => usize::from(self.take(frame) == Accept::Taken),
            _ => {
                let Self { rules, receiver, stamper, rx } = self;
                receiver.admit_burst(rules, frames, true, |run| rx.offer_burst(stamper.metadata(), run))
            }
        };
        self.rx.show();
        taken
    }
}

/// Publishes what the MAC counted, then what the queue did: who sees that a frame has left the ring finds it counted.
#[inline(always)]
fn end_of_burst(tx: &mut TxSlot, counts: &mut Counts, served: Served, mac: &mut MacLane) -> (bool, bool) {
    mac.publish();
    let moved = served.has_moved();
    (moved, tx.finish(counts, served, moved))
}
