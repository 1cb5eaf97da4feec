//! The TX direction with honest software.

use super::*;
use crate::serve::Source;

const LIMITS: FrameLimits = FrameLimits::ETHERNET;

#[test]
fn the_first_packet_sets_the_upper_address_and_moves_the_doorbell_on_flush() {
    let memory = Memory::new(8, 2);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    memory.write(16, &frame(1, 60));
    assert!(host.post(DATA_AT.plus(16), 60));
    assert_eq!(card.pending(), 0, "not announced yet");
    assert_eq!(memory.descriptors.load(0), DATA_AT.get() >> 30);
    assert_eq!(memory.descriptors.load(1), buffer(DATA_AT.plus(16), 60));
    host.flush();
    assert_eq!(memory.doorbell.load(Ordering::Relaxed), 2);
    assert_eq!(card.pending(), 2);
    let (served, frames) = serve_all(&mut card);
    assert_eq!(served, Served { frames: 1, bytes: 60, looked: 2, has_advanced: true, ..Served::default() });
    assert_eq!(frames, [frame(1, 60)]);
    assert_eq!(memory.told(), Pointers { descriptors: 2, headers: 0 });
    assert!(!host.is_drained(), "nobody has looked");
    assert_eq!(host.completed(), 1);
    assert!(host.is_drained());
}

#[test]
fn a_ring_keeps_one_entry_empty_and_wraps() {
    let memory = Memory::new(8, 2);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    let (mut posted, mut completed) = (0u32, 0u32);
    let mut seen = Vec::new();
    for round in 0..20 {
        assert_eq!(host.free(), 7);
        while host.post(DATA_AT.plus(u64::from(posted % 8) * 64), 64) {
            memory.write((posted % 8) as usize * 64, &frame(posted, 64));
            posted += 1;
        }
        assert_eq!(host.free(), 0);
        assert_eq!(posted - completed, if round == 0 { 6 } else { 7 }, "the first round has a type 0 descriptor");
        host.flush();
        seen.extend(serve_all(&mut card).1);
        completed += host.completed();
        assert_eq!(completed, posted);
    }
    let expected: Vec<_> = (0..posted).map(|number| frame(number, 64)).collect();
    assert_eq!(seen, expected);
}

#[test]
fn the_smallest_ring_that_carries_anything_has_four_entries() {
    let memory = Memory::new(4, 2);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    for number in 0..9 {
        // Another upper address each time: two of three usable entries.
        let at = if number % 2 == 0 { DATA_AT } else { DATA_AT.plus(8192) };
        assert!(host.post(at, 60));
        assert!(!host.post(if number % 2 == 0 { DATA_AT.plus(8192) } else { DATA_AT }, 60));
        host.flush();
        assert_eq!(serve_all(&mut card).0.frames, 1);
        assert_eq!(host.completed(), 1);
    }
    let memory = Memory::new(2, 2);
    let mut host = memory.host_tx();
    assert!(!host.post(DATA_AT, 60), "no room for the upper address and a buffer");
    let buffers = vec![DATA_AT].into_boxed_slice();
    assert!(FixedTx::new(host, buffers, 0).is_none());
}

#[test]
fn an_upper_address_is_written_only_when_it_changes() {
    let memory = Memory::new(64, 2);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    // Below the boundary twice, above it three times, below again: three changes.
    let offsets = [0, 4096, 8192, 8192 + 4096, 8192 + 8192, 128];
    for (number, &offset) in offsets.iter().enumerate() {
        memory.write(offset, &frame(number as u32, 100));
        assert!(host.post(DATA_AT.plus(offset as u64), 100));
    }
    host.flush();
    let words: Vec<u64> = (0..9).map(|slot| memory.descriptors.load(slot)).collect();
    let is_upper: Vec<bool> = words.iter().map(|&w| matches!(Descriptor::decode(w), Descriptor::Upper(_))).collect();
    assert_eq!(is_upper, [true, false, false, true, false, false, false, true, false]);
    assert_eq!((words[0], words[3], words[7]), (4, 5, 4));
    let (served, frames) = serve_all(&mut card);
    assert_eq!((served.frames, served.fault), (6, None));
    assert_eq!(frames, (0..6).map(|number| frame(number, 100)).collect::<Vec<_>>());
    assert_eq!(host.completed(), 6, "type 0 descriptors are no packets");
}

#[test]
fn a_buffer_may_reach_over_the_boundary_of_the_upper_address() {
    let memory = Memory::new(8, 2);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    memory.write(8192 - 100, &frame(3, 300));
    assert!(host.post(DATA_AT.plus(8192 - 100), 300));
    host.flush();
    assert_eq!(serve_all(&mut card).1, [frame(3, 300)]);
}

