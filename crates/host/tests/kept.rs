//! Bursts that are kept across calls, as C programs do: several gets, then one put for all of them.

use crate::common::{self, PATIENCE, check, check_equations, fill, has, receive_all, rx, tx};
use millrace::{Device, Laggard, Mode, RxQueue, Sharing, TxQueue};
use std::time::Duration;

const SHARINGS: [Sharing; 2] = [Sharing::Exclusive, Sharing::Shared(Laggard::Block)];

/// Calls `test` with a fresh pair of queues of every engine, mode and kind of sharing.
fn for_all(mut test: impl FnMut(&str, &mut TxQueue, &mut RxQueue)) {
    for engine in ["medusa", "sze", "calypte", "dd"] {
        let device = Device::open(&format!("embedded:engine={engine},spin=20")).unwrap();
        for mode in [Mode::Direct, Mode::Mediated] {
            for sharing in SHARINGS {
                if !has(engine, mode, sharing) {
                    continue;
                }
                let mut rx = rx(&device, 0, mode, sharing);
                let mut tx = tx(&device, 0, mode, Sharing::Exclusive);
                test(&format!("{engine} {mode} {sharing:?}"), &mut tx, &mut rx);
                tx.close().unwrap();
                rx.close().unwrap();
            }
        }
        check_equations(&device);
    }
}

/// Takes slots for frames from `first` on, writes and keeps them.
fn keep_some(tx: &mut TxQueue, first: u64, count: usize, len: u16) {
    let mut burst = tx.get(&vec![len; count]).unwrap().expect("room");
    for i in 0..count {
        fill(&mut burst[i], first + i as u64);
    }
    burst.keep();
}

#[test]
fn what_is_kept_leaves_with_the_flush_and_not_before() {
    for_all(|what, tx, rx| {
        keep_some(tx, 0, 3, 64);
        keep_some(tx, 3, 5, 1000);
        assert!(!rx.wait(Duration::from_millis(20)).unwrap(), "{what}: arrived before it was written");
        tx.flush().unwrap();
        receive_all(rx, 0, 8);
        keep_some(tx, 8, 2, 64);
        tx.commit().unwrap();
        keep_some(tx, 10, 2, 64);
        tx.flush().unwrap();
        receive_all(rx, 8, 12);
    });
}

#[test]
fn a_burst_that_is_dropped_behind_kept_ones_is_not_sent() {
    for_all(|what, tx, rx| {
        keep_some(tx, 0, 3, 64);
        drop(tx.get(&[64; 7]).unwrap().expect("room"));
        keep_some(tx, 3, 1, 90);
        tx.flush().unwrap();
        receive_all(rx, 0, 4);
        assert!(!rx.wait(Duration::from_millis(5)).unwrap(), "{what}: more than was sent");
    });
}

#[test]
fn enough_committed_packets_leave_without_a_flush() {
    for_all(|what, tx, rx| {
        let mut sent = 0;
        // A quarter of the largest ring, in packets that fill it quickly.
        while !rx.wait(Duration::ZERO).unwrap() {
            // A full ring has certainly been announced; what is left to do is the card's.
            let Some(mut burst) = tx.get(&[1500; 16]).unwrap() else {
                assert!(rx.wait(PATIENCE).unwrap(), "{what}: nothing left");
                break;
            };
            (0..16).for_each(|i| fill(&mut burst[i], sent + i as u64));
            burst.keep();
            tx.commit().unwrap();
            sent += 16;
        }
        tx.flush().unwrap();
        receive_all(rx, 0, sent);
    });
}

#[test]
fn kept_packets_stay_as_they_are_until_they_are_released() {
    for_all(|what, tx, rx| {
        keep_some(tx, 0, 32, 200);
        tx.flush().unwrap();
        let mut next = 0;
        while next < 32 {
            let burst = rx.get(5).unwrap();
            for packet in burst.iter() {
                assert_eq!(check(packet.data), next, "{what}");
                next += 1;
            }
            let none = burst.is_empty();
            burst.keep();
            if none {
                // A mediated queue has nothing more before a release; all others only wait for the card.
                if what.contains("mediated") {
                    rx.release();
                }
                rx.wait(PATIENCE).unwrap();
            }
        }
        rx.release();
        rx.release();
        keep_some(tx, 32, 4, 64);
        tx.flush().unwrap();
        receive_all(rx, 32, 36);
    });
}

#[test]
fn a_ring_full_of_kept_packets_blocks_until_the_release() {
    for engine in ["medusa", "sze", "calypte", "dd"] {
        for sharing in SHARINGS {
            if !has(engine, Mode::Direct, sharing) {
                continue;
            }
            let device = Device::open(&format!("embedded:engine={engine},buffers=256,ring=65536,spin=20")).unwrap();
            let mut rx = rx(&device, 0, Mode::Direct, sharing);
            let mut tx = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
            let (mut sent, mut kept) = (0, 0);
            // More than both rings hold: the card must wait for us, not overwrite what we keep.
            for _ in 0..100 {
                sent += common::send_some(&mut tx, sent, 16, 1000).unwrap() as u64;
                let burst = rx.get(16).unwrap();
                for packet in burst.iter() {
                    assert_eq!(check(packet.data), kept);
                    kept += 1;
                }
                burst.keep();
                std::thread::sleep(Duration::from_micros(100));
            }
            assert!(kept > 30 && kept < sent, "{engine} {sharing:?}: {kept} of {sent}");
            rx.release();
            receive_all(&mut rx, kept, sent);
            tx.close().unwrap();
            rx.close().unwrap();
            check_equations(&device);
        }
    }
}

#[test]
fn two_mediated_writers_take_turns_without_mixing_their_bursts() {
    let device = Device::open("embedded:engine=medusa,spin=20").unwrap();
    let sharing = Sharing::Shared(Laggard::Block);
    let mut rx = rx(&device, 0, Mode::Direct, Sharing::Exclusive);
    let mut one = tx(&device, 0, Mode::Mediated, sharing);
    let mut other = tx(&device, 0, Mode::Mediated, sharing);
    for turn in 0..50 {
        keep_some(&mut one, turn * 8, 3, 100);
        assert!(other.get(&[100]).unwrap().is_none(), "the lock is taken");
        keep_some(&mut one, turn * 8 + 3, 1, 100);
        one.flush().unwrap();
        keep_some(&mut other, turn * 8 + 4, 4, 100);
        assert!(one.get(&[100]).unwrap().is_none(), "the lock is taken");
        other.flush().unwrap();
    }
    receive_all(&mut rx, 0, 400);
    one.close().unwrap();
    other.close().unwrap();
    rx.close().unwrap();
    check_equations(&device);
}
