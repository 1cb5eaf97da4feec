//! DD queues over a pool: frames move by their descriptors.

use crate::common::*;
use millrace::{
    Buffer, Device, Error, ErrorCode, FarPolicy, Laggard, LatePolicy, LaunchPolicy, Mode, Pool, PoolRx, PoolTx, Reason,
    Sharing, Verdict,
};
use millrace_driver::ClientError;
use std::time::{Duration, Instant};

const SIZE: usize = 2048;
const RING: u32 = 64;

/// Holds buffers of a pool until it is told to die.
pub fn holder() {
    let device = Device::open(&format!("unix:{}", argument("SOCKET"))).unwrap();
    let (pool, mut rx, mut tx) = open(&device, 0, 512);
    let mut frames = made(&pool, 0, 30, 100);
    tx.send(&mut frames).unwrap();
    let mut held = Vec::new();
    while held.len() < 30 {
        assert!(rx.wait(PATIENCE).unwrap());
        rx.receive(&mut held, 64).unwrap();
    }
    // Dies with buffers in its hands, in the RX ring and on the way out.
    let _on_the_way = tx.send(&mut held.drain(..10).collect()).unwrap();
    say("holds");
    while listen() != "end" {}
    die();
}

/// A pool of `buffers`, and both queues `index` over it.
fn open(device: &Device, index: u32, buffers: u32) -> (Pool, PoolRx, PoolTx) {
    let pool = device.pool(buffers, SIZE).unwrap();
    let (rx, tx) = pair(device, index, &pool);
    (pool, rx, tx)
}

fn pair(device: &Device, index: u32, pool: &Pool) -> (PoolRx, PoolTx) {
    (device.rx(index).open_on(pool, RING).unwrap(), device.tx(index).open_on(pool, RING).unwrap())
}

/// Frames numbered from `first`, in buffers of their own.
fn made(pool: &Pool, first: u64, count: usize, len: usize) -> Vec<Buffer> {
    let frame = |number| {
        let mut buffer = pool.take().expect("a free buffer");
        buffer.set_len(len);
        fill(&mut buffer, number);
        buffer
    };
    (first..first + count as u64).map(frame).collect()
}

/// Waits for the frames from `first` up to `end` and returns them.
fn received(rx: &mut PoolRx, first: u64, end: u64) -> Vec<Buffer> {
    let mut frames = Vec::new();
    while (frames.len() as u64) < end - first {
        assert!(rx.wait(PATIENCE).unwrap(), "{} of {}", frames.len(), end - first);
        let left = (end - first) as usize - frames.len();
        rx.receive(&mut frames, left).unwrap();
    }
    frames.iter().zip(first..).for_each(|(frame, number)| assert_eq!(check(frame), number));
    frames
}

#[test]
fn frames_go_through_the_card_and_all_buffers_come_back() {
    let device = Device::open("embedded:engine=dd,spin=20").unwrap();
    let (pool, mut rx, mut tx) = open(&device, 0, 200);
    assert_eq!((pool.buffers(), pool.size()), (200, SIZE));
    let (mut number, mut random) = (0, Random(3));
    while number < 20_000 {
        let (count, len) = (1 + random.below(40), 60 + random.below(1900) as usize);
        let mut frames = made(&pool, number, count as usize, len);
        while !frames.is_empty() {
            if tx.send(&mut frames).unwrap() == 0 {
                assert!(tx.wait(PATIENCE).unwrap());
            }
        }
        drop(received(&mut rx, number, number + count));
        number += count;
    }
    assert_eq!(rx.refused(), 0);
    tx.close().unwrap();
    rx.close().unwrap();
    assert_eq!(pool.free(), 200, "all buffers are back");
    check_equations(&device);
}

