//! What a rule does with a frame. Actions are done in the order in which they are written, as OpenFlow's apply-actions are:
//! an output gives away the frame as it is at that point.

use crate::field::{Field, Wide};
use crate::vni_map::{Receiver, VniMap};
use std::net::IpAddr;
use std::sync::Arc;

/// UDP port of VXLAN (RFC 7348 section 5).
pub const VXLAN_PORT: u16 = 4789;
/// Largest VNI (RFC 7348 section 5).
pub const MAX_VNI: u32 = (1 << 24) - 1;
/// Longest note, in bytes.
pub const MAX_NOTE: usize = 256;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// `drop`: nothing; stands alone.
    Drop,
    /// `queue:N`: give it to RX queue N of the card.
    Queue(u16),
    /// `rss:N`: give it to the RX queue that group N chooses by its hash.
    Rss(u32),
    /// `balance:N`: send it out of the port that group N chooses by its hash: the numbers of its table are those of ports.
    Balance(u32),
    /// `quic:N`: give it to the RX queue of the instance whose QUIC connection it belongs to, by group N.
    Quic(u32),
    /// `output:N`: send it out of port N, without the host.
    Output(u32),
    /// `in_port`: send it out where it came in.
    InPort,
    /// `set_field:VALUE[/MASK]->FIELD`: write bits of a field. Checksums follow.
    SetField {
        /// The field.
        field: Field,
        /// What to write; bits outside the mask are 0.
        value: Wide,
        /// Which bits to write.
        mask: Wide,
    },
    /// `push_vlan:TPID`: put a VLAN tag with id 0 in front; what was the outer tag becomes the inner one.
    PushVlan(u16),
    /// `pop_vlan`: take the outer VLAN tag away.
    PopVlan,
    /// `push_pppoe:SESSION`: put an IP packet into a PPPoE session.
    PushPppoe(u16),
    /// `pop_pppoe`: take the PPPoE header away.
    PopPppoe,
    /// `dec_ttl`: decrement the time to live; a packet at whose end that is goes to the host with [`Reason::Ttl`].
    DecTtl,
    /// `encap_vxlan(...)`: put the frame into a VXLAN packet.
    EncapVxlan(Box<Vxlan>),
    /// `decap_vxlan`: take the frame out of a VXLAN packet.
    DecapVxlan {
        /// `decap_vxlan(port=N)`: from then on it is as if it had come in at port N.
        port: Option<u32>,
    },
    /// `vxlan_port(...)`: send a copy of the frame in a VXLAN packet, as a port of a switch that is a tunnel does.
    VxlanPort(Box<VxlanPort>),
    /// `vni_map(...)`: give it to whom the map has for its tunnel id, and do nothing of what is behind. One that the map does not have
    /// goes on.
    VniMap(Arc<VniMap>),
    /// `mirror:N`: send a copy out of port N.
    Mirror(u32),
    /// `sample(probability=P,port=N)`: send a copy of P in 65,535 frames out of port N.
    Sample {
        /// How many in 65,535, at least 1.
        probability: u16,
        /// Where to.
        port: u32,
    },
    /// `meter:N`: go on if meter N admits the frame, else drop it.
    Meter(u32),
    /// `punt(reason=R)`: give it to the host's slow path.
    Punt(Reason),
    /// `goto_table:N`: look it up in a later table; stands last.
    GotoTable(u8),
    /// `note:HEX`: nothing; for people and programs that list rules.
    Note(Vec<u8>),
}

/// Why the slow path gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A rule said so.
    Action,
    /// No rule matched.
    NoMatch,
    /// The time to live is at its end.
    Ttl,
    /// The next hop has no address yet.
    Neighbour,
    /// Too long to be sent on.
    Mtu,
    /// One that the author of the rule has numbered.
    Other(u16),
}

