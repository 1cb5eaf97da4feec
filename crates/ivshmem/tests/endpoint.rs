//! Peers of the host, and what a guest may do to the memory that it shares with them.

use millrace_callers::{Carries, Listener};
use millrace_dma::{Protection, Region, Window};
use millrace_ivshmem::layout::Layout;
use millrace_ivshmem::protocol::Reader;
use millrace_ivshmem::{At, Endpoint, EndpointError, Event, Limits, MOST_BYTES, Server};
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, fcntl_setfl};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

struct Running {
    folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(peers: u16) -> Self {
        Self::with(Limits { peers, vectors: 1, ..Limits::default() })
    }

    fn with(limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::private(folder.path().join("socket"), Carries::Streams).unwrap();
        let mut server = Server::new(listener, limits).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let run = move || {
            while !asked.load(Ordering::Relaxed) {
                server.turn(Duration::from_millis(5), |_| {}).unwrap();
            }
        };
        Self { folder, stop, thread: Some(std::thread::spawn(run)) }
    }

    fn at(&self) -> At {
        At::Socket(self.folder.path().join("socket"))
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::open(&self.at()).unwrap()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}");
    }
}

/// The next that comes, by sleeping for it.
fn next(endpoint: &mut Endpoint) -> (u16, Event) {
    until("something comes", || {
        endpoint.take().or_else(|| {
            endpoint.wait(Duration::from_millis(500));
            None
        })
    })
}

fn ring(endpoint: &mut Endpoint, peer: u16, number: u16) {
    until("it can be rung", || match endpoint.ring(peer, number) {
        Ok(()) => Some(()),
        Err(error) if error.is_retryable() => {
            std::thread::yield_now();
            None
        }
        Err(error) => panic!("{error}"),
    });
}

#[test]
fn doorbells_and_messages_come_in_order_to_who_sleeps() {
    let server = Running::start(4);
    let (mut one, mut two) = (server.endpoint(), server.endpoint());
    let (from, to) = (one.id(), two.id());
    assert_eq!(one.peers(), [from, to]);
    two.listen(0..=u16::MAX).unwrap();
    let sender = std::thread::spawn(move || {
        for number in 0..=u16::MAX {
            ring(&mut one, to, number);
            if number % 64 == 0 {
                let message = vec![number as u8; usize::from(number) % (MOST_BYTES + 1)];
                until("it can be sent", || one.send(to, &message).ok());
            }
        }
        one
    });
    let (mut doorbells, mut messages) = (0, 0);
    while doorbells <= u32::from(u16::MAX) || messages < 1024 {
        let (found, event) = next(&mut two);
        assert_eq!(found, from);
        match event {
            Event::Doorbell(number) => {
                assert_eq!(u32::from(number), doorbells);
                doorbells += 1;
            }
            Event::Message(bytes) => {
                let number = messages * 64;
                assert_eq!(bytes, vec![number as u8; number % (MOST_BYTES + 1)]);
                messages += 1;
            }
        }
    }
    let mut one = sender.join().unwrap();
    assert!(matches!(one.send(to, &[0; MOST_BYTES + 1]), Err(EndpointError::TooLong(_))));
    assert!(matches!(one.ring(from, 1), Err(EndpointError::Peer { .. })));
    assert!(matches!(one.ring(4, 1), Err(EndpointError::Peer { .. })));
    assert!(matches!(one.ring(3, 1), Err(EndpointError::Gone(3))));
}

#[test]
fn a_doorbell_that_nobody_listens_for_is_refused_and_stays_with_its_sender() {
    let server = Running::start(4);
    let (mut one, mut two) = (server.endpoint(), server.endpoint());
    let to = two.id();
    assert!(matches!(one.ring(to, 7), Err(EndpointError::Unwanted(_, 7))));
    two.listen(5..=9).unwrap();
    one.ring(to, 7).unwrap();
    assert!(matches!(one.ring(to, 10), Err(EndpointError::Unwanted(_, 10))));
    assert_eq!(two.take(), Some((one.id(), Event::Doorbell(7))));
    // Somebody says for it that it listens for all: what comes then is counted.
    let (stream, memory, _fds) = raw(&server.at());
    let (bells, _) = Layout::open(&memory).unwrap().pair(one.id(), to).unwrap();
    const ALL: usize = (1 << 16) / 8;
    bells.span_mut(bells.len() - ALL, ALL).unwrap().write_from(&[0xff; ALL]);
    one.ring(to, 10).unwrap();
    one.ring(to, 9).unwrap();
    let came = until("what it listens for comes", || two.take());
    assert_eq!((came, two.refused().unclaimed), ((one.id(), Event::Doorbell(9)), 1));
    drop((two, stream));
    until("it has gone", || matches!(one.ring(to, 7), Err(EndpointError::Gone(_))).then_some(()));
}

