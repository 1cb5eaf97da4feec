//! What an instance sends says which ids are its own.

use super::connection::{Connection, ConnectionId, Learned, OwnId, Path};
use super::initial::long_packets;
use super::keys::{Side, Version};
use super::one_rtt::Direction;
use super::protection::Scratch;
use super::steering::Steering;
use millrace_packet::parse::{QuicFrame, QuicFrames, QuicLong, QuicType};
use std::sync::Arc;

/// First bit of a long header (RFC 8999 §5.1).
const LONG: u8 = 0x80;
/// Most NEW_CONNECTION_ID frames of a packet that are looked at.
const MOST_NEW_IDS: usize = 8;

impl Steering {
    /// Learns from a datagram that `instance` sends: the payload of UDP, and the path on which it leaves.
    pub fn sent(&mut self, now_ns: u64, instance: u16, path: &Path, datagram: &[u8]) {
        let Some(sealed) = self.sent_in_clear(now_ns, instance, path, datagram) else { return };
        let mut scratch = std::mem::take(&mut self.scratch);
        let issued = sealed.open(datagram, &mut scratch);
        self.scratch = scratch;
        self.issued(&sealed, issued);
    }

    /// Learns what can be learned without keys. Returned is a packet for which there are keys: nobody decrypts while he has the
    /// table.
    pub(super) fn sent_in_clear(&mut self, now_ns: u64, instance: u16, path: &Path, datagram: &[u8]) -> Option<Sealed> {
        self.table.expire(now_ns);
        if usize::from(instance) >= self.setup.config.queues.len() {
            return None;
        }
        let mut end = 0;
        for packet in long_packets(datagram) {
            end += packet.bytes.len();
            self.sent_long(now_ns, instance, path, &packet.header);
        }
        // The last packet of a datagram may have a short header; servers issue their first ids in such a one.
        let last = &datagram[end..];
        let is_short = last.first().is_some_and(|first| first & LONG == 0);
        let sealed = if is_short { self.sent_short(now_ns, instance, path, last, end) } else { None };
        self.table.publish();
        sealed
    }

    fn sent_long(&mut self, now_ns: u64, instance: u16, path: &Path, header: &QuicLong<'_>) {
        let Some(version) = Version::of(header.version()) else { return };
        let (Some(own), Some(peer)) = (ConnectionId::new(header.source()), ConnectionId::new(header.destination()))
        else {
            return;
        };
        let Some(at) = self.connection_of(now_ns, instance, path, own, peer) else { return };
        if let Some(connection) = self.table.get_mut(at) {
            // The server chooses the version of the connection (RFC 9368 §2.3).
            connection.version = Some(version);
        }
        // 0-RTT packets have the ids of the Initial before them.
        if header.kind() == Some(QuicType::ZeroRtt) {
            return;
        }
        if header.source().is_empty() {
            self.table.set_without_id(at, path);
        }
        self.table.add_id(at, OwnId { id: own, learned: Learned::Handshake, sequence: None });
    }

    /// The connection of a packet with a long header; one that is not known is entered.
    fn connection_of(
        &mut self,
        now_ns: u64,
        instance: u16,
        path: &Path,
        own: ConnectionId,
        peer: ConnectionId,
    ) -> Option<u32> {
        let is_of = |at: &u32| {
            self.table.get(*at).is_some_and(|connection| connection.decided && connection.instance == instance)
        };
        let by_peer = self.table.find_peer(path, peer.as_slice()).filter(is_of);
        let by_own = || self.table.find(own.as_slice()).map(|(at, _)| at).filter(is_of);
        match by_peer.or_else(by_own) {
            Some(at) => {
                self.table.touch(at, now_ns, false);
                Some(at)
            }
            None => self.table.insert(Connection::new(instance, path, peer, now_ns)),
        }
    }

    /// With the keys of the server, ids that it issues are read.
    fn sent_short(&mut self, now_ns: u64, instance: u16, path: &Path, packet: &[u8], begin: usize) -> Option<Sealed> {
        let (at, id_len) = self.table.find_sent(&packet[1..], path)?;
        let connection =
            self.table.get(at).filter(|connection| connection.decided && connection.instance == instance)?;
        let keys = connection.keys.as_ref().and_then(|keys| keys.of(Side::Server)).map(Arc::clone);
        self.table.touch(at, now_ns, false);
        Some(Sealed { at, begin, id_len, keys: keys? })
    }

    /// Remembers ids that were issued in a packet, if the connection is still the one with these keys.
    pub(super) fn issued(&mut self, sealed: &Sealed, issued: Vec<Issued>) {
        let has = self.table.get(sealed.at).and_then(|connection| connection.keys.as_ref()?.of(Side::Server));
        if !has.is_some_and(|keys| Arc::ptr_eq(keys, &sealed.keys)) {
            return;
        }
        for Issued { sequence, retire_prior_to, id } in issued {
            let own = OwnId { id, learned: Learned::NewConnectionId, sequence: Some(sequence) };
            self.table.add_id(sealed.at, own);
            self.table.retire(sealed.at, retire_prior_to);
        }
        self.table.publish();
    }
}

/// A packet with a short header that an instance sends, and its keys.
pub(super) struct Sealed {
    at: u32,
    /// Where in the datagram it begins.
    begin: usize,
    id_len: usize,
    keys: Arc<Direction>,
}

/// An id from a NEW_CONNECTION_ID frame (RFC 9000 §19.15).
pub(super) struct Issued {
    sequence: u64,
    retire_prior_to: u64,
    id: ConnectionId,
}

impl Sealed {
    /// The ids that are issued in it.
    pub(super) fn open(&self, datagram: &[u8], scratch: &mut Scratch) -> Vec<Issued> {
        let packet = datagram.get(self.begin..).unwrap_or_default();
        let Some(len) = self.keys.open(packet, self.id_len, scratch) else { return Vec::new() };
        let frames = QuicFrames::new(&scratch.payload[..len]).flatten();
        let issued = frames.filter_map(|frame| match frame {
            QuicFrame::NewConnectionId { sequence, retire_prior_to, id } => {
                Some(Issued { sequence, retire_prior_to, id: ConnectionId::new(id)? })
            }
            _ => None,
        });
        issued.take(MOST_NEW_IDS).collect()
    }
}
