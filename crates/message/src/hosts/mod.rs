//! Endpoints of other hosts, over queues of a card or any port, by the RDMA engine (`millrace_slurpoe`).
//!
//! ```text
//! calls     who has the name? -----------> all ends of all rails               (`discover`, `meet`)
//! remotes   one for each other endpoint: what is said in order, doorbells      (`pair`, `bells`, `record`)
//! trunks    paths, of which any may die: in order, each once                   (`trunk`)
//! rails     an endpoint of the RDMA engine each                                (`rail`)
//! ```
//!
//! Nothing here waits: whoever calls [`Hosts::progress`] moves it on.

mod bells;
mod discover;
mod meet;
mod pair;
mod paths;
mod rail;
mod record;
mod talk;
mod trunk;
#[cfg(test)]
mod trunk_model;

pub use discover::{Target, host_name};
pub use meet::CallError;
pub(crate) use meet::GREETING;
pub use record::is_name;

pub(crate) use bells::Bells;

use crate::bell::Filter;
use crate::engine::{Breach, Engine, PairId, Terms};
use meet::Call;
use millrace_dma::Window;
use millrace_slurpoe as slurpoe;
pub use pair::Ears;
use pair::{Heard, Remote, Stage, of_token};
use rail::{Rail, memory};
use record::{Card, Record, WORDS};
use rustix::fd::OwnedFd;
use slab::Slab;
use slurpoe::{Address, Completion, Kind};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Things of a rail that have ended and are looked at together, and how often in one turn.
const BURST: usize = 64;
const ROUNDS: usize = 4;
/// How often it is looked what is due, and how often others are told that this end lives.
const LOOK: Duration = Duration::from_millis(5);
const ALIVE: Duration = Duration::from_millis(500);
/// Questions that are answered between two looks.
const QUESTIONS: u32 = 32;
/// Rails of an endpoint, at most.
const MOST_RAILS: usize = 8;

/// What an endpoint says of itself, and with whom it may speak.
#[derive(Clone, Debug)]
pub struct Own {
    /// By which others find it.
    pub name: Option<String>,
    /// What this host is called.
    pub host: String,
    pub user: u32,
    /// Others at a time, at most.
    pub peers: u32,
    pub terms: Terms,
    /// Send buffers.
    pub smbs: u16,
}

/// One more of the others.
#[derive(Debug)]
pub struct Joined {
    pub pair: PairId,
    pub name: String,
    pub host: String,
    pub user: u32,
    /// The program has called it.
    pub is_called: bool,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes of long messages that have gone by each rail.
    pub written: Vec<u64>,
    /// Questions that were not answered, because there were too many.
    pub questions_dropped: u64,
    /// What was told or said by others that is nothing here.
    pub strange: u64,
    /// Paths that have died.
    pub paths_lost: u64,
    /// Paths that began, but for the first of a pair.
    pub paths_begun: u64,
    /// Records that came twice, because the first was said by a path that died.
    pub doubled: u64,
    /// Doorbells that nobody had claimed when they came.
    pub unwanted: u64,
}

/// All of an endpoint's others on other hosts.
pub struct Hosts {
    own: Own,
    /// Which opening this is: a random number.
    id: u64,
    rails: Vec<Rail>,
    smbs: Window,
    remotes: BTreeMap<u32, Remote>,
    next: u32,
    /// By the numbers of pairs.
    pairs: Vec<Option<u32>>,
    calls: Slab<Call>,
    joined: VecDeque<Joined>,
    gone: VecDeque<PairId>,
    /// A path was closed, and not all that came by it was taken.
    has_closed: bool,
    questions: u32,
    look_at: Instant,
    alive_at: Instant,
    bells_noted: u64,
    counters: Counters,
    ended: Vec<Completion>,
}

