//! Who gets what comes to queue pair 1, and who may send what from it.

use super::answers::Answers;
use super::bucket::Bucket;
use super::counters::GeneralCounters;
use super::nobody::{Caller, Early, Fate, Nobody};
use crate::cm::address::{IpHeader, ServiceId, gid_of};
use crate::cm::message::{self, GENERAL_QKEY, Label, Malformed, Message, To};
use crate::number::{Gid, Moment, Qpn};
use crate::served::service::{Number, ServeError};
use crate::transport::Origin;
use crate::wire::{Deth, Headers, Packet, Path, Service as Kind};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Bits of the number of a connection that its program chooses.
pub const ID_BITS: u8 = 20;
/// Numbers of programs.
const TAGS: u32 = 1 << (32 - ID_BITS);
/// Calls of which it is known to whom they were given. One more makes the oldest be forgotten: then its sender cannot take it back, and is
/// answered once for nothing.
const MOST_CALLS: usize = 4096;

/// What a program has of queue pair 1.
struct Lease {
    /// The queue pair that stands for it.
    qpn: Qpn,
    /// The upper bits of numbers of its connections.
    tag: u32,
    /// Services that it offers.
    services: Vec<ServiceId>,
    sends: Bucket,
    from_wire: Bucket,
}

/// Queue pair 1 of a card.
pub(in crate::served) struct General {
    own: Vec<Gid>,
    leases: FxHashMap<Number, Lease>,
    /// By the queue pairs that stand for them.
    pairs: FxHashMap<Qpn, Number>,
    tags: FxHashMap<u32, Number>,
    services: FxHashMap<ServiceId, Number>,
    /// To which program calls were given, by their senders and numbers there, and in which order they came.
    calls: FxHashMap<(Gid, u32), u32>,
    order: VecDeque<(Gid, u32)>,
    nobody: Nobody,
    /// Of messages from the wire that are for nobody.
    strangers: Bucket,
    pub answers: Answers,
    random: u64,
    pub counters: GeneralCounters,
}

impl General {
    /// Of the programs that have these addresses.
    pub fn new(own: &[Gid], seed: u64) -> Self {
        Self {
            own: own.to_vec(),
            leases: FxHashMap::default(),
            pairs: FxHashMap::default(),
            tags: FxHashMap::default(),
            services: FxHashMap::default(),
            calls: FxHashMap::default(),
            order: VecDeque::new(),
            nobody: Nobody::default(),
            strangers: Bucket::default(),
            answers: Answers::default(),
            random: seed,
            counters: GeneralCounters::default(),
        }
    }

    /// A program gets its part: that queue pair stands for it from now on.
    pub fn enter(&mut self, program: Number, qpn: Qpn) {
        let tag = self.free_tag();
        let lease = Lease { qpn, tag, services: Vec::new(), sends: Bucket::default(), from_wire: Bucket::default() };
        self.leases.insert(program, lease);
        self.pairs.insert(qpn, program);
        self.tags.insert(tag, program);
    }

    /// A number that is nobody's, and that is not easily guessed (splitmix64). There are many more than programs.
    fn free_tag(&mut self) -> u32 {
        loop {
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let tag = (mixed >> 40) as u32 % TAGS;
            if tag != 0 && !self.tags.contains_key(&tag) {
                return tag;
            }
        }
    }

    /// A program has its part no longer, nor what it offered. How many services that was.
    pub fn leave(&mut self, program: Number) -> u64 {
        let Some(lease) = self.leases.remove(&program) else { return 0 };
        self.pairs.remove(&lease.qpn);
        self.tags.remove(&lease.tag);
        for service in &lease.services {
            self.services.remove(service);
        }
        lease.services.len() as u64
    }

    /// Whether a program has its part already.
    pub fn has(&self, program: Number) -> bool {
        self.leases.contains_key(&program)
    }

    /// Whether that queue pair stands for a program.
    #[inline]
    pub fn is_one(&self, qpn: Qpn) -> bool {
        self.pairs.contains_key(&qpn)
    }

