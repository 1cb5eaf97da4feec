//! Queue pair 1, which the programs of a card share: each with connections of its own.

use super::*;
use millrace_rdma::cm::Manager;
use millrace_rdma::cm::address::{IpHeader, ServiceId, ip_of};
use millrace_rdma::cm::connection::{Call, Event as Told, Id, Offer, Peer, State as Stands};
use millrace_rdma::cm::manager::{Ids, Options as CmOptions};
use millrace_rdma::cm::message::{
    DisconnectReply, DisconnectRequest, GENERAL_QKEY, Message, Postponement, Ready, Rejection, Reply, ServiceReply,
    ServiceRequest, build, parse, reason, service_status,
};
use millrace_rdma::cm::message::{LEN as MESSAGE, Request as Called};
use millrace_rdma::served::{ID_BITS, ServeError};
use millrace_rdma::transport::Origin;
use millrace_rdma::wire::{Deth, Opcode, Packet, Place};
use std::time::Duration;

/// Bytes of a buffer, and how many there are.
const SLOT: u64 = 320;
const SLOTS: u64 = 64;
/// Where they begin in the memory of a program.
const SLOTS_AT: u64 = 1 << 20;
const FAR: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 9]);
const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const HERE: Peer = Peer { gid: GID, index: 0 };

fn port(number: u16) -> ServiceId {
    ServiceId::new(0x0106, number)
}

/// A program with connections.
struct Cm {
    end: End,
    general: Qpn,
    first_id: u32,
    /// Queue pairs, one for each connection.
    spare: Vec<Qpn>,
    manager: Manager,
    events: Vec<Told>,
}

/// Gives a program its part of queue pair 1, ready to send and with buffers.
fn join_general(service: &mut Service, end: &mut End) -> Qpn {
    let capabilities =
        Capabilities { send_requests: 64, receive_requests: 64, send_pieces: 2, receive_pieces: 2, inline: 256 };
    let init = Init { service: Kind::UnreliableDatagram, general: true, ..init(end.domain, end.queue, capabilities) };
    let (qpn, granted) = service.create_pair(end.number, &init).unwrap();
    end.program.add_pair(qpn, &granted, false);
    let init =
        Attributes { pkey_index: Some(0), port: Some(1), qkey: Some(GENERAL_QKEY), ..Attributes::state(State::Init) };
    let last = Attributes { send_psn: Some(Psn::new(0)), ..Attributes::state(State::ReadyToSend) };
    for told in [init, Attributes::state(State::ReadyToReceive), last] {
        service.modify_pair(end.number, qpn, &told).unwrap();
    }
    for slot in 0..SLOTS {
        post_slot(end, qpn, slot);
    }
    qpn
}

fn post_slot(end: &mut End, qpn: Qpn, slot: u64) {
    let piece = [end.piece(SLOTS_AT + slot * SLOT, SLOT as u32)];
    end.program.post_receive(qpn, 1000 + slot, &piece).unwrap();
}

impl Cm {
    fn new(service: &mut Service, seed: u64) -> Self {
        let mut end = end(service);
        let general = join_general(service, &mut end);
        let first_id = service.first_id(end.number).unwrap();
        let ids = Ids { first: first_id, bits: ID_BITS, gids: [GID; 4] };
        let manager = Manager::new(CmOptions { seed, ids, ..CmOptions::default() });
        let capabilities =
            Capabilities { send_requests: 1, receive_requests: 1, send_pieces: 1, receive_pieces: 1, inline: 0 };
        let wanted = init(end.domain, end.queue, capabilities);
        let spare = (0..64).map(|_| service.create_pair(end.number, &wanted).unwrap().0).collect();
        Self { end, general, first_id, spare, manager, events: Vec::new() }
    }

    fn listen(&mut self, service: &mut Service, now: u64, number: u16) -> Result<(), ServeError> {
        service.offer(Moment::new(now), self.end.number, port(number))?;
        self.manager.listen(port(number), number.into(), 100).unwrap();
        Ok(())
    }

    /// Calls a port of another program of this card.
    fn call(&mut self, now: u64, number: u16, said: u8) -> Id {
        let qpn = self.spare.pop().unwrap();
        self.manager.connect(Moment::new(now), &call(qpn, number, said)).unwrap()
    }

    /// Posts a message to queue pair 1 of this card.
    fn post(&mut self, id: u64, bytes: &[u8]) {
        self.post_to(id, Target { path: PATH, qpn: Qpn::GENERAL, qkey: GENERAL_QKEY }, Data::Inline(&[bytes]));
    }

