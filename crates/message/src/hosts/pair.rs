//! What there is for each endpoint of another host: its paths, what is said to it and heard from it, and the memory that is sent from and
//! written to.

use super::bells::Bells;
use super::discover::Target;
use super::rail::{Rail, Shared, memory};
use super::record::{CONTROL, Card, Item, Items, LEN, MOST_PATHS, Record, WORDS, item, said};
use super::trunk::{Ended, PLACES, Post, State, Trunk, Write};
use crate::bell::Filter;
use crate::channel::fill;
use crate::control::{Control, EAGER_AT, Tag};
use crate::engine::{Arrived, Breach, Engine, Outgoing, PairId, RequestId, Terms, Way};
use millrace_dma::Window;
use millrace_slurpoe::{Address, Error};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Places for what is not said in order, and bytes of each.
const NEWS: usize = 8;
const NEWS_LEN: usize = 256;
/// What says nothing new and is no reason to end a pair, in one tick.
const IDLE: u32 = 256;

/// The memory of a pair.
pub struct Memory {
    /// Places of records, and behind them those of news.
    pub out: Window,
    /// Receive buffers, which the other end writes to.
    pub rmbs: Window,
}

impl Memory {
    pub fn new(terms: Terms) -> Result<Self, Error> {
        let rmbs = usize::from(terms.slots) * terms.mtu as usize;
        Ok(Self { out: memory(PLACES * LEN + NEWS * NEWS_LEN)?, rmbs: memory(rmbs)? })
    }

    /// For somebody who is only told that he is refused.
    pub fn to_refuse() -> Result<Self, Error> {
        Ok(Self { out: memory(PLACES * LEN + NEWS * NEWS_LEN)?, rmbs: memory(4096)? })
    }
}

/// One end of a path.
pub struct Lane {
    pub rail: usize,
    pub other: Address,
    /// Which rail of the other end it is, where this end has called.
    pub theirs: u8,
    pub shared: Shared,
    /// Of the receive buffers of the other end.
    pub key: u32,
    /// When the connection is asked for again.
    pub again: Instant,
}

/// A question for more paths to an end that is known.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// A random number, as that of a call.
    pub number: u64,
    /// How many rails the other end has.
    pub rails: u8,
    /// When it is asked again, and how long after.
    pub at: Instant,
    pub pause: Duration,
}

/// How long after a question for more paths the next one goes: at first, and at last.
const SEARCH: Duration = Duration::from_millis(250);
pub const LATEST_SEARCH: Duration = Duration::from_secs(30);

/// How far two ends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// This end has called, and has no answer.
    Calling,
    /// They know each other, but not which doorbells the other one wants.
    Greeted,
    /// It is a pair.
    Met,
}

/// What has come of what was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Nothing,
    /// It is a pair now.
    Met(PairId),
    /// A path is over.
    Over(usize),
    /// The other end does what it may not.
    Breach(Breach),
}

/// What is needed to hear: the protocol, what this program wants, and whoever waits for short messages.
pub struct Ears<'e> {
    pub engine: &'e mut Engine,
    pub filter: &'e Filter,
    pub deliver: &'e mut dyn FnMut(RequestId, &[u64], usize),
}

/// Another endpoint.
pub struct Remote {
    /// What this end calls it in what it posts; never used again.
    pub id: u32,
    pub stage: Stage,
    pub pair: Option<PairId>,
    /// The number of the pair, which both ends know and nobody else.
    pub number: u64,
    /// What the other end is, when it has said so.
    pub card: Option<Card>,
    /// This end has called: it makes the paths.
    pub has_called: bool,
    /// Which opening of an endpoint was called, and as what.
    pub called: Option<(u64, Target)>,
    /// By which it is looked for more paths.
    pub search: Search,
    pub begun: Instant,
    pub lanes: [Option<Lane>; MOST_PATHS],
    pub trunk: Trunk,
    pub bells: Bells,
    pub memory: Memory,
    /// What is to be said besides, by which path; and where what was posted stands, by which path and under which number.
    news: VecDeque<(usize, Vec<u64>)>,
    places: [Option<(usize, u32)>; NEWS],
    idle: u32,
}

