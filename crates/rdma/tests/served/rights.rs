//! What belongs to whom: keys, quotas, numbers, the key of datagrams, windows.

use super::*;

/// A counter of the table behind a program's keys, as it is shown.
fn iotlb(service: &mut Service, program: Number, name: &str) -> u64 {
    let told = service.show(program).unwrap().fields();
    let (_, iotlb) = told.split_once("\"iotlb\":{").unwrap();
    let (_, value) = iotlb.split_once(&format!("\"{name}\":")).unwrap();
    value[..value.find([',', '}']).unwrap()].parse().unwrap()
}

#[test]
fn what_keys_open_is_counted() {
    let (mut service, [mut a, b]) = two();
    let mut now = 0;
    let all = ["entries", "huge_entries", "lookups", "hits", "misses", "evictions"];
    let seen = |service: &mut Service, end: &End| all.map(|name| iotlb(service, end.number, name));
    assert_eq!(seen(&mut service, &b), [1, 0, 0, 0, 0, 0]);
    let own = [a.piece(0, 4096)];
    a.post(1, write_to(b.key, 0), &own).unwrap();
    run(&mut service, &mut now);
    let [.., lookups, hits, misses, _] = seen(&mut service, &b);
    assert!(hits > 0 && lookups == hits && misses == 0);
    // On huge pages, where there are some.
    let huge = Region::allocate(2 << 20, Pages::HugeIfAny).unwrap();
    let is_huge = rustix::fs::fstatfs(huge.fd().unwrap()).unwrap().f_bsize as u64 > 4096;
    let key = service.register(b.number, b.domain, &again(&huge), Some(0), ALL).unwrap().lkey;
    assert_eq!(seen(&mut service, &b)[..2], [2, u64::from(is_huge)]);
    service.deregister(b.number, key).unwrap();
    a.post(2, write_to(key, 0), &own).unwrap();
    run(&mut service, &mut now);
    assert_eq!(a.poll()[1].status, Status::RemoteAccess);
    assert_eq!(seen(&mut service, &b), [1, 0, hits + 1, hits, 1, 0]);
}

#[test]
fn nobody_uses_what_belongs_to_another() {
    let (mut service, [mut a, b]) = two();
    let mut stranger = end(&mut service);
    let mut now = 0;
    let number = stranger.number;
    assert!(service.destroy_domain(number, a.domain).is_err());
    assert!(service.destroy_queue(number, a.queue).is_err());
    assert!(service.destroy_pair(number, a.qpn).is_err() && service.query_pair(number, a.qpn).is_err());
    assert!(service.modify_pair(number, a.qpn, &Attributes::state(State::Error)).is_err());
    let capabilities = Capabilities { send_requests: 1, ..Capabilities::default() };
    assert!(service.create_pair(number, &init(stranger.domain, a.queue, capabilities)).is_err());
    assert!(service.create_pair(number, &init(a.domain, stranger.queue, capabilities)).is_err());
    assert!(service.register(number, a.domain, &again(&stranger.memory), None, ALL).is_err());
    assert!(service.destroy_domain(a.number, a.domain).is_err(), "it has a region and a queue pair");
    // Posts to a queue pair of another program: it says that it has it.
    stranger.program.add_pair(a.qpn, &Capabilities { send_requests: 8, ..Capabilities::default() }, true);
    let piece = [stranger.piece(0, 64)];
    let request = |operation, pieces| Request {
        id: 0,
        operation,
        data: Data::Pieces(pieces),
        flags: Flags::default(),
        target: None,
    };
    stranger.program.post_send(a.qpn, &request(write_to(b.key, 0), &piece)).unwrap();
    stranger.program.post_shared(7, 0, &piece).unwrap();
    run(&mut service, &mut now);
    assert_eq!(service.counters().strange, 2);
    // Its queue pair says that it is connected with one that is connected with another.
    connect(&mut service, number, stranger.qpn, b.qpn);
    stranger.post(5, write_to(b.key, 0), &piece).unwrap();
    for _ in 0..20_000 {
        now += 1_000_000;
        service.turn(Moment::new(now), &mut NoWire);
    }
    assert_eq!(stranger.poll()[0].status, Status::RetryExceeded);
    // A local key of another program.
    let foreign = Piece { address: 0, len: 64, lkey: b.key };
    a.post(6, write_to(b.key, 0), &[foreign]).unwrap();
    run(&mut service, &mut now);
    assert_eq!(a.poll()[0].status, Status::LocalProtection);
    assert_eq!(b.bytes(0, 64), [0; 64]);
}

