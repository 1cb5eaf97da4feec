//! What is not the same in the DMA controllers of all engines.

use super::{Offset, medusa, sze};
use crate::queue::Engine;

/// Where a DMA controller differs from others.
pub struct Controller {
    /// The software pointers.
    pub pointers: Offset,
    /// Bytes of them: 8 where there are two, which one write of 64 bits moves at once.
    pub pointers_len: usize,
    /// What commands the counters.
    pub counter_command: Offset,
    /// What software writes to TIMEOUT when nobody asked for another value.
    pub timeout_default: u32,
    /// What software writes to CONTROL to stop the queue.
    pub stop: u32,
}

/// Medusa's, and of those that lie where it does.
static MEDUSA: Controller = Controller {
    pointers: medusa::SDP,
    pointers_len: 8,
    counter_command: medusa::COUNTER_COMMAND,
    timeout_default: medusa::TIMEOUT_DEFAULT,
    stop: medusa::CONTROL_STOP,
};

static SZE: Controller = Controller {
    pointers: sze::SW_POINTER,
    pointers_len: 4,
    counter_command: sze::COUNTER_COMMAND,
    timeout_default: sze::TIMEOUT_DEFAULT,
    stop: sze::CONTROL_DISCARD,
};

impl Controller {
    /// That of the queues of an engine.
    pub fn of(engine: Engine) -> &'static Self {
        match engine {
            Engine::Sze => &SZE,
            Engine::Medusa | Engine::Calypte | Engine::Dd => &MEDUSA,
        }
    }
}
