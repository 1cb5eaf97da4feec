//! The driver half of a split virtqueue (virtio 1.2 §2.7), as a virtual machine has it: [`TxQueue`] gives frames to the
//! device, [`RxQueue`] takes frames from it.
//!
//! Every descriptor has one buffer of its own for ever, with the virtio header right before the frame, so that
//! descriptors are written once and a ring that a device uses in order is only ever counted on. A frame that one buffer
//! does not hold lies in several. Only where the buffers are an application's ([`LentRxQueue`]) they come and go.
//!
//! Nothing that the device writes is believed: an index that runs ahead, a descriptor that it does not have, a length beyond
//! the buffer end the queue with a [`Broken`]; it then stays as it is until it is made anew.

mod lent;
mod queue;
mod rx;
#[cfg(all(test, not(loom)))]
mod tests;
mod tx;

pub use lent::{LentPlace, LentRxQueue};
pub use queue::{Broken, Place, Size};
pub use rx::RxQueue;
pub use tx::TxQueue;

use super::NetHeader;

/// What the two sides have agreed on, as far as it concerns a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// `VIRTIO_F_EVENT_IDX`: each side names the index at which it wants to be told.
    pub event_index: bool,
    /// `VIRTIO_F_IN_ORDER`: descriptors are used in the order in which they were made available.
    pub in_order: bool,
    /// `VIRTIO_NET_F_MRG_RXBUF`: a frame may fill several buffers.
    pub mergeable: bool,
}

/// Bytes from the start of a buffer to its virtio header: with its 12 bytes the frame then starts on a cache line.
const BEFORE_HEADER: usize = 52;
/// Offset of the frame in its buffer.
pub const BEFORE_FRAME: usize = BEFORE_HEADER + NetHeader::LEN;
/// Bytes from one buffer to the next where nothing speaks for another number: an odd number of cache lines, so that the
/// buffers of a ring share no cache sets (`docs/decisions/0005-odd-stride.md`).
pub const STRIDE: usize = 33 * 64;
/// The longest frame in one buffer of [`STRIDE`] bytes.
pub const CAPACITY: usize = capacity(STRIDE);

/// The longest frame in one buffer of `stride` bytes.
pub const fn capacity(stride: usize) -> usize {
    stride.saturating_sub(BEFORE_FRAME)
}
