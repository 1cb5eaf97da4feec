//! The guest's side: requests by the control page, and work by rings in granted memory.

use crate::guest::{GuestCounts, pages_of, right_for};
use crate::message::{MOST_REFERENCES, Message, Request, Welcome};
use crate::page::GuestSide;
use crate::transport::{Counts, Granted, Grants};
use crate::{Error, ivshmem, xen};
use millrace_dma::{Iova, Window};
use millrace_rdma::served::{Program, SHARED_LEN};
use millrace_ring::lines::MOST_WORDS;
use millrace_served::wire;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// Looks for an answer before this side sleeps.
const SPINS: u32 = 200;
/// What is kept of what others tell while this side waits for an answer. What the backend itself says comes besides: it says no more than
/// there are queue pairs.
const MOST_TOLD: usize = 256;

/// What both sides have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// What the transport took at this side.
    pub frontend: Counts,
    /// What the backend has counted.
    pub backend: GuestCounts,
    /// What other programs have told and this one has not taken, beyond what is kept of it.
    pub told_dropped: u64,
}

/// A connection with a backend, and the rings of a program.
pub struct Frontend {
    grants: Box<dyn Grants>,
    control: GuestSide,
    /// Held as long as the backend may use it.
    _page: Granted,
    shares: HashMap<u64, Granted>,
    /// The rings of work, completions and events.
    pub(crate) program: Program,
    welcome: Welcome,
    told: VecDeque<Message>,
    told_dropped: u64,
    words: Box<[u64; MOST_WORDS]>,
    was_served: bool,
}

impl Frontend {
    /// Calls the backend at `place`: `xen` for the one in domain 0, `ivshmem:pci` (or `ivshmem:pci:ADDRESS`, and on the host `ivshmem:` and the path
    /// of the server's socket) for one among the peers that share memory, otherwise the path of its socket.
    ///
    /// # Errors
    /// [`Error`].
    pub fn call_at(place: &str) -> Result<Self, Error> {
        let prepare = |page: &Window| Ok(GuestSide::new(page)?);
        if place == "xen" {
            let (grants, page, control) = xen::connect(prepare)?;
            return Self::new(Box::new(grants), page, control);
        }
        if let Some(at) = place.strip_prefix("ivshmem:") {
            let (grants, page, control) = ivshmem::connect(at, prepare)?;
            return Self::new(Box::new(grants), page, control);
        }
        let (grants, page, control) = crate::memory::connect(Path::new(place), prepare)?;
        Self::new(Box::new(grants), page, control)
    }

