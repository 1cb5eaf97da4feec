//! Clients that do not keep to the protocol: whatever they send, the function is there for the next one, and the queues of
//! others are not held up.

use super::bytes::{access, answer, give, message, whole};
use super::driver::{exchange, pair};
use super::machine::{Machine, Served, wait_until};
use rustix::fd::{AsFd, OwnedFd};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

fn version() -> Vec<u8> {
    whole(1, 0, b"\0\0\0\0{}\0")
}

/// A connection that has agreed on a version.
pub fn introduced(served: &Served) -> UnixStream {
    let mut stream = connected(served);
    stream.write_all(&version()).unwrap();
    assert_eq!(answer(&mut stream).unwrap().1, 0);
    stream
}

fn connected(served: &Served) -> UnixStream {
    let mut stream = None;
    wait_until("a function that is free", || {
        let before = served.counters(0).connections;
        stream = UnixStream::connect(served.path(0)).ok();
        let turned_away = served.counters(0).turned_away;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(5) {
            let counters = served.counters(0);
            if counters.connections > before {
                return true;
            }
            if counters.turned_away > turned_away {
                return false;
            }
        }
        false
    });
    let stream = stream.unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// The function works for whoever comes next.
pub fn still_works(served: &Served) {
    let mut machine = Machine::new(served, 0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 50);
}

#[test]
fn what_is_out_of_range_is_refused_and_the_connection_goes_on() {
    let served = Served::new("queues=1", 1);
    let mut stream = introduced(&served);
    let map = |flags: u32, offset: u64, at: u64, len: u64| {
        let mut body = 32u32.to_le_bytes().to_vec();
        body.extend(flags.to_le_bytes());
        [offset, at, len].iter().for_each(|number| body.extend(number.to_le_bytes()));
        body
    };
    let irqs = |flags: u32, index: u32, start: u32, count: u32| -> Vec<u8> {
        [20, flags, index, start, count].iter().flat_map(|number: &u32| number.to_le_bytes()).collect()
    };
    let cases = [
        whole(9, 0, &access(0, 0, u32::MAX, &[])),
        whole(9, 0, &access(0, 0, 1 << 17, &[])),
        whole(9, 0, &access(u64::MAX, 0, 4, &[])),
        whole(9, 0, &access((1 << 26) - 3, 0, 4, &[])),
        whole(9, 0, &access(0, 1, 1, &[])),
        whole(9, 0, &access(0, 99, 1, &[])),
        whole(9, 0, &access(4095, 7, 2, &[])),
        whole(9, 0, &[0; 15]),
        whole(10, 0, &access(0, 7, 8, &[1, 2, 3])),
        whole(10, 0, &access(u64::MAX - 1, 2, 4, &[1, 2, 3, 4])),
        whole(2, 0, &map(3, 0, u64::MAX, 4096)),
        whole(2, 0, &map(0, 0, 0, 4096)),
        whole(2, 0, &map(3, 0, 0, 0)),
        whole(3, 0, &map(0, u64::MAX, 2, 0)[..24]),
        whole(3, 0, &[0; 8]),
        whole(5, 0, &irqs(0, 9, 0, 0)),
        whole(7, 0, &irqs(0, 5, 0, 0)),
        whole(8, 0, &irqs(0x24, 2, 0, 3)),
        whole(8, 0, &irqs(0x22, 2, 0, 2)),
        whole(8, 0, &irqs(0x21, 2, u32::MAX, u32::MAX)),
        whole(8, 0, &irqs(0xffff_ffff, 2, 0, 1)),
        whole(0, 0, &[]),
        whole(6, 0, &[]),
        whole(11, 0, &[0; 16]),
        whole(14, 0, &[]),
        whole(0xffff, 0, &[]),
        version(),
    ];
    for (number, case) in cases.iter().enumerate() {
        stream.write_all(case).unwrap();
        let (_, error, body) = answer(&mut stream).unwrap_or_else(|| panic!("case {number}: hung up"));
        assert!(error != 0 && body.is_empty(), "case {number}: {error}");
    }
    assert_eq!(served.counters(0).refused_messages, cases.len() as u64);
    // In the end it is as it was.
    stream.write_all(&whole(9, 0, &access(0, 7, 4, &[]))).unwrap();
    assert_eq!(answer(&mut stream).unwrap().2[16..], [0xec, 0x18, 0x00, 0xc0]);
    drop(stream);
    still_works(&served);
}

#[test]
fn who_speaks_half_of_the_protocol_is_hung_up_on() {
    let served = Served::new("queues=1", 1);
    let cases: [(&str, Vec<u8>); 8] = [
        ("too short", message(1, 1, 15, 0, &[])),
        ("too long", message(1, 1, u32::MAX, 0, &[])),
        ("another version", whole(1, 0, b"\x01\0\0\0{}\0")),
        ("no JSON", whole(1, 0, b"\0\0\0\0{\0")),
        ("no version", whole(9, 0, &access(0, 7, 4, &[]))),
        ("nested", whole(1, 0, &[&b"\0\0\0\0"[..], &[b'['; 3000]].concat())),
        ("a reply", whole(1, 1, b"\0\0\0\0{}\0")),
        ("nothing", whole(1, 0, &[])),
    ];
    for (number, (name, case)) in cases.into_iter().enumerate() {
        let mut stream = connected(&served);
        stream.write_all(&case).unwrap();
        while answer(&mut stream).is_some() {}
        served.wait_for(0, name, |counters| counters.thrown_out == number as u64 + 1);
    }
    still_works(&served);
}

#[test]
fn who_ends_in_the_middle_or_never_does_not_keep_the_function() {
    let served = Served::new("queues=1", 1);
    for cut in [1, 15, 16, 17, 20] {
        let mut stream = introduced(&served);
        stream.write_all(&whole(10, 0, &access(0, 7, 4, &[0; 4]))[..cut]).unwrap();
        drop(stream);
    }
    still_works(&served);
    // One that says nothing, and one that does not end its message.
    for begun in [&[][..], &version()[..20]] {
        let mut stream = connected(&served);
        stream.write_all(begun).unwrap();
        let begin = Instant::now();
        assert!(answer(&mut stream).is_none());
        assert!(begin.elapsed() > Duration::from_secs(3), "it had time");
    }
    assert_eq!(served.counters(0).thrown_out, 2);
    still_works(&served);
}

#[test]
fn a_second_machine_is_turned_away_and_the_first_does_not_notice() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::new(&served, 0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    for _ in 0..100 {
        let mut second = UnixStream::connect(served.path(0)).unwrap();
        assert!(matches!(second.read(&mut [0; 1]), Ok(0) | Err(_)));
    }
    served.wait_for(0, "a hundred", |counters| counters.turned_away == 100);
    exchange(&mut machine, &mut tx, &mut rx, 100);
}

#[test]
fn a_flood_of_messages_whose_answers_nobody_reads_holds_up_nobody_else() {
    let served = Served::new("queues=2", 2);
    let mut other = Machine::new(&served, 1);
    let (mut tx, mut rx) = pair(&mut other, 0);
    let mut flood = introduced(&served);
    flood.set_nonblocking(true).unwrap();
    let large = whole(9, 0, &access(0, 0, 1 << 16, &[]));
    let mut sent = 0;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(500) {
        if flood.write_all(&large).is_ok() {
            sent += 1;
        } else {
            exchange(&mut other, &mut tx, &mut rx, 10);
        }
    }
    assert!(sent > 1, "{sent}");
    exchange(&mut other, &mut tx, &mut rx, 200);
    drop(flood);
    still_works(&served);
}

/// Anything, in the form of messages and not: the server neither panics nor hangs.
#[test]
fn random_messages() {
    let served = Served::new("queues=1", 1);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let memory = rustix::fs::memfd_create("some", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, 1 << 20).unwrap();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let others: [OwnedFd; 3] = [memory, event, std::fs::File::open("/dev/null").unwrap().into()];
    let (begin, mut rounds) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(2) {
        let mut stream = introduced(&served);
        stream.set_nonblocking(true).unwrap();
        for _ in 0..200 {
            let body: Vec<u8> = (0..next() % 48).map(|_| if next() % 3 == 0 { next() as u8 } else { 0 }).collect();
            let size = if next() % 50 == 0 { next() as u32 } else { 16 + body.len() as u32 };
            let flags = if next() % 4 == 0 { 0x10 } else { 0 };
            let mut all = message(1, (next() % 16) as u16, size, flags, &body);
            // Some that map, with files that can be.
            if next() % 8 == 0 {
                all = whole(
                    2,
                    0,
                    &[
                        &32u32.to_le_bytes()[..],
                        &3u32.to_le_bytes(),
                        &[0; 8],
                        &((next() % 64) << 12).to_le_bytes(),
                        &4096u64.to_le_bytes(),
                    ]
                    .concat(),
                );
            }
            let fds: Vec<_> = (0..next() % 3).map(|_| others[(next() % 3) as usize].as_fd()).collect();
            // What does not go as a whole is a message that does not end.
            if give(&stream, &all, &fds).is_err() {
                break;
            }
            let _ = stream.read(&mut [0; 4096]);
        }
        rounds += 1;
    }
    assert!(rounds > 3);
    drop(others);
    still_works(&served);
}
