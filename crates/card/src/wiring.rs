//! What is plugged into the ports, which of them are connected with each other, and which worker serves what.
//!
//! What moves between workers is a *unit*: one port queue of a port with the queues that it serves, or, in loopback,
//! the RX and the TX queue of one index. Queue `k` of a port (from 0) belongs to port queue `k % port_queues`. Unless
//! told otherwise, units take the workers in turn; a unit with a queue of the priority class goes to the last worker,
//! which serves nothing else.

use crate::card::Card;
use crate::command::Command;
use crate::lane::{Detach, Detached, Patch, PortSlot};
use crate::mac::Mac;
use millrace_abi::queue::{Direction, QueueId};
use millrace_port::{OpenError, PortQueue, PortSpec, SpecError};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why a port or a queue could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum WiringError {
    /// A port that is not there.
    #[error("there is no port {0}; the card has {1}, counted from 0")]
    NoPort(u32, usize),
    /// A port specification that means nothing.
    #[error("port {0}: {1}")]
    Spec(u32, SpecError),
    /// A port queue that could not be opened; the port is unplugged now.
    #[error("port {0}: {1}; nothing is plugged in there now")]
    Open(u32, OpenError),
    /// Loopback has no port queue to connect.
    #[error("port {0} loops back by itself and has no wire to connect; plug one in first")]
    Loopback(u32),
    /// A port queue that is connected has to stay where the other one is.
    #[error("port {0} is connected with another port, whose wires are served beside its own; disconnect it first")]
    Connected(u32),
    /// A queue that is not there.
    #[error("there is no queue {0}")]
    NoQueue(QueueId),
    /// A worker that is not there.
    #[error("there is no worker {0}; the card has {1}, counted from 0")]
    NoWorker(u32, usize),
}

/// A port of the card: what never changes.
pub(crate) struct PortEntry {
    pub mac: Arc<Mac>,
    pub rx: Range<u32>,
    pub tx: Range<u32>,
}

impl PortEntry {
    fn range(&self, direction: Direction) -> &Range<u32> {
        match direction {
            Direction::Rx => &self.rx,
            Direction::Tx => &self.tx,
        }
    }

    fn queues(&self) -> impl Iterator<Item = QueueId> {
        self.rx.clone().map(QueueId::rx).chain(self.tx.clone().map(QueueId::tx))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Loopback,
    PortQueues(u32),
    Nothing,
}

/// A port of the card: what is behind it at the moment.
#[derive(Clone, Debug)]
pub(crate) struct Wiring {
    pub spec: String,
    kind: Kind,
    /// Index of the port that it is connected with.
    pub patch: Option<usize>,
    /// Of port queues that can work on memory of applications, for each: the serial number of the loan, 0 for none.
    pub loans: Vec<u64>,
    // Worker of every unit.
    workers: Vec<u32>,
}

impl Wiring {
    pub fn nothing() -> Self {
        Self {
            spec: PortSpec::NONE.to_owned(),
            kind: Kind::Nothing,
            patch: None,
            loans: Vec::new(),
            workers: Vec::new(),
        }
    }

    pub fn worker_of(&self, unit: u32) -> usize {
        self.workers[unit as usize] as usize
    }

    fn port_queues(&self) -> u32 {
        match self.kind {
            Kind::PortQueues(count) => count,
            Kind::Loopback | Kind::Nothing => 0,
        }
    }

    fn unit_of(&self, entry: &PortEntry, id: QueueId) -> u32 {
        let first = match self.kind {
            // Queues of one index belong together, whatever the ranges are.
            Kind::Loopback => entry.rx.start.min(entry.tx.start),
            _ => entry.range(id.direction).start,
        };
        match self.kind {
            Kind::Loopback => id.index - first,
            Kind::PortQueues(count) => (id.index - first) % count,
            Kind::Nothing => 0,
        }
    }

