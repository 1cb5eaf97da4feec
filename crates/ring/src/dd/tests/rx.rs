//! Receiving, step by step.

use super::*;

#[test]
fn frames_arrive_in_the_buffers_given_and_then_there_is_no_room() {
    let memory = Memory::new(4, 8);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    assert_eq!(deliver(&mut card, &frame(0, 60)), RxOutcome::NoRoom);
    for buffer in [5, 0, 7, 2] {
        assert!(host.post(memory.iova(buffer), 2048, buffer.into()));
    }
    assert!(!host.post(memory.iova(1), 2048, 0), "full");
    for number in 0..4 {
        assert_eq!(deliver(&mut card, &frame(number, 60 + number as usize)), RxOutcome::Stored);
    }
    assert_eq!(deliver(&mut card, &frame(4, 60)), RxOutcome::NoRoom);
    card.publish();
    assert_eq!((host.ready(2), host.ready(9)), (2, 4));
    for (ahead, buffer) in [(0, 5), (1, 0), (2, 7), (3, 2)] {
        let received = host.received(ahead);
        assert_eq!((received.iova, received.cookie, received.time), (memory.iova(buffer), buffer.into(), 0));
        assert_eq!(memory.read(buffer, received.len), frame(ahead, 60 + ahead as usize));
    }
    assert_eq!(deliver(&mut card, &frame(4, 60)), RxOutcome::NoRoom, "released is not posted");
    host.release(4);
    assert!(host.post(memory.iova(1), 2048, 1));
    assert_eq!(deliver(&mut card, &frame(4, 60)), RxOutcome::Stored);
    card.publish();
    assert_eq!((host.ready(9), host.received(0).iova), (1, memory.iova(1)));
}

#[test]
fn a_frame_that_does_not_fit_leaves_its_buffer_for_the_next() {
    let memory = Memory::new(4, 4);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(FrameLimits { min: 60, max: 1000 }));
    host.post(memory.iova(0), 100, 0);
    assert_eq!(deliver(&mut card, &frame(0, 1001)), RxOutcome::TooLong);
    assert_eq!(deliver(&mut card, &frame(0, 101)), RxOutcome::TooLong);
    assert_eq!(deliver(&mut card, &frame(1, 100)), RxOutcome::Stored);
    card.publish();
    assert_eq!((host.ready(9), host.received(0).len), (1, 100));
}

#[test]
fn buffers_taken_ahead_come_back_in_any_order() {
    let memory = Memory::new(4, 8);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    assert_eq!(card.take_posted(), Ok(None));
    assert!(!card.deliver_swapped(memory.iova(0), 60, &[]), "no descriptor is ours");
    (0..4).for_each(|i| assert!(host.post(memory.iova(i), 2048, i.into())));
    let ahead: Vec<_> = (0..3).map(|_| card.take_posted().unwrap().unwrap()).collect();
    assert_eq!(ahead[2], PostedBuffer { iova: memory.iova(2), capacity: 2048 });
    assert_eq!((card.head(), card.done(), card.in_flight()), (3, 0, 3));
    // A frame came into the last of them first.
    memory.write(2, &frame(9, 70));
    assert!(card.deliver_swapped(ahead[2].iova, 70, &[]));
    // One that has to be copied goes into the next buffer, which is not that of the next descriptor.
    assert_eq!(deliver(&mut card, &frame(10, 80)), RxOutcome::Stored);
    assert_eq!(card.take_posted(), Ok(None));
    assert_eq!(deliver(&mut card, &frame(11, 80)), RxOutcome::NoRoom);
    card.publish();
    assert_eq!(host.ready(9), 2);
    assert_eq!((host.received(0).iova, host.received(1).iova), (memory.iova(2), memory.iova(3)));
    assert_eq!(memory.read(3, 80), frame(10, 80));
    assert_eq!(host.received(0).cookie, 0, "the cookie belongs to the descriptor");
    host.release(2);
    // The card still has two buffers, and two descriptors to hand them back in.
    assert!(card.deliver_swapped(ahead[0].iova, 60, &[]) && card.deliver_swapped(ahead[1].iova, 61, &[]));
    assert!(!card.deliver_swapped(ahead[1].iova, 61, &[]));
    card.publish();
    assert_eq!((host.ready(9), host.received(1).len), (2, 61));
}

#[test]
fn a_small_ring_goes_round_without_mistaking_its_own_descriptors_for_new_ones() {
    let memory = Memory::new(2, 2);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    for number in 0..20 {
        while host.post(memory.iova(number % 2), 2048, 0) {}
        assert_eq!(deliver(&mut card, &frame(number, 60)), RxOutcome::Stored);
        if number % 2 == 0 {
            assert_eq!(deliver(&mut card, &frame(number, 60)), RxOutcome::Stored);
            assert_eq!(deliver(&mut card, &frame(number, 60)), RxOutcome::NoRoom);
        }
        card.publish();
        let ready = host.ready(9);
        assert_eq!(ready, if number % 2 == 0 { 2 } else { 1 });
        host.release(ready);
    }
}

#[test]
fn another_card_goes_on_where_one_stands() {
    let memory = Memory::new(4, 8);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    for number in 0..4 {
        assert!(host.post(memory.iova(number), 2048, number.into()));
    }
    for number in 0..100 {
        assert_eq!(deliver(&mut card, &frame(number, 60)), RxOutcome::Stored);
        assert_eq!(
            card.resting_place().is_some(),
            card.in_flight() == 0 && number % 2 == 1,
            "what is not shown is nowhere else"
        );
        card.publish();
        let place = card.resting_place().unwrap();
        card = memory.card_rx(LIMITS);
        card.resume(&place);
        assert_eq!(host.ready(9), 1);
        assert_eq!(memory.read(number % 4, host.received(0).len), frame(number, 60));
        host.release(1);
        assert!(host.post(memory.iova(number % 4), 2048, 0));
    }
    card.take_posted().unwrap().unwrap();
    assert_eq!(card.resting_place(), None);
}
