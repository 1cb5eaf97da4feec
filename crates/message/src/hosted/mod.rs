//! Endpoints whose work a card does: messages are matched, moved and copied by a thread of the card while the program computes, and the
//! program has no thread. Programs that the card hosts reach each other; a long message is one copy, from the memory of one to that of the other.
//!
//! * `wire`: what program and card say to each other, by rings in memory that the program has made. `greeting`: how they meet.
//! * `service`: the side of the card: all its programs; `program`: one of them. No system call, no thread: `crates/hosted` has both.
//! * `endpoint`: the side of a program; `port`: what of it knows no system call.

mod endpoint;
mod error;
pub mod greeting;
mod port;
mod program;
mod service;
pub mod wire;

pub use endpoint::{Config, Endpoint, socket_of};
pub use error::{Error, Refused};
pub use port::{Ended, Memory};
pub use program::Owner;
pub use service::{Doze, EnterError, ProgramId, Service};
