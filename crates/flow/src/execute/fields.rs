//! `set_field` and `dec_ttl`: where each field lies, and which checksums it counts in.

use super::delta::{Zero, adjust};
use super::{Frame, Stop, sctp};
use crate::field::needs::ether_type::RARP;
use crate::field::{Field, Wide};
use millrace_packet::checksum::Sum;
use millrace_packet::parse::{Arp, Fragment, IpVersion, Layers, Transport, ether_type};

/// SCTP (RFC 9260), DCCP (RFC 4340) and UDP-Lite (RFC 3828) in IP.
const SCTP: u8 = 132;
const DCCP: u8 = 33;
const UDP_LITE: u8 = 136;

/// Which checksums a field counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Covered {
    /// None.
    Nothing,
    /// That of the IPv4 header.
    Header,
    /// That of the IPv4 header, and by its pseudo-header that of the transport.
    Address,
    /// That of the transport, by the pseudo-header of IPv6.
    Pseudo,
    /// That of the transport.
    Transport,
    /// That of SCTP.
    Sctp,
}

/// Where a field lies: `len` bytes at `at`, of which the lowest `shift` bits are behind the field.
#[derive(Clone, Copy, Debug)]
struct Spot {
    at: usize,
    len: usize,
    shift: u32,
    covered: Covered,
}

/// A spot of whole bytes.
const fn spot(at: usize, len: usize, covered: Covered) -> Spot {
    Spot { at, len, shift: 0, covered }
}

impl Spot {
    const fn shifted(self, shift: u32) -> Self {
        Self { shift, ..self }
    }
}

/// The version of IP and where its header begins, if the EtherType says that the frame is IP.
#[inline]
fn ip(layers: &Layers) -> Option<(IpVersion, usize)> {
    let direct = matches!(layers.ether_type(), ether_type::IPV4 | ether_type::IPV6);
    layers.ip_version().zip(layers.ip()).filter(|_| direct)
}

/// Where a field lies in a frame that has it. VLAN tags and what is in no frame are not here.
fn find(field: Field, frame: &[u8], layers: &Layers) -> Option<Spot> {
    use Covered::{Address, Header, Nothing, Pseudo};
    match field {
        Field::DlDst => return layers.ethernet(frame).map(|_| spot(0, 6, Nothing)),
        Field::DlSrc => return layers.ethernet(frame).map(|_| spot(6, 6, Nothing)),
        Field::ArpOp | Field::ArpSha | Field::ArpSpa | Field::ArpTha | Field::ArpTpa => {
            return arp(field, frame, layers);
        }
        Field::PppoeSid => return layers.pppoe(frame).map(|_| spot(layers.network() + 2, 2, Nothing)),
        Field::MplsLabel | Field::MplsTc | Field::MplsTtl => {
            let shift = if field == Field::MplsLabel {
                12
            } else if field == Field::MplsTc {
                9
            } else {
                0
            };
            return layers.mpls(frame).map(|_| spot(layers.network(), 4, Nothing).shifted(shift));
        }
        _ => {}
    }
    let (version, ip) = ip(layers)?;
    let found = match (field, version) {
        (Field::NwSrc, IpVersion::V4) => spot(ip + 12, 4, Address),
        (Field::NwDst, IpVersion::V4) => spot(ip + 16, 4, Address),
        (Field::NwTos | Field::IpDscp, IpVersion::V4) => spot(ip + 1, 1, Header).shifted(2),
        (Field::NwEcn, IpVersion::V4) => spot(ip + 1, 1, Header),
        (Field::NwTtl, IpVersion::V4) => spot(ip + 8, 1, Header),
        (Field::Ipv6Src, IpVersion::V6) => spot(ip + 8, 16, Pseudo),
        (Field::Ipv6Dst, IpVersion::V6) => {
            let final_one = !is_routed(frame, layers);
            spot(ip + 24, 16, if final_one { Pseudo } else { Nothing })
        }
        (Field::Ipv6Label, IpVersion::V6) => spot(ip, 4, Nothing),
        (Field::NwTos | Field::IpDscp, IpVersion::V6) => spot(ip, 2, Nothing).shifted(6),
        (Field::NwEcn, IpVersion::V6) => spot(ip, 2, Nothing).shifted(4),
        (Field::NwTtl, IpVersion::V6) => spot(ip + 7, 1, Nothing),
        _ => return transport(field, frame, layers),
    };
    Some(found)
}

