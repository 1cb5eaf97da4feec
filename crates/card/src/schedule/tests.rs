use super::*;
use millrace_abi::schedule::{Gate, QueueClass};

const GIGABIT: u64 = 1_000_000_000;
/// ns of a frame of 60 bytes at 1 Gbit/s.
const SHORT: u64 = 84 * 8;

fn schedule(base: u64, gates: &[(u8, u64)]) -> Schedule {
    let gates = gates.iter().map(|&(open, lasts)| Gate { open, lasts }).collect();
    Schedule {
        base,
        speed: GIGABIT,
        always: 0b1000_0000,
        gates,
        queues: vec![QueueClass { queue: 1, class: 1, rate: 0 }],
    }
}

fn alone(said: Schedule) -> PortSchedule {
    let base = said.base;
    PortSchedule::new(said, base, None)
}

/// Of a class that is the same in all schedules.
fn gate(port: &PortSchedule, class: u8, lasts: u64, now: u64) -> Option<u64> {
    port.gate([(class, lasts); 2], now)
}

fn leave(port: &PortSchedule, class: u8, len: usize, now: u64) -> Leave {
    port.leave([Terms { class, rate: 0 }; 2], len, now)
}

#[test]
fn a_frame_leaves_only_while_its_gate_is_open_and_only_if_it_fits() {
    // Class 0: 0 to 3 us; class 1: 3 to 10 us.
    let port = alone(schedule(1_000_000, &[(1, 3000), (2, 7000)]));
    let at = |class, now: u64| gate(&port, class, SHORT, 1_000_000 + now).map(|at| at - 1_000_000);
    assert_eq!((at(0, 0), at(1, 0)), (Some(0), Some(3000)));
    assert_eq!(at(0, 3000 - SHORT), Some(3000 - SHORT), "just fits");
    assert_eq!(at(0, 3001 - SHORT), Some(10_000), "guard: it waits for the next cycle");
    assert_eq!((at(0, 3000), at(0, 9999)), (Some(10_000), Some(10_000)));
    assert_eq!((at(2, 0), at(7, 2999)), (None, Some(2999)), "never open; never closed");
    assert_eq!(gate(&port, 0, 3001, 1_000_000), None, "longer than its window");
}

#[test]
fn gates_that_follow_each_other_are_one_window_also_over_the_end_of_a_cycle() {
    // Class 0 is open from 8 us of a cycle to 3 us of the next.
    let port = alone(schedule(0, &[(1, 1000), (3, 2000), (2, 5000), (1, 2000)]));
    let at = |now: u64| gate(&port, 0, 1500, 100_000 + now).map(|at| at - 100_000);
    assert_eq!((at(9000), at(9999), at(10_100)), (Some(9000), Some(9999), Some(10_100)), "over the end");
    assert_eq!((at(1500), at(1501), at(5000)), (Some(1500), Some(8000), Some(8000)));
    assert_eq!(gate(&alone(schedule(0, &[(1, 1000), (1, 2000)])), 0, 9000, 7), Some(7), "always");
}

#[test]
fn a_new_schedule_counts_from_a_cycle_on_and_the_old_one_until_then() {
    let old = Arc::new(alone(schedule(0, &[(1, 1000), (2, 1000)])));
    // Base in the past: the next cycle of the new one that begins at 50,300 is at 52,100.
    let new = PortSchedule::new(schedule(100, &[(2, 1000), (1, 3000)]), 50_300, Some(&old));
    assert_eq!(new.from, 52_100);
    let at = |class, now| gate(&new, class, SHORT, now);
    assert_eq!(at(0, 50_300), Some(50_300), "the old one counts: class 0 until 51,000");
    assert_eq!(at(0, 50_400), Some(53_100), "not over the change");
    assert_eq!((at(1, 51_000), at(1, 51_900)), (Some(51_000), Some(52_100)));
    // In the future: exactly then.
    let late = PortSchedule::new(schedule(60_000, &[(2, 1000), (1, 3000)]), 50_300, Some(&old));
    assert_eq!((late.from, gate(&late, 1, SHORT, 59_999)), (60_000, Some(60_000)));
    // One that does not count yet is forgotten by the next.
    let next = PortSchedule::new(schedule(70_000, &[(1, 2000)]), 51_000, Some(&Arc::new(late)));
    assert_eq!(gate(&next, 1, SHORT, 61_000), Some(61_000), "the old one, and not that of 60,000");
    assert_eq!(gate(&next, 0, SHORT, 61_000), Some(62_000));
}

