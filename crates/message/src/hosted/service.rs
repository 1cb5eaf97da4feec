//! All programs of a card: who finds whom, what goes from one to the other, and turns.

use super::program::{BELLS, Outside, Owner, Program};
use super::wire::Told;
use crate::control::Control;
use crate::endpoint::Peer;
use crate::engine::{Arrived, Outgoing, PairId};
use millrace_dma::Window;
use millrace_ring::lines::MOST_WORDS;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};

/// What is taken from a program, and said for it, in one turn.
const TURN: usize = 64;
/// Bytes that are copied for a program in one turn.
const COPIED: u64 = 256 << 10;
/// Turns in which it is heard what somebody has said who has gone: all that there is room for.
const LAST: usize = 1024;

/// Answers to who looks for somebody.
pub(super) mod found {
    pub const HERE: u8 = 0;
    pub const NOBODY: u8 = 1;
    pub const USER: u8 = 2;
    pub const FULL: u8 = 3;
    pub const FULL_THERE: u8 = 4;
}

/// Answers to who rings.
pub(super) mod rung {
    pub const RUNG: u8 = 0;
    pub const QUEUE: u8 = 1;
    pub const UNWANTED: u8 = 2;
    pub const GONE: u8 = 3;
}

/// A program of a card. Its number is used again after it has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub u32);

/// A program was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnterError {
    /// Somebody has its name.
    #[error("another program of this user has that name")]
    Taken,
    /// Its memory is too short for the rings.
    #[error("the memory is too short")]
    Memory,
}

/// Whether the thread of a card may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doze {
    /// There is something to do.
    Awake,
    /// It is woken.
    Asleep,
    /// It is woken; somebody does not take what he is told, and nobody says when he does.
    Impatient,
}

/// The engine of messages of a card.
pub struct Service {
    programs: Slab<Program>,
    names: BTreeMap<(u32, String), usize>,
    /// The number of the next pair, at each of its ends.
    serial: u32,
    /// Whose turn is first.
    first: usize,
    /// Programs that are to be woken; that are to be hung up on.
    to_wake: VecDeque<ProgramId>,
    to_put_out: VecDeque<ProgramId>,
    /// What a program asks for just now.
    words: Box<[u64; MOST_WORDS]>,
    /// Bytes that were copied from program to program.
    pub copied: u64,
}

impl Default for Service {
    fn default() -> Self {
        let (programs, names, to_wake, to_put_out) = Default::default();
        let words = Box::new([0; MOST_WORDS]);
        Self { programs, names, serial: 0, first: 0, to_wake, to_put_out, words, copied: 0 }
    }
}

/// What a program leaves: its memory, which takes a while to be given back.
pub struct Left {
    _program: Box<dyn Send>,
}

impl Service {
    /// A program with its memory, which is as `wire` says and belongs to it; nobody has written to it.
    ///
    /// # Errors
    /// [`EnterError`].
    pub fn enter(&mut self, owner: Owner, memory: Window) -> Result<ProgramId, EnterError> {
        let name = owner.name.clone().map(|name| (owner.user, name));
        if name.as_ref().is_some_and(|name| self.names.contains_key(name)) {
            return Err(EnterError::Taken);
        }
        let program = Program::new(owner, memory).map_err(|_| EnterError::Memory)?;
        let at = self.programs.insert(program);
        if let Some(name) = name {
            self.names.insert(name, at);
        }
        Ok(ProgramId(at as u32))
    }

    /// A program has gone: what it has asked for before counts, and short messages of it can be received still.
    pub fn leave(&mut self, id: ProgramId) -> Option<Left> {
        let at = id.0 as usize;
        self.programs.get(at)?;
        self.take_all(at, LAST);
        self.say(at, LAST);
        for pair in 0..self.programs[at].links.len() {
            self.part(at, PairId(pair as u32));
        }
        let program = self.programs.remove(at);
        self.names.retain(|_, named| *named != at);
        self.to_wake.retain(|other| *other != id);
        self.to_put_out.retain(|other| *other != id);
        Some(Left { _program: Box::new(program) })
    }

