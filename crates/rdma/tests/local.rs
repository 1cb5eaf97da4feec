//! Two ends that reach each other's memory without packets, beside the same two that do not: whatever a program asks for, what
//! it is told, and which bytes are where, is the same.

use millrace_dma::{OtherProcess, Pages, Protection, Region, Seat, Window};
use millrace_rdma::engine::{Engine, Event, Options};
use millrace_rdma::local::{CHANNEL_LEN, Connected, Directory, Far, Outcome, Peer, Peers, Shared, Side};
use millrace_rdma::memory::{
    Asker, Binding, Kept, KeptTo, Limits, Memory, ProtectionDomain, Refused, Regions, Registered, Source, Way,
};
use millrace_rdma::number::{Gid, Key, Moment, Psn, Qpn};
use millrace_rdma::transport::{Attributes, Capabilities, Init, Origin, Out, Sent, State};
use millrace_rdma::wire::{Format, Headers, Packet, Path, Service};
use millrace_rdma::work::{Access, Completion, Data, Flags, Operation, Piece, Request, Status};
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const LEN: usize = 64 << 10;

/// Regions, and the other end's memory.
struct Ours {
    regions: Regions,
    peers: Peers,
}

impl Ours {
    /// Engines number domains from 0 on, regions from 1 on.
    fn asker(asker: Asker) -> Asker {
        Asker { domain: ProtectionDomain(asker.domain.0 + 1), ..asker }
    }
}

macro_rules! pass_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&mut self, asker: Asker, $($arg: $type),*) -> $result {
            self.regions.$name(Self::asker(asker), $($arg),*)
        })*
    };
}

impl Memory for Ours {
    pass_on! {
        gather(lkey: Key, address: u64, to: &mut [u8]) -> Result<(), Refused>;
        scatter(lkey: Key, address: u64, from: &[u8]) -> Result<(), Refused>;
        allows(rkey: Key, address: u64, len: u64, wanted: Access) -> Result<(), Refused>;
        read(rkey: Key, address: u64, to: &mut [u8]) -> Result<(), Refused>;
        write(rkey: Key, address: u64, from: &[u8]) -> Result<(), Refused>;
        compare_swap(rkey: Key, address: u64, compare: u64, swap: u64) -> Result<u64, Refused>;
        fetch_add(rkey: Key, address: u64, add: u64) -> Result<u64, Refused>;
        invalidate(key: Key, remote: bool) -> Result<(), Refused>;
        bind(window: Binding) -> Result<(), Refused>;
    }

    fn reach(&mut self, far: &Far<'_>, operation: Operation, data: Data<'_>, len: u32) -> Outcome {
        let far = Far { asker: Self::asker(far.asker), ..*far };
        self.peers.reach(&mut self.regions, &far, operation, data, len)
    }

    fn keep(&mut self, far: &Far<'_>, rkey: Key, address: u64) -> Option<Kept> {
        Some(Kept {
            rkey,
            to: KeptTo::Peer(self.peers.keep(&Far { asker: Self::asker(far.asker), ..*far }, rkey, address)?),
        })
    }

    fn write_again(&mut self, kept: &Kept, address: u64, bytes: &[u8]) -> bool {
        matches!(&kept.to, KeptTo::Peer(kept) if self.peers.write_again(kept, address, bytes))
    }

    fn may_reach(&mut self, far: &Far<'_>, operation: Operation, len: u32) -> bool {
        self.peers.may_reach(&Far { asker: Self::asker(far.asker), ..*far }, operation, len)
    }

    fn show(&mut self, asker: Asker, connected: Option<&Connected<'_>>) {
        if let Some(directory) = self.regions.directory() {
            directory.show(Self::asker(asker), connected);
        }
    }
}

/// How the other end's memory is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Packets,
    SystemCalls,
    Mappings,
}

struct End {
    engine: Engine<Ours>,
    memory: Region,
    key: Registered,
    cq: u32,
    qpn: Qpn,
    links: Vec<OwnedFd>,
    seats: Vec<Seat>,
}

