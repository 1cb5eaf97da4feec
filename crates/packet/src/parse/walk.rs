//! The pass over a frame that makes [`Layers`].

use super::{
    Ah, Esp, Ethernet, Fragment, Geneve, Gre, Icmp, Icmpv6, IpVersion, Ipv4, Ipv6, Label, Layer, Layers,
    MOST_EXTENSIONS, MOST_LABELS, Malformed, Mpls, Pppoe, Snap, Tag, Tcp, Transport, Tunnel, Udp, Vlan, Vxlan,
    ether_type, ppp, protocol, udp_port,
};

/// Headers of one pass are never longer than this, in bytes: tags, SNAP, labels, IPv6 with its extension headers (of at
/// most 2048 bytes), TCP with options or UDP with GENEVE.
const LONGEST: usize = Ethernet::LEN
    + Layers::MOST_TAGS * Vlan::LEN
    + Snap::LEN
    + MOST_LABELS * Label::LEN
    + Ipv6::LEN
    + MOST_EXTENSIONS * 2048
    + Udp::LEN
    + 260;

/// Where a pass may begin, so that every offset fits into 16 bits.
const LAST_START: usize = u16::MAX as usize - LONGEST;

impl Layers {
    /// Nothing found, as of a frame without bytes.
    pub const NONE: Self = Self {
        end: 0,
        tags: [Tag { tpid: 0, tci: super::Tci(0) }; Self::MOST_TAGS],
        start: 0,
        network: 0,
        ip: 0,
        transport: 0,
        payload: 0,
        ether_type: 0,
        inner_type: 0,
        tag_count: 0,
        has_ethernet: false,
        protocol: 0,
        ip_version: None,
        fragment: Fragment::None,
        transport_kind: None,
        tunnel: None,
        malformed: None,
    };

    /// Finds the headers of a frame that begins with Ethernet and ends without FCS.
    #[inline]
    pub fn parse(frame: &[u8]) -> Self {
        let mut layers = Self::NONE;
        layers.ethernet_at(frame, 0);
        layers
    }

    /// The same, where it is to be: a copy right behind would wait for the small stores before it.
    #[inline]
    pub fn find(&mut self, frame: &[u8]) {
        *self = Self::NONE;
        self.ethernet_at(frame, 0);
    }

    /// Finds the headers of what is within the tunnel. Offsets are from the start of the same frame. `None` without a
    /// tunnel, or if it lies more than 48,000 bytes behind the start (tunnels within tunnels).
    pub fn parse_inner(&self, frame: &[u8]) -> Option<Self> {
        let (_, at) = self.tunnel()?;
        if at > LAST_START {
            return None;
        }
        let bytes = frame.get(at..self.end())?;
        let mut layers = Self { start: self.payload, ..Self::NONE };
        if self.inner_type == ether_type::ETHERNET {
            layers.ethernet_at(bytes, at);
        } else {
            layers.end = self.end;
            layers.network_at(self.inner_type, bytes, at);
        }
        Some(layers)
    }

    /// Parsing ends here.
    #[cold]
    fn stop(&mut self, layer: Layer, reason: Malformed) {
        self.malformed = Some((layer, reason));
    }

    /// Takes over where the payload of a header lies.
    #[inline(always)]
    fn enter(&mut self, at: usize, len: usize) {
        self.payload = at as u16;
        self.end = (at + len) as u32;
    }

    #[inline(always)]
    fn ethernet_at(&mut self, bytes: &[u8], at: usize) {
        self.enter(at, bytes.len());
        self.network = at as u16;
        let ethernet = match Ethernet::parse(bytes) {
            Ok(ethernet) => ethernet,
            Err(reason) => return self.stop(Layer::Ethernet, reason),
        };
        self.has_ethernet = true;
        let (ether_type, payload, at) = (ethernet.ether_type(), ethernet.payload(), at + Ethernet::LEN);
        self.payload = at as u16;
        match ether_type {
            ether_type::IPV4 => self.ipv4_behind(ether_type, payload, at),
            ether_type::IPV6 => self.network_at(ether_type, payload, at),
            _ => self.behind_ethernet(ether_type, payload, at),
        }
    }

    /// What most frames are.
    #[inline(always)]
    fn ipv4_behind(&mut self, ether_type: u16, bytes: &[u8], at: usize) {
        (self.ether_type, self.network) = (ether_type, at as u16);
        self.ipv4_at(bytes, at);
    }

