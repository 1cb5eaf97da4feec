//! A frame out of a VXLAN packet (RFC 7348 section 5).

use super::super::{Frame, Stop};
use super::{ETHERNET, UDP, VXLAN};
use crate::extract::Tunnel;
use crate::field::{Field, Wide, needs::protocol};
use millrace_packet::checksum::Sum;
use millrace_packet::parse::{Fragment, Layers, Transport, Vxlan, ether_type};

/// Congestion Experienced (RFC 3168 section 5), and the mark for it of a packet that knows of none.
const CE: u8 = 3;
const NOT_ECT: u8 = 0;

/// A valid packet: where the frame within is, its network, and the congestion mark outside.
struct Opened {
    start: usize,
    end: usize,
    vni: u32,
    /// The outer source address, if it is one of IPv4.
    src: u32,
    ecn: u8,
}

impl Frame<'_> {
    /// Takes the frame out of a VXLAN packet: UDP to whatever port the rule has matched, whole, with the flag that says that
    /// there is an identifier, with an Ethernet header within, and with checksums that hold.
    pub(in super::super) fn decap_vxlan(&mut self, port: Option<u32>) -> Result<(), Stop> {
        let opened = match self.known_layers() {
            Some(layers) => open(self.bytes(), layers),
            None => {
                let layers = self.layers();
                open(self.bytes(), &layers)
            }
        };
        let opened = opened.ok_or(Stop::NotVxlan)?;
        self.narrow(opened.start, opened.end);
        self.set_tunnel(Tunnel { id: opened.vni, src: opened.src, port });
        self.combine_ecn(opened.ecn)
    }

    /// Congestion that the way has marked goes on in the packet (RFC 6040 section 4.2). A packet that knows of no marks is
    /// dropped where it would have been marked.
    fn combine_ecn(&mut self, outer: u8) -> Result<(), Stop> {
        const ECT_0: u8 = 2;
        const ECT_1: u8 = 1;
        // The marks that most packets have change nothing, and the frame is not looked at.
        if !matches!(outer, CE | ECT_1) {
            return Ok(());
        }
        let layers = self.layers();
        let Some(inner) = ecn(self.bytes(), &layers) else { return Ok(()) };
        match (inner, outer) {
            (NOT_ECT, CE) => Err(Stop::Congested),
            (ECT_0, ECT_1) | (ECT_0 | ECT_1, CE) => {
                self.set(Field::NwEcn, Wide::new(outer.into()), Field::NwEcn.full())
            }
            _ => Ok(()),
        }
    }
}

fn open(frame: &[u8], layers: &Layers) -> Option<Opened> {
    let (Transport::Udp, at) = layers.transport()? else { return None };
    let (holds, ecn, src) = match layers.ether_type() {
        ether_type::IPV4 => {
            let header = layers.ipv4(frame)?;
            (header.checksum_holds(), header.ecn(), header.source().to_bits())
        }
        ether_type::IPV6 => (true, layers.ipv6(frame)?.ecn(), 0),
        _ => return None,
    };
    if !holds || layers.fragment() != Fragment::None {
        return None;
    }
    let datagram = layers.udp(frame)?;
    let vxlan = Vxlan::parse(datagram.payload()).ok()?;
    let start = at + UDP + VXLAN;
    let valid = vxlan.payload().len() >= ETHERNET && datagram_holds(frame, layers, at, datagram.len());
    valid.then_some(Opened { start, end: start + vxlan.payload().len(), vni: vxlan.vni(), src, ecn })
}

/// Whether the checksum of UDP holds, which begins at `at` and has `len` bytes, if there is one. None is right for tunnels,
/// over IPv6 as well (RFC 6935 section 5).
#[inline]
fn datagram_holds(frame: &[u8], layers: &Layers, at: usize, len: u16) -> bool {
    match frame.get(at..at + usize::from(len)) {
        Some([_, _, _, _, _, _, 0, 0, ..]) => true,
        Some(datagram) => sum_holds(frame, layers, datagram),
        None => false,
    }
}

/// Whether the checksum of UDP holds. Most tunnels have none.
#[cold]
fn sum_holds(frame: &[u8], layers: &Layers, datagram: &[u8]) -> bool {
    let addresses = match (layers.ipv4(frame), layers.ipv6(frame)) {
        (Some(header), _) => Sum::of(&header.source().octets()).plus(Sum::of(&header.destination().octets())),
        (_, Some(header)) => Sum::of(&header.source().octets()).plus(Sum::of(&header.destination().octets())),
        _ => return false,
    };
    let pseudo = addresses.with(protocol::UDP.into()).with(datagram.len() as u32);
    pseudo.plus(Sum::of(datagram)).checksum() == 0
}

/// The congestion mark of an IP packet.
fn ecn(frame: &[u8], layers: &Layers) -> Option<u8> {
    match layers.ether_type() {
        ether_type::IPV4 => layers.ipv4(frame).map(|header| header.ecn()),
        ether_type::IPV6 => layers.ipv6(frame).map(|header| header.ecn()),
        _ => None,
    }
}
