//! Two clocks and a wire, in time that goes as fast as it can be computed: wrong oscillators, steps, a master that goes and comes back.

use millrace_abi::clock::{Source, State};
use millrace_clock::Time;
use millrace_ptp::{Delay, Engine, Instance, Led, Outgoing, Role, Settings, Transport};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;

const SECOND: u64 = 1_000_000_000;
/// From the frame's leaving to its coming, in ns; and after it by how long a program hears of it.
const WIRE: u64 = 4_000;
const PROGRAM: u64 = 50_000;
/// Where in a frame over Ethernet the message is, and in it the correction, the sequence number and the time.
const MESSAGE: usize = 14;
const CORRECTION: usize = MESSAGE + 8;
const SEQUENCE: usize = MESSAGE + 30;
const ORIGIN: usize = MESSAGE + 34;

/// An oscillator that is wrong, and a clock that is made of it.
struct Crystal {
    now: Rc<Cell<u64>>,
    wrong_ppm: f64,
    // At which true time the clock showed what.
    at: u64,
    shown: f64,
    ppm: f64,
    // How often somebody has steered it.
    steered: usize,
}

#[derive(Clone)]
struct Clock(Rc<RefCell<Crystal>>);

impl Crystal {
    fn settle(&mut self) {
        let passed = (self.now.get() - self.at) as f64;
        self.shown += passed * (1.0 + (self.wrong_ppm + self.ppm) * 1e-6);
        self.at = self.now.get();
    }
}

impl Clock {
    fn new(now: &Rc<Cell<u64>>, wrong_ppm: f64, shown: u64) -> Self {
        Self(Rc::new(RefCell::new(Crystal {
            now: now.clone(),
            wrong_ppm,
            at: now.get(),
            shown: shown as f64,
            ppm: 0.0,
            steered: 0,
        })))
    }

    fn shows(&self) -> f64 {
        let mut crystal = self.0.borrow_mut();
        crystal.settle();
        crystal.shown
    }

    fn bend(&self, wrong_ppm: f64) {
        let mut crystal = self.0.borrow_mut();
        crystal.settle();
        crystal.wrong_ppm = wrong_ppm;
    }
}

impl Led for Clock {
    fn now(&self) -> Time {
        let shown = self.shows() as u64;
        Time::new((shown / SECOND) as u32, (shown % SECOND) as u32)
    }

    fn step(&mut self, ns: i64) -> bool {
        self.shows();
        let mut crystal = self.0.borrow_mut();
        crystal.shown += ns as f64;
        crystal.steered += 1;
        true
    }

    fn set_frequency(&mut self, ppm: f64) -> bool {
        self.shows();
        let mut crystal = self.0.borrow_mut();
        crystal.ppm = ppm;
        crystal.steered += 1;
        true
    }
}

/// Two engines, each with its clock, and what is on its way to each.
struct Pair<'a> {
    now: Rc<Cell<u64>>,
    clocks: [Clock; 2],
    engines: [Engine<'a, Clock>; 2],
    wire: [VecDeque<(u64, Vec<u8>)>; 2],
    leaving: [VecDeque<(u64, Outgoing)>; 2],
    connected: bool,
    // What the second one is told as the time at which all frames come.
    still: Option<Time>,
    // By how many ns at most a frame takes longer, and what chance comes to.
    jitter: u64,
    chance: u64,
    messages: usize,
    // The last Sync of the first one.
    sync: Vec<u8>,
}

impl<'a> Pair<'a> {
    fn new(instances: &'a [Instance; 2], settings: &[Settings; 2], wrong_ppm: f64) -> Self {
        let now = Rc::new(Cell::new(SECOND));
        let clocks = [Clock::new(&now, 0.0, 1_000 * SECOND), Clock::new(&now, wrong_ppm, 5 * SECOND)];
        let engine = |at: usize| Engine::new(&instances[at], &settings[at], clocks[at].clone(), 0.0, now.get());
        let engines = [engine(0), engine(1)];
        Self {
            now,
            engines,
            clocks,
            wire: Default::default(),
            leaving: Default::default(),
            connected: true,
            still: None,
            jitter: 0,
            chance: 7,
            messages: 0,
            sync: Vec::new(),
        }
    }

    fn run(&mut self, seconds: u64) {
        self.run_ms(seconds * 1_000);
    }

