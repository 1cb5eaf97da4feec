//! Messages and doorbells between programs.
//!
//! * `control`: what two endpoints say to each other. `bell`: doorbells.
//! * `engine`: the protocol, without a system call, a clock or a thread. `step`: its steps, by name.
//! * `channel`: the shared memory of two endpoints of one host, by which they say it.
//! * `cost`: what the ways of a message cost, and which is chosen.
#![forbid(unsafe_code)]

pub mod bell;
pub mod channel;
pub mod control;
pub mod cost;
pub mod engine;
pub mod step;

pub use cost::Scheme;
