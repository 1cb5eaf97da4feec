//! The RX direction with honest software.

use super::*;

#[test]
fn a_packet_is_seen_in_its_header() {
    let memory = Memory::new(4096, 32);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    assert!(!card.publish(), "nothing to tell");
    assert_eq!(host.ready(10), 0);
    assert_eq!(deliver(&mut card, &frame(0, 60)), RxOutcome::Stored);
    assert_eq!(deliver(&mut card, &frame(1, 1514)), RxOutcome::Stored);
    assert_eq!(host.ready(10), 0, "not published");
    assert!(card.publish());
    assert!(!card.publish());
    assert_eq!(memory.told(), Pointers { data: 13, headers: 2 });
    assert_eq!(memory.headers.load(0).to_le_bytes(), [60, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(memory.headers.load(1).to_le_bytes(), [0xea, 5, 1, 0, 1, 0, 0, 0]);
    assert_eq!((host.ready(1), host.ready(10), host.published()), (1, 2, 2));
    assert_eq!(memory.packet(host.header(0)), frame(0, 60));
    assert_eq!(memory.packet(host.header(1)), frame(1, 1514));
    assert_eq!((card.hdp(), card.hhp(), host.first()), (13, 2, 0));
    assert!(host.put(2) && !host.owes(), "more than a quarter of the ring");
    assert_eq!(Pointers::decode(memory.doorbell.load(Ordering::Relaxed)), Pointers { data: 13, headers: 2 });
}

#[test]
fn metadata_lie_before_the_frame_and_count_into_the_length() {
    let memory = Memory::new(4096, 32);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    for number in 0..200 {
        let (meta, bytes) = (frame(!number, 16), frame(number, 60 + number as usize * 5));
        assert_eq!(card.deliver(&meta, Span::from_slice(&bytes)), Ok(RxOutcome::Stored), "{number}");
        card.publish();
        assert_eq!(host.ready(1), 1);
        let header = host.header(0);
        assert_eq!((header.header_len, usize::from(header.len)), (16, 16 + bytes.len()));
        assert_eq!(memory.packet(header), [meta, bytes].concat());
        host.put(1);
        host.flush();
    }
}

#[test]
fn a_cache_line_of_headers_is_shown_at_once() {
    let memory = Memory::new(65536, 512);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    for number in 0..20 {
        assert_eq!(host.ready(100), number / 8 * 8);
        assert_eq!(deliver(&mut card, &frame(number, 60)), RxOutcome::Stored);
    }
    assert_eq!(host.published(), 0, "the update word waits for the end of the burst");
    card.publish();
    assert_eq!((host.ready(100), host.published()), (20, 20));
}

#[test]
fn both_rings_go_round_many_times() {
    // Data is what is full first, then headers.
    for (bytes, entries) in [(4096, 32), (8192, 256), (65536, 16), (65536, 2)] {
        let memory = Memory::new(bytes, entries);
        let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
        let (mut offered, mut read) = (0u32, 0u32);
        let len = |number: u32| 60 + (number.wrapping_mul(0x9e37_79b9) >> 16) as usize % 900;
        for round in 0..300 {
            while deliver(&mut card, &frame(offered, len(offered))) == RxOutcome::Stored {
                offered += 1;
            }
            card.publish();
            let ready = host.ready(u32::MAX);
            assert_eq!(ready, offered - read);
            assert_eq!(host.published(), ready);
            assert!(ready > 0, "round {round} of {bytes} {entries}");
            let take = 1 + round % ready;
            for ahead in 0..take {
                assert_eq!(memory.packet(host.header(ahead)), frame(read, len(read)));
                read += 1;
            }
            host.put(take);
            host.flush();
        }
        assert!(read > 2 * entries);
    }
}

#[test]
fn one_block_and_one_header_stay_empty() {
    let memory = Memory::new(4096, 64);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    assert_eq!(deliver(&mut card, &frame(0, 31 * 128)), RxOutcome::Stored);
    assert_eq!(deliver(&mut card, &frame(1, 60)), RxOutcome::NoRoom);
    card.publish();
    host.ready(1);
    assert!(host.put(1));
    assert_eq!(deliver(&mut card, &frame(1, 31 * 128)), RxOutcome::Stored);
    card.publish();
    assert!(memory.packet(Header::decode(memory.headers.load(1))) == frame(1, 31 * 128));
    let memory = Memory::new(4096, 4);
    let mut card = memory.card_rx(LIMITS);
    for number in 0..3 {
        assert_eq!(deliver(&mut card, &frame(number, 60)), RxOutcome::Stored);
    }
    assert_eq!(deliver(&mut card, &frame(3, 60)), RxOutcome::NoRoom);
}

#[test]
fn what_can_never_fit_is_too_long() {
    let memory = Memory::new(4096, 64);
    let mut card = memory.card_rx(FrameLimits { min: 60, max: 4096 });
    assert_eq!(deliver(&mut card, &[0; 4097]), RxOutcome::TooLong, "longer than the queue allows");
    assert_eq!(deliver(&mut card, &[0; 31 * 128 + 1]), RxOutcome::TooLong, "longer than the ring");
    assert_eq!(card.deliver(&[0; 16], Span::from_slice(&[0; 31 * 128])), Ok(RxOutcome::TooLong));
    assert_eq!(card.deliver(&[0; 256], Span::from_slice(&[0; 60])), Ok(RxOutcome::TooLong), "8 bits of metadata");
    assert_eq!((card.hdp(), card.hhp(), card.publish()), (0, 0, false));
    let memory = Memory::new(1 << 20, 64);
    let mut card = memory.card_rx(FrameLimits { min: 60, max: u16::MAX });
    assert_eq!(card.deliver(&[0; 16], Span::from_slice(&[0; 65530])), Ok(RxOutcome::TooLong), "16 bits of length");
    assert_eq!(deliver(&mut card, &[0; 65535]), RxOutcome::Stored);
}

#[test]
fn nothing_is_written_outside_the_packet() {
    let memory = Memory::new(4096, 32);
    let mut card = memory.card_rx(LIMITS);
    memory.write(0, &[0xee; 4096]);
    assert_eq!(deliver(&mut card, &frame(1, 61)), RxOutcome::Stored);
    assert_eq!(deliver(&mut card, &frame(2, 61)), RxOutcome::Stored);
    assert_eq!(memory.read(61, 67), [0xee; 67]);
    assert_eq!(memory.read(128 + 61, 3000), [0xee; 3000]);
}

#[test]
fn the_doorbell_moves_for_a_quarter_of_either_ring() {
    for (blocks, entries, len, every) in [(512, 64, 60, 16), (64, 512, 60, 16), (128, 512, 200, 16)] {
        let memory = Memory::new(blocks * 128, entries);
        let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
        for number in 1..=1000 {
            assert_eq!(deliver(&mut card, &frame(number, len)), RxOutcome::Stored);
            card.publish();
            assert_eq!(host.ready(10), 1);
            assert_eq!(host.put(1), number % every == 0, "packet {number} of {blocks} {entries}");
            assert_eq!(host.owes(), number % every != 0);
        }
        assert!(!host.put(0));
    }
}

#[test]
fn rings_of_other_sizes_are_refused() {
    let memory = Memory::new(12288, 32);
    let words = || (memory.headers.clone(), memory.doorbell.clone(), memory.update.clone());
    let (headers, doorbell, update) = words();
    assert!(HostRx::new(96, headers, doorbell, update).is_none());
    for bytes in [12288, 8192 - 64, 64, 128] {
        let (data, (headers, doorbell, update)) = (memory.region.part(0, bytes).unwrap(), words());
        assert!(CardRx::new(RxRings { data, headers, doorbell, update }, LIMITS).is_none(), "{bytes}");
    }
}
