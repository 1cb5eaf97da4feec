//! An endpoint of a program whose work a card does.

use super::error::{Error, Refused};
use super::greeting::{self, Greeting, LEN, MOST_MEMORY};
use super::port::{Ended, Memory, Port};
use super::service::{found, rung};
use super::wire::{Asked, POOL_AT};
use crate::bell::{Bell, ClaimError, Full, Owner};
use crate::block::Block;
use crate::control::Tag;
use crate::endpoint::{Error as NameError, Event, Name, Peer, Request, Users, Who};
use crate::engine::Cancel;
use millrace_dma::{Pages, Region, send_when_taken};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, write};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the card may take for an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How often somebody is looked for who is not there yet.
const AGAIN: Duration = Duration::from_millis(1);
/// How often it is asked whether the card is there, by who does not sleep.
const THERE: Duration = Duration::from_micros(100);
/// Looks between two at the clock.
const LOOKS: u32 = 64;

/// The socket of messages of a card that listens at `card`: beside it.
pub fn socket_of(card: &Path) -> PathBuf {
    let mut name = card.as_os_str().to_owned();
    name.push(".messages");
    name.into()
}

/// What an endpoint is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// By which others of the card find it: 1 to 64 letters, digits, `.`, `_` and `-`. None: it can only call.
    pub name: Option<String>,
    /// Who may connect.
    pub users: Users,
    /// Bytes of the pool: for blocks, and for messages of more than 1,320 bytes in other memory, as long as they have not ended. It is taken at once.
    pub pool: usize,
    /// How long a call that waits looks itself before it sleeps.
    pub spin: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { name: None, users: Users::Own, pool: 32 << 20, spin: Duration::from_micros(200) }
    }
}

/// An endpoint at a card: names, messages and doorbells as those of [`crate::Endpoint`], with others that the same card hosts. Messages
/// move on by the card, whatever the program does; the program looks at its own memory for what has ended, and has no thread for it.
/// Who wants to use it by several threads puts it behind a lock.
pub struct Endpoint {
    port: Port,
    socket: OwnedFd,
    card: OwnedFd,
    spin: Duration,
    looked: Instant,
    is_gone: bool,
}

impl Endpoint {
    /// An endpoint of the card that listens at `card`.
    ///
    /// # Errors
    /// [`Error::NoCard`], [`Error::NoRight`], [`Error::TurnedAway`], [`Error::Taken`], [`Error::Name`], [`Error::Foreign`]; [`Error::Memory`], [`Error::System`].
    pub fn open(card: &Path, config: Config) -> Result<Self, Error> {
        let Config { name, users, pool, spin } = config;
        let name = name.map(own_name).transpose()?;
        let len = POOL_AT.saturating_add(pool).next_multiple_of(4096).min(MOST_MEMORY as usize);
        let memory = Region::allocate(len, Pages::Ordinary)?;
        let failed = |doing| move |source| Error::System { doing, source };
        let file = memory.fd().ok_or(Error::System { doing: "find memory", source: Errno::BADF })?;
        // The card copies to pages that there are, and that this program has paid for.
        fallocate(file, FallocateFlags::empty(), 0, len as u64).map_err(failed("allocate memory"))?;
        let socket = call(card)?;
        let hello = Greeting::Hello { name: name.clone(), users, len: len as u64 };
        // It takes memory of those only who may use it, and looks first who calls.
        match send_when_taken(&socket, ANSWER, || greeting::send(&socket, &hello, Some(file))) {
            Ok(()) => {}
            // It has hung up, and may have said why.
            Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(Errno::PERM) => {
                return match answer(&socket, Duration::ZERO)? {
                    (Greeting::Refused(why), _) => Err(Error::turned_away(why)),
                    _ => Err(Error::TurnedAway(Errno::PROTO)),
                };
            }
            Err(source) => return Err(Error::NoCard { path: socket_of(card), source }),
        }
        let card = match answer(&socket, ANSWER)? {
            (Greeting::Welcome, Some(card)) => card,
            (Greeting::Refused(Errno::ADDRINUSE), _) => return Err(Error::Taken(name.unwrap_or_default())),
            (Greeting::Refused(why), _) => return Err(Error::turned_away(why)),
            _ => return Err(Error::TurnedAway(Errno::PROTO)),
        };
        let mut memory = memory;
        memory.close_fd();
        let port = Port::new(memory).map_err(|_| Error::NoRoom(pool))?;
        Ok(Self { port, socket, card, spin, looked: Instant::now(), is_gone: false })
    }

