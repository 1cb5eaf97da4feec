//! Any sequence of legal operations keeps packets in order and complete, and every packet is counted once.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
enum TxStep {
    /// Push this many packets whose lengths follow from the seed.
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
    Look,
}

fn tx_steps() -> impl Strategy<Value = Vec<TxStep>> {
    let step = prop_oneof![
        4 => (1u32..40, any::<u32>()).prop_map(|(count, seed)| TxStep::Send { count, seed }),
        3 => Just(TxStep::Flush),
        4 => (0usize..80, 0usize..80).prop_map(|(budget, room)| TxStep::Serve { budget, room }),
        2 => Just(TxStep::Look),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tx(pages in 0u32..5, more_headers in 0u32..3, steps in tx_steps()) {
        let ring = 4096u32 << pages;
        let memory = Memory::new(ring as usize, header_entries(ring) << more_headers);
        let mut card = memory.card_tx(FrameLimits { min: 60, max: 200 });
        let mut queue = memory.host_tx();
        let (mut wanted, mut sent, mut got, mut bad) = (VecDeque::new(), 0u32, 0u64, 0u64);
        let mut flushed = 0usize;
        // Whatever happened, everything gets out in the end.
        // More turns than the fullest ring takes.
        let serve = TxStep::Serve { budget: usize::MAX, room: usize::MAX };
        let end = [TxStep::Flush, serve, serve, serve, serve, TxStep::Look];
        for step in steps.into_iter().chain(end) {
            match step {
                TxStep::Send { count, seed } => {
                    for i in 0..count {
                        // Some too short, some too long.
                        let len = 50 + (seed.wrapping_add(i).wrapping_mul(0x9e37_79b9) >> 16) % 160;
                        let bytes = frame(sent, len as usize);
                        if !send(&mut queue, &memory, &bytes) {
                            break;
                        }
                        sent += 1;
                        wanted.push_back(bytes);
                    }
                }
                TxStep::Flush => {
                    queue.flush();
                    flushed = wanted.len();
                }
                TxStep::Serve { budget, room } => {
                    prop_assert_eq!(card.pending(), flushed > 0);
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
                TxStep::Look => {
                    queue.refresh();
                    let taken: u32 = wanted.iter().map(|bytes| HostTx::stride(bytes.len() as u16)).sum();
                    prop_assert_eq!(queue.in_flight(), taken);
                }
            }
        }
        prop_assert_eq!(u64::from(sent), got + bad, "offered = passed + dropped");
        prop_assert!(wanted.is_empty() && queue.is_drained());
    }
}

#[derive(Clone, Copy, Debug)]
enum RxStep {
    Deliver {
        count: u32,
        seed: u32,
    },
    Publish,
    /// Look for and give back at most this many packets.
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
    fn rx(pages in 0u32..5, headers in 1u32..9, steps in rx_steps()) {
        let memory = Memory::new(4096 << pages, 1 << headers);
        let (mut card, mut queue) = (memory.card_rx(FrameLimits { min: 60, max: 800 }), memory.host_rx());
        let (mut offered, mut stored, mut dropped, mut read) = (0u32, VecDeque::new(), 0u32, 0u32);
        let mut published = 0usize;
        let end = [RxStep::Publish, RxStep::Read { most: u32::MAX }, RxStep::Flush];
        for step in steps.into_iter().chain(end) {
            match step {
                RxStep::Deliver { count, seed } => {
                    for i in 0..count {
                        let len = 60 + (seed.wrapping_add(i).wrapping_mul(0x9e37_79b9) >> 16) % 760;
                        let (meta, bytes) = (frame(!offered, offered as usize % 3 * 8), frame(offered, len as usize));
                        offered += 1;
                        match card.deliver(&meta, Span::from_slice(&bytes)) {
                            Ok(RxOutcome::Stored) => {
                                prop_assert!(len <= 800);
                                stored.push_back((meta, bytes));
                            }
                            Ok(RxOutcome::TooLong) => {
                                prop_assert!(len > 800);
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
                    prop_assert_eq!(queue.published() as usize, published);
                    // Whole lines of headers are seen before they are published.
                    let ready = queue.ready(most);
                    prop_assert!(ready as usize >= published.min(most as usize) && ready as usize <= stored.len());
                    let count = ready.min(most);
                    for (ahead, (meta, bytes)) in stored.drain(..count as usize).enumerate() {
                        let header = queue.header(ahead as u32);
                        prop_assert_eq!(usize::from(header.header_len), meta.len());
                        prop_assert_eq!(memory.packet(header), [meta, bytes].concat());
                    }
                    queue.put(count);
                    if count as usize > published {
                        // The update word is behind; nobody looks at it who reads headers.
                        card.publish();
                        published = stored.len();
                    } else {
                        published -= count as usize;
                    }
                    read += count;
                }
                RxStep::Flush => queue.flush(),
            }
        }
        prop_assert_eq!(offered, read + dropped, "offered = passed + dropped");
        // A queue that was emptied takes frames again.
        prop_assert_eq!(deliver(&mut card, &[0; 60]), RxOutcome::Stored);
    }
}