    fn post_to(&mut self, id: u64, target: Target, data: Data<'_>) {
        let flags = Flags { signaled: true, ..Flags::default() };
        let request = Request { id, operation: Operation::Send, data, flags, target: Some(&target) };
        self.end.program.post_send(self.general, &request).unwrap();
    }

    /// Messages that have come, and requests that have ended.
    fn take(&mut self) -> (Vec<Vec<u8>>, Vec<(u64, Status)>) {
        let (mut came, mut ended) = (Vec::new(), Vec::new());
        for line in self.end.poll() {
            if line.ended != Ended::Receive {
                ended.push((line.id, line.status));
                continue;
            }
            // After the last test of its queue pair, which fails.
            if line.status == Status::Flushed {
                continue;
            }
            assert_eq!((line.status, line.source, line.has_grh), (Status::Success, Qpn::GENERAL, true));
            let slot = line.id - 1000;
            came.push(self.end.bytes((SLOTS_AT + slot * SLOT) as usize + 40, line.len as usize - 40));
            post_slot(&mut self.end, self.general, slot);
        }
        (came, ended)
    }

    /// Messages go, those that have come are looked at, and requests are accepted. Whether something moved.
    fn step(&mut self, now: u64) -> bool {
        let moment = Moment::new(now);
        self.manager.tick(moment);
        let (came, _) = self.take();
        for bytes in &came {
            self.manager.receive(moment, HERE, bytes);
        }
        let mut moved = !came.is_empty();
        while let Some(event) = self.manager.take_event() {
            match &event {
                Told::Requested { id, request, .. } => {
                    assert!(self.manager.see(*id));
                    let offer = Offer { qpn: self.spare.pop().unwrap(), ..Offer::default() };
                    self.manager.accept(moment, *id, 1, &offer, [request.private[36]; 196]).unwrap();
                }
                Told::Replied(id, _) => self.manager.ready(moment, *id).unwrap(),
                _ => {}
            }
            self.events.push(event);
        }
        while let Some((to, bytes)) = self.manager.take_message() {
            assert_eq!(to, HERE);
            self.post(1, &bytes[..]);
            moved = true;
        }
        moved
    }

    /// What the other end of a connection has said when it accepted it.
    fn said(&self, of: Id) -> Option<u8> {
        self.events.iter().find_map(|event| match event {
            Told::Replied(id, reply) if *id == of => Some(reply.private[0]),
            _ => None,
        })
    }
}

fn call(qpn: Qpn, number: u16, said: u8) -> Call {
    let header = IpHeader { source_port: 1, source: ip_of(GID), destination: ip_of(GID) };
    let mut private = [said; 92];
    private[..36].copy_from_slice(&header.build());
    Call {
        peer: HERE,
        own: GID,
        guid: 1,
        service: port(number),
        offer: Offer { qpn, retry_count: 7, ..Offer::default() },
        unreliable: false,
        mtu: 5,
        ack_timeout: 14,
        traffic_class: 0,
        private,
    }
}

/// Until nothing moves.
fn settle(service: &mut Service, now: &mut u64, programs: &mut [&mut Cm]) {
    for _ in 0..1000 {
        run(service, now);
        // All of them, and not only up to the first that moves.
        if programs.iter_mut().filter_map(|program| program.step(*now).then_some(())).count() == 0 {
            return;
        }
    }
    panic!("it moves for ever");
}

#[test]
fn calls_go_to_who_offers_the_port_and_answers_to_who_has_called() {
    let mut service = service();
    let [mut a, mut b, mut c] = [1, 2, 3].map(|seed| Cm::new(&mut service, seed));
    let mut now = 1000;
    a.listen(&mut service, now, 10).unwrap();
    b.listen(&mut service, now, 11).unwrap();
    assert!(matches!(c.listen(&mut service, now, 11), Err(ServeError::Offered)));
    let ids = [c.call(now, 10, 77), c.call(now, 11, 78)];
    let other = a.call(now, 11, 79);
    settle(&mut service, &mut now, &mut [&mut a, &mut b, &mut c]);
    assert_eq!((c.said(ids[0]), c.said(ids[1]), a.said(other)), (Some(77), Some(78), Some(79)));
    assert_eq!((a.manager.len(), b.manager.len(), c.manager.len()), (2, 2, 2));
    for program in [&a, &b, &c] {
        let ids = program.events.iter().map(Told::id);
        assert!(ids.map(|id| id >> ID_BITS).all(|tag| tag == program.first_id >> ID_BITS));
    }
    // One leaves: the other end of that connection is told, and nobody else.
    c.manager.disconnect(Moment::new(now), ids[0]).unwrap();
    settle(&mut service, &mut now, &mut [&mut a, &mut b, &mut c]);
    let over = |cm: &Cm| cm.events.iter().filter(|event| matches!(event, Told::Disconnected(_))).count();
    assert_eq!((over(&a), over(&b), over(&c)), (1, 0, 1));
    let counters = service.general_counters();
    assert_eq!((counters.given, counters.forged, counters.unknown_connection), (11, 0, 0));
}

