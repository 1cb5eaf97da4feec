//! Every error, at both ends.

use crate::common::link::{Faults, Link};
use crate::common::{Pair, Wish, connected};
use millrace_rdma::engine::{Event, Options};
use millrace_rdma::memory::Binding;
use millrace_rdma::number::Key;
use millrace_rdma::transport::State;
use millrace_rdma::work::{Access, Completion, Data, Ended, Flags, Operation, Piece, Request, Status};

struct Case {
    link: Link,
    pairs: [Pair; 2],
    /// A region of 64 KiB at each end that may do everything.
    keys: [Key; 2],
}

impl Case {
    fn new(wish: &Wish, extended: bool) -> Self {
        let options = Options { extended, ..Options::default() };
        let (ends, pairs) = connected([options; 2], wish);
        let mut link = Link::new(ends, Faults::default(), 1);
        let keys = [0, 1]
            .map(|at: usize| link.ends[at].engine.memory().register(pairs[at].domain, 0, vec![0; 65536], Access(31)));
        Self { link, pairs, keys }
    }

    fn post(&mut self, id: u64, operation: Operation, piece: Piece, signaled: bool) {
        let flags = Flags { signaled, ..Flags::default() };
        let pieces = [piece];
        let data = if operation.is_local() { Data::Pieces(&[]) } else { Data::Pieces(&pieces) };
        let request = Request { id, operation, data, flags, target: None };
        self.link.ends[0].engine.post_send(self.pairs[0].qpn, &request).unwrap();
    }

    fn piece(&self, at: usize, len: u32) -> Piece {
        Piece { address: 0, len, lkey: self.keys[at] }
    }

    fn post_buffer(&mut self, id: u64, piece: Piece) {
        self.link.ends[1].engine.post_receive(self.pairs[1].qpn, id, &[piece]).unwrap();
    }

    fn lines(&mut self, at: usize) -> Vec<(u64, Status, Ended)> {
        let mut lines = [Completion::default(); 64];
        let count = self.link.ends[at].engine.poll(self.pairs[at].cq, &mut lines).unwrap();
        lines[..count].iter().map(|line| (line.id, line.status, line.ended)).collect()
    }

    fn state(&self, at: usize) -> State {
        self.link.ends[at].engine.query_qp(self.pairs[at].qpn).unwrap().attributes.state.unwrap()
    }

    fn events(&mut self, at: usize) -> Vec<Event> {
        std::iter::from_fn(|| self.link.ends[at].engine.take_event()).collect()
    }
}

/// A good request, the bad one, and one behind it: what the three become, at the end that asked.
fn asked(wish: &Wish, operation: impl Fn(&Case) -> Operation, len: u32) -> [(Status, Vec<Event>); 2] {
    let mut all = Vec::new();
    for extended in [false, true] {
        let mut case = Case::new(wish, extended);
        let good = Operation::Write { address: 0, rkey: case.keys[1], immediate: None };
        let piece = case.piece(0, 5000);
        case.post(1, good, piece, false);
        case.post(2, good, piece, true);
        let bad = operation(&case);
        let piece = case.piece(0, len);
        case.post(3, bad, piece, false);
        case.post(4, good, piece, false);
        case.link.run(10_000_000_000);
        let lines = case.lines(0);
        let states: Vec<_> = lines.iter().map(|(id, ..)| *id).collect();
        assert_eq!(states, [2, 3, 4], "errors are told, in order: {lines:?}");
        assert_eq!((lines[0].1, lines[2].1), (Status::Success, Status::Flushed));
        assert_eq!(case.state(0), State::Error);
        case.post(5, good, piece, false);
        assert_eq!(case.lines(0), [(5, Status::Flushed, Ended::Write)]);
        let events = case.events(1);
        assert_eq!(case.events(0), []);
        all.push((lines[1].1, events));
    }
    all.try_into().unwrap()
}

fn is_access_error(outcome: &[(Status, Vec<Event>); 2]) {
    for (status, events) in outcome {
        assert_eq!(*status, Status::RemoteAccess);
        assert!(matches!(events[..], [Event::AccessError(_)]), "{events:?}");
    }
}

fn is_invalid(outcome: &[(Status, Vec<Event>); 2]) {
    for (status, events) in outcome {
        assert_eq!(*status, Status::RemoteInvalid);
        assert!(matches!(events[..], [Event::RequestError(_)]), "{events:?}");
    }
}

