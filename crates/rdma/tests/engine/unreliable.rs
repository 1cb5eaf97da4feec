//! Unreliable connections and datagrams: what arrives is whole, and in order.

use crate::common::link::{Faults, Link, PATH, Random};
use crate::common::{Wish, connected};
use millrace_rdma::engine::{Error, Options};
use millrace_rdma::wire::Service;
use millrace_rdma::work::{Access, Completion, Data, Extra, Flags, Operation, Piece, Request, Status, Target};
use proptest::prelude::*;

const BUFFER: usize = 8192;
const COUNT: usize = 40;

/// A message of which each byte says which one it is.
fn message(at: usize, len: usize) -> Vec<u8> {
    (0..len).map(|byte| (at * 7 + byte / 200) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn messages_that_arrive_are_whole(
        loss in 0u64..200,
        doubled in 0u64..100,
        late in 0u64..200,
        mtu in 0u32..5,
        seed in any::<u64>(),
        lens in prop::collection::vec(0usize..BUFFER, 1..COUNT),
    ) {
        let wish = Wish { service: Service::UnreliableConnection, mtu: 256 << mtu, psn: 0xff_fff0, ..Wish::default() };
        let (ends, pairs) = connected([Options::default(); 2], &wish);
        let mut link = Link::new(ends, Faults { loss, doubled, late }, seed);
        let bytes: Vec<u8> = lens.iter().enumerate().flat_map(|(at, len)| message(at, *len)).collect();
        let source = link.ends[0].engine.memory().register(pairs[0].domain, 0, bytes, Access::default());
        let space = vec![0; COUNT * BUFFER];
        let buffers = link.ends[1].engine.memory().register(pairs[1].domain, 0, space, Access::LOCAL_WRITE);
        for at in 0..COUNT {
            let piece = [Piece { address: (at * BUFFER) as u64, len: BUFFER as u32, lkey: buffers }];
            link.ends[1].engine.post_receive(pairs[1].qpn, at as u64, &piece).unwrap();
        }
        let mut address = 0;
        for (at, len) in lens.iter().enumerate() {
            let pieces = [Piece { address, len: *len as u32, lkey: source }];
            let operation = Operation::SendImmediate((at as u32).to_be_bytes());
            let flags = Flags { signaled: true, ..Flags::default() };
            let request = Request { id: at as u64, operation, data: Data::Pieces(&pieces), flags, target: None };
            link.ends[0].engine.post_send(pairs[0].qpn, &request).unwrap();
            address += *len as u64;
        }
        link.run(1_000_000_000);
        let mut lines = [Completion::default(); 2 * COUNT];
        let count = link.ends[0].engine.poll(pairs[0].cq, &mut lines).unwrap();
        prop_assert_eq!(count, lens.len());
        let count = link.ends[1].engine.poll(pairs[1].cq, &mut lines).unwrap();
        for (place, line) in lines[..count].iter().enumerate() {
            let Extra::Immediate(number) = line.extra else { panic!("{line:?}") };
            let at = u32::from_be_bytes(number) as usize;
            prop_assert_eq!((line.status, line.id as usize, line.len as usize), (Status::Success, place, lens[at]));
            let found = &link.ends[1].engine.memory().bytes(buffers)[place * BUFFER..][..lens[at]];
            prop_assert_eq!(found, &message(at, lens[at]));
        }
        if loss == 0 && doubled == 0 && late == 0 {
            prop_assert_eq!(count, lens.len());
        }
    }
}

#[test]
fn writes_without_answers_arrive_too() {
    let wish = Wish { service: Service::UnreliableConnection, ..Wish::default() };
    let (ends, pairs) = connected([Options::default(); 2], &wish);
    let mut link = Link::new(ends, Faults::default(), 1);
    let mut random = Random(4);
    let bytes: Vec<u8> = (0..10_000).map(|_| random.next() as u8).collect();
    let lkey = link.ends[0].engine.memory().register(pairs[0].domain, 0, bytes.clone(), Access::default());
    let rkey = link.ends[1].engine.memory().register(pairs[1].domain, 0, vec![0; 10_000], Access(31));
    let pieces = [Piece { address: 0, len: 10_000, lkey }];
    let operation = Operation::Write { address: 0, rkey, immediate: None };
    let flags = Flags { signaled: true, ..Flags::default() };
    let request = Request { id: 1, operation, data: Data::Pieces(&pieces), flags, target: None };
    link.ends[0].engine.post_send(pairs[0].qpn, &request).unwrap();
    let read = Request { operation: Operation::Read { address: 0, rkey }, ..request };
    assert_eq!(link.ends[0].engine.post_send(pairs[0].qpn, &read), Err(Error::Operation));
    link.run(1_000_000);
    assert!(*link.ends[1].engine.memory().bytes(rkey) == bytes);
}

#[test]
fn datagrams_have_a_header_before_them_and_need_the_key() {
    let wish = Wish { service: Service::UnreliableDatagram, ..Wish::default() };
    let (ends, pairs) = connected([Options::default(); 2], &wish);
    let mut link = Link::new(ends, Faults::default(), 1);
    let buffers = link.ends[1].engine.memory().register(pairs[1].domain, 0, vec![0; 300], Access::LOCAL_WRITE);
    for at in 0..3 {
        let piece = [Piece { address: 100 * at, len: 100, lkey: buffers }];
        link.ends[1].engine.post_receive(pairs[1].qpn, at, &piece).unwrap();
    }
    let target = |qkey| Target { path: PATH[0], qpn: pairs[1].qpn, qkey };
    let bytes = [9_u8; 61];
    let post = |link: &mut Link, target: Option<&Target>, len| {
        let parts = [&bytes[..len]];
        let flags = Flags { signaled: true, ..Flags::default() };
        let operation = Operation::SendImmediate([1, 2, 3, 4]);
        let request = Request { id: 1, operation, data: Data::Inline(&parts), flags, target };
        let done = link.ends[0].engine.post_send(pairs[0].qpn, &request);
        link.run(1_000_000);
        done
    };
    assert_eq!(post(&mut link, None, 4), Err(Error::Target));
    post(&mut link, Some(&target(5)), 4).unwrap();
    assert_eq!(link.ends[1].engine.counters().wrong_qkey, 1);
    post(&mut link, Some(&target(0x1111)), 61).unwrap();
    assert_eq!(link.ends[1].engine.counters().too_long, 1);
    post(&mut link, Some(&target(0x1111)), 60).unwrap();
    // With the highest bit it is the sender's own key, which is the right one here.
    post(&mut link, Some(&target(0x8000_0001)), 0).unwrap();
    let mut lines = [Completion::default(); 8];
    assert_eq!(link.ends[1].engine.poll(pairs[1].cq, &mut lines), Ok(2));
    assert_eq!((lines[0].id, lines[0].len, lines[0].source), (0, 100, pairs[0].qpn));
    assert_eq!((lines[1].id, lines[1].len, lines[1].has_grh), (1, 40, true));
    assert_eq!((lines[0].extra, lines[0].service_level), (Extra::Immediate([1, 2, 3, 4]), 10));
    let found = link.ends[1].engine.memory().bytes(buffers);
    assert_eq!((&found[..40], &found[40..100]), (&[0xee; 40][..], &[9; 60][..]));
    for _ in 0..2 {
        post(&mut link, Some(&target(0x1111)), 1).unwrap();
    }
    assert_eq!(link.ends[1].engine.counters().no_buffer, 1);
    assert_eq!(link.ends[0].engine.poll(pairs[0].cq, &mut lines), Ok(6));
}
