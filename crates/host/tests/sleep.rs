//! Sleeping: no wake-up is lost, and who has nothing to do costs nothing.

use crate::common::*;
use millrace::{Device, Laggard, Mode, QueueId, Sharing};
use std::time::{Duration, Instant};

/// A wake-up that was lost shows as a wait that takes this long; one that was not, whatever else the machine does, takes
/// less.
const LOST: Duration = PATIENCE;

/// Does nothing for so many nanoseconds, without letting anybody else run.
fn pause(nanoseconds: u64) {
    let begin = Instant::now();
    while begin.elapsed().as_nanos() < u128::from(nanoseconds) {
        std::hint::spin_loop();
    }
}

/// One packet at a time, there and back, with a pause of up to 40 us before each side goes on: sometimes the other one
/// is awake, sometimes it is about to sleep, sometimes it sleeps.
fn alternate(options: &str, mode: Mode, sharing: Sharing, count: u64) {
    let device = Device::open(&format!("embedded:{options}")).unwrap();
    let mut receiver = rx(&device, 0, mode, sharing);
    let mut sender = tx(&device, 0, mode, Sharing::Exclusive);
    let mut random = Random(count | 1);
    let begin = Instant::now();
    for number in 0..count {
        pause(match random.below(4) {
            0 => random.below(40_000),
            1 => random.below(3_000),
            _ => 0,
        });
        assert_eq!(send_some(&mut sender, number, 1, 64).unwrap(), 1);
        if random.below(4) == 0 {
            pause(random.below(8_000));
        }
        assert!(receiver.wait(LOST).unwrap(), "the wake-up for packet {number} was lost");
        let burst = receiver.get(4).unwrap();
        assert_eq!((burst.len(), check(&burst[0])), (1, number));
    }
    let workers = device.stats().unwrap().workers;
    println!("{options} {mode}: {count} round trips in {:?}, {} sleeps", begin.elapsed(), workers[0].sleeps);
    assert!(workers[0].sleeps > count / 10, "the worker hardly slept: {workers:?}");
    check_equations(&device);
}

#[test]
fn a_hundred_thousand_alternations_lose_no_wake_up() {
    alternate("spin=0", Mode::Direct, Sharing::Exclusive, 100_000);
}

#[test]
fn nor_do_the_other_engine_modes_and_subscribers() {
    alternate("spin=0,engine=sze", Mode::Direct, Sharing::Exclusive, 30_000);
    alternate("spin=0", Mode::Direct, Sharing::Shared(Laggard::Drop), 20_000);
    alternate("spin=0,engine=sze", Mode::Direct, Sharing::Shared(Laggard::Block), 10_000);
    alternate("spin=0", Mode::Mediated, Sharing::Exclusive, 5_000);
    alternate("spin=1,engine=sze", Mode::Mediated, Sharing::Shared(Laggard::Block), 5_000);
}

