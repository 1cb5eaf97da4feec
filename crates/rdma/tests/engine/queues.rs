//! Completion queues and shared receive queues.

use crate::common::link::{End, Faults, Link, PATH};
use crate::common::{Wish, connected, engine, init, make_ready};
use millrace_rdma::engine::{Error, Event, Options};
use millrace_rdma::transport::{Attributes, State};
use millrace_rdma::work::{Access, Completion, Data, Flags, Operation, Piece, Request, Status};

fn send(id: u64, solicited: bool) -> Request<'static> {
    let flags = Flags { signaled: true, solicited, fence: false };
    Request { id, operation: Operation::Send, data: Data::Inline(&[b"hello"]), flags, target: None }
}

#[test]
fn armed_queues_wake_once() {
    let (ends, pairs) = connected([Options::default(); 2], &Wish::default());
    let mut link = Link::new(ends, Faults::default(), 1);
    let engine = &mut link.ends[1].engine;
    let lkey = engine.memory().register(pairs[1].domain, 0, vec![0; 100], Access::LOCAL_WRITE);
    for id in 0..10 {
        engine.post_receive(pairs[1].qpn, id, &[Piece { address: 0, len: 100, lkey }]).unwrap();
    }
    let mut lines = [Completion::default(); 16];
    let turn = |link: &mut Link, solicited| {
        link.ends[0].engine.post_send(pairs[0].qpn, &send(1, solicited)).unwrap();
        link.run(1_000_000);
        link.ends[1].engine.take_event()
    };
    let woken = Some(Event::Completion(pairs[1].cq));
    assert_eq!(turn(&mut link, true), None);
    link.ends[1].engine.arm(pairs[1].cq, true).unwrap();
    assert_eq!(turn(&mut link, false), None);
    assert_eq!(turn(&mut link, true), woken);
    assert_eq!(turn(&mut link, true), None);
    link.ends[1].engine.arm(pairs[1].cq, false).unwrap();
    link.ends[1].engine.arm(pairs[1].cq, true).unwrap();
    assert_eq!(turn(&mut link, false), woken, "who asked for any gets any");
    assert_eq!(link.ends[1].engine.poll(pairs[1].cq, &mut lines), Ok(5));
    assert_eq!(lines[..5].iter().map(|line| line.solicited).collect::<Vec<_>>(), [true, false, true, true, false]);
    // Failures wake who waits for solicited ones.
    link.ends[1].engine.arm(pairs[1].cq, true).unwrap();
    link.ends[1].engine.modify_qp(pairs[1].qpn, &Attributes::state(State::Error)).unwrap();
    assert_eq!(link.ends[1].engine.take_event(), woken);
}

#[test]
fn an_overrun_queue_fails_its_queue_pairs() {
    let (ends, pairs) = connected([Options::default(); 2], &Wish { cq_depth: 3, ..Wish::default() });
    let mut link = Link::new(ends, Faults::default(), 1);
    let rkey = link.ends[1].engine.memory().register(pairs[1].domain, 0, vec![0; 100], Access(31));
    for id in 0..10 {
        let operation = Operation::Write { address: 0, rkey, immediate: None };
        link.ends[0].engine.post_send(pairs[0].qpn, &Request { operation, ..send(id, false) }).unwrap();
    }
    link.run(1_000_000);
    let engine = &mut link.ends[0].engine;
    assert_eq!(engine.take_event(), Some(Event::CompletionQueueError(pairs[0].cq)));
    assert_eq!(engine.take_event(), None);
    assert_eq!(engine.query_qp(pairs[0].qpn).unwrap().attributes.state, Some(State::Error));
    let mut lines = [Completion::default(); 16];
    assert_eq!(engine.poll(pairs[0].cq, &mut lines), Ok(3));
    assert_eq!(engine.counters().completions_lost, 7);
}

#[test]
fn queues_can_be_given_another_depth() {
    let mut engine = engine(Options::default());
    assert_eq!(engine.create_cq(0), Err(Error::Range("depth")));
    let cq = engine.create_cq(10).unwrap();
    assert_eq!(engine.resize_cq(cq, 0), Err(Error::Range("depth")));
    assert_eq!(engine.resize_cq(cq, 1 << 20), Ok(()));
    assert_eq!(engine.cq_depth(cq), Ok(1 << 20));
    assert_eq!(engine.resize_cq(cq, (1 << 20) + 1), Err(Error::Range("depth")));
    assert_eq!(engine.resize_cq(99, 5), Err(Error::Missing("completion queue")));
}

