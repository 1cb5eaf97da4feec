//! Frames into memory of an application.

use super::hostile::{rings, use_one};
use super::*;
use crate::{LendError, Lent, Pool};
use millrace_dma::{Ordering, Pages, Region};
use millrace_ring::virtio::Rings;
use millrace_ring::virtio::driver::{BEFORE_FRAME, STRIDE};

const LENT: &str = ", in memory of the application";

fn pool(count: u32) -> Pool {
    let region = Region::allocate(count as usize * STRIDE, Pages::Ordinary).unwrap();
    Pool { region, size: 2048, stride: STRIDE as u32, count }
}

/// A sink that keeps the first so many of the buffers of frames.
struct Keep<'p> {
    pool: &'p Pool,
    most: usize,
    kept: Vec<(usize, Vec<u8>)>,
    done: Vec<Vec<u8>>,
}

impl<'p> Keep<'p> {
    fn new(pool: &'p Pool, most: usize) -> Self {
        Self { pool, most, kept: Vec::new(), done: Vec::new() }
    }
}

impl Sink for Keep<'_> {
    fn take(&mut self, _: Span<'_>) -> Accept {
        panic!("a frame outside the pool")
    }

    fn take_lent(&mut self, at: usize, frame: Span<'_>) -> Lent {
        let there = self.pool.region.window().span(at, frame.len()).unwrap();
        assert_eq!(bytes(there), bytes(frame), "it lies where the port says");
        if self.kept.len() == self.most {
            self.done.push(bytes(frame));
            return Lent::Done;
        }
        self.kept.push((at, bytes(frame)));
        Lent::Kept
    }
}

/// Both ends, and a pool that this one works on with all its buffers.
fn lent_scene(count: u32) -> (Scene, Pool) {
    let (mut scene, pool) = (scene(1), pool(count));
    let here = &mut scene.here[0];
    here.lend(&pool).unwrap();
    eventually("link", || here.counters().link());
    assert!(here.counters().mode().ends_with(LENT), "{}", here.counters().mode());
    post(here, 0..count as usize);
    (scene, pool)
}

/// Gives the port these buffers, as many as it takes, and says how many.
fn post(port: &mut VirtioUserPort, numbers: impl IntoIterator<Item = usize>) -> usize {
    let mut numbers = numbers.into_iter().map(|number| number * STRIDE);
    let mut given = 0;
    port.post(&mut || numbers.next().inspect(|_| given += 1));
    given
}

fn send(port: &mut dyn PortQueue, frames: &[Vec<u8>]) {
    assert_eq!(port.transmit_burst(&spans(frames)).taken, frames.len());
}

fn some_frames(first: u8, count: u8) -> Vec<Vec<u8>> {
    (first..first + count).map(|number| frame(number, 60 + usize::from(number))).collect()
}

#[test]
fn frames_land_in_the_buffers_that_were_supplied() {
    let (mut scene, pool) = lent_scene(64);
    let (here, there) = (&mut scene.here[0], &mut scene.there[0]);
    let mode = format!("virtio-user client, 1 queue pair, event index, offloads, back end ready{LENT}");
    assert_eq!(here.counters().mode(), mode);
    let made = some_frames(0, 64);
    for round in 0..20 {
        send(there, &made);
        let mut keep = Keep::new(&pool, 40);
        assert_eq!(here.receive(64, &mut keep), 64);
        assert_eq!(keep.kept.iter().map(|kept| &kept.1).chain(&keep.done).cloned().collect::<Vec<_>>(), made);
        let mut starts: Vec<_> = keep.kept.iter().map(|(at, _)| at - BEFORE_FRAME).collect();
        assert!(starts.iter().all(|at| at % STRIDE == 0));
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), 40, "round {round}: each its own");
        // The longest that fits, into a buffer that was not kept.
        let longest = [frame(7, 2048 - BEFORE_FRAME)];
        send(there, &longest);
        let mut none = Keep::new(&pool, 0);
        assert_eq!(here.receive(64, &mut none), 1);
        assert_eq!(none.done, longest);
        assert_eq!(post(here, starts.iter().map(|at| at / STRIDE)), 40);
    }
    // The other direction has buffers of the port's own, of any length.
    let made = [frame(1, 60), frame(2, 9014)];
    send(here, &made);
    assert_eq!(received(there, 9), made);
    let counters = here.counters();
    assert_eq!((counters.rx_frames(), counters.rx_offered()), (20 * 65, 20 * 65));
    assert_eq!((counters.rx_copies(), counters.tx_copies()), (0, 2));
    assert!(here.sender().is_none(), "frames are sent with a copy");
}

