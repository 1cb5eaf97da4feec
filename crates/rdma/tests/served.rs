//! The engine in another process: programs with rings in shared memory, and memory that is mapped on both sides.

use millrace_dma::{Pages, Protection, Region};
use millrace_rdma::engine::Options;
use millrace_rdma::memory::{Binding, ProtectionDomain, Refused, WindowType};
use millrace_rdma::number::{Gid, Key, Moment, Psn, Qpn};
use millrace_rdma::served::{Account, Amounts, Full, Number, Program, Quota, SHARED_LEN, Service};
use millrace_rdma::transport::{Attributes, Capabilities, Event, Init, Out, Sent, State};
use millrace_rdma::wire::{Format, Headers, Path, Service as Kind};
use millrace_rdma::work::{Access, Completion, Data, Ended, Flags, Operation, Piece, Request, Status, Target};
use proptest::prelude::*;
use std::os::unix::fs::MetadataExt;

#[path = "served/share.rs"]
mod share;

#[path = "served/general.rs"]
mod general;

#[path = "served/waits.rs"]
mod waits;

#[path = "served/flushes.rs"]
mod flushes;

#[path = "served/guesses.rs"]
mod guesses;

#[path = "served/rights.rs"]
mod rights;

#[path = "served/processes.rs"]
mod processes;

#[path = "served/short.rs"]
mod short;

#[path = "served/room.rs"]
mod room;

const GID: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const LEN: usize = 4 << 20;
const DEPTH: u32 = 64;

const PATH: Path = Path {
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

/// Nothing is for other hosts here.
struct NoWire;

impl Out for NoWire {
    fn packet<F>(&mut self, _: &Path, _: Qpn, _: &Headers, _: usize, _: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        panic!("a packet between two programs of a card went out")
    }
}

const OWNER: Account = Account { uid: 0, is_owner: true };

struct End {
    number: Number,
    program: Program,
    memory: Region,
    key: Key,
    domain: ProtectionDomain,
    queue: u32,
    qpn: Qpn,
}

const ALL: Access =
    Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ).with(Access::REMOTE_ATOMIC);

/// The same memory, mapped once more, as the program has it.
fn again(region: &Region) -> Region {
    let fd = region.fd().unwrap().try_clone_to_owned().unwrap();
    Region::map(fd, region.len(), Protection::ReadWrite, false).unwrap()
}

fn end(service: &mut Service) -> End {
    end_of(service, OWNER)
}

fn end_of(service: &mut Service, account: Account) -> End {
    let number = service.enter(account).unwrap();
    let mut program = Program::new(again(service.memory_of(number).unwrap()).window()).unwrap();
    let memory = Region::allocate(LEN, Pages::Ordinary).unwrap();
    let domain = service.create_domain(number).unwrap();
    let key = service.register(number, domain, &again(&memory), Some(0), ALL).unwrap().lkey;
    let (queue, ring) = service.create_queue(number, 256, |ring| Ok(again(ring))).unwrap();
    program.add_queue(queue, 256, ring.window()).unwrap();
    let (send_requests, receive_requests) = (DEPTH, DEPTH);
    let capabilities = Capabilities { send_requests, receive_requests, send_pieces: 4, receive_pieces: 4, inline: 256 };
    let (qpn, granted) = service.create_pair(number, &init(domain, queue, capabilities)).unwrap();
    program.add_pair(qpn, &granted, false);
    End { number, program, memory, key, domain, queue, qpn }
}

