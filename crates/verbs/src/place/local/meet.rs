//! How a session begins: this process calls the one that has the address that a queue pair is connected with.

use super::message::Message;
use super::session::{Parts, Session, channel};
use super::{LocalError, files, name, tell};
use crate::boundary::Kept;
use crate::place::{Place, Running};
use millrace_dma::{Protection, Region, Seat};
use millrace_rdma::local::{CHANNEL_LEN, Peer, Side};
use millrace_served::{Closer, bell};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::SendFlags;
use rustix::process::Pid;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the other process may take to answer; it may have to wait for a core.
const ANSWER: Duration = Duration::from_millis(200);
/// Sessions with one process: two that call each other at once have two.
const MOST_OF_ONE: usize = 4;

/// What this process calls others with.
pub(crate) struct Meeting {
    /// The card, as all its processes know it. None: this process meets nobody, and only answers `millrace rdma`.
    card: Option<String>,
    /// By which others wake this process: the end that is heard, and the one that they ring.
    pub bell: Arc<OwnedFd>,
    ringer: OwnedFd,
    /// One at a time.
    calling: Mutex<()>,
}

impl Meeting {
    /// Of processes of one card, if that is not of one process only.
    pub fn new(device: Option<&str>) -> Result<Self, LocalError> {
        let card = device.and_then(name::card);
        let (bell, ringer) = bell::bell()?;
        Ok(Self { card, bell: Arc::new(bell), ringer, calling: Mutex::new(()) })
    }

    /// Whether others are met.
    pub fn is_met(&self) -> bool {
        self.card.is_some()
    }

    /// Wakes the helper thread of this process.
    pub fn ring(&self) {
        bell::ring(&self.ringer);
    }

    /// Listens as this process.
    pub fn listen(&self, mac: [u8; 6]) -> Result<Kept, LocalError> {
        name::open(self.card.as_deref(), mac)
    }

    /// Meets the process with that MAC address, unless that has happened. That there is none is no error.
    pub fn meet(&self, place: &Place, mac: [u8; 6]) -> Result<(), LocalError> {
        let Some(card) = &self.card else { return Ok(()) };
        let _one = self.calling.lock().unwrap_or_else(PoisonError::into_inner);
        if mac == place.address().mac || place.with(|running| Ok(is_met(running, place, mac))).unwrap_or(true) {
            return Ok(());
        }
        let Some(link) = name::call(card, mac)? else { return Ok(()) };
        let pid = match name::same_user(&link) {
            Ok(pid) => pid,
            Err(stranger) => {
                // What he has sent lies in it: to close that takes as long as he likes.
                Closer::default().close(link);
                return Err(stranger);
            }
        };
        let_near(place, pid)?;
        let channel = channel()?;
        let side = Side::Maker;
        let (directory, seat) = let_in(place, &channel, side)?;
        let memory = channel.fd().ok_or(LocalError::Off)?;
        Message::Hello(place.address()).send(&link, &[directory.as_fd(), memory, self.ringer.as_fd()])?;
        let (address, [directory, bell]) = answer(&link)?;
        if address.mac != mac {
            return Err(LocalError::Greeting);
        }
        let parts = Parts { address, link: Arc::new(link), pid, directory, channel, side, bell, seat };
        add(place, Session::new(parts)?, || Ok(()))?;
        // The helper thread is to look at its socket from now on.
        self.ring();
        Ok(())
    }

    /// What is answered to a greeting, or to a question of `millrace rdma`.
    pub fn welcome(&self, place: &Place, link: &Arc<Kept>) -> Result<Said, LocalError> {
        let Some((message, fds)) = Message::receive(link)? else { return Ok(Said::Nothing) };
        if message == Message::Capture {
            return Ok(Said::Capture);
        }
        if message == Message::Tell {
            let text = place.with(|running| Ok(tell::json(running))).map_err(|_| LocalError::Off)?;
            // One record, without waiting: who does not read is hung up on.
            rustix::net::send(link, text.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
            return Ok(Said::All);
        }
        let (Message::Hello(address), Ok([directory, channel, bell])) = (message, <[OwnedFd; 3]>::try_from(fds)) else {
            return Err(LocalError::Greeting);
        };
        if !self.is_met() {
            return Err(LocalError::Off);
        }
        let pid = name::same_user(link)?;
        let_near(place, pid)?;
        check_address(place, address.mac, pid)?;
        let channel = Region::map_guarded(channel, CHANNEL_LEN, Protection::ReadWrite)
            .map_err(|error| LocalError::Peer(error.into()))?;
        let side = Side::Taker;
        let (own, seat) = let_in(place, &channel, side)?;
        let parts = Parts { address, link: link.clone(), pid, directory, channel, side, bell, seat };
        // Looked at before it is answered: whose directory is none is not told where ours is.
        let made = Session::new(parts)?;
        // Before anything else that is said by this socket. If there is no room for a session, it is hung up on. Nobody looks or sends between the
        // answer and the session: who is answered may send by it at once, and by another session before and afterwards.
        let welcome = || Message::Welcome(place.address()).send(link, &[own.as_fd(), self.ringer.as_fd()]);
        add(place, made, welcome)?;
        Ok(Said::All)
    }
}

/// What has come of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// It has not said anything yet.
    Nothing,
    /// It was answered.
    All,
    /// It wants copies of packets.
    Capture,
}

