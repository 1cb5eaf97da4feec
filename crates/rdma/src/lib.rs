//! RDMA over Ethernet: programs read and write each other's memory, with no RDMA in the kernel and no RDMA hardware.
//!
//! One engine, which knows no threads, no clock and no sockets: it is given the time and the frames that came, and
//! gives frames away. Whoever owns it decides where it runs: the thread of a program, a card, a backend of a guest.
//!
//! Rooms, in the order in which a packet passes them:
//! * [`engine`]: everything of one address together; what a program calls.
//! * [`cm`]: how two ends agree on queue pairs.
//! * [`wire`]: packets as they stand in frames: RoCE v1, RoCE v2, SLURPoE.
//! * [`transport`]: queue pairs, and the protocol between two of them.
//! * [`memory`]: keys, regions, windows: who may reach which bytes.
//! * [`work`]: what a program asks for and what it is told: work requests, completions and their queues.
//! * [`local`]: two processes on one host, without frames.
//! * [`served`]: the engine in another process, which many programs share.
//! * [`show`]: what whoever looks is told.
//! * [`neighbour`]: which MAC address leads to whom.
//! * [`number`]: sequence numbers, queue pair numbers, keys, times, each with its own arithmetic.
//!
//! The transport is that of the InfiniBand Architecture Specification, volume 1, chapters 9 to 11, with annexes A16 and
//! A17 (RoCE).
//!
//! Under `--cfg loom` there are only the rings between two processes, and what stands in them: `crates/rdma/tests/loom.rs`.
#![forbid(unsafe_code)]
#![cfg_attr(loom, allow(dead_code, unused_imports, reason = "models have no use for the most of it"))]

#[cfg(not(loom))]
pub mod cm;
#[cfg(not(loom))]
pub mod engine;
pub mod local;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod neighbour;
pub mod number;
#[cfg(not(loom))]
pub mod served;
#[cfg(not(loom))]
pub mod show;
#[cfg(not(loom))]
pub mod transport;
pub mod wire;
#[cfg(not(loom))]
pub mod work;
