//! Endpoints that meet by name: what comes, who wakes whom, who is refused, and what is left of who has gone.

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
    SocketType, connect, recv, send, sendmsg, socket_with,
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
fn doorbells_wake_who_sleeps() {
    let (one, other, to, from) = pair("bells");
    assert_eq!(one.ring(to, 7), Some(Err(Full::Unwanted)));
    other.claim(0..=99, Owner(1)).unwrap();
    for number in 0..50 {
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| other.any_bell(LONG).unwrap());
            assert_eq!(one.ring(to, number), Some(Ok(())));
            let (whose, bell) = heard.join().unwrap();
            assert_eq!((whose, bell.number, bell.owner), (from, number, Owner(1)));
        });
    }
    // Bells that nobody takes are no reason not to sleep.
    one.ring(to, 1).unwrap().unwrap();
    assert!(other.next(Duration::from_millis(50)).is_none());
    assert_eq!(other.bell(from).unwrap().unwrap().number, 1);
    // A descriptor is readable as long as one waits, however it is taken.
    let descriptor = other.descriptor().unwrap();
    let is_readable = |most: i64| {
        let most = Timespec { tv_sec: most, tv_nsec: 0 };
        poll(&mut [PollFd::new(&*descriptor, PollFlags::IN)], Some(&most)).unwrap() == 1
    };
    one.ring(to, 2).unwrap().unwrap();
    assert!(is_readable(20));
    assert_eq!(other.bell(from).unwrap().unwrap().number, 2);
    assert!(!is_readable(0));
}

/// Halves that are lent: order, refusals, ranges, sleepers and the end are what they are by the endpoint.
#[test]
fn doorbells_without_the_lock_are_the_same() {
    let (one, other, to, from) = pair("lent");
    let (mut ringer, mut hearer) = (one.doorbells_to(to).unwrap(), other.doorbells_from(from).unwrap());
    assert!(one.doorbells_to(to).is_none() && other.doorbells_from(from).is_none());
    assert_eq!(ringer.ring(7), Some(Err(Full::Unwanted)));
    // What is claimed and released counts at once.
    other.claim(0..=999, Owner(1)).unwrap();
    assert_eq!(one.ring(to, 7), Some(Err(Full::Lent)));
    for number in 0..256 {
        assert_eq!(ringer.ring(number), Some(Ok(())));
    }
    assert_eq!(ringer.ring(7), Some(Err(Full::Queue)));
    assert_eq!(other.bell(from), Ok(None));
    assert!(other.any_bell(NOT_AT_ALL).is_none());
    for number in 0..256 {
        assert_eq!(hearer.take(), Ok(Some(Bell { number, owner: Owner(1) })));
    }
    assert_eq!(hearer.take(), Ok(None));
    assert_eq!([ringer.ring_once(3), ringer.ring_once(3)], [Some(Ok(Sent::Rung)), Some(Ok(Sent::Coalesced))]);
    other.release(Owner(1));
    assert_eq!(hearer.take(), Ok(None));
    other.claim(0..=999, Owner(2)).unwrap();
    ringer.ring(4).unwrap().unwrap();
    assert_eq!(hearer.take(), Ok(Some(Bell { number: 4, owner: Owner(2) })));
    // What waits is the endpoint's when it has come back, and who sleeps meanwhile is woken.
    ringer.ring(5).unwrap().unwrap();
    drop(hearer);
    assert_eq!(other.any_bell(LONG).unwrap().1.number, 5);
    for number in 0..50 {
        let hearer = other.doorbells_from(from).unwrap();
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| other.any_bell(LONG).unwrap().1.number);
            ringer.ring(number).unwrap().unwrap();
            drop(hearer);
            assert_eq!(heard.join().unwrap(), number);
        });
    }
    for number in 0..50 {
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| other.any_bell(LONG).unwrap().1.number);
            assert_eq!(ringer.ring(number), Some(Ok(())));
            assert_eq!(heard.join().unwrap(), number);
        });
    }
    // The end is told to both, each time.
    let mut hearer = one.doorbells_from(to).unwrap();
    drop(other);
    assert!(matches!(one.event(LONG), Some(Event::Lost(..))));
    for _ in 0..2 {
        assert_eq!((ringer.ring(1), hearer.take()), (None, Err(Breach::Gone)));
    }
    assert!(one.doorbells_to(to).is_none());
    drop((ringer, hearer));
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
fn who_has_gone_is_noticed_and_what_he_has_left_is_received() {
    let (one, other, to, from) = pair("gone");
    let long = other.receive(Some(from), Tag(1), u64::MAX, vec![0; 9000]).unwrap();
    for number in 10..14 {
        let sent = one.send(to, Tag(number), bytes(number, 50)).unwrap();
        assert_eq!(one.wait(sent, LONG).unwrap().outcome, Outcome::Sent);
    }
    drop(one);
    assert_eq!(other.wait(long, LONG).unwrap().outcome, Outcome::Lost);
    assert_eq!(other.event(LONG), Some(Event::Lost(from, None)));
    assert_eq!(other.in_use(), (0, 0));
    assert_eq!(other.send(from, Tag(0), Vec::new()), Err(RequestError::Lost));
    for (number, whom) in [(10, Some(from)), (11, None), (13, Some(from)), (12, Some(from))] {
        let request = other.receive(whom, Tag(number), u64::MAX, vec![0; 50]).unwrap();
        let received = other.wait(request, NOT_AT_ALL).unwrap();
        assert!(received.from == Some(from) && received.buffer == bytes(number, 50));
    }
    assert_eq!(other.receive(Some(from), Tag(0), 0, Vec::new()), Err(RequestError::Lost));
    // Its place is another one's; it is still nobody.
    let third = Endpoint::with(SLEEPY).unwrap();
    third.connect(&name("gone"), LONG).unwrap();
    let new = other.accept(LONG).unwrap();
    assert_ne!(new, from);
    assert_eq!(other.send(from, Tag(0), Vec::new()), Err(RequestError::Lost));
    other.leave(new);
    assert!(other.who(new).is_none());
    assert!(matches!(third.event(LONG), Some(Event::Lost(_, None))));
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

fn call(what: &str) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let user = rustix::process::geteuid().as_raw();
    let address = SocketAddrUnix::new_abstract_name(format!("millrace-message/{user}/{}", name(what)).as_bytes());
    connect(&socket, &address.unwrap()).unwrap();
    socket
}

