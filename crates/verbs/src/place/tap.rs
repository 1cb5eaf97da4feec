//! Copies of packets for `millrace rdma capture`: who sends or takes a packet adds a copy, under the lock that it has anyway; the helper
//! thread passes them on. Nobody ever waits for whoever reads them: what there is no room for is counted.
//!
//! A message to the reader is a head and whole records, numbers in little-endian order:
//!
//! ```text
//! head    "mrtap001" | dropped: u64 | requests without packets: u64 | MAC address | 2 bytes of 0 | since when: u64
//! record  nanoseconds since 1970: u64 | bytes: u32 | flags: u32 | frame
//! ```

use super::Running;
use crate::boundary::Kept;
use millrace_rdma::number::Qpn;
use millrace_rdma::transport::Origin;
use millrace_rdma::wire::{Packet, Path, Prepared};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::SystemTime;

const MAGIC: &[u8; 8] = b"mrtap001";
const HEAD: usize = 40;
const RECORD: usize = 16;
/// Bytes that wait for the helper thread.
const MOST: usize = 4 << 20;
/// Bytes of records in one message, unless one is longer.
const MESSAGE: usize = 48 << 10;
/// A UDP port for packets that had none: the first of those that RoCE uses.
const PORT: u16 = 0xc000;

/// Flags of a record.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// It was sent.
    Sent = 0,
    /// It came.
    Came = 1,
}

/// What waits for the helper thread.
pub(crate) struct Tap {
    link: Arc<Kept>,
    since: u64,
    records: Vec<u8>,
    dropped: u64,
}

impl Tap {
    /// For whoever reads from that socket.
    pub fn new(link: Arc<Kept>) -> Self {
        Self { link, since: now(), records: Vec::with_capacity(MOST), dropped: 0 }
    }

    /// A frame.
    #[cold]
    pub fn frame(&mut self, way: Way, frame: &[u8]) {
        if let Some(room) = self.room(way, frame.len()) {
            room.copy_from_slice(frame);
        }
    }

    /// A packet that went by a ring, as the frame that it would have been.
    pub fn packet(&mut self, way: Way, path: &Path, packet: &Packet<'_>) {
        let path = Path { source_port: PORT, ..*path };
        let Ok(prepared) = Prepared::new(&path) else { return };
        let Ok(len) = prepared.frame_len(&packet.headers, packet.payload.len()) else { return };
        let Some(room) = self.room(way, len) else { return };
        // In RoCE only datagrams name their source, and these say it in their headers.
        if let Ok(mut open) = prepared.open(Qpn::new(0), &packet.headers, packet.payload.len(), room) {
            open.payload().copy_from_slice(packet.payload);
            open.close();
        }
    }

    /// The same, of one that came from there.
    #[cold]
    pub fn came(&mut self, from: &Origin, packet: &Packet<'_>) {
        self.packet(Way::Came, &from.path.reversed(), packet);
    }

    /// Room for a frame, behind its head.
    fn room(&mut self, way: Way, len: usize) -> Option<&mut [u8]> {
        let from = self.records.len();
        if from + RECORD + len > MOST {
            self.dropped += 1;
            return None;
        }
        self.records.extend_from_slice(&now().to_le_bytes());
        self.records.extend_from_slice(&(len as u32).to_le_bytes());
        self.records.extend_from_slice(&(way as u32).to_le_bytes());
        self.records.resize(from + RECORD + len, 0);
        self.records.get_mut(from + RECORD..)
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64)
}

/// What the helper thread passes on.
pub(crate) struct Batch {
    link: Arc<Kept>,
    mac: [u8; 6],
    since: u64,
    records: Vec<u8>,
    /// Bytes of them that are sent.
    sent: usize,
    /// Packets that were dropped, and requests that needed none.
    counts: [u64; 2],
    /// The same, as the reader knows them.
    said: Option<[u64; 2]>,
}

impl Batch {
    /// Of the end with that MAC address.
    pub fn new(link: Arc<Kept>, mac: [u8; 6]) -> Self {
        Self { link, mac, since: now(), records: Vec::with_capacity(MOST), sent: 0, counts: [0; 2], said: None }
    }

    /// Takes what waits, when all of this is sent. Whether there is something to say.
    pub fn refill(&mut self, running: &mut Running) -> bool {
        if !self.is_sent() {
            return true;
        }
        self.records.clear();
        self.sent = 0;
        let reached = running.engine.memory().peers.counts();
        if let Some(tap) = &mut running.sessions.tap {
            core::mem::swap(&mut tap.records, &mut self.records);
            self.counts = [tap.dropped, reached.mapped + reached.system];
        }
        !self.records.is_empty() || self.said != Some(self.counts)
    }

    /// Whether all of it is sent.
    pub fn is_sent(&self) -> bool {
        self.sent >= self.records.len()
    }

    pub fn link(&self) -> &Kept {
        &self.link
    }

    /// Whether nobody reads any more.
    pub fn is_over(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut [PollFd::new(&*self.link, PollFlags::RDHUP)], Some(&now)), Ok(0))
    }

    /// Sends at most `most` messages of it, without waiting: [`Errno::AGAIN`] if there is no room.
    pub fn send(&mut self, most: usize) -> Result<(), Errno> {
        for _ in 0..most {
            let len = whole(&self.records[self.sent..]);
            self.send_one(len)?;
            self.sent += len;
            if self.is_sent() {
                break;
            }
        }
        Ok(())
    }

    fn send_one(&mut self, len: usize) -> Result<(), Errno> {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(MAGIC);
        head[8..16].copy_from_slice(&self.counts[0].to_le_bytes());
        head[16..24].copy_from_slice(&self.counts[1].to_le_bytes());
        head[24..30].copy_from_slice(&self.mac);
        head[32..40].copy_from_slice(&self.since.to_le_bytes());
        let parts = [IoSlice::new(&head), IoSlice::new(&self.records[self.sent..][..len])];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&*self.link, &parts, &mut SendAncillaryBuffer::default(), flags)?;
        self.said = Some(self.counts);
        Ok(())
    }
}

/// Bytes of the records that one message takes: at least one, if there is one.
fn whole(records: &[u8]) -> usize {
    let mut end = 0;
    while let Some(len) = records.get(end + 8..end + 12).and_then(|len| len.try_into().ok()) {
        let next = end + RECORD + u32::from_le_bytes(len) as usize;
        if next > MESSAGE && end > 0 {
            break;
        }
        end = next;
    }
    end
}

/// Nobody moves the protocol on any more: what waits is sent as far as there is room.
pub(super) fn finish(running: &mut Running, mac: [u8; 6]) {
    let Some(tap) = &running.sessions.tap else { return };
    let since = tap.since;
    let mut batch = Batch { since, ..Batch::new(tap.link.clone(), mac) };
    batch.refill(running);
    // Who does not read loses it.
    let _ = batch.send(usize::MAX);
    running.sessions.tap = None;
}
