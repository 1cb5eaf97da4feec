//! The socket at which programs find the engine of a card, and the start and the end of its thread.

use crate::network::Network;
use crate::worker::Worker;
use millrace_callers::{Listener, May, remember_cores};
use millrace_link::Link;
use millrace_rdma::engine::Options;
use millrace_rdma::number::Gid;
use millrace_rdma::served::{Quota, Service};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Who all programs of the card are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// MAC address.
    pub mac: [u8; 6],
    /// GIDs; the first is that of the IP address.
    pub gids: [Gid; 2],
}

/// With what the engine of a card starts.
pub struct Start {
    /// Who its programs are.
    pub address: Address,
    /// How much one of them may have.
    pub quota: Quota,
    /// The core on which it works; without one, any.
    pub cpu: Option<usize>,
    /// What leads to other hosts.
    pub link: Option<Link>,
    /// Most bytes of payload of a packet: what fits into frames of the link.
    pub mtu: u16,
    /// Who may use it.
    pub may: May,
    /// `/dev/userfaultfd`, for programs that have no right of their own to make their memory shared memory.
    pub userfaultfd: Option<OwnedFd>,
}

/// A socket that programs find; it is removed when this is dropped, and what was served ends.
pub struct Server {
    listener: Listener,
    stop: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `path`, where nothing may be but the socket of a card that has died. Nobody is served before
    /// [`Server::start`].
    ///
    /// # Errors
    /// Those of the system; `EADDRINUSE` when something else is there.
    pub fn listen(path: PathBuf) -> Result<Self, Errno> {
        let listener = Listener::at(path)?;
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { listener, stop: Arc::default(), bell, thread: None })
    }

    /// Which socket it is, whatever it is called: the numbers of its file system, and there.
    pub fn socket(&self) -> (u64, u64) {
        self.listener.socket()
    }

    /// Serves programs from now on. To be called when the process has the rights that it
    /// keeps.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(&mut self, start: Start) -> std::io::Result<()> {
        let Start { address, quota, cpu, link, mtu, may, userfaultfd } = start;
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let (stop, bell) = (self.stop.clone(), self.bell.clone());
        remember_cores();
        let run = move || {
            if let Some(cpu) = cpu {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cpu);
                // A core that has gone since it was looked at: then it runs on any other.
                let _ = rustix::thread::sched_setaffinity(None, &set);
            }
            let options = Options { datagram_mtu: mtu, seed: seed(), ..Options::default() };
            let service = Service::new(options, address.mac, &address.gids, quota);
            let network = link.map(|link| Network::new(link, &address));
            let rights = (may, userfaultfd);
            Worker::new(service, network, (address, mtu), rights, listener, bell).run(&stop);
        };
        self.thread = Some(std::thread::Builder::new().name("millrace-rdma".into()).spawn(run)?);
        Ok(())
    }
}

/// Of the random keys that the system gives every process.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

impl Drop for Server {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `Worker::run`; the bell comes after it.
        self.stop.store(true, Ordering::Release);
        let _ = write(&*self.bell, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
