//! The handle of a card: what a driver calls.

use crate::affinity::{Affinity, Homes};
use crate::cage::Cage;
use crate::command::Command;
use crate::counters::Counts;
use crate::flows::{Flows, now_ns};
use crate::mac::{Mac, MacLane};
use crate::mailbox::Mailbox;
use crate::opener::{Attachment, Opener};
use crate::pass_clock::PassClock;
use crate::phy::Phy;
use crate::ports::{PortEntry, WiringError, Wirings};
use crate::queue::{Queue, RingProgram, StartError};
use crate::registers::Bus;
use crate::shard::{Answer, Detached, Loans, RxSlot, Shard, TxQueue, TxSlot};
use crate::sleep::Sleep;
use crate::statistics::{named, port_stats, queue_stats};
use crate::tsu::{Stamper, SteeringError, Tsu};
use crate::turns::Turns;
use crate::worker::{PutOff, Wakes, Worker, WorkerCounts};
use millrace_abi::clock::{Report, Steering};
use millrace_abi::control::QueueState;
use millrace_abi::name::{CardOptions, OptionError};
use millrace_abi::queue::{Direction, Engine, Laggard, QueueId};
use millrace_abi::stats::{CardStats, FunctionStats, WorkerStats};
use millrace_abi::tree::{BuildError, CardDescription};
use millrace_clock::{PageError, Ticks};
use millrace_dma::{Domain, Pinned};
use millrace_flow::language::{ParseError, RuleFile};
use millrace_port::{Bell, OpenError, SpecError, slow_wakes};
use millrace_ring::FrameLimits;
use millrace_ring::shared::{Losses, Reclaimer};
use rustix::fd::BorrowedFd;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
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
        port: u32,
        /// What is wrong.
        source: SpecError,
    },
    /// A port that could not be opened.
    #[error("port {port}: {source}")]
    Port {
        /// Index of the port.
        port: u32,
        /// What is wrong.
        source: OpenError,
    },
    /// Ports that could not be connected.
    #[error(transparent)]
    Wiring(WiringError),
    /// The device tree could not be written.
    #[error(transparent)]
    Tree(#[from] BuildError),
    /// There is no page for the clock.
    #[error(transparent)]
    Clock(#[from] PageError),
    /// A rule that cannot be.
    #[error("rules: {0}")]
    Rules(ParseError),
    /// The system refused a thread or an fd.
    #[error("cannot start a worker: {0}")]
    Worker(std::io::Error),
}

impl CardError {
    fn from_wiring(error: WiringError) -> Self {
        match error {
            WiringError::Spec(port, source) => Self::Spec { port, source },
            WiringError::Open(port, source) => Self::Port { port, source },
            error => Self::Wiring(error),
        }
    }
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
    pub(crate) ports: Vec<PortEntry>,
    pub(crate) wirings: Wirings,
    pub(crate) loans: Loans,
    pub(crate) flows: Flows,
    workers: Vec<WorkerEntry>,
    functions: OnceLock<CountsOfFunctions>,
}

/// Says what happened to the PCI functions of a card, which somebody else serves.
pub type CountsOfFunctions = Box<dyn Fn() -> Vec<FunctionStats> + Send + Sync>;

impl Card {
    /// Builds the card and starts its workers.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn new(options: &CardOptions) -> Result<Self, CardError> {
        Self::with_rules(options, &RuleFile::default())
    }

    /// The same with rules that are there before the first frame comes in. The card keeps them.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn with_rules(options: &CardOptions, rules: &RuleFile) -> Result<Self, CardError> {
        options.validate()?;
        let description = CardDescription { build_time: seconds_since_1970(), ..CardDescription::new(options) };
        let tree = description.to_blob()?;
        let tsu = Arc::new(Tsu::new(options.tsu)?);
        let queues = |direction, count| -> Vec<Arc<Queue>> {
            let ids = (0..count).map(|index| QueueId { direction, index });
            ids.map(|id| Arc::new(Queue::new(id, options.engine_of(id), tsu.clone()))).collect()
        };
        let rx = queues(Direction::Rx, options.rx_queues);
        let tx = queues(Direction::Tx, options.tx_queues);
        let (count, workers) = (options.ports.len(), worker_count(options));
        let longest = options.frame_max as u16;
        let ports: Vec<PortEntry> = (0..count)
            .map(|port| PortEntry {
                mac: Arc::new(Mac::new(workers, longest)),
                rx: share(options.rx_queues, port, count),
                tx: share(options.tx_queues, port, count),
            })
            .collect();
        let homes = Arc::new(Homes::new(options.rx_queues, options.tx_queues));
        let mut entries = Vec::new();
        for index in 0..workers {
            let port = |(port, entry): (usize, &PortEntry)| {
                let stamper = Stamper::new(tsu.clone(), port);
                (MacLane::new(entry.mac.clone(), index, stamper), entry.rx.clone())
            };
            let ports = ports.iter().enumerate().map(port).collect();
            let shard = Shard::new(index, ports, homes.clone(), PassClock::new(tsu.clone()));
            entries.push(start_worker(index, shard, options)?);
        }
        let mailboxes = entries.iter().map(|entry| entry.mailbox.clone()).collect();
        let bus = Bus {
            affinity: Affinity::new(homes, mailboxes),
            rx,
            tx,
            macs: ports.iter().map(|port| port.mac.clone()).collect(),
            tsu,
            phys: ports.iter().map(|port| Phy::new(port.mac.clone())).collect(),
            cages: (0..count).map(|port| Cage::new(description.serial, port)).collect(),
            limits: FrameLimits { min: options.frame_min as u16, max: longest },
            discard: options.discard,
            test_space: Bus::empty_test_space(),
        };
        let (wirings, loans, flows) = (Wirings::new(count), Loans::default(), Flows::new(workers));
        let card = Self {
            options: options.clone(),
            tree,
            bus,
            ports,
            wirings,
            loans,
            flows,
            workers: entries,
            functions: OnceLock::new(),
        };
        // Before the ports are there.
        if rules.items().len() > 0 {
            let changes = rules.changes(now_ns()).map_err(CardError::Rules)?;
            card.change_flows(changes).map_err(|error| CardError::Rules(rules.refused(&error)))?;
        }
        card.furnish()?;
        Ok(card)
    }

    /// Puts the queues in their places, plugs the port queues in and connects them.
    fn furnish(&self) -> Result<(), CardError> {
        for (port, entry) in self.ports.iter().enumerate() {
            let rx = entry
                .rx
                .clone()
                .map(|index| RxSlot::new(self.bus.rx[index as usize].status.clone(), port, 0))
                .collect();
            let tx = entry.tx.clone().map(|index| {
                let slot = TxSlot::new(self.bus.tx[index as usize].status.clone(), 0, port, 0);
                TxQueue { counts: Counts::default(), rings: vec![slot] }
            });
            self.place(port, Detached { port_queues: Vec::new(), rx, tx: tx.collect() });
        }
        for (port, spec) in self.options.ports.iter().enumerate() {
            self.plug(port as u32, spec).map_err(CardError::from_wiring)?;
        }
        for &(one, other) in &self.options.connections {
            self.connect(one, other).map_err(CardError::from_wiring)?;
        }
        Ok(())
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
        self.bus.queue(id).map(|queue| queue.status.engine)
    }

    /// Reads registers. Any address and length; what is not there reads as 0.
    pub fn read(&self, address: u32, to: &mut [u8]) {
        self.bus.read(address, to);
    }

    /// Writes registers. Any address and length; what is not there is not written.
    pub fn write(&self, address: u32, from: &[u8]) {
        self.bus.write(address, from);
    }

    /// The page that programs read the card's clock from.
    pub fn clock_page(&self) -> Option<BorrowedFd<'_>> {
        self.bus.tsu.page()
    }

    /// What the clock's data registers would show after a command that asks, which touches no register: programs may be in the midst of setting the
    /// clock by them. `None`: the command does not ask.
    pub fn ask_clock(&self, command: u32) -> Option<[u32; 3]> {
        self.bus.tsu.ask(command)
    }

    /// Steers the clock; workers go by it from their next look on.
    ///
    /// # Errors
    /// [`SteeringError`].
    pub fn steer_clock(&self, steering: Steering) -> Result<(), SteeringError> {
        // Workers are not disturbed for nothing.
        if self.bus.tsu.steer(steering)? {
            self.bus.clock_has_changed();
        }
        Ok(())
    }

    /// Makes the oscillator wrong by so much, in 2^-16 of a millionth: for tests.
    ///
    /// # Errors
    /// [`SteeringError::TooWrong`].
    pub fn bend_clock(&self, scaled_ppm: i64) -> Result<(), SteeringError> {
        self.bus.tsu.bend(scaled_ppm)?;
        self.bus.clock_has_changed();
        Ok(())
    }

    /// Says on the clock page how the clock does; `measured`: its offset has been measured since that was said last.
    pub fn report_clock(&self, report: Report, measured: bool) {
        self.bus.tsu.report(report, measured);
    }

    /// Who led the clock does so no longer: it goes on as it went, and its page says so.
    pub fn release_clock(&self) {
        self.bus.tsu.release();
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
        self.bus.queue(id).map(|queue| queue.status.state())
    }

    /// Counts frames that the software of a TX queue dropped because the queue holds none that long, up to what a counter
    /// holds. `false`: it is no TX queue of this card.
    pub fn count_too_long(&self, id: QueueId, frames: u32) -> bool {
        let Some(queue) = self.bus.queue(id).filter(|_| id.direction == Direction::Tx) else { return false };
        let more = |count: u64| Some(count.saturating_add(frames.into()));
        // Never refused: `more` always has a value.
        let _ = queue.never_posted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        true
    }

    /// Stops a queue at once, drained or not, and takes its memory off it: no worker touches it any more.
    pub fn detach(&self, id: QueueId) {
        if let Some(queue) = self.bus.queue(id) {
            drop(self.ask(id, Command::Halt(id)));
            self.return_pool(id);
            queue.detach();
        }
    }

    /// Somebody new opens a queue: what becomes of late frames is what it was at first.
    pub fn forget_launch_policy(&self, id: QueueId) {
        self.bus.queue(id).into_iter().for_each(|queue| queue.forget_launch_policy());
    }

    /// Adds an opener to a running queue: with a policy, as a subscriber whose cursor begins now. `false` when the
    /// queue has no room for another subscriber or is not shared.
    pub fn join(&self, id: QueueId, opener: Opener, cursor: Option<(Laggard, Arc<Losses>)>) -> bool {
        self.ask(id, Command::Join(id, opener, cursor)).is_some_and(|answer| answer.done)
    }

    /// Takes an opener off a running queue.
    pub fn leave(&self, id: QueueId, opener: u32) {
        drop(self.ask(id, Command::Leave(id, opener)));
    }

    /// Has the worker wake an opener of a running queue, or of one of its rings, by `call` from now on: openers need
    /// none until they sleep for the first time. `false` when the queue does not run, or has no such opener.
    pub fn set_call(&self, id: QueueId, opener: u32, call: Arc<Bell>) -> bool {
        self.ask(id, Command::SetCall(id, opener, call)).is_some_and(|answer| answer.done)
    }

    /// Index of the worker that serves a queue at the moment; `None` if there is no such queue.
    pub fn worker_of(&self, id: QueueId) -> Option<u32> {
        self.bus.affinity.worker(id)
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
        let answer = self.ask(id, command).ok_or(StartError::Stuck)?;
        if answer.done { Ok(RingPins { _pins: pins }) } else { Err(StartError::NotAttached(id)) }
    }

    /// Takes a ring off a TX queue at once, drained or not: no worker touches it any more.
    pub fn drop_ring(&self, id: QueueId, opener: u32) {
        drop(self.ask(id, Command::DropRing(id.index, opener)));
    }

    /// Makes every worker come round once: what `Domain::unmap` needs while it waits.
    pub fn pass_all(&self) {
        for worker in &self.workers {
            drop(worker.mailbox.ask(Command::Pass));
        }
    }

    /// Wakes the worker of a queue, as a doorbell does.
    pub fn kick_all(&self, id: QueueId) {
        if let Some(mailbox) = self.bus.affinity.mailbox(id) {
            mailbox.kick_all();
        }
    }

    pub(crate) fn affinity(&self) -> &Affinity {
        &self.bus.affinity
    }

    /// What the card's clock shows, in ns.
    pub(crate) fn clock_now(&self) -> u64 {
        self.bus.tsu.timebase().at(Ticks::now()).total_nanoseconds()
    }

    pub(crate) fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Does something with a queue, whose worker stays the same meanwhile; `false`: there is none.
    pub(crate) fn with_queue(&self, id: QueueId, f: impl FnOnce(&Queue, &Mailbox) -> bool) -> bool {
        let _stay = self.bus.affinity.stay();
        let (Some(queue), Some(mailbox)) = (self.bus.queue(id), self.bus.affinity.mailbox(id)) else { return false };
        f(queue, mailbox)
    }

    /// Has the worker of a queue carry out a command.
    fn ask(&self, id: QueueId, command: Command) -> Option<Answer> {
        let _stay = self.bus.affinity.stay();
        self.bus.affinity.mailbox(id)?.ask(command).ok()
    }

    /// Everything countable. Holders are left empty: the driver knows them.
    pub fn stats(&self) -> CardStats {
        let wirings = self.wirings.lock().clone();
        let ports = self.ports.iter().zip(&wirings).enumerate();
        let queues = self.bus.rx.iter().chain(&self.bus.tx);
        CardStats {
            queues: queues.map(|queue| queue_stats(queue, self.bus.affinity.worker(queue.status.id))).collect(),
            ports: ports.map(|(index, (port, wiring))| port_stats(index, port, wiring)).collect(),
            workers: self.workers.iter().enumerate().map(|(index, worker)| worker.stats(index)).collect(),
            flows: named(self.flow_counts().into_iter()),
            functions: self.functions.get().map_or_else(Vec::new, |functions| functions()),
            bells: named(["slow", "apart"].into_iter().zip(slow_wakes())),
        }
    }

    /// The card has PCI functions, whose counters are among its own from now on. To be called once.
    pub fn count_functions(&self, functions: CountsOfFunctions) {
        let _ = self.functions.set(functions);
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
            // One that has ended by a bug has said so already.
            let _ = worker.thread.take().map(JoinHandle::join);
        }
    }
}

