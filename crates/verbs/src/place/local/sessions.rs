//! All other processes that are met, and packets to and from them.

use super::LocalError;
use super::session::Session;
use crate::address::Address;
use crate::boundary::Kept;
use crate::place::memory::Reach;
use crate::place::tap::{Tap, Way};
use millrace_rdma::engine::{Engine, Seen};
use millrace_rdma::local::{Peer, Room, Short, Source};
use millrace_rdma::memory::Refused;
use millrace_rdma::number::{Moment, Qpn};
use millrace_rdma::transport::{Origin, Sent};
use millrace_rdma::wire::{Headers, Packet, Path};
use millrace_served::bell;
use rustix::process::Pid;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Most of them.
const MOST: usize = 64;
/// Packets that are taken from one at a call.
const BURST: u64 = 64;
/// Bursts that are taken from one that has ended: more than a ring holds.
const LAST: usize = 32;
/// How long a process that was put out is kept out, and how many are remembered.
const KEPT_OUT: Duration = Duration::from_secs(10);
const MOST_KEPT_OUT: usize = 64;
/// A process that has taken nothing for so long, in nanoseconds, gets nothing more until it does; what is lost is sent again, and
/// retries count.
const PATIENCE: u64 = 100_000_000;

/// Which way a queue pair's packets go: the session, and between which GIDs. It holds as long as `generation` is the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct Go {
    pub generation: u64,
    pub session: Option<(usize, (u8, u8))>,
}

/// The other processes.
pub struct Sessions {
    own: Address,
    all: Vec<Option<Session>>,
    /// Changes with every session that begins or ends, and with every path.
    pub generation: u64,
    /// Packets that a process had no room for, for too long.
    pub dropped: u64,
    /// Packets by rings, both ways.
    pub sent: u64,
    pub received: u64,
    /// Bytes of payload copied into rings and out of them.
    pub copied: u64,
    /// Those of them that were short SENDs, and were not answered.
    pub short_sent: u64,
    pub short_received: u64,
    /// Something was sent to one of them since others were woken.
    has_sent: bool,
    /// Processes that were put out.
    pub put_out: u64,
    /// The last of them, and when that was.
    kept_out: VecDeque<(Option<Pid>, Moment)>,
    /// Packets that were none, or between GIDs that there are not.
    pub malformed: u64,
    /// Where copies of packets go, by rings and in frames, while somebody captures them.
    pub tap: Option<Box<Tap>>,
}

impl Sessions {
    /// None yet, of the end with that address.
    pub fn new(own: Address) -> Self {
        Self {
            own,
            all: Vec::new(),
            generation: 1,
            dropped: 0,
            sent: 0,
            received: 0,
            copied: 0,
            short_sent: 0,
            short_received: 0,
            has_sent: false,
            put_out: 0,
            kept_out: VecDeque::new(),
            malformed: 0,
            tap: None,
        }
    }

    /// One more, and where it is.
    pub fn add(
        &mut self,
        engine: &mut Engine<Reach>,
        (mut session, peer): (Session, Peer),
    ) -> Result<usize, LocalError> {
        let place = match self.all.iter().position(Option::is_none) {
            Some(place) => place,
            None if self.all.len() < MOST => {
                self.all.push(None);
                self.all.len() - 1
            }
            None => return Err(LocalError::Full),
        };
        let memory = engine.memory();
        let gids: Vec<_> = session.gids.iter().map(|(gid, _)| *gid).collect();
        session.peer = memory.peers.add(&gids, peer).ok_or(LocalError::Full)?;
        self.all[place] = Some(session);
        self.generation += 1;
        Ok(place)
    }

    /// One fewer, if the one at that place is still the one with that socket. If its process has ended, so has what waits for it.
    pub fn remove(
        &mut self,
        engine: &mut Engine<Reach>,
        (place, link): (usize, &Arc<Kept>),
        now: Moment,
        has_ended: bool,
    ) {
        if !self.link(place).is_some_and(|(now_there, _)| Arc::ptr_eq(&now_there, link)) {
            return;
        }
        // What it has said last counts: an answer to the last request of a program that has ended as it should.
        for _ in 0..LAST {
            if self.receive(&mut || now, engine) == 0 {
                break;
            }
        }
        self.settle(engine);
        let Some(session) = self.all.get_mut(place).and_then(Option::take) else { return };
        self.generation += 1;
        let memory = engine.memory();
        drop(memory.peers.remove(session.peer));
        let is_met = self.all.iter().flatten().any(|other| other.address == session.address);
        if has_ended && !is_met {
            engine.lose(now, |path| session.gids.iter().any(|(gid, _)| *gid == path.destination));
        }
    }

