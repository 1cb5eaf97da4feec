//! Letting frames out, and counting them: the data path of the sending half.

use super::port_queues::PortQueueCounts;
use super::rules::{FCS, Rules};
use crate::published::{Published, Tally};
use millrace_port::DropReason;

const DISABLED: usize = 0;
const LINK_DOWN: usize = 1;
// Without FCS; of all frames that the queues handed over.
const BYTES: usize = 2;
// Frames and bytes that came back without a port.
const LOOPED: usize = 3;
const LOOPED_BYTES: usize = 4;
// Frames for which there was no wire.
const UNPLUGGED: usize = 5;
pub(super) const WORDS: usize = 6;

/// The worker's side of a sending half.
pub(crate) struct Sender {
    tally: Tally<WORDS>,
}

impl Sender {
    pub fn new() -> Self {
        Self { tally: Tally::new() }
    }

    /// Frames were handed over while this half was disabled, or without a link.
    pub fn refuse(&mut self, rules: &Rules, frames: u64, bytes: u64) {
        if frames > 0 {
            self.tally.add(if rules.tx_enabled { LINK_DOWN } else { DISABLED }, frames);
            self.tally.add(BYTES, bytes);
        }
    }

    /// Frames went out and came back at once.
    #[inline(always)]
    pub fn loop_back(&mut self, frames: u64, bytes: u64) {
        if frames > 0 {
            self.tally.add(LOOPED, frames);
            self.tally.add(LOOPED_BYTES, bytes);
            self.tally.add(BYTES, bytes);
        }
    }

    /// Frames were given to the port, which counts them itself.
    #[inline(always)]
    pub fn count_sent(&mut self, bytes: u64) {
        self.tally.add(BYTES, bytes);
    }

    /// Frames were handed over while there was no wire.
    #[cold]
    pub fn unplugged(&mut self, frames: u64, bytes: u64) {
        if frames > 0 {
            self.tally.add(UNPLUGGED, frames);
            self.tally.add(BYTES, bytes);
        }
    }

    #[inline(always)]
    pub fn publish(&mut self, to: &Published<WORDS>) {
        self.tally.publish(to);
    }
}

/// What went out, over all lanes of a port and as its wires say it, since the card started or the counters were reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    words: [u64; WORDS],
    port_queues: PortQueueCounts,
}

impl Default for Sent {
    fn default() -> Self {
        Self { words: [0; WORDS], port_queues: PortQueueCounts::default() }
    }
}

impl Sent {
    pub(super) fn sum(lanes: impl Iterator<Item = [u64; WORDS]>, port_queues: &PortQueueCounts) -> Self {
        let words = lanes.fold([0; WORDS], |sum, lane| core::array::from_fn(|at| sum[at] + lane[at]));
        Self { words, port_queues: *port_queues }
    }

    pub(super) fn minus(&self, zero: &Self) -> Self {
        let words = core::array::from_fn(|at| self.words[at].wrapping_sub(zero.words[at]));
        Self { words, port_queues: self.port_queues.minus(&zero.port_queues) }
    }

    fn port(&self, reason: DropReason) -> u64 {
        self.port_queues.tx_drops.of(reason)
    }

    pub fn sent(&self) -> u64 {
        self.port_queues.sent + self.words[LOOPED]
    }

    /// Bytes of the frames sent, without FCS.
    pub fn sent_bytes(&self) -> u64 {
        self.port_queues.sent_bytes + self.words[LOOPED_BYTES]
    }

    pub fn disabled(&self) -> u64 {
        self.words[DISABLED]
    }

    pub fn link_down(&self) -> u64 {
        self.words[LINK_DOWN] + self.port(DropReason::LinkDown)
    }

    pub fn length_errors(&self) -> u64 {
        self.port(DropReason::TooShort) + self.port(DropReason::TooLong)
    }

    pub fn dropped(&self) -> u64 {
        self.words[DISABLED] + self.words[LINK_DOWN] + self.words[UNPLUGGED] + self.port_queues.tx_drops.sum()
    }

    pub fn total(&self) -> u64 {
        self.sent() + self.dropped()
    }

    /// Bytes of all frames with FCS.
    pub fn octets(&self) -> u64 {
        self.words[BYTES] + u64::from(FCS) * self.total()
    }

    pub fn sent_octets(&self) -> u64 {
        self.sent_bytes() + u64::from(FCS) * self.sent()
    }

    /// Every frame that the queues handed over and that was not sent, by name.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let by_port = DropReason::ALL.into_iter().map(|reason| match reason {
            DropReason::LinkDown => (reason.name(), self.link_down()),
            _ => (reason.name(), self.port(reason)),
        });
        by_port.chain([("disabled", self.disabled()), ("unplugged", self.words[UNPLUGGED])])
    }
}
