//! Programs that write nonsense into the memory that they share with the card: their own queue stops with a reason,
//! nobody else notices.

use crate::common::*;
use millrace::{Device, Error, FaultKind, Iova, Laggard, Mode, Pages, QueueId, QueueState, Region, Sharing};
use millrace_abi::control::{CARD_SLEEPS_AT, DOORBELL_AT, PAGE_SIZE, STATE_AT};
use millrace_abi::message::{Buffers, ErrorCode};
use millrace_dma::Ordering;
use millrace_driver::{Client, Kick, Opened};
use millrace_ring::calypte::Header;
use rustix::fd::OwnedFd;
use rustix::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

fn memory(device: &Device, writable: bool) -> (Region, millrace::Mapping) {
    let region = Region::allocate(1 << 16, Pages::Ordinary).unwrap();
    let mapping = device.map(&region, writable, None).unwrap();
    (region, mapping)
}

/// Calls until the queue has faulted, and says how.
fn fault_of<T>(mut call: impl FnMut() -> Result<T, Error>) -> (QueueId, FaultKind, u64) {
    let begin = Instant::now();
    loop {
        match call() {
            Err(Error::Faulted { queue, kind, iova }) => return (queue, kind, iova),
            Err(other) => panic!("{other}"),
            Ok(_) => assert!(begin.elapsed() < PATIENCE, "no fault"),
        }
    }
}

fn stats_of(device: &Device, queue: QueueId) -> millrace::stats::QueueStats {
    device.stats().unwrap().queues.into_iter().find(|stats| stats.queue == queue).unwrap()
}

#[test]
fn an_address_outside_the_domain_stops_only_its_queue() {
    let daemon = Daemon::start("queues=3,spin=20");
    let device = daemon.device();
    let mut bystander = Bystander::start(daemon.device(), 0);
    let other = daemon.device();
    let (_foreign, foreign) = memory(&other, true);
    let (_region, mapping) = memory(&device, true);
    let good = mapping.iova();
    // Nowhere; around the end of the address space; over the end of a mapping; where only another program has memory.
    let bad = [
        Iova::new(0),
        Iova::new(0x7fff_0000_1234),
        Iova::new(u64::MAX - 10),
        good.plus((1 << 16) - 99),
        foreign.iova().plus(if foreign.iova() == good { 1 << 20 } else { 0 }),
    ];
    for (round, iova) in bad.into_iter().enumerate() {
        let mut tx = device.tx(1).open_supplied(64).unwrap();
        let mut rx = device.rx(1).open_supplied(64).unwrap();
        assert!(rx.post(good, 2048) && rx.post(good.plus(2048), 2048));
        rx.flush();
        assert!(tx.post(good.plus(4096), 100) && tx.post(iova, 100));
        tx.flush();
        let mut completed = 0;
        let fault = fault_of(|| tx.completed().map(|count| completed += count));
        assert_eq!(fault, (QueueId::tx(1), FaultKind::Unmapped, iova.get()));
        assert_eq!(completed, 1, "what came before the fault was sent");
        let stats = stats_of(&device, QueueId::tx(1));
        assert_eq!(stats.state, QueueState::Faulted(FaultKind::Unmapped));
        assert_eq!((stats.fault_iova, stats.iotlb_faults), (Some(iova.get()), round as u64 + 1));
        assert!(rx.wait(PATIENCE).unwrap(), "the frame before it arrived");
        assert_eq!((rx.ready().unwrap(), rx.header(0).len), (1, 100));
        tx.close().unwrap();
        rx.close().unwrap();
        let stats = stats_of(&device, QueueId::tx(1));
        assert_eq!((stats.state, stats.fault_iova), (QueueState::Stopped, None));
        bystander.goes_on();
    }
    // The receiving side: an address outside, and memory that the card may only read.
    let (_region, read_only) = memory(&device, false);
    for iova in [Iova::new(77), read_only.iova()] {
        let mut rx = device.rx(2).open_supplied(64).unwrap();
        let mut sender = tx(&device, 2, Mode::Direct, Sharing::Exclusive);
        rx.post(good, 2048);
        rx.post(iova, 2048);
        rx.flush();
        send_all(&mut sender, 0, 5, 100);
        let fault = fault_of(|| {
            let ready = rx.ready()?;
            rx.release(ready);
            Ok(())
        });
        assert_eq!(fault, (QueueId::rx(2), FaultKind::Unmapped, iova.get()));
        let begin = Instant::now();
        while stats_of(&device, QueueId::rx(2)).drops.iter().map(|drop| drop.count).sum::<u64>() % 4 != 0 {
            assert!(begin.elapsed() < PATIENCE, "what comes for a faulted queue is counted");
        }
        let stats = stats_of(&device, QueueId::rx(2));
        assert_eq!(stats.fault_iova, Some(iova.get()));
        rx.close().unwrap();
        sender.close().unwrap();
        bystander.goes_on();
    }
    bystander.finish();
    check_equations(&device);
}

