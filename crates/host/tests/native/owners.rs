//! Whose a queue is: native drivers, sessions, and the locks of DMA controllers.

use super::controller::{Controller, NotStarted, stats_of};
use super::medusa::{Medusa, UPDATE};
use crate::common::{self, PATIENCE};
use millrace::{Device, Error, ErrorCode, Mode, QueueId, Sharing};
use millrace_abi::queue::Direction;
use millrace_abi::register::map::dma_base;
use millrace_abi::register::medusa as m;
use millrace_dma::Ordering;
use std::time::{Duration, Instant};

#[test]
fn natives_and_sessions_exclude_each_other() {
    let name = "embedded:queues=2,engine=sze@1,spin=20";
    let (one, two) = (Device::open_shared(name).unwrap(), Device::open_shared(name).unwrap());
    let pid = std::process::id().to_string();
    let is_busy = |error: Option<Error>| match error {
        Some(Error::Client(error)) => {
            assert_eq!(error.code(), Some(ErrorCode::Busy), "{error}");
            assert!(error.to_string().contains(&pid), "{error}");
        }
        other => panic!("{other:?}"),
    };
    let queue = Medusa::start(&one, QueueId::rx(0), 128).unwrap();
    assert_eq!(Medusa::start(&two, QueueId::rx(0), 128).err(), Some(NotStarted::Exists));
    assert_eq!(Medusa::start(&one, QueueId::rx(0), 128).err(), Some(NotStarted::Exists), "not even the same one");
    for device in [&one, &two] {
        for mode in [Mode::Direct, Mode::Mediated] {
            is_busy(device.rx(0).mode(mode).open().unwrap().start().err());
        }
    }
    // Whoever does not care for locks does not get in either.
    let other = Medusa::prepared(&two, QueueId::rx(0), 128);
    other.controller.write32(m::CONTROL, m::CONTROL_START);
    let refusal = stats_of(&two, QueueId::rx(0)).refusal.unwrap();
    assert!(refusal.contains("running already"), "{refusal}");
    queue.stop();
    // Sessions hold the lock while they run, and only then.
    let paths: Vec<(QueueId, String)> = [QueueId::rx(0), QueueId::tx(0), QueueId::rx(1), QueueId::tx(1)]
        .map(|id| (id, Controller::new(&one, id).path))
        .into();
    for (id, path) in &paths {
        let free = || {
            let free = two.try_lock(path, 1).unwrap();
            if free {
                two.unlock(path, 1).unwrap();
            }
            free
        };
        for mode in [Mode::Direct, Mode::Mediated] {
            match id.direction {
                Direction::Rx => {
                    let queue = one.rx(id.index).mode(mode).open().unwrap();
                    assert!(free(), "open, not started");
                    let queue = queue.start().unwrap();
                    assert!(!free(), "{id} runs");
                    let queue = queue.stop().unwrap();
                    assert!(free(), "stopped");
                    drop(queue.start().unwrap());
                }
                Direction::Tx => {
                    let queue = one.tx(id.index).mode(mode).open().unwrap();
                    assert!(free(), "open, not started");
                    let queue = queue.start().unwrap();
                    assert!(!free(), "{id} runs");
                    is_busy(two.lock(path, 0b11, Duration::ZERO).err());
                    drop(queue);
                }
            }
            assert!(free(), "closed");
        }
    }
    // Shared readers hold it until the last has gone.
    let sharing = Sharing::Shared(millrace::Laggard::Block);
    let first = common::rx(&one, 0, Mode::Direct, sharing);
    let second = common::rx(&two, 0, Mode::Mediated, sharing);
    assert_eq!(Medusa::start(&two, QueueId::rx(0), 128).err(), Some(NotStarted::Exists));
    drop((first, one));
    assert!(!two.try_lock(&paths[0].1, 1).unwrap(), "the first has even closed its device");
    drop(second);
    let queue = Medusa::start(&two, QueueId::rx(0), 128).unwrap();
    let one = Device::open_shared(name).unwrap();
    is_busy(one.rx(0).open().unwrap().start().err());
    // A native queue whose controller was unlocked too early is still nobody else's.
    queue.controller.unlock();
    is_busy(one.rx(0).open().unwrap().start().err());
    assert_eq!(Medusa::start(&one, QueueId::rx(0), 128).err(), Some(NotStarted::Already));
    assert!(queue.controller.is_running());
    queue.controller.write32(m::CONTROL, m::CONTROL_STOP);
    assert!(queue.controller.has_stopped());
}

