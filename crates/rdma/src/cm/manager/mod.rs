//! All connections of one end.
//!
//! What others may use up is bounded: connections in all ([`Options::most_connections`]), requests that are not yet answered, in all and
//! of one other end, requests that a program has not seen (its backlog), messages that wait to be sent. What is more is refused where the
//! protocol has a word for it, dropped otherwise, and counted.
//!
//! Files: `calls`, what the program does; `receive`, what comes; `time`, what is due.

mod calls;
mod receive;
#[cfg(test)]
mod tests;
mod time;

use super::address::ServiceId;
use super::connection::{Connection, Event, Id, Peer, State, Terms};
use super::message::{self, Bytes, Message, Request};
use crate::number::{Gid, Moment, Qpn};
use core::time::Duration;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Numbers that connections may have, where several managers share the addresses of one end: their upper bits say whose they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// The lowest.
    pub first: u32,
    /// How many of the lower bits may be chosen.
    pub bits: u8,
    /// The addresses of those who share.
    pub gids: [Gid; 4],
}

impl Ids {
    /// All of them: nobody shares.
    pub const ALL: Self = Self { first: 0, bits: 32, gids: [Gid([0; 16]); 4] };

    /// Which of those who share has that number, where that address is theirs; 0 otherwise.
    fn sharer(&self, gid: Gid, id: u32) -> u32 {
        if self.gids.contains(&gid) { id.checked_shr(self.bits.into()).unwrap_or(0) } else { 0 }
    }
}

/// What can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of random numbers, so that numbers of connections differ from those of an earlier process.
    pub seed: u64,
    /// Numbers that connections may have.
    pub ids: Ids,
    /// Longest payload of packets: 1 to 5, 256 to 4096 bytes.
    pub most_mtu: u8,
    /// Connections in all.
    pub most_connections: usize,
    /// Requests of others that are not yet connections.
    pub most_half_open: usize,
    /// The same, of one other end, or of one of those who share addresses with this.
    pub most_half_open_of_one: usize,
    /// How soon others have to answer, as a time of five bits.
    pub response_timeout: u8,
    /// How many times a message is sent again.
    pub retries: u8,
    /// How long a connection that is over is remembered.
    pub timewait: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            ids: Ids::ALL,
            most_mtu: 5,
            most_connections: 65_536,
            most_half_open: 4096,
            most_half_open_of_one: 1024,
            response_timeout: 18,
            retries: 15,
            timewait: Duration::from_secs(1),
        }
    }
}

/// Why something is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Somebody else offers the service.
    #[error("the service is offered already")]
    Taken,
    /// There is no such connection, or none any more.
    #[error("there is no such connection")]
    Unknown,
    /// It stands where this cannot be done.
    #[error("the connection is not in a state in which this can be done")]
    State,
    /// There are as many as there may be.
    #[error("there are as many connections as there may be")]
    Full,
}

