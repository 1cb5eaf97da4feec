//! Two ends that talk, ends that do not answer, and ends that lie.

use super::*;
use proptest::prelude::*;
use std::net::Ipv4Addr;

const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

fn own(which: usize) -> Vec<Gid> {
    let address = Ipv4Addr::new(192, 0, 2, which as u8 + 1);
    let mut global = Gid::link_local(MACS[which]);
    global.0[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
    vec![Gid::from_ipv4(address), Gid::link_local(MACS[which]), global]
}

fn end(which: usize) -> Neighbours {
    Neighbours::new(MACS[which], own(which))
}

fn at(milliseconds: u64) -> Moment {
    Moment::new(milliseconds * 1_000_000)
}

/// Hands over everything that waits, until nobody has anything to say; returns how many frames there were.
fn talk(now: Moment, one: &mut Neighbours, other: &mut Neighbours) -> usize {
    let mut count = 0;
    while let Some((frame, to)) =
        one.take_frame().map(|frame| (frame, 1)).or_else(|| other.take_frame().map(|frame| (frame, 0)))
    {
        assert!(frame.len() >= 60 && count < 100);
        assert!(if to == 1 { other.hear(now, &frame) } else { one.hear(now, &frame) });
        count += 1;
    }
    count
}

#[test]
fn two_ends_find_one_another() {
    for kind in 0..3 {
        let (mut one, mut other) = (end(0), end(1));
        let gid = own(1)[kind];
        assert_eq!(one.find(at(0), gid), Found::Asked);
        assert_eq!(talk(at(1), &mut one, &mut other), 2);
        assert_eq!(one.find(at(2), gid), Found::Known(MACS[1]));
        assert_eq!((one.take_change(), one.take_change()), (Some((gid, Some(MACS[1]))), None));
        // The other one was asked, and has nobody in its table for that.
        assert_eq!((other.counts().answers, other.entries.len()), (1, 0));
    }
}

/// Two ends with one address have one MAC address too, unless somebody has said otherwise: both are told, once.
#[test]
fn who_has_the_same_address_is_noticed_by_both() {
    for mac in [MACS[0], MACS[1]] {
        let (mut first, mut second) = (end(0), Neighbours::new(mac, own(0)));
        first.announce();
        first.tick(at(0));
        while let Some(frame) = first.take_frame() {
            // A wire that sends back.
            assert!(first.hear(at(1), &frame));
        }
        assert_eq!((first.take_conflict(), first.counts().conflicts), (None, 0));
        second.announce();
        second.tick(at(5000));
        talk(at(5001), &mut first, &mut second);
        assert_eq!(first.take_conflict(), Some((own(0)[0], mac)));
        assert_eq!(second.take_conflict(), Some((own(0)[0], MACS[0])));
        let count = first.counts().conflicts;
        assert!(count >= 3, "{count}");
        // Again it is counted only.
        second.announce();
        talk(at(5002), &mut first, &mut second);
        assert_eq!((first.take_conflict(), first.counts().conflicts > count), (None, true));
    }
}

#[test]
fn who_is_looked_for_without_asking_gets_no_entry() {
    let (mut one, mut other, gid) = (end(0), end(1), own(1)[0]);
    assert_eq!((one.known(gid), one.entries.len(), talk(at(0), &mut one, &mut other)), (None, 0, 0));
    one.find(at(0), gid);
    assert_eq!(one.known(gid), None);
    talk(at(1), &mut one, &mut other);
    assert_eq!(one.known(gid), Some(MACS[1]));
    // It was of use, so it is asked again before it is forgotten.
    one.tick(at(31_000));
    assert!(one.take_frame().is_some());
}

#[test]
fn who_does_not_answer_is_asked_five_times() {
    let (mut one, gid) = (end(0), own(1)[0]);
    assert_eq!(one.find(at(0), gid), Found::Asked);
    let mut asked = vec![0];
    one.take_frame().unwrap();
    while one.find(at(0), gid) == Found::Asked {
        let due = one.next_due().unwrap();
        one.tick(due);
        asked.extend(one.take_frame().map(|_| due.nanoseconds() / 1_000_000));
    }
    assert_eq!(asked, [0, 250, 750, 1750, 3250]);
    assert_eq!((one.find(at(5300), gid), one.take_change()), (Found::Unreachable, Some((gid, None))));
    // After three seconds it may be asked for again.
    one.tick(at(8250));
    assert_eq!((one.next_due(), one.find(at(8250), gid)), (None, Found::Asked));
}

#[test]
fn who_is_in_use_is_asked_again_and_who_is_not_is_forgotten() {
    for is_used in [true, false] {
        let (mut one, mut other, gid) = (end(0), end(1), own(1)[1]);
        one.find(at(0), gid);
        talk(at(0), &mut one, &mut other);
        // What asked for it counts as use, once.
        one.tick(at(30_000));
        assert_eq!(talk(at(30_000), &mut one, &mut other), 2);
        if is_used {
            assert_eq!(one.find(at(31_000), gid), Found::Known(MACS[1]));
        }
        one.tick(at(60_000));
        assert_eq!(one.entries.len(), usize::from(is_used));
        if is_used {
            // To the one who had it last, three times; the old address serves.
            for second in 60..63 {
                one.tick(at(second * 1000));
                let frame = one.take_frame().unwrap();
                assert_eq!((&frame[..6], one.take_frame()), (&MACS[1][..], None));
                assert_eq!(one.find(at(second * 1000), gid), Found::Known(MACS[1]));
            }
            one.tick(at(63_000));
            assert_eq!(one.find(at(63_000), gid), Found::Unreachable);
        }
    }
}

#[test]
fn what_nobody_has_asked_for_is_not_believed() {
    for kind in 0..3 {
        let (mut one, mut other) = (end(0), end(1));
        other.announce();
        talk(at(0), &mut one, &mut other);
        assert_eq!((one.entries.len(), one.counts().unasked), (0, 3));
        // One that is known may move.
        let gid = own(1)[kind];
        one.find(at(1), gid);
        talk(at(1), &mut one, &mut other);
        let mut moved = Neighbours::new([2, 0, 0, 0, 0, 9], vec![gid]);
        moved.announce();
        talk(at(2), &mut one, &mut moved);
        assert_eq!(one.find(at(3), gid), Found::Known([2, 0, 0, 0, 0, 9]));
        // Nobody takes the addresses of this end.
        let mut thief = Neighbours::new([2, 0, 0, 0, 0, 9], vec![own(0)[kind]]);
        thief.announce();
        talk(at(4), &mut one, &mut thief);
        // Both of them say so, once each.
        assert_eq!(one.counts().conflicts, 2);
        assert_eq!(one.take_conflict(), Some((own(0)[kind], [2, 0, 0, 0, 0, 9])));
    }
}

#[test]
fn an_advertisement_that_does_not_override() {
    let (mut one, mut other, gid) = (end(0), end(1), own(1)[1]);
    one.find(at(0), gid);
    talk(at(0), &mut one, &mut other);
    one.told(at(1), gid, [2, 0, 0, 0, 0, 7], false);
    assert_eq!((one.find(at(1), gid), one.counts().not_overriding), (Found::Known(MACS[1]), 1));
}

#[test]
fn the_table_has_a_bound() {
    let mut one = end(0);
    let gid = |number: usize| Gid::from_ipv4(Ipv4Addr::from(0x0a00_0000 + number as u32));
    for number in 0..MOST_NEIGHBOURS {
        assert_eq!(one.find(at(0), gid(number)), Found::Asked);
        one.take_frame();
    }
    assert_eq!(one.find(at(0), gid(5000)), Found::Full);
    one.told(at(1), gid(7), MACS[1], true);
    assert_eq!(one.find(at(1), gid(5000)), Found::Asked);
    assert_eq!((one.entries.len(), one.due.len(), one.counts().evicted), (MOST_NEIGHBOURS, MOST_NEIGHBOURS, 1));
    assert!(!one.entries.contains_key(&gid(7).0));
    // And frames that nobody takes have one too.
    (0..2).for_each(|_| (0..6).for_each(|second| one.tick(at(second * 2000))));
    assert_eq!(one.out.len(), MOST_WAITING);
    assert!(one.counts().dropped > 0);
}

#[test]
fn who_asks_a_lot_does_not_keep_this_end_from_asking() {
    let (mut one, mut other) = (end(0), end(1));
    other.find(at(0), own(0)[0]);
    let question = other.take_frame().unwrap();
    (0..1000).for_each(|_| assert!(one.hear(at(0), &question)));
    assert!(one.out.len() < MOST_WAITING);
    assert_eq!(one.counts().answers as usize, one.out.len());
    assert_eq!(one.counts().answers + one.counts().dropped, 1000);
    assert_eq!(one.find(at(0), Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 1))), Found::Asked);
    assert_eq!(one.counts().requests, 1);
}

