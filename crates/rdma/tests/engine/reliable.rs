//! Reliable connections: whatever the link does, each message arrives once, in order, with its bytes.

use crate::common::link::{Faults, Link, Random};
use crate::common::{Pair, Wish, connected};
use millrace_rdma::engine::Options;
use millrace_rdma::number::Key;
use millrace_rdma::work::{Access, Completion, Data, Ended, Extra, Flags, Operation, Piece, Request, Status};
use proptest::prelude::*;
use std::collections::VecDeque;

/// Bytes of each region: what is sent from, received to, written to, read from, read to.
const SIZE: usize = 64 << 10;
const BUFFER: usize = 16 << 10;
const BUFFERS: usize = SIZE / BUFFER;

fn noise(random: &mut Random) -> Vec<u8> {
    (0..SIZE).map(|_| random.next() as u8).collect()
}

#[derive(Clone, Copy, Debug)]
struct Keys {
    source: Key,
    buffers: Key,
    written: Key,
    constant: Key,
    results: Key,
    counters: Key,
}

/// What is expected of a request.
#[derive(Clone, Debug)]
struct Wanted {
    id: u64,
    ended: Ended,
    signaled: bool,
    /// Where in the results, and what must be there.
    result: Option<(usize, Vec<u8>)>,
}

/// One direction: what one end asks of the other.
struct Side {
    at: usize,
    pair: Pair,
    keys: Keys,
    peer: Keys,
    left: VecDeque<(u8, u32)>,
    posted: VecDeque<Wanted>,
    next_id: u64,
    /// Bytes that are in the source, and that the other end has.
    source: Vec<u8>,
    constant: Vec<u8>,
    /// What the memory that is written to has to be.
    written: Vec<u8>,
    counters: [u64; 8],
    /// Messages that come to buffers of the other end.
    messages: VecDeque<(Vec<u8>, Extra, Ended)>,
    /// Buffers posted to its own receive queue and not filled; and how many are held back.
    buffers: VecDeque<(u64, usize)>,
    free: Vec<usize>,
}

impl Side {
    fn source_at(&self, random: &mut Random, len: usize) -> usize {
        random.below((SIZE - len) as u64 + 1) as usize
    }