fn init(domain: ProtectionDomain, queue: u32, capabilities: Capabilities) -> Init {
    Init {
        service: Kind::ReliableConnection,
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

fn connect(service: &mut Service, number: Number, qpn: Qpn, remote: Qpn) {
    connect_by(service, (number, qpn), remote, PATH);
}

fn connect_by(service: &mut Service, end: (Number, Qpn), remote: Qpn, path: Path) {
    connect_from(service, end, remote, path, 0);
}

/// The same; what it sends has numbers from there on.
fn connect_from(service: &mut Service, (number, qpn): (Number, Qpn), remote: Qpn, path: Path, send_psn: u32) {
    let init = Attributes { pkey_index: Some(0), port: Some(1), access: Some(ALL), ..Attributes::state(State::Init) };
    let receive = Attributes {
        path: Some(path),
        path_mtu: Some(4096),
        remote: Some(remote),
        receive_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(4),
        min_rnr_timer: Some(1),
        ..Attributes::state(State::ReadyToReceive)
    };
    let send = Attributes {
        send_psn: Some(Psn::new(send_psn)),
        timeout: Some(10),
        retry_count: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(4),
        ..Attributes::state(State::ReadyToSend)
    };
    for told in [init, receive, send] {
        service.modify_pair(number, qpn, &told).unwrap();
    }
}

fn service() -> Service {
    Service::new(Options { seed: 1, ..Options::default() }, MAC, &[GID], Quota::default())
}

fn two() -> (Service, [End; 2]) {
    let mut service = service();
    let ends = [end(&mut service), end(&mut service)];
    join(&mut service, &ends[0], &ends[1]);
    (service, ends)
}

fn join(service: &mut Service, one: &End, other: &End) {
    connect(service, one.number, one.qpn, other.qpn);
    connect(service, other.number, other.qpn, one.qpn);
}

impl End {
    fn program_window(&self, service: &Service) -> millrace_dma::Window {
        service.memory_of(self.number).unwrap().window().clone()
    }

    fn piece(&self, address: u64, len: u32) -> Piece {
        Piece { address, len, lkey: self.key }
    }

    fn post(&mut self, id: u64, operation: Operation, pieces: &[Piece]) -> Result<bool, Full> {
        let flags = Flags { signaled: true, ..Flags::default() };
        self.program.post_send(self.qpn, &Request { id, operation, data: Data::Pieces(pieces), flags, target: None })
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut found = [Completion::default(); 256];
        let count = self.program.poll(self.queue, &mut found).unwrap();
        found[..count].to_vec()
    }

    fn fill(&self, at: usize, bytes: &[u8]) {
        assert_eq!(self.memory.window().span_mut(at, bytes.len()).unwrap().write_from(bytes), bytes.len());
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.window().span(at, len).unwrap().read_into(&mut bytes);
        bytes
    }
}

const QKEY: u32 = 0x1111;

/// A queue pair for datagrams, ready to send.
fn datagrams(service: &mut Service, end: &mut End) -> Qpn {
    let capabilities =
        Capabilities { send_requests: 8, receive_requests: 8, send_pieces: 2, receive_pieces: 2, inline: 64 };
    let init = Init { service: Kind::UnreliableDatagram, ..init(end.domain, end.queue, capabilities) };
    let (qpn, granted) = service.create_pair(end.number, &init).unwrap();
    end.program.add_pair(qpn, &granted, false);
    let first = Attributes { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..Attributes::state(State::Init) };
    let last = Attributes { send_psn: Some(Psn::new(0)), ..Attributes::state(State::ReadyToSend) };
    for told in [first, Attributes::state(State::ReadyToReceive), last] {
        service.modify_pair(end.number, qpn, &told).unwrap();
    }
    qpn
}

fn write_to(key: Key, address: u64) -> Operation {
    Operation::Write { address, rkey: key, immediate: None }
}

/// Turns until nothing moves; time goes on by a microsecond each.
fn run(service: &mut Service, now: &mut u64) {
    for _ in 0..100_000 {
        *now += 1000;
        if !service.turn(Moment::new(*now), &mut NoWire).moved {
            return;
        }
    }
    panic!("it moves for ever");
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + seed) ^ (at >> 8)) as u8).collect()
}