macro_rules! counters {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// What happened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$about])* pub $name: u64,)*
        }

        impl Counters {
            /// All of them, by name.
            pub fn pairs(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Messages that came.
    received,
    /// Datagrams that were no messages: of another length.
    malformed_length,
    /// Another version, or method.
    malformed_header,
    /// Another class of management.
    other_class,
    /// A message that is not known, or not supported.
    unknown_message,
    /// Messages about connections that are not there, or are of another end.
    unknown_connection,
    /// Messages that a connection does not expect where it stands.
    unexpected,
    /// Messages that had come before.
    duplicate,
    /// Requests that were refused.
    refused,
    /// Requests of queue pairs that are connected already.
    stale,
    /// Requests and messages for which there was no room.
    no_room,
    /// Messages that were sent.
    sent,
    /// Of these, sent again after no answer came.
    sent_again,
    /// Connections given up because no answer came.
    timed_out,
}

/// Somebody who offers a service.
#[derive(Debug)]
struct Listener {
    owner: u64,
    backlog: usize,
    unseen: usize,
}

/// Most messages that wait to be sent.
const MOST_OUT: usize = 1024;

/// Requests for services that nobody offers yet, at most.
const MOST_EARLY: usize = 64;
/// How long they wait for somebody who does. Programs that connect twice stop listening between, and their peers may be quicker.
const GRACE: Duration = Duration::from_millis(500);

/// A request for a service that nobody offers yet.
#[derive(Debug)]
struct Early {
    until: Moment,
    from: Peer,
    transaction: u64,
    request: Box<Request>,
}

/// All connections of one end.
#[derive(Debug)]
pub struct Manager {
    options: Options,
    random: u64,
    connections: HashMap<Id, Connection>,
    listeners: HashMap<ServiceId, Listener>,
    /// Requests of others, by their numbers; whether it is one for a datagram service.
    requests: HashMap<(Gid, u32, bool), Id>,
    /// Connections by the queue pair of the other end.
    pairs: HashMap<(Gid, Qpn), Id>,
    early: VecDeque<Early>,
    half_open: HashMap<(Gid, u32), usize>,
    half_open_in_all: usize,
    timers: BTreeSet<(Moment, Id)>,
    out: VecDeque<(Peer, Box<Bytes>)>,
    events: VecDeque<Event>,
    counters: Counters,
}

impl Manager {
    /// Without any connection.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            random: options.seed,
            connections: HashMap::new(),
            listeners: HashMap::new(),
            requests: HashMap::new(),
            pairs: HashMap::new(),
            early: VecDeque::new(),
            half_open: HashMap::new(),
            half_open_in_all: 0,
            timers: BTreeSet::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// The next message that is to be sent, and where to.
    pub fn take_message(&mut self) -> Option<(Peer, Box<Bytes>)> {
        self.out.pop_front()
    }

    /// The next event. There are at most a few for each connection.
    pub fn take_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What happened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Where a connection stands.
    pub fn state(&self, id: Id) -> Option<State> {
        self.connections.get(&id).map(|connection| connection.state)
    }

    /// What its queue pair has to be told.
    pub fn terms(&self, id: Id) -> Option<Terms> {
        self.connections.get(&id).map(|connection| connection.terms)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// 32 bits that others cannot easily guess, given the seed (splitmix64).
    pub fn random(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) as u32
    }

    fn free_id(&mut self) -> Id {
        loop {
            let Ids { first, bits, .. } = self.options.ids;
            let id = first | self.random() & u32::MAX.checked_shr(32 - u32::from(bits)).unwrap_or(0);
            if id != 0 && !self.connections.contains_key(&id) {
                return id;
            }
        }
    }

    fn transaction(&mut self) -> u64 {
        u64::from(self.random()) << 32 | u64::from(self.random())
    }

    /// Sends a message that nobody remembers.
    fn send(&mut self, peer: Peer, transaction: u64, message: &Message) {
        self.put(peer, Box::new(message::build(transaction, message)));
    }

    fn put(&mut self, peer: Peer, bytes: Box<Bytes>) {
        if self.out.len() >= MOST_OUT {
            self.counters.no_room += 1;
            return;
        }
        self.counters.sent += 1;
        self.out.push_back((peer, bytes));
    }

    /// Sends a message of a connection, and keeps it. Where an answer is expected, it is sent again until one comes.
    fn send_kept(&mut self, now: Moment, id: Id, message: &Message) {
        let retries = self.options.retries;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let bytes = Box::new(message::build(connection.transaction, message));
        let (peer, is_waiting) = (connection.terms.peer, connection.state.is_waiting());
        connection.last = Some(bytes.clone());
        connection.retries = retries;
        let due = is_waiting.then(|| now + connection.every);
        self.put(peer, bytes);
        self.arm(id, due);
    }

    /// Sends again what was sent last.
    fn send_again(&mut self, id: Id) {
        let Some(connection) = self.connections.get(&id) else { return };
        let peer = connection.terms.peer;
        if let Some(bytes) = connection.last.clone() {
            self.put(peer, bytes);
        }
    }

    /// Sets when a connection is due, or that it is not.
    fn arm(&mut self, id: Id, due: Option<Moment>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(before) = connection.due {
            self.timers.remove(&(before, id));
        }
        connection.due = due;
        if let Some(due) = due {
            self.timers.insert((due, id));
        }
    }

    fn tell(&mut self, event: Event) {
        if self.connections.get(&event.id()).is_some_and(|connection| !connection.is_orphan) {
            self.events.push_back(event);
        }
    }

    fn change(&mut self, id: Id, state: State) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = state;
        }
    }

    /// It counts as half open no longer.
    fn settle(&mut self, id: Id) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let gid = connection.terms.peer.gid;
        let one = (gid, self.options.ids.sharer(gid, connection.remote_id));
        if core::mem::take(&mut connection.is_half_open) {
            self.half_open_in_all -= 1;
            if let Some(count) = self.half_open.get_mut(&one) {
                *count -= 1;
                if *count == 0 {
                    self.half_open.remove(&one);
                }
            }
        }
    }

    /// Forgets which queue pair of the other end it is connected with.
    fn part(&mut self, id: Id) {
        let Some(connection) = self.connections.get(&id) else { return };
        let pair = (connection.terms.peer.gid, connection.terms.remote_qpn);
        if self.pairs.get(&pair) == Some(&id) {
            self.pairs.remove(&pair);
        }
    }

    fn forget(&mut self, id: Id) {
        self.unmark(id);
        self.settle(id);
        self.part(id);
        self.arm(id, None);
        if let Some(connection) = self.connections.remove(&id) {
            for is_datagram in [false, true] {
                let request = (connection.terms.peer.gid, connection.remote_id, is_datagram);
                if self.requests.get(&request) == Some(&id) {
                    self.requests.remove(&request);
                }
            }
        }
    }

    /// Forgets a connection that came to nothing, after the program is told.
    fn fail(&mut self, event: Event) {
        let id = event.id();
        self.tell(event);
        self.forget(id);
    }

    /// The connection is over, and stays for a while to give answers again.
    fn end(&mut self, now: Moment, id: Id) {
        self.settle(id);
        self.part(id);
        self.change(id, State::Timewait);
        self.arm(id, Some(now + self.options.timewait));
        self.tell(Event::Disconnected(id));
    }
}
