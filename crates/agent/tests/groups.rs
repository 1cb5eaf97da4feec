//! Groups and meters.

use super::world::{World, flow, ip, output};
use millrace_agent::switch::datapath::Change;
use millrace_agent::switch::{Identity, Switch};
use millrace_agent::wire::Message;
use millrace_agent::wire::action::Action;
use millrace_agent::wire::error;
use millrace_agent::wire::flow::FlowMod;
use millrace_agent::wire::group::{Bucket, GroupMod, kind};
use millrace_agent::wire::instruction::Instruction;
use millrace_agent::wire::meter::{Band, MeterMod};
use millrace_agent::wire::multipart::{Answer, Question};
use millrace_agent::wire::oxm::Oxm;
use millrace_agent::wire::packet::PacketOut;
use millrace_agent::wire::port::{PortMod, config, number};

#[test]
fn groups_are_inlined_or_spread_and_entries_follow() {
    let mut world = World::new();
    let bucket = |watch_port, actions| Bucket { weight: 0, watch_port, watch_group: 0xffff_ffff, actions };
    let group = |command, kind, group, buckets| Message::GroupMod(GroupMod { command, kind, group, buckets });
    let failover = vec![bucket(1, vec![output(1)]), bucket(2, vec![output(2)])];
    assert_eq!(world.refused(&group(0, kind::FAST_FAILOVER, 1, failover.clone())), None);
    assert_eq!(world.refused(&group(0, kind::FAST_FAILOVER, 1, failover)), Some(error::group_mod::GROUP_EXISTS));
    assert_eq!(world.refused(&Message::FlowMod(flow(1, ip(), vec![Action::Group(1)]))), None);
    assert!(world.rules()[0].ends_with("actions=output:0"));
    world.table.down = vec![0];
    world.switch.look_at_ports(&mut world.table);
    assert!(matches!(world.said()[..], [Message::PortStatus(_)]));
    assert!(world.rules()[0].ends_with("actions=output:1"), "{:?}", world.rules());
    // A bucket that changes the packet comes last; of two, the second would not find it as it was.
    let changing = |port| bucket(number::ANY, vec![Action::SetNwTtl(3), output(port)]);
    assert_eq!(world.refused(&group(0, kind::ALL, 2, vec![changing(1), bucket(number::ANY, vec![output(2)])])), None);
    assert_eq!(world.refused(&Message::FlowMod(flow(2, ip(), vec![Action::Group(2)]))), None);
    assert!(world.rules()[1].ends_with("actions=output:1,set_field:3->nw_ttl,output:0"), "{:?}", world.rules());
    let order = Some(error::action::UNSUPPORTED_ORDER);
    assert_eq!(world.refused(&group(1, kind::ALL, 2, vec![changing(1), changing(2)])), order);
    assert_eq!(world.refused(&Message::FlowMod(flow(3, ip(), vec![Action::Group(2), output(3)]))), order);
    let queue =
        |queue| Bucket { weight: 1, ..bucket(number::ANY, vec![Action::SetQueue(queue), output(number::LOCAL)]) };
    assert_eq!(world.refused(&group(0, kind::SELECT, 3, vec![queue(0), queue(1)])), None);
    assert_eq!(world.refused(&Message::FlowMod(flow(4, ip(), vec![Action::Group(3)]))), None);
    assert!(world.rules()[2].ends_with("actions=rss:3"), "{:?}", world.rules());
    let other = vec![Bucket { weight: 1, ..bucket(number::ANY, vec![Action::DecNwTtl, output(1)]) }; 2];
    assert_eq!(world.refused(&group(0, kind::SELECT, 4, other)), Some(error::group_mod::BAD_BUCKET));
    // Entries that use a group go with it.
    assert_eq!(world.refused(&group(2, 0, 0xffff_fffc, vec![])), None);
    assert_eq!(world.switch.counts(), [0, 0, 0]);
    assert!(world.rules().is_empty());
}

