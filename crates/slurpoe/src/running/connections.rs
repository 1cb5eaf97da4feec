//! What ends agree on, by datagrams between their general queue pairs: they ask, answer, refuse, and say that it is over.

use super::{EVERYBODY, MOST_TOLD, Peer, Running, SLOT, SLOTS, Stage, format, post_slot};
use crate::address::Address;
use crate::connect::{ASK_AGAIN, Message, QKEY, TOLD, What};
use crate::error::Error;
use crate::transfer::{Failed, Told};
use millrace_rdma::number::{Gid, Moment, Psn, Qpn};
use millrace_rdma::transport::{Attributes, Capabilities, Init, State};
use millrace_rdma::wire::{Path, Service};
use millrace_rdma::work::{Access, Completion as Line, Data, Ended, Flags, Operation, Request, Target};
use std::hash::{BuildHasher, RandomState};

/// What stands before a datagram in its buffer, and where the sender's GID is in it.
const GRH: usize = 40;
const GRH_SOURCE: usize = 8;

impl Running {
    /// Where the connection to another end is; begins one if there is none, or if it is over.
    pub fn connect(&mut self, now: Moment, other: Address) -> Result<Stage, Error> {
        if let Some(why) = &self.broken {
            return Err(Error::Lost(why.clone()));
        }
        if other == self.address {
            return Err(Error::Itself(other));
        }
        if self.peers.get(&other).is_some_and(|peer| peer.is_over || peer.stage == Stage::Refused) {
            self.drop_peer(other, Failed::Flushed);
        }
        if let Some(peer) = self.peers.get(&other) {
            return Ok(peer.stage);
        }
        self.make_room();
        self.add_peer(other)?;
        self.say(other, What::Ask);
        if let Some(peer) = self.peers.get_mut(&other) {
            peer.is_ours = true;
            peer.ask_at = now.nanoseconds() + ASK_AGAIN;
        }
        Ok(Stage::Asking)
    }

    /// The same; one that was refused stays so until it is asked for again.
    pub fn ask(&mut self, now: Moment, other: Address) -> Result<Stage, Error> {
        match self.stage(other) {
            Some(stage @ (Stage::Asking | Stage::Ready)) if self.broken.is_none() => Ok(stage),
            Some(Stage::Refused) => {
                self.drop_peer(other, Failed::Flushed);
                Ok(Stage::Refused)
            }
            _ => self.connect(now, other),
        }
    }

    /// Where it is, without beginning anything.
    pub fn stage(&self, other: Address) -> Option<Stage> {
        self.peers.get(&other).filter(|peer| !peer.is_over).map(|peer| peer.stage)
    }

    /// Ends what is still asked for. Whether it was.
    pub fn stop_asking(&mut self, other: Address) -> bool {
        let is_asking = self.stage(other) == Some(Stage::Asking);
        if is_asking {
            self.drop_peer(other, Failed::Flushed);
        }
        is_asking
    }

    /// Ends a connection; the other end is told.
    pub fn disconnect(&mut self, other: Address) {
        if self.stage(other) == Some(Stage::Ready) {
            self.say(other, What::Over);
        }
        // Whoever says so need not be told.
        if let Some(peer) = self.peers.get_mut(&other) {
            peer.is_over = true;
        }
        self.drop_peer(other, Failed::Flushed);
    }

    /// Tells another end something, or all of them: once, and it may be lost.
    pub fn tell(&mut self, other: Option<Address>, bytes: &[u8]) {
        let all = [&TOLD[..], bytes].concat();
        self.send_datagram(other.unwrap_or(Address(EVERYBODY)), &all);
    }

    /// Tells all other ends that this one goes.
    pub fn say_over(&mut self) {
        let mut all: Vec<Address> = self.peers.keys().copied().collect();
        all.retain(|other| self.stage(*other) == Some(Stage::Ready));
        all.into_iter().for_each(|other| self.say(other, What::Over));
    }

    pub(super) fn give_up(&mut self, other: Address) {
        let Some(qpn) = self.peers.get(&other).map(|peer| peer.qpn) else { return };
        self.is_over(other);
        // There is such a queue pair, and every state leads there.
        let _ = self.engine.modify_qp(qpn, &Attributes::state(State::Error));
    }

    pub(super) fn add_peer(&mut self, other: Address) -> Result<(), Error> {
        if self.peers.len() >= self.most_peers as usize {
            return Err(Error::Peers(self.most_peers));
        }
        let capabilities = Capabilities { send_requests: self.depth, send_pieces: 1, ..Capabilities::default() };
        let init = Init {
            service: Service::ReliableConnection,
            general: false,
            domain: self.domain,
            send_queue: self.lines,
            receive_queue: self.lines,
            shared_receive_queue: Some(self.buffers),
            capabilities,
            signal_all: false,
            context: 0,
        };
        let (qpn, _) = self.engine.create_qp(&init)?;
        let access = Access::REMOTE_READ.with(Access::REMOTE_WRITE);
        let begin =
            Attributes { pkey_index: Some(0), port: Some(1), access: Some(access), ..Attributes::state(State::Init) };
        self.engine.modify_qp(qpn, &begin)?;
        let psn = Psn::new(RandomState::new().hash_one(qpn.value()) as u32 & 0xff_ffff);
        self.counter += 1;
        let peer = Peer {
            stage: Stage::Asking,
            qpn,
            psn,
            count: self.counter,
            opening: 0,
            remote: Qpn::default(),
            remote_count: 0,
            ask_at: 0,
            is_over: false,
            in_flight: 0,
            remote_psn: Psn::new(0),
            is_ours: false,
        };
        self.peers.insert(other, peer);
        self.pairs.insert(qpn, other);
        Ok(())
    }

