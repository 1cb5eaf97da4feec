//! What a guest, or a program that is none, may do to others: nothing.

mod running;

use millrace_dma::{Iova, Ordering, Window};
use millrace_rdma::memory::ProtectionDomain;
use millrace_rdma::served::{SHARED_LEN, queue_lines, ring_len};
use millrace_rdma::transport::{Capabilities, Init};
use millrace_rdma::wire::Service;
use millrace_ring::lines::MOST_WORDS;
use millrace_served::record;
use millrace_served::wire::{self, Words};
use millrace_split::memory::{self, MemoryGrants};
use millrace_split::message::{Message, Request};
use millrace_split::page::GuestSide;
use millrace_split::run::runs_of;
use millrace_split::{Access, Frontend, Granted, Grants, Limits, PAGE, Report, Transfer};
use running::{Running, SOON, done, until};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Has the threads of a scope end, also when a test fails.
struct AtTheEnd<'s>(&'s AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Somebody who connects again and again holds nobody in a call, and has nobody's buffers vanish.
#[test]
fn who_connects_without_end_keeps_nobody() {
    let backend = Running::start(Limits::default());
    let victim = backend.endpoint();
    let memory = victim.allocate(PAGE, Access::ALL).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = AtTheEnd(&stop);
        for _ in 0..3 {
            let mut hostile = Frontend::call_at(&backend.place()).unwrap();
            let (to, stop) = (victim.address(), &stop);
            scope.spawn(move || {
                let _program = hostile.join().unwrap();
                let domain = ProtectionDomain(hostile.engine(wire::Request::CreateDomain).unwrap()[0] as u32);
                let (at, _) = hostile.share(ring_len(queue_lines(64))).unwrap();
                let queue = hostile.ask(&Request::CreateQueue(64, at)).unwrap()[0] as u32;
                let init = kind_of(domain, queue);
                hostile.ask(&Request::Open(init)).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let _ = hostile.ask(&Request::Connect(to));
                }
            });
        }
        // Each look is bounded, however fast others are.
        for round in 0..50 {
            let begin = Instant::now();
            let _ = victim.poll().unwrap();
            assert!(begin.elapsed() < SOON, "round {round}");
            std::thread::sleep(Duration::from_millis(2));
        }
        until("they are connected", || victim.peers().unwrap().len() == 3);
        // Once, and no more.
        let told = victim.status().unwrap().backend.requests;
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(victim.peers().unwrap().len(), 3);
        assert_eq!(victim.status().unwrap().backend.requests, told + 1, "nothing has to be destroyed");
    });
    drop(memory);
}

/// The kind of queue pairs that an endpoint opens.
fn kind_of(domain: ProtectionDomain, queue: u32) -> Init {
    let capabilities =
        Capabilities { send_requests: 8, receive_requests: 8, send_pieces: 1, receive_pieces: 1, inline: 0 };
    Init {
        service: Service::ReliableConnection,
        general: false,
        domain,
        send_queue: queue,
        receive_queue: queue,
        shared_receive_queue: None,
        capabilities,
        signal_all: false,
        context: 0,
    }
}

/// A program that asks as it likes. Memory that it has granted stays.
struct Raw {
    grants: MemoryGrants,
    page: Window,
    side: GuestSide,
    number: u64,
    kept: Vec<Granted>,
}

impl Raw {
    fn call(backend: &Running) -> Self {
        let (grants, control, side) =
            memory::connect(&backend.path, &memory::Pages::new().unwrap(), |page| Ok(GuestSide::new(page)?)).unwrap();
        until("it is served", || side.is_served());
        Self { grants, page: control.window.clone(), side, number: 0, kept: vec![control] }
    }

