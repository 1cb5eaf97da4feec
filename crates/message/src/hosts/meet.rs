//! How endpoints of different hosts meet: one asks on all its rails who has a name, and calls who answers.
//!
//! ```text
//! question (to all ends of the wire) ------->
//!                                    <------- answer: which opening, which rail
//! a connection of the RDMA engine   <------->
//! hello: terms, key of receive buffers ----->
//!                                    <------- welcome: the same; which doorbells are wanted
//! which doorbells are wanted ---------------->
//! and for each other path: a connection, join, joined
//! ```

use super::discover::{Answer, Question, Target};
use super::pair::{Lane, Memory, Remote, Stage};
use super::paths::assign;
use super::rail::Rail;
use super::record::{Card, Record};
use super::trunk::State;
use super::{Hosts, Own};
use crate::endpoint::Refusal;
use crate::engine::{Engine, PairId};
use millrace_slurpoe::{Address, Told};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// How long after a question the next one goes, and how long answers are waited for after the first.
const ASK_AGAIN: Duration = Duration::from_millis(20);
const GATHER: Duration = Duration::from_millis(20);
/// How long a greeting may take.
pub(crate) const GREETING: Duration = Duration::from_secs(2);
/// Calls that are being refused, at a time.
const MOST_REFUSED: usize = 8;
/// Answers to one call.
const MOST_ANSWERS: usize = 64;
/// Why somebody who was called is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// On several hosts there is one of that name.
    Several(Vec<String>),
    /// It does not want to.
    Refused(Refusal),
    /// There are as many others as there may be, so many.
    Full(u32),
    /// Memory cannot be had.
    Memory(String),
}

#[derive(Debug)]
enum Stands {
    Asking,
    /// With which of the others.
    Greeting(u32),
    Ended(Result<PairId, CallError>),
}

/// A call of the program.
#[derive(Debug)]
pub struct Call {
    number: u64,
    target: Target,
    ask_at: Instant,
    first: Option<Instant>,
    answers: Vec<(usize, Address, Answer)>,
    stands: Stands,
    /// Somebody has answered the call, ever.
    was_answered: bool,
}

impl Call {
    pub fn waits_for(&self, id: u32) -> bool {
        matches!(self.stands, Stands::Greeting(other) if other == id)
    }

    pub fn is_answered(&mut self, pair: PairId) {
        self.stands = Stands::Ended(Ok(pair));
    }

    fn again(&mut self, now: Instant) {
        (self.stands, self.first, self.ask_at) = (Stands::Asking, None, now);
        self.answers.clear();
    }
}

impl Hosts {
    /// Begins to call somebody: a number for [`Hosts::called`] and [`Hosts::end_call`].
    pub fn call(&mut self, target: Target) -> usize {
        let number = RandomState::new().hash_one(self.calls.len());
        let (ask_at, first, answers) = (Instant::now(), None, Vec::new());
        let call = Call { number, target, ask_at, first, answers, stands: Stands::Asking, was_answered: false };
        self.look_at = ask_at;
        self.calls.insert(call)
    }

    /// What has come of a call, when something has.
    pub fn called(&self, call: usize) -> Option<Result<PairId, CallError>> {
        match &self.calls.get(call)?.stands {
            Stands::Ended(result) => Some(result.clone()),
            Stands::Asking | Stands::Greeting(_) => None,
        }
    }

    /// Whether somebody has answered a call, of whom it is not known yet what comes of it.
    pub fn is_answered(&self, call: usize) -> bool {
        let is_it = |call: &Call| matches!(call.stands, Stands::Greeting(_)) || call.first.is_some();
        self.calls.get(call).is_some_and(|call| is_it(call) && !matches!(call.stands, Stands::Ended(_)))
    }

