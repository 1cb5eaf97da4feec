//! What two programs of a card notice of others that do it harm: how long a SEND of 64 bytes takes from one to the other, beside each attack.
//!
//! ```text
//! cargo run --release -p millrace-served --example hostile [SECONDS [ATTACK...]]
//! ```
//!
//! Attackers are processes of their own; each of them ends with its standard input. Those of the last two kinds are another user's, if root runs this.

use millrace_dma::{Pages, Protection, Region};
use millrace_rdma::memory::ProtectionDomain;
use millrace_rdma::number::{Gid, Key, Psn, Qpn};
use millrace_rdma::served::{Program, Quota, SHARED_LEN, queue_lines, ring_len};
use millrace_rdma::transport::{Attributes, Capabilities, Init, State};
use millrace_rdma::wire::{Format, Path as Way, Service};
use millrace_rdma::work::{Access, Completion, Data, Flags, Operation, Piece, Request as Post};
use millrace_served::wire::{Bytes, Parts, Register, Request, qpn};
use millrace_served::{Address, Caller, Client, May, Server, Start, bell, owner_only};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::IoSlice;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const GID: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 19, 0, 1]);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ALL: Access = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ);
const DEPTH: u32 = 4096;
/// Connections that a process may have.
const CONNECTIONS: usize = 8;
const GIB: usize = 1 << 30;
const MIB: u32 = 1 << 20;
/// Requests of a queue.
const MANY: u32 = 16_384;

/// Attacks, how many processes do each, and whether these are another user's.
const ATTACKS: [(&str, usize, bool); 11] = [
    ("nobody", 0, false),
    ("pairs", 1, false),
    ("questions", 24, false),
    ("requests", 24, false),
    ("leaving", 8, false),
    ("unmapping", 1, false),
    ("sizes", 1, false),
    ("failing", 1, false),
    ("holes", 1, false),
    ("punches", 1, true),
    ("graves", 8, true),
];
/// The other user.
const EVE: u32 = 1000;

/// A program.
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

fn flags() -> Flags {
    Flags { signaled: true, ..Flags::default() }
}

impl End {
    fn new(path: &Path, len: usize) -> Self {
        let client = Client::connect(path).expect("a card listens");
        let (_, fds) = client.call(&Request::Hello, &[]).expect("it greets");
        let [shared, to_card, _] = <[OwnedFd; 3]>::try_from(fds).expect("three descriptors");
        let shared = Region::map(shared, SHARED_LEN, Protection::ReadWrite, false).expect("memory");
        let mut program = Program::new(shared.window()).expect("it is long enough");
        let domain = ProtectionDomain(number(&client, Request::CreateDomain));
        let memory = Region::allocate(len, Pages::Ordinary).expect("memory");
        let (mut words, fds) = client.call(&Request::CreateQueue(DEPTH), &[]).expect("a queue");
        let queue = words.word().expect("its number") as u32;
        let ring = fds.into_iter().next().expect("its memory");
        let ring = Region::map(ring, ring_len(queue_lines(DEPTH)), Protection::ReadWrite, false).expect("memory");
        program.add_queue(queue, DEPTH, ring.window()).expect("it is long enough");
        let key = Key::new(0);
        let mut end = Self { client, program, to_card, memory, domain, key, queue, qpn: Qpn::new(0) };
        end.key = end.register(len);
        end.qpn = end.pair();
        end
    }

    fn register(&self, len: usize) -> Key {
        let parts = Parts::new([(0, len as u64)]).expect("one");
        let bytes = Bytes { parts, skip: 0, len: len as u64, base: 0 };
        let asked = Request::Register(Register { domain: self.domain, access: ALL, bytes });
        let made = self.client.call(&asked, &[self.memory.fd().expect("it has one")]);
        Key::new(made.expect("a region").0.word().expect("its key") as u32)
    }

    fn pair(&mut self) -> Qpn {
        let capabilities =
            Capabilities { send_requests: 16, receive_requests: 16, send_pieces: 1, receive_pieces: 1, inline: 0 };
        self.pair_of(capabilities)
    }

