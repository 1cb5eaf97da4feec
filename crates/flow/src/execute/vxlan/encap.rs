//! A frame into a VXLAN packet (RFC 7348 section 5).

use super::super::{Environment, Frame, Stop};
use super::{ETHERNET, UDP, VXLAN};
use crate::action::{MAX_VNI, Vxlan};
use crate::field::{Field, needs::protocol};
use crate::key::Key;
use crate::neighbour::mac_of;
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

/// In place of an address that somebody fills in.
const UNKNOWN: MacAddress = MacAddress([0; 6]);

impl Frame<'_> {
    /// Puts the frame into a VXLAN packet.
    pub(in super::super) fn encap_vxlan<E: Environment + ?Sized>(
        &mut self,
        outer: &Vxlan,
        environment: &mut E,
    ) -> Result<(), Stop> {
        let target = outer.dl_dst.map(mac_of).or_else(|| environment.neighbour(outer.dst));
        let source = outer.dl_src.map(mac_of).or_else(|| environment.own_mac(outer.dst));
        let source = source.or_else(|| outer.dl_dst.and_then(|_| environment.mac_of_own(outer.src)));
        let (target, source) = match (target, source) {
            (Some(target), Some(source)) => (target, source),
            // Of a neighbour that is not known, both are filled in later.
            (None, source) if environment.waits() => (UNKNOWN, outer.dl_src.and(source).unwrap_or(UNKNOWN)),
            _ => return Err(Stop::Neighbour),
        };
        let (tos, port) = match self.known_key() {
            Some(key) => of_flow(outer, key),
            None => of_flow(outer, &self.key()),
        };
        let len = u16::try_from(UDP + VXLAN + self.len()).map_err(|_| Stop::Mtu)?;
        let vni = outer.vni.unwrap_or_else(|| self.tunnel_id() & MAX_VNI);
        // Added up now, because its bytes cannot be had while those in front of them are written.
        let payload = outer.checksum.then(|| Sum::of(self.bytes()));
        let datagram = Datagram { source: port, target: outer.udp_dst, len, vni, payload };
        match (outer.src, outer.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let total = len.checked_add(IPV4 as u16).ok_or(Stop::Mtu)?;
                let room: &mut [u8; ETHERNET + IPV4 + UDP + VXLAN] = self.grow()?;
                put(room, 0, ethernet(target, source, ether_type::IPV4));
                put(room, ETHERNET, ipv4(src, dst, tos, outer.ttl, total));
                let pseudo = Sum::default().with(src.to_bits()).with(dst.to_bits());
                put(room, ETHERNET + IPV4, datagram.headers(pseudo));
            }
            (src, dst) => {
                let (src, dst) = (as_v6(src), as_v6(dst));
                let room: &mut [u8; ETHERNET + IPV6 + UDP + VXLAN] = self.grow()?;
                put(room, 0, ethernet(target, source, ether_type::IPV6));
                put(room, ETHERNET, ipv6(src, dst, tos, outer.ttl, len));
                let pseudo = Sum::of(&src.octets()).plus(Sum::of(&dst.octets()));
                put(room, ETHERNET + IPV6, datagram.headers(pseudo));
            }
        }
        self.set_tunnel_id(vni);
        Ok(())
    }
}

/// Writes a header where it is to be. (A copy of all headers from somewhere else would wait for the writes there.)
#[inline(always)]
fn put<const N: usize>(room: &mut [u8], at: usize, header: [u8; N]) {
    if let Some(place) = room.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *place = header;
    }
}

/// What the outer headers take from the flow: type of service and source port, unless the action says them.
#[inline(always)]
fn of_flow(outer: &Vxlan, key: &Key) -> (u8, u16) {
    (outer.tos.unwrap_or_else(|| tos(key)), outer.udp_src.unwrap_or_else(|| source_port(key)))
}

/// What UDP and VXLAN say.
struct Datagram {
    source: u16,
    target: u16,
    len: u16,
    vni: u32,
    /// The sum of what is within, if there is to be a checksum.
    payload: Option<Sum>,
}

impl Datagram {
    /// Both headers; `pseudo` is the sum of the addresses.
    #[inline(always)]
    fn headers(&self, pseudo: Sum) -> [u8; UDP + VXLAN] {
        let ports = u32::from(self.source) << 16 | u32::from(self.target);
        let (flags, vni) = (u32::from(VALID) << 24, self.vni << 8);
        let checksum = self.payload.map_or(0, |payload| {
            let lengths = u32::from(protocol::UDP) + 2 * u32::from(self.len);
            match pseudo.with(lengths).with(ports).with(flags).with(vni).plus(payload).checksum() {
                // 0 would be no checksum (RFC 768).
                0 => 0xffff,
                sum => sum,
            }
        });
        let words = [ports, u32::from(self.len) << 16 | u32::from(checksum), flags, vni];
        let number = words.into_iter().fold(0, |number: u128, word| number << 32 | u128::from(word));
        number.to_be_bytes()
    }
}

#[inline(always)]
fn ethernet(target: MacAddress, source: MacAddress, ether_type: u16) -> [u8; ETHERNET] {
    let mut header = [0; ETHERNET];
    header[..6].copy_from_slice(&target.0);
    header[6..12].copy_from_slice(&source.0);
    header[12..].copy_from_slice(&ether_type.to_be_bytes());
    header
}

fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

#[inline(always)]
fn ipv4(src: Ipv4Addr, dst: Ipv4Addr, tos: u8, ttl: u8, total: u16) -> [u8; IPV4] {
    let first = 0x4500 << 16 | u32::from(tos) << 16 | u32::from(total);
    let second = u32::from(DONT_FRAGMENT) << 8;
    let third = u32::from(ttl) << 24 | u32::from(protocol::UDP) << 16;
    let (src, dst) = (src.to_bits(), dst.to_bits());
    let checksum = Sum::default().with(first).with(second).with(third).with(src).with(dst).checksum();
    let mut header = [0; IPV4];
    for (at, word) in [first, second, third | u32::from(checksum), src, dst].into_iter().enumerate() {
        header[4 * at..4 * at + 4].copy_from_slice(&word.to_be_bytes());
    }
    header
}

#[inline(always)]
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
        // Addresses of IPv4 are one word, the first.
        let addresses = if kind == ether_type::IPV4 { &words[3..4] } else { &words[3..7] };
        hash = addresses.iter().fold(hash, |hash, word| mix(hash ^ word, ODD));
        let has_ports = matches!(number(Field::NwProto) as u8, protocol::TCP | protocol::UDP | protocol::SCTP);
        if has_ports && number(Field::IpFrag) == 0 {
            hash = mix(hash ^ number(Field::TpSrc) << 16 ^ number(Field::TpDst), ODD);
        }
    } else {
        hash = [Field::DlSrc, Field::DlDst].into_iter().fold(hash, |hash, field| mix(hash ^ number(field), ODD));
    }
    FIRST_PORT | (hash >> 32) as u16 & !FIRST_PORT
}
