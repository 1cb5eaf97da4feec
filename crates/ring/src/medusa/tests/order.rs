//! Any sequence of legal operations keeps packets in order and complete, and every packet is counted once.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
enum TxStep {
    /// Take this many buffers, fill and post them with lengths that follow from the seed.
    Send {
        count: u32,
        seed: u32,
    },
    Flush,
    /// Let the card work with this budget; the sink takes this many frames before it is full.
    Serve {
        budget: usize,
        room: usize,
    },
    Reclaim,
}

fn tx_steps() -> impl Strategy<Value = Vec<TxStep>> {
    let step = prop_oneof![
        4 => (1u32..40, any::<u32>()).prop_map(|(count, seed)| TxStep::Send { count, seed }),
        3 => Just(TxStep::Flush),
        4 => (0usize..80, 0usize..80).prop_map(|(budget, room)| TxStep::Serve { budget, room }),
        2 => Just(TxStep::Reclaim),
    ];
    prop::collection::vec(step, 0..200)
}

/// Buffers of `size` bytes; `apart` puts every other one beyond the 1 GiB boundary.
fn buffers(count: u32, size: u64, apart: bool) -> Box<[Iova]> {
    let beyond = |i: u64| if apart && i % 2 == 1 { 8192 } else { 0 };
    (0..u64::from(count)).map(|i| DATA_AT.plus(i * size + beyond(i))).collect()
}

fn offset(iova: Iova) -> usize {
    (iova.get() - DATA_AT.get()) as usize
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tx(ring in 1u32..7, count in 0u32..7, apart: bool, first: u32, steps in tx_steps()) {
        let memory = Memory::new(1 << ring, 2);
        let buffers = buffers(1 << count, 256, apart);
        let limits = FrameLimits { min: 60, max: 200 };
        let mut card = memory.card_tx(limits);
        let Some(mut queue) = FixedTx::new(memory.host_tx(), buffers.clone(), first) else { return Ok(()) };
        let (mut wanted, mut got) = (VecDeque::new(), 0u64);
        let mut bad = 0u64;
        let mut flushed = 0usize;
        // Whatever happened, everything gets out in the end.
        // More turns than the fullest ring takes.
        let serve = TxStep::Serve { budget: usize::MAX, room: usize::MAX };
        let end = [TxStep::Flush, serve, serve, serve, serve, TxStep::Reclaim];
        for step in steps.into_iter().chain(end) {
            match step {
                TxStep::Send { count, seed } => {
                    let Some(number) = queue.take(count) else { continue };
                    for i in 0..count {
                        // Some too short, some too long.
                        let len = 50 + (seed.wrapping_add(i).wrapping_mul(0x9e37_79b9) >> 16) % 160;
                        let at = number.wrapping_add(i);
                        let bytes = frame(at, len as usize);
                        memory.write(offset(buffers[at as usize % buffers.len()]), &bytes);
                        prop_assert!(queue.post(len as u16), "taken buffers have room in the ring");
                        wanted.push_back(bytes);
                    }
                }
                TxStep::Flush => {
                    queue.flush();
                    flushed = wanted.len();
                }
                TxStep::Serve { budget, room } => {
                    card.pending();
                    let mut left = room;
                    let mut frames = Vec::new();
                    let served = card.serve(budget, &mut |frame: Span<'_>| {
                        if left == 0 {
                            return Accept::Full;
                        }
                        left -= 1;
                        frames.push(bytes_of(frame));
                        Accept::Taken
                    });
                    prop_assert_eq!(served.fault, None);
                    prop_assert_eq!(served.frames as usize, frames.len());
                    prop_assert_eq!(served.bytes as usize, frames.iter().map(Vec::len).sum::<usize>());
                    let done = (served.frames + served.too_short + served.too_long) as usize;
                    prop_assert!(done <= flushed && done <= budget);
                    flushed -= done;
                    let (mut short, mut long) = (0, 0);
                    let mut frames = frames.into_iter();
                    for sent in wanted.drain(..done) {
                        match sent.len() {
                            ..60 => short += 1,
                            201.. => long += 1,
                            _ => prop_assert_eq!(Some(sent), frames.next()),
                        }
                    }
                    prop_assert_eq!((short, long), (served.too_short, served.too_long));
                    got += served.frames;
                    bad += short + long;
                }
                TxStep::Reclaim => {
                    queue.reclaim();
                    prop_assert_eq!(queue.in_flight() as usize, wanted.len());
                }
            }
        }
        prop_assert_eq!(u64::from(queue.next().wrapping_sub(first)), got + bad, "offered = passed + dropped");
        prop_assert!(wanted.is_empty());
    }
}

