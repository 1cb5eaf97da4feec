//! Medusa: one descriptor per packet (`docs/spec/nfb-card.md` §3.2, `docs/spec/medusa.md`).
//!
//! ```text
//! TX   software: descriptors -> ring[SDP..], SDP += n        card: frames <- buffers, HDP += n
//! RX   software: descriptors -> ring[SDP..], SDP += n        card: frame -> buffer, header -> headers[HHP], HDP, HHP
//!      software: frames <- buffers, SHP += n
//! ```
//!
//! Who writes what: the descriptor ring, and the doorbell word with SDP and SHP, belong to the software; the header ring
//! (RX) and the update word with HDP and HHP belong to the card. A buffer belongs to the card from the moment SDP passes
//! its descriptor until HDP (TX) or HHP (RX) passes it.

mod card_rx;
mod card_tx;
mod chain;
mod fixed;
mod host;
mod layout;
mod note;
#[cfg(all(test, not(loom)))]
mod tests;

pub use card_rx::{CardRx, RxRings};
pub use card_tx::{CardTx, TxRings};
pub use fixed::{FixedRx, FixedTx, REFILL};
pub use host::{HostRx, HostTx};
pub use layout::{Buffer, Descriptor, Pointers, RxHeader};
pub use note::Note;
