//! What leads to an engine outside of this process: the socket of a card (`place=card`), or a frontend of the split driver (`split=`). Both ask
//! for the same objects; what differs is how memory is shown.

use crate::boundary::Ground;
use crate::config::Config;
use millrace_dma::{Adopter, Identity, Iova, Protection, Region, Window};
use millrace_link::LinkError;
use millrace_rdma::memory::{ProtectionDomain, Reached, Registered, Way};
use millrace_rdma::number::Key;
use millrace_rdma::served::{Program, SHARED_LEN, queue_lines, ring_len};
use millrace_rdma::work::Access;
use millrace_served::wire::{self, Bytes, Register, Reregister, Welcome, Words};
use millrace_served::{CallError, Client, bell, socket_of};
use millrace_split::memory::Pages;
use millrace_split::message::Request as Asked;
use millrace_split::{Error, Frontend};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{Shutdown, shutdown};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Why something was not done.
pub(super) struct Refused {
    pub errno: i32,
    /// The engine has gone, or its answers cannot be told apart any more.
    pub is_over: bool,
}

/// With what somebody asks, and the descriptors of a thread that waits for events.
pub(super) enum Door {
    Card(CardDoor),
    Guest(Box<GuestDoor>),
}

/// The socket of a card, and its bells.
pub(super) struct CardDoor {
    client: Client,
    to_card: OwnedFd,
    bell: OwnedFd,
}

/// A frontend of the split driver.
pub(super) struct GuestDoor {
    frontend: Frontend,
    place: String,
    lends: Lends,
    /// Rings of completion queues: those that they had before are read to their ends.
    rings: HashMap<u32, Vec<Iova>>,
    /// What regions lie in.
    lent: HashMap<Key, Iova>,
    /// Rung when somebody who waited for an answer has taken what was rung: that may have been for events.
    nudge: Arc<OwnedFd>,
}

/// What is lent to a backend.
enum Lends {
    /// Parts of the file of adopted memory.
    File(Identity),
    /// Pages of the transport, in which the program's memory has been from the first.
    Pages(&'static Ground),
}

/// What a thread waits for.
pub(super) struct Ears {
    /// None: it has to look.
    pub bell: Option<OwnedFd>,
    /// Ready when the engine has gone; none: it has to look for that ([`Door::has_gone`]), and what was rung is taken by [`Door::hear`].
    pub link: Option<OwnedFd>,
    pub nudge: Option<Arc<OwnedFd>>,
}

/// Memory that is to be shown to the engine.
pub(super) struct Shown<'r> {
    /// Which files it is in; `None`: pages of the transport.
    pub reached: Option<&'r Reached>,
    /// Whole pages with all of it: addresses of the first byte, and behind the last.
    pub pages: (u64, u64),
    pub bytes: Bytes,
}

fn over(errno: i32) -> Refused {
    Refused { errno, is_over: true }
}

fn refused(errno: i32) -> Refused {
    Refused { errno, is_over: false }
}

fn of_call(error: CallError) -> Refused {
    // After an answer that was late or nonsense, the next one would be taken for another's.
    Refused { is_over: !matches!(error, CallError::Refused(_)), errno: error.errno() }
}

fn of_split(error: Error) -> Refused {
    match error {
        Error::Refused { errno, .. } => refused(errno),
        Error::Right(right) => {
            crate::boundary::say(format_args!(
                "this program may not do that: start the backend with the right `{right}` (--allow)"
            ));
            refused(libc::EPERM)
        }
        Error::System { source, .. } => refused(source.raw_os_error()),
        Error::Version => over(libc::EPROTO),
        Error::Silent => over(libc::ETIMEDOUT),
        _ => over(libc::EIO),
    }
}

fn number(words: &[u64]) -> Result<u32, Refused> {
    words.first().and_then(|word| u32::try_from(*word).ok()).ok_or_else(|| over(libc::EPROTO))
}

/// The two keys of a region, as they are said.
fn keys(mut words: Words) -> Result<Registered, Refused> {
    let mut key = || words.word().and_then(|word| u32::try_from(word).ok()).map(Key::new);
    let (lkey, rkey) = key().zip(key()).ok_or_else(|| over(libc::EPROTO))?;
    Ok(Registered { lkey, rkey, way: Way::Shared })
}