    /// Posts requests as long as there is room.
    fn post(&mut self, link: &mut Link, random: &mut Random) {
        while let Some(&(kind, len)) = self.left.front() {
            if self.posted.len() >= 30 {
                return;
            }
            let mut len = (len as usize).min(BUFFER);
            let at = self.source_at(random, len);
            let bytes = self.source[at..at + len].to_vec();
            let half = len / 2;
            let mut pieces = vec![
                Piece { address: 0x1000 + at as u64, len: half as u32, lkey: self.keys.source },
                Piece { address: 0x1000 + (at + half) as u64, len: (len - half) as u32, lkey: self.keys.source },
            ];
            let to = random.below((SIZE - len) as u64 + 1);
            let slot = (self.next_id % 64) as usize * 1024;
            let mut result = None;
            let counter = random.below(8) as usize;
            let immediate = (random.next() as u32).to_be_bytes();
            let mut message = None;
            let operation = match kind % 8 {
                0 => {
                    message = Some((bytes.clone(), Extra::None, Ended::Receive));
                    Operation::Send
                }
                1 => {
                    message = Some((bytes.clone(), Extra::Immediate(immediate), Ended::Receive));
                    Operation::SendImmediate(immediate)
                }
                2 | 3 => {
                    self.written[to as usize..][..len].copy_from_slice(&bytes);
                    Operation::Write { address: 0x1000 + to, rkey: self.peer.written, immediate: None }
                }
                4 => {
                    self.written[to as usize..][..len].copy_from_slice(&bytes);
                    // Only how long it is can be seen: later messages may have been written over it.
                    message = Some((vec![0; len], Extra::Immediate(immediate), Ended::ReceiveWrite));
                    let immediate = Some(immediate);
                    Operation::Write { address: 0x1000 + to, rkey: self.peer.written, immediate }
                }
                5 => {
                    len = len.min(1024);
                    let from = random.below((SIZE - len) as u64 + 1);
                    pieces = vec![Piece { address: 0x1000 + slot as u64, len: len as u32, lkey: self.keys.results }];
                    result = Some((slot, self.constant[from as usize..][..len].to_vec()));
                    Operation::Read { address: 0x1000 + from, rkey: self.peer.constant }
                }
                which => {
                    pieces = vec![Piece { address: 0x1000 + slot as u64, len: 8, lkey: self.keys.results }];
                    let address = 0x1000 + 8 * counter as u64;
                    let found = self.counters[counter];
                    result = Some((slot, found.to_ne_bytes().to_vec()));
                    let rkey = self.peer.counters;
                    if which == 6 {
                        let add = random.next();
                        self.counters[counter] = found.wrapping_add(add);
                        Operation::FetchAdd { address, rkey, add }
                    } else {
                        let compare = if random.below(2) == 0 { found } else { found ^ 1 };
                        let swap = random.next();
                        if compare == found {
                            self.counters[counter] = swap;
                        }
                        Operation::CompareSwap { address, rkey, compare, swap }
                    }
                }
            };
            let signaled = result.is_some() || random.below(3) == 0 || self.left.len() == 1 || self.posted.len() > 20;
            let flags = Flags { signaled, solicited: random.below(2) == 0, fence: random.below(8) == 0 };
            let parts = [&bytes[..half], &bytes[half..]];
            let inline = operation.sends() && len <= 256 && random.below(2) == 0;
            let data = if inline { Data::Inline(&parts) } else { Data::Pieces(&pieces) };
            let request = Request { id: self.next_id, operation, data, flags, target: None };
            if link.ends[self.at].engine.post_send(self.pair.qpn, &request).is_err() {
                panic!("at most 30 wait for completions, and there is room for 64 requests");
            }
            self.posted.push_back(Wanted { id: self.next_id, ended: operation.ended(), signaled, result });
            self.messages.extend(message);
            self.next_id += 1;
            self.left.pop_front();
        }
    }

    /// Posts a buffer now and then, so that there is often none.
    fn post_buffers(&mut self, link: &mut Link, random: &mut Random) {
        while random.below(4) != 0
            && let Some(place) = self.free.pop()
        {
            let id = 0x1_0000 + place as u64;
            let piece =
                [Piece { address: 0x1000 + (place * BUFFER) as u64, len: BUFFER as u32, lkey: self.keys.buffers }];
            link.ends[self.at].engine.post_receive(self.pair.qpn, id, &piece).unwrap();
            self.buffers.push_back((id, place));
        }
    }

    fn ended(&mut self, link: &mut Link, line: &Completion) {
        assert_eq!(line.status, Status::Success, "{line:?}");
        loop {
            let wanted = self.posted.pop_front().expect("nothing ends that was not posted");
            if wanted.signaled {
                assert_eq!((line.id, line.ended), (wanted.id, wanted.ended));
            }
            if let Some((slot, bytes)) = wanted.result {
                let found = &link.ends[self.at].engine.memory().bytes(self.keys.results)[slot..][..bytes.len()];
                assert_eq!(found, bytes, "{line:?}");
                assert_eq!(line.len as usize, bytes.len());
            }
            if wanted.signaled {
                return;
            }
        }
    }
}

/// A message has come to `side` from `peer`.
fn received(side: &mut Side, peer: &mut Side, link: &mut Link, line: &Completion) {
    assert_eq!(line.status, Status::Success, "{line:?}");
    let (id, place) = side.buffers.pop_front().expect("a buffer was posted for it");
    let (bytes, extra, ended) = peer.messages.pop_front().expect("it was sent");
    assert_eq!((line.id, line.extra, line.ended, line.len as usize), (id, extra, ended, bytes.len()));
    if ended == Ended::Receive {
        let found = &link.ends[side.at].engine.memory().bytes(side.keys.buffers)[place * BUFFER..][..bytes.len()];
        assert!(found == bytes, "message {line:?} has other bytes");
    }
    side.free.push(place);
}