#[test]
fn a_program_that_forwards_moves_no_byte() {
    let device = Device::open("embedded:engine=dd,spin=20").unwrap();
    let pool = device.pool(512, SIZE).unwrap();
    let (mut rx0, mut tx0) = pair(&device, 0, &pool);
    let (mut rx1, mut tx1) = pair(&device, 1, &pool);
    for round in 0..500 {
        let first = round * 8;
        tx0.send(&mut made(&pool, first, 8, 200)).unwrap();
        let mut frames = received(&mut rx0, first, first + 8);
        // What a copy would change.
        let buffers: Vec<_> = frames.iter().map(|frame| (frame.as_ptr(), frame.number())).collect();
        assert_eq!(tx1.send(&mut frames).unwrap(), 8);
        drop(received(&mut rx1, first, first + 8));
        // The card has read all eight; the last one that comes back is the first to be taken.
        while tx1.in_flight() > 0 {
            tx1.reclaim();
        }
        let again: Vec<_> = (0..8).map(|_| pool.take().unwrap()).collect();
        for (mut buffer, (at, number)) in again.into_iter().rev().zip(buffers) {
            buffer.set_len(200);
            assert_eq!((buffer.as_ptr(), buffer.number()), (at, number), "sent from where it was received");
            assert!(check(&buffer) >= first);
        }
    }
    settled(&device, |stats| stats.queues.iter().map(|queue| queue.passed).sum::<u64>() == 4 * 4000);
    check_equations(&device);
}

#[test]
fn a_pool_that_is_too_small_starves_nobody_for_ever() {
    let device = Device::open("embedded:engine=dd,spin=0").unwrap();
    // As many as the RX ring takes: every buffer that is sent has to come back from the TX ring.
    let (pool, mut rx, mut tx) = open(&device, 0, RING);
    assert!(pool.take().is_none(), "the card has them all");
    drop(rx);
    let mut frames = made(&pool, 0, 8, 100);
    rx = device.rx(0).open_on(&pool, RING).unwrap();
    for first in (0..20_000).step_by(8) {
        assert_eq!(tx.send(&mut frames).unwrap(), 8);
        frames = received(&mut rx, first, first + 8);
        frames.iter_mut().zip(first + 8..).for_each(|(frame, number)| fill(frame, number));
    }
    check_equations(&device);
}

#[test]
fn short_frames_are_padded_and_what_cannot_be_sent_stays() {
    let device = Device::open("embedded:engine=dd,spin=20,frame-max=1000").unwrap();
    let (pool, mut rx, mut tx) = open(&device, 0, 256);
    let other = device.pool(4, 64).unwrap();
    let mut frames = made(&pool, 0, 3, 20);
    frames.extend(made(&pool, 3, 1, 1001));
    frames.extend(made(&pool, 4, 1, 100));
    assert_eq!(tx.send(&mut frames).unwrap(), 3);
    assert!(matches!(tx.send(&mut frames), Err(Error::FrameTooLong { len: 1001, max: 1000, .. })));
    assert_eq!(frames.len(), 2, "they stay");
    frames.remove(0);
    frames.insert(0, made(&other, 9, 1, 64).remove(0));
    let error = tx.send(&mut frames).unwrap_err().to_string();
    assert!(error.contains("another pool"), "{error}");
    frames.remove(0);
    assert_eq!(tx.send(&mut frames).unwrap(), 1);
    let mut got = Vec::new();
    while got.len() < 4 {
        assert!(rx.wait(PATIENCE).unwrap());
        rx.receive(&mut got, 9).unwrap();
    }
    for frame in &got[..3] {
        assert_eq!((frame.len(), &frame[20..]), (60, &[0; 40][..]));
        check(&frame[..20]);
    }
    assert_eq!(check(&got[3]), 4);
}

