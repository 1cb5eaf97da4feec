//! Keys that applications hand over to a group: whose they are, what they are good for, and when they are forgotten.

use super::protect;
use super::world::*;
use crate::quic::keys::{Secret, Suite, Version};
use crate::quic::{Config, Group, HandedOver, KeyLogLine, Limits, Side, Why};

const RANDOM: [u8; 32] = [7; 32];
const SECRET: [u8; 32] = [0x33; 32];

fn of(limits: Limits) -> Group {
    Group::of(Config { keys: true, streams: vec![10, 11, 12], limits, ..config() })
}

/// A group that knows a connection with [`SERVER_ID`] on path 1, whose client sent [`RANDOM`].
fn connected(limits: Limits) -> Group {
    let group = of(limits);
    group.steer(1, &path(1), &encrypted(0, &hello()));
    group.sent(2, SERVER, &path(1), &long(0xc0, CLIENT_ID, SERVER_ID));
    group.steer(3, &path(1), &handshake(SERVER_ID, CLIENT_ID));
    group
}

fn line(side: Side) -> KeyLogLine {
    KeyLogLine { random: RANDOM, side, secret: SECRET.to_vec() }
}

/// A packet of the client with a STREAM frame.
fn on_stream(stream: u8, number: u16, updates: u32) -> Vec<u8> {
    let first = Secret::new(Version::V1, Suite::Aes128Gcm, &SECRET).unwrap();
    let mut secret = first.clone();
    for _ in 0..updates {
        secret = secret.next().unwrap();
    }
    let phase = if updates % 2 == 1 { 0x04 } else { 0 };
    let header = [&[0x41 | phase][..], SERVER_ID, &number.to_be_bytes()].concat();
    let payload = [&[0x08, stream][..], b"on a stream"].concat();
    protect(&first.header_key().unwrap(), &secret.packet_key().unwrap(), number.into(), header, 2, &payload)
}

#[test]
fn streams_go_to_their_queues_through_moves_and_key_updates() {
    let group = connected(Limits::default());
    let why = |packet: &[u8], port| {
        let answer = group.steer(4, &path(port), packet);
        (answer.why, answer.target.map(|target| target.queue))
    };
    assert!(matches!(why(&on_stream(4, 1, 0), 1), (Why::KnownId(..), Some(7))), "without keys");
    assert_eq!(group.hand_over(1, &line(Side::Client)), HandedOver::Taken);
    for number in 2..20 {
        let stream = (number % 6 * 4) as u8;
        let queue = 10 + u16::from(stream / 4) % 3;
        // It moves, and updates its keys, twice each.
        let (port, updates) = (1 + number / 8, u32::from(number / 7));
        assert_eq!(
            why(&on_stream(stream, number, updates), port),
            (Why::Stream(stream.into()), Some(queue)),
            "{number}"
        );
    }
    // The same secret once more takes nothing back.
    assert_eq!(group.hand_over(1, &line(Side::Client)), HandedOver::Taken);
    assert_eq!(why(&on_stream(8, 20, 2), 1).0, Why::Stream(8));
    // What cannot be decrypted belongs to the connection.
    assert!(matches!(why(&short(SERVER_ID), 1), (Why::KnownId(..), Some(7))));
    let counters = group.counters();
    assert_eq!((counters.stream, counters.moved, counters.secrets_refused), (19, 3, 0));
    group.check();
}

#[test]
fn they_are_forgotten_with_their_owner_and_with_their_connection() {
    let group = connected(Limits { idle_ns: 1_000_000_000, ..Limits::default() });
    assert_eq!(group.hand_over(1, &line(Side::Client)), HandedOver::Taken);
    assert_eq!(group.hand_over(1, &line(Side::Server)), HandedOver::Taken);
    assert_eq!((group.keys_of(1), group.keys_of(2)), (1, 0));
    let is_read = |number| matches!(group.steer(4, &path(1), &on_stream(4, number, 0)).why, Why::Stream(4));
    assert!(is_read(1));
    group.forget_keys(2);
    assert!(is_read(2), "what somebody else has handed over stays");
    group.forget_keys(1);
    assert!(!is_read(3) && group.keys_of(1) == 0, "a thread that has used them has kept them");
    assert_eq!(group.hand_over(2, &line(Side::Client)), HandedOver::Taken);
    assert!(is_read(4));
    group.expire(10_000_000_000);
    assert_eq!((group.keys_of(2), group.connections()), (0, 0));
    assert_eq!(group.hand_over(2, &line(Side::Client)), HandedOver::Unknown);
    group.check();
}

#[test]
fn what_is_refused_says_why() {
    let group = connected(Limits { keys: 0, ..Limits::default() });
    assert_eq!(group.hand_over(1, &line(Side::Client)), HandedOver::Full);
    let group = connected(Limits::default());
    assert_eq!(group.hand_over(1, &KeyLogLine { random: [8; 32], ..line(Side::Client) }), HandedOver::Unknown);
    assert_eq!(group.hand_over(1, &KeyLogLine { secret: vec![1; 31], ..line(Side::Client) }), HandedOver::Invalid);
    assert_eq!(group.hand_over(1, &line(Side::Client)), HandedOver::Taken);
    assert_eq!(group.hand_over(2, &line(Side::Server)), HandedOver::Foreign);
    assert_eq!(group.counters().secrets_refused, 3);
    group.check();
}

/// Workers read streams beside one another, while keys come and go.
#[test]
fn threads_read_the_streams_of_one_connection() {
    let group = connected(Limits::default());
    group.hand_over(1, &line(Side::Client));
    let packets: Vec<Vec<u8>> = (0..400).map(|number| on_stream((number % 3 * 4) as u8, number, 0)).collect();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (group, packets) = (&group, &packets);
            scope.spawn(move || {
                for (at, packet) in packets.iter().enumerate().skip(part).step_by(4) {
                    let answer = group.steer(4, &path(1), packet);
                    let wanted = (Why::Stream(at as u64 % 3 * 4), Some(10 + at as u16 % 3));
                    // One that finds the table taken for too long does without.
                    let is_without = matches!(answer.why, Why::KnownId(..)) && group.counters().busy > 0;
                    assert!(is_without || (answer.why, answer.target.map(|target| target.queue)) == wanted);
                }
            });
        }
    });
    let counters = group.counters();
    assert_eq!(counters.stream + counters.busy, 400);
}
