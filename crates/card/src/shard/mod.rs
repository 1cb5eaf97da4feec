//! Everything that one worker serves, and the way of frames through it.
//!
//! ```text
//! slots      rings and port queues, with what belongs to each      <- state     all of them, found by place
//!                                                                       ^
//! frames     one burst from a source to where it goes ------------------+
//! classify   where it goes when there are rules    -------------------- +
//! admin      starting, stopping, moving, falling asleep ----------------+
//! ```
//!
//! * `slots`: RX queues, TX rings, port queues, their openers; what moves between workers.
//! * `state`: the shard itself. `sink`: the receiving MAC in front of whatever gets the frames.
//! * `frames`: the way of frames without rules. `classify`: with rules.
//! * `admin`: what the control side has changed, and what a worker does before it sleeps.
//!
//! Which ring or port queue is looked at when, `crate::turns` says. A shard belongs to its worker, so nothing here locks.

mod admin;
mod classify;
mod frames;
mod sink;
mod slots;
mod state;

pub(crate) use classify::{Brought, Classifying, FlowCounts, SlowEnds, SlowSide, Tapper, cross, cross_slowly};
pub(crate) use frames::{Launch, lend};
pub(crate) use slots::{Answer, Detach, Detached, Loan, Loans, PortSlot, RxSlot, TxQueue, TxSlot, wake_fence};
pub(crate) use state::{Patch, Shape, Shard};
