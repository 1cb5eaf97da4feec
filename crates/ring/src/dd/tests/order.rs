//! Any sequence of legal operations keeps frames in order and complete, and every frame is counted once.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
enum TxStep {
    /// Post this many frames whose lengths and launch times follow from the seed.
    Send {
        count: u32,
        seed: u32,
    },
    Flush,
    /// Let the card work with this budget; the sink takes this many frames before it is full, and is done with them at
    /// once or later.
    Serve {
        budget: usize,
        room: usize,
        at_once: bool,
    },
    Complete(u32),
    Reclaim,
    Time(u64),
}

fn tx_steps() -> impl Strategy<Value = Vec<TxStep>> {
    let step = prop_oneof![
        4 => (1u32..40, any::<u32>()).prop_map(|(count, seed)| TxStep::Send { count, seed }),
        3 => Just(TxStep::Flush),
        4 => (0usize..80, 0usize..80, any::<bool>())
            .prop_map(|(budget, room, at_once)| TxStep::Serve { budget, room, at_once }),
        2 => (0u32..40).prop_map(TxStep::Complete),
        2 => Just(TxStep::Reclaim),
        2 => (0u64..2000).prop_map(TxStep::Time),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tx(log in 1u32..8, steps in tx_steps()) {
        let entries = 1 << log;
        let memory = Memory::new(entries, entries);
        let (mut card, mut queue) = (memory.card_tx(FrameLimits { min: 60, max: 200 }), memory.host_tx());
        // Frames that were posted and did not leave the ring: bytes and launch time.
        let mut wanted: VecDeque<(Vec<u8>, u64)> = VecDeque::new();
        let (mut sent, mut flushed, mut passed, mut dropped, mut back) = (0u32, 0usize, 0u64, 0u64, 0u32);
        let mut now = 1;
        memory.now.store(now, Ordering::Relaxed);
        // Whatever happened, everything gets out in the end.
        let end = [
            TxStep::Flush,
            TxStep::Time(10_000),
            TxStep::Serve { budget: usize::MAX, room: usize::MAX, at_once: true },
            TxStep::Complete(u32::MAX),
            TxStep::Reclaim,
        ];
        for step in steps.into_iter().chain(end) {
            match step {
                TxStep::Send { count, seed } => {
                    for i in 0..count {
                        let random = seed.wrapping_add(i).wrapping_mul(0x9e37_79b9) >> 8;
                        // Some too short, some too long.
                        let bytes = frame(sent, 50 + (random % 160) as usize);
                        let launch = [0, 0, now + u64::from(random % 1000), u64::MAX][(random >> 16) as usize % 4];
                        if queue.room() > 0 {
                            memory.write(sent % entries, &bytes);
                        }
                        let frame = Frame { launch, ..memory.frame(sent % entries, bytes.len() as u16) };
                        prop_assert_eq!(queue.room() > 0, queue.post(frame));
                        if queue.posted() == sent {
                            break;
                        }
                        sent += 1;
                        wanted.push_back((bytes, launch));
                    }
                }
                TxStep::Flush => {
                    prop_assert_eq!(queue.flush(), flushed < wanted.len());
                    flushed = wanted.len();
                }
                TxStep::Serve { budget, room, at_once } => {
                    let mut left = room;
                    let mut frames = Vec::new();
                    let mut take = |frame: Span<'_>| {
                        if left == 0 {
                            return Accept::Full;
                        }
                        left -= 1;
                        frames.push(bytes_of(frame));
                        Accept::Taken
                    };
                    let served = if at_once {
                        card.serve(budget, &mut take)
                    } else {
                        card.serve_deferred(budget, |_, frame| take(frame))
                    };
                    prop_assert_eq!(served.fault, None);
                    prop_assert_eq!(served.frames as usize, frames.len());
                    prop_assert_eq!(served.bytes as usize, frames.iter().map(Vec::len).sum::<usize>());
                    let bad = served.too_short + served.too_long + served.too_far;
                    let gone = (served.frames + bad) as usize;
                    prop_assert!(gone <= flushed && gone <= budget);
                    flushed -= gone;
                    let (mut short, mut long, mut far) = (0, 0, 0);
                    let mut frames = frames.into_iter();
                    for (bytes, launch) in wanted.drain(..gone) {
                        match bytes.len() {
                            ..60 => short += 1,
                            201.. => long += 1,
                            _ if launch > now + HORIZON => far += 1,
                            _ => {
                                prop_assert!(launch <= now, "{launch} at {now}");
                                prop_assert_eq!(Some(bytes), frames.next());
                            }
                        }
                    }
                    prop_assert_eq!((short, long, far), (served.too_short, served.too_long, served.too_far));
                    passed += served.frames;
                    dropped += bad;
                }
                TxStep::Complete(count) => card.complete(count),
                TxStep::Reclaim => back += queue.reclaim(),
                TxStep::Time(by) => {
                    now += by;
                    memory.now.store(now, Ordering::Relaxed);
                }
            }
            prop_assert!(card.in_flight() <= entries && queue.in_flight() <= entries);
            prop_assert!(u64::from(back) <= passed + dropped, "a buffer that is back has left the ring");
        }
        prop_assert_eq!(u64::from(sent), passed + dropped, "offered = passed + dropped");
        prop_assert_eq!((sent, queue.in_flight()), (back, 0));
        prop_assert!(wanted.is_empty() && card.is_drained());
    }
}

