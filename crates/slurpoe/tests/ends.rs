//! Endpoints on both ends of a wire of shared memory (vhost-user), in one process.

use millrace_slurpoe::{Access, Address, Completion, Config, Endpoint, Error, Failed, Kind, Notify, Transfer, Wire};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);

struct Wired {
    ends: [Endpoint; 2],
    _folder: tempfile::TempDir,
}

/// Two ends, connected by the first.
fn wired(config: &Config) -> Wired {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wire").display().to_string();
    let open = |kind: &str, last: u8| {
        let (port, address) = (Some(format!("{kind}:{path}")), Some(Address([2, 0, 0, 0, 0, last])));
        Endpoint::open(&Config { port, address, ..config.clone() }).unwrap()
    };
    let ends = [open("vhost-user", 1), open("virtio-user", 2)];
    ends[0].connect(ends[1].address(), SOON).unwrap();
    Wired { ends, _folder: folder }
}

fn jumbo() -> Config {
    Config { mtu: Some(8192), ..Config::default() }
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed).collect()
}

fn done(endpoint: &Endpoint, token: u64) -> Completion {
    let completion = endpoint.wait(SOON).expect("it ends");
    assert_eq!((completion.token, completion.failed), (token, None));
    completion
}

#[test]
fn write_read_send() {
    for config in [jumbo(), Config::default(), Config { wire: Wire::RoceV2, mtu: Some(4096), ..Config::default() }] {
        let Wired { ends: [a, b], .. } = wired(&config);
        let (here, there) = (a.allocate(1 << 20, Access::LOCAL).unwrap(), b.allocate(1 << 20, Access::ALL).unwrap());
        let sent = bytes(300_001, 7);
        here.store(5, &sent).unwrap();
        let write = Transfer::write(here.part(5, 300_001).unwrap(), there.key(), 77);
        a.post(b.address(), &[write], 1, Notify::Poll).unwrap();
        assert_eq!(done(&a, 1).kind, Kind::Write);
        let mut got = vec![0; sent.len()];
        there.load(77, &mut got).unwrap();
        assert!(got == sent);
        let read = Transfer::read(here.part(500_000, 300_001).unwrap(), there.key(), 77);
        a.post(b.address(), &[read], 2, Notify::Poll).unwrap();
        assert_eq!(done(&a, 2).kind, Kind::Read);
        here.load(500_000, &mut got).unwrap();
        assert!(got == sent);
        // The other way round, to a buffer.
        here.store(0, &[0; 64]).unwrap();
        a.receive(here.part(0, 64).unwrap(), 3, Notify::Poll).unwrap();
        b.post(a.address(), &[Transfer::send(there.part(77, 40).unwrap())], 4, Notify::Poll).unwrap();
        let came = done(&a, 3);
        assert_eq!((came.kind, came.len, came.other), (Kind::Receive, 40, b.address()));
        done(&b, 4);
        here.load(0, &mut got[..64]).unwrap();
        assert_eq!((&got[..40], &got[40..64]), (&sent[..40], &[0; 24][..]));
    }
}

#[test]
fn chains_have_one_end_or_one_each() {
    let Wired { ends: [a, b], .. } = wired(&jumbo());
    let (here, there) = (a.allocate(1 << 20, Access::LOCAL).unwrap(), b.allocate(1 << 20, Access::ALL).unwrap());
    let sent = bytes(100 * 5000, 3);
    here.store(0, &sent).unwrap();
    // Each part to where the 99th before it would be.
    let chain: Vec<Transfer> = (0..100)
        .map(|at| Transfer::write(here.part(at * 5000, 5000).unwrap(), there.key(), (99 - at) * 5000))
        .collect();
    a.post(b.address(), &chain, 1, Notify::Poll).unwrap();
    let end = done(&a, 1);
    assert_eq!(end.index, 99);
    let mut got = vec![0; sent.len()];
    there.load(0, &mut got).unwrap();
    assert!(got.chunks(5000).rev().eq(sent.chunks(5000)));
    a.post_each(b.address(), &chain, 1000, Notify::Poll).unwrap();
    for at in 0..100 {
        assert_eq!(usize::from(done(&a, 1000 + at).index), at as usize);
    }
    assert_eq!(a.wait(Duration::from_millis(20)), None);
    // The one that fails is named, what follows is not done, and the list ends once.
    let mut bad = chain;
    bad[40] = Transfer::write(here.part(0, 8).unwrap(), there.key(), (1 << 20) - 7);
    there.store(0, &vec![0; 1 << 20]).unwrap();
    a.post(b.address(), &bad, 5, Notify::Poll).unwrap();
    let end = a.wait(SOON).unwrap();
    assert_eq!((end.token, end.failed, end.index), (5, Some(Failed::RemoteAccess), 40));
    assert_eq!(a.wait(Duration::from_millis(20)), None);
    there.load(0, &mut got).unwrap();
    assert!(got[..60 * 5000].iter().all(|byte| *byte == 0));
}

