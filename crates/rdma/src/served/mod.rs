//! The engine in another process, which many programs share: in a card (decision 65).
//!
//! ```text
//!  program                      shared memory                       card
//!  Program::post_send  ------>  ring of work       ------>  Service -- engine -- frames
//!  Program::poll       <------  ring of a CQ       <------     |
//!  Program::take_event <------  ring of events     <------     +-- memory of every program, mapped
//! ```
//!
//! A program makes and destroys objects by calls that its owner carries to [`Service`]; work, completions and events go by
//! rings in shared memory, without a system call. The service looks at all rings in turn, with a budget for each program.
//!
//! * `work`, `told`: what stands in the messages of both directions.
//! * `program`: the side of a program.
//! * `memory`: regions of all programs; a copy from one to another. `suspects`, `waits`: for whose memory the engine has waited.
//! * `service`: the side of the card. `objects`: who owns what. `books`: how much. `turn`: what is done again and again.
//! * `mailbox`: packets between two programs of one card. `general`: queue pair 1, which they share.
//!
//! Nothing here makes a system call or knows a clock, as everywhere in this crate.

mod books;
mod general;
mod mailbox;
mod memory;
mod objects;
mod program;
mod service;
mod suspects;
mod told;
mod turn;
mod waits;
mod work;

pub use books::{Account, Amounts, Books, Debt, Quota};
pub use general::{GeneralCounters, ID_BITS};
pub use program::{Full, Program};
pub use service::{Counters, Left, Number, PutOut, ServeError, Service};
pub use turn::Turn;
pub use waits::{Wait, Watcher};
pub use work::{Apart, MOST_PIECES, Words, Work};

/// Most bytes that a request may bring along.
pub const MOST_INLINE: usize = 1024;

/// Lines of the ring of work of a program, and of its ring of events.
const WORK_LINES: u32 = 1024;
const EVENT_LINES: u32 = 256;
/// Where the ring of events begins in the memory of a program.
const EVENTS_AT: usize = millrace_ring::lines::bytes_of(WORK_LINES).next_multiple_of(4096);
/// Bytes of the memory that a program and the card share, without its completion queues.
pub const SHARED_LEN: usize = EVENTS_AT + millrace_ring::lines::bytes_of(EVENT_LINES);

/// Bytes of a ring of that many lines.
pub const fn ring_len(lines: u32) -> usize {
    millrace_ring::lines::bytes_of(lines)
}

/// Lines of the ring of a completion queue with room for `depth` completions.
pub const fn queue_lines(depth: u32) -> u32 {
    if depth <= 16 { 16 } else { depth.next_power_of_two() }
}
