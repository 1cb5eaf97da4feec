//! The card that runs: a thread that waits for the next one.

use super::ports;
use super::state::{Fds, SavedCard, VERSION, check_version};
use super::wire::{Asked, Said, Talk};
use crate::server::Server;
use millrace_abi::queue::Direction;
use millrace_callers::{Call, Closer, Entrance, WAITS};
use millrace_port::notice;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long it may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long machines wait: a hypervisor gives a message up after 5 s.
const PAUSE: Duration = Duration::from_secs(4);
/// How long it may take until it is ready, while they do not.
const PREPARES: Duration = Duration::from_secs(60);
/// How long frames that are under way may take to where they go, before the queue there stops.
const DRAINS: Duration = Duration::from_millis(300);
/// How long the thread of a function may take to come by.
const COMES_BY: Duration = Duration::from_secs(1);

/// How the thread of a function is asked for what it has.
pub(crate) struct Asks {
    pub event: OwnedFd,
    ask: Mutex<Option<Ask>>,
}

/// Where it is to go, and where it comes back from: not at all, if another card has it then.
struct Ask {
    to: SyncSender<Box<Server>>,
    back: Receiver<Box<Server>>,
}

impl Asks {
    pub fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, ask: Mutex::default() })
    }

    fn ask(&self) -> Waiting {
        // Nothing lies in the first one: what is sent has been received, or comes back to who sends it.
        let ((to, from), (give_back, back)) = (sync_channel(0), sync_channel(1));
        *self.ask.lock().unwrap_or_else(PoisonError::into_inner) = Some(Ask { to, back });
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        (from, give_back)
    }

    /// For the thread of the function: gives what it has to who has asked, and waits until it comes back. `None`: it does not.
    pub fn lend(&self, server: Box<Server>) -> Option<Box<Server>> {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        let Some(Ask { to, back }) = self.ask.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Some(server);
        };
        match to.send(server) {
            Ok(()) => back.recv().ok(),
            // Whoever has asked does not wait any more.
            Err(unsent) => Some(unsent.0),
        }
    }
}

type Waiting = (Receiver<Box<Server>>, SyncSender<Box<Server>>);

/// What a thread of a function has, and how it gets it back.
struct Borrowed {
    server: Box<Server>,
    give_back: SyncSender<Box<Server>>,
}

/// The thread that waits for the next card, and what it knows of this one.
pub(crate) struct Giver {
    pub entrance: Entrance,
    pub stop: Arc<OwnedFd>,
    /// Of each function, in order.
    pub functions: Vec<Arc<Asks>>,
    /// Checksums of their trees.
    pub trees: Vec<u32>,
    /// What the next card listens at: for the one after it, for machines, and for programs.
    pub sockets: Vec<OwnedFd>,
    pub card: Option<(PathBuf, OwnedFd)>,
    /// Closes what other cards send that is not wanted.
    pub closer: Arc<Mutex<Closer>>,
    /// Set when another card has everything.
    pub given: Arc<AtomicBool>,
    pub path: PathBuf,
}

impl Giver {
    /// Until it is stopped, or another card has everything.
    pub fn run(mut self) {
        while self.look() {
            if self.is_full() {
                continue;
            }
            let Some(call) = self.entrance.accept() else { continue };
            let Call::In(socket, caller) = call else { continue };
            let talk = Talk { socket, stop: Some(self.stop.clone()), closer: self.closer.clone() };
            let (path, pid) = (self.path.display().to_string(), caller.pid);
            match self.serve(&talk) {
                Ok(machines) => {
                    notice::warn(format!(
                        "process {pid} has taken over the PCI functions at {path} with {machines} machines; this card ends"
                    ));
                    // Release pairs with the Acquire of who asks.
                    return self.given.store(true, Ordering::Release);
                }
                Err(why) => {
                    notice::warn(format!(
                        "process {pid} has not taken over the PCI functions at {path}: {why}; this card goes on"
                    ));
                    let until = Instant::now() + PATIENCE;
                    // Who has hung up need not know.
                    let _ = talk.send(&Said::Refused(why), &[], until);
                }
            }
        }
    }

    /// Whether so much of what others have sent is still being closed that nothing more is to come.
    fn is_full(&self) -> bool {
        self.closer.lock().unwrap_or_else(PoisonError::into_inner).is_full()
    }

