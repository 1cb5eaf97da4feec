//! A peer whose bell many listen to, and those who ring it. A program of its own, since what is counted is the process's.

use millrace_callers::{Carries, Listener};
use millrace_ivshmem::protocol::{MEMORY, Reader};
use millrace_ivshmem::{At, Endpoint, Event, Limits, Server};
use millrace_listeners::{Listeners, ring_until_apart};
use millrace_port::slow_wakes;
use rustix::fd::OwnedFd;
use std::cell::RefCell;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Somebody who connects as QEMU does: his number, and his own vector.
fn eve(path: &std::path::Path) -> (UnixStream, u16, OwnedFd) {
    let (stream, begin) = (UnixStream::connect(path).unwrap(), Instant::now());
    let (mut reader, mut own) = (Reader::default(), None);
    loop {
        assert!(begin.elapsed() < PATIENCE, "the server greets");
        match reader.next(&stream).unwrap() {
            // The version, and then her number.
            Some((number, None)) => own = Some(number),
            Some((number, Some(fd))) if Some(number) == own && number != MEMORY => return (stream, number as u16, fd),
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

#[test]
fn whose_bell_has_many_listeners_keeps_his_own_thread_and_no_peer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Listener::private(path.clone(), Carries::Streams).unwrap();
    let mut server = Server::new(listener, Limits { peers: 4, vectors: 1, ..Limits::default() }).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    let thread = std::thread::spawn(move || {
        while !asked.load(Ordering::Relaxed) {
            server.turn(Duration::from_millis(5), |_| {}).unwrap();
        }
    });
    let at = At::Socket(path.clone());
    let (mut one, mut two) = (Endpoint::open(&at).unwrap(), Endpoint::open(&at).unwrap());
    let (_stream, number, own) = eve(&path);
    let honest = two.id();
    two.listen(0..=9).unwrap();
    if let Some(_listeners) = Listeners::of(&own) {
        one.hear();
        let one = RefCell::new(&mut one);
        ring_until_apart(&own, || one.borrow_mut().wake(number), || slow_wakes()[1] > 0);
        let [_, apart] = slow_wakes();
        // Another peer is woken at once, and by who rings him.
        let one = one.into_inner();
        one.ring(honest, 7).unwrap();
        assert_eq!(two.take(), Some((one.id(), Event::Doorbell(7))));
        one.wake(honest);
        let [fd, _] = two.fds().unwrap();
        assert!(millrace_listeners::comes(fd, 0));
        assert_eq!(slow_wakes()[1], apart);
    }
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}