    /// Sessions end whose process was waited for in vain too often when memory was to be taken away; for a while there is no other
    /// one with it. Its packets are frames.
    pub fn put_out(&mut self, engine: &mut Engine<Reach>, now: Moment) {
        for place in 0..self.all.len() {
            let Some(session) = self.all[place].as_ref().filter(|session| session.seat.is_to_leave()) else { continue };
            let (pid, link) = (session.pid, session.link.clone());
            self.put_out += 1;
            self.kept_out.truncate(MOST_KEPT_OUT - 1);
            self.kept_out.push_front((pid, now));
            self.remove(engine, (place, &link), now, false);
        }
    }

    /// Whether that process was put out lately.
    pub fn is_kept_out(&self, pid: Option<Pid>, now: Moment) -> bool {
        // Those without a number here, of other containers, are not told apart.
        pid.is_some() && self.kept_out.iter().any(|(other, since)| *other == pid && now.since(*since) < KEPT_OUT)
    }

    /// The session with the process that has that MAC address.
    pub fn of_mac(&self, mac: [u8; 6]) -> Option<(usize, &Session)> {
        self.iter().find(|(_, session)| session.address.mac == mac)
    }

    /// Whether there are other processes.
    #[inline]
    pub fn is_any(&self) -> bool {
        !self.all.is_empty()
    }

    /// Whether one of them has sent something.
    #[inline]
    pub fn has_some(&self) -> bool {
        self.all.iter().flatten().any(|session| !session.is_broken && session.ring.receiver.has_more())
    }

    /// Places, used or not.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The socket of one, and its number among those whose memory is reached.
    pub fn link(&self, place: usize) -> Option<(Arc<Kept>, usize)> {
        let session = self.all.get(place)?.as_ref()?;
        Some((session.link.clone(), session.peer))
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Session)> {
        self.all.iter().enumerate().filter_map(|(place, session)| session.as_ref().map(|session| (place, session)))
    }

    /// Which way packets go is to be found anew: a queue pair is told a path.
    pub fn forget_ways(&mut self) {
        self.generation += 1;
    }

    /// Which way packets go.
    pub fn way(&self, path: &Path) -> Go {
        let own = &self.own;
        let source = (0..crate::address::GIDS).find(|index| own.gid(*index) == Some((path.source, path.format)));
        let session = source.and_then(|source| {
            self.iter().filter(|(_, session)| !session.is_broken).find_map(|(place, session)| {
                session.index(&path.destination, path.format).map(|index| (place, (source as u8, index)))
            })
        });
        Go { generation: self.generation, session }
    }

    /// Sends a packet. None: it has to go as a frame.
    #[inline]
    pub fn send(
        &mut self,
        now: Moment,
        (place, gids): (usize, (u8, u8)),
        headers: &Headers,
        to: &mut [u8],
        fill: impl FnOnce(&mut [u8]) -> Result<(), Refused>,
    ) -> Sent {
        let Some(session) = self.all.get_mut(place).and_then(Option::as_mut) else { return Sent::Busy };
        match session.ring.sender.has_room(to.len()) {
            Room::Sent => session.full_since = None,
            Room::None => {
                let since = *session.full_since.get_or_insert(now.nanoseconds());
                let is_dead = now.nanoseconds().saturating_sub(since) > PATIENCE;
                self.dropped += u64::from(is_dead);
                return if is_dead { Sent::Taken } else { Sent::Busy };
            }
            Room::Never => {
                self.dropped += 1;
                return Sent::Taken;
            }
        }
        if let Err(refused) = fill(to) {
            return Sent::Refused(refused);
        }
        let is_sent = session.ring.sender.send(headers, gids, to) == Room::Sent;
        self.sent += u64::from(is_sent);
        self.copied += to.len() as u64;
        self.dropped += u64::from(!is_sent);
        (session.has_sent, self.has_sent) = (true, true);
        if let Some(tap) = &mut self.tap {
            show(tap, &session.address, &self.own, gids, &Packet { headers: *headers, payload: to });
        }
        Sent::Taken
    }

