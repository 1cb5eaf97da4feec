//! The handle of a card: what a driver calls.

use crate::cage::Cage;
use crate::command::{Attachment, Command, Mailbox, Opener};
use crate::counters::{Counts, QueueDrop};
use crate::lane::Lane;
use crate::mac::{Mac, MacLane};
use crate::phy::Phy;
use crate::queue::{Queue, RingProgram, StartError};
use crate::registers::Bus;
use crate::sleep::Sleep;
use crate::tsu::{Stamper, Tsu};
use crate::worker::{Worker, WorkerCounts};
use millrace_abi::control::QueueState;
use millrace_abi::name::{CardOptions, OptionError};
use millrace_abi::queue::{Direction, Engine, Laggard, QueueId};
use millrace_abi::stats::{CardStats, Count, PortStats, QueueStats, WorkerStats};
use millrace_abi::tree::{BuildError, CardDescription};
use millrace_dma::{Domain, Pinned};
use millrace_port::{OpenError, PortSpec, SpecError};
use millrace_ring::FrameLimits;
use millrace_ring::shared::{Losses, Reclaimer};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// Why there is no card.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// The options contradict each other.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// A port specification that means nothing.
    #[error("port {port}: {source}")]
    Spec {
        /// Index of the port.
        port: usize,
        /// What is wrong.
        source: SpecError,
    },
    /// A port that could not be opened.
    #[error("port {port}: {source}")]
    Port {
        /// Index of the port.
        port: usize,
        /// What is wrong.
        source: OpenError,
    },
    /// The device tree could not be written.
    #[error(transparent)]
    Tree(#[from] BuildError),
    /// The system refused a thread or a descriptor.
    #[error("cannot start a worker: {0}")]
    Worker(std::io::Error),
}

struct PortEntry {
    spec: String,
    mac: Arc<Mac>,
}

struct WorkerEntry {
    mailbox: Arc<Mailbox>,
    counts: Arc<WorkerCounts>,
    cpu: Option<u32>,
    thread: Option<JoinHandle<()>>,
}

/// A software accelerator card: registers on one side, ports on the other, workers in between.
///
/// Dropping it stops the workers; queues that still run stop with them.
pub struct Card {
    options: CardOptions,
    tree: Vec<u8>,
    bus: Bus,
    ports: Vec<PortEntry>,
    workers: Vec<WorkerEntry>,
}

