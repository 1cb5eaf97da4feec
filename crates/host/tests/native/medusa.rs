//! Medusa queues (§3.2): how a driver works one, and what it may count on.

use super::controller::{Controller, Memory, NotStarted, device, stats_of, wait_for_count};
use crate::common::{self, PATIENCE, check, check_equations, dropped, fill, receive_all, send_all, settled};
use millrace::stats::CardStats;
use millrace::{Device, Mode, QueueId, Sharing};
use millrace_abi::control::QueueState;
use millrace_abi::queue::Direction;
use millrace_abi::register::medusa as m;
use millrace_dma::{Iova, Ordering};
use millrace_ring::medusa::{Buffer, Descriptor, RxHeader};
use std::time::{Duration, Instant};

/// A Medusa queue.
///
/// ```text
/// 0x00000 descriptors   0x40000 headers   0x60000 update word   0x80000 buffers, 2 KiB each
/// ```
pub struct Medusa<'d> {
    pub controller: Controller<'d>,
    pub memory: Memory,
    pub entries: u32,
    pub upper: Option<u64>,
    pub sdp: u32,
    pub shp: u32,
    // Buffers posted and taken.
    pub posted: u64,
    pub taken: u64,
}

pub const HEADERS: u64 = 0x4_0000;
pub const UPDATE: u64 = 0x6_0000;
pub const BUFFERS: u64 = 0x8_0000;
pub const BUFFER: u64 = 2048;

impl<'d> Medusa<'d> {
    pub fn prepared(device: &'d Device, id: QueueId, entries: u32) -> Self {
        let memory = Memory::new((BUFFERS + u64::from(entries) * BUFFER) as usize);
        let controller = Controller::new(device, id);
        Self { controller, memory, entries, upper: None, sdp: 0, shp: 0, posted: 0, taken: 0 }
    }

    pub fn start(device: &'d Device, id: QueueId, entries: u32) -> Result<Self, NotStarted> {
        let mut queue = Self::prepared(device, id, entries);
        queue.start_again().map(|()| queue)
    }

    /// §3.2.2.
    pub fn start_again(&mut self) -> Result<(), NotStarted> {
        let controller = &self.controller;
        controller.lock()?;
        self.memory.word64(UPDATE).store(0, Ordering::Relaxed);
        (self.upper, self.sdp, self.shp, self.posted, self.taken) = (None, 0, 0, 0, 0);
        let refused = |why| {
            controller.unlock();
            Err(why)
        };
        if controller.is_running() {
            return refused(NotStarted::Already);
        }
        controller.write64(m::DESC_BASE, self.memory.at);
        controller.write64(m::UPDATE_BASE, self.memory.at + UPDATE);
        controller.write64(m::HDR_BASE, self.memory.at + HEADERS);
        controller.write64(m::MDP, u64::MAX);
        let most = controller.read64(m::MDP);
        if self.entries - 1 > m::largest_mask(most as u32) || self.entries - 1 > m::largest_mask((most >> 32) as u32) {
            return refused(NotStarted::TooMany);
        }
        controller.write32(m::MDP, self.entries - 1);
        // A TX driver has no headers, and writes 0 - 1.
        let is_rx = controller.id.direction == Direction::Rx;
        controller.write32(m::MHP, if is_rx { self.entries - 1 } else { u32::MAX });
        controller.write64(m::SDP, 0);
        controller.write32(m::EXPER, 0);
        // What stood on the stack.
        controller.write32(m::TIMEOUT, 0xdead_beef);
        controller.write32(m::CONTROL, m::CONTROL_START);
        if controller.is_running() { Ok(()) } else { refused(NotStarted::Refused) }
    }

    /// §3.2.3. `false`: try again.
    pub fn try_stop(&self) -> bool {
        self.controller.write32(m::CONTROL, m::CONTROL_STOP);
        let drained = self.controller.id.direction == Direction::Rx || self.hdp() == self.sdp;
        let stopped = drained && self.controller.has_stopped();
        if stopped {
            self.controller.unlock();
        }
        stopped
    }