fn words_of(words: &[u64]) -> Result<Words, Refused> {
    let words = Words::answer(words).outcome();
    words.and_then(Result::ok).ok_or_else(|| over(libc::EPROTO))
}

impl Door {
    /// That which is wanted: the rings of this program, and who it is.
    pub fn open(config: &Config) -> Result<(Self, Program, Welcome), LinkError> {
        match &config.split {
            Some(place) => {
                let (door, program, welcome) = GuestDoor::open(place)?;
                Ok((Self::Guest(Box::new(door)), program, welcome))
            }
            None => {
                let (door, program, welcome) = CardDoor::open(config)?;
                Ok((Self::Card(door), program, welcome))
            }
        }
    }

    /// What its engine is called, for people.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Card(_) => "the engine in the card",
            Self::Guest(_) => "the engine of the backend",
        }
    }

    /// Where people see what it has counted.
    pub fn counts_at(&self) -> &'static str {
        match self {
            Self::Card(_) => "`millrace rdma stats`, for all of its programs",
            Self::Guest(_) => "what `millrace split backend` prints of a program that has left",
        }
    }

    /// How it is started.
    pub fn start(&self) -> &'static str {
        match self {
            Self::Card(_) => "the card (`millrace card --rdma-cpu`)",
            Self::Guest(_) => "the backend (`millrace split backend`)",
        }
    }

    /// An object that needs no memory.
    pub fn call(&mut self, request: &wire::Request) -> Result<Words, Refused> {
        match self {
            Self::Card(door) => door.client.call(request, &[]).map(|(words, _)| words).map_err(of_call),
            Self::Guest(door) => words_of(&door.ask(&Asked::Engine(*request))?),
        }
    }

    /// A completion queue, and its ring.
    pub fn create_queue(&mut self, depth: u32) -> Result<(u32, Window), Refused> {
        match self {
            Self::Card(door) => {
                let (mut words, ring) = door.ring(&wire::Request::CreateQueue(depth), depth)?;
                let queue = words.word().and_then(|word| u32::try_from(word).ok()).ok_or_else(|| over(libc::EPROTO))?;
                Ok((queue, ring))
            }
            Self::Guest(door) => door.create_queue(depth),
        }
    }

    /// Another depth; the new ring.
    pub fn resize_queue(&mut self, queue: u32, depth: u32) -> Result<Window, Refused> {
        match self {
            // The card writes to nothing else any more: what cannot be read is the end.
            Self::Card(door) => door.ring(&wire::Request::ResizeQueue(queue, depth), depth).map(|(_, ring)| ring),
            Self::Guest(door) => door.resize_queue(queue, depth),
        }
    }

    /// A completion queue was destroyed.
    pub fn forget_queue(&mut self, queue: u32) {
        if let Self::Guest(door) = self {
            let rings = door.rings.remove(&queue).unwrap_or_default();
            rings.into_iter().for_each(|at| door.release(at));
        }
    }

    /// A region.
    pub fn register(
        &mut self,
        domain: ProtectionDomain,
        access: Access,
        shown: &Shown<'_>,
    ) -> Result<Registered, Refused> {
        let bytes = shown.bytes;
        match self {
            Self::Card(door) => door.show(&wire::Request::Register(Register { domain, access, bytes }), shown),
            Self::Guest(door) => {
                door.show(shown, |at| Asked::Register { domain, access, at, len: bytes.len, base: bytes.base })
            }
        }
    }

    /// Changes a region.
    pub fn reregister(
        &mut self,
        key: Key,
        domain: Option<ProtectionDomain>,
        access: Option<Access>,
        shown: Option<&Shown<'_>>,
    ) -> Result<Registered, Refused> {
        match (self, shown) {
            (Self::Card(door), Some(shown)) => {
                let bytes = Some(shown.bytes);
                door.show(&wire::Request::Reregister(Reregister { key, domain, access, bytes }), shown)
            }
            (Self::Card(door), None) => {
                let change = Reregister { key, domain, access, bytes: None };
                let called = door.client.call(&wire::Request::Reregister(change), &[]);
                keys(called.map_err(of_call)?.0)
            }
            (Self::Guest(door), Some(shown)) => {
                let (len, base) = (shown.bytes.len, shown.bytes.base);
                let made =
                    door.show(shown, |at| Asked::Reregister { key, domain, access, bytes: Some((at, len, base)) })?;
                door.take_back(key);
                Ok(made)
            }
            (Self::Guest(door), None) => {
                let words = door.ask(&Asked::Reregister { key, domain, access, bytes: None })?;
                let made = keys(words_of(&words)?)?;
                let at = door.lent.remove(&key);
                door.lent.extend(at.map(|at| (made.lkey, at)));
                Ok(made)
            }
        }
    }

    /// Nobody reaches a region any more.
    pub fn deregister(&mut self, key: Key) -> Result<(), Refused> {
        self.call(&wire::Request::Deregister(key))?;
        if let Self::Guest(door) = self {
            door.take_back(key);
        }
        Ok(())
    }

    /// Wakes the engine.
    pub fn ring(&mut self) {
        match self {
            Self::Card(door) => bell::ring_card(&door.to_card),
            Self::Guest(door) => door.frontend.ring(),
        }
    }

    /// What the engine has counted, as JSON, if it says so.
    pub fn counters(&mut self) -> Option<String> {
        match self {
            Self::Card(door) => String::from_utf8(door.client.show(0).ok()??).ok(),
            Self::Guest(door) => {
                let backend = door.frontend.status().ok()?.backend;
                Some(millrace_rdma::show::counters(backend.pairs()))
            }
        }
    }

    /// Whether what is registered has to be memory in pages of the transport, because that takes none where it lies.
    pub fn has_own_pages(&self) -> bool {
        matches!(self, Self::Guest(door) if matches!(door.lends, Lends::Pages(_)))
    }

    /// Whether the engine has gone, for whoever looks because there is nothing to sleep on.
    pub fn has_gone(&mut self) -> bool {
        match self {
            Self::Card(_) => false,
            Self::Guest(door) => door.frontend.has_gone(),
        }
    }

    /// Takes what was rung, and was not by a bell as those of a card are.
    pub fn hear(&mut self) {
        if let Self::Guest(door) = self {
            door.frontend.heard();
        }
    }

    /// What a thread waits for.
    pub fn ears(&self) -> Result<Ears, Errno> {
        let copy = |fd: BorrowedFd<'_>| fcntl_dupfd_cloexec(fd, 0);
        match self {
            Self::Card(door) => {
                let bell = copy(rustix::fd::AsFd::as_fd(&door.bell))?;
                Ok(Ears { bell: Some(bell), link: Some(copy(door.client.fd())?), nudge: None })
            }
            Self::Guest(door) => {
                let (bell, link) = match door.frontend.fds() {
                    Some([bell, link]) => (Some(bell), Some(link)),
                    None => (door.frontend.bell(), None),
                };
                let nudge = Some(Arc::clone(&door.nudge));
                Ok(Ears { bell: bell.map(copy).transpose()?, link: link.map(copy).transpose()?, nudge })
            }
        }
    }

    /// Hangs up. Whoever looks at the link sees that.
    pub fn hang_up(&self) {
        let link = match self {
            Self::Card(door) => Some(door.client.fd()),
            Self::Guest(door) => door.frontend.fds().map(|[_, link]| link),
        };
        let _ = link.map(|link| shutdown(link, Shutdown::Both));
    }
}