#[test]
fn what_a_schedule_says_of_classes_and_speed_counts_when_its_gates_do() {
    let said = |base, speed, class| Schedule {
        speed,
        queues: vec![QueueClass { queue: 1, class, rate: 0 }],
        ..schedule(base, &[(1, 10_000), (2, 10_000)])
    };
    let old = Arc::new(alone(said(0, GIGABIT, 0)));
    let new = PortSchedule::new(said(100_000, GIGABIT / 10, 1), 40_000, Some(&old));
    let terms = new.terms(1);
    assert_eq!(terms.map(|terms| terms.class), [0, 1]);
    assert_eq!(new.leave(terms, 60, 41_000), Leave::Now, "class 0, as it was");
    assert_eq!(new.leave(terms, 60, 41_000 + SHORT - 1), Leave::Wire(41_000 + SHORT), "as fast as it was");
    assert_eq!(new.leave(terms, 60, 55_000), Leave::At(60_000), "class 1 is none of the old one's");
    // The window of class 0 ends when the new one counts, where class 1 begins at 110 us.
    assert_eq!(new.leave(terms, 60, 90_000), Leave::At(110_000));
    assert_eq!(new.leave(terms, 60, 112_000), Leave::Now);
    assert_eq!(new.leave(terms, 60, 112_001), Leave::Wire(112_000 + 10 * SHORT));
    new.give_back(60, 112_000);
    assert_eq!(new.leave(terms, 60, 112_001), Leave::Now);
    // Where there was none before, nothing counts: no wire, no gate.
    let first = PortSchedule::new(said(100_000, GIGABIT / 10, 1), 40_000, None);
    assert_eq!([41_000, 41_001].map(|now| first.leave(first.terms(1), 60, now)), [Leave::Now; 2]);
    assert_eq!(first.leave(first.terms(1), 60, 99_000), Leave::At(110_000), "it would reach into the first gate");
}

#[test]
fn the_wire_carries_one_frame_at_a_time() {
    let port = alone(schedule(0, &[]));
    assert_eq!(leave(&port, 0, 60, 5000), Leave::Now);
    assert_eq!(leave(&port, 7, 60, 5000 + SHORT - 1), Leave::Wire(5000 + SHORT));
    assert_eq!(leave(&port, 7, 60, 5000 + SHORT), Leave::Now);
    port.give_back(60, 5000 + SHORT);
    assert_eq!(leave(&port, 0, 1514, 5000 + SHORT), Leave::Now);
    // A clock that is set back takes the wire from nobody.
    port.wire.store(u64::MAX / 2, Ordering::Relaxed);
    assert_eq!(leave(&port, 0, 60, 9000), Leave::Now);
}

/// By going through the cycle ns by ns.
fn by_steps(said: &Schedule, class: u8, lasts: u64, now: u64) -> Option<u64> {
    let cycle = said.cycle();
    let is_open = |time: u64| {
        let mut at = (i128::from(time) - i128::from(said.base)).rem_euclid(i128::from(cycle)) as u64;
        let gate = said.gates.iter().find(|gate| {
            let is_it = at < gate.lasts;
            at = at.wrapping_sub(gate.lasts);
            is_it
        });
        gate.is_some_and(|gate| gate.open >> class & 1 != 0)
    };
    let mut run = 0;
    for time in now..now + 3 * cycle + 1400 {
        run = if is_open(time) { run + 1 } else { 0 };
        if run == lasts {
            return Some(time + 1 - lasts);
        }
    }
    None
}

#[test]
fn any_schedule_agrees_with_one_that_is_gone_through_step_by_step() {
    let mut random = 0x5eed_u64;
    let mut below = |end: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % end
    };
    for round in 0..300 {
        // Now and then many, of which few are long.
        let (count, longest) = if round % 30 == 0 { (40 + below(60), 40 + below(300)) } else { (1 + below(6), 400) };
        let least = 100 / (1 + count / 20);
        let mut gate = |_| {
            let most = if below(8) == 0 { longest } else { longest / 8 };
            (below(4) as u8, least + below(most))
        };
        let gates: Vec<(u8, u64)> = (0..count).map(&mut gate).collect();
        let said = schedule(below(5000), &gates);
        let port = Windows::new(&said);
        for _ in 0..20 {
            let (class, lasts, now) = (below(2) as u8, 1 + below(700), 1000 + below(9000));
            let wanted = by_steps(&said, class, lasts, now);
            // Longer than a cycle, nothing is looked for: the gate is always open, or never so long.
            assert_eq!(port.earliest(class, lasts, now), wanted, "{said:?} {class} {lasts} {now}");
        }
    }
}
