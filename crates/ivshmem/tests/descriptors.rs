//! A peer without room for the descriptors that the server sends. A program of its own, since the limit is the process's.

use millrace_callers::{Carries, Listener};
use millrace_ivshmem::{At, Endpoint, Limits, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// The next descriptor that would be made.
fn next_descriptor() -> u64 {
    std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64
}

/// One more peer, which another thread opens while this one is the server.
fn join(server: &mut Server, path: &Path) -> Endpoint {
    let at = At::Socket(path.to_owned());
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| Endpoint::open(&at).unwrap());
        while !opening.is_finished() {
            server.turn(Duration::from_millis(1), |_| {}).unwrap();
        }
        opening.join().unwrap()
    })
}

#[test]
fn a_descriptor_that_is_lost_is_counted_and_is_nobodys_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Listener::private(path.clone(), Carries::Streams).unwrap();
    let mut server = Server::new(listener, Limits { peers: 4, vectors: 1, ..Limits::default() }).unwrap();
    let mut one = join(&mut server, &path);
    let two = join(&mut server, &path);
    server.turn(Duration::ZERO, |_| {}).unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(next_descriptor()), ..before }).unwrap();
    let begin = Instant::now();
    while one.refused().vectors < 1 {
        one.hear();
        assert!(begin.elapsed() < PATIENCE, "{:?}", one.refused());
    }
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(!one.is_alone() && one.peers() == [one.id(), two.id()]);
    // It goes on where it was: who comes with room is heard of.
    let three = join(&mut server, &path);
    server.turn(Duration::ZERO, |_| {}).unwrap();
    one.hear();
    assert_eq!((one.peers().len(), one.refused().vectors), (3, 1));
    drop((two, three));
}
