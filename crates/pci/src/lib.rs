//! The card as PCI functions for virtual machines, over vfio-user: `docs/spec/pci.md`, decision 108.
//!
//! A function is a part of a card: some of its queues, and the ports that those are of. A machine's driver finds it by
//! configuration space, reads the device tree from there, and starts queues by the registers in BAR 0, on the machine's own
//! memory, as a driver of the hardware does. Frames take the way that they take for programs: the card's half of the rings,
//! and a domain that is the machine's memory. Doorbells are words in BAR 2 that the machine has mapped.
//!
//! ```text
//!   machine                              card
//!   driver --- registers, by message --> server --> session --> driver (CONTROL), card (all others)
//!      |                                   thread of the function
//!      +------ doorbells: stores ---------------------------------> worker
//!      +------ rings, buffers: memory that is mapped by both -----> worker
//!      <------ MSI-X: eventfds ---------- thread of the function <- worker
//! ```
//!
//! * `share`: what part of the card a function has. `configuration`, `tree`: what its driver finds.
//! * `handover`: another card takes over from this one while machines run. `keeper`: one that is killed is followed by another.
//! * `wire`: messages. `server`: the thread. `session`: a machine that has the function. `memory`, `interrupts`: what is its.
#![forbid(unsafe_code)]

mod books;
mod configuration;
mod counters;
mod handover;
mod interrupts;
mod keeper;
mod memory;
mod server;
mod session;
mod share;
mod tree;
mod wire;

pub use counters::Counters;
pub use handover::TakeOverError;
pub use keeper::{Keeper, Kept, KeptEnd};
pub use share::ShareError;
pub use tree::TreeError;

use books::Books;
use counters::Counting;
use handover::{Asks, Giver, Predecessor};
use keeper::Link;
use millrace_abi::name::CardOptions;
use millrace_abi::queue::Direction;
use millrace_abi::stats::FunctionStats;
use millrace_abi::tree::Tree;
use millrace_callers::{Carries, Entrance, Listener, owner_only};
use millrace_driver::Driver;
use millrace_port::{Bell, SocketError, notice};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use server::{Door, Server};
use session::Function;
use share::Share;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the end waits for a thread: what a client has handed over may take long to be closed.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a card waits for the machines of its keeper, which may have gone meanwhile.
const COME: Duration = Duration::from_secs(2);

/// Why there are no functions.
#[derive(Debug, thiserror::Error)]
pub enum PciError {
    /// The card cannot be divided so.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// There is no device tree.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Another program listens there.
    #[error("another program listens on {0}; stop it or choose another path")]
    Busy(PathBuf),
    /// There is no socket.
    #[error(transparent)]
    Socket(SocketError),
    /// The system refused fds or a thread.
    #[error("a PCI function cannot be started: {0}")]
    System(#[from] std::io::Error),
    /// Where its ring stands is noted for queues of Medusa only.
    #[error("a keeper keeps queues of Medusa only, and {0} of a function is none")]
    NotKept(millrace_abi::queue::QueueId),
    /// There is no keeper.
    #[error("{0}")]
    Keeper(String),
    /// Nothing was taken over.
    #[error("--take-over: {0}")]
    TakeOver(#[from] TakeOverError),
}

impl PciError {
    /// Why nobody can listen there.
    fn listening(path: &Path, errno: Errno) -> Self {
        let path = path.to_owned();
        let is_socket = std::fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket());
        Self::Socket(match errno {
            Errno::ADDRINUSE if is_socket => return Self::Busy(path),
            Errno::ADDRINUSE => SocketError::NotASocket(path),
            Errno::NOENT | Errno::NOTDIR => SocketError::NoFolder(path),
            Errno::ACCESS | Errno::PERM => SocketError::NotPermitted(path),
            Errno::NAMETOOLONG | Errno::INVAL => SocketError::PathLength(path),
            errno => SocketError::System { step: "bind", path, source: errno.into() },
        })
    }
}

/// A function that listens and is not served yet.
struct Listening {
    source: Source,
    path: PathBuf,
    share: Share,
    tree: Vec<u8>,
}

/// Where machines come from.
enum Source {
    Listener(Listener),
    Keeper(OwnedFd),
}

/// A thread that ends with this.
struct Guarded {
    name: &'static str,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    ended: Receiver<()>,
}

/// How the thread of a function gets what it works on.
type Launch = SyncSender<Box<Server>>;

/// A function that is served.
struct Served {
    _thread: Guarded,
    asks: Arc<Asks>,
    counting: Arc<Counting>,
    path: PathBuf,
    // Goes with this, not with the thread: who follows us may listen at the same path. `None`: the keeper listens.
    listener: Option<Listener>,
}

/// The functions of a card. Dropping this ends them: their machines are hung up on, and their queues stop, unless another card has them.
pub struct Functions {
    // Before what it hands over.
    giver: Option<Guarded>,
    listening: Vec<Listening>,
    served: Vec<Served>,
    trees: Vec<u32>,
    // `None`: it has a keeper.
    handover: Option<Handover>,
    kept: Option<Kept>,
}

/// How the next card gets all this, and how this card gets it from one before.
struct Handover {
    path: PathBuf,
    listener: Listener,
    predecessor: Option<Predecessor>,
    /// What programs listen at.
    card: Option<(PathBuf, OwnedFd)>,
    given: Arc<AtomicBool>,
}

impl Functions {
    /// Listens for the machines of `functions` functions of a card with these options: at `path` if there is one, otherwise at
    /// `path.0`, `path.1` and so on; and at `path.handover` for a card that is to take over from this one.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn listen(options: &CardOptions, path: &Path, functions: u32) -> Result<Self, PciError> {
        let mut listening = Vec::new();
        for parts in parts(options, path, functions) {
            let (path, share, tree) = parts?;
            // Nobody but its owner and root: whoever has it can keep a page fault of the card waiting.
            let listener = Listener::private(path.clone(), Carries::Streams);
            let listener = listener.map_err(|errno| PciError::listening(&path, errno))?;
            listening.push(Listening { source: Source::Listener(listener), path, share, tree });
        }
        let path = handover::path_beside(path);
        let listener = Listener::private(path.clone(), Carries::Records);
        let listener = listener.map_err(|errno| PciError::listening(&path, errno))?;
        Ok(Self::new(listening, Some(Handover::new(path, listener, None)), None))
    }

