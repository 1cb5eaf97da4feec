//! The card's clock from other processes: read without the card, steered by one at a time, led until its leader dies.

use crate::common::*;
use millrace::{ClockReport, ClockSource, ClockState, Device, Error, ErrorCode, Ticks, Time};
use millrace_abi::register::map::Component;
use millrace_abi::register::tsu as r;
use millrace_driver::ClientError;
use std::time::Duration;

const MILLISECOND: i64 = 1_000_000;

/// What the registers show.
fn register_time(device: &Device) -> Time {
    let base = Component::Tsu.base().unwrap();
    device.write32(base + r::COMMAND.bytes(), r::COMMAND_READ_TIME).unwrap();
    let [low, middle, high] =
        [r::DATA_LOW, r::DATA_MIDDLE, r::DATA_HIGH].map(|at| device.read32(base + at.bytes()).unwrap());
    Time { seconds: high, fraction: u64::from(low) | u64::from(middle) << 32 }
}

#[test]
fn page_and_registers_show_the_same_time_in_another_process() {
    let daemon = Daemon::start("queues=1");
    let device = daemon.device();
    let clock = device.clock().unwrap();
    clock.set(Time::new(5_000, 0)).unwrap();
    clock.step(-1_500 * MILLISECOND).unwrap();
    let before = clock.now().unwrap();
    let shown = register_time(&device);
    let after = clock.now().unwrap();
    assert!((Time::new(4_998, 500_000_000)..Time::new(5_030, 0)).contains(&before), "{before:?}");
    assert!(before <= shown && shown <= after, "{before:?} {shown:?} {after:?}");
    assert_eq!(clock.snapshot().unwrap().steps, 2);
}

#[test]
fn it_goes_as_fast_as_it_is_told_and_as_wrong_as_it_is_bent() {
    let device = Device::open("embedded").unwrap();
    let clock = device.clock().unwrap();
    // The clock is a line over the oscillator, so its speed is known however long this process does not run meanwhile.
    let speed = || {
        let reading = || {
            let (line, before) = (clock.timebase().unwrap(), Ticks::now());
            let now = clock.now().unwrap();
            let after = Ticks::now();
            assert!(line.at(before) <= now && now <= line.at(after), "{now:?} is not within {before:?} and {after:?}");
            (after, line.at(after))
        };
        let (began, first) = reading();
        std::thread::sleep(Duration::from_millis(20));
        let (ended, last) = reading();
        (last.nanoseconds_since(first) as f64 / (ended.get() - began.get()) as f64 - 1.0) * 1e6
    };
    // Times are in whole ns here: 1 of 20 ms is 0.05 ppm.
    let goes = |ppm: f64| {
        let speed = speed();
        assert!((speed - ppm).abs() < 1.0, "{speed} ppm, and not {ppm}");
    };
    goes(0.0);
    clock.set_frequency_ppm(10_000.0).unwrap();
    goes(10_000.0);
    // What software has set stays what it has set.
    clock.bend(500 << 16).unwrap();
    goes(10_505.0);
    let snapshot = clock.snapshot().unwrap();
    assert!((snapshot.scaled_ppm - (10_000 << 16)).abs() < 3, "{}", snapshot.scaled_ppm);
    assert_eq!(snapshot.drift, 500 << 16);
    clock.set_frequency(0).unwrap();
    goes(500.0);
    for refused in [clock.bend(2_000 << 16), clock.set_frequency_ppm(100_001.0)] {
        assert_eq!(code(refused), ErrorCode::Invalid);
    }
}

/// A program that leads the clock until it is killed.
pub fn leader() {
    let device = Device::open(&format!("unix:{}", argument("SOCKET"))).unwrap();
    let clock = device.clock().unwrap();
    let leader = clock.lead().unwrap();
    clock.set_frequency_ppm(-25.0).unwrap();
    let report = ClockReport {
        state: ClockState::Locked,
        source: ClockSource::Ptp,
        offset_ns: Some(-17),
        path_delay_ns: Some(900),
        utc_offset: Some(37),
        tai: true,
    };
    leader.report(report, true).unwrap();
    say("leads");
    listen();
}

