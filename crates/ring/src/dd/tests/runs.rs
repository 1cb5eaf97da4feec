//! Runs of frames leave in memory what frames one by one do.

use super::*;
use proptest::prelude::*;

const ENTRIES: u32 = 32;

/// What a ring of descriptors holds: mostly buffers that a frame fits into.
fn given() -> impl Strategy<Value = Vec<(u32, u64)>> {
    let status = prop_oneof![20 => Just(2048u64), 3 => 0..200u64, 1 => any::<u64>()];
    // Buffer 8 is not mapped.
    let buffer = prop_oneof![30 => 0..8u32, 1 => Just(8u32)];
    prop::collection::vec((buffer, status), 0..ENTRIES as usize)
}

/// Everything that software can see.
fn seen(memory: &Memory, card: &mut CardRx) -> (Vec<[u64; 4]>, Vec<u8>, u32, u32) {
    card.publish();
    let descriptors = (0..ENTRIES).map(|at| memory.descriptor(at)).collect();
    let bytes = bytes_of(memory.buffers.window().span(0, 8 * STRIDE as usize).unwrap());
    (descriptors, bytes, card.head(), card.done())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_run_is_as_its_frames_one_by_one(
        given in given(),
        lens in prop::collection::vec(prop_oneof![9 => 40..140usize, 1 => 0..1600usize], 0..80),
    ) {
        let (one, many) = (Memory::new(ENTRIES, 8), Memory::new(ENTRIES, 8));
        for memory in [&one, &many] {
            for (at, &(buffer, status)) in (0..).zip(&given) {
                memory.words.store(at * 4, memory.iova(buffer).get());
                memory.set_status(at, status);
            }
        }
        let (mut by_one, mut by_run) = (one.card_rx(LIMITS), many.card_rx(LIMITS));
        let frames: Vec<Vec<u8>> = lens.iter().enumerate().map(|(number, &len)| frame(number as u32, len)).collect();
        let spans: Vec<Span<'_>> = frames.iter().map(|bytes| Span::from_slice(bytes)).collect();
        let expected: Vec<_> = spans.iter().map(|&span| by_one.deliver(&[], span)).take_while(Result::is_ok).collect();
        let mut outcomes = Vec::new();
        while outcomes.len() < spans.len() {
            let stored = by_run.deliver_run(&[], &spans[outcomes.len()..]);
            outcomes.extend((0..stored).map(|_| Ok(RxOutcome::Stored)));
            let Some(&next) = spans.get(outcomes.len()) else { break };
            let outcome = by_run.deliver(&[], next);
            if outcome.is_err() {
                break;
            }
            outcomes.push(outcome);
        }
        prop_assert_eq!(outcomes, expected);
        prop_assert_eq!(seen(&many, &mut by_run), seen(&one, &mut by_one));
        prop_assert_eq!(by_run.iotlb().counts(), by_one.iotlb().counts());
    }
}

#[test]
fn there_are_no_runs_while_a_port_fills_buffers_itself() {
    let memory = Memory::new(8, 8);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    (0..8).for_each(|buffer| assert!(host.post(memory.iova(buffer), 2048, buffer.into())));
    let (one, two) = (frame(0, 60), frame(1, 61));
    let spans = [Span::from_slice(&one), Span::from_slice(&two)];
    let ahead = card.take_posted().unwrap().unwrap();
    assert_eq!(card.deliver_run(&[], &spans), 0);
    assert!(card.deliver_swapped(ahead.iova, 60, &[]));
    assert_eq!(card.deliver_run(&[], &spans), 2);
    card.publish();
    assert_eq!((host.ready(9), host.received(2).iova, host.received(2).len), (3, memory.iova(2), 61));
}

#[test]
fn a_run_has_its_time_stamp() {
    let memory = Memory::new(8, 8);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    (0..8).for_each(|buffer| assert!(host.post(memory.iova(buffer), 2048, buffer.into())));
    let bytes = frame(0, 60);
    let metadata = millrace_abi::header::RxMetadata { port: 3, seconds: 2, nanoseconds: 7 }.encode();
    assert_eq!(card.deliver_run(&metadata, &[Span::from_slice(&bytes); 3]), 3);
    card.publish();
    assert_eq!(host.ready(9), 3);
    (0..3).for_each(|ahead| assert_eq!((host.received(ahead).time, host.received(ahead).port), (2_000_000_007, 3)));
}
