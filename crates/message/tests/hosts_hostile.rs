//! Somebody on the wire who says what no endpoint says: he is lost by name, and nobody else notices.

use crate::hosts::{Wires, bytes, name};
use millrace_message::control::{Control, Message, Origin, Tag};
use millrace_message::endpoint::{Config, Endpoint, Event, Peer};
use millrace_message::engine::{Breach, Outcome};
use millrace_slurpoe::{Access, Address, Completion, Kind, Notify, Region, Transfer};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);
/// When the stranger says once more what has not arrived.
const AGAIN: Duration = Duration::from_millis(200);
const VICTIM: Address = Address([2, 0, 0, 0, 1, 1]);

/// One who speaks the RDMA engine's language, and knows how records look.
struct Stranger {
    end: millrace_slurpoe::Endpoint,
    memory: Region,
    /// Which opening of an endpoint the victim is.
    id: u64,
    pair: u64,
    number: u32,
}

fn item(kind: u64, count: usize, value: u32) -> u64 {
    count as u64 | kind << 16 | u64::from(value) << 32
}

fn control(control: Control) -> Vec<u64> {
    let (words, count) = control.encode();
    [&[item(1, count, 0)], &words[..count]].concat()
}

impl Stranger {
    fn new(wires: &Wires, called: &str) -> Self {
        let end = millrace_slurpoe::Endpoint::open(&wires.rail(1, 129, "")).unwrap();
        let memory = end.allocate(64 << 10, Access::LOCAL).unwrap();
        let mut question = b"MRQ1".to_vec();
        question.extend([called.len() as u8, 0, 0, 0]);
        question.extend([7; 8]);
        question.extend([0xff; 4]);
        question.extend(called.as_bytes());
        let begin = Instant::now();
        let answer = loop {
            assert!(begin.elapsed() < LONG, "nobody answers");
            end.tell(None, &question).unwrap();
            std::thread::sleep(Duration::from_millis(5));
            end.progress();
            if let Some(told) = end.told() {
                break told;
            }
        };
        assert_eq!((&answer.bytes[..4], answer.from), (&b"MRA1"[..], VICTIM));
        let id = u64::from_le_bytes(answer.bytes[20..28].try_into().unwrap());
        Self { end, memory, id, pair: 0, number: 0 }
    }

    fn connect(&mut self) {
        self.end.disconnect(VICTIM);
        // Whoever was hung up on may be hung up on once more, because of what he has said last.
        let begin = Instant::now();
        while self.end.connect(VICTIM, LONG).is_err() {
            assert!(begin.elapsed() < LONG);
        }
        (self.pair, self.number) = (self.pair + 1, 0);
    }

    /// Says a record. Whether it was taken.
    fn say(&self, words: &[u64]) -> bool {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.memory.store(0, &bytes).unwrap();
        let part = self.memory.part(0, bytes.len() as u32).unwrap();
        if self.end.post(VICTIM, &[Transfer::send(part)], 1, Notify::Poll).is_err() {
            return false;
        }
        loop {
            let end = self.end.wait(LONG).expect("it ends");
            if end.kind == Kind::Send {
                return end.failed.is_none();
            }
        }
    }

    fn said(&mut self, items: &[u64]) -> bool {
        self.number += 1;
        self.say(&[&[0x0801_524d | u64::from(self.number - 1) << 32], items].concat())
    }

    fn hello(&mut self, terms: u64, key: u32) {
        self.connect();
        self.memory.store(4096, &[0; 4096]).unwrap();
        for at in 0..16 {
            let part = self.memory.part(8192 + at * 2048, 2048).unwrap();
            let _ = self.end.receive(part, 2, Notify::Poll);
        }
        let host = u64::from_le_bytes(*b"stranger");
        let head = [0x0101_524d | u64::from(key) << 32, self.pair, self.id, 1000 + self.pair, terms, 8 << 40, host];
        self.say(&head);
    }