#[test]
fn more_buffers_than_a_ring_has_are_not_taken_and_sinks_that_copy_give_them_back() {
    let (mut scene, _pool) = lent_scene(300);
    let (here, there) = (&mut scene.here[0], &mut scene.there[0]);
    assert_eq!(post(here, 0..300), 0, "256 are there");
    let made = some_frames(0, 50);
    for _ in 0..20 {
        send(there, &made);
        assert_eq!(received(here, 99), made);
    }
    // The card is full.
    send(there, &made);
    assert_eq!(received(here, 20), made[..20]);
    send(there, &made);
    assert_eq!(received(here, 99), made);
    let counters = here.counters();
    assert_eq!((counters.rx_frames(), counters.rx_dropped(DropReason::NoRoom)), (21 * 50 + 20, 30));
}

#[test]
fn a_back_end_that_comes_back_finds_the_same_buffers() {
    let (mut scene, pool) = lent_scene(8);
    let made = some_frames(0, 8);
    for round in 1..4 {
        let here = &mut scene.here[0];
        send(&mut scene.there[0], &made);
        let mut keep = Keep::new(&pool, 3);
        assert_eq!(here.receive(4, &mut keep), 4);
        assert_eq!(post(here, keep.kept.iter().map(|(at, _)| at / STRIDE)), 3);
        scene.there.clear();
        eventually("no peer", || here.counters().mode().ends_with("no peer"));
        assert_eq!(here.counters().rx_dropped(DropReason::LinkDown), 4 * round, "nobody has looked at them");
        assert_eq!(post(here, 0..8), 0, "nothing is taken while there is no back end");
        scene.there = back_end(&scene.path, "");
        connected(&scene.here);
        let here = &mut scene.here[0];
        assert!(here.counters().mode().ends_with(LENT));
        send(&mut scene.there[0], &made);
        assert_eq!(scene.there[0].transmit_burst(&spans(&made[..1])).taken, 0, "there are 8 buffers");
        let mut keep = Keep::new(&pool, 8);
        assert_eq!(here.receive(64, &mut keep), 8);
        let mut starts: Vec<_> = keep.kept.iter().map(|(at, _)| (at - BEFORE_FRAME) / STRIDE).collect();
        starts.sort_unstable();
        assert_eq!(starts, (0..8).collect::<Vec<_>>());
        assert_eq!(post(here, starts), 8);
    }
}

#[test]
fn a_port_works_on_its_own_memory_again_and_on_another_pool() {
    let (mut scene, pool_a) = lent_scene(8);
    let pool_b = pool(8);
    let made = some_frames(0, 8);
    for _ in 0..3 {
        let (here, there) = (&mut scene.here[0], &mut scene.there[0]);
        here.return_pool().unwrap();
        eventually("link", || here.counters().link());
        let mode = "virtio-user client, 1 queue pair, mergeable, event index, offloads, back end ready";
        assert_eq!(here.counters().mode(), mode);
        assert_eq!(post(here, 0..8), 0);
        pool_a.region.window().span_mut(0, 8 * STRIDE).unwrap().write_from(&vec![0xee; 8 * STRIDE]);
        let long = vec![frame(1, 60), frame(2, 9014)];
        send(there, &long);
        assert_eq!(received(here, 9), long);
        let untouched = pool_a.region.window().slice(0, 8 * STRIDE).unwrap();
        assert!(untouched.iter().all(|&byte| byte == 0xee), "nothing comes into the pool");
        for pool in [&pool_a, &pool_b, &pool_a] {
            // Buffers of the pool before do not become those of this one.
            here.lend(pool).unwrap();
            eventually("link", || here.counters().link());
            assert_eq!(there.transmit_burst(&spans(&made)).taken, 0, "no buffer was supplied");
            assert_eq!(post(here, 0..8), 8);
            send(there, &made);
            let mut keep = Keep::new(pool, 4);
            assert_eq!(here.receive(64, &mut keep), 8);
        }
    }
}

#[test]
fn a_pool_that_came_before_its_back_end_is_used_then() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost.sock");
    let mut here = open(&spec(&path, ",server,queues=2")).unwrap();
    let pools = [pool(4), pool(4)];
    here[1].lend(&pools[0]).unwrap();
    here[1].lend(&pools[1]).unwrap();
    assert_eq!(post(&mut here[1], 0..4), 0);
    let mut there = back_end(&path, ",client,queues=2");
    connected(&here);
    assert!(!here[0].counters().mode().ends_with(LENT) && here[1].counters().mode().ends_with(LENT));
    assert_eq!(post(&mut here[1], 0..4), 4);
    let made = some_frames(0, 4);
    send(&mut there[1], &made);
    let mut keep = Keep::new(&pools[1], 4);
    assert_eq!(here[1].receive(64, &mut keep), 4);
    // The other pair has its own memory.
    send(&mut there[0], &made);
    assert_eq!(received(&mut here[0], 9), made);
    // Each pair may have a pool of its own; those of the other are lent again in the new connection.
    assert_eq!(post(&mut here[1], 0..4), 4);
    here[0].lend(&pools[0]).unwrap();
    connected(&here);
    assert_eq!(post(&mut here[0], 0..2), 2);
    for (number, pool, room) in [(0, &pools[0], 2), (1, &pools[1], 4)] {
        assert_eq!(there[number].transmit_burst(&spans(&made)).taken, room);
        let mut keep = Keep::new(pool, 4);
        assert_eq!(here[number].receive(64, &mut keep), room);
    }
    drop(here);
    assert!(!path.exists());
}