/// Both ends ask the other for everything in `requests`, over a link with `faults`.
#[allow(clippy::needless_range_loop, reason = "`at` says which end, of several arrays")]
pub fn exchange(options: [Options; 2], wish: &Wish, faults: Faults, seed: u64, requests: [Vec<(u8, u32)>; 2]) -> Link {
    let mut random = Random(seed ^ 0xabcd);
    let (ends, pairs) = connected(options, wish);
    let mut link = Link::new(ends, faults, seed);
    let contents = [0, 1].map(|_| [noise(&mut random), noise(&mut random)]);
    let all = Access(31);
    let keys = [0, 1].map(|at: usize| {
        let domain = pairs[at].domain;
        let memory = link.ends[at].engine.memory();
        let mut add = |bytes: Vec<u8>, access| memory.register(domain, 0x1000, bytes, access);
        Keys {
            source: add(contents[at][0].clone(), Access::default()),
            buffers: add(vec![0; SIZE], Access::LOCAL_WRITE),
            written: add(vec![0; SIZE], Access::LOCAL_WRITE.with(Access::REMOTE_WRITE)),
            constant: add(contents[at][1].clone(), Access::REMOTE_READ),
            results: add(vec![0; SIZE], Access::LOCAL_WRITE),
            counters: add(vec![0; 64], all),
        }
    });
    let mut sides = [0, 1].map(|at: usize| Side {
        at,
        pair: pairs[at],
        keys: keys[at],
        peer: keys[1 - at],
        left: requests[at].iter().copied().collect(),
        posted: VecDeque::new(),
        next_id: 0,
        source: contents[at][0].clone(),
        constant: contents[1 - at][1].clone(),
        written: vec![0; SIZE],
        counters: [0; 8],
        messages: VecDeque::new(),
        buffers: VecDeque::new(),
        free: (0..BUFFERS).collect(),
    });
    let end = 60_000_000_000;
    let mut lines = [Completion::default(); 8];
    while sides.iter().any(|side| !side.left.is_empty() || side.posted.iter().any(|wanted| wanted.signaled)) {
        for side in &mut sides {
            side.post(&mut link, &mut random);
            side.post_buffers(&mut link, &mut random);
        }
        // Eight are looked at in each round.
        let is_untold = (0..2).any(|at| link.ends[at].engine.has_completions(pairs[at].cq));
        let waits = is_untold || sides.iter().any(|side| !side.free.is_empty());
        assert!(
            link.step(end) || waits,
            "nothing happens any more at {}: {:?}",
            link.now,
            link.ends[0].engine.counters()
        );
        assert!(
            link.now < end,
            "it takes too long: {:?} {:?}",
            link.ends[0].engine.counters(),
            link.ends[1].engine.counters()
        );
        for at in 0..2 {
            let count = link.ends[at].engine.poll(pairs[at].cq, &mut lines).unwrap();
            let [a, b] = &mut sides;
            let (side, peer) = if at == 0 { (a, b) } else { (b, a) };
            for line in &lines[..count] {
                if matches!(line.ended, Ended::Receive | Ended::ReceiveWrite) {
                    received(side, peer, &mut link, line);
                } else {
                    side.ended(&mut link, line);
                }
            }
        }
    }
    // Lines of what was received last, when those of the sender came first.
    let mut rest = 0;
    for at in 0..2 {
        rest += link.ends[at].engine.poll(pairs[at].cq, &mut lines).unwrap();
        let [a, b] = &mut sides;
        let (side, peer) = if at == 0 { (a, b) } else { (b, a) };
        for line in &lines[..rest] {
            received(side, peer, &mut link, line);
        }
        rest = 0;
    }
    for at in 0..2 {
        assert!(sides[at].messages.is_empty(), "everything sent was received");
        let memory = link.ends[1 - at].engine.memory();
        assert!(*memory.bytes(keys[1 - at].written) == sides[at].written, "what was written is there");
        let counters: Vec<u8> = sides[at].counters.iter().flat_map(|counter| counter.to_ne_bytes()).collect();
        assert_eq!(*memory.bytes(keys[1 - at].counters), counters, "each atomic operation was done once");
    }
    link
}

