//! Programs at a card, over its socket and its rings: the whole way, in one process.

mod faults;
mod model;
mod storm;

use millrace_hosted::{May, Server, Start};
use millrace_message::Tag;
use millrace_message::bell::{Full, Owner};
use millrace_message::endpoint::{Event, Users};
use millrace_message::engine::{Cancel, Outcome};
use millrace_message::hosted::{Config, Endpoint, Error, Memory, socket_of};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const ALL: u64 = u64::MAX;

/// A card that listens.
pub(crate) struct Card {
    pub(crate) path: PathBuf,
    server: Option<Server>,
    _folder: TempDir,
}

impl Card {
    pub(crate) fn new() -> Self {
        Self::for_users(millrace_served::owner_only())
    }

    pub(crate) fn for_users(may: May) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        let mut server = Server::listen(socket_of(&path)).unwrap();
        server.start(Start { cpu: None, may }).unwrap();
        Self { path, server: Some(server), _folder: folder }
    }

    pub(crate) fn open(&self, name: Option<&str>) -> Endpoint {
        let config = Config { name: name.map(str::to_owned), pool: 8 << 20, ..Config::default() };
        Endpoint::open(&self.path, config).unwrap()
    }

    /// Two that know each other: the one that was called, and what each calls the other.
    pub(crate) fn pair(&self) -> (Endpoint, Endpoint) {
        let mut one = self.open(Some("one"));
        let mut other = self.open(None);
        other.connect("one", PATIENCE).unwrap();
        one.accept(PATIENCE).unwrap().unwrap();
        (one, other)
    }

    /// How much of a core the card has spent on programs that come and go.
    pub(crate) fn spent_on_joins(&self) -> Duration {
        self.server.as_ref().unwrap().spent_on_joins()
    }

    pub(crate) fn end(&mut self) {
        self.server = None;
    }
}

pub(crate) fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + (at >> 8) + seed) as u8).collect()
}

#[test]
fn messages_of_all_sizes_go_both_ways() {
    let card = Card::new();
    let mut one = card.open(Some("one"));
    let mut other = card.open(None);
    let to = other.connect("one", PATIENCE).unwrap();
    let from = one.accept(PATIENCE).unwrap().unwrap();
    assert_eq!((one.who(from).unwrap().pid, &*other.who(to).unwrap().name), (Some(std::process::id()), "one"));
    for len in [0, 1, 8, 32, 33, 1319, 1320, 1321, 4096, 65_537, 3 << 20] {
        for unexpected in [false, true] {
            let sent = bytes(len, len);
            let room = len + 5;
            let wanted = (!unexpected).then(|| one.receive(None, Tag(7), ALL, vec![0; room]).unwrap());
            let request = other.send(to, Tag(7), sent.clone()).unwrap();
            if unexpected {
                std::thread::sleep(Duration::from_millis(1));
            }
            let wanted = wanted
                .unwrap_or_else(|| one.receive(Some(from), Tag(3), 4, vec![0; room]).unwrap_or_else(|_| panic!()));
            if unexpected {
                // The mask has a bit that the tag has not: it is not for this one.
                assert_eq!(one.cancel(wanted).unwrap(), Cancel::Done);
                assert_eq!(one.wait(wanted, PATIENCE).unwrap().unwrap().outcome, Outcome::Cancelled);
            }
            let wanted = if unexpected { one.receive(Some(from), Tag(7), ALL, vec![0; room]).unwrap() } else { wanted };
            let ended = one.wait(wanted, PATIENCE).unwrap().unwrap();
            assert!(matches!(ended.outcome, Outcome::Received { tag: Tag(7), len: came, .. } if came == len as u64));
            assert!(ended.from == Some(from) && ended.memory.into_vec() == sent, "{len}");
            let ended = other.wait(request, PATIENCE).unwrap().unwrap();
            assert!(ended.outcome == Outcome::Sent && ended.memory.into_vec() == sent);
        }
    }
    // Blocks, and the way back.
    let mut block = one.allocate(1 << 20).unwrap();
    let sent = bytes(1 << 20, 1);
    block.write(0, &sent).unwrap();
    let room = other.allocate(1 << 20).unwrap();
    let wanted = other.receive(Some(to), Tag(0), 0, room).unwrap();
    let request = one.send(from, Tag(9), block).unwrap();
    let ended = other.next(PATIENCE).unwrap().unwrap();
    assert!(ended.request == wanted && ended.memory.to_vec() == sent && matches!(ended.memory, Memory::Block(_)));
    assert_eq!(one.wait(request, PATIENCE).unwrap().unwrap().outcome, Outcome::Sent);
    // Too long.
    let wanted = other.receive(Some(to), Tag(0), 0, vec![0; 2000]).unwrap();
    let request = one.send(from, Tag(9), vec![1; 2001]).unwrap();
    assert_eq!(other.wait(wanted, PATIENCE).unwrap().unwrap().outcome, Outcome::TooLong { len: 2001 });
    assert_eq!(one.wait(request, PATIENCE).unwrap().unwrap().outcome, Outcome::TooLong { len: 2001 });
    // Itself.
    let own = one.connect("one", PATIENCE).unwrap();
    let wanted = one.receive(None, Tag(1), ALL, vec![0; 5000]).unwrap();
    one.send(own, Tag(1), vec![4; 5000]).unwrap();
    assert!(one.wait(wanted, PATIENCE).unwrap().unwrap().memory.into_vec() == vec![4; 5000]);
    one.leave(own).unwrap();
}

