//! Software that writes anything, and a card that does (`docs/spec/calypte.md` §6).

use super::*;
use millrace_dma::Slots64;

fn raw(headers: &Slots64, slot: u32, len: u16, at: u16) {
    headers.store(slot, Header { len, at, ..Header::default() }.encode(true));
}

#[test]
fn a_header_that_cannot_be_right_is_a_fault_behind_everything_before_it() {
    for (len, at) in [(60, 1), (60, 16), (60, 4096), (60, 0xffe0), (4065, 0), (4096, 32), (0xffff, 0)] {
        let memory = Memory::new(4096, 128);
        let mut card = memory.card_tx(FrameLimits { min: 60, max: u16::MAX });
        memory.write(32, &frame(1, 60));
        raw(&memory.headers, 0, 60, 32);
        raw(&memory.headers, 1, len, at);
        raw(&memory.headers, 2, 60, 0);
        let (served, frames) = serve_all(&mut card);
        let fault = EngineFault { kind: FaultKind::BadHeader, iova: Iova::new(8) };
        assert_eq!((served.frames, served.bytes, served.fault), (1, 60, Some(fault)), "{len} {at}");
        assert_eq!(frames, [frame(1, 60)]);
        assert_eq!(memory.told(), Pointers { data: 96, headers: 1 });
    }
}

#[test]
fn the_longest_frame_that_fits_is_taken_from_any_place() {
    let memory = Memory::new(4096, 128);
    let mut card = memory.card_tx(LIMITS);
    memory.write(4064, &frame(9, 4064));
    raw(&memory.headers, 0, 4064, 4064);
    assert_eq!(serve_all(&mut card).1, [frame(9, 4064)]);
    assert_eq!(memory.told(), Pointers { data: 4032, headers: 1 });
}

#[test]
fn metadata_and_reserved_bits_of_a_tx_header_are_not_trusted() {
    let memory = Memory::new(4096, 128);
    let mut card = memory.card_tx(LIMITS);
    memory.write(64, &frame(3, 60));
    memory.headers.store(0, Header { len: 60, at: 64, ..Header::default() }.encode(true) | 0xffff_fffe << 32);
    assert_eq!(serve_all(&mut card).1, [frame(3, 60)]);
}

#[test]
fn a_ring_in_which_every_header_is_valid_is_gone_through_once() {
    let memory = Memory::new(4096, 128);
    let mut card = memory.card_tx(LIMITS);
    for slot in 0..128 {
        raw(&memory.headers, slot, 60, 0);
    }
    assert_eq!(serve_all(&mut card).0.frames, 128);
    assert!(!card.pending());
}

#[test]
fn sdp_and_shp_may_hold_anything() {
    let memory = Memory::new(4096, 16);
    let mut card = memory.card_rx(LIMITS);
    let mut stored = 0u64;
    for number in 0..5000u64 {
        memory.doorbell.store(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), Ordering::Release);
        match deliver(&mut card, &frame(number as u32, 60 + number as usize % 3000)) {
            RxOutcome::Stored => stored += 1,
            RxOutcome::NoRoom => {}
            RxOutcome::TooLong => panic!("fits"),
        }
        card.publish();
        assert!(card.hdp() < 32 && card.hhp() < 16);
    }
    assert!(stored > 100);
    let header = Header::decode(memory.headers.load((card.hhp() + 15) % 16));
    assert!(header.at < 32 && header.len >= 60);
}

#[test]
fn a_card_that_passes_what_it_was_not_given_is_not_believed() {
    let memory = Memory::new(4096, 128);
    let mut host = memory.host_tx();
    assert!(send(&mut host, &memory, &frame(0, 64)));
    assert!(host.has_room(host.most() - 64) && !host.has_room(host.most()));
    for data in [64, 96, 4064, u32::MAX] {
        memory.update.store(Pointers { data, headers: 1 }.encode(), Ordering::Release);
        assert_eq!(host.available(), host.most() - 64, "{data} announced to nobody");
    }
    host.flush();
    memory.update.store(Pointers { data: 96, headers: 1 }.encode(), Ordering::Release);
    assert_eq!(host.in_flight(), 64);
    memory.update.store(Pointers { data: 64, headers: 1 }.encode(), Ordering::Release);
    assert_eq!(host.available(), host.most());
    // Back again.
    memory.update.store(0, Ordering::Release);
    assert_eq!(host.available(), host.most());
}

#[test]
fn a_card_that_shows_headers_for_ever_shows_one_ring_less_one() {
    let memory = Memory::new(4096, 16);
    let mut host = memory.host_rx();
    for slot in 0..16 {
        memory.headers.store(slot, Header { len: 0xffff, at: 0xffff, ..Header::default() }.encode(true));
    }
    assert_eq!(host.ready(u32::MAX), 15);
    for ahead in 0..15 {
        host.header(ahead);
    }
    host.put(15);
    host.flush();
    let told = Pointers::decode(memory.doorbell.load(Ordering::Acquire));
    assert!(told.data < 32 && told.headers == 15);
    assert_eq!(host.ready(u32::MAX), 1);
    memory.update.store(u64::MAX, Ordering::Release);
    assert!(host.published() < 16);
}