    fn units(&self, entry: &PortEntry) -> u32 {
        match self.kind {
            Kind::Loopback => entry.rx.end.max(entry.tx.end) - entry.rx.start.min(entry.tx.start),
            Kind::PortQueues(count) => count,
            Kind::Nothing => 1,
        }
    }
}

/// All ports, under one lock: changes of port queues and workers are rare.
pub(crate) struct Wirings {
    now: Mutex<Vec<Wiring>>,
    // One change at a time. Held longer than the other, which everybody needs: opening a port can take its time.
    change: Mutex<()>,
}

impl Wirings {
    pub fn new(ports: usize) -> Self {
        Self { now: Mutex::new(vec![Wiring::nothing(); ports]), change: Mutex::default() }
    }

    pub fn lock(&self) -> MutexGuard<'_, Vec<Wiring>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_change(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Card {
    /// Plugs a port queue into a port, by its specification, in place of what is there; `none` unplugs. Queues run on.
    ///
    /// # Errors
    /// [`WiringError`]; when the port queue cannot be opened, the port is left unplugged.
    pub fn plug(&self, port: u32, spec: &str) -> Result<(), WiringError> {
        self.port_entry(port)?;
        let parsed: PortSpec = spec.parse().map_err(|error| WiringError::Spec(port, error))?;
        self.replace(port, spec, parsed == PortSpec::Loopback, || match &parsed {
            PortSpec::Loopback => Ok(Vec::new()),
            spec => millrace_port::open(spec).map_err(|error| WiringError::Open(port, error)),
        })
    }

    /// As [`Card::plug`] for a port that the program has made itself: its port queues, and what statistics call it. Without
    /// any the port is unplugged.
    ///
    /// # Errors
    /// [`WiringError::NoPort`].
    pub fn plug_own(&self, port: u32, name: &str, queues: Vec<Box<dyn PortQueue>>) -> Result<(), WiringError> {
        self.replace(port, name, false, || Ok(queues))
    }

    fn replace(
        &self,
        port: u32,
        spec: &str,
        loopback: bool,
        open: impl FnOnce() -> Result<Vec<Box<dyn PortQueue>>, WiringError>,
    ) -> Result<(), WiringError> {
        let entry = self.port_entry(port)?;
        let _change = self.wirings.begin_change();
        let mut wirings = self.wirings.lock();
        let at = port as usize;
        if loopback && wirings[at].patch.is_some() {
            return Err(WiringError::Connected(port));
        }
        self.rewire(&mut wirings, &[at], |wirings, detached| {
            (wirings[at].spec, wirings[at].kind) = (PortSpec::NONE.to_owned(), Kind::Nothing);
            wirings[at].loans.clear();
            // Dropping a port queue may take its time; nobody waits for it but us.
            detached.drop_wires();
        });
        entry.mac.plug(Vec::new(), true);
        // Opening a port can take its time too.
        drop(wirings);
        let mut opened = open()?;
        let kind = match opened.len() {
            _ if loopback => Kind::Loopback,
            0 => return Ok(()),
            count => Kind::PortQueues(count as u32),
        };
        let mut wirings = self.wirings.lock();
        entry.mac.plug(opened.iter().map(|port_queue| port_queue.counters().clone()).collect(), false);
        // The other side of a connection counts our port queues, and they have to be with the workers of its own.
        let both: Vec<usize> =
            [Some(at), wirings[at].patch.filter(|other| *other != at)].into_iter().flatten().collect();
        let borrow = opened.iter_mut().any(|port_queue| port_queue.borrower().is_some());
        let loans = vec![0; if borrow { opened.len() } else { 0 }];
        self.rewire(&mut wirings, &both, |wirings, detached| {
            (wirings[at].spec, wirings[at].kind, wirings[at].loans) = (spec.to_owned(), kind, loans);
            detached.port_queues = numbered(opened);
        });
        self.settle_loans(&mut wirings[at], at);
        Ok(())
    }

    /// Connects two ports, or one with itself: what comes in at one goes out at the other, and no longer to queues.
    ///
    /// # Errors
    /// [`WiringError`].
    pub fn connect(&self, one: u32, other: u32) -> Result<(), WiringError> {
        self.port_entry(one)?;
        self.port_entry(other)?;
        let _change = self.wirings.begin_change();
        let mut wirings = self.wirings.lock();
        for port in [one, other] {
            if wirings[port as usize].kind == Kind::Loopback {
                return Err(WiringError::Loopback(port));
            }
        }
        let (one, other) = (one as usize, other as usize);
        for port in [one, other] {
            self.let_go(&mut wirings, port);
        }
        let both = if one == other { &[one][..] } else { &[one, other] };
        self.rewire(&mut wirings, both, |wirings, _| {
            (wirings[one].patch, wirings[other].patch) = (Some(other), Some(one));
        });
        Ok(())
    }

