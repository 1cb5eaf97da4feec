//! States of queue pairs, as programs see them.

use crate::common::link::{Faults, Link, PATH};
use crate::common::{Wish, connected, create, engine, init, make_ready};
use millrace_rdma::engine::{Error, Event, Options};
use millrace_rdma::number::{Key, Psn, Qpn};
use millrace_rdma::transport::{Attributes, State, Unfit};
use millrace_rdma::wire::Service;
use millrace_rdma::work::{Access, Completion, Data, Flags, Operation, Piece, Request, Status};

const SEND: Request<'static> = Request {
    id: 1,
    operation: Operation::Send,
    data: Data::Inline(&[b"hello"]),
    flags: Flags { signaled: true, solicited: false, fence: false },
    target: None,
};

#[test]
fn what_can_be_posted_depends_on_the_state() {
    let wish = Wish::default();
    let mut engine = engine(Options::default());
    let pair = create(&mut engine, &wish);
    assert_eq!(engine.post_send(pair.qpn, &SEND), Err(Error::State));
    assert_eq!(engine.post_receive(pair.qpn, 1, &[]), Err(Error::State));
    let told = Attributes {
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::default()),
        ..Attributes::state(State::Init)
    };
    assert_eq!(engine.modify_qp(pair.qpn, &told), Ok(State::Init));
    assert_eq!(engine.post_send(pair.qpn, &SEND), Err(Error::State));
    assert_eq!(engine.post_receive(pair.qpn, 1, &[]), Ok(()));
    let told = Attributes { port: Some(2), ..Attributes::NONE };
    assert_eq!(engine.modify_qp(pair.qpn, &told), Err(Error::Unfit(Unfit::Range("port"))));
    let told = Attributes { path_mtu: Some(1000), ..Attributes::state(State::ReadyToReceive) };
    assert!(engine.modify_qp(pair.qpn, &told).is_err());
    assert_eq!(engine.modify_qp(pair.qpn, &Attributes::state(State::Error)), Ok(State::Error));
    let mut lines = [Completion::default(); 4];
    assert_eq!(engine.poll(pair.cq, &mut lines), Ok(1));
    assert_eq!((lines[0].id, lines[0].status), (1, Status::Flushed));
    assert_eq!(engine.post_receive(pair.qpn, 2, &[]), Ok(()));
    assert_eq!(engine.post_send(pair.qpn, &SEND), Ok(()));
    assert_eq!(engine.poll(pair.cq, &mut lines), Ok(2));
    assert!(lines[..2].iter().all(|line| line.status == Status::Flushed));
    // Back to the beginning, and once more up to the end.
    assert_eq!(engine.modify_qp(pair.qpn, &Attributes::state(State::Reset)), Ok(State::Reset));
    make_ready(&mut engine, pair.qpn, &wish, PATH[0], Qpn::new(77));
    let query = engine.query_qp(pair.qpn).unwrap();
    assert_eq!(query.attributes.state, Some(State::ReadyToSend));
    assert_eq!((query.attributes.remote, query.attributes.path_mtu), (Some(Qpn::new(77)), Some(1024)));
    assert_eq!(query.init.capabilities.inline, 256);
    assert_eq!(engine.destroy_cq(pair.cq), Err(Error::Busy("completion queue")));
    assert_eq!(engine.destroy_domain(pair.domain), Err(Error::Busy("protection domain")));
    assert_eq!(engine.destroy_qp(pair.qpn), Ok(()));
    assert_eq!(engine.destroy_qp(pair.qpn), Err(Error::Missing("queue pair")));
    assert_eq!(engine.destroy_cq(pair.cq), Ok(()));
    assert_eq!(engine.destroy_domain(pair.domain), Ok(()));
}

#[test]
fn a_drained_send_queue_goes_on_later() {
    let (ends, pairs) = connected([Options::default(); 2], &Wish::default());
    let mut link = Link::new(ends, Faults::default(), 1);
    let key = link.ends[1].engine.memory().register(pairs[1].domain, 0, vec![0; 100], Access(31));
    let post = |link: &mut Link, id| {
        let operation = Operation::Write { address: 0, rkey: key, immediate: None };
        link.ends[0].engine.post_send(pairs[0].qpn, &Request { id, operation, ..SEND }).unwrap();
    };
    post(&mut link, 1);
    // It is on its way when the queue is to be drained.
    let frames = link.ends[0].take(millrace_rdma::number::Moment::new(0), 10);
    assert_eq!(frames.len(), 1);
    post(&mut link, 2);
    let told = Attributes { notify_drained: Some(true), ..Attributes::state(State::Drained) };
    link.ends[0].engine.modify_qp(pairs[0].qpn, &told).unwrap();
    assert!(link.ends[0].engine.query_qp(pairs[0].qpn).unwrap().draining);
    assert_eq!(link.ends[0].engine.take_event(), None);
    link.ends[1].give(millrace_rdma::number::Moment::new(1), &frames[0]);
    link.run(1_000_000);
    assert_eq!(link.ends[0].engine.take_event(), Some(Event::SendQueueDrained(pairs[0].qpn)));
    let mut lines = [Completion::default(); 4];
    assert_eq!(link.ends[0].engine.poll(pairs[0].cq, &mut lines), Ok(1));
    let mut path = PATH[0];
    path.hop_limit = 3;
    let told = Attributes { path: Some(path), timeout: Some(3), ..Attributes::state(State::Drained) };
    link.ends[0].engine.modify_qp(pairs[0].qpn, &told).unwrap();
    link.ends[0].engine.modify_qp(pairs[0].qpn, &Attributes::state(State::ReadyToSend)).unwrap();
    link.run(1_000_000_000);
    assert_eq!(link.ends[0].engine.poll(pairs[0].cq, &mut lines), Ok(1));
    assert_eq!((lines[0].id, lines[0].status), (2, Status::Success));
}