#[test]
fn a_shared_receive_queue_serves_all() {
    let wish = Wish { rnr_timer: 14, ..Wish::default() };
    let mut ends = [0, 1].map(|_| End::new(engine(Options::default())));
    let mut domains = [Default::default(); 2];
    let mut queues = [0; 2];
    for at in 0..2 {
        domains[at] = ends[at].engine.create_domain().unwrap();
        queues[at] = ends[at].engine.create_cq(1000).unwrap();
    }
    let srq = ends[1].engine.create_srq(domains[1], 20, 2).unwrap();
    let lkey = ends[1].engine.memory().register(domains[1], 0, vec![0; 100], Access::LOCAL_WRITE);
    let piece = [Piece { address: 0, len: 100, lkey }];
    for id in 0..20 {
        ends[1].engine.post_srq_receive(srq, id, &piece).unwrap();
    }
    assert_eq!(ends[1].engine.post_srq_receive(srq, 21, &piece), Err(Error::Full));
    assert_eq!(ends[1].engine.set_srq_limit(srq, 21), Err(Error::Range("limit")));
    ends[1].engine.set_srq_limit(srq, 5).unwrap();
    let shared = Wish { srq: Some(srq), ..wish };
    let mut pairs = Vec::new();
    for _ in 0..4 {
        let (a, _) = ends[0].engine.create_qp(&init(&wish, domains[0], queues[0])).unwrap();
        let (b, granted) = ends[1].engine.create_qp(&init(&shared, domains[1], queues[1])).unwrap();
        assert_eq!(granted.receive_requests, 0);
        assert_eq!(ends[1].engine.post_receive(b, 1, &piece), Err(Error::State));
        make_ready(&mut ends[0].engine, a, &wish, PATH[0], b);
        make_ready(&mut ends[1].engine, b, &shared, PATH[1], a);
        pairs.push([a, b]);
    }
    assert_eq!(ends[1].engine.destroy_srq(srq), Err(Error::Busy("shared receive queue")));
    let mut link = Link::new(ends, Faults::default(), 1);
    let mut lines = [Completion::default(); 64];
    for (turn, expected) in [(0, None), (1, None), (2, None), (3, Some(Event::SharedReceiveLimit(srq))), (4, None)] {
        for pair in &pairs {
            link.ends[0].engine.post_send(pair[0], &send(turn, false)).unwrap();
        }
        link.run(100_000);
        assert_eq!(link.ends[1].engine.take_event(), expected, "turn {turn}");
    }
    assert_eq!(link.ends[1].engine.poll(queues[1], &mut lines), Ok(20));
    let ids: Vec<_> = lines[..20].iter().map(|line| line.id).collect();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
    // Now it is empty: who sends waits, and what was posted later is taken.
    link.ends[0].engine.post_send(pairs[2][0], &send(9, false)).unwrap();
    link.run(1_000_000);
    assert_eq!(link.ends[1].engine.poll(queues[1], &mut lines), Ok(0));
    link.ends[1].engine.post_srq_receive(srq, 77, &piece).unwrap();
    link.run(10_000_000);
    assert_eq!(link.ends[1].engine.poll(queues[1], &mut lines), Ok(1));
    assert_eq!((lines[0].id, lines[0].qpn, lines[0].status), (77, pairs[2][1], Status::Success));
    link.ends[1].engine.modify_qp(pairs[0][1], &Attributes::state(State::Error)).unwrap();
    assert_eq!(link.ends[1].engine.take_event(), Some(Event::LastBufferReached(pairs[0][1])));
    for pair in &pairs {
        link.ends[1].engine.destroy_qp(pair[1]).unwrap();
    }
    assert_eq!(link.ends[1].engine.destroy_domain(domains[1]), Err(Error::Busy("protection domain")));
    link.ends[1].engine.destroy_srq(srq).unwrap();
    link.ends[1].engine.destroy_domain(domains[1]).unwrap();
}
