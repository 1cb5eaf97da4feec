//! What a broken or hostile peer writes, and the exact outcome (`docs/spec/sze.md` §6).

use super::*;
use crate::budget::MAX_CHAIN;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A good packet of 60 bytes, then a header with these sizes, and SW at `sw`.
fn tx_with_header(total: u16, meta: u16, sw: u64) -> (Served, usize, u32) {
    let memory = Memory::new(1 << 16, 0);
    memory.write_packet(0, 68, 0);
    memory.write_packet(72, total, meta);
    memory.doorbell.store(sw, Ordering::Release);
    let mut card = memory.card_tx();
    let (served, frames) = serve_all(&mut card);
    assert_eq!(memory.told(), u64::from(card.hw()));
    assert_eq!(frames.len() as u64, served.frames);
    (served, frames.len(), card.hw())
}

#[test]
fn tx_headers_that_contradict_each_other_are_a_fault_at_the_packet() {
    let fault = Some(EngineFault { kind: FaultKind::BadHeader, iova: RING_AT.plus(72) });
    for (total, meta, sw) in [
        (0, 0, 144),
        (7, 0, 144),
        (68, 61, 144),
        (68, 0xffff, 144),
        // Longer than what was announced.
        (73, 0, 144),
        (0xffff, 0, 144),
        (68, 0, 72 + 64),
    ] {
        let (served, frames, hw) = tx_with_header(total, meta, sw);
        assert_eq!((served.fault, frames, hw), (fault, 1, 72), "total {total}, metadata {meta}, SW {sw}");
        assert_eq!((served.too_short, served.too_long), (0, 0));
    }
}

#[test]
fn tx_lengths_below_and_above_the_limits_are_dropped() {
    let (served, frames, hw) = tx_with_header(8, 0, 80);
    assert_eq!((served.too_short, served.fault, frames, hw), (1, None, 1, 80), "length zero");
    let (served, frames, hw) = tx_with_header(8 + 56, 0, 136);
    assert_eq!((served.too_short, served.fault, frames, hw), (1, None, 1, 136));
    let (served, frames, hw) = tx_with_header(8 + 57, 0, 144);
    assert_eq!((served.too_short, served.fault, frames, hw), (0, None, 2, 144));
    let (served, frames, hw) = tx_with_header(8 + 0x3fff, 0, 72 + 0x4008);
    assert_eq!((served.too_long, served.fault, frames, hw), (0, None, 2, 72 + 0x4008));
    let (served, frames, hw) = tx_with_header(8 + 0x4000, 0, 72 + 0x4008);
    assert_eq!((served.too_long, served.fault, frames, hw), (1, None, 1, 72 + 0x4008));
}

#[test]
fn tx_a_pointer_between_packets_is_a_fault_before_anything_is_read() {
    for sw in [1u64, 4, 7, 73] {
        let (served, frames, hw) = tx_with_header(68, 0, sw);
        let fault = EngineFault { kind: FaultKind::BadPointer, iova: Iova::new(sw) };
        let stopped = Served { looked: 1, fault: Some(fault), ..Served::default() };
        assert_eq!((served, frames, hw), (stopped, 0, 0));
    }
}

#[test]
fn tx_a_pointer_beyond_the_mask_loses_the_bits_beyond() {
    let (served, frames, hw) = tx_with_header(68, 0, 0xffff_ffff_ffff_0000 | 144);
    assert_eq!((served.fault, frames, hw), (None, 2, 144));
}

#[test]
fn tx_a_pointer_that_moves_back_means_nearly_a_whole_ring() {
    let memory = Memory::new(4096, 0);
    let (mut host, mut card) = (memory.host_tx(0), memory.card_tx());
    for number in 0..4 {
        assert!(send(&mut host, &frame(number, 120)));
    }
    host.flush();
    assert_eq!(serve_all(&mut card).0.frames, 4);
    memory.doorbell.store(256, Ordering::Release);
    assert_eq!(card.pending(), 4096 - 256);
    // Behind the fourth packet lies memory that was never written: a header of zeros.
    let fault = EngineFault { kind: FaultKind::BadHeader, iova: RING_AT.plus(512) };
    assert_eq!(serve_all(&mut card).0, Served { looked: 1, fault: Some(fault), ..Served::default() });
    assert_eq!(card.hw(), 512);
}

/// A TX and an RX queue over this list; both have 144 bytes to deal with.
fn both(list: &[u64]) -> [Option<EngineFault>; 2] {
    let memory = Memory::new(8192, 0);
    memory.write_list(list);
    memory.write_packet(0, 68, 0);
    memory.write_packet(72, 68, 0);
    let rx = memory.card_rx().deliver(&[], Span::from_slice(&[0; 60])).err();
    memory.doorbell.store(144, Ordering::Release);
    let mut card = memory.card_tx();
    let served = serve_all(&mut card).0;
    if served.fault.is_some() {
        assert_eq!((served.frames, card.hw(), memory.told()), (0, 0, 0));
    }
    [served.fault, rx]
}

