//! What has no room, and is told later.

use super::*;

#[test]
fn events_that_have_no_room_are_told_later() {
    let mut service = service();
    let mut one = end(&mut service);
    let mut now = 0;
    let mut queues = Vec::new();
    for _ in 0..400 {
        let (queue, ring) = service.create_queue(one.number, 8, |ring| Ok(again(ring))).unwrap();
        one.program.add_queue(queue, 8, ring.window()).unwrap();
        let capabilities = Capabilities { send_requests: 1, send_pieces: 1, ..Capabilities::default() };
        let (qpn, granted) = service.create_pair(one.number, &init(one.domain, queue, capabilities)).unwrap();
        one.program.add_pair(qpn, &granted, true);
        connect(&mut service, one.number, qpn, Qpn::new(5000));
        one.program.arm(queue, false).unwrap();
        run(&mut service, &mut now);
        let flags = Flags { signaled: true, ..Flags::default() };
        let request = Request { id: 1, operation: Operation::Send, data: Data::Pieces(&[]), flags, target: None };
        one.program.post_send(qpn, &request).unwrap();
        queues.push((queue, qpn));
    }
    service.turn(Moment::new(now), &mut NoWire);
    for (_, qpn) in &queues {
        service.modify_pair(one.number, *qpn, &Attributes::state(State::Error)).unwrap();
    }
    let mut told = std::collections::HashSet::new();
    for _ in 0..10 {
        run(&mut service, &mut now);
        while let Some(event) = one.program.take_event().unwrap() {
            if let Event::Completion(queue) = event {
                told.insert(queue);
            }
        }
    }
    assert!(queues.iter().all(|(queue, _)| told.contains(queue)), "{} of 400", told.len());
    assert_eq!(service.counters().events_lost, 0);
}

#[test]
fn a_completion_queue_gets_another_depth_and_loses_nothing() {
    let (mut service, [mut a, b]) = two();
    let mut now = 0;
    let mut next = 0;
    let mut write = |a: &mut End, service: &mut Service, now: &mut u64, count| {
        for _ in 0..count {
            let piece = [a.piece(0, 8)];
            a.post(next, write_to(b.key, 0), &piece).unwrap();
            next += 1;
        }
        run(service, now);
    };
    write(&mut a, &mut service, &mut now, 5);
    for depth in [1024, 32, 16] {
        let (ring, _) = service.resize_queue(a.number, a.queue, depth, |ring| Ok(again(ring))).unwrap();
        a.program.resize_queue(a.queue, depth, ring.window()).unwrap();
        write(&mut a, &mut service, &mut now, 5);
    }
    assert!(a.program.has_completions(a.queue));
    let ids: Vec<_> = a.poll().iter().map(|line| line.id).collect();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
    assert!(!a.program.has_completions(a.queue) && a.poll().is_empty());
    assert!(service.resize_queue(b.number, a.queue, 64, |_| Ok(())).is_err(), "it is another program's");
    assert!(service.resize_queue(a.number, a.queue, 0, |_| Ok(())).is_err());
    assert!(service.resize_queue(a.number, a.queue, u32::MAX, |_| Ok(())).is_err());
}

#[test]
fn completions_that_have_no_room_are_told_when_there_is() {
    let (mut service, [mut a, b]) = two();
    let mut now = 0;
    let (ring, _) = service.resize_queue(a.number, a.queue, 16, |ring| Ok(again(ring))).unwrap();
    a.program.resize_queue(a.queue, 16, ring.window()).unwrap();
    for id in 0..32 {
        let piece = [a.piece(0, 8)];
        a.post(id, write_to(b.key, 0), &piece).unwrap();
        run(&mut service, &mut now);
    }
    // The card would sleep; but not for ever.
    let turn = service.turn(Moment::new(now), &mut NoWire);
    assert!(!turn.moved && turn.next.is_some(), "{turn:?} {}", a.poll().len());
    assert!(!service.wants_turn(), "a ring without room is not looked at all the time");
    assert_eq!(a.poll().len(), 16);
    now = turn.next.unwrap().nanoseconds();
    service.turn(Moment::new(now), &mut NoWire);
    assert_eq!(a.poll().iter().map(|line| line.id).collect::<Vec<_>>(), (16..32).collect::<Vec<_>>());
    assert_eq!(service.turn(Moment::new(now), &mut NoWire).next, None);
}
