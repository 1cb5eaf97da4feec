//! Entries that go and come: who is told of what, and which rule has which counters.

use super::world::{World, flow, ip, output, tcp};
use millrace_agent::switch::datapath::{Change, Counts, FlowKey, Gone, Why};
use millrace_agent::wire::Message;
use millrace_agent::wire::flow::{FlowMod, FlowRemoved, command, flag, removed};
use millrace_agent::wire::port::number;

fn key(world: &World, priority: u16) -> FlowKey {
    *world.table.rules.keys().find(|key| key.priority == priority).unwrap()
}

fn told(world: &mut World) -> Vec<FlowRemoved> {
    let said = world.said().into_iter();
    said.filter_map(|said| if let Message::FlowRemoved(removed) = said { Some(removed) } else { None }).collect()
}

fn gone(key: FlowKey, version: u64, why: Why) -> Gone {
    Gone { key, version, why, counts: Counts { packets: version, ..Counts::default() } }
}

fn deletion(priority: u16) -> Message {
    Message::FlowMod(FlowMod { command: command::DELETE_STRICT, ..flow(priority, ip(), vec![]) })
}

/// In one transaction the datapath exchanges one rule for the other, and tells nothing of it.
#[test]
fn one_that_has_a_successor_at_once_is_told_of() {
    let mut world = World::new();
    world.send(1, &Message::FlowMod(flow(1, ip(), vec![output(1)])));
    world.said();
    let key = key(&world, 1);
    let commits = world.table.commits;
    world.send(1, &deletion(1));
    world.send(1, &Message::FlowMod(flow(1, ip(), vec![output(2)])));
    let told_at_once = told(&mut world);
    assert_eq!(world.table.commits, commits + 1, "two transactions");
    let had: Vec<_> = told_at_once.iter().map(|one| (one.reason, one.packets, one.bytes, one.lifetime.sec)).collect();
    assert_eq!(had, [(removed::DELETE, 3, 180, 1)]);
    // Nothing waits: the successor goes later, and that is told of with what it has had.
    let version = world.table.version;
    world.switch.gone(&[gone(key, version + 1, Why::Idle)]);
    let later: Vec<_> = told(&mut world).iter().map(|one| (one.reason, one.packets)).collect();
    assert_eq!(later, [(removed::IDLE_TIMEOUT, version + 1)]);
}

/// Deleted, added again and deleted before the datapath has told anything.
#[test]
fn each_deletion_of_a_place_is_told_of() {
    let mut world = World::new();
    let mut versions = Vec::new();
    let mut place = None;
    for _ in 0..3 {
        world.send(1, &Message::FlowMod(flow(1, ip(), vec![output(1)])));
        world.switch.settle(&mut world.table);
        place = Some(key(&world, 1));
        world.send(1, &deletion(1));
        world.switch.settle(&mut world.table);
        versions.push(world.table.version);
    }
    let place = place.unwrap();
    let events: Vec<_> = versions.iter().map(|version| gone(place, *version, Why::Delete)).collect();
    world.switch.gone(&events);
    let had: Vec<_> = told(&mut world).iter().map(|one| one.packets).collect();
    assert_eq!(had, versions);
    // Of the second of three nothing comes; the third is told of all the same, and the second with nothing.
    let mut versions = Vec::new();
    for _ in 0..3 {
        world.send(1, &Message::FlowMod(flow(1, ip(), vec![output(1)])));
        world.switch.settle(&mut world.table);
        world.send(1, &deletion(1));
        world.switch.settle(&mut world.table);
        versions.push(world.table.version);
    }
    let [first, _, third] = versions[..] else { panic!() };
    world.switch.gone(&[gone(place, first, Why::Delete), gone(place, third, Why::Delete)]);
    let had: Vec<_> = told(&mut world).iter().map(|one| one.packets).collect();
    assert_eq!(had, [first, 0, third]);
}

/// What went by itself before an entry was added over it is not that entry.
#[test]
fn one_that_went_before_takes_nothing_with_it() {
    let mut world = World::new();
    let mortal = FlowMod { hard_timeout: 10, ..flow(1, ip(), vec![output(1)]) };
    world.send(1, &Message::FlowMod(mortal.clone()));
    world.said();
    let key = key(&world, 1);
    let version = world.table.version;
    // The rule has gone from the datapath with version + 1; before that is heard, the entry is added again.
    world.table.rules.clear();
    world.table.version += 1;
    world.send(1, &Message::FlowMod(mortal));
    world.said();
    assert_eq!(world.rules().len(), 1, "it is not there again");
    world.switch.gone(&[gone(key, version + 1, Why::Hard)]);
    assert_eq!(told(&mut world), []);
    assert_eq!(world.switch.counts()[0], 1, "the entry has gone, the rule has not");
}

