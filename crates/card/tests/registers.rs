//! The card as its registers show it, driven without a driver: `docs/spec/nfb-card.md` §2 and §3.

use crate::common::*;
use millrace_abi::control::{PAGE_SIZE, QueueState};
use millrace_abi::queue::{Direction, QueueId};
use millrace_abi::register::map::dma_base;
use millrace_abi::register::{medusa as m, sze as s};
use millrace_card::{Attachment, StartError};
use millrace_dma::{Domain, Iova, Region};
use std::sync::Arc;
use std::time::Duration;

/// What is wrong, how to make it so, and whether the reason given is the right one.
type Refusal = (&'static str, Box<dyn Fn(&Bench<'_>)>, fn(StartError) -> bool);

#[test]
fn a_start_that_cannot_be_is_refused_with_the_reason() {
    let card = card("queues=2,engine=sze@1,spin=0");
    for direction in [Direction::Rx, Direction::Tx] {
        let id = QueueId { direction, index: 0 };
        card.write(m::CONTROL.at(dma_base(id).unwrap()), &1u32.to_le_bytes());
        assert_eq!(card.refusal(id), Some(StartError::NotAttached(id)));
        let bench = Bench::new(&card, id);
        let is_rx = direction == Direction::Rx;
        let outside = 0x10u64;
        let refusals: Vec<Refusal> = vec![
            ("101 entries", Box::new(|b| b.write32(m::MDP, 100)), |e| e == StartError::Size(101)),
            ("one entry", Box::new(|b| b.write32(m::MDP, 0)), |e| e == StartError::Size(1)),
            ("too many", Box::new(|b| b.write32(m::MDP, 0xffff)), |e| e == StartError::Size(1 << 16)),
            ("the probe", Box::new(|b| b.write32(m::MDP, u32::MAX)), |e| e == StartError::Size(1 << 32)),
            ("unaligned", Box::new(|b| b.write64(m::DESC_BASE, b.at.get() + 4)), |e| {
                matches!(e, StartError::Unaligned(_))
            }),
            ("unaligned update", Box::new(|b| b.write64(m::UPDATE_BASE, b.at.get() + UPDATE + 4)), |e| {
                matches!(e, StartError::Unaligned(_))
            }),
            (
                "outside",
                Box::new(move |b| b.write64(m::DESC_BASE, outside)),
                |e| matches!(e, StartError::Unmapped(fault) if fault.iova == Iova::new(0x10)),
            ),
            ("partly outside", Box::new(|b| b.write64(m::DESC_BASE, b.at.get() + LEN as u64 - 8)), |e| {
                matches!(e, StartError::Unmapped(_))
            }),
            ("update outside", Box::new(|b| b.write64(m::UPDATE_BASE, u64::MAX - 7)), |e| {
                matches!(e, StartError::Unmapped(_))
            }),
            ("update read-only", Box::new(|b| b.write64(m::UPDATE_BASE, b.read_only.get())), |e| {
                matches!(e, StartError::Unmapped(_))
            }),
        ];
        let of_rx: Vec<Refusal> = vec![
            ("7 headers", Box::new(|b| b.write32(m::MHP, 6)), |e| e == StartError::Size(7)),
            ("unaligned headers", Box::new(|b| b.write64(m::HDR_BASE, b.at.get() + 2)), |e| {
                matches!(e, StartError::Unaligned(_))
            }),
            ("headers read-only", Box::new(|b| b.write64(m::HDR_BASE, b.read_only.get())), |e| {
                matches!(e, StartError::Unmapped(_))
            }),
        ];
        for (what, spoil, is_right) in refusals.iter().chain(of_rx.iter().filter(|_| is_rx)) {
            bench.program();
            spoil(&bench);
            let refusal = bench.start().unwrap_or_else(|| panic!("{id} {what}: started"));
            assert!(is_right(refusal), "{id} {what}: {refusal}");
            assert!(!bench.is_running() && bench.read32(m::CONTROL) == 0, "{id} {what}");
        }
        // And with everything right it starts, once.
        bench.program();
        assert_eq!(bench.start(), None);
        assert_eq!(bench.start(), Some(StartError::Running(id)));
        assert!(bench.is_running());
        assert!(matches!(
            card.attach(
                id,
                Attachment {
                    domain: Arc::new(Domain::new()),
                    control: Region::heap(PAGE_SIZE).window().clone(),
                    reclaimer: None,
                    openers: Vec::new(),
                    buffers: None,
                    is_noted: false,
                }
            ),
            Err(StartError::Running(_))
        ));
        bench.end();

        let bench = Bench::new(&card, QueueId { direction, index: 1 });
        for mask in [0, 0x7ff, 0x1000, 0xfffe, 0x7fff_ffff, u32::MAX] {
            bench.program();
            bench.write32(s::RING_MASK, mask);
            assert_eq!(bench.start(), Some(StartError::Size(u64::from(mask) + 1)));
        }
        for (register, base) in [(s::DESC_BASE, 4), (s::UPDATE_BASE, UPDATE + 4)] {
            bench.program();
            bench.write64(register, bench.at.get() + base);
            assert!(matches!(bench.start(), Some(StartError::Unaligned(_))));
            bench.program();
            bench.write64(register, 0x18);
            assert!(matches!(bench.start(), Some(StartError::Unmapped(_))));
        }
        assert!(!bench.is_running());
        bench.program();
        assert_eq!(bench.start(), None);
        assert_eq!(bench.start(), Some(StartError::Running(bench.id)));
        bench.end();
    }
    check_equations(&card);
}

