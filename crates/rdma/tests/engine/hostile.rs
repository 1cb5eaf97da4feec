//! Whatever comes: nothing panics, memory stays bounded, and no byte is reached without a key.

use crate::common::link::{Faults, Link, PATH, origin_of};
use crate::common::{Pair, Wish, connected};
use millrace_rdma::engine::Options;
use millrace_rdma::number::{Gid, Key, Moment, Psn, Qpn};
use millrace_rdma::transport::{Event, State};
use millrace_rdma::wire::{Aeth, AtomicEth, Deth, Format, Headers, Opcode, Packet, Place, Reth, Service, Syndrome};
use millrace_rdma::work::{Access, Completion, Data, Flags, Operation, Piece, Request, Status};
use proptest::prelude::*;

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![Just(Place::First), Just(Place::Middle), Just(Place::Last), Just(Place::Only)]
}

fn opcode() -> impl Strategy<Value = Opcode> {
    prop_oneof![
        (place(), any::<bool>(), any::<bool>()).prop_map(|(place, immediate, invalidate)| Opcode::Send {
            place,
            immediate,
            invalidate
        }),
        (place(), any::<bool>()).prop_map(|(place, immediate)| Opcode::Write { place, immediate }),
        Just(Opcode::ReadRequest),
        place().prop_map(Opcode::ReadResponse),
        Just(Opcode::Acknowledge),
        Just(Opcode::AtomicAcknowledge),
        Just(Opcode::CompareSwap),
        Just(Opcode::FetchAdd),
        Just(Opcode::CongestionNotification),
    ]
}

fn syndrome() -> impl Strategy<Value = Syndrome> {
    prop_oneof![
        (0u8..32).prop_map(Syndrome::Ack),
        (0u8..32).prop_map(Syndrome::Rnr),
        Just(Syndrome::SequenceError),
        Just(Syndrome::InvalidRequest),
        Just(Syndrome::RemoteAccess),
        Just(Syndrome::RemoteOperation),
    ]
}

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..5000, any::<u64>(), (0u64..16).prop_map(|less| u64::MAX - less)]
}

/// Numbers near where the connection is, and anywhere.
fn psn() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 0xff_fff0_u32..0x100_0040, 1 => any::<u32>()]
}

type Extra = (Option<Deth>, Option<Reth>, Option<AtomicEth>, Option<Aeth>, Option<u64>, Option<[u8; 4]>, Option<Key>);

fn extra(key: impl Strategy<Value = Key> + Clone) -> impl Strategy<Value = Extra> {
    let most = |strategy| prop::option::weighted(0.9, strategy);
    let reth = (address(), key.clone(), prop_oneof![0u32..3000, any::<u32>()]).prop_map(|(address, rkey, len)| Reth {
        address,
        rkey,
        len,
    });
    let atomic = (address(), key.clone(), any::<u64>(), any::<u64>())
        .prop_map(|(address, rkey, swap_add, compare)| AtomicEth { address, rkey, swap_add, compare });
    (
        most(Just(Deth { qkey: 0x1111, source: Qpn::new(9) })),
        prop::option::weighted(0.9, reth),
        prop::option::weighted(0.9, atomic),
        prop::option::weighted(
            0.9,
            (syndrome(), any::<u32>()).prop_map(|(syndrome, msn)| Aeth { syndrome, msn: msn & 0xff_ffff }),
        ),
        prop::option::weighted(0.9, any::<u64>()),
        prop::option::weighted(0.5, any::<[u8; 4]>()),
        prop::option::weighted(0.5, key),
    )
}

fn headers(key: impl Strategy<Value = Key> + Clone) -> impl Strategy<Value = (Headers, usize)> {
    let service = prop_oneof![
        8 => Just(Service::ReliableConnection),
        1 => Just(Service::UnreliableConnection),
        1 => Just(Service::UnreliableDatagram),
    ];
    let len = prop_oneof![Just(256usize), 0usize..300, Just(4096)];
    (service, opcode(), psn(), extra(key), any::<[bool; 5]>(), len).prop_map(
        |(service, opcode, psn, extra, bits, len)| {
            let mut headers = Headers::new(service, opcode, Qpn::new(0), Psn::new(psn));
            (headers.solicited, headers.ack_request, headers.extended) = (bits[0], bits[1], bits[2]);
            headers.fecn_becn = (bits[3], bits[4]);
            (headers.deth, headers.reth, headers.atomic, headers.aeth) = (extra.0, extra.1, extra.2, extra.3);
            (headers.original, headers.immediate, headers.invalidate) = (extra.4, extra.5, extra.6);
            (headers, len)
        },
    )
}

