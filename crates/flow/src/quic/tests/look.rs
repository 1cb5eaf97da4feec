//! Explanations: the same queue that a packet gets, and nothing is learned of it.

use super::world::*;
use crate::quic::{Config, Group, HandedOver, KeyLogLine, Learned, Look, Other, RoutableSpec, Side, Why};

/// What is said before the packet comes is what becomes of it.
fn agrees(group: &Group, port: u16, datagram: &[u8]) -> Look {
    let (before, connections) = (group.counters(), group.connections());
    let look = group.look(&path(port), datagram);
    assert_eq!((group.counters(), group.connections()), (before, connections), "something was learned");
    let (queue, why) = group.queue(5, &path(port), datagram);
    assert_eq!((look.queue, look.why), (queue, why));
    look
}

#[test]
fn each_why_is_said_before_and_after() {
    let routable =
        RoutableSpec { configuration: 0, server_id_len: 1, nonce_len: 6, key: None, servers: vec![(vec![0x0b], 1)] };
    let group = Group::of(Config { routable: vec![routable], ..config() });
    assert_eq!(agrees(&group, 1, &[]).why, Why::NotQuic);
    assert_eq!(agrees(&group, 1, &short(SERVER_ID)), Look { queue: None, why: Why::Unknown, by_stream: false });
    let first = initial(&[0xf1; 8]);
    assert_eq!(agrees(&group, 1, &first), Look { queue: Some(7), why: Why::Hash, by_stream: false });
    assert_eq!(agrees(&group, 1, &first).why, Why::KnownId(id(&[0xf1; 8]), Learned::FirstDestination));
    group.sent(2, SERVER, &path(1), &long(0xc0, CLIENT_ID, SERVER_ID));
    assert_eq!(
        agrees(&group, 1, &handshake(SERVER_ID, CLIENT_ID)).why,
        Why::KnownId(id(SERVER_ID), Learned::Handshake)
    );
    assert_eq!(agrees(&group, 9, &short(SERVER_ID)).queue, Some(7), "from another address");
    assert_eq!(agrees(&group, 1, &short(&[0x77; 5])).why, Why::KnownPath);
    let routed = agrees(&group, 3, &short(&[0x0b; 8]));
    assert_eq!((routed.queue, routed.why), (Some(8), Why::Routable(0)));
    group.check();
}

#[test]
fn names_and_streams() {
    let group = Group::of(Config { keys: true, streams: vec![10, 11], ..by_name() });
    let hello = hello();
    assert_eq!(agrees(&group, 1, &encrypted(0, &hello[..30])).why, Why::HelloIncomplete);
    let group = Group::of(Config { keys: true, streams: vec![10, 11], ..by_name() });
    assert_eq!(agrees(&group, 1, &encrypted(0, &hello)).why, Why::Name(0));
    group.sent(2, 1, &path(1), &long(0xc0, CLIENT_ID, SERVER_ID));
    assert!(!agrees(&group, 1, &short(SERVER_ID)).by_stream);
    let line = KeyLogLine { random: [7; 32], side: Side::Client, secret: vec![1; 32] };
    assert_eq!(group.hand_over(1, &line), HandedOver::Taken);
    // Which stream it is, is not decrypted for whoever asks.
    assert!(agrees(&group, 1, &short(SERVER_ID)).by_stream);
}

#[test]
fn what_nothing_tells_apart_goes_by_address_if_it_shall() {
    use crate::quic::GroupSpec;
    let spec = GroupSpec {
        other: Other::Hash,
        connections: 50,
        handshakes: 50,
        per_source: 50,
        ..GroupSpec::over(vec![3, 4])
    };
    let group = Group::new(&spec).unwrap();
    assert!(agrees(&group, 1, &short(SERVER_ID)).queue.is_some());
}
