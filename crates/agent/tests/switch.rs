//! The switch, over a datapath that keeps what it is told and refuses what it is told to refuse.

use millrace_agent::switch::datapath::{
    Change, Counts, Datapath, FlowKey, Gone, PortInfo, QueueInfo, Rejected, Snapshot, Why,
};
use millrace_agent::switch::tunnels::{FirstTable, TunnelPort, Whose};
use millrace_agent::switch::{Heard, Identity, Switch, Verdict};
use millrace_agent::wire::action::Action;
use millrace_agent::wire::bundle::{BundleAdd, BundleControl};
use millrace_agent::wire::error::{self, Refusal};
use millrace_agent::wire::flow::{FlowMod, FlowQuestion, command, flag};
use millrace_agent::wire::group::{Bucket, GroupMod, kind};
use millrace_agent::wire::hello::Hello;
use millrace_agent::wire::instruction::Instruction;
use millrace_agent::wire::meter::{Band, MeterMod};
use millrace_agent::wire::multipart::{Answer, Question};
use millrace_agent::wire::oxm::Oxm;
use millrace_agent::wire::port::{PortMod, config, number};
use millrace_agent::wire::switch::{Role, role};
use millrace_agent::wire::{Message, first};
use std::collections::HashMap;

#[derive(Default)]
pub struct Table {
    pub rules: HashMap<FlowKey, String>,
    pub version: u64,
    /// Refuses rules of this priority.
    full: Option<u16>,
    pub down: Vec<u32>,
    pub commits: usize,
    /// Commits, done or not.
    pub tried: usize,
    /// Does not answer.
    pub silent: bool,
    /// Refuses other actions for rules of this priority.
    pub stuck: Option<u16>,
    /// Changes of the last commit.
    pub last: Vec<Change>,
    sent: Vec<(usize, u32, String)>,
}

impl Datapath for Table {
    fn commit(&mut self, changes: &[Change]) -> Result<u64, Rejected> {
        self.tried += 1;
        if self.silent {
            return Err(Rejected::Gone("as told".to_owned()));
        }
        if changes.iter().any(|change| matches!(change, Change::Modify(rule) if Some(rule.priority) == self.stuck)) {
            return Err(Rejected::Denied("as told".to_owned()));
        }
        let refused = |change: &Change| matches!(change, Change::Add(rule) | Change::Renew(rule) if Some(rule.priority) == self.full);
        if changes.iter().any(refused) {
            return Err(Rejected::Full("as told".to_owned()));
        }
        for change in changes {
            match change {
                Change::Add(rule) | Change::Renew(rule) => drop(self.rules.insert(FlowKey::of(rule), rule.to_string())),
                Change::Modify(rule) => {
                    let old = self.rules.get_mut(&FlowKey::of(rule));
                    old.into_iter().for_each(|old| *old = rule.to_string());
                }
                Change::Delete(key) => drop(self.rules.remove(key)),
                _ => {}
            }
        }
        (self.version, self.commits) = (self.version + 1, self.commits + 1);
        self.last = changes.to_vec();
        Ok(self.version)
    }

    fn snapshot(&mut self) -> Result<Snapshot, Rejected> {
        let counts = Counts { packets: 3, bytes: 180, age_ns: 1_500_000_000, number: 7 };
        let rules = self.rules.keys().map(|key| (*key, counts)).collect();
        Ok(Snapshot { rules, metered: vec![(1, 5)], unmatched: 2, ..Snapshot::default() })
    }

    fn ports(&mut self) -> Result<(Vec<PortInfo>, Vec<QueueInfo>), Rejected> {
        let port = |port| {
            let link = !self.down.contains(&port);
            PortInfo { port, name: format!("p{port}"), plugged: true, link, counters: [1; 6] }
        };
        let queue = |queue| QueueInfo { queue, ..QueueInfo::default() };
        Ok(((0..3).map(port).collect(), (0..4).map(queue).collect()))
    }

