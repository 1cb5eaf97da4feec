//! Queues of DD whose frames have launch times.

use super::*;
use crate::shard::Detach;
use millrace_abi::register::tsu as t;
use millrace_ring::dd;

const SECOND: u64 = 1_000_000_000;
const ENTRIES: u32 = 16;

/// A queue as its program has it.
pub(super) struct Launcher {
    pub queue: Arc<Queue>,
    pub host: dd::HostTx,
    /// The descriptors, four words each.
    pub words: millrace_dma::Slots64,
    pub control: Region,
    frame: Iova,
}

impl Launcher {
    fn post(&mut self, launch: u64) {
        assert!(self.post_one(FRAME, launch));
    }

    /// `false`: there is no room.
    pub fn post_one(&mut self, len: u16, launch: u64) -> bool {
        while self.host.reclaim() > 0 {}
        self.host.post(dd::Frame { iova: self.frame, len, launch, cookie: 0 }) && self.host.flush()
    }

    pub fn state(&self) -> QueueState {
        let word = self.control.window().word32(STATE_AT).unwrap().load(Ordering::Acquire);
        QueueState::from_word(word).unwrap()
    }

    fn flag(&self) -> millrace_dma::Word32 {
        self.control.window().word32(CARD_SLEEPS_AT).unwrap()
    }

    pub fn is_cold(&self) -> bool {
        self.flag().load(Ordering::Relaxed) != 0
    }

    /// Kicks, if the worker says that it sleeps.
    pub fn wake(&self, worker: &Worker) {
        if Ringer::new(self.flag()).must_signal() {
            worker.mailbox.kick_all();
        }
    }

    pub fn passed(&self) -> u64 {
        self.queue.status.counts.read().passed
    }
}

pub(super) fn start(worker: &mut Worker, queue: Arc<Queue>) -> Launcher {
    start_of(worker, queue, 7)
}

pub(super) fn start_of(worker: &mut Worker, queue: Arc<Queue>, owner: u32) -> Launcher {
    let (memory, control) = (Region::heap(0x2000), Region::heap(PAGE_SIZE));
    let domain = Arc::new(Domain::new());
    let at = domain.map(memory.window().clone(), Access::ReadWrite, None).unwrap();
    let words = memory.window().slots64(0, ENTRIES * dd::DESCRIPTOR as u32 / 8).unwrap();
    let ring = || dd::Ring::new(words.clone()).unwrap();
    ring().clear();
    let host = dd::HostTx::new(ring(), control.window().word64(DOORBELL_AT).unwrap());
    // The clock of its worker is not this one.
    let engine = dd::CardTx::new(ring(), at, FrameLimits::ETHERNET, Iotlb::new(domain), Box::new(|| 0));
    let opener = Opener { id: 1, owner, control: control.window().clone(), kick: None, call: None };
    let command = Command::StartTx(queue.status.id.index, Box::new(TxEngine::Dd(engine)), vec![opener]);
    assert!(worker.carry_out(command).done);
    Launcher { queue, host, words, control, frame: at.plus(0x1000) }
}

struct Scene {
    tsu: Arc<Tsu>,
    worker: Worker,
    launchers: Vec<Launcher>,
}

impl Scene {
    fn new(count: u32) -> Self {
        let tsu = Arc::new(Tsu::new(true).unwrap());
        let (mut worker, queues) = worker(Engine::Dd, count, &tsu, Box::new(NullPort::new()));
        let launchers = queues.into_iter().map(|queue| start(&mut worker, queue)).collect();
        Self { tsu, worker, launchers }
    }

    fn now(&self) -> u64 {
        self.tsu.timebase().at(millrace_clock::Ticks::now()).total_nanoseconds()
    }

    /// Every queue has a frame that leaves so much later, and waits for it.
    fn waiting(count: u32, ahead: u64) -> Self {
        let mut scene = Self::new(count);
        let launch = scene.now() + ahead;
        scene.launchers.iter_mut().for_each(|launcher| launcher.post(launch));
        scene.pass_until("they wait", |scene| scene.worker.turns.waiting() == count as usize);
        scene
    }

    fn pass_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{what}: that never comes");
            self.worker.pass();
        }
    }

    fn passed(&self) -> u64 {
        self.launchers.iter().map(Launcher::passed).sum()
    }

    fn readings(&self) -> u64 {
        self.worker.shard.clock.readings.load(Count::Relaxed)
    }

    /// So many seconds go by at once.
    fn set_clock_forward(&mut self, seconds: u32) {
        let words = [
            (t::COMMAND, t::COMMAND_READ_TIME),
            (t::DATA_HIGH, (self.now() / SECOND) as u32 + seconds),
            (t::COMMAND, t::COMMAND_WRITE_TIME),
        ];
        let changes = words.map(|(register, value)| self.tsu.write(register.bytes(), value));
        assert!(changes[2], "the clock is what it was");
    }
}