#[test]
fn masks_can_be_probed_while_the_queue_runs() {
    let card = card("spin=0");
    let rx = Bench::started(&card, QueueId::rx(0));
    let tx = Bench::started(&card, QueueId::tx(0));
    for bench in [&rx, &tx] {
        for register in [m::MDP, m::MHP] {
            assert_eq!(bench.read32(register), ENTRIES - 1);
            bench.write32(register, m::MASK_PROBE);
            assert_eq!(m::largest_mask(bench.read32(register)), m::MAX_ENTRIES - 1);
        }
        assert!(bench.is_running());
    }
    // Around the ring several times with the masks of the start.
    let (mut host_rx, mut host_tx, mut received) = (rx.rx(), tx.tx(), 0u64);
    for round in 0..40 {
        (0..20).for_each(|number| assert!(host_rx.post(rx.frame(number), 2048)));
        host_rx.flush();
        send(&tx, &mut host_tx, 20, 60 + round);
        wait_for("frames", || {
            let ready = host_rx.ready();
            assert!((0..ready).all(|ahead| host_rx.header(ahead).len == 60 + round));
            host_rx.release(ready);
            received += u64::from(ready);
            received == 20 * (u64::from(round) + 1)
        });
        host_tx.completed();
    }
    assert_eq!(tx.read32(m::HDP), host_tx.sdp());
    assert_eq!(rx.read32(m::HHP), host_rx.shp());
    rx.end();
    tx.end();
    check_equations(&card);
}

#[test]
fn eight_bytes_at_sdp_move_both_pointers_and_wake_the_card() {
    let card = card("spin=0");
    let rx = Bench::started(&card, QueueId::rx(0));
    let tx = Bench::started(&card, QueueId::tx(0));
    rx.write64(m::SDP, 5 | 7 << 32);
    assert_eq!((rx.read32(m::SDP), rx.read32(m::SHP), rx.read64(m::SDP)), (5, 7, 5 | 7 << 32));
    rx.write32(m::SHP, 9);
    assert_eq!(rx.read64(m::SDP), 5 | 9 << 32);
    rx.write32(m::SDP, 6);
    assert_eq!(rx.read64(m::SDP), 6 | 9 << 32);
    rx.write64(m::SDP, 0);
    let (mut host_rx, mut host_tx) = (rx.rx(), tx.tx());
    (0..100).for_each(|number| assert!(host_rx.post(rx.frame(number), 2048)));
    host_rx.flush();
    for round in 1..=20 {
        // Long enough for the worker to sleep: a pointer written through a register has to wake it.
        std::thread::sleep(Duration::from_millis(2));
        assert!(host_tx.post(tx.frame(0), 64));
        match round % 2 {
            0 => tx.write64(m::SDP, u64::from(host_tx.sdp())),
            _ => tx.write32(m::SDP, host_tx.sdp()),
        }
        wait_for("the doorbell by register", || tx.read32(m::HDP) == host_tx.sdp());
        assert_eq!(host_rx.ready(), round);
    }
    rx.end();
    tx.end();
    check_equations(&card);
}