    #[inline(never)]
    fn behind_ethernet(&mut self, mut ether_type: u16, mut bytes: &[u8], mut at: usize) {
        while ether_type::is_tag(ether_type) {
            let vlan = match Vlan::parse(bytes) {
                _ if usize::from(self.tag_count) == Self::MOST_TAGS => Err(Malformed::TooMany),
                vlan => vlan,
            };
            let vlan = match vlan {
                Ok(vlan) => vlan,
                Err(reason) => {
                    (self.ether_type, self.network) = (ether_type, at as u16);
                    return self.stop(Layer::Vlan, reason);
                }
            };
            self.tags[usize::from(self.tag_count)] = Tag { tpid: ether_type, tci: vlan.tci() };
            self.tag_count += 1;
            (ether_type, bytes, at) = (vlan.ether_type(), vlan.payload(), at + Vlan::LEN);
            self.payload = at as u16;
        }
        if ether_type < ether_type::LOWEST {
            return self.length_at(ether_type, bytes, at);
        }
        self.network_at(ether_type, bytes, at);
    }

    /// IEEE 802.3: a length, then LLC, which may be followed by SNAP.
    fn length_at(&mut self, length: u16, bytes: &[u8], at: usize) {
        (self.ether_type, self.network) = (length, at as u16);
        let Some(bytes) = bytes.get(..usize::from(length)) else {
            return self.stop(Layer::Ethernet, Malformed::Length);
        };
        self.enter(at, bytes.len());
        if let Ok(snap) = Snap::parse(bytes)
            && snap.organisation() == [0; 3]
            && snap.protocol() >= ether_type::LOWEST
        {
            self.network_at(snap.protocol(), snap.payload(), at + Snap::LEN);
        }
    }

    fn network_at(&mut self, ether_type: u16, bytes: &[u8], at: usize) {
        (self.ether_type, self.network, self.payload) = (ether_type, at as u16, at as u16);
        match ether_type {
            ether_type::IPV4 => self.ipv4_at(bytes, at),
            ether_type::IPV6 => self.ipv6_at(bytes, at),
            ether_type::PPPOE => self.pppoe_at(bytes, at),
            ether_type::MPLS | ether_type::MPLS_MULTICAST => self.mpls_at(bytes, at),
            _ => {}
        }
    }

    fn pppoe_at(&mut self, bytes: &[u8], at: usize) {
        let pppoe = match Pppoe::parse(bytes) {
            Ok(pppoe) => pppoe,
            Err(reason) => return self.stop(Layer::Pppoe, reason),
        };
        let (bytes, at) = (pppoe.payload(), at + pppoe.header_len());
        self.enter(at, bytes.len());
        match pppoe.protocol() {
            ppp::IPV4 => self.ipv4_at(bytes, at),
            ppp::IPV6 => self.ipv6_at(bytes, at),
            _ => {}
        }
    }

    /// Behind the labels, the first four bits tell IP from other things (RFC 4928 §2). That is a guess: where the rest
    /// does not fit, it is taken back, and nothing is malformed.
    fn mpls_at(&mut self, bytes: &[u8], at: usize) {
        let mpls = match Mpls::parse(bytes) {
            Ok(mpls) => mpls,
            Err(reason) => return self.stop(Layer::Mpls, reason),
        };
        let (bytes, at) = (mpls.payload(), at + mpls.header_len());
        self.payload = at as u16;
        let before = *self;
        match bytes.first().map(|first| first >> 4) {
            Some(4) => self.ipv4_at(bytes, at),
            Some(6) => self.ipv6_at(bytes, at),
            _ => {}
        }
        if self.malformed.is_some() {
            *self = before;
        }
    }

    #[inline(always)]
    fn ipv4_at(&mut self, bytes: &[u8], at: usize) {
        let ipv4 = match Ipv4::parse(bytes) {
            Ok(ipv4) => ipv4,
            Err(reason) => return self.stop(Layer::Ipv4, reason),
        };
        self.ip = at as u16;
        self.ip_version = Some(IpVersion::V4);
        self.protocol = ipv4.protocol();
        let (bytes, at) = (ipv4.payload(), at + ipv4.header_len());
        if ipv4.is_whole() { self.transport_at(bytes, at) } else { self.fragment_at(ipv4.fragment(), bytes, at) }
    }

    #[inline(always)]
    fn ipv6_at(&mut self, bytes: &[u8], at: usize) {
        let ipv6 = match Ipv6::parse(bytes) {
            Ok(ipv6) => ipv6,
            Err(reason) => return self.stop(Layer::Ipv6, reason),
        };
        let (bytes, at) = (ipv6.payload(), at + Ipv6::LEN);
        self.ip = (at - Ipv6::LEN) as u16;
        self.ip_version = Some(IpVersion::V6);
        self.protocol = ipv6.next_header();
        if matches!(self.protocol, protocol::TCP | protocol::UDP) {
            return self.transport_at(bytes, at);
        }
        let mut extensions = ipv6.extensions();
        let failed = extensions.by_ref().find_map(Result::err);
        let rest = extensions.rest();
        let at = at + bytes.len() - rest.len();
        self.protocol = extensions.next_header();
        if let Some(reason) = failed {
            self.fragment = extensions.fragment();
            self.enter(at, rest.len());
            return self.stop(Layer::Ipv6Extension, reason);
        }
        match extensions.fragment() {
            Fragment::None => self.transport_at(rest, at),
            fragment => self.fragment_at(fragment, rest, at),
        }
    }