impl CardDoor {
    fn open(config: &Config) -> Result<(Self, Program, Welcome), LinkError> {
        let device = super::open_card(&config.wanted())?;
        let name = device.name().to_owned();
        let failed = |why: String| LinkError::Place(format!("place=card: the card {name}: {why}"));
        let path = name.strip_prefix("unix:").map(|path| path.split(',').next().unwrap_or(path));
        let path = path.ok_or_else(|| failed("it is in this process".to_owned()))?;
        let client = Client::connect(&socket_of(Path::new(path))).map_err(|error| failed(why_no_engine(error)))?;
        let told = client.call(&wire::Request::Hello, &[]).map_err(|error| match error {
            CallError::Refused(errno) => failed(why_no_engine(Errno::from_raw_os_error(errno))),
            error => failed(error.to_string()),
        })?;
        let nonsense = || failed(CallError::Version.to_string());
        let (mut words, fds) = told;
        let welcome = Welcome::read(&mut words).ok_or_else(nonsense)?;
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or_else(nonsense);
        let (shared, to_card, bell) = (next()?, next()?, next()?);
        // With it memory can be adopted without a right of this program's own.
        if let Some(device) = fds.next() {
            Adopter::hand_over(device);
        }
        let shared =
            Region::map(shared, SHARED_LEN, Protection::ReadWrite, false).map_err(|error| failed(error.to_string()))?;
        let program = Program::new(shared.window()).map_err(|error| failed(error.to_string()))?;
        Ok((Self { client, to_card, bell }, program, welcome))
    }

