//! What there is for each other endpoint.

use super::matching::{Posted, Unexpected};
use super::{Engine, Limits, MOST_SLOTS, PairId, RequestId};
use crate::control::{Control, Message, Origin, Tag};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How bytes get from one end to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From send buffers, by the memory engine.
    Staged,
    /// The sender reaches receive buffers itself, and copies into them: no send buffer is needed.
    Mapped,
}

/// What two ends tell each other when they meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// See [`Limits::mtu`].
    pub mtu: u32,
    /// See [`Limits::slots`].
    pub slots: u8,
    /// See [`Limits::credits`].
    pub credits: u16,
}

impl Terms {
    /// Whether there may be such an end.
    pub const fn is_possible(&self) -> bool {
        self.mtu >= 1 << 10 && self.mtu <= 1 << 20 && self.slots >= 1 && self.slots <= MOST_SLOTS && self.credits >= 1
    }
}

/// What is to be said to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outgoing {
    /// As it is.
    Control(Control),
    /// An eager message, with the bytes of that request.
    Eager {
        /// Whose bytes.
        request: RequestId,
        /// What for.
        tag: Tag,
        /// How many.
        len: u16,
    },
}

/// In the box of what is to be said.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) enum Out {
    Control(Control),
    Eager(RequestId),
    /// As many as there are when it is said.
    Credit,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Pair {
    pub way: Way,
    pub lost: bool,
    /// Actions that were not said to be done.
    pub acting: u32,
    /// Bytes of a part of a message to the other end, and from it.
    pub mtu: u32,
    pub their_slots: u8,
    pub outbox: VecDeque<Out>,
    /// It is in the queue of those who have something to say; a receive buffer to get; a send buffer to get; to fill one before.
    pub talks: bool,
    pub wants: bool,
    pub needs: bool,
    pub hopes: bool,

    // As a sender.
    /// Messages whose envelope has not gone to the box.
    pub waiting: VecDeque<RequestId>,
    pub sends: BTreeMap<Message, Sending>,
    /// Messages that failed here, of which the other end has not said that it has forgotten them.
    pub failed: BTreeSet<Message>,
    pub next: u32,
    /// The message whose first part is copied before it is announced (without optimisation 2).
    pub unannounced: Option<Message>,
    /// Envelopes sent, and given back, modulo 2^32; and how many may lie between.
    pub sent: u32,
    pub credited: u32,
    pub window: u32,
    /// Receive buffers of the other end that are ours.
    pub held: u64,
    /// Send buffers that wait for a grant of it.
    pub hoping: u16,

    // As a receiver.
    pub arrived: u32,
    pub consumed: u32,
    pub told: u32,
    pub telling: bool,
    pub unexpected: VecDeque<Unexpected>,
    pub posted: VecDeque<Posted>,
    pub incoming: BTreeMap<Message, Incoming>,
    /// Messages that the program holds where the other end has them.
    pub kept: BTreeSet<Message>,
    /// Receive buffers that the other end has, and that are being copied out.
    pub granted: u64,
    pub copying: u64,
    /// Something was done since the last tick; ticks without.
    pub moved: bool,
    pub idle: u32,
}

/// A message on its way from here.
#[derive(Clone, Debug, Hash)]
pub(super) struct Sending {
    pub request: RequestId,
    pub tag: Tag,
    pub len: u64,
    /// Where the other end may read it.
    pub direct: Option<Origin>,
    pub ahead: bool,
    pub stage: Stage,
    /// Parts that it has, that were begun, that were told as done.
    pub parts: u32,
    pub begun: u32,
    pub done: u32,
    /// Those that were begun and not told as done.
    pub segments: VecDeque<Segment>,
    /// Buffers that were asked for, and granted.
    pub asked: u32,
    pub granted: u32,
    /// Those that have nothing to carry yet.
    pub grants: VecDeque<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// The other end has not heard of it.
    Unannounced,
    /// Neither, and it may not before its memory can be read.
    Exposing,
    /// It has.
    Announced,
    /// It is asked whether it wants it.
    Withdrawing,
    /// It wants it, by buffers.
    Accepted,
    /// Something did not work; it is told when nothing is on the way any more.
    Failing,
}

#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Segment {
    pub smb: Option<u16>,
    pub slot: Option<u8>,
    pub state: SegmentState,
    pub hoped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SegmentState {
    Copying,
    Ready,
    Flying,
    Landed,
}

/// A message on its way to somebody here who waits for it.
#[derive(Clone, Debug, Hash)]
pub(super) struct Incoming {
    pub request: RequestId,
    /// Bytes that there is room for.
    pub capacity: u64,
    pub tag: Tag,
    pub len: u64,
    pub parts: u32,
    /// Buffers that were asked for, and granted; which of them it has.
    pub asked: u32,
    pub granted: u32,
    pub slots: u64,
    /// Parts that came, and that were copied out.
    pub came: u32,
    pub copied: u32,
    /// Where it is moved from, and how much of it was. `None`: it comes by buffers.
    pub direct: Option<(Origin, u64)>,
    pub failed: bool,
}

