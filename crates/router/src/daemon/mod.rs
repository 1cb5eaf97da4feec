//! The daemon: what Linux has, told to the engine the moment that it changes.
//!
//! - `pattern`, `choice`, `off`: which interfaces, where, and why not; `parts`: which work is done;
//! - `capabilities`, `advice`: what the process may do, and what Linux would better be told;
//! - `delays`: how long it took.

pub mod advice;
pub mod capabilities;
pub mod choice;
pub mod client;
pub mod control;
pub mod delays;
pub mod devices;
pub mod off;
pub mod parts;
pub mod pattern;
pub mod protocol;
