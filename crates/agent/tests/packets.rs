//! Packets to controllers and from them.

use super::world::{World, flow, ip, output};
use millrace_agent::switch::{Heard, Outgoing};
use millrace_agent::wire::Message;
use millrace_agent::wire::action::Action;
use millrace_agent::wire::error;
use millrace_agent::wire::flow::FlowMod;
use millrace_agent::wire::instruction::Instruction;
use millrace_agent::wire::oxm::Oxm;
use millrace_agent::wire::port::number;
use millrace_agent::wire::switch::{Config, Wants};

#[test]
fn packets_go_to_controllers_and_come_from_them() {
    let mut world = World::new();
    assert!(!world.switch.wants_packets());
    assert_eq!(world.refused(&Message::FlowMod(flow(0, vec![], vec![output(number::CONTROLLER)]))), None);
    assert!(world.switch.wants_packets());
    assert_eq!(world.rules(), ["table=0,priority=0,cookie=0x8000000000000005,actions=punt(reason=no_match)"]);
    let heard = Heard { port: 1, tunnel: None, rules: vec![7], is_expired: false, len: 60, bytes: vec![0; 60] };
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
    // Of each table its own.
    assert_eq!(world.switch.take_looked_at(), 2 + 2 + 2);
    let twice = vec![output(number::TABLE), output(number::TABLE)];
    assert_eq!(world.refused(&out(2, twice)), Some(error::action::TOO_MANY));
    // It is for packets only.
    assert_eq!(
        world.refused(&Message::FlowMod(flow(1, ip(), vec![output(number::TABLE)]))),
        Some(error::action::BAD_OUT_PORT)
    );
}

