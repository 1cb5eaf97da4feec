//! Queues that another card goes on with.

use crate::counters::Counts;
use crate::engine::{RxEngine, TxEngine};
use crate::opener::Opener;
use crate::shard::slots::Answer;
use crate::shard::state::Shard;
use crate::sleep::Sleep;
use crate::turns::{Item, Turns};
use millrace_abi::queue::{Direction, QueueId};

impl Shard {
    /// Takes the engine and the openers off a queue. Nobody is told; and frames of a TX queue that wait elsewhere have turns until they are gone.
    pub fn freeze(&mut self, queue: QueueId, sleep: &Sleep, turns: &mut Turns) -> Answer {
        let mut answer = Answer::default();
        match queue.direction {
            Direction::Rx => {
                let Some(slot) = self.rx_place(queue.index).and_then(|place| self.rx.get_mut(place)) else {
                    return answer;
                };
                // One that has ended is not gone on with.
                if slot.is_running() {
                    slot.freeze(sleep, &mut answer);
                    slot.count_as(false, &mut self.receiving);
                    self.homes.set_rx_runs(queue.index, false);
                    self.settle_owner(queue.index, turns);
                }
            }
            Direction::Tx => {
                let Some(place) = self.tx_place(queue.index) else { return answer };
                // Rings of programs that share it are not gone on with.
                if self.tx[place].is_running() && self.tx[place].others == 0 {
                    self.tx[place].freeze(sleep, &mut answer);
                    let item = Item::Ring(place as u32);
                    if self.tx[place].parked.is_some() { turns.warm(item) } else { turns.remove(item) }
                }
            }
        }
        answer
    }

    /// Goes on with a TX queue.
    pub fn go_on_tx(
        &mut self,
        index: u32,
        mut engine: Box<TxEngine>,
        openers: Vec<Opener>,
        sleep: &Sleep,
        turns: &mut Turns,
    ) -> bool {
        let Some(place) = self.tx_place(index) else { return false };
        engine.publish();
        let (slot, counts) = (&mut self.tx[place], &mut self.tx_counts[place]);
        counts.pointers = engine.pointers();
        slot.queue.counts.publish(counts);
        slot.begin(engine);
        openers.into_iter().for_each(|opener| slot.openers.add(opener, sleep));
        self.begin(place, turns);
        true
    }

    /// Goes on with an RX queue.
    pub fn go_on_rx(
        &mut self,
        index: u32,
        engine: Box<RxEngine>,
        openers: Vec<Opener>,
        discard: bool,
        sleep: &Sleep,
        turns: &mut Turns,
    ) -> bool {
        let Some(slot) = self.rx_place(index).and_then(|place| self.rx.get_mut(place)) else { return false };
        slot.go_on(engine, openers, discard, sleep);
        slot.count_as(true, &mut self.receiving);
        self.homes.set_rx_runs(index, true);
        self.settle_owner(index, turns);
        true
    }

    /// Whether nothing that came from a TX queue waits in this worker, and nothing that other workers have sent to it.
    pub fn is_drained(&self, queue: QueueId) -> bool {
        let waits = queue.direction == Direction::Tx
            && self.tx_place(queue.index).is_some_and(|place| self.tx[place].parked.is_some());
        !waits && self.classifying.as_ref().is_none_or(|classifying| !classifying.has_arrivals())
    }

    /// A queue has counted so much before it came to this card.
    pub fn add_counts(&mut self, queue: QueueId, before: &Counts) -> bool {
        match queue.direction {
            Direction::Rx => {
                let slot = self.rx_place(queue.index).and_then(|place| self.rx.get_mut(place));
                slot.map(|slot| slot.add_counts(before)).is_some()
            }
            Direction::Tx => {
                let Some(place) = self.tx_place(queue.index) else { return false };
                self.tx_counts[place].add(before);
                self.tx[place].queue.counts.publish(&self.tx_counts[place]);
                true
            }
        }
    }
}