#[test]
fn a_port_is_one_programs_until_it_ends_and_there_are_only_so_many() {
    let mut service = service();
    let mut now = 1000;
    let mut a = Cm::new(&mut service, 1);
    let mut b = Cm::new(&mut service, 2);
    (10..13).for_each(|number| a.listen(&mut service, now, number).unwrap());
    (1000..2021).for_each(|number| service.offer(Moment::new(now), a.end.number, port(number)).unwrap());
    a.listen(&mut service, now, 12).unwrap();
    assert!(matches!(a.listen(&mut service, now, 13), Err(ServeError::Quota { .. })));
    assert_eq!(b.listen(&mut service, now, 12).unwrap_err().errno(), 98);
    // Nobody gives away what is another's.
    service.withdraw(b.end.number, port(12));
    assert!(b.listen(&mut service, now, 12).is_err());
    service.withdraw(a.end.number, port(12));
    b.listen(&mut service, now, 12).unwrap();
    a.listen(&mut service, now, 13).unwrap();
    let (of_a, id) = (a.first_id, b.call(now, 10, 1));
    drop(service.leave(Moment::new(now), a.end.number));
    for number in [10, 11, 13] {
        service
            .offer(Moment::new(now), b.end.number, port(number))
            .unwrap_or_else(|error| assert!(number == 13, "{error}"));
    }
    // Its numbers are nobody's: who asks after one is told so.
    settle(&mut service, &mut now, &mut [&mut b]);
    b.take();
    let ready = Ready { local_id: id, remote_id: of_a, ..Ready::empty() };
    let leaves = DisconnectRequest { local_id: id, remote_id: of_a, ..DisconnectRequest::empty() };
    b.post(1, &build(1, &ready.into()));
    b.post(2, &build(2, &leaves.into()));
    run(&mut service, &mut now);
    let (came, _) = b.take();
    assert_eq!(came.len(), 1);
    let answer = DisconnectReply { local_id: of_a, remote_id: id, ..DisconnectReply::empty() };
    assert_eq!(parse(&came[0]), Ok((2, answer.into())));
    assert_eq!(service.general_counters().unknown_connection, 1);
    // One program has one queue pair for it, and without it nobody offers anything.
    let init = Init {
        service: Kind::UnreliableDatagram,
        general: true,
        ..init(b.end.domain, b.end.queue, Capabilities { send_requests: 1, send_pieces: 1, ..Capabilities::default() })
    };
    assert_eq!(service.create_pair(b.end.number, &init).unwrap_err().errno(), 16);
    service.destroy_pair(b.end.number, b.general).unwrap();
    assert!(matches!(b.listen(&mut service, now, 20), Err(ServeError::Gone)));
    assert!(service.create_pair(b.end.number, &init).is_ok());
}

/// All kinds of messages that a program may send, of one that has those numbers and that queue pair.
fn all_kinds(id: u32, other: u32, qpn: Qpn) -> Vec<Message> {
    let call = call(qpn, 10, 0);
    let request = Called {
        local_id: id,
        local_qpn: qpn,
        service: call.service.0,
        primary_local_gid: GID,
        private: call.private,
        path_mtu: 5,
        ..Called::empty()
    };
    let mut private = [0; 216];
    private[..92].copy_from_slice(&call.private);
    vec![
        request.into(),
        Reply { local_id: id, remote_id: other, local_qpn: qpn, ..Reply::empty() }.into(),
        Postponement { local_id: id, remote_id: other, ..Postponement::empty() }.into(),
        Rejection { local_id: id, remote_id: other, ..Rejection::empty() }.into(),
        Ready { local_id: id, remote_id: other, ..Ready::empty() }.into(),
        DisconnectRequest { local_id: id, remote_id: other, ..DisconnectRequest::empty() }.into(),
        DisconnectReply { local_id: id, remote_id: other, ..DisconnectReply::empty() }.into(),
        ServiceRequest { request_id: id, service: call.service.0, pkey: 0, private }.into(),
    ]
}

