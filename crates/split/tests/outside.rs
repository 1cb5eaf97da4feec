//! Guests and endpoints of SLURPoE on a wire of shared memory (vhost-user), in one process.

mod running;

use millrace_slurpoe as slurpoe;
use millrace_slurpoe::Notify;
use millrace_split::{Access, Address, Error, Failed, Kind, Limits, PortConfig, Right, Rights, Transfer, Wanted};
use running::{Running, SOON, done, until};
use std::time::Duration;
use tempfile::TempDir;

/// A wire, whose first end listens.
struct Wire {
    folder: TempDir,
}

impl Wire {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn port(&self, kind: &str) -> String {
        format!("{kind}:{}", self.folder.path().join("wire").display())
    }

    fn backend(&self, kind: &str, number: u8, limits: Limits) -> Running {
        let link = Wanted { port: Some(self.port(kind)), ..Wanted::default() };
        Running::start_with(limits, Some(PortConfig { link, mtu: Some(4096), number }))
    }

    fn endpoint(&self, kind: &str, last: u8, peers: u32) -> slurpoe::Endpoint {
        let (port, address) = (Some(self.port(kind)), Some(Address([2, 0, 0, 0, 0, last])));
        slurpoe::Endpoint::open(&slurpoe::Config { port, address, peers, ..slurpoe::Config::default() }).unwrap()
    }
}

fn ended(endpoint: &slurpoe::Endpoint) -> slurpoe::Completion {
    endpoint.wait(SOON).expect("nothing has ended")
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251 + seed) as u8).collect()
}

#[test]
fn a_guest_and_an_endpoint_on_the_wire_reach_each_others_memory() {
    let wire = Wire::new();
    let backend = wire.backend("vhost-user", 5, Limits::default());
    let guest = backend.endpoint();
    assert_eq!(guest.address().0[..2], [2 + 4 * 5, b'M'], "of the fifth backend");
    let other = wire.endpoint("virtio-user", 1, 64);
    const LEN: usize = 300_001;
    let ours = guest.allocate(1 << 20, Access::ALL).unwrap();
    let theirs = other.allocate(1 << 20, Access::ALL).unwrap();
    guest.connect(other.address(), SOON).unwrap();
    assert_eq!((guest.peers().unwrap(), other.is_connected(guest.address())), (vec![other.address()], true));
    let sent = bytes(LEN, 1);
    ours.store(5, &sent).unwrap();
    let before = guest.status().unwrap().backend;
    let part = |offset, len| ours.part(offset, len).unwrap();
    guest.post(other.address(), &[Transfer::write(part(5, LEN as u32), theirs.key(), 77)], 7).unwrap();
    let end = done(&guest);
    assert_eq!((end.token, end.kind, end.failed, end.other), (7, Kind::Write, None, other.address()));
    let mut found = vec![0; LEN];
    theirs.load(77, &mut found).unwrap();
    assert!(found == sent);
    let spent = guest.status().unwrap().backend.since(&before);
    assert_eq!((spent.copied, spent.packets, spent.transport.pages), (0, 0, 0));
    assert!(spent.frames > (LEN / 4096) as u64 && spent.port_copied >= LEN as u64, "{spent:?}");
    guest.post(other.address(), &[Transfer::read(part(500_000, LEN as u32), theirs.key(), 77)], 8).unwrap();
    assert_eq!((done(&guest).kind, guest.poll().unwrap()), (Kind::Read, None));
    ours.load(500_000, &mut found).unwrap();
    assert!(found == sent);
    // The other way: what the guest has opened, and what it has posted a buffer for.
    theirs.store(0, b"from far away").unwrap();
    let write = slurpoe::Transfer::write(theirs.part(0, 13).unwrap(), ours.key(), 9);
    other.post(guest.address(), &[write], 1, Notify::Poll).unwrap();
    assert_eq!(ended(&other).failed, None);
    let mut found = [0; 13];
    ours.load(9, &mut found).unwrap();
    assert_eq!(&found, b"from far away");
    guest.receive(other.address(), part(100, 50), 3).unwrap();
    other.post(guest.address(), &[slurpoe::Transfer::send(theirs.part(5, 8).unwrap())], 2, Notify::Poll).unwrap();
    let came = done(&guest);
    assert_eq!((came.token, came.kind, came.len, came.failed), (3, Kind::Receive, 8, None));
    ours.load(100, &mut found[..8]).unwrap();
    assert_eq!(&found[..8], b"far away");
    // And a few bytes.
    guest.tell(other.address(), b"hello").unwrap();
    let mut told = None;
    until("it is told", || {
        told = told.take().or_else(|| other.told());
        told.is_some()
    });
    assert_eq!(told.map(|told| (told.from, told.bytes)), Some((guest.address(), b"hello".to_vec())));
    other.tell(None, b"to all").unwrap();
    assert_eq!(&guest.told(SOON).unwrap().unwrap().bytes[..], b"to all");
}

