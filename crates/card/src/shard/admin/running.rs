//! Queues start and stop, openers come and go.

use crate::engine::{RxEngine, TxEngine};
use crate::opener::Opener;
use crate::queue_status::show_state;
use crate::shard::slots::{Answer, RxSlot, TxSlot};
use crate::shard::state::Shard;
use crate::sleep::Sleep;
use crate::turns::{Item, Look, Turns};
use millrace_abi::control::{DOORBELL_AT, FaultKind, QueueState};
use millrace_abi::queue::{Direction, Laggard, QueueId};
use millrace_dma::Iova;
use millrace_port::Bell;
use millrace_ring::EngineFault;
use millrace_ring::shared::{Losses, Reclaimer};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl Shard {
    fn rx_slot(&mut self, index: u32) -> Option<&mut RxSlot> {
        let place = self.rx_place(index)?;
        self.rx.get_mut(place)
    }

    /// A TX queue runs from now on.
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
    pub(super) fn begin(&mut self, place: usize, turns: &mut Turns) {
        self.tx[place].use_clock(&self.clock);
        let (item, openers) = (Item::Ring(place as u32), &self.tx[place].openers);
        turns.remove(item);
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
        let TxSlot { queue, port, bundle, .. } = &self.tx[first];
        let place = self.put_ring(TxSlot::new(queue.clone(), ring, *port, *bundle), Some(first));
        self.touched.reserve(self.rx.len() + self.tx.len());
        let slot = &mut self.tx[place];
        slot.begin(engine);
        slot.openers.add(opener, sleep);
        slot.openers.show(QueueState::Running, None);
        self.begin(place, turns);
        true
    }

    /// Takes a ring off a TX queue at once. What it held comes back.
    pub fn drop_ring(&mut self, index: u32, ring: u32, sleep: &Sleep, turns: &mut Turns) -> Answer {
        let mut answer = Answer::default();
        let Some(first) = self.tx_place(index).filter(|_| ring != 0) else { return answer };
        if let Some(place) = self.rings_of(first).into_iter().find(|&place| self.tx[place].ring == ring) {
            turns.remove(Item::Ring(place as u32));
            self.lose_parked(place);
            self.tx.remove(place).halt(sleep, &mut answer);
            self.tx[first].others -= 1;
            answer.done = true;
        }
        answer
    }

    /// An RX queue runs from now on.
    pub fn start_rx(
        &mut self,
        index: u32,
        engine: Box<RxEngine>,
        (reclaimer, discard): (Option<Box<Reclaimer>>, bool),
        openers: Vec<Opener>,
        sleep: &Sleep,
        turns: &mut Turns,
    ) {
        if let Some(slot) = self.rx_place(index).and_then(|place| self.rx.get_mut(place)) {
            slot.start(engine, reclaimer, openers, discard, sleep);
            slot.count_as(true, &mut self.receiving);
            self.homes.set_rx_runs(index, true);
            self.settle_owner(index, turns);
        }
    }

    /// What a port queue brings is reckoned with whoever listens.
    pub(super) fn settle_owner(&self, rx: u32, turns: &mut Turns) {
        let Some(slot) = self.rx_place(rx).and_then(|place| self.rx.get(place)) else { return };
        if let Some(place) = self.ports[slot.port].place(slot.bundle) {
            turns.set_owner(Item::PortQueue(place as u32), self.owner_of(&self.port_queues[place]));
        }
    }

    /// Stops a queue at once. What it held comes back.
    pub fn halt(&mut self, queue: QueueId, sleep: &Sleep, turns: &mut Turns) -> Answer {
        let mut answer = Answer { done: true, ..Answer::default() };
        match queue.direction {
            Direction::Rx => {
                if let Some(slot) = self.rx_place(queue.index).and_then(|place| self.rx.get_mut(place)) {
                    slot.halt(sleep, &mut answer);
                    slot.count_as(false, &mut self.receiving);
                    self.homes.set_rx_runs(queue.index, false);
                    self.settle_owner(queue.index, turns);
                }
            }
            Direction::Tx => {
                let Some(first) = self.tx_place(queue.index) else { return answer };
                for place in self.rings_of(first) {
                    turns.remove(Item::Ring(place as u32));
                    self.lose_parked(place);
                    self.tx[place].halt(sleep, &mut answer);
                }
                self.tx[first].queue.has_stopped();
            }
        }
        answer
    }

    /// A ring is stopped at once: frames of it that wait are lost.
    fn lose_parked(&mut self, place: usize) {
        let parked = self.tx[place].parked.take();
        if let (true, Some(classifying)) = (parked.is_some(), &mut self.classifying) {
            classifying.lose_parked(parked);
        }
    }

    /// One more opener of a queue that runs.
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
                    turns.warm(Item::Ring(place as u32));
                    &mut self.tx[place].openers
                }
                None => return false,
            },
        };
        show_state(&opener.control, QueueState::Running, None);
        openers.add(opener, sleep);
        true
    }

    /// One opener less.
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
                turns.warm(Item::Ring(place as u32));
                self.tx[place].openers.remove(id, sleep)
            }
        }
    }

    /// Says how to wake an opener of a queue, or of one of its further rings.
    pub fn set_call(&mut self, queue: QueueId, id: u32, call: &Arc<Bell>) -> bool {
        match queue.direction {
            Direction::Rx => self.rx_slot(queue.index).is_some_and(|slot| slot.openers.set_call(id, call)),
            Direction::Tx => {
                let rings = self.tx_place(queue.index).map_or_else(Vec::new, |first| self.rings_of(first));
                rings.into_iter().any(|place| self.tx[place].openers.set_call(id, call))
            }
        }
    }

    /// One burst from every ring of a TX queue, however quiet they were; they are hot then.
    pub fn look_at_queue(&mut self, index: u32, turns: &mut Turns) {
        let rings = self.tx_place(index).map_or_else(Vec::new, |first| self.rings_of(first));
        for place in rings {
            let item = Item::Ring(place as u32);
            if self.tx[place].is_running() {
                turns.warm(item);
                if self.look(item).0 == Look::Ended {
                    turns.remove(item);
                }
            }
        }
    }

    /// Takes over changes of all domains, running or not.
    pub fn sync_domains(&mut self) {
        self.rx.iter_mut().for_each(|(_, slot)| slot.sync());
        self.tx.iter_mut().for_each(|(_, slot)| slot.sync());
    }

    /// The worker has ended by a bug: says so of every queue that runs, whatever may be wrong with another.
    pub fn lose(&mut self) {
        let fault = EngineFault { kind: FaultKind::WorkerLost, iova: Iova::new(0) };
        for (_, slot) in self.rx.iter_mut().filter(|(_, slot)| slot.is_running()) {
            let _ = catch_unwind(AssertUnwindSafe(|| slot.lose(fault)));
        }
        for (_, slot) in self.tx.iter_mut().filter(|(_, slot)| slot.is_running()) {
            let _ = catch_unwind(AssertUnwindSafe(|| slot.lose(fault)));
        }
    }
}
