//! Queues of a port with a schedule. The clock stands, and the test moves it: so it is known at which time a frame left.

use super::launch::{Launcher, start};
use super::*;
use crate::counters::QueueDrop;
use crate::schedule::PortSchedule;
use millrace_abi::control::{DEPARTURE_AT, WANTS_STAMPS_AT};
use millrace_abi::register::tsu as t;
use millrace_abi::schedule::{Gate, QueueClass, Schedule};
use std::sync::Mutex;

const GIGABIT: u64 = 1_000_000_000;
const START: u64 = 7_000_000_000;

/// Notes the lengths of the frames that come, by which the test knows them.
struct Recorder {
    lens: Arc<Mutex<Vec<u16>>>,
    counters: Arc<PortCounters>,
}

impl PortQueue for Recorder {
    fn transmit(&mut self, frame: millrace_dma::Span<'_>) -> TxOutcome {
        self.lens.lock().unwrap().push(frame.len() as u16);
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

struct Scene {
    tsu: Arc<Tsu>,
    worker: Worker,
    queues: Vec<Launcher>,
    lens: Arc<Mutex<Vec<u16>>>,
    now: u64,
}

impl Scene {
    fn new(said: Schedule) -> Self {
        let (tsu, lens) = (Arc::new(Tsu::new(true).unwrap()), Arc::<Mutex<Vec<u16>>>::default());
        let recorder = Recorder { lens: lens.clone(), counters: Arc::default() };
        let count = said.queues.len() as u32;
        let (mut worker, queues) = worker(Engine::Dd, count, &tsu, Box::new(recorder));
        let queues = queues.into_iter().map(|queue| start(&mut worker, queue)).collect();
        let mut scene = Self { tsu, worker, queues, lens, now: START };
        scene.write([(t::DATA_LOW, 0), (t::DATA_MIDDLE, 0), (t::COMMAND, t::COMMAND_WRITE_INCREMENT)]);
        scene.move_to(START);
        scene.set(Some(PortSchedule::new(said, START, None)));
        scene
    }

    fn set(&mut self, schedule: Option<PortSchedule>) {
        assert!(self.worker.carry_out(Command::Schedule(0, schedule.map(Arc::new))).done);
    }

    fn write(&self, words: [(millrace_abi::register::Offset, u32); 3]) {
        words.iter().for_each(|(register, value)| _ = self.tsu.write(register.bytes(), *value));
    }

    fn move_to(&mut self, now: u64) {
        self.now = now;
        let time = millrace_clock::Time::new((now / GIGABIT) as u32, (now % GIGABIT) as u32);
        let [low, middle] = [time.fraction as u32, (time.fraction >> 32) as u32];
        _ = self.tsu.write(t::DATA_HIGH.bytes(), time.seconds);
        self.write([(t::DATA_LOW, low), (t::DATA_MIDDLE, middle), (t::COMMAND, t::COMMAND_WRITE_TIME)]);
    }

    /// Everything that leaves at this time.
    fn leaves(&mut self) -> Vec<u16> {
        let mut quiet = 0;
        while quiet < 5 {
            self.worker.shard.clock.begin();
            let before = self.lens.lock().unwrap().len();
            self.worker.pass();
            quiet = if self.lens.lock().unwrap().len() == before { quiet + 1 } else { 0 };
        }
        core::mem::take(&mut *self.lens.lock().unwrap())
    }

    fn drops(&self, queue: usize) -> u64 {
        self.queues[queue].queue.status.counts.read().drops[QueueDrop::NoWindow as usize]
    }
}

fn queue(queue: u32, class: u8, rate: u64) -> QueueClass {
    QueueClass { queue, class, rate }
}

/// ns on the wire.
fn lasts(len: u16) -> u64 {
    (u64::from(len) + 24) * 8
}

#[test]
fn frames_leave_in_the_windows_of_their_class_the_higher_class_first_one_at_a_time() {
    // Class 0: 0 to 60 us and 80 to 100; class 6: 60 to 100; class 7 always.
    let gate = |open, lasts| Gate { open, lasts };
    let gates = vec![gate(0b01, 60_000), gate(0b100_0000, 20_000), gate(0b100_0001, 20_000)];
    let queues = vec![queue(0, 0, 0), queue(1, 6, 0), queue(2, 7, 0)];
    let said = Schedule { base: START, speed: GIGABIT, always: 0x80, gates, queues };
    let windows: [&[(u64, u64)]; 3] = [&[(80_000, 160_000), (0, 60_000)], &[(60_000, 100_000)], &[(0, 200_000)]];
    let mut scene = Scene::new(said);
    let (mut waiting, mut left, mut free) = ([0_u64; 3], [0_u64; 3], 0);
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..20_000 {
        let backlog = waiting;
        #[allow(clippy::needless_range_loop, reason = "the queue is a number of others, too")]
        for queue in 0..3 {
            // The highest class has little to say.
            let wants = if queue == 2 { random.u32(0..8) == 0 } else { random.bool() };
            if wants && scene.queues[queue].post_one(64 + queue as u16, 0) {
                waiting[queue] += 1;
            }
        }
        scene.move_to(scene.now + random.u64(0..1500));
        let (at, now) = ((scene.now - START) % 100_000, scene.now);
        let frames = scene.leaves();
        assert!(frames.len() <= 1, "one at a time: {frames:?}");
        let may = |queue: usize| {
            let fits = |&(begin, end): &(u64, u64)| begin <= at && at + lasts(64 + queue as u16) <= end;
            // A window over the end of a cycle has its rest at the beginning.
            windows[queue].iter().any(fits) && now >= free
        };
        match frames.first() {
            Some(&len) => {
                let sent = usize::from(len - 64);
                assert!(may(sent), "queue {sent} at {at}, wire free in {}", free.saturating_sub(now));
                let outranked = (sent + 1..3).find(|&higher| backlog[higher] > 0 && may(higher));
                assert_eq!(outranked, None, "queue {sent} at {at}: {backlog:?}");
                (waiting[sent], left[sent], free) = (waiting[sent] - 1, left[sent] + 1, now + lasts(len));
            }
            None => {
                assert!((0..3).all(|queue| waiting[queue] == 0 || !may(queue)), "at {at}: {waiting:?} {free} {now}")
            }
        }
    }
    assert!(left.iter().all(|&count| count > 1000), "{left:?}");
}

#[test]
fn a_rate_is_kept_from_one_frame_to_the_next() {
    // 88 bytes on the wire at 7.04 Mbit/s: a frame each 100 us.
    let said = Schedule { base: 0, speed: GIGABIT, queues: vec![queue(0, 0, 7_040_000)], ..Schedule::default() };
    let mut scene = Scene::new(said);
    (0..16).for_each(|_| assert!(scene.queues[0].post_one(64, 0)));
    let mut times = Vec::new();
    while times.len() < 16 {
        scene.move_to(scene.now + 7_000);
        times.extend(scene.leaves().iter().map(|_| scene.now));
        assert!(scene.now < START + 3_000_000, "{times:?}");
    }
    let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|&gap| (93_000..=107_000).contains(&gap)), "{gaps:?}");
    assert!((times[15] - times[0]).abs_diff(1_500_000) <= 7_000, "no error adds up");
    // After a pause there is no burst.
    scene.move_to(scene.now + 10_000_000);
    (0..3).for_each(|_| assert!(scene.queues[0].post_one(64, 0)));
    assert_eq!(scene.leaves().len(), 1);
    scene.move_to(scene.now + 1_000);
    assert!(scene.leaves().len() <= 1);
    scene.move_to(scene.now + 50_000);
    assert_eq!(scene.leaves().len(), 0);
}

