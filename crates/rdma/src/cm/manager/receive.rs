//! What comes.

use super::{Early, GRACE, MOST_EARLY, Manager};
use crate::cm::address::ServiceId;
use crate::cm::connection::{Connection, Event, Id, Peer, State, Terms};
use crate::cm::message::{
    self, DisconnectReply, DisconnectRequest, Malformed, Message, Postponement, Ready, Rejection, Reply, Request,
    ServiceReply, ServiceRequest, reason, service_status, time_of,
};
use crate::number::{Moment, Qpn};
use core::time::Duration;

/// How long programs may take to decide, as a time of five bits: 69 s, as Linux says.
const DECISION: u8 = 24;
/// The longest that others may take.
const LONGEST_POSTPONEMENT: Duration = Duration::from_secs(300);
/// How soon others can want an answer, at the least and at the most.
const SOONEST: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(10);

/// How long a service is called again that nobody offers, and how soon.
const PERSISTENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);

/// REQ and REP, as rejections and postponements name them.
const REQUEST: u8 = 0;
const REPLY: u8 = 1;

impl Manager {
    /// What has come to queue pair 1, from whom.
    pub fn receive(&mut self, now: Moment, from: Peer, bytes: &[u8]) {
        self.counters.received += 1;
        let (transaction, message) = match message::parse(bytes) {
            Ok(parsed) => parsed,
            Err(malformed) => {
                *match malformed {
                    Malformed::Length => &mut self.counters.malformed_length,
                    Malformed::BaseVersion | Malformed::ClassVersion | Malformed::Method => {
                        &mut self.counters.malformed_header
                    }
                    Malformed::Class => &mut self.counters.other_class,
                    Malformed::Attribute => &mut self.counters.unknown_message,
                } += 1;
                return;
            }
        };
        match message {
            Message::Request(request) => self.on_request(now, from, transaction, request),
            Message::Reply(reply) => self.on_reply(now, from, transaction, reply),
            Message::Ready(ready) => self.on_ready(from, transaction, &ready),
            Message::Postponement(postponement) => self.on_postponement(now, from, transaction, &postponement),
            Message::Rejection(rejection) => self.on_rejection(now, from, transaction, &rejection),
            Message::DisconnectRequest(request) => self.on_disconnect_request(now, from, transaction, &request),
            Message::DisconnectReply(reply) => self.on_disconnect_reply(now, from, transaction, &reply),
            Message::ServiceRequest(request) => self.on_service_request(from, transaction, request),
            Message::ServiceReply(reply) => self.on_service_reply(now, from, transaction, reply),
        }
    }

    /// The connection that a message is about: its number here, the end, and its number there. Where that is not known yet, it is the first
    /// answer, and has the number of the transaction of what it answers, from Linux, too: who has not seen that does not know it.
    fn find(&self, from: Peer, local: u32, remote: u32, transaction: u64) -> Option<(Id, State)> {
        let connection = self.connections.get(&local)?;
        let is_same = match connection.remote_id {
            0 => connection.transaction == transaction,
            known => known == remote,
        };
        (connection.terms.peer.gid == from.gid && is_same).then_some((local, connection.state))
    }

    fn on_request(&mut self, now: Moment, from: Peer, transaction: u64, request: Request) {
        if let Some(&id) = self.requests.get(&(from.gid, request.local_id, false)) {
            return self.on_same_request(id);
        }
        let is_same = |early: &Early| early.from == from && early.request.local_id == request.local_id;
        if self.early.iter().any(is_same) {
            return self.counters.duplicate += 1;
        }
        let is_offered = self.listeners.contains_key(&ServiceId(request.service));
        if !is_offered && self.early.len() < MOST_EARLY {
            let request = Box::new(request);
            return self.early.push_back(Early { until: now + GRACE, from, transaction, request });
        }
        self.decide(from, transaction, request);
    }

