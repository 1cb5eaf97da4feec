//! Sending, step by step.

use super::*;
use crate::serve::Source;

#[test]
fn nothing_is_seen_before_it_is_flushed_and_then_all_of_it() {
    let memory = Memory::new(8, 8);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    assert!(!card.pending() && card.is_drained() && !host.flush());
    for i in 0..3 {
        memory.write(i, &frame(i, 60));
        assert!(host.post(memory.frame(i, 60)));
        assert!(!card.pending(), "as long as the first is held back, so are those behind it");
    }
    assert_eq!(serve_all(&mut card).0, Served::default());
    assert!(host.flush() && card.pending() && !card.is_drained());
    let (served, frames) = serve_all(&mut card);
    assert_eq!((served.frames, served.bytes, served.fault), (3, 180, None));
    assert_eq!(frames, (0..3).map(|i| frame(i, 60)).collect::<Vec<_>>());
    assert!(card.is_drained() && !card.pending());
    assert_eq!((card.head(), card.done(), host.in_flight()), (3, 3, 3));
    assert_eq!((host.reclaim(), host.in_flight(), host.reclaim()), (3, 0, 0));
}

#[test]
fn every_descriptor_of_the_ring_can_be_used_at_once_and_none_is_taken_twice() {
    for entries in [2, 4, 64] {
        let memory = Memory::new(entries, 1);
        let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
        for lap in 0..3 {
            for _ in 0..entries {
                assert!(host.post(memory.frame(0, 60)));
            }
            assert!(!host.post(memory.frame(0, 60)), "full");
            host.flush();
            assert_eq!(host.reclaim(), 0);
            assert_eq!(serve_all(&mut card).0.frames, u64::from(entries), "lap {lap}");
            assert_eq!(host.reclaim(), entries);
        }
    }
}

#[test]
fn what_comes_while_a_lone_frame_is_served_is_found_at_the_next_look() {
    let memory = Memory::new(8, 8);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    assert!(host.post(memory.frame(0, 60)) && host.flush());
    assert!(card.is_lone());
    let served = card.serve(64, &mut |_: Span<'_>| {
        assert!(host.post(memory.frame(1, 61)) && host.flush());
        Accept::Taken
    });
    assert_eq!((served.frames, served.bytes), (1, 60));
    assert!(card.pending() && !card.is_drained(), "a queue that is to stop does not before this one is gone");
    assert_eq!(serve_all(&mut card).0.bytes, 61);
    assert!(card.is_drained());
    assert!(host.post(memory.frame(2, 62)) && host.post(memory.frame(3, 63)) && host.flush());
    assert!(!card.is_lone());
    assert_eq!(serve_all(&mut card).0.frames, 2, "in one call");
}

#[test]
fn a_sink_that_is_full_leaves_frames_where_they_are() {
    let memory = Memory::new(8, 8);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    (0..5).for_each(|i| assert!(host.post(memory.frame(i, 60 + i as u16))));
    host.flush();
    let mut room = 2;
    let served = card.serve(64, &mut |_: Span<'_>| {
        room -= 1;
        if room < 0 { Accept::Full } else { Accept::Taken }
    });
    assert_eq!((served.frames, host.reclaim()), (2, 2));
    assert_eq!(card.serve(1, &mut |_: Span<'_>| Accept::Taken).bytes, 62, "no more than the budget");
    assert_eq!(serve_all(&mut card).0.bytes, 63 + 64);
}

#[test]
fn frames_of_a_length_that_is_not_sent_are_counted_and_come_back() {
    let memory = Memory::new(8, 8);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(FrameLimits { min: 60, max: 100 }));
    for len in [0, 60, 59, 101, u16::MAX, 100] {
        assert!(host.post(memory.frame(0, len)));
    }
    host.flush();
    let (served, frames) = serve_all(&mut card);
    assert_eq!((served.frames, served.too_short, served.too_long, frames.len()), (2, 2, 2, 2));
    assert_eq!(host.reclaim(), 6);
    let outcomes: Vec<_> = (0..6).rev().map(|ago| host.outcome(ago).unwrap()).collect();
    use Outcome::{Passed, TooLong, TooShort};
    assert_eq!(outcomes, [TooShort, Passed, TooShort, TooLong, TooLong, Passed]);
}

#[test]
fn what_is_sent_from_the_buffer_comes_back_when_the_port_is_done_with_it_in_order() {
    let memory = Memory::new(8, 8);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    let lengths = [60, 61, 10, 62];
    lengths.iter().zip(0..).for_each(|(&len, i)| assert!(host.post(memory.frame(i, len))));
    host.flush();
    let mut taken = Vec::new();
    let served = card.serve_deferred(64, |iova, frame| {
        taken.push((iova, frame.len()));
        Accept::Taken
    });
    assert_eq!((served.frames, served.too_short, card.in_flight()), (3, 1, 4));
    assert_eq!(taken, [(memory.iova(0), 60), (memory.iova(1), 61), (memory.iova(3), 62)]);
    assert_eq!((card.head(), card.done(), host.reclaim()), (4, 0, 0));
    assert!(!card.is_drained() && !card.pending());
    // Frames that are copied meanwhile wait behind those that are not.
    host.post(memory.frame(4, 64));
    host.flush();
    assert_eq!(serve_all(&mut card).0.frames, 1);
    assert_eq!(host.reclaim(), 0);
    card.complete(1);
    assert_eq!((host.reclaim(), card.done()), (1, 1));
    card.complete(1);
    assert_eq!((host.reclaim(), card.done()), (2, 3), "with the one behind it that was dropped");
    card.complete(9);
    assert_eq!((host.reclaim(), card.in_flight()), (2, 0), "more than are out is not more than all");
    assert!(card.is_drained());
}

#[test]
fn a_ring_whose_frames_are_all_out_is_not_served_again() {
    let memory = Memory::new(4, 4);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    (0..4).for_each(|i| assert!(host.post(memory.frame(i, 60))));
    host.flush();
    assert_eq!(card.serve_deferred(64, |_, _| Accept::Taken).frames, 4);
    assert!(!card.pending());
    assert_eq!(card.serve_deferred(64, |_, _| Accept::Taken).frames, 0);
    card.complete(4);
    assert_eq!(host.reclaim(), 4);
}

#[test]
fn another_card_goes_on_where_one_stands() {
    let memory = Memory::new(8, 8);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    for number in 0..100 {
        memory.write(number % 8, &frame(number, 60));
        assert!(host.post(memory.frame(number % 8, 60)) && host.flush());
        assert_eq!(serve_all(&mut card).1, [frame(number, 60)]);
        let place = card.resting_place().unwrap();
        card = memory.card_tx(LIMITS);
        card.resume(&place);
        assert!(!card.pending() && card.is_drained());
        assert_eq!((card.resting_place(), host.reclaim()), (Some(place), 1));
    }
    // One that a port still has cannot be gone on with.
    assert!(host.post(memory.frame(0, 60)) && host.flush());
    card.serve_deferred(1, |_, _| Accept::Taken);
    assert_eq!(card.resting_place(), None);
    card.complete(1);
    assert!(card.resting_place().is_some());
}
