//! One to sixteen readers of one RX queue, with every policy, on one thread.

use super::*;
use crate::cursor::Subscriber;
use crate::{FrameLimits, RxOutcome};
use millrace_dma::{Access, Domain, Iotlb, Iova, Region, Span, Window};
use proptest::prelude::*;

const LIMITS: FrameLimits = FrameLimits { min: 16, max: 2000 };
const START: Position = Position::new(u64::MAX - 20);

/// The card's half of either protocol, and what a reader needs to find the packets.
enum Card {
    Medusa { engine: medusa::CardRx, headers: Slots32, data: Window, buffers: u64 },
    Sze { engine: sze::CardRx, ring: Window },
    Calypte { engine: calypte::CardRx, headers: Slots64, data: Window },
}

struct Queue {
    card: Card,
    update: Word64,
    reclaimer: Reclaimer,
}

impl Queue {
    fn medusa(ring: u32, headers: u32, buffers: u32) -> Self {
        let (words, data) = (Region::heap(128), Region::heap(buffers as usize * 2048).window().clone());
        let descriptors = Region::heap(ring as usize * 8).window().slots64(0, ring).unwrap();
        let headers = Region::heap(headers as usize * 4).window().slots32(0, headers).unwrap();
        let (doorbell, update) = (words.window().word64(0).unwrap(), words.window().word64(64).unwrap());
        let domain = Arc::new(Domain::new());
        let iova = domain.map(data.clone(), Access::ReadWrite, None).unwrap();
        let host = medusa::HostRx::new(descriptors.clone(), headers.clone(), doorbell.clone(), update.clone()).unwrap();
        let places: Box<[Iova]> = (0..u64::from(buffers)).map(|i| iova.plus(i * 2048)).collect();
        let pool = Pool::Medusa(medusa::FixedRx::new(host, places, 2048, 0).unwrap());
        let descriptors_at = Iova::default();
        let rings =
            medusa::RxRings { descriptors, descriptors_at, headers: headers.clone(), doorbell, update: update.clone() };
        let engine = medusa::CardRx::new(rings, LIMITS, Iotlb::new(domain)).unwrap();
        let card = Card::Medusa { engine, headers, data, buffers: buffers.into() };
        Self { card, update, reclaimer: Reclaimer::new(pool, START) }
    }

    fn sze(size: u32) -> Self {
        let (words, list) = (Region::heap(128), Region::heap(4096).window().clone());
        let ring = Region::allocate_doubled(size as usize).unwrap().window().clone();
        let (doorbell, update) = (words.window().word64(0).unwrap(), words.window().word64(64).unwrap());
        let domain = Arc::new(Domain::new());
        let once = ring.part(0, size as usize).unwrap();
        let iova = domain.map(once, Access::ReadWrite, None).unwrap();
        let descriptors_at = domain.map(list.clone(), Access::Read, None).unwrap();
        for (i, word) in sze::descriptor_list(iova, size.into(), 0, descriptors_at).into_iter().enumerate() {
            list.slots64(0, 512).unwrap().store(i as u32, word);
        }
        let host = sze::HostRx::new(ring.clone(), 0, 0, doorbell.clone(), update.clone()).unwrap();
        let rings = sze::Rings { descriptors_at, size, doorbell, update: update.clone() };
        let engine = sze::CardRx::new(rings, LIMITS, Iotlb::new(domain)).unwrap();
        Self { card: Card::Sze { engine, ring }, update, reclaimer: Reclaimer::new(Pool::Sze(host), START) }
    }

    fn calypte(ring: u32, headers: u32) -> Self {
        let words = Region::heap(128);
        let region = Region::allocate_doubled(ring as usize).unwrap();
        let headers = Region::heap(headers as usize * 8).window().slots64(0, headers).unwrap();
        let (doorbell, update) = (words.window().word64(0).unwrap(), words.window().word64(64).unwrap());
        let blocks = ring / calypte::BLOCK;
        let host = calypte::HostRx::new(blocks, headers.clone(), doorbell.clone(), update.clone()).unwrap();
        let data = region.part(0, ring as usize).unwrap();
        let rings = calypte::RxRings { data, headers: headers.clone(), doorbell, update: update.clone() };
        let engine = calypte::CardRx::new(rings, LIMITS).unwrap();
        let card = Card::Calypte { engine, headers, data: region.window().clone() };
        Self { card, update, reclaimer: Reclaimer::new(Pool::Calypte(host), START) }
    }