#[derive(Clone, Copy, Debug)]
enum RxStep {
    Deliver {
        count: u32,
        seed: u32,
    },
    Publish,
    /// Look, and give back at most this many packets.
    Read {
        most: u32,
    },
    Flush,
}

fn rx_steps() -> impl Strategy<Value = Vec<RxStep>> {
    let step = prop_oneof![
        4 => (1u32..40, any::<u32>()).prop_map(|(count, seed)| RxStep::Deliver { count, seed }),
        3 => Just(RxStep::Publish),
        4 => (0u32..80).prop_map(|most| RxStep::Read { most }),
        1 => Just(RxStep::Flush),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rx(
        ring in 1u32..7,
        headers in 1u32..7,
        count in 0u32..7,
        size in 64u16..256,
        apart: bool,
        first: u32,
        steps in rx_steps(),
    ) {
        let memory = Memory::new(1 << ring, 1 << headers);
        let buffers = buffers(1 << count, 256, apart);
        let limits = FrameLimits { min: 60, max: 200 };
        let mut card = memory.card_rx(limits);
        let Some(mut queue) = FixedRx::new(memory.host_rx(), buffers.clone(), size, first) else {
            prop_assert_eq!(ring, 1, "only a ring of two entries is too small");
            return Ok(());
        };
        let (mut offered, mut stored, mut dropped, mut read) = (0u32, VecDeque::new(), 0u32, 0u32);
        let mut published = 0usize;
        let end = [RxStep::Publish, RxStep::Read { most: u32::MAX }];
        for step in steps.into_iter().chain(end) {
            match step {
                RxStep::Deliver { count, seed } => {
                    card.sync();
                    for i in 0..count {
                        let len = 60 + (seed.wrapping_add(i).wrapping_mul(0x9e37_79b9) >> 16) % 160;
                        let bytes = frame(offered, len as usize);
                        offered += 1;
                        match card.deliver(&[], Span::from_slice(&bytes)) {
                            Ok(RxOutcome::Stored) => {
                                prop_assert!(len <= 200 && len <= u32::from(size));
                                stored.push_back(bytes);
                            }
                            Ok(RxOutcome::TooLong) => {
                                prop_assert!(len > 200 || len > u32::from(size));
                                dropped += 1;
                            }
                            Ok(RxOutcome::NoRoom) => dropped += 1,
                            Err(fault) => prop_assert!(false, "{fault}"),
                        }
                    }
                }
                RxStep::Publish => {
                    card.publish();
                    published = stored.len();
                }
                RxStep::Read { most } => {
                    let ready = queue.ready();
                    prop_assert_eq!(ready as usize, published);
                    let count = ready.min(most);
                    for (ahead, expected) in stored.drain(..count as usize).enumerate() {
                        let number = queue.first().wrapping_add(ahead as u32);
                        let header = queue.header(ahead as u32);
                        prop_assert_eq!(usize::from(header.len), expected.len());
                        let at = offset(buffers[number as usize % buffers.len()]);
                        prop_assert_eq!(memory.read(at, expected.len()), expected);
                    }
                    queue.put(count);
                    published -= count as usize;
                    read += count;
                }
                RxStep::Flush => queue.flush(),
            }
        }
        prop_assert_eq!(offered, read + dropped, "offered = passed + dropped");
        // A queue that was emptied takes frames again.
        prop_assert_eq!(card.deliver(&[], Span::from_slice(&[0; 60])), Ok(RxOutcome::Stored));
    }
}
