//! Who may change something, who is heard, and what is answered.

use super::world::{World, flow, ip, output};
use millrace_agent::switch::Verdict;
use millrace_agent::wire::error;
use millrace_agent::wire::flow::FlowQuestion;
use millrace_agent::wire::multipart::{Answer, Question};
use millrace_agent::wire::port::number;
use millrace_agent::wire::switch::{Role, role};
use millrace_agent::wire::{Message, first};

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
