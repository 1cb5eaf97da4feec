//! Queue pairs with much in them fail: it takes turns, and none of others.

use super::*;

/// Requests of a queue.
const MANY: u32 = 16_384;
/// What ends in a turn, of all programs.
const A_TURN: usize = 256;

/// A queue pair with as many requests and buffers as there may be, and a completion queue that has room for all that ends.
fn large(service: &mut Service, of: &mut End, depth: u32) -> (Qpn, u32, Region) {
    let (queue, ring) = service.create_queue(of.number, depth, |ring| Ok(again(ring))).unwrap();
    of.program.add_queue(queue, depth, ring.window()).unwrap();
    let capabilities =
        Capabilities { send_requests: MANY, receive_requests: MANY, send_pieces: 1, receive_pieces: 1, inline: 0 };
    let (qpn, granted) = service.create_pair(of.number, &init(of.domain, queue, capabilities)).unwrap();
    of.program.add_pair(qpn, &granted, false);
    (qpn, queue, ring)
}

fn turn(service: &mut Service, now: &mut u64) {
    *now += 1000;
    service.turn(Moment::new(*now), &mut NoWire);
}

/// Posts buffers until the queue is full.
fn fill(service: &mut Service, now: &mut u64, of: &mut End, qpn: Qpn) {
    for id in 0..MANY {
        while of.program.post_receive(qpn, id.into(), &[]) == Err(Full::Queue) {
            turn(service, now);
        }
    }
    run(service, now);
}

fn send(of: &mut End, qpn: Qpn, id: u64, operation: Operation) -> Result<bool, Full> {
    let request = Request {
        id,
        operation,
        data: Data::Pieces(&[]),
        flags: Flags { signaled: id.is_multiple_of(7), ..Flags::default() },
        target: None,
    };
    of.program.post_send(qpn, &request)
}

fn poll(of: &mut End, queue: u32) -> Vec<Completion> {
    let mut found = [Completion::default(); 4096];
    let count = of.program.poll(queue, &mut found).unwrap();
    found[..count].to_vec()
}

#[test]
fn what_fails_ends_in_order_in_many_turns_and_before_all_that_comes_later() {
    let (mut service, [mut a, mut b]) = two();
    let mut now = 0;
    let (qpn, queue, _ring) = large(&mut service, &mut a, 3 * MANY);
    connect(&mut service, a.number, qpn, b.qpn);
    fill(&mut service, &mut now, &mut a, qpn);
    // It waits for an answer, for ever, and all that come behind it, too.
    for id in 0..u64::from(MANY) - 2 {
        while send(&mut a, qpn, id, Operation::Send) == Err(Full::Queue) {
            turn(&mut service, &mut now);
        }
    }
    while service.position_of_work(a.number).is_some() {
        turn(&mut service, &mut now);
    }
    service.modify_pair(a.number, qpn, &Attributes::state(State::Error)).unwrap();
    assert!(service.position_of_work(a.number).is_some(), "requests by the socket wait");
    // One as all others, and one that the engine does not take; other programs have their turns as always.
    send(&mut a, qpn, 70_000, Operation::Send).unwrap();
    send(&mut a, qpn, 70_001, Operation::FetchAdd { address: 0, rkey: Key::new(0), add: 1 }).unwrap();
    let (mut c, mut d) = (end(&mut service), end(&mut service));
    join(&mut service, &c, &d);
    d.program.post_receive(d.qpn, 1, &[d.piece(0, 64)]).unwrap();
    let own = [c.piece(0, 64)];
    c.post(2, Operation::Send, &own).unwrap();
    let (mut ended, mut sent_in, mut turns) = (Vec::new(), None, 0);
    while service.position_of_work(a.number).is_some() || turns < 4 {
        turn(&mut service, &mut now);
        turns += 1;
        let more = poll(&mut a, queue);
        assert!(more.len() <= 2 * A_TURN, "{} in one turn", more.len());
        ended.extend(more);
        sent_in = sent_in.or_else(|| (!d.poll().is_empty()).then_some(turns));
    }
    while ended.len() < 2 * MANY as usize {
        turn(&mut service, &mut now);
        ended.extend(poll(&mut a, queue));
        turns += 1;
        assert!(turns < 10_000, "{} have ended", ended.len());
    }
    assert!(turns > 2 * MANY as usize / A_TURN - 4, "{turns} turns");
    assert!(sent_in.is_some_and(|turns| turns <= 4), "another's SEND took {sent_in:?} turns");
    let of = |receives: bool| ended.iter().filter(move |line| (line.ended == Ended::Receive) == receives);
    let sends: Vec<u64> = of(false).map(|line| line.id).collect();
    let expected: Vec<u64> = (0..u64::from(MANY) - 2).chain([70_000, 70_001]).collect();
    let differs = sends.iter().zip(&expected).position(|(one, other)| one != other);
    assert!(sends == expected, "not in order: {differs:?} {} {:?}", sends.len(), sends.last());
    assert!(of(true).map(|line| line.id).eq(0..u64::from(MANY)), "not in order");
    let bad: Vec<_> = ended.iter().filter(|line| line.status != Status::Flushed).map(|line| line.id).collect();
    assert_eq!((bad, ended.len()), (vec![70_001], 2 * MANY as usize));
    // It is empty now, and can be used again.
    service.modify_pair(a.number, qpn, &Attributes::state(State::Reset)).unwrap();
    assert!(b.poll().is_empty());
}

