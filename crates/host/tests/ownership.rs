//! Who may have a queue: alone, together, in turns, one after the other.

use crate::common::*;
use millrace::{Device, Error, Laggard, Mode, QueueId, Sharing};
use millrace_abi::message::{Buffers, ErrorCode};
use millrace_driver::{Client, ClientError};
use std::time::{Duration, Instant};

const ENGINES: [&str; 3] = ["medusa", "sze", "calypte"];
const MODES: [Mode; 2] = [Mode::Direct, Mode::Mediated];

/// Holds queues and a lock until it is told to die.
pub fn holder() {
    let device = Device::open(&format!("unix:{}", argument("SOCKET"))).unwrap();
    let _rx = device.rx(0).open().unwrap();
    let _tx = device.tx(0).mode(Mode::Mediated).open().unwrap();
    let _lock = device.lock("/mac", 0b11, Duration::ZERO).unwrap();
    say("holds");
    while listen() != "end" {}
    die();
}

fn refusal(result: Result<impl Sized, Error>) -> (ErrorCode, String) {
    match result.err().expect("refused") {
        Error::Client(ClientError::Refused { code, text }) => (code, text),
        other => panic!("{other}"),
    }
}

#[test]
fn busy_names_the_holder_and_death_ends_it() {
    let daemon = Daemon::start("queues=2");
    let mut holder = Process::start("holder", &[("SOCKET", daemon.socket())]);
    holder.expect("holds");
    let device = daemon.device();
    let pid = holder.pid().to_string();
    for sharing in [Sharing::Exclusive, Sharing::Shared(Laggard::Drop)] {
        for mode in MODES {
            let (code, text) = refusal(device.rx(0).mode(mode).sharing(sharing).open());
            assert!(code == ErrorCode::Busy && text.contains(&pid), "{text}");
        }
        let (code, text) = refusal(device.tx(0).mode(Mode::Mediated).sharing(sharing).open());
        assert!(code == ErrorCode::Busy && text.contains(&pid), "{text}");
    }
    let stats = device.stats().unwrap();
    let held: Vec<_> = stats.queues.iter().filter(|queue| queue.holders == [holder.pid()]).collect();
    assert_eq!(held.iter().map(|queue| queue.queue).collect::<Vec<_>>(), [QueueId::rx(0), QueueId::tx(0)]);
    // Locks: overlapping features of the same component only, and for as long as the holder lives.
    let (code, text) = refusal(device.lock("/mac", 0b10, Duration::from_millis(20)));
    assert!(code == ErrorCode::Busy && text.contains(&pid), "{text}");
    drop(device.lock("/mac", 0b100, Duration::ZERO).unwrap());
    drop(device.lock("/tsu", 0b11, Duration::ZERO).unwrap());
    holder.tell("end");
    holder.wait();
    let (lock, _) = within(PATIENCE, || device.lock("/mac", 0b11, Duration::ZERO));
    within(PATIENCE, || device.rx(0).open());
    within(PATIENCE, || device.tx(0).open());
    let (code, _) = refusal(daemon.device().lock("/mac", 0b01, Duration::ZERO));
    assert_eq!(code, ErrorCode::Busy);
    drop(lock);
    drop(daemon.device().lock("/mac", 0b01, Duration::ZERO).unwrap());
}

#[test]
fn exclusive_and_shared_exclude_each_other() {
    let device = Device::open("embedded:queues=2,engine=sze@1,spin=20").unwrap();
    let shared = |laggard| Sharing::Shared(laggard);
    for index in [0, 1] {
        for mode in MODES {
            let alone = device.rx(index).mode(mode).open().unwrap();
            for other in MODES {
                assert_eq!(refusal(device.rx(index).mode(other).open()).0, ErrorCode::Busy);
                assert_eq!(
                    refusal(device.rx(index).mode(other).sharing(shared(Laggard::Block)).open()).0,
                    ErrorCode::Busy
                );
            }
            drop(alone);
            let first = device.rx(index).mode(mode).sharing(shared(Laggard::Block)).open().unwrap();
            for other in MODES {
                assert_eq!(refusal(device.rx(index).mode(other).open()).0, ErrorCode::Busy);
                drop(device.rx(index).mode(other).sharing(shared(Laggard::Evict)).open().unwrap());
            }
            first.close().unwrap();
        }
        let one = device.tx(index).sharing(shared(Laggard::Block)).open().unwrap();
        let two = device.tx(index).mode(Mode::Mediated).sharing(shared(Laggard::Block)).open().unwrap();
        assert_eq!(refusal(device.tx(index).open()).0, ErrorCode::Busy);
        assert_eq!(refusal(device.tx(index).mode(Mode::Mediated).open()).0, ErrorCode::Busy);
        drop((one, two));
        device.tx(index).open().unwrap().close().unwrap();
    }
    assert_eq!(refusal(device.rx(7).open()).0, ErrorCode::NotFound);
    assert_eq!(refusal(device.rx(0).mode(Mode::Mediated).open_supplied(64)).0, ErrorCode::Invalid);
    assert_eq!(refusal(device.rx(1).open_supplied(64)).0, ErrorCode::Invalid, "SZE");
    for entries in [0, 1, 4, 100, 65536] {
        assert_eq!(refusal(device.tx(0).open_supplied(entries)).0, ErrorCode::Invalid, "{entries} entries");
    }
}

