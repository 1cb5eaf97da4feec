//! The time-stamp unit as `nfb-tsu` and libnfb drive it (`docs/spec/nfb-card.md` §2.8), and what it writes before frames.

use crate::common::*;
use millrace_abi::header::RxMetadata;
use millrace_abi::queue::QueueId;
use millrace_abi::register::medusa as m;
use millrace_card::Card;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const TSU: u32 = 0x4000;

fn write(card: &Card, offset: u32, value: u32) {
    card.write(TSU + offset, &value.to_le_bytes());
}

fn read(card: &Card, offset: u32) -> u32 {
    read32(card, TSU + offset)
}

/// `nc_tsu_get_rtr` and `nc_tsu_get_pps`.
fn get(card: &Card, command: u32) -> (u32, u64) {
    write(card, 0x0c, command);
    (read(card, 0x08), u64::from(read(card, 0x04)) << 32 | u64::from(read(card, 0x00)))
}

/// `nc_tsu_set_rtr`.
fn set_time(card: &Card, seconds: u32, fraction: u64) {
    write(card, 0x08, seconds);
    write(card, 0x04, (fraction >> 32) as u32);
    write(card, 0x00, fraction as u32);
    write(card, 0x0c, 1);
}

/// `nc_tsu_set_inc`.
fn set_increment(card: &Card, increment: u64) {
    write(card, 0x08, 0);
    write(card, 0x04, (increment >> 32) as u32 & 0x7f);
    write(card, 0x00, increment as u32);
    write(card, 0x0c, 0);
}

fn seconds(time: (u32, u64)) -> f64 {
    f64::from(time.0) + time.1 as f64 / 2f64.powi(64)
}

/// Seconds of the day: a float has no room for all since 1970 and nanoseconds.
fn of_the_day(time: (u32, u64)) -> f64 {
    seconds((time.0 % 86_400, time.1))
}

fn system() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    (now.as_secs() % 86_400) as f64 + f64::from(now.subsec_nanos()) * 1e-9
}

#[test]
fn the_sources_and_the_frequency_are_those_that_nfb_tsu_needs() {
    let card = card("spin=0");
    assert_eq!(read(&card, 0x24), 1 << 16 | 1, "one clock, one pulse per second");
    write(&card, 0x20, 0);
    assert_eq!(read(&card, 0x10) & 2, 2, "the clock is active");
    assert_eq!(read(&card, 0x1c), 999_999_999);
    assert_eq!(read(&card, 0x14), 0, "not enabled by itself");
    write(&card, 0x14, 1);
    assert_eq!(read(&card, 0x14), 1);
    // A source that is not there cannot be selected.
    write(&card, 0x20, 1);
    write(&card, 0x18, 5);
    assert_eq!((read(&card, 0x20), read(&card, 0x18), read(&card, 0x10)), (0, 0, 3));
}

#[test]
fn the_increment_has_39_bits_and_reads_back() {
    let card = card("spin=0");
    let (high, low) = get(&card, 4);
    assert_eq!((high, low), (0, ((1u128 << 64) / 1_000_000_000) as u64), "nominal");
    for increment in [0, 1, 18_446_744_073, 0x7f_ffff_ffff] {
        set_increment(&card, increment);
        assert_eq!(get(&card, 4), (0, increment));
    }
    write(&card, 0x04, u32::MAX);
    write(&card, 0x00, 5);
    write(&card, 0x0c, 0);
    assert_eq!(get(&card, 4), (0, 0x7f << 32 | 5));
    // The window keeps what a program wrote there until a command needs it.
    write(&card, 0x08, 0x1234_5678);
    assert_eq!((read(&card, 0x08), read(&card, 0x00)), (0x1234_5678, 5));
    write(&card, 0x0c, 99);
    assert_eq!(read(&card, 0x08), 0x1234_5678, "no such command");
}

#[test]
fn the_clock_goes_at_the_speed_that_was_written() {
    let card = card("spin=0");
    set_increment(&card, 0);
    set_time(&card, 1_700_000_000, 1 << 63);
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(get(&card, 5), (1_700_000_000, 1 << 63), "it stands");
    set_increment(&card, 2 * 18_446_744_073);
    let (start, begin) = (get(&card, 5), std::time::Instant::now());
    std::thread::sleep(Duration::from_millis(50));
    let (end, passed) = (get(&card, 5), begin.elapsed().as_secs_f64());
    let shown = of_the_day(end) - of_the_day(start);
    assert!(shown >= 0.1 && shown <= 2.0 * passed + 1e-3, "{shown} while {passed} passed");
    // Across the end of its seconds.
    set_time(&card, u32::MAX, u64::MAX);
    std::thread::sleep(Duration::from_millis(1));
    assert_eq!(get(&card, 5).0, 0);
}

#[test]
fn the_pulse_comes_when_the_system_begins_a_second() {
    let card = card("spin=0,tsu=on");
    assert_eq!(read(&card, 0x14), 1);
    let pulse = get(&card, 7);
    let error = of_the_day(pulse).fract();
    assert!(error.min(1.0 - error) < 0.05, "{error}: the clock shows the time of day");
    // Between the two looks this program may have to wait for its core, but not always.
    assert!((0..100).any(|_| (of_the_day(get(&card, 5)) - system()).abs() < 0.05));
}