    /// When there are as many connections as there may be, one of them makes room: one that is over; or the oldest that another
    /// end has asked for, and has not used. An ask costs nothing, and anybody on the wire can make up where it comes from.
    fn make_room(&mut self) {
        if self.peers.len() < self.most_peers as usize {
            return;
        }
        let engine = &self.engine;
        let is_unused = |peer: &Peer| {
            let has_come =
                engine.query_qp(peer.qpn).is_ok_and(|query| query.attributes.receive_psn != Some(peer.remote_psn));
            peer.stage == Stage::Ready && !peer.is_ours && !has_come
        };
        let unused = self.peers.iter().filter(|(_, peer)| peer.is_over || is_unused(peer));
        let first = unused.min_by_key(|(_, peer)| (!peer.is_over, peer.count)).map(|(other, _)| *other);
        if let Some(other) = first {
            self.replaced += 1;
            self.drop_peer(other, Failed::Flushed);
        }
    }

    pub(super) fn drop_peer(&mut self, other: Address, failed: Failed) {
        let Some(qpn) = self.peers.get(&other).map(|peer| peer.qpn) else { return };
        // What has ended is told as it has; the rest ends here. Both are there: neither can fail.
        let _ = self.engine.modify_qp(qpn, &Attributes::state(State::Error));
        self.collect();
        self.fail_all(|pending| pending.qpn == qpn, failed);
        self.is_over(other);
        let _ = self.engine.destroy_qp(qpn);
        self.peers.remove(&other);
        self.pairs.remove(&qpn);
    }

    /// Messages about connections.
    pub(super) fn agree(&mut self, now: Moment) {
        let mut lines = [Line::default(); 16];
        let Ok(count) = self.engine.poll(self.general_lines, &mut lines) else { return };
        for line in &lines[..count] {
            if line.ended != Ended::Receive {
                continue;
            }
            let slot = line.id as usize % SLOTS;
            let mut bytes = [0; SLOT];
            let len = (line.len as usize).clamp(GRH, SLOT);
            let span = self.inbox.span(slot * SLOT, len);
            span.map(|span| span.read_into(&mut bytes[..len]));
            let gid = bytes[GRH_SOURCE..].first_chunk().map(|gid| Gid(*gid));
            let from = gid.and_then(Gid::mac_of_link_local).map(Address).filter(|from| from.is_single());
            // The slot was just taken: there is room for it.
            let _ = post_slot(&mut self.engine, self.general, self.inbox_key, slot);
            let bytes = &bytes[GRH..len];
            match (from.filter(|from| *from != self.address), Message::read(bytes)) {
                (Some(from), Some(message)) => self.heard(now, from, &message),
                (Some(from), None) => self.was_told(from, bytes),
                // What goes to all comes back on some wires.
                (None, _) => self.malformed += 1,
            }
        }
    }

    fn was_told(&mut self, from: Address, bytes: &[u8]) {
        let Some(bytes) = bytes.strip_prefix(TOLD) else {
            self.malformed += 1;
            return;
        };
        if self.told.len() >= MOST_TOLD {
            self.told_dropped += 1;
            return;
        }
        self.told.push_back(Told { from, bytes: bytes.to_vec() });
        self.signal(false);
    }

    fn heard(&mut self, now: Moment, from: Address, message: &Message) {
        match message.what {
            What::Ask => self.asked(from, message),
            What::Answer => self.answered(from, message),
            What::Refused => {
                if let Some(peer) = self.peers.get_mut(&from)
                    && peer.stage == Stage::Asking
                    && (message.receiver_opening, message.receiver_qpn) == (self.opening, peer.qpn)
                {
                    peer.stage = Stage::Refused;
                }
            }
            What::Over => {
                if let Some(peer) = self.peers.get_mut(&from)
                    && peer.stage == Stage::Ready
                    && (message.opening, message.qpn) == (peer.opening, peer.remote)
                    && message.receiver_opening == self.opening
                {
                    // What came before is taken before.
                    self.collect();
                    self.is_over(from);
                    self.engine.lose(now, |path| path.destination_mac == from.0);
                }
            }
        }
    }

