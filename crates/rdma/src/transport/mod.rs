//! Queue pairs, and the protocol between two of them.
//!
//! ```text
//! requests -> requester -> packets -> responder of the other end -> its memory, its completions
//! completions <- requester <- answers <-+
//! ```
//!
//! * `attributes`, `state`: what a queue pair is told, and in which state it takes what.
//! * `queue_pair`, `told`: both halves of one, how it fails, and how it takes what it is told.
//! * `flushes`: what ends of those that have failed, and when.
//! * `requester/`: what is asked: segments, sequence numbers, window, retries; and what comes of answers.
//! * `responder/`: what is done for the other end, and what it is answered.
//! * `short`: SENDs that need no answer.
//! * `rate`: how fast a queue pair sends where routers are congested.
//! * `environment`: what it all needs of the engine: memory, completion queues, events.

mod attributes;
mod counters;
mod environment;
mod event;
mod flushes;
mod options;
mod origin;
mod out;
mod pieces;
mod queue_pair;
mod rate;
mod requester;
mod responder;
mod short;
mod state;
mod told;

pub use attributes::{Attributes, Capabilities, Init, Query};
pub use counters::Counters;
pub use event::Event;
pub use options::Options;
pub use origin::Origin;
pub use out::{Out, Sent};
pub(crate) use state::check as check_attributes;
pub use state::{State, Unfit};

pub(crate) use environment::Environment;
pub(crate) use event::Events;
pub(crate) use flushes::Flushes;
pub(crate) use queue_pair::{Broken, Config, QueuePair, Step};
pub(crate) use requester::{Requester, SPAN};
pub(crate) use responder::{Pool, Responder};
pub(crate) use short::copy_out;
