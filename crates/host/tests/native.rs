//! Queues driven as a native driver drives them: by registers, with memory of this process and plain addresses. The
//! steps are those of `specs/nfb-card.md` §3.1 and §3.2; nothing here knows of sessions.

mod common;

use common::*;
use millrace::{Device, Error, ErrorCode, Mode, Pages, QueueId, Region, Sharing};
use millrace_abi::control::{FaultKind, QueueState};
use millrace_abi::queue::Direction;
use millrace_abi::register::map::{Component, dma_base};
use millrace_abi::register::{Offset, calypte as c, medusa as m, sze as s};
use millrace_abi::stats::QueueStats;
use millrace_abi::tree::Tree;
use millrace_dma::{Iova, Ordering, Protection, Word64};
use millrace_ring::calypte;
use millrace_ring::medusa::{Buffer, Descriptor, RxHeader};
use millrace_ring::sze::{PacketHeader, align8, descriptor_list};
use std::time::{Duration, Instant};

#[test]
fn role() {
    if common::role().as_deref() == Some("daemon") {
        run_daemon();
    }
}

/// Memory of the program, and where it lies.
struct Memory {
    region: Region,
    at: u64,
}

impl Memory {
    fn of(region: Region) -> Self {
        let at = region.window().slice(0, 1).unwrap().as_ptr().expose_provenance() as u64;
        Self { region, at }
    }

    fn new(len: usize) -> Self {
        Self::of(Region::allocate(len, Pages::Ordinary).unwrap())
    }

    fn word64(&self, offset: u64) -> Word64 {
        self.region.window().word64(offset as usize).unwrap()
    }

    fn load32(&self, offset: u64) -> u32 {
        self.region.window().word32(offset as usize).unwrap().load(Ordering::Relaxed)
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        assert_eq!(self.region.window().span_mut(offset as usize, bytes.len()).unwrap().write_from(bytes), bytes.len());
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(self.region.window().span(offset as usize, len).unwrap().read_into(&mut bytes), len);
        bytes
    }
}

/// Why a queue did not start, as the driver of §3.2.2 sees it.
#[derive(Debug, PartialEq)]
enum NotStarted {
    Exists,
    Already,
    TooMany,
    Refused,
}

/// Registers of one DMA controller, and its lock.
struct Controller<'d> {
    device: &'d Device,
    id: QueueId,
    path: String,
}

impl<'d> Controller<'d> {
    fn new(device: &'d Device, id: QueueId) -> Self {
        let blob = device.device_tree().unwrap();
        let queues = Tree::parse(&blob).unwrap().queues(id.direction).unwrap();
        Self { device, id, path: queues[id.index as usize].controller.clone() }
    }

    fn read32(&self, register: Offset) -> u32 {
        self.device.read32(register.at(dma_base(self.id).unwrap())).unwrap()
    }

    fn read64(&self, register: Offset) -> u64 {
        self.device.read64(register.at(dma_base(self.id).unwrap())).unwrap()
    }

    fn write32(&self, register: Offset, value: u32) {
        self.device.write32(register.at(dma_base(self.id).unwrap()), value).unwrap();
    }

    fn write64(&self, register: Offset, value: u64) {
        self.device.write64(register.at(dma_base(self.id).unwrap()), value).unwrap();
    }

    fn is_running(&self) -> bool {
        self.read32(m::STATUS) & m::STATUS_RUNNING != 0
    }

    fn lock(&self) -> Result<(), NotStarted> {
        if self.device.try_lock(&self.path, 1).unwrap() { Ok(()) } else { Err(NotStarted::Exists) }
    }

    fn unlock(&self) {
        self.device.unlock(&self.path, 1).unwrap();
    }

    /// The end of every stop: STATUS, 101 times without delay.
    fn has_stopped(&self) -> bool {
        (0..=100).any(|_| !self.is_running())
    }

    fn stats(&self) -> QueueStats {
        stats_of(self.device, self.id)
    }
}

fn stats_of(device: &Device, id: QueueId) -> QueueStats {
    device.stats().unwrap().queues.into_iter().find(|queue| queue.queue == id).unwrap()
}

/// A Medusa queue.
///
/// ```text
/// 0x00000 descriptors   0x40000 headers   0x60000 update word   0x80000 buffers, 2 KiB each
/// ```
struct Medusa<'d> {
    controller: Controller<'d>,
    memory: Memory,
    entries: u32,
    upper: Option<u64>,
    sdp: u32,
    shp: u32,
    // Buffers posted and taken.
    posted: u64,
    taken: u64,
}

const HEADERS: u64 = 0x4_0000;
const UPDATE: u64 = 0x6_0000;
const BUFFERS: u64 = 0x8_0000;
const BUFFER: u64 = 2048;

impl<'d> Medusa<'d> {
    fn prepared(device: &'d Device, id: QueueId, entries: u32) -> Self {
        let memory = Memory::new((BUFFERS + u64::from(entries) * BUFFER) as usize);
        let controller = Controller::new(device, id);
        Self { controller, memory, entries, upper: None, sdp: 0, shp: 0, posted: 0, taken: 0 }
    }

