//! What one controller asks for is bounded: in memory, in work, and so that every answer about it is a message.

use super::world::{World, flow, ip, output};
use millrace_agent::switch::Switch;
use millrace_agent::switch::datapath::{Change, Datapath, PortInfo, QueueInfo, Rejected, Snapshot};
use millrace_agent::wire::action::Action;
use millrace_agent::wire::error;
use millrace_agent::wire::flow::FlowQuestion;
use millrace_agent::wire::group::{Bucket, GroupMod, kind};
use millrace_agent::wire::hello::Hello;
use millrace_agent::wire::instruction::Instruction;
use millrace_agent::wire::multipart::{Answer, Question};
use millrace_agent::wire::packet::PacketOut;
use millrace_agent::wire::port::number;
use millrace_agent::wire::{LONGEST, Message, first};

fn bucket(actions: Vec<Action>) -> Bucket {
    Bucket { weight: 0, watch_port: number::ANY, watch_group: number::ANY, actions }
}

fn group(group: u32, buckets: Vec<Bucket>) -> Message {
    Message::GroupMod(GroupMod { command: 0, kind: kind::ALL, group, buckets })
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(message.encode(1, &mut bytes), "{:?} is longer than a message", message.kind());
    bytes
}

/// Whatever a message asks for, each answer to a question is a message of the length that it says.
#[test]
fn what_is_accepted_can_be_told() {
    let mut world = World::new();
    // Each makes no action of the flow table; the message has 65,528 bytes, and the answer about the entry would have 16 more.
    let change = flow(1, ip(), vec![Action::SetQueue(0); 8182]);
    assert!(encoded(&Message::FlowMod(change.clone())).len() > LONGEST - 16);
    assert_eq!(world.refused(&Message::FlowMod(change)), Some(error::action::TOO_MANY));
    assert_eq!(world.refused(&group(1, vec![bucket(vec![Action::SetQueue(0); 8186])])), Some(error::action::TOO_MANY));
    let many = vec![bucket(vec![Action::SetQueue(0); 29]); 256];
    assert_eq!(world.refused(&group(1, many)), Some(error::action::TOO_MANY));
    // The longest that there may be.
    let longest = flow(2, ip(), vec![Action::SetQueue(0); 128]);
    assert_eq!(world.refused(&Message::FlowMod(longest)), None);
    assert_eq!(world.refused(&group(2, vec![bucket(vec![Action::SetQueue(0); 4]); 256])), None);
    let all = FlowQuestion {
        table: 0xff,
        out_port: number::ANY,
        out_group: number::ANY,
        cookie: 0,
        cookie_mask: 0,
        matching: vec![],
    };
    for question in [Question::Flow(all), Question::GroupDesc, Question::Group(0xffff_fffc)] {
        world.send(1, &Message::MultipartRequest(0, question));
        let said = world.said();
        assert!(!said.is_empty());
        for message in said {
            let bytes = encoded(&message);
            let (header, whole) = first(&bytes).unwrap().unwrap();
            assert_eq!((usize::from(header.len), whole.len()), (bytes.len(), bytes.len()));
        }
    }
}

/// A group can be named by each action of an entry or a packet, and has many actions itself: they are counted, not made.
#[test]
fn groups_do_not_multiply() {
    let mut world = World::new();
    let wide = group(1, vec![bucket(vec![output(1); 60])]);
    assert_eq!(world.refused(&wide), None);
    assert_eq!(world.refused(&group(2, vec![bucket(vec![output(1); 65])])), Some(error::action::TOO_MANY));
    let many = vec![Action::Group(1); 100];
    assert_eq!(world.refused(&Message::FlowMod(flow(1, ip(), many.clone()))), Some(error::action::TOO_MANY));
    let packet = |actions| {
        let (buffer, in_port) = (0xffff_ffff, number::CONTROLLER);
        Message::PacketOut(PacketOut { buffer, in_port, actions, data: vec![0; 60] })
    };
    assert_eq!(world.refused(&packet(many)), Some(error::action::TOO_MANY));
    // Three ports: 66 are too many for either.
    let floods = vec![output(number::FLOOD); 22];
    assert_eq!(world.refused(&packet(floods.clone())), Some(error::action::TOO_MANY));
    assert_eq!(world.refused(&Message::FlowMod(flow(1, ip(), floods))), Some(error::action::TOO_MANY));
    let mut written = flow(1, ip(), vec![]);
    written.instructions = vec![Instruction::WriteActions(vec![output(1); 129])];
    assert_eq!(world.refused(&Message::FlowMod(written)), Some(error::action::TOO_MANY));
    assert_eq!(world.refused(&packet(vec![Action::Group(1)])), None);
    assert_eq!(world.rules(), Vec::<String>::new());
}

/// A card with more queues than one message can tell of.
struct Queues;

impl Datapath for Queues {
    fn commit(&mut self, _: &[Change]) -> Result<u64, Rejected> {
        Ok(1)
    }

    fn snapshot(&mut self) -> Result<Snapshot, Rejected> {
        Ok(Snapshot::default())
    }

    fn ports(&mut self) -> Result<(Vec<PortInfo>, Vec<QueueInfo>), Rejected> {
        Ok((Vec::new(), (0..4096).map(|queue| QueueInfo { queue, ..QueueInfo::default() }).collect()))
    }

    fn send(&mut self, _: &[u8], _: u32, _: &[millrace_flow::Action]) -> Result<(), Rejected> {
        Ok(())
    }
}

#[test]
fn queues_beyond_a_message_are_left_out() {
    let mut switch = Switch::new(millrace_agent::switch::Identity::default());
    switch.look_at_ports(&mut Queues);
    switch.connected(1);
    for message in [Message::Hello(Hello::own()), Message::QueueConfigRequest(number::LOCAL)] {
        let bytes = encoded(&message);
        let (header, whole) = first(&bytes).unwrap().unwrap();
        switch.handle(1, &header, whole, &mut Queues);
    }
    let said = switch.take_outgoing();
    let config = said.iter().find_map(|said| match &said.message {
        Message::QueueConfigReply(config) => Some(config.queues.len()),
        _ => None,
    });
    assert_eq!(config, Some(4094));
    said.iter().for_each(|said| drop(encoded(&said.message)));
    // Those are told in parts, all of them.
    let bytes = encoded(&Message::MultipartRequest(0, Question::Queue(number::LOCAL, u32::MAX)));
    let (header, whole) = first(&bytes).unwrap().unwrap();
    switch.handle(1, &header, whole, &mut Queues);
    let count = |message: &Message| match message {
        Message::MultipartReply(_, Answer::Queue(queues)) => queues.len(),
        _ => 0,
    };
    assert_eq!(switch.take_outgoing().iter().map(|said| count(&said.message)).sum::<usize>(), 4096);
}

#[test]
fn a_message_that_is_too_long_is_not_written() {
    let mut bytes = vec![7];
    assert!(!Message::EchoReply(vec![0; LONGEST]).encode(1, &mut bytes));
    assert_eq!(bytes, [7]);
    assert!(Message::EchoReply(vec![0; LONGEST - 8]).encode(1, &mut bytes));
    assert_eq!(bytes.len(), 1 + LONGEST);
}
