//! Random programs: what was sent comes, once, in order, to whom a naive model says; whatever the order of events, whoever dies, and
//! however few buffers there are.

use crate::world::{Expected, World};
use millrace_message::Scheme;
use millrace_message::control::Tag;
use millrace_message::engine::{Limits, Outcome, Way};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

#[derive(Clone, Debug)]
enum Turn {
    Send { from: usize, to: usize, tag: u64, len: usize, scheme: Scheme },
    Receive { end: usize, from: Option<usize>, tag: u64, mask: u64, capacity: usize },
    Hold { end: usize, from: Option<usize>, tag: u64, mask: u64 },
    Cancel { end: usize, which: usize },
    Run { steps: usize },
    Fail { steps: usize },
    Tick { end: usize },
}

#[derive(Clone, Debug)]
struct Program {
    limits: Vec<Limits>,
    mapped: u8,
    room: usize,
    turns: Vec<Turn>,
    /// After which turn which end dies.
    killed: Option<(usize, usize)>,
    seed: u64,
}

fn limits() -> impl Strategy<Value = Limits> {
    (10u32..13, 1u16..4, 1u16..4, 1u8..4, 1u16..5, prop_oneof![Just(0u16), Just(40), Just(1328)], any::<bool>())
        .prop_map(|(mtu, smbs, rmbs, slots, credits, eager, early_request)| Limits {
            mtu: 1 << mtu,
            smbs,
            rmbs,
            slots,
            credits,
            eager,
            early_request,
            patience: 1000,
        })
}

fn turn(ends: usize) -> impl Strategy<Value = Turn> {
    let len = prop_oneof![Just(0usize), 1usize..100, 1000usize..1400, 4000usize..20_000];
    let scheme = prop_oneof![Just(Scheme::Eager), Just(Scheme::OneCopy), Just(Scheme::ZeroCopy)];
    let capacity = prop_oneof![4 => Just(20_000usize), 1 => 0usize..2000];
    let mask = prop_oneof![2 => Just(u64::MAX), 1 => Just(0u64), 1 => Just(1u64)];
    prop_oneof![
        6 => (0..ends, 1..ends, 0u64..3, len, scheme).prop_map(move |(from, step, tag, len, scheme)| Turn::Send { from, to: (from + step) % ends, tag, len, scheme }),
        6 => (0..ends, prop::option::of(1..ends), 0u64..3, mask, capacity).prop_map(move |(end, from, tag, mask, capacity)| Turn::Receive { end, from: from.map(|step| (end + step) % ends), tag, mask, capacity }),
        2 => (0..ends, prop::option::of(1..ends), 0u64..3, Just(u64::MAX)).prop_map(move |(end, from, tag, mask)| Turn::Hold { end, from: from.map(|step| (end + step) % ends), tag, mask }),
        1 => (0..ends, 0usize..100).prop_map(|(end, which)| Turn::Cancel { end, which }),
        6 => (1usize..60).prop_map(|steps| Turn::Run { steps }),
        1 => (1usize..3).prop_map(|steps| Turn::Fail { steps }),
        1 => (0..ends).prop_map(|end| Turn::Tick { end }),
    ]
}

fn program() -> impl Strategy<Value = Program> {
    (2usize..5).prop_flat_map(|ends| {
        (
            prop::collection::vec(limits(), ends),
            any::<u8>(),
            1usize..4,
            prop::collection::vec(turn(ends), 5..60),
            prop::option::weighted(0.4, (0usize..60, 0..ends)),
            any::<u64>(),
        )
            .prop_map(|(limits, mapped, room, turns, killed, seed)| Program {
                limits,
                mapped,
                room,
                turns,
                killed,
                seed,
            })
    })
}

/// Does so many moves in an order that follows from `seed`. Whether there were so many.
fn run(world: &mut World, seed: &mut u64, steps: usize) -> bool {
    for _ in 0..steps {
        let moves = world.moves();
        if moves.is_empty() {
            return false;
        }
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        world.apply(moves[(*seed >> 33) as usize % moves.len()]);
    }
    true
}

fn quiesce(world: &mut World, seed: &mut u64) {
    assert!(!run(world, seed, 1_000_000), "it goes on for ever");
}

