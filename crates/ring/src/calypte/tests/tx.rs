//! The TX direction with honest software.

use super::*;
use crate::serve::Source;

#[test]
fn the_header_is_the_doorbell() {
    let memory = Memory::new(4096, 128);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    assert!(!card.pending());
    assert!(send(&mut host, &memory, &frame(0, 60)) && send(&mut host, &memory, &frame(1, 65)));
    assert!(!card.pending(), "not flushed");
    assert_eq!((host.staged(), host.position(), host.frame_at()), (2, 160, 160));
    host.flush();
    assert_eq!(memory.headers.load(0).to_le_bytes(), [60, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(memory.headers.load(1).to_le_bytes(), [65, 0, 64, 0, 1, 0, 0, 0]);
    assert_eq!(memory.doorbell.load(Ordering::Relaxed), 0, "no other word moves");
    assert!(card.pending());
    let (served, frames) = serve_all(&mut card);
    assert_eq!(served, Served { frames: 2, bytes: 125, looked: 2, has_advanced: true, ..Served::default() });
    assert_eq!(frames, [frame(0, 60), frame(1, 65)]);
    assert_eq!(memory.told(), Pointers { data: 160, headers: 2 });
    assert!(!card.pending());
    assert!(!host.is_drained(), "nobody has looked");
    host.refresh();
    assert!(host.is_drained());
    assert_eq!((card.hdp(), card.hhp(), host.in_flight()), (160, 2, 0));
}

#[test]
fn data_and_headers_wrap_and_something_stays_empty() {
    for entries in [128, 512] {
        let memory = Memory::new(4096, entries);
        let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
        let (mut sent, mut got) = (0, Vec::new());
        // The smallest frames there can be a place for: as many headers as possible are in use.
        let limits = FrameLimits { min: 1, max: 200 };
        let mut small = memory.card_tx(limits);
        std::mem::swap(&mut card, &mut small);
        for _ in 0..50 {
            while send(&mut host, &memory, &frame(sent, 1 + sent as usize * 7 % 200)) {
                sent += 1;
            }
            assert!(host.available() < 224);
            host.flush();
            got.extend(serve_all(&mut card).1);
            assert_eq!(host.available(), host.most());
            assert_eq!(got.len(), sent as usize);
        }
        let expected: Vec<_> = (0..sent).map(|number| frame(number, 1 + number as usize * 7 % 200)).collect();
        assert!(got == expected);
        assert!(sent > 3 * entries, "both rings went round: {sent}");
    }
}

#[test]
fn a_ring_full_of_the_smallest_frames_has_a_header_for_each() {
    let memory = Memory::new(4096, 128);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(FrameLimits { min: 1, max: 60 }));
    for round in 0..5 {
        for number in 0..127 {
            assert!(send(&mut host, &memory, &[number]), "round {round}");
        }
        assert!(!host.has_room(32));
        host.flush();
        let (served, frames) = serve_all(&mut card);
        assert_eq!(served.frames, 127);
        assert!(frames.iter().zip(0..).all(|(frame, number)| *frame == [number]));
    }
}

#[test]
fn what_the_sink_has_no_room_for_stays() {
    let memory = Memory::new(65536, 2048);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    for number in 0..100 {
        assert!(send(&mut host, &memory, &frame(number, 60 + number as usize)));
    }
    host.flush();
    let (mut seen, mut calls) = (Vec::new(), 0);
    while seen.len() < 100 {
        let before = seen.len();
        let served = card.serve(50, &mut |frame: Span<'_>| {
            calls += 1;
            if calls % 7 == 0 {
                return Accept::Full;
            }
            seen.push(bytes_of(frame));
            Accept::Taken
        });
        assert_eq!(served.frames as usize, seen.len() - before);
        assert_eq!(memory.told().headers as usize, seen.len());
    }
    let expected: Vec<_> = (0..100).map(|number| frame(number, 60 + number as usize)).collect();
    assert!(seen == expected);
}

