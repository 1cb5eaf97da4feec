//! The RX direction with honest software.

use super::*;

const LIMITS: FrameLimits = FrameLimits::ETHERNET;

fn deliver(card: &mut CardRx, bytes: &[u8]) -> RxOutcome {
    card.deliver(&[], Span::from_slice(bytes)).unwrap()
}

#[test]
fn a_frame_a_header_and_both_pointers_appear_at_publish() {
    let memory = Memory::new(8, 4);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    assert_eq!(deliver(&mut card, &frame(0, 60)), RxOutcome::NoRoom, "nothing posted");
    assert!(host.post(DATA_AT, 2048) && host.post(DATA_AT.plus(2048), 2048));
    assert_eq!(deliver(&mut card, &frame(0, 60)), RxOutcome::NoRoom, "nothing announced");
    host.flush();
    assert!(!card.publish(), "nothing to tell");
    assert_eq!(deliver(&mut card, &frame(0, 60)), RxOutcome::Stored);
    assert_eq!(deliver(&mut card, &frame(1, 1514)), RxOutcome::Stored);
    assert_eq!(host.ready(), 0, "not published");
    assert!(card.publish());
    assert!(!card.publish());
    assert_eq!(memory.update.load(Ordering::Relaxed), 3 | 2 << 32);
    assert_eq!(memory.headers.load(0).to_le_bytes(), [60, 0, 0, 0x80], "a type 0 descriptor came before");
    assert_eq!(memory.headers.load(1).to_le_bytes(), [0xea, 5, 0, 0x40]);
    assert_eq!(host.ready(), 2);
    assert_eq!(host.header(1), RxHeader { len: 1514, header_len: 0, meta: 0, freed: 1 });
    assert_eq!(memory.read(0, 60), frame(0, 60));
    assert_eq!(memory.read(2048, 1514), frame(1, 1514));
    assert_eq!((card.hdp(), card.hhp(), host.sdp(), host.shp()), (3, 2, 3, 0));
}

#[test]
fn a_full_header_ring_stops_the_card_even_when_there_are_buffers() {
    let memory = Memory::new(64, 4);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    for i in 0..60 {
        assert!(host.post(DATA_AT.plus(i * 2048), 2048));
    }
    host.flush();
    let mut number = 0;
    for _ in 0..10 {
        for _ in 0..3 {
            assert_eq!(deliver(&mut card, &frame(number, 64)), RxOutcome::Stored);
            number += 1;
        }
        assert_eq!(deliver(&mut card, &frame(number, 64)), RxOutcome::NoRoom);
        card.publish();
        assert_eq!(host.ready(), 3);
        host.release(3);
        host.flush();
    }
    for (i, expected) in (0..number).enumerate() {
        assert_eq!(memory.read(i * 2048, 64), frame(expected, 64));
    }
}

#[test]
fn a_header_ring_larger_than_the_descriptor_ring_waits_for_descriptors() {
    let memory = Memory::new(4, 64);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    let mut number = 0;
    for round in 0..40 {
        let mut posted = 0;
        while host.post(DATA_AT.plus(posted * 2048), 2048) {
            posted += 1;
        }
        assert_eq!(posted, if round == 0 { 2 } else { 3 });
        host.flush();
        for _ in 0..posted {
            assert_eq!(deliver(&mut card, &frame(number, 64)), RxOutcome::Stored);
            number += 1;
        }
        assert_eq!(deliver(&mut card, &frame(number, 64)), RxOutcome::NoRoom);
        card.publish();
        assert_eq!(u64::from(host.ready()), posted);
        host.release(posted as u32);
        assert_eq!(host.free(), 3);
    }
    assert_eq!(card.hhp(), (number % 64));
}