/// When this card came to be, for its tree; 0 on a machine whose clock is before 1970.
fn seconds_since_1970() -> u32 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs() as u32)
}

/// Queues of a port among `count` of them: `docs/spec/nfb-card.md` §2.1, interface map (queue `i` is of port
/// `i * ports / count`).
fn share(count: u32, port: usize, ports: usize) -> Range<u32> {
    let first = |port: usize| (port as u64 * u64::from(count)).div_ceil(ports as u64) as u32;
    first(port)..first(port + 1)
}

/// Worker threads: as many as were asked for, or as many as there are queues, cores to pin them to, and cores.
fn worker_count(options: &CardOptions) -> usize {
    let wanted = options.workers as usize;
    if wanted > 0 {
        return wanted;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = if options.cpus.is_empty() { cores } else { options.cpus.len() };
    cores.min(options.rx_queues.max(options.tx_queues) as usize).max(1)
}

fn start_worker(index: usize, shard: Shard, options: &CardOptions) -> Result<WorkerEntry, CardError> {
    let io = |errno: rustix::io::Errno| CardError::Worker(errno.into());
    let mailbox = Arc::new(Mailbox::new(index).map_err(io)?);
    let counts = Arc::new(WorkerCounts::default());
    let worker = Worker {
        shard,
        turns: Turns::default(),
        mailbox: mailbox.clone(),
        counts: counts.clone(),
        sleep: Sleep::new().map_err(io)?,
        poll: options.poll,
        spin: Duration::from_micros(u64::from(options.spin_us)),
        clock_version: 0,
        hot: Vec::new(),
        fetched: None,
        wakes: Wakes::default(),
        put_off: PutOff::default(),
    };
    let cpu = options.cpus.get(index).copied();
    let thread = std::thread::Builder::new()
        .name(format!("millrace-card{index}"))
        .spawn(move || {
            if let Some(cpu) = cpu {
                pin_to(cpu);
            }
            crate::lost_worker::run(worker, index);
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
