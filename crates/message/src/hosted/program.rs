//! One program of a card: its endpoint, its rings and its memory. What concerns two of them is in `service`.

use super::wire::{Asked, BYTES_AT, End, INLINE, LINES, NEWS_AT, NOWHERE, POOL_AT, SLOTS, Told};
use crate::Scheme;
use crate::bell::Filter;
use crate::control::{Origin, Tag};
use crate::endpoint::{Peer, Users};
use crate::engine::{Action, Cancel, Engine, Limits, Outcome, PairId, RequestId, Way, Work};
use millrace_dma::{OutOfRange, Window};
use millrace_ring::lines::{self, MOST_WORDS};
use std::collections::VecDeque;

/// Messages of one sender that can lie in the card unmatched.
const CREDITS: u16 = 16;
/// Others at a time.
pub(super) const PEERS: usize = 64;
/// With so much that it has not been told nothing more is taken from it.
const BACKLOG: usize = 64;
/// Doorbells of one other end that it has not taken.
pub(super) const BELLS: u32 = 256;

/// Whose endpoint it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub user: u32,
    /// The number of its process; 0 in another container.
    pub pid: u32,
    /// By which others find it.
    pub name: Option<String>,
    /// Who may call.
    pub users: Users,
}

impl Owner {
    /// Whether somebody may call.
    pub(super) fn takes(&self, user: u32) -> bool {
        let is_own = user == self.user || user == 0;
        is_own
            || match &self.users {
                Users::Own => false,
                Users::Also(users) => users.contains(&user),
                Users::Anybody => true,
            }
    }
}

/// Another program.
pub(super) struct Link {
    pub peer: Peer,
    /// Which, and as what it knows this one. `None`: it has gone.
    pub other: Option<(usize, PairId)>,
    /// Doorbells from there that were not taken.
    pub bells: u32,
}

/// A message that has not ended.
struct Open {
    slot: u16,
    /// Where it is in the program's memory.
    at: u64,
    /// The bytes of a short one: of what is sent until it is said, of what is received until it is told.
    words: Vec<u64>,
}

/// What it asks for has no meaning: it is put out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nonsense;

/// What concerns others.
#[derive(Debug)]
pub(super) enum Outside {
    Leave(PairId),
    Connect(u32, String),
    Ring(Peer, u16),
}

pub(super) struct Program {
    pub owner: Owner,
    pub engine: Engine,
    pub links: Vec<Option<Link>>,
    pub filter: Filter,
    memory: Window,
    asked: lines::Receiver,
    news: lines::Sender,
    out: Vec<u64>,
    /// Numbers of the program that are in use, and for what.
    slots: Vec<Option<Option<RequestId>>>,
    open: Vec<Option<Open>>,
    /// What it was not told yet, and those of it that say that somebody has gone.
    backlog: VecDeque<(Told, Vec<u64>)>,
    untold_losses: usize,
    /// Parts of messages that are to be copied, with what was copied of them.
    pub copies: VecDeque<(Action, Origin, u64)>,
    /// It was told something.
    pub has_news: bool,
    /// It is put out.
    pub is_out: bool,
}

impl Program {
    pub fn new(owner: Owner, memory: Window) -> Result<Self, OutOfRange> {
        let limits = Limits { credits: CREDITS, eager: INLINE as u16, smbs: 1, rmbs: 1, slots: 1, ..Limits::default() };
        memory.part(0, POOL_AT)?;
        Ok(Self {
            owner,
            engine: Engine::new(limits).expect("limits of a hosted endpoint"),
            links: Vec::new(),
            filter: Filter::default(),
            asked: lines::Receiver::new(&memory, LINES)?,
            news: lines::Sender::new(&memory.part(NEWS_AT, NEWS_AT)?, LINES)?,
            memory,
            out: Vec::with_capacity(MOST_WORDS),
            slots: vec![None; SLOTS],
            open: Vec::new(),
            backlog: VecDeque::new(),
            untold_losses: 0,
            copies: VecDeque::new(),
            has_news: false,
            is_out: false,
        })
    }

