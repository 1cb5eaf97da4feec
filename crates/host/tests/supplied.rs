//! Queues over buffers of the program.

use crate::common::*;
use millrace::{Device, Iova, Pages, Region};
use std::time::{Duration, Instant};

const BUFFER: u64 = 2048;
const GIB: u64 = 1 << 30;

/// Sends and receives `count` frames through buffers at `places`, in this order, again and again.
fn round_trips(device: &Device, region: &Region, base: Iova, places: &[u64], count: u64) {
    let mut rx = device.rx(0).open_supplied(256).unwrap();
    let mut tx = device.tx(0).open_supplied(256).unwrap();
    let half = places.len() / 2;
    let (senders, receivers) = places.split_at(half);
    let at = |places: &[u64], number: u64| places[(number % places.len() as u64) as usize];
    let (mut posted, mut received) = (0, 0);
    let (mut sent, mut completed) = (0, 0);
    let begin = Instant::now();
    while received < count || completed < count {
        assert!(begin.elapsed() < PATIENCE, "{received} of {count} received, {completed} of {sent} completed");
        while posted < received + receivers.len() as u64 && rx.post(base.plus(at(receivers, posted)), BUFFER as u16) {
            posted += 1;
        }
        rx.flush();
        while sent < count && sent < completed + senders.len() as u64 {
            let (offset, len) = (at(senders, sent), 60 + (sent * 37 % 1900) as usize);
            let mut frame = vec![0; len];
            fill(&mut frame, sent);
            region.window().span_mut(offset as usize, len).unwrap().write_from(&frame);
            if !tx.post(base.plus(offset), len as u16) {
                break;
            }
            sent += 1;
        }
        tx.flush();
        completed += u64::from(tx.completed().unwrap());
        assert!(completed <= sent, "the card completes what was posted and no more");
        let ready = rx.ready().unwrap();
        for ahead in 0..ready {
            let header = rx.header(ahead);
            let mut frame = vec![0; header.len.into()];
            let offset = at(receivers, received + u64::from(ahead));
            region.window().span(offset as usize, frame.len()).unwrap().read_into(&mut frame);
            assert_eq!(check(&frame), received + u64::from(ahead));
        }
        rx.release(ready);
        received += u64::from(ready);
        if ready == 0 && received < sent {
            assert!(rx.wait(Duration::from_secs(5)).unwrap(), "a wake-up was lost");
        }
    }
    assert!(tx.is_drained());
    assert!(!rx.wait(Duration::ZERO).unwrap());
    rx.close().unwrap();
    tx.close().unwrap();
    check_equations(device);
}

#[test]
fn buffers_of_the_program_go_round() {
    let device = Device::open("embedded:spin=20").unwrap();
    let region = Region::allocate(1 << 20, Pages::HugeIfAny).unwrap();
    let mapping = device.map(&region, true, None).unwrap();
    let places: Vec<u64> = (0..512).map(|buffer| buffer * BUFFER).collect();
    round_trips(&device, &region, mapping.iova(), &places, 20_000);
    mapping.unmap().unwrap();
}

#[test]
fn memory_may_cross_a_gib_boundary() {
    let device = Device::open("embedded:spin=20").unwrap();
    let region = Region::allocate(1 << 20, Pages::Ordinary).unwrap();
    for boundary in [5 * GIB, 1 << 45, 0xffff_ffff_c000_0000] {
        let at = Iova::new(boundary - (1 << 19));
        let mapping = device.map(&region, true, Some(at)).unwrap();
        assert_eq!(mapping.iova(), at);
        // Buffers right across the boundary, and from one side of it to the other with every packet, so that every
        // packet needs an upper address of its own.
        let across: Vec<u64> = [(1 << 19) - 100, (1 << 19) + 3000, (1 << 19) - 5000, (1 << 19) + 6000]
            .into_iter()
            .chain([1000, (1 << 20) - 4096, 9000, (1 << 20) - 8192, 20_000, (1 << 20) - 12_288, (1 << 19) - 9000])
            .chain([(1 << 19) + 9000])
            .collect();
        round_trips(&device, &region, at, &across, 3000);
        let everywhere: Vec<u64> = (0..510).map(|buffer| buffer * BUFFER + 1000).collect();
        round_trips(&device, &region, at, &everywhere, 6000);
        mapping.unmap().unwrap();
    }
}

#[test]
fn closing_gives_the_buffers_back() {
    let device = Device::open("embedded:spin=0").unwrap();
    let region = Region::allocate(1 << 16, Pages::Ordinary).unwrap();
    let mapping = device.map(&region, true, None).unwrap();
    for _ in 0..50 {
        let mut rx = device.rx(0).open_supplied(64).unwrap();
        let mut tx = device.tx(0).open_supplied(64).unwrap();
        (0..16).for_each(|i| assert!(rx.post(mapping.iova().plus(i * 2048), 2048)));
        rx.flush();
        (0..30).for_each(|i| assert!(tx.post(mapping.iova().plus((16 + i % 16) * 2048), 1000)));
        tx.flush();
        // The ring behind is full: these are not drained, and that is no reason to wait.
        tx.close().unwrap();
        rx.close().unwrap();
        region.window().span_mut(0, 1 << 16).unwrap().write_from(&[0xaa; 1 << 16]);
        let mut bytes = vec![0; 1 << 16];
        region.window().span(0, 1 << 16).unwrap().read_into(&mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0xaa), "the card still writes");
    }
    check_equations(&device);
}