    /// Calls the endpoint of that name, of this user or of the one that stands before it (`1000/solver`). One that is not there yet is waited for as long as
    /// `patience` says.
    ///
    /// # Errors
    /// [`Error::Nobody`], [`Error::Refused`], [`Error::Name`], [`Error::Full`]; [`Error::Gone`], [`Error::Silent`].
    pub fn connect(&mut self, name: &str, patience: Duration) -> Result<Peer, Error> {
        let begin = Instant::now();
        let Name { user, text } = Name::parse(name).map_err(|_| Error::Name(name.to_owned()))?;
        loop {
            let (code, value) = self.ask(&Asked::Connect { user, name: text.clone() })?;
            match code {
                found::HERE => {
                    let peer = Peer::of_number(value);
                    self.port.who.insert(peer, Who { name: text, user, pid: None, host: None });
                    return Ok(peer);
                }
                found::NOBODY => {}
                found::USER => return Err(Error::Refused(name.to_owned())),
                _ => return Err(Error::Full),
            }
            if begin.elapsed() >= patience {
                return Err(Error::Nobody(name.to_owned()));
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Waits for somebody who calls.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn accept(&mut self, patience: Duration) -> Result<Option<Peer>, Error> {
        self.wait_for(patience, |port| port.event(true).map(Event::peer))
    }

    /// Waits for what happens to others: who calls, who has gone.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn event(&mut self, patience: Duration) -> Result<Option<Event>, Error> {
        self.wait_for(patience, |port| port.event(false))
    }

    /// Who that is. `None`: it was left.
    pub fn who(&self, peer: Peer) -> Option<&Who> {
        self.port.who.get(&peer)
    }

    /// Ends a connection, with all that it has left; or forgets one that has ended.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Silent`].
    pub fn leave(&mut self, peer: Peer) -> Result<(), Error> {
        self.port.forget(peer);
        self.post(&Asked::Leave { peer: peer.number() })
    }

    /// A block of so many bytes, for messages that the program does not want to copy. `None`: there is none now.
    pub fn allocate(&self, len: usize) -> Option<Block> {
        self.port.allocate(len)
    }

    /// Sends a message. It is on its way when this returns, without further calls.
    ///
    /// # Errors
    /// [`Refused`], with the memory: [`Error::NoRoom`], [`Error::Busy`]; [`Error::Gone`]. That the other end is gone is said by the message's end.
    pub fn send(&mut self, to: Peer, tag: Tag, memory: impl Into<Memory>) -> Result<Request, Refused> {
        self.begin(memory.into(), |port, memory| port.send(to, tag, memory))
    }

    /// Waits for a message of as many bytes as the memory has, or fewer: from whom, or from anybody; with the bits of `tag` that are in `mask`.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub fn receive(
        &mut self,
        from: Option<Peer>,
        tag: Tag,
        mask: u64,
        memory: impl Into<Memory>,
    ) -> Result<Request, Refused> {
        self.begin(memory.into(), |port, memory| port.receive(from, tag, mask, memory))
    }

    /// Begins a message; where the ring has no room, the card is waited for.
    fn begin(
        &mut self,
        mut memory: Memory,
        mut act: impl FnMut(&mut Port, Memory) -> Result<Request, Refused>,
    ) -> Result<Request, Refused> {
        let mut begin = None;
        loop {
            if let Err(why) = self.check() {
                return Err(Refused { why, memory });
            }
            match act(&mut self.port, memory) {
                Ok(request) => {
                    self.wake();
                    return Ok(request);
                }
                Err(Refused { why: Error::Busy, memory: back }) if self.port.has_numbers() => memory = back,
                Err(refused) => return Err(refused),
            }
            let begin = *begin.get_or_insert_with(Instant::now);
            if let Err(why) = self.port.progress() {
                return Err(Refused { why, memory });
            }
            if begin.elapsed() > ANSWER {
                return Err(Refused { why: Error::Silent, memory });
            }
            self.wake();
            std::thread::yield_now();
        }
    }

    /// Ends a message before its time, if that is possible.
    ///
    /// # Errors
    /// [`Error::Lost`]: there is no such message any more; [`Error::Gone`], [`Error::Silent`].
    pub fn cancel(&mut self, request: Request) -> Result<Cancel, Error> {
        let slot = self.port.open(request).ok_or(Error::Lost)?;
        let (code, _) = self.ask(&Asked::Cancel { slot })?;
        Ok(match code {
            0 => Cancel::Done,
            1 => Cancel::Asked,
            _ => Cancel::TooLate,
        })
    }

    /// Takes what has come, without waiting. Whether there was something.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn progress(&mut self) -> Result<bool, Error> {
        let has_come = self.port.progress()?;
        if !has_come {
            self.check()?;
        }
        Ok(has_come)
    }