    /// Lets time go on, from one thing that happens to the next.
    fn run_ms(&mut self, milliseconds: u64) {
        let end = self.now.get() + milliseconds * 1_000_000;
        while self.now.get() < end {
            for at in 0..2 {
                self.engines[at].tick(self.now.get());
                while let Some(outgoing) = self.engines[at].next_frame() {
                    self.leaving[at].push_back((self.now.get() + PROGRAM, outgoing));
                }
            }
            let comes = |at: usize| self.wire[at].front().map(|&(when, _)| when);
            let leaves = |at: usize| self.leaving[at].front().map(|&(when, _)| when);
            let next = [self.engines[0].next(), self.engines[1].next(), comes(0), comes(1), leaves(0), leaves(1)];
            let next = next.into_iter().flatten().min().unwrap_or(end).max(self.now.get() + 1);
            self.now.set(next.min(end));
            for at in 0..2 {
                if self.leaving[at].front().is_some_and(|&(when, _)| when <= self.now.get()) {
                    let (_, outgoing) = self.leaving[at].pop_front().unwrap();
                    self.send(at, outgoing);
                }
                if self.wire[at].front().is_some_and(|&(when, _)| when <= self.now.get()) {
                    let (_, frame) = self.wire[at].pop_front().unwrap();
                    let came = self.still.filter(|_| at == 1).unwrap_or_else(|| self.clocks[at].now());
                    assert!(self.engines[at].receive(self.now.get(), &frame, came));
                }
            }
        }
    }

    fn send(&mut self, from: usize, outgoing: Outgoing) {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let longer = if self.jitter > 0 { (self.chance >> 33) % self.jitter } else { 0 };
        self.messages += 1;
        let left = self.clocks[from].now();
        if from == 0 && outgoing.frame[MESSAGE] & 0xf == 0 {
            self.sync = outgoing.frame.clone();
        }
        if self.connected {
            self.wire[1 - from].push_back((self.now.get() + WIRE + longer, outgoing.frame));
        }
        if let Some(sent) = outgoing.sent {
            self.engines[from].sent(self.now.get(), sent, left);
        }
    }

    fn offset(&self) -> f64 {
        self.clocks[1].shows() - self.clocks[0].shows()
    }

    fn state(&mut self, at: usize) -> State {
        let now = self.now.get();
        self.engines[at].status(now).report.state
    }

    /// The largest offset in so many seconds.
    fn worst(&mut self, seconds: u64) -> f64 {
        (0..seconds).fold(0.0, |worst: f64, _| {
            self.run(1);
            worst.max(self.offset().abs())
        })
    }
}

fn settings() -> [Settings; 2] {
    [1, 2].map(|number| Settings {
        sync_log2: -3,
        announce_log2: 0,
        delay_log2: -3,
        seed: number.into(),
        role: if number == 1 { Role::Master } else { Role::Slave },
        ..Settings::new([2, 0, 0, 0, 0, number], Transport::Ethernet)
    })
}

fn instances(settings: &[Settings; 2]) -> [Instance; 2] {
    [Instance::new(&settings[0]), Instance::new(&settings[1])]
}

#[test]
fn a_slave_follows_by_every_way_however_wrong_its_oscillator() {
    for delay in [Delay::EndToEnd, Delay::PeerToPeer] {
        for one_step in [false, true] {
            for (version, wrong_ppm) in [(None, 100.0), (Some(4), -100.0), (Some(6), 0.0)] {
                let settings = settings().map(|settings| {
                    let last = settings.mac[5];
                    let address = |version| match version {
                        4 => IpAddr::from([10, 0, 0, last]),
                        _ => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last.into()]),
                    };
                    let transport =
                        version.map_or(Transport::Ethernet, |version| Transport::Udp { address: address(version) });
                    Settings { delay, one_step, transport, ..settings }
                });
                let instances = instances(&settings);
                let mut pair = Pair::new(&instances, &settings, wrong_ppm);
                pair.run(60);
                let (worst, now) = (pair.worst(30), pair.now.get());
                let case = format!("{delay:?}, one step {one_step}, IP {version:?}, {wrong_ppm} ppm: {worst} ns");
                assert!(worst < 1_000.0, "{case}");
                let status = pair.engines[1].status(now);
                assert_eq!((status.report.state, status.report.source), (State::Locked, Source::Ptp), "{case}");
                assert_eq!((pair.state(0), status.master.map(|id| id[5])), (State::Master, Some(1)), "{case}");
                let path = status.report.path_delay_ns.unwrap();
                assert!((path - WIRE as i64).abs() < 500, "{case}, path {path}");
            }
        }
    }
}

