//! A back end that dies wherever it can, or does what no device may do.

use super::*;
use crate::Whose;
use millrace_dma::Ordering;
use millrace_ring::virtio::driver::{Place, STRIDE};
use millrace_ring::virtio::{Rings, Used, feature};
use std::io::{Read, Write};

/// Requests of a front end with two pairs: 10 for the device, 6 for each of four rings, and one at the end.
const REQUESTS: usize = 10 + 4 * 6 + 1;

/// Takes so many requests, answering those that want an answer, and dies.
fn half(front: UnixStream, steps: usize) {
    assert!(answer(front, steps, |_| ()), "the front end goes on");
}

/// The same. Says which rings it is asked to stop, before it answers. False: the front end was the first to go.
pub(super) fn answer(mut front: UnixStream, steps: usize, mut stop: impl FnMut(u32)) -> bool {
    for _ in 0..steps {
        let mut header = [0; 12];
        if front.read_exact(&mut header).is_err() {
            return false;
        }
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        let (request, size) = (word(0), word(8) as usize);
        // Fds that come with it are closed by this.
        let mut said = vec![0; size];
        front.read_exact(&mut said).unwrap();
        let answer: u64 = match request {
            // GET_FEATURES; GET_PROTOCOL_FEATURES: MQ; GET_QUEUE_NUM.
            1 => feature::VERSION_1 | feature::VHOST_USER_PROTOCOL | feature::MQ,
            15 => 1,
            17 => 2,
            // GET_VRING_BASE: the ring's number.
            11 => {
                let ring = u64::from_ne_bytes(said[..8].try_into().unwrap());
                stop(ring as u32);
                ring
            }
            _ => continue,
        };
        let head = [request, 1 | 4, 8].map(u32::to_ne_bytes).concat();
        front.write_all(&[&head[..], &answer.to_ne_bytes()].concat()).unwrap();
    }
    true
}

/// How many fds and mappings of shared memory this process has.
fn resources() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("memfd:")).count();
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), shared)
}

