//! An endpoint and the memory that it shares with others of its host: the protocol, its copies, and the program's buffers. Nobody but the
//! program's calls moves it on, and it makes no system call but those that read messages where they are.
//!
//! ```text
//! 0                        the channel of both ends                        (`channel`)
//! CHANNEL_LEN              receive buffers of the maker, which the taker fills
//! ... + slots * mtu        receive buffers of the taker, which the maker fills
//! ```
//!
//! Each pair has memory of its own, so that a sender can spoil its own messages only.
//!
//! * `bells`: doorbells. `copies`: bytes to and fro. `reads`: messages that are read, or held, where they are.

mod bells;
mod copies;
mod reads;

pub(crate) use bells::Lent;
pub use reads::Reading;

use crate::Scheme;
use crate::bell::Filter;
use crate::block::Block;
use crate::buffer::Buffer;
use crate::channel::{CHANNEL_LEN, Channel, Side, Taken, copy, doorbells};
use crate::control::{Message, Origin, Tag};
use crate::engine::{
    Action, Breach, Cancel, Completion, Delivery, Engine, Limits, LimitsError, Outcome, PairId, RequestError,
    RequestId, Terms, Way, Work,
};
use crate::files::Files;
use crate::hosts::{Ears, Hosts};
use bells::Doorbells;
use copies::deliver;
use millrace_dma::{OtherProcess, OutOfRange, Window};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What is heard from a pair, and said to it, in one turn.
const TURN: usize = 64;
/// Turns in which it is heard what somebody has said who has gone: all that there is room for.
const LAST: usize = 64;
/// Bytes of copies in one turn of the endpoint.
const COPIED: usize = 1 << 20;

/// Bytes of the memory of two endpoints; `maker` and `taker` are what they say of themselves ([`Local::terms`]).
pub const fn memory_len(maker: Terms, taker: Terms) -> usize {
    CHANNEL_LEN.next_multiple_of(4096) + buffers_len(maker) + buffers_len(taker)
}

const fn buffers_len(terms: Terms) -> usize {
    terms.slots as usize * terms.mtu as usize
}

/// Another endpoint was not joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// There may be no such end.
    #[error(
        "the other endpoint says of itself what cannot be: buffers of 1 KiB to 1 MiB, 1 to 64 of them, one credit at least"
    )]
    Terms,
    /// The memory is too short.
    #[error(transparent)]
    Memory(#[from] OutOfRange),
}

/// A message that has ended, with the buffer that it had.
#[derive(Debug, PartialEq, Eq)]
pub struct Done<B = Vec<u8>> {
    /// Which.
    pub request: RequestId,
    /// What became of it.
    pub outcome: Outcome,
    /// What was sent; or what was received, as many bytes as there are.
    pub buffer: B,
}

/// How messages of another end are read where they are.
#[derive(Clone, Default)]
pub struct Reach {
    /// In the memory of its process, if each may read the other one's. It has to be told that this end is not there any more before messages
    /// to it end as lost.
    pub process: Option<Arc<OtherProcess>>,
    /// In files that it gives.
    pub files: Option<Arc<Files>>,
}

struct Peer {
    channel: Channel,
    /// Receive buffers of this end, and of the other one, with the bytes of one.
    own: Window,
    others: Window,
    mtu: (usize, usize),
    reach: Reach,
    /// Something was said, and it was not looked whether the other end sleeps.
    has_said: bool,
    bells: Doorbells,
}

impl Peer {
    fn must_wake(&mut self) -> bool {
        let has_said = core::mem::take(&mut self.has_said);
        // Both flags are to be taken down.
        (has_said && self.channel.must_wake()) | self.bells.must_wake()
    }
}