    fn pair_of(&mut self, capabilities: Capabilities) -> Qpn {
        let init = Init {
            service: Service::ReliableConnection,
            general: false,
            domain: self.domain,
            send_queue: self.queue,
            receive_queue: self.queue,
            shared_receive_queue: None,
            capabilities,
            signal_all: false,
            context: 0,
        };
        let (mut words, _) = self.client.call(&Request::CreatePair(init), &[]).expect("a queue pair");
        let number = qpn(&mut words).expect("its number");
        self.program.add_pair(number, &words.capabilities().expect("what it has"), false);
        number
    }

    fn connect(&self, own: Qpn, remote: Qpn) {
        let path = Way {
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
            path_mtu: Some(4096),
            remote: Some(remote),
            receive_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(1),
            ..Attributes::state(State::ReadyToReceive)
        };
        let go = Attributes {
            send_psn: Some(Psn::new(0)),
            timeout: Some(18),
            retry_count: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..Attributes::state(State::ReadyToSend)
        };
        for told in [init, receive, go] {
            self.client.call(&Request::ModifyPair(own, told), &[]).expect("it changes");
        }
    }

    fn post(&mut self, of: Qpn, operation: Operation, (address, len): (u64, u32)) -> bool {
        let pieces = [Piece { address, len, lkey: self.key }];
        let request = Post { id: 0, operation, data: Data::Pieces(&pieces), flags: flags(), target: None };
        let posted = self.program.post_send(of, &request);
        if posted == Ok(true) {
            bell::ring_card(&self.to_card);
        }
        posted.is_ok()
    }

    fn poll(&mut self) -> usize {
        self.program.poll(self.queue, &mut [Completion::default(); 64]).expect("a card")
    }

    fn wait(&mut self) {
        while self.poll() == 0 {
            std::thread::yield_now();
        }
    }
}

fn number(client: &Client, request: Request) -> u32 {
    client.call(&request, &[]).expect("an answer").0.word().expect("a number") as u32
}

/// Two programs, connected.
fn two(path: &Path, len: usize) -> [End; 2] {
    let ends = [End::new(path, len), End::new(path, len)];
    ends[0].connect(ends[0].qpn, ends[1].qpn);
    ends[1].connect(ends[1].qpn, ends[0].qpn);
    ends
}

fn write_to(key: Key, address: u64) -> Operation {
    Operation::Write { address, rkey: key, immediate: None }
}

