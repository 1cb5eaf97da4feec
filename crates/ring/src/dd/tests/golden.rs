//! Descriptors byte for byte, as `docs/spec/dd.md` draws them.

use super::*;
use millrace_abi::header::RxMetadata;
use proptest::prelude::*;

#[test]
fn a_descriptor_of_a_frame_to_be_sent_and_what_the_card_makes_of_it() {
    let memory = Memory::new(4, 4);
    assert_eq!(memory.descriptor(0), [0, 1 << 63, 0, 0], "before START all are the software's");
    let (mut host, mut card) = (memory.host_tx(), memory.card_tx(LIMITS));
    memory.now.store(500, Ordering::Relaxed);
    let frame = Frame { launch: 400, cookie: 0xc0ffee, ..memory.frame(2, 64) };
    assert!(host.post(frame) && host.flush());
    assert_eq!(memory.descriptor(0), [memory.iova(2).get(), 64, 400, 0xc0ffee]);
    assert_eq!(memory.tail.load(Ordering::Relaxed), 1);
    assert_eq!(serve_all(&mut card).0.frames, 1);
    assert_eq!(memory.descriptor(0), [memory.iova(2).get(), 1 << 63 | 64, 500, 0xc0ffee], "when it left");
    host.post(memory.frame(0, 59));
    host.flush();
    serve_all(&mut card);
    assert_eq!(memory.descriptor(1)[1], 1 << 63 | 1 << 16 | 59);
    assert_eq!((host.reclaim(), host.outcome(0), host.outcome(1)), (2, Some(Outcome::TooShort), Some(Outcome::Passed)));
}

#[test]
fn a_descriptor_of_an_empty_buffer_and_of_a_received_frame() {
    let memory = Memory::new(4, 4);
    let (mut host, mut card) = (memory.host_rx(), memory.card_rx(LIMITS));
    assert!(host.post(memory.iova(3), 2048, 77));
    assert_eq!(memory.descriptor(0), [memory.iova(3).get(), 2048, 0, 77]);
    let stamp = RxMetadata { port: 5, seconds: 7, nanoseconds: 8 }.encode();
    assert_eq!(card.deliver(&stamp, Span::from_slice(&frame(1, 100))), Ok(RxOutcome::Stored));
    assert_eq!(memory.descriptor(0)[1], 2048, "not before `publish`");
    assert!(card.publish() && !card.publish());
    assert_eq!(memory.descriptor(0), [memory.iova(3).get(), 1 << 63 | 5 << 24 | 100, 7_000_000_008, 77]);
    assert_eq!(host.ready(9), 1);
    let received = Received { iova: memory.iova(3), len: 100, port: 5, time: 7_000_000_008, cookie: 77 };
    assert_eq!(host.received(0), received);
}

proptest! {
    #[test]
    fn every_status_means_what_it_says(len: u16, outcome: u8, port: u8, done: bool, word: u64) {
        let status = Status { len, outcome, port, done };
        prop_assert_eq!(Status::decode(status.encode()), status);
        prop_assert_eq!(Status::decode(word).done, word >> 63 == 1);
    }
}

#[test]
fn only_powers_of_two_of_descriptors_are_a_ring() {
    let words = |count| Region::heap(count as usize * 8).window().slots64(0, count).unwrap();
    assert_eq!(Ring::new(words(8)).map(|ring| ring.entries()), Some(2));
    assert_eq!(Ring::new(words(4096)).map(|ring| ring.entries()), Some(1024));
    for count in [1, 2, 4] {
        assert!(Ring::new(words(count)).is_none(), "{count} words");
    }
}