#[test]
fn what_a_peer_has_sent_before_it_went_comes_and_so_does_what_came_while_nobody_received() {
    let server = Running::start(4);
    let (mut one, mut two) = (server.endpoint(), server.endpoint());
    let (from, to) = (one.id(), two.id());
    two.listen(0..=99).unwrap();
    for number in 0..10 {
        ring(&mut one, to, number);
    }
    one.send(to, b"last words").unwrap();
    assert!(one.has_waiting(to));
    drop(one);
    until("it has gone", || (two.peers() == [to]).then_some(()));
    for number in 0..10 {
        assert_eq!(two.take(), Some((from, Event::Doorbell(number))));
    }
    assert_eq!(two.take(), Some((from, Event::Message(b"last words".to_vec()))));
    assert_eq!(two.take(), None);
}

#[test]
fn as_many_wait_as_may() {
    let server = Running::start(2);
    let (mut one, mut two) = (server.endpoint(), server.endpoint());
    two.listen(0..=u16::MAX).unwrap();
    let to = two.id();
    let sent = (0..1000).take_while(|number| one.ring(to, *number).is_ok()).count();
    assert_eq!(sent, 256);
    assert!(matches!(one.ring(to, 0), Err(EndpointError::Full(_))));
    let taken: Vec<_> = std::iter::from_fn(|| two.take()).map(|(_, event)| event).collect();
    assert_eq!(taken, (0..256).map(Event::Doorbell).collect::<Vec<_>>());
}

#[test]
fn who_is_there_goes_on_when_the_server_has_ended() {
    let mut server = Running::start(3);
    let (mut one, mut two) = (server.endpoint(), server.endpoint());
    two.listen(0..=9).unwrap();
    server.end();
    until("it is noticed", || {
        two.wait(Duration::from_millis(10));
        two.is_alone().then_some(())
    });
    let to = two.id();
    let sender = std::thread::spawn(move || {
        for number in 0..10 {
            ring(&mut one, to, number);
            std::thread::sleep(Duration::from_millis(2));
        }
        one
    });
    for number in 0..10 {
        assert_eq!(next(&mut two).1, Event::Doorbell(number));
    }
    assert_eq!(sender.join().unwrap().peers().len(), 2);
    assert!(matches!(Endpoint::open(&server.at()), Err(EndpointError::Connect { .. })));
}

#[test]
fn a_peer_that_comes_with_a_number_that_was_used_begins_anew() {
    let server = Running::start(2);
    let mut one = server.endpoint();
    one.listen(0..=u16::MAX).unwrap();
    for round in 0..20 {
        let mut two = until("there is room", || {
            // What has gone must be read before its number is free.
            one.wait(Duration::from_millis(1));
            Endpoint::open(&server.at()).ok()
        });
        // It says to the new one what it wants when it has noticed him, which the server's message has it do.
        until("it is noticed", || {
            one.wait(Duration::from_millis(1));
            two.ring(one.id(), round * 100).ok()
        });
        for number in 1..50 {
            ring(&mut two, one.id(), round * 100 + number);
        }
        for number in 0..50 {
            assert_eq!(next(&mut one), (two.id(), Event::Doorbell(round * 100 + number)));
        }
    }
}

/// What somebody who connects has: the memory, and the eventfds of those who are there.
fn raw(at: &At) -> (UnixStream, Window, Vec<(i64, OwnedFd)>) {
    let At::Socket(path) = at else { panic!() };
    let stream = UnixStream::connect(path).unwrap();
    let (mut reader, mut fds, mut region) = (Reader::default(), Vec::new(), None);
    let mut own = None;
    let done = |fds: &Vec<(i64, OwnedFd)>, own: Option<i64>| fds.iter().any(|(id, _)| Some(*id) == own);
    while !done(&fds, own) {
        match reader.next(&stream).unwrap() {
            Some((-1, Some(fd))) => {
                let len = usize::try_from(rustix::fs::fstat(&fd).unwrap().st_size).unwrap();
                region = Some(Region::map(fd, len, Protection::ReadWrite, false).unwrap());
            }
            Some((id, Some(fd))) => fds.push((id, fd)),
            Some((number, None)) => own = Some(number),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    (stream, region.unwrap().window().clone(), fds)
}

#[test]
fn who_fills_eventfds_and_takes_their_flags_away_keeps_nobody_waiting() {
    let server = Running::start(4);
    let (mut one, mut two) = (server.endpoint(), server.endpoint());
    two.listen(0..=9).unwrap();
    let (_stream, _memory, fds) = raw(&server.at());
    for (_, event) in &fds {
        fcntl_setfl(event, OFlags::empty()).unwrap();
        rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    }
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        for number in 0..10 {
            // It says that it sleeps, so that it is rung.
            two.wait(Duration::ZERO);
            ring(&mut one, two.id(), number);
            assert_eq!(next(&mut two).1, Event::Doorbell(number));
        }
        done.send(()).unwrap();
    });
    finished.recv_timeout(PATIENCE).expect("nobody waits");
}