    /// Sends a short SEND. False: it is to be a packet.
    #[inline(always)]
    pub fn send_short(
        &mut self,
        (place, gids): (usize, (u8, u8)),
        source: Source,
        short: &Short,
        payload: &[u8],
    ) -> bool {
        let Some(session) = self.all.get_mut(place).and_then(Option::as_mut) else { return false };
        let heard = session.ring.receiver.heard();
        if session.ring.sender.send_short(source, short, gids, heard, payload) != Room::Sent {
            return false;
        }
        session.full_since = None;
        (self.sent, self.short_sent) = (self.sent + 1, self.short_sent + 1);
        self.copied += payload.len() as u64;
        (session.has_sent, self.has_sent) = (true, true);
        if let Some(tap) = &mut self.tap {
            show(tap, &session.address, &self.own, gids, &Packet { headers: short.headers(), payload });
        }
        true
    }

    /// Something waits for all short SENDs to one of them.
    pub fn hurry(&mut self, place: usize) {
        if let Some(session) = self.all.get_mut(place).and_then(Option::as_mut) {
            session.ring.sender.hurry();
        }
    }

    /// Learns which short SENDs were done: before requests end that were not.
    pub fn settle(&mut self, engine: &mut Engine<Reach>) {
        for session in self.all.iter_mut().flatten().filter(|session| !session.is_broken) {
            engine.settle_ring(&mut session.ring);
        }
    }

    /// Whether it is not known of some short SENDs whether they were done.
    pub fn has_unsettled(&self) -> bool {
        self.all.iter().flatten().any(|session| !session.is_broken && session.ring.sender.has_unsettled())
    }

    /// A queue pair begins anew: nobody's answers to what it has sent before count.
    pub fn forget(&mut self, number: Qpn) {
        for session in self.all.iter_mut().flatten() {
            session.ring.sender.forget(number);
        }
    }

    /// Wakes those that sleep, of those to which something was sent.
    #[inline]
    pub fn wake(&mut self) {
        if !core::mem::replace(&mut self.has_sent, false) {
            return;
        }
        for session in self.all.iter_mut().flatten().filter(|session| session.has_sent) {
            session.has_sent = false;
            if session.ring.sender.must_wake() {
                bell::ring(&session.bell);
            }
        }
    }

    /// Takes packets, and learns which short SENDs were done. How many both were. The time is asked for when it is needed.
    #[inline]
    pub fn receive(&mut self, now: &mut impl FnMut() -> Moment, engine: &mut Engine<Reach>) -> usize {
        let mut count = 0;
        for place in 0..self.all.len() {
            let Some(session) = self.all[place].as_mut().filter(|session| !session.is_broken) else { continue };
            let Session { ring, address, is_broken, .. } = session;
            let origin = |gids| Session::origin(address, &self.own, gids);
            let mut copy;
            let seen: Option<Seen<'_>> = match &mut self.tap {
                None => None,
                Some(tap) => {
                    copy = |from: &Origin, packet: &Packet<'_>| tap.came(from, packet);
                    Some(&mut copy)
                }
            };
            let came = engine.take_from_ring(now, ring, BURST, origin, seen);
            *is_broken = came.is_broken;
            self.received += came.packets;
            self.copied += came.bytes;
            self.short_received += came.shorts;
            self.malformed += came.malformed;
            self.generation += u64::from(came.is_broken);
            count += (came.packets + came.settled) as usize;
        }
        count
    }

    /// Says to all that this process sleeps. Returns whether nothing has come meanwhile.
    pub fn doze(&self) -> bool {
        self.all.iter().flatten().filter(|session| !session.is_broken).all(|session| session.ring.receiver.doze())
    }
}

/// Keeps a copy of a packet that was sent between these two of the GIDs.
#[cold]
fn show(tap: &mut Tap, theirs: &Address, ours: &Address, (own, other): (u8, u8), packet: &Packet<'_>) {
    if let Some(origin) = Session::origin(theirs, ours, (other, own)) {
        tap.packet(Way::Sent, &origin.path, packet);
    }
}
