//! Traffic on many queue pairs: one thread sends on and receives from several, without a system call, a lock or an
//! allocation per frame.
//!
//! [`Plan`] says what to send, a [`Pair`] is one queue pair with what it has done so far, a [`Worker`] drives several
//! pairs, and the [`Board`] shows the progress of all workers to each other and to who watches.

mod board;
mod lengths;
mod pair;
mod plan;
mod rate;
mod worker;

pub use board::{Board, Gauge};
pub use lengths::{Lengths, Mix};
pub use pair::{Pair, Sent};
pub use plan::Plan;
pub use rate::Rate;
pub use worker::{QueueResult, Received, Results, Worker};