#[test]
fn a_start_without_a_lock_takes_it() {
    let name = "embedded:spin=21";
    let (one, two) = (Device::open_shared(name).unwrap(), Device::open_shared(name).unwrap());
    let mut queue = Medusa::start(&one, QueueId::tx(0), 128).unwrap();
    assert!(queue.try_stop());
    // START once more, with what the registers still hold.
    queue.memory.word64(UPDATE).store(0, Ordering::Relaxed);
    queue.controller.write32(m::CONTROL, m::CONTROL_START);
    assert!(queue.controller.is_running());
    assert!(!two.try_lock(&queue.controller.path, 1).unwrap());
    assert!(queue.send(0, 64));
    queue.ring();
    let begin = Instant::now();
    while queue.hdp() != queue.sdp {
        assert!(begin.elapsed() < PATIENCE);
    }
    queue.controller.write32(m::CONTROL, m::CONTROL_STOP);
    assert!(queue.controller.has_stopped());
    assert!(two.try_lock(&queue.controller.path, 1).unwrap(), "and gives it back");
    // With the lock elsewhere it does not start.
    queue.controller.write32(m::CONTROL, m::CONTROL_START);
    assert!(!queue.controller.is_running());
    let refusal = queue.controller.stats().refusal.unwrap();
    assert!(refusal.contains("in use by somebody else"), "{refusal}");
    // A write of one byte is a write, and so is one that covers the whole block.
    two.unlock(&queue.controller.path, 1).unwrap();
    queue.controller.write64(m::SDP, 0);
    one.write(dma_base(QueueId::tx(0)).unwrap(), &[1]).unwrap();
    assert!(queue.controller.is_running());
    let mut block = vec![0; 16];
    one.write(dma_base(QueueId::tx(0)).unwrap(), &block).unwrap();
    assert!(queue.controller.has_stopped());
    block[0] = 1;
    one.write(dma_base(QueueId::tx(0)).unwrap(), &block).unwrap();
    assert!(queue.controller.is_running());
    // The memory goes before the device is closed, so the queue has to stop before it.
    queue.controller.write32(m::CONTROL, m::CONTROL_STOP);
    assert!(queue.controller.has_stopped());
}

#[test]
fn locks_are_not_recursive_and_belong_to_an_opener() {
    let name = "embedded:spin=23";
    let (one, two) = (Device::open_shared(name).unwrap(), Device::open_shared(name).unwrap());
    assert!(one.try_lock("/a", 0b0011).unwrap());
    assert!(!one.try_lock("/a", 0b0001).unwrap(), "recursive");
    assert!(!two.try_lock("/a", 0b0110).unwrap(), "overlap");
    assert!(two.try_lock("/a", 0b1100).unwrap() && two.try_lock("/b", 0b0011).unwrap());
    let not_found = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::Client(error)) if error.code() == Some(ErrorCode::NotFound)));
    };
    not_found(two.unlock("/a", 0b0011));
    not_found(one.unlock("/b", 0b0011));
    not_found(one.unlock("/c", 1));
    one.unlock("/a", 0b0001).unwrap();
    assert!(two.try_lock("/a", 0b0001).unwrap() && !two.try_lock("/a", 0b0010).unwrap());
    drop(one);
    assert!(two.try_lock("/a", 0b0010).unwrap(), "closed");
    assert!(two.try_lock("/a", 0).is_err(), "no features");
}

#[test]
fn all_opens_of_one_name_are_one_card() {
    use std::sync::atomic::AtomicU32;
    let (holders, held) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let device = Device::open_shared("embedded:queues=1,spin=24").unwrap();
                    if device.try_lock("/once", 1).unwrap() {
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two cards of one name");
                        held.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                        holders.fetch_sub(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert!(held.into_inner() > 0);
    // Other options, or an open that is not shared, are another card.
    let shared = Device::open_shared("embedded:queues=1,spin=24").unwrap();
    assert!(shared.try_lock("/once", 1).unwrap());
    for device in [Device::open_shared("embedded:queues=2,spin=24"), Device::open("embedded:queues=1,spin=24")] {
        assert!(device.unwrap().try_lock("/once", 1).unwrap());
    }
    assert!(!Device::open_shared("embedded:spin=24,queues=1").unwrap().try_lock("/once", 1).unwrap(), "the same card");
}
