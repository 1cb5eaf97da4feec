//! What an instance sends says which ids are its own.

use super::connection::{Connection, ConnectionId, Learned, OwnId, Path};
use super::initial::long_packets;
use super::keys::{Side, Version};
use super::steering::Steering;
use millrace_packet::parse::{QuicFrame, QuicFrames, QuicLong, QuicType};

/// First bit of a long header (RFC 8999 §5.1).
const LONG: u8 = 0x80;
/// Most NEW_CONNECTION_ID frames of a packet that are looked at.
const MOST_NEW_IDS: usize = 8;

impl Steering {
    /// Learns from a datagram that `instance` sends: the payload of UDP, and the path on which it leaves.
    pub fn sent(&mut self, now_ns: u64, instance: u16, path: &Path, datagram: &[u8]) {
        self.table.expire(now_ns);
        if usize::from(instance) >= self.config.queues.len() {
            return;
        }
        let mut end = 0;
        for packet in long_packets(datagram) {
            end += packet.bytes.len();
            self.sent_long(now_ns, instance, path, &packet.header);
        }
        // The last packet of a datagram may have a short header; servers issue their first ids in such a one.
        let last = &datagram[end..];
        if last.first().is_some_and(|first| first & LONG == 0) {
            self.sent_short(now_ns, instance, path, last);
        }
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
    fn sent_short(&mut self, now_ns: u64, instance: u16, path: &Path, datagram: &[u8]) {
        let Some((at, id_len)) = self.table.find_sent(&datagram[1..], path) else { return };
        let Some(connection) = self.table.get_mut(at) else { return };
        if !connection.decided || connection.instance != instance {
            return;
        }
        let opened =
            connection.keys.as_mut().and_then(|keys| keys.open(Side::Server, datagram, id_len, &mut self.scratch));
        self.table.touch(at, now_ns, false);
        let Some(len) = opened else { return };
        let frames = QuicFrames::new(&self.scratch.payload[..len]).flatten();
        let new_ids = frames.filter_map(|frame| match frame {
            QuicFrame::NewConnectionId { sequence, retire_prior_to, id } => {
                Some((sequence, retire_prior_to, ConnectionId::new(id)?))
            }
            _ => None,
        });
        for (sequence, retire_prior_to, id) in new_ids.take(MOST_NEW_IDS) {
            self.table.add_id(at, OwnId { id, learned: Learned::NewConnectionId, sequence: Some(sequence) });
            self.table.retire(at, retire_prior_to);
        }
    }
}
