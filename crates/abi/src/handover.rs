//! What one card hands to the next of a queue that runs on: its registers, its counters, and where its ring stands. The same words for a card in another process,
//! and for whoever keeps them until there is one.

use crate::queue::QueueId;
use serde::{Deserialize, Serialize};

/// Where the card's half of a ring stands between two frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingPlace {
    /// HDP, or HW, or DD's HEAD.
    pub head: u32,
    /// HHP of an RX queue of Medusa.
    pub headers: u32,
    /// Medusa: the upper address in force.
    pub upper: Option<u64>,
    /// SZE: the run of pages that the card is in.
    pub run: Option<PageRun>,
}

/// A place in the pages of an SZE ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRun {
    /// IOVA of the next byte.
    pub at: u64,
    /// Bytes left of the run.
    pub left: u32,
    /// IOVA of the descriptor that comes after it.
    pub next: u64,
}

/// Counters of a queue, in the order in which the card has them.
pub type QueueWords = Vec<u64>;

/// A queue as its registers show it, and how it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedQueue {
    /// Which; as the card counts it.
    pub queue: Option<QueueId>,
    /// CONTROL.
    pub control: u32,
    /// TIMEOUT.
    pub timeout: u32,
    /// SZE: IRQ.
    pub irq: u32,
    /// SZE: MAX_REQUEST.
    pub max_request: u32,
    /// EXPER.
    pub exper: u32,
    /// DD: LAUNCH and SLACK.
    pub launch: [u32; 2],
    /// SZE: RING_MASK.
    pub ring_mask: u32,
    /// MDP and MHP.
    pub masks: [u32; 2],
    /// DESC_BASE.
    pub desc_base: u64,
    /// HDR_BASE.
    pub hdr_base: u64,
    /// UPDATE_BASE.
    pub update_base: u64,
    /// The software pointers. While it runs those in its control page count.
    pub pointers: u64,
    /// What a register has put into the control page last, while software has put nothing there itself.
    pub rung: Option<u64>,
    /// Everything counted.
    pub counts: QueueWords,
    /// The same at the last reset of the counters.
    pub zero: QueueWords,
    /// What the counter registers show.
    pub strobed: QueueWords,
    /// Where its ring stands, if it runs.
    pub place: Option<RingPlace>,
    /// Whether it stops as soon as it is drained.
    pub is_stopping: bool,
    /// Whether it ran when this was said: what counts of `place`, `pointers` and `rung`, and whether it has stopped since, stands in its control page.
    #[serde(default)]
    pub is_noted: bool,
}