fn hello() -> Vec<u8> {
    let mut hello = b"mrmess02\x01\x02\x04\x00\x00\x04\x00\x00".to_vec();
    hello.resize(96, 0);
    hello
}

fn has_hung_up(socket: &OwnedFd) -> bool {
    let most = Timespec { tv_sec: 20, tv_nsec: 0 };
    poll(&mut [PollFd::new(socket, PollFlags::RDHUP)], Some(&most)).unwrap() == 1
}

#[test]
fn a_flood_of_callers_does_not_make_an_endpoint_deaf() {
    let _other = open("flooded");
    for _ in 0..5 {
        let until = Instant::now() + Duration::from_millis(300);
        let flood = |_| {
            std::thread::spawn(move || {
                let address = SocketAddrUnix::new_abstract_name(
                    format!("millrace-message/{}/{}", rustix::process::geteuid().as_raw(), name("flooded")).as_bytes(),
                );
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                while Instant::now() < until {
                    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
                    let _ = connect(&socket, address.as_ref().unwrap());
                }
            })
        };
        let floods: Vec<_> = (0..4).map(flood).collect();
        floods.into_iter().for_each(|flood| flood.join().unwrap());
        // It sleeps when nobody calls any more; then somebody does.
        std::thread::sleep(Duration::from_millis(50));
        let one = Endpoint::with(SLEEPY).unwrap();
        one.connect(&name("flooded"), LONG).unwrap();
    }
}

