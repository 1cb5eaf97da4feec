//! Endpoints that meet by name: what comes, who wakes whom, who is refused, and what is left of who has gone.

mod doorbells;
mod gone;
mod memory;
mod sleep;
mod strangers;

use millrace_dma::take_descriptors;
use millrace_message::Scheme;
use millrace_message::bell::{Bell, Full, Owner, Sent};
use millrace_message::block::{AllocateError, GiveError};
use millrace_message::buffer::Buffer;
use millrace_message::channel::Taken;
use millrace_message::control::Tag;
use millrace_message::cost::{Row, Table};
use millrace_message::endpoint::{Config, Ended, Endpoint, Error, Event, Peer, Refusal, Scope};
use millrace_message::engine::{Breach, Cancel, Limits, Outcome, RequestError};
use millrace_message::window::{AccessError, WindowError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept, bind, connect, listen, recv, send, sendmsg, socket_with,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);
const NOT_AT_ALL: Duration = Duration::ZERO;
const FEW: Limits =
    Limits { mtu: 1024, smbs: 2, rmbs: 3, slots: 2, credits: 4, eager: 200, early_request: true, patience: 1000 };
/// Nobody looks: who waits sleeps at once.
const SLEEPY: Config = Config {
    name: None,
    limits: FEW,
    users: millrace_message::endpoint::Users::Own,
    peers: 3,
    table: Some(Table {
        rows: [Row { register: 2000.0, copy: 1000.0, transfer: 5000.0 }; 9],
        doorbell: 100.0,
        record: 0.0,
        eager_word: 1.0,
        most_eager: 200,
        mtu: 1024,
        depth: 2,
        is_mapped: true,
    }),
    spin: NOT_AT_ALL,
    waiters_work: true,
    rails: Vec::new(),
    host: None,
    adopt: None,
    pool: 1 << 20,
};

fn name(what: &str) -> String {
    format!("test-{}-{what}", std::process::id())
}

fn open(what: &str) -> Endpoint {
    Endpoint::with(Config { name: Some(name(what)), ..SLEEPY }).unwrap()
}

fn pair(what: &str) -> (Endpoint, Endpoint, Peer, Peer) {
    let (one, other) = (Endpoint::with(SLEEPY).unwrap(), open(what));
    let to = one.connect(&name(what), LONG).unwrap();
    let from = other.accept(LONG).unwrap();
    (one, other, to, from)
}

fn bytes(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u64 * 13 + at as u64 / 256 + number) as u8).collect()
}

#[test]
fn messages_of_any_size_wake_who_sleeps() {
    let (one, other, to, from) = pair("sizes");
    assert_eq!(other.who(from).unwrap().pid, Some(std::process::id()));
    assert_eq!(one.who(to).unwrap().name, name("sizes"));
    for (number, len) in [0, 1, 40, 200, 201, 1024, 5000, 1_000_000].into_iter().enumerate() {
        let tag = Tag(number as u64);
        std::thread::scope(|scope| {
            let received = scope.spawn(|| {
                let request = other.receive(Some(from), tag, u64::MAX, vec![0; len]).unwrap();
                other.wait(request, LONG).unwrap()
            });
            let sent = one.send(to, tag, bytes(tag.0, len)).unwrap();
            assert_eq!(one.wait(sent, LONG).unwrap().outcome, Outcome::Sent);
            let received = received.join().unwrap();
            assert_eq!((received.from, received.buffer.len()), (Some(from), len));
            assert!(received.buffer == bytes(tag.0, len));
            assert!(other.wait(received.request, LONG).is_none(), "it is taken once");
            assert!(other.cancel(received.request).is_err());
        });
    }
}

