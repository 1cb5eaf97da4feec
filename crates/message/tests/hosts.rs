//! Endpoints of two hosts: each has rails that lead to the other one, ports that are the ends of a wire.

use millrace_message::Scheme;
use millrace_message::bell::{Bell, Full, Owner, Sent};
use millrace_message::channel::Taken;
use millrace_message::control::Tag;
use millrace_message::endpoint::{Config, Endpoint, Error, Event, Peer, Refusal};
use millrace_message::engine::{Limits, Outcome};
use millrace_slurpoe as slurpoe;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

/// Wires, in a folder of their own.
pub struct Wires(tempfile::TempDir);

impl Wires {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A rail at one end of a wire, of which `last` is the end of the address. `around`: what stands before the port.
    pub fn rail(&self, wire: usize, last: u8, around: &str) -> slurpoe::Config {
        let (kind, path) =
            (if last < 128 { "vhost-user" } else { "virtio-user" }, self.0.path().join(format!("wire{wire}")));
        let port = format!("{kind}:{}", path.display());
        let port = if around.is_empty() { port } else { format!("{around},port=({port})") };
        let address = Some(slurpoe::Address([2, 0, 0, 0, wire as u8, last]));
        slurpoe::Config { port: Some(port), address, mtu: Some(4096), ..slurpoe::Config::default() }
    }

    pub fn rails(&self, count: usize, last: u8, around: &str) -> Vec<slurpoe::Config> {
        (0..count).map(|wire| self.rail(wire, last, around)).collect()
    }
}

pub fn name(what: &str) -> String {
    format!("hosts-{}-{what}", std::process::id())
}

/// The endpoint that is called is on host `b`; the one that calls, without a name, on host `a`.
fn ends(wires: &Wires, what: &str, limits: Limits, (rails, around): (usize, &str)) -> (Endpoint, Endpoint) {
    let config = |name, host: &str, last| Config {
        name,
        limits,
        host: Some(host.to_owned()),
        rails: wires.rails(rails, last, around),
        ..Config::default()
    };
    let other = Endpoint::with(config(Some(name(what)), "b", 1)).unwrap();
    (Endpoint::with(config(None, "a", 129)).unwrap(), other)
}

fn pair(what: &str, limits: Limits, rails: (usize, &str)) -> (Wires, Endpoint, Endpoint, Peer, Peer) {
    let wires = Wires::new();
    let (one, other) = ends(&wires, what, limits, rails);
    let to = one.connect(&format!("b:{}", name(what)), LONG).unwrap();
    let from = other.accept(LONG).unwrap();
    (wires, one, other, to, from)
}

pub fn bytes(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u64 * 13 + at as u64 / 256 + number) as u8).collect()
}

#[test]
fn messages_of_any_size_go_between_hosts() {
    let (_wires, one, other, to, from) = pair("sizes", Limits::default(), (1, ""));
    let who = other.who(from).unwrap();
    assert_eq!((who.host.as_deref(), who.pid), (Some("a"), None));
    let who = one.who(to).unwrap();
    assert_eq!((who.host.as_deref(), who.name), (Some("b"), name("sizes")));
    for (number, len) in [0, 1, 40, 1328, 1329, 65_536, 65_537, 5_000_000].into_iter().enumerate() {
        for scheme in Scheme::ALL {
            let tag = Tag(number as u64);
            let sent = one.send_by(to, tag, bytes(tag.0, len), scheme).unwrap();
            let request = other.receive(Some(from), tag, u64::MAX, vec![0; len]).unwrap();
            let received = other.wait(request, LONG).unwrap();
            assert!(received.from == Some(from) && received.buffer == bytes(tag.0, len), "{len} bytes by {scheme:?}");
            assert_eq!(one.wait(sent, LONG).unwrap().outcome, Outcome::Sent);
        }
    }
    // The other way round, short, and too long.
    let mut to_here = [0; 100];
    assert!(other.send_short(from, Tag(1), b"short"));
    let begin = Instant::now();
    let taken = loop {
        if let Some(taken) = one.receive_short(to, Tag(0), 0, &mut to_here).unwrap() {
            break taken;
        }
        assert!(begin.elapsed() < LONG);
    };
    assert_eq!((taken, &to_here[..5]), (Taken::Message { tag: Tag(1), len: 5 }, &b"short"[..]));
    let sent = other.send(from, Tag(2), bytes(0, 100_000)).unwrap();
    let short = one.receive(None, Tag(2), u64::MAX, vec![0; 99_999]).unwrap();
    assert_eq!(one.wait(short, LONG).unwrap().outcome, Outcome::TooLong { len: 100_000 });
    assert_eq!(other.wait(sent, LONG).unwrap().outcome, Outcome::TooLong { len: 100_000 });
    assert_eq!((one.in_use(), other.in_use()), ((0, 0), (0, 0)));
    drop(one);
    assert_eq!(other.event(LONG), Some(Event::Lost(from, None)));
}