    /// What has a ring in its answer.
    fn ring(&mut self, request: &wire::Request, depth: u32) -> Result<(Words, Window), Refused> {
        let (words, fds) = self.client.call(request, &[]).map_err(of_call)?;
        let [fd] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| over(libc::EPROTO))?;
        let ring = Region::map(fd, ring_len(queue_lines(depth)), Protection::ReadWrite, false);
        // The card has it, and nobody will read it.
        Ok((words, ring.map_err(|_| over(libc::ENOMEM))?.window().clone()))
    }

    fn show(&mut self, request: &wire::Request, shown: &Shown<'_>) -> Result<Registered, Refused> {
        let fds: Vec<_> =
            shown.reached.into_iter().flat_map(|reached| &reached.pieces).map(|piece| piece.file.fd()).collect();
        keys(self.client.call(request, &fds).map_err(of_call)?.0)
    }
}

/// Pages of the file of adopted memory that frontends of this process grant of themselves. A child that is forked has another file.
fn pages_of(adopter: &Adopter) -> Result<Pages, Errno> {
    static PAGES: Mutex<Option<(Identity, Pages)>> = Mutex::new(None);
    let mut pages = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let file = adopter.file();
    if let Some((_, pages)) = pages.as_ref().filter(|(identity, _)| *identity == file.identity()) {
        return Ok(pages.clone());
    }
    let made = Pages::of(fcntl_dupfd_cloexec(file.fd(), 0)?);
    *pages = Some((file.identity(), made.clone()));
    Ok(made)
}

impl GuestDoor {
    fn open(place: &str) -> Result<(Self, Program, Welcome), LinkError> {
        let failed = |why: String| LinkError::Place(format!("split={place}: {why}"));
        let (mut frontend, lends) = match Ground::of_process() {
            Some(ground) => {
                let ground = ground.map_err(failed)?;
                (Frontend::call_from(&ground.land).map_err(|error| failed(error.to_string()))?, Lends::Pages(ground))
            }
            None if place == "xen" || place.starts_with("ivshmem:") => {
                let why = "MILLRACE_VERBS has to say so when the program begins: from then on it allocates what it registers later";
                return Err(failed(why.to_owned()));
            }
            None => {
                let adopter = Adopter::of_process().map_err(|error| failed(error.to_string()))?;
                let pages = pages_of(adopter).map_err(LinkError::Descriptor)?;
                let frontend = Frontend::call_with(Path::new(place), &pages);
                (frontend.map_err(|error| failed(error.to_string()))?, Lends::File(adopter.file().identity()))
            }
        };
        let program = frontend.join().map_err(|error| failed(error.to_string()))?;
        let welcome = frontend.welcome();
        let welcome = Welcome { mac: welcome.mac.0, gid: welcome.gid, mtu: welcome.mtu };
        let nudge = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(LinkError::Descriptor)?;
        let (rings, lent, nudge) = (HashMap::new(), HashMap::new(), Arc::new(nudge));
        Ok((Self { frontend, place: place.to_owned(), lends, rings, lent, nudge }, program, welcome))
    }

    /// Asks, and has the thread that waits for events look at what was rung meanwhile.
    fn ask(&mut self, request: &Asked) -> Result<Vec<u64>, Refused> {
        let heard = self.frontend.counts().heard;
        let answer = self.frontend.ask(request);
        if self.frontend.counts().heard != heard {
            bell::ring_card(&self.nudge);
        }
        answer.map_err(of_split)
    }

