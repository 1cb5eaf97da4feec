//! Rules of a card by the library: transactions, owners, events, explanations; and programs that ask for too much.

use crate::common::*;
use millrace::flow::{FlowChange, FlowKind, FlowOwner, FlowReason};
use millrace::{Device, Error, ErrorCode};
use millrace_abi::flow::{FlowOptions, FlowReply, FlowRequest, MAX_EXPLAINED, MAX_FLOW_TEXT};
use millrace_abi::message::{Reply, Request};
use std::time::{Duration, Instant};

/// Two connections to one card. A name means one card in the whole process, so every test gives a length of frames of
/// its own.
fn two_on_one_card(frame_max: usize) -> (Device, Device) {
    let name = format!("embedded:queues=4,frame-max={frame_max}");
    (Device::open_shared(&name).unwrap(), Device::open_shared(&name).unwrap())
}

fn code(error: Error) -> Option<ErrorCode> {
    match error {
        Error::Client(error) => error.code(),
        _ => None,
    }
}

#[test]
fn a_transaction_is_done_whole_or_not_at_all() {
    let device = Device::open("embedded:queues=4").unwrap();
    let flows = device.flows();
    let group = "group=1,rss,queues=0-3";
    let done = flows.transaction().add("ip,actions=rss:1").add(group).commit().unwrap();
    assert_eq!((done.version, done.added, done.changed.len()), (1, 1, 2));
    let refused = flows.transaction().add("tcp,actions=drop").add("udp,actions=rss:9").commit().unwrap_err();
    assert!(refused.to_string().starts_with("change 2: "), "{refused}");
    assert_eq!(code(refused), Some(ErrorCode::Invalid));
    // One in many messages that fails at the end, or halfway, leaves nothing behind either.
    let many = (0..5000).map(|number| FlowChange::Add(format!("priority={number},in_port=1,actions=drop")));
    let wrong = FlowChange::Add("upd,actions=drop".to_owned());
    let refused = flows.transaction().changes(many.clone().chain([wrong])).commit().unwrap_err();
    assert!(refused.to_string().starts_with("change 5001: "), "{refused}");
    let info = flows.info().unwrap();
    assert_eq!((info.version, info.rules, info.groups, info.own, info.kept), (1, 1, 1, 1, 0));
    assert_eq!(flows.transaction().changes(many.clone()).try_out().unwrap().added, 5000);
    assert_eq!(flows.info().unwrap().version, 1);
    let done = flows.transaction().changes(many).commit().unwrap();
    assert_eq!((done.version, done.added, done.changed.len() as u64 + done.omitted), (2, 5000, 5000));
    assert_eq!(flows.list("").unwrap().len(), 5003);
    assert_eq!(flows.list_at("in_port=1", Some(1)).unwrap(), (1, Vec::new()));
    let done = flows.transaction().modify("in_port=1,actions=queue:1").commit().unwrap();
    assert_eq!((done.added, done.modified, done.removed), (0, 5000, 0));
    assert_eq!(flows.list("out_port=1").unwrap().len(), 0);
    let done = flows.transaction().replace().add("arp,actions=queue:0").commit().unwrap();
    assert_eq!((done.added, done.modified, done.removed), (1, 0, 5001));
    assert_eq!(flows.info().unwrap().groups, 0);
}

#[test]
fn rules_belong_to_a_device_and_go_with_it() {
    let (one, other) = two_on_one_card(2001);
    one.flows().transaction().add("group=1,rss,queues=0").add("tcp,actions=rss:1").commit().unwrap();
    other.flows().add("udp,actions=rss:1").unwrap();
    other.flows().transaction().keep().add("arp,actions=queue:0").commit().unwrap();
    let refused = other.flows().add("tcp,actions=drop").unwrap_err();
    assert_eq!(code(refused), Some(ErrorCode::Denied));
    assert_eq!(other.flows().delete("").unwrap().removed, 1);
    other.flows().add("udp,actions=rss:1").unwrap();
    let mut watch = other.flows().watch().unwrap();
    drop(one);
    let begin = Instant::now();
    let mut told = Vec::new();
    while told.is_empty() && begin.elapsed() < PATIENCE {
        told = watch.next(Duration::from_millis(100)).unwrap().events;
    }
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].kind, told[0].reason), (FlowKind::Removed, Some(FlowReason::OwnerGone)));
    assert!(told[0].line.ends_with("tcp,actions=rss:1"), "{}", told[0].line);
    // The group stays as long as the other's rule uses it.
    let lines: Vec<String> = other.flows().list("").unwrap().into_iter().map(|entry| entry.line).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    let owners: Vec<FlowOwner> = other.flows().list("arp").unwrap().into_iter().map(|entry| entry.owner).collect();
    assert_eq!(owners, [FlowOwner::Card]);
    other.flows().delete("udp").unwrap();
    assert_eq!(other.flows().info().unwrap().groups, 0);
    // Who may do everything does it by saying so.
    assert_eq!(other.flows().delete("arp").unwrap().removed, 0);
    assert_eq!(other.flows().transaction().everyone().delete("arp").commit().unwrap().removed, 1);
}

