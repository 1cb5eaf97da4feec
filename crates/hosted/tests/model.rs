//! Random programs at a card, beside a naive model: what is sent comes, once, in order, to whom the model says, with the bytes that it had; and
//! everything ends, whoever dies.

use crate::{Card, PATIENCE, bytes};
use millrace_message::endpoint::Peer;
use millrace_message::engine::{Cancel, Outcome};
use millrace_message::hosted::{Config, Endpoint, Memory};
use millrace_message::{Request, Tag};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

const ENDS: usize = 3;
/// Room of a receive: more than any message has.
const ROOM: usize = 20_000;

#[derive(Clone, Debug)]
enum Turn {
    Send { from: usize, to: usize, tag: u64, len: usize, block: bool },
    Receive { end: usize, from: Option<usize>, tag: u64, mask: u64, room: usize, block: bool },
    Cancel { end: usize, which: usize },
    Look { end: usize },
    Pause,
}

fn turn() -> impl Strategy<Value = Turn> {
    let len = prop_oneof![Just(0usize), 1usize..50, 1300usize..1340, 4000usize..ROOM];
    let room = prop_oneof![4 => Just(ROOM), 1 => 0usize..2000];
    let mask = prop_oneof![2 => Just(u64::MAX), 1 => Just(0u64), 1 => Just(1u64)];
    prop_oneof![
        6 => (0..ENDS, 0..ENDS, 0u64..3, len, any::<bool>())
            .prop_map(|(from, to, tag, len, block)| Turn::Send { from, to, tag, len, block }),
        6 => (0..ENDS, prop::option::of(0..ENDS), 0u64..3, mask, room, any::<bool>())
            .prop_map(|(end, from, tag, mask, room, block)| Turn::Receive { end, from, tag, mask, room, block }),
        1 => (0..ENDS, 0usize..50).prop_map(|(end, which)| Turn::Cancel { end, which }),
        3 => (0..ENDS).prop_map(|end| Turn::Look { end }),
        1 => Just(Turn::Pause),
    ]
}

#[derive(Clone, Debug)]
struct Program {
    turns: Vec<Turn>,
    killed: Option<(usize, usize)>,
}

fn program() -> impl Strategy<Value = Program> {
    let killed = prop::option::weighted(0.3, (0usize..40, 0..ENDS));
    (prop::collection::vec(turn(), 5..60), killed).prop_map(|(turns, killed)| Program { turns, killed })
}

/// A message that was sent, by its number.
#[derive(Clone, Debug)]
struct Sent {
    from: usize,
    to: usize,
    tag: u64,
    bytes: Vec<u8>,
    cancelled: bool,
}

/// A receive that was posted.
#[derive(Clone, Debug)]
struct Wanted {
    from: Option<usize>,
    tag: u64,
    mask: u64,
}

#[derive(Clone, Debug)]
enum Open {
    Send(usize),
    Receive(Wanted),
}

struct End {
    endpoint: Option<Endpoint>,
    peers: HashMap<usize, Peer>,
    open: HashMap<Request, Open>,
    order: VecDeque<Request>,
    /// Messages that came, in the order in which their receives were posted.
    came: Vec<(u64, Wanted, usize)>,
    posted: HashMap<Request, u64>,
}

struct World {
    ends: Vec<End>,
    sent: Vec<Sent>,
    turn: u64,
    has_died: bool,
}

fn world(card: &Card) -> World {
    let mut endpoints: Vec<Endpoint> = (0..ENDS)
        .map(|at| {
            let config = Config { name: Some(format!("end-{at}")), pool: 4 << 20, ..Config::default() };
            Endpoint::open(&card.path, config).unwrap()
        })
        .collect();
    let mut peers: Vec<HashMap<usize, Peer>> = vec![HashMap::new(); ENDS];
    for one in 0..ENDS {
        for other in one..ENDS {
            let to = endpoints[one].connect(&format!("end-{other}"), PATIENCE).unwrap();
            let back = endpoints[other].accept(PATIENCE).unwrap().unwrap();
            peers[one].insert(other, to);
            // To itself a program has two.
            if one != other {
                peers[other].insert(one, back);
            }
        }
    }
    let end = |(endpoint, peers)| End {
        endpoint: Some(endpoint),
        peers,
        open: HashMap::new(),
        order: VecDeque::new(),
        came: Vec::new(),
        posted: HashMap::new(),
    };
    World { ends: endpoints.into_iter().zip(peers).map(end).collect(), sent: Vec::new(), turn: 0, has_died: false }
}

