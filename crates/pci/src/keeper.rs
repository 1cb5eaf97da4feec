//! A process that keeps what machines have of a card, so that a card that is killed is followed by another one (decision 129): they notice a pause.
//!
//! ```text
//! machine <-- messages --> keeper <-- messages, one at a time --> card, which may be killed
//!                          keeps what it is told, and descriptors    tells what a message has changed, with the answer
//! ```
//!
//! The keeper has the sockets at which machines connect. Each message goes to the card, and the answer back. Before the answer the card says what the message has
//! changed; the keeper takes both or neither. The next card is given what the keeper knows, and the message that was not answered: so each is answered exactly
//! once. Where rings stand is noted in control pages, which live as long as their machine (`millrace_ring::medusa::Note`).
//!
//! * `parts`: what is told. `relay`: a function, in the keeper. `link`: how a card gets machines from it. Here: the process.

mod link;
mod parts;
mod relay;

pub(crate) use link::{Comes, Link};
pub(crate) use parts::{END, MOST_TOLD, News, Part, PieceFile, PiecePart, Shared, Told, VectorPart};

use crate::handover::{Said, Talk};
use crate::{Guarded, PciError, event, parts as functions_of};
use millrace_abi::name::CardOptions;
use millrace_callers::{Carries, Entrance, Listener, May, caller_of};
use millrace_port::notice;
use relay::{Relay, Way};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most functions: their sockets go to the card with one record.
const MOST_FUNCTIONS: u32 = 198;
/// How often it is looked whether this process is to end.
const NAP: Duration = Duration::from_millis(50);
/// Cards that end one after the other before they were ready, until there is no next one.
const MOST_FAILURES: u32 = 10;
/// Before the next card, where the one before was not ready, and so much more after each: what others had of the system may not be free yet.
const PAUSE: Duration = Duration::from_millis(50);
/// Cards that end one after the other before they have run for [`STEADY`], until the next one has to wait for [`LONG_PAUSE`]: what kills them may be in a ring.
const MOST_SHORT: u32 = 20;
/// A card that has run so long is not counted among them.
const STEADY: Duration = Duration::from_secs(10);
/// See there.
const LONG_PAUSE: Duration = Duration::from_secs(1);
/// How long a card may take to end when it is asked to.
const ENDS: Duration = Duration::from_secs(15);
/// How long a record to a card may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A keeper of the functions of a card.
pub struct Keeper {
    // Before what they use.
    relays: Vec<Guarded>,
    ways: Vec<Arc<Way>>,
    listeners: Vec<Listener>,
    paths: Vec<PathBuf>,
}

/// How the last card ended.
#[derive(Debug)]
pub enum KeptEnd {
    /// By itself.
    By(ExitStatus),
    /// It was asked to, as this process was; `None`: there was none just then.
    Asked(Option<ExitStatus>),
    /// As all before it: another one would end so, too.
    Failing(ExitStatus),
}

