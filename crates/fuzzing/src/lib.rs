//! Bodies of the fuzz targets in `fuzz/`: a fake peer that writes arbitrary descriptors, headers and pointers into
//! arbitrary memory, and arbitrary calls of the rings of `millrace-ring` over them; any bytes as a frame for the parser
//! of `millrace-packet`, and as traffic for the QUIC steering of `millrace-flow`; any actions of that on any frame, and any
//! text as its rules; any bytes as a frame of RDMA for `millrace-rdma`, and as a
//! request to its engine in the card; any bytes as frames for the client of `millrace-pppoe`, and as packets, messages and texts
//! of `millrace-ipsec`; any bytes as messages of OpenFlow for `millrace-agent`,
//! and as messages of netlink for `millrace-router`.
//!
//! They are ordinary functions, so that `make test` runs each of them over a fixed set of pseudo-random inputs where
//! there is no `cargo fuzz`.
#![forbid(unsafe_code)]

mod esp;
mod execute;
mod language;
mod netlink;
mod openflow;
mod parse;
mod pppoe;
mod quic;
mod rdma_cm;
mod rdma_served;
mod rdma_wire;
mod rings;
mod virtio;

pub use esp::esp;
pub use execute::execute;
pub use language::language;
pub use netlink::netlink;
pub use openflow::openflow;
pub use parse::parse;
pub use pppoe::pppoe;
pub use quic::quic;
pub use rdma_cm::rdma_cm;
pub use rdma_served::rdma_served;
pub use rdma_wire::rdma_wire;
pub use rings::{calypte, dd, medusa, sze};
pub use virtio::virtio;

/// Runs a body over `count` pseudo-random inputs, always the same ones, and returns how many frames moved in all.
pub fn short_run(body: fn(&[u8]) -> u64, count: u32) -> u64 {
    let mut moved = 0;
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = [0u8; 1024];
    for _ in 0..count {
        for chunk in bytes.chunks_exact_mut(8) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            chunk.copy_from_slice(&random.to_le_bytes());
        }
        moved += body(&bytes[..64 + random as usize % (bytes.len() - 64)]);
    }
    moved
}
