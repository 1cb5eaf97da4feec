//! Any sequence of legal operations keeps packets in order and complete, and every packet is counted once.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// A ring in one piece, one that begins elsewhere, or one in single pages.
fn memory(size_log: u32, kind: u8) -> (Memory, u32) {
    let size = 1 << size_log;
    match kind {
        0 => (Memory::new(size, 0), 0),
        1 => {
            let offset = (size - 4096) as u64;
            (Memory::new(size, offset), offset as u32)
        }
        _ => (Memory::scattered(size), 0),
    }
}

/// Mostly short frames, some of any length.
fn length(seed: u32) -> usize {
    let random = (seed.wrapping_mul(0x9e37_79b9) >> 8) as usize;
    if random.is_multiple_of(8) { 57 + random / 8 % 6000 } else { 57 + random / 8 % 200 }
}

#[derive(Clone, Copy, Debug)]
enum TxStep {
    /// Write this many packets, or as many as there is room for. Every eighth seed makes one too short, too.
    Send {
        count: u32,
        seed: u32,
    },
    Flush,
    FlushIfFar,
    Serve {
        budget: usize,
        room: usize,
    },
}

fn tx_steps() -> impl Strategy<Value = Vec<TxStep>> {
    let step = prop_oneof![
        4 => (1u32..20, any::<u32>()).prop_map(|(count, seed)| TxStep::Send { count, seed }),
        2 => Just(TxStep::Flush),
        2 => Just(TxStep::FlushIfFar),
        4 => (0usize..40, 0usize..40).prop_map(|(budget, room)| TxStep::Serve { budget, room }),
    ];
    prop::collection::vec(step, 0..120)
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
        4 => (1u32..20, any::<u32>()).prop_map(|(count, seed)| RxStep::Deliver { count, seed }),
        3 => Just(RxStep::Publish),
        4 => (0u32..40).prop_map(|most| RxStep::Read { most }),
        1 => Just(RxStep::Flush),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tx(size_log in 12u32..16, kind in 0u8..3, steps in tx_steps()) {
        let (memory, base) = memory(size_log, kind);
        let (mut host, mut card) = (memory.host_tx(base), memory.card_tx());
        let (mut wanted, mut offered, mut passed, mut short) = (VecDeque::new(), 0u64, 0u64, 0u64);
        let mut flushed = 0usize;
        // More turns than the fullest ring takes.
        let serve = TxStep::Serve { budget: usize::MAX, room: usize::MAX };
        let end = [TxStep::Flush, serve, serve, serve, serve];
        for step in steps.into_iter().chain(end) {
            match step {
                TxStep::Send { count, seed } => {
                    for i in 0..count {
                        let seed = seed.wrapping_add(i);
                        let len = if seed % 8 == 7 { seed as usize / 8 % 57 } else { length(seed) };
                        let bytes = frame(seed, len);
                        if !send(&mut host, &bytes) {
                            break;
                        }
                        offered += 1;
                        wanted.push_back(bytes);
                    }
                }
                TxStep::Flush => {
                    host.flush();
                    flushed = wanted.len();
                }
                TxStep::FlushIfFar => {
                    if host.flush_if_far() {
                        flushed = wanted.len();
                    }
                }
                TxStep::Serve { budget, room } => {
                    card.pending();
                    let (mut left, mut frames) = (room, Vec::new());
                    let served = card.serve(budget, &mut |frame: Span<'_>| {
                        if left == 0 {
                            return Accept::Full;
                        }
                        left -= 1;
                        frames.push(bytes_of(frame));
                        Accept::Taken
                    });
                    prop_assert_eq!(served.fault, None);
                    let done = (served.frames + served.too_short) as usize;
                    prop_assert!(done <= flushed && done <= budget);
                    flushed -= done;
                    let mut frames = frames.into_iter();
                    for sent in wanted.drain(..done) {
                        if sent.len() >= 57 {
                            prop_assert_eq!(Some(sent), frames.next());
                        }
                    }
                    prop_assert_eq!(frames.next(), None);
                    passed += served.frames;
                    short += served.too_short;
                }
            }
        }
        prop_assert_eq!(offered, passed + short, "offered = passed + dropped");
        host.refresh();
        prop_assert!(host.is_drained());
    }

    #[test]
    fn rx(size_log in 12u32..16, kind in 0u8..3, steps in rx_steps()) {
        let (memory, base) = memory(size_log, kind);
        let (mut host, mut card) = (memory.host_rx(base), memory.card_rx());
        let (mut stored, mut offered, mut read, mut dropped) = (VecDeque::new(), 0u64, 0u64, 0u64);
        let mut published = 0usize;
        let end = [RxStep::Publish, RxStep::Read { most: u32::MAX }, RxStep::Flush];
        for step in steps.into_iter().chain(end) {
            match step {
                RxStep::Deliver { count, seed } => {
                    card.sync();
                    for i in 0..count {
                        let seed = seed.wrapping_add(i);
                        let bytes = frame(seed, length(seed));
                        offered += 1;
                        match card.deliver(&[], Span::from_slice(&bytes)) {
                            Ok(RxOutcome::Stored) => stored.push_back(bytes),
                            Ok(RxOutcome::NoRoom) => dropped += 1,
                            Ok(RxOutcome::TooLong) => {
                                prop_assert!(bytes.len() + 16 > 1 << size_log);
                                dropped += 1;
                            }
                            Err(fault) => prop_assert!(false, "{fault}"),
                        }
                    }
                }
                RxStep::Publish => {
                    card.publish();
                    published = stored.len();
                }
                RxStep::Read { most } => {
                    let (start, ready) = (host.position(), host.ready());
                    let (mut position, mut count) = (start, 0);
                    while position.wrapping_sub(start) < ready && count < most {
                        let packet = host.packet(position).unwrap();
                        let expected = stored.pop_front().unwrap();
                        let bytes = host.ring().slice(packet.frame_at as usize, packet.frame_len.into()).unwrap();
                        prop_assert_eq!(bytes, &expected[..]);
                        position = position.wrapping_add(packet.stride);
                        count += 1;
                    }
                    host.put(position.wrapping_sub(start));
                    published -= count as usize;
                    prop_assert!(count == most || published == 0);
                    read += u64::from(count);
                }
                RxStep::Flush => host.flush(),
            }
        }
        prop_assert_eq!(offered, read + dropped, "offered = passed + dropped");
        prop_assert_eq!(card.deliver(&[], Span::from_slice(&[0; 57])), Ok(RxOutcome::Stored));
    }
}