#[test]
fn nobody_speaks_for_another_program() {
    let mut service = service();
    let [mut victim, mut other, mut forger] = [1, 2, 3].map(|seed| Cm::new(&mut service, seed));
    let mut now = 1000;
    victim.listen(&mut service, now, 10).unwrap();
    let id = other.call(now, 10, 5);
    settle(&mut service, &mut now, &mut [&mut victim, &mut other]);
    let passive = victim.events[0].id();
    let before = service.general_counters();

    let own = forger.first_id | 7;
    let mut wrong: Vec<Vec<u8>> = Vec::new();
    // With the number of another one.
    wrong.extend(all_kinds(id, passive, forger.end.qpn).iter().map(|message| build(1, message).to_vec()));
    // With its queue pair, where one is named; with another address; in the name of another address.
    let qpn = other.end.qpn;
    wrong.extend(all_kinds(own, passive, qpn)[..2].iter().map(|message| build(1, message).to_vec()));
    for at in [24 + 56 + 15, 24 + 140 + 4 + 15] {
        let mut bytes = build(1, &all_kinds(own, 0, forger.end.qpn)[0]);
        bytes[at] ^= 1;
        wrong.push(bytes.to_vec());
    }
    let mut bytes = build(1, &all_kinds(own, 0, forger.end.qpn)[7]);
    bytes[24 + 16 + 1] = 0x50;
    wrong.push(bytes.to_vec());
    // What is no message.
    wrong.extend([vec![], vec![7; MESSAGE], vec![0; 17]]);
    let mut expected = wrong.len() as u64;
    for (number, bytes) in wrong.iter().enumerate() {
        forger.post(number as u64, bytes);
        if number % 8 == 7 {
            run(&mut service, &mut now);
        }
    }
    run(&mut service, &mut now);
    // Bytes that could be changed after they were looked at, and what is not for queue pair 1.
    let right = build(1, &all_kinds(own, passive, forger.end.qpn)[4]);
    forger.end.fill(0, &right[..]);
    let general = Target { path: PATH, qpn: Qpn::GENERAL, qkey: GENERAL_QKEY };
    let piece = [forger.end.piece(0, MESSAGE as u32)];
    forger.post_to(90, general, Data::Pieces(&piece));
    forger.post_to(91, Target { qpn: victim.general, ..general }, Data::Inline(&[&right[..]]));
    forger.post_to(92, general, Data::Inline(&[&right[..128], &right[128..]]));
    expected += 2;
    run(&mut service, &mut now);
    let counters = service.general_counters();
    assert_eq!((counters.forged, counters.given), (expected, before.given + 1), "only the one that is right");
    let (came, ended) = forger.take();
    assert!(came.is_empty() && ended.iter().all(|(_, status)| *status == Status::Success), "{ended:?}");
    let order: Vec<_> = ended.iter().map(|(id, _)| *id).collect();
    assert_eq!(order, (0..wrong.len() as u64).chain([90, 91, 92]).collect::<Vec<_>>());

    // By a queue pair of its own, it is not queue pair 1 of anybody.
    let datagrams = datagrams(&mut service, &mut forger.end);
    let flags = Flags { signaled: true, ..Flags::default() };
    let piece = [forger.end.piece(0, MESSAGE as u32)];
    for qkey in [GENERAL_QKEY, QKEY] {
        let target = Target { qkey, ..general };
        let request =
            Request { id: 1, operation: Operation::Send, data: Data::Pieces(&piece), flags, target: Some(&target) };
        forger.end.program.post_send(datagrams, &request).unwrap();
    }
    run(&mut service, &mut now);
    assert_eq!(service.general_counters().foreign, 2);
    // Nor to the number of the queue pair that stands for it, by which nothing would be looked at or counted; nor from the wire.
    let target = Target { qpn: victim.general, ..general };
    let request =
        Request { id: 1, operation: Operation::Send, data: Data::Pieces(&piece), flags, target: Some(&target) };
    forger.end.program.post_send(datagrams, &request).unwrap();
    run(&mut service, &mut now);
    comes_to(&mut service, now, FAR, (1, victim.general), &right[..]);
    comes_to(&mut service, now, FAR, (0x77, victim.general), &right[..]);
    run(&mut service, &mut now);
    assert_eq!(service.general_counters().evading, 3);
    // Another address is no business of this queue pair either, and fails it as any other.
    let path = Path { source: FAR, ..PATH };
    forger.post_to(93, Target { path, ..general }, Data::Inline(&[&right[..]]));
    run(&mut service, &mut now);
    assert!(forger.take().1.contains(&(93, Status::LocalOperation)));

    settle(&mut service, &mut now, &mut [&mut victim, &mut other]);
    assert_eq!(victim.manager.state(passive), Some(Stands::Established));
    assert_eq!(other.manager.state(id), Some(Stands::Established));
    assert_eq!(
        victim.manager.counters().received,
        3,
        "REQ and RTU of one connection, and the forger's RTU, which is about none"
    );
    assert_eq!(victim.manager.counters().unknown_connection, 1);
}