impl World {
    fn begin(&mut self, end: usize, request: Request, open: Open) {
        let end = &mut self.ends[end];
        assert!(end.open.insert(request, open).is_none(), "a number is given twice");
        end.order.push_back(request);
        self.turn += 1;
        end.posted.insert(request, self.turn);
    }

    fn memory(endpoint: &Endpoint, bytes: Vec<u8>, block: bool) -> Memory {
        match endpoint.allocate(bytes.len()).filter(|_| block) {
            Some(mut block) => {
                block.write(0, &bytes).unwrap();
                block.into()
            }
            None => bytes.into(),
        }
    }

    fn send(&mut self, (from, to): (usize, usize), tag: u64, len: usize, block: bool) {
        let number = self.sent.len();
        let peer = self.ends[from].peers[&to];
        let Some(endpoint) = &mut self.ends[from].endpoint else { return };
        let mut bytes = bytes(len, number);
        if let Some(first) = bytes.first_chunk_mut::<2>() {
            *first = (number as u16).to_le_bytes();
        }
        let memory = Self::memory(endpoint, bytes.clone(), block);
        let Ok(request) = endpoint.send(peer, Tag(tag), memory) else { return };
        self.sent.push(Sent { from, to, tag, bytes, cancelled: false });
        self.begin(from, request, Open::Send(number));
    }

    fn receive(&mut self, end: usize, wanted: Wanted, room: usize, block: bool) {
        let from = wanted.from.map(|from| self.ends[end].peers[&from]);
        let Some(endpoint) = &mut self.ends[end].endpoint else { return };
        let memory = Self::memory(endpoint, vec![0; room], block);
        let Ok(request) = endpoint.receive(from, Tag(wanted.tag), wanted.mask, memory) else { return };
        self.begin(end, request, Open::Receive(wanted));
    }

    /// Takes what has ended.
    fn look(&mut self, at: usize, patience: Duration) -> Result<bool, TestCaseError> {
        let Some(endpoint) = &mut self.ends[at].endpoint else { return Ok(false) };
        let Some(ended) = endpoint.next(patience).unwrap() else { return Ok(false) };
        let end = &mut self.ends[at];
        let Some(open) = end.open.remove(&ended.request) else {
            return Err(TestCaseError::fail("it has ended twice"));
        };
        let posted = end.posted[&ended.request];
        match (open, ended.outcome) {
            (Open::Receive(wanted), Outcome::Received { tag, len, .. }) => {
                let from = end.peers.iter().find(|(_, peer)| Some(**peer) == ended.from).map(|(from, _)| *from);
                // Of itself it is the other one of its two.
                let from = from.unwrap_or(at);
                let bytes = ended.memory.to_vec();
                let bytes = &bytes[..len as usize];
                let fits = |sent: &&(usize, &Sent)| {
                    sent.1.from == from && sent.1.to == at && sent.1.bytes == bytes && sent.1.tag == tag.0
                };
                let all: Vec<(usize, &Sent)> = self.sent.iter().enumerate().collect();
                let known: Vec<usize> = end.came.iter().map(|(.., number)| *number).collect();
                let found = all.iter().filter(fits).find(|(number, _)| !known.contains(number));
                let Some((number, _)) = found else {
                    return Err(TestCaseError::fail(format!("{len} bytes came that nobody has sent, or twice")));
                };
                prop_assert!(
                    (tag.0 ^ wanted.tag) & wanted.mask == 0 && wanted.from.is_none_or(|wanted| wanted == from)
                );
                prop_assert!(!self.sent[*number].cancelled, "it was cancelled");
                end.came.push((posted, wanted, *number));
            }
            (Open::Send(_), Outcome::Sent | Outcome::TooLong { .. }) | (Open::Receive(_), Outcome::TooLong { .. }) => {}
            (Open::Send(number), Outcome::Cancelled) => self.sent[number].cancelled = true,
            (Open::Receive(_), Outcome::Cancelled) => {}
            (_, Outcome::Lost) => prop_assert!(self.has_died, "nobody has gone"),
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        }
        Ok(true)
    }

