//! What the other side must not be able to do.

use super::*;

fn posted(frames: &[Frame], memory: &Memory) -> HostTx {
    let mut host = memory.host_tx();
    frames.iter().for_each(|&frame| assert!(host.post(frame)));
    host.flush();
    host
}

#[test]
fn a_wild_address_is_a_fault_and_everything_before_it_is_sent() {
    let memory = Memory::new(8, 4);
    let end = memory.iova(4);
    for iova in [Iova::new(0), Iova::new(u64::MAX), Iova::new(u64::MAX - 30), end, Iova::new(end.get() - 59)] {
        let memory = Memory::new(8, 4);
        let mut host = posted(&[memory.frame(0, 60), Frame { iova, len: 60, ..Frame::default() }], &memory);
        let mut card = memory.card_tx(LIMITS);
        let (served, frames) = serve_all(&mut card);
        assert_eq!((served.frames, frames.len()), (1, 1));
        assert_eq!(served.fault, Some(EngineFault { kind: FaultKind::Unmapped, iova }));
        assert_eq!(host.reclaim(), 1);
        assert_eq!(serve_all(&mut card).0.fault, served.fault, "it stays");
    }
    for iova in [Iova::new(0), Iova::new(u64::MAX), end] {
        let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
        host.post(iova, 2048, 0);
        let fault = card.deliver(&[], Span::from_slice(&frame(0, 60)));
        assert_eq!(fault, Err(EngineFault { kind: FaultKind::Unmapped, iova }));
        memory.ring().clear();
    }
}

#[test]
fn a_buffer_that_must_not_be_written_is_a_fault() {
    let memory = Memory::new(4, 1);
    let secret = Region::heap(4096);
    let iova = memory.domain.map(secret.window().clone(), Access::Read, None).unwrap();
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    card.sync();
    host.post(iova, 2048, 0);
    let fault = card.deliver(&[], Span::from_slice(&frame(0, 60)));
    assert_eq!(fault, Err(EngineFault { kind: FaultKind::Unmapped, iova }));
}

#[test]
fn reserved_bits_are_a_fault_of_the_descriptor() {
    for bit in 16..63 {
        let memory = Memory::new(8, 8);
        let host = posted(&[memory.frame(0, 60), memory.frame(1, 60)], &memory);
        memory.set_status(1, 60 | 1 << bit);
        let (served, frames) = serve_all(&mut memory.card_tx(LIMITS));
        let fault = EngineFault { kind: FaultKind::ReservedDescriptor, iova: RING_AT.plus(32) };
        assert_eq!((served.fault, frames.len()), (Some(fault), 1), "bit {bit}");
        drop(host);
        memory.ring().clear();
        memory.set_status(0, 2048 | 1 << bit);
        let mut card = memory.card_rx(LIMITS);
        let fault = EngineFault { kind: FaultKind::ReservedDescriptor, iova: RING_AT };
        assert_eq!(card.deliver(&[], Span::from_slice(&frame(0, 60))), Err(fault));
        assert_eq!(card.take_posted(), Err(fault));
    }
}

#[test]
fn a_status_that_changes_while_the_card_works_changes_nothing_for_what_it_has_taken() {
    let memory = Memory::new(4, 4);
    let mut host = posted(&[memory.frame(0, 60), memory.frame(1, 61)], &memory);
    let mut card = memory.card_tx(LIMITS);
    let mut lengths = Vec::new();
    let served = card.serve(64, &mut |frame: Span<'_>| {
        memory.set_status(0, u64::MAX);
        memory.set_status(1, 1 << 63 | 2000);
        lengths.push(frame.len());
        Accept::Taken
    });
    assert_eq!((served.frames, served.bytes, lengths), (2, 121, vec![60, 61]));
    assert_eq!(memory.descriptor(1)[1], 1 << 63 | 61, "the card says what it did");
    assert_eq!(host.reclaim(), 2);
}

#[test]
fn descriptors_that_are_never_left_to_the_card_cost_one_budget_a_turn() {
    let memory = Memory::new(4, 4);
    let mut card = memory.card_tx(LIMITS);
    let again = || (0..4).for_each(|at| memory.set_status(at, 60));
    (0..4).for_each(|at| memory.words.store(at * 4, memory.iova(at).get()));
    again();
    let served = card.serve(10, &mut |_: Span<'_>| {
        again();
        Accept::Taken
    });
    assert!(served.frames <= 10);
}

#[test]
fn a_card_that_lies_hands_back_no_more_than_it_was_given() {
    let memory = Memory::new(4, 4);
    let (mut tx, mut rx) = (memory.host_tx(), memory.host_rx());
    assert_eq!((tx.reclaim(), rx.ready(9)), (0, 0), "all are done, and none was posted");
    tx.post(memory.frame(0, 60));
    assert_eq!(tx.reclaim(), 0, "what is held back is not the card's");
    tx.flush();
    (0..4).for_each(|at| memory.set_status(at, u64::MAX));
    assert_eq!((tx.reclaim(), tx.outcome(0)), (1, None));
    rx.release(5);
    assert_eq!((rx.ready(9), rx.room(), rx.first()), (0, 4, 0));
}
