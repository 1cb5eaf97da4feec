//! The rings under every order in which two processors may see each other's stores, as far as loom can enumerate them.
//!
//! The code is the real one, over the model memory of `millrace-dma`. Payload, descriptors and headers are plain memory
//! there: a missing edge shows as old contents or as a causality violation. Rings have four entries (SZE: a page of 64
//! bytes), so that each model runs through empty, full and wrap.
//!
//! `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p millrace-ring --profile model --test ring loom::`
//!
//! Each model names the weakenings that it was seen to catch: the `Release` or `Acquire` named was made `Relaxed`, the
//! fence was removed or made `AcqRel`, and the model failed. (A lost wake-up is a deadlock; while it unwinds from that,
//! loom aborts the process.)
#![cfg(loom)]

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use millrace_dma::{Access, Domain, Iotlb, Iova, Ordering, Span, Window, Word64};
use millrace_ring::cursor::{Look, Position, Subscriber, Watched};
use millrace_ring::medusa::{self, FixedRx, FixedTx};
use millrace_ring::wake::{Ringer, Sleeper};
use millrace_ring::{Accept, FrameLimits, RxOutcome, calypte, dd, sze};

/// One word is a frame.
const LIMITS: FrameLimits = FrameLimits { min: 8, max: 8 };

fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

fn write(window: &Window, offset: usize, value: u64) {
    window.span_mut(offset, 8).unwrap().write_from(&value.to_le_bytes());
}

fn value(span: Span<'_>) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(span.read_into(&mut bytes), 8);
    u64::from_le_bytes(bytes)
}

/// The words of a ring that both sides use at once. Loom keeps 64-bit words and flags apart by itself.
struct Words(Window);

impl Words {
    fn new() -> Self {
        Self(Window::model(24))
    }
    fn doorbell(&self) -> Word64 {
        self.0.word64(0).unwrap()
    }
    fn update(&self) -> Word64 {
        self.0.word64(8).unwrap()
    }
    fn cursor(&self) -> Word64 {
        self.0.word64(16).unwrap()
    }
    fn sleeper(&self) -> Sleeper {
        Sleeper::new(self.0.word32(0).unwrap())
    }
    fn ringer(&self) -> Ringer {
        Ringer::new(self.0.word32(0).unwrap())
    }
}

fn medusa_tx(words: &Words) -> (FixedTx, medusa::CardTx, Window) {
    let (ring, data, domain) = (Window::model(32), Window::model(16), std::sync::Arc::new(Domain::new()));
    let iova = domain.map(data.clone(), Access::ReadWrite, None).unwrap();
    let descriptors = ring.slots64(0, 4).unwrap();
    let (doorbell, update) = (words.doorbell(), words.update());
    let host = medusa::HostTx::new(descriptors.clone(), doorbell.clone(), update.clone()).unwrap();
    let rings = medusa::TxRings { descriptors, descriptors_at: Iova::default(), doorbell, update };
    let card = medusa::CardTx::new(rings, LIMITS, Iotlb::new(domain)).unwrap();
    (FixedTx::new(host, Box::new([iova, iova.plus(8)]), 0).unwrap(), card, data)
}

fn medusa_rx(words: &Words, header_entries: u32) -> (FixedRx, medusa::CardRx, Window) {
    let (ring, data, domain) = (Window::model(32), Window::model(16), std::sync::Arc::new(Domain::new()));
    let headers = Window::model(header_entries as usize * 4).slots32(0, header_entries).unwrap();
    let iova = domain.map(data.clone(), Access::ReadWrite, None).unwrap();
    let descriptors = ring.slots64(0, 4).unwrap();
    let (doorbell, update) = (words.doorbell(), words.update());
    let host = medusa::HostRx::new(descriptors.clone(), headers.clone(), doorbell.clone(), update.clone()).unwrap();
    let rings = medusa::RxRings { descriptors, descriptors_at: Iova::default(), headers, doorbell, update };
    let card = medusa::CardRx::new(rings, LIMITS, Iotlb::new(domain)).unwrap();
    (FixedRx::new(host, Box::new([iova, iova.plus(8)]), 8, 0).unwrap(), card, data)
}

