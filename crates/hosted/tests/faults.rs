//! Programs and cards that end, and programs that write what they like.

use crate::{ALL, Card, PATIENCE, bytes};
use millrace_dma::{Pages, Region, refuse_descriptors, send_when_taken};
use millrace_message::Tag;
use millrace_message::endpoint::{Event, Users};
use millrace_message::engine::Outcome;
use millrace_message::hosted::greeting::{self, Greeting, LEN};
use millrace_message::hosted::{Config, Endpoint, Error, socket_of, wire};
use proptest::prelude::*;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_get_seals};
use rustix::io::{Errno, write};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::time::{Duration, Instant};

#[test]
fn who_goes_is_missed_at_once_and_short_messages_stay() {
    let card = Card::new();
    let mut one = card.open(Some("one"));
    let mut other = card.open(None);
    let to = other.connect("one", PATIENCE).unwrap();
    let from = one.accept(PATIENCE).unwrap().unwrap();
    let wanted = one.receive(Some(from), Tag(5), ALL, vec![0; 100_000]).unwrap();
    other.send(to, Tag(1), vec![1; 1000]).unwrap();
    other.send(to, Tag(2), vec![2; 100_000]).unwrap();
    let begin = Instant::now();
    drop(other);
    assert_eq!(one.wait(wanted, PATIENCE).unwrap().unwrap().outcome, Outcome::Lost);
    assert!(begin.elapsed() < Duration::from_millis(100), "{:?}", begin.elapsed());
    assert_eq!(one.event(PATIENCE).unwrap(), Some(Event::Lost(from, None)));
    let wanted = one.receive(Some(from), Tag(1), ALL, vec![0; 1000]).unwrap();
    let ended = one.wait(wanted, PATIENCE).unwrap().unwrap();
    assert!(ended.from == Some(from) && ended.memory.into_vec() == vec![1; 1000]);
    // The long one has gone with its sender, and so has the pair.
    let wanted = one.receive(Some(from), Tag(2), ALL, vec![0; 100_000]).unwrap();
    assert_eq!(one.wait(wanted, PATIENCE).unwrap().unwrap().outcome, Outcome::Lost);
    let sent = one.send(from, Tag(2), vec![0; 100]).unwrap();
    assert_eq!(one.wait(sent, PATIENCE).unwrap().unwrap().outcome, Outcome::Lost);
}

#[test]
fn a_card_that_ends_is_an_error_and_no_wait() {
    let mut card = Card::new();
    let (mut one, mut other) = card.pair();
    let to = other.connect("one", PATIENCE).unwrap();
    let wanted = one.receive(None, Tag(0), 0, vec![0; 100]).unwrap();
    let waits = std::thread::spawn(move || {
        let begin = Instant::now();
        (one.wait(wanted, PATIENCE).map(drop), begin.elapsed())
    });
    std::thread::sleep(Duration::from_millis(20));
    card.end();
    let (waited, took) = waits.join().unwrap();
    assert!(matches!(waited, Err(Error::Gone)) && took < Duration::from_secs(5), "{waited:?} {took:?}");
    std::thread::sleep(Duration::from_millis(1));
    assert!(matches!(other.send(to, Tag(0), vec![1]).unwrap_err().why, Error::Gone));
    // What the card has said last is taken before.
    while matches!(other.progress(), Ok(true)) {}
    assert!(matches!(other.progress(), Err(Error::Gone)));
    assert!(matches!(other.connect("one", PATIENCE), Err(Error::Gone)));
}

/// A program that has met the card, and has no library.
struct Stranger {
    memory: Region,
    _socket: OwnedFd,
    bell: OwnedFd,
}

fn call(card: &Card) -> Result<OwnedFd, Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(socket_of(&card.path))?)?;
    Ok(socket)
}

