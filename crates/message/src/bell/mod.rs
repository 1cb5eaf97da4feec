//! Doorbells: numbers of 16 bits from one endpoint to another, in order, none lost (`docs/spec/message.md` §2).
//!
//! * `queue`: the ring that carries them. `filter`: which numbers the receiver wants.

mod filter;
mod queue;

pub use filter::{ClaimError, Filter, Owner, View};
pub use queue::{BELLS_LEN, Bell, Full, Receiver, Sender, Sent, bytes_of};
