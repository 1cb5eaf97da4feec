//! Anything, from anybody, in any order: what is kept fits together and stays within its bounds.

use crate::quic::{Config, Group, KeyLogLine, Limits, NameRule, Path, RoutableSpec, Side, Steering};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Steer,
    Sent(u16),
    HandOver,
    Forget(u16),
}

/// Few ids and few bytes, so that they meet.
fn datagram() -> impl Strategy<Value = Vec<u8>> {
    let id = || proptest::collection::vec(0u8..3, 0..10);
    let first = prop_oneof![Just(0xc0u8), Just(0xd0), Just(0xe0), Just(0xf0), Just(0x40), any::<u8>()];
    let version = prop_oneof![4 => Just(1u32), 1 => Just(0x6b33_43cf), 1 => any::<u32>()];
    (first, version, id(), id(), prop_oneof![Just(1200usize), 0usize..60]).prop_map(
        |(first, version, destination, source, len)| {
            let mut bytes = vec![first];
            if first & 0x80 != 0 {
                bytes.extend(version.to_be_bytes());
                bytes.push(destination.len() as u8);
                bytes.extend(destination);
                bytes.push(source.len() as u8);
                bytes.extend(source);
                bytes.extend([0, 0x40, 40]);
            } else {
                bytes.extend(destination);
            }
            bytes.resize(len.max(bytes.len()), 1);
            bytes
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => Just(Op::Steer),
        6 => (0u16..4).prop_map(Op::Sent),
        1 => Just(Op::HandOver),
        1 => (0u16..4).prop_map(Op::Forget),
    ]
}

fn config(names: bool, keys: bool, one_way: bool) -> Config {
    let limits = Limits { connections: 12, handshakes: 8, per_source: 6, hellos: 3, keys: 2, ..Limits::default() };
    let rule = NameRule { server_name: Some("*.test".into()), protocol: None, instances: vec![2] };
    let servers = vec![(vec![1], 2)];
    let spec = RoutableSpec { configuration: 0, server_id_len: 1, nonce_len: 4, key: None, servers };
    Config {
        queues: vec![0, 1, 2],
        instances: vec![0, 1],
        names: if names { vec![rule] } else { Vec::new() },
        routable: vec![spec],
        keys,
        one_way,
        limits,
        ..Config::default()
    }
}

proptest! {
    #[test]
    fn any_traffic(
        ops in proptest::collection::vec((op(), datagram(), 0u16..3, 0u8..3, 0u64..2_000_000_000), 1..120),
        names: bool,
        keys: bool,
        one_way: bool,
    ) {
        let mut steering = Steering::new(config(names, keys, one_way)).unwrap();
        let (mut now_ns, mut asked) = (0, 0);
        for (op, datagram, port, host, pause) in ops {
            now_ns += pause;
            let path = Path { remote: ([192, 0, 2, host].into(), port), local: ([10, 0, 0, 1].into(), 443) };
            match op {
                Op::Steer => {
                    asked += 1;
                    let answer = steering.steer(now_ns, &path, &datagram);
                    prop_assert!(answer.target.is_none_or(|target| target.queue == target.instance));
                }
                Op::Sent(instance) => steering.sent(now_ns, instance, &path, &datagram),
                Op::HandOver => {
                    let line = KeyLogLine { random: [0; 32], side: Side::Client, secret: vec![1; 32] };
                    steering.hand_over(1, &line);
                }
                Op::Forget(instance) => steering.forget_instance(instance),
            }
            steering.check();
        }
        prop_assert_eq!(steering.counters().datagrams(), asked);
    }
}

proptest! {
    /// A group that a thread has for itself says what one without a directory says, whatever comes.
    #[test]
    fn a_group_says_the_same(
        ops in proptest::collection::vec((op(), datagram(), 0u16..3, 0u8..3, 0u64..60_000_000), 1..120),
        names: bool,
        keys: bool,
        one_way: bool,
    ) {
        // Nothing is pushed out or ends for its age: the two know ages to different exactness.
        let limits = Limits { hellos: 3, keys: 2, connections: 200, ..Limits::default() };
        let config = Config { limits, ..config(names, keys, one_way) };
        let (mut steering, group) = (Steering::new(config.clone()).unwrap(), Group::of(config));
        let (mut now_ns, mut asked) = (0, 0);
        for (op, datagram, port, host, pause) in ops {
            now_ns += pause;
            let path = Path { remote: ([192, 0, 2, host].into(), port), local: ([10, 0, 0, 1].into(), 443) };
            match op {
                Op::Steer => {
                    asked += 1;
                    let (one, other) = (steering.steer(now_ns, &path, &datagram), group.steer(now_ns, &path, &datagram));
                    prop_assert_eq!(one, other);
                }
                Op::Sent(instance) => {
                    steering.sent(now_ns, instance, &path, &datagram);
                    group.sent(now_ns, instance, &path, &datagram);
                }
                Op::HandOver => {
                    let line = KeyLogLine { random: [0; 32], side: Side::Client, secret: vec![1; 32] };
                    prop_assert_eq!(steering.hand_over(1, &line), group.hand_over(1, &line));
                }
                Op::Forget(instance) => {
                    steering.forget_instance(instance);
                    group.forget_instance(instance);
                }
            }
            group.check();
        }
        let counters = group.counters();
        prop_assert_eq!(counters.datagrams(), asked);
        prop_assert_eq!((counters.busy, counters.not_learned, counters.not_entered), (0, 0, 0));
    }
}