#[test]
fn a_budget_counts_what_is_sent_and_what_is_not() {
    let memory = Memory::new(65536, 2048);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(FrameLimits { min: 60, max: 100 }));
    for number in 0..90u32 {
        let len = [59, 60, 100, 101][number as usize % 4];
        assert!(send(&mut host, &memory, &frame(number, len)));
    }
    host.flush();
    let mut all = Served::default();
    for _ in 0..9 {
        let served = card.serve(10, &mut |_: Span<'_>| Accept::Taken);
        assert_eq!(served.frames + served.too_short + served.too_long, 10);
        all.frames += served.frames;
        all.too_short += served.too_short;
        all.too_long += served.too_long;
    }
    assert_eq!((all.frames, all.too_short, all.too_long), (45, 23, 22));
    assert_eq!(host.available(), host.most());
}

#[test]
fn a_frame_may_reach_over_the_end_of_the_ring() {
    let memory = Memory::new(4096, 128);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    for number in 0..20 {
        assert!(send(&mut host, &memory, &frame(number, 1500)));
        host.flush();
        assert_eq!(serve_all(&mut card).1, [frame(number, 1500)]);
    }
}

#[test]
fn where_software_stands_shows_in_the_headers() {
    let memory = Memory::new(4096, 128);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    let mut sent = 0;
    for round in 0..300 {
        assert_eq!(announced(&memory.headers), sent % 128);
        for _ in 0..round % 50 {
            assert!(send(&mut host, &memory, &frame(sent, 60)));
            sent += 1;
        }
        host.flush();
        assert_eq!(announced(&memory.headers), sent % 128, "whatever the card has done");
        serve_all(&mut card);
        host.refresh();
        assert_eq!(memory.told().headers, announced(&memory.headers));
    }
}

#[test]
fn enough_packets_are_announced_without_a_flush() {
    for (len, most) in [(60, DEFERRED), (1500, 11), (9000, 2)] {
        let memory = Memory::new(65536, 2048);
        let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
        for number in 1..most {
            assert!(send(&mut host, &memory, &frame(number, len)));
            assert!(!host.flush_if_far() && !card.pending(), "{number} of {len} bytes");
        }
        assert!(send(&mut host, &memory, &frame(most, len)));
        assert!(host.flush_if_far() && host.staged() == 0);
        assert_eq!(serve_all(&mut card).0.frames, u64::from(most));
    }
}

#[test]
fn rings_of_other_sizes_are_refused() {
    let memory = Memory::new(12288, 512);
    let (headers, update) = (memory.headers.clone(), memory.update.clone());
    assert!(HostTx::new(12288, headers.clone(), update.clone()).is_none());
    assert!(HostTx::new(1 << 17, headers.clone(), update.clone()).is_none(), "16 bits say where a frame is");
    assert!(HostTx::new(65536, headers.clone(), update.clone()).is_none(), "too few headers");
    assert!(HostTx::new(16384, headers.clone(), update.clone()).is_some());
    for bytes in [12288, 1 << 17] {
        let (data, headers, update) = (Memory::new(bytes, 2).data().clone(), headers.clone(), update.clone());
        assert!(CardTx::new(TxRings { data, headers, update }, LIMITS).is_none());
    }
}

#[test]
fn what_comes_while_a_lone_frame_is_served_is_found_at_the_next_look() {
    // Three frames a turn: the lone one lies at every place of the header ring, in laps of both kinds.
    let memory = Memory::new(4096, 128);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    for turn in 0..128 {
        assert!(send(&mut host, &memory, &frame(0, 60)));
        host.flush();
        assert!(card.pending() && card.is_lone(), "turn {turn}");
        let served = card.serve(64, &mut |_: Span<'_>| {
            assert!(send(&mut host, &memory, &frame(1, 61)));
            host.flush();
            Accept::Taken
        });
        assert_eq!((served.frames, served.bytes), (1, 60), "turn {turn}");
        assert!(card.pending(), "a queue that is to stop does not before this one is gone");
        assert!(send(&mut host, &memory, &frame(2, 62)));
        host.flush();
        assert!(!card.is_lone(), "turn {turn}");
        let (served, frames) = serve_all(&mut card);
        assert_eq!((served.frames, frames), (2, vec![frame(1, 61), frame(2, 62)]), "in one call");
        assert!(!card.pending());
    }
}