    /// Nobody waits for a call any more. Whether somebody has answered it.
    pub fn end_call(&mut self, call: usize) -> bool {
        let Some(call) = self.calls.try_remove(call) else { return false };
        if let Stands::Greeting(id) = call.stands
            && self.remotes.get(&id).is_some_and(|remote| remote.stage != Stage::Met && remote.has_called)
        {
            self.forget(id);
        }
        call.was_answered
    }

    /// Somebody has told this end something, or all.
    pub(super) fn was_told(&mut self, rail: usize, told: &Told) {
        if let Some(question) = Question::read(&told.bytes) {
            self.was_asked(rail, told.from, &question);
        } else if let Some(answer) = Answer::read(&told.bytes)
            && let Some(id) = self.searches(&answer)
        {
            self.found(id, rail, told.from, &answer);
        } else if let Some(answer) = Answer::read(&told.bytes)
            && let Some((_, call)) = self.calls.iter_mut().find(|(_, call)| call.number == answer.call)
            && matches!(call.stands, Stands::Asking)
            && call.answers.len() < MOST_ANSWERS
            && answer.id != self.id
        {
            let is_known = call.answers.iter().any(|(at, from, _)| (*at, *from) == (rail, told.from));
            if !is_known {
                call.was_answered = true;
                call.first.get_or_insert_with(Instant::now);
                call.answers.push((rail, told.from, answer));
            }
        } else {
            self.counters.strange += 1;
        }
    }

    fn was_asked(&mut self, rail: usize, from: Address, question: &Question) {
        let Own { name, host, user, .. } = &self.own;
        let Target { host: wanted, user: whose, name: called } = &question.target;
        let is_it = name.as_ref() == Some(called)
            && wanted.as_ref().is_none_or(|wanted| wanted == host)
            && whose.is_none_or(|whose| whose == *user);
        if !is_it {
            return;
        }
        if self.questions == 0 {
            self.counters.questions_dropped += 1;
            return;
        }
        self.questions -= 1;
        let (rails, host) = (self.rails.len() as u8, host.clone());
        let answer = Answer { call: question.call, id: self.id, user: *user, rail: rail as u8, rails, host };
        if let Some(end) = self.rails[rail].end() {
            let _ = end.tell(Some(from), &answer.write());
        }
    }

    /// Moves calls on.
    pub(super) fn look_at_calls(&mut self, now: Instant, engine: &Engine) {
        let calls: Vec<usize> = self.calls.iter().map(|(at, _)| at).collect();
        for at in calls {
            match self.calls[at].stands {
                Stands::Asking if self.calls[at].first.is_some_and(|first| now >= first + GATHER) => {
                    let stands = self.choose(at, now, engine);
                    match stands {
                        Some(stands) => self.calls[at].stands = stands,
                        None => self.calls[at].again(now),
                    }
                }
                Stands::Asking if now >= self.calls[at].ask_at => self.ask(at, now),
                Stands::Greeting(id) => self.look_at_greeting(at, id, now),
                Stands::Asking | Stands::Ended(_) => {}
            }
        }
    }

    fn ask(&mut self, at: usize, now: Instant) {
        let call = &mut self.calls[at];
        call.ask_at = now + ASK_AGAIN;
        let question = Question { call: call.number, target: call.target.clone() }.write();
        for end in self.rails.iter().filter_map(Rail::end) {
            let _ = end.tell(None, &question);
        }
    }

