//! The server: one thread that waits for messages and for the death of programs.

use crate::locks::{Locks, Owner};
use crate::native::{self, Native};
use crate::poll::Poll;
use crate::session::{Kick, Session, Wish};
use crate::wire::{self, WireError};
use millrace_abi::control::QueueState;
use millrace_abi::message::{
    Change, ErrorCode, Handle, MAX_COMMIT, MAX_REGISTER_BYTES, Reply, Request, VERSION, encode,
};
use millrace_abi::queue::{Direction, QueueId};
use millrace_abi::tree::{Tree, TreeError};
use millrace_card::{Card, CardError, StartError};
use millrace_dma::{Access, Domain, Iova, Pages, Protection, Region, RegionError};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Uid, pidfd_open};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Why there is no driver.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The card could not be built.
    #[error(transparent)]
    Card(#[from] CardError),
    /// Another card listens there.
    #[error("another card listens on {0}; stop it, or choose another path")]
    InUse(PathBuf),
    /// The socket could not be made.
    #[error("cannot listen on {path}: {source}; choose another path or make its folder writable")]
    Listen {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: Errno,
    },
    /// The card describes itself in a way that is not understood here.
    #[error("the device tree of the card: {0}")]
    Tree(#[from] TreeError),
    /// The system refused a descriptor or a thread.
    #[error("cannot start the driver: {0}")]
    System(#[from] std::io::Error),
}

/// A card with its driver, served to programs until this is dropped.
pub struct Driver {
    card: Arc<Card>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    path: Option<PathBuf>,
    // The last field, hence the last to be dropped.
    alive: Arc<()>,
}

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

impl Driver {
    /// A card inside this process; programs are this process, by [`Driver::connect`].
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn embedded(card: Card) -> Result<Self, DriverError> {
        Self::start(card, None, None)
    }

    /// A card for all programs that can reach the socket at `path`. A socket left behind by a card that died is
    /// replaced; one that answers is not.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn listen(card: Card, path: &Path) -> Result<Self, DriverError> {
        let listener = listen(path)?;
        Self::start(card, Some(listener), Some(path.to_owned()))
    }

    fn start(card: Card, listener: Option<OwnedFd>, path: Option<PathBuf>) -> Result<Self, DriverError> {
        let budget = (raise_descriptor_limit() / 4).clamp(64, 4096) as usize;
        let io = |errno: Errno| DriverError::System(errno.into());
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io)?;
        let shared = Arc::new(Shared { arrivals: Mutex::default(), stop: AtomicBool::new(false), wake });
        let mut controllers = HashMap::new();
        let tree = Tree::parse(card.device_tree())?;
        for direction in [Direction::Rx, Direction::Tx] {
            controllers.extend(tree.queues(direction)?.into_iter().map(|entry| (entry.queue, entry.controller)));
        }
        let card = Arc::new(card);
        let poll = Poll::new().map_err(io)?;
        poll.add(&shared.wake, WAKE).map_err(io)?;
        if let Some(listener) = &listener {
            poll.add(listener, LISTENER).map_err(io)?;
        }
        let server = Server {
            card: card.clone(),
            shared: shared.clone(),
            poll,
            listener,
            clients: HashMap::new(),
            next_client: 1,
            sessions: HashMap::new(),
            positions: HashMap::new(),
            natives: HashMap::new(),
            controllers,
            locks: Locks::default(),
            budget,
            spare: spare(),
            buffer: wire::buffer(),
        };
        let builder = std::thread::Builder::new().name("millrace-driver".to_owned());
        let thread = builder.spawn(move || server.run())?;
        Ok(Self { card, shared, thread: Some(thread), path, alive: Arc::new(()) })
    }

    /// The card.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Expires when nothing of the card and its driver is left: threads have ended, ports are closed.
    pub fn alive(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }

    /// A new connection, as a program in another process would have it.
    ///
    /// # Errors
    /// What the system said.
    pub fn connect(&self) -> Result<OwnedFd, std::io::Error> {
        self.join(false)
    }

    /// A new connection for this process, which may start queues on memory of its own by writing registers.
    pub(crate) fn connect_own(&self) -> Result<OwnedFd, std::io::Error> {
        self.join(true)
    }

    fn join(&self, own: bool) -> Result<OwnedFd, std::io::Error> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        self.shared.arrivals.lock().unwrap_or_else(PoisonError::into_inner).push((theirs, own));
        self.shared.wake();
        Ok(ours)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        // A server that panicked has said so already.
        let _ = self.thread.take().map(JoinHandle::join);
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn listen(path: &Path) -> Result<OwnedFd, DriverError> {
    let failed = |source| DriverError::Listen { path: path.to_owned(), source };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    }
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let socket = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let listener = socket().map_err(failed)?;
    match rustix::net::bind(&listener, &address) {
        Err(Errno::ADDRINUSE) => {
            if rustix::net::connect(socket().map_err(failed)?, &address).is_ok() {
                return Err(DriverError::InUse(path.to_owned()));
            }
            std::fs::remove_file(path).map_err(|_| failed(Errno::ADDRINUSE))?;
            rustix::net::bind(&listener, &address).map_err(failed)?;
        }
        other => other.map_err(failed)?,
    }
    rustix::net::listen(&listener, 128).map_err(failed)?;
    rustix::io::ioctl_fionbio(&listener, true).map_err(failed)?;
    Ok(listener)
}