    fn send(&mut self, frame: &[u8], port: u32, actions: &[millrace_flow::Action]) -> Result<(), Rejected> {
        let actions: Vec<_> = actions.iter().map(ToString::to_string).collect();
        self.sent.push((frame.len(), port, actions.join(",")));
        Ok(())
    }
}

/// A switch with one controller that has said hello, and more if asked.
pub struct World {
    pub switch: Switch,
    pub table: Table,
}

impl World {
    pub fn new() -> Self {
        let mut world = Self { switch: Switch::new(Identity::default()), table: Table::default() };
        world.switch.look_at_ports(&mut world.table);
        world.join(1);
        world
    }

    pub fn join(&mut self, controller: u64) {
        self.switch.connected(controller);
        assert_eq!(self.send(controller, &Message::Hello(Hello::own())), Verdict::Go);
        self.switch.take_outgoing();
    }

    pub fn send(&mut self, controller: u64, message: &Message) -> Verdict {
        let mut bytes = Vec::new();
        message.encode(9, &mut bytes);
        let (header, whole) = first(&bytes).unwrap().unwrap();
        self.switch.handle(controller, &header, whole, &mut self.table)
    }

    pub fn said(&mut self) -> Vec<Message> {
        self.switch.settle(&mut self.table);
        self.switch.take_outgoing().into_iter().map(|outgoing| outgoing.message).collect()
    }

    /// What is answered with an error; `None`: nothing.
    pub fn refused(&mut self, message: &Message) -> Option<Refusal> {
        self.send(1, message);
        self.said()
            .into_iter()
            .find_map(|said| if let Message::Error(error) = said { Some(error.refusal) } else { None })
    }

    pub fn rules(&self) -> Vec<String> {
        let mut rules: Vec<_> = self.table.rules.values().cloned().collect();
        rules.sort();
        rules
    }
}

pub fn output(port: u32) -> Action {
    Action::Output { port, max_len: 0xffff }
}

pub fn flow(priority: u16, matching: Vec<Oxm>, actions: Vec<Action>) -> FlowMod {
    FlowMod {
        cookie: 5,
        cookie_mask: 0,
        table: 0,
        command: command::ADD,
        idle_timeout: 0,
        hard_timeout: 0,
        priority,
        buffer: 0xffff_ffff,
        out_port: number::ANY,
        out_group: 0xffff_ffff,
        flags: flag::SEND_FLOW_REM,
        matching,
        instructions: vec![Instruction::ApplyActions(actions)],
    }
}

pub fn ip() -> Vec<Oxm> {
    vec![Oxm::basic(5, &[8, 0])]
}

pub fn tcp(port: u16) -> Vec<Oxm> {
    vec![Oxm::basic(5, &[8, 0]), Oxm::basic(10, &[6]), Oxm::basic(14, &port.to_be_bytes())]
}

#[test]
fn entries_become_rules() {
    let mut world = World::new();
    let vlan = vec![Oxm::basic(0, &[0, 0, 0, 1]), Oxm::basic(6, &[0x10, 5])];
    let cases = [
        (tcp(80), vec![Action::DecNwTtl, output(2)], "tcp,tcp_dst=80,actions=dec_ttl,output:1"),
        (ip(), vec![output(number::FLOOD)], "ip,actions=output:0,output:1,output:2"),
        (vlan, vec![Action::PopVlan, output(number::IN_PORT)], "in_port=0,dl_vlan=5,actions=pop_vlan,in_port"),
        (vec![], vec![Action::SetQueue(3), output(number::LOCAL)], "actions=queue:3"),
        (
            vec![],
            vec![Action::PushVlan(0x8100), Action::SetField(Oxm::basic(6, &[0x10, 9])), output(1)],
            "actions=push_vlan:0x8100,set_field:9->dl_vlan,output:0",
        ),
        (vec![Oxm::basic(6, &[0, 0])], vec![], "vlan_tci=0x0,actions=drop"),
    ];
    for (priority, (matching, actions, rule)) in (7..).zip(cases) {
        world.table.rules.clear();
        assert_eq!(world.refused(&Message::FlowMod(flow(priority, matching, actions))), None, "{rule}");
        assert_eq!(world.rules(), [format!("table=0,priority={priority},cookie=0x5,{rule}")]);
    }
}

