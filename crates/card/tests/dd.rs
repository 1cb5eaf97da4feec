//! DD by registers and memory alone (`docs/spec/dd.md`).

use millrace_abi::control::{DOORBELL_AT, FaultKind, PAGE_SIZE, QueueState};
use millrace_abi::name::DeviceName;
use millrace_abi::queue::QueueId;
use millrace_abi::register::map::dma_base;
use millrace_abi::register::{Offset, dd as d};
use millrace_card::{Attachment, Card, StartError};
use millrace_dma::{Access, Domain, Iova, Region};
use millrace_ring::dd::{DESCRIPTOR, Frame, HORIZON, HostRx, HostTx, Outcome, Ring};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ENTRIES: u32 = 64;
/// Where buffers begin in the memory of the software; the ring lies at 0.
const DATA: u64 = 0x1_0000;
const LEN: usize = 0x10_0000;

fn card(options: &str) -> Card {
    match format!("embedded:engine=dd,{options}").parse() {
        Ok(DeviceName::Embedded(options)) => Card::new(&options).unwrap(),
        other => panic!("{options}: {other:?}"),
    }
}

/// A queue, its registers, and the memory of software that drives it.
struct Bench<'c> {
    card: &'c Card,
    id: QueueId,
    memory: Region,
    control: Region,
    at: Iova,
}

impl<'c> Bench<'c> {
    fn new(card: &'c Card, id: QueueId) -> Self {
        let (memory, control, domain) = (Region::heap(LEN), Region::heap(PAGE_SIZE), Arc::new(Domain::new()));
        let at = domain.map(memory.window().clone(), Access::ReadWrite, None).unwrap();
        let page = control.window().clone();
        let attachment =
            Attachment { domain, control: page, reclaimer: None, openers: Vec::new(), buffers: None, is_noted: false };
        card.attach(id, attachment).unwrap();
        Self { card, id, memory, control, at }
    }

    fn started(card: &'c Card, id: QueueId) -> Self {
        let bench = Self::new(card, id);
        assert_eq!(bench.start(), None);
        assert!(bench.is_running());
        bench
    }

    fn write32(&self, register: Offset, value: u32) {
        self.card.write(register.at(dma_base(self.id).unwrap()), &value.to_le_bytes());
    }

    fn write64(&self, register: Offset, value: u64) {
        self.card.write(register.at(dma_base(self.id).unwrap()), &value.to_le_bytes());
    }

    fn read32(&self, register: Offset) -> u32 {
        let mut bytes = [0; 4];
        self.card.read(register.at(dma_base(self.id).unwrap()), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn start(&self) -> Option<StartError> {
        self.ring().clear();
        self.write64(d::BASE, self.at.get());
        self.write32(d::SIZE, ENTRIES - 1);
        self.write32(d::TAIL, 0);
        self.write32(d::CONTROL, 1);
        self.card.refusal(self.id)
    }

    fn is_running(&self) -> bool {
        self.read32(d::STATUS) & 1 != 0
    }

    fn ring(&self) -> Ring {
        let words = ENTRIES * DESCRIPTOR as u32 / 8;
        Ring::new(self.memory.window().slots64(0, words).unwrap()).unwrap()
    }

    fn tx(&self) -> HostTx {
        HostTx::new(self.ring(), self.control.window().word64(DOORBELL_AT).unwrap())
    }

    fn rx(&self) -> HostRx {
        HostRx::new(self.ring(), self.control.window().word64(DOORBELL_AT).unwrap())
    }

    fn buffer(&self, number: u32) -> Iova {
        self.at.plus(DATA + u64::from(number % ENTRIES) * 2048)
    }

    fn bytes(&self, number: u32, len: usize) -> Vec<u8> {
        let at = DATA as usize + (number % ENTRIES) as usize * 2048;
        self.memory.window().slice(at, len).unwrap().to_vec()
    }

    /// Sends a frame and rings through the register, which also wakes a worker that sleeps.
    fn send(&self, host: &mut HostTx, number: u32, frame: &[u8], launch: u64) {
        let at = DATA as usize + (number % ENTRIES) as usize * 2048;
        self.memory.window().span_mut(at, frame.len()).unwrap().write_from(frame);
        let frame = Frame { iova: self.buffer(number), len: frame.len() as u16, launch, cookie: number.into() };
        assert!(host.post(frame) && host.flush());
        self.write32(d::TAIL, host.posted() % ENTRIES);
    }

    fn wait_until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{}: {what} did not come", self.id);
            std::thread::yield_now();
        }
    }

    fn drops(&self) -> Vec<(String, u64)> {
        let queue = self.card.stats().queues.into_iter().find(|queue| queue.queue == self.id).unwrap();
        queue.drops.into_iter().map(|drop| (drop.reason, drop.count)).collect()
    }
}

fn frame(number: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (number.wrapping_mul(0x9e37_79b9).wrapping_add(i * 31) >> 7) as u8).collect()
}

