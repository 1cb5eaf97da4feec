//! The guest's side: requests by the control page, and work by rings in granted memory.

use crate::counts::GuestCounts;
use crate::guest::pages_of;
use crate::late::{Heard, Late};
use crate::memory::Pages;
use crate::message::{MOST_RUNS, Message, Request, Welcome};
use crate::page::GuestSide;
use crate::rights::right_for;
use crate::run::{Run, runs_of};
use crate::transport::{Counts, Granted, Grants};
use crate::{Address, Error, Land, ivshmem, xen};
use millrace_dma::{Iova, Window};
use millrace_rdma::number::Gid;
use millrace_rdma::served::{Program, SHARED_LEN};
use millrace_ring::lines::MOST_WORDS;
use millrace_served::wire;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// Looks for an answer before this side sleeps.
const SPINS: u32 = 200;
/// Messages that are read at a look.
const READ: usize = 64;
/// What is kept of what others tell while this side waits for an answer. What the backend itself says comes besides: it says no more than
/// there are queue pairs.
const MOST_TOLD: usize = 256;

/// More memory than a backend maps for anybody.
const MUCH: Error =
    Error::Refused { what: "so much memory of one program (--pages)", errno: Errno::NOMEM.raw_os_error() };

/// What both sides have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// What the transport took at this side.
    pub frontend: Counts,
    /// What the backend has counted.
    pub backend: GuestCounts,
    /// What other programs have told and this one has not taken, beyond what is kept of it.
    pub told_dropped: u64,
    /// Answers that came when nobody waited for them any more.
    pub late_answers: u64,
}

