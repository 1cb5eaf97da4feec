//! Floods of the control socket: requests, connections, descriptors.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use millrace_abi::message::{Change, Request};
use millrace_tool::failure::Failure;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::attack::{Attack, cannot};
use super::peer::Peer;

/// Connections of a flood of requests.
const CONNECTIONS: usize = 16;
/// Requests sent on one before its replies are read.
const AT_ONCE: usize = 64;
/// Descriptors that a process may have.
const LIMIT: u64 = 400;
/// What a flood does when it is turned away: it comes again soon.
const AGAIN: Duration = Duration::from_millis(1);

/// Requests on several connections, of all sorts that cost the driver work.
pub struct Requests {
    path: PathBuf,
    peers: Vec<Option<Peer>>,
}

impl Requests {
    /// Connects.
    pub fn new(path: &Path) -> Result<Self, Failure> {
        // The first has to work, or this is no flood.
        let first = Peer::introduced(path).map_err(|errno| cannot("connect", errno))?;
        let peers = (1..CONNECTIONS).map(|_| None).chain([Some(first)]).collect();
        Ok(Self { path: path.to_owned(), peers })
    }
}

impl Attack for Requests {
    fn step(&mut self) -> Result<u64, Failure> {
        let mut sent = 0;
        for place in &mut self.peers {
            match place {
                Some(peer) => match burst(peer) {
                    Ok(count) => sent += count,
                    // Disconnected: a new one takes its place.
                    Err(_) => *place = None,
                },
                None => *place = Peer::introduced(&self.path).ok(),
            }
        }
        if sent == 0 {
            thread::sleep(AGAIN);
        }
        Ok(sent)
    }
}

/// Sends what the card takes, and reads what has been answered.
fn burst(peer: &Peer) -> Result<u64, Errno> {
    let port = u32::MAX;
    let requests = [
        Request::Read { address: 0, len: 4096 },
        Request::DeviceTree,
        Request::Stats,
        Request::Change(Change::Disconnect { port }),
    ];
    peer.drain()?;
    let mut sent = 0;
    for request in requests.iter().cycle().take(AT_ONCE) {
        match peer.send(request, &[]) {
            Ok(()) => sent += 1,
            Err(Errno::AGAIN | Errno::INTR) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(sent)
}

/// Connections that are closed at once.
pub struct Connects {
    path: PathBuf,
}

impl Connects {
    /// To the card at `path`.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

impl Attack for Connects {
    fn step(&mut self) -> Result<u64, Failure> {
        // Several wait in the listener's queue at once, half of them say hello.
        let peers: Vec<_> = (0..AT_ONCE)
            .filter_map(|number| match number % 2 {
                0 => Peer::connect(&self.path).ok(),
                _ => Peer::introduced(&self.path).ok(),
            })
            .collect();
        if peers.is_empty() {
            thread::sleep(AGAIN);
        }
        Ok(peers.len() as u64)
    }
}

/// As many connections as this process can have, held, and tries for more.
pub struct Descriptors {
    path: PathBuf,
    held: Vec<Peer>,
}

impl Descriptors {
    /// Limits this process to [`LIMIT`] descriptors.
    pub fn new(path: &Path) -> Result<Self, Failure> {
        let limit = Some(LIMIT);
        setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })
            .map_err(|errno| cannot("limit its descriptors", errno))?;
        Ok(Self { path: path.to_owned(), held: Vec::new() })
    }
}

impl Attack for Descriptors {
    fn step(&mut self) -> Result<u64, Failure> {
        let before = self.held.len();
        // Those that the card has ended make room for others.
        self.held.retain(|peer| peer.drain().is_ok());
        while let Ok(peer) = Peer::introduced(&self.path) {
            self.held.push(peer);
        }
        thread::sleep(AGAIN);
        Ok(self.held.len().saturating_sub(before) as u64)
    }
}
