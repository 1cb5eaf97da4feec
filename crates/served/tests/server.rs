//! The engine in a card by its socket: programs that mean well, that die, and that do harm.

use millrace_dma::{Pages, Protection, Region};
use millrace_rdma::memory::ProtectionDomain;
use millrace_rdma::number::{Gid, Key, Psn, Qpn};
use millrace_rdma::served::{Program, Quota, SHARED_LEN, queue_lines, ring_len};
use millrace_rdma::transport::{Attributes, Capabilities, Init, State};
use millrace_rdma::wire::{Format, Path, Service};
use millrace_rdma::work::{Access, Completion, Data, Flags, Operation, Piece, Request as Post, Status};
use millrace_served::wire::{Bytes, Parts, Register, Request, Welcome, qpn};
use millrace_served::{Address, CallError, Caller, Client, May, Server, Start, bell, owner_only};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

#[path = "server/holes.rs"]
mod holes;
#[path = "server/leaving.rs"]
mod leaving;

const GID: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 19, 0, 1]);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const LEN: usize = 1 << 16;
const ALL: Access = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ);

fn server(folder: &tempfile::TempDir) -> (Server, std::path::PathBuf) {
    let path = folder.path().join("card.rdma");
    let mut server = Server::listen(path.clone()).unwrap();
    start(&mut server);
    (server, path)
}

fn start(server: &mut Server) {
    start_for(server, owner_only());
}

fn start_for(server: &mut Server, may: May) {
    let address = Address { mac: MAC, gids: [GID, GID] };
    let quota = Quota::default();
    server.start(Start { address, quota, cpu: None, link: None, mtu: 4096, may, userfaultfd: None }).unwrap();
}

fn part(offset: u64, len: u64) -> Parts {
    Parts::new([(offset, len)]).unwrap()
}

struct End {
    client: Client,
    program: Program,
    to_card: OwnedFd,
    memory: Region,
    domain: ProtectionDomain,
    key: Key,
    queue: u32,
    qpn: Qpn,
}

impl End {
    fn new(path: &std::path::Path) -> Self {
        let client = Client::connect(path).unwrap();
        let (mut words, fds) = client.call(&Request::Hello, &[]).unwrap();
        assert_eq!(Welcome::read(&mut words), Some(Welcome { mac: MAC, gid: GID, mtu: 4096 }));
        let [shared, to_card, _bell] = <[OwnedFd; 3]>::try_from(fds).unwrap();
        let shared = Region::map(shared, SHARED_LEN, Protection::ReadWrite, false).unwrap();
        let mut program = Program::new(shared.window()).unwrap();
        let number = |request| client.call(&request, &[]).unwrap().0.word().unwrap() as u32;
        let domain = ProtectionDomain(number(Request::CreateDomain));
        let memory = Region::allocate(LEN, Pages::Ordinary).unwrap();
        let bytes = Bytes { parts: part(4096, 3 * 4096), skip: 16, len: 8192, base: 1 << 20 };
        let asked = Register { domain, access: ALL, bytes };
        let made = client.call(&Request::Register(asked), &[memory.fd().unwrap()]);
        let key = Key::new(made.unwrap().0.word().unwrap() as u32);
        let (mut words, fds) = client.call(&Request::CreateQueue(64), &[]).unwrap();
        let queue = words.word().unwrap() as u32;
        let ring =
            Region::map(fds.into_iter().next().unwrap(), ring_len(queue_lines(64)), Protection::ReadWrite, false);
        program.add_queue(queue, 64, ring.unwrap().window()).unwrap();
        let init = Init {
            service: Service::ReliableConnection,
            general: false,
            domain,
            send_queue: queue,
            receive_queue: queue,
            shared_receive_queue: None,
            capabilities: Capabilities {
                send_requests: 16,
                receive_requests: 16,
                send_pieces: 1,
                receive_pieces: 1,
                inline: 64,
            },
            signal_all: true,
            context: 0,
        };
        let (mut words, _) = client.call(&Request::CreatePair(init), &[]).unwrap();
        let qpn = qpn(&mut words).unwrap();
        program.add_pair(qpn, &words.capabilities().unwrap(), false);
        Self { client, program, to_card, memory, domain, key, queue, qpn }
    }

