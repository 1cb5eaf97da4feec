//! Every order of events there is, with pools so small that everything runs out: nothing is stuck, and all buffers come back. What is
//! gone through is the engine itself, not a model of it; wires hold one word of the protocol, so that each end waits for the other.

use crate::world::{Move, World};
use millrace_message::Scheme;
use millrace_message::control::Tag;
use millrace_message::engine::{Limits, Outcome, Way};
use std::collections::HashSet;

/// More states than that are too many for a test.
const MOST: usize = 400_000;

fn limits(smbs: u16, rmbs: u16, early_request: bool) -> Limits {
    Limits { mtu: 1024, smbs, rmbs, slots: 2, credits: 1, eager: 0, early_request, patience: 1000 }
}

/// Goes through all that can come of `world`; `kill`: an end that may die at any point. What is left when nothing can happen any more is given
/// to `end`. How many states there are.
fn explore(world: World, kill: Option<usize>, end: impl Fn(&World)) -> usize {
    let mut seen = HashSet::from([world.state()]);
    let mut open = vec![world];
    while let Some(world) = open.pop() {
        let moves: Vec<Move> = world.moves();
        if moves.is_empty() {
            end(&world);
        }
        let mut nexts: Vec<World> = Vec::with_capacity(moves.len() + 1);
        for next in moves {
            let mut after = world.clone();
            after.apply(next);
            nexts.push(after);
        }
        if let Some(victim) = kill.filter(|victim| !world.hosts[*victim].is_dead) {
            let mut after = world;
            after.kill(victim);
            nexts.push(after);
        }
        for after in nexts {
            if seen.insert(after.state()) {
                open.push(after);
            }
        }
        assert!(seen.len() < MOST, "too many states");
    }
    seen.len()
}

/// All that live have been told of all they have asked for, and have all their buffers.
fn is_over(world: &World) {
    for (end, host) in world.hosts.iter().enumerate().filter(|(_, host)| !host.is_dead) {
        assert_eq!(host.engine.open_requests(), 0, "{end} waits for ever: {:#?}", host.engine);
        assert_eq!(host.engine.in_use(), (0, 0), "buffers are missing at {end}");
    }
}

fn all_came(world: &World) {
    is_over(world);
    for told in world.hosts.iter().flat_map(|host| &host.told) {
        match told.outcome {
            Outcome::Sent => {}
            Outcome::Received { len, .. } => assert_eq!(len, 1500),
            other => panic!("{other:?}"),
        }
    }
}

/// Both send to each other two messages of two parts.
fn two(limits: Limits, way: Way, crossed: bool) -> World {
    let mut world = World::new(&[limits; 2], |_, _| way, 1);
    for end in 0..2 {
        for tag in 0..2 {
            // Matched in the other order: the second message is granted buffers first.
            let tag = if crossed { 1 - tag } else { tag };
            world.receive(end, Some(1 - end), Tag(tag), u64::MAX, 2000);
        }
    }
    for tag in 0..2 {
        world.send(0, 1, Tag(tag), 1500, Scheme::OneCopy);
    }
    world.send(1, 0, Tag(0), 1500, Scheme::OneCopy);
    world.send(1, 0, Tag(1), 1500, Scheme::OneCopy);
    world
}

#[test]
fn two_ends_with_a_buffer_of_each_kind_are_never_stuck() {
    for early in [false, true] {
        let count = explore(two(limits(1, 1, early), Way::Staged, true), None, all_came);
        assert!(count > 1000, "{count} states are not all there are");
        println!("{count} states");
        explore(two(limits(1, 1, early), Way::Mapped, false), None, all_came);
    }
}

/// Each sends to the next one, and none has more than two buffers to send and one to receive: a circle, if there could be one.
#[test]
fn three_ends_in_a_circle_are_never_stuck() {
    for (smbs, early) in [(1, true), (2, true), (2, false)] {
        let mut world = World::new(&[limits(smbs, 1, early); 3], |_, _| Way::Staged, 1);
        for end in 0..3 {
            world.receive(end, None, Tag(0), 0, 2000);
            world.send(end, (end + 1) % 3, Tag(0), 1500, Scheme::OneCopy);
        }
        world.is_prompt = true;
        println!("{} states", explore(world, None, all_came));
    }
}

/// Each sends to both others, with a buffer of each kind: whose send buffer is full for the one waits for the other, if there is none that may
/// not wait (seen to be stuck with `Limits::hopes` of all send buffers). These are too many states to go through all, so orders are
/// drawn.
#[test]
fn three_ends_who_send_to_all_are_never_stuck() {
    let mut seed = 1_u64;
    for round in 0..3000 {
        let mut world = World::new(&[limits(1, 1, round % 2 == 0); 3], |_, _| Way::Staged, 1);
        for end in 0..3 {
            for step in 1..3 {
                world.receive(end, None, Tag(0), 0, 1500);
                world.send(end, (end + step) % 3, Tag(0), 1000, Scheme::OneCopy);
            }
        }
        loop {
            let moves = world.moves();
            if moves.is_empty() {
                break;
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            world.apply(moves[(seed >> 33) as usize % moves.len()]);
        }
        is_over(&world);
    }
}

/// Whoever dies, and whenever: the other one is told, and has all its buffers.
#[test]
fn whoever_dies_at_any_point_leaves_no_buffer_behind() {
    for victim in 0..2 {
        for scheme in [Scheme::OneCopy, Scheme::ZeroCopy] {
            let mut world = World::new(&[limits(2, 2, true); 2], |_, _| Way::Staged, 1);
            world.receive(1, Some(0), Tag(0), u64::MAX, 2000);
            world.receive(0, Some(1), Tag(0), u64::MAX, 2000);
            world.send(0, 1, Tag(0), 1500, scheme);
            world.send(1, 0, Tag(0), 1500, scheme);
            explore(world, Some(victim), is_over);
        }
    }
}

/// A third one does not notice that another one has died.
#[test]
fn a_death_is_nothing_to_others() {
    let mut world = World::new(&[limits(1, 1, true); 3], |_, _| Way::Staged, 1);
    world.receive(1, Some(0), Tag(0), u64::MAX, 2000);
    world.receive(1, Some(2), Tag(0), u64::MAX, 2000);
    world.send(0, 1, Tag(0), 1500, Scheme::OneCopy);
    world.send(2, 1, Tag(0), 1500, Scheme::OneCopy);
    explore(world, Some(2), |world| {
        is_over(world);
        assert!(matches!(world.hosts[0].told[0].outcome, Outcome::Sent));
    });
}
