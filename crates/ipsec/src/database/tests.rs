use super::*;
use crate::algorithm::Keys;
use crate::association::{Encapsulation, Mode};
use crate::ip;
use crate::lifetime::Limits;
use crate::selector::{Port, Prefix, Selector};

const NOW: u64 = 1_700_000_000;
const ROOM: usize = 128;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(text: &str, len: u8) -> Option<Prefix> {
    Some(Prefix { address: address(text), len })
}

fn parameters(source: &str, destination: &str, spi: u32, reqid: u32) -> Parameters {
    let keys = Keys::aead("rfc4106(gcm(aes))", &[spi as u8; 20], 128).unwrap();
    let id = Id { destination: address(destination), spi };
    Parameters { reqid, ..Parameters::tunnel(address(source), id, keys) }
}

fn template(source: &str, destination: &str, reqid: u32) -> Template {
    Template {
        source: Some(address(source)),
        destination: Some(address(destination)),
        protocol: 50,
        spi: 0,
        reqid,
        mode: Some(Mode::Tunnel),
        is_optional: false,
    }
}

fn policy(direction: Direction, source: &str, destination: &str, templates: Vec<Template>) -> Policy {
    Policy {
        selector: Selector { source: prefix(source, 16), destination: prefix(destination, 16), ..Selector::ALL },
        direction,
        priority: 100,
        index: 0,
        action: Action::Allow,
        mark: Mark::default(),
        if_id: 0,
        templates,
    }
}

/// The gateway of 10.1.0.0/16 at 192.0.2.1; the other is 192.0.2.2 with 10.2.0.0/16.
fn gateway() -> Database {
    let mut database = Database::new();
    for change in [
        Change::Associate(Box::new(parameters("192.0.2.1", "192.0.2.2", 0x1000, 1))),
        Change::Associate(Box::new(parameters("192.0.2.2", "192.0.2.1", 0x2000, 1))),
        Change::Policy(Box::new(policy(
            Direction::Out,
            "10.1.0.0",
            "10.2.0.0",
            vec![template("192.0.2.1", "192.0.2.2", 1)],
        ))),
        Change::Policy(Box::new(policy(
            Direction::Forward,
            "10.2.0.0",
            "10.1.0.0",
            vec![template("192.0.2.2", "192.0.2.1", 1)],
        ))),
    ] {
        database.apply(change, NOW).unwrap();
    }
    database
}

fn packet(source: &str, destination: &str) -> Vec<u8> {
    let mut packet = vec![0; 28];
    let outer = ip::Outer { class: 0, protocol: 17, is_whole: false, id: 1 };
    assert!(ip::write(&mut packet, address(source), address(destination), outer));
    packet[20..26].copy_from_slice(&[0, 53, 0, 99, 0, 8]);
    packet
}

fn in_room(packet: &[u8]) -> (Vec<u8>, Range<usize>) {
    ([&[0; ROOM][..], packet, &[0; ROOM]].concat(), ROOM..ROOM + packet.len())
}

/// What the other gateway sends.
fn arriving(database: &mut Database, other: &mut Association, inner: &[u8]) -> Result<(Flow, Handle), Refusal> {
    let (mut buffer, place) = in_room(inner);
    let place = other.seal(&mut buffer, place, NOW)?;
    let (opened, handle) = database.open(&mut buffer, place, 0, NOW)?.expect("there is ESP in it");
    assert_eq!(&buffer[opened.packet.clone()], inner);
    Ok((opened.flow, handle))
}

#[test]
fn both_ways_through_a_gateway() {
    let mut database = gateway();
    let out = packet("10.1.0.5", "10.2.0.6");
    let handle = database.find_leaving(&Flow::of(&out).unwrap(), NOW).unwrap().unwrap();
    let (mut buffer, place) = in_room(&out);
    let place = database.seal(handle, &mut buffer, place, NOW).unwrap();
    assert_eq!(buffer[place.start + 16..place.start + 20], [192, 0, 2, 2]);
    assert_eq!(database.counters().packets(Way::Out), 1);

    let mut other = Association::new(parameters("192.0.2.2", "192.0.2.1", 0x2000, 1), NOW).unwrap();
    let back = packet("10.2.0.6", "10.1.0.5");
    let (flow, by) = arriving(&mut database, &mut other, &back).unwrap();
    assert_eq!((flow.source, flow.source_port), (address("10.2.0.6"), 53));
    database.check(Direction::Forward, &flow, Some(by)).unwrap();
    assert_eq!(database.check(Direction::Forward, &flow, None), Err(Refusal::Clear));
    assert_eq!(
        database.check(Direction::In, &flow, Some(by)),
        Err(Refusal::NoPolicy),
        "no policy for this host itself"
    );
    assert_eq!(database.check(Direction::In, &flow, None), Ok(()));
    let counters = database.counters();
    assert_eq!((counters.packets(Way::In), counters.bytes(Way::In)), (1, 28));
    assert_eq!(counters.as_linux(), [("XfrmInNoPols", 1), ("XfrmInTmplMismatch", 1)]);
    // Other packets are none of its business.
    let (mut buffer, place) = in_room(&back);
    assert_eq!(database.open(&mut buffer, place, 0, NOW), Ok(None));
    assert_eq!(database.find_leaving(&Flow::of(&back).unwrap(), NOW), Ok(None));
}