impl Card {
    /// Builds the card and starts its workers.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn new(options: &CardOptions) -> Result<Self, CardError> {
        options.validate()?;
        let description = CardDescription { build_time: seconds_since_1970(), ..CardDescription::new(options) };
        let tree = description.to_blob()?;
        let queues = |direction, count| -> Vec<Arc<Queue>> {
            let ids = (0..count).map(|index| QueueId { direction, index });
            ids.map(|id| Arc::new(Queue::new(id, options.engine_of(id)))).collect()
        };
        let rx = queues(Direction::Rx, options.rx_queues);
        let tx = queues(Direction::Tx, options.tx_queues);
        let specs = parse_ports(&options.ports)?;
        let workers = options.workers as usize;
        let tsu = Arc::new(Tsu::new(options.tsu));
        let mut plan = Plan { lanes: (0..workers).map(|_| Vec::new()).collect(), ports: Vec::new(), tsu: tsu.clone() };
        for (port, spec) in specs.iter().enumerate() {
            let rx = share(&rx, port, specs.len());
            let tx = share(&tx, port, specs.len());
            plan.add_port(port, spec, &options.ports[port], rx, tx, options.frame_max as u16)?;
        }
        let mut entries = Vec::new();
        for (index, lanes) in plan.lanes.into_iter().enumerate() {
            entries.push(start_worker(index, lanes, options)?);
        }
        let serving = |id: QueueId| entries[worker_of(id, &specs, options, workers)].mailbox.clone();
        let bus = Bus {
            rx_workers: rx.iter().map(|queue| serving(queue.id)).collect(),
            tx_workers: tx.iter().map(|queue| serving(queue.id)).collect(),
            rx,
            tx,
            macs: plan.ports.iter().map(|port| port.mac.clone()).collect(),
            tsu,
            phys: plan.ports.iter().map(|port| Phy::new(port.mac.clone())).collect(),
            cages: (0..plan.ports.len()).map(|port| Cage::new(description.serial, port)).collect(),
            limits: FrameLimits { min: options.frame_min as u16, max: options.frame_max as u16 },
            discard: options.discard,
            test_space: Bus::empty_test_space(),
        };
        Ok(Self { options: options.clone(), tree, bus, ports: plan.ports, workers: entries })
    }

    /// What the card was made of.
    pub fn options(&self) -> &CardOptions {
        &self.options
    }

    /// The flattened device tree.
    pub fn device_tree(&self) -> &[u8] {
        &self.tree
    }

    /// The engine of a queue; `None` if there is no such queue.
    pub fn engine(&self, id: QueueId) -> Option<Engine> {
        self.bus.queue(id).map(|queue| queue.engine)
    }

    /// Reads registers. Any address and length; what is not there reads as 0.
    pub fn read(&self, address: u32, to: &mut [u8]) {
        self.bus.read(address, to);
    }

    /// Writes registers. Any address and length; what is not there is not written.
    pub fn write(&self, address: u32, from: &[u8]) {
        self.bus.write(address, from);
    }

    /// Gives a queue its memory, control page and openers. It must not run.
    ///
    /// # Errors
    /// [`StartError::Running`], [`StartError::NotAttached`] when there is no such queue.
    pub fn attach(&self, id: QueueId, attachment: Attachment) -> Result<(), StartError> {
        self.bus.queue(id).ok_or(StartError::NotAttached(id))?.attach(attachment)
    }

    /// Says who gives the ring of an attached, not yet started RX queue back.
    pub fn set_reclaimer(&self, id: QueueId, reclaimer: Box<Reclaimer>) {
        if let Some(queue) = self.bus.queue(id) {
            queue.set_reclaimer(reclaimer);
        }
    }

    /// Why the last START of the queue was refused, if it was.
    pub fn refusal(&self, id: QueueId) -> Option<StartError> {
        self.bus.queue(id)?.refusal()
    }

    /// Notes that a START of the queue was refused before it came to the card.
    pub fn refuse(&self, id: QueueId, why: StartError) {
        if let Some(queue) = self.bus.queue(id) {
            queue.refuse(why);
        }
    }

    /// State of a queue; `None` if there is no such queue.
    pub fn state(&self, id: QueueId) -> Option<QueueState> {
        self.bus.queue(id).map(|queue| queue.state())
    }

    /// Stops a queue at once, drained or not, and takes its memory off it: no worker touches it any more.
    pub fn detach(&self, id: QueueId) {
        if let (Some(queue), Some(mailbox)) = (self.bus.queue(id), self.bus.mailbox(id)) {
            drop(mailbox.call(Command::Halt(id)));
            queue.detach();
        }
    }

    /// Adds an opener to a running queue: with a policy, as a subscriber whose cursor begins now. `false` when the queue
    /// has no room for another subscriber or is not shared.
    pub fn join(&self, id: QueueId, opener: Opener, cursor: Option<(Laggard, Arc<Losses>)>) -> bool {
        let mailbox = self.bus.mailbox(id);
        mailbox.and_then(|mailbox| mailbox.call(Command::Join(id, opener, cursor))).is_some_and(|answer| answer.done)
    }

    /// Takes an opener off a running queue.
    pub fn leave(&self, id: QueueId, opener: u32) {
        if let Some(mailbox) = self.bus.mailbox(id) {
            drop(mailbox.call(Command::Leave(id, opener)));
        }
    }

    /// Adds a ring to a TX queue that runs: its writer rings its own doorbell, in the page of `opener`, and the worker
    /// gives the rings of a queue their turns. What comes back keeps the ring's memory mapped; to be dropped after
    /// [`Card::drop_ring`].
    ///
    /// # Errors
    /// [`StartError`].
    pub fn add_ring(
        &self,
        id: QueueId,
        program: &RingProgram,
        domain: Arc<Domain>,
        opener: Opener,
    ) -> Result<RingPins, StartError> {
        let queue = self.bus.queue(id).ok_or(StartError::NotAttached(id))?;
        let (engine, pins) = queue.build_ring(program, domain, opener.control.clone(), self.bus.limits)?;
        let command = Command::AddRing(id.index, opener.id, Box::new(engine), opener);
        let answer = self.bus.mailbox(id).and_then(|mailbox| mailbox.call(command)).ok_or(StartError::Stuck)?;
        if answer.done { Ok(RingPins { _pins: pins }) } else { Err(StartError::NotAttached(id)) }
    }

    /// Takes a ring off a TX queue at once, drained or not: no worker touches it any more.
    pub fn drop_ring(&self, id: QueueId, opener: u32) {
        if let Some(mailbox) = self.bus.mailbox(id) {
            drop(mailbox.call(Command::DropRing(id.index, opener)));
        }
    }

    /// Makes every worker come round once: what `Domain::unmap` needs while it waits.
    pub fn pass_all(&self) {
        for worker in &self.workers {
            drop(worker.mailbox.call(Command::Pass));
        }
    }

    /// Wakes the worker of a queue, as a doorbell does.
    pub fn nudge(&self, id: QueueId) {
        if let Some(mailbox) = self.bus.mailbox(id) {
            mailbox.nudge();
        }
    }

    /// Everything countable. Holders are left empty: the driver knows them.
    pub fn stats(&self) -> CardStats {
        CardStats {
            queues: self.bus.rx.iter().chain(&self.bus.tx).map(|queue| queue_stats(queue)).collect(),
            ports: self.ports.iter().enumerate().map(|(index, port)| port.stats(index)).collect(),
            workers: self.workers.iter().enumerate().map(|(index, worker)| worker.stats(index)).collect(),
        }
    }
}