/// Whoever is to fail over is told at once if it cannot.
#[test]
fn an_entry_that_a_bucket_does_not_fit_is_refused_whichever_counts() {
    let mut world = World::new();
    let bucket = |port, actions| Bucket { weight: 0, watch_port: port, watch_group: 0xffff_ffff, actions };
    let group = |command, group, second: Vec<Action>| {
        let buckets = vec![bucket(1, vec![output(1)]), bucket(2, [second, vec![output(2)]].concat())];
        Message::GroupMod(GroupMod { command, kind: kind::FAST_FAILOVER, group, buckets })
    };
    let many = vec![Action::SetNwTtl(3); 60];
    for (number, second) in [(1, vec![]), (2, vec![Action::DecNwTtl]), (3, vec![Action::PopVlan]), (4, many)] {
        assert_eq!(world.refused(&group(0, number, second)), None);
    }
    let entry = |matching, actions| Message::FlowMod(flow(1, matching, actions));
    let port_3 = vec![Oxm::basic(0, &[0, 0, 0, 3])];
    let inconsistent = Some(error::action::MATCH_INCONSISTENT);
    assert_eq!(world.refused(&entry(port_3.clone(), vec![Action::Group(2)])), inconsistent);
    assert_eq!(world.refused(&entry(ip(), vec![Action::Group(3)])), inconsistent);
    let behind = vec![Action::Group(2), output(3)];
    assert_eq!(world.refused(&entry(ip(), behind)), Some(error::action::UNSUPPORTED_ORDER));
    let long = [vec![output(3); 4], vec![Action::Group(4)]].concat();
    assert_eq!(world.refused(&entry(ip(), long)), Some(error::action::TOO_MANY));
    assert_eq!(world.refused(&entry(ip(), vec![Action::Group(1), Action::Group(2)])), None);
    // A group that is changed is to fit those that use it.
    assert_eq!(world.refused(&entry(ip(), vec![Action::Group(2)])), None);
    assert_eq!(world.refused(&entry(port_3, vec![Action::Group(1)])), None);
    assert_eq!(world.refused(&group(1, 1, vec![Action::DecNwTtl])), inconsistent);
    world.table.down = vec![0];
    world.switch.look_at_ports(&mut world.table);
    assert_eq!(world.switch.behind(), 0);
    assert!(world.rules().iter().all(|rule| rule.ends_with("output:1")), "{:?}", world.rules());
}

fn weighty(port: u32, weight: u16) -> Bucket {
    Bucket { weight, watch_port: number::ANY, watch_group: 0xffff_ffff, actions: vec![output(port)] }
}

/// A world with group 4 over ports 1, 2 and 3 (0, 1 and 2 of the datapath), with weights of 1, 2 and 1, and an entry that uses it.
fn balanced() -> World {
    let mut world = World::new();
    let buckets = vec![weighty(1, 1), weighty(2, 2), weighty(3, 1)];
    let group = GroupMod { command: 0, kind: kind::SELECT, group: 4, buckets };
    assert_eq!(world.refused(&Message::GroupMod(group)), None);
    assert_eq!(world.refused(&Message::FlowMod(flow(5, ip(), vec![Action::Group(4)]))), None);
    assert!(world.rules()[0].ends_with("actions=balance:4"), "{:?}", world.rules());
    world
}

#[test]
fn a_group_over_ports_moves_the_flows_of_those_that_go_and_no_others() {
    let mut world = balanced();
    let share = |table: &[u16], port: u16| table.iter().filter(|one| **one == port).count();
    let all = world.table.groups[&4].clone();
    assert_eq!([0, 1, 2].map(|port| share(&all, port)), [128, 256, 128]);
    let mut down = |ports: &[u32]| {
        world.table.down = ports.to_vec();
        world.switch.look_at_ports(&mut world.table);
        (world.table.groups[&4].clone(), world.rules()[0].ends_with("actions=balance:4"))
    };
    let (two, _) = down(&[1]);
    assert!(all.iter().zip(&two).all(|(before, now)| *before == 1 || before == now));
    assert_eq!(share(&two, 1), 0);
    // They are spread over the others.
    assert!([0, 2].iter().all(|port| share(&two, *port) > 128 + 96), "{two:?}");
    let (one, _) = down(&[0, 1]);
    assert!(two.iter().zip(&one).all(|(before, now)| *before == 0 || before == now));
    // Nobody is there: nobody gets it. And all is as it was when they are back.
    assert!(!down(&[0, 1, 2]).1);
    assert_eq!(down(&[]), (all, true));
}

