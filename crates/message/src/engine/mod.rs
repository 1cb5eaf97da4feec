//! The protocol of messages: what one endpoint says, copies and moves, and when. No system call, no clock, no thread, and no memory of
//! the program: whoever drives it carries what is to be said ([`Engine::outgoing`]), tells it what has come ([`Engine::arrive`]), does its
//! [`Action`]s and says when they are done. `docs/spec/message.md` is the same in words.
//!
//! ```text
//!  sender's program      sender                          receiver                 receiver's program
//!  send ---------> request ------------------------> matching <---------------- receive
//!        SMB, copy in                       <-------- grant: an RMB
//!                    transfer: SMB -> RMB
//!                    release, done ----------------> copy out ----------------> completion
//! ```
//!
//! * `pair`: what there is for each other endpoint. `send`, `receive`: both roles of a message. `matching`: tags.
//! * `pools`: who gets the next buffer. `end`: what is done, cancelled, lost.
//!
//! **Nothing waits for what waits for it.** A send buffer that has no grant yet may wait for a peer, and there is always one that may not
//! ([`Limits::hopes`]); buffers are granted only to messages that somebody waits for, so that what is in them can be copied out; what
//! is said has room in a box of the pair, whose size follows from credits. `crates/message/tests/explore.rs` goes through every order there is.

mod end;
mod matching;
mod pair;
mod pools;
mod receive;
mod send;

use crate::control::{MOST_EAGER, Message, Origin, Tag};
use crate::step::{Event, Trace};
use matching::Posted;
use pair::Pair;
use slab::Slab;
use std::collections::VecDeque;

pub use end::{Breach, Cancel};
pub use pair::{Outgoing, Terms, Way};
pub use receive::Arrived;

/// Another endpoint. Its number is used again after it was lost, or left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PairId(pub u32);

/// A message that the program sends or wants. Its number is used again after its [`Completion`] was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

/// An action, for [`Engine::finished`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u32);

/// Receive buffers that one pair can have at once, at most.
pub const MOST_SLOTS: u8 = 64;
/// Bytes that are moved from memory to memory by one action.
const PIECE: u64 = 1 << 20;

/// What an endpoint has. Sizes are those of its pools, for all its pairs together, unless something else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a buffer: 1 KiB to 1 MiB.
    pub mtu: u32,
    /// Send buffers.
    pub smbs: u16,
    /// Receive buffers.
    pub rmbs: u16,
    /// Receive buffers of one pair.
    pub slots: u8,
    /// Messages of one pair that nobody waits for: so many can be sent before somebody does.
    pub credits: u16,
    /// Longest eager message.
    pub eager: u16,
    /// Optimisation 2: buffers are asked for before bytes are copied.
    pub early_request: bool,
    /// Ticks that a pair may sit on buffers that others want ([`Engine::tick`]).
    pub patience: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            mtu: 64 << 10,
            smbs: 32,
            rmbs: 32,
            slots: 8,
            credits: 64,
            eager: MOST_EAGER as u16,
            early_request: true,
            patience: 20,
        }
    }
}

/// Limits that nothing works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// See [`Limits::mtu`].
    #[error("a buffer has 1 KiB to 1 MiB, not {0} bytes")]
    Mtu(u32),
    /// A pool, or the credits, are 0.
    #[error(
        "send buffers, receive buffers, those of a pair, and credits have to be one at least, those of a pair {MOST_SLOTS} at most"
    )]
    Pool,
    /// See [`MOST_EAGER`].
    #[error("an eager message has {MOST_EAGER} bytes at most, not {0}")]
    Eager(u16),
}

impl Limits {
    /// Whether an endpoint can work with them.
    ///
    /// # Errors
    /// [`LimitsError`].
    pub fn check(&self) -> Result<(), LimitsError> {
        if !(1 << 10..=1 << 20).contains(&self.mtu) {
            return Err(LimitsError::Mtu(self.mtu));
        }
        if self.smbs == 0 || self.rmbs == 0 || !(1..=MOST_SLOTS).contains(&self.slots) || self.credits == 0 {
            return Err(LimitsError::Pool);
        }
        if usize::from(self.eager) > MOST_EAGER {
            return Err(LimitsError::Eager(self.eager));
        }
        Ok(())
    }

    /// Send buffers that may be filled before the other end has granted a place for what is in them. All of them may be, but one.
    pub const fn hopes(&self) -> u16 {
        let half = self.smbs.div_ceil(2);
        if half < self.smbs { half } else { self.smbs - 1 }
    }

    /// Those of one pair: one that never grants leaves some to the others.
    const fn hopes_of_pair(&self) -> u16 {
        self.hopes().div_ceil(2)
    }

    /// Envelopes that can be on their way or unexpected. They are given back by as many as there are credits.
    const fn window(credits: u16) -> u32 {
        2 * credits as u32
    }
}

