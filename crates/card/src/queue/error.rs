//! Why START starts nothing.

use millrace_abi::queue::QueueId;
use millrace_dma::{Fault, Iova};

/// Why START did not start the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// No domain and no control page were attached: the card cannot reach any memory.
    #[error(
        "no memory is attached to {0}: open the queue before starting it; a driver that starts queues by itself, on \
         memory of its own, needs the card in its own process (`embedded`)"
    )]
    NotAttached(QueueId),
    /// Somebody else uses the queue, or has locked its DMA controller.
    #[error("{0} is in use by somebody else, who has locked its DMA controller")]
    Held(QueueId),
    /// It runs already.
    #[error("{0} is running already; stop it first")]
    Running(QueueId),
    /// A ring that is no power of two, or larger than the card can.
    #[error("a ring of {0} entries or bytes: the card wants a power of two within its limits")]
    Size(u64),
    /// An address that is not aligned as its use needs.
    #[error("IOVA {0} is not aligned as its register needs")]
    Unaligned(Iova),
    /// An address outside the domain.
    #[error("{0}")]
    Unmapped(#[from] Fault),
    /// The system refused memory or fds.
    #[error("the system refused memory or fds for {0}; free memory or use fewer queues")]
    NoMemory(QueueId),
    /// The function may not reach memory: bit 2 of its PCI command register is 0.
    #[error(
        "bus mastering is off, so {0} can reach no memory: the guest's driver turns it on (bit 2 of the PCI command register)"
    )]
    NoBusMaster(QueueId),
    /// Memory of the machine was taken away from under the card.
    #[error(
        "the guest's memory has been cut (its file has shrunk, or a page of it could not be had), so {0} cannot run on it: start the guest again"
    )]
    MemoryCut(QueueId),
    /// The worker did not answer.
    #[error("the card's worker does not answer")]
    Stuck,
}