#[test]
fn rings_that_wait_cost_a_pass_one_reading_of_the_clock_however_many_they_are() {
    for count in [1, 4096] {
        let mut scene = Scene::waiting(count, SECOND - SECOND / 20);
        let (before, mut passes) = (scene.readings(), 0);
        // Nothing is looked at but the wire, nothing moves in the wheel, and the worker might sleep.
        let looked_at: Vec<Item> = scene.worker.turns.hot().collect();
        assert_eq!(looked_at, [Item::PortQueue(0)]);
        for _ in 0..100 {
            scene.worker.pass();
            passes += 1;
        }
        assert_eq!((scene.readings() - before, scene.passed()), (passes, 0), "{count}");
        assert!(scene.worker.may_sleep().is_some_and(|most| most > Duration::ZERO));
    }
}

#[test]
fn nobody_reads_the_clock_while_nothing_waits_for_a_time() {
    let mut scene = Scene::new(16);
    let before = scene.readings();
    for round in 1..100 {
        scene.launchers.iter_mut().for_each(|launcher| launcher.post(0));
        scene.pass_until("they are sent", |scene| scene.passed() == 16 * round);
        (0..10).for_each(|_| assert!(!scene.worker.pass()));
    }
    assert_eq!(scene.readings(), before);
}

#[test]
fn nothing_leaves_before_its_time_and_everything_after_it() {
    let mut scene = Scene::new(256);
    // Of all kinds: some are due before they are looked at, some keep their turns, and some come down from all levels.
    let launches: Vec<u64> = (0..256).map(|place| scene.now() + place * place * place * 3).collect();
    scene.launchers.iter_mut().zip(&launches).for_each(|(launcher, &launch)| launcher.post(launch));
    scene.pass_until("all are sent", |scene| {
        for (launcher, &launch) in scene.launchers.iter().zip(&launches) {
            let (passed, now) = (launcher.passed(), scene.tsu.timebase().at(millrace_clock::Ticks::now()));
            assert!(passed == 0 || now.total_nanoseconds() >= launch, "too early");
        }
        scene.passed() == 256
    });
    assert_eq!(scene.worker.turns.waiting(), 0);
}

#[test]
fn a_frame_that_stands_behind_one_that_waits_leaves_with_it() {
    let mut scene = Scene::waiting(1, SECOND / 50);
    scene.launchers[0].post(0);
    (0..100).for_each(|_| _ = scene.worker.pass());
    scene.pass_until("both are sent", |scene| scene.passed() == 2);
    // Nobody need kick for what is looked at by the clock.
    assert!(!scene.worker.turns.has_cold());
}

#[test]
fn when_the_clock_is_set_forward_what_waited_leaves_at_once() {
    let mut scene = Scene::waiting(500, SECOND - SECOND / 20);
    scene.set_clock_forward(2);
    let begin = Instant::now();
    scene.pass_until("all are sent", |scene| scene.passed() == 500);
    assert!(begin.elapsed() < Duration::from_millis(500), "by its clock, and not by another: {:?}", begin.elapsed());
}

#[test]
fn a_worker_sleeps_until_shortly_before_the_first_time() {
    let mut scene = Scene::waiting(64, SECOND / 4);
    let begin = Instant::now();
    scene.worker.fall_asleep();
    assert_eq!((scene.worker.counts.sleeps.load(Count::Relaxed), scene.passed()), (1, 0));
    assert!(begin.elapsed() > Duration::from_millis(100), "{:?}", begin.elapsed());
    scene.pass_until("all are sent", |scene| scene.passed() == 64);
}

#[test]
fn a_queue_that_is_stopped_leaves_nothing_in_the_wheel() {
    let mut scene = Scene::waiting(8, SECOND / 10);
    for place in 0..4 {
        let queue = scene.launchers[place].queue.clone();
        assert!(scene.worker.carry_out(Command::Halt(queue.status.id)).done);
        // Another program has it by then, whose frame waits for longer.
        if place < 2 {
            let mut launcher = start(&mut scene.worker, queue);
            launcher.post(scene.now() + SECOND / 2);
            scene.launchers[place] = launcher;
        }
    }
    let moved = Detach { port_queues: Vec::new(), queues: vec![QueueId::tx(4), QueueId::tx(5)] };
    let detached = scene.worker.carry_out(Command::Detach(0, moved)).detached.unwrap();
    scene.pass_until("those that are left have sent", |scene| scene.passed() == 2);
    assert_eq!(scene.launchers.iter().map(Launcher::passed).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 0, 1, 1]);
    assert_eq!(scene.worker.turns.rings(), 4);
    scene.worker.carry_out(Command::Adopt(detached));
    scene.pass_until("what was moved has sent", |scene| scene.passed() == 4);
    scene.pass_until("and the others", |scene| scene.passed() == 6);
}

/// Prints what a pass costs. Under callgrind (`--toggle-collect='*launch::counted*'`) the instructions are those of `PASSES`.
#[test]
#[ignore = "prints figures for docs/decisions/0045-wheel.md"]
fn cost_of_a_pass() {
    const PASSES: u32 = 10_000;
    let count: u32 = std::env::var("RINGS").map_or(4096, |count| count.parse().unwrap());
    let mut scene = if count > 0 { Scene::waiting(count, SECOND - SECOND / 20) } else { Scene::new(1) };
    let begin = Instant::now();
    (0..PASSES).for_each(|_| counted(&mut scene.worker));
    println!("{count} rings wait: {:?} for {PASSES} passes, {} sent", begin.elapsed(), scene.passed());
}

#[inline(never)]
fn counted(worker: &mut Worker) {
    worker.pass();
}
