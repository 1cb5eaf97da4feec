//! Where a packet came from.

use crate::wire::{From, Packet, Path, Service};

/// What the transport needs to know of the frame that a packet came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The way back: `source` is this end and `destination` the sender, also of the MAC addresses.
    pub path: Path,
    /// What stands before a datagram in the receiver's buffer: the global route header, or 20 bytes and the IPv4 header. Zeros for what is
    /// no datagram.
    pub grh: [u8; 40],
    /// A router has marked the frame: congestion experienced (RFC 3168).
    pub congested: bool,
    /// What completions of datagrams say as service level: 0 RoCE v1, 9 IPv6, 10 IPv4.
    pub service_level: u8,
}

impl Origin {
    /// Of a packet that came in a frame.
    #[inline]
    pub fn of(packet: &Packet<'_>, from: &From<'_>) -> Self {
        // Only who receives datagrams sees it.
        let is_datagram = packet.headers.service == Service::UnreliableDatagram;
        Self {
            path: from.back,
            grh: if is_datagram { from.grh() } else { [0; 40] },
            congested: from.is_congested(),
            service_level: from.service_level(),
        }
    }
}
