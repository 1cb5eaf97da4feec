//! The engine of messages in a card: what joins `millrace_message::hosted` to the system.
//!
//! * `server`: the socket, the start and the end. `worker`: the thread. `clients`: who has called, and how he is let in.
#![forbid(unsafe_code)]

mod clients;
mod server;
mod worker;

pub use millrace_served::{May, owner_only};
pub use server::{Server, Start};