impl Hosts {
    /// Opens rails. When something comes by one of them, `epoll` says so by the key that `key` gives it.
    ///
    /// # Errors
    /// Which rail cannot be opened, and why.
    pub fn open(
        own: Own,
        rails: &[slurpoe::Config],
        epoll: &Arc<OwnedFd>,
        key: fn(usize) -> u64,
    ) -> Result<Self, (usize, slurpoe::Error)> {
        if rails.len() > MOST_RAILS {
            return Err((MOST_RAILS, slurpoe::Error::Range("an endpoint has 8 rails at most")));
        }
        let smbs = memory(usize::from(own.smbs) * own.terms.mtu as usize).map_err(|error| (0, error))?;
        let open = |(at, config): (usize, &slurpoe::Config)| {
            // Who has no name is not called.
            let config =
                slurpoe::Config { watch: true, accept: own.name.is_some(), peers: own.peers, ..config.clone() };
            Rail::open(config, &smbs, (epoll.clone(), key(at))).map_err(|error| (at, error))
        };
        let rails = rails.iter().enumerate().map(open).collect::<Result<Vec<Rail>, _>>()?;
        let now = Instant::now();
        Ok(Self {
            own,
            id: RandomState::new().hash_one(std::process::id()),
            rails,
            smbs,
            remotes: BTreeMap::new(),
            next: 0,
            pairs: Vec::new(),
            calls: Slab::new(),
            joined: VecDeque::new(),
            gone: VecDeque::new(),
            has_closed: false,
            questions: QUESTIONS,
            look_at: now,
            alive_at: now,
            bells_noted: 0,
            counters: Counters::default(),
            ended: vec![Completion::default(); BURST],
        })
    }

    fn card(&self) -> Card {
        let Own { name, host, user, terms, .. } = &self.own;
        let (name, host) = (name.clone().unwrap_or_default(), host.clone());
        Card { id: self.id, terms: *terms, user: *user, name, host }
    }

    /// Takes what has come, and posts what is to be posted. Whether there was anything.
    pub fn progress(&mut self, ears: &mut Ears<'_>) -> bool {
        let mut has_moved = false;
        for rail in 0..self.rails.len() {
            has_moved |= self.take(rail, ears);
        }
        let now = Instant::now();
        if now >= self.look_at {
            self.look_at = now + LOOK;
            self.questions = QUESTIONS;
            self.look(now, ears);
        }
        if has_moved {
            self.post_all(ears.engine, ears.filter);
        }
        has_moved
    }

    /// Posts what there is; what is to be said of doorbells, too, but for that of pairs that have more to say.
    fn post_all(&mut self, engine: &mut Engine, filter: &Filter) {
        let (rails, mtu) = (&self.rails, self.own.terms.mtu as usize);
        for remote in self.remotes.values_mut() {
            if remote.bells.has_news() && remote.pair.is_none_or(|pair| engine.outgoing(pair).is_none()) {
                remote.say(engine, filter, |_| &[]);
            }
            remote.post(rails, mtu);
        }
    }

    /// What is due: rails, calls, paths, signs of life.
    fn look(&mut self, now: Instant, ears: &mut Ears<'_>) {
        for at in 0..self.rails.len() {
            // What has come by it before counts; nothing comes any more.
            while self.rails[at].is_broken() && self.take(at, ears) {}
            if self.rails[at].tick(now) {
                self.break_rail(at);
            }
        }
        self.look_at_calls(now, ears.engine);
        self.look_at_paths(now);
        if now >= self.alive_at {
            self.alive_at = now + ALIVE;
            self.remotes.values_mut().for_each(Remote::tick);
        }
        self.post_all(ears.engine, ears.filter);
    }

    /// All paths of a rail are over, and nothing more comes of them.
    fn break_rail(&mut self, rail: usize) {
        let ids: Vec<u32> = self.remotes.keys().copied().collect();
        for id in ids {
            let lanes: Vec<usize> = self.remotes.get(&id).map_or(Vec::new(), |remote| {
                let is_its = |path: &usize| remote.lanes[*path].as_ref().is_some_and(|lane| lane.rail == rail);
                (0..remote.lanes.len()).filter(is_its).collect()
            });
            lanes.into_iter().for_each(|path| self.close(id, path));
            self.drained(id, rail);
        }
    }