    /// Everything that is on its way ends: those who live want all that was sent.
    fn quiesce(&mut self) -> Result<(), TestCaseError> {
        let begin = Instant::now();
        let any = Wanted { from: None, tag: 0, mask: 0 };
        loop {
            let mut has_moved = false;
            for at in 0..ENDS {
                while self.look(at, Duration::ZERO)? {
                    has_moved = true;
                }
                let is_wanted = self.ends[at]
                    .open
                    .values()
                    .any(|open| matches!(open, Open::Receive(wanted) if wanted.mask == 0 && wanted.from.is_none()));
                if !is_wanted {
                    self.receive(at, any.clone(), ROOM, true);
                }
            }
            let sends = self.ends.iter().filter(|end| end.endpoint.is_some());
            let sends = sends.flat_map(|end| end.open.values()).filter(|open| matches!(open, Open::Send(_))).count();
            if sends == 0 && !has_moved {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                return Err(TestCaseError::fail(format!("{sends} messages are stuck")));
            }
        }
    }

    /// Messages of one sender that fit the same receives come in order.
    fn check_order(&mut self) -> Result<(), TestCaseError> {
        for end in &mut self.ends {
            end.came.sort_by_key(|(posted, ..)| *posted);
            for (at, (_, one, first)) in end.came.iter().enumerate() {
                for (_, _, second) in &end.came[at + 1..] {
                    let [first, second] = [*first, *second].map(|number| (number, &self.sent[number]));
                    // The receive that was posted first would have taken the other one, had that come first.
                    let fits = (second.1.tag ^ one.tag) & one.mask == 0;
                    if first.1.from == second.1.from && fits {
                        prop_assert!(first.0 < second.0, "{first:?} came before {second:?}");
                    }
                }
            }
        }
        Ok(())
    }
}

fn check(card: &Card, program: &Program) -> Result<(), TestCaseError> {
    let mut world = world(card);
    for (at, turn) in program.turns.iter().enumerate() {
        if let Some((_, end)) = program.killed.filter(|killed| killed.0 == at) {
            world.has_died = true;
            world.ends[end].endpoint = None;
        }
        match *turn {
            Turn::Send { from, to, tag, len, block } => world.send((from, to), tag, len, block),
            Turn::Receive { end, from, tag, mask, room, block } => {
                world.receive(end, Wanted { from, tag, mask }, room, block);
            }
            Turn::Cancel { end, which } => {
                let End { endpoint: Some(endpoint), open, order, .. } = &mut world.ends[end] else { continue };
                let open: Vec<Request> = order.iter().filter(|request| open.contains_key(request)).copied().collect();
                if let Some(request) = open.get(which) {
                    match endpoint.cancel(*request) {
                        Ok(Cancel::Done | Cancel::Asked | Cancel::TooLate)
                        | Err(millrace_message::hosted::Error::Lost) => {}
                        Err(error) => return Err(TestCaseError::fail(error.to_string())),
                    }
                }
            }
            Turn::Look { end } => drop(world.look(end, Duration::ZERO)?),
            Turn::Pause => std::thread::sleep(Duration::from_micros(200)),
        }
    }
    world.quiesce()?;
    world.check_order()?;
    if !world.has_died {
        // Each message came, was too long for somebody, or was cancelled.
        let came: usize = world.ends.iter().map(|end| end.came.len()).sum();
        prop_assert!(came <= world.sent.len());
    }
    Ok(())
}

/// Programs that are always the same ones.
#[test]
fn random_programs_do_what_the_model_says() {
    let card = Card::new();
    let config =
        ProptestConfig { cases: 300, failure_persistence: None, max_shrink_iters: 2000, ..ProptestConfig::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    runner.run(&program(), |program| check(&card, &program)).unwrap();
}
