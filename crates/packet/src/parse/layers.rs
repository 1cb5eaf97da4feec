//! What one pass over a frame finds out: where each header begins, and what kind it is.

use super::{
    Ah, Arp, Bth, Esp, Ethernet, Fragment, Geneve, Gre, Grh, Icmp, Icmpv6, Ipv4, Ipv6, Malformed, Mpls, Pppoe, Ptp,
    Tag, Tcp, Udp, Vxlan, ether_type, udp_port,
};

/// Version of the internet protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// What follows IP and its extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP, over IPv4.
    Icmp,
    /// ICMPv6, over IPv6.
    Icmpv6,
    /// GRE.
    Gre,
    /// Encapsulating security payload.
    Esp,
    /// Authentication header, over IPv4. Over IPv6 it is an extension header.
    Ah,
}

/// What a frame is wrapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Tunnel {
    /// VXLAN, in UDP to port 4789.
    Vxlan,
    /// GENEVE, in UDP to port 6081.
    Geneve,
    /// GRE of version 0, whatever its protocol.
    Gre,
}

/// Which header it is that is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Layer {
    Ethernet,
    Vlan,
    Pppoe,
    Mpls,
    Ipv4,
    Ipv6,
    Ipv6Extension,
    Tcp,
    Udp,
    Icmp,
    Icmpv6,
    Gre,
    Esp,
    Ah,
    Vxlan,
    Geneve,
}

/// Where the headers of a frame are, in bytes from its start. Made by [`Layers::parse`].
///
/// Parsing ends at the first header that is malformed: all before it is valid, and it and all behind it are not reported
/// ([`Layers::malformed`] says which it was). Nothing is read beyond what the lengths of Ethernet, PPPoE and IP cover.
///
/// Tags, PPPoE and MPLS are looked through: [`Layers::ether_type`] says what stands behind the tags, while
/// [`Layers::ip_version`] says what is behind PPPoE and MPLS as well. A tunnel ends the pass; [`Layers::parse_inner`] goes
/// on within it.
///
/// Whoever asks for a view must give the frame that was parsed. Any other bytes give another answer or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Where what is reported ends.
    pub(super) end: u32,
    pub(super) tags: [Tag; Layers::MOST_TAGS],
    pub(super) start: u16,
    pub(super) network: u16,
    pub(super) ip: u16,
    pub(super) transport: u16,
    pub(super) payload: u16,
    pub(super) ether_type: u16,
    /// EtherType of what is within the tunnel.
    pub(super) inner_type: u16,
    pub(super) tag_count: u8,
    pub(super) has_ethernet: bool,
    pub(super) protocol: u8,
    pub(super) ip_version: Option<IpVersion>,
    pub(super) fragment: Fragment,
    pub(super) transport_kind: Option<Transport>,
    pub(super) tunnel: Option<Tunnel>,
    pub(super) malformed: Option<(Layer, Malformed)>,
}

const _: () = assert!(size_of::<Layers>() <= 36, "it is kept for every frame of a burst");

impl Layers {
    /// Most VLAN tags of one frame. A frame with more is malformed behind them.
    pub const MOST_TAGS: usize = 2;

    /// Where the frame starts: 0, or within the tunnel.
    #[inline]
    pub fn start(&self) -> usize {
        usize::from(self.start)
    }

    /// Where what is reported ends: trailing bytes that belong to Ethernet (or to an outer packet) are behind it.
    #[inline]
    pub fn end(&self) -> usize {
        self.end as usize
    }

    /// What stands behind the VLAN tags. Where the frame has a length instead of an EtherType (IEEE 802.3), it is that
    /// of SNAP if there is one (RFC 1042), else the length, which is below [`ether_type::LOWEST`].
    #[inline]
    pub fn ether_type(&self) -> u16 {
        self.ether_type
    }

    /// VLAN tags, the outermost first.
    #[inline]
    pub fn tags(&self) -> &[Tag] {
        &self.tags[..usize::from(self.tag_count).min(Self::MOST_TAGS)]
    }

    /// Where that begins of which the EtherType speaks.
    #[inline]
    pub fn network(&self) -> usize {
        usize::from(self.network)
    }

    /// Version of IP, if there is a valid header of IP.
    #[inline]
    pub fn ip_version(&self) -> Option<IpVersion> {
        self.ip_version
    }

