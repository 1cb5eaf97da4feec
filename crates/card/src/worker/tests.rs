//! A worker whose passes the test makes itself, with queues of Medusa that send into a port queue without an end.

mod asleep;
mod launch;
mod punctual;
mod schedule;

use super::*;
use crate::affinity::Homes;
use crate::counters::Counts;
use crate::engine::{RxEngine, TxEngine};
use crate::mac::{Mac, MacLane};
use crate::opener::Opener;
use crate::pass_clock::PassClock;
use crate::queue::Queue;
use crate::queue_status::QueueStatus;
use crate::shard::{Detached, PortSlot, RxSlot, TxQueue, TxSlot};
use crate::tsu::{Stamper, Tsu};
use millrace_abi::control::{CARD_SLEEPS_AT, DOORBELL_AT, FaultKind, PAGE_SIZE, QueueState, STATE_AT};
use millrace_abi::queue::{Engine, QueueId};
use millrace_dma::{Access, Domain, Iotlb, Iova, Region};
use millrace_port::null::NullPort;
use millrace_port::{PortCounters, PortQueue, Sink, TxOutcome};
use millrace_ring::FrameLimits;
use millrace_ring::medusa::{CardRx, CardTx, HostRx, HostTx, RxRings, TxRings};
use millrace_ring::wake::Ringer;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

const ENTRIES: u32 = 256;
const FRAME: u16 = 64;
const BURST: u64 = millrace_flow::table::BURST as u64;

/// A queue as its program has it.
struct Program {
    id: QueueId,
    queue: Arc<Queue>,
    host: HostTx,
    control: Region,
    kick: Arc<OwnedFd>,
    data: Iova,
}

impl Program {
    fn post(&mut self, count: u32) {
        self.host.completed();
        for _ in 0..count.min(self.host.free()) {
            self.host.post(self.data, FRAME);
        }
        self.host.flush();
    }

    /// Kicks if the worker says that it sleeps.
    fn ring(&self) -> bool {
        let must = Ringer::new(self.flag()).must_signal();
        if must {
            rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
        }
        must
    }

    fn flag(&self) -> millrace_dma::Word32 {
        self.control.window().word32(CARD_SLEEPS_AT).unwrap()
    }

    fn is_cold(&self) -> bool {
        self.flag().load(Ordering::Relaxed) != 0
    }

    fn passed(&self) -> u64 {
        self.queue.status.counts.read().passed
    }
}

/// A worker with one port into which something is plugged, and a queue for each of `owners`; those of one owner have
/// one kick.
fn scene(owners: &[u32], port_queue: Box<dyn PortQueue>) -> (Worker, Vec<Program>) {
    let (mut worker, queues) =
        worker(Engine::Medusa, owners.len() as u32, &Arc::new(Tsu::new(false).unwrap()), port_queue);
    let mut kicks = std::collections::BTreeMap::new();
    let programs = owners.iter().zip(queues).map(|(&owner, queue)| {
        let kick = kicks.entry(owner).or_insert_with(|| Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap())).clone();
        start(&mut worker, queue, owner, kick)
    });
    let programs = programs.collect();
    (worker, programs)
}

