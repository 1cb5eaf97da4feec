//! Calypte by registers and memory alone, as the vendor's software drives it (`docs/spec/nfb-card.md` §3.2.2, §3.2.3, §3.2.5).

use millrace_abi::control::{FaultKind, PAGE_SIZE, QueueState};
use millrace_abi::name::DeviceName;
use millrace_abi::queue::QueueId;
use millrace_abi::register::map::{Component, dma_base};
use millrace_abi::register::{Offset, calypte as c};
use millrace_card::{Attachment, Card, StartError};
use millrace_dma::{Access, Domain, Iova, Ordering, Region, Slots64};
use millrace_ring::calypte::{Header, Pointers};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCKS: u32 = 256;
const HEADERS: u32 = 64;
// Where things lie in the memory of the software.
const HEADERS_AT: usize = 0x1_0000;
const UPDATE_AT: usize = 0x2_0000;

fn card(options: &str) -> Card {
    match format!("embedded:engine=calypte,{options}").parse() {
        Ok(DeviceName::Embedded(options)) => Card::new(&options).unwrap(),
        other => panic!("{options}: {other:?}"),
    }
}

/// A queue, its registers, and the memory of software that drives it.
struct Bench<'c> {
    card: &'c Card,
    id: QueueId,
    memory: Region,
    at: Iova,
}

impl<'c> Bench<'c> {
    fn new(card: &'c Card, id: QueueId) -> Self {
        let (memory, control, domain) = (Region::heap(1 << 20), Region::heap(PAGE_SIZE), Arc::new(Domain::new()));
        let at = domain.map(memory.window().clone(), Access::ReadWrite, None).unwrap();
        let control = control.window().clone();
        let attachment =
            Attachment { domain, control, reclaimer: None, openers: Vec::new(), buffers: None, is_noted: false };
        card.attach(id, attachment).unwrap();
        Self { card, id, memory, at }
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

    /// The steps of §3.2.2.
    fn start(&self) -> Option<StartError> {
        self.memory.window().word64(UPDATE_AT).unwrap().store(0, Ordering::Relaxed);
        if self.id == QueueId::rx(self.id.index) {
            self.write64(c::DATA_BASE, self.at.get());
        }
        self.write64(c::UPDATE_BASE, self.at.plus(UPDATE_AT as u64).get());
        if self.id == QueueId::rx(self.id.index) {
            self.write64(c::HDR_BASE, self.at.plus(HEADERS_AT as u64).get());
            self.write32(c::MDP, BLOCKS - 1);
            self.write32(c::MHP, HEADERS - 1);
            (0..HEADERS).for_each(|slot| self.headers().store(slot, 0));
        }
        self.write64(c::SDP, 0);
        self.write32(c::EXPER, 0);
        self.write32(c::TIMEOUT, 0x800);
        self.write32(c::CONTROL, 1);
        self.card.refusal(self.id)
    }

    fn is_running(&self) -> bool {
        self.read32(c::STATUS) & 1 != 0
    }

    fn headers(&self) -> Slots64 {
        self.memory.window().slots64(HEADERS_AT, HEADERS).unwrap()
    }

    fn told(&self) -> Pointers {
        Pointers::decode(self.memory.window().word64(UPDATE_AT).unwrap().load(Ordering::Acquire))
    }

    fn wait_until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{}: {what} did not come", self.id);
            std::thread::yield_now();
        }
    }
}

fn frame(number: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (number.wrapping_mul(0x9e37_79b9).wrapping_add(i * 31) >> 7) as u8).collect()
}

/// Software of a TX queue that knows only the two components of the second bus.
struct Sender {
    sdp: u32,
    shp: u32,
}

impl Sender {
    fn send(&mut self, bench: &Bench<'_>, bytes: &[u8]) {
        let index = bench.id.index;
        let (data, headers) = (Component::TxData(index).base().unwrap(), Component::TxHeaders(index).base().unwrap());
        bench.card.write(data + self.sdp, bytes);
        let word = Header { len: bytes.len() as u16, at: self.sdp as u16, ..Header::default() }.encode(false);
        let at = headers + self.shp * 8;
        if self.shp.is_multiple_of(2) {
            bench.card.write(at, &word.to_le_bytes());
        } else {
            bench.card.write(at, &(word as u32).to_le_bytes());
            bench.card.write(at + 4, &((word >> 32) as u32).to_le_bytes());
        }
        self.sdp = (self.sdp + (bytes.len() as u32).next_multiple_of(32)) & (c::TX_RING - 1);
        self.shp = (self.shp + 1) & (c::TX_HEADERS - 1);
    }
}