#[test]
fn pages_that_do_not_exist_are_a_fault_with_their_address() {
    let pages = |at, count| Descriptor::Pages { at: Iova::new(at), count }.encode();
    for at in [0, RING_AT.get() - 4096, RING_AT.get() + 8192, 0xffff_ffff_ffff_f000] {
        let fault = Some(EngineFault { kind: FaultKind::Unmapped, iova: Iova::new(at) });
        assert_eq!(both(&[pages(at, 1), LIST_AT.get() | 1]), [fault; 2]);
    }
    // The run is longer than its mapping: only what is touched must exist.
    assert_eq!(both(&[pages(RING_AT.get(), 1024), LIST_AT.get() | 1]), [None; 2]);
}

#[test]
fn a_list_that_does_not_exist_is_a_fault_with_its_address() {
    for at in [0u64, LIST_AT.get() + 4096, u64::MAX - 7] {
        let fault = Some(EngineFault { kind: FaultKind::Unmapped, iova: Iova::new(at) });
        assert_eq!(both(&[at | 1]), [fault; 2]);
    }
}

#[test]
fn a_list_that_ends_without_going_round_is_a_fault_behind_its_end() {
    let memory = Memory::new(4096, 0);
    // The last word of the list page is a run; what would come next is not mapped.
    let slots = memory.list.slots64(0, 512).unwrap();
    slots.store(0, Descriptor::Next(LIST_AT.plus(4088)).encode());
    slots.store(511, Descriptor::Pages { at: RING_AT, count: 1 }.encode());
    let mut card = memory.card_rx();
    assert_eq!(card.deliver(&[], Span::from_slice(&[0; 4000])), Ok(RxOutcome::Stored));
    memory.doorbell.store(4008, Ordering::Release);
    let fault = EngineFault { kind: FaultKind::Unmapped, iova: LIST_AT.plus(4096) };
    assert_eq!(card.deliver(&[], Span::from_slice(&[0; 200])), Err(fault));
    assert_eq!(card.hw(), 4008);
}

#[test]
fn reserved_descriptors_are_a_fault_at_their_entry() {
    for word in [0b11u64, 0x801 | 4, 0x800, u64::MAX] {
        let fault =
            |entry: u64| Some(EngineFault { kind: FaultKind::ReservedDescriptor, iova: LIST_AT.plus(entry * 8) });
        assert_eq!(both(&[word]), [fault(0); 2]);
        assert_eq!(both(&[(LIST_AT.get() + 16) | 1, 0, word]), [fault(2); 2]);
    }
}

#[test]
fn a_list_that_never_reaches_data_is_a_fault() {
    let to = |entry: u64| (LIST_AT.get() + entry * 8) | 1;
    for list in [&[to(0)][..], &[to(1), to(0)], &[to(1), to(2), to(3), to(1)]] {
        let [tx, rx] = both(list);
        assert_eq!(tx.map(|fault| fault.kind), Some(FaultKind::EndlessDescriptors));
        assert_eq!(tx, rx);
    }
    // A long way is no endless one: data is the last entry that a packet may need. One more is too many.
    let most = u64::from(MAX_CHAIN);
    let mut list: Vec<u64> = (1..most).map(to).collect();
    list.push(Descriptor::Pages { at: RING_AT, count: 2 }.encode());
    assert_eq!(both(&list), [None; 2]);
    let list: Vec<u64> = (1..=most).map(to).chain([Descriptor::Pages { at: RING_AT, count: 2 }.encode()]).collect();
    assert_eq!(both(&list)[0].map(|fault| fault.kind), Some(FaultKind::EndlessDescriptors));
}

#[test]
fn rx_a_pointer_between_packets_is_a_fault_when_it_is_looked_at() {
    let memory = Memory::new(4096, 0);
    let mut card = memory.card_rx();
    memory.doorbell.store(12, Ordering::Release);
    while card.known_room().bytes >= 72 {
        assert_eq!(card.deliver(&[], Span::from_slice(&[0; 64])), Ok(RxOutcome::Stored));
    }
    let fault = EngineFault { kind: FaultKind::BadPointer, iova: Iova::new(12) };
    assert_eq!(card.deliver(&[], Span::from_slice(&[0; 64])), Err(fault));
}