/// A worker with one port into which something is plugged, and TX queues that do not run.
fn worker(engine: Engine, count: u32, tsu: &Arc<Tsu>, port_queue: Box<dyn PortQueue>) -> (Worker, Vec<Arc<Queue>>) {
    let mac = MacLane::new(Arc::new(Mac::new(1, 9000)), 0, Stamper::new(tsu.clone(), 0));
    let mut worker = Worker {
        shard: Shard::new(0, vec![(mac, 0..4096)], Arc::new(Homes::new(4096, count)), PassClock::new(tsu.clone())),
        turns: Turns::default(),
        mailbox: Arc::new(Mailbox::new(0).unwrap()),
        counts: Arc::default(),
        sleep: Sleep::new().unwrap(),
        poll: false,
        spin: Duration::ZERO,
        hot: Vec::new(),
        fetched: None,
        wakes: Wakes::default(),
        put_off: PutOff::default(),
        clock_version: 0,
    };
    worker.sleep.watch(&worker.mailbox.kick_any);
    worker.sleep.watch(&worker.mailbox.wake);
    let queues: Vec<Arc<Queue>> =
        (0..count).map(|index| Arc::new(Queue::new(QueueId::tx(index), engine, tsu.clone()))).collect();
    let place = |queue: &Arc<Queue>| TxQueue {
        counts: Counts::default(),
        rings: vec![TxSlot::new(queue.status.clone(), 0, 0, 0)],
    };
    let detached = Detached {
        port_queues: vec![PortSlot::new(0, 0, port_queue)],
        rx: Vec::new(),
        tx: queues.iter().map(place).collect(),
    };
    worker.carry_out(Command::Adopt(Box::new(detached)));
    (worker, queues)
}

fn start(worker: &mut Worker, queue: Arc<Queue>, owner: u32, kick: Arc<OwnedFd>) -> Program {
    let (memory, control) = (Region::heap(0x2000), Region::heap(PAGE_SIZE));
    let domain = Arc::new(Domain::new());
    let at = domain.map(memory.window().clone(), Access::ReadWrite, None).unwrap();
    let descriptors = memory.window().slots64(0, ENTRIES).unwrap();
    let doorbell = control.window().word64(DOORBELL_AT).unwrap();
    let update = memory.window().word64(0x1000).unwrap();
    let host = HostTx::new(descriptors.clone(), doorbell.clone(), update.clone()).unwrap();
    let rings = TxRings { descriptors, descriptors_at: at, doorbell, update };
    let engine = TxEngine::Medusa(CardTx::new(rings, FrameLimits::ETHERNET, Iotlb::new(domain)).unwrap());
    let opener = Opener { id: 1, owner, control: control.window().clone(), kick: Some(kick.clone()), call: None };
    let answer = worker.carry_out(Command::StartTx(queue.status.id.index, Box::new(engine), vec![opener]));
    assert!(answer.done);
    Program { id: queue.status.id, queue, host, control, kick, data: at.plus(0x1800) }
}

/// Passes until what is not `busy` is cold.
fn cool(worker: &mut Worker, programs: &mut [Program], busy: usize) {
    for _ in 0..200_000 {
        programs[..busy].iter_mut().for_each(|program| program.post(ENTRIES));
        worker.pass();
        if programs[busy..].iter().all(Program::is_cold) {
            return;
        }
    }
    panic!("some are still hot");
}

/// Passes, with the first `busy` queues never empty, until `done`; returns how many those were.
fn pass_until(worker: &mut Worker, programs: &mut [Program], busy: usize, done: impl Fn(&[Program]) -> bool) -> usize {
    for passes in 0..20_000 {
        if done(programs) {
            return passes;
        }
        programs[..busy].iter_mut().for_each(|program| program.post(ENTRIES));
        worker.pass();
    }
    panic!("it never comes");
}

#[test]
fn one_queue_has_half_of_the_worker_beside_32_flooded_ones_of_another_program() {
    let mut owners = vec![7; 32];
    owners.push(9);
    let (mut worker, mut programs) = scene(&owners, Box::new(NullPort::new()));
    for _ in 0..2000 {
        programs.iter_mut().for_each(|program| program.post(ENTRIES));
        let before: u64 = programs.iter().map(Program::passed).sum();
        worker.pass();
        let after: u64 = programs.iter().map(Program::passed).sum();
        assert!(after - before <= 4 * BURST, "a pass is a quantum for each: {}", after - before);
    }
    let theirs: u64 = programs[..32].iter().map(Program::passed).sum();
    let mine = programs[32].passed();
    assert!(mine * 10 >= theirs * 9, "{mine} frames beside {theirs}");
    let (least, most) =
        programs[..32].iter().map(Program::passed).fold((u64::MAX, 0), |(a, b), n| (a.min(n), b.max(n)));
    assert!(most - least <= BURST, "queues of one program have their turns: {least} to {most}");
}