#[test]
fn what_cannot_be_is_refused_by_its_name_and_changes_nothing() {
    use error::{action, flow_mod, instruction, matching, request};
    let mut world = World::new();
    let cases = [
        (flow(1, vec![Oxm::basic(14, &[0, 80])], vec![]), matching::BAD_PREREQ),
        (flow(1, vec![Oxm::basic(29, &[1])], vec![]), matching::BAD_PREREQ),
        (flow(1, vec![Oxm::basic(32, &[0; 6])], vec![]), matching::BAD_FIELD),
        (flow(1, vec![Oxm::basic(5, &[8])], vec![]), matching::BAD_LEN),
        (flow(1, [ip(), ip()].concat(), vec![]), matching::DUP_FIELD),
        (flow(1, vec![Oxm::basic(0, &[0; 4])], vec![]), matching::BAD_VALUE),
        (flow(1, vec![Oxm::basic(3, &[1; 6]).masked(&[2; 6])], vec![]), matching::BAD_WILDCARDS),
        (flow(1, vec![Oxm::basic(5, &[8, 0]).masked(&[8, 0])], vec![]), matching::BAD_MASK),
        (flow(1, ip(), vec![output(9)]), action::BAD_OUT_PORT),
        (flow(1, ip(), vec![output(number::NORMAL)]), action::BAD_OUT_PORT),
        (flow(1, ip(), vec![Action::Group(3)]), action::BAD_OUT_GROUP),
        (flow(1, ip(), vec![Action::PopVlan]), action::MATCH_INCONSISTENT),
        (flow(1, vec![], vec![Action::DecNwTtl, output(1)]), action::MATCH_INCONSISTENT),
        (flow(1, ip(), vec![Action::PushMpls(0x8847)]), action::BAD_TYPE),
        (flow(1, ip(), vec![Action::SetQueue(4)]), action::BAD_QUEUE),
        (flow(1, ip(), vec![Action::SetField(Oxm::basic(0, &[0, 0, 0, 1]))]), action::BAD_SET_TYPE),
        (flow(1, ip(), vec![Action::SetField(Oxm::basic(8, &[64]))]), action::BAD_SET_ARGUMENT),
        (FlowMod { table: 64, ..flow(1, ip(), vec![]) }, flow_mod::BAD_TABLE_ID),
        (FlowMod { command: 5, ..flow(1, ip(), vec![]) }, flow_mod::BAD_COMMAND),
        (FlowMod { flags: 64, ..flow(1, ip(), vec![]) }, flow_mod::BAD_FLAGS),
        (FlowMod { buffer: 3, ..flow(1, ip(), vec![]) }, request::BUFFER_UNKNOWN),
        (
            FlowMod { table: 5, instructions: vec![Instruction::GotoTable(5)], ..flow(1, ip(), vec![]) },
            instruction::BAD_TABLE_ID,
        ),
        (
            FlowMod { instructions: vec![Instruction::Meter(3)], ..flow(1, ip(), vec![]) },
            error::meter_mod::UNKNOWN_METER,
        ),
        (
            FlowMod {
                instructions: vec![Instruction::WriteActions(vec![output(1)]), Instruction::GotoTable(5)],
                ..flow(1, ip(), vec![])
            },
            instruction::UNSUP_INST,
        ),
    ];
    for (change, wanted) in cases {
        assert_eq!(world.refused(&Message::FlowMod(change.clone())), Some(wanted), "{change:?}");
    }
    assert!(world.rules().is_empty());
    assert_eq!(world.switch.counts(), [0, 0, 0]);
}

