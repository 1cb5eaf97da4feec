//! What is tried again, and what is not: a datapath that does not answer, one that refuses, and changes that cannot be yet.

use super::world::{World, flow, ip, output, tcp};
use millrace_agent::switch::{Identity, Switch};
use millrace_agent::wire::action::Action;
use millrace_agent::wire::bundle::BundleControl;
use millrace_agent::wire::error::bundle;
use millrace_agent::wire::flow::{FlowMod, command};
use millrace_agent::wire::group::{Bucket, GroupMod, kind};
use millrace_agent::wire::port::number;
use millrace_agent::wire::{Message, error};
use std::time::Duration;

/// Nobody knows what was done: done again by itself, each could be done twice.
#[test]
fn a_datapath_that_does_not_answer_is_asked_once() {
    let mut world = World::new();
    world.table.silent = true;
    for priority in 0..100 {
        world.send(1, &Message::FlowMod(flow(priority, ip(), vec![output(1)])));
    }
    world.switch.settle(&mut world.table);
    assert_eq!(world.table.tried, 1);
}

/// One rule that the datapath keeps as it is holds no other at a dead port, and follows when it can.
#[test]
fn fail_over_is_tried_again() {
    let mut world = World::new();
    let bucket = |port| Bucket { weight: 0, watch_port: port, watch_group: number::ANY, actions: vec![output(port)] };
    let group = GroupMod { command: 0, kind: kind::FAST_FAILOVER, group: 1, buckets: vec![bucket(1), bucket(2)] };
    assert_eq!(world.refused(&Message::GroupMod(group)), None);
    for priority in [1, 2] {
        assert_eq!(world.refused(&Message::FlowMod(flow(priority, ip(), vec![Action::Group(1)]))), None);
    }
    let at =
        |world: &World, port| world.rules().iter().filter(|rule| rule.ends_with(&format!("output:{port}"))).count();
    world.table.stuck = Some(1);
    world.table.down = vec![0];
    world.switch.look_at_ports(&mut world.table);
    assert_eq!((at(&world, 0), at(&world, 1)), (1, 1), "{:?}", world.rules());
    world.table.stuck = None;
    world.switch.look_at_ports(&mut world.table);
    assert_eq!(at(&world, 1), 1, "it is tried without a pause");
    world.switch.set_now(Duration::from_secs(1));
    world.switch.look_at_ports(&mut world.table);
    assert_eq!(at(&world, 1), 2, "{:?}", world.rules());
    let tried = world.table.tried;
    world.switch.set_now(Duration::from_secs(100));
    world.switch.look_at_ports(&mut world.table);
    assert_eq!(world.table.tried, tried, "it goes on for nothing");
}

/// An entry for a port that is not there now is not lost with the next start.
#[test]
fn what_cannot_be_now_is_kept() {
    let mut world = World::new();
    let there = Message::FlowMod(flow(1, ip(), vec![output(1)]));
    let later = Message::FlowMod(flow(2, ip(), vec![output(9)]));
    let other = Message::FlowMod(flow(3, tcp(80), vec![output(9)]));
    let mut switch = Switch::new(Identity::default());
    switch.look_at_ports(&mut world.table);
    let changes = switch.restore(&[there, later.clone(), other.clone()], false, &mut world.table).unwrap();
    assert_eq!((changes.len(), switch.left_out()), (1, 2));
    let messages: Vec<_> = switch.messages().collect();
    assert_eq!(messages[1..], [later, other.clone()]);
    // Deleted, as it would have been, were it there.
    world.switch = switch;
    world.join(1);
    let deletion = FlowMod { command: command::DELETE_STRICT, ..flow(2, ip(), vec![]) };
    assert_eq!(world.refused(&Message::FlowMod(deletion)), None);
    assert_eq!(world.switch.messages().skip(1).collect::<Vec<_>>(), [other]);
    let deletion = FlowMod { command: command::DELETE, ..flow(0, ip(), vec![]) };
    assert_eq!(world.refused(&Message::FlowMod(deletion)), None);
    assert_eq!(world.switch.messages().count(), 0);
}

/// A bundle of which nothing is heard ends.
#[test]
fn a_bundle_that_is_left_open_is_forgotten() {
    let mut world = World::new();
    let control = |kind| Message::BundleControl(BundleControl { bundle: 5, kind, flags: 1 });
    assert_eq!(world.refused(&control(0)), None);
    world.switch.set_now(Duration::from_secs(9));
    world.switch.look_at_bundles();
    assert_eq!(world.said(), []);
    world.switch.set_now(Duration::from_secs(11));
    world.switch.look_at_bundles();
    let said = world.said();
    assert!(matches!(&said[..], [Message::Error(error)] if error.refusal == bundle::TIMEOUT), "{said:?}");
    assert_eq!(world.refused(&control(4)), Some(error::bundle::BAD_ID));
}