#[test]
fn rx_pointers_beyond_the_mask_and_moving_back_give_room_that_software_has_to_answer_for() {
    let memory = Memory::new(4096, 0);
    let mut card = memory.card_rx();
    let mut fill = || {
        let mut count = 0;
        while card.deliver(&[], Span::from_slice(&[0; 120])) == Ok(RxOutcome::Stored) {
            count += 1;
        }
        (count, card.hw())
    };
    assert_eq!(fill(), (31, 31 * 128));
    memory.doorbell.store(0xffff_ffff_0000_1000 | 1024, Ordering::Release);
    assert_eq!(fill(), (8, 7 * 128));
    memory.doorbell.store(512, Ordering::Release);
    assert_eq!(fill(), (28, 35 % 32 * 128), "up to SW, wherever that is");
}

#[test]
fn rx_a_frame_longer_than_the_queue_or_the_ring_is_too_long() {
    let memory = Memory::new(4096, 0);
    let mut card = memory.card_rx();
    for len in [4089, 4088, 4081, 0x3fff, 0x4000, 0xffff, 1 << 20] {
        assert_eq!(card.deliver(&[], Span::from_slice(&vec![0; len])), Ok(RxOutcome::TooLong), "length {len}");
    }
    let memory = Memory::new(1 << 16, 0);
    let mut card = memory.card_rx();
    assert_eq!(card.deliver(&[], Span::from_slice(&[0; 0x4000])), Ok(RxOutcome::TooLong));
    assert_eq!(card.deliver(&[], Span::from_slice(&[0; 0x3fff])), Ok(RxOutcome::Stored));
}

#[test]
fn rx_into_memory_that_may_only_be_read_is_a_fault() {
    let memory = Memory::unmapped(4096);
    memory.domain.map(memory.ring.part(0, 4096).unwrap(), Access::Read, Some(RING_AT)).unwrap();
    memory.write_list(&descriptor_list(RING_AT, 4096, 0, LIST_AT));
    let fault = EngineFault { kind: FaultKind::Unmapped, iova: RING_AT };
    assert_eq!(memory.card_rx().deliver(&[], Span::from_slice(&[0; 60])), Err(fault));
}

#[test]
fn a_fault_in_the_second_run_of_a_packet_stops_before_the_packet() {
    let memory = Memory::unmapped(8192);
    memory.domain.map(memory.ring.part(0, 4096).unwrap(), Access::ReadWrite, Some(RING_AT)).unwrap();
    memory.write_list(&descriptor_list(RING_AT, 8192, 0, LIST_AT));
    let mut host = memory.host_tx(0);
    assert!(send(&mut host, &frame(1, 3000)) && send(&mut host, &frame(2, 3000)));
    host.flush();
    let mut card = memory.card_tx();
    let (served, frames) = serve_all(&mut card);
    assert_eq!(frames, [frame(1, 3000)]);
    assert_eq!(served.fault.map(|fault| fault.kind), Some(FaultKind::Unmapped));
    assert_eq!((card.hw(), memory.told()), (3008, 3008));
    memory.doorbell.store(0, Ordering::Relaxed);
    let mut card = memory.card_rx();
    assert_eq!(card.deliver(&[], Span::from_slice(&frame(1, 3000))), Ok(RxOutcome::Stored));
    assert_eq!(card.deliver(&[], Span::from_slice(&frame(2, 3000))).unwrap_err().kind, FaultKind::Unmapped);
    assert_eq!(card.hw(), 3008);
}

#[test]
fn software_refuses_headers_that_cannot_be() {
    let memory = Memory::new(4096, 0);
    let mut host = memory.host_rx(0);
    memory.update.store(72, Ordering::Release);
    for (total, meta) in [(0, 0), (7, 0), (68, 61), (73, 0), (0xffff, 0), (0xffff, 0xffff), (68, 0xffff)] {
        memory.write_packet(0, total, meta);
        assert_eq!(host.ready(), 72);
        assert_eq!(host.packet(0), Err(BadRing { at: 0, total, meta }));
    }
    memory.write_packet(0, 72, 0);
    let packet = RxPacket { meta_at: 4, meta_len: 0, frame_at: 8, frame_len: 64, stride: 72 };
    assert_eq!(host.packet(0), Ok(packet));
    assert_eq!(host.packet(72), Err(BadRing { at: 72, total: 0, meta: 0 }), "behind HW");
}