fn path(from: usize) -> Path {
    let gid = |last: usize| Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last as u8]);
    let mac = |last: usize| [2, 0, 0, 0, 0, last as u8];
    Path {
        format: Format::RoceV2,
        source_mac: mac(from),
        destination_mac: mac(1 - from),
        source: gid(from),
        destination: gid(1 - from),
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        source_port: 0xc000,
    }
}

fn everything() -> Access {
    [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC]
        .into_iter()
        .fold(Access::LOCAL_WRITE, Access::with)
}

fn end(by: By, first_qpn: u32) -> End {
    let mut regions = Regions::new(Limits { regions: 300, windows: 4, ..Limits::default() }).unwrap();
    if by != By::Packets {
        regions.show_in(Directory::new().unwrap());
    }
    let memory = Region::allocate(LEN, Pages::Ordinary).unwrap();
    let domain = regions.allocate_domain().unwrap();
    let source = Source::Window(memory.window().clone());
    // Programs know no addresses of the other end but those that they are told: here from 1 MiB on.
    let key = regions.register(domain, source, Some(1 << 20), everything()).unwrap();
    if by == By::Mappings {
        regions.share(key.lkey, Shared { file: 5, offset: 0, pages: false }).unwrap();
    }
    let options = Options { first_qpn, seed: 1, ..Options::default() };
    let mut engine = Engine::new(options, Ours { regions, peers: Peers::default() });
    let domain = engine.create_domain().unwrap();
    let cq = engine.create_cq(1024).unwrap();
    let capabilities =
        Capabilities { send_requests: 64, receive_requests: 64, send_pieces: 4, receive_pieces: 4, inline: 256 };
    let init = Init {
        service: Service::ReliableConnection,
        general: false,
        domain,
        send_queue: cq,
        receive_queue: cq,
        shared_receive_queue: None,
        capabilities,
        signal_all: false,
        context: 0,
    };
    let (qpn, _) = engine.create_qp(&init).unwrap();
    End { engine, memory, key, cq, qpn, links: Vec::new(), seats: Vec::new() }
}

fn make_ready(end: &mut End, from: usize, remote: Qpn) {
    let told =
        Attributes { pkey_index: Some(0), port: Some(1), access: Some(everything()), ..Attributes::state(State::Init) };
    end.engine.modify_qp(end.qpn, &told).unwrap();
    let told = Attributes {
        path: Some(path(from)),
        path_mtu: Some(1024),
        remote: Some(remote),
        receive_psn: Some(Psn::new(7)),
        max_dest_rd_atomic: Some(4),
        min_rnr_timer: Some(1),
        ..Attributes::state(State::ReadyToReceive)
    };
    end.engine.modify_qp(end.qpn, &told).unwrap();
    let told = Attributes {
        send_psn: Some(Psn::new(7)),
        timeout: Some(14),
        retry_count: Some(7),
        rnr_retry: Some(0),
        max_rd_atomic: Some(4),
        ..Attributes::state(State::ReadyToSend)
    };
    end.engine.modify_qp(end.qpn, &told).unwrap();
}