#[derive(Clone, Copy, Debug)]
enum RxStep {
    /// Deliver this many frames.
    Deliver(u32),
    /// Take this many buffers ahead.
    Take(u32),
    /// Hand back one of those taken ahead.
    Swap(usize),
    /// Give up what was taken ahead.
    Untake,
    Publish,
    /// Look for and put back at most this many frames.
    Read(u32),
    Flush,
}

fn rx_steps() -> impl Strategy<Value = Vec<RxStep>> {
    let step = prop_oneof![
        4 => (1u32..40).prop_map(RxStep::Deliver),
        2 => (1u32..10).prop_map(RxStep::Take),
        3 => any::<usize>().prop_map(RxStep::Swap),
        1 => Just(RxStep::Untake),
        3 => Just(RxStep::Publish),
        4 => (0u32..80).prop_map(RxStep::Read),
        1 => Just(RxStep::Flush),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rx(log in 1u32..8, steps in rx_steps()) {
        let entries = 1 << log;
        let memory = Memory::new(entries, entries);
        let mut card = memory.card_rx(LIMITS);
        let mut queue = FixedRx::new(memory.host_rx(), memory.first, STRIDE, STRIDE as u16).unwrap();
        let (mut ahead, mut wanted, mut number, mut published) = (Vec::new(), VecDeque::new(), 0u32, 0usize);
        for step in steps.into_iter().chain([RxStep::Publish, RxStep::Read(u32::MAX)]) {
            match step {
                RxStep::Deliver(count) => {
                    for _ in 0..count {
                        let bytes = frame(number, 60 + number as usize % 100);
                        if deliver(&mut card, &bytes) != RxOutcome::Stored {
                            break;
                        }
                        wanted.push_back(bytes);
                        number += 1;
                    }
                }
                RxStep::Take(count) => {
                    for _ in 0..count {
                        let Some(posted) = card.take_posted().unwrap() else { break };
                        ahead.push(posted.iova);
                    }
                }
                RxStep::Swap(which) if !ahead.is_empty() => {
                    let iova = ahead.swap_remove(which % ahead.len());
                    let bytes = frame(number, 60);
                    let buffer = (iova.get() - memory.first.get()) / u64::from(STRIDE);
                    memory.write(buffer as u32, &bytes);
                    prop_assert!(card.deliver_swapped(iova, 60, &[]));
                    wanted.push_back(bytes);
                    number += 1;
                }
                RxStep::Swap(_) => {}
                RxStep::Untake => card.untake(ahead.drain(..).rev()),
                RxStep::Publish => {
                    card.publish();
                    published = wanted.len();
                }
                RxStep::Read(most) => {
                    let count = queue.ready(most).min(most);
                    // Done bits of whole cache lines are stored before `publish`.
                    prop_assert!(count as usize == published.min(most as usize) || count as usize > published);
                    for i in 0..count {
                        let found = queue.find(i).unwrap();
                        prop_assert_eq!(Some(memory.read(found.buffer, found.len)), wanted.pop_front());
                    }
                    published = published.saturating_sub(count as usize);
                    queue.put(count);
                }
                RxStep::Flush => queue.flush(),
            }
        }
        prop_assert!(wanted.is_empty() && card.in_flight() as usize == ahead.len());
    }
}