#[test]
fn an_action_set_has_its_own_order_and_a_group_outweighs_an_output() {
    let mut world = World::new();
    let written = vec![output(1), Action::SetNwTtl(9), output(2), Action::DecNwTtl];
    let change = FlowMod { instructions: vec![Instruction::WriteActions(written)], ..flow(1, ip(), vec![]) };
    assert_eq!(world.refused(&Message::FlowMod(change)), None);
    assert_eq!(world.rules(), ["table=0,priority=1,cookie=0x5,ip,actions=dec_ttl,set_field:9->nw_ttl,output:1"]);
}

#[test]
fn loose_and_strict_changes_mean_what_section_6_4_says() {
    let mut world = World::new();
    for (priority, matching) in [(1, ip()), (2, tcp(80)), (3, tcp(81)), (4, vec![])] {
        assert_eq!(world.refused(&Message::FlowMod(flow(priority, matching, vec![output(1)]))), None);
    }
    let modify = FlowMod { command: command::MODIFY, ..flow(0, tcp(80), vec![output(2)]) };
    assert_eq!(world.refused(&Message::FlowMod(modify)), None);
    assert!(world.rules()[1].ends_with("tcp_dst=80,actions=output:1"), "{:?}", world.rules());
    // Another priority, and so none.
    let strict = FlowMod { command: command::DELETE_STRICT, ..flow(9, tcp(80), vec![]) };
    assert_eq!(world.refused(&Message::FlowMod(strict)), None);
    assert_eq!(world.rules().len(), 4);
    // One that is meant by its match in all tables, and no other: this is what ovs-ofctl says.
    let second = FlowMod { table: 1, ..flow(2, tcp(80), vec![output(1)]) };
    assert_eq!(world.refused(&Message::FlowMod(second)), None);
    let strict = |priority| FlowMod { command: command::DELETE_STRICT, table: 255, ..flow(priority, tcp(80), vec![]) };
    assert_eq!(world.refused(&Message::FlowMod(strict(9))), None);
    assert_eq!(world.rules().len(), 5);
    assert_eq!(world.refused(&Message::FlowMod(strict(2))), None);
    assert_eq!(world.rules().len(), 3);
    assert_eq!(world.refused(&Message::FlowMod(flow(2, tcp(80), vec![output(2)]))), None);
    // Only what sends to port 1.
    let filtered = FlowMod { command: command::DELETE, out_port: 1, ..flow(0, tcp(80), vec![]) };
    assert_eq!(world.refused(&Message::FlowMod(filtered)), None);
    assert_eq!(world.rules().len(), 4);
    let cookie = FlowMod { command: command::DELETE, cookie: 4, cookie_mask: 1, ..flow(0, vec![], vec![]) };
    assert_eq!(world.refused(&Message::FlowMod(cookie)), None);
    assert_eq!(world.rules().len(), 4);
    let all_ip = FlowMod { command: command::DELETE, table: 255, ..flow(0, ip(), vec![]) };
    assert_eq!(world.refused(&Message::FlowMod(all_ip)), None);
    assert_eq!(world.rules(), ["table=0,priority=4,cookie=0x5,actions=output:0"]);
}

#[test]
fn overlap_is_found_only_where_a_packet_could_match_both() {
    let mut world = World::new();
    assert_eq!(world.refused(&Message::FlowMod(flow(1, tcp(80), vec![]))), None);
    let checked = |matching| Message::FlowMod(FlowMod { flags: flag::CHECK_OVERLAP, ..flow(1, matching, vec![]) });
    assert_eq!(world.refused(&checked(ip())), Some(error::flow_mod::OVERLAP));
    assert_eq!(world.refused(&checked(tcp(81))), None);
}