/// A ring of 64 bytes: three packets of one word each, and eight bytes that stay empty.
fn sze_ring(words: &Words) -> (Window, sze::Rings, Iotlb) {
    let domain = std::sync::Arc::new(Domain::new());
    // Software sees the ring twice in a row; packets of 16 bytes never reach into the second half.
    let (ring, list) = (Window::model(128), Window::model(16));
    let iova = domain.map(ring.part(0, 64).unwrap(), Access::ReadWrite, None).unwrap();
    let descriptors_at = domain.map(list.clone(), Access::Read, None).unwrap();
    for (i, word) in sze::descriptor_list(iova, 4096, 0, descriptors_at).into_iter().enumerate() {
        list.slots64(0, 2).unwrap().store(i as u32, word);
    }
    let rings = sze::Rings { descriptors_at, size: 64, doorbell: words.doorbell(), update: words.update() };
    (ring, rings, Iotlb::new(domain))
}

fn sze_tx(words: &Words) -> (sze::HostTx, sze::CardTx) {
    let (ring, rings, iotlb) = sze_ring(words);
    let host = sze::HostTx::new(ring, 0, words.doorbell(), words.update()).unwrap();
    (host, sze::CardTx::new(rings, LIMITS, iotlb).unwrap())
}

fn sze_rx(words: &Words) -> (sze::HostRx, sze::CardRx) {
    let (ring, rings, iotlb) = sze_ring(words);
    let host = sze::HostRx::new(ring, 0, 0, words.doorbell(), words.update()).unwrap();
    (host, sze::CardRx::new(rings, LIMITS, iotlb).unwrap())
}

fn send_medusa(queue: &mut FixedTx, data: &Window, number: u64) -> bool {
    let Some(buffer) = queue.take(1) else { return false };
    write(data, buffer as usize % 2 * 8, number);
    assert!(queue.post(8));
    queue.flush();
    true
}

fn send_sze(queue: &mut sze::HostTx, number: u64) -> bool {
    if !queue.has_room(16) {
        return false;
    }
    let at = queue.frame_at(queue.position());
    write(queue.ring(), at, number);
    queue.push(8);
    queue.flush();
    true
}

/// Reads one packet, if there is one, and gives it back.
fn receive_sze(queue: &mut sze::HostRx) -> Option<u64> {
    if queue.ready() == 0 {
        return None;
    }
    let packet = queue.packet(queue.position()).unwrap();
    assert_eq!((packet.frame_len, packet.stride), (8, 16));
    let number = value(queue.ring().span(packet.frame_at as usize, 8).unwrap());
    queue.put(packet.stride);
    Some(number)
}

fn receive_medusa(queue: &mut FixedRx, data: &Window) -> Option<u64> {
    if queue.ready() == 0 {
        return None;
    }
    assert_eq!(queue.header(0).len, 8);
    let number = value(data.span(queue.first() as usize % 2 * 8, 8).unwrap());
    queue.put(1);
    Some(number)
}

/// Checks the frames of one `serve` against `next`, the number of the first.
macro_rules! serve {
    ($card:ident, $next:ident) => {{
        let served = $card.serve(usize::MAX, &mut |frame: Span<'_>| {
            assert_eq!(value(frame), $next);
            $next += 1;
            Accept::Taken
        });
        assert_eq!(served.fault, None);
        assert_eq!(served.too_short + served.too_long + served.too_far, 0);
    }};
}

/// Catches: Release in `HostTx::flush`, Acquire in `CardTx::pending`, Release in `CardTx::publish`, Acquire in
/// `HostTx::completed`.
#[test]
fn medusa_tx_keeps_packets_whole_and_in_order() {
    const PACKETS: u64 = 5;
    model(3, || {
        let (mut queue, mut card, data) = medusa_tx(&Words::new());
        let software = thread::spawn(move || {
            for number in 1..=PACKETS {
                while !send_medusa(&mut queue, &data, number) {
                    thread::yield_now();
                }
            }
        });
        let mut next = 1;
        while next <= PACKETS {
            if card.pending() == 0 {
                thread::yield_now();
                continue;
            }
            serve!(card, next);
        }
        software.join().unwrap();
    });
}