#[test]
fn a_frame_may_lie_in_several_buffers() {
    let memory = Memory::new(16, 8);
    let mut card = memory.card_rx(LIMITS);
    let high = DATA_AT.plus(8192);
    memory.post_raw(&[
        upper(DATA_AT),
        piece(DATA_AT, 100),
        piece(DATA_AT.plus(200), 0),
        upper(high),
        piece(high, 50),
        buffer(high.plus(100), 2000),
        piece(high.plus(4096), 64),
        buffer(high.plus(8192), 64),
    ]);
    let bytes = frame(1, 400);
    assert_eq!(deliver(&mut card, &bytes), RxOutcome::Stored);
    assert_eq!(card.hdp(), 6);
    assert_eq!(RxHeader::decode(memory.headers.load(0)), RxHeader { len: 400, header_len: 0, meta: 0, freed: 3 });
    let parts = [memory.read(0, 100), memory.read(8192, 50), memory.read(8192 + 100, 250)];
    assert_eq!(parts.concat(), bytes);
    // A frame that fits in the first piece does not use the second.
    assert_eq!(deliver(&mut card, &frame(2, 64)), RxOutcome::Stored);
    assert_eq!((card.hdp(), RxHeader::decode(memory.headers.load(1)).freed), (7, 1));
}

#[test]
fn a_frame_waits_for_the_descriptors_that_it_lacks() {
    let memory = Memory::new(16, 8);
    let mut card = memory.card_rx(LIMITS);
    memory.post_raw(&[upper(DATA_AT), piece(DATA_AT, 100)]);
    assert_eq!(deliver(&mut card, &frame(1, 300)), RxOutcome::NoRoom);
    assert_eq!((card.hdp(), card.hhp(), card.publish()), (0, 0, false));
    memory.descriptors.store(2, buffer(DATA_AT.plus(100), 200));
    memory.ring(3, 0);
    assert_eq!(deliver(&mut card, &frame(1, 300)), RxOutcome::Stored);
    assert_eq!(memory.read(0, 300), frame(1, 300));
}

#[test]
fn nothing_is_written_behind_the_frame() {
    let memory = Memory::new(8, 8);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    memory.write(0, &[0xee; 4096]);
    host.post(DATA_AT.plus(64), 2048);
    host.flush();
    assert_eq!(deliver(&mut card, &frame(1, 61)), RxOutcome::Stored);
    assert_eq!(memory.read(0, 64), [0xee; 64]);
    assert_eq!(memory.read(64 + 61, 2000), [0xee; 2000]);
}

#[test]
fn buffers_are_posted_again_64_at_a_time() {
    let memory = Memory::new(1024, 1024);
    let mut card = memory.card_rx(LIMITS);
    let buffers: Box<[Iova]> = (0..512).map(|i| DATA_AT.plus(i * 2048)).collect();
    let mut queue = FixedRx::new(memory.host_rx(), buffers, 2048, 0).unwrap();
    let announced = || Pointers::decode(memory.doorbell.load(Ordering::Relaxed));
    let first = announced().descriptors;
    assert_eq!(first, 514, "512 buffers and two upper addresses");
    for number in 0..2000u32 {
        assert_eq!(deliver(&mut card, &frame(number, 64)), RxOutcome::Stored);
        card.publish();
        assert_eq!(queue.ready(), 1);
        assert_eq!(queue.first(), number);
        let before = announced();
        let moved = queue.put(1);
        assert_eq!(moved, (number + 1) % REFILL == 0, "packet {number}");
        assert_eq!(moved, announced() != before);
        if moved {
            assert_eq!(announced().headers, (number + 1) % 1024);
        }
    }
}

#[test]
fn a_header_ring_smaller_than_a_batch_of_refills_does_not_starve_the_card() {
    for (entries, headers, buffers) in [(64, 2, 32), (64, 4, 64), (256, 8, 128), (4, 64, 64), (4, 2, 1), (64, 64, 1)] {
        let memory = Memory::new(entries, headers);
        let mut card = memory.card_rx(LIMITS);
        let buffers: Box<[Iova]> = (0..buffers).map(|i| DATA_AT.plus(i * 2048)).collect();
        let mut queue = FixedRx::new(memory.host_rx(), buffers, 2048, 7).unwrap();
        for number in 0..500 {
            assert_eq!(deliver(&mut card, &frame(number, 64)), RxOutcome::Stored, "{entries} {headers} {number}");
            card.publish();
            assert_eq!(queue.ready(), 1);
            queue.put(1);
        }
    }
}

