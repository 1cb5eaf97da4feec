//! Entries: which rules they become, what is refused, and which changes are done together.

use super::world::{World, flow, ip, output, tcp};
use millrace_agent::switch::{Identity, Switch};
use millrace_agent::wire::Message;
use millrace_agent::wire::action::Action;
use millrace_agent::wire::bundle::{BundleAdd, BundleControl};
use millrace_agent::wire::error;
use millrace_agent::wire::flow::{FlowMod, command, flag};
use millrace_agent::wire::instruction::Instruction;
use millrace_agent::wire::oxm::Oxm;
use millrace_agent::wire::port::number;

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
    assert_eq!(late.losses().untold, 1, "nobody knows what it had");
}