#[test]
fn whom_nobody_can_ask_for() {
    let mut one = Neighbours::new(MACS[0], vec![own(0)[0]]);
    assert_eq!(one.find(at(0), own(1)[1]), Found::NoSource);
    assert_eq!(one.find(at(0), Gid::from_ipv4(Ipv4Addr::new(224, 0, 0, 1))), Found::NoSource);
}

#[test]
fn other_frames_are_left_alone() {
    let mut one = end(0);
    assert!(!one.hear(at(0), &[0; 60]) && !one.hear(at(0), &[]));
    let mut frame = [0; 60];
    frame[12..14].copy_from_slice(&[8, 6]);
    assert!(one.hear(at(0), &frame));
    assert_eq!(one.counts().ignored, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn damaged_messages_make_no_neighbour(
        kind in 0..3usize,
        changes in prop::collection::vec((0..90usize, 1..=255u8), 1..4),
        len in 0..90usize,
    ) {
        let (mut one, mut other) = (end(0), end(1));
        one.find(at(0), own(1)[kind]);
        let request = one.take_frame().unwrap();
        let mut damaged = request.clone();
        for (at, byte) in changes {
            let at = at % damaged.len();
            damaged[at] ^= byte;
        }
        damaged.truncate(60.max(len));
        other.hear(at(0), &damaged);
        other.hear(at(0), &damaged[..len.min(damaged.len())]);
        prop_assert!(other.entries.is_empty() && other.out.len() <= 2);
    }
}
