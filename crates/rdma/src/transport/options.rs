//! What an engine is made with.

use core::time::Duration;

/// Limits and habits of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The first number of queue pairs; 2 at least.
    pub first_qpn: u32,
    /// How many numbers of queue pairs. A number is used again as late as can be.
    pub qpns: u32,
    /// Queue pairs at once.
    pub max_queue_pairs: u32,
    /// Requests of a send, receive or shared receive queue.
    pub max_requests: u32,
    /// Lines of a completion queue.
    pub max_completions: u32,
    /// Completion queues, shared receive queues and protection domains, of each.
    pub max_objects: u32,
    /// Pieces of a request.
    pub max_pieces: u32,
    /// Bytes that a request may bring along.
    pub max_inline: u32,
    /// READs and atomic operations of a queue pair on their way at once, in each direction.
    pub max_rd_atomic: u8,
    /// Bytes of a message.
    pub max_message: u32,
    /// Bytes of a datagram.
    pub datagram_mtu: u16,
    /// Packets of SEND and WRITE of a queue pair that no answer has come for.
    pub window: u32,
    /// For random numbers.
    pub seed: u64,
    /// Selective repeat and credits with ends of the same kind (decision 54).
    pub extended: bool,
    /// Bytes of packets, of all queue pairs, that are kept because an earlier one is missing.
    pub reorder_bytes: usize,
    /// Whether queue pairs send slower when routers are congested (DCQCN); packets then say that they bear marks.
    pub rate_control: bool,
    /// Bits per second that a queue pair may send at most, for rate control.
    pub line_rate: u64,
    /// Completions are taken at once, by whoever asks which queues have some ([`Engine::take_filled`](crate::engine::Engine::take_filled)),
    /// and whoever reads them knows which queue pairs there are: lines of one that is destroyed stay.
    pub lists_filled: bool,
    /// Requests and buffers of queue pairs that have failed that end in one call of [`Engine::transmit`](crate::engine::Engine::transmit), and
    /// since the last one. More of them end in the next calls.
    pub flushed_in_turn: u32,
    /// The shortest time after which something is sent again, however short a queue pair's timeout is.
    pub min_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            first_qpn: 0x11,
            qpns: 1 << 16,
            max_queue_pairs: 16_384,
            max_requests: 16_384,
            max_completions: 1 << 20,
            max_objects: 16_384,
            max_pieces: 16,
            max_inline: 1024,
            max_rd_atomic: 16,
            max_message: 1 << 30,
            datagram_mtu: 4096,
            window: 256,
            seed: 0,
            extended: true,
            reorder_bytes: 64 << 20,
            rate_control: false,
            line_rate: 100_000_000_000,
            lists_filled: false,
            flushed_in_turn: u32::MAX,
            min_timeout: Duration::ZERO,
        }
    }
}