    fn join(&mut self, id: u32, policy: Laggard) -> Option<Program> {
        let word = Region::heap(8).window().word64(0).unwrap();
        let losses = Arc::new(Losses::default());
        if !self.reclaimer.join(id, word.clone(), policy, losses.clone()) {
            return None;
        }
        let ring = match &self.card {
            Card::Medusa { headers, .. } => {
                ReadRing::Medusa { headers: headers.clone(), update: self.update.clone(), base: START }
            }
            Card::Sze { ring, .. } => {
                ReadRing::Sze { update: self.update.clone(), size: ring.len() as u32 / 2, base: START }
            }
            Card::Calypte { headers, .. } => {
                ReadRing::Calypte { headers: headers.clone(), update: self.update.clone(), base: START }
            }
        };
        let reader = Reader::new(ring, Subscriber::new(word.clone()));
        Some(Program { reader, word, losses, policy, evicted: false, seen: 0, lost: 0, next: None })
    }

    /// As the card does: publish what there is, make room, try once more. `true` when the frame is in the ring.
    fn offer(&mut self, frame: &[u8], programs: &mut [Program]) -> bool {
        loop {
            let delivery = match &mut self.card {
                Card::Medusa { engine, .. } => engine.deliver(&[], Span::from_slice(frame)),
                Card::Sze { engine, .. } => engine.deliver(&[], Span::from_slice(frame)),
                Card::Calypte { engine, .. } => engine.deliver(&[], Span::from_slice(frame)),
            };
            match delivery.unwrap() {
                RxOutcome::Stored => return true,
                RxOutcome::NoRoom => {}
                RxOutcome::TooLong => panic!("{} bytes", frame.len()),
            }
            self.publish();
            let (moved, evicted) = self.reclaimer.reclaim();
            for id in evicted.into_iter().flatten() {
                assert_eq!(programs[id as usize].policy, Laggard::Evict);
                programs[id as usize].evicted = true;
            }
            if !moved {
                return false;
            }
        }
    }

    fn publish(&mut self) {
        let published = match &mut self.card {
            Card::Medusa { engine, .. } => engine.publish(),
            Card::Sze { engine, .. } => engine.publish(),
            Card::Calypte { engine, .. } => engine.publish(),
        };
        if published {
            self.reclaimer.mark();
        }
    }

    /// The packets that a reader holds: their bytes, and the units that each takes.
    fn held(&self, reader: &Reader) -> Vec<(Vec<u8>, u32)> {
        let first = START.distance(reader.position());
        match &self.card {
            Card::Medusa { data, buffers, .. } => (0..reader.held())
                .map(|ahead| {
                    let at = ((first + u64::from(ahead)) % buffers * 2048) as usize;
                    (data.slice(at, reader.header(ahead).len.into()).unwrap().to_vec(), 1)
                })
                .collect(),
            Card::Calypte { data, .. } => (0..reader.held())
                .map(|ahead| {
                    let header = reader.calypte_header(ahead);
                    let at = usize::from(header.at) * calypte::BLOCK as usize;
                    (data.slice(at, header.len.into()).unwrap().to_vec(), 1)
                })
                .collect(),
            Card::Sze { ring, .. } => {
                let first = (first * 8 % (ring.len() as u64 / 2)) as u32;
                let mut scanner = sze::Scanner::new(ring, first, reader.held() * 8);
                core::iter::from_fn(|| scanner.next_packet().unwrap())
                    .map(|packet| {
                        let bytes = ring.slice(packet.frame_at as usize, packet.frame_len.into()).unwrap();
                        (bytes.to_vec(), packet.stride / 8)
                    })
                    .collect()
            }
        }
    }
}