    /// A part of its memory.
    pub fn part(&self, at: u64, len: usize) -> Option<Window> {
        usize::try_from(at).ok().and_then(|at| self.memory.part(at, len).ok())
    }

    /// Whether messages may be there.
    fn has(&self, at: u64, len: u64) -> bool {
        at >= POOL_AT as u64 && at.checked_add(len).is_some_and(|end| end <= self.memory.len() as u64)
    }

    /// The pair that it calls so, if it has not gone for good.
    pub fn pair(&self, number: u64) -> Option<PairId> {
        let peer = Peer::of_number(number);
        let at = number as u32;
        let link = self.links.get(at as usize)?.as_ref()?;
        (link.peer == peer).then_some(PairId(at))
    }

    pub fn link(&mut self, pair: PairId) -> Option<&mut Link> {
        self.links.get_mut(pair.0 as usize)?.as_mut()
    }

    /// Who is at the other end of a pair.
    pub fn other(&self, pair: PairId) -> Option<(usize, PairId)> {
        self.links.get(pair.0 as usize)?.as_ref()?.other
    }

    pub fn is_full(&self) -> bool {
        self.engine.pairs() + self.untold_losses >= PEERS
    }

    /// One more pair, which has no other end yet. After [`Program::harvest`], and before the next.
    pub fn connect(&mut self, serial: u32) -> Option<PairId> {
        let terms = self.engine.terms();
        let pair = self.engine.connect(Way::Mapped, terms)?;
        let at = pair.0 as usize;
        if self.links.len() <= at {
            self.links.resize_with(at + 1, || None);
        }
        let peer = Peer::of_number(u64::from(serial) << 32 | u64::from(pair.0));
        self.links[at] = Some(Link { peer, other: None, bells: 0 });
        Some(pair)
    }

    /// Tells it something, when there is room.
    pub fn tell(&mut self, told: Told) {
        self.backlog.push_back((told, Vec::new()));
    }

    fn answer(&mut self, code: u8, value: u64) {
        self.tell(Told::Answer { code, value });
    }

    /// Whether something of it is to be taken.
    pub fn is_heard(&self) -> bool {
        !self.is_out && self.backlog.len() < BACKLOG
    }

    /// Whether it has asked for something.
    #[inline]
    pub fn has_asked(&self) -> bool {
        self.asked.has_more()
    }

    /// Says that it is to wake the card. Whether it has asked for nothing.
    pub fn doze(&self) -> bool {
        self.asked.doze() || !self.is_heard()
    }