#[test]
fn frames_written_to_the_device_come_back_through_blocks() {
    let card = card("queues=2,spin=0");
    let (rx, tx) = (Bench::new(&card, QueueId::rx(1)), Bench::new(&card, QueueId::tx(1)));
    assert_eq!((rx.start(), tx.start()), (None, None));
    assert!(rx.is_running() && tx.is_running());
    let mut sender = Sender { sdp: 0, shp: 0 };
    let (mut sdp, mut shp) = (0, 0);
    // More than two laps of the TX headers, more than a hundred of the RX headers.
    for number in 0..5000u32 {
        let bytes = frame(number, 60 + number as usize * 37 % 1400);
        sender.send(&tx, &bytes);
        let valid = (number / HEADERS).is_multiple_of(2);
        let headers = rx.headers();
        rx.wait_until("a header", || Header::valid_bit(headers.load_acquire(number)) == valid);
        let header = Header::decode(headers.load(number));
        assert_eq!((header.len as usize, u32::from(header.at), header.header_len), (bytes.len(), sdp, 0));
        let at = (sdp * c::RX_BLOCK) as usize;
        let got: Vec<u8> = (0..bytes.len())
            .map(|i| (at + i) % (BLOCKS * c::RX_BLOCK) as usize)
            .map(|i| rx.memory.window().slice(i, 1).unwrap()[0])
            .collect();
        assert!(got == bytes, "frame {number}");
        sdp = (sdp + header.blocks()) % BLOCKS;
        shp = (shp + 1) % HEADERS;
        if number % 3 == 0 {
            rx.write64(c::SDP, u64::from(sdp) | u64::from(shp) << 32);
        } else {
            rx.write32(c::SDP, sdp);
            rx.write32(c::SHP, shp);
        }
    }
    assert_eq!((rx.read32(c::SDP), rx.read32(c::SHP)), (sdp, shp));
    tx.wait_until("the last pointers", || tx.told() == Pointers { data: sender.sdp, headers: sender.shp });
    rx.wait_until("the last pointers", || rx.told() == Pointers { data: sdp, headers: shp });
    rx.wait_until("the pointer registers", || (rx.read32(c::HDP), rx.read32(c::HHP)) == (sdp, shp));
    tx.write32(c::COUNTER_COMMAND, 1);
    rx.write32(c::COUNTER_COMMAND, 1);
    assert_eq!((tx.read32(c::PASSED_FRAMES), rx.read32(c::PASSED_FRAMES)), (5000, 5000));
}

#[test]
fn masks_of_the_devices_buffers_are_its_own_and_those_of_rx_can_be_probed() {
    let card = card("queues=1,spin=0");
    for (id, probed, after) in [
        (QueueId::tx(0), (0xffff, 0x7ff), (0xffff, 0x7ff)),
        (QueueId::rx(0), (0xffff, 0xffff), (BLOCKS - 1, HEADERS - 1)),
    ] {
        let bench = Bench::new(&card, id);
        bench.write64(c::MDP, u64::MAX);
        assert_eq!((bench.read32(c::MDP), bench.read32(c::MHP)), probed, "{id}");
        bench.write32(c::MDP, BLOCKS - 1);
        bench.write32(c::MHP, HEADERS - 1);
        assert_eq!((bench.read32(c::MDP), bench.read32(c::MHP)), after, "{id}");
    }
}

#[test]
fn a_start_that_cannot_be_is_refused_with_the_reason() {
    let card = card("queues=1,spin=0");
    let bench = Bench::new(&card, QueueId::rx(0));
    assert_eq!(bench.start(), None);
    assert_eq!(bench.start(), Some(StartError::Running(bench.id)));
    bench.write32(c::CONTROL, 0);
    let again = |register: Offset, value: u64| {
        bench.write64(register, value);
        bench.write32(c::CONTROL, 1);
        card.refusal(bench.id)
    };
    let at = bench.at.get();
    assert_eq!(again(c::DATA_BASE, at + 64), Some(StartError::Unaligned(Iova::new(at + 64))));
    assert!(matches!(again(c::DATA_BASE, at + (1 << 20) - 128), Some(StartError::Unmapped(_))));
    assert_eq!(again(c::DATA_BASE, at), None);
    bench.write32(c::CONTROL, 0);
    assert_eq!(again(c::HDR_BASE, at + 4), Some(StartError::Unaligned(Iova::new(at + 4))));
    assert_eq!(again(c::MDP, u64::MAX), Some(StartError::Size(1 << 32)));
    assert_eq!(again(c::MDP, 99), Some(StartError::Size(100)));
    let tx = Bench::new(&card, QueueId::tx(0));
    tx.write64(c::UPDATE_BASE, tx.at.get() + 4);
    tx.write32(c::CONTROL, 1);
    assert_eq!(card.refusal(tx.id), Some(StartError::Unaligned(tx.at.plus(4))));
}

