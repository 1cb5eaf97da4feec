//! Addresses in descriptors and registers: anywhere in the process, and nowhere.

use super::controller::{Memory, device, stats_of};
use super::medusa::{HEADERS, Medusa, UPDATE, still_works};
use crate::common::{PATIENCE, check, check_equations, fill};
use millrace::{Pages, QueueId, Region};
use millrace_abi::control::{FaultKind, QueueState};
use millrace_abi::register::medusa as m;
use millrace_dma::{Iova, Protection};
use millrace_ring::medusa::{Buffer, Descriptor};
use std::time::Instant;

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