    /// `None`: it was put out.
    fn ask(&mut self, request: &Request) -> Option<Result<Vec<u64>, i32>> {
        self.number += 1;
        assert!(self.side.requests.send(&request.write(self.number)));
        self.grants.ring();
        let end = Instant::now() + SOON;
        while Instant::now() < end {
            let mut words = [0; MOST_WORDS];
            let taken = self.side.answers.take(&mut words).ok()?;
            let Some(len) = taken else {
                if !self.side.is_served() {
                    return None;
                }
                std::thread::yield_now();
                continue;
            };
            self.side.answers.give_back();
            if let Message::Answer(number, answer) = Message::read(&words[..len])? {
                assert_eq!(number, self.number);
                return Some(answer);
            }
        }
        panic!("no answer to {request:?}");
    }

    fn share(&mut self, pages: u32) -> (Iova, Window) {
        let granted = self.grants.grant(pages).unwrap();
        let request = Request::Grant { pages, first: 0, runs: runs_of(&granted.references).unwrap() };
        let answer = self.ask(&request).unwrap().unwrap();
        let window = granted.window.clone();
        self.kept.push(granted);
        (Iova::new(answer[1]), window)
    }
}

fn random() -> impl FnMut() -> u64 {
    let mut number = 0x2545_f491_4f6c_dd1d_u64;
    move || {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        number
    }
}

/// Whatever a guest writes into its control page and its rings, wherever these lie: it is put out at most, and others go on.
#[test]
fn nonsense_puts_out_whoever_writes_it() {
    const ROUNDS: u64 = 24;
    let backend = Running::start(Limits::default());
    let (one, other) = (backend.endpoint(), backend.endpoint());
    let (ours, theirs) = (one.allocate(PAGE, Access::LOCAL).unwrap(), other.allocate(PAGE, Access::ALL).unwrap());
    one.connect(other.address(), SOON).unwrap();
    let mut random = random();
    let mut joined = 0;
    for round in 0..ROUNDS {
        let mut raw = Raw::call(&backend);
        let (at, memory) = raw.share(150);
        // Half of them have rings: of work and events, and of completions at places that overlap these, each other, and a region.
        if round % 2 == 0 {
            raw.ask(&Request::Hello).unwrap().unwrap();
            raw.ask(&Request::Join(at)).unwrap().unwrap();
            let domain = raw.ask(&Request::Engine(wire::Request::CreateDomain)).unwrap().unwrap();
            let domain = ProtectionDomain(domain[0] as u32);
            let behind = SHARED_LEN as u64;
            let places = [0, 64, behind - 4096, behind, behind, behind + 128];
            let queues = places.map(|place| raw.ask(&Request::CreateQueue(64, Iova::new(at.get() + place))).unwrap());
            let whole = Request::Register { domain, access: Access::ALL.bits(), at, len: memory.len() as u64, base: 0 };
            raw.ask(&whole).unwrap().unwrap();
            let queue = queues[round as usize / 2 % queues.len()].clone().unwrap()[0] as u32;
            raw.ask(&Request::Open(kind_of(domain, queue))).unwrap().unwrap();
            raw.ask(&Request::Connect(other.address())).unwrap().unwrap();
            joined += 1;
        }
        let before = done_writes(&one, other.address(), &ours, theirs.key(), round);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            let page = &raw.page;
            let (memory, seed) = (&memory, random());
            scope.spawn(move || {
                let mut number = seed | 1;
                let mut random = move || {
                    number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    number >> 20
                };
                for step in 0..20_000_u64 {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    // A line that looks like a message, so that what is in it is read.
                    let line = 256 + random() as usize % 1024 * 64;
                    let stamp = ((line as u64 - 256) / 64 + 1) | ((random() % 9) << 32);
                    let word = if random() & 1 == 0 { random() } else { random() & 0xff_0000_00ff };
                    let place = 8 + random() as usize % 7 * 8;
                    memory.word64(line + place).unwrap().store(word, Ordering::Relaxed);
                    memory.word64(line).unwrap().store(stamp, Ordering::Release);
                    memory.word64(random() as usize % (memory.len() / 8) * 8).unwrap().store(word, Ordering::Relaxed);
                    if round % 3 == 0 && step % 50 == 49 {
                        page.word64(random() as usize % (PAGE / 8) * 8).unwrap().store(word, Ordering::Relaxed);
                    }
                }
            });
            let _stop = AtTheEnd(stop);
            for step in 0..20 {
                raw.grants.ring();
                let written = done_writes(&one, other.address(), &ours, theirs.key(), before + step);
                let mut found = [0; 8];
                theirs.load(0, &mut found).unwrap();
                assert_eq!(u64::from_le_bytes(found), written, "round {round}");
            }
        });
        other.poll().unwrap();
    }
    until("all of them have gone", || left(&backend).len() as u64 == ROUNDS);
    let put_out = left(&backend).into_iter().filter(|was_put_out| *was_put_out).count();
    // How many is chance, and none of 24 is none.
    assert!(put_out > 0, "{put_out} of {ROUNDS}, of which {joined} had rings");
    // A message that is none, where one is expected.
    let mut guest = Frontend::call_at(&backend.place()).unwrap();
    let address = guest.welcome().address;
    let mut raw = Raw::call(&backend);
    assert!(raw.side.requests.send(&[1, 2, 3]));
    raw.grants.ring();
    until("it is put out", || !raw.side.is_served());
    assert!(guest.status().is_ok() && backend.left(address).is_none());
}