#[test]
fn time_stamps_and_launch_times_are_those_of_one_clock() {
    let device = Device::open("embedded:engine=dd,spin=20,tsu").unwrap();
    let (pool, mut rx, mut tx) = open(&device, 0, 256);
    tx.send(&mut made(&pool, 0, 1, 100)).unwrap();
    let (mut now, port) = received(&mut rx, 0, 1)[0].received_at().unwrap();
    assert_eq!(port, 0);
    for number in 1..50 {
        let launch = now + 2_000_000;
        let mut frames = made(&pool, number, 1, 100);
        frames[0].set_launch(launch);
        tx.send(&mut frames).unwrap();
        now = received(&mut rx, number, number + 1)[0].received_at().unwrap().0;
        assert!(now >= launch, "launched {} ns early", launch - now);
    }
    // A wild time is an error and holds up nobody.
    let mut frames = made(&pool, 50, 2, 100);
    frames[0].set_launch(now + 10_000_000_000);
    tx.send(&mut frames).unwrap();
    received(&mut rx, 51, 52);
    let begin = Instant::now();
    let drops = || device.stats().unwrap().queues.iter().flat_map(|queue| queue.drops.clone()).collect::<Vec<_>>();
    while drops().is_empty() {
        assert!(begin.elapsed() < PATIENCE);
    }
    assert_eq!((drops()[0].reason.as_str(), drops()[0].count), ("launch-too-far", 1));
}

#[test]
fn every_frame_with_a_launch_time_has_a_verdict_and_the_statistics_say_the_same() {
    let device = Device::open("embedded:engine=dd,spin=20,tsu").unwrap();
    let policy = LaunchPolicy { late: LatePolicy::Drop, slack: 1_000_000_000, far: FarPolicy::Refuse };
    let pool = device.pool(256, SIZE).unwrap();
    let mut rx = device.rx(0).open_on(&pool, RING).unwrap();
    let mut tx = device.tx(0).launch(policy).open_on(&pool, RING).unwrap();
    tx.keep_verdicts(64);
    tx.send(&mut made(&pool, 0, 1, 100)).unwrap();
    let now = received(&mut rx, 0, 1)[0].received_at().unwrap().0;
    let launches = [now + 3_000_000, now - 20_000_000_000, now + 40_000_000_000, now + 4_000_000];
    for (number, launch) in (1..).zip(launches) {
        let mut frames = made(&pool, number, 1, 100);
        frames[0].set_launch(launch);
        tx.send(&mut frames).unwrap();
    }
    let (begin, mut verdicts) = (Instant::now(), Vec::new());
    while verdicts.len() < launches.len() {
        assert!(begin.elapsed() < PATIENCE, "{verdicts:?}");
        tx.verdicts(&mut verdicts);
    }
    assert_eq!(verdicts.iter().map(|verdict| verdict.scheduled).collect::<Vec<_>>(), launches);
    let reasons: Vec<_> = verdicts.iter().map(|verdict| verdict.reason(policy.slack).unwrap()).collect();
    assert_eq!(reasons, [Reason::OnTime, Reason::TooLate, Reason::TooFar, Reason::OnTime]);
    assert!(verdicts.iter().filter(|verdict| verdict.is_sent()).all(|verdict| verdict.actual >= verdict.scheduled));
    let stats = device.stats().unwrap().queues.into_iter().find_map(|queue| queue.launch).unwrap();
    let counted: Vec<_> = stats.verdicts.iter().map(|count| (count.reason.as_str(), count.count)).collect();
    assert_eq!((stats.frames, counted), (4, vec![("on-time", 2), ("too-late", 1), ("too-far", 1)]));
    let latest = verdicts.iter().filter(|verdict| verdict.is_sent()).map(Verdict::lateness).max().unwrap();
    assert_eq!((stats.late_max_ns, stats.late.iter().map(|bucket| bucket.count).sum::<u64>()), (latest, 2));
    // Who opens the queue next has said nothing.
    tx.close().unwrap();
    let mut tx = device.tx(0).open_on(&pool, RING).unwrap();
    let mut frames = made(&pool, 5, 1, 100);
    frames[0].set_launch(now - 20_000_000_000);
    tx.send(&mut frames).unwrap();
    let mut late = Vec::new();
    tx.keep_verdicts(1);
    while tx.verdicts(&mut late) == 0 {
        assert!(begin.elapsed() < PATIENCE);
    }
    assert_eq!(late[0].reason(10_000), Some(Reason::Late));
}