    /// Waits for the next card; `false`: this is the end.
    fn look(&mut self) -> bool {
        let stop = self.stop.clone();
        // Nobody is listened to while much of what others have sent is still being closed.
        let caller = if self.is_full() { None } else { self.entrance.fd() };
        let most = Timespec { tv_sec: 0, tv_nsec: WAITS.as_nanos() as i64 };
        let most = caller.is_none().then_some(&most);
        let called = match caller {
            Some(caller) => PollFd::from_borrowed_fd(caller, PollFlags::IN),
            None => PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::empty()),
        };
        let mut fds = [PollFd::new(&*stop, PollFlags::IN), called];
        // Interrupted: another look.
        let _ = poll(&mut fds, most);
        fds[0].revents().is_empty()
    }

    /// Hands everything over to the card at the other end. Returns how many machines there were.
    fn serve(&self, talk: &Talk) -> Result<usize, String> {
        self.greet(talk)?;
        match talk.hear(Instant::now() + PREPARES)? {
            Asked::Prepare => {}
            Asked::Refused(why) => return Err(why),
            _ => return Err("a message that does not belong here".to_owned()),
        }
        // From here on machines wait, those that come by first the longest.
        let until = Instant::now() + PAUSE;
        let comes_by = Instant::now() + COMES_BY;
        let mut all = Vec::new();
        for asks in &self.functions {
            let (from, give_back) = asks.ask();
            match from.recv_timeout(comes_by.saturating_duration_since(Instant::now())) {
                Ok(server) => all.push(Borrowed { server, give_back }),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    resume(all);
                    return Err("the thread of a function does not come by".to_owned());
                }
            }
        }
        match give(talk, &mut all, until) {
            Ok(machines) => {
                all.iter_mut().for_each(|borrowed| borrowed.server.leave());
                Ok(machines)
            }
            Err(why) => {
                resume(all);
                Err(why)
            }
        }
    }

    /// Whether the other is a card that can go on with these functions; it gets what it listens at.
    fn greet(&self, talk: &Talk) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        let Asked::Hello { version, trees, listen } = talk.hear(until)? else {
            return Err("a message that does not belong here".to_owned());
        };
        check_version(Some(version))?;
        if trees != self.trees {
            return Err(
                "it has other functions, queues, protocols or ports: start it with the options of this card".to_owned()
            );
        }
        let own = self.card.as_ref().map(|(path, _)| path.display().to_string());
        if listen != own {
            let own = own.as_deref().unwrap_or("no socket");
            return Err(format!("it listens elsewhere for programs: start it with --listen {own}, as this card"));
        }
        let card = self.card.iter().map(|(_, socket)| socket.as_fd());
        let sockets: Vec<BorrowedFd<'_>> = self.sockets.iter().map(AsFd::as_fd).chain(card).collect();
        talk.send(&Said::Welcome { version: VERSION.into(), card: self.card.is_some() }, &sockets, until)
    }
}

/// Stops everything, says how it stands, and waits until that is taken over.
fn give(talk: &Talk, all: &mut [Borrowed], until: Instant) -> Result<usize, String> {
    let is_drained = stop(all)?;
    let mut fds = Fds::default();
    let functions = all.iter().map(|borrowed| borrowed.server.save(&mut fds)).collect::<Result<Vec<_>, _>>()?;
    let machines = functions.iter().flatten().count();
    let ports = all.first().map_or_else(Vec::new, |borrowed| ports::save(borrowed.server.card()));
    let state =
        serde_json::to_vec(&SavedCard { version: VERSION, ports, functions }).map_err(|error| error.to_string())?;
    talk.send_state(&state, &fds.0, until)?;
    match talk.hear(until)? {
        Asked::Taken => {}
        Asked::Refused(why) => return Err(why),
        _ => return Err("a message that does not belong here".to_owned()),
    }
    // From here on it is the other's: who has died before this does not get it.
    talk.send(&Said::Yours, &[], Instant::now() + PATIENCE)?;
    if !is_drained {
        notice::warn(
            "frames that waited for room in a queue of a machine, or came from another worker, are lost".to_owned(),
        );
    }
    Ok(machines)
}

/// What machines send stops first, then what is on its way comes to where it goes, then what they receive stops. `false`: something is still on its way.
fn stop(all: &mut [Borrowed]) -> Result<bool, String> {
    all.iter().try_for_each(|borrowed| borrowed.server.freeze(Direction::Tx))?;
    let until = Instant::now() + DRAINS;
    let is_drained = loop {
        let is_drained = all.iter().all(|borrowed| borrowed.server.is_drained());
        if is_drained || Instant::now() >= until {
            break is_drained;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    all.iter().try_for_each(|borrowed| borrowed.server.freeze(Direction::Rx))?;
    // What workers have called for is an interrupt, or waits as one.
    all.iter_mut().for_each(|borrowed| borrowed.server.take_all_calls());
    Ok(is_drained)
}

/// Everything goes on as before.
fn resume(all: Vec<Borrowed>) {
    for direction in [Direction::Rx, Direction::Tx] {
        all.iter().for_each(|borrowed| borrowed.server.go_on(direction));
    }
    for Borrowed { server, give_back } in all {
        // Its thread waits for it.
        let _ = give_back.send(server);
    }
}