    /// The payload of a whole packet.
    #[inline(always)]
    fn transport_at(&mut self, bytes: &[u8], at: usize) {
        self.enter(at, bytes.len());
        self.transport = at as u16;
        match self.protocol {
            protocol::TCP => self.tcp_at(bytes),
            protocol::UDP => self.udp_at(bytes, at),
            _ => self.rare_transport(bytes, at),
        }
    }

    /// The payload of a fragment: the first has the transport header, but nothing of a tunnel is complete in it.
    #[inline(never)]
    fn fragment_at(&mut self, fragment: Fragment, bytes: &[u8], at: usize) {
        self.enter(at, bytes.len());
        self.transport = at as u16;
        self.fragment = fragment;
        match (fragment, self.protocol) {
            (Fragment::Later, _) => {}
            (_, protocol::TCP) => self.tcp_at(bytes),
            (_, protocol::UDP) => match Udp::parse_first_fragment(bytes) {
                Ok(_) => self.found(Transport::Udp, Udp::LEN),
                Err(reason) => self.stop(Layer::Udp, reason),
            },
            _ => self.rare_transport(bytes, at),
        }
    }

    #[inline(always)]
    fn tcp_at(&mut self, bytes: &[u8]) {
        match Tcp::parse(bytes) {
            Ok(tcp) => self.found(Transport::Tcp, tcp.header_len()),
            Err(reason) => self.stop(Layer::Tcp, reason),
        }
    }

    /// A transport header of `len` bytes.
    #[inline(always)]
    fn found(&mut self, kind: Transport, len: usize) {
        self.transport_kind = Some(kind);
        self.payload = (usize::from(self.transport) + len) as u16;
    }

    #[inline(always)]
    fn udp_at(&mut self, bytes: &[u8], at: usize) {
        let udp = match Udp::parse(bytes) {
            Ok(udp) => udp,
            Err(reason) => return self.stop(Layer::Udp, reason),
        };
        self.transport_kind = Some(Transport::Udp);
        self.enter(at + Udp::LEN, udp.payload().len());
        let port = udp.destination_port();
        if matches!(port, udp_port::VXLAN | udp_port::GENEVE) {
            self.tunnel_in(port, udp.payload());
        }
    }

    #[inline(never)]
    fn tunnel_in(&mut self, port: u16, bytes: &[u8]) {
        let at = self.payload_offset();
        if port == udp_port::VXLAN {
            match Vxlan::parse(bytes) {
                Ok(_) => self.wrapped(Tunnel::Vxlan, ether_type::ETHERNET, at + Vxlan::LEN),
                Err(reason) => self.stop(Layer::Vxlan, reason),
            }
        } else {
            match Geneve::parse(bytes) {
                Ok(geneve) => self.wrapped(Tunnel::Geneve, geneve.protocol(), at + geneve.header_len()),
                Err(reason) => self.stop(Layer::Geneve, reason),
            }
        }
    }

    fn wrapped(&mut self, tunnel: Tunnel, inner_type: u16, at: usize) {
        self.tunnel = Some(tunnel);
        self.inner_type = inner_type;
        self.payload = at as u16;
    }

    #[inline(never)]
    fn rare_transport(&mut self, bytes: &[u8], at: usize) {
        let found = match (self.protocol, self.ip_version) {
            (protocol::ICMP, Some(IpVersion::V4)) => {
                Icmp::parse(bytes).map(|_| (Transport::Icmp, Icmp::LEN)).map_err(|reason| (Layer::Icmp, reason))
            }
            (protocol::ICMPV6, Some(IpVersion::V6)) => {
                Icmpv6::parse(bytes).map(|_| (Transport::Icmpv6, Icmpv6::LEN)).map_err(|reason| (Layer::Icmpv6, reason))
            }
            (protocol::ESP, _) => {
                Esp::parse(bytes).map(|_| (Transport::Esp, Esp::LEN)).map_err(|reason| (Layer::Esp, reason))
            }
            (protocol::AH, Some(IpVersion::V4)) => {
                Ah::parse(bytes).map(|ah| (Transport::Ah, ah.header_len())).map_err(|reason| (Layer::Ah, reason))
            }
            (protocol::GRE, _) => return self.gre_at(bytes, at),
            _ => return,
        };
        match found {
            Ok((kind, len)) => self.found(kind, len),
            Err((layer, reason)) => self.stop(layer, reason),
        }
    }

    fn gre_at(&mut self, bytes: &[u8], at: usize) {
        let gre = match Gre::parse(bytes) {
            Ok(gre) => gre,
            Err(reason) => return self.stop(Layer::Gre, reason),
        };
        self.found(Transport::Gre, gre.header_len());
        if gre.version() == 0 && self.fragment == Fragment::None {
            self.wrapped(Tunnel::Gre, gre.protocol(), at + gre.header_len());
        }
    }
}