#[test]
fn what_dd_does_not_have_is_refused_with_the_reason() {
    let refusal = |error: Error| match error {
        Error::Client(ClientError::Refused { code, text }) => (code, text),
        other => panic!("{other}"),
    };
    let device = Device::open("embedded:queues=2,engine=dd@0").unwrap();
    let shared = Sharing::Shared(Laggard::Block);
    for (mode, sharing) in [(Mode::Mediated, Sharing::Exclusive), (Mode::Direct, shared), (Mode::Mediated, shared)] {
        for error in [
            device.rx(0).mode(mode).sharing(sharing).open().err().unwrap(),
            device.tx(0).mode(mode).sharing(sharing).open().err().unwrap(),
        ] {
            let (code, text) = refusal(error);
            assert!(code == ErrorCode::Invalid && text.contains("open it direct and exclusive"), "{text}");
        }
    }
    let pool = device.pool(16, SIZE).unwrap();
    let error = device.rx(1).open_on(&pool, RING).err().unwrap().to_string();
    assert!(error.contains("rx1 is a queue of medusa") && error.contains("engine=dd@rx1"), "{error}");
    for entries in [0, 4, 100, 65536] {
        let (code, text) = refusal(device.tx(0).open_on(&pool, entries).err().unwrap());
        assert!(code == ErrorCode::Invalid && text.contains("a power of two from 8 to 32768"), "{text}");
    }
    let other = Device::open("embedded:engine=dd").unwrap().pool(16, SIZE).unwrap();
    let error = device.tx(0).open_on(&other, RING).err().unwrap().to_string();
    assert!(error.contains("another open of the card"), "{error}");
    for (count, size) in [(0, 2048), (1, 0), (1, 65536)] {
        assert!(matches!(device.pool(count, size), Err(Error::Unfit(_))), "{count} of {size}");
    }
    let error = device.rx(0).open_supplied(64).err().unwrap();
    assert!(matches!(&error, Error::Unfit(text) if text.contains("engine=medusa@rx0")), "{error}");
    let error = device.tx(0).open_supplied(64).err().unwrap();
    assert!(matches!(&error, Error::Unfit(text) if text.contains("engine=medusa@tx0")), "{error}");
    // And after all that the queue can be had.
    drop(device.tx(0).open_on(&pool, RING).unwrap());
}

#[test]
fn a_program_that_dies_with_buffers_in_its_hands_leaves_a_clean_queue() {
    let daemon = Daemon::start("engine=dd,queues=2,spin=20");
    let mut bystander = Bystander::start(daemon.device(), 1);
    for _ in 0..5 {
        let mut holder = Process::start("holder of buffers", &[("SOCKET", daemon.socket())]);
        holder.expect("holds");
        holder.tell("end");
        holder.wait();
        let device = daemon.device();
        let pool = device.pool(256, SIZE).unwrap();
        let (mut rx, _) = within(PATIENCE, || device.rx(0).open_on(&pool, RING));
        let (mut tx, _) = within(PATIENCE, || device.tx(0).open_on(&pool, RING));
        tx.send(&mut made(&pool, 0, 20, 300)).unwrap();
        received(&mut rx, 0, 20);
        tx.close().unwrap();
        rx.close().unwrap();
        assert_eq!(pool.free(), 256);
    }
    bystander.finish();
}

#[test]
fn a_card_that_dies_gives_an_error_and_the_buffers_back() {
    let mut daemon = Daemon::start("engine=dd,spin=20");
    let device = daemon.device();
    let (pool, mut rx, mut tx) = open(&device, 0, 256);
    tx.send(&mut made(&pool, 0, 5, 100)).unwrap();
    received(&mut rx, 0, 5);
    daemon.process.kill();
    let begin = Instant::now();
    let mut frames = Vec::new();
    while rx.receive(&mut frames, 9).is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(5), "no error");
    }
    frames.extend(made(&pool, 5, 1, 100));
    while tx.send(&mut frames).is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(5), "no error");
        frames.extend(pool.take());
    }
    drop((rx, tx, frames));
    assert_eq!(pool.free(), 256);
}
