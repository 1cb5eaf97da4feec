//! Other processes of the same user on the same card: met by a socket, reached by shared memory.
//!
//! ```text
//!  ibv_modify_qp (RTR) -- hello: address, directory, channel, bell --> helper thread of the other process
//!          |           <------- welcome: directory, bell -------------------+
//!          v
//!       session: two rings for packets, and the directory of the other process
//! ```
//!
//! * `name`: the socket of a process. `message`: what is said by it. `meet`: how a session begins. `serve`: what the helper
//!   thread answers, and how it learns that a process has ended.
//! * `files`: memory that the other process may map.
//! * `session`, `sessions`: packets by rings. `tell`: what `millrace rdma` is told.

mod files;
mod meet;
mod message;
mod name;
mod serve;
mod session;
mod sessions;
mod tell;

pub(crate) use files::share;
pub(super) use files::{Shares, ask};
pub(crate) use meet::Meeting;
use meet::Said;
pub(super) use serve::Serving;
pub(super) use sessions::{Go, Sessions};

use millrace_rdma::local::{DirectoryError, PeerError};
use rustix::io::Errno;
use thiserror::Error;

/// Why there is no session. Then frames go by the card.
#[derive(Debug, Error)]
pub(crate) enum LocalError {
    #[error("the system says {0}")]
    System(#[from] Errno),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("it belongs to another user")]
    Stranger,
    #[error("it has said what is no greeting of this version")]
    Greeting,
    #[error("it does not answer")]
    Silent,
    #[error("another process has its address, and is there")]
    Taken,
    #[error("it stayed inside of this process's memory too long, too often")]
    KeptOut,
    #[error("there are as many processes as there may be")]
    Full,
    #[error("this process has no helper thread, or has said local=off")]
    Off,
}
