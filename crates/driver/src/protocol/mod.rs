//! The protocols of the queues, as far as the driver has to tell one from another: what each has to say
//! (`queue_protocol`), and an implementation for each engine.

mod calypte;
mod dd;
mod medusa;
mod queue_protocol;
mod sze;
mod writer;

pub(crate) use queue_protocol::{Half, QueueProtocol};
pub(crate) use writer::Writer;

use millrace_abi::queue::Engine;

/// The protocol of an engine.
pub(crate) fn protocol(engine: Engine) -> &'static dyn QueueProtocol {
    match engine {
        Engine::Medusa => &medusa::Medusa,
        Engine::Sze => &sze::Sze,
        Engine::Calypte => &calypte::Calypte,
        Engine::Dd => &dd::Dd,
    }
}
