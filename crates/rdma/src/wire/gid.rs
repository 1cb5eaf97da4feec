//! Global identifiers: which addresses they are, and what follows from a MAC address (volume 1, 4.1.1; A17.4).

use crate::number::Gid;
use std::net::{IpAddr, Ipv4Addr};

/// The front of `::ffff:a.b.c.d`.
const IPV4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
const LINK_LOCAL_PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
/// The lowest source port of RoCE v2, and the number of them.
const FIRST_PORT: u16 = 0xc000;

impl Gid {
    /// `::ffff:a.b.c.d`.
    #[inline]
    pub const fn from_ipv4(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }

    /// `::ffff:a.b.c.d`, or the IPv6 address itself.
    pub const fn from_ip(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::from_ipv4(address),
            IpAddr::V6(address) => Self(address.octets()),
        }
    }

    /// The MAC address of an end that has no other: one of those that anybody may give (IEEE 802, 8.2), by IP address.
    pub const fn mac_of_ip(address: IpAddr) -> [u8; 6] {
        let last = match address {
            IpAddr::V4(address) => address.octets(),
            IpAddr::V6(address) => u32::to_be_bytes(address.to_bits() as u32),
        };
        [0x02, 0x4d, last[0], last[1], last[2], last[3]]
    }

    /// The IPv4 address that it is.
    #[inline]
    pub fn as_ipv4(self) -> Option<Ipv4Addr> {
        let Self([.., a, b, c, d]) = self;
        self.is_ipv4().then_some(Ipv4Addr::new(a, b, c, d))
    }

    /// Whether it is an IPv4 address.
    #[inline]
    pub fn is_ipv4(self) -> bool {
        self.0.starts_with(&IPV4_PREFIX)
    }

    /// The link-local address of a MAC address: `fe80::/64` and its EUI-64 (RFC 4291, appendix A).
    #[inline]
    pub const fn link_local(mac: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = mac;
        Self([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// The MAC address from which it was made; `None`: it was not made from one.
    #[inline]
    pub fn mac_of_link_local(self) -> Option<[u8; 6]> {
        let Self([.., a, b, c, 0xff, 0xfe, d, e, f]) = self else { return None };
        self.0.starts_with(&LINK_LOCAL_PREFIX).then_some([a ^ 2, b, c, d, e, f])
    }

    /// Whether it is that of a group: `ff00::/8`, or 224.0.0.0/4.
    #[inline]
    pub fn is_group(self) -> bool {
        self.0[0] == 0xff || self.as_ipv4().is_some_and(|address| address.is_multicast())
    }

    /// Whether a frame can come from it: no group, not everybody, and not unspecified.
    #[inline]
    pub fn is_single(self) -> bool {
        let some = |address: Ipv4Addr| !address.is_unspecified() && !address.is_broadcast();
        !self.is_group() && self.0 != [0; 16] && self.as_ipv4().is_none_or(some)
    }

    /// Whether an end may have it: the address of one host, which is not always the own one.
    pub fn is_end(self) -> bool {
        let [.., last] = self.0;
        let is_loopback = self.as_ipv4().map_or(self.0[..15] == [0; 15] && last == 1, |address| address.is_loopback());
        self.is_single() && !is_loopback
    }
}

/// The UDP source port for a flow label, as libibverbs has it: 0xc000 and 14 bits, into which the upper six of the label
/// are folded.
#[inline]
pub const fn port_of_flow_label(label: u32) -> u16 {
    let folded = (label ^ (label >> 14 & 0x3f)) & 0x3fff;
    folded as u16 | FIRST_PORT
}

/// A flow label, of the 64 there are, whose source port this is; only the lower 14 bits of the port count.
#[inline]
pub const fn flow_label_of_port(port: u16) -> u32 {
    (port & 0x3fff) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4() {
        let gid = Gid::from_ipv4(Ipv4Addr::new(192, 0, 2, 7));
        assert_eq!((gid.to_string().as_str(), gid.as_ipv4()), ("::ffff:192.0.2.7", Some(Ipv4Addr::new(192, 0, 2, 7))));
        assert!(gid.is_ipv4() && !Gid::default().is_ipv4());
        // IPv4-compatible addresses (::a.b.c.d) are IPv6.
        assert_eq!(Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 7]).as_ipv4(), None);
    }

    #[test]
    fn link_local() {
        let gid = Gid::link_local([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        assert_eq!(gid.to_string(), "fe80::5054:ff:fe12:3456");
        assert_eq!(gid.mac_of_link_local(), Some([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
        for at in [0, 1, 7, 11, 12] {
            let mut other = gid;
            other.0[at] ^= 1;
            assert_eq!(other.mac_of_link_local(), None, "{at}");
        }
    }

    #[test]
    fn who_can_be_a_source() {
        let of = |text: &str| Gid(text.parse::<std::net::Ipv6Addr>().unwrap().octets());
        for text in ["::", "ff02::1", "::ffff:0.0.0.0", "::ffff:255.255.255.255", "::ffff:224.0.0.1"] {
            assert!(!of(text).is_single(), "{text}");
        }
        assert!(["fe80::1", "2001:db8::1", "::ffff:10.0.0.1"].into_iter().all(|text| of(text).is_single()));
    }

    #[test]
    fn flow_labels_and_ports() {
        // By hand: 0xabcde is 0x2a * 2^14 + 0x3cde.
        assert_eq!(port_of_flow_label(0xabcde), 0xc000 | (0x3cde ^ 0x2a));
        assert_eq!(port_of_flow_label(0xfff0_0000), 0xc000, "a label has 20 bits");
        for port in 0xc000..=0xffff {
            assert_eq!(port_of_flow_label(flow_label_of_port(port)), port);
        }
    }
}
