//! Packets as they stand in frames, in three formats; what the transport sees of them is the same in each.
//!
//! * RoCE v1: EtherType 0x8915, a global route header, then the packet (annex A16).
//! * RoCE v2: UDP over IPv4 or IPv6, port 4791, then the packet (annex A17).
//! * SLURPoE: an EtherType of its own and a lean header (`docs/spec/slurpoe.md`).

mod opcode;
mod packet;

pub use opcode::{Opcode, Place, Service};
pub use packet::{Aeth, AtomicEth, Deth, Headers, Packet, Reth, Syndrome};

use crate::number::Gid;

/// How packets stand in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// RoCE v1.
    RoceV1,
    /// RoCE v2.
    RoceV2,
    /// SLURPoE.
    Slurpoe,
}

/// The way from one end to the other: what stands in a frame besides the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// How packets stand in frames.
    pub format: Format,
    /// MAC address of this end.
    pub source_mac: [u8; 6],
    /// MAC address of the other end, or of the router that leads there.
    pub destination_mac: [u8; 6],
    /// This end.
    pub source: Gid,
    /// The other end.
    pub destination: Gid,
    /// Routers that it may pass, and one more: TTL, hop limit.
    pub hop_limit: u8,
    /// The upper six bits of TOS or traffic class are the class, the lower two what routers say of congestion.
    pub traffic_class: u8,
    /// Of IPv6 and of RoCE v1: 20 bits.
    pub flow_label: u32,
    /// Of RoCE v2: UDP source port, 0xc000 to 0xffff, the same for all packets of a queue pair.
    pub source_port: u16,
}