    /// Listens at the same places instead of the card that does so now, which listens for programs at `listen` and goes on until [`Functions::start`]; returns what
    /// it has for that place.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn take_over(
        options: &CardOptions,
        path: &Path,
        functions: u32,
        listen: Option<&Path>,
    ) -> Result<(Self, Option<OwnedFd>), PciError> {
        let parts = parts(options, path, functions).collect::<Result<Vec<_>, _>>()?;
        let trees = parts.iter().map(|(_, _, tree)| crc32fast::hash(tree)).collect();
        let (predecessor, sockets) = Predecessor::meet(path, trees, listen)?;
        let listening = parts.into_iter().zip(sockets.functions).map(|((path, share, tree), socket)| Listening {
            source: Source::Listener(Listener::handed_over(path.clone(), socket)),
            path,
            share,
            tree,
        });
        let path = handover::path_beside(path);
        let listener = Listener::handed_over(path.clone(), sockets.handover);
        let handover = Handover::new(path, listener, Some(predecessor));
        Ok((Self::new(listening.collect(), Some(handover), None), sockets.card))
    }

    /// Has the machines that a [`Keeper`] brings, which listens at the same places.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn kept(options: &CardOptions, path: &Path, functions: u32, mut kept: Kept) -> Result<Self, PciError> {
        let parts = parts(options, path, functions).collect::<Result<Vec<_>, _>>()?;
        let links = kept.links();
        if links.len() != parts.len() {
            return Err(PciError::Keeper("the keeper has another number of functions".to_owned()));
        }
        let listening = parts.into_iter().zip(links);
        let listening =
            listening.map(|((path, share, tree), link)| Listening { source: Source::Keeper(link), path, share, tree });
        Ok(Self::new(listening.collect(), None, Some(kept)))
    }

    fn new(listening: Vec<Listening>, handover: Option<Handover>, kept: Option<Kept>) -> Self {
        let trees = listening.iter().map(|function| crc32fast::hash(&function.tree)).collect();
        Self { giver: None, listening, served: Vec::new(), trees, handover, kept }
    }

    /// What the card listens at for programs, for the one that takes over from it. Before [`Functions::start`].
    pub fn listens_also(&mut self, path: &Path, socket: OwnedFd) {
        if let Some(handover) = &mut self.handover {
            handover.card = Some((path.to_owned(), socket));
        }
    }

    /// Serves them, with a thread for each; those of another card once that has handed them over.
    ///
    /// # Errors
    /// [`PciError::System`], [`PciError::TakeOver`]; in the latter case the other card goes on.
    pub fn start(&mut self, driver: &Arc<Driver>) -> Result<(), PciError> {
        let books = Arc::new(Books::default());
        let mut ready = Vec::new();
        let (mut sockets, mut asks) = (Vec::new(), Vec::new());
        let listener = self.handover.as_mut().and_then(|handover| handover.listener.take());
        let mut for_next = listener.into_iter().collect::<Vec<_>>();
        sockets.extend(for_next.iter().map(AsFd::as_fd).map(|fd| fd.try_clone_to_owned()));
        for function in self.listening.drain(..) {
            let (served, server, launch) = serve(function, driver, &books, &mut sockets)?;
            asks.push(served.asks.clone());
            self.served.push(served);
            ready.push((server, launch));
        }
        let sockets = sockets.into_iter().collect::<Result<Vec<_>, _>>()?;
        // All that can fail, before the machines of another card are this one's.
        let stop = Arc::new(event()?);
        let (launch_giver, launched) = sync_channel::<Giver>(1);
        self.giver = Some(Guarded::start("millrace-handover", stop.clone(), move || {
            if let Ok(giver) = launched.recv() {
                giver.run();
            }
        })?);
        if let Some(handover) = &mut self.handover
            && let Some(predecessor) = handover.predecessor.take()
        {
            take_over(&predecessor, &mut ready)?;
            handover.listener.keep(true);
            self.served.iter_mut().filter_map(|served| served.listener.as_mut()).for_each(|own| own.keep(true));
        }
        for (server, launch) in ready {
            // Its thread waits for it.
            let _ = launch.send(server);
        }
        if let (Some(Handover { path, card, given, .. }), Some(listener)) = (&mut self.handover, for_next.pop()) {
            let giver = Giver {
                entrance: Entrance::at_socket(listener, owner_only()).without_descriptors(),
                stop,
                functions: asks,
                trees: self.trees.clone(),
                sockets,
                card: card.take(),
                closer: Arc::default(),
                given: given.clone(),
                path: path.clone(),
            };
            // Its thread waits for it.
            let _ = launch_giver.send(giver);
        }
        let all: Vec<_> =
            self.served.iter().map(|served| (served.path.display().to_string(), served.counting.clone())).collect();
        let counts = move || {
            all.iter().map(|(path, counting)| FunctionStats { path: path.clone(), events: counting.named() }).collect()
        };
        driver.card().count_functions(Box::new(counts));
        self.kept.as_ref().map_or(Ok(()), |kept| self.welcome(kept))
    }

    /// Says to the keeper that machines are welcome, and waits for those that another card has had: nobody else is to have their queues.
    fn welcome(&self, kept: &Kept) -> Result<(), PciError> {
        kept.is_ready().map_err(PciError::Keeper)?;
        let until = Instant::now() + COME;
        let have_come =
            || self.counters().iter().map(|counters| counters.taken_over + counters.connections).sum::<u64>();
        while have_come() < kept.machines() as u64 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether another card has taken over: there is nothing left for this one to do.
    pub fn are_given(&self) -> bool {
        // Acquire pairs with the Release of the thread that has given them.
        self.handover.as_ref().is_some_and(|handover| handover.given.load(Ordering::Acquire))
    }

    /// Ends, and says whether another card has taken over by then: what this one listens at is that one's.
    #[must_use]
    pub fn end(mut self) -> bool {
        // It may be in the midst of handing over: the others wait for it.
        drop(self.giver.take());
        self.are_given()
    }

    /// Where they are, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let listening = self.listening.iter().map(|function| &*function.path);
        self.served.iter().map(|function| &*function.path).chain(listening)
    }

    /// The same and where the next card calls, and which sockets they are, whatever they are called: the numbers of their file system, and there.
    pub fn sockets(&self) -> impl Iterator<Item = (&Path, (u64, u64))> {
        let listening = self.listening.iter().filter_map(|function| match &function.source {
            Source::Listener(listener) => Some((&*function.path, listener.socket())),
            Source::Keeper(_) => None,
        });
        let served = self.served.iter();
        let served = served.filter_map(|function| Some((&*function.path, function.listener.as_ref()?.socket())));
        let handover = self.handover.iter().map(|handover| (&*handover.path, handover.listener.socket()));
        served.chain(listening).chain(handover)
    }

    /// Checksums of their device trees, by which another card knows that it has the same.
    pub fn trees(&self) -> &[u32] {
        &self.trees
    }

    /// What has happened to each of those that are served, in order.
    pub fn counters(&self) -> Vec<Counters> {
        self.served.iter().map(|function| function.counting.read()).collect()
    }
}