/// Takes as many descriptors as the system allows, and returns how many: an open queue costs one as soon as its program has
/// slept on it, and a shared one its memory's (`docs/decisions/0024-descriptors.md`).
fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Refused only if the limit is there already.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// A descriptor kept to be given up when there are no more: with it a connection that waits can be accepted and closed,
/// which would otherwise be reported for ever.
fn spare() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
/// Tokens of clients: twice the number for the socket, one more for the process.
const FIRST_CLIENT_TOKEN: u64 = 2;
/// Messages taken from one client before others have their turn.
const TURN: usize = 16;

/// Longest name of a component.
const MAX_COMPONENT: usize = 1024;
/// Most locks that one connection may hold.
const MAX_LOCKS: usize = 256;

struct Connected {
    socket: OwnedFd,
    pid: u32,
    uid: Option<Uid>,
    pidfd: Option<OwnedFd>,
    // It is this very process, and its plain addresses may be given to the card.
    own: bool,
    domain: Arc<Domain>,
    queues: HashMap<Handle, QueueId>,
    mapped: HashMap<u64, Region>,
    // By the worker of the queues that it was made for.
    kicks: HashMap<u32, Kick>,
    next_handle: u32,
    introduced: bool,
}

impl Connected {
    /// The kick for queues that a worker serves when they are opened. A queue that goes to another worker later keeps
    /// it, and that worker watches it as well: it is only woken for other queues of this program too.
    fn kick(&mut self, worker: u32) -> Result<Kick, crate::session::SessionError> {
        Ok(match self.kicks.entry(worker) {
            Entry::Occupied(kick) => kick.get().clone(),
            Entry::Vacant(place) => place.insert(Kick::new(worker)?).clone(),
        })
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

/// A refusal: what kind, and what to tell people.
struct Refusal(ErrorCode, String);

impl Refusal {
    fn new(code: ErrorCode, text: impl ToString) -> Self {
        Self(code, text.to_string())
    }
}

impl From<crate::session::SessionError> for Refusal {
    fn from(error: crate::session::SessionError) -> Self {
        Self(error.code(), error.to_string())
    }
}

impl From<RegionError> for Refusal {
    fn from(error: RegionError) -> Self {
        Self::new(ErrorCode::System, error)
    }
}

/// What goes with a reply.
enum Enclosed {
    Nothing,
    Memory(Region),
    Descriptor(OwnedFd),
}

impl Enclosed {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Enclosed::Nothing => None,
            Enclosed::Memory(region) => region.fd(),
            Enclosed::Descriptor(fd) => Some(fd.as_fd()),
        }
    }
}

