//! What a program gets beside others that take all that they can.

use super::*;

pub const ELSEWHERE: Path = Path { destination: Gid([9; 16]), ..PATH };

/// Queue pairs of a program more, each with room for a request.
fn pairs(service: &mut Service, of: &mut End, count: usize) -> Vec<Qpn> {
    let capabilities =
        Capabilities { send_requests: 4, receive_requests: 4, send_pieces: 1, receive_pieces: 1, inline: 0 };
    let one = |_| {
        let (qpn, granted) = service.create_pair(of.number, &init(of.domain, of.queue, capabilities)).unwrap();
        of.program.add_pair(qpn, &granted, false);
        qpn
    };
    (0..count).map(one).collect()
}

pub fn ask(of: &mut End, qpn: Qpn, operation: Operation, len: u32) {
    let pieces = [of.piece(0, len)];
    let request = Request { id: 0, operation, data: Data::Pieces(&pieces), flags: Flags::default(), target: None };
    of.program.post_send(qpn, &request).unwrap();
}

/// A wire that never has room.
pub struct FullWire;

impl Out for FullWire {
    fn packet<F>(&mut self, _: &Path, _: Qpn, _: &Headers, _: usize, _: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        Sent::Busy
    }
}

/// Turns until a short SEND from one to the other has come and has ended.
pub fn turns_of_a_send(service: &mut Service, now: &mut u64, [from, to]: [&mut End; 2], wire: &mut impl Out) -> usize {
    to.program.post_receive(to.qpn, 1, &[to.piece(0, 64)]).unwrap();
    from.post(2, Operation::Send, &[from.piece(0, 64)]).unwrap();
    let mut told = (false, false);
    for turn in 1..10_000 {
        *now += 1000;
        service.turn(Moment::new(*now), wire);
        told = (told.0 || !from.poll().is_empty(), told.1 || !to.poll().is_empty());
        if told == (true, true) {
            return turn;
        }
    }
    panic!("it never came: {told:?}");
}

/// Two programs with so many connections between them, on each of which a long WRITE is on its way.
fn crowd(service: &mut Service, now: &mut u64, count: usize) -> [End; 2] {
    let mut crowd = [end(service), end(service)];
    let [busy, other] = &mut crowd;
    let (ours, theirs) = (pairs(service, busy, count), pairs(service, other, count));
    let key = other.key;
    for (&one, &two) in ours.iter().zip(&theirs) {
        connect(service, busy.number, one, two);
        connect(service, other.number, two, one);
        for _ in 0..4 {
            ask(busy, one, write_to(key, 0), 4 << 20);
            *now += 1000;
            service.turn(Moment::new(*now), &mut NoWire);
        }
    }
    crowd
}

#[test]
fn who_has_many_queue_pairs_has_no_more_turns() {
    let turns = [1, 512].map(|count| {
        let (mut service, [mut a, mut b]) = two();
        let mut now = 0;
        let _crowd = crowd(&mut service, &mut now, count);
        let before = service.counters().packets;
        let turns: Vec<usize> =
            (0..20).map(|_| turns_of_a_send(&mut service, &mut now, [&mut a, &mut b], &mut NoWire)).collect();
        // It sends as much as it can meanwhile: 32 packets in a turn.
        let sent = service.counters().packets - before;
        assert!(sent > 20 * turns.iter().sum::<usize>() as u64, "{sent} packets in {turns:?} turns");
        *turns.iter().max().unwrap()
    });
    // One for the SEND, one for its acknowledgement, and one when another's turn of many packets came before.
    assert!(turns.iter().all(|turns| *turns <= 4), "{turns:?}");
}

