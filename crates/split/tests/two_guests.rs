//! Two programs and a backend, by the transport between processes: what the protocol promises, and what a guest that does harm gets.

mod running;

use millrace_dma::Iova;
use millrace_rdma::cm::address::ServiceId;
use millrace_rdma::memory::ProtectionDomain;
use millrace_rdma::number::Gid;
use millrace_served::wire;
use millrace_split::message::Request;
use millrace_split::run::{MOST_REFERENCE, runs_of};
use millrace_split::{Access, Address, Error, Failed, Frontend, Kind, Limits, PAGE, Right, Rights, Transfer};
use running::{Running, SOON, done, until};
use std::time::Duration;

#[test]
fn bytes_are_copied_once_between_pages_that_are_granted_once() {
    let backend = Running::start(Limits::default());
    let (one, other) = (backend.endpoint(), backend.endpoint());
    const LEN: usize = 3 << 20;
    let ours = one.allocate(LEN, Access::LOCAL).unwrap();
    let theirs = other.allocate(LEN, Access::ALL).unwrap();
    one.connect(other.address(), SOON).unwrap();
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7 % 251) as u8).collect();
    ours.store(0, &bytes).unwrap();
    let before = one.status().unwrap();
    let part = |offset, len| ours.part(offset, len).unwrap();
    one.post(other.address(), &[Transfer::write(part(0, LEN as u32), theirs.key(), 0)], 7).unwrap();
    let ended = done(&one);
    assert_eq!((ended.token, ended.kind, ended.failed, ended.other), (7, Kind::Write, None, other.address()));
    let mut found = vec![0; LEN];
    theirs.load(0, &mut found).unwrap();
    assert!(found == bytes);
    let spent = one.status().unwrap();
    let backend_spent = spent.backend.since(&before.backend);
    assert_eq!((backend_spent.copied, backend_spent.packets), (LEN as u64, 0), "one copy, and none on the way");
    assert_eq!(backend_spent.transport.pages, 0, "no page is mapped for it");
    assert_eq!(spent.frontend.since(&before.frontend).pages, 0);
    // Back, to other places, several by one doorbell.
    theirs.store(0, &vec![9; 5000]).unwrap();
    let reads: Vec<_> = (0..4).map(|n| Transfer::read(part(n * 1000, 500), theirs.key(), 4999 - n)).collect();
    one.post(other.address(), &reads, 8).unwrap();
    let ended = done(&one);
    assert_eq!((ended.token, ended.kind, ended.failed, ended.index), (8, Kind::Read, None, 3));
    let mut found = [0; 500];
    ours.load(0, &mut found).unwrap();
    assert_eq!((found[0], found[1]), (9, bytes[5000]));
}

#[test]
fn messages_and_a_few_bytes_come_as_well() {
    let backend = Running::start(Limits::default());
    let (one, other) = (backend.endpoint(), backend.endpoint());
    one.connect(other.address(), SOON).unwrap();
    one.tell(other.address(), b"the key is under the mat").unwrap();
    let told = other.told(SOON).unwrap().unwrap();
    assert_eq!((told.from, &told.bytes[..]), (one.address(), &b"the key is under the mat"[..]));
    assert!(matches!(one.tell(other.address(), &[0; 201]), Err(Error::Told(201))));
    let (mine, theirs) = (one.allocate(PAGE, Access::LOCAL).unwrap(), other.allocate(PAGE, Access::LOCAL).unwrap());
    other.receive(one.address(), theirs.part(100, 200).unwrap(), 5).unwrap();
    mine.store(0, b"message").unwrap();
    one.post(other.address(), &[Transfer::send(mine.part(0, 7).unwrap())], 6).unwrap();
    let (sent, came) = (done(&one), done(&other));
    assert_eq!((sent.token, sent.kind, sent.failed), (6, Kind::Send, None));
    assert_eq!((came.token, came.kind, came.failed, came.len), (5, Kind::Receive, None, 7));
    let mut found = [0; 7];
    theirs.load(100, &mut found).unwrap();
    assert_eq!(&found, b"message");
}