#[test]
fn stopping_drains_what_was_sent_and_forgets_what_is_received() {
    let card = card("queues=1,spin=0");
    let (rx, tx) = (Bench::new(&card, QueueId::rx(0)), Bench::new(&card, QueueId::tx(0)));
    for _ in 0..3 {
        assert_eq!((rx.start(), tx.start()), (None, None));
        let mut sender = Sender { sdp: 0, shp: 0 };
        // More than RX has headers for: the last ones stay in the TX ring, and so it does not stop.
        for number in 0..HEADERS + 9 {
            sender.send(&tx, &frame(number, 60));
        }
        rx.wait_until("a full ring", || rx.told().headers == HEADERS - 1);
        tx.write32(c::CONTROL, 0);
        assert!(tx.is_running());
        rx.write64(c::SDP, u64::from(HEADERS - 1) | u64::from(HEADERS - 1) << 32);
        tx.wait_until("the end", || !tx.is_running());
        assert_eq!(tx.told(), Pointers { data: sender.sdp, headers: sender.shp });
        rx.write32(c::CONTROL, 0);
        let told = rx.told();
        rx.write32(c::SDP, told.data);
        rx.write32(c::SHP, told.headers);
        assert!(!rx.is_running());
        assert_eq!(told.headers, 9);
    }
}

#[test]
fn an_impossible_header_stops_the_queue_until_it_is_started_again() {
    let card = card("queues=1,spin=0");
    let (rx, tx) = (Bench::new(&card, QueueId::rx(0)), Bench::new(&card, QueueId::tx(0)));
    assert_eq!((rx.start(), tx.start()), (None, None));
    let mut sender = Sender { sdp: 0, shp: 0 };
    sender.send(&tx, &frame(0, 60));
    sender.sdp += 1;
    sender.send(&tx, &frame(1, 60));
    let fault = QueueState::Faulted(FaultKind::BadHeader);
    tx.wait_until("the fault", || card.state(tx.id) == Some(fault));
    let stats = card.stats().queues.into_iter().find(|queue| queue.queue == tx.id).unwrap();
    assert_eq!((stats.fault_iova, stats.passed), (Some(8), 1));
    assert_eq!(tx.start(), None);
    sender = Sender { sdp: 0, shp: 0 };
    sender.send(&tx, &frame(2, 60));
    rx.wait_until("the frame", || rx.told().headers == 2);
}

#[test]
fn the_buffers_answer_nobody_and_end_where_they_end() {
    let card = card("queues=2,spin=0");
    let (rx, tx) = (Bench::new(&card, QueueId::rx(0)), Bench::new(&card, QueueId::tx(0)));
    let (data, headers) = (Component::TxData(0).base().unwrap(), Component::TxHeaders(0).base().unwrap());
    card.write(data, &[0x77; 64]);
    card.write(Component::TxData(1).base().unwrap(), &[0x77; 64]);
    assert_eq!((rx.start(), tx.start()), (None, None));
    for at in [data, headers, Component::TxData(1).base().unwrap()] {
        let mut bytes = [0xee; 64];
        card.read(at, &mut bytes);
        assert_eq!(bytes, [0; 64]);
    }
    // Neither whole words nor inside, so nothing is sent; queues that do not exist swallow everything.
    let word = Header { len: 60, at: 0, ..Header::default() }.encode(true).to_le_bytes();
    card.write(headers + 1, &word);
    card.write(headers, &word[..7]);
    card.write(headers + 2 * 8 * c::TX_HEADERS - 4, &[0xff; 64]);
    card.write(Component::TxData(0).base().unwrap() + 2 * c::TX_RING - 8, &[0xff; 64]);
    card.write(Component::TxHeaders(77).base().unwrap(), &word);
    card.write(Component::TxData(77).base().unwrap(), &word);
    card.write(u32::MAX - 3, &word);
    // The second half of the data component is the first once more.
    card.write(data + c::TX_RING + 128, &frame(5, 60));
    let word = Header { len: 60, at: 128, ..Header::default() }.encode(false);
    card.write(headers, &word.to_le_bytes());
    rx.wait_until("the frame", || rx.told().headers == 1);
    assert_eq!(rx.memory.window().slice(0, 60).unwrap(), frame(5, 60));
}
