//! What the program does.

use super::{Error, Listener, Manager};
use crate::cm::address::ServiceId;
use crate::cm::connection::{Call, Connection, Event, Id, Offer, Peer, State, Terms};
use crate::cm::message::{
    DisconnectRequest, Ready, Rejection, Reply, Request, ServiceReply, ServiceRequest, reason, service_status, time_of,
};
use crate::number::{Moment, Qpn};

/// Hop limit of paths. More than 1, because Linux takes 1 for a path with local identifiers.
const HOP_LIMIT: u8 = 64;
/// 10 Gbit/s, of which nobody makes use.
const RATE: u8 = 3;
/// No local identifier.
const NO_LID: u16 = 0xffff;
const WHOLE_PARTITION: u16 = 0xffff;
/// No alternate path.
const NO_FAILOVER: u8 = 1;

impl Manager {
    /// Offers a service. `owner` is told with its requests; `backlog` is how many of them may wait unseen.
    ///
    /// # Errors
    /// Somebody else does.
    pub fn listen(&mut self, service: ServiceId, owner: u64, backlog: usize) -> Result<(), Error> {
        match self.listeners.get_mut(&service) {
            Some(listener) if listener.owner == owner => listener.backlog = backlog,
            Some(_) => return Err(Error::Taken),
            None => drop(self.listeners.insert(service, Listener { owner, backlog, unseen: 0 })),
        }
        Ok(())
    }

    /// Offers it no longer. Requests that nobody has seen are refused.
    pub fn unlisten(&mut self, now: Moment, service: ServiceId) {
        self.listeners.remove(&service);
        let unseen = |connection: &Connection| connection.is_unseen && connection.service == Some(service);
        let ids: Vec<_> = self.connections.iter().filter(|(_, one)| unseen(one)).map(|(id, _)| *id).collect();
        for id in ids {
            self.destroy(now, id);
        }
    }

    /// The program has seen a request. Whether it is still one: its sender may have taken it back.
    pub fn see(&mut self, id: Id) -> bool {
        self.unmark(id);
        let is_there = self.state(id).is_some_and(|state| state != State::Withdrawn);
        if !is_there {
            self.forget(id);
        }
        is_there
    }

