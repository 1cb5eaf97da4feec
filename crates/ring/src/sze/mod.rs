//! SZE: a stream of packets in one byte ring (`docs/spec/nfb-card.md` §3.1, `docs/spec/sze.md`).
//!
//! ```text
//! ring    | header | metadata | frame | pad | header | ...        packets begin at multiples of 8 and may wrap
//! TX      software writes packets, moves SW; the card reads them, moves HW
//! RX      the card writes packets, moves HW; software reads them, moves SW
//! ```
//!
//! Who writes what: the descriptor list and the doorbell word with SW belong to the software; the update word with HW to
//! the card. Ring bytes from SW to HW (RX) or from HW to SW (TX) hold packets and belong to their reader; the others to
//! their writer. The ring needs no upkeep: descriptors are written once.

mod card;
mod host;
mod layout;
mod place;
#[cfg(all(test, not(loom)))]
mod tests;

pub use card::{CardRx, CardTx, Rings, RxRoom};
pub use host::{BadRing, HostRx, HostTx, RxPacket, Scanner};
pub use layout::{Descriptor, HEADER_LEN, PacketHeader, align8, descriptor_list};
