use super::*;
use crate::cm::connection::{Call, Offer};
use crate::cm::message::{Malformed, Ready, Request, parse, reason, service_status};
use crate::number::Psn;
use proptest::prelude::*;

const SERVICE: ServiceId = ServiceId::new(0x0106, 7471);
const OWNER: u64 = 77;

fn gid(last: u8) -> Gid {
    let mut gid = [0; 16];
    (gid[10], gid[11], gid[15]) = (0xff, 0xff, last);
    Gid(gid)
}

fn peer(last: u8) -> Peer {
    Peer { gid: gid(last), index: 0 }
}

fn call(from: u8, to: u8, qpn: u32) -> Call {
    Call {
        peer: peer(to),
        own: gid(from),
        guid: from.into(),
        service: SERVICE,
        offer: Offer {
            qpn: Qpn::new(qpn),
            psn: Psn::new(1000 + qpn),
            responder_resources: 3,
            initiator_depth: 4,
            retry_count: 7,
            rnr_retry_count: 6,
            ..Offer::default()
        },
        unreliable: false,
        mtu: 3,
        ack_timeout: 14,
        traffic_class: 0x20,
        private: [0x55; 92],
    }
}

fn answer(qpn: u32) -> Offer {
    Offer {
        qpn: Qpn::new(qpn),
        psn: Psn::new(2000),
        responder_resources: 1,
        initiator_depth: 2,
        rnr_retry_count: 5,
        ..Offer::default()
    }
}

/// Two ends, 1 and 2, and what is on the way between them.
struct Wire {
    now: Moment,
    ends: [Manager; 2],
}

impl Wire {
    fn new() -> Self {
        let options = |seed| Options {
            seed,
            most_connections: 40,
            most_half_open: 20,
            most_half_open_of_one: 10,
            ..Options::default()
        };
        Self { now: Moment::new(0), ends: [1, 2].map(|seed| Manager::new(options(seed))) }
    }

