//! Connection management: how two ends that know only addresses and a service agree on queue pairs (volume 1, chapter 12), and the
//! convention for IP addresses and ports (annex A11), as `rdma_cm` of Linux speaks it.
//!
//! ```text
//!   active                                passive
//!   connect      --- REQ  --->            Requested
//!                                         accept
//!   Replied      <--- REP ---
//!   ready        --- RTU  --->            Established
//!   disconnect   --- DREQ --->            Disconnected
//!   Disconnected <--- DREP ---
//! ```
//!
//! Datagram services take one exchange: SIDR_REQ, SIDR_REP. Messages are 256 bytes, sent as datagrams from queue pair 1 to queue pair 1.
//!
//! Nothing here talks to anybody: a [`Manager`] is given the messages that came and the time, and gives messages and events away.
//!
//! * [`message`]: messages as they stand in datagrams. [`address`]: what is said of IP addresses and ports.
//! * [`connection`]: one connection, and what is told of it.
//! * [`manager`]: all of them, their timers, and what others may use up.

pub mod address;
pub mod connection;
pub mod manager;
pub mod message;

pub use manager::Manager;