    /// Who has answered is called. `None`: it is to be asked again.
    fn choose(&mut self, at: usize, now: Instant, engine: &Engine) -> Option<Stands> {
        let call = &self.calls[at];
        let id = call.answers.first()?.2.id;
        if call.answers.iter().any(|(.., answer)| answer.id != id) {
            let mut hosts: Vec<String> = call.answers.iter().map(|(.., answer)| answer.host.clone()).collect();
            hosts.sort();
            hosts.dedup();
            return Some(Stands::Ended(Err(CallError::Several(hosts))));
        }
        // Two ends have one connection at most.
        if let Some(known) = self.of_card(id) {
            return Some(match self.remotes[&known].pair {
                Some(pair) => Stands::Ended(Ok(pair)),
                None => Stands::Greeting(known),
            });
        }
        if engine.pairs() >= self.own.peers as usize {
            return Some(Stands::Ended(Err(CallError::Full(self.own.peers))));
        }
        let paths = assign(&call.answers);
        let target = call.target.clone();
        let theirs = call.answers.first()?.2.rails;
        let memory = match Memory::new(self.own.terms) {
            Ok(memory) => memory,
            Err(error) => return Some(Stands::Ended(Err(CallError::Memory(error.to_string())))),
        };
        let mut remote = Remote::new(self.next_id(), RandomState::new().hash_one(id), true, memory, now);
        remote.called = Some((id, target));
        remote.search.number = RandomState::new().hash_one(remote.number);
        remote.search.rails = theirs;
        for (path, (rail, other, theirs)) in paths.into_iter().enumerate() {
            let shared = self.rails[rail].share(&remote.memory).ok()?;
            remote.lanes[path] = Some(Lane { rail, other, theirs, shared, key: 0, again: now });
        }
        let id = remote.id;
        self.remotes.insert(id, remote);
        Some(Stands::Greeting(id))
    }

    /// Which of the others is that opening of an endpoint, or was called as it.
    fn of_card(&self, id: u64) -> Option<u32> {
        let is_it = |remote: &Remote| {
            remote.card.as_ref().is_some_and(|card| card.id == id)
                || remote.called.as_ref().is_some_and(|called| called.0 == id)
        };
        self.remotes.iter().find(|(_, remote)| is_it(remote)).map(|(id, _)| *id)
    }

    fn next_id(&mut self) -> u32 {
        self.next = (self.next + 1) & 0x7fff_ffff;
        self.next
    }

    /// Says hello when there is a connection, by another path when there is none.
    fn look_at_greeting(&mut self, at: usize, id: u32, now: Instant) {
        let Some(remote) = self.remotes.get(&id) else { return self.calls[at].again(now) };
        if remote.begun + GREETING < now {
            self.forget(id);
            return self.calls[at].again(now);
        }
        if remote.stage != Stage::Calling || remote.trunk.state(0) != State::Down || !remote.trunk.may_begin(0) {
            return;
        }
        let card = self.card();
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let Some(lane) = &remote.lanes[0] else { return };
        let asked = self.rails[lane.rail].end().map(|end| end.ask(lane.other));
        match asked {
            Some(Ok(true)) => {
                remote.trunk.join(0);
                let to = remote.called.as_ref().map_or(0, |called| called.0);
                let hello = Record::Hello { pair: remote.number, to, key: lane.shared.key(), card };
                remote.tell(0, &hello);
            }
            Some(Ok(false)) => {}
            // It is full, or ends: by another path, or another time.
            Some(Err(_)) | None => {
                let count = remote.lanes.iter().flatten().count().max(1);
                remote.lanes[..count].rotate_left(1);
            }
        }
    }

    /// What a stranger says: he may greet, or bring a path to one who has greeted.
    pub(super) fn heard_from_stranger(&mut self, rail: usize, other: Address, record: Option<Record<'_>>) {
        let is_taken = match record {
            Some(Record::Hello { pair, to, key, card }) => self.greeted(rail, other, (pair, to, key), card),
            Some(Record::Join { path, epoch, pair, key, expected }) => {
                self.joins(rail, other, (path, epoch, expected), (pair, key))
            }
            _ => false,
        };
        if !is_taken {
            self.counters.strange += 1;
            if let Some(end) = self.rails[rail].end() {
                end.disconnect(other);
            }
        }
    }