/// Where bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A send buffer.
    Smb(u16),
    /// The message itself, which the sender copies into the receive buffer.
    Message,
}

/// What the driver is to do. It ends with [`Engine::finished`] (an [`Work::Expose`] with [`Engine::exposed`]), in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Action {
    /// This action.
    pub ticket: Ticket,
    /// The other end.
    pub pair: PairId,
    /// The message.
    pub request: RequestId,
    /// Where the part of the message begins that it is about.
    pub offset: u64,
    /// How long that is.
    pub len: u64,
    /// What to do with it.
    pub work: Work,
}

/// What is done with a part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// It is copied into a send buffer.
    CopyIn {
        /// Which.
        smb: u16,
    },
    /// It is moved to a receive buffer of the other end.
    Transfer {
        /// Which.
        slot: u8,
        /// Where it is now.
        from: Source,
    },
    /// It is copied out of a receive buffer.
    CopyOut {
        /// The buffer that was granted to the other end.
        slot: u8,
    },
    /// The other end may read it, all of it, where it is.
    Expose,
    /// It is moved from the memory of the other end to who waits for it.
    Move {
        /// Where the whole message is.
        origin: Origin,
        /// How many bytes of it are left behind this part.
        rest: u64,
    },
    /// It stays where it is, and who waits for it is to see it there.
    Hold {
        /// Where the whole message is.
        origin: Origin,
    },
}

/// An eager message that has waited, and that is to be copied to whom it is for. Needs no answer; the words go back by
/// [`Engine::recycle`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delivery {
    /// Who waits for it.
    pub request: RequestId,
    /// Its bytes.
    pub words: Vec<u64>,
    /// How many.
    pub len: u16,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Its bytes are not needed here any more. Whether somebody has received an eager message is not known.
    Sent,
    /// It is here.
    Received {
        /// From whom.
        pair: PairId,
        /// What for.
        tag: Tag,
        /// How many bytes.
        len: u64,
    },
    /// It is where the sender has it, until [`Engine::release`].
    Held {
        /// From whom.
        pair: PairId,
        /// Which of that pair.
        message: Message,
        /// What for.
        tag: Tag,
        /// How many bytes.
        len: u64,
    },
    /// As it was asked for.
    Cancelled,
    /// It has more bytes than the receiver has room for. Of a sender: none was taken.
    TooLong {
        /// How many.
        len: u64,
    },
    /// A copy or a move did not work, here or there.
    Failed,
    /// The other end is gone.
    Lost,
}

/// The end of a message. Its buffer is the program's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Completion {
    /// Which.
    pub request: RequestId,
    /// What became of it.
    pub outcome: Outcome,
}

/// A message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There is no such pair any more.
    #[error("the other endpoint is gone")]
    Lost,
}

/// What a message needs besides its pair.
#[derive(Clone, Debug, Hash)]
struct Request {
    /// Actions that use its memory.
    busy: u32,
    /// What it will be told when nobody uses its memory.
    outcome: Option<Outcome>,
    /// Its completion waits to be taken.
    has_ended: bool,
    role: Role,
}

#[derive(Clone, Copy, Debug, Hash)]
enum Role {
    Send { pair: PairId, tag: Tag, len: u64, scheme: crate::Scheme },
    Receive { from: Option<PairId> },
}

/// An action that was not said to be done.
#[derive(Clone, Copy, Debug, Hash)]
struct Doing {
    pair: PairId,
    message: crate::control::Message,
    request: RequestId,
    what: What,
}

#[derive(Clone, Copy, Debug, Hash)]
enum What {
    CopyIn { segment: u32, smb: u16 },
    Transfer { segment: u32, smb: Option<u16> },
    CopyOut { slot: u8 },
    Expose,
    Move { len: u64 },
    Hold,
}

/// One endpoint.
#[derive(Clone, Debug)]
pub struct Engine {
    limits: Limits,
    pairs: Slab<Pair>,
    requests: Slab<Request>,
    doing: Slab<Doing>,
    /// Free send buffers, and how many wait for a grant.
    smbs: Vec<u16>,
    hoping: u16,
    /// Receive buffers that are granted or being copied out.
    rmbs: u16,
    /// Pairs that have a grant and need a send buffer; that want to fill one before; that are to be granted something; that have something to say.
    needs: VecDeque<PairId>,
    hopes: VecDeque<PairId>,
    wants: VecDeque<PairId>,
    talks: VecDeque<PairId>,
    /// Receives from anybody.
    any: VecDeque<Posted>,
    actions: VecDeque<Action>,
    deliveries: VecDeque<Delivery>,
    completions: VecDeque<Completion>,
    given_up: VecDeque<(PairId, Breach)>,
    /// Counts what is posted and what arrives: the earlier one comes first.
    turn: u64,
    /// Memory of messages that waited, to be used again.
    spare: Vec<Vec<u64>>,
    trace: Trace,
}

