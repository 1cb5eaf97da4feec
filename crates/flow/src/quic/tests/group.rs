//! Groups: what budgets leave, what an attacker can push out, and threads beside one another.

use super::world::*;
use crate::quic::{Config, Group, GroupSpec, Learned, Limits, Why};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const SECOND: u64 = 1_000_000_000;

fn of(limits: Limits) -> Group {
    Group::of(Config { limits, ..config() })
}

/// An established connection of the group, with `id`, on the path with this port.
fn establish(group: &Group, now_ns: u64, port: u16, id: &[u8]) {
    let first = [&[0xf1; 8][..], id].concat();
    group.steer(now_ns, &path(port), &initial(&first[first.len() - 9..]));
    group.sent(now_ns, SERVER, &path(port), &long(0xc0, CLIENT_ID, id));
    group.steer(now_ns, &path(port), &handshake(id, CLIENT_ID));
}

#[test]
fn too_many_initials_go_by_hash_and_leave_nothing() {
    let limits = Limits { arrivals: 1000, ..Limits::default() };
    let group = of(limits);
    for at in 0..500u64 {
        let path = path_from(&format!("198.51.{}.{}", at / 100, at % 100), 1);
        let answer = group.steer(SECOND, &path, &initial(&at.to_be_bytes()));
        assert_eq!((answer.why, answer.target.map(|target| target.queue)), (Why::Hash, Some(7)));
    }
    let counters = group.counters();
    assert_eq!((group.connections(), counters.not_entered, counters.hash), (100, 400, 500));
    // One that is not entered goes where it would have gone, again and again.
    let late = group.steer(SECOND, &path(1), &initial(&499u64.to_be_bytes()));
    assert_eq!(late.why, Why::Hash);
    group.steer(2 * SECOND, &path(1), &initial(&499u64.to_be_bytes()));
    assert_eq!(group.connections(), 101);
    group.check();
}

#[test]
fn too_many_client_hellos_are_not_decrypted() {
    let limits = Limits { decryptions: 10, ..Limits::default() };
    let group = Group::of(Config { limits, ..by_name() });
    let hello = hello();
    assert_eq!(group.steer(SECOND, &path(1), &encrypted(0, &hello)).why, Why::Name(0));
    // What is known needs no keys.
    assert!(matches!(group.steer(SECOND, &path(1), &encrypted(0, &hello)).why, Why::KnownId(..)));
    let mut other = encrypted(0, &hello);
    other[6] ^= 1;
    assert_eq!(group.steer(SECOND, &path(2), &other).why, Why::Hash, "the budget of this tenth of a second is used up");
    assert_eq!(group.counters().not_decrypted, 1);
    group.check();
}

/// Who invents connections pushes out handshakes, and nothing else, however many they are.
#[test]
fn a_flood_leaves_what_is_established() {
    let limits = Limits { connections: 64, handshakes: 64, arrivals: 1_000_000, ..Limits::default() };
    let group = of(limits);
    let id = |at: u16| [&[0x5e; 6][..], &at.to_be_bytes()].concat();
    for at in 0..20 {
        establish(&group, 0, at, &id(at));
    }
    for at in 0..20_000u64 {
        let path = path_from(&format!("203.0.{}.{}", at / 200, at % 200), 9);
        group.steer(SECOND, &path, &initial(&at.to_be_bytes()));
        // Some are answered by the server, which does not know that they are invented; so both sides' ids are in the table.
        if at % 4 == 0 {
            group.sent(SECOND, SERVER, &path, &long(0xc0, CLIENT_ID, &(!at).to_be_bytes()));
        }
    }
    assert_eq!(group.connections(), 64);
    assert!(group.counters().evicted > 19_000);
    for at in 0..20 {
        let answer = group.steer(SECOND, &path(500 + at), &short(&id(at)));
        assert!(matches!(answer.why, Why::KnownId(_, Learned::Handshake)), "{answer:?}");
    }
}

/// Who forges the addresses of a path can enter ids for that path's instance, and push out no id but others of this kind.
#[test]
fn invented_ids_on_a_path_displace_only_one_another() {
    let group = of(Limits::default());
    establish(&group, 0, 1, SERVER_ID);
    for at in 0..1000u32 {
        group.steer(1, &path(1), &short(&[&[0xaa; 4][..], &at.to_be_bytes(), &[0; 8]].concat()));
    }
    assert!(matches!(group.steer(2, &path(2), &short(SERVER_ID)).why, Why::KnownId(_, Learned::Handshake)));
    group.check();
}

