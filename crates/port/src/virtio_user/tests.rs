use super::*;
use crate::spec::VhostUserSpec;
use crate::vhost_user::{self, VhostUserPort};
use crate::{Accept, PortSpec};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

mod hostile;
mod lent;
mod offloads;

fn spec(path: &Path, more: &str) -> VirtioUserSpec {
    let text = format!("virtio-user:{}{more}", path.display());
    let PortSpec::VirtioUser(spec) = text.parse().unwrap() else { panic!("{text}") };
    spec
}

/// The neighbour: a vhost-user port of our own.
fn back_end(path: &Path, more: &str) -> Vec<VhostUserPort> {
    let text = format!("vhost-user:{}{more}", path.display());
    let PortSpec::VhostUser(spec) = text.parse::<PortSpec>().unwrap() else { panic!("{text}") };
    let spec: VhostUserSpec = spec;
    vhost_user::open(&spec).unwrap()
}

struct Scene {
    // Dropped last.
    _folder: tempfile::TempDir,
    path: PathBuf,
    there: Vec<VhostUserPort>,
    here: Vec<VirtioUserPort>,
}

/// Both ends, connected.
fn scene(queues: u16) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost.sock");
    let more = format!(",queues={queues}");
    let there = back_end(&path, &more);
    let here = open(&spec(&path, &more)).unwrap();
    connected(&here);
    Scene { there, here, path, _folder: folder }
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !check() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn connected(ports: &[VirtioUserPort]) {
    eventually("link", || ports.iter().all(|port| port.counters().link()));
}

fn frame(number: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| number.wrapping_add(at as u8)).collect()
}

fn bytes(span: Span<'_>) -> Vec<u8> {
    let mut bytes = vec![0; span.len()];
    span.read_into(&mut bytes);
    bytes
}

fn received(port: &mut dyn PortQueue, room: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    port.receive(64, &mut |span: Span<'_>| {
        if frames.len() == room {
            return Accept::Full;
        }
        frames.push(bytes(span));
        Accept::Taken
    });
    frames
}

fn is_readable(port: &VirtioUserPort) -> bool {
    let fd = port.wake_fd().unwrap();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

fn spans(frames: &[Vec<u8>]) -> Vec<Span<'_>> {
    frames.iter().map(|frame| Span::from_slice(frame)).collect()
}

#[test]
fn frames_of_every_length_pass_in_both_directions() {
    let mut scene = scene(1);
    let (here, there) = (&mut scene.here[0], &mut scene.there[0]);
    let mode = "virtio-user client, 1 queue pair, mergeable, event index, offloads, back end ready";
    assert_eq!(here.counters().mode(), mode);
    let lengths = [14, 60, 64, 1514, CAPACITY - 1, CAPACITY, CAPACITY + 1, 4200, 9014, MAX_FRAME_LEN];
    let made: Vec<_> = lengths.iter().enumerate().map(|(number, &len)| frame(number as u8, len)).collect();
    for round in 0..50 {
        assert_eq!(here.transmit_burst(&spans(&made)), Burst { taken: made.len(), ..Burst::default() });
        assert_eq!(received(there, 99), made, "round {round}");
        assert_eq!(there.transmit_burst(&spans(&made)).taken, made.len());
        assert_eq!(received(here, 99), made, "round {round}");
    }
    // One by one, with something of wrong length.
    assert_eq!(here.transmit(Span::from_slice(&made[0])), TxOutcome::Sent);
    assert_eq!(here.transmit(Span::from_slice(&[0; 13])), TxOutcome::Dropped(DropReason::TooShort));
    assert_eq!(here.transmit(Span::from_slice(&[0; MAX_FRAME_LEN + 1])), TxOutcome::Dropped(DropReason::TooLong));
    assert!(received(there, 9).is_empty(), "before the flush");
    here.flush();
    assert_eq!(received(there, 9), made[..1]);
    // The card has room for two.
    assert_eq!(there.transmit_burst(&spans(&made[..4])).taken, 4);
    assert_eq!(received(here, 2), made[..2]);
    let counters = here.counters();
    assert_eq!((counters.tx_frames(), counters.tx_offered(), counters.tx_copies()), (501, 503, 501));
    assert_eq!((counters.rx_frames(), counters.rx_dropped(DropReason::NoRoom)), (502, 2));
    // Those that did not fit one buffer.
    assert_eq!(counters.rx_copies(), 50 * 4);
}

#[test]
fn a_full_ring_holds_frames_back_and_its_end_wakes_the_worker() {
    let mut scene = scene(1);
    let (here, there) = (&mut scene.here[0], &mut scene.there[0]);
    let made = vec![frame(0, 60); 300];
    assert_eq!(here.transmit_burst(&spans(&made)).taken, 256);
    assert_eq!(here.transmit(Span::from_slice(&made[0])), TxOutcome::Full);
    here.awake();
    assert!(!is_readable(here));
    assert_eq!(received(there, 99).len(), 64);
    assert!(!is_readable(here), "a worker that polls wants no signal");
    assert_eq!(here.transmit_burst(&spans(&made)).taken, 64);
    for before in [true, false] {
        if before {
            here.prepare_sleep();
            assert_eq!(here.transmit_burst(&spans(&made)).taken, 0);
        } else {
            // The ring is only found to be full when the worker looks once more before it sleeps.
            here.awake();
            assert_eq!(here.transmit_burst(&spans(&made)).taken, 64);
            here.prepare_sleep();
            assert_eq!(here.transmit_burst(&spans(&made)).taken, 0);
        }
        assert!(!is_readable(here));
        assert_eq!(received(there, 99).len(), 64);
        assert!(is_readable(here), "a worker that sleeps does");
    }
}

