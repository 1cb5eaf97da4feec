//! Where a packet came from.

use crate::wire::Path;

/// What the transport needs to know of the frame that a packet came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The way back: `source` is this end and `destination` the sender, also of the MAC addresses.
    pub path: Path,
    /// What stands before a datagram in the receiver's buffer: the global route header, or 20 bytes and the IPv4 header.
    pub grh: [u8; 40],
    /// A router has marked the frame: congestion experienced (RFC 3168).
    pub congested: bool,
    /// What completions of datagrams say as service level: 0 RoCE v1, 9 IPv6, 10 IPv4.
    pub service_level: u8,
}
