//! The card's side: programs, and what they have.

use super::books::{Account, Amounts, Books, Debt, Quota};
use super::general::{General, GeneralCounters};
use super::mailbox::Mailbox;
use super::memory::Reach;
use super::objects::Owned;
use super::waits::{Waited, Waits};
use super::work::Apart;
use super::{EVENT_LINES, EVENTS_AT, SHARED_LEN, WORK_LINES};
use crate::engine::{Engine, Error, Leftover, Options};
use crate::memory::{Limits, Regions, RegisterError};
use crate::number::{Gid, Key, Moment, Qpn};
use crate::show::{self, Shown};
use crate::wire::Service as Kind;
use millrace_dma::{OutOfRange, Pages, Region, RegionError, Window};
use millrace_ring::lines::{MOST_WORDS, Receiver, Sender};
use rustc_hash::FxHashMap;
use slab::Slab;
use std::collections::VecDeque;

/// Requests and buffers of queue pairs that have failed, of all programs, that end in one turn.
const FLUSHED: u32 = 256;

/// The number of a program, as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Number(pub(super) usize);

/// Why the card did not do what a program asked for.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The engine says so.
    #[error(transparent)]
    Engine(#[from] Error),
    /// The memory says so.
    #[error(transparent)]
    Memory(#[from] RegisterError),
    /// No memory to share with the program.
    #[error("no memory to share with the program: {0}")]
    Region(#[from] RegionError),
    /// It does not fit.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// There is no such program any more.
    #[error("the card does not serve this program any more: open the device again")]
    Gone,
    /// As many as one program may have.
    #[error("a program may have {limit} {what} in this card: destroy some, or start the card with a higher quota")]
    Quota {
        /// Of what.
        what: &'static str,
        /// How many.
        limit: u64,
    },
    /// As many as there are for this program and its user.
    #[error("there are no more {what} for this program in this card: others are to find some, too")]
    Crowded {
        /// Of what.
        what: &'static str,
    },
    /// There is no way to that host; with the number of Linux for why.
    #[error("there is no way from this card to that host")]
    NoHosts(i32),
    /// Another program offers that service.
    #[error("another program of this card listens at that port: choose another port, or end that program")]
    Offered,
    /// Ports below 1024 are for the owner of the card.
    #[error("ports below 1024 are for root, and for the user who runs the card")]
    Reserved,
}

impl ServeError {
    /// The number of Linux for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Engine(error) => error.errno(),
            Self::Memory(RegisterError::Limit { .. }) | Self::Region(_) | Self::Quota { .. } | Self::Crowded { .. } => {
                12
            }
            Self::Memory(RegisterError::Busy(_)) => 16,
            Self::Memory(_) | Self::Range(_) => 22,
            Self::Gone => 19,
            Self::NoHosts(errno) => *errno,
            Self::Offered => 98,
            Self::Reserved => 13,
        }
    }
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests and buffers taken from programs.
    pub taken: u64,
    /// Those that the engine refused; they were told as completions, where there is a queue for it.
    pub refused: u64,
    /// Those for objects that the program does not have.
    pub strange: u64,
    /// Programs that were put out because they wrote what is no message.
    pub malformed: u64,
    /// How often the engine had to wait for memory, and for how long.
    pub waits: u64,
    /// In microseconds.
    pub waited_us: u64,
    /// Programs that were put out because of that.
    pub stalled: u64,
    /// Events that a program had no room for.
    pub events_lost: u64,
    /// Packets that came from outside and said that they came from here.
    pub forged: u64,
    /// Packets to a queue pair that is not connected with the one that sent them.
    pub unconnected: u64,
    /// Packets between two programs of this card.
    pub packets: u64,
    /// Bytes copied from one program to another, once and without packets.
    pub copied: u64,
    /// Short WRITEs that were done by what was kept of the one before.
    pub again: u64,
}

/// A program.
pub(super) struct Process {
    /// None if it is the program's own.
    pub shared: Option<Region>,
    pub work: Receiver,
    pub events: Sender,
    /// Where its regions are.
    pub memory: usize,
    pub owned: Owned,
    /// Messages that were taken.
    pub taken: u64,
    /// What is paid for its regions, by key.
    pub paid: FxHashMap<Key, Amounts>,
    /// Events for which its ring had no room.
    pub late: VecDeque<u64>,
    /// How long the engine had to wait for its memory, if it is the owner's.
    pub waited: Waited,
}

/// What is left of a program that has gone: to be dropped. Its user pays for it until then.
pub struct Left {
    _regions: Option<Regions>,
    _objects: Vec<Leftover>,
    _process: Process,
    // Dropped last.
    _debt: Debt,
}

/// A program that was put out.
pub struct PutOut {
    /// Which.
    pub number: Number,
    /// What is left of it.
    pub left: Option<Left>,
    /// Its memory made the engine wait; otherwise it wrote what is no message.
    pub has_stalled: bool,
}

