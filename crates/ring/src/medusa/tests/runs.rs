//! Runs of frames leave in memory what frames one by one do.

use super::*;
use proptest::prelude::*;

const LIMITS: FrameLimits = FrameLimits { min: 60, max: 1518 };

/// What software posts: mostly buffers that a frame fits into, and anything else.
fn words() -> impl Strategy<Value = Vec<u64>> {
    let whole =
        (0..64u64, prop_oneof![Just(2048u16), 0..200u16]).prop_map(|(at, len)| buffer(DATA_AT.plus(at * 128), len));
    let chained = (0..64u64).prop_map(|at| buffer(DATA_AT.plus(at * 128), 100) | 1 << 61);
    let elsewhere = Just(buffer(DATA_AT.plus(DATA_LEN as u64), 100));
    let any = prop_oneof![20 => whole, 1 => chained, 1 => elsewhere, 1 => Just(upper(DATA_AT)), 1 => any::<u64>()];
    prop::collection::vec(any, 0..63)
}

/// Everything that software can see.
fn seen(memory: &Memory, card: &mut CardRx) -> (Vec<u32>, Vec<u8>, u32, u32, u64) {
    card.publish();
    let headers = (0..64).map(|at| memory.headers.load(at)).collect();
    (headers, memory.read(0, 16384), card.hdp(), card.hhp(), memory.update.load(Ordering::Relaxed))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_run_is_as_its_frames_one_by_one(
        words in words(),
        lens in prop::collection::vec(prop_oneof![9 => 40..140usize, 1 => 0..1600usize], 0..80),
        read in 0..64u32,
    ) {
        let (one, many) = (Memory::new(64, 64), Memory::new(64, 64));
        for memory in [&one, &many] {
            let words: Vec<u64> = core::iter::once(upper(DATA_AT)).chain(words.iter().copied()).collect();
            words.iter().enumerate().for_each(|(slot, &word)| memory.descriptors.store(slot as u32, word));
            memory.ring(words.len() as u32 % 64, read);
        }
        let (mut by_one, mut by_run) = (one.card_rx(LIMITS), many.card_rx(LIMITS));
        let frames: Vec<Vec<u8>> = lens.iter().enumerate().map(|(number, &len)| frame(number as u32, len)).collect();
        let spans: Vec<Span<'_>> = frames.iter().map(|bytes| Span::from_slice(bytes)).collect();
        let expected: Vec<_> = spans.iter().map(|&span| by_one.deliver(&[], span)).take_while(Result::is_ok).collect();
        let mut outcomes = Vec::new();
        while outcomes.len() < spans.len() {
            let stored = by_run.deliver_run(&spans[outcomes.len()..]);
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
fn a_run_goes_round_the_end_of_both_rings() {
    let memory = Memory::new(8, 8);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    let mut posted = 0;
    for round in 0..20u32 {
        while host.post(DATA_AT.plus(posted % 8 * 256), 256) {
            posted += 1;
        }
        host.flush();
        let frames: Vec<Vec<u8>> = (0..5).map(|at| frame(round * 5 + at, 60 + at as usize)).collect();
        let spans: Vec<Span<'_>> = frames.iter().map(|bytes| Span::from_slice(bytes)).collect();
        if round == 0 {
            // The first descriptor says the upper part of addresses; until the card has met it there are no runs.
            assert_eq!(card.deliver_run(&spans), 0);
            assert_eq!(card.deliver(&[], spans[0]), Ok(RxOutcome::Stored));
            assert_eq!(card.deliver_run(&spans[1..]), 4);
        } else {
            assert_eq!(card.deliver_run(&spans), 5);
        }
        card.publish();
        assert_eq!(host.ready(), 5);
        for (ahead, frame) in (0..).zip(&frames) {
            assert_eq!(usize::from(host.header(ahead).len), frame.len());
            assert_eq!(&memory.read((round * 5 + ahead) as usize % 8 * 256, frame.len()), frame);
        }
        host.release(5);
    }
}