#[test]
fn stamps_that_stand_still_lead_nothing() {
    for delay in [Delay::EndToEnd, Delay::PeerToPeer] {
        for from in [0, 30] {
            let settings = settings().map(|settings| Settings { delay, ..settings });
            let instances = instances(&settings);
            let mut pair = Pair::new(&instances, &settings, 20.0);
            pair.run(from);
            pair.still = Some(pair.clocks[1].now());
            let before = (pair.offset(), pair.clocks[1].0.borrow().steered);
            pair.run(20);
            let (now, case) = (pair.now.get(), format!("{delay:?}, after {from} s"));
            let status = pair.engines[1].status(now);
            assert_ne!(status.report.state, State::Locked, "{case}");
            assert!(status.impossible_ns.is_some_and(|ns| ns < -(SECOND as i64)), "{case}: {status:?}");
            assert!(status.report.path_delay_ns.is_none_or(|ns| ns >= 0), "{case}: {status:?}");
            let moved = (pair.offset() - before.0).abs();
            assert!(moved < 1e6 || from > 0, "{case}: moved by {moved} ns");
            assert!(moved < 5e9, "{case}: moved by {moved} ns");
            // As soon as they are right, it follows.
            pair.still = None;
            pair.run(60);
            assert_eq!(pair.state(1), State::Locked, "{case}");
            assert!(pair.worst(10) < 1_000.0, "{case}");
            assert_eq!(pair.engines[1].status(pair.now.get()).impossible_ns, None, "{case}");
        }
    }
}

/// The delay is measured between a Sync and a request a second later: what the clocks differ by meanwhile is more than the path.
#[test]
fn a_slave_whose_oscillator_is_very_wrong_finds_its_speed_though_paths_seem_shorter_than_nothing() {
    for wrong_ppm in [-900.0, 900.0] {
        let settings = settings().map(|settings| Settings { sync_log2: 0, delay_log2: 0, ..settings });
        let instances = instances(&settings);
        let mut pair = Pair::new(&instances, &settings, wrong_ppm);
        let took = (1..120).find(|_| {
            pair.run(1);
            pair.engines[1].status(pair.now.get()).measurements > 0
        });
        assert!(took.is_some_and(|seconds| seconds < 12), "{wrong_ppm} ppm: the first offset after {took:?} s");
        pair.run(100);
        assert_eq!(pair.state(1), State::Locked, "{wrong_ppm} ppm");
        let worst = pair.worst(20);
        assert!(worst < 10_000.0, "{wrong_ppm} ppm: {worst}");
    }
}

#[test]
fn frames_that_take_unequally_long_are_averaged() {
    let settings = settings();
    let instances = instances(&settings);
    let mut pair = Pair::new(&instances, &settings, 30.0);
    pair.jitter = 5_000;
    pair.run(60);
    let worst = pair.worst(60);
    assert!(worst < 2_500.0, "{worst} ns, of frames that take up to 5000 ns longer");
}

#[test]
fn without_its_master_a_clock_holds_over_and_comes_back() {
    let settings = settings();
    let instances = instances(&settings);
    let mut pair = Pair::new(&instances, &settings, 100.0);
    pair.run(60);
    assert_eq!(pair.state(1), State::Locked);
    pair.connected = false;
    pair.run(2);
    assert_eq!(pair.state(1), State::Holdover, "Sync is missed before Announce");
    pair.run(60);
    assert_eq!(pair.state(1), State::Holdover);
    // An oscillator that is wrong by 100 ppm would be 6 ms off.
    let held = pair.offset().abs();
    assert!(held < 20_000.0, "{held} ns after a minute");
    pair.connected = true;
    let mut worst: f64 = 0.0;
    for _ in 0..60 {
        pair.run(1);
        worst = worst.max(pair.offset().abs());
    }
    assert_eq!(pair.state(1), State::Locked);
    assert!(worst < 100_000.0, "the speed that was found out is kept: {worst}");
    assert!(pair.worst(10) < 1_000.0);
}