#[test]
fn one_that_the_datapath_refuses_takes_no_other_with_it() {
    let mut world = World::new();
    world.table.full = Some(2);
    for priority in 1..=3 {
        world.send(1, &Message::FlowMod(flow(priority, ip(), vec![output(1)])));
    }
    let said = world.said();
    let errors: Vec<_> = said.iter().filter(|said| matches!(said, Message::Error(_))).collect();
    assert!(matches!(errors[..], [Message::Error(error)] if error.refusal == error::flow_mod::TABLE_FULL), "{said:?}");
    assert_eq!(world.rules().len(), 2);
    assert_eq!(world.switch.counts(), [2, 0, 0]);
    assert_eq!(world.switch.take_done().len(), 2);
}

#[test]
fn changes_are_one_transaction_until_somebody_asks() {
    let mut world = World::new();
    for priority in 1..=100 {
        world.send(1, &Message::FlowMod(flow(priority, ip(), vec![])));
    }
    assert_eq!(world.table.commits, 0);
    world.send(1, &Message::BarrierRequest);
    assert_eq!(world.table.commits, 1);
    assert_eq!(world.said(), [Message::BarrierReply]);
}

fn bundle(kind: u16) -> Message {
    Message::BundleControl(BundleControl { bundle: 1, kind, flags: 3 })
}

fn in_bundle(message: &Message) -> Message {
    let mut bytes = Vec::new();
    message.encode(9, &mut bytes);
    Message::BundleAdd(BundleAdd { bundle: 1, flags: 3, message: bytes })
}

#[test]
fn a_bundle_is_done_whole_or_not_at_all() {
    let mut world = World::new();
    for full in [Some(2), None] {
        world.table.full = full;
        assert_eq!(world.refused(&bundle(0)), None);
        for priority in 1..=3 {
            let change = Message::FlowMod(flow(priority, ip(), vec![output(1)]));
            assert_eq!(world.refused(&in_bundle(&change)), None);
        }
        assert!(world.rules().is_empty());
        world.send(1, &bundle(4));
        let said = world.said();
        if full.is_some() {
            let refusals: Vec<_> = said
                .iter()
                .map(|said| if let Message::Error(error) = said { Some(error.refusal) } else { None })
                .collect();
            assert_eq!(refusals, [Some(error::flow_mod::TABLE_FULL), Some(error::bundle::MSG_FAILED)]);
            assert_eq!(world.switch.counts(), [0, 0, 0]);
        } else {
            assert_eq!(said, [bundle(5)]);
            assert_eq!((world.rules().len(), world.table.commits), (3, 1));
        }
    }
    // A message that cannot be: nothing of the bundle is done.
    let wrong = Message::FlowMod(flow(9, ip(), vec![output(77)]));
    world.send(1, &bundle(0));
    world.send(1, &in_bundle(&Message::FlowMod(flow(8, ip(), vec![]))));
    world.send(1, &in_bundle(&wrong));
    assert_eq!(world.refused(&bundle(4)), Some(error::action::BAD_OUT_PORT));
    assert_eq!(world.switch.counts(), [3, 0, 0]);
    assert_eq!(world.refused(&bundle(4)), Some(error::bundle::BAD_ID));
    assert_eq!(world.refused(&in_bundle(&Message::BarrierRequest)), Some(error::bundle::MSG_UNSUP));
}

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
    let ports = vec![Bucket { weight: 1, ..bucket(number::ANY, vec![output(1)]) }; 2];
    assert_eq!(world.refused(&group(0, kind::SELECT, 4, ports)), Some(error::group_mod::BAD_BUCKET));
    // Entries that use a group go with it.
    assert_eq!(world.refused(&group(2, 0, 0xffff_fffc, vec![])), None);
    assert_eq!(world.switch.counts(), [0, 0, 0]);
    assert!(world.rules().is_empty());
}