/// A queue opened past the host library, with everything in our hands.
struct Raw {
    client: Client,
    opened: Opened,
    queue: QueueId,
}

impl Raw {
    fn open(daemon: &Daemon, queue: QueueId, mode: Mode, sharing: Sharing, buffers: Buffers) -> Self {
        let client = Client::connect(&daemon.path).unwrap();
        let opened = client.open(queue, mode, sharing, buffers).unwrap();
        client.start(opened.handle).unwrap();
        Self { client, opened, queue }
    }

    fn direct(daemon: &Daemon, queue: QueueId) -> Self {
        Self::open(daemon, queue, Mode::Direct, Sharing::Exclusive, Buffers::Driver)
    }

    fn state(&self) -> Option<QueueState> {
        QueueState::from_word(self.opened.control.window().word32(STATE_AT).unwrap().load(Ordering::Acquire))
    }

    fn doorbell(&self, word: u64) {
        self.opened.control.window().word64(DOORBELL_AT).unwrap().store(word, Ordering::Release);
        self.opened.kick.kick();
    }

    fn descriptor(&self, index: u32, word: u64) {
        let ring = self.opened.descriptors.as_ref().unwrap();
        ring.window().word64(index as usize * 8).unwrap().store(word, Ordering::Relaxed);
    }