#[test]
fn what_is_not_granted_registered_or_allowed_is_not_reached() {
    let backend = Running::start(Limits::default());
    let (one, other, third) = (backend.endpoint(), backend.endpoint(), backend.endpoint());
    let ours = one.allocate(PAGE, Access::LOCAL).unwrap();
    let readable = other.allocate(PAGE, Access { local: true, write: false, read: true }).unwrap();
    let of_third = third.allocate(PAGE, Access::ALL).unwrap();
    for (key, offset) in [(readable.key(), 0), (of_third.key(), 0), (readable.key() ^ 0x100, 0)] {
        one.connect(other.address(), SOON).unwrap();
        one.post(other.address(), &[Transfer::write(ours.part(0, 8).unwrap(), key, offset)], 1).unwrap();
        assert_eq!(done(&one).failed, Some(Failed::RemoteAccess), "key {key:#x}");
        one.disconnect(other.address()).unwrap();
    }
    one.connect(other.address(), SOON).unwrap();
    let behind = Transfer::read(ours.part(0, 8).unwrap(), readable.key(), PAGE as u64 - 7);
    one.post(other.address(), &[behind], 1).unwrap();
    assert_eq!(done(&one).failed, Some(Failed::RemoteAccess), "one byte too far");
    // Memory is the guest's own again when nothing lies in it, and not before.
    let (address, key) = (other.address(), readable.key());
    drop(readable);
    one.disconnect(address).unwrap();
    one.connect(address, SOON).unwrap();
    one.post(address, &[Transfer::read(ours.part(0, 8).unwrap(), key, 0)], 1).unwrap();
    assert_eq!(done(&one).failed, Some(Failed::RemoteAccess), "what was given back");
}

#[test]
fn a_program_that_dies_takes_nobody_with_it() {
    let backend = Running::start(Limits::default());
    let (one, third) = (backend.endpoint(), backend.endpoint());
    let other = backend.endpoint();
    let address = other.address();
    let ours = one.allocate(PAGE, Access::LOCAL).unwrap();
    let theirs = other.allocate(PAGE, Access::ALL).unwrap();
    let of_third = third.allocate(PAGE, Access::ALL).unwrap();
    one.connect(address, SOON).unwrap();
    one.connect(third.address(), SOON).unwrap();
    let key = theirs.key();
    // Waits for a buffer that never comes.
    one.post(address, &[Transfer::send(ours.part(0, 8).unwrap())], 1).unwrap();
    // As when it is killed: its descriptors are closed, and nothing is said.
    std::mem::forget(theirs);
    drop(other);
    let ended = done(&one);
    assert!(matches!(ended.failed, Some(Failed::Flushed | Failed::Unreachable)), "{ended:?}");
    assert_eq!((ended.token, ended.other), (1, address));
    until("its place is free", || backend.left(address).is_some());
    assert!(matches!(
        one.post(address, &[Transfer::write(ours.part(0, 8).unwrap(), key, 0)], 2),
        Err(Error::NotConnected(_))
    ));
    assert!(matches!(one.connect(address, Duration::ZERO), Err(Error::NoEndpoint(_))));
    one.post(third.address(), &[Transfer::write(ours.part(0, 8).unwrap(), of_third.key(), 0)], 3).unwrap();
    assert_eq!((done(&one).token, one.peers().unwrap()), (3, vec![third.address()]));
}

#[test]
fn a_backend_that_ends_is_an_error_and_no_hang() {
    let backend = Running::start(Limits::default());
    let (one, hasty) = (backend.endpoint(), backend.endpoint());
    drop(backend);
    // Also for one that never sleeps.
    let looked = (0..1000).find_map(|_| hasty.told(Duration::ZERO).err());
    assert!(matches!(looked, Some(Error::Gone)), "{looked:?}");
    let waited = (0..100).find_map(|_| one.wait(Duration::from_millis(100)).err());
    assert!(matches!(waited, Some(Error::Gone)), "{waited:?}");
    assert!(matches!(one.status(), Err(Error::Gone)));
    assert!(one.allocate(PAGE, Access::ALL).is_err());
}

