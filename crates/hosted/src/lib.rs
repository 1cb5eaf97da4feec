//! The engine of messages in a card: what joins `millrace_message::hosted` to the system.
//!
//! * `server`: the socket, the start and the end. `worker`: the thread. `clients`: who has called, and how he is let in. `joins`: how much
//!   of the thread coming and going may take.
#![forbid(unsafe_code)]

mod clients;
mod joins;
mod server;
mod worker;

pub use millrace_served::{May, owner_only};
pub use server::{Server, Start};
