//! Connections with endpoints on the wire: the backend agrees with them as an endpoint of SLURPoE does
//! ([`millrace_slurpoe::connect`]), for each of its guests.
//!
//! A guest that asks for a connection waits for its answer until the other end has answered, or has not for a while; nobody else waits.

use crate::Address;
use crate::backend::Backend;
use crate::meeting::MOST_PEERS;
use crate::message::{MOST_TOLD, Message, pair_words};
use crate::port::{Said, path};
use millrace_rdma::number::{Moment, Psn, Qpn};
use millrace_rdma::served::{Number, ServeError};
use millrace_rdma::transport::{Attributes, Capabilities, Init, State};
use millrace_rdma::work::Access;
use millrace_slurpoe::connect::{ASK_AGAIN, Message as Agreed, TOLD, What};
use rustix::io::Errno;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// How long an endpoint is asked before the guest is told that there is none. It may ask again.
const PATIENCE: Duration = Duration::from_millis(400);
/// Connections of a guest that others have asked for: the rest is for those that it asks for itself.
const MOST_ASKED: usize = MOST_PEERS / 2;

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Asking { again: Moment, until: Moment },
    Ready,
}

/// A connection of a guest with an endpoint on the wire.
struct Far {
    stage: Stage,
    qpn: Qpn,
    granted: Capabilities,
    psn: Psn,
    count: u32,
    /// The other's: opening, queue pair, first packet, which connection.
    opening: u64,
    remote: Qpn,
    remote_psn: Psn,
    remote_count: u32,
    /// The guest has asked for it.
    is_ours: bool,
}

impl Far {
    /// What is said about it to its other end, by an opening of the guest's endpoint.
    fn message(&self, what: What, mtu: u16, opening: u64) -> Agreed {
        Agreed {
            what,
            mtu,
            opening,
            receiver_opening: self.opening,
            qpn: self.qpn,
            psn: self.psn,
            receiver_qpn: self.remote,
            count: self.count,
        }
    }
}

/// A guest and an endpoint on the wire.
type Ends = (Address, Address);

/// All of them.
#[derive(Default)]
pub(crate) struct FarLinks {
    all: HashMap<Ends, Far>,
    count: u32,
    /// Nothing is due before.
    due: Option<Moment>,
}

impl FarLinks {
    /// Connections of a guest.
    pub fn of(&self, guest: Address) -> usize {
        self.all.keys().filter(|(own, _)| *own == guest).count()
    }

    /// When an ask may have to be sent again, or given up.
    pub fn next_due(&self) -> Option<Moment> {
        self.due
    }

    fn find_due(&mut self) {
        let due = |far: &Far| match far.stage {
            Stage::Asking { again, until } => Some(again.min(until)),
            Stage::Ready => None,
        };
        self.due = self.all.values().filter_map(due).min();
    }
}

fn no(errno: Errno) -> i32 {
    errno.raw_os_error()
}

impl Backend {
    /// Whether an endpoint may be on the wire: there is one, and it is no guest's.
    pub(crate) fn is_outside(&self, to: Address) -> bool {
        self.port.is_some() && to.is_single() && !self.guests.iter().any(|guest| guest.address == to)
    }

    /// Asks an endpoint on the wire to be connected with a guest, who waits for the answer; `Some`: they are connected.
    pub(crate) fn ask_outside(&mut self, from: Address, to: Address) -> Result<Option<Vec<u64>>, i32> {
        let (number, init) = self.end_of(from).ok_or(no(Errno::NOTCONN))?;
        if self.port.as_ref().is_none_or(|port| port.is_broken()) {
            return Err(no(Errno::NETDOWN));
        }
        if let Some(far) = self.far.all.get(&(from, to)) {
            let query = self.service.query_pair(number, far.qpn);
            if far.stage == Stage::Ready && query.is_ok_and(|query| query.attributes.state != Some(State::Error)) {
                return Ok(Some(pair_words(far.qpn, &far.granted).to_vec()));
            }
            self.disconnect_outside(from, to);
        }
        if self.peers_of(from) >= MOST_PEERS {
            return Err(no(Errno::USERS));
        }
        self.add_far((from, to), (number, &init), true).map_err(|error| error.errno())?;
        self.say(from, to, What::Ask);
        if let Some(guest) = self.guest_of(from) {
            guest.asks = Some(to);
        }
        Ok(None)
    }