impl Keeper {
    /// Listens for the machines of a card with these options, as [`Functions::listen`](crate::Functions::listen) does. Machines of `user` may come in, too.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn listen(options: &CardOptions, path: &Path, functions: u32, user: Option<u32>) -> Result<Self, PciError> {
        if functions > MOST_FUNCTIONS {
            return Err(PciError::Keeper(format!("a keeper has {MOST_FUNCTIONS} functions at most")));
        }
        let (mut relays, mut ways, mut listeners, mut paths) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for part in functions_of(options, path, functions) {
            let (path, share, _) = part?;
            if let Some((_, queue)) =
                share.all_queues().find(|(_, queue)| options.engine_of(*queue) != millrace_abi::queue::Engine::Medusa)
            {
                return Err(PciError::NotKept(queue));
            }
            let mut listener =
                Listener::private(path.clone(), Carries::Streams).map_err(|errno| PciError::listening(&path, errno))?;
            let socket = listener.take().ok_or(std::io::Error::other("a socket that somebody has taken"))?;
            let (stop, way) = (Arc::new(event()?), Arc::new(Way::new()?));
            let relay = Relay::new(Entrance::at_socket(socket, may(user)), path.clone(), stop.clone(), way.clone());
            relays.push(Guarded::start("millrace-keeper", stop, move || relay.run())?);
            ways.push(way);
            listeners.push(listener);
            paths.push(path);
        }
        Ok(Self { relays, ways, listeners, paths })
    }

    /// Where machines connect, and which sockets those are: the numbers of their file system, and there.
    pub fn sockets(&self) -> impl Iterator<Item = (&Path, (u64, u64))> {
        self.paths.iter().map(|path| &**path).zip(self.listeners.iter().map(Listener::socket))
    }

    /// Has a card, and another one whenever it is killed, until one ends by itself or `is_to_end` says so. `launch` starts one with this as its standard input.
    ///
    /// # Errors
    /// The system has no descriptors, or no processes.
    pub fn run(
        &self,
        mut launch: impl FnMut(OwnedFd) -> std::io::Result<Child>,
        is_to_end: impl Fn() -> bool,
    ) -> std::io::Result<KeptEnd> {
        let (mut cards, mut failures, mut short) = (0_u64, 0, 0);
        loop {
            let begin = Instant::now();
            let had = self.have_one(&mut launch, &is_to_end);
            let (status, is_asked, was_ready) = match had {
                Ok(had) => had,
                // There may be a program, or a process, again soon.
                Err(error) if cards > 0 && failures < MOST_FAILURES && !is_to_end() => {
                    failures += 1;
                    notice::warn(format!("the next card cannot be started: {error}; its keeper tries again"));
                    rest(PAUSE * failures, &is_to_end);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if is_asked {
                return Ok(KeptEnd::Asked(Some(status)));
            }
            cards += 1;
            // Who ends by himself has a reason, which he has said; but what the card before him had may not be free yet.
            if status.signal().is_none() && (was_ready || cards == 1) {
                return Ok(KeptEnd::By(status));
            }
            failures = if was_ready { 0 } else { failures + 1 };
            short = if begin.elapsed() > STEADY { 0 } else { short + 1 };
            if failures >= MOST_FAILURES {
                return Ok(KeptEnd::Failing(status));
            }
            notice::warn(format!("the card {}; its keeper starts another one, number {}", how(status), cards + 1));
            if short > MOST_SHORT {
                rest(LONG_PAUSE, &is_to_end);
            } else if !was_ready {
                rest(PAUSE * failures, &is_to_end);
            }
            if is_to_end() {
                return Ok(KeptEnd::Asked(None));
            }
        }
    }

    /// One card, until it ends. How, whether it was asked to, and whether it was ready.
    fn have_one(
        &self,
        launch: &mut impl FnMut(OwnedFd) -> std::io::Result<Child>,
        is_to_end: &impl Fn() -> bool,
    ) -> std::io::Result<(ExitStatus, bool, bool)> {
        // Not such that never wait: the card waits for the end of its standard input.
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair()?;
        let links = self.ways.iter().map(|_| pair()).collect::<Result<Vec<_>, _>>()?;
        let mut child = launch(theirs)?;
        let talk = Talk::over(ours);
        let fds: Vec<BorrowedFd<'_>> = links.iter().map(|(_, theirs)| theirs.as_fd()).collect();
        // One that has died already is seen below.
        let machines = self.ways.iter().filter(|way| way.has_machine()).count();
        let _ = talk.send(&Said::Links { machines }, &fds, Instant::now() + PATIENCE);
        let process = Pid::from_raw(child.id() as i32).ok_or(std::io::Error::other("a process without a number"))?;
        let ended = pidfd_open(process, PidfdFlags::empty()).inspect_err(|_| {
            // Nobody would notice its end. It has ended already, or does now.
            let _ = child.kill();
            let _ = child.wait();
        })?;
        let (mut links, mut was_ready, mut asked) = (Some(links), false, None::<Instant>);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok((status, asked.is_some(), was_ready));
            }
            if is_to_end() {
                let since = *asked.get_or_insert_with(|| {
                    // It ends when its standard input does. A signal could be its second, of which it would die.
                    let _ = shutdown(&talk.socket, Shutdown::Write);
                    Instant::now()
                });
                if since.elapsed() > ENDS {
                    notice::warn("the card does not end, and is killed".to_owned());
                    let _ = child.kill();
                    return Ok((child.wait()?, true, was_ready));
                }
            }
            let heard = if links.is_some() { PollFlags::IN } else { PollFlags::empty() };
            let mut fds = [PollFd::new(&ended, PollFlags::IN), PollFd::from_borrowed_fd(talk.socket.as_fd(), heard)];
            let nap = Timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as i64 };
            let _ = poll(&mut fds, Some(&nap));
            if fds[1].revents().contains(PollFlags::IN) && matches!(talk.hear(Instant::now()), Ok(Said::Ready)) {
                was_ready = true;
                for (way, (ours, theirs)) in self.ways.iter().zip(links.take().into_iter().flatten()) {
                    drop(theirs);
                    way.give(ours);
                }
            } else if fds[1].revents().contains(PollFlags::HUP) {
                // It ends, and does so in its own time.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.relays.clear();
    }
}

/// For so long, or until this process is to end.
fn rest(pause: Duration, is_to_end: &impl Fn() -> bool) {
    let until = Instant::now() + pause;
    while Instant::now() < until && !is_to_end() {
        std::thread::sleep(NAP.min(until.saturating_duration_since(Instant::now())));
    }
}

/// Root, the user of this process, and that one.
fn may(user: Option<u32>) -> May {
    Box::new(move |socket| caller_of(socket).filter(|caller| !caller.is_limited || user == Some(caller.uid)))
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (_, code) => format!("ended with status {}", code.unwrap_or(-1)),
    }
}

/// In a card with a keeper: where its machines come from.
pub struct Kept {
    talk: Talk,
    links: Vec<OwnedFd>,
    machines: usize,
}

impl Kept {
    /// From the socket that is the standard input of this process.
    ///
    /// # Errors
    /// It is none, or its other end is no keeper.
    pub fn from_standard_input() -> Result<Self, String> {
        let none = "only a card with --keep starts another one with --kept";
        let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(|_| none)?;
        let talk = Talk::over(socket);
        let (Said::Links { machines }, links) = talk.receive(Instant::now() + PATIENCE).map_err(|_| none)? else {
            return Err(none.to_owned());
        };
        Ok(Self { talk, links, machines })
    }

    /// Sockets by which machines come, one for each function.
    pub(crate) fn links(&mut self) -> Vec<OwnedFd> {
        core::mem::take(&mut self.links)
    }

    /// Machines that another card has had, and that come now.
    pub(crate) fn machines(&self) -> usize {
        self.machines
    }

    /// From now on machines are welcome.
    pub(crate) fn is_ready(&self) -> Result<(), String> {
        self.talk.send(&Said::Ready, &[], Instant::now() + PATIENCE)
    }
}
