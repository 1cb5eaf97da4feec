//! Memory that virtual machines share with one another and with programs of the host: the device `ivshmem-doorbell` of QEMU, its
//! server, and what stands in the memory (`docs/ivshmem.md`).
//!
//! ```text
//!  guest: program                 guest: program              host: program
//!    | BAR 2        | BAR 0          |                           | mmap
//!    |              | Doorbell       |                           |
//!  QEMU ------------|---- eventfds --|-- QEMU -------------------|----
//!    |              one of each vector of each peer              |
//!    +---- socket ---------------- Server ----------------- socket
//! ```
//!
//! * `protocol`: what the server says to its clients. `server`: who they are, and that none of them holds up another.
//! * `endpoint`: a peer, `host`: on the host, `pci`: in a virtual machine.
//! * `layout`: what stands in the memory: who is there, and a ring of doorbells and one of messages from each peer to each other.
#![deny(unsafe_code)]

mod endpoint;
mod host;
pub mod layout;
mod pci;
pub mod protocol;
mod server;
#[allow(unsafe_code)]
mod unread;

pub use endpoint::{At, Endpoint, EndpointError, Event, MOST_BYTES, Refused};
pub use server::{Change, Counters, Ending, Limits, PeerStatus, Server, ServerError, Status};