#[test]
fn more_than_a_batch_goes_in_one_call_and_the_budget_is_kept() {
    let memory = Memory::new(256, 2);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    for number in 0..200u32 {
        memory.write(number as usize * 64, &frame(number, 64));
        assert!(host.post(DATA_AT.plus(u64::from(number) * 64), 64));
    }
    host.flush();
    let mut seen = Vec::new();
    card.pending();
    for budget in [0, 1, 31, 32, 33, 64, 100] {
        let expected = budget.min(200 - seen.len());
        let served = card.serve(budget, &mut |frame: Span<'_>| {
            seen.push(bytes_of(frame));
            Accept::Taken
        });
        assert_eq!(served.frames as usize, expected, "budget {budget}");
    }
    assert_eq!(seen, (0..200).map(|number| frame(number, 64)).collect::<Vec<_>>());
    // Buffers 128 to 199 lie behind the 1 GiB boundary: one more type 0.
    assert_eq!(memory.told().descriptors, 202);
}

#[test]
fn what_the_sink_has_no_room_for_stays_and_so_does_the_upper_address() {
    let memory = Memory::new(16, 2);
    let mut card = memory.card_tx(LIMITS);
    memory.write(0, &frame(0, 60));
    memory.write(8192, &frame(1, 60));
    memory.write(64, &frame(2, 90));
    memory.write(9000, &frame(3, 60));
    let (low, high) = (DATA_AT, DATA_AT.plus(8192));
    memory.post_raw(&[
        upper(low),
        buffer(low, 60),
        upper(high),
        buffer(high, 60),
        upper(low),
        piece(low.plus(64), 40),
        buffer(low.plus(104), 50),
        upper(high),
        buffer(DATA_AT.plus(9000), 60),
    ]);
    let mut seen = Vec::new();
    for turn in 0..40 {
        card.pending();
        // Refuse twice, take once.
        let mut calls = turn;
        let served = card.serve(usize::MAX, &mut |frame: Span<'_>| {
            calls += 1;
            if calls % 3 != 0 {
                return Accept::Full;
            }
            seen.push(bytes_of(frame));
            Accept::Taken
        });
        assert_eq!(served.fault, None);
        assert_eq!(memory.told().descriptors, card.hdp());
    }
    assert_eq!(seen, [frame(0, 60), frame(1, 60), frame(2, 90), frame(3, 60)]);
    assert_eq!(card.hdp(), 9);
}

#[test]
fn several_descriptors_make_one_packet() {
    let memory = Memory::new(16, 2);
    let mut card = memory.card_tx(LIMITS);
    let (a, b, c) = (frame(1, 33), frame(2, 1), frame(3, 500));
    memory.write(0, &a);
    memory.write(8192 + 40, &b);
    memory.write(5000, &c);
    let high = DATA_AT.plus(8192);
    memory.post_raw(&[
        upper(DATA_AT),
        piece(DATA_AT, 33),
        upper(high),
        piece(DATA_AT.plus(8192 + 40), 1),
        upper(DATA_AT),
        piece(DATA_AT, 0),
        buffer(DATA_AT.plus(5000), 500),
        buffer(DATA_AT.plus(5000), 100),
    ]);
    let (served, frames) = serve_all(&mut card);
    assert_eq!(served, Served { frames: 2, bytes: 634, looked: 8, has_advanced: true, ..Served::default() });
    assert_eq!(frames, [[a, b, c.clone()].concat(), c[..100].to_vec()]);
    assert_eq!(memory.told().descriptors, 8);
}

#[test]
fn a_packet_waits_until_its_last_descriptor_is_announced() {
    let memory = Memory::new(16, 2);
    let mut card = memory.card_tx(LIMITS);
    memory.write(0, &frame(1, 90));
    memory.post_raw(&[upper(DATA_AT), piece(DATA_AT, 40), piece(DATA_AT.plus(40), 40)]);
    let served = Served { looked: 3, has_advanced: true, ..Served::default() };
    assert_eq!(serve_all(&mut card), (served, vec![]));
    assert_eq!((card.hdp(), memory.told().descriptors), (1, 1), "the type 0 descriptor is used up, the pieces are not");
    assert_eq!(serve_all(&mut card), (Served::default(), vec![]), "nothing is looked at twice");
    memory.descriptors.store(3, buffer(DATA_AT.plus(80), 10));
    memory.ring(4, 0);
    let (served, frames) = serve_all(&mut card);
    assert_eq!((served.looked, served.has_moved(), frames), (1, true, vec![frame(1, 90)]));
    assert_eq!((card.hdp(), memory.told().descriptors), (4, 4), "software hears of a chain");
}