/// Writes a number into memory of the other end: that number.
fn done_writes(
    one: &millrace_split::Endpoint,
    to: millrace_split::Address,
    ours: &millrace_split::Region,
    key: u32,
    number: u64,
) -> u64 {
    ours.store(0, &number.to_le_bytes()).unwrap();
    one.post(to, &[Transfer::write(ours.part(0, 8).unwrap(), key, 0)], number).unwrap();
    let ended = done(one);
    assert_eq!((ended.token, ended.failed), (number, None));
    number
}

/// Of those that have gone, whether they were put out.
fn left(backend: &Running) -> Vec<bool> {
    let reports = backend.reports.lock().unwrap();
    let left = reports.iter().filter_map(|report| match report {
        Report::Left { was_put_out, .. } => Some(*was_put_out),
        Report::Came { .. } => None,
    });
    left.collect()
}

/// A descriptor that takes ten seconds to be closed, as long as the other end is there and does not read.
fn lingers() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&one, Some(Duration::from_secs(10))).unwrap();
    one.set_nonblocking(true).unwrap();
    while one.write(&[0; 1 << 16]).is_ok() {}
    one.set_nonblocking(false).unwrap();
    (one.into(), other)
}

#[test]
fn what_strangers_bring_keeps_nobody_waiting() {
    let backend = Running::start(Limits::default());
    let one = backend.endpoint();
    let hello = Words::answer(&[u64::from_le_bytes(*b"MILLGRNT"), 0]);
    let file = rustix::fs::memfd_create("stranger", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let (mut peers, mut sockets) = (Vec::new(), Vec::new());
    for round in 0..6 {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(&backend.path).unwrap()).unwrap();
        let (slow, peer) = lingers();
        peers.push(peer);
        // What is no greeting, a greeting with more than it takes, and one with what is no memory.
        let nonsense = Words::answer(&[7]);
        let (words, fds) = match round % 3 {
            0 => (&nonsense, vec![slow.as_fd()]),
            1 => (&hello, vec![slow.as_fd(), file.as_fd()]),
            _ => (&hello, vec![slow.as_fd()]),
        };
        until("it is let in", || record::send(&socket, words, &fds).is_ok());
        // Whoever closes it last waits: not this thread.
        std::thread::spawn(move || drop(slow));
        sockets.push(socket);
    }
    assert!((0..50).all(|_| one.status().is_ok()));
    let another = backend.endpoint();
    one.connect(another.address(), SOON).unwrap();
    drop(peers);
    let away = backend.end_away();
    assert!((away.user, away.crowded) == (0, 0) && away.greeting >= 4 && away.memory >= 2, "{away:?}");
}