#[test]
fn a_guest_has_what_its_quota_and_its_rights_allow() {
    let rights = Rights::of(&[Right::Memory, Right::Connect]);
    let backend = Running::start(Limits { pages: 64, pieces: 4, rights, guests: 2, ..Limits::default() });
    let one = backend.endpoint();
    assert!(matches!(one.allocate(64 * PAGE, Access::ALL), Err(Error::Refused { errno: 122, .. })), "too many pages");
    let memory = one.allocate(8 * PAGE, Access::ALL).unwrap();
    assert!(matches!(one.allocate(33 * PAGE, Access::ALL), Err(Error::Refused { .. })));
    drop(memory);
    drop(one.allocate(8 * PAGE, Access::ALL).unwrap());
    assert!(matches!(one.tell(Address([2; 6]), b"x"), Err(Error::Right(Right::Tell))));
    let mut other = Frontend::call_at(&backend.place()).unwrap();
    let pair = Request::Engine(wire::Request::CreateShared(ProtectionDomain(0), 1, 1));
    assert!(matches!(other.ask(&pair), Err(Error::Right(Right::Engine))));
    for request in [wire::Request::Offer(ServiceId(7)), wire::Request::Resolve(Gid([1; 16]), true)] {
        assert!(matches!(other.engine(request), Err(Error::Right(Right::Engine))), "{request:?}");
    }
    assert!(Frontend::call_at(&backend.place()).is_err(), "a third guest");
    drop(other);
    until("a place is free again", || Frontend::call_at(&backend.place()).is_ok());
}

#[test]
fn addresses_outside_and_memory_in_use_are_refused_and_counted() {
    let backend = Running::start(Limits::default());
    let mut guest = Frontend::call_at(&backend.place()).unwrap();
    let _program = guest.join().unwrap();
    let errno = |refused: Result<Vec<u64>, Error>| match refused {
        Err(Error::Refused { errno, .. }) => errno,
        other => panic!("{other:?}"),
    };
    let (at, _) = guest.share(2 * PAGE).unwrap();
    let domain = ProtectionDomain(guest.engine(wire::Request::CreateDomain).unwrap()[0] as u32);
    let mut register = |at: u64, len: u64| {
        guest.ask(&Request::Register { domain, access: Access::ALL.bits(), at: Iova::new(at), len, base: 0 })
    };
    let end = at.get() + 2 * PAGE as u64;
    for (at, len) in [(0, 1), (end, 1), (end - 1, 2), (at.get(), u64::MAX), (u64::MAX, 2)] {
        assert_eq!(errno(register(at, len)), 14, "{at:#x}, {len}");
    }
    let keys = register(at.get() + 1, 4096).unwrap();
    assert_eq!(guest.status().unwrap().backend.faults, 5);
    assert_eq!(errno(guest.ask(&Request::Release(at))), 16, "a region lies there");
    assert_eq!(errno(guest.ask(&Request::Release(Iova::new(at.get() + 4096)))), 2);
    guest.engine(wire::Request::Deregister(millrace_rdma::number::Key::new(keys[0] as u32))).unwrap();
    let pages = guest.status().unwrap().backend.pages;
    guest.release(at).unwrap();
    assert_eq!(guest.status().unwrap().backend.pages, pages - 2);
    assert_eq!(errno(guest.ask(&Request::Join(Iova::new(at.get())))), 106, "it has joined");
    for (references, why) in [(vec![MOST_REFERENCE], 14), ((0..9).map(|page| page * 2).collect::<Vec<_>>(), 22)] {
        let (pages, runs) = (references.len() as u32, runs_of(&references).unwrap());
        assert_eq!(
            errno(guest.ask(&Request::Grant { pages, first: 0, runs })),
            why,
            "no pages of the file, or too far apart"
        );
    }
    assert_eq!(guest.status().unwrap().backend.refused, 10);
}

