//! The owner of a card and of its server: starts both, and ends them.

use super::connections::spare;
use super::{LISTENER, Server, Shared, WAKE};
use crate::locks::Locks;
use crate::poll::Poll;
use crate::wire::{self};
use millrace_abi::queue::Direction;
use millrace_abi::tree::{Tree, TreeError};
use millrace_card::{Card, CardError};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

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