impl Remote {
    pub fn new(id: u32, number: u64, has_called: bool, memory: Memory, now: Instant) -> Self {
        let mut bells = Bells::default();
        bells.publish();
        Self {
            id,
            stage: if has_called { Stage::Calling } else { Stage::Greeted },
            pair: None,
            number,
            card: None,
            has_called,
            called: None,
            search: Search { number: 0, rails: 1, at: now, pause: SEARCH },
            begun: now,
            lanes: [const { None }; MOST_PATHS],
            trunk: Trunk::default(),
            bells,
            memory,
            news: VecDeque::new(),
            places: [None; NEWS],
            idle: 0,
        }
    }

    fn terms(&self) -> Option<Terms> {
        self.card.as_ref().map(|card| card.terms)
    }

    /// Whether there may be paths that are not there: rails of this end, so many, or of the other one, go by none.
    pub fn lacks_paths(&self, own: usize) -> bool {
        let lanes = || self.lanes.iter().flatten();
        let has_own = |rail: usize| lanes().any(|lane| lane.rail == rail);
        let has_theirs = |rail: u8| lanes().any(|lane| lane.theirs == rail);
        let has_room = self.lanes.iter().any(Option::is_none);
        has_room && !((0..own).all(has_own) && (0..self.search.rails).all(has_theirs))
    }

    /// Where a path by these rails would stand, if it is one that is lacking.
    pub fn place_for(&self, rail: usize, theirs: u8) -> Option<usize> {
        let mut lanes = self.lanes.iter().flatten();
        let is_new = lanes.clone().all(|lane| lane.rail != rail) || lanes.all(|lane| lane.theirs != theirs);
        self.lanes.iter().position(Option::is_none).filter(|_| is_new)
    }

    /// Says something besides by a path.
    pub fn tell(&mut self, path: usize, record: &Record<'_>) {
        self.news.push_back((path, record.write()));
    }

    /// Time goes on: says that it lives by each path by which nothing else is on its way that would.
    pub fn tick(&mut self) {
        self.idle = 0;
        for path in 0..MOST_PATHS {
            let has_news = self.places.iter().flatten().any(|place| place.0 == path);
            if self.trunk.state(path) == State::Live && !has_news {
                self.tell(path, &Record::Alive);
            }
        }
    }

    /// Ends the connection of a path, if there is one.
    pub fn disconnect(&self, path: usize, rails: &[Rail]) {
        let has_one = self.stage == Stage::Calling || matches!(self.trunk.state(path), State::Live | State::Joining);
        if let Some(lane) = self.lanes[path].as_ref().filter(|_| has_one)
            && let Some(end) = rails[lane.rail].end()
        {
            end.disconnect(lane.other);
        }
    }

    /// A path has died: nothing goes by it any more, and its connection has ended. Whether that is new.
    pub fn close(&mut self, path: usize) -> bool {
        if !self.trunk.close(path) {
            return false;
        }
        self.places
            .iter_mut()
            .filter(|place| place.is_some_and(|place| place.0 == path))
            .for_each(|place| *place = None);
        self.news.retain(|news| news.0 != path);
        true
    }

    /// All that has come by a rail was taken: paths there that were closed are over. Whether nothing is left of the pair.
    pub fn drained(&mut self, rail: usize) -> bool {
        let closed: Vec<usize> = self.trunk.closing().collect();
        for path in closed {
            if self.lanes[path].as_ref().is_none_or(|lane| lane.rail == rail) {
                self.trunk.drained(path);
            }
        }
        !self.trunk.is_alive() && self.trunk.closing().next().is_none()
    }

    /// What was posted under that number has arrived.
    pub fn acknowledged(&mut self, serial: u32, engine: &mut Engine) {
        let is_it = |place: &&mut Option<(usize, u32)>| place.is_some_and(|place| place.1 == serial);
        if let Some(place) = self.places.iter_mut().find(is_it) {
            *place = None;
        } else if let Ended::Written(ticket) = self.trunk.acknowledged(serial) {
            engine.finished(ticket, true);
        }
    }

    /// The path of something that was posted under that number, if it is one that has not ended.
    pub fn path_of(&self, rail: usize, other: Address) -> Option<usize> {
        let is_it = |lane: &Option<Lane>| lane.as_ref().is_some_and(|lane| (lane.rail, lane.other) == (rail, other));
        self.lanes.iter().position(is_it)
    }