/// The card's clock, which goes from 0 when nobody has set it.
fn card_time(card: &Card) -> u64 {
    use millrace_abi::register::map::Component;
    use millrace_abi::register::tsu as t;
    let base = Component::Tsu.base().unwrap();
    let read = |register: Offset| {
        let mut bytes = [0; 4];
        card.read(register.at(base), &mut bytes);
        u64::from(u32::from_le_bytes(bytes))
    };
    card.write(t::COMMAND.at(base), &t::COMMAND_READ_TIME.to_le_bytes());
    let fraction = u128::from(read(t::DATA_LOW) | read(t::DATA_MIDDLE) << 32);
    read(t::DATA_HIGH) * 1_000_000_000 + ((fraction * 1_000_000_000) >> 64) as u64
}

#[test]
fn frames_come_back_and_so_do_their_descriptors() {
    let card = card("queues=2,spin=0");
    let (rx, tx) = (Bench::started(&card, QueueId::rx(1)), Bench::started(&card, QueueId::tx(1)));
    let (mut to, mut from) = (tx.tx(), rx.rx());
    (0..ENTRIES).for_each(|number| assert!(from.post(rx.buffer(number), 2048, number.into())));
    for number in 0..1000 {
        let bytes = frame(number, 60 + number as usize * 37 % 1400);
        tx.send(&mut to, number, &bytes, 0);
        rx.wait_until("a frame", || from.ready(1) == 1);
        let received = from.received(0);
        assert_eq!((received.iova, received.cookie), (rx.buffer(number), u64::from(number % ENTRIES)));
        assert!(rx.bytes(number, received.len.into()) == bytes, "frame {number}");
        from.release(1);
        assert!(from.post(rx.buffer(number), 2048, (number % ENTRIES).into()));
        tx.wait_until("the descriptor", || to.reclaim() == 1);
        assert_eq!(to.outcome(0), Some(Outcome::Passed));
    }
    let after = 1000 % ENTRIES;
    tx.wait_until("the head", || (tx.read32(d::HEAD), tx.read32(d::DONE)) == (after, after));
    rx.wait_until("the head", || (rx.read32(d::HEAD), rx.read32(d::DONE)) == (after, after));
    assert_eq!(tx.read32(d::TAIL), after);
    tx.write32(d::COUNTER_COMMAND, 1);
    rx.write32(d::COUNTER_COMMAND, 1);
    assert_eq!((tx.read32(d::PASSED_FRAMES), rx.read32(d::PASSED_FRAMES)), (1000, 1000));
}

#[test]
fn a_start_that_cannot_be_is_refused_with_the_reason() {
    let card = card("queues=1,spin=0");
    for id in [QueueId::rx(0), QueueId::tx(0)] {
        let bench = Bench::started(&card, id);
        assert_eq!(bench.start(), Some(StartError::Running(id)));
        bench.write32(d::CONTROL, 0);
        bench.write32(d::SIZE, u32::MAX);
        assert_eq!(bench.read32(d::SIZE), 0xffff, "the limit can be probed");
        bench.write32(d::SIZE, ENTRIES - 1);
        let again = |register: Offset, value: u64| {
            bench.write64(register, value);
            bench.write32(d::CONTROL, 1);
            card.refusal(id)
        };
        let at = bench.at.get();
        assert_eq!(again(d::BASE, at + 32), Some(StartError::Unaligned(Iova::new(at + 32))));
        assert!(matches!(again(d::BASE, at + LEN as u64 - 64), Some(StartError::Unmapped(_))));
        bench.write64(d::BASE, at);
        for entries in [0, 1, 3, 100, 1 << 16] {
            bench.write32(d::SIZE, entries - u32::from(entries > 0));
            bench.write32(d::CONTROL, 1);
            let refused = u64::from(entries.max(1));
            assert_eq!(card.refusal(id), Some(StartError::Size(refused)), "{entries}");
        }
        bench.write32(d::SIZE, ENTRIES - 1);
        bench.write32(d::CONTROL, 1);
        assert_eq!(card.refusal(id), None);
    }
}

#[test]
fn what_a_card_refuses_to_send_is_counted_by_reason() {
    let card = card("queues=1,spin=0");
    let (_rx, tx) = (Bench::started(&card, QueueId::rx(0)), Bench::started(&card, QueueId::tx(0)));
    let mut to = tx.tx();
    let far = card_time(&card) + 2 * HORIZON;
    for (number, len, launch) in [(0, 59, 0), (1, 0, 0), (2, 60, far), (3, 60, u64::MAX), (4, 59, far)] {
        tx.send(&mut to, number, &vec![0; len], launch);
    }
    let mut back = 0;
    tx.wait_until("the descriptors", || {
        back += to.reclaim();
        back == 5
    });
    let outcomes: Vec<_> = (0..5).rev().map(|ago| to.outcome(ago).unwrap()).collect();
    use Outcome::{TooFar, TooShort};
    assert_eq!(outcomes, [TooShort, TooShort, TooFar, TooFar, TooShort]);
    tx.wait_until("the counters", || tx.drops() == [("too-short".into(), 3), ("launch-too-far".into(), 2)]);
}