#[test]
fn who_tells_without_end_fills_nobodys_memory() {
    let backend = Running::start(Limits::default());
    let (one, other) = (backend.endpoint(), backend.endpoint());
    let mut told = 0;
    for round in 0..400_u32 {
        match one.tell(other.address(), &round.to_le_bytes()) {
            Ok(()) => told += 1,
            // It has not read what was told before: nothing is kept for it by anybody.
            Err(Error::Refused { errno: 11, .. }) => assert!(other.poll().unwrap().is_none()),
            error => panic!("{error:?}"),
        }
    }
    assert!(other.poll().unwrap().is_none());
    let kept = std::iter::from_fn(|| other.told(Duration::ZERO).unwrap()).count() as u64;
    let dropped = other.status().unwrap().told_dropped;
    assert!(kept == 256 && kept + dropped == told, "{kept} and {dropped} of {told}");
}

#[test]
fn what_was_posted_ends_when_the_other_end_begins_anew() {
    let backend = Running::start(Limits::default());
    let (one, other) = (backend.endpoint(), backend.endpoint());
    let (ours, theirs) = (one.allocate(PAGE, Access::LOCAL).unwrap(), other.allocate(PAGE, Access::ALL).unwrap());
    one.connect(other.address(), SOON).unwrap();
    for token in [5, 6] {
        one.receive(other.address(), ours.part(token * 100, 100).unwrap(), token).unwrap();
    }
    // One that has succeeded before anybody looks.
    one.post(other.address(), &[Transfer::write(ours.part(0, 8).unwrap(), theirs.key(), 0)], 9).unwrap();
    let copied = one.status().unwrap().backend.copied;
    until("it is done", || one.status().unwrap().backend.copied >= copied.max(8));
    other.disconnect(one.address()).unwrap();
    other.connect(one.address(), SOON).unwrap();
    let mut ended: Vec<_> = (0..3).map(|_| done(&one)).map(|end| (end.token, end.kind, end.failed)).collect();
    ended.sort_unstable_by_key(|(token, ..)| *token);
    let flushed = Some(Failed::Flushed);
    assert_eq!(ended, [(5, Kind::Receive, flushed), (6, Kind::Receive, flushed), (9, Kind::Write, None)]);
    // The new connection works, and what this side ends itself ends as well.
    one.receive(other.address(), ours.part(0, 100).unwrap(), 7).unwrap();
    one.disconnect(other.address()).unwrap();
    assert_eq!((done(&one).token, one.poll().unwrap()), (7, None));
    let far = backend.endpoint();
    one.connect(far.address(), SOON).unwrap();
    let many: Vec<_> = (0..70_000).map(|_| Transfer::write(ours.part(0, 1).unwrap(), 1, 0)).collect();
    assert!(matches!(one.post(far.address(), &many, 1), Err(Error::Full)));
    let big = one.allocate((1 << 20) + 1, Access::LOCAL).unwrap();
    let send = Transfer::send(big.part(0, (1 << 20) + 1).unwrap());
    assert!(matches!(one.post(far.address(), &[send], 1), Err(Error::Message(1_048_577))));
}

/// What was given back is there again when that is answered: it is unmapped by then, and nobody pays for it.
#[test]
fn what_is_given_back_can_be_had_again_at_once() {
    let backend = Running::start(Limits { all_pages: 512, ..Limits::default() });
    let one = backend.endpoint();
    let most = (1..700).rev().find(|pages| one.allocate(pages * PAGE, Access::ALL).is_ok()).unwrap();
    assert!((400..577).contains(&most), "{most}: with rings and control pages of all");
    for round in 0..200 {
        let region = one.allocate(most * PAGE, Access::ALL);
        let region = region.unwrap_or_else(|error| panic!("round {round}: {error}"));
        (0..most).for_each(|page| region.store((page * PAGE) as u64, b"x").unwrap());
    }
    // All together have no more than there may be.
    let _first = one.allocate(300 * PAGE, Access::ALL).unwrap();
    let other = backend.endpoint();
    assert!(matches!(other.allocate(300 * PAGE, Access::ALL), Err(Error::Refused { errno: 12, .. })));
    let _second = other.allocate(50 * PAGE, Access::ALL).unwrap();
}
