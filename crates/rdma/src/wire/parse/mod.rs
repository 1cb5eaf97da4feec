//! From a frame to a packet: every length and every field that somebody else has written is checked here.
//!
//! * here: Ethernet, and which format it is. `roce`: RoCE v1 and v2. `slurpoe`: SLURPoE.

mod roce;
mod slurpoe;

use super::extended::Missing;
use super::{Format, From, Headers, Known, Packet, Reason, Service, Unknown, slurpoe as lean};
use crate::number::Gid;
use millrace_packet::parse::{Ethernet, Tci, Vlan, ether_type};

/// Of RoCE v1 (A16.2.2.1).
pub(super) const ETHER_TYPE_ROCE: u16 = 0x8915;
/// UDP port of RoCE v2 (A17.3.2).
pub(super) const PORT: u16 = 4791;

/// A frame behind Ethernet and its tag.
#[derive(Clone, Copy)]
struct Link<'a> {
    destination: [u8; 6],
    source: [u8; 6],
    tag: Option<Tci>,
    payload: &'a [u8],
    frame: &'a [u8],
}

/// The packet in a frame without FCS, with at most one VLAN tag, and where it came from.
///
/// Only the lengths of IP, of the global route header and of SLURPoE count: what Ethernet has added behind them is not
/// looked at. That MAC address and GID are those of this end, and that the sender may speak to the queue pair, is for
/// those to check who know them.
///
/// # Errors
/// [`Reason`]: it is no frame of RDMA, or something is wrong with it. Each call that fails is to be counted by whoever
/// calls, in [`super::Counters`].
#[inline]
pub fn parse(frame: &[u8]) -> Result<(Packet<'_>, From<'_>), Reason> {
    let ethernet = Ethernet::parse(frame).map_err(|_| Reason::Ethernet)?;
    let mut link = Link {
        destination: ethernet.destination().0,
        source: ethernet.source().0,
        tag: None,
        payload: ethernet.payload(),
        frame,
    };
    let mut kind = ethernet.ether_type();
    if ether_type::is_tag(kind) {
        let vlan = Vlan::parse(link.payload).map_err(|_| Reason::Ethernet)?;
        (kind, link.tag, link.payload) = (vlan.ether_type(), Some(vlan.tci()), vlan.payload());
    }
    match kind {
        ether_type::IPV4 => roce::over_ipv4(&link),
        ether_type::IPV6 => roce::over_ipv6(&link),
        ETHER_TYPE_ROCE => roce::over_route_header(&link),
        lean::ETHER_TYPE => slurpoe::parse(&link),
        other if ether_type::is_tag(other) => Err(Reason::Tags),
        _ => Err(Reason::NotRdma),
    }
}

impl std::convert::From<Unknown> for Reason {
    fn from(unknown: Unknown) -> Self {
        match unknown {
            Unknown::Service => Self::Service,
            Unknown::Operation => Self::Operation,
        }
    }
}

impl std::convert::From<Missing> for Reason {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::Bytes => Self::ExtendedHeaders,
            Missing::Syndrome => Self::Syndrome,
        }
    }
}

/// What is asked of every packet, whatever its format.
#[inline(always)]
fn check(link: &Link<'_>, known: &Known, source: Gid, payload: &[u8], format: Format) -> Result<(), Reason> {
    let is_group = |mac: [u8; 6]| mac[0] & 1 != 0;
    if is_group(link.source) || link.source == [0; 6] {
        return Err(Reason::SourceMac);
    }
    if is_group(link.destination) && !is_datagram(known) {
        return Err(Reason::GroupMac);
    }
    if !source.is_single() {
        return Err(Reason::SourceAddress);
    }
    if payload.len() > format.most_payload() {
        return Err(Reason::PayloadLength);
    }
    Ok(())
}

#[inline]
fn is_datagram(known: &Known) -> bool {
    known.service == Service::UnreliableDatagram
}

#[inline(always)]
fn headers_of(known: &Known) -> Headers {
    Headers::new(known.service, known.opcode, crate::number::Qpn::new(0), crate::number::Psn::new(0))
}
