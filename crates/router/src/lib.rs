//! A router's fast path beside Linux: what Linux decided about the first packets of a flow is done for the rest without Linux.
//!
//! * [`Step`] and [`Reason`]: the names of everything that a packet meets.
//! * [`engine`]: the program in the kernel that does it, loaded, attached, filled and read.
//! * [`user`]: what the kernel cannot do, done here: IPsec.
//!
//! Why it is built as it is: decision 82.
#![deny(unsafe_code)]

pub mod daemon;
#[cfg(feature = "bpf")]
pub mod engine;
pub mod kernel;
mod reason;
pub mod step;
#[cfg(feature = "ipsec")]
pub mod user;

pub use reason::Reason;
pub use step::Step;