/// Until nobody wants it any more.
fn attack(kind: &str, path: &Path) {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    match kind {
        "pairs" => {
            let [mut a, mut b] = two(path, 16 << 20);
            let pairs: Vec<Qpn> = (0..512)
                .map(|_| {
                    let (one, other) = (a.pair(), b.pair());
                    a.connect(one, other);
                    b.connect(other, one);
                    one
                })
                .collect();
            loop {
                for qpn in &pairs {
                    a.post(*qpn, write_to(b.key, 0), (0, 16 * MIB));
                }
                a.poll();
                std::thread::yield_now();
            }
        }
        "questions" => {
            let first = End::new(path, 4096);
            // One process has all these regions.
            while first.memory.fd().is_some_and(|fd| {
                let parts = Parts::new([(0, 4096)]).expect("one");
                let bytes = Bytes { parts, skip: 0, len: 4096, base: 0 };
                let asked = Request::Register(Register { domain: first.domain, access: ALL, bytes });
                first.client.call(&asked, &[fd]).is_ok()
            }) {}
            each_connection(path, |client| client.show(3).map(drop).is_ok());
        }
        "requests" => each_connection(path, |client| {
            let Ok((mut words, _)) = client.call(&Request::CreateQueue(1 << 15), &[]) else { return true };
            let queue = words.word().expect("its number") as u32;
            client.call(&Request::DestroyQueue(queue), &[]).is_ok()
        }),
        "leaving" => loop {
            let mut end = End::new(path, 4096);
            for _ in 0..200 {
                end.pair();
            }
        },
        "unmapping" => {
            let [mut a, b] = two(path, GIB);
            loop {
                let key = b.register(GIB);
                for at in 0..GIB as u64 / u64::from(MIB) {
                    while !a.post(a.qpn, write_to(key, at << 20), (0, MIB)) {
                        a.poll();
                    }
                }
                while a.poll() > 0 {}
                b.client.call(&Request::Deregister(key), &[]).expect("it is taken back");
            }
        }
        // The largest queue pairs that there are.
        "sizes" => {
            let mut end = End::new(path, 4096);
            let (send_requests, receive_requests) = (MANY, MANY);
            loop {
                let qpn = end.pair_of(Capabilities {
                    send_requests,
                    receive_requests,
                    send_pieces: 16,
                    receive_pieces: 16,
                    inline: 1024,
                });
                end.client.call(&Request::DestroyPair(qpn), &[]).expect("it is destroyed");
            }
        }
        // Two million buffers of queue pairs that fail together, because their completion queue has no room.
        "failing" => loop {
            let mut end = End::new(path, 4096);
            let wanted = Capabilities { receive_requests: MANY, receive_pieces: 1, ..Capabilities::default() };
            let pairs: Vec<Qpn> = (0..128).map(|_| end.pair_of(wanted)).collect();
            for qpn in &pairs {
                end.connect(*qpn, *qpn);
                for _ in 0..MANY {
                    while end.program.post_receive(*qpn, 0, &[]).is_err() {
                        bell::ring_card(&end.to_card);
                        std::thread::yield_now();
                    }
                }
            }
            let failed = Request::ModifyPair(pairs[0], Attributes::state(State::Error));
            end.client.call(&failed, &[]).expect("it changes");
            // What has to end before that is answered.
            end.client.call(&Request::QueryPair(pairs[0]), &[]).expect("it is there");
        },
        "holes" => {
            let [mut a, b] = two(path, GIB);
            loop {
                fill(&mut a, &b);
                punch(&mut a, &b);
            }
        }
        // Once, and again when that may be forgotten.
        "punches" => {
            let [mut a, b] = two(path, GIB);
            loop {
                fill(&mut a, &b);
                punch(&mut a, &b);
                std::thread::sleep(Duration::from_secs(11));
            }
        }
        // Who goes leaves as much as he may have, behind what is slow to close.
        "graves" => {
            let mut peers = Vec::new();
            loop {
                peers.extend(grave(path));
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        _ => {}
    }
}

/// Writes all of the other end's memory, so that it is there.
fn fill(a: &mut End, b: &End) {
    for at in 0..GIB as u64 / u64::from(MIB) {
        while !a.post(a.qpn, write_to(b.key, at << 20), (0, MIB)) {
            a.poll();
        }
    }
}

/// Takes all of it away, and has the card use it meanwhile.
fn punch(a: &mut End, b: &End) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(b.memory.fd().expect("it has one"), how, 0, GIB as u64)
        });
        for at in (0..256).rev() {
            a.post(a.qpn, write_to(b.key, (at << 22) + 4096), (0, 64));
            a.poll();
        }
    });
}

/// A TCP socket whose closing takes ten seconds: what it has sent is not read by anybody.
fn lingers() -> std::io::Result<(OwnedFd, std::net::TcpStream)> {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let mut one = std::net::TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    rustix::net::sockopt::set_socket_linger(&one, Some(Duration::from_secs(10)))?;
    one.set_nonblocking(true)?;
    while one.write(&[0; 1 << 16]).is_ok() {}
    Ok((one.into(), other))
}

