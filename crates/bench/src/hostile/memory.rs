//! Random words in all memory that a program shares with the card.

use std::path::Path;
use std::sync::Arc;

use millrace_abi::message::Buffers;
use millrace_abi::queue::QueueId;
use millrace_dma::{Ordering, Region};
use millrace_driver::Client;
use millrace_tool::failure::Failure;

use super::attack::{Attack, cannot};
use super::queue::{Queue, connect};

/// Words written to each region in one step.
const WORDS: u64 = 64;

/// Steps between two looks at whether the card has stopped a queue: each restart is a request, and these are for others.
const STEPS_PER_LOOK: u64 = 16;

/// Both directions of some queues.
pub struct Memory {
    queues: Vec<Queue>,
    random: fastrand::Rng,
    steps: u64,
}

impl Memory {
    /// Opens the queues.
    pub fn new(path: &Path, indices: &[u32], seed: u64) -> Result<Self, Failure> {
        let client = connect(path)?;
        let both = |&index: &u32| [QueueId::rx(index), QueueId::tx(index)];
        let queues = indices.iter().flat_map(both).map(|id| open(&client, id)).collect::<Result<_, _>>()?;
        Ok(Self { queues, random: fastrand::Rng::with_seed(seed), steps: 0 })
    }
}

fn open(client: &Arc<Client>, id: QueueId) -> Result<Queue, Failure> {
    Queue::open(client, id, Buffers::Driver)
}

impl Attack for Memory {
    fn step(&mut self) -> Result<u64, Failure> {
        let Self { queues, random, steps } = self;
        *steps += 1;
        let mut written = 0;
        for queue in queues.iter() {
            let opened = &queue.opened;
            let regions =
                [Some(&opened.control), Some(&opened.status), opened.data.as_ref(), opened.descriptors.as_ref()];
            for region in regions.into_iter().flatten().filter(|region| region.window().is_writable()) {
                written += scribble(region, random)?;
            }
            queue.ring(random.u64(..) >> random.u32(0..64))?;
            if steps.is_multiple_of(STEPS_PER_LOOK) {
                queue.revive()?;
            }
        }
        // The card has to come to something between two steps, also on a machine with few cores.
        std::thread::sleep(std::time::Duration::from_micros(200));
        Ok(written)
    }
}

/// Writes words to random places of a region: sometimes anything, sometimes what is nearly right for some engine.
fn scribble(region: &Region, random: &mut fastrand::Rng) -> Result<u64, Failure> {
    let words = region.window().len() as u64 / 8;
    for _ in 0..WORDS {
        // Often near the beginning, where the card is after a restart.
        let reach = if random.bool() { words.min(64) } else { words };
        let at = random.u64(0..reach);
        let word = match random.u32(0..8) {
            0 => random.u64(..),
            1 => random.u64(0..2048),
            2 => random.u64(0..64) | random.u64(0..64) << 32,
            // Medusa: an upper address, a buffer, a piece of a chain.
            3 => 4 + random.u64(0..3),
            4 => 2 << 62 | random.u64(0..3000) << 32 | random.u64(0..1 << 30),
            5 => 2 << 62 | random.u64(0..2) << 61 | 64 << 32 | random.u64(0..1 << 22),
            // Calypte: a header. DD: a status word of the card's.
            6 => random.u64(0..2000) | random.u64(0..2048) << 21 | random.u64(0..2) << 32,
            _ => random.u64(0..2000) | random.u64(0..2) << 63,
        };
        region.window().word64(at as usize * 8).map_err(|error| cannot("write", error))?.store(word, Ordering::Relaxed);
    }
    Ok(WORDS)
}
