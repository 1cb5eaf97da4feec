//! Launch times.

use super::*;
use core::time::Duration;

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

/// A clock of which readings may be old: what it shows, and what it would.
struct Old(Arc<AtomicU64>, Arc<AtomicU64>);

impl Clock for Old {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn exactly(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }
}

#[test]
fn nobody_loses_a_frame_because_a_reading_is_old() {
    let memory = Memory::new(8, 8);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    let (old, new) = (Arc::new(AtomicU64::new(START)), Arc::new(AtomicU64::new(START + 500)));
    card.set_clock(Box::new(Old(old.clone(), new.clone())));
    for (i, launch) in [(0, START + HORIZON + 500), (1, START + HORIZON + 2000)] {
        assert!(host.post(Frame { launch, ..memory.frame(i, 60) }));
    }
    host.flush();
    let served = card.serve(9, &mut |_: Span<'_>| Accept::Taken);
    assert_eq!((served.frames, served.too_far, card.launch_in().is_some()), (0, 0, true));
    // The first leaves, and the second is too far ahead by any reading.
    old.store(START + HORIZON + 500, Ordering::Relaxed);
    new.store(START + 999, Ordering::Relaxed);
    let served = card.serve(9, &mut |_: Span<'_>| Accept::Taken);
    assert_eq!((served.frames, served.too_far), (1, 0), "1500 ns ahead");
    old.store(START + 999, Ordering::Relaxed);
    let served = card.serve(9, &mut |_: Span<'_>| Accept::Taken);
    assert_eq!((served.frames, served.too_far), (0, 1));
}
