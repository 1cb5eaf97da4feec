//! Ten thousand queue pairs.

use crate::common::link::{End, Faults, Link, PATH};
use crate::common::{Wish, engine, init, make_ready};
use millrace_rdma::engine::{Error, Options};
use millrace_rdma::work::{Access, Completion, Data, Flags, Operation, Piece, Request, Status};
use std::collections::HashMap;

const COUNT: usize = 10_000;

#[test]
fn ten_thousand_queue_pairs_work_at_once() {
    let wish = Wish { requests: 4, buffers: 4, timeout: 14, cq_depth: 1 << 16, ..Wish::default() };
    let options = Options { max_queue_pairs: COUNT as u32, ..Options::default() };
    let mut ends = [0, 1].map(|_| End::new(engine(options)));
    let mut all = Vec::new();
    let (mut domains, mut queues) = (Vec::new(), Vec::new());
    for end in &mut ends {
        domains.push(end.engine.create_domain().unwrap());
        queues.push(end.engine.create_cq(wish.cq_depth).unwrap());
    }
    for _ in 0..COUNT {
        let pair = [0, 1].map(|at| ends[at].engine.create_qp(&init(&wish, domains[at], queues[at])).unwrap().0);
        for at in 0..2 {
            make_ready(&mut ends[at].engine, pair[at], &wish, PATH[at], pair[1 - at]);
        }
        all.push(pair);
    }
    let more = ends[0].engine.create_qp(&init(&wish, domains[0], queues[0]));
    assert_eq!(more, Err(Error::Limit("queue pairs")));
    let access = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);
    let keys = [0, 1].map(|at: usize| ends[at].engine.memory().register(domains[at], 0, vec![0; 8 * COUNT], access));
    let mut link = Link::new(ends, Faults { loss: 5, ..Faults::default() }, 5);
    for (at, pair) in all.iter().enumerate() {
        let bytes = (at as u64).to_ne_bytes();
        let request = Request {
            id: at as u64,
            operation: Operation::Write { address: 8 * at as u64, rkey: keys[1], immediate: None },
            data: Data::Inline(&[&bytes]),
            flags: Flags { signaled: true, ..Flags::default() },
            target: None,
        };
        link.ends[0].engine.post_send(pair[0], &request).unwrap();
    }
    link.run(60_000_000_000);
    let mut lines = vec![Completion::default(); COUNT + 1];
    assert_eq!(link.ends[0].engine.poll(queues[0], &mut lines).unwrap(), COUNT);
    assert!(lines[..COUNT].iter().all(|line| line.status == Status::Success));
    let memory = link.ends[1].engine.memory();
    assert!(memory.bytes(keys[1]).chunks(8).enumerate().all(|(at, bytes)| bytes == (at as u64).to_ne_bytes()));
    for pair in &all {
        link.ends[0].engine.destroy_qp(pair[0]).unwrap();
    }
    link.ends[0].engine.destroy_cq(queues[0]).unwrap();
    link.ends[0].engine.destroy_domain(domains[0]).unwrap();
    assert_eq!(link.ends[0].engine.next_deadline(), None);
}

#[test]
fn turns_are_fair() {
    let wish = Wish { requests: 16, ..Wish::default() };
    let mut ends = [0, 1].map(|_| End::new(engine(Options::default())));
    let domain = ends[0].engine.create_domain().unwrap();
    let queue = ends[0].engine.create_cq(100).unwrap();
    let key = ends[0].engine.memory().register(domain, 0, vec![0; 1 << 20], Access::default());
    let mut pairs = Vec::new();
    for _ in 0..4 {
        let (qpn, _) = ends[0].engine.create_qp(&init(&wish, domain, queue)).unwrap();
        make_ready(&mut ends[0].engine, qpn, &wish, PATH[0], millrace_rdma::number::Qpn::new(1000 + qpn.value()));
        let pieces = [Piece { address: 0, len: 1 << 20, lkey: key }];
        let operation = Operation::Write { address: 0, rkey: key, immediate: None };
        let request = Request { id: 1, operation, data: Data::Pieces(&pieces), flags: Flags::default(), target: None };
        ends[0].engine.post_send(qpn, &request).unwrap();
        pairs.push(qpn);
    }
    let mut counts = HashMap::new();
    for frame in ends[0].take(millrace_rdma::number::Moment::new(1), 256) {
        *counts.entry(frame.headers.destination).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 4);
    assert!(counts.values().all(|count| *count == 64), "{counts:?}");
}