#[test]
fn doorbells_go_between_hosts() {
    let (_wires, one, other, to, from) = pair("bells", Limits::default(), (1, ""));
    assert_eq!(one.ring(to, 7), Some(Err(Full::Unwanted)));
    other.claim(5..=9, Owner(1)).unwrap();
    let begin = Instant::now();
    while one.ring(to, 7) != Some(Ok(())) {
        one.progress();
        assert!(begin.elapsed() < LONG);
    }
    let (peer, bell) = other.any_bell(LONG).unwrap();
    assert_eq!((peer, bell.number, bell.owner), (from, 7, Owner(1)));
    // As many as may wait, in order; then it is full, until they are taken.
    let rung = (0..300_u16).take_while(|number| one.ring(to, 5 + number % 5) == Some(Ok(()))).count();
    assert!((192..=256).contains(&rung), "{rung}");
    assert_eq!(one.ring(to, 5), Some(Err(Full::Queue)));
    for number in 0..rung as u16 {
        assert_eq!(other.any_bell(LONG).unwrap().1.number, 5 + number % 5);
    }
    while one.ring(to, 9) != Some(Ok(())) {
        one.progress();
        assert!(begin.elapsed() < LONG);
    }
    assert_eq!(other.any_bell(LONG).unwrap().1.number, 9);
    let (mut ringer, mut hearer) = (one.doorbells_to(to).unwrap(), other.doorbells_from(from).unwrap());
    assert!(one.doorbells_to(to).is_none() && other.doorbells_from(from).is_none(), "each is the only one");
    assert_eq!((one.ring(to, 7), one.ring_once(to, 7)), (Some(Err(Full::Lent)), Some(Err(Full::Lent))));
    assert_eq!((ringer.ring(8), ringer.ring_once(5)), (Some(Ok(())), Some(Ok(Sent::Rung))));
    assert!(other.any_bell(Duration::from_millis(50)).is_none() && other.bell(from) == Ok(None));
    for number in [8, 5] {
        let heard = std::iter::repeat_with(|| hearer.take().unwrap()).flatten().next();
        assert_eq!(heard, Some(Bell { number, owner: Owner(1) }));
    }
    ringer.ring(6).unwrap().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    // What waits is the endpoint's, and who sleeps is woken.
    std::thread::scope(|scope| {
        let heard = scope.spawn(|| other.any_bell(LONG).unwrap().1.number);
        std::thread::sleep(Duration::from_millis(50));
        drop(hearer);
        assert_eq!(heard.join().unwrap(), 6);
    });
    drop(ringer);
    assert_eq!(one.ring(to, 7), Some(Ok(())));
    assert_eq!(other.any_bell(LONG).unwrap().1.number, 7);
    // Who has claimed before he is called is known from the beginning.
    one.claim(3..=3, Owner(2)).unwrap();
    while other.ring_once(from, 3).is_some_and(|rung| rung.is_err()) {
        other.progress();
        assert!(begin.elapsed() < LONG);
    }
    assert_eq!(one.any_bell(LONG).unwrap().1.number, 3);
    other.release(Owner(1));
    while one.ring(to, 7) != Some(Err(Full::Unwanted)) {
        one.progress();
        assert!(begin.elapsed() < LONG);
    }
}

