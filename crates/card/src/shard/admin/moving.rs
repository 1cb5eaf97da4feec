//! Queues and port queues come and go.

use crate::counters::Counts;
use crate::schedule::{Discipline, Due, PortSchedule};
use crate::shard::classify::{Classifying, SlowEnds, Tapper};
use crate::shard::slots::{Detach, Detached, PortSlot, RxSlot, TxQueue, TxSlot, wake_fence};
use crate::shard::state::{NOWHERE, Port, Scheduling, Shape, Shard};
use crate::sleep::Sleep;
use crate::turns::{Item, Owner, Turns};
use millrace_abi::queue::{Direction, QueueId};
use millrace_abi::schedule::CLASSES;
use std::sync::Arc;

impl Shard {
    /// What a port is from now on.
    pub fn set_shape(&mut self, port: usize, shape: Shape) {
        if let Some(port) = self.ports.get_mut(port) {
            port.shape = shape;
        }
    }

    /// When the rings of a port may send from now on.
    pub fn set_schedule(&mut self, port: usize, schedule: Option<Arc<PortSchedule>>) {
        let Some(entry) = self.ports.get_mut(port) else { return };
        let places = self.tx.capacity();
        entry.schedule = schedule.map(|schedule| {
            let due = core::array::from_fn(|_| Due::new(places));
            Scheduling { schedule, ahead: [0; CLASSES as usize], due }
        });
        for (_, slot) in self.tx.iter_mut().filter(|(_, slot)| slot.port == port) {
            slot.discipline = discipline_of(entry, slot.queue.id.index);
        }
    }

    /// Frames are classified from now on while there are rules.
    pub fn set_classifying(&mut self, classifying: Box<Classifying>, turns: &mut Turns) {
        classifying.others().for_each(|other| turns.add(Item::Crossing(other), 0));
        self.classifying = Some(classifying);
    }

    /// Somebody finds neighbours from now on, for frames that are classified.
    pub fn add_slow(&mut self, ends: SlowEnds, turns: &mut Turns) {
        if let Some(classifying) = &mut self.classifying {
            turns.add(Item::Crossing(classifying.add_slow(ends)), 0);
        }
    }

    /// Somebody listens to frames on which rules decide. `false`: the worker cannot classify.
    pub fn tap(&mut self, tapper: Tapper) -> bool {
        let Some(classifying) = &mut self.classifying else { return false };
        classifying.tap(tapper);
        true
    }

    /// He does not any more.
    pub fn untap(&mut self, number: u64) -> Option<Box<Tapper>> {
        self.classifying.as_mut()?.untap(number)
    }

    /// Takes queues and port queues of a port out of the shard, running or not.
    pub fn detach(&mut self, port: usize, what: &Detach, sleep: &Sleep, turns: &mut Turns) -> Detached {
        let mut detached = Detached::default();
        for &number in &what.port_queues {
            detached.port_queues.extend(self.take_port_queue(port, number, turns));
        }
        for queue in &what.queues {
            match queue.direction {
                Direction::Rx => detached.rx.extend(self.take_rx(queue.index, sleep)),
                Direction::Tx => detached.tx.extend(self.take_tx(queue.index, sleep, turns)),
            }
        }
        detached
    }

    fn take_port_queue(&mut self, port: usize, number: u32, turns: &mut Turns) -> Option<PortSlot> {
        let port = self.ports.get_mut(port)?;
        let place = port.place(number)?;
        port.places[number as usize] = NOWHERE;
        port.here.retain(|&here| here as usize != place);
        turns.remove(Item::PortQueue(place as u32));
        self.port_queues.try_remove(place)
    }

    fn take_rx(&mut self, index: u32, sleep: &Sleep) -> Option<RxSlot> {
        let place = self.rx_place(index)?;
        self.rx_places[index as usize] = NOWHERE;
        let mut slot = self.rx.try_remove(place)?;
        slot.count_as(false, &mut self.receiving);
        wake_fence();
        slot.announce();
        slot.openers.leave_worker(sleep);
        let port = &mut self.ports[slot.port];
        if let Some(port_queue) = port.place(slot.bundle).and_then(|place| self.port_queues.get_mut(place)) {
            port_queue.rx_at = port_queue.rx_at.filter(|&at| at != place);
        }
        if port.first_rx == index {
            let is_here = |index: &u32| self.rx_places.get(*index as usize).is_some_and(|&place| place != NOWHERE);
            port.first_rx = port.rx.clone().find(is_here).unwrap_or(NOWHERE);
        }
        Some(slot)
    }

    fn take_tx(&mut self, index: u32, sleep: &Sleep, turns: &mut Turns) -> Option<TxQueue> {
        let first = self.tx_place(index)?;
        let places = self.rings_of(first);
        let counts = core::mem::take(&mut self.tx_counts[first]);
        self.tx_places[index as usize] = NOWHERE;
        let mut rings = Vec::with_capacity(places.len());
        for place in places {
            turns.remove(Item::Ring(place as u32));
            let mut slot = self.tx.remove(place);
            wake_fence();
            slot.announce();
            slot.openers.leave_worker(sleep);
            rings.push(slot);
        }
        Some(TxQueue { counts, rings })
    }

