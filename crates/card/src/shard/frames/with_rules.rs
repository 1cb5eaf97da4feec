//! The same sources when there are rules.

use super::receive::receive_nothing;
use super::send::refuse;
use super::{end_of_burst, loop_back};
use crate::shard::classify::{Classifying, Normal, Patience, Source};
use crate::shard::slots::{Parked, Target};
use crate::shard::state::Shard;
use crate::turns::{Look, cost};
use millrace_flow::Ingress;
use millrace_flow::field::LOCAL;

impl Shard {
    /// One burst from one port queue. `reaped`: it has given back what it had sent. Returns as [`Shard::look`].
    pub(super) fn look_at_port_queue_with_rules(&mut self, at: usize, reaped: bool) -> (Look, u32) {
        let Some(mut classifying) = self.classifying.take() else { return (Look::Quiet, cost::PORT_QUEUE) };
        let (look, cost) = self.classify_from_port_queue(at, &mut classifying);
        self.classifying = Some(classifying);
        let look = if reaped && look == Look::Quiet { Look::Busy } else { look };
        (look, cost.max(cost::PORT_QUEUE))
    }

    fn classify_from_port_queue(&mut self, at: usize, classifying: &mut Classifying) -> (Look, u32) {
        let port = self.port_queues[at].port;
        if let Some(waiting) = self.port_queues[at].parked.take() {
            let (waiting, outcome) = self.try_again(classifying, port, waiting);
            self.port_queues[at].parked = waiting;
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        let source = self.source_of_port_queue(at);
        let (port_queue, mac) = (&mut self.port_queues[at], &mut self.ports[port].mac);
        mac.refresh();
        let taken = if mac.is_cut_off() {
            classifying.clear();
            receive_nothing(port_queue.queue.as_mut(), mac)
        } else {
            classifying.receive(port_queue.queue.as_mut(), mac)
        };
        mac.publish();
        let bytes = classifying.staged_bytes();
        let parked = classifying.run(self, &source);
        let port_queue = &mut self.port_queues[at];
        port_queue.parked = parked;
        if taken > 0 {
            port_queue.steady.note(classifying.only(), taken as u32);
        }
        let look = if taken > 0 { Look::Busy } else { Look::Quiet };
        (look, cost::of(taken as u64, bytes) + classifying.take_work())
    }

    /// Tries again with frames that wait at a source. Returns those that still do, and with them how the look at the source ended:
    /// nothing more is taken from it.
    fn try_again(
        &mut self,
        classifying: &mut Classifying,
        port: usize,
        waiting: Box<Parked>,
    ) -> (Option<Box<Parked>>, Option<(Look, u32)>) {
        let mut waiting = Some(waiting);
        let has_moved = classifying.retry(self, port, &mut waiting);
        let look = if has_moved { Look::Busy } else { Look::Blocked };
        let outcome = waiting.is_some().then_some((look, cost::BLOCKED));
        (waiting, outcome)
    }

    fn source_of_port_queue(&self, at: usize) -> Source {
        let port_queue = &self.port_queues[at];
        let port = &self.ports[port_queue.port];
        let number = port_queue.number;
        // A source that can wait does so until somebody starts to listen.
        let patience = if port_queue.queue.can_wait() { Patience::UntilRunning } else { Patience::None };
        let rx = port_queue.rx_at.map_or(Normal::Nowhere, |rx| {
            let queue = &self.rx[rx];
            let is_absent = patience == Patience::UntilRunning && !queue.is_running();
            Normal::To(if is_absent { Target::Queue(queue.queue.id.index) } else { Target::Rx(rx as u32) })
        });
        let back = Normal::To(Target::PortQueue(at as u32));
        let normal = match port.shape.patch {
            None => rx,
            Some(patch) if patch.to == port_queue.port => back,
            Some(patch) => {
                let other = number.checked_rem(patch.port_queues).and_then(|number| self.ports[patch.to].place(number));
                Normal::To(other.map_or(Target::Unplugged(patch.to as u32), |other| Target::PortQueue(other as u32)))
            }
        };
        let ingress = Ingress { port: port_queue.port as u32, queue: number as u16, tunnel: None, quic: None };
        Source {
            is_program: false,
            port: port_queue.port,
            ingress,
            patience,
            steady: port_queue.steady,
            normal,
            host: rx,
            back,
        }
    }

    /// One burst from one TX ring that has something, or had. Returns as [`Shard::look`].
    pub(super) fn look_at_ring_with_rules(&mut self, at: usize) -> (Look, u32) {
        let Some(mut classifying) = self.classifying.take() else { return (Look::Quiet, cost::LOOK) };
        let outcome = self.classify_from_ring(at, &mut classifying);
        self.classifying = Some(classifying);
        outcome
    }

    fn classify_from_ring(&mut self, at: usize, classifying: &mut Classifying) -> (Look, u32) {
        let port = self.tx[at].port;
        if let Some(waiting) = self.tx[at].parked.take() {
            let (waiting, outcome) = self.try_again(classifying, port, waiting);
            self.tx[at].parked = waiting;
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        let is_loopback = self.ports[port].shape.loopback;
        let source = if is_loopback { self.source_of_loopback(at) } else { self.source_of_ring(at) };
        let Self { ports, tx, tx_counts, .. } = &mut *self;
        let (slot, mac) = (&mut tx[at], &mut ports[port].mac);
        let counts = &mut tx_counts[slot.counts_at];
        mac.refresh();
        let (served, stays) = if is_loopback && !mac.lets_out() {
            classifying.clear();
            refuse(slot, counts, mac)
        } else {
            let Some(engine) = slot.engine.running_mut() else { return (Look::Quiet, cost::LOOK) };
            let served = if is_loopback {
                let burst = classifying.burst();
                let served = engine.serve(burst, &mut classifying.looped(mac));
                mac.tx.loop_back(served.frames, served.bytes);
                served
            } else {
                let burst = classifying.burst();
                engine.serve(burst, &mut classifying.staged())
            };
            counts.copies += served.frames;
            end_of_burst(slot, counts, served, mac)
        };
        let cost = slot.cost;
        if served {
            self.touch_tx(at);
        }
        let parked = classifying.run(self, &source);
        let slot = &mut self.tx[at];
        slot.parked = parked;
        if served {
            slot.steady.note(classifying.only(), classifying.staged_frames());
        }
        let cost = cost + classifying.take_work();
        match (served, stays) {
            (_, false) => (Look::Ended, cost),
            (true, true) => (Look::Busy, cost),
            (false, true) => (Look::Blocked, cost.max(cost::BLOCKED)),
        }
    }

    /// Rules decide on what has just been taken from a ring into the stage.
    pub(super) fn classify_staged(&mut self, at: usize, moved: bool) {
        let Some(mut classifying) = self.classifying.take() else { return };
        let source = self.source_of_ring(at);
        let parked = classifying.run(self, &source);
        let slot = &mut self.tx[at];
        slot.parked = parked;
        if moved {
            slot.steady.note(classifying.only(), classifying.staged_frames());
        }
        slot.cost += classifying.take_work();
        self.classifying = Some(classifying);
    }

    /// What a program sends on a port that loops back comes in there.
    fn source_of_loopback(&self, at: usize) -> Source {
        let slot = &self.tx[at];
        let port = &self.ports[slot.port];
        let rx = loop_back::target(port, slot, &self.rx, &self.rx_places);
        let rx = rx.map_or(Normal::Nowhere, |rx| Normal::To(Target::Rx(rx as u32)));
        let queue = (slot.queue.id.index % (u32::from(u16::MAX) + 1)) as u16;
        let ingress = Ingress { port: slot.port as u32, queue, tunnel: None, quic: None };
        Source {
            is_program: true,
            port: slot.port,
            ingress,
            patience: Patience::IfAlone,
            steady: slot.steady,
            normal: rx,
            host: rx,
            back: rx,
        }
    }

    /// What a program sends elsewhere comes from the host.
    fn source_of_ring(&self, at: usize) -> Source {
        let slot = &self.tx[at];
        let port = &self.ports[slot.port];
        let out = port.place(slot.bundle).map(|place| Target::PortQueue(place as u32));
        let rx = port.rx.clone().next().and_then(|first| self.rx_target(first));
        let host = rx.map_or(Normal::Nowhere, Normal::To);
        let queue = (slot.queue.id.index % (u32::from(u16::MAX) + 1)) as u16;
        let ingress = Ingress { port: LOCAL, queue, tunnel: None, quic: None };
        let normal = Normal::To(out.unwrap_or(Target::Unplugged(slot.port as u32)));
        Source {
            is_program: true,
            port: slot.port,
            ingress,
            patience: Patience::IfAlone,
            steady: slot.steady,
            normal,
            host,
            back: host,
        }
    }

    /// A burst of what another worker has for this one.
    pub(super) fn look_at_crossing(&mut self, from: usize) -> (Look, u32) {
        let Some(mut classifying) = self.classifying.take() else { return (Look::Quiet, cost::LOOK) };
        let outcome = classifying.take_crossed(self, from);
        self.classifying = Some(classifying);
        outcome
    }
}
