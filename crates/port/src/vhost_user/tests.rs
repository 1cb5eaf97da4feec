use super::*;
use crate::{Accept, PortSpec, Whose};
use driver::Driver;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

mod driver;
mod offloads;

fn spec(path: &std::path::Path, more: &str) -> VhostUserSpec {
    let text = format!("vhost-user:{}{more}", path.display());
    let PortSpec::VhostUser(spec) = text.parse().unwrap() else { panic!("{text}") };
    spec
}

struct Scene {
    // Dropped last.
    _folder: tempfile::TempDir,
    path: PathBuf,
    ports: Vec<VhostUserPort>,
}

fn scene(more: &str) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost.sock");
    let ports = open(&spec(&path, more)).unwrap();
    Scene { ports, path, _folder: folder }
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !check() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn frame(number: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| number.wrapping_add(at as u8)).collect()
}

fn received(port: &mut VhostUserPort, room: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    port.receive(64, &mut |span: Span<'_>| {
        if frames.len() == room {
            return Accept::Full;
        }
        let mut bytes = vec![0; span.len()];
        span.read_into(&mut bytes);
        frames.push(bytes);
        Accept::Taken
    });
    frames
}

fn is_readable(port: &VhostUserPort) -> bool {
    let fd = port.wake_fd().unwrap();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

#[test]
fn calls_are_bells_of_the_user_at_the_other_end() {
    let scene = scene("");
    let _driver = Driver::ready(&scene.path, 1);
    eventually("link", || scene.ports[0].counters().link());
    let pair = &scene.ports[0].pair;
    let own = Some(Whose::User(rustix::process::getuid().as_raw()));
    let calls = [
        pair.rx.change(|slot| slot.as_ref().and_then(|queue| queue.call.as_ref()?.whose())),
        pair.tx.change(|slot| slot.as_ref().and_then(|queue| queue.call.as_ref()?.whose())),
    ];
    assert_eq!(calls, [own; 2]);
}

#[test]
fn frames_pass_in_both_directions() {
    let mut scene = scene("");
    assert!(!scene.ports[0].counters().link());
    assert!(scene.ports[0].counters().mode().contains("no peer"));
    let dropped = scene.ports[0].transmit(Span::from_slice(&[0; 60]));
    assert_eq!(dropped, TxOutcome::Dropped(DropReason::LinkDown));
    let mut driver = Driver::ready(&scene.path, 1);
    eventually("link", || scene.ports[0].counters().link());
    let port = &mut scene.ports[0];
    assert!(port.counters().mode().contains("mergeable, event index, driver ready"), "{}", port.counters().mode());
    let made: Vec<_> = (0..5).map(|number| frame(number, 60 + usize::from(number))).collect();
    for round in 0..100 {
        driver.send(0, &made);
        assert_eq!(received(port, 4), made[..4], "round {round}");
        assert_eq!(driver.take_sent(0), 5);
        driver.post(0, 6, 1600);
        let spans: Vec<_> = made.iter().map(|frame| Span::from_slice(frame)).collect();
        assert_eq!(port.transmit_burst(&spans), Burst { taken: 5, ..Burst::default() });
        assert_eq!(port.transmit(spans[0]), TxOutcome::Sent);
        port.flush();
        assert_eq!(port.transmit(spans[0]), TxOutcome::Full);
        let got = driver.take_received(0);
        assert_eq!(got[..5], made);
        assert_eq!(got[5..], made[..1]);
    }
    let counters = port.counters();
    assert_eq!((counters.rx_frames(), counters.rx_dropped(DropReason::NoRoom), counters.rx_copies()), (400, 100, 0));
    assert_eq!((counters.tx_frames(), counters.tx_dropped(DropReason::LinkDown), counters.tx_copies()), (600, 1, 600));
    driver.post(0, 1, 100);
    assert_eq!(port.transmit(Span::from_slice(&[0; 3000])), TxOutcome::Full, "there may be more buffers");
    driver.post(0, 255, 100);
    assert_eq!(port.transmit(Span::from_slice(&[0; 16000])), TxOutcome::Sent);
    assert_eq!(port.transmit(Span::from_slice(&[0; 16384])), TxOutcome::Dropped(DropReason::TooLong));
    assert_eq!(port.transmit(Span::from_slice(&[0; 13])), TxOutcome::Dropped(DropReason::TooShort));
}

#[test]
fn every_pair_is_a_port_and_a_driver_may_use_fewer() {
    let mut scene = scene(",queues=4");
    assert_eq!(scene.ports.len(), 4);
    let mut driver = Driver::ready(&scene.path, 3);
    for (number, port) in scene.ports.iter_mut().enumerate().take(3) {
        eventually("link", || port.counters().link());
        driver.send(number, &[frame(number as u8, 64)]);
        assert_eq!(received(port, 9), [frame(number as u8, 64)]);
    }
    assert!(!scene.ports[3].counters().link());
    assert_eq!(received(&mut scene.ports[3], 9), Vec::<Vec<u8>>::new());
}

#[test]
fn a_sleeping_worker_is_woken_and_a_busy_one_is_not() {
    let mut scene = scene("");
    let port = &mut scene.ports[0];
    let mut driver = Driver::ready(&scene.path, 1);
    eventually("link", || port.counters().link());
    assert!(is_readable(port), "a queue has come");
    port.awake();
    assert!(!is_readable(port));
    assert!(!driver.send(0, &[frame(0, 60)]), "a worker that polls wants no kick");
    assert_eq!(received(port, 9).len(), 1);
    for _ in 0..3 {
        port.prepare_sleep();
        assert!(received(port, 9).is_empty() && !is_readable(port));
        assert!(driver.send(0, &[frame(0, 60)]), "a worker that sleeps wants one");
        assert!(is_readable(port));
        port.awake();
        assert_eq!(received(port, 9).len(), 1);
        assert!(!is_readable(port));
    }
    driver.interrupts(0);
    driver.want_interrupts(0, true);
    driver.send(0, &[frame(0, 60)]);
    received(port, 9);
    assert_eq!(driver.interrupts(0), 1);
    driver.want_interrupts(0, false);
    driver.send(0, &[frame(0, 60)]);
    received(port, 9);
    assert_eq!(driver.interrupts(0), 0);
}

#[test]
fn a_driver_that_breaks_its_ring_stops_it_and_may_begin_again() {
    let mut scene = scene("");
    let port = &mut scene.ports[0];
    let mut driver = Driver::ready(&scene.path, 1);
    eventually("link", || port.counters().link());
    driver.send(0, &[frame(1, 60)]);
    driver.post_wild(0);
    driver.send(0, &[frame(1, 60)]);
    assert_eq!(received(port, 9).len(), 1);
    assert!(port.counters().mode().ends_with("transmit queue stopped: unmapped"), "{}", port.counters().mode());
    assert_eq!(port.counters().rx_dropped(DropReason::BadRing), 1);
    assert!(!port.counters().link());
    assert!(received(port, 9).is_empty());
    drop(driver);
    let mut driver = Driver::ready(&scene.path, 1);
    eventually("link", || port.counters().link());
    driver.send(0, &[frame(1, 60)]);
    assert_eq!(received(port, 9).len(), 1);
    assert_eq!(port.counters().rx_frames(), 2, "counters stay");
}

#[test]
fn memory_that_is_taken_away_costs_the_ring_and_nothing_else() {
    let mut scene = scene("");
    let port = &mut scene.ports[0];
    let mut driver = Driver::ready(&scene.path, 1);
    eventually("link", || port.counters().link());
    driver.send(0, &[frame(1, 60)]);
    assert_eq!(received(port, 9).len(), 1);
    driver.truncate();
    eventually("the cut is seen", || {
        received(port, 9);
        port.counters().mode().contains("memory-cut") || port.counters().mode().contains("available-index")
    });
    let _ = port.transmit_burst(&[Span::from_slice(&[0; 60])]);
    assert!(!port.counters().link());
    drop(driver);
    let mut driver = Driver::ready(&scene.path, 1);
    eventually("link", || port.counters().link());
    driver.send(0, &[frame(1, 60)]);
    assert_eq!(received(port, 9).len(), 1);
}

#[test]
fn memory_can_be_replaced_while_queues_run() {
    let mut scene = scene("");
    let port = &mut scene.ports[0];
    let mut driver = Driver::ready(&scene.path, 1);
    eventually("link", || port.counters().link());
    for round in 0..20 {
        driver.send(0, &[frame(round, 60)]);
        driver.describe_memory();
        assert_eq!(received(port, 9), [frame(round, 60)], "round {round}");
    }
    assert_eq!(driver.stop(1), 20);
    eventually("no link", || !port.counters().link());
    driver.start(1);
    eventually("link", || port.counters().link());
    driver.send(0, &[frame(7, 60)]);
    assert_eq!(received(port, 9), [frame(7, 60)]);
}

/// How many fds and threads this process has; other tests run meanwhile, so this test runs in a process of its
/// own.
fn resources() -> (usize, usize, usize) {
    let count = |what: &str| std::fs::read_dir(what).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (
        count("/proc/self/fd"),
        count("/proc/self/task"),
        maps.lines().filter(|line| line.contains("memfd:driver")).count(),
    )
}

#[test]
fn a_peer_that_dies_half_way_a_thousand_times_leaves_nothing() {
    const ROLE: &str = "MILLRACE_TEST_DYING_PEERS";
    if std::env::var_os(ROLE).is_none() {
        let this = std::env::current_exe().unwrap();
        let test = "vhost_user::tests::a_peer_that_dies_half_way_a_thousand_times_leaves_nothing";
        let status =
            std::process::Command::new(this).args(["--exact", test, "--nocapture"]).env(ROLE, "1").status().unwrap();
        assert!(status.success());
        return;
    }
    let mut scene = scene(",queues=2");
    drop(Driver::ready(&scene.path, 2));
    eventually("no peer", || scene.ports[0].counters().mode().contains("no peer"));
    let before = resources();
    for round in 0..1000u64 {
        Driver::half(&scene.path, 2, round % 23);
        received(&mut scene.ports[0], 9);
    }
    // Bytes that mean nothing, and half of a message.
    for garbage in [&[0xff; 64][..], &[1, 0, 0, 0, 1, 0, 0, 0], &[0; 12], &[]] {
        let mut stream = UnixStream::connect(&scene.path).unwrap();
        std::io::Write::write_all(&mut stream, garbage).unwrap();
    }
    let mut driver = Driver::ready(&scene.path, 2);
    eventually("link", || scene.ports[0].counters().link());
    driver.send(0, &[frame(1, 60)]);
    assert_eq!(received(&mut scene.ports[0], 9), [frame(1, 60)]);
    drop(driver);
    eventually("everything is given back", || resources() == before);
    drop(scene);
    assert_eq!(resources().1, before.1 - 1, "the thread ends with the port");
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost.sock");
    drop(UnixListener::bind(&path).unwrap());
    let ports = open(&spec(&path, "")).unwrap();
    assert!(matches!(open(&spec(&path, "")).err(), Some(SocketError::Busy(_))));
    drop(ports);
    assert!(!path.exists(), "the socket goes with the port");
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(open(&spec(&path, "")).err(), Some(SocketError::NotASocket(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    assert!(matches!(open(&spec(&folder.path().join("no/v"), "")).err(), Some(SocketError::NoFolder(_))));
    let long = folder.path().join("v".repeat(120));
    assert!(matches!(open(&spec(&long, "")).err(), Some(SocketError::PathLength(_))));
}

#[test]
fn a_client_finds_its_server_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost.sock");
    let mut ports = open(&spec(&path, ",client")).unwrap();
    for round in 0..3 {
        let listener = UnixListener::bind(&path).unwrap();
        let mut driver = Driver::over(listener.accept().unwrap().0, 1);
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        eventually("link", || ports[0].counters().link());
        driver.send(0, &[frame(round, 60)]);
        assert_eq!(received(&mut ports[0], 9), [frame(round, 60)]);
        drop(driver);
        eventually("no peer", || !ports[0].counters().link());
    }
    drop(ports);
}

#[test]
fn a_port_closes_while_a_peer_stalls() {
    let scene = scene("");
    let mut stream = UnixStream::connect(&scene.path).unwrap();
    stream.write_all(&[1, 0, 0]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    drop(scene);
}

#[test]
fn queues_are_enabled_before_features_are_chosen() {
    // As QEMU does: request 18 in version 1, with and without bit 3, which asks for an answer.
    let ask = |stream: &mut UnixStream, flags: u32, queue: u32| {
        let words = [18, 1 | flags, 8, queue, 1];
        stream.write_all(&words.map(u32::to_ne_bytes).concat()).unwrap();
    };
    let answer = |stream: &mut UnixStream| {
        let mut bytes = [0; 20];
        stream.read_exact(&mut bytes).unwrap();
        bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect::<Vec<_>>()
    };
    let mut scene = scene("");
    let mut stream = UnixStream::connect(&scene.path).unwrap();
    ask(&mut stream, 0, 0);
    ask(&mut stream, 8, 1);
    assert_eq!(answer(&mut stream), [18, 1 | 4, 8, 0, 0]);
    let mut driver = Driver::over(stream, 1);
    eventually("link", || scene.ports[0].counters().link());
    driver.send(0, &[frame(1, 60)]);
    assert_eq!(received(&mut scene.ports[0], 9), [frame(1, 60)]);
    drop(driver);
    // There is no such queue.
    let mut stream = UnixStream::connect(&scene.path).unwrap();
    ask(&mut stream, 8, 2);
    assert_eq!(answer(&mut stream), [18, 1 | 4, 8, 1, 0]);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it is broken off");
}

#[test]
fn memory_is_added_and_removed_more_than_once() {
    let mut scene = scene("");
    let mut driver = Driver::ready(&scene.path, 1);
    eventually("link", || scene.ports[0].counters().link());
    for (number, there) in [true, true, false, false, true].into_iter().enumerate() {
        driver.change_memory(there);
        driver.send(0, &[frame(number as u8, 60)]);
        assert_eq!(received(&mut scene.ports[0], 9), [frame(number as u8, 60)]);
    }
}