#[test]
fn a_message_arrives_while_neither_program_makes_a_call() {
    let card = Card::new();
    let (mut one, mut other) = card.pair();
    let room = one.allocate(4 << 20).unwrap();
    let place = room.window().clone();
    let last = |window: &millrace_dma::Window| {
        let mut byte = [0];
        window.part((4 << 20) - 1, 1).unwrap().span(0, 1).unwrap().read_into(&mut byte);
        byte[0]
    };
    one.receive(None, Tag(0), 0, room).unwrap();
    let mut block = other.allocate(4 << 20).unwrap();
    block.write((4 << 20) - 1, &[9]).unwrap();
    let to = other.connect("one", PATIENCE).unwrap();
    other.send(to, Tag(1), block).unwrap();
    let begin = Instant::now();
    while last(&place) != 9 {
        assert!(begin.elapsed() < PATIENCE, "it does not come by itself");
        std::hint::spin_loop();
    }
}

#[test]
fn names_are_those_of_users_and_taken_once() {
    let card = Card::new();
    let _one = card.open(Some("one"));
    let config = Config { name: Some("one".to_owned()), ..Config::default() };
    assert!(matches!(Endpoint::open(&card.path, config.clone()), Err(Error::Taken(name)) if name == "one"));
    let config = Config { name: Some("no name".to_owned()), ..config };
    assert!(matches!(Endpoint::open(&card.path, config), Err(Error::Name(_))));
    let mut other = card.open(None);
    assert!(matches!(other.connect("nobody", Duration::ZERO), Err(Error::Nobody(_))));
    assert!(matches!(other.connect("4294967294/one", Duration::ZERO), Err(Error::Nobody(_))));
    assert!(matches!(other.connect("a b", Duration::ZERO), Err(Error::Name(_))));
    let nowhere = card.path.with_extension("other");
    assert!(matches!(Endpoint::open(&nowhere, Config::default()), Err(Error::NoCard { .. })));
    // The name is free when its owner has gone, and who waits for it finds it.
    drop(_one);
    let path = card.path.clone();
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        let config = Config { name: Some("one".to_owned()), users: Users::Anybody, ..Config::default() };
        let begin = Instant::now();
        loop {
            match Endpoint::open(&path, config.clone()) {
                Ok(endpoint) => return endpoint,
                Err(Error::Taken(_)) if begin.elapsed() < PATIENCE => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    other.connect("one", PATIENCE).unwrap();
    drop(later.join());
}

#[test]
fn doorbells_come_in_order_and_are_refused_by_name() {
    let card = Card::new();
    let mut one = card.open(Some("one"));
    let mut other = card.open(None);
    let to = other.connect("one", PATIENCE).unwrap();
    let from = one.accept(PATIENCE).unwrap().unwrap();
    assert_eq!(other.ring(to, 5).unwrap(), Err(Full::Unwanted));
    one.claim(5..=9, Owner(3)).unwrap().unwrap();
    assert!(one.claim(9..=9, Owner(4)).unwrap().is_err());
    let rung = (0..1000).take_while(|count| other.ring(to, 5 + count % 5).unwrap().is_ok()).count();
    assert_eq!(rung, 256, "bounded by what was not taken");
    assert_eq!(other.ring(to, 5).unwrap(), Err(Full::Queue));
    for count in 0..256 {
        let (peer, bell) = one.any_bell(PATIENCE).unwrap().unwrap();
        assert_eq!((peer, bell.number, bell.owner), (from, 5 + count % 5, Owner(3)));
    }
    assert_eq!(one.bell(from).unwrap(), None);
    let begin = Instant::now();
    while other.ring(to, 9).unwrap().is_err() {
        assert!(begin.elapsed() < PATIENCE);
    }
    assert_eq!(one.any_bell(PATIENCE).unwrap().unwrap().1.number, 9);
    one.release(Owner(3)).unwrap();
    while other.ring(to, 9).unwrap().is_ok() {}
    other.leave(to).unwrap();
    assert!(matches!(other.ring(to, 9), Err(Error::Lost)));
    assert_eq!(one.event(PATIENCE).unwrap(), Some(Event::Lost(from, None)));
}

#[test]
fn who_sleeps_is_woken_and_a_descriptor_says_so() {
    let card = Card::new();
    let (mut one, mut other) = card.pair();
    let to = other.connect("one", PATIENCE).unwrap();
    one.accept(PATIENCE).unwrap().unwrap();
    for turn in 0..50 {
        let wanted = one.receive(None, Tag(0), 0, vec![0; 100]).unwrap();
        while !one.arm().unwrap() {
            one.next(Duration::ZERO).unwrap();
        }
        let sender = std::thread::spawn(move || {
            // The card sleeps by then, too.
            std::thread::sleep(Duration::from_millis(turn % 3));
            other.send(to, Tag(turn), vec![turn as u8; 100]).unwrap();
            other
        });
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let most = Timespec { tv_sec: 20, tv_nsec: 0 };
        let descriptor = one.descriptor();
        assert_eq!(poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&most)), Ok(1));
        let ended = one.wait(wanted, Duration::ZERO).unwrap().unwrap();
        assert_eq!(ended.memory.into_vec(), vec![turn as u8; 100]);
        other = sender.join().unwrap();
    }
}