#[test]
fn who_was_not_given_a_key_reaches_nothing() {
    let wire = Wire::new();
    let backend = wire.backend("vhost-user", 0, Limits::default());
    let (guest, third) = (backend.endpoint(), backend.endpoint());
    let other = wire.endpoint("virtio-user", 1, 64);
    let of_third = third.allocate(4096, Access::ALL).unwrap();
    let readable = guest.allocate(4096, Access { local: true, write: false, read: true }).unwrap();
    let theirs = other.allocate(4096, Access::ALL).unwrap();
    for key in [of_third.key(), readable.key(), readable.key() ^ 0x100] {
        other.connect(guest.address(), SOON).unwrap();
        let write = slurpoe::Transfer::write(theirs.part(0, 8).unwrap(), key, 0);
        other.post(guest.address(), &[write], 1, Notify::Poll).unwrap();
        assert_eq!(ended(&other).failed, Some(Failed::RemoteAccess), "key {key:#x}");
        other.disconnect(guest.address());
    }
}

#[test]
fn guests_of_two_backends_meet_and_whoever_ends_is_missed() {
    let wire = Wire::new();
    let (first, second) =
        (wire.backend("vhost-user", 0, Limits::default()), wire.backend("virtio-user", 1, Limits::default()));
    let (one, other) = (first.endpoint(), second.endpoint());
    assert_ne!(one.address(), other.address());
    let (ours, theirs) = (one.allocate(8192, Access::ALL).unwrap(), other.allocate(8192, Access::ALL).unwrap());
    one.connect(other.address(), SOON).unwrap();
    until("the other one knows", || other.peers().unwrap() == [one.address()]);
    ours.store(0, &bytes(8192, 3)).unwrap();
    one.post(other.address(), &[Transfer::write(ours.part(0, 8192).unwrap(), theirs.key(), 0)], 1).unwrap();
    assert_eq!(done(&one).failed, None);
    let mut found = vec![0; 8192];
    theirs.load(0, &mut found).unwrap();
    assert!(found == bytes(8192, 3));
    // Nobody waits for a buffer of one that has ended, and its address is nobody's.
    one.post(other.address(), &[Transfer::send(ours.part(0, 8).unwrap())], 2).unwrap();
    let gone = other.address();
    std::mem::forget(theirs);
    drop(other);
    let end = done(&one);
    assert!(end.token == 2 && end.failed.is_some(), "{end:?}");
    until("it is missed", || one.peers().unwrap().is_empty());
    assert!(matches!(one.connect(gone, Duration::ZERO), Err(Error::NoEndpoint(_))));
    // While somebody waits for one that never answers, others go on, and the wire serves who comes next.
    let third = second.endpoint();
    let of_third = third.allocate(64, Access::ALL).unwrap();
    let waiting = std::thread::scope(|scope| {
        let asks = scope.spawn(|| one.connect(Address([2, 0, 0, 9, 9, 9]), Duration::from_millis(1)));
        let fourth = first.endpoint();
        fourth.connect(third.address(), SOON).unwrap();
        let mine = fourth.allocate(64, Access::LOCAL).unwrap();
        fourth.post(third.address(), &[Transfer::read(mine.part(0, 64).unwrap(), of_third.key(), 0)], 4).unwrap();
        assert_eq!(done(&fourth).failed, None);
        asks.join().unwrap()
    });
    assert!(matches!(waiting, Err(Error::NoEndpoint(_))), "{waiting:?}");
    // A backend that ends says so for its guests, once; where that was lost, whoever works with them notices.
    one.connect(third.address(), SOON).unwrap();
    drop(second);
    match one.post(third.address(), &[Transfer::write(ours.part(0, 8).unwrap(), of_third.key(), 0)], 5) {
        Ok(()) => assert!(done(&one).failed.is_some()),
        refused => assert!(matches!(refused, Err(Error::NotConnected(_))), "{refused:?}"),
    }
    let counts = first.end();
    assert!(counts.sent > 0 && counts.received > 0 && counts.forged == 0, "{counts:?}");
}

#[test]
fn asks_of_nobody_and_what_is_told_without_end_do_not_fill_a_guest() {
    let wire = Wire::new();
    let rights = Rights::of(&[Right::Memory, Right::Connect]);
    let backend = wire.backend("vhost-user", 0, Limits { rights, ..Limits::default() });
    let (guest, silent) = (backend.endpoint(), backend.endpoint());
    let other = wire.endpoint("virtio-user", 1, 64);
    assert!(matches!(guest.tell(other.address(), b"x"), Err(Error::Right(Right::Tell))), "nor by the wire");
    let ours = guest.allocate(64, Access::LOCAL).unwrap();
    let theirs = other.allocate(64, Access::ALL).unwrap();
    guest.connect(other.address(), SOON).unwrap();
    // More than any ring or list has room for; the other guest does not look at all.
    for round in 0..3000_u32 {
        other.tell(Some(guest.address()), &round.to_le_bytes()).unwrap();
        other.tell(Some(silent.address()), &round.to_le_bytes()).unwrap();
        if round % 16 == 0 {
            guest.post(other.address(), &[Transfer::write(ours.part(0, 8).unwrap(), theirs.key(), 0)], 5).unwrap();
            assert_eq!(done(&guest).failed, None, "{round}");
            guest.status().unwrap();
        }
    }
    assert!(silent.status().is_ok(), "it is served when it looks again");
    let kept = std::iter::from_fn(|| guest.told(Duration::ZERO).unwrap()).count();
    assert!((1..=512).contains(&kept), "{kept}");
    drop((guest, silent, ours));
    assert!(backend.end().untaken > 0);
}
