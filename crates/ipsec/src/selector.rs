//! Which packets an association or a policy is for (RFC 4301 §4.4.1.1).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ip::{Header, be16, protocol};
use crate::refusal::Refusal;

/// Addresses with the same first bits. With a length of 0 and the unspecified address it is all of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// One of them.
    pub address: IpAddr,
    /// How many bits are the same; more than there are count as all.
    pub len: u8,
}

impl Prefix {
    /// All addresses of the family of `address`.
    pub const fn all_like(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), len: 0 },
            IpAddr::V6(_) => Self { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), len: 0 },
        }
    }

    /// Whether `address` is one of them.
    #[inline]
    pub fn has(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                let differ = one.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= u32::from(self.len).min(32)
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => {
                let differ = one.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= u32::from(self.len).min(128)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

/// A port, or some of them: those that agree with `value` where `mask` has ones. For ICMP the source port is the type and
/// the destination port the code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Port {
    /// The bits.
    pub value: u16,
    /// Which of them count; 0 is any port.
    pub mask: u16,
}

impl Port {
    /// This one.
    pub const fn one(value: u16) -> Self {
        Self { value, mask: u16::MAX }
    }

    #[inline]
    const fn has(self, port: u16) -> bool {
        (self.value ^ port) & self.mask == 0
    }
}

/// A mark of packets that counts where `mask` has ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The bits.
    pub value: u32,
    /// Which of them count.
    pub mask: u32,
}

impl Mark {
    /// Whether a packet's mark is one of these.
    #[inline]
    pub const fn has(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }
}

/// Which packets: all that fit all fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Selector {
    /// Where they come from. `None`: of either family.
    pub source: Option<Prefix>,
    /// Where they go.
    pub destination: Option<Prefix>,
    /// TCP, UDP and others; 0 is any.
    pub protocol: u8,
    /// Source port, or type of ICMP.
    pub source_port: Port,
    /// Destination port, or code of ICMP.
    pub destination_port: Port,
    /// Interface by number; 0 is any.
    pub interface: u32,
}

impl Selector {
    /// All packets.
    pub const ALL: Self = Self {
        source: None,
        destination: None,
        protocol: 0,
        source_port: Port { value: 0, mask: 0 },
        destination_port: Port { value: 0, mask: 0 },
        interface: 0,
    };

    /// Whether a packet fits.
    #[inline]
    pub fn has(&self, flow: &Flow) -> bool {
        self.source.is_none_or(|prefix| prefix.has(flow.source))
            && self.destination.is_none_or(|prefix| prefix.has(flow.destination))
            && (self.protocol == 0 || self.protocol == flow.protocol)
            && self.source_port.has(flow.source_port)
            && self.destination_port.has(flow.destination_port)
            && (self.interface == 0 || self.interface == flow.interface)
    }
}

/// What policies look at in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Where it comes from.
    pub source: IpAddr,
    /// Where it goes.
    pub destination: IpAddr,
    /// TCP, UDP and others.
    pub protocol: u8,
    /// Source port, or type of ICMP; 0 where there is none.
    pub source_port: u16,
    /// Destination port, or code of ICMP.
    pub destination_port: u16,
    /// The interface by number: for a packet that leaves, the one that it leaves by.
    pub interface: u32,
    /// The packet's mark.
    pub mark: u32,
    /// Which XFRM interface it came or goes by; 0 for none.
    pub if_id: u32,
}

/// Protocols whose first two words are ports.
const WITH_PORTS: [u8; 5] = [protocol::TCP, protocol::UDP, 33, 132, 136];
const ICMP: [u8; 2] = [1, 58];

impl Flow {
    /// The flow of the IP packet at the beginning of `packet`, without interface and marks.
    ///
    /// # Errors
    /// [`Refusal::Header`].
    #[inline]
    pub fn of(packet: &[u8]) -> Result<Self, Refusal> {
        let header = Header::parse(packet)?;
        Ok(Self::behind(&header, &packet[header.len..header.total]))
    }

    /// The flow of a packet with this header and these bytes behind it.
    #[inline]
    pub(crate) fn behind(header: &Header, payload: &[u8]) -> Self {
        let is_first = !header.is_fragment || header.is_first;
        let (source_port, destination_port) = match payload {
            [a, b, c, d, ..] if is_first && WITH_PORTS.contains(&header.protocol) => {
                (be16(&[*a, *b], 0), be16(&[*c, *d], 0))
            }
            [kind, code, ..] if is_first && ICMP.contains(&header.protocol) => (u16::from(*kind), u16::from(*code)),
            _ => (0, 0),
        };
        Self {
            source: header.source,
            destination: header.destination,
            protocol: header.protocol,
            source_port,
            destination_port,
            interface: 0,
            mark: 0,
            if_id: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> Flow {
        let packet = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 2, 3, 10, 2, 0, 1, 0, 53, 1, 0, 0, 8, 0, 0];
        Flow::of(&packet).unwrap()
    }

    #[test]
    fn each_field_counts() {
        let (flow, prefix) = (flow(), |text: &str, len| Some(Prefix { address: text.parse().unwrap(), len }));
        assert_eq!((flow.source_port, flow.destination_port, flow.protocol), (53, 256, 17));
        assert!(Selector::ALL.has(&flow));
        let fits = Selector {
            source: prefix("10.1.0.0", 16),
            destination: prefix("10.2.0.1", 32),
            protocol: 17,
            source_port: Port::one(53),
            destination_port: Port { value: 0x100, mask: 0xff00 },
            interface: 0,
        };
        assert!(fits.has(&flow));
        for other in [
            Selector { source: prefix("10.0.0.0", 16), ..fits },
            Selector { source: prefix("::", 0), ..fits },
            Selector { destination: prefix("10.2.0.0", 32), ..fits },
            Selector { protocol: 6, ..fits },
            Selector { source_port: Port::one(54), ..fits },
            Selector { destination_port: Port::one(257), ..fits },
            Selector { interface: 3, ..fits },
        ] {
            assert!(!other.has(&flow), "{other:?}");
        }
        assert!(Prefix { address: "2001:db8::".parse().unwrap(), len: 32 }.has("2001:db8:ffff::1".parse().unwrap()));
        assert!(!Prefix { address: "2001:db8::".parse().unwrap(), len: 128 }.has("2001:db8::1".parse().unwrap()));
        assert!(Mark { value: 1, mask: 1 }.has(3) && !Mark { value: 1, mask: 3 }.has(3) && Mark::default().has(9));
    }

    #[test]
    fn later_fragments_have_no_ports_and_icmp_has_types() {
        let mut packet = [0x45, 0, 0, 28, 0, 0, 0, 9, 64, 17, 0, 0, 10, 1, 2, 3, 10, 2, 0, 1, 0, 53, 1, 0, 0, 8, 0, 0];
        assert_eq!(Flow::of(&packet).unwrap().source_port, 0);
        packet[7] = 0;
        packet[9] = 1;
        packet[20..22].copy_from_slice(&[8, 1]);
        let flow = Flow::of(&packet).unwrap();
        assert_eq!((flow.source_port, flow.destination_port), (8, 1));
    }
}