    fn wait_for_fault(&self) -> FaultKind {
        let begin = Instant::now();
        loop {
            if let Some(QueueState::Faulted(kind)) = self.state() {
                return kind;
            }
            assert!(begin.elapsed() < PATIENCE, "{}: no fault", self.queue);
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn again(&self) {
        self.client.stop(self.opened.handle, true, 0).unwrap();
        self.client.start(self.opened.handle).unwrap();
        assert_eq!(self.state(), Some(QueueState::Running));
    }
}

const UPPER: u64 = 0;
const BUFFER: u64 = 2 << 62;

#[test]
fn descriptors_that_mean_nothing_are_named() {
    let daemon = Daemon::start("queues=3,spin=20,engine=sze@1,engine=calypte@2");
    let device = daemon.device();
    let tx = Raw::direct(&daemon, QueueId::tx(0));
    let one = [
        (1 << 62, FaultKind::ReservedDescriptor),
        (3 << 62, FaultKind::ReservedDescriptor),
        (UPPER | 1 << 40, FaultKind::ReservedDescriptor),
        (BUFFER | 100 << 32, FaultKind::NoUpperAddress),
    ];
    for (word, kind) in one {
        tx.descriptor(0, word);
        tx.doorbell(1);
        assert_eq!(tx.wait_for_fault(), kind, "{word:#x}");
        assert_eq!(stats_of(&device, QueueId::tx(0)).state, QueueState::Faulted(kind));
        tx.again();
    }
    // Lengths of zero and beyond what the card sends are dropped and counted, and the queue runs on.
    tx.descriptor(0, UPPER | 4);
    for (index, len) in [(1, 0u64), (2, 59), (3, 0x4000), (4, 0xffff)] {
        tx.descriptor(index, BUFFER | len << 32);
    }
    tx.doorbell(5);
    let begin = Instant::now();
    while stats_of(&device, QueueId::tx(0)).offered < 4 {
        assert!(begin.elapsed() < PATIENCE);
    }
    assert_eq!(tx.state(), Some(QueueState::Running));
    let drops = stats_of(&device, QueueId::tx(0)).drops;
    assert_eq!(
        drops.iter().map(|drop| (&drop.reason[..], drop.count)).collect::<Vec<_>>(),
        [("too-long", 2), ("too-short", 2)]
    );
    // A packet of several descriptors that fills the ring and does not end: first where nothing is mapped, then in the
    // status region, which lies at 4 GiB.
    for (upper, kind) in [(3, FaultKind::Unmapped), (4, FaultKind::EndlessDescriptors)] {
        tx.again();
        (0..1024).for_each(|index| tx.descriptor(index, BUFFER | 1 << 61 | 8 << 32));
        tx.descriptor(0, UPPER | upper);
        // Only a card that saw the first doorbell finds the ring full at the second; on a busy machine it may see neither.
        let begin = Instant::now();
        while !matches!(tx.state(), Some(QueueState::Faulted(_))) && begin.elapsed() < PATIENCE {
            tx.doorbell(1023);
            std::thread::sleep(Duration::from_millis(1));
            tx.doorbell(0);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(tx.wait_for_fault(), kind);
    }
    // SZE: a pointer between packets, and a header that contradicts it.
    let tx = Raw::direct(&daemon, QueueId::tx(1));
    tx.doorbell(4);
    assert_eq!(tx.wait_for_fault(), FaultKind::BadPointer);
    tx.again();
    for word in [0u64, 7, 100 | 200 << 16, 0xffff] {
        tx.opened.data.as_ref().unwrap().window().word64(0).unwrap().store(word, Ordering::Relaxed);
        tx.doorbell(64);
        assert_eq!(tx.wait_for_fault(), FaultKind::BadHeader, "{word:#x}");
        tx.again();
    }
    drop(tx);
    within(PATIENCE, || device.tx(1).open());
    Bystander::start(device.clone(), 1).finish();
    // Calypte: a header of a frame between places, behind the ring, and as long as the ring.
    let tx = Raw::direct(&daemon, QueueId::tx(2));
    for header in [Header { len: 64, at: 1, ..Header::default() }, Header { len: 0xffff, ..Header::default() }] {
        tx.descriptor(0, header.encode(true));
        tx.doorbell(0);
        assert_eq!(tx.wait_for_fault(), FaultKind::BadHeader, "{header:?}");
        tx.again();
    }
    for (index, len) in [(0, 0u16), (1, 59), (2, 0x4000)] {
        tx.descriptor(index, Header { len, ..Header::default() }.encode(true));
    }
    tx.doorbell(0);
    within(PATIENCE, || if stats_of(&device, QueueId::tx(2)).offered == 3 { Ok(()) } else { Err("more drops") });
    drop(tx);
    within(PATIENCE, || device.tx(2).open());
    Bystander::start(device.clone(), 2).finish();
    check_equations(&device);
}

/// Ends the threads that watch a flag, also when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes random words over a region until told to stop.
fn scribble(region: &Region, len: usize, seed: u64, stop: &AtomicBool, kick: Option<&Opened>) {
    let mut random = Random(seed);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            let at = random.below(len as u64 / 8) as usize * 8;
            // Sometimes anything, sometimes what is nearly right.
            let word = match random.below(6) {
                0 => random.next(),
                1 => random.below(2048),
                2 => random.below(64) | random.below(64) << 32,
                3 => UPPER | (4 + random.below(3)),
                4 => BUFFER | random.below(3000) << 32 | random.below(1 << 30),
                _ => BUFFER | random.below(2) << 61 | 64 << 32 | random.below(0x40_0000),
            };
            region.window().word64(at).unwrap().store(word, Ordering::Relaxed);
        }
        if let Some(opened) = kick {
            let doorbell = opened.control.window().word64(DOORBELL_AT).unwrap();
            doorbell.store(random.next() >> random.below(64), Ordering::Release);
            opened.kick.kick();
        }
    }
}

/// Faults after which enough has been tried with a pair of queues, however long they take on a busy machine.
const FAULTS: u32 = 100;
/// No load makes the next faults take this long.
const STUCK: Duration = Duration::from_secs(120);

#[test]
fn rings_that_change_while_they_are_read_harm_nobody_else() {
    let daemon = Daemon::start("queues=4,spin=20,engine=sze@2,engine=calypte@3,buffers=256,ring=65536");
    let device = daemon.device();
    let mut bystander = Bystander::start(daemon.device(), 0);
    for (index, round) in [(1, 0u64), (2, 1), (3, 2)] {
        let raws = [Raw::direct(&daemon, QueueId::rx(index)), Raw::direct(&daemon, QueueId::tx(index))];
        let stop = AtomicBool::new(false);
        let (mut faults, begin) = (0, Instant::now());
        std::thread::scope(|scope| {
            let _ends = Ends(&stop);
            for (seed, raw) in (round * 10 + 1..).zip(&raws) {
                let stop = &stop;
                let Opened { control, descriptors, data, .. } = &raw.opened;
                scope.spawn(move || scribble(control, PAGE_SIZE, seed, stop, Some(&raw.opened)));
                if let Some(descriptors) = descriptors {
                    scope.spawn(move || scribble(descriptors, descriptors.len(), seed + 100, stop, None));
                }
                if raw.queue.direction == millrace::Direction::Tx
                    && let Some(data) = data
                {
                    scope.spawn(move || scribble(data, data.len(), seed + 200, stop, None));
                }
            }
            while faults < FAULTS {
                assert!(begin.elapsed() < STUCK, "{faults} faults: nothing is tried any more");
                std::thread::sleep(Duration::from_millis(2));
                for raw in &raws {
                    if stats_of(&device, raw.queue).state != QueueState::Running {
                        faults += 1;
                        raw.client.stop(raw.opened.handle, true, begin.elapsed().as_nanos() as u64).unwrap();
                        raw.client.start(raw.opened.handle).unwrap();
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        bystander.goes_on();
    }
    bystander.finish();
    // Everything is as new for the next.
    for index in [1, 2, 3] {
        Bystander::start(daemon.device(), index).finish();
    }
    check_equations(&device);
}

#[test]
fn a_writer_that_writes_nonsense_stops_only_its_own_ring() {
    let daemon = Daemon::start("queues=4,spin=20,engine=sze@2,engine=calypte@3,buffers=256,ring=65536");
    let device = daemon.device();
    for index in [1, 2, 3] {
        let shared = Sharing::Shared(Laggard::Block);
        let hostile = || Raw::open(&daemon, QueueId::tx(index), Mode::Direct, shared, Buffers::Driver);
        let (mut rx, mut raw) = (rx(&device, index, Mode::Direct, Sharing::Exclusive), hostile());
        let mut tx = tx(&device, index, Mode::Direct, shared);
        let mut faults = 0;
        // Only Medusa leads the card to addresses; there it goes on until one of them was wrong.
        for round in 0..1000 {
            if round >= 20 && (index != 1 || faults > 0) {
                break;
            }
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let Opened { control, descriptors, .. } = &raw.opened;
                let (stop, raw) = (&stop, &raw);
                scope.spawn(move || scribble(control, PAGE_SIZE, round, stop, Some(&raw.opened)));
                if let Some(descriptors) = descriptors {
                    scope.spawn(move || scribble(descriptors, descriptors.len(), round + 100, stop, None));
                }
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_millis(10) {
                    // The other writer sends, and what it sends arrives among whatever the hostile one makes of its ring.
                    if let Some(mut burst) = tx.get(&[77; 4]).unwrap() {
                        (0..4).for_each(|i| burst[i].fill(0xd5));
                        burst.send().unwrap();
                    }
                    drop(rx.get(64).unwrap());
                }
                stop.store(true, Ordering::Relaxed);
            });
            assert_eq!(stats_of(&device, QueueId::tx(index)).state, QueueState::Running);
            faults += u32::from(stats_of(&device, QueueId::tx(index)).iotlb_faults > 0);
            drop(raw);
            raw = hostile();
        }
        assert!(index != 1 || faults > 0, "nothing was tried");
        while rx.wait(Duration::from_millis(20)).unwrap() {
            drop(rx.get(64).unwrap());
        }
        send_all(&mut tx, 0, 100, 80);
        receive_all(&mut rx, 0, 100);
        tx.close().unwrap();
        rx.close().unwrap();
    }
    check_equations(&device);
}

#[test]
fn a_subscriber_that_writes_nonsense_is_thrown_out_alone() {
    for engine in ["medusa", "sze", "calypte"] {
        for mode in [Mode::Direct, Mode::Mediated] {
            let daemon = Daemon::start(&format!("engine={engine},spin=20,buffers=128,ring=32768"));
            let device = daemon.device();
            let sharing = Sharing::Shared(Laggard::Block);
            let mut reader = rx(&device, 0, Mode::Direct, sharing);
            let liar = Raw::open(&daemon, QueueId::rx(0), mode, sharing, Buffers::Driver);
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _ends = Ends(&stop);
                scope.spawn(|| scribble(&liar.opened.control, PAGE_SIZE, 5, &stop, Some(&liar.opened)));
                let asker = scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        match liar.client.rx_sync(liar.opened.handle, 3, 50) {
                            Ok(_) => {}
                            Err(error) => assert_ne!(error.code(), None, "{error}"),
                        }
                    }
                });
                let mut sender = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
                let (mut next, begin) = (0, Instant::now());
                // Everything still arrives, although a liar that looks slow may hold it up for a while.
                while begin.elapsed() < Duration::from_millis(300) || next < 2000 {
                    assert!(begin.elapsed() < PATIENCE, "the liar holds everybody up");
                    send_all(&mut sender, next, next + 20, 100);
                    receive_all(&mut reader, next, next + 20);
                    next += 20;
                }
                stop.store(true, Ordering::Relaxed);
                asker.join().unwrap();
            });
            check_equations(&device);
        }
    }
}