#[test]
fn sixteen_subscribers_see_everything_and_the_seventeenth_is_refused() {
    for engine in ENGINES {
        let device = Device::open(&format!("embedded:engine={engine},spin=20,buffers=128,ring=65536")).unwrap();
        let sharing = Sharing::Shared(Laggard::Block);
        let mut readers: Vec<_> = (0..16).map(|i| rx(&device, 0, MODES[i % 2], sharing)).collect();
        for mode in MODES {
            let (code, text) = refusal(device.rx(0).mode(mode).sharing(sharing).open());
            assert!(code == ErrorCode::Busy && text.contains("16"), "{text}");
        }
        let mut sender = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
        for round in 0..40 {
            send_all(&mut sender, round * 20, round * 20 + 20, 200);
            readers.iter_mut().for_each(|reader| receive_all(reader, round * 20, round * 20 + 20));
        }
        // One leaves, one comes: who comes sees what comes from then on.
        readers.pop().unwrap().close().unwrap();
        readers.push(rx(&device, 0, Mode::Direct, sharing));
        send_all(&mut sender, 800, 820, 200);
        readers.iter_mut().for_each(|reader| receive_all(reader, 800, 820));
        check_equations(&device);
    }
}

const FROM_EACH: u64 = 3000;

pub fn writer() {
    let device = Device::open(&format!("unix:{}", argument("SOCKET"))).unwrap();
    let mut queue = tx(&device, 0, Mode::Mediated, Sharing::Shared(Laggard::Block));
    let base = argument("BASE").parse::<u64>().unwrap();
    say("ready");
    listen();
    let (mut sent, mut random) = (0, Random(base + 1));
    while sent < FROM_EACH {
        let want = (1 + random.below(24)).min(FROM_EACH - sent) as usize;
        let len = 60 + random.below(1300) as u16;
        let sent_now = send_some(&mut queue, base + sent, want, len).unwrap() as u64;
        sent += sent_now;
        if sent_now == 0 {
            std::thread::yield_now();
        }
    }
    queue.close().unwrap();
    say("sent");
}

#[test]
fn writers_in_two_processes_take_turns_without_loss_or_mixture() {
    for engine in ENGINES {
        let daemon = Daemon::start(&format!("engine={engine},spin=20,buffers=128,ring=262144"));
        let device = daemon.device();
        let mut receiver = rx(&device, 0, Mode::Direct, Sharing::Exclusive);
        let arguments = |base: &'static str| [("SOCKET", daemon.socket()), ("BASE", base)];
        let mut writers = [Process::start("writer", &arguments("0")), Process::start("writer", &arguments("1000000"))];
        writers.iter_mut().for_each(|writer| writer.expect("ready"));
        writers.iter_mut().for_each(|writer| writer.tell("go"));
        let mut next = [0, 1_000_000];
        while next != [FROM_EACH, 1_000_000 + FROM_EACH] {
            assert!(receiver.wait(PATIENCE).unwrap(), "nothing more after {next:?}");
            for packet in receiver.get(64).unwrap().iter() {
                let number = check(packet.data);
                let whose = usize::from(number >= 1_000_000);
                assert_eq!(number, next[whose], "lost or out of order");
                next[whose] += 1;
            }
        }
        writers.iter_mut().for_each(|writer| writer.expect("sent"));
        assert!(!receiver.wait(Duration::from_millis(20)).unwrap(), "nobody sent more");
        check_equations(&device);
    }
}