/// Keeps the memory of a ring mapped.
#[must_use = "the memory of the ring could be unmapped once this is dropped"]
pub struct RingPins {
    _pins: Vec<Pinned>,
}

impl Drop for Card {
    fn drop(&mut self) {
        for worker in &self.workers {
            worker.mailbox.send(Command::Exit);
        }
        for worker in &mut self.workers {
            // A worker that panicked has said so already.
            let _ = worker.thread.take().map(JoinHandle::join);
        }
    }
}

/// When this card came to be, for its tree; 0 on a machine whose clock is before 1970.
fn seconds_since_1970() -> u32 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs() as u32)
}

fn parse_ports(words: &[String]) -> Result<Vec<PortSpec>, CardError> {
    let parse = |(port, word): (usize, &String)| word.parse().map_err(|source| CardError::Spec { port, source });
    words.iter().enumerate().map(parse).collect()
}

/// Port of queue `index` among `count`: `specs/nfb-card.md` §2.1, interface map.
fn port_of(index: usize, count: usize, ports: usize) -> usize {
    index * ports / count.max(1)
}

fn share(queues: &[Arc<Queue>], port: usize, ports: usize) -> Vec<Arc<Queue>> {
    let mine = queues.iter().enumerate().filter(|(index, _)| port_of(*index, queues.len(), ports) == port);
    mine.map(|(_, queue)| queue.clone()).collect()
}

/// A loopback port has a lane on every worker; any other port has one lane, and ports take workers in turn.
fn worker_of(id: QueueId, specs: &[PortSpec], options: &CardOptions, workers: usize) -> usize {
    let count = match id.direction {
        Direction::Rx => options.rx_queues,
        Direction::Tx => options.tx_queues,
    };
    let port = port_of(id.index as usize, count as usize, specs.len());
    match specs[port] {
        PortSpec::Loopback => id.index as usize % workers,
        _ => port % workers,
    }
}

/// Lanes of each worker, while they are being made.
struct Plan {
    lanes: Vec<Vec<Lane>>,
    ports: Vec<PortEntry>,
    tsu: Arc<Tsu>,
}