#[test]
fn who_says_what_nobody_says_is_hung_up_on() {
    let other = open("hostile");
    for nonsense in [&b"hello"[..], &[0; 96], &[1; 200]] {
        let socket = call("hostile");
        send(&socket, nonsense, SendFlags::empty()).unwrap();
        assert!(has_hung_up(&socket), "{nonsense:?}");
    }
    // Who says nothing waits, a while, and only so many do.
    let silent: Vec<OwnedFd> = (0..30).map(|_| call("hostile")).collect();
    assert!(silent.iter().all(has_hung_up));
    // After the greeting: descriptors, long records, files that are none or have wrong numbers, and rings without end.
    let file = millrace_dma::Region::allocate(1 << 20, millrace_dma::Pages::Ordinary).unwrap();
    for what in 0..7 {
        let socket = call("hostile");
        send(&socket, &hello(), SendFlags::empty()).unwrap();
        let mut welcome = [0; 96];
        recv(&socket, &mut welcome[..], RecvFlags::empty()).unwrap();
        assert_eq!(&welcome[..9], b"mrmess02\x02");
        let peer = other.accept(LONG).unwrap();
        let give = |number: u8, fd: BorrowedFd<'_>| {
            let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
            let (mut ancillary, fds) = (SendAncillaryBuffer::new(&mut space), [fd]);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
            sendmsg(&socket, &[IoSlice::new(&[number])], &mut ancillary, SendFlags::empty()).unwrap();
        };
        match what {
            0 => give(0, file.fd().unwrap()),
            1 => drop(send(&socket, b"more", SendFlags::empty()).unwrap()),
            2 => drop(send(&socket, &[1], SendFlags::empty()).unwrap()),
            3 => give(1, socket.as_fd()),
            4 => give(5, file.fd().unwrap()),
            5 => (0..2).for_each(|_| give(1, file.fd().unwrap())),
            _ => while send(&socket, &[0], SendFlags::NOSIGNAL).is_ok() {},
        }
        let breach = if what < 6 { Breach::Nonsense } else { Breach::Rings };
        assert_eq!(other.event(LONG), Some(Event::Lost(peer, Some(breach))), "{what}");
        assert!(has_hung_up(&socket));
    }
    // And whoever else comes is answered.
    let one = Endpoint::with(SLEEPY).unwrap();
    one.connect(&name("hostile"), LONG).unwrap();
    other.accept(LONG).unwrap();
}

/// Has the thread of an endpoint stand still, by a function that it calls, until what comes back is dropped.
fn stopped(other: &Endpoint, one: &Endpoint, to: Peer) -> std::sync::mpsc::Sender<()> {
    let ((gate, opens), (told, stands)) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel());
    let request = other.receive(None, Tag(99), u64::MAX, vec![]).unwrap();
    assert!(other.then(request, move |_| {
        told.send(()).unwrap();
        let _ = opens.recv();
    }));
    one.send(to, Tag(99), vec![]).unwrap();
    stands.recv_timeout(LONG).unwrap();
    gate
}

/// A socket that takes a minute to close: it lingers, and nobody reads what was sent.
fn slow_to_close() -> (std::net::TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (deaf, _) = listener.accept().unwrap();
    slow.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &slow, &[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&slow, Some(Duration::from_secs(60))).unwrap();
    (slow, deaf)
}

#[test]
fn descriptors_that_are_slow_to_close_hold_nobody_up() {
    let other = open("slow");
    let mut deaf = Vec::new();
    let one = Endpoint::with(SLEEPY).unwrap();
    let to = one.connect(&name("slow"), LONG).unwrap();
    // In a greeting, after one, and in a socket that is closed before it was read.
    for what in 0..3 {
        let (slow, end) = slow_to_close();
        deaf.push(end);
        let socket = call("slow");
        let can_refuse = take_descriptors(&socket).is_ok();
        if what > 0 {
            send(&socket, &hello(), SendFlags::empty()).unwrap();
            // It is let in.
            let most = Timespec { tv_sec: 20, tv_nsec: 0 };
            assert_eq!(poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&most)), Ok(1));
        }
        let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
        let (mut ancillary, fds) = (SendAncillaryBuffer::new(&mut space), [slow.as_fd()]);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let record = if what == 0 { hello() } else { vec![0] };
        if what == 0 && can_refuse {
            // It is not sent at all, so that there is nothing to close.
            let sent = sendmsg(&socket, &[IoSlice::new(&record)], &mut ancillary, SendFlags::empty());
            assert_eq!(sent, Err(Errno::PERM));
            // Which this thread would wait for.
            deaf.pop();
            continue;
        }
        // So that it is the last to close it, and not this thread.
        let gate = stopped(&other, &one, to);
        for _ in 0..if what == 2 { 2 } else { 1 } {
            sendmsg(&socket, &[IoSlice::new(&record)], &mut ancillary, SendFlags::empty()).unwrap();
        }
        drop(slow);
        drop(gate);
        assert!(has_hung_up(&socket));
    }
    one.send(to, Tag(0), vec![1; 10]).unwrap();
    let request = other.receive(None, Tag(0), 0, vec![0; 10]).unwrap();
    assert_eq!(other.wait(request, LONG).unwrap().buffer, [1; 10]);
    drop(deaf);
}