/// Who has a queue pair, and where its completions go.
#[derive(Clone, Copy)]
pub(super) struct PairOf {
    pub owner: Number,
    pub send_queue: u32,
    pub receive_queue: u32,
    /// What is paid for it.
    pub paid: Amounts,
}

/// A completion queue, and its ring.
pub(super) struct QueueOf {
    pub owner: Number,
    pub ring: Sender,
    /// Completions written to it, modulo 2^32.
    pub written: u32,
    /// How many there were when the program was told the last time.
    pub told: u32,
    pub depth: u32,
    /// For as long as the ring is used; none if it is the program's own.
    pub memory: Option<Region>,
}

/// A message, and room for what it is taken apart into.
pub(super) struct Scratch {
    pub words: [u64; MOST_WORDS],
    pub apart: Apart,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { words: [0; MOST_WORDS], apart: Apart::default() }
    }
}

/// An engine that many programs use.
pub struct Service {
    pub(super) engine: Engine<Reach>,
    pub(super) mac: [u8; 6],
    pub(super) own: Vec<Gid>,
    pub(super) quota: Quota,
    pub(super) books: Books,
    pub(super) processes: Slab<Process>,
    pub(super) queues: FxHashMap<u32, QueueOf>,
    pub(super) pairs: FxHashMap<Qpn, PairOf>,
    /// Owners of shared receive queues, and what is paid for these.
    pub(super) shared: FxHashMap<u32, (Number, Amounts)>,
    pub(super) mailbox: Mailbox,
    pub(super) general: General,
    pub(super) waits: Waits,
    /// All that could be sent waits for the wire.
    pub(super) is_blocked: bool,
    pub(super) counters: Counters,
    /// Completion queues that have completions for which there was no room, and when they are looked at again.
    pub(super) full: Vec<u32>,
    pub(super) full_due: Moment,
    /// Whose turn is first.
    pub(super) first: usize,
    /// Programs whose events are to be looked at by them: somebody has to ring.
    pub(super) bells: VecDeque<Number>,
    /// Programs that were put out.
    pub(super) put_out: Vec<PutOut>,
    /// Where messages are taken apart; away while one is.
    pub(super) scratch: Option<Box<Scratch>>,
}

impl Service {
    /// Of the address that has this MAC address and these GIDs.
    pub fn new(options: Options, mac: [u8; 6], own: &[Gid], quota: Quota) -> Self {
        let general = General::new(own, options.seed);
        Self {
            engine: Engine::new(Options { lists_filled: true, flushed_in_turn: FLUSHED, ..options }, Reach::new(own)),
            mac,
            own: own.to_vec(),
            quota,
            books: Books::new(quota),
            processes: Slab::new(),
            queues: FxHashMap::default(),
            pairs: FxHashMap::default(),
            shared: FxHashMap::default(),
            mailbox: Mailbox::default(),
            general,
            waits: Waits::default(),
            is_blocked: false,
            counters: Counters::default(),
            full: Vec::new(),
            full_due: Moment::new(0),
            first: 0,
            bells: VecDeque::new(),
            put_out: Vec::new(),
            scratch: None,
        }
    }

    /// One program more, of that user. Its memory with its rings is [`Service::memory_of`].
    ///
    /// # Errors
    /// [`ServeError::Region`], [`ServeError::Memory`].
    pub fn enter(&mut self, account: Account) -> Result<Number, ServeError> {
        let shared = Region::allocate(SHARED_LEN, Pages::Ordinary)?;
        let window = shared.window().clone();
        self.enter_with(account, &window, Some(shared))
    }

    /// The same with rings in memory that the program has made, [`SHARED_LEN`] bytes of zeros.
    ///
    /// # Errors
    /// [`ServeError::Range`]: the window is too short; [`ServeError::Memory`].
    pub fn enter_at(&mut self, account: Account, shared: &Window) -> Result<Number, ServeError> {
        self.enter_with(account, shared, None)
    }

    fn enter_with(&mut self, account: Account, window: &Window, shared: Option<Region>) -> Result<Number, ServeError> {
        let Amounts { domains, regions, bytes, .. } = self.quota.program;
        let (domains, regions) = (domains as usize, regions as usize);
        let limits = Limits { domains, regions, windows: regions, bytes, ..Limits::default() };
        let work = Receiver::new(window, WORK_LINES)?;
        let events = Sender::new(&window.part(EVENTS_AT, SHARED_LEN - EVENTS_AT)?, EVENT_LINES)?;
        let memory = self.engine.memory().regions.insert(Regions::new(limits)?);
        let owned = Owned::of(account);
        let process = Process {
            shared,
            work,
            events,
            memory,
            owned,
            taken: 0,
            paid: FxHashMap::default(),
            late: VecDeque::new(),
            waited: Waited::default(),
        };
        Ok(Number(self.processes.insert(process)))
    }

    /// What a program and the card share: the ring of work, and that of events.
    ///
    /// # Errors
    /// [`ServeError::Gone`]; also of one that has made it itself.
    pub fn memory_of(&self, program: Number) -> Result<&Region, ServeError> {
        self.processes.get(program.0).and_then(|process| process.shared.as_ref()).ok_or(ServeError::Gone)
    }

