//! Several writers of one TX queue: direct ones have a ring each, mediated ones take turns with one.

use crate::common::{self, Daemon, PATIENCE, Process, check, check_equations, die, fill, rx, say, tx, within};
use millrace::{Device, Error, ErrorCode, Laggard, Mode, QueueState, RxQueue, Sharing, TxQueue};
use std::time::Duration;

const SHARED: Sharing = Sharing::Shared(Laggard::Block);

/// Sends a hundred frames, writes more and dies.
pub fn writer() {
    let device = Device::open(&format!("unix:{}", common::argument("SOCKET"))).unwrap();
    let mut tx = tx(&device, 0, Mode::Direct, SHARED);
    send(&mut tx, common::argument("WRITER").parse().unwrap(), 0, 100);
    // Written and announced to nobody.
    tx.get(&[64; 8]).unwrap().expect("room").keep();
    say("dies");
    die();
}

/// Sends frames `first` to `end` of one writer: the number of a frame says whose it is.
fn send(tx: &mut TxQueue, writer: u64, first: u64, end: u64) {
    let mut next = first;
    while next < end {
        let count = (end - next).min(8);
        if let Some(mut burst) = tx.get(&vec![64; count as usize]).unwrap() {
            (0..count).for_each(|i| fill(&mut burst[i as usize], writer << 32 | (next + i)));
            burst.send().unwrap();
            next += count;
        } else {
            tx.wait(Duration::from_millis(20)).unwrap();
        }
    }
}

/// Receives until `done` says so. `next` has the number of each writer's next frame; they come in order.
fn receive(rx: &mut RxQueue, next: &mut [u64], done: impl Fn(&[u64]) -> bool) {
    while !done(next) {
        assert!(rx.wait(PATIENCE).unwrap(), "nothing comes after {next:?}");
        for packet in rx.get(64).unwrap().iter() {
            let number = check(packet.data);
            let (writer, number) = ((number >> 32) as usize, number & 0xffff_ffff);
            assert_eq!(number, next[writer], "of writer {writer}");
            next[writer] += 1;
        }
    }
}

#[test]
fn writers_of_all_modes_send_at_once_and_each_keeps_its_order() {
    for engine in ["medusa", "sze", "calypte"] {
        let device = Device::open(&format!("embedded:engine={engine},spin=20")).unwrap();
        let modes = [Mode::Direct, Mode::Mediated, Mode::Direct, Mode::Direct];
        // Twice, and the second time others begin.
        for turn in 0..2 {
            let mut rx = rx(&device, 1, Mode::Direct, Sharing::Exclusive);
            std::thread::scope(|scope| {
                for writer in 0..modes.len() {
                    let (device, mode) = (&device, modes[(writer + turn) % modes.len()]);
                    scope.spawn(move || {
                        let mut tx = tx(device, 1, mode, SHARED);
                        send(&mut tx, writer as u64, 0, 20_000);
                        tx.close().unwrap();
                    });
                }
                receive(&mut rx, &mut [0; 4], |next| next.iter().all(|&next| next == 20_000));
            });
            rx.close().unwrap();
        }
        check_equations(&device);
    }
}

#[test]
fn sixteen_can_write_and_the_seventeenth_is_refused() {
    let device = Device::open("embedded:spin=20,buffers=128").unwrap();
    let mut rx = rx(&device, 0, Mode::Direct, Sharing::Exclusive);
    let mut writers: Vec<TxQueue> = (0..16).map(|_| tx(&device, 0, Mode::Direct, SHARED)).collect();
    let refused = device.tx(0).sharing(SHARED).open().err().expect("refused");
    assert!(matches!(&refused, Error::Client(client) if client.code() == Some(ErrorCode::Busy)), "{refused}");
    let (mut next, mut end) = ([0; 16], 0);
    // They leave one by one, the first first; the others go on.
    while !writers.is_empty() {
        let gone = 16 - writers.len();
        for (i, writer) in writers.iter_mut().enumerate() {
            send(writer, (gone + i) as u64, end, end + 8);
        }
        end += 8;
        receive(&mut rx, &mut next, |next| next[gone..].iter().all(|&next| next == end));
        writers.remove(0).close().unwrap();
    }
    check_equations(&device);
}

#[test]
fn a_writer_that_dies_takes_only_its_own_ring_along() {
    let daemon = Daemon::start("queues=1,spin=20,buffers=256");
    let device = daemon.device();
    let mut rx = rx(&device, 0, Mode::Direct, Sharing::Exclusive);
    let mut tx = tx(&device, 0, Mode::Direct, SHARED);
    send(&mut tx, 0, 0, 8);
    let mut next = [0; 11];
    let before = (daemon.fds(), daemon.mappings());
    for turn in 1..=10u64 {
        let mut writer =
            Process::start("one of several writers", &[("SOCKET", daemon.socket()), ("WRITER", &turn.to_string())]);
        send(&mut tx, 0, turn * 8, turn * 8 + 8);
        writer.expect("dies");
        writer.wait();
        // What it announced arrives, or is gone with it: but in order, and nothing that it did not announce.
        receive(&mut rx, &mut next, |next| next[0] == turn * 8 + 8);
        // What the daemon opens once, a little later, may not have been there before: ten writers that leave something are more than that.
        within(PATIENCE, || match (daemon.fds(), daemon.mappings()) {
            now if now.0 <= before.0 + 1 && now.1 == before.1 => Ok(()),
            now => Err(format!("{now:?}, before {before:?}")),
        });
    }
    let state = device.stats().unwrap().queues.iter().find(|queue| queue.queue == tx.id()).map(|queue| queue.state);
    assert_eq!(state, Some(QueueState::Running));
    check_equations(&device);
}

#[test]
fn a_ring_that_does_not_drain_is_given_up_alone() {
    let device = Device::open("embedded:spin=20,buffers=128").unwrap();
    let mut rx = rx(&device, 0, Mode::Direct, Sharing::Exclusive);
    let mut stuck = tx(&device, 0, Mode::Direct, SHARED);
    let mut other = tx(&device, 0, Mode::Direct, SHARED);
    // Until neither the RX ring nor the TX ring takes another.
    let mut sent = 0;
    loop {
        let Some(mut burst) = stuck.get(&[64; 4]).unwrap() else {
            if stuck.wait(Duration::from_millis(50)).unwrap() { continue } else { break }
        };
        (0..4).for_each(|i| fill(&mut burst[i], sent + i as u64));
        burst.send().unwrap();
        sent += 4;
    }
    assert!(matches!(stuck.stop(), Err(Error::NotDrained(_))));
    let mut received = 0;
    while rx.wait(Duration::from_millis(50)).unwrap() {
        received += rx.get(64).unwrap().len() as u64;
    }
    assert!(received < sent, "{received} of {sent}: the ring was not full");
    send(&mut other, 1, 0, 100);
    receive(&mut rx, &mut [0, 0], |next| next[1] == 100);
    other.close().unwrap();
    check_equations(&device);
}
