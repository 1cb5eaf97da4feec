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

/// A counter of the table behind a program's keys, as it is shown.
fn iotlb(service: &mut Service, program: Number, name: &str) -> u64 {
    let told = service.show(program).unwrap().fields();
    let (_, iotlb) = told.split_once("\"iotlb\":{").unwrap();
    let (_, value) = iotlb.split_once(&format!("\"{name}\":")).unwrap();
    value[..value.find([',', '}']).unwrap()].parse().unwrap()
}

#[test]
fn what_keys_open_is_counted() {
    let (mut service, [mut a, b]) = two();
    let mut now = 0;
    let all = ["entries", "huge_entries", "lookups", "hits", "misses", "evictions"];
    let seen = |service: &mut Service, end: &End| all.map(|name| iotlb(service, end.number, name));
    assert_eq!(seen(&mut service, &b), [1, 0, 0, 0, 0, 0]);
    let own = [a.piece(0, 4096)];
    a.post(1, write_to(b.key, 0), &own).unwrap();
    run(&mut service, &mut now);
    let [.., lookups, hits, misses, _] = seen(&mut service, &b);
    assert!(hits > 0 && lookups == hits && misses == 0);
    // On huge pages, where there are some.
    let huge = Region::allocate(2 << 20, Pages::HugeIfAny).unwrap();
    let is_huge = rustix::fs::fstatfs(huge.fd().unwrap()).unwrap().f_bsize as u64 > 4096;
    let key = service.register(b.number, b.domain, &again(&huge), Some(0), ALL).unwrap().lkey;
    assert_eq!(seen(&mut service, &b)[..2], [2, u64::from(is_huge)]);
    service.deregister(b.number, key).unwrap();
    a.post(2, write_to(key, 0), &own).unwrap();
    run(&mut service, &mut now);
    assert_eq!(a.poll()[1].status, Status::RemoteAccess);
    assert_eq!(seen(&mut service, &b), [1, 0, hits + 1, hits, 1, 0]);
}

#[test]
fn nobody_uses_what_belongs_to_another() {
    let (mut service, [mut a, b]) = two();
    let mut stranger = end(&mut service);
    let mut now = 0;
    let number = stranger.number;
    assert!(service.destroy_domain(number, a.domain).is_err());
    assert!(service.destroy_queue(number, a.queue).is_err());
    assert!(service.destroy_pair(number, a.qpn).is_err() && service.query_pair(number, a.qpn).is_err());
    assert!(service.modify_pair(number, a.qpn, &Attributes::state(State::Error)).is_err());
    let capabilities = Capabilities { send_requests: 1, ..Capabilities::default() };
    assert!(service.create_pair(number, &init(stranger.domain, a.queue, capabilities)).is_err());
    assert!(service.create_pair(number, &init(a.domain, stranger.queue, capabilities)).is_err());
    assert!(service.register(number, a.domain, &again(&stranger.memory), None, ALL).is_err());
    assert!(service.destroy_domain(a.number, a.domain).is_err(), "it has a region and a queue pair");
    // Posts to a queue pair of another program: it says that it has it.
    stranger.program.add_pair(a.qpn, &Capabilities { send_requests: 8, ..Capabilities::default() }, true);
    let piece = [stranger.piece(0, 64)];
    let request = |operation, pieces| Request {
        id: 0,
        operation,
        data: Data::Pieces(pieces),
        flags: Flags::default(),
        target: None,
    };
    stranger.program.post_send(a.qpn, &request(write_to(b.key, 0), &piece)).unwrap();
    stranger.program.post_shared(7, 0, &piece).unwrap();
    run(&mut service, &mut now);
    assert_eq!(service.counters().strange, 2);
    // Its queue pair says that it is connected with one that is connected with another.
    connect(&mut service, number, stranger.qpn, b.qpn);
    stranger.post(5, write_to(b.key, 0), &piece).unwrap();
    for _ in 0..20_000 {
        now += 1_000_000;
        service.turn(Moment::new(now), &mut NoWire);
    }
    assert_eq!(stranger.poll()[0].status, Status::RetryExceeded);
    // A local key of another program.
    let foreign = Piece { address: 0, len: 64, lkey: b.key };
    a.post(6, write_to(b.key, 0), &[foreign]).unwrap();
    run(&mut service, &mut now);
    assert_eq!(a.poll()[0].status, Status::LocalProtection);
    assert_eq!(b.bytes(0, 64), [0; 64]);
}