#[test]
fn a_call_waits_for_who_offers_it_late_and_may_be_taken_back() {
    let mut service = service();
    let [mut a, mut b] = [1, 2].map(|seed| Cm::new(&mut service, seed));
    let mut now = 1000;
    let ids = [b.call(now, 10, 7), b.call(now, 11, 8), b.call(now, 12, 9)];
    settle(&mut service, &mut now, &mut [&mut a, &mut b]);
    assert_eq!(service.general_counters().early, 3);
    b.manager.destroy(Moment::new(now), ids[2]);
    settle(&mut service, &mut now, &mut [&mut a, &mut b]);
    assert_eq!(service.general_counters().withdrawn, 1);
    now += 100_000_000;
    a.listen(&mut service, now, 10).unwrap();
    a.listen(&mut service, now, 12).unwrap();
    settle(&mut service, &mut now, &mut [&mut a, &mut b]);
    assert_eq!((b.said(ids[0]), a.events.len()), (Some(7), 2));
    // The other one is refused after half a second, calls again for one, and is told then.
    for _ in 0..200 {
        now += 10_000_000;
        settle(&mut service, &mut now, &mut [&mut a, &mut b]);
    }
    let refused = |event: &Told| matches!(event, Told::Rejected(id, reason::INVALID_SERVICE, _) if *id == ids[1]);
    assert!(b.events.iter().any(refused));
    // Before it is answered, a call has no number here: it was given to `a`, and so is its end.
    let id = b.call(now, 10, 5);
    let (_, bytes) = b.manager.take_message().unwrap();
    b.post(1, &bytes[..]);
    b.manager.destroy(Moment::new(now), id);
    let (_, bytes) = b.manager.take_message().unwrap();
    assert!(matches!(parse(&bytes[..]), Ok((_, Message::Rejection(rejection))) if rejection.remote_id == 0));
    b.post(1, &bytes[..]);
    run(&mut service, &mut now);
    let (came, _) = a.take();
    came.iter().for_each(|bytes| a.manager.receive(Moment::new(now), HERE, bytes));
    let Some(Told::Requested { id, .. }) = a.manager.take_event() else { panic!("no request") };
    assert!(!a.manager.see(id), "it was taken back");
}

/// What goes to other hosts.
#[derive(Default)]
struct Wire {
    sent: Vec<(Path, Headers, Vec<u8>)>,
    is_full: bool,
}

impl Out for Wire {
    fn packet<F>(&mut self, path: &Path, _: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        if self.is_full {
            return Sent::Busy;
        }
        let mut bytes = vec![0; len];
        fill(&mut bytes).unwrap();
        self.sent.push((*path, *headers, bytes));
        Sent::Taken
    }
}

impl Wire {
    fn turns(&mut self, service: &mut Service, now: &mut u64) {
        for _ in 0..100_000 {
            *now += 1000;
            if !service.turn(Moment::new(*now), self).moved {
                return;
            }
        }
        panic!("it moves for ever");
    }

    /// Messages that went to that host, which come from queue pair 1.
    fn messages(&mut self) -> Vec<(u64, Message)> {
        let parsed = |(path, headers, bytes): (Path, Headers, Vec<u8>)| {
            assert_eq!((path.source, path.destination, path.destination_mac), (GID, FAR, FAR_MAC));
            assert_eq!(headers.deth, Some(Deth { qkey: GENERAL_QKEY, source: Qpn::GENERAL }));
            assert_eq!(headers.destination, Qpn::GENERAL);
            parse(&bytes).unwrap()
        };
        self.sent.drain(..).map(parsed).collect()
    }
}

/// Something comes from the wire to queue pair 1.
fn comes(service: &mut Service, now: u64, from: Gid, source: u32, bytes: &[u8]) {
    comes_to(service, now, from, (source, Qpn::GENERAL), bytes);
}

fn comes_to(service: &mut Service, now: u64, from: Gid, (source, to): (u32, Qpn), bytes: &[u8]) {
    let opcode = Opcode::Send { place: Place::Only, immediate: false, invalidate: false };
    let mut headers = Headers::new(Kind::UnreliableDatagram, opcode, to, Psn::new(0));
    headers.deth = Some(Deth { qkey: GENERAL_QKEY, source: Qpn::new(source) });
    let path = Path { destination: from, destination_mac: FAR_MAC, ..PATH };
    let origin = Origin { path, grh: [1; 40], congested: false, service_level: 10 };
    service.receive(Moment::new(now), &Packet { headers, payload: bytes }, &origin);
}

