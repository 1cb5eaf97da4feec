//! Single datagrams, made by hand.

use super::{hex, protect};
use crate::quic::keys::{Secret, Side, Version};
use crate::quic::{Config, ConfigError, Learned, Limits, NameRule, Path, RoutableSpec, Steering, Why};
use std::net::IpAddr;

pub(super) const CLIENT_ID: &[u8] = &[0xc1, 0xc2];
pub(super) const SERVER_ID: &[u8] = &[0x51, 0x52, 0x53, 0x54, 0x55];
pub(super) const FIRST: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8];
/// An instance that is not the only one.
pub(super) const SERVER: u16 = 0;

pub(super) fn path(port: u16) -> Path {
    path_from("192.0.2.1", port)
}

pub(super) fn path_from(address: &str, port: u16) -> Path {
    Path { remote: (address.parse().unwrap(), port), local: (IpAddr::from([10, 0, 0, 1]), 443) }
}

pub(super) fn config() -> Config {
    Config { queues: vec![7, 8], instances: vec![SERVER], ..Config::default() }
}

/// A long header of version 1, filled up to the length of a first datagram. Nobody decrypts it.
pub(super) fn long(first: u8, destination: &[u8], source: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first, 0, 0, 0, 1, destination.len() as u8];
    bytes.extend(destination);
    bytes.push(source.len() as u8);
    bytes.extend(source);
    // No token; a length of two bytes.
    bytes.extend(if first & 0x30 == 0 { &[0][..] } else { &[] });
    let len = 1200 - bytes.len() - 2;
    bytes.extend((0x4000 | len as u16).to_be_bytes());
    bytes.resize(1200, 0);
    bytes
}

pub(super) fn initial(destination: &[u8]) -> Vec<u8> {
    long(0xc0, destination, CLIENT_ID)
}

pub(super) fn handshake(destination: &[u8], source: &[u8]) -> Vec<u8> {
    long(0xe0, destination, source)
}

pub(super) fn short(id: &[u8]) -> Vec<u8> {
    [&[0x40], id, &[9; 30]].concat()
}

fn connected(config: Config, server_id: &[u8]) -> Steering {
    let mut steering = Steering::new(config).unwrap();
    assert_eq!(steering.steer(0, &path(1), &initial(FIRST)).why, Why::Hash);
    steering.sent(1, SERVER, &path(1), &long(0xc0, CLIENT_ID, server_id));
    steering
}

pub(super) fn id(bytes: &[u8]) -> crate::quic::ConnectionId {
    crate::quic::ConnectionId::new(bytes).unwrap()
}

#[test]
fn ids_of_the_handshake_from_anywhere() {
    let mut steering = connected(config(), SERVER_ID);
    let known = |bytes, learned| Why::KnownId(id(bytes), learned);
    let answer = steering.steer(2, &path(1), &initial(FIRST));
    assert_eq!(answer.why, known(FIRST, Learned::FirstDestination));
    for port in [1, 2, 3, 1] {
        let answer = steering.steer(3, &path(port), &short(SERVER_ID));
        assert_eq!(answer.why, known(SERVER_ID, Learned::Handshake));
        assert_eq!(answer.target.map(|target| (target.instance, target.queue)), Some((SERVER, 7)));
        steering.check();
    }
    assert_eq!(steering.counters().moved, 3);
    assert_eq!(steering.steer(4, &path(4), &short(FIRST)).why, Why::Unknown, "no short header has that one");
    assert!(steering.set_queue(SERVER, 70) && !steering.set_queue(2, 70));
    assert_eq!(steering.steer(4, &path(4), &short(SERVER_ID)).target.map(|target| target.queue), Some(70));
    assert_eq!(steering.counters().datagrams(), 8);
}

#[test]
fn an_unknown_id_on_a_known_path_is_remembered() {
    let mut steering = connected(config(), SERVER_ID);
    let other = [0xa1, 0xa2, 0xa3, 0xa4, 0xa5];
    steering.steer(2, &path(1), &handshake(SERVER_ID, CLIENT_ID));
    assert_eq!(steering.steer(3, &path(2), &short(&other)).why, Why::Unknown);
    assert_eq!(steering.steer(3, &path(1), &short(&other)).why, Why::KnownPath);
    assert_eq!(steering.steer(3, &path(2), &short(&other)).why, Why::KnownId(id(&other), Learned::OnPath));
    steering.check();
}

#[test]
fn ids_of_length_0_are_found_by_path() {
    let mut steering = connected(config(), &[]);
    assert_eq!(steering.steer(2, &path(1), &short(&[])).why, Why::KnownPath);
    assert_eq!(steering.steer(2, &path(2), &short(&[])).why, Why::Unknown);
    // Another instance on the same path does not change that.
    steering.sent(3, 1, &path(1), &long(0xc0, &[0xdd], &[0x61; 6]));
    let answer = steering.steer(4, &path(1), &short(&[]));
    assert_eq!((answer.why, answer.target.unwrap().instance), (Why::KnownPath, SERVER));
    steering.check();
}

