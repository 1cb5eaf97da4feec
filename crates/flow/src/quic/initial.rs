//! Initial packets: their keys follow from what stands in them, so anybody on the way can read them (RFC 9001 §5.2).

use super::keys::{Secret, Side, Version};
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

/// Decrypts an Initial packet that `side` sent, with the keys of the connection whose client first wrote to `destination`.
/// The payload is in `scratch`, as long as is returned. `None`: it is of another version or kind, or these are not its keys.
pub fn open(packet: &LongPacket<'_>, destination: &[u8], side: Side, scratch: &mut Scratch) -> Option<usize> {
    let QuicBody::Initial { .. } = packet.body else { return None };
    let secret = Secret::initial(Version::of(packet.header.version())?, destination, side).ok()?;
    scratch.packet.clear();
    scratch.packet.extend_from_slice(packet.bytes);
    let unmasked = unmask(&secret.header_key().ok()?, &mut scratch.packet, packet.number_at)?;
    // Few Initials are sent in a connection, so all of their numbers are near 0.
    let number = unmasked.number(None);
    unmasked.try_open(&secret.packet_key().ok()?, number, &mut scratch.payload)
}