fn hello(card: &Card, file: &Region, len: u64) -> Result<(OwnedFd, OwnedFd), Errno> {
    let socket = call(card)?;
    let hello = Greeting::Hello { name: None, users: Users::Own, len };
    send_when_taken(&socket, PATIENCE, || greeting::send(&socket, &hello, file.fd()))?;
    let (mut bytes, mut fds) = ([0; LEN], Vec::new());
    let begin = Instant::now();
    loop {
        if let Some(len) = greeting::receive(&socket, &mut bytes, &mut fds)? {
            return match Greeting::read(&bytes[..len]) {
                Some(Greeting::Welcome) => Ok((socket, fds.pop().unwrap())),
                Some(Greeting::Refused(why)) => Err(why),
                other => panic!("{other:?}"),
            };
        }
        assert!(begin.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

impl Stranger {
    fn new(card: &Card) -> Self {
        let len = wire::POOL_AT + 65_536;
        let memory = Region::allocate(len, Pages::Ordinary).unwrap();
        fallocate(memory.fd().unwrap(), FallocateFlags::empty(), 0, len as u64).unwrap();
        let (socket, bell) = hello(card, &memory, len as u64).unwrap();
        Self { memory, _socket: socket, bell }
    }
}

#[test]
fn memory_that_could_make_the_card_wait_is_not_taken() {
    let card = Card::new();
    let len = wire::POOL_AT + 65_536;
    let empty = Region::allocate(len, Pages::Ordinary).unwrap();
    assert_eq!(hello(&card, &empty, len as u64).unwrap_err(), Errno::NOSPC, "its pages are not there");
    assert_eq!(hello(&card, &empty, 4096).unwrap_err(), Errno::INVAL);
    assert_eq!(hello(&card, &empty, 2 * len as u64).unwrap_err(), Errno::INVAL);
    assert_eq!(hello(&card, &empty, 1 << 40).unwrap_err(), Errno::FBIG);
    let full = Stranger::new(&card);
    let fd = full.memory.fd().unwrap();
    assert!(fcntl_get_seals(fd).unwrap().contains(SealFlags::FUTURE_WRITE | SealFlags::SHRINK));
    let hole = fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096);
    assert_eq!(hole, Err(Errno::PERM));
}

/// Who may not use the card is told so, and cannot send anything that would have to be closed for him.
#[test]
fn strangers_send_no_descriptors() {
    let card = Card::for_users(Box::new(|_| None));
    let opened = Endpoint::open(&card.path, Config { pool: 4096, ..Config::default() }).map(drop);
    assert!(matches!(opened, Err(Error::NoRight { .. })), "{opened:?}");
    let socket = call(&card).unwrap();
    if refuse_descriptors(&socket).is_ok() {
        let hello = Greeting::Hello { name: None, users: Users::Own, len: 1 << 20 };
        let sent = greeting::send(&socket, &hello, Some(socket.as_fd()));
        assert!(matches!(sent, Err(Errno::PERM | Errno::PIPE)), "{sent:?}");
    }
}

/// Whatever a program writes into its ring: others go on, and it is served or hung up on.
#[test]
fn nonsense_harms_nobody_else() {
    let card = Card::new();
    let mut one = card.open(Some("one"));
    let mut other = card.open(None);
    let to = other.connect("one", PATIENCE).unwrap();
    let from = one.accept(PATIENCE).unwrap().unwrap();
    let ends = std::cell::RefCell::new((one, other));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(60)
    });
    let small = prop_oneof![0u64..20, any::<u64>(), (wire::POOL_AT as u64 - 9)..(wire::POOL_AT as u64 + 65_600)];
    let message = (
        1u64..12,
        0u64..1100,
        prop_oneof![4 => Just(0u64), 1 => 0u64..2000],
        prop::collection::vec(small, 6),
        1u64..10,
    );
    let uid = u64::from(rustix::process::geteuid().as_raw());
    let messages = prop::collection::vec(message, 1..200);
    runner
        .run(&messages, |messages| {
            let (one, other) = &mut *ends.borrow_mut();
            let stranger = Stranger::new(&card);
            let slots = stranger.memory.window().slots64(256, 1024 * 8).unwrap();
            // It finds somebody first, so that there is a pair.
            let connects = [6 | 3 << 16 | uid << 32, u64::from_le_bytes(*b"one\0\0\0\0\0")];
            slots.store(1, connects[0]);
            slots.store(2, connects[1]);
            slots.store_release(0, 1 | 2 << 32);
            for (line, (kind, short, long, words, count)) in (1..).zip(&messages) {
                let at = line * 8;
                slots.store(at + 1, kind | short << 16 | long << 32);
                for (place, word) in (2..).zip(words) {
                    slots.store(at + place, *word);
                }
                slots.store_release(at, u64::from(line + 1) | count << 32);
            }
            write(&stranger.bell, &1_u64.to_ne_bytes()).unwrap();
            let sent = bytes(5000, messages.len());
            let wanted = one.receive(Some(from), Tag(1), ALL, vec![0; 5000]).unwrap();
            other.send(to, Tag(1), sent.clone()).unwrap();
            let ended = one.wait(wanted, Duration::from_secs(5)).unwrap();
            prop_assert!(ended.is_some_and(|ended| ended.memory.into_vec() == sent));
            drop(stranger);
            while let Some(event) = one.event(Duration::ZERO).unwrap() {
                if let Event::Lost(peer, _) = event {
                    one.leave(peer).unwrap();
                }
            }
            while other.next(Duration::ZERO).unwrap().is_some() {}
            Ok(())
        })
        .unwrap();
}

