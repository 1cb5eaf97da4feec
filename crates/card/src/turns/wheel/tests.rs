use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    /// A key gets a time so many ns from now.
    Insert(u32, u64),
    /// One whose time has gone by.
    Late(u32),
    Remove(u32),
    /// So many ns go by, and the wheel may take so many steps.
    Pass(u64, usize),
    /// Everything is taken out, so many keys at once.
    Sweep(u32),
}

/// Times of every size: as far as a wheel of nanoseconds reaches.
fn ahead() -> impl Strategy<Value = u64> {
    prop_oneof![0..2 * TICK, 0..200 * TICK, 0..10_000_000_u64, 0..2_000_000_000_u64, 0..1_u64 << 60]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..40_u32, ahead()).prop_map(|(key, ns)| Step::Insert(key, ns)),
        1 => (0..40_u32).prop_map(Step::Late),
        2 => (0..50_u32).prop_map(Step::Remove),
        6 => (ahead(), 0..12_usize).prop_map(|(ns, most)| Step::Pass(ns, most)),
        1 => (1..60_u32).prop_map(Step::Sweep),
    ]
}

/// The same as a sorted list, which is looked through from the beginning.
#[derive(Default)]
struct Naive(BTreeMap<u32, u64>);

impl Naive {
    fn take_due(&mut self, now: u64) -> BTreeMap<u32, u64> {
        let due = self.0.iter().filter(|&(_, &at)| at / TICK <= now / TICK).map(|(&key, &at)| (key, at)).collect();
        self.0.retain(|_, at| *at / TICK > now / TICK);
        due
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_wheel_is_a_sorted_list(steps in proptest::collection::vec(step(), 1..120)) {
        let (mut wheel, mut naive, mut now, mut has_removed) = (Wheel::default(), Naive::default(), 3_600_000_000_000, false);
        for step in steps {
            match step {
                Step::Insert(key, ahead) => {
                    has_removed |= naive.0.insert(key, now + ahead).is_some();
                    wheel.insert(key, now + ahead);
                }
                Step::Late(key) => {
                    has_removed |= naive.0.insert(key, now - 5 * TICK).is_some();
                    wheel.insert(key, now - 5 * TICK);
                }
                Step::Remove(key) => {
                    has_removed = true;
                    prop_assert_eq!(wheel.remove(key), naive.0.remove(&key).is_some());
                }
                Step::Pass(ns, most) => {
                    now += ns;
                    let mut some = Vec::new();
                    wheel.expire(now, most, |key| some.push(key));
                    prop_assert!(some.len() <= most, "a step for each at least");
                    let mut expired = some;
                    let mut calls = 0;
                    while wheel.is_due(now) {
                        let before = expired.len();
                        wheel.expire(now, 7, |key| expired.push(key));
                        prop_assert!(expired.len() - before <= 7);
                        calls += 1;
                        prop_assert!(calls <= 1 + 40 * LEVELS, "each key goes down every level once");
                    }
                    let wanted = naive.take_due(now);
                    // In the order of their ticks, but for those that were late when they came.
                    let ticks: Vec<u64> = expired.iter().filter_map(|key| wanted.get(key)).map(|at| at / TICK).collect();
                    prop_assert_eq!(ticks.len(), expired.len(), "nothing is early");
                    expired.sort_unstable();
                    prop_assert_eq!(expired, wanted.keys().copied().collect::<Vec<_>>(), "and nothing is left");
                }
                Step::Sweep(most) => {
                    let (mut swept, mut from) = (Vec::new(), Some(0));
                    while let Some(at) = from {
                        from = wheel.sweep(at, most, |key| swept.push(key));
                    }
                    prop_assert_eq!(swept, core::mem::take(&mut naive.0).into_keys().collect::<Vec<_>>());
                    has_removed = false;
                }
            }
            prop_assert_eq!(wheel.len(), naive.0.len());
            let earliest = naive.0.values().map(|at| at / TICK * TICK).min();
            match (wheel.earliest(), earliest) {
                (Some(early), Some(wanted)) => {
                    prop_assert!(early <= wanted.max(wheel.reached * TICK));
                    prop_assert!(has_removed || early >= wanted, "{early} instead of {wanted}");
                }
                (found, wanted) => prop_assert_eq!(found, wanted),
            }
        }
    }

    #[test]
    fn keys_come_in_the_order_of_their_ticks(ahead in proptest::collection::vec(ahead(), 1..200), most in 1..50_usize) {
        let mut wheel = Wheel::default();
        ahead.iter().enumerate().for_each(|(key, &at)| wheel.insert(key as u32, at));
        let mut came = Vec::new();
        while !wheel.is_empty() {
            wheel.expire(u64::MAX, most, |key| came.push(ahead[key as usize] / TICK));
        }
        prop_assert!(came.is_sorted(), "{came:?}");
    }
}

#[test]
fn those_of_one_tick_come_in_the_order_in_which_they_were_put_in() {
    let mut wheel = Wheel::default();
    (0..100).rev().for_each(|key| wheel.insert(key, 5_000_000));
    let mut came = Vec::new();
    wheel.expire(5_000_000, 1000, |key| came.push(key));
    assert_eq!(came, (0..100).rev().collect::<Vec<_>>());
}

#[test]
fn a_pass_takes_no_more_steps_than_it_may_however_many_are_due() {
    let mut wheel = Wheel::default();
    (0..4096).for_each(|key| wheel.insert(key, 1_000_000_000));
    let (mut calls, mut came, mut most_at_once) = (0, 0, 0);
    while !wheel.is_empty() {
        let mut now = 0;
        wheel.expire(1_000_000_000, 32, |_| now += 1);
        (calls, came, most_at_once) = (calls + 1, came + now, most_at_once.max(now));
    }
    assert_eq!((came, most_at_once), (4096, 32));
    // Down from level 3, and out.
    assert_eq!(calls, 4 * 4096 / 32);
}

#[test]
fn the_times_of_a_microsecond_apart_are_apart_and_never_late() {
    let mut wheel = Wheel::default();
    for (key, at) in [(0, 10_000), (1, 11_500), (2, 13_000)] {
        wheel.insert(key, at);
    }
    let mut came = Vec::new();
    for now in (0..20_000).step_by(100) {
        wheel.expire(now, 100, |key| came.push((key, now)));
    }
    let times = [10_000, 11_500, 13_000];
    assert_eq!(came.len(), 3);
    for (key, now) in came {
        let at = times[key as usize];
        assert!(now <= at + 100 && now + TICK > at, "{key} at {now} instead of {at}");
    }
}

#[test]
fn the_end_of_time_has_a_slot() {
    let mut wheel = Wheel::default();
    wheel.insert(3, u64::MAX);
    wheel.insert(4, 1);
    let mut came = Vec::new();
    wheel.expire(u64::MAX - TICK, 100, |key| came.push(key));
    assert_eq!(came, [4]);
    wheel.expire(u64::MAX, 100, |key| came.push(key));
    assert_eq!((came, wheel.is_empty(), wheel.earliest()), (vec![4, 3], true, None));
}