#[test]
fn one_leads_and_when_it_dies_the_clock_holds_over() {
    let daemon = Daemon::start("queues=1");
    let device = daemon.device();
    let clock = device.clock().unwrap();
    let mut process = Process::start("leader", &[("SOCKET", daemon.socket())]);
    process.expect("leads");
    let led = clock.snapshot().unwrap();
    assert_eq!(
        (led.report.state, led.report.offset_ns, led.report.utc_offset),
        (ClockState::Locked, Some(-17), Some(37))
    );
    for refused in [clock.step(1), clock.set(Time::new(1, 0)), clock.set_frequency(1), clock.lead().map(drop)] {
        let Err(Error::Client(ClientError::Refused { code, text })) = refused else { panic!("{refused:?}") };
        assert_eq!(code, ErrorCode::Busy);
        assert!(text.contains(&format!("process {} leads the clock", process.pid())), "{text}");
    }
    process.kill();
    let ended = std::time::Instant::now();
    let held = loop {
        let snapshot = clock.snapshot().unwrap();
        if snapshot.report.state != ClockState::Locked {
            break snapshot;
        }
        assert!(ended.elapsed() < PATIENCE, "nobody leads it, and it is called locked");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!((held.report.state, held.report.source), (ClockState::Holdover, ClockSource::Ptp));
    assert_eq!((held.scaled_ppm, held.timebase.increment()), (led.scaled_ppm, led.timebase.increment()));
    assert!(held.changed > led.changed && held.since_change() < PATIENCE);
    clock.step(1).unwrap();
    assert_eq!(clock.snapshot().unwrap().report.state, ClockState::Holdover);
    // Set by hand, it does not hold over any more what it has followed.
    clock.set(Time::new(5_000, 0)).unwrap();
    assert_eq!(clock.snapshot().unwrap().report, ClockReport::default());
    let leader = clock.lead().unwrap();
    leader.report(ClockReport { state: ClockState::Master, ..ClockReport::default() }, false).unwrap();
    drop(leader);
    assert_eq!(clock.snapshot().unwrap().report.state, ClockState::Free);
    // Who has measured, and was not there yet, leaves no holdover.
    let leader = clock.lead().unwrap();
    let report = ClockReport { state: ClockState::Acquiring, offset_ns: Some(1_000_000), ..ClockReport::default() };
    leader.report(report, true).unwrap();
    let first = clock.snapshot().unwrap().reported.unwrap();
    assert!(held.reported.unwrap() < first);
    leader.report(report, false).unwrap();
    assert_eq!(clock.snapshot().unwrap().reported, Some(first), "said again, and not measured again");
    drop(leader);
    assert_eq!(clock.snapshot().unwrap().report.state, ClockState::Free);
}

#[test]
fn registers_steer_no_clock_that_somebody_leads() {
    let daemon = Daemon::start("queues=1");
    let (device, other) = (daemon.device(), daemon.device());
    let clock = device.clock().unwrap();
    let write = |register: millrace_abi::register::Offset, value| {
        other.write32(Component::Tsu.base().unwrap() + register.bytes(), value)
    };
    let read = || {
        write(r::COMMAND, r::COMMAND_READ_TIME).unwrap();
        other.read32(Component::Tsu.base().unwrap() + r::DATA_HIGH.bytes()).unwrap()
    };
    let leader = clock.lead().unwrap();
    clock.set(Time::new(1_000, 0)).unwrap();
    write(r::DATA_HIGH, 77_000).unwrap();
    for refused in [r::COMMAND_WRITE_TIME, r::COMMAND_WRITE_INCREMENT].map(|command| write(r::COMMAND, command)) {
        assert_eq!(code(refused), ErrorCode::Busy);
    }
    assert!((1_000..70_000).contains(&read()), "what others see of it is for all");
    drop(leader);
    write(r::DATA_HIGH, 77_000).unwrap();
    write(r::COMMAND, r::COMMAND_WRITE_TIME).unwrap();
    assert!((77_000..140_000).contains(&read()));
}

fn code(result: Result<(), Error>) -> ErrorCode {
    match result {
        Err(Error::Client(ClientError::Refused { code, .. })) => code,
        other => panic!("{other:?}"),
    }
}