/// An endpoint.
pub struct Local<B: Buffer = Vec<u8>> {
    engine: Engine,
    peers: Vec<Option<Peer>>,
    buffers: Vec<Option<B>>,
    /// Where messages are in files that the other end has been given, by their numbers.
    origins: Vec<Option<Origin>>,
    /// Messages that are handed over, by their numbers; and how many of those were taken back.
    blocks: Vec<Option<Block>>,
    returned: u64,
    /// Messages that are held where they are.
    held: BTreeMap<RequestId, Window>,
    filter: Filter,
    /// Copies that were not done in the last turn.
    open: VecDeque<Action>,
    /// Parts of messages that are to be read, or seen, where they are.
    moves: VecDeque<(Action, Origin)>,
    lost: VecDeque<(PairId, Breach)>,
    bells_noted: u64,
    /// Doorbells that nobody had claimed, of all pairs of this host.
    unwanted: Arc<AtomicU64>,
    /// The pair whose doorbells are looked at first.
    bells_next: usize,
    /// Bytes that were read where they were.
    moved: u64,
    thresholds: Vec<(u64, Scheme)>,
    /// Those of other hosts, if any are reached.
    hosts: Option<Box<Hosts>>,
}

impl<B: Buffer> Local<B> {
    /// An endpoint that knows nobody.
    ///
    /// # Errors
    /// [`LimitsError`].
    pub fn new(limits: Limits) -> Result<Self, LimitsError> {
        Ok(Self {
            engine: Engine::new(limits)?,
            peers: Vec::new(),
            buffers: Vec::new(),
            origins: Vec::new(),
            blocks: Vec::new(),
            returned: 0,
            held: BTreeMap::new(),
            filter: Filter::default(),
            open: VecDeque::new(),
            moves: VecDeque::new(),
            lost: VecDeque::new(),
            bells_noted: 0,
            unwanted: Arc::default(),
            bells_next: 0,
            moved: 0,
            thresholds: Vec::new(),
            hosts: None,
        })
    }

    /// Others of other hosts are reached from now on.
    pub(crate) fn reach(&mut self, hosts: Hosts) {
        self.hosts = Some(Box::new(hosts));
    }

    /// Those of other hosts, if any are reached.
    pub(crate) fn hosts(&mut self) -> Option<&mut Hosts> {
        self.hosts.as_deref_mut()
    }

    /// Whether it has to be looked from time to time what has become of those of other hosts.
    pub(crate) fn must_look(&self) -> bool {
        self.hosts.as_ref().is_some_and(|hosts| hosts.ticks())
    }

    /// The same, of which a pair is one.
    fn hosts_of(&mut self, pair: PairId) -> Option<&mut Hosts> {
        self.hosts.as_deref_mut().filter(|hosts| hosts.has(pair))
    }

    /// What another endpoint has to know of this one.
    pub fn terms(&self) -> Terms {
        self.engine.terms()
    }

    /// From which size on messages go which way, in order ([`crate::cost::Table::thresholds`]). Without any: what may be eager is.
    pub fn choose(&mut self, thresholds: Vec<(u64, Scheme)>) {
        self.thresholds = thresholds;
    }