/// The control loop of `nfb-tsu`, with shorter sleeps: the increment that brings the offset to zero, as it works it out
/// from two looks at both clocks.
#[test]
fn nfb_tsu_converges() {
    let card = card("spin=0");
    let (mut increment, round) = (1.0 / 1e9, Duration::from_millis(50));
    set_increment(&card, (increment * 2f64.powi(64)) as u64);
    // 20 ms off, to have something to do.
    let start = system() + 0.02;
    set_time(&card, start as u32, (start.fract() * 2f64.powi(64)) as u64);
    write(&card, 0x14, 1);
    let look = || {
        // The closest of several, as the tool takes it.
        let best = (0..20).map(|_| (of_the_day(get(&card, 5)), system(), of_the_day(get(&card, 5))));
        let best = best.min_by(|a, b| (a.2 - a.0).total_cmp(&(b.2 - b.0))).unwrap();
        (best.0, best.1)
    };
    let (mut card_before, mut system_before) = look();
    let begin = Instant::now();
    // Looks in a row with the clock where it should be. On a busy machine one may go wrong, and then the next.
    let mut settled = 0;
    while settled < 4 {
        std::thread::sleep(round);
        let (card_now, system_now) = look();
        let offset = card_now - system_now;
        settled = if offset.abs() < 1e-3 { settled + 1 } else { 0 };
        assert!(begin.elapsed() < 6 * PATIENCE, "{offset} s off");
        let (of_system, of_card) = (system_now - system_before, card_now - card_before);
        let ticks = of_card / increment;
        // Catches up within the next two rounds.
        increment = (of_system / of_card * increment - offset / (ticks * 2.0)).clamp(0.0, 2.98e-8);
        set_increment(&card, (increment * 2f64.powi(64)) as u64);
        (card_before, system_before) = (card_now, system_now);
    }
    write(&card, 0x14, 0);
    assert_eq!(read(&card, 0x14), 0);
}

/// Sends one burst and returns what arrived: metadata and frame.
fn pass(tx: &Bench<'_>, rx: &Bench<'_>, frames: &[Vec<u8>]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut host_tx, mut host_rx) = (tx.tx(), rx.rx());
    (0..frames.len() as u64).for_each(|number| assert!(host_rx.post(rx.frame(number), 2048)));
    rx.write32(m::SDP, host_rx.sdp());
    for (number, frame) in (0..).zip(frames) {
        write_frame(tx, number, frame);
        assert!(host_tx.post(tx.frame(number), frame.len() as u16));
    }
    tx.write32(m::SDP, host_tx.sdp());
    wait_for("frames", || tx.read32(m::HDP) == host_tx.sdp());
    let ready = host_rx.ready();
    let packet = |ahead: u32| {
        let header = host_rx.header(ahead);
        let all = read_frame(rx, ahead.into(), header.len.into());
        let (metadata, frame) = all.split_at(header.header_len.into());
        (metadata.to_vec(), frame.to_vec())
    };
    (0..ready).map(packet).collect()
}

#[test]
fn frames_carry_stamps_exactly_while_the_unit_is_enabled() {
    let card = card("spin=20,port=loopback,port=loopback");
    for enabled in [false, true, false] {
        // The second port, whose queues are the second ones.
        let (rx, tx) = (Bench::started(&card, QueueId::rx(1)), Bench::started(&card, QueueId::tx(1)));
        write(&card, 0x14, enabled.into());
        let before = get(&card, 5);
        let frames: Vec<Vec<u8>> = (0..10u8).map(|number| vec![2 * number; 60 + usize::from(number)]).collect();
        let packets = pass(&tx, &rx, &frames);
        let after = get(&card, 5);
        assert_eq!(packets.len(), 10);
        let mut last = None;
        for ((metadata, frame), sent) in packets.iter().zip(&frames) {
            assert_eq!(frame, sent);
            if !enabled {
                assert!(metadata.is_empty());
                continue;
            }
            let stamp = RxMetadata::decode(metadata).unwrap();
            assert_eq!((metadata.len(), stamp.port), (16, 1));
            let time = (stamp.seconds, (u128::from(stamp.nanoseconds) << 64).div_ceil(1_000_000_000) as u64);
            assert!(
                time >= (before.0, before.1.saturating_sub(1 << 35)) && time <= after,
                "{before:?} {stamp:?} {after:?}"
            );
            assert!(last <= Some(time), "stamps do not go back");
            last = Some(time);
        }
        tx.end();
        rx.end();
    }
    // Statistics and registers count frames, not what stands before them.
    let stats = card.stats();
    let queue = |id| stats.queues.iter().find(|queue| queue.queue == id).unwrap().passed_bytes;
    assert_eq!(queue(QueueId::rx(1)), queue(QueueId::tx(1)));
    check_equations(&card);
}

#[test]
fn a_frame_that_does_not_fit_behind_its_stamp_is_dropped_and_counted() {
    let card = card("spin=20,tsu");
    let (rx, tx) = (Bench::started(&card, QueueId::rx(0)), Bench::started(&card, QueueId::tx(0)));
    let packets = pass(&tx, &rx, &[vec![2; 2032], vec![4; 2033], vec![6; 60]]);
    assert_eq!(packets.iter().map(|(_, frame)| frame.len()).collect::<Vec<_>>(), [2032, 60]);
    let stats = card.stats();
    let drop = &stats.queues[0].drops[0];
    assert_eq!((drop.reason.as_str(), drop.count), ("too-long", 1));
    check_equations(&card);
    tx.end();
    rx.end();
}