    /// Waits until that message has ended. `None`: it has not in that time, or it was taken already.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn wait(&mut self, request: Request, patience: Duration) -> Result<Option<Ended>, Error> {
        let found = self.wait_for(patience, |port| match port.take(Some(request)) {
            Some(ended) => Some(Some(ended)),
            None if port.is_known(request) => None,
            None => Some(None),
        });
        Ok(found?.flatten())
    }

    /// Waits until any message has ended: the one that ended first of those that were not taken.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn next(&mut self, patience: Duration) -> Result<Option<Ended>, Error> {
        self.wait_for(patience, |port| port.take(None))
    }

    /// This program wants these doorbells, from now on, from all.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Silent`]. [`ClaimError`] inside.
    pub fn claim(&mut self, numbers: RangeInclusive<u16>, owner: Owner) -> Result<Result<(), ClaimError>, Error> {
        let (first, last, owner) = (*numbers.start(), *numbers.end(), owner.0);
        let (code, _) = self.ask(&Asked::Claim { first, last, owner })?;
        Ok(match code {
            0 => Ok(()),
            1 => Err(ClaimError::Taken),
            2 => Err(ClaimError::Empty),
            _ => Err(ClaimError::TooMany),
        })
    }

    /// Nobody wants the doorbells of that owner any more.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Silent`].
    pub fn release(&mut self, owner: Owner) -> Result<(), Error> {
        self.post(&Asked::Release { owner: owner.0 })
    }

    /// Rings a doorbell. The card says what became of it, so that this takes a trip there and back.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::Gone`], [`Error::Silent`]. [`Full`] inside.
    pub fn ring(&mut self, to: Peer, number: u16) -> Result<Result<(), Full>, Error> {
        match self.ask(&Asked::Ring { to: to.number(), number })?.0 {
            rung::RUNG => Ok(Ok(())),
            rung::QUEUE => Ok(Err(Full::Queue)),
            rung::UNWANTED => Ok(Err(Full::Unwanted)),
            _ => Err(Error::Lost),
        }
    }

    /// The next doorbell of one of the others, if there is one.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn bell(&mut self, from: Peer) -> Result<Option<Bell>, Error> {
        self.progress()?;
        Ok(self.port.bell(Some(from)).map(|(_, bell)| bell))
    }

    /// Waits for a doorbell of anybody.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn any_bell(&mut self, patience: Duration) -> Result<Option<(Peer, Bell)>, Error> {
        self.wait_for(patience, |port| port.bell(None))
    }

    /// A descriptor that is readable when something has come since [`Endpoint::arm`], and when the card has gone. It is not to be read.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Says that [`Endpoint::descriptor`] is to be readable when something comes. `false`: something is there, and is to be taken first.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn arm(&mut self) -> Result<bool, Error> {
        self.port.awake();
        self.drain()?;
        self.port.progress()?;
        Ok(!self.port.has_news() && self.port.doze())
    }

    /// Asks, and waits for the answer.
    fn ask(&mut self, asked: &Asked<'_>) -> Result<(u8, u64), Error> {
        self.port.answers.clear();
        self.post(asked)?;
        let answer = self.wait_for(ANSWER, |port| port.answers.pop_front())?;
        if answer.is_none() {
            // It may come later, and would be taken for another one.
            self.is_gone = true;
        }
        answer.ok_or(Error::Silent)
    }

    /// Asks; where the ring has no room, the card is waited for.
    fn post(&mut self, asked: &Asked<'_>) -> Result<(), Error> {
        let begin = Instant::now();
        self.check()?;
        while !self.port.ask(asked) {
            self.port.progress()?;
            self.check()?;
            if begin.elapsed() > ANSWER {
                return Err(Error::Silent);
            }
            std::thread::yield_now();
        }
        self.wake();
        Ok(())
    }

    /// Wakes the card, if it sleeps.
    #[inline]
    fn wake(&self) {
        if self.port.must_wake() {
            let _ = write(&self.card, &1_u64.to_ne_bytes());
        }
    }

    /// Whether the card is there, from time to time.
    #[inline]
    fn check(&mut self) -> Result<(), Error> {
        if self.is_gone {
            return Err(Error::Gone);
        }
        let now = Instant::now();
        if now - self.looked >= THERE {
            self.looked = now;
            self.drain()?;
        }
        Ok(())
    }

    /// Takes the rings of the card.
    fn drain(&mut self) -> Result<(), Error> {
        // More than one for each time that this program has said that it sleeps is no ring of a card.
        for _ in 0..8 {
            match recv(&self.socket, &mut [0_u8; 8][..], RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Ok((1.., _)) => {}
                Ok(_) | Err(_) => {
                    self.is_gone = true;
                    return Err(Error::Gone);
                }
            }
        }
        Ok(())
    }

    /// Waits until there is what is looked for: looks for a while, and then sleeps until the card rings.
    fn wait_for<T>(
        &mut self,
        patience: Duration,
        mut found: impl FnMut(&mut Port) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let (mut begin, mut quiet_since) = (None, None);
        loop {
            let has_come = self.port.progress()?;
            if let Some(found) = found(&mut self.port) {
                self.wake();
                return Ok(Some(found));
            }
            let now = Instant::now();
            let waited = now - *begin.get_or_insert(now);
            // What was said last by a card that has gone was taken.
            self.check()?;
            if waited >= patience {
                return Ok(None);
            }
            quiet_since = quiet_since.filter(|_| !has_come);
            if now - *quiet_since.get_or_insert(now) < self.spin {
                if !(0..LOOKS).any(|_| {
                    core::hint::spin_loop();
                    self.port.has_come()
                }) {
                    // Whoever is to answer may need this core: there are at least three of us.
                    std::thread::yield_now();
                }
                continue;
            }
            self.wake();
            if self.port.doze() {
                let left = patience - waited;
                let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left));
                self.port.awake();
                self.port.progress()?;
                if let Some(found) = found(&mut self.port) {
                    return Ok(Some(found));
                }
                self.drain()?;
            }
            self.port.awake();
            quiet_since = None;
        }
    }
}

