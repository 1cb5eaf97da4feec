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
//! * `wire`: messages. `server`: the thread. `session`: a machine that has the function. `memory`, `interrupts`: what is its.
#![forbid(unsafe_code)]

mod books;
mod configuration;
mod counters;
mod interrupts;
mod memory;
mod server;
mod session;
mod share;
mod tree;
mod wire;

pub use counters::Counters;
pub use share::ShareError;
pub use tree::TreeError;

use books::Books;
use counters::Counting;
use millrace_abi::name::CardOptions;
use millrace_abi::queue::Direction;
use millrace_abi::stats::FunctionStats;
use millrace_abi::tree::Tree;
use millrace_callers::{Carries, Entrance, Listener, owner_only};
use millrace_driver::Driver;
use millrace_port::{Bell, SocketError, notice};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use server::Server;
use session::Function;
use share::Share;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the end waits for a thread: what a client has handed over may take long to be closed.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

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
    listener: Listener,
    path: PathBuf,
    share: Share,
    tree: Vec<u8>,
}

/// A function that is served.
struct Served {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    ended: Receiver<()>,
    counting: Arc<Counting>,
    path: PathBuf,
    // Goes with this, not with the thread: who follows us may listen at the same path.
    listener: Listener,
}

/// The functions of a card. Dropping this ends them: their machines are hung up on, and their queues stop.
pub struct Functions {
    listening: Vec<Listening>,
    served: Vec<Served>,
}

impl Functions {
    /// Listens for the machines of `functions` functions of a card with these options: at `path` if there is one, otherwise at
    /// `path.0`, `path.1` and so on.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn listen(options: &CardOptions, path: &Path, functions: u32) -> Result<Self, PciError> {
        let mut listening = Vec::new();
        for index in 0..functions.max(1) {
            let share = Share::of(options, functions, index)?;
            let tree = tree::compressed(options, &share, index)?;
            let path = path_of(path, functions, index);
            // Nobody but its owner and root: whoever has it can keep a page fault of the card waiting.
            let listener = Listener::private(path.clone(), Carries::Streams);
            let listener = listener.map_err(|errno| PciError::listening(&path, errno))?;
            listening.push(Listening { listener, path, share, tree });
        }
        Ok(Self { listening, served: Vec::new() })
    }

    /// Serves them, with a thread for each.
    ///
    /// # Errors
    /// [`PciError::System`].
    pub fn start(&mut self, driver: &Arc<Driver>) -> Result<(), PciError> {
        let books = Arc::new(Books::default());
        for function in self.listening.drain(..) {
            self.served.push(serve(function, driver, &books)?);
        }
        let all: Vec<_> =
            self.served.iter().map(|served| (served.path.display().to_string(), served.counting.clone())).collect();
        let counts = move || {
            all.iter().map(|(path, counting)| FunctionStats { path: path.clone(), events: counting.named() }).collect()
        };
        driver.card().count_functions(Box::new(counts));
        Ok(())
    }

    /// Where they are, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let listening = self.listening.iter().map(|function| &*function.path);
        self.served.iter().map(|function| &*function.path).chain(listening)
    }

    /// The same, and which sockets they are, whatever they are called: the numbers of their file system, and there.
    pub fn sockets(&self) -> impl Iterator<Item = (&Path, (u64, u64))> {
        let listening = self.listening.iter().map(|function| (&*function.path, function.listener.socket()));
        self.served.iter().map(|function| (&*function.path, function.listener.socket())).chain(listening)
    }

    /// What has happened to each of those that are served, in order.
    pub fn counters(&self) -> Vec<Counters> {
        self.served.iter().map(|function| function.counting.read()).collect()
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

fn serve(function: Listening, driver: &Arc<Driver>, books: &Arc<Books>) -> Result<Served, PciError> {
    // No process has such a number.
    static OWNERS: AtomicU32 = AtomicU32::new(1 << 31);
    let Listening { mut listener, path, share, tree } = function;
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
    let entrance = Entrance::at_socket(listener.take().ok_or_else(|| io(Errno::BADF))?, owner_only());
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io)?);
    let server = Server::new(Arc::new(function), entrance, path.clone(), stop.clone(), heard).map_err(io)?;
    let (ends, ended) = sync_channel(0);
    let builder = std::thread::Builder::new().name("millrace-pci".to_owned());
    let thread = builder.spawn(move || {
        let _ends: std::sync::mpsc::SyncSender<()> = ends;
        server.run();
    })?;
    Ok(Served { stop, thread: Some(thread), ended, counting, path, listener })
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        match self.ended.recv_timeout(JOIN_TIMEOUT) {
            Err(RecvTimeoutError::Timeout) => notice::warn(format!(
                "{}: the thread of the PCI function hangs, as its client makes it wait; the card goes on without it",
                self.path.display()
            )),
            _ => drop(self.thread.take().map(JoinHandle::join)),
        }
    }
}