    fn asked(&mut self, from: Address, message: &Message) {
        if let Some(peer) = self.peers.get(&from)
            && peer.stage == Stage::Ready
            && peer.opening == message.opening
        {
            if (peer.remote, peer.remote_count) == (message.qpn, message.count) {
                self.say(from, What::Answer);
                return;
            }
            // One that was overtaken on its way.
            if message.count <= peer.remote_count {
                return;
            }
        }
        if self.peers.get(&from).is_some_and(|peer| peer.stage != Stage::Asking || peer.is_over) {
            // The other end has begun anew.
            self.drop_peer(from, Failed::Unreachable);
        }
        let is_known = self.peers.contains_key(&from);
        if !is_known && self.accepts {
            self.make_room();
        }
        if !is_known && (!self.accepts || self.add_peer(from).is_err()) {
            let refusal = Message {
                what: What::Refused,
                mtu: self.mtu,
                opening: self.opening,
                receiver_opening: message.opening,
                qpn: Qpn::default(),
                psn: Psn::new(0),
                receiver_qpn: message.qpn,
                count: 0,
            };
            self.say_this(from, &refusal);
            return;
        }
        self.bring_up(from, message);
        self.say(from, What::Answer);
    }

    fn answered(&mut self, from: Address, message: &Message) {
        if let Some(peer) = self.peers.get(&from)
            && peer.stage == Stage::Asking
            && (message.receiver_opening, message.receiver_qpn) == (self.opening, peer.qpn)
        {
            self.bring_up(from, message);
        }
    }

    fn bring_up(&mut self, other: Address, message: &Message) {
        let path = self.path(other);
        let Some(peer) = self.peers.get_mut(&other) else { return };
        let [receive, send] = message.attributes(path, self.mtu, peer.psn);
        let qpn = peer.qpn;
        (peer.stage, peer.opening) = (Stage::Ready, message.opening);
        (peer.remote, peer.remote_count, peer.remote_psn) = (message.qpn, message.count, message.psn);
        let told = self.engine.modify_qp(qpn, &receive).and_then(|_| self.engine.modify_qp(qpn, &send));
        if told.is_err() {
            peer.stage = Stage::Refused;
        }
    }

    pub(super) fn ask_again(&mut self, now: Moment) {
        let now = now.nanoseconds();
        let due = |peer: &Peer| peer.stage == Stage::Asking && peer.ask_at <= now;
        let Some(other) = self.peers.iter().find(|(_, peer)| due(peer)).map(|(other, _)| *other) else { return };
        self.say(other, What::Ask);
        if let Some(peer) = self.peers.get_mut(&other) {
            peer.ask_at = now + ASK_AGAIN;
        }
    }

    fn say(&mut self, other: Address, what: What) {
        let Some(peer) = self.peers.get(&other) else { return };
        let message = Message {
            what,
            mtu: self.mtu,
            opening: self.opening,
            receiver_opening: peer.opening,
            qpn: peer.qpn,
            psn: peer.psn,
            receiver_qpn: peer.remote,
            count: peer.count,
        };
        self.say_this(other, &message);
    }

    fn say_this(&mut self, other: Address, message: &Message) {
        self.send_datagram(other, &message.write());
    }

    fn send_datagram(&mut self, other: Address, bytes: &[u8]) {
        let target = Target { path: self.path(other), qpn: Qpn::GENERAL, qkey: QKEY };
        let request = Request {
            id: 0,
            operation: Operation::Send,
            data: Data::Inline(&[bytes]),
            flags: Flags::default(),
            target: Some(&target),
        };
        // Where there is no room the message is lost, as on any wire: who asks asks again.
        let _ = self.engine.post_send(self.general, &request);
    }

    fn path(&self, other: Address) -> Path {
        Path {
            format: format(self.wire),
            source_mac: self.address.0,
            destination_mac: other.0,
            source: Gid::link_local(self.address.0),
            destination: Gid::link_local(other.0),
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            source_port: 0xc000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn ask(at: u8) -> (Address, Message) {
        let message = Message {
            what: What::Ask,
            mtu: 1024,
            opening: 7,
            receiver_opening: 0,
            qpn: Qpn::new(20 + u32::from(at)),
            psn: Psn::new(5),
            receiver_qpn: Qpn::default(),
            count: 1,
        };
        (Address([2, 0, 0, 0, 1, at]), message)
    }

    #[test]
    fn asks_of_nobody_do_not_fill_an_endpoint() {
        let folder = tempfile::tempdir().unwrap();
        let port = Some(format!("vhost-user:{}", folder.path().join("wire").display()));
        let address = Some(Address([2, 0, 0, 0, 0, 1]));
        let mut running = Running::open(&Config { port, address, peers: 4, ..Config::default() }).unwrap();
        let now = Moment::new(1);
        for at in 0..2 {
            let (from, message) = ask(at);
            running.heard(now, from, &message);
            assert_eq!(running.stage(from), Some(Stage::Ready));
            running.peers.get_mut(&from).unwrap().is_ours = true;
        }
        for at in 2..200 {
            let (from, message) = ask(at);
            running.heard(now, from, &message);
            assert_eq!(running.stage(from), Some(Stage::Ready), "the newest has a place");
            assert!(running.peers.len() <= 4);
        }
        assert!((0..2).all(|at| running.stage(ask(at).0) == Some(Stage::Ready)), "what is used stays");
        assert_eq!(running.replaced, 196);
    }
}