#[test]
fn fixed_buffers_need_a_power_of_two_and_room_for_one() {
    let buffers = |count| vec![DATA_AT; count].into_boxed_slice();
    let memory = Memory::new(8, 8);
    assert!(FixedRx::new(memory.host_rx(), buffers(3), 2048, 0).is_none());
    assert!(FixedRx::new(memory.host_rx(), buffers(0), 2048, 0).is_none());
    let memory = Memory::new(2, 8);
    assert!(FixedRx::new(memory.host_rx(), buffers(1), 2048, 0).is_none());
}

#[test]
fn metadata_lies_before_the_frame_and_both_have_to_fit() {
    let memory = Memory::new(16, 8);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    let meta: Vec<u8> = (1..=16).collect();
    (0..4).for_each(|i| assert!(host.post(DATA_AT.plus(i * 256), 200)));
    host.flush();
    for (len, with, without) in [
        (184, RxOutcome::Stored, RxOutcome::Stored),
        (185, RxOutcome::TooLong, RxOutcome::Stored),
        (200, RxOutcome::TooLong, RxOutcome::Stored),
        (201, RxOutcome::TooLong, RxOutcome::TooLong),
    ] {
        let bytes = frame(len, len as usize);
        let before = (card.hdp(), card.hhp());
        assert_eq!(card.deliver(&meta, Span::from_slice(&bytes)), Ok(with), "{len}");
        if with == RxOutcome::TooLong {
            assert_eq!((card.hdp(), card.hhp()), before);
            assert_eq!(card.deliver(&[], Span::from_slice(&bytes)), Ok(without), "{len}");
        }
    }
    card.publish();
    assert_eq!(host.ready(), 3);
    assert_eq!(host.header(0), RxHeader { len: 200, header_len: 16, meta: 0, freed: 2 });
    assert_eq!(memory.read(0, 200), [meta, frame(184, 184)].concat());
    assert_eq!(host.header(1), RxHeader { len: 185, header_len: 0, meta: 0, freed: 1 });
    assert_eq!(memory.read(256, 185), frame(185, 185));
    assert_eq!(memory.read(512, 200), frame(200, 200));
    // More than the fields of the header can say is no reason to write nonsense.
    assert_eq!(card.deliver(&[0; 256], Span::from_slice(&[0; 60])), Ok(RxOutcome::TooLong));
    assert_eq!(card.deliver(&[0; 16], Span::from_slice(&vec![0; 65530])), Ok(RxOutcome::TooLong));
}

#[test]
fn metadata_is_divided_like_the_frame() {
    let meta: Vec<u8> = (1..=16).collect();
    // First piece: a part of the metadata, all of it, and all with a part of the frame; empty pieces between.
    for first in [0u16, 1, 15, 16, 17, 60] {
        let memory = Memory::new(16, 8);
        let mut card = memory.card_rx(LIMITS);
        memory.post_raw(&[
            upper(DATA_AT),
            piece(DATA_AT, first),
            piece(DATA_AT.plus(100), 0),
            piece(DATA_AT.plus(200), 7),
            buffer(DATA_AT.plus(300), 2000),
        ]);
        assert_eq!(card.deliver(&meta, Span::from_slice(&frame(1, 64))), Ok(RxOutcome::Stored));
        let parts = [memory.read(0, first.into()), memory.read(200, 7), memory.read(300, 80 - 7 - usize::from(first))];
        assert_eq!(parts.concat(), [meta.clone(), frame(1, 64)].concat(), "first piece {first}");
        assert_eq!(RxHeader::decode(memory.headers.load(0)).header_len, 16);
    }
}

#[test]
fn another_card_goes_on_where_one_stands() {
    let memory = Memory::new(8, 4);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    assert!(host.post(DATA_AT, 2048) && host.post(DATA_AT.plus(2048), 2048));
    host.flush();
    for number in 0..50 {
        assert_eq!(deliver(&mut card, &frame(number, 60)), RxOutcome::Stored);
        card.publish();
        let place = card.place();
        card = memory.card_rx(LIMITS);
        card.resume(&place);
        assert_eq!((host.ready(), host.header(0).len, card.place()), (1, 60, place));
        assert_eq!(memory.read((number as usize % 2) * 2048, 60), frame(number, 60));
        host.release(1);
        assert!(host.post(DATA_AT.plus(u64::from(number % 2) * 2048), 2048));
        host.flush();
    }
}