#[test]
fn ends_are_told_by_callback_and_by_descriptor() {
    let Wired { ends: [a, b], .. } = wired(&jumbo());
    let (here, there) = (a.allocate(4096, Access::LOCAL).unwrap(), b.allocate(4096, Access::ALL).unwrap());
    let write = [Transfer::write(here.part(0, 4096).unwrap(), there.key(), 0)];
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = told.clone();
    let notify = Notify::Callback(Arc::new(move |end: &Completion| to.lock().unwrap().push(*end)));
    a.post(b.address(), &write, 1, notify).unwrap();
    // Nobody polls: the helper threads of both move it on.
    let begin = Instant::now();
    while told.lock().unwrap().is_empty() {
        assert!(begin.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(told.lock().unwrap().as_slice(), [Completion { token: 1, other: b.address(), ..Completion::default() }]);
    a.post(b.address(), &write, 2, Notify::Descriptor).unwrap();
    let mut waits = [rustix::event::PollFd::from_borrowed_fd(a.descriptor(), rustix::event::PollFlags::IN)];
    let patience = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut waits, Some(&patience)).unwrap(), 1);
    let mut count = [0; 8];
    rustix::io::read(a.descriptor(), &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
    let mut one = [Completion::default()];
    assert_eq!((a.poll(&mut one), one[0].token), (1, 2));
    // A callback may post.
    let a = Arc::new(a);
    let (left, again, other) = (Arc::new(AtomicU32::new(50)), a.clone(), b.address());
    fn next(a: &Arc<Endpoint>, other: Address, write: [Transfer; 1], left: &Arc<AtomicU32>) {
        let (again, left) = (a.clone(), left.clone());
        let call = move |end: &Completion| {
            assert_eq!(end.failed, None);
            if left.fetch_sub(1, Ordering::SeqCst) > 1 {
                next(&again, other, write, &left);
            }
        };
        a.post(other, &write, 3, Notify::Callback(Arc::new(call))).unwrap();
    }
    next(&again, other, write, &left);
    let begin = Instant::now();
    while left.load(Ordering::SeqCst) > 0 {
        assert!(begin.elapsed() < SOON);
        a.progress();
    }
}

#[test]
fn what_is_not_allowed_is_refused_by_name() {
    let Wired { ends: [a, b], .. } = wired(&jumbo());
    let here = a.allocate(4096, Access::LOCAL).unwrap();
    let (open, closed) = (b.allocate(4096, Access::ALL).unwrap(), b.allocate(4096, Access::LOCAL).unwrap());
    let all = || here.part(0, 4096).unwrap();
    let gone = b.allocate(4096, Access::ALL).unwrap();
    let gone_key = gone.key();
    gone.deregister().unwrap();
    let cases = [
        ("key", Transfer::write(all(), open.key() ^ 1, 0), [1, 0, 0]),
        ("deregistered", Transfer::read(all(), gone_key, 0), [1, 0, 0]),
        ("bounds", Transfer::write(all(), open.key(), 1), [0, 1, 0]),
        ("far", Transfer::read(all(), open.key(), u64::MAX), [0, 1, 0]),
        ("permission", Transfer::write(all(), closed.key(), 0), [0, 0, 1]),
        ("reading", Transfer::read(all(), closed.key(), 0), [0, 0, 1]),
    ];
    for (name, transfer, more) in cases {
        let before = b.refused();
        a.connect(b.address(), SOON).unwrap();
        a.post(b.address(), &[transfer], 9, Notify::Poll).unwrap();
        let end = a.wait(SOON).unwrap();
        assert_eq!((end.token, end.failed.map(Failed::name)), (9, Some("remote-access")), "{name}");
        let after = b.refused();
        for at in 0..3 {
            assert_eq!(after[at] > before[at], more[at] == 1, "{name}: {before:?} {after:?}");
        }
        // The connection is over.
        assert!(matches!(a.post(b.address(), &[transfer], 9, Notify::Poll), Err(Error::NotConnected(_))));
    }
    a.connect(b.address(), SOON).unwrap();
    a.post(b.address(), &[Transfer::write(all(), open.key(), 0)], 1, Notify::Poll).unwrap();
    done(&a, 1);
}

#[test]
fn calls_that_cannot_be_done() {
    let Wired { ends: [a, b], _folder } = wired(&Config { depth: 8, peers: 1, ..jumbo() });
    let here = a.allocate(4096, Access::LOCAL).unwrap();
    let part = here.part(0, 8).unwrap();
    let write = [Transfer::write(part, 1, 0); 9];
    let nobody = Address([2, 0, 0, 0, 0, 9]);
    assert!(matches!(a.post(nobody, &write[..1], 0, Notify::Poll), Err(Error::NotConnected(_))));
    assert!(matches!(a.post(b.address(), &write, 0, Notify::Poll), Err(Error::Range(_))));
    assert!(matches!(a.post(b.address(), &[], 0, Notify::Poll), Err(Error::Range(_))));
    assert!(matches!(a.connect(a.address(), SOON), Err(Error::Itself(_))));
    assert!(matches!(a.connect(nobody, SOON), Err(Error::Peers(1))));
    assert!(matches!(here.part(4090, 7), Err(Error::Bounds { .. })));
    assert!(matches!(a.part_at(0x1000, 1), Err(Error::Unregistered { .. })));
    a.disconnect(b.address());
    let begin = Instant::now();
    assert!(matches!(a.connect(nobody, Duration::from_millis(100)), Err(Error::NoAnswer(_))));
    assert!(begin.elapsed() < SOON);
    for bad in [
        Config { mtu: Some(1000), ..jumbo() },
        Config { depth: 0, ..jumbo() },
        Config { wire: Wire::RoceV2, ..jumbo() },
    ] {
        let port = Some(format!("vhost-user:{}/other", _folder.path().display()));
        assert!(matches!(Endpoint::open(&Config { port, ..bad }), Err(Error::Range(_))));
    }
}

#[test]
fn an_end_that_is_closed_is_noticed() {
    let Wired { ends: [a, b], .. } = wired(&jumbo());
    let (here, there) = (a.allocate(1 << 20, Access::LOCAL).unwrap(), b.allocate(1 << 20, Access::ALL).unwrap());
    let other = b.address();
    let write = Transfer::write(here.part(0, 1 << 20).unwrap(), there.key(), 0);
    a.post_each(other, &[write; 64], 0, Notify::Poll).unwrap();
    drop(b);
    let begin = Instant::now();
    let ends: Vec<Completion> = (0..64).map(|_| a.wait(SOON).expect("it ends")).collect();
    let first = ends.iter().position(|end| end.failed.is_some()).expect("not all were done");
    assert_eq!(ends[first].failed, Some(Failed::Unreachable));
    assert!(ends[first + 1..].iter().all(|end| end.failed == Some(Failed::Flushed)));
    assert!(begin.elapsed() < SOON && !a.is_connected(other));
}

#[test]
fn several_endpoints_in_one_process() {
    let first = wired(&jumbo());
    let second = wired(&jumbo());
    for (at, Wired { ends: [a, b], .. }) in [&first, &second].into_iter().enumerate() {
        let (here, there) = (a.allocate(64, Access::LOCAL).unwrap(), b.allocate(64, Access::ALL).unwrap());
        here.store(0, &[at as u8 + 1; 64]).unwrap();
        a.post(b.address(), &[Transfer::write(here.part(0, 64).unwrap(), there.key(), 0)], 1, Notify::Poll).unwrap();
        done(a, 1);
        let mut got = [0; 64];
        there.load(0, &mut got).unwrap();
        assert_eq!(got, [at as u8 + 1; 64]);
    }
}

#[test]
fn queues_of_a_card() {
    let config = Config { card: Some("embedded:queues=2".into()), ..Config::default() };
    let (a, b) = (Endpoint::open(&config).unwrap(), Endpoint::open(&config).unwrap());
    assert!(matches!(Endpoint::open(&config), Err(Error::Link(_))));
    a.connect(b.address(), SOON).unwrap();
    let (here, there) = (a.allocate(1 << 17, Access::LOCAL).unwrap(), b.allocate(1 << 17, Access::ALL).unwrap());
    let sent = bytes(1 << 17, 9);
    here.store(0, &sent).unwrap();
    a.post(b.address(), &[Transfer::write(here.part(0, 1 << 17).unwrap(), there.key(), 0)], 1, Notify::Poll).unwrap();
    done(&a, 1);
    let mut got = vec![0; sent.len()];
    there.load(0, &mut got).unwrap();
    assert!(got == sent);
}

/// What is told to one end or to all comes, and wakes who has armed the descriptor; so does the end of a connection, once, after what came before.
#[test]
fn ends_tell_each_other_and_hear_that_it_is_over() {
    let Wired { ends: [a, b], .. } = wired(&Config { watch: true, ..jumbo() });
    let is_readable = |end: &Endpoint, patience: i64| {
        let mut waits = [rustix::event::PollFd::from_borrowed_fd(end.descriptor(), rustix::event::PollFlags::IN)];
        let patience = rustix::time::Timespec { tv_sec: patience, tv_nsec: 20_000_000 };
        rustix::event::poll(&mut waits, Some(&patience)).unwrap() == 1
    };
    assert!(b.arm() && !is_readable(&b, 0));
    let long = bytes(200, 4);
    a.tell(None, &long).unwrap();
    assert!(is_readable(&b, 20));
    rustix::io::read(b.descriptor(), &mut [0; 8]).unwrap();
    assert!(!b.arm(), "there is something");
    a.tell(Some(b.address()), b"").unwrap();
    a.tell(Some(Address([2, 0, 0, 0, 0, 77])), b"not for b").unwrap();
    assert!(matches!(a.tell(None, &[0; 201]), Err(Error::Told(201))));
    let mut told = Vec::new();
    let begin = Instant::now();
    while told.len() < 2 {
        b.progress();
        told.extend(b.told());
        assert!(begin.elapsed() < SOON);
    }
    assert!(told.iter().all(|told| told.from == a.address()));
    assert_eq!([&told[0].bytes, &told[1].bytes], [&long, &Vec::new()]);
    // More than anybody takes is counted, and no more is kept.
    let dropped = |end: &Endpoint| end.counters().into_iter().find(|(name, _)| name == "told-dropped").unwrap().1;
    while dropped(&b) < 36 {
        a.tell(None, b"again").unwrap();
        b.progress();
        assert!(begin.elapsed() < SOON);
    }
    assert_eq!((0..).map_while(|_| b.told()).count(), 64);
    // A message that came before, and then the end.
    let memory = [&a, &b].map(|end| end.allocate(4096, Access::LOCAL).unwrap());
    b.receive(memory[1].part(0, 64).unwrap(), 5, Notify::Poll).unwrap();
    a.post(b.address(), &[Transfer::send(memory[0].part(0, 10).unwrap())], 1, Notify::Poll).unwrap();
    done(&a, 1);
    a.disconnect(b.address());
    assert_eq!(b.wait(SOON).map(|end| (end.token, end.kind)), Some((5, Kind::Receive)));
    let over = Completion { kind: Kind::Over, other: a.address(), ..Completion::default() };
    assert_eq!(b.wait(SOON), Some(over));
    assert_eq!((a.wait(Duration::from_millis(20)), b.wait(Duration::from_millis(20))), (None, None));
    // It is asked for without waiting, from the other end.
    while !b.ask(a.address()).unwrap() {
        b.progress();
        assert!(begin.elapsed() < SOON);
    }
    assert!(b.is_connected(a.address()));
}
