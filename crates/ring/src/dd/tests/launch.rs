//! Launch times.

use super::*;
use core::time::Duration;
use millrace_abi::launch::{FarPolicy, LatePolicy, LaunchPolicy};

const START: u64 = 5_000_000_000;

fn at(memory: &Memory, now: u64) {
    memory.now.store(now, Ordering::Relaxed);
}

fn timed() -> (Memory, HostTx, CardTx) {
    let memory = Memory::new(8, 8);
    at(&memory, START);
    let (host, card) = (memory.host_tx(), memory.card_tx(LIMITS));
    (memory, host, card)
}

#[test]
fn a_frame_waits_for_its_time_and_those_behind_it_wait_too() {
    let (memory, mut host, mut card) = timed();
    for (i, launch) in [(0, 0), (1, START + 1000), (2, 0)] {
        assert!(host.post(Frame { launch, ..memory.frame(i, 60) }));
    }
    host.flush();
    assert_eq!(card.launch_in(), None);
    assert_eq!(serve_all(&mut card).0.frames, 1);
    assert!(!card.pending() && !card.is_drained());
    assert_eq!(card.launch_in(), Some(Duration::from_nanos(1000)));
    at(&memory, START + 999);
    assert!(!card.pending());
    let served = serve_all(&mut card).0;
    assert_eq!((served, served.has_moved()), (Served { looked: 1, ..Served::default() }, false));
    assert_eq!(host.reclaim(), 1);
    at(&memory, START + 1000);
    assert_eq!(card.launch_in(), Some(Duration::ZERO));
    assert!(card.pending());
    assert_eq!(serve_all(&mut card).0.frames, 2);
    assert!(card.is_drained() && card.launch_in().is_none());
}

#[test]
fn a_time_that_has_passed_is_at_once_and_one_beyond_the_horizon_is_an_error() {
    let (memory, mut host, mut card) = timed();
    for (i, launch) in [(0, 1), (1, START), (2, START + HORIZON + 1), (3, u64::MAX), (4, START + HORIZON)] {
        assert!(host.post(Frame { launch, ..memory.frame(i, 60) }));
    }
    host.flush();
    let (served, _) = serve_all(&mut card);
    assert_eq!((served.frames, served.too_far, served.fault), (2, 2, None));
    assert_eq!((host.reclaim(), host.outcome(0)), (4, Some(Outcome::TooFar)));
    assert_eq!(card.launch_in(), Some(Duration::from_nanos(HORIZON)));
}

/// A clock that goes on by so many ns with each reading.
fn ticking(memory: &Memory, step: u64) -> Box<dyn Clock> {
    let now = memory.now.clone();
    Box::new(move || now.fetch_add(step, Ordering::Relaxed))
}

#[test]
fn a_launch_time_that_is_near_is_waited_for_once_and_what_is_far_or_never_comes_is_not() {
    const NEAR: u64 = 500;
    let (memory, mut host, mut card) = timed();
    for (i, launch) in [(0, START + 400), (1, START + 700), (2, START + 2_000)] {
        assert!(host.post(Frame { launch, ..memory.frame(i, 60) }));
    }
    host.flush();
    card.set_clock(ticking(&memory, 20));
    card.come_due(u64::MAX, NEAR);
    assert_eq!(serve_all(&mut card).0.frames, 1);
    assert_eq!(host.reclaim(), 1);
    // Its time, and at most two readings more: one that tells it, and one of this test's.
    let after = memory.now.load(Ordering::Relaxed);
    assert!((START + 400..START + 460).contains(&after), "{}", after - START);
    assert_eq!(card.held_until(), Some(START + 700));
    card.come_due(u64::MAX, NEAR);
    assert_eq!(serve_all(&mut card).0.frames, 1);
    // It is too far ahead: one reading says so.
    let before = memory.now.load(Ordering::Relaxed);
    card.come_due(u64::MAX, NEAR);
    assert_eq!(serve_all(&mut card).0.frames, 0);
    assert_eq!(memory.now.load(Ordering::Relaxed), before + 20);
    // The clock stands.
    at(&memory, START + 1_900);
    card.set_clock(ticking(&memory, 0));
    card.come_due(u64::MAX, NEAR);
    assert_eq!((serve_all(&mut card).0.frames, card.held_until()), (0, Some(START + 2_000)));
    at(&memory, START + 2_000);
    card.come_due(u64::MAX, 0);
    assert_eq!(serve_all(&mut card).0.frames, 1);
}