#[test]
fn a_writer_that_dies_under_the_lock_leaves_it_to_the_others() {
    for engine in ENGINES {
        let device = Device::open(&format!("embedded:engine={engine},spin=20")).unwrap();
        let mut receiver = rx(&device, 0, Mode::Mediated, Sharing::Exclusive);
        let mut one = tx(&device, 0, Mode::Mediated, Sharing::Shared(Laggard::Block));
        let mut two = tx(&device, 0, Mode::Mediated, Sharing::Shared(Laggard::Block));
        let mut burst = one.get(&[100; 4]).unwrap().unwrap();
        fill(&mut burst[0], 99);
        assert!(two.get(&[100]).unwrap().is_none(), "the other has the lock");
        std::mem::forget(burst);
        drop(one);
        send_all(&mut two, 0, 3, 100);
        receive_all(&mut receiver, 0, 3);
        assert!(receiver.get(8).unwrap().is_empty(), "what was not put was not sent");
        check_equations(&device);
    }
}

/// Where a queue would start now, asked the way a program asks.
fn start_position(client: &Client, queue: QueueId) -> u64 {
    let opened = client.open(queue, Mode::Direct, Sharing::Exclusive, Buffers::Driver).unwrap();
    let (position, base) = client.start(opened.handle).unwrap();
    assert_eq!(position, base);
    client.stop(opened.handle, true, position).unwrap();
    client.close(opened.handle).unwrap();
    position
}

#[test]
fn the_next_opener_goes_on_where_the_last_one_stopped() {
    for engine in ENGINES {
        let daemon = Daemon::start(&format!("engine={engine},spin=20,buffers=128,ring=32768,blocks=256"));
        let (device, probe) = (daemon.device(), Client::connect(&daemon.path).unwrap());
        let (mut number, mut at) = (0, [0, 0]);
        let queues = [QueueId::rx(0), QueueId::tx(0)];
        for round in 0..12 {
            let mode = MODES[round % 2];
            let sharing = if round % 4 < 2 { Sharing::Exclusive } else { Sharing::Shared(Laggard::Block) };
            let mut receiver = rx(&device, 0, mode, sharing);
            let mut sender = tx(&device, 0, mode, Sharing::Exclusive);
            // Not a multiple of anything, and more than the ring every other time.
            let count = 37 + 60 * (round as u64 % 3);
            for _ in 0..count {
                send_all(&mut sender, number, number + 1, 72);
                receive_all(&mut receiver, number, number + 1);
                number += 1;
            }
            if round % 3 == 0 {
                // Stop, start again, go on, without closing.
                (receiver, sender) =
                    (receiver.stop().unwrap().start().unwrap(), sender.stop().unwrap().start().unwrap());
                send_all(&mut sender, number, number + 1, 72);
                receive_all(&mut receiver, number, number + 1);
                number += 1;
            }
            sender.close().unwrap();
            receiver.close().unwrap();
            for (at, &queue) in at.iter_mut().zip(&queues) {
                let now = start_position(&probe, queue);
                match engine {
                    // Packets.
                    "medusa" => assert_eq!(now, number, "{queue} round {round}"),
                    // Both rings begin at 0 for everyone.
                    "calypte" => assert_eq!(now, 0, "{queue} round {round}"),
                    // 80 bytes each, in units of 8; a new start begins at a page.
                    _ => {
                        assert!(now > *at && now.is_multiple_of(512) && now >= number * 10, "{queue} {now} after {at}")
                    }
                }
                *at = now;
            }
        }
        check_equations(&device);
    }
}

/// One reader that keeps up and one that does not, on a small ring.
struct Race {
    device: Device,
    fast: millrace::RxQueue,
    slow: millrace::RxQueue,
    sender: millrace::TxQueue,
}

const LEN: u16 = 120;
/// 8-byte units of such a frame in an SZE ring.
const UNITS: u64 = 16;

impl Race {
    fn new(engine: &str, mode: Mode, policy: Laggard) -> Self {
        let device =
            Device::open(&format!("embedded:engine={engine},spin=20,buffers=128,ring=32768,blocks=256")).unwrap();
        let fast = rx(&device, 0, Mode::Direct, Sharing::Shared(Laggard::Block));
        let slow = rx(&device, 0, mode, Sharing::Shared(policy));
        let sender = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
        Self { device, fast, slow, sender }
    }

