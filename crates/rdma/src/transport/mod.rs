//! Queue pairs, and the protocol between two of them.
//!
//! ```text
//! requests -> requester -> packets -> responder of the other end -> its memory, its completions
//! completions <- requester <- answers <-+
//! ```
//!
//! * `attributes`, `state`: what a queue pair is told, and in which state it takes what.
//! * `queue_pair`: both halves of one, and how it fails.
//! * `requester/`: what is asked: segments, sequence numbers, window, retries; and what comes of answers.
//! * `responder/`: what is done for the other end, and what it is answered.
//! * `datagram`: queue pairs of datagrams.
//! * `rate`: how fast a queue pair sends where routers are congested.
//! * `environment`: what it all needs of the engine: memory, completion queues, events.

mod attributes;
mod origin;
mod out;
mod state;

pub use attributes::{Attributes, Capabilities, Init, Query};
pub use origin::Origin;
pub use out::{Out, Sent};
pub use state::{State, Unfit};
