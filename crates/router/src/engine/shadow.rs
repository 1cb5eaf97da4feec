//! Rules against Linux, packet by packet: what a rule makes of a packet and what Linux makes of it, compared byte for byte.
//!
//! The program changes a frame as its rule says, copies it here, changes it back and lets Linux send it; what Linux sends is copied at the egress
//! (`bpf/shadow.h`). A ticket says which two belong together.

use super::layout::{Rule, SHADOW_BYTES, SHADOW_HEAD, State, global};
use super::{Engine, EngineError};
use libbpf_rs::RingBufferBuilder;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Copies whose other half has not come that are kept; an older one is given up as unpaired.
const WAITING: usize = 1024;

/// How long what Linux makes of a packet may be on its way.
const LATE: Duration = Duration::from_secs(1);

/// Copies that are taken in one turn, whatever still comes meanwhile.
pub const TURN: u32 = 1024;

/// A frame, as the rule or Linux would send it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// By which interface.
    pub out: u32,
    /// Its bytes; of a longer one the first 2048.
    pub frame: Vec<u8>,
    /// How long it is.
    pub len: usize,
}

/// A packet of which a rule makes something else than Linux. The rule has been ended, its flow refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The rule, if it was still there.
    pub rule: Option<Rule>,
    /// What the rule made of it.
    pub ours: Copy,
    /// What Linux sent.
    pub linux: Copy,
}

/// How many were compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Pairs that were the same.
    pub same: u64,
    /// Pairs that were not.
    pub different: u64,
    /// Copies whose other half never came: Linux did not send the packet, or there was no room for the copy.
    pub unpaired: u64,
    /// Pairs that were different because something has changed in Linux after the packet came, or just before: the rule asks again anyway.
    pub overtaken: u64,
}

/// One half of a pair, as it lies in the ring.
struct Half {
    ticket: u32,
    rule: u32,
    word: u32,
    is_ours: bool,
    is_v6: bool,
    /// How often Linux had changed by then.
    changes: u32,
    copy: Copy,
}

impl Half {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; SHADOW_HEAD] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let len = word(20) as usize;
        let mut frame = bytes.get(SHADOW_HEAD..SHADOW_HEAD + len.min(SHADOW_BYTES))?.to_vec();
        let (is_ours, mut whole) = (head[24] == 1, len);
        // A tag that Linux keeps beside the frame, put where it will be on the wire.
        if head[26..28] != [0, 0] && frame.len() >= 12 {
            frame.splice(12..12, head[26..30].iter().copied());
            whole += 4;
        }
        let copy = Copy { out: word(12), frame, len: whole };
        Some(Self {
            ticket: word(0),
            rule: word(4),
            word: word(8),
            is_ours,
            is_v6: head[25] == 6,
            changes: word(16),
            copy,
        })
    }
}

/// The halves that wait for the other, in the order in which they came.
#[derive(Default)]
struct Waiting {
    halves: HashMap<u32, Half>,
    order: VecDeque<(u32, Instant)>,
}

impl Waiting {
    /// The other half, if it is here; otherwise this one waits.
    fn meet(&mut self, half: Half, now: Instant) -> Option<(Half, Half)> {
        if let Some(other) = self.halves.remove(&half.ticket) {
            return if other.is_ours { Some((other, half)) } else { Some((half, other)) };
        }
        self.order.push_back((half.ticket, now));
        self.halves.insert(half.ticket, half);
        None
    }

    /// Those that have waited too long, or are too many.
    fn give_up(&mut self, now: Instant) -> Vec<Half> {
        let mut given_up = Vec::new();
        while let Some((ticket, since)) = self.order.front().copied()
            && (self.order.len() > WAITING || now.duration_since(since) >= LATE)
        {
            self.order.pop_front();
            given_up.extend(self.halves.remove(&ticket));
        }
        given_up
    }
}

/// Reads copies and compares them. One at a time for each engine.
pub struct Shadow<'a> {
    engine: &'a Engine,
    waiting: RefCell<Waiting>,
    tally: RefCell<Tally>,
    /// Ours of pairs that a change has overtaken.
    overtaken: RefCell<Vec<Half>>,
    /// Copies lost until the last look.
    lost: Cell<u32>,
}