#[test]
fn writes_reads_sends_and_atomics_between_two_programs() {
    let (mut service, [mut a, mut b]) = two();
    let mut now = 0;
    a.fill(0, &pattern(1 << 20, 1));
    a.fill(2 << 20, &7_u64.to_ne_bytes());
    let (own, key) = (a.piece(0, 1 << 20), b.key);
    a.post(100, write_to(key, 4096), &[own]).unwrap();
    run(&mut service, &mut now);
    assert_eq!(b.bytes(4096, 1 << 20), pattern(1 << 20, 1));
    let counted = service.counters();
    assert_eq!((counted.copied, counted.packets), (1 << 20, 0), "copied once, and without packets");
    // What is longer than a turn goes as packets.
    let own = a.piece(0, 2 << 20);
    a.post(101, write_to(key, 0), &[own]).unwrap();
    // Order holds between the two ways.
    let own = [a.piece(2 << 20, 8)];
    a.post(102, write_to(key, 8), &own).unwrap();
    b.program.post_receive(b.qpn, 900, &[b.piece(3 << 20, 64), b.piece((3 << 20) + 100, 64)]).unwrap();
    let sent = [a.piece(5, 100)];
    a.post(103, Operation::SendImmediate([1, 2, 3, 4]), &sent).unwrap();
    run(&mut service, &mut now);
    let own = [a.piece((2 << 20) + 64, 1 << 16)];
    a.post(104, Operation::Read { address: 4096, rkey: key }, &own).unwrap();
    let own = [a.piece((2 << 20) + 8, 8)];
    a.post(105, Operation::FetchAdd { address: 8, rkey: key, add: 5 }, &own).unwrap();
    run(&mut service, &mut now);
    let ended: Vec<_> = a.poll().iter().map(|line| (line.id, line.status, line.ended)).collect();
    let good = |id, ended| (id, Status::Success, ended);
    let kinds = [Ended::Write, Ended::Write, Ended::Write, Ended::Send, Ended::Read, Ended::FetchAdd];
    assert_eq!(ended, (100..).zip(kinds).map(|(id, ended)| good(id, ended)).collect::<Vec<_>>());
    assert_eq!(a.bytes((2 << 20) + 64, 1 << 16), b.bytes(4096, 1 << 16));
    assert_eq!((b.bytes(8, 8), a.bytes((2 << 20) + 8, 8)), (12_u64.to_ne_bytes().into(), 7_u64.to_ne_bytes().into()));
    let came = b.poll();
    assert_eq!((came.len(), came[0].id, came[0].len), (1, 900, 100));
    let bytes = [b.bytes(3 << 20, 64), b.bytes((3 << 20) + 100, 36)].concat();
    assert_eq!(bytes, pattern(1 << 20, 1)[5..105]);
}

#[test]
fn a_program_that_ends_loses_everything_and_the_other_end_is_told() {
    let (mut service, [mut a, b]) = two();
    let mut other = [end(&mut service), end(&mut service)];
    let [c, d] = &mut other;
    join(&mut service, c, d);
    let mut now = 0;
    let (key, own) = (b.key, a.piece(0, 64));
    // A SEND that waits for a buffer, for ever, and WRITEs behind it.
    a.post(1, Operation::Send, &[own]).unwrap();
    a.post(2, write_to(key, 0), &[own]).unwrap();
    for _ in 0..50 {
        now += 1000;
        service.turn(Moment::new(now), &mut NoWire);
    }
    assert!(a.poll().is_empty());
    service.leave(Moment::new(now), b.number);
    run(&mut service, &mut now);
    let ended: Vec<_> = a.poll().iter().map(|line| (line.id, line.status)).collect();
    assert_eq!(ended, [(1, Status::RetryExceeded), (2, Status::Flushed)]);
    assert!(service.memory_of(b.number).is_err() && service.create_domain(b.number).is_err());
    let from = c.piece(0, 4096);
    c.fill(0, &pattern(4096, 3));
    let key = d.key;
    c.post(3, write_to(key, 0), &[from]).unwrap();
    run(&mut service, &mut now);
    assert_eq!((c.poll()[0].status, d.bytes(0, 4096)), (Status::Success, pattern(4096, 3)));
    assert_eq!(service.programs(), 3);
}

