//! SZE: streams whose headers say nothing, or little, and pointers that jump.

use std::path::Path;

use millrace_abi::message::{Buffers, Layout};
use millrace_abi::queue::QueueId;
use millrace_dma::Ordering;
use millrace_tool::failure::Failure;

use super::round::{Round, Tend};
use crate::hostile::attack::Attack;
use crate::hostile::queue::{Queue, connect};

/// What is in the ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Headers of nothing: each is a fault, and the queue is started again.
    Zero,
    /// Frames of four bytes, which are too short to be sent.
    Tiny,
    /// The same, and a pointer that jumps.
    Jumps,
}

/// A header and four bytes of frame.
const TINY: u64 = 8;

struct Ring {
    queue: Queue,
    len: u32,
    pattern: Pattern,
    random: fastrand::Rng,
}

/// Opens the TX queues.
pub fn senders(path: &Path, indices: &[u32], pattern: Pattern) -> Result<Box<dyn Attack>, Failure> {
    let client = connect(path)?;
    let open = |index: &u32| {
        let queue = Queue::open(&client, QueueId::tx(*index), Buffers::Driver)?;
        let Layout::Sze { ring: len, .. } = queue.opened.layout else { return Err(queue.no("it is none of sze")) };
        let ring = Ring { queue, len, pattern, random: fastrand::Rng::with_seed(1) };
        ring.fill()?;
        Ok(ring)
    };
    let rings = indices.iter().map(open).collect::<Result<_, Failure>>()?;
    Ok(Box::new(Round::<Ring> { rings }))
}

impl Ring {
    fn fill(&self) -> Result<(), Failure> {
        let data = self.queue.opened.data.as_ref().ok_or_else(|| self.queue.no("it has no ring"))?;
        let words = data.window().slots64(0, self.len / 8).map_err(|error| self.queue.no(error))?;
        let word = if self.pattern == Pattern::Zero { 0 } else { TINY };
        (0..self.len / 8).for_each(|at| words.store(at, word));
        millrace_dma::fence(Ordering::Release);
        Ok(())
    }
}

impl Tend for Ring {
    fn tend(&mut self) -> Result<u64, Failure> {
        self.queue.revive()?;
        let behind = (self.queue.update()? as u32).wrapping_sub(8);
        let pointer = if self.pattern == Pattern::Jumps { self.random.u32(..) & !7 } else { behind };
        self.queue.ring(u64::from(pointer & (self.len - 1)))?;
        Ok(1)
    }
}