/// `one` reaches the memory of `other`.
fn join(one: &mut End, other: &mut End, number: usize, channel: &Window, side: Side, by: By) {
    let directory = other.engine.memory().regions.directory().unwrap();
    let fd = directory.fd().unwrap().try_clone_to_owned().unwrap();
    let word = Peer::word_of_other(channel, side.other()).unwrap();
    other.seats.push(directory.outside().seat(word).unwrap());
    let (link, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    // It is this very process, which keeps its end of the link.
    other.links.push(theirs);
    let process = OtherProcess::new(rustix::process::getpid(), Arc::new(link));
    let mut peer = Peer::new(fd, channel, side, process).unwrap();
    if by == By::Mappings {
        // A mapping of its own, as another process has.
        let fd = other.memory.fd().unwrap().try_clone_to_owned().unwrap();
        let mapped = Region::map(fd, LEN, Protection::ReadWrite, false).unwrap();
        peer.add_file(5, Some(mapped.window()));
    }
    one.engine.memory().peers.add(&[path(number).destination], peer).unwrap();
}

struct Both {
    ends: [End; 2],
    now: u64,
    /// While memory of one test is taken away, nobody else's in this process is reached.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Both {
    fn new(by: By) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let [mut one, mut other] = [end(by, 0x11), end(by, 0x2222)];
        if by != By::Packets {
            let channel = Region::allocate(CHANNEL_LEN, Pages::Ordinary).unwrap();
            join(&mut one, &mut other, 0, channel.window(), Side::Maker, by);
            join(&mut other, &mut one, 1, channel.window(), Side::Taker, by);
        }
        let (a, b) = (one.qpn, other.qpn);
        make_ready(&mut one, 0, b);
        make_ready(&mut other, 1, a);
        for (number, end) in [&one, &other].into_iter().enumerate() {
            let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7 + at / 256 + number * 91) as u8).collect();
            end.memory.window().span_mut(0, LEN).unwrap().write_from(&bytes);
        }
        Self { ends: [one, other], now: 0, _alone: alone }
    }

    /// Until nothing moves any more.
    fn run(&mut self) {
        loop {
            let mut moved = false;
            for from in 0..2 {
                let mut out = Frames(Vec::new());
                self.ends[from].engine.transmit(Moment::new(self.now), 64, &mut out);
                moved |= !out.0.is_empty();
                let origin = Origin { path: path(1 - from), grh: [0; 40], congested: false, service_level: 0 };
                for (headers, payload) in &out.0 {
                    let packet = Packet { headers: *headers, payload };
                    self.ends[1 - from].engine.receive(Moment::new(self.now), &packet, &origin);
                }
            }
            if !moved {
                return;
            }
            self.now += 1000;
        }
    }

    fn completions(&mut self, end: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        let mut some = [Completion::default(); 16];
        let End { engine, cq, .. } = &mut self.ends[end];
        loop {
            let count = engine.poll(*cq, &mut some).unwrap();
            all.extend_from_slice(&some[..count]);
            if count == 0 {
                return all;
            }
        }
    }

    fn bytes(&self, end: usize) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        self.ends[end].memory.window().span(0, LEN).unwrap().read_into(&mut bytes);
        bytes
    }
}

struct Frames(Vec<(Headers, Vec<u8>)>);

impl Out for Frames {
    fn packet<F>(&mut self, _: &Path, _: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        let mut payload = vec![0; len];
        if let Err(refused) = fill(&mut payload) {
            return Sent::Refused(refused);
        }
        self.0.push((*headers, payload));
        Sent::Taken
    }
}

/// A request of end 0, or something else that happens.
#[derive(Clone, Debug)]
struct Turn {
    kind: u8,
    /// Where there, and here.
    there: u16,
    here: u16,
    len: u16,
    flags: u8,
    /// What is wrong with it.
    wrong: u8,
    /// Packets move before the next one.
    runs: bool,
}

fn turn() -> impl Strategy<Value = Turn> {
    (0u8..10, 0u16..0xf000, 0u16..0x7000, 0u16..5000, 0u8..8, 0u8..60, any::<bool>())
        .prop_map(|(kind, there, here, len, flags, wrong, runs)| Turn { kind, there, here, len, flags, wrong, runs })
}

