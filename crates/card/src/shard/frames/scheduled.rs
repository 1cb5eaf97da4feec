//! From TX rings of a port with a schedule: when the gate of their class is open, the wire free and their rate allows it, those of
//! the highest class first (decision 102).

use super::send::{DepartureWatch, PortSink};
use super::{BUDGET, end_of_burst};
use crate::counters::QueueDrop;
use crate::schedule::Scheduled;
use crate::shard::state::Shard;
use crate::turns::{Look, cost};
use millrace_ring::Served;

impl Shard {
    /// One burst from a ring that has something. Returns as [`Shard::look`].
    pub(super) fn look_at_scheduled_ring(&mut self, at: usize) -> (Look, u32) {
        let slot = &mut self.tx[at];
        let (port, Some(discipline)) = (slot.port, &mut slot.discipline) else { return (Look::Quiet, cost::LOOK) };
        if discipline.waits(&self.clock) > 0 {
            return (Look::Waits, cost::LOOK);
        }
        let before = usize::from(discipline.class());
        discipline.settle(&self.clock);
        let class = usize::from(discipline.class());
        if class != before
            && let Some(scheduling) = &mut self.ports[port].schedule
        {
            scheduling.due[before].set(at, 0);
        }
        if self.is_outranked(port, class) {
            return (Look::Blocked, cost::BLOCKED);
        }
        let (outcome, is_ahead) = self.send_scheduled(at);
        let until =
            self.tx.get(at).and_then(|slot| slot.discipline.as_ref()).map_or(0, |discipline| discipline.until());
        if let Some(scheduling) = &mut self.ports[port].schedule {
            scheduling.due[class].set(at, until);
            if is_ahead {
                scheduling.ahead[class] = self.passes;
            }
        }
        outcome
    }

    /// Whether a ring of a higher class had something to send in this pass or the one before, or may by now and has not had its
    /// turn yet.
    fn is_outranked(&mut self, port: usize, class: usize) -> bool {
        let Some(scheduling) = &mut self.ports[port].schedule else { return false };
        let above = class + 1..;
        if scheduling.ahead[above.clone()].iter().any(|&pass| pass > 0 && pass + 1 >= self.passes) {
            return true;
        }
        let due = &mut scheduling.due[above];
        due.iter().any(|due| !due.is_empty()) && {
            let now = self.clock.exactly();
            due.iter_mut().any(|due| due.is_due(now))
        }
    }

    fn send_scheduled(&mut self, at: usize) -> ((Look, u32), bool) {
        let with_rules = self.meets_rules(at);
        let Self { ports, tx, tx_counts, port_queues, clock, classifying, .. } = &mut *self;
        let slot = &mut tx[at];
        let (port, counts) = (&mut ports[slot.port], &mut tx_counts[slot.counts_at]);
        port.mac.refresh();
        // What goes nowhere, or round inside the card, needs no wire.
        let plain =
            !port.mac.lets_out() || port.shape.loopback || port.mac.rules.looped || port.place(slot.bundle).is_none();
        let (Some(place), false) = (port.place(slot.bundle), plain) else {
            let (moved, stays) = self.send(at);
            return (self.end_look(at, moved, stays), false);
        };
        let watched = slot.openers.want_stamps() && !with_rules;
        let watch = watched.then(|| DepartureWatch::begin(port_queues[place].queue.as_mut(), slot, clock));
        let (Some(engine), Some(discipline)) = (slot.engine.running_mut(), &mut slot.discipline) else {
            return ((Look::Quiet, cost::LOOK), false);
        };
        let (served, never, is_ahead) = match classifying.as_mut().filter(|_| with_rules) {
            Some(classifying) => {
                let burst = classifying.burst();
                let mut sink = Scheduled::new(classifying.staged(), discipline, clock);
                let served = engine.serve(burst, &mut sink);
                counts.copies += served.frames;
                (served, sink.never, sink.is_ahead)
            }
            None => {
                let queue = port_queues[place].queue.as_mut();
                let copies = queue.counters().tx_copies();
                let mut sink = Scheduled::new(PortSink(queue), discipline, clock);
                let served = engine.serve(BUDGET, &mut sink);
                let (never, is_ahead) = (sink.never, sink.is_ahead);
                queue.flush();
                counts.copies += queue.counters().tx_copies() - copies;
                port.mac.tx.count_sent(served.bytes - never.1);
                (served, never, is_ahead)
            }
        };
        counts.drops[QueueDrop::NoWindow as usize] += never.0;
        counts.dropped_bytes += never.1;
        let served =
            Served { frames: served.frames - never.0, bytes: served.bytes - never.1, dropped: never.0, ..served };
        let waits = discipline.waits(clock) > 0;
        let (moved, stays) = end_of_burst(slot, counts, served, &mut port.mac);
        if let Some(watch) = watch {
            watch.end(port_queues[place].queue.as_mut(), slot, clock);
        }
        if with_rules {
            self.classify_staged(at, moved);
        }
        let (look, cost) = self.end_look(at, moved, stays);
        let look = if look == Look::Blocked && waits { Look::Waits } else { look };
        ((look, cost), is_ahead)
    }

    fn end_look(&mut self, at: usize, moved: bool, stays: bool) -> (Look, u32) {
        if moved {
            self.touch_tx(at);
        }
        let cost = self.tx[at].cost;
        match (moved, stays) {
            (_, false) => (Look::Ended, cost),
            (true, true) => (Look::Busy, cost),
            (false, true) => (Look::Blocked, cost.max(cost::BLOCKED)),
        }
    }
}
