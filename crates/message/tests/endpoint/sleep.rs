//! Who sleeps, who wakes whom, and who does the work meanwhile.

use super::*;

/// Who has called, and then only waits for a descriptor: its helper thread slept when it called, and knows the new one all the same.
#[test]
fn who_has_called_is_woken() {
    for round in 0..20 {
        let what = format!("woken-{round}");
        let other = open(&what);
        let one = Endpoint::with(SLEEPY).unwrap();
        let descriptor = one.descriptor().unwrap();
        let to = one.connect(&name(&what), Duration::MAX).unwrap();
        let wanted = one.receive(Some(to), Tag(1), u64::MAX, vec![0; 3000]).unwrap();
        let from = other.accept(LONG).unwrap();
        other.send(from, Tag(1), bytes(round, 3000)).unwrap();
        let most = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&*descriptor, PollFlags::IN)], Some(&most)), Ok(1), "{round}");
        assert!(one.wait(wanted, NOT_AT_ALL).unwrap().buffer == bytes(round, 3000));
    }
}

/// The next message that has ended, by sleeping on the descriptor after each look, as programs with a loop of their own do.
fn next_by_descriptor(end: &Endpoint, descriptor: &OwnedFd) -> Ended {
    let long = Timespec { tv_sec: 20, tv_nsec: 0 };
    loop {
        if let Some(ended) = end.next(NOT_AT_ALL) {
            return ended;
        }
        assert_eq!(poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&long)), Ok(1), "nothing comes");
    }
}

/// Who calls, and sleeps on the descriptor the next moment, is woken at once, and not when the thread of the endpoint looks by itself, a
/// millisecond later.
#[test]
fn who_sleeps_on_the_descriptor_is_woken_at_once() {
    let (one, other, to, from) = pair("descriptor-wakes");
    let trips = |count: usize| -> Duration {
        let turn = |end: &Endpoint, peer: Peer, begins: bool| -> Vec<Duration> {
            let descriptor = end.descriptor().unwrap();
            let took = (0..count).map(|_| {
                let begin = Instant::now();
                end.receive(Some(peer), Tag(1), u64::MAX, vec![0; 8]).unwrap();
                let (mut has_begun, mut has_sent, mut has_received) = (false, false, false);
                while !has_sent || !has_received {
                    if !has_begun && (begins || has_received) {
                        end.send(peer, Tag(1), vec![1; 8]).unwrap();
                        has_begun = true;
                    }
                    match next_by_descriptor(end, &descriptor).outcome {
                        Outcome::Sent => has_sent = true,
                        Outcome::Received { .. } => has_received = true,
                        outcome => panic!("{outcome:?}"),
                    }
                }
                begin.elapsed()
            });
            took.collect()
        };
        let mut took = std::thread::scope(|scope| {
            scope.spawn(|| turn(&other, from, false));
            turn(&one, to, true)
        });
        took.sort();
        took[count / 2]
    };
    // Who is woken by nobody looks each millisecond. Others use the machine, so once is enough.
    assert!((0..100).any(|_| trips(40) < Duration::from_micros(900)), "nobody is woken at once");
}

/// Memory that notes who writes into it.
#[derive(Debug)]
struct Signed(Vec<u8>, Vec<Option<String>>);

impl Buffer for Signed {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn piece(&self, offset: usize, most: usize) -> &[u8] {
        self.0.piece(offset, most)
    }

    fn piece_mut(&mut self, offset: usize, most: usize) -> &mut [u8] {
        self.1.push(std::thread::current().name().map(str::to_owned));
        self.0.piece_mut(offset, most)
    }

    fn shorten(&mut self, len: usize) {
        self.0.truncate(len);
    }
}