/// From memory to memory, while the receiver waits, after it has waited, and when the sender does not want it any more.
#[test]
fn messages_go_from_memory_to_memory() {
    let (one, other, to, from) = pair("direct");
    let mut moved = 0;
    for (round, len) in [0, 1, 1000, 5_000_000].into_iter().enumerate() {
        let early = other.receive(Some(from), Tag(1), u64::MAX, vec![0; len]).unwrap();
        let sent = [1, 2].map(|tag| one.send_by(to, Tag(tag), bytes(tag, len), Scheme::ZeroCopy).unwrap());
        assert!(other.wait(early, LONG).unwrap().buffer == bytes(1, len), "{round}");
        assert_eq!(one.wait(sent[0], LONG).unwrap().outcome, Outcome::Sent);
        moved += len as u64;
        assert_eq!(other.moved(), moved, "it came another way");
        assert!(one.wait(sent[1], NOT_AT_ALL).is_none(), "nobody has read it");
        let late = other.receive(Some(from), Tag(2), u64::MAX, vec![0; len]).unwrap();
        assert!(other.wait(late, LONG).unwrap().buffer == bytes(2, len));
        moved += len as u64;
        assert_eq!(other.moved(), moved);
        assert_eq!(one.wait(sent[1], LONG).unwrap().outcome, Outcome::Sent);
    }
    let sent = one.send_by(to, Tag(1), bytes(1, 100_000), Scheme::ZeroCopy).unwrap();
    assert_eq!(one.cancel(sent), Ok(Cancel::Asked));
    assert_eq!(one.wait(sent, LONG).unwrap().outcome, Outcome::Cancelled);
    one.send_by(to, Tag(1), bytes(1, 100_000), Scheme::ZeroCopy).unwrap();
    drop(one);
    if let Ok(late) = other.receive(Some(from), Tag(1), u64::MAX, vec![0; 100_000]) {
        assert_eq!(other.wait(late, LONG).unwrap().outcome, Outcome::Lost);
    }
    assert_eq!(other.event(LONG), Some(Event::Lost(from, None)));
}

/// Neither program does anything: the helper threads do.
#[test]
fn messages_move_on_while_programs_compute() {
    let (one, other, to, from) = pair("helpers");
    let descriptor = other.descriptor().unwrap();
    let is_readable = |most: i64| {
        let most = Timespec { tv_sec: most, tv_nsec: 0 };
        poll(&mut [PollFd::new(&*descriptor, PollFlags::IN)], Some(&most)).unwrap() == 1
    };
    for round in 0..5 {
        assert!(!is_readable(0), "{round}");
        let request = other.receive(Some(from), Tag(0), 0, vec![0; 100_000]).unwrap();
        one.send(to, Tag(9), bytes(round, 100_000)).unwrap();
        assert!(is_readable(20));
        let received = other.wait(request, NOT_AT_ALL).unwrap();
        assert!(received.buffer == bytes(round, 100_000));
    }
    assert!(!is_readable(0));
}