#[test]
fn a_greedy_program_does_not_keep_others_waiting() {
    let (mut service, [mut a, b]) = two();
    let (mut c, d) = (end(&mut service), end(&mut service));
    join(&mut service, &c, &d);
    let (big, key) = (a.piece(0, 1 << 20), b.key);
    (0..DEPTH.into()).for_each(|id| a.post(id, write_to(key, 0), &[big]).map(drop).unwrap());
    assert_eq!(a.post(99, write_to(key, 0), &[big]), Err(Full::Queue));
    let (small, key) = (c.piece(0, 8), d.key);
    c.post(1, write_to(key, 0), &[small]).unwrap();
    service.turn(Moment::new(1), &mut NoWire);
    assert_eq!(c.poll().len(), 1);
    assert_eq!(a.poll().len(), 1, "as many bytes as a turn has");
    run(&mut service, &mut 10);
    assert_eq!(a.poll().len(), DEPTH as usize - 1);
}

#[test]
fn who_sleeps_is_rung_and_what_came_before_is_told() {
    let (mut service, [mut a, b]) = two();
    let mut now = 0;
    run(&mut service, &mut now);
    assert!(service.doze(), "an idle card sleeps");
    let (own, key) = (a.piece(0, 8), b.key);
    assert_eq!(a.post(1, write_to(key, 0), &[own]), Ok(true), "a card that sleeps is rung");
    assert!(!service.doze(), "it does not sleep with work to do");
    assert_eq!(a.post(2, write_to(key, 0), &[own]), Ok(false));
    run(&mut service, &mut now);
    // Both completions are there, and were not looked at: arming tells at once.
    a.program.arm(a.queue, false).unwrap();
    assert!(a.program.doze());
    run(&mut service, &mut now);
    assert_eq!((service.take_bell(), service.take_bell()), (Some(a.number), None));
    assert_eq!(a.program.take_event(), Ok(Some(Event::Completion(a.queue))));
    assert_eq!(a.poll().len(), 2);
    // Nothing is there: the next one tells, once.
    a.program.arm(a.queue, false).unwrap();
    run(&mut service, &mut now);
    assert_eq!(a.program.take_event(), Ok(None));
    assert!(a.program.doze());
    a.post(3, write_to(key, 0), &[own]).unwrap();
    a.post(4, write_to(key, 0), &[own]).unwrap();
    run(&mut service, &mut now);
    assert_eq!(service.take_bell(), Some(a.number));
    assert_eq!(a.program.take_event(), Ok(Some(Event::Completion(a.queue))));
    assert_eq!(a.program.take_event(), Ok(None));
}

#[test]
fn armings_behind_a_request_are_answered_once() {
    let (mut service, [mut a, b]) = two();
    let mut now = 0;
    let (own, key) = (a.piece(0, 8), b.key);
    a.post(1, write_to(key, 0), &[own]).unwrap();
    (0..20).for_each(|_| a.program.arm(a.queue, false).map(drop).unwrap());
    run(&mut service, &mut now);
    assert_eq!(a.program.take_event(), Ok(Some(Event::Completion(a.queue))));
    assert_eq!(a.program.take_event(), Ok(None), "one completion, one event");
    assert_eq!(a.poll().len(), 1);
    a.post(2, write_to(key, 0), &[own]).unwrap();
    run(&mut service, &mut now);
    assert_eq!(a.program.take_event(), Ok(Some(Event::Completion(a.queue))), "the others have armed it");
}

#[test]
fn what_the_engine_does_not_take_ends_with_an_error_in_order() {
    let (mut service, [mut a, b]) = two();
    let (own, key) = (a.piece(0, 8), b.key);
    a.post(1, Operation::Send, &[own]).unwrap();
    // Five pieces, where the queue pair has room for four.
    a.post(2, write_to(key, 0), &[own; 5]).unwrap();
    a.post(3, write_to(key, 0), &[own]).unwrap();
    service.turn(Moment::new(1), &mut NoWire);
    let ended: Vec<_> = a.poll().iter().map(|line| (line.id, line.status)).collect();
    assert_eq!(ended, [(1, Status::Flushed), (2, Status::LocalOperation), (3, Status::Flushed)]);
    assert_eq!(service.counters().refused, 1);
}