    /// Takes what has ended at a rail, and what was told there. Whether there was anything.
    fn take(&mut self, rail: usize, ears: &mut Ears<'_>) -> bool {
        let mut ended = core::mem::take(&mut self.ended);
        let (mut has_moved, mut is_drained) = (false, false);
        for _ in 0..ROUNDS {
            let count = self.rails[rail].end().map_or(0, |end| end.poll(&mut ended));
            has_moved |= count > 0;
            ended[..count].iter().for_each(|end| self.has_ended(rail, end, ears));
            is_drained = count < BURST;
            if is_drained {
                break;
            }
        }
        self.ended = ended;
        if is_drained && self.has_closed {
            self.has_closed = false;
            let ids: Vec<u32> = self
                .remotes
                .iter()
                .filter(|(_, remote)| remote.trunk.closing().next().is_some())
                .map(|(id, _)| *id)
                .collect();
            ids.into_iter().for_each(|id| self.drained(id, rail));
            self.has_closed = self.remotes.values().any(|remote| remote.trunk.closing().next().is_some());
            has_moved = true;
        }
        for _ in 0..BURST {
            let Some(told) = self.rails[rail].end().and_then(slurpoe::Endpoint::told) else { break };
            has_moved = true;
            self.was_told(rail, &told);
        }
        has_moved
    }

    fn has_ended(&mut self, rail: usize, end: &Completion, ears: &mut Ears<'_>) {
        if end.kind == Kind::Over {
            if let Some((id, path)) = self.path_of(rail, end.other) {
                self.close(id, path);
            }
            return;
        }
        if let Some((id, serial)) = of_token(end.token) {
            // Those that have failed end with their path.
            if let Some(remote) = self.remotes.get_mut(&id).filter(|_| end.failed.is_none()) {
                remote.acknowledged(serial, ears.engine);
            } else if end.failed == Some(slurpoe::Failed::RemoteAccess)
                && let Some(pair) = self.remotes.get(&id).and_then(|remote| remote.pair)
            {
                ears.engine.give_up(pair, Breach::Grant);
            }
            return;
        }
        let mut words = [0; WORDS];
        let count = self.rails[rail].take(
            end.token as usize,
            if end.failed.is_none() { end.len as usize } else { 0 },
            &mut words,
        );
        if end.failed.is_none() {
            self.heard(rail, end.other, &words[..count], ears);
        }
    }

    fn heard(&mut self, rail: usize, other: Address, words: &[u64], ears: &mut Ears<'_>) {
        let record = Record::read(words);
        let Some((id, path)) = self.path_of(rail, other) else {
            return self.heard_from_stranger(rail, other, record);
        };
        let Some(record) = record else { return self.lose(id, Breach::Nonsense, ears.engine) };
        if self.meets(id, rail, other, &record) {
            return;
        }
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let bells = remote.bells.has_more();
        let was_live = remote.trunk.state(path) == trunk::State::Live;
        let heard = remote.hear(path, &record, ears);
        self.bells_noted += u64::from(!bells && remote.bells.has_more() && !remote.bells.is_into_lent);
        self.counters.paths_begun += u64::from(!was_live && remote.trunk.state(path) == trunk::State::Live);
        match heard {
            Heard::Nothing => {}
            Heard::Met(pair) => self.met(id, pair),
            Heard::Over(path) => self.end(id, path),
            Heard::Breach(breach) => self.lose(id, breach, ears.engine),
        }
    }

    fn path_of(&self, rail: usize, other: Address) -> Option<(u32, usize)> {
        self.remotes.iter().find_map(|(id, remote)| Some((*id, remote.path_of(rail, other)?)))
    }

    /// The other end has ended its half of a path: this one ends, too.
    fn end(&mut self, id: u32, path: usize) {
        if let Some(remote) = self.remotes.get(&id) {
            remote.disconnect(path, &self.rails);
        }
        self.close(id, path);
    }

    /// A path is over: its connection has ended.
    fn close(&mut self, id: u32, path: usize) {
        if let Some(remote) = self.remotes.get_mut(&id)
            && remote.close(path)
        {
            self.counters.paths_lost += 1;
            self.has_closed = true;
        }
    }