/// Whether there is a session with that process. One whose process has ended, and which nobody has seen yet, is none any
/// more: a new process may have the address.
fn is_met(running: &mut Running, place: &Place, mac: [u8; 6]) -> bool {
    let Some((number, session)) = running.sessions.of_mac(mac) else { return false };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let is_there = matches!(poll(&mut [PollFd::new(&*session.link, PollFlags::RDHUP)], Some(&now)), Ok(0));
    if !is_there {
        let link = session.link.clone();
        running.sessions.remove(&mut running.engine, (number, &link), place.now(), true);
        running.tell_all();
    }
    is_there
}

/// Whoever was put out stays out for a while.
fn let_near(place: &Place, pid: Option<Pid>) -> Result<(), LocalError> {
    let is_kept_out = place.with(|running| Ok(running.sessions.is_kept_out(pid, place.now()))).unwrap_or(true);
    if is_kept_out { Err(LocalError::KeptOut) } else { Ok(()) }
}

/// Of those who have an address, the first one is believed, as long as it is there; and nobody has all places. Processes without a number
/// here, of other containers, are not told apart.
fn check_address(place: &Place, mac: [u8; 6], pid: Option<Pid>) -> Result<(), LocalError> {
    let found = place.with(|running| {
        let is_met = is_met(running, place, mac);
        let all = || running.sessions.iter().map(|(_, session)| session).filter(|session| session.pid.is_some());
        let is_anothers =
            is_met && pid.is_some() && all().any(|session| session.address.mac == mac && session.pid != pid);
        Ok((is_anothers, all().filter(|session| session.pid == pid).count()))
    });
    match found.map_err(|_| LocalError::Off)? {
        (true, _) => Err(LocalError::Taken),
        (false, MOST_OF_ONE..) => Err(LocalError::Full),
        (false, _) => Ok(()),
    }
}

/// The descriptor of the own directory, and the seat of the process that will have it: it is waited for before it can come in.
fn let_in(place: &Place, channel: &Region, side: Side) -> Result<(OwnedFd, Seat), LocalError> {
    let word = Peer::word_of_other(channel.window(), side).map_err(|error| LocalError::Peer(error.into()))?;
    let found = place.with(|running| {
        let directory = running.engine.memory().regions.directory();
        let fd = directory.and_then(|directory| directory.fd()).map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0));
        Ok(fd.zip(directory.map(|directory| directory.outside().seat(word))))
    });
    let (fd, seat) = found.unwrap_or(None).ok_or(LocalError::Off)?;
    Ok((fd?, seat.ok_or(LocalError::Full)?))
}

/// One more session, and the first that is said by its socket.
fn add(place: &Place, made: (Session, Peer), say: impl FnOnce() -> Result<(), LocalError>) -> Result<(), LocalError> {
    let added = place.with(|running| {
        let added = say().and_then(|()| running.sessions.add(&mut running.engine, made));
        Ok(added.map(|place| files::offer(running, place, 0)))
    });
    added.unwrap_or(Err(LocalError::Off))
}

/// Waits for an answer.
fn answer(link: &Kept) -> Result<(crate::address::Address, [OwnedFd; 2]), LocalError> {
    let until = Instant::now() + ANSWER;
    loop {
        if let Some((message, fds)) = Message::receive(link)? {
            let (Message::Welcome(address), Ok(fds)) = (message, <[OwnedFd; 2]>::try_from(fds)) else {
                return Err(LocalError::Greeting);
            };
            return Ok((address, fds));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LocalError::Silent);
        }
        let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(link, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