#[test]
fn turns_go_by_bytes_too() {
    let (mut service, [mut a, mut b]) = two();
    let mut now = 0;
    let _crowd = crowd(&mut service, &mut now, 64);
    // Short WRITEs with immediate data, each of them a packet, beside those of 16 packets in a turn.
    let immediate = Operation::Write { address: 0, rkey: b.key, immediate: Some([0; 4]) };
    let mut ended = 0;
    let before = service.counters().packets;
    for _ in 0..1000 {
        while b.program.has_receive_room(b.qpn) && b.program.post_receive(b.qpn, 0, &[]).is_ok() {}
        while a.program.has_room(a.qpn, 1) && a.post(0, immediate, &[a.piece(0, 8)]).is_ok() {}
        now += 1000;
        service.turn(Moment::new(now), &mut NoWire);
        ended += a.poll().len();
        b.poll();
    }
    let all = service.counters().packets - before;
    assert!(ended as u64 * 2 > all, "{ended} of {all} packets were short");
}

#[test]
fn who_waits_for_the_wire_with_many_queue_pairs_delays_nobody() {
    let mut service = service();
    let mut now = 0;
    let mut crowd: Vec<End> = (0..8).map(|_| end(&mut service)).collect();
    for of in &mut crowd {
        for qpn in pairs(&mut service, of, 1000) {
            connect_by(&mut service, (of.number, qpn), Qpn::new(77), ELSEWHERE);
            ask(of, qpn, Operation::Send, 64);
            now += 1000;
            service.turn(Moment::new(now), &mut FullWire);
        }
    }
    let (mut a, mut b) = (end(&mut service), end(&mut service));
    join(&mut service, &a, &b);
    for _ in 0..20 {
        let turns = turns_of_a_send(&mut service, &mut now, [&mut a, &mut b], &mut FullWire);
        assert!(turns <= 8, "{turns}");
    }
}

#[test]
fn a_farewell_waits_for_nobodys_turn_and_gives_nobody_one() {
    let (mut service, [mut a, mut b]) = two();
    let mut now = 0;
    // More programs with long WRITEs on their way than have a turn before the end.
    let _crowds: Vec<[End; 2]> = (0..20).map(|_| crowd(&mut service, &mut now, 1)).collect();
    let (key, own) = (b.key, a.piece(0, 64));
    let immediate = Operation::Write { address: 0, rkey: key, immediate: Some([0; 4]) };
    b.program.post_receive(b.qpn, 1, &[]).unwrap();
    a.post(2, immediate, &[own]).unwrap();
    while b.poll().is_empty() {
        now += 1000;
        service.turn(Moment::new(now), &mut NoWire);
    }
    assert!(a.poll().is_empty(), "the acknowledgement waits for its turn");
    let before = service.counters().packets;
    service.say_farewell(Moment::new(now), b.number, b.qpn, &mut NoWire);
    service.say_farewell(Moment::new(now), a.number, b.qpn, &mut NoWire);
    assert_eq!(service.counters().packets, before);
    service.destroy_pair(b.number, b.qpn).unwrap();
    now += 1000;
    service.turn(Moment::new(now), &mut NoWire);
    let ended: Vec<_> = a.poll().iter().map(|line| (line.id, line.status)).collect();
    assert_eq!(ended, [(2, Status::Success)]);
}

/// How many pairs, regions, queues and shared receive queues a user takes with so many programs, until there are no more.
fn greedy(service: &mut Service, account: Account, programs: usize) -> [usize; 4] {
    let mut taken = [0; 4];
    let memory = Region::allocate(4096, Pages::Ordinary).unwrap();
    for _ in 0..programs {
        let number = service.enter(account).unwrap();
        let Ok(domain) = service.create_domain(number) else { continue };
        let Ok((queue, ())) = service.create_queue(number, 1, |_| Ok(())) else { continue };
        let wanted = init(domain, queue, Capabilities::default());
        while service.create_pair(number, &wanted).is_ok() {
            taken[0] += 1;
        }
        while service.register(number, domain, &memory, None, ALL).is_ok() {
            taken[1] += 1;
        }
        while service.create_queue(number, 1, |_| Ok(())).is_ok() {
            taken[2] += 1;
        }
        while service.create_shared(number, domain, 1, 1).is_ok() {
            taken[3] += 1;
        }
    }
    taken
}