    /// It is no longer one that nobody has seen.
    pub(super) fn unmark(&mut self, id: Id) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if core::mem::take(&mut connection.is_unseen)
            && let Some(listener) = connection.service.and_then(|service| self.listeners.get_mut(&service))
        {
            listener.unseen = listener.unseen.saturating_sub(1);
        }
    }

    fn begin(&mut self, now: Moment, state: State, terms: Terms) -> Result<Id, Error> {
        if self.connections.len() >= self.options.most_connections {
            return Err(Error::Full);
        }
        let (id, transaction) = (self.free_id(), self.transaction());
        let every = time_of(self.options.response_timeout);
        let connection = Connection::new(state, terms, transaction, every);
        self.connections.insert(id, Connection { began: Some(now), ..connection });
        Ok(id)
    }

    /// Calls somebody.
    ///
    /// # Errors
    /// There are as many connections as there may be.
    pub fn connect(&mut self, now: Moment, call: &Call) -> Result<Id, Error> {
        let offer = &call.offer;
        let terms = Terms {
            peer: call.peer,
            receive_psn: offer.psn,
            mtu: call.mtu,
            hop_limit: HOP_LIMIT,
            traffic_class: call.traffic_class,
            ack_timeout: call.ack_timeout,
            retry_count: offer.retry_count,
            unreliable: call.unreliable,
            ..Terms::default()
        };
        let id = self.begin(now, State::Calling, terms)?;
        if let Some(connection) = self.connections.get_mut(&id) {
            (connection.local_qpn, connection.guid) = (offer.qpn, call.guid);
        }
        let response_timeout = self.options.response_timeout;
        let request = Request {
            local_id: id,
            service: call.service.0,
            local_guid: call.guid,
            local_qpn: offer.qpn,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            remote_response_timeout: response_timeout,
            transport: call.unreliable.into(),
            flow_control: offer.flow_control,
            starting_psn: offer.psn,
            local_response_timeout: response_timeout,
            retry_count: offer.retry_count,
            pkey: WHOLE_PARTITION,
            path_mtu: call.mtu,
            rnr_retry_count: offer.rnr_retry_count,
            max_retries: self.options.retries,
            shared_receive: offer.shared_receive,
            primary_local_lid: NO_LID,
            primary_remote_lid: NO_LID,
            primary_local_gid: call.own,
            primary_remote_gid: call.peer.gid,
            primary_rate: RATE,
            primary_traffic_class: call.traffic_class,
            primary_hop_limit: HOP_LIMIT,
            primary_ack_timeout: call.ack_timeout,
            private: call.private,
            ..Request::empty()
        };
        self.send_kept(now, id, &request.into());
        Ok(id)
    }

    /// Asks for the queue pair of a datagram service.
    ///
    /// # Errors
    /// There are as many connections as there may be.
    pub fn inquire(&mut self, now: Moment, peer: Peer, service: ServiceId, private: [u8; 216]) -> Result<Id, Error> {
        let id = self.begin(now, State::Inquiring, Terms { peer, hop_limit: HOP_LIMIT, ..Terms::default() })?;
        let request = ServiceRequest { request_id: id, pkey: WHOLE_PARTITION, service: service.0, private };
        self.send_kept(now, id, &request.into());
        Ok(id)
    }

    fn in_state(&mut self, id: Id, states: &[State]) -> Result<&mut Connection, Error> {
        let connection = self.connections.get_mut(&id).filter(|one| !one.is_orphan).ok_or(Error::Unknown)?;
        if states.contains(&connection.state) { Ok(connection) } else { Err(Error::State) }
    }

    /// Says what the own queue pair will be, before it is accepted: what [`Manager::terms`] tells from then on.
    ///
    /// # Errors
    /// It is no request of somebody else.
    pub fn offer(&mut self, id: Id, offer: &Offer) -> Result<(), Error> {
        let connection = self.in_state(id, &[State::Asked])?;
        connection.local_qpn = offer.qpn;
        connection.terms.receive_psn = offer.psn;
        connection.terms.responder_resources = offer.responder_resources;
        connection.terms.initiator_depth = offer.initiator_depth;
        Ok(())
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// It is no request of somebody else.
    pub fn accept(&mut self, now: Moment, id: Id, guid: u64, offer: &Offer, private: [u8; 196]) -> Result<(), Error> {
        self.offer(id, offer)?;
        self.unmark(id);
        let connection = self.in_state(id, &[State::Asked])?;
        connection.state = State::Accepting;
        connection.guid = guid;
        let remote_id = connection.remote_id;
        let pair = (connection.terms.peer.gid, connection.terms.remote_qpn);
        self.pairs.insert(pair, id);
        let reply = Reply {
            local_id: id,
            remote_id,
            local_qpn: offer.qpn,
            starting_psn: offer.psn,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            failover: NO_FAILOVER,
            flow_control: offer.flow_control,
            rnr_retry_count: offer.rnr_retry_count,
            shared_receive: offer.shared_receive,
            local_guid: guid,
            private,
            ..Reply::empty()
        };
        self.send_kept(now, id, &reply.into());
        Ok(())
    }

    /// The queue pair is ready, after [`Event::Replied`].
    ///
    /// # Errors
    /// Nobody has replied.
    pub fn ready(&mut self, now: Moment, id: Id) -> Result<(), Error> {
        let connection = self.in_state(id, &[State::Replied])?;
        connection.state = State::Established;
        let ready = Ready { local_id: id, remote_id: connection.remote_id, ..Ready::empty() };
        self.send_kept(now, id, &ready.into());
        Ok(())
    }

    /// Data of the other end have come, so it is ready, whether its message has come or not (volume 1, 12.9.6).
    ///
    /// # Errors
    /// There is no such connection.
    pub fn heard(&mut self, id: Id) -> Result<(), Error> {
        if self.in_state(id, &[State::Accepting, State::Established])?.state == State::Accepting {
            self.establish(id);
        }
        Ok(())
    }

    pub(super) fn establish(&mut self, id: Id) {
        self.settle(id);
        self.change(id, State::Established);
        self.arm(id, None);
        self.tell(Event::Established(id));
    }

    /// Refuses a request, or what has become of one's own. The connection is forgotten.
    ///
    /// # Errors
    /// There is nothing to refuse.
    pub fn reject(&mut self, now: Moment, id: Id, private: [u8; 148]) -> Result<(), Error> {
        let state = self.in_state(id, &[State::Asked, State::Replied, State::Accepting, State::Inquired])?.state;
        if state == State::Inquired {
            return self.answer(now, id, service_status::REJECTED, Qpn::new(0), 0, [0; 136]);
        }
        self.dismiss(id, reason::CONSUMER, private);
        Ok(())
    }

    /// REJ, and forgets it.
    pub(super) fn dismiss(&mut self, id: Id, reason: u16, private: [u8; 148]) {
        let Some(connection) = self.connections.get(&id) else { return };
        let about = match connection.state {
            State::Asked => 0,
            State::Replied => 1,
            _ => 2,
        };
        let (peer, transaction, remote_id) = (connection.terms.peer, connection.transaction, connection.remote_id);
        let mut rejection = Rejection { local_id: id, remote_id, about, reason, private, ..Rejection::empty() };
        if reason == reason::TIMEOUT {
            // Who has sent nothing knows the connection by this end's adapter and number (12.6.7.2).
            rejection.information_len = 8;
            rejection.information[..8].copy_from_slice(&connection.guid.to_be_bytes());
        }
        self.send(peer, transaction, &rejection.into());
        self.forget(id);
    }

    /// Answers a request for a datagram service.
    ///
    /// # Errors
    /// It is none.
    pub fn answer(
        &mut self,
        now: Moment,
        id: Id,
        status: u8,
        qpn: Qpn,
        qkey: u32,
        private: [u8; 136],
    ) -> Result<(), Error> {
        self.unmark(id);
        let timewait = self.options.timewait;
        let connection = self.in_state(id, &[State::Inquired])?;
        connection.state = State::Answered;
        let service = connection.service.unwrap_or_default().0;
        let request_id = connection.remote_id;
        let reply = ServiceReply { request_id, status, qpn, service, qkey, private, ..ServiceReply::empty() };
        self.send_kept(now, id, &reply.into());
        self.arm(id, Some(now + timewait));
        Ok(())
    }

    /// Leaves a connection. That it is over comes as [`Event::Disconnected`].
    ///
    /// # Errors
    /// It is not one yet, or not any more.
    pub fn disconnect(&mut self, now: Moment, id: Id) -> Result<(), Error> {
        let states = [State::Established, State::Accepting, State::Replied, State::Leaving, State::Timewait];
        if matches!(self.in_state(id, &states)?.state, State::Leaving | State::Timewait) {
            return Ok(());
        }
        self.leave(now, id);
        Ok(())
    }

    /// DREQ.
    pub(super) fn leave(&mut self, now: Moment, id: Id) {
        let transaction = self.transaction();
        self.settle(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = State::Leaving;
        connection.transaction = transaction;
        let (remote_id, remote_qpn) = (connection.remote_id, connection.terms.remote_qpn);
        let request = DisconnectRequest { local_id: id, remote_id, remote_qpn, ..DisconnectRequest::empty() };
        self.send_kept(now, id, &request.into());
    }

    /// The program has no use of it any more: it is refused, left, or forgotten, and no event of it comes.
    pub fn destroy(&mut self, now: Moment, id: Id) {
        self.unmark(id);
        match self.state(id) {
            Some(State::Calling) => self.dismiss(id, reason::TIMEOUT, [0; 148]),
            Some(State::Asked | State::Replied | State::Accepting) => self.dismiss(id, reason::CONSUMER, [0; 148]),
            Some(State::Established) => self.leave(now, id),
            // It is in that state, so that it can be answered.
            Some(State::Inquired) => drop(self.reject(now, id, [0; 148])),
            Some(State::Inquiring | State::Withdrawn) => self.forget(id),
            Some(State::Leaving | State::Timewait | State::Answered) | None => {}
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_orphan = true;
        }
        self.events.retain(|event| event.id() != id);
    }

    /// Whether somebody has been told that a connection is over, and has not answered.
    pub fn is_leaving(&self) -> bool {
        self.connections.values().any(|connection| connection.state == State::Leaving)
    }

    /// Tells them again, at once: there will not be time to wait.
    pub fn leave_again(&mut self) {
        let is_leaving = |(id, one): (&Id, &Connection)| (one.state == State::Leaving).then_some(*id);
        let ids: Vec<_> = self.connections.iter().filter_map(is_leaving).collect();
        self.counters.sent_again += ids.len() as u64;
        ids.into_iter().for_each(|id| self.send_again(id));
    }

    /// Says that all is over, to all, once: the process ends.
    pub fn abandon(&mut self, now: Moment) {
        let ids: Vec<_> = self.connections.keys().copied().collect();
        for id in ids {
            self.destroy(now, id);
        }
    }
}
