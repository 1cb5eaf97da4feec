//! Why a call did nothing.

use super::port::Memory;
use crate::endpoint::{Refusal, how_to_find};
use rustix::io::Errno;
use std::path::PathBuf;

/// Why a call did nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No card there does messages.
    #[error(
        "no card at {path} does messages ({source}): start one with `millrace card --message-cpu`, or name another one"
    )]
    NoCard {
        /// Its socket.
        path: PathBuf,
        /// What the system says.
        source: Errno,
    },
    /// It does not let programs of this user in.
    #[error(
        "user {user} may not use messages of this card: start it with `--grant user:{user}=rdma`, or run this program as the card's user"
    )]
    NoRight {
        /// The user of this program.
        user: u32,
    },
    /// It has as many programs as it takes.
    #[error("the card has as many programs of this process or user as it takes: end one")]
    ManyPrograms,
    /// It does not let this program in.
    #[error("the card does not let this program in: {0}")]
    TurnedAway(Errno),
    /// It has ended, or has hung up on this program.
    #[error("the card has gone: messages that have not ended are lost, and the endpoint has to be opened anew")]
    Gone,
    /// It does not answer.
    #[error("the card does not answer: it is stopped, or has no core")]
    Silent,
    /// That is no name.
    #[error(
        "{0:?} is no name of an endpoint: use 1 to 64 letters, digits, '.', '_' and '-', such as solver. Who calls may say whose it is before it: \
         1000/solver is that of user 1000"
    )]
    Name(String),
    /// It is to be opened as another user's.
    #[error("{0} cannot be opened: an endpoint is of the user who opens it, so leave out what stands before '/'")]
    Foreign(String),
    /// Another endpoint of the card has that name.
    #[error("{0} is open already: close the other one, or choose another name")]
    Taken(String),
    /// No endpoint of the card has that name.
    #[error("nobody has opened {0} at this card: {hint}", hint = how_to_find(.0))]
    Nobody(String),
    /// It does not take endpoints of this user.
    #[error("{name} refuses: {why}", name = .0, why = Refusal::User)]
    Refused(String),
    /// One of both knows as many as it may.
    #[error("there are as many connections as there may be: end one")]
    Full,
    /// The other end is gone.
    #[error("the other endpoint is gone")]
    Lost,
    /// As many messages have not ended as there may be.
    #[error("1024 messages have not ended: wait for some")]
    Busy,
    /// The pool has no block for it.
    #[error(
        "the pool has no {0} bytes for this message: wait until others have ended, or open the endpoint with a larger pool"
    )]
    NoRoom(usize),
    /// Memory cannot be had.
    #[error(transparent)]
    Memory(#[from] millrace_dma::RegionError),
    /// The system does not do it.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was to be done.
        doing: &'static str,
        /// What the system says.
        source: Errno,
    },
}

impl Error {
    /// What a card says to a program that it does not let in.
    pub(super) fn turned_away(why: Errno) -> Self {
        match why {
            Errno::ACCESS => Self::NoRight { user: rustix::process::geteuid().as_raw() },
            Errno::USERS => Self::ManyPrograms,
            _ => Self::TurnedAway(why),
        }
    }
}

/// A message was not taken. Its memory is here.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct Refused {
    /// Why.
    pub why: Error,
    /// Its memory.
    pub memory: Memory,
}
