//! What one thing must not do to another: reading to sending, one number to the next round of it, one queue to the next.

use crate::common::link::{End, Frame, PATH};
use crate::common::*;
use millrace_rdma::engine::{Event, Options};
use millrace_rdma::memory::Refused;
use millrace_rdma::number::{Key, Moment, Psn, Qpn};
use millrace_rdma::transport::*;
use millrace_rdma::wire::*;
use millrace_rdma::work::*;

/// The key of the first region of a test's memory.
const KEY: Key = Key::new(0x15a);
const ALL: Access = Access(31);
const MIB: u32 = 1 << 20;

fn post(end: &mut End, qpn: Qpn, operation: Operation, len: u32) {
    let pieces = [Piece { address: 0, len, lkey: KEY }];
    let flags = Flags { signaled: true, ..Flags::default() };
    let request = Request { id: 0, operation, data: Data::Pieces(&pieces), flags, target: None };
    end.engine.post_send(qpn, &request).unwrap();
}

/// A packet as the other end sends it.
fn packet(qpn: Qpn, opcode: Opcode, psn: u32) -> Headers {
    Headers::new(Service::ReliableConnection, opcode, qpn, Psn::new(psn))
}

fn come(end: &mut End, now: u64, headers: Headers) {
    end.give(Moment::new(now), &Frame { path: PATH[0], headers, payload: vec![], congested: false });
}

fn with_regions(options: Options, wish: &Wish, len: u32) -> ([End; 2], [Pair; 2]) {
    let (mut ends, pairs) = connected([options; 2], wish);
    for (end, pair) in ends.iter_mut().zip(&pairs) {
        end.engine.memory().register(pair.domain, 0, vec![0; len as usize], ALL);
    }
    (ends, pairs)
}

#[test]
fn who_is_read_all_the_time_sends_too() {
    let wish = Wish { rd_atomic: 4, ..Wish::default() };
    let (mut ends, pairs) = with_regions(Options::default(), &wish, MIB);
    let read = Operation::Read { address: 0, rkey: KEY };
    (0..4).for_each(|_| post(&mut ends[0], pairs[0].qpn, read, MIB));
    for frame in ends[0].take(Moment::new(1), 16) {
        ends[1].give(Moment::new(1), &frame);
    }
    post(&mut ends[1], pairs[1].qpn, Operation::Send, 8);
    let frames = ends[1].take(Moment::new(2), 16);
    assert!(frames.iter().any(|frame| matches!(frame.headers.opcode, Opcode::Send { .. })));
    assert!(frames.iter().any(|frame| matches!(frame.headers.opcode, Opcode::ReadResponse(_))));
}

#[test]
fn what_is_read_is_paced_as_what_is_written() {
    let options = Options { rate_control: true, ..Options::default() };
    let (mut ends, pairs) = with_regions(options, &Wish::default(), MIB);
    for _ in 0..1000 {
        come(&mut ends[1], 1, packet(pairs[1].qpn, Opcode::CongestionNotification, 0));
    }
    let mut headers = packet(pairs[1].qpn, Opcode::ReadRequest, 0);
    headers.reth = Some(Reth { address: 0, rkey: KEY, len: MIB });
    come(&mut ends[1], 2, headers);
    let (mut now, mut count) = (3, 0);
    for round in 0.. {
        let sent = ends[1].take(Moment::new(now), 10_000).len();
        assert!(sent < 50, "{sent} packets in one moment, round {round}");
        count += sent;
        // The rest goes when its time comes.
        let Some(next) = ends[1].engine.next_deadline().filter(|_| round < 100) else { break };
        now = next.nanoseconds().max(now + 1);
    }
    assert!(count > 50, "{count}");
}

/// Counts packets, and keeps the last.
#[derive(Default)]
struct Last(Option<Headers>);

impl Out for Last {
    fn packet<F>(&mut self, _: &Path, _: Qpn, headers: &Headers, _: usize, _: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        self.0 = Some(*headers);
        Sent::Taken
    }
}

#[test]
fn an_atomic_that_comes_again_after_all_numbers_is_answered_with_its_own() {
    let wish = Wish { mtu: 256, rd_atomic: 8, ..Wish::default() };
    let (mut ends, pairs) = with_regions(Options::default(), &wish, 1 << 30);
    let (end, qpn, mut out) = (&mut ends[1], pairs[1].qpn, Last::default());
    let mut ask = |end: &mut End, headers| {
        come(end, 1, headers);
        while end.engine.transmit(Moment::new(1), 1000, &mut out) > 0 {}
        out.0.and_then(|headers| headers.original)
    };
    let mut add = packet(qpn, Opcode::FetchAdd, 0);
    add.atomic = Some(AtomicEth { address: 0, rkey: KEY, swap_add: 1, compare: 0 });
    assert_eq!(ask(end, add), Some(0));
    // Reading uses up the rest of the numbers.
    let mut psn = 1;
    for len in [1 << 30, 1 << 30, 1 << 30, (1 << 30) - 256] {
        let mut read = packet(qpn, Opcode::ReadRequest, psn);
        read.reth = Some(Reth { address: 0, rkey: KEY, len });
        ask(end, read);
        psn = (psn + len / 256) & 0xff_ffff;
    }
    assert_eq!(psn, 0);
    assert_eq!(ask(end, add), Some(1));
    assert_eq!(ask(end, add), Some(1), "the same again");
}