/// Who has called, and then only waits for a descriptor: its helper thread slept when it called, and knows the new one all the same.
#[test]
fn who_has_called_is_woken() {
    for round in 0..20 {
        let what = format!("woken-{round}");
        let other = open(&what);
        let one = Endpoint::with(SLEEPY).unwrap();
        let descriptor = one.descriptor().unwrap();
        let to = one.connect(&name(&what), Duration::MAX).unwrap();
        let wanted = one.receive(Some(to), Tag(1), u64::MAX, vec![0; 3000]).unwrap();
        let from = other.accept(LONG).unwrap();
        other.send(from, Tag(1), bytes(round, 3000)).unwrap();
        let most = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&*descriptor, PollFlags::IN)], Some(&most)), Ok(1), "{round}");
        assert!(one.wait(wanted, NOT_AT_ALL).unwrap().buffer == bytes(round, 3000));
    }
}

/// Who has called, left something and gone, before anybody has asked: the program learns of him, and can give his place to others.
#[test]
fn who_went_before_he_was_seen_is_told_of_if_he_has_left_something() {
    let other = open("unseen");
    let probe = Endpoint::with(SLEEPY).unwrap();
    for round in 0..6 {
        let one = Endpoint::with(SLEEPY).unwrap();
        let to = one.connect(&name("unseen"), LONG).unwrap();
        let leaves_some = round % 2 == 0;
        assert!(!leaves_some || one.send_short(to, Tag(7), &[7; 9]));
        drop(one);
        // Who calls now is heard after that.
        probe.connect(&name("unseen"), LONG).unwrap();
        if leaves_some {
            let Some(Event::Joined(peer)) = other.event(LONG) else { panic!("{round}") };
            assert_eq!(other.event(LONG), Some(Event::Lost(peer, None)));
            other.leave(peer);
            assert_eq!(other.receive(Some(peer), Tag(7), 0, vec![0; 9]), Err(RequestError::Lost));
        }
        let Some(Event::Joined(called)) = other.event(LONG) else { panic!("{round}") };
        other.leave(called);
        assert!(matches!(probe.event(LONG), Some(Event::Lost(..))));
    }
    let wanted = other.receive(None, Tag(7), 0, vec![0; 9]).unwrap();
    assert!(other.wait(wanted, Duration::from_millis(20)).is_none(), "what was left is gone with him");
}

/// The next message that has ended, by sleeping on the descriptor after each look, as programs with a loop of their own do.
fn next_by_descriptor(end: &Endpoint, descriptor: &OwnedFd) -> Ended {
    let long = Timespec { tv_sec: 20, tv_nsec: 0 };
    loop {
        if let Some(ended) = end.next(NOT_AT_ALL) {
            return ended;
        }
        assert_eq!(poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&long)), Ok(1), "nothing comes");
    }
}

/// Who calls, and sleeps on the descriptor the next moment, is woken at once, and not when the thread of the endpoint looks by itself, a
/// millisecond later.
#[test]
fn who_sleeps_on_the_descriptor_is_woken_at_once() {
    let (one, other, to, from) = pair("descriptor-wakes");
    let trips = |count: usize| -> Duration {
        let turn = |end: &Endpoint, peer: Peer, begins: bool| -> Vec<Duration> {
            let descriptor = end.descriptor().unwrap();
            let took = (0..count).map(|_| {
                let begin = Instant::now();
                end.receive(Some(peer), Tag(1), u64::MAX, vec![0; 8]).unwrap();
                let (mut has_begun, mut has_sent, mut has_received) = (false, false, false);
                while !has_sent || !has_received {
                    if !has_begun && (begins || has_received) {
                        end.send(peer, Tag(1), vec![1; 8]).unwrap();
                        has_begun = true;
                    }
                    match next_by_descriptor(end, &descriptor).outcome {
                        Outcome::Sent => has_sent = true,
                        Outcome::Received { .. } => has_received = true,
                        outcome => panic!("{outcome:?}"),
                    }
                }
                begin.elapsed()
            });
            took.collect()
        };
        let mut took = std::thread::scope(|scope| {
            scope.spawn(|| turn(&other, from, false));
            turn(&one, to, true)
        });
        took.sort();
        took[count / 2]
    };
    // Others use the machine.
    let fastest = (0..5).map(|_| trips(40)).min().unwrap();
    println!("there and back in {fastest:?}");
    assert!(fastest < Duration::from_micros(900), "{fastest:?}");
}

/// Memory that notes who writes into it.
#[derive(Debug)]
struct Signed(Vec<u8>, Vec<Option<String>>);