    /// Whether a packet that has come is a datagram to a queue pair that stands for queue pair 1, by its own number: past all that is
    /// looked at and counted here.
    #[inline]
    pub fn is_evaded(&mut self, headers: &Headers) -> bool {
        let is_evaded = headers.service == Kind::UnreliableDatagram && self.is_one(headers.destination);
        self.counters.evading += u64::from(is_evaded);
        is_evaded
    }

    /// The lowest number that a program's connections may have; [`ID_BITS`] of it are its choice.
    pub fn first_id(&self, program: Number) -> Option<u32> {
        self.leases.get(&program).map(|lease| lease.tag << ID_BITS)
    }

    /// How many services are offered.
    pub fn services(&self) -> usize {
        self.services.len()
    }

    /// Whether a program offers a service, which nobody else does; otherwise it may.
    pub fn offers(&self, program: Number, service: ServiceId) -> Result<bool, ServeError> {
        match self.services.get(&service) {
            _ if !self.has(program) => Err(ServeError::Gone),
            Some(owner) if *owner == program => Ok(true),
            Some(_) => Err(ServeError::Offered),
            None => Ok(false),
        }
    }

    /// A program offers a service that nobody does.
    pub fn offer(&mut self, program: Number, service: ServiceId) {
        if let Some(lease) = self.leases.get_mut(&program) {
            lease.services.push(service);
            self.services.insert(service, program);
        }
    }

    /// It does no longer. Whether it did.
    pub fn withdraw(&mut self, program: Number, service: ServiceId) -> bool {
        let is_its = self.services.get(&service) == Some(&program);
        if is_its {
            self.services.remove(&service);
            if let Some(lease) = self.leases.get_mut(&program) {
                lease.services.retain(|one| *one != service);
            }
        }
        is_its
    }

    /// A call that has waited for a service, and to which queue pair it goes now. It is offered.
    pub fn take_early(&mut self, program: Number, service: ServiceId) -> Option<(Qpn, Early)> {
        let lease = self.leases.get(&program)?;
        let (qpn, tag) = (lease.qpn, lease.tag);
        let early = self.nobody.take(service)?;
        if let Ok(label) = Label::read(&early.payload) {
            self.note(early.origin.path.destination, label.sender, tag);
        }
        self.counters.given += 1;
        Some((qpn, early))
    }

    /// To whom a call was given.
    fn note(&mut self, gid: Gid, id: u32, tag: u32) {
        let call = (gid, id);
        if self.calls.insert(call, tag).is_none() {
            self.order.push_back(call);
        }
        if self.order.len() > MOST_CALLS
            && let Some(oldest) = self.order.pop_front()
        {
            self.calls.remove(&oldest);
        }
    }

    /// What has come to queue pair 1: the queue pair that gets it, if any. Messages of programs of this card have been looked at before.
    pub fn receive(&mut self, now: Moment, packet: &Packet<'_>, from: &Origin) -> Option<Qpn> {
        let is_general = packet.headers.service == Kind::UnreliableDatagram
            && packet.headers.deth == Some(Deth { qkey: GENERAL_QKEY, source: Qpn::GENERAL });
        if !is_general {
            self.counters.foreign += 1;
            return None;
        }
        let label = match Label::read(packet.payload) {
            Ok(label) => label,
            Err(why) => {
                *self.count_of(why) += 1;
                return None;
            }
        };
        let gid = from.path.destination;
        let is_own = self.own.contains(&gid);
        let caller = Caller(gid, if is_own { label.sender >> ID_BITS } else { 0 });
        let tag = match label.to {
            To::Connection(0) if label.rejects => {
                if self.nobody.take_back(caller, label.sender) {
                    self.counters.withdrawn += 1;
                    return None;
                }
                self.calls.get(&(gid, label.sender)).copied()
            }
            To::Connection(id) => Some(id >> ID_BITS),
            To::Service(service) => {
                self.services.get(&service).and_then(|owner| self.leases.get(owner)).map(|lease| lease.tag)
            }
        };
        let program = tag.and_then(|tag| self.tags.get(&tag));
        let Some(lease) = program.and_then(|program| self.leases.get_mut(program)) else {
            if !is_own && !self.strangers.take(now) {
                self.counters.flooded += 1;
            } else {
                self.for_nobody(now, caller, packet, from);
            }
            return None;
        };
        if !is_own && !lease.from_wire.take(now) {
            self.counters.flooded += 1;
            return None;
        }
        let (qpn, tag) = (lease.qpn, lease.tag);
        if matches!(label.to, To::Service(_)) {
            self.note(gid, label.sender, tag);
        }
        self.counters.given += 1;
        Some(qpn)
    }