    /// Sends and reads with the fast reader until nothing moves; returns how far it came.
    fn run(&mut self, from: u64, end: u64) -> (u64, u64) {
        let (mut sent, mut read, mut quiet) = (from, from, Instant::now());
        while read < end && quiet.elapsed() < Duration::from_millis(100) {
            let now = send_some(&mut self.sender, sent, (end - sent).min(8) as usize, LEN).unwrap() as u64;
            sent += now;
            let burst = self.fast.get(64).unwrap();
            for packet in burst.iter() {
                assert_eq!(check(packet.data), read);
                read += 1;
            }
            if now > 0 || !burst.is_empty() {
                quiet = Instant::now();
            }
        }
        (sent, read)
    }
}

#[test]
fn a_laggard_blocks_loses_or_leaves_as_it_chose() {
    for engine in ENGINES {
        for mode in MODES {
            let name = format!("{engine} {mode}");
            // Block: the queue waits for it, and nobody loses anything.
            let mut race = Race::new(engine, mode, Laggard::Block);
            let (sent, read) = race.run(0, 1000);
            assert!(read < 300, "{name}: {read} packets passed a reader that blocks");
            let mut taken = 0;
            while taken < sent {
                receive_all(&mut race.slow, taken, taken + 1);
                taken += 1;
                let burst = race.fast.get(64).unwrap();
                drop(burst);
            }
            assert_eq!(race.slow.lost(), 0);
            check_equations(&race.device);

            // Drop: it loses the oldest and is told how many.
            let mut race = Race::new(engine, mode, Laggard::Drop);
            assert_eq!(race.run(0, 1000), (1000, 1000), "{name}");
            let (mut seen, mut next) = (0, 0);
            while race.slow.wait(Duration::from_millis(20)).unwrap() {
                for packet in race.slow.get(7).unwrap().iter() {
                    let number = check(packet.data);
                    assert!(number >= next, "{name}: {number} after {next}");
                    (next, seen) = (number + 1, seen + 1);
                }
            }
            let lost = race.slow.lost() / if engine == "sze" { UNITS } else { 1 };
            assert!(seen > 0 && lost > 0 && next == 1000, "{name}: {seen} seen, {lost} lost, up to {next}");
            assert_eq!(seen + lost, 1000, "{name}");
            check_equations(&race.device);

            // Evict: the others go on, it is told, and may come back.
            let mut race = Race::new(engine, mode, Laggard::Evict);
            assert_eq!(race.run(0, 1000), (1000, 1000), "{name}");
            let error = race.slow.get(8).map(|burst| burst.len()).expect_err("evicted");
            let evicted = match &error {
                Error::Evicted(_) => true,
                Error::Client(error) => error.code() == Some(ErrorCode::Evicted),
                _ => false,
            };
            assert!(evicted, "{name}: {error}");
            race.slow.close().unwrap();
            race.slow = rx(&race.device, 0, mode, Sharing::Shared(Laggard::Evict));
            send_all(&mut race.sender, 1000, 1010, LEN);
            receive_all(&mut race.fast, 1000, 1010);
            receive_all(&mut race.slow, 1000, 1010);
            check_equations(&race.device);
        }
    }
}

#[test]
fn a_reader_that_is_skipped_again_and_again_never_sees_a_corrupt_packet() {
    const COUNT: u64 = 60_000;
    for engine in ENGINES {
        for mode in MODES {
            let Race { device, mut fast, mut slow, mut sender } = Race::new(engine, mode, Laggard::Drop);
            std::thread::scope(|scope| {
                scope.spawn(|| send_all(&mut sender, 0, COUNT, LEN));
                scope.spawn(|| receive_all(&mut fast, 0, COUNT));
                let (mut seen, mut next, mut random) = (0, 0, Random(7));
                while slow.wait(Duration::from_millis(500)).unwrap() {
                    for packet in slow.get(1 + random.below(40) as usize).unwrap().iter() {
                        let number = check(packet.data);
                        assert!(number >= next, "{number} after {next}");
                        (next, seen) = (number + 1, seen + 1);
                    }
                    if random.below(8) == 0 {
                        std::thread::sleep(Duration::from_micros(random.below(300)));
                    }
                }
                let lost = slow.lost() / if engine == "sze" { UNITS } else { 1 };
                assert_eq!((seen + lost, next), (COUNT, COUNT), "{engine} {mode}: {seen} seen, {lost} lost");
            });
            check_equations(&device);
        }
    }
}