#[test]
fn short_messages_go_without_requests() {
    let (one, other, to, from) = pair("short");
    let mut buffer = [0; 200];
    for number in 0..1000_u64 {
        while !one.send_short(to, Tag(number), &bytes(number, 8)) {
            one.progress();
        }
        loop {
            match other.receive_short(from, Tag(number), u64::MAX, &mut buffer).unwrap() {
                Some(Taken::Message { len, .. }) => break assert_eq!(buffer[..len], bytes(number, 8)),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }
}

/// What the helper thread has taken meanwhile, and what others have asked for before.
#[test]
fn short_messages_are_found_wherever_they_are() {
    let (one, other, to, from) = pair("found");
    let mut buffer = [0; 200];
    let mut take = |tag| other.receive_short(from, Tag(tag), u64::MAX, &mut buffer).unwrap();
    let descriptor = other.descriptor().unwrap();
    for tag in [1, 2, 1, 3] {
        assert!(one.send_short(to, Tag(tag), &[9; 7]));
    }
    let wanted = other.receive(Some(from), Tag(2), u64::MAX, vec![0; 7]).unwrap();
    let readable = poll(&mut [PollFd::new(&*descriptor, PollFlags::IN)], Some(&Timespec { tv_sec: 20, tv_nsec: 0 }));
    assert_eq!(readable, Ok(1), "the helper thread has looked");
    assert!(matches!(take(1), Some(Taken::Message { tag: Tag(1), len: 7 })));
    assert_eq!(take(2), None, "it was asked for");
    assert!(take(3).is_some() && take(1).is_some() && take(1).is_none());
    assert!(other.wait(wanted, NOT_AT_ALL).is_some());
    one.send(to, Tag(4), vec![0; 1000]).unwrap();
    one.send(to, Tag(5), vec![0; 200]).unwrap();
    drop(one);
    let until = Instant::now() + LONG;
    while !matches!(other.receive_short(from, Tag(5), u64::MAX, &mut [0; 100]), Ok(Some(Taken::TooLong { len: 200 }))) {
        assert!(Instant::now() < until);
    }
    while other.receive_short(from, Tag(0), 0, &mut [0; 100]) != Err(Breach::Gone) {
        assert!(Instant::now() < until);
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let other = open("refused");
    let whole = name("refused");
    assert!(matches!(Endpoint::open(&whole), Err(Error::Taken(_))));
    assert!(matches!(Endpoint::open("no name"), Err(Error::Name(_))));
    assert!(matches!(Endpoint::open("4294967290/solver"), Err(Error::Foreign(_))));
    let one = Endpoint::with(SLEEPY).unwrap();
    assert!(matches!(one.connect(&name("nobody"), Duration::from_millis(20)), Err(Error::Nobody(_))));
    let ends: Vec<Endpoint> = (0..4).map(|_| Endpoint::with(SLEEPY).unwrap()).collect();
    let called: Vec<_> = ends.iter().map(|end| end.connect(&whole, LONG)).collect();
    assert!(called[..3].iter().all(Result::is_ok));
    assert!(matches!(called[3], Err(Error::Refused(_, Refusal::Full))));
    // Who goes without having been noticed makes room.
    drop(ends);
    let until = Instant::now() + LONG;
    while one.connect(&whole, LONG).is_err() {
        assert!(Instant::now() < until);
    }
    drop(other);
    // Processes that another test starts have it, too, until they run their own program.
    while Endpoint::open(&whole).is_err() {
        assert!(Instant::now() < until, "something is left behind");
    }
}

/// Nothing counts bytes in 32 bits.
#[test]
fn a_message_may_have_more_than_4_gib() {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = memory.lines().find(|line| line.starts_with("MemAvailable")).unwrap();
    if line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() < 8 << 20 {
        return eprintln!("skipped: less than 8 GiB of memory are available");
    }
    let limits = Limits { mtu: 1 << 20, slots: 8, rmbs: 8, ..SLEEPY.limits };
    let one = Endpoint::with(Config { limits, ..SLEEPY }).unwrap();
    let other = Endpoint::with(Config { name: Some(name("long")), limits, ..SLEEPY }).unwrap();
    let to = one.connect(&name("long"), LONG).unwrap();
    let from = other.accept(LONG).unwrap();
    let len = (4 << 30) + 5;
    // What nobody has written to takes no memory.
    let (mut message, mut room) = (vec![0_u8; len], vec![0_u8; len]);
    let zeros = vec![0; 1 << 20];
    let marks = [0, 1 << 20, (4 << 30) - 1, 4 << 30, len - 1];
    for (scheme, value) in [(Scheme::OneCopy, 1), (Scheme::ZeroCopy, 2)] {
        marks.iter().for_each(|mark| message[*mark] = value);
        let wanted = other.receive(Some(from), Tag(1), u64::MAX, room).unwrap();
        let sent = one.send_by(to, Tag(1), message, scheme).unwrap();
        message = one.wait(sent, LONG * 3).unwrap().buffer;
        let ended = other.wait(wanted, LONG).unwrap();
        assert!(matches!(ended.outcome, Outcome::Received { len: found, .. } if found == len as u64));
        room = ended.buffer;
        assert!(marks.iter().all(|mark| room[*mark] == value));
        let is_marked = room.chunks(1 << 20).filter(|chunk| **chunk != zeros[..chunk.len()]);
        assert_eq!(is_marked.count(), 4, "a mark for each of four parts, and two in the last one");
    }
}

const VICTIM: &str = "MILLRACE_TEST_VICTIM";

const KILLED: Limits = Limits { credits: 8, eager: 0, ..FEW };
