//! One card takes over from another while machines run (decision 128): they notice a pause.
//!
//! ```text
//! the next card                           the one that runs
//! hello: version, functions  ---------->
//!                            <----------  welcome, with the sockets at which both would listen
//! (makes itself ready)                    (serves)
//! prepare                    ---------->  stops: TX queues, what is under way, RX queues
//!                            <----------  state, with descriptors
//! (maps memory, holds queues)             (waits, so long and no longer)
//! taken                      ---------->
//!                            <----------  yours
//! serves                                  ends
//! ```
//!
//! Whatever goes wrong before `yours` is sent, the card that runs goes on as before; and the next one touches nothing of a machine before it has come.
//!
//! * `state`: the words; those of a machine are made and read by `session`. `ports`: those of the MACs. `wire`: messages and descriptors. `giver`: the card that runs. `taker`: the next one.

mod giver;
pub(crate) mod ports;
mod state;
mod taker;
mod wire;

pub(crate) use giver::{Asks, Giver};
pub(crate) use state::{Fds, SavedMachine, SavedPiece, SavedStream, SavedVector, TakenFds, hex, unhex};
pub(crate) use taker::Predecessor;
pub use taker::TakeOverError;
pub(crate) use wire::{Said, Talk};

use std::path::{Path, PathBuf};

/// Where the next card calls: beside the sockets of the functions.
pub(crate) fn path_beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".handover");
    name.into()
}
