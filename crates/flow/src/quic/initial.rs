//! Initial packets: their keys follow from what stands in them, so anybody on the way can read them (RFC 9001 §5.2).

use super::keys::{HeaderKey, KeyError, PacketKey, Secret, Side, Version};
use super::protection::{Scratch, unmask};
use millrace_packet::parse::{QuicBody, QuicLong};

/// Most packets of a datagram that are looked at.
pub const MOST_COALESCED: usize = 4;

/// A packet with a long header within a datagram.
#[derive(Clone, Copy, Debug)]
pub struct LongPacket<'a> {
    /// Its header.
    pub header: QuicLong<'a>,
    /// What stands behind the connection ids.
    pub body: QuicBody<'a>,
    /// All of it, from the first byte.
    pub bytes: &'a [u8],
    /// Where its packet number begins in `bytes`, if it has one.
    pub number_at: usize,
}

/// The packets with long headers at the start of a datagram, at most [`MOST_COALESCED`]; ends before what is malformed or
/// has a short header (RFC 9000 §12.2).
pub fn long_packets(datagram: &[u8]) -> impl Iterator<Item = LongPacket<'_>> {
    let mut rest = datagram;
    let packets = std::iter::from_fn(move || {
        let header = QuicLong::parse(rest).ok()?;
        let body = header.body().ok()?;
        let (behind, next) = match body {
            QuicBody::Initial { protected, next, .. }
            | QuicBody::ZeroRtt { protected, next }
            | QuicBody::Handshake { protected, next } => (protected.len() + next.len(), next),
            QuicBody::Retry { .. } | QuicBody::VersionNegotiation(_) | QuicBody::Unknown(_) => (0, &[][..]),
        };
        let number_at = rest.len() - behind;
        let bytes = &rest[..rest.len() - next.len()];
        rest = next;
        Some(LongPacket { header, body, bytes, number_at })
    });
    packets.take(MOST_COALESCED)
}

/// Keys of the Initial packets that one side sends.
#[derive(Debug)]
pub struct InitialKeys {
    version: Version,
    header: HeaderKey,
    packet: PacketKey,
}

impl InitialKeys {
    /// Those of `side` in the connection whose client first wrote to `destination`. This takes longer than to open a packet.
    ///
    /// # Errors
    /// The library refused.
    pub fn new(version: Version, destination: &[u8], side: Side) -> Result<Self, KeyError> {
        let secret = Secret::initial(version, destination, side)?;
        Ok(Self { version, header: secret.header_key()?, packet: secret.packet_key()? })
    }

    /// Decrypts a packet and adds its payload to `scratch.payloads`. Returns whether that was done: otherwise it is of another
    /// version or kind, or these are not its keys.
    fn open(&self, packet: &LongPacket<'_>, scratch: &mut Scratch) -> bool {
        if !matches!(packet.body, QuicBody::Initial { .. })
            || Version::of(packet.header.version()) != Some(self.version)
        {
            return false;
        }
        scratch.packet.clear();
        scratch.packet.extend_from_slice(packet.bytes);
        let Some(unmasked) = unmask(&self.header, &mut scratch.packet, packet.number_at) else { return false };
        // Few Initials are sent in a connection, so all of their numbers are near 0.
        let number = unmasked.number(None);
        let Some(len) = unmasked.try_open(&self.packet, number, &mut scratch.payload) else { return false };
        scratch.payloads.extend_from_slice(&scratch.payload[..len]);
        true
    }
}

/// What is known of the payloads of a datagram's Initial packets, with the keys of the connection whose client first wrote to the
/// id that the first packet has as its destination.
#[derive(Clone, Copy, Debug)]
pub enum Opened<'a> {
    /// Nobody has tried.
    No,
    /// There was no budget left to try.
    Refused,
    /// These are not its keys.
    Failed,
    /// The first one could be opened: the frames of all that could.
    Frames(&'a [u8]),
}

/// Decrypts the Initial packets at the start of a datagram that `side` sent, with the keys of the connection whose client first
/// wrote to `destination`. Keys are derived once.
pub fn open<'s>(datagram: &[u8], destination: &[u8], side: Side, scratch: &'s mut Scratch) -> Opened<'s> {
    scratch.payloads.clear();
    let mut packets = long_packets(datagram);
    let keys = packets.next().and_then(|packet| {
        let version = Version::of(packet.header.version())?;
        let keys = InitialKeys::new(version, destination, side).ok()?;
        keys.open(&packet, scratch).then_some(keys)
    });
    let Some(keys) = keys else { return Opened::Failed };
    for packet in packets {
        keys.open(&packet, scratch);
    }
    Opened::Frames(&scratch.payloads)
}
