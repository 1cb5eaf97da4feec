//! Packets as they stand in frames, in three formats; what the transport sees of them is the same in each.
//!
//! * RoCE v1: EtherType 0x8915, a global route header, then the packet (annex A16).
//! * RoCE v2: UDP over IPv4 or IPv6, port 4791, then the packet (annex A17).
//! * SLURPoE: an EtherType of its own and a lean header (`docs/spec/slurpoe.md`).

//!
//! | File | What is in it |
//! |---|---|
//! | `opcode`, `code` | what a packet is; the byte that says so, and which extended headers belong to it |
//! | `packet` | headers and payload, whatever the format |
//! | `gid` | global identifiers, flow labels and source ports |
//! | `extended`, `slurpoe` | extended headers as RoCE writes them; the lean header |
//! | `icrc` | the invariant CRC |
//! | `parse`, `from`, `reason` | from a frame to a packet; where it came from; why there is none |
//! | `build` | from a packet to a frame |

mod build;
mod code;
mod extended;
mod from;
mod gid;
mod icrc;
mod opcode;
mod packet;
mod parse;
mod reason;
mod slurpoe;
#[cfg(test)]
mod tests;

pub use build::{Open, Prepared, Unbuildable};
pub use code::{Known, Parts, Unknown, decode, encode};
pub use from::From;
pub use gid::{flow_label_of_port, port_of_flow_label};
pub use opcode::{Opcode, Place, Service};
pub use packet::{Aeth, AtomicEth, Deth, Headers, Packet, Reth, Syndrome};
pub use parse::parse;
pub use reason::{Counters, Reason};

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

/// Bytes that may stand before and behind the payload of a packet, in a frame behind the Ethernet header: IPv6, UDP, base
/// transport header, RETH, immediate data, invariant CRC.
const MOST_AROUND_ROCE: usize = 40 + 8 + 12 + 16 + 4 + 4;
/// The same for SLURPoE: header, RETH, immediate data, CRC-32C.
const MOST_AROUND_LEAN: usize = slurpoe::LEN + 16 + 8 + 4;

impl Format {
    /// Most bytes of payload in one packet: the largest path MTU.
    #[inline]
    pub const fn most_payload(self) -> usize {
        match self {
            Self::RoceV1 | Self::RoceV2 => 4096,
            Self::Slurpoe => 8192,
        }
    }

    /// The largest path MTU (256, 512, and so on) whose packets fit into frames of `link_mtu` bytes, Ethernet header
    /// and FCS not counted; `None`: the smallest does not fit.
    pub fn path_mtu(self, link_mtu: usize) -> Option<usize> {
        let around = if self == Self::Slurpoe { MOST_AROUND_LEAN } else { MOST_AROUND_ROCE };
        let sizes = [8192, 4096, 2048, 1024, 512, 256];
        sizes.into_iter().find(|size| *size <= self.most_payload() && size + around <= link_mtu)
    }
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

impl Path {
    /// The way back.
    #[inline]
    pub const fn reversed(&self) -> Self {
        Self {
            source_mac: self.destination_mac,
            destination_mac: self.source_mac,
            source: self.destination,
            destination: self.source,
            ..*self
        }
    }

    /// What completions of datagrams that came by it say as service level: 0 RoCE v1 and SLURPoE, 9 RoCE v2 with IPv6, 10 with IPv4.
    #[inline]
    pub fn service_level(&self) -> u8 {
        match self.format {
            Format::RoceV2 if self.destination.is_ipv4() => 10,
            Format::RoceV2 => 9,
            Format::RoceV1 | Format::Slurpoe => 0,
        }
    }
}
