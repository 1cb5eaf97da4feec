//! Both directions with an honest peer.

use super::*;
use crate::serve::Source;

#[test]
fn a_packet_as_bytes() {
    let memory = Memory::new(4096, 0);
    memory.write(0, &[0xee; 4096]);
    let (mut host, mut card) = (memory.host_tx(0), memory.card_tx());
    assert!(send(&mut host, &frame(1, 61)));
    assert_eq!(card.pending(), 0, "not announced yet");
    host.flush();
    assert_eq!((memory.doorbell.load(Ordering::Relaxed), card.pending()), (72, 72));
    assert_eq!(memory.read(0, 8), [69, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(memory.read(8, 61), frame(1, 61));
    assert_eq!(memory.read(69, 3), [0xee; 3], "padding is not written");
    let (served, frames) = serve_all(&mut card);
    assert_eq!(served, Served { frames: 1, bytes: 61, looked: 2, has_advanced: true, ..Served::default() });
    assert_eq!((frames, memory.told()), (vec![frame(1, 61)], 72));
    assert_eq!(host.in_flight(), 72);
    host.refresh();
    assert!(host.is_drained());
}

#[test]
fn every_length_keeps_the_alignment_in_both_directions() {
    for memory in [Memory::new(1 << 16, 0), Memory::scattered(1 << 16)] {
        let (mut host, mut card) = (memory.host_tx(0), memory.card_tx());
        for len in (57..=200).chain([0x3fff, 0x3ffe, 57, 1518]) {
            assert!(send(&mut host, &frame(len, len as usize)), "length {len}");
            assert_eq!(host.position() % 8, 0);
            host.flush();
            let (served, frames) = serve_all(&mut card);
            assert_eq!((served.frames, served.fault), (1, None), "length {len}");
            assert_eq!(frames, [frame(len, len as usize)]);
            assert_eq!(card.hw() % 8, 0);
        }
        memory.doorbell.store(0, Ordering::Relaxed);
        memory.update.store(0, Ordering::Relaxed);
        let (mut host, mut card) = (memory.host_rx(0), memory.card_rx());
        for len in (57..=200).chain([0x3fff, 0x3ffe, 57, 1518]) {
            let bytes = frame(len, len as usize);
            assert_eq!(card.deliver(&[], Span::from_slice(&bytes)), Ok(RxOutcome::Stored), "length {len}");
            assert_eq!(card.hw() % 8, 0);
            card.publish();
            assert_eq!(receive_all(&mut host), [bytes]);
            host.flush();
        }
    }
}

#[test]
fn tx_full_empty_and_wrap() {
    for (memory, base) in [(Memory::new(8192, 0), 0), (Memory::new(8192, 4096), 4096), (Memory::scattered(8192), 0)] {
        let (mut host, mut card) = (memory.host_tx(base), memory.card_tx());
        let (mut sent, mut seen) = (0u32, Vec::new());
        for round in 0..50 {
            let before = sent;
            // 104 bytes do not divide the ring: packets wrap at every place there is.
            while send(&mut host, &frame(sent, 89 + (sent % 7) as usize)) {
                sent += 1;
            }
            assert!(sent - before >= 77 && host.in_flight() > 8192 - 8 - 104 && host.in_flight() <= 8192 - 8);
            host.flush();
            let (served, frames) = serve_all(&mut card);
            assert_eq!((served.frames, served.fault), (u64::from(sent - before), None), "round {round}");
            seen.extend(frames);
            assert_eq!(serve_all(&mut card), (Served::default(), vec![]));
            assert_eq!(memory.told(), u64::from(card.hw()));
        }
        let expected: Vec<_> = (0..sent).map(|number| frame(number, 89 + (number % 7) as usize)).collect();
        assert!(seen == expected);
    }
}

#[test]
fn rx_full_empty_and_wrap() {
    for (memory, base) in [(Memory::new(8192, 0), 0), (Memory::new(8192, 4096), 4096), (Memory::scattered(8192), 0)] {
        let (mut host, mut card) = (memory.host_rx(base), memory.card_rx());
        let mut number = 0;
        for _ in 0..50 {
            let first = number;
            while card.deliver(&[], Span::from_slice(&frame(number, 89 + (number % 7) as usize)))
                == Ok(RxOutcome::Stored)
            {
                number += 1;
            }
            assert!(number - first >= 77 && card.known_room().bytes < 104);
            assert_eq!(host.ready(), 0, "not published");
            assert!(card.publish());
            assert!(!card.publish());
            let expected: Vec<_> = (first..number).map(|number| frame(number, 89 + (number % 7) as usize)).collect();
            assert!(receive_all(&mut host) == expected);
            host.flush();
            assert_eq!(host.ready(), 0);
        }
    }
}

#[test]
fn exactly_full_is_not_empty() {
    let memory = Memory::new(4096, 0);
    let (mut host, mut card) = (memory.host_tx(0), memory.card_tx());
    assert!(!host.has_room(4096));
    assert!(send(&mut host, &frame(1, 4096 - 16)), "the ring but for eight bytes");
    assert!(!host.has_room(8));
    host.flush();
    assert_eq!(card.pending(), 4088);
    assert_eq!(serve_all(&mut card).1, [frame(1, 4080)]);
    assert!(host.has_room(4088));

    memory.doorbell.store(0, Ordering::Relaxed);
    memory.update.store(0, Ordering::Relaxed);
    let (mut host, mut card) = (memory.host_rx(0), memory.card_rx());
    assert_eq!(card.deliver(&[], Span::from_slice(&[0; 4081])), Ok(RxOutcome::TooLong), "would fill the ring");
    assert_eq!(card.deliver(&[], Span::from_slice(&frame(2, 4080))), Ok(RxOutcome::Stored));
    assert_eq!(card.deliver(&[], Span::from_slice(&[0; 57])), Ok(RxOutcome::NoRoom));
    card.publish();
    assert_eq!(receive_all(&mut host), [frame(2, 4080)]);
}

#[test]
fn metadata_lies_between_header_and_frame_on_the_way_in() {
    for memory in [Memory::new(8192, 0), Memory::scattered(8192)] {
        memory.write(0, &[0xee; 8192]);
        let (mut host, mut card) = (memory.host_rx(0), memory.card_rx());
        for (number, meta_len) in (0..=40).chain([255, 16, 16, 16, 16, 16]).enumerate() {
            let meta = frame(1000 + number as u32, meta_len);
            let bytes = frame(number as u32, 60 + number);
            assert_eq!(card.deliver(&meta, Span::from_slice(&bytes)), Ok(RxOutcome::Stored), "{meta_len}");
            assert_eq!(card.hw() % 8, 0);
            card.publish();
            let ready = host.ready();
            let packet = host.packet(host.position()).unwrap();
            assert_eq!((packet.stride, packet.frame_at % 8, usize::from(packet.meta_len)), (ready, 0, meta_len));
            let slice = |at: u32, len: u16| host.ring().slice(at as usize, len.into()).unwrap();
            assert_eq!(slice(packet.meta_at, packet.meta_len), meta);
            assert_eq!(slice(packet.frame_at, packet.frame_len), bytes);
            // Nothing of what was in the ring before is left between the two.
            let gap = packet.frame_at - packet.meta_at - u32::from(packet.meta_len);
            assert!(
                gap < 8 && slice(packet.meta_at + u32::from(packet.meta_len), gap as u16).iter().all(|&byte| byte == 0)
            );
            host.put(ready);
            host.flush();
        }
    }
}

#[test]
fn a_packet_that_just_fills_the_ring_with_metadata_and_one_that_does_not_fit() {
    let memory = Memory::new(4096, 0);
    let (mut host, mut card) = (memory.host_rx(0), memory.card_rx());
    // Header and 16 bytes of metadata take 24 bytes; eight bytes stay empty.
    assert_eq!(card.deliver(&[7; 16], Span::from_slice(&[0; 4096 - 24 - 7])), Ok(RxOutcome::TooLong));
    assert_eq!(card.deliver(&[7; 256], Span::from_slice(&[0; 60])), Ok(RxOutcome::TooLong));
    assert_eq!(card.hw(), 0);
    assert_eq!(card.deliver(&[7; 16], Span::from_slice(&frame(3, 4096 - 24 - 8))), Ok(RxOutcome::Stored));
    assert_eq!(card.deliver(&[7; 16], Span::from_slice(&[0; 57])), Ok(RxOutcome::NoRoom));
    card.publish();
    assert_eq!(host.ready(), 4088);
    let packet = host.packet(0).unwrap();
    assert_eq!((packet.meta_len, packet.frame_len), (16, 4064));
}

#[test]
fn metadata_is_skipped_on_the_way_out() {
    let memory = Memory::new(4096, 0);
    let mut card = memory.card_tx();
    for (at, meta, len) in [(0, 4u16, 60u16), (72, 5, 60), (152, 300, 57)] {
        let frame_at = (4 + meta).next_multiple_of(8);
        memory.write_packet(at, frame_at + len, meta);
        memory.write(at + u64::from(frame_at), &frame(meta.into(), len.into()));
    }
    memory.doorbell.store(152 + 368, Ordering::Release);
    let (served, frames) = serve_all(&mut card);
    assert_eq!((served.frames, served.fault), (3, None));
    assert_eq!(frames, [frame(4, 60), frame(5, 60), frame(300, 57)]);
}

#[test]
fn the_padding_before_a_frame_shows_no_old_bytes() {
    for memory in [Memory::new(8192, 0), Memory::scattered(8192)] {
        memory.write(0, &[0xee; 8192]);
        let mut card = memory.card_rx();
        let strides = [4000u32, 200, 64];
        let mut at = 0;
        for stride in strides {
            assert_eq!(card.deliver(&[], Span::from_slice(&vec![1; stride as usize - 8])), Ok(RxOutcome::Stored));
            assert_eq!(memory.read(at, 8), u64::from(stride).to_le_bytes());
            at += u64::from(stride);
        }
    }
}

#[test]
fn a_ring_of_many_runs_is_one_stream() {
    // 16 MiB of addresses over 64 KiB of memory, in runs of one to three pages with jumps between them.
    let memory = Memory::unmapped(1 << 16);
    let (mut list, mut page) = (Vec::new(), 0);
    for count in [1u32, 2, 3, 1, 3, 2, 1, 1, 2] {
        let at = RING_AT.plus(0x10_0000 * (page + 1) % 0x100_0000);
        let window = memory.ring.part((page * PAGE) as usize, (u64::from(count) * PAGE) as usize).unwrap();
        memory.domain.map(window, Access::ReadWrite, Some(at)).unwrap();
        list.push(Descriptor::Pages { at, count }.encode());
        if count == 3 {
            list.push(Descriptor::Next(LIST_AT.plus(list.len() as u64 * 8 + 16)).encode());
            list.push(Descriptor::Reserved.encode());
        }
        page += u64::from(count);
    }
    assert_eq!(page, 16);
    list.push(Descriptor::Next(LIST_AT).encode());
    memory.write_list(&list);
    let (mut host, mut card) = (memory.host_tx(0), memory.card_tx());
    for number in 0..400u32 {
        let bytes = frame(number, 57 + number as usize * 41 % 9000);
        assert!(send(&mut host, &bytes));
        host.flush();
        let (served, frames) = serve_all(&mut card);
        let len = bytes.len() as u64;
        assert_eq!((served.frames, served.bytes, served.fault, frames), (1, len, None, vec![bytes]));
    }
}

#[test]
fn what_the_sink_has_no_room_for_stays() {
    for memory in [Memory::new(8192, 0), Memory::scattered(8192)] {
        let (mut host, mut card) = (memory.host_tx(0), memory.card_tx());
        let mut seen = Vec::new();
        let mut calls = 0;
        for number in 0..40 {
            assert!(send(&mut host, &frame(number, 1000)));
            host.flush();
            for _ in 0..3 {
                card.pending();
                let served = card.serve(usize::MAX, &mut |frame: Span<'_>| {
                    calls += 1;
                    if calls % 3 != 0 {
                        return Accept::Full;
                    }
                    seen.push(bytes_of(frame));
                    Accept::Taken
                });
                assert_eq!(served.fault, None);
            }
            assert_eq!(memory.told(), u64::from(card.hw()));
        }
        assert_eq!(seen, (0..40).map(|number| frame(number, 1000)).collect::<Vec<_>>());
    }
}

#[test]
fn the_budget_is_kept() {
    let memory = Memory::new(8192, 0);
    let (mut host, mut card) = (memory.host_tx(0), memory.card_tx());
    for number in 0..20 {
        assert!(send(&mut host, &frame(number, 60)));
    }
    host.flush();
    card.pending();
    for (budget, expected) in [(0, 0), (1, 1), (7, 7), (100, 12)] {
        assert_eq!(card.serve(budget, &mut |_: Span<'_>| Accept::Taken).frames, expected);
    }
}

#[test]
fn the_doorbell_moves_after_a_quarter_of_the_ring() {
    let memory = Memory::new(4096, 0);
    let mut host = memory.host_tx(0);
    for number in 1..=20 {
        send(&mut host, &frame(number, 56 + 8));
        let moved = host.flush_if_far();
        assert_eq!(moved, number == 15, "packet {number}: 72 bytes each, more than 1023");
    }
    memory.update.store(0, Ordering::Relaxed);
    memory.doorbell.store(0, Ordering::Relaxed);
    let (mut host, mut card) = (memory.host_rx(0), memory.card_rx());
    for number in 1..=20 {
        card.deliver(&[], Span::from_slice(&[0; 64])).unwrap();
        card.publish();
        host.ready();
        assert_eq!(host.put(72), number == 15);
    }
    assert_eq!(memory.doorbell.load(Ordering::Relaxed), 15 * 72);
    host.flush();
    assert_eq!(memory.doorbell.load(Ordering::Relaxed), 20 * 72);
}

#[test]
fn the_next_reader_goes_on_where_the_last_one_stopped() {
    let memory = Memory::new(4096, 0);
    let (mut host, mut card) = (memory.host_rx(0), memory.card_rx());
    for number in 0..100 {
        assert_eq!(card.deliver(&[], Span::from_slice(&frame(number, 500))), Ok(RxOutcome::Stored));
        card.publish();
        assert_eq!(receive_all(&mut host), [frame(number, 500)]);
        host.flush();
        if number % 10 == 0 {
            let start = host.position() & 4095;
            let (doorbell, update) = (memory.doorbell.clone(), memory.update.clone());
            host = HostRx::new(memory.ring.clone(), 0, start, doorbell, update).unwrap();
        }
    }
}

#[test]
fn a_ring_is_a_power_of_two_of_at_least_a_page() {
    let memory = Memory::new(8192, 0);
    for size in [0, 8, 2048, 4097, 12288, u32::MAX] {
        let rings = || Rings { size, ..memory.rings() };
        assert!(CardTx::new(rings(), LIMITS, Iotlb::new(memory.domain.clone())).is_none());
        assert!(CardRx::new(rings(), LIMITS, Iotlb::new(memory.domain.clone())).is_none());
    }
    let odd = memory.ring.part(0, 3 * 4096).unwrap();
    assert!(HostTx::new(odd.clone(), 0, memory.doorbell.clone(), memory.update.clone()).is_none());
    assert!(HostRx::new(odd, 0, 0, memory.doorbell.clone(), memory.update.clone()).is_none());
}

#[test]
fn what_comes_while_a_lone_frame_is_served_is_found_at_the_next_look() {
    let memory = Memory::new(4096, 0);
    let (mut host, mut card) = (memory.host_tx(0), memory.card_tx());
    assert!(send(&mut host, &frame(0, 60)));
    host.flush();
    assert!(card.pending() > 0 && !card.is_lone(), "runs of a stream are short anyway");
    let served = card.serve(64, &mut |_: Span<'_>| {
        assert!(send(&mut host, &frame(1, 61)));
        host.flush();
        Accept::Taken
    });
    assert_eq!((served.frames, served.bytes), (1, 60));
    assert!(card.pending() > 0, "a queue that is to stop does not before this one is gone");
    assert!(send(&mut host, &frame(2, 62)));
    host.flush();
    assert!(card.pending() > 0 && !card.is_lone());
    assert_eq!(serve_all(&mut card).1, [frame(1, 61), frame(2, 62)]);
}

#[test]
fn another_card_goes_on_where_one_stands() {
    for memory in [Memory::new(8192, 0), Memory::scattered(8192)] {
        let (mut host, mut card) = (memory.host_tx(0), memory.card_tx());
        for number in 0..300 {
            let len = 57 + number % 1400;
            assert!(send(&mut host, &frame(number, len as usize)));
            host.flush();
            assert_eq!(serve_all(&mut card).1, [frame(number, len as usize)]);
            let place = card.place();
            card = memory.card_tx();
            card.resume(&place);
            assert_eq!((serve_all(&mut card).1.len(), card.place()), (0, place));
            host.refresh();
        }
        memory.doorbell.store(0, Ordering::Relaxed);
        memory.update.store(0, Ordering::Relaxed);
        let (mut host, mut card) = (memory.host_rx(0), memory.card_rx());
        for number in 0..300 {
            let bytes = frame(number, 57 + number as usize % 1400);
            assert_eq!(card.deliver(&[], Span::from_slice(&bytes)), Ok(RxOutcome::Stored), "{number}");
            card.publish();
            let place = card.place();
            card = memory.card_rx();
            card.resume(&place);
            assert_eq!(
                (card.known_room().bytes, card.place()),
                (0, place),
                "what software has given back is to be asked for"
            );
            assert_eq!(receive_all(&mut host), [bytes]);
            host.flush();
        }
    }
}
