//! A machine that has no threads left for a card. Alone in its process, because the limit is the process's.

use millrace_rdma::number::Gid;
use millrace_rdma::served::Quota;
use millrace_served::wire::Request;
use millrace_served::{Address, Client, Server, Start, owner_only};
use rustix::process::{Resource, Rlimit, Uid, geteuid, getrlimit, setrlimit};
use rustix::thread::set_thread_res_uid;
use std::time::{Duration, Instant};

/// As many as a process may have.
fn call_all(path: &std::path::Path) -> Vec<Client> {
    let called = (0..8).map_while(|_| {
        let client = Client::connect(path).unwrap();
        client.call(&Request::Hello, &[]).is_ok().then_some(client)
    });
    called.collect()
}

#[test]
fn who_has_gone_keeps_no_place_once_there_are_threads_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card.rdma");
    let mut server = Server::listen(path.clone()).unwrap();
    let (gids, quota, may) = ([Gid([1; 16]); 2], Quota::default(), owner_only());
    let address = Address { mac: [2; 6], gids };
    let start = Start { address, quota, cpu: None, link: None, mtu: 4096, may, userfaultfd: None };
    // The limit does not hold for root.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if geteuid().is_root() {
                let nobody = Some(Uid::from_raw(65534));
                set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            server.start(start).unwrap();
        });
    });
    let clients = call_all(&path);
    assert_eq!(clients.len(), 8);
    let before = getrlimit(Resource::Nproc);
    setrlimit(Resource::Nproc, Rlimit { current: Some(0), ..before }).unwrap();
    drop(clients);
    // They are missed, and nothing can be closed.
    let missed = Instant::now();
    while missed.elapsed() < Duration::from_millis(500) {
        assert!(call_all(&path).is_empty(), "the limit holds for nobody here");
        std::thread::sleep(Duration::from_millis(20));
    }
    setrlimit(Resource::Nproc, before).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while call_all(&path).len() < 8 {
        assert!(Instant::now() < until, "they have their places for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
}