/// A client that never writes to the id of the handshake, but to one that it was told in secret.
#[test]
fn who_goes_on_with_another_id_is_followed() {
    let other = [0x91; 8];
    for first_packet in [handshake(&other, CLIENT_ID), initial(&other)] {
        let group = of(Limits::default());
        group.steer(0, &path(1), &initial(FIRST));
        group.sent(1, SERVER, &path(1), &long(0xc0, CLIENT_ID, SERVER_ID));
        assert_eq!(group.steer(2, &path(1), &first_packet).why, Why::KnownPath);
        assert_eq!(group.connections(), 1, "it is no new one");
        let moved = group.steer(3, &path(2), &short(&other));
        assert_eq!(moved.why, Why::KnownId(id(&other), Learned::OnPath));
        let limits = Limits::default();
        let late = group.steer(limits.handshake_ns * 3, &path(2), &short(&other));
        assert!(late.target.is_some(), "more than the beginning of a handshake");
        group.check();
    }
    // Before the server has answered there is nothing to go on with.
    let group = of(Limits::default());
    group.steer(0, &path(1), &initial(FIRST));
    group.steer(1, &path(1), &handshake(&other, CLIENT_ID));
    assert_eq!(group.steer(2, &path(2), &short(&other)).why, Why::Unknown);
}

/// Packets that only the directory has seen keep a connection alive.
#[test]
fn what_is_used_without_the_table_does_not_end() {
    let limits = Limits::default();
    let group = of(limits);
    establish(&group, 0, 1, SERVER_ID);
    let step = limits.idle_ns * 2 / 3;
    for at in 1..6 {
        let answer = group.steer(at * step, &path(1), &short(SERVER_ID));
        assert!(matches!(answer.why, Why::KnownId(..)), "{at}");
        // Each new connection has the table look for old ones.
        group.steer(at * step, &path_from("198.51.100.1", at as u16), &initial(&at.to_be_bytes()));
    }
    group.steer(10 * limits.idle_ns, &path(2), &initial(&[3; 8]));
    assert_eq!(group.steer(10 * limits.idle_ns, &path(1), &short(SERVER_ID)).why, Why::Unknown);
    group.check();
}

#[test]
fn a_successor_keeps_the_connections() {
    let spec = GroupSpec { connections: 100, handshakes: 100, per_source: 100, ..GroupSpec::over(vec![7, 8]) };
    let old = Group::new(&spec).unwrap();
    establish(&old, 0, 1, SERVER_ID);
    let named = GroupSpec { new: Some(vec![8]), ..spec.clone() };
    let new = Group::new(&named).unwrap().succeeding(&old);
    assert_eq!(new.spec(), &named);
    for group in [&old, &new] {
        assert_eq!(group.steer(1, &path(2), &short(SERVER_ID)).target.map(|target| target.queue), Some(7));
    }
    assert_eq!(new.steer(2, &path(3), &initial(&[5; 8])).target.map(|target| target.queue), Some(8));
    let other = Group::new(&GroupSpec { queues: vec![8, 7], ..spec }).unwrap().succeeding(&old);
    assert_eq!(other.connections(), 0);
}

/// Workers that steer and learn beside one another: every packet of an established connection goes where it belongs.
#[test]
fn threads_agree() {
    let limits = Limits { arrivals: u32::MAX, lessons: u32::MAX, per_source: 1 << 16, ..Limits::default() };
    let group = of(limits);
    let ids: Vec<Vec<u8>> = (0u16..200).map(|at| [&[0x5e; 6][..], &at.to_be_bytes()].concat()).collect();
    for (at, id) in ids.iter().enumerate() {
        establish(&group, 0, at as u16, id);
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|reader: u16| {
                let (group, ids, ended) = (&group, &ids, &ended);
                scope.spawn(move || {
                    let mut steered = 0u64;
                    while !ended.load(Relaxed) {
                        for (at, id) in ids.iter().enumerate() {
                            // Half of them move all the time.
                            let port = if at % 2 == 0 { at as u16 } else { 1000 * (reader + 1) + (steered % 7) as u16 };
                            let answer = group.steer(SECOND, &path(port), &short(id));
                            assert_eq!(answer.target.map(|target| target.instance), Some(SERVER), "{answer:?}");
                            steered += 1;
                        }
                    }
                    steered
                })
            })
            .collect();
        for at in 0..20_000u64 {
            let path = path_from(&format!("203.0.{}.{}", at / 200, at % 200), 9);
            group.steer(SECOND, &path, &initial(&at.to_be_bytes()));
            group.sent(SECOND, SERVER, &path, &long(0xc0, CLIENT_ID, &(!at).to_be_bytes()));
        }
        ended.store(true, Relaxed);
        assert!(readers.into_iter().map(|reader| reader.join().unwrap()).all(|steered| steered > 0));
    });
    group.check();
}