impl Buffer for Signed {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn piece(&self, offset: usize, most: usize) -> &[u8] {
        self.0.piece(offset, most)
    }

    fn piece_mut(&mut self, offset: usize, most: usize) -> &mut [u8] {
        self.1.push(std::thread::current().name().map(str::to_owned));
        self.0.piece_mut(offset, most)
    }

    fn shorten(&mut self, len: usize) {
        self.0.truncate(len);
    }
}

/// Without optimisation 3 a thread that waits touches no message, whether it sleeps or looks; with it, it does.
#[test]
fn who_waits_leaves_the_work_to_the_thread_of_the_endpoint() {
    for (spin, waiters_work) in [(0, false), (10_000_000, false), (10_000_000, true)] {
        let spin = Duration::from_micros(spin);
        let what = format!("leaves-{waiters_work}-{}", spin.as_micros());
        let config = Config { name: Some(name(&what)), spin, waiters_work, ..SLEEPY };
        let (one, other) = (Endpoint::with(SLEEPY).unwrap(), Endpoint::of_buffers(config).unwrap());
        let to = one.connect(&name(&what), LONG).unwrap();
        let from = other.accept(LONG).unwrap();
        for len in [100, 100_000] {
            let buffer = Signed(vec![0; len], Vec::new());
            let request = other.receive(Some(from), Tag(1), u64::MAX, buffer).unwrap();
            let ended = std::thread::scope(|scope| {
                let waiting = scope.spawn(|| other.wait(request, LONG).unwrap());
                std::thread::sleep(Duration::from_millis(5));
                let sent = one.send(to, Tag(1), bytes(1, len)).unwrap();
                one.wait(sent, LONG).unwrap();
                waiting.join().unwrap()
            });
            assert_eq!(ended.buffer.0, bytes(1, len));
            let is_helpers = |who: &Option<String>| who.as_deref() == Some("millrace-message");
            assert!(!ended.buffer.1.is_empty());
            assert_eq!(ended.buffer.1.iter().all(is_helpers), !waiters_work, "{what}, {len}: {:?}", ended.buffer.1);
        }
    }
}

/// A program that never asks what has happened: it is not remembered without end.
#[test]
fn events_are_not_kept_for_ever() {
    let other = open("events");
    let one = Endpoint::with(Config { peers: 8, ..SLEEPY }).unwrap();
    let mut last = None;
    for _ in 0..1100 {
        let until = Instant::now() + LONG;
        let to = loop {
            match one.connect(&name("events"), LONG) {
                Ok(to) => break to,
                Err(Error::Refused(..) | Error::Full(_)) if Instant::now() < until => {}
                Err(error) => panic!("{error}"),
            }
        };
        other.leave(other.accept(LONG).unwrap());
        last = Some(to);
    }
    while one.send(last.unwrap(), Tag(0), Vec::new()).is_ok() {
        std::thread::yield_now();
    }
    let told: Vec<Event> = core::iter::from_fn(|| one.event(NOT_AT_ALL)).collect();
    assert_eq!((told.len(), told.last()), (1024, Some(&Event::Lost(last.unwrap(), None))));
}