#[test]
fn packets_of_another_association_are_refused() {
    let mut database = gateway();
    // A second peer, whose policy is another.
    let second = parameters("192.0.2.3", "192.0.2.1", 0x3000, 2);
    database.apply(Change::Associate(Box::new(second.clone())), NOW).unwrap();
    let mut third = Association::new(second, NOW).unwrap();
    let (flow, by) = arriving(&mut database, &mut third, &packet("10.2.0.6", "10.1.0.5")).unwrap();
    assert_eq!(database.check(Direction::Forward, &flow, Some(by)), Err(Refusal::Template));
    let mut unknown = Association::new(parameters("192.0.2.3", "192.0.2.1", 0x4000, 1), NOW).unwrap();
    let refusal = arriving(&mut database, &mut unknown, &packet("10.2.0.6", "10.1.0.5")).unwrap_err();
    assert_eq!(refusal, Refusal::NoAssociation);
    assert_eq!(database.counters().refused(Way::In, Refusal::NoAssociation), 1);
}

#[test]
fn packets_come_by_the_interface_of_their_association() {
    let mut database = gateway();
    let own = Parameters { if_id: 7, ..parameters("192.0.2.9", "192.0.2.1", 0x5000, 1) };
    database.apply(Change::Associate(Box::new(own.clone())), NOW).unwrap();
    let mut other = Association::new(own, NOW).unwrap();
    let (flow, by) = arriving(&mut database, &mut other, &packet("10.2.0.6", "10.1.0.5")).unwrap();
    assert_eq!(flow.if_id, 7);
    assert_eq!(database.check(Direction::Forward, &flow, Some(by)), Err(Refusal::NoPolicy), "the policy is of none");
}

#[test]
fn policies_in_their_order() {
    let mut database = gateway();
    let flow = Flow::of(&packet("10.1.0.5", "10.2.0.6")).unwrap();
    let mut blocks = policy(Direction::Out, "10.1.0.0", "10.2.0.0", vec![]);
    (blocks.action, blocks.priority, blocks.index) = (Action::Block, 50, 9);
    blocks.selector.destination_port = Port::one(99);
    database.apply(Change::Policy(Box::new(blocks.clone())), NOW).unwrap();
    assert_eq!(database.find_leaving(&flow, NOW), Err(Refusal::Blocked));
    assert!(database.find_leaving(&Flow { destination_port: 98, ..flow }, NOW).unwrap().is_some());
    let mut forms = vec![template("192.0.2.1", "192.0.2.2", 1); 2];
    let mut bundle = policy(Direction::Out, "10.1.0.0", "10.2.0.0", forms.clone());
    bundle.priority = 10;
    bundle.if_id = 7;
    database.apply(Change::Policy(Box::new(bundle)), NOW).unwrap();
    assert_eq!(database.find_leaving(&Flow { if_id: 7, ..flow }, NOW), Err(Refusal::Bundle));
    // The same packets once more: it takes the other's place.
    blocks.action = Action::Allow;
    database.apply(Change::Policy(Box::new(blocks.clone())), NOW).unwrap();
    assert_eq!(database.policies().len(), 4);
    assert_eq!(database.find_leaving(&flow, NOW), Ok(None));
    let key =
        PolicyKey { direction: Direction::Out, index: 9, selector: Selector::ALL, mark: Mark::default(), if_id: 0 };
    database.apply(Change::RemovePolicy(key), NOW).unwrap();
    assert!(database.find_leaving(&flow, NOW).unwrap().is_some());
    forms.truncate(1);
    forms[0].reqid = 77;
    database
        .apply(Change::Policy(Box::new(policy(Direction::Out, "10.1.0.0", "10.2.0.0", forms.clone()))), NOW)
        .unwrap();
    assert_eq!(database.find_leaving(&flow, NOW), Err(Refusal::NotYet));
    forms[0].is_optional = true;
    database.apply(Change::Policy(Box::new(policy(Direction::Out, "10.1.0.0", "10.2.0.0", forms))), NOW).unwrap();
    assert_eq!(database.find_leaving(&flow, NOW), Ok(None));
    database.apply(Change::FlushPolicies, NOW).unwrap();
    database.apply(Change::Default(Direction::Out, Action::Block), NOW).unwrap();
    assert_eq!(database.find_leaving(&flow, NOW), Err(Refusal::NoPolicy));
}