    /// What ends say to each other before they are a pair, and of paths. Whether it was such.
    pub(super) fn meets(&mut self, id: u32, rail: usize, other: Address, record: &Record<'_>) -> bool {
        let Some(remote) = self.remotes.get_mut(&id) else { return true };
        match record {
            Record::Welcome { pair, key, card } if remote.stage == Stage::Calling && *pair == remote.number => {
                if remote.called.as_ref().is_none_or(|called| called.0 != card.id) || !remote.trunk.begin(0, 1) {
                    self.forget(id);
                    return true;
                }
                remote.stage = Stage::Greeted;
                remote.card = Some(card.clone());
                if let Some(lane) = &mut remote.lanes[0] {
                    lane.key = *key;
                }
                true
            }
            Record::Refused { pair, why } if remote.stage == Stage::Calling && *pair == remote.number => {
                self.forget(id);
                for (_, call) in self.calls.iter_mut().filter(|(_, call)| call.waits_for(id)) {
                    call.stands = Stands::Ended(Err(CallError::Refused(*why)));
                }
                true
            }
            // Both have called. The one with the lower number has, and the other one is called.
            Record::Hello { pair, to, key, card } => {
                let is_ours =
                    remote.stage == Stage::Calling && remote.called.as_ref().is_some_and(|called| called.0 == card.id);
                if is_ours && self.id < card.id {
                    return true;
                }
                let waiting: Vec<usize> =
                    self.calls.iter().filter(|(_, call)| call.waits_for(id)).map(|(at, _)| at).collect();
                if !is_ours {
                    // It has forgotten this end, and calls again; it has to, once more, when this one has forgotten it.
                    match remote.pair {
                        Some(pair) if !self.gone.contains(&pair) => self.gone.push_back(pair),
                        Some(_) => {}
                        None => {
                            // The connection is the new one's by now.
                            if let Some(path) = remote.path_of(rail, other) {
                                remote.lanes[path] = None;
                            }
                            self.forget(id);
                            self.heard_from_stranger(rail, other, Some(record.clone()));
                            return true;
                        }
                    }
                    if let Some(end) = self.rails[rail].end() {
                        end.disconnect(other);
                    }
                    return true;
                }
                // What was said by this end meets nobody: its connection stays.
                self.remotes.remove(&id);
                if self.greeted(rail, other, (*pair, *to, *key), card.clone())
                    && let Some(now) = self.of_card(card.id)
                {
                    waiting.into_iter().for_each(|at| self.calls[at].stands = Stands::Greeting(now));
                }
                true
            }
            Record::Join { path, epoch, pair, key, expected } => {
                self.joins(rail, other, (*path, *epoch, *expected), (*pair, *key));
                true
            }
            _ => false,
        }
    }

    /// Somebody calls this end. Whether he is let in.
    fn greeted(&mut self, rail: usize, other: Address, (pair, to, key): (u64, u64, u32), card: Card) -> bool {
        let now = Instant::now();
        if to != self.id || self.own.name.is_none() || card.id == self.id || self.of_card(card.id).is_some() {
            return false;
        }
        // As many as are to be, with those that have not said all. Who is one too many is told so, and costs no receive buffers; of those there are a few.
        let count =
            self.remotes.values().filter(|remote| remote.pair.is_none()).count() + self.pairs.iter().flatten().count();
        let most = self.own.peers as usize;
        if count >= most + MOST_REFUSED {
            return false;
        }
        let memory = if count < most { Memory::new(self.own.terms) } else { Memory::to_refuse() };
        let shared = memory.and_then(|memory| Ok((self.rails[rail].share(&memory)?, memory)));
        let Ok((shared, memory)) = shared else { return false };
        let mut remote = Remote::new(self.next_id(), pair, false, memory, now);
        let own_key = shared.key();
        remote.lanes[0] = Some(Lane { rail, other, theirs: 0, shared, key, again: now });
        remote.trunk.begin(0, 1);
        remote.card = Some(card);
        if count >= most {
            remote.stage = Stage::Calling;
            remote.tell(0, &Record::Refused { pair, why: Refusal::Full });
        } else {
            remote.tell(0, &Record::Welcome { pair, key: own_key, card: self.card() });
        }
        self.remotes.insert(remote.id, remote);
        true
    }
}
