//! `librdmacm.so.1`: programs that connect by addresses and ports (`rdma_connect`, `rdma_accept`) do so over Millrace cards, as they are.
//!
//! It stands on our `libibverbs.so.1` as any program does, and asks for one thing more: queue pair 1. The protocol is
//! [`millrace_rdma::cm`].
//!
//! * `cma`: what programs see of our objects, byte by byte. `abi`: the same of verbs.
//! * `boundary`: the functions that they call.
//! * `state`: all identifiers of the process, and what they are told. `thread`: who looks at what comes.
//! * `card`: verbs, as this library uses them. `stats`: what happened, in numbers.
//!
//! Everything `unsafe` is in `boundary`, `card` and `abi` (decision 60).
#![deny(unsafe_code)]

// The layouts and the queue of events are files of crates/verbs: the crate itself as a dependency would put a second copy of its functions
// into this library.
#[path = "../../verbs/src/abi/mod.rs"]
#[allow(dead_code, unused_imports, reason = "this library does not use all of them")]
mod abi;
#[allow(unsafe_code)]
mod boundary;
#[allow(unsafe_code)]
mod card;
mod cma;
#[path = "../../verbs/src/place/events.rs"]
#[allow(dead_code, reason = "this library does not use all of it")]
mod events;
mod state;
mod stats;
mod thread;

pub(crate) use events::Events;