#[test]
fn a_packet_of_which_a_part_is_told_is_kept_and_used_once() {
    let mut world = World::new();
    let some = Action::Output { port: number::CONTROLLER, max_len: 20 };
    assert_eq!(world.refused(&Message::FlowMod(flow(0, vec![], vec![some]))), None);
    let of_ip = || [to_port_80(), vec![0; 6]].concat();
    let hear = |world: &mut World, len: u32| {
        let heard = Heard { port: 1, tunnel: None, rules: vec![7], is_expired: false, len, bytes: of_ip() };
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
fn a_packet_whose_time_is_over_is_told_to_those_who_want_that() {
    let mut world = World::new();
    world.join(2);
    assert_eq!(world.refused(&Message::FlowMod(flow(3, ip(), vec![Action::DecNwTtl, output(3)]))), None);
    let expired = Heard { port: 1, tunnel: None, rules: vec![7], is_expired: true, len: 60, bytes: vec![9; 60] };
    assert!(!world.switch.wants_expired());
    world.switch.packet_in(expired.clone(), &mut world.table);
    assert_eq!(world.said(), []);
    let wants = Wants { packet_in: [0b100, 0], ..Wants::default() };
    world.send(2, &Message::SetWants(wants));
    assert!(world.switch.wants_expired() && !world.switch.wants_packets());
    world.switch.packet_in(expired, &mut world.table);
    let told = world.switch.take_outgoing();
    let [Outgoing { controller: 2, message: Message::PacketIn(packet), .. }] = &told[..] else { panic!("{told:?}") };
    assert_eq!((packet.reason, packet.cookie, packet.data.len(), packet.buffer), (2, 5, 60, 0xffff_ffff));
    // One of a controller that goes through the tables.
    let mut data = to_port_80();
    data[22] = 1;
    let actions = vec![output(number::TABLE)];
    let out = millrace_agent::wire::packet::PacketOut { buffer: 0xffff_ffff, in_port: 2, actions, data: data.clone() };
    world.send(1, &Message::PacketOut(out));
    assert!(world.table.sent.is_empty());
    let told = world.said();
    assert!(matches!(&told[..], [Message::PacketIn(packet)] if packet.reason == 2 && packet.data == data), "{told:?}");
}

/// Controllers tell tables and tenants apart by it.
#[test]
fn a_packet_has_the_metadata_that_entries_have_written() {
    let mut world = World::new();
    let write = |metadata, mask| Instruction::WriteMetadata { metadata, mask };
    let entry = |table, instructions| Message::FlowMod(FlowMod { table, instructions, ..flow(1, vec![], vec![]) });
    let apply = Instruction::ApplyActions(vec![output(number::CONTROLLER)]);
    let first = vec![write(0xa5, 0xff), Instruction::GotoTable(2)];
    assert_eq!(world.refused(&entry(0, first)), None);
    assert_eq!(world.refused(&entry(2, vec![apply, write(0xf00, 0xf0f), Instruction::GotoTable(3)])), None);
    assert_eq!(world.refused(&entry(3, vec![Instruction::ApplyActions(vec![output(number::CONTROLLER)])])), None);
    let data = to_port_80();
    let actions = vec![output(number::TABLE)];
    let out = millrace_agent::wire::packet::PacketOut { buffer: 0xffff_ffff, in_port: 2, actions, data };
    world.send(1, &Message::PacketOut(out));
    let told = |said: Vec<Message>| -> Vec<_> {
        let packets = said.into_iter().map(|one| match one {
            Message::PacketIn(packet) => packet,
            other => panic!("{other:?}"),
        });
        packets.map(|packet| packet.matching).collect()
    };
    let metadata = |value: u64| vec![Oxm::basic(0, &[0, 0, 0, 2]), Oxm::basic(2, &value.to_be_bytes())];
    assert_eq!(told(world.said()), [metadata(0xa5), metadata(0xfa0)]);
    // Of one that the datapath has sent the switch knows by the entries that it has met.
    world.table.numbered = true;
    let numbers = [0, 2, 3];
    let heard = |rules: &[u64]| Heard {
        port: 1,
        tunnel: None,
        rules: rules.to_vec(),
        is_expired: false,
        len: 60,
        bytes: vec![0; 60],
    };
    world.switch.set_now(std::time::Duration::from_secs(9));
    world.switch.packet_in(heard(&numbers[..2]), &mut world.table);
    world.switch.packet_in(heard(&numbers), &mut world.table);
    assert_eq!(told(world.said()), [metadata(0xa5), metadata(0xfa0)]);
}

/// Section 7.3.2: it bounds what is told of packets without an output to controllers.
#[test]
fn of_a_packet_whose_time_is_over_as_much_is_told_as_was_configured() {
    let mut world = World::new();
    assert_eq!(world.refused(&Message::FlowMod(flow(3, ip(), vec![Action::DecNwTtl, output(3)]))), None);
    world.send(1, &Message::SetWants(Wants { packet_in: [0b100, 0], ..Wants::default() }));
    for (miss_send_len, told, kept) in [(0, 0, true), (20, 20, true), (64, 60, false), (0xffff, 60, false)] {
        world.send(1, &Message::SetConfig(Config { flags: 0, miss_send_len }));
        let heard = Heard { port: 1, tunnel: None, rules: vec![7], is_expired: true, len: 60, bytes: vec![9; 60] };
        world.switch.packet_in(heard, &mut world.table);
        let said = world.said();
        let [Message::PacketIn(packet)] = &said[..] else { panic!("{said:?}") };
        assert_eq!((packet.data.len(), packet.buffer != 0xffff_ffff), (told, kept), "{miss_send_len}");
    }
}

/// A packet that is kept is not lost with a message that cannot be, and goes through the tables with an entry.
#[test]
fn a_packet_that_is_kept_waits_for_a_message_that_can_be() {
    let mut world = World::new();
    let some = Action::Output { port: number::CONTROLLER, max_len: 20 };
    assert_eq!(world.refused(&Message::FlowMod(flow(0, vec![], vec![some]))), None);
    for _ in 0..2 {
        let bytes = to_port_80();
        let len = bytes.len() as u32;
        let heard = Heard { port: 1, tunnel: None, rules: vec![7], is_expired: false, len, bytes };
        world.switch.packet_in(heard, &mut world.table);
    }
    world.said();
    let out = |port| {
        let (actions, data) = (vec![output(port)], vec![]);
        Message::PacketOut(millrace_agent::wire::packet::PacketOut { buffer: 1, in_port: 2, actions, data })
    };
    assert_eq!(world.refused(&out(99)), Some(error::action::BAD_OUT_PORT));
    assert_eq!(world.refused(&out(3)), None);
    let entry = |table, actions| FlowMod { buffer: 2, table, ..flow(5, ip(), actions) };
    assert_eq!(world.refused(&Message::FlowMod(entry(4, vec![output(99)]))), Some(error::action::BAD_OUT_PORT));
    let goto = FlowMod { instructions: vec![Instruction::GotoTable(4)], ..flow(5, ip(), vec![]) };
    assert_eq!(world.refused(&Message::FlowMod(goto)), None);
    world.table.sent.clear();
    assert_eq!(world.refused(&Message::FlowMod(entry(4, vec![output(1)]))), None);
    assert_eq!(world.table.sent, [(54, 1, "output:0".to_owned())]);
}