    fn start(device: &'d Device, id: QueueId, entries: u32) -> Result<Self, NotStarted> {
        let mut queue = Self::prepared(device, id, entries);
        queue.start_again().map(|()| queue)
    }

    /// §3.2.2.
    fn start_again(&mut self) -> Result<(), NotStarted> {
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
    fn try_stop(&self) -> bool {
        self.controller.write32(m::CONTROL, m::CONTROL_STOP);
        let drained = self.controller.id.direction == Direction::Rx || self.hdp() == self.sdp;
        let stopped = drained && self.controller.has_stopped();
        if stopped {
            self.controller.unlock();
        }
        stopped
    }

    fn stop(self) {
        let begin = Instant::now();
        while !self.try_stop() {
            assert!(begin.elapsed() < PATIENCE, "{} does not stop", self.controller.id);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.controller.stats().state, QueueState::Stopped);
    }

    fn pointers(&self) -> u64 {
        self.memory.word64(UPDATE).load(Ordering::Acquire)
    }

    fn hdp(&self) -> u32 {
        self.pointers() as u32
    }

    fn free(&self) -> u32 {
        self.hdp().wrapping_sub(self.sdp).wrapping_sub(1) & (self.entries - 1)
    }

    fn put(&mut self, descriptor: Descriptor) {
        self.memory.word64(u64::from(self.sdp) * 8).store(descriptor.encode(), Ordering::Relaxed);
        self.sdp = (self.sdp + 1) & (self.entries - 1);
    }

    /// Posts a buffer anywhere in this process; with a descriptor of type 0 before it when the upper address changes.
    fn post_at(&mut self, address: u64, len: u16) {
        if self.upper.replace(address >> 30) != Some(address >> 30) {
            self.put(Descriptor::Upper(address >> 30));
        }
        self.put(Descriptor::Buffer(Buffer::whole(Iova::new(address), len)));
    }

    fn slot(&self, number: u64) -> u64 {
        BUFFERS + number % u64::from(self.entries) * BUFFER
    }

    /// Posts the next buffer if there is room.
    fn post(&mut self, len: u16) -> bool {
        let room = self.free() >= 2;
        if room {
            self.post_at(self.memory.at + self.slot(self.posted), len);
            self.posted += 1;
        }
        room
    }

    fn post_all(&mut self) {
        while self.post(BUFFER as u16) {}
        self.ring();
    }

    fn send(&mut self, number: u64, len: usize) -> bool {
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
    fn ring(&self) {
        self.controller.write64(m::SDP, u64::from(self.sdp) | u64::from(self.shp) << 32);
    }

    /// Length and header of the next frame, if it is there.
    fn next_header(&mut self) -> Option<RxHeader> {
        let hhp = (self.pointers() >> 32) as u32;
        if hhp == self.shp {
            return None;
        }
        let header = RxHeader::decode(self.memory.load32(HEADERS + u64::from(self.shp) * 4));
        self.shp = (self.shp + 1) & (self.entries - 1);
        Some(header)
    }

    /// Takes the next frame; its number.
    fn take(&mut self) -> Option<(u64, RxHeader)> {
        let header = self.next_header()?;
        let frame = self.memory.read(self.slot(self.taken), header.len.into());
        self.taken += 1;
        Some((check(&frame), header))
    }
}

/// Sends and receives frames `0..count`, of all lengths, through a pair of queues that run.
fn exchange(tx: &mut Medusa<'_>, rx: &mut Medusa<'_>, count: u64) {
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

fn device(options: &str) -> Device {
    Device::open(&format!("embedded:spin=20,{options}")).unwrap()
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
        let dropped: u64 = rx.controller.stats().drops.iter().map(|drop| drop.count).sum();
        assert_eq!((dropped, tx.hdp() == tx.sdp), if discards { (50, true) } else { (0, false) });
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

#[test]
fn buffers_may_lie_anywhere_and_across_a_gibibyte() {
    const GIB: u64 = 1 << 30;
    let device = device("queues=1");
    let mut rx = Medusa::start(&device, QueueId::rx(0), 128).unwrap();
    let mut tx = Medusa::start(&device, QueueId::tx(0), 128).unwrap();
    // Only the pages that are touched exist.
    let wide = Memory::new((3 * GIB + 0x1_0000) as usize);
    let boundary = (wide.at + 8192).next_multiple_of(GIB) - wide.at;
    let mut frame = vec![0; 600];
    // Before the boundary, across it, far behind it, just behind it, and before it again.
    let places = [boundary - 4096, boundary - 300, boundary + GIB - 1, boundary + 300, boundary - 5000];
    let mut upper = None;
    for (number, &place) in (0..).zip(&places) {
        let counts = 1 + u8::from(upper.replace((wide.at + place) >> 30) != Some((wide.at + place) >> 30));
        fill(&mut frame, number);
        wide.write(place, &frame);
        tx.post_at(wide.at + place, 600);
        rx.post_at(wide.at + place + GIB, 600);
        rx.ring();
        tx.ring();
        let begin = Instant::now();
        let header = loop {
            match rx.next_header() {
                Some(header) => break header,
                None => assert!(begin.elapsed() < PATIENCE, "frame {number}"),
            }
        };
        assert_eq!(check(&wide.read(place + GIB, 600)), number);
        assert_eq!((header.len, header.freed), (600, counts), "frame {number}");
    }
    assert_ne!((wide.at + places[1]) >> 30, (wide.at + places[1] + 599) >> 30, "the second lies across it");
    // What a program has on its stack or in its constants may be sent, too.
    static CONSTANT: [u8; 64] = [0x5a; 64];
    tx.post_at(CONSTANT.as_ptr().expose_provenance() as u64, 64);
    rx.post_at(wide.at, 64);
    rx.ring();
    tx.ring();
    let begin = Instant::now();
    while rx.next_header().is_none() {
        assert!(begin.elapsed() < PATIENCE);
    }
    assert_eq!(wide.read(0, 64), CONSTANT);
    rx.stop();
    tx.stop();
}

/// Waits until a worker has published what it counted, which it does after it has moved the pointers.
fn wait_for_count(device: &Device, id: QueueId, passed: u64) {
    let begin = Instant::now();
    while stats_of(device, id).passed != passed {
        assert!(begin.elapsed() < PATIENCE, "{:?}", stats_of(device, id));
    }
}

/// A pair of queues beside those that go wrong works as before.
fn still_works(device: &Device, index: u32) {
    let mut rx = Medusa::start(device, QueueId::rx(index), 128).unwrap();
    let mut tx = Medusa::start(device, QueueId::tx(index), 128).unwrap();
    exchange(&mut tx, &mut rx, 200);
    rx.stop();
    tx.stop();
}

fn wait_for_fault(queue: &Medusa<'_>, kind: FaultKind, iova: u64) {
    let begin = Instant::now();
    while queue.controller.is_running() {
        assert!(begin.elapsed() < PATIENCE, "no fault at {iova:#x}");
    }
    let stats = queue.controller.stats();
    assert_eq!((stats.state, stats.fault_iova), (QueueState::Faulted(kind), Some(iova)));
}

#[test]
fn wild_addresses_stop_their_queue_and_nothing_else() {
    let device = device("queues=2");
    let read_only = {
        let region = Region::allocate(4096, Pages::Ordinary).unwrap();
        let fd = rustix::io::fcntl_dupfd_cloexec(region.fd().unwrap(), 0).unwrap();
        Memory::of(Region::map(fd, 4096, Protection::Read, false).unwrap())
    };
    let edge = Memory::new(4096);
    let end = edge.at + 4096 - 32;
    // One past the end of everything: the page behind is somebody else's, or nobody's, but never both pages are.
    let wild = [0x10, 1 << 47, 0x8000_0000_0000_0000, u64::MAX - 100, !0xfff];
    let mut faults = 0;
    for &address in &wild {
        let mut tx = Medusa::start(&device, QueueId::tx(0), 128).unwrap();
        tx.post_at(address, 64);
        tx.ring();
        wait_for_fault(&tx, FaultKind::Unmapped, address);
        faults += 1;
        assert_eq!(tx.controller.stats().iotlb_faults, faults);
        assert!(!tx.try_stop(), "it never drained");
        tx.controller.unlock();
        still_works(&device, 1);
    }
    let mut feeder = Medusa::start(&device, QueueId::tx(0), 128).unwrap();
    for (number, address) in (0..).zip([0, 1 << 47, read_only.at, u64::MAX - 100]) {
        let mut rx = Medusa::start(&device, QueueId::rx(0), 128).unwrap();
        rx.post_at(address, 2048);
        rx.ring();
        assert!(feeder.send(number, 64));
        feeder.ring();
        wait_for_fault(&rx, FaultKind::Unmapped, address);
        assert_eq!(rx.pointers(), 0);
        rx.stop();
        still_works(&device, 1);
    }
    feeder.stop();
    assert_eq!(read_only.read(0, 4096), [0; 4096]);
    // Descriptors that are none, and a doorbell that is nonsense.
    let mut tx = Medusa::start(&device, QueueId::tx(0), 128).unwrap();
    tx.put(Descriptor::Buffer(Buffer::whole(Iova::new(end), 60)));
    tx.ring();
    wait_for_fault(&tx, FaultKind::NoUpperAddress, tx.memory.at);
    tx.controller.unlock();
    tx.start_again().unwrap();
    tx.controller.write64(m::SDP, u64::MAX);
    wait_for_fault(&tx, FaultKind::NoUpperAddress, tx.memory.at);
    tx.controller.write32(m::CONTROL, m::CONTROL_STOP);
    assert_eq!(tx.controller.stats().state, QueueState::Stopped);
    tx.controller.unlock();
    still_works(&device, 0);
    check_equations(&device);
}

#[test]
fn rings_at_wild_addresses_do_not_start() {
    let device = device("queues=1");
    for register in [m::DESC_BASE, m::HDR_BASE, m::UPDATE_BASE] {
        for address in [0, 8, 1 << 47, u64::MAX - 7] {
            let rx = Medusa::prepared(&device, QueueId::rx(0), 128);
            let controller = &rx.controller;
            controller.lock().unwrap();
            controller.write64(m::DESC_BASE, rx.memory.at);
            controller.write64(m::HDR_BASE, rx.memory.at + HEADERS);
            controller.write64(m::UPDATE_BASE, rx.memory.at + UPDATE);
            controller.write64(m::MDP, 127 << 32 | 127);
            let before = controller.stats().refused;
            controller.write64(register, address);
            controller.write32(m::CONTROL, m::CONTROL_START);
            assert!(!controller.is_running(), "{address:#x}");
            let stats = controller.stats();
            assert!(stats.refusal.as_ref().is_some_and(|why| why.contains("no mapping allows")), "{stats:?}");
            assert_eq!((stats.refused, stats.holders.len()), (before + 1, 0));
            controller.unlock();
        }
    }
    still_works(&device, 0);
    assert_eq!(stats_of(&device, QueueId::rx(0)).refusal, None);
}

/// An SZE queue.
///
/// ```text
/// 0x0000 update word   0x1000 descriptor list   page 2 on: the ring
/// ```
struct Sze<'d> {
    controller: Controller<'d>,
    memory: Memory,
    sw: u64,
}

const RING: u64 = 1 << 14;
const RING_AT: u64 = 2 << 12;

impl<'d> Sze<'d> {
    /// "Start" of §3.1: the ring begins at a page of its own, and the list has two stages.
    fn start(device: &'d Device, id: QueueId, offset: u64) -> Result<Self, NotStarted> {
        let memory = Memory::new((RING_AT + RING) as usize);
        let controller = Controller::new(device, id);
        controller.lock()?;
        let ring = Iova::new(memory.at + RING_AT);
        let list = descriptor_list(ring, RING, offset, Iova::new(memory.at + 0x1000));
        for (word, place) in list.into_iter().zip(0..) {
            memory.word64(0x1000 + place * 8).store(word, Ordering::Relaxed);
        }
        controller.write64(s::DESC_BASE, memory.at + 0x1000);
        controller.write64(s::UPDATE_BASE, memory.at);
        controller.write32(s::RING_MASK, RING as u32 - 1);
        controller.write32(s::SW_POINTER, 0);
        controller.write32(s::TIMEOUT, s::TIMEOUT_DEFAULT);
        controller.write32(s::MAX_REQUEST, s::MAX_REQUEST_RX);
        controller.write32(s::CONTROL, s::CONTROL_START);
        if !controller.is_running() {
            controller.unlock();
            return Err(NotStarted::Refused);
        }
        Ok(Self { controller, memory, sw: 0 })
    }

    fn hw(&self) -> u64 {
        self.memory.word64(0).load(Ordering::Acquire)
    }

    fn ring(&self) {
        self.controller.write32(s::SW_POINTER, self.sw as u32);
    }

    /// The byte of the ring at a position of the stream, given where the stream began.
    fn place(offset: u64, position: u64) -> u64 {
        RING_AT + (offset + position) % RING
    }

    fn stop(self) {
        self.controller.write32(s::CONTROL, s::CONTROL_DISCARD);
        if self.controller.id.direction == Direction::Rx {
            self.controller.write32(s::SW_POINTER, self.hw() as u32);
        }
        let begin = Instant::now();
        while self.controller.is_running() {
            assert!(begin.elapsed() < PATIENCE);
        }
        self.controller.unlock();
    }
}

#[test]
fn sze_round_trip() {
    let device = device("engine=sze");
    // Queue 1 of the kernel driver begins a page further on than queue 0.
    let (tx_offset, rx_offset) = (0x1000, 0x2000);
    let mut tx = Sze::start(&device, QueueId::tx(0), tx_offset).unwrap();
    let mut rx = Sze::start(&device, QueueId::rx(0), rx_offset).unwrap();
    let len = |number: u64| 60 + (number * 41 % 1400) as u16;
    let (mut sent, mut received, begin) = (0u64, 0u64, Instant::now());
    while received < 2000 {
        while sent < 2000 {
            let header = PacketHeader::for_frame(len(sent));
            let used = tx.sw.wrapping_sub(tx.hw()) % RING;
            if used + u64::from(header.stride()) >= RING {
                break;
            }
            let mut packet = vec![0; usize::from(header.total)];
            packet[..4].copy_from_slice(&header.encode().to_le_bytes());
            fill(&mut packet[8..], sent);
            for (chunk, at) in packet.chunks(8).zip((0..).step_by(8)) {
                tx.memory.write(Sze::place(tx_offset, tx.sw + at), chunk);
            }
            tx.sw = (tx.sw + u64::from(header.stride())) % RING;
            sent += 1;
        }
        tx.ring();
        while rx.hw() != rx.sw {
            let header = PacketHeader::decode(rx.memory.load32(Sze::place(rx_offset, rx.sw)));
            let bytes = align8(header.total.into());
            let packet: Vec<u8> = (0..u64::from(bytes))
                .step_by(8)
                .flat_map(|at| rx.memory.read(Sze::place(rx_offset, rx.sw + at), 8))
                .collect();
            let frame = &packet[header.frame_at() as usize..header.total.into()];
            assert_eq!((check(frame), frame.len()), (received, len(received).into()));
            rx.sw = (rx.sw + u64::from(header.stride())) % RING;
            received += 1;
        }
        rx.ring();
        assert!(begin.elapsed() < PATIENCE, "{received} of {sent} frames came");
    }
    wait_for_count(&device, tx.controller.id, 2000);
    assert_eq!(tx.hw(), tx.sw);
    assert_eq!(u64::from(tx.controller.read32(s::HW_POINTER)), tx.hw());
    assert_eq!(rx.controller.read64(s::PASSED_FRAMES), 2000);
    check_equations(&device);
    // Starting a queue that runs changes nothing.
    let refused = tx.controller.stats().refused;
    tx.controller.write32(s::CONTROL, s::CONTROL_START);
    assert_eq!(tx.controller.stats().refused, refused + 1);
    assert!(tx.controller.is_running());
    tx.stop();
    rx.stop();
}

#[test]
fn an_sze_queue_with_a_wild_list_or_ring_stops() {
    let device = device("engine=sze,queues=2");
    for wild in [true, false] {
        let mut tx = Sze::start(&device, QueueId::tx(0), 0).unwrap();
        // Either the first pages of the ring or the next piece of the list lies nowhere.
        tx.memory.word64(0x1000).store(if wild { 1 << 47 } else { 1 << 47 | 1 }, Ordering::Relaxed);
        tx.sw = 64;
        tx.ring();
        let begin = Instant::now();
        while tx.controller.is_running() {
            assert!(begin.elapsed() < PATIENCE);
        }
        let stats = tx.controller.stats();
        assert_eq!(stats.state, QueueState::Faulted(FaultKind::Unmapped));
        assert_eq!(stats.fault_iova, Some(1 << 47));
        tx.stop();
    }
    let tx = Sze::start(&device, QueueId::tx(0), 0).unwrap();
    tx.stop();
}

/// A Calypte queue: §3.2.5. TX writes into buffers of the device; RX has a ring of blocks in the program's memory.
///
/// ```text
/// 0x0000 update word   0x1000 headers   0x4000 blocks
/// ```
struct Calypte<'d> {
    controller: Controller<'d>,
    memory: Memory,
    // Of the data ring (RX blocks, TX bytes), and of the header ring; not masked.
    data: u32,
    headers: u32,
}

const BLOCKS: u32 = 256;

impl<'d> Calypte<'d> {
    fn start(device: &'d Device, id: QueueId) -> Result<Self, NotStarted> {
        let (controller, memory) = (Controller::new(device, id), Memory::new(0x4000 + (BLOCKS * c::RX_BLOCK) as usize));
        controller.lock()?;
        assert!(!controller.is_running());
        controller.write64(c::UPDATE_BASE, memory.at);
        if id.direction == Direction::Rx {
            controller.write64(c::DATA_BASE, memory.at + 0x4000);
            controller.write64(c::HDR_BASE, memory.at + 0x1000);
            controller.write64(c::MDP, u64::MAX);
            assert_eq!(controller.read64(c::MDP), 0x0000_ffff_0000_ffff);
            controller.write64(c::MDP, u64::from(BLOCKS - 1) << 32 | u64::from(BLOCKS - 1));
        } else {
            // Half the components, which are there twice.
            assert_eq!(controller.read32(c::MDP), c::tx_data::BLOCK.size / 2 - 1);
            assert_eq!(controller.read32(c::MHP), c::tx_headers::BLOCK.size / 16 - 1);
        }
        controller.write64(c::SDP, 0);
        controller.write32(c::EXPER, 0);
        controller.write32(c::TIMEOUT, 0);
        controller.write32(c::CONTROL, m::CONTROL_START);
        let started = controller.is_running();
        if !started {
            controller.unlock();
            return Err(NotStarted::Refused);
        }
        Ok(Self { controller, memory, data: 0, headers: 0 })
    }

    fn update(&self) -> calypte::Pointers {
        calypte::Pointers::decode(self.memory.word64(0).load(Ordering::Acquire))
    }

    /// Writes a frame and then its header, which sends it; `false` when there is no room.
    fn send(&mut self, number: u64, len: usize) -> bool {
        let (mask, stride) = (c::TX_RING - 1, (len as u32).next_multiple_of(c::TX_FRAME_ALIGN));
        let used = self.data.wrapping_sub(self.update().data) & mask;
        if used + stride >= c::TX_RING || (self.headers + 1 - self.update().headers) & (c::TX_HEADERS - 1) == 0 {
            return false;
        }
        let mut frame = vec![0; len];
        fill(&mut frame, number);
        let (device, index) = (self.controller.device, self.controller.id.index);
        let at = self.data & mask;
        device.write(Component::TxData(index).base().unwrap() + at, &frame).unwrap();
        let header = calypte::Header { len: len as u16, at: at as u16, ..calypte::Header::default() };
        let slot = self.headers & (c::TX_HEADERS - 1);
        device.write64(Component::TxHeaders(index).base().unwrap() + slot * 8, header.encode(true)).unwrap();
        (self.data, self.headers) = (self.data + stride, self.headers + 1);
        true
    }

    fn take(&mut self) -> Option<(u64, usize)> {
        let slot = self.headers & (BLOCKS - 1);
        let word = self.memory.word64(0x1000 + u64::from(slot) * 8).load(Ordering::Acquire);
        // Set in the first lap, clear in the second, and so on.
        if calypte::Header::valid_bit(word) != (self.headers & BLOCKS == 0) {
            return None;
        }
        let header = calypte::Header::decode(word);
        let blocks = (0..header.blocks()).flat_map(|block| {
            let at = (u32::from(header.at) + block) & (BLOCKS - 1);
            self.memory.read(0x4000 + u64::from(at * c::RX_BLOCK), c::RX_BLOCK as usize)
        });
        let frame: Vec<u8> = blocks.take(header.len.into()).collect();
        (self.data, self.headers) = (self.data + header.blocks(), self.headers + 1);
        Some((check(&frame), frame.len()))
    }

    fn ring(&self) {
        let mask = BLOCKS - 1;
        self.controller.write64(c::SDP, u64::from(self.data & mask) | u64::from(self.headers & mask) << 32);
    }

    fn stop(self) {
        self.controller.write32(c::CONTROL, m::CONTROL_STOP);
        if self.controller.id.direction == Direction::Rx {
            self.controller.write32(c::SDP, self.update().data);
            self.controller.write32(c::SHP, self.update().headers);
        }
        let begin = Instant::now();
        while !self.controller.has_stopped() {
            assert!(begin.elapsed() < PATIENCE);
        }
        self.controller.unlock();
    }
}

#[test]
fn calypte_round_trip() {
    let device = device("queues=2,engine=calypte");
    let mut rx = Calypte::start(&device, QueueId::rx(1)).unwrap();
    let mut tx = Calypte::start(&device, QueueId::tx(1)).unwrap();
    assert_eq!(Calypte::start(&device, QueueId::rx(1)).err(), Some(NotStarted::Exists));
    let len = |number: u64| 60 + (number * 37 % 1400) as usize;
    let (mut sent, mut received, begin) = (0, 0, Instant::now());
    while received < 3000 {
        while sent < 3000 && tx.send(sent, len(sent)) {
            sent += 1;
        }
        while let Some(frame) = rx.take() {
            assert_eq!(frame, (received, len(received)));
            received += 1;
        }
        rx.ring();
        assert!(begin.elapsed() < PATIENCE, "{received} of {sent} frames came");
    }
    for queue in [&rx, &tx] {
        wait_for_count(&device, queue.controller.id, 3000);
        assert_eq!(queue.controller.stats().holders, [std::process::id()]);
    }
    let (rx_id, tx_id) = (rx.controller.id, tx.controller.id);
    rx.stop();
    tx.stop();
    check_equations(&device);
    // Once more, from the beginning, and then by sessions.
    let (mut rx, mut tx) = (Calypte::start(&device, rx_id).unwrap(), Calypte::start(&device, tx_id).unwrap());
    assert!(tx.send(7, 100));
    let begin = Instant::now();
    let frame = loop {
        if let Some(frame) = rx.take() {
            break frame;
        }
        assert!(begin.elapsed() < PATIENCE);
    };
    assert_eq!(frame, (7, 100));
    assert!(device.rx(1).open().unwrap().start().is_err());
    rx.stop();
    tx.stop();
    let mut tx = common::tx(&device, 1, Mode::Direct, Sharing::Exclusive);
    let mut rx = common::rx(&device, 1, Mode::Direct, Sharing::Exclusive);
    send_all(&mut tx, 0, 500, 100);
    receive_all(&mut rx, 0, 500);
}

#[test]
fn natives_and_sessions_exclude_each_other() {
    let name = "embedded:queues=2,engine=sze@1,spin=20";
    let (one, two) = (Device::open_shared(name).unwrap(), Device::open_shared(name).unwrap());
    let pid = std::process::id().to_string();
    let is_busy = |error: Option<Error>| match error {
        Some(Error::Client(error)) => {
            assert_eq!(error.code(), Some(ErrorCode::Busy), "{error}");
            assert!(error.to_string().contains(&pid), "{error}");
        }
        other => panic!("{other:?}"),
    };
    let queue = Medusa::start(&one, QueueId::rx(0), 128).unwrap();
    assert_eq!(Medusa::start(&two, QueueId::rx(0), 128).err(), Some(NotStarted::Exists));
    assert_eq!(Medusa::start(&one, QueueId::rx(0), 128).err(), Some(NotStarted::Exists), "not even the same one");
    for device in [&one, &two] {
        for mode in [Mode::Direct, Mode::Mediated] {
            is_busy(device.rx(0).mode(mode).open().unwrap().start().err());
        }
    }
    // Whoever does not care for locks does not get in either.
    let other = Medusa::prepared(&two, QueueId::rx(0), 128);
    other.controller.write32(m::CONTROL, m::CONTROL_START);
    let refusal = stats_of(&two, QueueId::rx(0)).refusal.unwrap();
    assert!(refusal.contains("running already"), "{refusal}");
    queue.stop();
    // Sessions hold the lock while they run, and only then.
    let paths: Vec<(QueueId, String)> = [QueueId::rx(0), QueueId::tx(0), QueueId::rx(1), QueueId::tx(1)]
        .map(|id| (id, Controller::new(&one, id).path))
        .into();
    for (id, path) in &paths {
        let free = || {
            let free = two.try_lock(path, 1).unwrap();
            if free {
                two.unlock(path, 1).unwrap();
            }
            free
        };
        for mode in [Mode::Direct, Mode::Mediated] {
            match id.direction {
                Direction::Rx => {
                    let queue = one.rx(id.index).mode(mode).open().unwrap();
                    assert!(free(), "open, not started");
                    let queue = queue.start().unwrap();
                    assert!(!free(), "{id} runs");
                    let queue = queue.stop().unwrap();
                    assert!(free(), "stopped");
                    drop(queue.start().unwrap());
                }
                Direction::Tx => {
                    let queue = one.tx(id.index).mode(mode).open().unwrap();
                    assert!(free(), "open, not started");
                    let queue = queue.start().unwrap();
                    assert!(!free(), "{id} runs");
                    is_busy(two.lock(path, 0b11, Duration::ZERO).err());
                    drop(queue);
                }
            }
            assert!(free(), "closed");
        }
    }
    // Shared readers hold it until the last has gone.
    let sharing = Sharing::Shared(millrace::Laggard::Block);
    let first = common::rx(&one, 0, Mode::Direct, sharing);
    let second = common::rx(&two, 0, Mode::Mediated, sharing);
    assert_eq!(Medusa::start(&two, QueueId::rx(0), 128).err(), Some(NotStarted::Exists));
    drop((first, one));
    assert!(!two.try_lock(&paths[0].1, 1).unwrap(), "the first has even closed its device");
    drop(second);
    let queue = Medusa::start(&two, QueueId::rx(0), 128).unwrap();
    let one = Device::open_shared(name).unwrap();
    is_busy(one.rx(0).open().unwrap().start().err());
    // A native queue whose controller was unlocked too early is still nobody else's.
    queue.controller.unlock();
    is_busy(one.rx(0).open().unwrap().start().err());
    assert_eq!(Medusa::start(&one, QueueId::rx(0), 128).err(), Some(NotStarted::Already));
    assert!(queue.controller.is_running());
    queue.controller.write32(m::CONTROL, m::CONTROL_STOP);
    assert!(queue.controller.has_stopped());
}

#[test]
fn a_start_without_a_lock_takes_it() {
    let name = "embedded:spin=21";
    let (one, two) = (Device::open_shared(name).unwrap(), Device::open_shared(name).unwrap());
    let mut queue = Medusa::start(&one, QueueId::tx(0), 128).unwrap();
    assert!(queue.try_stop());
    // START once more, with what the registers still hold.
    queue.memory.word64(UPDATE).store(0, Ordering::Relaxed);
    queue.controller.write32(m::CONTROL, m::CONTROL_START);
    assert!(queue.controller.is_running());
    assert!(!two.try_lock(&queue.controller.path, 1).unwrap());
    assert!(queue.send(0, 64));
    queue.ring();
    let begin = Instant::now();
    while queue.hdp() != queue.sdp {
        assert!(begin.elapsed() < PATIENCE);
    }
    queue.controller.write32(m::CONTROL, m::CONTROL_STOP);
    assert!(queue.controller.has_stopped());
    assert!(two.try_lock(&queue.controller.path, 1).unwrap(), "and gives it back");
    // With the lock elsewhere it does not start.
    queue.controller.write32(m::CONTROL, m::CONTROL_START);
    assert!(!queue.controller.is_running());
    let refusal = queue.controller.stats().refusal.unwrap();
    assert!(refusal.contains("in use by somebody else"), "{refusal}");
    // A write of one byte is a write, and so is one that covers the whole block.
    two.unlock(&queue.controller.path, 1).unwrap();
    queue.controller.write64(m::SDP, 0);
    one.write(dma_base(QueueId::tx(0)).unwrap(), &[1]).unwrap();
    assert!(queue.controller.is_running());
    let mut block = vec![0; 16];
    one.write(dma_base(QueueId::tx(0)).unwrap(), &block).unwrap();
    assert!(queue.controller.has_stopped());
    block[0] = 1;
    one.write(dma_base(QueueId::tx(0)).unwrap(), &block).unwrap();
    assert!(queue.controller.is_running());
    // The memory goes before the device is closed, so the queue has to stop before it.
    queue.controller.write32(m::CONTROL, m::CONTROL_STOP);
    assert!(queue.controller.has_stopped());
}

#[test]
fn a_device_that_is_closed_leaves_its_memory_alone() {
    let name = "embedded:queues=2,spin=22";
    let sender = Device::open_shared(name).unwrap();
    let mut tx = Medusa::start(&sender, QueueId::tx(0), 128).unwrap();
    let mut number = 0;
    for round in 0..50 {
        let receiver = Device::open_shared(name).unwrap();
        let mut rx = Medusa::start(&receiver, QueueId::rx(0), 256).unwrap();
        rx.post_all();
        let begin = Instant::now();
        while rx.hdp() < 20 {
            while tx.send(number, 64) {
                number += 1;
            }
            tx.ring();
            assert!(begin.elapsed() < PATIENCE, "round {round}");
        }
        let Medusa { memory, controller: Controller { path, .. }, .. } = rx;
        drop(receiver);
        // No worker comes here any more, although frames go on coming.
        let pattern = vec![0xa5; 4096];
        for page in 0..memory.region.len() as u64 / 4096 {
            memory.write(page * 4096, &pattern);
        }
        for _ in 0..5 {
            while tx.send(number, 64) {
                number += 1;
            }
            tx.ring();
            while tx.hdp() != tx.sdp {}
        }
        for page in 0..memory.region.len() as u64 / 4096 {
            assert_eq!(memory.read(page * 4096, 4096), pattern, "page {page}, round {round}");
        }
        // Not even when there is nothing any more.
        drop(memory);
        while tx.send(number, 64) {
            number += 1;
        }
        tx.ring();
        while tx.hdp() != tx.sdp {}
        assert!(sender.try_lock(&path, 1).unwrap(), "its lock is gone with it");
        sender.unlock(&path, 1).unwrap();
        let stats = stats_of(&sender, QueueId::rx(0));
        assert!(stats.holders.is_empty() && stats.state == QueueState::Stopped, "{stats:?}");
    }
    tx.stop();
    check_equations(&sender);
}

#[test]
fn a_card_in_a_daemon_refuses() {
    let daemon = Daemon::start("");
    let device = daemon.device();
    for id in [QueueId::rx(0), QueueId::tx(0)] {
        assert_eq!(Medusa::start(&device, id, 128).err(), Some(NotStarted::Refused));
        let stats = stats_of(&device, id);
        let why = stats.refusal.unwrap();
        assert!(stats.refused == 1 && why.contains("in its own process"), "{why}");
    }
    // Nor can it be had through somebody's open queue.
    let mut rx = common::rx(&device, 0, Mode::Direct, Sharing::Exclusive);
    let mut tx = common::tx(&device, 0, Mode::Direct, Sharing::Exclusive);
    let other = daemon.device();
    let strange = Medusa::prepared(&other, QueueId::rx(0), 128);
    assert_eq!(strange.controller.lock(), Err(NotStarted::Exists));
    strange.controller.write32(m::CONTROL, m::CONTROL_START);
    assert_eq!(stats_of(&device, QueueId::rx(0)).refused, 2);
    send_all(&mut tx, 0, 100, 64);
    receive_all(&mut rx, 0, 100);
}

#[test]
fn registers_of_an_embedded_card_answer_every_thread() {
    let device = device("queues=2");
    let test_space = 0x40;
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..5000u32 {
                    let value = thread << 24 | round;
                    device.write32(test_space + thread * 4, value).unwrap();
                    assert_eq!(device.read32(test_space + thread * 4).unwrap(), value);
                }
            });
        }
        let device = &device;
        scope.spawn(move || {
            for _ in 0..50 {
                still_works(device, 0);
            }
        });
        scope.spawn(move || {
            for _ in 0..50 {
                still_works(device, 1);
            }
        });
    });
    let mut bytes = [0; 5];
    device.write(test_space + 1, &[1, 2, 3, 4, 5]).unwrap();
    device.read(test_space + 1, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3, 4, 5]);
}