/// Queues of one program on two workers have their kicks in common: each thread wakes the worker that it needs, however
/// the others sleep and wake, come and go, and whoever serves the queue by now.
#[test]
fn threads_of_one_program_wake_and_are_woken_each_for_its_own_queue() {
    const PAIRS: u32 = 4;
    const ROUNDS: u64 = 6_000;
    let device = Device::open("embedded:queues=6,workers=2,spin=0,engine=sze@2,engine=dd@3").unwrap();
    std::thread::scope(|scope| {
        for index in 0..PAIRS {
            let device = &device;
            scope.spawn(move || {
                let mut random = Random(u64::from(index) + 1);
                let mut pair = None;
                for number in 0..ROUNDS {
                    // Now and then the pair is closed and opened, so that the kick is forgotten and watched again.
                    let open = || {
                        let receiver = rx(device, index, Mode::Direct, Sharing::Exclusive);
                        (receiver, tx(device, index, Mode::Direct, Sharing::Exclusive))
                    };
                    let (receiver, sender) = pair.get_or_insert_with(open);
                    pause(random.below(30_000));
                    assert_eq!(send_some(sender, number, 1, 64).unwrap(), 1);
                    assert!(receiver.wait(LOST).unwrap(), "pair {index}: the wake-up for packet {number} was lost");
                    assert_eq!(check(&receiver.get(4).unwrap()[0]), number);
                    if random.below(500) == 0 {
                        pair = None;
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0..200 {
                let (index, worker) = (round / 2 % PAIRS, round % 2);
                device.move_queue(QueueId::tx(index), worker).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    });
    let workers = device.stats().unwrap().workers;
    println!("{workers:?}");
    assert!(workers.iter().all(|worker| worker.sleeps > 100), "the workers hardly slept: {workers:?}");
    check_equations(&device);
}

/// Sender, card and receiver each wait for the others: for packets, for room, for the ring behind.
#[test]
fn full_and_empty_rings_wake_their_waiters() {
    for engine in ["medusa", "sze", "calypte", "dd"] {
        let device = Device::open(&format!("embedded:spin=0,engine={engine},buffers=128,ring=32768")).unwrap();
        for sharing in [Sharing::Exclusive, Sharing::Shared(Laggard::Block)] {
            if !has(engine, Mode::Direct, sharing) {
                continue;
            }
            let mut receiver = rx(&device, 0, Mode::Direct, sharing);
            let mut sender = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
            let count = 60_000;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut next, mut random) = (0, Random(5));
                    while next < count {
                        let sent = send_some(&mut sender, next, (count - next).min(1 + random.below(30)) as usize, 200);
                        next += sent.unwrap() as u64;
                        if !sender.wait(LOST).unwrap() {
                            panic!("no room after {next} packets: a wake-up was lost");
                        }
                        if random.below(300) == 0 {
                            std::thread::sleep(Duration::from_micros(random.below(500)));
                        }
                    }
                });
                let (mut next, mut random) = (0, Random(9));
                while next < count {
                    assert!(receiver.wait(LOST).unwrap(), "no packet after {next}: a wake-up was lost");
                    for packet in receiver.get(1 + random.below(60) as usize).unwrap().iter() {
                        assert_eq!(check(packet.data), next);
                        next += 1;
                    }
                    if random.below(300) == 0 {
                        std::thread::sleep(Duration::from_micros(random.below(500)));
                    }
                }
            });
        }
        check_equations(&device);
    }
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let device = Device::open("embedded:spin=0").unwrap();
    for mode in [Mode::Direct, Mode::Mediated] {
        let mut receiver = rx(&device, 0, mode, Sharing::Exclusive);
        for time in [0, 1, 20] {
            let time = Duration::from_millis(time);
            let begin = Instant::now();
            assert!(!receiver.wait(time).unwrap());
            assert!(begin.elapsed() >= time);
        }
    }
}

/// Processor time of a card over two seconds, after it has had time to calm down.
fn idle_ticks(daemon: &Daemon) -> u64 {
    std::thread::sleep(Duration::from_millis(300));
    let before = daemon.ticks();
    std::thread::sleep(Duration::from_secs(2));
    daemon.ticks() - before
}

#[test]
fn an_idle_card_costs_less_than_one_percent() {
    let daemon = Daemon::start("queues=16,engine=sze@8-15");
    let device = daemon.device();
    let mut queues = Vec::new();
    for index in 0..16 {
        let sharing = if index % 4 == 3 { Sharing::Shared(Laggard::Drop) } else { Sharing::Exclusive };
        let mode = if index % 4 == 2 { Mode::Mediated } else { Mode::Direct };
        queues.push((rx(&device, index, mode, sharing), tx(&device, index, mode, Sharing::Exclusive)));
        // Each has carried something, so that all are as they are in use.
        let (receiver, sender) = queues.last_mut().unwrap();
        send_all(sender, 0, 10, 100);
        receive_all(receiver, 0, 10);
    }
    let ticks = idle_ticks(&daemon);
    println!("{ticks} ticks of 10 ms in 2 s");
    assert!(ticks < 2, "{ticks} ticks of 10 ms in 2 s");
}

#[test]
fn an_idle_card_with_a_tap_costs_less_than_one_percent() {
    if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/net/tun").exists() {
        println!("skipped: needs root and /dev/net/tun");
        return;
    }
    let name = format!("mrt{}", std::process::id() % 100_000);
    let probe = Device::open(&format!("embedded:port=tap:{name}"));
    if let Err(error) = probe {
        println!("skipped: {error}");
        return;
    }
    drop(probe);
    let daemon = Daemon::start(&format!("port=tap:{name}"));
    let device = daemon.device();
    let _queues = (rx(&device, 0, Mode::Direct, Sharing::Exclusive), tx(&device, 0, Mode::Direct, Sharing::Exclusive));
    let ticks = idle_ticks(&daemon);
    assert!(ticks < 2, "{ticks} ticks of 10 ms in 2 s");
    check_equations(&device);
}

#[test]
fn a_card_that_is_full_behind_sleeps_too() {
    let daemon = Daemon::start("queues=2,engine=sze@1,buffers=128,ring=32768");
    let device = daemon.device();
    let mut queues = Vec::new();
    for index in 0..2 {
        let receiver = rx(&device, index, Mode::Direct, Sharing::Exclusive);
        let mut sender = tx(&device, index, Mode::Direct, Sharing::Exclusive);
        let mut sent = 0;
        while send_some(&mut sender, sent, 1, 100).unwrap() > 0 || sender.wait(Duration::from_millis(50)).unwrap() {
            sent += 1;
        }
        queues.push((receiver, sender));
    }
    let ticks = idle_ticks(&daemon);
    assert!(ticks < 2, "{ticks} ticks of 10 ms in 2 s");
    for (index, (receiver, sender)) in (0..).zip(&mut queues) {
        receive_all(receiver, 0, 100);
        assert!(sender.wait(LOST).unwrap(), "tx{index} was not woken when there was room again");
    }
}