#[test]
fn a_cold_queue_is_found_by_its_kick_while_others_are_busy() {
    let mut owners = vec![7; 10];
    owners.extend([9; 300]);
    let (mut worker, mut programs) = scene(&owners, Box::new(NullPort::new()));
    cool(&mut worker, &mut programs, 10);
    assert_eq!(worker.turns.hot().count(), 11, "the busy ones and the wire");
    for place in [10, 309, 150] {
        programs[place].post(1);
        assert!(programs[place].ring(), "it has said that it sleeps");
        let passes = pass_until(&mut worker, &mut programs, 10, |programs| programs[place].passed() == 1);
        assert!(passes < 200, "{passes} passes");
        assert!(!programs[place].is_cold() && !programs[place].ring());
    }
}

#[test]
fn a_frame_without_a_kick_is_not_looked_for() {
    // So that the test before shows something.
    let mut owners = vec![7; 10];
    owners.extend([9; 20]);
    let (mut worker, mut programs) = scene(&owners, Box::new(NullPort::new()));
    cool(&mut worker, &mut programs, 10);
    programs[20].post(1);
    for _ in 0..2000 {
        programs[..10].iter_mut().for_each(|program| program.post(ENTRIES));
        worker.pass();
    }
    assert_eq!(programs[20].passed(), 0);
}

#[test]
fn a_doorbell_that_is_rung_through_the_card_finds_its_queue() {
    let (mut worker, mut programs) = scene(&[7; 30], Box::new(NullPort::new()));
    cool(&mut worker, &mut programs, 1);
    programs[17].post(1);
    assert!(Ringer::new(programs[17].flag()).must_signal());
    worker.mailbox.kick_all();
    pass_until(&mut worker, &mut programs, 1, |programs| programs[17].passed() == 1);
}

#[test]
fn a_worker_falls_asleep_with_cold_queues_and_their_kick_wakes_it() {
    let (mut worker, mut programs) = scene(&[7; 30], Box::new(NullPort::new()));
    cool(&mut worker, &mut programs, 0);
    programs[3].post(1);
    assert!(programs[3].ring());
    let (done, wait) = std::sync::mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        worker.fall_asleep();
        done.send(()).unwrap();
        worker
    });
    wait.recv_timeout(Duration::from_secs(60)).expect("a kick that wakes");
    let mut worker = sleeper.join().unwrap();
    assert_eq!(worker.counts.sleeps.load(Count::Relaxed), 1);
    pass_until(&mut worker, &mut programs, 0, |programs| programs[3].passed() == 1);
    assert!(programs[4].is_cold(), "who was not rung stays as it was");
}

#[test]
fn kicks_without_end_cost_others_nothing() {
    let mut owners = vec![7];
    owners.extend([9; 500]);
    let (mut worker, mut programs) = scene(&owners, Box::new(NullPort::new()));
    cool(&mut worker, &mut programs, 1);
    for _ in 0..2000 {
        rustix::io::write(&programs[100].kick, &1u64.to_ne_bytes()).unwrap();
        programs[0].post(ENTRIES);
        let before = programs[0].passed();
        worker.pass();
        assert!(programs[0].passed() > before, "the busy queue has its turn in every pass");
    }
    assert_eq!(worker.turns.hot().count(), 2, "nobody else was rung");
}