/// Over an entry: as new, with the old counters, unless it is asked not to. Modified: with the cookie that says who gets its packets.
#[test]
fn what_takes_a_place_has_the_counters_and_a_time_of_its_own() {
    let mut world = World::new();
    let mortal = FlowMod { idle_timeout: 5, ..flow(1, tcp(80), vec![output(1)]) };
    for (change, wanted) in [
        (mortal.clone(), "add"),
        (mortal.clone(), "renew"),
        (FlowMod { cookie: 6, hard_timeout: 7, ..mortal.clone() }, "renew"),
        (FlowMod { flags: flag::RESET_COUNTS, ..mortal.clone() }, "add"),
        (FlowMod { command: command::MODIFY, ..flow(1, tcp(80), vec![output(number::CONTROLLER)]) }, "modify"),
        (FlowMod { command: command::MODIFY, flags: flag::RESET_COUNTS, ..mortal.clone() }, "add"),
    ] {
        assert_eq!(world.refused(&Message::FlowMod(change)), None);
        let [last] = &world.table.last[..] else { panic!("{:?}", world.table.last) };
        let (name, rule) = match last {
            Change::Add(rule) => ("add", rule),
            Change::Renew(rule) => ("renew", rule),
            Change::Modify(rule) => ("modify", rule),
            other => panic!("{other:?}"),
        };
        assert_eq!(name, wanted);
        assert_eq!(rule.cookie >> 63 == 1, rule.actions.iter().any(|action| action.to_string().starts_with("punt")));
    }
}

#[test]
fn it_is_told_what_has_gone_and_why() {
    let mut world = World::new();
    let key =
        |priority| FlowKey { table: 0, priority, matching: millrace_agent::switch::fields::matching(&ip()).unwrap() };
    for priority in 1..=3 {
        assert_eq!(world.refused(&Message::FlowMod(flow(priority, ip(), vec![]))), None);
    }
    let delete = FlowMod { command: command::DELETE_STRICT, ..flow(2, ip(), vec![]) };
    assert_eq!(world.refused(&Message::FlowMod(delete)), None);
    let counts = Counts { packets: 8, bytes: 800, age_ns: 2_000_000_001, number: 1 };
    let gone = |priority, version, why| Gone { key: key(priority), version, why, counts };
    // Priority 3 was added with version 3: that something was removed with version 2 is about one before it.
    world.switch.gone(&[gone(2, 4, Why::Delete), gone(1, 5, Why::Idle), gone(3, 2, Why::Hard)]);
    let said = world.said();
    let reasons: Vec<_> =
        said.iter()
            .map(|said| {
                if let Message::FlowRemoved(gone) = said {
                    (gone.priority, gone.reason, gone.packets)
                } else {
                    (0, 0, 0)
                }
            })
            .collect();
    assert_eq!(reasons, [(2, 2, 8), (1, 0, 8)]);
    assert_eq!(world.switch.counts(), [1, 0, 0]);
}

#[test]
fn what_has_gone_untold_is_found() {
    let mut world = World::new();
    for priority in 1..=3 {
        let change = FlowMod { flags: flag::SEND_FLOW_REM, ..flow(priority, ip(), vec![output(1)]) };
        assert_eq!(world.refused(&Message::FlowMod(change)), None);
    }
    let delete = FlowMod { command: command::DELETE_STRICT, ..flow(1, ip(), vec![]) };
    assert_eq!(world.refused(&Message::FlowMod(delete)), None);
    world.switch.take_done();
    world.table.rules.retain(|key, _| key.priority != 2);
    world.switch.look_for_gone(&mut world.table);
    let priority = |said| match said {
        Message::FlowRemoved(removed) => removed.priority,
        other => panic!("{other:?}"),
    };
    let mut told: Vec<_> = world.said().into_iter().map(priority).collect();
    told.sort_unstable();
    assert_eq!((told, world.switch.counts()), (vec![1, 2], [1, 0, 0]));
    let done = world.switch.take_done();
    assert!(matches!(&done[..], [Message::FlowMod(change)] if change.priority == 2));
    world.switch.look_for_gone(&mut world.table);
    assert_eq!((world.said().len(), world.switch.take_done().len()), (0, 0));
}
