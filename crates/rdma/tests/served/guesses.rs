//! Whoever is connected tries keys: it costs the connection.

use super::*;

/// Connects it anew; what it sends has numbers from there on.
fn connect_anew(service: &mut Service, end: &End, remote: Qpn, send_psn: u32) {
    service.modify_pair(end.number, end.qpn, &Attributes::state(State::Reset)).unwrap();
    connect_from(service, (end.number, end.qpn), remote, PATH, send_psn);
}

fn state(service: &mut Service, end: &End) -> Option<State> {
    service.query_pair(end.number, end.qpn).unwrap().attributes.state
}

/// Some turns: what is sent again is sent for ever.
fn some_turns(service: &mut Service, now: &mut u64) {
    for _ in 0..10 {
        *now += 1000;
        service.turn(Moment::new(*now), &mut NoWire);
    }
}

/// How many keys could be tried, and whether one of them was the right one, which is the last of 64.
fn guess(behind_another: bool, operation: impl Fn(Key) -> Operation) -> (u32, bool) {
    let (mut service, [mut eve, mut bob]) = two();
    let mut now = 0;
    let right = bob.key.value();
    for guess in (0..64).rev() {
        service.modify_pair(eve.number, eve.qpn, &Attributes::state(State::Reset)).unwrap();
        eve.program.add_pair(
            eve.qpn,
            &Capabilities {
                send_requests: DEPTH,
                receive_requests: DEPTH,
                send_pieces: 4,
                receive_pieces: 4,
                inline: 256,
            },
            false,
        );
        connect_anew(&mut service, &eve, bob.qpn, 500);
        let own = [eve.piece(0, 64)];
        if behind_another {
            // It waits for a buffer, and for ever.
            eve.post(1, Operation::Send, &own).unwrap();
        }
        eve.post(2, operation(Key::new(right ^ guess)), &own).unwrap();
        some_turns(&mut service, &mut now);
        let found = eve.poll().iter().any(|line| line.id == 2 && line.status == Status::Success);
        if state(&mut service, &bob) == Some(State::Error) || found {
            assert_eq!(found, guess == 0);
            let told = core::iter::from_fn(|| bob.program.take_event().unwrap());
            assert_eq!(told.filter(|event| *event == Event::AccessError(bob.qpn)).count(), 1);
            return (64 - guess, found);
        }
    }
    (64, false)
}

#[test]
fn who_guesses_keys_loses_the_connection() {
    let read = |rkey| Operation::Read { address: 0, rkey };
    let write = |rkey| write_to(rkey, 0);
    assert_eq!([guess(false, read), guess(false, write)], [(4, false); 2]);
    // Nobody learns anything from how a request waits, either.
    assert_eq!(guess(true, write), (64, false), "it is not looked at before its turn");
}

#[test]
fn guesses_of_one_connection_are_not_those_of_the_next() {
    let (mut service, [mut a, mut b]) = two();
    let mut now = 0;
    for round in 0..8 {
        let own = [a.piece(0, 64)];
        a.post(round, write_to(Key::new(b.key.value() ^ 1), 0), &own).unwrap();
        run(&mut service, &mut now);
        // The one that is refused, as an error of both ends, and told once.
        let ended: Vec<_> = a.poll().iter().map(|line| (line.id, line.status)).collect();
        assert_eq!(ended, [(round, Status::RemoteAccess)]);
        let told: Vec<_> = core::iter::from_fn(|| b.program.take_event().unwrap()).collect();
        assert_eq!(told, [Event::AccessError(b.qpn)]);
        for (one, other) in [(&a, b.qpn), (&b, a.qpn)] {
            connect_anew(&mut service, one, other, 0);
        }
        let granted = Capabilities {
            send_requests: DEPTH,
            receive_requests: DEPTH,
            send_pieces: 4,
            receive_pieces: 4,
            inline: 256,
        };
        a.program.add_pair(a.qpn, &granted, false);
    }
    let (key, own) = (b.key, [a.piece(0, 64)]);
    a.post(99, write_to(key, 0), &own).unwrap();
    run(&mut service, &mut now);
    assert_eq!(a.poll()[0].status, Status::Success);
    assert_eq!(service.counters().copied, 64);
}

#[test]
fn a_key_that_was_just_given_back_is_one_error() {
    let (mut service, [mut a, mut b]) = two();
    let mut now = 0;
    service.deregister(b.number, b.key).unwrap();
    let (key, own) = (b.key, [a.piece(0, 64)]);
    (0..20).for_each(|id| a.post(id, write_to(key, id * 64), &own).map(drop).unwrap());
    run(&mut service, &mut now);
    let ended: Vec<_> = a.poll().iter().map(|line| line.status).collect();
    assert_eq!((ended.len(), ended[0]), (20, Status::RemoteAccess));
    assert!(ended[1..].iter().all(|status| *status == Status::Flushed));
    let told: Vec<_> = core::iter::from_fn(|| b.program.take_event().unwrap()).collect();
    assert_eq!(told, [Event::AccessError(b.qpn)]);
}
