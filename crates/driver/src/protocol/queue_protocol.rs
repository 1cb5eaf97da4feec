//! What the driver has to tell apart between the protocols of the queues.

use super::writer::Writer;
use crate::memory::{MemoryError, QueueMemory};
use crate::registers::Registers;
use millrace_abi::message::Buffers;
use millrace_abi::name::CardOptions;
use millrace_abi::queue::{Direction, QueueId};
use millrace_card::TxBuffers;
use millrace_dma::{Domain, Ordering, OutOfRange, Slots64, Word64};
use millrace_ring::cursor::Position;
use millrace_ring::shared::{self, ReadRing};

/// What the driver makes its half of a ring of.
pub(crate) struct Half<'m> {
    pub memory: &'m QueueMemory,
    pub doorbell: Word64,
    pub update: Word64,
    /// Where the ring begins, in units.
    pub base: u64,
}

impl Half<'_> {
    /// The descriptor region, as a ring of words.
    pub(super) fn descriptors(&self, entries: u32) -> Result<Option<Slots64>, OutOfRange> {
        self.memory.descriptors.as_ref().map(|region| region.window().slots64(0, entries)).transpose()
    }
}

/// A protocol as the driver sees it. What is `None` is not to be had with this protocol, or not with this memory.
pub(crate) trait QueueProtocol: Sync {
    /// Whether a queue can only be had direct and exclusive.
    fn is_own_only(&self) -> bool {
        false
    }

    /// Whether a queue can run over buffers that its program posts.
    fn takes_buffers(&self) -> bool {
        false
    }

    /// Whether a queue can run over a pool.
    fn takes_pools(&self) -> bool {
        false
    }

    /// Allocates the memory of a queue, lays it out and maps it.
    fn allocate(
        &self,
        id: QueueId,
        options: &CardOptions,
        buffers: Buffers,
        domain: &Domain,
    ) -> Result<QueueMemory, MemoryError>;

    /// Where a queue begins whose last owner stopped at `position`, in units.
    fn base(&self, position: u64) -> u64;

    /// Makes the memory as it must be at START of a queue that begins at `base`.
    fn prepare(&self, memory: &QueueMemory, _base: u64) -> Result<(), OutOfRange> {
        memory.update()?.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Buffers of the device that software shares.
    fn buffers(&self, _memory: &QueueMemory) -> Result<Option<TxBuffers>, OutOfRange> {
        Ok(None)
    }

    /// The register writes before CONTROL.
    fn program(&self, registers: &Registers<'_>, memory: &QueueMemory);

    /// Size of the ring less one, in units of the doorbell.
    fn mask(&self, memory: &QueueMemory) -> u32;

    /// Whether CONTROL may be written to stop the queue: where the card does not drain by itself, when it has.
    fn may_stop(&self, _registers: &Registers<'_>) -> bool {
        true
    }

    /// Whether the card has taken everything from a TX ring that no register shows.
    fn is_drained(&self, memory: &QueueMemory, doorbell: &Word64) -> Result<bool, OutOfRange> {
        // Acquire pairs with the Release of the card's update word.
        let (asked, done) = (doorbell.load(Ordering::Relaxed) as u32, memory.update()?.load(Ordering::Acquire) as u32);
        Ok((asked ^ done) & self.mask(memory) == 0)
    }

    /// Where a queue has stopped that began at `base`: what software says, otherwise what the card did.
    fn stopped_at(&self, base: u64, said: Option<u64>, update: u64, direction: Direction) -> u64 {
        let passed = match direction {
            Direction::Rx => update >> 32,
            Direction::Tx => update & 0xffff_ffff,
        };
        Position::new(said.unwrap_or(base + passed)).get()
    }

    /// The RX ring, for who gives it back at the pace of its readers.
    fn reclaimed(&self, half: &Half<'_>) -> Result<Option<shared::Pool>, OutOfRange>;

    /// The RX ring, for one of its readers.
    fn read_ring(&self, half: &Half<'_>) -> Result<Option<ReadRing>, OutOfRange>;

    /// The driver's half of a TX ring.
    fn writer(&self, half: &Half<'_>) -> Result<Option<Box<dyn Writer>>, OutOfRange>;
}
