//! DD: descriptors with a done bit (`docs/spec/dd.md`).
//!
//! ```text
//! TX   software: frame -> buffer, descriptor with done = 0 -> ring        card polls it; done = 1 -> the same descriptor
//! RX   software: descriptor of an empty buffer, done = 0 -> ring          card: frame -> buffer, done = 1; software polls
//! ```
//!
//! The done bit is judged oppositely by the two sides: what it says is done belongs to the software, what it says is not
//! belongs to the card. It lies in one word with the length, so that one store publishes a descriptor and one load finds
//! it: no pointer word moves on the way of a packet, in neither direction. A buffer goes with its descriptor.

mod card_rx;
mod card_tx;
mod fixed;
mod host;
mod launch;
mod layout;
#[cfg(all(test, not(loom)))]
mod tests;

pub use card_rx::{CardRx, PostedBuffer};
pub use card_tx::{CardTx, Clock};
pub use fixed::{FixedRx, FixedTx, Found};
pub use host::{Frame, HostRx, HostTx, Received};
pub use launch::LaunchCounts;
pub use layout::{DESCRIPTOR, Outcome, Ring, Status};
pub use millrace_abi::launch::HORIZON;