#[test]
fn quotas_are_kept_and_given_back() {
    let program = Amounts {
        domains: 2,
        queues: 2,
        completions: 300,
        pairs: 2,
        // That of `end`, one of 64 requests, and not one of 128.
        queue_bytes: 64 * (192 + 64 + 256) + 64 * (32 + 64) + 64 * 192 + 4096,
        bytes: LEN as u64,
        ..Quota::default().program
    };
    let quota = Quota { program, ..Quota::default() };
    let mut service = Service::new(Options::default(), MAC, &[GID], quota);
    let one = end(&mut service);
    let capabilities = Capabilities { send_requests: 64, ..Capabilities::default() };
    let make = |service: &mut Service, pair: &Init| service.create_pair(one.number, pair).map(|(qpn, _)| qpn);
    let wanted = init(one.domain, one.queue, capabilities);
    let second = make(&mut service, &wanted).unwrap();
    assert_eq!(make(&mut service, &wanted).unwrap_err().errno(), 12);
    service.destroy_pair(one.number, second).unwrap();
    let much = Capabilities { send_requests: 80, ..Capabilities::default() };
    assert_eq!(make(&mut service, &init(one.domain, one.queue, much)).unwrap_err().errno(), 12);
    assert_eq!(
        service.create_queue(one.number, 64, |_| Ok(())).err().unwrap().errno(),
        12,
        "256 and 64 are more than 300"
    );
    let (queue, _) = service.create_queue(one.number, 32, |_| Ok(())).unwrap();
    assert_eq!(service.create_queue(one.number, 1, |_| Ok(())).err().unwrap().errno(), 12);
    service.destroy_queue(one.number, queue).unwrap();
    let more = Region::allocate(4096, Pages::Ordinary).unwrap();
    assert_eq!(service.register(one.number, one.domain, &more, None, ALL).unwrap_err().errno(), 12);
    service.deregister(one.number, one.key).unwrap();
    service.register(one.number, one.domain, &more, None, ALL).unwrap();
    // Another program has its own.
    end(&mut service);
}