#[test]
fn a_port_without_weight_is_out_of_use_and_one_that_is_watched_counts() {
    let mut world = balanced();
    let mut change = |buckets| {
        let group = GroupMod { command: 1, kind: kind::SELECT, group: 4, buckets };
        assert_eq!(world.refused(&Message::GroupMod(group)), None);
        let mut table = world.table.groups[&4].clone();
        table.sort_unstable();
        table.dedup();
        (table, world.rules()[0].ends_with("actions=balance:4"))
    };
    assert_eq!(change(vec![weighty(1, 1), weighty(2, 0)]), (vec![0], true));
    assert_eq!(change(vec![weighty(1, 1), weighty(2, 1), weighty(3, 0)]), (vec![0, 1], true));
    // The host is always there.
    let of_host = Bucket { watch_port: number::LOCAL, ..weighty(1, 1) };
    assert_eq!(change(vec![of_host, weighty(2, 1)]), (vec![0, 1], true));
    // A port whose bucket watches another one goes with that.
    change(vec![Bucket { watch_port: 3, ..weighty(1, 1) }, weighty(2, 1)]);
    world.table.down = vec![2];
    world.switch.look_at_ports(&mut world.table);
    assert!(world.table.groups[&4].iter().all(|port| *port == 1), "{:?}", world.table.groups);
    // Nothing is done for a port that the group has not got.
    let group = GroupMod { command: 1, kind: kind::SELECT, group: 4, buckets: vec![weighty(1, 1), weighty(2, 1)] };
    assert_eq!(world.refused(&Message::GroupMod(group)), None);
    world.table.down = vec![];
    world.switch.look_at_ports(&mut world.table);
    assert!(!world.table.last.iter().any(|change| matches!(change, Change::Group(..))), "{:?}", world.table.last);
}

#[test]
fn what_a_bucket_watches_is_obeyed_or_refused() {
    let mut world = World::new();
    let mut refused = |buckets: &[Bucket]| {
        let group = GroupMod { command: 0, kind: kind::SELECT, group: 9, buckets: buckets.to_vec() };
        let refused = world.refused(&Message::GroupMod(group));
        world.refused(&Message::GroupMod(GroupMod { command: 2, kind: kind::SELECT, group: 9, buckets: vec![] }));
        refused
    };
    let vain = Some(error::group_mod::WATCH_UNSUPPORTED);
    // Liveness of groups is known nowhere.
    assert_eq!(refused(&[Bucket { watch_group: 7, ..weighty(1, 1) }, weighty(2, 1)]), vain);
    assert_eq!(refused(&[Bucket { watch_group: 7, ..weighty(1, 1) }]), vain);
    // Among ports, ports are watched.
    assert_eq!(refused(&[Bucket { watch_port: 3, ..weighty(1, 1) }, weighty(2, 1)]), None);
    // Queues of the host are chosen whatever becomes of a port.
    let queue = |queue| Bucket { actions: vec![Action::SetQueue(queue), output(number::LOCAL)], ..weighty(1, 1) };
    assert_eq!(refused(&[queue(0), queue(1)]), None);
    assert_eq!(refused(&[Bucket { watch_port: number::LOCAL, ..queue(0) }, queue(1)]), None);
    assert_eq!(refused(&[Bucket { watch_port: 1, ..queue(0) }, queue(1)]), vain);
    // Of one bucket nothing is chosen; where it sends to the port that it watches, it makes no difference.
    assert_eq!(refused(&[Bucket { watch_port: 1, ..weighty(1, 1) }]), None);
    assert_eq!(refused(&[Bucket { watch_port: 2, ..weighty(1, 1) }]), vain);
}