/// A connection with a backend. What it is joined with by [`Frontend::join`] is the program that has rings there.
pub struct Frontend {
    grants: Box<dyn Grants>,
    control: GuestSide,
    /// Held as long as the backend may use it.
    _page: Granted,
    shares: HashMap<u64, Granted>,
    /// Memory that a backend that writes nonsense may have mapped: it is not used again.
    unsure: Vec<Granted>,
    welcome: Welcome,
    told: VecDeque<Heard>,
    told_dropped: u64,
    words: Box<[u64; MOST_WORDS]>,
    was_served: bool,
    /// How long an answer may take.
    pub(crate) patience: Duration,
    /// Of the last request.
    number: u64,
    /// Of the request that was sent without waiting for its answer, until that comes.
    unawaited: Option<u64>,
    /// Requests whose answers were given up, and have not come yet.
    late: HashMap<u64, Late>,
    /// What they have made, and nobody wants.
    undo: VecDeque<Request>,
    late_answers: u64,
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
        let pages = Pages::new().map_err(Error::system("memory to be granted"))?;
        let (grants, page, control) = crate::memory::connect(Path::new(place), &pages, prepare)?;
        Self::new(Box::new(grants), page, control)
    }

    /// Calls the backend at a socket, with a file in which the program has memory that it will lend ([`Frontend::lend`]).
    ///
    /// # Errors
    /// [`Error`].
    pub fn call_with(path: &Path, pages: &Pages) -> Result<Self, Error> {
        let prepare = |page: &Window| Ok(GuestSide::new(page)?);
        let (grants, page, control) = crate::memory::connect(path, pages, prepare)?;
        Self::new(Box::new(grants), page, control)
    }

    /// Calls the backend over a transport that the program has its memory in ([`Frontend::lend_pages`]).
    ///
    /// # Errors
    /// [`Error`].
    pub fn call_from(land: &Land) -> Result<Self, Error> {
        let prepare = |page: &Window| Ok(GuestSide::new(page)?);
        match land {
            Land::Ivshmem(land) => {
                let (grants, page, control) = land.connect(prepare)?;
                Self::new(Box::new(grants), page, control)
            }
            Land::Xen(_) => {
                let (grants, page, control) = xen::connect(prepare)?;
                Self::new(Box::new(grants), page, control)
            }
        }
    }

    /// Over a transport whose backend has been told of the control page.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(grants: Box<dyn Grants>, page: Granted, control: GuestSide) -> Result<Self, Error> {
        let mut frontend = Self {
            grants,
            control,
            _page: page,
            shares: HashMap::new(),
            unsure: Vec::new(),
            welcome: Welcome {
                address: Default::default(),
                mac: Default::default(),
                gid: Gid([0; 16]),
                mtu: 0,
                pages: 0,
            },
            told: VecDeque::new(),
            told_dropped: 0,
            words: Box::new([0; MOST_WORDS]),
            was_served: false,
            patience: ANSWER,
            number: 0,
            unawaited: None,
            late: HashMap::new(),
            undo: VecDeque::new(),
            late_answers: 0,
        };
        let welcome = frontend.ask(&Request::Hello)?;
        frontend.welcome = Welcome::read(&welcome).ok_or(Error::Version)?;
        Ok(frontend)
    }

    /// Shares the rings of work and events with the engine, once: by them the program posts, and hears of completions.
    ///
    /// # Errors
    /// [`Error`].
    pub fn join(&mut self) -> Result<Program, Error> {
        let (at, window) = self.share(SHARED_LEN)?;
        let program = Program::new(&window)?;
        self.ask(&Request::Join(at))?;
        Ok(program)
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
        let until = Instant::now() + self.patience;
        loop {
            // When that is answered it has been read, and there is room for the next.
            if let Some(before) = self.unawaited {
                let _ = self.answer_to(before, until)?;
            }
            if !self.undo()? {
                break;
            }
        }
        let number = self.send(request)?;
        let answer = self.answer_to(number, until);
        if matches!(answer, Err(Error::Silent)) {
            self.late.extend(Late::of(request).map(|late| (number, late)));
        }
        answer?.map_err(|errno| refusal(request, errno))
    }

    /// Asks for something to be undone that a request has made whose answer was given up. Whether there was something, and room for it.
    pub(crate) fn undo(&mut self) -> Result<bool, Error> {
        let Some(request) = self.undo.pop_front() else { return Ok(false) };
        if !self.send_unawaited(&request)? {
            self.undo.push_front(request);
            return Ok(false);
        }
        self.late.extend(Late::of(&request).map(|late| (self.number, late)));
        Ok(true)
    }

    /// Whether the backend was told that the connection with that one is over, and has not answered yet.
    pub(crate) fn leaves(&self, other: Address) -> bool {
        self.late.values().any(|late| matches!(late, Late::Disconnect(of) if *of == other))
    }

    /// Memory that was to be registered, and was not, is given back: now, or when it is known what has become of it.
    pub(crate) fn abandon(&mut self, at: Iova) {
        let is_it = |late: &&mut Late| matches!(late, Late::Register(of, _) if *of == at);
        match self.late.values_mut().find(is_it) {
            Some(late) => *late = Late::Register(at, true),
            None => drop(self.release(at)),
        }
    }

    /// Sends a request whose answer says nothing that this side needs, unless one such is on its way. Whether it was sent.
    pub(crate) fn send_unawaited(&mut self, request: &Request) -> Result<bool, Error> {
        if self.unawaited.is_some() {
            self.hear(None)?;
        }
        if self.unawaited.is_some() {
            return Ok(false);
        }
        // What has no room now has some later.
        let sent = self.send(request).ok();
        self.unawaited = sent;
        Ok(sent.is_some())
    }

    /// Sends a request: its number.
    fn send(&mut self, request: &Request) -> Result<u64, Error> {
        let number = self.number.wrapping_add(1);
        if !self.control.requests.send(&request.write(number)) {
            // It has not even read those before.
            return Err(Error::Silent);
        }
        self.number = number;
        if self.control.requests.must_wake() {
            self.grants.ring();
        }
        Ok(number)
    }

    /// Waits for the answer to the request with that number.
    fn answer_to(&mut self, number: u64, until: Instant) -> Result<Result<Vec<u64>, i32>, Error> {
        loop {
            for _ in 0..SPINS {
                match self.hear(Some(number))? {
                    Some(answer) => return Ok(answer),
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

    /// Reads what the backend has sent: up to the answer that is wanted, if there is one.
    fn hear(&mut self, wanted: Option<u64>) -> Result<Option<Result<Vec<u64>, i32>>, Error> {
        for _ in 0..READ {
            let taken = self.control.answers.take(&mut self.words).map_err(|_| Error::Version)?;
            let Some(len) = taken else { return Ok(None) };
            self.control.answers.give_back();
            match Message::read(&self.words[..len]).ok_or(Error::Version)? {
                Message::Answer(number, answer) => {
                    let was_unawaited = self.unawaited.take_if(|unawaited| *unawaited == number).is_some();
                    if let Some(late) = self.late.remove(&number) {
                        let memory = (&mut self.shares, &mut *self.grants);
                        let heard = late.settle(&answer, memory, &mut self.undo);
                        self.told.extend(heard);
                    }
                    if wanted == Some(number) {
                        return Ok(Some(answer));
                    }
                    self.late_answers += u64::from(!was_unawaited);
                }
                Message::Told(..) if self.told.len() >= MOST_TOLD => self.told_dropped += 1,
                told => self.told.push_back(Heard::Told(told)),
            }
        }
        Ok(None)
    }

    /// What the backend has told unasked, and late answers.
    ///
    /// # Errors
    /// [`Error::Version`]: it writes nonsense.
    pub(crate) fn take_told(&mut self) -> Result<Option<Heard>, Error> {
        if self.told.is_empty() && self.control.answers.has_more() {
            self.hear(None)?;
        }
        Ok(self.told.pop_front())
    }

    /// What the backend has told of connections with that endpoint, and was not taken yet.
    pub(crate) fn take_told_of(&mut self, other: Address) -> Vec<Heard> {
        let is_of = |heard: &Heard| match heard {
            Heard::Told(Message::Connected(of, ..) | Message::Over(of)) | Heard::Disconnected(of) => *of == other,
            Heard::Told(Message::Answer(..) | Message::Told(..)) => false,
        };
        let (of, left): (Vec<_>, Vec<_>) = core::mem::take(&mut self.told).into_iter().partition(is_of);
        self.told = left.into();
        of
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
    pub fn ring(&mut self) {
        self.grants.ring();
    }

    /// Whether the backend has ended, as far as can be seen without waiting: for whoever looks instead of sleeping.
    pub fn has_gone(&mut self) -> bool {
        self.was_served |= self.control.is_served();
        self.grants.has_gone() || self.was_served && !self.control.is_served()
    }

    /// What is readable when the backend has rung, until [`Frontend::heard`]; `None`: nothing is, or what [`Frontend::fds`] has is.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.grants.bell()
    }

    /// Takes what was rung, without waiting.
    pub fn heard(&mut self) {
        self.grants.hear();
    }

    /// What is readable when the backend has rung, and ready for anything when it has ended; `None`: nothing is. Whoever waits
    /// for an answer takes what was rung, whatever it was for.
    pub fn fds(&self) -> Option<[BorrowedFd<'_>; 2]> {
        self.grants.fds()
    }

    /// Memory of at least so many bytes, zeros, that the backend maps now and keeps mapped: where it begins in the guest's domain.
    ///
    /// # Errors
    /// [`Error`].
    pub fn share(&mut self, len: usize) -> Result<(Iova, Window), Error> {
        let pages = pages_of(len).ok_or_else(|| Error::system("memory to be granted")(Errno::INVAL))?;
        let granted = self.grants.grant(pages)?;
        let runs = self.runs_of(&granted.references)?;
        let (before, messages) = (self.number, runs.len().div_ceil(MOST_RUNS) as u64);
        match self.tell_pages(pages, &runs) {
            Ok(at) => {
                let window = granted.window.clone();
                self.shares.insert(at.get(), granted);
                Ok((at, window))
            }
            Err(error) => {
                match error {
                    // Who does not answer in time may do it all the same, if it has been told all.
                    Error::Silent if self.number.wrapping_sub(before) >= messages => {
                        self.late.insert(self.number, Late::Grant(granted));
                    }
                    Error::Version => self.unsure.push(granted),
                    _ => self.grants.end(granted),
                }
                Err(error)
            }
        }
    }

    /// Memory that the program has in the file of the transport, behind that of the transport itself ([`MOST_PAGES`](crate::memory::MOST_PAGES)): where
    /// parts begin, and their bytes, whole pages. The backend maps them, one behind the other, until [`Frontend::release`]. If it does not answer, it may
    /// have mapped them all the same, until this connection ends.
    ///
    /// # Errors
    /// [`Error`].
    pub fn lend(&mut self, parts: &[(u64, u64)]) -> Result<Iova, Error> {
        const BYTES: u64 = crate::PAGE as u64;
        let page = |at: u64| at.is_multiple_of(BYTES).then_some(at / BYTES);
        let pages = |(at, len): &(u64, u64)| Some((page(*at)?, page(*len)?));
        let all: Option<Vec<_>> = parts.iter().map(pages).collect();
        let all = all.ok_or_else(|| Error::system("a part of a page")(Errno::INVAL))?;
        let count: u64 = all.iter().map(|(_, count)| count).sum();
        // More than a backend lets anybody have takes no memory here.
        let count = u32::try_from(count).ok().filter(|count| u64::from(*count) <= self.welcome.pages);
        let count = count.ok_or(MUCH)?;
        let references: Vec<u64> = all.into_iter().flat_map(|(first, count)| first..first + count).collect();
        let runs = self.runs_of(&references)?;
        self.tell_pages(count, &runs)
    }

    /// Memory that the program has in pages of the transport ([`Land::references`]), one behind the other, until [`Frontend::release`].
    ///
    /// # Errors
    /// As [`Frontend::lend`].
    pub fn lend_pages(&mut self, references: &[u64]) -> Result<Iova, Error> {
        let count = u32::try_from(references.len()).ok().filter(|count| u64::from(*count) <= self.welcome.pages);
        let count = count.ok_or(MUCH)?;
        let runs = self.runs_of(references)?;
        self.tell_pages(count, &runs)
    }

    fn runs_of(&self, references: &[u64]) -> Result<Vec<Run>, Error> {
        runs_of(references).ok_or_else(|| Error::system("pages behind the end of all files")(Errno::INVAL))
    }

    fn tell_pages(&mut self, pages: u32, runs: &[Run]) -> Result<Iova, Error> {
        let (mut at, mut first) = (0, 0);
        for runs in runs.chunks(MOST_RUNS) {
            let answer = self.ask(&Request::Grant { pages, first, runs: runs.to_vec() })?;
            first += runs.iter().map(|run| run.count() as u32).sum::<u32>();
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
        let was_there = self.shares.contains_key(&at.get());
        match self.ask(&Request::Release(at)) {
            // It was done before, and the answer has come late.
            Err(Error::Refused { .. }) if was_there && !self.shares.contains_key(&at.get()) => return Ok(()),
            done => drop(done?),
        }
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
        let (told_dropped, late_answers) = (self.told_dropped, self.late_answers);
        Ok(Status { frontend: self.grants.counts(), backend, told_dropped, late_answers })
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::PAGE;
    use crate::page::BackendSide;
    use millrace_dma::Region;

    /// Memory of this process; nobody has to be woken.
    struct Here(u32);

    impl Grants for Here {
        fn grant(&mut self, pages: u32) -> Result<Granted, Error> {
            let window = Region::heap(pages as usize * PAGE).window().clone();
            self.0 += pages;
            Ok(Granted { window, references: (self.0 - pages..self.0).map(u64::from).collect(), place: 0 })
        }

        fn end(&mut self, _: Granted) {}

        fn ring(&mut self) {}

        fn wait(&mut self, _: Duration) -> Result<(), Error> {
            std::thread::yield_now();
            Ok(())
        }

        fn counts(&self) -> Counts {
            Counts::default()
        }
    }

    /// A backend that answers what it is told to.
    pub struct Backend {
        side: BackendSide,
        words: Box<[u64; MOST_WORDS]>,
    }

    impl Backend {
        pub fn next(&mut self) -> (u64, Request) {
            let end = Instant::now() + Duration::from_secs(60);
            while Instant::now() < end {
                if let Some(len) = self.side.requests.take(&mut self.words).unwrap() {
                    self.side.requests.give_back();
                    return Request::read(&self.words[..len]).unwrap();
                }
                std::thread::yield_now();
            }
            panic!("nothing is asked for");
        }

        pub fn say(&mut self, message: &Message) {
            assert!(self.side.answers.send(&message.write()));
        }

        /// Answers what comes next, by another thread.
        pub fn answers<const N: usize>(mut self, all: [Vec<u64>; N]) -> std::thread::JoinHandle<Self> {
            std::thread::spawn(move || {
                for words in all {
                    let (number, _) = self.next();
                    self.say(&Message::Answer(number, Ok(words)));
                }
                self
            })
        }
    }

    /// The two, of which the backend has answered the greeting.
    pub fn greet() -> (Frontend, Backend) {
        let mut grants = Here(0);
        let page = grants.grant(1).unwrap();
        let control = GuestSide::new(&page.window).unwrap();
        let backend = Backend { side: BackendSide::new(&page.window).unwrap(), words: Box::new([0; MOST_WORDS]) };
        let (address, gid) = (Address([2; 6]), Gid([2; 16]));
        let welcome = Welcome { address, mac: address, gid, mtu: 1024, pages: 9 }.write();
        let thread = backend.answers([welcome]);
        (Frontend::new(Box::new(grants), page, control).unwrap(), thread.join().unwrap())
    }

    /// The same, and rings.
    fn meet() -> (Frontend, Backend) {
        let (mut frontend, backend) = greet();
        let thread = backend.answers([vec![0, 4096], vec![]]);
        frontend.join().unwrap();
        (frontend, thread.join().unwrap())
    }

    #[test]
    fn an_answer_that_comes_late_is_nobody_elses() {
        let (mut frontend, mut backend) = meet();
        frontend.patience = Duration::from_millis(5);
        assert!(matches!(frontend.ask(&Request::Release(Iova::new(1))), Err(Error::Silent)));
        assert!(matches!(frontend.share(PAGE), Err(Error::Silent)));
        assert_eq!(frontend.late.len(), 2, "the backend may map it yet");
        frontend.patience = ANSWER;
        let thread = std::thread::spawn(move || {
            let late = [backend.next(), backend.next()].map(|(number, _)| number);
            late.into_iter().for_each(|number| backend.say(&Message::Answer(number, Ok(vec![1, 2]))));
            let (number, request) = backend.next();
            assert_eq!(request, Request::Release(Iova::new(2)));
            backend.say(&Message::Answer(number, Ok(vec![7])));
        });
        assert_eq!(frontend.ask(&Request::Release(Iova::new(2))).unwrap(), [7]);
        assert_eq!(frontend.late_answers, 2);
        thread.join().unwrap();
    }

    #[test]
    fn what_was_made_late_is_undone_and_what_was_not_said_is_not_kept() {
        let (mut frontend, mut backend) = meet();
        frontend.patience = Duration::from_millis(5);
        let before = frontend.shares.len();
        assert!(matches!(frontend.share(PAGE), Err(Error::Silent)));
        assert!(matches!(frontend.engine(wire::Request::CreateDomain), Err(Error::Silent)));
        for words in [vec![1, 8192], vec![5]] {
            let (number, _) = backend.next();
            backend.say(&Message::Answer(number, Ok(words)));
        }
        frontend.hear(None).unwrap();
        frontend.patience = ANSWER;
        let thread = std::thread::spawn(move || {
            let asked = [(); 3].map(|()| {
                let (number, request) = backend.next();
                backend.say(&Message::Answer(number, Ok(Vec::new())));
                request
            });
            (asked, backend)
        });
        frontend.ask(&Request::Count).unwrap();
        let (asked, _backend) = thread.join().unwrap();
        let destroy = wire::Request::DestroyDomain(millrace_rdma::memory::ProtectionDomain(5));
        assert_eq!(asked, [Request::Release(Iova::new(8192)), Request::Engine(destroy), Request::Count]);
        assert_eq!((frontend.shares.len(), frontend.late.len()), (before, 0));
        // The other side reads nothing more: what finds no room names no memory.
        frontend.patience = Duration::ZERO;
        while frontend.send(&Request::Count).is_ok() {}
        assert!(matches!(frontend.share(PAGE), Err(Error::Silent)));
        assert!(frontend.late.is_empty() && frontend.unsure.is_empty());
        assert!(!frontend.send_unawaited(&Request::Count).unwrap(), "what has no room is sent later");
    }

    #[test]
    fn memory_that_is_given_back_late_is_given_back_once() {
        let (mut frontend, mut backend) = meet();
        let at = Iova::new(*frontend.shares.keys().next().unwrap());
        frontend.patience = Duration::from_millis(5);
        assert!(matches!(frontend.release(at), Err(Error::Silent)));
        frontend.patience = ANSWER;
        let thread = std::thread::spawn(move || {
            for answer in [Ok(Vec::new()), Err(2)] {
                let (number, _) = backend.next();
                backend.say(&Message::Answer(number, answer));
            }
        });
        frontend.release(at).unwrap();
        assert!(frontend.shares.is_empty());
        thread.join().unwrap();
    }

    #[test]
    fn what_nobody_waits_for_is_asked_one_at_a_time() {
        let (mut frontend, mut backend) = meet();
        let release = Request::Release(Iova::new(1));
        assert!(frontend.send_unawaited(&release).unwrap());
        assert!(!frontend.send_unawaited(&release).unwrap());
        let (number, _) = backend.next();
        backend.say(&Message::Answer(number, Err(16)));
        assert!(frontend.send_unawaited(&release).unwrap());
        let thread = std::thread::spawn(move || {
            for word in [1, 2] {
                let (number, _) = backend.next();
                backend.say(&Message::Answer(number, Ok(vec![word])));
            }
        });
        assert_eq!((frontend.ask(&Request::Join(Iova::new(1))).unwrap(), frontend.late_answers), (vec![2], 0));
        thread.join().unwrap();
    }
}
