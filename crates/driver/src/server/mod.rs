//! The server: one thread that waits for messages and for the death of programs.
//!
//! It works in rounds, each of which is bounded, whatever programs do: what programs that have gone had is cleared up
//! first, then some connections are accepted, then some requests are answered.
//!
//! * here: its state, `Server`, and its rounds. `driver`: who starts it; `shared`: what they share; `listen`: where.
//! * `connected`: one who talks to it; `connections`: they come and go; `schedule`: whose turn it is; `visible`: who they
//!   are.
//! * `requests`: what is asked for; `replies`: what is said; `sending`: that it is. `queues`, `owners`, `mappings`: what
//!   comes of it.
//! * `policy`: what the administrator says; `rights`: who may ask for it; `quotas`: how much of it; `standing`: both, for
//!   one connection; `charges`: what it pays.
//! * `clock`: who leads the card's clock.
//! * `reaper`, `changes`, `flows`: what may take long, on threads of its own; `pause`, `fds`: what is put off and
//!   refused when there is too much.

mod changes;
mod charges;
mod clock;
mod connected;
mod connections;
mod driver;
mod fds;
mod flows;
mod listen;
mod mappings;
mod owners;
mod pause;
mod peer;
mod policy;
mod queues;
mod quotas;
mod reaper;
mod replies;
mod requests;
mod rights;
mod schedule;
mod sending;
mod shared;
mod standing;
mod visible;

pub use driver::{Driver, DriverError};
pub use listen::SocketIdentity;
pub use peer::peer_of;
pub use policy::Policy;

use crate::locks::Locks;
use crate::native::Native;
use crate::poll::Poll;
use crate::session::Session;
use changes::Changes;
use connected::{Connected, TurnedAway};
use fds::Fds;
use flows::Flows;
use millrace_abi::queue::QueueId;
use millrace_card::Card;
use pause::Pause;
use quotas::Ledger;
use reaper::Reaper;
use replies::SharedFile;
use rustix::fd::OwnedFd;
use schedule::Schedule;
use shared::Shared;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
/// Tokens of clients: twice the number for the socket, one more for the process.
const FIRST_CLIENT_TOKEN: u64 = 2;

/// Connections accepted in one round: few, because each costs as much as several requests, of which there are then some
/// more.
const ACCEPTS: usize = 4;
/// Requests answered in one round.
const REQUESTS: usize = 16;
/// How long a round answers requests: one that has begun is finished.
const SLICE: Duration = Duration::from_millis(1);
/// How long a round clears up. Longer than [`ACCEPTS`] connections take that were closed at once.
const CLEAR_UP: Duration = Duration::from_micros(200);

struct Server {
    card: Arc<Card>,
    shared: Arc<Shared>,
    poll: Poll,
    listener: Option<OwnedFd>,
    clients: HashMap<u64, Connected>,
    next_client: u64,
    schedule: Schedule,
    // Those that have gone, and something of theirs is left.
    ending: VecDeque<u64>,
    pause: Pause,
    // Seen by the last look: somebody wants to connect; another thread of ours has something.
    connecting: bool,
    woken: bool,
    // In this round something was cleared up to avoid a refusal.
    cleared: bool,
    sessions: HashMap<QueueId, Session>,
    // Where the last owner of each queue stopped.
    positions: HashMap<QueueId, u64>,
    // Queues that were started through the registers.
    natives: HashMap<QueueId, Native>,
    // Paths of the DMA controllers: what is locked.
    controllers: HashMap<QueueId, String>,
    locks: Locks,
    // Who may do what, and who has how much.
    policy: Policy,
    ledger: Ledger,
    tree: SharedFile,
    fds: Fds,
    spare: Option<OwnedFd>,
    turned_away: TurnedAway,
    changes: Changes,
    flows: Flows,
    // The connection that leads the card's clock.
    clock_leader: Option<u64>,
    reaper: Reaper,
    buffer: Box<[u8]>,
}

impl Server {
    fn run(mut self) {
        // Acquire pairs with the Release of whoever drops the driver.
        while !self.shared.stop.load(Ordering::Acquire) {
            self.look(self.patience());
            self.cleared = false;
            self.clear_up(CLEAR_UP);
            self.take_news();
            self.accept_some();
            self.end_pause();
            self.serve_some();
        }
        let clients: Vec<u64> = self.clients.keys().copied().collect();
        clients.into_iter().for_each(|client| self.end(client));
        self.clear_up(Duration::MAX);
    }

    /// How long the next look may wait; `None` as long as nothing happens.
    fn patience(&self) -> Option<Duration> {
        let busy = !self.schedule.is_idle() || !self.ending.is_empty();
        if busy { Some(Duration::ZERO) } else { self.pause.left() }
    }

    /// Takes note of what has happened.
    fn look(&mut self, most: Option<Duration>) {
        for happened in self.poll.wait(most) {
            match happened.token {
                LISTENER => self.connecting = true,
                WAKE => self.woken = true,
                token => {
                    let number = (token - FIRST_CLIENT_TOKEN) / 2;
                    // The process may have died, whoever else has inherited its socket.
                    if happened.closed || (token - FIRST_CLIENT_TOKEN) % 2 == 1 {
                        self.end(number);
                    } else {
                        self.listen_to(number);
                    }
                }
            }
        }
    }

    /// A connection has its turn again, unless it has none to have.
    fn listen_to(&mut self, number: u64) {
        if let Some(client) = self.clients.get(&number)
            && !client.ending
            && !client.changing
        {
            self.schedule.ready(client.asker);
        }
    }

    fn take_news(&mut self) {
        if core::mem::take(&mut self.woken) {
            let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
            self.take_arrivals();
            self.take_changed();
            self.take_listener();
        }
    }

    fn end_pause(&mut self) {
        let Some((listener, connections)) = self.pause.over() else { return };
        if listener {
            self.listen_again();
        }
        connections.into_iter().for_each(|number| self.listen_to(number));
    }

    fn serve_some(&mut self) {
        let begin = Instant::now();
        let mut before = begin;
        for _ in 0..REQUESTS {
            let Some(asker) = self.schedule.next() else { return };
            self.serve(asker);
            let now = Instant::now();
            self.schedule.charge(asker, (now - before).as_nanos() as u64);
            before = now;
            if now - begin > SLICE {
                return;
            }
        }
    }
}
