//! Several rings of an attack.

use std::thread;
use std::time::Duration;

use millrace_tool::failure::Failure;

use crate::hostile::attack::Attack;

/// Between two rounds over all rings, where the rings go on by themselves.
const REST: Duration = Duration::from_micros(100);

/// Rings that are attended to in turn.
pub struct Round<Ring> {
    /// The rings.
    pub rings: Vec<Ring>,
}

/// A ring of an attack.
pub trait Tend {
    /// Sees to it that the ring goes on.
    fn tend(&mut self) -> Result<u64, Failure>;
}

impl<Ring: Tend> Attack for Round<Ring> {
    fn step(&mut self) -> Result<u64, Failure> {
        let done = self.rings.iter_mut().map(Tend::tend).sum();
        thread::sleep(REST);
        done
    }
}