fn faults() -> impl Strategy<Value = Faults> {
    prop_oneof![
        Just(Faults::default()),
        (0u64..150, 0u64..150, 0u64..300).prop_map(|(loss, doubled, late)| Faults { loss, doubled, late }),
    ]
}

fn len() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..20, 200u32..300, 1000u32..1100, 2000u32..9000, Just(BUFFER as u32)]
}

fn requests() -> impl Strategy<Value = Vec<(u8, u32)>> {
    prop::collection::vec((any::<u8>(), len()), 0..80)
}

fn wish() -> impl Strategy<Value = Wish> {
    (0u32..5, prop_oneof![Just(0u32), Just(0xff_fff0), any::<u32>()], 1u8..17).prop_map(|(mtu, psn, rd_atomic)| Wish {
        mtu: 256 << mtu,
        psn,
        rd_atomic,
        timeout: 6,
        ..Wish::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn everything_happens_once_and_in_order(
        faults in faults(),
        wish in wish(),
        ours in any::<[bool; 2]>(),
        window in 4u32..300,
        seed in any::<u64>(),
        a in requests(),
        b in requests(),
    ) {
        // All must come, so the link must not be so bad that it loses one packet eight times.
        let faults = Faults { loss: faults.loss.min(60), ..faults };
        let options = ours.map(|extended| Options { extended, window, ..Options::default() });
        exchange(options, &wish, faults, seed, [a, b]);
    }
}

#[test]
fn numbers_come_round() {
    let requests: Vec<_> = (0..200).map(|at| (at as u8, 3000)).collect();
    for extended in [false, true] {
        let options = Options { extended, ..Options::default() };
        let wish = Wish { psn: 0xff_fff0, mtu: 256, ..Wish::default() };
        let faults = Faults { loss: 10, doubled: 10, late: 50 };
        let link = exchange([options; 2], &wish, faults, 7, [requests.clone(), requests.clone()]);
        let counters = link.ends[0].engine.counters();
        assert!(counters.repeated > 0 && counters.duplicate > 0, "{counters:?}");
        assert_eq!(counters.kept > 0, extended, "selective repeat is between ends of our kind only: {counters:?}");
    }
}

#[test]
fn a_stranger_gets_nothing_that_is_ours() {
    let requests: Vec<_> = (0..100).map(|at| (at as u8, 3000)).collect();
    let options = [Options::default(), Options { extended: false, ..Options::default() }];
    let faults = Faults { loss: 20, ..Faults::default() };
    let link = exchange(options, &Wish::default(), faults, 3, [requests.clone(), requests]);
    assert_eq!(link.ends[0].engine.counters().kept, 0);
    assert_eq!(link.ends[1].engine.counters().kept, 0);
    // Nor the bit of a header that others have reserved, once it is known for one.
    assert_eq!(link.says_so, [0, 0]);
}

#[test]
fn ends_of_ours_say_so_in_each_packet() {
    let requests: Vec<_> = (0..100).map(|at| (at as u8, 3000)).collect();
    let link = exchange([Options::default(); 2], &Wish::default(), Faults::default(), 3, [requests.clone(), requests]);
    assert!(link.says_so.iter().all(|count| *count > 100), "{:?}", link.says_so);
}