    fn add_far(&mut self, ends: Ends, (number, init): (Number, &Init), is_ours: bool) -> Result<(), ServeError> {
        let (qpn, granted) = self.service.create_pair(number, init)?;
        let access = Access::REMOTE_WRITE.with(Access::REMOTE_READ);
        let begin =
            Attributes { pkey_index: Some(0), port: Some(1), access: Some(access), ..Attributes::state(State::Init) };
        if let Err(error) = self.service.modify_pair(number, qpn, &begin) {
            self.destroy(number, qpn);
            return Err(error);
        }
        let psn = Psn::new(RandomState::new().hash_one(qpn.value()) as u32 & 0xff_ffff);
        self.far.count += 1;
        let now = self.now();
        let again = now + Duration::from_nanos(ASK_AGAIN);
        self.far.due = Some(self.far.due.map_or(again, |due| due.min(again)));
        let far = Far {
            stage: Stage::Asking { again, until: now + PATIENCE },
            qpn,
            granted,
            psn,
            count: self.far.count,
            opening: 0,
            remote: Qpn::default(),
            remote_psn: Psn::new(0),
            remote_count: 0,
            is_ours,
        };
        self.far.all.insert(ends, far);
        Ok(())
    }

    /// Says something about a connection to its other end.
    fn say(&mut self, from: Address, to: Address, what: What) {
        let opening = self.guest_of(from).map_or(0, |guest| guest.opening);
        let (Some(far), Some(port)) = (self.far.all.get(&(from, to)), &mut self.port) else { return };
        let message = far.message(what, port.mtu(), opening);
        port.say(from, to, &message.write());
    }

    fn refuse(&mut self, from: Address, to: Address, asked: &Agreed) {
        let opening = self.guest_of(from).map_or(0, |guest| guest.opening);
        let Some(port) = &mut self.port else { return };
        let message = Agreed {
            what: What::Refused,
            mtu: port.mtu(),
            opening,
            receiver_opening: asked.opening,
            qpn: Qpn::default(),
            psn: Psn::new(0),
            receiver_qpn: asked.qpn,
            count: 0,
        };
        port.say(from, to, &message.write());
    }

    /// Asks that were not answered are sent again, or given up. What has been said on the wire is heard.
    pub(crate) fn agree(&mut self, now: Moment) {
        if let Some(why) = self.port.as_mut().and_then(|port| port.take_end()) {
            self.notices.warn(|| format!("the port has ended, and guests reach only each other: {why}"));
            let all: Vec<Ends> = self.far.all.keys().copied().collect();
            all.into_iter().for_each(|ends| self.lose(ends, Errno::NETDOWN));
        }
        if let Some(port) = self.port.as_mut().filter(|port| !port.said.is_empty()) {
            core::mem::take(&mut port.said).into_iter().for_each(|said| self.heard(said));
        }
        if self.far.next_due().is_none_or(|due| due > now) {
            return;
        }
        let mut due = Vec::new();
        for (ends, far) in &mut self.far.all {
            if let Stage::Asking { again, until } = &mut far.stage
                && *again.min(until) <= now
            {
                *again = now + Duration::from_nanos(ASK_AGAIN);
                due.push((*ends, *until <= now));
            }
        }
        self.far.find_due();
        for (ends, is_over) in due {
            if is_over { self.lose(ends, Errno::NOENT) } else { self.say(ends.0, ends.1, What::Ask) }
        }
    }

