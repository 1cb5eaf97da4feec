//! Everything of one address together: queue pairs, their queues, timers, events. What a program calls.
//!
//! The engine knows no threads, no clock and no sockets. Its owner gives it packets and the time, and takes packets:
//!
//! ```text
//!    post_send, post_receive -> +--------+ -> poll, take_event
//!                               | engine |
//!            receive(packet) -> +--------+ -> transmit(out)
//! ```
//!
//! After something was posted or received, and when [`Engine::next_deadline`] has come, [`Engine::transmit`] is to be called
//! until it has nothing more to send.
//!
//! * `queues`: protection domains, completion queues, shared receive queues.
//! * `pairs`: queue pairs, made, told and destroyed.
//! * `post`: requests and buffers.
//! * `packets`: what comes and what goes. `short`: SENDs that need no answer. `flushes`: what has failed ends.
//! * `numbers`, `timers`, `turns`: which queue pair has which number; when each is to be looked at; whose turn it is to send.

mod error;
mod flushes;
mod numbers;
mod packets;
mod pairs;
mod post;
mod queues;
mod short;
mod timers;
mod turns;

pub use crate::transport::{Counters, Event, Options};
pub use error::Error;
pub use queues::SharedReceiveQuery;
pub use short::{Came, Near, Rings, Seen};

use crate::memory::Memory;
use crate::transport::{Environment, Events, Flushes, Pool, QueuePair};
use crate::work::{CompletionQueue, SharedReceiveQueue};
use numbers::Numbers;
use slab::Slab;
use timers::Timers;
use turns::Turns;

/// What is left of an object that was destroyed: to be dropped, which takes as long as it has memory.
pub type Leftover = Box<dyn Send>;

/// All objects of one address.
#[derive(Debug)]
pub struct Engine<M> {
    options: Options,
    memory: M,
    /// Queue pairs of each protection domain.
    domains: Slab<u32>,
    queues: Slab<CompletionQueue>,
    shared: Slab<SharedReceiveQueue>,
    pairs: Slab<Box<QueuePair>>,
    numbers: Numbers,
    /// Those that may have something to send.
    turns: Turns,
    timers: Timers,
    /// Those whose timers are to be started: what they sent was sent without a look at the clock.
    late: Vec<u32>,
    /// Bytes of the short SEND that is posted, where they lie in several places.
    gathered: Box<[u8]>,
    events: Events,
    counters: Counters,
    pool: Pool,
    flushes: Flushes,
}

impl<M: Memory> Engine<M> {
    /// An engine without objects.
    pub fn new(options: Options, memory: M) -> Self {
        let options = Options {
            // More could not be told apart by what says which packets came (decision 54).
            window: options.window.clamp(4, crate::transport::SPAN - 64),
            max_pieces: options.max_pieces.clamp(1, 255),
            max_message: options.max_message.min(1 << 30),
            ..options
        };
        Self {
            memory,
            domains: Slab::new(),
            queues: Slab::new(),
            shared: Slab::new(),
            pairs: Slab::new(),
            numbers: Numbers::new(options.first_qpn, options.qpns),
            turns: Turns::default(),
            timers: Timers::default(),
            late: Vec::new(),
            gathered: vec![0; short::MOST_SHORT].into_boxed_slice(),
            events: Events::default(),
            counters: Counters::default(),
            pool: Pool::new(options.reorder_bytes),
            flushes: Flushes::new(options.flushed_in_turn),
            options,
        }
    }

    /// What it was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Keys and regions.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What happened, one after the other.
    pub fn take_event(&mut self) -> Option<Event> {
        self.events.take()
    }

    /// Queue pairs of completion queues that were overrun do not go on (volume 1, 10.2.6.2).
    fn fail_overrun(&mut self, now: crate::number::Moment) {
        while let Some(queue) = self.events.overrun.pop() {
            let Some(of) = self.queues.get_mut(queue as usize).filter(|of| !of.is_told()) else { continue };
            of.set_told();
            // Theirs, and no look at all that there are: with an engine for many programs that would be everybody's turn.
            let users = of.users.clone();
            self.events.add(Event::CompletionQueueError(queue));
            let (pairs, mut env) = self.split(now);
            for slot in users {
                if let Some(pair) = pairs.get_mut(slot as usize) {
                    pair.break_down(&mut env);
                }
            }
        }
    }

    /// The queue pairs, and what they need.
    fn split(&mut self, now: crate::number::Moment) -> (&mut Slab<Box<QueuePair>>, Environment<'_, M>) {
        let env = Environment {
            memory: &mut self.memory,
            queues: &mut self.queues,
            shared: &mut self.shared,
            events: &mut self.events,
            counters: &mut self.counters,
            pool: &mut self.pool,
            flushes: &mut self.flushes,
            options: &self.options,
            now,
        };
        (&mut self.pairs, env)
    }

    /// The queue pair may have something to send.
    #[inline]
    fn schedule(&mut self, slot: u32) {
        if let Some(pair) = self.pairs.get_mut(slot as usize)
            && !pair.scheduled
        {
            pair.scheduled = true;
            self.turns.add(pair.group, slot);
        }
    }

    #[inline]
    fn slot(&self, qpn: crate::number::Qpn) -> Result<u32, Error> {
        self.numbers.slot(qpn).ok_or(Error::Missing("queue pair"))
    }
}
