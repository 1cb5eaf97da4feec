//! The next card: it asks the one that runs for everything.

use super::path_beside;
use super::state::{SavedCard, TakenFds, VERSION, check_version, read};
use super::wire::{Asked, LATE, Said, Talk};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the other card may take: longer than it waits for anything of ours.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longer than anybody waits.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// Why nothing was taken over. The card that runs goes on.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// Nobody is there.
    #[error(
        "no card with functions is there to take over from ({path}: {source}); without --take-over this one starts anew"
    )]
    Nobody {
        /// Where it would be.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It, or we, do not want to.
    #[error("the other card was not taken over from, and goes on if it is there: {0}")]
    Refused(String),
}

/// The card that runs.
pub(crate) struct Predecessor {
    talk: Talk,
}

/// What it has given of what it listens at.
pub(crate) struct Sockets {
    /// For the card after us.
    pub handover: OwnedFd,
    /// Of each function.
    pub functions: Vec<OwnedFd>,
    /// For programs.
    pub card: Option<OwnedFd>,
}

impl Predecessor {
    /// Asks the card whose functions are at `path`.
    pub fn meet(path: &Path, trees: Vec<u32>, listen: Option<&Path>) -> Result<(Self, Sockets), TakeOverError> {
        let path = path_beside(path);
        let nobody = |errno: Errno| TakeOverError::Nobody { path: path.clone(), source: errno.into() };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(nobody)?;
        connect(&socket, &SocketAddrUnix::new(&path).map_err(nobody)?).map_err(nobody)?;
        let talk = Talk::over(socket);
        let sockets = greet(&talk, trees, listen).map_err(TakeOverError::Refused)?;
        Ok((Self { talk }, sockets))
    }

    /// Has it stop, and takes what it says of its machines. From now on they wait.
    pub fn prepare(&self) -> Result<(SavedCard, TakenFds), String> {
        let until = Instant::now() + PATIENCE;
        self.talk.send(&Asked::Prepare, &[], until)?;
        let (state, fds) = self.talk.receive_state(until)?;
        Ok((read(&state)?, fds))
    }

    /// Everything is taken. Once this returns without an error it is ours. The answer is waited for until it comes, or the other card has
    /// gone: whoever left before would not know whose the machines are.
    pub fn take(&self) -> Result<(), String> {
        self.talk.send(&Asked::Taken, &[], Instant::now() + PATIENCE)?;
        match self.talk.hear(Instant::now() + FOR_EVER)? {
            Said::Yours => Ok(()),
            Said::Refused(why) => Err(why),
            _ => Err("an answer that does not belong to the question".to_owned()),
        }
    }

    /// Nothing is taken.
    pub fn refuse(&self, why: &str) {
        let letters = why.chars().take(1000).collect();
        // Who has hung up goes on anyway.
        let _ = self.talk.send(&Asked::Refused(letters), &[], Instant::now() + PATIENCE);
    }
}

fn greet(talk: &Talk, trees: Vec<u32>, listen: Option<&Path>) -> Result<Sockets, String> {
    let until = Instant::now() + PATIENCE;
    let (count, listen) = (trees.len(), listen.map(|path| path.display().to_string()));
    talk.send(&Asked::Hello { version: VERSION.into(), trees, listen }, &[], until)?;
    let answer = talk.receive(until);
    let (said, fds) = answer.map_err(|why| match &*why {
        // It talks to one card at a time, and to none before it has started.
        LATE => format!("{LATE}: another one may be about to take over from it, or it is still starting"),
        _ => why,
    })?;
    let has_card = match said {
        Said::Welcome { version, card } => {
            check_version(Some(version))?;
            card
        }
        Said::Refused(why) => return Err(why),
        _ => return Err("an answer that does not belong to the question".to_owned()),
    };
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or_else(|| "too few sockets came along".to_owned());
    let handover = next()?;
    let functions = (0..count).map(|_| next()).collect::<Result<_, _>>()?;
    let card = has_card.then(next).transpose()?;
    Ok(Sockets { handover, functions, card })
}
