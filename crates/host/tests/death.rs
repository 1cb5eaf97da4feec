//! Programs that are killed, and a card that is killed: nobody else notices, nothing stays behind, nobody hangs, and all of
//! it soon.

mod common;

use common::*;
use millrace::{Device, Error, Laggard, Mode, QueueId, RxQueue, Sharing, TxQueue};
use millrace_abi::message::Buffers;
use millrace_driver::{Client, ClientError};
use std::path::Path;
use std::time::{Duration, Instant};

/// Within this the driver has cleaned up after a dead program, and a program has heard of a dead card.
const SOON: Duration = Duration::from_millis(100);
const MODES: [Mode; 2] = [Mode::Direct, Mode::Mediated];

fn open_device() -> Device {
    Device::open(&format!("unix:{}", argument("SOCKET"))).unwrap()
}

/// Plays the role for which `common::Process` started this program.
#[test]
fn role() {
    let Some(role) = common::role() else { return };
    match role.as_str() {
        "daemon" => common::run_daemon(),
        "victim" => victim(argument("STEP").parse().unwrap()),
        "cycler" => cycler(argument("SEED").parse().unwrap()),
        "parent" => parent(),
        other => panic!("no role {other}"),
    }
}

/// Goes through the eight steps and dies at one of them.
fn victim(step: u32) {
    let (mode, index) = if argument("MODE") == "direct" { (Mode::Direct, 1) } else { (Mode::Mediated, 1) };
    let die_at = |here: u32| {
        if step == here {
            say("dies");
            die();
        }
    };
    let device = open_device();
    die_at(1);
    let (rx, tx) = (device.rx(index).mode(mode).open().unwrap(), device.tx(index).mode(mode).open().unwrap());
    die_at(2);
    let (mut rx, mut tx) = (rx.start().unwrap(), tx.start().unwrap());
    die_at(3);
    send_all(&mut tx, 0, 20, 300);
    assert!(rx.wait(PATIENCE).unwrap());
    {
        // Both bursts in hand.
        let mut sending = tx.get(&[100; 8]).unwrap().unwrap();
        fill(&mut sending[0], 1);
        let receiving = rx.get(5).unwrap();
        assert!(!receiving.is_empty());
        die_at(4);
        sending.put();
    }
    die_at(5);
    let rx = rx.stop().unwrap();
    die_at(6);
    let tx = tx.stop().unwrap();
    tx.close().unwrap();
    die_at(7);
    rx.close().unwrap();
    drop(device);
    die_at(8);
}

/// The eight steps again and again, in every mode and kind of sharing, until killed.
fn cycler(seed: u64) {
    let mut random = Random(seed);
    say("runs");
    loop {
        let device = open_device();
        for _ in 0..random.below(4) {
            let index = 1 + random.below(2) as u32;
            let mode = MODES[random.below(2) as usize];
            let sharing = match random.below(4) {
                0 => Sharing::Exclusive,
                1 => Sharing::Shared(Laggard::Block),
                2 => Sharing::Shared(Laggard::Drop),
                _ => Sharing::Shared(Laggard::Evict),
            };
            let region = millrace::Region::allocate(1 << 16, millrace::Pages::Ordinary).unwrap();
            let _mapping = device.map(&region, true, None).unwrap();
            let _lock = device.lock("/mac", 1 << random.below(8), Duration::ZERO).unwrap();
            let mut receiver = rx(&device, index, mode, sharing);
            let writers = if mode == Mode::Mediated { sharing } else { Sharing::Exclusive };
            let mut sender = tx(&device, index, mode, writers);
            let count = random.below(60);
            send_all(&mut sender, 0, count, 200);
            receive_all(&mut receiver, 0, random.below(count + 1));
            if random.below(2) == 0 {
                sender.close().unwrap();
                receiver.close().unwrap();
            }
        }
    }
}

fn free_again(device: &Device) -> Duration {
    let mut longest = Duration::ZERO;
    for index in [1, 2] {
        longest = longest.max(within(SOON, || device.rx(index).open()).1);
        longest = longest.max(within(SOON, || device.tx(index).open()).1);
    }
    longest
}

