//! What comes of where the card is: in the process, in a daemon, closed.

use super::controller::{Controller, NotStarted, device, stats_of};
use super::medusa::{Medusa, still_works};
use crate::common::{self, Daemon, PATIENCE, check_equations, receive_all, send_all};
use millrace::{Device, Mode, QueueId, Sharing};
use millrace_abi::control::QueueState;
use millrace_abi::register::map::dma_base;
use millrace_abi::register::medusa as m;
use std::time::Instant;

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
    let strange = Controller::new(&other, QueueId::rx(0));
    assert_eq!(strange.lock(), Err(NotStarted::Exists));
    let control = m::CONTROL.at(dma_base(QueueId::rx(0)).unwrap());
    let refused = other.write32(control, m::CONTROL_START).unwrap_err();
    assert!(refused.to_string().contains("its registers with it"), "{refused}");
    assert_eq!(stats_of(&device, QueueId::rx(0)).refused, 1);
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