fn ask(both: &mut Both, number: usize, turn: &Turn) {
    let [one, other] = &mut both.ends;
    let key = if turn.wrong == 1 { Key::new(other.key.rkey.value() ^ 1) } else { other.key.rkey };
    let is_atomic = turn.kind == 6 || turn.kind == 7;
    let there = if is_atomic && turn.wrong != 2 { turn.there & !7 } else { turn.there };
    // Some pass the end.
    let address = (1 << 20) + if turn.wrong == 3 { LEN as u64 - 3 } else { there.into() };
    let operation = match turn.kind {
        0..=2 => Operation::Write { address, rkey: key, immediate: None },
        3 => Operation::Write { address, rkey: key, immediate: Some([1, 2, 3, turn.flags]) },
        4 | 5 => Operation::Read { address, rkey: key },
        6 => Operation::FetchAdd { address, rkey: key, add: number as u64 + 1 },
        7 => Operation::CompareSwap { address, rkey: key, compare: u64::from(turn.len) & 1, swap: 77 },
        _ => Operation::Send,
    };
    let lkey = if turn.wrong == 4 { Key::new(0) } else { one.key.lkey };
    // What was moved before a wrong piece is found depends on where packets begin.
    let len = if turn.wrong == 4 { turn.len % 900 } else { turn.len };
    let len = if is_atomic { 8 } else { u32::from(len) };
    let address = (1 << 20) + u64::from(turn.here);
    let pieces = match turn.flags & 3 {
        // Answers of atomic operations in several pieces too.
        1 => vec![
            Piece { address, len: len / 3, lkey: one.key.lkey },
            Piece { address: address + 6000, len: len - len / 3, lkey },
        ],
        _ => vec![Piece { address, len, lkey }],
    };
    let bytes = vec![number as u8; usize::from(turn.len) % 200];
    let parts = [&bytes[..bytes.len() / 2], &bytes[bytes.len() / 2..]];
    let is_inline = turn.flags & 3 == 2 && operation.sends();
    let data = if is_inline { Data::Inline(&parts) } else { Data::Pieces(&pieces) };
    // Without a fence it is open what a READ finds where a later WRITE goes (volume 1, 10.8.3.3).
    let flags = Flags { signaled: turn.flags & 4 == 0, fence: true, ..Flags::default() };
    let request = Request { id: number as u64, operation, data, flags, target: None };
    // A buffer for each that wants one, unless that is what is wrong.
    if operation.takes_buffer() && turn.wrong != 5 {
        let piece = Piece { address: (1 << 20) + 0x8000, len: 6000, lkey: other.key.lkey };
        let _ = other.engine.post_receive(other.qpn, 1000 + number as u64, &[piece]);
    }
    // As programs do: what can be done as the WRITE before it is.
    let is_done = match operation {
        Operation::Write { address, rkey, immediate: None } if is_inline => {
            one.engine.write_again(one.qpn, request.id, (address, rkey), &bytes, flags.signaled)
        }
        _ => false,
    };
    if !is_done {
        one.engine.post_send(one.qpn, &request).unwrap();
    }
    if turn.runs {
        both.run();
    }
}

/// Completions and bytes of both ends, how the queue pair at the other end fared, and requests without packets.
type Outcomes = ([Vec<Completion>; 2], [Vec<u8>; 2], Vec<Event>, u64);

fn outcome(by: By, turns: &[Turn]) -> Outcomes {
    let mut both = Both::new(by);
    let mut told = [Vec::new(), Vec::new()];
    for (number, turn) in turns.iter().enumerate() {
        ask(&mut both, number, turn);
        told.iter_mut().enumerate().for_each(|(end, told)| told.extend(both.completions(end)));
    }
    both.run();
    told.iter_mut().enumerate().for_each(|(end, told)| told.extend(both.completions(end)));
    let events = core::iter::from_fn(|| both.ends[1].engine.take_event()).collect();
    let bytes = [both.bytes(0), both.bytes(1)];
    let reached = both.ends[0].engine.counters().reached;
    (told, bytes, events, reached)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn what_comes_of_it_is_the_same(turns in prop::collection::vec(turn(), 1..40)) {
        let expected = outcome(By::Packets, &turns);
        prop_assert_eq!(expected.3, 0);
        for by in [By::SystemCalls, By::Mappings] {
            let found = outcome(by, &turns);
            prop_assert_eq!(&found.0, &expected.0, "{:?}: completions", by);
            prop_assert!(found.1 == expected.1, "{:?}: bytes", by);
            prop_assert_eq!(&found.2, &expected.2, "{:?}: events", by);
        }
    }
}

fn write(both: &mut Both, rkey: Key) -> Vec<Completion> {
    write_to(both, 1 << 20, rkey)
}