    pub fn stop(self) {
        let begin = Instant::now();
        while !self.try_stop() {
            assert!(begin.elapsed() < PATIENCE, "{} does not stop", self.controller.id);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.controller.stats().state, QueueState::Stopped);
    }

    pub fn pointers(&self) -> u64 {
        self.memory.word64(UPDATE).load(Ordering::Acquire)
    }

    pub fn hdp(&self) -> u32 {
        self.pointers() as u32
    }

    pub fn free(&self) -> u32 {
        self.hdp().wrapping_sub(self.sdp).wrapping_sub(1) & (self.entries - 1)
    }

    pub fn put(&mut self, descriptor: Descriptor) {
        self.memory.word64(u64::from(self.sdp) * 8).store(descriptor.encode(), Ordering::Relaxed);
        self.sdp = (self.sdp + 1) & (self.entries - 1);
    }

    /// Posts a buffer anywhere in this process; with a descriptor of type 0 before it when the upper address changes.
    pub fn post_at(&mut self, address: u64, len: u16) {
        if self.upper.replace(address >> 30) != Some(address >> 30) {
            self.put(Descriptor::Upper(address >> 30));
        }
        self.put(Descriptor::Buffer(Buffer::whole(Iova::new(address), len)));
    }

    pub fn slot(&self, number: u64) -> u64 {
        BUFFERS + number % u64::from(self.entries) * BUFFER
    }

    /// Posts the next buffer if there is room.
    pub fn post(&mut self, len: u16) -> bool {
        let room = self.free() >= 2;
        if room {
            self.post_at(self.memory.at + self.slot(self.posted), len);
            self.posted += 1;
        }
        room
    }

    pub fn post_all(&mut self) {
        while self.post(BUFFER as u16) {}
        self.ring();
    }

    pub fn send(&mut self, number: u64, len: usize) -> bool {
        let mut frame = vec![0; len];
        fill(&mut frame, number);
        if self.free() < 2 {
            return false;
        }
        self.memory.write(self.slot(self.posted), &frame);
        assert!(self.post(len as u16));
        true
    }

    /// Both pointers at once.
    pub fn ring(&self) {
        self.controller.write64(m::SDP, u64::from(self.sdp) | u64::from(self.shp) << 32);
    }

    /// Length and header of the next frame, if it is there.
    pub fn next_header(&mut self) -> Option<RxHeader> {
        let hhp = (self.pointers() >> 32) as u32;
        if hhp == self.shp {
            return None;
        }
        let header = RxHeader::decode(self.memory.load32(HEADERS + u64::from(self.shp) * 4));
        self.shp = (self.shp + 1) & (self.entries - 1);
        Some(header)
    }

    /// Takes the next frame; its number.
    pub fn take(&mut self) -> Option<(u64, RxHeader)> {
        let header = self.next_header()?;
        let frame = self.memory.read(self.slot(self.taken), header.len.into());
        self.taken += 1;
        Some((check(&frame), header))
    }
}

/// Sends and receives frames `0..count`, of all lengths, through a pair of queues that run.
pub fn exchange(tx: &mut Medusa<'_>, rx: &mut Medusa<'_>, count: u64) {
    let (mut sent, mut received, begin) = (0, 0, Instant::now());
    let len = |number: u64| 60 + (number * 37 % 1400) as usize;
    rx.post_all();
    while received < count {
        while sent < count && tx.send(sent, len(sent)) {
            sent += 1;
        }
        tx.ring();
        while let Some((number, header)) = rx.take() {
            assert_eq!((number, header.len as usize), (received, len(received)));
            assert_eq!((header.header_len, header.meta), (0, 0));
            assert_eq!(header.freed, if received == 0 { 2 } else { 1 }, "type 0 counts, and comes first only");
            received += 1;
        }
        rx.post_all();
        assert!(begin.elapsed() < PATIENCE, "{received} of {sent} frames came");
    }
}

