//! The shard of a worker: everything that this worker serves, found by place. Nothing here locks.
//!
//! Rings and port queues lie in slabs: a place stays what it is as long as its ring is with the worker. Dense tables lead from the number of
//! a queue to its place, so nothing on the way of frames searches.

use super::classify::Classifying;
use super::frames::Held;
use super::slots::{PortSlot, RxSlot, Target, TxSlot, Wanted};
use crate::affinity::Homes;
use crate::counters::Counts;
use crate::mac::MacLane;
use crate::pass_clock::PassClock;
use crate::schedule::{Due, PortSchedule};
use millrace_abi::schedule::CLASSES;
use slab::Slab;
use std::ops::Range;
use std::sync::Arc;

/// No place.
pub(super) const NOWHERE: u32 = u32::MAX;

/// Where what comes in at a port goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    /// Index of the other port, or of the same.
    pub to: usize,
    /// How many port queues that one has: port queue `n` is connected with port queue `n % port_queues`.
    pub port_queues: u32,
}

/// What a port is: the same on all workers.
#[derive(Clone, Default)]
pub(crate) struct Shape {
    /// The card copies TX to RX itself.
    pub loopback: bool,
    /// The port that this one is connected with; itself: what comes goes back.
    pub patch: Option<Patch>,
    /// The worker of every port queue.
    pub workers: Arc<[u32]>,
}

/// A port as one worker has it.
pub(super) struct Port {
    pub mac: MacLane,
    pub shape: Shape,
    /// Places of the port queues that this worker serves, by number.
    pub places: Vec<u32>,
    /// Those of them that there are.
    pub here: Vec<u32>,
    /// RX queues of the port.
    pub rx: Range<u32>,
    /// The first of them that this worker serves.
    pub first_rx: u32,
    pub held: Option<Held>,
    /// When its rings may send; `None`: whenever they like.
    pub schedule: Option<Scheduling>,
}

/// The schedule of a port as one worker has it.
pub(super) struct Scheduling {
    pub schedule: Arc<PortSchedule>,
    /// In which pass a ring of each class had something to send last.
    pub ahead: [u64; CLASSES as usize],
    /// When the rings of each class may send that wait for that.
    pub due: [Due; CLASSES as usize],
}

impl Port {
    /// The place of a port queue.
    #[inline(always)]
    pub fn place(&self, number: u32) -> Option<usize> {
        self.places.get(number as usize).filter(|&&place| place != NOWHERE).map(|&place| place as usize)
    }
}

/// A queue whose openers may sleep, by its place.
#[derive(Clone, Copy)]
pub(super) enum Touched {
    Rx(u32),
    Tx(u32),
}

/// Everything that one worker serves.
pub(crate) struct Shard {
    pub(super) worker: u32,
    /// What launch times are compared with.
    pub(crate) clock: Arc<PassClock>,
    pub(super) ports: Vec<Port>,
    pub(super) port_queues: Slab<PortSlot>,
    pub(super) rx: Slab<RxSlot>,
    pub(super) tx: Slab<TxSlot>,
    /// Beside `tx`; those of ring 0 of a queue count.
    pub(super) tx_counts: Vec<Counts>,
    /// Places by the number of the queue; of a TX queue, of its ring 0.
    pub(super) rx_places: Box<[u32]>,
    pub(super) tx_places: Box<[u32]>,
    /// Which worker serves which queue.
    pub(super) homes: Arc<Homes>,
    /// What has moved since the last [`Shard::announce`], each once; with room for all, so that the way of frames allocates
    /// nothing.
    pub(super) touched: Vec<Touched>,
    /// RX queues for whose room somebody waits, and those of them that say that the card sleeps.
    pub(super) wanted: Arc<Wanted>,
    pub(super) marked: Vec<u32>,
    /// RX queues that run, as the control side has it: one that has faulted does until it is stopped.
    pub(super) receiving: usize,
    /// From the first rule on.
    pub(super) classifying: Option<Box<Classifying>>,
    /// Turns of the rings of ports with schedules, which have an order.
    pub(super) passes: u64,
}

impl Shard {
    /// An empty shard of a card whose ports have these MACs and ranges of RX queues.
    pub fn new(worker: usize, ports: Vec<(MacLane, Range<u32>)>, homes: Arc<Homes>, clock: PassClock) -> Self {
        let port = |(mac, rx)| Port {
            mac,
            shape: Shape::default(),
            places: Vec::new(),
            here: Vec::new(),
            rx,
            first_rx: NOWHERE,
            held: None,
            schedule: None,
        };
        let wanted = Arc::new(Wanted::new(homes.rx.len()));
        Self {
            worker: worker as u32,
            clock: Arc::new(clock),
            ports: ports.into_iter().map(port).collect(),
            port_queues: Slab::new(),
            rx: Slab::new(),
            tx: Slab::new(),
            tx_counts: Vec::new(),
            rx_places: vec![NOWHERE; homes.rx.len()].into(),
            tx_places: vec![NOWHERE; homes.tx.len()].into(),
            homes,
            touched: Vec::new(),
            wanted,
            marked: Vec::new(),
            receiving: 0,
            classifying: None,
            passes: 0,
        }
    }