fn write_to(both: &mut Both, address: u64, rkey: Key) -> Vec<Completion> {
    let one = &mut both.ends[0];
    let operation = Operation::Write { address, rkey, immediate: None };
    let flags = Flags { signaled: true, ..Flags::default() };
    let data = Data::Inline(&[b"straight"]);
    one.engine.post_send(one.qpn, &Request { id: 3, operation, data, flags, target: None }).unwrap();
    both.completions(0)
}

#[test]
fn a_request_that_fits_has_ended_when_it_is_posted() {
    for by in [By::SystemCalls, By::Mappings] {
        let mut both = Both::new(by);
        let key = both.ends[1].key.rkey;
        let told = write(&mut both, key);
        assert_eq!((told.len(), told[0].status), (1, Status::Success), "{by:?}");
        assert_eq!(&both.bytes(1)[..8], b"straight");
        assert_eq!(both.ends[0].engine.counters().reached, 1);
        let counts = both.ends[0].engine.memory().peers.counts();
        assert_eq!((counts.mapped, counts.system), if by == By::Mappings { (1, 0) } else { (0, 1) });
    }
}

/// A WRITE as the one before it, if it can be done so.
fn write_again(both: &mut Both, address: u64, rkey: Key, bytes: &[u8]) -> bool {
    let one = &mut both.ends[0];
    one.engine.write_again(one.qpn, 4, (address, rkey), bytes, true)
}

/// Two ends, the first of which has found out where its WRITEs go.
fn kept() -> (Both, Key) {
    let mut both = Both::new(By::Mappings);
    let key = both.ends[1].key.rkey;
    assert!(!write_again(&mut both, 1 << 20, key, b"nowhere"), "nothing is known yet");
    (0..2).for_each(|_| assert_eq!(write(&mut both, key).len(), 1));
    assert!(write_again(&mut both, (1 << 20) + 100, key, b"again"));
    assert_eq!(both.completions(0).iter().map(|line| line.id).collect::<Vec<_>>(), [4]);
    assert_eq!(&both.bytes(1)[100..105], b"again");
    (both, key)
}

#[test]
fn a_write_goes_where_the_one_before_it_went() {
    let (mut both, key) = kept();
    let end = (1 << 20) + LEN as u64;
    assert!(write_again(&mut both, end - 5, key, b"again"), "the last bytes");
    let counters = (both.ends[0].engine.counters().reached, both.ends[0].engine.memory().peers.counts().mapped);
    assert_eq!(counters, (4, 4));
    let before = both.bytes(1);
    for (address, rkey, bytes) in [
        (end - 4, key, &b"again"[..]),
        (end, key, b"a"),
        ((1 << 20) - 1, key, b"a"),
        (u64::MAX, key, b"again"),
        (1 << 20, Key::new(key.value() ^ 1), b"again"),
        (1 << 20, key, b""),
        // More than this queue pair takes with a request.
        (1 << 20, key, &[0; 257]),
    ] {
        assert!(!write_again(&mut both, address, rkey, bytes), "{address:#x}");
    }
    assert!(both.bytes(1) == before);
}

#[test]
fn a_write_does_not_go_where_the_one_before_it_went_when_that_is_over() {
    type Change = fn(&mut Both);
    let changes: [(&str, Change); 7] = [
        ("the region is given back", |both| {
            let key = both.ends[1].key.lkey;
            both.ends[1].engine.memory().regions.deregister(key).unwrap();
        }),
        ("the region is not shared any more", |both| {
            let key = both.ends[1].key.lkey;
            both.ends[1].engine.memory().regions.share(key, Shared { file: 6, offset: 0, pages: false }).unwrap();
        }),
        ("the other queue pair fails", |both| {
            let qpn = both.ends[1].qpn;
            both.ends[1].engine.modify_qp(qpn, &Attributes::state(State::Error)).unwrap();
        }),
        ("this queue pair fails", |both| {
            let qpn = both.ends[0].qpn;
            both.ends[0].engine.modify_qp(qpn, &Attributes::state(State::Error)).unwrap();
        }),
        ("the other process is gone", |both| drop(both.ends[0].engine.memory().peers.remove(0))),
        ("it is lost", |both| both.ends[0].engine.lose(Moment::new(1), |_| true)),
        ("something waits before it", |both| {
            let End { engine, qpn, .. } = &mut both.ends[0];
            let data = Data::Inline(&[b"first"]);
            let first = Request { id: 1, operation: Operation::Send, data, flags: Flags::default(), target: None };
            engine.post_send(*qpn, &first).unwrap();
        }),
    ];
    for (what, change) in changes {
        let (mut both, key) = kept();
        change(&mut both);
        let before = both.bytes(1);
        assert!(!write_again(&mut both, 1 << 20, key, b"again"), "{what}");
        assert!(both.bytes(1) == before, "{what}");
    }
}