impl Plan {
    fn add_port(
        &mut self,
        index: usize,
        spec: &PortSpec,
        word: &str,
        rx: Vec<Arc<Queue>>,
        tx: Vec<Arc<Queue>>,
        longest: u16,
    ) -> Result<(), CardError> {
        let workers = self.lanes.len();
        let front = |mac: &Arc<Mac>, lane| MacLane::new(mac.clone(), lane, Stamper::new(self.tsu.clone(), index));
        let mac = if let PortSpec::Loopback = spec {
            let mac = Arc::new(Mac::new(workers, longest));
            for (worker, lanes) in self.lanes.iter_mut().enumerate() {
                let mine = |queues: &[Arc<Queue>]| -> Vec<Arc<Queue>> {
                    queues.iter().filter(|queue| queue.id.index as usize % workers == worker).cloned().collect()
                };
                lanes.push(Lane::loopback(front(&mac, worker), mine(&rx), mine(&tx)));
            }
            mac
        } else {
            let mut ports = millrace_port::open(spec).map_err(|source| CardError::Port { port: index, source })?;
            // One queue of the wire for now.
            let port = ports.swap_remove(0);
            let mac = Arc::new(Mac::new(1, longest));
            self.lanes[index % workers].push(Lane::port(front(&mac, 0), port, rx, tx));
            mac
        };
        self.ports.push(PortEntry { spec: word.to_owned(), mac });
        Ok(())
    }
}

fn start_worker(index: usize, lanes: Vec<Lane>, options: &CardOptions) -> Result<WorkerEntry, CardError> {
    let io = |errno: rustix::io::Errno| CardError::Worker(errno.into());
    let mailbox = Arc::new(Mailbox::new().map_err(io)?);
    let counts = Arc::new(WorkerCounts::default());
    let worker = Worker {
        lanes,
        mailbox: mailbox.clone(),
        counts: counts.clone(),
        sleep: Sleep::new().map_err(io)?,
        poll: options.poll,
        spin: Duration::from_micros(u64::from(options.spin_us)),
    };
    let cpu = options.cpus.get(index).copied();
    let thread = std::thread::Builder::new()
        .name(format!("millrace-card{index}"))
        .spawn(move || {
            if let Some(cpu) = cpu {
                pin_to(cpu);
            }
            worker.run();
        })
        .map_err(CardError::Worker)?;
    Ok(WorkerEntry { mailbox, counts, cpu, thread: Some(thread) })
}

/// Pins the calling thread to a core; says so and goes on where that is not allowed.
fn pin_to(cpu: u32) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu as usize);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %error, "cannot pin the worker to this core; it runs where the system puts it");
    }
}

fn queue_stats(queue: &Queue) -> QueueStats {
    let counts: Counts = queue.counts.read();
    let (refused, refusal) = queue.refusals();
    let reasons = QueueDrop::ALL.iter().map(|reason| reason.name()).zip(counts.drops);
    QueueStats {
        queue: queue.id,
        engine: queue.engine,
        state: queue.state(),
        holders: Vec::new(),
        offered: counts.passed + counts.dropped(),
        passed: counts.passed,
        passed_bytes: counts.passed_bytes,
        drops: named(reasons),
        iotlb_hits: counts.iotlb_hits,
        iotlb_misses: counts.iotlb_misses,
        iotlb_faults: counts.iotlb_faults,
        fault_iova: queue.fault_iova(),
        refused,
        refusal: refusal.map(|why| why.to_string()),
    }
}

impl PortEntry {
    fn stats(&self, index: usize) -> PortStats {
        let (rx, tx) = (self.mac.received(), self.mac.sent());
        PortStats {
            port: index as u32,
            spec: self.spec.clone(),
            rx_frames: rx.passed(),
            rx_bytes: rx.passed_bytes(),
            tx_frames: tx.sent(),
            tx_bytes: tx.sent_bytes(),
            rx_drops: named(rx.drops()),
            tx_drops: named(tx.drops()),
        }
    }
}

/// The reasons that have struck.
fn named(drops: impl Iterator<Item = (&'static str, u64)>) -> Vec<Count> {
    let struck = drops.filter(|(_, count)| *count > 0);
    struck.map(|(reason, count)| Count { reason: reason.to_owned(), count }).collect()
}

impl WorkerEntry {
    fn stats(&self, index: usize) -> WorkerStats {
        WorkerStats {
            worker: index as u32,
            cpu: self.cpu,
            active_queues: self.counts.active.load(Ordering::Relaxed) as u32,
            passes: self.counts.passes.load(Ordering::Relaxed),
            sleeps: self.counts.sleeps.load(Ordering::Relaxed),
        }
    }
}