#[test]
fn what_is_for_nobody_is_answered_or_dropped_and_counted() {
    let (mut service, mut wire, mut now) = (service(), Wire::default(), 1000);
    let mut a = Cm::new(&mut service, 1);
    a.listen(&mut service, now, 10).unwrap();
    let nobodys = a.first_id ^ 1 << 31;
    let kinds = all_kinds(5, nobodys, Qpn::new(99));
    for (number, message) in kinds.iter().enumerate().skip(1) {
        let message = match message {
            // Of a service that nobody offers.
            Message::ServiceRequest(m) => ServiceRequest { service: port(11).0, ..*m }.into(),
            other => *other,
        };
        comes(&mut service, now, FAR, 1, &build(number as u64, &message));
    }
    let told = ServiceReply { request_id: nobodys, ..ServiceReply::empty() };
    comes(&mut service, now, FAR, 1, &build(20, &told.into()));
    wire.turns(&mut service, &mut now);
    let id = reason::INVALID_ID;
    let (status, request_id, offered) = (service_status::UNSUPPORTED, 5, port(11).0);
    let expected: [(u64, Message); 3] = [
        (1, Rejection { remote_id: 5, about: 1, reason: id, ..Rejection::empty() }.into()),
        (5, DisconnectReply { local_id: nobodys, remote_id: 5, ..DisconnectReply::empty() }.into()),
        (7, ServiceReply { request_id, status, service: offered, ..ServiceReply::empty() }.into()),
    ];
    assert_eq!(wire.messages(), expected);
    // MRA, REJ, RTU, DREP, SIDR_REP.
    assert_eq!((service.general_counters().unknown_connection, service.general_counters().refused), (5, 3));

    // Calls of what nobody offers wait: eight of one host, 64 in all.
    let Message::Request(request) = kinds[0] else { panic!("no call") };
    let call = |id| build(7, &Called { local_id: id, service: port(11).0, ..request }.into());
    for number in 0..10 {
        comes(&mut service, now, FAR, 1, &call(number));
    }
    comes(&mut service, now, FAR, 1, &call(3));
    for host in 0..70 {
        let mut gid = FAR;
        gid.0[13] = host + 1;
        comes(&mut service, now, gid, 1, &call(3));
    }
    let counters = service.general_counters();
    assert_eq!((counters.early, counters.duplicate, counters.refused), (64, 1, 3 + 2 + 70 - 56));
    wire.turns(&mut service, &mut now);
    wire.sent.clear();
    assert!(service.turn(Moment::new(now), &mut wire).next.is_some(), "it would be slept over");
    now += 500_000_000;
    wire.turns(&mut service, &mut now);
    assert_eq!(wire.sent.len(), 64);
    assert_eq!(service.general_counters().refused, 3 + 16 + 64);

    // What is none, by reason.
    let right = call(90);
    let changed = |at: usize, value| {
        let mut bytes = right;
        bytes[at] = value;
        bytes
    };
    comes(&mut service, now, FAR, 2, &right);
    comes(&mut service, now, FAR, 1, &right[..255]);
    comes(&mut service, now, FAR, 1, &changed(0, 2));
    comes(&mut service, now, FAR, 1, &changed(3, 1));
    comes(&mut service, now, FAR, 1, &changed(1, 4));
    comes(&mut service, now, FAR, 1, &changed(17, 0x19));
    let found = service.general_counters();
    let malformed = (found.malformed_length, found.malformed_header, found.other_class, found.unknown_message);
    assert_eq!((found.foreign, malformed), (1, (1, 2, 1, 1)));
    // From the wire, and in the name of this card.
    comes(&mut service, now, GID, 1, &right);
    assert_eq!(service.counters().forged, 1);
    assert!(a.take().0.is_empty());

    // A wire that takes nothing loses answers, and nothing else waits for that.
    wire.is_full = true;
    wire.sent.clear();
    (0..5).for_each(|_| comes(&mut service, now, FAR, 1, &build(1, &kinds[5])));
    wire.turns(&mut service, &mut now);
    assert_eq!((wire.sent.len(), service.general_counters().no_room), (0, 5));
    wire.is_full = false;
    wire.turns(&mut service, &mut now);
    assert_eq!(wire.sent.len(), 0);
}

