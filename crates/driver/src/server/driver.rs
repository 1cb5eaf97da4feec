//! The owner of a card and of its server: starts both, and ends them.

use super::changes::Changes;
use super::connected::TurnedAway;
use super::connections::spare;
use super::fds::Fds;
use super::flows::Flows;
use super::listen::{ListenPath, SocketIdentity, listen};
use super::pause::Pause;
use super::policy::Policy;
use super::quotas::{Ledger, Limits};
use super::reaper::Reaper;
use super::replies::SharedFile;
use super::schedule::Schedule;
use super::shared::Shared;
use super::{LISTENER, Server, WAKE};
use crate::codec;
use crate::locks::Locks;
use crate::native::{Guest, Own};
use crate::poll::Poll;
use millrace_abi::queue::Direction;
use millrace_abi::tree::{Tree, TreeError};
use millrace_card::{Card, CardError};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::{HashMap, VecDeque};
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
    /// Something else is there.
    #[error("cannot listen on {path}: there is {what}, and nothing was touched; remove it or choose another path")]
    Occupied {
        /// Where.
        path: PathBuf,
        /// In words.
        what: &'static str,
    },
    /// The socket of somebody else is there.
    #[error(
        "cannot listen on {path}: the socket there belongs to user {uid}, and only that user or root can remove it; \
         choose another path (`millrace card --listen PATH`, or MILLRACE_SOCKET in the environment)"
    )]
    Foreign {
        /// Where.
        path: PathBuf,
        /// Whose.
        uid: u32,
    },
    /// The folder is missing.
    #[error("cannot listen on {0}: its folder does not exist; create it or choose another path")]
    NoFolder(PathBuf),
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
    /// The system refused an fd or a thread.
    #[error("cannot start the driver: {0}")]
    System(#[from] std::io::Error),
}

/// A card with its driver, served to programs until this is dropped.
pub struct Driver {
    card: Arc<Card>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    place: Mutex<Option<ListenPath>>,
    // What it listens at, for the card after it.
    listener: Mutex<Option<OwnedFd>>,
    // The last field, hence the last to be dropped.
    alive: Arc<()>,
}

impl Driver {
    /// A card inside this process; programs are this process, by [`Driver::connect`].
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn embedded(card: Card) -> Result<Self, DriverError> {
        Self::unheard(card, Policy::closed())
    }

