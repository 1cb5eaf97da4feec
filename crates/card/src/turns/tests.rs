//! A worker without lanes: what rings have to do, the test says.

use super::group::COLD_AFTER;
use super::*;
use millrace_dma::{Ordering, Region, Word32};
use std::collections::{BTreeMap, BTreeSet};

/// Turns, and the flags of rings that got cold.
#[derive(Default)]
struct Bench {
    turns: Turns,
    flags: BTreeMap<Item, Word32>,
}

fn ring(place: u32) -> Item {
    Item::Ring(place)
}

impl Bench {
    fn with(rings: &[(Owner, std::ops::Range<u32>)]) -> Self {
        let mut bench = Self::default();
        for (owner, places) in rings {
            places.clone().for_each(|place| bench.turns.add(ring(place), *owner));
        }
        bench
    }

    /// One pass, in which a look at an item finds what `find` says. Returns what was looked at.
    fn pass(&mut self, find: impl Fn(Item) -> (Look, u32)) -> Vec<Item> {
        let (mut seen, mut group, mut worked) = (Vec::new(), 0, false);
        while self.turns.begin(group) {
            while let Some(item) = self.turns.next(group) {
                seen.push(item);
                let (look, cost) = find(item);
                worked |= look.is_work();
                if self.turns.note(group, look, cost) {
                    let flag = Region::heap(4).window().word32(0).unwrap();
                    flag.store(1, Ordering::Relaxed);
                    self.flags.insert(item, flag.clone());
                    // Three rings behind each kick.
                    let Item::Ring(place) = item else { panic!("{item:?} is cold") };
                    self.turns.cool(group, ColdRing { item, kick: Some(place as i32 / 3), flag });
                }
            }
            group = self.turns.end(group);
        }
        if !worked {
            self.turns.forgive();
        }
        seen
    }

    /// Passes until only `busy` is hot.
    fn cool(&mut self, busy: impl Fn(Item) -> bool) {
        let find = |item| if busy(item) { (Look::Busy, 100) } else { (Look::Quiet, 1) };
        for _ in 0..100_000 {
            self.pass(find);
            if self.turns.hot().all(&busy) {
                return;
            }
        }
        panic!("still hot: {:?}", self.turns.hot().collect::<Vec<_>>());
    }

    fn scan(&mut self) -> BTreeSet<Item> {
        let before: BTreeSet<Item> = self.turns.hot().collect();
        let mut steps = 0;
        while self.turns.is_scanning() {
            self.turns.scan(false);
            steps += 1;
            assert!(steps < 10_000, "a look through that never ends");
        }
        self.turns.hot().filter(|item| !before.contains(item)).collect()
    }
}

const FRAMES: u64 = millrace_flow::table::BURST as u64;
/// A full one, of short frames.
const BURST: (Look, u32) = (Look::Busy, cost::of(FRAMES, FRAMES * 64));

#[test]
fn one_ring_has_the_same_share_as_many_of_another_owner() {
    let mut bench = Bench::with(&[(1, 0..32), (2, 32..33)]);
    let (mut mine, mut theirs) = (0, 0);
    for _ in 0..1000 {
        let seen = bench.pass(|_| BURST);
        let of_one = seen.iter().filter(|&&item| item == ring(32)).count();
        (mine, theirs) = (mine + of_one, theirs + seen.len() - of_one);
        assert!(seen.len() <= 4, "one quantum for each, and not more than a burst above it: {seen:?}");
    }
    assert!(mine * 10 >= theirs * 9 && theirs * 10 >= mine * 9, "{mine} and {theirs} bursts");
}

#[test]
fn who_sends_long_frames_waits_as_long_as_they_take() {
    let mut bench = Bench::with(&[(1, 0..1), (2, 1..2)]);
    let (long, short) = ((Look::Busy, cost::of(FRAMES, FRAMES * 1500)), BURST);
    let mut spent = [0u64; 2];
    for _ in 0..10_000 {
        for item in bench.pass(|item| if item == ring(0) { long } else { short }) {
            let (at, cost) = if item == ring(0) { (0, long.1) } else { (1, short.1) };
            spent[at] += u64::from(cost);
        }
    }
    assert!(spent[0].abs_diff(spent[1]) * 20 < spent[0], "{spent:?}");
}