#[test]
fn whoever_dies_with_many_connections_leaves_others_their_turns() {
    let (mut service, [mut a, mut b]) = two();
    let mut now = 0;
    let (mut c, d) = (end(&mut service), end(&mut service));
    let large: Vec<_> = (0..8).map(|_| large(&mut service, &mut c, 2 * MANY)).collect();
    for (qpn, ..) in &large {
        connect(&mut service, c.number, *qpn, d.qpn);
        fill(&mut service, &mut now, &mut c, *qpn);
    }
    // All of these are connected with queue pairs of a program that goes.
    let pairs: Vec<Qpn> = large.iter().map(|(qpn, ..)| *qpn).collect();
    for qpn in &pairs {
        let (other, _) = service
            .create_pair(
                d.number,
                &init(d.domain, d.queue, Capabilities { send_requests: 1, ..Capabilities::default() }),
            )
            .unwrap();
        connect(&mut service, d.number, other, *qpn);
        service.modify_pair(c.number, *qpn, &Attributes::state(State::Error)).unwrap();
    }
    service.leave(Moment::new(now), d.number);
    let turns = share::turns_of_a_send(&mut service, &mut now, [&mut a, &mut b], &mut NoWire);
    assert!(turns <= 4, "{turns}");
    let mut ended = 0;
    run(&mut service, &mut now);
    while let count @ 1.. = large.iter().map(|(_, queue, _)| poll(&mut c, *queue).len()).sum::<usize>() {
        ended += count;
        for _ in 0..20 {
            now += 5_000_000;
            service.turn(Moment::new(now), &mut NoWire);
        }
    }
    assert_eq!(ended, 8 * MANY as usize);
}

/// A completion queue with no room: nothing of its queue pairs can be told, and there is no more than in other cases that takes time.
#[test]
fn an_overrun_takes_turns_too() {
    let (mut service, [mut a, mut b]) = two();
    let mut now = 0;
    let mut c = end(&mut service);
    let (queue, _ring) = service.create_queue(c.number, 1, |ring| Ok(again(ring))).unwrap();
    let capabilities = Capabilities { receive_requests: MANY, receive_pieces: 1, ..Capabilities::default() };
    let pairs: Vec<Qpn> = (0..8)
        .map(|_| {
            let (qpn, granted) = service.create_pair(c.number, &init(c.domain, queue, capabilities)).unwrap();
            c.program.add_pair(qpn, &granted, false);
            connect(&mut service, c.number, qpn, a.qpn);
            fill(&mut service, &mut now, &mut c, qpn);
            qpn
        })
        .collect();
    service.modify_pair(c.number, pairs[0], &Attributes::state(State::Error)).unwrap();
    let turns = share::turns_of_a_send(&mut service, &mut now, [&mut a, &mut b], &mut NoWire);
    assert!(turns <= 4, "{turns}");
    let mut rest = 0;
    while service.position_of_work(c.number).is_some() {
        turn(&mut service, &mut now);
        rest += 1;
    }
    assert!(rest > 8 * MANY as usize / A_TURN - 8, "{rest} turns");
    assert!(pairs.iter().all(|qpn| service.query_pair(c.number, *qpn).unwrap().attributes.state == Some(State::Error)));
}

#[test]
fn a_wire_without_room_does_not_hold_up_what_ends() {
    let (mut service, [mut a, b]) = two();
    let mut now = 0;
    // Its completion queue has no room: there is nothing to tell.
    let (qpn, ..) = large(&mut service, &mut a, 1);
    connect(&mut service, a.number, qpn, b.qpn);
    fill(&mut service, &mut now, &mut a, qpn);
    let mut c = end(&mut service);
    connect_by(&mut service, (c.number, c.qpn), Qpn::new(77), share::ELSEWHERE);
    let of_c = c.qpn;
    share::ask(&mut c, of_c, Operation::Send, 64);
    let mut turn = |service: &mut Service| {
        now += 1000;
        service.turn(Moment::new(now), &mut share::FullWire)
    };
    for _ in 0..10 {
        turn(&mut service);
    }
    assert!(!service.wants_turn(), "there is nothing but what waits for the wire");
    service.modify_pair(a.number, qpn, &Attributes::state(State::Error)).unwrap();
    // The first is told, and that the others cannot be.
    turn(&mut service);
    while service.position_of_work(a.number).is_some() {
        assert!(service.wants_turn());
        turn(&mut service);
    }
}