#[test]
fn what_comes_before_it_is_ready_is_told_or_dropped() {
    let wish = Wish::default();
    let mut ends = [0, 1].map(|_| crate::common::link::End::new(engine(Options::default())));
    let pairs = [create(&mut ends[0].engine, &wish), create(&mut ends[1].engine, &wish)];
    make_ready(&mut ends[0].engine, pairs[0].qpn, &wish, PATH[0], pairs[1].qpn);
    let mut link = Link::new(ends, Faults::default(), 1);
    link.ends[0].engine.post_send(pairs[0].qpn, &SEND).unwrap();
    link.run(1_000_000);
    assert_eq!(link.ends[1].engine.counters().wrong_state, 1);
    let engine = &mut link.ends[1].engine;
    let key = engine.memory().register(pairs[1].domain, 0, vec![0; 100], Access::LOCAL_WRITE);
    let told = Attributes {
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::default()),
        ..Attributes::state(State::Init)
    };
    engine.modify_qp(pairs[1].qpn, &told).unwrap();
    engine.post_receive(pairs[1].qpn, 5, &[Piece { address: 0, len: 100, lkey: key }]).unwrap();
    let told = Attributes {
        path: Some(PATH[1]),
        path_mtu: Some(1024),
        remote: Some(pairs[0].qpn),
        receive_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(1),
        ..Attributes::state(State::ReadyToReceive)
    };
    engine.modify_qp(pairs[1].qpn, &told).unwrap();
    link.run(1_000_000_000);
    let mut lines = [Completion::default(); 4];
    assert_eq!(link.ends[0].engine.poll(pairs[0].cq, &mut lines), Ok(1), "RTR answers requests");
    assert_eq!(link.ends[1].engine.poll(pairs[1].cq, &mut lines), Ok(1));
    assert_eq!(link.ends[1].engine.take_event(), Some(Event::Established(pairs[1].qpn)));
    assert_eq!(link.ends[1].engine.take_event(), None);
}

#[test]
fn an_unreliable_send_queue_that_failed_can_be_used_again() {
    let wish = Wish { service: Service::UnreliableConnection, ..Wish::default() };
    let (ends, pairs) = connected([Options::default(); 2], &wish);
    let mut link = Link::new(ends, Faults::default(), 1);
    let bad = [Piece { address: 0, len: 4, lkey: Key::new(4) }];
    let engine = &mut link.ends[0].engine;
    engine.post_send(pairs[0].qpn, &Request { data: Data::Pieces(&bad), ..SEND }).unwrap();
    engine.post_send(pairs[0].qpn, &Request { id: 2, ..SEND }).unwrap();
    link.run(1_000_000);
    let mut lines = [Completion::default(); 4];
    let engine = &mut link.ends[0].engine;
    assert_eq!(engine.poll(pairs[0].cq, &mut lines), Ok(2));
    assert_eq!([lines[0].status, lines[1].status], [Status::LocalProtection, Status::Flushed]);
    let told = Attributes { current_state: Some(State::SendError), ..Attributes::state(State::ReadyToSend) };
    assert_eq!(engine.modify_qp(pairs[0].qpn, &told), Ok(State::ReadyToSend));
    engine.post_send(pairs[0].qpn, &Request { id: 3, ..SEND }).unwrap();
    link.run(1_000_000);
    assert_eq!(link.ends[0].engine.poll(pairs[0].cq, &mut lines), Ok(1));
    assert_eq!((lines[0].id, lines[0].status), (3, Status::Success));
}

#[test]
fn the_general_service_interface_has_the_number_one() {
    let wish = Wish { service: Service::UnreliableDatagram, ..Wish::default() };
    let mut engine = engine(Options::default());
    let pair = create(&mut engine, &wish);
    let general = millrace_rdma::transport::Init { general: true, ..init(&wish, pair.domain, pair.cq) };
    assert_eq!(engine.create_qp(&general).map(|made| made.0), Ok(Qpn::GENERAL));
    assert!(matches!(engine.create_qp(&general), Err(Error::Busy(_))));
    engine.destroy_qp(Qpn::GENERAL).unwrap();
    assert_eq!(engine.create_qp(&general).map(|made| made.0), Ok(Qpn::GENERAL));
}