#[test]
fn locks_are_not_recursive_and_belong_to_an_opener() {
    let name = "embedded:spin=23";
    let (one, two) = (Device::open_shared(name).unwrap(), Device::open_shared(name).unwrap());
    assert!(one.try_lock("/a", 0b0011).unwrap());
    assert!(!one.try_lock("/a", 0b0001).unwrap(), "recursive");
    assert!(!two.try_lock("/a", 0b0110).unwrap(), "overlap");
    assert!(two.try_lock("/a", 0b1100).unwrap() && two.try_lock("/b", 0b0011).unwrap());
    let not_found = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::Client(error)) if error.code() == Some(ErrorCode::NotFound)));
    };
    not_found(two.unlock("/a", 0b0011));
    not_found(one.unlock("/b", 0b0011));
    not_found(one.unlock("/c", 1));
    one.unlock("/a", 0b0001).unwrap();
    assert!(two.try_lock("/a", 0b0001).unwrap() && !two.try_lock("/a", 0b0010).unwrap());
    drop(one);
    assert!(two.try_lock("/a", 0b0010).unwrap(), "closed");
    assert!(two.try_lock("/a", 0).is_err(), "no features");
}

#[test]
fn all_opens_of_one_name_are_one_card() {
    use std::sync::atomic::AtomicU32;
    let (holders, held) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let device = Device::open_shared("embedded:queues=1,spin=24").unwrap();
                    if device.try_lock("/once", 1).unwrap() {
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two cards of one name");
                        held.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                        holders.fetch_sub(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert!(held.into_inner() > 0);
    // Other options, or an open that is not shared, are another card.
    let shared = Device::open_shared("embedded:queues=1,spin=24").unwrap();
    assert!(shared.try_lock("/once", 1).unwrap());
    for device in [Device::open_shared("embedded:queues=2,spin=24"), Device::open("embedded:queues=1,spin=24")] {
        assert!(device.unwrap().try_lock("/once", 1).unwrap());
    }
    assert!(!Device::open_shared("embedded:spin=24,queues=1").unwrap().try_lock("/once", 1).unwrap(), "the same card");
}
