//! Calypte: headers of nothing, in every lap, or of anything.

use std::path::Path;

use millrace_abi::message::{Buffers, Layout};
use millrace_abi::queue::QueueId;
use millrace_dma::Slots64;
use millrace_tool::failure::Failure;

use super::round::{Round, Tend};
use crate::hostile::attack::Attack;
use crate::hostile::queue::{Queue, connect};

/// The bit that says, by lap, that a header is new.
const VALID: u64 = 1 << 32;

struct Ring {
    queue: Queue,
    headers: Slots64,
    entries: u32,
    valid: bool,
    random: Option<fastrand::Rng>,
}

/// Opens the TX queues.
pub fn senders(path: &Path, indices: &[u32], random: bool) -> Result<Box<dyn Attack>, Failure> {
    let client = connect(path)?;
    let open = |index: &u32| {
        let queue = Queue::open(&client, QueueId::tx(*index), Buffers::Driver)?;
        let Layout::Calypte { headers: entries, .. } = queue.opened.layout else {
            return Err(queue.no("it is none of calypte"));
        };
        let headers = queue.descriptors(entries)?;
        let random = random.then(|| fastrand::Rng::with_seed(1));
        Ok(Ring { queue, headers, entries, valid: false, random })
    };
    let rings = indices.iter().map(open).collect::<Result<_, Failure>>()?;
    Ok(Box::new(Round::<Ring> { rings }))
}

impl Tend for Ring {
    fn tend(&mut self) -> Result<u64, Failure> {
        self.queue.revive()?;
        // Of this lap, and then of the next: the card takes those that its own lap waits for.
        self.valid = !self.valid;
        let valid = if self.valid { VALID } else { 0 };
        for at in 0..self.entries {
            let header = self.random.as_mut().map_or(0, |random| u64::from(random.u16(..)) | random.u64(0..2048) << 21);
            self.headers.store_release(at, header | valid);
        }
        self.queue.ring(0)?;
        Ok(self.entries.into())
    }
}