    /// Takes a connection apart, if there is one.
    ///
    /// # Errors
    /// [`WiringError::NoPort`].
    pub fn disconnect(&self, port: u32) -> Result<(), WiringError> {
        self.port_entry(port)?;
        let _change = self.wirings.begin_change();
        self.let_go(&mut self.wirings.lock(), port as usize);
        Ok(())
    }

    fn let_go(&self, wirings: &mut [Wiring], port: usize) {
        let Some(other) = wirings[port].patch else { return };
        let both = if other == port { &[port][..] } else { &[port, other] };
        self.rewire(wirings, both, |wirings, _| (wirings[port].patch, wirings[other].patch) = (None, None));
    }

    /// Has a queue served by another worker from now on, and with it all that belongs to its unit: in loopback the
    /// queue of the other direction, otherwise the port queue and its other queues.
    ///
    /// # Errors
    /// [`WiringError`].
    pub fn move_queue(&self, id: QueueId, worker: u32) -> Result<(), WiringError> {
        let count = self.affinity().mailboxes().len();
        if worker as usize >= count {
            return Err(WiringError::NoWorker(worker, count));
        }
        let of_queue = |entry: &PortEntry| entry.range(id.direction).contains(&id.index);
        let port = self.ports.iter().position(of_queue).ok_or(WiringError::NoQueue(id))?;
        let _change = self.wirings.begin_change();
        let mut wirings = self.wirings.lock();
        if wirings[port].patch.is_some_and(|other| other != port) {
            return Err(WiringError::Connected(port as u32));
        }
        let unit = wirings[port].unit_of(&self.ports[port], id);
        let _moving = self.affinity().moving();
        let wiring = &mut wirings[port];
        let from = core::mem::replace(&mut wiring.workers[unit as usize], worker);
        let what = Detach { port_queues: vec![unit], queues: self.queues_of(wiring, port, unit) };
        let detached = self.detach_from(from as usize, port, what);
        self.distribute(port, wiring, detached);
        Ok(())
    }

    fn port_entry(&self, port: u32) -> Result<&PortEntry, WiringError> {
        self.ports.get(port as usize).ok_or(WiringError::NoPort(port, self.ports.len()))
    }

    /// The queues of a unit.
    pub(crate) fn queues_of(&self, wiring: &Wiring, port: usize, unit: u32) -> Vec<QueueId> {
        let entry = &self.ports[port];
        entry.queues().filter(|id| wiring.unit_of(entry, *id) == unit).collect()
    }

    /// Takes ports apart on all workers, has them changed, and puts them together again.
    fn rewire(&self, wirings: &mut [Wiring], ports: &[usize], change: impl FnOnce(&mut [Wiring], &mut Detached)) {
        let _moving = self.affinity().moving();
        // As long as not everything is in its place again, nothing is sent from one port to another.
        ports.iter().for_each(|&port| self.shape(port, &wirings[port], None));
        let mut parts: Vec<Detached> = ports.iter().map(|&port| self.collect(port, &wirings[port])).collect();
        change(wirings, &mut parts[0]);
        for &port in ports {
            let units = wirings[port].units(&self.ports[port]);
            wirings[port].workers = (0..units).map(|unit| self.worker_for(wirings, port, unit)).collect();
            self.shape(port, &wirings[port], None);
        }
        for (&port, detached) in ports.iter().zip(parts) {
            self.distribute(port, &wirings[port], detached);
        }
        let mut connected: Vec<usize> =
            ports.iter().flat_map(|&port| [Some(port), wirings[port].patch]).flatten().collect();
        connected.sort_unstable();
        connected.dedup();
        for port in connected {
            let patch = wirings[port].patch.map(|to| Patch { to, port_queues: wirings[to].port_queues() });
            self.shape(port, &wirings[port], patch);
        }
    }

