//! SZE queues (§3.1).

use super::controller::{Controller, Memory, NotStarted, device, wait_for_count};
use crate::common::{PATIENCE, check, check_equations, fill};
use millrace::{Device, QueueId};
use millrace_abi::control::{FaultKind, QueueState};
use millrace_abi::queue::Direction;
use millrace_abi::register::sze as s;
use millrace_dma::{Iova, Ordering};
use millrace_ring::sze::{PacketHeader, align8, descriptor_list};
use std::time::Instant;

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