    /// A card that programs reach once it [listens](Driver::listen_on) in the place of another.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn unheard(card: Card, policy: Policy) -> Result<Self, DriverError> {
        Self::start(card, None, None, policy)
    }

    /// A card for all programs that can reach the socket at `path`. A socket left behind by a card that died is
    /// replaced; nothing else that is there is touched.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn listen(card: Card, path: &Path) -> Result<Self, DriverError> {
        Self::listen_for(card, path, Policy::closed())
    }

    /// As [`Driver::listen`], for those and as far as `policy` says. Who can connect at all is a matter of the socket's
    /// file permissions.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn listen_for(card: Card, path: &Path, policy: Policy) -> Result<Self, DriverError> {
        let (listener, place) = listen(path)?;
        Self::start(card, Some(listener), Some(place), policy)
    }

    /// The same, but programs that call wait until [`Driver::hear`].
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn listen_later(card: Card, path: &Path, policy: Policy) -> Result<Self, DriverError> {
        let (listener, place) = listen(path)?;
        let driver = Self::start(card, None, Some(place), policy)?;
        *driver.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
        Ok(driver)
    }

    /// Hears programs from now on. To be called once, of a card that listens and does not hear.
    ///
    /// # Errors
    /// What the system said.
    pub fn hear(&self) -> Result<(), std::io::Error> {
        if let Some(socket) = self.listener()? {
            *self.shared.handed_over.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
            self.shared.wake();
        }
        Ok(())
    }

    fn start(
        card: Card,
        listener: Option<OwnedFd>,
        place: Option<ListenPath>,
        policy: Policy,
    ) -> Result<Self, DriverError> {
        let fds = Fds::raise_limit();
        let kept = listener.as_ref().map(OwnedFd::try_clone).transpose()?;
        let io = |errno: Errno| DriverError::System(errno.into());
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io)?;
        let (arrivals, changed) = (Mutex::default(), Mutex::default());
        let (stop, handed_over) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { arrivals, changed, handed_over, stop, wake });
        let mut controllers = HashMap::new();
        let tree = Tree::parse(card.device_tree())?;
        for direction in [Direction::Rx, Direction::Tx] {
            controllers.extend(tree.queues(direction)?.into_iter().map(|entry| (entry.queue, entry.controller)));
        }
        let device_tree = SharedFile::new(card.device_tree())?;
        let card = Arc::new(card);
        let poll = Poll::new().map_err(io)?;
        poll.add(&shared.wake, WAKE).map_err(io)?;
        if let Some(listener) = &listener {
            poll.add(listener, LISTENER).map_err(io)?;
        }
        let ledger = Ledger::new(Limits::new(&policy.quota));
        let mut flows = Flows::new(card.clone(), shared.clone(), ledger.clone(), &policy);
        if card.flows(|writer| !writer.is_empty()) {
            flows.start()?;
        }
        let server = Server {
            card: card.clone(),
            shared: shared.clone(),
            poll,
            listener,
            clients: HashMap::new(),
            next_client: 1,
            schedule: Schedule::default(),
            ending: VecDeque::new(),
            pause: Pause::default(),
            connecting: false,
            woken: false,
            cleared: false,
            sessions: HashMap::new(),
            positions: HashMap::new(),
            natives: HashMap::new(),
            controllers,
            locks: Locks::default(),
            ledger,
            flows,
            clock_leader: None,
            policy,
            tree: device_tree,
            fds,
            spare: spare(),
            turned_away: TurnedAway::default(),
            changes: Changes::new(card.clone(), shared.clone()),
            reaper: Reaper::new()?,
            buffer: codec::buffer(),
        };
        let builder = std::thread::Builder::new().name("millrace-driver".to_owned());
        let thread = builder.spawn(move || server.run())?;
        let (place, listener) = (Mutex::new(place), Mutex::new(kept));
        Ok(Self { card, shared, thread: Some(thread), place, listener, alive: Arc::new(()) })
    }

    /// What it listens at, for the card that takes over from this one; `None`: it listens nowhere.
    ///
    /// # Errors
    /// What the system said.
    pub fn listener(&self) -> Result<Option<OwnedFd>, std::io::Error> {
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        listener.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// Listens from now on by the socket at `path`, which another card has handed over. To be called once, of a card that listens nowhere.
    ///
    /// # Errors
    /// What the system said.
    pub fn listen_on(&self, socket: OwnedFd, path: &Path) -> Result<(), std::io::Error> {
        let kept = socket.try_clone()?;
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = ListenPath::handed_over(path);
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        *self.shared.handed_over.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
        self.shared.wake();
        Ok(())
    }

    /// Another card listens there from now on: the socket stays when this one ends.
    pub fn leave_socket(&self) {
        if let Some(place) = self.place.lock().unwrap_or_else(PoisonError::into_inner).take() {
            place.leave();
        }
    }

    /// The card.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Which socket it listens on, whatever is at the path by now; `None`: on none.
    pub fn socket(&self) -> Option<SocketIdentity> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|place| place.own)
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
        self.join(None)
    }

    /// A new connection for this process, which may start queues on memory of its own by writing registers.
    pub(crate) fn connect_own(&self) -> Result<OwnedFd, std::io::Error> {
        self.join(Some(Own::Process))
    }

    /// A new connection for a machine, which may start its queues on its memory by writing registers.
    pub(crate) fn connect_guest(&self, guest: Guest) -> Result<OwnedFd, std::io::Error> {
        self.join(Some(Own::Guest(Arc::new(guest))))
    }

    fn join(&self, own: Option<Own>) -> Result<OwnedFd, std::io::Error> {
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
        drop(self.place.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