#[test]
fn a_clock_that_is_set_back_makes_a_launch_time_wild_and_not_the_queue_stuck() {
    let (memory, mut host, mut card) = timed();
    host.post(Frame { launch: START + 100, ..memory.frame(0, 60) });
    host.flush();
    serve_all(&mut card);
    assert!(!card.pending());
    at(&memory, 7);
    assert!(card.pending() && card.launch_in() == Some(Duration::ZERO));
    assert_eq!(serve_all(&mut card).0.too_far, 1);
    assert!(card.is_drained());
}

#[test]
fn a_frame_that_is_taken_back_while_it_waits_keeps_nobody_awake() {
    let (memory, mut host, mut card) = timed();
    host.post(Frame { launch: START + 100, ..memory.frame(0, 60) });
    host.flush();
    serve_all(&mut card);
    memory.set_status(0, 1 << 63);
    assert!(!card.pending() && card.launch_in().is_none() && card.is_drained());
    at(&memory, START + 200);
    assert!(!card.pending() && card.launch_in().is_none());
}

fn judged(late: LatePolicy, far: FarPolicy) -> (Memory, HostTx, CardTx, Arc<LaunchCounts>) {
    let (memory, host, card) = timed();
    let counts = Arc::new(LaunchCounts::default());
    (memory, host, card.launching(LaunchPolicy { late, slack: 100, far }, counts.clone()), counts)
}

#[test]
fn what_is_late_is_sent_dropped_or_marked() {
    for (late, outcome, counted) in [
        (LatePolicy::Send, Outcome::Passed, [2, 1, 0, 0, 0]),
        (LatePolicy::Mark, Outcome::Late, [2, 1, 0, 0, 0]),
        (LatePolicy::Drop, Outcome::TooLate, [2, 0, 1, 0, 0]),
    ] {
        let (memory, mut host, mut card, counts) = judged(late, FarPolicy::Refuse);
        for (i, launch) in [(0, START - 101), (1, START - 100), (2, START)] {
            host.post(Frame { launch, ..memory.frame(i, 60) });
        }
        host.flush();
        let served = serve_all(&mut card).0;
        assert_eq!((host.reclaim(), served.frames + served.too_late), (3, 3));
        assert_eq!(counts.reasons(), counted, "{late:?}");
        // Each says when it left, or did not.
        assert_eq!(host.outcome_at(0), Some((outcome, START)));
        assert_eq!([1, 2].map(|at| host.outcome_at(at)), [Some((Outcome::Passed, START)); 2]);
        assert_eq!(counts.latest(), if late == LatePolicy::Drop { 100 } else { 101 });
    }
}

#[test]
fn a_queue_that_holds_waits_for_any_time() {
    let (memory, mut host, mut card, counts) = judged(LatePolicy::Send, FarPolicy::Hold);
    host.post(Frame { launch: START + 3 * HORIZON, ..memory.frame(0, 60) });
    host.post(Frame { launch: u64::MAX, ..memory.frame(1, 60) });
    host.flush();
    assert_eq!(serve_all(&mut card).0.frames, 0);
    assert_eq!(card.launch_in(), Some(Duration::from_nanos(3 * HORIZON)));
    at(&memory, START + 3 * HORIZON);
    assert_eq!((serve_all(&mut card).0.frames, counts.reasons()), (1, [1, 0, 0, 0, 0]));
    assert!(!card.pending() && card.is_held());
}