    /// Posts what is to be posted, as far as there is room.
    pub fn post(&mut self, rails: &[Rail], smb_len: usize) {
        self.post_news(rails);
        let slot_len = self.terms().map_or(0, |terms| u64::from(terms.mtu));
        let Self { trunk, lanes, id, .. } = self;
        while trunk.post(|path, serial, post| {
            let Some(lane) = &lanes[path] else { return false };
            let (rail, token) = (&rails[lane.rail], token(*id, serial));
            match post {
                Post::Record { place, len } => {
                    rail.send(lane.other, &lane.shared, (usize::from(place) * LEN, len.into()), token)
                }
                Post::Write(Write { smb, slot, len, .. }) => {
                    let to = (lane.key, u64::from(slot) * slot_len);
                    rail.write(lane.other, (usize::from(smb) * smb_len, len), to, token)
                }
            }
        }) {}
    }

    fn post_news(&mut self, rails: &[Rail]) {
        while let Some((path, epoch, expected)) = self.trunk.news() {
            let Some(by) = self.trunk.any_live() else { break };
            self.trunk.was_told();
            self.tell(by, &Record::Over { path: path as u8, epoch, expected });
        }
        while let Some((path, words)) = self.news.front()
            && let Some(at) = self.places.iter().position(Option::is_none)
        {
            let (path, offset) = (*path, PLACES * LEN + at * NEWS_LEN);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.memory.out.span_mut(offset, bytes.len()).map(|span| span.write_from(&bytes));
            let serial = self.trunk.serial();
            let Some(lane) = &self.lanes[path] else { break };
            let token = token(self.id, serial);
            if !rails[lane.rail].send(lane.other, &lane.shared, (offset, bytes.len()), token) {
                break;
            }
            self.places[at] = Some((path, serial));
            self.news.pop_front();
        }
    }