    fn connect(&self, remote: Qpn) {
        let path = Path {
            format: Format::RoceV2,
            source_mac: MAC,
            destination_mac: MAC,
            source: GID,
            destination: GID,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            source_port: 0xc000,
        };
        let init =
            Attributes { pkey_index: Some(0), port: Some(1), access: Some(ALL), ..Attributes::state(State::Init) };
        let receive = Attributes {
            path: Some(path),
            path_mtu: Some(1024),
            remote: Some(remote),
            receive_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(1),
            ..Attributes::state(State::ReadyToReceive)
        };
        let go = Attributes {
            send_psn: Some(Psn::new(0)),
            timeout: Some(14),
            retry_count: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..Attributes::state(State::ReadyToSend)
        };
        for (told, state) in [(init, 1), (receive, 2), (go, 3)] {
            let (mut words, _) = self.client.call(&Request::ModifyPair(self.qpn, told), &[]).unwrap();
            assert_eq!(words.word(), Some(state));
        }
    }

    fn post(&mut self, operation: Operation) {
        assert!(self.try_post(operation));
    }

    /// Whether there was room.
    fn try_post(&mut self, operation: Operation) -> bool {
        let pieces = [Piece { address: 1 << 20, len: 4096, lkey: self.key }];
        let flags = Flags { signaled: true, ..Flags::default() };
        let request = Post { id: 7, operation, data: Data::Pieces(&pieces), flags, target: None };
        let posted = self.program.post_send(self.qpn, &request);
        if posted == Ok(true) {
            bell::ring_card(&self.to_card);
        }
        posted.is_ok()
    }

    fn completion(&mut self) -> Completion {
        let (mut one, until) = ([Completion::default()], Instant::now() + Duration::from_secs(10));
        while self.program.poll(self.queue, &mut one).unwrap() == 0 {
            assert!(Instant::now() < until, "no completion comes");
            std::thread::yield_now();
        }
        one[0]
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        self.memory.window().span(4096 + 16, 4096).unwrap().read_into(&mut bytes);
        bytes
    }
}

fn two(path: &std::path::Path) -> [End; 2] {
    let ends = [End::new(path), End::new(path)];
    ends[0].connect(ends[1].qpn);
    ends[1].connect(ends[0].qpn);
    ends
}

fn is_hung_up(fd: impl AsFd) -> bool {
    let most = Timespec { tv_sec: 5, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(&fd, PollFlags::RDHUP)], Some(&most)), Ok(1))
}

#[test]
fn two_programs_write_to_each_other_and_the_socket_goes_with_the_card() {
    let folder = tempfile::tempdir().unwrap();
    let (server, path) = server(&folder);
    let [mut a, b] = two(&path);
    let pattern: Vec<u8> = (0..4096).map(|at| (at * 7 + 1) as u8).collect();
    a.memory.window().span_mut(4096 + 16, 4096).unwrap().write_from(&pattern);
    let operation = Operation::Write { address: 1 << 20, rkey: b.key, immediate: None };
    // Long enough that the card sleeps.
    std::thread::sleep(Duration::from_millis(20));
    a.post(operation);
    let ended = a.completion();
    assert_eq!((ended.id, ended.status), (7, Status::Success));
    assert_eq!(b.bytes(), pattern);
    let (mut words, _) = b.client.call(&Request::QueryPair(b.qpn), &[]).unwrap();
    assert_eq!(words.word(), Some(0));
    assert_eq!(words.attributes().unwrap().remote, Some(a.qpn));
    assert!(
        matches!(Server::listen(path.clone()), Err(rustix::io::Errno::ADDRINUSE)),
        "one that lives is not replaced"
    );
    drop(server);
    assert!(is_hung_up(a.client.fd()) && !path.exists());
    assert!(matches!(a.client.call(&Request::CreateDomain, &[]), Err(CallError::Gone(_))));
}

#[test]
fn a_program_that_ends_is_missed_within_a_tenth_of_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, path) = server(&folder);
    let [mut a, b] = two(&path);
    // There is no buffer: it would wait for ever.
    a.post(Operation::Send);
    std::thread::sleep(Duration::from_millis(20));
    let began = Instant::now();
    drop(b);
    assert_eq!(a.completion().status, Status::RetryExceeded);
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
}