#[test]
fn unmap_under_traffic_returns_when_it_is_safe() {
    let daemon = Daemon::start("queues=2,spin=20");
    let device = daemon.device();
    let mut bystander = Bystander::start(daemon.device(), 1);
    for round in 0..20 {
        let (tx_region, tx_mapping) = memory(&device, false);
        let (rx_region, rx_mapping) = memory(&device, true);
        let mut tx = device.tx(0).open_supplied(64).unwrap();
        let mut rx = device.rx(0).open_supplied(64).unwrap();
        let (from, to) = (tx_mapping.iova(), rx_mapping.iova());
        tx_region.window().span_mut(0, 1 << 16).unwrap().write_from(&[0x11; 1 << 16]);
        let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _ends = Ends(&stop);
            let traffic = scope.spawn(|| {
                let mut frames = 0u64;
                loop {
                    while rx.post(to.plus(frames % 16 * 4096), 4096) {}
                    rx.flush();
                    while tx.post(from.plus(frames % 8 * 4096), 1500) {}
                    tx.flush();
                    let outcome = tx.completed().and_then(|_| {
                        let ready = rx.ready()?;
                        rx.release(ready);
                        frames += u64::from(ready);
                        seen.store(frames, Ordering::Relaxed);
                        Ok(())
                    });
                    if outcome.is_err() || stop.load(Ordering::Relaxed) {
                        return outcome;
                    }
                }
            });
            let begin = Instant::now();
            while seen.load(Ordering::Relaxed) < 100 {
                assert!(begin.elapsed() < PATIENCE, "there is no traffic");
                std::thread::yield_now();
            }
            let (which, mapping, region) = if round % 2 == 0 {
                (QueueId::tx(0), tx_mapping, &tx_region)
            } else {
                (QueueId::rx(0), rx_mapping, &rx_region)
            };
            mapping.unmap().unwrap();
            // From here on the memory is ours alone.
            region.window().span_mut(0, 1 << 16).unwrap().write_from(&[0xee; 1 << 16]);
            match traffic.join().unwrap() {
                Err(Error::Faulted { queue, kind, .. }) => {
                    assert_eq!((queue, kind), (which, FaultKind::Unmapped), "round {round}");
                }
                other => panic!("{other:?}"),
            }
            let mut now = vec![0; 1 << 16];
            region.window().span(0, 1 << 16).unwrap().read_into(&mut now);
            assert!(now.iter().all(|&byte| byte == 0xee), "the card wrote after unmap had returned");
            let mut received = vec![0; 1 << 16];
            rx_region.window().span(0, 1 << 16).unwrap().read_into(&mut received);
            if round % 2 == 0 {
                assert!(!received.contains(&0xee), "the card read after unmap had returned");
            }
        });
        bystander.goes_on();
        tx.close().unwrap();
        rx.close().unwrap();
    }
    bystander.finish();
    check_equations(&device);
}