impl<'a> Shadow<'a> {
    /// A comparison that begins now. How many packets are compared is said with [`Engine::set_shadow`].
    pub fn new(engine: &'a Engine) -> Self {
        Self {
            engine,
            waiting: RefCell::default(),
            tally: RefCell::default(),
            overtaken: RefCell::default(),
            lost: Cell::default(),
        }
    }

    /// Compares what has come, waiting up to `time` for the first of it, at most [`TURN`] of it. `mismatch` gets what is different, after its rule has
    /// been ended.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn poll(&self, time: Duration, mut mismatch: impl FnMut(Mismatch)) -> Result<(), EngineError> {
        let failed = |source| EngineError::Update { what: "copies of packets cannot be read", source };
        let (mut found, left) = (Vec::new(), Cell::new(TURN));
        {
            let mut builder = RingBufferBuilder::new();
            let take = |bytes: &[u8]| {
                found.extend(Half::from_bytes(bytes).and_then(|half| self.take(half)));
                left.set(left.get() - 1);
                // The one that says so has been taken; the rest comes next time.
                if left.get() == 0 { -rustix::io::Errno::AGAIN.raw_os_error() } else { 0 }
            };
            builder.add(&self.engine.maps.shadows, take).map_err(failed)?;
            match builder.build().map_err(failed)?.poll(time) {
                Err(_) if left.get() == 0 => {}
                other => other.map_err(failed)?,
            }
        }
        for (ours, linux) in found {
            let rule = self.engine.rule(ours.is_v6, ours.rule).filter(|rule| same_rule(rule.word, ours.word));
            if let Some(rule) = &rule {
                self.engine.refuse(rule)?;
            }
            mismatch(Mismatch { rule, ours: ours.copy, linux: linux.copy });
        }
        for half in self.overtaken.take() {
            self.doubt_rule(&half);
        }
        self.doubt();
        Ok(())
    }

    /// What Linux did not send within a second it may have dropped, for a reason that nobody has told of: the rule is on trial again.
    fn doubt(&self) {
        let given_up = self.waiting.borrow_mut().give_up(Instant::now());
        self.tally.borrow_mut().unpaired += given_up.len() as u64;
        let lost = self.lost();
        // Where copies found no room, what is missing says nothing.
        if self.lost.replace(lost) != lost {
            return;
        }
        for half in given_up.into_iter().filter(|half| half.is_ours) {
            self.doubt_rule(&half);
        }
    }

    fn doubt_rule(&self, half: &Half) {
        if let Some(rule) = self.engine.rule(half.is_v6, half.rule).filter(|rule| same_rule(rule.word, half.word)) {
            self.engine.doubt(&rule);
        }
    }

    /// A pair that is different.
    fn take(&self, half: Half) -> Option<(Half, Half)> {
        let (ours, linux) = self.waiting.borrow_mut().meet(half, Instant::now())?;
        let mut tally = self.tally.borrow_mut();
        if ours.copy == linux.copy {
            tally.same += 1;
            return None;
        }
        // The packet went to Linux, which has heard of a change before the daemon has: none of the two is wrong. What is wrong all the same shows when nothing
        // changes.
        if ours.changes != self.engine.globals.word(global::CHANGES).load(Relaxed) {
            tally.overtaken += 1;
            self.overtaken.borrow_mut().push(ours);
            return None;
        }
        tally.different += 1;
        Some((ours, linux))
    }

    /// How many were compared so far; `unpaired` includes those that still wait.
    pub fn tally(&self) -> Tally {
        let mut tally = *self.tally.borrow();
        tally.unpaired += self.waiting.borrow().halves.len() as u64;
        tally
    }

    /// Copies that the program had no room for.
    pub fn lost(&self) -> u32 {
        self.engine.globals.word(global::SHADOW_LOST).load(Relaxed)
    }
}

/// Whether two words are of the same rule, in whatever state.
fn same_rule(one: u32, other: u32) -> bool {
    one & 0xffff_0000 == other & 0xffff_0000 && State::of(one) != Some(State::Dead)
}