#[test]
fn meters_have_one_band_that_drops() {
    let mut world = World::new();
    let meter = |bands| Message::MeterMod(MeterMod { command: 0, flags: 1, meter: 1, bands });
    let remark = Band { kind: 2, ..Band::drop(1, 0) };
    assert_eq!(world.refused(&meter(vec![remark])), Some(error::meter_mod::BAD_BAND));
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

#[test]
fn there_is_one_master_and_slaves_change_nothing() {
    let mut world = World::new();
    world.join(2);
    let ask = |role, generation| Message::RoleRequest(Role { role, generation });
    assert_eq!(world.refused(&ask(role::MASTER, 5)), None);
    world.send(2, &ask(role::MASTER, 4));
    assert!(matches!(&world.said()[..], [Message::Error(error)] if error.refusal == error::role_request::STALE));
    world.send(2, &ask(role::MASTER, 6));
    assert_eq!(world.said(), [Message::RoleReply(Role { role: role::MASTER, generation: 6 })]);
    assert_eq!(world.refused(&Message::FlowMod(flow(1, ip(), vec![]))), Some(error::request::IS_SLAVE));
    assert_eq!(world.refused(&ask(9, 9)), Some(error::role_request::BAD_ROLE));
    world.send(1, &Message::BarrierRequest);
    assert_eq!(world.said(), [Message::BarrierReply]);
}

#[test]
fn packets_go_to_controllers_and_come_from_them() {
    let mut world = World::new();
    assert!(!world.switch.wants_packets());
    assert_eq!(world.refused(&Message::FlowMod(flow(0, vec![], vec![output(number::CONTROLLER)]))), None);
    assert!(world.switch.wants_packets());
    assert_eq!(world.rules(), ["table=0,priority=0,cookie=0x8000000000000005,actions=punt(reason=no_match)"]);
    let heard = Heard { port: 1, tunnel: None, rules: vec![7], len: 60, bytes: vec![0; 60] };
    world.switch.packet_in(heard, &mut world.table);
    let said = world.said();
    let Message::PacketIn(packet) = &said[0] else { panic!("{said:?}") };
    assert_eq!((packet.reason, packet.cookie, packet.len, packet.data.len()), (0, 5, 60, 60));
    assert_eq!(packet.matching, [Oxm::basic(0, &[0, 0, 0, 2])]);
    let out = |actions| {
        let data = vec![0; 60];
        Message::PacketOut(millrace_agent::wire::packet::PacketOut { buffer: 0xffff_ffff, in_port: 2, actions, data })
    };
    assert_eq!(world.refused(&out(vec![output(number::FLOOD)])), None);
    assert_eq!(world.table.sent, [(60, 1, "output:0,output:1,output:2".to_owned())]);
    assert_eq!(world.refused(&out(vec![output(number::NORMAL)])), Some(error::action::BAD_OUT_PORT));
}

/// A packet of IPv4 with TCP to port 80, whose time to live is 9.
fn to_port_80() -> Vec<u8> {
    let mut packet =
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &[0x45, 0, 0, 40, 0, 0, 0, 0, 9, 6][..]].concat();
    packet
        .extend([0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x30, 0x39, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0]);
    let sum: u32 = packet[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[24..26].copy_from_slice(&checksum.to_be_bytes());
    packet
}

#[test]
fn a_packet_of_a_controller_goes_through_the_tables() {
    let mut world = World::new();
    let entry = |table, priority, matching, actions, more: Vec<Instruction>| {
        let apply = vec![Instruction::ApplyActions(actions)];
        Message::FlowMod(FlowMod { table, instructions: [apply, more].concat(), ..flow(priority, matching, vec![]) })
    };
    let register = |value: u8| Oxm { class: 1, ..Oxm::basic(0, &[0, 0, 0, value]) };
    let mark = Action::SetField(register(7));
    let goto = vec![Instruction::GotoTable(3)];
    let ttl = Oxm { class: 1, ..Oxm::basic(29, &[8]) };
    let from_2 = [vec![Oxm::basic(0, &[0, 0, 0, 2])], ip()].concat();
    for one in [
        entry(0, 1, ip(), vec![output(1)], vec![]),
        entry(0, 9, from_2.clone(), vec![Action::DecNwTtl, mark, output(3)], goto),
        entry(3, 5, vec![register(8)], vec![output(2)], vec![]),
        entry(
            3,
            5,
            [ip(), vec![register(7), ttl]].concat(),
            vec![output(1), output(number::CONTROLLER), output(3)],
            vec![],
        ),
    ] {
        assert_eq!(world.refused(&one), None);
    }
    let out = |in_port, actions| {
        let data = to_port_80();
        Message::PacketOut(millrace_agent::wire::packet::PacketOut { buffer: 0xffff_ffff, in_port, actions, data })
    };
    world.send(1, &out(2, vec![output(number::TABLE)]));
    let said = world.said();
    let [Message::PacketIn(packet)] = &said[..] else { panic!("{said:?}") };
    assert_eq!((packet.table, packet.reason, packet.data[22]), (3, 1, 8));
    let sent = std::mem::take(&mut world.table.sent);
    assert_eq!(sent, ["output:2", "output:0", "output:2"].map(|action| (54, 1, action.to_owned())));
    // From elsewhere another entry meets it; what is done before counts there, and what is done there does not count behind.
    assert_eq!(world.refused(&out(number::CONTROLLER, vec![output(2), output(number::TABLE), output(3)])), None);
    let sent: Vec<_> = std::mem::take(&mut world.table.sent).into_iter().map(|(_, _, action)| action).collect();
    assert_eq!(sent, ["output:1", "output:0", "output:2"]);
    assert_eq!(world.switch.take_looked_at(), 3 * 4);
    let twice = vec![output(number::TABLE), output(number::TABLE)];
    assert_eq!(world.refused(&out(2, twice)), Some(error::action::TOO_MANY));
    // It is for packets only.
    assert_eq!(
        world.refused(&Message::FlowMod(flow(1, ip(), vec![output(number::TABLE)]))),
        Some(error::action::BAD_OUT_PORT)
    );
}

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
    let heard = || Heard { port: 0, tunnel: None, rules: vec![7], len: 60, bytes: vec![0; 60] };
    world.switch.packet_in(heard(), &mut world.table);
    assert_eq!(world.said().len(), 1);
    world.send(1, &change(1, config::NO_PACKET_IN, config::NO_PACKET_IN));
    world.said();
    world.switch.packet_in(heard(), &mut world.table);
    assert!(world.said().is_empty());
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
    world.switch.packet_in(Heard { port: 2, tunnel, rules: vec![7], len: 60, bytes: vec![0; 60] }, &mut world.table);
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

#[test]
fn a_packet_of_which_a_part_is_told_is_kept_and_used_once() {
    let mut world = World::new();
    let some = Action::Output { port: number::CONTROLLER, max_len: 20 };
    assert_eq!(world.refused(&Message::FlowMod(flow(0, vec![], vec![some]))), None);
    let hear = |world: &mut World, len: u32| {
        let heard = Heard { port: 1, tunnel: None, rules: vec![7], len, bytes: vec![9; 60] };
        world.switch.packet_in(heard, &mut world.table);
        let said = world.said();
        let Message::PacketIn(packet) = &said[0] else { panic!("{said:?}") };
        (packet.buffer, packet.len, packet.data.len())
    };
    // Of one of which the end is not there, all is told that is.
    assert_eq!(hear(&mut world, 2000), (0xffff_ffff, 2000, 60));
    assert_eq!(hear(&mut world, 60), (1, 60, 20));
    assert_eq!(hear(&mut world, 60), (2, 60, 20));
    let out = |buffer| {
        let (actions, data) = (vec![output(3)], vec![]);
        Message::PacketOut(millrace_agent::wire::packet::PacketOut { buffer, in_port: 2, actions, data })
    };
    assert_eq!(world.refused(&out(1)), None);
    assert_eq!(world.refused(&out(1)), Some(error::request::BUFFER_EMPTY));
    assert_eq!(world.refused(&out(3)), Some(error::request::BUFFER_UNKNOWN));
    // An entry takes it along; it is there without, and is kept without the number.
    let entry = |priority, buffer| Message::FlowMod(FlowMod { buffer, ..flow(priority, ip(), vec![output(1)]) });
    assert_eq!(world.refused(&entry(5, 2)), None);
    assert_eq!(world.table.sent, [(60, 1, "output:2".to_owned()), (60, 1, "output:0".to_owned())]);
    assert_eq!(world.refused(&entry(6, 2)), Some(error::request::BUFFER_EMPTY));
    assert_eq!(world.rules().len(), 2);
    assert!(
        world.switch.take_done().iter().all(|done| !matches!(done, Message::FlowMod(change) if change.buffer == 2))
    );
    // The oldest makes room.
    let last = (0..257).map(|_| hear(&mut world, 60).0).last();
    assert_eq!(last, Some(259));
    assert_eq!(world.refused(&out(3)), Some(error::request::BUFFER_EMPTY));
    assert_eq!(world.refused(&out(4)), None);
}

#[test]
fn a_switch_is_made_again_of_what_was_done() {
    let mut world = World::new();
    for priority in 1..=2 {
        let change = FlowMod { hard_timeout: priority, ..flow(priority, ip(), vec![output(1)]) };
        assert_eq!(world.refused(&Message::FlowMod(change)), None);
    }
    let delete = FlowMod { command: command::DELETE_STRICT, ..flow(1, ip(), vec![]) };
    assert_eq!(world.refused(&Message::FlowMod(delete)), None);
    let mut again = Switch::new(Identity::default());
    again.look_at_ports(&mut world.table);
    let changes = again.restore(&world.switch.take_done(), true, &mut world.table).unwrap();
    assert_eq!((again.counts(), changes.len()), ([1, 0, 0], 1));
    // The card has not got it any more: its time was over.
    world.table.rules.clear();
    let messages: Vec<_> = world.switch.messages().collect();
    let mut late = Switch::new(Identity::default());
    late.look_at_ports(&mut world.table);
    assert_eq!(late.restore(&messages, true, &mut world.table).unwrap(), []);
    assert_eq!(late.counts(), [0, 0, 0]);
}

#[test]
fn a_question_is_answered_with_counters() {
    let mut world = World::new();
    assert_eq!(world.refused(&Message::FlowMod(flow(1, ip(), vec![output(1)]))), None);
    let question = FlowQuestion {
        table: 255,
        out_port: number::ANY,
        out_group: 0xffff_ffff,
        cookie: 0,
        cookie_mask: 0,
        matching: vec![],
    };
    world.send(1, &Message::MultipartRequest(0, Question::Flow(question)));
    let said = world.said();
    let Message::MultipartReply(0, Answer::Flow(stats)) = &said[0] else { panic!("{said:?}") };
    assert_eq!((stats[0].packets, stats[0].lifetime.sec, stats[0].priority), (3, 1, 1));
    world.send(1, &Message::MultipartRequest(0, Question::TableFeatures(vec![])));
    assert!(!world.said().is_empty());
}

#[test]
fn who_does_not_say_hello_is_heard_no_further() {
    let mut world = World::new();
    world.switch.connected(3);
    assert_eq!(world.send(3, &Message::BarrierRequest), Verdict::End);
    world.switch.connected(4);
    let mut old = vec![1, 0, 0, 8, 0, 0, 0, 1];
    let (header, whole) = first(&old).unwrap().unwrap();
    assert_eq!(world.switch.handle(4, &header, whole, &mut world.table), Verdict::End);
    let incompatible =
        |said: &Message| matches!(said, Message::Error(error) if error.refusal == error::hello::INCOMPATIBLE);
    assert!(world.said().iter().any(incompatible));
    old.clear();
}