fn medusa_rx_with_headers(header_entries: u32, preemptions: usize) {
    const PACKETS: u64 = 5;
    model(preemptions, move || {
        let (mut queue, mut card, data) = medusa_rx(&Words::new(), header_entries);
        let software = thread::spawn(move || {
            for number in 1..=PACKETS {
                loop {
                    match receive_medusa(&mut queue, &data) {
                        Some(got) => break assert_eq!(got, number),
                        None => thread::yield_now(),
                    }
                }
            }
        });
        for number in 1..=PACKETS {
            while card.deliver(&[], Span::from_slice(&number.to_le_bytes())) == Ok(RxOutcome::NoRoom) {
                thread::yield_now();
            }
            assert!(card.publish());
        }
        software.join().unwrap();
    });
}

/// Catches: Release in `CardRx::publish`, Acquire in `HostRx::ready`, Release in `HostRx::flush`, Acquire in
/// `CardRx::refresh`.
#[test]
fn medusa_rx_keeps_packets_whole_and_in_order() {
    medusa_rx_with_headers(4, 2);
}

/// As above, for the header ring: with two entries it is what is full first.
#[test]
fn medusa_rx_does_not_write_a_header_that_is_being_read() {
    medusa_rx_with_headers(2, 3);
}

/// Catches: Release in `HostTx::flush`, Acquire in `CardTx::pending`, Release in `CardTx::serve`, Acquire in
/// `HostTx::refresh`.
#[test]
fn sze_tx_keeps_packets_whole_and_in_order() {
    const PACKETS: u64 = 5;
    model(3, || {
        let (mut queue, mut card) = sze_tx(&Words::new());
        let software = thread::spawn(move || {
            for number in 1..=PACKETS {
                while !send_sze(&mut queue, number) {
                    thread::yield_now();
                }
            }
        });
        let mut next = 1;
        while next <= PACKETS {
            if card.pending() == 0 {
                thread::yield_now();
                continue;
            }
            serve!(card, next);
        }
        software.join().unwrap();
    });
}

/// Catches: Release in `CardRx::publish`, Acquire in `HostRx::ready`, Release in `HostRx::flush`, Acquire in
/// `CardRx::deliver`.
#[test]
fn sze_rx_keeps_packets_whole_and_in_order() {
    const PACKETS: u64 = 5;
    model(3, || {
        let (mut queue, mut card) = sze_rx(&Words::new());
        let software = thread::spawn(move || {
            for number in 1..=PACKETS {
                loop {
                    match receive_sze(&mut queue) {
                        Some(got) => break assert_eq!(got, number),
                        None => thread::yield_now(),
                    }
                }
            }
        });
        for number in 1..=PACKETS {
            while card.deliver(&[], Span::from_slice(&number.to_le_bytes())) == Ok(RxOutcome::NoRoom) {
                thread::yield_now();
            }
            assert!(card.publish());
        }
        software.join().unwrap();
    });
}

/// A ring of four places for frames of one word, and as many headers.
fn calypte_tx(words: &Words) -> (calypte::HostTx, calypte::CardTx, Window) {
    // Seen twice in a row; frames of 8 bytes never reach into the second half.
    let (data, headers) = (Window::model(64), Window::model(32).slots64(0, 4).unwrap());
    let host = calypte::HostTx::new(32, headers.clone(), words.update()).unwrap();
    let rings = calypte::TxRings { data: data.clone(), headers, update: words.update() };
    (host, calypte::CardTx::new(rings, LIMITS).unwrap(), data)
}

fn calypte_rx(words: &Words, header_entries: u32) -> (calypte::HostRx, calypte::CardRx, Window) {
    let data = Window::model(32);
    let headers = Window::model(header_entries as usize * 8).slots64(0, header_entries).unwrap();
    let (doorbell, update) = (words.doorbell(), words.update());
    let host = calypte::HostRx::new(4, headers.clone(), doorbell.clone(), update.clone()).unwrap();
    let rings = calypte::RxRings { data: data.clone(), headers, doorbell, update };
    (host, calypte::CardRx::new(rings, LIMITS).unwrap(), data)
}