impl Handover {
    fn new(path: PathBuf, listener: Listener, predecessor: Option<Predecessor>) -> Self {
        Self { path, listener, predecessor, card: None, given: Arc::default() }
    }
}

impl Drop for Functions {
    fn drop(&mut self) {
        // It may be in the midst of handing over: the others wait for it.
        drop(self.giver.take());
        if self.are_given() {
            self.handover.iter_mut().for_each(|handover| handover.listener.keep(false));
            self.served.iter_mut().filter_map(|served| served.listener.as_mut()).for_each(|own| own.keep(false));
        }
    }
}

/// Where each function is, what it has, and its tree.
fn parts(
    options: &CardOptions,
    path: &Path,
    functions: u32,
) -> impl Iterator<Item = Result<(PathBuf, Share, Vec<u8>), PciError>> {
    (0..functions.max(1)).map(move |index| {
        let share = Share::of(options, functions, index)?;
        let tree = tree::compressed(options, &share, index)?;
        Ok((path_of(path, functions, index), share, tree))
    })
}

/// Takes the machines of another card over.
fn take_over(predecessor: &Predecessor, ready: &mut [(Box<Server>, Launch)]) -> Result<(), TakeOverError> {
    let taken = predecessor.prepare().and_then(|(card, mut fds)| {
        if card.functions.len() != ready.len() {
            return Err("it has another number of functions".to_owned());
        }
        if let Some((server, _)) = ready.first() {
            handover::ports::restore(server.card(), &card.ports);
        }
        let all = ready.iter_mut().zip(&card.functions);
        all.into_iter().try_for_each(|((server, _), saved)| server.restore(saved.as_ref(), &mut fds))
    });
    match taken.and_then(|()| predecessor.take()) {
        Ok(()) => {
            for direction in [Direction::Rx, Direction::Tx] {
                ready.iter().for_each(|(server, _)| server.go_on(direction));
            }
            Ok(())
        }
        Err(why) => {
            // Before it hears of it, nothing here may have anything of a machine.
            ready.iter_mut().for_each(|(server, _)| server.leave());
            predecessor.refuse(&why);
            Err(TakeOverError::Refused(why))
        }
    }
}

