//! All other processes that are met, and packets to and from them.
//!
//! Two processes that call each other at once have two sessions ([decision 130](../../../../../docs/decisions/0130-two-sessions.md)). Both
//! send by the same one of them; and what is taken from one ring comes after what the other process has said in other rings before.

use super::LocalError;
use super::session::Session;
use crate::address::Address;
use crate::boundary::Kept;
use crate::place::memory::Reach;
use crate::place::tap::{Tap, Way};
use millrace_rdma::engine::{Engine, Seen};
use millrace_rdma::local::{Peer, Room, Short, Side, Source};
use millrace_rdma::memory::Refused;
use millrace_rdma::number::{Moment, Qpn};
use millrace_rdma::transport::{Origin, Sent};
use millrace_rdma::wire::{Headers, Packet, Path};
use millrace_served::bell;
use rustix::process::Pid;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
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
        // Both ends find the same: the one that the process with the lower address has made; of several of those the newest.
        session.rank = ((session.side == Side::Maker) == (self.own.mac < session.address.mac), self.generation);
        let mac = session.address.mac;
        self.all[place] = Some(session);
        self.generation += 1;
        self.count_of(mac);
        Ok(place)
    }

    /// Sessions with the process that has that MAC address know whether there are several.
    fn count_of(&mut self, mac: [u8; 6]) {
        let of = |session: &&mut Session| session.address.mac == mac;
        let count = self.all.iter_mut().flatten().filter(of).count();
        self.all.iter_mut().flatten().filter(of).for_each(|session| session.is_one_of_many = count > 1);
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
        self.count_of(session.address.mac);
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
            let leads =
                |session: &Session| session.index(&path.destination, path.format).filter(|_| !session.is_broken);
            let first =
                self.iter().find(|(_, session)| leads(session).is_some()).map(|(_, session)| session.address.mac);
            let of = self.iter().filter(|(_, session)| Some(session.address.mac) == first);
            let all = of.filter_map(|(place, session)| leads(session).map(|index| (session.rank, place, index)));
            all.max().map(|(_, place, index)| (place, (source as u8, index)))
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
            count += match &self.all[place] {
                Some(session) if session.is_one_of_many => self.take_in_order(place, now, engine),
                Some(_) => self.take(place, BURST, now, engine),
                None => 0,
            };
        }
        count
    }

    /// Takes at most `most` packets from one of them. How many they were, and what was learned of short SENDs.
    #[inline]
    fn take(&mut self, place: usize, most: u64, now: &mut impl FnMut() -> Moment, engine: &mut Engine<Reach>) -> usize {
        let Some(session) = self.all[place].as_mut().filter(|session| !session.is_broken) else { return 0 };
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
        let came = engine.take_from_ring(now, ring, most, origin, seen);
        *is_broken = came.is_broken;
        self.received += came.packets;
        self.copied += came.bytes;
        self.short_received += came.shorts;
        self.malformed += came.malformed;
        self.generation += u64::from(came.is_broken);
        (came.packets + came.settled) as usize
    }

    /// The same from one of several sessions with a process: what it has said by the others before is heard before.
    #[cold]
    fn take_in_order(&mut self, place: usize, now: &mut impl FnMut() -> Moment, engine: &mut Engine<Reach>) -> usize {
        let mut count = 0;
        for _ in 0..BURST {
            let Some(session) = self.all[place].as_ref().filter(|session| !session.is_broken) else { return count };
            if !session.ring.receiver.has_more() {
                break;
            }
            // Pairs with the Release in `Sender::put`: what the process has said before that line is seen from here on.
            fence(Ordering::Acquire);
            let (heard, is_all) = self.hear_others(place, now, engine);
            count += heard;
            if !is_all {
                return count;
            }
            count += self.take(place, 1, now, engine);
        }
        // Without a packet: it learns which short SENDs were done.
        count + self.take(place, 0, now, engine)
    }

    /// Hears what the process of the session at that place has said by its other sessions: which short SENDs were done, and packets,
    /// if it has sent by them before it sent by this one. How much that was, and whether it was all.
    fn hear_others(
        &mut self,
        place: usize,
        now: &mut impl FnMut() -> Moment,
        engine: &mut Engine<Reach>,
    ) -> (usize, bool) {
        let (mut count, mut is_all) = (0, true);
        let Some((mac, rank)) = self.all[place].as_ref().map(|session| (session.address.mac, session.rank)) else {
            return (count, is_all);
        };
        for other in (0..self.all.len()).filter(|other| *other != place) {
            let of = |session: &&mut Session| session.address.mac == mac && !session.is_broken;
            let Some(session) = self.all[other].as_mut().filter(of) else { continue };
            if session.ring.sender.has_unsettled() {
                count += engine.settle_ring(&mut session.ring) as usize;
            }
            if session.rank < rank {
                count += self.take(other, BURST, now, engine);
                let has_more = |session: &Session| !session.is_broken && session.ring.receiver.has_more();
                is_all &= !self.all[other].as_ref().is_some_and(has_more);
            }
        }
        (count, is_all)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::place::frames::{Frames, Maker, Rings};
    use crate::place::local::session::{Parts, channel};
    use millrace_dma::{Protection, Region};
    use millrace_rdma::engine::Options;
    use millrace_rdma::local::{CHANNEL_LEN, Directory};
    use millrace_rdma::memory::Limits;
    use millrace_rdma::number::Psn;
    use millrace_rdma::transport::{Attributes, Capabilities, Init, State};
    use millrace_rdma::wire::Service;
    use millrace_rdma::work::{Completion, Data, Ended, Extra, Flags, Operation, Request, Status};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// SENDs in a row.
    const ROW: u32 = 2;
    /// What comes is looked for so often before a session that is missing is added.
    const LOOKS: usize = 3;

    /// An end, and the halves of sessions that it has still to add.
    struct End {
        address: Address,
        engine: Engine<Reach>,
        sessions: Sessions,
        maker: Maker,
        send_queue: u32,
        receive_queue: u32,
        qpn: Qpn,
        missing: Vec<(Side, (Session, Peer))>,
        posted: u32,
        ended: u32,
        came: u32,
        now: u64,
    }

    impl End {
        fn new(number: u32) -> Self {
            let address = Address::new(&Config::default(), number);
            let mut memory = Reach::new(Limits::default()).unwrap();
            memory.regions.show_in(Directory::new().unwrap());
            let mut engine = Engine::new(Options { extended: true, ..Options::default() }, memory);
            let domain = engine.create_domain().unwrap();
            let send_queue = engine.create_cq(ROW).unwrap();
            let receive_queue = engine.create_cq(64).unwrap();
            let capabilities = Capabilities { send_requests: 8, receive_requests: 64, ..Capabilities::default() };
            let init = Init {
                service: Service::ReliableConnection,
                general: false,
                domain,
                send_queue,
                receive_queue,
                shared_receive_queue: None,
                capabilities,
                signal_all: true,
                context: 0,
            };
            let (qpn, _) = engine.create_qp(&init).unwrap();
            let (sessions, maker) = (Sessions::new(address), Maker::new(address.mac));
            let (missing, posted, ended, came, now) = (Vec::new(), 0, 0, 0, 0);
            Self { address, engine, sessions, maker, send_queue, receive_queue, qpn, missing, posted, ended, came, now }
        }

        fn connect(&mut self, other: (Address, Qpn)) {
            let path = Session::origin(&other.0, &self.address, (0, 0)).unwrap().path;
            let told = [
                Attributes {
                    pkey_index: Some(0),
                    port: Some(1),
                    access: Some(Default::default()),
                    ..Attributes::state(State::Init)
                },
                Attributes {
                    path: Some(path),
                    path_mtu: Some(1024),
                    remote: Some(other.1),
                    receive_psn: Some(Psn::new(7)),
                    max_dest_rd_atomic: Some(1),
                    min_rnr_timer: Some(1),
                    ..Attributes::state(State::ReadyToReceive)
                },
                Attributes {
                    send_psn: Some(Psn::new(7)),
                    timeout: Some(14),
                    retry_count: Some(7),
                    rnr_retry: Some(7),
                    max_rd_atomic: Some(1),
                    ..Attributes::state(State::ReadyToSend)
                },
            ];
            told.iter().for_each(|told| assert!(self.engine.modify_qp(self.qpn, told).is_ok()));
            (0..64).for_each(|id| self.engine.post_receive(self.qpn, id, &[]).unwrap());
        }

        /// This end's half of a session, which it has still to add.
        fn meet(&mut self, other: &mut Self, (channel, side): (Region, Side), link: Arc<Kept>) {
            let fd = |end: &mut Self| {
                let directory = end.engine.memory().regions.directory().unwrap();
                directory.fd().unwrap().try_clone_to_owned().unwrap()
            };
            let directory = fd(other);
            let word = Peer::word_of_other(channel.window(), side).unwrap();
            let seat = self.engine.memory().regions.directory().unwrap().outside().seat(word).unwrap();
            let (_, bell) = bell::bell().unwrap();
            let parts = Parts { address: other.address, link, pid: None, directory, channel, side, bell, seat };
            self.missing.push((side, Session::new(parts).unwrap()));
        }

        /// Whether it has that half still to add.
        fn misses(&self, side: Side) -> bool {
            self.missing.iter().any(|(other, _)| *other == side)
        }

        fn add(&mut self, side: Side) {
            let place = self.missing.iter().position(|(other, _)| *other == side).unwrap();
            let (_, made) = self.missing.remove(place);
            self.sessions.add(&mut self.engine, made).unwrap();
        }

        fn transmit(&mut self) {
            self.now += 100;
            let now = Moment::new(self.now);
            self.engine.transmit(now, 64, &mut Frames::new(now, None, &mut self.maker, &mut self.sessions));
        }

        fn post(&mut self) {
            let operation = Operation::SendImmediate(self.posted.to_be_bytes());
            let (data, flags) = (Data::Inline(&[&[]]), Flags { signaled: true, ..Flags::default() });
            let request = Request { id: self.posted.into(), operation, data, flags, target: None };
            let mut rings = Rings { maker: &mut self.maker, sessions: &mut self.sessions };
            self.engine.post_send_near(self.qpn, &request, &mut rings).unwrap();
            self.posted += 1;
            self.transmit();
        }

        /// One look. What comes after this end's SENDs answers them: then those have ended.
        fn look(&mut self) {
            let now = Moment::new(self.now);
            self.sessions.receive(&mut || now, &mut self.engine);
            self.transmit();
            let mut lines = [Completion::default(); 8];
            let count = self.engine.poll(self.send_queue, &mut lines).unwrap();
            for line in &lines[..count] {
                assert_eq!((line.status, line.id), (Status::Success, self.ended.into()));
                self.ended += 1;
            }
            let count = self.engine.poll(self.receive_queue, &mut lines).unwrap();
            for line in &lines[..count] {
                let extra = Extra::Immediate(self.came.to_be_bytes());
                assert_eq!((line.status, line.ended, line.extra), (Status::Success, Ended::Receive, extra));
                self.came += 1;
                self.engine.post_receive(self.qpn, 0, &[]).unwrap();
            }
            assert!(
                count == 0 || self.ended == self.posted,
                "{} answered, {} of {} ended",
                count,
                self.ended,
                self.posted
            );
        }
    }

    /// Both have called each other at once, and no session has been added yet.
    fn two_that_call_each_other() -> [End; 2] {
        let mut both = [End::new(0), End::new(1)];
        for maker in 0..2 {
            let ours = channel().unwrap();
            let fd = ours.fd().unwrap().try_clone_to_owned().unwrap();
            let theirs = Region::map_guarded(fd, CHANNEL_LEN, Protection::ReadWrite).unwrap();
            let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            let [one, other] = &mut both;
            let (from, to) = if maker == 0 { (one, other) } else { (other, one) };
            from.meet(to, (ours, Side::Maker), Arc::new(Kept::new(a).unwrap()));
            to.meet(from, (theirs, Side::Taker), Arc::new(Kept::new(b).unwrap()));
        }
        let told = [0, 1].map(|end: usize| (both[end].address, both[end].qpn));
        (0..2).for_each(|end| both[end].connect(told[1 - end]));
        both
    }

    /// The orders in which two sessions may be added: who has taken a channel adds its half before the one that has made it.
    const ORDERS: [[(usize, Side); 4]; 6] = {
        let [t0, m0, t1, m1] = [(1, Side::Taker), (0, Side::Maker), (0, Side::Taker), (1, Side::Maker)];
        [[t0, m0, t1, m1], [t0, t1, m0, m1], [t0, t1, m1, m0], [t1, m1, t0, m0], [t1, t0, m1, m0], [t1, t0, m0, m1]]
    };

    /// Whichever order sessions are added in, and whatever is sent between: all that is sent comes, in order, once, and without being sent again;
    /// and before the answer to a SEND comes, the SEND has ended, as it has where there is one session. Programs with room for one completion
    /// count on that (`ib_send_lat -e`, whose queue was overrun).
    #[test]
    fn answers_come_after_the_ends_of_what_they_answer() {
        const ROUNDS: usize = 8;
        // So many SENDs go between two of them.
        const GAPS: [usize; 3] = [0, 1, 4];
        let gaps = |game: usize| [game % 3, game / 3 % 3, game / 9 % 3].map(|gap| GAPS[gap]);
        let games = (0..6 * 27).map(|game| (ORDERS[game / 27], gaps(game)));
        for (order, gaps) in games {
            let mut both = two_that_call_each_other();
            let (mut next, mut sent) = (0, 0);
            let add_one = |both: &mut [End; 2], next: &mut usize| {
                let (end, side) = order[*next];
                both[end].add(side);
                *next += 1;
            };
            for turn in 0..2 * ROUNDS {
                let (from, to) = (turn % 2, 1 - turn % 2);
                // It sends when its own call was answered, or the one that it has answered knows.
                while both[from].misses(Side::Maker) && both[to].misses(Side::Maker) {
                    add_one(&mut both, &mut next);
                }
                for _ in 0..ROW {
                    both[from].post();
                    sent += 1;
                    if next < order.len() && sent >= gaps[..next.min(3)].iter().sum::<usize>() {
                        add_one(&mut both, &mut next);
                    }
                }
                for look in 0.. {
                    if both[to].came == both[from].posted {
                        break;
                    }
                    assert!(look < 8 * LOOKS, "nothing comes to {to} in turn {turn}: {order:?} {gaps:?}");
                    if look >= LOOKS && next < order.len() {
                        add_one(&mut both, &mut next);
                    }
                    both[to].look();
                }
            }
            assert_eq!(next, order.len());
            for end in &mut both {
                let counters = end.engine.counters();
                assert_eq!(
                    (counters.repeated, counters.out_of_sequence, counters.duplicate),
                    (0, 0, 0),
                    "{order:?} {gaps:?}"
                );
                assert_eq!((counters.completions_lost, counters.kept, end.sessions.dropped), (0, 0, 0));
            }
        }
    }

    #[test]
    fn both_send_by_the_same_session_until_it_ends() {
        for order in ORDERS {
            let mut both = two_that_call_each_other();
            order.iter().for_each(|(end, side)| both[*end].add(*side));
            let way = |end: &End, other: &End| {
                let path = Session::origin(&other.address, &end.address, (0, 0)).unwrap().path;
                let (place, _) = end.sessions.way(&path).session?;
                end.sessions.all[place].as_ref().map(|session| (place, session.side, session.is_one_of_many))
            };
            let [one, other] = &mut both;
            // That which the lower address has made.
            assert_eq!(way(one, other).map(|way| (way.1, way.2)), Some((Side::Maker, true)));
            assert_eq!(way(other, one).map(|way| (way.1, way.2)), Some((Side::Taker, true)));
            for (end, side) in [(&mut *one, Side::Taker), (&mut *other, Side::Maker)] {
                let all = end.sessions.iter();
                let place = all.filter(|(_, session)| session.side != side).map(|(place, _)| place).next().unwrap();
                let (link, _) = end.sessions.link(place).unwrap();
                end.sessions.remove(&mut end.engine, (place, &link), Moment::new(0), false);
            }
            assert_eq!(way(one, other).map(|way| (way.1, way.2)), Some((Side::Taker, false)));
            assert_eq!(way(other, one).map(|way| (way.1, way.2)), Some((Side::Maker, false)));
        }
    }
}
