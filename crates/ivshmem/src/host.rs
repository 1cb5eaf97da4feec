//! A program of the host as a client of the server, as QEMU is for a virtual machine.

use crate::endpoint::EndpointError;
use crate::layout::Layout;
use crate::protocol::{MEMORY, Reader, VERSION};
use millrace_dma::{Protection, Region, Window};
use millrace_port::{Bell, Whose};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a server may take to greet.
const GREETING: Duration = Duration::from_secs(5);
/// Messages that are looked at in one go.
const MOST_AT_ONCE: usize = 1024;
/// Vectors of a peer that are kept; the first is rung.
const MOST_VECTORS: usize = 64;

/// What the server has given.
pub(crate) struct Host {
    socket: UnixStream,
    reader: Reader,
    /// Its slot, and what it is called.
    pub id: u16,
    pub called: u16,
    slots: u16,
    region: Region,
    own: Vec<OwnedFd>,
    /// Watches the first of these for each ring anew. It is never read: Linux would tell all who watch it, a million perhaps, as each peer has it.
    ear: OwnedFd,
    /// Which memory it is: the number of its file system, and there.
    memory: (u64, u64),
    /// By slot: what the peer is called, and its vectors.
    peers: BTreeMap<u16, (u16, Vec<Arc<Bell>>)>,
    pub is_alone: bool,
    /// Vectors of others for which there was no descriptor.
    pub lost: u64,
}

impl Host {
    /// Connects, and waits until the server has said all that it says at first.
    pub fn connect(path: &Path) -> Result<Self, EndpointError> {
        let failed = |source| EndpointError::Connect { path: path.to_owned(), source };
        let socket = UnixStream::connect(path).map_err(failed)?;
        let mut reader = Reader::default();
        let end = Instant::now() + GREETING;
        let mut next = || loop {
            match reader.next(&socket) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(Errno::MFILE) => return Err(EndpointError::Descriptors(path.to_owned())),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(EndpointError::TurnedAway(path.to_owned())),
                Err(error) => return Err(failed(error.into())),
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(EndpointError::Silent(path.to_owned()));
            }
            let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timespec(left)));
        };
        let strange = || EndpointError::NoServer(path.to_owned());
        let (version, _) = next()?;
        let called = next()?.0;
        let (number, memory) = next()?;
        let (Ok(called), Some(memory)) = (u16::try_from(called), memory) else { return Err(strange()) };
        if version != VERSION || number != MEMORY {
            return Err(strange());
        }
        let found = rustix::fs::fstat(&memory);
        let (len, file) = found
            .map_or((0, (0, 0)), |found| (usize::try_from(found.st_size).unwrap_or(0), (found.st_dev, found.st_ino)));
        let region = Region::map_guarded(memory, len, Protection::ReadWrite).map_err(EndpointError::Memory)?;
        let slots = Layout::open(region.window())?.slots();
        let mut host = Self {
            socket: socket.try_clone().map_err(failed)?,
            reader: Reader::default(),
            id: called % slots,
            called,
            slots,
            region,
            memory: file,
            own: Vec::new(),
            ear: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed(error.into()))?,
            peers: BTreeMap::new(),
            is_alone: false,
            lost: 0,
        };
        // Its own vectors come last.
        while host.own.is_empty() {
            let (number, fd) = next()?;
            host.note(number, fd);
        }
        host.reader = reader;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&host.ear, &host.own[0], epoll::EventData::new_u64(0), flags).map_err(|_| strange())?;
        Ok(host)
    }

    pub fn window(&self) -> &Window {
        self.region.window()
    }

    fn note(&mut self, number: i64, fd: Option<OwnedFd>) {
        let Ok(called) = u16::try_from(number) else { return };
        let slot = called % self.slots;
        let Some(fd) = fd else {
            self.peers.retain(|_, (gone, _)| *gone != called);
            return;
        };
        if called == self.called {
            if self.own.len() < MOST_VECTORS {
                self.own.push(fd);
            }
            return;
        }
        let (known, bells) = self.peers.entry(slot).or_default();
        if *known != called {
            bells.clear();
        }
        *known = called;
        if bells.len() < MOST_VECTORS {
            bells.push(Bell::event(Whose::Peer { memory: self.memory, slot }, fd));
        }
    }

    /// Takes what the server has said.
    pub fn hear(&mut self) {
        if self.is_alone {
            return;
        }
        for _ in 0..MOST_AT_ONCE {
            match self.reader.next(&self.socket) {
                Ok(Some((number, fd))) => self.note(number, fd),
                Ok(None) => return,
                // Of one that is there, and is not woken: that is no end.
                Err(Errno::MFILE) => self.lost += 1,
                // Who is there goes on, and nobody else comes.
                Err(_) => {
                    self.is_alone = true;
                    return;
                }
            }
        }
    }

    /// Rings the first vector of a peer. Never waits, whatever that one has done to it.
    pub fn ring(&mut self, peer: u16) {
        if !self.peers.contains_key(&peer) && !self.is_alone {
            self.hear();
        }
        if let Some(bell) = self.peers.get(&peer).and_then(|(_, bells)| bells.first()) {
            bell.ring();
        }
    }

    /// Readable when it was rung, and when the server has said something or has ended.
    pub fn fds(&self) -> Option<[BorrowedFd<'_>; 2]> {
        let ear = self.ear.as_fd();
        // Its end is heard once.
        Some([ear, if self.is_alone { ear } else { self.socket.as_fd() }])
    }

    /// Takes what has come by both.
    pub fn hear_all(&mut self) {
        self.heard();
        if !self.is_alone {
            self.hear();
        }
    }

    /// Waits until it was rung, or the server says something.
    pub fn wait(&mut self, timeout: Duration) {
        let mut fds = vec![PollFd::new(&self.ear, PollFlags::IN)];
        if !self.is_alone {
            fds.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        let _ = poll(&mut fds, Some(&timespec(timeout)));
        self.heard();
        self.hear();
    }

    /// Nothing is readable at the ear until it is rung again.
    fn heard(&self) {
        let mut one = [const { core::mem::MaybeUninit::uninit() }; 1];
        let _ = epoll::wait(&self.ear, &mut one, Some(&timespec(Duration::ZERO)));
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}