#[test]
fn who_is_in_debt_goes_on_as_soon_as_nobody_else_wants_to() {
    let mut bench = Bench::with(&[(1, 0..1), (2, 1..2)]);
    let find = |item| if item == ring(0) { (Look::Busy, 100_000) } else { (Look::Quiet, 1) };
    let looks: usize = (0..100).map(|_| bench.pass(find).iter().filter(|&&item| item == ring(0)).count()).sum();
    // One pass in which it is skipped, at most, between two bursts.
    assert!(looks >= 33, "{looks} of 100");
}

#[test]
fn a_quiet_ring_is_looked_at_in_every_pass_whatever_others_do() {
    let mut bench = Bench::with(&[(1, 0..500), (2, 500..501), (3, 501..600)]);
    for _ in 0..200 {
        let seen = bench.pass(|item| if item == ring(500) { (Look::Quiet, 1) } else { BURST });
        assert!(seen.contains(&ring(500)));
        let spent: u32 = seen.iter().map(|_| BURST.1).sum();
        assert!(i64::from(spent) <= 2 * (QUANTUM + i64::from(BURST.1)) + i64::from(BURST.1), "{spent}");
    }
}

#[test]
fn rings_of_an_owner_have_their_turns_in_a_circle() {
    let mut bench = Bench::with(&[(1, 0..20), (2, 20..21)]);
    let mut seen = BTreeMap::<Item, u32>::new();
    (0..2000).for_each(|_| bench.pass(|_| BURST).into_iter().for_each(|item| *seen.entry(item).or_default() += 1));
    let of_first = || (0..20).map(|place| seen[&ring(place)]);
    assert!(of_first().max().unwrap() - of_first().min().unwrap() <= 1, "{seen:?}");
}

#[test]
fn alone_everything_is_looked_at_in_one_pass() {
    let mut bench = Bench::with(&[(7, 0..300)]);
    (0..10).for_each(|_| assert_eq!(bench.pass(|_| (Look::Quiet, 1)).len(), 300));
}

#[test]
fn a_few_rings_are_always_looked_at() {
    let mut bench = Bench::with(&[(1, 0..FEW as u32)]);
    for _ in 0..COLD_AFTER {
        assert_eq!(bench.pass(|_| (Look::Quiet, 1)).len(), FEW);
    }
}

#[test]
fn quiet_rings_get_cold_and_a_kick_finds_those_that_were_rung() {
    let mut bench = Bench::with(&[(1, 0..10), (2, 10..1000)]);
    bench.cool(|item| item < ring(10));
    assert_eq!((bench.turns.rings(), bench.pass(|_| (Look::Quiet, 1)).len()), (1000, 10));
    // A kick without a ring, then one with one ring of the three behind it.
    bench.turns.kicked(Some(100));
    assert_eq!(bench.scan(), BTreeSet::new());
    bench.flags[&ring(500)].store(0, Ordering::Relaxed);
    bench.turns.kicked(Some(100));
    assert_eq!(bench.scan(), BTreeSet::new(), "it is behind another kick");
    bench.turns.kicked(Some(500 / 3));
    assert_eq!(bench.scan(), BTreeSet::from([ring(500)]));
    assert!(bench.pass(|_| (Look::Quiet, 1)).contains(&ring(500)));
    // When nobody says which, all of them are looked through.
    for place in [10, 11, 12, 999] {
        bench.flags[&ring(place)].store(0, Ordering::Relaxed);
    }
    bench.turns.kicked_all();
    assert_eq!(bench.scan(), BTreeSet::from([ring(10), ring(11), ring(12), ring(999)]));
    assert_eq!(bench.turns.rings(), 1000);
}

#[test]
fn while_a_launch_is_near_few_flags_are_looked_at_and_news_wait_but_not_for_ever() {
    let mut bench = Bench::with(&[(1, 0..300)]);
    bench.cool(|_| false);
    for ring in [ring(0), ring(299)] {
        bench.flags[&ring].store(0, Ordering::Relaxed);
    }
    bench.turns.kicked_all();
    let mut passes = 0;
    while bench.turns.is_scanning() {
        let hot = bench.turns.hot().count();
        bench.turns.serve_cold(true);
        assert!(bench.turns.hot().count() <= hot + FEW_FLAGS);
        passes += 1;
    }
    // There are three rings behind each kick, so a pass looks at no more.
    assert_eq!((passes, bench.turns.hot().collect::<BTreeSet<_>>()), (100, [0, 299].map(ring).into()));
    let mut asked = |is_near| (1..).find(|_| bench.turns.wants_news(is_near)).unwrap();
    // Something was spent before.
    asked(false);
    assert_eq!((asked(false), asked(true), asked(false)), (BETWEEN_NEWS, MOST_BETWEEN_NEWS, BETWEEN_NEWS));
}

