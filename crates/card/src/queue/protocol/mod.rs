//! The protocols of the queues, as their registers and START have to tell one from another: what each has to say
//! (`queue_protocol`), and an implementation for each engine.

mod calypte;
mod dd;
mod medusa;
mod queue_protocol;
mod sze;

pub(super) use queue_protocol::QueueProtocol;

use millrace_abi::queue::Engine;

/// The protocol of an engine.
pub(super) fn protocol(engine: Engine) -> &'static dyn QueueProtocol {
    match engine {
        Engine::Medusa => &medusa::Medusa,
        Engine::Sze => &sze::Sze,
        Engine::Calypte => &calypte::Calypte,
        Engine::Dd => &dd::Dd,
    }
}
