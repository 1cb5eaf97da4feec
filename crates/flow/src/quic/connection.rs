//! What is known of one connection.

use super::hello::Hello;
use super::keys::Version;
use super::one_rtt::OneRtt;
use crate::field::MAX_CID;
use millrace_packet::parse::{Fragment, Layers};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Most ids of one connection that are remembered. Peers agree on two or more at a time; most have eight or fewer.
pub const MOST_IDS: usize = 12;
/// Most of them that were only seen on a path.
pub const MOST_ON_PATH: usize = 4;
/// Most paths of one connection that are remembered: the newest, and the one before.
pub const MOST_PATHS: usize = 2;

/// A connection id of 0 to 20 bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    len: u8,
    bytes: [u8; MAX_CID],
}

impl ConnectionId {
    /// This id, if it is no longer than ids of versions 1 and 2 can be (RFC 9000 §17.2).
    pub fn new(id: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_CID];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        Some(Self { len: id.len() as u8, bytes })
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Where a connection's datagrams go to and fro, as seen from the card (RFC 9000 §9 calls it a path).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Address and port of the other side, on the wire.
    pub remote: (IpAddr, u16),
    /// Address and port of the instance.
    pub local: (IpAddr, u16),
}

impl Path {
    /// Path and payload of a UDP packet that comes from the wire; `None`: it is none, or not whole.
    #[inline]
    pub fn received<'f>(layers: &Layers, frame: &'f [u8]) -> Option<(Self, &'f [u8])> {
        let (source, target, datagram) = datagram(layers, frame)?;
        Some((Self { remote: source, local: target }, datagram))
    }

    /// Path and payload of a UDP packet that goes to the wire.
    #[inline]
    pub fn sent<'f>(layers: &Layers, frame: &'f [u8]) -> Option<(Self, &'f [u8])> {
        let (source, target, datagram) = datagram(layers, frame)?;
        Some((Self { remote: target, local: source }, datagram))
    }

    /// Whose entries are counted together: an IPv4 address, or the first 64 bits of an IPv6 address.
    pub(super) fn source(&self) -> IpAddr {
        match self.remote.0 {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
            address => address,
        }
    }
}

/// Address and port.
type Place = (IpAddr, u16);

/// Source, target and payload of a UDP packet that is no fragment.
#[inline]
fn datagram<'f>(layers: &Layers, frame: &'f [u8]) -> Option<(Place, Place, &'f [u8])> {
    let udp = layers.udp(frame)?;
    if layers.fragment() != Fragment::None {
        return None;
    }
    let (source, target) = match layers.ipv4(frame) {
        Some(header) => (IpAddr::V4(header.source()), IpAddr::V4(header.destination())),
        None => {
            let header = layers.ipv6(frame)?;
            (IpAddr::V6(header.source()), IpAddr::V6(header.destination()))
        }
    };
    Some(((source, udp.source_port()), (target, udp.destination_port()), udp.payload()))
}

/// How an id of an instance came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Learned {
    /// The client chose it for its first packets (RFC 9000 §7.2). No short header has it.
    FirstDestination,
    /// The instance named it in a long header.
    Handshake,
    /// The other side wrote to it in a long header, and the instance's packets are not seen.
    OtherSide,
    /// It was in a NEW_CONNECTION_ID frame that could be decrypted.
    NewConnectionId,
    /// It was in a packet on a path that belongs to one instance.
    OnPath,
}

impl Learned {
    /// Whether who writes to it has got what the instance sent.
    pub(super) fn confirms(self) -> bool {
        matches!(self, Self::Handshake | Self::OtherSide | Self::NewConnectionId)
    }
}

/// An id that an instance is written to.
#[derive(Clone, Copy, Debug)]
pub struct OwnId {
    pub id: ConnectionId,
    pub learned: Learned,
    /// Its number, if it came in a NEW_CONNECTION_ID frame.
    pub sequence: Option<u64>,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Whose it is. While `decided` is false, nobody's yet.
    pub instance: u16,
    pub decided: bool,
    /// The other side has written to an id that the instance chose, so its address is no invention.
    pub confirmed: bool,
    /// The instance has answered, and the other side has gone on: on the same path, with the id that it chose for itself. Some
    /// clients never write to the id of the handshake, but at once to one that was issued behind it.
    pub answered: bool,
    pub version: Option<Version>,
    /// What the client first wrote to: keys of Initial packets follow from it.
    pub first_destination: ConnectionId,
    /// The id that the instance writes to.
    pub peer: ConnectionId,
    pub ids: Vec<OwnId>,
    /// Newest first.
    pub paths: [Option<Path>; MOST_PATHS],
    pub source: IpAddr,
    pub opened_ns: u64,
    pub seen_ns: u64,
    /// A ClientHello that is not whole yet.
    pub hello: Option<Box<Hello>>,
    pub random: Option<[u8; 32]>,
    /// Boxed, as few connections have any.
    pub keys: Option<Box<OneRtt>>,
}

impl Connection {
    /// A connection of `instance` on `path`, with nothing else known.
    pub fn new(instance: u16, path: &Path, peer: ConnectionId, now_ns: u64) -> Self {
        Self {
            instance,
            decided: true,
            confirmed: false,
            answered: false,
            version: None,
            first_destination: ConnectionId::default(),
            peer,
            ids: Vec::new(),
            paths: [Some(*path), None],
            source: path.source(),
            opened_ns: now_ns,
            seen_ns: now_ns,
            hello: None,
            random: None,
            keys: None,
        }
    }

    /// Whether it is more than the beginning of a handshake.
    pub fn is_established(&self) -> bool {
        self.confirmed || self.answered
    }

    /// Whether its instance has named an id.
    pub fn has_named(&self) -> bool {
        self.ids.iter().any(|own| own.learned == Learned::Handshake)
    }

    /// Length of the newest id that short headers can have; 0 if there is none.
    pub fn short_len(&self) -> usize {
        let newest = self.ids.iter().rev().find(|own| own.learned != Learned::FirstDestination);
        newest.map_or(0, |own| own.id.as_slice().len())
    }
}
