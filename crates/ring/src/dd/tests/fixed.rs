//! Queues over buffers of their own.

use super::*;

const ENTRIES: u32 = 8;

fn rx(memory: &Memory) -> (FixedRx, CardRx) {
    let card = memory.card_rx(LIMITS);
    (FixedRx::new(memory.host_rx(), memory.first, STRIDE, 2000).unwrap(), card)
}

#[test]
fn buffers_come_back_in_the_order_in_which_they_were_put_back() {
    let memory = Memory::new(ENTRIES, ENTRIES);
    let (mut queue, mut card) = rx(&memory);
    for number in 0..100 {
        assert_eq!(deliver(&mut card, &frame(number, 64)), RxOutcome::Stored);
        card.publish();
        assert_eq!((queue.ready(9), queue.first()), (1, number));
        let found = queue.find(0).unwrap();
        assert_eq!((found.buffer, found.len), (number % ENTRIES, 64));
        assert_eq!(memory.read(found.buffer, found.len), frame(number, 64));
        queue.put(1);
    }
}

#[test]
fn buffers_are_posted_again_a_quarter_at_a_time() {
    let memory = Memory::new(ENTRIES, ENTRIES);
    let (mut queue, mut card) = rx(&memory);
    (0..ENTRIES).for_each(|number| assert_eq!(deliver(&mut card, &frame(number, 64)), RxOutcome::Stored));
    assert_eq!(deliver(&mut card, &frame(8, 64)), RxOutcome::NoRoom);
    card.publish();
    assert_eq!(queue.ready(64), ENTRIES);
    (0..ENTRIES).for_each(|ahead| assert!(queue.find(ahead).is_ok()));
    assert!(!queue.put(1) && queue.owes());
    assert_eq!(deliver(&mut card, &frame(8, 64)), RxOutcome::NoRoom);
    assert!(queue.put(1) && !queue.owes());
    assert_eq!(memory.tail.load(Ordering::Relaxed), 2);
    assert_eq!(deliver(&mut card, &frame(8, 64)), RxOutcome::Stored);
    queue.put(1);
    queue.flush();
    assert!(!queue.owes());
}

#[test]
fn a_swapped_buffer_is_found_and_posted_where_it_came_back() {
    let memory = Memory::new(ENTRIES, ENTRIES);
    let (mut queue, mut card) = rx(&memory);
    for lap in 0..5u16 {
        let mut ahead: Vec<_> = (0..ENTRIES).map(|_| card.take_posted().unwrap().unwrap()).collect();
        ahead.rotate_left(3);
        ahead.iter().for_each(|buffer| assert!(card.deliver_swapped(buffer.iova, 64 + lap, &[])));
        card.publish();
        assert_eq!(queue.ready(64), ENTRIES);
        for (place, buffer) in (0..).zip(&ahead) {
            let found = queue.find(place).unwrap();
            assert_eq!((memory.iova(found.buffer), found.len), (buffer.iova, 64 + lap));
        }
        queue.put(ENTRIES);
        queue.flush();
    }
}

#[test]
fn a_buffer_that_the_card_does_not_owe_is_refused() {
    let memory = Memory::new(ENTRIES, ENTRIES + 1);
    let (mut queue, _) = rx(&memory);
    let wild = [memory.iova(0), memory.iova(ENTRIES), Iova::new(0), Iova::new(u64::MAX), memory.iova(3).plus(1)];
    memory.set_status(0, 1 << 63 | 64);
    assert!(queue.ready(1) == 1 && queue.find(0).is_ok());
    for iova in wild {
        memory.words.store(4, iova.get());
        memory.set_status(1, 1 << 63 | 64);
        assert_eq!(queue.ready(9), 2);
        assert_eq!(queue.find(1).unwrap_err().iova, iova, "the first came back already, the others are not ours");
    }
    memory.words.store(4, memory.iova(1).get());
    memory.set_status(1, 1 << 63 | 2001);
    assert_eq!(queue.find(1).unwrap_err().len, 2001, "longer than a buffer");
    memory.set_status(1, 1 << 63 | 2000);
    assert!(queue.find(1).is_ok() && queue.find(1).is_err(), "once");
}

#[test]
fn frames_are_sent_from_buffers_in_turn() {
    let memory = Memory::new(ENTRIES, ENTRIES);
    let mut card = memory.card_tx(LIMITS);
    let mut queue = FixedTx::new(memory.host_tx(), memory.first, STRIDE);
    assert_eq!((queue.most(), queue.available(), queue.post(60)), (ENTRIES, ENTRIES, false));
    assert_eq!(queue.take(ENTRIES + 1), None);
    for burst in 0..20 {
        let first = queue.take(5).unwrap();
        assert_eq!((first, queue.next()), (burst * 5, burst * 5 + 5));
        assert_eq!(queue.take(4), None);
        for number in first..first + 3 {
            memory.write(number % ENTRIES, &frame(number, 64));
            assert!(queue.post(64));
        }
        queue.untake();
        assert_eq!(queue.take(2), Some(first + 3));
        for number in first + 3..first + 5 {
            memory.write(number % ENTRIES, &frame(number, 64));
            assert!(queue.post(64));
        }
        queue.flush();
        let (_, frames) = serve_all(&mut card);
        assert_eq!(frames, (first..first + 5).map(|number| frame(number, 64)).collect::<Vec<_>>());
        assert_eq!(queue.available(), ENTRIES);
    }
    assert_eq!(queue.in_flight(), 0);
}