#[test]
fn a_stop_drains_and_one_that_cannot_is_forced() {
    let card = card("spin=20");
    let rx = Bench::started(&card, QueueId::rx(0));
    let tx = Bench::started(&card, QueueId::tx(0));
    let (mut host_rx, mut host_tx) = (rx.rx(), tx.tx());
    // No buffers behind the loopback: these frames cannot go anywhere.
    send(&tx, &mut host_tx, 10, 100);
    tx.write32(m::CONTROL, m::CONTROL_STOP);
    std::thread::sleep(Duration::from_millis(20));
    assert!(tx.is_running(), "it is not drained");
    assert_eq!(tx.start(), Some(StartError::Running(tx.id)));
    assert_eq!(card.stats().queues[2].passed, 0);
    (0..10).for_each(|number| assert!(host_rx.post(rx.frame(number), 2048)));
    rx.write32(m::SDP, host_rx.sdp());
    // What the ring behind gives back is found by its doorbell, or by the next look of the card.
    tx.write32(m::SDP, host_tx.sdp());
    wait_for("the stop", || !tx.is_running());
    assert_eq!((host_tx.completed(), host_rx.ready()), (10, 10));
    assert_eq!(card.state(tx.id), Some(QueueState::Stopped));
    // Again, and this time it never drains.
    card.detach(tx.id);
    let tx = Bench::started(&card, QueueId::tx(0));
    let mut host_tx = tx.tx();
    send(&tx, &mut host_tx, 10, 100);
    tx.write32(m::CONTROL, m::CONTROL_STOP);
    std::thread::sleep(Duration::from_millis(20));
    assert!(tx.is_running());
    tx.end();
    // An RX queue stops at once, and a stopped one can be stopped.
    rx.write32(m::CONTROL, m::CONTROL_STOP);
    assert!(!rx.is_running());
    rx.write32(m::CONTROL, m::CONTROL_STOP);
    assert!(!rx.is_running());
    rx.end();
    check_equations(&card);
}

#[test]
fn counters_are_strobed_and_reset_as_the_command_says() {
    let card = card("spin=20");
    let tx = Bench::started(&card, QueueId::tx(0));
    let rx = QueueId::rx(0);
    let mut host = tx.tx();
    let counters = |bench: &Bench<'_>| {
        [m::PASSED_FRAMES, m::PASSED_BYTES, m::DISCARDED_FRAMES].map(|register| bench.read64(register))
    };
    let mut total = 0;
    let mut send_eight = || {
        send(&tx, &mut host, 8, 100);
        total += 8;
        wait_for("frames", || {
            card.stats().queues.iter().find(|queue| queue.queue == tx.id).unwrap().passed % 8 == 0
                && tx.read32(m::HDP) == tx.read32(m::SDP)
        });
        host.completed();
    };
    send_eight();
    assert_eq!(counters(&tx), [0, 0, 0], "not before the first strobe");
    tx.write32(m::COUNTER_COMMAND, m::COUNTERS_STROBE);
    assert_eq!(counters(&tx), [8, 800, 0]);
    send_eight();
    assert_eq!(counters(&tx), [8, 800, 0], "as of the last strobe");
    tx.write32(m::COUNTER_COMMAND, m::COUNTERS_STROBE_AND_RESET);
    assert_eq!(counters(&tx), [16, 1600, 0]);
    tx.write32(m::COUNTER_COMMAND, m::COUNTERS_STROBE);
    assert_eq!(counters(&tx), [0, 0, 0]);
    send_eight();
    tx.write32(m::COUNTER_COMMAND, m::COUNTERS_STROBE);
    assert_eq!(counters(&tx), [8, 800, 0]);
    tx.write32(m::COUNTER_COMMAND, m::COUNTERS_RESET);
    assert_eq!(counters(&tx), [0, 0, 0]);
    // The RX queue behind was never started: all of it was discarded there.
    let base = dma_base(rx).unwrap();
    card.write(m::COUNTER_COMMAND.at(base), &m::COUNTERS_STROBE.to_le_bytes());
    assert_eq!(read64(&card, m::DISCARDED_FRAMES.at(base)), 24);
    assert_eq!(read64(&card, m::DISCARDED_BYTES.at(base)), 2400);
    assert_eq!(read64(&card, m::PASSED_FRAMES.at(base)), 0);
    tx.end();
    check_equations(&card);
}