/// Catches: Release in `HostTx::flush`, Acquire in `CardTx::header`, Release in `CardTx::serve`, Acquire in
/// `HostTx::refresh`.
#[test]
fn calypte_tx_keeps_packets_whole_and_in_order() {
    const PACKETS: u64 = 6;
    model(3, || {
        let (mut queue, mut card, data) = calypte_tx(&Words::new());
        let software = thread::spawn(move || {
            for number in 1..=PACKETS {
                while !queue.has_room(8) {
                    thread::yield_now();
                }
                write(&data, queue.frame_at() as usize, number);
                queue.push(8);
                queue.flush();
            }
        });
        let mut next = 1;
        while next <= PACKETS {
            if !card.pending() {
                thread::yield_now();
                continue;
            }
            serve!(card, next);
        }
        software.join().unwrap();
    });
}

fn calypte_rx_with_headers(header_entries: u32, preemptions: usize) {
    const PACKETS: u64 = 6;
    model(preemptions, move || {
        let (mut queue, mut card, data) = calypte_rx(&Words::new(), header_entries);
        let software = thread::spawn(move || {
            for number in 1..=PACKETS {
                while queue.ready(1) == 0 {
                    thread::yield_now();
                }
                let header = queue.header(0);
                assert_eq!(header.len, 8);
                assert_eq!(value(data.span(usize::from(header.at) * 8, 8).unwrap()), number);
                queue.put(1);
                if queue.owes() {
                    queue.flush();
                }
            }
        });
        for number in 1..=PACKETS {
            while card.deliver(&[], Span::from_slice(&number.to_le_bytes())) == Ok(RxOutcome::NoRoom) {
                thread::yield_now();
            }
            assert!(card.publish());
        }
        software.join().unwrap();
    });
}

/// Catches: Release in `CardRx::show`, Acquire in `HostRx::ready`, Release in `HostRx::flush`, Acquire in
/// `CardRx::refresh`.
#[test]
fn calypte_rx_keeps_packets_whole_and_in_order() {
    calypte_rx_with_headers(4, 3);
}

/// As above, for the header ring: with two entries it is what is full first, and its valid bit turns round most often.
#[test]
fn calypte_rx_does_not_mistake_an_old_header_for_a_new_one() {
    calypte_rx_with_headers(2, 3);
}

/// A ring of two descriptors and as many buffers of one word.
fn dd_ring() -> (dd::Ring, Window, Iova, Iotlb) {
    let (data, domain) = (Window::model(16), std::sync::Arc::new(Domain::new()));
    let first = domain.map(data.clone(), Access::ReadWrite, None).unwrap();
    let ring = dd::Ring::new(Window::model(2 * dd::DESCRIPTOR).slots64(0, 8).unwrap()).unwrap();
    ring.clear();
    (ring, data, first, Iotlb::new(domain))
}

/// Frames of one burst are given to the card by one store, and their buffers come back by the done bit of the last.
///
/// Catches: Release in `Ring::publish`, Acquire in `Ring::status`, on either side; `HostTx::flush` that writes the
/// first descriptor of a burst before the others.
#[test]
fn dd_tx_keeps_packets_whole_and_in_order() {
    const PACKETS: u64 = 6;
    model(3, || {
        let (ring, data, first, iotlb) = dd_ring();
        let mut queue = dd::FixedTx::new(dd::HostTx::new(ring.clone(), Words::new().doorbell()), first, 8);
        let mut card = dd::CardTx::new(ring, Iova::default(), LIMITS, iotlb, Box::new(|| 0));
        let software = thread::spawn(move || {
            for number in (1..=PACKETS).step_by(2) {
                let buffer = loop {
                    match queue.take(2) {
                        Some(buffer) => break buffer,
                        None => thread::yield_now(),
                    }
                };
                for i in 0..2 {
                    write(&data, (buffer + i) as usize % 2 * 8, number + u64::from(i));
                    assert!(queue.post(8));
                }
                queue.flush();
            }
        });
        let mut next = 1;
        while next <= PACKETS {
            if !card.pending() {
                thread::yield_now();
                continue;
            }
            let before = next;
            serve!(card, next);
            assert_eq!(next - before, 2, "a burst is seen whole");
        }
        software.join().unwrap();
    });
}