fn target(service: Service) -> (Link, [Pair; 2]) {
    let wish = Wish { psn: 0xff_fff0, mtu: 256, service, ..Wish::default() };
    let options = Options { rate_control: true, reorder_bytes: 100_000, ..Options::default() };
    let (mut ends, pairs) = connected([options; 2], &wish);
    let memory = ends[1].engine.memory();
    memory.register(pairs[1].domain, 0, vec![0; 4096], Access(31));
    // It asks for things itself, so that answers mean something.
    let piece = |len| [Piece { address: 0, len, lkey: Key::new(0x15a) }];
    for id in 0..40 {
        let operation = match (id % 4, service) {
            (_, Service::UnreliableDatagram) => break,
            (0, _) | (_, Service::UnreliableConnection) => Operation::Send,
            (1, _) => Operation::Read { address: 0, rkey: Key::new(1) },
            (2, _) => Operation::FetchAdd { address: 0, rkey: Key::new(1), add: 1 },
            _ => Operation::Write { address: 0, rkey: Key::new(1), immediate: None },
        };
        let flags = Flags { signaled: true, ..Flags::default() };
        let len = if id % 4 == 2 { 8 } else { 1000 };
        let request = Request { id, operation, data: Data::Pieces(&piece(len)), flags, target: None };
        ends[1].engine.post_send(pairs[1].qpn, &request).unwrap();
    }
    for id in 0..20 {
        ends[1].engine.post_receive(pairs[1].qpn, 100 + id, &piece(600)).unwrap();
    }
    (Link::new(ends, Faults::default(), 1), pairs)
}

fn attack(service: Service, packets: &[(Headers, usize)]) -> (Link, [Pair; 2]) {
    let (mut link, pairs) = target(service);
    let payload = vec![0xbb; 4096];
    let mut now = 0;
    for (headers, len) in packets {
        now += 700;
        let mut headers = *headers;
        headers.destination = pairs[1].qpn;
        let packet = Packet { headers, payload: &payload[..*len] };
        let end = &mut link.ends[1];
        end.engine.receive(Moment::new(now), &packet, &origin_of(&PATH[0]));
        let mut sent = 0;
        for _ in 0..8 {
            sent += end.take(Moment::new(now), 64).len();
        }
        // An answer, a window, and what is read of a small region: no packet makes more than that.
        assert!(sent <= 8 * 64, "one packet makes {sent}");
    }
    (link, pairs)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn strangers_on_the_path_reach_nothing_without_a_key(
        packets in prop::collection::vec(headers(any::<u32>().prop_map(|key| Key::new(key | 0x8000_0000))), 1..150),
    ) {
        let (mut link, _) = attack(Service::ReliableConnection, &packets);
        prop_assert_eq!(link.ends[1].engine.memory().touched, 0);
    }

    #[test]
    fn with_a_key_nothing_breaks_either(
        service in prop_oneof![
            Just(Service::ReliableConnection),
            Just(Service::UnreliableConnection),
            Just(Service::UnreliableDatagram),
        ],
        packets in prop::collection::vec(headers(Just(Key::new(0x15a))), 1..150),
    ) {
        let (mut link, pairs) = attack(service, &packets);
        let mut lines = [Completion::default(); 64];
        let engine = &mut link.ends[1].engine;
        while engine.poll(pairs[1].cq, &mut lines).unwrap() > 0 {}
        engine.destroy_qp(pairs[1].qpn).unwrap();
        engine.destroy_cq(pairs[1].cq).unwrap();
    }
}