/// Places in an ARP packet (RFC 826); addresses only where they are those of Ethernet and IPv4.
fn arp(field: Field, frame: &[u8], layers: &Layers) -> Option<Spot> {
    let is = matches!(layers.ether_type(), ether_type::ARP | RARP);
    let bytes = frame.get(layers.network()..).filter(|_| is)?;
    let packet = Arp::parse(bytes).ok()?;
    let (at, len) = match field {
        Field::ArpOp => return Some(spot(layers.network() + 6, 2, Covered::Nothing)),
        Field::ArpSha => (8, 6),
        Field::ArpSpa => (14, 4),
        Field::ArpTha => (18, 6),
        _ => (24, 4),
    };
    packet.ethernet_ipv4().map(|_| spot(layers.network() + at, len, Covered::Nothing))
}

/// Whether an IPv6 packet goes to its last destination by way of others: then its pseudo-header has the last one, which is in
/// the routing header (RFC 8200 section 8.1).
fn is_routed(frame: &[u8], layers: &Layers) -> bool {
    let Some(header) = layers.ipv6(frame) else { return false };
    header.extensions().flatten().filter_map(|extension| extension.routing()).any(|(_, left)| left > 0)
}

/// Places in what IP carries.
fn transport(field: Field, frame: &[u8], layers: &Layers) -> Option<Spot> {
    use Transport::{Icmp, Icmpv6, Tcp, Udp};
    let Some((kind, at)) = layers.transport() else {
        // The parser has no view of SCTP; its header begins with the ports and has 12 bytes.
        let at = rare_transport(frame, layers, &[SCTP], 12)?;
        return match field {
            Field::TpSrc => Some(spot(at, 4, Covered::Sctp).shifted(16)),
            Field::TpDst => Some(spot(at, 4, Covered::Sctp)),
            _ => None,
        };
    };
    let (at, len) = match (field, kind) {
        (Field::TcpSrc, Tcp) | (Field::UdpSrc, Udp) | (Field::TpSrc, Tcp | Udp) => (at, 2),
        (Field::TcpDst, Tcp) | (Field::UdpDst, Udp) | (Field::TpDst, Tcp | Udp) => (at + 2, 2),
        (Field::IcmpType, Icmp | Icmpv6) => (at, 1),
        (Field::IcmpCode, Icmp | Icmpv6) => (at + 1, 1),
        (Field::NdTarget, Icmpv6) if layers.icmpv6(frame)?.target().is_some() => (at + 8, 16),
        _ => return None,
    };
    Some(spot(at, len, Covered::Transport))
}

/// Where the header of one of these protocols begins, of which the parser has no view, if it has at least `len` bytes.
fn rare_transport(frame: &[u8], layers: &Layers, protocols: &[u8], len: usize) -> Option<usize> {
    let is = layers.malformed().is_none() && protocols.contains(&layers.protocol()?);
    let whole = layers.fragment() != Fragment::Later && layers.payload(frame).len() >= len;
    (is && whole).then(|| layers.payload_offset())
}

/// The checksum of what IP carries: where it is, and what 0 means; with `pseudo`, only of those that count addresses.
/// None in later fragments, and in what has none.
fn transport_checksum(frame: &[u8], layers: &Layers, pseudo: bool) -> Option<(usize, Zero)> {
    match layers.transport() {
        Some((Transport::Tcp, at)) => Some((at + 16, Zero::Sum)),
        Some((Transport::Udp, at)) => Some((at + 6, Zero::Absent)),
        Some((Transport::Icmp, at)) if !pseudo => Some((at + 2, Zero::Sum)),
        Some((Transport::Icmpv6, at)) => Some((at + 2, Zero::Sum)),
        None => rare_transport(frame, layers, &[DCCP, UDP_LITE], 8).map(|at| (at + 6, Zero::Sum)),
        _ => None,
    }
}