/// Without optimisation 3 a thread that waits touches no message, whether it sleeps or looks; with it, it does.
#[test]
fn who_waits_leaves_the_work_to_the_thread_of_the_endpoint() {
    for (spin, waiters_work) in [(0, false), (10_000_000, false), (10_000_000, true)] {
        let spin = Duration::from_micros(spin);
        let what = format!("leaves-{waiters_work}-{}", spin.as_micros());
        let config = Config { name: Some(name(&what)), spin, waiters_work, ..SLEEPY };
        let (one, other) = (Endpoint::with(SLEEPY).unwrap(), Endpoint::of_buffers(config).unwrap());
        let to = one.connect(&name(&what), LONG).unwrap();
        let from = other.accept(LONG).unwrap();
        // Where both may work, it is the other one's chance who does, on a busy machine: once is enough.
        let mut tries = [100, 100_000].map(|len| (len, if waiters_work { 1000 } else { 1 }));
        while let Some((len, left)) = tries.iter_mut().find(|(_, left)| *left > 0) {
            let len = *len;
            *left -= 1;
            let is_last = *left == 0;
            let buffer = Signed(vec![0; len], Vec::new());
            let request = other.receive(Some(from), Tag(1), u64::MAX, buffer).unwrap();
            let ended = std::thread::scope(|scope| {
                let waiting = scope.spawn(|| other.wait(request, LONG).unwrap());
                std::thread::sleep(Duration::from_millis(5));
                let sent = one.send(to, Tag(1), bytes(1, len)).unwrap();
                one.wait(sent, LONG).unwrap();
                waiting.join().unwrap()
            });
            assert_eq!(ended.buffer.0, bytes(1, len));
            let is_helpers = |who: &Option<String>| who.as_deref() == Some("millrace-message");
            assert!(!ended.buffer.1.is_empty());
            let is_so = ended.buffer.1.iter().all(is_helpers) != waiters_work;
            assert!(is_so || !is_last, "{what}, {len}: {:?}", ended.buffer.1);
            if is_so {
                *left = 0;
            }
        }
    }
}

/// Functions are called when messages have ended, or had before; they may begin others.
#[test]
fn functions_are_called_when_messages_have_ended() {
    let (one, other, to, from) = pair("then");
    let (said, heard) = std::sync::mpsc::channel();
    let other = std::sync::Arc::new(other);
    // An answer to each message, without a thread that waits.
    fn answers(end: &std::sync::Arc<Endpoint>, to: Peer) {
        let (again, wanted) = (end.clone(), end.receive(Some(to), Tag(1), u64::MAX, vec![0; 100_000]).unwrap());
        assert!(end.then(wanted, move |ended| {
            if ended.outcome == Outcome::Lost {
                return;
            }
            again.send(to, Tag(2), ended.buffer).unwrap();
            answers(&again, to);
        }));
    }
    answers(&other, from);
    for turn in 0..100_u64 {
        let len = 1000 * turn as usize;
        let back = one.receive(Some(to), Tag(2), u64::MAX, vec![0; 100_000]).unwrap();
        let said = said.clone();
        assert!(one.then(back, move |ended| said.send(ended.buffer).unwrap()));
        assert!(one.send(to, Tag(1), bytes(turn, len)).is_ok());
        assert!(heard.recv_timeout(LONG).unwrap() == bytes(turn, len));
        assert!(one.wait(back, NOT_AT_ALL).is_none() && !one.then(back, |_| panic!("it was told")));
    }
    // One that has ended already, and one that panics.
    let back = one.receive(Some(to), Tag(2), u64::MAX, vec![0; 8]).unwrap();
    let sent = one.send(to, Tag(1), vec![1]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(one.then(back, |_| panic!("as it should")));
    let also = said.clone();
    assert!(one.then(sent, move |ended| also.send(ended.buffer).unwrap()));
    assert_eq!(heard.recv_timeout(LONG).unwrap(), [1]);
    let lost = one.receive(Some(to), Tag(9), u64::MAX, vec![0; 3]).unwrap();
    let also = said.clone();
    assert!(one.then(lost, move |ended| also.send(vec![u8::from(ended.outcome == Outcome::Lost)]).unwrap()));
    other.leave(from);
    assert_eq!(heard.recv_timeout(LONG).unwrap(), [1]);
    // The function that waits there is the last one that has the endpoint.
    drop(other);
    let gone = Instant::now();
    while Endpoint::open(&name("then")).is_err() {
        assert!(gone.elapsed() < LONG);
    }
    // Those that are never called are dropped with the endpoint.
    let wanted = one.receive(None, Tag(9), u64::MAX, vec![]).unwrap();
    assert!(one.then(wanted, move |_| drop(said)));
    drop(one);
    assert!(heard.recv_timeout(LONG).is_err());
}