#[test]
fn what_was_told_before_a_reset_is_not_told_after_it() {
    let (mut service, [mut a, b]) = two();
    let mut now = 0;
    let (own, key) = (a.piece(0, 8), b.key);
    for id in 1..4 {
        a.post(id, write_to(key, 0), &[own]).unwrap();
    }
    run(&mut service, &mut now);
    for end in [&a, &b] {
        service.modify_pair(end.number, end.qpn, &Attributes::state(State::Reset)).unwrap();
    }
    let requests = DEPTH;
    let granted = Capabilities { send_requests: requests, receive_requests: requests, ..Capabilities::default() };
    a.program.add_pair(a.qpn, &granted, false);
    join(&mut service, &a, &b);
    a.post(77, write_to(key, 0), &[own]).unwrap();
    run(&mut service, &mut now);
    let ended: Vec<_> = a.poll().iter().map(|line| (line.id, line.status)).collect();
    assert_eq!(ended, [(77, Status::Success)]);
}

#[test]
fn what_is_refused_wakes_whoever_waits() {
    let (mut service, [mut a, _b]) = two();
    let mut now = 0;
    a.program.arm(a.queue, false).unwrap();
    run(&mut service, &mut now);
    assert!(a.program.doze());
    let own = a.piece(0, 8);
    a.post(1, Operation::Send, &[own; 5]).unwrap();
    run(&mut service, &mut now);
    assert_eq!(service.take_bell(), Some(a.number));
    assert_eq!(a.program.take_event(), Ok(Some(Event::Completion(a.queue))));
    assert_eq!(a.poll()[0].status, Status::LocalOperation);
}

#[test]
fn long_requests_behind_one_that_waits_are_not_done_in_one_turn() {
    let (mut service, [mut a, mut b]) = two();
    let mut now = 0;
    let (key, long) = (b.key, a.piece(0, 1 << 20));
    a.post(0, Operation::Send, &[a.piece(0, 8)]).unwrap();
    for id in 1..=40 {
        a.post(id, write_to(key, 0), &[long]).unwrap();
    }
    // Taken, and waiting for the SEND, for which there is no buffer.
    for _ in 0..200 {
        now += 1000;
        service.turn(Moment::new(now), &mut NoWire);
    }
    assert!(a.poll().is_empty());
    let before = service.counters().copied;
    b.program.post_receive(b.qpn, 0, &[b.piece(0, 64)]).unwrap();
    let mut most = 0;
    for _ in 0..5_000 {
        now += 100_000;
        let copied = service.counters().copied;
        service.turn(Moment::new(now), &mut NoWire);
        most = most.max(service.counters().copied - copied);
    }
    assert_eq!(service.counters().copied - before, 40 << 20);
    assert!(most <= 2 << 20, "{most} bytes in one turn");
    assert_eq!(a.poll().len(), 41);
}

#[test]
fn what_is_unmapped_is_left_to_whoever_destroyed_it() {
    let (mut service, [a, b]) = two();
    let inode = |ring: &Region| std::fs::File::from(ring.fd().unwrap().try_clone_to_owned().unwrap()).metadata();
    let make = |service: &mut Service| service.create_queue(a.number, 8, |ring| Ok(inode(ring).unwrap().ino()));
    let is_mapped = |inode: u64| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.split_whitespace().nth(4) == Some(&inode.to_string()))
    };
    let (queue, first) = make(&mut service).unwrap();
    let left = service.destroy_queue(a.number, queue).unwrap();
    assert!(is_mapped(first), "the card has not unmapped it itself");
    drop(left);
    assert!(!is_mapped(first));
    let (_, second) = make(&mut service).unwrap();
    let left = service.leave(Moment::new(1), a.number);
    assert!(is_mapped(second));
    drop(left);
    assert!(!is_mapped(second));
    assert!(service.memory_of(b.number).is_ok());
}