#[test]
fn nobody_takes_all_regions() {
    let all = Amounts { regions: 64, ..Quota::default().all };
    let quota = Quota { all, ..Quota::default() };
    let mut service = Service::new(Options::default(), MAC, &[GID], quota);
    let mut fill = || {
        let one = end(&mut service);
        let more = Region::allocate(4096, Pages::Ordinary).unwrap();
        // One it has already.
        1 + (0..100).take_while(|_| service.register(one.number, one.domain, &more, None, ALL).is_ok()).count()
    };
    assert_eq!([fill(), fill(), fill(), fill()], [32, 16, 8, 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A program that arms, looks until nothing is there, and sleeps until an event comes, in any turns with a card: it sees all.
    #[test]
    fn nobody_sleeps_over_a_completion(steps in prop::collection::vec(0u8..5, 1..400)) {
        enum Does { Arm, Look, Sleep }
        let (mut service, [mut a, b]) = two();
        let (own, key) = (a.piece(0, 8), b.key);
        let (mut does, mut posted, mut seen, mut now) = (Does::Arm, 0, 0, 0);
        let mut step = |a: &mut End, seen: &mut usize| {
            does = match does {
                Does::Arm => {
                    a.program.arm(a.queue, false).unwrap();
                    Does::Look
                }
                Does::Look => match a.poll().len() {
                    0 => Does::Sleep,
                    count => {
                        *seen += count;
                        Does::Arm
                    }
                },
                Does::Sleep if a.program.take_event().unwrap().is_some() => Does::Arm,
                Does::Sleep => Does::Sleep,
            };
        };
        for one in steps {
            match one {
                0 if posted - seen < DEPTH as usize => {
                    a.post(posted as u64, write_to(key, 0), &[own]).unwrap();
                    posted += 1;
                }
                1 => {
                    now += 1;
                    service.turn(Moment::new(now), &mut NoWire);
                }
                _ => step(&mut a, &mut seen),
            }
        }
        for _ in 0..200 {
            run(&mut service, &mut now);
            step(&mut a, &mut seen);
        }
        prop_assert_eq!(seen, posted);
    }

    /// Whatever a program writes into its rings, it harms only itself.
    #[test]
    fn nonsense_harms_nobody_else(words in prop::collection::vec((0usize..2000, any::<u64>(), any::<bool>()), 1..300), taken: u64) {
        let (mut service, [mut a, b]) = two();
        let stranger = end(&mut service);
        for (at, word, small) in words {
            let (line, place) = (at / 8, at % 8);
            // Stamps that are taken, and heads with kinds that there are.
            let word = match place {
                0 => (line as u64 + 1) | (word % 30) << 32,
                1 if small => (word % 6) | (word & 0x0007_071f_0000) | u64::from(stranger.qpn.value()) << 32,
                _ if small => word % 5000,
                _ => word,
            };
            stranger.program_window(&service).slots64(256, 8192).unwrap().store((line * 8 + place) as u32, word);
        }
        stranger.program_window(&service).word64(0).unwrap().store(taken, millrace_dma::Ordering::Relaxed);
        let (own, key) = (a.piece(0, 64), b.key);
        a.fill(0, &pattern(64, 9));
        a.post(1, write_to(key, 128), &[own]).unwrap();
        for now in 1..200 {
            service.turn(Moment::new(now * 1000), &mut NoWire);
        }
        prop_assert_eq!(a.poll()[0].status, Status::Success);
        prop_assert_eq!(b.bytes(128, 64), pattern(64, 9));
        prop_assert!(b.bytes(0, 128).iter().all(|byte| *byte == 0));
        let out = service.take_put_out();
        prop_assert_eq!(out.is_some(), service.programs() == 2);
    }
}

/// A number is nobody's while a queue pair is connected with who had it: that one would take the new owner for him.
#[test]
fn the_number_of_a_connections_end_is_not_given_to_another() {
    let options = Options { seed: 1, first_qpn: 16, qpns: 8, ..Options::default() };
    let mut service = Service::new(options, MAC, &[GID], Quota::default());
    let [a, b] = [end(&mut service), end(&mut service)];
    join(&mut service, &a, &b);
    service.destroy_pair(b.number, b.qpn).unwrap();
    let stranger = end(&mut service);
    let wanted = init(stranger.domain, stranger.queue, Capabilities { send_requests: 1, ..Capabilities::default() });
    let mut make = || service.create_pair(stranger.number, &wanted).map(|(qpn, _)| qpn);
    let mut given = vec![stranger.qpn];
    while let Ok(qpn) = make() {
        given.push(qpn);
    }
    assert_eq!(given.len(), 6, "all numbers but two: {given:?}");
    assert!(!given.contains(&b.qpn));
    service.modify_pair(a.number, a.qpn, &Attributes::state(State::Reset)).unwrap();
    service.destroy_pair(a.number, a.qpn).unwrap();
    let mut last: Vec<Qpn> = (0..2).map(|_| service.create_pair(stranger.number, &wanted).unwrap().0).collect();
    last.sort_unstable_by_key(|qpn| qpn.value());
    assert_eq!(last, [a.qpn, b.qpn], "they are free when the connection has ended");
}

#[test]
fn datagrams_go_to_who_has_the_queue_key_and_say_whose_they_are() {
    let (mut service, [mut a, mut b]) = two();
    let (from, to) = (datagrams(&mut service, &mut a), datagrams(&mut service, &mut b));
    let mut now = 0;
    a.fill(0, &pattern(1000, 9));
    b.program.post_receive(to, 50, &[b.piece(0, 2048)]).unwrap();
    let piece = [a.piece(0, 1000)];
    let flags = Flags { signaled: true, ..Flags::default() };
    let mut post = |id, path: Path, qkey, data| {
        let target = Target { path, qpn: to, qkey };
        let request = Request { id, operation: Operation::SendImmediate([9; 4]), data, flags, target: Some(&target) };
        a.program.post_send(from, &request).unwrap();
    };
    post(1, PATH, QKEY + 1, Data::Pieces(&piece));
    post(2, PATH, QKEY, Data::Pieces(&piece));
    run(&mut service, &mut now);
    let came = b.poll();
    assert_eq!(came.len(), 1, "one has the wrong queue key");
    let line = came[0];
    assert_eq!((line.id, line.status, line.len, line.source), (50, Status::Success, 1040, from));
    assert_eq!((line.has_grh, line.service_level), (true, 10));
    assert_eq!(b.bytes(40, 1000), pattern(1000, 9));
    // 20 zeros, and the header of IPv4 that a frame would have: of so many bytes, with its sum, from and to this address.
    let route = b.bytes(0, 40);
    assert_eq!((route[20], u16::from_be_bytes([route[22], route[23]])), (0x45, 20 + 8 + 12 + 8 + 4 + 1000 + 4));
    assert_eq!((&route[32..36], &route[36..40]), (&GID.0[12..], &GID.0[12..]));
    let words = route[20..].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    assert_eq!(words.sum::<u32>() % 0xffff, 0);
    // Nobody speaks for another address, and a queue pair of connections takes no such request for one.
    let strange = Gid([1; 16]);
    post(3, Path { source: strange, ..PATH }, QKEY, Data::Inline(&[b"x"]));
    run(&mut service, &mut now);
    let ended: Vec<_> = a.poll().iter().map(|line| (line.id, line.status)).collect();
    assert_eq!(ended, [(1, Status::Success), (2, Status::Success), (3, Status::LocalOperation)]);
}

#[test]
fn windows_and_changed_regions_open_what_they_say_and_to_whom() {
    let (mut service, [mut a, mut b]) = two();
    let mut now = 0;
    let own = [a.piece(0, 8)];
    a.fill(0, &[7; 8]);
    let write = |service: &mut Service, a: &mut End, now: &mut u64, key, address| {
        a.post(1, write_to(key, address), &own).unwrap();
        run(service, now);
        a.poll()[0].status
    };
    // A window of 8 bytes at 4096, of the kind whose key the card chooses.
    assert!(service.create_window(a.number, b.domain, WindowType::One).is_err(), "the domain of another program");
    let window = service.create_window(b.number, b.domain, WindowType::One).unwrap();
    let rkey = service.next_window_key(b.number, window).unwrap();
    assert!(service.next_window_key(a.number, window).is_err());
    // The region has to allow it: one with that right, besides the others of this test.
    let access = ALL.with(Access::WINDOW_BIND);
    let made = service.reregister(b.number, b.key, None, None, Some(access)).unwrap().0;
    assert_ne!(made.lkey, b.key, "the old key opens nothing");
    assert!(service.reregister(a.number, made.lkey, None, None, Some(access)).is_err(), "it is another program's");
    let old = b.key;
    b.key = made.lkey;
    let binding = Binding { rkey, region: b.key, address: 4096, len: 8, access: Access::REMOTE_WRITE };
    b.post(5, Operation::Bind(binding), &[]).unwrap();
    run(&mut service, &mut now);
    assert_eq!(b.poll()[0].status, Status::Success);
    assert_eq!(write(&mut service, &mut a, &mut now, rkey, 4096), Status::Success);
    assert_eq!(b.bytes(4096, 8), [7; 8]);
    // Another one, of other bytes in another file.
    let more = Region::allocate(8192, Pages::Ordinary).unwrap();
    service.destroy_window(b.number, rkey).unwrap();
    let moved = Some(((again(&more).window().clone(), 1), 1 << 30));
    let made = service.reregister(b.number, b.key, moved, None, None).unwrap().0;
    assert_eq!(write(&mut service, &mut a, &mut now, made.rkey, (1 << 30) + 8), Status::Success);
    let mut found = [0; 8];
    more.window().span(8, 8).unwrap().read_into(&mut found);
    assert_eq!(found, [7; 8]);
    assert_eq!(write(&mut service, &mut a, &mut now, old, 0), Status::RemoteAccess, "a key from before");
}
