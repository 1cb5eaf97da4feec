//! Calypte queues (§3.2.5).

use super::controller::{Controller, Memory, NotStarted, device, wait_for_count};
use crate::common::{self, PATIENCE, check, check_equations, fill, receive_all, send_all};
use millrace::{Device, Mode, QueueId, Sharing};
use millrace_abi::queue::Direction;
use millrace_abi::register::map::Component;
use millrace_abi::register::{calypte as c, medusa as m};
use millrace_dma::Ordering;
use millrace_ring::calypte;
use std::time::Instant;

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
