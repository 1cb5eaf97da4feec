//! The server: gives each client the memory, an id and the eventfds of all, and tells all who comes and goes.
//!
//! One thread, which waits for nobody: what a client does not take waits here, at most once for each peer, until the client's time is over.
//!
//! * `client`: what waits to be said to one. `ids`: their numbers.

mod client;
mod ids;

use crate::layout::{self, Layout};
use client::Client;
use ids::Ids;
use millrace_callers::{Call, Caller, Entrance, Listener, May, WAITS, caller_of, process_of};
use millrace_dma::{Ordering, OutOfRange, Pages, Place, Region, RegionError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use client::Ending;

/// Who may be let in in one turn.
const MOST_AT_ONCE: usize = 16;

/// What there may be at most.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Peers: 2 to 64.
    pub peers: u16,
    /// Vectors of each peer: 1 to 32.
    pub vectors: u16,
    /// Bytes of the memory, a power of two; `None`: as many as the rings need.
    pub bytes: Option<usize>,
    /// Memory of huge pages, 2 MiB each.
    pub huge: bool,
    /// How long a client may read nothing of what waits for it.
    pub patience: Duration,
    /// Users who may connect besides root and the one who runs this.
    pub users: Vec<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { peers: 16, vectors: 4, bytes: None, huge: false, patience: Duration::from_secs(10), users: Vec::new() }
    }
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Too few or too many.
    #[error("there can be 2 to 64 peers, not {0}")]
    Peers(u16),
    /// Too few or too many.
    #[error("a peer can have 1 to 32 vectors, not {0}")]
    Vectors(u16),
    /// A machine could not have it as a BAR, or it is too small.
    #[error("{bytes} bytes of memory cannot be: it takes a power of two, and at least {least} bytes for so many peers")]
    Bytes {
        /// What was asked for.
        bytes: usize,
        /// What the rings need.
        least: usize,
    },
    /// There are none.
    #[error("there are not {0} free huge pages of 2 MiB: add some with `sysctl vm.nr_hugepages`, or leave that out")]
    Huge(usize),
    /// No memory.
    #[error("cannot allocate the memory: {0}")]
    Memory(#[from] RegionError),
    /// The memory cannot be laid out.
    #[error("cannot lay out the memory: {0}")]
    Layout(#[from] OutOfRange),
    /// Anything else.
    #[error("cannot {step}: {source}")]
    System {
        /// What failed.
        step: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What has happened, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Peers that have come.
    pub joined: u64,
    /// Peers that have hung up.
    pub left: u64,
    /// Clients that were cut off because they had said something.
    pub spoke: u64,
    /// Clients that were cut off because they did not read.
    pub slow: u64,
    /// Clients that were cut off because the system could not send to them.
    pub failed: u64,
    /// Clients that were turned away: other users.
    pub refused: u64,
    /// Clients that were turned away: as many peers as there may be.
    pub full: u64,
    /// How often nobody could be let in, for want of descriptors or threads.
    pub exhausted: u64,
    /// How often nobody was let in for a while, because too much of those who had gone was still to be closed.
    #[serde(default)]
    pub shut: u64,
}

/// A peer that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its id.
    pub id: u16,
    /// Its process; 0 in another container.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Since when it is there.
    pub seconds: u64,
    /// Messages that it has not been sent yet.
    pub waiting: usize,
}

/// How a server is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Most peers.
    pub peers_max: u16,
    /// Vectors of each.
    pub vectors: u16,
    /// Bytes of the memory.
    pub bytes: usize,
    /// Who is there.
    pub peers: Vec<PeerStatus>,
    /// Numbers that are nobody's before the processes of those who were cut off have ended.
    #[serde(default)]
    pub held: usize,
    /// Numbers that are nobody's before all have read that their peers have gone.
    #[serde(default)]
    pub behind: usize,
    /// What has happened, ever.
    pub counters: Counters,
}

/// Something that whoever runs a server may want to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A peer has come.
    Joined(PeerStatus),
    /// A peer is there no more.
    Left(PeerStatus, Ending),
    /// Somebody of that process and user was turned away, because of the user.
    Refused(u32, u32),
    /// Somebody was turned away because there are as many peers as there may be, or all numbers are held back.
    Full,
    /// Nobody is let in until what those have left who have gone is closed.
    Shut,
}

/// The server.
pub struct Server {
    entrance: Entrance,
    limits: Limits,
    layout: Layout,
    bytes: usize,
    memory: Arc<OwnedFd>,
    clients: Vec<Client>,
    ids: Ids,
    /// Slots of those who were cut off, and their processes, which may still write there.
    held: Vec<(u16, OwnedFd)>,
    /// How many have come: the next one's presence.
    generation: u64,
    counters: Counters,
    is_shut: bool,
}

