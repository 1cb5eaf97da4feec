//! The key of a frame.

use crate::field::{Field, MAX_CID, TAG_PRESENT, Wide};
use crate::key::{Key, WORDS};
use millrace_packet::parse::{Arp, Fragment, Layers, MacAddress, QuicLong, Tag, Transport, ether_type};

/// EtherType in the key of frames that have a length instead (IEEE 802.3), as in Open vSwitch.
pub const NO_ETHER_TYPE: u16 = 0x05ff;
/// SCTP in IP (RFC 9260).
const SCTP: u8 = 132;
/// The first bit of a QUIC packet: its header is a long one (RFC 8999 section 5.1).
const LONG: u8 = 0x80;

/// What the card knows of a frame besides its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    /// Port at which it came in.
    pub port: u32,
    /// Port queue at which it came in.
    pub queue: u16,
    /// The tunnel that it was taken out of, or what actions have said of the one into which it is to go.
    pub tunnel: Option<Tunnel>,
    /// Whether to look for QUIC in UDP, and how long connection ids are in short headers, which do not say it (RFC 8999
    /// section 5.2); 0 is not known, and the key then has as many bytes as an id can have.
    pub quic: Option<u8>,
}

/// What is known of a tunnel, within whose headers the frame is not any more, or not yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// Its identifier.
    pub id: u32,
    /// The IPv4 address of the other end, where the frame came from; otherwise 0.
    pub src: u32,
    /// The port that the tunnel is, where a rule has said so.
    pub port: Option<u32>,
}

impl Tunnel {
    /// The word of the key.
    #[inline(always)]
    fn word(self) -> u64 {
        u64::from(self.src) << 32 | u64::from(self.id)
    }
}

impl Ingress {
    /// The port at which it came in, as rules see it: a tunnel may be one.
    #[inline(always)]
    pub fn in_port(&self) -> u32 {
        self.tunnel.and_then(|tunnel| tunnel.port).unwrap_or(self.port)
    }
}

impl Key {
    /// The key of a frame, of which `layers` says where its headers are. Fields that it does not have, or whose header is
    /// malformed, are 0.
    #[inline]
    pub fn extract(frame: &[u8], layers: &Layers, ingress: &Ingress) -> Self {
        let mut key = Self::ZERO;
        key.take(frame, layers, ingress);
        key
    }

    /// The same, where it is to be: a copy right behind would wait for the words before it.
    #[inline]
    pub fn take(&mut self, frame: &[u8], layers: &Layers, ingress: &Ingress) {
        let words = self.words_mut();
        *words = [0; WORDS];
        let kind = match layers.ether_type() {
            kind if kind < ether_type::LOWEST => NO_ETHER_TYPE,
            kind => kind,
        };
        words[0] = u64::from(ingress.in_port()) << 32 | u64::from(ingress.queue) << 16 | u64::from(kind);
        let (outer, inner) = match layers.tags() {
            [] => (0, 0),
            [outer] => (tag(outer), 0),
            [outer, inner, ..] => (tag(outer), tag(inner)),
        };
        let macs = layers.ethernet(frame).map_or((0, 0), |header| (mac(header.destination()), mac(header.source())));
        words[1] = macs.0 << 16 | outer;
        words[2] = macs.1 << 16 | inner;
        match kind {
            ether_type::IPV4 => ipv4(words, frame, layers, ingress),
            ether_type::IPV6 => ipv6(words, frame, layers, ingress),
            _ => {}
        }
        // What the frame was taken out of is known, and what is in it is the sender's word.
        words[9] = match ingress.tunnel {
            Some(tunnel) => tunnel.word(),
            None => layers.tunnel_id(frame).unwrap_or(0).into(),
        };
        if !matches!(kind, ether_type::IPV4 | ether_type::IPV6) {
            other(self, kind, frame, layers);
        }
    }
}