#[test]
fn a_flood_keeps_nobody_else_from_anything() {
    const MANY: u64 = 20_000;
    let (mut service, mut wire, mut now) = (service(), Wire::default(), 1000);
    let [mut victim, mut other, mut greedy] = [1, 2, 3].map(|seed| Cm::new(&mut service, seed));
    victim.listen(&mut service, now, 10).unwrap();
    other.listen(&mut service, now, 11).unwrap();
    let Message::Request(request) = all_kinds(5, 0, Qpn::new(99))[0] else { panic!("no call") };
    let call = |id, number| build(7, &Called { local_id: id, service: port(number).0, ..request }.into());
    // From the wire, for one, and for nobody: of each as much as may come at once.
    for number in 0..MANY {
        comes(&mut service, now, FAR, 1, &call(number as u32, 10));
        comes(&mut service, now, FAR, 1, &build(1, &all_kinds(5, 0, Qpn::new(99))[5]));
    }
    let flooded = service.general_counters();
    assert_eq!((flooded.given, flooded.flooded), (1024, 2 * (MANY - 1024)));
    assert_eq!((flooded.refused, flooded.no_room), (256, 1024 - 256));
    // From a program, for another one.
    let target = victim.first_id | 9;
    let mut flood = |greedy: &mut Cm, service: &mut Service, now: u64| {
        let bytes = build(1, &all_kinds(greedy.first_id | 9, target, greedy.end.qpn)[4]);
        let mut count = 0;
        while greedy.end.program.has_room(greedy.general, 1) {
            greedy.post(1, &bytes);
            count += 1;
        }
        // The clock stands.
        service.turn(Moment::new(now), &mut wire);
        greedy.take();
        count
    };
    while service.general_counters().throttled == 0 {
        flood(&mut greedy, &mut service, now);
    }
    let throttled = service.general_counters();
    let more = flood(&mut greedy, &mut service, now);
    assert!(more > 0);
    assert_eq!(service.general_counters().throttled, throttled.throttled + more);
    // Others connect meanwhile: with the one that nobody floods, and with the victim, when it has looked at what has come.
    let ids = [other.call(now, 10, 7), victim.call(now, 11, 8)];
    for _ in 0..100 {
        victim.step(now);
        other.step(now);
        flood(&mut greedy, &mut service, now);
        comes(&mut service, now, FAR, 1, &call(1, 11));
        now += 20_000;
    }
    assert_eq!((other.said(ids[0]), victim.said(ids[1])), (Some(7), Some(8)));
}

/// What programs do, and what happens to them.
#[derive(Clone, Debug)]
enum Step {
    Listen(usize, u16),
    Withdraw(usize, u16),
    Call(usize, u16),
    Leave(usize, usize),
    Dies(usize),
    Nonsense(usize, Vec<u8>),
    FromWire(Vec<u8>),
}