    fn release(&mut self, at: Iova) {
        // If the backend has gone, so has what it had; otherwise it stays lent until the end of this connection.
        let _ = self.frontend.release(at);
        bell::ring_card(&self.nudge);
    }

    fn take_back(&mut self, key: Key) {
        if let Some(at) = self.lent.remove(&key) {
            self.release(at);
        }
    }

    fn create_queue(&mut self, depth: u32) -> Result<(u32, Window), Refused> {
        let (at, ring) = self.share_ring(depth)?;
        match self.ask(&Asked::CreateQueue(depth, at)).and_then(|words| number(&words)) {
            Ok(queue) => {
                self.rings.insert(queue, vec![at]);
                Ok((queue, ring))
            }
            Err(error) => {
                self.release(at);
                Err(error)
            }
        }
    }

    fn resize_queue(&mut self, queue: u32, depth: u32) -> Result<Window, Refused> {
        let (at, ring) = self.share_ring(depth)?;
        if let Err(error) = self.ask(&Asked::ResizeQueue(queue, depth, at)) {
            self.release(at);
            return Err(error);
        }
        self.rings.entry(queue).or_default().push(at);
        Ok(ring)
    }

    fn share_ring(&mut self, depth: u32) -> Result<(Iova, Window), Refused> {
        // More than any engine allows.
        if depth > 1 << 24 {
            return Err(refused(libc::EINVAL));
        }
        let shared = self.frontend.share(ring_len(queue_lines(depth))).map_err(of_split);
        bell::ring_card(&self.nudge);
        shared
    }

    /// Lends memory, and asks for a region in it.
    fn show(&mut self, shown: &Shown<'_>, request: impl FnOnce(Iova) -> Asked) -> Result<Registered, Refused> {
        let lent = match &self.lends {
            Lends::File(file) => {
                let pieces = shown.reached.map_or(&[][..], |reached| &reached.pieces);
                if pieces.iter().any(|piece| piece.file.identity() != *file) {
                    crate::boundary::say(format_args!(
                        "split={}: memory that is shared memory already (of a memfd, or shm_open) cannot be registered: only memory of the program's own can",
                        self.place
                    ));
                    return Err(refused(libc::EFAULT));
                }
                self.frontend.lend(shown.bytes.parts.list())
            }
            Lends::Pages(ground) => {
                let pages = ground.arena.pages_of(shown.pages.0, shown.pages.1);
                let Some(references) = pages.and_then(|(first, count)| ground.land.references(first, count)) else {
                    crate::boundary::say(format_args!(
                        "split={}: the bytes at {:#x} cannot be registered: they were not allocated in the memory of the transport. What malloc, calloc, realloc, \
                         posix_memalign and aligned_alloc give is there, from={} bytes and more, while there is room; variables, stacks, what mmap gives and memory \
                         of before a fork are not",
                        self.place, shown.pages.0, ground.from
                    ));
                    return Err(refused(libc::EOPNOTSUPP));
                };
                self.frontend.lend_pages(&references)
            }
        };
        let lent = lent.map_err(of_split);
        bell::ring_card(&self.nudge);
        let at = lent.inspect_err(|Refused { errno, .. }| {
            if matches!(*errno, libc::ENOMEM | libc::EDQUOT) {
                crate::boundary::say(format_args!(
                    "split={}: the backend maps no more memory for this program (--pages and --all-pages there, in pages of 4 KiB)",
                    self.place
                ));
            }
        })?;
        let begins = Iova::new(at.get() + u64::from(shown.bytes.skip));
        let made = self.ask(&request(begins)).and_then(|words| keys(words_of(&words)?));
        match &made {
            Ok(made) => drop(self.lent.insert(made.lkey, at)),
            Err(_) => self.release(at),
        }
        made
    }
}

fn why_no_engine(error: Errno) -> String {
    match error {
        Errno::NOENT | Errno::CONNREFUSED => "it has no engine for programs: start it with --rdma-cpu".to_owned(),
        Errno::ACCESS | Errno::PERM => {
            "this user may not use its engine: the card's administrator can allow it with --grant user:NAME=rdma; or use place=library".to_owned()
        }
        Errno::USERS => "this process, or this user, has as many connections with its engine as there may be".to_owned(),
        error => format!("its engine cannot be called: {error}"),
    }
}
