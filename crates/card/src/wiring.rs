//! What is plugged into the ports, which of them are connected with each other, and which worker serves what.
//!
//! What moves between workers is a *bundle*: one port queue of a port with the queues that it serves, or, in loopback,
//! the RX and the TX queue of one index. TX queue `k` of a port (from 0) belongs to port queue `k % port_queues`, RX queue `k` to port
//! queue `k`; if there is none, to nobody, and it is a bundle of its own: only rules lead there, from any worker. Unless
//! told otherwise, bundles take the workers in turn; a bundle with a queue of the priority class goes to the last worker,
//! which serves nothing else.

use crate::card::Card;
use crate::command::Command;
use crate::ports::{Kind, PortEntry, Wiring, WiringError};
use crate::schedule::PortSchedule;
use crate::shard::{Detach, Detached, Patch, PortSlot, Shape};
use millrace_abi::queue::QueueId;
use millrace_abi::schedule::Schedule;
use millrace_port::{PortQueue, PortSpec};
use std::sync::Arc;

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
            self.flows.count_source_gone(detached.drop_port_queues());
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
        let lendable = opened.iter_mut().any(|port_queue| port_queue.lendable().is_some());
        let loans = vec![0; if lendable { opened.len() } else { 0 }];
        self.rewire(&mut wirings, &both, |wirings, detached| {
            (wirings[at].spec, wirings[at].kind, wirings[at].loans) = (spec.to_owned(), kind, loans);
            detached.port_queues = numbered(at, opened);
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

    /// Says when the queues of a port may send; `None`: whenever they like.
    ///
    /// # Errors
    /// [`WiringError`].
    pub fn schedule(&self, port: u32, schedule: Option<&Schedule>) -> Result<(), WiringError> {
        let entry = self.port_entry(port)?;
        if let Some(schedule) = schedule {
            schedule.check().map_err(|error| WiringError::Schedule(port, error))?;
            let others = schedule.queues.iter().find(|queue| !entry.tx.contains(&queue.queue));
            if let Some(other) = others {
                return Err(WiringError::NotOfPort(port, QueueId::tx(other.queue)));
            }
        }
        let _change = self.wirings.begin_change();
        let mut wirings = self.wirings.lock();
        let wiring = &mut wirings[port as usize];
        if wiring.kind == Kind::Loopback && schedule.is_some() {
            return Err(WiringError::Loopback(port));
        }
        let now = self.clock_now();
        wiring.schedule = schedule.map(|said| Arc::new(PortSchedule::new(said.clone(), now, wiring.schedule.as_ref())));
        let schedule = wiring.schedule.clone();
        drop(wirings);
        for mailbox in self.affinity().mailboxes() {
            drop(mailbox.ask(Command::Schedule(port as usize, schedule.clone())));
        }
        Ok(())
    }

    /// Has a queue served by another worker from now on, and with it all that belongs to its bundle: in loopback the
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
        let bundle = wirings[port].bundle_of(&self.ports[port], id);
        let _moving = self.affinity().moving();
        let wiring = &mut wirings[port];
        let from = core::mem::replace(&mut wiring.workers[bundle as usize], worker);
        let what = Detach { port_queues: vec![bundle], queues: self.queues_of(wiring, port, bundle) };
        let detached = self.detach_from(from as usize, port, what);
        self.distribute(port, wiring, detached);
        let patch = self.patch_of(&wirings, port);
        self.shape(port, &wirings[port], patch);
        Ok(())
    }

    fn patch_of(&self, wirings: &[Wiring], port: usize) -> Option<Patch> {
        wirings[port].patch.map(|to| Patch { to, port_queues: wirings[to].port_queues() })
    }

    fn port_entry(&self, port: u32) -> Result<&PortEntry, WiringError> {
        self.ports.get(port as usize).ok_or(WiringError::NoPort(port, self.ports.len()))
    }

    /// The queues of a bundle.
    pub(crate) fn queues_of(&self, wiring: &Wiring, port: usize, bundle: u32) -> Vec<QueueId> {
        let entry = &self.ports[port];
        entry.queues().filter(|id| wiring.bundle_of(entry, *id) == bundle).collect()
    }

    /// Takes ports apart on all workers, has them changed, and puts them together again.
    fn rewire(&self, wirings: &mut [Wiring], ports: &[usize], change: impl FnOnce(&mut [Wiring], &mut Detached)) {
        let _moving = self.affinity().moving();
        // As long as not everything is in its place again, nothing is sent from one port to another.
        ports.iter().for_each(|&port| self.shape(port, &wirings[port], None));
        let mut parts: Vec<Detached> = ports.iter().map(|&port| self.collect(port, &wirings[port])).collect();
        change(wirings, &mut parts[0]);
        for &port in ports {
            let bundles = wirings[port].bundles(&self.ports[port]);
            wirings[port].workers = (0..bundles).map(|bundle| self.worker_for(wirings, port, bundle)).collect();
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
            let patch = self.patch_of(wirings, port);
            self.shape(port, &wirings[port], patch);
        }
    }

    fn shape(&self, port: usize, wiring: &Wiring, patch: Option<Patch>) {
        // Of a port that loops back, the workers are those of queues.
        let workers = wiring.workers.get(..wiring.port_queues() as usize).unwrap_or_default().into();
        let shape = Shape { loopback: wiring.kind == Kind::Loopback, patch, workers };
        for mailbox in self.affinity().mailboxes() {
            drop(mailbox.ask(Command::Shape(port, shape.clone())));
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

    /// Which worker a bundle goes to unless told otherwise. Port queues that are connected with each other have to be
    /// with one worker, so whatever decides is the same for both.
    fn worker_for(&self, wirings: &[Wiring], port: usize, bundle: u32) -> u32 {
        let wiring = &wirings[port];
        let pairs =
            wiring.patch.map(|other| wirings[other].port_queues().min(wiring.port_queues())).filter(|pairs| *pairs > 0);
        let pair = |bundle: u32| pairs.map_or(bundle, |pairs| bundle % pairs);
        let workers = self.affinity().mailboxes().len() as u32;
        let has_class = !self.options().priority.is_empty() && workers > 1;
        let in_class = |port: usize| {
            let of_pair = |id: &QueueId| pair(wirings[port].bundle_of(&self.ports[port], *id)) == pair(bundle);
            self.ports[port].queues().filter(of_pair).any(|id| self.options().is_priority(id))
        };
        if has_class && (in_class(port) || wiring.patch.is_some_and(in_class)) {
            return workers - 1;
        }
        let first = match wiring.kind {
            Kind::Loopback => 0,
            _ => wiring.patch.map_or(port, |other| other.min(port)) as u32,
        };
        (first + pair(bundle)) % (workers - u32::from(has_class))
    }

    pub(crate) fn detach_from(&self, worker: usize, port: usize, what: Detach) -> Detached {
        let answer = self.affinity().mailboxes()[worker].ask(Command::Detach(port, what));
        answer.ok().and_then(|answer| answer.detached).map_or_else(Detached::default, |detached| *detached)
    }

    /// Gives everything to the worker of its bundle.
    pub(crate) fn distribute(&self, port: usize, wiring: &Wiring, whole: Detached) {
        let entry = &self.ports[port];
        let empty = || -> Vec<Detached> { self.affinity().mailboxes().iter().map(|_| Detached::default()).collect() };
        let (mut queues, mut port_queues) = (empty(), empty());
        let worker_of = |bundle: u32| wiring.workers[bundle as usize];
        for port_queue in whole.port_queues {
            port_queues[worker_of(port_queue.number) as usize].port_queues.push(port_queue);
        }
        for mut slot in whole.rx {
            let id = slot.queue.id;
            slot.bundle = wiring.bundle_of(entry, id);
            self.affinity().set(id, worker_of(slot.bundle));
            queues[worker_of(slot.bundle) as usize].rx.push(slot);
        }
        for mut queue in whole.tx {
            let id = queue.rings[0].queue.id;
            let bundle = wiring.bundle_of(entry, id);
            queue.rings.iter_mut().for_each(|ring| ring.bundle = bundle);
            self.affinity().set(id, worker_of(bundle));
            queues[worker_of(bundle) as usize].tx.push(queue);
        }
        // Port queues last: rules may lead their frames to any queue.
        for parts in [queues, port_queues] {
            for (mailbox, detached) in self.affinity().mailboxes().iter().zip(parts) {
                if !detached.is_empty() {
                    drop(mailbox.ask(Command::Adopt(Box::new(detached))));
                }
            }
        }
    }

    /// Puts new queues where they belong: once, when the card is built.
    pub(crate) fn place(&self, port: usize, detached: Detached) {
        let mut wirings = self.wirings.lock();
        let bundles = wirings[port].bundles(&self.ports[port]);
        let workers = (0..bundles).map(|bundle| self.worker_for(&wirings, port, bundle)).collect();
        wirings[port].workers = workers;
        self.distribute(port, &wirings[port], detached);
    }
}

fn numbered(port: usize, queues: Vec<Box<dyn PortQueue>>) -> Vec<PortSlot> {
    queues.into_iter().enumerate().map(|(number, queue)| PortSlot::new(port, number as u32, queue)).collect()
}
