//! What the commands of Millrace stand on, `millrace` as well as `millrace-bench`: [options] that mean the same everywhere,
//! [sessions](session) with a card, [traffic], and [output] for people and for programs.
#![forbid(unsafe_code)]

pub mod applies;
pub mod clock;
pub mod cores;
pub mod distribution;
pub mod duration;
pub mod echo;
pub mod ethernet;
pub mod failure;
pub mod grammar;
pub mod host;
pub mod idle;
pub mod lanes;
pub mod limits;
pub mod list;
pub mod log;
pub mod manual;
pub mod meter;
pub mod options;
pub mod output;

pub mod programs;
pub mod progress;
pub mod send;
pub mod session;
pub mod sharing;
pub mod stop;
pub mod traffic;
pub mod trips;

pub use millrace_driver::place;

/// Version of the commands, and the commit of which they were built.
pub const VERSION: &str = env!("MILLRACE_VERSION");