#[test]
fn what_is_not_open_is_not_reached() {
    let wish = Wish::default();
    let write = |address, key: u32| move |_: &Case| Operation::Write { address, rkey: Key::new(key), immediate: None };
    is_access_error(&asked(&wish, write(0, 0x9999), 8));
    is_access_error(&asked(&wish, write(0, 0x9999), 5000));
    let beyond = |case: &Case| Operation::Write { address: 65536 - 4096, rkey: case.keys[1], immediate: None };
    is_access_error(&asked(&wish, beyond, 4097));
    let round = |case: &Case| Operation::Write { address: u64::MAX - 3, rkey: case.keys[1], immediate: None };
    is_access_error(&asked(&wish, round, 8));
    is_access_error(&asked(&wish, |_| Operation::Read { address: 0, rkey: Key::new(7) }, 100));
    is_access_error(&asked(&wish, |case| Operation::Read { address: 65000, rkey: case.keys[1] }, 1000));
    is_access_error(&asked(&wish, |_| Operation::FetchAdd { address: 0, rkey: Key::new(7), add: 1 }, 8));
}

#[test]
fn what_is_no_request_is_refused() {
    let wish = Wish::default();
    is_invalid(&asked(&wish, |case| Operation::FetchAdd { address: 4, rkey: case.keys[1], add: 1 }, 8));
    is_invalid(&asked(
        &wish,
        |case| Operation::CompareSwap { address: 65535, rkey: case.keys[1], compare: 1, swap: 2 },
        8,
    ));
}

#[test]
fn local_keys_are_looked_at_too() {
    for extended in [false, true] {
        let mut case = Case::new(&Wish::default(), extended);
        let write = Operation::Write { address: 0, rkey: case.keys[1], immediate: None };
        let piece = case.piece(0, 10_000);
        case.post(1, write, piece, false);
        case.post(2, write, Piece { lkey: Key::new(99), ..piece }, false);
        case.post(3, write, piece, false);
        case.link.run(1_000_000_000);
        let ends = [(2, Status::LocalProtection, Ended::Write), (3, Status::Flushed, Ended::Write)];
        assert_eq!(case.lines(0), ends);
        // What is read goes nowhere else either.
        let mut case = Case::new(&Wish::default(), extended);
        let read = Operation::Read { address: 0, rkey: case.keys[1] };
        case.post(1, read, Piece { lkey: Key::new(99), ..piece }, false);
        case.link.run(1_000_000_000);
        assert_eq!(case.lines(0), [(1, Status::LocalProtection, Ended::Read)]);
    }
}

#[test]
fn a_buffer_that_is_too_short_ends_both() {
    let mut case = Case::new(&Wish::default(), true);
    let piece = case.piece(1, 1500);
    case.post_buffer(7, piece);
    case.post_buffer(8, piece);
    let piece = case.piece(0, 2000);
    case.post(1, Operation::Send, piece, true);
    case.link.run(1_000_000_000);
    assert_eq!(case.lines(0), [(1, Status::RemoteInvalid, Ended::Send)]);
    let ends = [(7, Status::LocalLength, Ended::Receive), (8, Status::Flushed, Ended::Receive)];
    assert_eq!(case.lines(1), ends);
    assert_eq!(case.state(1), State::Error);
}

#[test]
fn a_buffer_that_is_not_open_is_an_error_of_the_other_end() {
    let mut case = Case::new(&Wish::default(), false);
    case.post_buffer(7, Piece { address: 0, len: 100, lkey: Key::new(3) });
    let piece = case.piece(0, 50);
    case.post(1, Operation::Send, piece, true);
    case.link.run(1_000_000_000);
    assert_eq!(case.lines(0), [(1, Status::RemoteOperation, Ended::Send)]);
    assert_eq!(case.lines(1), [(7, Status::LocalProtection, Ended::Receive)]);
}

