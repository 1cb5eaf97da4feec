//! Endpoints with memory and wires between them, in one thread: every step is a move that a test chooses.

use millrace_message::Scheme;
use millrace_message::control::{Control, Message, Origin, Tag};
use millrace_message::engine::{
    Action, Arrived, Cancel, Completion, Delivery, Engine, Limits, Outcome, Outgoing, PairId, RequestId, Source, Way,
    Work,
};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

pub type End = usize;

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// An end puts the next thing it has to say to another one on the wire.
    Say(End, End),
    /// An end hears what comes next from another one.
    Hear(End, End),
    /// An end does one of its actions.
    Act(End, usize),
    /// An end gives back one of the messages that it holds.
    Release(End, usize),
}

/// A message, as the world knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub from: End,
    pub to: End,
    pub tag: Tag,
    pub bytes: Vec<u8>,
}

/// What the program of an end has been told.
#[derive(Clone, Debug)]
pub struct Told {
    pub is_send: bool,
    /// Of sends, in the order of `World::sent`; of receives, in that of `World::posted`.
    pub number: usize,
    pub outcome: Outcome,
    /// What a receive got.
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Open {
    is_send: bool,
    number: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Host {
    pub engine: Engine,
    pub pairs: BTreeMap<End, PairId>,
    pending: Vec<Action>,
    open: BTreeMap<RequestId, Open>,
    smbs: BTreeMap<u16, Vec<u8>>,
    rmbs: BTreeMap<(End, u8), Vec<u8>>,
    /// Messages that are held where they are.
    held: Vec<(PairId, Message)>,
    pub told: Vec<Told>,
    pub is_dead: bool,
}

/// Who waits for what, in the words of the model.
#[derive(Clone, Debug)]
struct Waits {
    number: usize,
    from: Option<End>,
    tag: Tag,
    mask: u64,
    capacity: usize,
}

/// The naive matching that the engine's is compared with.
#[derive(Clone, Debug, Default)]
struct Model {
    waits: Vec<Waits>,
    came: Vec<usize>,
}

/// What the model says that a receive gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    Bytes(usize),
    TooLong(usize),
}

/// What was said, with the bytes and the number of an envelope.
type Wire = VecDeque<(Control, Vec<u64>, Option<usize>)>;

#[derive(Clone, Debug)]
pub struct World {
    pub hosts: Vec<Host>,
    wires: BTreeMap<(End, End), Wire>,
    room: usize,
    pub sent: Vec<Sent>,
    pub posted: usize,
    /// By the receive's number.
    pub expected: BTreeMap<usize, Expected>,
    models: Vec<Model>,
    /// Envelopes in the order of sending, of each pair; the number among `sent`.
    envelopes: BTreeMap<(End, End), VecDeque<usize>>,
    /// The numbers that the engines have given them.
    long: BTreeMap<(End, End, u32), usize>,
    /// Actions of this end that are about bytes fail.
    pub fails: bool,
    /// What an end has to do it does before anything else happens: fewer orders to go through.
    pub is_prompt: bool,
    has_failed: bool,
}

impl World {
    /// All ends meet each other; `room`: what a wire holds.
    pub fn new(limits: &[Limits], way: impl Fn(End, End) -> Way, room: usize) -> Self {
        let host = |limits: &Limits| Host {
            engine: Engine::new(*limits).unwrap(),
            pairs: BTreeMap::new(),
            pending: Vec::new(),
            open: BTreeMap::new(),
            smbs: BTreeMap::new(),
            rmbs: BTreeMap::new(),
            held: Vec::new(),
            told: Vec::new(),
            is_dead: false,
        };
        let mut hosts: Vec<Host> = limits.iter().map(host).collect();
        let mut wires = BTreeMap::new();
        for one in 0..hosts.len() {
            for other in (0..hosts.len()).filter(|other| *other != one) {
                let terms = hosts[other].engine.terms();
                let id = hosts[one].engine.connect(way(one, other), terms).unwrap();
                hosts[one].pairs.insert(other, id);
                wires.insert((one, other), VecDeque::new());
            }
        }
        let models = vec![Model::default(); hosts.len()];
        Self {
            hosts,
            wires,
            room,
            sent: Vec::new(),
            posted: 0,
            expected: BTreeMap::new(),
            models,
            envelopes: BTreeMap::new(),
            long: BTreeMap::new(),
            fails: false,
            is_prompt: false,
            has_failed: false,
        }
    }

