//! What a broken or hostile peer writes, and the exact outcome (`docs/spec/medusa.md` §7).

use super::*;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const LIMITS: FrameLimits = FrameLimits::ETHERNET;

/// One good packet, then `bad`, then one good packet: what the TX half makes of it. The good ones are in buffer 0.
fn tx_between_good_packets(bad: &[u64]) -> (Served, Vec<usize>, u32) {
    let memory = Memory::new(32, 2);
    let good = buffer(DATA_AT, 60);
    let all = [&[upper(DATA_AT), good], bad, &[upper(DATA_AT), good]].concat();
    memory.post_raw(&all);
    let mut card = memory.card_tx(LIMITS);
    let (served, frames) = serve_all(&mut card);
    assert_eq!(memory.told().descriptors, card.hdp());
    (served, frames.iter().map(Vec::len).collect(), card.hdp())
}

/// As if the bad descriptors had not been there, but for one counter.
fn dropped(bad: &[u64]) -> Served {
    let (served, lengths, hdp) = tx_between_good_packets(bad);
    assert_eq!((lengths, hdp), (vec![60, 60], 4 + bad.len() as u32));
    assert_eq!((served.frames, served.bytes), (2, 120));
    assert_eq!(served.fault, None);
    served
}

/// The packet before has gone, the queue stands at the bad descriptor, nothing after it was touched.
fn fatal(bad: &[u64], hdp: u32) -> EngineFault {
    let (served, lengths, stopped_at) = tx_between_good_packets(bad);
    assert_eq!(lengths, [60]);
    assert_eq!((served.frames, served.bytes, served.too_short, served.too_long), (1, 60, 0, 0));
    assert_eq!(stopped_at, hdp);
    served.fault.unwrap()
}

#[test]
fn tx_length_zero_is_too_short() {
    assert_eq!(dropped(&[buffer(DATA_AT, 0)]).too_short, 1);
    assert_eq!(dropped(&[buffer(DATA_AT, 59), buffer(DATA_AT, 1)]).too_short, 2);
    assert_eq!(dropped(&[piece(DATA_AT, 0), piece(DATA_AT, 0), buffer(DATA_AT, 0)]).too_short, 1);
}

#[test]
fn tx_length_above_the_maximum_is_too_long() {
    assert_eq!(dropped(&[buffer(DATA_AT, 0x4000)]).too_long, 1);
    assert_eq!(dropped(&[buffer(DATA_AT, 0xffff)]).too_long, 1);
}

#[test]
fn tx_a_chain_above_the_maximum_is_too_long_as_a_whole() {
    let chain = [piece(DATA_AT, 0x3fff), piece(DATA_AT, 1), buffer(DATA_AT, 60)];
    assert_eq!(dropped(&chain).too_long, 1);
    let chain = [piece(DATA_AT, 0xffff), piece(DATA_AT, 0xffff), piece(DATA_AT, 0xffff), buffer(DATA_AT, 0xffff)];
    assert_eq!(dropped(&chain).too_long, 1);
}

#[test]
fn tx_outside_the_domain_is_a_fault_with_the_address() {
    let end = DATA_AT.plus(DATA_LEN as u64);
    let unmapped = |iova| EngineFault { kind: FaultKind::Unmapped, iova };
    for (iova, len) in [(end, 60), (end.plus(1 << 20), 60), (Iova::new(end.get() - 59), 60)] {
        assert_eq!(fatal(&[upper(iova), buffer(iova, len)], 3), unmapped(iova));
        assert_eq!(fatal(&[upper(iova), piece(iova, len), buffer(iova, 60)], 3), unmapped(iova));
    }
    let top = Iova::new(u64::MAX - 10);
    assert_eq!(fatal(&[upper(top), buffer(top, 60)], 3), unmapped(top), "the end of the address space");
    let nothing = Iova::new(0);
    assert_eq!(fatal(&[upper(nothing), buffer(nothing, 60)], 3), unmapped(nothing));
}

#[test]
fn tx_reserved_types_are_a_fault_at_their_entry() {
    for word in [1u64 << 62, 3 << 62, u64::MAX, 1 << 34, 1 << 61] {
        assert_eq!(fatal(&[word], 2), at_entry(FaultKind::ReservedDescriptor, 2), "{word:#x}");
        let in_chain = [piece(DATA_AT, 60), word, buffer(DATA_AT, 60)];
        assert_eq!(fatal(&in_chain, 2), at_entry(FaultKind::ReservedDescriptor, 3), "{word:#x}");
    }
}