#[test]
fn a_region_that_was_given_back_is_not_reached() {
    let mut both = Both::new(By::Mappings);
    let key = both.ends[1].key;
    both.ends[1].engine.memory().regions.deregister(key.lkey).unwrap();
    assert!(write(&mut both, key.rkey).is_empty(), "it is asked for by a packet");
    both.run();
    assert_eq!(both.completions(0)[0].status, Status::RemoteAccess);
    assert_ne!(&both.bytes(1)[..8], b"straight");
}

#[test]
fn memory_that_the_program_gives_back_is_not_reached() {
    let mut both = Both::new(By::SystemCalls);
    // So much has a mapping of its own, which ends with it.
    let memory = vec![1_u8; 4 << 20];
    let (address, len) = (memory.as_ptr().expose_provenance() as u64, memory.len() as u64);
    let regions = &mut both.ends[1].engine.memory().regions;
    let source = Source::Own { address, len };
    let key = regions.register(ProtectionDomain(1), source, None, everything()).unwrap();
    if key.way != Way::Watched {
        println!("skipped: memory cannot be watched here");
        return;
    }
    assert_eq!(write_to(&mut both, address + 4096, key.rkey).len(), 1);
    assert_eq!(&memory[4096..4104], b"straight");
    drop(memory);
    // The target has not looked since: it is not asked, and still nobody comes in.
    assert!(write_to(&mut both, address + 4096, key.rkey).is_empty());
    assert_eq!(both.ends[0].engine.counters().reached, 1);
    both.run();
    assert_eq!(both.completions(0)[0].status, Status::RemoteAccess);
}

#[test]
fn a_queue_pair_that_has_failed_lets_nobody_in() {
    let mut both = Both::new(By::Mappings);
    let (key, qpn) = (both.ends[1].key.rkey, both.ends[1].qpn);
    both.ends[1].engine.modify_qp(qpn, &Attributes::state(State::Error)).unwrap();
    assert!(write(&mut both, key).is_empty());
    both.run();
    assert_ne!(&both.bytes(1)[..8], b"straight");
}

#[test]
fn who_is_lost_is_not_waited_for() {
    let mut both = Both::new(By::Mappings);
    let key = both.ends[1].key.rkey;
    let End { engine, qpn, .. } = &mut both.ends[0];
    let request = |id| Request {
        id,
        operation: Operation::Send,
        data: Data::Inline(&[b"to nobody"]),
        flags: Flags::default(),
        target: None,
    };
    engine.post_send(*qpn, &request(1)).unwrap();
    engine.post_send(*qpn, &request(2)).unwrap();
    engine.lose(Moment::new(1), |path| path.destination == self::path(0).destination);
    let told: Vec<_> = both.completions(0).iter().map(|line| (line.id, line.status)).collect();
    assert_eq!(told, [(1, Status::RetryExceeded), (2, Status::Flushed)]);
    drop(both);
    // One that waits for nothing learns it with its next request.
    let mut both = Both::new(By::Mappings);
    both.ends[0].engine.lose(Moment::new(1), |_| true);
    assert!(write(&mut both, key).is_empty());
    both.run();
    assert_eq!(both.completions(0)[0].status, Status::RetryExceeded);
}