    /// Makes records of what there is to say, as far as there are places. Whether that was all.
    pub fn say<'a>(&mut self, engine: &mut Engine, filter: &Filter, bytes: impl Fn(RequestId) -> &'a [u8]) -> bool {
        let mut words = Vec::with_capacity(WORDS);
        loop {
            if !self.has_something(engine) {
                return true;
            }
            if self.trunk.place().is_none() {
                return false;
            }
            words.clear();
            words.push(said(self.trunk.number()));
            self.bells.say(filter, &mut words, WORDS);
            // What the other end wants to hear of doorbells comes first.
            let pair = self.pair.filter(|_| self.stage == Stage::Met);
            while let Some(pair) = pair
                && let Some(outgoing) = engine.outgoing(pair)
            {
                let is_in = match outgoing {
                    Outgoing::Control(control) => {
                        let (said, count) = control.encode();
                        put(&mut words, &said[..count])
                    }
                    Outgoing::Eager { request, tag, len } => {
                        let found = bytes(request).get(..len.into());
                        found.is_some_and(|bytes| put_eager(&mut words, tag, bytes))
                    }
                };
                if !is_in {
                    break;
                }
                engine.said(pair);
            }
            if words.len() == 1 {
                return false;
            }
            self.push(&words);
        }
    }

    fn has_something(&self, engine: &Engine) -> bool {
        let speaks = self.pair.is_some_and(|pair| engine.outgoing(pair).is_some());
        (speaks && self.stage == Stage::Met || self.bells.has_news()) && self.stage != Stage::Calling
    }

    fn push(&mut self, words: &[u64]) {
        let Some(place) = self.trunk.place() else { return };
        let mut bytes = [0; LEN];
        for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = word.to_le_bytes();
        }
        let len = words.len() * 8;
        self.memory.out.span_mut(usize::from(place) * LEN, len).map(|span| span.write_from(&bytes[..len]));
        self.trunk.push(len as u16);
    }

    /// Says a short message at once. `false`: something is before it.
    pub fn send_short(&mut self, engine: &mut Engine, tag: Tag, bytes: &[u8]) -> bool {
        let Some(pair) = self.pair else { return false };
        let may = self.stage == Stage::Met && engine.is_free(pair, bytes.len()) && self.trunk.place().is_some();
        if !may || self.bells.has_news() {
            return false;
        }
        let mut words = Vec::with_capacity(WORDS);
        words.push(said(self.trunk.number()));
        let is_in = put_eager(&mut words, tag, bytes);
        if is_in {
            self.push(&words);
            engine.sent_eager(pair);
        }
        is_in
    }

    /// What the other end has said by a path that it has.
    pub fn hear(&mut self, path: usize, record: &Record<'_>, ears: &mut Ears<'_>) -> Heard {
        let is_open = matches!(self.trunk.state(path), State::Live | State::Closing);
        let heard = match record {
            Record::Joined { path: said, epoch, pair, key } => {
                if usize::from(*said) == path
                    && *pair == self.number
                    && self.has_called
                    && self.trunk.begin(path, *epoch)
                    && let Some(lane) = &mut self.lanes[path]
                {
                    lane.key = *key;
                }
                Ok(Heard::Nothing)
            }
            Record::Over { path, epoch, expected } => {
                self.idle += 1;
                let path = usize::from(*path);
                self.trunk
                    .was_over(path, *epoch, *expected)
                    .map(|must| if must { Heard::Over(path) } else { Heard::Nothing })
            }
            Record::Alive => {
                self.idle += 1;
                Ok(Heard::Nothing)
            }
            // Of a path that has ended, whose rest will be said again.
            Record::Said { .. } if !is_open => Ok(Heard::Nothing),
            Record::Said { number, items } => self.hear_items(*number, items, ears),
            _ => Err(Breach::Nonsense),
        };
        match heard {
            _ if self.idle > IDLE => Heard::Breach(Breach::Rings),
            Ok(heard) => heard,
            Err(breach) => Heard::Breach(breach),
        }
    }

    fn hear_items(&mut self, number: u32, items: &[u64], ears: &mut Ears<'_>) -> Result<Heard, Breach> {
        if !self.trunk.arrive(number)? {
            self.idle += 1;
            return Ok(Heard::Nothing);
        }
        let mut heard = Heard::Nothing;
        for item in Items(items) {
            match item.ok_or(Breach::Nonsense)? {
                Item::Wanted(words) => {
                    self.bells.want(words)?;
                    if self.stage == Stage::Greeted {
                        let terms = self.terms().ok_or(Breach::Nonsense)?;
                        let pair = ears.engine.connect(Way::Staged, terms).ok_or(Breach::Nonsense)?;
                        (self.stage, self.pair) = (Stage::Met, Some(pair));
                        heard = Heard::Met(pair);
                    }
                }
                // Nothing is said before.
                _ if self.stage != Stage::Met => return Err(Breach::Nonsense),
                Item::Bell(number) => self.bells.rang(number)?,
                Item::Taken(count) => self.bells.were_taken(count)?,
                Item::Control(words) => self.control(words, ears)?,
            }
        }
        Ok(heard)
    }

    fn control(&mut self, words: &[u64], ears: &mut Ears<'_>) -> Result<(), Breach> {
        let pair = self.pair.ok_or(Breach::Nonsense)?;
        let control = Control::decode(words).map_err(|_| Breach::Nonsense)?;
        let bytes = &words[EAGER_AT.min(words.len())..];
        if let Arrived::Deliver(request) = ears.engine.arrive(pair, control, bytes)?
            && let Control::Eager { len, .. } = control
        {
            (ears.deliver)(request, bytes, len.into());
        }
        Ok(())
    }
}

/// What a thing that is posted for a pair is called.
const fn token(id: u32, serial: u32) -> u64 {
    1 << 63 | (id as u64) << 32 | serial as u64
}

/// Of whom something is that has ended, and under which number; `None`: it is a buffer for what others say.
pub const fn of_token(token: u64) -> Option<(u32, u32)> {
    if token >> 63 == 1 { Some(((token >> 32) as u32 & 0x7fff_ffff, token as u32)) } else { None }
}

fn put(words: &mut Vec<u64>, said: &[u64]) -> bool {
    let has_room = words.len() + 1 + said.len() <= WORDS;
    if has_room {
        words.push(item(CONTROL, said.len(), 0));
        words.extend_from_slice(said);
    }
    has_room
}

fn put_eager(words: &mut Vec<u64>, tag: Tag, bytes: &[u8]) -> bool {
    let count = EAGER_AT + bytes.len().div_ceil(8);
    let (at, has_room) = (words.len() + 1, words.len() + 1 + count <= WORDS);
    if has_room {
        words.push(item(CONTROL, count, 0));
        words.resize(at + count, 0);
        let (head, _) = Control::Eager { tag, len: bytes.len() as u16 }.encode();
        fill(&mut words[at..], head, bytes);
    }
    has_room
}