#[test]
fn tx_a_buffer_before_any_upper_address_is_a_fault() {
    for first in [buffer(DATA_AT, 60), piece(DATA_AT, 60)] {
        let memory = Memory::new(8, 2);
        let mut card = memory.card_tx(LIMITS);
        memory.post_raw(&[first, upper(DATA_AT), buffer(DATA_AT, 60)]);
        let (served, frames) = serve_all(&mut card);
        assert_eq!(served.fault, Some(at_entry(FaultKind::NoUpperAddress, 0)));
        assert_eq!((frames.len(), card.hdp(), memory.told().descriptors), (0, 0, 0));
    }
}

#[test]
fn tx_a_chain_that_fills_the_ring_never_ends() {
    let memory = Memory::new(8, 2);
    let mut card = memory.card_tx(LIMITS);
    memory.post_raw(&[upper(DATA_AT); 1]);
    assert_eq!(serve_all(&mut card).0.fault, None);
    for entry in 1..8 {
        memory.descriptors.store(entry, piece(DATA_AT, 60));
    }
    memory.ring(7, 0);
    assert_eq!(serve_all(&mut card).0.fault, None, "one more descriptor could come");
    memory.ring(8, 0);
    assert_eq!(serve_all(&mut card).0.fault, Some(at_entry(FaultKind::EndlessDescriptors, 0)));
    assert_eq!(card.hdp(), 1);
}

#[test]
fn tx_a_chain_of_upper_addresses_never_reaches_data() {
    let memory = Memory::new(8, 2);
    let mut card = memory.card_tx(LIMITS);
    let mut all = [upper(DATA_AT); 8];
    memory.post_raw(&all[..7]);
    let passed = Served { looked: 7, has_advanced: true, ..Served::default() };
    assert_eq!(serve_all(&mut card), (passed, vec![]), "used up and waited for more, which may be data");
    assert_eq!((card.hdp(), memory.told().descriptors), (7, 7), "and software hears of it");
    all[7] = piece(DATA_AT, 60);
    for (entry, &word) in all.iter().enumerate() {
        memory.descriptors.store(entry as u32, word);
    }
    memory.ring(6, 0);
    assert_eq!(serve_all(&mut card).0.fault, Some(at_entry(FaultKind::EndlessDescriptors, 6)), "inside a packet");
}

#[test]
fn tx_pointers_beyond_the_mask_lose_the_bits_beyond() {
    let memory = Memory::new(8, 2);
    let mut card = memory.card_tx(LIMITS);
    memory.post_raw(&[upper(DATA_AT), buffer(DATA_AT, 60)]);
    memory.doorbell.store(0xffff_ffff_ffff_fff8 | 2, Ordering::Release);
    assert_eq!(card.pending(), 2);
    let served = Served { frames: 1, bytes: 60, looked: 2, has_advanced: true, ..Served::default() };
    assert_eq!(serve_all(&mut card).0, served);
    assert_eq!(memory.told(), Pointers { descriptors: 2, headers: 0 });
}

#[test]
fn tx_a_pointer_that_moves_back_means_nearly_a_whole_ring() {
    let memory = Memory::new(8, 2);
    let mut card = memory.card_tx(LIMITS);
    for entry in 0..8 {
        memory.descriptors.store(entry, if entry == 0 { upper(DATA_AT) } else { buffer(DATA_AT, 60) });
    }
    memory.ring(5, 0);
    assert_eq!(serve_all(&mut card).0.frames, 4);
    memory.ring(4, 0);
    assert_eq!(card.pending(), 7);
    // Entries 5, 6, 7, then 0 (type 0), 1, 2, 3: what the ring says, once.
    let served = Served { frames: 6, bytes: 360, looked: 7, has_advanced: true, ..Served::default() };
    assert_eq!(serve_all(&mut card).0, served);
    assert_eq!(card.hdp(), 4);
}

/// One frame of 64 bytes delivered to a queue with these descriptors.
fn rx(descriptors: &[u64]) -> (Result<RxOutcome, EngineFault>, Memory) {
    let memory = Memory::new(8, 4);
    memory.post_raw(descriptors);
    let mut card = memory.card_rx(LIMITS);
    let result = card.deliver(&[], Span::from_slice(&frame(1, 64)));
    if result != Ok(RxOutcome::Stored) {
        assert_eq!((card.hdp(), card.hhp(), card.publish()), (0, 0, false), "nothing moves");
    }
    (result, memory)
}

