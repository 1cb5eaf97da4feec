//! Which endpoint a command has: one of its own, or one whose work a card does. Both do the same here.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use millrace_message::endpoint::{Config, Endpoint, Event, Peer, Users, Who};
use millrace_message::engine::{Outcome, RequestError};
use millrace_message::hosted;
use millrace_message::{Request, Scheme, Tag};
use millrace_tool::failure::Failure;
use millrace_tool::place;

use super::talk::gone;
use super::{RailArgs, refused};

/// Which card does the work, if one does.
#[derive(Debug, Args)]
pub struct CardArgs {
    /// Let a card do the work, and reach those who do the same: the one that listens at PATH, or the usual one (see
    /// `millrace card --message-cpu`)
    #[arg(long, value_name = "PATH", num_args(0..=1), require_equals = true, conflicts_with = "rail")]
    card: Option<Option<PathBuf>>,
}

/// A message that has ended.
pub struct Ended {
    pub request: Request,
    pub outcome: Outcome,
    pub from: Option<Peer>,
    pub buffer: Vec<u8>,
}

impl From<millrace_message::endpoint::Ended> for Ended {
    fn from(ended: millrace_message::endpoint::Ended) -> Self {
        let millrace_message::endpoint::Ended { request, outcome, from, buffer, .. } = ended;
        Self { request, outcome, from, buffer }
    }
}

impl From<hosted::Ended> for Ended {
    fn from(ended: hosted::Ended) -> Self {
        let hosted::Ended { request, outcome, from, memory } = ended;
        Self { request, outcome, from, buffer: memory.into_vec() }
    }
}

/// An endpoint.
pub enum Side {
    Own(Endpoint),
    Card(Box<RefCell<hosted::Endpoint>>),
}

fn found(error: impl std::fmt::Display) -> Failure {
    Failure::Found(error.to_string())
}

impl Side {
    /// Opens one. At a card it has so much memory for messages.
    pub fn open(
        name: Option<&str>,
        users: Users,
        rails: &RailArgs,
        card: &CardArgs,
        pool: u64,
    ) -> Result<Self, Failure> {
        let name = name.map(str::to_owned);
        let Some(path) = &card.card else {
            return Endpoint::with(Config { name, users, ..rails.config() }).map(Self::Own).map_err(refused);
        };
        let path = path.clone().unwrap_or_else(place::usual);
        let pool = usize::try_from(pool).unwrap_or(usize::MAX);
        let opened = hosted::Endpoint::open(&path, hosted::Config { name, users, pool, ..hosted::Config::default() });
        opened.map(|endpoint| Self::Card(Box::new(RefCell::new(endpoint)))).map_err(found)
    }

    /// Whether it is one of the program's own, which can send and receive short messages at once.
    pub fn own(&self) -> Option<&Endpoint> {
        match self {
            Self::Own(endpoint) => Some(endpoint),
            Self::Card(_) => None,
        }
    }

    pub fn connect(&self, name: &str, patience: Duration) -> Result<Peer, Failure> {
        match self {
            Self::Own(endpoint) => endpoint.connect(name, patience).map_err(refused),
            Self::Card(endpoint) => endpoint.borrow_mut().connect(name, patience).map_err(found),
        }
    }

    pub fn send(&self, to: Peer, tag: Tag, buffer: Vec<u8>, by: Option<Scheme>) -> Result<Request, Failure> {
        match (self, by) {
            (Self::Own(endpoint), Some(by)) => endpoint.send_by(to, tag, buffer, by).map_err(gone),
            (Self::Own(endpoint), None) => endpoint.send(to, tag, buffer).map_err(gone),
            (Self::Card(endpoint), _) => endpoint.borrow_mut().send(to, tag, buffer).map_err(found),
        }
    }

    pub fn receive(&self, from: Option<Peer>, tag: Tag, mask: u64, buffer: Vec<u8>) -> Result<Request, Failure> {
        match self {
            Self::Own(endpoint) => endpoint.receive(from, tag, mask, buffer).map_err(gone),
            Self::Card(endpoint) => endpoint.borrow_mut().receive(from, tag, mask, buffer).map_err(found),
        }
    }

    pub fn wait(&self, request: Request, patience: Duration) -> Result<Option<Ended>, Failure> {
        match self {
            Self::Own(endpoint) => Ok(endpoint.wait(request, patience).map(Ended::from)),
            Self::Card(endpoint) => {
                endpoint.borrow_mut().wait(request, patience).map(|ended| ended.map(Ended::from)).map_err(found)
            }
        }
    }

    pub fn next(&self, patience: Duration) -> Result<Option<Ended>, Failure> {
        match self {
            Self::Own(endpoint) => Ok(endpoint.next(patience).map(Ended::from)),
            Self::Card(endpoint) => {
                endpoint.borrow_mut().next(patience).map(|ended| ended.map(Ended::from)).map_err(found)
            }
        }
    }

    pub fn event(&self) -> Result<Option<Event>, Failure> {
        match self {
            Self::Own(endpoint) => Ok(endpoint.event(Duration::ZERO)),
            Self::Card(endpoint) => endpoint.borrow_mut().event(Duration::ZERO).map_err(found),
        }
    }

    pub fn who(&self, peer: Peer) -> Option<Who> {
        match self {
            Self::Own(endpoint) => endpoint.who(peer),
            Self::Card(endpoint) => endpoint.borrow().who(peer).cloned(),
        }
    }

    /// A card that has gone is found by the next call that waits.
    pub fn leave(&self, peer: Peer) {
        match self {
            Self::Own(endpoint) => endpoint.leave(peer),
            Self::Card(endpoint) => drop(endpoint.borrow_mut().leave(peer)),
        }
    }

    /// The same.
    pub fn cancel(&self, request: Request) {
        match self {
            Self::Own(endpoint) => drop(endpoint.cancel(request)),
            Self::Card(endpoint) => drop(endpoint.borrow_mut().cancel(request)),
        }
    }
}

/// Who has gone was waited for.
pub fn lost() -> Failure {
    gone(RequestError::Lost)
}
