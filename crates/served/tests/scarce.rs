//! A card that has no descriptors left. Alone in its process, because the limit is the process's.

use millrace_dma::{Pages, Region};
use millrace_rdma::memory::ProtectionDomain;
use millrace_rdma::number::Gid;
use millrace_rdma::served::Quota;
use millrace_rdma::work::Access;
use millrace_served::wire::{Bytes, Parts, Register, Request};
use millrace_served::{Address, Client, Server, Start, owner_only};
use rustix::fd::OwnedFd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;

#[test]
fn what_brings_descriptors_waits_until_there_are_some() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card.rdma");
    let mut server = Server::listen(path.clone()).unwrap();
    let (gids, quota, may) = ([Gid([1; 16]); 2], Quota::default(), owner_only());
    let address = Address { mac: [2; 6], gids };
    server.start(Start { address, quota, cpu: None, link: None, mtu: 4096, may, userfaultfd: None }).unwrap();
    let client = Client::connect(&path).unwrap();
    client.call(&Request::Hello, &[]).unwrap();
    let domain = ProtectionDomain(client.call(&Request::CreateDomain, &[]).unwrap().0.word().unwrap() as u32);
    let memory = Region::allocate(4096, Pages::Ordinary).unwrap();
    let bytes = Bytes { parts: Parts::new([(0, 4096)]).unwrap(), skip: 0, len: 4096, base: 0 };
    let asked = Request::Register(Register { domain, access: Access::LOCAL_WRITE, bytes });

    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(1024), maximum }).unwrap();
    let others: Vec<OwnedFd> = core::iter::from_fn(|| memory.fd().unwrap().try_clone_to_owned().ok()).collect();
    assert!(others.len() > 900);
    let answered = std::thread::scope(|scope| {
        let waits = scope.spawn(|| client.call(&asked, &[memory.fd().unwrap()]));
        // Time enough to take it, and for the system to close what there is no room for.
        std::thread::sleep(Duration::from_millis(300));
        drop(others);
        waits.join().unwrap()
    });
    answered.unwrap();
}