/// A pair of queues beside those that go wrong works as before.
pub fn still_works(device: &Device, index: u32) {
    let mut rx = Medusa::start(device, QueueId::rx(index), 128).unwrap();
    let mut tx = Medusa::start(device, QueueId::tx(index), 128).unwrap();
    exchange(&mut tx, &mut rx, 200);
    rx.stop();
    tx.stop();
}

#[test]
fn medusa_round_trip() {
    let device = device("queues=2");
    let mut rx = Medusa::start(&device, QueueId::rx(1), 128).unwrap();
    let mut tx = Medusa::start(&device, QueueId::tx(1), 256).unwrap();
    exchange(&mut tx, &mut rx, 5000);
    // The pointers are in memory, in the registers, and the same.
    assert_eq!(tx.controller.read32(m::HDP), tx.hdp());
    assert_eq!(tx.controller.read32(m::SDP), tx.sdp);
    assert_eq!(rx.controller.read64(m::HDP), rx.pointers());
    assert_eq!(rx.controller.read64(m::SDP), u64::from(rx.sdp) | u64::from(rx.shp) << 32);
    // One set of counters.
    for queue in [&rx, &tx] {
        wait_for_count(&device, queue.controller.id, 5000);
        let stats = queue.controller.stats();
        queue.controller.write32(m::COUNTER_COMMAND, m::COUNTERS_STROBE);
        assert_eq!(queue.controller.read64(m::PASSED_FRAMES), 5000);
        assert_eq!(queue.controller.read64(m::PASSED_BYTES), stats.passed_bytes);
        assert_eq!((stats.passed, stats.state, stats.refused), (5000, QueueState::Running, 0));
        assert_eq!(stats.holders, [std::process::id()]);
        assert!(stats.iotlb_faults == 0 && stats.iotlb_misses < stats.iotlb_hits / 10, "{stats:?}");
    }
    check_equations(&device);
    let (rx_id, tx_id) = (rx.controller.id, tx.controller.id);
    rx.stop();
    tx.stop();
    for id in [rx_id, tx_id] {
        assert!(stats_of(&device, id).holders.is_empty());
    }
    // The same again, and by sessions.
    let mut rx = Medusa::start(&device, rx_id, 1024).unwrap();
    let mut tx = Medusa::start(&device, tx_id, 1024).unwrap();
    exchange(&mut tx, &mut rx, 2000);
    rx.stop();
    tx.stop();
    let mut tx = common::tx(&device, 1, Mode::Direct, Sharing::Exclusive);
    let mut rx = common::rx(&device, 1, Mode::Direct, Sharing::Exclusive);
    send_all(&mut tx, 0, 1000, 100);
    receive_all(&mut rx, 0, 1000);
    for id in [rx_id, tx_id] {
        wait_for_count(&device, id, 5000 + 2000 + 1000);
    }
    check_equations(&device);
}

#[test]
fn the_other_end_may_be_a_session() {
    let device = device("queues=1");
    let mut tx = Medusa::start(&device, QueueId::tx(0), 128).unwrap();
    let mut rx = common::rx(&device, 0, Mode::Direct, Sharing::Exclusive);
    let mut sent = 0;
    while sent < 300 {
        while sent < 300 && tx.send(sent, 200) {
            sent += 1;
        }
        tx.ring();
        receive_all(&mut rx, sent.saturating_sub(1), sent.saturating_sub(1));
        let begin = Instant::now();
        while sent < 300 && tx.free() < 2 {
            assert!(begin.elapsed() < PATIENCE);
        }
    }
    receive_all(&mut rx, 0, 300);
    tx.stop();
    check_equations(&device);
}