#[test]
fn a_program_may_die_at_each_of_the_eight_steps() {
    let daemon = Daemon::start("queues=3,engine=sze@2,spin=20,buffers=256,ring=65536");
    let device = daemon.device();
    let mut bystander = Bystander::start(daemon.device(), 0);
    // Once, because of the kick of this connection, which stays.
    free_again(&device);
    let before = (daemon.fds(), daemon.mappings());
    for mode in ["direct", "mediated"] {
        for step in 1..=8 {
            let step = step.to_string();
            let mut victim = Process::start("victim", &[("SOCKET", daemon.socket()), ("STEP", &step), ("MODE", mode)]);
            victim.expect("dies");
            victim.wait();
            free_again(&device);
            bystander.goes_on();
            within(SOON, || match (daemon.fds(), daemon.mappings()) {
                now if now == before => Ok(()),
                now => Err(format!("{mode} step {step}: {now:?} descriptors and mappings, before {before:?}")),
            });
        }
    }
    bystander.finish();
    check_equations(&device);
}

#[test]
fn a_hundred_random_kills_leave_nothing() {
    let daemon = Daemon::start("queues=3,engine=sze@2,spin=20,buffers=256,ring=65536");
    let device = daemon.device();
    let mut bystander = Bystander::start(daemon.device(), 0);
    // Once, because of the kick of this connection, which stays.
    free_again(&device);
    let before = (daemon.fds(), daemon.mappings());
    let (mut random, mut longest) = (Random(0x5eed), Duration::ZERO);
    for round in 0..100 {
        let seed = (random.next() | 1).to_string();
        let mut cycler = Process::start("cycler", &[("SOCKET", daemon.socket()), ("SEED", &seed)]);
        cycler.expect("runs");
        std::thread::sleep(Duration::from_micros(random.below(12_000)));
        cycler.kill();
        longest = longest.max(free_again(&device));
        if round % 10 == 0 {
            bystander.goes_on();
        }
    }
    println!("queues were free again after at most {longest:?}; the bystander made {} round trips", bystander.finish());
    // The bystander has closed its queues.
    let mut bystander = Bystander::start(daemon.device(), 0);
    within(SOON, || match (daemon.fds(), daemon.mappings()) {
        now if now == before => Ok(()),
        now => Err(format!("{now:?} descriptors and mappings, before {before:?}")),
    });
    bystander.finish();
    check_equations(&device);
}

/// Opens a queue and dies, but a child of it has inherited the socket and lives on.
fn parent() {
    let client = Client::connect(Path::new(&argument("SOCKET"))).unwrap();
    for queue in [QueueId::rx(1), QueueId::tx(1)] {
        let opened = client.open(queue, Mode::Direct, Sharing::Exclusive, Buffers::Driver).unwrap();
        client.start(opened.handle).unwrap();
        std::mem::forget(opened);
    }
    rustix::io::fcntl_setfd(client.socket(), rustix::io::FdFlags::empty()).unwrap();
    let mut sleeper = std::process::Command::new("sleep");
    let sleeper = sleeper.arg("30").stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    say(&sleeper.spawn().unwrap().id().to_string());
    listen();
    die();
}

#[test]
fn a_child_that_inherits_the_socket_does_not_keep_the_queue() {
    let daemon = Daemon::start("queues=3,spin=20");
    let device = daemon.device();
    let mut parent = Process::start("parent", &[("SOCKET", daemon.socket())]);
    let sleeper: i32 = parent.hear().unwrap().parse().unwrap();
    assert!(device.rx(1).open().is_err());
    parent.tell("die");
    parent.wait();
    free_again(&device);
    let sleeper = rustix::process::Pid::from_raw(sleeper).unwrap();
    assert!(rustix::process::test_kill_process(sleeper).is_ok(), "the child that has the socket still lives");
    rustix::process::kill_process(sleeper, rustix::process::Signal::KILL).unwrap();
}

fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Gone | Error::Client(ClientError::Gone))
}

