//! A program's side of the socket: requests and replies, and the news that the card is gone.

use crate::codec::{WireError, no_place};
pub use crate::function::Bell;
use crate::function::ByFunction;
use crate::native::{self, Guest};
use crate::server::Driver;
use crate::talk::{self, Talk, TalkError};
use millrace_abi::clock::ClockRequest;
use millrace_abi::message::{
    Buffers, Change, ErrorCode, Handle, Layout, Locked, MAX_REGISTER_BYTES, Reply, Request, VERSION,
};
use millrace_abi::pci::PciAddress;
use millrace_abi::queue::{Engine, Joiners, Mode, QueueId, Sharing};
use millrace_abi::stats::CardStats;
use millrace_dma::{Protection, Region, RegionError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, recv};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens there, or not for this user.
    #[error("{}", cannot_connect(path, *source))]
    Connect {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: rustix::io::Errno,
    },
    /// The card is gone.
    #[error("the card is gone; open the device again")]
    Gone,
    /// The card has ended this connection, for a reason.
    #[error("{0}")]
    Ended(String),
    /// The card does not answer. It may do so later; this request was not, or nobody knows whether it was, carried out.
    #[error("{card} has not answered for {seconds} s; it may be stopped (SIGCONT lets it go on) or hung")]
    Silent {
        /// Which, in words.
        card: String,
        /// How long.
        seconds: u64,
    },
    /// The driver refused.
    #[error("{text}")]
    Refused {
        /// Kind of refusal.
        code: ErrorCode,
        /// What the driver says.
        text: String,
    },
    /// The driver answered with something else than its protocol says.
    #[error("the driver gave an answer that does not belong to the question")]
    Unexpected,
    /// The driver answered with something that no card says.
    #[error("the card answers nonsense: {0}; it is broken, or something else than a card")]
    Nonsense(&'static str),
    /// Memory of a queue could not be mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// There is no place for more files in this process.
    #[error("{0}")]
    NoPlace(String),
    /// The socket failed.
    #[error("talking to the card failed: {0}")]
    Wire(String),
}

impl ClientError {
    /// Kind of refusal, if the driver refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            ClientError::Refused { code, .. } => Some(*code),
            ClientError::Ended(_) => Some(ErrorCode::Ended),
            _ => None,
        }
    }

    /// The number (`errno`) that the system gave for it, if it did.
    pub fn system_error(&self) -> Option<i32> {
        match self {
            ClientError::Connect { source, .. } => Some(source.raw_os_error()),
            ClientError::Silent { .. } => Some(Errno::TIMEDOUT.raw_os_error()),
            ClientError::NoPlace(_) => Some(Errno::MFILE.raw_os_error()),
            _ => None,
        }
    }
}

/// Most bytes of a text of the card that are shown.
const MOST_SAID: usize = 2048;

/// Largest file that the card hands over to be read: no card has so many queues that its counters take more.
const MOST_OF_FILE: u64 = 64 << 20;