#[test]
fn who_has_no_buffer_is_asked_as_often_as_was_said() {
    for extended in [false, true] {
        for rnr_retry in 0..7 {
            let wish = Wish { rnr_retry, ..Wish::default() };
            let mut case = Case::new(&wish, extended);
            let piece = case.piece(0, 50);
            case.post(1, Operation::Send, piece, true);
            case.link.run(10_000_000_000);
            assert_eq!(case.lines(0), [(1, Status::RnrRetryExceeded, Ended::Send)], "{rnr_retry}");
            let asked = case.link.ends[1].engine.counters().rnr_sent;
            assert_eq!(asked, u64::from(rnr_retry) + 1);
        }
        for rnr_timer in 0..32 {
            let wish = Wish { rnr_retry: 7, rnr_timer, ..Wish::default() };
            let mut case = Case::new(&wish, extended);
            let piece = case.piece(0, 50);
            case.post(1, Operation::Send, piece, true);
            case.link.run(2_000_000_000);
            let asked = case.link.ends[1].engine.counters().rnr_sent;
            assert!((3..300_000).contains(&asked), "{rnr_timer}: {asked}");
            assert_eq!(case.lines(0), []);
            let buffer = case.piece(1, 50);
            case.post_buffer(2, buffer);
            case.link.run(2_000_000_000);
            assert_eq!(case.lines(0), [(1, Status::Success, Ended::Send)]);
            assert_eq!(case.lines(1), [(2, Status::Success, Ended::Receive)]);
        }
    }
}

#[test]
fn who_does_not_answer_is_given_up() {
    for extended in [false, true] {
        for retry_count in 0..8 {
            let wish = Wish { retry_count, timeout: 8, ..Wish::default() };
            let mut case = Case::new(&wish, extended);
            case.link.dead[1] = true;
            let piece = case.piece(0, 50_000);
            let write = Operation::Write { address: 0, rkey: case.keys[1], immediate: None };
            case.post(1, write, piece, false);
            case.post(2, write, piece, false);
            case.link.run(10_000_000_000);
            let ends = [(1, Status::RetryExceeded, Ended::Write), (2, Status::Flushed, Ended::Write)];
            assert_eq!(case.lines(0), ends);
            assert_eq!(case.link.ends[0].engine.counters().timeouts, u64::from(retry_count) + 1);
            let (least, most) = (4096 << 8, (4096 << 8) * 2);
            let took = case.link.now / (u64::from(retry_count) + 1);
            assert!(took >= least && took < most, "{took} ns each");
        }
    }
}

#[test]
fn keys_that_were_taken_back_open_nothing() {
    let mut case = Case::new(&Wish::default(), true);
    let piece = case.piece(0, 100);
    // Of the end that asks: binds a window, which its peer may then read through, and takes it back.
    let binding = Binding {
        rkey: Key::new(2 << 8 | 7),
        region: case.keys[0],
        address: 16,
        len: 64,
        access: Access::REMOTE_WRITE,
    };
    case.post(1, Operation::Bind(binding), piece, true);
    case.post(2, Operation::LocalInvalidate(binding.rkey), piece, true);
    case.post(3, Operation::LocalInvalidate(binding.rkey), piece, true);
    case.post(4, Operation::Bind(binding), piece, true);
    case.link.run(1_000_000_000);
    let ends = [
        (1, Status::Success, Ended::Bind),
        (2, Status::Success, Ended::LocalInvalidate),
        (3, Status::LocalProtection, Ended::LocalInvalidate),
        (4, Status::Flushed, Ended::Bind),
    ];
    assert_eq!(case.lines(0), ends);
    // Of the other end: the sender takes a key back.
    let mut case = Case::new(&Wish::default(), true);
    let buffer = case.piece(1, 100);
    case.post_buffer(5, buffer);
    let domain = case.pairs[1].domain;
    let other = case.link.ends[1].engine.memory().register(domain, 0, vec![0; 100], Access(31));
    let write = Operation::Write { address: 0, rkey: other, immediate: None };
    case.post(1, write, piece, true);
    case.post(2, Operation::SendInvalidate(other), piece, true);
    case.post(3, write, piece, true);
    case.link.run(1_000_000_000);
    assert_eq!(case.lines(1), [(5, Status::Success, Ended::Receive)]);
    let statuses: Vec<_> = case.lines(0).iter().map(|line| line.1).collect();
    assert_eq!(statuses, [Status::Success, Status::Success, Status::RemoteAccess]);
}

#[test]
fn reads_of_nobody_who_may_have_any_fail() {
    let mut case = Case::new(&Wish { rd_atomic: 0, ..Wish::default() }, true);
    let piece = case.piece(0, 8);
    let read = Operation::Read { address: 0, rkey: case.keys[1] };
    case.post(1, read, piece, true);
    case.link.run(1_000_000_000);
    assert_eq!(case.lines(0), [(1, Status::LocalOperation, Ended::Read)]);
}