#[test]
fn descriptors_and_words_by_the_socket_are_the_end() {
    let card = Card::new();
    let stranger = Stranger::new(&card);
    greeting::send(&stranger._socket, &Greeting::Welcome, Some(stranger.bell.as_fd())).unwrap();
    let begin = Instant::now();
    let (mut bytes, mut fds) = ([0; LEN], Vec::new());
    while greeting::receive(&stranger._socket, &mut bytes, &mut fds) == Ok(None) {
        assert!(begin.elapsed() < PATIENCE, "it is not hung up on");
    }
    assert!(greeting::receive(&stranger._socket, &mut bytes, &mut fds).is_err());
}

/// A connection that is slow to close while the other end of it is there, which reads nothing.
fn slow() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    slow.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &slow, &[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&slow, Some(Duration::from_secs(60))).unwrap();
    (slow.into(), listener.accept().unwrap().0)
}

/// Who gives what is slow to close for his memory, in a greeting or in nonsense, keeps nobody else from coming, nor from what he has to say.
#[test]
fn what_is_no_memory_and_slow_to_close_holds_up_nobody() {
    let card = Card::new();
    let mut deaf = Vec::new();
    for is_greeting in [true, false] {
        let (given, other_end) = slow();
        deaf.push(other_end);
        let socket = call(&card).unwrap();
        let hello = Greeting::Hello { name: None, users: Users::Own, len: 1 << 20 };
        let said = if is_greeting { hello } else { Greeting::Welcome };
        send_when_taken(&socket, PATIENCE, || greeting::send(&socket, &said, Some(given.as_fd()))).unwrap();
        // From now on the card has the last one; or it had its own closed before, and this is: that takes as long.
        std::thread::spawn(move || drop(given));
        let begin = Instant::now();
        let (mut one, mut other) = card.pair();
        let wanted = one.receive(None, Tag(1), ALL, vec![0; 8]).unwrap();
        let to = other.connect("one", PATIENCE).unwrap();
        other.send(to, Tag(1), vec![1; 8]).unwrap();
        assert!(one.wait(wanted, PATIENCE).unwrap().is_some());
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    }
}

/// Who does not take what he is told costs nobody anything but himself.
#[test]
fn who_takes_nothing_holds_up_nobody() {
    let card = Card::new();
    let mut deaf = card.open(Some("deaf"));
    let mut one = card.open(Some("one"));
    let mut other = card.open(None);
    let (to_deaf, to) = (other.connect("deaf", PATIENCE).unwrap(), other.connect("one", PATIENCE).unwrap());
    deaf.accept(PATIENCE).unwrap().unwrap();
    let mut flying = Vec::new();
    for _ in 0..500 {
        let _ = deaf.receive(None, Tag(0), 0, vec![0; 1320]);
        flying.push(other.send(to_deaf, Tag(0), vec![1; 1320]).unwrap());
    }
    let wanted = one.receive(None, Tag(1), ALL, vec![0; 5000]).unwrap();
    other.send(to, Tag(1), bytes(5000, 3)).unwrap();
    assert!(one.wait(wanted, PATIENCE).unwrap().unwrap().memory.into_vec() == bytes(5000, 3));
    // And what it takes late was not lost.
    for _ in 0..500 {
        let ended = deaf.next(PATIENCE).unwrap().unwrap();
        assert!(ended.memory.into_vec() == vec![1; 1320]);
    }
    for request in flying {
        assert_eq!(other.wait(request, PATIENCE).unwrap().unwrap().outcome, Outcome::Sent);
    }
}
