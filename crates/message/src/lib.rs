//! Messages and doorbells between programs.
//!
//! * `endpoint`: what programs open, by name, and its thread.
//! * `buffer`: memory of messages, in one piece or several.
//! * `control`: what two endpoints say to each other. `bell`: doorbells.
//! * `local`: an endpoint with buffers of the program, and the memory that it shares with others.
//! * `hosts`: endpoints of other hosts, over cards and ports. `hosted`: endpoints whose work a card does.
//! * `engine`: the protocol, without a system call, a clock or a thread. `step`: its steps, by name.
//! * `channel`: the shared memory of two endpoints of one host, by which they say it.
//! * `cost`: what the ways of a message cost, and which is chosen. `measure`: what it is on this machine.
//!
//! Two programs, here two endpoints of one:
//!
//! ```
//! # #[cfg(not(loom))]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use millrace_message::{Endpoint, Tag};
//! use std::time::Duration;
//!
//! const PATIENCE: Duration = Duration::from_secs(5);
//! # let solver = format!("solver-{}", std::process::id());
//! # let solver = solver.as_str();
//! // One of them:
//! let other = Endpoint::open(solver)?;
//! let wanted = other.receive(None, Tag(7), u64::MAX, vec![0; 1 << 20])?;
//! // The other one:
//! let one = Endpoint::nameless()?;
//! let to = one.connect(solver, PATIENCE)?;
//! let sent = one.send(to, Tag(7), vec![1; 100_000])?;
//! one.wait(sent, PATIENCE).ok_or("it was not taken")?;
//! // And again the first:
//! let message = other.wait(wanted, PATIENCE).ok_or("nothing has come")?;
//! assert_eq!(message.buffer, vec![1; 100_000]);
//! # Ok(())
//! # }
//! # #[cfg(loom)]
//! # fn main() {}
//! ```
#![forbid(unsafe_code)]

pub mod bell;
#[cfg(not(loom))]
pub mod block;
#[cfg(not(loom))]
pub mod buffer;
pub mod channel;
pub mod control;
pub mod cost;
#[cfg(not(loom))]
pub mod endpoint;
pub mod engine;
#[cfg(not(loom))]
pub mod files;
#[cfg(not(loom))]
pub mod hosted;
#[cfg(not(loom))]
mod hosts;
#[cfg(not(loom))]
pub mod local;
#[cfg(not(loom))]
pub mod measure;
pub mod step;
#[cfg(not(loom))]
pub mod window;

pub use control::Tag;
pub use cost::Scheme;
#[cfg(not(loom))]
pub use endpoint::{Config, Endpoint, Peer, Request};