/// A name without the user before it, which is this one.
fn own_name(text: String) -> Result<String, Error> {
    match Name::own(&text) {
        Ok(name) => Ok(name.text),
        Err(NameError::Foreign(_)) => Err(Error::Foreign(text)),
        Err(_) => Err(Error::Name(text)),
    }
}

/// Calls the card.
fn call(card: &Path) -> Result<OwnedFd, Error> {
    let path = socket_of(card);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let until = Instant::now() + ANSWER;
    let called = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).and_then(|socket| {
        let address = SocketAddrUnix::new(&path)?;
        // Others are before us, and the card takes one after the other.
        while let Err(why) = connect(&socket, &address) {
            if why != Errno::AGAIN || Instant::now() >= until {
                return Err(why);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(socket)
    });
    called.map_err(|source| match source {
        Errno::AGAIN => Error::Silent,
        Errno::ACCESS => Error::NoRight { user: rustix::process::geteuid().as_raw() },
        source => Error::NoCard { path, source },
    })
}

/// Waits for what the card says to a greeting.
fn answer(socket: &OwnedFd, patience: Duration) -> Result<(Greeting, Option<OwnedFd>), Error> {
    let until = Instant::now() + patience;
    let (mut bytes, mut fds) = ([0; LEN + 1], Vec::new());
    loop {
        match greeting::receive(socket, &mut bytes, &mut fds) {
            Ok(None) => {}
            Ok(Some(len)) => {
                let greeting = Greeting::read(&bytes[..len]).ok_or(Error::TurnedAway(Errno::PROTO))?;
                return Ok((greeting, fds.pop()));
            }
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Gone),
            Err(error) => return Err(Error::TurnedAway(error)),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Silent);
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left));
    }
}
