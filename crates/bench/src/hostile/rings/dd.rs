//! DD: descriptors of nothing that are given back to the card at once, and buffers without room.

use std::path::Path;
use std::sync::Arc;

use millrace_abi::message::Buffers;
use millrace_abi::queue::QueueId;
use millrace_abi::register::medusa::MAX_ENTRIES;
use millrace_dma::Slots64;
use millrace_driver::Client;
use millrace_tool::failure::Failure;

use super::round::{Round, Tend};
use crate::hostile::attack::Attack;
use crate::hostile::queue::{Queue, Shared, connect};

/// 64-bit words of a descriptor, of which the second is the status.
const WORDS: u32 = 4;
const STATUS: u32 = 1;
/// The bit of a status that says that the descriptor is not the card's.
const DONE: u64 = 1 << 63;
/// Bytes of an honest frame.
const FRAME: u64 = 64;

struct Ring {
    queue: Queue,
    words: Slots64,
    len: u64,
    memory: Arc<Shared>,
    next: u32,
}

/// TX rings of frames without a byte.
pub fn senders(path: &Path, indices: &[u32]) -> Result<Box<dyn Attack>, Failure> {
    rings(path, indices.iter().map(|&index| (QueueId::tx(index), 0)))
}

/// RX rings of buffers without room, and honest frames for them.
pub fn pairs(path: &Path, indices: &[u32]) -> Result<Box<dyn Attack>, Failure> {
    rings(path, indices.iter().flat_map(|&index| [(QueueId::rx(index), 0), (QueueId::tx(index), FRAME)]))
}

fn rings(path: &Path, wanted: impl Iterator<Item = (QueueId, u64)>) -> Result<Box<dyn Attack>, Failure> {
    let client = connect(path)?;
    let memory = Arc::new(Shared::new(&client, 4096)?);
    let rings = wanted.map(|(id, len)| Ring::open(&client, id, len, &memory)).collect::<Result<_, _>>()?;
    Ok(Box::new(Round::<Ring> { rings }))
}

impl Ring {
    fn open(client: &Arc<Client>, id: QueueId, len: u64, memory: &Arc<Shared>) -> Result<Self, Failure> {
        let queue = Queue::open(client, id, Buffers::Program { entries: MAX_ENTRIES })?;
        let words = queue.opened.status.window().slots64(0, MAX_ENTRIES * WORDS).map_err(|error| queue.no(error))?;
        Ok(Self { queue, words, len, memory: memory.clone(), next: 0 })
    }

    fn give(&self, at: u32) {
        self.words.store(at * WORDS, self.memory.iova);
        self.words.store(at * WORDS + 2, 0);
        self.words.store_release(at * WORDS + STATUS, self.len);
    }
}

impl Tend for Ring {
    fn tend(&mut self) -> Result<u64, Failure> {
        if self.queue.revive()? {
            self.next = 0;
        }
        // All that has come back since, behind the card and at most once round.
        let mut given = 0;
        while given < MAX_ENTRIES && self.words.load(self.next * WORDS + STATUS) & DONE != 0 {
            self.give(self.next);
            self.next = (self.next + 1) % MAX_ENTRIES;
            given += 1;
        }
        self.queue.ring(0)?;
        Ok(given.into())
    }
}