#[test]
fn a_look_through_goes_on_in_small_steps_while_a_launch_is_near() {
    let mut turns = Turns::default();
    (0..100).for_each(|place| turns.add(ring(place), 1));
    let mut rung = None;
    for _ in 0..100 {
        turns.begin(0);
        let item = turns.next(0).unwrap();
        assert!(!turns.note(0, Look::Quiet, 1));
        let flag = Region::heap(4).window().word32(0).unwrap();
        flag.store(u32::from(item != ring(99)), Ordering::Relaxed);
        turns.cool(0, ColdRing { item, kick: Some(7), flag: flag.clone() });
        rung = rung.or_else(|| (item == ring(99)).then_some(flag));
    }
    assert_eq!(turns.hot().count(), 0);
    turns.kicked(Some(7));
    let steps = (1..).find(|_| turns.serve_cold(true)).unwrap();
    assert_eq!(steps, 100_usize.div_ceil(FEW_FLAGS));
}

#[test]
fn a_kick_during_the_look_through_is_not_lost() {
    let flag = || {
        let flag = Region::heap(4).window().word32(0).unwrap();
        flag.store(1, Ordering::Relaxed);
        flag
    };
    let mut cold = Cold::default();
    let flags: Vec<Word32> = (0..100).map(|_| flag()).collect();
    for (place, flag) in flags.iter().enumerate() {
        let (item, flag) = (ring(place as u32), flag.clone());
        cold.add(9, ColdRing { item, kick: Some(1), flag });
    }
    cold.kicked(Some(1));
    assert_eq!(cold.scan(50), []);
    // The look through is past this one; and one that is taken out does not hide another.
    flags[10].store(0, Ordering::Relaxed);
    cold.kicked(Some(1));
    flags[99].store(0, Ordering::Relaxed);
    assert_eq!(cold.take(ring(20)), Some(9));
    let mut found = BTreeSet::new();
    while cold.is_scanning() {
        found.extend(cold.scan(50));
    }
    assert_eq!(found, BTreeSet::from([(9, ring(10)), (9, ring(99))]));
}

#[test]
fn a_step_looks_at_a_bounded_number_of_flags_and_kicks_take_turns() {
    let mut cold = Cold::default();
    let mut add = |place: u32, kick: i32| {
        let flag = Region::heap(4).window().word32(0).unwrap();
        flag.store(1, Ordering::Relaxed);
        cold.add(kick as Owner, ColdRing { item: ring(place), kick: Some(kick), flag: flag.clone() });
        flag
    };
    (0..5000).for_each(|place| drop(add(place, 1)));
    let wanted = add(5000, 2);
    wanted.store(0, Ordering::Relaxed);
    cold.kicked(Some(1));
    cold.kicked(Some(2));
    // However many rings are behind the first, and however often it is kicked.
    let mut found = Vec::new();
    for _ in 0..2 {
        found.extend(cold.scan(64));
        cold.kicked(Some(1));
    }
    assert_eq!(found, [(2, ring(5000))]);
}

/// Adds a ring, and returns its flag.
fn add_cold(cold: &mut Cold, owner: Owner, place: u32, kick: i32) -> Word32 {
    let flag = Region::heap(4).window().word32(0).unwrap();
    flag.store(1, Ordering::Relaxed);
    cold.add(owner, ColdRing { item: ring(place), kick: Some(kick), flag: flag.clone() });
    flag
}

