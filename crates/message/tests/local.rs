//! Endpoints over memory that they share: the bytes of messages of any size, from several others at once, while memory is spoiled or somebody
//! goes.

use millrace_dma::{OtherProcess, Pages, Protection, Region};
use millrace_message::Scheme;
use millrace_message::bell::{Bell, Full, Owner};
use millrace_message::buffer::Pieces;
use millrace_message::channel::Side;
use millrace_message::control::Tag;
use millrace_message::engine::{Limits, Outcome, PairId};
use millrace_message::local::{Local, Reach, memory_len};
use proptest::prelude::*;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMITS: Limits =
    Limits { mtu: 1024, smbs: 2, rmbs: 3, slots: 2, credits: 4, eager: 200, early_request: true, patience: 1000 };

fn join(one: &mut Local, other: &mut Local) -> (Region, PairId, PairId) {
    let memory = Region::heap(memory_len(one.terms(), other.terms()));
    let to = one.join(memory.window(), Side::Maker, other.terms(), Reach::default()).unwrap();
    let from = other.join(memory.window(), Side::Taker, one.terms(), Reach::default()).unwrap();
    (memory, to, from)
}

fn bytes(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u64 * 13 + at as u64 / 256 + number) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Two send to a third one, in any sizes and ways, and one of them may go in the middle: what is received is what was sent, each once.
    #[test]
    fn messages_come_as_they_went(
        messages in prop::collection::vec((0..2usize, prop_oneof![0usize..300, 900usize..9000], any::<bool>(), 0usize..4), 1..60),
        other_mtu in 10u32..14,
        gone in prop::option::weighted(0.3, 0usize..60),
    ) {
        let mut hub = Local::new(LIMITS).unwrap();
        let mut ends = [0, 1].map(|_| Local::new(Limits { mtu: 1 << other_mtu, ..LIMITS }).unwrap());
        let joined = ends.each_mut().map(|end| join(end, &mut hub));
        let mut sent = [Vec::new(), Vec::new()];
        let mut came = [BTreeSet::new(), BTreeSet::new()];
        let mut is_gone = false;
        for (at, (from, len, copied, turns)) in messages.iter().enumerate() {
            if gone == Some(at) {
                hub.leave(joined[1].2);
                is_gone = true;
            }
            let number = sent[*from].len();
            let scheme = if *copied { Scheme::OneCopy } else { Scheme::Eager };
            ends[*from].send_by(joined[*from].1, Tag(number as u64), bytes(number as u64, *len), scheme).unwrap();
            sent[*from].push(*len);
            hub.receive(None, Tag(0), 0, vec![0; 9000]).unwrap();
            for _ in 0..*turns {
                ends.iter_mut().for_each(|end| _ = end.progress());
                hub.progress();
            }
        }
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            ends.iter_mut().for_each(|end| _ = end.progress());
            hub.progress();
            while let Some(done) = hub.done() {
                match done.outcome {
                    Outcome::Received { pair, tag, len } => {
                        let from = usize::from(pair == joined[1].2);
                        // Short ones may overtake long ones on their way; whom they are for was settled before.
                        prop_assert!(came[from].insert(tag.0), "{tag:?} came twice");
                        prop_assert_eq!(len as usize, sent[from][tag.0 as usize]);
                        prop_assert!(done.buffer == bytes(tag.0, len as usize));
                    }
                    Outcome::Lost => prop_assert!(is_gone),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            let all = came[0].len() == sent[0].len() && (is_gone || came[1].len() == sent[1].len());
            if all && hub.engine().in_use() == (0, 0) {
                break;
            }
            prop_assert!(Instant::now() < until, "{came:?} of {sent:?}");
        }
    }

    /// Somebody writes anything anywhere into the memory while messages go: nothing panics, and when the pair has ended everything is back.
    #[test]
    fn spoiled_memory_is_no_harm(
        turns in prop::collection::vec((any::<u32>(), any::<u64>(), 0u8..8, 0usize..4000), 1..200),
    ) {
        let (mut one, mut other) = (Local::new(LIMITS).unwrap(), Local::new(LIMITS).unwrap());
        let (memory, to, from) = join(&mut one, &mut other);
        let words = memory.window().slots64(0, 1 << 14).unwrap();
        for (place, word, what, len) in turns {
            match what {
                0 => drop(one.send(to, Tag(word), bytes(0, len))),
                1 => drop(other.receive(None, Tag(word), 0, vec![0; 4000])),
                2 => drop(other.send(from, Tag(word), bytes(0, len))),
                3 => drop(one.receive(Some(to), Tag(word), 0, vec![0; len])),
                // A line that is likely to be looked at next.
                4 => words.store(32 + place % 256, word),
                5 => words.store(place, word % 16),
                _ => {
                    one.progress();
                    other.progress();
                }
            }
        }
        one.leave(to);
        other.leave(from);
        prop_assert_eq!(one.engine().in_use(), (0, 0));
        prop_assert_eq!(other.engine().in_use(), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In as many pieces as one likes, at both ends: it is one message.
    #[test]
    fn pieces_are_one_message(
        sent in prop::collection::vec(0usize..700, 0..8),
        received in prop::collection::vec(0usize..700, 0..8),
        scheme in prop_oneof![Just(Scheme::Eager), Just(Scheme::OneCopy)],
    ) {
        let cut = |bytes: &[u8], lens: &[usize]| {
            let mut rest = bytes;
            let mut next = |len: &usize| {
                let (piece, left) = rest.split_at((*len).min(rest.len()));
                rest = left;
                piece.to_vec()
            };
            lens.iter().map(&mut next).collect::<Vec<_>>()
        };
        let (mut one, mut other) = (Local::<Pieces>::new(LIMITS).unwrap(), Local::<Pieces>::new(LIMITS).unwrap());
        let memory = Region::heap(memory_len(one.terms(), other.terms()));
        let to = one.join(memory.window(), Side::Maker, other.terms(), Reach::default()).unwrap();
        let from = other.join(memory.window(), Side::Taker, one.terms(), Reach::default()).unwrap();
        let (len, room) = (sent.iter().sum::<usize>(), received.iter().sum::<usize>());
        let whole = bytes(7, len);
        one.send_by(to, Tag(1), Pieces(cut(&whole, &sent)), scheme).unwrap();
        let empty = Pieces(received.iter().map(|len| vec![0; *len]).collect());
        other.receive(Some(from), Tag(1), u64::MAX, empty).unwrap();
        let done = (0..1000).find_map(|_| {
            one.progress();
            other.progress();
            other.done()
        });
        let done = done.unwrap();
        if len <= room {
            prop_assert_eq!(done.buffer.0, cut(&whole, &received));
        } else {
            prop_assert_eq!(done.outcome, Outcome::TooLong { len: len as u64 });
        }
    }
}

#[test]
fn doorbells_go_to_whom_they_belong() {
    let (mut one, mut other) = (Local::new(LIMITS).unwrap(), Local::new(LIMITS).unwrap());
    let (_memory, to, from) = join(&mut one, &mut other);
    assert_eq!(one.ring(to, 5), Some(Err(Full::Unwanted)));
    other.claim(5..=9, Owner(3)).unwrap();
    assert_eq!(one.ring(to, 5), Some(Ok(())));
    assert_eq!(other.bell(from), Ok(Some(Bell { number: 5, owner: Owner(3) })));
    assert_eq!(other.bell(from), Ok(None));
    other.release(Owner(3));
    assert_eq!(one.ring(to, 5), Some(Err(Full::Unwanted)));
}

/// Two threads, each with a mapping of its own of one file, as two processes have: 64 messages each way at once, up to 1 MiB.
#[test]
fn two_mappings_of_one_file_are_enough() {
    let limits = Limits::default();
    let terms = Local::<Vec<u8>>::new(limits).unwrap().terms();
    let len = memory_len(terms, terms);
    let memory = Region::allocate(len, Pages::Ordinary).unwrap();
    let fd = memory.fd().unwrap().try_clone_to_owned().unwrap();
    let work = move |region: Region, side: Side| {
        let mut end = Local::new(limits).unwrap();
        let pair = end.join(region.window(), side, terms, Reach::default()).unwrap();
        for number in 0..64_u64 {
            let len = number as usize * 16_411;
            end.receive(Some(pair), Tag(number), u64::MAX, vec![0; len]).unwrap();
            end.send(pair, Tag(number), bytes(number, len)).unwrap();
        }
        let (mut sent, mut received) = (0, 0);
        let until = Instant::now() + Duration::from_secs(60);
        // What the other one has to be told has to be said, too.
        while sent + received < 128 {
            assert!(Instant::now() < until, "{sent} {received}");
            if !end.progress() {
                std::thread::yield_now();
            }
            while let Some(done) = end.done() {
                match done.outcome {
                    Outcome::Sent => sent += 1,
                    Outcome::Received { tag, len, .. } => {
                        assert!(done.buffer == bytes(tag.0, len as usize));
                        received += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        end.progress();
    };
    std::thread::scope(|scope| {
        scope.spawn(move || work(memory, Side::Maker));
        scope.spawn(move || work(Region::map(fd, len, Protection::ReadWrite, false).unwrap(), Side::Taker));
    });
}

/// A message that has ended has its number, and its bytes, until that was told.
#[test]
fn numbers_are_used_again_when_they_were_taken() {
    let (mut one, mut other) = (Local::new(LIMITS).unwrap(), Local::new(LIMITS).unwrap());
    let (_memory, to, from) = join(&mut one, &mut other);
    let long = one.send_by(to, Tag(1), bytes(1, 500), Scheme::OneCopy).unwrap();
    other.receive(Some(from), Tag(1), u64::MAX, vec![0; 10]).unwrap();
    other.progress();
    // It learns of it by the quick way, which tells of no ends.
    assert_eq!(one.receive_short(to, Tag(0), 0, &mut []), Ok(None));
    assert!(one.has_done());
    let next = one.send_by(to, Tag(2), bytes(2, 500), Scheme::OneCopy).unwrap();
    assert_ne!(long, next);
    let ended = one.done().unwrap();
    assert_eq!((ended.request, ended.outcome), (long, Outcome::TooLong { len: 500 }));
    assert!(ended.buffer == bytes(1, 500) && one.done().is_none());
    other.receive(Some(from), Tag(2), u64::MAX, vec![0; 500]).unwrap();
    let ended = (0..100).find_map(|_| {
        other.progress();
        one.progress();
        one.done()
    });
    let ended = ended.unwrap();
    assert_eq!((ended.request, ended.outcome), (next, Outcome::Sent));
    assert!(ended.buffer == bytes(2, 500));
}

/// One pair ends while what another one has sent is not copied yet: it is not done at once because of that.
#[test]
fn the_end_of_one_pair_costs_others_nothing() {
    let limits = Limits { mtu: 1 << 20, slots: 4, rmbs: 4, ..LIMITS };
    let [mut hub, mut busy, mut gone] = [(); 3].map(|()| Local::new(limits).unwrap());
    let ((_one, to, from), (_other, _, left)) = (join(&mut busy, &mut hub), join(&mut gone, &mut hub));
    let sent = bytes(1, 4 << 20);
    hub.receive(Some(from), Tag(1), u64::MAX, vec![0; sent.len()]).unwrap();
    busy.send_by(to, Tag(1), sent.clone(), Scheme::OneCopy).unwrap();
    hub.progress();
    (0..10).for_each(|_| _ = busy.progress());
    // A part of the four.
    hub.progress();
    hub.hang_up(left);
    assert!(hub.has_work() && !hub.has_done());
    (0..10).for_each(|_| _ = hub.progress());
    assert!(hub.done().is_some_and(|done| done.buffer == sent));
    // Of one that ends, what has come counts.
    hub.receive(Some(from), Tag(2), u64::MAX, vec![0; sent.len()]).unwrap();
    busy.send_by(to, Tag(2), sent.clone(), Scheme::OneCopy).unwrap();
    hub.progress();
    (0..10).for_each(|_| _ = busy.progress());
    hub.hang_up(from);
    assert!(hub.done().is_some_and(|done| done.buffer == sent));
    assert_eq!(hub.engine().in_use(), (0, 0));
}

/// A pair that was lost, of which nobody was told yet, is not taken for the one that comes after it.
#[test]
fn a_late_breach_is_that_of_who_did_it() {
    let (mut one, mut other, mut third) =
        (Local::new(LIMITS).unwrap(), Local::new(LIMITS).unwrap(), Local::new(LIMITS).unwrap());
    let (memory, to, from) = join(&mut one, &mut other);
    other.claim(0..=9, Owner(1)).unwrap();
    assert_eq!(one.ring(to, 5), Some(Ok(())));
    // Whatever stands in the word of a doorbell, but for the stamp, which says that there is one.
    let words = memory.window().slots64(131_584, 1 << 11).unwrap();
    let said = 1 | 5 << 32;
    let place = (0..1 << 11).find(|at| words.load(*at) == said).unwrap();
    words.store(place, 1 | u64::from(u32::MAX) << 32);
    assert!(other.bell(from).is_err());
    let (_memory, to, new) = join(&mut third, &mut other);
    other.progress();
    assert_eq!(other.lost().map(|lost| lost.0), Some(from));
    assert_ne!(new, from);
    assert_eq!(other.lost(), None);
    assert_eq!(third.ring(to, 7), Some(Ok(())));
    assert!(matches!(other.bell(new), Ok(Some(Bell { number: 7, .. }))));
    // When that was told, it is free for the next one.
    let (_memory, _, next) = join(&mut one, &mut other);
    assert_eq!(next, from);
}

#[test]
fn doorbells_of_all_have_their_turns() {
    let [mut hub, mut one, mut other] = [(); 3].map(|()| Local::new(LIMITS).unwrap());
    let ((_one, to, first), (_other, also_to, second)) = (join(&mut one, &mut hub), join(&mut other, &mut hub));
    hub.claim(0..=8, Owner(1)).unwrap();
    hub.claim(9..=9, Owner(2)).unwrap();
    for number in 0..4 {
        one.ring(to, number).unwrap().unwrap();
        other.ring(also_to, number).unwrap().unwrap();
    }
    let who: Vec<PairId> = core::iter::from_fn(|| hub.any_bell()).map(|(pair, _)| pair).collect();
    assert_eq!(who, [first, second].repeat(4));
    // One that nobody wants any more, and one behind it.
    one.ring(to, 9).unwrap().unwrap();
    one.ring(to, 3).unwrap().unwrap();
    hub.release(Owner(2));
    hub.progress();
    let before = hub.bells_noted();
    assert_eq!(hub.any_bell(), None);
    assert!(!hub.is_quiet(), "something waits of which nobody was told");
    hub.progress();
    assert_eq!(hub.bells_noted(), before + 1);
    assert!(matches!(hub.any_bell(), Some((_, Bell { number: 3, .. }))));
}

/// What is read in the memory of another process may take long: the endpoint goes on meanwhile, and the pair may end.
#[test]
fn an_endpoint_goes_on_while_somebody_reads() {
    let (one_end, other_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    // The other process is this one.
    let process = |end: OwnedFd| OtherProcess::new(rustix::process::getpid(), Arc::new(end)).map(Arc::new);
    for ends in [false, true] {
        let (mut one, mut other) = (Local::new(LIMITS).unwrap(), Local::new(LIMITS).unwrap());
        let memory = Region::heap(memory_len(one.terms(), other.terms()));
        let ends_of =
            [&one_end, &other_end].map(|end| Reach { process: process(end.try_clone().unwrap()), files: None });
        let [own, others] = ends_of;
        let to = one.join(memory.window(), Side::Maker, other.terms(), own).unwrap();
        let from = other.join(memory.window(), Side::Taker, one.terms(), others).unwrap();
        let wanted = other.receive(Some(from), Tag(1), u64::MAX, vec![0; 5000]).unwrap();
        let also = other.receive(Some(from), Tag(2), u64::MAX, vec![0; 100]).unwrap();
        one.send_by(to, Tag(1), bytes(1, 5000), Scheme::ZeroCopy).unwrap();
        one.send_by(to, Tag(2), bytes(2, 100), Scheme::Eager).unwrap();
        other.advance();
        let mut reading = other.reading().unwrap();
        assert!(other.reading().is_none() && !other.has_work());
        assert_eq!(other.done().unwrap().request, also);
        if ends {
            other.leave(from);
        }
        assert!(other.done().is_none(), "its memory is in use");
        reading.read();
        other.was_read(reading);
        other.advance();
        let done = other.done().unwrap();
        let expected = match ends {
            true => Outcome::Lost,
            false => Outcome::Received { pair: from, tag: Tag(1), len: 5000 },
        };
        assert_eq!((done.request, done.outcome), (wanted, expected));
        assert!(done.buffer == bytes(1, 5000));
        one.progress();
        assert_eq!(one.done().map(|done| done.outcome), Some(Outcome::Sent));
    }
}