/// Calls until it fails, which must be soon and for the right reason.
fn fails_soon<T>(since: Instant, what: &str, mut call: impl FnMut() -> Result<T, Error>) {
    loop {
        match call() {
            Err(error) => {
                assert!(is_gone(&error), "{what}: {error}");
                assert!(error.must_reopen(), "{what}: {error}");
                return assert!(since.elapsed() < SOON, "{what}: an error only after {:?}", since.elapsed());
            }
            Ok(_) => assert!(since.elapsed() < SOON, "{what}: no error within {SOON:?}"),
        }
    }
}

fn killed_under(call: impl Fn(&Device, &mut RxQueue, &mut TxQueue, Instant)) {
    for engine in ["medusa", "sze", "calypte", "dd"] {
        for mode in MODES {
            for sharing in [Sharing::Exclusive, Sharing::Shared(Laggard::Block)] {
                if !has(engine, mode, sharing) {
                    continue;
                }
                let mut daemon = Daemon::start(&format!("engine={engine},spin=20"));
                let device = daemon.device();
                let mut receiver = rx(&device, 0, mode, sharing);
                let mut sender = tx(&device, 0, mode, Sharing::Exclusive);
                send_all(&mut sender, 0, 10, 100);
                receive_all(&mut receiver, 0, 10);
                daemon.process.kill();
                call(&device, &mut receiver, &mut sender, Instant::now());
                assert!(is_gone(&receiver.close().unwrap_err()));
                assert!(is_gone(&sender.close().unwrap_err()));
                assert!(is_gone(&device.stats().unwrap_err()));
            }
        }
    }
}

#[test]
fn a_card_that_dies_gives_an_error_at_the_next_call() {
    killed_under(|_, rx, tx, killed| {
        fails_soon(killed, "get", || rx.get(8).map(|burst| burst.len()));
        fails_soon(Instant::now(), "wait", || rx.wait(PATIENCE));
        fails_soon(Instant::now(), "flush", || tx.flush());
        fails_soon(Instant::now(), "tx wait", || tx.wait(PATIENCE));
    });
    killed_under(|device, rx, _, killed| {
        fails_soon(killed, "wait", || rx.wait(PATIENCE));
        fails_soon(Instant::now(), "read", || device.read32(0));
    });
    killed_under(|_, _, tx, killed| {
        fails_soon(killed, "send", || match tx.get(&[100])? {
            Some(burst) => burst.send(),
            None => Ok(()),
        });
    });
}

#[test]
fn a_card_that_dies_wakes_those_who_sleep() {
    for mode in MODES {
        let mut daemon = Daemon::start("spin=0");
        let device = daemon.device();
        let mut receiver = rx(&device, 0, mode, Sharing::Exclusive);
        let sleeper = std::thread::spawn(move || {
            let error = receiver.wait(Duration::from_secs(60)).unwrap_err();
            (error, Instant::now())
        });
        std::thread::sleep(Duration::from_millis(50));
        daemon.process.kill();
        let killed = Instant::now();
        let (error, woken) = sleeper.join().unwrap();
        assert!(is_gone(&error), "{error}");
        assert!(woken < killed + SOON, "woken {:?} after the card died", woken - killed);
    }
}

#[test]
fn a_new_card_takes_the_place_of_one_that_was_killed() {
    let mut daemon = Daemon::start("spin=20");
    let device = daemon.device();
    daemon.process.kill();
    assert!(device.stats().is_err());
    // The dead card has left its socket behind.
    let again = Process::start("daemon", &[("OPTIONS", "spin=20"), ("SOCKET", daemon.socket())]);
    let (device, _) = within(PATIENCE, || Device::open(&format!("unix:{}", daemon.socket())));
    let mut bystander = Bystander::start(device, 0);
    bystander.finish();
    // A third is refused, for the second lives.
    let mut third = Process::start("daemon", &[("OPTIONS", "spin=20"), ("SOCKET", daemon.socket())]);
    assert!(third.hear().unwrap().starts_with("refused: another card listens"));
    drop(again);
}
