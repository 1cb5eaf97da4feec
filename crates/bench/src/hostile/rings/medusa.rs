//! Medusa: rings of descriptors that lead nowhere, or do so at length (`docs/spec/medusa.md` §2).

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

/// Entries of each ring of many: what a worker takes out of it between two rounds over all of them.
const FEW_ENTRIES: u32 = 1024;
/// From so many queues on.
const MANY: usize = 64;
/// Buffers that all descriptors point to, in turn, and the distance between them.
const BUFFERS: u32 = 64;
const STRIDE: u32 = 2048;
/// Bytes of a frame.
const FRAME: u64 = 64;
/// Pieces of a packet of `chains`.
const CHAIN: u32 = 512;

const BUFFER: u64 = 2 << 62;
const NEXT: u64 = 1 << 61;

/// What the descriptors of a ring are.
#[derive(Clone, Copy)]
pub struct Pattern {
    /// Number of the descriptor, lower part of the address of its buffer, whether it is for RX; `None` is one more upper
    /// part.
    word: fn(u32, u64, bool) -> Option<u64>,
    /// Whether the doorbell is left alone after the first time, one descriptor short of a full ring: a chain that fills
    /// the whole ring is a fault.
    once: bool,
}

/// One descriptor for each frame.
pub fn honest() -> Pattern {
    let word = |_, iova: u64, rx: bool| Some(BUFFER | (if rx { u64::from(STRIDE) } else { FRAME }) << 32 | iova);
    Pattern { word, once: false }
}

/// A packet with one byte of room, and then none, that never ends.
pub fn no_fit() -> Pattern {
    let word = |at, iova, _| Some(BUFFER | NEXT | u64::from(at == 1) << 32 | iova);
    Pattern { word, once: true }
}

/// A packet that never ends.
pub fn endless() -> Pattern {
    let word = |_, iova, _| Some(BUFFER | NEXT | 1 << 32 | iova);
    Pattern { word, once: true }
}

/// Packets of many pieces without a byte, which come to nothing.
pub fn chains() -> Pattern {
    let word = |at: u32, iova, _| Some(BUFFER | if at % CHAIN == CHAIN - 1 { 0 } else { NEXT } | iova);
    Pattern { word, once: false }
}

/// Nothing but upper addresses.
pub fn upper() -> Pattern {
    Pattern { word: |_, _, _| None, once: false }
}

/// Both rings of each pair.
pub fn pairs(
    path: &Path,
    indices: &[u32],
    rx: fn() -> Pattern,
    tx: fn() -> Pattern,
) -> Result<Box<dyn Attack>, Failure> {
    let both = |index: &u32| [(QueueId::rx(*index), rx()), (QueueId::tx(*index), tx())];
    rings(path, indices.iter().flat_map(both))
}

/// The TX rings alone.
pub fn senders(path: &Path, indices: &[u32], tx: fn() -> Pattern) -> Result<Box<dyn Attack>, Failure> {
    rings(path, indices.iter().map(|index| (QueueId::tx(*index), tx())))
}

fn rings(path: &Path, wanted: impl Iterator<Item = (QueueId, Pattern)>) -> Result<Box<dyn Attack>, Failure> {
    let client = connect(path)?;
    let memory = Arc::new(Shared::new(&client, (BUFFERS * STRIDE) as usize)?);
    let wanted: Vec<_> = wanted.collect();
    let entries = if wanted.len() < MANY { MAX_ENTRIES } else { FEW_ENTRIES };
    let open = |(id, pattern)| Ring::open(&client, id, pattern, entries, &memory);
    let rings: Vec<Ring> = wanted.into_iter().map(open).collect::<Result<_, _>>()?;
    // Not before all are open: the first would make the others wait.
    rings.iter().try_for_each(Ring::begin)?;
    Ok(Box::new(Round::<Ring> { rings }))
}

struct Ring {
    queue: Queue,
    slots: Slots64,
    entries: u32,
    pattern: Pattern,
    rx: bool,
    memory: Arc<Shared>,
}

impl Ring {
    fn open(
        client: &Arc<Client>,
        id: QueueId,
        pattern: Pattern,
        entries: u32,
        memory: &Arc<Shared>,
    ) -> Result<Self, Failure> {
        let queue = Queue::open(client, id, Buffers::Program { entries })?;
        let slots = queue.descriptors(entries)?;
        let rx = id == QueueId::rx(id.index);
        Ok(Self { queue, slots, entries, pattern, rx, memory: memory.clone() })
    }

    /// Fills the ring and shows it to the card. The first descriptor says where the buffers lie.
    fn begin(&self) -> Result<(), Failure> {
        let (upper, low) = (self.memory.iova >> 30, self.memory.iova & ((1 << 30) - 1));
        for at in 1..self.entries {
            let word = (self.pattern.word)(at, low + u64::from(at % BUFFERS * STRIDE), self.rx);
            self.slots.store(at, word.unwrap_or(upper));
        }
        self.slots.store(0, upper);
        // Headers: all but one may be written.
        self.queue.ring(u64::from(self.entries - 2) | u64::from(self.entries - 1) << 32)
    }
}

impl Tend for Ring {
    fn tend(&mut self) -> Result<u64, Failure> {
        if self.queue.revive()? {
            self.begin()?;
            return Ok(1);
        }
        if self.pattern.once {
            return Ok(0);
        }
        // All but one of the descriptors, and of the headers, are the card's again.
        let (update, mask) = (self.queue.update()?, self.entries - 1);
        let behind = |at: u32| u64::from(at.wrapping_sub(1) & mask);
        self.queue.ring(behind(update as u32) | behind((update >> 32) as u32) << 32)?;
        Ok(1)
    }
}