    /// Programs.
    pub fn len(&self) -> usize {
        self.programs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// Does some of what is to be done for each program. Whether there was something.
    pub fn turn(&mut self) -> bool {
        let mut has_moved = false;
        let count = self.programs.capacity();
        self.first = (self.first + 1).checked_rem(count).unwrap_or(0);
        for step in 0..count {
            let at = (self.first + step) % count;
            let Some(program) = self.programs.get(at) else { continue };
            let is_idle = !program.has_work() && !program.has_backlog() && !program.has_asked();
            if !is_idle {
                has_moved |= self.turn_of(at);
            }
        }
        has_moved
    }

    fn turn_of(&mut self, at: usize) -> bool {
        let mut has_moved = self.take_all(at, TURN);
        has_moved |= self.say(at, TURN);
        has_moved |= self.copy(at);
        self.tell(at) || has_moved
    }

    /// Writes to a program what it is to know.
    fn tell(&mut self, at: usize) -> bool {
        let Some(program) = self.programs.get_mut(at) else { return false };
        program.harvest();
        let has_written = program.write();
        if program.must_wake() {
            self.to_wake.push_back(ProgramId(at as u32));
        }
        has_written
    }

    /// Takes what a program asks for.
    fn take_all(&mut self, at: usize, most: usize) -> bool {
        for taken in 0..most {
            let Some(program) = self.programs.get_mut(at).filter(|program| program.is_heard()) else {
                return taken > 0;
            };
            match program.take(&mut self.words) {
                Ok(Some(None)) => {}
                Ok(Some(Some(outside))) => self.act(at, outside),
                Ok(None) => return taken > 0,
                Err(_) => {
                    program.is_out = true;
                    self.to_put_out.push_back(ProgramId(at as u32));
                    return true;
                }
            }
        }
        true
    }

    fn act(&mut self, at: usize, outside: Outside) {
        match outside {
            Outside::Leave(pair) => self.part(at, pair),
            Outside::Connect(user, name) => {
                let (code, value) = match self.connect(at, user, name) {
                    Ok(peer) => (found::HERE, peer.number()),
                    Err(code) => (code, 0),
                };
                self.programs[at].tell(Told::Answer { code, value });
            }
            Outside::Ring(to, number) => {
                let code = self.ring(at, to, number);
                self.programs[at].tell(Told::Answer { code, value: 0 });
            }
        }
    }

    fn connect(&mut self, at: usize, user: u32, name: String) -> Result<Peer, u8> {
        let other = *self.names.get(&(user, name)).ok_or(found::NOBODY)?;
        let own = self.programs[at].owner.clone();
        if !self.programs[other].owner.takes(own.user) {
            return Err(found::USER);
        }
        if self.programs[other].is_full() {
            return Err(found::FULL_THERE);
        }
        if self.programs[at].is_full() {
            return Err(found::FULL);
        }
        self.programs[at].harvest();
        self.programs[other].harvest();
        let [mine, theirs] = [at, other].map(|at| {
            self.serial = self.serial.wrapping_add(1).max(1);
            let pair = self.programs[at].connect(self.serial);
            (pair, Peer::of_number(u64::from(self.serial) << 32 | u64::from(pair.map_or(0, |pair| pair.0))))
        });
        let (Some(pair), Some(back)) = (mine.0, theirs.0) else { return Err(found::FULL) };
        if let Some(link) = self.programs[at].link(pair) {
            link.other = Some((other, back));
        }
        if let Some(link) = self.programs[other].link(back) {
            link.other = Some((at, pair));
        }
        let (user, pid, name) = (own.user, own.pid, own.name.unwrap_or_default());
        self.programs[other].tell(Told::Joined { peer: theirs.1.number(), user, pid, name });
        self.tell(other);
        Ok(mine.1)
    }

    fn ring(&mut self, at: usize, to: Peer, number: u16) -> u8 {
        let program = &self.programs[at];
        let other = program.pair(to.number()).and_then(|pair| program.other(pair));
        let Some((other, back)) = other else { return rung::GONE };
        let program = &mut self.programs[other];
        let Some(owner) = program.wants(number) else { return rung::UNWANTED };
        let Some(link) = program.link(back).filter(|link| link.bells < BELLS) else { return rung::QUEUE };
        link.bells += 1;
        let from = link.peer.number();
        program.tell(Told::Bell { from, number, owner });
        self.tell(other);
        rung::RUNG
    }

    /// Carries what a program has to say to others.
    fn say(&mut self, at: usize, most: usize) -> bool {
        let mut has_said = false;
        for _ in 0..most {
            let Some(program) = self.programs.get_mut(at) else { break };
            let Some(pair) = program.engine.talker() else { break };
            let Some((other, back)) = program.other(pair) else { continue };
            has_said = true;
            for _ in 0..most {
                if !self.say_next(at, pair, other, back) {
                    break;
                }
            }
            self.programs[at].engine.more_to_say(pair);
            self.programs[other].pull();
            if other != at {
                self.tell(other);
            }
        }
        has_said
    }

    /// Says the next thing. Whether there was one, and the pair lives.
    fn say_next(&mut self, at: usize, pair: PairId, other: usize, back: PairId) -> bool {
        let program = &mut self.programs[at];
        let Some(outgoing) = program.engine.outgoing(pair) else { return false };
        let (control, words) = match outgoing {
            Outgoing::Control(control) => (control, Vec::new()),
            Outgoing::Eager { request, tag, len } => (Control::Eager { tag, len }, program.take_words(request)),
        };
        program.engine.said(pair);
        match self.programs[other].engine.arrive(back, control, &words) {
            Ok(Arrived::Taken) => true,
            Ok(Arrived::Deliver(request)) => {
                self.programs[other].put_words(request, words);
                true
            }
            // Both are ours: that the engine refuses what it has said itself is no case that is known.
            Err(_) => {
                self.part(at, pair);
                false
            }
        }
    }

    /// Copies a part of a message that a program receives.
    fn copy(&mut self, at: usize) -> bool {
        let Some(program) = self.programs.get_mut(at) else { return false };
        program.pull();
        let mut left = COPIED;
        let mut has_copied = false;
        while left > 0 {
            let program = &self.programs[at];
            let Some(&(action, origin, done)) = program.copies.front() else { break };
            let len = (action.len - done).min(left);
            left -= len;
            has_copied = true;
            let offset = action.offset + done;
            let to = program.place_of(action.request).and_then(|to| program.part(to + offset, len as usize));
            let from = program.other(action.pair).and_then(|(other, _)| self.programs.get(other));
            let from = from.and_then(|other| other.part(origin.address + offset, len as usize));
            let is_good = copy(from.as_ref(), to.as_ref(), len as usize);
            self.copied += len;
            let program = &mut self.programs[at];
            if !is_good || done + len == action.len {
                program.copies.pop_front();
                program.engine.finished(action.ticket, is_good);
                program.pull();
            } else if let Some(front) = program.copies.front_mut() {
                front.2 += len;
            }
        }
        has_copied |= self.say(at, TURN);
        has_copied
    }

    /// Ends a pair that one of both ends does not want any more, or that cannot go on.
    fn part(&mut self, at: usize, pair: PairId) {
        let Some(link) = self.programs[at].link(pair) else { return };
        let other = link.other;
        self.programs[at].harvest();
        self.programs[at].lose(pair);
        self.programs[at].engine.forget_pair(pair);
        self.programs[at].harvest();
        let Some((other, back)) = other else { return };
        let Some(link) = self.programs[other].link(back) else { return };
        let peer = link.peer;
        self.programs[other].harvest();
        self.programs[other].lose(back);
        self.programs[other].harvest();
        self.programs[other].tell_loss(peer);
        self.tell(other);
    }

    /// The next program that sleeps and has been told something.
    pub fn take_wake(&mut self) -> Option<ProgramId> {
        self.to_wake.pop_front()
    }

    /// The next program that has asked for what cannot be asked for, and is to be hung up on.
    pub fn take_put_out(&mut self) -> Option<ProgramId> {
        self.to_put_out.pop_front()
    }

    /// Says that programs are to wake the card.
    pub fn doze(&mut self) -> Doze {
        let mut doze = Doze::Asleep;
        for (_, program) in &mut self.programs {
            if program.has_work() || !program.doze() {
                return Doze::Awake;
            }
            if program.has_backlog() {
                doze = Doze::Impatient;
            }
        }
        doze
    }

    /// Is awake.
    pub fn awake(&mut self) {
        self.programs.iter().for_each(|(_, program)| program.awake());
    }
}

/// Copies from the memory of one program to that of another.
fn copy(from: Option<&Window>, to: Option<&Window>, len: usize) -> bool {
    let from = from.and_then(|from| from.span(0, len));
    let to = to.and_then(|to| to.span_mut(0, len));
    matches!((from, to), (Some(from), Some(to)) if from.copy_to(to) == len)
}