    pub fn content(number: usize, len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 + at / 251 + number * 7) as u8).collect()
    }

    pub fn send(&mut self, from: End, to: End, tag: Tag, len: usize, scheme: Scheme) -> Option<RequestId> {
        let number = self.sent.len();
        let host = &mut self.hosts[from];
        let request = host.engine.send(host.pairs[&to], tag, len as u64, scheme).ok()?;
        let bytes = Self::content(number, len);
        host.open.insert(request, Open { is_send: true, number, bytes: bytes.clone() });
        self.sent.push(Sent { from, to, tag, bytes });
        self.envelopes.entry((from, to)).or_default().push_back(number);
        self.settle(from);
        Some(request)
    }

    pub fn receive(&mut self, end: End, from: Option<End>, tag: Tag, mask: u64, capacity: usize) -> Option<RequestId> {
        self.post(end, from, (tag, mask), capacity, false)
    }

    /// The same; what is in a file is held there.
    pub fn receive_held(&mut self, end: End, from: Option<End>, tag: Tag, mask: u64, capacity: usize) {
        self.post(end, from, (tag, mask), capacity, true);
    }

    fn post(
        &mut self,
        end: End,
        from: Option<End>,
        (tag, mask): (Tag, u64),
        capacity: usize,
        holds: bool,
    ) -> Option<RequestId> {
        let number = self.posted;
        let host = &mut self.hosts[end];
        let (pair, room) = (from.map(|from| host.pairs[&from]), capacity as u64);
        let request = match holds {
            true => host.engine.receive_held(pair, tag, mask, room).ok()?,
            false => host.engine.receive(pair, tag, mask, room).ok()?,
        };
        self.posted += 1;
        host.open.insert(request, Open { is_send: false, number, bytes: vec![0; capacity] });
        // The model: the first that came and fits.
        let waits = Waits { number, from, tag, mask, capacity };
        let found = self.models[end].came.iter().position(|&came| fits(&waits, &self.sent[came]));
        match found {
            Some(at) => {
                let came = self.models[end].came.remove(at);
                self.matched(&waits, came);
            }
            None => self.models[end].waits.push(waits),
        }
        self.settle(end);
        Some(request)
    }

    fn matched(&mut self, waits: &Waits, came: usize) {
        let fits = self.sent[came].bytes.len() <= waits.capacity;
        let expected = if fits { Expected::Bytes(came) } else { Expected::TooLong(came) };
        self.expected.insert(waits.number, expected);
    }

    /// The model hears of an envelope.
    fn came(&mut self, to: End, came: usize) {
        let model = &mut self.models[to];
        match model.waits.iter().position(|waits| fits(waits, &self.sent[came])) {
            Some(at) => {
                let waits = model.waits.remove(at);
                self.matched(&waits, came);
            }
            None => model.came.push(came),
        }
    }

    /// A message whose envelope was not sent, or somebody who does not wait any more.
    fn forget(&mut self, end: End, told: &Told) {
        if told.is_send {
            self.envelopes.values_mut().for_each(|list| list.retain(|number| *number != told.number));
        } else {
            self.models[end].waits.retain(|waits| waits.number != told.number);
        }
    }

    /// Takes what the engine of an end wants done and says.
    fn settle(&mut self, end: End) {
        loop {
            let host = &mut self.hosts[end];
            host.pending.extend(core::iter::from_fn(|| host.engine.action()));
            while let Some(Delivery { request, words, len }) = host.engine.delivery() {
                deliver(host, request, &words, len);
                host.engine.recycle(words);
            }
            let Some(Completion { request, outcome }) = host.engine.completion() else { return };
            let open = host.open.remove(&request).expect("it ends once");
            if let Outcome::Held { pair, message, .. } = outcome {
                host.held.push((pair, message));
            }
            let told = Told { is_send: open.is_send, number: open.number, outcome, bytes: open.bytes };
            host.told.push(told.clone());
            if matches!(outcome, Outcome::Cancelled | Outcome::Failed | Outcome::Lost) {
                self.forget(end, &told);
            }
        }
    }

    pub fn cancel(&mut self, end: End, request: RequestId) {
        let open = self.hosts[end].open[&request].clone();
        if self.hosts[end].engine.cancel(request) == Ok(Cancel::Done) && open.is_send {
            // Its completion may have to wait for a copy.
            self.envelopes.values_mut().for_each(|list| list.retain(|number| *number != open.number));
        }
        self.settle(end);
    }

    pub fn open_requests(&self, end: End) -> Vec<RequestId> {
        self.hosts[end].open.keys().copied().collect()
    }

    /// All that can happen.
    pub fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        if self.is_prompt
            && let Some(end) = self.hosts.iter().position(|host| !host.is_dead && !host.pending.is_empty())
        {
            return vec![Move::Act(end, 0)];
        }
        for (&(from, to), wire) in &self.wires {
            if self.hosts[from].is_dead || self.hosts[to].is_dead {
                continue;
            }
            let host = &self.hosts[from];
            if wire.len() < self.room && host.engine.outgoing(host.pairs[&to]).is_some() {
                moves.push(Move::Say(from, to));
            }
            if !wire.is_empty() {
                moves.push(Move::Hear(to, from));
            }
        }
        for (end, host) in self.hosts.iter().enumerate().filter(|(_, host)| !host.is_dead) {
            moves.extend((0..host.pending.len()).map(|at| Move::Act(end, at)));
            moves.extend((0..host.held.len()).map(|at| Move::Release(end, at)));
        }
        moves
    }

    pub fn apply(&mut self, next: Move) {
        match next {
            Move::Say(from, to) => {
                let host = &mut self.hosts[from];
                let id = host.pairs[&to];
                let outgoing = host.engine.outgoing(id).unwrap();
                let mut number = None;
                if matches!(outgoing, Outgoing::Eager { .. } | Outgoing::Control(Control::Request { .. })) {
                    number = self.envelopes.get_mut(&(from, to)).and_then(VecDeque::pop_front);
                    assert!(number.is_some(), "an envelope that nobody has sent");
                }
                if let (Outgoing::Control(Control::Request { message, .. }), Some(number)) = (outgoing, number) {
                    self.long.insert((from, to, message.0), number);
                }
                let said = match outgoing {
                    Outgoing::Control(control) => (control, Vec::new(), number),
                    Outgoing::Eager { request, tag, len } => {
                        let bytes = &host.open[&request].bytes;
                        assert_eq!(bytes.len(), usize::from(len));
                        (Control::Eager { tag, len }, words(bytes), number)
                    }
                };
                host.engine.said(id);
                self.wires.get_mut(&(from, to)).unwrap().push_back(said);
                self.settle(from);
            }
            Move::Hear(to, from) => {
                let (control, words, number) = self.wires.get_mut(&(from, to)).unwrap().pop_front().unwrap();
                // As it goes through shared memory.
                let (mut said, len) = control.encode();
                let mut all = said[..len].to_vec();
                all.extend_from_slice(&words);
                said.fill(0);
                let control = Control::decode(&all).unwrap();
                if let Some(number) = number {
                    self.came(to, number);
                }
                if let Control::Withdraw(message) | Control::Failed(message) = control {
                    let number = self.long[&(from, to, message.0)];
                    self.models[to].came.retain(|came| *came != number);
                }
                let host = &mut self.hosts[to];
                let arrived = host.engine.arrive(host.pairs[&from], control, &words).expect("nobody here does harm");
                if let Arrived::Deliver(request) = arrived {
                    let Control::Eager { len, .. } = control else { unreachable!() };
                    deliver(host, request, &words, len);
                }
                self.settle(to);
            }
            Move::Act(end, at) => self.act(end, at),
            Move::Release(end, at) => {
                let host = &mut self.hosts[end];
                let (pair, message) = host.held.remove(at);
                host.engine.release(pair, message);
                self.settle(end);
            }
        }
    }

    fn act(&mut self, end: End, at: usize) {
        let action = self.hosts[end].pending.remove(at);
        let is_good = !self.fails;
        self.has_failed |= self.fails;
        let other_of = |host: &Host, id: PairId| *host.pairs.iter().find(|(_, pair)| **pair == id).unwrap().0;
        let host = &mut self.hosts[end];
        let Action { ticket, pair, request, offset, len, work } = action;
        let (offset, len) = (offset as usize, len as usize);
        let other = other_of(host, pair);
        match work {
            Work::CopyIn { smb } => {
                let bytes = host.open[&request].bytes[offset..][..len].to_vec();
                host.smbs.insert(smb, bytes);
            }
            Work::Transfer { slot, from } => {
                let bytes = match from {
                    Source::Smb(smb) => host.smbs.remove(&smb).expect("it was copied in"),
                    Source::Message => host.open[&request].bytes[offset..][..len].to_vec(),
                };
                assert_eq!(bytes, host.open[&request].bytes[offset..][..len]);
                if is_good && !self.hosts[other].is_dead {
                    let held = self.hosts[other].rmbs.insert((end, slot), bytes);
                    // Buffers of a message that failed have bytes of it still.
                    assert!(held.is_none() || self.has_failed, "a receive buffer is written twice");
                }
            }
            Work::CopyOut { slot } => {
                let bytes = host.rmbs.remove(&(other, slot)).expect("it was filled");
                assert_eq!(bytes.len(), len);
                host.open.get_mut(&request).unwrap().bytes[offset..][..len].copy_from_slice(&bytes);
            }
            Work::Expose => {
                let address = request.0.into();
                host.engine.exposed(ticket, is_good.then_some(Origin { key: end as u64, address }));
                self.settle(end);
                return;
            }
            Work::Move { origin, .. } if is_good && !self.hosts[other].is_dead => {
                assert_eq!(origin.key, other as u64);
                let from = &self.hosts[other].open[&RequestId(origin.address as u32)];
                let bytes = from.bytes[offset..][..len].to_vec();
                let to = self.hosts[end].open.get_mut(&request).expect("it waits still");
                to.bytes[offset..][..len].copy_from_slice(&bytes);
            }
            Work::Hold { origin } if is_good && !self.hosts[other].is_dead => {
                // Nobody copies it: it is there for as long as it is held.
                let from = &self.hosts[other].open[&RequestId(origin.address as u32)];
                let bytes = from.bytes.clone();
                self.hosts[end].open.get_mut(&request).expect("it waits still").bytes = bytes;
            }
            Work::Move { .. } | Work::Hold { .. } => {}
        }
        // What a receive buffer of a failed move has is not looked at.
        let host = &mut self.hosts[end];
        host.engine.finished(ticket, is_good);
        self.settle(end);
    }

    /// An end dies. What is on its wires is lost with it.
    pub fn kill(&mut self, end: End) {
        self.hosts[end].is_dead = true;
        for other in (0..self.hosts.len()).filter(|other| *other != end) {
            self.wires.get_mut(&(end, other)).unwrap().clear();
            self.wires.get_mut(&(other, end)).unwrap().clear();
            if !self.hosts[other].is_dead {
                let host = &mut self.hosts[other];
                host.engine.lose(host.pairs[&end]);
                self.settle(other);
            }
            // Short ones that are there can be received still.
            let is_long = |came: &usize| self.long.values().any(|long| long == came);
            self.models[other].came.retain(|came| self.sent[*came].from != end || !is_long(came));
        }
    }

    /// What the world is like, without bytes.
    pub fn state(&self) -> u64 {
        let mut state = DefaultHasher::new();
        for host in &self.hosts {
            (&host.engine, &host.pending, host.is_dead).hash(&mut state);
        }
        self.wires.hash(&mut state);
        state.finish()
    }
}

fn fits(waits: &Waits, sent: &Sent) -> bool {
    waits.from.is_none_or(|from| from == sent.from) && (waits.tag.0 ^ sent.tag.0) & waits.mask == 0
}

pub fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    bytes.chunks(8).map(word).collect()
}

fn deliver(host: &mut Host, request: RequestId, words: &[u64], len: u16) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take(len.into()).collect();
    // Its completion may have been taken already: the engine says so before.
    let open = host.open.get_mut(&request).expect("it waits");
    open.bytes[..bytes.len()].copy_from_slice(&bytes);
}
