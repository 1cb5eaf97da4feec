//! A PTP ordinary clock (IEEE 1588-2019) over frames: `statime` knows the protocol, this crate gives it frames, timers and a clock.
//!
//! * [`Transport`]: messages in Ethernet frames or UDP datagrams.
//! * [`Engine`]: gets frames with the times at which they came, gives frames to be sent, wants to know when those left whose time
//!   matters; knows no thread, no system and no socket. Time goes on by what it is told.
//! * `filter`: what becomes of measurements; `one_step`: Sync messages that say themselves when they left.
//!
//! What is sent is two-step, as statime does it, or one-step with [`Settings::one_step`]; both are understood.
#![forbid(unsafe_code)]

mod engine;
mod filter;
mod one_step;
mod settings;
mod timers;
mod timescale;
mod transport;

pub use engine::{Engine, Instance, Outgoing, Sent, Status};
pub use settings::{Delay, Role, Settings};
pub use transport::{Message, Transport};

use millrace_clock::Time;

/// A clock that PTP reads, and leads when it follows a master.
pub trait Led {
    /// What it shows.
    fn now(&self) -> Time;

    /// Moves it by so many ns at once. `false`: it could not be.
    fn step(&mut self, ns: i64) -> bool;

    /// Has it go so much faster than its nominal speed, in millionths. `false`: it could not be.
    fn set_frequency(&mut self, ppm: f64) -> bool;
}