fn check(program: &Program) -> Result<(), TestCaseError> {
    let way = |one: usize, other: usize| {
        if program.mapped >> ((one * 3 + other) % 8) & 1 != 0 { Way::Mapped } else { Way::Staged }
    };
    let mut world = World::new(&program.limits, way, program.room);
    let (mut seed, mut failed) = (program.seed, false);
    for (at, turn) in program.turns.iter().enumerate() {
        if let Some((_, end)) = program.killed.filter(|killed| killed.0 == at) {
            world.kill(end);
        }
        let is_dead = |world: &World, end: usize| world.hosts[end].is_dead;
        match *turn {
            Turn::Send { from, to, tag, len, scheme } if !is_dead(&world, from) => {
                let sent = world.send(from, to, Tag(tag), len, scheme);
                prop_assert_eq!(sent.is_some(), !is_dead(&world, to));
            }
            Turn::Receive { end, from, tag, mask, capacity } if !is_dead(&world, end) => {
                world.receive(end, from, Tag(tag), mask, capacity);
            }
            Turn::Hold { end, from, tag, mask } if !is_dead(&world, end) => {
                world.receive_held(end, from, Tag(tag), mask, 20_000);
            }
            Turn::Cancel { end, which } if !is_dead(&world, end) => {
                let open = world.open_requests(end);
                if !open.is_empty() {
                    world.cancel(end, open[which % open.len()]);
                }
            }
            Turn::Run { steps } => {
                run(&mut world, &mut seed, steps);
            }
            Turn::Fail { steps } => {
                world.fails = true;
                failed = true;
                run(&mut world, &mut seed, steps);
                world.fails = false;
            }
            Turn::Tick { end } if !is_dead(&world, end) => world.hosts[end].engine.tick(),
            _ => {}
        }
    }
    quiesce(&mut world, &mut seed);
    // Everything that was sent is wanted now; nothing may be stuck.
    let ends = world.hosts.len();
    for end in (0..ends).filter(|end| !world.hosts[*end].is_dead).collect::<Vec<_>>() {
        for _ in 0..world.sent.len() {
            world.receive(end, None, Tag(0), 0, 20_000);
        }
    }
    quiesce(&mut world, &mut seed);
    let live: Vec<usize> = (0..ends).filter(|end| !world.hosts[*end].is_dead).collect();
    for &end in &live {
        for request in world.open_requests(end) {
            world.cancel(end, request);
        }
    }
    quiesce(&mut world, &mut seed);
    for &end in &live {
        let host = &world.hosts[end];
        prop_assert_eq!(host.engine.in_use(), (0, 0), "buffers are missing at {}", end);
        prop_assert_eq!(host.engine.open_requests(), 0, "messages are stuck at {}", end);
        for told in &host.told {
            let has_died = told.is_send && world.hosts[world.sent[told.number].to].is_dead;
            match told.outcome {
                Outcome::Received { pair, tag, len } | Outcome::Held { pair, tag, len, .. } => {
                    let Some(Expected::Bytes(came)) = world.expected.get(&told.number) else {
                        return Err(TestCaseError::fail(format!("{told:?} got what the model gave nobody")));
                    };
                    let sent = &world.sent[*came];
                    prop_assert_eq!((host.pairs[&sent.from], sent.tag, sent.bytes.len()), (pair, tag, len as usize));
                    prop_assert!(told.bytes[..len as usize] == sent.bytes, "the bytes are others");
                }
                Outcome::TooLong { len } if !told.is_send => {
                    let Some(Expected::TooLong(came)) = world.expected.get(&told.number) else {
                        return Err(TestCaseError::fail("too long for whom?"));
                    };
                    prop_assert_eq!(world.sent[*came].bytes.len() as u64, len);
                }
                Outcome::Failed => prop_assert!(failed),
                Outcome::Lost => prop_assert!(program.killed.is_some()),
                Outcome::Sent => prop_assert!(told.is_send),
                Outcome::TooLong { .. } => prop_assert!(told.is_send),
                Outcome::Cancelled => prop_assert!(!has_died || told.is_send),
            }
        }
    }
    // What the model gave to somebody was received by him, unless somebody died or failed.
    if program.killed.is_none() && !failed {
        let received = world.hosts.iter().flat_map(|host| &host.told);
        let received = received.filter(|told| !told.is_send && !matches!(told.outcome, Outcome::Cancelled)).count();
        prop_assert_eq!(received, world.expected.len());
    }
    Ok(())
}

/// A thousand programs, always the same ones.
#[test]
fn a_thousand_programs_do_what_the_model_says() {
    let config = Config { cases: 1000, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    runner.run(&program(), |program| check(&program)).unwrap();
}

proptest! {
    #![proptest_config(Config::with_cases(200))]

    /// And some that nobody has seen before.
    #[test]
    fn other_programs_do_too(program in program()) {
        check(&program)?;
    }
}