#[test]
fn a_faulted_queue_starts_again_and_cannot_be_joined_before() {
    let daemon = Daemon::start("queues=1,engine=sze,spin=20,ring=65536");
    let device = daemon.device();
    let sharing = Sharing::Shared(Laggard::Block);
    let liar = Raw::open(&daemon, QueueId::tx(0), Mode::Mediated, sharing, Buffers::Driver);
    let honest = device.tx(0).mode(Mode::Mediated).sharing(sharing).open().unwrap();
    // Frames are committed by their lengths; whoever shares the ring can still spoil a header before the card sees it.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        let data = liar.opened.data.as_ref().unwrap();
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                (0..data.len() / 8).for_each(|at| data.window().word64(at * 8).unwrap().store(3, Ordering::Relaxed));
            }
        });
        let begin = Instant::now();
        while liar.client.tx_sync(liar.opened.handle, Vec::new(), 90).is_ok() {
            let _ = liar.client.tx_sync(liar.opened.handle, vec![64; 10], 0);
            assert!(begin.elapsed() < PATIENCE, "no fault");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(liar.wait_for_fault(), FaultKind::BadHeader);
    match honest.start() {
        Err(Error::Client(error)) => assert_eq!(error.code(), Some(ErrorCode::Invalid), "{error}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("joined a queue that stands still"),
    }
    drop(liar);
    within(PATIENCE, || device.rx(0).open());
    Bystander::start(device, 0).finish();
}

/// Whatever a program does to what wakes it and what it wakes the card with: neither worker nor driver waits for it.
#[test]
fn wake_ups_that_nobody_takes_or_has_filled_hold_nobody_up() {
    let daemon = Daemon::start("queues=2,spin=20,workers=1");
    let mut bystander = Bystander::start(daemon.device(), 0);
    let treatments: [fn(OwnedFd) -> Option<OwnedFd>; 4] = [
        |call| rustix::io::ioctl_fionbio(&call, false).map(|()| call).ok(),
        |call| rustix::net::shutdown(&call, Shutdown::Read).map(|()| call).ok(),
        |call| rustix::net::shutdown(&call, Shutdown::Both).map(|()| call).ok(),
        |_closed| None,
    ];
    for treat in treatments {
        let tx = Raw::direct(&daemon, QueueId::tx(1));
        let _call = treat(tx.client.call(tx.opened.handle).unwrap());
        // The kick of this connection is full, and whoever writes to it waits.
        let Kick::Signal(kick) = &tx.opened.kick else { panic!("a card has a kick") };
        rustix::io::write(kick, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::io::ioctl_fionbio(kick, false).unwrap();
        for _ in 0..200 {
            // A fault signals, whoever sleeps.
            tx.descriptor(0, 1 << 62);
            tx.opened.control.window().word64(DOORBELL_AT).unwrap().store(1, Ordering::Release);
            tx.wait_for_fault();
            tx.again();
        }
        bystander.goes_on();
        // In mediated mode the driver wakes the worker, if this page says that it sleeps.
        let rx = tx.client.open(QueueId::rx(1), Mode::Mediated, Sharing::Exclusive, Buffers::Driver).unwrap();
        tx.client.start(rx.handle).unwrap();
        for _ in 0..100 {
            rx.control.window().word32(CARD_SLEEPS_AT).unwrap().store(1, Ordering::Release);
            tx.client.rx_sync(rx.handle, 1, 1).unwrap();
        }
        bystander.goes_on();
        tx.client.close(rx.handle).unwrap();
        tx.client.close(tx.opened.handle).unwrap();
    }
    bystander.finish();
}
