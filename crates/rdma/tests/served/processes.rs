//! Programs that are processes of their own.

use super::*;

/// Run by the next test as a process of its own: posts WRITEs until it is killed, or as many as it is told.
#[test]
fn as_a_program_of_its_own() {
    let Ok(told) = std::env::var("MILLRACE_TEST_SERVED") else { return };
    let told: Vec<u64> = told.split(' ').map(|number| number.parse().unwrap()).collect();
    let [pid, shared, ring, queue, qpn, lkey, rkey, count] = told[..] else { panic!("{told:?}") };
    let map = |fd: u64, len: usize| {
        let file = std::fs::File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}")).unwrap();
        Region::map(std::os::fd::OwnedFd::from(file), len, Protection::ReadWrite, false).unwrap()
    };
    let lines = millrace_rdma::served::queue_lines(256);
    let mut program = Program::new(map(shared, SHARED_LEN).window()).unwrap();
    let ring = map(ring, millrace_ring::lines::bytes_of(lines));
    program.add_queue(queue as u32, 256, ring.window()).unwrap();
    let qpn = Qpn::new(qpn as u32);
    program.add_pair(qpn, &Capabilities { send_requests: DEPTH, ..Capabilities::default() }, true);
    let mut found = [Completion::default(); 64];
    let (mut posted, mut ended) = (0, 0);
    while ended < count {
        let pieces = [Piece { address: posted % 512 * 8, len: 8, lkey: Key::new(lkey as u32) }];
        let operation = write_to(Key::new(rkey as u32), posted % 512 * 8);
        let flags = Flags { signaled: true, ..Flags::default() };
        let request = Request { id: posted, operation, data: Data::Pieces(&pieces), flags, target: None };
        if posted < count && program.post_send(qpn, &request).is_ok() {
            posted += 1;
        }
        let came = program.poll(queue as u32, &mut found).unwrap();
        for line in &found[..came] {
            assert_eq!((line.id, line.status), (ended, Status::Success));
            ended += 1;
        }
    }
}

#[test]
fn programs_that_are_processes_of_their_own_write_and_are_killed() {
    use std::os::fd::AsRawFd;
    for count in [20_000_u64, u64::MAX] {
        let mut service = service();
        let a = end(&mut service);
        let mut b = end(&mut service);
        join(&mut service, &a, &b);
        a.fill(0, &pattern(4096, 5));
        // A queue more, whose ring the other process alone reads.
        let (queue, ring) = service.create_queue(a.number, 256, |ring| Ok(again(ring))).unwrap();
        let ring = ring.fd().unwrap().try_clone_to_owned().unwrap();
        let capabilities = Capabilities { send_requests: DEPTH, ..Capabilities::default() };
        let (qpn, _) = service.create_pair(a.number, &init(a.domain, queue, capabilities)).unwrap();
        let (far, _) = service.create_pair(b.number, &init(b.domain, b.queue, capabilities)).unwrap();
        connect(&mut service, a.number, qpn, far);
        connect(&mut service, b.number, far, qpn);
        let shared = service.memory_of(a.number).unwrap().fd().unwrap().as_raw_fd();
        let numbers = [shared as u64, ring.as_raw_fd() as u64, queue.into(), qpn.value().into()];
        let keys = [a.key.value().into(), b.key.value().into(), count];
        let told = [vec![std::process::id().into()], numbers.to_vec(), keys.to_vec()].concat();
        let told = told.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::as_a_program_of_its_own"])
            .env("MILLRACE_TEST_SERVED", told)
            .spawn()
            .unwrap();
        let began = std::time::Instant::now();
        let now = || Moment::new(began.elapsed().as_nanos() as u64);
        let status = loop {
            if !service.turn(now(), &mut NoWire).moved {
                std::thread::yield_now();
            }
            if count == u64::MAX && service.counters().taken > 5000 {
                child.kill().unwrap();
            }
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed().as_secs() < 60, "{:?}", service.counters());
        };
        assert_eq!(status.success(), count != u64::MAX, "{status}");
        assert_eq!(b.bytes(0, 4096), pattern(4096, 5));
        service.leave(now(), a.number);
        assert_eq!(service.programs(), 1);
        // The other one is told when it asks.
        b.program.add_pair(far, &capabilities, true);
        let request = Request {
            id: 77,
            operation: Operation::Send,
            data: Data::Pieces(&[]),
            flags: Flags { signaled: true, ..Flags::default() },
            target: None,
        };
        b.program.post_send(far, &request).unwrap();
        service.turn(now(), &mut NoWire);
        assert_eq!((b.poll()[0].id, b.program.take_event().is_ok()), (77, true));
    }
}

#[test]
fn who_only_says_that_he_is_connected_is_nobody() {
    let (mut service, [mut a, mut b]) = two();
    let mut stranger = end(&mut service);
    // b is connected with a; the stranger says that its other end is b, and sends what b waits for, and what would break b.
    connect(&mut service, stranger.number, stranger.qpn, b.qpn);
    b.program.post_receive(b.qpn, 900, &[b.piece(0, 64)]).unwrap();
    let (own, of_a) = ([stranger.piece(0, 64)], [a.piece(0, 64)]);
    stranger.post(1, Operation::Send, &own).unwrap();
    stranger.post(2, write_to(Key::new(0xdead_beef), 0), &own).unwrap();
    let mut now = 0;
    let mut turns = |service: &mut Service, count| {
        for _ in 0..count {
            now += 100_000;
            service.turn(Moment::new(now), &mut NoWire);
        }
    };
    turns(&mut service, 50);
    assert_eq!(b.poll().len(), 0, "something has come that nobody of its connection has sent");
    assert!(service.counters().unconnected > 0);
    a.post(3, Operation::Send, &of_a).unwrap();
    turns(&mut service, 50);
    let told = |lines: Vec<Completion>| lines.iter().map(|line| (line.id, line.status)).collect::<Vec<_>>();
    assert_eq!(told(a.poll()), [(3, Status::Success)]);
    assert_eq!(told(b.poll()), [(900, Status::Success)]);
    turns(&mut service, 20_000);
    let lost = told(stranger.poll());
    assert_eq!(lost.first(), Some(&(1, Status::RetryExceeded)), "as with a queue pair that is not there");
}