    /// A request that is new, and waits no longer.
    pub(super) fn decide(&mut self, from: Peer, transaction: u64, request: Request) {
        let pair = (from.gid, request.local_qpn);
        let refused = match self.fits(from, &request) {
            Some(refused) => Some(refused),
            None => self.pairs.get(&pair).copied().map(|id| {
                self.counters.stale += 1;
                self.ask_whether_known(id);
                (reason::STALE, None)
            }),
        };
        if let Some((reason, information)) = refused {
            return self.refuse(from, transaction, request.local_id, REQUEST, reason, information);
        }
        let terms = Terms {
            peer: from,
            remote_qpn: request.local_qpn,
            send_psn: request.starting_psn,
            mtu: request.path_mtu,
            hop_limit: request.primary_hop_limit.max(1),
            traffic_class: request.primary_traffic_class,
            ack_timeout: request.primary_ack_timeout,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            // What one of both answers is what the other one may have on the way.
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            unreliable: request.transport == 1,
            ..Terms::default()
        };
        let every = time_of(request.local_response_timeout).clamp(SOONEST, LATEST);
        let connection = Connection::new(State::Asked, terms, transaction, every);
        let (owner, id) = self.admit(connection, ServiceId(request.service), request.local_id, false);
        self.tell(Event::Requested { owner, id, peer: from, request: Box::new(request) });
    }

    /// Somebody has called with the queue pair of the other end, which has forgotten this connection (12.9.8.3.1); or somebody speaks
    /// in its name. It is asked by a DREQ for a queue pair that this connection does not have: who knows the connection takes no notice
    /// of that, who does not answers that it is over.
    fn ask_whether_known(&mut self, id: Id) {
        let transaction = self.transaction();
        let Some(connection) = self.connections.get(&id).filter(|one| one.state == State::Established) else { return };
        let (peer, remote_id) = (connection.terms.peer, connection.remote_id);
        let remote_qpn = Qpn::new(!connection.terms.remote_qpn.value() & 0xff_ffff);
        let request = DisconnectRequest { local_id: id, remote_id, remote_qpn, ..DisconnectRequest::empty() };
        self.send(peer, transaction, &request.into());
    }

    fn on_same_request(&mut self, id: Id) {
        self.counters.duplicate += 1;
        match self.state(id) {
            Some(State::Asked) => self.postpone(id, REQUEST),
            Some(State::Accepting) => self.send_again(id),
            _ => {}
        }
    }

    /// Why a request cannot be, if so, and what would have been right.
    fn fits(&mut self, from: Peer, request: &Request) -> Option<(u16, Option<u8>)> {
        if request.transport > 1 {
            return Some((reason::INVALID_TRANSPORT, None));
        }
        if !self.listeners.contains_key(&ServiceId(request.service)) {
            return Some((reason::INVALID_SERVICE, None));
        }
        if request.primary_local_gid != from.gid {
            return Some((reason::INVALID_GID, None));
        }
        if request.path_mtu == 0 || request.path_mtu > self.options.most_mtu {
            return Some((reason::INVALID_MTU, Some(self.options.most_mtu)));
        }
        let has_room = self.has_room(from, request.local_id, ServiceId(request.service));
        (!has_room).then(|| {
            self.counters.no_room += 1;
            (reason::NO_RESOURCES, None)
        })
    }

    /// Whether one more request of that end may wait.
    fn has_room(&self, from: Peer, remote: u32, service: ServiceId) -> bool {
        let one = (from.gid, self.options.ids.sharer(from.gid, remote));
        self.connections.len() < self.options.most_connections
            && self.half_open_in_all < self.options.most_half_open
            && self.half_open.get(&one).is_none_or(|count| *count < self.options.most_half_open_of_one)
            && self.listeners.get(&service).is_some_and(|listener| listener.unseen < listener.backlog)
    }

    /// A request that is to be decided on.
    fn admit(&mut self, mut connection: Connection, service: ServiceId, remote: u32, is_datagram: bool) -> (u64, Id) {
        let (id, gid) = (self.free_id(), connection.terms.peer.gid);
        (connection.service, connection.remote_id) = (Some(service), remote);
        (connection.is_unseen, connection.is_half_open) = (true, true);
        self.half_open_in_all += 1;
        let one = (gid, self.options.ids.sharer(gid, remote));
        *self.half_open.entry(one).or_default() += 1;
        self.requests.insert((gid, remote, is_datagram), id);
        self.connections.insert(id, connection);
        let owner = self.listeners.get_mut(&service).map_or(0, |listener| {
            listener.unseen += 1;
            listener.owner
        });
        (owner, id)
    }

