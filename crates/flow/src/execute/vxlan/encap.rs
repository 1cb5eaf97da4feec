//! A frame into a VXLAN packet (RFC 7348 section 5).

use super::super::{Environment, Frame, Stop};
use super::{ETHERNET, UDP, VXLAN};
use crate::action::Vxlan;
use crate::field::{Field, needs::protocol};
use crate::key::Key;
use crate::table::mix;
use millrace_packet::checksum::Sum;
use millrace_packet::parse::{MacAddress, ether_type};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const IPV4: usize = 20;
const IPV6: usize = 40;
/// The flag that says that there is a network identifier.
const VALID: u8 = 0x08;
/// Nobody may cut the packet: the other end need not put it together again (RFC 7348 section 4.3). A packet that is never cut
/// needs no identification (RFC 6864 section 4.1).
const DONT_FRAGMENT: u8 = 0x40;
/// Source ports with entropy are 49152 to 65535 (RFC 7348 section 5).
const FIRST_PORT: u16 = 49152;

impl Frame<'_> {
    /// Puts the frame into a VXLAN packet.
    pub(in super::super) fn encap_vxlan<E: Environment + ?Sized>(
        &mut self,
        outer: &Vxlan,
        environment: &mut E,
    ) -> Result<(), Stop> {
        let target = outer.dl_dst.map(mac).or_else(|| environment.neighbour(outer.dst)).ok_or(Stop::Neighbour)?;
        let source = outer.dl_src.map(mac).or_else(|| environment.own_mac(outer.dst)).ok_or(Stop::Neighbour)?;
        let key = self.key();
        let tos = outer.tos.unwrap_or_else(|| tos(&key));
        let datagram = u16::try_from(UDP + VXLAN + self.len()).map_err(|_| Stop::Mtu)?;

        let mut headers = [0; ETHERNET + IPV6 + UDP + VXLAN];
        headers[..6].copy_from_slice(&target.0);
        headers[6..12].copy_from_slice(&source.0);
        let (ether_type, len, addresses) = match (outer.src, outer.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = ipv4(src, dst, tos, outer.ttl, datagram)?;
                headers[ETHERNET..ETHERNET + IPV4].copy_from_slice(&header);
                (ether_type::IPV4, IPV4, Sum::of(&header[12..]))
            }
            (src, dst) => {
                let header = ipv6(as_v6(src), as_v6(dst), tos, outer.ttl, datagram);
                headers[ETHERNET..ETHERNET + IPV6].copy_from_slice(&header);
                (ether_type::IPV6, IPV6, Sum::of(&header[8..]))
            }
        };
        headers[12..ETHERNET].copy_from_slice(&ether_type.to_be_bytes());
        let pseudo = addresses.with(protocol::UDP.into()).with(datagram.into());
        let headers = &mut headers[..ETHERNET + len + UDP + VXLAN];

        let tunnel = &mut headers[ETHERNET + len..];
        tunnel[..2].copy_from_slice(&outer.udp_src.unwrap_or_else(|| source_port(&key)).to_be_bytes());
        tunnel[2..4].copy_from_slice(&outer.udp_dst.to_be_bytes());
        tunnel[4..6].copy_from_slice(&datagram.to_be_bytes());
        tunnel[8] = VALID;
        tunnel[12..].copy_from_slice(&(outer.vni << 8).to_be_bytes());
        if outer.checksum {
            let sum = pseudo.plus(Sum::of(tunnel)).plus(Sum::of(self.bytes())).checksum();
            // 0 would be no checksum (RFC 768).
            tunnel[6..8].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
        }
        self.insert(0, headers)?;
        self.set_tunnel_id(outer.vni.into());
        Ok(())
    }
}

fn mac(number: u64) -> MacAddress {
    let [_, _, a, b, c, d, e, f] = number.to_be_bytes();
    MacAddress([a, b, c, d, e, f])
}

fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn ipv4(src: Ipv4Addr, dst: Ipv4Addr, tos: u8, ttl: u8, datagram: u16) -> Result<[u8; IPV4], Stop> {
    let [high, low] = datagram.checked_add(IPV4 as u16).ok_or(Stop::Mtu)?.to_be_bytes();
    let mut header = [0; IPV4];
    header[..12].copy_from_slice(&[0x45, tos, high, low, 0, 0, DONT_FRAGMENT, 0, ttl, protocol::UDP, 0, 0]);
    header[12..16].copy_from_slice(&src.octets());
    header[16..].copy_from_slice(&dst.octets());
    let checksum = Sum::of(&header).checksum();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Ok(header)
}

fn ipv6(src: Ipv6Addr, dst: Ipv6Addr, tos: u8, ttl: u8, datagram: u16) -> [u8; IPV6] {
    let mut header = [0; IPV6];
    header[..4].copy_from_slice(&(6 << 28 | u32::from(tos) << 20).to_be_bytes());
    header[4..6].copy_from_slice(&datagram.to_be_bytes());
    header[6..8].copy_from_slice(&[protocol::UDP, ttl]);
    header[8..24].copy_from_slice(&src.octets());
    header[24..].copy_from_slice(&dst.octets());
    header
}

/// The type of service of a packet, and 0 of what is none: DSCP, and congestion marks as RFC 6040 section 4.1 has it.
fn tos(key: &Key) -> u8 {
    (key.get(Field::IpDscp).0[0] << 2 | key.get(Field::NwEcn).0[0]) as u8
}

/// A source port for all frames of a flow. Fragments have one for all parts: ports do not count. What is not IP goes by its
/// addresses.
fn source_port(key: &Key) -> u16 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let number = |field: Field| key.get(field).0[0];
    let words = key.words();
    let kind = number(Field::DlType) as u16;
    let mut hash = number(Field::DlType) << 32 | number(Field::NwProto);
    if matches!(kind, ether_type::IPV4 | ether_type::IPV6) {
        hash = words[3..7].iter().fold(hash, |hash, word| mix(hash ^ word, ODD));
        let has_ports = matches!(number(Field::NwProto) as u8, protocol::TCP | protocol::UDP | protocol::SCTP);
        if has_ports && number(Field::IpFrag) == 0 {
            hash = mix(hash ^ number(Field::TpSrc) << 16 ^ number(Field::TpDst), ODD);
        }
    } else {
        hash = [Field::DlSrc, Field::DlDst].into_iter().fold(hash, |hash, field| mix(hash ^ number(field), ODD));
    }
    FIRST_PORT | (hash >> 32) as u16 & !FIRST_PORT
}