    pub fn awake(&self) {
        self.asked.awake();
    }

    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Whether there is more to do than to take what it asks for.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.engine.has_talkers() || self.engine.has_completions() || !self.copies.is_empty()
    }

    /// Does the next thing that it asks for, if that concerns nobody else; otherwise says what it is. `Ok(None)`: there is nothing. The words
    /// are room.
    pub fn take(&mut self, words: &mut [u64; MOST_WORDS]) -> Result<Option<Option<Outside>>, Nonsense> {
        let Some(len) = self.asked.take(words).map_err(|_| Nonsense)? else { return Ok(None) };
        self.asked.give_back();
        let asked = Asked::decode(&words[..len]).ok_or(Nonsense)?;
        self.act(asked).map(Some)
    }

    fn act(&mut self, asked: Asked<'_>) -> Result<Option<Outside>, Nonsense> {
        match asked {
            Asked::Send { slot, to, tag, len, words } => {
                self.free(slot)?;
                self.send(slot, to, tag, (0, len.into()), words.to_vec());
            }
            Asked::SendPlaced { slot, to, tag, at, len } => {
                self.free(slot)?;
                if !self.has(at, len) {
                    return Err(Nonsense);
                }
                // Short ones have no place at the receiver.
                let words = if len <= INLINE as u64 { self.read(at, len as usize) } else { Vec::new() };
                self.send(slot, to, tag, (at, len), words);
            }
            Asked::Receive { slot, from, tag, mask, at, capacity } => {
                self.free(slot)?;
                if !(self.has(at, capacity) || at == NOWHERE && capacity <= INLINE as u64) {
                    return Err(Nonsense);
                }
                let pair = self.pair(from);
                if from != 0 && pair.is_none() {
                    self.ended_at_once(slot, End::Lost);
                    return Ok(None);
                }
                match self.engine.receive(pair, Tag(tag), mask, capacity) {
                    Ok(request) => self.begin(request, Open { slot, at, words: Vec::new() }),
                    Err(_) => self.ended_at_once(slot, End::Lost),
                }
            }
            Asked::Cancel { slot } => {
                let request = self.slots.get(usize::from(slot)).copied().flatten().flatten();
                let cancelled = request.and_then(|request| self.engine.cancel(request).ok());
                self.answer(cancelled.unwrap_or(Cancel::TooLate) as u8, 0);
            }
            Asked::Leave { peer } => return Ok(self.pair(peer).map(Outside::Leave)),
            Asked::Connect { user, name } => return Ok(Some(Outside::Connect(user, name))),
            Asked::Claim { first, last, owner } => {
                let claimed = self.filter.claim(first..=last, crate::bell::Owner(owner));
                self.answer(claimed.map_or_else(|error| 1 + error as u8, |()| 0), 0);
            }
            Asked::Release { owner } => self.filter.release(crate::bell::Owner(owner)),
            Asked::Ring { to, number } => return Ok(Some(Outside::Ring(Peer::of_number(to), number))),
            Asked::Heard { from, count } => {
                if let Some(link) = self.pair(from).and_then(|pair| self.link(pair)) {
                    link.bells = link.bells.checked_sub(count).ok_or(Nonsense)?;
                }
            }
        }
        Ok(None)
    }

    /// A number has to be free.
    fn free(&self, slot: u16) -> Result<(), Nonsense> {
        self.slots.get(usize::from(slot)).is_some_and(Option::is_none).then_some(()).ok_or(Nonsense)
    }

    fn send(&mut self, slot: u16, to: u64, tag: u64, (at, len): (u64, u64), words: Vec<u64>) {
        let scheme = if len <= INLINE as u64 { Scheme::Eager } else { Scheme::ZeroCopy };
        let sent = self.pair(to).and_then(|pair| self.engine.send(pair, Tag(tag), len, scheme).ok());
        match sent {
            Some(request) => self.begin(request, Open { slot, at, words }),
            None => self.ended_at_once(slot, End::Lost),
        }
        self.pull();
    }

    fn begin(&mut self, request: RequestId, open: Open) {
        self.slots[usize::from(open.slot)] = Some(Some(request));
        let at = request.0 as usize;
        if self.open.len() <= at {
            self.open.resize_with(at + 1, || None);
        }
        self.open[at] = Some(open);
    }

    fn ended_at_once(&mut self, slot: u16, end: End) {
        self.slots[usize::from(slot)] = Some(None);
        self.tell(Told::Ended { slot, end });
    }

    /// Bytes of its memory, as words.
    fn read(&self, at: u64, len: usize) -> Vec<u64> {
        let mut bytes = vec![0; len.next_multiple_of(8)];
        if let Some(part) = self.part(at, len) {
            part.span(0, len).map(|span| span.read_into(&mut bytes[..len]));
        }
        bytes.as_chunks().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect()
    }

    /// The bytes of a short message that it sends, which are not needed here any more.
    pub fn take_words(&mut self, request: RequestId) -> Vec<u64> {
        let open = self.open.get_mut(request.0 as usize).and_then(Option::as_mut);
        open.map_or_else(Vec::new, |open| core::mem::take(&mut open.words))
    }

    /// The bytes of a short message that it receives.
    pub fn put_words(&mut self, request: RequestId, words: Vec<u64>) {
        if let Some(open) = self.open.get_mut(request.0 as usize).and_then(Option::as_mut) {
            open.words = words;
        }
    }

    /// Where the message of an action is.
    pub fn place_of(&self, request: RequestId) -> Option<u64> {
        self.open.get(request.0 as usize)?.as_ref().map(|open| open.at).filter(|at| *at != NOWHERE)
    }

    /// Takes what the engine wants to be done.
    pub fn pull(&mut self) {
        while let Some(action) = self.engine.action() {
            match action.work {
                Work::Expose => {
                    let origin = self.place_of(action.request).map(|address| Origin { key: 0, address });
                    self.engine.exposed(action.ticket, origin);
                }
                Work::Move { origin, .. } => self.copies.push_back((action, origin, 0)),
                // All that is long is moved from memory to memory.
                _ => self.engine.finished(action.ticket, false),
            }
        }
    }

    /// The engine's side of a pair ends.
    pub fn lose(&mut self, pair: PairId) {
        self.pull();
        self.engine.lose(pair);
        let engine = &mut self.engine;
        self.copies.retain(|(action, ..)| {
            if action.pair == pair {
                engine.finished(action.ticket, false);
            }
            action.pair != pair
        });
        self.pull();
        if let Some(link) = self.link(pair) {
            link.other = None;
        }
    }

    /// It is told that a pair has ended.
    pub fn tell_loss(&mut self, peer: Peer) {
        self.untold_losses += 1;
        self.tell(Told::Lost { peer: peer.number() });
    }

    /// Takes what has ended, while the numbers of pairs are what they were; forgets pairs of which nothing is left.
    pub fn harvest(&mut self) {
        self.pull();
        while let Some(delivery) = self.engine.delivery() {
            self.put_words(delivery.request, delivery.words);
        }
        while self.engine.given_up().is_some() {}
        while let Some(done) = self.engine.completion() {
            let Some(open) = self.open.get_mut(done.request.0 as usize).and_then(Option::take) else { continue };
            if let Some(slot) = self.slots.get_mut(usize::from(open.slot)) {
                *slot = Some(None);
            }
            let end = self.end_of(done.outcome);
            let words = if matches!(end, End::Here { .. }) { open.words } else { Vec::new() };
            self.backlog.push_back((Told::Ended { slot: open.slot, end }, words));
        }
        for at in 0..self.links.len() {
            let is_over = self.links[at].as_ref().is_some_and(|link| link.other.is_none());
            if is_over && !self.engine.has_left(PairId(at as u32)) {
                self.links[at] = None;
            }
        }
    }

    fn end_of(&self, outcome: Outcome) -> End {
        match outcome {
            Outcome::Sent => End::Sent,
            Outcome::Received { pair, tag, len } => {
                let link = self.links.get(pair.0 as usize).and_then(Option::as_ref);
                let from = link.map_or(0, |link| link.peer.number());
                match u16::try_from(len) {
                    Ok(short) if usize::from(short) <= INLINE => End::Here { from, tag: tag.0, len: short },
                    _ => End::Placed { from, tag: tag.0, len },
                }
            }
            Outcome::Cancelled => End::Cancelled,
            Outcome::TooLong { len } => End::TooLong { len },
            Outcome::Failed | Outcome::Held { .. } => End::Failed,
            Outcome::Lost => End::Lost,
        }
    }

    /// Writes what there is room for. Whether something was.
    pub fn write(&mut self) -> bool {
        let before = self.backlog.len();
        while let Some((told, words)) = self.backlog.front() {
            told.encode(words, &mut self.out);
            debug_assert!(self.out.len() <= MOST_WORDS && words.len() <= MOST_WORDS - BYTES_AT);
            if !self.news.send(&self.out) {
                break;
            }
            match *told {
                Told::Ended { slot, .. } => self.slots[usize::from(slot)] = None,
                Told::Lost { .. } => self.untold_losses -= 1,
                _ => {}
            }
            self.backlog.pop_front();
        }
        let has_written = self.backlog.len() < before;
        self.has_news |= has_written;
        has_written
    }

    /// Whether it sleeps, and is to be woken. Says so once.
    pub fn must_wake(&mut self) -> bool {
        core::mem::take(&mut self.has_news) && self.news.must_wake()
    }

    /// Doorbells of it may come here: whose number it is.
    pub fn wants(&self, number: u16) -> Option<u32> {
        self.filter.owner(number).map(|owner| owner.0)
    }
}