#[test]
fn who_scribbles_over_the_memory_harms_no_process() {
    let server = Running::start(4);
    let (mut one, mut two) = (server.endpoint(), server.endpoint());
    two.listen(0..=u16::MAX).unwrap();
    let (_stream, memory, _fds) = raw(&server.at());
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    let scribbler = std::thread::spawn(move || {
        let words = u32::try_from(memory.len() / 8).unwrap().next_power_of_two();
        let slots = memory.slots64(0, words).unwrap();
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut count = 0_u64;
        while !asked.load(Ordering::Relaxed) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            // Nonsense; what looks like a message or a doorbell; rings that are further than they can be.
            let at = seed as u32 % words;
            slots.store(
                at,
                match seed >> 62 {
                    0 => seed,
                    1 => u64::from(at % 8 + 1) | (seed >> 30 & 0x3ff) << 32,
                    2 => u64::from(seed as u32 % 300) | (seed >> 32 & 0x3_ffff) << 32,
                    _ => 0,
                },
            );
            count += 1;
        }
        count
    });
    let begin = Instant::now();
    let (mut turns, mut worst) = (0_u64, Duration::ZERO);
    while begin.elapsed() < Duration::from_secs(2) {
        let turn = Instant::now();
        let _ = one.ring(two.id(), turns as u16);
        let _ = one.send(two.id(), &[7; 100]);
        for _ in 0..8 {
            if let Some((from, event)) = two.take() {
                assert!(from < 4 && from != two.id());
                assert!(!matches!(event, Event::Message(bytes) if bytes.len() > MOST_BYTES));
            }
        }
        if turns % 16 == 0 {
            two.wait(Duration::from_millis(1));
        }
        worst = worst.max(turn.elapsed());
        turns += 1;
        // A program that comes meanwhile finds what it finds.
        if turns % 64 == 0 {
            match Endpoint::open(&server.at()) {
                Ok(mut third) => drop(third.listen(0..=9)),
                Err(error) => drop(error.to_string()),
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(scribbler.join().unwrap() > 1000 && turns > 10, "{turns}");
    assert!(worst < Duration::from_secs(5), "{worst:?}");
}

#[test]
fn who_only_looks_and_who_only_rings_are_not_cut_off() {
    let patience = Duration::from_secs(3);
    let server = Running::with(Limits { peers: 8, vectors: 1, patience, ..Limits::default() });
    let (mut looks, mut rings, mut seldom) = (server.endpoint(), server.endpoint(), server.endpoint());
    let (mut next, between) = (Duration::ZERO, Duration::from_millis(300));
    looks.listen(0..=9).unwrap();
    let (begin, to) = (Instant::now(), looks.id());
    let mut others = vec![server.endpoint(), server.endpoint()];
    // Longer than one may read nothing of what others cause.
    while begin.elapsed() < patience * 2 {
        let _ = rings.ring(to, 1);
        if begin.elapsed() > next {
            let _ = seldom.ring(to, 2);
            next += between;
        }
        while looks.take().is_some() {}
        others.iter_mut().for_each(Endpoint::hear);
        if others.len() < 4 && begin.elapsed() > patience {
            others.push(server.endpoint());
        }
    }
    assert!(!looks.is_cut_off() && !rings.is_cut_off() && !seldom.is_cut_off() && !looks.is_alone());
    assert_eq!(looks.peers().len(), 3 + others.len());
}

#[test]
fn who_is_cut_off_learns_it_and_its_number_is_nobodys_while_it_lives() {
    let patience = Duration::from_secs(1);
    let server = Running::with(Limits { peers: 4, vectors: 1, patience, ..Limits::default() });
    let mut slow = server.endpoint();
    slow.listen(0..=9).unwrap();
    let (number, mut other) = (slow.id(), server.endpoint());
    let to = other.id();
    // It reads nothing of the other's coming.
    until("it is cut off", || slow.is_cut_off().then_some(()));
    assert!(matches!(slow.ring(to, 1), Err(EndpointError::CutOff(own)) if own == number));
    assert!(matches!(slow.send(to, b"x"), Err(EndpointError::CutOff(_))));
    assert!(slow.take().is_none());
    // On a machine that stands still it may be too late itself.
    assert!(matches!(other.ring(number, 1), Err(EndpointError::Gone(_) | EndpointError::CutOff(_))));
    // Whose process is this one, which lives.
    let (mut third, mut fourth) = (server.endpoint(), server.endpoint());
    assert!(third.id() != number && fourth.id() != number);
    assert!(matches!(Endpoint::open(&server.at()), Err(EndpointError::TurnedAway(_))));
    [&mut other, &mut third, &mut fourth].into_iter().for_each(Endpoint::hear);
}