/// Memory that is sent again is read where it is, with one copy, by who waits; and an end of a message that began when the other one was about
/// to go is not half a message.
#[test]
fn memory_that_is_sent_again_is_read_in_a_file() {
    let adopter = match millrace_dma::Adopter::of_process() {
        Ok(adopter) => adopter,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let config = || Config { adopt: Some(Scope::Mappings), ..SLEEPY };
    let (one, other) = (Endpoint::with(config()).unwrap(), open("adopted"));
    let to = one.connect(&name("adopted"), LONG).unwrap();
    let from = other.accept(LONG).unwrap();
    // More than a part that is mapped, and more than is read at once.
    let len = (17 << 20) + 123;
    let mut message = bytes(1, len);
    let mut room = vec![0; len + 7];
    for (turn, scheme) in
        [Some(Scheme::OneCopy), None, None, Some(Scheme::ZeroCopy), Some(Scheme::OneCopy)].into_iter().enumerate()
    {
        message[turn] = turn as u8;
        let before = other.moved();
        let wanted = other.receive(Some(from), Tag(1), u64::MAX, room).unwrap();
        let sent = match scheme {
            Some(scheme) => one.send_by(to, Tag(1), message, scheme),
            None => one.send(to, Tag(1), message),
        };
        message = one.wait(sent.unwrap(), LONG).unwrap().buffer;
        room = other.wait(wanted, LONG).unwrap().buffer;
        assert!(room == message, "turn {turn}");
        room.resize(len + 7, 0);
        // The first time it is only remembered that it was sent; with one copy nobody asks.
        assert_eq!(adopter.counters().adopted >= len as u64, turn >= 2, "turn {turn}");
        assert_eq!(other.moved() - before == len as u64, scheme != Some(Scheme::OneCopy), "turn {turn}");
    }
    // Through memory that was unmapped meanwhile, and is other memory by now.
    drop(message);
    for turn in 0..4 {
        let message = bytes(2 + turn, len);
        let wanted = other.receive(Some(from), Tag(1), u64::MAX, room).unwrap();
        let sent = one.send(to, Tag(1), message.clone()).unwrap();
        drop(one.wait(sent, LONG).unwrap());
        room = other.wait(wanted, LONG).unwrap().buffer;
        assert!(room == message);
        room.resize(len + 7, 0);
    }
}

/// What was handed over is seen where it is, as long as it is held; who does not hold it gets a copy. A pool that is held altogether is no
/// matter of anybody else, and whole again when who holds it goes.
#[test]
fn blocks_are_handed_over() {
    let len = 3 << 20;
    let config = || Config { pool: 8 << 20, ..SLEEPY };
    let one = Endpoint::with(config()).unwrap();
    let other = Endpoint::with(Config { name: Some(name("blocks")), ..config() }).unwrap();
    let to = one.connect(&name("blocks"), LONG).unwrap();
    let from = other.accept(LONG).unwrap();
    let filled = |number: u64| {
        let mut block = one.allocate(to, len, LONG).unwrap();
        block.write(0, &bytes(number, len)).unwrap();
        block
    };
    let hold = |tag| other.receive_held(Some(from), Tag(tag), u64::MAX, vec![0; 10]).unwrap();
    let wanted = [hold(1), hold(2)];
    one.give(to, Tag(1), filled(1)).unwrap();
    one.give(to, Tag(2), filled(2)).unwrap();
    let given = wanted.map(|wanted| other.wait(wanted, LONG).unwrap());
    for (number, ended) in (1..).zip(&given) {
        assert!(
            matches!(ended.outcome, Outcome::Held { tag: Tag(tag), len: found, .. } if (tag, found) == (number, len as u64))
        );
        assert!(ended.from == Some(from) && ended.buffer == [0; 10]);
        assert!(ended.given.as_ref().unwrap().to_vec() == bytes(number, len));
    }
    // All that there is room for is held.
    assert!(matches!(one.allocate(to, len, NOT_AT_ALL), Err(AllocateError::Full)));
    assert!(matches!(one.allocate(to, 9 << 20, LONG), Err(AllocateError::TooLong(most)) if most == 8 << 20));
    let [first, second] = given;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.allocate(to, len, LONG).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        drop(first);
        waits.join().unwrap();
    });
    // One that is not given is free for others as well.
    let kept = [one.allocate(to, len, LONG).unwrap()];
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.allocate(to, len, LONG).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        drop(kept);
        waits.join().unwrap();
    });
    // Short ones, and what is not in a file, come into the buffer; what is too long for it does not.
    for (tag, sent, found) in [(3, 5, true), (4, 5000, false)] {
        let wanted = hold(tag);
        one.send(to, Tag(tag), bytes(tag, sent)).unwrap();
        let ended = other.wait(wanted, LONG).unwrap();
        assert_eq!((ended.outcome == Outcome::TooLong { len: 5000 }, ended.given), (!found, None));
        assert!(!found || ended.buffer == bytes(tag, sent));
    }
    // Who does not hold it gets a copy.
    let wanted = other.receive(Some(from), Tag(5), u64::MAX, vec![0; len]).unwrap();
    one.give(to, Tag(5), filled(5)).unwrap();
    assert!(other.wait(wanted, LONG).unwrap().buffer == bytes(5, len));
    // A block is for one other end.
    let also = one.connect(&name("blocks"), LONG).unwrap();
    assert_eq!(one.give(also, Tag(5), filled(5)), Err(GiveError::Elsewhere));
    // What is held is there when the endpoint that has given it is gone, and the other way round.
    let block = filled(6);
    drop(one);
    assert!(second.given.as_ref().unwrap().to_vec() == bytes(2, len));
    drop(other);
    drop((second, block));
}

