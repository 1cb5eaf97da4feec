//! `quic:N`: frames of a client and of a server, to and fro.

use super::build::{ethernet, ipv4, udp};
use super::{World, actions, emitted};
use crate::execute::Target;
use crate::quic::{Group, GroupSpec, Other};
use crate::table::Tables;
use crate::version::{Change, Limits, Writer};
use millrace_packet::parse::Layers;
use std::sync::Arc;

/// What an UDP packet from 10.0.0.1 to 10.0.0.2 carries; from port 12345 to 443.
fn frame(datagram: &[u8]) -> Vec<u8> {
    ethernet(&[], 0x0800, &ipv4(17, &[], 0, &udp(443, false, datagram)))
}

/// The same the other way round.
fn back(datagram: &[u8]) -> Vec<u8> {
    let mut frame = frame(datagram);
    frame[26..34].rotate_left(4);
    frame[34..38].rotate_left(2);
    frame
}

fn long(destination: &[u8], source: &[u8]) -> Vec<u8> {
    let ids = [&[destination.len() as u8][..], destination, &[source.len() as u8], source].concat();
    let mut bytes = [&[0xc0, 0, 0, 0, 1][..], &ids, &[0]].concat();
    let len = 1200 - bytes.len() - 2;
    bytes.extend((0x4000 | len as u16).to_be_bytes());
    bytes.resize(1200, 0);
    bytes
}

fn tables(spec: &GroupSpec) -> Arc<Tables> {
    let mut writer = Writer::new(1, Limits::default());
    writer.commit(vec![Change::Quic(4, Some(Arc::new(Group::new(spec).unwrap())))], 0).unwrap();
    Arc::clone(writer.current())
}

fn few(queues: Vec<u16>) -> GroupSpec {
    GroupSpec { connections: 50, handshakes: 50, per_source: 50, ..GroupSpec::over(queues) }
}

fn queues(frame: &[u8], tables: &Arc<Tables>) -> Vec<Target> {
    let mut world = World { quic: Some(Arc::clone(tables)), ..World::new() };
    let (sent, done) = emitted(frame, &actions("quic:4"), &mut world);
    assert_eq!(done, Ok(()));
    assert!(sent.iter().all(|(_, bytes)| bytes == frame));
    sent.into_iter().map(|(emission, _)| emission.target).collect()
}

#[test]
fn what_a_server_sends_says_what_belongs_to_it() {
    let tables = tables(&few(vec![5, 6, 7]));
    let queue = |queue| vec![Target::Queue { queue, hash: None }];
    let first = frame(&long(&[1; 8], &[2; 4]));
    let chosen = queues(&first, &tables);
    assert_eq!((chosen.len(), queues(&first, &tables)), (1, chosen));
    // Whoever answers is its server. Queue 9 is none of the group's.
    for (sender, id) in [(7, [0x77; 6]), (9, [0x99; 6])] {
        let answer = back(&long(&[2; 4], &id));
        tables.sent(1, &Layers::parse(&answer), &answer, sender);
    }
    let from = |port: u8, id: &[u8]| {
        let mut frame = frame(&[&[0x40][..], id, &[0; 20]].concat());
        frame[34] = port;
        frame
    };
    assert_eq!(queues(&from(1, &[0x77; 6]), &tables), queue(7));
    assert_eq!(queues(&from(2, &[0x99; 6]), &tables), []);
    let tcp = ethernet(&[], 0x0800, &ipv4(6, &[], 0, &[0; 20]));
    assert_eq!(queues(&tcp, &tables), []);
    let fragment = ethernet(&[], 0x0800, &ipv4(17, &[], 0x2000, &udp(443, false, &long(&[1; 8], &[2; 4]))));
    assert_eq!(queues(&fragment, &tables), []);
    // Without such a group the frame is lost, and counted.
    let mut out = crate::execute::Emissions::new(4, 0);
    let mut buffer = [0; 2048];
    let mut lost = crate::execute::Frame::new(&first, &mut buffer, crate::Ingress::default());
    crate::execute::execute(&actions("quic:4"), &mut lost, &mut World::new(), &mut out).unwrap();
    assert_eq!((out.lost(), out.list().len()), (1, 0));
}

#[test]
fn what_nothing_tells_apart_goes_by_address_if_it_shall() {
    let tables = tables(&GroupSpec { other: Other::Hash, ..few(vec![5, 6, 7]) });
    let unknown = frame(&[&[0x40][..], &[3; 40]].concat());
    let chosen = queues(&unknown, &tables);
    assert!(matches!(chosen[..], [Target::Queue { queue: 5..=7, .. }]), "{chosen:?}");
    assert_eq!(queues(&unknown, &tables), chosen);
}
