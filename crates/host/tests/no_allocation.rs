//! Nothing is allocated on the data path: not by the program, not by the card's worker, which runs in this process too.

mod common;

use common::*;
use millrace::{Buffer, Device, Laggard, Mode, Pool, PoolRx, PoolTx, RxQueue, Sharing, TxQueue};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Allocations of all threads.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// There and back in bursts, with sleeping now and then.
fn work(rx: &mut RxQueue, tx: &mut TxQueue, rounds: usize) {
    let lengths = [64, 1518, 60, 700, 64, 64, 64, 64];
    for round in 0..rounds {
        let mut burst = tx.get(&lengths).unwrap().expect("room");
        for i in 0..burst.len() {
            burst[i][..2].copy_from_slice(&[round as u8, i as u8]);
        }
        if round % 2 == 0 {
            burst.send().unwrap();
        } else {
            burst.put();
            tx.flush().unwrap();
        }
        let mut seen = 0;
        while seen < lengths.len() {
            if round % 16 == 0 {
                assert!(rx.wait(PATIENCE).unwrap());
            }
            let burst = rx.get(64).unwrap();
            if burst.is_empty() {
                // The worker may need this core.
                std::thread::yield_now();
            }
            for packet in burst.iter() {
                assert_eq!(packet.data[..2], [round as u8, seen as u8]);
                seen += 1;
            }
        }
    }
}

/// The same over a pool; `frames` has the capacity for a burst. In every round the first frame leaves so much later, in ns,
/// than the one of the round before came; 0: at once.
fn work_on(pool: &Pool, rx: &mut PoolRx, tx: &mut PoolTx, frames: &mut Vec<Buffer>, rounds: usize, later: u64) {
    let mut now = 0;
    for round in 0..rounds {
        for i in 0..8 {
            let mut frame = pool.take().expect("a free buffer");
            frame.set_len(64 + i * 100);
            frame[..2].copy_from_slice(&[round as u8, i as u8]);
            if i == 0 && later > 0 && now > 0 {
                frame.set_launch(now + later);
            }
            frames.push(frame);
        }
        assert_eq!(tx.send(frames).unwrap(), 8);
        while frames.len() < 8 {
            if round % 16 == 0 {
                assert!(rx.wait(PATIENCE).unwrap());
            }
            if rx.receive(frames, 8).unwrap() == 0 {
                std::thread::yield_now();
            }
        }
        (0..8).for_each(|i| assert_eq!(frames[i][..2], [round as u8, i as u8]));
        now = frames[0].received_at().map_or(0, |(time, _)| time);
        frames.clear();
    }
}

// One test only: the harness allocates while another one runs.
#[test]
fn the_data_path_allocates_nothing() {
    for engine in ["medusa", "sze", "calypte", "dd"] {
        for sharing in [Sharing::Exclusive, Sharing::Shared(Laggard::Drop)] {
            if !has(engine, Mode::Direct, sharing) {
                continue;
            }
            for spin in [0, 20] {
                let device = Device::open(&format!("embedded:engine={engine},spin={spin}")).unwrap();
                let mut receiver = rx(&device, 0, Mode::Direct, sharing);
                let mut sender = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
                // The first sleep on a queue asks the driver for what wakes it.
                assert!(!receiver.wait(Duration::from_millis(1)).unwrap());
                work(&mut receiver, &mut sender, 10);
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                work(&mut receiver, &mut sender, 2000);
                let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
                assert_eq!(allocations, 0, "{engine} {sharing:?} spin={spin}");
                check_equations(&device);
            }
        }
    }
    for (spin, later) in [(0, 0), (20, 0), (0, 200_000), (20, 200_000)] {
        let device = Device::open(&format!("embedded:engine=dd,tsu,spin={spin}")).unwrap();
        let pool = device.pool(256, 2048).unwrap();
        let mut rx = device.rx(0).open_on(&pool, 64).unwrap();
        let mut tx = device.tx(0).open_on(&pool, 64).unwrap();
        let mut frames = Vec::with_capacity(8);
        assert!(!rx.wait(Duration::from_millis(1)).unwrap());
        // Frames that wait for a time are kept in what grows to as many as there ever were at once.
        work_on(&pool, &mut rx, &mut tx, &mut frames, if later > 0 { 1000 } else { 10 }, later);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        work_on(&pool, &mut rx, &mut tx, &mut frames, 2000, later);
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "a pool, spin={spin} later={later}");
        check_equations(&device);
    }
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > 100, "the counter counts");
}
