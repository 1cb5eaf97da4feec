//! Who keeps whose times: order, programs that arm much at once or write into descriptors that wait, thousands of queues with a schedule.

use super::launch::{Launcher, start_of};
use super::*;
use crate::counters::QueueDrop;
use crate::schedule::PortSchedule;
use millrace_abi::register::tsu as t;
use millrace_abi::schedule::{Gate, QueueClass, Schedule};
use std::collections::VecDeque;
use std::sync::Mutex;

const MILLISECOND: u64 = 1_000_000;
/// A busy machine may take the core away from before a launch until after it; of so many tries one has to do.
const TRIES: usize = 60;

/// What left: how long it was, and when, by the card's clock.
type Left = Arc<Mutex<Vec<(u16, u64)>>>;

/// Notes what leaves.
struct Notes {
    left: Left,
    tsu: Arc<Tsu>,
    counters: Arc<PortCounters>,
}

impl PortQueue for Notes {
    fn transmit(&mut self, frame: millrace_dma::Span<'_>) -> TxOutcome {
        self.left.lock().unwrap().push((frame.len() as u16, now_of(&self.tsu)));
        TxOutcome::Sent
    }

    fn receive(&mut self, _: usize, _: &mut dyn Sink) -> usize {
        0
    }

    fn can_wait(&self) -> bool {
        false
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

fn now_of(tsu: &Tsu) -> u64 {
    tsu.timebase().at(millrace_clock::Ticks::now()).total_nanoseconds()
}

struct Scene {
    tsu: Arc<Tsu>,
    worker: Worker,
    queues: Vec<Launcher>,
    left: Left,
}

impl Scene {
    /// Queues of these owners.
    fn new(owners: impl ExactSizeIterator<Item = u32>) -> Self {
        let (tsu, left) = (Arc::new(Tsu::new(true).unwrap()), Left::default());
        let notes = Notes { left: left.clone(), tsu: tsu.clone(), counters: Arc::default() };
        let (mut worker, queues) = worker(Engine::Dd, owners.len() as u32, &tsu, Box::new(notes));
        let queues = queues.into_iter().zip(owners).map(|(queue, owner)| start_of(&mut worker, queue, owner)).collect();
        Self { tsu, worker, queues, left }
    }

    fn now(&self) -> u64 {
        now_of(&self.tsu)
    }

    fn pass_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{what}: that never comes");
            self.worker.pass();
        }
    }

    fn take_left(&mut self, count: usize) -> Vec<(u16, u64)> {
        self.pass_until("all leave", |scene| scene.left.lock().unwrap().len() >= count);
        core::mem::take(&mut *self.left.lock().unwrap())
    }

    fn drops(&self, queue: usize, reason: QueueDrop) -> u64 {
        self.queues[queue].queue.status.counts.read().drops[reason as usize]
    }
}

#[test]
fn frames_of_a_program_leave_in_the_order_of_their_times_and_at_equal_times_of_their_queues() {
    const QUEUES: usize = 200;
    let mut random = fastrand::Rng::with_seed(3);
    for attempt in 1..=TRIES {
        // New ones each time: queues that have been quiet want a kick.
        let mut scene = Scene::new([7; QUEUES].into_iter());
        let begin = scene.now() + 20 * MILLISECOND;
        let (mut order, mut wanted) = ((0..QUEUES).collect::<Vec<_>>(), Vec::new());
        random.shuffle(&mut order);
        for queue in order {
            // Few different times; a queue has its frames in order.
            let mut times = [0; 3].map(|_| begin + random.u64(0..10) * 1000);
            times.sort_unstable();
            for time in times {
                assert!(scene.queues[queue].post_one(64 + queue as u16, time));
                wanted.push((time, 64 + queue as u16));
            }
        }
        wanted.sort_unstable();
        let left = scene.take_left(wanted.len());
        assert!(left.iter().zip(&wanted).all(|(&(_, left), &(launch, _))| left >= launch), "too early");
        if left.iter().map(|&(len, _)| len).eq(wanted.iter().map(|&(_, len)| len)) {
            return;
        }
        assert!(attempt < TRIES, "the order is another each time");
    }
}

