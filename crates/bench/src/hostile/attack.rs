//! What all kinds of hostile programs are.

use millrace_tool::failure::Failure;

/// Something done again and again.
pub trait Attack {
    /// Does a part of it, and says how many times: writes, requests, or whatever the kind counts.
    fn step(&mut self) -> Result<u64, Failure>;
}

/// What the driver refused or a socket did not do, where an attack cannot go on without it.
pub fn cannot(doing: &str, why: impl std::fmt::Display) -> Failure {
    Failure::Found(format!("the hostile program cannot {doing}: {why}"))
}
