//! What a benchmark measures, of what was asked for.

use millrace_abi::queue::{Engine, Mode, QueueId};
use millrace_tool::options::Shared;

/// The engine of the benchmarks of many queues, unless another is asked for.
pub const ENGINE_OF_MANY: Engine = Engine::Dd;

/// The engines to measure: the one asked for, or all. A card that was given with `--device` has the engine it has.
pub fn engines(shared: &Shared) -> Vec<Option<Engine>> {
    match (shared.engine_of(QueueId::tx(first_queue(shared))), &shared.device) {
        (Some(engine), _) => vec![Some(engine)],
        (None, Some(_)) => vec![None],
        (None, None) => Engine::ALL.map(Some).to_vec(),
    }
}

/// The modes to measure: the one asked for, or those that the engine has.
pub fn modes(shared: &Shared, engine: Option<Engine>) -> Vec<Mode> {
    let has = |mode: &Mode| engine.is_none_or(|engine| engine.has(*mode));
    let all = || [Mode::Mediated, Mode::Direct].into_iter().filter(has).collect();
    shared.mode.map_or_else(all, |mode| vec![mode])
}

/// The queue pair to measure: benchmarks take one.
pub fn first_queue(shared: &Shared) -> u32 {
    shared.queues().indices()[0]
}
