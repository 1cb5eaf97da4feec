//! Traffic on many queue pairs: one thread sends on and receives from several, without a system call, a lock or an
//! allocation per frame.
//!
//! [`Plan`] says what to send, a [`Pair`] is one queue pair with what it has done so far, a [`Worker`] drives several
//! pairs, and the [`Board`] shows the progress of all workers to each other and to who watches.

mod board;
mod lengths;
mod pair;
mod rate;
mod worker;

pub use board::{Board, Gauge};
pub use lengths::{Lengths, Mix};
pub use pair::{Pair, Sent};
pub use rate::Rate;
pub use worker::{QueueResult, Received, Results, Worker};

use millrace_packet::probe::Probes;

/// What to send on each queue pair, and how.
pub struct Plan {
    /// The frames. Queue pair `n` of the board sends flows `n * flows` and up.
    pub probes: Probes,
    /// Flows of each pair.
    pub flows: u32,
    /// Frames of each pair; none: until `seconds` or Ctrl-C.
    pub goal: Option<u64>,
    /// How long to send.
    pub seconds: Option<f64>,
    /// How fast each pair sends; none: as fast as the card takes frames.
    pub rate: Option<Rate>,
    /// How long the frames are.
    pub lengths: Lengths,
    /// Most frames per call.
    pub burst: usize,
    /// Most frames of each pair on their way at once.
    pub window: Option<u64>,
    /// Frames carry the time, and how long they took is recorded.
    pub latency: bool,
    /// Never sleep.
    pub poll: bool,
    /// How long to wait for what is still missing after the last frame that came, in seconds.
    pub linger: f64,
}