#[test]
fn nobody_beside_the_path_can_speak() {
    let (mut link, pairs) = target(Service::ReliableConnection);
    let engine = &mut link.ends[1].engine;
    let mut headers = Headers::new(
        Service::ReliableConnection,
        Opcode::Write { place: Place::Only, immediate: false },
        pairs[1].qpn,
        Psn::new(0xff_fff0),
    );
    headers.reth = Some(Reth { address: 0, rkey: Key::new(0x15a), len: 8 });
    let packet = Packet { headers, payload: &[1; 8] };
    let good = origin_of(&PATH[0]);
    let mut other = good;
    other.path.destination = Gid([7; 16]);
    engine.receive(Moment::new(1), &packet, &other);
    other = good;
    other.path.source = Gid([7; 16]);
    engine.receive(Moment::new(1), &packet, &other);
    other = good;
    other.path.format = Format::RoceV1;
    engine.receive(Moment::new(1), &packet, &other);
    assert_eq!(engine.counters().wrong_address, 3);
    let with = |headers: Headers| Packet { headers, payload: &[1; 8] };
    engine.receive(Moment::new(1), &with(Headers { pkey: 0x1234, ..headers }), &good);
    assert_eq!(engine.counters().wrong_pkey, 1);
    engine.receive(Moment::new(1), &with(Headers { service: Service::UnreliableConnection, ..headers }), &good);
    assert_eq!(engine.counters().wrong_service, 1);
    engine.receive(Moment::new(1), &with(Headers { destination: Qpn::new(5), ..headers }), &good);
    assert_eq!(engine.counters().no_queue_pair, 1);
    assert_eq!(engine.memory().touched, 0);
    engine.receive(Moment::new(1), &packet, &good);
    assert_eq!(engine.memory().touched, 8);
}

#[test]
fn forged_answers_end_nothing() {
    let (mut link, pairs) = target(Service::ReliableConnection);
    let mut other = origin_of(&PATH[0]);
    other.path.destination = Gid([9; 16]);
    let end = &mut link.ends[1];
    end.take(Moment::new(0), 64);
    for psn in 0..100 {
        let mut headers =
            Headers::new(Service::ReliableConnection, Opcode::Acknowledge, pairs[1].qpn, Psn::new(0xff_fff0 + psn));
        headers.aeth = Some(Aeth { syndrome: Syndrome::Ack(31), msn: psn });
        end.engine.receive(Moment::new(1), &Packet { headers, payload: &[] }, &other);
    }
    let mut lines = [Completion::default(); 8];
    assert_eq!(end.engine.poll(pairs[1].cq, &mut lines).unwrap(), 0);
    // On the path, answers to what was not sent end nothing either.
    let mut headers = Headers::new(Service::ReliableConnection, Opcode::Acknowledge, pairs[1].qpn, Psn::new(0x3000));
    headers.aeth = Some(Aeth { syndrome: Syndrome::RemoteAccess, msn: 0 });
    end.engine.receive(Moment::new(1), &Packet { headers, payload: &[] }, &origin_of(&PATH[0]));
    assert_eq!(end.engine.poll(pairs[1].cq, &mut lines).unwrap(), 0);
    assert!(lines.iter().all(|line| line.status == Status::Success));
    assert_eq!(end.engine.counters().unexpected_answer, 1);
}

#[test]
fn who_asks_again_for_what_he_has_no_access_to_loses_the_connection() {
    let (mut ends, pairs) = connected([Options::default(); 2], &Wish::default());
    ends[1].engine.memory().register(pairs[1].domain, 0, vec![0; 4096], Access(31));
    let read = |psn, rkey| {
        let mut headers = Headers::new(Service::ReliableConnection, Opcode::ReadRequest, pairs[1].qpn, Psn::new(psn));
        headers.reth = Some(Reth { address: 0, rkey: Key::new(rkey), len: 8 });
        headers
    };
    let mut ask = |headers| {
        let end = &mut ends[1];
        end.engine.receive(Moment::new(1), &Packet { headers, payload: &[] }, &origin_of(&PATH[0]));
        end.take(Moment::new(1), 64).len()
    };
    assert_eq!(ask(read(0, 0x15a)), 1);
    // What was read, again, and its key was given back meanwhile: that is no guess, however often it comes.
    (0..100).for_each(|_| assert_eq!(ask(read(0, 0x33)), 0));
    // The 16th is refused, and nothing is said to any other.
    let guesses = 2 + (0x1000..0x2000).take_while(|rkey| ask(read(0, *rkey)) == 0).count();
    assert_eq!(guesses, 16);
    let engine = &mut ends[1].engine;
    assert!(engine.queue_pairs().any(|(qpn, state)| qpn == pairs[1].qpn && state == State::Error));
    assert_eq!((engine.take_event(), engine.take_event()), (Some(Event::AccessError(pairs[1].qpn)), None));
}
