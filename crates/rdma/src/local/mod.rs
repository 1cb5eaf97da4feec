//! Two processes of one user on one host: packets by shared memory, and requests that need none.
//!
//! ```text
//!  initiator                                       target
//!  request -- can all before it be forgotten? --no--> packet -> ring -> engine
//!     | yes                                               (two rings for two processes)
//!     v
//!  directory of the target: the queue pair, the key, bounds, rights
//!     | fits                          | does not fit: as a packet, so that the target says what is wrong
//!     v
//!  the target's memory: by a mapping, or by a system call
//! ```
//!
//! A WRITE, READ or atomic operation that finds nothing before it on the way is done by the initiator itself. All else, and
//! whatever does not fit, are packets of the transport, so that errors, retries and order are those of frames.
//!
//! * `layout`: what stands where in shared memory.
//! * `directory`: what a process lets others reach; it alone writes there.
//! * `view`: what others read there, each word checked.
//! * `line`, `ring`: packets between two processes. `short`: SENDs that the ring acknowledges.
//! * `peer`: the other process, and how its memory is reached. `peers`: all of them.

#[cfg(not(loom))]
mod directory;
mod layout;
mod line;
#[cfg(not(loom))]
mod peer;
#[cfg(not(loom))]
mod peers;
mod ring;
mod short;
#[cfg(not(loom))]
mod view;

#[cfg(not(loom))]
pub(crate) use directory::Opened;
#[cfg(not(loom))]
pub use directory::{Directory, DirectoryError, Shared};
pub use layout::{CHANNEL_LEN, Side};
pub use line::Malformed;
#[cfg(not(loom))]
pub use peer::{Counts, Peer, PeerError};
#[cfg(not(loom))]
pub use peers::{Connected, Far, Kept, Outcome, Peers};
pub use ring::{Receiver, Room, Sender, Taken, TakenShort, Ticket};
pub use short::{Short, Source};