#[test]
fn rings_that_are_taken_out_meanwhile_neither_hide_another_nor_begin_the_look_through_anew() {
    let mut cold = Cold::default();
    let flags: Vec<Word32> = (0..3000).map(|place| add_cold(&mut cold, 1, place, 1)).collect();
    flags[2999].store(0, Ordering::Relaxed);
    cold.kicked(Some(1));
    let (mut found, mut steps) = (Vec::new(), 0u32);
    while found.is_empty() {
        // One that was looked at, the one that was looked at last, one that will be, and one that is not there.
        let seen = steps * 64;
        for gone in [seen / 2, seen.saturating_sub(1), seen + 80, 5000] {
            cold.take(ring(gone));
        }
        found = cold.scan(64);
        steps += 1;
        assert!(steps <= 3000_u32.div_ceil(64), "the last ring was not found in one look through");
    }
    assert_eq!(found, [(1, ring(2999))]);
}

#[test]
fn who_has_many_kicks_has_no_more_turns_than_who_has_one() {
    let mut cold = Cold::default();
    // As well when it is the first as when it is the last.
    let flags = [1, 3].map(|owner| add_cold(&mut cold, owner, owner, owner as i32));
    let last = (0..128).map(|kick| add_cold(&mut cold, 2, 100 + kick, 1000 + kick as i32)).last().unwrap();
    for _ in 0..10 {
        cold.kicked_all();
        cold.scan(64);
    }
    flags.iter().chain([&last]).for_each(|flag| flag.store(0, Ordering::Relaxed));
    let (mut found, mut steps) = (BTreeMap::new(), 0);
    while found.len() < 3 && steps < 1000 {
        cold.kicked_all();
        steps += 1;
        found.extend(cold.scan(64).into_iter().map(|(owner, _)| (owner, steps)));
    }
    // Within a round, the owners that are looked at, and within 128 of them, its kicks.
    assert!(found[&1] <= 3 && found[&3] <= 3 && found[&2] <= 3 * 128, "{found:?}");
}

/// Makes those hot whose time has come.
fn serve_waiting(turns: &mut Turns, now: u64) {
    turns.serve_waiting(now, false);
    while let Some((group, armed)) = turns.first_ahead() {
        turns.take_armed(group);
        turns.heat_in(group, armed.item);
    }
}

/// As a worker whose clock shows `now`: those wait whose time `until` says. Returns what was looked at.
fn timed_pass(turns: &mut Turns, now: u64, until: impl Fn(Item) -> Option<u64>) -> Vec<Item> {
    let (mut seen, mut group) = (Vec::new(), 0);
    serve_waiting(turns, now);
    while turns.begin(group) {
        while let Some(item) = turns.next(group) {
            seen.push(item);
            let waits = until(item).filter(|&until| until > now);
            assert!(!turns.note(group, if waits.is_some() { Look::Waits } else { Look::Busy }, 1));
            if let Some(until) = waits {
                turns.wait(group, Armed { at: until, order: 0, item }, until);
            }
        }
        group = turns.end(group);
    }
    seen
}

#[test]
fn of_many_rings_that_are_due_at_once_some_get_hot_in_every_pass() {
    let mut turns = Turns::default();
    (0..3001).for_each(|place| turns.add(ring(place), place % 2));
    let due = 1_000_000;
    let until = |item| Some(if item == ring(3000) { 2 * due } else { due });
    while turns.hot().count() > 0 {
        timed_pass(&mut turns, 0, until);
    }
    assert_eq!((turns.waiting(), turns.rings(), turns.owners()), (3001, 3001, vec![]));
    // The wheel says a tick when it is about to begin.
    assert!((due - wheel::TICK..=due).contains(&turns.next_due().unwrap()));
    let mut passes = 0;
    while turns.waiting() > 1 {
        let before = turns.hot().count();
        serve_waiting(&mut turns, due);
        assert!(turns.hot().count() <= before + waiting::STEPS);
        passes += 1;
    }
    // Each of them has gone down at most as many levels as there are up to a millisecond.
    assert!(passes <= (3 * 3001_usize).div_ceil(waiting::STEPS), "{passes}");
    serve_waiting(&mut turns, 2 * due - wheel::TICK);
    assert_eq!((turns.hot().count(), turns.waiting()), (3000, 1));
}