#[test]
fn rx_a_buffer_without_room_is_too_small_and_stays() {
    assert_eq!(rx(&[upper(DATA_AT), buffer(DATA_AT, 0)]).0, Ok(RxOutcome::TooLong));
    let (result, memory) = rx(&[upper(DATA_AT), buffer(DATA_AT, 63)]);
    assert_eq!(result, Ok(RxOutcome::TooLong));
    assert_eq!(memory.read(0, 64), [0; 64]);
    assert_eq!(rx(&[upper(DATA_AT), buffer(DATA_AT, 64)]).0, Ok(RxOutcome::Stored));
}

#[test]
fn rx_a_frame_above_the_maximum_is_not_looked_at_further() {
    let memory = Memory::new(8, 4);
    let mut card = memory.card_rx(FrameLimits { min: 60, max: 100 });
    assert_eq!(card.deliver(&[], Span::from_slice(&[0; 101])), Ok(RxOutcome::TooLong));
    memory.post_raw(&[upper(DATA_AT), buffer(DATA_AT, 0xffff)]);
    assert_eq!(card.deliver(&[], Span::from_slice(&[0; 101])), Ok(RxOutcome::TooLong));
    assert_eq!(card.deliver(&[], Span::from_slice(&[0; 100])), Ok(RxOutcome::Stored));
}

#[test]
fn rx_outside_the_domain_is_a_fault_with_the_address() {
    let end = DATA_AT.plus(DATA_LEN as u64);
    for iova in [end, Iova::new(end.get() - 63), Iova::new(0), Iova::new(u64::MAX - 62)] {
        let fault = Err(EngineFault { kind: FaultKind::Unmapped, iova });
        assert_eq!(rx(&[upper(iova), buffer(iova, 2048)]).0, fault);
        assert_eq!(rx(&[upper(iova), piece(iova, 2048)]).0, fault);
    }
    // Only the bytes that are written have to be mapped, not the whole capacity.
    let iova = Iova::new(end.get() - 64);
    assert_eq!(rx(&[upper(iova), buffer(iova, 2048)]).0, Ok(RxOutcome::Stored));
}

#[test]
fn rx_into_memory_that_may_only_be_read_is_a_fault() {
    let memory = Memory::new(8, 4);
    let iova = memory.domain.map(memory.data.clone(), Access::Read, None).unwrap();
    let mut card = memory.card_rx(LIMITS);
    memory.post_raw(&[upper(iova), buffer(iova, 2048)]);
    let fault = EngineFault { kind: FaultKind::Unmapped, iova };
    assert_eq!(card.deliver(&[], Span::from_slice(&frame(1, 64))), Err(fault));
    assert_eq!(memory.read(0, 64), [0; 64]);
}

#[test]
fn rx_reserved_types_are_a_fault_at_their_entry() {
    for word in [1u64 << 62, 3 << 62, u64::MAX, 1 << 34] {
        assert_eq!(rx(&[upper(DATA_AT), word]).0, Err(at_entry(FaultKind::ReservedDescriptor, 1)));
        let chain = [upper(DATA_AT), piece(DATA_AT, 10), word];
        assert_eq!(rx(&chain).0, Err(at_entry(FaultKind::ReservedDescriptor, 2)));
    }
}

#[test]
fn rx_a_buffer_before_any_upper_address_is_a_fault() {
    assert_eq!(rx(&[buffer(DATA_AT, 2048)]).0, Err(at_entry(FaultKind::NoUpperAddress, 0)));
    assert_eq!(rx(&[piece(DATA_AT, 2048)]).0, Err(at_entry(FaultKind::NoUpperAddress, 0)));
}

#[test]
fn rx_a_full_ring_without_room_for_a_byte_is_a_fault() {
    let endless = Err(at_entry(FaultKind::EndlessDescriptors, 7));
    assert_eq!(rx(&[upper(DATA_AT); 7]).0, endless);
    assert_eq!(rx(&[upper(DATA_AT); 6]).0, Ok(RxOutcome::NoRoom), "one more could come");
    let mut nothing = [piece(DATA_AT, 0); 7];
    nothing[0] = upper(DATA_AT);
    assert_eq!(rx(&nothing).0, endless);
}