/// Memory of the other end is read and written without its doing, as far as it has allocated it for this one.
#[test]
fn windows_are_written_and_read() {
    let (one, other, to, from) = pair("windows");
    one.claim(7..=7, Owner(0)).unwrap();
    // `other` owns it.
    let block = other.allocate(from, 4096, NOT_AT_ALL).unwrap();
    assert!(matches!(one.window(to, block.number(), (1 << 20) + 1), Err(WindowError::Nowhere)));
    let window = one.window(to, block.number(), 4096).unwrap();
    let number = block.number();
    window.nwrite(1, b"one").unwrap();
    window.nwrite_r(5, b"two").unwrap();
    window.swrite(4088, b"12345678").unwrap();
    let mut found = [0; 8];
    block.read(0, &mut found).unwrap();
    assert_eq!(&found, b"\0one\0two");
    window.nread(4088, &mut found).unwrap();
    assert_eq!(&found, b"12345678");
    for (offset, len) in [(0, 7), (1, 8), (12, 4)] {
        assert_eq!(window.swrite(offset, &bytes(1, len)), Err(AccessError::Unaligned));
    }
    assert!(matches!(window.nwrite(4096, b"1"), Err(AccessError::Range(_))));
    assert!(matches!(window.nread(usize::MAX, &mut found), Err(AccessError::Range(_))));
    assert!(matches!(window.swrite(4096, &[0; 8]), Err(AccessError::Range(_))));
    // It has allocated nothing for the other way.
    assert!(matches!(other.window(from, number, 1), Err(WindowError::Nowhere)));
    // A doorbell comes behind what was written.
    for round in 0..1000_u64 {
        block.window().span_mut(8, 8).unwrap().write_from(&round.to_le_bytes());
        other.ring(from, 7).unwrap().unwrap();
        assert_eq!(one.any_bell(LONG).unwrap().1.number, 7);
        let mut word = [0; 8];
        window.nread(8, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), round);
    }
    drop(other);
    assert!(one.event(LONG).is_some());
    window.nwrite(0, b"there is nobody").unwrap();
    assert!(matches!(one.window(to, number, 1), Err(WindowError::Lost | WindowError::Nowhere)));
}

