//! SLURPoE: programs read and write each other's memory over Ethernet, with no RDMA in the kernel and no RDMA hardware.
//!
//! An [`Endpoint`] is a MAC address with registered regions of its own, on queues of a card or on a port. Who is given the key of
//! a [`Region`] may read and write there, as far as the region allows. The protocol is that of RoCE's reliable connections;
//! the frames have a header of their own (`docs/spec/slurpoe.md`) and up to 8192 bytes of payload.
//!
//! ```no_run
//! use millrace_slurpoe::{Access, Config, Endpoint, Notify, Transfer};
//! use std::time::Duration;
//!
//! let config = Config { port: Some("virtio-user:/tmp/wire".into()), ..Config::default() };
//! let endpoint = Endpoint::open(&config)?;
//! let region = endpoint.allocate(1 << 20, Access::LOCAL)?;
//! // Both come from the other program, by whatever way the two have.
//! let (other, key) = ("02:00:00:00:00:01".parse()?, 0x1234);
//! endpoint.connect(other, Duration::from_secs(5))?;
//! endpoint.post(other, &[Transfer::write(region.part(0, 4096)?, key, 0)], 7, Notify::Poll)?;
//! let completion = endpoint.wait(Duration::from_secs(5)).ok_or("nothing has ended")?;
//! assert_eq!((completion.token, completion.failed), (7, None));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Names of the papers on SLURPoE beside those here, and the same in C:
//!
//! | There | Here | C |
//! |---|---|---|
//! | open, close an endpoint on a network card | [`Endpoint::open`], drop | `millrace_slurpoe_open`, `_close` |
//! | address of an endpoint | [`Endpoint::address`] | `millrace_slurpoe_address` |
//! | register, deregister a memory region | [`Endpoint::allocate`], [`Endpoint::register`], drop of a [`Region`] | `millrace_slurpoe_register`, `_deregister` |
//! | region identifier that is given to others | [`Region::key`] | the key |
//! | RDMA write | [`Transfer::write`] | `MILLRACE_SLURPOE_WRITE` |
//! | RDMA read | [`Transfer::read`] | `MILLRACE_SLURPOE_READ` |
//! | completion, polled | [`Notify::Poll`], [`Endpoint::poll`] | `MILLRACE_SLURPOE_POLL`, `millrace_slurpoe_poll` |
//! | DMA chaining | [`Endpoint::post`], [`Endpoint::post_each`] | `millrace_slurpoe_post` with a list |
//! | software IOTLB | the table behind the keys (decision 55); refusals: [`Endpoint::counters`] | `millrace_slurpoe_refused` |
//! | several network cards | an [`Endpoint`] for each | the same |
//!
//! Not in the papers: connections, which give reliability ([`Endpoint::connect`]); sending to posted buffers
//! ([`Transfer::send`], [`Endpoint::receive`]); completion by a callback or a descriptor ([`Notify`]); a few bytes to all ends of the
//! wire ([`Endpoint::tell`]).
//!
//! Rooms: `config`, `address`, `transfer`, `region` are what a program says and is told; `endpoint` what it calls; `running` moves
//! the protocol; `connect` agrees with other ends on queue pairs; `helper` is the thread
//! that takes over when the program does not poll.
#![forbid(unsafe_code)]

mod address;
mod config;
pub mod connect;
mod endpoint;
mod error;
mod helper;
mod region;
mod running;
mod transfer;

pub use address::{Address, BadAddress};
pub use config::{Config, Wire};
pub use endpoint::Endpoint;
pub use error::Error;
pub use region::{Access, Part, Region};
pub use transfer::{Completion, Failed, Kind, Notify, Told, Transfer};