#[test]
fn a_sink_without_room_leaves_the_frame_where_it_is_and_no_verdict() {
    let (memory, mut host, mut card, counts) = judged(LatePolicy::Drop, FarPolicy::Refuse);
    host.post(Frame { launch: START, ..memory.frame(0, 60) });
    host.flush();
    assert_eq!(card.serve(9, &mut |_: Span<'_>| Accept::Full).frames, 0);
    assert_eq!((counts.reasons(), card.pending()), ([0; 5], true));
    at(&memory, START + 50);
    assert_eq!(serve_all(&mut card).0.frames, 1);
    assert_eq!((counts.reasons(), counts.latest(), host.reclaim()), ([1, 0, 0, 0, 0], 50, 1));
}

/// A sink that drops what is short.
struct Dropping(bool);

impl crate::FrameSink for Dropping {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        self.0 = frame.len() < 100;
        Accept::Taken
    }

    fn has_dropped(&self) -> bool {
        self.0
    }
}

#[test]
fn a_frame_that_the_sink_drops_was_not_sent_and_its_verdict_says_so() {
    let (memory, mut host, mut card, counts) = judged(LatePolicy::Mark, FarPolicy::Refuse);
    for (at, len, launch) in [(0, 60, START), (1, 100, START), (2, 60, START - 500), (3, 60, 0), (4, 100, START - 500)]
    {
        host.post(Frame { launch, ..memory.frame(at, len) });
    }
    host.flush();
    assert_eq!(card.serve(9, &mut Dropping(false)).frames, 5);
    assert_eq!((host.reclaim(), counts.reasons()), (5, [1, 1, 0, 0, 2]));
    assert_eq!((counts.late().iter().sum::<u64>(), counts.latest()), (2, 500), "of those that left");
    let outcomes = [0, 1, 2, 4].map(|at| host.outcome_at(at).map(|(outcome, _)| outcome));
    let [dropped, passed, late] = [Outcome::Dropped, Outcome::Passed, Outcome::Late].map(Some);
    assert_eq!(outcomes, [dropped, passed, dropped, late]);
}

/// Numbers as from a die.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    /// A launch time: none, about now, some time ahead, the same as the one before, or absurd.
    fn launch(&mut self, now: u64, before: u64) -> u64 {
        match self.below(16) {
            0 => 0,
            1..=3 => (now + self.below(400)).saturating_sub(200),
            4..=11 => now + self.below(20_000),
            12 | 13 => before,
            14 => now + HORIZON + self.below(1000),
            _ => u64::MAX - self.below(9),
        }
    }
}

#[test]
fn of_millions_of_frames_none_is_early_all_keep_their_order_and_the_verdicts_add_up() {
    const FRAMES: u64 = 2_000_000;
    let memory = Memory::new(64, 64);
    let (mut host, counts) = (memory.host_tx(), Arc::new(LaunchCounts::default()));
    let policy = LaunchPolicy { late: LatePolicy::Drop, slack: 1000, far: FarPolicy::Refuse };
    let mut card = memory.card_tx(LIMITS).launching(policy, counts.clone());
    let (mut dice, mut now, mut launch) = (Dice(0x5eed), START, START);
    let mut posted = std::collections::VecDeque::new();
    let (mut sent, mut dropped, mut back, mut untimed) = (0, 0, 0, 0);
    while back < FRAMES {
        for _ in 0..dice.below(9).min(host.room().into()) {
            launch = dice.launch(now, launch);
            posted.push_back(launch);
            untimed += u64::from(launch == 0);
            assert!(host.post(Frame { launch, ..memory.frame(0, 60) }));
        }
        host.flush();
        now += dice.below(900) * u64::from(dice.below(4) != 0);
        at(&memory, now);
        // Now and then there is little room.
        let mut room = if dice.below(8) == 0 { dice.below(3) } else { 64 };
        let served = card.serve(64, &mut |_: Span<'_>| {
            let has_room = room > 0;
            room = room.saturating_sub(1);
            if has_room { Accept::Taken } else { Accept::Full }
        });
        sent += served.frames;
        dropped += served.too_far + served.too_late;
        // In order: each descriptor that is back is that of the oldest frame posted.
        for at in back..back + u64::from(host.reclaim()) {
            let (scheduled, (outcome, actual)) = (posted.pop_front().unwrap(), host.outcome_at(at as u32).unwrap());
            let late = actual.saturating_sub(scheduled);
            match outcome {
                _ if scheduled == 0 => assert_eq!((outcome, actual), (Outcome::Passed, 0)),
                Outcome::Passed => {
                    assert!(actual >= scheduled && actual <= now && late <= 1000, "{scheduled} {actual}")
                }
                Outcome::TooLate => assert!(actual == now && late > 1000, "{scheduled} {actual}"),
                Outcome::TooFar => assert!(scheduled - actual > HORIZON, "{scheduled} {actual}"),
                other => panic!("{other:?}"),
            }
        }
        back = sent + dropped;
        // What stands still has not come to its time.
        if !served.has_moved() && card.is_held() && host.room() == 0 {
            now += card.launch_in().unwrap().as_nanos() as u64;
        }
    }
    let [on_time, late, too_late, too_far, _] = counts.reasons();
    assert_eq!((on_time + untimed - posted.iter().filter(|&&launch| launch == 0).count() as u64, late), (sent, 0));
    assert_eq!((too_late + too_far, counts.late().iter().sum::<u64>()), (dropped, on_time));
    assert!(
        [on_time, too_late, too_far].iter().all(|&count| count > FRAMES / 100),
        "all kinds: {:?}",
        counts.reasons()
    );
}