    /// Where the header of IP begins. Behind [`Layers::network`] where PPPoE or MPLS come before it.
    #[inline]
    pub fn ip(&self) -> Option<usize> {
        self.ip_version.map(|_| usize::from(self.ip))
    }

    /// What IP carries, behind the extension headers of IPv6 ([`super::protocol`]). Of later fragments, too.
    #[inline]
    pub fn protocol(&self) -> Option<u8> {
        self.ip_version.map(|_| self.protocol)
    }

    /// Which part of an IP packet it is.
    #[inline]
    pub fn fragment(&self) -> Fragment {
        self.fragment
    }

    /// The transport header and where it begins, if it is known, valid and not in another fragment.
    #[inline]
    pub fn transport(&self) -> Option<(Transport, usize)> {
        self.transport_kind.map(|kind| (kind, usize::from(self.transport)))
    }

    /// Where the last header that was understood ends. If one is malformed, it begins there.
    #[inline]
    pub fn payload_offset(&self) -> usize {
        usize::from(self.payload)
    }

    /// What is behind the last header that was understood, without trailing bytes of Ethernet.
    #[inline]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame.get(self.payload_offset()..self.end()).unwrap_or_default()
    }

    /// The header that is malformed, and why, if one is.
    #[inline]
    pub fn malformed(&self) -> Option<(Layer, Malformed)> {
        self.malformed
    }

    /// A tunnel, and where that begins which is within. Fragments of tunnelled packets do not count.
    #[inline]
    pub fn tunnel(&self) -> Option<(Tunnel, usize)> {
        self.tunnel.map(|tunnel| (tunnel, self.payload_offset()))
    }

    /// What is within the tunnel: [`ether_type::ETHERNET`] for a whole frame.
    #[inline]
    pub fn inner_type(&self) -> Option<u16> {
        self.tunnel.map(|_| self.inner_type)
    }

    /// Network identifier of VXLAN and GENEVE, key of GRE if it has one.
    #[inline]
    pub fn tunnel_id(&self, frame: &[u8]) -> Option<u32> {
        match self.tunnel? {
            Tunnel::Vxlan => Some(self.vxlan(frame)?.vni()),
            Tunnel::Geneve => Some(self.geneve(frame)?.vni()),
            Tunnel::Gre => self.gre(frame)?.key(),
        }
    }

    /// What is reported, from `at` on.
    #[inline]
    fn bytes<'a>(&self, frame: &'a [u8], at: u16) -> Option<&'a [u8]> {
        frame.get(usize::from(at)..self.end())
    }

    #[inline]
    fn transport_bytes<'a>(&self, frame: &'a [u8], kind: Transport) -> Option<&'a [u8]> {
        if self.transport_kind == Some(kind) { self.bytes(frame, self.transport) } else { None }
    }

    #[inline]
    fn network_bytes<'a>(&self, frame: &'a [u8], is: bool) -> Option<&'a [u8]> {
        if is { self.bytes(frame, self.network) } else { None }
    }

    /// The Ethernet header; the packet within a tunnel may have none.
    #[inline]
    pub fn ethernet<'a>(&self, frame: &'a [u8]) -> Option<Ethernet<'a>> {
        if self.has_ethernet { Ethernet::parse(frame.get(self.start()..)?).ok() } else { None }
    }

    /// The ARP packet.
    #[inline]
    pub fn arp<'a>(&self, frame: &'a [u8]) -> Option<Arp<'a>> {
        Arp::parse(self.network_bytes(frame, self.ether_type == ether_type::ARP)?).ok()
    }

    /// The PPPoE session.
    #[inline]
    pub fn pppoe<'a>(&self, frame: &'a [u8]) -> Option<Pppoe<'a>> {
        let bytes = frame.get(self.network()..)?;
        if self.ether_type == ether_type::PPPOE { Pppoe::parse(bytes).ok() } else { None }
    }

    /// The stack of labels.
    #[inline]
    pub fn mpls<'a>(&self, frame: &'a [u8]) -> Option<Mpls<'a>> {
        let is = matches!(self.ether_type, ether_type::MPLS | ether_type::MPLS_MULTICAST);
        Mpls::parse(self.network_bytes(frame, is)?).ok()
    }

    /// The IPv4 packet.
    #[inline]
    pub fn ipv4<'a>(&self, frame: &'a [u8]) -> Option<Ipv4<'a>> {
        let bytes = frame.get(usize::from(self.ip)..)?;
        if self.ip_version == Some(IpVersion::V4) { Ipv4::parse(bytes).ok() } else { None }
    }

    /// The IPv6 packet.
    #[inline]
    pub fn ipv6<'a>(&self, frame: &'a [u8]) -> Option<Ipv6<'a>> {
        let bytes = frame.get(usize::from(self.ip)..)?;
        if self.ip_version == Some(IpVersion::V6) { Ipv6::parse(bytes).ok() } else { None }
    }

    /// The TCP segment.
    #[inline]
    pub fn tcp<'a>(&self, frame: &'a [u8]) -> Option<Tcp<'a>> {
        Tcp::parse(self.transport_bytes(frame, Transport::Tcp)?).ok()
    }

    /// The datagram, or what the first fragment has of it.
    #[inline]
    pub fn udp<'a>(&self, frame: &'a [u8]) -> Option<Udp<'a>> {
        let bytes = self.transport_bytes(frame, Transport::Udp)?;
        match self.fragment {
            Fragment::None => Udp::parse(bytes).ok(),
            _ => Udp::parse_first_fragment(bytes).ok(),
        }
    }

    /// The ICMP message.
    #[inline]
    pub fn icmp<'a>(&self, frame: &'a [u8]) -> Option<Icmp<'a>> {
        Icmp::parse(self.transport_bytes(frame, Transport::Icmp)?).ok()
    }

    /// The ICMPv6 message.
    #[inline]
    pub fn icmpv6<'a>(&self, frame: &'a [u8]) -> Option<Icmpv6<'a>> {
        Icmpv6::parse(self.transport_bytes(frame, Transport::Icmpv6)?).ok()
    }

    /// The GRE header.
    #[inline]
    pub fn gre<'a>(&self, frame: &'a [u8]) -> Option<Gre<'a>> {
        Gre::parse(self.transport_bytes(frame, Transport::Gre)?).ok()
    }

    /// The encapsulating security payload.
    #[inline]
    pub fn esp<'a>(&self, frame: &'a [u8]) -> Option<Esp<'a>> {
        Esp::parse(self.transport_bytes(frame, Transport::Esp)?).ok()
    }

    /// The authentication header over IPv4.
    #[inline]
    pub fn ah<'a>(&self, frame: &'a [u8]) -> Option<Ah<'a>> {
        Ah::parse(self.transport_bytes(frame, Transport::Ah)?).ok()
    }

    /// The VXLAN header.
    #[inline]
    pub fn vxlan<'a>(&self, frame: &'a [u8]) -> Option<Vxlan<'a>> {
        if self.tunnel == Some(Tunnel::Vxlan) { Vxlan::parse(self.udp(frame)?.payload()).ok() } else { None }
    }

    /// The GENEVE header.
    #[inline]
    pub fn geneve<'a>(&self, frame: &'a [u8]) -> Option<Geneve<'a>> {
        if self.tunnel == Some(Tunnel::Geneve) { Geneve::parse(self.udp(frame)?.payload()).ok() } else { None }
    }

    /// The PTP message, over Ethernet or in UDP to one of its ports.
    pub fn ptp<'a>(&self, frame: &'a [u8]) -> Option<Ptp<'a>> {
        if self.ether_type == ether_type::PTP {
            return Ptp::parse(self.bytes(frame, self.network)?).ok();
        }
        let udp = self.udp(frame)?;
        let is = matches!(udp.destination_port(), udp_port::PTP_EVENT | udp_port::PTP_GENERAL);
        if is { Ptp::parse(udp.payload()).ok() } else { None }
    }

    /// The global route header of RoCE version 1.
    pub fn grh<'a>(&self, frame: &'a [u8]) -> Option<Grh<'a>> {
        Grh::parse(self.network_bytes(frame, self.ether_type == ether_type::ROCE)?).ok()
    }

    /// The base transport header of RoCE, version 1 or 2.
    pub fn bth<'a>(&self, frame: &'a [u8]) -> Option<Bth<'a>> {
        if let Some(grh) = self.grh(frame) {
            return Bth::parse(grh.payload()).ok();
        }
        let udp = self.udp(frame)?;
        if udp.destination_port() == udp_port::ROCE { Bth::parse(udp.payload()).ok() } else { None }
    }
}
