//! Which queue pair has which engine.

use millrace_abi::queue::Engine;

/// How many engines there are: as many pairs in a row have one each.
pub const ENGINES: u32 = Engine::ALL.len() as u32;

/// The engine of a pair.
pub fn engine_of(pair: u32) -> Engine {
    Engine::ALL[(pair % ENGINES) as usize]
}