/// Who is called by which name, and what is said when nobody is.
#[test]
fn names_are_found_on_the_wire() {
    let soon = Duration::from_millis(300);
    let wires = Wires::new();
    let (one, other) = ends(&wires, "names", Limits::default(), (1, ""));
    let whole = name("names");
    // The same process has the name on this host as well: that is another endpoint of the same memory.
    let user = rustix::process::geteuid().as_raw();
    for wrong in [format!("c:{whole}"), format!("b:{}/{whole}", user + 1), "b:nobody".to_owned()] {
        assert!(matches!(one.connect(&wrong, soon), Err(Error::Nobody(_))), "{wrong}");
    }
    for wrong in ["b:", "b:a b", "a b:c", "b:x:y"] {
        assert!(matches!(one.connect(wrong, soon), Err(Error::Name(_))), "{wrong}");
    }
    assert!(matches!(Endpoint::nameless().unwrap().connect(&format!("b:{whole}"), soon), Err(Error::NoRail(_))));
    let to = one.connect(&format!("b:{user}/{whole}"), LONG).unwrap();
    // There is one connection between two ends.
    assert_eq!(one.connect(&format!("b:{whole}"), LONG).unwrap(), to);
    // Who has no name is not called, but called back over what there is.
    let from = other.accept(LONG).unwrap();
    one.leave(to);
    assert_eq!(other.event(LONG), Some(Event::Lost(from, None)));
    let again = one.connect(&format!("b:{whole}"), LONG).unwrap();
    assert!(again != to && other.accept(LONG).is_some());
    // A rail that there cannot be.
    let rails = vec![slurpoe::Config { port: Some("nonsense:".to_owned()), ..slurpoe::Config::default() }];
    assert!(matches!(Endpoint::with(Config { rails, ..Config::default() }), Err(Error::Rail(0, _))));
}

/// A caller whose patience is over while the other end lets it in waits for that: the other end has nobody who has gone at once.
#[test]
fn who_has_little_patience_leaves_no_ghosts() {
    for round in 0..4 {
        let (wires, what) = (Wires::new(), format!("hasty-{round}"));
        let (one, other) = ends(&wires, &what, Limits::default(), (1, ""));
        let whole = format!("b:{}", name(&what));
        // Of these, some end while the answers are gathered, some while this end greets.
        let patience = (0..).map(|turn| Duration::from_millis(19 + round + turn % 8));
        let calls = patience.take(1000).find_map(|patience| one.connect(&whole, patience).ok());
        let from = other.accept(LONG).expect("it is connected");
        assert_eq!(other.event(Duration::from_millis(200)), None, "the first one that has come has gone");
        assert!(calls.is_some() && other.who(from).is_some());
    }
}