fn path_of(path: &Path, functions: u32, index: u32) -> PathBuf {
    if functions <= 1 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{index}"));
    name.into()
}

/// Makes ready to serve a function: what the thread gets, and how.
fn serve(
    function: Listening,
    driver: &Arc<Driver>,
    books: &Arc<Books>,
    sockets: &mut Vec<std::io::Result<OwnedFd>>,
) -> Result<(Served, Box<Server>, Launch), PciError> {
    // No process has such a number.
    static OWNERS: AtomicU32 = AtomicU32::new(1 << 31);
    let Listening { source, path, share, tree } = function;
    let io = |errno: Errno| PciError::System(errno.into());
    let mut controllers = std::collections::HashMap::new();
    let whole = Tree::parse(driver.card().device_tree()).map_err(|error| std::io::Error::other(error.to_string()))?;
    for direction in [Direction::Rx, Direction::Tx] {
        let queues = whole.queues(direction).map_err(|error| std::io::Error::other(error.to_string()))?;
        controllers.extend(queues.into_iter().map(|entry| (entry.queue, entry.controller)));
    }
    let known_as = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
    let (counting, mut calls, mut heard) = (Arc::new(Counting::default()), Vec::new(), Vec::new());
    for _ in 0..2 * share.rx.len().max(share.tx.len()) {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(io)?;
        calls.push(Bell::own(theirs));
        heard.push(ours);
    }
    let function = Function {
        driver: driver.clone(),
        share,
        controllers,
        tree,
        serial: u64::from(crc32fast::hash(known_as.as_os_str().as_encoded_bytes()))
            | u64::from(u32::from_be_bytes(*b"MILL")) << 32,
        // Relaxed: only to be different.
        owner: OWNERS.fetch_add(1, Ordering::Relaxed),
        calls,
        counting: counting.clone(),
        books: books.clone(),
    };
    let (door, listener) = match source {
        Source::Listener(mut listener) => {
            let socket = listener.take().ok_or_else(|| io(Errno::BADF))?;
            sockets.push(socket.try_clone());
            (Door::Own(Entrance::at_socket(socket, owner_only())), Some(listener))
        }
        Source::Keeper(link) => (Door::Keeper(Link::new(link)), None),
    };
    let (stop, asks) = (Arc::new(event()?), Arc::new(Asks::new().map_err(io)?));
    let server = Server::new(Arc::new(function), door, path.clone(), stop.clone(), asks.clone(), heard).map_err(io)?;
    let (launch, launched) = sync_channel::<Box<Server>>(1);
    let thread = Guarded::start("millrace-pci", stop, move || {
        if let Ok(server) = launched.recv() {
            server.run();
        }
    })?;
    Ok((Served { _thread: thread, asks, counting, path, listener }, Box::new(server), launch))
}

fn event() -> Result<OwnedFd, std::io::Error> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

impl Guarded {
    /// One that ends when `stop` can be read.
    fn start(
        name: &'static str,
        stop: Arc<OwnedFd>,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<Self, std::io::Error> {
        let (ends, ended) = sync_channel(0);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ends: SyncSender<()> = ends;
            run();
        })?;
        Ok(Self { name, stop, thread: Some(thread), ended })
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        match self.ended.recv_timeout(JOIN_TIMEOUT) {
            Err(RecvTimeoutError::Timeout) => notice::warn(format!(
                "{}: a thread of the PCI functions hangs, as its client makes it wait; the card goes on without it",
                self.name
            )),
            _ => drop(self.thread.take().map(JoinHandle::join)),
        }
    }
}