    /// A pair with the victim, who has told its program.
    fn meet(&mut self, victim: &Endpoint, key: u32) -> Peer {
        let call = |_| {
            self.hello(TERMS, key);
            self.said(&[item(4, 0, 0)]).then(|| victim.accept(Duration::from_secs(5))).flatten()
        };
        let peer = (0..5).find_map(call).expect("it has called");
        assert_eq!(victim.who(peer).unwrap().host.as_deref(), Some("stranger"));
        peer
    }

    /// Forgets what has ended here.
    fn forget(&self) {
        let mut ended = [Completion::default(); 64];
        while self.end.poll(&mut ended) > 0 {}
    }
}

/// 8 buffers of 64 KiB, 64 credits.
const TERMS: u64 = 0x0001_0000_0040_0008;

struct Three {
    _wires: Wires,
    victim: Endpoint,
    stranger: Stranger,
    honest: Endpoint,
    to: Peer,
    from: Peer,
}

fn three(what: &str) -> Three {
    let (wires, name) = (Wires::new(), name(what));
    let config = |name, rails| Config { name, rails, ..Config::default() };
    let victim = Endpoint::with(config(Some(name.clone()), wires.rails(2, 1, ""))).unwrap();
    let honest =
        Endpoint::with(Config { host: Some("a".into()), ..config(None, vec![wires.rail(0, 129, "")]) }).unwrap();
    // That of this host is not meant.
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let to = honest.connect(&format!("{host}:{name}"), LONG).unwrap();
    let from = victim.accept(LONG).unwrap();
    let stranger = Stranger::new(&wires, &name);
    Three { _wires: wires, victim, stranger, honest, to, from }
}

impl Three {
    /// What the stranger does is counted as strange. He does it once more if the victim has hung up on him late, because of what he said before: then nothing of
    /// it arrives.
    fn is_strange(&mut self, what: &str, does: impl Fn(&mut Stranger)) {
        let strange = |victim: &Endpoint| victim.between_hosts().unwrap().strange;
        let (begin, before) = (Instant::now(), strange(&self.victim));
        loop {
            does(&mut self.stranger);
            let done = Instant::now();
            while done.elapsed() < AGAIN {
                self.victim.progress();
                if strange(&self.victim) > before {
                    return self.stranger.forget();
                }
                std::thread::yield_now();
            }
            assert!(begin.elapsed() < LONG, "{what} is not counted");
        }
    }

    /// The other pair goes on.
    fn works(&self, number: u64) {
        let sent = self.honest.send(self.to, Tag(9), bytes(number, 100_000)).unwrap();
        let wanted = self.victim.receive(Some(self.from), Tag(9), u64::MAX, vec![0; 100_000]).unwrap();
        assert!(self.victim.wait(wanted, LONG).expect("it comes").buffer == bytes(number, 100_000));
        assert_eq!(self.honest.wait(sent, LONG).unwrap().outcome, Outcome::Sent);
    }

    fn is_lost(&self, peer: Peer, breach: Breach, what: &str) {
        assert_eq!(self.victim.event(LONG), Some(Event::Lost(peer, Some(breach))), "{what}");
        self.stranger.forget();
    }
}

