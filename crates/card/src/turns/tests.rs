//! A worker without lanes: what rings have to do, the test says.

use super::group::COLD_AFTER;
use super::*;
use millrace_dma::{Ordering, Region, Word32};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Turns, and the flags of rings that got cold.
#[derive(Default)]
struct Bench {
    turns: Turns,
    flags: BTreeMap<Item, Word32>,
}

fn ring(place: u32) -> Item {
    Item::Ring(0, place)
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
                    let Item::Ring(_, place) = item else { panic!("{item:?} is cold") };
                    self.turns.cool(group, ColdRing { item, kick: Some(place as i32 / 3), flag, launch: None });
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
            self.turns.scan();
            steps += 1;
            assert!(steps < 10_000, "a look through that never ends");
        }
        self.turns.hot().filter(|item| !before.contains(item)).collect()
    }
}

const BURST: (Look, u32) = (Look::Busy, 1 + 64 + 64);

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
    let (long, short) = ((Look::Busy, cost::of(64, 64 * 1500)), (Look::Busy, cost::of(64, 64 * 64)));
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
        cold.add(9, ColdRing { item, kick: Some(1), flag, launch: None });
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
        cold.add(kick as Owner, ColdRing { item: ring(place), kick: Some(kick), flag: flag.clone(), launch: None });
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
fn add_cold(cold: &mut Cold, owner: Owner, place: u32, kick: i32, launch: Option<Instant>) -> Word32 {
    let flag = Region::heap(4).window().word32(0).unwrap();
    flag.store(1, Ordering::Relaxed);
    cold.add(owner, ColdRing { item: ring(place), kick: Some(kick), flag: flag.clone(), launch });
    flag
}

#[test]
fn rings_that_are_taken_out_meanwhile_neither_hide_another_nor_begin_the_look_through_anew() {
    let mut cold = Cold::default();
    let flags: Vec<Word32> = (0..3000).map(|place| add_cold(&mut cold, 1, place, 1, None)).collect();
    flags[2999].store(0, Ordering::Relaxed);
    cold.kicked(Some(1));
    let (mut found, mut steps) = (Vec::new(), 0u32);
    while found.is_empty() {
        // One that was looked at, the one that was looked at last, one that will be, and one that is not there.
        let seen = steps * 64;
        for gone in [seen / 2, seen.saturating_sub(1), seen + 80, 5000] {
            cold.remove_if(|item| item == ring(gone));
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
    let flags = [1, 3].map(|owner| add_cold(&mut cold, owner, owner, owner as i32, None));
    let last = (0..128).map(|kick| add_cold(&mut cold, 2, 100 + kick, 1000 + kick as i32, None)).last().unwrap();
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

#[test]
fn of_many_rings_that_are_due_at_once_some_get_hot_in_every_pass() {
    let (mut turns, now) = (Turns::default(), Instant::now());
    for place in 0..3000 {
        add_cold(&mut turns.cold, place % 2, place, place as i32 / 2, Some(now));
    }
    add_cold(&mut turns.cold, 0, 3000, 0, Some(now + Duration::from_secs(1)));
    turns.launch(now);
    let mut passes = 0;
    while turns.hot().count() < 3000 {
        let before = turns.hot().count();
        assert!(turns.serve_cold(), "the others do not wait for the next news");
        assert!(turns.hot().count() <= before + LAUNCHES);
        passes += 1;
    }
    assert_eq!(passes, 3000_usize.div_ceil(LAUNCHES));
    // The one that is not due yet, and no more to do until there are news.
    assert!(!turns.serve_cold() && turns.hot().count() == 3000 && turns.launching.is_none());
    assert_eq!(turns.next_launch(), Some(now + Duration::from_secs(1)));
}

#[test]
fn cold_rings_are_hot_when_their_launch_time_has_come() {
    let (mut turns, now) = (Turns::default(), Instant::now());
    let due = |millis| now + Duration::from_millis(millis);
    for (place, millis) in [(0, 30), (1, 10), (2, 20)] {
        turns.add(ring(place), 1);
        assert!(turns.begin(0) && turns.next(0).is_some());
        assert!(!turns.note(0, Look::Quiet, 1));
        let flag = Region::heap(4).window().word32(0).unwrap();
        turns.cool(0, ColdRing { item: ring(place), kick: None, flag, launch: Some(due(millis)) });
        assert_eq!(turns.end(0), 0);
    }
    assert_eq!(turns.next_launch(), Some(due(10)));
    turns.launch(due(9));
    assert!(!turns.serve_cold());
    assert_eq!(turns.hot().count(), 0);
    turns.launch(due(20));
    assert!(turns.serve_cold());
    assert_eq!(turns.hot().collect::<BTreeSet<_>>(), BTreeSet::from([ring(1), ring(2)]));
    assert_eq!(turns.next_launch(), Some(due(30)));
    // One that was rung before its time does not come again.
    turns.warm(ring(0));
    assert_eq!((turns.next_launch(), turns.hot().count(), turns.rings()), (None, 3, 3));
}

#[test]
fn what_is_removed_is_not_looked_at_and_owners_change() {
    let mut bench = Bench::with(&[(1, 0..10), (2, 10..100)]);
    bench.turns.add(Item::PortQueue(0, 0), 0);
    bench.cool(|item| item < ring(10) || matches!(item, Item::PortQueue(..)));
    bench.turns.remove_if(|item| matches!(item, Item::Ring(_, place) if place % 2 == 0));
    assert_eq!(bench.turns.rings(), 50);
    bench.turns.set_owner(Item::PortQueue(0, 0), 2);
    bench.turns.set_owner(Item::PortQueue(0, 0), 2);
    assert_eq!((bench.turns.hot().count(), bench.turns.groups.len()), (6, 2));
    let seen = bench.pass(|item| if let Item::Ring(..) = item { (Look::Ended, 1) } else { (Look::Quiet, 4) });
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