#[test]
fn masks_may_be_probed_while_the_queue_runs() {
    let device = device("queues=1");
    let mut rx = Medusa::start(&device, QueueId::rx(0), 128).unwrap();
    let mut tx = Medusa::start(&device, QueueId::tx(0), 128).unwrap();
    for queue in [&rx, &tx] {
        queue.controller.write64(m::MDP, u64::MAX);
        assert_eq!(queue.controller.read64(m::MDP), 0x0000_ffff_0000_ffff);
    }
    // Not put back here, put back there: both run on with what START has seen.
    tx.controller.write32(m::MDP, 127);
    exchange(&mut tx, &mut rx, 1000);
    assert_eq!(tx.controller.read32(m::MDP), 127);
    assert_eq!(rx.controller.read32(m::MDP), m::MASK_LIMIT);
    rx.stop();
    tx.stop();
}

#[test]
fn a_tx_queue_that_is_told_to_stop_drains_first() {
    let device = device("queues=1");
    let mut rx = Medusa::start(&device, QueueId::rx(0), 128).unwrap();
    let mut tx = Medusa::start(&device, QueueId::tx(0), 128).unwrap();
    (0..100).for_each(|number| assert!(tx.send(number, 64)));
    tx.ring();
    // RX has no descriptors, so that nothing moves.
    std::thread::sleep(Duration::from_millis(5));
    assert!(!tx.try_stop() && !tx.try_stop());
    assert!(tx.controller.is_running() && tx.hdp() != tx.sdp);
    assert_eq!(tx.controller.read32(m::CONTROL), 0);
    // A start does nothing to a queue that still runs.
    tx.controller.write32(m::CONTROL, m::CONTROL_START);
    assert_eq!(tx.controller.stats().refused, 1);
    tx.controller.write32(m::CONTROL, m::CONTROL_STOP);
    rx.post_all();
    let begin = Instant::now();
    while tx.controller.is_running() {
        assert!(begin.elapsed() < PATIENCE);
    }
    assert_eq!(tx.hdp(), tx.sdp, "the last update comes before STATUS says so");
    let received: Vec<u64> = std::iter::from_fn(|| rx.take()).map(|(number, _)| number).collect();
    assert_eq!(received, (0..100).collect::<Vec<_>>());
    assert!(!device.try_lock(&tx.controller.path, 1).unwrap(), "the lock is the program's, not the queue's");
    assert!(tx.try_stop());
    assert!(device.try_lock(&tx.controller.path, 1).unwrap());
    rx.stop();
}

#[test]
fn an_rx_queue_without_descriptors_waits_or_drops_as_the_card_was_told() {
    for (options, discards) in [("queues=1", false), ("discard", true)] {
        let device = device(options);
        let mut rx = Medusa::start(&device, QueueId::rx(0), 128).unwrap();
        let mut tx = Medusa::start(&device, QueueId::tx(0), 128).unwrap();
        (0..50).for_each(|number| assert!(tx.send(number, 64)));
        tx.ring();
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(rx.pointers(), 0, "nothing was written anywhere");
        let dropped = |stats: &CardStats| stats.queues.iter().map(dropped).sum::<u64>();
        settled(&device, |stats| dropped(stats) == if discards { 50 } else { 0 });
        assert_eq!(tx.hdp() == tx.sdp, discards);
        // Five descriptors, of which one is of type 0: four frames.
        (0..4).for_each(|_| assert!(rx.post(BUFFER as u16)));
        rx.ring();
        if discards {
            (50..60).for_each(|number| assert!(tx.send(number, 64)));
            tx.ring();
        }
        let first = if discards { 50 } else { 0 };
        let begin = Instant::now();
        for number in first..first + 4 {
            while rx.pointers() >> 32 == u64::from(rx.shp) {
                assert!(begin.elapsed() < PATIENCE);
            }
            assert_eq!(rx.take().unwrap().0, number);
        }
        std::thread::sleep(Duration::from_millis(5));
        assert!(rx.take().is_none());
        assert_eq!(rx.hdp(), rx.sdp);
        // What is left is dropped by a queue that does not run.
        rx.stop();
        tx.stop();
        check_equations(&device);
    }
}