/// Sends messages of random sizes and tags from one end to the other, and looks at what comes: for each tag in order, each once, as it was.
fn exchange(from: &Endpoint, to: Peer, into: &Endpoint, whose: Peer, (count, mut seed): (u64, u64)) {
    let mut draw = |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % most
    };
    let programs: Vec<(u64, usize)> = (0..count)
        .map(|_| {
            let most = [64, 1400, 5000, 300_000][draw(4) as usize];
            (draw(3), draw(most) as usize)
        })
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = std::collections::VecDeque::new();
            for (number, (tag, len)) in programs.iter().enumerate() {
                open.push_back(from.send(to, Tag(*tag), bytes(number as u64, *len)).unwrap());
                if open.len() > 8 {
                    let sent = from.wait(open.pop_front().unwrap(), LONG).expect("it is sent");
                    assert_eq!(sent.outcome, Outcome::Sent);
                }
            }
            for open in open {
                assert_eq!(from.wait(open, LONG).expect("it is sent").outcome, Outcome::Sent);
            }
        });
        for tag in 0..3 {
            let programs = &programs;
            scope.spawn(move || {
                for (number, (_, len)) in programs.iter().enumerate().filter(|(_, program)| program.0 == tag) {
                    let wanted = into.receive(Some(whose), Tag(tag), u64::MAX, vec![0; 300_000]).unwrap();
                    let came = into.wait(wanted, LONG).expect("it comes");
                    assert_eq!((came.outcome, came.buffer.len()), (received(whose, &came.outcome, tag, *len), *len));
                    assert!(came.buffer == bytes(number as u64, *len), "message {number} is another one");
                }
            });
        }
    });
}

fn received(_: Peer, found: &Outcome, tag: u64, len: usize) -> Outcome {
    let Outcome::Received { pair, .. } = *found else { panic!("{found:?}") };
    Outcome::Received { pair, tag: Tag(tag), len: len as u64 }
}

#[test]
fn several_rails_are_used_together() {
    let (_wires, one, other, to, from) = pair("rails", Limits::default(), (2, ""));
    let begin = Instant::now();
    while [&one, &other].iter().any(|end| end.between_hosts().unwrap().paths_begun < 1) {
        assert!(begin.elapsed() < LONG);
        one.progress();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(&one, to, &other, from, (300, 1)));
        scope.spawn(|| exchange(&other, from, &one, to, (300, 2)));
    });
    for end in [&one, &other] {
        let counters = end.between_hosts().unwrap();
        assert!(counters.written.iter().all(|bytes| *bytes > 1 << 20), "{counters:?}");
        assert_eq!((counters.paths_lost, counters.doubled, end.in_use()), (0, 0, (0, 0)));
    }
}

/// Frames are lost, doubled, put in another order and spoilt: nothing comes wrong, or twice.
#[test]
fn a_bad_wire_is_not_noticed() {
    let around = "fault:loss=0.3%,duplicate=1%,reorder=1%,seed=7";
    let few = Limits { mtu: 8192, smbs: 4, rmbs: 4, slots: 3, credits: 8, ..Limits::default() };
    let (_wires, one, other, to, from) = pair("faults", few, (2, around));
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(&one, to, &other, from, (60, 3)));
        scope.spawn(|| exchange(&other, from, &one, to, (60, 4)));
    });
    assert_eq!((one.in_use(), other.in_use()), ((0, 0), (0, 0)));
}

/// Who is one too many is told so, as often as he asks, and is let in when there is a place.
#[test]
fn who_is_one_too_many_is_refused_by_name() {
    let wires = Wires::new();
    let open = |name, host: &str, peers, rails| {
        Endpoint::with(Config { name, peers, host: Some(host.to_owned()), rails, ..Config::default() }).unwrap()
    };
    let called = open(Some(name("full")), "b", 1, vec![wires.rail(0, 1, ""), wires.rail(1, 1, "")]);
    let first = open(None, "a", 8, vec![wires.rail(0, 129, "")]);
    let second = open(None, "c", 8, vec![wires.rail(1, 129, "")]);
    let whole = format!("b:{}", name("full"));
    first.connect(&whole, LONG).unwrap();
    let from = called.accept(LONG).unwrap();
    for _ in 0..3 {
        let refused = second.connect(&whole, LONG);
        assert!(matches!(refused, Err(Error::Refused(_, Refusal::Full))), "{refused:?}");
    }
    drop(first);
    assert_eq!(called.event(LONG), Some(Event::Lost(from, None)));
    called.leave(from);
    let begin = Instant::now();
    while second.connect(&whole, LONG).is_err() {
        assert!(begin.elapsed() < LONG);
    }
    assert!(called.accept(LONG).is_some());
}
