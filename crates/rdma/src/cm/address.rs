//! IP addresses and ports in connection management (annex A11): numbers of services, and the beginning of a request's private data.

use crate::number::Gid;
use std::net::IpAddr;

/// Bytes of an [`IpHeader`].
pub const IP_HEADER_LEN: usize = 36;

/// The number of a service (volume 1, 12.7.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// That of a port in a port space: 0x0106 TCP, 0x0111 UDP, 0x013f InfiniBand.
    pub const fn new(space: u16, port: u16) -> Self {
        Self((space as u64) << 16 | port as u64)
    }

    /// Whether it is one of a port (A11.3.1), so that a request for it begins with an [`IpHeader`].
    pub const fn is_of_port(self) -> bool {
        self.0 >> 24 == 1
    }

    /// The port.
    pub const fn port(self) -> u16 {
        self.0 as u16
    }
}

/// Who calls whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Port of the caller. That of the one who is called is in the [`ServiceId`].
    pub source_port: u16,
    /// Address of the caller.
    pub source: IpAddr,
    /// Address that is called.
    pub destination: IpAddr,
}

impl IpHeader {
    /// From the beginning of private data. Nothing if the version is not 0, or the IP version is neither 4 nor 6.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; IP_HEADER_LEN] = bytes.first_chunk()?;
        if bytes[0] != 0 {
            return None;
        }
        let address = |at: usize| -> Option<IpAddr> {
            let whole: [u8; 16] = *bytes[at..].first_chunk()?;
            Some(match bytes[1] >> 4 {
                4 => IpAddr::from([whole[12], whole[13], whole[14], whole[15]]),
                6 => IpAddr::from(whole),
                _ => return None,
            })
        };
        let source_port = u16::from_be_bytes([bytes[2], bytes[3]]);
        Some(Self { source_port, source: address(4)?, destination: address(20)? })
    }

    /// As it stands there.
    pub fn build(&self) -> [u8; IP_HEADER_LEN] {
        let mut bytes = [0; IP_HEADER_LEN];
        bytes[1] = if self.source.is_ipv4() { 0x40 } else { 0x60 };
        bytes[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        for (at, address) in [(4, self.source), (20, self.destination)] {
            match address {
                IpAddr::V4(ip) => bytes[at + 12..at + 16].copy_from_slice(&ip.octets()),
                IpAddr::V6(ip) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
            }
        }
        bytes
    }
}

/// The GID of an IP address (A17.4.2).
pub fn gid_of(ip: IpAddr) -> Gid {
    Gid(match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    })
}

/// The IP address in a GID.
pub fn ip_of(gid: Gid) -> IpAddr {
    IpAddr::from(gid.0).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_stands_byte_for_byte() {
        let header = IpHeader {
            source_port: 0x1234,
            source: "198.18.0.1".parse().unwrap(),
            destination: "198.18.0.2".parse().unwrap(),
        };
        let bytes = header.build();
        assert_eq!(bytes[..4], [0, 0x40, 0x12, 0x34]);
        assert_eq!((&bytes[4..16], &bytes[16..20]), (&[0; 12][..], &[198, 18, 0, 1][..]));
        assert_eq!((&bytes[20..32], &bytes[32..]), (&[0; 12][..], &[198, 18, 0, 2][..]));
        assert_eq!(IpHeader::parse(&bytes), Some(header));
        let six = IpHeader { source: "2001:db8::1".parse().unwrap(), destination: "::1".parse().unwrap(), ..header };
        assert_eq!(IpHeader::parse(&six.build()), Some(six));
    }

    #[test]
    fn other_versions_are_none() {
        let mut bytes = [0; IP_HEADER_LEN];
        assert_eq!(IpHeader::parse(&bytes), None);
        bytes[1] = 0x40;
        assert!(IpHeader::parse(&bytes).is_some());
        assert_eq!(IpHeader::parse(&bytes[1..]), None);
        bytes[0] = 1;
        assert_eq!(IpHeader::parse(&bytes), None);
    }

    #[test]
    fn services_and_gids() {
        assert_eq!(ServiceId::new(0x0106, 7471), ServiceId(0x0106_1d2f));
        assert_eq!(ServiceId(0x0106_1d2f).port(), 7471);
        assert!(ServiceId(0x013f_ffff).is_of_port() && ServiceId(0x0106_0000).is_of_port());
        assert!(!ServiceId(0x0206_1d2f).is_of_port() && !ServiceId(0x1_0106_1d2f).is_of_port());
        let ip: IpAddr = "198.18.0.1".parse().unwrap();
        assert_eq!((gid_of(ip).to_string(), ip_of(gid_of(ip))), ("::ffff:198.18.0.1".to_owned(), ip));
    }
}
