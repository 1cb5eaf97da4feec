//! What is the same in all packets of a path, prepared once.

use super::super::icrc::Before;
use super::super::parse::{ETHER_TYPE_ROCE, PORT};
use super::super::{Format, Path, slurpoe as lean};
use super::Unbuildable;
use crate::number::Gid;
use millrace_packet::checksum::Sum;
use millrace_packet::parse::{ether_type, protocol};

/// Bytes of an Ethernet header without tag.
pub(super) const ETHERNET: usize = 14;
/// UDP behind Ethernet and IPv6: the longest front there is.
const FRONT: usize = ETHERNET + 48;

/// What stands before the base transport header, or before the header of SLURPoE.
#[derive(Clone, Debug)]
pub(super) enum Front {
    /// RoCE v2 over IPv4: type of service, time to live; the sum of the header without length.
    Ipv4 { service: u8, live: u8, sum: Sum },
    /// RoCE v2 over IPv6: the first four bytes, hop limit.
    Ipv6 { first: [u8; 4], hop_limit: u8 },
    /// RoCE v1: the same.
    Route { first: [u8; 4], hop_limit: u8 },
    /// SLURPoE.
    Lean,
}

impl Front {
    /// Which of the formats with an invariant CRC it is.
    #[inline]
    pub(super) const fn before(&self) -> Option<Before> {
        match self {
            Self::Ipv4 { .. } => Some(Before::Ipv4),
            Self::Ipv6 { .. } => Some(Before::Ipv6),
            Self::Route { .. } => Some(Before::Route),
            Self::Lean => None,
        }
    }

    /// Bytes before the base transport header, or before that of SLURPoE.
    #[inline]
    pub(super) const fn len(&self) -> usize {
        match self.before() {
            Some(before) => ETHERNET + before.len(),
            None => ETHERNET,
        }
    }
}

/// The bytes of a front, with ones where routers may change something, and without lengths.
pub(super) fn bytes(path: &Path) -> Result<(Front, [u8; FRONT]), Unbuildable> {
    let mut bytes = [0; FRONT];
    bytes[..6].copy_from_slice(&path.destination_mac);
    bytes[6..12].copy_from_slice(&path.source_mac);
    let front = match path.format {
        Format::RoceV1 => route(path, ETHER_TYPE_ROCE, 0x1b, &mut bytes),
        Format::Slurpoe => slurpoe(path, &mut bytes)?,
        Format::RoceV2 => match (path.source.as_ipv4(), path.destination.as_ipv4()) {
            (Some(source), Some(destination)) => ipv4(path, [source.octets(), destination.octets()], &mut bytes),
            (None, None) => ipv6(path, &mut bytes),
            _ => return Err(Unbuildable::Addresses),
        },
    };
    if let Some(before) = front.before() {
        bytes[ETHERNET..front.len()].iter_mut().zip(before.mask()).for_each(|(byte, mask)| *byte |= mask);
    }
    Ok((front, bytes))
}

fn ipv4(path: &Path, [source, destination]: [[u8; 4]; 2], bytes: &mut [u8; FRONT]) -> Front {
    bytes[12..14].copy_from_slice(&ether_type::IPV4.to_be_bytes());
    let header = &mut bytes[ETHERNET..ETHERNET + 20];
    // Version and length; id 0, not to be cut.
    header[0] = 0x45;
    header[1] = path.traffic_class;
    header[6] = 0x40;
    header[8] = path.hop_limit;
    header[9] = protocol::UDP;
    header[12..16].copy_from_slice(&source);
    header[16..20].copy_from_slice(&destination);
    let sum = Sum::of(header);
    udp(path, &mut bytes[ETHERNET + 20..ETHERNET + 28]);
    Front::Ipv4 { service: path.traffic_class, live: path.hop_limit, sum }
}

fn ipv6(path: &Path, bytes: &mut [u8; FRONT]) -> Front {
    let front = route(path, ether_type::IPV6, protocol::UDP, bytes);
    udp(path, &mut bytes[ETHERNET + 40..]);
    match front {
        Front::Route { first, hop_limit } => Front::Ipv6 { first, hop_limit },
        other => other,
    }
}

fn udp(path: &Path, header: &mut [u8]) {
    header[..2].copy_from_slice(&path.source_port.to_be_bytes());
    header[2..4].copy_from_slice(&PORT.to_be_bytes());
}

/// IPv6, or a global route header, which has the same fields.
fn route(path: &Path, kind: u16, next: u8, bytes: &mut [u8; FRONT]) -> Front {
    bytes[12..14].copy_from_slice(&kind.to_be_bytes());
    let first = (6 << 28 | u32::from(path.traffic_class) << 20 | path.flow_label & 0xf_ffff).to_be_bytes();
    let header = &mut bytes[ETHERNET..ETHERNET + 40];
    header[..4].copy_from_slice(&first);
    header[6..8].copy_from_slice(&[next, path.hop_limit]);
    header[8..24].copy_from_slice(&path.source.0);
    header[24..].copy_from_slice(&path.destination.0);
    Front::Route { first, hop_limit: path.hop_limit }
}

/// The receiver takes GIDs from MAC addresses, so that others cannot be said.
fn slurpoe(path: &Path, bytes: &mut [u8; FRONT]) -> Result<Front, Unbuildable> {
    let is_own = |gid: Gid, mac: [u8; 6]| gid == Gid::link_local(mac);
    if !is_own(path.source, path.source_mac) || !is_own(path.destination, path.destination_mac) {
        return Err(Unbuildable::Identity);
    }
    bytes[12..14].copy_from_slice(&lean::ETHER_TYPE.to_be_bytes());
    Ok(Front::Lean)
}