impl Server {
    /// At a socket of streams, which goes with this.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn new(listener: Listener, limits: Limits) -> Result<Self, ServerError> {
        if !layout::SLOTS.contains(&limits.peers) {
            return Err(ServerError::Peers(limits.peers));
        }
        if !(1..=32).contains(&limits.vectors) {
            return Err(ServerError::Vectors(limits.vectors));
        }
        let region = allocate(&limits)?;
        let layout = Layout::make(region.window(), limits.peers)?;
        let failed = |step, source: Errno| ServerError::System { step, source: source.into() };
        let fd = region.fd().ok_or(failed("keep the memory", Errno::BADF))?;
        // Nobody may add seals, such as one by which those who come later could not write.
        fcntl_add_seals(fd, SealFlags::SEAL).map_err(|error| failed("seal the memory", error))?;
        let memory =
            fd.try_clone_to_owned().map_err(|source| ServerError::System { step: "keep the memory", source })?;
        let entrance = Entrance::new(listener, may(limits.users.clone())).map_err(|error| failed("listen", error))?;
        // Clients say nothing.
        let entrance = entrance.without_descriptors();
        let (ids, bytes) = (Ids::new(limits.peers), region.len());
        let (memory, counters) = (Arc::new(memory), Counters::default());
        Ok(Self {
            entrance,
            limits,
            layout,
            bytes,
            memory,
            clients: Vec::new(),
            ids,
            held: Vec::new(),
            generation: 0,
            counters,
            is_shut: false,
        })
    }

    /// How it is.
    pub fn status(&self) -> Status {
        let peers = self.clients.iter().map(status_of).collect();
        let (peers_max, vectors) = (self.limits.peers, self.limits.vectors);
        let (held, behind) = (self.held.len(), self.ids.count(|id| self.is_believed(id)));
        Status { peers_max, vectors, bytes: self.bytes, peers, held, behind, counters: self.counters }
    }

    /// Whether somebody may take a peer that has gone for one that is there.
    fn is_believed(&self, id: u16) -> bool {
        self.clients.iter().any(|client| client.believes_in(id))
    }

    /// Waits until something happens, at most for so long, and does what is to be done then.
    ///
    /// # Errors
    /// Those of `poll`.
    pub fn turn(&mut self, timeout: Duration, mut tell: impl FnMut(Change)) -> Result<(), Errno> {
        let (is_called, heard) = self.wait(timeout)?;
        let now = Instant::now();
        let mut ends = Vec::new();
        for (client, heard) in self.clients.iter_mut().zip(heard) {
            let listened = if heard { client.listen() } else { Ok(()) };
            if let Err(ending) = listened.and_then(|()| client.attend(now, self.limits.patience)) {
                ends.push((client.id, ending));
            }
        }
        for (id, ending) in ends {
            self.end(id, ending, &mut tell);
        }
        if is_called {
            self.let_in(&mut tell);
        }
        let was_shut = core::mem::replace(&mut self.is_shut, self.entrance.is_full());
        if self.is_shut && !was_shut {
            self.counters.shut += 1;
            tell(Change::Shut);
        }
        self.let_go();
        Ok(())
    }

    /// Whether somebody calls, and of which clients there is something to hear.
    fn wait(&mut self, timeout: Duration) -> Result<(bool, Vec<bool>), Errno> {
        let now = Instant::now();
        let mut fds: Vec<_> = self
            .clients
            .iter()
            .map(|client| {
                let room = if client.wants_room(now) { PollFlags::OUT } else { PollFlags::empty() };
                PollFd::new(&client.socket, PollFlags::IN | room)
            })
            .collect();
        let caller = self.entrance.fd();
        let is_open = caller.is_some();
        fds.extend(caller.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let is_paused = self.clients.iter().any(Client::is_paused);
        let timeout = if is_paused { timeout.min(client::PAUSE) } else { timeout };
        let timeout = if is_open { timeout } else { timeout.min(WAITS) };
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let asked = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        let mut heard: Vec<_> = fds.iter().map(|fd| fd.revents().intersects(asked)).collect();
        let is_called = is_open && heard.pop() == Some(true);
        Ok((is_called, heard))
    }

    fn let_in(&mut self, tell: &mut impl FnMut(Change)) {
        for _ in 0..MOST_AT_ONCE {
            match self.entrance.accept() {
                Some(Call::In(socket, caller)) => self.admit(socket, caller, tell),
                Some(Call::Refused(caller)) => {
                    self.counters.refused += 1;
                    tell(Change::Refused(caller.map_or(0, |caller| caller.pid), caller.map_or(0, |caller| caller.uid)));
                }
                Some(Call::Exhausted) => self.counters.exhausted += 1,
                None => return,
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, caller: Caller, tell: &mut impl FnMut(Change)) {
        self.let_go();
        let Self { ids, clients, .. } = self;
        let Some(id) = ids.take(|id| clients.iter().any(|client| client.believes_in(id))) else {
            self.counters.full += 1;
            self.entrance.turn_away(socket);
            return tell(Change::Full);
        };
        let events = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new);
        let events = (0..self.limits.vectors).map(|_| events()).collect::<Result<Vec<_>, _>>();
        let (Ok(events), Ok(process)) = (events, process_of(&socket)) else {
            self.counters.exhausted += 1;
            self.ids.give_back(id);
            return self.entrance.turn_away(socket);
        };
        let called = self.ids.call(id);
        self.join(Client::new((id, called), caller, socket, process, events, &self.memory), tell);
    }

    fn join(&mut self, mut new: Client, tell: &mut impl FnMut(Change)) {
        // The slot is there, since ids are slots.
        let _ = self.layout.clear(new.id);
        self.generation += 1;
        if let Ok(presence) = self.layout.presence(new.id) {
            // Release pairs with the Acquire of whoever looks who is there: the rings are empty before.
            presence.store(self.generation << 16 | u64::from(new.called), Ordering::Release);
        }
        for client in &mut self.clients {
            client.tell_of(new.called, &new.events);
            new.tell_of(client.called, &client.events);
        }
        let own = new.events.clone();
        new.tell_of(new.called, &own);
        self.counters.joined += 1;
        tell(Change::Joined(status_of(&new)));
        self.clients.push(new);
    }

    fn end(&mut self, id: u16, ending: Ending, tell: &mut impl FnMut(Change)) {
        let Some(at) = self.clients.iter().position(|client| client.id == id) else { return };
        let mut client = self.clients.swap_remove(at);
        if let Ok(presence) = self.layout.presence(id) {
            // Release as in `join`; nothing goes before it.
            presence.store(0, Ordering::Release);
        }
        for other in &mut self.clients {
            other.tell_end_of((id, client.called), client.events.len());
        }
        self.hold(id, client.process.take(), ending);
        *match ending {
            Ending::Left => &mut self.counters.left,
            Ending::Spoke => &mut self.counters.spoke,
            Ending::Slow => &mut self.counters.slow,
            Ending::Failed => &mut self.counters.failed,
        } += 1;
        tell(Change::Left(status_of(&client), ending));
        self.entrance.turn_away(client.socket);
    }
}

impl Server {
    /// Who was cut off is not told: until his process has ended his number is nobody else's, or both would use the same rings. Of one in another container
    /// nobody knows when that is.
    fn hold(&mut self, id: u16, process: Option<OwnedFd>, ending: Ending) {
        match process.filter(|_| ending != Ending::Left) {
            Some(process) => self.held.push((id, process)),
            None => self.ids.give_back(id),
        }
    }

    /// Numbers whose processes have ended are free.
    fn let_go(&mut self) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ids = &mut self.ids;
        self.held.retain(|(id, process)| {
            let has_ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)) == Ok(1);
            if has_ended {
                ids.give_back(*id);
            }
            !has_ended
        });
    }
}

