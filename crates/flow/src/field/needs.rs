//! What has to be known about a frame before a field means anything.
//!
//! A rule on `nw_src` matches IPv4 only, so it has to say so. What can only be one thing is filled in (`nw_src` means
//! `dl_type=0x0800`, `tcp_dst` means `nw_proto=6`); what could be several things has to be written (`ip_dscp` goes with
//! IPv4 and with IPv6).

use super::{Field, Wide};
use crate::matching::Match;

/// EtherTypes that decide what else a key holds.
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// Reverse ARP.
    pub const RARP: u16 = 0x8035;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// MPLS, unicast.
    pub const MPLS: u16 = 0x8847;
    /// MPLS, multicast.
    pub const MPLS_MULTICAST: u16 = 0x8848;
    /// PPPoE session.
    pub const PPPOE: u16 = 0x8864;
}
use ether_type::*;

/// IP protocol numbers that decide what else a key holds.
pub mod protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// SCTP.
    pub const SCTP: u8 = 132;
}
use protocol::*;

/// What a field needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    None,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// IPv4 or IPv6.
    Ip,
    /// ARP or RARP.
    Arp,
    /// MPLS.
    Mpls,
    /// A PPPoE session.
    Pppoe,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// A protocol with ports.
    Ports,
    /// ICMP, or ICMPv6.
    Icmp,
    /// A neighbour solicitation or advertisement.
    Nd,
}

impl Needs {
    /// EtherTypes, one of which it has to be; any if empty.
    fn ether_types(self) -> &'static [u16] {
        match self {
            Self::None => &[],
            Self::Ipv4 => &[IPV4],
            Self::Ipv6 | Self::Nd => &[IPV6],
            Self::Arp => &[ARP, RARP],
            Self::Mpls => &[MPLS, MPLS_MULTICAST],
            Self::Pppoe => &[PPPOE],
            Self::Ip | Self::Tcp | Self::Udp | Self::Ports | Self::Icmp => &[IPV4, IPV6],
        }
    }

    /// Protocols, one of which it has to be, over that EtherType; any if empty.
    fn protocols(self, ether_type: u64) -> &'static [u8] {
        match self {
            Self::Tcp => &[TCP],
            Self::Udp => &[UDP],
            Self::Ports => &[TCP, UDP, SCTP],
            Self::Icmp if ether_type == u64::from(IPV4) => &[ICMP],
            Self::Icmp | Self::Nd => &[ICMPV6],
            _ => &[],
        }
    }

    /// What to write, where it is missing.
    pub fn hint(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Ipv4 => "'ip'",
            Self::Ipv6 => "'ipv6'",
            Self::Ip => "'ip' or 'ipv6'",
            Self::Arp => "'arp' or 'rarp'",
            Self::Mpls => "'mpls' or 'mplsm'",
            Self::Pppoe => "'pppoe'",
            Self::Tcp => "'tcp' or 'tcp6'",
            Self::Udp => "'udp' or 'udp6'",
            Self::Ports => "one of 'tcp', 'tcp6', 'udp', 'udp6', 'sctp', 'sctp6'",
            Self::Icmp => "'icmp' or 'icmp6'",
            Self::Nd => "'icmp6,icmp_type=135' or 'icmp6,icmp_type=136'",
        }
    }

    /// Whether `matching` says enough.
    pub fn met(self, matching: &Match) -> bool {
        let Some(ether_type) = decided(matching, Field::DlType, self.ether_types().iter().map(|&number| number.into()))
        else {
            return false;
        };
        let protocols = self.protocols(ether_type).iter().map(|&number| number.into());
        decided(matching, Field::NwProto, protocols).is_some()
            && (self != Self::Nd || decided(matching, Field::IcmpType, [135, 136].into_iter()).is_some())
    }

    /// Adds to `matching` what it can only be. What stays open is found by [`met`](Self::met).
    pub fn fill(self, matching: &mut Match) {
        if let [only] = self.ether_types() {
            fill(matching, Field::DlType, u64::from(*only));
        }
        let ether_type = matching.key().get(Field::DlType).0[0];
        if !self.ether_types().iter().any(|&number| u64::from(number) == ether_type) {
            return;
        }
        if let [only] = self.protocols(ether_type) {
            fill(matching, Field::NwProto, u64::from(*only));
        }
    }
}

fn fill(matching: &mut Match, field: Field, value: u64) {
    if matching.mask().get(field) == Wide::ZERO {
        matching.put(field, Wide::new(value), field.full());
    }
}

/// The value that `matching` asks of `field`, if it is one of `wanted`; 0 if nothing is wanted.
fn decided(matching: &Match, field: Field, mut wanted: impl ExactSizeIterator<Item = u64>) -> Option<u64> {
    if wanted.len() == 0 {
        return Some(0);
    }
    let value = matching.key().get(field).0[0];
    (matching.mask().get(field) == field.full() && wanted.any(|number| number == value)).then_some(value)
}

/// Words for frequent pairs of EtherType and protocol, as `ovs-ofctl` has them; those with a protocol come first, since
/// the printer takes the first that fits.
pub const KEYWORDS: &[(&str, u16, Option<u8>)] = &[
    ("tcp", IPV4, Some(TCP)),
    ("udp", IPV4, Some(UDP)),
    ("icmp", IPV4, Some(ICMP)),
    ("sctp", IPV4, Some(SCTP)),
    ("tcp6", IPV6, Some(TCP)),
    ("udp6", IPV6, Some(UDP)),
    ("icmp6", IPV6, Some(ICMPV6)),
    ("sctp6", IPV6, Some(SCTP)),
    ("ip", IPV4, None),
    ("ipv6", IPV6, None),
    ("arp", ARP, None),
    ("rarp", RARP, None),
    ("mpls", MPLS, None),
    ("mplsm", MPLS_MULTICAST, None),
    ("pppoe", PPPOE, None),
];