impl Frame<'_> {
    /// Writes those bits of `value` that `mask` has into a field. A field that the frame does not have stays away, but for
    /// VLAN tags: see `tags`.
    pub(super) fn set(&mut self, field: Field, value: Wide, mask: Wide) -> Result<(), Stop> {
        match field {
            Field::DlVlan
            | Field::DlVlanPcp
            | Field::VlanTci
            | Field::InnerVlan
            | Field::InnerVlanPcp
            | Field::InnerVlanTci => return self.set_tag(field, value.0[0] as u16, mask.0[0] as u16),
            Field::TunId => {
                let (value, mask) = (value.0[0] as u32, mask.0[0] as u32);
                let known = self.tunnel_id();
                self.set_tunnel_id(known & !mask | value & mask);
            }
            // What is in no frame is in the key that goes from table to table.
            Field::Metadata | Field::Reg0 | Field::Reg1 | Field::Reg2 | Field::Reg3 => {}
            _ => self.set_in_frame(field, value, mask)?,
        }
        Ok(())
    }

    /// `dec_ttl`; a packet that is at its end stays as it is.
    pub(super) fn dec_ttl(&mut self) -> Result<(), Stop> {
        let layers = self.layers();
        let Some(spot) = find(Field::NwTtl, self.bytes(), &layers) else { return Ok(()) };
        match self.bytes().get(spot.at) {
            Some(0 | 1) => Err(Stop::Ttl),
            Some(ttl) => self.set_in_frame(Field::NwTtl, Wide::new(u64::from(ttl - 1)), Wide::new(0xff)),
            None => Ok(()),
        }
    }

    /// Makes the drop precedence of a packet of assured forwarding so many steps worse (RFC 2597 section 6). Others have none.
    pub(super) fn remark(&mut self, steps: u8) -> Result<(), Stop> {
        let dscp = self.key().get(Field::IpDscp).0[0];
        let (class, precedence) = (dscp >> 3, dscp >> 1 & 3);
        if !(1..=4).contains(&class) || precedence == 0 || dscp & 1 != 0 {
            return Ok(());
        }
        let worse = (precedence + u64::from(steps)).min(3);
        self.set(Field::IpDscp, Wide::new(class << 3 | worse << 1), Field::IpDscp.full())
    }

    fn set_in_frame(&mut self, field: Field, value: Wide, mask: Wide) -> Result<(), Stop> {
        let layers = self.layers();
        let Some(spot) = find(field, self.bytes(), &layers) else { return Ok(()) };
        let (value, mask) = if field.row().place.words() > 1 {
            (value.as_u128(), mask.as_u128())
        } else {
            (u128::from(value.0[0]), u128::from(mask.0[0] & field.full().0[0]))
        };
        self.own()?;
        self.edit(&layers, spot, value << spot.shift, mask << spot.shift);
        // Whether UDP holds a tunnel depends on its port.
        if matches!(field, Field::UdpDst | Field::TpDst) {
            self.forget_layers();
        }
        Ok(())
    }

    /// Writes bits of a number of `spot.len` bytes, and lets the checksums follow.
    fn edit(&mut self, layers: &Layers, spot: Spot, value: u128, mask: u128) {
        let Spot { at, len, covered, .. } = spot;
        let frame = self.bytes_mut();
        // Checksums are of words, all of which begin at even places of a frame.
        let words = at & !1..(at + len).next_multiple_of(2);
        let Some(before) = frame.get(words.clone()).map(Sum::of) else { return };
        let old = frame[at..at + len].iter().fold(0, |number, byte| number << 8 | u128::from(*byte));
        let new = old & !mask | value & mask;
        frame[at..at + len].copy_from_slice(&new.to_be_bytes()[16 - len..]);
        let after = Sum::of(&frame[words]);
        if matches!(covered, Covered::Header | Covered::Address)
            && let Some(ip) = layers.ip()
        {
            adjust(frame, ip + 10, Zero::Sum, before, after);
        }
        let pseudo = matches!(covered, Covered::Address | Covered::Pseudo);
        if (pseudo || covered == Covered::Transport)
            && let Some((at, zero)) = transport_checksum(frame, layers, pseudo)
        {
            adjust(frame, at, zero, before, after);
        }
        if covered == Covered::Sctp {
            follow_sctp(frame, layers, at, (old as u32).to_be_bytes());
        }
    }
}

/// Lets the checksum of SCTP follow, whose ports were `old`. The one of a packet in fragments cannot: it depends on how long
/// all of them are, so the receiver will find it wrong.
fn follow_sctp(frame: &mut [u8], layers: &Layers, at: usize, old: [u8; 4]) {
    let Some(packet) = frame.get_mut(at..layers.end()) else { return };
    let len = packet.len();
    if layers.fragment() == Fragment::None
        && let Some(header) = packet.first_chunk_mut::<12>()
    {
        let new = [header[0], header[1], header[2], header[3]];
        let difference = sctp::difference(old, new, len);
        header[8..].iter_mut().zip(difference).for_each(|(byte, change)| *byte ^= change);
    }
}