/// Of what an engine does from now on: what was traced, and memory that is kept, are no part of it. For who looks whether he has been here.
impl std::hash::Hash for Engine {
    fn hash<H: std::hash::Hasher>(&self, to: &mut H) {
        self.pairs.iter().for_each(|pair| pair.hash(to));
        self.requests.iter().for_each(|request| request.hash(to));
        self.doing.iter().for_each(|doing| doing.hash(to));
        (&self.smbs, self.hoping, self.rmbs, &self.needs, &self.hopes, &self.wants).hash(to);
        (&self.any, &self.actions, &self.deliveries, &self.completions, self.turn).hash(to);
    }
}

impl Engine {
    /// An endpoint without pairs.
    ///
    /// # Errors
    /// [`LimitsError`].
    pub fn new(limits: Limits) -> Result<Self, LimitsError> {
        limits.check()?;
        Ok(Self {
            limits,
            pairs: Slab::new(),
            requests: Slab::new(),
            doing: Slab::new(),
            smbs: (0..limits.smbs).rev().collect(),
            hoping: 0,
            rmbs: 0,
            needs: VecDeque::new(),
            hopes: VecDeque::new(),
            wants: VecDeque::new(),
            talks: VecDeque::new(),
            any: VecDeque::new(),
            actions: VecDeque::new(),
            deliveries: VecDeque::new(),
            completions: VecDeque::new(),
            given_up: VecDeque::new(),
            turn: 0,
            spare: Vec::new(),
            trace: Trace::default(),
        })
    }

    /// What it has.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What the other end of a pair is told about this one ([`Engine::connect`]).
    pub fn terms(&self) -> Terms {
        Terms { mtu: self.limits.mtu, slots: self.limits.slots, credits: self.limits.credits }
    }

    /// The next thing to do.
    #[inline]
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next message that has waited, and is to be copied.
    #[inline]
    pub fn delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop_front()
    }

    /// The next message that has ended. To be asked when all deliveries are taken: they may be about its memory.
    #[inline]
    pub fn completion(&mut self) -> Option<Completion> {
        let completion = self.completions.pop_front()?;
        self.requests.remove(completion.request.0 as usize);
        Some(completion)
    }

    /// Whether there is one.
    #[inline]
    pub fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// The next pair that the engine itself has lost, because its other end does what it may not.
    pub fn given_up(&mut self) -> Option<(PairId, Breach)> {
        let given_up = self.given_up.pop_front();
        if let Some((id, _)) = given_up {
            self.bury(id);
        }
        given_up
    }

    /// Whether there is one.
    pub fn has_given_up(&self) -> bool {
        !self.given_up.is_empty()
    }

    /// Remembers up to `most` steps from now on, for [`Engine::step`].
    pub fn trace(&mut self, most: usize) {
        self.trace.begin(most);
    }

    /// The next step that was done, and how many nobody has taken in time.
    pub fn step(&mut self) -> (Option<Event>, u64) {
        (self.trace.take(), self.trace.dropped())
    }

    /// Send buffers and receive buffers that are in use.
    pub fn in_use(&self) -> (u16, u16) {
        (self.limits.smbs - self.smbs.len() as u16, self.rmbs)
    }

    /// Pairs, with those that were lost and of which something is left.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Whether that message has not ended.
    pub fn is_open(&self, request: RequestId) -> bool {
        self.requests.get(request.0 as usize).is_some_and(|request| !request.has_ended)
    }

    /// Messages that have not ended.
    pub fn open_requests(&self) -> usize {
        self.requests.len() - self.completions.len()
    }

    fn request(&mut self, role: Role) -> RequestId {
        RequestId(self.requests.insert(Request { busy: 0, outcome: None, has_ended: false, role }) as u32)
    }

    /// A pair that is not lost.
    #[inline]
    fn live(&mut self, pair: PairId) -> Option<&mut Pair> {
        self.pairs.get_mut(pair.0 as usize).filter(|pair| !pair.lost)
    }

    /// Begins an action for a message of a pair, with the part that begins at `offset`.
    fn begin(&mut self, doing: Doing, (offset, len): (u64, u64), work: Work) {
        let Doing { pair, request, .. } = doing;
        self.pairs[pair.0 as usize].acting += 1;
        self.requests[request.0 as usize].busy += 1;
        let ticket = Ticket(self.doing.insert(doing) as u32);
        self.actions.push_back(Action { ticket, pair, request, offset, len, work });
    }

    /// A message has ended, as soon as nobody uses its memory. The first that is said holds.
    fn end(&mut self, request: RequestId, outcome: Outcome) {
        let held = &mut self.requests[request.0 as usize];
        let outcome = *held.outcome.get_or_insert(outcome);
        // Its number stays its own until it is taken: there are no two messages with one.
        if held.busy == 0 && !core::mem::replace(&mut held.has_ended, true) {
            self.completions.push_back(Completion { request, outcome });
        }
    }
}