fn steps() -> impl Strategy<Value = Step> {
    let who = 0usize..4;
    let port = 10u16..14;
    let message = (0x0f_u8..0x1a, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(kind, rest)| {
        let mut bytes = vec![0; MESSAGE];
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[17] = kind;
        bytes[24..24 + rest.len()].copy_from_slice(&rest);
        bytes
    });
    prop_oneof![
        3 => (who.clone(), port.clone()).prop_map(|(who, port)| Step::Listen(who, port)),
        1 => (who.clone(), port.clone()).prop_map(|(who, port)| Step::Withdraw(who, port)),
        8 => (who.clone(), port).prop_map(|(who, port)| Step::Call(who, port)),
        2 => (who.clone(), any::<usize>()).prop_map(|(who, which)| Step::Leave(who, which)),
        1 => who.clone().prop_map(Step::Dies),
        2 => (who, message.clone()).prop_map(|(who, bytes)| Step::Nonsense(who, bytes)),
        2 => message.prop_map(Step::FromWire),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whoever is told that a call was answered has been answered by the one who offered that port, whatever others do; who dies leaves
    /// nothing behind.
    #[test]
    fn each_message_comes_to_whom_it_is_for(steps in prop::collection::vec(steps(), 1..60)) {
        let mut service = service();
        let mut programs: Vec<Cm> = (0..4).map(|seed| Cm::new(&mut service, seed)).collect();
        let (mut now, mut seed) = (1000, 100);
        let mut offered: std::collections::HashMap<u16, usize> = Default::default();
        for step in steps {
            match step {
                Step::Listen(who, number) => {
                    let taken = programs[who].listen(&mut service, now, number);
                    let owner = *offered.entry(number).or_insert(who);
                    prop_assert_eq!(taken.is_ok(), owner == who);
                }
                Step::Withdraw(who, number) => {
                    service.withdraw(programs[who].end.number, port(number));
                    programs[who].manager.unlisten(Moment::new(now), port(number));
                    if offered.get(&number) == Some(&who) {
                        offered.remove(&number);
                    }
                }
                Step::Call(who, number) => {
                    let owner = offered.get(&number).copied();
                    let said = seed as u8;
                    seed += 1;
                    let id = programs[who].call(now, number, said);
                    let mut all: Vec<_> = programs.iter_mut().collect();
                    settle(&mut service, &mut now, &mut all);
                    let answered = programs[who].said(id);
                    prop_assert_eq!(answered, owner.map(|_| said));
                    if let Some(owner) = owner {
                        let is_it = |event: &Told| matches!(event, Told::Requested { request, .. } if request.local_id == id);
                        let told: Vec<_> = (0..4).filter(|at| programs[*at].events.iter().any(is_it)).collect();
                        prop_assert_eq!(told, vec![owner]);
                    }
                }
                Step::Leave(who, which) => {
                    let ids: Vec<Id> = programs[who].events.iter().map(Told::id).collect();
                    if !ids.is_empty() {
                        let _ = programs[who].manager.disconnect(Moment::new(now), ids[which % ids.len()]);
                    }
                }
                Step::Dies(who) => {
                    seed += 1;
                    drop(service.leave(Moment::new(now), programs[who].end.number));
                    programs[who] = Cm::new(&mut service, seed);
                    offered.retain(|_, owner| *owner != who);
                }
                Step::Nonsense(who, bytes) => programs[who].post(1, &bytes),
                Step::FromWire(bytes) => comes(&mut service, now, FAR, 1, &bytes),
            }
            // Answers to the wire are nobody's here.
            Wire::default().turns(&mut service, &mut now);
            let mut all: Vec<_> = programs.iter_mut().collect();
            settle(&mut service, &mut now, &mut all);
            now += Duration::from_millis(3).as_nanos() as u64;
        }
        prop_assert_eq!(service.programs(), 4);
    }
}

/// How many ports a program takes, from that one on, until there are no more.
fn ports(service: &mut Service, of: &End, first: u16) -> usize {
    (first..).take_while(|number| service.offer(Moment::new(0), of.number, port(*number)).is_ok()).count()
}

/// With room for 64 ports.
fn narrow() -> Service {
    let few = Amounts { services: 64, ..Quota::default().all };
    let quota = Quota { all: few, ..Quota::default() };
    Service::new(Options { seed: 1, ..Options::default() }, MAC, &[GID], quota)
}

#[test]
fn a_user_with_many_programs_leaves_ports_to_others() {
    let mut service = narrow();
    let [eve, bob] = [1000, 1001].map(|uid| Account { uid, is_owner: false });
    let mut first = 0;
    let mut of = |account, programs: usize| -> usize {
        let of_one = |_| {
            let mut end = end_of(&mut service, account);
            join_general(&mut service, &mut end);
            first += 1000;
            ports(&mut service, &end, first)
        };
        (0..programs).map(of_one).sum()
    };
    assert_eq!(of(eve, 8), 16, "a half of what all but the owner have");
    assert_eq!((of(bob, 8), of(OWNER, 1)), (8, 20));
}

#[test]
fn ports_below_1024_are_for_the_owner() {
    let mut service = narrow();
    let eve = Account { uid: 1000, is_owner: false };
    let ends = [eve, OWNER].map(|account| {
        let mut end = end_of(&mut service, account);
        join_general(&mut service, &mut end);
        end
    });
    let now = Moment::new(0);
    for number in [1, 443, 1023] {
        assert!(matches!(service.offer(now, ends[0].number, port(number)), Err(ServeError::Reserved)));
        service.offer(now, ends[1].number, port(number)).unwrap();
    }
    service.offer(now, ends[0].number, port(1024)).unwrap();
}

#[test]
fn ports_that_are_given_back_are_there_for_others() {
    let mut service = narrow();
    let mut ends = [end(&mut service), end(&mut service), end(&mut service)];
    let pairs = ends.each_mut().map(|end| join_general(&mut service, end));
    assert_eq!(ports(&mut service, &ends[0], 1000), 32, "as many as are left");
    service.withdraw(ends[1].number, port(1000));
    service.withdraw(ends[0].number, port(2000));
    assert_eq!(ports(&mut service, &ends[0], 3000), 0);
    service.withdraw(ends[0].number, port(1000));
    service.offer(Moment::new(0), ends[0].number, port(1001)).unwrap();
    assert_eq!(ports(&mut service, &ends[0], 3000), 1);
    drop(service.destroy_pair(ends[0].number, pairs[0]).unwrap());
    assert_eq!(ports(&mut service, &ends[1], 1000), 32);
    drop(service.leave(Moment::new(0), ends[1].number));
    assert_eq!(ports(&mut service, &ends[2], 1000), 32);
}