#[test]
fn short_ids_count_only_on_known_paths() {
    let mut steering = connected(config(), &[0x77, 0x78]);
    let why = Why::KnownId(id(&[0x77, 0x78]), Learned::Handshake);
    assert_eq!(steering.steer(2, &path(1), &short(&[0x77, 0x78])).why, why);
    assert_eq!(steering.steer(2, &path(2), &short(&[0x77, 0x78])).why, Why::Unknown);
}

#[test]
fn two_instances_on_one_path_cannot_be_told_apart_by_it() {
    let mut steering = connected(config(), SERVER_ID);
    steering.sent(3, 1, &path(1), &long(0xc0, &[0xdd], &[0x61; 6]));
    assert_eq!(steering.steer(4, &path(1), &short(&[0x99; 6])).why, Why::Unknown);
    assert_eq!(steering.steer(4, &path(1), &short(&[0x61; 6])).target.unwrap().instance, 1);
    assert_eq!(steering.steer(4, &path(1), &short(SERVER_ID)).target.unwrap().instance, SERVER);
    steering.check();
}

#[test]
fn an_id_stays_with_who_named_it_first() {
    let mut steering = connected(config(), SERVER_ID);
    steering.sent(3, 1, &path(9), &long(0xc0, &[0xdd], SERVER_ID));
    assert_eq!(steering.counters().conflicts, 1);
    assert_eq!(steering.steer(4, &path(9), &short(SERVER_ID)).target.unwrap().instance, SERVER);
    steering.forget_instance(SERVER);
    assert_eq!(steering.steer(5, &path(1), &short(SERVER_ID)).why, Why::Unknown);
    steering.check();
}

#[test]
fn without_what_instances_send() {
    let mut steering = Steering::new(Config { one_way: true, ..config() }).unwrap();
    steering.steer(0, &path(1), &initial(FIRST));
    let why = Why::KnownId(id(SERVER_ID), Learned::OtherSide);
    assert_eq!(steering.steer(1, &path(1), &handshake(SERVER_ID, CLIENT_ID)).why, why);
    assert_eq!(steering.steer(2, &path(2), &short(SERVER_ID)).why, why);
    let mut other = Steering::new(config()).unwrap();
    other.steer(0, &path(1), &initial(FIRST));
    assert_eq!(other.steer(1, &path(1), &handshake(SERVER_ID, CLIENT_ID)).why, Why::KnownPath);
    assert_eq!(other.steer(2, &path(2), &short(SERVER_ID)).why, Why::Unknown);
}

#[test]
fn an_instance_that_is_a_client() {
    let mut steering = Steering::new(config()).unwrap();
    steering.sent(0, 1, &path(1), &long(0xc0, FIRST, CLIENT_ID));
    let answer = steering.steer(1, &path(1), &long(0xc0, CLIENT_ID, SERVER_ID));
    assert_eq!(answer.target.unwrap().instance, 1);
    steering.sent(2, 1, &path(1), &handshake(SERVER_ID, CLIENT_ID));
    assert_eq!(steering.connections(), 1, "it writes to another id now, and is the same connection");
    steering.check();
}

#[test]
fn a_packet_of_another_kind() {
    let mut steering = Steering::new(config()).unwrap();
    let mut why = |bytes: &[u8]| steering.steer(0, &path(1), bytes).why;
    assert_eq!(why(&[]), Why::NotQuic);
    assert_eq!(why(&[0xc0, 0, 0]), Why::NotQuic);
    assert_eq!(why(&handshake(SERVER_ID, CLIENT_ID)), Why::Unknown);
    let mut grease = initial(FIRST);
    grease[1..5].copy_from_slice(&[0x0a; 4]);
    assert_eq!(why(&grease), Why::Hash, "the server says which versions it has");
    assert_eq!(steering.connections(), 0);
    steering.steer(0, &path(1), &initial(&FIRST[..7]));
    assert_eq!(steering.connections(), 0, "too short an id for a first packet");
}

#[test]
fn the_oldest_handshakes_make_room_and_time_ends_all() {
    let limits = Limits { handshakes: 4, connections: 5, ..Limits::default() };
    let mut steering = connected(Config { limits, ..config() }, SERVER_ID);
    steering.steer(2, &path(1), &short(SERVER_ID));
    for at in 0..10u8 {
        steering.steer(3, &path(100 + u16::from(at)), &initial(&[at; 8]));
        steering.check();
    }
    assert_eq!((steering.connections(), steering.counters().evicted), (5, 6));
    assert_eq!(steering.steer(4, &path(2), &short(SERVER_ID)).target.unwrap().instance, SERVER);
    let later = limits.handshake_ns + 5;
    for _ in 0..4 {
        steering.steer(later, &path(2), &short(SERVER_ID));
    }
    assert_eq!(steering.connections(), 1);
    assert_eq!(steering.steer(later + limits.idle_ns + 1, &path(2), &short(SERVER_ID)).why, Why::Unknown);
    assert_eq!(steering.counters().expired, 5);
    steering.check();
}

