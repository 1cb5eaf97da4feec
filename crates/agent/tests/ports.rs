//! Ports: what controllers say of them, and those that are tunnels.

use super::world::{World, flow, ip, output};
use millrace_agent::switch::datapath::{Change, Counts, FlowKey, Gone, Why};
use millrace_agent::switch::tunnels::{FirstTable, TunnelPort, Whose};
use millrace_agent::switch::{Heard, Identity, Switch};
use millrace_agent::wire::Message;
use millrace_agent::wire::action::Action;
use millrace_agent::wire::error;
use millrace_agent::wire::flow::FlowMod;
use millrace_agent::wire::group::{Bucket, GroupMod, kind};
use millrace_agent::wire::instruction::Instruction;
use millrace_agent::wire::multipart::{Answer, Question};
use millrace_agent::wire::oxm::Oxm;
use millrace_agent::wire::port::{PortMod, config, number};
use std::time::Duration;

#[test]
fn a_port_does_what_controllers_say() {
    let mut world = World::new();
    let mac = |port: u8| [2, 0, 0, 0, 0, port];
    let change = |number: u32, config, mask| {
        Message::PortMod(PortMod { number, mac: mac(number as u8), config, mask, advertise: 0 })
    };
    for (priority, actions) in [(1, vec![output(1), output(2)]), (2, vec![output(number::FLOOD)])] {
        assert_eq!(world.refused(&Message::FlowMod(flow(priority, ip(), actions))), None);
    }
    assert_eq!(world.refused(&change(9, 1, 1)), Some(error::port_mod::BAD_PORT));
    assert_eq!(world.refused(&change(1, 2, 2)), Some(error::port_mod::BAD_CONFIG));
    let other = PortMod { number: 1, mac: mac(2), config: 1, mask: 1, advertise: 0 };
    assert_eq!(world.refused(&Message::PortMod(other)), Some(error::port_mod::BAD_HW_ADDR));
    // Nothing goes out of it.
    world.send(1, &change(1, config::NO_FWD, config::NO_FWD));
    let said = world.said();
    let [Message::PortStatus(told)] = &said[..] else { panic!("{said:?}") };
    assert_eq!((told.port.number, told.port.config, told.reason), (1, config::NO_FWD, 2));
    let ends = |world: &World| {
        world.rules().iter().map(|rule| rule.split("actions=").nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ends(&world), ["output:1", "output:1,output:2"]);
    // Nor is anything taken from it.
    world.send(1, &change(1, config::PORT_DOWN, config::PORT_DOWN | config::NO_FWD));
    assert!(world.rules().last().unwrap().starts_with("table=0,priority=65535,in_port=0,"), "{:?}", world.rules());
    assert!(world.rules().last().unwrap().ends_with("actions=drop"));
    // Who deletes the rule has it back.
    let barrier = *world.table.rules.keys().find(|key| key.priority == 65535).unwrap();
    world.table.rules.remove(&barrier);
    world.switch.gone(&[Gone { key: barrier, version: 99, why: Why::Delete, counts: Counts::default() }]);
    world.switch.settle(&mut world.table);
    assert!(world.table.rules.contains_key(&barrier));
    // Also beside an entry that the datapath does not take, and after it was not taken itself.
    world.table.rules.remove(&barrier);
    world.switch.gone(&[Gone { key: barrier, version: 100, why: Why::Delete, counts: Counts::default() }]);
    world.table.full = Some(3);
    assert_eq!(world.refused(&Message::FlowMod(flow(3, ip(), vec![]))), Some(error::flow_mod::TABLE_FULL));
    assert!(world.table.rules.contains_key(&barrier));
    world.table.rules.remove(&barrier);
    world.switch.gone(&[Gone { key: barrier, version: 101, why: Why::Delete, counts: Counts::default() }]);
    world.table.full = Some(barrier.priority);
    assert_eq!(world.refused(&Message::FlowMod(flow(3, ip(), vec![]))), None, "others do not suffer from it");
    assert_eq!(world.refused(&Message::FlowMod(FlowMod { command: 4, ..flow(3, ip(), vec![]) })), None);
    world.table.full = None;
    world.switch.set_now(Duration::from_secs(1));
    world.switch.settle(&mut world.table);
    assert!(world.table.rules.contains_key(&barrier), "{:?}", world.rules());
    world.said();
    // Another agent makes it the same.
    let messages: Vec<_> = world.switch.messages().collect();
    let mut other = Switch::new(Identity::default());
    other.look_at_ports(&mut world.table);
    let changes = other.restore(&messages, false, &mut world.table).unwrap();
    assert!(changes.iter().any(|change| matches!(change, Change::Add(rule) if rule.priority == 65535)));
    world.said();
    world.send(1, &change(1, 0, config::ALL));
    assert_eq!(ends(&world), ["output:0,output:1", "output:0,output:1,output:2"]);
    // Controllers hear of no packets from there.
    assert_eq!(world.refused(&Message::FlowMod(flow(0, vec![], vec![output(number::CONTROLLER)]))), None);
    // All rules of this table have the same number.
    world.table.rules.retain(|key, _| key.priority == 0);
    let heard = || Heard { port: 0, tunnel: None, rules: vec![7], is_expired: false, len: 60, bytes: vec![0; 60] };
    world.switch.packet_in(heard(), &mut world.table);
    assert_eq!(world.said().len(), 1);
    world.send(1, &change(1, config::NO_PACKET_IN, config::NO_PACKET_IN));
    world.said();
    world.switch.packet_in(heard(), &mut world.table);
    assert!(world.said().is_empty());
}

#[test]
fn who_asks_what_ports_have_had_keeps_no_change_from_others() {
    let mut world = World::new();
    world.join(2);
    let bucket = |port| Bucket { weight: 0, watch_port: port, watch_group: 0xffff_ffff, actions: vec![output(port)] };
    let (kind, buckets) = (kind::FAST_FAILOVER, vec![bucket(1), bucket(2)]);
    assert_eq!(world.refused(&Message::GroupMod(GroupMod { command: 0, kind, group: 1, buckets })), None);
    assert_eq!(world.refused(&Message::FlowMod(flow(1, ip(), vec![Action::Group(1)]))), None);
    // Two controllers hear of each port that has changed.
    for (question, down, output, times) in [
        (Question::PortStats(number::ANY), vec![0], "output:1", 2),
        (Question::Queue(number::LOCAL, u32::MAX), vec![1], "output:0", 4),
    ] {
        world.table.down = down;
        world.send(2, &Message::MultipartRequest(0, question));
        let told = world.said().iter().filter(|said| matches!(said, Message::PortStatus(_))).count();
        assert_eq!(told, times);
        assert!(world.rules()[0].ends_with(output), "{:?}", world.rules());
        world.switch.look_at_ports(&mut world.table);
        assert!(world.said().is_empty(), "once is enough");
    }
}

/// A switch with ports 10, whose other end is 192.0.2.2, and 11, whose other end entries name; both by port 3.
fn with_tunnels() -> World {
    let tunnel = |port: u32, remote: Option<&str>| TunnelPort {
        name: format!("vx{port}"),
        port: port - 1,
        uplink: 2,
        local: "192.0.2.1".parse().unwrap(),
        remote: remote.map(|remote| remote.parse().unwrap()),
        vni: None,
        udp_dst: 4789,
        checksum: false,
    };
    let tunnels = vec![tunnel(10, Some("192.0.2.2")), tunnel(11, None)];
    let mut world = World::new();
    world.switch = Switch::new(Identity::default()).with_tunnels(tunnels);
    world.switch.look_at_ports(&mut world.table);
    world.join(1);
    world
}

#[test]
fn tunnels_are_ports() {
    let mut world = with_tunnels();
    let in_port = |port: u8| vec![Oxm::basic(0, &[0, 0, 0, port])];
    let id = Action::SetField(Oxm::basic(38, &[0, 0, 0, 0, 0, 0, 0, 7]));
    let target = |last: u8| Action::SetField(Oxm { class: 1, ..Oxm::basic(32, &[192, 0, 2, last]) });
    let one = "src=192.0.2.1,dst=192.0.2.2";
    let port = |number: &str, to: &str| format!("vxlan_port(number={number},output=2,src=192.0.2.1,dst=192.0.2.{to})");
    let cases = [
        // The frame itself goes, where nothing comes behind.
        (in_port(1), vec![id.clone(), output(10)], format!("set_field:0x7->tun_id,encap_vxlan({one}),output:2")),
        (in_port(3), vec![output(10)], format!("encap_vxlan({one}),in_port")),
        (vec![], vec![output(10)], port("9", "2")),
        (in_port(1), vec![output(10), output(2)], format!("{},output:1", port("9", "2"))),
        // Copies to those that are named.
        (
            vec![],
            vec![target(3), output(11), target(4), output(11)],
            format!("{},{}", port("10", "3"), port("10", "4")),
        ),
        (in_port(10), vec![output(number::IN_PORT)], format!("encap_vxlan({one}),output:2")),
        (in_port(10), vec![output(10)], port("9", "2")),
        (vec![], vec![output(number::FLOOD)], format!("output:0,output:1,output:2,{}", port("9", "2"))),
    ];
    for (priority, (matching, actions, rule)) in (1..).zip(cases) {
        world.table.rules.clear();
        assert_eq!(world.refused(&Message::FlowMod(flow(priority, matching, actions))), None, "{rule}");
        assert_eq!(world.rules()[0].split("actions=").nth(1), Some(&rule[..]));
    }
    assert_eq!(
        world.refused(&Message::FlowMod(flow(1, vec![], vec![output(11)]))),
        Some(error::action::UNSUPPORTED_ORDER)
    );
    assert_eq!(
        world.refused(&Message::FlowMod(FlowMod { table: 63, ..flow(1, vec![], vec![]) })),
        Some(error::flow_mod::BAD_TABLE_ID)
    );
    // Tunnel ids have 32 bits here.
    let long = vec![Oxm::basic(38, &[0, 0, 0, 1, 0, 0, 0, 0])];
    assert_eq!(world.refused(&Message::FlowMod(flow(1, long, vec![]))), Some(error::matching::BAD_VALUE));
    // What comes out of one has come in there.
    let miss = flow(0, vec![], vec![output(number::CONTROLLER)]);
    assert_eq!(world.refused(&Message::FlowMod(FlowMod { table: 1, ..miss })), None);
    let tunnel = Some(millrace_flow::Tunnel { id: 7, src: 0xc000_0202, port: Some(9) });
    world.table.rules.retain(|key, _| key.table == 1);
    world.switch.packet_in(
        Heard { port: 2, tunnel, rules: vec![7], is_expired: false, len: 60, bytes: vec![0; 60] },
        &mut world.table,
    );
    let said = world.said();
    let Message::PacketIn(packet) = &said[0] else { panic!("{said:?}") };
    let nicira = |field, value: &[u8]| Oxm { class: 1, ..Oxm::basic(field, value) };
    let (src, dst) = (nicira(31, &[192, 0, 2, 2]), nicira(32, &[192, 0, 2, 1]));
    assert_eq!(packet.matching, [in_port(10).remove(0), Oxm::basic(38, &[0, 0, 0, 0, 0, 0, 0, 7]), src, dst]);
}

#[test]
fn the_first_table_stands_before_those_of_controllers() {
    let mut world = with_tunnels();
    let local = vec![Oxm::basic(0, &number::LOCAL.to_be_bytes())];
    let goto = Instruction::GotoTable(4);
    for (priority, matching) in [(1, ip()), (2, local)] {
        let entry = FlowMod { instructions: vec![goto.clone()], ..flow(priority, matching, vec![]) };
        assert_eq!(world.refused(&Message::FlowMod(entry)), None);
    }
    let keys: Vec<_> = world.table.rules.keys().copied().collect();
    let tunnel = TunnelPort {
        name: "vx".to_owned(),
        port: 9,
        uplink: 2,
        local: "2001:db8::1".parse().unwrap(),
        remote: Some("2001:db8::2".parse().unwrap()),
        vni: Some(5),
        udp_dst: 4790,
        checksum: true,
    };
    let table = FirstTable::new(std::slice::from_ref(&tunnel)).unwrap().unwrap();
    let own: Vec<_> = table.rules().map(ToString::to_string).collect();
    assert_eq!(own[0], "table=0,priority=0,actions=goto_table:1");
    let outer = "in_port=2,ipv6_src=2001:db8::2,ipv6_dst=2001:db8::1,udp_dst=4790,tun_id=0x5";
    assert!(own[1].contains("udp6,") && outer.split(',').all(|field| own[1].contains(field)), "{}", own[1]);
    assert!(own[1].ends_with("actions=decap_vxlan(port=9),goto_table:1"), "{}", own[1]);
    // Another with the same ends is none.
    assert!(FirstTable::new(&[tunnel.clone(), TunnelPort { port: 10, ..tunnel }]).is_err());
    for key in keys {
        let rule = millrace_flow::language::parse_rule(&world.table.rules[&key]).unwrap();
        let Change::Add(behind) = table.behind(&Change::Add(rule)) else { panic!() };
        // What programs send is looked up in table 0 only.
        assert_eq!(behind.table, u8::from(key.priority == 1));
        assert_eq!(behind.actions, [millrace_flow::Action::GotoTable(5)]);
        assert_eq!(table.whose(&FlowKey::of(&behind)), Whose::Entry(key));
    }
    let own: Vec<_> = table.rules().map(|rule| table.whose(&FlowKey::of(rule))).collect();
    assert_eq!(own, [Whose::Rest, Whose::Tunnel(9), Whose::Rest]);
}

fn change(number: u32, config: u32, mask: u32) -> Message {
    Message::PortMod(PortMod { number, mac: [2, 0, 0, 0, 0, number as u8], config, mask, advertise: 0 })
}

/// A port that was closed is so for whoever comes next, whether it is there or not, and whatever that one is called.
#[test]
fn a_port_stays_closed_when_it_or_the_name_of_the_switch_has_gone() {
    let mut world = World::new();
    assert_eq!(world.refused(&change(3, config::PORT_DOWN, config::PORT_DOWN)), None);
    let closing = world.rules();
    let messages: Vec<_> = world.switch.messages().collect();
    world.table.absent = vec![2];
    let mut other = Switch::new(Identity { datapath: 5, ..Identity::default() });
    other.look_at_ports(&mut world.table);
    let changes = other.restore(&messages, false, &mut world.table).unwrap();
    let [Change::Add(rule)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!([rule.to_string()], closing[..]);
    let kept: Vec<_> = other.messages().collect();
    assert!(
        matches!(&kept[..], [Message::PortMod(kept)] if (kept.number, kept.config) == (3, config::PORT_DOWN)),
        "{kept:?}"
    );
    world.switch = other;
    world.join(1);
    world.table.absent = vec![];
    world.switch.look_at_ports(&mut world.table);
    let said = world.said();
    let [Message::PortStatus(status)] = &said[..] else { panic!("{said:?}") };
    assert_eq!((status.port.number, status.port.config), (3, config::PORT_DOWN));
}

/// One entry for a port that has gone keeps nobody from closing another.
#[test]
fn a_port_can_be_closed_while_an_entry_cannot_follow() {
    let mut world = World::new();
    assert_eq!(world.refused(&Message::FlowMod(flow(1, ip(), vec![output(3)]))), None);
    world.table.absent = vec![2];
    world.switch.look_at_ports(&mut world.table);
    world.said();
    assert_eq!(world.switch.behind(), 1);
    assert_eq!(world.refused(&change(1, config::NO_FWD, config::NO_FWD)), None);
    assert_eq!(world.switch.behind(), 1);
    world.table.absent = vec![];
    world.switch.look_at_ports(&mut world.table);
    assert_eq!(world.switch.behind(), 0);
}

/// Ports of the card have no queues: that is an answer for who asks for all, and an error for who names one.
#[test]
fn queues_are_those_of_the_host() {
    let mut world = World::new();
    let ask = |port, queue| Message::MultipartRequest(0, Question::Queue(port, queue));
    let mut answer = |port, queue| {
        world.send(1, &ask(port, queue));
        match &world.said()[..] {
            [Message::MultipartReply(_, Answer::Queue(queues))] => Ok(queues.len()),
            [Message::Error(error)] => Err(error.refusal),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((answer(1, u32::MAX), answer(number::LOCAL, u32::MAX)), (Ok(0), Ok(4)));
    assert_eq!(answer(1, 0), Err(error::queue_op::BAD_QUEUE));
    assert_eq!(answer(9, u32::MAX), Err(error::queue_op::BAD_PORT));
    let entry = |actions| Message::FlowMod(flow(1, ip(), actions));
    assert_eq!(world.refused(&entry(vec![output(1), Action::SetQueue(3), output(number::LOCAL)])), None);
    let lost = [output(1), output(number::FLOOD), output(number::IN_PORT)];
    for lost in lost {
        let refused = world.refused(&entry(vec![Action::SetQueue(3), lost]));
        assert_eq!(refused, Some(error::action::BAD_QUEUE));
    }
}
