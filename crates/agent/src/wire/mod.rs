//! Messages of OpenFlow 1.3.5 as bytes, both ways. Sections are those of its specification (ONF TS-023).
//!
//! - [`header`]: what precedes each, and where it ends in a stream; [`hello`]: which versions somebody speaks; [`message`]: all of them.
//! - [`error`]: why something is refused, by the names of the specification.
//! - [`oxm`], [`action`], [`instruction`]: what flow entries consist of; [`flow`], [`group`], [`meter`], [`port`], [`table`]: what a switch
//!   has; [`switch`]: what it is, and what controllers are to it.
//! - [`packet`]: packets; [`multipart`]: questions with long answers; [`bundle`]: messages that are done together.
//!
//! The other end is hostile: every length is checked, what is left over is an error, and nothing takes more memory than the message has
//! bytes, times a small number. A message that was read and is written again has the same bytes, but for padding, text behind its zero, and what is
//! passed over by rule.

pub mod action;
pub mod bundle;
pub mod error;
pub mod flow;
pub mod group;
pub mod header;
pub mod hello;
pub mod instruction;
pub mod message;
pub mod meter;
pub mod multipart;
pub mod oxm;
pub mod packet;
pub mod port;
mod reader;
pub mod switch;
pub mod table;

pub use error::Refusal;
pub use header::{HEADER, Header, LONGEST, VERSION, first};
pub use message::Message;