/// Other tests open files meanwhile, so this one runs in a process of its own.
#[test]
fn a_back_end_that_dies_half_way_leaves_nothing() {
    const ROLE: &str = "MILLRACE_TEST_DYING_BACK_ENDS";
    if std::env::var_os(ROLE).is_none() {
        let this = std::env::current_exe().unwrap();
        let test = "virtio_user::tests::hostile::a_back_end_that_dies_half_way_leaves_nothing";
        let status =
            std::process::Command::new(this).args(["--exact", test, "--nocapture"]).env(ROLE, "1").status().unwrap();
        assert!(status.success());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost.sock");
    let mut here = open(&spec(&path, ",server,queues=2")).unwrap();
    let mut before = None;
    for round in 0..5 * (REQUESTS + 1) {
        let steps = round % (REQUESTS + 1);
        half(UnixStream::connect(&path).unwrap(), steps);
        if steps < REQUESTS {
            let dropped = here[0].transmit(Span::from_slice(&[0; 60]));
            assert_eq!(dropped, TxOutcome::Dropped(DropReason::LinkDown), "after {steps} steps");
        }
        received(&mut here[1], 9);
        if steps == REQUESTS {
            eventually("idle", || here[0].counters().mode().ends_with("no peer"));
        }
        if round == REQUESTS {
            std::thread::sleep(Duration::from_millis(50));
            before = Some(resources());
        }
    }
    // Bytes that mean nothing, and half of an answer.
    for garbage in [&[0xff; 64][..], &[1, 0, 0, 0, 5, 0, 0, 0], &[0; 20], &[]] {
        let mut front = UnixStream::connect(&path).unwrap();
        // The port may have broken off already.
        let _ = front.write_all(garbage);
    }
    eventually("everything is given back", || Some(resources()) == before);
    let mut there = back_end(&path, ",client,queues=2");
    connected(&here);
    let made = [frame(1, 60)];
    assert_eq!(here[1].transmit_burst(&spans(&made)).taken, 1);
    assert_eq!(received(&mut there[1], 9), made);
}

/// The rings of queue 0 (to us) or 1 (from us), as the back end sees them.
pub(super) fn rings(port: &VirtioUserPort, queue: usize) -> Rings {
    let size = connection::SIZE;
    let memory = port.pair.tx.change(|slot| slot.as_ref().unwrap().memory.clone());
    let ring = memory.1.window().part(queue * size.ring_len().next_multiple_of(4096), size.ring_len()).unwrap();
    let buffers = memory.0.part(queue * 256, 256).unwrap().0;
    Place { ring, buffers, stride: STRIDE, buffers_at: 0 }.rings(size).unwrap()
}

pub(super) fn use_one(rings: &Rings, head: u32, len: u32) {
    let index = rings.used_index.load(Ordering::Relaxed);
    rings.used.store(index, Used { head, len });
    rings.used_index.store(index.wrapping_add(1), Ordering::Release);
}

/// Writes the header of a frame in `buffer` that says that it lies in so many.
fn say_buffers(port: &VirtioUserPort, buffer: usize, count: u16) {
    let buffers = port.pair.rx.change(|slot| slot.as_ref().unwrap().memory.0.clone());
    let header =
        buffers.memory.window().span_mut(buffer * STRIDE + (STRIDE - CAPACITY - NetHeader::LEN), NetHeader::LEN);
    header.unwrap().write_from(&NetHeader::of_buffers(count).encode());
}

#[test]
fn every_lie_of_a_back_end_stops_its_queue_and_is_named() {
    type Lie = fn(&Rings);
    let lies: [(Lie, &str); 6] = [
        (|rings| rings.used_index.store(0x8000, Ordering::Release), "receive queue stopped: the device has used 32767"),
        (|rings| use_one(rings, 256, 72), "has used descriptor 256, which it did not have"),
        (|rings| use_one(rings, u32::MAX, 72), "has used descriptor 4294967295"),
        (|rings| (0..2).for_each(|_| use_one(rings, 9, 72)), "has used descriptor 9, which it did not have"),
        (|rings| use_one(rings, 9, 11), "has written 11 bytes"),
        (|rings| use_one(rings, 9, 1 << 31), "has written 2147483648 bytes"),
    ];
    let mut scene = scene(1);
    for (round, (lie, said)) in lies.into_iter().enumerate() {
        let here = &mut scene.here[0];
        let made = [frame(1, 60)];
        assert_eq!(scene.there[0].transmit_burst(&spans(&made)).taken, 1);
        assert_eq!(received(here, 9), made);
        // The true back end does nothing by itself.
        say_buffers(here, 9, 1);
        lie(&rings(here, 0));
        received(here, 9);
        assert!(here.counters().mode().contains(said), "{} should say {said}", here.counters().mode());
        assert!(!here.counters().link());
        assert_eq!(here.counters().rx_dropped(DropReason::BadRing), round as u64 + 1);
        assert!(received(here, 9).is_empty(), "stays stopped");
        // The other direction goes on.
        assert_eq!(here.transmit_burst(&spans(&made)).taken, 1);
        assert_eq!(received(&mut scene.there[0], 9), made);
        scene.there.clear();
        eventually("no peer", || here.counters().mode().ends_with("no peer"));
        scene.there = back_end(&scene.path, "");
        connected(&scene.here);
    }
}

#[test]
fn frames_in_a_ring_that_is_broken_are_counted() {
    let mut scene = scene(1);
    let here = &mut scene.here[0];
    let made = vec![frame(1, 60), frame(2, 5000), frame(3, 61)];
    assert_eq!(here.transmit_burst(&spans(&made)).taken, 3);
    let rings = rings(here, 1);
    let head = u32::from(rings.avail.load(0));
    use_one(&rings, head, 0);
    use_one(&rings, head, 0);
    // The frame that finds out is lost with those before.
    let _ = here.transmit_burst(&spans(&made[..1]));
    let said = "transmit queue stopped: the device has used descriptor";
    assert!(here.counters().mode().contains(said), "{}", here.counters().mode());
    let counters = here.counters();
    assert_eq!((counters.tx_frames(), counters.tx_bytes(), counters.tx_dropped(DropReason::BadRing)), (1, 60, 3));
    assert_eq!(here.transmit(Span::from_slice(&made[0])), TxOutcome::Dropped(DropReason::LinkDown));
    scene.there.clear();
    eventually("no peer", || here.counters().mode().ends_with("no peer"));
    assert_eq!((here.counters().tx_frames(), here.counters().tx_offered()), (1, 5), "counted once");
}

/// Until it is told to stop, a back end goes on: what it gives and takes meanwhile is counted.
#[test]
fn frames_that_cross_the_end_of_a_connection_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut here = open(&spec(&path, "")).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel::<[Rings; 2]>();
    std::thread::scope(|scope| {
        let front = listener.accept().unwrap().0;
        scope.spawn(move || {
            answer(front, usize::MAX, |ring| {
                // A frame comes, and one of two is taken.
                if ring == 0 {
                    let [from, to] = receiver.recv().unwrap();
                    use_one(&from, 9, 72);
                    use_one(&to, u32::from(to.avail.load(0)), 0);
                }
            });
        });
        connected(&here);
        say_buffers(&here[0], 9, 1);
        let port = &mut here[0];
        assert_eq!(port.transmit_burst(&spans(&[frame(1, 60), frame(2, 61)])).taken, 2);
        sender.send([rings(port, 0), rings(port, 1)]).unwrap();
        port.wire.loans.set(0, None).unwrap();
        eventually("no link", || !port.counters().link());
        eventually("counted", || port.counters().mode().ends_with("no peer"));
        let counters = port.counters();
        assert_eq!((counters.rx_offered(), counters.rx_dropped(DropReason::LinkDown)), (1, 1));
        assert_eq!((counters.tx_frames(), counters.tx_bytes(), counters.tx_dropped(DropReason::LinkDown)), (1, 60, 1));
        drop(here);
        drop(listener);
    });
}

#[test]
fn frames_that_lie_about_their_buffers_are_not_believed() {
    let mut scene = scene(1);
    let here = &mut scene.here[0];
    let rings = rings(here, 0);
    say_buffers(here, 9, 300);
    use_one(&rings, 9, 72);
    assert!(received(here, 9).is_empty());
    assert!(here.counters().mode().contains("spread a frame over 300 buffers"), "{}", here.counters().mode());
}

#[test]
fn kicks_are_bells_of_the_user_at_the_other_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost.sock");
    let _there = back_end(&path, "");
    let size = Size::new(256).unwrap();
    let wishes = Wishes { pairs: 1, size, mergeable: true, event_index: true, in_order: false, offloads: false };
    let device = Device::connect(&path, wishes).unwrap();
    let own = Some(Whose::User(rustix::process::getuid().as_raw()));
    assert_eq!([&device.pairs[0].rx_kick, &device.pairs[0].tx_kick].map(|kick| kick.whose()), [own; 2]);
}
