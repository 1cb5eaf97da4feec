//! Who gets what, in which order, and when a copy is made.

use super::build::{ethernet, ipv4, recomputed, udp};
use super::{World, actions, edited, emitted};
use crate::action::Reason;
use crate::execute::{Bytes, Emissions, Frame, HEADROOM, Stop, Target, execute};
use crate::extract::Ingress;

fn frame() -> Vec<u8> {
    recomputed(&ethernet(&[], 0x0800, &ipv4(17, &[], 0, &udp(53, true, b"data"))))
}

fn targets(text: &str, world: &mut World) -> (Vec<Target>, Result<(), Stop>) {
    let (list, done) = emitted(&frame(), &actions(text), world);
    (list.into_iter().map(|(emission, _)| emission.target).collect(), done)
}

fn queue(queue: u16) -> Target {
    Target::Queue { queue, hash: None }
}

#[test]
fn in_the_order_in_which_they_are_written() {
    let all = "queue:3,output:2,output:7,in_port,mirror:4,punt(reason=9),punt,note:01";
    let wanted = [
        queue(3),
        Target::Port(2),
        // Not output:7, where the frame came in.
        Target::Port(7),
        Target::Mirror(4),
        Target::Punt(Reason::Other(9)),
        Target::Punt(Reason::Action),
    ];
    assert_eq!(targets(all, &mut World::new()), (wanted.to_vec(), Ok(())));
    assert_eq!(targets("drop", &mut World::new()), (vec![], Ok(())));
}

#[test]
fn everybody_gets_the_frame_as_it_was_then() {
    let all = "output:1,queue:1,set_field:1->metadata,push_vlan:0x8100,output:2,mirror:2,dec_ttl,pop_vlan,output:3,\
        set_field:9->nw_ttl,output:4,queue:4";
    let (list, done) = emitted(&frame(), &actions(all), &mut World::new());
    assert_eq!(done, Ok(()));
    let tagged = [&frame()[..12], &[0x81, 0, 0, 0], &frame()[12..]].concat();
    let with_ttl = |ttl| {
        let mut frame = frame();
        frame[22] = ttl;
        recomputed(&frame)
    };
    let len = frame().len();
    let wanted = [
        (Target::Port(1), Bytes::Original(0..len), frame()),
        (queue(1), Bytes::Original(0..len), frame()),
        (Target::Port(2), Bytes::Copy(0..len + 4), tagged.clone()),
        (Target::Mirror(2), Bytes::Copy(0..len + 4), tagged),
        (Target::Port(3), Bytes::Copy(len + 4..2 * len + 4), with_ttl(63)),
        (Target::Port(4), Bytes::Frame, with_ttl(9)),
        (queue(4), Bytes::Frame, with_ttl(9)),
    ];
    let list: Vec<_> = list.into_iter().map(|(emission, bytes)| (emission.target, emission.bytes, bytes)).collect();
    assert_eq!(list, wanted);
}

#[test]
fn a_frame_in_the_buffer_is_copied_when_it_changes() {
    let mut buffer = [&[0; HEADROOM][..], &frame()].concat();
    let mut edited = Frame::in_place(&mut buffer, HEADROOM, frame().len(), Ingress::default());
    let mut out = Emissions::new(4, 100);
    execute(&actions("output:1,push_vlan:0x8100,output:2"), &mut edited, &mut World::new(), &mut out).unwrap();
    assert_eq!(out.list()[0].bytes, Bytes::Copy(0..frame().len()));
    assert_eq!(out.bytes(&out.list()[0], &edited), frame());
    assert_eq!(out.bytes(&out.list()[1], &edited).len(), frame().len() + 4);
}

#[test]
fn what_there_is_no_room_for_is_counted() {
    let ingress = Ingress { port: 1, ..Ingress::default() };
    let (frame, mut buffer) = (frame(), [0; 300]);
    let mut out = Emissions::new(3, 100);
    for round in 1..3 {
        let mut edited = Frame::new(&frame, &mut buffer, ingress);
        out.clear();
        let all = "output:1,pop_vlan,output:2,dec_ttl,output:3,dec_ttl,output:4,dec_ttl,output:5,output:6,output:7";
        execute(&actions(all), &mut edited, &mut World::new(), &mut out).unwrap();
        // Two copies fit, the third does not; of the last three, one has no place in the list.
        let targets: Vec<_> = out.list().iter().map(|emission| emission.target).collect();
        assert_eq!(targets, [Target::Port(2), Target::Port(3), Target::Port(4)], "{:?}", out.list());
        assert_eq!((out.lost(), out.reflected()), (3 * round, round));
    }
    let mut out = Emissions::new(9, frame.len() - 1);
    let mut edited = Frame::new(&frame, &mut buffer, ingress);
    let all = "dec_ttl,output:2,queue:3,dec_ttl,output:5";
    execute(&actions(all), &mut edited, &mut World::new(), &mut out).unwrap();
    assert_eq!((out.list().len(), out.list()[0].target, out.lost()), (1, Target::Port(5), 2));
}

#[test]
fn a_buffer_that_is_too_small() {
    let (frame, mut buffer) = (frame(), [0; HEADROOM + 20]);
    let mut edited = Frame::new(&frame, &mut buffer, Ingress::default());
    let mut out = Emissions::new(4, 100);
    let done = execute(&actions("output:1,dec_ttl,output:2"), &mut edited, &mut World::new(), &mut out);
    assert_eq!((done, out.list().len()), (Err(Stop::Headroom), 1));
    assert_eq!(out.bytes(&out.list()[0], &edited), frame);
    let mut buffer = frame.clone();
    let len = buffer.len();
    let mut edited = Frame::in_place(&mut buffer, 3, len, Ingress::default());
    assert_eq!((edited.len(), edited.is_empty()), (len - 3, false));
    assert_eq!(execute(&actions("push_vlan:0x8100"), &mut edited, &mut World::new(), &mut out), Err(Stop::Headroom));
}