/// Catches: Release in `Ring::publish`, Acquire in `Ring::status`, on either side.
#[test]
fn dd_rx_keeps_packets_whole_and_in_order() {
    const PACKETS: u64 = 6;
    model(3, || {
        let (ring, data, first, iotlb) = dd_ring();
        let host = dd::HostRx::new(ring.clone(), Words::new().doorbell());
        let mut queue = dd::FixedRx::new(host, first, 8, 8).unwrap();
        let mut card = dd::CardRx::new(ring, Iova::default(), LIMITS, iotlb);
        let software = thread::spawn(move || {
            for number in 1..=PACKETS {
                while queue.ready(1) == 0 {
                    thread::yield_now();
                }
                let found = queue.find(0).unwrap();
                assert_eq!(found.len, 8);
                assert_eq!(value(data.span(found.buffer as usize * 8, 8).unwrap()), number);
                queue.put(1);
                if queue.owes() {
                    queue.flush();
                }
            }
        });
        for number in 1..=PACKETS {
            while card.deliver(&[], Span::from_slice(&number.to_le_bytes())) == Ok(RxOutcome::NoRoom) {
                thread::yield_now();
            }
            assert!(card.publish());
        }
        software.join().unwrap();
    });
}

/// Buffers that the card takes ahead and hands back in descriptors of others.
///
/// Catches: as above, and the address stored after the done bit.
#[test]
fn dd_rx_keeps_swapped_buffers_whole() {
    const PACKETS: u64 = 4;
    model(3, || {
        let (ring, data, first, iotlb) = dd_ring();
        let host = dd::HostRx::new(ring.clone(), Words::new().doorbell());
        let mut queue = dd::FixedRx::new(host, first, 8, 8).unwrap();
        let mut card = dd::CardRx::new(ring, Iova::default(), LIMITS, iotlb);
        let frames = data.clone();
        let software = thread::spawn(move || {
            for number in 1..=PACKETS {
                while queue.ready(1) == 0 {
                    thread::yield_now();
                }
                let found = queue.find(0).unwrap();
                assert_eq!(value(data.span(found.buffer as usize * 8, 8).unwrap()), number);
                queue.put(1);
                if queue.owes() {
                    queue.flush();
                }
            }
        });
        for number in (1..=PACKETS).step_by(2) {
            let mut take = || loop {
                match card.take_posted().unwrap() {
                    Some(posted) => break posted.iova,
                    None => thread::yield_now(),
                }
            };
            let buffers = [take(), take()];
            for (iova, number) in buffers.into_iter().rev().zip(number..) {
                write(&frames, (iova.get() - first.get()) as usize, number);
                assert!(card.deliver_swapped(iova, 8, &[]));
            }
            card.publish();
        }
        software.join().unwrap();
    });
}

/// An eventfd: a signal is kept until somebody waits.
#[derive(Default)]
struct Event {
    signalled: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    fn signal(&self) {
        *self.signalled.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut signalled = self.signalled.lock().unwrap();
        while !*signalled {
            signalled = self.changed.wait(signalled).unwrap();
        }
        *signalled = false;
    }
}