#[test]
fn rx_a_full_ring_with_too_little_room_is_too_small_for_that_frame() {
    let mut little = [piece(DATA_AT, 10); 7];
    little[0] = upper(DATA_AT);
    assert_eq!(rx(&little).0, Ok(RxOutcome::TooLong));
    little[6] = piece(DATA_AT, 14);
    assert_eq!(rx(&little).0, Ok(RxOutcome::Stored), "exactly enough");
}

#[test]
fn rx_pointers_beyond_the_mask_lose_the_bits_beyond() {
    let memory = Memory::new(8, 4);
    memory.post_raw(&[upper(DATA_AT), buffer(DATA_AT, 2048), buffer(DATA_AT, 2048)]);
    memory.ring(0xffff_fff8 | 2, 0xffff_fffc);
    let mut card = memory.card_rx(LIMITS);
    assert_eq!(card.deliver(&[], Span::from_slice(&frame(1, 64))), Ok(RxOutcome::Stored));
    assert_eq!(card.deliver(&[], Span::from_slice(&frame(1, 64))), Ok(RxOutcome::NoRoom));
}

#[test]
fn rx_pointers_that_move_back_give_room_that_software_has_to_answer_for() {
    let memory = Memory::new(8, 4);
    for entry in 0..8 {
        memory.descriptors.store(entry, if entry == 0 { upper(DATA_AT) } else { buffer(DATA_AT, 2048) });
    }
    memory.ring(4, 0);
    let mut card = memory.card_rx(LIMITS);
    let mut deliver = || card.deliver(&[], Span::from_slice(&frame(1, 64)));
    assert_eq!([(); 3].map(|()| deliver()), [Ok(RxOutcome::Stored); 3]);
    memory.ring(3, 2);
    assert_eq!([(); 3].map(|()| deliver()), [Ok(RxOutcome::Stored), Ok(RxOutcome::Stored), Ok(RxOutcome::NoRoom)]);
    assert_eq!((card.hdp(), card.hhp()), (6, 1));
}

struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A word that is wrong in an interesting way more often than a random one would be.
    fn descriptor(&mut self) -> u64 {
        let random = self.next();
        let iova = Iova::new(DATA_AT.get() - 512 + random % (DATA_LEN as u64 + 1024));
        match random >> 60 {
            0..=3 => upper(iova),
            4..=7 => buffer(iova, self.next() as u16 >> 4),
            8..=13 => piece(iova, self.next() as u16 & 0x3f),
            14 => self.next() & !(3 << 62),
            _ => random,
        }
    }
}

/// Runs `card` while another thread writes words that make no sense into the ring and the doorbell.
fn under_fire(memory: &Memory, mut card: impl FnMut()) {
    let stop = Arc::new(AtomicBool::new(false));
    let attacker = std::thread::spawn({
        let (descriptors, doorbell, stop) = (memory.descriptors.clone(), memory.doorbell.clone(), stop.clone());
        move || {
            let mut noise = Noise(0x5eed_0bad_cafe);
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    descriptors.store(noise.next() as u32, noise.descriptor());
                    doorbell.store(noise.next(), Ordering::Relaxed);
                }
            }
        }
    });
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        let before = Instant::now();
        card();
        // Two cores and other tests: generous, but far from for ever.
        assert!(before.elapsed() < Duration::from_secs(20));
    }
    stop.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
}

#[test]
fn tx_survives_words_that_change_while_they_are_read() {
    let memory = Memory::new(64, 2);
    let mut card = memory.card_tx(LIMITS);
    let (mut sum, mut faults) = (0u64, 0u64);
    under_fire(&memory, || {
        let pending = card.pending();
        let mut frames = 0;
        let served = card.serve(usize::MAX, &mut |frame: Span<'_>| {
            assert!((60..=0x3fff).contains(&frame.len()));
            sum += bytes_of(frame).iter().map(|&byte| u64::from(byte)).sum::<u64>();
            frames += 1;
            Accept::Taken
        });
        assert_eq!(served.frames, frames);
        assert!(served.frames + served.too_short + served.too_long <= u64::from(pending));
        faults += u64::from(served.fault.is_some());
        if served.fault.is_some() {
            card = memory.card_tx(LIMITS);
        }
    });
    assert!(faults > 0);
}

#[test]
fn rx_survives_words_that_change_while_they_are_read() {
    let memory = Memory::new(64, 16);
    let mut card = memory.card_rx(LIMITS);
    let bytes = frame(1, 1500);
    let mut faults = 0u64;
    under_fire(&memory, || {
        card.sync();
        if card.deliver(&[], Span::from_slice(&bytes)).is_err() {
            card = memory.card_rx(LIMITS);
            faults += 1;
        }
        card.publish();
    });
    assert!(faults > 0);
}