#[test]
fn who_watches_what_goes_hears_of_nothing_else() {
    let device = Device::open("embedded:queues=4").unwrap();
    let flows = device.flows();
    let mut watch = flows.watch_removed().unwrap();
    let done = flows.transaction().brief().add("tcp,actions=drop").add("udp,actions=drop").commit().unwrap();
    assert_eq!((done.added, done.changed.len()), (2, 0));
    assert!(watch.next(Duration::from_millis(50)).unwrap().events.is_empty());
    flows.transaction().delete("udp").add("arp,actions=drop").commit().unwrap();
    let told = watch.next(PATIENCE).unwrap().events;
    assert_eq!(
        (told.len(), told[0].kind, &told[0].line[told[0].line.len() - 16..]),
        (1, FlowKind::Removed, "udp,actions=drop")
    );
    assert!(watch.next(Duration::ZERO).unwrap().events.is_empty());
}

#[test]
fn a_frame_is_explained_under_any_version() {
    let device = Device::open("embedded:queues=4").unwrap();
    let flows = device.flows();
    let mut frame = [0; 60];
    (frame[12], frame[13]) = (0x08, 0x06);
    flows.add("arp,actions=queue:3").unwrap();
    flows.add("arp,actions=drop").unwrap();
    let explained = flows.explain(&frame, 2, None, 10).unwrap();
    assert!(
        explained.text.starts_with("version 2: in_port=2") && explained.text.ends_with("drop\n"),
        "{}",
        explained.text
    );
    let explained = flows.explain(&frame, 2, Some(1), 10).unwrap();
    assert!(explained.text.contains("process: queue:3"), "{}", explained.text);
    assert!(explained.json.contains("\"queues\":[3]"), "{}", explained.json);
    assert_eq!(code(flows.explain(&frame, 2, Some(9), 10).unwrap_err()), Some(ErrorCode::NotFound));
    assert_eq!(code(flows.explain(&[0; MAX_EXPLAINED + 1], 2, None, 10).unwrap_err()), Some(ErrorCode::Invalid));
    // The shortest frames, and none at all.
    for len in 0..frame.len() {
        flows.explain(&frame[..len], 0, None, 10).unwrap();
    }
}

#[test]
fn threads_of_one_device_take_turns() {
    let device = Device::open("embedded:queues=4").unwrap();
    std::thread::scope(|scope| {
        for port in 0..4 {
            let flows = device.flows();
            scope.spawn(move || {
                // More than one message has, so that there is something to mix up.
                let rule = |number| FlowChange::Add(format!("priority={number},in_port={port},actions=queue:{port}"));
                for _ in 0..3 {
                    let done = flows.transaction().changes((0..3000).map(rule)).commit().unwrap();
                    assert_eq!(done.added, 3000);
                    assert_eq!(flows.list(&format!("in_port={port}")).unwrap().len(), 3000);
                    assert_eq!(flows.delete(&format!("in_port={port}")).unwrap().removed, 3000);
                }
            });
        }
    });
    assert_eq!(device.flows().info().unwrap().rules, 0);
}

/// What an honest client never asks for.
#[test]
fn requests_that_cannot_be_are_refused_and_nothing_is_left_of_them() {
    let daemon = Daemon::start("queues=2");
    let device = daemon.device();
    let peer = std::cell::RefCell::new(peer::Peer::connect(&daemon));
    let ask = |request| peer.borrow_mut().ask(&Request::Flow(request)).unwrap();
    let is_error = |reply: Reply, wanted: ErrorCode| match reply {
        Reply::Error { code, .. } => assert_eq!(code, wanted),
        other => panic!("{other:?}"),
    };
    is_error(ask(FlowRequest::Commit { dry_run: false }), ErrorCode::Invalid);
    is_error(ask(FlowRequest::Add(Vec::new())), ErrorCode::Invalid);
    is_error(ask(FlowRequest::More), ErrorCode::NotFound);
    is_error(ask(FlowRequest::List { filter: "x".repeat(60_000), version: None }), ErrorCode::Invalid);
    is_error(ask(FlowRequest::List { filter: String::new(), version: Some(u64::MAX) }), ErrorCode::NotFound);
    assert_eq!(ask(FlowRequest::Begin(FlowOptions::default())), Reply::Done);
    let rule = || FlowChange::Add("in_port=1,actions=drop".to_owned());
    assert_eq!(ask(FlowRequest::Add(vec![rule()])), Reply::Done);
    let long = FlowChange::Add("x".repeat(MAX_FLOW_TEXT + 1));
    is_error(ask(FlowRequest::Add(vec![long])), ErrorCode::Invalid);
    // What was sent before went with it.
    is_error(ask(FlowRequest::Commit { dry_run: false }), ErrorCode::Invalid);
    let empty = FlowChange::Delete("strict".to_owned());
    let options = FlowOptions::default();
    match ask(FlowRequest::Once { options, changes: vec![rule(), empty], dry_run: false }) {
        Reply::Flow(FlowReply::Committed(done)) => assert_eq!(done.added, 1),
        other => panic!("{other:?}"),
    }
    match ask(FlowRequest::Events { after: u64::MAX }) {
        Reply::Flow(FlowReply::Events(events)) => assert!(events.events.is_empty() && events.lost == 0),
        other => panic!("{other:?}"),
    }
    // One that goes in the middle of a transaction leaves nothing, and what it had goes with it.
    assert_eq!(ask(FlowRequest::Begin(options)), Reply::Done);
    assert_eq!(ask(FlowRequest::Add((0..1000).map(|_| rule()).collect())), Reply::Done);
    drop(peer);
    within(PATIENCE, || match device.flows().info().unwrap().rules {
        0 => Ok(()),
        rules => Err(rules),
    });
    let rules = |user: &millrace::visible::UserUse| user.used.of(millrace_abi::access::Resource::Rules);
    within(PATIENCE, || match device.usage().unwrap().iter().map(rules).sum::<u64>() {
        0 => Ok(()),
        used => Err(used),
    });
}

