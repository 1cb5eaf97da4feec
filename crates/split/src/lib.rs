//! The split driver: a program in a guest uses the RDMA engine of a backend outside (decision 109, after SLURPoE on Xen).
//!
//! ```text
//!  guest: frontend                                         card, or domain 0: backend
//!  Frontend::call ----- control page: ring of requests --> Guest: one for each program
//!                 <---- ring of answers ------------------   |
//!  Endpoint::post ===== rings in granted pages ==========> Service::turn (millrace_rdma::served)
//!  memory         ===== granted once, mapped once =======> Domain: an IOTLB of each guest's own
//! ```
//!
//! Control goes through the backend: connections, registration, the names of memory. Data goes past it: a transfer is one copy from pages of
//! one guest to pages of the other, made by the engine, and no byte of it is anywhere else.
//!
//! How pages are granted and how the two sides wake each other is behind two traits, [`Grants`] and [`Maps`]:
//! * [`memory`]: a file in memory and bells, between two processes.
//! * [`ivshmem`]: memory that virtual machines of QEMU share, and its doorbells.
//! * [`xen`]: Xen's grants, event channels and XenStore, between two domains.
//!
//! A backend may have a port: then guests reach endpoints of SLURPoE on a wire, and are reached by them, each with an address of its own.
//!
//! Rooms: `page`: the control page. `message`: what stands in its rings. `transport`: the two traits. `guest`, `rights`, `counts`, `meeting`, `backend`: the side
//! outside; `notices`: what it says of them; `port`, `outside`: frames, and connections with endpoints on a wire. `hosts`: the address
//! of queue pairs that programs make themselves, and RoCE to other hosts. `frontend`, `endpoint`: the side of the guest. `land`: pages
//! of a transport that a program has its own memory in.
#![deny(unsafe_code)]

mod backend;
mod busy;
mod counts;
mod endpoint;
mod error;
mod frontend;
mod guest;
mod hosts;
pub mod ivshmem;
mod land;
mod late;
mod meeting;
pub mod memory;
pub mod message;
mod notices;
mod outside;
pub mod page;
mod port;
mod rights;
pub mod run;
pub mod transport;
pub mod xen;

pub use backend::{Backend, Limits, Report};
pub use counts::GuestCounts;
pub use endpoint::{Config, Endpoint, Part, Region, Transfer};
pub use error::Error;
pub use frontend::{Frontend, Status};
pub use hosts::{Hosts, HostsConfig};
pub use land::Land;
pub use millrace_link::Wanted;
pub use millrace_slurpoe::{Access, Address, Completion, Failed, Kind, Told};
pub use notices::{TurnedAway, Why};
pub use port::{MOST_NUMBER, Port, PortConfig, PortCounts};
pub use rights::{Right, Rights};
pub use transport::{Arrived, Counts, Door, Event, Granted, Grants, Maps};

/// Bytes of a page: the smallest piece of memory that is granted.
pub const PAGE: usize = 4096;