#[test]
fn memory_that_does_not_fit_is_refused_and_the_port_goes_on() {
    let (mut scene, _pool) = lent_scene(8);
    let (here, there) = (&mut scene.here[0], &mut scene.there[0]);
    let small = Pool { size: 1581, ..pool(8) };
    let error = here.lend(&small).unwrap_err();
    assert!(error.to_string().contains("buffers of 1581 bytes, where frames of this wire need 1582"), "{error}");
    let closed = Pool { region: pool(8).region.without_fd(), ..pool(8) };
    assert!(matches!(here.lend(&closed), Err(LendError::Refused(_))));
    eventually("link", || here.counters().link());
    assert!(!here.counters().mode().ends_with(LENT));
    let made = some_frames(0, 8);
    send(there, &made);
    assert_eq!(received(here, 9), made);
    drop(scene);

    let mut scene = super::scene(8);
    let pools: Vec<_> = (0..7).map(|_| pool(8)).collect();
    for (here, pool) in scene.here.iter_mut().zip(&pools[..6]) {
        here.lend(pool).unwrap();
    }
    let error = scene.here[6].lend(&pools[6]).unwrap_err();
    assert!(error.to_string().contains("6 pools at most"), "{error}");
    connected(&scene.here);
}

#[test]
fn a_sleeping_worker_is_woken_for_frames_in_a_pool() {
    let (mut scene, pool) = lent_scene(8);
    let (here, there) = (&mut scene.here[0], &mut scene.there[0]);
    here.awake();
    let one = some_frames(1, 1);
    send(there, &one);
    assert!(!is_readable(here));
    assert_eq!(here.receive(9, &mut Keep::new(&pool, 0)), 1);
    here.prepare_sleep();
    assert_eq!(here.receive(9, &mut Keep::new(&pool, 0)), 0);
    send(there, &one);
    assert!(is_readable(here));
    here.awake();
    assert_eq!(here.receive(9, &mut Keep::new(&pool, 0)), 1);
}

#[test]
fn lies_about_a_pool_end_the_queue_and_its_buffers_come_back() {
    type Lie = fn(&Rings, u32);
    let lies: [(Lie, &str); 5] = [
        (|rings, head| use_one(rings, head, 12 + 2048 - 64 + 1), "has written 1997 bytes"),
        (|rings, head| use_one(rings, head, u32::MAX), "has written 4294967295 bytes"),
        (|rings, head| use_one(rings, head, 11), "has written 11 bytes"),
        (|rings, _| use_one(rings, 200, 72), "has used descriptor 200, which it did not have"),
        (|rings, _| rings.used_index.store(0x8000, Ordering::Release), "receive queue stopped: the device has used"),
    ];
    let (mut scene, pool) = lent_scene(4);
    for (round, (lie, said)) in lies.into_iter().enumerate() {
        let here = &mut scene.here[0];
        let view = rings(here, 0);
        lie(&view, u32::from(view.avail.load(0)));
        assert_eq!(here.receive(64, &mut Keep::new(&pool, 0)), 0);
        assert!(here.counters().mode().contains(said), "{} should say {said}", here.counters().mode());
        assert_eq!(here.counters().rx_dropped(DropReason::BadRing), round as u64 + 1);
        assert_eq!((here.receive(64, &mut Keep::new(&pool, 0)), post(here, 0..4)), (0, 0), "stays stopped");
        scene.there.clear();
        eventually("no peer", || here.counters().mode().ends_with("no peer"));
        scene.there = back_end(&scene.path, "");
        connected(&scene.here);
        let made = some_frames(0, 4);
        send(&mut scene.there[0], &made);
        let mut keep = Keep::new(&pool, 0);
        assert_eq!(scene.here[0].receive(64, &mut keep), 4, "none of the 4 is lost");
        assert_eq!(keep.done, made);
    }
}

#[test]
fn a_back_end_that_does_not_answer_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut ports = open(&spec(&path, "")).unwrap();
    let (_stream, _) = listener.accept().unwrap();
    eventually("connected", || ports[0].counters().mode().ends_with("peer connected"));
    let (pool, start) = (pool(4), Instant::now());
    ports[0].lend(&pool).unwrap();
    ports[0].return_pool().unwrap();
    ports[0].lend(&pool).unwrap();
    drop(ports);
    assert!(start.elapsed() < Duration::from_secs(15), "four times its patience, not that of a request");
}
