//! The card's driver, in user space: a server on a Unix socket that hands out queues, their memory, rights and quotas, and
//! clears up after programs that die; and its client.
//!
//! The driver is the only part that knows both sides. It runs beside the card, in the daemon `millrace card` or on
//! threads of a program ([`Driver::embedded`]); programs reach it through a [`Client`], over a Unix socket or a pair of
//! sockets, so that both placements are one. Only registers of an embedded card are accessed without a detour, in the
//! thread of whoever asks.
//!
//! ```text
//! client ---- codec (messages, fds) ------------ server ---- session (one per open queue) ---- card (registers)
//!                                                  |            \---- protocol (one for each engine), memory, registers
//!                                                  \------- locks, native (queues started by registers)
//! ```
//!
//! A card that is a PCI function of this machine has no server: its driver is in the client (`function`).
//!
//! Nothing here is on the data path of direct mode. In mediated mode it is: that is what mediated mode is for.
#![forbid(unsafe_code)]

mod client;
mod codec;
mod flows;
mod function;
mod lists;
mod locks;
mod memory;
mod native;
pub mod place;
mod poll;
mod protocol;
mod registers;
mod server;
mod session;
mod talk;

pub use client::{Bell, Client, ClientError, Kick, Opened};
pub use native::{Guest, GuestQueue};
pub use server::{Driver, DriverError, Policy, SocketIdentity, peer_of};
pub use talk::wait_no_longer;