    fn refuse(&mut self, to: Peer, transaction: u64, remote: u32, about: u8, reason: u16, right: Option<u8>) {
        self.counters.refused += 1;
        let mut rejection = Rejection { remote_id: remote, about, reason, ..Rejection::empty() };
        if let Some(right) = right {
            // As it stands in a request: the upper four bits.
            (rejection.information_len, rejection.information[0]) = (1, right << 4);
        }
        self.send(to, transaction, &rejection.into());
    }

    /// MRA: the program is not that quick.
    fn postpone(&mut self, id: Id, about: u8) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (peer, transaction, remote_id) = (connection.terms.peer, connection.transaction, connection.remote_id);
        let message =
            Postponement { local_id: id, remote_id, about, service_timeout: DECISION, ..Postponement::empty() };
        self.send(peer, transaction, &message.into());
    }

    fn on_reply(&mut self, now: Moment, from: Peer, transaction: u64, reply: Reply) {
        let Some((id, state)) = self.find(from, reply.remote_id, reply.local_id, transaction) else {
            self.counters.unknown_connection += 1;
            return self.refuse(from, transaction, reply.local_id, REPLY, reason::INVALID_ID, None);
        };
        match state {
            State::Calling => {}
            // Our own answer was lost, or the program is not that quick.
            State::Established => {
                self.counters.duplicate += 1;
                return self.send_again(id);
            }
            State::Replied => {
                self.counters.duplicate += 1;
                return self.postpone(id, REPLY);
            }
            _ => return self.counters.unexpected += 1,
        }
        let pair = (from.gid, reply.local_qpn);
        if let Some(&old) = self.pairs.get(&pair) {
            self.counters.stale += 1;
            self.part(old);
            self.leave(now, old);
            self.refuse(from, transaction, reply.local_id, REPLY, reason::STALE, None);
            return self.fail(Event::Rejected(id, reason::STALE, Box::new([0; 148])));
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = State::Replied;
        connection.remote_id = reply.local_id;
        let terms = &mut connection.terms;
        (terms.remote_qpn, terms.send_psn) = (reply.local_qpn, reply.starting_psn);
        terms.rnr_retry_count = reply.rnr_retry_count;
        (terms.responder_resources, terms.initiator_depth) = (reply.initiator_depth, reply.responder_resources);
        self.pairs.insert(pair, id);
        self.arm(id, None);
        self.tell(Event::Replied(id, Box::new(reply)));
    }

    fn on_ready(&mut self, from: Peer, transaction: u64, ready: &Ready) {
        match self.find(from, ready.remote_id, ready.local_id, transaction) {
            Some((id, State::Accepting)) => self.establish(id),
            Some((_, State::Established)) => self.counters.duplicate += 1,
            Some(_) => self.counters.unexpected += 1,
            None => self.counters.unknown_connection += 1,
        }
    }

    fn on_postponement(&mut self, now: Moment, from: Peer, transaction: u64, message: &Postponement) {
        let Some((id, state)) = self.find(from, message.remote_id, message.local_id, transaction) else {
            return self.counters.unknown_connection += 1;
        };
        let every = self.connections.get(&id).map_or(SOONEST, |connection| connection.every);
        match (state, message.about) {
            (State::Calling, REQUEST) | (State::Accepting, REPLY) => {
                let longer = time_of(message.service_timeout).min(LONGEST_POSTPONEMENT);
                self.arm(id, Some(now + longer + every));
            }
            _ => self.counters.unexpected += 1,
        }
    }

    fn on_rejection(&mut self, now: Moment, from: Peer, transaction: u64, rejection: &Rejection) {
        self.early.retain(|early| early.from != from || early.request.local_id != rejection.local_id);
        // Who has got no answer does not know our number.
        let id = match rejection.remote_id {
            0 => self.requests.get(&(from.gid, rejection.local_id, false)).copied(),
            id => Some(id),
        };
        // Who has nothing to do with the connection has no number of its own, but that of the transaction.
        let answered = |id: &Id| self.connections.get(id).filter(|connection| connection.transaction == transaction);
        let remote = |id: &Id| match rejection.local_id {
            0 => answered(id).map_or(0, |connection| connection.remote_id),
            remote => remote,
        };
        match id.and_then(|id| self.find(from, id, remote(&id), transaction)) {
            // The program will see its event, and that it is nothing: others cannot make more of them than it has seen.
            Some((id, State::Asked)) if self.connections.get(&id).is_some_and(|one| one.is_unseen) => {
                self.change(id, State::Withdrawn);
            }
            Some((id, State::Calling)) if rejection.reason == reason::INVALID_SERVICE && self.calls_again(now, id) => {}
            Some((id, State::Calling | State::Replied | State::Asked | State::Accepting)) => {
                self.fail(Event::Rejected(id, rejection.reason, Box::new(rejection.private)));
            }
            Some(_) => self.counters.unexpected += 1,
            None => self.counters.unknown_connection += 1,
        }
    }

    /// Nobody offers there what this end calls. Whether it is called again soon: the program there may be between two listeners, and
    /// not every end lets a call wait for the next one, as ours does.
    fn calls_again(&mut self, now: Moment, id: Id) -> bool {
        let Some(connection) = self.connections.get(&id) else { return false };
        let is_soon = connection.began.is_some_and(|began| now < began + PERSISTENCE);
        if is_soon {
            self.arm(id, Some(now + PAUSE));
        }
        is_soon
    }

    fn on_disconnect_request(&mut self, now: Moment, from: Peer, transaction: u64, request: &DisconnectRequest) {
        let found = self.find(from, request.remote_id, request.local_id, transaction);
        let reply =
            DisconnectReply { local_id: request.remote_id, remote_id: request.local_id, ..DisconnectReply::empty() };
        let is_ours =
            |id: &Id| self.connections.get(id).is_some_and(|connection| connection.local_qpn == request.remote_qpn);
        match found {
            Some((id, State::Established | State::Accepting | State::Replied | State::Leaving)) if is_ours(&id) => {
                self.end(now, id);
            }
            Some((_, State::Timewait)) => self.counters.duplicate += 1,
            Some(_) => return self.counters.unexpected += 1,
            None => self.counters.unknown_connection += 1,
        }
        self.send(from, transaction, &reply.into());
    }

    fn on_disconnect_reply(&mut self, now: Moment, from: Peer, transaction: u64, reply: &DisconnectReply) {
        match self.find(from, reply.remote_id, reply.local_id, transaction) {
            // In the state Established: the answer to `ask_whether_known`.
            Some((id, State::Leaving | State::Established)) => self.end(now, id),
            Some((_, State::Timewait)) => self.counters.duplicate += 1,
            Some(_) => self.counters.unexpected += 1,
            None => self.counters.unknown_connection += 1,
        }
    }

    fn on_service_request(&mut self, from: Peer, transaction: u64, request: ServiceRequest) {
        if let Some(&id) = self.requests.get(&(from.gid, request.request_id, true)) {
            self.counters.duplicate += 1;
            if self.state(id) == Some(State::Answered) {
                self.send_again(id);
            }
            return;
        }
        let service = ServiceId(request.service);
        let is_offered = self.listeners.contains_key(&service);
        if !is_offered || !self.has_room(from, request.request_id, service) {
            self.counters.refused += 1;
            let status = if is_offered { service_status::NO_QUEUE_PAIR } else { service_status::UNSUPPORTED };
            let (request_id, service) = (request.request_id, request.service);
            let reply = ServiceReply { request_id, status, service, ..ServiceReply::empty() };
            return self.send(from, transaction, &reply.into());
        }
        let terms = Terms { peer: from, ..Terms::default() };
        let connection = Connection::new(State::Inquired, terms, transaction, SOONEST);
        let (owner, id) = self.admit(connection, service, request.request_id, true);
        self.tell(Event::ServiceRequested { owner, id, peer: from, request: Box::new(request) });
    }

    fn on_service_reply(&mut self, now: Moment, from: Peer, transaction: u64, reply: ServiceReply) {
        let is_offered = reply.status != service_status::UNSUPPORTED;
        match self.find(from, reply.request_id, 0, transaction) {
            Some((id, State::Inquiring)) if !is_offered && self.calls_again(now, id) => {}
            Some((id, State::Inquiring)) => self.fail(Event::ServiceReplied(id, Box::new(reply))),
            Some(_) => self.counters.unexpected += 1,
            None => self.counters.unknown_connection += 1,
        }
    }
}
