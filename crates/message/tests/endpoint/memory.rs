//! Memory of messages that is not copied: adopted, handed over, and windows.

use super::*;

/// Memory that is sent again is read where it is, with one copy, by who waits; and an end of a message that began when the other one was about
/// to go is not half a message.
#[test]
fn memory_that_is_sent_again_is_read_in_a_file() {
    let adopter = match millrace_dma::Adopter::of_process() {
        Ok(adopter) => adopter,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let config = || Config { adopt: Some(Scope::Mappings), ..SLEEPY };
    let (one, other) = (Endpoint::with(config()).unwrap(), open("adopted"));
    let to = one.connect(&name("adopted"), LONG).unwrap();
    let from = other.accept(LONG).unwrap();
    // More than a part that is mapped, and more than is read at once.
    let len = (17 << 20) + 123;
    let mut message = bytes(1, len);
    let mut room = vec![0; len + 7];
    for (turn, scheme) in
        [Some(Scheme::OneCopy), None, None, Some(Scheme::ZeroCopy), Some(Scheme::OneCopy)].into_iter().enumerate()
    {
        message[turn] = turn as u8;
        let before = other.moved();
        let wanted = other.receive(Some(from), Tag(1), u64::MAX, room).unwrap();
        let sent = match scheme {
            Some(scheme) => one.send_by(to, Tag(1), message, scheme),
            None => one.send(to, Tag(1), message),
        };
        message = one.wait(sent.unwrap(), LONG).unwrap().buffer;
        room = other.wait(wanted, LONG).unwrap().buffer;
        assert!(room == message, "turn {turn}");
        room.resize(len + 7, 0);
        // The first time it is only remembered that it was sent; with one copy nobody asks.
        assert_eq!(adopter.counters().adopted >= len as u64, turn >= 2, "turn {turn}");
        assert_eq!(other.moved() - before == len as u64, scheme != Some(Scheme::OneCopy), "turn {turn}");
    }
    // Through memory that was unmapped meanwhile, and is other memory by now.
    drop(message);
    for turn in 0..4 {
        let message = bytes(2 + turn, len);
        let wanted = other.receive(Some(from), Tag(1), u64::MAX, room).unwrap();
        let sent = one.send(to, Tag(1), message.clone()).unwrap();
        drop(one.wait(sent, LONG).unwrap());
        room = other.wait(wanted, LONG).unwrap().buffer;
        assert!(room == message);
        room.resize(len + 7, 0);
    }
}

/// What was handed over is seen where it is, as long as it is held; who does not hold it gets a copy. A pool that is held altogether is no
/// matter of anybody else, and whole again when who holds it goes.
#[test]
fn blocks_are_handed_over() {
    let len = 3 << 20;
    let config = || Config { pool: 8 << 20, ..SLEEPY };
    let one = Endpoint::with(config()).unwrap();
    let other = Endpoint::with(Config { name: Some(name("blocks")), ..config() }).unwrap();
    let to = one.connect(&name("blocks"), LONG).unwrap();
    let from = other.accept(LONG).unwrap();
    let filled = |number: u64| {
        let mut block = one.allocate(to, len, LONG).unwrap();
        block.write(0, &bytes(number, len)).unwrap();
        block
    };
    let hold = |tag| other.receive_held(Some(from), Tag(tag), u64::MAX, vec![0; 10]).unwrap();
    let wanted = [hold(1), hold(2)];
    one.give(to, Tag(1), filled(1)).unwrap();
    one.give(to, Tag(2), filled(2)).unwrap();
    let given = wanted.map(|wanted| other.wait(wanted, LONG).unwrap());
    for (number, ended) in (1..).zip(&given) {
        assert!(
            matches!(ended.outcome, Outcome::Held { tag: Tag(tag), len: found, .. } if (tag, found) == (number, len as u64))
        );
        assert!(ended.from == Some(from) && ended.buffer == [0; 10]);
        assert!(ended.given.as_ref().unwrap().to_vec() == bytes(number, len));
    }
    // All that there is room for is held.
    assert!(matches!(one.allocate(to, len, NOT_AT_ALL), Err(AllocateError::Full)));
    assert!(matches!(one.allocate(to, 9 << 20, LONG), Err(AllocateError::TooLong(most)) if most == 8 << 20));
    let [first, second] = given;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.allocate(to, len, LONG).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        drop(first);
        waits.join().unwrap();
    });
    // One that is not given is free for others as well.
    let kept = [one.allocate(to, len, LONG).unwrap()];
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.allocate(to, len, LONG).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        drop(kept);
        waits.join().unwrap();
    });
    // Short ones, and what is not in a file, come into the buffer; what is too long for it does not.
    for (tag, sent, found) in [(3, 5, true), (4, 5000, false)] {
        let wanted = hold(tag);
        one.send(to, Tag(tag), bytes(tag, sent)).unwrap();
        let ended = other.wait(wanted, LONG).unwrap();
        assert_eq!((ended.outcome == Outcome::TooLong { len: 5000 }, ended.given), (!found, None));
        assert!(!found || ended.buffer == bytes(tag, sent));
    }
    // Who does not hold it gets a copy.
    let wanted = other.receive(Some(from), Tag(5), u64::MAX, vec![0; len]).unwrap();
    one.give(to, Tag(5), filled(5)).unwrap();
    assert!(other.wait(wanted, LONG).unwrap().buffer == bytes(5, len));
    // A block is for one other end.
    let also = one.connect(&name("blocks"), LONG).unwrap();
    assert_eq!(one.give(also, Tag(5), filled(5)), Err(GiveError::Elsewhere));
    // What is held is there when the endpoint that has given it is gone, and the other way round.
    let block = filled(6);
    drop(one);
    assert!(second.given.as_ref().unwrap().to_vec() == bytes(2, len));
    drop(other);
    drop((second, block));
}