type Answer = (Reply, Enclosed);

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

    fn accept_all(&mut self) {
        loop {
            let Some(listener) = &self.listener else { return };
            match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.welcome(socket, false),
                Err(Errno::MFILE | Errno::NFILE) if self.spare.is_some() => {
                    self.spare = None;
                    let turned_away = rustix::net::accept_with(listener, SocketFlags::CLOEXEC);
                    tracing::warn!("out of descriptors: a program was turned away");
                    drop(turned_away);
                    self.spare = spare();
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
    }

    /// Whether a process may have one more connection or mapping. Descriptors are what all programs share here.
    fn may_grow(&self, pid: u32) -> bool {
        let of_process = self.clients.values().filter(|client| client.pid == pid);
        of_process.map(|client| 2 + client.kicks.len() + client.mapped.len()).sum::<usize>() < self.budget
    }

    fn take_arrivals(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count);
        let arrivals = core::mem::take(&mut *self.shared.arrivals.lock().unwrap_or_else(PoisonError::into_inner));
        arrivals.into_iter().for_each(|(socket, own)| self.welcome(socket, own));
    }

    fn welcome(&mut self, socket: OwnedFd, own: bool) {
        let number = self.next_client;
        let token = FIRST_CLIENT_TOKEN + 2 * number;
        let credentials = rustix::net::sockopt::socket_peercred(&socket).ok();
        let peer = credentials.map(|credentials| credentials.pid);
        let pid = peer.map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
        if !self.may_grow(pid) {
            let text = "this process has too many connections to the card; close some".to_owned();
            let _ = wire::send(&socket, &Reply::Error { code: ErrorCode::System, text }, &[]);
            return;
        }
        // Our own process needs no watching; one that is gone already shows at its socket.
        let other = peer.filter(|&pid| pid != rustix::process::getpid());
        let pidfd = match other.map(|pid: Pid| pidfd_open(pid, PidfdFlags::empty())) {
            // It has died already; whoever has inherited its socket is not the one who connected.
            Some(Err(Errno::SRCH)) => return,
            opened => opened.and_then(Result::ok),
        };
        let ready = rustix::io::ioctl_fionbio(&socket, true).and_then(|()| self.poll.add(&socket, token));
        if let Err(error) = ready {
            tracing::warn!(%error, "a program could not be served");
            return;
        }
        if let Some(pidfd) = &pidfd {
            let _ = self.poll.add(pidfd, token + 1);
        }
        self.next_client += 1;
        let client = Connected {
            socket,
            pid,
            uid: credentials.map(|credentials| credentials.uid),
            pidfd,
            own,
            domain: Arc::new(Domain::new()),
            queues: HashMap::new(),
            mapped: HashMap::new(),
            kicks: HashMap::new(),
            next_handle: 1,
            introduced: false,
        };
        self.clients.insert(number, client);
    }

    /// Ends everything that a program had: its queues stop, its memory is unmapped, its ownership ends.
    fn disconnect(&mut self, number: u64) {
        let Some(client) = self.clients.remove(&number) else { return };
        self.poll.remove(&client.socket);
        if let Some(pidfd) = &client.pidfd {
            self.poll.remove(pidfd);
        }
        for (handle, id) in &client.queues {
            self.close_queue(*id, (number, *handle));
        }
        self.end_natives(|_, native, _| native.client == number);
        self.locks.release_all(Owner::Client(number));
        for iova in client.mapped.keys() {
            self.unmap(&client.domain, *iova);
        }
    }

    fn unmap(&self, domain: &Domain, iova: u64) {
        if let Err(error) = domain.unmap(Iova::new(iova), Duration::from_secs(2), || self.card.pass_all()) {
            tracing::warn!(%error, "memory of a program stays mapped");
        }
    }

    fn close_queue(&mut self, id: QueueId, key: crate::session::Key) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some(position) = session.close(&self.card, key) {
            self.positions.insert(id, position);
        }
        if session.is_empty()
            && let Some(session) = self.sessions.remove(&id)
        {
            session.dissolve(&self.card);
        }
        self.unlock_queue(id);
    }

    fn pid_of(&self, owner: Owner) -> u32 {
        let pid = match owner {
            Owner::Client(number) => self.clients.get(&number).map(|client| client.pid),
            Owner::Queue(id) => self.sessions.get(&id).and_then(|session| session.holders().first().copied()),
        };
        pid.unwrap_or(0)
    }

    /// Locks the DMA controller of a queue that is going to run, so that nobody starts it through its registers.
    fn lock_queue(&mut self, id: QueueId) -> Result<(), Refusal> {
        self.settle();
        let busy = |pid| {
            let text = format!("{id} is in use by process {pid}, which has locked its DMA controller; stop it there");
            Err(Refusal::new(ErrorCode::Busy, text))
        };
        let owner = Owner::Queue(id);
        match self.locks.holder(controller(&self.controllers, id), native::RUNNING) {
            Some(holder) if holder == owner => return Ok(()),
            Some(holder) => return busy(self.pid_of(holder)),
            None => {}
        }
        // One that was unlocked before it had stopped.
        if let Some(native) = self.natives.get(&id)
            && self.card.state(id) == Some(QueueState::Running)
        {
            return busy(self.pid_of(Owner::Client(native.client)));
        }
        self.end_natives(|queue, _, _| queue == id);
        // Free, as was seen above.
        let _ = self.locks.lock(controller(&self.controllers, id), native::RUNNING, owner);
        Ok(())
    }

    /// Unlocks the DMA controller of a queue unless it runs.
    fn unlock_queue(&mut self, id: QueueId) {
        if !self.sessions.get(&id).is_some_and(Session::is_running) {
            self.locks.unlock(controller(&self.controllers, id), native::RUNNING, Owner::Queue(id));
        }
    }

    /// Carries out a write to registers.
    fn write(&mut self, number: u64, address: u32, bytes: &[u8]) {
        if !native::touches_control(address, bytes) {
            return self.card.write(address, bytes);
        }
        for (at, word) in native::words(address, bytes) {
            match native::control_at(at) {
                Some(id) => self.control(number, id, at, word),
                None => self.card.write(at, word),
            }
        }
    }

    /// A write to the CONTROL register of a queue: what a program starts this way runs on the program's own memory.
    fn control(&mut self, number: u64, id: QueueId, at: u32, word: &[u8]) {
        self.settle();
        if native::is_start(at, word) {
            if let Err(why) = self.attach_native(number, id) {
                return self.card.refuse(id, why);
            }
            self.card.write(at, word);
            if self.card.refusal(id).is_some() {
                self.end_natives(|queue, _, _| queue == id);
            }
            return;
        }
        self.card.write(at, word);
        // RX has stopped by now, TX when it is drained; one that faulted stays as it is until this.
        self.end_natives(|queue, _, card| queue == id && card.state(id) != Some(QueueState::Running));
    }

    fn attach_native(&mut self, number: u64, id: QueueId) -> Result<(), StartError> {
        if self.card.state(id) == Some(QueueState::Running) {
            return Err(StartError::Running(id));
        }
        if self.sessions.get(&id).is_some_and(Session::is_running) {
            return Err(StartError::Held(id));
        }
        if !self.clients.get(&number).is_some_and(|client| client.own) {
            return Err(StartError::NotAttached(id));
        }
        self.end_natives(|queue, _, _| queue == id);
        let owner = Owner::Client(number);
        let path = controller(&self.controllers, id);
        let locked = match self.locks.holder(path, native::RUNNING) {
            Some(holder) if holder == owner => false,
            Some(_) => return Err(StartError::Held(id)),
            None => self.locks.lock(path, native::RUNNING, owner).is_ok(),
        };
        self.natives.insert(id, Native { client: number, locked });
        native::attach(&self.card, id).inspect_err(|_| self.end_natives(|queue, _, _| queue == id))
    }

    /// Stops queues that were started through the registers, at once, and takes their memory off the card.
    fn end_natives(&mut self, which: impl Fn(QueueId, &Native, &Card) -> bool) {
        let Self { natives, card, locks, controllers, .. } = self;
        natives.retain(|&id, native| {
            let ends = which(id, native, card);
            if ends {
                card.detach(id);
                if native.locked {
                    locks.unlock(controller(controllers, id), native::RUNNING, Owner::Client(native.client));
                }
            }
            !ends
        });
    }

    /// Takes note of queues started through the registers that have drained and stopped meanwhile.
    fn settle(&mut self) {
        self.end_natives(|id, _, card| card.state(id) == Some(QueueState::Stopped));
    }

    fn serve(&mut self, number: u64) {
        for _ in 0..TURN {
            let Some(client) = self.clients.get(&number) else { return };
            let received = wire::receive::<Request>(&client.socket, &mut self.buffer);
            match received {
                Ok((request, fds)) => {
                    if !self.answer(number, request, fds) {
                        return self.disconnect(number);
                    }
                }
                Err(WireError::NotReady) => return,
                Err(WireError::Closed) => return self.disconnect(number),
                Err(error) => {
                    let text = error.to_string();
                    let _ = wire::send(&client.socket, &Reply::Error { code: ErrorCode::Protocol, text }, &[]);
                    return self.disconnect(number);
                }
            }
        }
    }

    /// Carries a request out and replies. `false`: the connection is to be ended.
    fn answer(&mut self, number: u64, request: Request, fds: Vec<OwnedFd>) -> bool {
        let introduced = self.clients.get(&number).is_some_and(|client| client.introduced);
        let hello = matches!(request, Request::Hello { version: VERSION });
        if !introduced && !hello {
            let text = format!("the driver speaks version {VERSION} of its messages, and the first must be Hello");
            self.reply(number, &Reply::Error { code: ErrorCode::Protocol, text }, &[]);
            return false;
        }
        if let Request::Open { queue, mode, sharing, buffers } = request {
            return self.open(number, Wish { id: queue, mode, sharing, buffers });
        }
        let (reply, enclosed) = match self.carry_out(number, request, fds) {
            Ok(answer) => answer,
            Err(Refusal(code, text)) => (Reply::Error { code, text }, Enclosed::Nothing),
        };
        self.reply(number, &reply, enclosed.fd().as_slice())
    }

    fn reply(&self, number: u64, reply: &Reply, fds: &[BorrowedFd<'_>]) -> bool {
        // A program that does not read its replies is disconnected rather than waited for.
        self.clients.get(&number).is_some_and(|client| wire::send(&client.socket, reply, fds).is_ok())
    }

    fn open(&mut self, number: u64, wish: Wish) -> bool {
        match self.try_open(number, wish) {
            Ok(key) => {
                let opened = self.sessions.get(&wish.id).and_then(|session| session.opened(key));
                let replied = opened.is_some_and(|(reply, fds)| self.reply(number, &reply, &fds));
                if let Some(session) = self.sessions.get_mut(&wish.id) {
                    session.handed_over(key);
                }
                replied
            }
            Err(Refusal(code, text)) => self.reply(number, &Reply::Error { code, text }, &[]),
        }
    }

    fn try_open(&mut self, number: u64, wish: Wish) -> Result<crate::session::Key, Refusal> {
        let unknown = || Refusal::new(ErrorCode::NotFound, format!("this card has no queue {}", wish.id));
        let engine = self.card.engine(wish.id).ok_or_else(unknown)?;
        let Some(client) = self.clients.get_mut(&number) else { return Err(unknown()) };
        let key = (number, Handle(client.next_handle));
        let kick = client.kick(self.card.worker_of(wish.id).ok_or_else(unknown)?)?;
        let fresh = !self.sessions.contains_key(&wish.id);
        if fresh {
            let session = Session::open(&self.card, engine, wish, &client.domain, &client.mapped)?;
            self.sessions.insert(wish.id, session);
        }
        let Some(session) = self.sessions.get_mut(&wish.id) else { return Err(unknown()) };
        if let Err(error) = session.add(&self.card, wish, key, client.pid, kick) {
            if fresh && let Some(session) = self.sessions.remove(&wish.id) {
                session.dissolve(&self.card);
            }
            return Err(error.into());
        }
        client.next_handle += 1;
        client.queues.insert(key.1, wish.id);
        Ok(key)
    }

    fn carry_out(&mut self, number: u64, request: Request, fds: Vec<OwnedFd>) -> Result<Answer, Refusal> {
        let done = Ok((Reply::Done, Enclosed::Nothing));
        match request {
            Request::Hello { .. } => {
                if let Some(client) = self.clients.get_mut(&number) {
                    client.introduced = true;
                }
                let options = self.card.options();
                let hello = Reply::Hello {
                    version: VERSION,
                    pid: std::process::id(),
                    rx_queues: options.rx_queues,
                    tx_queues: options.tx_queues,
                    frame_min: options.frame_min as u16,
                    frame_max: options.frame_max as u16,
                };
                Ok((hello, Enclosed::Nothing))
            }
            Request::DeviceTree => {
                let (len, file) = as_file(self.card.device_tree())?;
                Ok((Reply::DeviceTree { len }, Enclosed::Memory(file)))
            }
            Request::Read { address, len } => {
                if len as usize > MAX_REGISTER_BYTES {
                    return Err(Refusal::new(ErrorCode::Invalid, format!("at most {MAX_REGISTER_BYTES} at once")));
                }
                let mut bytes = vec![0; len as usize];
                self.card.read(address, &mut bytes);
                Ok((Reply::Bytes(bytes), Enclosed::Nothing))
            }
            Request::Write { address, bytes } => {
                if bytes.len() > MAX_REGISTER_BYTES {
                    return Err(Refusal::new(ErrorCode::Invalid, format!("at most {MAX_REGISTER_BYTES} at once")));
                }
                self.write(number, address, &bytes);
                done
            }
            Request::Change(change) => self.change(number, &change),
            Request::Lock { component, bits } => self.lock(number, &component, bits),
            Request::Unlock { component, bits } => {
                if !self.locks.unlock(&component, bits, Owner::Client(number)) {
                    let text = format!("{component} is not locked by this program");
                    return Err(Refusal::new(ErrorCode::NotFound, text));
                }
                done
            }
            Request::Map { len, writable, at } => self.map(number, len, writable, at, fds),
            Request::Unmap { iova } => self.unmap_for(number, iova),
            Request::Start { handle } => {
                let (id, key) = self.queue_of(number, handle)?;
                let position = self.positions.get(&id).copied().unwrap_or(0);
                self.lock_queue(id)?;
                let session = self.sessions.get_mut(&id).ok_or_else(|| no_handle(handle))?;
                let started = session.start(&self.card, key, position);
                self.unlock_queue(id);
                Ok((started?, Enclosed::Nothing))
            }
            Request::Stop { handle, force, position } => {
                let (id, key) = self.queue_of(number, handle)?;
                let session = self.sessions.get_mut(&id).ok_or_else(|| no_handle(handle))?;
                if let Some(position) = session.stop(&self.card, key, force, Some(position))? {
                    self.positions.insert(id, position);
                }
                self.unlock_queue(id);
                done
            }
            Request::Close { handle } => {
                let (id, key) = self.queue_of(number, handle)?;
                if let Some(client) = self.clients.get_mut(&number) {
                    client.queues.remove(&handle);
                }
                self.close_queue(id, key);
                done
            }
            Request::RxSync { handle, release, want } => {
                let (id, key) = self.queue_of(number, handle)?;
                let session = self.sessions.get_mut(&id).ok_or_else(|| no_handle(handle))?;
                Ok((session.rx_sync(&self.card, key, release, want)?, Enclosed::Nothing))
            }
            Request::TxSync { handle, commit, want } => {
                let (id, key) = self.queue_of(number, handle)?;
                if commit.len() > MAX_COMMIT {
                    return Err(Refusal::new(ErrorCode::Invalid, format!("at most {MAX_COMMIT} packets at once")));
                }
                let session = self.sessions.get_mut(&id).ok_or_else(|| no_handle(handle))?;
                Ok((session.tx_sync(&self.card, key, &commit, want)?, Enclosed::Nothing))
            }
            Request::Stats => {
                self.settle();
                self.stats()
            }
            Request::Call { handle } => {
                let (id, key) = self.queue_of(number, handle)?;
                let session = self.sessions.get_mut(&id).ok_or_else(|| no_handle(handle))?;
                Ok((Reply::Call, Enclosed::Descriptor(session.new_call(&self.card, key)?)))
            }
            Request::Open { .. } => Err(Refusal::new(ErrorCode::Protocol, "open is answered elsewhere")),
        }
    }

    /// Ports open interfaces and files with the rights of the card, so only its own user and root may change them.
    fn change(&self, number: u64, change: &Change) -> Result<Answer, Refusal> {
        let uid = self.clients.get(&number).and_then(|client| client.uid);
        if uid.is_none_or(|uid| !uid.is_root() && uid != rustix::process::geteuid()) {
            let text = "only the user who runs the card, and root, may change its ports and workers";
            return Err(Refusal::new(ErrorCode::Invalid, text));
        }
        let changed = match *change {
            Change::Plug { port, ref spec } => self.card.plug(port, spec),
            Change::Connect { one, other } => self.card.connect(one, other),
            Change::Disconnect { port } => self.card.disconnect(port),
            Change::Move { queue, worker } => self.card.move_queue(queue, worker),
        };
        changed.map_err(|error| Refusal::new(ErrorCode::Invalid, error.to_string()))?;
        Ok((Reply::Done, Enclosed::Nothing))
    }

    fn lock(&mut self, number: u64, component: &str, bits: u64) -> Result<Answer, Refusal> {
        let owner = Owner::Client(number);
        if bits == 0 || component.len() > MAX_COMPONENT || self.locks.count(owner) >= MAX_LOCKS {
            let text = "a lock names a component and at least one feature, and a program has few of them";
            return Err(Refusal::new(ErrorCode::Invalid, text));
        }
        self.settle();
        self.locks.lock(component, bits, owner).map_err(|held| {
            let pid = self.pid_of(held.owner);
            Refusal::new(ErrorCode::Busy, format!("{component} is locked by process {pid}"))
        })?;
        Ok((Reply::Done, Enclosed::Nothing))
    }

    fn queue_of(&self, number: u64, handle: Handle) -> Result<(QueueId, crate::session::Key), Refusal> {
        let id = self.clients.get(&number).and_then(|client| client.queues.get(&handle));
        id.map(|&id| (id, (number, handle))).ok_or_else(|| no_handle(handle))
    }

    fn map(
        &mut self,
        number: u64,
        len: u64,
        writable: bool,
        at: Option<u64>,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let invalid = |text: &str| Refusal::new(ErrorCode::Invalid, text);
        let fd = fds.into_iter().next().ok_or_else(|| invalid("no descriptor of the memory came with the request"))?;
        let len = usize::try_from(len).map_err(|_| invalid("more memory than this machine can address"))?;
        let (protection, access) =
            if writable { (Protection::ReadWrite, Access::ReadWrite) } else { (Protection::Read, Access::Read) };
        let pid = self.clients.get(&number).map_or(0, |client| client.pid);
        if !self.may_grow(pid) {
            let text = "this process has too much mapped; map fewer and larger regions";
            return Err(Refusal::new(ErrorCode::System, text));
        }
        let region = Region::map(fd, len, protection, false)?;
        // A port that works on a pool maps it once more; nothing else is mapped twice.
        let region = if writable { region } else { region.without_fd() };
        let Some(client) = self.clients.get_mut(&number) else { return Err(invalid("not connected")) };
        let mapped = client.domain.map(region.window().clone(), access, at.map(Iova::new));
        let iova = mapped.map_err(|error| Refusal::new(ErrorCode::Invalid, error))?.get();
        client.mapped.insert(iova, region);
        Ok((Reply::Mapped { iova }, Enclosed::Nothing))
    }

    fn unmap_for(&mut self, number: u64, iova: u64) -> Result<Answer, Refusal> {
        let unknown = || Refusal::new(ErrorCode::NotFound, format!("nothing of this program is mapped at {iova:#x}"));
        let Some(client) = self.clients.get_mut(&number) else { return Err(unknown()) };
        if !client.mapped.contains_key(&iova) {
            return Err(unknown());
        }
        let card = &self.card;
        let unmapped = client.domain.unmap(Iova::new(iova), Duration::from_secs(2), || card.pass_all());
        unmapped.map_err(|error| Refusal::new(ErrorCode::Busy, error))?;
        client.mapped.remove(&iova);
        Ok((Reply::Done, Enclosed::Nothing))
    }

    fn stats(&self) -> Result<Answer, Refusal> {
        let mut stats = self.card.stats();
        for queue in &mut stats.queues {
            if let Some(session) = self.sessions.get(&queue.queue) {
                queue.holders = session.holders();
            }
            let native = self.natives.get(&queue.queue).map(|native| self.pid_of(Owner::Client(native.client)));
            queue.holders.extend(native);
        }
        // The order of queues is RX, then TX: what the types promise.
        debug_assert!(stats.queues.is_sorted_by_key(|queue| queue.queue.direction == Direction::Tx));
        let reply = Reply::Stats(Box::new(stats));
        if encode(&reply).is_ok() {
            return Ok((reply, Enclosed::Nothing));
        }
        let Reply::Stats(stats) = reply else { return Err(Refusal::new(ErrorCode::Invalid, "no counters")) };
        let bytes = postcard::to_stdvec(&stats).map_err(|error| Refusal::new(ErrorCode::System, error))?;
        let (len, file) = as_file(&bytes)?;
        Ok((Reply::StatsFile { len }, Enclosed::Memory(file)))
    }
}

/// Path of the DMA controller of a queue.
fn controller(controllers: &HashMap<QueueId, String>, id: QueueId) -> &str {
    controllers.get(&id).map_or("", String::as_str)
}

fn no_handle(handle: Handle) -> Refusal {
    Refusal::new(ErrorCode::NotFound, format!("no queue is open under the number {}", handle.0))
}

/// Bytes as memory that can be handed over, and their length.
fn as_file(bytes: &[u8]) -> Result<(u64, Region), Refusal> {
    let region = Region::allocate(bytes.len().max(1), Pages::Ordinary)?;
    if let Some(span) = region.window().span_mut(0, bytes.len()) {
        span.write_from(bytes);
    }
    region.seal_future_writes()?;
    Ok((bytes.len() as u64, region))
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "program {} on {:?}", self.pid, self.socket.as_fd())
    }
}
