//! Calypte: the header is the doorbell (`docs/spec/nfb-card.md` §3.2.5, `docs/spec/calypte.md`).
//!
//! ```text
//! TX   software: frame -> data[SDP..], header -> headers[SHP]      card polls headers[HHP]; HDP, HHP -> update word
//! RX   card: frame -> data[HDP..], header -> headers[HHP]          software polls headers[SHP]; SDP, SHP -> doorbell
//! ```
//!
//! A header is one 64-bit word with a valid bit whose meaning turns round with each lap of the header ring, so that it
//! says "new" by itself: a lone packet costs the line of its header and those of its frame, and no pointer word. Data
//! and header of a packet belong to their reader from the moment the header is stored until the reader's pointers have
//! passed them. The TX rings are memory of the device; the RX rings are memory of the software.

mod card;
mod host;
mod layout;
#[cfg(all(test, not(loom)))]
mod tests;

pub use card::{CardRx, CardTx, RxRings, TxRings};
pub use host::{DEFERRED, HostRx, HostTx, announced};
pub use layout::{BLOCK, FRAME_ALIGN, Header, Pointers, header_entries};