    /// The engine, to be looked at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Joins another endpoint by memory of [`memory_len`] bytes that only the two have, and that nobody has written to. `reach`: for messages that are read where
    /// they are.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(&mut self, memory: &Window, side: Side, theirs: Terms, reach: Reach) -> Result<PairId, JoinError> {
        if !theirs.is_possible() {
            return Err(JoinError::Terms);
        }
        let ours = self.terms();
        let (maker, taker) = if side == Side::Maker { (ours, theirs) } else { (theirs, ours) };
        let first = CHANNEL_LEN.next_multiple_of(4096);
        let made = memory.part(first, buffers_len(maker))?;
        let taken = memory.part(first + buffers_len(maker), buffers_len(taker))?;
        let (own, others) = if side == Side::Maker { (made, taken) } else { (taken, made) };
        let channel = Channel::new(memory, side)?;
        let bells = Doorbells::new(doorbells(memory, side)?, &self.unwanted);
        bells.publish(&self.filter);
        let pair = self.engine.connect(Way::Mapped, theirs).ok_or(JoinError::Terms)?;
        let at = pair.0 as usize;
        if self.peers.len() <= at {
            self.peers.resize_with(at + 1, || None);
        }
        let mtu = (ours.mtu as usize, theirs.mtu as usize);
        self.peers[at] = Some(Peer { channel, own, others, mtu, reach, has_said: false, bells });
        Ok(pair)
    }

    /// Ends a pair that is not wanted any more, with all that it has left.
    pub fn leave(&mut self, pair: PairId) {
        self.part(pair);
        self.engine.forget_pair(pair);
    }

    /// Ends a pair whose other end is gone. What it has said last counts, and short messages of it can be received still.
    pub fn hang_up(&mut self, pair: PairId) {
        // All is heard before anything is copied: what is copied is granted anew.
        for _ in 0..LAST {
            if !matches!(self.hear(pair), Ok(1..)) {
                break;
            }
        }
        // Not more than it had buffers for. Those of others have time.
        while let Some(action) = self.next_of(pair) {
            self.act(action);
        }
        self.part(pair);
    }

    /// The next copy of that pair.
    fn next_of(&mut self, pair: PairId) -> Option<Action> {
        self.pull();
        let at = self.open.iter().position(|action| action.pair == pair)?;
        self.open.remove(at)
    }

    fn part(&mut self, pair: PairId) {
        self.engine.lose(pair);
        // What is left to be copied is nobody's, and its memory goes now.
        while let Some(action) = self.next_of(pair) {
            self.engine.finished(action.ticket, false);
        }
        self.moves.retain(|(action, _)| {
            if action.pair == pair {
                self.engine.finished(action.ticket, false);
            }
            action.pair != pair
        });
        if let Some(peer) = self.peers.get_mut(pair.0 as usize) {
            *peer = None;
        }
        if let Some(hosts) = &mut self.hosts {
            hosts.part(pair, &mut self.engine);
        }
        self.pull();
    }

    fn peer(&mut self, pair: PairId) -> Option<&mut Peer> {
        self.peers.get_mut(pair.0 as usize)?.as_mut()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn send(&mut self, pair: PairId, tag: Tag, buffer: B) -> Result<RequestId, RequestError> {
        let len = buffer.len() as u64;
        let scheme = self.thresholds.iter().rev().find(|threshold| threshold.0 <= len).map(|found| found.1);
        let is_short = len <= u64::from(self.engine.limits().eager);
        let otherwise = if is_short { Scheme::Eager } else { Scheme::OneCopy };
        let scheme = scheme.unwrap_or(otherwise);
        self.send_by(pair, tag, buffer, scheme)
    }

    /// The same, by a way that the program chooses: one that is not possible is one copy.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn send_by(&mut self, pair: PairId, tag: Tag, buffer: B, scheme: Scheme) -> Result<RequestId, RequestError> {
        // In the ring they stand together.
        let scheme = if buffer.whole().is_none() && scheme == Scheme::Eager { Scheme::OneCopy } else { scheme };
        self.begin(pair, tag, buffer, (scheme, None))
    }

    /// The same, of a message that is in a file that the other end has been given ([`Files`]): it is read there.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn send_from(&mut self, pair: PairId, tag: Tag, buffer: B, origin: Origin) -> Result<RequestId, RequestError> {
        self.begin(pair, tag, buffer, (Scheme::ZeroCopy, Some(origin)))
    }

    fn begin(
        &mut self,
        pair: PairId,
        tag: Tag,
        buffer: B,
        (scheme, origin): (Scheme, Option<Origin>),
    ) -> Result<RequestId, RequestError> {
        let request = self.engine.send(pair, tag, buffer.len() as u64, scheme)?;
        self.keep(request, buffer, origin);
        self.begun(pair);
        Ok(request)
    }

    fn begun(&mut self, pair: PairId) {
        self.pull();
        if self.say(pair) {
            self.engine.said_all(pair);
        }
    }

    /// Hands a block over, which is in a file that the other end has been given: it is not told when that ends ([`Local::returned`]).
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn give(&mut self, pair: PairId, tag: Tag, block: Block, origin: Origin) -> Result<RequestId, RequestError> {
        let request = self.engine.send(pair, tag, block.len() as u64, Scheme::ZeroCopy)?;
        let at = self.room_for(request);
        (self.blocks[at], self.origins[at]) = (Some(block), Some(origin));
        self.begun(pair);
        Ok(request)
    }

    /// How many blocks that were handed over are this end's again, ever.
    pub fn returned(&self) -> u64 {
        self.returned
    }

    /// As [`Local::receive`]; a message that is in a file of the sender stays there, and is held ([`Outcome::Held`]).
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn receive_held(
        &mut self,
        from: Option<PairId>,
        tag: Tag,
        mask: u64,
        buffer: B,
    ) -> Result<RequestId, RequestError> {
        let request = self.engine.receive_held(from, tag, mask, buffer.len() as u64)?;
        self.keep(request, buffer, None);
        self.pull();
        Ok(request)
    }

    /// A message that was held is not needed any more.
    pub fn give_back(&mut self, pair: PairId, message: Message) {
        self.engine.release(pair, message);
        if self.say(pair) {
            self.engine.said_all(pair);
        }
    }

    /// Sends a short message that is not to be waited for. `false`: it cannot go at once, and [`Local::send`] takes it.
    #[inline]
    pub fn send_short(&mut self, pair: PairId, tag: Tag, bytes: &[u8]) -> bool {
        let Some(Some(peer)) = self.peers.get_mut(pair.0 as usize) else {
            return self.hosts.as_mut().is_some_and(|hosts| hosts.send_short(pair, &mut self.engine, tag, bytes));
        };
        let is_sent = peer.channel.send(&mut self.engine, pair, tag, bytes);
        peer.has_said |= is_sent;
        is_sent
    }

    /// Takes the first short message of a pair that fits, and that nobody has asked for before. `None`: there is none, or it is a long one,
    /// which [`Local::receive`] takes.
    ///
    /// # Errors
    /// [`Breach`]. The pair is lost, and has left no such message.
    #[inline]
    pub fn receive_short(&mut self, pair: PairId, tag: Tag, mask: u64, to: &mut [u8]) -> Result<Option<Taken>, Breach> {
        if !self.engine.is_plain(pair) || self.hosts_of(pair).is_some() {
            return self.receive_waiting(pair, tag, mask, to);
        }
        let Some(Some(peer)) = self.peers.get_mut(pair.0 as usize) else { return Err(Breach::Gone) };
        peer.channel.receive(&mut self.engine, pair, tag, mask, to)
    }

    /// The same, where others wait, or messages do.
    #[cold]
    fn receive_waiting(&mut self, pair: PairId, tag: Tag, mask: u64, to: &mut [u8]) -> Result<Option<Taken>, Breach> {
        // What comes may be for those who have asked before.
        let heard = if self.hosts_of(pair).is_some() { self.hear_hosts(pair) } else { self.hear(pair) };
        let Some((tag, words, len)) = self.engine.take_waiting(pair, tag, mask) else {
            return heard.map(|_| None);
        };
        let len = usize::from(len);
        let taken = match to.get_mut(..len) {
            Some(to) => {
                copy(&words, to);
                Taken::Message { tag, len }
            }
            None => Taken::TooLong { len },
        };
        self.engine.recycle(words);
        Ok(Some(taken))
    }

    /// Waits for a message of as many bytes as `buffer` has, or fewer: from whom, or from anybody; with the bits of `tag` that are in
    /// `mask`.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn receive(&mut self, from: Option<PairId>, tag: Tag, mask: u64, buffer: B) -> Result<RequestId, RequestError> {
        let request = self.engine.receive(from, tag, mask, buffer.len() as u64)?;
        self.keep(request, buffer, None);
        self.pull();
        Ok(request)
    }

    /// Ends a message before its time, if that is possible.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn cancel(&mut self, request: RequestId) -> Result<Cancel, RequestError> {
        self.engine.cancel(request)
    }

    /// Moves everything on that can be moved, each pair by a bounded turn. Whether something was.
    pub fn progress(&mut self) -> bool {
        let has_moved = self.advance();
        self.hold();
        let Some(mut reading) = self.reading() else { return has_moved };
        reading.read();
        self.was_read(reading);
        true
    }

    /// The same, but for what is read in the memory of others ([`Local::reading`]).
    pub fn advance(&mut self) -> bool {
        let mut has_moved = false;
        for at in 0..self.peers.len() {
            let Some(peer) = &mut self.peers[at] else { continue };
            let has_more = peer.channel.has_more();
            let has_bells = peer.bells.are_new();
            self.bells_noted += u64::from(has_bells);
            has_moved |= has_more | has_bells;
            if has_more {
                // Who does what he may not is lost, and named by the engine.
                let _ = self.hear(PairId(at as u32));
            }
        }
        has_moved |= self.advance_hosts();
        self.talk();
        let mut copied = 0;
        // The other end does its part of one copy while the next one is made.
        while copied < COPIED
            && let Some(len) = self.act_next()
        {
            has_moved = true;
            copied += len;
            self.talk();
        }
        while let Some((pair, breach)) = self.engine.given_up() {
            self.part(pair);
            self.lost.push_back((pair, breach));
        }
        has_moved
    }

    /// Hears what has come from other hosts. Whether something has, if that pair is there still.
    fn hear_hosts(&mut self, pair: PairId) -> Result<usize, Breach> {
        let has_come = self.advance_hosts();
        self.hosts_of(pair).map(|_| usize::from(has_come)).ok_or(Breach::Gone)
    }

    /// Moves on what goes between hosts. Whether there was something.
    pub(crate) fn advance_hosts(&mut self) -> bool {
        let Self { hosts: Some(hosts), engine, filter, buffers, .. } = self else { return false };
        let deliver = &mut |request, words: &[u64], len| deliver(buffers, request, words, len);
        let before = hosts.bells_noted();
        let has_moved = hosts.progress(&mut Ears { engine, filter, deliver });
        self.bells_noted += hosts.bells_noted() - before;
        has_moved
    }

    fn hear(&mut self, pair: PairId) -> Result<usize, Breach> {
        let Self { engine, peers, buffers, .. } = self;
        let Some(Some(peer)) = peers.get_mut(pair.0 as usize) else { return Err(Breach::Gone) };
        peer.channel.hear(engine, pair, TURN, |request, words, len| deliver(buffers, request, words, len))
    }

    /// Whether nothing has come, and nothing is left to do: [`Local::progress`] would find nothing.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        let has_come = |peer: &Peer| peer.channel.has_more() || peer.bells.have_come();
        self.hosts.is_none() && !self.has_work() && !self.peers.iter().flatten().any(has_come)
    }

    /// Whether something is left that [`Local::progress`] can do without hearing from anybody.
    pub fn has_work(&self) -> bool {
        let has_news = self.hosts.as_ref().is_some_and(|hosts| hosts.has_news());
        !self.open.is_empty()
            || !self.moves.is_empty()
            || self.engine.has_talkers()
            || self.engine.has_given_up()
            || has_news
    }

    /// Says to all others that they are to wake this end. Whether it may sleep: nothing has come meanwhile, and nothing is left to do.
    pub fn doze(&self) -> bool {
        // Bells that wait and were told of are no news.
        let mut peers = self.peers.iter().flatten();
        let may = !self.has_work() && peers.all(|peer| peer.channel.doze() & peer.bells.doze());
        may && self.hosts.as_ref().is_none_or(|hosts| hosts.doze())
    }

    /// Names those of the others that sleep, and that something was said to.
    pub fn wake(&mut self, mut ring: impl FnMut(PairId)) {
        for (at, peer) in self.peers.iter_mut().enumerate() {
            if peer.as_mut().is_some_and(Peer::must_wake) {
                ring(PairId(at as u32));
            }
        }
    }

    /// Whether that one of the others sleeps, and something was said to it.
    #[inline]
    pub fn must_wake(&mut self, pair: PairId) -> bool {
        self.peer(pair).is_some_and(Peer::must_wake)
    }

    /// Time goes on ([`Engine::tick`]).
    pub fn tick(&mut self) {
        self.engine.tick();
    }

    /// Whether a pair that has ended has left messages.
    pub fn has_left(&self, pair: PairId) -> bool {
        self.engine.has_left(pair)
    }

    /// The next message that has ended. Its number is used again from now on.
    pub fn done(&mut self) -> Option<Done<B>> {
        // What has come for it is in its buffer first.
        self.pull();
        loop {
            let Completion { request, outcome } = self.engine.completion()?;
            let at = request.0 as usize;
            self.returned += u64::from(self.blocks[at].take().is_some());
            // There is one but for blocks: each message that begins has brought it.
            let Some(mut buffer) = self.buffers[at].take() else { continue };
            if let Outcome::Received { len, .. } = outcome {
                buffer.shorten(len as usize);
            }
            return Some(Done { request, outcome, buffer });
        }
    }

    /// Whether there is one.
    #[inline]
    pub fn has_done(&self) -> bool {
        self.engine.has_completions()
    }

    /// The next pair that was lost because its other end did what it may not.
    pub fn lost(&mut self) -> Option<(PairId, Breach)> {
        self.lost.pop_front()
    }

    fn keep(&mut self, request: RequestId, buffer: B, origin: Option<Origin>) {
        let at = self.room_for(request);
        (self.buffers[at], self.origins[at]) = (Some(buffer), origin);
    }

    fn room_for(&mut self, request: RequestId) -> usize {
        let at = request.0 as usize;
        if self.buffers.len() <= at {
            self.buffers.resize_with(at + 1, || None);
            self.blocks.resize_with(at + 1, || None);
            self.origins.resize(at + 1, None);
        }
        at
    }

    /// Says what there is for a pair. Whether that was all.
    fn say(&mut self, pair: PairId) -> bool {
        let Self { engine, peers, buffers, hosts, filter, .. } = self;
        let bytes = |request: RequestId| buffers[request.0 as usize].as_ref().and_then(B::whole).unwrap_or_default();
        let Some(Some(peer)) = peers.get_mut(pair.0 as usize) else {
            return hosts.as_mut().is_none_or(|hosts| hosts.say(pair, engine, filter, bytes));
        };
        peer.has_said = true;
        peer.channel.say(engine, pair, TURN, bytes)
    }

    /// Says what there is to say, as far as there is room.
    fn talk(&mut self) {
        let mut again = Vec::new();
        while let Some(pair) = self.engine.talker() {
            if !self.say(pair) {
                again.push(pair);
            }
        }
        again.into_iter().for_each(|pair| self.engine.more_to_say(pair));
    }

    /// Takes what the engine wants done. What is no matter of many bytes is done at once; completions of short messages are there already.
    fn pull(&mut self) {
        while let Some(Delivery { request, words, len }) = self.engine.delivery() {
            deliver(&mut self.buffers, request, &words, len.into());
            self.engine.recycle(words);
        }
        while let Some(action) = self.engine.action() {
            if let Work::Move { origin, .. } | Work::Hold { origin } = action.work {
                self.moves.push_back((action, origin));
                continue;
            }
            if action.work != Work::Expose {
                self.open.push_back(action);
                continue;
            }
            // Where it is, is all that has to be known.
            if let Some(origin) = self.origins[action.request.0 as usize] {
                self.engine.exposed(action.ticket, Some(origin));
                continue;
            }
            let peer = self.peers.get(action.pair.0 as usize).and_then(Option::as_ref);
            let bytes = self.buffers[action.request.0 as usize].as_ref().and_then(B::whole);
            let may_read = peer.is_some_and(|peer| peer.reach.process.is_some());
            let origin = bytes.filter(|_| may_read).map(|bytes| bytes.as_ptr().expose_provenance() as u64);
            self.engine.exposed(action.ticket, origin.map(|address| Origin { key: 0, address }));
        }
    }
}