#[test]
fn a_group_leaves_out_a_port_where_nothing_goes_out() {
    let mut world = balanced();
    let mut set = |number: u32, config| {
        let change = PortMod { number, mac: [2, 0, 0, 0, 0, number as u8], config, mask: config::NO_FWD, advertise: 0 };
        world.send(1, &Message::PortMod(change));
        (world.table.groups[&4].contains(&(number as u16 - 1)), world.rules()[0].clone())
    };
    assert!(!set(1, config::NO_FWD).0);
    assert!(!set(2, config::NO_FWD).0);
    assert!(set(3, config::NO_FWD).1.ends_with("actions=drop"));
    let (chosen, rule) = set(2, 0);
    assert!(chosen && rule.ends_with("actions=balance:4"), "{rule}");
    // Another agent makes it the same.
    let messages: Vec<_> = world.switch.messages().collect();
    let mut other = Switch::new(Identity::default());
    other.look_at_ports(&mut world.table);
    let changes = other.restore(&messages, false, &mut world.table).unwrap();
    let same = |change: &Change| matches!(change, Change::Group(4, spec) if spec.table == world.table.groups[&4]);
    assert!(changes.iter().any(same));
}

#[test]
fn a_packet_of_a_controller_goes_where_the_group_chooses() {
    let mut world = balanced();
    world.table.down = vec![0, 2];
    world.switch.look_at_ports(&mut world.table);
    let data = [&[0; 12][..], &[8, 0], &[0; 46]].concat();
    let actions = vec![Action::Group(4)];
    let out = PacketOut { buffer: 0xffff_ffff, in_port: number::CONTROLLER, actions, data };
    assert_eq!(world.refused(&Message::PacketOut(out)), None);
    let sent: Vec<_> = world.table.sent.iter().map(|(_, _, action)| &action[..]).collect();
    assert_eq!(sent, ["output:1"]);
}

#[test]
fn meters_have_one_band() {
    let mut world = World::new();
    let meter = |bands| Message::MeterMod(MeterMod { command: 0, flags: 1, meter: 1, bands });
    let remark = |steps| Band { kind: 2, rest: vec![steps, 0, 0, 0], ..Band::drop(1000, 0) };
    assert_eq!(world.refused(&meter(vec![remark(0)])), Some(error::meter_mod::BAD_BAND_VALUE));
    assert_eq!(world.refused(&meter(vec![remark(3)])), Some(error::meter_mod::BAD_BAND_VALUE));
    assert_eq!(world.refused(&meter(vec![remark(2)])), None);
    assert!(
        matches!(&world.table.last[..], [Change::Meter(1, spec)] if spec.remark == Some(2)),
        "{:?}",
        world.table.last
    );
    assert_eq!(world.refused(&Message::MeterMod(MeterMod { command: 2, flags: 0, meter: 1, bands: vec![] })), None);
    let unknown = Band { kind: 0xffff, rest: vec![0; 4], ..Band::drop(1, 0) };
    assert_eq!(world.refused(&meter(vec![unknown])), Some(error::meter_mod::BAD_BAND));
    assert_eq!(world.refused(&meter(vec![Band::drop(1, 0), Band::drop(2, 0)])), Some(error::meter_mod::OUT_OF_BANDS));
    assert_eq!(world.refused(&meter(vec![Band::drop(0, 0)])), Some(error::meter_mod::BAD_RATE));
    assert_eq!(world.refused(&meter(vec![Band::drop(1000, 0)])), None);
    let instructions = vec![Instruction::ApplyActions(vec![output(1)]), Instruction::Meter(1)];
    assert_eq!(world.refused(&Message::FlowMod(FlowMod { instructions, ..flow(1, ip(), vec![]) })), None);
    assert!(world.rules()[0].ends_with("actions=meter:1,output:0"));
    world.send(1, &Message::MultipartRequest(0, Question::Meter(1)));
    let said = world.said();
    let Message::MultipartReply(0, Answer::Meter(stats)) = &said[0] else { panic!("{said:?}") };
    assert_eq!((stats[0].flows, stats[0].packets, stats[0].bands[0].0), (1, 3, 5));
}