#[test]
fn rx_a_doorbell_that_runs_away_does_not_hold_the_card() {
    // Descriptors that never take a byte, and a doorbell that is never where it was: without a bound the card would
    // follow it for ever.
    let memory = Memory::new(8, 16);
    for entry in 0..8 {
        memory.descriptors.store(entry, upper(DATA_AT));
    }
    let mut card = memory.card_rx(LIMITS);
    let stop = Arc::new(AtomicBool::new(false));
    let attacker = std::thread::spawn({
        let (doorbell, stop) = (memory.doorbell.clone(), stop.clone());
        move || {
            let mut noise = Noise(7);
            while !stop.load(Ordering::Relaxed) {
                doorbell.store(noise.next(), Ordering::Relaxed);
            }
        }
    });
    for _ in 0..200_000 {
        card.sync();
        match card.deliver(&[], Span::from_slice(&[0; 64])) {
            Ok(RxOutcome::NoRoom) | Err(EngineFault { kind: FaultKind::EndlessDescriptors, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
}

#[test]
fn software_believes_no_tx_card_that_passes_what_was_not_posted() {
    let memory = Memory::new(8, 2);
    let mut host = memory.host_tx();
    host.post(DATA_AT, 60);
    host.post(DATA_AT, 60);
    host.flush();
    for lie in [4, 5, 7, u64::from(u32::MAX)] {
        memory.update.store(lie, Ordering::Release);
        assert_eq!(host.completed(), 0, "HDP {lie}");
        assert_eq!((host.free(), host.is_drained()), (4, false));
    }
    memory.update.store(2, Ordering::Release);
    assert_eq!(host.completed(), 1);
    memory.update.store(1, Ordering::Release);
    assert_eq!(host.completed(), 0, "it does not go back");
    memory.update.store(3 | 0xdead_0000_0000, Ordering::Release);
    assert_eq!(host.completed(), 1, "and headers mean nothing for TX");
    assert!(host.is_drained());
}

#[test]
fn software_believes_no_rx_card_that_fills_what_was_not_posted() {
    let memory = Memory::new(16, 16);
    let buffers: Box<[Iova]> = (0..8).map(|i| DATA_AT.plus(i * 2048)).collect();
    let mut queue = FixedRx::new(memory.host_rx(), buffers, 2048, 0).unwrap();
    for lie in [Pointers { descriptors: 0, headers: 15 }, Pointers { descriptors: 15, headers: u32::MAX }] {
        memory.update.store(lie.encode(), Ordering::Release);
        assert_eq!(queue.ready(), 8, "there are no more buffers than that");
    }
    // Whoever takes all of that for packets still gets the queue going again.
    queue.put(8);
    assert!(queue.ready() <= 8);
}

#[test]
fn software_gets_headers_as_they_are_and_must_compare_them_with_its_buffers() {
    let memory = Memory::new(16, 4);
    let host = memory.host_rx();
    memory.headers.store(0, u32::MAX);
    let lie = RxHeader { len: 0xffff, header_len: 0xff, meta: 0xf, freed: 3 };
    assert_eq!(host.header(0), lie);
    assert_eq!(host.header(4), lie, "an index beyond the ring is an index inside it");
}

#[test]
fn software_survives_update_words_that_change_while_they_are_read() {
    let memory = Memory::new(64, 64);
    let buffers: Box<[Iova]> = (0..32).map(|i| DATA_AT.plus(i * 2048)).collect();
    let mut rx = FixedRx::new(memory.host_rx(), buffers.clone(), 2048, u32::MAX - 5).unwrap();
    let mut noise = Noise(99);
    for _ in 0..100_000 {
        memory.update.store(noise.next(), Ordering::Relaxed);
        let ready = rx.ready();
        assert!(ready <= 32);
        rx.put((noise.next() % u64::from(ready + 1)) as u32);
    }
    let mut tx = FixedTx::new(memory.host_tx(), buffers, u32::MAX - 5).unwrap();
    for _ in 0..100_000 {
        memory.update.store(noise.next(), Ordering::Relaxed);
        let count = (noise.next() % 33) as u32;
        if tx.take(count).is_some() {
            for _ in 0..count {
                assert!(tx.post(64), "take promises room in the ring, whatever the card has said");
            }
            tx.flush();
        }
        assert!(tx.in_flight() <= 32 && tx.available() <= 32);
    }
}
