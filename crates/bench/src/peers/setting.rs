//! What the measurements of a run have in common.

use millrace_abi::queue::{Engine, Mode};
use millrace_tool::options::Shared;
use millrace_tool::output::note;

use crate::rig::Cores;

/// What all measurements of a run have in common.
pub struct Bench<'a> {
    pub shared: &'a Shared,
    pub cores: Cores,
    pub engine: Option<Engine>,
    pub mode: Mode,
    pub seconds: f64,
    /// Who cannot be measured here; everybody else has been told why.
    pub absent: Vec<&'static str>,
}

impl Bench<'_> {
    pub fn is_absent(&self, peer: &str) -> bool {
        self.absent.contains(&peer)
    }

    /// Says why a peer is not measured, now and in the rounds to come.
    pub fn leave_out(&mut self, peer: &'static str, why: impl std::fmt::Display) {
        if !self.is_absent(peer) {
            note(format!("{peer} is left out: {why}"));
            self.absent.push(peer);
        }
    }
}