    /// The places of the rings of a TX queue, ring 0 first.
    pub(super) fn rings_of(&self, first: usize) -> Vec<usize> {
        // A queue without further rings, as nearly all are, is found without a look at the others.
        if self.tx[first].others == 0 {
            return vec![first];
        }
        let others = self.tx.iter().filter(|(place, slot)| slot.counts_at == first && *place != first);
        [first].into_iter().chain(others.map(|(place, _)| place)).collect()
    }

    /// Puts queues and port queues into the shard: what of them belongs together comes together.
    pub fn adopt(&mut self, detached: Detached, sleep: &Sleep, turns: &mut Turns) {
        let Detached { port_queues, rx, tx } = detached;
        rx.into_iter().for_each(|slot| self.put_rx(slot, sleep));
        for TxQueue { counts, rings } in tx {
            let mut first = None;
            for slot in rings {
                let (is_running, owner) = (slot.is_running(), slot.openers.owner());
                slot.openers.enter_worker(sleep);
                let place = self.put_ring(slot, first);
                if first.is_none() {
                    (first, self.tx_counts[place]) = (Some(place), counts);
                }
                if is_running {
                    turns.add(Item::Ring(place as u32), owner);
                }
            }
        }
        port_queues.into_iter().for_each(|port_queue| self.put_port_queue(port_queue, turns));
        self.touched.reserve(self.rx.len() + self.tx.len());
        self.marked.reserve(self.rx.len() + self.port_queues.len());
    }

    fn put_rx(&mut self, mut slot: RxSlot, sleep: &Sleep) {
        slot.openers.enter_worker(sleep);
        slot.wanted = Some(self.wanted.clone());
        slot.count_as(slot.is_running(), &mut self.receiving);
        let (index, port, bundle) = (slot.queue.id.index, slot.port, slot.bundle);
        let place = self.rx.insert(slot);
        self.rx_places[index as usize] = place as u32;
        let port = &mut self.ports[port];
        port.first_rx = port.first_rx.min(index);
        // One that is here already and has none.
        if let Some(port_queue) = port.place(bundle).and_then(|place| self.port_queues.get_mut(place)) {
            port_queue.rx_at.get_or_insert(place);
        }
    }

    /// Puts a ring where its queue's ring 0 is at `first`; without, it is ring 0. Returns its place.
    pub(super) fn put_ring(&mut self, mut slot: TxSlot, first: Option<usize>) -> usize {
        let entry = self.tx.vacant_entry();
        let place = entry.key();
        slot.counts_at = first.unwrap_or(place);
        slot.use_clock(&self.clock);
        let index = slot.queue.id.index;
        let port = &mut self.ports[slot.port];
        slot.discipline = discipline_of(port, index);
        port.schedule.iter_mut().flat_map(|scheduling| &mut scheduling.due).for_each(|due| due.grow(place + 1));
        entry.insert(slot);
        if self.tx_counts.len() <= place {
            self.tx_counts.resize(place + 1, Counts::default());
        }
        match first {
            Some(first) => self.tx[first].others += 1,
            None => {
                self.tx[place].others = 0;
                self.tx_places[index as usize] = place as u32;
            }
        }
        place
    }

    fn put_port_queue(&mut self, mut port_queue: PortSlot, turns: &mut Turns) {
        let (port, number) = (port_queue.port, port_queue.number as usize);
        // The RX queue of its number gets its frames.
        let rx = &self.ports[port].rx;
        let index = rx.start.checked_add(port_queue.number).filter(|index| rx.contains(index));
        port_queue.rx_at = index.and_then(|index| self.rx_place(index));
        let owner = self.owner_of(&port_queue);
        let place = self.port_queues.insert(port_queue) as u32;
        let port = &mut self.ports[port];
        if port.places.len() <= number {
            port.places.resize(number + 1, NOWHERE);
        }
        port.places[number] = place;
        port.here.push(place);
        // Frames of a flow go out at the same one however the others came here.
        let port_queues = &self.port_queues;
        port.here.sort_by_key(|&place| port_queues[place as usize].number);
        turns.add(Item::PortQueue(place), owner);
    }

    /// Who answers for what a port queue brings: whoever listens.
    pub(super) fn owner_of(&self, port_queue: &PortSlot) -> Owner {
        port_queue.rx_at.and_then(|at| self.rx.get(at)).map_or(0, |slot| slot.openers.owner())
    }

    /// Whether the shard has a queue.
    pub fn has(&self, queue: QueueId) -> bool {
        match queue.direction {
            Direction::Rx => self.rx_place(queue.index).is_some(),
            Direction::Tx => self.tx_place(queue.index).is_some(),
        }
    }
}

/// What the frames of a TX queue have to keep to on that port.
fn discipline_of(port: &Port, queue: u32) -> Option<Box<Discipline>> {
    let scheduling = port.schedule.as_ref()?;
    Some(Box::new(Discipline::new(scheduling.schedule.clone(), queue)))
}