#[test]
fn a_user_with_many_programs_leaves_the_others_theirs() {
    let mut service = service();
    let [eve, bob] = [1000, 1001].map(|uid| Account { uid, is_owner: false });
    // All that may be of one user (64 programs), and what is left to another one and to the owner.
    let of_eve = greedy(&mut service, eve, 64);
    assert!(of_eve.iter().all(|taken| (1000..=4096).contains(taken)), "{of_eve:?}");
    let of_bob = greedy(&mut service, bob, 8);
    assert!(of_bob.iter().all(|taken| (900..=2048).contains(taken)), "{of_bob:?}");
    let [pairs, regions, queues, shared] = greedy(&mut service, OWNER, 4);
    assert_eq!((pairs, queues, shared), (4096, 4092, 1024));
    assert!(regions > 8192, "{regions}");
}

/// How many of each kind a user can have beside what he has: completions, regions, queue pairs, shared receive queues.
fn left_of(service: &mut Service, account: Account) -> [usize; 4] {
    let memory = Region::allocate(4096, Pages::Ordinary).unwrap();
    let number = service.enter(account).unwrap();
    let domain = service.create_domain(number).unwrap();
    let mut count = [0; 4];
    while service.register(number, domain, &memory, None, ALL).is_ok() {
        count[1] += 1;
    }
    while service.create_shared(number, domain, 1, 1).is_ok() {
        count[3] += 1;
    }
    let mut queue = 0;
    while let Ok((made, ())) = service.create_queue(number, 64, |_| Ok(())) {
        (queue, count[0]) = (made, count[0] + 64);
    }
    while service.create_pair(number, &init(domain, queue, Capabilities::default())).is_ok() {
        count[2] += 1;
    }
    drop(service.leave(Moment::new(0), number));
    count
}

#[test]
fn what_is_given_up_is_in_the_books_until_it_is_dropped() {
    let few = Amounts { regions: 64, completions: 4096, pairs: 64, shared: 64, ..Quota::default().all };
    let quota = Quota { all: few, ..Quota::default() };
    let mut service = Service::new(Options { seed: 1, ..Options::default() }, MAC, &[GID], quota);
    let eve = Account { uid: 1000, is_owner: false };
    let all = left_of(&mut service, eve);
    assert_eq!(all, [512, 8, 8, 8]);
    // For each two that wait to be dropped he can have one less.
    let memory = Region::allocate(4096, Pages::Ordinary).unwrap();
    let number = service.enter(eve).unwrap();
    let domain = service.create_domain(number).unwrap();
    let key = service.register(number, domain, &memory, None, ALL).unwrap().lkey;
    let moved = ((memory.window().clone(), 3), 0);
    let (made, old) = service.reregister(number, key, Some(moved), None, None).unwrap();
    let region = service.deregister(number, made.lkey).unwrap();
    assert_eq!(left_of(&mut service, eve), [512, 6, 8, 8], "four parts of memory");
    let (queue, ()) = service.create_queue(number, 64, |_| Ok(())).unwrap();
    let ((), ring) = service.resize_queue(number, queue, 192, |_| Ok(())).unwrap();
    let wanted = init(domain, queue, Capabilities::default());
    let pairs = [0, 1].map(|_| service.create_pair(number, &wanted).unwrap().0);
    let pairs = pairs.map(|pair| service.destroy_pair(number, pair).unwrap());
    let queue = service.destroy_queue(number, queue).unwrap();
    let shared = [0, 1].map(|_| service.create_shared(number, domain, 1, 1).unwrap());
    let shared = shared.map(|shared| service.destroy_shared(number, shared).unwrap());
    assert_eq!(left_of(&mut service, eve), [384, 6, 7, 7]);
    drop(old);
    drop(ring);
    assert_eq!(left_of(&mut service, eve), [448, 7, 7, 7]);
    for _ in 0..4 {
        service.register(number, domain, &memory, None, ALL).unwrap();
    }
    let left = service.leave(Moment::new(0), number);
    drop((region, pairs, queue, shared));
    assert_eq!(left_of(&mut service, eve), [512, 6, 8, 8]);
    drop(left);
    assert_eq!(left_of(&mut service, eve), all);
}
