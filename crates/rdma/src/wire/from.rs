//! Where a packet came from.

use super::{Format, Path};
use crate::number::Qpn;
use millrace_packet::parse::Tci;

/// The network header of a frame, as it stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network<'a> {
    /// IPv4, with a checksum that holds.
    Ipv4(&'a [u8; 20]),
    /// IPv6, or a global route header.
    Route(&'a [u8; 40]),
    /// None: SLURPoE, whose header and payload have so many bytes.
    None(u16),
}

/// What the receiver of a packet needs to know of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct From<'a> {
    /// The way back: `source` is this end and `destination` who sent it, also of the MAC addresses. Hop limit, traffic
    /// class, flow label and port are as they came; where the format has none, 0.
    pub back: Path,
    /// The VLAN tag, if there was one.
    pub tag: Option<Tci>,
    /// The queue pair that sent it, if the packet says so: datagrams, and everything of SLURPoE.
    pub source: Option<Qpn>,
    /// Whether a check sum over the packet holds: always, but for SLURPoE without one.
    pub is_checked: bool,
    pub(super) network: Network<'a>,
}

impl From<'_> {
    /// Whether a router has marked it: congestion experienced (RFC 3168, section 5).
    #[inline]
    pub const fn is_congested(&self) -> bool {
        self.back.traffic_class & 3 == 3
    }

    /// What completions of datagrams say as service level: 0 RoCE v1 and SLURPoE, 9 RoCE v2 with IPv6, 10 with IPv4.
    #[inline]
    pub const fn service_level(&self) -> u8 {
        match (self.back.format, self.network) {
            (Format::RoceV2, Network::Ipv4(_)) => 10,
            (Format::RoceV2, _) => 9,
            _ => 0,
        }
    }

    /// The 40 bytes that stand before a datagram in the buffer of its receiver: the IPv6 or global route header; for
    /// IPv4 20 zeros and its header (A17.4.5.1). SLURPoE gets a global route header between the two GIDs.
    pub fn grh(&self) -> [u8; 40] {
        let mut bytes = [0; 40];
        match self.network {
            Network::Ipv4(header) => bytes[20..].copy_from_slice(header),
            Network::Route(header) => bytes = *header,
            Network::None(len) => {
                bytes[0] = 0x60;
                bytes[4..6].copy_from_slice(&len.to_be_bytes());
                bytes[6..8].copy_from_slice(&[0x1b, 1]);
                bytes[8..24].copy_from_slice(&self.back.destination.0);
                bytes[24..].copy_from_slice(&self.back.source.0);
            }
        }
        bytes
    }
}