#[test]
fn software_survives_an_rx_card_that_lies_about_hw() {
    let memory = Memory::new(4096, 0);
    let mut host = memory.host_rx(0);
    memory.write_packet(0, 68, 0);
    for lie in [3, 8, 71, 0xffff_f000 | 16] {
        memory.update.store(lie, Ordering::Release);
        assert_eq!(u64::from(host.ready()), lie & 0xfff);
        assert!(host.packet(0).is_err(), "HW {lie}: no room for the packet");
    }
    let mut random = 1u64;
    for _ in 0..200_000 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        memory.update.store(random >> 20, Ordering::Relaxed);
        memory.write_packet((random >> 40 & 0xff8) % 4096, (random >> 32) as u16 & 0x1fff, (random >> 60) as u16);
        let ready = host.ready();
        let mut position = host.position();
        let mut taken = 0;
        while taken < ready {
            let Ok(packet) = host.packet(position) else { break };
            let frame = host.ring().slice(packet.frame_at as usize, packet.frame_len.into());
            assert!(frame.is_some(), "{packet:?} lies inside the ring");
            assert!(host.ring().slice(packet.meta_at as usize, packet.meta_len.into()).is_some());
            assert!(packet.stride > 0);
            position = position.wrapping_add(packet.stride);
            taken += packet.stride;
        }
        assert!(taken <= ready);
        host.put(taken);
    }
}

#[test]
fn software_believes_no_tx_card_that_passes_what_was_not_announced() {
    let memory = Memory::new(4096, 0);
    let mut host = memory.host_tx(0);
    assert!(send(&mut host, &frame(1, 120)) && send(&mut host, &frame(2, 120)));
    host.flush();
    assert!(send(&mut host, &frame(3, 120)));
    for lie in [257u64, 264, 384, 4088, u64::MAX - 7] {
        memory.update.store(lie, Ordering::Release);
        host.refresh();
        assert_eq!((host.in_flight(), host.is_drained()), (384, false), "HW {lie}");
    }
    memory.update.store(128, Ordering::Release);
    host.refresh();
    assert_eq!(host.in_flight(), 256);
    memory.update.store(0, Ordering::Release);
    host.refresh();
    assert_eq!(host.in_flight(), 256, "it does not go back");
}

#[test]
fn software_never_writes_outside_the_ring_whatever_a_tx_card_says() {
    let memory = Memory::new(4096, 0);
    let mut host = memory.host_tx(0);
    let mut random = 7u64;
    for number in 0..100_000 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        memory.update.store(random >> 24, Ordering::Relaxed);
        let len = 57 + (random >> 50) as usize % 1500;
        if send(&mut host, &[0; 2000][..len]) && number % 3 == 0 {
            host.flush();
        }
        assert!(host.in_flight() <= 4088);
    }
}

#[test]
fn words_that_change_while_they_are_read() {
    let memory = Memory::new(8192, 0);
    let stop = Arc::new(AtomicBool::new(false));
    let attacker = std::thread::spawn({
        let (list, doorbell, stop) = (memory.list.slots64(0, 8).unwrap(), memory.doorbell.clone(), stop.clone());
        let headers = memory.ring.slots64(0, 1024).unwrap();
        move || {
            let mut random = 3u64;
            let mut next = move || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random
            };
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    let (a, b) = (next(), next());
                    let word = match a >> 61 {
                        0..=3 => {
                            Descriptor::Pages { at: RING_AT.plus((a & 1) * PAGE), count: 1 + (b & 1) as u32 }.encode()
                        }
                        4..=6 => (LIST_AT.get() + (a & 7) * 8) | 1,
                        _ => b,
                    };
                    list.store(b as u32, word);
                    doorbell.store(if b & 0x300 == 0 { b } else { b & !7 }, Ordering::Relaxed);
                    headers
                        .store((b >> 32) as u32, u64::from(PacketHeader { total: a as u16 & 0x7ff, meta: 0 }.encode()));
                }
            }
        }
    });
    let (mut tx, mut rx) = (memory.card_tx(), memory.card_rx());
    let (mut faults, mut sum) = ([0u64; 2], 0u64);
    let bytes = frame(1, 1500);
    let end = Instant::now() + Duration::from_millis(400);
    while Instant::now() < end {
        let before = Instant::now();
        let pending = tx.pending();
        let mut frames = 0;
        let served = tx.serve(usize::MAX, &mut |frame: Span<'_>| {
            assert!((57..=0x3fff).contains(&frame.len()));
            sum += bytes_of(frame).iter().map(|&byte| u64::from(byte)).sum::<u64>();
            frames += 1;
            Accept::Taken
        });
        assert_eq!(served.frames, frames);
        assert!((served.frames + served.too_short + served.too_long) * 8 <= u64::from(pending));
        if served.fault.is_some() {
            faults[0] += 1;
            tx = memory.card_tx();
        }
        if rx.deliver(&[], Span::from_slice(&bytes)).is_err() {
            faults[1] += 1;
            rx = memory.card_rx();
        }
        rx.publish();
        assert!(before.elapsed() < Duration::from_secs(20));
    }
    stop.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    assert!(faults[0] > 0 && faults[1] > 0, "{faults:?}");
}
