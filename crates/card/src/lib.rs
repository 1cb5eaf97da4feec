//! The network card in software: registers, DMA controllers, MACs, clock, and the workers that move frames.
//!
//! ```text
//! registers ----> queue (control side: latches, START, STOP, counters) ----------> command
//!                                                                                    |
//! port <-- shard (TX queues -> port queue -> RX queues) <- worker (one thread) <-----+
//!            ^
//! plug, connect, move ----> wiring (what is behind the ports, who serves what)
//! ```
//!
//! * [`Card`] is the handle: registers, device tree, attaching of queue memory, statistics.
//! * `queue` is what registers show of one queue, `queue_status` what they and its worker tell each other, `opener` what
//!   a driver attaches to it; `engine` is the half of the ring that a worker runs.
//! * `buffers` is the device's own memory, into which software writes what Calypte TX queues send.
//! * `shard` moves frames between queues and port queues, by rules if there are any (`flows`); `turns` says which
//!   of them has its turn; `worker` gives those turns and sleeps when all is quiet. `mailbox` brings it commands,
//!   `lost_worker` is what happens when it ends by a bug. `affinity` says which worker serves which queue, `ports`
//!   what is plugged in; `wiring` changes both.
//! * `flows` is the flow table: whose its rules are, and what has happened to it.
//! * `phy` is the link behind the MACs, `cage` the module that the link runs over.
//! * `tsu` is the clock, and what it writes before received frames.
//! * `mac` is a port as its registers show it, and what its MACs let through.
//!
//! The control side may take locks and time. A worker owns its shard alone; it hears of changes by
//! commands, and what it counts is published under a sequence lock.
#![forbid(unsafe_code)]

mod affinity;
mod buffers;
mod cage;
mod card;
mod command;
mod counters;
mod engine;
mod flows;
mod handover;
mod loans;
mod lost_worker;
mod mac;
mod mailbox;
mod opener;
mod pass_clock;
mod phy;
mod ports;
mod published;
mod queue;
mod queue_status;
mod registers;
mod schedule;
mod shard;
mod sleep;
mod statistics;
mod tsu;
mod turns;
mod wiring;
mod worker;

pub use buffers::TxBuffers;
pub use card::{Card, CardError, CountsOfFunctions, RingPins};
pub use counters::QueueDrop;
pub use flows::{
    Authority, Belongs, Done, Event, Happened, Later, MAX_SNAP, MAX_TAP_RATE, Owner, Since, Tap, TapError, TapFrame,
    TapSent, TapSpec, TapWants, Tapped, Transaction, Why, flow_changes, line_of,
};
pub use loans::LentPool;
pub use millrace_flow::neighbour::{Neighbour, State as NeighbourState};
pub use opener::{Attachment, Opener};
pub use ports::WiringError;
pub use queue::{RingProgram, StartError};
pub use tsu::SteeringError;
