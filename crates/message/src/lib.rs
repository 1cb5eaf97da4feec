//! Messages and doorbells between programs.
//!
//! * `control`: what two endpoints say to each other. `bell`: doorbells.
//! * `local`: an endpoint with buffers of the program, and the memory that it shares with others.
//! * `engine`: the protocol, without a system call, a clock or a thread. `step`: its steps, by name.
//! * `channel`: the shared memory of two endpoints of one host, by which they say it.
//! * `cost`: what the ways of a message cost, and which is chosen.
//!
//! ```
//! use millrace_dma::Region;
//! use millrace_message::channel::Side;
//! use millrace_message::control::Tag;
//! use millrace_message::local::{Local, memory_len};
//! use millrace_message::engine::Limits;
//!
//! let (mut one, mut other) = (Local::new(Limits::default())?, Local::new(Limits::default())?);
//! // Two processes pass the descriptor of such memory to each other, and what they say of themselves.
//! let memory = Region::heap(memory_len(one.terms(), other.terms()));
//! let to = one.join(memory.window(), Side::Maker, other.terms())?;
//! let from = other.join(memory.window(), Side::Taker, one.terms())?;
//!
//! other.receive(Some(from), Tag(7), u64::MAX, vec![0; 100_000])?;
//! one.send(to, Tag(7), vec![1; 100_000])?;
//! let done = loop {
//!     one.progress();
//!     other.progress();
//!     if let Some(done) = other.done() {
//!         break done;
//!     }
//! };
//! assert_eq!(done.buffer, vec![1; 100_000]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod bell;
pub mod channel;
pub mod control;
pub mod cost;
pub mod engine;
pub mod local;
pub mod step;

pub use cost::Scheme;
