//! A router's fast path beside Linux: what Linux decided about the first packets of a flow is done for the rest without Linux.
//!
//! Why it is built as it is: decision 82.
#![forbid(unsafe_code)]

pub mod daemon;
pub mod kernel;
pub mod step;

pub use step::Step;