#[test]
fn quotas_are_kept_and_given_back() {
    let program = Amounts {
        domains: 2,
        queues: 2,
        completions: 300,
        pairs: 2,
        // That of `end`, one of 64 requests, and not one of 128.
        queue_bytes: 64 * (192 + 64 + 256) + 64 * (32 + 64) + 64 * 192 + 4096,
        bytes: LEN as u64,
        ..Quota::default().program
    };
    let quota = Quota { program, ..Quota::default() };
    let mut service = Service::new(Options::default(), MAC, &[GID], quota);
    let one = end(&mut service);
    let capabilities = Capabilities { send_requests: 64, ..Capabilities::default() };
    let make = |service: &mut Service, pair: &Init| service.create_pair(one.number, pair).map(|(qpn, _)| qpn);
    let wanted = init(one.domain, one.queue, capabilities);
    let second = make(&mut service, &wanted).unwrap();
    assert_eq!(make(&mut service, &wanted).unwrap_err().errno(), 12);
    service.destroy_pair(one.number, second).unwrap();
    let much = Capabilities { send_requests: 80, ..Capabilities::default() };
    assert_eq!(make(&mut service, &init(one.domain, one.queue, much)).unwrap_err().errno(), 12);
    assert_eq!(
        service.create_queue(one.number, 64, |_| Ok(())).err().unwrap().errno(),
        12,
        "256 and 64 are more than 300"
    );
    let (queue, _) = service.create_queue(one.number, 32, |_| Ok(())).unwrap();
    assert_eq!(service.create_queue(one.number, 1, |_| Ok(())).err().unwrap().errno(), 12);
    service.destroy_queue(one.number, queue).unwrap();
    let more = Region::allocate(4096, Pages::Ordinary).unwrap();
    assert_eq!(service.register(one.number, one.domain, &more, None, ALL).unwrap_err().errno(), 12);
    service.deregister(one.number, one.key).unwrap();
    service.register(one.number, one.domain, &more, None, ALL).unwrap();
    // Another program has its own.
    end(&mut service);
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
fn events_that_have_no_room_are_told_later() {
    let mut service = service();
    let mut one = end(&mut service);
    let mut now = 0;
    let mut queues = Vec::new();
    for _ in 0..400 {
        let (queue, ring) = service.create_queue(one.number, 8, |ring| Ok(again(ring))).unwrap();
        one.program.add_queue(queue, 8, ring.window()).unwrap();
        let capabilities = Capabilities { send_requests: 1, send_pieces: 1, ..Capabilities::default() };
        let (qpn, granted) = service.create_pair(one.number, &init(one.domain, queue, capabilities)).unwrap();
        one.program.add_pair(qpn, &granted, true);
        connect(&mut service, one.number, qpn, Qpn::new(5000));
        one.program.arm(queue, false).unwrap();
        run(&mut service, &mut now);
        let flags = Flags { signaled: true, ..Flags::default() };
        let request = Request { id: 1, operation: Operation::Send, data: Data::Pieces(&[]), flags, target: None };
        one.program.post_send(qpn, &request).unwrap();
        queues.push((queue, qpn));
    }
    service.turn(Moment::new(now), &mut NoWire);
    for (_, qpn) in &queues {
        service.modify_pair(one.number, *qpn, &Attributes::state(State::Error)).unwrap();
    }
    let mut told = std::collections::HashSet::new();
    for _ in 0..10 {
        run(&mut service, &mut now);
        while let Some(event) = one.program.take_event().unwrap() {
            if let Event::Completion(queue) = event {
                told.insert(queue);
            }
        }
    }
    assert!(queues.iter().all(|(queue, _)| told.contains(queue)), "{} of 400", told.len());
    assert_eq!(service.counters().events_lost, 0);
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
fn nobody_takes_all_regions() {
    let all = Amounts { regions: 64, ..Quota::default().all };
    let quota = Quota { all, ..Quota::default() };
    let mut service = Service::new(Options::default(), MAC, &[GID], quota);
    let mut fill = || {
        let one = end(&mut service);
        let more = Region::allocate(4096, Pages::Ordinary).unwrap();
        // One it has already.
        1 + (0..100).take_while(|_| service.register(one.number, one.domain, &more, None, ALL).is_ok()).count()
    };
    assert_eq!([fill(), fill(), fill(), fill()], [32, 16, 8, 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A program that arms, looks until nothing is there, and sleeps until an event comes, in any turns with a card: it sees all.
    #[test]
    fn nobody_sleeps_over_a_completion(steps in prop::collection::vec(0u8..5, 1..400)) {
        enum Does { Arm, Look, Sleep }
        let (mut service, [mut a, b]) = two();
        let (own, key) = (a.piece(0, 8), b.key);
        let (mut does, mut posted, mut seen, mut now) = (Does::Arm, 0, 0, 0);
        let mut step = |a: &mut End, seen: &mut usize| {
            does = match does {
                Does::Arm => {
                    a.program.arm(a.queue, false).unwrap();
                    Does::Look
                }
                Does::Look => match a.poll().len() {
                    0 => Does::Sleep,
                    count => {
                        *seen += count;
                        Does::Arm
                    }
                },
                Does::Sleep if a.program.take_event().unwrap().is_some() => Does::Arm,
                Does::Sleep => Does::Sleep,
            };
        };
        for one in steps {
            match one {
                0 if posted - seen < DEPTH as usize => {
                    a.post(posted as u64, write_to(key, 0), &[own]).unwrap();
                    posted += 1;
                }
                1 => {
                    now += 1;
                    service.turn(Moment::new(now), &mut NoWire);
                }
                _ => step(&mut a, &mut seen),
            }
        }
        for _ in 0..200 {
            run(&mut service, &mut now);
            step(&mut a, &mut seen);
        }
        prop_assert_eq!(seen, posted);
    }

    /// Whatever a program writes into its rings, it harms only itself.
    #[test]
    fn nonsense_harms_nobody_else(words in prop::collection::vec((0usize..2000, any::<u64>(), any::<bool>()), 1..300), taken: u64) {
        let (mut service, [mut a, b]) = two();
        let stranger = end(&mut service);
        for (at, word, small) in words {
            let (line, place) = (at / 8, at % 8);
            // Stamps that are taken, and heads with kinds that there are.
            let word = match place {
                0 => (line as u64 + 1) | (word % 30) << 32,
                1 if small => (word % 6) | (word & 0x0007_071f_0000) | u64::from(stranger.qpn.value()) << 32,
                _ if small => word % 5000,
                _ => word,
            };
            stranger.program_window(&service).slots64(256, 8192).unwrap().store((line * 8 + place) as u32, word);
        }
        stranger.program_window(&service).word64(0).unwrap().store(taken, millrace_dma::Ordering::Relaxed);
        let (own, key) = (a.piece(0, 64), b.key);
        a.fill(0, &pattern(64, 9));
        a.post(1, write_to(key, 128), &[own]).unwrap();
        for now in 1..200 {
            service.turn(Moment::new(now * 1000), &mut NoWire);
        }
        prop_assert_eq!(a.poll()[0].status, Status::Success);
        prop_assert_eq!(b.bytes(128, 64), pattern(64, 9));
        prop_assert!(b.bytes(0, 128).iter().all(|byte| *byte == 0));
        let out = service.take_put_out();
        prop_assert_eq!(out.is_some(), service.programs() == 2);
    }
}

impl End {
    fn program_window(&self, service: &Service) -> millrace_dma::Window {
        service.memory_of(self.number).unwrap().window().clone()
    }
}

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
            .args(["--exact", "as_a_program_of_its_own"])
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

#[test]
fn datagrams_go_to_who_has_the_queue_key_and_say_whose_they_are() {
    let (mut service, [mut a, mut b]) = two();
    let (from, to) = (datagrams(&mut service, &mut a), datagrams(&mut service, &mut b));
    let mut now = 0;
    a.fill(0, &pattern(1000, 9));
    b.program.post_receive(to, 50, &[b.piece(0, 2048)]).unwrap();
    let piece = [a.piece(0, 1000)];
    let flags = Flags { signaled: true, ..Flags::default() };
    let mut post = |id, path: Path, qkey, data| {
        let target = Target { path, qpn: to, qkey };
        let request = Request { id, operation: Operation::SendImmediate([9; 4]), data, flags, target: Some(&target) };
        a.program.post_send(from, &request).unwrap();
    };
    post(1, PATH, QKEY + 1, Data::Pieces(&piece));
    post(2, PATH, QKEY, Data::Pieces(&piece));
    run(&mut service, &mut now);
    let came = b.poll();
    assert_eq!(came.len(), 1, "one has the wrong queue key");
    let line = came[0];
    assert_eq!((line.id, line.status, line.len, line.source), (50, Status::Success, 1040, from));
    assert_eq!((line.has_grh, line.service_level), (true, 10));
    assert_eq!(b.bytes(40, 1000), pattern(1000, 9));
    // 20 zeros, and the header of IPv4 that a frame would have: of so many bytes, with its sum, from and to this address.
    let route = b.bytes(0, 40);
    assert_eq!((route[20], u16::from_be_bytes([route[22], route[23]])), (0x45, 20 + 8 + 12 + 8 + 4 + 1000 + 4));
    assert_eq!((&route[32..36], &route[36..40]), (&GID.0[12..], &GID.0[12..]));
    let words = route[20..].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    assert_eq!(words.sum::<u32>() % 0xffff, 0);
    // Nobody speaks for another address, and a queue pair of connections takes no such request for one.
    let strange = Gid([1; 16]);
    post(3, Path { source: strange, ..PATH }, QKEY, Data::Inline(&[b"x"]));
    run(&mut service, &mut now);
    let ended: Vec<_> = a.poll().iter().map(|line| (line.id, line.status)).collect();
    assert_eq!(ended, [(1, Status::Success), (2, Status::Success), (3, Status::LocalOperation)]);
}

#[test]
fn a_completion_queue_gets_another_depth_and_loses_nothing() {
    let (mut service, [mut a, b]) = two();
    let mut now = 0;
    let mut next = 0;
    let mut write = |a: &mut End, service: &mut Service, now: &mut u64, count| {
        for _ in 0..count {
            let piece = [a.piece(0, 8)];
            a.post(next, write_to(b.key, 0), &piece).unwrap();
            next += 1;
        }
        run(service, now);
    };
    write(&mut a, &mut service, &mut now, 5);
    for depth in [1024, 32, 16] {
        let (ring, _) = service.resize_queue(a.number, a.queue, depth, |ring| Ok(again(ring))).unwrap();
        a.program.resize_queue(a.queue, depth, ring.window()).unwrap();
        write(&mut a, &mut service, &mut now, 5);
    }
    assert!(a.program.has_completions(a.queue));
    let ids: Vec<_> = a.poll().iter().map(|line| line.id).collect();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
    assert!(!a.program.has_completions(a.queue) && a.poll().is_empty());
    assert!(service.resize_queue(b.number, a.queue, 64, |_| Ok(())).is_err(), "it is another program's");
    assert!(service.resize_queue(a.number, a.queue, 0, |_| Ok(())).is_err());
    assert!(service.resize_queue(a.number, a.queue, u32::MAX, |_| Ok(())).is_err());
}

#[test]
fn windows_and_changed_regions_open_what_they_say_and_to_whom() {
    let (mut service, [mut a, mut b]) = two();
    let mut now = 0;
    let own = [a.piece(0, 8)];
    a.fill(0, &[7; 8]);
    let write = |service: &mut Service, a: &mut End, now: &mut u64, key, address| {
        a.post(1, write_to(key, address), &own).unwrap();
        run(service, now);
        a.poll()[0].status
    };
    // A window of 8 bytes at 4096, of the kind whose key the card chooses.
    assert!(service.create_window(a.number, b.domain, WindowType::One).is_err(), "the domain of another program");
    let window = service.create_window(b.number, b.domain, WindowType::One).unwrap();
    let rkey = service.next_window_key(b.number, window).unwrap();
    assert!(service.next_window_key(a.number, window).is_err());
    // The region has to allow it: one with that right, besides the others of this test.
    let access = ALL.with(Access::WINDOW_BIND);
    let made = service.reregister(b.number, b.key, None, None, Some(access)).unwrap().0;
    assert_ne!(made.lkey, b.key, "the old key opens nothing");
    assert!(service.reregister(a.number, made.lkey, None, None, Some(access)).is_err(), "it is another program's");
    let old = b.key;
    b.key = made.lkey;
    let binding = Binding { rkey, region: b.key, address: 4096, len: 8, access: Access::REMOTE_WRITE };
    b.post(5, Operation::Bind(binding), &[]).unwrap();
    run(&mut service, &mut now);
    assert_eq!(b.poll()[0].status, Status::Success);
    assert_eq!(write(&mut service, &mut a, &mut now, rkey, 4096), Status::Success);
    assert_eq!(b.bytes(4096, 8), [7; 8]);
    // Another one, of other bytes in another file.
    let more = Region::allocate(8192, Pages::Ordinary).unwrap();
    service.destroy_window(b.number, rkey).unwrap();
    let moved = Some(((again(&more).window().clone(), 1), 1 << 30));
    let made = service.reregister(b.number, b.key, moved, None, None).unwrap().0;
    assert_eq!(write(&mut service, &mut a, &mut now, made.rkey, (1 << 30) + 8), Status::Success);
    let mut found = [0; 8];
    more.window().span(8, 8).unwrap().read_into(&mut found);
    assert_eq!(found, [7; 8]);
    assert_eq!(write(&mut service, &mut a, &mut now, old, 0), Status::RemoteAccess, "a key from before");
}

/// What happens to the other end after some short WRITEs, and how the next one ends then.
type Change = (&'static str, fn(&mut Service, &[End; 2]), Status);

fn reconnect(service: &mut Service, end: &End, remote: Qpn) {
    service.modify_pair(end.number, end.qpn, &Attributes::state(State::Reset)).unwrap();
    connect(service, end.number, end.qpn, remote);
}

#[test]
fn short_writes_go_where_those_before_went_as_long_as_they_may() {
    let changes: [Change; 8] = [
        ("nothing", |_, _| (), Status::Success),
        (
            "its region is given back",
            |service, [_, b]| drop(service.deregister(b.number, b.key).unwrap()),
            Status::RemoteAccess,
        ),
        (
            "its queue pair fails",
            |service, [_, b]| _ = service.modify_pair(b.number, b.qpn, &Attributes::state(State::Error)).unwrap(),
            Status::RetryExceeded,
        ),
        (
            "its queue pair is destroyed",
            |service, [_, b]| drop(service.destroy_pair(b.number, b.qpn).unwrap()),
            Status::RetryExceeded,
        ),
        ("it ends", |service, [_, b]| drop(service.leave(Moment::new(1), b.number)), Status::RetryExceeded),
        ("it is connected with another", |service, [_, b]| reconnect(service, b, b.qpn), Status::RetryExceeded),
        ("it allows no WRITEs", |service, [_, b]| forbid_writes(service, b), Status::RemoteInvalid),
        (
            "the sender's queue pair fails",
            |service, [a, _]| _ = service.modify_pair(a.number, a.qpn, &Attributes::state(State::Error)).unwrap(),
            Status::Flushed,
        ),
    ];
    for (what, change, expected) in changes {
        let (mut service, mut ends) = two();
        let (mut now, key) = (0, ends[1].key);
        for number in 1..=4_u64 {
            let [a, b] = &mut ends;
            let bytes = number.to_ne_bytes();
            assert_eq!(a.program.write_short(a.qpn, number, (8 * number, key), &bytes, number == 4), Some(false));
            run(&mut service, &mut now);
            assert_eq!(b.bytes(8 * number as usize, 8), bytes, "{what}");
        }
        assert_eq!(ends[0].poll().iter().map(|line| line.id).collect::<Vec<_>>(), [4], "one was signaled");
        assert_eq!(service.counters().again, 2, "where they go is kept from the second one on");
        change(&mut service, &ends);
        let [a, b] = &mut ends;
        a.program.write_short(a.qpn, 5, (64, key), &[5; 16], true).unwrap();
        let mut ended = Vec::new();
        for _ in 0..20_000 {
            now += 1_000_000;
            service.turn(Moment::new(now), &mut NoWire);
            ended.extend(a.poll());
        }
        assert_eq!(ended.iter().map(|line| (line.id, line.status)).collect::<Vec<_>>(), [(5, expected)], "{what}");
        let came = if expected == Status::Success { [5; 16] } else { [0; 16] };
        assert_eq!(b.bytes(64, 16), came, "{what}");
    }
}

fn forbid_writes(service: &mut Service, b: &End) {
    let access = Some(Access::LOCAL_WRITE.with(Access::REMOTE_READ));
    service.modify_pair(b.number, b.qpn, &Attributes { access, ..Attributes::default() }).unwrap();
}

/// A number is nobody's while a queue pair is connected with who had it: that one would take the new owner for him.
#[test]
fn the_number_of_a_connections_end_is_not_given_to_another() {
    let options = Options { seed: 1, first_qpn: 16, qpns: 8, ..Options::default() };
    let mut service = Service::new(options, MAC, &[GID], Quota::default());
    let [a, b] = [end(&mut service), end(&mut service)];
    join(&mut service, &a, &b);
    service.destroy_pair(b.number, b.qpn).unwrap();
    let stranger = end(&mut service);
    let wanted = init(stranger.domain, stranger.queue, Capabilities { send_requests: 1, ..Capabilities::default() });
    let mut make = || service.create_pair(stranger.number, &wanted).map(|(qpn, _)| qpn);
    let mut given = vec![stranger.qpn];
    while let Ok(qpn) = make() {
        given.push(qpn);
    }
    assert_eq!(given.len(), 6, "all numbers but two: {given:?}");
    assert!(!given.contains(&b.qpn));
    service.modify_pair(a.number, a.qpn, &Attributes::state(State::Reset)).unwrap();
    service.destroy_pair(a.number, a.qpn).unwrap();
    let mut last: Vec<Qpn> = (0..2).map(|_| service.create_pair(stranger.number, &wanted).unwrap().0).collect();
    last.sort_unstable_by_key(|qpn| qpn.value());
    assert_eq!(last, [a.qpn, b.qpn], "they are free when the connection has ended");
}

#[test]
fn short_writes_keep_their_order() {
    let (mut service, [mut a, b]) = two();
    let mut now = 0;
    for number in 0..3_u8 {
        a.program.write_short(a.qpn, number.into(), (0, b.key), &[number; 8], false).unwrap();
        run(&mut service, &mut now);
    }
    a.fill(0, &pattern(2 << 20, 1));
    let own = a.piece(0, 2 << 20);
    // It is longer than a turn, and goes as packets; what is posted behind it comes behind it.
    a.post(10, write_to(b.key, 0), &[own]).unwrap();
    a.program.write_short(a.qpn, 11, (8, b.key), &[7; 16], true).unwrap();
    let (bad, len) = ((LEN - 8) as u64, 16);
    a.program.write_short(a.qpn, 12, (bad, b.key), &[9; 16][..len], true).unwrap();
    a.program.write_short(a.qpn, 13, (8, b.key), &[8; 16], true).unwrap();
    run(&mut service, &mut now);
    let ended: Vec<_> = a.poll().iter().map(|line| (line.id, line.status)).collect();
    let expected = [Status::Success, Status::Success, Status::RemoteAccess, Status::Flushed];
    assert_eq!(ended, (10..).zip(expected).collect::<Vec<_>>());
    assert_eq!(b.bytes(8, 16), [7; 16]);
    assert_eq!(b.bytes(24, 64), pattern(2 << 20, 1)[24..88]);
    assert_eq!(b.bytes(LEN - 8, 8), [0; 8]);
    // No room, too long, or nothing: it is to be posted as all others.
    assert_eq!(a.program.write_short(a.qpn, 14, (8, b.key), &[1; 17], true), None);
    assert_eq!(a.program.write_short(a.qpn, 14, (8, b.key), &[], true), None);
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
fn completions_that_have_no_room_are_told_when_there_is() {
    let (mut service, [mut a, b]) = two();
    let mut now = 0;
    let (ring, _) = service.resize_queue(a.number, a.queue, 16, |ring| Ok(again(ring))).unwrap();
    a.program.resize_queue(a.queue, 16, ring.window()).unwrap();
    for id in 0..32 {
        let piece = [a.piece(0, 8)];
        a.post(id, write_to(b.key, 0), &piece).unwrap();
        run(&mut service, &mut now);
    }
    // The card would sleep; but not for ever.
    let turn = service.turn(Moment::new(now), &mut NoWire);
    assert!(!turn.moved && turn.next.is_some(), "{turn:?} {}", a.poll().len());
    assert!(!service.wants_turn(), "a ring without room is not looked at all the time");
    assert_eq!(a.poll().len(), 16);
    now = turn.next.unwrap().nanoseconds();
    service.turn(Moment::new(now), &mut NoWire);
    assert_eq!(a.poll().iter().map(|line| line.id).collect::<Vec<_>>(), (16..32).collect::<Vec<_>>());
    assert_eq!(service.turn(Moment::new(now), &mut NoWire).next, None);
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