#[test]
fn keys_are_for_quic_groups_that_take_them_and_are_never_listed() {
    let (one, other) = two_on_one_card(2002);
    let secret = "ab".repeat(32);
    let log = format!("# a comment\nCLIENT_TRAFFIC_SECRET_0 {} {secret}\nSERVER_TRAFFIC_SECRET_0 x\n", "01".repeat(32));
    let small = "connections=50,handshakes=50,per_source=50";
    let flows = one.flows();
    let group = format!("group=2,quic,queues=0-1,{small}");
    flows.transaction().add("group=1,rss,queues=0").add(&group).commit().unwrap();
    for (number, wanted, text) in [
        (1, ErrorCode::NotFound, "there is no QUIC group 1"),
        (9, ErrorCode::NotFound, "there is no QUIC group 9"),
        (2, ErrorCode::Invalid, "takes no keys"),
    ] {
        let refused = flows.hand_over_keys(number, &log).unwrap_err();
        assert!(refused.to_string().contains(text) && !refused.to_string().contains(&secret), "{refused}");
        assert_eq!(code(refused), Some(wanted));
    }
    flows.add(&format!("{group},keys,streams=2-3")).unwrap();
    // What belongs to no connection is counted, and so is what cannot be read; neither is kept.
    for device in [&one, &other] {
        let keys = device.flows().hand_over_keys(2, &log).unwrap();
        assert_eq!((keys.taken, keys.unknown, keys.malformed, keys.connections), (0, 1, 1, 0));
    }
    let many = log.repeat(3000);
    let keys = flows.hand_over_keys(2, &many).unwrap();
    assert_eq!((keys.unknown, keys.malformed), (3000, 3000), "many messages");
    assert!(!flows.list("").unwrap().iter().any(|entry| entry.line.contains(&secret)));
    // The group goes, and with it what was handed over to it.
    one.flows().transaction().replace().commit().unwrap();
    assert_eq!(code(flows.hand_over_keys(2, "").unwrap_err()), Some(ErrorCode::NotFound));
}

#[test]
fn a_group_of_the_other_kind_is_called_that() {
    let device = Device::open("embedded:queues=4").unwrap();
    let flows = device.flows();
    let small = "connections=50,handshakes=50,per_source=50";
    let both = flows.transaction().add("group=1,rss,queues=0").add(&format!("group=2,quic,queues=0-1,{small}"));
    both.commit().unwrap();
    for (rule, wanted) in [
        ("udp,actions=rss:2", "group 2 is a QUIC group: write quic:2"),
        ("udp,actions=quic:1", "group 1 is an RSS group: write rss:1"),
        ("group=2,rss,queues=0", "there is a group 2 of the other kind"),
    ] {
        let refused = flows.add(rule).unwrap_err();
        assert!(refused.to_string().contains(wanted), "{refused}");
    }
}

#[test]
fn the_card_explains_which_queue_a_quic_packet_goes_to() {
    let device = Device::open("embedded:queues=4").unwrap();
    let flows = device.flows();
    let small = "connections=50,handshakes=50,per_source=50";
    let transaction = flows.transaction().add(&format!("group=2,quic,queues=3,{small}"));
    transaction.add("udp,udp_dst=443,actions=quic:2").commit().unwrap();
    let mut datagram = [&[0xc0, 0, 0, 0, 1, 8][..], &[5; 8], &[2, 1, 2, 0, 0x44, 0x9d]].concat();
    datagram.resize(1200, 0);
    let udp = [&[0, 9, 0x01, 0xbb][..], &1208u16.to_be_bytes(), &[0, 0], &datagram].concat();
    let ip =
        [&[0x45, 0][..], &1228u16.to_be_bytes(), &[0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2], &udp].concat();
    let frame = [&[2; 12][..], &[8, 0], &ip].concat();
    let told = flows.explain(&frame, 0, None, 0).unwrap();
    let why = "quic:2 queue 3: new connection, hash of the connection id that the client chose";
    assert!(told.text.contains(why), "{}", told.text);
    assert!(told.json.contains("\"queues\":[3]") && told.json.contains("\"steered\":[{"), "{}", told.json);
}