    fn drained(&mut self, id: u32, rail: usize) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        if !remote.drained(rail) {
            return;
        }
        match remote.pair {
            Some(pair) if !self.gone.contains(&pair) => self.gone.push_back(pair),
            Some(_) => {}
            // One that has called is looked at by its call.
            None => drop(self.forget(id)),
        }
    }

    /// The other end has done what it may not.
    fn lose(&mut self, id: u32, breach: Breach, engine: &mut Engine) {
        match self.remotes.get(&id).and_then(|remote| remote.pair) {
            Some(pair) => engine.give_up(pair, breach),
            None => {
                self.counters.strange += 1;
                self.forget(id);
            }
        }
    }

    fn met(&mut self, id: u32, pair: PairId) {
        let at = pair.0 as usize;
        if self.pairs.len() <= at {
            self.pairs.resize(at + 1, None);
        }
        self.pairs[at] = Some(id);
        let calls = self.calls.iter_mut().filter(|(_, call)| call.waits_for(id));
        let is_called = calls.map(|(_, call)| call.is_answered(pair)).count() > 0;
        let Some(Remote { card: Some(card), .. }) = self.remotes.get(&id) else { return };
        let Card { name, host, user, .. } = card.clone();
        self.joined.push_back(Joined { pair, name, host, user, is_called });
    }

    /// Nothing is left of another end: its paths are over here, and it is told.
    fn forget(&mut self, id: u32) -> Vec<crate::engine::Ticket> {
        let Some(mut remote) = self.remotes.remove(&id) else { return Vec::new() };
        (0..remote.lanes.len()).for_each(|path| remote.disconnect(path, &self.rails));
        self.counters.doubled += remote.trunk.doubled;
        self.counters.unwanted += remote.bells.unwanted;
        remote.trunk.give_up()
    }

    /// Whether a pair is one of another host.
    pub fn has(&self, pair: PairId) -> bool {
        self.pairs.get(pair.0 as usize).is_some_and(Option::is_some)
    }

    /// A pair is lost, or left.
    pub fn part(&mut self, pair: PairId, engine: &mut Engine) {
        let Some(id) = self.pairs.get_mut(pair.0 as usize).and_then(Option::take) else { return };
        self.gone.retain(|gone| *gone != pair);
        // Nobody reads their send buffers any more.
        for ticket in self.forget(id) {
            engine.finished(ticket, false);
        }
    }

    /// The next one that has joined.
    pub fn joined(&mut self) -> Option<Joined> {
        self.joined.pop_front()
    }

    /// The next one whose last path is over.
    pub fn gone(&mut self) -> Option<PairId> {
        self.gone.pop_front()
    }

    /// Whether somebody has joined or gone, and nobody was told.
    pub fn has_news(&self) -> bool {
        !self.joined.is_empty() || !self.gone.is_empty()
    }

    /// Whether time has to go on: for those that there are, or that are called.
    pub fn ticks(&self) -> bool {
        !self.remotes.is_empty() || !self.calls.is_empty() || self.rails.iter().any(|rail| rail.end().is_none())
    }

    /// Says that somebody waits for the descriptors. Whether he may: nothing has come meanwhile.
    pub fn doze(&self) -> bool {
        self.rails.iter().filter_map(Rail::end).all(slurpoe::Endpoint::arm)
    }

    /// A descriptor was readable.
    pub fn rung(&self, rail: usize) {
        if let Some(end) = self.rails.get(rail).and_then(Rail::end) {
            let _ = rustix::io::read(end.descriptor(), &mut [0; 8]);
        }
    }

    /// Whether all that was said has arrived, with those that can still be reached.
    pub fn is_quiet(&self) -> bool {
        self.remotes
            .values()
            .filter(|remote| remote.stage == Stage::Met)
            .all(|remote| remote.trunk.is_quiet() || !remote.trunk.is_alive())
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        let mut all = self.counters.clone();
        for remote in self.remotes.values() {
            all.doubled += remote.trunk.doubled;
            all.unwanted += remote.bells.unwanted;
        }
        all.written = self.rails.iter().map(Rail::written).collect();
        all
    }
}