impl Reason {
    const NAMED: [(&str, Reason); 5] = [
        ("action", Self::Action),
        ("no_match", Self::NoMatch),
        ("ttl", Self::Ttl),
        ("neighbour", Self::Neighbour),
        ("mtu", Self::Mtu),
    ];

    /// The reason of that name or number.
    pub fn named(text: &str) -> Option<Self> {
        let named = Self::NAMED.iter().find(|(name, _)| *name == text).map(|(_, reason)| *reason);
        named.or_else(|| Some(Self::Other(crate::field::text::number(text)?.try_into().ok()?)))
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Other(number) => number.fmt(f),
            named => {
                let row = Self::NAMED.iter().find(|(_, reason)| reason == named);
                f.write_str(row.map_or("other", |(name, _)| name))
            }
        }
    }
}

/// The outer headers of a VXLAN packet (RFC 7348 section 5).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Vxlan {
    /// The network, up to [`MAX_VNI`]; without, the lower 24 bits of the frame's tunnel id.
    pub vni: Option<u32>,
    /// Outer source address.
    pub src: IpAddr,
    /// Outer destination address, of the same version.
    pub dst: IpAddr,
    /// Outer source MAC address; without, that of the port.
    pub dl_src: Option<u64>,
    /// Outer destination MAC address; without, that of the neighbour with address `dst`.
    pub dl_dst: Option<u64>,
    /// Outer source port; without, one from the hash of the inner headers.
    pub udp_src: Option<u16>,
    /// Outer destination port.
    pub udp_dst: u16,
    /// Outer type of service; without, that of the inner packet.
    pub tos: Option<u8>,
    /// Outer time to live.
    pub ttl: u8,
    /// Whether the outer UDP header has a checksum.
    pub checksum: bool,
}

impl Vxlan {
    /// With what RFC 7348 recommends: checksum 0, port 4789, a source port from the inner headers.
    pub const fn new(vni: u32, src: IpAddr, dst: IpAddr) -> Self {
        Self {
            vni: Some(vni),
            src,
            dst,
            dl_src: None,
            dl_dst: None,
            udp_src: None,
            udp_dst: VXLAN_PORT,
            tos: None,
            ttl: 64,
            checksum: false,
        }
    }
}

/// A port of a switch that is a tunnel. The frame itself stays as it is, and goes on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VxlanPort {
    /// Its number: what has come in there ([`Action::DecapVxlan`]) is not sent back.
    pub number: u32,
    /// The port of the card out of which packets go.
    pub output: u32,
    /// Their outer headers.
    pub outer: Vxlan,
}

/// What becomes of a frame, as algorithm 1 of the source has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Nobody gets it. Copies by `mirror` and `sample` do not count.
    Drop,
    /// Only ports get it.
    Forward,
    /// A queue of the host gets it, or its slow path; perhaps ports as well.
    Process,
}

impl Class {
    /// What becomes of a frame with these actions. A meter may still drop it.
    pub fn of<'a>(actions: impl IntoIterator<Item = &'a Action>) -> Self {
        let class = |action: &Action| match action {
            Action::Queue(_) | Action::Rss(_) | Action::Quic(_) | Action::Punt(_) => Self::Process,
            Action::VniMap(map) if map.runs().iter().any(|run| matches!(run.first, Receiver::Queue(_))) => {
                Self::Process
            }
            Action::Output(_) | Action::InPort | Action::VniMap(_) | Action::VxlanPort(_) | Action::Balance(_) => {
                Self::Forward
            }
            _ => Self::Drop,
        };
        actions.into_iter().map(class).max_by_key(|class| *class as u8).unwrap_or(Self::Drop)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Forward => "forward",
            Self::Process => "process",
        }
    }
}

impl Action {
    /// Whether other headers come first afterwards, so that the frame has to be looked at again before another table.
    pub fn changes_layers(&self) -> bool {
        matches!(self, Self::PushPppoe(_) | Self::PopPppoe | Self::EncapVxlan(_) | Self::DecapVxlan { .. })
    }
}