#[test]
fn a_source_has_a_bound_of_its_own() {
    let limits = Limits { per_source: 3, ..Limits::default() };
    let mut steering = Steering::new(Config { limits, ..config() }).unwrap();
    for at in 0..10u8 {
        let path = path_from(&format!("2001:db8::{at:x}"), 1);
        assert_eq!(steering.steer(0, &path, &initial(&[at; 8])).why, Why::Hash);
    }
    assert_eq!((steering.connections(), steering.counters().refused), (3, 7));
    steering.steer(0, &path_from("2001:db8:0:1::1", 1), &initial(&[99; 8]));
    assert_eq!(steering.connections(), 4);
    steering.check();
}

/// An Initial packet that can be decrypted, with this CRYPTO frame.
pub(super) fn encrypted(offset: u8, data: &[u8]) -> Vec<u8> {
    let mut header = long(0xc3, FIRST, CLIENT_ID);
    header.truncate(6 + FIRST.len() + 1 + CLIENT_ID.len() + 3);
    let mut payload = [&[6, offset, 0x40, data.len() as u8], data].concat();
    payload.resize(1200 - header.len() - 4 - 16, 0);
    header.extend([0, 0, 0, 1]);
    let secret = Secret::initial(Version::V1, FIRST, Side::Client).unwrap();
    protect(&secret.header_key().unwrap(), &secret.packet_key().unwrap(), 1, header, 4, &payload)
}

/// A ClientHello with a name.
pub(super) fn hello() -> Vec<u8> {
    let mut bytes = hex("0100003f0303");
    bytes.extend([7; 32]);
    bytes.extend(hex("00000213010100"));
    bytes.extend(hex("00140000001000 0e00000b6578616d706c652e636f6d".replace(' ', "").as_str()));
    bytes
}

pub(super) fn by_name() -> Config {
    let rule = NameRule { server_name: Some("example.com".into()), protocol: None, instances: vec![1] };
    Config { names: vec![rule], ..config() }
}

#[test]
fn a_name_in_two_datagrams() {
    let hello = hello();
    let mut steering = Steering::new(by_name()).unwrap();
    let first = steering.steer(0, &path(1), &encrypted(20, &hello[20..]));
    assert_eq!((first.why, first.target), (Why::HelloIncomplete, None));
    let second = steering.steer(1, &path(1), &encrypted(0, &hello[..20]));
    assert_eq!((second.why, second.target.unwrap().instance), (Why::Name(0), 1));
    let again = steering.steer(2, &path(1), &encrypted(20, &hello[20..]));
    assert_eq!(again.target.unwrap().instance, 1);
    steering.check();
}

#[test]
fn who_waits_too_long_or_says_nonsense_is_decided_without() {
    let limits = Limits::default();
    let mut steering = Steering::new(by_name()).unwrap();
    steering.steer(0, &path(1), &encrypted(20, &hello()[20..]));
    let late = steering.steer(limits.hello_ns + 1, &path(1), &encrypted(20, &hello()[20..]));
    assert_eq!((late.why, late.target.unwrap().instance), (Why::Hash, SERVER));
    let mut steering = Steering::new(by_name()).unwrap();
    assert_eq!(steering.steer(0, &path(1), &encrypted(0, &[2; 9])).why, Why::Hash);
    steering.check();
    let mut full = Steering::new(Config { limits: Limits { hellos: 0, ..limits }, ..by_name() }).unwrap();
    assert_eq!(full.steer(0, &path(1), &encrypted(20, &hello()[20..])).why, Why::Hash);
    full.check();
}

#[test]
fn what_is_refused() {
    let new = |config| Steering::new(config).map(|_| ());
    assert_eq!(new(Config { instances: vec![2], ..config() }), Err(ConfigError::Instance(2)));
    assert_eq!(new(Config { streams: vec![1], ..config() }), Err(ConfigError::StreamsWithoutKeys));
    let names = vec![NameRule::default()];
    assert_eq!(new(Config { names, ..config() }), Err(ConfigError::NoInstances(0)));
    let servers = vec![(vec![1], 3)];
    let spec = RoutableSpec { configuration: 0, server_id_len: 1, nonce_len: 4, key: None, servers };
    assert_eq!(new(Config { routable: vec![spec], ..config() }), Err(ConfigError::Instance(3)));
}