#[test]
fn a_worker_that_sleeps_gets_up_for_a_launch_time() {
    let card = card("queues=1,spin=0");
    let (rx, tx) = (Bench::started(&card, QueueId::rx(0)), Bench::started(&card, QueueId::tx(0)));
    let (mut to, mut from) = (tx.tx(), rx.rx());
    (0..ENTRIES).for_each(|number| assert!(from.post(rx.buffer(number), 2048, 0)));
    for number in 0..20 {
        let launch = card_time(&card) + 5_000_000;
        tx.send(&mut to, 2 * number, &frame(number, 60), launch);
        tx.send(&mut to, 2 * number + 1, &frame(number, 61), 0);
        rx.wait_until("the frame", || {
            let count = from.ready(2);
            assert!(count == 0 || card_time(&card) >= launch, "launched before its time");
            count == 2
        });
        assert_eq!((from.received(0).len, from.received(1).len), (60, 61), "in order");
        from.release(2);
        (0..2).for_each(|_| assert!(from.post(rx.buffer(0), 2048, 0)));
        while to.reclaim() > 0 {}
    }
    assert!(card.stats().workers.iter().any(|worker| worker.sleeps > 0), "nobody slept");
}

#[test]
fn a_worker_that_sleeps_gets_up_when_the_clock_is_set_forward() {
    use millrace_abi::register::map::Component;
    use millrace_abi::register::tsu as t;
    let card = card("queues=1,spin=0");
    let (rx, tx) = (Bench::started(&card, QueueId::rx(0)), Bench::started(&card, QueueId::tx(0)));
    let (mut to, from) = (tx.tx(), rx.rx());
    let mut from = from;
    assert!(from.post(rx.buffer(0), 2048, 0));
    tx.send(&mut to, 0, &frame(0, 60), card_time(&card) + HORIZON - HORIZON / 20);
    let sleeps = || card.stats().workers.iter().map(|worker| worker.sleeps).sum::<u64>();
    let before = sleeps();
    tx.wait_until("its sleep", || sleeps() > before);
    let (begin, base) = (Instant::now(), Component::Tsu.base().unwrap());
    let seconds = card_time(&card) / 1_000_000_000;
    card.write(t::DATA_HIGH.at(base), &(seconds as u32 + 2).to_le_bytes());
    card.write(t::COMMAND.at(base), &t::COMMAND_WRITE_TIME.to_le_bytes());
    rx.wait_until("the frame", || from.ready(1) == 1);
    assert!(begin.elapsed() < Duration::from_millis(600), "it slept on: {:?}", begin.elapsed());
}

#[test]
fn stopping_waits_for_a_launch_time_and_halting_does_not() {
    let card = card("queues=1,spin=0");
    let (rx, tx) = (Bench::started(&card, QueueId::rx(0)), Bench::started(&card, QueueId::tx(0)));
    let mut from = rx.rx();
    assert!(from.post(rx.buffer(0), 2048, 0));
    tx.send(&mut tx.tx(), 0, &frame(0, 60), card_time(&card) + 100_000_000);
    tx.write32(d::CONTROL, 0);
    assert!(tx.is_running(), "a frame waits");
    tx.wait_until("the end", || !tx.is_running());
    assert_eq!(from.ready(1), 1);
    assert_eq!(tx.start(), None);
    tx.send(&mut tx.tx(), 0, &frame(0, 60), card_time(&card) + HORIZON / 2);
    card.detach(tx.id);
    assert_eq!(card.state(tx.id), Some(QueueState::Stopped));
}

#[test]
fn a_fault_stops_the_queue_until_it_is_started_again() {
    let card = card("queues=1,spin=0");
    let (rx, tx) = (Bench::started(&card, QueueId::rx(0)), Bench::started(&card, QueueId::tx(0)));
    let mut from = rx.rx();
    assert!(from.post(rx.buffer(0), 2048, 0) && from.post(Iova::new(0x1234), 2048, 0));
    let mut to = tx.tx();
    tx.send(&mut to, 0, &frame(0, 60), 0);
    tx.send(&mut to, 1, &frame(1, 60), 0);
    let unmapped = QueueState::Faulted(FaultKind::Unmapped);
    rx.wait_until("the fault", || card.state(rx.id) == Some(unmapped));
    assert_eq!(from.ready(9), 1, "what was there before is");
    let reserved = tx.memory.window().slots64(0, ENTRIES * 4).unwrap();
    reserved.store_release(2 * 4 + 1, 60 | 1 << 40);
    tx.write32(d::TAIL, 3);
    tx.wait_until("the fault", || card.state(tx.id) == Some(QueueState::Faulted(FaultKind::ReservedDescriptor)));
    let stats = card.stats().queues;
    let fault = |id| stats.iter().find(|queue| queue.queue == id).unwrap().fault_iova;
    assert_eq!((fault(rx.id), fault(tx.id)), (Some(0x1234), Some(tx.at.get() + 2 * DESCRIPTOR as u64)));
    assert_eq!((rx.start(), tx.start()), (None, None));
    let mut from = rx.rx();
    assert!(from.post(rx.buffer(0), 2048, 0));
    tx.send(&mut tx.tx(), 0, &frame(7, 60), 0);
    rx.wait_until("the frame", || from.ready(9) == 1);
}