/// A text of the card for people: of a bearable length, and nothing in it that a terminal obeys.
fn said(text: &str) -> String {
    let end = text.floor_char_boundary(MOST_SAID);
    let mut shown = String::with_capacity(end);
    for letter in text[..end].chars() {
        match letter.is_control() {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    if end < text.len() {
        shown.push_str(" ...");
    }
    shown
}

/// What there is to say of the card that is at `place`.
fn in_words(error: TalkError, place: &str) -> ClientError {
    match error {
        TalkError::Wire(WireError::Closed) => ClientError::Gone,
        TalkError::Wire(other @ WireError::NoPlace) => ClientError::NoPlace(other.to_string()),
        TalkError::Wire(other) => ClientError::Wire(other.to_string()),
        TalkError::Ended(text) => ClientError::Ended(said(&text)),
        TalkError::Silent(waited) => ClientError::Silent { card: place.to_owned(), seconds: waited.as_secs() },
    }
}

fn cannot_connect(path: &Path, source: Errno) -> String {
    let path = path.display();
    match source {
        // No command to copy: at a mistyped path it would do harm, or at least no good.
        Errno::NOENT => format!("no card listens on {path}: there is nothing; `millrace card` starts one"),
        Errno::CONNREFUSED => {
            format!(
                "no card listens on {path}: the one that did has ended, or this is no card's; `millrace card` starts one"
            )
        }
        Errno::ACCESS | Errno::PERM => format!(
            "permission denied on {path}: a card is for the user who runs it, and for whom `millrace card --grant \
             user:NAME=use:all` or `--group NAME` lets in (docs/sharing.md); the folder of the socket must be open too"
        ),
        Errno::PROTOTYPE | Errno::NOTSOCK => format!("{path} is not the socket of a card: {source}"),
        Errno::MFILE => format!("cannot connect to a card on {path}: {}", no_place()),
        _ => format!("cannot connect to a card on {path}: {source}"),
    }
}

/// What a program gets when it opens a queue.
pub struct Opened {
    /// For all further requests.
    pub handle: Handle,
    /// Protocol of the queue.
    pub engine: Engine,
    /// What lies where.
    pub layout: Layout,
    /// The control page.
    pub control: Region,
    /// To wake the card's worker; other queues of this connection may have the same.
    pub kick: Kick,
    /// Update word, RX headers, IOVAs; read-only. Of a DD queue the descriptor ring.
    pub status: Region,
    /// Buffers or ring; read-only for RX. `None` when the program brings its own buffers.
    pub data: Option<Region>,
    /// Descriptor ring of an exclusive direct Medusa queue, header ring of an exclusive direct Calypte TX queue.
    pub descriptors: Option<Region>,
}

/// A connection to a driver. Requests of several threads take turns.
pub struct Client {
    socket: Arc<OwnedFd>,
    way: Way,
    // Where the card is, in words.
    place: String,
    // By the numbers that the driver gives them.
    kicks: Mutex<HashMap<u32, Arc<OwnedFd>>>,
    // Held while a transaction or a list of rules is under way, of which a connection has one at a time.
    pub(crate) flows: Mutex<()>,
    hello: Hello,
    gone: Arc<AtomicBool>,
    watcher: Option<(OwnedFd, JoinHandle<()>)>,
    // An embedded card lives as long as its last client.
    driver: Option<Arc<Driver>>,
}

/// What the driver said of its card.
#[derive(Clone, Copy, Debug)]
struct Hello {
    pid: u32,
    rx_queues: u32,
    tx_queues: u32,
    frame_min: u16,
    frame_max: u16,
}

impl Hello {
    const NONE: Self = Self { pid: 0, rx_queues: 0, tx_queues: 0, frame_min: 0, frame_max: 0 };
}

/// How requests reach the card.
enum Way {
    /// By a socket.
    Socket(Talk),
    /// By the registers of a PCI function. The other end of the socket is kept, which would otherwise say that the card is gone.
    Function(Box<ByFunction>, #[expect(dead_code, reason = "only to be kept")] OwnedFd),
}

/// How a program wakes the worker of a queue that it has open.
pub enum Kick {
    /// By an eventfd.
    Signal(Arc<OwnedFd>),
    /// By a register of a PCI function.
    Register(Bell),
}

impl Kick {
    /// Wakes it. Never waits.
    pub fn kick(&self) {
        match self {
            Self::Signal(event) => {
                // A full eventfd is already readable.
                let _ = rustix::io::write(event, &1u64.to_ne_bytes());
            }
            Self::Register(bell) => bell.ring(),
        }
    }
}

impl Client {
    /// Connects to the card that listens at `path`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let failed = |source| ClientError::Connect { path: path.to_owned(), source };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(failed)?;
        let place = format!("the card at {}", path.display());
        match talk::connect(&socket, &address) {
            Ok(()) => {}
            Err(TalkError::Wire(WireError::System(errno))) => return Err(failed(errno)),
            Err(error) => return Err(in_words(error, &place)),
        }
        let pid =
            nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials).map(|peer| peer.pid());
        let place = pid.map_or_else(|_| place.clone(), |pid| format!("{place} (process {pid})"));
        Self::introduce(socket, place, None)
    }

    /// Connects to a card inside this process: it ends with the last of its clients.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn embedded(driver: Arc<Driver>) -> Result<Self, ClientError> {
        let socket = driver.connect_own().map_err(|error| ClientError::Wire(error.to_string()))?;
        Self::introduce(socket, "the card in this process".to_owned(), Some(driver))
    }

    /// Connects a machine to a card inside this process: it may start the queues that it was given, on its own memory, by
    /// their registers. Dropping this stops them, and returns when they have stopped.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn guest(driver: Arc<Driver>, guest: Guest) -> Result<Self, ClientError> {
        let socket = driver.connect_guest(guest).map_err(|error| ClientError::Wire(error.to_string()))?;
        Self::introduce(socket, "the card in this process".to_owned(), Some(driver))
    }

    pub(crate) fn introduce(socket: OwnedFd, place: String, driver: Option<Arc<Driver>>) -> Result<Self, ClientError> {
        let none = Hello::NONE;
        let gone = Arc::new(AtomicBool::new(false));
        let socket = Arc::new(socket);
        let talk = Talk::new(socket.clone()).map_err(|errno| ClientError::Wire(errno.to_string()))?;
        let watch = driver.is_none();
        let (kicks, flows, way) = (Mutex::default(), Mutex::default(), Way::Socket(talk));
        let mut client = Self { socket, way, place, kicks, flows, hello: none, gone, watcher: None, driver };
        client.greet()?;
        if watch {
            client.watch()?;
        }
        Ok(client)
    }

    /// Opens a PCI function of this machine, which vfio-pci has: a card without a socket, for this program alone.
    ///
    /// # Errors
    /// [`ClientError::Refused`], which says what is to be done.
    pub fn function(address: PciAddress) -> Result<Self, ClientError> {
        let failed = |errno: Errno| ClientError::Wire(errno.to_string());
        // Nothing ever comes by it.
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (socket, other) = pair.map_err(failed)?;
        let (kicks, flows, socket) = (Mutex::default(), Mutex::default(), Arc::new(socket));
        let way = Way::Function(Box::new(ByFunction::open(address)?), other);
        let (hello, gone, place) = (Hello::NONE, Arc::default(), format!("the PCI function at {address}"));
        let mut client = Self { socket, way, place, kicks, flows, hello, gone, watcher: None, driver: None };
        client.greet()?;
        Ok(client)
    }

    fn greet(&mut self) -> Result<(), ClientError> {
        let (reply, _) = self.ask(&Request::Hello { version: VERSION }, &[])?;
        let Reply::Hello { version: VERSION, pid, rx_queues, tx_queues, frame_min, frame_max } = reply else {
            return Err(ClientError::Unexpected);
        };
        self.hello = Hello { pid, rx_queues, tx_queues, frame_min, frame_max };
        Ok(())
    }

    /// Starts a thread that does nothing but wait for the end of the connection: direct mode makes no system call that
    /// could notice it.
    fn watch(&mut self) -> Result<(), ClientError> {
        let failed = |error: std::io::Error| ClientError::Wire(error.to_string());
        let end = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let also_end = end.try_clone().map_err(failed)?;
        let (socket, gone) = (self.socket.clone(), self.gone.clone());
        let thread = std::thread::Builder::new()
            .name("millrace-watch".to_owned())
            .stack_size(64 * 1024)
            .spawn(move || {
                loop {
                    let mut fds = [PollFd::new(&*socket, PollFlags::RDHUP), PollFd::new(&also_end, PollFlags::IN)];
                    if poll(&mut fds, None).is_err() {
                        continue;
                    }
                    if !fds[1].revents().is_empty() {
                        return;
                    }
                    if !fds[0].revents().is_empty() {
                        // Release pairs with the Acquire in `is_gone`.
                        gone.store(true, Ordering::Release);
                        return;
                    }
                }
            })
            .map_err(failed)?;
        self.watcher = Some((end, thread));
        Ok(())
    }

    /// Ends the connection and waits until the driver has cleaned up behind it: queues that this program had started on
    /// its own memory have stopped, and the memory may go.
    fn hang_up(&mut self) {
        if rustix::net::shutdown(&self.socket, Shutdown::Write).is_err() {
            return;
        }
        // Replies that nobody has read come first.
        while let Ok((1.., _)) | Err(Errno::INTR | Errno::AGAIN) =
            recv(&self.socket, &mut [0; 64][..], RecvFlags::empty())
        {}
    }

    /// Whether the card is gone. Costs one load.
    #[inline(always)]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// The flag behind [`Client::is_gone`], for those who look at it often.
    pub fn gone_flag(&self) -> Arc<AtomicBool> {
        self.gone.clone()
    }

    /// The socket, to be polled for the end of the connection only.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Process id of the card.
    pub fn card_pid(&self) -> u32 {
        self.hello.pid
    }

    /// RX queues of the card.
    pub fn rx_queues(&self) -> u32 {
        self.hello.rx_queues
    }

    /// TX queues of the card.
    pub fn tx_queues(&self) -> u32 {
        self.hello.tx_queues
    }

    /// Shortest and longest frame.
    pub fn frame_limits(&self) -> (u16, u16) {
        (self.hello.frame_min, self.hello.frame_max)
    }

    /// Why the connection has ended: what the card said, if it is not simply gone.
    pub fn why_gone(&self) -> ClientError {
        let last_words = if let Way::Socket(talk) = &self.way { talk.last_words() } else { None };
        last_words.map_or(ClientError::Gone, |text| ClientError::Ended(said(&text)))
    }

    pub(crate) fn in_words(&self, error: TalkError) -> ClientError {
        in_words(error, &self.place)
    }

    pub(crate) fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        let talk = match &self.way {
            Way::Socket(talk) => talk,
            Way::Function(function, _) => return function.ask(request),
        };
        match talk.ask(request, fds) {
            Ok((Reply::Error { code, text }, _)) => Err(ClientError::Refused { code, text: said(&text) }),
            Ok(answer) => Ok(answer),
            Err(error) => {
                if matches!(error, TalkError::Wire(WireError::Closed) | TalkError::Ended(_)) {
                    // Release pairs with the Acquire in `is_gone`.
                    self.gone.store(true, Ordering::Release);
                }
                Err(self.in_words(error))
            }
        }
    }

    fn tell(&self, request: &Request) -> Result<(), ClientError> {
        match self.ask(request, &[])?.0 {
            Reply::Done => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// The device tree blob.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn device_tree(&self) -> Result<Vec<u8>, ClientError> {
        match self.ask(&Request::DeviceTree, &[])? {
            (Reply::DeviceTree { len }, fds) => file_bytes(len, fds),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Reads registers; any length.
    ///
    /// # Errors
    /// [`ClientError`]; never with an embedded card, whose registers answer in the calling thread.
    pub fn read(&self, address: u32, to: &mut [u8]) -> Result<(), ClientError> {
        if let Some(driver) = &self.driver {
            driver.card().read(address, to);
            return Ok(());
        }
        let mut address = address;
        for chunk in to.chunks_mut(MAX_REGISTER_BYTES) {
            let len = chunk.len() as u32;
            match self.ask(&Request::Read { address, len }, &[])?.0 {
                Reply::Bytes(bytes) if bytes.len() == chunk.len() => chunk.copy_from_slice(&bytes),
                _ => return Err(ClientError::Unexpected),
            }
            address = address.wrapping_add(len);
        }
        Ok(())
    }

    /// Writes registers; any length.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn write(&self, address: u32, from: &[u8]) -> Result<(), ClientError> {
        if let Some(driver) = &self.driver
            && !native::touches_control(address, from)
        {
            driver.card().write(address, from);
            return Ok(());
        }
        let mut address = address;
        for chunk in from.chunks(MAX_REGISTER_BYTES) {
            self.tell(&Request::Write { address, bytes: chunk.to_vec() })?;
            address = address.wrapping_add(chunk.len() as u32);
        }
        Ok(())
    }

    /// Changes what is behind the ports, or who serves a queue.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with [`ErrorCode::Invalid`]; the text says why.
    pub fn change(&self, change: Change) -> Result<(), ClientError> {
        self.tell(&Request::Change(change))
    }

    /// Locks features of a component; does not wait.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with [`ErrorCode::Busy`] when somebody has one of them.
    pub fn lock(&self, component: &str, bits: u64) -> Result<(), ClientError> {
        self.tell(&Request::Lock { component: component.to_owned(), bits })
    }

    /// Gives a lock back.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn unlock(&self, component: &str, bits: u64) -> Result<(), ClientError> {
        self.tell(&Request::Unlock { component: component.to_owned(), bits })
    }

    /// Lets the card reach memory of this program and returns its IOVA.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn map(&self, region: &Region, writable: bool, at: Option<u64>) -> Result<u64, ClientError> {
        let request = Request::Map { len: region.len() as u64, writable, at };
        let fd = region.fd();
        match self.ask(&request, fd.as_slice())?.0 {
            Reply::Mapped { iova } => Ok(iova),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Takes memory away from the card; returns when no worker can reach it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn unmap(&self, iova: u64) -> Result<(), ClientError> {
        self.tell(&Request::Unmap { iova })
    }

    /// Opens a queue and maps its memory.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn open(&self, queue: QueueId, mode: Mode, sharing: Sharing, buffers: Buffers) -> Result<Opened, ClientError> {
        self.open_for(queue, mode, sharing, buffers, None)
    }

    /// As [`Client::open`]; the first opener of a shared RX queue says what those may choose who join it (`None`: all but
    /// `block`, which programs of the same user may).
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn open_for(
        &self,
        queue: QueueId,
        mode: Mode,
        sharing: Sharing,
        buffers: Buffers,
        joiners: Option<Joiners>,
    ) -> Result<Opened, ClientError> {
        if let Way::Function(function, _) = &self.way {
            return function.open_queue(queue, mode, sharing, buffers);
        }
        let (reply, fds) = self.ask(&Request::Open { queue, mode, sharing, buffers, joiners }, &[])?;
        let Reply::Opened { handle, engine, layout, kick } = reply else { return Err(ClientError::Unexpected) };
        let opened = map_queue(queue, handle, engine, layout, fds, |fd| Kick::Signal(self.kick(kick, fd)));
        if opened.is_err() {
            let _ = self.close(handle);
        }
        opened
    }

    /// The kick with this number: the first fd of it that came. Any further one is closed.
    fn kick(&self, number: u32, fd: OwnedFd) -> Arc<OwnedFd> {
        let mut kicks = self.kicks.lock().unwrap_or_else(PoisonError::into_inner);
        kicks.entry(number).or_insert_with(|| Arc::new(fd)).clone()
    }

    /// What wakes this program when it sleeps on a queue: a stream socket from which there is something to be read when
    /// the card has something for a sleeper, or the state of the queue has changed, and at first in any case. To be
    /// asked for once, before the first sleep on the queue: a later one takes the place of the one before.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn call(&self, handle: Handle) -> Result<OwnedFd, ClientError> {
        match self.ask(&Request::Call { handle }, &[])? {
            (Reply::Call, fds) => fds.into_iter().next().ok_or(ClientError::Unexpected),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Starts a queue: where this program begins, and where the ring began.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn start(&self, handle: Handle) -> Result<(u64, u64), ClientError> {
        match self.ask(&Request::Start { handle }, &[])?.0 {
            Reply::Started { position, base } => Ok((position, base)),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Stops a queue at `position`.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with [`ErrorCode::NotDrained`] when the card has not taken everything; ask again.
    pub fn stop(&self, handle: Handle, force: bool, position: u64) -> Result<(), ClientError> {
        self.tell(&Request::Stop { handle, force, position })
    }

    /// Closes a queue.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn close(&self, handle: Handle) -> Result<(), ClientError> {
        self.tell(&Request::Close { handle })
    }

    /// Mediated RX: position and number of units in our hands, and units lost.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn rx_sync(&self, handle: Handle, release: u32, want: u32) -> Result<(u64, u32, u64), ClientError> {
        match self.ask(&Request::RxSync { handle, release, want }, &[])?.0 {
            Reply::RxGranted { position, units, lost } => Ok((position, units, lost)),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Mediated TX: position and number of units granted.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn tx_sync(&self, handle: Handle, commit: Vec<u16>, want: u32) -> Result<(u64, u32), ClientError> {
        match self.ask(&Request::TxSync { handle, commit, want }, &[])?.0 {
            Reply::TxGranted { position, units } => Ok((position, units)),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Has the card count frames that were too long for a TX queue.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn count_too_long(&self, handle: Handle, frames: u32) -> Result<(), ClientError> {
        self.tell(&Request::CountTooLong { handle, frames })
    }

    /// The page that the card's clock is read from.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn clock_page(&self) -> Result<OwnedFd, ClientError> {
        match self.ask(&Request::Clock(ClockRequest::Page), &[])? {
            (Reply::ClockPage, fds) => fds.into_iter().next().ok_or(ClientError::Unexpected),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Steers the clock, leads it, says how it does; not for [`ClockRequest::Page`].
    ///
    /// # Errors
    /// [`ClientError::Refused`] with [`ErrorCode::Denied`], with [`ErrorCode::Busy`] while another program leads it, or with
    /// [`ErrorCode::Invalid`].
    pub fn clock(&self, request: ClockRequest) -> Result<(), ClientError> {
        self.tell(&Request::Clock(request))
    }

    /// Ends a connection; its program is told.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with [`ErrorCode::Denied`], or [`ErrorCode::NotFound`] when there is none with that number.
    pub fn end_client(&self, id: u64) -> Result<(), ClientError> {
        self.tell(&Request::EndClient { id })
    }

    /// Ends locks of programs.
    ///
    /// # Errors
    /// As [`Client::end_client`].
    pub fn end_locks(&self, whose: Locked) -> Result<(), ClientError> {
        self.tell(&Request::EndLocks { whose })
    }

    /// All counters of the card.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn stats(&self) -> Result<CardStats, ClientError> {
        match self.ask(&Request::Stats, &[])? {
            (Reply::Stats(stats), _) => Ok(*stats),
            (Reply::StatsFile { len }, fds) => {
                postcard::from_bytes(&file_bytes(len, fds)?).map_err(|_| ClientError::Unexpected)
            }
            _ => Err(ClientError::Unexpected),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.watcher.take() {
            let _ = rustix::io::write(&end, &1u64.to_ne_bytes());
            // The thread cannot panic: it only polls.
            let _ = thread.join();
        }
        if self.driver.is_some() {
            self.hang_up();
        }
    }
}

/// The bytes of a file that the card hands over, if there are as many and not more than any card has to say.
fn file_bytes(len: u64, fds: Vec<OwnedFd>) -> Result<Vec<u8>, ClientError> {
    if len > MOST_OF_FILE {
        return Err(ClientError::Nonsense("a file that is too large"));
    }
    let fd = fds.into_iter().next().ok_or(ClientError::Unexpected)?;
    let len = usize::try_from(len).map_err(|_| ClientError::Unexpected)?;
    let region = Region::map(fd, len.max(1), Protection::Read, false)?;
    let mut bytes = vec![0; len];
    region.window().span(0, len).ok_or(ClientError::Unexpected)?.read_into(&mut bytes);
    Ok(bytes)
}

fn map_queue(
    queue: QueueId,
    handle: Handle,
    engine: Engine,
    layout: Layout,
    fds: Vec<OwnedFd>,
    share: impl FnOnce(OwnedFd) -> Kick,
) -> Result<Opened, ClientError> {
    use millrace_abi::queue::Direction;
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or(ClientError::Unexpected);
    // The memory is for us alone, so it needs no fd: of a thousand queues they would be too many.
    let map = |fd, len, protection, doubled| Region::map(fd, len, protection, doubled).map(Region::without_fd);
    let control = map(next()?, millrace_abi::control::PAGE_SIZE, Protection::ReadWrite, false)?;
    let kick = share(next()?);
    let data_protection = match queue.direction {
        Direction::Rx => Protection::Read,
        Direction::Tx => Protection::ReadWrite,
    };
    let len = |len: u64| usize::try_from(len).map_err(|_| ClientError::Unexpected);
    let (status, data, descriptors) = match layout {
        Layout::Medusa { status_len, data_len, descriptors_len, .. } => {
            let status = map(next()?, len(status_len)?, Protection::Read, false)?;
            let data = match data_len {
                0 => None,
                bytes => Some(map(next()?, len(bytes)?, data_protection, false)?),
            };
            let descriptors = match descriptors_len {
                0 => None,
                bytes => Some(map(next()?, len(bytes)?, Protection::ReadWrite, false)?),
            };
            (status, data, descriptors)
        }
        Layout::Dd { status_len, data_len, .. } => {
            let status = map(next()?, len(status_len)?, Protection::ReadWrite, false)?;
            let data = match data_len {
                0 => None,
                bytes => Some(map(next()?, len(bytes)?, data_protection, false)?),
            };
            (status, data, None)
        }
        Layout::Sze { status_len, ring } => {
            let status = map(next()?, len(status_len)?, Protection::Read, false)?;
            (status, Some(map(next()?, ring as usize, data_protection, true)?), None)
        }
        Layout::Calypte { status_len, ring, descriptors_len, .. } => {
            let status = map(next()?, len(status_len)?, Protection::Read, false)?;
            let data = map(next()?, ring as usize, data_protection, true)?;
            let headers = match descriptors_len {
                0 => None,
                bytes => Some(map(next()?, len(bytes)?, Protection::ReadWrite, false)?),
            };
            (status, Some(data), headers)
        }
    };
    Ok(Opened { handle, engine, layout, control, kick, status, data, descriptors })
}
