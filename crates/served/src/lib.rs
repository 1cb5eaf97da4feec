//! The RDMA engine in a card, joined to the system (decision 65): `millrace_rdma::served` knows no socket and no thread, and
//! this crate has nothing else.
//!
//! ```text
//!  program                                        card
//!  Client::call ---- requests, descriptors ---->  Server: one thread
//!               <--- answers, descriptors -----     |
//!  Program ========= rings in shared memory =====>  Service::turn
//!  bells          <=============================>  sleeps when nothing moves
//!                                                  network: frames to other hosts
//! ```
//!
//! * `wire`: requests and answers as words.
//! * `bell`: by what the two wake each other.
//! * `record`: one record of a seqpacket socket, with descriptors.
//! * `server`: the side of the card. `worker`: its thread, in four files. `clients`, `answer`: who has called, and what is answered. `network`: the way to
//!   other hosts. `stalls`: how long the thread waits for memory. `pressure`: whether the machine is short of it.
//! * `client`: the side of a program.
#![forbid(unsafe_code)]

pub mod answer;
pub mod bell;
mod client;
mod clients;
pub mod network;
mod pressure;
pub mod record;
mod server;
mod stalls;
pub mod wire;
mod worker;

pub use client::{CallError, Client};
pub use millrace_callers::{Caller, Closer, Listener, May, owner_only, remember_cores};
pub use server::{Address, Server, Start};

use std::path::{Path, PathBuf};

/// The socket of the engine of a card that listens at `card`: beside it, so that two cards in one folder have two.
pub fn socket_of(card: &Path) -> PathBuf {
    let mut name = card.as_os_str().to_owned();
    name.push(".rdma");
    name.into()
}