    fn heard(&mut self, Said { from, to, bytes }: Said) {
        match (Agreed::read(&bytes), to) {
            (Some(message), Some(to)) => self.heard_of((to, from), &message),
            (None, _) if bytes.starts_with(TOLD) && bytes.len() <= TOLD.len() + MOST_TOLD => {
                let all: Vec<Address> =
                    to.map_or_else(|| self.guests.iter().map(|one| one.address).collect(), |to| vec![to]);
                all.into_iter().for_each(|to| self.was_told(from, to, bytes[TOLD.len()..].to_vec()));
            }
            _ => self.count_untaken(),
        }
    }

    fn count_untaken(&mut self) {
        if let Some(port) = &mut self.port {
            port.counts.untaken += 1;
        }
    }

    fn was_told(&mut self, from: Address, to: Address, bytes: Vec<u8>) {
        match self.guest_of(to).filter(|guest| guest.open.is_some() && !guest.is_deaf()) {
            Some(guest) => {
                guest.send(&Message::Told(from, bytes));
            }
            None => self.count_untaken(),
        }
    }

    fn heard_of(&mut self, ends: Ends, message: &Agreed) {
        let Some(opening) = self.guest_of(ends.0).map(|guest| guest.opening) else { return };
        if message.what == What::Ask {
            return self.was_asked(ends, message);
        }
        let Some(far) = self.far.all.get(&ends) else { return };
        // To this opening of the endpoint, and of this connection.
        let is_asking =
            far.stage != Stage::Ready && (message.receiver_opening, message.receiver_qpn) == (opening, far.qpn);
        let is_known = far.stage == Stage::Ready
            && (message.opening, message.qpn, message.receiver_opening) == (far.opening, far.remote, opening);
        match message.what {
            What::Answer if is_asking => self.bring_up_far(ends, message),
            What::Refused if is_asking => self.lose(ends, Errno::CONNREFUSED),
            What::Over if is_known => self.lose(ends, Errno::NOENT),
            _ => {}
        }
    }

    fn was_asked(&mut self, ends: Ends, message: &Agreed) {
        let (guest, other) = ends;
        if let Some(far) = self.far.all.get(&ends).filter(|far| far.stage == Stage::Ready) {
            if far.opening == message.opening {
                if (far.remote, far.remote_count) == (message.qpn, message.count) {
                    return self.say(guest, other, What::Answer);
                }
                // One that was overtaken on its way.
                if message.count <= far.remote_count {
                    return;
                }
            }
            // The other end has begun anew.
            self.lose(ends, Errno::NOENT);
        }
        if !self.far.all.contains_key(&ends) {
            // One that does not read is not told of more, nor one without end, and whoever asks asks again.
            let now = self.now();
            if self.guest_of(guest).is_none_or(|guest| guest.is_deaf() || !guest.asked.take(now)) {
                return self.count_untaken();
            }
            self.make_room(guest);
            let end = self.end_of(guest).filter(|_| self.has_room_for_asked(guest));
            let added = end.is_some_and(|(number, init)| self.add_far(ends, (number, &init), false).is_ok());
            if !added {
                self.count_untaken();
                return self.refuse(guest, other, message);
            }
        }
        self.bring_up_far(ends, message);
        if self.far.all.contains_key(&ends) {
            self.say(guest, other, What::Answer);
        }
    }

    fn has_room_for_asked(&self, guest: Address) -> bool {
        let asked = self.far.all.iter().filter(|((own, _), far)| *own == guest && !far.is_ours).count();
        asked < MOST_ASKED && self.peers_of(guest) < MOST_PEERS
    }

    /// When a guest has as many connections as there may be, the oldest that another end has asked for and has not used makes room: an ask
    /// costs nothing, and anybody on the wire can make up where it comes from.
    fn make_room(&mut self, guest: Address) {
        if self.has_room_for_asked(guest) {
            return;
        }
        let Some((number, _)) = self.end_of(guest) else { return };
        let Self { far, service, .. } = self;
        let mut is_unused = |far: &Far| {
            let query = service.query_pair(number, far.qpn);
            !far.is_ours && query.is_ok_and(|query| query.attributes.receive_psn == Some(far.remote_psn))
        };
        let unused = far.all.iter().filter(|((own, _), far)| *own == guest && is_unused(far));
        if let Some(ends) = unused.min_by_key(|(_, far)| far.count).map(|(ends, _)| *ends) {
            self.lose(ends, Errno::NOENT);
            if let Some(port) = &mut self.port {
                port.counts.replaced += 1;
            }
        }
    }

