//! What registers and START have to tell apart between the protocols of the queues.

use crate::engine::{RxEngine, TxEngine};
use crate::queue::build::Build;
use crate::queue::error::StartError;
use crate::queue::registers::{self, Asked, Target, View};
use millrace_abi::queue::Direction;

/// A protocol as the control side of the card sees it.
pub(crate) trait QueueProtocol: Sync {
    /// Whether software writes frames into buffers of the device (§3.2.5).
    fn has_buffers(&self, _direction: Direction) -> bool {
        false
    }

    /// Reads a register: those of Medusa, Calypte and DD lie at the same offsets.
    fn read32(&self, view: &View<'_>, offset: u32) -> u32 {
        registers::read(view, offset)
    }

    /// Writes a register; what it asks for is for the queue to do.
    fn write32(&self, target: Target<'_>, offset: u32, value: u32) -> Asked {
        registers::write(target, offset, value)
    }

    /// The engine of a TX ring.
    fn tx(&self, build: Build<'_>) -> Result<TxEngine, StartError>;

    /// The engine of an RX ring.
    fn rx(&self, build: Build<'_>) -> Result<RxEngine, StartError>;
}