    /// Another pass begins.
    #[inline(always)]
    pub fn begin_pass(&mut self) {
        self.clock.begin();
        self.passes += 1;
    }

    /// The place of an RX queue.
    #[inline(always)]
    pub(super) fn rx_place(&self, queue: u32) -> Option<usize> {
        self.rx_places.get(queue as usize).filter(|&&place| place != NOWHERE).map(|&place| place as usize)
    }

    /// The place of ring 0 of a TX queue.
    #[inline(always)]
    pub(super) fn tx_place(&self, queue: u32) -> Option<usize> {
        self.tx_places.get(queue as usize).filter(|&&place| place != NOWHERE).map(|&place| place as usize)
    }

    /// An RX queue as a target, wherever it is served.
    #[inline(always)]
    pub(super) fn rx_target(&self, queue: u32) -> Option<Target> {
        if let Some(place) = self.rx_place(queue) {
            return Some(Target::Rx(place as u32));
        }
        let worker = self.homes.rx_worker(queue)?;
        // One that this worker is about to be given.
        Some(if worker == self.worker { Target::Queue(queue) } else { Target::FarRx { worker, queue } })
    }

    /// The place of one of a port's port queues here, for frames that came in at port queue `number`.
    #[inline(always)]
    pub(super) fn port_queue_here(&self, index: u32, number: u32) -> Option<u32> {
        let here = &self.ports.get(index as usize)?.here;
        // Of one, which most ports have, without a division.
        let at = if here.len() == 1 { 0 } else { (number as usize).checked_rem(here.len())? };
        here.get(at).copied()
    }

    /// A port as a target; of its port queues one for those that came in at port queue `number`, here if there is one.
    #[inline(always)]
    pub(super) fn port_target(&self, index: u32, number: u32) -> Option<Target> {
        if let Some(place) = self.port_queue_here(index, number) {
            return Some(Target::PortQueue(place));
        }
        let port = self.ports.get(index as usize)?;
        let Some(at) = (number as usize).checked_rem(port.shape.workers.len()) else {
            return Some(Target::Unplugged(index));
        };
        Some(self.port_queue_target(index as u16, at as u16))
    }

    /// A port queue by its number as a target, wherever it is served.
    pub(super) fn port_queue_target(&self, index: u16, number: u16) -> Target {
        let Some(port) = self.ports.get(usize::from(index)) else { return Target::Unplugged(0) };
        if let Some(place) = port.place(number.into()) {
            return Target::PortQueue(place as u32);
        }
        match port.shape.workers.get(usize::from(number)) {
            None => Target::Unplugged(index.into()),
            // One that this worker is about to be given.
            Some(&worker) if worker == self.worker => Target::Port { port: index, number },
            Some(&worker) => Target::FarPort { worker, port: index, number },
        }
    }

    /// A target by number, which stays right when places change.
    pub(super) fn by_number(&self, target: Target) -> Target {
        match target {
            Target::Rx(at) => self.rx.get(at as usize).map_or(target, |slot| Target::Queue(slot.queue.id.index)),
            Target::PortQueue(at) => self
                .port_queues
                .get(at as usize)
                .map_or(target, |slot| Target::Port { port: slot.port as u16, number: slot.number as u16 }),
            Target::FarRx { queue, .. } => Target::Queue(queue),
            Target::FarPort { port, number, .. } => Target::Port { port, number },
            Target::Unplugged(_) | Target::Queue(_) | Target::Port { .. } => target,
        }
    }

    /// Notes that what an RX queue has got is to be announced.
    #[inline(always)]
    pub(super) fn touch_rx(&mut self, at: usize) {
        if self.rx.get_mut(at).is_some_and(RxSlot::touch) {
            self.touched.push(Touched::Rx(at as u32));
        }
    }

    /// Notes that a ring has moved.
    #[inline(always)]
    pub(super) fn touch_tx(&mut self, at: usize) {
        if self.tx[at].touch() {
            self.touched.push(Touched::Tx(at as u32));
        }
    }

    /// Whether somebody may have to be woken.
    #[inline(always)]
    pub fn is_touched(&self) -> bool {
        !self.touched.is_empty() || self.classifying.as_ref().is_some_and(|classifying| classifying.has_crossed())
    }

    /// Wakes those who sleep and for whom something has come, behind a [`wake_fence`](super::wake_fence).
    #[inline(always)]
    pub fn announce(&mut self) {
        for touched in self.touched.drain(..) {
            match touched {
                Touched::Rx(at) => self.rx.get_mut(at as usize).into_iter().for_each(RxSlot::announce),
                Touched::Tx(at) => self.tx.get_mut(at as usize).into_iter().for_each(TxSlot::announce),
            }
        }
        if let Some(classifying) = &mut self.classifying {
            classifying.wake_others();
        }
    }

    /// Whether rules decide on frames at the moment.
    #[inline(always)]
    pub(super) fn has_rules(&self) -> bool {
        self.classifying.as_ref().is_some_and(|classifying| classifying.has_rules())
    }
}