/// How many buffers a message takes.
pub(super) fn parts(len: u64, mtu: u32) -> Option<u32> {
    u32::try_from(len.div_ceil(mtu.into()).max(1)).ok()
}

/// Where a part begins, and how long it is.
pub(super) fn part(number: u32, len: u64, mtu: u32) -> (u64, u32) {
    let offset = u64::from(number) * u64::from(mtu);
    (offset, len.saturating_sub(offset).min(mtu.into()) as u32)
}

impl Pair {
    fn new(way: Way, mtu: u32, theirs: Terms) -> Self {
        Self {
            way,
            lost: false,
            acting: 0,
            mtu,
            their_slots: theirs.slots,
            outbox: VecDeque::new(),
            talks: false,
            wants: false,
            needs: false,
            hopes: false,
            waiting: VecDeque::new(),
            sends: BTreeMap::new(),
            failed: BTreeSet::new(),
            next: 0,
            unannounced: None,
            sent: 0,
            credited: 0,
            window: Limits::window(theirs.credits),
            held: 0,
            hoping: 0,
            arrived: 0,
            consumed: 0,
            told: 0,
            telling: false,
            unexpected: VecDeque::new(),
            posted: VecDeque::new(),
            incoming: BTreeMap::new(),
            kept: BTreeSet::new(),
            granted: 0,
            copying: 0,
            moved: true,
            idle: 0,
        }
    }
}

impl Engine {
    /// One more endpoint, with what it has said of itself. `None`: there may be no such end.
    pub fn connect(&mut self, way: Way, theirs: Terms) -> Option<PairId> {
        let mtu = self.limits.mtu.min(theirs.mtu);
        theirs.is_possible().then(|| PairId(self.pairs.insert(Pair::new(way, mtu, theirs)) as u32))
    }

    /// Puts something into the box of a pair.
    pub(super) fn say(&mut self, id: PairId, out: Out) {
        let pair = &mut self.pairs[id.0 as usize];
        pair.outbox.push_back(out);
        if !pair.talks {
            pair.talks = true;
            self.talks.push_back(id);
        }
    }

    /// The next pair that has something to say. It is not named again before [`Engine::more_to_say`].
    pub fn talker(&mut self) -> Option<PairId> {
        while let Some(id) = self.talks.pop_front() {
            if let Some(pair) = self.live(id)
                && core::mem::take(&mut pair.talks)
                && !pair.outbox.is_empty()
            {
                return Some(id);
            }
        }
        None
    }

    /// A pair could not say all: it had no room, or its turn was over. It is named again by [`Engine::talker`].
    pub fn more_to_say(&mut self, id: PairId) {
        let Some(pair) = self.live(id) else { return };
        if !pair.outbox.is_empty() && !pair.talks {
            pair.talks = true;
            self.talks.push_back(id);
        }
    }

    /// All of a pair was said by who has not asked [`Engine::talker`].
    pub fn said_all(&mut self, id: PairId) {
        if self.talks.back() == Some(&id)
            && let Some(pair) = self.live(id)
            && pair.outbox.is_empty()
        {
            pair.talks = false;
            self.talks.pop_back();
        }
    }

    /// Whether somebody has something to say.
    pub fn has_talkers(&self) -> bool {
        !self.talks.is_empty()
    }

    /// The next thing to say to the other end, which is the same until [`Engine::said`].
    pub fn outgoing(&self, id: PairId) -> Option<Outgoing> {
        let pair = self.pairs.get(id.0 as usize).filter(|pair| !pair.lost)?;
        Some(match *pair.outbox.front()? {
            Out::Control(control) => Outgoing::Control(control),
            Out::Credit => Outgoing::Control(Control::Credit(pair.consumed)),
            Out::Eager(request) => {
                let super::Role::Send { tag, len, .. } = self.requests[request.0 as usize].role else { return None };
                Outgoing::Eager { request, tag, len: len as u16 }
            }
        })
    }

    /// [`Engine::outgoing`] was said.
    pub fn said(&mut self, id: PairId) {
        let Some(pair) = self.live(id) else { return };
        match pair.outbox.pop_front() {
            Some(Out::Eager(request)) => self.end(request, super::Outcome::Sent),
            Some(Out::Credit) => {
                // Only now: what the other end may send, it may because it was told.
                (pair.told, pair.telling) = (pair.consumed, false);
                self.credit(id);
            }
            Some(Out::Control(_)) | None => {}
        }
    }

    /// Tells the other end how many envelopes have left, when it is worth a message.
    pub(super) fn credit(&mut self, id: PairId) {
        let credits = u32::from(self.limits.credits);
        let Some(pair) = self.live(id) else { return };
        if !pair.telling && pair.consumed.wrapping_sub(pair.told) >= credits {
            pair.telling = true;
            self.say(id, Out::Credit);
        }
    }
}