/// A subscriber, and what it has seen.
struct Program {
    reader: Reader,
    word: Word64,
    losses: Arc<Losses>,
    policy: Laggard,
    evicted: bool,
    seen: u64,
    lost: u64,
    next: Option<u32>,
}

impl Program {
    /// Reads what it holds: numbers go up, and by one unless it was told of a loss.
    fn check(&mut self, queue: &Queue, release: usize) {
        let packets = queue.held(&self.reader);
        if packets.is_empty() {
            return;
        }
        let lost = self.reader.take_lost();
        self.lost += lost;
        for (i, (bytes, _)) in packets.iter().enumerate() {
            let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            assert_eq!(bytes, &frame(number), "whole, and unchanged while it is held");
            let expected = self.next.unwrap_or(number).wrapping_add(i as u32);
            if lost > 0 {
                assert!(number >= expected && self.policy == Laggard::Drop);
                self.next = Some(number - i as u32);
            } else {
                assert_eq!(number, expected, "in order and complete");
            }
        }
        let release = release.min(packets.len());
        self.seen += release as u64;
        if let Some(next) = &mut self.next {
            *next += release as u32;
        }
        self.reader.release(packets[..release].iter().map(|(_, units)| units).sum());
    }
}

/// Frame `number`: its number, then bytes that follow from it.
fn frame(number: u32) -> Vec<u8> {
    let len = 16 + (number.wrapping_mul(0x9e37_79b9) >> 20) as usize % 600;
    let mut bytes: Vec<u8> = (0..len as u32).map(|i| (number + i) as u8).collect();
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Offer { count: u32 },
    Publish,
    Hold { who: usize, units: u32 },
    Release { who: usize, packets: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1u32..30).prop_map(|count| Step::Offer { count }),
        2 => Just(Step::Publish),
        4 => (0usize..16, 1u32..100).prop_map(|(who, units)| Step::Hold { who, units }),
        4 => (0usize..16, 1usize..100).prop_map(|(who, packets)| Step::Release { who, packets }),
    ];
    prop::collection::vec(step, 0..150)
}

fn policy() -> impl Strategy<Value = Laggard> {
    prop_oneof![Just(Laggard::Block), Just(Laggard::Drop), Just(Laggard::Evict)]
}