#[test]
fn harm_is_done_to_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, path) = server(&folder);
    let [mut a, b] = two(&path);
    // What is no request, and requests before the greeting.
    for bytes in [&[0_u8; 8][..], &[7; 5], &[1; 4096], &Request::CreateDomain.write().bytes()] {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        send(&socket, bytes, SendFlags::NOSIGNAL).unwrap();
        assert!(is_hung_up(&socket), "{bytes:?}");
    }
    // Two greetings.
    let twice = Client::connect(&path).unwrap();
    twice.call(&Request::Hello, &[]).unwrap();
    assert!(matches!(twice.call(&Request::Hello, &[]), Err(CallError::Gone(_))));
    // Files that are too short, that can shrink, that are none; parts that are outside.
    let refused = |asked: Register, fds: &[rustix::fd::BorrowedFd<'_>]| {
        assert!(matches!(b.client.call(&Request::Register(asked), fds), Err(CallError::Refused(_))), "{asked:?}");
    };
    let bytes = Bytes { parts: part(0, 4096), skip: 0, len: 4096, base: 0 };
    let good = |bytes| Register { domain: b.domain, access: ALL, bytes };
    let own = b.memory.fd().unwrap();
    refused(good(bytes), &[]);
    refused(good(Bytes { len: LEN as u64 + 1, ..bytes }), &[own]);
    refused(good(Bytes { len: u64::MAX, skip: 4095, ..bytes }), &[own]);
    refused(good(Bytes { parts: part(u64::MAX - 4095, 4096), ..bytes }), &[own]);
    refused(good(Bytes { parts: part(8, 4096), ..bytes }), &[own]);
    refused(good(Bytes { skip: 4096, ..bytes }), &[own]);
    refused(good(Bytes { len: 0, ..bytes }), &[own]);
    refused(Register { domain: a.domain, ..good(bytes) }, &[own]);
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    refused(good(bytes), &[file.as_fd()]);
    refused(good(bytes), &[b.client.fd()]);
    // Objects of another program.
    for request in [Request::DestroyPair(a.qpn), Request::DestroyQueue(a.queue), Request::DestroyDomain(a.domain)] {
        assert!(matches!(b.client.call(&request, &[]), Err(CallError::Refused(_))));
    }
    a.post(Operation::Write { address: 1 << 20, rkey: b.key, immediate: None });
    assert_eq!(a.completion().status, Status::Success);
}

/// A TCP socket whose closing takes ten seconds: what it has sent is not read by anybody.
fn lingers() -> (OwnedFd, std::net::TcpStream) {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&one, Some(Duration::from_secs(10))).unwrap();
    one.set_nonblocking(true).unwrap();
    while one.write(&[0; 1 << 16]).is_ok() {}
    one.set_nonblocking(false).unwrap();
    (one.into(), other)
}

fn call(path: &std::path::Path) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// Sends requests of which the first brings descriptors along that nobody has any more.
fn send_all(socket: &OwnedFd, records: &[Vec<u8>], fds: Vec<OwnedFd>) {
    let mut borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    for bytes in records {
        send_with(socket, bytes, &core::mem::take(&mut borrowed));
    }
}