    /// What waits arrives, as far as `arrives` lets it.
    fn pass(&mut self, mut arrives: impl FnMut() -> bool) {
        loop {
            let mut moved = false;
            for from in 0..2 {
                while let Some((to, bytes)) = self.ends[from].take_message() {
                    assert_eq!(to, peer(2 - from as u8));
                    moved = true;
                    if arrives() {
                        self.ends[1 - from].receive(self.now, peer(1 + from as u8), &bytes[..]);
                    }
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn settle(&mut self) {
        self.pass(|| true);
    }

    fn later(&mut self, time: Duration) {
        self.now = self.now + time;
        for end in &mut self.ends {
            while end.next_due().is_some_and(|due| due <= self.now) {
                end.tick(self.now);
            }
        }
    }

    fn event(&mut self, end: usize) -> String {
        self.ends[end].take_event().map_or_else(
            || "none".to_owned(),
            |event| {
                let text = format!("{event:?}");
                text.split([' ', '(']).next().unwrap().to_owned()
            },
        )
    }

    /// A connection that both have; the numbers.
    fn connected(&mut self, qpn: u32) -> [Id; 2] {
        let active = self.ends[0].connect(self.now, &call(1, 2, qpn)).unwrap();
        self.settle();
        let Some(Event::Requested { id: passive, .. }) = self.ends[1].take_event() else { panic!("no request") };
        assert!(self.ends[1].see(passive));
        self.ends[1].accept(self.now, passive, 2, &answer(qpn + 1000), [0x66; 196]).unwrap();
        self.settle();
        assert_eq!(self.event(0), "Replied");
        self.ends[0].ready(self.now, active).unwrap();
        self.settle();
        assert_eq!(self.event(1), "Established");
        [active, passive]
    }
}

fn listening(backlog: usize) -> Wire {
    let mut wire = Wire::new();
    wire.ends[1].listen(SERVICE, OWNER, backlog).unwrap();
    wire
}

#[test]
fn both_ends_learn_what_their_queue_pairs_need() {
    let mut wire = listening(8);
    let active = wire.ends[0].connect(wire.now, &call(1, 2, 10)).unwrap();
    wire.settle();
    let Some(Event::Requested { owner, id, peer: from, request }) = wire.ends[1].take_event() else { panic!() };
    assert_eq!((owner, from, request.private), (OWNER, peer(1), [0x55; 92]));
    assert!(wire.ends[1].see(id));
    wire.ends[1].accept(wire.now, id, 2, &answer(20), [0x66; 196]).unwrap();
    wire.settle();
    let Some(Event::Replied(replied, reply)) = wire.ends[0].take_event() else { panic!() };
    assert_eq!((replied, reply.private), (active, [0x66; 196]));
    wire.ends[0].ready(wire.now, active).unwrap();
    wire.settle();
    let common =
        Terms { mtu: 3, hop_limit: 64, traffic_class: 0x20, ack_timeout: 14, retry_count: 7, ..Terms::default() };
    let (ours, theirs) = (wire.ends[0].terms(active).unwrap(), wire.ends[1].terms(id).unwrap());
    assert_eq!(
        ours,
        Terms {
            peer: peer(2),
            remote_qpn: Qpn::new(20),
            receive_psn: Psn::new(1010),
            send_psn: Psn::new(2000),
            rnr_retry_count: 5,
            responder_resources: 2,
            initiator_depth: 1,
            ..common
        }
    );
    assert_eq!(
        theirs,
        Terms {
            peer: peer(1),
            remote_qpn: Qpn::new(10),
            receive_psn: Psn::new(2000),
            send_psn: Psn::new(1010),
            rnr_retry_count: 6,
            responder_resources: 1,
            initiator_depth: 2,
            ..common
        }
    );
    // Leaving, and nothing is left.
    wire.ends[0].disconnect(wire.now, active).unwrap();
    wire.settle();
    assert_eq!((wire.event(0), wire.event(1)), ("Disconnected".to_owned(), "Established".to_owned()));
    assert_eq!(wire.event(1), "Disconnected");
    wire.later(Duration::from_secs(2));
    assert_eq!((wire.event(0), wire.event(1)), ("TimewaitOver".to_owned(), "TimewaitOver".to_owned()));
    assert!(wire.ends.iter().all(Manager::is_empty));
}

#[test]
fn who_ends_says_so_until_it_is_heard() {
    let mut wire = listening(8);
    wire.connected(10);
    wire.ends[0].abandon(wire.now);
    for _ in 0..3 {
        wire.pass(|| false);
        assert!(wire.ends[0].is_leaving());
        wire.ends[0].leave_again();
    }
    wire.settle();
    assert_eq!((wire.ends[0].is_leaving(), wire.event(1)), (false, "Disconnected".to_owned()));
    assert_eq!(wire.ends[0].counters().sent_again, 3);
    wire.ends[0].leave_again();
    assert!(wire.ends[0].take_message().is_none());
}

#[test]
fn who_does_not_want_to_says_so() {
    let mut wire = listening(8);
    wire.ends[0].connect(wire.now, &call(1, 2, 10)).unwrap();
    wire.settle();
    let id = wire.ends[1].take_event().unwrap().id();
    wire.ends[1].reject(wire.now, id, [7; 148]).unwrap();
    wire.settle();
    let Some(Event::Rejected(_, reason, private)) = wire.ends[0].take_event() else { panic!() };
    assert_eq!((reason, *private), (reason::CONSUMER, [7; 148]));
    assert!(wire.ends.iter().all(Manager::is_empty));
}

#[test]
fn what_nobody_offers_is_called_again_for_a_second() {
    for offered_after in [0, 1, 9, 10] {
        let mut wire = Wire::new();
        let id = wire.ends[0].connect(wire.now, &call(1, 2, 10)).unwrap();
        let transaction = wire.ends[0].connections[&id].transaction;
        // The other end is one that refuses at once.
        let refusal =
            message::Rejection { remote_id: id, reason: reason::INVALID_SERVICE, ..message::Rejection::empty() };
        for _ in 0..offered_after {
            let (_, bytes) = wire.ends[0].take_message().unwrap();
            assert!(matches!(parse(&bytes[..]), Ok((_, Message::Request(request))) if request.local_id == id));
            wire.ends[0].receive(wire.now, peer(2), &message::build(transaction, &refusal.into()));
            assert!(wire.ends[0].take_message().is_none() && wire.ends[0].take_event().is_none());
            wire.later(Duration::from_millis(100));
        }
        if offered_after < 10 {
            wire.ends[1].listen(SERVICE, OWNER, 8).unwrap();
            wire.settle();
            assert_eq!(wire.event(1), "Requested");
        } else {
            wire.ends[0].receive(wire.now, peer(2), &message::build(transaction, &refusal.into()));
            assert_eq!((wire.event(0), wire.ends[0].len()), ("Rejected".to_owned(), 0));
        }
    }
}

#[test]
fn the_first_answer_is_of_who_has_seen_the_call() {
    let mut wire = listening(8);
    let id = wire.ends[0].connect(wire.now, &call(1, 2, 10)).unwrap();
    let transaction = wire.ends[0].connections[&id].transaction;
    // Somebody who has guessed the number of the connection, and speaks in the name of the other end.
    let reply = message::Reply { local_id: 9, remote_id: id, local_qpn: Qpn::new(77), ..message::Reply::empty() };
    let refusal = message::Rejection { remote_id: id, reason: reason::CONSUMER, ..message::Rejection::empty() };
    let later = message::Postponement { local_id: 9, remote_id: id, ..message::Postponement::empty() };
    for forged in [reply.into(), refusal.into(), later.into()] {
        wire.ends[0].receive(wire.now, peer(2), &message::build(transaction + 1, &forged));
    }
    assert_eq!((wire.event(0), wire.ends[0].state(id)), ("none".to_owned(), Some(State::Calling)));
    assert_eq!(wire.ends[0].counters().unknown_connection, 3);
    let inquiry = wire.ends[0].inquire(wire.now, peer(2), SERVICE, [0; 216]).unwrap();
    let told = message::ServiceReply { request_id: inquiry, qpn: Qpn::new(77), ..message::ServiceReply::empty() };
    wire.ends[0].receive(wire.now, peer(2), &message::build(transaction, &told.into()));
    assert_eq!(wire.ends[0].state(inquiry), Some(State::Inquiring));
    wire.settle();
    assert_eq!((wire.event(1), wire.event(1)), ("Requested".to_owned(), "ServiceRequested".to_owned()));
    wire.ends[0].receive(wire.now, peer(2), &message::build(transaction, &reply.into()));
    assert_eq!(wire.event(0), "Replied");
    // Nor is who has no number of its own believed later.
    wire.ends[0].receive(wire.now, peer(2), &message::build(transaction + 1, &refusal.into()));
    assert_eq!((wire.event(0), wire.ends[0].state(id)), ("none".to_owned(), Some(State::Replied)));
    wire.ends[0].receive(wire.now, peer(2), &message::build(transaction, &refusal.into()));
    assert_eq!(wire.event(0), "Rejected");
}

#[test]
fn those_who_share_an_address_have_numbers_and_room_of_their_own() {
    let shared = |first| Ids { first, bits: 20, gids: [gid(1); 4] };
    let end = |tag: u32| {
        Manager::new(Options {
            ids: shared(tag << 20),
            seed: tag.into(),
            most_half_open_of_one: 4,
            ..Options::default()
        })
    };
    let (mut server, mut greedy, mut friend) = (end(0xfff), end(1), end(2));
    server.listen(SERVICE, OWNER, 100).unwrap();
    let now = Moment::new(0);
    for (caller, tag, count) in [(&mut greedy, 1, 9), (&mut friend, 2, 4)] {
        for qpn in 0..count {
            let id = caller.connect(now, &call(1, 1, tag * 100 + qpn)).unwrap();
            assert_eq!(id >> 20, tag);
            let (_, bytes) = caller.take_message().unwrap();
            server.receive(now, peer(1), &bytes[..]);
        }
    }
    assert!(server.connections.keys().all(|id| id >> 20 == 0xfff));
    // Four of each.
    assert_eq!((server.len(), server.counters().no_room), (8, 5));
}

fn refusal(change: impl FnOnce(&mut Call)) -> u16 {
    let mut wire = listening(8);
    let mut call = call(1, 2, 10);
    change(&mut call);
    wire.ends[0].connect(wire.now, &call).unwrap();
    wire.settle();
    // What nobody offers may be offered soon.
    for _ in 0..3 {
        wire.later(Duration::from_millis(500));
        wire.settle();
    }
    let Some(Event::Rejected(_, reason, _)) = wire.ends[0].take_event() else { panic!("not rejected") };
    let calls = if reason == reason::INVALID_SERVICE { 2 } else { 1 };
    assert!(wire.ends.iter().all(Manager::is_empty) && wire.ends[1].counters().refused == calls);
    reason
}

#[test]
fn what_cannot_be_is_refused_with_its_reason() {
    assert_eq!(refusal(|call| call.service = ServiceId::new(0x0106, 1)), reason::INVALID_SERVICE);
    assert_eq!(refusal(|call| call.own = gid(9)), reason::INVALID_GID);
    assert_eq!(refusal(|call| call.mtu = 6), reason::INVALID_MTU);
    assert_eq!(refusal(|call| call.mtu = 0), reason::INVALID_MTU);
}

#[test]
fn a_request_waits_a_moment_for_who_listens_late() {
    let mut wire = Wire::new();
    wire.ends[0].connect(wire.now, &call(1, 2, 10)).unwrap();
    wire.settle();
    wire.ends[1].listen(SERVICE, OWNER, 8).unwrap();
    wire.later(Duration::from_millis(100));
    wire.ends[1].tick(wire.now);
    assert_eq!((wire.event(1), wire.ends[1].early.len()), ("Requested".to_owned(), 0));
    // Not many of them.
    for qpn in 0..100 {
        let request = Request { local_id: 1000 + qpn, service: 1, ..Request::empty() };
        wire.ends[1].receive(wire.now, peer(3), &message::build(0, &request.into()));
    }
    assert_eq!((wire.ends[1].early.len(), wire.ends[1].counters().refused), (MOST_EARLY, 100 - MOST_EARLY as u64));
}

#[test]
fn nobody_there_is_unreachable_in_the_end() {
    let mut wire = Wire::new();
    let id = wire.ends[0].connect(wire.now, &call(1, 2, 10)).unwrap();
    for _ in 0..16 {
        assert_eq!(wire.event(0), "none");
        wire.pass(|| false);
        wire.later(Duration::from_millis(1100));
    }
    assert_eq!(wire.event(0), "Unreachable");
    assert_eq!(wire.ends[0].disconnect(wire.now, id), Err(Error::Unknown));
    assert_eq!((wire.ends[0].counters().sent_again, wire.ends[0].counters().timed_out), (15, 1));
}

#[test]
fn a_slow_program_has_more_time() {
    let mut wire = listening(8);
    wire.ends[0].connect(wire.now, &call(1, 2, 10)).unwrap();
    wire.settle();
    let id = wire.ends[1].take_event().unwrap().id();
    // The second request is answered by a postponement of 69 s, in which nothing is sent again.
    for _ in 0..60 {
        wire.later(Duration::from_millis(1100));
        wire.settle();
    }
    assert_eq!((wire.ends[0].counters().sent_again, wire.ends[1].counters().duplicate), (1, 1));
    wire.ends[1].accept(wire.now, id, 2, &answer(20), [0; 196]).unwrap();
    wire.settle();
    assert_eq!(wire.event(0), "Replied");
}

#[test]
fn a_queue_pair_that_calls_again_is_stale_once() {
    let mut wire = listening(8);
    let [_, passive] = wire.connected(10);
    // The other end has been started again, and knows nothing.
    wire.ends[0] = Manager::new(Options { seed: 99, ..Options::default() });
    wire.ends[0].connect(wire.now, &call(1, 2, 10)).unwrap();
    wire.settle();
    assert!(matches!(wire.ends[0].take_event(), Some(Event::Rejected(_, reason::STALE, _))));
    assert!(matches!(wire.ends[1].take_event(), Some(Event::Disconnected(id)) if id == passive));
    wire.connected(10);
}

#[test]
fn who_calls_with_a_queue_pair_of_others_ends_nothing() {
    let mut wire = listening(8);
    let [active, passive] = wire.connected(10);
    // Somebody else says that he is the first end, and has that queue pair; answers go to the first end.
    let mut stranger = Manager::new(Options { seed: 99, ..Options::default() });
    for _ in 0..3 {
        stranger.connect(wire.now, &call(1, 2, 10)).unwrap();
        let (_, bytes) = stranger.take_message().unwrap();
        wire.ends[1].receive(wire.now, peer(1), &bytes[..]);
        wire.settle();
        wire.later(Duration::from_secs(20));
        wire.settle();
    }
    assert_eq!((wire.event(0), wire.event(1)), ("none".to_owned(), "none".to_owned()));
    assert_eq!(wire.ends[0].state(active), Some(State::Established));
    assert_eq!(wire.ends[1].state(passive), Some(State::Established));
    assert_eq!(wire.ends[1].counters().stale, 3);
    // Nor where this end has called the other one.
    wire.ends[0].listen(SERVICE, OWNER, 8).unwrap();
    stranger.connect(wire.now, &call(2, 1, 1010)).unwrap();
    let (_, bytes) = stranger.take_message().unwrap();
    wire.ends[0].receive(wire.now, peer(2), &bytes[..]);
    wire.settle();
    assert_eq!(wire.ends[0].state(active), Some(State::Established));
    assert_eq!(wire.ends[0].counters().stale, 1);
}

#[test]
fn who_calls_back_after_it_was_started_again_is_stale_once_too() {
    let mut wire = listening(8);
    let [active, _] = wire.connected(10);
    // The end that was called is started again, and calls with the queue pair that it had.
    wire.ends[1] = Manager::new(Options { seed: 99, ..Options::default() });
    wire.ends[0].listen(SERVICE, OWNER, 8).unwrap();
    for is_stale in [true, false] {
        wire.ends[1].connect(wire.now, &call(2, 1, 1010)).unwrap();
        wire.settle();
        let told = wire.ends[1].take_event();
        assert_eq!(matches!(told, Some(Event::Rejected(_, reason::STALE, _))), is_stale, "{told:?}");
        let told = wire.ends[0].take_event();
        assert_eq!(matches!(told, Some(Event::Disconnected(id)) if id == active), is_stale, "{told:?}");
    }
}

#[test]
fn requests_are_bounded() {
    let mut wire = listening(3);
    for qpn in 0..5 {
        wire.ends[0].connect(wire.now, &call(1, 2, 10 + qpn)).unwrap();
    }
    wire.settle();
    assert_eq!((wire.ends[1].len(), wire.ends[1].counters().no_room), (3, 2));
    // What nobody has seen and is taken back leaves no second event behind.
    let ids: Vec<_> = wire.ends[0].connections.keys().copied().collect();
    for id in ids {
        wire.ends[0].destroy(wire.now, id);
    }
    wire.settle();
    for _ in 0..3 {
        let id = wire.ends[1].take_event().unwrap().id();
        assert!(!wire.ends[1].see(id));
    }
    assert_eq!(wire.event(1), "none");
    assert!(wire.ends[1].is_empty() && wire.ends[1].half_open_in_all == 0 && wire.ends[1].half_open.is_empty());
    // One end may not have more than so many at once.
    wire.ends[1].listen(SERVICE, OWNER, 1000).unwrap();
    for qpn in 0..15 {
        wire.ends[0].connect(wire.now, &call(1, 2, 10 + qpn)).unwrap();
    }
    wire.settle();
    assert_eq!(wire.ends[1].half_open_in_all, 10);
    // Others still may.
    let request =
        Request { local_id: 1, service: SERVICE.0, path_mtu: 1, primary_local_gid: gid(3), ..Request::empty() };
    wire.ends[1].receive(wire.now, peer(3), &message::build(0, &request.into()));
    assert_eq!(wire.ends[1].half_open_in_all, 11);
    wire.ends[1].unlisten(wire.now, SERVICE);
    assert_eq!(wire.ends[1].half_open_in_all, 0);
}

#[test]
fn services_of_datagrams_are_found() {
    let mut wire = listening(8);
    let id = wire.ends[0].inquire(wire.now, peer(2), SERVICE, [4; 216]).unwrap();
    wire.settle();
    let Some(Event::ServiceRequested { owner: OWNER, id: asked, request, .. }) = wire.ends[1].take_event() else {
        panic!()
    };
    assert_eq!(request.private, [4; 216]);
    assert!(wire.ends[1].see(asked));
    wire.ends[1].answer(wire.now, asked, service_status::VALID, Qpn::new(9), 0x0123_4567, [5; 136]).unwrap();
    // The answer is lost, and given again.
    wire.pass(|| false);
    wire.later(Duration::from_millis(900));
    wire.ends[0].tick(wire.now + Duration::from_millis(200));
    wire.settle();
    let Some(Event::ServiceReplied(replied, reply)) = wire.ends[0].take_event() else { panic!() };
    assert_eq!((replied, reply.qpn, reply.qkey, reply.private), (id, Qpn::new(9), 0x0123_4567, [5; 136]));
    wire.later(Duration::from_secs(2));
    assert!(wire.ends.iter().all(Manager::is_empty));
    // Nobody offers that one.
    wire.ends[0].inquire(wire.now, peer(2), ServiceId(1), [0; 216]).unwrap();
    for _ in 0..10 {
        wire.settle();
        assert_eq!(wire.event(0), "none");
        wire.later(Duration::from_millis(100));
    }
    wire.settle();
    assert!(
        matches!(wire.ends[0].take_event(), Some(Event::ServiceReplied(_, reply)) if reply.status == service_status::UNSUPPORTED)
    );
}

#[test]
fn strangers_change_nothing() {
    let mut wire = listening(8);
    let [active, passive] = wire.connected(10);
    let remote = Ready { local_id: passive, remote_id: active, ..Ready::empty() };
    let leave = message::DisconnectRequest {
        local_id: passive,
        remote_id: active,
        remote_qpn: Qpn::new(10),
        ..message::DisconnectRequest::empty()
    };
    for message in [
        Message::Ready(remote),
        leave.into(),
        message::Rejection { local_id: passive, remote_id: active, reason: 28, ..message::Rejection::empty() }.into(),
    ] {
        wire.ends[0].receive(wire.now, peer(3), &message::build(0, &message));
    }
    assert_eq!(wire.ends[0].state(active), Some(State::Established));
    assert_eq!(wire.ends[0].counters().unknown_connection, 3);
    // The right end, but another queue pair.
    let other = message::DisconnectRequest { remote_qpn: Qpn::new(11), ..leave };
    wire.ends[0].receive(wire.now, peer(2), &message::build(0, &other.into()));
    assert_eq!((wire.ends[0].state(active), wire.ends[0].counters().unexpected), (Some(State::Established), 1));
    wire.ends[0].receive(wire.now, peer(2), &[0; 3]);
    assert_eq!(wire.ends[0].counters().malformed_length, 1);
    assert_eq!(parse(&[0; 256]).map(|_| ()), Err(Malformed::BaseVersion));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is lost, as long as it is not all of one message: both connect, both part, and nothing is left.
    #[test]
    fn losses_are_made_up_for(lost in proptest::collection::vec(any::<bool>(), 0..40)) {
        let mut wire = listening(8);
        let mut lost = lost.into_iter();
        // Each is sent 16 times: fewer are lost in all.
        let mut left = 14;
        let mut arrives = move || {
            let is_lost = lost.next().unwrap_or(false) && left > 0;
            left -= u32::from(is_lost);
            !is_lost
        };
        let active = wire.ends[0].connect(wire.now, &call(1, 2, 10)).unwrap();
        let (mut is_up, mut passive) = ([false; 2], None);
        let mut is_over = [false; 2];
        for _ in 0..200 {
            wire.pass(&mut arrives);
            for (end, is_over) in is_over.iter_mut().enumerate() {
                while let Some(event) = wire.ends[end].take_event() {
                    match event {
                        Event::Requested { id, .. } => {
                            prop_assert!(wire.ends[1].see(id) && passive.is_none());
                            passive = Some(id);
                            wire.ends[1].accept(wire.now, id, 2, &answer(20), [0; 196]).unwrap();
                        }
                        Event::Replied(id, _) => {
                            is_up[0] = true;
                            wire.ends[0].ready(wire.now, id).unwrap();
                        }
                        Event::Established(_) => {
                            is_up[1] = true;
                            wire.ends[0].disconnect(wire.now, active).unwrap();
                        }
                        Event::Disconnected(_) => *is_over = true,
                        Event::TimewaitOver(_) => {}
                        other => prop_assert!(false, "{other:?}"),
                    }
                }
            }
            wire.later(Duration::from_millis(1100));
        }
        prop_assert_eq!((is_up, is_over), ([true; 2], [true; 2]));
        prop_assert!(wire.ends.iter().all(Manager::is_empty));
        prop_assert!(wire.ends.iter().all(|end| end.timers.is_empty() && end.requests.is_empty() && end.pairs.is_empty()));
    }

    /// Any messages, with numbers that fit or do not, in any order: nothing grows without bound, and all is gone in the end.
    #[test]
    fn hostile_messages_do_no_harm(steps in proptest::collection::vec((0u8..12, 0u8..4, any::<[u8; 8]>()), 1..200)) {
        let mut end = Manager::new(Options { most_connections: 16, most_half_open: 8, most_half_open_of_one: 4, ..Options::default() });
        end.listen(SERVICE, OWNER, 6).unwrap();
        let mut ids = vec![end.connect(Moment::new(0), &call(1, 2, 10)).unwrap()];
        for (index, (kind, from, random)) in steps.iter().enumerate() {
            let now = Moment::new(index as u64 * 50_000_000);
            end.tick(now);
            let id = ids[usize::from(random[0]) % ids.len()];
            let remote = u32::from(random[1] % 4);
            match kind {
                0..=8 => {
                    let mut bytes = [random[2]; 256];
                    bytes[..24].copy_from_slice(&message::build(1, &Ready::empty().into())[..24]);
                    bytes[17] = 0x10 + kind;
                    bytes[24..28].copy_from_slice(&remote.to_be_bytes());
                    bytes[28..32].copy_from_slice(&id.to_be_bytes());
                    if *kind == 0 {
                        let request = Request {
                            local_id: remote, service: SERVICE.0, path_mtu: 1 + random[3] % 6, local_qpn: Qpn::new(remote),
                            primary_local_gid: gid(*from), ..Request::empty()
                        };
                        bytes = message::build(0, &request.into());
                    }
                    end.receive(now, peer(*from), &bytes);
                }
                9 => {
                    let _ = end.accept(now, id, 2, &answer(20), [0; 196]);
                    let _ = end.ready(now, id);
                }
                10 => {
                    let _ = end.disconnect(now, id);
                }
                _ => end.destroy(now, id),
            }
            while let Some(event) = end.take_event() {
                if matches!(event, Event::Requested { .. } | Event::ServiceRequested { .. }) && end.see(event.id()) {
                    ids.push(event.id());
                }
            }
            while end.take_message().is_some() {}
            prop_assert!(end.len() <= 16 && end.half_open_in_all <= 8 && end.out.is_empty());
            prop_assert_eq!(end.half_open.values().sum::<usize>(), end.half_open_in_all);
        }
        let mut now = Moment::new(100_000_000_000);
        end.abandon(now);
        for _ in 0..400 {
            now = now + Duration::from_secs(1);
            end.tick(now);
            while end.take_message().is_some() {}
        }
        prop_assert!(end.is_empty() && end.timers.is_empty() && end.requests.is_empty() && end.pairs.is_empty());
        prop_assert!(end.half_open.is_empty() && end.half_open_in_all == 0);
    }
}