#[test]
fn a_step_and_a_change_of_speed_are_made_up_for() {
    let settings = settings();
    let instances = instances(&settings);
    let mut pair = Pair::new(&instances, &settings, 0.0);
    pair.run(60);
    pair.clocks[1].clone().step(3_000_000_000);
    pair.run_ms(400);
    assert_ne!(pair.state(1), State::Locked);
    pair.run(60);
    assert_eq!(pair.state(1), State::Locked);
    assert!(pair.worst(10) < 1_000.0);
    pair.clocks[1].bend(100.0);
    pair.run(1);
    assert!(pair.offset().abs() > 1_000.0, "it is a change");
    pair.run(90);
    let worst = pair.worst(10);
    assert!(worst < 1_000.0, "{worst}");
    assert_eq!(pair.state(1), State::Locked);
}

#[test]
fn of_two_that_may_be_anything_the_better_one_leads() {
    let settings =
        settings().map(|settings| Settings { role: Role::Any, priority1: 100 + settings.mac[5], ..settings });
    let instances = instances(&settings);
    let mut pair = Pair::new(&instances, &settings, 50.0);
    pair.run(60);
    assert_eq!((pair.state(0), pair.state(1)), (State::Master, State::Locked));
    pair.connected = false;
    pair.run(30);
    assert_eq!(pair.state(1), State::Master, "alone, it leads whoever comes");
}

/// A Sync in each 50 us, of the master that it follows, for ten seconds: each says another time, and some a correction of nearly a second.
#[test]
fn a_master_that_floods_moves_the_clock_and_nothing_else() {
    let settings = settings().map(|settings| Settings { one_step: true, ..settings });
    let instances = instances(&settings);
    let mut pair = Pair::new(&instances, &settings, 30.0);
    pair.run(20);
    assert_eq!(pair.state(1), State::Locked);
    let (mut frame, clock) = (pair.sync.clone(), pair.clocks[1].clone());
    for second in 0..10 {
        let before = clock.0.borrow().steered;
        for round in 0..20_000u64 {
            pair.now.set(pair.now.get() + 50_000);
            let came = clock.now();
            // So far off that it steps whenever it may.
            let seconds = came.seconds + 100 * (second % 2);
            let correction =
                if round % 100 == 99 { [-999_999_999i64, 999_999_999][round as usize / 100 % 2] << 16 } else { 0 };
            frame[CORRECTION..CORRECTION + 8].copy_from_slice(&correction.to_be_bytes());
            frame[SEQUENCE..SEQUENCE + 2].copy_from_slice(&(round as u16).to_be_bytes());
            frame[ORIGIN + 2..ORIGIN + 6].copy_from_slice(&seconds.to_be_bytes());
            frame[ORIGIN + 6..ORIGIN + 10].copy_from_slice(&came.nanoseconds().to_be_bytes());
            assert!(pair.engines[1].receive(pair.now.get(), &frame, came));
        }
        let steered = clock.0.borrow().steered - before;
        assert!((200..=300).contains(&steered), "the clock was steered {steered} times in a second");
    }
    let now = pair.now.get();
    assert!(pair.engines[1].status(now).passed_over > 150_000);
    // Its true master goes on, and is followed.
    pair.run(30);
    assert_eq!(pair.state(1), State::Locked);
    assert!(pair.worst(10) < 1_000.0);
}

#[test]
fn nothing_that_comes_makes_it_fall_over() {
    let settings = settings();
    let instances = instances(&settings);
    let mut pair = Pair::new(&instances, &settings, 10.0);
    pair.run(30);
    let mut frames = Vec::new();
    for at in 0..2 {
        frames.extend(pair.wire[at].iter().map(|(_, frame)| frame.clone()));
        pair.engines[at].tick(u64::MAX / 2);
        frames.extend(std::iter::from_fn(|| pair.engines[at].next_frame()).map(|outgoing| outgoing.frame));
    }
    assert!(frames.len() > 2);
    let (mut state, mut taken) = (1u64, 0);
    for round in 0..200_000u64 {
        let mut frame = frames[round as usize % frames.len()].clone();
        for _ in 0..=round % 4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round | 1);
            let at = (state >> 40) as usize % frame.len();
            frame[at] = (state >> 32) as u8;
        }
        frame.truncate((state >> 48) as usize % 200 + 20);
        let now = pair.now.get() + round;
        taken += usize::from(pair.engines[1].receive(now, &frame, Time::new((state >> 32) as u32, 0)));
        while pair.engines[1].next_frame().is_some() {}
    }
    assert!(taken > 10_000, "{taken} looked like messages");
}
