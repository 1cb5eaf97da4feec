//! A rail: an endpoint of the RDMA engine, over queues of a card or a port, with buffers for what others say.

use super::pair::Memory;
use super::record::{LEN, WORDS};
use millrace_dma::{Pages, Region, Window};
use millrace_slurpoe as slurpoe;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use slurpoe::{Access, Address, Endpoint, Error, Notify, Transfer};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Buffers for records of all others.
const BUFFERS: usize = 256;
/// How long after a rail has broken it is opened again, and after an attempt.
const AGAIN: Duration = Duration::from_secs(1);

/// What is open of it.
struct Open {
    end: Endpoint,
    smbs: slurpoe::Region,
    inbox: slurpoe::Region,
}

/// The regions of a pair at a rail.
pub struct Shared {
    /// What is sent, and receive buffers that the other end writes to.
    local: slurpoe::Region,
    receive: slurpoe::Region,
}

impl Shared {
    /// By which the other end reaches receive buffers.
    pub fn key(&self) -> u32 {
        self.receive.key()
    }
}

pub struct Rail {
    config: slurpoe::Config,
    smbs: Window,
    inbox: Window,
    open: Option<Open>,
    /// By which the thread of the endpoint is woken, under that key.
    epoll: (Arc<OwnedFd>, u64),
    again: Instant,
    opening: Option<Receiver<Result<Endpoint, Error>>>,
    /// Bytes that were written to others, or have begun to be.
    written: Cell<u64>,
}

impl Rail {
    /// Opens it.
    pub fn open(config: slurpoe::Config, smbs: &Window, epoll: (Arc<OwnedFd>, u64)) -> Result<Self, Error> {
        let end = Endpoint::open(&config)?;
        let address = end.address();
        let inbox = memory(BUFFERS * LEN)?;
        // When it is opened again, others find it where it was.
        let config = slurpoe::Config { address: Some(address), ..config };
        let (smbs, again) = (smbs.clone(), Instant::now());
        let mut rail = Self { config, smbs, inbox, open: None, epoll, again, opening: None, written: Cell::new(0) };
        rail.begin(end)?;
        Ok(rail)
    }

    fn begin(&mut self, end: Endpoint) -> Result<(), Error> {
        let smbs = end.share(&self.smbs, Access::default())?;
        let inbox = end.share(&self.inbox, Access::LOCAL)?;
        for at in 0..BUFFERS {
            end.receive(inbox.part((at * LEN) as u64, LEN as u32)?, at as u64, Notify::Poll)?;
        }
        let key = EventData::new_u64(self.epoll.1);
        // It ends with the descriptor. Without it nobody is woken, and time goes on nevertheless.
        let _ = epoll::add(&self.epoll.0, end.descriptor(), key, EventFlags::IN);
        self.open = Some(Open { end, smbs, inbox });
        Ok(())
    }

    /// The endpoint, if it works.
    pub fn end(&self) -> Option<&Endpoint> {
        self.open.as_ref().map(|open| &open.end)
    }

    /// Whether nothing comes and goes any more.
    pub fn is_broken(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.end.broken().is_some())
    }

    /// Time goes on: one that has broken is opened again, by a thread, because it may take long. Whether it has just broken.
    pub fn tick(&mut self, now: Instant) -> bool {
        if self.is_broken() {
            self.open = None;
            self.again = now + AGAIN;
            return true;
        }
        if self.open.is_some() || now < self.again {
            return false;
        }
        let Some(opening) = &self.opening else {
            let (sender, receiver) = channel();
            let config = self.config.clone();
            let open = move || {
                let _ = sender.send(Endpoint::open(&config));
            };
            if std::thread::Builder::new().name("millrace-rail".to_owned()).spawn(open).is_ok() {
                self.opening = Some(receiver);
            }
            return false;
        };
        match opening.try_recv() {
            Err(TryRecvError::Empty) => return false,
            Ok(Ok(end)) => {
                // Memory that was registered once is registered again, or it is tried again.
                let _ = self.begin(end);
            }
            Ok(Err(_)) | Err(TryRecvError::Disconnected) => {}
        }
        (self.opening, self.again) = (None, now + AGAIN);
        false
    }

    /// The memory of a pair is open to the other end, where it may write.
    pub fn share(&self, memory: &Memory) -> Result<Shared, Error> {
        let end = self.end().ok_or_else(|| Error::Lost("it is opened again".to_owned()))?;
        let receive = Access { local: true, write: true, read: false };
        Ok(Shared { local: end.share(&memory.out, Access::default())?, receive: end.share(&memory.rmbs, receive)? })
    }

    /// Takes the words of a record that has come into a buffer, whose place is free again. How many they are.
    pub fn take(&self, buffer: usize, len: usize, words: &mut [u64; WORDS]) -> usize {
        let Some(open) = self.open.as_ref().filter(|_| buffer < BUFFERS) else { return 0 };
        let mut bytes = [0; LEN];
        // A record has whole words; what has not is none.
        let len = if len.is_multiple_of(8) { len.min(LEN) } else { 0 };
        let span = self.inbox.span(buffer * LEN, len);
        span.map(|span| span.read_into(&mut bytes[..len]));
        for (word, chunk) in words.iter_mut().zip(bytes[..len].as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        // There was room for it before.
        let part = open.inbox.part((buffer * LEN) as u64, LEN as u32);
        let _ = part.and_then(|part| open.end.receive(part, buffer as u64, Notify::Poll));
        len / 8
    }

    /// Sends so many bytes of what a pair has to say, from an offset of its memory. Whether it is on its way.
    pub fn send(&self, other: Address, shared: &Shared, (offset, len): (usize, usize), token: u64) -> bool {
        let part = shared.local.part(offset as u64, len as u32);
        self.post(other, part.map(Transfer::send), token)
    }

    /// Writes so many bytes of the send buffers into receive buffers of the other end.
    pub fn write(&self, other: Address, (from, len): (usize, u32), (key, to): (u32, u64), token: u64) -> bool {
        let Some(open) = &self.open else { return false };
        let part = open.smbs.part(from as u64, len);
        let is_posted = self.post(other, part.map(|part| Transfer::write(part, key, to)), token);
        self.written.set(self.written.get() + if is_posted { u64::from(len) } else { 0 });
        is_posted
    }

    /// Bytes that were written to others by this rail.
    pub fn written(&self) -> u64 {
        self.written.get()
    }

    fn post(&self, other: Address, transfer: Result<Transfer, Error>, token: u64) -> bool {
        let (Some(open), Ok(transfer)) = (&self.open, transfer) else { return false };
        open.end.post(other, &[transfer], token, Notify::Poll).is_ok()
    }
}

/// Memory of this process's own.
pub fn memory(len: usize) -> Result<Window, Error> {
    let region = Region::allocate(len, Pages::Ordinary).map_err(|error| Error::Allocate(len, error.to_string()))?;
    region.part(0, len).map_err(|error| Error::Allocate(len, error.to_string()))
}