fn status_of(client: &Client) -> PeerStatus {
    let (Caller { pid, uid, .. }, seconds) = (client.caller, client.since.elapsed().as_secs());
    PeerStatus { id: client.id, pid, uid, seconds, waiting: client.waiting() }
}

/// Root, who runs this, and whom he has named.
fn may(users: Vec<u32>) -> May {
    Box::new(move |socket| caller_of(socket).filter(|caller| !caller.is_limited || users.contains(&caller.uid)))
}

fn allocate(limits: &Limits) -> Result<Region, ServerError> {
    const HUGE: usize = 2 << 20;
    let least = layout::bytes_of(limits.peers);
    let bytes = limits.bytes.unwrap_or_else(|| least.next_power_of_two().max(if limits.huge { HUGE } else { 0 }));
    if !bytes.is_power_of_two() || bytes < least || limits.huge && bytes < HUGE {
        return Err(ServerError::Bytes { bytes, least: least.max(if limits.huge { HUGE } else { 0 }) });
    }
    if !limits.huge {
        return Ok(Region::allocate(bytes, Pages::Ordinary)?);
    }
    let region = Region::allocate_guarded(bytes, Pages::HugeIfAny)?;
    if Place::window(region.window()).is_huge() { Ok(region) } else { Err(ServerError::Huge(bytes / HUGE)) }
}
