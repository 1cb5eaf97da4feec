//! What to send.

use millrace_packet::probe::Probes;

use super::lengths::Lengths;
use super::rate::Rate;

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