    fn shape(&self, port: usize, wiring: &Wiring, patch: Option<Patch>) {
        for mailbox in self.affinity().mailboxes() {
            drop(mailbox.call(Command::Shape(port, wiring.kind == Kind::Loopback, patch)));
        }
    }

    /// Takes everything of a port from all workers.
    fn collect(&self, port: usize, wiring: &Wiring) -> Detached {
        let mut whole = Detached::default();
        for worker in 0..self.affinity().mailboxes().len() {
            let queues = self.ports[port].queues().collect();
            let part =
                self.detach_from(worker, port, Detach { port_queues: (0..wiring.port_queues()).collect(), queues });
            whole.port_queues.extend(part.port_queues);
            whole.rx.extend(part.rx);
            whole.tx.extend(part.tx);
        }
        whole
    }

    /// Which worker a unit goes to unless told otherwise. Port queues that are connected with each other have to be
    /// with one worker, so whatever decides is the same for both.
    fn worker_for(&self, wirings: &[Wiring], port: usize, unit: u32) -> u32 {
        let wiring = &wirings[port];
        let pairs =
            wiring.patch.map(|other| wirings[other].port_queues().min(wiring.port_queues())).filter(|pairs| *pairs > 0);
        let pair = |unit: u32| pairs.map_or(unit, |pairs| unit % pairs);
        let workers = self.affinity().mailboxes().len() as u32;
        let has_class = !self.options().priority.is_empty() && workers > 1;
        let in_class = |port: usize| {
            let of_pair = |id: &QueueId| pair(wirings[port].unit_of(&self.ports[port], *id)) == pair(unit);
            self.ports[port].queues().filter(of_pair).any(|id| self.options().is_priority(id))
        };
        if has_class && (in_class(port) || wiring.patch.is_some_and(in_class)) {
            return workers - 1;
        }
        let first = match wiring.kind {
            Kind::Loopback => 0,
            _ => wiring.patch.map_or(port, |other| other.min(port)) as u32,
        };
        (first + pair(unit)) % (workers - u32::from(has_class))
    }

    pub(crate) fn detach_from(&self, worker: usize, port: usize, what: Detach) -> Detached {
        let answer = self.affinity().mailboxes()[worker].call(Command::Detach(port, what));
        answer.ok().and_then(|answer| answer.detached).map_or_else(Detached::default, |detached| *detached)
    }

    /// Gives everything to the worker of its unit.
    pub(crate) fn distribute(&self, port: usize, wiring: &Wiring, whole: Detached) {
        let entry = &self.ports[port];
        let mut parts: Vec<Detached> = self.affinity().mailboxes().iter().map(|_| Detached::default()).collect();
        let worker_of = |unit: u32| wiring.workers[unit as usize];
        for port_queue in whole.port_queues {
            parts[worker_of(port_queue.number) as usize].port_queues.push(port_queue);
        }
        for mut slot in whole.rx {
            let id = slot.queue.id;
            slot.unit = wiring.unit_of(entry, id);
            self.affinity().set(id, worker_of(slot.unit));
            parts[worker_of(slot.unit) as usize].rx.push(slot);
        }
        for mut queue in whole.tx {
            let id = queue.rings[0].queue.id;
            let unit = wiring.unit_of(entry, id);
            queue.rings.iter_mut().for_each(|ring| ring.unit = unit);
            self.affinity().set(id, worker_of(unit));
            parts[worker_of(unit) as usize].tx.push(queue);
        }
        for (mailbox, detached) in self.affinity().mailboxes().iter().zip(parts) {
            if !detached.is_empty() {
                drop(mailbox.call(Command::Adopt(port, Box::new(detached))));
            }
        }
    }

    /// Puts new queues where they belong: once, when the card is built.
    pub(crate) fn place(&self, port: usize, detached: Detached) {
        let mut wirings = self.wirings.lock();
        let units = wirings[port].units(&self.ports[port]);
        let workers = (0..units).map(|unit| self.worker_for(&wirings, port, unit)).collect();
        wirings[port].workers = workers;
        self.distribute(port, &wirings[port], detached);
    }
}

fn numbered(ports: Vec<Box<dyn PortQueue>>) -> Vec<PortSlot> {
    ports.into_iter().enumerate().map(|(number, port)| PortSlot::new(number as u32, port)).collect()
}