#[inline(always)]
fn mac(address: MacAddress) -> u64 {
    let [a, b, c, d, e, f] = address.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

#[inline(always)]
fn tag(tag: &Tag) -> u64 {
    // The bit that says that there is a tag stands where a frame has the drop-eligible bit.
    u64::from(tag.tci.0) | TAG_PRESENT
}

/// Bits of word 7: protocol, time to live, DSCP and ECN, fragment.
#[inline(always)]
fn common(protocol: u8, ttl: u8, dscp: u8, ecn: u8, fragment: Fragment) -> u64 {
    let fragment = match fragment {
        Fragment::None => 0,
        Fragment::First => 1,
        Fragment::Later => 3,
    };
    u64::from(protocol) << 56 | u64::from(ttl) << 48 | u64::from(dscp) << 42 | u64::from(ecn) << 40 | fragment << 32
}

#[inline(always)]
fn ipv4(words: &mut [u64; WORDS], frame: &[u8], layers: &Layers, ingress: &Ingress) {
    let Some(header) = layers.ipv4(frame) else { return };
    words[3] = u64::from(header.source().to_bits()) << 32 | u64::from(header.destination().to_bits());
    let protocol = layers.protocol().unwrap_or(0);
    words[7] = common(protocol, header.ttl(), header.dscp(), header.ecn(), layers.fragment());
    transport(words, protocol, frame, layers, ingress);
}

#[inline(always)]
fn ipv6(words: &mut [u64; WORDS], frame: &[u8], layers: &Layers, ingress: &Ingress) {
    let Some(header) = layers.ipv6(frame) else { return };
    let halves = |address: u128| ((address >> 64) as u64, address as u64);
    (words[3], words[4]) = halves(header.source().to_bits());
    (words[5], words[6]) = halves(header.destination().to_bits());
    let protocol = layers.protocol().unwrap_or(0);
    words[7] = common(protocol, header.hop_limit(), header.dscp(), header.ecn(), layers.fragment());
    words[8] = u64::from(header.flow_label()) << 44;
    transport(words, protocol, frame, layers, ingress);
}

#[inline(always)]
fn transport(words: &mut [u64; WORDS], protocol: u8, frame: &[u8], layers: &Layers, ingress: &Ingress) {
    match layers.transport() {
        Some((Transport::Tcp, _)) => {
            let Some(header) = layers.tcp(frame) else { return };
            words[7] |= u64::from(header.source_port()) << 16 | u64::from(header.destination_port());
            words[8] |= u64::from(header.flags() & 0xfff) << 16;
        }
        Some((Transport::Udp, _)) => {
            let Some(header) = layers.udp(frame) else { return };
            words[7] |= u64::from(header.source_port()) << 16 | u64::from(header.destination_port());
            if let Some(len) = ingress.quic {
                let Wide([a, b, c]) = connection_id(header.payload(), len);
                (words[10], words[11], words[12]) = (a, b, c);
            }
        }
        Some((Transport::Icmp, _)) => {
            let Some(header) = layers.icmp(frame) else { return };
            words[7] |= u64::from(header.kind()) << 16 | u64::from(header.code());
        }
        Some((Transport::Icmpv6, _)) => {
            let Some(header) = layers.icmpv6(frame) else { return };
            words[7] |= u64::from(header.kind()) << 16 | u64::from(header.code());
            if let Some(target) = header.target() {
                let target = target.to_bits();
                (words[10], words[11]) = ((target >> 64) as u64, target as u64);
            }
        }
        // The parser has no view of SCTP; its header begins with the ports (RFC 9260 section 3.1).
        None if protocol == SCTP && layers.fragment() != Fragment::Later => {
            if let Some(&[a, b, c, d]) = layers.payload(frame).first_chunk() {
                words[7] |= u64::from(u32::from_be_bytes([a, b, c, d]));
            }
        }
        _ => {}
    }
}

/// The destination connection id of what may be a QUIC packet.
fn connection_id(datagram: &[u8], short: u8) -> Wide {
    match datagram.first() {
        Some(first) if first & LONG != 0 => match QuicLong::parse(datagram) {
            Ok(packet) if packet.destination().len() <= MAX_CID => Wide::cid(packet.destination()),
            _ => Wide::ZERO,
        },
        Some(_) if short > 0 => datagram.get(1..=usize::from(short).min(MAX_CID)).map_or(Wide::ZERO, Wide::cid),
        Some(_) => {
            let Wide([a, b, c]) = Wide::cid(&datagram[1..datagram.len().min(1 + MAX_CID)]);
            Wide([a, b, c & !0xff])
        }
        None => Wide::ZERO,
    }
}

/// What is not IP, or IP within something else, which is looked at once that is taken away.
#[inline(never)]
fn other(key: &mut Key, kind: u16, frame: &[u8], layers: &Layers) {
    match kind {
        ether_type::ARP | crate::field::needs::ether_type::RARP => {
            // Reverse ARP has the same packets (RFC 903); the parser leaves them as payload.
            let Some(arp) = layers.arp(frame).or_else(|| Arp::parse(layers.payload(frame)).ok()) else { return };
            key.set(Field::ArpOp, u64::from(arp.operation()));
            if let Some([(sha, spa), (tha, tpa)]) = arp.ethernet_ipv4() {
                key.set(Field::ArpSha, mac(sha));
                key.set(Field::ArpTha, mac(tha));
                key.set(Field::ArpSpa, u64::from(spa.to_bits()));
                key.set(Field::ArpTpa, u64::from(tpa.to_bits()));
            }
        }
        ether_type::MPLS | ether_type::MPLS_MULTICAST => {
            let Some(top) = layers.mpls(frame).map(|stack| stack.top()) else { return };
            key.set(Field::MplsLabel, u64::from(top.label()));
            key.set(Field::MplsTc, u64::from(top.traffic_class()));
            key.set(Field::MplsBos, u64::from(top.is_bottom()));
            key.set(Field::MplsTtl, u64::from(top.ttl()));
        }
        ether_type::PPPOE => {
            if let Some(pppoe) = layers.pppoe(frame) {
                key.set(Field::PppoeSid, u64::from(pppoe.session()));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