#[test]
fn a_chain_counts_against_the_budget_and_goes_on_after_whole_frames() {
    let memory = Memory::new(16, 2);
    let mut card = memory.card_tx(LIMITS);
    let whole = buffer(DATA_AT, 60);
    let chain = [piece(DATA_AT, 60), buffer(DATA_AT, 60)];
    memory.post_raw(&[upper(DATA_AT), whole, chain[0], chain[1], chain[0], chain[1], whole, whole]);
    let mut lengths = Vec::new();
    card.pending();
    for expected in [2, 2, 1, 0] {
        let served = card.serve(2, &mut |frame: Span<'_>| {
            lengths.push(frame.len());
            Accept::Taken
        });
        assert_eq!(served.frames, expected);
    }
    assert_eq!(lengths, [60, 120, 120, 60, 60]);
}

#[test]
fn fixed_buffers_go_round() {
    let memory = Memory::new(16, 2);
    let mut card = memory.card_tx(LIMITS);
    // Every second buffer lies beyond the boundary.
    let at = |i: u32| if i.is_multiple_of(2) { u64::from(i) * 64 } else { 8192 + u64::from(i) * 64 };
    let buffers: Box<[Iova]> = (0..8).map(|i| DATA_AT.plus(at(i))).collect();
    let mut queue = FixedTx::new(memory.host_tx(), buffers, 3).unwrap();
    assert_eq!(queue.available(), 6, "16 entries, one empty, one to begin with, eight changes of the upper address");
    let mut sent = Vec::new();
    for round in 0..50u32 {
        let count = 1 + round % 6;
        let first = queue.take(count).unwrap();
        assert_eq!(queue.take(7), None);
        for number in first..first + count {
            memory.write(at(number % 8) as usize, &frame(number, 60 + (number % 4) as usize));
        }
        if round % 5 == 4 {
            queue.untake();
            assert_eq!(queue.take(count), Some(first));
        }
        for number in first..first + count {
            assert!(queue.post(60 + (number % 4) as u16));
        }
        queue.flush();
        assert_eq!(queue.in_flight(), count);
        sent.extend(serve_all(&mut card).1);
        queue.reclaim();
        assert_eq!(queue.in_flight(), 0);
    }
    let expected: Vec<_> = (3..queue.next()).map(|number| frame(number, 60 + (number % 4) as usize)).collect();
    assert_eq!(sent, expected);
}

#[test]
fn fixed_buffers_need_a_power_of_two_and_descriptors_for_every_change() {
    let memory = Memory::new(8, 2);
    let three: Box<[Iova]> = vec![DATA_AT; 3].into_boxed_slice();
    assert!(FixedTx::new(memory.host_tx(), three, 0).is_none());
    assert!(FixedTx::new(memory.host_tx(), Box::new([]), 0).is_none());
    let changing: Box<[Iova]> = (0..8).map(|i| DATA_AT.plus(8192 * (i % 2))).collect();
    assert!(FixedTx::new(memory.host_tx(), changing, 0).is_none(), "eight changes in eight entries");
}

#[test]
fn what_comes_while_a_lone_frame_is_served_is_found_at_the_next_look() {
    let memory = Memory::new(16, 2);
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    let mut post = |lens: &[u16]| {
        lens.iter().for_each(|&len| assert!(host.post(DATA_AT, len)));
        host.flush();
    };
    post(&[60]);
    assert_eq!(card.pending(), 2);
    assert!(!card.is_lone(), "an upper address stands before it");
    assert_eq!(serve_all(&mut card).0.frames, 1);
    post(&[61]);
    assert_eq!(card.pending(), 1);
    assert!(card.is_lone());
    let served = card.serve(64, &mut |_: Span<'_>| {
        post(&[62]);
        Accept::Taken
    });
    assert_eq!((served.frames, served.bytes), (1, 61));
    assert_eq!(card.pending(), 1, "a queue that is to stop does not before this one is gone");
    assert_eq!(serve_all(&mut card).0.bytes, 62);
    post(&[63, 64]);
    assert_eq!(card.pending(), 2);
    assert!(!card.is_lone());
    assert_eq!(serve_all(&mut card).0.frames, 2, "in one call");
}

#[test]
fn another_card_goes_on_where_one_stands_with_a_chain_from_its_beginning() {
    let memory = Memory::new(8, 2);
    let mut card = memory.card_tx(LIMITS);
    memory.write(0, &frame(1, 60));
    memory.write(64, &frame(2, 100));
    // Up to the middle of a packet of two descriptors.
    memory.post_raw(&[upper(DATA_AT), buffer(DATA_AT, 60), piece(DATA_AT.plus(64), 40), buffer(DATA_AT.plus(104), 60)]);
    memory.ring(3, 0);
    assert_eq!(serve_all(&mut card).1, [frame(1, 60)]);
    let place = card.place();
    assert_eq!((place.head, place.upper), (2, Some(DATA_AT.get() >> 30)));
    let mut card = memory.card_tx(LIMITS);
    card.resume(&place);
    assert_eq!(serve_all(&mut card).1.len(), 0);
    memory.ring(4, 0);
    assert_eq!(serve_all(&mut card).1, [frame(2, 100)]);
    assert_eq!((memory.told().descriptors, card.place().head), (4, 4));
}