    /// Over a transport whose backend has been told of the control page.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(grants: Box<dyn Grants>, page: Granted, control: GuestSide) -> Result<Self, Error> {
        // Rings that nobody has yet, until the backend has mapped those that count.
        let rings = millrace_dma::Region::heap(SHARED_LEN);
        let mut frontend = Self {
            grants,
            control,
            _page: page,
            shares: HashMap::new(),
            program: Program::new(rings.window())?,
            welcome: Welcome { address: Default::default(), mac: Default::default(), pages: 0 },
            told: VecDeque::new(),
            told_dropped: 0,
            words: Box::new([0; MOST_WORDS]),
            was_served: false,
        };
        let welcome = frontend.ask(&Request::Hello)?;
        frontend.welcome = Welcome::read(&welcome).ok_or(Error::Version)?;
        let (at, window) = frontend.share(SHARED_LEN)?;
        frontend.program = Program::new(&window)?;
        frontend.ask(&Request::Join(at))?;
        Ok(frontend)
    }

    /// What the backend has said first.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Asks the backend for something, and waits for the answer: what it says.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Right`], [`Error::Gone`], [`Error::Silent`], [`Error::Version`].
    pub fn ask(&mut self, request: &Request) -> Result<Vec<u64>, Error> {
        let until = Instant::now() + ANSWER;
        if !self.control.requests.send(&request.write()) {
            // One at a time: it has not even read the one before.
            return Err(Error::Silent);
        }
        if self.control.requests.must_wake() {
            self.grants.ring();
        }
        loop {
            for _ in 0..SPINS {
                match self.hear()? {
                    Some(Ok(words)) => return Ok(words),
                    Some(Err(errno)) => return Err(refusal(request, errno)),
                    None => std::hint::spin_loop(),
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Silent);
            }
            if self.control.answers.doze() {
                self.sleep(left)?;
            }
            self.control.answers.awake();
        }
    }

    /// Sleeps until the backend rings, or so long.
    pub(crate) fn sleep(&mut self, most: Duration) -> Result<(), Error> {
        self.grants.wait(most)?;
        self.was_served |= self.control.is_served();
        if self.was_served && !self.control.is_served() && !self.control.answers.has_more() {
            return Err(Error::Gone);
        }
        Ok(())
    }

    /// Reads what the backend has sent: up to an answer, if there is one.
    fn hear(&mut self) -> Result<Option<Result<Vec<u64>, i32>>, Error> {
        loop {
            let taken = self.control.answers.take(&mut self.words).map_err(|_| Error::Version)?;
            let Some(len) = taken else { return Ok(None) };
            self.control.answers.give_back();
            match Message::read(&self.words[..len]).ok_or(Error::Version)? {
                Message::Answer(answer) => return Ok(Some(answer)),
                Message::Told(..) if self.told.len() >= MOST_TOLD => self.told_dropped += 1,
                told => self.told.push_back(told),
            }
        }
    }

    /// What the backend has told unasked.
    ///
    /// # Errors
    /// [`Error::Version`]: it writes nonsense.
    pub fn take_told(&mut self) -> Result<Option<Message>, Error> {
        if self.told.is_empty() && self.control.answers.has_more() {
            // An answer that nobody waits for any more is none.
            self.hear()?;
        }
        Ok(self.told.pop_front())
    }

    /// Says that it wants to be woken when something is told. Whether nothing has come meanwhile.
    pub(crate) fn doze(&self) -> bool {
        self.control.answers.doze() && self.told.is_empty()
    }

    /// Is awake.
    pub(crate) fn awake(&self) {
        self.control.answers.awake();
    }

    /// Wakes the backend.
    pub(crate) fn ring(&mut self) {
        self.grants.ring();
    }

    /// Memory of at least so many bytes, zeros, that the backend maps now and keeps mapped: where it begins in the guest's domain.
    ///
    /// # Errors
    /// [`Error`].
    pub fn share(&mut self, len: usize) -> Result<(Iova, Window), Error> {
        let pages = pages_of(len).ok_or_else(|| Error::system("memory to be granted")(Errno::INVAL))?;
        let granted = self.grants.grant(pages)?;
        match self.tell_pages(pages, &granted) {
            Ok(at) => {
                let window = granted.window.clone();
                self.shares.insert(at.get(), granted);
                Ok((at, window))
            }
            Err(error) => {
                self.grants.end(granted);
                Err(error)
            }
        }
    }

    fn tell_pages(&mut self, pages: u32, granted: &Granted) -> Result<Iova, Error> {
        let mut at = 0;
        for references in granted.references.chunks(MOST_REFERENCES) {
            let answer = self.ask(&Request::Grant { pages, references: references.to_vec() })?;
            let &[_, begins] = &answer[..] else { return Err(Error::Version) };
            at = begins;
        }
        if at == 0 { Err(Error::Version) } else { Ok(Iova::new(at)) }
    }

    /// Gives memory back that nothing of the engine lies in any more.
    ///
    /// # Errors
    /// [`Error::Refused`] with EBUSY while something does.
    pub fn release(&mut self, at: Iova) -> Result<(), Error> {
        self.ask(&Request::Release(at))?;
        if let Some(granted) = self.shares.remove(&at.get()) {
            self.grants.end(granted);
        }
        Ok(())
    }

    /// A request of the engine that needs no memory; what its answer says.
    ///
    /// # Errors
    /// [`Error`].
    pub fn engine(&mut self, request: wire::Request) -> Result<Vec<u64>, Error> {
        self.ask(&Request::Engine(request))
    }

    /// What both sides have counted.
    ///
    /// # Errors
    /// [`Error`].
    pub fn status(&mut self) -> Result<Status, Error> {
        let backend = GuestCounts::read(&self.ask(&Request::Count)?).ok_or(Error::Version)?;
        Ok(Status { frontend: self.grants.counts(), backend, told_dropped: self.told_dropped })
    }

    /// What the transport took at this side.
    pub fn counts(&self) -> Counts {
        self.grants.counts()
    }
}

fn refusal(request: &Request, errno: i32) -> Error {
    match right_for(request) {
        Some(right) if errno == Errno::PERM.raw_os_error() => Error::Right(right),
        _ => Error::Refused { what: request.what(), errno },
    }
}