#[test]
fn who_arms_thousands_of_frames_for_one_time_keeps_nobody_else_from_it() {
    const THEIRS: usize = 4000;
    let owners = (0..=THEIRS as u32).map(|queue| if queue < THEIRS as u32 { 7 } else { 9 }).collect::<Vec<_>>();
    for attempt in 1..=TRIES {
        let mut scene = Scene::new(owners.iter().copied());
        let launch = scene.now() + 40 * MILLISECOND;
        (0..THEIRS).for_each(|queue| assert!(scene.queues[queue].post_one(64, launch)));
        assert!(scene.queues[THEIRS].post_one(65, launch));
        let left = scene.take_left(THEIRS + 1);
        assert!(left.iter().all(|&(_, left)| left >= launch), "too early");
        let before = left.iter().position(|&(len, _)| len == 65).unwrap();
        // Of a program that could not be told from others all would.
        if before < THEIRS / 20 {
            return;
        }
        assert!(attempt < TRIES, "{before} of theirs left before");
    }
}

#[test]
fn who_floods_has_its_turns_between_the_launches_of_another_and_delays_none_by_more_than_a_burst() {
    let mut scene = Scene::new([7, 9].into_iter());
    let mut late = Vec::new();
    for _ in 0..200 {
        let launch = scene.now() + MILLISECOND / 2;
        assert!(scene.queues[1].post_one(65, launch));
        scene.pass_until("it leaves", |scene| {
            while scene.queues[0].post_one(64, 0) {}
            scene.left.lock().unwrap().iter().any(|&(len, _)| len == 65)
        });
        let left = scene.left.lock().unwrap().drain(..).collect::<Vec<_>>();
        assert!(left.len() > 16, "the flood does not stand still: {}", left.len());
        // What left between the launch time and the frame.
        late.push(left.iter().filter(|&&(len, at)| len == 64 && at >= launch).count());
    }
    late.sort_unstable();
    // Half of them at least: the machine may take the core away at the very moment.
    assert!(late[100] <= BURST as usize, "{late:?}");
}

#[test]
fn what_is_written_into_descriptors_that_wait_is_judged_when_their_time_comes_and_moves_nobody_else() {
    const TIME: u32 = 2;
    const STATUS: u32 = 1;
    const ADDRESS: u32 = 0;
    let mut scene = Scene::new([7, 7, 7, 7, 7, 7, 7, 7, 9].into_iter());
    let begin = scene.now() + 50 * MILLISECOND;
    (0..9).for_each(|queue| assert!(scene.queues[queue].post_one(64 + queue as u16, begin)));
    scene.pass_until("they wait", |scene| scene.worker.turns.waiting() == 9);
    let changes = [
        (TIME, begin + 5 * MILLISECOND),
        (TIME, 1 << 63),
        (TIME, 0),
        (TIME, u64::MAX),
        (STATUS, 1 << 63),
        (ADDRESS, 0xdead_0000),
        (STATUS, 0xffff),
        (TIME, 1),
    ];
    for (queue, (word, value)) in changes.into_iter().enumerate() {
        scene.queues[queue].words.store(word, value);
    }
    scene.pass_until("their times come", |scene| scene.left.lock().unwrap().iter().any(|&(len, _)| len == 64));
    let left: std::collections::BTreeMap<u16, u64> = scene.left.lock().unwrap().iter().copied().collect();
    assert_eq!(left.keys().map(|len| len - 64).collect::<Vec<_>>(), [0, 2, 7, 8]);
    assert!(left[&64] >= begin + 5 * MILLISECOND && left.values().all(|&at| at >= begin), "{left:?} {begin}");
    let too_far = [1, 3].map(|queue| scene.drops(queue, QueueDrop::LaunchTooFar));
    assert_eq!((too_far, scene.drops(6, QueueDrop::TooLong)), ([1, 1], 1));
    let state = |queue: usize| scene.queues[queue].state();
    assert!(matches!(state(5), QueueState::Faulted(FaultKind::Unmapped)), "{:?}", state(5));
    assert!((0..9).filter(|&queue| queue != 5).all(|queue| state(queue) == QueueState::Running));
}

/// A launch is 5 us ahead from now on, and never comes: the clock hardly goes. `false`: it came before that.
fn hold_before_launch(scene: &mut Scene, queue: usize) -> bool {
    let launch = scene.now() + MILLISECOND;
    assert!(scene.queues[queue].post_one(65, launch));
    scene.pass_until("it is armed, or leaves", |scene| {
        scene.worker.turns.first_launch() == launch || !scene.left.lock().unwrap().is_empty()
    });
    let (seconds, rest) = ((launch - 5_000) / 1_000_000_000, (launch - 5_000) % 1_000_000_000);
    let at = millrace_clock::Time::new(seconds as u32, rest as u32);
    let words = [
        (t::DATA_LOW, 1 << 10),
        (t::DATA_MIDDLE, 0),
        (t::COMMAND, t::COMMAND_WRITE_INCREMENT),
        (t::DATA_LOW, at.fraction as u32),
        (t::DATA_MIDDLE, (at.fraction >> 32) as u32),
        (t::DATA_HIGH, at.seconds),
        (t::COMMAND, t::COMMAND_WRITE_TIME),
    ];
    words.iter().for_each(|&(register, value)| _ = scene.tsu.write(register.bytes(), value));
    scene.worker.pass();
    scene.worker.is_near()
}