#[test]
fn what_fits_into_no_window_is_dropped_and_counted_and_what_is_behind_it_goes_on() {
    let gates = vec![Gate { open: 1, lasts: 1000 }, Gate { open: 0, lasts: 1000 }];
    let said = Schedule { base: START, speed: GIGABIT, always: 0, gates, queues: vec![queue(0, 0, 0)] };
    let mut scene = Scene::new(said);
    scene.queues[0].post_one(1000, 0);
    scene.queues[0].post_one(64, 0);
    assert_eq!((scene.leaves(), scene.drops(0), scene.queues[0].passed()), (vec![64], 1, 1));
}

#[test]
fn without_a_schedule_again_what_waited_leaves_and_a_change_comes_at_a_boundary() {
    let gates = |open| vec![Gate { open, lasts: 50_000 }, Gate { open: 0, lasts: 50_000 }];
    let said =
        |base, open| Schedule { base, speed: GIGABIT, always: 0, gates: gates(open), queues: vec![queue(0, 0, 0)] };
    let mut scene = Scene::new(said(START, 1));
    scene.move_to(START + 60_000);
    scene.queues[0].post_one(64, 0);
    assert_eq!(scene.leaves().len(), 0, "closed");
    // From 200 us on class 0 has no window: until then the old one counts.
    let before = Arc::new(PortSchedule::new(said(START, 1), START, None));
    scene.set(Some(PortSchedule::new(said(START + 200_000, 2), scene.now, Some(&before))));
    assert_eq!(scene.leaves().len(), 0);
    scene.move_to(START + 100_000);
    assert_eq!(scene.leaves().len(), 1, "the old cycle");
    scene.move_to(START + 170_000);
    scene.queues[0].post_one(64, 0);
    assert_eq!((scene.leaves().len(), scene.drops(0)), (0, 1), "never again");
    scene.set(None);
    scene.queues[0].post_one(64, 0);
    assert_eq!(scene.leaves().len(), 1);
}