/// Memory of the other end is read and written without its doing, as far as it has allocated it for this one.
#[test]
fn windows_are_written_and_read() {
    let (one, other, to, from) = pair("windows");
    one.claim(7..=7, Owner(0)).unwrap();
    // `other` owns it.
    let block = other.allocate(from, 4096, NOT_AT_ALL).unwrap();
    assert!(matches!(one.window(to, block.number(), (1 << 20) + 1), Err(WindowError::Nowhere)));
    let window = one.window(to, block.number(), 4096).unwrap();
    let number = block.number();
    window.nwrite(1, b"one").unwrap();
    window.nwrite_r(5, b"two").unwrap();
    window.swrite(4088, b"12345678").unwrap();
    let mut found = [0; 8];
    block.read(0, &mut found).unwrap();
    assert_eq!(&found, b"\0one\0two");
    window.nread(4088, &mut found).unwrap();
    assert_eq!(&found, b"12345678");
    for (offset, len) in [(0, 7), (1, 8), (12, 4)] {
        assert_eq!(window.swrite(offset, &bytes(1, len)), Err(AccessError::Unaligned));
    }
    assert!(matches!(window.nwrite(4096, b"1"), Err(AccessError::Range(_))));
    assert!(matches!(window.nread(usize::MAX, &mut found), Err(AccessError::Range(_))));
    assert!(matches!(window.swrite(4096, &[0; 8]), Err(AccessError::Range(_))));
    // It has allocated nothing for the other way.
    assert!(matches!(other.window(from, number, 1), Err(WindowError::Nowhere)));
    // A doorbell comes behind what was written.
    for round in 0..1000_u64 {
        block.window().span_mut(8, 8).unwrap().write_from(&round.to_le_bytes());
        other.ring(from, 7).unwrap().unwrap();
        assert_eq!(one.any_bell(LONG).unwrap().1.number, 7);
        let mut word = [0; 8];
        window.nread(8, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), round);
    }
    drop(other);
    assert!(one.event(LONG).is_some());
    window.nwrite(0, b"there is nobody").unwrap();
    assert!(matches!(one.window(to, number, 1), Err(WindowError::Lost | WindowError::Nowhere)));
}