/// Who may is everybody; but when so many have been let in, the card's thread stands still at the next call: it says so, until it is told to go on.
fn after(calls: usize, caller: impl Fn(BorrowedFd<'_>) -> Option<Caller> + Send + 'static) -> (May, Gate) {
    let ((gate, opens), (told, stands)) = (channel::<()>(), channel());
    let count = core::cell::Cell::new(0);
    let may: May = Box::new(move |socket| {
        count.set(count.get() + 1);
        if count.get() == calls + 1 {
            told.send(()).unwrap();
            let _ = opens.recv();
        }
        caller(socket)
    });
    (may, Gate { stands, _gate: gate })
}

struct Gate {
    stands: Receiver<()>,
    /// Dropped, it opens.
    _gate: Sender<()>,
}

impl Gate {
    /// One more calls, and the card's thread stands still.
    fn shut(&self, path: &std::path::Path) -> OwnedFd {
        let last = call(path);
        self.stands.recv_timeout(Duration::from_secs(20)).unwrap();
        last
    }
}

fn send_with(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    // It takes none before it has seen who calls.
    let sent = millrace_dma::send_when_taken(socket, Duration::from_secs(20), || {
        let mut space = [const { core::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        sendmsg(socket, &[std::io::IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
    });
    sent.unwrap();
}

#[test]
fn what_takes_long_to_close_keeps_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card.rdma");
    let mut server = Server::listen(path.clone()).unwrap();
    let mut peers = Vec::new();
    let mut slow = |count| -> Vec<OwnedFd> {
        let made = (0..count).map(|_| lingers());
        made.map(|(fd, peer)| {
            peers.push(peer);
            fd
        })
        .collect()
    };
    let [hello, create] = [Request::Hello, Request::CreateDomain].map(|request| request.write().bytes());
    // With requests that take none, more than any request takes, with what is no request, and behind one for which their sender is hung up on. They wait in the
    // sockets, so that the card is the last to close them.
    let callers = [(); 5].map(|()| call(&path));
    let (may, gate) = after(callers.len(), owner_only());
    start_for(&mut server, may);
    let _last = gate.shut(&path);
    send_all(&callers[0], &[hello.clone(), create.clone()], slow(1));
    send_all(&callers[1], &[create, hello.clone()], slow(1));
    send_all(&callers[2], &[hello], slow(20));
    send_all(&callers[3], &[vec![7; 5]], slow(1));
    send_all(&callers[4], &[vec![0; 600]], slow(1));
    drop(gate);
    // Answers within 5 s, or an error.
    let (mut a, b) = (End::new(&path), End::new(&path));
    a.connect(b.qpn);
    b.connect(a.qpn);
    a.post(Operation::Write { address: 1 << 20, rkey: b.key, immediate: None });
    assert_eq!(a.completion().status, Status::Success);
}

#[test]
fn what_was_posted_before_a_request_is_done_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, path) = server(&folder);
    let [mut a, b] = two(&path);
    for _ in 0..200 {
        // The card sleeps, sometimes.
        std::thread::sleep(Duration::from_micros(300));
        for _ in 0..8 {
            a.post(Operation::Write { address: 1 << 20, rkey: b.key, immediate: None });
        }
        // Without order the WRITEs would find a queue pair in the state ERR, or none that is ready.
        a.client.call(&Request::ModifyPair(a.qpn, Attributes::state(State::Error)), &[]).unwrap();
        assert!((0..8).all(|_| a.completion().status == Status::Success));
        a.client.call(&Request::ModifyPair(a.qpn, Attributes::state(State::Reset)), &[]).unwrap();
        let granted =
            Capabilities { send_requests: 16, receive_requests: 16, send_pieces: 1, receive_pieces: 1, inline: 64 };
        a.program.add_pair(a.qpn, &granted, false);
        a.connect(b.qpn);
    }
}

#[test]
fn whoever_does_not_greet_is_hung_up_on_and_a_process_has_a_few_places() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, path) = server(&folder);
    let silent = Client::connect(&path).unwrap();
    let others: Vec<Client> = (0..7).map(|_| Client::connect(&path).unwrap()).collect();
    let one_more = Client::connect(&path).unwrap();
    assert!(one_more.call(&Request::Hello, &[]).is_err(), "the ninth of one process");
    assert!(is_hung_up(silent.fd()));
    drop(others);
    End::new(&path);
}

#[test]
fn other_users_leave_places_to_each_other_and_to_the_owner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card.rdma");
    let mut server = Server::listen(path.clone()).unwrap();
    let user = Arc::new(AtomicU32::new(0));
    let asked = user.clone();
    // Of others the process is not known, as of those in another container, so that they are limited as users only.
    let may = move |_: BorrowedFd<'_>| {
        let uid = asked.load(Ordering::Relaxed);
        let pid = if uid == 0 { std::process::id() } else { 0 };
        Some(Caller { pid, uid, is_limited: uid != 0 })
    };
    start_for(&mut server, Box::new(may));
    let mut clients = Vec::new();
    let counts = [1000, 1001, 1002, 0].map(|uid| {
        user.store(uid, Ordering::Relaxed);
        let before = clients.len();
        clients.extend((0..256).map_while(|_| {
            let client = Client::connect(&path).unwrap();
            client.call(&Request::Hello, &[]).is_ok().then_some(client)
        }));
        clients.len() - before
    });
    assert_eq!(counts, [64, 32, 16, 8]);
}
