//! An OpenFlow 1.3 switch agent for the flow table of a card.
//!
//! - [`crowd`]: how controllers share one thread.
//! - [`wire`]: messages as bytes.
//! - [`switch`]: what a switch is: entries, groups, meters, ports, controllers. It compiles what these ask for into rules of the crate `flow`,
//!   over a [`Datapath`](switch::datapath::Datapath), which is a card or a test.
//!
//! No thread, no clock, no socket: `millrace agent` has these.
#![forbid(unsafe_code)]

pub mod crowd;
pub mod switch;
pub mod wire;