#[test]
fn a_sleeping_worker_is_woken_and_a_busy_one_is_not() {
    let mut scene = scene(1);
    let (here, there) = (&mut scene.here[0], &mut scene.there[0]);
    let one = [frame(0, 60)];
    assert!(is_readable(here), "queues have come");
    here.awake();
    for _ in 0..3 {
        assert!(!is_readable(here));
        assert_eq!(there.transmit_burst(&spans(&one)).taken, 1);
        assert!(!is_readable(here));
        assert_eq!(received(here, 9).len(), 1);
        here.prepare_sleep();
        assert!(received(here, 9).is_empty() && !is_readable(here));
        assert_eq!(there.transmit_burst(&spans(&one)).taken, 1);
        assert!(is_readable(here));
        here.awake();
        assert_eq!(received(here, 9).len(), 1);
    }
    // And the other way round: a back end that sleeps is kicked.
    there.awake();
    there.prepare_sleep();
    assert_eq!(here.transmit_burst(&spans(&one)).taken, 1);
    let fd = there.wake_fd().unwrap();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap(), 1);
}

#[test]
fn every_pair_is_a_port_and_a_back_end_may_have_fewer() {
    let mut four = scene(4);
    for (number, (here, there)) in four.here.iter_mut().zip(&mut four.there).enumerate() {
        let made = [frame(number as u8, 64)];
        assert_eq!(here.transmit_burst(&spans(&made)).taken, 1);
        assert_eq!(received(there, 9), made);
        assert_eq!(there.transmit_burst(&spans(&made)).taken, 1);
        assert_eq!(received(here, 9), made);
    }
    drop(four);
    for has in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vhost.sock");
        let _there = back_end(&path, &format!(",queues={has}"));
        let mut here = open(&spec(&path, ",queues=3")).unwrap();
        connected(&here[..has]);
        assert!(!here[has].counters().link());
        assert!(here[has].counters().mode().contains("not used by the back end"), "{}", here[has].counters().mode());
        let dropped = here[has].transmit(Span::from_slice(&[0; 60]));
        assert_eq!(dropped, TxOutcome::Dropped(DropReason::LinkDown));
    }
}

#[test]
fn a_back_end_may_go_and_come_again() {
    let mut scene = scene(1);
    let made = vec![frame(1, 100), frame(2, 5000)];
    for round in 1..4 {
        let here = &mut scene.here[0];
        assert_eq!(here.transmit_burst(&spans(&made)).taken, 2);
        assert_eq!(received(&mut scene.there[0], 9), made);
        // These are never taken, and those were never looked at.
        assert_eq!(here.transmit_burst(&spans(&made)).taken, 2);
        assert_eq!(scene.there[0].transmit_burst(&spans(&made)).taken, 2);
        scene.there.clear();
        eventually("no link", || !here.counters().link());
        eventually("no peer", || here.counters().mode().ends_with("no peer"));
        assert_eq!(here.transmit(Span::from_slice(&made[0])), TxOutcome::Dropped(DropReason::LinkDown));
        let counters = here.counters();
        assert_eq!((counters.tx_frames(), counters.tx_bytes()), (2 * round, 5100 * round));
        assert_eq!(
            (counters.tx_dropped(DropReason::LinkDown), counters.rx_dropped(DropReason::LinkDown)),
            (3 * round, 2 * round)
        );
        assert_eq!((counters.tx_offered(), counters.rx_offered()), (5 * round, 2 * round));
        scene.there = back_end(&scene.path, "");
        connected(&scene.here);
    }
}

#[test]
fn as_a_server_it_waits_for_the_back_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost.sock");
    let mut here = open(&spec(&path, ",server")).unwrap();
    assert!(here[0].counters().mode().starts_with("virtio-user server, 1 queue pair, no peer"));
    for _ in 0..3 {
        let mut there = back_end(&path, ",client");
        connected(&here);
        let made = [frame(1, 100)];
        assert_eq!(here[0].transmit_burst(&spans(&made)).taken, 1);
        assert_eq!(received(&mut there[0], 9), made);
        drop(there);
        eventually("no link", || !here[0].counters().link());
    }
    assert!(matches!(open(&spec(&path, ",server")).err(), Some(SocketError::Busy(_))));
    drop(here);
    assert!(!path.exists(), "the socket goes with the port");
}

#[test]
fn a_port_closes_while_a_back_end_stalls() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let ports = open(&spec(&path, "")).unwrap();
    let (_stream, _) = listener.accept().unwrap();
    eventually("connected", || ports[0].counters().mode().ends_with("peer connected"));
    let start = Instant::now();
    drop(ports);
    assert!(start.elapsed() < Duration::from_secs(4), "it need not wait until its patience ends");
}