#[test]
fn a_ring_that_waits_is_looked_at_when_its_time_has_come_and_not_before() {
    let mut turns = Turns::default();
    (0..3).for_each(|place| turns.add(ring(place), 1));
    let until = |item| [30_000, 10_000, 20_000].get(if let Item::Ring(at) = item { at as usize } else { 9 }).copied();
    assert_eq!(timed_pass(&mut turns, 0, until).len(), 3);
    let mut first = BTreeMap::new();
    for now in (0..40_000).step_by(50) {
        for item in timed_pass(&mut turns, now, until) {
            first.entry(item).or_insert(now);
        }
    }
    for (item, seen) in first {
        let due = until(item).unwrap();
        assert!((due - wheel::TICK..=due + 50).contains(&seen), "{item:?} at {seen}");
    }
    assert_eq!((turns.waiting(), turns.hot().count()), (0, 3));
}

#[test]
fn who_is_stopped_removed_or_moved_does_not_come_back_by_the_wheel() {
    let mut turns = Turns::default();
    (0..4).for_each(|place| turns.add(ring(place), 1));
    timed_pass(&mut turns, 0, |_| Some(1_000_000));
    assert_eq!((turns.waiting(), turns.rings()), (4, 4));
    turns.remove(ring(0));
    turns.warm(ring(1));
    turns.set_owner(ring(2), 7);
    assert_eq!((turns.waiting(), turns.rings(), turns.owners()), (1, 3, vec![1, 7]));
    // The place is another ring's by then.
    turns.add(ring(0), 9);
    assert_eq!(timed_pass(&mut turns, 500_000, |item| (item == ring(0)).then_some(5_000_000)).len(), 3);
    (0..20).for_each(|_| serve_waiting(&mut turns, 1_000_000));
    assert_eq!((turns.waiting(), turns.hot().collect::<BTreeSet<_>>()), (1, [1, 2, 3].map(ring).into()));
}

#[test]
fn when_the_clock_was_changed_all_are_judged_again_some_in_each_pass() {
    let mut turns = Turns::default();
    (0..1000).for_each(|place| turns.add(ring(place), place % 3));
    timed_pass(&mut turns, 0, |_| Some(1_000_000_000));
    while turns.hot().count() > 0 {
        timed_pass(&mut turns, 0, |_| Some(1_000_000_000));
    }
    turns.judge_again();
    let (mut seen, mut passes) = (BTreeSet::new(), 0);
    while seen.len() < 1000 {
        let looked = timed_pass(&mut turns, 1, |_| Some(1_000_000_000));
        assert!(looked.len() <= waiting::STEPS);
        seen.extend(looked);
        passes += 1;
        assert!(passes <= 1000_usize.div_ceil(waiting::STEPS), "{} were judged", seen.len());
    }
    timed_pass(&mut turns, 1, |_| Some(1_000_000_000));
    assert_eq!((turns.waiting(), timed_pass(&mut turns, 1, |_| None)), (1000, vec![]));
}

#[test]
fn what_cannot_wait_keeps_its_turns() {
    let mut turns = Turns::default();
    turns.add(Item::PortQueue(0), 0);
    timed_pass(&mut turns, 0, |_| Some(1_000_000));
    assert_eq!((turns.waiting(), turns.hot().count()), (0, 1));
}

#[test]
fn what_is_removed_is_not_looked_at_and_owners_change() {
    let mut bench = Bench::with(&[(1, 0..10), (2, 10..100)]);
    bench.turns.add(Item::PortQueue(0), 0);
    bench.cool(|item| item < ring(10) || matches!(item, Item::PortQueue(_)));
    (0..100).step_by(2).for_each(|place| bench.turns.remove(ring(place)));
    assert_eq!(bench.turns.rings(), 50);
    bench.turns.set_owner(Item::PortQueue(0), 2);
    bench.turns.set_owner(Item::PortQueue(0), 2);
    assert_eq!((bench.turns.hot().count(), bench.turns.groups.len()), (6, 2));
    let seen = bench.pass(|item| if let Item::Ring(_) = item { (Look::Ended, 1) } else { (Look::Quiet, 4) });
    assert_eq!((seen.len(), bench.turns.hot().count()), (6, 1));
    assert_eq!(bench.turns.rings(), 45);
    bench.turns.kicked_all();
    assert_eq!(bench.scan(), BTreeSet::new());
}

#[test]
fn rings_that_go_to_nowhere_are_never_cold() {
    let mut bench = Bench::with(&[(1, 0..100)]);
    for _ in 0..2 * COLD_AFTER / 100 {
        bench.pass(|_| (Look::Blocked, cost::BLOCKED));
    }
    assert!(bench.flags.is_empty());
}