/// Functions are called when messages have ended, or had before; they may begin others.
#[test]
fn functions_are_called_when_messages_have_ended() {
    let (one, other, to, from) = pair("then");
    let (said, heard) = std::sync::mpsc::channel();
    let other = std::sync::Arc::new(other);
    // An answer to each message, without a thread that waits.
    fn answers(end: &std::sync::Arc<Endpoint>, to: Peer) {
        let (again, wanted) = (end.clone(), end.receive(Some(to), Tag(1), u64::MAX, vec![0; 100_000]).unwrap());
        assert!(end.then(wanted, move |ended| {
            if ended.outcome == Outcome::Lost {
                return;
            }
            again.send(to, Tag(2), ended.buffer).unwrap();
            answers(&again, to);
        }));
    }
    answers(&other, from);
    for turn in 0..100_u64 {
        let len = 1000 * turn as usize;
        let back = one.receive(Some(to), Tag(2), u64::MAX, vec![0; 100_000]).unwrap();
        let said = said.clone();
        assert!(one.then(back, move |ended| said.send(ended.buffer).unwrap()));
        assert!(one.send(to, Tag(1), bytes(turn, len)).is_ok());
        assert!(heard.recv_timeout(LONG).unwrap() == bytes(turn, len));
        assert!(one.wait(back, NOT_AT_ALL).is_none() && !one.then(back, |_| panic!("it was told")));
    }
    // One that has ended already, and one that panics.
    let back = one.receive(Some(to), Tag(2), u64::MAX, vec![0; 8]).unwrap();
    let sent = one.send(to, Tag(1), vec![1]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(one.then(back, |_| panic!("as it should")));
    let also = said.clone();
    assert!(one.then(sent, move |ended| also.send(ended.buffer).unwrap()));
    assert_eq!(heard.recv_timeout(LONG).unwrap(), [1]);
    let lost = one.receive(Some(to), Tag(9), u64::MAX, vec![0; 3]).unwrap();
    let also = said.clone();
    assert!(one.then(lost, move |ended| also.send(vec![u8::from(ended.outcome == Outcome::Lost)]).unwrap()));
    other.leave(from);
    assert_eq!(heard.recv_timeout(LONG).unwrap(), [1]);
    // The function that waits there is the last one that has the endpoint.
    drop(other);
    let gone = Instant::now();
    while Endpoint::open(&name("then")).is_err() {
        assert!(gone.elapsed() < LONG);
    }
    // Those that are never called are dropped with the endpoint.
    let wanted = one.receive(None, Tag(9), u64::MAX, vec![]).unwrap();
    assert!(one.then(wanted, move |_| drop(said)));
    drop(one);
    assert!(heard.recv_timeout(LONG).is_err());
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

/// No test, but what runs in processes that are killed: sends and receives messages of two parts and more without end, by the name that
/// it is given.
#[test]
fn victim() {
    let Ok(name) = std::env::var(VICTIM) else { return };
    let end = Endpoint::with(Config { limits: KILLED, adopt: Some(Scope::Mappings), ..SLEEPY }).unwrap();
    let to = end.connect(&name, LONG).unwrap();
    for number in 0.. {
        let len = 900 * (1 + number as usize % 20);
        end.receive(Some(to), Tag(number), u64::MAX, vec![0; 20_000]).unwrap();
        let scheme = if number % 2 == 0 { Scheme::OneCopy } else { Scheme::ZeroCopy };
        end.send_by(to, Tag(number), bytes(number, len), scheme).unwrap();
        while end.next(if number < 4 { NOT_AT_ALL } else { LONG }).is_some_and(|ended| ended.outcome != Outcome::Sent) {
        }
    }
}

const KILLED: Limits = Limits { credits: 8, eager: 0, ..FEW };

/// A hundred processes are killed between any two steps of messages to and from them. Who was connected has all buffers again at once, and
/// what came was what was sent; who is beside it goes on.
#[test]
fn processes_are_killed_and_nothing_is_missing() {
    let hub = Endpoint::with(Config { name: Some(name("killed")), limits: KILLED, ..SLEEPY }).unwrap();
    let beside = Endpoint::with(SLEEPY).unwrap();
    let to = beside.connect(&name("killed"), LONG).unwrap();
    let from = hub.accept(LONG).unwrap();
    let (mut worst, mut held, mut whole) = (Duration::ZERO, 0, 0);
    for round in 0..100_u64 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "endpoint::victim", "--nocapture"])
            .env(VICTIM, name("killed"))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let victim = hub.accept(LONG).unwrap();
        let until = Instant::now() + Duration::from_micros(round * 137 % 5000);
        let mut number = 0;
        let receive = |number| hub.receive(Some(victim), Tag(number), u64::MAX, vec![0; 20_000]);
        let mut waits = receive(0).unwrap();
        hub.send(victim, Tag(0), bytes(0, 15_000)).unwrap();
        let mut check = |ended: millrace_message::endpoint::Ended| match ended.outcome {
            Outcome::Received { tag, .. } if ended.from == Some(victim) => {
                assert!(tag.0 == number && ended.buffer.len() == 900 * (1 + number as usize % 20));
                assert!(ended.buffer == bytes(number, ended.buffer.len()));
                number += 1;
                whole += 1;
                (waits, _) = (receive(number).unwrap_or(waits), hub.send(victim, Tag(number), bytes(number, 7000)));
            }
            Outcome::Received { .. } | Outcome::Sent | Outcome::Lost => {}
            other => panic!("{other:?}"),
        };
        while Instant::now() < until {
            hub.next(NOT_AT_ALL).map(&mut check);
        }
        held += u32::from(hub.in_use().1);
        child.kill().unwrap();
        child.wait().unwrap();
        let killed = Instant::now();
        // The helper thread sees to it.
        while hub.in_use() != (0, 0) {
            assert!(killed.elapsed() < LONG);
            std::thread::yield_now();
        }
        worst = worst.max(killed.elapsed());
        assert_eq!(hub.event(LONG), Some(Event::Lost(victim, None)));
        while let Some(ended) = hub.next(NOT_AT_ALL) {
            check(ended);
        }
        let request = hub.receive(Some(from), Tag(round), u64::MAX, vec![0; 3000]).unwrap();
        beside.send(to, Tag(round), bytes(round, 3000)).unwrap();
        let received = hub.wait(request, LONG).unwrap();
        assert!(received.buffer == bytes(round, 3000));
    }
    println!("{whole} messages came, {held} buffers were in use, and were back after {worst:?} at most");
    assert!(whole > 0 && held > 0);
}
