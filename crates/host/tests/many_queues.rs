//! Thousands of queues: configured, opened, one of them with traffic, and all of them within the fds that a
//! process may have.

use crate::common::{self, Daemon, Process, rx, tx};
use millrace::stats::CardStats;
use millrace::{Device, Laggard, Mode, QueueId, Sharing};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;

/// Sends one packet and waits for it.
fn round_trip(rx: &mut millrace::RxQueue, tx: &mut millrace::TxQueue, byte: u8) {
    let mut slots = tx.get(&[64]).unwrap().unwrap();
    slots[0].fill(byte);
    slots.send().unwrap();
    assert!(rx.wait(common::PATIENCE).unwrap(), "the packet does not come back");
    let burst = rx.get(1).unwrap();
    assert_eq!(burst[0], [byte; 64]);
}

#[test]
fn of_4096_configured_pairs_one_carries_traffic() {
    let card = Device::open("embedded:queues=4096,engine=sze@0-1023,engine=calypte@1024-2047").unwrap();
    assert_eq!((card.rx_queues(), card.tx_queues()), (4096, 4096));
    for index in [0, 1024, 4095] {
        let (mut rx, mut tx) =
            (card.rx(index).open().unwrap().start().unwrap(), card.tx(index).open().unwrap().start().unwrap());
        (0..100).for_each(|byte| round_trip(&mut rx, &mut tx, byte));
        tx.close().unwrap();
    }
    let stats = common::settled(&card, |stats| {
        let expected = |queue: QueueId| if [0, 1024, 4095].contains(&queue.index) { 100 } else { 0 };
        stats.queues.iter().all(|entry| [entry.offered, entry.passed] == [expected(entry.queue); 2])
    });
    assert_eq!(stats.queues.len(), 8192);
}

/// Most fds that the processes of these tests may have.
const LIMIT: u64 = 20_000;
const PAIRS: u32 = 4096;
/// Of three engines, with rings that are as small as they can be.
const OPTIONS: &str = "queues=4096,engine=sze@0-1023,engine=medusa@1024-2047,engine=dd@2048-4095,ring=32768,buffers=128,\
    buffer=256,descriptors=8";

/// Descriptors of this process.
fn fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The role `program with all queues`: opens all pairs of a card in its own process or in another, which inherits its limit.
pub fn open_everything(place: &str) {
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) }).unwrap();
    let daemon = (place == "daemon").then(|| Daemon::start(OPTIONS));
    let card = match &daemon {
        Some(daemon) => daemon.device(),
        None => Device::open(&format!("embedded:{OPTIONS}")).unwrap(),
    };
    let of_card = || daemon.as_ref().map_or(0, Daemon::fds);
    let before = (fds(), of_card());
    let mut pairs: Vec<_> = (0..PAIRS)
        .map(|index| {
            let rx = card.rx(index).open().and_then(|rx| rx.start());
            let tx = card.tx(index).open().and_then(|tx| tx.start());
            (
                rx.unwrap_or_else(|error| panic!("rx{index}: {error}")),
                tx.unwrap_or_else(|error| panic!("tx{index}: {error}")),
            )
        })
        .collect();
    let open = (fds() - before.0, of_card() - before.1);
    for (at, (rx, tx)) in pairs.iter_mut().enumerate() {
        round_trip(rx, tx, at as u8);
    }
    // Whoever has slept once is woken by a descriptor of its own.
    for (rx, _) in &mut pairs {
        assert!(!rx.wait(Duration::from_micros(20)).unwrap());
    }
    let slept = (fds() - before.0, of_card() - before.1);
    common::say(&format!("{} {} {} {}", open.0, open.1, slept.0, slept.1));
    common::check_equations(&card);
    let passed = |stats: &CardStats| stats.queues.iter().map(|queue| queue.passed).sum::<u64>();
    common::settled(&card, |stats| passed(stats) == 2 * u64::from(PAIRS));
    // One that goes takes nothing of the others along, whose fds have common parts with its own.
    let mut left = pairs.split_off(pairs.len() / 2);
    drop(pairs);
    left.iter_mut().for_each(|(rx, tx)| round_trip(rx, tx, 77));
    drop(left);
    drop(card);
    common::say("done");
}

/// What a shared queue costs its card: the files of two regions, for those who come later, however many have come.
#[test]
fn a_shared_queue_keeps_the_files_of_its_memory_only() {
    let daemon = Daemon::start("queues=4,engine=sze@1,engine=calypte@2,buffers=128,ring=32768");
    let shared = |device: &Device, index| {
        let sharing = Sharing::Shared(Laggard::Drop);
        (rx(device, index, Mode::Direct, sharing), tx(device, index, Mode::Direct, sharing))
    };
    let devices = [daemon.device(), daemon.device(), daemon.device()];
    // The kicks of the connections, for the worker of each pair.
    for device in &devices {
        (0..3).for_each(|index| drop(shared(device, index)));
    }
    for index in 0..3 {
        let before = daemon.fds();
        let _queues = devices.each_ref().map(|device| shared(device, index));
        assert_eq!(daemon.fds() - before, 4, "pair {index}");
    }
}

fn all_pairs_fit(place: &str) {
    let most = getrlimit(Resource::Nofile).maximum;
    if most.is_some_and(|most| most < LIMIT) {
        println!("skipped: a process may have no more than {most:?} fds here");
        return;
    }
    let mut program = Process::start("program with all queues", &[("PLACE", place)]);
    let said = program.hear().unwrap_or_else(|| panic!("the program has ended; see above"));
    println!("{place}: fds of program and card when all are open, and when each has slept: {said}");
    let counts: Vec<usize> = said.split(' ').map(|count| count.parse().unwrap()).collect();
    let workers = 64;
    assert!(counts[..2].iter().all(|&count| count <= workers), "queues cost fds before anybody sleeps: {said}");
    let sleepers = PAIRS as usize * if place == "daemon" { 1 } else { 2 };
    assert!(counts[2] <= sleepers + workers, "more than one to wait on, and one to signal: {said}");
    program.expect("done");
}

#[test]
fn all_pairs_of_an_embedded_card_are_open_within_20000_fds() {
    all_pairs_fit("embedded");
}

#[test]
fn all_pairs_of_a_card_in_a_daemon_are_open_within_20000_fds() {
    all_pairs_fit("daemon");
}
