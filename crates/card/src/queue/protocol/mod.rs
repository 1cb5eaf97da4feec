//! The protocols of the queues, as their registers and START have to tell one from another: an implementation for each
//! engine.

mod calypte;
mod dd;
mod medusa;
mod sze;

use super::Queue;
use super::build::Build;
use super::error::StartError;
use super::registers::Surroundings;
use crate::engine::{RxEngine, TxEngine};
use millrace_abi::queue::{Direction, Engine};

/// A protocol as the control side of the card sees it.
pub(crate) trait QueueProtocol: Sync {
    /// Whether software writes frames into buffers of the device (§3.2.5).
    fn has_buffers(&self, _direction: Direction) -> bool {
        false
    }

    /// Reads a register: those of Medusa, Calypte and DD lie at the same offsets.
    fn read32(&self, queue: &Queue, offset: u32) -> u32 {
        queue.read_medusa(offset)
    }

    /// Writes a register.
    fn write32(&self, queue: &Queue, offset: u32, value: u32, around: Surroundings<'_>) {
        queue.write_medusa(offset, value, around);
    }

    /// The engine of a TX ring.
    fn tx(&self, build: Build<'_>) -> Result<TxEngine, StartError>;

    /// The engine of an RX ring.
    fn rx(&self, build: Build<'_>) -> Result<RxEngine, StartError>;
}

/// The protocol of an engine.
pub(super) fn protocol(engine: Engine) -> &'static dyn QueueProtocol {
    match engine {
        Engine::Medusa => &medusa::Medusa,
        Engine::Sze => &sze::Sze,
        Engine::Calypte => &calypte::Calypte,
        Engine::Dd => &dd::Dd,
    }
}