    /// The program has ended, or does not want to be served any more: all that it had is gone when this returns, and requests of
    /// others on their way to it end with an error. To drop what is left takes as long as there is memory to be unmapped.
    pub fn leave(&mut self, now: Moment, program: Number) -> Option<Left> {
        let process = self.processes.get_mut(program.0)?;
        let account = process.owned.account;
        let (owned, memory) = (core::mem::replace(&mut process.owned, Owned::of(account)), process.memory);
        let ends = owned.pairs.iter().filter_map(|qpn| Some((*qpn, self.engine.remote_of(*qpn)?)));
        let ends: Vec<(Qpn, Qpn)> = ends.collect();
        let objects = self.destroy_all(&owned);
        let debt = self.books.owe(account, &owned.has);
        self.general.leave(program);
        let reach = self.engine.memory();
        let regions = reach.regions.try_remove(memory);
        reach.suspects.forget(memory);
        reach.waits.retain(|(owner, _)| *owner != memory);
        let process = self.processes.remove(program.0);
        self.bells.retain(|bell| *bell != program);
        let own = &self.own;
        // Those that are connected with it, and with which it is: a look at all that there are would be everybody's turn.
        for (gone, other) in ends {
            self.engine.lose_pair(now, other, |path, remote| own.contains(&path.destination) && remote == gone);
        }
        Some(Left { _regions: regions, _objects: objects, _process: process, _debt: debt })
    }

    /// What led to other hosts is gone: queue pairs that are connected with them fail.
    pub fn lose_network(&mut self, now: Moment) {
        let own = &self.own;
        self.engine.break_pairs(now, |kind, path| kind != Kind::UnreliableDatagram && !own.contains(&path.destination));
    }

    /// Up to where the messages that a program has written by now are to be taken, so that a request by another way comes behind them;
    /// `None`: they were, and what has failed of it has ended. What it writes meanwhile may count among them.
    pub fn position_of_work(&self, program: Number) -> Option<u64> {
        let process = self.processes.get(program.0)?;
        match process.work.has_more() {
            true => Some(process.taken + u64::from(WORK_LINES)),
            false => self.engine.is_flushing(program.0 as u32).then_some(process.taken),
        }
    }

    /// Whether a program's messages are taken up to there, or there are no more, and what has failed of it has ended.
    pub fn has_taken(&self, program: Number, position: u64) -> bool {
        let is_taken = |process: &Process| process.taken >= position || !process.work.has_more();
        self.processes.get(program.0).is_none_or(is_taken) && !self.engine.is_flushing(program.0 as u32)
    }

    /// A program that is to be rung: it sleeps, and there is an event for it.
    pub fn take_bell(&mut self) -> Option<Number> {
        self.bells.pop_front()
    }

    /// A program that was put out. Its connection is to be closed.
    pub fn take_put_out(&mut self) -> Option<PutOut> {
        self.put_out.pop()
    }

    /// What a program has now.
    pub fn show(&mut self, program: Number) -> Option<Shown> {
        let process = self.processes.get(program.0)?;
        let (memory, pairs) = (process.memory, process.owned.pairs.len());
        let first: Vec<Qpn> = process.owned.pairs.iter().take(show::MOST).copied().collect();
        let told: Vec<_> = first.into_iter().filter_map(|qpn| Some((qpn, self.engine.query_qp(qpn).ok()?))).collect();
        let regions = self.engine.memory().regions.get_mut(memory)?;
        Some(Shown::of(told, pairs, regions))
    }

    /// JSON objects of what happened so far, of all programs together: counters of the transport, those of this, with some more, and those of
    /// queue pair 1.
    pub fn show_counters<const N: usize>(&mut self, more: [(&'static str, u64); N]) -> [String; 3] {
        let Counters {
            taken,
            refused,
            strange,
            malformed,
            waits,
            waited_us,
            stalled,
            events_lost,
            forged,
            unconnected,
            packets,
            copied,
            again,
        } = self.counters();
        let own = [
            ("taken", taken),
            ("refused", refused),
            ("strange", strange),
            ("malformed", malformed),
            ("waits", waits),
            ("waited_us", waited_us),
            ("stalled", stalled),
            ("events_lost", events_lost),
            ("forged", forged),
            ("unconnected", unconnected),
            ("packets", packets),
            ("copied_bytes", copied),
            ("written_again", again),
            ("programs", self.programs() as u64),
        ];
        let general = self.general.counters.pairs().chain([("services", self.general.services() as u64)]);
        let transport = self.engine.counters().pairs();
        [show::counters(transport), show::counters(own.into_iter().chain(more)), show::counters(general)]
    }

    /// What happened so far.
    pub fn counters(&mut self) -> Counters {
        Counters { copied: self.engine.memory().copied, ..self.counters }
    }

    /// What happened at queue pair 1 so far.
    pub fn general_counters(&self) -> GeneralCounters {
        self.general.counters
    }

    /// How many programs there are.
    pub fn programs(&self) -> usize {
        self.processes.len()
    }
}