#[test]
fn sze_counters_are_live_and_reset_by_one() {
    let card = card("engine=sze,spin=20");
    let rx = Bench::started(&card, QueueId::rx(0));
    let tx = Bench::started(&card, QueueId::tx(0));
    assert_eq!(rx.read32(s::STATUS), 0xf, "running, descriptors, data and ring ready");
    let mut sw = 0u32;
    let mut send_four = || {
        for _ in 0..4 {
            let head = tx.memory.window().word64((DATA as u32 + sw) as usize).unwrap();
            head.store(72, millrace_dma::Ordering::Relaxed);
            sw += 72;
        }
        tx.write32(s::SW_POINTER, sw);
        wait_for("frames", || tx.read32(s::HW_POINTER) == sw);
    };
    send_four();
    assert_eq!((tx.read64(s::PASSED_FRAMES), rx.read64(s::PASSED_FRAMES)), (4, 4));
    tx.write32(s::COUNTER_COMMAND, 0);
    assert_eq!(tx.read64(s::PASSED_FRAMES), 4);
    tx.write32(s::COUNTER_COMMAND, s::COUNTERS_RESET);
    assert_eq!((tx.read64(s::PASSED_FRAMES), rx.read64(s::PASSED_FRAMES)), (0, 4));
    rx.write32(s::CONTROL, 0);
    send_four();
    assert_eq!((tx.read64(s::PASSED_FRAMES), rx.read64(s::PASSED_FRAMES), rx.read64(s::DISCARDED_FRAMES)), (4, 4, 4));
    rx.end();
    tx.end();
    check_equations(&card);
}

#[test]
fn any_address_length_and_alignment_can_be_read_and_written() {
    let card = card("spin=0");
    let pattern: Vec<u8> = (0..64).map(|byte| byte ^ 0x5a).collect();
    card.write(0, &pattern);
    for at in 0..20 {
        for len in [0, 1, 2, 3, 5, 8, 13, 31] {
            let mut bytes = vec![0; len];
            card.read(at as u32, &mut bytes);
            assert_eq!(bytes, pattern[at..at + len], "{len} bytes at {at}");
        }
    }
    card.write(5, &[1, 2, 3]);
    assert_eq!(
        read64(&card, 4),
        u64::from_le_bytes([pattern[4], 1, 2, 3, pattern[8], pattern[9], pattern[10], pattern[11]])
    );
    // A 64-bit register by bytes.
    let base = dma_base(QueueId::tx(0)).unwrap();
    card.write(m::DESC_BASE.at(base), &0x1122_3344_5566_7788u64.to_le_bytes());
    card.write(m::DESC_BASE.at(base) + 3, &[0xaa, 0xbb]);
    assert_eq!(read64(&card, m::DESC_BASE.at(base)), 0x1122_33bb_aa66_7788);
    // Where nothing is, zeros; the end of the address space is not the end of the card.
    for address in [0x0700_0000, 0x0100_0000 + 0x80 * 2, u32::MAX - 2, u32::MAX] {
        card.write(address, &[0xff; 9]);
        let mut bytes = [1; 5];
        card.read(address, &mut bytes);
        assert!(bytes[..(u32::MAX - address).min(5) as usize].iter().all(|&byte| byte == 0), "{address:#x}");
    }
    let mut scratch = [0; 8];
    card.read(0, &mut scratch);
    assert_eq!(scratch[..5], pattern[..5], "nor does it go on at its beginning");
    let mut everything = vec![0; 1 << 16];
    (0..0x0200_0000 / everything.len() as u32).step_by(64).for_each(|page| card.read(page << 16, &mut everything));
}

#[test]
fn two_cards_in_one_process_know_nothing_of_each_other() {
    let cards = [card("spin=0"), card("spin=20,engine=sze@1")];
    cards[0].write(0, &[1; 8]);
    assert_eq!((read64(&cards[0], 0), read64(&cards[1], 0)), (0x0101_0101_0101_0101, 0));
    let benches = cards.each_ref().map(|card| Bench::started(card, QueueId::tx(0)));
    let mut host = benches[0].tx();
    send(&benches[0], &mut host, 7, 64);
    wait_for("frames", || benches[0].read32(m::HDP) == host.sdp());
    assert_eq!(cards[0].stats().queues[2].passed, 7);
    assert_eq!(cards[1].stats().queues[2].passed, 0);
    assert_ne!(cards[0].device_tree(), cards[1].device_tree());
    let [one, two] = benches;
    one.end();
    assert!(two.is_running());
    two.end();
}