fn run(mut queue: Queue, policies: &[Laggard], steps: Vec<Step>) {
    let mut programs: Vec<Program> =
        policies.iter().enumerate().map(|(id, &policy)| queue.join(id as u32, policy).unwrap()).collect();
    let is_sze = matches!(queue.card, Card::Sze { .. });
    programs.iter_mut().for_each(|program| program.next = Some(0));
    let (mut offered, mut stored, mut dropped) = (0u64, 0u32, 0u64);
    let count = programs.len();
    for step in steps {
        match step {
            Step::Offer { count } => {
                for _ in 0..count {
                    offered += 1;
                    let is_stored = queue.offer(&frame(stored), &mut programs);
                    stored += u32::from(is_stored);
                    dropped += u64::from(!is_stored);
                    let blocked = programs.iter().any(|p| p.policy != Laggard::Evict || p.reader.held() > 0);
                    assert!(is_stored || blocked, "nobody is in the way");
                }
            }
            Step::Publish => queue.publish(),
            Step::Hold { who, units } => {
                let program = &mut programs[who % count];
                if program.reader.held() == 0 {
                    // Part of a packet is nothing to hold: a byte ring is taken whole.
                    let held = program.reader.hold(if is_sze { u32::MAX } else { units });
                    assert!(!program.evicted || held == 0, "thrown out");
                }
            }
            Step::Release { who, packets } => {
                let program = &mut programs[who % count];
                if !program.evicted && program.reader.held() > 0 {
                    program.check(&queue, packets);
                }
            }
        }
    }
    assert_eq!(offered, u64::from(stored) + dropped, "offered = passed + dropped");
    queue.publish();
    for program in programs.iter_mut().filter(|program| !program.evicted) {
        program.check(&queue, usize::MAX);
        while program.reader.hold(u32::MAX) > 0 {
            program.check(&queue, usize::MAX);
        }
        program.lost += program.reader.take_lost();
        assert_eq!(program.lost, program.losses.skipped(), "both sides have counted the same");
        match program.policy {
            Laggard::Drop if is_sze => assert!(program.seen <= u64::from(stored)),
            _ => assert_eq!(program.seen + program.lost, u64::from(stored), "published = read + skipped"),
        }
        assert!(program.lost == 0 || program.policy == Laggard::Drop);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn medusa_keeps_order_for_every_reader(
        ring in 2u32..7,
        headers in 1u32..7,
        buffers in 0u32..7,
        policies in prop::collection::vec(policy(), 1..=16),
        steps in steps(),
    ) {
        run(Queue::medusa(1 << ring, 1 << headers, 1 << buffers), &policies, steps);
    }

    #[test]
    fn calypte_keeps_order_for_every_reader(
        pages in 0u32..3,
        headers in 1u32..8,
        policies in prop::collection::vec(policy(), 1..=16),
        steps in steps(),
    ) {
        run(Queue::calypte(4096 << pages, 1 << headers), &policies, steps);
    }

    #[test]
    fn sze_keeps_order_for_every_reader(
        size in 12u32..15,
        policies in prop::collection::vec(policy(), 1..=16),
        steps in steps(),
    ) {
        run(Queue::sze(1 << size), &policies, steps);
    }
}

#[test]
fn the_seventeenth_subscriber_is_refused() {
    let mut queue = Queue::medusa(64, 64, 32);
    for id in 0..16 {
        assert!(queue.join(id, Laggard::Block).is_some());
    }
    assert!(queue.join(16, Laggard::Block).is_none());
    queue.reclaimer.leave(3);
    assert_eq!(queue.reclaimer.subscribers(), 15);
    assert!(queue.join(16, Laggard::Block).is_some());
}

#[test]
fn a_cursor_that_makes_no_sense_costs_its_owner_the_queue_and_nobody_else() {
    for word in [0, START.plus(1000).get(), u64::MAX, START.get() | 9 << 40] {
        let mut queue = Queue::medusa(16, 16, 8);
        let mut honest = queue.join(0, Laggard::Block).unwrap();
        let liar = queue.join(1, Laggard::Block).unwrap();
        honest.next = Some(0);
        for number in 0..8 {
            assert!(queue.offer(&frame(number), &mut []));
        }
        queue.publish();
        honest.reader.hold(8);
        honest.check(&queue, 8);
        liar.word.store(word, Ordering::Release);
        let (moved, evicted) = queue.reclaimer.reclaim();
        assert_eq!((moved, evicted[0], evicted[1]), (true, Some(1), None), "{word:#x}");
        assert_eq!(queue.reclaimer.subscribers(), 1);
    }
}

#[test]
fn who_blocks_is_waited_for_and_who_holds_is_not_skipped() {
    let mut queue = Queue::medusa(16, 16, 4);
    let mut programs = [queue.join(0, Laggard::Drop).unwrap(), queue.join(1, Laggard::Block).unwrap()];
    programs.iter_mut().for_each(|program| program.next = Some(0));
    for number in 0..4 {
        assert!(queue.offer(&frame(number), &mut programs));
    }
    assert!(!queue.offer(&frame(4), &mut programs), "the second one blocks");
    assert_eq!(programs[1].reader.hold(4), 4);
    programs[1].check(&queue, 4);
    assert_eq!(programs[0].reader.hold(4), 0, "it was moved on while the other one blocked");
    assert_eq!((programs[0].losses.skipped(), programs[0].reader.take_lost()), (4, 4));
    assert!(queue.offer(&frame(4), &mut programs));
    queue.publish();
    programs[0].next = None;
    assert_eq!(programs[0].reader.hold(1), 1);
    for number in 5..8 {
        assert!(queue.offer(&frame(number), &mut programs));
    }
    queue.publish();
    assert_eq!(programs[1].reader.hold(4), 4);
    programs[1].check(&queue, 4);
    assert!(!queue.offer(&frame(8), &mut programs), "the first one holds the oldest");
    programs[0].check(&queue, 1);
    assert!(queue.offer(&frame(8), &mut programs));
}