#[test]
fn a_schedule_that_is_to_count_later_changes_neither_class_nor_rate_until_then() {
    let gates = vec![Gate { open: 1, lasts: 50_000 }, Gate { open: 0x40, lasts: 50_000 }];
    let said = |base, queue| Schedule { base, speed: GIGABIT, always: 0, gates: gates.clone(), queues: vec![queue] };
    // A frame of 64 bytes each 200 us, in the window of class 0, and from 1 ms on in that of class 6 as many as come.
    let now = said(START, queue(0, 0, 3_520_000));
    let mut scene = Scene::new(now.clone());
    let before = Arc::new(PortSchedule::new(now, START, None));
    let later = said(START + 1_000_000, queue(0, 6, 0));
    scene.set(Some(PortSchedule::new(later, scene.now, Some(&before))));
    (0..12).for_each(|_| assert!(scene.queues[0].post_one(64, 0)));
    let mut times = Vec::new();
    while scene.now < START + 1_080_000 {
        times.extend(scene.leaves().iter().map(|_| scene.now - START));
        scene.move_to(scene.now + 5_000);
    }
    let (early, late): (Vec<u64>, Vec<u64>) = times.iter().partition(|&&time| time < 1_000_000);
    assert_eq!(early, [0, 200_000, 400_000, 600_000, 800_000], "the old class and rate: {late:?}");
    assert_eq!(late, [1_050_000, 1_055_000, 1_060_000, 1_065_000, 1_070_000, 1_075_000], "the new class, and no rate");
}

#[test]
fn a_program_hears_of_what_a_schedule_drops_and_of_what_leaves() {
    let gates = vec![Gate { open: 1, lasts: 1000 }, Gate { open: 0, lasts: 1000 }];
    let said = Schedule { base: START, speed: GIGABIT, always: 0, gates, queues: vec![queue(0, 0, 0)] };
    let mut scene = Scene::new(said);
    let control = scene.queues[0].control.window().clone();
    let word = |at: usize| control.word64(DEPARTURE_AT + 8 * at).unwrap().load(Ordering::Relaxed);
    control.word32(WANTS_STAMPS_AT).unwrap().store(1, Ordering::Relaxed);
    let said = |scene: &mut Scene, len| {
        scene.queues[0].post_one(len, 0);
        scene.move_to(scene.now + 2_000);
        scene.leaves();
        assert!(word(0) > 0 && word(0).is_multiple_of(2));
        [word(1), word(4), word(2)]
    };
    assert_eq!(said(&mut scene, 1000), [0, 1, 0], "dropped");
    assert_eq!(said(&mut scene, 64), [1, 2, START + 4_000]);
    assert_eq!(said(&mut scene, 1000), [1, 3, START + 4_000], "dropped, and the time is that of the one that left");
    assert_eq!(said(&mut scene, 64), [2, 4, START + 8_000]);
}

/// IEEE 802.1Q 8.6.9.3: what has become operative stays so, by whatever clock.
#[test]
fn a_schedule_that_has_begun_goes_on_when_the_clock_is_set_back() {
    let gates = vec![Gate { open: 1, lasts: 50_000 }, Gate { open: 0, lasts: 50_000 }];
    let said = Schedule { base: START, speed: GIGABIT, always: 0, gates, queues: vec![queue(0, 0, 0)] };
    let mut scene = Scene::new(said);
    scene.queues[0].post_one(64, 0);
    assert_eq!(scene.leaves().len(), 1);
    scene.queues[0].post_one(64, 0);
    let back = START - 3 * GIGABIT;
    scene.move_to(back + 60_000);
    assert_eq!(scene.leaves().len(), 0, "closed");
    scene.move_to(back + 100_000);
    assert_eq!(scene.leaves().len(), 1, "the next cycle");
}