/// Registers as much as there may be, has the card close something slow, and goes.
fn grave(path: &Path) -> Option<std::net::TcpStream> {
    let (slow, peer) = lingers().ok()?;
    let client = Client::connect(path).ok()?;
    client.call(&Request::Hello, &[]).ok()?;
    let domain = ProtectionDomain(client.call(&Request::CreateDomain, &[]).ok()?.0.word()? as u32);
    let memory = Region::allocate(4096, Pages::Ordinary).ok()?;
    let bytes = Bytes { parts: Parts::new([(0, 4096)])?, skip: 0, len: 4096, base: 0 };
    let asked = Request::Register(Register { domain, access: ALL, bytes });
    while client.call(&asked, &[memory.fd()?]).is_ok() {}
    let fds = [slow.as_fd()];
    let mut space = [const { core::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let last = Request::CreateDomain.write().bytes();
    sendmsg(client.fd(), &[IoSlice::new(&last)], &mut ancillary, SendFlags::NOSIGNAL).ok()?;
    // Before the card has closed its own.
    drop(slow);
    poll(&mut [PollFd::new(&client.fd(), PollFlags::IN)], None).ok()?;
    Some(peer)
}

/// On as many connections as there may be, each with a thread.
fn each_connection(path: &Path, does: impl Fn(&Client) -> bool + Sync) {
    std::thread::scope(|scope| {
        for _ in 1..CONNECTIONS {
            scope.spawn(|| {
                let client = Client::connect(path).expect("a card listens");
                let _ = client.call(&Request::Hello, &[]);
                while does(&client) {}
            });
        }
    });
}

/// Times of SENDs, for so long.
fn measure(ends: &mut [End; 2], seconds: f64) -> Vec<Duration> {
    let [a, b] = ends;
    let (mut times, began) = (Vec::new(), Instant::now());
    while began.elapsed().as_secs_f64() < seconds {
        let piece = Piece { address: 0, len: 64, lkey: b.key };
        if b.program.post_receive(b.qpn, 0, &[piece]) == Ok(true) {
            bell::ring_card(&b.to_card);
        }
        let posted = Instant::now();
        a.post(a.qpn, Operation::Send, (0, 64));
        b.wait();
        times.push(posted.elapsed());
        a.wait();
    }
    times.sort_unstable();
    times
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [attacks, kind, path] = words.as_slice()
        && attacks == "attack"
    {
        return attack(kind, Path::new(path));
    }
    let seconds: f64 = words.first().map_or(5.0, |word| word.parse().expect("seconds"));
    let folder = std::env::temp_dir().join(format!("millrace-hostile-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    println!(
        "| attack | SENDs | median us | p99 us | longest ms | mappings | descriptors |\n|---|---|---|---|---|---|---|"
    );
    for (kind, processes, is_other) in
        ATTACKS.into_iter().filter(|(kind, ..)| words.len() < 2 || words[1..].iter().any(|word| word == kind))
    {
        let path = folder.join("card.rdma");
        let mut server = Server::listen(path.clone()).expect("a socket");
        let everybody = |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777));
        everybody(&folder).and_then(|()| everybody(&path)).expect("they are ours");
        let address = Address { mac: MAC, gids: [GID, GID] };
        let (quota, may) = (Quota::default(), everybody_may());
        let start = Start { address, quota, cpu: None, link: None, mtu: 4096, may, userfaultfd: None };
        server.start(start).expect("a thread");
        let mut ends = two(&path, 4096);
        let attackers: Vec<Child> = (0..processes)
            .map(|_| {
                let mut command = Command::new(std::env::current_exe().expect("this program"));
                command.args(["attack", kind]).arg(&path).stdin(Stdio::piped()).stderr(Stdio::null());
                if is_other && rustix::process::geteuid().is_root() {
                    command.uid(EVE);
                }
                command.spawn().expect("a process")
            })
            .collect();
        // Until they are at it.
        measure(&mut ends, 2.0);
        let times = measure(&mut ends, seconds);
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64();
        let has = (count("/proc/self/map_files"), count("/proc/self/fd"));
        println!(
            "| {kind} | {} | {:.1} | {:.0} | {:.1} | {} | {} |",
            times.len(),
            at(0.5) * 1e6,
            at(0.99) * 1e6,
            at(1.0) * 1e3,
            has.0,
            has.1
        );
        for mut attacker in attackers {
            drop(attacker.stdin.take());
            let _ = attacker.wait();
        }
    }
    let _ = std::fs::remove_dir_all(folder);
}

/// What lies in a folder.
fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

/// Everybody, and whoever is not the owner is limited.
fn everybody_may() -> May {
    let owner = owner_only();
    Box::new(move |socket: BorrowedFd<'_>| {
        let credentials = rustix::net::sockopt::socket_peercred(socket).ok()?;
        let (pid, uid) = (credentials.pid.as_raw_nonzero().get() as u32, credentials.uid.as_raw());
        owner(socket).or(Some(Caller { pid, uid, is_limited: true }))
    })
}