/// The card sleeps, software rings. A wake-up that is lost is a deadlock, which loom reports.
///
/// Catches: the fence in `Sleeper::announce`, the fence in `Ringer::must_signal`.
#[test]
fn a_card_that_sleeps_is_woken_by_the_doorbell() {
    const PACKETS: u64 = 3;
    model(3, || {
        let words = Words::new();
        let (mut queue, mut card, data) = medusa_tx(&words);
        let (sleeper, ringer) = (words.sleeper(), words.ringer());
        let event = Arc::new(Event::default());
        let bell = event.clone();
        let software = thread::spawn(move || {
            for number in 1..=PACKETS {
                while !send_medusa(&mut queue, &data, number) {
                    thread::yield_now();
                }
                if ringer.must_signal() {
                    bell.signal();
                }
            }
        });
        let mut next = 1;
        while next <= PACKETS {
            if card.pending() == 0 {
                sleeper.announce();
                if card.pending() == 0 {
                    event.wait();
                }
                sleeper.awake();
                continue;
            }
            serve!(card, next);
        }
        software.join().unwrap();
    });
}

/// Software sleeps in `wait`, the card signals after the update word.
///
/// Catches: as above.
#[test]
fn a_program_that_sleeps_is_woken_by_the_update_word() {
    const PACKETS: u64 = 3;
    model(3, || {
        let words = Words::new();
        let (mut queue, mut card) = sze_rx(&words);
        let (sleeper, ringer) = (words.sleeper(), words.ringer());
        let event = Arc::new(Event::default());
        let bell = event.clone();
        let software = thread::spawn(move || {
            for number in 1..=PACKETS {
                loop {
                    if let Some(got) = receive_sze(&mut queue) {
                        break assert_eq!(got, number);
                    }
                    sleeper.announce();
                    if queue.ready() == 0 {
                        event.wait();
                    }
                    sleeper.awake();
                }
            }
        });
        for number in 1..=PACKETS {
            while card.deliver(&[], Span::from_slice(&number.to_le_bytes())) == Ok(RxOutcome::NoRoom) {
                thread::yield_now();
            }
            assert!(card.publish());
            if ringer.must_signal() {
                bell.signal();
            }
        }
        software.join().unwrap();
    });
}

/// A ring of two packets whose reader is skipped when it holds nothing and is in the way: what it holds never changes,
/// and what it does not get it is told about.
///
/// Catches: AcqRel in `Word64::compare_exchange` of the model memory, Acquire in `Watched::look`, a `skip` that does
/// not look at `held`, a `skip` that moves back.
#[test]
fn what_a_subscriber_holds_is_never_overwritten() {
    const PACKETS: u64 = 4;
    model(3, || {
        let (words, data) = (Words::new(), Window::model(16));
        let start = Position::new(u64::MAX - 1);
        let watched = Watched::new(words.cursor(), start);
        let published = words.update();
        // Made before the card may skip it: the position that it begins with is the driver's to tell.
        let mut subscriber = Subscriber::new(words.cursor());
        let subscriber = {
            let (published, data) = (published.clone(), data.clone());
            thread::spawn(move || {
                let (mut read, mut lost) = (0, 0);
                while read + lost < PACKETS {
                    // Acquire pairs with the Release of the card below, as in the rings.
                    let ready = published.load(Ordering::Acquire) - (read + lost);
                    if ready == 0 {
                        thread::yield_now();
                        continue;
                    }
                    match subscriber.hold(1) {
                        Ok(()) => {
                            let number = value(data.span((read + lost) as usize % 2 * 8, 8).unwrap());
                            assert_eq!(number, read + lost);
                            subscriber.release(1);
                            read += 1;
                        }
                        Err(skipped) => {
                            assert!((1..=PACKETS).contains(&skipped), "skipped {skipped}");
                            lost += skipped;
                        }
                    }
                }
                (read, lost)
            })
        };
        let mut skipped = 0;
        let mut tail = 0;
        for number in 0..PACKETS {
            while number - tail == 2 {
                match watched.look(start.plus(tail), number - tail) {
                    Look::Passed(0) => match watched.skip(start.plus(tail + 1)) {
                        Some(lost) => skipped += lost,
                        None => thread::yield_now(),
                    },
                    Look::Passed(units) => tail += units,
                    Look::Nonsense => panic!("an honest subscriber"),
                }
            }
            write(&data, number as usize % 2 * 8, number);
            published.store(number + 1, Ordering::Release);
        }
        let (read, lost) = subscriber.join().unwrap();
        assert_eq!((read + lost, lost), (PACKETS, skipped));
    });
}