#[test]
fn who_says_what_nobody_says_is_lost_by_name() {
    let mut three = three("hostile");
    let message = Message(3);
    let bells: Vec<u64> = (0..255).map(|_| item(2, 0, 7)).collect();
    let cases: [(&str, Breach, Vec<Vec<u64>>); 9] = [
        ("an item that is none", Breach::Nonsense, vec![vec![item(9, 0, 0)]]),
        ("an item that is cut off", Breach::Nonsense, vec![vec![item(1, 5, 0), 1]]),
        ("words of no control", Breach::Nonsense, vec![vec![item(1, 1, 0), 99]]),
        ("doorbells without end", Breach::Flood, vec![bells.clone(), bells]),
        ("doorbells that were not rung", Breach::Credit, vec![vec![item(3, 0, 5)]]),
        ("ranges in no order", Breach::Nonsense, vec![vec![item(4, 1, 0), 5 | 6 << 16 | 5 << 32 | 6 << 48]]),
        ("a grant for no message", Breach::Grant, vec![control(Control::Grant(message, 0))]),
        ("bytes for no grant", Breach::Done, vec![control(Control::Done(message, 0))]),
        ("credits for nothing", Breach::Credit, vec![control(Control::Credit(1))]),
    ];
    for (number, (what, breach, records)) in cases.into_iter().enumerate() {
        let peer = three.stranger.meet(&three.victim, 1);
        for items in &records {
            three.stranger.said(items);
        }
        three.is_lost(peer, breach, what);
        three.works(number as u64);
    }
    let peer = three.stranger.meet(&three.victim, 1);
    three.stranger.number += 1;
    three.stranger.said(&[item(2, 0, 1)]);
    three.is_lost(peer, Breach::Nonsense, "a number that is left out");
    let peer = three.stranger.meet(&three.victim, 1);
    while three.stranger.say(&[0x0701_524d]) {}
    three.is_lost(peer, Breach::Rings, "signs of life without end");
    let peer = three.stranger.meet(&three.victim, 1);
    three.stranger.say(&[0x0601_524d | 1 << 32, 77]);
    three.is_lost(peer, Breach::Nonsense, "it has what was not said");
    // A buffer that is granted, and whose key does not open it.
    let peer = three.stranger.meet(&three.victim, 0xdead_beef);
    let sent = three.victim.send(peer, Tag(1), vec![1; 100_000]).unwrap();
    three.stranger.said(&control(Control::Grant(Message(0), 0)));
    three.is_lost(peer, Breach::Grant, "a wrong key");
    assert_eq!(three.victim.wait(sent, LONG).unwrap().outcome, Outcome::Lost);
    // A message that is said to lie in memory of the sender's process, or in a file: between hosts there is none, and it is to come by buffers.
    for key in [0, 5] {
        let peer = three.stranger.meet(&three.victim, 1);
        let held = three.victim.receive_held(Some(peer), Tag(4), 0, vec![0; 8192]).unwrap();
        let direct = Some(Origin { key, address: 0x1000 });
        three.stranger.said(&control(Control::Request { message, tag: Tag(4), len: 5000, direct, ahead: true }));
        let begin = Instant::now();
        while three.victim.in_use() != (0, 1) {
            three.victim.progress();
            assert!(begin.elapsed() < LONG, "nothing is granted");
        }
        three.stranger.end.disconnect(VICTIM);
        assert_eq!(three.victim.event(LONG), Some(Event::Lost(peer, None)));
        assert_eq!(three.victim.wait(held, LONG).unwrap().outcome, Outcome::Lost);
    }
    three.works(100);
    assert_eq!(three.victim.in_use(), (0, 0));
}

/// Strangers who are no endpoints take no place, and nobody hears of them.
#[test]
fn who_does_not_greet_is_hung_up_on() {
    let mut three = three("strangers");
    let mut seed = 5_u64;
    for round in 0..40 {
        let mut words: Vec<u64> = Vec::new();
        for _ in 0..1 + round % 12 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            words.push(if round % 3 == 0 { seed >> 60 } else { seed });
        }
        // As if it were a record.
        words[0] = words[0] & !0xff_ffff | 0x01_524d;
        three.is_strange(&format!("round {round}"), |stranger| {
            stranger.connect();
            stranger.say(&words);
        });
    }
    for terms in [0, TERMS & !0xff, TERMS & 0xffff_ffff] {
        three.is_strange("a wrong greeting", |stranger| stranger.hello(terms, 1));
    }
    // One that says something before it is a pair; and one that greets and says nothing more.
    three.is_strange("what is said too early", |stranger| {
        stranger.hello(TERMS, 1);
        stranger.said(&control(Control::Credit(0)));
    });
    three.stranger.hello(TERMS, 1);
    three.works(1);
    assert_eq!(three.victim.event(Duration::ZERO), None);
    let peer = three.stranger.meet(&three.victim, 1);
    three.victim.leave(peer);
    three.works(2);
}