#[test]
fn meters() {
    let mut world = World { admitted: 2, ..World::new() };
    let all = "meter:5,output:1,meter:5,output:2,meter:6,output:3";
    assert_eq!(targets(all, &mut world), (vec![Target::Port(1), Target::Port(2)], Err(Stop::Meter(6))));
}

#[test]
fn samples() {
    let sampled = |probability: u32, random| {
        let text = format!("sample(probability={probability},port=5),output:1");
        targets(&text, &mut World { random, ..World::new() }).0.len() == 2
    };
    assert!(sampled(65535, u32::MAX) && sampled(65535, 0) && sampled(1, 0));
    assert!(!sampled(1, 1 << 17) && !sampled(65534, u32::MAX));
    assert!(sampled(32768, u32::MAX / 2) && !sampled(32768, u32::MAX / 2 + (1 << 17)));
}

#[test]
fn the_end_of_the_time_to_live() {
    let mut frame = frame();
    frame[22] = 2;
    let frame = recomputed(&frame);
    let (list, done) = emitted(&frame, &actions("dec_ttl,output:1,dec_ttl,output:2"), &mut World::new());
    assert_eq!(done, Err(Stop::Ttl));
    let [(first, sent), (second, punted)] = &list[..] else { panic!("{list:?}") };
    assert_eq!((first.target, second.target), (Target::Port(1), Target::Punt(Reason::Ttl)));
    assert_eq!((sent[22], punted[22]), (1, 1));
}

#[test]
fn groups_choose_by_the_headers_as_they_are_then() {
    let chosen = |text: &str| {
        let (list, _) = emitted(&frame(), &actions(text), &mut World::new());
        list.into_iter().map(|(emission, _)| emission.target).collect::<Vec<_>>()
    };
    let [Target::Queue { queue, hash: Some(hash) }] = chosen("rss:1")[..] else { panic!() };
    assert_eq!(u32::from(queue), hash % 128 % 4);
    let set = "set_field:10.0.0.9->nw_src";
    assert_ne!(chosen(&format!("{set},rss:1")), chosen("rss:1"));
    // What is within a tunnel counts for group 2 only.
    let encap = "encap_vxlan(vni=7,src=192.0.2.1,dst=192.0.2.2)";
    assert_eq!(chosen(&format!("{encap},rss:2")), chosen("rss:1"));
    assert_ne!(chosen(&format!("{encap},rss:1")), chosen("rss:1"));
    assert_eq!(chosen("rss:2"), chosen("rss:1"));
    // A group that is not there gets nothing.
    let (mut out, frame) = (Emissions::new(4, 0), frame());
    let mut edited = Frame::new(&frame, &mut [], Ingress::default());
    execute(&actions("queue:1,rss:9"), &mut edited, &mut World::new(), &mut out).unwrap();
    assert_eq!((out.list().len(), out.lost()), (1, 1));
}

#[test]
fn a_map_of_networks_says_who_gets_the_frame() {
    let packet = edited(&frame(), &actions("encap_vxlan(vni=5003,src=10.0.0.1,dst=10.0.0.2)")).unwrap();
    let given = |map: &str| {
        let (list, done) = emitted(&packet, &actions(&format!("decap_vxlan,{map},queue:9")), &mut World::new());
        assert!(list.iter().all(|(_, bytes)| *bytes == frame()));
        (list.into_iter().map(|(emission, _)| emission.target).collect::<Vec<_>>(), done)
    };
    assert_eq!(given("vni_map(5003=queue:4)"), (vec![queue(4)], Err(Stop::Mapped)));
    assert_eq!(given("vni_map(5000-5999=queue:4-6)"), (vec![queue(4)], Err(Stop::Mapped)));
    assert_eq!(given("vni_map(1-5001=queue:1,5002-5003=port:4-5)"), (vec![Target::Port(5)], Err(Stop::Mapped)));
    // Not out where it came in.
    assert_eq!(given("vni_map(5003=port:7)"), (vec![], Err(Stop::Mapped)));
    // One that it does not have goes on.
    assert_eq!(given("vni_map(5002=queue:4,5004=queue:5)"), (vec![queue(9)], Ok(())));
}

#[test]
fn a_group_chooses_a_port_by_the_hash_by_which_it_would_choose_a_queue() {
    let chosen = |text: &str| emitted(&frame(), &actions(text), &mut World::new()).0[0].0.target;
    let Target::Queue { queue, .. } = chosen("rss:1") else { panic!() };
    assert_eq!(chosen("balance:1"), Target::Port(queue.into()));
}

/// RFC 2597 section 6: what is beyond the rate goes on, and is dropped sooner than others where there is no room.
#[test]
fn a_meter_makes_drop_precedences_worse() {
    for (before, steps, after) in
        [(10, 1, 12), (12, 1, 14), (14, 1, 14), (34, 2, 38), (46, 1, 46), (0, 2, 0), (8, 1, 8), (11, 1, 11)]
    {
        let marked = edited(&frame(), &actions(&format!("set_field:{before}->ip_dscp"))).unwrap();
        let mut world = World { admitted: 0, ..World::new() };
        let (list, done) = emitted(&marked, &actions(&format!("output:1,meter:{},output:2", 8 + steps)), &mut world);
        assert_eq!(done, Ok(()));
        let wanted = edited(&frame(), &actions(&format!("set_field:{after}->ip_dscp"))).unwrap();
        let got: Vec<_> = list.into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(got, [marked, wanted], "{before} {steps}");
    }
}
