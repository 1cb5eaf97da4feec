//! Headers of packets, read from the bytes as they lie in the frame: no copy, no allocation, no trust in any length.
//!
//! [`Layers::parse`] finds in one pass where each header of a frame begins. A view (such as [`Ipv4`]) reads the fields
//! of one header: `parse` of a view checks once that the header is whole and that its lengths fit into the bytes given;
//! after that no accessor can fail or read beyond. Numbers are in the byte order of the processor, lengths and offsets in
//! bytes unless they say otherwise.
//!
//! | File | What is in it |
//! |---|---|
//! | `layers`, `walk` | the result of the pass over a frame; the pass |
//! | `ethernet` | Ethernet, VLAN tags, LLC with SNAP |
//! | `arp`, `pppoe`, `mpls` | ARP; PPPoE session; label stacks |
//! | `ipv4`, `ipv6`, `options` | IP, extension headers; options of IPv4, TCP and IPv6 |
//! | `tcp`, `udp`, `icmp`, `ipsec` | transport; ICMP for both versions of IP; ESP and AH |
//! | `gre`, `vxlan`, `geneve` | tunnels |
//! | `quic`, `quic_frame`, `client_hello` | QUIC: headers; frames once decrypted; what a client says first in TLS |
//! | `ptp`, `roce` | Precision Time Protocol, RDMA over Ethernet |
//!
//! ```
//! use millrace_packet::parse::{Layers, Transport};
//!
//! let mut frame = [0; 60];
//! frame[12..14].copy_from_slice(&[0x08, 0x00]);
//! frame[14..34].copy_from_slice(&[0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
//! frame[34..42].copy_from_slice(&[0, 53, 0, 99, 0, 10, 0, 0]);
//! let layers = Layers::parse(&frame);
//! assert_eq!(layers.transport(), Some((Transport::Udp, 34)));
//! assert_eq!(layers.payload(&frame).len(), 2, "what Ethernet pads is no payload");
//! assert_eq!(layers.udp(&frame).unwrap().destination_port(), 99);
//! ```

mod arp;
mod bytes;
mod client_hello;
mod ethernet;
mod geneve;
mod gre;
mod icmp;
mod ipsec;
mod ipv4;
mod ipv6;
mod layers;
mod mpls;
mod options;
mod pppoe;
mod ptp;
mod quic;
mod quic_frame;
mod roce;
mod tcp;
#[cfg(test)]
mod tests;
mod udp;
mod vxlan;
mod walk;

pub use crate::probe::MacAddress;
pub use arp::Arp;
pub use client_hello::ClientHello;
pub use ethernet::{Ethernet, Snap, Tag, Tci, Vlan, ether_type};
pub use geneve::{Geneve, GeneveOption, GeneveOptions};
pub use gre::Gre;
pub use icmp::{Icmp, Icmpv6};
pub use ipsec::{Ah, Esp};
pub use ipv4::{Fragment, Ipv4};
pub use ipv6::{Extension, Extensions, FragmentHeader, Ipv6, MOST_EXTENSIONS};
pub use layers::{IpVersion, Layer, Layers, Transport, Tunnel};
pub use mpls::{Label, MOST_LABELS, Mpls};
pub use options::{Ipv6Options, Options, Tlv};
pub use pppoe::{Pppoe, ppp};
pub use ptp::{Ptp, PtpType};
pub use quic::{QuicBody, QuicLong, QuicShort, QuicType, version as quic_version};
pub use quic_frame::{QuicFrame, QuicFrames};
pub use roce::{Bth, Grh};
pub use tcp::{Tcp, flag as tcp_flag};
pub use udp::{Udp, port as udp_port};
pub use vxlan::Vxlan;

/// Numbers of protocols in IP (the registry that RFC 5237 describes).
pub mod protocol {
    /// IPv6 hop-by-hop options (RFC 8200 §4.3).
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP for IPv4 (RFC 792).
    pub const ICMP: u8 = 1;
    /// TCP (RFC 9293).
    pub const TCP: u8 = 6;
    /// UDP (RFC 768).
    pub const UDP: u8 = 17;
    /// IPv6 routing header (RFC 8200 §4.4).
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header (RFC 8200 §4.5).
    pub const FRAGMENT: u8 = 44;
    /// GRE (RFC 2784).
    pub const GRE: u8 = 47;
    /// Encapsulating security payload (RFC 4303).
    pub const ESP: u8 = 50;
    /// Authentication header (RFC 4302).
    pub const AH: u8 = 51;
    /// ICMP for IPv6 (RFC 4443).
    pub const ICMPV6: u8 = 58;
    /// IPv6 destination options (RFC 8200 §4.6).
    pub const DESTINATION_OPTIONS: u8 = 60;
}

/// Why bytes are not the header that they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Malformed {
    /// The bytes end before the header does.
    #[error("the bytes end before the header does")]
    Truncated,
    /// The header says that it is shorter than its shortest.
    #[error("the header says that it is shorter than headers of its kind can be")]
    HeaderLength,
    /// A length covers less than the header, or more than there is.
    #[error("a length in the header is less than the header, or more than there is")]
    Length,
    /// Another version than that of the header.
    #[error("the header is of another version")]
    Version,
    /// More tags, labels or extension headers than are looked at.
    #[error("there are more tags, labels or extension headers than are looked at")]
    TooMany,
    /// A field has a value that its standard does not allow.
    #[error("a field of the header has a value that its standard does not allow")]
    Field,
}