    /// Both sides are known: the queue pair is brought up, and the guest is told.
    fn bring_up_far(&mut self, ends: Ends, message: &Agreed) {
        let Some((number, _)) = self.end_of(ends.0) else { return };
        let mtu = self.port.as_ref().map_or(256, |port| port.mtu());
        let Some(far) = self.far.all.get_mut(&ends) else { return };
        (far.stage, far.opening) = (Stage::Ready, message.opening);
        (far.remote, far.remote_psn, far.remote_count) = (message.qpn, message.psn, message.count);
        let attributes = message.attributes(path(ends.0, ends.1), mtu, far.psn);
        let (qpn, granted) = (far.qpn, far.granted);
        let told = attributes.iter().try_for_each(|told| self.service.modify_pair_as(number, qpn, told).map(drop));
        if told.is_err() {
            return self.lose(ends, Errno::CONNREFUSED);
        }
        if !self.settle(ends, Ok(pair_words(qpn, &granted).to_vec())) {
            self.tell(ends.0, &Message::Connected(ends.1, qpn, granted));
        }
    }

    /// Answers a guest that waits for that connection. Whether it does.
    fn settle(&mut self, (guest, other): Ends, outcome: Result<Vec<u64>, i32>) -> bool {
        let Some(guest) = self.guest_of(guest).filter(|guest| guest.asks == Some(other)) else { return false };
        guest.asks = None;
        guest.is_over |= !guest.send_answer(outcome);
        true
    }

    /// A connection is over, and not because its guest says so.
    fn lose(&mut self, ends: Ends, why: Errno) {
        let Some(far) = self.far.all.remove(&ends) else { return };
        let Some(number) = self.guest_of(ends.0).and_then(|guest| guest.number) else { return };
        if self.settle(ends, Err(no(why))) || far.stage != Stage::Ready {
            return self.destroy(number, far.qpn);
        }
        // What was posted ends as flushed, and is told; the guest destroys the queue pair when it has read that.
        let _: Result<State, ServeError> = self.service.modify_pair(number, far.qpn, &Attributes::state(State::Error));
        self.tell(ends.0, &Message::Over(ends.1));
    }

    /// A guest says that a connection is over: the other end is told.
    pub(crate) fn disconnect_outside(&mut self, from: Address, to: Address) {
        if self.far.all.get(&(from, to)).is_some_and(|far| far.stage == Stage::Ready) {
            self.say(from, to, What::Over);
        }
        let Some(far) = self.far.all.remove(&(from, to)) else { return };
        if let Some(number) = self.guest_of(from).and_then(|guest| guest.number) {
            self.destroy(number, far.qpn);
        }
    }

    /// All connections of a guest that goes: the other ends are told.
    pub(crate) fn forget_outside(&mut self, guest: Address, opening: u64) {
        let all: Vec<Ends> = self.far.all.keys().filter(|(own, _)| *own == guest).copied().collect();
        for (own, other) in all {
            let (Some(far), Some(port)) = (self.far.all.remove(&(own, other)), &mut self.port) else { continue };
            if far.stage == Stage::Ready {
                let message = far.message(What::Over, port.mtu(), opening);
                port.say(own, other, &message.write());
            }
        }
    }

    /// Tells the program of an endpoint on the wire something: once, and it may be lost.
    pub(crate) fn tell_outside(&mut self, from: Address, to: Address, bytes: &[u8]) {
        if let Some(port) = &mut self.port {
            port.say(from, to, &[&TOLD[..], bytes].concat());
        }
    }
}
