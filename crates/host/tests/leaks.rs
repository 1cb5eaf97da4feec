//! What is opened and closed leaves nothing behind. One test, in a process of its own because it counts what the process
//! has.

use millrace::{Device, Pages, QueueId, Region};
use millrace_abi::register::map::dma_base;
use millrace_abi::register::medusa as m;
use std::time::{Duration, Instant};

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

/// Waits until `now` gives what is expected. A thread that was joined may be listed for a moment longer.
fn settles_at<T: PartialEq + std::fmt::Debug>(expected: T, now: impl Fn() -> T) {
    let begin = Instant::now();
    while now() != expected {
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?} instead of {expected:?}", now());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Threads, descriptors, shared memory.
fn all() -> (usize, usize, usize) {
    (count("task"), count("fd"), mappings())
}

#[test]
fn a_thousand_cards_leave_nothing_behind() {
    let memory = Region::allocate(1 << 16, Pages::Ordinary).unwrap();
    let at = memory.window().slice(0, 1).unwrap().as_ptr().expose_provenance() as u64;
    let threads = count("task");
    drop(Device::open("embedded:spin=0").unwrap());
    // The first card may leave descriptors for good (what is opened once), but no thread: those are waited for, because the
    // rest is compared with this.
    settles_at(threads, || count("task"));
    let before = all();
    for round in 0..1000 {
        let device = Device::open_shared("embedded:queues=2,spin=0").unwrap();
        let again = Device::open_shared("embedded:queues=2,spin=0").unwrap();
        device.write32(0x40, round).unwrap();
        assert_eq!(again.read32(0x40).unwrap(), round, "one card");
        // A native queue that nobody stops, and one of a session.
        let register = |offset: millrace_abi::register::Offset| offset.at(dma_base(QueueId::tx(0)).unwrap());
        again.write64(register(m::DESC_BASE), at).unwrap();
        again.write64(register(m::UPDATE_BASE), at + 0x8000).unwrap();
        again.write32(register(m::MDP), 127).unwrap();
        again.write32(register(m::CONTROL), m::CONTROL_START).unwrap();
        assert_eq!(device.read32(register(m::STATUS)).unwrap(), m::STATUS_RUNNING);
        let queue = if round % 8 == 0 { Some(device.rx(1).open().unwrap().start().unwrap()) } else { None };
        drop(device);
        drop(again);
        drop(queue);
    }
    let device = Device::open_shared("embedded:queues=2,spin=0").unwrap();
    assert_eq!(device.read32(0x40).unwrap(), 0, "a new card");
    drop(device);
    settles_at(before, all);
}
