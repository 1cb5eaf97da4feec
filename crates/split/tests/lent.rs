//! Memory that a program has already, in a file that is also its transport's: what libibverbs grants. And queue pairs that a program makes itself.

mod running;

use millrace_dma::{Iova, Region};
use millrace_rdma::memory::ProtectionDomain;
use millrace_rdma::number::{Gid, Key};
use millrace_rdma::served::{queue_lines, ring_len};
use millrace_rdma::work::Access;
use millrace_served::wire;
use millrace_split::memory::{MOST_PAGES, Pages};
use millrace_split::message::Request;
use millrace_split::{Error, Frontend, Limits, PAGE};
use running::Running;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

const BEHIND: u64 = MOST_PAGES as u64 * PAGE as u64;
const ALL: Access = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);

/// A file with 64 pages behind those of transports.
fn file() -> OwnedFd {
    let file = memfd_create("own", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, BEHIND + 64 * PAGE as u64).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    file
}

fn errno<T: std::fmt::Debug>(refused: Result<T, Error>) -> i32 {
    match refused {
        Err(Error::Refused { errno, .. }) => errno,
        other => panic!("{other:?}"),
    }
}

fn page(number: u64) -> u64 {
    BEHIND + number * PAGE as u64
}

#[test]
fn memory_that_a_program_has_already_is_lent_and_given_back() {
    let backend = Running::start(Limits { pages: 100, ..Limits::default() });
    let file = file();
    let own = Region::map_part(file.try_clone().unwrap(), page(0), 64 * PAGE).unwrap();
    own.window().span_mut(0, 8).unwrap().write_from(b"its own!");
    let pages = Pages::of(file);
    let mut guest = Frontend::call_with(&backend.path, &pages).unwrap();
    let _program = guest.join().unwrap();
    let before = guest.status().unwrap().backend.pages;
    let bytes = |pages: u64| pages * PAGE as u64;
    let at = guest.lend(&[(page(2), bytes(2)), (page(0), bytes(1))]).unwrap();
    assert_eq!(guest.status().unwrap().backend.pages, before + 3);
    // A region in the middle of it, with addresses of its own.
    let domain = ProtectionDomain(guest.engine(wire::Request::CreateDomain).unwrap()[0] as u32);
    let begins = Iova::new(at.get() + 100);
    let register = Request::Register { domain, access: ALL, at: begins, len: 5000, base: 0x7fff_0000_1064 };
    let key = Key::new(guest.ask(&register).unwrap()[0] as u32);
    assert_eq!(errno(guest.release(at)), 16, "a region lies there");
    // Other bytes: another key, and what it had is free.
    let other = guest.lend(&[(page(10), bytes(4))]).unwrap();
    let change = |key, bytes| Request::Reregister { key, domain: None, access: None, bytes };
    assert_eq!(
        errno(guest.ask(&change(key, Some((Iova::new(other.get() + bytes(4) - 1), 2, 0))))),
        14,
        "beyond its end"
    );
    let made = guest.ask(&change(key, Some((other, bytes(4), 0)))).unwrap();
    let changed = Key::new(made[0] as u32);
    assert_ne!(changed, key);
    guest.release(at).unwrap();
    assert_eq!(errno(guest.release(other)), 16, "a region lies there now");
    // Other rights: the same bytes.
    let access = Some(Access::LOCAL_WRITE);
    let made = guest.ask(&Request::Reregister { key: changed, domain: None, access, bytes: None }).unwrap();
    assert_eq!(errno(guest.release(other)), 16, "a region lies there still");
    guest.engine(wire::Request::Deregister(Key::new(made[0] as u32))).unwrap();
    guest.release(other).unwrap();
    assert_eq!(guest.status().unwrap().backend.pages, before);
    // Given back is not freed: it is the program's.
    let mut found = [0; 8];
    own.window().span(0, 8).unwrap().read_into(&mut found);
    assert_eq!(&found, b"its own!");
    assert_eq!(errno(guest.lend(&[(page(0), bytes(101))])), 12, "more than it may have");
    assert_eq!(errno(guest.lend(&[(page(60), bytes(10))])), 14, "behind the end of the file");
    assert_eq!(
        errno(guest.lend(&(0..9).map(|at| (page(2 * at), bytes(1))).collect::<Vec<_>>())),
        22,
        "in too many pieces"
    );
    assert!(matches!(guest.lend(&[(page(0) + 1, bytes(1))]), Err(Error::System { .. })));
    // The next one in the same file has other pages, also while the first is there.
    let mut next = Frontend::call_with(&backend.path, &pages).unwrap();
    let _next_program = next.join().unwrap();
    drop(guest);
    let at = next.lend(&[(page(0), bytes(1))]).unwrap();
    next.release(at).unwrap();
}

#[test]
fn a_completion_queue_gets_another_ring() {
    let backend = Running::start(Limits::default());
    let mut guest = Frontend::call_at(&backend.place()).unwrap();
    let mut program = guest.join().unwrap();
    let (at, ring) = guest.share(ring_len(queue_lines(16))).unwrap();
    let queue = guest.ask(&Request::CreateQueue(16, at)).unwrap()[0] as u32;
    program.add_queue(queue, 16, &ring).unwrap();
    let (next, wider) = guest.share(ring_len(queue_lines(1000))).unwrap();
    assert_eq!(errno(guest.ask(&Request::ResizeQueue(queue, 2000, next))), 14, "the ring is too short for that");
    assert_eq!(errno(guest.ask(&Request::ResizeQueue(queue + 1, 1000, next))), 22, "there is no such queue");
    guest.ask(&Request::ResizeQueue(queue, 1000, next)).unwrap();
    program.resize_queue(queue, 1000, &wider).unwrap();
    guest.release(at).unwrap();
    assert_eq!(errno(guest.release(next)), 16, "the ring lies there");
    guest.engine(wire::Request::DestroyQueue(queue)).unwrap();
    guest.release(next).unwrap();
}

#[test]
fn who_has_an_address_is_said_without_a_wire() {
    let backend = Running::start(Limits::default());
    let mut guest = Frontend::call_at(&backend.place()).unwrap();
    let _program = guest.join().unwrap();
    let (gid, mac, mtu) = (guest.welcome().gid, guest.welcome().mac, guest.welcome().mtu);
    assert_eq!((gid, mtu), (Gid::from_ip("198.19.255.253".parse().unwrap()), 4096));
    for own in [gid, Gid::link_local(mac.0)] {
        assert_eq!(guest.engine(wire::Request::Resolve(own, true)).unwrap()[0], 1, "its own");
    }
    let other = Gid::from_ip("192.0.2.1".parse().unwrap());
    assert_eq!(errno(guest.engine(wire::Request::Resolve(other, true))), 101, "there is no network");
}