#[test]
fn the_youngest_that_need_not_be_renewed() {
    let mut database = gateway();
    let flow = Flow::of(&packet("10.1.0.5", "10.2.0.6")).unwrap();
    let add = |database: &mut Database, spi, limits| {
        let made = Parameters { limits, ..parameters("192.0.2.1", "192.0.2.2", spi, 1) };
        database.apply(Change::Associate(Box::new(made)), NOW).unwrap();
        let handle = database.find_leaving(&flow, NOW).unwrap().unwrap();
        database.association(handle).unwrap().parameters().id.spi
    };
    assert_eq!(add(&mut database, 0x1001, Limits::NONE), 0x1001);
    assert_eq!(add(&mut database, 0x1002, Limits { soft_packets: 0, ..Limits::NONE }), 0x1001);
    assert_eq!(add(&mut database, 0x1003, Limits { hard_packets: 0, ..Limits::NONE }), 0x1001);
    let handle = database.find_leaving(&flow, NOW).unwrap().unwrap();
    let gone = Id { destination: address("192.0.2.2"), spi: 0x1001 };
    database.apply(Change::Dissociate(gone, Mark::default()), NOW).unwrap();
    assert!(database.association(handle).is_none());
    let (mut buffer, place) = in_room(&packet("10.1.0.5", "10.2.0.6"));
    assert_eq!(database.seal(handle, &mut buffer, place, NOW), Err(Refusal::NoAssociation));
    assert_eq!(add(&mut database, 0x1004, Limits { soft_packets: 0, ..Limits::NONE }), 0x1000);
}

#[test]
fn a_list_takes_the_place_of_what_was_there() {
    let mut database = gateway();
    let flow = Flow::of(&packet("10.1.0.5", "10.2.0.6")).unwrap();
    let handle = database.find_leaving(&flow, NOW).unwrap().unwrap();
    let (mut buffer, place) = in_room(&packet("10.1.0.5", "10.2.0.6"));
    database.seal(handle, &mut buffer, place, NOW).unwrap();
    let before = database.changes();
    database.begin_list();
    let listed = parameters("192.0.2.1", "192.0.2.2", 0x1000, 1);
    database.apply(Change::Associate(Box::new(listed)), NOW).unwrap();
    let kept = policy(Direction::Out, "10.1.0.0", "10.2.0.0", vec![template("192.0.2.1", "192.0.2.2", 1)]);
    database.apply(Change::Policy(Box::new(kept)), NOW).unwrap();
    database.end_list();
    assert!(database.changes() > before);
    assert_eq!((database.associations().count(), database.policies().len()), (1, 1));
    assert_eq!(database.association(handle).unwrap().sent(), 1, "it is the same one, and its numbers go on");
    database.apply(Change::FlushAssociations, NOW).unwrap();
    assert_eq!(database.find_leaving(&flow, NOW), Err(Refusal::NotYet));
}

#[test]
fn ends_and_moves_are_reported() {
    let mut database = Database::new();
    let mut made = parameters("192.0.2.2", "192.0.2.1", 0x2000, 5);
    made.encapsulation = Some(Encapsulation { source_port: 4500, destination_port: 4500 });
    made.limits = Limits { soft_packets: 1, hard_added: 60, ..Limits::NONE };
    database.apply(Change::Associate(Box::new(made.clone())), NOW).unwrap();
    let mut other = Association::new(Parameters { source: address("198.51.100.1"), ..made.clone() }, NOW).unwrap();
    let back = packet("10.2.0.6", "10.1.0.5");
    arriving(&mut database, &mut other, &back).unwrap();
    let usage = Usage { bytes: 28, packets: 1, added: NOW, used: NOW };
    assert_eq!(database.next_event(), Some(Event::End { id: made.id, reqid: 5, end: End::Soft, usage }));
    let moved = Event::Moved { id: made.id, source: address("198.51.100.1"), port: 4500 };
    assert_eq!(database.next_event(), Some(moved));
    arriving(&mut database, &mut other, &back).unwrap();
    assert_eq!(database.next_event(), None);
    let before = database.changes();
    database.tick(NOW + 60);
    assert!(matches!(database.next_event(), Some(Event::End { end: End::Hard, .. })));
    assert_eq!((database.next_event(), database.lost_events()), (None, 0));
    // What is over is not kept: with keys that are renewed there would be more and more of them.
    assert_eq!((database.associations().count(), database.changes()), (0, before + 1));
    assert_eq!(arriving(&mut database, &mut other, &back).unwrap_err(), Refusal::NoAssociation);
}

#[test]
fn marks_tell_associations_apart() {
    let mut database = Database::new();
    for mark in [1, 2] {
        let made = Parameters {
            mark: Mark { value: mark, mask: 0xff },
            reqid: mark,
            ..parameters("192.0.2.2", "192.0.2.1", 0x2000, 0)
        };
        database.apply(Change::Associate(Box::new(made)), NOW).unwrap();
    }
    let id = Id { destination: address("192.0.2.1"), spi: 0x2000 };
    for mark in [1, 2] {
        let handle = database.find_arriving(id, mark | 0x100).unwrap();
        assert_eq!(database.association(handle).unwrap().parameters().reqid, mark);
    }
    assert_eq!(database.find_arriving(id, 3), Err(Refusal::NoAssociation));
}
