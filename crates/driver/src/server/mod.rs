//! The server: one thread that waits for messages and for the death of programs.
//!
//! * `driver`: who starts it; `connections`: who talks to it.
//! * `requests`: what is asked for; `replies`: what is said. `queues`, `owners`, `mappings`: what comes of it.

mod connections;
mod driver;
mod mappings;
mod owners;
mod queues;
mod replies;
mod requests;

pub use driver::{Driver, DriverError};

use crate::locks::Locks;
use crate::native::Native;
use crate::poll::Poll;
use crate::session::Session;
use connections::Connected;
use millrace_abi::queue::QueueId;
use millrace_card::Card;
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
/// Tokens of clients: twice the number for the socket, one more for the process.
const FIRST_CLIENT_TOKEN: u64 = 2;

/// What the server's thread and its owner share.
struct Shared {
    // Sockets, and whether the other end may start queues on plain addresses of this process.
    arrivals: Mutex<Vec<(OwnedFd, bool)>>,
    stop: AtomicBool,
    wake: OwnedFd,
}

impl Shared {
    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

struct Server {
    card: Arc<Card>,
    shared: Arc<Shared>,
    poll: Poll,
    listener: Option<OwnedFd>,
    clients: HashMap<u64, Connected>,
    next_client: u64,
    sessions: HashMap<QueueId, Session>,
    // Where the last owner of each queue stopped.
    positions: HashMap<QueueId, u64>,
    // Queues that were started through the registers.
    natives: HashMap<QueueId, Native>,
    // Paths of the DMA controllers: what is locked.
    controllers: HashMap<QueueId, String>,
    locks: Locks,
    // Most descriptors and mappings of its own that the connections of one process may cost.
    budget: usize,
    spare: Option<OwnedFd>,
    buffer: Box<[u8]>,
}

impl Server {
    fn run(mut self) {
        loop {
            for token in self.poll.wait() {
                match token {
                    LISTENER => self.accept_all(),
                    WAKE => self.take_arrivals(),
                    token => {
                        let client = (token - FIRST_CLIENT_TOKEN) / 2;
                        if (token - FIRST_CLIENT_TOKEN) % 2 == 1 {
                            // The process has died, whoever else may have inherited its socket.
                            self.disconnect(client);
                        } else {
                            self.serve(client);
                        }
                    }
                }
            }
            if self.shared.stop.load(Ordering::Acquire) {
                break;
            }
        }
        let clients: Vec<u64> = self.clients.keys().copied().collect();
        clients.into_iter().for_each(|client| self.disconnect(client));
    }
}
