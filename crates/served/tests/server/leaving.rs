//! What programs give up, and the card has for some time more.

use super::*;
use millrace_rdma::served::Amounts;
use millrace_served::wire::Words;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// A program of a user who is not the owner, with a domain.
struct Stranger {
    socket: OwnedFd,
    domain: ProtectionDomain,
    memory: Region,
}

/// Sends a request, and waits for the answer.
fn ask(socket: &OwnedFd, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<u32, i32> {
    send_with(socket, &request.write().bytes(), fds);
    answered(socket)
}

fn answered(socket: &OwnedFd) -> Result<u32, i32> {
    let mut bytes = [0; 512];
    // Descriptors that come along are closed.
    let (len, _) = recv(socket, &mut bytes[..], RecvFlags::empty()).unwrap();
    let words = Words::from_bytes(&bytes[..len]).unwrap().outcome().unwrap();
    words.map(|mut words| words.word().unwrap_or_default() as u32)
}

impl Stranger {
    /// That has greeted.
    fn of(socket: OwnedFd) -> Self {
        let domain = ProtectionDomain(ask(&socket, &Request::CreateDomain, &[]).unwrap());
        Self { socket, domain, memory: Region::allocate(4096, Pages::Ordinary).unwrap() }
    }

    fn new(path: &std::path::Path) -> Self {
        let socket = call(path);
        send_all(&socket, &[Request::Hello.write().bytes()], Vec::new());
        answered(&socket).unwrap();
        Self::of(socket)
    }

    fn register(&self) -> Result<Key, i32> {
        let bytes = Bytes { parts: part(0, 4096), skip: 0, len: 4096, base: 0 };
        let asked = Request::Register(Register { domain: self.domain, access: ALL, bytes });
        ask(&self.socket, &asked, &[self.memory.fd().unwrap()]).map(Key::new)
    }
}

/// A card with 64 parts of memory, of which a user who is not the owner has 16, and one of his programs 8; and with 16 queues.
fn start_narrow(server: &mut Server, calls: usize) -> Gate {
    let Quota { program, all } = Quota::default();
    let quota = Quota { program, all: Amounts { regions: 64, queues: 16, ..all } };
    let (may, gate) = after(calls, |_: BorrowedFd<'_>| Some(Caller { pid: 0, uid: 1000, is_limited: true }));
    let address = Address { mac: MAC, gids: [GID, GID] };
    server.start(Start { address, quota, cpu: None, link: None, mtu: 4096, may, userfaultfd: None }).unwrap();
    gate
}

#[test]
fn what_a_program_leaves_is_its_users_until_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card.rdma");
    let mut server = Server::listen(path.clone()).unwrap();
    // The memory waits behind a descriptor that is slow to close. It waits in the socket, so that the card is the last to close it.
    let (slow, peer) = lingers();
    let first = call(&path);
    let gate = start_narrow(&mut server, 1);
    let last = gate.shut(&path);
    send_all(&first, &[Request::Hello.write().bytes()], vec![slow]);
    drop((gate, last));
    answered(&first).unwrap();
    let first = Stranger::of(first);
    assert!((0..8).all(|_| first.register().is_ok()));
    assert!(first.register().is_err());
    drop(first);
    let second = Stranger::new(&path);
    assert!((0..4).all(|_| second.register().is_ok()));
    assert_eq!(second.register(), Err(Errno::AGAIN.raw_os_error()), "there will be room");
    // Of what is short for another reason, nothing comes back.
    let mut queues = 0;
    let refused = loop {
        match ask(&second.socket, &Request::CreateQueue(1), &[]) {
            Ok(_) => queues += 1,
            Err(errno) => break errno,
        }
    };
    assert_eq!((refused, queues), (Errno::NOMEM.raw_os_error(), 2));
    drop(peer);
    let soon = Instant::now() + Duration::from_secs(20);
    while second.register() == Err(Errno::AGAIN.raw_os_error()) {
        assert!(Instant::now() < soon, "it is never closed");
        std::thread::yield_now();
    }
    assert!((0..3).all(|_| second.register().is_ok()));
}