    fn count_of(&mut self, why: Malformed) -> &mut u64 {
        match why {
            Malformed::Length => &mut self.counters.malformed_length,
            Malformed::BaseVersion | Malformed::ClassVersion | Malformed::Method => &mut self.counters.malformed_header,
            Malformed::Class => &mut self.counters.other_class,
            Malformed::Attribute => &mut self.counters.unknown_message,
        }
    }

    fn for_nobody(&mut self, now: Moment, caller: Caller, packet: &Packet<'_>, from: &Origin) {
        match self.nobody.receive(now, caller, &packet.headers, packet.payload, from) {
            Fate::Answer(transaction, message) => self.answer(from.path, transaction, &message),
            Fate::Waits => self.counters.early += 1,
            Fate::Duplicate => self.counters.duplicate += 1,
            Fate::Unknown => self.counters.unknown_connection += 1,
        }
    }

    fn answer(&mut self, path: Path, transaction: u64, message: &Message) {
        match self.answers.add(path, transaction, message) {
            true => self.counters.refused += 1,
            false => self.counters.no_room += 1,
        }
    }

    /// Refuses calls that have waited long enough. When the next one will have.
    pub fn expire(&mut self, now: Moment) -> Option<Moment> {
        while let Some((from, transaction, message)) = self.nobody.expire(now) {
            self.answer(from.path, transaction, &message);
        }
        self.nobody.next_due()
    }

    /// Whether a program may send that to queue pair 1 of somebody. `has_pair` says which queue pairs are its own.
    pub fn may_send(&mut self, now: Moment, program: Number, bytes: &[u8], has_pair: impl Fn(Qpn) -> bool) -> bool {
        let Some(lease) = self.leases.get_mut(&program) else { return false };
        if !lease.sends.take(now) {
            self.counters.throttled += 1;
            return false;
        }
        let tag = lease.tag;
        let may = message::parse(bytes).is_ok_and(|(_, message)| self.is_its_own(tag, &message, has_pair));
        self.counters.forged += u64::from(!may);
        may
    }

    /// Whether what a message says of its sender is so.
    fn is_its_own(&self, tag: u32, message: &Message, has_pair: impl Fn(Qpn) -> bool) -> bool {
        let has = |id: u32| id >> ID_BITS == tag;
        let speaks_for = |service: u64, private: &[u8]| {
            let source = IpHeader::parse(private).map(|header| gid_of(header.source));
            !ServiceId(service).is_of_port() || source.is_some_and(|gid| self.own.contains(&gid))
        };
        match message {
            Message::Request(m) => {
                has(m.local_id)
                    && has_pair(m.local_qpn)
                    && self.own.contains(&m.primary_local_gid)
                    && speaks_for(m.service, &m.private)
            }
            Message::Reply(m) => has(m.local_id) && has_pair(m.local_qpn),
            Message::Postponement(m) => has(m.local_id),
            // Who refuses need not have a number for it.
            Message::Rejection(m) => m.local_id == 0 || has(m.local_id),
            Message::Ready(m) => has(m.local_id),
            Message::DisconnectRequest(m) => has(m.local_id),
            Message::DisconnectReply(m) => has(m.local_id),
            Message::ServiceRequest(m) => has(m.request_id) && speaks_for(m.service, &m.private),
            Message::ServiceReply(_) => true,
        }
    }
}