#[test]
fn every_completion_queue_that_is_overrun_says_so() {
    let mut end = End::new(engine(Options::default()));
    let domain = end.engine.create_domain().unwrap();
    let [one, other] = [1, 1].map(|depth| end.engine.create_cq(depth).unwrap());
    let wish = Wish::default();
    let mut wanted = init(&wish, domain, one);
    wanted.receive_queue = other;
    let (qpn, _) = end.engine.create_qp(&wanted).unwrap();
    make_ready(&mut end.engine, qpn, &wish, PATH[0], Qpn::new(99));
    for id in 0..4 {
        post(&mut end, qpn, Operation::Send, 0);
        end.engine.post_receive(qpn, id, &[]).unwrap();
    }
    end.engine.modify_qp(qpn, &Attributes::state(State::Error)).unwrap();
    let events: Vec<Event> = core::iter::from_fn(|| end.engine.take_event()).collect();
    for queue in [one, other] {
        assert!(events.contains(&Event::CompletionQueueError(queue)), "{events:?}");
    }
}

#[test]
fn what_has_its_numbers_is_sent_before_the_queue_is_drained() {
    let (mut ends, pairs) = with_regions(Options::default(), &Wish::default(), 4096);
    let end = &mut ends[0];
    post(end, pairs[0].qpn, Operation::Send, 8);
    end.outbox.room = 0;
    end.engine.transmit(Moment::new(1), 8, &mut end.outbox);
    let drain = Attributes { notify_drained: Some(true), ..Attributes::state(State::Drained) };
    end.engine.modify_qp(pairs[0].qpn, &drain).unwrap();
    assert_eq!(end.engine.take_event(), None);
    assert_eq!(end.take(Moment::new(2), 8).len(), 1);
}

#[test]
fn datagrams_without_a_send_queue() {
    let wish = Wish { service: Service::UnreliableDatagram, requests: 0, ..Wish::default() };
    let (mut ends, _) = connected([Options::default(); 2], &wish);
    assert_eq!(ends[0].take(Moment::new(1), 8).len(), 0);
}

#[test]
fn what_does_nothing_is_counted() {
    let (mut ends, pairs) = with_regions(Options::default(), &Wish::default(), 4096);
    let read = Operation::Read { address: 0, rkey: KEY };
    (0..2).for_each(|_| post(&mut ends[0], pairs[0].qpn, read, 100));
    for frame in ends[0].take(Moment::new(1), 8) {
        ends[1].give(Moment::new(1), &frame);
    }
    let answers = ends[1].take(Moment::new(2), 8);
    ends[0].give(Moment::new(3), &answers[1]);
    assert_eq!(ends[0].engine.counters().early_answer, 1);
    let mut write = packet(pairs[1].qpn, Opcode::Write { place: Place::Only, immediate: false }, 2);
    write.reth = Some(Reth { address: 0, rkey: Key::new(0xdead), len: 4 });
    ends[1].give(Moment::new(4), &Frame { path: PATH[0], headers: write, payload: vec![0; 4], congested: false });
    assert_eq!(ends[1].engine.counters().remote_access_sent, 1);
}

#[test]
fn a_last_acknowledgement_that_is_lost_is_said_again_before_the_end() {
    let (mut ends, pairs) = with_regions(Options::default(), &Wish::default(), 64);
    let write = Operation::Write { address: 0, rkey: KEY, immediate: None };
    assert!(!ends[1].engine.acknowledge_again(pairs[1].qpn), "nothing was taken");
    post(&mut ends[0], pairs[0].qpn, write, 64);
    for frame in ends[0].take(Moment::new(1), 8) {
        ends[1].give(Moment::new(1), &frame);
    }
    let lost = ends[1].take(Moment::new(2), 8);
    assert!(!lost.is_empty() && ends[1].take(Moment::new(2), 8).is_empty());

    assert!(ends[1].engine.acknowledge_again(pairs[1].qpn));
    let again = ends[1].take(Moment::new(3), 8);
    ends[1].engine.destroy_qp(pairs[1].qpn).unwrap();
    again.iter().for_each(|frame| ends[0].give(Moment::new(4), frame));
    let mut lines = [Completion::default(); 8];
    assert_eq!(ends[0].engine.poll(pairs[0].cq, &mut lines), Ok(1));
    assert_eq!(lines[0].status, Status::Success);
}