#[test]
fn what_a_wire_brings_is_reckoned_with_whoever_listens() {
    let port_queue = millrace_port::open(&"generator:size=64".parse().unwrap()).unwrap().remove(0);
    let (mut worker, mut programs) = scene(&[9], port_queue);
    assert_eq!(worker.turns.owners(), [0, 9]);
    let queue = Arc::new(QueueStatus::new(QueueId::rx(0), Engine::Medusa));
    let detached = Detached { port_queues: Vec::new(), rx: vec![RxSlot::new(queue.clone(), 0, 0)], tx: Vec::new() };
    worker.carry_out(Command::Adopt(Box::new(detached)));
    let (memory, control) = (Region::heap(0x2000), Region::heap(PAGE_SIZE));
    let rings = RxRings {
        descriptors: memory.window().slots64(0, ENTRIES).unwrap(),
        descriptors_at: Iova::new(0x1000),
        headers: memory.window().slots32(0x1000, ENTRIES).unwrap(),
        doorbell: control.window().word64(DOORBELL_AT).unwrap(),
        update: memory.window().word64(0x1800).unwrap(),
    };
    let engine = CardRx::new(rings, FrameLimits::ETHERNET, Iotlb::new(Arc::new(Domain::new()))).unwrap();
    let opener = Opener { id: 1, owner: 7, control: control.window().clone(), kick: None, call: None };
    // No buffer is ever posted: all frames are dropped, and have to be looked at for that.
    worker.carry_out(Command::StartRx(0, Box::new(RxEngine::Medusa(engine)), None, vec![opener], true));
    assert_eq!(worker.turns.owners(), [7, 9]);
    let received = || queue.counts.read().dropped();
    for _ in 0..1000 {
        programs[0].post(ENTRIES);
        let (before, sent) = (received(), programs[0].passed());
        worker.pass();
        assert!(received() - before <= BURST && programs[0].passed() - sent <= 2 * BURST);
    }
    let (theirs, mine) = (received(), programs[0].passed());
    assert!(theirs.abs_diff(mine) * 10 < mine, "{theirs} received beside {mine} sent");
    worker.carry_out(Command::Halt(QueueId::rx(0)));
    assert_eq!(worker.turns.owners(), [0, 9]);
}

#[test]
fn a_cold_queue_stops_when_it_is_asked_to_and_others_stay_cold() {
    let (mut worker, mut programs) = scene(&[7; 30], Box::new(NullPort::new()));
    cool(&mut worker, &mut programs, 0);
    let mailbox = worker.mailbox.clone();
    let queue = programs[5].queue.clone();
    let asker = std::thread::spawn(move || {
        use millrace_abi::register::medusa as m;
        queue.write32(m::CONTROL.bytes(), 0, FrameLimits::ETHERNET, false, &mailbox);
        queue.status.state()
    });
    while !asker.is_finished() {
        worker.obey();
        std::thread::yield_now();
    }
    assert_eq!(asker.join().unwrap(), QueueState::Stopped);
    assert_eq!((worker.turns.rings(), worker.turns.hot().count()), (29, 1));
    worker.carry_out(Command::Halt(programs[6].id));
    assert_eq!(worker.turns.rings(), 28);
}

/// A port queue that is a bug.
struct Broken(Arc<PortCounters>);

impl PortQueue for Broken {
    fn transmit(&mut self, _: millrace_dma::Span<'_>) -> TxOutcome {
        panic!("a bug of the card, for a test");
    }

    fn receive(&mut self, _: usize, _: &mut dyn Sink) -> usize {
        0
    }

    fn can_wait(&self) -> bool {
        false
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.0
    }
}

#[test]
fn a_worker_that_ends_by_a_bug_tells_its_queues_and_nobody_waits_for_it() {
    let (worker, mut programs) = scene(&[7, 7, 9], Box::new(Broken(Arc::default())));
    let mailbox = worker.mailbox.clone();
    programs[1].post(1);
    std::thread::spawn(move || crate::lost_worker::run(worker, 0)).join().unwrap();
    let lost = QueueState::Faulted(FaultKind::WorkerLost);
    for program in &programs {
        assert_eq!(program.queue.status.state(), lost);
        let word = program.control.window().word32(STATE_AT).unwrap().load(Ordering::Acquire);
        assert_eq!(QueueState::from_word(word), Some(lost));
    }
    assert!(mailbox.ask(Command::Pass).is_err());
}