#[test]
fn who_always_has_a_launch_near_keeps_quiet_rings_neither_hot_nor_unheard() {
    const QUIET: usize = 40;
    let mut scene = (0..TRIES).find_map(|_| {
        let mut scene = Scene::new((0..QUIET as u32 + 1).map(|queue| if queue < QUIET as u32 { 7 } else { 9 }));
        hold_before_launch(&mut scene, QUIET).then_some(scene)
    });
    let scene = scene.as_mut().expect("a launch that is near");
    scene.pass_until("half of them are cold", |scene| scene.worker.turns.hot().count() <= QUIET / 2);
    let cold = (0..QUIET).find(|&queue| scene.queues[queue].is_cold()).unwrap();
    assert!(scene.queues[cold].post_one(64, 0));
    scene.queues[cold].wake(&scene.worker);
    scene.pass_until("it is heard", |scene| scene.left.lock().unwrap().iter().any(|&(len, _)| len == 64));
    assert!(scene.worker.is_near() && scene.left.lock().unwrap().len() == 1);
}

#[test]
fn thousands_of_queues_keep_to_launch_times_and_to_a_schedule() {
    const QUEUES: u32 = 4096;
    let mut scene = Scene::new(vec![7; QUEUES as usize].into_iter());
    let class = |queue: u32| if queue.is_multiple_of(2) { 0 } else { 6 };
    let gates = vec![Gate { open: 1, lasts: 300_000 }, Gate { open: 0x40, lasts: 700_000 }];
    let queues = (0..QUEUES).map(|queue| QueueClass { queue, class: class(queue), rate: 0 }).collect();
    let said = Schedule { base: 0, speed: 10_000_000_000, always: 0, gates, queues };
    let schedule = Arc::new(PortSchedule::new(said, scene.now(), None));
    assert!(scene.worker.carry_out(Command::Schedule(0, Some(schedule))).done);
    let begin = scene.now() + 20 * MILLISECOND;
    let mut random = fastrand::Rng::with_seed(9);
    for queue in 0..QUEUES as usize {
        let len = 64 + u16::from(class(queue as u32));
        assert!(scene.queues[queue].post_one(len, begin + random.u64(0..3 * MILLISECOND)));
    }
    let left = scene.take_left(QUEUES as usize);
    assert_eq!((left.len(), scene.worker.turns.waiting()), (QUEUES as usize, 0));
    assert!(left.iter().all(|&(_, at)| at >= begin));
    let is_open = |&&(len, at): &&(u16, u64)| (at % MILLISECOND < 300_000) == (len == 64);
    // But for those between whose question and hand-over the core was taken away.
    let punctual = left.iter().filter(is_open).count();
    assert!(punctual * 20 >= left.len() * 19, "{punctual} of {}", left.len());
}

#[test]
fn of_hundreds_of_thousands_of_frames_of_many_queues_none_is_early_and_each_queue_keeps_its_order() {
    const QUEUES: usize = 64;
    const FRAMES: usize = 300_000;
    let mut scene = Scene::new((0..QUEUES as u32).map(|queue| 7 + queue % 3).collect::<Vec<_>>().into_iter());
    let mut random = fastrand::Rng::with_seed(11);
    let mut posted = vec![VecDeque::new(); QUEUES];
    let (mut left, mut timed) = (0, 0);
    let begin = Instant::now();
    while left < FRAMES {
        assert!(begin.elapsed() < Duration::from_secs(60), "{left} have left");
        for (queue, posted) in posted.iter_mut().enumerate() {
            let now = scene.now();
            let launch = match random.u8(0..8) {
                0 => 0,
                1 => now - random.u64(0..1000),
                2 => now + 2 * MILLISECOND,
                _ => now + random.u64(0..60_000),
            };
            if posted.len() < 12 && scene.queues[queue].post_one(64 + queue as u16, launch) {
                posted.push_back(launch);
            }
        }
        scene.worker.pass();
        for (len, at) in scene.left.lock().unwrap().drain(..) {
            let launch = posted[usize::from(len) - 64].pop_front().unwrap();
            assert!(at >= launch, "{} ns too early", launch - at);
            (left, timed) = (left + 1, timed + usize::from(launch > 0));
        }
    }
    assert!(timed > FRAMES / 2);
}
